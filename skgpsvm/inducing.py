"""Choice of inducing points: weighted k-means, random rows, or points given by the user."""

from __future__ import annotations

import numbers

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.utils import check_array, check_random_state, gen_batches

from ._csr import MAX_DENSE, CSRRows
from ._memory import SMALL_BLOCK, block_rows
from ._rows import Rows, checked_rows, is_source
from ._scales import usual_deviations
from ._typing import ArrayLike, InducingPoints, MatrixLike, RandomStateLike

# With 3 local trials and 10 Lloyd iterations on all of 300 to 16 000 rows, the decrease in inertia
# from random rows is 97 to 101 % of the decrease with scikit-learn's defaults, in 0.4 to 1 times
# their time (128 to 512 centers, normal and clustered data, d = 16). On a sample of 20 rows per
# center it is 75 to 84 %.
_MIN_ROWS = 10_000
_ROWS_PER_POINT = 40
_LOCAL_TRIALS = 3
_LLOYD_ITERATIONS = 10
_RESOLUTION = 1e-5  # rows closer than this many standard deviations are merged
# Lower bounds of a column's standard deviation relative to half its range, and of a relative
# weight. They keep squared distances and weighted sums accurate if a few rows are far away or have
# tiny weights.
_MIN_STD = 1e-6
_MIN_WEIGHT = 1e-12


def select_inducing_points(
    X: MatrixLike,
    n_inducing: int,
    method: InducingPoints = "kmeans",
    sample_weight: ArrayLike | None = None,
    random_state: RandomStateLike = None,
    *,
    standardize: bool = True,
) -> np.ndarray:
    """Choose inducing points for a data set.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n, d)
        Finite numbers, or a source, see :ref:`sources`. Rows are drawn from it in order.
    n_inducing : int
        Maximum number of points. Fewer are returned if the data have fewer distinct rows.
        Ignored if `method` is an array.
    method : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Centers of weighted k-means on standardized columns; distinct rows drawn at random, with
        probability by weight; or the points themselves.
    sample_weight : array-like of shape (n,), default=None
        Non-negative weights. Rows of weight 0 are ignored.
    random_state : int, RandomState instance or None, default=None
        Seeds the subsample, k-means and the random rows.
    standardize : bool, default=True
        Whether k-means standardizes the columns. Leave them as they are where they have one unit,
        as the words of a text have: standardized, the rarest words would count most.

    Returns
    -------
    Z : ndarray of shape (m, d)
        Finite, of dtype float64, in the units of `X`. No row appears twice and rows are sorted,
        except for given points, which are returned unchanged.

    Raises
    ------
    ValueError
        If `n_inducing`, `method` or the weights are invalid, or rows that are used hold NaN or
        infinity.

    Notes
    -----
    If there are more than ``max(10000, 40 n_inducing)`` rows, a sample of that size is drawn with
    probability by weight. Memory is a few copies of the sample and a few vectors of length n.

    Equal rows are merged, with summed weights, and sorted before any random step. Without
    subsampling, the order of rows therefore does not matter, and an integer weight equals
    repetition of the row to the last bit. (With subsampling, it equals repetition of the row next
    to itself.) If there are at most `n_inducing` distinct rows, both methods return them.

    For k-means, columns are divided by their weighted standard deviation, and columns that are
    constant up to rounding are left out. Rows that agree to 1e-5 standard deviations are merged:
    they would make the kernel matrix singular. A few Lloyd iterations from a k-means++ start are
    enough.

    Source: Arthur and Vassilvitskii (2007) for the initialization of k-means.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm.inducing import select_inducing_points
    >>> X = np.array([[0.0], [0.2], [10.0], [10.2], [10.2]])
    >>> select_inducing_points(X, 2, random_state=0)
    array([[ 0.1       ],
           [10.13333333]])
    >>> select_inducing_points(X, 9)
    array([[ 0. ],
           [ 0.2],
           [10. ],
           [10.2]])
    """
    data = _as_rows(X)
    if not isinstance(method, str):
        return _given_points(method, data.shape[1])
    if method not in ("kmeans", "random"):
        raise ValueError(
            f"Inducing points {method!r} are unknown; use 'kmeans', 'random' or an array (m, d)."
        )
    if not isinstance(n_inducing, numbers.Integral) or n_inducing < 1:
        raise ValueError(f"n_inducing must be an integer of at least 1; got {n_inducing!r}.")
    rng = check_random_state(random_state)
    rows, weights = _working_rows(data, n_inducing, sample_weight, rng)
    Z, is_sparse = rows, issparse(rows)
    if rows.shape[0] > n_inducing:
        if method == "random":
            Z = _random_rows(rows, weights, n_inducing, rng)
        else:
            centers = _kmeans_centers_of_sparse if is_sparse else _kmeans_centers
            Z = centers(rows, weights, n_inducing, rng, standardize)
        Z = _distinct_sparse(Z)[0] if is_sparse else np.unique(Z, axis=0)
    return Z.toarray() if is_sparse else Z


def _as_rows(X):
    """Return ``X`` as an array, `Rows` or `CSRRows`."""
    if issparse(X):
        return CSRRows(X)
    if is_source(X) and not isinstance(X, CSRRows):
        return checked_rows(X)
    if isinstance(X, np.ndarray | Rows | CSRRows):
        return X
    return check_array(X, dtype=None, ensure_all_finite=False)


def _given_points(points, d):
    """Return a validated float64 copy of points (m, d)."""
    try:
        Z = np.array(points, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Inducing points {points!r} must be 'kmeans', 'random' or numbers, an array (m, {d})."
        ) from error
    if Z.ndim != 2 or Z.shape[0] == 0 or Z.shape[1] != d:
        raise ValueError(
            f"Inducing points must be an array (m, {d}), m >= 1, for data of {d} features; got "
            f"shape {Z.shape}."
        )
    if not np.isfinite(Z).all():
        raise ValueError("Inducing points contain NaN or infinity; all values must be finite.")
    return Z


def _working_rows(X, n_inducing, sample_weight, rng):
    """Return sorted distinct rows of `X`, or of a subsample of a large `X`, and their weights."""
    weights = _checked_weights(sample_weight, X.shape[0])
    index = np.flatnonzero(weights)
    weights = weights[index]
    max_rows = max(_MIN_ROWS, _ROWS_PER_POINT * n_inducing)
    if len(index) > max_rows:
        # One draw from each of max_rows equal shares of the weight: sorted, so that a source is
        # read in order, and for equal weights nearly without repetition.
        cumulated = np.cumsum(weights)
        at = (np.arange(max_rows) + rng.uniform(size=max_rows)) / max_rows * cumulated[-1]
        drawn = np.searchsorted(cumulated, at, side="right")
        index, weights = index[np.minimum(drawn, len(index) - 1)], np.ones(max_rows)
    rows = X[index]
    if isinstance(X, CSRRows) and rows.size > MAX_DENSE:
        rows = check_array(rows.matrix, accept_sparse="csr", dtype=np.float64, input_name="X")
        rows, group = _distinct_sparse(rows)
    else:
        rows = check_array(rows, dtype=np.float64, input_name="X")
        rows, group = np.unique(rows, axis=0, return_inverse=True)
    weights = np.bincount(group.ravel(), weights)
    return rows, weights / weights.max()


def _checked_weights(sample_weight, n):
    """Return float64 weights (n,) of at most 1, scaled exactly by a power of two."""
    if sample_weight is None:
        return np.ones(n)
    w = np.asarray(sample_weight, dtype=np.float64)
    if w.shape != (n,) or not (np.isfinite(w).all() and (w >= 0).all() and (w > 0).any()):
        raise ValueError(
            f"sample_weight must be {n} finite, non-negative numbers, not all zero; got "
            + (f"shape {w.shape}." if w.shape != (n,) else f"values from {w.min()} to {w.max()}.")
        )
    return np.where(w > 0, np.maximum(np.ldexp(w, -np.frexp(w.max())[1]), _MIN_WEIGHT), 0)


def _random_rows(rows, weights, m, rng):
    """Draw distinct rows without replacement, with probability by weight (Gumbel's trick)."""
    keys = np.log(weights) + rng.gumbel(size=len(weights))
    return rows[np.argsort(-keys)[:m]]


def _kmeans_centers(rows, weights, m, rng, standardize):
    """Return centers of weighted k-means, in the units of the rows."""
    # Divide by half ranges first: they neither overflow nor vanish, whatever the units.
    low, high = rows.min(axis=0), rows.max(axis=0)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    if not standardize:
        half = np.full_like(half, half.max())
    varies = half > 8 * np.finfo(np.float64).eps * np.maximum(np.abs(low), np.abs(high))
    x = (rows[:, varies] - middle[varies]) / half[varies]
    mean = np.average(x, axis=0, weights=weights)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    if standardize:
        std = usual_deviations(x, weights.sum(), std)
    else:
        std = np.full_like(std, std.max())
    cells = np.round((x - mean) / (np.maximum(std, _MIN_STD) * _RESOLUTION))
    cells, first, group = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    if len(cells) <= m:
        return rows[first]
    labels = _kmeans_labels(cells * _RESOLUTION, np.bincount(group.ravel(), weights), m, rng)
    labels = labels[group.ravel()]
    sums = _sums(x, weights, labels, labels.max() + 1)
    centers = np.tile(rows[0], (len(sums), 1))
    found = sums / np.bincount(labels, weights)[:, None]
    centers[:, varies] = found * half[varies] + middle[varies]
    return np.clip(centers, low, high)


def _kmeans_centers_of_sparse(rows, weights, m, rng, standardize):
    """Return centers of weighted k-means, in the units of the rows, as a CSR array.

    Columns are divided by their standard deviations without being centered, which leaves all
    distances between rows as they are.
    """
    mean, square = (weights @ part / weights.sum() for part in (rows, rows**2))
    std = np.sqrt(np.maximum(square - mean**2, 0))
    std[std <= 8 * np.finfo(np.float64).eps * np.abs(mean)] = np.inf
    if not standardize:
        std = np.full_like(std, std[std < np.inf].max(initial=0) or np.inf)
    cells = csr_array(rows * (1 / (std * _RESOLUTION)))
    cells.data = np.round(cells.data)
    cells, group = _distinct_sparse(cells)
    if cells.shape[0] <= m:
        return rows[np.unique(group, return_index=True)[1]]
    labels = _kmeans_labels(cells * _RESOLUTION, np.bincount(group, weights), m, rng)[group]
    shares = weights / np.bincount(labels, weights)[labels]
    return _sums(rows, shares, labels, labels.max() + 1)


def _distinct_sparse(rows):
    """Return the distinct rows of a CSR array, sorted, and the number of each row among them.

    They are in the order of `numpy.unique`, which is that of the first number that differs. An
    entry in column j of d is written as its sign times d - j and its value, and the end of a row as
    zero, both so that the order of bytes is that of the numbers.
    """
    rows = rows.copy()
    rows.eliminate_zeros()
    rows.sort_indices()
    top, d = np.uint64(2**63), rows.shape[1]
    places = (np.sign(rows.data) * (d - rows.indices)).astype(np.int64).view(np.uint64) ^ top
    bits = rows.data.view(np.uint64)
    values = np.where(bits >= top, ~bits, bits | top)
    entries = np.stack([places, values], 1).astype(">u8")
    keys, ends = np.empty(rows.shape[0], object), rows.indptr
    for i in range(len(keys)):
        keys[i] = entries[ends[i] : ends[i + 1]].tobytes() + int(top).to_bytes(8, "big")
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], group


def _sums(x, weights, labels, k):
    """Return weighted sums (k, d) of the rows of each of k clusters.

    A sparse product adds rows in order. The last digits of a dense one would depend on the number
    of threads.
    """
    return csr_array((weights, (labels, np.arange(len(labels)))), shape=(k, len(labels))) @ x


def _kmeans_labels(x, weights, m, rng):
    """Return the cluster of each row, 0 to at most m - 1, where no cluster is empty."""
    # Its import takes more than half as long as that of all of skgpsvm.
    from sklearn.cluster import kmeans_plusplus

    start, _ = kmeans_plusplus(
        x, m, sample_weight=weights, n_local_trials=_LOCAL_TRIALS, random_state=rng
    )
    return np.unique(_lloyd(x, weights, start), return_inverse=True)[1]


def _lloyd(x, weights, centers):
    """Return labels after Lloyd iterations; empty clusters move to the rows farthest from a center.

    scikit-learn's `KMeans` is not used, because tools that log every `fit` would log it.
    """
    labels, distances = _nearest(x, centers)
    for _ in range(_LLOYD_ITERATIONS):
        counts = np.bincount(labels, minlength=len(centers))
        empty = np.flatnonzero(counts == 0)
        farthest = np.argsort(-distances, kind="stable")
        farthest = farthest[counts[labels[farthest]] > 1][: len(empty)]
        labels[farthest] = empty[: len(farthest)]
        totals = np.bincount(labels, weights, len(centers))
        sums = _sums(x, weights, labels, len(centers))
        sums = sums.toarray() if issparse(sums) else sums
        centers = sums[totals > 0] / totals[totals > 0, None]
        previous, (labels, distances) = labels, _nearest(x, centers)
        if np.array_equal(labels, previous):
            break
    return labels


def _nearest(x, centers):
    """Return the index of the center nearest to each row, and the squared distance to it."""
    labels, distances = np.empty(x.shape[0], dtype=np.intp), np.empty(x.shape[0])
    half, negative = 0.5 * (centers**2).sum(axis=1), -centers.T
    if issparse(x):
        negative = np.ascontiguousarray(negative)
    for rows in gen_batches(x.shape[0], block_rows(len(centers), SMALL_BLOCK)):
        gaps = x[rows] @ negative
        gaps += half
        best = gaps.argmin(axis=1)
        labels[rows] = best
        squares = (x[rows] ** 2).sum(axis=1)
        distances[rows] = 2 * gaps[np.arange(len(best)), best] + squares
    return labels, distances
