"""Scales of features that a few far values do not determine."""

import numpy as np

_SHARE = 0.1  # of a feature's distinct values, which may be far from the others
_FREQUENCY = 10  # rows per distinct value from which one value may be far, however few there are
_FACTOR = 2  # by which a standard deviation exceeds that of the others, if it is replaced
_GAP = 3  # between far values and the others, in units of the interval that holds the others
# Difference up to which neighboring values are one, relative to the value and to that which three
# quarters of the rows do not exceed.
_ROUNDING, _LEAST_ROUNDING = 1e-6, 1e-9
_MIN_SHARE = 1e-12  # of the largest value, in units of which differences are accurate


def usual_deviations(X, n, deviations):
    """Return the standard deviations (d,) of features, without those of a few values that are far.

    A missing value that is coded as -999 can cause a standard deviation in units of which all other
    values are equal. The others are the distinct values in the shortest interval that holds nine
    tenths of them, and all that follow without a gap of three times the interval. Skewed features
    have no such gap. The standard deviation of the others is taken if it is less than half of that
    of all rows. Otherwise it would gain little, and rows with a far value would be alone.

    Distinct values count once, since one far value may be frequent, as a code is, and so may one
    that is not far, such as zero. X are some or all rows, and n is the number of these rows, or the
    sum of their weights. The ``deviations`` (d,) are those of all rows.
    """
    found = deviations.copy()
    for j, column in enumerate(X.T):
        values = np.unique(column).astype(np.float64)
        size = np.abs(values[[0, -1]]).max()
        least = _LEAST_ROUNDING * np.quantile(np.abs(column), 0.75)
        rounding = np.maximum(_ROUNDING * np.abs(values), least)
        values = values[np.diff(values, prepend=-np.inf) > rounding]
        n_far = max(int(_SHARE * len(values)), int(n >= _FREQUENCY * len(values)))
        if len(values) - n_far < 2:
            continue
        others = _without_far(values / size, n_far)
        near = others.std() * size
        if len(others) < len(values) and deviations[j] > _FACTOR * near:
            found[j] = max(near, _MIN_SHARE * size)
    return found


def _without_far(values, n_far):
    """Return the part of sorted values that no gap divides, without n_far values at most."""
    n = len(values) - n_far
    first = np.argmin(values[n - 1 :] - values[: n_far + 1])
    last = first + n - 1
    while True:
        reach = _GAP * (values[last] - values[first])
        low = np.searchsorted(values, values[first] - reach)
        high = np.searchsorted(values, values[last] + reach, side="right") - 1
        if (low, high) == (first, last):
            return values[first : last + 1]
        first, last = low, high
