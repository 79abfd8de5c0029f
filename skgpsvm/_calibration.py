"""Turn latent moments into class probabilities: calibrated, or by the paper's argmax rule."""

import math
from dataclasses import dataclass

import torch

from ._optim import by_autograd, lbfgs
from ._quadrature import argmax_probability

# Prior and bounds of the logarithms of temperature and spread, in this order.
_PRIOR_STD = 2.0
_BOUNDS = ((math.log(0.05), math.log(100.0)), (math.log(1e-3), math.log(100.0)))


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
        prior = mean.new_tensor(self.log_scales), mean.new_tensor(self.precision)

        def loss(log_scales):
            return weights @ _log_losses(mean, var, targets, *log_scales.exp())

        def objective(log_scales):
            shift = log_scales - prior[0]
            return -loss(log_scales) - 0.5 * shift @ prior[1] @ shift

        best, _ = lbfgs(by_autograd(objective), prior[0], mean.new_tensor(_BOUNDS), 50)
        hessian = torch.autograd.functional.hessian(objective, best)
        values, vectors = torch.linalg.eigh(-hessian)
        precision = vectors * values.clamp_min(0) @ vectors.T
        return Calibration(
            tuple(best.tolist()),
            tuple(map(tuple, precision.tolist())),
            self.loss + loss(best).item(),
            self.weight + weights.sum().item(),
        )


def argmax_scores(mean, var):
    """Return logits of the probability that a class has the largest latent: the paper's rule."""
    if mean.shape[1] == 1:
        ratio = mean / var.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
        return torch.special.log_ndtr(ratio) - torch.special.log_ndtr(-ratio)
    return argmax_probability(mean, var).clamp_min(torch.finfo(mean.dtype).tiny).log()
