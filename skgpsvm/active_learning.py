"""Scores of pool points, higher is more informative, and the queries that pick the highest."""

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

_ROWS = 2**16  # scored at a time
_CHUNK = 2**20  # latent values drawn at a time


def _table(X):
    """Return `X` itself if it has a shape (array, memmap, sparse, dataframe), else an array."""
    return X if hasattr(X, "shape") else np.asarray(X)


def _rows(X, index):
    """Return rows of `X` by slice or integer array; a slice of an array is a view."""
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


def _in_batches(score):
    """Decorate a score so that it goes over `X` in batches, in bounded memory."""

    @functools.wraps(score)
    def score_all(classifier, X, *args, **kwargs):
        X = _table(X)
        batches = gen_batches(max(1, X.shape[0]), _ROWS)  # an empty X gets the classifier's error
        return np.concatenate([score(classifier, _rows(X, b), *args, **kwargs) for b in batches])

    return score_all


def _latent_model(classifier, X, *methods):
    """Return the part of a fitted classifier with these methods, and `X` as that part sees it."""
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
    """Return means and variances (n, c) of a model's latents, also if c is 1."""
    moments = model.latent_mean_and_variance(X)
    return tuple(part.reshape(len(part), -1) for part in moments)


@_in_batches
def variation_ratio(classifier, X):
    """Return how often draws of the latents disagree on the largest, 1 - max_j P(f_j is largest).

    Parameters
    ----------
    classifier : fitted classifier
        With `latent_mean_and_variance`, or a `Pipeline` or search around one; else `TypeError`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.

    Returns
    -------
    score : ndarray of shape (n,)
        Between 0 and 1 - 1 / n_classes. Of a single latent function, the probability that it has
        another sign than its mean.

    Notes
    -----
    The score needs the posterior of the latents only. It does not depend on how class probabilities
    follow from them: not on the ``probability`` of a `BayesianSVC`, nor on its calibration.

    Source: Wistuba and Rawat (2018), arXiv:1806.02659, section 4.3.
    Departs from the source: the frequency of the most frequent winner among sampled latents is
    replaced by its limit for infinitely many samples, by quadrature. It has no sampling noise and
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
    return p.sum(axis=1)  # of the others: 1 - max would cancel where the winner is sure


@_in_batches
def least_confident(classifier, X):
    """Return the probability that the predicted class is wrong, 1 - max_j p_j.

    Parameters
    ----------
    classifier : fitted classifier
        With `predict_proba`.
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
        With `predict_proba`.
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
        With `predict_proba`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.

    Returns
    -------
    score : ndarray of shape (n,)
        Between 0 (certain) and 1 (two classes equally probable).

    Notes
    -----
    The margin utility of scikit-activeml. As for all scores of this module, higher is more
    informative.

    Source: Settles (2009), "Active learning literature survey", equation 2.2.
    """
    p = classifier.predict_proba(X)
    p = np.column_stack([p, np.zeros(len(p))])  # a single class is certain
    second, first = np.partition(p, -2, axis=1)[:, -2:].T
    return 1 - (first - second)


@_in_batches
def mean_softmax_entropy(classifier, X):
    """Return the entropy of the softmax of the latent means; it ignores latent variances.

    Parameters
    ----------
    classifier : fitted classifier
        With `latent_mean_and_variance`, or a `Pipeline` or search around one; else `TypeError`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.

    Returns
    -------
    score : ndarray of shape (n,)
        In nats, between 0 and log(n_classes). A single latent m, the difference of a binary
        model, counts as the pair (0, m).

    Notes
    -----
    The non-Bayesian baseline of the multi-class Bayesian SVM's active-learning experiment.

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

    The expected fall in entropy of the latents when the label is seen. Unlike the other scores it
    is small where classes overlap but the latent functions are already known.

    Parameters
    ----------
    classifier : fitted classifier
        With `latent_mean_and_variance` and `predict_proba_from_latent`, or a `Pipeline` or search
        around one; else `TypeError`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.
    n_samples : int, default=128
        Draws of each point's latents.
    random_state : int, RandomState instance or None, default=0
        Shifts the quasi-random draws. With an int all points share them, and a point's score
        depends neither on the other points of the pool nor on the call.

    Returns
    -------
    score : ndarray of shape (n,)
        In nats, non-negative.

    Notes
    -----
    ``H(mean_s p_s) - mean_s H(p_s)`` over draws ``p_s`` of the class probabilities, which by
    Jensen's inequality is non-negative for any set of draws. Latents of different classes are
    independent at a point, so that their means and variances suffice.

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
    return np.maximum(score, 0)  # rounding


def _normal_draws(n_samples, c, rng):
    """Return quasi-random normal draws (n_samples, c) from a randomly shifted Sobol' sequence."""
    points = qmc.Sobol(c, scramble=False).random_base2(math.ceil(math.log2(n_samples)))
    return ndtri((points[:n_samples] + rng.uniform(size=c)) % 1)


def _highest(scores, n_instances, rng=None):
    """Return indices of the highest scores, best first; `rng` breaks ties, else the order."""
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
        As `{score}` takes it.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.
    n_instances : int, default=1
        Number of points to choose.
    random_tie_break : bool, default=False
        Whether equal scores are ordered at random instead of by index.
    random_state : int, RandomState instance or None, default=None
        Rules the random order.
    **score_params : dict
        Passed on to `{score}`.

    Returns
    -------
    indices : ndarray of shape (n_instances,)
        Of the chosen points, the most informative first.
    score : ndarray of shape (n_instances,)
        Of the chosen points.

    Raises
    ------
    ValueError
        Where `n_instances` is not between 1 and n.
    """


def _sampling(score, name):
    """Make the query function that maximizes a score."""

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
    """Query strategy, in scikit-activeml's form, that maximizes a score.

    Parameters
    ----------
    score : callable, default=least_confident
        ``score(clf, X) -> (n,)``, higher is more informative, a row's score independent of the
        other rows: any score of this module, or ``functools.partial(bald, n_samples=1024)``.
    random_state : int, RandomState instance or None, default=None
        Breaks ties between equal scores.

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
            Labels; NaN or None where missing.
        clf : classifier
            Is not changed.
        fit_clf : bool, default=True
            Whether a clone of `clf` is fitted to the labeled points first; `False` uses `clf` as
            it is, fitted.
        sample_weight : array-like of shape (n,), default=None
            Weights for that fit.
        candidates : None, array of shape (k,) or (n,), or array-like (k, d), default=None
            What may be chosen: the unlabeled points of `X`; these rows of `X`, by number or as a
            mask of n bools; or points that need not be in `X`.
        batch_size : int, default=1
            Number of points to choose; reduced, with a warning, to the number of candidates.
        return_utilities : bool, default=False
            Whether to return the scores, too.

        Returns
        -------
        query_indices : ndarray of shape (batch_size,)
            The most informative first; into `candidates` where those are points, else into `X`.
        utilities : ndarray of shape (batch_size, n) or (batch_size, k)
            Only with `return_utilities`. Row i holds the scores that choice i maximizes: NaN where
            a point is no candidate or was chosen before.

        Raises
        ------
        ValueError
            Where there is no candidate, or no labeled point to fit, or `candidates` are neither
            rows of `X` nor points, or `batch_size` is no positive integer.
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
    """Return where labels are NaN, NA or None."""
    if y.dtype.kind == "O":
        return np.array([is_missing(label) for label in y], dtype=bool)
    return np.isnan(y) if y.dtype.kind == "f" else np.zeros(len(y), dtype=bool)


def _fit_labeled(clf, X, y, sample_weight, labeled):
    """Return a clone of `clf`, fitted to the rows `labeled`."""
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
    """Return the row numbers that numbers, or a mask of n bools, stand for."""
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
    """Return the table that the candidates are rows of, and their row numbers."""
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
