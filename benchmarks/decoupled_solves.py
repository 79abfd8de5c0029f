"""Conjugate gradients of the decoupled regressor beside direct solves by scikit-learn, same bases.

Kernel and ridge are given, on 10,000 rows of kin40k. With all rows as bases, the peer is
`KernelRidge`; with 2,000 bases, it is ridge regression on Nystroem features. One thread. Run
``python -m benchmarks.decoupled_solves [--quick]``.
"""

import argparse

import numpy as np
import pandas as pd
import torch
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics import root_mean_squared_error as rmse
from threadpoolctl import threadpool_limits

from skgpsvm import DecoupledGPRegressor

from . import _data, _measure, _report

LENGTH, RIDGE, TOLERANCES = 2.0, 0.01, (1e-2, 1e-6)
RBF_OF_SKLEARN = {"kernel": "rbf", "gamma": 0.5 / LENGTH**2}


class NystroemRidge:
    """scikit-learn's ridge regression on given bases, by a Cholesky factor of the features."""

    def __init__(self, bases):
        self.bases = bases

    def fit(self, X, y):
        """Solve the ridge regression for rows and targets."""
        self._features = Nystroem(**RBF_OF_SKLEARN, n_components=len(self.bases), random_state=0)
        self._features.fit(self.bases)
        self._ridge = Ridge(RIDGE, fit_intercept=False, solver="cholesky")
        self._ridge.fit(self._features.transform(X), y)

    def predict(self, X):
        """Return means at rows."""
        return self._ridge.predict(self._features.transform(X))


def conjugate_gradients(n_bases, tol):
    """Return a `DecoupledGPRegressor` with its default solver and all hyperparameters given."""
    return DecoupledGPRegressor(
        RBF(LENGTH, "fixed"),
        mean="zero",  # the peers have no constant
        optimizer=None,
        learn_inducing=False,
        n_mean_bases=n_bases,
        n_inducing=16,
        normalize_y=False,
        noise_variance=RIDGE,
        tol=tol,
        random_state=0,
    )


def solves(quick):
    """Return a table of conjugate gradients beside direct solves at one kernel and ridge."""
    n, m = (1_000, 200) if quick else (10_000, 2_000)
    data = _data.split_regression("kin40k", 0)
    X, y = data.X_train[:n], data.y_train[:n]
    rows = []
    for n_bases in (n, m):
        models = {tol: conjugate_gradients(n_bases, tol) for tol in TOLERANCES}
        taken = {
            tol: _measure.seconds(lambda model=model: model.fit(X, y))
            for tol, model in models.items()
        }
        peer = KernelRidge(alpha=RIDGE, **RBF_OF_SKLEARN)
        if n_bases < n:
            peer = NystroemRidge(models[TOLERANCES[0]].mean_bases_)
        peer_taken = _measure.seconds(lambda peer=peer: peer.fit(X, y))
        other = peer.predict(data.X_test)
        for tol, model in models.items():
            mean = model.predict(data.X_test)
            rows.append(
                {
                    "bases": n_bases,
                    "tol": f"{tol:g}",
                    "iterations": model.n_iter_,
                    "seconds": taken[tol],
                    "RMSE": rmse(data.y_test, mean),
                    "beside": type(peer).__name__,
                    "its seconds": peer_taken,
                    "its RMSE": rmse(data.y_test, other),
                    "ratio": peer_taken / taken[tol],
                    "largest difference": f"{np.abs(mean - other).max():.0e}",
                }
            )
    title = (
        f"Conjugate gradients beside direct solves: {n} rows of kin40k, a squared exponential of\n"
        f"length scale {LENGTH:g}, ridge {RIDGE:g}, float64, one thread"
    )
    return _report.table(pd.DataFrame(rows), title)


def main():
    """Time the solves and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    with threadpool_limits(1):
        parts = [_report.header("Decoupled regressor: its solves", threads=1), solves(quick)]
    _report.publish("decoupled_solves", parts, write=not quick)


if __name__ == "__main__":
    main()
