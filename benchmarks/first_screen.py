"""Measure the three results of the first page of the documentation.

Run ``python -m benchmarks.first_screen [--quick]``. The table of customers is that of
``examples/plot_mixed_table.py``, which is run as it is, with the explainable boosting machine.
The other rows are those of Friedman's function. All times are of the processor and of one thread.
The results file is ``first_screen.csv``; the tests compare the numbers in README.rst with it.
"""

import argparse
import runpy
import tempfile
import time
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import make_friedman1
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits

from skgpsvm import SVGPRegressor

from . import _harness, _report
from ._measure import PeakMemory

EXAMPLE = Path(__file__).parents[1] / "examples" / "plot_mixed_table.py"
BLOCK, N_NEW = 50_000, 20_000


def mixed_table():
    """Yield the log loss and the time of each model of the example."""
    matplotlib.use("Agg")
    found = runpy.run_path(str(EXAMPLE))
    labels = found["new_cancels"]
    probabilities, times = found["found"], found["times"]
    for name, p in probabilities.items():
        yield {"model": name, "log_loss": log_loss(labels, p), "seconds": times[name]}


def intervals(model, X, y, X_new, y_new):
    """Return the time and memory of a fit, and the quality of its predictions."""
    with PeakMemory() as memory:
        start = time.process_time()
        model.fit(X, y)
        seconds = time.process_time() - start
    mean, std = model.predict(X_new, return_std=True)
    return {
        "model": type(model).__name__,
        "seconds": seconds,
        "mib": memory.growth["RssAnon"],
        "error": np.sqrt(np.mean((mean - y_new) ** 2)),
        "inside": np.mean(np.abs(mean - y_new) < 1.96 * std),
    }


def rows_in_memory(n):
    """Return the result of rows in memory, with default settings."""
    X, y = make_friedman1(n + N_NEW, noise=1.0, random_state=0)
    return intervals(SVGPRegressor(random_state=0), X[:n], y[:n], X[n:], y[n:])


def rows_on_disk(n):
    """Return the result of rows in a memmap, with a hundred inducing points."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, 8))
        y = np.empty(n)
        for start in range(0, n, BLOCK):
            rows = slice(start, min(start + BLOCK, n))
            X[rows], y[rows] = draw(rows.stop - rows.start, rng)
        X.flush()
        model = SVGPRegressor(n_inducing=100, random_state=0)
        return intervals(model, np.load(path, mmap_mode="r"), y, *draw(N_NEW, rng))


def draw(n, rng):
    """Return rows of eight features and targets with noise of variance 1."""
    X = rng.uniform(size=(n, 8))
    mean = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2
    return X, mean + 10 * X[:, 3] + 5 * X[:, 4] + rng.normal(size=n)


def main():
    """Measure the results and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows, printed only")
    options = parser.parse_args()
    scale = 50 if options.quick else 1
    torch.set_num_threads(1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [{"result": "mixed table", "rows": 1500, **row} for row in mixed_table()]
        n = 50_000 // scale
        rows.append({"result": "in memory", "rows": n, **rows_in_memory(n)})
        n = 2_000_000 // scale
        rows.append({"result": "on disk", "rows": n, **rows_on_disk(n)})
    found = pd.DataFrame(rows).assign(code=_harness.package_code())
    if not options.quick:
        found.to_csv(_harness.RESULTS / "first_screen.csv", index=False)
    header = _report.header("First page", time="of the processor", memory="anonymous, of the fit")
    _report.publish("first_screen", [header, _report.table(found)], write=not options.quick)


if __name__ == "__main__":
    main()
