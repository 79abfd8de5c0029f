"""Choice of the stage that learns an additive model: exact or with inducing points."""

from dataclasses import dataclass, replace

import torch

from .._sites import SiteLikelihood
from ._defaults import DEFAULTS
from ._exact_learning import ExactGaussianAscent, ExactSiteAscent
from ._gaussian_ascent import GaussianAscent
from ._grids import Grids
from ._site_ascent import RowSiteAscent, SiteAscent


@dataclass(frozen=True)
class Ascents:
    """Settings of an estimator from which the stages of a fit are made."""

    grids: Grids
    sites: SiteLikelihood
    form: tuple  # covariance and rank of the posterior, see `EffectsBound`
    shrinkage: float  # see `AdditiveAscent`
    tol: float
    batch_size: int | None
    generator: torch.Generator

    def sparse(self, basis, rows):
        """Return the `AdditiveAscent` of a basis with inducing points."""
        least = self.grids.least_lengths(basis.n_inducing, basis.n_inducing_pair)
        # With known noise, the Gram matrix of the columns depends on the learned noise.
        if self.sites.conjugate and rows.targets.ndim < 3:
            kind = GaussianAscent
        else:
            kind = RowSiteAscent if self._keeps_sites(basis, rows) else SiteAscent
        return self._ascent(kind, least, basis, rows)

    def _keeps_sites(self, basis, rows):
        """Return whether the rows are fewer than three per column, and all in one batch.

        With n rows, r columns and p features, at most some r / 3, products of the features then
        take O(n p^2) instead of O(r^2 p), and no Gram matrix takes O(n r^2).
        """
        here = len(rows) == rows.n_rows  # and not on other ranks
        at_once = self.batch_size is None or self.batch_size >= rows.n_rows
        return here and at_once and rows.n_rows < 3 * basis.n_columns(rows)

    def exact(self, basis, rows):
        """Return the `AdditiveAscent` of a basis without inducing points."""
        least = [self.grids.length_scale_bounds[0]] * 2
        basis = replace(basis, tabled={}, shares=True)
        basis.measure_by_atoms(rows, self.grids.empirical)
        kind = ExactGaussianAscent if self.sites.conjugate else ExactSiteAscent
        return self._ascent(kind, least, basis, rows)

    def _ascent(self, kind, least, basis, rows):
        high = self.grids.length_scale_bounds[1]
        limits = [rows.weights.new_tensor([low, high]).log() for low in least]
        given = basis, rows, limits, self.form, self.shrinkage, self.tol
        if not issubclass(kind, SiteAscent):
            return kind(*given)
        options = {"batch_size": self.batch_size, "generator": self.generator}
        return kind(*given, sites=self.sites, **options)

    def learning_rows(self, rows, features):
        """Return the rows that learn hyperparameters, large weights normalized to mean one.

        Weights are kept if all features are categories: their effects could otherwise not be
        distinguished from noise.
        """
        numbers = any(not (feature.n_levels or feature.constant) for feature in features)
        return rows.with_moderate_weights() if numbers else rows

    def is_exact(self, requested, rows, wide):
        """Return whether a fit ends without inducing points.

        ``requested`` is the parameter ``sparse`` of an estimator; "auto" decides by the rows.
        ``wide`` is whether there would be more inducing points than rows.
        """
        if requested != "auto":
            return not requested
        if self.form[0] != "full":
            return False
        wide = wide and self.grids.n_inducing is not None
        if not self.sites.conjugate:
            learns_noise = len(self.sites.parameters()) > 0
            return wide and self.batch_size is None and not (learns_noise and rows.are_repeated())
        most = min(DEFAULTS.exact_rows, DEFAULTS.exact_numbers / rows.X.shape[1])
        return (rows.n_rows <= most or wide) and not rows.are_repeated()

    def may_have_points(self, requested, rows, wide):
        """Return whether a fit that is exact otherwise ends with inducing points if it can.

        For the arguments, see `is_exact`.
        """
        known_noise = rows.targets.ndim > 2
        few = wide or rows.n_rows < DEFAULTS.smooth_rows
        return requested == "auto" and self.sites.conjugate and not (known_noise or few)
