"""Measure what fits cost beside gradient boosting and support vector machines.

Run ``python -m benchmarks.cost [--quick] [--jobs N]``. The rows are simulated by Friedman's first
function, with ten features of which five matter; classes are drawn with log odds that are a
multiple of it. Estimators have their default settings, and a test set has 5,000 rows. All times are
of the processor and of one thread. ``benchmarks.tables`` makes the tables of the user guide.
"""

import argparse
import time

import numpy as np
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss, root_mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

import skgpsvm

from . import _harness, _report

SIZES, N_TEST = (1_000, 10_000, 50_000), 5_000
BOOSTING = {
    "regression": HistGradientBoostingRegressor(random_state=0),
    "classification": HistGradientBoostingClassifier(random_state=0),
}
MACHINES = {"regression": SVR(), "classification": SVC()}
OURS = {
    "regression": (
        "SVGPRegressor",
        "AdditiveGPRegressor",
        "QSRVMRegressor",
        "DecoupledGPRegressor",
        "QSGPRegressor",
    ),
    "classification": (
        "BayesianSVC",
        "AdditiveGPClassifier",
        "QSRVMClassifier",
        "SVGPClassifier",
        "EPClassifier",
        "DecoupledGPClassifier",
        "QSGPClassifier",
    ),
}
MEASURED = ("loss", "fit_seconds", "predict_seconds")


def draw(task, n, seed):
    """Return rows, and targets or labels."""
    X, mean = make_friedman1(n, random_state=seed)
    rng = np.random.default_rng(seed)
    if task == "regression":
        return X, mean + rng.normal(size=n)
    return X, (rng.uniform(size=n) < 1 / (1 + np.exp(7 - mean / 2))).astype(int)


def estimator(task, method):
    """Return an estimator by its name in the tables."""
    if method == BOOSTING[task].__class__.__name__:
        return clone(BOOSTING[task])
    peer = MACHINES[task]
    model = peer if method == peer.__class__.__name__ else getattr(skgpsvm, method)(random_state=0)
    return make_pipeline(StandardScaler(), clone(model))


def measure(task, rows, method):
    """Return the loss on test rows and the times of one fit."""
    model = estimator(task, method)
    X, y = draw(task, rows, 0)
    X_test, y_test = draw(task, N_TEST, 1)
    clone(model).fit(X[:100], y[:100])  # imports of the first fit are no part of the time
    start = time.process_time()
    model.fit(X, y)
    fitted = time.process_time()
    if task == "regression":
        loss = root_mean_squared_error(y_test, model.predict(X_test))
    elif hasattr(model, "predict_proba"):
        loss = log_loss(y_test, model.predict_proba(X_test))
    else:  # a support vector machine has no probabilities
        model.predict(X_test)
        loss = np.nan
    return {
        "loss": loss,
        "fit_seconds": fitted - start,
        "predict_seconds": (time.process_time() - fitted) * 1000 / N_TEST,
    }


def methods(task):
    """Return the names of all estimators of a task."""
    peers = (BOOSTING[task], MACHINES[task])
    return [peer.__class__.__name__ for peer in peers] + list(OURS[task])


def main():
    """Measure what is not in the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 rows, printed only")
    _harness.add_options(parser)
    options = parser.parse_args()
    tasks = [
        {
            "task": task,
            "rows": n,
            "method": method,
            "code": _harness.package_code() if method in ours else _harness.sklearn_code(),
        }
        for n in SIZES[: 1 if options.quick else None]
        for task, ours in OURS.items()
        for method in methods(task)
    ]
    path = None if options.quick else _harness.RESULTS / "cost.csv"
    results = _harness.run_tasks(measure, tasks, MEASURED, path, options.jobs, options.methods)
    parts = [_report.header("Cost of fits"), _report.failures(results, ("task", "rows", "method"))]
    parts.append(_report.table(results[["task", "rows", "method", *MEASURED, "warnings"]]))
    _report.publish("cost", parts, write=not options.quick)


if __name__ == "__main__":
    main()
