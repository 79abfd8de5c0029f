"""Feature scales, and the default kernels in units of them."""

import math
from copy import copy
from functools import partial

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, KernelOperator, Matern
from sklearn.preprocessing import StandardScaler

from .._csr import CSRRows
from .._distributed import gather, n_ranks
from .._memory import CHUNK_ROWS
from .._scales import usual_deviations
from .._validation import differs
from ..kernels import Linear

_MAX_SORTED = 2**19  # numbers of X among which far values are looked for
_EQUAL = 0.1  # relative difference of the deviations of features that make no difference
_LEARNED_BOUNDS = 1e-5, 1e5  # bounds of the variance of a linear mean function


def feature_scales(X, weights, *, isotropic=False):
    """Return a `StandardScaler` fitted to the weighted rows of all ranks, chunk by chunk.

    Its ``scale_`` are the units of length scales: standard deviations without a few far values, see
    `usual_deviations`, which are looked for among some rows if there are more than half a million
    numbers. Its ``mean_`` and ``var_`` are the moments of all rows.

    If ``isotropic``, it is that of a single feature around zero, whose variance is the sum over the
    features. Default kernels in units of it have one length scale, and no offset.
    """
    is_csr = isinstance(X, CSRRows)
    scaler, some = StandardScaler(with_mean=not is_csr), []
    seeks_far = not (is_csr or isotropic)
    step = math.ceil(sum(gather(len(X))) * math.prod(X.shape[1:]) / _MAX_SORTED)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(X), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            if weights[chunk].any():
                rows = X[chunk].matrix if is_csr else np.asarray(X[chunk])
                rows = rows.reshape(rows.shape[0], -1).astype(np.float64, copy=False)
                scaler.partial_fit(rows, sample_weight=weights[chunk])
                if seeks_far:
                    some.append(rows[np.flatnonzero(weights[chunk] > 0)[::step]])
    if n_ranks() > 1:
        scaler = _merged(scaler)
    if not np.isfinite(scaler.var_).all():  # scale_ would be 1, as for a constant
        raise ValueError("Squares of X, times the weights, overflow in float64: scale them down.")
    if isotropic:
        std = np.sqrt(scaler.var_[differs(scaler.var_, scaler.mean_)].sum())
        scaler.mean_, scaler.var_, scaler.scale_ = np.array([[0.0], [std**2], [std or 1.0]])
    if seeks_far:
        parts, totals = zip(*gather((some, weights.sum())), strict=True)
        some = np.concatenate([chunk for own in parts for chunk in own])
        scaler.scale_ = usual_deviations(some, sum(totals) / step, scaler.scale_)
    return scaler


def _merged(scaler):
    """Return a scaler of the rows of all ranks, where two rows stand for the moments of each."""
    merged, moments = StandardScaler(), None
    if hasattr(scaler, "mean_"):
        std = np.sqrt(np.where(differs(scaler.var_, scaler.mean_), scaler.var_, 0))
        moments = scaler.mean_, std, scaler.n_samples_seen_
    for mean, std, weight in filter(None, gather(moments)):
        merged.partial_fit([mean - std, mean + std], sample_weight=[weight / 2] * 2)
    return merged


def deviations(scaler):
    """Return the standard deviations of the features, far values included; 1 for constants."""
    return np.sqrt(np.where(differs(scaler.var_, scaler.mean_), scaler.var_, 1.0))


def with_one_unit(scaler):
    """Return a copy of a scaler in which all features have their root mean square deviation.

    Distances are then those of the features as they are, such as gray values of pixels, and the
    median distance stays about the same. Returns None if the features have equal deviations.
    """
    varies = differs(scaler.var_, scaler.mean_)
    stds = scaler.scale_[varies]
    if len(stds) < 2 or np.ptp(stds) < _EQUAL * stds.max():
        return None
    same = copy(scaler)
    same.scale_ = np.full_like(scaler.scale_, _root_mean_square(stds))
    same.var_ = np.where(varies, _root_mean_square(np.sqrt(scaler.var_[varies])) ** 2, 0.0)
    return same


def _root_mean_square(values):
    largest = values.max()  # by which squares do not overflow
    return largest * np.sqrt(np.mean((values / largest) ** 2))


def smooth_kernel(scaler, variance):
    """Return a squared exponential with ARD length scales from the units of the features."""
    scales = scaler.scale_ * np.sqrt(_n_varying(scaler) / 2)
    return ConstantKernel(variance, (1e-3, 1e5)) * RBF(scales, np.outer(scales, (1e-3, 1e3)))


def with_smoothness(kernel, nu):
    """Return a kernel whose squared exponentials are Matern kernels of smoothness nu.

    Hyperparameters and bounds stay, and theta has the same entries.
    """
    if isinstance(kernel, KernelOperator):
        return type(kernel)(with_smoothness(kernel.k1, nu), with_smoothness(kernel.k2, nu))
    if isinstance(kernel, RBF):
        return Matern(kernel.length_scale, kernel.length_scale_bounds, nu=nu)
    return kernel


ROUGHER = (2.5, 1.5, 0.5)  # smoothness of Matern kernels that may replace a squared exponential


def rougher_kernels(smoothness):
    """Return functions that make a kernel rougher, see `with_smoothness`, by name."""
    return {f"Matern {nu}": partial(with_smoothness, nu=nu) for nu in smoothness}


def linear_kernel(scaler, variance):
    """Return a linear kernel of the centered features with mean prior variance ``variance``."""
    scales = deviations(scaler) * np.sqrt(_n_varying(scaler) / variance)
    return Linear(scales, "fixed", offset=scaler.mean_)


def with_mean(kernel, mean, scaler, variance):
    """Return a kernel plus the terms of a mean function with coefficients of a prior variance."""
    if mean in ("constant", "linear"):
        kernel = kernel + ConstantKernel(variance, "fixed")
    if mean == "linear":
        kernel = kernel + linear_kernel(scaler, variance)
    return kernel


def with_learned_mean(kernel, mean, scaler, variance, start):
    """Return a kernel as `with_mean` does, with the variance of the linear term free.

    That variance begins at ``start`` and falls to nothing where the rows show no trend. If it were
    fixed, each slope would add about 1 / (2 n) to the log loss of new rows, even for an
    irrelevant feature.
    """
    if mean != "linear":
        return with_mean(kernel, mean, scaler, variance)
    kernel = with_mean(kernel, "constant", scaler, variance)
    return kernel + ConstantKernel(start, _LEARNED_BOUNDS) * linear_kernel(scaler, 1.0)


def _n_varying(scaler):
    return max(np.count_nonzero(differs(scaler.var_, scaler.mean_)), 1)
