"""Hyperparameters: by leave-one-out prediction, or by gradients of the objective."""

import math

import torch

from .._calibration import Calibration
from .._inference.coordinate_ascent import CoordinateAscent
from .._inference.natural_gradient import AdamSteps, CoordinateInference
from .._posteriors import WhitenedBasis
from .._torch_kernels import directions, theta_bounds, torch_kernel
from ..inducing import select_inducing_points

_FEW = (1500, 128)  # rows and inducing points
_MORE = (6000, 256)
_SCORED_ROWS = 1500
# Predictions that leave a row out need the optimum, above all where the prior is wide beside the
# spacing of rows: an error of a row's slope counts times the prior's variance, with the row's own
# sign. Of 60 rows of 5 features of noise, a quarter of these sweeps, ended at ten times the change,
# promised a log loss of .28 where exact leave-one-out has 1.17.
_COLD_SWEEPS = 40
_WARM_SWEEPS = 16
_SOLVE_TOL = 0.002
_FINEST = 0.5
_COARSEST = 2
_LEAST_GAIN = 1e-4
_SHIFT_PRECISION = 4.0
_ROUNDS = 12
_MORE_ROUNDS = 2
_CLIMBS = 42
_RATE = 0.05
_CLIMBING_POINTS = 64
_FEWEST_ROWS = 30  # that can tell entries apart
_JUDGES = 3  # one row of so many


class LeaveOneOutChoice:
    r"""A compass search for hyperparameters by the calibrated leave-one-out log loss.

    Each hyperparameter is a direction, one with several entries (the length scales of an ARD
    kernel) moving as one; steps are factors of e, then of its root, and a log-normal prior of
    standard deviation 1/2 draws each to its start.

    Parameters
    ----------
    kernel : sklearn Kernel
    hinge : BinarySites or ContrastSites
    rows : Rows
        Few enough to fit many times.
    Z : Tensor of shape (m, d)
    """

    def __init__(self, kernel, hinge, rows, Z):
        self.kernel, self.hinge, self.rows, self.Z = torch_kernel(kernel), hinge, rows, Z
        self.start = torch.tensor(kernel.theta, device=Z.device)
        self.bounds = theta_bounds(kernel, Z.device)
        self.directions = directions(kernel).to(Z.device)

    def solve(self, theta, start=None):
        """Leave-one-out log loss at ``theta``, nats in total, and the mean and root it is of.

        Coordinate ascent runs from the prior or, for fewer sweeps, from a mean and root.
        """
        ascent, state = self._ascended(theta, start)
        left_out = ascent.leave_one_out(state, self.rows.spaced(_SCORED_ROWS))
        return Calibration().updated(*left_out).loss, (state["mean"], state["root"])

    def log_losses(self, theta, index):
        """Leave-one-out log losses of some rows, calibrated by them, times their weights, nats."""
        ascent, state = self._ascended(theta)
        mean, var, targets, weights = ascent.leave_one_out(state, index)
        calibration = Calibration().updated(mean, var, targets, weights)
        return weights * calibration.log_losses(mean, var, targets)

    def _ascended(self, theta, start=None):
        ascent = CoordinateAscent(self.hinge, self._basis(theta), self.rows)
        state = ascent.initial(*start) if start else ascent.initial()
        for _ in range(_WARM_SWEEPS if start else _COLD_SWEEPS):
            ascent.ascend(state)
            if state["change"] < _SOLVE_TOL:
                break
        return ascent, state

    def _basis(self, theta):
        return WhitenedBasis(self.kernel, theta, self.Z)

    def search_state(self, theta):
        """The state from which `search` starts."""
        loss, (mean, root) = self.solve(theta)
        return {
            "start": theta,
            "place": [0] * len(self.directions),
            "reach": _COARSEST,
            "tried": [],
            "theta": theta,
            "loss": loss,
            "mean": mean,
            "root": root,
        }

    def search(self, state):
        """Poll the neighbors of the best place in all directions; returns minus its loss."""
        # Sweeps lower the loss a little, so the best place must have as many as its neighbors.
        state.update(self._at(state, state["place"]))
        state["tried"].append(state["place"])
        moved = False
        for i in range(len(self.directions)):
            for sign in (1, -1):
                place = list(state["place"])
                place[i] += sign * state["reach"]
                if place in state["tried"]:
                    continue
                state["tried"].append(place)
                found = self._at(state, place)
                if found["loss"] < (1 - _LEAST_GAIN) * state["loss"]:
                    state.update(found)
                    moved = True
        if not moved:
            state["reach"] //= 2
        return -state["loss"]

    def _at(self, state, place):
        """Penalized loss and posterior at a place, from the posterior of the best one so far."""
        shift = torch.tensor(place, dtype=torch.float64, device=self.Z.device) * _FINEST
        theta = (state["start"] + shift @ self.directions).clamp(*self.bounds.T)
        loss, (mean, root) = self.solve(theta, (state["mean"], state["root"]))
        loss += 0.5 * _SHIFT_PRECISION * shift.square().sum().item()
        return {"place": place, "theta": theta, "loss": loss, "mean": mean, "root": root}

    def compass_search(self, run, name, theta, *, rounds=_ROUNDS, finest=1):
        """The best theta of a search from ``theta``, with steps of so many roots of e at least."""
        state = self.search_state(theta)
        run.stage(name, state, self.search, rounds, finished=lambda s: s["reach"] < finest)
        return state["theta"]

    def maximize_elbo(self, run, name, theta, scale, seed):
        """Theta after steps of Adam on it and on the inducing points, sweeps between them."""
        trained = "theta", "Z"
        adam = AdamSteps(self.hinge, self.kernel, self.rows, trained, _RATE, self.bounds, scale)
        ascent = CoordinateAscent(self.hinge, self._basis(theta), self.rows)
        generator = torch.Generator().manual_seed(seed)
        inference = CoordinateInference(ascent, adam, math.inf, 0.0, None, generator)
        noise = self.hinge.parameters().to(self.Z.device)
        state = inference.initial({"theta": theta, "Z": self.Z, "noise": noise})
        run.stage(name, state, inference.step, _CLIMBS)
        return state["theta"]


def chosen_theta(run, name, kernel, hinge, rows, Z, scale, random_state):
    """Hyperparameters of a kernel, those with several entries in common or told apart.

    First the entries move as one, by `LeaveOneOutChoice`. Then all climb the objective on two
    thirds of at most 6000 rows, in turns with the posterior and with the inducing points (type-II
    maximum likelihood, without a prior), and move as one again. This is kept where the gain on
    the other third is significant.

    Parameters
    ----------
    run : Run
    name : str
        Begins the names of its stages.
    kernel : sklearn Kernel
    hinge : BinarySites or ContrastSites
    rows : Rows
    Z : ndarray of shape (m, d)
    scale : Tensor of shape (d,)
        Unit of steps on the inducing points, for each feature.
    random_state : RandomState
    """

    def choice(n_rows, n_points):
        points = _some(Z, n_points, random_state)
        some = rows.subset(n_rows, random_state)
        return LeaveOneOutChoice(kernel, hinge, some, torch.tensor(points, device=rows.device))

    few, more = choice(*_FEW), choice(*_MORE)
    theta = few.compass_search(run, f"{name}kernel", few.start)
    n = len(more.rows)
    if few.directions.sum(1).max() > 1 and n >= _FEWEST_ROWS:
        order = random_state.permutation(n)
        validation_rows, train_rows = order[: n // _JUDGES], order[n // _JUDGES :]
        points = torch.tensor(_some(Z, _CLIMBING_POINTS, random_state), device=rows.device)
        climbing = LeaveOneOutChoice(kernel, hinge, more.rows.part(train_rows), points)
        seed = int(random_state.randint(2**31))
        apart = climbing.maximize_elbo(run, f"{name}length scales", theta, scale, seed)
        apart = few.compass_search(run, f"{name}kernel of these", apart)
        validation_rows = torch.tensor(validation_rows)
        gain = more.log_losses(theta, validation_rows) - more.log_losses(apart, validation_rows)
        if is_significant_gain(gain):
            theta = apart
    if rows.n_rows > _FEW[0]:
        theta = more.compass_search(
            run, f"{name}kernel, more rows", theta, rounds=_MORE_ROUNDS, finest=_COARSEST
        )
    return theta


def is_significant_gain(gain):
    """Whether rows gain more than the standard error of their sum."""
    return bool(gain.sum() > gain.std() * math.sqrt(len(gain)))


def _some(Z, n_points, random_state):
    if len(Z) <= n_points:
        return Z
    return select_inducing_points(Z, n_points, random_state=random_state)
