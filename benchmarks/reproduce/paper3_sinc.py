"""Paper 3, Figure 1: sinc by coupled bases, and by more bases of the mean than of the covariance.

Cheng and Boots (2017): 10 coupled bases, 100 bases of the mean with 10 of the covariance, and 100
coupled ones, 500 rows. All have the paper's stochastic gradients from zero, and multipliers of the
length scale of each base. Run ``python -m benchmarks.reproduce.paper3_sinc [--quick]``.
"""

import argparse
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from skgpsvm import DecoupledGPRegressor
from skgpsvm.solvers import StochasticGradient

from .. import _report

SIZES = (10, 10), (100, 10), (100, 100)  # bases of the mean and of the covariance
SEEDS = 4
NOISE = 0.1


def rows(seed, n=500):
    """Return rows (n, 1), noisy targets and the function, standardized."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-5, 5, n)
    function = np.sinc(x)
    y = function + NOISE * rng.normal(size=n)
    X = ((x - x.mean()) / x.std())[:, None]
    return X, (y - y.mean()) / y.std(), (function - y.mean()) / y.std()


def fitted(X, y, size, seed, max_iter):
    """Return a regressor with so many bases."""
    solver = StochasticGradient("decoupled", batch_size=64, learning_rate=0.01)
    n_mean_bases, n_inducing = size
    model = DecoupledGPRegressor(
        solver=solver, n_mean_bases=n_mean_bases, n_inducing=n_inducing, max_iter=max_iter
    )
    return model.set_params(random_state=seed).fit(X, y)


def drawn(models, X, y, function):
    """Return a figure with the prediction of each size."""
    order = np.argsort(X[:, 0])
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
    for axis, ((n_mean, n_cov), model) in zip(axes, models.items(), strict=True):
        mean, std = model.predict(X[order], return_std=True)
        x = X[order, 0]
        axis.plot(X[:, 0], y, ".", ms=2, color="0.7")
        axis.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, alpha=0.25, lw=0)
        axis.plot(x, mean, lw=1.6)
        axis.plot(x, function[order], "k--", lw=0.9)
        axis.set(title=f"{n_mean} bases of the mean,\n{n_cov} of the covariance")
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def main():
    """Fit, and write the report and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    n_seeds, max_iter = (1, 5) if options.quick else (SEEDS, 190)  # 8 minibatches an iteration
    found, pictured = [], {}
    for size in SIZES:
        for seed in range(n_seeds):
            X, y, function = rows(seed)
            model = fitted(X, y, size, seed, max_iter)
            mean, std = model.predict(X, return_std=True)
            error = np.mean((mean - function) ** 2) / np.var(function)
            inside = np.mean(np.abs(mean - y) < 1.96 * std)
            found.append((f"{size[0]}, {size[1]}", seed, error, model.elbo_, inside))
            if seed == 0:
                pictured[size] = model
    columns = ["bases", "seed", "nMSE", "bound", "coverage"]
    found = pd.DataFrame(found, columns=columns)
    parts = [
        _report.header(
            "Paper 3, Figure 1: sinc by coupled and decoupled bases",
            rows=f"500, noise {NOISE}; nMSE against the function; bound in nats",
            steps=f"{8 * max_iter} minibatches of 64, rate 0.01",
            coverage="of the targets, by 95 % intervals",
        ),
        _report.table(found),
        "The paper: (100, 10) is about as good as (100, 100), its error bars qualitatively right.",
    ]
    _report.publish("paper3_sinc", parts, write=not options.quick)
    if not options.quick:
        _report.publish_picture("paper3_sinc", drawn(pictured, *rows(0)))


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        main()
