"""Choice of the numbers of inducing points and polynomials of the terms of an additive model."""

import math
from dataclasses import dataclass, replace

import torch

from ._basis import AdditiveBasis, Feature
from ._defaults import DEFAULTS
from ._description import distinct

_QUANTILE_ROWS = 50_000  # that the bins of steps are found from
_MAX_GRID_POINTS = 2**14  # of pairs with a point at every value; matrices then take 2 GiB each


@dataclass(frozen=True)
class Grids:
    """Parameters of an estimator that set the resolution of its grids."""

    # Inducing points of an effect, and of each feature of a pair, or "auto"; None is one at every
    # value
    n_inducing: int | str | None
    n_inducing_pair: int | str | None
    length_scale_bounds: tuple
    empirical: bool  # whether the measure of the features is the empirical one
    # What a row tells of a latent at most, relative to Gaussian noise of variance one
    information: float = 1.0

    def first(self, features, rows, kernel, constant, singles):
        """Return the `AdditiveBasis` with an effect of each feature of a list that varies.

        Point masses have effects too.
        """
        masses = [j for j, feature in enumerate(features) if feature.column is not None]
        columns = range(len(features) - len(masses))
        varying = [j for j in columns if not features[j].constant]
        n = rows.n_observations
        most, requested = _max_points(n, len(varying)), self._requested(n, len(varying))
        points = [min(n or limit, limit) for n, limit in zip(requested, most, strict=True)]
        size, pair_size = map(_n_polynomials, self.least_lengths(*points))
        basis = AdditiveBasis(
            features=features,
            terms=[(j,) for j in [*singles, *masses] if not features[j].constant],
            kernel=kernel,
            pair_kernel=kernel,
            n_inducing=points[0],
            n_inducing_pair=points[1],
            points={},
            pair_points={},
            size=max(size, pair_size),  # columns of a pair are the first of its features'
            pair_size=pair_size,
            constant=constant,
            means=[],
            seconds=[],
        )
        numbers = [j for j in varying if basis.is_number(j)]
        few = [n - 1 if given else rows.n_rows for n, given in zip(points, requested, strict=True)]
        values = {
            j: (values := features[j].unit(own).unique())[values.isfinite()].numpy()
            for j, own in distinct(rows, numbers, max(few)).items()
        }
        basis.points, basis.pair_points = (
            {j: own for j, own in values.items() if len(own) <= most} for most in few
        )
        few = [j for j, own in basis.points.items() if len(own) < basis.size]
        basis.tabled = {j: None for j in few if not features[j].linear}
        basis.measure(rows, self.empirical)
        return basis

    def with_steps(self, basis, columns, rows):
        """Return the `AdditiveBasis` with steps of some columns, at quantiles of the rows."""
        most = min(rows.n_observations // DEFAULTS.step_rows, DEFAULTS.all_steps // len(columns))
        u = basis.unit(rows.inputs(rows.spaced(_QUANTILE_ROWS)))
        edges = [_edges(u[:, j], max(most, 2)).tolist() for j in columns]
        steps = [
            Feature(n_levels=len(own) + 1, column=j, edges=tuple(own))
            for j, own in zip(columns, edges, strict=True)
        ]
        terms = [(k,) for k, _ in enumerate(steps, len(basis.features))]
        basis = replace(basis, features=basis.features + steps, terms=basis.terms + terms)
        basis.measure(rows, self.empirical)
        return basis

    def _requested(self, n, n_varying):
        """Return the numbers of inducing points of an effect, and of each feature of a pair.

        None is a point at every value.
        """
        of_effect, of_pair = self.n_inducing, self.n_inducing_pair
        by_rows, by_rows_in_pair = _max_points(self.information * n, n_varying)
        if of_effect == "auto":
            each = DEFAULTS.all_auto_points // max(n_varying, 1)
            most = min(each, by_rows, DEFAULTS.max_auto_points)
            # Effects that rows tell less of are learned less finely, and so are many effects.
            least = round(DEFAULTS.min_auto_points * self.information**0.5)
            of_effect = max(min(least, max(each, DEFAULTS.wide_auto_points)), most)
        if of_pair == "auto":
            of_pair = min(DEFAULTS.first_pair_points, by_rows_in_pair)
        return of_effect, of_pair

    def check_pairs(self, basis, given, most):
        """Raise ValueError if grids of pairs with a point at every value exceed the memory."""
        if self.n_inducing_pair is not None:
            return
        sizes = {
            j: feature.n_levels or len(basis.pair_points[j])
            for j, feature in enumerate(basis.features)
            if not feature.constant and feature.column is None
        }
        largest = sorted(sizes, key=sizes.get)[-2:]
        pairs = given or ([largest] if most and len(largest) == 2 else [])
        points = sum(sizes[i] * sizes[j] for i, j in pairs)
        if points > _MAX_GRID_POINTS:
            raise ValueError(
                f"n_inducing_interaction=None has a point for any two values of a pair: {points:,} "
                f"here, and matrices of {8 * points**2 / 2**30:,.0f} GiB; up to "
                f"{_MAX_GRID_POINTS:,} are allowed. Use 'auto' or a number, list pairs of "
                "features with fewer values in terms, or use sparse=False."
            )

    def finer(self, basis, length, rows):
        """Return the basis with finer grids of pairs, or None.

        Grids are refined if n_inducing_interaction is "auto" and a length scale of a pair, of the
        logarithms ``length`` (c, a), is near the lower bound that the grid sets. Features with a
        point at every value need no more.
        """
        n = basis.n_inducing_pair
        # The time of c latents is that of c matrices of the points.
        points = DEFAULTS.grid_points / len(length) ** (1 / 3)
        most = math.isqrt(int(points) // max(len(basis.pairs), 1))
        _, by_rows = _max_points(self.information * rows.n_observations, len(basis.axes))
        finer = min(2 * n, max(n, most), by_rows)
        low, lower = (self.least_lengths(basis.n_inducing, k)[1] for k in (n, finer))
        axes = [k for k, j in enumerate(basis.pair_axes) if j not in basis.pair_points]
        in_pairs = length[:, len(basis.axes) :]
        rough = in_pairs[:, axes] < math.log(DEFAULTS.rough_length * low)
        small = finer < DEFAULTS.grid_growth * n
        if self.n_inducing_pair != "auto" or small or lower >= low or not rough.any():
            return None
        size = _n_polynomials(lower)
        basis = replace(basis, n_inducing_pair=finer, pair_size=size, size=max(basis.size, size))
        basis.measure(rows, self.empirical)
        return basis

    def least_lengths(self, points, pair_points):
        """Return lower bounds of the length scales of effects and of pairs, given their points."""
        low, high = self.length_scale_bounds
        return [
            min(max(low, least), high)
            for least in (1 / points, min(DEFAULTS.min_pair_length, 2 / pair_points))
        ]


def _edges(u, most):
    """Return the edges of bins of numbers (n,) with about equally many, up to ``most`` bins."""
    values, counts = u[u.isfinite()].unique(return_counts=True)
    bins = torch.arange(len(values))
    if len(values) > most:
        bins = ((counts.cumsum(0) - 0.5 * counts) * (most / counts.sum())).long()
    last = torch.nonzero(bins.diff())[:, 0]
    return 0.5 * (values[last] + values[last + 1])


def _max_points(n, n_varying):
    """Return the maximum numbers of inducing points of an effect, and of each feature of a pair.

    They are those of n observations.
    """
    of_effect = int(n) // min(16, 2 * max(n_varying, 1))
    of_pair = math.isqrt(int(n)) // 2
    return max(DEFAULTS.points, of_effect), max(DEFAULTS.pair_points, of_pair)


def _n_polynomials(low):
    """Return the number of polynomials of a feature whose length scales are not below ``low``."""
    return min(math.ceil(DEFAULTS.polynomials / low) + 2, DEFAULTS.max_polynomials)
