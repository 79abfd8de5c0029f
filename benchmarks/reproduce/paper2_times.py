"""Paper 2, Figure 3 left: test log loss against time, with 4, 50 and 200 inducing points.

Hernandez-Lobato and Hernandez-Lobato (2016), section 6.2: SEP by updates of all rows, generalized
FITC and SVI by L-BFGS-B, on image segments of two classes; 90/10 splits. The set is UCI's, whose
first three classes are against the other four. Updates are watched, and the watching takes none of
the time. Run ``python -m benchmarks.reproduce.paper2_times [--quick]``.
"""

import argparse
import warnings
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits

from skgpsvm import EPClassifier, SVGPClassifier
from skgpsvm._optim import ROUND
from skgpsvm.solvers import InterleavedEP

from .. import _data, _measure, _report

NUMBERS, N_SPLITS, N_STEPS = (4, 50, 200), 3, 250
FIRST_CLASSES = 3
SETTINGS = {"mean": "zero", "inducing_points": "random", "learn_inducing": True}
METHODS = {
    "SEP, sign rule": EPClassifier(solver=InterleavedEP("sign"), max_iter=N_STEPS, **SETTINGS),
    "SEP, Adam": EPClassifier(solver="sep", max_iter=N_STEPS, **SETTINGS),
    "GFITC": EPClassifier(solver="gfitc", **SETTINGS),
    "SVI": SVGPClassifier(likelihood="probit", solver="collapsed", **SETTINGS),
}
# Only ends of rounds of L-BFGS-B have a model: each point is a fit of so many.
ROUNDS = dict.fromkeys(("GFITC", "SVI"), (1, 2, 3, 5, 10))
SECONDS = 0.1, 0.3, 1, 3, 10, 30


def curve(data, name, n_inducing):
    """Return seconds of the processor and test log loss after each iteration of a fit."""
    d = data.X_train.shape[1]
    kernel = 1.0 * RBF(np.full(d, np.sqrt(d)))
    truth = data.y_test < FIRST_CLASSES

    def measure(model):
        return {"loss": log_loss(truth, model.predict_proba(data.X_test))}

    def fit(model, watching):
        clock = _measure.Clock(measure, "loss", watching=watching)
        model.set_params(kernel=kernel, n_inducing=n_inducing, random_state=0)
        model.set_callbacks(*clock.callbacks()).fit(data.X_train, data.y_train < FIRST_CLASSES)
        clock.stop()
        clock.record(model)
        return model, clock.points

    if name in ROUNDS:
        points = []
        for n_rounds in ROUNDS[name]:
            model, found = fit(clone(METHODS[name]).set_params(max_iter=n_rounds), False)
            points += found
            if len(model.objective_curve_) < n_rounds:
                break
    else:
        points = fit(clone(METHODS[name]), True)[1]
    return np.array(sorted(points)).T


def at(times, seconds, losses):
    """Return the losses at given times, NaN before the first; that of the end remains."""
    last = np.searchsorted(seconds, times, side="right") - 1
    return np.where(last < 0, np.nan, losses[last])


def measured(splits, numbers):
    """Return the curves of all splits, by number of inducing points and method."""
    curves = {}
    for pair in product(numbers, METHODS):
        curves[pair] = [curve(data, pair[1], pair[0]) for data in splits]
        print(*pair, *(f"{c[0][-1]:.2f} s, {c[1][-1]:.4f};" for c in curves[pair]), flush=True)
    return curves


def summary(curves):
    """Return a table of the mean losses at some times and at the end, and of the mean seconds."""
    rows = []
    for (m, name), some in curves.items():
        means = np.mean([at(SECONDS, *one) for one in some], 0)
        ends = np.mean([one[:, -1] for one in some], 0)
        rows.append((m, name, *means, *ends[::-1]))
    times = [f"{seconds:g} s" for seconds in SECONDS]
    return pd.DataFrame(rows, columns=["m", "method", *times, "end", "end s"])


def drawn(curves):
    """Return a figure with a panel for each number of points: means of curves, and all points."""
    numbers = sorted({m for m, _ in curves})
    figure, axes = plt.subplots(1, len(numbers), figsize=(10, 3.4), layout="constrained")
    for axis, m in zip(axes, numbers, strict=True):
        for name in METHODS:
            some = curves[m, name]
            if name in ROUNDS:
                axis.plot(*np.hstack(some), "o", ms=4, alpha=0.6, label=name)
                continue
            first, last = max(c[0][0] for c in some), np.mean([c[0][-1] for c in some])
            times = np.geomspace(first, last, 200)
            axis.plot(times, np.mean([at(times, *c) for c in some], 0), label=name)
        axis.set(xscale="log", ylim=(0, None), title=f"m = {m}", xlabel="seconds")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test log loss")
    axes[0].legend(frameon=False)
    return figure


def main():
    """Fit, and write the report and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    numbers, n_splits = (NUMBERS[:1], 1) if options.quick else (NUMBERS, N_SPLITS)
    splits = [_data.split_classification("segment", seed, 0.1) for seed in range(n_splits)]
    curves = measured(splits, numbers)
    parts = [
        _report.header(
            "Paper 2, Figure 3 left: test log loss of image segments against time",
            rows=f"{len(splits[0].X_train)} of segment, three classes against four; {n_splits} "
            "splits",
            iterations=f"{N_STEPS} updates; L-BFGS-B in rounds of {ROUND} steps: {ROUNDS['SVI']}",
            seconds="of the processor, one thread",
        ),
        _report.table(summary(curves), "Mean log loss after so many seconds and at the end"),
        "The paper: SEP is best at least time, then SVI; GFITC is slowest. Curves only.",
    ]
    _report.publish("paper2_times", parts, write=not options.quick)
    if not options.quick:
        _report.publish_picture("paper2_times", drawn(curves))


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        main()
