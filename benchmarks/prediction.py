"""Measure the time of predictions of 1 row and of 1,000 rows, beside scikit-learn's.

Times are processor time of one thread, the minimum of several repeats. The first call, which
computes the posterior, does not count. Models are fitted to 2,000 synthetic rows of 8 features with
given kernels, since a model's size does not depend on how well it fits. Run
``python -m benchmarks.prediction [--quick]``.
"""

import argparse
import time

import numpy as np
import pandas as pd
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import Ridge
from sklearn.utils.validation import validate_data
from threadpoolctl import threadpool_limits

from skgpsvm import (
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPRegressor,
    EPClassifier,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)

from . import _report

D, LENGTH = 8, 2.0
FIXED = {"kernel": RBF(LENGTH), "optimizer": None, "max_iter": 3, "random_state": 0}
KERNEL = RBF(LENGTH, "fixed") + WhiteKernel(0.1, "fixed")
MODELS = {
    "SVGPRegressor, 256 points": SVGPRegressor(**FIXED, n_inducing=256, learn_inducing=False),
    "SVGPRegressor, 2,000 rows": SVGPRegressor(**FIXED),
    "SVGPClassifier, 256 points": SVGPClassifier(**FIXED, learn_inducing=False),
    "BayesianSVC, 256 points": BayesianSVC(**FIXED),
    "EPClassifier, 256 points": EPClassifier(**FIXED),
    "DecoupledGPRegressor, 1,000 bases": DecoupledGPRegressor(**FIXED, n_mean_bases=1000),
    "QSGPRegressor, 4,000 functions": QSGPRegressor(**FIXED, n_basis=4000),
    "QSRVMRegressor": QSRVMRegressor(max_iter=20, random_state=0),
    "AdditiveGPRegressor": AdditiveGPRegressor(max_iter=3, random_state=0),
    "scikit-learn's process, 256 rows": GaussianProcessRegressor(KERNEL, optimizer=None),
}
ROWS = {"scikit-learn's process, 256 rows": 256, "QSRVMRegressor": 500}


def milliseconds(function, repeats, calls):
    """Return the least mean processor time of a call over some repeats, in milliseconds."""
    function()
    least = np.inf
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(calls):
            function()
        least = min(least, (time.process_time() - start) / calls)
    return 1e3 * least


def predictions(quick):
    """Return a table of the milliseconds of `predict`, and of `predict_proba` of classifiers."""
    n, repeats = (300, 1) if quick else (2000, 7)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, D))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=n)
    ridge = Ridge().fit(X, y)

    def validation():
        validate_data(ridge, X[:1], reset=False, dtype=[np.float64, np.float32])

    rows = [("scikit-learn's validation alone", milliseconds(validation, repeats, 100), np.nan)]
    for name, model in MODELS.items():
        some = slice(ROWS.get(name, n))
        is_classifier = hasattr(model, "predict_proba")
        model.fit(X[some], (y > 0).astype(int)[some] if is_classifier else y[some])
        predict = model.predict_proba if is_classifier else model.predict
        one = milliseconds(lambda predict=predict: predict(X[:1]), repeats, 30)
        many = milliseconds(lambda predict=predict: predict(X[:1000]), repeats, 2)
        rows.append((name, one, many))
    return pd.DataFrame(rows, columns=["model", "1 row", "1,000 rows"])


def main():
    """Time all models and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    with threadpool_limits(1):
        table = predictions(options.quick)
    settings = {"unit": "milliseconds of processor time", "processes": "1 of one thread"}
    parts = [_report.header("Time of predictions", **settings), _report.table(table)]
    _report.publish("prediction", parts, write=not options.quick)


if __name__ == "__main__":
    main()
