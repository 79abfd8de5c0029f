"""Likelihoods for regression: Gaussian, Laplace and Student-t noise."""

import functools
import math

import torch

from .._quadrature import expect, log_expect, safe_std
from ._base import Likelihood, log_expected_decay


def observations(y):
    """Split the targets of a regression.

    Parameters
    ----------
    y : Tensor of shape (b, c) or (b, c, 2)
        Observations, or pairs of an observation and the known variance of its noise.

    Returns
    -------
    observed : Tensor of shape (b, c)
    known : Tensor of shape (b, c) or None
        Known variances of the noise; None if there are none.
    """
    return y.unbind(-1) if y.ndim == 3 else (y, None)


class Gaussian(Likelihood):
    """Gaussian noise, ``y ~ N(f, noise_var)``, independent over columns.

    An observation may come with a known variance of its noise, see `observations`. It is added to
    ``noise_var``, which is then the variance of what else scatters.

    Parameters
    ----------
    noise_var : float or array-like of shape (c,)
        Noise variance of all columns, or of each column, in squared units of y. The trainable
        parameter is `log_noise_var`.

    Raises
    ------
    ValueError
        If `noise_var` is not positive and finite.
    """

    def __init__(self, noise_var=1.0):
        super().__init__()
        self.log_noise_var = _log_parameter("noise_var", noise_var)

    @property
    def noise_var(self):
        """Return the noise variance, a tensor."""
        return self.log_noise_var.exp()

    def _total_var(self, known):
        """Return the variance of the noise, (c,) or, with a known part, (b, c)."""
        return self.noise_var if known is None else self.noise_var + known

    def log_prob(self, y, f):
        y, known = observations(y)
        return _log_normal(y - f, self._total_var(known)).sum(-1)

    def expected_log_prob(self, y, mean, var):
        y, known = observations(y)
        expected = _log_normal(y - mean, self._total_var(known))
        return (expected - 0.5 * var / self._total_var(known)).sum(-1)

    def log_marginal(self, y, mean, var):
        y, known = observations(y)
        return _log_normal(y - mean, var + self._total_var(known)).sum(-1)

    def predict(self, mean, var):
        return mean, var + self.noise_var


class Laplace(Likelihood):
    """Laplace noise, density ``exp(-|y - f| / scale) / (2 scale)``, independent over columns.

    Parameters
    ----------
    scale : float or array-like of shape (c,)
        Mean absolute deviation of the noise, in units of y; its variance is ``2 scale**2``. The
        trainable parameter is `log_scale`.

    Raises
    ------
    ValueError
        If `scale` is not positive and finite.

    Notes
    -----
    Source: the mean of a folded normal distribution, Leone et al. (1961).
    """

    def __init__(self, scale=1.0):
        super().__init__()
        self.log_scale = _log_parameter("scale", scale)

    @property
    def scale(self):
        """Return the mean absolute deviation of the noise, a tensor."""
        return self.log_scale.exp()

    step = 0.5

    def log_prob(self, y, f):
        return -((y - f).abs() / self.scale + self._log_normalizer()).sum(-1)

    def expected_log_prob(self, y, mean, var):
        expected = _expected_abs((y - mean) / self.scale, var / self.scale**2)
        return -(expected + self._log_normalizer()).sum(-1)

    def log_marginal(self, y, mean, var):
        residual, var = (y - mean) / self.scale, var / self.scale**2
        right = log_expected_decay(1.0, residual, var)
        left = log_expected_decay(1.0, -residual, var)
        return (torch.logaddexp(left, right) - self._log_normalizer()).sum(-1)

    def predict(self, mean, var):
        return mean, var + 2 * self.scale**2

    def _log_normalizer(self):
        """Return log(2 scale)."""
        return math.log(2.0) + self.log_scale


class StudentT(Likelihood):
    """Student's t noise about f, independent over columns: Gaussian noise with outliers.

    Parameters
    ----------
    scale : float or array-like of shape (c,)
        Scale of the noise, in units of y. The trainable parameter is `log_scale`.
    dof : float
        Degrees of freedom, above 2, so that the noise has a variance.

    Raises
    ------
    ValueError
        If `scale` is not positive and finite, or `dof` is not above 2.
    """

    step = 0.5

    def __init__(self, scale=1.0, dof=4.0):
        super().__init__()
        if not 2 < dof < math.inf:
            raise ValueError(f"dof must be above 2 and finite, got {dof!r}")
        self.log_scale, self.dof = _log_parameter("scale", scale), dof

    def log_prob(self, y, f):
        return self._log_density(y, f).sum(-1)

    def _log_density(self, y, f):
        half = 0.5 * (self.dof + 1)
        normalizer = math.lgamma(0.5 * self.dof) - math.lgamma(half)
        normalizer += 0.5 * math.log(self.dof * math.pi)
        spread = torch.log1p(((y - f) / self.log_scale.exp()).square() / self.dof)
        return -half * spread - normalizer - self.log_scale

    def expected_log_prob(self, y, mean, var):
        return expect(functools.partial(self._log_density, y), mean, var).sum(-1)

    def log_marginal(self, y, mean, var):
        return log_expect(functools.partial(self._log_density, y), mean, var).sum(-1)

    def predict(self, mean, var):
        return mean, var + self.dof / (self.dof - 2) * (2 * self.log_scale).exp()


def _log_parameter(name, value):
    """Return the trainable logarithm of positive numbers."""
    values = torch.as_tensor(value, dtype=torch.float64)
    if not ((values > 0) & (values < math.inf)).all():
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return torch.nn.Parameter(values.log())


def _log_normal(residual, var):
    """Return the log density of N(0, var) at the residual."""
    return -0.5 * (residual**2 / var + torch.log(2 * math.pi * var))


def _expected_abs(mean, var):
    """Return E|x| for x ~ N(mean, var)."""
    std = safe_std(var)
    z = mean / std
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(z / math.sqrt(2))
