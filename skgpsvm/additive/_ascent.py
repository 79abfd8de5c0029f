"""The base class of the stages that learn additive models."""

import math
from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, field, replace

import torch

from .._fitting import Stage, State
from .._hyperparameters.priors import log_prior_of_deviations
from .._inference.leave_one_out import MAX_LEFT_OUT
from .._linalg import identity_like
from .._memory import CHUNK_ROWS, LARGE_BLOCK, block_rows
from .._optim import NOISE_BOUNDS, PARAMETER_BOUNDS, ROUND, FlatParameters
from .._scoring import RADIUS, fisher_scoring
from ._bound import EffectsBound, RowColumns
from ._defaults import DEFAULTS
from ._posterior import AdditivePosterior

_MIN_LEFT = 1e-3  # share of its precision that a latent keeps without a row


def _key(own):
    """Return the hyperparameters of the prior of a latent as an immutable object."""
    return torch.cat([own["length"], own["variance"]]).cpu().numpy().tobytes()


@dataclass(kw_only=True)
class AdditiveState(State):
    """State of an additive model with c latent functions."""

    length: torch.Tensor  # (c, a): logarithms of length scales
    variance: torch.Tensor  # (c, v): logarithms of the variances of effects
    # (k,): logarithms of the likelihood's parameters; with Gaussian noise, of its variances
    noise: torch.Tensor
    objective: float = -math.inf  # the ELBO plus the log prior of the hyperparameters, in nats
    elbo: float = math.nan  # after the last round, in nats
    gain: float = math.nan  # of the objective in the last round, in nats per row
    # Radii of the trust regions of hyperparameters, by group; empty before the first round
    radii: list = field(default_factory=list)


class AdditiveAscent(Stage):
    """Rounds in which the hyperparameters of latents maximize their ELBO plus the log prior.

    Latents of a group have the same hyperparameters, which maximize the sum of their ELBOs.

    ``limits`` are two Tensors (2,), the bounds of the logarithms of length scales of single effects
    and of pairs. ``form`` is the covariance and the rank of the posterior, see `EffectsBound`. The
    standard deviations of effects have a gamma prior of shape 2 and of the rate ``shrinkage``; 0 is
    no prior. A stage ends when a round gains less than ``tol``, in nats per row.
    """

    has_points = True  # inducing points
    learns_scale = False  # of y, beside sites that depend on it
    n_means = math.inf  # the first latents are means of y, others those of its noise
    # Steps of a round at most; and the share of what a round must gain below which none is taken.
    _scoring_steps, _share = ROUND, 0.3

    def __init__(self, basis, rows, limits, form, shrinkage, tol):
        self.basis, self.rows, self.form, self.tol = basis, rows, form, tol
        self._limits, self.shrinkage = limits, shrinkage
        self.learned, self._earlier = ("length", "variance", "noise"), None
        self._held = False  # the hyperparameters
        self._priors = {}  # `Prior` at the hyperparameters of each latent, for the posterior

    def _log_prior(self, own, prior):
        """Return the log prior of a latent's hyperparameters, its gradient, and its information.

        The prior is one of the standard deviations of effects over the measures of their numbers.
        Before centering, the standard deviation of an effect that is almost straight is many times
        as large: at a long length scale, most of the variance is that of a constant.

        The gradient is a dict by name. The information is a list of tuples: minus the second
        derivatives (k,) in numbers that are almost linear in the hyperparameters, such as
        logarithms of standard deviations; and the derivatives of these numbers, a dict of Tensors
        (k, size).

        Source: Chung et al. (2013). Their prior keeps standard deviations away from 0 and hardly
        shrinks them. Departs from the source: here the rate shrinks them too.
        """
        if not self.shrinkage:
            return 0.0, {}, []
        spread, slopes = prior.whole.log_spreads()
        missing = len(own["variance"]) - len(spread)  # variances of missing numbers come last
        log_variance = own["variance"] + torch.nn.functional.pad(spread, (0, missing))
        slopes = {
            "variance": identity_like(log_variance.diag()),
            "length": torch.nn.functional.pad(slopes, (0, 0, 0, missing)),
        }
        density, by_log, information = log_prior_of_deviations(log_variance, self.shrinkage)
        gradient = {name: by_log @ part for name, part in slopes.items()}
        return density.sum().item(), gradient, [(information, slopes)]

    def _log_priors(self, state):
        return sum(self._log_prior(own, prior)[0] for own, _, prior in self._parts(state))

    @abstractmethod
    def _sums_of(self, state, index):
        """Return the `Sums` of a latent, or those of a slice of latents."""

    def _parts(self, state):
        """Yield the hyperparameters, the `Sums` and the `Prior` of each group of latents."""
        latents = self.latents(state)
        for group in self._groups(state):
            own, sums = latents[group][0], self._sums_of(state, group)
            yield own, sums, self._prior(own, sums, keep=True)

    def _maximize(self, own, sums, radius):
        """Take a few steps of Fisher scoring on a group's hyperparameters, in a trust region.

        Returns the hyperparameters, their objective and the last radius.
        """
        names = [name for name in self.learned if own[name].numel()]
        if not names:
            prior = self._prior(own, sums, keep=True)
            value = self._evidence(own, sums, prior).value
            return own, value + self._log_prior(own, prior)[0], radius

        packing = FlatParameters(names, {}, self._bounds(own["variance"]))
        new_prior = self._priors_near(own, sums)
        highest, prior = -math.inf, None  # only a point of higher value is accepted

        def evaluate(vector):
            nonlocal highest, prior
            parts = {**own, **packing.parts(vector, own)}
            here = new_prior(parts)
            evidence = self._evidence(parts, sums, here)
            log_prior, prior_gradient, prior_information = self._log_prior(parts, here)

            if (value := evidence.value + log_prior) > highest:
                highest, prior = value, here

            def derivatives():
                gradient, information = evidence.derivatives(names)
                gradient = {name: gradient[name] + prior_gradient.get(name, 0.0) for name in names}
                for second, slopes in prior_information:
                    no_slopes = {
                        name: part.new_zeros(len(second), part.numel())
                        for name, part in gradient.items()
                    }
                    slopes = torch.cat([(no_slopes | slopes)[name] for name in names], 1)
                    information = information + slopes.T @ (second[:, None] * slopes)
                return packing.gradient(gradient), information

            return value, derivatives

        start, limits = packing.vector(own), packing.limits(own)
        least_gain = self._share * max(self.tol * self.rows.tolerance_scale, DEFAULTS.round_gain)
        best, *found = fisher_scoring(
            evaluate, start, limits, self._scoring_steps, least_gain, min(2 * radius, RADIUS)
        )
        own = {**own, **packing.parts(best, own)}
        self._priors[_key(own)] = prior
        return own, *found

    def _prior(self, own, sums, *, keep=False):
        """Return the `Prior` at a latent's hyperparameters; ``keep`` it for further steps there."""
        key = _key(own)
        prior = self._priors.get(key)
        prior = self._new_prior(own, sums) if prior is None else prior
        if keep:
            self._priors[key] = prior
        return prior

    def _new_prior(self, own, sums):
        return self.basis.at(own)

    def _priors_near(self, own, sums):
        """Return a callable that takes hyperparameters near those of a latent to the `Prior`."""
        return lambda parts: self._prior(parts, sums)

    def _evidence(self, own, sums, prior):
        """Return the ELBO at a latent's hyperparameters, with derivatives on request."""
        return EffectsBound(prior, sums, own["noise"], *self.form)

    def _posterior(self, own, sums, prior, earlier):
        var, found = own["noise"].exp(), sums.of_features(prior)
        parts = zip(earlier, (found.gram, found.cross), strict=True)
        return AdditivePosterior(prior, *(old + new / var for old, new in parts), *self.form)

    def _bounds(self, like):
        effects, pairs = self._limits
        axes = effects.expand(len(self.basis.axes), 2), pairs.expand(len(self.basis.pair_axes), 2)
        return {
            "length": torch.cat(axes),
            "variance": like.new_tensor([PARAMETER_BOUNDS]),
            "noise": like.new_tensor([NOISE_BOUNDS]),
        }

    def _groups(self, state):
        """Return slices of the latents; those of a slice have the same hyperparameters."""
        return [slice(k, k + 1) for k in range(len(state.length))]

    def _learn_hyperparameters(self, state):
        """Update the hyperparameters of all latents; return the sum of their objectives."""
        latents, groups, found, objective = self.latents(state), self._groups(state), [], 0.0
        before, state.radii = state.radii or [RADIUS] * len(groups), []
        for group, radius in zip(groups, before, strict=True):
            own, value, radius = self._maximize(
                latents[group][0], self._sums_of(state, group), radius
            )
            objective += value
            found += [own] * len(latents[group])
            state.radii.append(radius)
        for name in self.learned:
            setattr(state, name, torch.stack([own[name] for own in found]))
        current = {_key(own) for own in self.latents(state)}
        self._priors = {key: prior for key, prior in self._priors.items() if key in current}
        return objective

    def _record(self, state, objective, log_prior):
        """Set the objective, its gain and the ELBO after a round."""
        state.gain = (objective - state.objective) / self.rows.tolerance_scale
        state.objective, state.elbo = objective, objective - log_prior

    def latents(self, state):
        """Return the hyperparameters of each latent, a list of dicts of tensors by name."""
        return [
            {"length": length, "variance": variance, "noise": self._noise(state, k)}
            for k, (length, variance) in enumerate(zip(state.length, state.variance, strict=True))
        ]

    def tested_rows(self, random_state):
        """Return the `WeightedDataset` whose residuals enter the score test of interactions."""
        return self.rows.subset(DEFAULTS.test_rows, random_state)

    def left_out(self, state):
        """Return targets of many rows, latent means and variances without the row, and weights.

        The weights that are left out are ``left_out_weights`` of the rows. A row's site is removed
        from the marginals of its latents, which is exact with Gaussian noise and a full covariance.
        """
        rows = self._left_out_rows()
        X, gradients, precisions = self.residuals(state, rows)
        _, targets, weights = rows.take(slice(None))
        mean, var = self._row_moments(self.posteriors(state, whole=False), X)
        share = (rows.left_out_weights / weights)[:, None]
        left = (1 - share * precisions * var).clamp_min(_MIN_LEFT)
        parts = targets, mean - share * gradients * var / left, var / left, weights
        return self.rows.collect(*parts)

    def _left_out_rows(self):
        return self.rows.part(self.rows.spaced(MAX_LEFT_OUT))

    def _zeros(self, *latents):
        """Return zeros for Gram matrices of the columns, (..., r, r)."""
        r = self.basis.n_columns(self.rows)
        return self.rows.weights.new_zeros(*latents, r, r)

    def _chunk_rows(self):
        """Return the number of rows whose columns are in memory at a time."""
        return min(CHUNK_ROWS, block_rows(self.basis.n_columns(self.rows), LARGE_BLOCK))

    def _row_moments(self, posteriors, X, columns=None):
        """Return latent means and variances (b, c) at rows of the fit.

        ``columns`` are the `RowColumns` of the rows, if they have been computed already.
        """
        if columns is not None:
            return stacked_moments(posterior.row_marginals(columns) for posterior in posteriors)
        parts = X.split(self._chunk_rows())
        found = [
            self._row_moments(posteriors, part, RowColumns(self.basis(part))) for part in parts
        ]
        return tuple(map(torch.cat, zip(*found, strict=True)))

    def posteriors(self, state, whole=True):
        """Return the `EffectsPosterior` of each latent.

        With ``whole=False``, they have the features of learning, see `InformedEffects`.
        """
        others = self._earlier or [(0.0, 0.0)] * len(state.length)
        found = []
        for group, (own, _, prior) in zip(self._groups(state), self._parts(state), strict=True):
            prior = prior.whole if whole else prior
            for k in range(len(others))[group]:
                found.append(self._posterior(own, self._sums_of(state, k), prior, others[k]))
        return found

    @abstractmethod
    def init(self, noise, before=None):
        """Return the state from which a fit starts.

        ``noise`` (k,) has the logarithms of the likelihood's parameters. ``before`` is an earlier
        stage of the fit and its state, with the hyperparameters and latents to start from.
        Hyperparameters of other terms start from defaults.
        """

    def init_update(self, length, variance, noise, earlier=None):
        """Return the state from which `step` adds these rows to a posterior of earlier rows.

        The hyperparameters are held from then on. ``earlier`` has ``gram`` (p, p) and ``cross``
        (p,) of each latent's posterior given the earlier rows.
        """
        self.learned, self._earlier, self._held = (), earlier, True
        return AdditiveState(length=length, variance=variance, noise=noise)

    def held(self, state):
        """Return the state from which `step` finds the posterior, with the hyperparameters held."""
        return self.init_update(state.length, state.variance, state.noise)

    def gains(self, state, terms):
        """Return how much each of some terms adds to the ELBO of all latents, in nats, a list."""
        places = [self.basis.terms.index(term) for term in terms]
        return sum(self._gains(*part, places) for part in self._parts(state)).tolist()

    def _gains(self, own, sums, prior, places):
        """Return how much the terms at some places add to the ELBO of a group of latents."""
        return EffectsBound(prior, sums, own["noise"]).gains()[places]

    def joint_gain(self, state, terms):
        """Return how much some terms add together to the ELBO of all latents, in nats.

        The variance of Gaussian noise without them is learned, since it has to explain them.
        """
        smaller, without = copy(self), copy(state)
        smaller.drop(without, terms)
        objective = smaller.learn_noise(without)
        return self.elbo(state) - objective + smaller._log_priors(without)

    def learn_noise(self, state):
        """Update the variance of Gaussian noise alone, and return the sum of the objectives.

        It has to explain what terms that were dropped have explained.
        """
        learned, radii, state.radii = self.learned, state.radii, []
        self.learned = tuple(name for name in learned if name == "noise")
        objective = self._learn_hyperparameters(state)
        self.learned, state.radii = learned, radii
        return objective

    def elbo(self, state):
        """Return the ELBO of all latents, in nats, up to a constant."""
        return sum(self._evidence(*part).value for part in self._parts(state))

    def drop(self, state, going):
        """Remove terms from the basis and from the state."""
        self._drop_columns(state, going)
        self._priors = {}
        known = self.named(state)
        terms = [term for term in self.basis.terms if term not in going]
        self.basis = replace(self.basis, terms=terms)
        for name, values in self._hyper(known).items():
            setattr(state, name, values)

    def _kept_columns(self, state, going):
        """Return the indices of the columns of the constant and of the remaining terms."""
        sizes = [len(coef) for coef in self.basis.at(self.latents(state)[0]).coefs]
        columns = torch.arange(sum(sizes), device=self.rows.device).split(sizes)
        stays = [True, *(term not in going for term in self.basis.terms)]
        return torch.cat([own for own, stay in zip(columns, stays, strict=True) if stay])

    def named(self, state):
        """Return the hyperparameters of each latent, by kind and by the keys of `start`."""
        start = self.basis.start()
        return [
            {
                kind: dict(zip(names, own[kind].tolist(), strict=True))
                for kind, names in start.items()
            }
            for own in self.latents(state)
        ]

    def _hyper(self, known):
        """Return tensors of hyperparameters, by kind: those that `named` gave, or else defaults."""
        return {
            kind: self.rows.weights.new_tensor(
                [[own[kind].get(name, usual) for name, usual in defaults.items()] for own in known]
            )
            for kind, defaults in self.basis.start().items()
        }

    def _start(self, before, n_latents):
        """Return the tensors from which hyperparameters start, see `init`, by kind."""
        nothing = [{"length": {}, "variance": {}}] * n_latents
        return self._hyper(nothing if before is None else before[0].named(before[1]))

    def converged(self, state):
        """Return whether the last round gained less than ``tol``, or next to nothing in total."""
        least = max(self.tol, DEFAULTS.round_gain / self.rows.tolerance_scale)
        return abs(state.gain) < least


def stacked_moments(moments):
    """Stack means and variances (b,) of each latent to (b, c)."""
    mean, var = zip(*moments, strict=True)
    return torch.stack(mean, 1), torch.stack(var, 1)
