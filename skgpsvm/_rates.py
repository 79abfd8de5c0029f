"""Regressions of rates, whose mean is the exponential of the latent function, by likelihood."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from ._sites import LikelihoodSites
from .exceptions import warn
from .likelihoods import Gamma, NegativeBinomial, Poisson

INITIAL_DISPERSION = 0.5
_NODES = 32  # of Gaussian logarithms of the mean
_TOL = 1e-9  # of quantiles, relative
_MAX_LOG_MEAN = 300.0  # magnitude of log means beyond which quantiles might overflow


class Rate(NamedTuple):
    """Distribution of y given its mean and, but for Poisson counts, its dispersion."""

    make: Callable  # takes the dispersions (t,); returns the likelihood
    distribution: Callable  # takes mean and dispersion; returns a frozen distribution of scipy
    is_count: bool


def _negative_binomial(mean, dispersion):
    return stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))


RATES = {
    "poisson": Rate(lambda _: Poisson(), lambda mean, _: stats.poisson(mean), is_count=True),
    "negative_binomial": Rate(NegativeBinomial, _negative_binomial, is_count=True),
    "gamma": Rate(
        Gamma, lambda mean, dispersion: stats.gamma(1 / dispersion, scale=dispersion * mean), False
    ),
}


def rate_sites(likelihood, n_outputs):
    """Return a likelihood of rates, a key of `RATES`, as sites, at its initial dispersions."""
    made = RATES[likelihood].make(np.full(n_outputs, INITIAL_DISPERSION))
    return LikelihoodSites(made, n_outputs)


def check_rates(likelihood, y):
    """Raise ValueError if a target is negative, or not positive where it must be.

    Warn of counts that are no integers where these are not counts per exposure.
    """
    is_count = RATES[likelihood].is_count
    if is_count and (y < 0).any():
        raise ValueError(
            f"likelihood={likelihood!r} needs counts or rates, which are not negative; y is "
            f"between {y.min()} and {y.max()}."
        )
    if not is_count and (y <= 0).any():
        raise ValueError(
            f"likelihood={likelihood!r} needs positive amounts; y is between {y.min()} and "
            f"{y.max()}. Model zeros apart, for example by a classifier of y > 0."
        )
    if likelihood == "negative_binomial" and (odd := np.count_nonzero(y != np.round(y))):
        warn(
            f"likelihood='negative_binomial' is for counts; y has {odd} values that are no "
            "integers, so that dispersion_ may be wrong. Rates, with exposures as sample_weight, "
            "are for likelihood='poisson', and amounts for 'gamma'."
        )


def rate_quantiles(likelihood, dispersion, mean, variance, probability):
    """Return quantiles (n, t) of y by bisection, given moments (n, t) of the log means."""
    rate = RATES[likelihood]
    nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
    weights = weights / weights.sum()
    log_means = mean[..., None] + np.sqrt(2 * variance)[..., None] * nodes
    means = np.exp(np.clip(log_means, -_MAX_LOG_MEAN, _MAX_LOG_MEAN))
    given = rate.distribution(means, np.broadcast_to(dispersion, mean.shape)[..., None])

    def is_reached(value):
        return given.cdf(value[..., None]) @ weights >= probability

    low = np.full(mean.shape, -1.0 if rate.is_count else 0.0)
    high = np.floor(np.exp(np.minimum(mean, _MAX_LOG_MEAN))) + 1
    while not (reached := is_reached(high)).all():
        low, high = np.where(reached, low, high), np.where(reached, high, 4 * high)
    resolution = 1.0 if rate.is_count else np.finfo(float).tiny
    while (high - low > np.maximum(resolution, _TOL * high)).any():
        middle = (low + high) / 2
        middle = np.floor(middle) if rate.is_count else middle
        reached = is_reached(middle)
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high
