"""Moments of Gaussian weights projected on those whose effects are monotone, or convex."""

import numpy as np
from scipy.optimize import nnls

from ._defaults import DEFAULTS


def constrained_moments(mean, cov, constraints):
    """Return the mean (p,) and covariance (p, p) of Gaussian weights under linear constraints.

    The mean is the weights of highest density that satisfy the constraints: products with
    ``constraints`` (k, p) must not be negative. The covariance is that of projected draws: each is
    replaced by the closest weights that do.

    Source: Lin and Dunson (2014). Departs from the source: distances are in the metric of the
    posterior precision, in which the projection of the mean is never farther from weights that
    satisfy the constraints than the mean is. The mean of a truncated Gaussian can be much farther.
    """
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(values.clip(values[-1] * np.finfo(float).eps))
    normals, offsets = constraints @ root, constraints @ mean
    lengths = np.linalg.norm(normals, axis=1)
    normals, offsets = normals / lengths[:, None], offsets / lengths
    n = DEFAULTS.projected_draws
    free = np.random.default_rng(0).standard_normal((n, len(mean)))
    best = projected(normals, offsets, np.zeros(len(mean)))
    moved = root @ np.stack([projected(normals, offsets, draw) - best for draw in free], 1)
    return mean + root @ best, moved @ moved.T / n


def projected(normals, offsets, x):
    """Return the vector closest to x (p,) with ``normals @ vector + offsets >= 0``.

    Source: Lawson and Hanson (1974), least distance programming.
    """
    least = -(offsets + normals @ x)
    scale = least.max()
    if scale <= 0:
        return x
    E = np.vstack([normals.T, least / scale])
    target = np.zeros(len(E))
    target[-1] = 1
    residual = E @ nnls(E, target, maxiter=30 * E.shape[1])[0] - target
    return x - scale * residual[:-1] / residual[-1]
