"""Scales of features that a few far values do not determine."""

import numpy as np

_SHARE = 0.1  # of a feature's distinct values, which may be far from the others
_FREQUENCY = 10  # rows per distinct value from which one value may be far, however few there are
_ROUNDING = 1e-6  # relative difference up to which neighboring values are one
_MIN_SHARE = 1e-6  # of the largest value, in units of which squared distances are accurate
_FACTOR = 5.0  # by which a standard deviation may exceed that of the values that are not far


def bounded_deviations(X, n, deviations):
    """Return the standard deviations (d,) of features, bounded where a few values are far.

    A missing value that is coded as -999, or the largest amounts of a skewed column, can cause a
    standard deviation in units of which most values are equal. It is bounded by five times that of
    the distinct values in the shortest interval that holds nine tenths of them. Normal, uniform and
    exponential features, and those of two values, keep theirs.

    Distinct values count once, since one far value may be frequent, as a code is, and so may one
    that is not far, such as zero.

    Parameters
    ----------
    X : ndarray of shape (n_rows, d)
        Some or all rows.
    n : float
        Number of these rows, or the sum of their weights.
    deviations : ndarray of shape (d,)
    """
    bounded = deviations.copy()
    for j, column in enumerate(X.T):
        values = np.unique(column).astype(np.float64)
        values = values[np.diff(values, prepend=-np.inf) > _ROUNDING * np.abs(values)]
        k = len(values)
        n_far = max(int(_SHARE * k), int(n >= _FREQUENCY * k))
        if k - n_far < 2:
            continue
        size = np.abs(values[[0, -1]]).max()
        start = np.argmin(values[k - n_far - 1 :] - values[: n_far + 1])
        near = _FACTOR * (values[start : start + k - n_far] / size).std()
        # Values around zero may be rounding errors of differences of the largest.
        if near > 8 * _FACTOR * np.finfo(np.float64).eps:
            bounded[j] = min(deviations[j], max(near, _MIN_SHARE) * size)
    return bounded
