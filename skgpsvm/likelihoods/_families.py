"""Likelihoods with a link function: counts and amounts with log link, proportions with logit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._quadrature import expect, gauss_hermite, safe_std
from .._typing import ArrayLike
from ._base import (
    IndependentColumns,
    capped_exp,
    capped_exp_derivative,
    log_parameter,
)

_NEWTON_STEPS = 6  # reach the mode to rounding from anywhere


class Poisson(IndependentColumns):
    r"""Counts with log link, ``y ~ Poisson(exp(f))``, independent over columns.

    Any y >= 0 is allowed; the gamma function extends the factorial. To model counts over exposures,
    pass the rates ``y = count / exposure`` with sample weights ``exposure``.

    Notes
    -----
    Up to terms that do not depend on f, a weight of w on the rate y is the log probability of the
    count w y with mean w exp(f).

    Above :math:`e^{50}` the rate, and its expectation in `expected_log_prob`, continue as the
    tangent of the exponential: far from the data, values and derivatives stay finite, and the log
    density stays concave. `predict` gives the moments of the log-normal rate itself, which are
    infinite where they overflow.

    `log_marginal` has its 32 nodes about the mode of the posterior of f, with the spread that its
    curvature implies, and so holds for large counts too; at a variance of 4 it errs by 3e-6 nats.

    Source: McCullagh and Nelder (1989), chapter 6.
    """

    def _log_density(self, y, f):
        return _log_mass(y, f)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return _expected_log_mass(y, mean, var).sum(-1)

    def expected_terms(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        expected = capped_exp_derivative(mean + 0.5 * var)
        return self.expected_log_prob(y, mean, var), y - expected, -expected

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return _log_marginal_mass(y, mean, var).sum(-1)

    def predict(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        rate, rate_var, _ = _moments(mean, var)
        return rate, rate + rate_var


class _Dispersed(IndependentColumns):
    """Base of likelihoods with a learned dispersion, independent over columns."""

    def __init__(self, dispersion: ArrayLike = 1.0) -> None:
        super().__init__()
        self.log_dispersion = log_parameter("dispersion", dispersion)


class Gamma(_Dispersed):
    r"""Positive amounts with log link and a gamma distribution, independent over columns.

    Their mean is exp(f), and their variance ``dispersion * exp(2 f)``: the coefficient of variation
    is constant.

    Parameters
    ----------
    dispersion : float or array-like of shape (c,)
        Inverse of the shape parameter. The trainable parameter is `log_dispersion`.

    Raises
    ------
    ValueError
        If `dispersion` is not positive and finite.

    Notes
    -----
    With the shape k and :math:`g = \log(k y) - f`, the log density :math:`k g - e^g - \log
    \Gamma(k) - \log y` is that of a Poisson count k of log mean g, but for a constant, so that
    expectations have the closed forms of `Poisson`.

    Source: McCullagh and Nelder (1989), chapter 8.
    """

    def _log_density(self, y, f):
        shape, g, constant = self._as_count(y, f)
        return _log_mass(shape, g) + constant

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        shape, g, constant = self._as_count(y, mean)
        return (_expected_log_mass(shape, g, var) + constant).sum(-1)

    def expected_terms(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape, g, _ = self._as_count(y, mean)
        expected = capped_exp_derivative(g + 0.5 * var)
        return self.expected_log_prob(y, mean, var), expected - shape, -expected

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        shape, g, constant = self._as_count(y, mean)
        return (_log_marginal_mass(shape, g, var) + constant).sum(-1)

    def predict(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        rate, rate_var, square = _moments(mean, var)
        return rate, self.log_dispersion.exp() * square + rate_var

    def _as_count(self, y, f):
        """Return count, log mean, and the log density less that of the count."""
        shape = torch.exp(-self.log_dispersion).to(f)
        return shape, shape.log() + y.log() - f, shape.log() - y.log()


class NegativeBinomial(_Dispersed):
    r"""Counts with log link whose variance exceeds their mean, independent over columns.

    Their mean is exp(f), and their variance ``exp(f) + dispersion * exp(2 f)``: they are Poisson
    counts whose rates have a gamma distribution. Any y >= 0 is allowed.

    Parameters
    ----------
    dispersion : float or array-like of shape (c,)
        Inverse of the number of failures. The trainable parameter is `log_dispersion`.

    Raises
    ------
    ValueError
        If `dispersion` is not positive and finite.

    Notes
    -----
    With the number of failures r = 1 / dispersion and :math:`h = f - \log r`,

    .. math:: \log p = \log \binom{y + r - 1}{y} - (y + r) \log(1 + e^{-h}) - r h,

    which is concave in f. Expectations have 32 nodes, spread as the latent values. Those of
    `log_marginal` err where large counts of little dispersion determine f much better than that.

    Source: Hilbe (2011), Negative Binomial Regression, chapter 8.
    """

    def _log_density(self, y, f):
        h, r = f + self.log_dispersion, self._failures
        log_choices = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        return log_choices + (y + r) * F.logsigmoid(h) - r * h

    def expected_terms(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def derivatives(h):
            rest = (-h).sigmoid()
            return torch.stack([rest, rest * h.sigmoid()], 1)

        r = self._failures
        rest, curvature = expect(derivatives, mean + self.log_dispersion, var)
        value = self.expected_log_prob(y, mean, var)
        return value, (y + r) * rest - r, -(y + r) * curvature

    def predict(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        rate, rate_var, square = _moments(mean, var)
        return rate, rate + self.log_dispersion.exp() * square + rate_var

    @property
    def _failures(self):
        return torch.exp(-self.log_dispersion)


class Beta(_Dispersed):
    r"""Proportions with logit link and a beta distribution, independent over columns.

    Their mean is :math:`\mu = 1/(1+e^{-f})`, and their variance
    ``dispersion / (1 + dispersion) * mu * (1 - mu)``. Any 0 < y < 1 is allowed.

    Parameters
    ----------
    dispersion : float or array-like of shape (c,)
        Inverse of the precision. The trainable parameter is `log_dispersion`.

    Raises
    ------
    ValueError
        If `dispersion` is not positive and finite.

    Notes
    -----
    With the precision s = 1 / dispersion,

    .. math:: \log p = \log\frac{\Gamma(s)}{\Gamma(s\mu)\Gamma(s(1-\mu))}
        + (s\mu-1) \log y + (s(1-\mu)-1) \log(1-y).

    Expectations have 32 nodes, spread as the latent values.

    Source: Ferrari and Cribari-Neto (2004), Beta regression for modelling rates and proportions.
    """

    def _log_density(self, y, f):
        log_a, log_b = (F.logsigmoid(each) - self.log_dispersion for each in (f, -f))
        a, b = log_a.exp(), log_b.exp()
        # Gamma(a) = Gamma(1 + a) / a, also where a is too small for a float.
        constant = log_a - torch.lgamma(1 + a) + log_b - torch.lgamma(1 + b)
        constant = constant + torch.lgamma(torch.exp(-self.log_dispersion))
        return constant + (a - 1) * y.log() + (b - 1) * torch.log1p(-y)

    def predict(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        def moments(f):
            p = f.sigmoid()
            return torch.stack([p, p * (-f).sigmoid()], 1)

        mu, spread = expect(moments, mean, var)
        dispersion = self.log_dispersion.exp()
        # Var y = E Var(y | f) + Var mu, and E mu^2 = mu - spread, where spread = E mu (1 - mu).
        return mu, mu * (1 - mu) - spread / (1 + dispersion)


def _log_mass(y, f):
    return y * f - capped_exp(f) - torch.lgamma(y + 1)


def _expected_log_mass(y, mean, var):
    return y * mean - capped_exp(mean + 0.5 * var) - torch.lgamma(y + 1)


def _log_marginal_mass(y, mean, var):
    """Return the log expected probability of Poisson counts, by quadrature about the mode."""
    y, mean, var = torch.broadcast_tensors(y, mean, var)
    std = safe_std(var)
    z, w = (part.reshape(-1, *[1] * mean.ndim) for part in gauss_hermite(32, mean))
    mode, spread = _posterior_mode(y, mean.detach(), std.detach())
    t = mode + spread * z
    log_ratio = 0.5 * (z.square() - t.square()) + spread.log()
    terms = _log_mass(y, mean + std * t) + log_ratio + w.log()
    return torch.logsumexp(terms, 0)


def _posterior_mode(y, mean, std):
    """Return the mode of t given y, and its Laplace standard deviation.

    Here f = mean + std t, with t ~ N(0, 1).

    At the mode u = log(var * rate) solves u + exp(u) = mean + var y + log(var). Newton's method
    starts to the right of the root of this convex increasing function.
    """
    log_var = 2 * std.log()
    target = mean + std.square() * y + log_var
    u = torch.where(target > 1, target.clamp_min(1).log(), target)
    for _ in range(_NEWTON_STEPS):
        u = u - (u + u.exp() - target) / (1 + u.exp())
    f = u - log_var
    mode = torch.where(std < 1, std * (y - capped_exp_derivative(f)), (f - mean) / std)
    return mode, (1 + u.exp()).rsqrt()


def _moments(mean, var):
    """Return mean and variance of the log-normal rate exp(f), and the mean of its square."""
    square = torch.exp(2 * (mean + var))
    # exp(2 mean + var) (exp(var) - 1), without 0 times infinity.
    rate_var = torch.exp(2 * (mean + var) + torch.log(-torch.expm1(-var)))
    return torch.exp(mean + 0.5 * var), rate_var, square
