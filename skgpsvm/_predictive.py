"""Predictive distributions: likelihoods by name, and class probabilities from latent moments."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import softmax

from ._calibration import argmax_scores, calibrated_scores, log_probability
from ._sites import LikelihoodSites
from .likelihoods import Gaussian, Laplace, Logistic, Probit, RobustMax, Softmax, StudentT

_DOF = 4.0  # of Student's t
# Likelihoods of regression, given the variance of the noise.
LIKELIHOODS = {
    "gaussian": Gaussian,
    "student_t": lambda var: StudentT((var * (_DOF - 2) / _DOF) ** 0.5, _DOF),
    "laplace": lambda var: Laplace((var / 2) ** 0.5),
}
# Draws of unit-variance noise.
STANDARD_NOISE = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "student_t": lambda rng, shape: rng.standard_t(_DOF, shape) * np.sqrt((_DOF - 2) / _DOF),
    "laplace": lambda rng, shape: rng.laplace(0, np.sqrt(0.5), shape),
}


def regression_sites(likelihood, variance, n_outputs=None):
    """Return a likelihood of regression as sites.

    Parameters
    ----------
    likelihood : str
        A key of `LIKELIHOODS`.
    variance : ndarray of shape (t,) or (1,)
        Noise variance of each output, or one for all outputs.
    n_outputs : int, optional
        Number of outputs, t, where ``variance`` is shared.
    """
    return LikelihoodSites(LIKELIHOODS[likelihood](variance), n_outputs or len(variance))


def classification_sites(likelihood, n_classes):
    """Return a likelihood of classification as sites.

    Two classes have one latent function, except with "robust_max".

    Parameters
    ----------
    likelihood : {"softmax", "probit", "robust_max"}
    n_classes : int
    """
    if likelihood == "robust_max":
        return LikelihoodSites(RobustMax(), n_classes)
    if n_classes == 2:
        return LikelihoodSites(Logistic() if likelihood == "softmax" else Probit(), 1)
    if likelihood == "probit":
        raise ValueError(
            f"likelihood='probit' is for two classes; y has {n_classes}. Use 'softmax'."
        )
    return LikelihoodSites(Softmax(), n_classes)


class Predictive(NamedTuple):
    """Class probabilities of some rows.

    Attributes
    ----------
    scores : Tensor of shape (b, n_classes), or (b, 1) for two classes
        Values of `decision_function`, except for ties by rounding.
    log_p, p : Tensor of shape (b, n_classes)
        Class probabilities and their logarithms, which are finite.
    """

    scores: torch.Tensor
    log_p: torch.Tensor
    p: torch.Tensor

    def ranked_scores(self):
        """Return scores that rank classes as the probabilities do, ties by rounding included."""
        scores, p = self.scores, self.p
        if scores.shape[1] == 1:
            sign = (p[:, 1:] - p[:, :1]).sign()
            return torch.where(scores.sign() == sign, scores, sign * torch.finfo(p.dtype).tiny)
        highest = scores.amax(1, keepdim=True)
        below = torch.minimum(scores, highest.nextafter(torch.full_like(highest, -torch.inf)))
        return torch.where(p == p.amax(1, keepdim=True), highest, below)


class ClassProbabilities(ABC):
    """A map from latent functions to class probabilities.

    Attributes
    ----------
    spread : float
        Factor that latent variances are multiplied by before they come here.
    """

    spread = 1.0

    @abstractmethod
    def of_moments(self, mean, var):
        """Return the `Predictive` at latent means and variances, tensors (b, c)."""

    @abstractmethod
    def of_latents(self, latents):
        """Return probabilities (..., n_classes) given values (..., c) of the latent functions."""


class LikelihoodProbabilities(ClassProbabilities):
    """Class probabilities of a likelihood.

    Parameters
    ----------
    likelihood : Likelihood
    n_classes : int
    """

    def __init__(self, likelihood, n_classes):
        self._likelihood, self._n_classes = likelihood, n_classes

    def of_moments(self, mean, var):
        p = self._likelihood.predict(mean, var)
        log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()
        scores = log_p[:, 1:] - log_p[:, :1] if p.shape[1] == 2 else log_p
        return Predictive(scores, log_p, p)

    def of_latents(self, latents):
        mean = torch.from_numpy(latents.reshape(-1, latents.shape[-1]))
        codes = torch.arange(self._n_classes)[:, None].expand(-1, len(mean))
        log_p = [self._likelihood.log_prob(code, mean) for code in codes]
        return torch.stack(log_p, -1).exp().numpy().reshape(*latents.shape[:-1], -1)


class CalibratedProbabilities(ClassProbabilities):
    """Class probabilities of a pseudo-likelihood: a softmax with a fitted scale and spread.

    Parameters
    ----------
    temperature, spread : float
        What latents, and their variances, are multiplied by.
    """

    def __init__(self, temperature, spread):
        self._temperature, self.spread = temperature, spread

    def of_moments(self, mean, var):
        return _of_scores(calibrated_scores(mean, var, self._temperature))

    def of_latents(self, latents):
        return softmax(self._temperature * _one_per_class(latents), axis=-1)


class ArgmaxProbabilities(ClassProbabilities):
    """Probabilities that each class's latent function is the largest."""

    def of_moments(self, mean, var):
        return _of_scores(argmax_scores(mean, var))

    def of_latents(self, latents):
        latents = _one_per_class(latents)
        return np.eye(latents.shape[-1])[latents.argmax(-1)]


def pseudo_likelihood_probabilities(probability, temperature, spread):
    """Return the `ClassProbabilities` of a Bayesian SVM by its parameter ``probability``."""
    if probability == "argmax":
        return ArgmaxProbabilities()
    return CalibratedProbabilities(temperature, spread)


def _of_scores(scores):
    log_p = log_probability(scores)
    return Predictive(scores, log_p, log_p.exp())


def _one_per_class(latents):
    """Return latents (..., n_classes); a single latent is that of the second of two classes."""
    if latents.shape[-1] == 1:
        return np.concatenate([np.zeros_like(latents), latents], -1)
    return latents
