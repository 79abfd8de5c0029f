"""Effects of fitted additive models on grids."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import ceil
from numbers import Integral
from typing import Literal

import numpy as np
import torch
from scipy.ndimage import maximum_filter
from scipy.stats import norm
from sklearn.base import is_classifier
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from .._estimators import unwrapped
from .._families import FAMILIES
from .._rows import column
from .._validation import check_level, check_number, is_missing

_RUG_ROWS = 100
_NEAR = 0.04  # of the range of a number; the distance within which rows are near at least
Link = Literal["identity", "log", "logit", "probit", "softmax", "ordinal"]
Label = Hashable  # of a latent function: the label of a class, a number, or a name
Feature = int | str | tuple[int | str, int | str]  # a term: a feature, or a pair of them


def additive_model(estimator, X):
    """Return the fitted additive model, and X as it receives it."""
    given = type(estimator).__name__
    estimator, X = unwrapped(estimator, X, lambda part: hasattr(part, "explain"))
    if estimator is None:
        raise ValueError(
            f"{given} has no effects. Pass a fitted AdditiveGPRegressor or AdditiveGPClassifier, "
            "alone or as the last step of a Pipeline."
        )
    check_is_fitted(estimator)
    return estimator, X


def link_name(estimator):
    """Return the name of the link function."""
    if is_classifier(estimator):
        if estimator._likelihood == "ordinal":
            return "ordinal"
        two = len(estimator.classes_) == 2
        return estimator._likelihood.replace("softmax", "logit") if two else "softmax"
    family = FAMILIES.get(estimator._likelihood)
    return "identity" if family is None else family.link.name


def latent_labels(estimator):
    """Return the labels of the latent functions: of classes, or numbers of outputs and noises."""
    c = len(estimator._latents)
    if is_classifier(estimator):
        return list(estimator.classes_)[-c:]
    outputs = range(len(estimator._mean_latents))
    noises = [f"noise {k}" for k in outputs] if len(outputs) > 1 else ["noise"]
    return [*outputs, *noises][:c]


def latent_place(estimator, latent):
    """Return the place of a latent function, given its label, or None if the mean has only one."""
    known = latent_labels(estimator)
    if latent is None and len(estimator._mean_latents) == 1:
        return 0
    if latent not in known:
        raise ValueError(
            f"latent={latent!r} must be one of {np.array(known).tolist()}: the latent function "
            "whose effects are drawn."
        )
    return known.index(latent)


def intercepts(estimator):
    """Return the posterior mean of each latent function's constant, by its label."""
    of_noise = getattr(estimator, "noise_intercept_", ())
    constants = np.append(estimator.intercept_, of_noise).tolist()
    return dict(zip(latent_labels(estimator), constants, strict=True))


def component_effects(estimator, X, features, level, n_points, latent):
    """Return a Bunch for each term, as the display's constructor takes them.

    Without X, grids cover the ranges of the fit.
    """
    check_level(level)
    check_number("n_points", n_points, 4, integer=True)
    names = feature_names(estimator)
    X = None if X is None else estimator._check_new(X)
    own, width = latent_place(estimator, latent), norm.ppf((1 + level) / 2)
    shares = estimator._shares_in(own)
    places, basis = _chosen(estimator, features, names, shares), estimator._latents[0].basis
    terms = {place: basis.terms[place] for place in places}
    used = sorted({j for term in terms.values() for j in term if basis.features[j].column is None})
    sentinels = {j: basis.features[j].sentinels for j in used}
    axes = {j: _axis(estimator, j, j, X, n_points) for j in used}
    d = estimator.n_features_in_

    def moments(rows, places):
        """Return effects of terms on encoded rows (b, d), and their bounds: (3, b, k)."""
        mean, std = (part[..., own] for part in estimator._explained(rows, places))
        return np.stack([mean, mean - width * std, mean + width * std])

    alone = [place for place, term in terms.items() if len(term) == 1 and term[0] in axes]
    singles, found = _on_singles(moments, alone, axes, d, n_points), []
    for place in places:
        term, first = terms[place], basis.features[terms[place][0]]
        grids = [axes[j] for j in term if j in axes]
        missing, rug, support = None, grids[0].rug if grids else None, None
        if len(term) == 2:
            grids = [axis.coarser() for axis in grids]
            curves = _on_pair(moments, term, grids, d, place)
            if X is not None:
                rug, support = _rows_of_pair(grids, [column(X, j) for j in term])
        elif grids:
            curves = singles[:, : len(grids[0].labels), alone.index(place)]
            if term[0] in basis.absent:
                missing = singles[:, -1, alone.index(place)]
        else:
            j = estimator.terms_[place][0]
            grids = [_axis(estimator, term[0], j, X, n_points)]
            rows = np.zeros((len(grids[0].values), d))
            rows[:, j] = grids[0].values
            curves = moments(rows, [place])[..., 0]
        found.append(
            Bunch(
                name=estimator.term_names_[place],
                latent=latent,
                share=shares[place],
                feature_names=tuple(axis.name for axis in grids),
                categorical=tuple(axis.categorical for axis in grids),
                grid=tuple(axis.labels for axis in grids),
                **dict(zip(("effect", "lower", "upper"), curves, strict=True)),
                rug=rug,
                support=support,
                missing=missing,
                sentinels=tuple(sentinels.get(j, ()) for j in term),
                point_mass=first.value if first.is_mass else None,
            )
        )
    return found


@dataclass(frozen=True)
class _Axis:
    """Grid of a feature: ``values`` are passed to the model, ``labels`` are drawn.

    Rows whose distance from a point is at most ``near`` count as near it.
    """

    name: str
    values: np.ndarray
    labels: np.ndarray
    categorical: bool = False
    rug: np.ndarray | None = None
    near: float = 0.0

    @property
    def reach(self):
        """Number of points at each side of a point to which a row at this point is near."""
        return round(self.near / (self.values[1] - self.values[0])) if self.near else 0

    def nearest(self, rows):
        """Return the places (r,) of the points that are nearest to some rows (r,)."""
        middles = (self.values[1:] + self.values[:-1]) / 2
        return np.searchsorted(middles, rows)

    def coarser(self):
        """Return an axis with half as many points, or itself if it is categorical."""
        if self.categorical:
            return self
        half = np.interp(
            np.linspace(0, 1, len(self.values) // 2),
            np.linspace(0, 1, len(self.values)),
            self.values,
        )
        return replace(self, values=half, labels=half)


def _axis(estimator, i, j, X, n_points):
    """Return the grid of feature i of the basis, which is column j, or is derived from it.

    Numbers are over the range of rows X, or of the fit.
    """
    features, levels = estimator._latents[0].basis.features, level_names(estimator)
    name, derived, feature = feature_names(estimator)[j], features[i], features[j]

    def numbers(units):
        return feature.inverse(torch.as_tensor(units, dtype=torch.float64)).numpy()

    if derived.is_mass:
        labels = np.array(["other", f"{derived.value:.6g}"])
        return _Axis(name, np.array([np.nan, derived.value]), labels, categorical=True)
    if derived.edges:  # both ends of all bins
        edges, (low, high) = numbers(derived.edges), numbers([0.0, 1.0])
        gap = 1e-9 * (high - low)
        grid = np.r_[low, np.stack([edges - gap, edges + gap], 1).ravel(), high]
        return _Axis(name, grid, grid)
    if j in levels:
        return _Axis(name, np.arange(len(levels[j])), np.array(levels[j]), categorical=True)
    if X is None:
        grid = numbers(torch.linspace(0, 1, n_points, dtype=torch.float64))
        return _Axis(name, grid, grid)
    known = column(X, j)
    known = known[~(np.isnan(known) | np.isin(known, feature.sentinels))]
    if not (len(known) and known.min() < known.max()):
        raise ValueError(
            f"X has no two different numbers in {name!r}, so its effect has no range to be "
            "drawn over. Pass more rows, such as those of the fit, or leave the feature out."
        )
    grid = np.linspace(known.min(), known.max(), n_points)
    # Numbers such as counts have gaps between them, which are not empty of rows.
    gap = np.median(np.diff(np.unique(known)))
    near = max(_NEAR * (grid[-1] - grid[0]), gap / 2)
    return _Axis(name, grid, grid, rug=known[:: ceil(len(known) / _RUG_ROWS)], near=near)


def feature_names(estimator):
    numbered = [f"x{j}" for j in range(estimator.n_features_in_)]
    return [str(name) for name in getattr(estimator, "feature_names_in_", numbered)]


def level_names(estimator):
    """Return the names of the levels of each categorical column, by column."""
    if estimator._encoder is None:
        return {}
    columns = np.flatnonzero(estimator._encoder.categorical)
    return {
        j: _level_names(levels)
        for j, levels in zip(columns, estimator._encoder.levels, strict=True)
    }


def _level_names(levels):
    """Return different names of the levels of a category; one that is missing is the last."""
    known = [level for level in levels if not is_missing(level)]
    names = [
        text.removesuffix(".0") if isinstance(level, float | np.floating) else text
        for level, text in zip(known, map(str, known), strict=True)
    ]
    absent = "no value" if "missing" in names else "missing"
    return names + [absent] * (len(levels) - len(known))


def _chosen(estimator, features, names, shares):
    """Return the places of the requested terms; of all, in the order of decreasing shares."""
    if features is None:
        return np.argsort(-shares).tolist()
    features = [features] if isinstance(features, str | Integral) else features
    numbers = {name: j for j, name in enumerate(names)}
    terms = [set(term) for term in estimator._latents[0].basis.terms]
    found = []
    for requested in features:
        if isinstance(requested, str) and requested in estimator.term_names_:
            found.append(estimator.term_names_.index(requested))
            continue
        single = isinstance(requested, str | Integral)
        term = {numbers.get(j, j) for j in ([requested] if single else requested)}
        if term not in terms:
            dropped = ""
            if estimator.dropped_terms_:
                dropped = f"; {estimator.dropped_terms_} lack clear evidence (min_gain=0 keeps all)"
            raise ValueError(
                f"The model has no effect of {requested!r}. It has those of {estimator.term_names_}"
                f"{dropped}."
            )
        found.append(terms.index(term))
    return found


def _on_singles(moments, places, axes, d, n_points):
    """Return the effects of k single features at the points of all axes, (3, b, k).

    One array of rows serves all features, since an effect depends on its own feature only. In the
    last row, all numbers are missing.
    """
    size = max([n_points, *(len(axis.values) for axis in axes.values())])
    rows = np.zeros((size + 1, d))
    for j, axis in axes.items():
        rows[: len(axis.values), j] = axis.values
        rows[-1, j] = 0 if axis.categorical else np.nan
    return moments(rows, places)


def _on_pair(moments, term, axes, d, place):
    """Return the effect of one pair on its grid, (3, k, l)."""
    grid = np.meshgrid(*(axis.values for axis in axes), indexing="ij")
    rows = np.zeros((grid[0].size, d))
    for j, values in zip(term, grid, strict=True):
        rows[:, j] = values.ravel()
    return moments(rows, [place]).reshape(3, *grid[0].shape)


def _rows_of_pair(axes, columns):
    """Return some rows (r, 2) on two axes, and which points of their grid (k, l) have rows near.

    A row is near a point if it has its level of a category, and a number near it. Rows without a
    number on an axis, as with missing ones, are left out.
    """
    rows = np.stack(columns, axis=1)
    low, high = np.transpose([axis.values[[0, -1]] for axis in axes])
    rows = rows[((low <= rows) & (rows <= high)).all(1)]
    occupied = np.zeros([len(axis.values) for axis in axes], bool)
    occupied[*(axis.nearest(own) for axis, own in zip(axes, rows.T, strict=True))] = True
    size = [2 * axis.reach + 1 for axis in axes]
    support = maximum_filter(occupied, size, mode="constant")
    return rows[:: max(1, ceil(len(rows) / _RUG_ROWS))], support
