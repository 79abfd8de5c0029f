"""Descriptions of columns: ranges, transformations, point masses and far numbers."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import yeojohnson_normmax

from .._distributed import gather, n_ranks
from .._memory import CHUNK_ROWS
from .._rows import column
from ._basis import Feature
from ._defaults import DEFAULTS

_N_POWER_ROWS = 20_000  # rows that the power of a feature is estimated from
_POWERS = (-2.0, 4.0)
# New rows outside a range: more than this many, and more than this share, are told of.
_MAX_OUTSIDE, _MAX_SHARE_OUTSIDE = 5, 0.05
_N_NEAR = 5  # neighbors on either side that a point mass is compared with
_MIN_OTHERS = 4  # different numbers besides those that are far
_ROUNDING = 1e-9  # relative, of a sum of weights
_MARGIN = 0.1  # of the range, in which an effect with a constraint goes on to numbers that are far


def described(X, weights, n_levels, scaling, requested, *, masses=True):
    """Return the `Feature` of each column, from the rows of positive weight of all ranks.

    The features of point masses, if these are wanted, follow those of the columns. Columns without
    a requested term are described as constant. ``X`` (n, d), an array or `Rows`, has the rows of
    this rank, and ``n_levels`` (d,) is 0 for numbers.
    """
    used = np.flatnonzero(weights)
    n_used, totals = zip(*gather((len(used), weights.sum())), strict=True)
    n_used = sum(n_used)
    single = sum(totals) <= (1 + _ROUNDING) * n_used
    sampled = used[:: max(1, n_used // _N_POWER_ROWS)]
    sample = _of_all_ranks(X[sampled])
    in_terms = requested.used
    with_masses = {*requested.singles} - requested.constrained if masses else set()
    shared = [
        PointMasses()
        if levels or j not in in_terms
        else point_masses(sample[:, j], j in with_masses, j in requested.constrained)
        for j, levels in enumerate(n_levels)
    ]
    low, high = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
    missing = np.zeros(X.shape[1], dtype=bool)
    beyond = np.zeros((2, X.shape[1]), dtype=bool)
    ends = np.array([[own.low, own.high] for own in shared]).reshape(-1, 2).T
    for start in range(0, len(X), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        chunk = X[rows][weights[rows] > 0]
        if len(chunk):
            chunk, known = _without_far(chunk, shared), chunk
            low = np.fmin(low, np.fmin.reduce(chunk, 0))
            high = np.fmax(high, np.fmax.reduce(chunk, 0))
            missing |= np.isnan(known).any(0)
            beyond |= [(known < ends[0]).any(0), (known > ends[1]).any(0)]
    low, high, missing, beyond = zip(*gather((low, high, missing, beyond)), strict=True)
    low, high, missing = np.min(low, 0), np.max(high, 0), np.any(missing, 0)
    margins = np.where(np.any(beyond, 0), _MARGIN * (high - low), 0.0)
    found = []
    for j, levels in enumerate(n_levels):
        if j not in in_terms or not (levels or low[j] < high[j]):  # equal, or nothing but NaN
            found.append(Feature(constant=True))
            continue
        if levels:
            # If every row has its own level, an effect cannot be distinguished from noise.
            own = single and levels >= n_used == len(np.unique(_of_all_ranks(column(X, j)[used])))
            found.append(Feature(constant=True) if own else Feature(n_levels=int(levels)))
            continue
        kind, period = requested.kinds.get(j, ("smooth", None))
        feature = Feature(
            missing=bool(missing[j]),
            linear=kind == "linear",
            monotonic=requested.monotonic.get(j, 0),
            convex=requested.convex.get(j, 0),
            sentinels=shared[j].sentinels,
        )
        others = sample[~shared[j].are_far(sample[:, j]), j]
        if kind == "cyclic":
            feature.period = period or _period(others, low[j], high[j])
        elif kind == "smooth" and scaling == "power":
            feature.center, feature.scale, feature.power = _power(others)
        own = np.array([low[j], high[j]])
        if feature.constrained:
            own += [-margins[0, j], margins[1, j]]  # numbers that are far count as these ends
        feature.low, feature.high = ((own - feature.center) / feature.scale).tolist()
        found.append(feature)
    return found + [
        Feature(n_levels=2, column=j, value=value)
        for j, own in enumerate(shared)
        if not found[j].constant
        for value in own.values
    ]


@dataclass(frozen=True)
class PointMasses:
    """Numbers of a column that many rows share."""

    values: tuple = ()  # in ascending order
    sentinels: tuple = ()  # those that are far from all other numbers
    low: float = -np.inf  # numbers outside these ends are far from all others, too
    high: float = np.inf

    def are_far(self, column):
        """Return a mask of the numbers of a column that are far from the others."""
        return np.isin(column, self.sentinels) | (column < self.low) | (column > self.high)


def point_masses(column, wanted=True, constrained=False):
    """Return the `PointMasses` of a column (n,), which has NaN where numbers are missing.

    A number is a point mass if many rows have it, and far fewer have its neighbors in the order of
    the numbers. There is none if there are many such numbers, as among rounded ones, or few
    different numbers, each of which has an inducing point. A number at an end is a sentinel, and a
    point mass in any case, if all others would fill only a small part of the range. If few rows
    have it, it is merely outside the range; unless ``wanted``, there are such numbers alone. With a
    constraint on the effect, all that are far are outside if they are less than half: they would
    leave the others hardly one inducing point.
    """
    values, counts = np.unique(column[np.isfinite(column)], return_counts=True)
    enough = (counts >= DEFAULTS.mass_rows) & wanted
    shared = enough & (counts >= DEFAULTS.mass_share * counts.sum())
    is_mass, is_sentinel = np.zeros_like(shared), np.zeros_like(shared)
    for k in np.flatnonzero(shared) if len(values) > DEFAULTS.points else ():
        near = np.r_[counts[max(k - _N_NEAR, 0) : k], counts[k + 1 : k + 1 + _N_NEAR]]
        is_mass[k] = counts[k] > DEFAULTS.mass_ratio * np.median(near)
    is_mass &= is_mass.sum() <= DEFAULTS.max_masses
    first, last = 0, len(values)
    parts = values, counts, enough, constrained
    while (ends := _ends(*parts, slice(first, last))) != (first, last):
        first, last = ends
    is_sentinel[:first] = is_sentinel[last:] = True
    is_sentinel &= enough
    found = is_mass | is_sentinel, is_sentinel
    limits = ()
    if last - first >= _MIN_OTHERS:
        reach = DEFAULTS.sentinel_gap * (values[last - 1] - values[first])
        limits = values[first] - reach, values[last - 1] + reach
    return PointMasses(*(tuple(values[own].tolist()) for own in found), *limits)


def _ends(values, counts, enough, constrained, part):
    """Return (start, stop) of a part of sorted numbers without those at one end that are far.

    ``counts`` are the rows that have each number, and ``enough`` is whether these are enough for a
    sentinel. A group of numbers is far if that holds for each, or if all together have few rows:
    less than half of all with a constraint on the effect.
    """
    values, counts, enough = values[part], counts[part], enough[part]
    n, gaps = len(values), np.diff(values)
    few = counts.sum() / 2
    if not constrained:
        few = min(DEFAULTS.mass_rows, max(2, DEFAULTS.mass_share * counts.sum()))
    for k in range(1, n - _MIN_OTHERS + 1):
        low, high = (
            enough[own].all() or counts[own].sum() < few for own in (np.s_[:k], np.s_[-k:])
        )
        if low and gaps[k - 1] > DEFAULTS.sentinel_gap * (values[-1] - values[k]):
            return part.start + k, part.stop
        if high and gaps[-k] > DEFAULTS.sentinel_gap * (values[-k - 1] - values[0]):
            return part.start, part.stop - k
        if not (low or high):
            break
    return part.start, part.stop


def _without_far(X, shared):
    """Return rows (n, d) with NaN for numbers that are far by the columns' `PointMasses`."""
    far = np.stack([own.are_far(X[:, j]) for j, own in enumerate(shared)], 1)
    return np.where(far, np.nan, X) if far.any() else X


def _of_all_ranks(rows):
    """Return the rows (n, d) of all ranks, in the order of `merged_rows`."""
    if n_ranks() == 1:
        return rows
    rows = np.concatenate(gather(rows))
    return rows[np.lexsort(np.nan_to_num(rows, nan=np.inf).T[::-1])]


def distinct(rows, numbers, most):
    """Return the distinct numbers of columns with at most ``most``: sorted float64, by column.

    They are those of all ranks.
    """
    found = {j: torch.empty(0, dtype=torch.float64) for j in numbers}
    for index in rows.chunks():
        if not found:
            break
        X = rows.take(index)[0].cpu()
        for j, known in list(found.items()):
            column = X[:, j]
            found[j] = torch.cat([known, column[~column.isnan()]]).unique()
            if len(found[j]) > most:
                del found[j]
    ranks, every = gather(found), {}
    for j in numbers:
        if all(j in part for part in ranks):
            values = torch.cat([part[j] for part in ranks]).unique()
            every |= {j: values} if len(values) <= most else {}
    return every


def _period(column, low, high):
    """Return the period of a column: its range, or the number of integers in it."""
    column = column[np.isfinite(column)]
    return float(high - low + (column == column.round()).all())


def _power(column):
    """Return center, scale and power of a column; the power is 1 unless the column is skewed."""
    column = column[np.isfinite(column)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        center, scale = column.mean(), column.std()
    if len(column) and not np.isfinite(scale):
        raise ValueError("Squares of X overflow in float64. Scale X down.")
    if not scale > 0:
        return 0.0, 1.0, 1.0
    column = (column - center) / scale
    if abs((column**3).mean()) < DEFAULTS.skewness:
        return center, scale, 1.0
    with np.errstate(invalid="ignore"):
        power = yeojohnson_normmax(column)
    return center, scale, float(np.clip(power, *_POWERS))


def new_features(features, columns, X, weights):
    """Return those of some columns with many rows of all ranks outside the range of the first rows.

    Rows with unknown levels count too.
    """
    new = {j: features[j].is_new(column(X, j)) for j in columns}
    counts = sum(gather(np.array([[own.sum(), weights[own].sum()] for own in new.values()])))
    most = _MAX_SHARE_OUTSIDE * sum(gather(weights.sum()))
    counts = zip(columns, counts.reshape(-1, 2), strict=True)
    return [j for j, (n, weight) in counts if n > _MAX_OUTSIDE and weight > most]
