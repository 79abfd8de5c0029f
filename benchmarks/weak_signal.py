"""Weak signal: is every estimator, by default, as good as a constant and a linear model?

The problems are pure noise, weak linear and weak smooth functions, one strong feature among
irrelevant ones, and rare classes. Each has several numbers of rows and features, two and four
classes, and numeric targets. The expected log loss, or negative log density, on other rows is
compared with the better of two baselines: the constant, and a regularized linear model whose
regularization is cross-validated. The mean excess over draws should be at most .005 nats per row,
or two standard errors. The regressors' 95 % intervals should cover 88 to 98 %. Run
``python -m benchmarks.weak_signal [--quick] [--rows N ...] [--features D ...] [--draws K]``; a run
that was killed continues where it stopped. The whole grid takes days: the report says which part
was run.
"""

import argparse
import inspect
import sys
import time
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import softmax
from scipy.stats import norm
from sklearn.base import is_classifier
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import cross_val_predict

import skgpsvm

from . import _harness, _report

N_OTHERS = 2000
MARGIN, STANDARD_ERRORS = 0.005, 2
COVERAGE = (0.88, 0.98)
ROWS, FEATURES = (60, 200, 600, 2000), ("1", "5", "20", "50", "n")
CONSTANT, LINEAR = "constant", "linear"
MEASURED = ("loss", "coverage", "fit_seconds")
CELL = ["task", "problem", "n", "d"]


def weak_linear(X):
    """Return a linear function with a slope of one half."""
    return 0.5 * X[:, 0]


def weak_smooth(X):
    """Return a wave of the first two features, or of the only one."""
    return 0.7 * np.sin(1.5 * X[:, 0]) * np.cos(X[:, min(1, X.shape[1] - 1)])


def strong(X):
    """Return a strong function of one feature; the others are irrelevant."""
    return 3.0 * np.sin(1.5 * X[:, 0])


@dataclass(frozen=True)
class Problem:
    """Problem with a function of the features, and odds of the classes.

    Attributes
    ----------
    function : callable or None
        Function that maps rows (n, d) to values (n,); None is zero.
    odds : float or None
        Odds of each other class against the first class where the function is zero; None is even
        odds. They are used in classification only.
    """

    function: object = None
    odds: float | None = None


PROBLEMS = {
    "noise": Problem(),
    "noise 1:3": Problem(None, 1 / 3),
    "weak linear": Problem(weak_linear),
    "weak smooth": Problem(weak_smooth),
    "one strong": Problem(strong),
    "linear 1:3": Problem(weak_linear, 1 / 3),
    "linear 1:30": Problem(weak_linear, 1 / 30),
    "linear 1:500": Problem(weak_linear, 1 / 500),
}
TASKS = {"regression": 0, "2 classes": 2, "4 classes": 4}
MIN_CLASS_ROWS = 2  # minimum number of rows of each class in a draw


def drawn(task, problem, n, d, seed, part=0):
    """Return rows, targets and the truth: class probabilities (n, c), or means (n,)."""
    kind, n_classes = PROBLEMS[problem], TASKS[task]
    rng = np.random.default_rng((seed, part))
    X = rng.normal(size=(n, d))
    values = np.zeros(n) if kind.function is None else kind.function(X)
    if not n_classes:
        return X, values + rng.normal(size=n), values
    logits = np.zeros((n, n_classes))
    # Each class except the first has the values of the function of other features.
    for k in range(1, n_classes):
        shifted = values if kind.function is None else kind.function(np.roll(X, 1 - k, axis=1))
        logits[:, k] = shifted + np.log(kind.odds or 1.0)
    truth = softmax(logits, axis=1)
    y = (rng.random((n, 1)) > truth.cumsum(1)[:, :-1]).sum(1)
    if part == 0:  # classes with fewer than two rows in a small draw get two
        for k in np.flatnonzero(np.bincount(y, minlength=n_classes) < MIN_CLASS_ROWS):
            y[rng.choice(np.flatnonzero(y == 0), MIN_CLASS_ROWS, replace=False)] = k
    return X, y, truth


def log_loss(P, truth):
    """Return the expected excess log loss of probabilities (n, c) over the truth, nats per row."""
    P = np.clip(P, 1e-15, 1)
    return float((truth * np.log(np.clip(truth, 1e-300, 1) / P)).sum(1).mean())


def log_density_loss(mean, std, truth):
    """Return the expected excess negative log density of Gaussian predictions, nats per row."""
    gap = (1 + (truth - mean) ** 2) / std**2
    return float((np.log(std) + 0.5 * (gap - 1)).mean())


def covered(mean, std, truth):
    """Return the coverage of new targets with unit noise by the 95 % intervals."""
    reach = norm.ppf(0.975) * std
    return float((norm.cdf(mean + reach - truth) - norm.cdf(mean - reach - truth)).mean())


def evaluate(task, problem, n, d, seed, method):
    """Fit a method with its defaults and measure it; seconds are processor time."""
    d = n if d == "n" else int(d)
    X, y, _ = drawn(task, problem, n, d, seed)
    others, _, truth = drawn(task, problem, N_OTHERS, d, seed, 1)
    start = time.process_time()
    if TASKS[task]:
        P = probabilities(method, X, y, others)
        return {
            "loss": log_loss(P, truth),
            "coverage": np.nan,
            "fit_seconds": time.process_time() - start,
        }
    mean, std = predictions(method, X, y, others)
    return {
        "loss": log_density_loss(mean, std, truth),
        "coverage": covered(mean, std, truth),
        "fit_seconds": time.process_time() - start,
    }


def probabilities(method, X, y, others):
    """Return class probabilities of a classifier with its defaults."""
    if method == CONSTANT:
        return np.tile(np.bincount(y) / len(y), (len(others), 1))
    if method == LINEAR:
        folds = int(min(5, np.bincount(y).min()))
        options = {"scoring": "neg_log_loss", "l1_ratios": (0.0,), "use_legacy_attributes": False}
        model = LogisticRegressionCV(cv=folds, max_iter=1000, **options)
        return model.fit(X, y).predict_proba(others)
    return getattr(skgpsvm, method)(**seeded(method)).fit(X, y).predict_proba(others)


def predictions(method, X, y, others):
    """Return means and standard deviations of a regressor; the baseline's are cross-validated."""
    if method == CONSTANT:
        return np.full(len(others), y.mean()), np.full(len(others), y.std(ddof=1))
    if method == LINEAR:
        model = RidgeCV(np.logspace(-2, 5, 22))
        noise = np.sqrt(np.mean((cross_val_predict(model, X, y, cv=5) - y) ** 2))
        return model.fit(X, y).predict(others), np.full(len(others), noise)
    model = getattr(skgpsvm, method)(**seeded(method)).fit(X, y)
    return model.predict(others, return_std=True)


def seeded(method):
    """Return ``random_state``, the only parameter that is set, if the estimator has it."""
    parameters = inspect.signature(getattr(skgpsvm, method)).parameters
    return {"random_state": 0} if "random_state" in parameters else {}


def estimators(task):
    """Return the names of the package's classifiers or regressors."""
    names = (name for name in skgpsvm.__all__ if name != "__version__")
    wanted = bool(TASKS[task])
    return [name for name in names if is_classifier(getattr(skgpsvm, name)()) == wanted]


def excesses(results):
    """Return the mean excess loss over the better baseline, for each cell and method.

    Parameters
    ----------
    results : DataFrame
        Results of `run_tasks`, without failures.

    Returns
    -------
    cells : DataFrame
        Cells with ``excess``, ``error`` (its standard error), ``near`` (whether the excess is
        within the margin), ``coverage`` and ``fit_seconds``.
    """
    rows = []
    for cell, found in results.groupby(CELL, sort=False):
        losses = found.pivot(index="seed", columns="method", values="loss")
        if not {CONSTANT, LINEAR} <= set(losses):
            continue
        means = losses[[CONSTANT, LINEAR]].mean()
        best = losses[means.idxmin()]
        for method in losses.columns.drop([CONSTANT, LINEAR]):
            gaps = (losses[method] - best).dropna()
            error = gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
            own = found[found["method"] == method]
            rows.append(
                {
                    **dict(zip(CELL, cell, strict=True)),
                    "method": method,
                    "baseline": best.name,
                    "excess": gaps.mean(),
                    "error": error,
                    "near": gaps.mean() <= max(MARGIN, STANDARD_ERRORS * error),
                    "coverage": own["coverage"].mean(),
                    "fit_seconds": own["fit_seconds"].mean(),
                }
            )
    return pd.DataFrame(rows)


def report(results):
    """Return the report: a line per method, cells above the margin, and mean excess by problem."""
    failed = _report.failures(results, (*CELL, "seed", "method"))
    parts, results = [failed], results[results["error"] == ""]
    cells = excesses(results)
    for task, found in cells.groupby("task", sort=False):
        lines = []
        for method, own in found.groupby("method"):
            inside = own["coverage"].between(*COVERAGE)
            runs = results[(results["task"] == task) & (results["method"] == method)]
            lines.append(
                {
                    "method": method,
                    "code": ", ".join(sorted(runs["code"].unique())),
                    "draws": int(runs.groupby(CELL)["seed"].nunique().min()),
                    "cells": len(own),
                    "above": int((~own["near"]).sum()),
                    "mean excess": own["excess"].mean(),
                    "worst": own["excess"].max(),
                    "coverage off": "-" if task != "regression" else int((~inside).sum()),
                    "seconds": own["fit_seconds"].mean(),
                }
            )
        parts.append(_report.table(pd.DataFrame(lines), f"{task}: nats per row", 4))
        by_problem = found.pivot_table("excess", "problem", "method", sort=False).reset_index()
        parts.append(_report.table(by_problem, f"{task}: mean excess by problem"))
    far = cells[~cells["near"]].sort_values("excess", ascending=False)
    if len(far):
        parts.append(_report.table(far.drop(columns="near"), "Cells above the margin", 4))
    uncovered = cells[(cells["task"] == "regression") & ~cells["coverage"].between(*COVERAGE)]
    if len(uncovered):
        columns = [*CELL, "method", "coverage"]
        parts.append(_report.table(uncovered[columns], "Coverage outside 88 to 98 %"))
    return parts


def main():
    """Run missing tasks and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, metavar="N")
    parser.add_argument("--features", nargs="+", default=FEATURES, metavar="D")
    parser.add_argument("--draws", type=int, default=10, help="default 10")
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    _harness.add_options(parser)
    options = parser.parse_args()
    if options.quick:
        options.rows, options.features, options.draws = (60,), ("1", "5"), 1
        options.problems = ["noise", "weak linear"]
    code = _harness.package_code()
    tasks = [
        {"task": task, "problem": name, "n": n, "d": d, "seed": seed, "method": m, "code": code}
        for n in options.rows
        for d in options.features
        for task in options.tasks
        for name in options.problems
        if TASKS[task] or PROBLEMS[name].odds is None
        for seed in range(options.draws)
        for m in (CONSTANT, LINEAR, *estimators(task))
    ]
    path = None if options.quick else _harness.RESULTS / "weak_signal.csv"
    results = _harness.run_tasks(evaluate, tasks, MEASURED, path, options.jobs, options.methods)
    settings = {
        "rows": f"{' '.join(map(str, options.rows))}; judged on {N_OTHERS} others",
        "features": " ".join(map(str, options.features)),
        "draws": options.draws,
        "loss": "over that of the truth, in expectation",
        "processes": f"{options.jobs} of one thread",
    }
    parts = [_report.header("Weak signal, by default", **settings), *report(results)]
    _report.publish("weak_signal", parts, write=not options.quick)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
