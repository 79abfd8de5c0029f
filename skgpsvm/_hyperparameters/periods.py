"""Starting values of the periods of a kernel."""

import torch

from .._evidence import Evidence
from .._torch_kernels import theta_bounds, torch_kernel
from .initialization import free_periods

ROWS = 128  # on which periods are compared
_OVERSAMPLING = 4  # frequencies tried within the width of a peak


def most_likely_periods(kernel, rows, point):
    """Return theta with the periods of highest evidence, each in turn with the others held.

    The evidence of n rows, whose largest distance is D, has a peak of width 1 / D in the frequency
    for each period that explains them, and gradients lead to the nearest. So it is evaluated at the
    frequencies :math:`j / (4 D)` up to n / (2 D). The given period stays if none of them is better.
    """
    evidence = Evidence(torch_kernel(kernel), rows)
    X, low_high = rows.take(slice(None))[0].double(), theta_bounds(kernel, rows.device)
    widest = torch.cdist(X, X).max()
    theta, best = point.theta, evidence.value(*point)
    if widest == 0:
        return theta
    steps = torch.arange(1, _OVERSAMPLING * len(X) // 2 + 1, dtype=theta.dtype, device=theta.device)
    log_periods = (_OVERSAMPLING * widest / steps).log()
    for j in free_periods(kernel).nonzero()[0]:
        start, (low, high) = theta, low_high[j]
        for log_period in log_periods[(low <= log_periods) & (log_periods <= high)]:
            trial = start.clone()
            trial[j] = log_period
            value = evidence.value(trial, point.Z, point.noise)
            if value > best:
                theta, best = trial, value
    return theta
