"""Priors of hyperparameters."""

import math

import torch

from .initialization import free_constants, free_lengths, scaled_lengths

_MEDIAN_LENGTH = 2**0.5 * math.exp(2**0.5)  # over where they start
_LENGTH_PRECISION = 1 / 3
# Rate of the prior of ratios of length scales, see `SignalPrior`. With EPClassifier on pure noise,
# 60 and 200 rows of 20 features, a rate of 1 chose features by chance in one draw of three: the
# log-loss was .049 and .020 above the class frequencies'. A rate of 2 did so in none, and on four
# of five development sets (sonar, haberman, ionosphere, spectf, colic) had the lower log-loss.
_RATIO_RATE = 2.0
_ROUNDING = 0.1  # of its peak
_HALVINGS = 50
# Squared slopes that count as none, of all features together; the second with the prior of lengths
# where rows are fewer. Of 60 rows of 20 features of noise the log density is 0.001 nats per row
# below a constant's at 0.05 and 0.03 at 0.5; of one slope of 0.45, 0.015 and 0.002 below ridge
# regression's. Of 60 rows of 100 features, ten of which matter, R2 is 0 at 0.1 and 0.93 at 0.5.
_NO_SLOPES, _NO_SLOPES_OF_FEW_ROWS = 0.1, 0.5
# Below the start of the noise its logarithm has half a normal distribution. Of Friedman's function,
# 150 rows of 50 features, the log density of one draw in four is -0.75 with a flat prior.
_USUAL_NOISE, _NOISE_SPREAD = math.log(0.1), 1.5


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

    def gradient(self, theta):
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


class SlopePrior:
    r"""A prior of the slopes of a squared exponential, under which few features matter.

    With the variance v and the length scale :math:`\ell_j` of a feature, in its standard
    deviations, the log density is :math:`-\sum_j \log(1 + v / (\ell_j^2 \tau^2))` up to a constant.
    A feature that matters costs a few nats, and one that does not costs nothing.

    Parameters
    ----------
    kernel : Kernel
        The default one, a constant times a squared exponential, plus terms that are fixed.
    scale : ndarray of shape (d,)
        Standard deviations of the features.
    device : torch.device
    no_slopes : float
        Squared slopes that count as none, of all features together, :math:`d \tau^2`.

    Notes
    -----
    Departs from Eriksson and Jankowiak (2021): their half-Cauchy prior has inverse length scales,
    which a large variance makes as small as it likes.
    """

    def __init__(self, kernel, scale, device, no_slopes=_NO_SLOPES):
        self._lengths = torch.as_tensor(free_lengths(kernel) > 0, device=device)
        self._variance = torch.as_tensor(free_constants(kernel), device=device)
        unit = torch.as_tensor(scale, dtype=torch.float64, device=device)
        self._unit = 2 * unit.log() - math.log(no_slopes / len(unit))

    def _log_squares(self, theta):
        """Logarithms of the squared slopes over those that count as none, (d,)."""
        return self._variance @ theta - 2 * theta[self._lengths] + self._unit

    def log_density(self, theta):
        """Up to a constant; a scalar tensor."""
        return -torch.nn.functional.softplus(self._log_squares(theta)).sum()

    def gradient(self, theta):
        """The derivative of the log density."""
        pull = torch.sigmoid(self._log_squares(theta))
        gradient = -pull.sum() * self._variance
        gradient[self._lengths] += 2 * pull
        return gradient


class SumOfPriors:
    """Independent priors of theta."""

    def __init__(self, *priors):
        self._priors = priors

    def log_density(self, theta):
        """Up to a constant; a scalar tensor."""
        return sum(prior.log_density(theta) for prior in self._priors)

    def gradient(self, theta):
        """The derivative of the log density."""
        return sum(prior.gradient(theta) for prior in self._priors)


def default_prior(kernel, rows, scale, sparse=True):
    """The prior of the default kernel: of slopes, and of length scales where rows are few.

    Parameters
    ----------
    kernel : Kernel
        As learning starts from it by default.
    rows : Rows
    scale : ndarray of shape (d,)
        Standard deviations of the features.
    sparse : bool
        Whether slopes have their prior where rows are few too: learning that starts with it drops
        all of many features before any is seen to matter.
    """
    of_lengths = few_rows_prior(kernel, rows)
    if of_lengths is None:
        return SlopePrior(kernel, scale, rows.device)
    if not sparse:
        return of_lengths
    of_slopes = SlopePrior(kernel, scale, rows.device, _NO_SLOPES_OF_FEW_ROWS)
    return SumOfPriors(of_slopes, of_lengths)


class SignalPrior:
    r"""A prior of amplitudes and length scales that expects little: a small, smooth function.

    The standard deviation s of each term has the density :math:`(1 + s)^{-2}`, so that the share
    :math:`s / (1 + s)` is uniform: mode at zero, heavy tail. The length scales are
    :math:`\ell_j = r_j e^{c + \delta_j}` with :math:`r_j` their medians, c normal of variance 3 and
    :math:`\delta_j` Laplace of rate 2, its peak rounded: features are alike, but for a few, and a
    change of all of them costs no more where there are many. The common factor is the most likely,

    .. math:: \log p(\theta) = \max_c \Bigl[-\tfrac16 c^2 - 2 \sum_j
        \bigl(\sqrt{(\log(\ell_j / r_j) - c)^2 + \epsilon^2} - \epsilon\bigr)\Bigr]
        - 2 \sum_k \log(1 + s_k),

    whose derivatives are those at the maximum with c held, as its own derivative is zero there.

    Parameters
    ----------
    kernel : Kernel
        As learning starts from it by default: length scales of `smooth_kernel` and amplitudes that
        are variances of the function.
    device : torch.device
    """

    def __init__(self, kernel, device):
        free = [h for h in kernel.hyperparameters if not h.fixed]
        terms = [h.name.endswith("constant_value") for h in free for _ in range(h.n_elements)]
        self._terms = torch.tensor(terms, device=device)
        self._lengths = torch.as_tensor(free_lengths(kernel) > 0, device=device)
        self._median = torch.as_tensor(scaled_lengths(kernel, _MEDIAN_LENGTH), device=device)

    def smoothest(self):
        """Theta with the median length scales, where the function has the slopes of the start.

        Nearly linear functions: from there an ascent finds the few features that matter among many,
        where from shorter lengths it would give up the amplitude. Of 60 rows, 100 features and two
        that matter, the log density then ends at -34 in place of -43.
        """
        theta = self._median.clone()
        if self._lengths.any() and self._terms.any():
            theta[self._terms.int().argmax()] += 2 * math.log(_MEDIAN_LENGTH)
        return theta

    def log_density(self, theta):
        """Up to a constant; a scalar tensor."""
        deviations = (0.5 * theta[self._terms]).exp()
        c, apart = self._split(theta)
        penalty = _RATIO_RATE * (torch.hypot(apart, apart.new_tensor(_ROUNDING)) - _ROUNDING).sum()
        return -2 * deviations.log1p().sum() - penalty - 0.5 * _LENGTH_PRECISION * c**2

    def gradient(self, theta):
        """The derivative of the log density."""
        deviations = (0.5 * theta[self._terms]).exp()
        gradient = torch.zeros_like(theta)
        gradient[self._terms] = -deviations / (1 + deviations)
        gradient[self._lengths] = -_ratio_slopes(self._split(theta)[1])
        return gradient

    def _split(self, theta):
        """The most likely logarithm of the common factor, a float, and those of the ratios (d,)."""
        logs = (theta - self._median)[self._lengths]
        values = logs.cpu()
        if not len(values):
            return 0.0, logs
        low, high = min(values.min().item(), 0.0), max(values.max().item(), 0.0)
        for _ in range(_HALVINGS):
            c = (low + high) / 2
            rises = _ratio_slopes(values - c).sum().item() > _LENGTH_PRECISION * c
            low, high = (c, high) if rises else (low, c)
        return c, logs - c


def _ratio_slopes(apart):
    """Derivatives of minus the log density of ratios of length scales in their logarithms."""
    return _RATIO_RATE * apart / torch.hypot(apart, apart.new_tensor(_ROUNDING))


class Penalized:
    """A bound plus the log density of a prior of its hyperparameters, up to a constant.

    The logarithm of the noise has half a normal distribution below that of a tenth of the variance
    of y, and any value above it is as likely: few rows of many features can be interpolated, as if
    there were no noise. `CollapsedLearning` can maximize the sum.

    Parameters
    ----------
    bound : CollapsedBound or Evidence
    prior : LengthPrior, SlopePrior or SumOfPriors
    """

    def __init__(self, bound, prior):
        self.bound, self._prior = bound, prior
        self.kernel, self.weight = bound.kernel, bound.weight

    def _log_prior(self, theta, noise):
        """The log density and its derivatives in theta and the log noise variances."""
        below = ((noise - _USUAL_NOISE) / _NOISE_SPREAD).clamp_max(0.0)
        log_prior = self._prior.log_density(theta) - 0.5 * below.square().sum()
        return log_prior.item(), self._prior.gradient(theta), -below / _NOISE_SPREAD

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
