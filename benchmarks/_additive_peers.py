"""Additive models from other libraries, with their defaults and scikit-learn's interface.

pyGAM is left out if it is not installed. Version 0.12 requires an older scipy than the tested one,
but runs with it: ``pip install --no-deps pygam progressbar2 python-utils``.
"""

from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor
from scipy.stats import norm
from sklearn.base import clone
from sklearn.model_selection import train_test_split

from ._harness import Method

_HELD_OUT, _BAGS = 0.2, 4  # of the model that estimates the size of residuals
_LEVEL = 0.95
CODES = {"EBM": f"interpret {version('interpret-core')}"}
if find_spec("pygam"):
    CODES["pyGAM"] = f"pygam {version('pygam')}"


def is_classification(y):
    """Return whether targets are codes of classes."""
    return y.dtype.kind == "i"


class PyGAM:
    """pyGAM's ``LinearGAM`` or ``LogisticGAM``: a spline per feature, tuned by its grid search."""

    def fit(self, X, y):
        """Search the grid and fit; there may be two classes at most."""
        import pygam

        kind = pygam.LogisticGAM if is_classification(y) else pygam.LinearGAM
        self.model = kind().gridsearch(X, y, progress=False)
        self.classes_ = np.unique(y) if is_classification(y) else None
        return self

    def predict(self, X, return_std=False):
        """Return means, and standard deviations derived from pyGAM's prediction intervals."""
        mean = self.model.predict(X)
        if not return_std:
            return mean
        low, high = self.model.prediction_intervals(X, width=_LEVEL).T
        return mean, (high - low) / (2 * norm.ppf((1 + _LEVEL) / 2))

    def predict_proba(self, X):
        """Return the probabilities of both classes."""
        p = self.model.predict_proba(X)
        return np.stack([1 - p, p], 1)


class EBM:
    """InterpretML's explainable boosting machine.

    It has no predictive density. Its standard deviation is that of the residuals of a second model
    on held-out rows: a bag of four fitted to 80 % of the rows, whenever `predict` returns it.

    Parameters
    ----------
    interactions : int or str
        Number of pairs; "default" is the library's default.
    random_state : int
    """

    def __init__(self, interactions, random_state):
        self.interactions, self.random_state = interactions, random_state

    def fit(self, X, y):
        """Fit the model in this process."""
        kind = ExplainableBoostingClassifier
        kind = kind if is_classification(y) else ExplainableBoostingRegressor
        model = kind(n_jobs=1, random_state=self.random_state)
        if self.interactions != "default":
            model.set_params(interactions=self.interactions)
        self.model = model.fit(X, y)
        self.classes_ = getattr(self.model, "classes_", None)
        self._rows = X, y
        return self

    def pairs(self):
        """Return the pairs of features, the most important first."""
        found = zip(self.model.term_features_, self.model.term_importances(), strict=True)
        ranked = sorted(found, key=lambda item: -item[1])
        return [tuple(sorted(map(int, term))) for term, _ in ranked if len(term) == 2]

    def predict(self, X, return_std=False):
        """Return means, and the standard deviation of residuals on held-out rows."""
        mean = self.model.predict(X)
        if not return_std:
            return mean
        some, held, y, y_held = train_test_split(
            *self._rows, test_size=_HELD_OUT, random_state=self.random_state
        )
        model = clone(self.model).set_params(outer_bags=_BAGS)
        residuals = y_held - model.fit(some, y).predict(held)
        return mean, np.full(len(mean), np.sqrt(np.square(residuals).mean()))

    def predict_proba(self, X):
        """Return class probabilities."""
        return self.model.predict_proba(X)


def methods(metrics):
    """Return a `Method` for each peer, by name."""

    def ebm(interactions):
        return Method(
            lambda X, y, seed, clock: EBM(interactions, seed).fit(X, y), CODES["EBM"], metrics
        )

    found = {"EBM": ebm("default"), "EBM, no pairs": ebm(0)}
    if code := CODES.get("pyGAM"):
        found["pyGAM"] = Method(lambda X, y, seed, clock: PyGAM().fit(X, y), code, metrics)
    return found
