"""Rows held out of training: their choice, and the criteria that they give."""

import hashlib
import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch

from .._data import chunk_rows
from .._distributed import raise_on_all_ranks
from .._inference.leave_one_out import leave_one_out
from .._optim import maximize_density

_NONE_HELD = -1.0  # threshold below the hash of any row
_GOLDEN_RATIO = (5**0.5 - 1) / 2  # its multiples are spread evenly, modulo 1
# Standard deviation of the log noise's prior on held-out rows; its mean is the learned log noise.
_NOISE_PRIOR_STD = 1.0
# Number of held-out rows that the calibration of the initial network counts as, for trained ones.
_PRIOR_ROWS = 20.0


def split(rows, share, salt, threshold):
    """Return training rows, held-out rows or None, and the largest hash of the latter.

    An observation is held out by the hash of its features and target in single precision, so that a
    warm start holds out those of the first fit, whatever other rows it has and whatever its
    ``dtype``. One of each class is always trained on. A first fit, whose ``threshold`` is None,
    holds out a ``share`` of the observations; later ones those with hashes up to the threshold.
    ``salt`` is the seed of the hashes.
    """
    if threshold is None and not share:
        threshold = _NONE_HELD
    if threshold == _NONE_HELD:
        return rows, None, threshold
    observed = rows.observed()
    hashes, targets = observed_hashes(rows, observed, salt)
    n, order = len(hashes), np.argsort(hashes, kind="stable")[::-1]
    targets = targets[order]
    kept = np.unique(targets, return_index=True)[1] if targets.ndim == 1 else np.arange(min(2, n))
    free = np.delete(order, kept)[::-1]
    if threshold is None:
        n_held = min(int(share * n), len(free))
        # If there are too few, all are trained on; a warm start holds out some of the others.
        none = min(share, np.nextafter(hashes.min(), _NONE_HELD))
        threshold = float(hashes[free[n_held - 1]] if n_held else none)
    held = np.sort(free[hashes[free] <= threshold])
    if not len(held):
        return rows, None, threshold
    return *rows.divided(observed, held), threshold


def observed_hashes(rows, observed, salt):
    """Return a hash in [0, 1) of each observation of all ranks' rows, and the targets.

    Equal observations get evenly spread values. Some of them are thus held out, whatever their
    share of all. The index ``observed`` is that of `WeightedDataset.observed`.
    """
    with raise_on_all_ranks():
        own = _content_hashes(rows, salt)
    parts = rows.collect(own, rows.targets)
    hashes, targets = (part.cpu().numpy()[observed] for part in parts)
    order = np.argsort(hashes, kind="stable")
    _, first, group = np.unique(hashes[order], return_index=True, return_inverse=True)
    place = np.empty(len(hashes), dtype=int)
    place[order] = np.arange(len(hashes)) - first[group]
    return (hashes + place * _GOLDEN_RATIO) % 1, targets


def _content_hashes(rows, salt):
    """Return a hash in [0, 1) of features and targets of each row of this rank, a tensor (n,)."""
    key, codes = salt.to_bytes(8, "little"), []
    for index in rows.chunks(chunk_rows(rows.X)):
        X, targets, _ = rows.take(index)
        content = torch.cat([X.float(), targets[:, None].flatten(1).float()], 1).cpu().numpy()
        digests = (hashlib.blake2b(row, digest_size=8, key=key).digest() for row in content)
        codes += [int.from_bytes(digest, "little") for digest in digests]
    return torch.from_numpy(np.array(codes, dtype=np.uint64) / 2.0**64)


class LatentMoments(NamedTuple):
    """Latent moments (n, c) at held-out rows, in float64, with targets and weights."""

    mean: torch.Tensor
    var: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


def latent_moments(network, rows):
    """Return the `LatentMoments` of a network at the rows of all ranks."""
    parts = []
    with raise_on_all_ranks(), torch.no_grad():
        for index in rows.chunks(chunk_rows(rows.X)):
            X, targets, weights = rows.take(index)
            parts.append((*network.marginals(X), targets, weights))
    mean, var, targets, weights = (torch.cat(part) for part in zip(*parts, strict=True))
    own = mean.double(), var.double(), targets, weights.double()
    return LatentMoments(*rows.collect(*own))


class HeldOutCriterion(ABC):
    """Criterion of held-out rows: it ends the training, and fits noise or calibration to them."""

    def informed(self, ascent, state):
        """Return the criteria of the initial network and of trained ones, given training rows.

        ``ascent`` and ``state`` are on the initial features, which do not know the targets.
        """
        return self, self

    @abstractmethod
    def row_losses(self, network, moments):
        """Return the losses (n,) of the rows of `LatentMoments`, to which nothing is fitted."""

    @abstractmethod
    def losses(self, network, moments):
        """Return the validation losses that early stopping compares, a list, nats per row.

        The weights with the lowest first loss are kept; training goes on while any loss falls.
        """

    @abstractmethod
    def summary(self, network, moments):
        """Return what fitted attributes need of the `LatentMoments`, None if there are no rows."""


class CalibratedLoss(HeldOutCriterion):
    """Log loss after calibration of the class probabilities; the summary is a `Calibration`."""

    def __init__(self, prior):
        self._prior = prior

    def informed(self, ascent, state):
        left_out = leave_one_out(ascent, state)
        worths = math.inf, _PRIOR_ROWS
        return [CalibratedLoss(self._prior.informed(*left_out, worth)) for worth in worths]

    def row_losses(self, network, moments):
        return self._prior.log_losses(*moments[:3])

    def losses(self, network, moments):
        return [self._prior.updated(*moments).log_loss]

    def summary(self, network, moments):
        return self._prior if moments is None else self._prior.updated(*moments)


class DensityLoss(HeldOutCriterion):
    """Negative log predictive density; the summary is its mean, a float."""

    def __init__(self, likelihood):
        self._likelihood = likelihood

    def row_losses(self, network, moments):
        return -self._log_density(network.noise.detach(), moments)

    def losses(self, network, moments):
        return [self._loss(network.noise.detach(), moments)]

    def summary(self, network, moments):
        return float("nan") if moments is None else self.losses(network, moments)[0]

    def _log_density(self, noise, moments):
        """Return the log predictive densities (n,) at logarithms of the noise (k,)."""
        likelihood = self._likelihood.at(noise).likelihood
        return likelihood.log_marginal(moments.targets, moments.mean, moments.var)

    def _loss(self, noise, moments):
        """Return the negative log predictive density, in nats per row."""
        total = moments.weights @ self._log_density(noise, moments)
        return -(total / moments.weights.sum()).item()


class RefittedNoiseLoss(DensityLoss):
    """Negative log predictive density with noise that is refitted to the held-out rows.

    The summary is a tuple of the density's mean and the logarithm of the noise, a tensor (k,),
    which is within ``limits``.
    """

    def __init__(self, likelihood, limits):
        super().__init__(likelihood)
        self._limits = limits

    def losses(self, network, moments):
        noises = self._refitted(network, moments), network.noise.detach()
        return [self._loss(noise, moments) for noise in noises]

    def summary(self, network, moments):
        if moments is None:
            return float("nan"), network.noise.detach()
        noise = self._refitted(network, moments)
        return self._loss(noise, moments), noise

    def _refitted(self, network, moments):
        """Return the log noise that maximizes the density, given a prior about the learned one."""
        learned = network.noise.detach()

        def log_density(noise):
            return self._log_density(noise, moments)

        def log_prior(noise):
            return -0.5 * ((noise - learned) / _NOISE_PRIOR_STD).square().sum()

        bounds = learned.new_tensor([self._limits]).expand(len(learned), 2)
        return maximize_density(log_density, moments.weights, learned, bounds, log_prior)[0]
