"""`Likelihood`, the abstract base, and the Gaussian integrals that several likelihoods share."""

from __future__ import annotations

import abc
import copy
import functools
import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.special import erfcx

from .._quadrature import expect, log_expect, normal_cdf, safe_std

_MAX_LOG = 50.0  # of `capped_exp`, far beyond the counts that float64 can distinguish


class Likelihood(torch.nn.Module, abc.ABC):
    """Distribution of the observations of a row given its c latent function values.

    All methods take one row per entry of the axis ``b`` and never mix rows.

    * ``f``, ``mean``, ``var`` have shape (..., b, c): latent values, or the means and variances of
      independent Gaussian latent values. Leading axes, for example of samples, broadcast.
    * ``y`` holds int64 codes 0, ..., n_classes - 1 of shape (b,) for classifiers, and floats of
      shape (b, c), one for each latent function, for regressors. Codes are not checked. `Gaussian`
      also takes (b, c, 2): pairs of an observation and the known variance of its noise.
    * A likelihood with several latent functions for each of t outputs has t columns of y, and the
      first t latent functions are the first ones of the outputs, and so on: c = k t.

    Parameters, if any, are kept as logarithms in float64. The defaults of `expected_log_prob` and
    `log_marginal` are Gauss–Hermite quadrature with 32 nodes, or a grid of 20 for each of several
    latent functions. They hold for a single output; closed forms override them.

    Attributes
    ----------
    latents_per_output : int
        Number of latent functions for each output, k.
    step : float
        Step size, at most 1, for which natural-gradient steps on all rows converge.
    relative : bool
        Whether `log_prob` depends on the differences of latent values only.
    redescending : bool
        Whether the derivatives of `log_prob` vanish where it is low, as for a wrong label.
    coupled : bool
        Whether `log_prob` has mixed second derivatives, of which ``expected_hessian(mean, var)``
        returns expectations (b, c, c) with all others, the same for all y.
    """

    latents_per_output = 1
    step = 1.0
    relative = redescending = coupled = False

    # Tensors that `at` has put in place of trainable parameters, by name
    _replaced: Mapping[str, Tensor] = MappingProxyType({})

    def at(self, parameters: Tensor) -> Likelihood:
        """Return the same likelihood with other parameters.

        Parameters
        ----------
        parameters : Tensor of shape (k,)
            Logarithms, in the order of ``self.parameters()``; differentiable.

        Returns
        -------
        likelihood : Likelihood
            It shares everything else with this one; without parameters, it is this one.
        """
        before = dict(self.named_parameters()) or self._replaced
        if not before:
            return self
        other = copy.copy(self)
        other._parameters = {}
        values = parameters.split([old.numel() for old in before.values()])
        pairs = zip(before.items(), values, strict=True)
        other._replaced = {name: value.view_as(old) for (name, old), value in pairs}
        for name, value in other._replaced.items():
            setattr(other, name, value)
        return other

    @abc.abstractmethod
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return the log density of observations given latent values.

        Parameters
        ----------
        y : Tensor of shape (b,) or (b, t)
            Class codes or targets.
        f : Tensor of shape (..., b, c)
            Latent values.

        Returns
        -------
        log_prob : Tensor of shape (..., b)
            In nats, summed over the columns of `y`.
        """

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Return the expectation of `log_prob` over independent Gaussian latent values.

        Parameters
        ----------
        y : Tensor of shape (b,) or (b, t)
            Class codes or targets.
        mean, var : Tensor of shape (..., b, c)
            Moments of the latent values; variances may be zero.

        Returns
        -------
        expected_log_prob : Tensor of shape (..., b)
            In nats.
        """
        return expect(functools.partial(self.log_prob, y), mean, var, *self._rule())

    def _rule(self):
        """Return the number of quadrature nodes in each dimension, and of dimensions."""
        k = self.latents_per_output
        return 32 if k == 1 else 20, k

    @torch.enable_grad()
    def expected_terms(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `expected_log_prob` and the expected derivatives of `log_prob`.

        The default takes them by automatic differentiation; closed forms override it.

        Parameters
        ----------
        y : Tensor of shape (b,) or (b, t)
            Class codes or targets.
        mean, var : Tensor of shape (b, c)
            Moments of the latent values.

        Returns
        -------
        expected_log_prob : Tensor of shape (b,)
            In nats.
        first, second : Tensor of shape (b, c)
            Expected first and second derivatives in each latent value. They are the derivatives of
            `expected_log_prob` in the mean, and twice those in the variance.
        """
        mean, var = mean.detach().requires_grad_(), var.detach().requires_grad_()
        value = self.expected_log_prob(y, mean, var)
        first, half = torch.autograd.grad(value.sum(), (mean, var))
        return value.detach(), first, 2 * half

    def expected_derivatives(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected derivatives of `log_prob`: the last two of `expected_terms`.

        Parameters
        ----------
        y, mean, var : Tensor
            As of `expected_terms`.

        Returns
        -------
        first, second : Tensor of shape (b, c)
        """
        return self.expected_terms(y, mean, var)[1:]

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Return the log expected density ``log E[exp(log_prob(y, f))]``, f ~ N(mean, var).

        Parameters
        ----------
        y : Tensor of shape (b,) or (b, t)
            Class codes or targets.
        mean, var : Tensor of shape (..., b, c)
            Moments of the latent values; variances may be zero.

        Returns
        -------
        log_marginal : Tensor of shape (..., b)
            In nats.
        """
        return log_expect(functools.partial(self.log_prob, y), mean, var, *self._rule())

    @abc.abstractmethod
    def predict(self, mean: Tensor, var: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the predictive distribution of a new observation.

        Parameters
        ----------
        mean, var : Tensor of shape (b, c)
            Moments of the latent values; variances may be zero.

        Returns
        -------
        prediction : Tensor of shape (b, n_classes) or tuple of two tensors of shape (b, t)
            Class probabilities, whose rows sum to one; or the mean and the variance of the
            observation, noise included.
        """


class IndependentColumns(Likelihood):
    """Base of likelihoods of independent columns, each with one latent; quadrature by default."""

    step = 0.5

    @abc.abstractmethod
    def _log_density(self, y, f):
        """Return the log density of each observation (b, c)."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self._log_density(y, f).sum(-1)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return expect(functools.partial(self._log_density, y), mean, var).sum(-1)

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        y, mean, var = torch.broadcast_tensors(y, mean, var)
        return log_expect(functools.partial(self._log_density, y), mean, var).sum(-1)


def log_parameter(name, value):
    """Return the trainable logarithm of positive numbers."""
    values = torch.as_tensor(value, dtype=torch.float64)
    if not ((values > 0) & (values < math.inf)).all():
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return torch.nn.Parameter(values.log())


def capped_exp(f, max_log=_MAX_LOG):
    """Return exp(f), continued by its tangent where f exceeds ``max_log``."""
    beyond = (f - max_log).clamp_min(0)
    return torch.exp(f - beyond) * (1 + beyond)


def capped_exp_derivative(f, max_log=_MAX_LOG):
    return f.clamp_max(max_log).exp()


def log_ndtr(x):
    """Return log Phi(x); torch's own version has wrong derivatives in the far tail."""
    scaled = log_scaled_ndtr(x)
    return torch.where(x < 0, scaled - 0.5 * x.clamp_max(0) ** 2, scaled)


def log_scaled_ndtr(x):
    """Return log Phi(x) + x^2 / 2 where x is negative, and log Phi(x) elsewhere."""
    tail = _log_upper_tail(-x.clamp_max(0))
    return torch.where(x < 0, tail, torch.log1p(-normal_cdf(-x.clamp_min(0))))


def log_inverse_mills(x):
    """Return log(phi(x) / Phi(x)); squares that almost cancel are not subtracted."""
    square = torch.where(x < 0, 0.0, 0.5 * x.square())
    return -0.5 * math.log(2 * math.pi) - square - log_scaled_ndtr(x)


def _log_upper_tail(z):
    """Return log(Phi(-z) exp(z^2 / 2)) for z >= 0."""
    return torch.log(0.5 * erfcx(z / math.sqrt(2)))


def log_expected_decay(rate, mean, var):
    """Return log E[exp(-rate x) 1{x > 0}] for x ~ N(mean, var)."""
    std = safe_std(var)
    z = rate * std - mean / std
    # rate^2 var / 2 - rate mean + log Phi(-z), whose terms cancel where z > 0.
    tail = _log_upper_tail(z.clamp_min(0)) - 0.5 * (mean / std) ** 2
    body = 0.5 * (rate * std) ** 2 - rate * mean + log_ndtr(-z.clamp_max(0))
    return torch.where(z > 0, tail, body)
