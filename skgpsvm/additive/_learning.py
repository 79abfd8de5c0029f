"""Stages that learn additive models: sums over the rows, posteriors and hyperparameters."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial

import torch

from .._data import CHUNK_ROWS
from .._fitting import Stage, State
from .._hyperparameters.priors import log_prior_of_deviations
from .._linalg import add_gram, add_grams, mirror
from .._optim import FlatParameters, lbfgs, minibatches
from ._bound import AdditivePosterior, Sums, collapsed, collapsed_and_slopes, gains, products

HYPERPARAMETERS = ("length", "variance", "noise")
VARIANCE_BOUNDS = (math.log(1e-6), math.log(1e6))
_NOISE_BOUNDS = (math.log(1e-6), math.log(1e2))
_N_TEST_ROWS = 10_000  # of the score test of interactions
_N_NEWTON_STEPS = 20  # for the initial constant
_N_SITE_PASSES = 5  # before hyperparameters are learned
_MIN_GAIN = 0.05  # nats, over all rows, for which another round is taken
_INITIAL_VARIANCE = 0.5  # of the latents
# Newton's steps in the logarithms of the likelihood's parameters: finite difference, longest step.
_DIFFERENCE, _MAX_STEP = 0.05, 0.5
_MIN_PRECISION = 1e-12
_DECAY = 0.7  # exponent by which steps on minibatches shrink with the number of passes


@dataclass(kw_only=True)
class AdditiveState(State):
    """State of an additive model with c latent functions.

    Attributes
    ----------
    length : Tensor of shape (c, a)
        Logarithms of length scales.
    variance : Tensor of shape (c, v)
        Logarithms of the variances of effects.
    noise : Tensor of shape (k,)
        Logarithms of the likelihood's parameters; with Gaussian noise, of its variances.
    objective : float
        The ELBO plus the log prior of the hyperparameters, in nats; -inf before the first round.
    elbo : float
        The ELBO after the last round, in nats.
    gain : float
        Increase of the objective in the last round, in nats per row.
    """

    length: torch.Tensor
    variance: torch.Tensor
    noise: torch.Tensor
    objective: float = -math.inf
    elbo: float = math.nan
    gain: float = math.nan


@dataclass(kw_only=True)
class SiteState(AdditiveState):
    """State of an additive model whose rows have Gaussian sites.

    Attributes
    ----------
    gram : Tensor of shape (c, r, r)
        Sums of the sites' precisions over the columns. Without inducing points, the precision of
        each row's site, (c, n).
    cross : Tensor of shape (c, r)
        Sums of the sites' linear terms; likewise (c, n).
    generator : Tensor
        State of the generator of minibatches.
    n_steps : int
        Number of natural-gradient steps so far.
    share : float
        Fraction of the likelihood's step size that is taken. It halves when the ELBO falls.
    """

    gram: torch.Tensor
    cross: torch.Tensor
    generator: torch.Tensor
    n_steps: int = 0
    share: float = 1.0


class AdditiveAscent(Stage):
    """Rounds in which the hyperparameters of each latent maximize its ELBO plus their log prior.

    Parameters
    ----------
    basis : AdditiveBasis
    rows : WeightedDataset
    limits : tuple of two Tensors (2,)
        Bounds of the logarithms of length scales: of single effects, and of pairs.
    form : tuple
        Covariance and rank of the posterior, see `collapsed`.
    shrinkage : float
        Rate of the gamma prior, of shape 2, over the standard deviations of effects. 0 is no prior.
    tol : float
        Stop when a round gains less than this, in nats per row.
    """

    has_points = True  # inducing points

    def __init__(self, basis, rows, limits, form, shrinkage, tol):
        self.basis, self.rows, self.form, self.tol = basis, rows, form, tol
        self._limits, self.shrinkage = limits, shrinkage
        self.learned, self._earlier = HYPERPARAMETERS, None

    def _log_prior(self, own):
        """Return the log prior of a latent's hyperparameters, a float, and its gradient by name.

        Notes
        -----
        Source: Chung et al. (2013). Their prior keeps standard deviations away from 0 and hardly
        shrinks them. Departs from the source: here the rate shrinks them too.
        """
        if not self.shrinkage:
            return 0.0, {}
        density, slope = log_prior_of_deviations(own["variance"], self.shrinkage)
        return density.sum().item(), {"variance": slope}

    def _log_priors(self, state):
        return sum(self._log_prior(own)[0] for own in self.latents(state))

    def _maximize(self, own, sums):
        """Return a latent's hyperparameters after a few steps of L-BFGS-B, and their objective."""
        names = [name for name in self.learned if own[name].numel()]
        if not names:
            return own, self._value(own, sums) + self._log_prior(own)[0]

        packing = FlatParameters(names, {}, self._bounds(own["variance"]))

        def value_and_gradient(vector):
            parts = {**own, **packing.parts(vector, own)}
            value, slopes = self._value_and_slopes(parts, sums)
            log_prior, prior_slopes = self._log_prior(parts)
            slopes |= {name: slopes[name] + slope for name, slope in prior_slopes.items()}
            return value + log_prior, packing.gradient(slopes)

        start, limits = packing.vector(own), packing.limits(own)
        ends = self._steps, self._least_step
        best, value = lbfgs(value_and_gradient, start, limits, *ends)
        return {**own, **packing.parts(best, own)}, value

    def _value(self, own, sums):
        """Return the ELBO at a latent's hyperparameters, in nats."""
        return collapsed(self.basis.at(own), sums, own["noise"], *self.form).item()

    def _value_and_slopes(self, own, sums):
        """Return the ELBO, a float, and its derivatives, a dict of tensors by hyperparameter."""
        return collapsed_and_slopes(self.basis, own, sums, *self.form)

    def _posterior(self, own, sums, earlier):
        effects, var = self.basis.at(own), own["noise"].exp()
        gram, cross, _ = products(effects, sums)
        sums = (old + new / var for old, new in zip(earlier, (gram, cross), strict=True))
        return AdditivePosterior(effects, *sums, *self.form)

    def _bounds(self, like):
        effects, pairs = self._limits
        axes = effects.expand(len(self.basis.axes), 2), pairs.expand(len(self.basis.pair_axes), 2)
        return {
            "length": torch.cat(axes),
            "variance": like.new_tensor([VARIANCE_BOUNDS]),
            "noise": like.new_tensor([_NOISE_BOUNDS]),
        }

    def _learn_hyperparameters(self, state):
        """Update the hyperparameters of all latents; return the sum of their objectives."""
        latents = zip(self.latents(state), self.sums(state), strict=True)
        thetas, values = zip(*(self._maximize(*latent) for latent in latents), strict=True)
        for name in self.learned:
            setattr(state, name, torch.stack([theta[name] for theta in thetas]))
        return sum(values)

    def _record(self, state, objective, log_prior):
        """Set the objective, its gain and the ELBO after a round."""
        state.gain = (objective - state.objective) / self.rows.total_weight
        state.objective, state.elbo = objective, objective - log_prior

    def latents(self, state):
        """Return the hyperparameters of each latent, a list of dicts of tensors by name."""
        return [
            {"length": length, "variance": variance, "noise": self._noise(state, k)}
            for k, (length, variance) in enumerate(zip(state.length, state.variance, strict=True))
        ]

    def tested_rows(self, random_state):
        """Return the `WeightedDataset` whose residuals enter the score test of interactions."""
        return self.rows.subset(_N_TEST_ROWS, random_state)

    def _zeros(self, *latents):
        """Return zeros for Gram matrices of the columns, (..., r, r)."""
        r = sum(part.shape[1] for part in self.basis(self.rows.take(slice(0))[0]))
        return self.rows.weights.new_zeros(*latents, r, r)

    def _row_moments(self, posteriors, X, columns=None):
        """Return latent means and variances (b, c) at rows of the fit.

        ``columns`` are those of the basis at the rows, if they have been computed already.
        """
        columns = self.basis(X) if columns is None else columns
        return stacked_moments(posterior.row_marginals(columns) for posterior in posteriors)

    def posteriors(self, state):
        """Return the `EffectsPosterior` of each latent."""
        others = self._earlier or [(0.0, 0.0)] * len(state.length)
        parts = zip(self.latents(state), self.sums(state), others, strict=True)
        return [self._posterior(*part) for part in parts]

    @abstractmethod
    def init(self, noise, known=None):
        """Return the state from which a fit starts.

        Parameters
        ----------
        noise : Tensor of shape (k,)
            Logarithms of the likelihood's parameters.
        known : list of dict, optional
            Hyperparameters of each latent, as `named` returns them. The others start from defaults.
        """

    def init_update(self, length, variance, noise, earlier=None):
        """Return the state from which `step` adds these rows to a posterior of earlier rows.

        The hyperparameters are held from then on.

        Parameters
        ----------
        length, variance, noise : Tensor
            Hyperparameters, see `AdditiveState`.
        earlier : list of pairs of Tensors (p, p), (p,), optional
            ``gram`` and ``cross`` of each latent's posterior given the earlier rows.
        """
        self.learned, self._earlier = (), earlier
        return AdditiveState(length=length, variance=variance, noise=noise)

    def _expected_earlier(self, posteriors):
        """Return the expected log density of the earlier rows, in nats, up to a constant."""
        parts = zip(posteriors, self._earlier or (), strict=bool(self._earlier))
        return sum(posterior.expected(*sums) for posterior, sums in parts)

    def gains(self, state):
        """Return how much each term adds to the ELBO of all latents, in nats, (n_terms,)."""
        latents = zip(self.latents(state), self.sums(state), strict=True)
        return sum(self._gains(own, sums) for own, sums in latents)

    def _gains(self, own, sums):
        return gains(self.basis.at(own), sums, own["noise"])

    def prune(self, state, least, most=math.inf):
        """Drop terms while one adds too little to the ELBO, or there are too many pairs.

        The gains of the remaining terms are recomputed after each removal. Effects of single
        features are removed one at a time; pairs without a common feature are removed together.

        Parameters
        ----------
        state : AdditiveState
        least : callable
            Takes a term and returns the gain it needs, in nats; -inf keeps the term in any case.
        most : int
            Maximum number of pairs.

        Returns
        -------
        dropped : list of tuples of ints
            The terms removed.
        """
        dropped = []
        while self.basis.terms:
            gained = dict(zip(self.basis.terms, self.gains(state).tolist(), strict=True))
            surplus = {term: gain - least(term) for term, gain in gained.items()}
            excess = max(len(self.basis.pairs) - most, 0)
            poor = sorted(self.basis.pairs, key=gained.get)[:excess]
            poor = poor or sorted((t for t in surplus if surplus[t] < 0), key=surplus.get)
            if not poor:
                break
            going = poor[:1]
            for term in poor[1:] if len(poor[0]) == 2 else []:
                if len(term) == 2 and not any(set(term) & set(other) for other in going):
                    going.append(term)
            self._drop(state, going)
            dropped += going
        return dropped

    def _drop(self, state, going):
        """Remove terms from the basis and from the state."""
        self._drop_columns(state, going)
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
        like = self.rows.weights

        def values(kind, defaults, own):
            return [own.get(kind, {}).get(name, value) for name, value in defaults.items()]

        return {
            kind: like.new_tensor([values(kind, defaults, own) for own in known])
            for kind, defaults in self.basis.start().items()
        }

    def converged(self, state):
        """Return whether the last round gained less than ``tol``, or next to nothing in total."""
        least = max(self.tol, _MIN_GAIN / self.rows.total_weight)
        return abs(state.gain) < least


class GaussianAscent(AdditiveAscent):
    """Gaussian noise: one pass over the rows suffices, and outputs share the Gram matrix."""

    _steps, _least_step = 20, _MIN_GAIN / 20  # of L-BFGS-B in a round; the second in nats
    trial_rounds = 1  # rounds that compare kernels of pairs

    def __init__(self, *args):
        super().__init__(*args)
        self._read()

    def _read(self):
        gram, cross, squares = self._zeros(), 0.0, 0.0
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            columns = torch.cat(self.basis(X), 1)
            weighted = weights[:, None] * columns
            add_gram(gram, columns, weighted)
            cross, squares = cross + weighted.T @ y, squares + weights @ y.square()
        self._gram, self._cross, self._squares = self.rows.sum(mirror(gram), cross, squares)

    def _noise(self, state, k):
        return state.noise[k]

    def sums(self, state):
        """Return the `Sums` of each latent."""
        return [
            Sums(self._gram, cross, squares, self.rows.total_weight)
            for cross, squares in zip(self._cross.T, self._squares, strict=True)
        ]

    def init(self, noise, known=None):
        hyper = self._hyper(known or [{}] * len(noise))
        return AdditiveState(**hyper, noise=noise.to(self.rows.weights))

    def step(self, state):
        """Take one round of L-BFGS-B; the objective is that after it."""
        objective = self._learn_hyperparameters(state)
        self._record(state, objective, self._log_priors(state))

    def residuals(self, state, rows):
        """Return X, derivatives of log densities in the latents, and precisions, (n, c) each."""
        X, y, weights = rows.take(slice(None))
        mean, _ = self._row_moments(self.posteriors(state), X)
        precision = weights[:, None] / state.noise.exp()
        return X, precision * (y - mean), precision

    def _drop_columns(self, state, going):
        columns = self._kept_columns(state, going)
        self._gram, self._cross = self._gram[columns[:, None], columns], self._cross[columns]


class SiteAscent(AdditiveAscent):
    """Other likelihoods: natural-gradient steps on the summed Gaussian sites of the rows.

    Its states are `SiteState`.

    Parameters
    ----------
    sites : LikelihoodSites
    batch_size : int or None
        Rows in a minibatch. None takes one step a pass, from all rows.
    generator : torch.Generator

    Notes
    -----
    Source: Khan and Lin (2017), conjugate-computation variational inference. Hyperparameters
    maximize the collapsed bound given fixed sites. Once the sites have converged, its gradient is
    that of the ELBO.
    """

    _steps, _least_step = 5, 0.0
    trial_rounds = 10

    def __init__(self, *args, sites, batch_size, generator):
        super().__init__(*args)
        self._sites, self._batch_size, self._generator = sites, batch_size, generator
        self._learns_noise = "noise" in self.learned and len(sites.parameters()) > 0
        self.learned = tuple(name for name in self.learned if name != "noise")

    def _noise(self, state, k):
        return state.length.new_zeros(())

    def sums(self, state):
        """Return the `Sums` of each latent."""
        parts = zip(state.gram, state.cross, strict=True)
        return [Sums(gram, cross) for gram, cross in parts]

    def init(self, noise, known=None):
        """Return the state from which a fit starts: sites at the best constant latents."""
        hyper = self._hyper(known or [{}] * self._sites.n_latents)
        noise = noise.to(self.rows.device)
        level = self._level(noise)
        var = torch.full_like(level, _INITIAL_VARIANCE)

        def at_level(X, columns):
            return level.expand(len(X), -1), var.expand(len(X), -1)

        gram, cross, *_ = self._site_sums(noise, at_level, None)
        generator = self._generator.get_state()
        return SiteState(**hyper, noise=noise, gram=gram, cross=cross, generator=generator)

    def init_update(self, length, variance, noise, earlier):
        """Return the state from which `step` adds rows; their sites start with no precision."""
        self.learned, self._earlier, self._learns_noise = (), earlier, False
        zeros = self._zeros(len(earlier))
        return SiteState(
            length=length,
            variance=variance,
            noise=noise,
            gram=zeros,
            cross=zeros[:, 0],
            generator=self._generator.get_state(),
        )

    def _level(self, noise):
        """Return the constant latents (1, c) of highest likelihood, found by Newton's method.

        A latent stops moving where neither its gradient nor its precision exceeds 1/2. Without a
        single count, for example, the maximum is at minus infinity.
        """
        sites, level = self._sites.at(noise), torch.zeros(1, self._sites.n_latents)
        y, weights = self.rows.targets, self.rows.weights
        level = level.to(weights)
        for _ in range(_N_NEWTON_STEPS):
            mean = level.expand(len(y), -1)
            found = sites.sites(y, mean, torch.full_like(mean, _INITIAL_VARIANCE))
            slope, precision = self.rows.sum(-weights @ found.gradient, weights @ found.precision)
            moving = (precision > 0.5) | (slope.abs() > 0.5)
            level = level + moving * (slope / precision.clamp_min(_MIN_PRECISION)).clamp(-1, 1)
        return level

    def step(self, state):
        """Take a pass of steps on the sites, then on the rest; set the objective before them."""
        self._generator.set_state(state.generator)
        log_prior, n = self._log_priors(state), self.rows.n_rows
        total = log_prior
        batches = [None]
        if self._n_batches() > 1:
            batches = minibatches(n, self._batch_size, self._generator)
        for index in batches:
            share = 1.0 if index is None else n / len(index)
            posteriors = self.posteriors(state)
            moments = partial(self._row_moments, posteriors)
            found = self._site_sums(state.noise, moments, index)
            gram, cross, loss, *shifted = (share * part for part in found)
            kl = sum(posterior.kl() for posterior in posteriors)
            total += (self._expected_earlier(posteriors) - loss - kl) / len(batches)
            self._move(state, gram, cross, len(batches))
            if self._learns_noise:
                state.noise = state.noise + _newton(*shifted)
        # Learned too early, the variances of effects would vanish, and could not recover.
        if self.learned and state.n_steps >= _N_SITE_PASSES * len(batches):
            self._learn_hyperparameters(state)
        state.generator = self._generator.get_state()
        if total < state.objective:
            state.share *= 0.5
        self._record(state, total.item(), log_prior)

    def residuals(self, state, rows):
        """Return X, derivatives of log densities in the latents, and precisions, (n, c) each."""
        X, y, weights = rows.take(slice(None))
        moments = self._row_moments(self.posteriors(state), X)
        found = self._sites.at(state.noise).sites(y, *moments)
        return X, -weights[:, None] * found.gradient, weights[:, None] * found.precision

    def converged(self, state):
        early = self.learned and state.n_steps <= _N_SITE_PASSES * self._n_batches()
        return not early and super().converged(state)

    def _n_batches(self):
        """Return the number of minibatches in a pass."""
        return -(-self.rows.n_rows // (self._batch_size or self.rows.n_rows))

    def _drop_columns(self, state, going):
        columns = self._kept_columns(state, going)
        state.gram = state.gram[:, columns[:, None], columns]
        state.cross = state.cross[:, columns]

    def _move(self, state, gram, cross, n_batches):
        """Take a natural-gradient step on the sums of the sites.

        The first step of rows added to an earlier posterior has size 1.
        """
        whole = self._earlier and not state.n_steps
        size = 1.0 if whole else self._sites.likelihood.step * state.share
        if n_batches > 1:
            size = (1 + state.n_steps / n_batches) ** -_DECAY / n_batches**0.5
        state.gram = torch.lerp(state.gram, gram, size)
        state.cross = torch.lerp(state.cross, cross, size)
        state.n_steps += 1

    def _site_sums(self, noise, row_moments, index):
        """Return sums over the rows of an index, or all: of sites, losses and `_shifted_losses`."""
        sites, gram, parts = self._sites.at(noise), self._zeros(self._sites.n_latents), None
        for chunk in self.rows.chunks() if index is None else index.split(CHUNK_ROWS):
            X, y, weights = self.rows.take(chunk)
            columns = self.basis(X)
            T, moments = torch.cat(columns, 1), row_moments(X, columns)
            found = sites.sites(y, *moments)
            add_grams(gram, T, weights[:, None] * found.precision)
            own = [
                (weights * found.linear.T) @ T,
                weights @ found.loss,
                *(weights @ loss for loss in self._shifted_losses(noise, y, *moments)),
            ]
            parts = own if parts is None else [a + b for a, b in zip(parts, own, strict=True)]
        return self.rows.sum(mirror(gram), *parts)

    def _shifted_losses(self, noise, y, mean, var):
        """Return losses (b, k) of rows with each likelihood parameter lower, equal and higher."""
        if not self._learns_noise:
            return []
        moves = _DIFFERENCE * torch.eye(len(noise)).to(noise)
        return [
            torch.stack(
                [self._sites.at(noise + sign * move).loss(y, mean, var) for move in moves], 1
            )
            for sign in (-1, 0, 1)
        ]


def stacked_moments(moments):
    """Stack means and variances (b,) of each latent to (b, c)."""
    mean, var = zip(*moments, strict=True)
    return torch.stack(mean, 1), torch.stack(var, 1)


def _newton(lower, here, higher):
    """Return Newton steps that lower losses, from their values at three equally spaced points."""
    slope = (higher - lower) / (2 * _DIFFERENCE)
    hess = (higher - 2 * here + lower) / _DIFFERENCE**2
    step = torch.where(hess > 0, -slope / hess, -slope.sign())
    return step.clamp(-_MAX_STEP, _MAX_STEP)
