"""Effects of fitted additive models: plots, tables, and the importance of terms and features."""

from dataclasses import dataclass, replace
from math import ceil
from numbers import Integral

import numpy as np
import torch
from scipy.stats import norm
from sklearn.base import is_classifier
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from ._estimators import unwrapped
from ._rows import column
from ._validation import check_level, check_number

_RUG_ROWS = 100
_PANEL_SIZE = 3.6, 2.8  # inches
_MAX_LABEL_CHARS = 18  # of all tick labels together; longer ones are slanted
_BLUE = "#0072B2"


class ComponentEffectDisplay:
    """Plot of the effects of an additive model, with one panel per effect.

    The effect of a numeric feature is a curve with a pointwise credible band, above a rug of rows.
    If the feature had missing values in the fit, their effect is a point at the right edge. The
    effect of a categorical feature is a point with an interval for each level. The effect of a pair
    of features is a heat map.

    It is recommended to use `from_estimator`. All parameters are stored as attributes.

    Parameters
    ----------
    effects : list of Bunch
        One Bunch per panel. ``name`` is the name of the term, and ``share`` its share of the
        variance. ``feature_names``, ``categorical`` and ``grid`` are tuples with one entry for each
        of the term's one or two features: its name, whether it is categorical, and an array of
        numbers or names of levels. ``effect``, ``lower`` and ``upper`` are arrays with one axis per
        feature. ``rug`` is an array of the feature's values in some rows. ``missing`` has the
        effect of missing values, and its lower and upper bounds. ``rug`` and ``missing`` are None
        if they do not apply. The levels of a point mass are "other" and the number.

    Attributes
    ----------
    axes_ : ndarray of Axes, of shape (n_effects,)
        Axes of the panels. Set by `plot`.
    figure_ : Figure
        Figure of the panels. Set by `plot`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skgpsvm import AdditiveGPRegressor
    >>> from skgpsvm.inspection import ComponentEffectDisplay
    >>> X, y = make_friedman1(200, n_features=5, noise=1.0, random_state=0)
    >>> gam = AdditiveGPRegressor(terms=[..., (0, 1)], interactions=None).fit(X, y)
    >>> display = ComponentEffectDisplay.from_estimator(gam, X, features=[3, (0, 1)])
    >>> [ax.get_xlabel() for ax in display.axes_]
    ['x3', 'x0']
    """

    def __init__(self, effects):
        self.effects = effects

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        *,
        features=None,
        level=0.95,
        n_points=100,
        latent=None,
        ax=None,
        n_cols=3,
        line_kw=None,
        heatmap_kw=None,
    ):
        """Compute and draw effects of a fitted additive model.

        Parameters
        ----------
        estimator : AdditiveGPRegressor or AdditiveGPClassifier
            A fitted estimator, or a fitted Pipeline or search around one.
        X : array-like or table of shape (n, d)
            Rows over whose ranges effects are drawn, such as the rows of the fit. With a Pipeline,
            the effects are those of the features that its last step receives.
        features : list of int, str, or pairs of them, default=None
            Terms to draw, by number or name of their features. None draws all terms, in the order
            of decreasing share.
        level : float, default=0.95
            Probability of the credible band at each point.
        n_points : int, default=100
            Number of points of a curve. A heat map has half as many on each axis.
        latent : int or label, default=None
            Latent function whose effects are drawn: the label of a class, or the number of an
            output. Required if there are several.
        ax : Axes or array-like of Axes, default=None
            See `plot`.
        n_cols : int, default=3
            Number of panels in a row.
        line_kw : dict, default=None
            Keyword arguments of curves and points, see `plot`.
        heatmap_kw : dict, default=None
            Keyword arguments of heat maps, see `plot`.

        Returns
        -------
        display : ComponentEffectDisplay

        Raises
        ------
        ValueError
            If the model has no such term or latent function, or a feature of X has no range.
        ImportError
            If matplotlib is not installed.
        """
        estimator, X = _additive(estimator, X)
        labels = _latent_labels(estimator)
        latent = labels[0] if latent is None and len(labels) == 1 else latent
        effects = _effects(estimator, X, features, level, n_points, latent)
        return cls(effects).plot(ax=ax, n_cols=n_cols, line_kw=line_kw, heatmap_kw=heatmap_kw)

    def plot(self, *, ax=None, n_cols=3, line_kw=None, heatmap_kw=None):
        """Draw the effects.

        Panels of curves and points share their vertical scale.

        Parameters
        ----------
        ax : Axes or array-like of Axes, default=None
            A single Axes is replaced by a grid of panels; several Axes are the panels. None creates
            a figure.
        n_cols : int, default=3
            Number of panels in a row.
        line_kw : dict, default=None
            Keyword arguments of ``Axes.plot`` and ``Axes.errorbar``, such as ``color``.
        heatmap_kw : dict, default=None
            Keyword arguments of ``Axes.pcolormesh``, such as ``cmap``.

        Returns
        -------
        display : ComponentEffectDisplay
            This display.

        Raises
        ------
        ValueError
            If the numbers of Axes and effects differ.
        ImportError
            If matplotlib is not installed.
        """
        self.axes_ = _panels(_pyplot(), ax, len(self.effects), n_cols)
        self.figure_ = self.axes_[0].figure
        line_kw = dict(line_kw or {})
        line_kw["color"] = line_kw.pop("c", line_kw.get("color", _BLUE))
        heatmap_kw = {"cmap": "RdBu_r", **(heatmap_kw or {})}
        singles = [part for part in self.effects if len(part.grid) == 1]
        for panel, part in zip(self.axes_, self.effects, strict=True):
            panel.set_title(f"{part.name} ({100 * part.share:.1f} %)", size="medium")
            panel.set_xlabel(part.feature_names[0])
            if len(part.grid) == 2:
                _draw_pair(panel, part, heatmap_kw)
                continue
            panel.axhline(0, color="#999999", linewidth=0.7, zorder=0)
            draw = _draw_levels if part.categorical[0] else _draw_curve
            draw(panel, part, line_kw)
            panel.set(ylabel="effect", ylim=_scale(singles))
        return self


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
    link : {"identity", "log", "logit", "probit", "softmax"}
        Link function of the latent functions.
    level : float
        Probability of the credible bands.

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

    def __init__(self, effects, intercepts, link, level):
        self.effects, self.intercepts, self.link, self.level = effects, intercepts, link, level

    @classmethod
    def from_estimator(
        cls, estimator, X=None, *, features=None, level=0.95, n_points=100, latent=None
    ):
        """Compute effects of a fitted additive model.

        Parameters
        ----------
        estimator : AdditiveGPRegressor or AdditiveGPClassifier
            A fitted estimator, or a fitted Pipeline or search around one.
        X : array-like or table of shape (n, d), default=None
            Rows over whose ranges grids are equally spaced. None takes the ranges of the fit, and
            points that are equally spaced after the transformation of skewed features.
        features : list of int, str, or pairs of them, default=None
            Terms, by number or name of their features. None takes all terms, in the order of
            decreasing share.
        level : float, default=0.95
            Probability of the credible band at each point.
        n_points : int, default=100
            Number of points of the grid of a feature. That of a pair has half as many on each axis.
        latent : int or label, default=None
            Latent function: the label of a class, or the number of an output. None takes all.

        Returns
        -------
        effects : ComponentEffects

        Raises
        ------
        ValueError
            If the model has no such term or latent function, or a feature of X has no range.
        """
        estimator, X = _additive(estimator, X)
        labels = _latent_labels(estimator) if latent is None else [latent]
        effects = [
            part
            for label in labels
            for part in _effects(estimator, X, features, level, n_points, label)
        ]
        constants = zip(_latent_labels(estimator), np.ravel(estimator.intercept_), strict=True)
        intercepts = {label: float(own) for label, own in constants if label in labels}
        return cls(effects, intercepts, _link(estimator), level)

    def to_dict(self):
        """Return the effects as a dict of lists, strings and numbers, which JSON can hold.

        Together with the intercept, the effects are all that a prediction of the latent functions
        needs. A value between two numbers of a grid is interpolated, linearly or bilinearly. An
        effect is zero for an unknown category, at ``sentinels``, and for a pair with a missing
        number. That of a ``point_mass`` has two values: at other numbers, and at this number.

        Returns
        -------
        table : dict
            ``link``, ``level``; ``intercepts``, a list of dicts with ``latent`` and ``value``; and
            ``effects``, a list of dicts. Each of these has ``term``, ``latent``, ``share``;
            ``features``, ``categorical``, ``grid`` and ``sentinels``, lists with an entry for each
            feature of the term; ``point_mass``, a number or None; ``effect``, ``lower`` and
            ``upper``, nested lists with one level per feature; and
            ``missing``, the effect of a missing number and its bounds, or None.
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
            "intercepts": intercepts,
            "effects": effects,
        }

    def to_frame(self):
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


def component_importances(estimator, X, *, level=0.95, n_samples=200, random_state=0):
    """Return mean absolute effects of the terms and features of an additive model.

    The importance of a term is the mean over the rows of its absolute effect, summed over the
    latent functions, in units of ``explain``. The importance of a feature is the sum over its
    terms; that of a pair counts half for each of its features. Credible intervals are those of
    draws of the posterior. Since the draws of an uncertain effect differ more from zero than its
    mean does, an interval may lie above the importance.

    Parameters
    ----------
    estimator : AdditiveGPRegressor or AdditiveGPClassifier
        A fitted estimator, or a fitted Pipeline or search around one.
    X : array-like or table of shape (n, d)
        Rows over which effects are averaged. With a Pipeline, the importances are those of the
        features that its last step receives. Time and memory grow with the number of rows times
        that of draws; some hundred rows are enough.
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
    estimator, X = _additive(estimator, X)
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
        features=bunch(_feature_names(estimator), *of_columns),
    )


# Computation of effects


def _additive(estimator, X):
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


def _link(estimator):
    """Return the name of the link function."""
    if is_classifier(estimator):
        two = len(estimator.classes_) == 2
        return estimator._likelihood.replace("softmax", "logit") if two else "softmax"
    return "log" if estimator._likelihood == "poisson" else "identity"


def _latent_labels(estimator):
    """Return the labels of the latent functions: of classes, or numbers of outputs."""
    c = len(estimator._latents)
    return list(getattr(estimator, "classes_", range(c)))[-c:]


def _plain(label):
    """Return a label as a type of Python's own."""
    return label.item() if isinstance(label, np.generic) else label


def _effects(estimator, X, features, level, n_points, latent):
    """Return a Bunch for each term, as the display's constructor takes them.

    Without X, grids cover the ranges of the fit.
    """
    check_level(level)
    check_number("n_points", n_points, 4, integer=True)
    names, levels = _feature_names(estimator), _level_names(estimator)
    X = None if X is None else estimator._check_new(X)
    places, basis = _chosen(estimator, features, names), estimator._latents[0].basis
    terms = {place: basis.terms[place] for place in places}
    used = sorted({j for term in terms.values() for j in term} - basis.masses.keys())
    sentinels = {j: basis.features[j].sentinels for j in used}
    axes = {
        j: _Axis.of_levels(names[j], levels[j])
        if j in levels
        else _Axis.of_fit(names[j], basis.features[j], n_points)
        if X is None
        else _Axis.of_rows(names[j], column(X, j), sentinels[j], n_points)
        for j in used
    }
    moments, d = _moments(estimator, latent, norm.ppf((1 + level) / 2)), estimator.n_features_in_
    alone = [place for place, term in terms.items() if len(term) == 1 and term[0] in axes]
    singles, found = _on_singles(moments, alone, axes, d, n_points), []
    for place in places:
        term = terms[place]
        own, missing, mass = [axes[j] for j in term if j in axes], None, None
        if len(term) == 2:
            own = [axis.coarser() for axis in own]
            curves = _on_pair(moments, term, own, d, place)
        elif own:
            curves = singles[:, : len(own[0].labels), alone.index(place)]
            if term[0] in basis.absent:
                missing = singles[:, -1, alone.index(place)]
        else:
            j, mass = basis.masses[term[0]]
            own = [_Axis.of_mass(names[j], mass)]
            rows = np.zeros((2, d))
            rows[:, j] = own[0].values
            curves = moments(rows, [place])[..., 0]
        found.append(
            Bunch(
                name=estimator.term_names_[place],
                latent=latent,
                share=estimator.sobol_indices_[place],
                feature_names=tuple(axis.name for axis in own),
                categorical=tuple(axis.categorical for axis in own),
                grid=tuple(axis.labels for axis in own),
                **dict(zip(("effect", "lower", "upper"), curves, strict=True)),
                rug=own[0].rug if len(term) == 1 else None,
                missing=missing,
                sentinels=tuple(sentinels.get(j, ()) for j in term),
                point_mass=mass,
            )
        )
    return found


@dataclass(frozen=True)
class _Axis:
    """Grid of a feature: ``values`` are passed to the model, ``labels`` are drawn."""

    name: str
    values: np.ndarray
    labels: np.ndarray
    categorical: bool = False
    rug: np.ndarray | None = None

    @classmethod
    def of_levels(cls, name, levels):
        return cls(name, np.arange(len(levels)), np.array(levels), categorical=True)

    @classmethod
    def of_mass(cls, name, value):
        labels = np.array(["other", f"{value:.6g}"])
        return cls(name, np.array([np.nan, value]), labels, categorical=True)

    @classmethod
    def of_rows(cls, name, column, sentinels, n_points):
        known = column[~(np.isnan(column) | np.isin(column, sentinels))]
        if not (len(known) and known.min() < known.max()):
            raise ValueError(
                f"X has no two different numbers in {name!r}, so its effect has no range to be "
                "drawn over. Pass more rows, such as those of the fit, or leave the feature out."
            )
        grid = np.linspace(known.min(), known.max(), n_points)
        return cls(name, grid, grid, rug=known[:: ceil(len(known) / _RUG_ROWS)])

    @classmethod
    def of_fit(cls, name, feature, n_points):
        grid = feature.inverse(torch.linspace(0, 1, n_points, dtype=torch.float64)).numpy()
        return cls(name, grid, grid)

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


def _feature_names(estimator):
    numbered = [f"x{j}" for j in range(estimator.n_features_in_)]
    return [str(name) for name in getattr(estimator, "feature_names_in_", numbered)]


def _level_names(estimator):
    """Return the names of the levels of each categorical column, by column."""
    if estimator._encoder is None:
        return {}
    columns = np.flatnonzero(estimator._encoder.categorical)
    return {
        j: [_level_name(level) for level in levels]
        for j, levels in zip(columns, estimator._encoder.levels, strict=True)
    }


def _level_name(level):
    if level is None or level != level:
        return "missing"
    return f"{level:g}" if isinstance(level, float | np.floating) else str(level)


def _chosen(estimator, features, names):
    """Return the places of the requested terms."""
    if features is None:
        return np.argsort(-estimator.sobol_indices_).tolist()
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
                dropped = (
                    f"; {estimator.dropped_terms_} were dropped, by min_gain={estimator.min_gain}"
                )
            raise ValueError(
                f"The model has no effect of {requested!r}. It has those of {estimator.term_names_}"
                f"{dropped}."
            )
        found.append(terms.index(term))
    return found


def _moments(estimator, latent, width):
    """Return a function of encoded rows (b, d) and the places of k terms.

    It returns the effects with their lower and upper bounds, ndarray (3, b, k).
    """
    known = _latent_labels(estimator)
    if latent not in known:
        raise ValueError(
            f"latent={latent!r} must be one of {np.array(known).tolist()}: the latent function "
            "whose effects are drawn."
        )

    def moments(rows, places):
        mean, std = estimator._explained(rows, places)
        if mean.ndim == 3:
            mean, std = mean[..., known.index(latent)], std[..., known.index(latent)]
        return np.stack([mean, mean - width * std, mean + width * std])

    return moments


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


# Drawing


def _pyplot():
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError(
            "ComponentEffectDisplay needs matplotlib, which is not installed: pip install "
            "matplotlib."
        ) from error
    return matplotlib.pyplot


def _panels(pyplot, ax, n_panels, n_cols):
    """Return the Axes of the panels, ndarray (n_panels,)."""
    if not n_panels:
        raise ValueError("There is no effect to draw: features is empty, or the model has none.")
    check_number("n_cols", n_cols, 1, integer=True)
    if ax is not None and not hasattr(ax, "get_subplotspec"):
        axes = np.ravel(np.asarray(ax, dtype=object))
        if len(axes) != n_panels:
            raise ValueError(
                f"ax has {len(axes)} Axes for {n_panels} effects. Pass one, or one each."
            )
        return axes
    n_cols = min(n_cols, n_panels)
    n_rows = ceil(n_panels / n_cols)
    if ax is None:
        width, height = _PANEL_SIZE
        figure = pyplot.figure(figsize=(width * n_cols, height * n_rows), layout="constrained")
        grid = figure.add_gridspec(n_rows, n_cols)
    else:
        figure = ax.figure
        ax.set_axis_off()
        grid = ax.get_subplotspec().subgridspec(n_rows, n_cols)
    return np.array([figure.add_subplot(grid[k]) for k in range(n_panels)])


def _scale(singles):
    """Return vertical limits that contain all bands."""
    low, high = (
        pick(
            [pick(part[side]) for part in singles]
            + [part.missing[place] for part in singles if part.missing is not None]
        )
        for side, place, pick in (("lower", 1, np.min), ("upper", 2, np.max))
    )
    margin = 0.06 * (high - low)
    return low - margin, high + margin


def _draw_curve(panel, part, line_kw):
    (grid,) = part.grid
    panel.plot(grid, part.effect, **line_kw)
    panel.fill_between(
        grid, part.lower, part.upper, color=line_kw["color"], alpha=0.25, linewidth=0
    )
    if part.rug is not None:
        across = panel.get_xaxis_transform()
        panel.plot(
            part.rug, np.full(len(part.rug), 0.02), "|", color="black", alpha=0.4, transform=across
        )
    if part.missing is not None:
        low, high = grid[[0, -1]]
        ticks = [tick for tick in panel.get_xticks() if low <= tick <= high - 0.1 * (high - low)]
        names = panel.xaxis.get_major_formatter().format_ticks(ticks)
        place = high + 0.12 * (high - low)
        _draw_points(panel, [place], *np.reshape(part.missing, (3, 1)), line_kw)
        panel.axvline(high + 0.05 * (high - low), color="#999999", linewidth=0.7, linestyle=":")
        panel.set_xticks([*ticks, place], [*names, "missing"])


def _draw_levels(panel, part, line_kw):
    (names,) = part.grid
    places = np.arange(len(names))
    _draw_points(panel, places, part.effect, part.lower, part.upper, line_kw)
    _label(panel.xaxis, names)
    panel.set_xlim(-0.5, len(names) - 0.5)


def _draw_points(panel, places, effect, lower, upper, line_kw):
    panel.errorbar(
        places,
        effect,
        yerr=[effect - lower, upper - effect],
        **{"fmt": "o", "capsize": 3, "markersize": 4, **line_kw},
    )


def _draw_pair(panel, part, heatmap_kw):
    x, y = (
        np.arange(len(grid)) if categorical else grid
        for grid, categorical in zip(part.grid, part.categorical, strict=True)
    )
    most = np.abs(part.effect).max()
    image = panel.pcolormesh(
        *(x, y, part.effect.T),
        **{"shading": "nearest", "vmin": -most, "vmax": most, "rasterized": True, **heatmap_kw},
    )
    if not any(part.categorical) and np.ptp(part.effect) > 0:
        panel.contour(x, y, part.effect.T, colors="black", linewidths=0.5, alpha=0.6)
    for axis, names, categorical in zip(
        (panel.xaxis, panel.yaxis), part.grid, part.categorical, strict=True
    ):
        if categorical:
            _label(axis, names)
    panel.set_ylabel(part.feature_names[1])
    panel.figure.colorbar(image, ax=panel, label="effect")


def _label(axis, names):
    """Label the ticks 0, 1, ... with names of levels."""
    axis.set_ticks(np.arange(len(names)), names)
    if axis.axis_name == "x" and sum(map(len, names)) > _MAX_LABEL_CHARS:
        for tick in axis.get_ticklabels():
            tick.set(rotation=35, ha="right", rotation_mode="anchor")
