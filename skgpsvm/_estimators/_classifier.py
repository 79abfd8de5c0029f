"""Base class of classifiers: labels, class weights and class probabilities."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Literal, Self

import numpy as np
import torch
from scipy.special import xlogy
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from .._calibration import Tempering, tempered
from .._data import evenly_spaced
from .._distributed import check_equal, gather, raise_on_all_ranks
from .._inference.leave_one_out import MAX_LEFT_OUT
from .._isolation import isolated
from .._merging import class_order, class_totals, merged_rows
from .._predictive import (
    LeftOut,
    LikelihoodProbabilities,
    classification_sites,
    weighted_probabilities,
)
from .._typing import ArrayLike, MatrixLike, RandomStateLike, available_if
from .._validation import check_choice, check_labels, check_level, kind_of_labels, refuse_missing
from ..likelihoods import Ordinal
from ._base import GPEstimator, all_or_nothing
from ._inputs import warn_of_weights
from ._pipeline import fit_models, has_partial_fit, stream


class GPClassifier(ClassifierMixin, GPEstimator):
    """Base of classifiers: labels, class weights and class probabilities.

    A subclass whose class probabilities are not those of its ``_likelihood`` gives others by
    `_class_probabilities`. One that can predict rows without them sets `_left_out`, and
    `_tempering` if its likelihood has probabilities.
    """

    _tempering = Tempering()
    _class_totals = None  # (n_classes,): weights of the first call's rows of each class
    _class_order = None  # see `class_order`

    # Fitted attributes
    classes_: np.ndarray
    class_weight_: np.ndarray

    @all_or_nothing
    def fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            A :ref:`source <sources>`, such as a memmap, is read in blocks. Some estimators take
            :ref:`sparse X <sparse_X>`.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log likelihood of each row, or its loss: 0 removes it, an integer repeats
            it.

        Returns
        -------
        self : object

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights are invalid.
        DivergenceError
            If the objective is no longer finite, or stochastic steps end at one far below the
            prior's. The estimator is then unfitted or, with ``warm_start``, unchanged.

        Warns
        -----
        ConvergenceWarning
            If the fit reaches ``max_iter`` before it converges.
        """
        return fit_models(self, X, y, sample_weight)

    @available_if(has_partial_fit)
    @all_or_nothing
    def partial_fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Update the model with more rows, as new data.

        The first call does the same as `fit`, and should have rows of every class: further calls
        keep its kernel and inducing points or basis functions. They take the posterior so far as
        the prior of their rows, so a row counts as often as it is passed. Stochastic steps make
        one pass over the rows, in which earlier rows count in proportion to their number; those of
        `DecoupledGPClassifier` add bases, also in the first call. Hybrid networks, and solvers that
        need all rows at once, have no `partial_fit`.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        classes : array-like of shape (c,), default=None
            All possible classes; required in the first call if its ``y`` lacks some.
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : object

        Raises
        ------
        AttributeError
            If the solver needs all rows at once.
        ValueError
            If parameters, data or weights are invalid, or ``y`` has an unknown class.
        DivergenceError
            See `fit`. The estimator is then unchanged.
        """
        return stream(self, X, y, sample_weight, classes=classes)

    def _check_training_data(self, X, y, sample_weight, *, classes=None, reset=True):
        """`merged_rows` with class codes as targets; sets ``class_weight_``.

        Where ``reset``, it also sets ``classes_``.
        """
        with raise_on_all_ranks():
            if len(shape := getattr(y, "shape", ())) == 2 and shape[1] > 1:
                raise ValueError(
                    f"y should be a 1d array, got an array of shape {shape} instead. "
                    "MultiOutputClassifier of scikit-learn fits one classifier for each column."
                )
            if np.asarray(y).dtype.kind == "f":  # `check_labels` has a message for others
                refuse_missing(y)
        X, y, weights = self._check_rows(X, y, sample_weight, reset)
        warn_of_weights(weights, "Divide relative weights by their mean.")
        with raise_on_all_ranks():
            check_labels("y", y)
            check_classification_targets(y)
            if classes is not None:
                check_labels("classes", np.asarray(classes))
        check_equal({"labels that are": kind_of_labels(y)}, counts=len(y) > 0)
        if not reset:
            now = self.classes_ if classes is None else np.unique(classes)
            if not np.array_equal(now, self.classes_):
                raise ValueError(
                    f"classes={now.tolist()} are not {self.classes_.tolist()}, those of the first "
                    "call: leave them out, or start anew by fit."
                )
            classes = self.classes_
        check_equal({"classes": None if classes is None else np.unique(classes).tolist()})
        present = _labels(y[weights > 0])
        labels = present if classes is None else np.union1d(present, classes)
        by_label = _class_weights(self.class_weight, labels, y, weights)
        if not all(by_label.values()):
            weights = weights * [by_label.get(label, 1.0) > 0 for label in y.tolist()]
            present = _labels(y[weights > 0])
        if reset:
            known = present if classes is None else np.unique(classes)
            if len(known) < 2:
                raise ValueError(
                    f"{type(self).__name__} needs rows of at least two classes with positive "
                    f"weight; got {len(known)} class: {known.tolist()}."
                )
            self.classes_ = known
        if strangers := np.setdiff1d(present, self.classes_).tolist():
            ways = ["set warm_start=False to start anew"] if self.warm_start else []
            if hasattr(self, "partial_fit"):
                ways.append("pass all possible labels as classes in the first call of partial_fit")
            raise ValueError(
                f"y has classes {strangers} that are not among {self.classes_.tolist()}, those of "
                f"the first call: {', or '.join(ways)}."
            )
        self.class_weight_ = np.array([by_label[label] for label in self.classes_.tolist()], float)
        y = y if len(y) else y.astype(self.classes_.dtype)
        X, codes, weights, origin = merged_rows(X, np.searchsorted(self.classes_, y), weights)
        if reset:
            self._class_totals = class_totals(codes, weights, len(self.classes_))
            self._class_order = class_order(X, codes, weights, self._class_totals)
        return X, codes, weights, origin

    def _classes_without_rows(self):
        lacking = (self._class_totals == 0) & (self.class_weight_ > 0)
        return self.classes_[lacking].tolist()

    def predict(self, X: MatrixLike) -> np.ndarray:
        """Predict the most probable class of each row.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        labels : ndarray of shape (n,)
            Among equally probable classes, the first in ``classes_``.
        """
        codes = self.predict_proba(X).argmax(1)
        return self.classes_[codes]

    def _make_likelihood(self):
        return self._sites_of(self.likelihood)

    def _sites_of(self, likelihood):
        """Return a likelihood, by its name, as sites of the classes."""
        if likelihood == "ordinal" and self.classes_.dtype.kind not in "biuf":
            raise ValueError(
                "likelihood='ordinal' needs labels that are numbers in the order of the classes; "
                f"got {self.classes_.tolist()}. Encode them, such as by the codes of an ordered "
                "categorical."
            )
        of_classes = self._class_totals, self._class_order
        return classification_sites(likelihood, len(self.classes_), *of_classes)

    def _class_probabilities(self):
        """Return the `ClassProbabilities` of the fitted model."""
        if self._likelihood == "ordinal":
            likelihood = Ordinal(self.thresholds_)
        else:
            likelihood = self._sites_of(self._likelihood).likelihood
        tempered_by = self._tempering.power, self._tempering.log_frequencies
        return LikelihoodProbabilities(likelihood, len(self.classes_), *tempered_by)

    def _weighted_probabilities(self):
        """Return the `ClassProbabilities` of predictions, which follow ``class_weight``."""
        return weighted_probabilities(self._class_probabilities(), self.class_weight_)

    def _likelihood_attributes(self, parameters):
        """Return the fitted attributes of the likelihood's parameters, a tensor (k,), as a dict."""
        likelihood = self._make_likelihood().at(parameters).likelihood
        return {"thresholds_": likelihood.thresholds.numpy()} if len(parameters) else {}

    def _log_p_of(self, mean, var, parameters=()):
        """Return log probabilities (n, n_classes) under the likelihood at latent moments (n, c)."""
        likelihood = self._make_likelihood().at(parameters).likelihood
        return LikelihoodProbabilities(likelihood, len(self.classes_)).of_moments(mean, var).log_p

    def _tempered(self, log_p, targets, weights, *, earlier=None, streamed=False):
        """Return the fitted attributes that predictions of rows without them determine.

        The log probabilities (n, n_classes) are not yet raised to the power, which is learned from
        a `Tempering` ``earlier``. If ``streamed``, that is the present one, and the rows come in
        addition to its rows. With ``optimizer=None`` the power stays.
        """
        learns = getattr(self, "optimizer", "auto") is not None
        if streamed:
            earlier = self._tempering
        elif earlier is None:
            earlier = Tempering() if learns else replace(self._tempering, loss=0.0, weight=0.0)
        found = earlier.updated(log_p, targets, weights, learns=learns)
        log_p = tempered(log_p, found.power, found.log_frequencies)
        scores = self._scores(log_p, targets, weights, streamed)
        return {"_tempering": found, "temperature_": found.power, "_left_out": scores}

    def _tempering_of_learning(self, left_out, earlier=None):
        """Return `_tempered` attributes of latent moments without the rows, targets and weights.

        Without ``left_out`` nothing was learned, and the present power is kept.
        """
        if left_out is None:
            return {"temperature_": self._tempering.power}
        mean, var, *rest = left_out
        return self._tempered(self._log_p_of(mean, var), *rest, earlier=earlier)

    def _scores(self, log_p, targets, weights, streamed=False):
        """Return the `LeftOut` log losses of at most 3,000 rows, earlier ones included.

        They are those without class weights, which may change between calls.
        """
        spaced = evenly_spaced(len(log_p), MAX_LEFT_OUT)
        parts = (part[spaced.to(part.device)] for part in (log_p, targets, weights))
        found = LeftOut.of_classes(*parts)
        return self._left_out.joined(found) if streamed and self._left_out else found

    def _latent_spread(self):
        return self._class_probabilities().spread

    def _explained_nats(self, X, targets, weights):
        """Return the gain in log likelihood over the class frequencies, in nats."""
        counts = np.bincount(targets, weights, len(self.classes_))
        total = sum(gather(counts))
        if not weights.any():
            return 0.0
        of_moments = self._class_probabilities().of_moments
        log_p = self._map_checked(lambda *moments: of_moments(*moments).log_p, X)
        by_chance = (xlogy(counts, total) - xlogy(counts, total.sum())).sum()
        return float(weights @ log_p[np.arange(len(X)), targets] - by_chance)

    def _map_predictive(self, function, X):
        """Apply a function of the `Predictive` to chunks of rows of ``X``."""
        check_is_fitted(self)
        of_moments = self._weighted_probabilities().of_moments
        return self._map_moments(lambda *moments: function(of_moments(*moments)), X)

    def predict_proba(self, X: MatrixLike) -> np.ndarray:
        """Return class probabilities, averaged over the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        probabilities : ndarray of shape (n, n_classes)
        """
        return self._map_predictive(lambda predictive: predictive.p, X)

    def predict_log_proba(self, X: MatrixLike) -> np.ndarray:
        """Return logarithms of the class probabilities.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        log_probabilities : ndarray of shape (n, n_classes)
            Finite, also where `predict_proba` underflows to zero.
        """
        return self._map_predictive(lambda predictive: predictive.log_p, X)

    def predict_set(
        self,
        X: MatrixLike,
        level: float = 0.9,
        method: Literal["predictive", "conformal"] = "predictive",
    ) -> np.ndarray:
        """Predict sets of classes that hold the true one with a given probability.

        Parameters
        ----------
        X : array-like of shape (n, d)
        level : float, default=0.9
            Probability of the sets.
        method : {"predictive", "conformal"}, default="predictive"
            ``"predictive"`` takes the most probable classes until their probabilities sum to the
            level. ``"conformal"`` takes the classes whose probability exceeds a threshold. It is a
            quantile of the probabilities of the true classes of training rows that were predicted
            without them. These sets are right on average even if the probabilities are not. Not all
            classifiers have them, see the :ref:`user guide <intervals>`.

        Returns
        -------
        members : ndarray of shape (n, n_classes)
            Booleans: whether each of ``classes_`` is in the set. The class that `predict` returns
            always is.

        Raises
        ------
        ValueError
            If there are no such probabilities, or fewer than the level needs.

        Notes
        -----
        Source: Sadinle, Lei and Wasserman (2019), for sets by a threshold. Departs from the source:
        no set is empty.
        """
        check_is_fitted(self)
        check_level(level)
        check_choice("method", method, ("predictive", "conformal"))
        if method == "conformal":
            (threshold,) = self._left_out_quantiles(level, "probabilities")
            plain, weighted = self._class_probabilities(), self._weighted_probabilities()

            def both(*moments):
                parts = plain.of_moments(*moments).log_p, weighted.of_moments(*moments).p
                return torch.cat(parts, 1)

            log_p, p = np.split(self._map_moments(both, X), 2, axis=1)
            predicted = p.argmax(1)[:, None] == np.arange(p.shape[1])
            return (-log_p <= threshold) | predicted
        p = self.predict_proba(X)
        order = np.argsort(-p, axis=1, kind="stable")
        in_order = np.take_along_axis(p, order, 1)
        members = np.empty(p.shape, bool)
        np.put_along_axis(members, order, np.cumsum(in_order, axis=1) - in_order < level, 1)
        return members

    def decision_function(self, X: MatrixLike) -> np.ndarray:
        r"""Return logits of `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        scores : ndarray of shape (n, n_classes), or (n,) for two classes
            Logarithms of the class probabilities, up to a constant in each row. For two classes,
            the log odds of ``classes_[1]``. Those of `EPClassifier` are the probits of the classes'
            own models, :math:`m / \sqrt{1 + v}`, which ``temperature_`` does not change, unless
            there are class weights.
        """
        scores = self._map_predictive(lambda predictive: predictive.ranked_scores(), X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @isolated()
    def predict_proba_from_latent(self, latents: ArrayLike) -> np.ndarray:
        """Return class probabilities given values of the latent functions.

        Parameters
        ----------
        latents : array-like of shape (..., c)
            As `sample_latent` draws them.

        Returns
        -------
        probabilities : ndarray of shape (..., n_classes)
        """
        check_is_fitted(self)
        latents = np.array(latents, dtype=np.float64)  # torch may share a copy
        n_latents = sum(part.n_latents for part in self._latents)
        if latents.shape[-1:] != (n_latents,):
            raise ValueError(
                f"latents has shape {latents.shape}; its last axis must have length {n_latents}, "
                "as that of sample_latent's."
            )
        return self._weighted_probabilities().of_latents(latents)

    def sample_proba(
        self, X: MatrixLike, n_samples: int = 1, random_state: RandomStateLike = 0
    ) -> np.ndarray:
        """Draw class probabilities from the posterior, jointly at all rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Memory is O(n^2): draw for a few thousand rows at most.
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=0

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n, n_classes)
            Those of `predict_proba_from_latent`, given each draw of `sample_latent`.
        """
        return self.predict_proba_from_latent(self.sample_latent(X, n_samples, random_state))


def _labels(y):
    """Return the distinct labels of all ranks, sorted."""
    parts = [part for part in gather(np.unique(y)) if len(part)]
    return np.unique(np.concatenate(parts or [y]))


def _class_weights(class_weight, labels, y, weights):
    """Return the weights of the labels by ``class_weight``, a dict of floats.

    Labels that it does not name, and balanced ones without rows, have the weight 1.
    """
    by_label = dict.fromkeys(labels.tolist(), 1.0)
    if isinstance(class_weight, dict):
        strangers = [label for label in class_weight if label not in by_label]
        if strangers and not class_weight.keys() >= by_label.keys():
            raise ValueError(
                f"class_weight has {strangers}, which are not among the classes {[*by_label]}. Use "
                "the labels of y as keys."
            )
        by_label = {label: class_weight.get(label, weight) for label, weight in by_label.items()}
    elif isinstance(class_weight, str) and class_weight == "balanced":
        used = weights > 0
        own = np.searchsorted(labels, y[used]) if used.any() else []
        totals = sum(gather(np.bincount(own, weights[used], len(labels))))
        seen = totals > 0
        balanced = totals[seen].mean() / totals[seen]
        by_label |= dict(zip(labels[seen].tolist(), balanced.tolist(), strict=True))
    elif class_weight is not None:
        raise ValueError(
            f"class_weight={class_weight!r} must be a dict of classes to numbers, "
            "'balanced', or None."
        )
    for weight in by_label.values():
        if not (isinstance(weight, Real) and 0 <= weight < np.inf):
            raise ValueError(
                f"class_weight={class_weight!r} must be finite and not negative for any class."
            )
    return by_label
