"""Turn latent moments into class probabilities: calibrated, or by the paper's argmax rule."""

import math
from dataclasses import dataclass

import torch

from ._quadrature import argmax_probability

# Prior and bounds of the logarithms of temperature and spread, in this order.
_PRIOR_STD = 2.0
_BOUNDS = ((math.log(0.05), math.log(100.0)), (math.log(1e-3), math.log(100.0)))
_NEWTON_STEPS = 50
_MAX_HALVINGS = 20
_MIN_DECREASE = 1e-8  # of the loss, relative; predicted for a further step


def calibrated_scores(mean, var, temperature):
    r"""Return the logits :math:`\tau m / \sqrt{1 + \pi \tau^2 v / 8}`, (b, c).

    Their softmax approximates the average of softmax(tau f) over the latents. Source: MacKay
    (1992), the probit approximation of the logistic integral, for each latent.
    """
    return temperature * mean / (1 + math.pi / 8 * temperature**2 * var).sqrt()


def log_probability(logits):
    """Return log class probabilities; one logit means two classes, (b, 1) -> (b, 2)."""
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], -1)
    return torch.log_softmax(logits, -1)


def _log_losses(mean, var, targets, temperature, spread):
    log_p = log_probability(calibrated_scores(mean, spread * var, temperature))
    return -log_p.gather(1, targets[:, None])[:, 0]


@dataclass(frozen=True)
class Calibration:
    """Calibration of class probabilities: temperature and spread, with their precision.

    Attributes
    ----------
    log_scales : tuple of two floats
        Logarithms of the temperature and of the spread, which multiplies latent variances. Under
        a pseudo-likelihood, neither the scale of the latents nor that of their uncertainty
        determines how often they are right.
    precision : tuple of two tuples of two floats
        Curvature of the penalized loss at `log_scales`.
    loss, weight : float
        Weighted sum of the rows' negative log probabilities, in nats, and their total weight.
    """

    log_scales: tuple = (0.0, 0.0)
    precision: tuple = ((_PRIOR_STD**-2, 0.0), (0.0, _PRIOR_STD**-2))
    loss: float = 0.0
    weight: float = 0.0

    @property
    def temperature(self):
        """Return the factor of the latents."""
        return math.exp(self.log_scales[0])

    @property
    def spread(self):
        """Return the factor of the latent variances."""
        return math.exp(self.log_scales[1])

    def log_losses(self, mean, var, targets):
        """Return the negative log probabilities of rows (n,), in nats."""
        return _log_losses(mean, var, targets, self.temperature, self.spread)

    def updated(self, mean, var, targets, weights):
        """Return the calibration after more rows; this one summarizes all rows before them.

        Parameters
        ----------
        mean, var : Tensor of shape (n, c)
            Leave-one-out latent moments.
        targets, weights : Tensor of shape (n,)
        """
        prior, precision = mean.new_tensor(self.log_scales), mean.new_tensor(self.precision)

        def penalized(log_scales):
            parts = _loss_derivatives(mean, var, targets, weights, log_scales)
            pull = precision @ (log_scales - prior)
            penalty = 0.5 * pull @ (log_scales - prior), pull, precision
            return tuple(part + more for part, more in zip(parts, penalty, strict=True))

        best, hessian = _minimum(penalized, prior, mean.new_tensor(_BOUNDS))
        values, vectors = torch.linalg.eigh(hessian)
        return Calibration(
            tuple(best.tolist()),
            tuple(map(tuple, (vectors * values.clamp_min(0) @ vectors.T).tolist())),
            self.loss + (weights @ _log_losses(mean, var, targets, *best.exp())).item(),
            self.weight + weights.sum().item(),
        )


def _minimum(function, start, bounds):
    """Minimize a function within bounds by Newton steps; return the point and the Hessian there.

    Parameters
    ----------
    function : callable
        Tensor of shape (2,) to value, gradient and Hessian.
    start : Tensor of shape (2,)
    bounds : Tensor of shape (2, 2)

    Notes
    -----
    Negative eigenvalues of the Hessian change their sign, and steps are halved while the function
    grows. Coordinates at a bound that the gradient points out of are held.
    """
    point, (value, gradient, hessian) = start, function(start)
    for _ in range(_NEWTON_STEPS):
        outward = torch.where(gradient > 0, point <= bounds[:, 0], point >= bounds[:, 1])
        slope = gradient.masked_fill(outward, 0)
        held = outward[:, None] | outward
        values, vectors = torch.linalg.eigh(hessian.masked_fill(held, 0))
        step = vectors @ ((vectors.T @ slope) / values.abs().clamp_min(1e-10 + 1e-6 * abs(value)))
        if slope @ step <= _MIN_DECREASE * abs(value):
            break
        for _ in range(_MAX_HALVINGS):
            new_point = (point - step).clamp(*bounds.unbind(-1))
            found = function(new_point)
            if found[0] < value:
                break
            step = step / 2
        else:
            break
        point, (value, gradient, hessian) = new_point, found
    return point, hessian


def _loss_derivatives(mean, var, targets, weights, log_scales):
    r"""Return the weighted loss, and its gradient and Hessian in log temperature and log spread.

    With :math:`r = 1 / (1 + \pi\tau^2\phi v/8)`, a logit is :math:`s = \tau m\sqrt r`. Its
    derivatives in the logarithms of :math:`\tau` and :math:`\phi` are :math:`s r` and
    :math:`-s(1 - r)/2`, and those of r are :math:`-2r(1 - r)` and :math:`-r(1 - r)`.

    Returns
    -------
    loss, gradient, hessian : Tensor of shape (), (2,), (2, 2)
    """
    temperature, spread = log_scales.exp()
    r = 1 / (1 + math.pi / 8 * temperature**2 * spread * var)
    s = temperature * mean * r.sqrt()
    q = 1 - r
    first = torch.stack([s * r, -0.5 * s * q])
    second = torch.stack([s * r * (r - 2 * q), -1.5 * s * r * q, 0.5 * s * q * (0.5 * q - r)])
    log_p = log_probability(s)
    p, log_likelihood = log_p.exp(), log_p.gather(1, targets[:, None])[:, 0]
    error = p.scatter_add(1, targets[:, None], -torch.ones_like(p[:, :1]))
    if s.shape[1] == 1:  # the logit of the first of two classes is zero
        p, error = p[:, 1:], error[:, 1:]
    gradient = (weights[:, None] * error * first).sum((1, 2))
    means = (p * first).sum(2)
    weighted = weights[:, None] * p * first
    hessian = torch.einsum("anc,bnc->ab", weighted, first) - (weights * means) @ means.T
    of_logits = (weights[:, None] * error * second).sum((1, 2))
    hessian = hessian + torch.stack([of_logits[:2], of_logits[1:]])
    return -(weights @ log_likelihood), gradient, hessian


def argmax_scores(mean, var):
    """Return logits of the probability that a class has the largest latent: the paper's rule."""
    if mean.shape[1] == 1:
        ratio = mean / var.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
        return torch.special.log_ndtr(ratio) - torch.special.log_ndtr(-ratio)
    return argmax_probability(mean, var).clamp_min(torch.finfo(mean.dtype).tiny).log()
