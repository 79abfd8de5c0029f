"""
A mixed table: categories, missing values, probabilities
========================================================

Which customers will cancel? Tables like this one mix numbers and categories, and lack values in
many rows. ``AdditiveGPClassifier`` takes a pandas table as it is, and returns probabilities that
need no calibration. The example compares it with boosted trees and with a support vector machine,
each tuned by a grid search, and then shows what the model has learned. The 1,500 customers are
generated, so that the best possible log loss is known.
"""

import warnings
from importlib.util import find_spec
from time import process_time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from skgpsvm import AdditiveGPClassifier
from skgpsvm.inspection import ComponentEffectDisplay

CONTRACTS = {"monthly": 0.7, "one year": -0.4, "two years": -1.4}
PAYMENTS = {"card": -0.2, "transfer": -0.1, "check": 0.5, "wallet": 0.0}
REGIONS = {f"region {i:02d}": e for i, e in enumerate(np.random.default_rng(7).normal(0, 0.4, 30))}


def customers(n, seed):
    """Return a table of customers, whether they cancel, and the probability of that."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "months": rng.gamma(1.5, 20, n),
            "age": rng.normal(45, 14, n).clip(18, 90),
            "charge": rng.gamma(6, 12, n),
            "calls": rng.poisson(1.2, n),
            "contract": rng.choice(list(CONTRACTS), n, p=[0.55, 0.25, 0.2]),
            "payment": rng.choice(list(PAYMENTS), n, p=[0.35, 0.3, 0.2, 0.15]),
            "region": rng.choice(list(REGIONS), n),
        }
    )
    log_odds = (
        -1.5
        + 1.6 * np.exp(-table["months"] / 12)
        + 0.9 * np.tanh((table["charge"] - 75) / 20)
        + 0.45 * table["calls"].clip(upper=4)
        - 0.6 * np.exp(-(((table["age"] - 50) / 10) ** 2))
        + table["contract"].map(CONTRACTS)
        + table["payment"].map(PAYMENTS)
        + table["region"].map(REGIONS)
        + 0.8 * (table["contract"] == "monthly") * np.tanh((table["charge"] - 75) / 15)
    )
    p = 1 / (1 + np.exp(-log_odds.to_numpy()))
    for name, share in {"age": 0.15, "charge": 0.1, "payment": 0.1}.items():
        table.loc[rng.uniform(size=n) < share, name] = np.nan
    categories = ["contract", "payment", "region"]
    return table.astype(dict.fromkeys(categories, "category")), rng.uniform(size=n) < p, p


table, cancels = customers(1500, seed=0)[:2]
new, new_cancels, p_true = customers(5000, seed=1)
print(table.head(4).to_string())

# %%
# **The models.** The additive model has nothing to tune: the fit learns how smooth and how large
# every effect is. Boosted trees take categories and missing values too. The support vector machine
# needs imputed and encoded columns, and a calibrator for its probabilities. An explainable boosting
# machine has one effect for each feature and pair too; it joins if ``interpret-core`` is installed.

numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
categories = make_pipeline(
    SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
)
columns = make_column_transformer(
    (numbers, make_column_selector(dtype_include="number")),
    (categories, make_column_selector(dtype_include="category")),
)
machine = make_pipeline(columns, CalibratedClassifierCV(SVC(), ensemble=False))
boosting = HistGradientBoostingClassifier(max_iter=300, early_stopping=True, random_state=0)
models = {
    "AdditiveGPClassifier": AdditiveGPClassifier(),
    "boosted trees": GridSearchCV(
        boosting,
        {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [4, 15]},
        scoring="neg_log_loss",
    ),
    "SVC, calibrated": GridSearchCV(
        machine,
        {"calibratedclassifiercv__estimator__C": [0.1, 1, 10]},
        scoring="neg_log_loss",
    ),
}
if find_spec("interpret"):
    from interpret.glassbox import ExplainableBoostingClassifier

    # Its plots, which are not used here, leave missing values out.
    warnings.filterwarnings("ignore", "Missing values detected")
    models["EBM"] = ExplainableBoostingClassifier(n_jobs=1, random_state=0)

found, times = {}, {}
print("                      log loss  accuracy  seconds")
for name, model in models.items():
    start = process_time()
    model.fit(table, cancels)
    times[name] = process_time() - start
    found[name] = model.predict_proba(new)[:, 1]
    loss = log_loss(new_cancels, found[name])
    accuracy = accuracy_score(new_cancels, found[name] > 0.5)
    print(f"{name:20s}  {loss:8.3f}  {accuracy:8.3f}  {times[name]:7.1f}")
loss, accuracy = log_loss(new_cancels, p_true), accuracy_score(new_cancels, p_true > 0.5)
print(f"{'true probabilities':20s}  {loss:8.3f}  {accuracy:8.3f}")

# %%
# The additive model is closest to the true probabilities. It has an advantage here: the table has
# smooth effects and one interaction, as many tables of people have, and few rows. Where features
# act by thresholds or by many interactions, or rows are plenty, compare with boosted trees.
#
# Of the customers whose predicted probability is p, a share of about p should cancel.

figure, ax = plt.subplots(figsize=(5.6, 4), layout="constrained")
ax.plot([0, 1], [0, 1], ":", color="#555555")
for (name, p), color, marker in zip(
    found.items(), ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), "os^v", strict=False
):
    share, mean = calibration_curve(new_cancels, p, n_bins=10, strategy="quantile")
    ax.plot(mean, share, marker + "-", color=color, ms=5, label=name)
ax.set(
    xlabel="predicted probability",
    ylabel="share that cancels",
    title="Calibration on 5,000 new customers",
)
ax.legend(frameon=False)

# sphinx_gallery_thumbnail_number = 2

# %%
# **What it has learned.** Each panel is the contribution of a feature to the log odds, with a 95 %
# band. Missing values have an effect of their own, the point at the right edge of a panel. Effects
# of regions with little evidence are shrunk to zero. Customers of about 50 years cancel a little
# less often, but 1,500 rows have no clear evidence of it: the model has no effect of age.

model = models["AdditiveGPClassifier"]
print("effects:", ", ".join(model.term_names_))
print("dropped:", ", ".join(model.dropped_terms_))
display = ComponentEffectDisplay.from_estimator(
    model, table, features=["months", "charge", "calls", "contract", "payment", "charge & contract"]
)
plt.show()
