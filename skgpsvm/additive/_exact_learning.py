"""Stages that learn additive models without inducing points: every row has its own site."""

import math

import torch

from .._hyperparameters.priors import log_prior_of_deviations
from .._optim import ROUND
from .._scoring import fisher_scoring
from ..likelihoods._regression import observations
from ._ascent import AdditiveAscent, GaussianAscent, stacked_moments
from ._defaults import DEFAULTS
from ._exact import ExactPosterior, RowEvidence, RowSums, evidence_gains
from ._row_prior import RowPrior
from ._site_ascent import SiteAscent


def _key(own):
    """Return the hyperparameters of the prior of a latent as an immutable object."""
    return tuple(own[name].cpu().numpy().tobytes() for name in ("length", "variance"))


class _AllRows(AdditiveAscent):
    """Additive model without inducing points.

    The prior covariances where the learning of each latent ended are kept, since the posterior and
    the next round need them.
    """

    has_points = False
    # Steps of a round, and the share of the gain of a last round below which one is not taken.
    _scoring_steps, _share = ROUND, 1.0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._priors = {}

    def _prior(self, own, sums):
        prior = self._priors.get(_key(own))
        return RowPrior(self.basis, own, sums.u) if prior is None else prior

    def _evidence(self, own, sums):
        return RowEvidence(self.basis, own, sums, self._prior(own, sums))

    def _value(self, own, sums):
        return self._evidence(own, sums).value

    def _learn_hyperparameters(self, state):
        objective = super()._learn_hyperparameters(state)
        current = {_key(own) for own in self.latents(state)}
        self._priors = {key: prior for key, prior in self._priors.items() if key in current}
        return objective

    def _ascend(self, own, sums, packing):
        highest, prior = -math.inf, None  # only a point of higher value is accepted

        def evaluate(vector):
            nonlocal highest, prior
            parts = {**own, **packing.parts(vector, own)}
            evidence = self._evidence(parts, sums)
            log_prior, prior_slopes, prior_information = self._log_prior(parts)

            if (value := evidence.value + log_prior) > highest:
                highest, prior = value, evidence.prior

            def derivatives():
                slopes, roots = evidence.derivatives()
                slopes |= {name: slopes[name] + slope for name, slope in prior_slopes.items()}
                root = packing.gradient(roots).view(len(vector), -1)
                none = {name: torch.zeros_like(slope) for name, slope in slopes.items()}
                of_prior = packing.gradient(none | prior_information)
                return packing.gradient(slopes), root @ root.T + of_prior.diag()

            return value, derivatives

        start, limits = packing.vector(own), packing.limits(own)
        least_gain = self._share * max(self.tol * self.rows.total_weight, DEFAULTS.round_gain)
        best, value = fisher_scoring(evaluate, start, limits, self._scoring_steps, least_gain)
        self._priors[_key({**own, **packing.parts(best, own)})] = prior
        return best, value

    def _posterior(self, own, sums, earlier):
        sites, prior = sums.sites(own["noise"]), self._prior(own, sums)
        return ExactPosterior(self.basis, own, sums.u, *sites, prior=prior)

    def _gains(self, own, sums, places):
        return evidence_gains(self.basis, own, sums, places)

    def tested_rows(self, random_state):
        return self.rows

    def _row_moments(self, posteriors, X, columns=None):
        return stacked_moments(posterior.row_marginals() for posterior in posteriors)

    def _left_out_rows(self):
        return self.rows

    def _drop_columns(self, state, going):
        """Forget the priors; the sums over rows do not depend on the terms."""
        self._priors = {}


class ExactGaussianAscent(_AllRows, GaussianAscent):
    """Gaussian noise, without inducing points.

    The standard deviation of the noise has a gamma prior of shape 2. The inverse square roots of
    the length scales of single effects have an exponential prior. The rate of both is half the
    shrinkage. Pairs have no such prior, since many are rough; `evidence_gains` tells them from
    noise.

    Notes
    -----
    Source: Fuglstad et al. (2019), for the prior of length scales.
    """

    def _log_prior(self, own):
        value, slopes, information = super()._log_prior(own)
        if not self.shrinkage:
            return value, slopes, information
        rate, n_effects = self.shrinkage / 2, len(self.basis.axes)
        lengths, of_pairs = own["length"][:n_effects], own["length"][n_effects:]
        log_noise, *of_noise = log_prior_of_deviations(own["noise"], rate)
        pull = rate * (-0.5 * lengths).exp()
        densities = math.log(rate / 2) - 0.5 * lengths - pull
        of_lengths = [
            torch.cat([part, torch.zeros_like(of_pairs)])
            for part in (0.5 * (pull - 1), 0.25 * pull)
        ]
        parts = zip((slopes, information), of_noise, of_lengths, strict=True)
        found = [part | {"noise": noise, "length": length} for part, noise, length in parts]
        return value + (log_noise + densities.sum()).item(), *found

    def _read(self):
        X, targets, weights = self.rows.take(slice(None))
        y, known = observations(targets)
        known = [None] * y.shape[1] if known is None else known.T
        u, total = self.basis.unit(X), self.rows.total_weight
        self._sums = [
            RowSums(u, weights, weights * target, total, own)
            for target, own in zip(y.T, known, strict=True)
        ]

    def sums(self, state):
        return self._sums


class ExactSiteAscent(_AllRows, SiteAscent):
    """Other likelihoods, without inducing points.

    ``gram`` and ``cross``, (c, n), are the precisions and linear terms of the rows' own sites.
    """

    _scoring_steps, _share = DEFAULTS.site_scoring_steps, 0.01

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
