"""Sites of single rows that match the moments of tilted distributions, for probit likelihoods."""

import math
from typing import NamedTuple

import torch

_TAIL = -50.0  # the sum of ratio and z cancels below this
_REACH, _N_NODES = 8, 64  # of the quadrature, in standard deviations
_MIN_VARIANCE = 1e-12


class SiteUpdate(NamedTuple):
    """One parallel update of expectation propagation, before damping; all tensors are (n,)."""

    # precision, shift: natural parameters of the new sites
    precision: torch.Tensor
    shift: torch.Tensor
    # Logarithms of the scales of the current sites: the rows' terms of the log evidence
    log_site: torch.Tensor
    # Derivatives of `log_site` in the residual variances
    grad_residual: torch.Tensor
    # cavity_grad, neg_hess: First and negative second derivatives of the logarithm of the expected
    # likelihood in the cavity's mean
    cavity_grad: torch.Tensor
    neg_hess: torch.Tensor
    # cavity_precision, along: Precision of the current site, and the cavity's mean less that of the
    # posterior, both divided by the ratio of the cavity's precision to the posterior's; the mean is
    # in units of the posterior's variance
    cavity_precision: torch.Tensor
    along: torch.Tensor
    var_ratio: torch.Tensor  # of posterior to cavity

    # `grad_mean` and `grad_var` are derivatives of `log_site` in the posterior mean and variance of
    # the row's feature combination. They vanish at a fixed point.

    @property
    def grad_mean(self):
        return self.cavity_grad / self.var_ratio + self.along

    @property
    def grad_var(self):
        by_squares = self.cavity_precision - self.neg_hess / self.var_ratio.square()
        return 0.5 * (self.grad_mean.square() + by_squares)

    @property
    def cavity_weight(self):
        """Weight of the covariance where the cavity of the weights is held.

        The derivative of the logarithm of the expected likelihood in the features a of the row is
        then ``cavity_grad * mean + cavity_weight * cov @ a``.
        """
        by_variance = self.cavity_grad.square() - self.neg_hess  # twice the derivative
        return self.cavity_grad * self.along + by_variance / self.var_ratio


def ep_updates(mean, var, residual, precision, shift, y, power=None):
    """Return the `SiteUpdate` of rows with labels y of -1 or 1; all tensors are (b,).

    The moments are posterior ones of the feature combinations h. Powers of the likelihoods are one
    by default.
    """
    var_ratio = 1 - precision * var  # of posterior to cavity
    along = (precision * mean - shift) / var_ratio
    cavity_mean = mean + var * along
    tilted = TiltedMoments(cavity_mean, var / var_ratio, residual, y, power)
    # Twice the log density of the cavity at its mean, without its normalization
    fit = precision * mean.square() - 2 * shift * mean + shift.square() * var
    return SiteUpdate(
        precision=tilted.precision,
        shift=tilted.shift,
        log_site=tilted.log_z + 0.5 * (fit / var_ratio - var_ratio.log()),
        grad_residual=tilted.grad_residual,
        cavity_grad=tilted.grad,
        neg_hess=tilted.neg_hess,
        cavity_precision=precision / var_ratio,
        along=along,
        var_ratio=var_ratio,
    )


class TiltedMoments:
    """Sites that match the moments of the tilted distributions; all tensors are (b,).

    A tilted distribution is the product of a cavity, given by ``mean`` and ``var``, and the power
    of a likelihood. ``probit`` is that of label 1 under the cavity, and ``log_z`` the log of the
    expected likelihood. ``grad`` and ``neg_hess`` are its first and negative second derivative in
    the cavity mean, and ``grad_residual`` that in the residual variance. ``precision`` and
    ``shift`` are the natural parameters of the sites.
    """

    def __init__(self, mean, var, residual, y, power):
        total = 1 + residual + var
        std = total.sqrt()
        z = y * (mean / std)
        self.log_z = torch.special.log_ndtr(z)
        ratio, neg_hess = probit_ratios(z)
        self.grad, self.neg_hess = y * ratio / std, neg_hess / total
        self.grad_residual = -0.5 * self.grad * mean / total
        self._rest = 1 - self.neg_hess * var  # of the cavity's variance in the tilted one
        if power is not None:
            self._raise_to(mean, var, residual, y, power)
        self.precision = self.neg_hess / self._rest
        self.shift = (self.grad + self.neg_hess * mean) / self._rest

    def _raise_to(self, mean, var, residual, y, power):
        """Replace the moments, where the power is below one, by those of a quadrature.

        Write l for the log likelihood to its power. Integration by parts under the tilted
        distribution turns the differences of its moments and the cavity's, which cancel where the
        cavity is narrow, into moments of l': (mean change) / var = E[l'], and (variance change) /
        var = Cov[h, l'].
        """
        var = var.clamp_min(_MIN_VARIANCE)
        nodes, terms = _power_terms(mean, var, residual, y, power)
        weights = terms.softmax(0)
        scale = (1 + residual).sqrt()
        ratio, _ = probit_ratios(y * nodes / scale)
        derivative = power * y * ratio / scale
        grad = (weights * derivative).sum(0)
        deviation = nodes - (weights * nodes).sum(0)
        raised = {
            "log_z": terms.logsumexp(0),
            "grad": grad,
            "neg_hess": -(weights * deviation * (derivative - grad)).sum(0) / var,
            "grad_residual": -0.5 * (weights * derivative * nodes).sum(0) / scale.square(),
            "_rest": (weights * deviation.square()).sum(0) / var,
        }
        for name, value in raised.items():
            setattr(self, name, torch.where(power < 1, value, getattr(self, name)))


def log_likelihood(mean, var, residual, y, power):
    """Return the log of the expected likelihood of labels, (b,), differentiable.

    The expectation is over h with the given moments. It is in closed form, and by quadrature where
    the power is below one. Parameters are as of `TiltedMoments`.
    """
    closed = torch.special.log_ndtr(y * mean / (1 + residual + var).sqrt())
    if power is None:
        return closed
    var = var.clamp_min(_MIN_VARIANCE)
    raised = _power_terms(mean, var, residual, y, power)[1].logsumexp(0)
    return torch.where(power < 1, raised, closed)


def _power_terms(mean, var, residual, y, power):
    """Return nodes (k, b) of h, and logs of terms whose sum is the expected power of a likelihood.

    The trapezoidal rule in t, with h the width of the likelihood's step times sinh(t). Its nodes
    are as close as that width at the step, and spread as widely as the Gaussian. The terms are
    differentiable, with the nodes held.
    """
    with torch.no_grad():
        scale, std = (1 + residual).sqrt(), var.sqrt()
        total = 1 + residual + var
        ratio, _ = probit_ratios(y * mean / total.sqrt())
        tilted = mean + var * y * ratio / total.sqrt()
        low = torch.asinh((torch.minimum(mean, tilted) - _REACH * std) / scale)
        high = torch.asinh((torch.maximum(mean, tilted) + _REACH * std) / scale)
        fraction = torch.linspace(0, 1, _N_NODES, dtype=mean.dtype, device=mean.device)[:, None]
        t = low + (high - low) * fraction
        nodes = scale * torch.sinh(t)
        widths = (scale * torch.cosh(t) * (high - low) / (_N_NODES - 1)).log()
    density = -0.5 * ((nodes - mean).square() / var + (2 * math.pi * var).log())
    label = torch.special.log_ndtr(y * nodes / (1 + residual).sqrt())
    return nodes, power * label + density + widths


def probit_ratios(z):
    r"""Return :math:`\varrho = \varphi / \Phi` and :math:`\varrho (\varrho + z)`, for any z.

    The ratio uses the scaled complementary error function, which does not underflow. In the tail,
    an asymptotic series replaces :math:`\varrho + z`, which cancels there.
    """
    ratio = math.sqrt(2 / math.pi) / torch.special.erfcx(z * -math.sqrt(0.5))
    u = (-z).clamp_min(-_TAIL).reciprocal()
    square = u.square()
    tail = u * (1 - square * (2 - square * (10 - square * (74 - square * 706))))
    return ratio, ratio * torch.where(z < _TAIL, tail, ratio + z)
