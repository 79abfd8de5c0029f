"""Plot of the contributions of the terms to the prediction of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from .._rows import column
from .._typing import MatrixLike, RandomStateLike
from .._validation import check_level, check_number
from ._display import BLUE, GRAY, pyplot
from ._effects import (
    Label,
    additive_model,
    feature_names,
    intercepts,
    latent_place,
    level_names,
    link_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ORANGE = "#D55E00"
_ROW_HEIGHT, _WIDTH = 0.32, 7.0  # inches
_N_DRAWS = 1000  # of the sum of the terms that have no bar of their own


class ContributionDisplay:
    """Waterfall plot of one row: from the constant to the prediction, term by term.

    Each bar starts where the one above ends, and shows the credible interval of its contribution.
    Bars are sorted by absolute contribution; the last one is the sum of all other terms. The scale
    is that of the latent function.

    It is recommended to use `from_estimator`. All parameters are stored as attributes.

    Parameters
    ----------
    names : list of str
        Terms, with the values of their features in the row.
    contributions : ndarray of shape (k,)
        Posterior means.
    widths : ndarray of shape (k,)
        Half the widths of the credible intervals.
    intercept : float
        Posterior mean of the constant.
    label : str
        Label of the scale.

    Attributes
    ----------
    ax_ : Axes
        Set by `plot`.
    figure_ : Figure
        Set by `plot`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skgpsvm import AdditiveGPRegressor
    >>> from skgpsvm.inspection import ContributionDisplay
    >>> X, y = make_friedman1(200, n_features=5, noise=1.0, random_state=0)
    >>> gam = AdditiveGPRegressor(interactions=None).fit(X, y)
    >>> display = ContributionDisplay.from_estimator(gam, X[:1], max_terms=3)
    >>> display.names
    ['x1 = 0.715', 'x0 = 0.549', '3 other terms']
    """

    def __init__(
        self,
        names: list[str],
        contributions: np.ndarray,
        widths: np.ndarray,
        intercept: float,
        label: str,
    ) -> None:
        self.names, self.contributions, self.widths = names, contributions, widths
        self.intercept, self.label = intercept, label

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: MatrixLike,
        *,
        level: float = 0.95,
        max_terms: int = 12,
        latent: Label | None = None,
        random_state: RandomStateLike = 0,
        ax: Axes | None = None,
    ) -> Self:
        """Compute and draw the contributions to the prediction of one row.

        Parameters
        ----------
        estimator : AdditiveGPRegressor or AdditiveGPClassifier
            A fitted estimator, or a fitted Pipeline or search around one.
        X : array-like or table of shape (1, d)
            The row. With a Pipeline, the features are those that its last step receives.
        level : float, default=0.95
            Probability of the credible intervals.
        max_terms : int, default=12
            Maximum number of bars. The last one is the sum of the terms that have none.
        latent : int or label, default=None
            Latent function: the label of a class, the number of an output, or "noise" for noise
            that varies, with several outputs "noise 0" and so on. Required if there are several
            classes or outputs.
        random_state : int, RandomState instance or None, default=0
            Seeds the posterior draws for the interval of the sum of other terms.
        ax : Axes, default=None
            See `plot`.

        Returns
        -------
        display : ContributionDisplay

        Raises
        ------
        ValueError
            If X has not exactly one row, or the model has no terms or no such latent function.
        ImportError
            If matplotlib is not installed.
        """
        estimator, X = additive_model(estimator, X)
        check_level(level)
        check_number("max_terms", max_terms, 1, integer=True)
        row = estimator._check_new(X)
        if len(row) != 1:
            raise ValueError(f"X has {len(row)} rows. Pass the one to explain, such as X[:1].")
        if not estimator.terms_:
            raise ValueError("The model has no terms: its prediction is the same for all rows.")
        place = latent_place(estimator, latent)
        mean, std = (part[0, :, place] for part in estimator._explained(row))
        order, width = np.argsort(-abs(mean)), norm.ppf((1 + level) / 2)
        shown = order if len(order) <= max_terms else order[: max_terms - 1]
        names, rest = _names(estimator, row), order[len(shown) :]
        names, means, deviations = [names[k] for k in shown], mean[shown], std[shown]
        if len(rest):
            names.append(f"{len(rest)} other terms")
            drawn = estimator._drawn_effects(row, _N_DRAWS, check_random_state(random_state))
            spread = drawn[:, 0, rest, place].sum(1).std()
            means, deviations = np.r_[means, mean[rest].sum()], np.r_[deviations, spread]
        intercept = list(intercepts(estimator).values())[place]
        display = cls(names, means, width * deviations, intercept, _label(estimator, latent, place))
        return display.plot(ax=ax)

    def plot(self, *, ax: Axes | None = None) -> Self:
        """Draw the contributions.

        Parameters
        ----------
        ax : Axes, default=None
            Axes to draw on. None creates a figure.

        Returns
        -------
        display : ContributionDisplay
            This display.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        plt = pyplot(type(self).__name__)
        if ax is None:
            size = _WIDTH, 1.2 + _ROW_HEIGHT * len(self.names)
            _, ax = plt.subplots(figsize=size, layout="constrained")
        ends = self.intercept + np.cumsum(self.contributions)
        starts, rows = np.r_[self.intercept, ends[:-1]], np.arange(len(ends))
        colors = np.where(self.contributions > 0, _ORANGE, BLUE)
        ax.axvline(self.intercept, color=GRAY, linewidth=0.8, zorder=0)
        ax.barh(rows, self.contributions, left=starts, color=colors, height=0.6)
        ink = plt.rcParams["text.color"]
        ax.errorbar(ends, rows, xerr=self.widths, fmt="none", color=ink, linewidth=1, capsize=3)
        ax.vlines(ends[:-1], rows[:-1], rows[1:], color=GRAY, linewidth=0.8, linestyle=":")
        ax.use_sticky_edges = False  # the first bar would touch the frame
        ax.set_yticks(rows, self.names)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set(xlabel=self.label, title=f"{self.intercept:.3g} on average, {ends[-1]:.3g} here")
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _names(estimator, X):
    """Return the name of each term with the values of its features in the row X (1, d)."""
    names, levels = feature_names(estimator), level_names(estimator)
    basis = estimator._latents[0].basis

    def value(j):
        code = column(X, j)[0]
        if j not in levels:
            return "missing" if np.isnan(code) else f"{code:.3g}"
        return levels[j][int(code)] if code >= 0 else "unknown"

    found = []
    for term, columns in zip(basis.terms, estimator.terms_, strict=True):
        own = ", ".join(f"{names[j]} = {value(j)}" for j in columns)
        first = basis.features[term[0]]
        if first.is_mass:
            sign = "=" if column(X, columns[0])[0] == first.value else "\N{NOT EQUAL TO}"
            own = f"{names[columns[0]]} {sign} {first.value:.6g}"
            own = f"point mass at {own}" if sign == "=" else own
        found.append(f"steps at {own}" if first.edges else own)
    return found


def _label(estimator, latent, place):
    """Return the label of the scale of the latent function."""
    if place >= len(estimator._mean_latents):
        return f"logarithm of the standard deviation of {latent}"
    link = link_name(estimator)
    of = "" if latent is None else f" of {latent}"
    return f"prediction{of}" if link == "identity" else f"latent function{of} ({link} link)"
