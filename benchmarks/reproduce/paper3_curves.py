"""Paper 3, Figure 2: error of svdgp, svi and ivsgpr against iterations and time.

Cheng and Boots (2017), section 4, on kin40k, since the paper's robots are not at hand. Each point
is a fit of its own with so many iterations, by the models and step sizes of `paper3_table`. Run
``python -m benchmarks.reproduce.paper3_curves [--quick]``.
"""

import argparse
import time
from datetime import date

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import NullFormatter
from sklearn.metrics import r2_score
from threadpoolctl import threadpool_limits

from .. import _data, _harness, _report
from .paper3_table import METHODS

SET, M, NAMES = "kin40k", 32, ("svdgp", "svi", "ivsgpr")
ITERATIONS = (125, 250, 500, 1000, 2000)


def step_sizes():
    """Return the step sizes that `paper3_table` has chosen, by method."""
    results = pd.read_csv(_harness.RESULTS / "paper3_table.csv")
    chosen = results[results["set"] == SET].set_index("method")["rate"]
    return {name: float(chosen[name]) for name in NAMES}


def measured(iterations):
    """Return a table of the error after so many iterations, and of the seconds they take."""
    data, rows = _data.split_regression(SET, 0), []
    for name, rate in step_sizes().items():
        for n_steps in iterations:
            model = METHODS[name].make(data.X_train, M, n_steps, rate, 0)
            start = time.process_time()
            model.fit(data.X_train, data.y_train)
            seconds = time.process_time() - start
            mean, *_ = METHODS[name].found(model, data.X_train, data.y_train, data.X_test)
            rows.append((name, n_steps, seconds, 1 - r2_score(data.y_test, mean)))
            print(*rows[-1], flush=True)
    return pd.DataFrame(rows, columns=["method", "iterations", "seconds", "error"])


def draw(found, path):
    """Draw the errors against iterations and against seconds."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axis, unit in zip(axes, ("iterations", "seconds"), strict=True):
        for name, curve in found.groupby("method", sort=False):
            axis.plot(curve[unit], curve["error"], marker="o", ms=4, label=name)
        axis.set(xscale="log", yscale="log", xlabel=unit)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel="mean squared error / variance")
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main():
    """Fit, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    found = measured(ITERATIONS[:1] if options.quick else ITERATIONS)
    settings = {
        "svdgp": f"{M**2} bases of the mean, {M} of the covariance",
        "svi, ivsgpr": f"{8 * M} inducing points; {2 * M} bases",
        "iterations": f"of {8 * M} rows, up to a pass more",
        "step sizes": step_sizes(),
    }
    errors = found.pivot(index="iterations", columns="method", values="error")[list(NAMES)]
    seconds = found.pivot(index="iterations", columns="method", values="seconds")[list(NAMES)]
    parts = [
        _report.header(f"Paper 3, Figure 2: error on {SET} against time", **settings),
        _report.table(errors.reset_index(), "Mean squared error over the variance of the targets"),
        _report.table(seconds.reset_index(), "Seconds of processor time, one thread", digits=1),
        "The paper's, on mujoco: ivsgpr falls first, svdgp overtakes it, svi stalls earlier.",
    ]
    _report.publish("paper3_curves", parts, write=not options.quick)
    if not options.quick:
        draw(found, _report.RESULTS / f"paper3_curves-{date.today()}.png")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
