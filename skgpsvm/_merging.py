"""Equal training rows, which are merged, and an order of classes that their labels do not set."""

import math

import numpy as np

from ._distributed import gather

_MAX_MERGED = 2**21  # numbers in X
_ORDER_DECIMALS = 9  # to which class frequencies are compared, as sums have rounding errors


def merged_rows(X, targets, weights):
    """Return sorted rows without rows of weight 0, with equal rows merged and their weights summed.

    A weight is thus equivalent to repetition, to the last bit, and repeated rows cost nothing. If X
    has more than two million numbers, as every large memmap has, the rows are returned unchanged.
    The fourth result is the index of the merged row of each given row, -1 for weight 0; None if the
    rows are unchanged.
    """
    if X.size > _MAX_MERGED:
        return X, targets, weights, None
    used = np.flatnonzero(weights > 0)
    kept, targets, weights = X[used], targets[used], weights[used]
    flat = targets.reshape(len(kept), math.prod(targets.shape[1:]))
    values = np.column_stack([kept, flat])
    np.nan_to_num(values, copy=False, nan=np.inf)  # X has no infinity; NaN is not equal to NaN
    _, first, group = np.unique(values, axis=0, return_index=True, return_inverse=True)
    origin = np.full(len(X), -1)
    origin[used] = group.ravel()
    return kept[first], targets[first], np.bincount(group.ravel(), weights), origin


def class_totals(codes, weights, n_classes):
    """Return the weights (n_classes,) of all ranks' rows of each class."""
    return sum(gather(np.bincount(codes, weights, n_classes)))


def class_order(X, codes, weights, totals):
    """Return the place (n_classes,) of each class in an order that its label does not determine.

    Classes of more weight come first, given their `class_totals`. Of classes of equal weight, that
    with the smallest row does, feature by feature, given sorted rows as of `merged_rows`.
    """
    first = []
    with np.errstate(invalid="ignore"):  # of weights whose sum is zero or overflows
        frequencies = np.round(totals / totals.sum(), _ORDER_DECIMALS)
    if len(np.unique(frequencies)) < len(totals):
        used = np.flatnonzero(weights > 0)
        present, at = np.unique(codes[used], return_index=True)
        rows = [np.asarray(X[i : i + 1])[0] for i in used[at]]
        rows = [np.nan_to_num(row, nan=np.inf).tolist() for row in rows]
        first = gather(dict(zip(present.tolist(), rows, strict=True)))

    def place(k):
        return -frequencies[k], min((rows[k] for rows in first if k in rows), default=[])

    return tuple(np.argsort(sorted(range(len(totals)), key=place)).tolist())
