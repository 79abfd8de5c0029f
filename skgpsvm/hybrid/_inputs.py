"""Training rows of any shape, from arrays and Datasets, as flat rows of checked shape."""

import math

import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data
from torch.utils.data import Dataset

from ._data import DatasetArray


def validated_rows(estimator, X, reset, **options):
    """Check ``X``, and ``y`` where the options have it; return rows as `DatasetArray` or (n, d).

    Parameters
    ----------
    estimator : GPEstimator
        It has the parameter ``input_shape``; gets ``input_shape_`` and ``n_features_in_``.
    X : array-like of shape (n, d) or (n, ...), or Dataset
    reset : bool
        Whether to set these attributes, or to compare ``X`` with them.
    **options : dict
        Options of `validate_data`.
    """
    options["dtype"] = [np.float64, np.float32, np.uint8]
    if isinstance(X, Dataset):
        return _validated_dataset(estimator, DatasetArray(X), reset, options)
    row_shape = None
    if _n_axes(X) > 2:
        X = np.asarray(X)
        row_shape = X.shape[1:]
        _check_row_shape(estimator, row_shape, reset)
        X = X.reshape(len(X), math.prod(row_shape))
    checked = validate_data(estimator, X, reset=reset, **options)
    if reset:
        _set_row_shape(estimator, row_shape)
    return checked


def _validated_dataset(estimator, X, reset, options):
    _check_row_shape(estimator, X.row_shape, reset)
    if reset:
        estimator.n_features_in_ = X.shape[1]
        _set_row_shape(estimator, X.row_shape)
    if "y" not in options:
        return X
    y = X.targets() if options["y"] is None else options["y"]
    kinds = {name: options[name] for name in ("multi_output", "y_numeric") if name in options}
    y = validate_data(estimator, X="no_validation", y=y, reset=reset, **kinds)
    check_consistent_length(X, y)
    return X, y


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
    """Return the number of axes of an array or nested list; 2 for anything else."""
    if isinstance(X, list):
        return np.ndim(X)
    return getattr(X, "ndim", 2)
