"""Stages that learn additive models without inducing points: every row has its own site."""

import math

import torch

from .._hyperparameters.priors import log_prior_of_deviations
from ._ascent import AdditiveAscent, GaussianAscent, stacked_moments
from ._exact import ExactPosterior, RowSums, evidence, evidence_and_slopes, evidence_gains
from ._site_ascent import SiteAscent


class _AllRows(AdditiveAscent):
    """Additive model without inducing points."""

    has_points = False

    def _value(self, own, sums):
        return evidence(self.basis, own, sums).item()

    def _value_and_slopes(self, own, sums):
        return evidence_and_slopes(self.basis, own, sums)

    def _posterior(self, own, sums, earlier):
        var = own["noise"].exp()
        return ExactPosterior(self.basis, own, sums.u, sums.precision / var, sums.linear / var)

    def _gains(self, own, sums):
        return evidence_gains(self.basis, own, sums)

    def tested_rows(self, random_state):
        return self.rows

    def _row_moments(self, posteriors, X, columns=None):
        return stacked_moments(posterior.row_marginals() for posterior in posteriors)

    def _drop_columns(self, state, going):
        """Do nothing: the sums over rows do not depend on the terms."""


class ExactGaussianAscent(_AllRows, GaussianAscent):
    """Gaussian noise, without inducing points.

    The standard deviation of the noise has a gamma prior of shape 2. The inverse square roots of
    the length scales of single effects have an exponential prior. The rate of both is half the
    shrinkage.

    Notes
    -----
    Source: Fuglstad et al. (2019), for the prior of length scales.
    """

    def _log_prior(self, own):
        value, slopes = super()._log_prior(own)
        if not self.shrinkage:
            return value, slopes
        rate, n_effects = self.shrinkage / 2, len(self.basis.axes)
        noise, by_noise = log_prior_of_deviations(own["noise"], rate)
        lengths, of_pairs = own["length"][:n_effects], own["length"][n_effects:]
        pull = rate * (-0.5 * lengths).exp()
        densities = math.log(rate / 2) - 0.5 * lengths - pull
        by_length = torch.cat([0.5 * (pull - 1), torch.zeros_like(of_pairs)])
        value += (noise + densities.sum()).item()
        return value, slopes | {"noise": by_noise, "length": by_length}

    def _read(self):
        X, y, weights = self.rows.take(slice(None))
        u, total = self.basis.unit(X), self.rows.total_weight
        self._sums = [RowSums(u, weights, weights * target, total) for target in y.T]

    def sums(self, state):
        return self._sums


class ExactSiteAscent(_AllRows, SiteAscent):
    """Other likelihoods, without inducing points.

    ``gram`` and ``cross``, (c, n), are the precisions and linear terms of the rows' own sites.
    """

    def sums(self, state):
        u = self.basis.unit(self.rows.take(slice(None))[0])
        parts = zip(state.gram, state.cross, strict=True)
        return [RowSums(u, *part) for part in parts]

    def _site_sums(self, noise, row_moments, index):
        X, y, weights = self.rows.take(slice(None))
        moments = row_moments(X, None)
        found = self._sites.at(noise).sites(y, *moments)
        return [
            weights * found.precision.T,
            weights * found.linear.T,
            weights @ found.loss,
            *(weights @ loss for loss in self._shifted_losses(noise, y, *moments)),
        ]
