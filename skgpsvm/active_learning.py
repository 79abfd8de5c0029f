"""Active learning: scores of pool points, and queries that choose the highest scores.

A higher score marks a more informative point.
"""

import functools
import math
import warnings
from numbers import Integral

import numpy as np
import torch
from scipy.special import entr, ndtri, softmax
from scipy.stats import qmc
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d, gen_batches

from ._estimators import GPEstimator, unwrapped
from ._quadrature import argmax_probability
from ._validation import check_number, is_missing

_ROWS = 2**16  # number of rows scored at a time
_CHUNK = 2**20  # number of latent values drawn at a time


def _table(X):
    """Return `X` itself if it has a shape (array, memmap, sparse, dataframe), else an array."""
    return X if hasattr(X, "shape") else np.asarray(X)


def _rows(X, index):
    """Return rows of `X` by slice or integer array; a slice of an array is a view."""
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


def _in_batches(score):
    """Decorate a score so that it takes the rows of `X` in batches, in bounded memory."""

    @functools.wraps(score)
    def score_all(classifier, X, *args, **kwargs):
        X = _table(X)
        batches = gen_batches(max(1, X.shape[0]), _ROWS)  # an empty X raises the classifier's error
        return np.concatenate([score(classifier, _rows(X, b), *args, **kwargs) for b in batches])

    return score_all


def _latent_model(classifier, X, *methods):
    """Return the part of a fitted classifier with the given methods, and its input.

    The input is `X` after the transformers of the pipeline before that part.
    """
    model, X = unwrapped(
        classifier,
        X,
        lambda part: is_classifier(part) and all(hasattr(part, method) for method in methods),
    )
    if model is None:
        raise TypeError(
            f"This score needs a classifier with {' and '.join(methods)}, such as "
            f"skgpsvm.BayesianSVC, alone or as the last step of a Pipeline; got "
            f"{type(classifier).__name__}. Use least_confident, predictive_entropy or margin, "
            "which need predict_proba only."
        )
    return model, X


def _latent_moments(model, X):
    """Return the means and variances of a model's latents, each (n, c), also where c is 1."""
    moments = model.latent_mean_and_variance(X)
    return tuple(part.reshape(len(part), -1) for part in moments)


@_in_batches
def variation_ratio(classifier, X):
    """Return one minus the largest probability that a class has the largest latent.

    The score is 1 - max_j P(f_j is largest), under the posterior of the latents.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier with `latent_mean_and_variance`, or a `Pipeline` or search around one. Any
        other raises `TypeError`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.

    Returns
    -------
    score : ndarray of shape (n,)
        Between 0 and 1 - 1 / n_classes. For a single latent function, it is the probability that
        the function and its mean differ in sign.

    Notes
    -----
    The score needs only the posterior of the latents. It does not depend on how class
    probabilities are computed from them, such as the ``probability`` of a `BayesianSVC` or its
    calibration.

    Source: Wistuba and Rawat (2018), arXiv:1806.02659, section 4.3.
    Departs from the source: quadrature replaces the frequency of the most frequent winner among
    sampled latents by its limit for infinitely many samples. The limit has no sampling noise and
    hardly any ties.
    """
    model, X = _latent_model(classifier, X, "latent_mean_and_variance")
    if isinstance(model, GPEstimator):
        mean, var = model._latent_moments(X, spread=1.0)
    else:
        mean, var = _latent_moments(model, X)
    if mean.shape[1] == 1:
        mean, var = np.pad(mean, ((0, 0), (1, 0))), np.pad(var, ((0, 0), (1, 0)))
    p = argmax_probability(torch.from_numpy(mean), torch.from_numpy(var)).numpy()
    np.put_along_axis(p, p.argmax(axis=1, keepdims=True), 0, axis=1)
    # Sum the probabilities of the others: 1 - max would cancel where the winner is certain.
    return p.sum(axis=1)


@_in_batches
def least_confident(classifier, X):
    """Return the probability that the predicted class is wrong, 1 - max_j p_j.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier with `predict_proba`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.

    Returns
    -------
    score : ndarray of shape (n,)
        Between 0 and 1 - 1 / n_classes.

    Notes
    -----
    Source: Settles (2009), "Active learning literature survey", section 3.1.
    """
    return 1 - classifier.predict_proba(X).max(axis=1)


@_in_batches
def predictive_entropy(classifier, X):
    """Return the entropy of the predicted class probabilities, -sum_j p_j log p_j.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier with `predict_proba`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.

    Returns
    -------
    score : ndarray of shape (n,)
        In nats, between 0 and log(n_classes).

    Notes
    -----
    Source: Settles (2009), "Active learning literature survey", equation 2.3.
    """
    return entr(classifier.predict_proba(X)).sum(axis=1)


@_in_batches
def margin(classifier, X):
    """Return one minus the gap between the two largest class probabilities.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier with `predict_proba`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.

    Returns
    -------
    score : ndarray of shape (n,)
        Between 0 (certain) and 1 (two classes equally probable).

    Notes
    -----
    This is the margin utility of scikit-activeml. As with all scores of this module, a higher
    value is more informative.

    Source: Settles (2009), "Active learning literature survey", equation 2.2.
    """
    p = classifier.predict_proba(X)
    p = np.column_stack([p, np.zeros(len(p))])  # a single class is certain
    second, first = np.partition(p, -2, axis=1)[:, -2:].T
    return 1 - (first - second)


@_in_batches
def mean_softmax_entropy(classifier, X):
    """Return the entropy of the softmax of the latent means, ignoring the latent variances.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier with `latent_mean_and_variance`, or a `Pipeline` or search around one. Any
        other raises `TypeError`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.

    Returns
    -------
    score : ndarray of shape (n,)
        In nats, between 0 and log(n_classes). A binary model has a single latent m, the
        difference of two; it is scored as the pair (0, m).

    Notes
    -----
    This is the non-Bayesian baseline of the active-learning experiment with the multi-class
    Bayesian SVM.

    Source: Wistuba and Rawat (2018), arXiv:1806.02659, section 4.3.1.
    """
    model, X = _latent_model(classifier, X, "latent_mean_and_variance")
    mean, _ = _latent_moments(model, X)
    if mean.shape[1] == 1:
        mean = np.column_stack([np.zeros(len(mean)), mean])
    return entr(softmax(mean, axis=1)).sum(axis=1)


@_in_batches
def bald(classifier, X, n_samples=128, random_state=0):
    """Return the mutual information between a point's label and its latent values.

    The score is the expected reduction in the entropy of the latents once the label is known.
    Unlike the other scores, it is small where classes overlap but the latent functions are already
    known.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier with `latent_mean_and_variance` and `predict_proba_from_latent`, or a
        `Pipeline` or search around one. Any other raises `TypeError`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.
    n_samples : int, default=128
        Number of draws of each point's latents. More draws give a more accurate score and take
        longer.
    random_state : int, RandomState instance or None, default=0
        Seeds the random shift of the quasi-random draws. With an int, all points share the draws,
        and a point's score depends neither on the other points of the pool nor on the call.

    Returns
    -------
    score : ndarray of shape (n,)
        In nats, non-negative.

    Notes
    -----
    The score is ``H(mean_s p_s) - mean_s H(p_s)`` over draws ``p_s`` of the class probabilities.
    By Jensen's inequality it is non-negative for any set of draws. The latents of different
    classes are independent at a point, so their means and variances suffice.

    Source: Houlsby et al. (2011), arXiv:1112.5745, equation 2.
    """
    check_number("n_samples", n_samples, 1, integer=True)
    model, X = _latent_model(classifier, X, "latent_mean_and_variance", "predict_proba_from_latent")
    mean, var = _latent_moments(model, X)
    z = _normal_draws(n_samples, mean.shape[1], check_random_state(random_state))
    score = np.empty(len(mean))
    for rows in gen_batches(len(mean), max(1, _CHUNK // z.size)):
        p = model.predict_proba_from_latent(mean[rows] + np.sqrt(var[rows]) * z[:, None])
        score[rows] = entr(p.mean(axis=0)).sum(axis=1) - entr(p).sum(axis=2).mean(axis=0)
    return np.maximum(score, 0)  # rounding can make it slightly negative


def _normal_draws(n_samples, c, rng):
    """Return quasi-random standard normal draws (n_samples, c) from a shifted Sobol' sequence."""
    points = qmc.Sobol(c, scramble=False).random_base2(math.ceil(math.log2(n_samples)))
    return ndtri((points[:n_samples] + rng.uniform(size=c)) % 1)


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
        X, y = _table(X), column_or_1d(y if hasattr(y, "dtype") else np.array(y, dtype=object))
        missing = _is_missing(y)
        if fit_clf:
            clf = _fit_labeled(clf, X, y, sample_weight, np.flatnonzero(~missing))
        pool, index = _pool_and_index(X, missing, candidates)
        if batch_size > len(index):
            warnings.warn(
                f"batch_size={batch_size} is reduced to the {len(index)} candidates.", stacklevel=2
            )
            batch_size = len(index)
        batches = gen_batches(len(index), _ROWS)
        scores = np.concatenate([self.score(clf, _rows(pool, index[b])) for b in batches])
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
    return clone(clf).fit(_rows(X, labeled), labels, **weights)


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
        candidates = _table(candidates)
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
