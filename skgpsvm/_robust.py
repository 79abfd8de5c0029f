"""Weighted medians, and targets without gross errors."""

import numpy as np

from ._distributed import gather

_PER_MEDIAN_DEVIATION = 1.4826  # standard deviation of a Gaussian per median absolute deviation
_MAX_WINSORIZED = 0.2  # maximum share of the weight of an output that is clipped


def winsorized(targets, weights):
    """Return targets (n, t) clipped to three robust standard deviations from their median.

    The median, and the median absolute deviation from it, are those of all ranks' rows. If more
    than a fifth of the weight of an output is farther away, its values are not gross errors, and
    the output is not clipped.
    """
    every, weights = map(np.concatenate, zip(*gather((targets, weights)), strict=True))
    center = weighted_median(every, weights)
    away = np.abs(every - center)
    reach = 3 * _PER_MEDIAN_DEVIATION * weighted_median(away, weights)
    reach[weights @ (away > reach) > _MAX_WINSORIZED * weights.sum()] = np.inf
    reach[reach == 0] = np.inf
    return np.clip(targets, center - reach, center + reach)


def weighted_median(values, weights):
    """Return the weighted median of each column, (t,)."""
    order = np.argsort(values, axis=0)
    totals = np.cumsum(weights[order], axis=0)
    middle = (totals < totals[-1] / 2).sum(0, keepdims=True)
    return np.take_along_axis(values, np.take_along_axis(order, middle, 0), 0)[0]
