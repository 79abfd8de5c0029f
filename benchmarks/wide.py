"""Few rows with many idle features: default fits against scikit-learn's processes with ARD.

Friedman's function of five features, noise 1, among 20 to 200 features; further outputs are that
function of the next five each. Labels are whether the noisy function is above its median. Run
``python -m benchmarks.wide [--quick]``. Times are of one thread.
"""

import argparse
import time
import warnings
from itertools import product

import numpy as np
import pandas as pd
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skgpsvm import (
    BayesianSVC,
    DecoupledGPRegressor,
    EPClassifier,
    SVGPClassifier,
    SVGPRegressor,
)

from . import _report

ROWS, FEATURES, DRAWS = (60, 150, 300), (20, 50, 200), 2
NEW = 1000
# A step of scikit-learn's learning holds n x n x d derivatives, and takes seconds beyond these.
MAX_DERIVATIVES = 1_200_000
PEER = "scikit-learn"


def generated(n, d, n_outputs, seed):
    """Return standardized features and targets, and those of new rows without noise."""
    rng = np.random.RandomState(seed)
    parts = [make_friedman1(n + NEW, n_features=5, random_state=rng) for _ in range(n_outputs)]
    idle = rng.uniform(size=(n + NEW, d - 5 * n_outputs))
    X, f = np.hstack([*(X for X, _ in parts), idle]), np.stack([f for _, f in parts], 1)
    y = f[:n] + rng.normal(size=(n, n_outputs))
    of_X, of_y = StandardScaler().fit(X[:n]), StandardScaler().fit(y)
    return of_X.transform(X[:n]), of_y.transform(y), of_X.transform(X[n:]), of_y.transform(f[n:])


def with_peer(models, peer, n, d):
    """Return models by name, with that of scikit-learn if its fit takes seconds."""
    found = {type(model).__name__: model for model in models}
    return found | ({PEER: peer} if n * n * d <= MAX_DERIVATIVES else {})


def fitted(model, X, y):
    """Fit a model; return the seconds that it took."""
    start = time.process_time()
    with warnings.catch_warnings(action="ignore"):  # of length scales at their bounds
        model.fit(X, y)
    return time.process_time() - start


def regressions(n, d, n_outputs, seed):
    """Return log evidence, R^2 of the function and seconds of each regressor, by name."""
    X, y, fresh, truth = generated(n, d, n_outputs, seed)
    kernel = 1.0 * RBF(np.full(d, np.sqrt(d / 2))) + WhiteKernel(0.1)
    models = SVGPRegressor(random_state=0), DecoupledGPRegressor(random_state=0)
    found = {}
    for name, model in with_peer(models, GaussianProcessRegressor(kernel), n, d).items():
        seconds = fitted(model, X, y[:, 0] if n_outputs == 1 else y)
        score = model.score(fresh, truth)
        evidence = model.log_marginal_likelihood_value_ if name == PEER else model.elbo_
        found[name] = evidence, score, seconds
    return found


def classifications(n, d, _, seed):
    """Return the log loss of new rows without noise and seconds of each classifier, by name."""
    X, y, fresh, truth = generated(n, d, 1, seed)
    median = np.median(y)
    kinds = SVGPClassifier, EPClassifier, BayesianSVC
    peer = GaussianProcessClassifier(1.0 * RBF(np.full(d, np.sqrt(d / 2))))
    found = {}
    for name, model in with_peer([kind(random_state=0) for kind in kinds], peer, n, d).items():
        seconds = fitted(model, X, y[:, 0] > median)
        found[name] = log_loss(truth[:, 0] > median, model.predict_proba(fresh)), seconds
    return found


def measured(measure, cells, n_outputs, columns):
    """Return a table of the figures of all draws of each cell and model."""
    rows = []
    for n, d in cells:
        draws = [measure(n, d, n_outputs, seed) for seed in range(DRAWS)]
        for name in draws[0]:
            figures = zip(*(draw[name] for draw in draws), strict=True)
            texts = [
                ", ".join(f"{value:.{k}f}" for value in values)
                for values, k in zip(figures, columns.values(), strict=True)
            ]
            rows.append((n, d, name, *texts))
            print(*rows[-1], flush=True)
    return pd.DataFrame(rows, columns=["rows", "features", "model", *columns])


def main():
    """Fit all models to all cells and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    cells = [(60, 20)] if options.quick else list(product(ROWS, FEATURES))
    columns = {"log evidence": 1, "R^2": 3, "seconds": 1}
    parts = [
        _report.header(
            "Few rows with many idle features",
            draws=f"{DRAWS}; the figures of all",
            peer="ARD squared exponential and, in regressions, a WhiteKernel; one start",
        )
    ]
    for n_outputs in (1, 3):
        table = measured(regressions, cells, n_outputs, columns)
        parts.append(_report.table(table, f"Regression, {n_outputs} output(s)"))
    table = measured(classifications, cells, 1, {"log loss": 3, "seconds": 1})
    parts.append(_report.table(table, "Two classes"))
    _report.publish("wide", parts, write=not options.quick)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
