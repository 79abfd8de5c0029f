"""Priors of hyperparameters."""

import math
from functools import lru_cache

import torch
from scipy.optimize import brentq

from .initialization import free_constants, free_lengths, scaled_lengths

_MEDIAN_LENGTH = 2**0.5 * math.exp(2**0.5)  # median over initial length scale
_LENGTH_PRECISION = 1 / 3
# Rate of the prior of ratios of length scales, see `SignalPrior`. With EPClassifier on pure noise,
# 60 and 200 rows of 20 features, a rate of 1 chose features by chance in one draw of three: the log
# loss exceeded that of the class frequencies by .049 and .020. A rate of 2 did so in none, and had
# the lower log loss on four of five development sets (sonar, haberman, ionosphere, spectf, colic).
_RATIO_RATE = 2.0
# With several latent functions, which share their length scales, there is more evidence of each: on
# twelve development sets, the log loss of SVGPClassifier is .386 at a rate of 1 and .399 at 2.
_SHARED_RATIO_RATE = 1.0
_ROUNDING = 0.1  # of the peak of that prior
_PRECISION = 1e-14  # of its place
# Negligible squared slope of all features together, d tau^2 of `SlopePrior`; the second value goes
# with the prior of length scales, where rows are fewer than features. On 60 rows of 20 features of
# noise, the log density is below that of a constant by 0.001 nats per row at 0.05 and by 0.03 at
# 0.5. With one slope of 0.45, it is below that of ridge regression by 0.015 and 0.002. On 60 rows
# of 100 features, ten of which matter, R2 is 0 at 0.1 and 0.93 at 0.5.
_NO_SLOPES, _NO_SLOPES_OF_FEW_ROWS = 0.1, 0.5
# The log noise has a half-normal prior below its initial value. With a flat prior, the log density
# of one draw in four of Friedman's function (150 rows, 50 features) is -0.75.
_USUAL_NOISE, _NOISE_SPREAD = math.log(0.1), 1.5


class LengthPrior:
    """Log-normal prior of length scales; one standard deviation is a factor of about 6.

    ``median`` (k,) is theta at the median length scales, and ``lengths`` (k,) is 1 where theta is
    the logarithm of a length scale, else 0. Source: Hvarfner, Hellsten and Nardi (2024).
    """

    def __init__(self, median, lengths):
        self._median, self._precision = median, _LENGTH_PRECISION * lengths

    def log_density(self, theta):
        """Return the log density up to a constant, a scalar tensor."""
        return -0.5 * self._precision @ (theta - self._median).square()

    def gradient(self, theta):
        """Return the derivatives of the log density, (k,)."""
        return -self._precision * (theta - self._median)


class SlopePrior:
    r"""Sparsity prior of the slopes of a squared exponential.

    With the variance v and the length scales :math:`\ell_j` in standard deviations of the features,
    the log density is :math:`-\sum_j \log(1 + v / (\ell_j^2 \tau^2))` up to a constant. A relevant
    feature costs a few nats, and an irrelevant one nothing.

    The kernel is the default one: a constant times a squared exponential, plus fixed terms.
    ``scale`` (d,) are the standard deviations of the features, and ``no_slopes`` is the negligible
    squared slope of all features together, :math:`d \tau^2`.

    Departs from Eriksson and Jankowiak (2021): their half-Cauchy prior is on inverse length scales,
    which a large variance can make arbitrarily small.
    """

    def __init__(self, kernel, scale, device, no_slopes=_NO_SLOPES):
        self._lengths = torch.as_tensor(free_lengths(kernel) > 0, device=device)
        self._variance = torch.as_tensor(free_constants(kernel), device=device)
        unit = torch.as_tensor(scale, dtype=torch.float64, device=device)
        self._unit = 2 * unit.log() - math.log(no_slopes / len(unit))

    def _log_squares(self, theta):
        """Return the logarithms of squared slopes over the negligible one, (d,)."""
        return self._variance @ theta - 2 * theta[self._lengths] + self._unit

    def log_density(self, theta):
        return -torch.nn.functional.softplus(self._log_squares(theta)).sum()

    def gradient(self, theta):
        share = torch.sigmoid(self._log_squares(theta))
        gradient = -share.sum() * self._variance
        gradient[self._lengths] += 2 * share
        return gradient


class JointPrior:
    """Product of independent priors, each of a slice of theta."""

    def __init__(self, priors, slices):
        self._parts = list(zip(priors, slices, strict=True))

    def log_density(self, theta):
        return sum(prior.log_density(theta[at]) for prior, at in self._parts)

    def gradient(self, theta):
        total = torch.zeros_like(theta)
        for prior, at in self._parts:
            total[at] += prior.gradient(theta[at])
        return total


def default_prior(kernel, rows, scale):
    """Return the prior of the hyperparameters of a regression's default kernel.

    It is a `SlopePrior`, with a `LengthPrior` where there are fewer rows than features. ``scale``
    are the standard deviations of the features.
    """
    if rows.n_rows >= rows.X.shape[1]:
        return SlopePrior(kernel, scale, rows.device)
    parts = scaled_lengths(kernel, _MEDIAN_LENGTH), free_lengths(kernel)
    length_prior = LengthPrior(*(torch.as_tensor(part, device=rows.device) for part in parts))
    slope_prior = SlopePrior(kernel, scale, rows.device, _NO_SLOPES_OF_FEW_ROWS)
    return JointPrior([slope_prior, length_prior], [slice(None)] * 2)


class SignalPrior:
    r"""Prior of amplitudes and length scales that favors a small, smooth function.

    The standard deviation s of each term has the density :math:`(1 + s)^{-2}`, with its mode at
    zero and a heavy tail, so that :math:`s / (1 + s)` is uniform. The length scales are
    :math:`\ell_j = r_j e^{c + \delta_j}` with their medians :math:`r_j`, a normal c of variance 3
    and a Laplace :math:`\delta_j` of rate 2 with a rounded peak. The rate is 1 for several latent
    functions. Most features thus have similar length scales, and a common change costs no more for
    many features than for few. The common factor is set to its most likely value,

    .. math:: \log p(\theta) = \max_c \Bigl[-\tfrac16 c^2 - 2 \sum_j
        \bigl(\sqrt{(\log(\ell_j / r_j) - c)^2 + \epsilon^2} - \epsilon\bigr)\Bigr]
        - 2 \sum_k \log(1 + s_k),

    whose derivatives are those with c held at the maximum, where the derivative in c is zero.

    The kernel is the initial one of the default: length scales of `smooth_kernel`, and constants
    that are variances of the function.
    """

    def __init__(self, kernel, device, n_latents=1):
        self._rate = _RATIO_RATE if n_latents == 1 else _SHARED_RATIO_RATE
        self._terms = torch.as_tensor(free_constants(kernel) > 0, device=device)
        self._lengths = torch.as_tensor(free_lengths(kernel) > 0, device=device)
        self._median = torch.as_tensor(scaled_lengths(kernel, _MEDIAN_LENGTH), device=device)

    def smoothest(self, slope=1.0):
        """Return theta at the median length scales, with some of the slopes of the initial kernel.

        ``slope`` is the share.

        The functions are then nearly linear. An ascent from there finds the few relevant features
        among many; from shorter length scales it would shrink the amplitude to nothing. On 60 rows
        of 100 features, two of them relevant, the log density ends at -34 instead of -43.
        """
        theta = self._median.clone()
        if self._lengths.any() and self._terms.any():
            theta[self._terms.int().argmax()] += 2 * math.log(slope * _MEDIAN_LENGTH)
        return theta

    def log_density(self, theta):
        deviations = (0.5 * theta[self._terms]).exp()
        c, log_ratios = self._split(theta)
        rounding = log_ratios.new_tensor(_ROUNDING)
        penalty = self._rate * (torch.hypot(log_ratios, rounding) - _ROUNDING).sum()
        return -2 * deviations.log1p().sum() - penalty - 0.5 * _LENGTH_PRECISION * c**2

    def gradient(self, theta):
        deviations = (0.5 * theta[self._terms]).exp()
        gradient = torch.zeros_like(theta)
        gradient[self._terms] = -deviations / (1 + deviations)
        log_ratios = self._split(theta)[1]
        rounded = torch.hypot(log_ratios, log_ratios.new_tensor(_ROUNDING))
        gradient[self._lengths] = -self._rate * log_ratios / rounded
        return gradient

    def _split(self, theta):
        """Return the log of the most likely common factor, a float, and of the ratios, (d,)."""
        logs = (theta - self._median)[self._lengths]
        c = _common_factor(self._rate, tuple(logs.tolist()))
        return c, logs - c


@lru_cache(maxsize=8)  # the density and its gradient need the same one
def _common_factor(rate, logs):
    """Return the most likely log factor of the `SignalPrior`, given logarithms of length scales."""

    def slope(c):
        signs = sum((log - c) / math.hypot(log - c, _ROUNDING) for log in logs)
        return rate * signs - _LENGTH_PRECISION * c

    return brentq(slope, min(0.0, *logs), max(0.0, *logs), xtol=_PRECISION) if logs else 0.0


class Penalized:
    """Bound plus the log density of a prior of its hyperparameters, up to a constant.

    The log noise has a half-normal prior below a tenth of the variance of y and a flat one above:
    few rows of many features can be interpolated, as if there were no noise. `CollapsedLearning`
    can maximize the sum.
    """

    def __init__(self, bound, prior):
        self.bound, self._prior = bound, prior
        self.kernel, self.weight = bound.kernel, bound.weight

    def _log_prior(self, theta, noise):
        """Return the log density of the prior and its derivatives in theta and the log noise."""
        below = ((noise - _USUAL_NOISE) / _NOISE_SPREAD).clamp_max(0.0)
        log_prior = self._prior.log_density(theta) - 0.5 * below.square().sum()
        return log_prior.item(), self._prior.gradient(theta), -below / _NOISE_SPREAD

    def value(self, theta, Z, noise):
        return self.bound.value(theta, Z, noise) + self._log_prior(theta, noise)[0]

    def value_and_gradient(self, theta, Z, noise):
        """Return the sum and its derivatives in theta, Z and the log noise variances (t,)."""
        value, by_theta, by_Z, by_noise = self.bound.value_and_gradient(theta, Z, noise)
        log_prior, prior_by_theta, prior_by_noise = self._log_prior(theta, noise)
        return value + log_prior, by_theta + prior_by_theta, by_Z, by_noise + prior_by_noise


def log_prior_of_deviations(log_variance, rate):
    """Return log densities of gamma distributions of shape 2 at standard deviations.

    The second and third result are their derivatives in ``log_variance``, the logarithm of the
    square, and minus the derivatives of these.
    """
    scaled = rate * (0.5 * log_variance).exp()
    log_density = 2 * math.log(rate) + 0.5 * log_variance - scaled
    return log_density, 0.5 * (1 - scaled), 0.25 * scaled
