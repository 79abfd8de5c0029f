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
    # Probits of label 1 under the cavity distributions: the leave-one-out predictions
    cavity_probit: torch.Tensor
    # grad_mean, grad_var, grad_residual: Derivatives of `log_site` in the posterior mean and
    # variance of the row's feature combination, and in its residual variance. The first two vanish
    # at a fixed point.
    grad_mean: torch.Tensor
    grad_var: torch.Tensor
    grad_residual: torch.Tensor
    # With the cavity of the weights held, ``cavity_grad * mean + cavity_weight * cov @ a`` is the
    # derivative of the log of the expected likelihood in the features a of the row.
    cavity_grad: torch.Tensor
    cavity_weight: torch.Tensor


def ep_updates(mean, var, residual, precision, shift, y, power=None):
    """Return the `SiteUpdate` of rows with labels y of -1 or 1; all tensors are (b,).

    The moments are posterior ones of the feature combinations h. Powers of the likelihoods are one
    by default.
    """
    var_ratio = 1 - precision * var  # of posterior to cavity
    cavity = (mean - shift * var) / var_ratio, var / var_ratio
    tilted = TiltedMoments(*cavity, residual, y, power)
    fit = shift.square() * var - 2 * shift * mean + precision * mean.square()
    # The cavity's mean less that of the posterior, in units of the latter's variance
    along = (precision * mean - shift) / var_ratio
    grad_mean = tilted.grad / var_ratio + along
    by_variance = tilted.grad.square() - tilted.neg_hess  # twice the derivative
    return SiteUpdate(
        precision=tilted.precision,
        shift=tilted.shift,
        log_site=tilted.log_z - 0.5 * var_ratio.log() + 0.5 * fit / var_ratio,
        cavity_probit=tilted.probit,
        grad_mean=grad_mean,
        grad_var=0.5
        * (grad_mean.square() + precision / var_ratio - tilted.neg_hess / var_ratio.square()),
        grad_residual=tilted.grad_residual,
        cavity_grad=tilted.grad,
        cavity_weight=tilted.grad * along + by_variance / var_ratio,
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
        self.probit = mean / total.sqrt()
        self.log_z = torch.special.log_ndtr(y * self.probit)
        ratio, neg_hess = probit_ratios(y * self.probit)
        self.grad, self.neg_hess = y * ratio / total.sqrt(), neg_hess / total
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
    ratio = math.sqrt(2 / math.pi) / torch.special.erfcx(-z / math.sqrt(2))
    x = (-z).clamp_min(-_TAIL)
    tail = 1 / x - 2 / x**3 + 10 / x**5 - 74 / x**7 + 706 / x**9
    return ratio, ratio * torch.where(z < _TAIL, tail, ratio + z)
