"""Priors of hyper-parameters."""

import math

import torch

from ._starts import free_lengths, scaled_lengths

_MEDIAN_LENGTH = 2**0.5 * math.exp(2**0.5)  # over where they start
_NOISE_RATE = 2.0
_LENGTH_PRECISION = 1 / 3


class LengthPrior:
    """A prior of length scales, log-normal.

    It is so spread that the median changed by a factor of 6 is a standard deviation away.

    Parameters
    ----------
    median : Tensor of shape (k,)
        Theta with the median lengths.
    lengths : Tensor of shape (k,)
        1 where theta is the logarithm of a length, else 0.

    Notes
    -----
    Source: Hvarfner, Hellsten and Nardi (2024).
    """

    def __init__(self, median, lengths):
        self._median, self._precision = median, _LENGTH_PRECISION * lengths

    def log_density(self, theta):
        """Up to a constant; a scalar tensor."""
        return -0.5 * self._precision @ (theta - self._median).square()

    def slope(self, theta):
        """The derivative of the log density."""
        return -self._precision * (theta - self._median)


def few_rows_prior(kernel, rows):
    """A `LengthPrior` where there are fewer rows than features, else None.

    Parameters
    ----------
    kernel : Kernel
        As learning starts from it by default.
    rows : Rows
    """
    if rows.n_rows >= rows.X.shape[1]:
        return None
    parts = scaled_lengths(kernel, _MEDIAN_LENGTH), free_lengths(kernel)
    return LengthPrior(*(torch.as_tensor(part, device=rows.device) for part in parts))


class Penalised:
    """A bound plus the log density of a prior of its hyper-parameters, up to a constant.

    The noise's standard deviation has a gamma distribution of shape 2, see
    `log_prior_of_deviations`. `CollapsedLearning` can maximise the sum.

    Parameters
    ----------
    bound : CollapsedBound or Evidence
    prior : LengthPrior
    """

    def __init__(self, bound, prior):
        self.bound, self._prior = bound, prior
        self.kernel, self.weight = bound.kernel, bound.weight

    def _log_prior(self, theta, noise):
        """The log density and its derivatives in theta and the log noise variances."""
        densities, by_noise = log_prior_of_deviations(noise, _NOISE_RATE)
        log_prior = densities.sum() + self._prior.log_density(theta)
        return log_prior.item(), self._prior.slope(theta), by_noise

    def value(self, theta, Z, noise):
        """The sum, nats."""
        return self.bound.value(theta, Z, noise) + self._log_prior(theta, noise)[0]

    def value_and_gradient(self, theta, Z, noise):
        """The sum and its derivatives in theta, Z and the log noise variances (t,)."""
        value, by_theta, by_Z, by_noise = self.bound.value_and_gradient(theta, Z, noise)
        log_prior, *pulls = self._log_prior(theta, noise)
        return value + log_prior, by_theta + pulls[0], by_Z, by_noise + pulls[1]


def log_prior_of_deviations(log_variance, rate):
    """Log densities of gamma distributions of shape 2 at standard deviations, and slopes."""
    pull = rate * (0.5 * log_variance).exp()
    return 2 * math.log(rate) + 0.5 * log_variance - pull, 0.5 * (1 - pull)
