"""Error and predictive density of regressors on every regression set, against time.

``SVGPRegressor()`` is compared with the package's other regressors, GPyTorch's sparse variational
and nearest-neighbor GPs, an exact GP if the set is small enough, gradient boosting, and the density
regressors of `_density_peers`. The exact GP has a squared exponential, or of four kernels, those
that ours chooses from, the one of highest evidence. GPyTorch's sparse GP has 256 inducing points,
as ours has beyond 2,000 rows. The splits are the sets' own (``test_mask``), or ten folds of the
sets of scikit-learn; rows and targets are standardized with training statistics. On the first split
the density is recorded during the fits. Run ``python -m benchmarks.regression``; a run that was
killed continues where it stopped. To add a method, add an entry to ``METHODS``.
"""

import sys
from datetime import date
from functools import partial

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.metrics import root_mean_squared_error as rmse

from skgpsvm import (
    AdditiveGPRegressor,
    DecoupledGPRegressor,
    HybridSVGPRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPRegressor,
)

from . import _data, _density_peers, _harness, _measure, _peers, _report
from ._harness import Method

QUICK_SETS = ("yacht", "housing")
OURS = "SVGPRegressor"
OTHERS = (
    DecoupledGPRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    AdditiveGPRegressor,
    HybridSVGPRegressor,
)
# Likelihoods of `SVGPRegressor`, and the metrics they are ranked by. The density is Gaussian, which
# those with heavy tails do not predict.
LIKELIHOODS = {"student_t": ("rmse",), "laplace": ("rmse",), "heteroscedastic": ("rmse", "nlpd")}
N_INDUCING = 256
MAX_EXACT = 2000
SMOOTHNESS = (np.inf, 2.5, 1.5, 0.5)  # of the Matern kernels that ours chooses from


def exact(X, y, seed, clock, smoothness=(np.inf,)):
    """Fit exact GPs with Matern kernels, and return the one of highest evidence.

    With more than 2000 rows it is too slow.
    """
    if len(X) > MAX_EXACT:
        return None
    scales, fits = np.full(X.shape[1], np.sqrt(X.shape[1] / 2)), []
    for nu in smoothness:
        kernel = ConstantKernel() * Matern(scales, nu=nu) + WhiteKernel(0.1)
        gp = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
        fits.append(gp.fit(X, y))
    return max(fits, key=lambda gp: gp.log_marginal_likelihood_value_)


def ours(estimator, most_rows=np.inf):
    """Return `Method.fit` for an estimator of this package and sets of at most so many rows."""

    def fit(X, y, seed, clock):
        if len(X) > most_rows:
            return None
        model = clone(estimator).set_params(random_state=seed)
        return model.set_callbacks(*clock.callbacks()).fit(X, y)

    return fit


PACKAGE, BOTH = _harness.package_code(), ("rmse", "nlpd")
METHODS = {
    OURS: Method(ours(SVGPRegressor()), PACKAGE, BOTH),
    **{kind.__name__: Method(ours(kind()), PACKAGE, BOTH) for kind in OTHERS},
    **{
        f"{OURS}, {name}": Method(ours(SVGPRegressor(likelihood=name), MAX_EXACT), PACKAGE, metrics)
        for name, metrics in LIKELIHOODS.items()
    },
    **_peers.svgp_methods(N_INDUCING, BOTH),
    "GPyTorch VNNGP": _peers.vnngp_method(BOTH),
    "exact GP": Method(exact, _harness.sklearn_code(), BOTH),
    "exact GP, four kernels": Method(
        partial(exact, smoothness=SMOOTHNESS), _harness.sklearn_code(), BOTH
    ),
    "gradient boosting": Method(
        lambda X, y, seed, clock: HistGradientBoostingRegressor(random_state=seed).fit(X, y),
        _harness.sklearn_code(),
        ("rmse",),
    ),
    **_density_peers.methods(BOTH),
}

METRICS = {
    "rmse": (False, "Root mean squared error, in standard deviations of y"),
    "nlpd": (False, "Mean negative log predictive density, nats"),
}
MEASURED = (*METRICS, *_measure.MEASURED)


def evaluate(set, seed, method):
    """Fit a method to one split of a set and measure it; seconds are processor time."""
    data = _data.split_regression(set, seed)
    fit, metrics = METHODS[method].fit, METHODS[method].metrics

    def measure(model):
        if "nlpd" not in metrics:
            return {"rmse": rmse(data.y_test, model.predict(data.X_test)), "nlpd": np.nan}
        mean, std = model.predict(data.X_test, return_std=True)
        nlpd = np.mean(np.log(std) + 0.5 * ((data.y_test - mean) / std) ** 2)
        return {"rmse": rmse(data.y_test, mean), "nlpd": nlpd + 0.5 * np.log(2 * np.pi)}

    return _measure.measured_fit(fit, data, seed, measure, "nlpd", watching=seed == 0)


def main():
    """Run missing tasks and write the report."""
    plan = _harness.plan(__doc__, _data.regression_sets(), QUICK_SETS, seeds=5, kind="regression")
    path = plan.results("regression")
    results = _harness.run_methods(METHODS, evaluate, plan, MEASURED, path)
    settings = {
        "sets": len(plan.sets),
        "splits": f"columns 0 to {len(plan.seeds) - 1} of test_mask, of more than "
        f"{_harness.LARGE} rows column 0; rows and y standardized",
        OURS: "SVGPRegressor(), exact up to 2,000 rows, else with 256 inducing points",
        "GPyTorch SVGP, GPflow SVGP": f"{N_INDUCING} inducing points; {_peers.protocol()}",
        "GPyTorch VNNGP": f"every row a point; neighbors {_peers.NEIGHBORS}; {_peers.protocol()}",
        "exact GP": f"GaussianProcessRegressor, sets of at most {MAX_EXACT} training rows",
        **_density_peers.settings(),
        "processes": f"{plan.jobs} of one thread",
    }
    parts = [_report.header("Regression: every set, default settings", **settings)]
    sizes = pd.DataFrame({name: vars(info) for name, info in plan.sets.items()}).T
    parts += _report.by_use(results, sizes, METHODS, METRICS, OURS, "regression")
    parts += _report.against_time(results, sizes, "density", (OURS,), "GPyTorch SVGP")
    _report.publish("regression", parts, write=plan.full)
    if plan.full:
        path = _harness.RESULTS / f"regression-{date.today()}.png"
        _report.draw_curves(results, (OURS, "GPyTorch SVGP"), "negative log density", path)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
