"""Speed of the collapsed bound: against its matrix products, against the exact GP, against n.

Run ``python -m benchmarks.collapsed [--quick]``. The sections are

- one evaluation of bound and gradient at n = 10,000, d = 20, m = 512 beside the matrix products it
  contains, alternating in one process;
- a fit at n = 2,000 beside `GaussianProcessRegressor`, both learning the same kernel;
- one evaluation against n, with its fitted exponent.
"""

import argparse
import os
import warnings

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpsvm import SVGPRegressor
from skgpsvm._collapsed import _CHUNK_ROWS, CollapsedBound
from skgpsvm._data import WeightedDataset
from skgpsvm._torch_kernels import torch_kernel

from . import _report
from ._measure import exponent, medians, seconds

D = 20


class Evaluation:
    """Evaluation of the bound and its gradient, and the matrix products it contains."""

    def __init__(self, n, m):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, D))
        y = np.sin(X[:, :1]) + 0.1 * rng.standard_normal((n, 1))
        kernel = ConstantKernel(1.0) * RBF(np.full(D, np.sqrt(D / 2)))
        self.rows = WeightedDataset(X, y, np.ones(n), torch.device("cpu"), torch.float64)
        self.bound = CollapsedBound(torch_kernel(kernel), self.rows)
        self.parts = torch.tensor(kernel.theta), torch.tensor(X[:m]), torch.tensor([-2.0]).double()

    def evaluate(self):
        """Compute the bound and its gradient."""
        self.bound.value_and_gradient(*self.parts)

    def products(self):
        """Compute the products: two kernel blocks, A, its Gram matrix, the adjoint and dZ."""
        Z = self.parts[1]
        square = torch.eye(len(Z), dtype=Z.dtype)
        for chunk in self.rows.chunks(_CHUNK_ROWS):
            X = self.rows.take(chunk)[0]
            X @ Z.T
            A = (X @ Z.T) @ square
            A.T @ A
            (A @ square).T @ X


def evaluation_section(quick):
    """Return a table of one evaluation beside its products."""
    n, m, repeats = (2_000, 128, 3) if quick else (10_000, 512, 7)
    rows = []
    for threads in (1,) if quick else dict.fromkeys((1, os.cpu_count())):
        torch.set_num_threads(threads)
        case = Evaluation(n, m)
        case.evaluate()
        evaluation, products = medians([case.evaluate, case.products], repeats)
        times = {"evaluation s": evaluation, "products s": products}
        rows.append({"threads": threads, **times, "ratio": evaluation / products})
    title = (
        f"Bound and gradient at n = {n}, d = {D}, m = {m}, float64, beside the matrix products in\n"
        f"it: medians of {repeats}, alternating. Wanted: ratio at most 3."
    )
    return _report.table(pd.DataFrame(rows), title)


def exact_section(quick):
    """Return a table of a fit beside the exact GP, both learning a length scale per feature."""
    torch.set_num_threads(1)
    n, seeds = (500, 1) if quick else (2_000, 2)
    rows = []
    for seed in range(seeds):
        X, y = make_friedman1(2 * n, n_features=10, noise=1.0, random_state=seed)
        train, test = (X[:n], y[:n]), (X[n:], y[n:])
        kernel = ConstantKernel(1.0) * RBF(np.full(10, 1.0))
        models = {
            "SVGPRegressor": SVGPRegressor(kernel, n_inducing=256, random_state=seed),
            "exact": GaussianProcessRegressor(kernel + WhiteKernel(0.1), normalize_y=True),
        }
        found = {"seed": seed}
        for name, model in models.items():
            found[f"{name} s"] = seconds(lambda model=model, train=train: model.fit(*train))
            error = model.predict(test[0]) - test[1]
            found[f"{name} RMSE"] = np.sqrt(np.mean(error**2))
        rows.append({**found, "speed-up": found["exact s"] / found["SVGPRegressor s"]})
    title = (
        f"Friedman's function, n = {n}, 10 features, m = 256, one thread: default fits.\n"
        "Wanted: RMSE to 2 %, 20 times faster."
    )
    return _report.table(pd.DataFrame(rows), title)


def growth_section(quick):
    """Return a table of the time of one evaluation against n."""
    torch.set_num_threads(1)
    sizes = (2_000, 5_000, 10_000) if quick else (10_000, 30_000, 100_000, 300_000)
    times = []
    for n in sizes:
        case = Evaluation(n, 128)
        case.evaluate()
        times.append(medians([case.evaluate], 3)[0])
    title = (
        f"Bound and gradient against n, m = 128, one thread: exponent {exponent(sizes, times):.2f}"
    )
    return _report.table(pd.DataFrame({"n": sizes, "seconds": times}), title)


def main():
    """Run the sections and write the report."""
    # The exact GP warns if the length scale of an irrelevant feature is on its bound.
    warnings.simplefilter("ignore", ConvergenceWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    quick = parser.parse_args().quick
    sections = evaluation_section, exact_section, growth_section
    parts = [_report.header("Collapsed bound"), *(section(quick) for section in sections)]
    _report.publish("collapsed", parts, write=not quick)


if __name__ == "__main__":
    main()
