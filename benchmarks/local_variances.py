"""Local variances of the decoupled regressor: beside the exact process, and calibrated in bins.

``DecoupledGPRegressor()`` is fitted to the first split of each set; rows and targets are
standardized. Its standard deviations of the function, with the calibrated power and without, and
those of its inducing points alone, are divided by those of the exact process with the same kernel
and noise, where that has at most 6,000 rows. Test rows are put into ten bins of equal size by their
predicted variance, by their distance to the nearest row, and by the density of the rows. Distance
and density are in the metric of the kernel: one minus the correlation with the nearest row, and the
mean correlation with the 20 nearest. The error of a bin is the absolute logarithm of the mean
squared error over the mean predicted variance. Run ``python -m benchmarks.local_variances [--sets
NAME ...]``.
"""

import argparse
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from skgpsvm import DecoupledGPRegressor
from skgpsvm._torch_kernels import torch_kernel

from . import _data, _report

SETS = ("airfoil", "wine", "skillcraft", "elevators", "protein", "concrete", "sml", "kin40k", "pol")
QUICK_SETS = ("yacht",)
MAX_EXACT, N_BINS, N_NEAREST, CHUNK = 6000, 10, 20, 200


def bin_error(squares, variances, by):
    """Return the mean absolute log ratio of errors and variances in bins of equal size."""
    bins = np.argsort(np.argsort(by, kind="stable")) * N_BINS // len(by)
    ratios = [squares[bins == i].mean() / variances[bins == i].mean() for i in range(N_BINS)]
    return np.abs(np.log(ratios)).mean()


def closeness(model, rows, X):
    """Return correlations with the nearest row, and the mean of the nearest, (n,) each."""
    basis = model.basis("cpu")
    kernel, theta, rows = basis.projected, basis.theta, torch.tensor(np.unique(rows, axis=0))
    std, found = kernel.diag(rows, theta).sqrt(), []
    for some in torch.tensor(X).split(CHUNK):
        correlations = kernel(some, rows, theta) / std / kernel.diag(some, theta).sqrt()[:, None]
        nearest = correlations.topk(min(N_NEAREST, len(rows)), 1).values
        found.append(torch.stack([nearest[:, 0], nearest.mean(1)], 1))
    return torch.cat(found).numpy().T


def exact_variances(model, rows, X):
    """Return variances of the exact process; equal rows have one value with less noise."""
    kernel, theta = torch_kernel(model.kernel), torch.tensor(model.kernel.theta)
    rows, counts = np.unique(rows, axis=0, return_counts=True)
    rows, X = torch.tensor(rows), torch.tensor(X)
    K = kernel(rows, rows, theta) + torch.diag(np.exp(model.noise[0]) / torch.tensor(counts))
    half = torch.linalg.solve_triangular(
        torch.linalg.cholesky(K), kernel(rows, X, theta), upper=False
    )
    return (kernel.diag(X, theta) - half.square().sum(0)).numpy()


def evaluate(name):
    """Return the rows of the report on a set, one for each kind of variance."""
    split = _data.split_regression(name, 0)
    X, y, X_new, y_new = split.X_train, split.y_train, split.X_test, split.y_test
    local = DecoupledGPRegressor(random_state=0).fit(X, y)
    (model,), mean = local._latents, local.predict(X_new)
    squares, found = (y_new - mean) ** 2, []
    near, dense = closeness(model, X, X_new)
    std_y = local._y_std[0]
    exact = exact_variances(model, X, X_new) * std_y**2 if len(X) <= MAX_EXACT else None
    kinds = {
        "calibrated": model,
        "local": replace(model, power=1.0),
        "inducing points": replace(model, power=1.0, local_root=None),
    }
    for kind, kept in kinds.items():
        posterior = kept.posterior("cpu")
        parts = [posterior.marginals(some)[1] for some in torch.tensor(X_new).split(CHUNK)]
        latent = torch.cat(parts)[:, 0].numpy() * std_y**2
        variances = latent + local.noise_variance_
        row = {"set": name, "n": len(X), "variances": kind, "rmse": np.sqrt(squares.mean())}
        row["nlpd"] = 0.5 * (np.log(2 * np.pi * variances) + squares / variances).mean()
        row["by variance"] = bin_error(squares, variances, variances)
        row["by distance"] = bin_error(squares, variances, -near)
        row["by density"] = bin_error(squares, variances, dense)
        if exact is not None:
            ratios = np.quantile(np.sqrt(latent / exact), [0.0, 0.05, 0.5, 0.95, 1.0])
            row |= dict(zip(("least", "5 %", "median", "95 %", "most"), ratios, strict=True))
        found.append(row)
    return found


def main():
    """Print the report, and save it unless it is a quick run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small set")
    parser.add_argument("--sets", nargs="+", help="names of sets")
    options = parser.parse_args()
    sets = options.sets or (QUICK_SETS if options.quick else SETS)
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    parts = [_report.header("Local variances of DecoupledGPRegressor()", sets=", ".join(sets))]
    found = pd.DataFrame([row for name in sets for row in evaluate(name)])
    parts.append(_report.table(found))
    _report.publish("local_variances", parts, write=not options.quick)


if __name__ == "__main__":
    main()
