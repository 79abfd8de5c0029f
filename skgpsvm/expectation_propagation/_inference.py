"""Algorithms of expectation propagation: hyperparameter steps between or around site updates."""

import math
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from sklearn.exceptions import ConvergenceWarning

from .._fitting import Stage
from .._hyperparameters.priors import SignalPrior
from .._linalg import relative_change
from .._optim import FlatParameters, adam_step, lbfgs
from ..exceptions import NotPositiveDefiniteError, warn
from ..inducing import select_inducing_points
from ._propagation import EPState, Propagation

_LEARNING_SHARE = 0.7  # of max_iter
_DECAY_SHARE = 0.4  # of the learning
_PATIENCE = 5  # iterations
# In nats per row over five iterations. At 2e-3 (1.2 nats of 600 rows) length scales hardly move.
_MIN_GAIN = 2e-4
_DAMPING, _LEARNING_DAMPING, _MIN_DAMPING = 0.8, 0.5, 0.05
_SLOW, _MORE_DAMPED, _LESS_DAMPED = 0.5, 0.7, 1.2  # share of a move left; factors of the damping
_MINIBATCH_DAMPING = 0.99
_GROWTH, _SHRINKAGE = 1.02, 0.5
_ADADELTA_DECAY, _ADADELTA_EPSILON = 0.9, 1e-5
_MAX_STEP = 0.1  # of the sign rule, in logarithms and standard deviations
_ROUND = 10  # steps of L-BFGS-B
_LEAST_GAIN = 0.3  # of a step, in units of tol
_MAX_UPDATES = 200
_LEARNING_POINTS = 100
_SITE_TOL = {torch.float64: 1e-6, torch.float32: 2e-4}
PARTS = ("theta", "Z")  # that can be learned


class SignRule:
    """Gradient ascent whose rate for each parameter follows the signs of its derivatives.

    The rate grows while the sign stays the same, and is halved when it changes.

    Source: Hernandez-Lobato and Hernandez-Lobato (2016), section 5.1. Departs from the source: the
    length of a step is limited.
    """

    stops_at_standstill = False  # the objective may rise again when the rates have grown

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def step(self, memory, gradient, progress):
        """Return the next step and the rule's new memory.

        Parameters
        ----------
        memory : dict
            Empty before the first step.
        gradient : Tensor of shape (k,)
        progress : float
            Share of the learning that is done, from 0 to 1.

        Returns
        -------
        step : Tensor of shape (k,)
        memory : dict
        """
        rate = memory.get("rate", torch.full_like(gradient, self.learning_rate))
        if memory:
            same = gradient.sign() == memory["sign"]
            rate = torch.where(same, _GROWTH * rate, _SHRINKAGE * rate)
        memory = {"rate": rate, "sign": gradient.sign()}
        return (rate * gradient).clamp(-_MAX_STEP, _MAX_STEP), memory


class DecayingRule:
    """A rule whose learning rate decays to zero in the last 40 % of the learning.

    Parameters
    ----------
    steps : callable
        Takes a memory or None, a gradient and a learning rate; returns a step and a new memory.
    learning_rate : float
    """

    stops_at_standstill = True

    def __init__(self, steps, learning_rate):
        self.steps, self.learning_rate = steps, learning_rate

    def step(self, memory, gradient, progress):
        """Return the next step and the rule's new memory; see `SignRule.step`."""
        rate = self.learning_rate * min(1.0, (1 - progress) / _DECAY_SHARE)
        step, last = self.steps(memory.get("last"), gradient, rate)
        return step, {"last": last}


def adadelta_step(memory, gradient, rate):
    """Return the next step of Adadelta uphill, and its new memory; see `adam_step`.

    Notes
    -----
    Source: Zeiler (2012), Algorithm 1.
    """
    zeros = torch.zeros_like(gradient)
    gradients, steps = (zeros, zeros) if memory is None else memory
    rho = _ADADELTA_DECAY
    gradients = (gradients * rho).addcmul_(gradient, gradient, value=1 - rho)
    ratio = (steps + _ADADELTA_EPSILON).sqrt_().div_((gradients + _ADADELTA_EPSILON).sqrt_())
    step = ratio.mul_(gradient)
    steps = (steps * rho).addcmul_(step, step, value=1 - rho)
    return rate * step, (gradients, steps)


RULES = {
    "adam": partial(DecayingRule, partial(adam_step, betas=(0.9, 0.99))),
    "adadelta": partial(DecayingRule, adadelta_step),
    "sign": SignRule,
}


@dataclass(frozen=True)
class EPProblem:
    """Expectation propagation and the hyperparameters to learn.

    Attributes
    ----------
    propagation : Propagation
    free : list of str
        Names of the learned parameters, some of `PARTS`.
    bounds : Tensor of shape (k, 2)
        Bounds of theta.
    scale : Tensor of shape (d,)
        Unit of the inducing points, for each feature.
    prior : SignalPrior, optional
        Prior of theta.
    """

    propagation: Propagation
    free: list
    bounds: torch.Tensor
    scale: torch.Tensor
    prior: SignalPrior | None = None

    @property
    def flat(self):
        """The learned parameters as one vector, a `FlatParameters`."""
        return FlatParameters(self.free, {"Z": self.scale}, {"theta": self.bounds})

    def log_prior(self, state):
        """Return the log density of theta, up to a constant; zero without a prior."""
        return 0.0 if self.prior is None else self.prior.log_density(state.theta).item()

    def objective(self, state, update):
        """Return the log evidence plus the log prior, given the `site_update` at a state."""
        return self.propagation.evidence(state, update) + self.log_prior(state)

    def gradient(self, state, update):
        """Return the derivatives of `objective` in the learned parameters, (k,)."""
        return self.with_prior(self.propagation.gradient(state, update), state)

    def with_prior(self, gradients, state):
        """Return derivatives by name as one vector (k,), the prior's gradient added."""
        if self.prior is not None and "theta" in gradients:
            theta = gradients["theta"] + self.prior.gradient(state.theta)
            gradients = {**gradients, "theta": theta}
        return self.flat.gradient(gradients)

    def moved(self, state, point):
        """Return the parameters of a state by name, the learned ones set to a vector (k,)."""
        return self.flat.parts(point, state.parameters())


@dataclass(kw_only=True)
class SiteUpdateState(EPState):
    """State of `SiteUpdates`.

    Attributes
    ----------
    learning : bool
        Whether hyperparameters are still learned.
    memory : dict
        Memory of the rule for their steps; empty before the first.
    values : list of float
        Objectives of the last iterations of the learning.
    changes : list of float
        Changes of the posterior mean in the last iterations after the learning.
    n_updates : int
        Number of iterations taken.
    step_factor : float
        Factor of the hyperparameters' steps, halved after each failure.
    damping : float
        Share of the way that sites move once the learning has ended.
    """

    learning: bool
    memory: dict = field(default_factory=dict)
    values: list = field(default_factory=list)
    changes: list = field(default_factory=list)
    n_updates: int = 0
    step_factor: float = 1.0
    damping: float = _DAMPING


class SiteUpdates(Stage):
    """Alternate one damped update of all sites with one gradient step of the hyperparameters.

    The learning of hyperparameters ends when 70 % of ``max_iter`` is spent. Except with the sign
    rule, it also ends when five iterations changed the evidence by less than 0.0002 nats per row.
    Updates then go on, less damped, until they hardly move the posterior mean. If five of these
    did not lower the change of the mean, their step is halved.

    A step of the hyperparameters is undone if the posterior precision is no longer positive
    definite after it, and all later steps are halved.

    Without learning, the first update is undamped: it may be the only one in a stream.

    Parameters
    ----------
    problem : EPProblem
    rule : SignRule, DecayingRule or None
        None where nothing is learned.
    max_iter : int
    tol : float
        Relative change of the posterior mean at convergence.
    """

    is_exact = False  # see `CoordinateInference`

    def __init__(self, problem, rule, max_iter, tol):
        self.problem, self.propagation = problem, problem.propagation
        self.rule, self.max_iter, self.tol = rule, max_iter, tol

    def init(self, start):
        """Return the state without sites, or with the sites of a start's posterior.

        Parameters
        ----------
        start : dict of str to Tensor
            ``theta``, ``Z`` and, to continue from a posterior, ``mean`` and ``root``.

        Returns
        -------
        state : SiteUpdateState
        """
        return SiteUpdateState(**self._initial_fields(start))

    def _initial_fields(self, start):
        fields = self.propagation.first_state(start).as_dict()
        return fields | {"learning": bool(self.problem.free)}

    def at(self, state):
        """Return the first argument of `EPClassifier._evaluate_posterior`."""
        return self.propagation

    def step(self, state):
        """Take one iteration; the objective is the evidence before it."""
        update = self.propagation.site_update(state)
        objective = self.problem.objective(state, update)
        before = replace(state)
        damping = state.damping if state.n_updates else 1.0
        if state.learning:
            damping = _LEARNING_DAMPING
            gradient = self.problem.gradient(state, update)
            self._learn(state, gradient, self._progress(state.n_updates))
        self.propagation.move_sites(state, update, damping)
        try:
            self.propagation.refresh(state)
        except NotPositiveDefiniteError:
            if not before.learning:
                raise
            state.restore(before.as_dict())
            state.step_factor /= 2
        self._finish(state, before.mean, objective)

    def _learn(self, state, gradient, progress):
        """Take a step of the hyperparameters."""
        step, state.memory = self.rule.step(state.memory, gradient, progress)
        parameters, flat = state.parameters(), self.problem.flat
        limits = flat.limits(parameters).unbind(-1)
        point = (flat.vector(parameters) + state.step_factor * step).clamp(*limits)
        vars(state).update(self.problem.moved(state, point))

    def _progress(self, n_updates):
        """Return the share of the learning that is done, from 0 to 1."""
        return min(1.0, n_updates / (_LEARNING_SHARE * self.max_iter))

    def _finish(self, state, mean_before, objective):
        """Complete a state after an iteration."""
        state.objective = objective
        state.change = relative_change(state.mean, mean_before)
        state.n_updates += 1
        if state.learning:
            self._end_learning(state)
        else:
            self._adapt_damping(state)

    def _end_learning(self, state):
        """End the learning where its iterations are spent, or where the objective stands still."""
        values = [*state.values, state.objective]
        state.values = values[-_PATIENCE:]
        min_gain = _MIN_GAIN * self.propagation.rows.total_weight
        still = len(values) > _PATIENCE and abs(values[-1] - values[0]) < min_gain
        spent = self._progress(state.n_updates) == 1
        state.learning = not (spent or (still and self.rule.stops_at_standstill))

    def _adapt_damping(self, state):
        """Halve the steps of the sites where the changes of the mean do not fall."""
        changes = [*state.changes, state.change]
        if len(changes) > _PATIENCE and min(changes[1:]) >= changes[0]:
            state.damping = max(state.damping / 2, _MIN_DAMPING)
            changes = []
        state.changes = changes[-_PATIENCE:]

    def converged(self, state):
        """Return whether the learning has ended and an update hardly moved the mean."""
        return not state.learning and state.change < self.tol


@dataclass(kw_only=True)
class MinibatchState(SiteUpdateState):
    """State of `MinibatchEP`.

    Attributes
    ----------
    generator : Tensor
        State of the random generator of minibatches.
    """

    generator: torch.Tensor


class MinibatchEP(SiteUpdates):
    """Epochs of minibatches: update the sites of a batch, the posterior, then hyperparameters.

    In whitened coordinates, a site stays on the features with which it was last updated. The end of
    an epoch moves all sites to the current features. Once the learning has ended, all sites are
    updated at once.

    Parameters
    ----------
    problem : EPProblem
    rule : SignRule, DecayingRule or None
    max_iter : int
    tol : float
        See `SiteUpdates`.
    batch_size : int
    generator : torch.Generator

    Notes
    -----
    Source: the paper's minibatches, in whitened coordinates, with a refresh in each epoch.
    """

    def __init__(self, problem, rule, max_iter, tol, batch_size, generator):
        super().__init__(problem, rule, max_iter, tol)
        self.batch_size, self.generator = batch_size, generator

    def init(self, start):
        """Return the first state, a `MinibatchState`; see `SiteUpdates.init`."""
        generator = self.generator.get_state()
        return MinibatchState(**self._initial_fields(start), generator=generator)

    def step(self, state):
        """Take one epoch, or update all sites; the objective is the evidence or its estimate."""
        if state.n_updates and not state.learning:
            super().step(state)
            return
        self.generator.set_state(state.generator)
        mean_before, old = state.mean, self.propagation.make_basis(state.theta, state.Z)
        basis, log_sites = old, 0.0
        # Copies, since minibatches change the sites in place.
        state.precision, state.shift = state.precision.clone(), state.shift.clone()
        rows = self.propagation.rows
        batches = rows.minibatches(self.batch_size, self.generator, repeat=False)
        for i, index in enumerate(batches):
            index = index.to(mean_before.device)
            part, surrogate = self.propagation.minibatch(
                state, index, old, basis, _MINIBATCH_DAMPING, len(batches)
            )
            log_sites = log_sites + part
            if state.learning:
                progress = self._progress(state.n_updates + i / len(batches))
                self._learn(state, self._stochastic_gradient(state, surrogate), progress)
                basis = self.propagation.make_basis(state.theta, state.Z)
        log_normalizer = self.propagation.log_normalizer(state)
        (log_sites,) = rows.sum(log_sites)
        objective = log_sites.item() + log_normalizer + self.problem.log_prior(state)
        self.propagation.refresh(state)
        state.generator = self.generator.get_state()
        self._finish(state, mean_before, objective)

    @torch.enable_grad()
    def _stochastic_gradient(self, state, surrogate):
        """Return an estimate of `EPProblem.gradient`, (k,), from the surrogate of a batch."""
        parameters = state.parameters()
        leaves = {name: parameters[name].detach().requires_grad_() for name in self.problem.free}
        value = surrogate(self.propagation.make_basis(**parameters | leaves))
        # Zero, so that parameters without effect have a gradient too.
        value = value + sum(0.0 * leaf.sum() for leaf in leaves.values())
        gradients = torch.autograd.grad(value, leaves.values())
        gradients = self.propagation.rows.sum(*gradients)
        return self.problem.with_prior(dict(zip(leaves, gradients, strict=True)), state)


@dataclass(kw_only=True)
class EvidenceState(EPState):
    """State of `EvidenceLearning`.

    Attributes
    ----------
    ended : bool
        Whether the last round ended before its last step.
    """

    ended: bool = False


class EvidenceLearning(Stage):
    r"""Maximize the evidence of converged sites by rounds of L-BFGS-B.

    The sites of each evaluation start from those of the last. The evidence is stationary in the
    sites at a fixed point. Where all natural parameters are within :math:`\epsilon` of it, the
    error of the evidence is of order :math:`\epsilon^2` for each row. Sites thus converge only to
    the root of ``tol``, which takes two or three updates.

    Parameters
    ----------
    problem : EPProblem
    tol : float
        Convergence tolerance in nats per row. The last step is the first that gains less than 0.3
        times as much.

    Notes
    -----
    Source: generalized FITC, Naish-Guzman and Holden (2007). Its fixed points and evidence are
    those of `SiteUpdates`.
    """

    def __init__(self, problem, tol):
        self.problem, self.propagation, self.tol = problem, problem.propagation, tol

    def init(self, start):
        """Return the first state, an `EvidenceState`; see `SiteUpdates.init`."""
        return EvidenceState(**self.propagation.first_state(start).as_dict())

    def step(self, state):
        """Take one round; the objective is the evidence after it."""
        n_evaluations = 0

        def value_and_gradient(point):
            nonlocal n_evaluations
            n_evaluations += 1
            # A copy: after a failure, the state has the sites of the last success.
            tried = replace(state, **self.problem.moved(state, point))
            update = self._converge(tried)
            value = self.problem.objective(tried, update)
            if math.isfinite(value):
                state.restore(tried.as_dict())
            return value, self.problem.gradient(tried, update)

        parameters, flat = state.parameters(), self.problem.flat
        start, limits = flat.vector(parameters), flat.limits(parameters)
        least_gain = _LEAST_GAIN * self.tol * self.propagation.rows.total_weight
        best, state.objective = lbfgs(value_and_gradient, start, limits, _ROUND, least_gain)
        # A round of all its steps has one evaluation more than steps, at least.
        state.ended = n_evaluations <= _ROUND
        vars(state).update(self.problem.moved(state, best))
        self._converge(state)

    def explained(self, start):
        """Return how much a start explains of the labels, in nats per row.

        It is the log evidence without hyperparameter learning, above the log likelihood of the
        class frequencies.
        """
        state, rows = self.init(start), self.propagation.rows
        evidence = self.propagation.evidence(state, self._converge(state))
        (count,) = rows.sum(rows.weights.double() @ rows.targets.double())
        share = torch.stack([count, rows.total_weight - count]) / rows.total_weight
        return evidence / rows.total_weight - torch.xlogy(share, share).sum().item()

    def _converge(self, state):
        return run_ep_to_convergence(self.propagation, state, math.sqrt(self.tol))

    def converged(self, state):
        """Return whether the last round ended before its last step."""
        return state.ended


def run_ep_to_convergence(propagation, state, tol=0.0):
    """Update the sites of a state until they have converged.

    The damping adapts where moves shrink slowly. It is increased if successive moves turn back,
    and reduced if they go on in the same direction.

    Parameters
    ----------
    propagation : Propagation
    state : EPState
        Its sites and posterior are changed.
    tol : float
        The sites have converged when an update would move all natural parameters by less. Smaller
        values than the precision of the rows allows are replaced by that.

    Returns
    -------
    update : SiteUpdate
        The update at the converged sites, which would hardly move them.

    Warns
    -----
    ConvergenceWarning
        If the sites have not converged in 200 updates.
    """
    propagation.refresh(state)
    damping, last_move = 1.0, state.precision.new_zeros(2 * len(state.precision))
    tol = max(tol, _SITE_TOL[propagation.rows.dtype])
    for _ in range(_MAX_UPDATES):
        update = propagation.site_update(state)
        move = torch.cat([update.precision - state.precision, update.shift - state.shift])
        n_large, along, size = propagation.rows.sum(
            (move.abs() >= tol).sum().double(), move @ last_move, last_move @ last_move
        )
        if not n_large:
            return update
        if along.abs() > _SLOW * size:
            damping *= _MORE_DAMPED if along < 0 else _LESS_DAMPED
            damping = min(max(damping, _MIN_DAMPING), 1.0)
        last_move = move
        propagation.move_sites(state, update, damping)
        propagation.refresh(state)
    warn(
        f"The sites did not converge in {_MAX_UPDATES} updates; the evidence is that of the last "
        "update.",
        ConvergenceWarning,
    )
    return propagation.site_update(state)


def with_fewer_points(start, random_state):
    """Return a start with 100 inducing points at most, for the learning of hyperparameters.

    The hyperparameters hardly depend on their number, but the cost is proportional to its square.
    The points are centers of clusters of the given ones.

    Parameters
    ----------
    start : SparseModel
    random_state : RandomState
    """
    if not start.uses_points or len(start.Z) <= _LEARNING_POINTS:
        return start
    Z = select_inducing_points(start.Z, _LEARNING_POINTS, random_state=random_state)
    return replace(start, Z=Z, mean=None, root=None)
