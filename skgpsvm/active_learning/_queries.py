"""Queries that choose the points with the highest scores."""

import warnings
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d, gen_batches

from .._validation import check_number, is_missing
from ._scores import (
    ROWS,
    bald,
    least_confident,
    margin,
    predictive_entropy,
    rows_of,
    table,
    variation_ratio,
)


def _highest(scores, n_instances, rng=None):
    """Return the indices of the highest scores, best first.

    `rng` orders equal scores at random; without it they are ordered by index.
    """
    whole = isinstance(n_instances, Integral) and not isinstance(n_instances, bool)
    if not (whole and 1 <= n_instances <= len(scores)):
        raise ValueError(
            f"Cannot choose {n_instances!r} of {len(scores)} points; give an integer from 1 to "
            f"{len(scores)}."
        )
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


def _sampling(score, name):
    """Return the query function that maximizes a score."""

    def sampling(
        classifier, X, n_instances=1, random_tie_break=False, random_state=None, **score_params
    ):
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


class ScoreQueryStrategy(BaseEstimator):
    """Query strategy that maximizes a score, with scikit-activeml's interface.

    Parameters
    ----------
    score : callable, default=least_confident
        Function ``score(clf, X) -> (n,)`` whose higher values are more informative. The score of a
        row must not depend on the other rows. Any score of this module is valid, and so is
        ``functools.partial(bald, n_samples=1024)``.
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

    def __init__(self, score=least_confident, random_state=None):
        self.score = score
        self.random_state = random_state

    def query(
        self,
        X,
        y,
        clf,
        fit_clf=True,
        sample_weight=None,
        *,
        candidates=None,
        batch_size=1,
        return_utilities=False,
    ):
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
            Whether to return the scores, too.

        Returns
        -------
        query_indices : ndarray of shape (batch_size,)
            Indices of the chosen points, the most informative first. They index `candidates` if
            it holds points, else `X`.
        utilities : ndarray of shape (batch_size, n) or (batch_size, k)
            Returned only with `return_utilities`. Row i holds the scores that choice i maximizes;
            it is NaN for points that are not candidates or were chosen before.

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
        query_indices = index[_highest(scores, batch_size, rng)]
        if not return_utilities:
            return query_indices
        utilities = np.full((batch_size, pool.shape[0]), np.nan)
        utilities[:, index] = scores
        for i, chosen in enumerate(query_indices):
            utilities[i + 1 :, chosen] = np.nan
        return query_indices, utilities


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
