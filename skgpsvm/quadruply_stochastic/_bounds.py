"""Quadratic lower bounds of log likelihoods, under which every estimate stays unbiased."""

from abc import ABC, abstractmethod

import torch
from torch.nn.functional import logsigmoid, one_hot, softmax

from .._sites import LikelihoodSites
from ..likelihoods import Gaussian, Laplace, Logistic, Softmax

_LEAST_SQUARE = 1e-6  # of a logit
_SERIES = 1e-3  # squared logit below which tanh(x / 2) / 2x is its series
_LEAST_DISTANCE = 1e-3  # of an absolute deviation, in units of the Laplace scale


class QuadraticBound(ABC):
    r"""A bound :math:`\log p(y \mid f) \ge \kappa + \tau^\top f - \frac12 \omega^\top f^2`.

    Each row has an auxiliary number a latent. The bound holds for any, so that stale ones cost
    tightness alone; the best follow from the mean and the second moment of the latents, of which
    unbiased estimates will do, once averaged.

    Parameters
    ----------
    likelihood : Likelihood
    n_latents : int

    Notes
    -----
    Source: Jaakkola and Jordan (2000), Boehning (1992), in the place of Evans and Nair's.
    Departs from the source: its Theorem 3 is not a bound.
    """

    fixed = False  # whether precisions do not depend on the auxiliaries
    least_newest = 0.1  # weight of a row's newest auxiliary, which squares noise

    def __init__(self, likelihood, n_latents):
        self.likelihood, self.n_latents = likelihood, n_latents

    @abstractmethod
    def auxiliary(self, y, mean, square):
        """The best, (b, c), at latent means and second moments (b, c)."""

    @abstractmethod
    def sites(self, y, auxiliary):
        """Linear terms (b, c), precisions (b, c) and constants (b,)."""

    def loss(self, y, auxiliary, mean, square):
        """Negative expectation of the bound, nats, (b,)."""
        linear, precision, constant = self.sites(y, auxiliary)
        return (0.5 * precision * square - linear * mean).sum(1) - constant


class ExactGaussian(QuadraticBound):
    """Gaussian noise, which is quadratic."""

    fixed = True

    def auxiliary(self, y, mean, square):
        return torch.zeros_like(mean)

    def sites(self, y, auxiliary):
        precision = 1 / self.likelihood.noise_var.to(y).expand_as(y)
        log_norm = (precision / (2 * torch.pi)).log()
        return precision * y, precision, 0.5 * (log_norm - precision * y.square()).sum(1)


class LaplaceMixture(QuadraticBound):
    """Laplace noise as a mixture of Gaussians; auxiliaries are mean squared deviations."""

    def auxiliary(self, y, mean, square):
        return y.square() - 2 * y * mean + square

    def sites(self, y, auxiliary):
        scale = self.likelihood.scale.to(y)
        distance = auxiliary.clamp_min(0).sqrt().maximum(_LEAST_DISTANCE * scale)
        precision = 1 / (scale * distance)
        constant = -(2 * scale).log() - 0.5 * (precision * y.square() + distance / scale)
        return precision * y, precision, constant.sum(1)


class JaakkolaJordan(QuadraticBound):
    """Logistic function of one latent; auxiliaries are its second moments."""

    def auxiliary(self, y, mean, square):
        return square

    def sites(self, y, auxiliary):
        square = auxiliary.clamp_min(_LEAST_SQUARE)
        root = square.sqrt()
        near = square < _SERIES**2
        precision = torch.where(near, 0.25 - square / 48, (root / 2).tanh() / (2 * root))
        constant = logsigmoid(root) - 0.5 * root + 0.5 * precision * square
        sign = 2 * y.to(auxiliary)[:, None] - 1
        return 0.5 * sign, precision, constant[:, 0]


class Boehning(QuadraticBound):
    """Softmax by its greatest curvature; auxiliaries are means, whose noise steps average."""

    fixed = True
    least_newest = 1.0

    def auxiliary(self, y, mean, square):
        return mean

    def sites(self, y, auxiliary):
        slope = softmax(auxiliary, 1)
        linear = one_hot(y, self.n_latents).to(slope) - slope + 0.5 * auxiliary
        constant = (slope * auxiliary - 0.25 * auxiliary.square()).sum(1) - auxiliary.logsumexp(1)
        return linear, torch.full_like(linear, 0.5), constant


class ExpectedQuadratic(QuadraticBound):
    r"""The quadratic with the expected slope and curvature of a log likelihood, not a bound.

    Auxiliaries are means and variances. At them the expected quadratic equals the expected log
    likelihood, and so do its derivatives in mean and variance: a Gaussian that it leaves as it is
    maximizes the evidence lower bound of the likelihood itself. `JaakkolaJordan` takes a curvature
    of :math:`\tanh(\xi/2)/2\xi` where that of a sure row is :math:`p(1-p)`: of a class with a
    share of 0.002 forty times as much, which costs nats for each weight, and with few rows all that
    there is to gain.

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
    """The bound of a likelihood."""
    return _BOUNDS[type(likelihood)](likelihood, n_latents)
