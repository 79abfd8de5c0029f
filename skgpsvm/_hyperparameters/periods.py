"""Starting values of the periods of a kernel."""

import math

import torch

from .._collapsed import Hyperparameters
from .._evidence import Evidence
from .._linalg import LARGEST_JITTER
from .._robust import winsorized
from .._torch_kernels import theta_bounds, torch_kernel
from ..kernels import Columns
from ..likelihoods._regression import observations

_ROWS, _COMPARED_ROWS = 128, 1000  # for all periods, and for the best and the given ones
_OVERSAMPLING = 4  # frequencies tried within the width of a peak
# Noise of standardized targets. With less, functions of twice the period may follow the rows: those
# of 1, 3 and 6 of 40 samples of 32 labels with log odds 4 sin x for .5, .25 and .1, and none for 1.
_NOISE_VARIANCE = 1.0
_LESS_NOISE = 0.1  # factor of it that is tried too with `_COMPARED_ROWS`


def with_most_likely_periods(kernel, rows, random_state):
    """Return a kernel with its most likely periods, see `most_likely_periods`, given some rows.

    The evidence is that of a regression on the standardized targets, which are winsorized, or on
    the standardized indicators of the classes. A given period returns if more rows prefer it.
    """
    columns = columns_of_periods(kernel)
    if not columns:
        return kernel
    given = torch.tensor(kernel.theta, device=rows.device)
    log_noise = given.new_tensor([math.log(_NOISE_VARIANCE)])
    point = Hyperparameters(given, given.new_empty(0), log_noise)
    theta = most_likely_periods(kernel, _standardized(rows.subset(_ROWS, random_state)), point)
    if rows.n_rows > _ROWS and not theta.equal(given):
        more = _standardized(rows.subset(_COMPARED_ROWS, random_state))
        evidence = Evidence(torch_kernel(kernel), more, LARGEST_JITTER)

        def value(theta):
            noises = (log_noise, log_noise + math.log(_LESS_NOISE))
            return max(evidence.value(theta, point.Z, noise) for noise in noises)

        best = value(theta)
        for j in columns:
            trial = theta.clone()
            trial[j] = given[j]
            if (found := value(trial)) > best:
                theta, best = trial, found
    return kernel.clone_with_theta(theta.cpu().numpy())


def _standardized(rows):
    """Return rows with standardized targets, see `with_most_likely_periods`."""
    targets, weights = rows.targets, rows.weights.double()
    if targets.is_floating_point():
        y = observations(targets.double())[0]
        y = torch.as_tensor(winsorized(y.cpu().numpy(), weights.cpu().numpy())).to(weights)
    else:
        y = torch.nn.functional.one_hot(targets).double()
    y = y - weights @ y / weights.sum()
    y = y / (weights @ y.square() / weights.sum()).sqrt().clamp_min(torch.finfo(y.dtype).eps)
    return rows.with_targets(y)


def columns_of_periods(kernel):
    """Return the columns of X that each free period is of, by its place in theta, a dict."""
    found, place, params = {}, 0, kernel.get_params()
    for h in (h for h in kernel.hyperparameters if not h.fixed):
        if h.name.endswith("periodicity"):
            path, columns = h.name.split("__")[:-1], slice(None)
            parts = [kernel, *(params["__".join(path[: i + 1])] for i in range(len(path)))]
            for part in (part for part in parts if isinstance(part, Columns)):
                own = list(part.columns)
                columns = own if isinstance(columns, slice) else [columns[i] for i in own]
            found[place] = columns
        place += h.n_elements
    return found


def period_units(kernel, scale):
    r"""Return units of log theta, relative to theta, for `Free`; None without a free period.

    A period p whose logarithm changes by one unit, :math:`p / 2 \pi D`, shifts the phase of rows
    that differ by D, the standard deviation of each feature (d,), by one radian. Steps that suit
    the other hyperparameters would miss the peak of the objective.
    """
    columns = columns_of_periods(kernel)
    if not columns:
        return None
    units = scale.new_full((kernel.n_dims,), math.inf)
    for j, own in columns.items():
        units[j] = 1 / (2 * math.pi * scale[own].norm())
    return units


def most_likely_periods(kernel, rows, point):
    """Return theta with the periods of highest evidence, each in turn with the others held.

    The evidence of n rows, whose largest distance is D, has a peak of width 1 / D in the frequency
    for each period that explains them, and gradients lead to the nearest. So it is evaluated at the
    frequencies :math:`j / (4 D)` up to n / (2 D). The given period stays if none of them is better.
    Distances are those in the columns of the periodic kernel.
    """
    # The largest jitter, which is little beside the noise: kernels that need more are refused.
    evidence = Evidence(torch_kernel(kernel), rows, LARGEST_JITTER)
    X, low_high = rows.take(slice(None))[0].double(), theta_bounds(kernel, rows.device)
    theta, best = point.theta, evidence.value(*point)
    steps = torch.arange(1, _OVERSAMPLING * len(X) // 2 + 1, dtype=theta.dtype, device=theta.device)
    for j, columns in columns_of_periods(kernel).items():
        widest = torch.cdist(X[:, columns], X[:, columns]).max()
        log_periods = (_OVERSAMPLING * widest / steps).log()  # below all bounds if rows are equal
        start, (low, high) = theta, low_high[j]
        for log_period in log_periods[(low <= log_periods) & (log_periods <= high)]:
            trial = start.clone()
            trial[j] = log_period
            value = evidence.value(trial, point.Z, point.noise)
            if value > best:
                theta, best = trial, value
    return theta
