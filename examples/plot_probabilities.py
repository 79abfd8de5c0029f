"""
How sure is a Bayesian support vector machine?
==============================================

This example compares two answers to that question on the same noisy data. The default,
``probability="calibrated"``, estimates how often a new label will be the predicted one.
``probability="argmax"``, from the paper, is the model's confidence in which class has the larger
latent. With enough rows it is nearly certain almost everywhere, however noisy the labels are.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.inspection import DecisionBoundaryDisplay

from skgpsvm import BayesianSVC

X, y = make_moons(400, noise=0.35, random_state=0)
X_test, y_test = make_moons(20_000, noise=0.35, random_state=1)
models = {
    kind: BayesianSVC(probability=kind, random_state=0).fit(X, y)
    for kind in ("calibrated", "argmax")
}

# %%
# Both models have the same boundary. Between the moons the calibrated probabilities stay
# uncertain, as they should where the classes overlap.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
for ax, (kind, model) in zip(axes, models.items(), strict=True):
    display = DecisionBoundaryDisplay.from_estimator(
        model,
        X,
        response_method="predict_proba",
        class_of_interest=1,
        plot_method="pcolormesh",
        grid_resolution=120,
        cmap="RdBu_r",
        vmin=0,
        vmax=1,
        ax=ax,
    )
    for label, marker, color in ((0, "o", "#67a9cf"), (1, "s", "#ef8a62")):
        ax.scatter(
            *X[y == label].T,
            s=14,
            marker=marker,
            color=color,
            edgecolors="black",
            linewidths=0.4,
            label=f"class {label}",
        )
    ax.set(title=f'probability="{kind}"', xticks=[], yticks=[])
axes[0].legend(loc="upper left", framealpha=0.9)
figure.colorbar(display.surface_, ax=axes, label="probability of class 1")

# %%
# The last figure is computed from 20,000 new rows. Of the rows with predicted probability p, a
# share p should be of class 1.

figure, ax = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
ax.plot([0, 1], [0, 1], ":", color="#555555")
for (kind, model), color, marker in zip(models.items(), ("#0072B2", "#D55E00"), "os", strict=True):
    p = model.predict_proba(X_test)[:, 1]
    bins = np.minimum((10 * p).astype(int), 9)
    count = np.maximum(np.bincount(bins, minlength=10), 1)
    mean_p = np.bincount(bins, p, 10) / count
    share = np.bincount(bins, y_test, 10) / count
    log_loss = -np.log(np.maximum(np.where(y_test == 1, p, 1 - p), 1e-15)).mean()
    label = f"{kind}: log loss {log_loss:.2f}"
    ax.plot(mean_p, share, marker + "-", color=color, label=label)
ax.set(xlabel="predicted probability of class 1", ylabel="observed share of class 1")
ax.set_aspect("equal")
ax.legend(frameon=False)
plt.show()
