"""Checks of X and y by scikit-learn: of arrays and tables at once, of sources block by block."""

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import validate_data

from .._csr import MAX_DENSE, CSRRows
from .._distributed import gather
from .._rows import FLOATS, checked_rows, is_source
from .._torch_kernels import take_sparse
from .._validation import is_text
from ..exceptions import warn

# A mean weight above this, or below its inverse, warns. On a sine of 100 rows with noise of
# standard deviation .1 to .5 and weights proportional to inverse variances, 95 % intervals of the
# function cover .92 at a mean weight of 1, .98 at 1/2, .82 at 2, .59 at 5, .17 at 100 (2026-11).
_MAX_MEAN_WEIGHT = 2.0

TAKING_SPARSE = "BayesianSVC, EPClassifier, SVGPClassifier and SVGPRegressor"
_TAKING_NAN = "Of skgpsvm, AdditiveGPRegressor and AdditiveGPClassifier take them."
_OF_TARGETS = "y", "multi_output", "y_numeric"


def validated(estimator, X, reset, *, dtype=FLOATS, flatten=False, transform=None, **options):
    """Return checked ``X``, an array, `Rows` or `CSRRows`, and ``y`` where the options have it.

    All rows of a source are read where ``y`` is given, so that a fit with an invalid row ends
    before it starts. Otherwise, they are read and checked when they are used.

    A sparse ``X`` of at most two million numbers becomes an array. If ``reset``, the estimator gets
    ``n_features_in_`` and ``feature_names_in_``; else they are compared with ``X``. Types among
    ``dtype`` stay; any other becomes the first. Of a source, ``flatten`` says that its rows may
    have any shape, and ``transform`` takes rows and returns those to be checked. Other options are
    those of `validate_data`.
    """
    if issparse(X):
        return _validated_sparse(estimator, X, reset, dtype=list(dtype), **options)
    if not is_source(X):
        _refuse_dates(X)
        try:
            return validate_data(estimator, X, reset=reset, dtype=list(dtype), **options)
        except (TypeError, ValueError) as error:
            _refuse_odd_columns(estimator, X)
            if "accept missing values encoded as NaN natively" in str(error):
                raise ValueError(f"{error}\n{_TAKING_NAN}") from None
            raise
    of_targets = {name: options.pop(name) for name in _OF_TARGETS if name in options}
    min_rows = options.pop("ensure_min_samples", 1)
    rows = checked_rows(X, dtype, transform, estimator=estimator, **options)
    first = np.asarray(rows.source[:1])
    first = first.reshape(len(first), rows.shape[1]) if flatten else first
    options |= {"ensure_min_samples": min_rows, "ensure_all_finite": False}
    check_array(first, dtype=None, estimator=estimator, input_name="X", **options)
    header = getattr(rows.source, "header", first)
    validate_data(estimator, header, reset=reset, skip_check_array=True)
    if not of_targets:
        return rows
    # Of X, the check of y sees only the number of rows.
    zeros = np.broadcast_to(0.0, (len(rows), 1))
    _, y = check_X_y(zeros, estimator=estimator, ensure_min_samples=min_rows, **of_targets)
    rows.check()
    return rows, y


def warn_of_weights(weights, advice):
    """Warn if weights are not integers and their mean is far from 1.

    Weights count rows: 1 / sd**2 in other units of y would be another number of rows, and weights
    that sum to one would be one row. ``advice`` says what to do with relative weights.
    """
    used = weights[weights > 0]
    counted = bool((used == used.round()).all())
    sums = gather((used.sum(), len(used), counted))
    total, n = (sum(part[i] for part in sums) for i in range(2))
    far = not 1 / _MAX_MEAN_WEIGHT <= total / n <= _MAX_MEAN_WEIGHT
    if far and not all(part[2] for part in sums):
        warn(
            f"The mean of sample_weight is {total / n:.3g}. Weights are not relative: a row of "
            f"weight 2 counts as two rows, so that these {n} rows count as {total:.3g}. {advice} "
            "Weights that are all integers are taken as counts, without this warning."
        )


def is_date(dtype):
    """Return whether a type of a table's column is one of dates or times."""
    return str(dtype).lower().startswith(("date", "time", "period", "duration"))


def date_error(name, dtype):
    """Return the TypeError for a column of dates: their unit as numbers would be arbitrary."""
    return TypeError(
        f"Column {name!r} of X has dates or times ({dtype}). Convert them to numbers in a unit of "
        "your choice, such as days by (x - x.min()) / pd.Timedelta('1D'). If they stand for "
        "groups, list the column in categorical_features of an additive model."
    )


def _refuse_dates(X):
    for name, dtype in zip(X.columns, X.dtypes, strict=True) if _is_table(X) else ():
        if is_date(dtype):
            raise date_error(name, dtype)


def _is_table(X):
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _refuse_odd_columns(estimator, X):
    """Raise an error that names the first column of strings, if ``X`` has any."""
    is_table = _is_table(X)
    if not is_table and not (getattr(X, "ndim", 0) == 2 and X.dtype.kind in "OU"):
        return
    for name in X.columns if is_table else range(X.shape[1]):
        column = np.asarray(X[name] if is_table else X[:, name])
        odd = next(filter(is_text, column), None)
        if odd is None:
            continue
        takes = hasattr(estimator, "categorical_features")
        raise ValueError(
            f"Column {name!r} of X has strings such as {str(odd)!r}, which are not numbers. "
            + (
                "If they are categories, list the column in categorical_features."
                if takes
                else "Encode them, for example by TargetEncoder or OneHotEncoder, or use "
                "AdditiveGPRegressor or AdditiveGPClassifier, which take categories."
            )
        )


def _validated_sparse(estimator, X, reset, **options):
    """Return checked sparse ``X`` as an array or `CSRRows`, and ``y`` where the options have it."""
    if not estimator._takes_sparse:
        raise TypeError(
            f"X is sparse, but {type(estimator).__name__} needs a dense array: pass X.toarray(), "
            f"reduce X by TruncatedSVD, or use an estimator that takes sparse X, which are "
            f"{TAKING_SPARSE}."
        )
    found = validate_data(estimator, X, reset=reset, accept_sparse="csr", **options)
    X, *y = found if isinstance(found, tuple) else (found,)
    small = X.shape[0] * X.shape[1] <= MAX_DENSE
    kernel = estimator.kernel if reset else estimator.kernel_
    rows = X.toarray() if small else CSRRows(X, dense=not take_sparse(kernel))
    return (rows, *y) if y else rows
