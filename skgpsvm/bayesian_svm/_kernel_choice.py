"""Hyper-parameters: by leave-one-out prediction, or by gradients of the objective."""

import torch

from .._calibration import Calibration
from .._coordinate_ascent import CoordinateAscent, batch_loss
from .._posteriors import WhitenedBasis
from .._torch_kernels import directions, torch_kernel
from .._training import by_autograd, lbfgs

_SCORED_ROWS = 1500
_COLD_SWEEPS = 10
_WARM_SWEEPS = 4
_SOLVE_TOL = 0.02
_FINEST = 0.5
_COARSEST = 2
_LEAST_GAIN = 1e-4
_SHIFT_PRECISION = 4.0
_ROUNDS = 8
_STEPS_A_ROUND = 5
_SWEEPS_A_ROUND = 2


class LeaveOneOutChoice:
    r"""Choose a kernel's hyper-parameters by the calibrated leave-one-out log loss.

    First a compass search: each hyper-parameter is a direction, one with several entries (the
    length scales of an ARD kernel) moving as one; steps are factors of e, then of its root, and a
    log-normal prior of standard deviation 1/2 draws each to its start. Then the entries of those
    are told apart by steps up the objective with the posterior held (type-II maximum likelihood,
    every entry drawn to the common one by the same prior), and this is kept where the
    leave-one-out loss falls by at least half a nat for each entry: what as many useless
    parameters would gain in expectation.

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
        self.bounds = torch.tensor(kernel.bounds, device=Z.device)
        self.directions = directions(kernel).to(Z.device)
        several = self.directions[self.directions.sum(1) > 1]
        self.entries = several.sum(0).nonzero()[:, 0]

    def solve(self, theta, start=None):
        """Leave-one-out log loss at ``theta``, nats in total, and the mean and root it is of.

        Coordinate ascent runs from the prior or, for fewer sweeps, from a mean and root.
        """
        ascent = CoordinateAscent(self.hinge, self._basis(theta), self.rows)
        state = ascent.initial(*start) if start else ascent.initial()
        for _ in range(_WARM_SWEEPS if start else _COLD_SWEEPS):
            ascent.sweep(state)
            if state["change"] < _SOLVE_TOL:
                break
        calibration = Calibration().updated(*ascent.leave_one_out(state, _SCORED_ROWS))
        return calibration.loss, (state["mean"], state["root"])

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
        """Poll the neighbours of the best place in all directions; returns minus its loss."""
        # Sweeps lower the loss a little, so the best place must have as many as its neighbours.
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
        """Penalised loss and posterior at a place, from the posterior of the best one so far."""
        shift = torch.tensor(place, dtype=torch.float64, device=self.Z.device) * _FINEST
        theta = (state["start"] + shift @ self.directions).clamp(*self.bounds.T)
        loss, (mean, root) = self.solve(theta, (state["mean"], state["root"]))
        loss += 0.5 * _SHIFT_PRECISION * shift.square().sum().item()
        return {"place": place, "theta": theta, "loss": loss, "mean": mean, "root": root}

    def tell_apart(self, state):
        """One round: steps on the entries with q held, then sweeps; returns the objective."""
        X, y, weights = self.rows.take(slice(0, len(self.rows)))

        def objective(entries):
            theta = state["theta"].index_copy(0, self.entries, entries)
            A, residual = self._basis(theta)(X)
            loss = batch_loss(self.hinge, A, residual, y, state["mean"], state["root"])
            shift = entries - state["common"][self.entries]
            pull = 0.5 * _SHIFT_PRECISION * shift.square().sum()
            return -(weights * loss).sum() - pull

        best, value = lbfgs(
            by_autograd(objective),
            state["theta"][self.entries],
            self.bounds[self.entries],
            _STEPS_A_ROUND,
        )
        state["theta"] = state["theta"].index_copy(0, self.entries, best)
        ascent = CoordinateAscent(self.hinge, self._basis(state["theta"]), self.rows)
        solved = ascent.initial(state["mean"], state["root"])
        for _ in range(_SWEEPS_A_ROUND):
            ascent.sweep(solved)
        state["mean"], state["root"] = solved["mean"], solved["root"]
        return value

    def choose(self, run, name):
        """The best thetas found, the better first: with the entries told apart, and in common."""
        found = self.search_state(self.start)
        run.stage(f"{name}kernel", found, self.search, 12, finished=lambda s: s["reach"] == 0)
        # No fit gains half a nat for each entry where the whole loss is less.
        if not 0 < len(self.entries) < 2 * found["loss"]:
            return [found["theta"]]
        apart = {part: found[part] for part in ("theta", "mean", "root")}
        apart["common"] = found["theta"]
        run.stage(f"{name}length scales", apart, self.tell_apart, _ROUNDS)
        common, told_apart = (
            self.solve(state["theta"], (state["mean"], state["root"]))[0]
            for state in (found, apart)
        )
        if common - told_apart > 0.5 * len(self.entries):
            return [apart["theta"], found["theta"]]
        return [found["theta"]]

    def refine(self, run, name, thetas):
        """The best of ``thetas`` and their nearest coarse neighbours."""
        states = [self.search_state(theta) for theta in thetas]
        best = min(states, key=lambda state: state["loss"])
        run.stage(
            f"{name}kernel, more rows",
            best,
            self.search,
            2,
            finished=lambda s: s["reach"] < _COARSEST,
        )
        return best["theta"]
