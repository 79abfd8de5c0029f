"""Training rows of any shape, from arrays and Datasets, as flat rows of checked shape."""

import math

import numpy as np
from torch.utils.data import Dataset

from .._estimators import validated
from .._rows import DatasetArray, is_source


def validated_rows(estimator, X, reset, **options):
    """Check ``X``, and ``y`` where the options have it; return an array (n, d) or `Rows`.

    ``X`` is of shape (n, d) or (n, ...), or a source. If ``reset``, the estimator, which has the
    parameter ``input_shape``, gets ``input_shape_`` and ``n_features_in_``; else ``X`` must fit
    them. Options are those of `validated`.
    """
    options["dtype"] = (np.float64, np.float32, np.uint8)
    row_shape = None
    if isinstance(X, Dataset):
        X = DatasetArray(X)
        if options.get("y", X) is None:
            options["y"] = X.targets()
    if isinstance(X, DatasetArray) or _n_axes(X) > 2:
        X = X if is_source(X) else np.asarray(X)
        row_shape = X.shape[1:]
        _check_row_shape(estimator, row_shape, reset)
        X = X if is_source(X) else X.reshape(len(X), math.prod(row_shape))
    checked = validated(estimator, X, reset, flatten=True, **options)
    if reset:
        _set_row_shape(estimator, row_shape)
    return checked


def _check_row_shape(estimator, row_shape, reset):
    known = estimator.input_shape if reset else estimator.input_shape_
    flat = len(row_shape) == 1 and known is not None and math.prod(known) == row_shape[0]
    if known is not None and not flat and tuple(known) != tuple(row_shape):
        raise ValueError(
            f"Rows of X have shape {tuple(row_shape)}; {type(estimator).__name__} takes rows of "
            f"shape {tuple(known)}, or flat rows of {math.prod(known)} features."
        )


def _set_row_shape(estimator, row_shape):
    shape, n_features = estimator.input_shape, estimator.n_features_in_
    if shape is not None and math.prod(shape) != n_features:
        raise ValueError(
            f"input_shape={shape!r} has {math.prod(shape)} entries, but rows of X have "
            f"{n_features} features."
        )
    estimator.input_shape_ = tuple(shape or row_shape or (n_features,))


def _n_axes(X):
    """Return the number of axes of an array, source or nested list; 2 for anything else."""
    if isinstance(X, list) or is_source(X):
        return len(np.shape(X))
    return getattr(X, "ndim", 2)
