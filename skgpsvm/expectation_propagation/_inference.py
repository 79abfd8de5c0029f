"""Site updates, of all rows or of minibatches, with hyperparameter steps between them."""

from dataclasses import dataclass, field, replace

import torch

from .._fitting import PosteriorStage
from .._inference.natural_gradient import LEARNING_SHARE, PATIENCE
from .._linalg import relative_change
from .._optim import Free
from ..exceptions import NotPositiveDefiniteError
from ._propagation import EPState, Propagation

# In nats per row over five iterations. At 2e-3 (1.2 nats of 600 rows) length scales hardly move.
_MIN_GAIN = 2e-4


@dataclass(frozen=True)
class EPProblem:
    """Expectation propagation and the hyperparameters to learn."""

    propagation: Propagation
    free: Free = field(default_factory=Free)  # learned parameters, some of "theta" and "Z"
    # Whether gradients are those of the source's eq. 4; see `Propagation.gradient`
    approximate: bool = False

    def objective(self, state, update):
        """Return the log evidence plus the log prior, given the `site_update` at a state."""
        return self.propagation.evidence(state, update) + self.free.log_prior(state.theta).item()

    def gradients(self, state, update):
        """Return the derivatives of `objective` by name."""
        gradients = self.propagation.gradient(state, update, self.approximate)
        return self.free.with_prior(gradients, state.theta)


@dataclass(kw_only=True)
class SiteUpdateState(EPState):
    """State of `SiteUpdates` and of `MinibatchEP`."""

    learning: bool  # whether hyperparameters are still learned
    # Memory of the rule for their steps; empty before the first
    memory: dict = field(default_factory=dict)
    # Objectives of the last iterations of the learning
    values: list = field(default_factory=list)
    n_updates: int = 0  # number of iterations taken
    step_factor: float = 1.0  # factor of the hyperparameters' steps, halved after each failure
    generator: torch.Tensor | None = None  # state of the random generator of minibatches


class SiteUpdates(PosteriorStage):
    """Alternate one update of all sites with one gradient step of the hyperparameters.

    The learning of hyperparameters ends when 70 % of ``max_iter`` is spent. Except with the sign
    rule, it also ends when five iterations changed the evidence by less than 0.0002 nats per row.
    Updates then go on until they hardly move the posterior mean. All updates are damped if
    successive ones turn back.

    A step of the hyperparameters is undone if the posterior precision is no longer positive
    definite after it, and all later steps are halved.

    The ``rule`` is a `SignRule` or a `DecayingRule`, None where nothing is learned. Updates have
    converged if they change the posterior mean by less than ``tol``, relative to its norm.

    Source: Hernandez-Lobato and Hernandez-Lobato (2016). Departs from the source: its updates are
    always damped, by 0.5, or 0.99 in minibatches.
    """

    def __init__(self, problem, rule, max_iter, tol):
        self.problem, self.propagation = problem, problem.propagation
        self.rule, self.max_iter, self.tol = rule, max_iter, tol

    def init(self, start):
        """Return the state without sites, or with the sites of a start's posterior."""
        fields = self.propagation.first_state(start).as_dict()
        return SiteUpdateState(**fields, learning=bool(self.problem.free.names))

    def at(self, state):
        """Return the propagation, which with a state gives the summary of the model."""
        return self.propagation

    def step(self, state):
        """Take one iteration; the objective is the evidence before it."""
        update = self.propagation.site_update(state)
        objective = self.problem.objective(state, update)
        before = replace(state)
        if state.learning:
            gradients = self.problem.gradients(state, update)
            self._learn(state, gradients, self._progress(state.n_updates))
        self.propagation.step_sites(state, update)
        try:
            self.propagation.refresh(state)
        except NotPositiveDefiniteError:
            if not before.learning:
                raise
            state.restore(before.as_dict())
            state.step_factor /= 2
        self._finish(state, before.mean, objective)

    def _learn(self, state, gradients, progress):
        """Take a step of the hyperparameters."""
        parameters, flat = state.parameters(), self.problem.free.flat(state.theta)
        step, state.memory = self.rule.step(state.memory, flat.gradient(gradients), progress)
        limits = flat.limits(parameters).unbind(-1)
        point = (flat.vector(parameters) + state.step_factor * step).clamp(*limits)
        vars(state).update(flat.parts(point, parameters))

    def _progress(self, n_updates):
        """Return the share of the learning that is done, from 0 to 1."""
        return min(1.0, n_updates / (LEARNING_SHARE * self.max_iter))

    def _finish(self, state, mean_before, objective):
        """Complete a state after an iteration.

        The learning ends where its iterations are spent, or where the objective stands still.
        """
        state.objective = objective
        state.change = relative_change(state.mean, mean_before)
        state.n_updates += 1
        if not state.learning:
            return
        values = [*state.values, objective]
        state.values = values[-PATIENCE:]
        min_gain = _MIN_GAIN * self.propagation.rows.total_weight
        still = len(values) > PATIENCE and abs(values[-1] - values[0]) < min_gain
        spent = self._progress(state.n_updates) == 1
        state.learning = not (spent or (still and self.rule.stops_at_standstill))

    def converged(self, state):
        return not state.learning and state.change < self.tol


class MinibatchEP(SiteUpdates):
    """Epochs of minibatches: update the sites of a batch, the posterior, then hyperparameters.

    In whitened coordinates, a site stays on the features with which it was last updated. The end of
    an epoch moves all sites to the current features. Once the learning has ended, all sites are
    updated at once.

    Source: the paper's minibatches, in whitened coordinates, with a refresh in each epoch.
    """

    def __init__(self, problem, rule, max_iter, tol, batch_size, generator):
        super().__init__(problem, rule, max_iter, tol)
        self.batch_size, self.generator = batch_size, generator

    def init(self, start):
        return replace(super().init(start), generator=self.generator.get_state())

    def step(self, state):
        """Take one epoch, or update all sites; the objective is the evidence or its estimate."""
        if state.n_updates and not state.learning:
            super().step(state)
            return
        self.generator.set_state(state.generator)
        leaves, basis = self._differentiable_basis(state)
        mean_before, old, log_sites = state.mean, basis, 0.0
        # Copies, since minibatches change the sites in place.
        state.precision, state.shift = state.precision.clone(), state.shift.clone()
        rows = self.propagation.rows
        batches = rows.minibatches(self.batch_size, self.generator, repeat=False)
        for i, index in enumerate(batches):
            with torch.no_grad():
                terms, surrogate = self.propagation.minibatch(
                    state, index, old, basis, len(batches)
                )
            log_sites = log_sites + terms
            if state.learning:
                progress = self._progress(state.n_updates + i / len(batches))
                gradients = self._stochastic_gradients(state, leaves, surrogate, basis)
                self._learn(state, gradients, progress)
                leaves, basis = self._differentiable_basis(state)
        log_normalizer = self.propagation.log_normalizer(state)
        (log_sites,) = rows.sum(log_sites)
        log_prior = self.problem.free.log_prior(state.theta).item()
        objective = log_sites.item() + log_normalizer + log_prior
        self.propagation.refresh(state)
        state.generator = self.generator.get_state()
        self._finish(state, mean_before, objective)

    @torch.enable_grad()
    def _differentiable_basis(self, state):
        """Return the free hyperparameters as leaves, by name, and the basis at them."""
        free = self.problem.free.names
        leaves = {name: getattr(state, name).detach().requires_grad_() for name in free}
        tried = replace(state, **leaves)
        return leaves, self.propagation.make_basis(tried.theta, tried.Z)

    @torch.enable_grad()
    def _stochastic_gradients(self, state, leaves, surrogate, basis):
        """Return an estimate of `EPProblem.gradients` from the surrogate of a batch."""
        # Zero, so that parameters without effect have a gradient too.
        value = surrogate(basis) + sum(0.0 * leaf.sum() for leaf in leaves.values())
        gradients = torch.autograd.grad(value, leaves.values())
        gradients = self.propagation.rows.sum(*gradients)
        gradients = dict(zip(leaves, gradients, strict=True))
        return self.problem.free.with_prior(gradients, state.theta)
