"""What fits start from: length scales that explain something, and the posterior of easier noise."""

from dataclasses import replace

import numpy as np
import torch

from .._inference.coordinate_ascent import CoordinateAscent
from .._sites import LikelihoodSites
from ..likelihoods import Gaussian

LEAST_GAIN = 0.02  # of the bound over that of mere noise, nats a row
_FACTORS = (1.0, 0.5, 0.25, 0.125)
_ROWS, _SWEEPS = 2000, 5
_LINEAR_ROWS, _LINEAR_FACTORS = 1000, (1.0, 0.2, 0.04, 0.008, 0.0016)
_SCALE_ROWS = 1000


def scaled_lengths(kernel, factor, of_constants=1.0):
    """Theta of a kernel with free length scales and constants multiplied, within their bounds."""
    low, high = kernel.bounds.reshape(-1, 2).T
    change = np.log(factor) * free_lengths(kernel) + np.log(of_constants) * free_constants(kernel)
    return np.clip(kernel.theta + change, low, high)


def free_lengths(kernel):
    """Which entries of theta are length scales, as 1 and 0."""
    return _free(kernel, "length_scale")


def free_constants(kernel):
    """Which entries of theta are constants, such as variances, as 1 and 0."""
    return _free(kernel, "constant_value")


def _free(kernel, name):
    free = [h for h in kernel.hyperparameters if not h.fixed]
    found = [h.name.endswith(name) for h in free for _ in range(h.n_elements)]
    return np.array(found, float)


def median_scales(rows, scaler, random_state):
    """The median distance of standardized rows, in units of each feature, (d,)."""
    X = rows.subset(_SCALE_ROWS, random_state).take(slice(None))[0].double().cpu()
    X = torch.unique(X, dim=0) / torch.as_tensor(scaler.scale_)
    distance = torch.pdist(X).median().item() if len(X) > 1 else 1.0
    return (distance or 1.0) * scaler.scale_


def with_lengths(start, factor, of_constants=1.0):
    """Latents whose kernel's free length scales, and constants, are multiplied."""
    theta = scaled_lengths(start.kernel, factor, of_constants)
    kernel = start.kernel.clone_with_theta(theta)
    return replace(start, kernel=kernel)


def shrink_length_scales(start, sites, rows, random_state):
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
        if _bound_of_sweeps(tried, sites, some) > wanted:
            return tried
    return start


def with_linear_variance(start, sites, rows, random_state):
    """Latents whose last term of the kernel, a fixed linear one, has the variance that rows want.

    It is lowered while the bound of that term and of the one before, a constant, rises. A vague
    prior of many slopes would fit noise.
    """
    some = rows.subset(_LINEAR_ROWS, random_state) if rows.n_rows > _LINEAR_ROWS else rows
    others, linear = start.kernel.k1, start.kernel.k2
    best = -np.inf
    for factor in _LINEAR_FACTORS:
        lowered = linear.clone_with_theta(linear.theta)
        lowered.length_scale = linear.length_scale / np.sqrt(factor)
        value = _bound_of_sweeps(replace(start, kernel=others.k2 + lowered), sites, some)
        if value <= best:
            break
        best, found = value, replace(start, kernel=others + lowered)
    return found


def _bound_of_sweeps(start, sites, rows):
    """The bound after a few sweeps, nats."""
    ascent = CoordinateAscent(sites, start.basis(rows.device), rows)
    state = ascent.initial()
    for _ in range(_SWEEPS):
        ascent.uphill_sweep(state)
    return ascent.objective(state)


def at_gaussian_posterior(start, variance, rows):
    """A start with the posterior under Gaussian noise of variance (t,), or (1,) for all alike."""
    n_outputs = rows.targets.shape[1]
    sites = LikelihoodSites(Gaussian(variance.cpu()), n_outputs).at(variance.log())
    ascent = CoordinateAscent(sites, start.basis(rows.device), rows)
    state = start.state(rows.device) | ascent.initial()
    ascent.sweep(state)
    return start.at(state)
