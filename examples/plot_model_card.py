"""
A model card, and a file that is safe to load
=============================================

A model that others are to use needs a description: what it is for, how good its probabilities are
on rows that it has not seen, and where it should not be used. ``skops`` writes such a model card,
and saves the model in a file that runs no code when it is loaded. The data are measurements of
tumors, which come with scikit-learn.
"""

import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skops.io
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skops.card import Card

from skgpsvm import SVGPClassifier
from skgpsvm.persistence import TRUSTED_TYPES

tumors = load_breast_cancer(as_frame=True)
X, y = tumors.data, tumors.target_names[tumors.target]
model = make_pipeline(StandardScaler(), SVGPClassifier(random_state=0))
p = cross_val_predict(model, X, y, cv=5, method="predict_proba")[:, 1]
model.fit(X, y)

# %%
# **How good are the probabilities?** The left side shows whether a share of about p of the tumors
# with probability p is malignant. The right side shows what a doctor gains who looks at the least
# certain cases again: the share of cases to see, and the share of errors among them.

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
malignant = y == "malignant"
frequency, predicted = calibration_curve(malignant, p, n_bins=8, strategy="uniform")
left.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
left.plot(predicted, frequency, "o-", color="#0072B2")
left.set(xlabel="predicted probability of malignant", ylabel="share that is malignant")
order = np.argsort(abs(p - 0.5))
found = np.cumsum(((p > 0.5) != malignant)[order])
right.plot(np.arange(len(y)) / len(y), found / found[-1], color="#0072B2")
right.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
right.set(xlabel="share of cases seen again, least certain first", ylabel="share of errors found")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# **The card.** Sections are added by name, and rendered as Markdown.

folder = Path(tempfile.mkdtemp())
figure.savefig(folder / "probabilities.png")
card = Card(model, template=None, model_diagram=False)
card.add(
    **{
        "Tumors": f"Probability that a tumor is malignant, from {X.shape[1]} measurements of cell "
        f"nuclei. Fitted to {len(X)} cases.",
        "Tumors/When not to use": "Images of other microscopes. The cases are of one clinic, of "
        f"which {malignant.mean():.0%} are malignant; where that share differs, so do the "
        "probabilities.",
    }
)
card.add_metrics(
    section="Tumors/Cross-validation",
    accuracy=round(accuracy_score(malignant, p > 0.5), 3),
    **{
        "log loss": round(log_loss(malignant, p), 3),
        "Brier score": round(brier_score_loss(malignant, p), 3),
    },
)
card.add_plot(**{"Tumors/Probabilities": "probabilities.png"})
card.add_hyperparams(section="Tumors/Parameters")
for line in card.render().split("## Parameters")[0].splitlines():
    print(textwrap.fill(line, 92))

# %%
# **The file.** Who loads it says which types are trusted. ``TRUSTED_TYPES`` has those of this
# package; a file with any other is refused.

skops.io.dump(model, folder / "tumors.skops")
loaded = skops.io.load(folder / "tumors.skops", trusted=TRUSTED_TYPES)
print((loaded.predict_proba(X) == model.predict_proba(X)).all())
print(f"{(folder / 'tumors.skops').stat().st_size / 1e6:.1f} MB")
