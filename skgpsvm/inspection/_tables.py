"""Effects of additive models as tables and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from .._typing import MatrixLike
from ._effects import (
    Feature,
    Label,
    Link,
    additive_model,
    component_effects,
    intercepts,
    latent_labels,
    link_name,
)

if TYPE_CHECKING:
    import pandas as pd


class ComponentEffects:
    """Effects of an additive model on grids, with credible bands, as tables or for JSON.

    It is recommended to use `from_estimator`. All parameters are stored as attributes.

    Parameters
    ----------
    effects : list of Bunch
        One Bunch for each term and latent function, as `ComponentEffectDisplay` takes them, with
        the label of the function in ``latent``.
    intercepts : dict
        Posterior mean of the constant of each latent function, by its label.
    link : {"identity", "log", "logit", "probit", "softmax", "ordinal"}
        Link function of the latent functions. The latent function of noise that varies is always
        the logarithm of its standard deviation.
    level : float
        Probability of the credible bands.
    thresholds : ndarray of shape (n_classes - 1,), default=None
        Values of the latent function between ordered classes, with the link "ordinal".

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skgpsvm import AdditiveGPRegressor
    >>> from skgpsvm.inspection import ComponentEffects
    >>> X, y = make_friedman1(200, n_features=5, noise=1.0, random_state=0)
    >>> gam = AdditiveGPRegressor(interactions=None).fit(X, y)
    >>> effects = ComponentEffects.from_estimator(gam, features=["x3"], n_points=5)
    >>> [effect] = effects.to_dict()["effects"]
    >>> effect["features"], len(effect["effect"])
    (['x3'], 5)
    """

    def __init__(
        self,
        effects: list[Bunch],
        intercepts: dict[Label, float],
        link: Link,
        level: float,
        thresholds: np.ndarray | None = None,
    ) -> None:
        self.effects, self.intercepts, self.link, self.level = effects, intercepts, link, level
        self.thresholds = thresholds

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: MatrixLike | None = None,
        *,
        features: Sequence[Feature] | None = None,
        level: float = 0.95,
        n_points: int = 100,
        latent: Label | None = None,
    ) -> Self:
        """Compute effects of a fitted additive model.

        Parameters
        ----------
        estimator : AdditiveGPRegressor or AdditiveGPClassifier
            A fitted estimator, or a fitted Pipeline or search around one.
        X : array-like or table of shape (n, d), default=None
            Rows over whose ranges grids are equally spaced. None means the ranges of the training
            rows, with points that are equally spaced after the transformation of skewed features.
        features : list of int, str, or pairs of them, default=None
            Terms, by number or name of their features. None takes all terms, in the order of
            decreasing share.
        level : float, default=0.95
            Probability of the credible band at each point.
        n_points : int, default=100
            Number of points of the grid of a feature. That of a pair has half as many on each axis.
        latent : int or label, default=None
            Latent function: the label of a class, the number of an output, or "noise" for noise
            that varies, with several outputs "noise 0" and so on. None takes all.

        Returns
        -------
        effects : ComponentEffects

        Raises
        ------
        ValueError
            If the model has no such term or latent function, or a feature of X has no range.
        """
        estimator, X = additive_model(estimator, X)
        labels = latent_labels(estimator) if latent is None else [latent]
        effects = [
            part
            for label in labels
            for part in component_effects(estimator, X, features, level, n_points, label)
        ]
        constants = {label: own for label, own in intercepts(estimator).items() if label in labels}
        link = link_name(estimator)
        thresholds = estimator.thresholds_ if link == "ordinal" else None
        return cls(effects, constants, link, level, thresholds)

    def to_dict(self) -> dict:
        """Return the effects as a dict of lists, strings and numbers, which JSON can hold.

        Intercepts and effects are all that a prediction of the latent functions needs. Between two
        numbers of a grid, interpolate linearly or bilinearly. An effect is zero for an unknown
        category, at ``sentinels``, and for a pair with a missing number. The effect of a
        ``point_mass`` has two values: at other numbers, and at this number. The grid of a
        categorical feature has the names of its levels, with ``"missing"`` for missing values.

        Returns
        -------
        table : dict
            ``link``, ``level``; ``thresholds``, a list or None; ``intercepts``, a list of dicts
            with ``latent`` and ``value``; and ``effects``, a list of dicts. Each of these has
            ``term``, ``latent``, ``share``; ``features``, ``categorical``, ``grid`` and
            ``sentinels``, lists with an entry for each feature of the term; ``point_mass``, a
            number or None; ``effect``, ``lower`` and ``upper``, nested lists with one level per
            feature; and ``missing``, the effect of a missing number and its bounds, or None.
        """
        intercepts = [
            {"latent": _plain(latent), "value": value} for latent, value in self.intercepts.items()
        ]
        effects = [
            {
                "term": part.name,
                "latent": _plain(part.latent),
                "share": float(part.share),
                "features": list(part.feature_names),
                "categorical": list(part.categorical),
                "grid": [axis.tolist() for axis in part.grid],
                "sentinels": [list(own) for own in part.sentinels],
                "point_mass": part.point_mass,
                **{name: part[name].tolist() for name in ("effect", "lower", "upper")},
                "missing": None if part.missing is None else part.missing.tolist(),
            }
            for part in self.effects
        ]
        return {
            "link": self.link,
            "level": self.level,
            "thresholds": None if self.thresholds is None else self.thresholds.tolist(),
            "intercepts": intercepts,
            "effects": effects,
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the effects as a pandas DataFrame with one row for each point of a grid.

        Returns
        -------
        frame : DataFrame
            Columns ``term``, ``latent``, ``x1`` and ``x2``, the values of the features of the term,
            ``effect``, ``lower`` and ``upper``. ``x2`` is missing in terms of one feature. A row of
            missing numbers has a missing ``x1``.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "ComponentEffects.to_frame needs pandas, which is not installed: pip install "
                "pandas. to_dict does not need it."
            ) from error
        rows = []
        for part in self.effects:
            values = np.stack([part[name].ravel() for name in ("effect", "lower", "upper")], 1)
            axes = np.meshgrid(*part.grid, indexing="ij")
            places = list(zip(*(axis.ravel().tolist() for axis in axes), strict=True))
            if part.missing is not None:
                values, places = np.vstack([values, part.missing]), [*places, (None,)]
            for place, own in zip(places, values.tolist(), strict=True):
                rows.append((part.name, part.latent, *(*place, None)[:2], *own))
        names = ["term", "latent", "x1", "x2", "effect", "lower", "upper"]
        return pd.DataFrame(rows, columns=names)


def _plain(label):
    """Return a label as a type of Python's own."""
    return label.item() if isinstance(label, np.generic) else label
