"""Class probabilities of one-vs-rest probit models."""

import torch

from .._predictive import ClassProbabilities, Predictive


class ProbitProbabilities(ClassProbabilities):
    """Class probabilities of one-vs-rest probit models, normalized and raised to a power."""

    def __init__(self, power):
        self._power = power

    def of_moments(self, mean, var):
        probits = mean / (1 + var).sqrt()
        log_p = log_proba(probits, self._power)
        return Predictive(probits, log_p, log_p.exp())

    def of_latents(self, latents):
        return log_proba(torch.from_numpy(latents), self._power).exp().numpy()


def log_proba(probits, power=1.0):
    """Return log class probabilities, (..., n_classes).

    ``probits`` are of the classes' models, (..., n_classes), or of class 1 of two, (..., 1).
    """
    probits = torch.cat([-probits, probits], -1) if probits.shape[-1] == 1 else probits
    return (power * torch.special.log_ndtr(probits)).log_softmax(-1)
