"""Class probabilities, and the errors of rows that were predicted without them."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtri, softmax

from ._calibration import argmax_scores, calibrated_scores, log_probability, tempered
from ._data import evenly_spaced
from ._inference.leave_one_out import MAX_LEFT_OUT
from ._sites import LikelihoodSites
from .likelihoods import Logistic, Ordinal, Probit, RobustMax, Softmax
from .likelihoods._regression import observations

_ROUNDING = 1e-9  # of sums of weights


class LeftOut(NamedTuple):
    """Errors of rows that were predicted without them, for conformal intervals and sets."""

    # (k, t): Of a regression, absolute residuals relative to the predictive standard deviation. Of
    # a classification, log losses, with t = 1.
    scores: np.ndarray
    weights: np.ndarray  # (k,): weights of the rows

    @classmethod
    def of(cls, likelihood, targets, mean, var, weights):
        """Return the residuals of a regression, relative to predictive standard deviations.

        ``mean`` and ``var`` are moments (k, t) of the latent functions without the row itself. The
        targets are those of `observations`.
        """
        y, known = observations(targets.double())
        mean, total = likelihood.predict(mean, var)
        total = total if known is None else total + known
        scores = (y - mean).abs() / total.sqrt()
        return cls(scores.cpu().numpy(), weights.double().cpu().numpy())

    @classmethod
    def of_classes(cls, log_p, targets, weights):
        """Return the log losses of a classification, by log probabilities without the row."""
        losses = -log_p.gather(1, targets[:, None])
        return cls(losses.double().cpu().numpy(), weights.double().cpu().numpy())

    def joined(self, other):
        """Return the errors of both, those of 3,000 evenly spaced rows if there are more.

        Their weights are rescaled to the sum of all.
        """
        scores, weights = map(np.concatenate, zip(self, other, strict=True))
        spaced = evenly_spaced(len(weights), MAX_LEFT_OUT).numpy()
        kept = weights[spaced]
        return LeftOut(scores[spaced], kept * (weights.sum() / kept.sum()))

    def quantiles(self, level):
        """Return the scores (t,) that a new row exceeds with probability 1 - level at most.

        A new row has a score of its own, with the weight 1, which counts as infinite.
        """
        total = self.weights.sum()
        if level * (total + 1) > total:
            raise ValueError(
                f"level={level!r} needs rows of weight {level / (1 - level):.4g} for "
                f"method='conformal'; there are {total:.4g}. Lower level, or use "
                "method='predictive'."
            )
        order = np.argsort(self.scores, axis=0)
        reached = np.cumsum(self.weights[order], axis=0) >= level * (total + 1) - _ROUNDING
        return np.take_along_axis(self.scores, order, 0)[reached.argmax(0), range(order.shape[1])]


class Summary(NamedTuple):
    """ELBO of a fit, and what it predicts of rows without them, if that is known.

    Of a regressor, these are `LeftOut` residuals. Of a classifier, they are the latent moments,
    targets and weights that `leave_one_out` returns.
    """

    elbo: float
    left_out: LeftOut | tuple | None = None


def classification_sites(likelihood, n_classes, totals=None, order=None):
    """Return a likelihood of classification as sites.

    Two classes have one latent function, except with "robust_max", and ordered ones have one too.
    Their thresholds are those of the ``totals`` (n_classes,) of the classes' weights, see
    `at_frequencies`. The ``order`` of the classes is that of `Softmax`.
    """
    if likelihood == "robust_max":
        return LikelihoodSites(RobustMax(), n_classes)
    if likelihood == "ordinal":
        return LikelihoodSites(Ordinal(_thresholds(totals)), 1)
    if n_classes == 2:
        return LikelihoodSites(Logistic() if likelihood == "softmax" else Probit(), 1)
    if likelihood == "probit":
        raise ValueError(
            f"likelihood='probit' is for two classes; y has {n_classes}. Use 'softmax'."
        )
    return LikelihoodSites(Softmax(order), n_classes)


def at_frequencies(sites, rows, variance=0.0):
    """Return sites of ordered classes whose prior probabilities are the class frequencies.

    The latent function has the mean zero and a given variance. Half a row is added to each class.
    """
    totals = rows.class_counts(sites.likelihood.n_classes).cpu().numpy()
    thresholds, weights = _thresholds(totals, variance), sites.likelihood.weights
    return LikelihoodSites(Ordinal(thresholds, weights).to(rows.device), sites.n_latents)


def _thresholds(totals, variance=0.0):
    """Return the thresholds between classes of given weights, for `at_frequencies`."""
    counts = totals + 0.5
    return ndtri(np.cumsum(counts)[:-1] / counts.sum()) * np.sqrt(1 + variance)


class Predictive(NamedTuple):
    """Class probabilities of some rows."""

    # (b, n_classes), or (b, 1) for two classes: values of `decision_function`, except for ties by
    # rounding
    scores: torch.Tensor
    # log_p, p (b, n_classes): class probabilities and their logarithms, which are finite
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
    """Map from latent functions to class probabilities."""

    spread = 1.0  # factor of the latent variances, which `of_moments` applies

    @abstractmethod
    def of_moments(self, mean, var):
        """Return the `Predictive` at latent means and variances, tensors (b, c)."""

    @abstractmethod
    def of_latents(self, latents):
        """Return probabilities (..., n_classes) given values (..., c) of the latent functions."""


class LikelihoodProbabilities(ClassProbabilities):
    """Class probabilities of a likelihood, raised to a power, see `Tempering`."""

    def __init__(self, likelihood, n_classes, power=1.0, log_frequencies=()):
        self._likelihood, self._n_classes = likelihood, n_classes
        self._power, self._log_frequencies = power, log_frequencies

    def of_moments(self, mean, var):
        p = self._likelihood.predict(mean, var)
        log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()
        if self._power != 1:
            log_p = tempered(log_p, self._power, self._log_frequencies)
            p = log_p.exp()
        scores = log_p[:, 1:] - log_p[:, :1] if p.shape[1] == 2 else log_p
        return Predictive(scores, log_p, p)

    def of_latents(self, latents):
        mean = torch.from_numpy(latents.reshape(-1, latents.shape[-1]))
        codes = torch.arange(self._n_classes)[:, None].expand(-1, len(mean))
        log_p = torch.stack([self._likelihood.log_prob(code, mean) for code in codes], -1)
        log_p = tempered(log_p, self._power, self._log_frequencies)
        return log_p.detach().exp().numpy().reshape(*latents.shape[:-1], -1)


class CalibratedProbabilities(ClassProbabilities):
    """Class probabilities of a pseudo-likelihood: a softmax with fitted scales and intercepts.

    ``temperature`` and ``spread`` are factors of the latents and of their variances; the intercept
    (c,) is added to the scaled latents.
    """

    def __init__(self, temperature, spread, intercept):
        self._temperature, self.spread, self._intercept = temperature, spread, intercept

    def of_moments(self, mean, var):
        intercept = mean.new_tensor(self._intercept)
        return _of_scores(calibrated_scores(mean, self.spread * var, self._temperature, intercept))

    def of_latents(self, latents):
        return softmax(one_per_class(self._temperature * latents + self._intercept), axis=-1)


class ArgmaxProbabilities(ClassProbabilities):
    """Probabilities that each class's latent function is the largest."""

    def of_moments(self, mean, var):
        return _of_scores(argmax_scores(mean, var))

    def of_latents(self, latents):
        latents = one_per_class(latents)
        return np.eye(latents.shape[-1])[latents.argmax(-1)]


class WeightedProbabilities(ClassProbabilities):
    r"""Class probabilities times weights of the classes (n_classes,), normalized.

    Where a class has c times its share of the training rows, its posterior odds are c times as
    large, and nothing else about the classes changes. Source: Elkan (2001), theorem 2.
    """

    def __init__(self, probabilities, class_weight):
        self._probabilities, self._class_weight = probabilities, class_weight

    def of_moments(self, mean, var):
        log_p = self._probabilities.of_moments(mean, var).log_p
        log_p = reweighted(log_p, self._class_weight)
        scores = log_p[:, 1:] - log_p[:, :1] if log_p.shape[1] == 2 else log_p
        return Predictive(scores, log_p, log_p.exp())

    def of_latents(self, latents):
        p = torch.from_numpy(self._probabilities.of_latents(latents))
        log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()
        return reweighted(log_p, self._class_weight).exp().numpy()


def weighted_probabilities(probabilities, class_weight):
    """Return `ClassProbabilities` times weights of the classes, or as they are for equal ones."""
    if (class_weight == class_weight[0]).all():
        return probabilities
    return WeightedProbabilities(probabilities, class_weight)


def reweighted(log_p, class_weight):
    """Return log probabilities (..., n_classes) of classes with other weights, (n_classes,)."""
    log_weights = np.log(np.maximum(class_weight, np.finfo(np.float64).tiny))
    return (log_p + log_p.new_tensor(log_weights)).log_softmax(-1)


def pseudo_likelihood_probabilities(probability, temperature, spread, intercept):
    """Return the `ClassProbabilities` of a Bayesian SVM by its parameter ``probability``."""
    if probability == "argmax":
        return ArgmaxProbabilities()
    return CalibratedProbabilities(temperature, spread, intercept)


def _of_scores(scores):
    log_p = log_probability(scores)
    return Predictive(scores, log_p, log_p.exp())


def one_per_class(latents):
    """Return latents (..., n_classes); a single latent is that of the second of two classes."""
    if latents.shape[-1] == 1:
        return np.concatenate([np.zeros_like(latents), latents], -1)
    return latents
