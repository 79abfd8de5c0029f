"""Ways to the posterior: coordinate ascent or natural gradients, with Adam between; Adam alone."""

import math
from itertools import islice

import torch

from .._linalg import gaussian_kl, relative_change, upper_root
from .._optim import NOISE_BOUNDS, minibatches
from .._posteriors import WhitenedBasis
from .._sites import batch_loss
from .coordinate_ascent import CoordinateAscent

_SWEEPS_BETWEEN = 3
_STEPS_BETWEEN = 10
_BATCHES_BETWEEN = 10
_PATIENCE = 5  # passes
_LEAST_GAIN = 2e-3  # nats a row
_ROUGHNESS = 1e-2  # of the mean of a pass of minibatches, nats a row
_STEP_ROWS = 1024
_EPOCH_ROWS = 256
_LEARNING_SHARE = 0.7


class AdamSteps:
    """Adam on the objective of minibatches, over some of theta, noise, Z, mean and raw root.

    The state is a dict: the tensors by name, ``adam`` (the optimizer's state, or None) and
    ``generator`` (the state of the random generator).

    Parameters
    ----------
    likelihood : SiteLikelihood
    kernel : TorchKernel
    rows : Rows
    trained : tuple of str
        Names of the tensors to train.
    learning_rate : float
    bounds : Tensor of shape (k, 2)
        Of theta.
    scale : Tensor of shape (d,)
        Unit of the steps on the inducing points, for each feature.
    prior : LengthPrior, optional
        Of theta.
    noise_bounds : tuple of two floats
        Of the noise.
    """

    def __init__(
        self,
        likelihood,
        kernel,
        rows,
        trained,
        learning_rate,
        bounds,
        scale,
        prior=None,
        noise_bounds=NOISE_BOUNDS,
    ):
        self.likelihood, self.kernel, self.rows, self.prior = likelihood, kernel, rows, prior
        self.trained, self.learning_rate = trained, learning_rate
        self.bounds = {"theta": bounds.unbind(-1), "noise": noise_bounds}
        self.units = {"Z": scale}

    @torch.enable_grad()
    def run(self, state, batches):
        """One step for each minibatch; returns the mean of the objective's estimates."""
        units = {name: self.units.get(name, 1.0) for name in self.trained}
        leaves = {name: (state[name] / unit).requires_grad_() for name, unit in units.items()}
        optimizer = torch.optim.Adam(leaves.values(), lr=self.learning_rate)
        if state["adam"]:
            optimizer.load_state_dict(state["adam"])
        total = 0.0
        for index in batches:
            optimizer.zero_grad()
            tensors = {name: leaf * units[name] for name, leaf in leaves.items()}
            objective = self._objective({**state, **tensors}, index)
            (-objective / self.rows.total_weight).backward()
            optimizer.step()
            with torch.no_grad():
                for name in self.bounds.keys() & leaves.keys():
                    leaves[name].clamp_(*self.bounds[name])
            total += objective.item()
        state.update({name: leaf.detach() * units[name] for name, leaf in leaves.items()})
        state["adam"] = optimizer.state_dict()
        return total / len(batches)

    def _objective(self, tensors, index):
        X, y, weights = self.rows.take(index)
        A, residual = WhitenedBasis(self.kernel, tensors["theta"], tensors["Z"])(X)
        mean = tensors["mean"]
        root = upper_root(tensors["raw_root"]) if "raw_root" in self.trained else tensors["root"]
        likelihood = self.likelihood.at(tensors["noise"])
        loss = batch_loss(likelihood, A, residual, y, mean, root)
        kl = gaussian_kl(mean, root).sum()
        of_prior = self.log_prior(tensors["theta"])
        return of_prior - len(self.rows) / len(y) * (weights * loss).sum() - kl

    def log_prior(self, theta):
        """Log density of the prior of theta, up to a constant; zero without one."""
        return theta.new_zeros(()) if self.prior is None else self.prior.log_density(theta)


class _Inference:
    """A way to the posterior; the state of a fit is a dict that `step` changes.

    Parameters
    ----------
    ascent : CoordinateAscent
    adam : AdamSteps
    max_iter : int
    tol : float
    batch_size : int or None
    generator : torch.Generator
    """

    is_exact = False

    def __init__(self, ascent, adam, max_iter, tol, batch_size, generator):
        self.ascent, self.adam = ascent, adam
        self.max_iter, self.tol = max_iter, tol
        self.batch_size, self.generator = batch_size, generator

    def at(self, state):
        """The coordinate ascent, at the likelihood and the basis of a state."""
        self.ascent.likelihood = self.adam.likelihood.at(state["noise"])
        basis = self.ascent.basis
        if not (torch.equal(basis.theta, state["theta"]) and torch.equal(basis.Z, state["Z"])):
            self.ascent.basis = WhitenedBasis(self.adam.kernel, state["theta"], state["Z"])
        return self.ascent

    def _minibatches(self, batch_size):
        return minibatches(len(self.ascent.rows), batch_size, self.generator)

    def converged(self, state):
        """Whether an iteration hardly moved the means."""
        return state["change"] < self.tol


class CoordinateInference(_Inference):
    """Sweeps of coordinate ascent; every few of them, Adam steps on theta and Z with q held.

    Those steps hold the whitened posterior, so that the objective's divergence does not resist a
    change of the kernel. They end when 70 % of ``max_iter`` is spent. Sweeps over all rows start
    anew after them, since what they remember is of another objective.
    """

    sweep = staticmethod(CoordinateAscent.ascend)

    @property
    def is_exact(self):
        """Whether one sweep finds the posterior, whatever it starts from."""
        whole = self.batch_size is None and not self.adam.trained
        return whole and self.ascent.likelihood.conjugate

    def initial(self, start):
        """The state from which `step` starts: at the prior, or at the moments of a start.

        Those count as a pass of minibatches, whose first then leaves most of them.
        """
        ascent = self.ascent.initial(start.get("mean"), start.get("root"))
        if self.batch_size:
            ascent["n_steps"] *= math.ceil(len(self.ascent.rows) / self.batch_size)
        return {
            **start,
            **ascent,
            "adam": None,
            "generator": self.generator.get_state(),
            "n_sweeps": 0,
        }

    def _learning(self, state):
        return bool(self.adam.trained) and state["n_sweeps"] < _LEARNING_SHARE * self.max_iter

    def step(self, state):
        """One pass over the rows; returns the objective, or the mean of its estimates."""
        before, values, subsets = state["mean"], [], self._subsets()
        self.generator.set_state(state["generator"])
        for group in self._groups():
            if self._learning(state) and self._due(state):
                self.adam.run(state, list(islice(subsets, _STEPS_BETWEEN)))
                if group is None:
                    self.ascent.forget(state)
                    state["n_steps"] = 1
            ascent = self.at(state)
            if group is None:
                values.append(self.sweep(ascent, state))
            else:
                values.append(ascent.stochastic_sweep(state, group))
        if self.batch_size is not None:
            state["change"] = relative_change(state["mean"], before)
        state["n_sweeps"] += 1
        state["generator"] = self.generator.get_state()
        return sum(values) / len(values) + self._log_prior(state)

    def _log_prior(self, state):
        return self.adam.log_prior(state["theta"]).item()

    def _groups(self):
        """Minibatches of a pass, in groups with no other steps between; None is all rows."""
        return [None if self.batch_size is None else self._minibatches(self.batch_size)]

    def _subsets(self):
        """Endless minibatches for Adam, shuffled anew when all rows have been in one."""
        while True:
            yield from self._minibatches(_STEP_ROWS)

    def _due(self, state):
        """Whether Adam steps go before the next group."""
        return state["n_sweeps"] % _SWEEPS_BETWEEN == _SWEEPS_BETWEEN - 1

    def converged(self, state):
        """Whether a sweep hardly moved the means, and no more steps are to come."""
        return not self._learning(state) and super().converged(state)


class NaturalGradientInference(CoordinateInference):
    """Passes of natural-gradient steps, with Adam steps on the rest before every few of them.

    Those end for good when five passes changed the objective by less than 0.002 nats a row, or 70 %
    of ``max_iter`` is spent. They are taken back where the objective fell (by more than 0.01 nats a
    row, where it is the mean of minibatches' estimates), and the learning rate is halved.

    Source: Hensman et al. (2013); Salimbeni et al. (2018) for the alternation.
    """

    sweep = staticmethod(CoordinateAscent.uphill_sweep)

    def step(self, state):
        """One pass; returns the objective, or the mean of its estimates."""
        values, slack = state["values"], 0.0
        if self.batch_size is not None:
            slack = _ROUGHNESS * self.ascent.rows.total_weight
            if state["n_steps"] and not values:
                values = [self.at(state).objective(state) + self._log_prior(state)]
        before = dict(state)
        values = [*values, super().step(state)]
        if state["adam"] and self._learning(before) and values[-1] < max(values) - slack:
            for group in state["adam"]["param_groups"]:
                group["lr"] /= 2
            kept = {name: state[name] for name in ("adam", "n_sweeps", "n_steps", "generator")}
            state |= before | kept
            values[-1] = values[-2]
        state["values"] = values[-_PATIENCE:]
        least = _LEAST_GAIN * self.ascent.rows.total_weight
        if len(values) > _PATIENCE and abs(values[-1] - values[0]) < least:
            state["settled"] = True
        return values[-1]

    def _groups(self):
        (group,) = super()._groups()
        if group is None:
            return [group]
        starts = range(0, len(group), _BATCHES_BETWEEN)
        return [group[i : i + _BATCHES_BETWEEN] for i in starts]

    def _due(self, state):
        return bool(state["values"]) or state["n_steps"] > 1

    def initial(self, start):
        """The state from which `step` starts: at the prior, or at the moments of a start."""
        return {**super().initial(start), "values": [], "settled": False}

    def _learning(self, state):
        return super()._learning(state) and not state["settled"]


class GradientInference(_Inference):
    """Adam on everything, an epoch a step. Source: Wistuba and Rawat (2018), section 3.2."""

    def initial(self, start):
        """The state from which `step` starts; small random means break the tie of the classes."""
        shape = self.ascent.likelihood.n_latents, self.ascent.basis.size
        device = start["Z"].device
        mean, root = start.get("mean"), start.get("root")
        if mean is None:
            mean = 0.01 * torch.randn(*shape, generator=self.generator, dtype=torch.float64)
            root = torch.eye(shape[1], dtype=torch.float64).expand(shape[0], -1, -1)
        root = root.to(device)
        log_diagonal = root.diagonal(dim1=1, dim2=2).log()
        return {
            **start,
            "mean": mean.to(device),
            "root": root,
            "raw_root": root.diagonal_scatter(log_diagonal, dim1=1, dim2=2),
            "adam": None,
            "generator": self.generator.get_state(),
            "change": float("inf"),
        }

    def step(self, state):
        """One epoch; returns the mean of the objective's estimates."""
        before = state["mean"]
        self.generator.set_state(state["generator"])
        objective = self.adam.run(state, self._minibatches(self.batch_size or _EPOCH_ROWS))
        state["generator"] = self.generator.get_state()
        state["root"] = upper_root(state["raw_root"])
        state["change"] = relative_change(state["mean"], before)
        return objective
