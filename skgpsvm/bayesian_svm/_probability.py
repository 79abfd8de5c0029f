"""Class probabilities of latent moments: calibrated by leave-one-out, or the paper's argmax."""

import math

import torch

from .._quadrature import argmax_probability

_LOG_TEMPERATURES = torch.linspace(math.log(0.05), math.log(30.0), 65, dtype=torch.float64)


def calibrated_scores(mean, var, temperature):
    r"""Logits :math:`\tau m / \sqrt{1 + \pi \tau^2 v / 8}`, (b, c).

    Their softmax approximates the average of softmax(tau f) over the latents. Source: MacKay
    (1992), the probit approximation of the logistic integral, for each latent.
    """
    return temperature * mean / (1 + math.pi / 8 * temperature**2 * var).sqrt()


def log_probability(logits):
    """Logarithms of class probabilities; one logit stands for two classes, (b, 1) -> (b, 2)."""
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], -1)
    return torch.log_softmax(logits, -1)


def calibration_curve(mean, var, targets, weights):
    """Weighted sum of the negative log probabilities at every temperature of the grid, (t,)."""
    losses = [
        -log_probability(calibrated_scores(mean, var, t)).gather(1, targets[:, None])[:, 0]
        for t in _LOG_TEMPERATURES.exp().tolist()
    ]
    return torch.stack(losses) @ weights


def best_temperature(curve):
    """The minimum of a calibration curve between its grid points, and the loss there."""
    i = int(curve.argmin())
    log_t, loss = _LOG_TEMPERATURES[i].item(), curve[i].item()
    if 0 < i < len(curve) - 1:
        left, right = curve[i - 1].item() - loss, curve[i + 1].item() - loss
        if left + right > 0:
            step = (_LOG_TEMPERATURES[1] - _LOG_TEMPERATURES[0]).item()
            log_t += 0.5 * step * (left - right) / (left + right)
    return math.exp(log_t), loss


def argmax_scores(mean, var):
    """Logits of the probabilities that a class has the largest latent; the paper's rule."""
    if mean.shape[1] == 1:
        ratio = mean / var.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
        return torch.special.log_ndtr(ratio) - torch.special.log_ndtr(-ratio)
    return argmax_probability(mean, var).clamp_min(torch.finfo(mean.dtype).tiny).log()
