"""Distributions of y in a regression: likelihoods by name, moments, intervals and draws."""

import functools
from abc import ABC, abstractmethod

import numpy as np
import torch
from scipy.special import ndtr, ndtri, roots_genlaguerre

from ._families import FAMILIES, family_quantiles
from ._memory import CHUNK_ROWS
from ._sites import LikelihoodSites
from .likelihoods import Gaussian, Heteroscedastic, Laplace, StudentT

_DOF = 4.0  # of Student's t
# Likelihoods of regression, given the variance of the noise.
LIKELIHOODS = {
    "gaussian": Gaussian,
    "student_t": lambda var: StudentT((var * (_DOF - 2) / _DOF) ** 0.5, _DOF),
    "laplace": lambda var: Laplace((var / 2) ** 0.5),
}
_ROUNDING_OF_Y = 1e-6  # variance, of the normalized y: the least variance of noise that varies
# Likelihoods whose noise varies, given its variance where its latent function is zero.
VARYING_NOISE = {"heteroscedastic": functools.partial(Heteroscedastic, rounding=_ROUNDING_OF_Y)}
# Draws of unit-variance noise.
STANDARD_NOISE = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "heteroscedastic": lambda rng, shape: rng.standard_normal(shape),
    "student_t": lambda rng, shape: rng.standard_t(_DOF, shape) * np.sqrt((_DOF - 2) / _DOF),
    "laplace": lambda rng, shape: rng.laplace(0, np.sqrt(0.5), shape),
}

# Noise of unit variance is a mixture of Gaussians, whose variance is a function of a number with a
# gamma distribution: an exponential variance for Laplace noise, and a precision for Student's t.
_MIXTURES = {
    "laplace": (1.0, lambda number: number),
    "student_t": (_DOF / 2, lambda number: (_DOF / 2 - 1) / number),
}
# Gauss-Laguerre quadrature over the number. Intervals of level .9 are right to 1e-5, of .99 to
# 1e-4, and of .999 to 1e-3, relative to their length.
_NODES = 128
_NEWTON_STEPS, _NEWTON_TOL = 50, 1e-10
_NOISE_NODES = 32  # of Gaussian logarithms of the noise


@functools.cache
def _gaussian_mixture(likelihood):
    """Return variances and probabilities (k,) of the Gaussians that noise is a mixture of."""
    shape, variance = _MIXTURES[likelihood]
    number, weights = roots_genlaguerre(_NODES, shape - 1)
    return variance(number), weights / weights.sum()


def half_widths(likelihood, variance, noise, level):
    """Return half the widths of symmetric predictive intervals of y, (n, t).

    ``variance`` (n, t) are latent variances, ``noise`` those of "gaussian", "student_t" or
    "laplace" noise, and ``level`` is the probability of the intervals.
    """
    z = ndtri((1 + level) / 2)
    if likelihood == "gaussian":
        return z * np.sqrt(variance + noise)
    variances, weights = _gaussian_mixture(likelihood)
    noise = np.broadcast_to(noise, variance.shape[1:])[:, None] * variances
    return _in_parts(lambda own: _quantiles(own, noise, weights, z), variance)


def _in_parts(function, *arrays):
    """Return a function of the rows of arrays (n, t), some thousand rows at a time."""
    starts = range(0, len(arrays[0]), CHUNK_ROWS)
    parts = ([array[i : i + CHUNK_ROWS] for array in arrays] for i in starts)
    return np.concatenate([function(*part) for part in parts])


def _quantiles(variance, noise, weights, z):
    """Return the quantiles at Phi(z) of sums of a Gaussian and a mixture of Gaussians.

    To the right of the center the distribution function is concave, so that Newton's method from
    the left approaches the quantile from the left.
    """
    std = np.sqrt(variance[..., None] + noise)
    quantile = z * std.min(-1)
    for _ in range(_NEWTON_STEPS):
        ratio = quantile[..., None] / std
        density = (np.exp(-0.5 * ratio**2) / std) @ weights / np.sqrt(2 * np.pi)
        step = (ndtr(z) - ndtr(ratio) @ weights) / density
        quantile = quantile + step
        if (np.abs(step) <= _NEWTON_TOL * quantile).all():
            break
    return quantile


def regression_sites(likelihood, variance, n_outputs=None):
    """Return a likelihood of regression, a key of `LIKELIHOODS` or `VARYING_NOISE`, as sites.

    The noise ``variance`` is that of each output, or one that ``n_outputs`` outputs share.
    """
    made = (LIKELIHOODS | VARYING_NOISE)[likelihood](variance)
    return LikelihoodSites(made, made.latents_per_output * (n_outputs or len(variance)))


class TargetDistribution(ABC):
    """Distribution of y given the latent functions of a fitted regression with t outputs.

    Latent functions of the outputs are in units of y. They come before those of the noise.
    """

    limits = -np.inf, np.inf  # of y
    mean_is_latent = True  # whether the mean of y is that of the latent function

    @abstractmethod
    def moments(self, mean, variance):
        """Return means and variances (n, t) of y, given those of the latent functions (n, c)."""

    @abstractmethod
    def interval(self, mean, variance, level):
        """Return the ends of central intervals of y, (n, t) each, of a given probability."""

    @abstractmethod
    def draw(self, latents, rng):
        """Return draws of y, (..., t), given the latent functions (..., c)."""

    @abstractmethod
    def explained(self, y, known, mean, weights):
        """Return the log density of y (n, t) that the variation of the latent means gains, nats.

        ``known`` are known variances of the noise, or zero.
        """


class AddedNoise(TargetDistribution):
    """Latent functions plus noise of a likelihood of `LIKELIHOODS`, of given variances (t,)."""

    def __init__(self, likelihood, variances):
        self._likelihood, self.variances = likelihood, variances

    def noise(self, mean, variance):
        """Return the variances of the noise, (t,) or (n, t), given moments of latent functions."""
        return self.variances

    def moments(self, mean, variance):
        t = len(self.variances)
        return mean[:, :t], variance[:, :t] + self.noise(mean, variance)

    def interval(self, mean, variance, level):
        reach = half_widths(self._likelihood, variance, self.variances, level)
        return mean - reach, mean + reach

    def draw(self, latents, rng):
        t = len(self.variances)
        noise = STANDARD_NOISE[self._likelihood](rng, (*latents.shape[:-1], t))
        return latents[..., :t] + noise * self._deviations(latents)

    def _deviations(self, latents):
        """Return standard deviations (..., t) of the noise, given the latent functions."""
        return np.sqrt(self.variances)

    def explained(self, y, known, mean, weights):
        squares = (mean - np.average(mean, axis=0, weights=weights)) ** 2
        return float((0.5 * weights @ (squares / (self.variances + known))).sum())


class VaryingNoise(AddedNoise):
    """Noise of a likelihood of `VARYING_NOISE`, of given variances where its function is zero."""

    def noise(self, mean, variance):
        t = len(self.variances)
        return self.variances * np.exp(mean[:, t:] + 0.5 * variance[:, t:])

    def interval(self, mean, variance, level):
        (f, g), (v, nu) = (np.split(part, 2, axis=1) for part in (mean, variance))
        nodes, weights = np.polynomial.hermite.hermgauss(_NOISE_NODES)
        z, weights = ndtri((1 + level) / 2), weights / weights.sum()

        def of_rows(v, g, nu):
            log_noise = g[..., None] + np.sqrt(2 * nu)[..., None] * nodes
            return _quantiles(v, self.variances[:, None] * np.exp(log_noise), weights, z)

        reach = _in_parts(of_rows, v, g, nu)
        return f - reach, f + reach

    def _deviations(self, latents):
        t = len(self.variances)
        return np.sqrt(self.variances) * np.exp(0.5 * latents[..., t:])


class FamilyOfTargets(TargetDistribution):
    """Distribution of one of the `FAMILIES`, whose mean is a function of the latent one.

    The dispersions are (t,).
    """

    mean_is_latent = False

    def __init__(self, likelihood, dispersions):
        self._name, self._family, self._dispersions = likelihood, FAMILIES[likelihood], dispersions
        self._likelihood = self._family.make(dispersions)
        self.limits = 0.0, self._family.link.largest

    def moments(self, mean, variance):
        found = self._likelihood.predict(*map(torch.from_numpy, (mean, variance)))
        return [part.detach().numpy() for part in found]

    def interval(self, mean, variance, level):
        given = self._name, self._dispersions, mean, variance
        return [family_quantiles(*given, p) for p in ((1 - level) / 2, (1 + level) / 2)]

    def draw(self, latents, rng):
        link = self._family.link
        means = link.inverse(np.clip(latents, -link.reach, link.reach))
        return self._family.draw(means, self._dispersions, rng)

    def explained(self, y, known, mean, weights):
        link = self._family.link
        average = np.average(link.inverse(mean), axis=0, weights=weights)
        y, mean, average = map(torch.as_tensor, (y, mean, average))
        log_prob = self._likelihood.log_prob
        gained = log_prob(y, mean) - log_prob(y, link.of(average))
        return float(weights @ gained.detach().numpy())


def target_distribution(likelihood, parameters):
    """Return the `TargetDistribution` of a likelihood with noise variances or dispersions (t,)."""
    if likelihood in FAMILIES:
        return FamilyOfTargets(likelihood, parameters)
    return (VaryingNoise if likelihood in VARYING_NOISE else AddedNoise)(likelihood, parameters)
