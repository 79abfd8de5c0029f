"""Scores of the points of a pool: a higher score marks a more informative point."""

from __future__ import annotations

import functools
import math
from typing import cast

import numpy as np
import torch
from scipy.sparse import issparse, vstack
from scipy.special import entr, ndtri, softmax
from scipy.stats import qmc
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import check_random_state, gen_batches

from .._estimators import GPEstimator, unwrapped
from .._memory import CACHED_BLOCK, block_rows
from .._predictive import one_per_class
from .._quadrature import argmax_probability
from .._rows import Rows, is_source
from .._typing import MatrixLike, Method, RandomStateLike
from .._validation import check_number
from ..data import ParquetRows

ROWS = 2**16  # number of rows scored at a time


def table(X):
    """Return `X` itself if it has rows (array, memmap, CSR, dataframe), else an array or CSR."""
    if issparse(X):
        return X.tocsr()
    return X if hasattr(X, "shape") else np.asarray(X)


def rows_of(X, index):
    """Return rows of `X` by slice or integer array; a slice of an array is a view."""
    if isinstance(X, ParquetRows):
        return X.table(index)  # with the names of the features
    if is_source(X) and not isinstance(index, slice):
        return Rows(X)[index]  # files read rows in ascending order only
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


def stacked(first, second):
    """Return the rows of two tables of one kind."""
    if issparse(first):
        return vstack([first, second], format="csr")
    if hasattr(first, "iloc"):
        from pandas import concat  # here and below, the library of the table

        return concat([first, second])
    if hasattr(first, "column_names"):
        from pyarrow import concat_tables

        return concat_tables([first, second])
    return first.vstack(second) if hasattr(first, "vstack") else np.vstack([first, second])


def _in_batches(score: Method) -> Method:
    """Decorate a score so that it takes the rows of `X` in batches, in bounded memory."""

    @functools.wraps(score)
    def score_all(classifier, X, *args, **kwargs):
        X = table(X)
        batches = gen_batches(max(1, X.shape[0]), ROWS)  # an empty X raises the classifier's error
        return np.concatenate([score(classifier, rows_of(X, b), *args, **kwargs) for b in batches])

    return cast(Method, score_all)


def latent_model(classifier, X, *methods):
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


def _of_classes(model, latents):
    """Return latents (n, n_classes); raise TypeError if the classes have none of their own."""
    if latents.shape[1] == 1 and len(getattr(model, "classes_", ())) > 2:
        raise TypeError(
            "This score compares latent functions of classes; ordered classes share one. Use "
            "least_confident, predictive_entropy, margin or bald."
        )
    return one_per_class(latents)


def _probabilities(classifier, X):
    """Return class probabilities; raise TypeError if the model has none."""
    if not hasattr(classifier, "predict_proba"):
        raise TypeError(
            "This score needs a classifier with predict_proba; got "
            f"{type(classifier).__name__}. For a regressor, query where the std of "
            "predict(X, return_std=True) is largest."
        )
    return classifier.predict_proba(X)


@_in_batches
def variation_ratio(classifier: BaseEstimator, X: MatrixLike) -> np.ndarray:
    """Return the probability that the most probable winner does not have the largest latent.

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
        its sign is not that of its mean.

    Notes
    -----
    The score depends only on the posterior of the latents, not on how class probabilities are
    computed from them, such as by the ``probability`` of a `BayesianSVC` or its calibration.

    Source: Wistuba and Rawat (2018), arXiv:1806.02659, section 4.3.
    Departs from the source: quadrature computes the probability that the source estimates from
    sampled latents, without sampling noise and with hardly any ties.
    """
    model, X = latent_model(classifier, X, "latent_mean_and_variance")
    if isinstance(model, GPEstimator):
        mean, var = model._latent_moments(X)
    else:
        mean, var = _latent_moments(model, X)
    moments = (torch.from_numpy(_of_classes(model, part)) for part in (mean, var))
    p = argmax_probability(*moments).numpy()
    np.put_along_axis(p, p.argmax(axis=1, keepdims=True), 0, axis=1)
    # Sum the probabilities of the others: 1 - max would cancel where the winner is certain.
    return p.sum(axis=1)


@_in_batches
def least_confident(classifier: BaseEstimator, X: MatrixLike) -> np.ndarray:
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
    return 1 - _probabilities(classifier, X).max(axis=1)


@_in_batches
def predictive_entropy(classifier: BaseEstimator, X: MatrixLike) -> np.ndarray:
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
    return entr(_probabilities(classifier, X)).sum(axis=1)


@_in_batches
def margin(classifier: BaseEstimator, X: MatrixLike) -> np.ndarray:
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
    p = _probabilities(classifier, X)
    p = np.column_stack([p, np.zeros(len(p))])  # a single class is certain
    second, first = np.partition(p, -2, axis=1)[:, -2:].T
    return 1 - (first - second)


@_in_batches
def mean_softmax_entropy(classifier: BaseEstimator, X: MatrixLike) -> np.ndarray:
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
        In nats, between 0 and log(n_classes). A binary model has a single latent m, the difference
        of two; the score takes the pair (0, m).

    Notes
    -----
    This is the non-Bayesian baseline of the active-learning experiment with the multi-class
    Bayesian SVM.

    Source: Wistuba and Rawat (2018), arXiv:1806.02659, section 4.3.1.
    """
    model, X = latent_model(classifier, X, "latent_mean_and_variance")
    mean, _ = _latent_moments(model, X)
    return entr(softmax(_of_classes(model, mean), axis=1)).sum(axis=1)


@_in_batches
def bald(
    classifier: BaseEstimator,
    X: MatrixLike,
    n_samples: int = 128,
    random_state: RandomStateLike = 0,
) -> np.ndarray:
    """Return the mutual information between a point's label and its latent values.

    The score is the expected reduction in the entropy of the latents once the label is known. It
    is small where classes overlap but the latent functions are already known, where scores of
    class probabilities are large.

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
    model, X = latent_model(classifier, X, "latent_mean_and_variance", "predict_proba_from_latent")
    mean, var = _latent_moments(model, X)
    z = _normal_draws(n_samples, mean.shape[1], check_random_state(random_state))
    score = np.empty(len(mean))
    for rows in gen_batches(len(mean), block_rows(z.size, CACHED_BLOCK)):
        p = model.predict_proba_from_latent(mean[rows] + np.sqrt(var[rows]) * z[:, None])
        score[rows] = entr(p.mean(axis=0)).sum(axis=1) - entr(p).sum(axis=2).mean(axis=0)
    return np.maximum(score, 0)  # rounding can make it slightly negative


def _normal_draws(n_samples, c, rng):
    """Return quasi-random standard normal draws (n_samples, c) from a shifted Sobol' sequence."""
    points = qmc.Sobol(c, scramble=False).random_base2(math.ceil(math.log2(n_samples)))
    return ndtri((points[:n_samples] + rng.uniform(size=c)) % 1)
