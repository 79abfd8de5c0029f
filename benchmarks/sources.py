"""Time and memory of fits and predictions whose rows are read from files.

Generated rows of 10 features lie in a ``numpy.memmap``, an HDF5 dataset and a folder of Parquet
files. Each fit has its own process of one thread, and all fits of an estimator have the same
options, whatever the number of rows. Run
``python -m benchmarks.sources [--quick] [--most-rows 10000000] [--jobs 1]``; it needs h5py and
pyarrow.
"""

import argparse
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from skgpsvm import AdditiveGPRegressor, BayesianSVC, QSGPRegressor, SVGPRegressor
from skgpsvm.data import ParquetRows
from skgpsvm.solvers import CoordinateAscent, NaturalGradient, QuadruplyStochastic

from . import _report
from ._measure import PeakMemory

D, STEP, PREDICTED = 10, 100_000, 100_000
POINTS = {"n_inducing": 32, "max_iter": 1, "random_state": 0}
MODELS = {
    "SVGPRegressor": SVGPRegressor(**POINTS, solver=NaturalGradient(batch_size=1024)),
    "BayesianSVC": BayesianSVC(**POINTS, solver=CoordinateAscent(batch_size=1024)),
    "AdditiveGPRegressor": AdditiveGPRegressor(max_iter=2, interactions=None, random_state=0),
    "QSGPRegressor": QSGPRegressor(**POINTS, solver=QuadruplyStochastic()),
}


def parts(n):
    """Yield the places and the rows of each part of Friedman's data, and the targets."""
    for start in range(0, n, STEP):
        rng = np.random.default_rng((0, start))
        X = rng.random((min(STEP, n - start), D))
        y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2
        yield (
            slice(start, start + len(X)),
            X,
            y + 10 * X[:, 3] + 5 * X[:, 4] + rng.normal(size=len(X)),
        )


def memmap(folder, n):
    """Return rows as a memmap."""
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float64, (n, D))
    for place, rows, _ in parts(n):
        X[place] = rows
    X.flush()
    return np.load(folder / "X.npy", mmap_mode="r")


def hdf5(folder, n):
    """Return rows as a chunked dataset."""
    import h5py

    X = h5py.File(folder / "X.h5", "w").create_dataset("X", (n, D), "f8", chunks=(8192, D))
    for place, rows, _ in parts(n):
        X[place] = rows
    return X


def parquet(folder, n):
    """Return rows of a folder of files with one row group each."""
    import pyarrow as pa
    import pyarrow.parquet

    for i, (_, rows, _) in enumerate(parts(n)):
        columns = {f"x{j}": column.copy() for j, column in enumerate(rows.T)}
        pa.parquet.write_table(pa.table(columns), folder / f"{i:04}.parquet")
    return ParquetRows(folder)


SOURCES = {"memmap": memmap, "HDF5": hdf5, "Parquet": parquet}


def measured(connection, name, kind, n):
    """Send the processor time and memory of a fit and a prediction in this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        X, y = SOURCES[kind](Path(folder), n), np.concatenate([y for _, _, y in parts(n)])
        y = y > 14 if name == "BayesianSVC" else y
        MODELS[name].fit(X[:3000], y[:3000])  # loads and allocates what only a first fit does
        with PeakMemory() as memory:
            start = time.process_time()
            MODELS[name].fit(X, y)
            fit = time.process_time() - start
        (new := Path(folder) / "new").mkdir()
        some = SOURCES[kind](new, min(n, PREDICTED))
        start = time.process_time()
        MODELS[name].predict(some)
        prediction = time.process_time() - start
    connection.send((fit, 1e9 * fit / n, 1e9 * prediction / len(some), memory.growth["RssAnon"]))


def evaluate(name, kind, n):
    """Return what `measured` sends, from a process of its own."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measured, args=(sender, name, kind, n))
    process.start()
    sender.close()
    found = receiver.recv()
    process.join()
    return found


def longest(case):
    """Return a key that sorts cases by time: the most rows first."""
    _, n, _ = case
    return -n


def main():
    """Measure all fits and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--most-rows", type=int, default=10**6)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--sources", nargs="+", default=list(SOURCES), choices=SOURCES)
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time")
    options = parser.parse_args()
    sizes = [10**4] if options.quick else [10**5, 10**6, 10**7]
    sizes = [size for size in sizes if size <= options.most_rows]

    def row(name, n, kind):
        found = (name, n, kind, *evaluate(name, kind, n))
        print(*found, file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {
            case: pool.submit(row, *case)
            for case in sorted(product(options.models, sizes, options.sources), key=longest)
        }
        rows = [waiting[case].result() for case in product(options.models, sizes, options.sources)]
    columns = ["model", "rows", "source", "fit, s", "fit, ns per row", "predict, ns per row", "MiB"]
    settings = {
        "time": f"of the processor, {options.jobs} fits at a time",
        "memory": "anonymous, of the fit, above the start",
    }
    header = _report.header("Rows read from files", **settings)
    found = _report.table(pd.DataFrame(rows, columns=columns), digits=1)
    _report.publish("sources", [header, found], write=not options.quick)


if __name__ == "__main__":
    main()
