"""Importances of the terms and features of additive models."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch, check_random_state

from .._typing import MatrixLike, RandomStateLike
from .._validation import check_level, check_number
from ._effects import additive_model, feature_names


def component_importances(
    estimator: BaseEstimator,
    X: MatrixLike,
    *,
    level: float = 0.95,
    n_samples: int = 200,
    random_state: RandomStateLike = 0,
) -> Bunch:
    """Return mean absolute effects of the terms and features of an additive model.

    The importance of a term is the mean absolute effect over the rows, summed over the latent
    functions, in units of ``explain``. The importance of a feature is the sum over its terms,
    where a pair counts half for each of its features. Credible intervals come from draws of the
    posterior. An interval may lie above the importance, since draws of an uncertain effect are
    farther from zero than its mean.

    Parameters
    ----------
    estimator : AdditiveGPRegressor or AdditiveGPClassifier
        A fitted estimator, or a fitted Pipeline or search around one.
    X : array-like or table of shape (n, d)
        Rows over which effects are averaged; some hundred are enough, since time and memory grow
        with the number of rows times that of draws. With a Pipeline, the importances are those of
        the features that its last step receives.
    level : float, default=0.95
        Probability of the credible intervals.
    n_samples : int, default=200
        Number of draws.
    random_state : int, RandomState instance or None, default=0
        Seeds the draws.

    Returns
    -------
    importances : Bunch
        ``terms`` and ``features``, each a Bunch with ``name``, a list, and ``importance``,
        ``lower`` and ``upper``, arrays.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skgpsvm import AdditiveGPRegressor
    >>> from skgpsvm.inspection import component_importances
    >>> X, y = make_friedman1(200, n_features=5, noise=1.0, random_state=0)
    >>> gam = AdditiveGPRegressor(interactions=None).fit(X, y)
    >>> found = component_importances(gam, X)
    >>> found.features.name[found.features.importance.argmax()]
    'x3'
    """
    estimator, X = additive_model(estimator, X)
    check_level(level)
    check_number("n_samples", n_samples, 1, integer=True)
    X, rng = estimator._check_new(X), check_random_state(random_state)
    of_terms, drawn = estimator._absolute_effects(X, n_samples, rng)
    ends = (1 - level) / 2, (1 + level) / 2

    def bunch(name, importance, draws):
        lower, upper = np.quantile(draws, ends, axis=0)
        return Bunch(name=name, importance=importance, lower=lower, upper=upper)

    of_columns = [estimator._of_features(part) for part in (of_terms, drawn)]
    return Bunch(
        terms=bunch(list(estimator.term_names_), of_terms, drawn),
        features=bunch(feature_names(estimator), *of_columns),
    )
