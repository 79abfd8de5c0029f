"""Queries: the points with the highest scores, or a diverse sample of points with high scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d, gen_batches

from .._typing import ArrayLike, MatrixLike, RandomStateLike, Score
from .._validation import check_number, is_missing
from ._epig import epig
from ._scores import (
    ROWS,
    bald,
    latent_model,
    least_confident,
    margin,
    predictive_entropy,
    rows_of,
    table,
    variation_ratio,
)

_MIN_SHARE = 1e-8  # of a variance; less is rounding error
_PROPOSALS = 64  # points proposed at a time
_MAX_PROPOSALS = 100  # for each point to choose


def _check_number_of(n_instances, n):
    whole = isinstance(n_instances, Integral) and not isinstance(n_instances, bool)
    if not (whole and 1 <= n_instances <= n):
        raise ValueError(
            f"Cannot choose {n_instances!r} of {n} points; give an integer from 1 to {n}."
        )


def _highest(scores, n_instances, rng=None):
    """Return the indices of the highest scores, best first.

    `rng` orders equal scores at random; without it they are ordered by index.
    """
    _check_number_of(n_instances, len(scores))
    order = np.arange(len(scores)) if rng is None else rng.permutation(len(scores))
    return order[np.argsort(-scores[order], kind="stable")[:n_instances]]


_SAMPLING_DOC = """Choose the points with the largest `{score}`.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier that `{score}` accepts.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.
    n_instances : int, default=1
        Number of points to choose.
    random_tie_break : bool, default=False
        Whether equal scores are ordered at random instead of by index.
    random_state : int, RandomState instance or None, default=None
        Seeds the random order of equal scores.
    **score_params : dict
        Further keyword arguments of `{score}`.

    Returns
    -------
    indices : ndarray of shape (n_instances,)
        Indices of the chosen points, the most informative first.
    score : ndarray of shape (n_instances,)
        Scores of the chosen points.

    Raises
    ------
    ValueError
        If `n_instances` is not an integer from 1 to n.
    """


def _sampling(score: Score, name: str) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return the query function that maximizes a score."""

    def sampling(
        classifier: BaseEstimator,
        X: MatrixLike,
        n_instances: int = 1,
        random_tie_break: bool = False,
        random_state: RandomStateLike = None,
        **score_params: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = score(classifier, X, **score_params)
        rng = check_random_state(random_state) if random_tie_break else None
        indices = _highest(scores, n_instances, rng)
        return indices, scores[indices]

    sampling.__name__ = sampling.__qualname__ = name
    sampling.__doc__ = _SAMPLING_DOC.format(score=score.__name__)
    return sampling


least_confident_sampling = _sampling(least_confident, "least_confident_sampling")
variation_ratio_sampling = _sampling(variation_ratio, "variation_ratio_sampling")
entropy_sampling = _sampling(predictive_entropy, "entropy_sampling")
margin_sampling = _sampling(margin, "margin_sampling")
bald_sampling = _sampling(bald, "bald_sampling")
epig_sampling = _sampling(epig, "epig_sampling")


def diverse_sampling(
    classifier: BaseEstimator,
    X: MatrixLike,
    n_instances: int = 1,
    score: Score = least_confident,
    random_state: RandomStateLike = None,
    **score_params: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a batch of points that are informative and differ from each other.

    The points with the highest scores are often neighbors, so that one label reveals the others.
    This function draws points one after the other, with probabilities proportional to the squared
    score times the remaining variance. This is the variance of the latent functions at a point
    given their values at the points drawn before, divided by the current variance.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier with `latent_covariance`, or a `Pipeline` or search around one.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.
    n_instances : int, default=1
        Number of points to choose. Memory is O(b^2) for b points, independent of the size of the
        pool.
    score : callable, default=least_confident
        Score of this module, or another function ``score(classifier, X) -> (n,)`` without negative
        values.
    random_state : int, RandomState instance or None, default=None
        Seeds the draws.
    **score_params : dict
        Further keyword arguments of ``score``.

    Returns
    -------
    indices : ndarray of shape (n_instances,)
        Indices of the chosen points, in the order of the draws.
    score : ndarray of shape (n_instances,)
        Scores of the chosen points.

    Raises
    ------
    TypeError
        If the classifier has no `latent_covariance`.
    ValueError
        If `n_instances` is not an integer from 1 to n, or a score is negative.

    Notes
    -----
    The remaining share of the variance is averaged over the latent functions. By rejection
    sampling, points are proposed in proportion to their squared scores, and accepted with this
    share as the probability. If 100 proposals for each point do not suffice, as in a pool of few
    distinct rows, the points with the highest scores are added.

    Source: Arthur and Vassilvitskii (2007), k-means++, with the remaining variance in place of the
    squared distance from the points drawn before; Ash et al. (2020), "Deep batch active learning",
    take the distance of gradients.
    """
    scores = score(classifier, X, **score_params)
    return _drawn(classifier, table(X), scores, n_instances, check_random_state(random_state))


def _drawn(classifier, X, scores, n_instances, rng):
    """Return indices and scores of a diverse sample, see `diverse_sampling`."""
    _check_number_of(n_instances, len(scores))
    if not (scores >= 0).all():
        raise ValueError("A diverse sample needs scores of at least 0, without NaN.")

    def covariance(index):
        model, rows = latent_model(classifier, rows_of(X, index), "latent_covariance")
        cov = model.latent_covariance(rows)
        return np.moveaxis(cov.reshape(len(index), len(index), -1), 2, 0)

    weights = (scores / scores.max()) ** 2 if scores.any() else np.ones(len(scores))
    ends, chosen = np.cumsum(weights), np.empty(0, dtype=int)
    for _ in range(math.ceil(_MAX_PROPOSALS * n_instances / _PROPOSALS)):
        proposed = np.searchsorted(ends, rng.uniform(0, ends[-1], _PROPOSALS), side="right")
        index = np.concatenate([chosen, proposed])
        chosen = _accepted(index, covariance(index), len(chosen), n_instances, rng)
        if len(chosen) == n_instances:
            break
    best = _highest(scores, len(scores))
    rest = best[~np.isin(best, chosen)]
    chosen = np.concatenate([chosen, rest[: n_instances - len(chosen)]])
    return chosen, scores[chosen]


def _accepted(index, cov, n_known, max_size, rng):
    """Return indices of known points and those accepted of the others, at most ``max_size``.

    The first ``n_known`` points of ``index`` (k,) are known; others may occur repeatedly. A point
    is accepted with a probability that is the share of its variance left, given the known points
    and those accepted before. Variances are summed over the latent functions, with covariances
    (c, k, k).

    Given the value at one more point a, a covariance :math:`k(x, x')` becomes
    :math:`k(x, x') - k(x, a) k(a, x') / k(a, a)`. The rows :math:`k(a, x') / k(a, a)^{1/2}` are
    those of a Cholesky factor; only these and the variances left are computed.
    """
    now = np.diagonal(cov, axis1=1, axis2=2)
    left, accepted = now.copy(), []
    rows: list[np.ndarray] = []
    for i, point in enumerate(index):
        usable = left[:, i] > _MIN_SHARE * now[:, i]
        share = np.divide(left[:, i], now[:, i], where=usable, out=np.zeros(len(now))).mean()
        if i >= n_known and (rng.uniform() >= share or point in accepted):
            continue
        accepted.append(point)
        if len(accepted) == max_size:
            break
        row = cov[:, i] - sum(known[:, i, None] * known for known in rows)
        scale = np.sqrt(left[:, i, None])
        rows.append(np.divide(row, scale, where=usable[:, None], out=np.zeros_like(row)))
        left -= rows[-1] ** 2
    return np.array(accepted)


class ScoreQueryStrategy(BaseEstimator):
    """Query strategy that maximizes a score, with scikit-activeml's interface.

    Parameters
    ----------
    score : callable, default=least_confident
        Function ``score(clf, X) -> (n,)`` whose higher values are more informative: a score of
        this module, with or without options, as in ``functools.partial(bald, n_samples=1024)``, or
        another one. The score of a row must not depend on the other rows.
    random_state : int, RandomState instance or None, default=None
        Seeds the random order of equal scores.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skgpsvm.active_learning import ScoreQueryStrategy
    >>> X = np.array([[-2.0], [-1.0], [0.1], [1.0], [2.0]])
    >>> y = np.array([0, np.nan, np.nan, np.nan, 1])
    >>> ScoreQueryStrategy().query(X, y, LogisticRegression())
    array([2])
    """

    def __init__(
        self, score: Score = least_confident, random_state: RandomStateLike = None
    ) -> None:
        self.score = score
        self.random_state = random_state

    def query(
        self,
        X: MatrixLike,
        y: ArrayLike,
        clf: BaseEstimator,
        fit_clf: bool = True,
        sample_weight: ArrayLike | None = None,
        *,
        candidates: MatrixLike | None = None,
        batch_size: int = 1,
        return_utilities: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Choose the points to be labeled next.

        Parameters
        ----------
        X : array-like, sparse matrix or dataframe of shape (n, d)
            Labeled and unlabeled points.
        y : array-like of shape (n,)
            Labels; missing labels are NaN or None.
        clf : classifier
            The classifier to score with. It is not changed.
        fit_clf : bool, default=True
            Whether to fit a clone of `clf` to the labeled points first. With `False`, `clf` must
            already be fitted.
        sample_weight : array-like of shape (n,), default=None
            Sample weights for that fit.
        candidates : None, array of shape (k,) or (n,), or array-like (k, d), default=None
            The points to choose from. None means the unlabeled points of `X`. A one-dimensional
            array selects rows of `X`, by index or as a mask of n bools. A two-dimensional one
            holds the points themselves, which need not be in `X`.
        batch_size : int, default=1
            Number of points to choose. If it exceeds the number of candidates, it is reduced to
            that number with a warning.
        return_utilities : bool, default=False
            Whether to return the scores too.

        Returns
        -------
        query_indices : ndarray of shape (batch_size,)
            Indices of the chosen points, the most informative first. They index `candidates` if
            it holds points, else `X`.
        utilities : ndarray of shape (batch_size, n) or (batch_size, k)
            Returned only with `return_utilities`. Row i holds the scores from which the i-th point
            was chosen; it is NaN for points that are not candidates or were chosen before.

        Raises
        ------
        ValueError
            If there is no candidate or no labeled point to fit, if `candidates` holds neither rows
            of `X` nor points, or if `batch_size` is not a positive integer.
        """
        check_number("batch_size", batch_size, 1, integer=True)
        check_consistent_length(X, y, sample_weight)
        X, y = table(X), column_or_1d(y if hasattr(y, "dtype") else np.array(y, dtype=object))
        missing = _is_missing(y)
        if fit_clf:
            clf = _fit_labeled(clf, X, y, sample_weight, np.flatnonzero(~missing))
        pool, index = _pool_and_index(X, missing, candidates)
        if batch_size > len(index):
            warnings.warn(
                f"batch_size={batch_size} is reduced to the {len(index)} candidates.", stacklevel=2
            )
            batch_size = len(index)
        batches = gen_batches(len(index), ROWS)
        scores = np.concatenate([self.score(clf, rows_of(pool, index[b])) for b in batches])
        rng = check_random_state(self.random_state)
        query_indices = index[self._chosen(clf, rows_of(pool, index), scores, batch_size, rng)]
        if not return_utilities:
            return query_indices
        utilities = np.full((batch_size, pool.shape[0]), np.nan)
        utilities[:, index] = scores
        for i, chosen in enumerate(query_indices):
            utilities[i + 1 :, chosen] = np.nan
        return query_indices, utilities

    def _chosen(self, clf, candidates, scores, batch_size, rng):
        return _highest(scores, batch_size, rng)


class DiverseQueryStrategy(ScoreQueryStrategy):
    """Query strategy for batches, which draws points by `diverse_sampling`.

    Its interface is that of `ScoreQueryStrategy`. The classifier needs `latent_covariance`, which
    all classifiers of the package have.

    Parameters
    ----------
    score : callable, default=least_confident
        Function ``score(clf, X) -> (n,)`` without negative values, whose higher values are more
        informative.
    random_state : int, RandomState instance or None, default=None
        Seeds the draws.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm import BayesianSVC
    >>> from skgpsvm.active_learning import DiverseQueryStrategy
    >>> X = np.linspace(-1, 1, 30)[:, None]
    >>> y = np.full(30, np.nan)
    >>> y[[0, -1]] = 0, 1
    >>> DiverseQueryStrategy(random_state=0).query(X, y, BayesianSVC(), batch_size=3)
    array([15, 23,  5])
    """

    def _chosen(self, clf, candidates, scores, batch_size, rng):
        return _drawn(clf, candidates, scores, batch_size, rng)[0]


def _is_missing(y):
    """Return a mask of the labels that are NaN, NA or None."""
    if y.dtype.kind == "O":
        return np.array([is_missing(label) for label in y], dtype=bool)
    return np.isnan(y) if y.dtype.kind == "f" else np.zeros(len(y), dtype=bool)


def _fit_labeled(clf, X, y, sample_weight, labeled):
    """Return a clone of `clf` fitted to the rows `labeled`."""
    if not len(labeled):
        raise ValueError(
            "All labels in y are missing (NaN or None), so clf cannot be fitted; label a point of "
            "each class first, or pass a fitted clf and fit_clf=False."
        )
    weights = {}
    if sample_weight is not None:
        weights["sample_weight"] = np.asarray(sample_weight)[labeled]
    labels = np.asarray(y[labeled].tolist())  # an array of objects gets its natural dtype
    return clone(clf).fit(rows_of(X, labeled), labels, **weights)


def _row_numbers(candidates, n):
    """Return the row indices given by integers or by a mask of n bools."""
    candidates = np.asarray(candidates)
    if candidates.dtype.kind == "b" and len(candidates) == n:
        return np.flatnonzero(candidates)
    whole = candidates.dtype.kind in "iu"
    if not len(candidates) or (whole and 0 <= candidates.min() <= candidates.max() < n):
        return candidates.astype(int)
    raise ValueError(
        f"candidates={candidates!r} must be row numbers from 0 to {n - 1}, {n} bools, or points of "
        "shape (k, d)."
    )


def _pool_and_index(X, missing, candidates):
    """Return the table that contains the candidates, and their row indices in it."""
    if candidates is None:
        pool, index = X, np.flatnonzero(missing)
    else:
        candidates = table(candidates)
        if len(candidates.shape) > 1:
            pool, index = candidates, np.arange(candidates.shape[0])
        else:
            pool, index = X, np.unique(_row_numbers(candidates, X.shape[0]))
    if not len(index):
        raise ValueError(
            "There is no candidate to choose: pass candidates, or mark unlabeled points in y by "
            "NaN or None."
        )
    return pool, index
