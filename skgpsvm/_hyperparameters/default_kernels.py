"""Scales of the features, and the kernels in them that fits start from."""

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.preprocessing import StandardScaler

from .._distributed import gather, n_ranks
from .._rows import CHUNK_ROWS
from .._validation import differs
from ..kernels import Linear

_LEARNED_BOUNDS = 1e-5, 1e5  # of the variance of a linear mean function


def feature_scales(X, weights):
    """A `StandardScaler` of the weighted rows of all ranks, fitted chunk by chunk."""
    scaler = StandardScaler()
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(X), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            if weights[chunk].any():
                scaler.partial_fit(np.asarray(X[chunk], np.float64), sample_weight=weights[chunk])
    if n_ranks() > 1:
        scaler = _merged(scaler)
    if not np.isfinite(scaler.var_).all():  # of which scale_ makes 1, as of a constant's
        raise ValueError("Squares of X, times the weights, overflow in float64: scale them down.")
    return scaler


def _merged(scaler):
    """A scaler of the rows of all ranks: two rows stand for the mean and variance of each."""
    merged, own = StandardScaler(), None
    if hasattr(scaler, "mean_"):
        std = np.sqrt(np.where(differs(scaler.var_, scaler.mean_), scaler.var_, 0))
        own = scaler.mean_, std, scaler.n_samples_seen_
    for mean, std, weight in filter(None, gather(own)):
        merged.partial_fit([mean - std, mean + std], sample_weight=[weight / 2] * 2)
    return merged


def smooth_kernel(scaler, variance):
    """A squared exponential, with a length scale for each feature from its standard deviation."""
    scales = scaler.scale_ * np.sqrt(_n_varying(scaler) / 2)
    return ConstantKernel(variance, (1e-3, 1e5)) * RBF(scales, np.outer(scales, (1e-3, 1e3)))


def linear_kernel(scaler, variance):
    """A linear function of the standardized features, about their mean; ``variance`` is its own."""
    scales = scaler.scale_ * np.sqrt(_n_varying(scaler) / variance)
    return Linear(scales, "fixed", offset=scaler.mean_)


def with_mean(kernel, mean, scaler, variance):
    """A kernel plus the terms of a mean function, whose coefficients have a prior variance."""
    if mean in ("constant", "linear"):
        kernel = kernel + ConstantKernel(variance, "fixed")
    if mean == "linear":
        kernel = kernel + linear_kernel(scaler, variance)
    return kernel


def with_learned_mean(kernel, mean, scaler, variance):
    """As `with_mean`, but the variance of the linear term is a hyperparameter.

    It starts from ``variance``, and falls to nothing where the rows show no trend. With a fixed
    one, each slope adds about 1 / (2 n) to the log-loss of new rows, however idle its feature.
    """
    if mean != "linear":
        return with_mean(kernel, mean, scaler, variance)
    kernel = with_mean(kernel, "constant", scaler, variance)
    return kernel + ConstantKernel(variance, _LEARNED_BOUNDS) * linear_kernel(scaler, 1.0)


def _n_varying(scaler):
    return max(np.count_nonzero(differs(scaler.var_, scaler.mean_)), 1)
