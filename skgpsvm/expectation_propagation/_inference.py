"""Ways through expectation propagation: hyperparameter steps between updates, or around them."""

import math
from functools import partial

import torch
from sklearn.exceptions import ConvergenceWarning

from .._linalg import relative_change
from .._optim import FlatParameters, lbfgs, minibatches
from ..exceptions import NotPositiveDefiniteError, warn

_LEARNING_SHARE = 0.7
_DECAY_SHARE = 0.4
_PATIENCE = 5
# Nats a row in five iterations. At 2e-3 (1.2 nats of 600 rows) length scales stay near their start.
_LEAST_GAIN = 2e-4
_DAMPING, _LEARNING_DAMPING, _LEAST_DAMPING = 0.8, 0.5, 0.05
_SLOW, _MORE_DAMPED, _LESS_DAMPED = 0.5, 0.7, 1.2  # share of a move left; factors of the damping
_MINIBATCH_DAMPING = 0.99
_GROWTH, _SHRINKAGE = 1.02, 0.5
_MOST_STEP = 0.1  # of the sign rule, in logarithms and standard deviations
_ROUND = 10  # steps of L-BFGS-B
_MOST_UPDATES = 200
_SITE_TOL = {torch.float64: 1e-6, torch.float32: 2e-4}
PARTS = ("theta", "Z")


class SignRule:
    """Ascent with a rate for each parameter: it grows while the slope keeps its sign, else halves.

    Source: Hernandez-Lobato and Hernandez-Lobato (2016), section 5.1; the limit on steps is ours.
    """

    settles = False  # a standstill may end when the rates have grown

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def step(self, memory, slope, share):
        """The step (k,) and the new memory, a dict; ``share`` of the learning is behind."""
        rate = memory.get("rate", torch.full_like(slope, self.learning_rate))
        if memory:
            same = slope.sign() == memory["sign"]
            rate = torch.where(same, _GROWTH * rate, _SHRINKAGE * rate)
        memory = {"rate": rate, "sign": slope.sign()}
        return (rate * slope).clamp(-_MOST_STEP, _MOST_STEP), memory


class TorchRule:
    """An optimizer of torch, its rate falling to nothing over the last 40 % of the learning.

    Parameters
    ----------
    optimizer : callable
        Parameters and ``lr`` to an optimizer that maximizes.
    learning_rate : float
    """

    settles = True

    def __init__(self, optimizer, learning_rate):
        self.optimizer, self.learning_rate = optimizer, learning_rate

    def step(self, memory, slope, share):
        """The step (k,) and the new memory, a dict; ``share`` of the learning is behind."""
        point = torch.zeros_like(slope)
        rate = self.learning_rate * min(1.0, (1 - share) / _DECAY_SHARE)
        optimizer = self.optimizer([point], lr=rate)
        if memory:
            now = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({**memory, "param_groups": now})
        point.grad = slope
        optimizer.step()
        return point, optimizer.state_dict()


RULES = {
    "auto": partial(TorchRule, partial(torch.optim.Adam, betas=(0.9, 0.99), maximize=True)),
    "adadelta": partial(TorchRule, partial(torch.optim.Adadelta, eps=1e-5, maximize=True)),
    "sign": SignRule,
}


class _Learning:
    """Hyperparameters as one vector.

    Parameters
    ----------
    propagation : Propagation
    trained : list of str
        Which of `PARTS`.
    bounds : Tensor of shape (k, 2)
        Of theta.
    scale : Tensor of shape (d,)
        Unit of the inducing points, for each feature.
    prior : SignalPrior, optional
        Of theta.
    """

    is_exact = False  # see `CoordinateInference`

    def __init__(self, propagation, trained, bounds, scale, prior=None):
        self.propagation, self.trained, self.prior = propagation, trained, prior
        self.packing = FlatParameters(trained, {"Z": scale}, {"theta": bounds})

    def _log_prior(self, state):
        return 0.0 if self.prior is None else self.prior.log_density(state["theta"]).item()

    def _slope(self, state, visit):
        slopes = dict(zip(PARTS, self.propagation.gradient(state, visit), strict=True))
        return self._packed(slopes, state)

    def _packed(self, slopes, state):
        """Slopes by name as one vector, that of the prior added."""
        if self.prior is not None and "theta" in slopes:
            slopes["theta"] = slopes["theta"] + self.prior.gradient(state["theta"])
        return self.packing.gradient(slopes)


class InterleavedEP(_Learning):
    """One damped update of all sites, one step of the hyperparameters, and so on.

    Those steps end when five iterations changed the evidence by less than 0.0002 nats a row, but
    for the sign rule, or 70 % of ``max_iter`` is spent; updates go on, more boldly, until they
    hardly move the means. Where five of these did not bring the change down, they are damped by
    half. A step of the hyperparameters after which the posterior has no precision is undone, and
    all later ones are halved.
    The first update is undamped where nothing is learned: it may be the only one of a stream.

    Parameters
    ----------
    rule : SignRule or TorchRule
    max_iter : int
    tol : float
    *problem : object
        As of `_Learning`.
    """

    def __init__(self, rule, max_iter, tol, *problem):
        super().__init__(*problem)
        self.rule, self.max_iter, self.tol = rule, max_iter, tol

    def initial(self, start):
        """The state from which `step` starts: no sites yet."""
        return {
            **start,
            **self.propagation.start(start["theta"], start["Z"]),
            "memory": {},
            "values": [],
            "changes": [],
            "n_updates": 0,
            "learning": bool(self.trained),
            "caution": 1.0,
            "damping": _DAMPING,
        }

    def at(self, state):
        """What `EPClassifier` finds its attributes by."""
        return self.propagation

    def step(self, state):
        """One update; returns the evidence before it."""
        visit = self.propagation.visit(state)
        value = self.propagation.evidence(state, visit) + self._log_prior(state)
        before = dict(state)
        damping = state["damping"] if state["n_updates"] else 1.0
        if state["learning"]:
            damping = _LEARNING_DAMPING
            self._learn(state, self._slope(state, visit), self._share(state["n_updates"]))
        self.propagation.update(state, visit, damping)
        try:
            self.propagation.refresh(state)
        except NotPositiveDefiniteError:
            if not before["learning"]:
                raise
            state |= before | {"caution": before["caution"] / 2}
        self._end(state, before["mean"], value)
        return value

    def _learn(self, state, slope, share):
        step, state["memory"] = self.rule.step(state["memory"], slope, share)
        limits = self.packing.limits(state).unbind(-1)
        point = (self.packing.vector(state) + state["caution"] * step).clamp(*limits)
        state |= self.packing.parts(point, state)

    def _share(self, n_updates):
        """How much of the learning is behind."""
        return min(1.0, n_updates / (_LEARNING_SHARE * self.max_iter))

    def _end(self, state, before, value):
        state["change"] = relative_change(state["mean"], before)
        state["n_updates"] += 1
        self._settle(state, value)

    def _settle(self, state, value):
        if state["learning"]:
            values = [*state["values"], value]
            state["values"] = values[-_PATIENCE:]
            least = _LEAST_GAIN * self.propagation.rows.total_weight
            still = len(values) > _PATIENCE and abs(values[-1] - values[0]) < least
            spent = self._share(state["n_updates"]) == 1
            state["learning"] = not (spent or (still and self.rule.settles))
            return
        changes = [*state["changes"], state["change"]]
        if len(changes) > _PATIENCE and min(changes[1:]) >= changes[0]:
            state["damping"] = max(state["damping"] / 2, _LEAST_DAMPING)
            changes = []
        state["changes"] = changes[-_PATIENCE:]

    def converged(self, state):
        """Whether an update hardly moved the means, and the hyperparameters rest."""
        return not state["learning"] and state["change"] < self.tol


class MinibatchLearning(InterleavedEP):
    """Epochs of minibatches: sites of a batch, the posterior, one step, the next batch.

    Sites stay, in whitened coordinates, on the features that they were put on, which are those of
    the start of the epoch; its end puts all on the current ones. Once learning has ended, all
    sites are updated at once.

    Parameters
    ----------
    batch_size : int
    generator : torch.Generator
    *learning : object
        As of `InterleavedEP`.

    Notes
    -----
    Source: the paper's minibatches, in whitened coordinates, with a refresh in each epoch.
    """

    def __init__(self, batch_size, generator, *learning):
        super().__init__(*learning)
        self.batch_size, self.generator = batch_size, generator

    def initial(self, start):
        """The state from which `step` starts: no sites yet."""
        return super().initial(start) | {"generator": self.generator.get_state()}

    def step(self, state):
        """One epoch, or one update of all sites; returns the evidence or its estimate."""
        if state["n_updates"] and not state["learning"]:
            return super().step(state)
        self.generator.set_state(state["generator"])
        before, old = state["mean"], self.propagation.new_basis(state)
        basis, log_sites = old, 0.0
        state |= {name: state[name].clone() for name in ("precision", "shift")}
        batches = minibatches(len(self.propagation.rows), self.batch_size, self.generator)
        for i, index in enumerate(batches):
            index = index.to(before.device)
            found = self.propagation.minibatch(state, index, old, basis, _MINIBATCH_DAMPING)
            log_sites += found[0]
            if state["learning"]:
                share = self._share(state["n_updates"] + i / len(batches))
                self._learn(state, self._stochastic_slope(state, found[1]), share)
                basis = self.propagation.new_basis(state)
        value = log_sites + self.propagation.size(state) + self._log_prior(state)
        self.propagation.refresh(state)
        state["generator"] = self.generator.get_state()
        self._end(state, before, value)
        return value

    @torch.enable_grad()
    def _stochastic_slope(self, state, surrogate):
        leaves = {name: state[name].detach().requires_grad_() for name in self.trained}
        value = surrogate(self.propagation.new_basis({**state, **leaves}))
        value = value + sum(0.0 * leaf.sum() for leaf in leaves.values())
        slopes = torch.autograd.grad(value, leaves.values())
        return self._packed(dict(zip(self.trained, slopes, strict=True)), state)


class ConvergedEP(_Learning):
    """Rounds of L-BFGS-B on the evidence of converged sites, which start where they last were.

    Parameters
    ----------
    tol : float
        Of a round's gain, nats a row.
    *problem : object
        As of `_Learning`.

    Notes
    -----
    Source: generalized FITC, Naish-Guzman and Holden (2007). Its fixed points and evidence are
    those of `InterleavedEP`.
    """

    def __init__(self, tol, *problem):
        super().__init__(*problem)
        self.tol = tol

    def initial(self, start):
        """The state from which `step` starts."""
        state = {**start, **self.propagation.start(start["theta"], start["Z"])}
        return state | {"value": -math.inf, "gain": math.inf}

    def step(self, state):
        """One round; returns the evidence."""

        def value_and_gradient(point):
            # A copy: an evaluation that fails leaves the sites of the last one that did not.
            tried = state | self.packing.parts(point, state)
            visit = run_ep_to_convergence(self.propagation, tried)
            value = self.propagation.evidence(tried, visit) + self._log_prior(tried)
            if math.isfinite(value):
                state.update(tried)
            return value, self._slope(tried, visit)

        start, limits = self.packing.vector(state), self.packing.limits(state)
        best, value = lbfgs(value_and_gradient, start, limits, _ROUND)
        state |= self.packing.parts(best, state)
        run_ep_to_convergence(self.propagation, state)
        state["gain"] = (value - state["value"]) / self.propagation.rows.total_weight
        state["value"] = value
        return value

    def converged(self, state):
        """Whether the last round hardly gained."""
        return state["gain"] < self.tol


def run_ep_to_convergence(propagation, state):
    """Update the sites of a state until they rest; returns their visit.

    Where moves hardly shrink, later updates are damped more if the moves turn back, less if they
    go on in the same direction.
    """
    propagation.refresh(state)
    damping, before = _DAMPING, state["precision"].new_zeros(2 * len(state["precision"]))
    least = _SITE_TOL[propagation.rows.dtype]
    for _ in range(_MOST_UPDATES):
        visit = propagation.visit(state)
        moves = visit.precision - state["precision"], visit.shift - state["shift"]
        moves = torch.cat(moves)
        n_large, along, size = propagation.rows.sum(
            (moves.abs() >= least).sum().double(), moves @ before, before @ before
        )
        if not n_large:
            return visit
        if along.abs() > _SLOW * size:
            damping *= _MORE_DAMPED if along < 0 else _LESS_DAMPED
            damping = min(max(damping, _LEAST_DAMPING), 1.0)
        before = moves
        propagation.update(state, visit, damping)
        propagation.refresh(state)
    warn(
        f"Sites did not come to rest in {_MOST_UPDATES} updates; the evidence is that of the last.",
        ConvergenceWarning,
    )
    return propagation.visit(state)
