"""Likelihoods for regression: Gaussian noise, constant or varying, Laplace and Student-t noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._quadrature import log_expect, safe_std
from .._typing import ArrayLike
from ._base import (
    IndependentColumns,
    Likelihood,
    capped_exp,
    capped_exp_derivative,
    log_expected_decay,
    log_parameter,
)

_MAX_LOG_PRECISION = 20.0  # of the noise of y of order one; with squares of 1e8 finite in float32


def observations(y):
    """Split targets (b, c) or (b, c, 2) of a regression into observations and known noise.

    The latter are variances (b, c), or None if there are none.
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

    def __init__(self, noise_var: ArrayLike = 1.0) -> None:
        super().__init__()
        self.log_noise_var = log_parameter("noise_var", noise_var)

    @property
    def noise_var(self) -> Tensor:
        """Return the noise variance, a tensor."""
        return self.log_noise_var.exp()

    def _total_var(self, known):
        """Return the variance of the noise, (c,) or, with a known part, (b, c)."""
        return self.noise_var if known is None else self.noise_var + known

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        y, known = observations(y)
        return _log_normal(y - f, self._total_var(known)).sum(-1)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        y, known = observations(y)
        expected = _log_normal(y - mean, self._total_var(known))
        return (expected - 0.5 * var / self._total_var(known)).sum(-1)

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        y, known = observations(y)
        return _log_normal(y - mean, var + self._total_var(known)).sum(-1)

    def predict(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return mean, var + self.noise_var


class Heteroscedastic(Likelihood):
    r"""Gaussian noise whose variance varies, ``y ~ N(f, noise_var * exp(g))``.

    Each output has two latent functions: f, the mean, and g, the log of the noise variance relative
    to `noise_var`. Outputs are independent.

    Parameters
    ----------
    noise_var : float or array-like of shape (t,)
        Noise variance of all outputs, or of each output, at g = 0, in squared units of y. The
        trainable parameter is `log_noise_var`.
    rounding : float, default=0.0
        Variance of rounding errors in y. The expectation of `expected_log_prob` is over these too.

    Raises
    ------
    ValueError
        If `noise_var` is not positive and finite.

    Notes
    -----
    With means :math:`m, \mu` and variances :math:`v, \nu` of f and g, and
    :math:`\beta = e^{-\mu + \nu / 2} / \sigma^2` the expected precision of the noise,

    .. math:: \mathrm E \log p = -\tfrac12 \bigl(\log 2 \pi \sigma^2 + \mu
        + ((y - m)^2 + v + \epsilon) \beta\bigr).

    It is concave in either function, given the other. Without the rounding errors of variance
    :math:`\epsilon`, the noise would vanish, and the bound be infinite, where the mean can meet
    every target. Above :math:`e^{20}` the precision continues as the tangent of the exponential.

    `log_marginal` is exact in f and has 32 nodes in g. `predict` gives the mean of y and its
    variance, :math:`v + \sigma^2 e^{\mu + \nu / 2}`; the distribution is a scale mixture of
    normal ones, with heavier tails.

    Source: Goldberg, Williams and Bishop (1998) for the model; Lazaro-Gredilla and Titsias (2011),
    Variational heteroscedastic Gaussian process regression, eq. 7, for the expectation.
    """

    latents_per_output = 2

    def __init__(self, noise_var: ArrayLike = 1.0, rounding: float = 0.0) -> None:
        super().__init__()
        self.log_noise_var, self.rounding = log_parameter("noise_var", noise_var), rounding

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        f, g = f.chunk(2, -1)
        log_var = g + self.log_noise_var
        return _log_normal_at(y - f, 0.0, log_var, capped_exp(-log_var, _MAX_LOG_PRECISION)).sum(-1)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        residual, v, log_var, nu = self._split(y, mean, var)
        precision = capped_exp(0.5 * nu - log_var, _MAX_LOG_PRECISION)
        return _log_normal_at(residual, v + self.rounding, log_var, precision).sum(-1)

    @torch.no_grad()
    def expected_terms(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        residual, v, log_var, nu = self._split(y, mean, var)
        exponent = 0.5 * nu - log_var
        precision = capped_exp(exponent, _MAX_LOG_PRECISION)
        value = _log_normal_at(residual, v + self.rounding, log_var, precision).sum(-1)
        squares = residual.square() + v + self.rounding
        curvature = 0.5 * squares * capped_exp_derivative(exponent, _MAX_LOG_PRECISION)
        first = torch.cat([residual * precision, curvature - 0.5], -1)
        return value, first, -torch.cat([precision, curvature], -1)

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        residual, v, log_var, nu = self._split(y, mean, var)

        def log_density(log_var):
            up, down = log_var.clamp_min(0), -log_var.clamp_max(0)
            noise = capped_exp(up) / capped_exp(down, _MAX_LOG_PRECISION)
            return _log_normal(residual, v + noise)

        return log_expect(log_density, log_var, nu).sum(-1)

    def predict(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        (f, _), (v, _) = mean.chunk(2, -1), var.chunk(2, -1)
        return f, v + self.noise_variance(mean, var)

    def noise_variance(self, mean: Tensor, var: Tensor) -> Tensor:
        """Return the expected noise variance.

        Parameters
        ----------
        mean, var : Tensor of shape (b, c)
            Moments of the latent values.

        Returns
        -------
        noise_variance : Tensor of shape (b, t)
        """
        (_, g), (_, nu) = mean.chunk(2, -1), var.chunk(2, -1)
        return (g + self.log_noise_var + 0.5 * nu).exp()

    def _split(self, y, mean, var):
        """Return residuals and variances of f, and means and variances of the log noise."""
        (f, g), (v, nu) = mean.chunk(2, -1), var.chunk(2, -1)
        return y - f, v, g + self.log_noise_var, nu


class Laplace(IndependentColumns):
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

    def __init__(self, scale: ArrayLike = 1.0) -> None:
        super().__init__()
        self.log_scale = log_parameter("scale", scale)

    @property
    def scale(self) -> Tensor:
        """Return the mean absolute deviation of the noise, a tensor."""
        return self.log_scale.exp()

    def _log_density(self, y, f):
        return -((y - f).abs() / self.scale + self._log_normalizer())

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        expected = _expected_abs((y - mean) / self.scale, var / self.scale**2)
        return -(expected + self._log_normalizer()).sum(-1)

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        residual, var = (y - mean) / self.scale, var / self.scale**2
        right = log_expected_decay(1.0, residual, var)
        left = log_expected_decay(1.0, -residual, var)
        return (torch.logaddexp(left, right) - self._log_normalizer()).sum(-1)

    def predict(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return mean, var + 2 * self.scale**2

    def _log_normalizer(self):
        """Return log(2 scale)."""
        return math.log(2.0) + self.log_scale


class StudentT(IndependentColumns):
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

    def __init__(self, scale: ArrayLike = 1.0, dof: float = 4.0) -> None:
        super().__init__()
        if not 2 < dof < math.inf:
            raise ValueError(f"dof must be above 2 and finite, got {dof!r}")
        self.log_scale, self.dof = log_parameter("scale", scale), dof

    def _log_density(self, y, f):
        half = 0.5 * (self.dof + 1)
        normalizer = math.lgamma(0.5 * self.dof) - math.lgamma(half)
        normalizer += 0.5 * math.log(self.dof * math.pi)
        spread = torch.log1p(((y - f) / self.log_scale.exp()).square() / self.dof)
        return -half * spread - normalizer - self.log_scale

    def predict(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return mean, var + self.dof / (self.dof - 2) * (2 * self.log_scale).exp()


def _log_normal(residual, var):
    """Return the log density of N(0, var) at the residual."""
    return -0.5 * (residual**2 / var + torch.log(2 * math.pi * var))


def _log_normal_at(residual, var, log_var, precision):
    """Return `_log_normal` given the logarithm of the variance and the precision.

    The residual is a Gaussian mean of variance ``var``, and the result its expectation.
    """
    return -0.5 * (math.log(2 * math.pi) + log_var + (residual.square() + var) * precision)


def _expected_abs(mean, var):
    """Return E|x| for x ~ N(mean, var)."""
    std = safe_std(var)
    z = mean / std
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(z / math.sqrt(2))
