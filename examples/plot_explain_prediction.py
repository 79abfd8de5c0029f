"""
Explain one prediction
======================

Why does the model expect a mild course for this patient? In an additive model the answer is
exact: a prediction is a constant plus one contribution of each feature and of each pair, and each
contribution has its own uncertainty. The data are the 442 patients of scikit-learn's diabetes set,
whose target is the progression of the disease one year later.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from skgpsvm import AdditiveGPRegressor
from skgpsvm.inspection import ContributionDisplay

NAMES = {
    "bmi": "body mass index",
    "bp": "blood pressure",
    "s1": "total cholesterol",
    "s2": "LDL cholesterol",
    "s3": "HDL cholesterol",
    "s4": "total / HDL",
    "s5": "log triglycerides",
    "s6": "glucose",
}

table, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
table = table.rename(columns=NAMES)
patient = table.iloc[[10]]
others, y_others = table.drop(index=patient.index), y.drop(index=patient.index)
model = AdditiveGPRegressor(random_state=0).fit(others, y_others)

# %%
# The fit has chosen the terms. ``explain`` returns the contribution of each to the prediction of
# each row, and its standard deviation.

contributions, std = (part[0] for part in model.explain(patient, return_std=True))
mean, deviation = (part[0] for part in model.predict(patient, return_std=True))
print(f"average course: {model.intercept_:.0f}")
for name, value, error in zip(model.term_names_, contributions, std, strict=True):
    print(f"  {name:30s} {value:+6.1f} ± {error:.1f}")
print(f"prediction:     {mean:.0f} ± {deviation:.0f}, observed {y[patient.index[0]]:.0f}")

# %%
# From the average course to the prediction: each bar starts where the one above ends, and its line
# is a 95 % interval of this contribution.

ContributionDisplay.from_estimator(model, patient)

# %%
# **What the intervals say.** A contribution whose interval contains zero may well be none: it is
# not a reason to give. Contributions describe the model, not causes. Features that are correlated,
# such as the blood values here, share an effect between them in a way that the data determine only
# in part, and the intervals are wide for this reason too.
#
# **Over all patients**, ``sobol_indices`` has the share of each term in the variance of the
# predictions, with intervals.

shares = model.sobol_indices(level=0.95)
order = np.argsort(shares.share)
figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
ax.errorbar(
    100 * shares.share[order],
    [shares.terms[i] for i in order],
    xerr=100 * np.abs([(shares.lower - shares.share)[order], (shares.upper - shares.share)[order]]),
    fmt="o",
    color="#0072B2",
    capsize=3,
)
ax.set(xlabel="share in the variance of predictions, %")
plt.show()
