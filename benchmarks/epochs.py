"""Time and memory of an epoch of minibatches against n.

`SVGPRegressor` (Gaussian and Student-t noise) and `SVGPClassifier` are fitted by natural gradients
to float32 memmaps of generated rows, each fit in its own process. The processor time is that of the
second and third epoch, so that the initialization on few rows does not count. Run
``python -m benchmarks.epochs [--quick]``.
"""

import argparse
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning

from skgpsvm import SVGPClassifier, SVGPRegressor
from skgpsvm.solvers import NaturalGradient

from . import _report
from ._measure import PeakMemory, exponent

D, M, STEP = 8, 128, 100_000
SIZES, QUICK_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000), (1_100, 2_200)
COMMON = {
    "solver": NaturalGradient(batch_size=1024),
    "n_inducing": M,
    "max_iter": 3,
    "tol": 0,
    "random_state": 0,
}
MODELS = {
    "Gaussian": SVGPRegressor(**COMMON),
    "Student-t": SVGPRegressor(**COMMON, likelihood="student_t"),
    "softmax, 3 classes": SVGPClassifier(**COMMON),
}


class Stamps:
    """Callback that records the processor time at the end of each iteration."""

    def setup(self, estimator, context):
        """Start a new list of times."""
        self.times = []

    def teardown(self, estimator, context):
        """Do nothing."""

    def on_fit_task_begin(self, estimator, context):
        """Do nothing."""

    def on_fit_task_end(self, estimator, context):
        """Record the time."""
        if context.task_name == "iteration":
            self.times.append(time.process_time())


def generated(path, n):
    """Return rows on disk, and targets: a smooth function with noise."""
    X = np.lib.format.open_memmap(path, "w+", np.float32, (n, D))
    y = np.empty(n)
    for i in range(0, n, STEP):
        rng = np.random.default_rng((0, i))
        part = rng.standard_normal((min(STEP, n - i), D))
        y[i : i + STEP] = np.sin(2 * part[:, 0]) + part[:, 1] * part[:, 2]
        y[i : i + STEP] += 0.3 * rng.standard_normal(len(part))
        X[i : i + STEP] = part
    X.flush()
    return np.load(path, mmap_mode="r"), y


def epoch(name, n):
    """Return the seconds of an epoch and the growth of memory, measured in this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        X, y = generated(Path(folder) / "X.npy", n)
        if isinstance(MODELS[name], SVGPClassifier):
            y = np.digitize(y, (-0.5, 0.5))
        stamps = Stamps()
        with PeakMemory() as memory:
            MODELS[name].set_callbacks(stamps).fit(X, y)
    return {
        "model": name,
        "n": n,
        "epoch s": (stamps.times[-1] - stamps.times[-3]) / 2,
        "RssAnon MiB": memory.growth["RssAnon"],
    }


def draw(found, path):
    """Draw time and memory against n."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, field in zip(axes, ("epoch s", "RssAnon MiB"), strict=True):
        for name, rows in found.groupby("model"):
            axis.plot(rows["n"], rows[field], "o-", label=name)
        axis.set(xscale="log", xlabel="rows")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    n = found["n"].unique()
    least = found["epoch s"].min()
    axes[0].plot(n, least * n / n[0] * 0.7, "k:", lw=1, label="proportional to n")
    axes[0].set(yscale="log", ylabel="seconds an epoch")
    axes[1].set(ylabel="memory above that before the fit, MiB", ylim=(0, None))
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main():
    """Run all fits and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--most-rows", type=int, default=SIZES[-1], help="less: printed only")
    options = parser.parse_args()
    kept = not options.quick and options.most_rows >= SIZES[-1]
    sizes = QUICK_SIZES if options.quick else [n for n in SIZES if n <= options.most_rows]
    rows = []
    for n in sizes:
        for name in MODELS:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                rows.append(pool.submit(epoch, name, n).result())
            print(f"{name} {n} done", flush=True)
    found = pd.DataFrame(rows).sort_values(["model", "n"], ignore_index=True)
    fits = {name: exponent(part["n"], part["epoch s"]) for name, part in found.groupby("model")}
    told = ", ".join(f"{name} {slope:.2f}" for name, slope in fits.items())
    title = (
        f"An epoch of minibatches of 1024, memmap of n x {D} float32, m = {M}, one thread.\n"
        f"Targets take 8 n bytes, and as much again checked. Exponents of time in n: {told}."
    )
    parts = [_report.header("Epochs against n"), _report.table(found, title, digits=2)]
    _report.publish("epochs", parts, write=kept)
    if kept:
        draw(found, _report.RESULTS / f"epochs-{date.today()}.png")


if __name__ == "__main__":
    main()
