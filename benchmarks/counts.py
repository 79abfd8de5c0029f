"""Counts, amounts and shares: likelihoods of this package beside linear models and boosted trees.

Claims a year of policies with exposures (Poisson), hourly rentals (negative binomial), costs
(gamma) and shares (beta) are generated, each from effects that are not straight lines and one
interaction. Rentals of the development set bike are real; the likelihoods were designed on them.
Scores on 4,000 new rows: the share of the deviance of a constant that is explained, D2, which for
shares is that of the squared error; the mean negative log density; and
the share of intervals of level .9 that hold y. Time is processor time of `fit`, one thread. Run
``python -m benchmarks.counts [--quick]``.
"""

import argparse
import time

import numpy as np
import pandas as pd
from scipy.special import expit, logit
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import GammaRegressor, PoissonRegressor, Ridge
from sklearn.metrics import d2_tweedie_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from threadpoolctl import threadpool_limits

from skgpsvm import AdditiveGPRegressor, SVGPRegressor
from skgpsvm._families import FAMILIES

from . import _data, _report

N_TEST, N_DRAWS, FIRST_SEED = 4000, 3, 100
SETS = {"claims": 5000, "rentals": 600, "costs": 1000, "shares": 600, "bike": 1000}
TRUE = {"claims": "poisson", "rentals": "negative_binomial", "costs": "gamma", "shares": "beta"}
POWERS = {"costs": 2, "shares": 0}  # of the Tweedie deviance; 1 elsewhere


def generated(name, n, seed):
    """Return X (n, 6), y (n,) and exposures (n,)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 6))
    f = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 - 0.5 * X[:, 2] + X[:, 3] * X[:, 4]
    exposure = np.ones(n)
    if name == "claims":
        exposure, f = rng.uniform(0.2, 1, n), 0.5 * f - 1.5
        return X, rng.poisson(exposure * np.exp(f)) / exposure, exposure
    family, constant = FAMILIES[TRUE[name]], -1.0 if name == "shares" else 3.0
    distribution = family.distribution(family.link.inverse(f + constant), 0.2)
    return X, distribution.rvs(n, random_state=rng).astype(float), exposure


def bike(n, seed):
    """Return standardized features of the set bike, its counts, and exposures of one."""
    with np.load(_data.folder() / "regression" / "bike.npz") as data:
        X = data["X"]
    y = sum(X[:, j] - X[:, j].min() for j in (15, 16)).round()  # casual and registered rentals
    rows = np.random.default_rng(seed).permutation(len(X))[:n]
    return StandardScaler().fit_transform(X[rows, 1:15]), y[rows], np.ones(n)


def methods(name):
    """Return the models of a set, a dict."""
    linear = (GammaRegressor if name == "costs" else PoissonRegressor)(alpha=1e-3, max_iter=1000)
    loss, names = ("gamma" if name == "costs" else "poisson",) * 2
    if name == "shares":
        linear = TransformedTargetRegressor(Ridge(1e-3), func=logit, inverse_func=expit)
        loss, names = "squared_error", "beta"
    names = (names, "negative_binomial") if name in ("rentals", "bike") else (names,)
    own = {
        f"{kind.__name__}, {likelihood}": kind(likelihood=likelihood, random_state=0)
        for kind in (SVGPRegressor, AdditiveGPRegressor)
        for likelihood in ("gaussian", *names)
    }
    return own | {
        "linear model of splines": make_pipeline(SplineTransformer(), linear),
        "boosted trees": HistGradientBoostingRegressor(loss=loss, random_state=0),
    }


def log_density(model, X, y):
    """Return the mean log density of y."""
    mean, std = model.predict(X, return_std=True)
    if model.likelihood == "gaussian":
        return np.mean(-0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi))
    f, variance = model.latent_mean_and_variance(X)
    nodes, weights = np.polynomial.hermite.hermgauss(40)
    family = FAMILIES[model.likelihood]
    means = family.link.inverse(f[:, None] + np.sqrt(2 * variance)[:, None] * nodes)
    given = family.distribution(means, getattr(model, "dispersion_", 1.0))
    density = given.pmf if family.is_count else given.pdf
    return np.log(density(y[:, None]) @ (weights / weights.sum())).mean()


def evaluate(name, n, seed):
    """Return a row of the table for each method."""
    draw = bike if name == "bike" else lambda n, seed: generated(name, n, seed)
    X, y, exposure = draw(n + N_TEST, seed)
    X_new, y_new, w_new = X[n:], y[n:], exposure[n:]
    for method, model in methods(name).items():
        prefix = f"{model.steps[-1][0]}__" if isinstance(model, Pipeline) else ""
        weights = {f"{prefix}sample_weight": exposure[:n]}
        start = time.process_time()
        model.fit(X[:n], y[:n], **weights)
        found = {"set": name, "method": method, "fit_seconds": time.process_time() - start}
        predicted = np.maximum(model.predict(X_new), 1e-6)
        options = {"sample_weight": w_new, "power": POWERS.get(name, 1)}
        found["D2"] = d2_tweedie_score(y_new, predicted, **options)
        if hasattr(model, "predict_interval") and name != "claims":  # whose y are rates
            lower, upper = model.predict_interval(X_new, 0.9)
            found["inside"] = np.mean((lower <= y_new) & (y_new <= upper))
            found["nll"] = -log_density(model, X_new, y_new)
        yield found


def main():
    """Fit, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    rows = []
    for name, n in SETS.items():
        for draw in range(1 if options.quick else N_DRAWS):
            rows += evaluate(name, 150 if options.quick else n, FIRST_SEED + draw)
        print(pd.DataFrame(rows).tail(8), flush=True)
    found = pd.DataFrame(rows).groupby(["set", "method"], sort=False).mean().reset_index()
    parts = [
        _report.header(
            "Counts, amounts and shares, default settings",
            rows=", ".join(f"{name} {n}" for name, n in SETS.items()) + f"; {N_TEST} test rows",
            draws=f"{N_DRAWS}; means",
            peers="spline features with alpha=1e-3; HistGradientBoostingRegressor",
        ),
        _report.table(found[["set", "method", "D2", "nll", "inside", "fit_seconds"]]),
    ]
    _report.publish("counts", parts, write=not options.quick)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
