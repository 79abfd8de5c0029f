"""Quadratic lower bounds on log likelihoods, under which stochastic estimates stay unbiased."""

from abc import ABC, abstractmethod

import torch
from torch.nn.functional import logsigmoid, one_hot, softmax

from .._sites import LikelihoodSites
from ..likelihoods import Gaussian, Laplace, Logistic, Softmax
from ..likelihoods._regression import observations

_MIN_SQUARE = 1e-6  # squared logit
_SERIES = 1e-3  # logit below which tanh(x / 2) / 2x is computed by its series
_MIN_DISTANCE = 1e-3  # absolute deviation, in units of the Laplace scale


class QuadraticBound(ABC):
    r"""A bound :math:`\log p(y \mid f) \ge \kappa + \tau^\top f - \frac12 \omega^\top f^2`.

    Each row has auxiliary variables for its latents. The bound holds for any value of them, so
    stale values only loosen it. The optimal values depend on the mean and the second moment of the
    latents; unbiased estimates of these suffice, once averaged.

    ``fixed_precision`` says whether the precisions do not depend on the auxiliary variables, and
    ``min_auxiliary_weight`` is the smallest weight of a row's newest auxiliary variables in their
    running mean. Averaging matters most where an auxiliary variable squares the noise of an
    estimate.

    Source: Jaakkola and Jordan (2000) and Boehning (1992), instead of Evans and Nair.
    Departs from the source: Theorem 3 of Evans and Nair is not a bound.
    """

    fixed_precision = False
    min_auxiliary_weight = 0.1

    def __init__(self, likelihood, n_latents):
        self.likelihood, self.n_latents = likelihood, n_latents

    @abstractmethod
    def auxiliary(self, y, mean, square):
        """Return the optimal auxiliary variables at latent means and second moments (b, c).

        Their shape is (b, c), or (b, 2 c) for `ExpectedQuadratic`.
        """

    @abstractmethod
    def sites(self, y, auxiliary):
        """Return linear terms (b, c), precisions (b, c) and constants (b,) of the bound."""

    def loss(self, y, auxiliary, mean, square):
        """Return the negative expectation of the bound in nats, (b,)."""
        linear, precision, constant = self.sites(y, auxiliary)
        return (0.5 * precision * square - linear * mean).sum(1) - constant


class ExactGaussian(QuadraticBound):
    """Gaussian log likelihood, which is already quadratic."""

    fixed_precision = True

    def auxiliary(self, y, mean, square):
        return torch.zeros_like(mean)

    def sites(self, y, auxiliary):
        y, known = observations(y)
        noise = self.likelihood.noise_var.to(y)
        precision = 1 / (noise.expand_as(y) if known is None else noise + known)
        log_norm = (precision / (2 * torch.pi)).log()
        return precision * y, precision, 0.5 * (log_norm - precision * y.square()).sum(1)


class KnownNoise(ExactGaussian):
    """Gaussian log likelihood of pairs of an observation and the known variance of its noise.

    The learned noise is added, so that its changes are not a common factor of the precisions.
    """

    fixed_precision = False


class LaplaceMixture(QuadraticBound):
    """Laplace noise as a scale mixture of Gaussians.

    The auxiliary variables are expected squared residuals.
    """

    def auxiliary(self, y, mean, square):
        return y.square() - 2 * y * mean + square

    def sites(self, y, auxiliary):
        scale = self.likelihood.scale.to(y)
        distance = auxiliary.clamp_min(0).sqrt().maximum(_MIN_DISTANCE * scale)
        precision = 1 / (scale * distance)
        constant = -(2 * scale).log() - 0.5 * (precision * y.square() + distance / scale)
        return precision * y, precision, constant.sum(1)


class JaakkolaJordan(QuadraticBound):
    """Jaakkola and Jordan's bound on the logistic log likelihood of one latent.

    The auxiliary variables are second moments of the latent.
    """

    def auxiliary(self, y, mean, square):
        return square

    def sites(self, y, auxiliary):
        square = auxiliary.clamp_min(_MIN_SQUARE)
        root = square.sqrt()
        near = square < _SERIES**2
        precision = torch.where(near, 0.25 - square / 48, (root / 2).tanh() / (2 * root))
        constant = logsigmoid(root) - 0.5 * root + 0.5 * precision * square
        sign = 2 * y.to(auxiliary)[:, None] - 1
        return 0.5 * sign, precision, constant[:, 0]


class Boehning(QuadraticBound):
    """Boehning's bound on the softmax log likelihood, by its largest curvature.

    The auxiliary variables are latent means. Only the latest values are used, since the steps
    themselves average the noise of the estimates.
    """

    fixed_precision = True
    min_auxiliary_weight = 1.0

    def auxiliary(self, y, mean, square):
        return mean

    def sites(self, y, auxiliary):
        p = softmax(auxiliary, 1)
        linear = one_hot(y, self.n_latents).to(p) - p + 0.5 * auxiliary
        constant = (p * auxiliary - 0.25 * auxiliary.square()).sum(1) - auxiliary.logsumexp(1)
        return linear, torch.full_like(linear, 0.5), constant


class ExpectedQuadratic(QuadraticBound):
    r"""Quadratic with the expected gradient and curvature of a log likelihood; not a bound.

    The auxiliary variables are latent means and variances. There the expected quadratic equals the
    expected log likelihood, and so do its derivatives in mean and variance. A Gaussian that is a
    fixed point of the updates therefore maximizes the ELBO of the likelihood itself.

    `JaakkolaJordan` has a curvature of :math:`\tanh(\xi/2)/2\xi` where the expected curvature of a
    confidently classified row is :math:`p(1-p)`. For a class with a share of 0.002 it is forty
    times as large. That costs nats for each weight, and with few rows all that there is to gain.

    Notes
    -----
    Source: Opper and Archambeau (2009), eqs. 8 to 10.
    """

    def auxiliary(self, y, mean, square):
        return torch.cat([mean, (square - mean.square()).clamp_min(0)], 1)

    def sites(self, y, auxiliary):
        mean, var = auxiliary.chunk(2, 1)
        sites = LikelihoodSites(self.likelihood, self.n_latents).sites(y, mean, var)
        square = mean.square() + var
        constant = (0.5 * sites.precision * square - sites.linear * mean).sum(1) - sites.loss
        return sites.linear, sites.precision, constant


_BOUNDS = {
    Gaussian: ExactGaussian,
    Laplace: LaplaceMixture,
    Logistic: JaakkolaJordan,
    Softmax: Boehning,
}


def quadratic_bound(likelihood, n_latents):
    """Return the quadratic bound on a likelihood."""
    return _BOUNDS[type(likelihood)](likelihood, n_latents)
