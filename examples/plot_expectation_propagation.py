"""
How many inducing points does a decision boundary need?
=======================================================

The data are two interleaved arcs whose classes overlap. ``EPClassifier``, with each of its two ways
of learning, and ``SVGPClassifier``, with the same probit likelihood, start from the same inducing
points and move them. There is no mean function, so the points alone must represent the boundary.
The example follows figure 2 of Hernandez-Lobato and Hernandez-Lobato (2016).
"""

from time import process_time

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from sklearn.inspection import DecisionBoundaryDisplay
from sklearn.metrics import log_loss

from skgpsvm import EPClassifier, SVGPClassifier
from skgpsvm.inducing import select_inducing_points

METHODS = {
    "EPClassifier, sep": (EPClassifier, {"solver": "sep", "learn_inducing": True}),
    "EPClassifier, gfitc": (EPClassifier, {"solver": "gfitc", "learn_inducing": True}),
    "SVGPClassifier": (SVGPClassifier, {"likelihood": "probit"}),
}
COLOURS = dict(zip(METHODS, ("#0072B2", "#D55E00", "#009E73"), strict=True))
LIGHT = ListedColormap(plt.get_cmap("RdBu_r")(np.linspace(0.15, 0.85, 256)))
SIZES = (4, 8, 16, 32, 64, 128)
SHOWN = (4, 8, 16, 64)
ANGLES = (-0.2 * np.pi, 1.2 * np.pi)
NOISE = 0.3


def arc(angle, label):
    """Return points (n, 2) on the arc of a class."""
    centered = np.column_stack([np.cos(angle) - 0.5, np.sin(angle) - 0.25])
    return np.where(np.reshape(label, (-1, 1)) == 1, centered, -centered)


def draw(n, rng):
    """Return rows and labels of two equally probable classes."""
    y = rng.integers(2, size=n)
    return arc(rng.uniform(*ANGLES, n), y) + NOISE * rng.standard_normal((n, 2)), y


def truth(X):
    """Return the true probability of class 1."""
    angle = np.linspace(*ANGLES, 300)
    squares = [np.square(X[:, None] - arc(angle, label)).sum(2) for label in (0, 1)]
    density = np.exp(-np.array(squares) / (2 * NOISE**2)).mean(2)
    return density[1] / density.sum(0)


rng = np.random.default_rng(1)
X, y = draw(400, rng)
X_test, y_test = draw(5000, rng)


def timed(model):
    """Return the fitted model, and the seconds of the fit."""
    start = process_time()
    return model.fit(X, y), process_time() - start


timed(EPClassifier(n_inducing=4, random_state=0))  # the first fit loads modules of torch
models = {}
for m in SIZES:
    points = select_inducing_points(X, m, random_state=0)
    for name, (method, options) in METHODS.items():
        model = method(**options, mean="zero", n_inducing=m, inducing_points=points, random_state=0)
        models[name, m] = timed(model)
losses = {key: log_loss(y_test, fit[0].predict_proba(X_test)) for key, fit in models.items()}

# sphinx_gallery_thumbnail_number = 2

# %%
# Lines lead from the initial inducing points of k-means to the dots, their final positions. The
# black curve is the boundary, and the number is the log loss of 5000 new rows.
#
# Four points end in poor optima, whatever the method, although four along the curve could describe
# it. Eight points find the curve. In expectation propagation, the variance that the points do not
# explain is independent noise of each row, so that few points predict almost as well as many. In
# the variational bound, this variance is a penalty.

figure, axes = plt.subplots(
    len(METHODS), len(SHOWN), figsize=(10, 7.2), sharex=True, sharey=True, layout="constrained"
)
for row, name in zip(axes, METHODS, strict=True):
    for ax, m in zip(row, SHOWN, strict=True):
        model, _ = models[name, m]
        display = DecisionBoundaryDisplay.from_estimator(
            model,
            X,
            response_method="predict_proba",
            class_of_interest=1,
            plot_method="pcolormesh",
            grid_resolution=80,
            eps=0.3,
            cmap=LIGHT,
            vmin=0,
            vmax=1,
            ax=ax,
        )
        ax.contour(display.xx0, display.xx1, display.response, [0.5], colors="black", linewidths=1)
        for label, marker, color in ((0, "o", "#67a9cf"), (1, "s", "#ef8a62")):
            ax.scatter(
                *X[y == label].T,
                s=6,
                marker=marker,
                color=color,
                edgecolors="black",
                linewidths=0.2,
            )
        before, after = model.inducing_points, model.inducing_points_
        ax.plot(*np.stack([before, after]).transpose(2, 0, 1), color="black", lw=0.6, alpha=0.5)
        ax.scatter(*after.T, s=16, color="black", edgecolors="white", linewidths=0.6, zorder=3)
        ax.set(xticks=[], yticks=[], xlabel=None, ylabel=None)
        ax.set(xlim=display.xx0[0, [0, -1]], ylim=display.xx1[[0, -1], 0])
        ax.text(0.97, 0.03, f"{losses[name, m]:.3f}", transform=ax.transAxes, ha="right")
    row[0].set_ylabel(name)
for ax, m in zip(axes[0], SHOWN, strict=True):
    ax.set_title(f"m = {m}", size="medium")
figure.colorbar(display.surface_, ax=axes, label="probability of class 1", shrink=0.6)

# %%
# From 32 points on, the three methods agree, and more points change nothing. The variational bound
# rises until then, so it shows how many points are enough. The evidence of expectation propagation
# does not, because the points are part of the model. A few points that move freely can have a
# larger evidence without better predictions.


def evidence(model):
    """Return the log evidence of a model, or a lower bound on it."""
    bounded = isinstance(model, SVGPClassifier)
    return model.elbo_ if bounded else model.log_marginal_likelihood_value_


panels = {
    "log loss of new rows, nats": lambda name, m: losses[name, m],
    "log evidence, or a bound on it, nats": lambda name, m: evidence(models[name, m][0]),
    "processor seconds to fit": lambda name, m: models[name, m][1],
}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for ax, (title, value) in zip(axes, panels.items(), strict=True):
    for (name, color), marker in zip(COLOURS.items(), "os^", strict=True):
        values = [value(name, m) for m in SIZES]
        ax.plot(SIZES, values, marker + "-", color=color, ms=4, label=name)
    ax.set(xscale="log", xlabel="inducing points", title=title)
    ax.title.set_size("medium")
    ax.set_xticks(SIZES, SIZES)
    ax.minorticks_off()
    ax.grid(alpha=0.3)
best = log_loss(y_test, truth(X_test))
axes[0].axhline(best, ls="--", color="#555555", label="true probabilities")
axes[2].set_yscale("log")
axes[2].set_yticks((0.1, 0.3, 1, 3), (0.1, 0.3, 1, 3))
axes[2].minorticks_off()
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
plt.show()
