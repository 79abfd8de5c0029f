"""The stage that learns additive models of any likelihood, by Gaussian sites of the rows."""

from dataclasses import dataclass, field
from functools import cached_property, partial

import torch

from .._linalg import add_grams, mirror
from .._optim import PARAMETER_BOUNDS
from ._ascent import AdditiveAscent, AdditiveState
from ._bound import RowColumns, SiteRows, Sums
from ._defaults import DEFAULTS
from ._effects import InformedEffects

# For the initial constant: most steps, of at most 1, and a step that is the last.
_N_NEWTON_STEPS, _LAST_STEP = 100, 1e-6
# Newton's steps in the logarithms of the likelihood's parameters: finite difference, longest step.
_DIFFERENCE, _MAX_STEP = 0.05, 0.5
_MIN_PRECISION = 1e-12
_SHARES = [0.5**k for k in range(20)]  # of a step, in turn
_ROUNDING = 1e-12  # relative, of objectives
_SITES = "gram", "cross"
_MOVED = *_SITES, "length", "variance", "noise"


@dataclass(kw_only=True)
class SiteState(AdditiveState):
    """State of an additive model whose rows have Gaussian sites."""

    # (c, r, r), (c, r): sums of the sites' precisions and linear terms over the columns. In
    # `RowSiteAscent`, those of each row's site, (c, n).
    gram: torch.Tensor
    cross: torch.Tensor
    generator: torch.Tensor  # state of the generator of minibatches
    n_steps: int = 0  # natural-gradient steps so far, see `SiteAscent.init`
    # Fraction of the likelihood's step size that is taken. It halves when the objective falls, and
    # doubles, up to one, when it rises.
    share: float = 1.0
    # Tensors that the last move from all rows changed, as they were before it, by name
    before: dict = field(default_factory=dict)


class SiteAscent(AdditiveAscent):
    """Other likelihoods: natural-gradient steps on the summed Gaussian sites of the rows.

    Gaussian noise with a known part has it too, since its sites depend on the learned part. Its
    states are `SiteState`. With a ``batch_size`` of None, a pass is one step, from all rows.

    Source: Khan and Lin (2017), conjugate-computation variational inference. Hyperparameters
    maximize the collapsed bound given fixed sites. Once the sites have converged, its gradient is
    that of the ELBO.
    """

    _scoring_steps, _share = DEFAULTS.site_scoring_steps, 0.01
    trial_rounds = DEFAULTS.site_trial_rounds

    def __init__(self, *args, sites, batch_size, generator):
        super().__init__(*args)
        self._sites, self._batch_size, self._generator = sites, batch_size, generator
        self.learns_scale = "noise" in self.learned and len(sites.parameters()) > 0
        self.n_means = sites.groups[0].stop
        self.learned = tuple(name for name in self.learned if name != "noise")

    @property
    def _moves_noise(self):
        """True if steps on the likelihood's parameters are taken.

        Noise that varies has a constant of its own.
        """
        return self.learns_scale and self._sites.latents_per_output == 1 and not self._held

    def _noise(self, state, k):
        return state.length.new_zeros(())

    def _groups(self, state):
        """Return one slice for all classes, see `AdditiveAscent._groups`."""
        return [slice(None)] if self._sites.relative else super()._groups(state)

    def _new_prior(self, own, sums):
        effects = self.basis.at(own)
        return effects if self._held else effects.informed(sums, own["noise"])

    def _priors_near(self, own, sums):
        directions = self._new_prior(own, sums).directions
        return lambda parts: InformedEffects(self.basis.at(parts), directions)

    def _sums_of(self, state, index):
        return Sums(state.gram[index], state.cross[index])

    def init(self, noise, before=None):
        """Return the state from which a fit starts, see `AdditiveAscent.init`.

        Sites are those at the latents of an earlier stage, or else at the best constant latents,
        see `_limit`. The former count as passes enough to learn from.
        """
        noise, n_steps, level = noise.to(self.rows.device), 0, None
        if before is None:
            level = self._level(noise)
            var = torch.full_like(level, DEFAULTS.initial_variance)

            def moments(X, columns):
                return level.expand(len(X), -1), var.expand(len(X), -1)

        else:
            ascent, n_steps = before[0], self._n_first_steps()
            posteriors = ascent.posteriors(before[1], whole=False)

            def moments(X, columns):
                return ascent._row_moments(posteriors, X)

        gram, cross, loss, *_ = self._site_sums(noise, moments, None)
        state = SiteState(
            **self._start(before, self._sites.n_latents),
            noise=noise,
            gram=gram,
            cross=cross,
            generator=self._generator.get_state(),
            n_steps=n_steps,
        )
        if level is not None:
            self._limit(state, level, loss)
        return state

    def _limit(self, state, level, loss):
        """Shorten the step that sites at constant latents (1, c) imply until it is uphill.

        Where a mean is an exponential, one row far from all others might imply latents that
        overflow. The next steps are as short at first. A step that gains over the ``loss`` of the
        constant, the mean over some variance, is taken without a pass to compare them.
        """
        log_prior = self._log_priors(state)
        if self._evaluate(state, None, log_prior)[0] >= log_prior - loss:
            return
        ends = self._cross_of(level, state.gram), state.cross
        for share in (0.0, *_SHARES):
            state.cross = torch.lerp(*ends, share)
            objective = self._evaluate(state, None, log_prior)[0].item()
            if not share:
                least = objective
            elif objective >= least:
                state.share = share
                return
        state.cross = ends[0]

    def init_update(self, length, variance, noise, earlier):
        """Return the state from which `step` adds rows; their sites start with no precision."""
        state = super().init_update(length, variance, noise, earlier)
        gram, cross = self._no_sites(len(earlier))
        sites = {"gram": gram, "cross": cross, "generator": self._generator.get_state()}
        return SiteState(**state.as_dict(), **sites)

    def held(self, state):
        """Return the state from which `step` finds the posterior, with the hyperparameters held.

        Its sites are those that `init` has computed at the latents of an earlier stage.
        """
        self.learned, self._held = (), True
        return state

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
            found = sites.sites(y, mean, torch.full_like(mean, DEFAULTS.initial_variance))
            grad, precision = self.rows.sum(-weights @ found.gradient, weights @ found.precision)
            moving = (precision > 0.5) | (grad.abs() > 0.5)
            step = moving * (grad / precision.clamp_min(_MIN_PRECISION)).clamp(-1, 1)
            level = level + step
            if (step.abs() < _LAST_STEP).all():
                break
        return level

    def step(self, state):
        """Take a pass of steps on the sites, then on the rest; set the objective before them.

        With all rows in a batch, a move that lowered the objective is undone but for half the step
        on the sites, which is a natural-gradient step; the next pass tests that.
        """
        self._generator.set_state(state.generator)
        self._forget()
        log_prior, objective, batches = self._log_priors(state), 0.0, [None]
        if self._n_batches() > 1:
            batches = self.rows.minibatches(self._batch_size, self._generator)
        for index in batches:
            value, gram, cross, shifted = self._evaluate(state, index, log_prior)
            objective = objective + value / len(batches)
            fall = state.objective - objective
            if state.before and fall > _ROUNDING * abs(state.objective):
                self._retreat(state, objective.item())
                return
            if len(batches) == 1:
                state.before = {name: getattr(state, name) for name in _MOVED}
            self._move(state, gram, cross, len(batches))
            if self._moves_noise and state.n_steps >= self._n_first_steps():
                state.noise = (state.noise + _newton(*shifted)).clamp(*PARAMETER_BOUNDS)
        if self.learned and state.n_steps >= self._n_first_steps():
            self._learn_hyperparameters(state)
        state.generator = self._generator.get_state()
        objective = objective.item()
        change = 0.5 if objective < state.objective else 2.0
        state.share = min(1.0, change * state.share)
        self._record(state, objective, log_prior)
        self._forget()

    def _evaluate(self, state, index, log_prior):
        """Return the objective of a state, and what `_site_sums` has besides the loss.

        The rows of an index stand for all rows.
        """
        posteriors = self.posteriors(state, whole=False)
        moments = partial(self._row_moments, posteriors)
        gram, cross, loss, *shifted = self._site_sums(state.noise, moments, index)
        kl = sum(posterior.kl() for posterior in posteriors)
        earlier = zip(posteriors, self._earlier or (), strict=bool(self._earlier))
        expected = sum(posterior.expected(*sums) for posterior, sums in earlier)
        return log_prior + (expected - loss - kl), gram, cross, shifted

    def _cross_of(self, level, gram):
        """Return linear terms of sites whose means are latents (1, c); the first column is one."""
        return level.T * gram[:, :, 0]

    def _forget(self):
        """Forget priors of other sites: a fit that resumes from a state finds its own."""
        self._priors = {}

    def _retreat(self, state, objective):
        """Undo the last move but for half the step on the sites; keep the objective before it."""
        self._forget()
        state.gain = (objective - state.objective) / self.rows.tolerance_scale
        halves = {
            name: torch.lerp(state.before[name], getattr(state, name), 0.5) for name in _SITES
        }
        for name, value in (state.before | halves).items():
            setattr(state, name, value)
        state.share *= 0.5

    def drop(self, state, going):
        super().drop(state, going)
        state.before = {}

    def residuals(self, state, rows):
        """Return X, derivatives of log densities in the latents, and precisions, (n, c) each."""
        X, y, weights = rows.take(slice(None))
        moments = self._row_moments(self.posteriors(state, whole=False), X)
        found = self._sites.at(state.noise).sites(y, *moments)
        return X, -weights[:, None] * found.gradient, weights[:, None] * found.precision

    def converged(self, state):
        early = self.learned and state.n_steps <= self._n_first_steps()
        return not early and super().converged(state)

    def _n_batches(self):
        """Return the number of minibatches in a pass."""
        return -(-self.rows.n_rows // (self._batch_size or self.rows.n_rows))

    def _n_first_steps(self):
        """Return the number of steps before anything but the sites is learned.

        Learned too early, the variances of effects would vanish, and could not recover, and the
        noise would explain what the effects have not yet.
        """
        return DEFAULTS.site_passes * self._n_batches()

    def _no_sites(self, n_latents):
        """Return the sums of sites without precision."""
        zeros = self._zeros(n_latents)
        return zeros, zeros[:, 0]

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
            size = (1 + state.n_steps / n_batches) ** -DEFAULTS.decay / n_batches**0.5
        state.gram = torch.lerp(state.gram, gram, size)
        state.cross = torch.lerp(state.cross, cross, size)
        state.n_steps += 1

    def _site_sums(self, noise, row_moments, index):
        """Return sums over the rows: of sites, losses and `_shifted_losses`.

        The rows of an index stand for all rows.
        """
        share = 1.0 if index is None else self.rows.scale_of(index)
        sites, gram, parts = self._sites.at(noise), self._zeros(self._sites.n_latents), None
        size = self._chunk_rows()
        for chunk in self.rows.chunks(size) if index is None else index.split(size):
            X, y, weights = self.rows.take(chunk)
            columns = RowColumns(self.basis(X))
            T, moments = columns.joined, row_moments(X, columns)
            found = sites.sites(y, *moments)
            add_grams(gram, T, weights[:, None] * found.precision)
            own = [
                (weights * found.linear.T) @ T,
                weights @ found.loss,
                *(weights @ loss for loss in self._shifted_losses(noise, y, *moments)),
            ]
            parts = own if parts is None else [a + b for a, b in zip(parts, own, strict=True)]
        return self.rows.sum(*(share * part for part in (mirror(gram), *parts)))

    def _shifted_losses(self, noise, y, mean, var):
        """Return losses of rows, (b, k), at likelihood parameters near the present ones.

        Each parameter is lower, all are equal, k = 1, and each is higher; where one latent function
        has several, two of them are higher, in the order of ``torch.triu_indices``.
        """
        if not self._moves_noise:
            return []
        moves = _DIFFERENCE * torch.eye(len(noise), dtype=noise.dtype, device=noise.device)
        points = [noise - moves, noise[None], noise + moves]
        if len(noise) > self._sites.n_latents:
            first, second = torch.triu_indices(len(noise), len(noise), 1)
            points.append(noise + moves[first] + moves[second])
        return [
            torch.stack([self._sites.at(each).loss(y, mean, var) for each in some], 1)
            for some in points
        ]


class RowSiteAscent(SiteAscent):
    """`SiteAscent` that keeps the sites of the rows instead of their sums over the columns.

    It takes less time where rows are fewer than three per column. All rows are in one batch.
    ``gram`` and ``cross`` of its states, (c, n), are the precisions and linear terms of the sites.
    """

    @cached_property
    def _columns(self):
        """`RowColumns` of all rows."""
        return RowColumns(self.basis(self.rows.take(slice(None))[0]))

    def _sums_of(self, state, index):
        return SiteRows(self._columns, state.gram[index], state.cross[index])

    def _cross_of(self, level, gram):
        return level.T * gram

    def _site_sums(self, noise, row_moments, index):
        X, y, weights = self.rows.take(slice(None))
        moments = row_moments(X, self._columns)
        found = self._sites.at(noise).sites(y, *moments)
        return [
            weights * found.precision.T,
            weights * found.linear.T,
            weights @ found.loss,
            *(weights @ loss for loss in self._shifted_losses(noise, y, *moments)),
        ]

    def _no_sites(self, n_latents):
        zeros = self.rows.weights.new_zeros(n_latents, len(self.rows))
        return zeros, zeros

    def _drop_columns(self, state, going):
        vars(self).pop("_columns", None)


def _newton(lower, here, higher, both=None):
    """Return the Newton step that lowers losses, (k,), from those of `_shifted_losses`.

    Parameters of different latent functions have no mixed derivatives.
    """
    grad = (higher - lower) / (2 * _DIFFERENCE)
    hess = (higher - 2 * here + lower) / _DIFFERENCE**2
    if both is None:
        step = torch.where(hess > 0, -grad / hess, -grad.sign())
    else:
        first, second = torch.triu_indices(len(grad), len(grad), 1)
        mixed = hess.diag()
        mixed[first, second] = (both - higher[first] - higher[second] + here) / _DIFFERENCE**2
        curvatures, vectors = torch.linalg.eigh(mixed, UPLO="U")
        along = vectors.T @ grad
        step = -vectors @ torch.where(curvatures > 0, along / curvatures, along.sign())
    return step.clamp(-_MAX_STEP, _MAX_STEP)
