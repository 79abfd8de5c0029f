"""Error and predictive density of regressors on every regression set, against time.

``SVGPRegressor()`` beside GPyTorch's sparse variational GP with as many inducing points, an exact
GP where it can be had, and gradient boosting: the sets' own splits (``test_mask``), rows and
targets standardised with training statistics. Run ``python -m benchmarks.regression``; a run that
was killed continues. To add a method, add an entry to ``METHODS``.
"""

import sys
import time

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpsvm import SVGPRegressor

from . import _data, _harness, _peers, _report
from ._harness import Method

QUICK_SETS = ("yacht", "autompg", "housing", "energy", "concrete")
OURS = "SVGPRegressor"
N_INDUCING = 256
MOST_EXACT = 2000


def exact(X, y, seed):
    """The exact process with the default kernel of ours; too slow for more rows than 2000."""
    if len(X) > MOST_EXACT:
        return None
    scales = np.full(X.shape[1], np.sqrt(X.shape[1] / 2))
    kernel = ConstantKernel() * RBF(scales) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(X, y)


METHODS = {
    OURS: Method(
        lambda X, y, seed: SVGPRegressor(n_inducing=N_INDUCING, random_state=seed).fit(X, y),
        _harness.package_code(),
        ("rmse", "nlpd"),
    ),
    "GPyTorch SVGP": Method(
        lambda X, y, seed: _peers.GPyTorchSVGP(N_INDUCING, seed).fit(X, y),
        _peers.gpytorch_code(),
        ("rmse", "nlpd"),
    ),
    "exact GP": Method(exact, _harness.sklearn_code(), ("rmse", "nlpd")),
    "gradient boosting": Method(
        lambda X, y, seed: HistGradientBoostingRegressor(random_state=seed).fit(X, y),
        _harness.sklearn_code(),
        ("rmse",),
    ),
}

METRICS = {
    "rmse": (False, "Root mean squared error, in standard deviations of y"),
    "nlpd": (False, "Mean negative log predictive density, nats"),
}
MEASURED = (*METRICS, "fit_seconds", "predict_seconds")


def evaluate(set, seed, method):
    """Fit a method to one split of a set and measure it; seconds are of the processor."""
    data = _data.split_regression(set, seed)
    start = time.process_time()
    model = METHODS[method].fit(data.X_train, data.y_train, seed)
    fitted = time.process_time()
    found = dict.fromkeys(MEASURED, np.nan)
    if model is None:
        return found
    if "nlpd" in METHODS[method].metrics:
        mean, std = model.predict(data.X_test, return_std=True)
        z = (data.y_test - mean) / std
        found["nlpd"] = np.mean(np.log(std) + 0.5 * z**2) + 0.5 * np.log(2 * np.pi)
    else:
        mean = model.predict(data.X_test)
    found["rmse"] = np.sqrt(np.mean((data.y_test - mean) ** 2))
    found["fit_seconds"] = fitted - start
    found["predict_seconds"] = time.process_time() - fitted
    return found


def main():
    """Run what is missing and write the report."""
    options = _harness.options(__doc__, seeds=5)
    names = options.sets or (QUICK_SETS if options.quick else None)
    sets = _data.chosen(_data.regression_sets(), names)
    seeds = range(1 if options.quick else options.seeds)
    full = not (options.quick or options.sets)
    path = _harness.RESULTS / "regression.csv" if full else None
    results = _harness.run_methods(METHODS, evaluate, sets, seeds, MEASURED, path, options.jobs)
    settings = {
        "sets": len(sets),
        "splits": f"columns 0 to {len(seeds) - 1} of test_mask; rows and y standardised",
        OURS: f"SVGPRegressor(n_inducing={N_INDUCING})",
        "GPyTorch SVGP": f"{N_INDUCING} inducing points; {_peers.gpytorch_code()}",
        "exact GP": f"GaussianProcessRegressor, sets of at most {MOST_EXACT} training rows",
        "processes": f"{options.jobs} of one thread",
    }
    parts = [_report.header("Regression: every set, default settings", **settings)]
    sizes = pd.DataFrame({name: vars(info) for name, info in sets.items()}).T
    parts += _report.methods(results, sizes, METHODS, METRICS, OURS)
    _report.publish("regression", parts, write=full)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
