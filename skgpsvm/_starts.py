"""What fits start from: length scales that explain something, and the posterior of easier noise."""

from dataclasses import replace

import numpy as np
import torch

from ._coordinate_ascent import CoordinateAscent
from ._sites import LikelihoodSites
from .likelihoods import Gaussian

LEAST_GAIN = 0.02  # of the bound over that of mere noise, nats a row
_FACTORS = (1.0, 0.5, 0.25, 0.125)
_ROWS, _SWEEPS = 2000, 5
_SCALE_ROWS = 1000


def scaled_lengths(kernel, factor):
    """Theta of a kernel with its free length scales multiplied, within their bounds."""
    low, high = kernel.bounds.reshape(-1, 2).T
    return np.clip(kernel.theta + np.log(factor) * free_lengths(kernel), low, high)


def free_lengths(kernel):
    """Which entries of theta are length scales, as 1 and 0."""
    free = [h for h in kernel.hyperparameters if not h.fixed]
    lengths = [h.name.endswith("length_scale") for h in free for _ in range(h.n_elements)]
    return np.array(lengths, float)


def median_scales(rows, scaler, random_state):
    """The median distance of standardised rows, in units of each feature, (d,)."""
    X = rows.subset(_SCALE_ROWS, random_state).take(slice(None))[0].double().cpu()
    X = torch.unique(X, dim=0) / torch.as_tensor(scaler.scale_)
    distance = torch.pdist(X).median().item() if len(X) > 1 else 1.0
    return (distance or 1.0) * scaler.scale_


def with_lengths(start, factor):
    """Latents whose kernel's free length scales are multiplied."""
    kernel = start.kernel.clone_with_theta(scaled_lengths(start.kernel, factor))
    return replace(start, kernel=kernel)


def explaining(start, sites, rows, random_state):
    """A start whose bound, before anything is learned, is above that of the shares of the classes.

    Where waves are shorter than the length scales, the best of these near by is that of mere noise,
    and learning would end there.

    Parameters
    ----------
    start : Latents
    sites : LikelihoodSites
    rows : Rows
        Of class codes.
    random_state : RandomState

    Returns
    -------
    start : Latents
        As it came, if no shorter length scales explain more, or none are free.
    """
    if not free_lengths(start.kernel).any():
        return start
    some = rows.subset(_ROWS, random_state) if rows.n_rows > _ROWS else rows
    (counts,) = some.sum(
        torch.bincount(some.targets, some.weights, max(sites.n_latents, 2)).double()
    )
    wanted = torch.xlogy(counts, counts / counts.sum()).sum() + LEAST_GAIN * counts.sum()
    for factor in _FACTORS:
        tried = with_lengths(start, factor)
        ascent = CoordinateAscent(sites, tried.basis(rows.device), some)
        state = ascent.initial()
        for _ in range(_SWEEPS):
            ascent.uphill_sweep(state)
        if ascent.objective(state) > wanted:
            return tried
    return start


def at_gaussian_posterior(start, variance, rows):
    """A start with the posterior under Gaussian noise of variance (t,), or (1,) for all alike."""
    n_outputs = rows.targets.shape[1]
    sites = LikelihoodSites(Gaussian(variance.cpu()), n_outputs).at(variance.log())
    ascent = CoordinateAscent(sites, start.basis(rows.device), rows)
    state = start.state(rows.device) | ascent.initial()
    ascent.sweep(state)
    return start.at(state)
