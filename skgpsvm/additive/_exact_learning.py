"""Stages that learn additive models without inducing points: every row has its own site."""

import math
from functools import cached_property

import torch

from .._hyperparameters.priors import log_prior_of_deviations
from .._linalg import identity_like
from ..likelihoods._regression import observations
from ._ascent import AdditiveAscent, stacked_moments
from ._exact import ExactPosterior, RowEvidence, RowSums, evidence_gains
from ._gaussian_ascent import GaussianAscent
from ._row_prior import RowPrior
from ._site_ascent import RowSiteAscent


class _AllRows(AdditiveAscent):
    """Additive model without inducing points."""

    has_points = False

    @cached_property
    def _u(self):
        """Features of the rows on the unit interval."""
        return self.basis.unit(self.rows.take(slice(None))[0])

    def _new_prior(self, own, sums):
        return RowPrior(self.basis, own, sums.u)

    def _priors_near(self, own, sums):
        return lambda parts: self._prior(parts, sums)

    def _evidence(self, own, sums, prior):
        return RowEvidence(prior, sums, own["noise"])

    def _posterior(self, own, sums, prior, earlier):
        return ExactPosterior(prior, *sums.sites(own["noise"]))

    def _gains(self, own, sums, prior, places):
        return sum(evidence_gains(prior, own["noise"], one, places) for one in sums.latents())

    def tested_rows(self, random_state):
        return self.rows

    def _row_moments(self, posteriors, X, columns=None):
        return stacked_moments(posterior.row_marginals() for posterior in posteriors)

    def _left_out_rows(self):
        return self.rows

    def _drop_columns(self, state, going):
        """Do nothing: the sums over rows do not depend on the terms."""


class ExactGaussianAscent(_AllRows, GaussianAscent):
    """Gaussian noise, without inducing points.

    The standard deviation of the noise has a gamma prior of shape 2. The inverse square roots of
    the length scales of single effects have an exponential prior. The rate of both is half the
    shrinkage. Pairs have no such prior, since many are rough; `evidence_gains` tells them from
    noise.

    Source: Fuglstad et al. (2019), for the prior of length scales.
    """

    _share = 1.0

    def _log_prior(self, own, prior):
        value, gradient, information = super()._log_prior(own, prior)
        if not self.shrinkage:
            return value, gradient, information
        rate, lengths = self.shrinkage / 2, own["length"][: len(self.basis.axes)]
        log_noise, by_noise, of_noise = log_prior_of_deviations(own["noise"], rate)
        penalty = rate * (-0.5 * lengths).exp()
        densities = math.log(rate / 2) - 0.5 * lengths - penalty
        of_lengths = identity_like(own["length"].diag())[: len(lengths)]
        gradient["noise"] = by_noise
        gradient["length"] = gradient["length"] + 0.5 * (penalty - 1) @ of_lengths
        information += [
            (of_noise.reshape(1), {"noise": torch.ones_like(of_noise).reshape(1, 1)}),
            (0.25 * penalty, {"length": of_lengths}),
        ]
        return value + (log_noise + densities.sum()).item(), gradient, information

    def _read(self):
        _, targets, weights = self.rows.take(slice(None))
        y, known = observations(targets)
        self._known = None if known is None else known.T
        self._precision, self._linear = weights.expand(y.shape[1], -1), weights * y.T

    def _sums_of(self, state, index):
        known = None if self._known is None else self._known[index]
        parts = self._precision[index], self._linear[index], self.rows.total_weight, known
        return RowSums(self._u, *parts)


class ExactSiteAscent(_AllRows, RowSiteAscent):
    """Other likelihoods, without inducing points."""

    _columns = None

    def _forget(self):
        """Do nothing: priors do not depend on sites."""

    def _sums_of(self, state, index):
        return RowSums(self._u, state.gram[index], state.cross[index])
