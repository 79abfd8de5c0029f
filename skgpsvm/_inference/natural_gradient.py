"""Posterior inference: coordinate ascent or natural gradients with Adam, or Adam alone.

Adam learns the hyperparameters and inducing points; in `GradientInference` also the posterior.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from .._fitting import PosteriorStage, SparseState
from .._linalg import relative_change, upper_root
from .._objectives import minibatch_elbo
from .._optim import STEPS
from .._posteriors import whitened_basis
from .coordinate_ascent import AscentState, CoordinateAscent

# Learning by steps ends with this share of max_iter, or if so many iterations gain too little.
LEARNING_SHARE, PATIENCE = 0.7, 5
START_STD = 0.01  # of random posterior means, which break the symmetry of the classes
_SWEEPS_BETWEEN = 3
_STEPS_BETWEEN = 10
_BATCHES_BETWEEN = 10
_MIN_GAIN = 2e-3  # nats per row
_MAX_FALL = 1e-2  # of the mean ELBO estimate of a pass of minibatches, nats per row
_STEP_ROWS = 1024
_EPOCH_ROWS = 256
_KEPT = ("adam", "n_sweeps", "n_steps", "generator")  # of a pass that is undone


@dataclass(kw_only=True)
class InterleavedState(AscentState):
    """State of coordinate ascent or natural gradients interleaved with Adam."""

    generator: torch.Tensor  # state of the random generator
    adam: tuple = ()  # memory of the steps; empty before the first
    # Factor of Adam's learning rate, halved after each pass that is undone; natural gradients only
    rate_factor: float = 1.0
    n_sweeps: int = 0  # iterations so far
    # ELBOs of the last passes, or estimates of them; natural gradients only
    values: list = field(default_factory=list)
    learning_ended: bool = False  # whether Adam has stopped for good; natural gradients only


@dataclass(kw_only=True)
class GradientState(SparseState):
    """State of gradient ascent on the posterior and the hyperparameters together."""

    # (c, p, p): root with the logarithm of its diagonal, as `upper_root` takes it
    raw_root: torch.Tensor
    generator: torch.Tensor  # state of the random generator
    adam: tuple = ()  # memory of the steps; empty before the first
    rate_factor = 1.0
    change: float = math.inf  # relative change of the means in the last epoch


class AdamSteps:
    """Adam, or another rule, on the ELBO of minibatches, over some tensors of a state.

    The tensors in ``free`` are some of theta, noise, Z, mean and raw_root; ``rule`` is a key of
    `STEPS`.
    """

    def __init__(self, likelihood, kernels, rows, free, learning_rate, rule="adam", jitter=1e-6):
        self.likelihood, self.kernels, self.rows = likelihood, kernels, rows
        self.free, self.learning_rate = free, learning_rate
        self._step, self._jitter = STEPS[rule], jitter

    @torch.enable_grad()
    def run(self, state, batches):
        """Take one step per minibatch; return the mean estimate of the ELBO.

        The learned fields of the state and its ``adam`` are replaced.
        """
        flat, start = self.free.flat(state.theta), vars(state).copy()
        point, limits = flat.vector(start), flat.limits(start).unbind(1)
        rate, memory, total = self.learning_rate * state.rate_factor, state.adam or None, 0.0
        for index in batches:
            point.requires_grad_()
            objective = self._objective(replace(state, **flat.parts(point, start)), index)
            (gradient,) = torch.autograd.grad(objective / self.rows.total_weight, point)
            value, gradient = self.rows.sum(objective.detach(), gradient)
            step, memory = self._step(memory, gradient, rate)
            point = (point.detach() + step).clamp(*limits)
            total = total + value
        vars(state).update(flat.parts(point, start))
        state.adam = memory
        return (total / len(batches)).item()  # the device is waited for once

    def _objective(self, state, index):
        """Return the estimate of the ELBO from some rows, plus the log prior of theta.

        Where ranks share the rows, it is the term of this rank; the sum of all is the estimate.
        """
        X, y, weights = self.rows.take(index)
        root = upper_root(state.raw_root) if "raw_root" in self.free.names else state.root
        parts = self.basis(state)(X), y, weights, (state.mean, root), self.rows
        log_prior = self.free.log_prior(state.theta) / self.rows.n_shards
        return log_prior + minibatch_elbo(self.likelihood.at(state.noise), *parts)

    def basis(self, state):
        """Return the whitened features of the inducing points of a state."""
        return whitened_basis(self.kernels, state.theta, state.Z, self._jitter)


class AscentStage(PosteriorStage):
    """Sweeps of coordinate ascent at fixed hyperparameters, until they hardly move the means.

    ``sweep`` is a method of `CoordinateAscent`, such as its `ascend`. The sweeps end when the
    relative change of the means is below ``tol``.
    """

    def __init__(self, ascent, sweep, tol):
        self.ascent, self._sweep, self._tol = ascent, sweep, tol

    @property
    def is_exact(self):
        """True if one sweep finds the posterior from any start."""
        return self.ascent.likelihood.conjugate

    def at(self, state):
        """Return the coordinate ascent, whose hyperparameters are those of every state."""
        return self.ascent

    def init(self, noise):
        """Return the state at the prior; ``noise`` (q,) are the likelihood's log parameters."""
        return self.ascent.init(noise=noise)

    def step(self, state):
        state.objective = self._sweep(self.ascent, state)

    def converged(self, state):
        return state.change < self._tol


class _Inference(PosteriorStage):
    """Base of the ways to find a posterior.

    An iteration has converged if the means change by less than ``tol``, relative to their norm.
    Without a batch size, it takes all rows.
    """

    def __init__(self, ascent, adam, max_iter, tol, batch_size, generator):
        self.ascent, self.adam = ascent, adam
        self.max_iter, self.tol = max_iter, tol
        self.batch_size, self.generator = batch_size, generator
        self._noise = None

    def at(self, state):
        """Return the coordinate ascent, with the likelihood and the basis of a state."""
        if state.noise is not self._noise:  # the ascent shares sites under the same likelihood
            self._noise, self.ascent.likelihood = state.noise, self.adam.likelihood.at(state.noise)
        basis = self.ascent.basis
        if not (torch.equal(basis.theta, state.theta) and torch.equal(basis.Z, state.Z)):
            self.ascent.basis = self.adam.basis(state)
        return self.ascent

    @property
    def _n_batches(self):
        """Number of minibatches in a pass; 1 without minibatches."""
        n_rows = self.ascent.rows.n_rows
        return math.ceil(n_rows / (self.batch_size or n_rows))

    def _minibatches(self, batch_size):
        return self.ascent.rows.minibatches(batch_size, self.generator)

    def converged(self, state):
        return state.change < self.tol


class CoordinateInference(_Inference):
    """Sweeps of coordinate ascent; before every third one, ``n_steps`` Adam steps with q held.

    The Adam steps hold the whitened posterior, so that the divergence does not resist a change of
    the kernel. They end when 70 % of ``max_iter`` is spent.
    """

    n_steps = _STEPS_BETWEEN
    sweep = staticmethod(CoordinateAscent.ascend)

    @property
    def is_exact(self):
        """True if one sweep finds the posterior from any start."""
        all_rows = self.batch_size is None and not self.adam.free.names
        return all_rows and self.ascent.likelihood.conjugate

    def init(self, start):
        """Return the state at the prior, or at the moments of a start that has them.

        Given moments count as a pass of minibatches, so that the next step keeps most of them.
        """
        ascent = self.ascent.init(start.get("mean"), start.get("root"), start["noise"])
        ascent.n_steps *= self._n_batches
        fields = ascent.as_dict() | {"theta": start["theta"], "Z": start["Z"]}
        return InterleavedState(**fields, generator=self.generator.get_state())

    def _learning(self, state):
        """Return whether Adam steps are still to come."""
        return bool(self.adam.free.names) and state.n_sweeps < LEARNING_SHARE * self.max_iter

    def step(self, state):
        """Pass over the rows; the objective is the ELBO before it, or the mean of its estimates."""
        before, values, subsets = state.mean, [], self._subsets()
        self.generator.set_state(state.generator)
        for group in self._groups():
            if self._learning(state) and self._due(state):
                self.adam.run(state, list(islice(subsets, self.n_steps)))
                if group is None:
                    state.n_steps = 1
            ascent = self.at(state)
            if group is None:
                values.append(self.sweep(ascent, state))
            else:
                values.append(ascent.stochastic_sweep(state, group))
        if self.batch_size is not None:
            state.change = relative_change(state.mean, before)
        state.n_sweeps += 1
        state.generator = self.generator.get_state()
        log_prior = self.adam.free.log_prior(state.theta).item()
        state.objective = sum(values) / len(values) + log_prior

    def _groups(self):
        """Return the parts of a pass between which Adam may step.

        Each is a list of minibatches, or None for all rows at once.
        """
        return [None if self.batch_size is None else self._minibatches(self.batch_size)]

    def _subsets(self):
        """Yield minibatches for Adam without end, shuffled anew after every epoch."""
        while True:
            yield from self._minibatches(_STEP_ROWS)

    def _due(self, state):
        """Return whether Adam steps come before the next group."""
        return state.n_sweeps % _SWEEPS_BETWEEN == _SWEEPS_BETWEEN - 1

    def converged(self, state):
        return not self._learning(state) and super().converged(state)


class NaturalGradientInference(CoordinateInference):
    """Passes of natural-gradient steps, with Adam steps before every few of them.

    Adam ends for good once five passes changed the ELBO by less than 0.002 nats per row, or 70 %
    of ``max_iter`` is spent. A pass with Adam steps after which the ELBO fell is undone, and the
    learning rate is halved. Where the ELBO is the mean of minibatch estimates, the fall must exceed
    0.01 nats per row.

    Source: Hensman et al. (2013); Salimbeni et al. (2018) for the alternation.
    """

    sweep = staticmethod(CoordinateAscent.natural_sweep)

    def step(self, state):
        """Take one pass; the objective is the ELBO, or the mean of its estimates."""
        values, slack = state.values, 0.0
        if self.batch_size is not None:
            slack = _MAX_FALL * self.ascent.rows.tolerance_scale
        before = replace(state)
        super().step(state)
        values = [*values, state.objective]
        if state.adam and self._learning(before) and values[-1] < max(values) - slack:
            kept = {name: getattr(state, name) for name in _KEPT}
            state.restore(before.as_dict() | kept | {"rate_factor": state.rate_factor / 2})
            values[-1] = values[-2]
        state.values = values[-PATIENCE:]
        min_change = _MIN_GAIN * self.ascent.rows.tolerance_scale
        if len(values) > PATIENCE and abs(values[-1] - values[0]) < min_change:
            state.learning_ended = True
        state.objective = values[-1]

    def _groups(self):
        (group,) = super()._groups()
        if group is None:
            return [group]
        starts = range(0, len(group), _BATCHES_BETWEEN)
        return [group[i : i + _BATCHES_BETWEEN] for i in starts]

    def _due(self, state):
        # The first pass from a posterior has no Adam steps: the next are judged by its estimate.
        return bool(state.values) or 1 < state.n_steps < self._n_batches

    def _learning(self, state):
        return super()._learning(state) and not state.learning_ended


class GradientInference(_Inference):
    """Adam or Adadelta on posterior and hyperparameters together, one epoch per iteration.

    Source: Wistuba and Rawat (2018), section 3.2.
    """

    def init(self, start):
        """Return the state at the moments of a start that has them, or near the prior.

        Small random means break the tie of the classes.
        """
        shape = self.ascent.likelihood.n_latents, self.ascent.basis.size
        device = start["Z"].device
        mean, root = start.get("mean"), start.get("root")
        if mean is None:
            mean = START_STD * torch.randn(*shape, generator=self.generator, dtype=torch.float64)
            root = torch.eye(shape[1], dtype=torch.float64).expand(shape[0], -1, -1)
        root = root.to(device)
        log_diagonal = root.diagonal(dim1=1, dim2=2).log()
        return GradientState(
            theta=start["theta"],
            Z=start["Z"],
            noise=start["noise"],
            mean=mean.to(device),
            root=root,
            raw_root=root.diagonal_scatter(log_diagonal, dim1=1, dim2=2),
            generator=self.generator.get_state(),
        )

    def step(self, state):
        """Take one epoch; the objective is the mean of its estimates of the ELBO."""
        before, is_first = state.mean, not state.adam
        self.generator.set_state(state.generator)
        batches = self._minibatches(self.batch_size or _EPOCH_ROWS)
        state.objective = self.adam.run(state, batches)
        state.generator = self.generator.get_state()
        state.root = upper_root(state.raw_root)
        # A first step of one batch moves hyperparameters alone if the means were the best for them.
        state.change = math.inf if is_first else relative_change(state.mean, before)
