"""Paper 2, Figure 2: where inducing points go, with 4 to 128 of them.

Hernandez-Lobato and Hernandez-Lobato (2016), section 4.1: on banana, few points settle along the
boundary, and many spread over the rows. Here the rows are generated, two bent classes that overlap.
Run ``python -m benchmarks.reproduce.paper2_points [--quick]``.
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import make_moons
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits

from skgpsvm import EPClassifier

from .. import _report

NUMBERS = 4, 8, 16, 32, 64, 128
COLORS = np.array(["tab:blue", "tab:orange"])


def fitted(X, y, numbers):
    """Yield classifiers with so many points that are learned."""
    for m in numbers:
        options = {"mean": "zero", "inducing_points": "random", "learn_inducing": True}
        model = EPClassifier(1.0 * RBF([1.0, 1.0]), n_inducing=m, random_state=0, **options)
        yield model.fit(X, y)


def distances(models, X):
    """Return the mean distance of the points of each model to the decision boundary.

    The boundary is where the probabilities of neighboring nodes of a grid are on both sides of one
    half.
    """
    low, high = X.min(0) - 0.5, X.max(0) + 0.5
    axes = [np.linspace(a, b, 200) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*axes), axis=-1)
    for model in models:
        positive = model.predict_proba(grid.reshape(-1, 2))[:, 1].reshape(200, 200) > 0.5
        edge = np.zeros_like(positive)
        edge[:, 1:] |= positive[:, 1:] != positive[:, :-1]
        edge[1:] |= positive[1:] != positive[:-1]
        gaps = model.inducing_points_[:, None] - grid[edge]
        yield np.sqrt((gaps**2).sum(-1)).min(1).mean()


def drawn(models, X, y):
    """Return a figure with rows, points and boundary of each model."""
    figure, axes = plt.subplots(2, 3, figsize=(10, 6), layout="constrained")
    low, high = X.min(0) - 0.5, X.max(0) + 0.5
    grid = np.stack(np.meshgrid(*np.linspace(low, high, 100).T), axis=-1)
    for axis, model in zip(axes.flat, models, strict=True):
        P = model.predict_proba(grid.reshape(-1, 2))[:, 1].reshape(100, 100)
        axis.scatter(*X.T, c=COLORS[y], s=4, alpha=0.3, lw=0)
        axis.contour(*np.moveaxis(grid, -1, 0), P, levels=[0.5], colors="black", linewidths=1.2)
        axis.scatter(*model.inducing_points_.T, c="black", s=14, marker="x", lw=1.2)
        axis.set(title=f"m = {len(model.inducing_points_)}", xticks=[], yticks=[])
    return figure


def main():
    """Fit, and write the report and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    numbers, n_rows = (NUMBERS[:2], 100) if options.quick else (NUMBERS, 400)
    X, y = make_moons(n_rows, noise=0.3, random_state=0)
    others, truth = make_moons(5000, noise=0.3, random_state=1)
    models = list(fitted(X, y, numbers))
    found = pd.DataFrame(
        {
            "m": numbers,
            "log loss": [log_loss(truth, model.predict_proba(others)) for model in models],
            "evidence": [model.log_marginal_likelihood_value_ for model in models],
            "distance to the boundary": list(distances(models, X)),
        }
    )
    of_rows = np.sqrt(((X[:, None] - X) ** 2).sum(-1))[np.triu_indices(n_rows, 1)].mean()
    parts = [
        _report.header(
            "Paper 2, Figure 2: where inducing points go",
            rows=f"{n_rows}, two moons with noise 0.3; mean distance of rows {of_rows:.2f}",
            evidence="nats",
        ),
        _report.table(found),
        "The paper: few points settle along the boundary, many spread over the rows.",
    ]
    _report.publish("paper2_points", parts, write=not options.quick)
    if not options.quick:
        _report.publish_picture("paper2_points", drawn(models, X, y))


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
