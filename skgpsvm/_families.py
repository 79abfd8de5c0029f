"""Families of distributions whose mean is a function of the latent one: counts, amounts, shares."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, polygamma

from ._sites import LikelihoodSites
from .exceptions import warn
from .likelihoods import Beta, Gamma, NegativeBinomial, Poisson

INITIAL_DISPERSION = 0.5
# Trapezoidal rule over Gaussian logarithms of the mean: its reach in standard deviations, and the
# least and the largest number of nodes.
_REACH, _MIN_NODES, _MAX_NODES = 6.0, 32, 1024
_TOL = 1e-9  # of quantiles, relative
_RANGE = 80.0  # of log dispersions of a given variance of the link, below the highest
_LARGEST_COUNT = 2.0**53  # above it, counts differ from their mean by a share of 1e-8


class Link(NamedTuple):
    """Function of the mean that is the latent function."""

    name: str
    of: Callable  # takes and returns tensors
    inverse: Callable  # takes and returns arrays
    largest: float  # value of the inverse that is not exceeded
    reach: float  # magnitude beyond which quantiles might overflow


LOG = Link("log", torch.log, np.exp, np.inf, 300.0)
LOGIT = Link("logit", torch.logit, expit, 1.0, 36.0)


class Family(NamedTuple):
    """Distribution of y given its mean and, but for Poisson counts, its dispersion."""

    make: Callable  # takes the dispersions (t,); returns the likelihood
    distribution: Callable  # takes mean and dispersion; returns a frozen distribution of scipy
    draw: Callable  # takes mean, dispersion and a RandomState; returns values of y
    # Takes variances and latent values, tensors (t,); returns the dispersions at which the link of
    # y has about these variances.
    dispersion: Callable = lambda variance, f: variance
    is_count: bool = False
    link: Link = LOG


def _negative_binomial(mean, dispersion):
    return stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))


def _gamma(mean, dispersion):
    return stats.gamma(1 / dispersion, scale=dispersion * mean)


def _beta(mean, dispersion):
    return stats.beta(mean / dispersion, (1 - mean) / dispersion)


def _poisson_draws(mean, rng):
    """Return Poisson counts of given means; a mean above 2**53 stands for its counts."""
    few = mean < _LARGEST_COUNT
    return np.where(few, rng.poisson(np.where(few, mean, 0.0)), mean)


def _gamma_draws(mean, dispersion, rng):
    return rng.gamma(1 / dispersion, dispersion * mean)


def _beta_draws(mean, dispersion, rng):
    return rng.beta(mean / dispersion, (1 - mean) / dispersion)


def _gamma_dispersion(variance, f):
    """Return the dispersions of gamma distributions whose logarithms have some variances."""
    return _of_variance(torch.ones_like(f), f.new_full(f.shape, torch.inf), variance)


def _beta_dispersion(variance, f):
    """Return the dispersions of beta distributions whose logits have some variances."""
    return _of_variance(f.sigmoid(), (-f).sigmoid(), variance)


def _of_variance(a, b, variance):
    r"""Return d (t,) at which the trigamma functions of a / d and b / d have a sum (t,).

    The logarithm of a gamma variable of shape :math:`\alpha` has the variance
    :math:`\psi_1(\alpha)`, which is above :math:`1 / \alpha` and about :math:`\alpha^{-2}` for
    small shapes. A beta variable is X / (X + Y) with independent gamma variables X and Y, and its
    logit is log X - log Y.
    """
    highest = (variance / (1 / a + 1 / b)).log()

    def log_dispersion(a, b, variance, highest):
        def excess(x):
            return polygamma(1, np.array([a, b]) * np.exp(-x)).sum() - variance

        return highest if excess(highest) <= 0 else brentq(excess, highest - _RANGE, highest)

    parts = zip(*(part.tolist() for part in (a, b, variance, highest)), strict=True)
    return a.new_tensor([log_dispersion(*own) for own in parts]).exp()


FAMILIES = {
    "poisson": Family(
        lambda _: Poisson(),
        lambda mean, _: stats.poisson(mean),
        lambda mean, _, rng: _poisson_draws(mean, rng),
        is_count=True,
    ),
    "negative_binomial": Family(
        NegativeBinomial,
        _negative_binomial,
        lambda mean, dispersion, rng: _poisson_draws(_gamma_draws(mean, dispersion, rng), rng),
        is_count=True,
    ),
    "gamma": Family(Gamma, _gamma, _gamma_draws, _gamma_dispersion),
    "beta": Family(Beta, _beta, _beta_draws, _beta_dispersion, link=LOGIT),
}


def family_sites(likelihood, n_outputs):
    """Return a likelihood, a key of `FAMILIES`, as sites, at its initial dispersions."""
    made = FAMILIES[likelihood].make(np.full(n_outputs, INITIAL_DISPERSION))
    return LikelihoodSites(made, n_outputs)


def check_family(likelihood, y):
    """Raise ValueError if a target is not a value that the family has.

    Warn of counts that are not integers where these are not counts per exposure.
    """
    family, needs = FAMILIES[likelihood], f"likelihood={likelihood!r} needs"
    found = f"y is between {y.min(initial=np.inf)} and {y.max(initial=-np.inf)} in {y.dtype}."
    if family.is_count and (y < 0).any():
        raise ValueError(f"{needs} counts or rates, which are not negative; {found}")
    if family.link is LOGIT and ((y <= 0) | (y >= 1)).any():
        raise ValueError(
            f"{needs} proportions between 0 and 1, without the ends; {found} Divide percentages by "
            "100. Where y is 0 or 1 by rounding, take (y * (n - 1) + 0.5) / n with n rows."
        )
    if not family.is_count and (y <= 0).any():
        raise ValueError(
            f"{needs} positive amounts; {found} Model zeros apart, for example by a classifier of "
            "y > 0."
        )
    if likelihood == "negative_binomial" and (odd := np.count_nonzero(y != np.round(y))):
        warn(
            f"likelihood='negative_binomial' is for counts; y has {odd} values that are not "
            "integers, so that dispersion_ may be wrong. Rates, with exposures as sample_weight, "
            "are for likelihood='poisson', and amounts for 'gamma'."
        )


def family_quantiles(likelihood, dispersion, mean, variance, probability):
    """Return quantiles (n, t) of y, given moments (n, t) of the links of the means."""
    shape, n_nodes = mean.shape, _n_nodes(likelihood, dispersion, mean, variance)
    given = np.stack([np.broadcast_to(part, shape) for part in (dispersion, mean, variance)])
    found = np.empty(shape)
    for n in np.unique(n_nodes):
        own = n_nodes == n
        found[own] = _quantiles(FAMILIES[likelihood], *given[:, own], probability, n)
    return found


def _n_nodes(likelihood, dispersion, mean, variance):
    """Return the number of nodes of each quantile, a power of two.

    Over the latent value f, the distribution function of y at a value is a step, as wide as the
    standard deviation of the link of y given f, or wider than the one here. If the nodes are at
    most 1.5 of these apart, the error of its integral is below a thousandth.
    """
    std = np.sqrt(variance)
    width = np.broadcast_to(np.sqrt(dispersion), mean.shape)
    if FAMILIES[likelihood].is_count:
        largest = np.clip(mean + 2 * std, 0, LOG.reach)
        width = np.sqrt((0 if likelihood == "poisson" else width**2) + np.exp(-largest))
    wanted = 2 * _REACH / 1.5 * std / np.maximum(width, np.finfo(float).tiny)
    wanted = np.clip(wanted, _MIN_NODES, _MAX_NODES)
    return 2 ** np.ceil(np.log2(wanted)).astype(int)


def _quantiles(family, dispersion, mean, variance, probability, n_nodes):
    """Return quantiles (k,) by bisection, with so many nodes."""
    nodes = np.linspace(-_REACH, _REACH, n_nodes)
    weights = np.exp(-0.5 * nodes**2)
    weights = weights / weights.sum()
    latents, link = mean[:, None] + np.sqrt(variance)[:, None] * nodes, family.link
    means = link.inverse(np.clip(latents, -link.reach, link.reach))
    given = family.distribution(means, dispersion[:, None])

    def is_reached(value):
        return given.cdf(value[:, None]) @ weights >= probability

    low = np.full(mean.shape, -1.0 if family.is_count else 0.0)
    high = np.minimum(np.floor(link.inverse(np.minimum(mean, link.reach))) + 1, link.largest)
    while not (reached := is_reached(high)).all():
        low, high = np.where(reached, low, high), np.where(reached, high, 4 * high)
    resolution = 1.0 if family.is_count else np.finfo(float).tiny
    while (high - low > np.maximum(resolution, _TOL * high)).any():
        middle = (low + high) / 2
        middle = np.floor(middle) if family.is_count else middle
        reached = is_reached(middle)
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high
