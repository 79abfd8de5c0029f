"""Expected predictive information gain: what a label tells about predictions at other rows."""

from __future__ import annotations

import numpy as np
from scipy.special import entr
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, gen_batches

from .._memory import CACHED_BLOCK, block_rows
from .._typing import MatrixLike, RandomStateLike
from .._validation import check_number
from ._scores import _latent_moments, _normal_draws, latent_model, rows_of, stacked, table

_MAX_ROWS = 256  # whose joint covariance with the targets is taken at a time
_N_TARGETS = 100
_MIN_SHARE = 1e-10  # of the largest eigenvalue; less is rounding error


def epig(
    classifier: BaseEstimator,
    X: MatrixLike,
    targets: MatrixLike | None = None,
    n_samples: int = 128,
    random_state: RandomStateLike = 0,
) -> np.ndarray:
    """Return the expected information that a point's label gives about the labels of targets.

    The score is the mutual information between the labels of the point and of a target, averaged
    over the targets. Unlike the score of `bald`, it is small for outliers, whose labels carry no
    information about the rows to be predicted.

    Parameters
    ----------
    classifier : fitted classifier
        A classifier with `latent_mean_and_variance`, `latent_covariance` and
        `predict_proba_from_latent`, or a `Pipeline` or search around one. Any other raises
        `TypeError`.
    X : array-like, sparse matrix or dataframe of shape (n, d)
        The pool.
    targets : array-like, sparse matrix or dataframe of shape (t, d), default=None
        Rows to be predicted, of the same type as `X`. None is 100 random rows of `X`, or all of
        them if there are fewer. Memory grows with t^2 and time with t^3.
    n_samples : int, default=128
        Number of draws of the latents. More give a more accurate score and take longer.
    random_state : int, RandomState instance or None, default=0
        Seeds the choice of targets and the draws. With an int and given targets, a point's score
        depends neither on the other points of the pool nor on the call.

    Returns
    -------
    score : ndarray of shape (n,)
        In nats, non-negative.

    Raises
    ------
    ValueError
        If `X` or `targets` has no rows.

    Notes
    -----
    Labels are independent given the latents. From draws :math:`p_s` of the class probabilities,
    the joint distribution of two labels is therefore estimated by
    :math:`S^{-1}\\sum_s p_s(y\\mid x)\\,p_s(y_*\\mid x_*)`.

    Source: Bickford Smith et al. (2023), "Prediction-oriented Bayesian active learning",
    equation 5.
    """
    check_number("n_samples", n_samples, 1, integer=True)
    pool, rng = table(X), check_random_state(random_state)
    if targets is None:
        targets = rows_of(pool, np.sort(rng.permutation(pool.shape[0])[:_N_TARGETS]))
    wanted = table(targets)
    if not (pool.shape[0] and wanted.shape[0]):
        raise ValueError(
            f"X has {pool.shape[0]} rows and targets has {wanted.shape[0]}; both need one at "
            "least, or leave targets out."
        )
    drawn = _Targets(classifier, wanted, n_samples, rng)
    batches = gen_batches(pool.shape[0], drawn.max_rows)
    return np.concatenate([drawn.information(rows_of(pool, batch)) for batch in batches])


class _Targets:
    r"""Draws of the latents at the targets, and of those at other rows given them.

    With the covariance :math:`U\Lambda U^\top` of a latent function at the targets, its draws
    there are :math:`m_*+U\Lambda^{1/2}z`. At a row whose covariances with the targets are k, its
    values given these have the mean :math:`m+w^\top z` with :math:`w=\Lambda^{-1/2}U^\top k`,
    and the variance :math:`v-|w|^2`. Eigenvectors serve where targets occur repeatedly, and a
    Cholesky factor does not exist.
    """

    def __init__(self, classifier, rows, n_samples, rng):
        self._classifier, self._rows = classifier, rows
        model, mean, cov = self._moments(rows)
        t, c = mean.shape
        values, vectors = np.linalg.eigh(cov)
        usable = values > _MIN_SHARE * values[:, -1:]
        root = np.sqrt(np.where(usable, values, 0))
        inverse = np.divide(1, root, where=usable, out=np.zeros_like(root))
        self._whitening = vectors * inverse[:, None]
        self._joint = rng.standard_normal((c, n_samples, t))
        self._own = _normal_draws(n_samples, c, rng)[:, None]
        deviations = self._joint @ (vectors * root[:, None]).transpose(0, 2, 1)
        self._p = model.predict_proba_from_latent(mean + np.moveaxis(deviations, 0, 2))
        numbers = max(t * self._p.shape[2] ** 2, n_samples * c)
        self.max_rows = min(_MAX_ROWS, block_rows(numbers, CACHED_BLOCK))

    def information(self, rows):
        """Return the mean mutual information between the labels of rows and targets, (n,)."""
        model, mean, cov = self._moments(stacked(rows, self._rows))
        n = rows.shape[0]
        weights = cov[:, :n, n:] @ self._whitening
        left = np.diagonal(cov, axis1=1, axis2=2)[:, :n] - (weights**2).sum(axis=2)
        own = np.sqrt(np.maximum(left, 0)).T * self._own
        shift = np.moveaxis(self._joint @ weights.transpose(0, 2, 1), 0, 2)
        p = model.predict_proba_from_latent(mean[:n] + shift + own)
        apart = _entropy(p)[:, None] + _entropy(self._p)
        joint = np.tensordot(p, self._p, axes=(0, 0)) / len(p)
        gain = (apart - entr(joint).sum(axis=(1, 3))).mean(axis=1)
        return np.maximum(gain, 0)  # rounding can make it slightly negative

    def _moments(self, rows):
        """Return the model, and means (n, c) and covariances (c, n, n) of its latents at rows."""
        model, rows = latent_model(
            self._classifier, rows, "latent_covariance", "predict_proba_from_latent"
        )
        mean, _ = _latent_moments(model, rows)
        cov = model.latent_covariance(rows)
        return model, mean, np.moveaxis(cov.reshape(*cov.shape[:2], -1), 2, 0)


def _entropy(p):
    """Return the entropy of the mean over draws of class probabilities, (s, n, classes) to (n,)."""
    return entr(p.mean(axis=0)).sum(axis=1)
