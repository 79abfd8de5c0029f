"""Paper 4, Figure 3: relevance vectors of noisy sinc, by sweeps and by stochastic steps; memory.

Evans and Nair (2020), section 5.3, with range, noise and length scales of the guide, which the
paper does not state. Then a pass of stochastic steps over many rows and functions, in a process of
its own. Run ``python -m benchmarks.relevance_steps [--quick] [--sweeps | --memory]``; with
``--sweeps``, models by sweeps alone, and with ``--memory``, such passes of several sizes alone.
Times are of one thread.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd
from sklearn.gaussian_process.kernels import RBF
from threadpoolctl import threadpool_limits

from skgpsvm import QSRVMRegressor, SVGPRegressor
from skgpsvm.solvers import QuadruplyStochastic

from . import _report

N, NOISE, PASSES = 500, 0.1, 600
KERNEL = RBF(1.5, "fixed")
# The paper's sizes of minibatches, draws and support rows.
SIZES = {"batch_size": 100, "n_sampled_basis": 250, "n_support": 250}
PAPER = {"step": "adagrad", "control_variate": "gram", "gradient": "plain"}
# Numbers of rows and functions; the last is also what the report of all models has.
LARGE = (10_000, 1000), (100_000, 10_000), (1_000_000, 1000), (1_000_000, 100_000)
D = 8


def by_sweeps():
    """Return the exact process and the models by sweeps that are compared, by name."""
    return {
        "exact process": SVGPRegressor(random_state=0),
        "default": QSRVMRegressor(random_state=0),
        "sweeps, full": QSRVMRegressor(KERNEL),
        "sweeps, mean field": QSRVMRegressor(KERNEL, covariance="mean_field"),
    }


def by_steps(passes):
    """Return the models by stochastic steps that are compared, by name."""
    steps = {"solver": QuadruplyStochastic(**SIZES), "max_iter": passes, "random_state": 0}
    paper = {**steps, "solver": QuadruplyStochastic(**PAPER, **SIZES)}
    return {
        "steps, mean field": QSRVMRegressor(KERNEL, **steps),
        "steps, chevron": QSRVMRegressor(KERNEL, covariance="chevron", **steps),
        "paper's steps, chevron": QSRVMRegressor(KERNEL, covariance="chevron", **paper),
    }


def measured(model, seed):
    """Return error against the truth, vectors, noise and seconds of a fit to a draw of sinc."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-10, 10, (N, 1))
    y = np.sinc(X[:, 0] / np.pi) + NOISE * rng.normal(size=N)
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    grid = np.linspace(-10, 10, 1000)
    error = model.predict(grid[:, None]) - np.sinc(grid / np.pi)
    vectors = len(getattr(model, "relevance_vectors_", X))
    return np.sqrt(np.mean(error**2)), vectors, np.sqrt(model.noise_variance_), seconds


def compared(models, n_draws):
    """Return the table of models on draws of sinc."""
    rows = []
    for name, model in models.items():
        error, vectors, noise, seconds = np.transpose([measured(model, i) for i in range(n_draws)])
        low, median, high = np.percentile(vectors, [0, 50, 100])
        counts = f"{median:g} ({low:g} to {high:g})"
        rows.append((name, error.mean(), error.max(), counts, noise.mean(), seconds.mean()))
        print(*rows[-1], flush=True)
    columns = ["model", "RMSE", "largest RMSE", "vectors", "noise", "seconds"]
    title = "Error to the truth on a grid, vectors: median and range"
    return _report.table(pd.DataFrame(rows, columns=columns), title, digits=4)


def memory(sizes):
    """Return the table of passes over rows and functions of these sizes, each in a process."""
    labels, rows = ["MiB before", "peak MiB", "seconds", "vectors", "R^2"], []
    for size in sizes:
        command = [sys.executable, "-m", "benchmarks.relevance_steps", "--large", *map(str, size)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append(dict(zip(labels, map(float, output.split()), strict=True)))
    return pd.DataFrame(rows)


def publish_memory(sizes, write):
    """Write the report of memory against the numbers of rows and functions."""
    frame = memory(sizes)
    frame.insert(0, "rows", [n for n, _ in sizes])
    frame.insert(1, "functions", [m for _, m in sizes])
    frame["MiB above"] = frame["peak MiB"] - frame["MiB before"]
    parts = [
        _report.header("Relevance vector machines by stochastic steps: memory of a pass"),
        _report.table(frame, f"Rows of {D} features in float32, default sizes of steps", digits=1),
    ]
    _report.publish("relevance_memory", parts, write=write)


def large(n_rows, n_functions):
    """Print the memory and the seconds of a pass over generated rows, and the fit's R^2."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, D), dtype=np.float32)
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.standard_normal(n_rows, dtype=np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    solver = QuadruplyStochastic()
    options = {"n_basis": n_functions, "max_iter": 1, "dtype": "float32", "random_state": 0}
    start = time.process_time()
    model = QSRVMRegressor(solver=solver, **options).fit(X, y)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    score, vectors = model.score(X[:5000], y[:5000]), len(model.relevance_vectors_)
    print(before, peak, seconds, vectors, score)


def main():
    """Fit all models to all draws, measure memory and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--sweeps", action="store_true", help="models by sweeps alone")
    only.add_argument("--memory", action="store_true", help="memory of large passes alone")
    parser.add_argument("--large", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.large:
        large(*options.large)
        return
    if options.memory:
        publish_memory(LARGE[:2] if options.quick else LARGE, write=not options.quick)
        return
    n_draws, passes = (2, 50) if options.quick else (10, PASSES)
    size = LARGE[0] if options.quick else LARGE[-1]
    data = f"{N}, x uniform in -10 to 10, noise {NOISE}; {n_draws} draws"
    kernel = f"{KERNEL.length_scale} of the vector machines"
    settings = {"rows": data, "kernel": f"{kernel}, except by default"}
    title = "Relevance vectors of sinc by sweeps"
    parts = [_report.header(title, **settings), compared(by_sweeps(), n_draws)]
    _report.publish("relevance_sweeps", parts, write=not options.quick)
    if options.sweeps:
        return
    parts = [
        _report.header(
            "Paper 4, Figure 3: relevance vectors of sinc by stochastic steps",
            rows=data,
            kernel=kernel,
            steps=f"{passes} passes, {SIZES}",
            paper=f"{PAPER}; 13 vectors of one draw",
        ),
        compared(by_steps(passes), n_draws),
        _report.table(
            memory([size]),
            f"A pass over {size[0]} x {D} float32 rows with {size[1]} functions",
            digits=1,
        ),
    ]
    _report.publish("relevance_steps", parts, write=not options.quick)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
