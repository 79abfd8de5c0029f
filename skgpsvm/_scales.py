"""Scales of features that a few far values do not determine."""

import numpy as np

_SHARE = 0.1  # of a feature's distinct values, which may be far from the others
_FREQUENCY = 10  # rows per distinct value from which one value may be far, however few there are
# Difference up to which neighboring values are one, relative to the value and to the largest.
_ROUNDING, _LEAST_ROUNDING = 1e-6, 1e-9
_MIN_SHARE = 1e-6  # of the largest value, in units of which squared distances are accurate
_FACTOR = 100  # by which a standard deviation may exceed that of the values that are not far


def usual_deviations(X, n, deviations):
    """Return the standard deviations (d,) of features, without those of a few values that are far.

    A missing value that is coded as -999 can cause a standard deviation in units of which all other
    values are equal. If it is a hundred times that of the distinct values in the shortest interval
    that holds nine tenths of them, it is replaced by the latter. Skewed features keep theirs.

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
    found = deviations.copy()
    for j, column in enumerate(X.T):
        values = np.unique(column).astype(np.float64)
        size = np.abs(values[[0, -1]]).max()
        rounding = np.maximum(_ROUNDING * np.abs(values), _LEAST_ROUNDING * size)
        values = values[np.diff(values, prepend=-np.inf) > rounding]
        k = len(values)
        n_far = max(int(_SHARE * k), int(n >= _FREQUENCY * k))
        if k - n_far < 2:
            continue
        start = np.argmin(values[k - n_far - 1 :] - values[: n_far + 1])
        near = (values[start : start + k - n_far] / size).std()
        if deviations[j] > _FACTOR * near * size:
            found[j] = max(near, _MIN_SHARE) * size
    return found
