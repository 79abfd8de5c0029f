"""The log evidence of fitted models at other hyperparameters."""

from __future__ import annotations

from copy import copy
from typing import Literal, overload

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._data import WeightedDataset
from .._isolation import isolated
from .._typing import ArrayLike, MatrixLike, ndarray
from ._pipeline import agreed_options


class EvidenceMixin:
    """Log evidence of classifiers, or a lower bound on it; see `evidence_at`."""

    @overload
    def log_marginal_likelihood(
        self,
        theta: ArrayLike | None = None,
        eval_gradient: Literal[False] = False,
        *,
        X: MatrixLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float: ...

    @overload
    def log_marginal_likelihood(
        self,
        theta: ArrayLike | None = None,
        *,
        eval_gradient: Literal[True],
        X: MatrixLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> tuple[float, ndarray]: ...

    @isolated()
    def log_marginal_likelihood(
        self,
        theta: ArrayLike | None = None,
        eval_gradient: bool = False,
        *,
        X: MatrixLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float | tuple[float, ndarray]:
        """Return the log evidence, or a lower bound on it, also at other hyperparameters.

        It is the log evidence of `EPClassifier`, at converged sites, and the ELBO of the best
        posterior of `SVGPClassifier`. Inducing points are held fixed. If several processes share
        the rows, all must call it.

        Parameters
        ----------
        theta : array-like of shape (k,), default=None
            Logarithms of the kernel's free hyperparameters. None is ``kernel_.theta``. With more
            than two classes, `EPClassifier` also takes those of one kernel for all classes.
        eval_gradient : bool, default=False
            Whether to return the derivatives in ``theta`` too.
        X : array-like of shape (n, d), default=None
            The rows of `fit`, whose labels the model does not keep. None returns
            ``log_marginal_likelihood_value_``; it needs ``theta=None`` and no gradient.
        y : array-like of shape (n,), default=None
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        value : float
            Nats, summed over the classes' models.
        gradient : ndarray of shape (k,), optional

        Raises
        ------
        ValueError
            If ``theta`` has another length than ``kernel_.theta``, or rows are missing.

        Notes
        -----
        Natural gradients find the posterior of `SVGPClassifier`, until their steps gain less than
        1e-9 nats per row. With the softmax of more than two classes, value and gradient are
        averages over 2048 draws of the latent functions; learning and ``elbo_`` take 128, whose
        value may be some tenths of a nat above.
        """
        return evidence_at(self, theta, eval_gradient, X, y, sample_weight)


def evidence_at(estimator, theta, eval_gradient, X, y, sample_weight, **more):
    """Return the log evidence of fitted models, or its approximation, at other hyperparameters.

    The estimator provides ``_evidence_at``. It takes a model, its rows, the theta of its kernel,
    (k,), and whether to return the gradient; it returns the value, nats, and the gradient, a tensor
    (k,), or None. Other parameters and results are those of ``log_marginal_likelihood``; ``more``
    is as of `fit_models`.
    """
    check_is_fitted(estimator)
    if X is None:
        if theta is None and not eval_gradient:
            return estimator.log_marginal_likelihood_value_
        raise ValueError(
            "The evidence at a given theta, or its gradient, needs the rows: pass the rows of "
            "fit as X and y, since the model does not keep them."
        )
    kernels = [part.whole_kernel for part in estimator._latents]
    every = np.stack([kernel.theta for kernel in kernels])
    theta = every.ravel() if theta is None else np.asarray(theta, dtype=np.float64)
    if theta.shape not in ((every.size,), every.shape[1:]):
        alike = "" if len(every) == 1 else f", and that of each class {every.shape[1:]}"
        raise ValueError(
            f"theta has shape {theta.shape}, but kernel_.theta has shape {(every.size,)}{alike}."
        )
    checked = copy(estimator)  # class weights that were changed since the fit apply to the next one
    X, targets, weights, _ = checked._check_training_data(X, y, sample_weight, **more, reset=False)
    options = agreed_options(estimator, X)
    rows = [
        WeightedDataset(X, part, weights, *options)
        for part in estimator._one_vs_rest_targets(targets)
    ]
    thetas = np.resize(theta, every.shape)  # one kernel's is repeated
    parts = [
        estimator._evidence_at(*each, eval_gradient)
        for each in zip(estimator._latents, rows, thetas, strict=True)
    ]
    value = sum(part for part, _ in parts)
    if not eval_gradient:
        return value
    gradient = np.stack([part.cpu().numpy() for _, part in parts])
    return value, gradient.ravel() if theta.size == every.size else gradient.sum(0)
