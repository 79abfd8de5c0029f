"""Plots of the effects of additive models."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from textwrap import fill
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from .._typing import ArrayLike, MatrixLike
from .._validation import check_number
from ._effects import Feature, Label, additive_model, component_effects, latent_labels, latent_place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_WIDTH, _MAX_WIDTH = 3.6, 14.4  # inches, of a panel and of a figure
_MIN_COLS, _MAX_COLS = 3, 6  # unless given
_CHARS_PER_INCH = 9  # of titles; longer ones are wrapped
_MAX_LABEL_CHARS = 18  # of all tick labels together; longer ones are slanted
_MANY_LEVELS, _MAX_LABELS = 8, 20  # small labels, upright on the x axis; labels of every k-th level
_FADED = 0.35  # opacity of a pair's effect where there are no rows
BLUE, _LIGHT_BLUE, GRAY = "#0072B2", "#56B4E9", "#999999"  # light on dark pages


class ComponentEffectDisplay:
    """Plot of the effects of an additive model, with one panel per effect.

    The effect of a numeric feature is a curve with a pointwise credible band, above a rug of rows.
    If the feature had missing values in the fit, their effect is a point at the right edge. The
    effect of a categorical feature is a point with an interval for each level. The effect of a
    pair of features is a heat map, with points for some rows. It is faded and hatched where no
    rows are near, since only the prior determines it there.

    It is recommended to use `from_estimator`. All parameters are stored as attributes.

    Parameters
    ----------
    effects : list of Bunch
        One Bunch per panel. ``name`` is the name of the term, and ``share`` its share of the
        variance. ``feature_names``, ``categorical`` and ``grid`` are tuples with one entry for each
        of the term's one or two features: its name, whether it is categorical, and an array of
        numbers or names of levels. ``effect``, ``lower`` and ``upper`` are arrays with one axis per
        feature. ``rug`` is an array of the features' values in some rows, with two columns for a
        pair, whose categories are numbered. ``support`` is a boolean array of the shape of the
        effect of a pair, true where rows are near. ``missing`` has the effect of missing values,
        and its lower and upper bounds. ``rug``, ``support`` and ``missing`` are None if they do not
        apply. The levels of a point mass are "other" and the number.

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

    def __init__(self, effects: list[Bunch]) -> None:
        self.effects = effects

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: MatrixLike,
        *,
        features: Sequence[Feature] | None = None,
        level: float = 0.95,
        n_points: int = 100,
        latent: Label | None = None,
        ax: Axes | ArrayLike | None = None,
        n_cols: int | None = None,
        line_kw: dict[str, Any] | None = None,
        heatmap_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Compute and draw effects of a fitted additive model.

        Parameters
        ----------
        estimator : AdditiveGPRegressor or AdditiveGPClassifier
            A fitted estimator, or a fitted Pipeline or search around one.
        X : array-like or table of shape (n, d)
            Rows over whose ranges effects are drawn, such as the training rows. A row is near a
            point of a heat map if it has the same category, and numbers that differ by at most 4 %
            of their range, or by half the typical gap between numbers. With a Pipeline, the
            effects are those of the features that its last step receives.
        features : list of int, str, or pairs of them, default=None
            Terms to draw, by number or name of their features. None draws all terms, in the order
            of decreasing share.
        level : float, default=0.95
            Probability of the credible band at each point.
        n_points : int, default=100
            Number of points of a curve. A heat map has half as many on each axis.
        latent : int or label, default=None
            Latent function whose effects are drawn: the label of a class, the number of an output,
            or "noise" for the logarithm of the standard deviation of noise that varies, with
            several outputs "noise 0" and so on. Required if there are several classes or outputs.
        ax, n_cols, line_kw, heatmap_kw : optional
            Axes, number of panels in a row, and keyword arguments of curves and of heat maps, see
            `plot`.

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
        estimator, X = additive_model(estimator, X)
        latent = latent_labels(estimator)[latent_place(estimator, latent)]
        effects = component_effects(estimator, X, features, level, n_points, latent)
        return cls(effects).plot(ax=ax, n_cols=n_cols, line_kw=line_kw, heatmap_kw=heatmap_kw)

    def plot(
        self,
        *,
        ax: Axes | ArrayLike | None = None,
        n_cols: int | None = None,
        line_kw: dict[str, Any] | None = None,
        heatmap_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Draw the effects.

        Panels of curves and points share their vertical scale. The colors of a heat map span its
        values near rows. Curves are light blue if matplotlib's ``text.color`` is light, as in the
        style ``dark_background``.

        Parameters
        ----------
        ax : Axes or array-like of Axes, default=None
            A single Axes is replaced by a grid of panels; several Axes are the panels. None creates
            a figure.
        n_cols : int, default=None
            Number of panels in a row. None means three for up to nine panels, and up to six for
            more. In a new figure, more than four in a row are drawn smaller.
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
        plt = pyplot(type(self).__name__)
        if n_cols is None:
            n_cols = min(max(_MIN_COLS, ceil(sqrt(len(self.effects)))), _MAX_COLS)
        check_number("n_cols", n_cols, 1, integer=True)
        width = min(_PANEL_WIDTH, _MAX_WIDTH / n_cols)
        self.axes_ = _panels(plt, ax, len(self.effects), n_cols, width)
        self.figure_ = self.axes_[0].figure
        line_kw = dict(line_kw or {})
        line_kw["color"] = line_kw.pop("c", line_kw.get("color", _curve_color(plt)))
        heatmap_kw = {"cmap": "RdBu_r", **(heatmap_kw or {})}
        singles = [part for part in self.effects if len(part.grid) == 1]
        for panel, part in zip(self.axes_, self.effects, strict=True):
            chars = round(_CHARS_PER_INCH * width)
            panel.set_title(fill(f"{part.name} ({100 * part.share:.1f} %)", chars), size="medium")
            panel.set_xlabel(fill(part.feature_names[0], chars))
            if len(part.grid) == 2:
                _draw_pair(panel, part, heatmap_kw)
                continue
            panel.axhline(0, color=GRAY, linewidth=0.7, zorder=0)
            draw = _draw_levels if part.categorical[0] else _draw_curve
            draw(panel, part, line_kw)
            panel.set(ylabel="effect", ylim=_scale(singles))
        return self


def pyplot(name):
    """Return matplotlib.pyplot, which the display of this name needs."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError(
            f"{name} needs matplotlib, which is not installed: pip install matplotlib."
        ) from error
    return matplotlib.pyplot


def _curve_color(plt):
    """Return the color of curves: a lighter blue where text is light, as on dark pages."""
    ink = plt.matplotlib.colors.to_rgb(plt.rcParams["text.color"])
    return _LIGHT_BLUE if np.mean(ink) > 0.5 else BLUE


def _panels(pyplot, ax, n_panels, n_cols, width):
    """Return the Axes of the panels, ndarray (n_panels,), each some inches wide in a new figure."""
    if not n_panels:
        raise ValueError("There is no effect to draw: features is empty, or the model has none.")
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
        height = 0.4 + 2 / 3 * width  # a title, and axes
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
        ink = panel.xaxis.label.get_color()
        panel.plot(
            part.rug, np.full(len(part.rug), 0.02), "|", color=ink, alpha=0.4, transform=across
        )
    if part.missing is not None:
        low, high = grid[[0, -1]]
        ticks = [tick for tick in panel.get_xticks() if low <= tick <= high - 0.2 * (high - low)]
        names = panel.xaxis.get_major_formatter().format_ticks(ticks)
        place = high + 0.12 * (high - low)
        effect, lower, upper = np.reshape(part.missing, (3, 1))
        _draw_points(panel, [place], effect, lower, upper, line_kw)
        panel.axvline(high + 0.05 * (high - low), color=GRAY, linewidth=0.7, linestyle=":")
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
    support = np.ones(part.effect.shape, bool) if part.support is None else part.support
    highest = np.abs(part.effect).max()
    most = np.abs(part.effect[support]).max(initial=0) or highest
    panel.patch.set(hatch="////", edgecolor=GRAY)  # shows through where there are no rows
    image = panel.pcolormesh(
        *(x, y, part.effect.T),
        alpha=np.where(support, 1.0, _FADED).T,
        **{"shading": "nearest", "vmin": -most, "vmax": most, "rasterized": True, **heatmap_kw},
    )
    if not any(part.categorical) and len(np.unique(part.effect[support])) > 1:
        effect = np.ma.masked_where(~support, part.effect)
        panel.contour(x, y, effect.T, colors="black", linewidths=0.5, alpha=0.6)
    if part.rug is not None and not all(part.categorical):
        panel.plot(*part.rug.T, ".", color="black", alpha=0.5, markersize=3, markeredgewidth=0)
    for axis, names, categorical in zip(
        (panel.xaxis, panel.yaxis), part.grid, part.categorical, strict=True
    ):
        if categorical:
            _label(axis, names)
    panel.set_ylabel(part.feature_names[1])
    beyond = "both" if highest > most else "neither"
    panel.figure.colorbar(image, ax=panel, label="effect", extend=beyond)


def _label(axis, names):
    """Label the ticks 0, 1, ... with names of levels, as many as there is room for."""
    step, many = ceil(len(names) / _MAX_LABELS), len(names) > _MANY_LEVELS
    size = "x-small" if many else None
    axis.set_ticks(np.arange(0, len(names), step), names[::step], size=size)
    if axis.axis_name == "x" and sum(map(len, names)) > _MAX_LABEL_CHARS:
        slanted = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        for tick in axis.get_ticklabels():
            tick.set(**({"rotation": 90} if many else slanted))
