"""Hyper-parameters: by leave-one-out prediction, or by gradients of the objective."""

import torch

from .._posteriors import WhitenedBasis
from .._torch_kernels import torch_kernel
from .._training import lbfgs
from ._ascent import CoordinateAscent, batch_sites
from ._probability import best_temperature, calibration_curve

_SOLVE_STEPS = 10
_SOLVE_TOL = 0.02
_FINEST = 0.5
_COARSEST = 2
_LEAST_GAIN = 1e-4
_SHIFT_PRECISION = 4.0
_ROUNDS = 8
_STEPS_A_ROUND = 5


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
        sizes = [h.n_elements for h in kernel.hyperparameters if not h.fixed]
        groups = torch.arange(len(self.start)).split(sizes)
        self.directions = torch.zeros(len(sizes), len(self.start), dtype=torch.float64)
        for direction, group in zip(self.directions, groups, strict=True):
            direction[group] = 1
        self.directions = self.directions.to(Z.device)
        self.entries = torch.cat([g for g in groups if len(g) > 1] or [groups[0][:0]])

    def fit_at(self, theta):
        """Coordinate ascent to convergence at ``theta``; returns it and its state."""
        ascent = CoordinateAscent(self.hinge, self._basis(theta), self.rows)
        state = ascent.initial()
        while state["n_steps"] < _SOLVE_STEPS and state["change"] > _SOLVE_TOL:
            ascent.sweep(state)
        return ascent, state

    def loss(self, theta):
        """Leave-one-out log loss at ``theta``, nats in total over the rows."""
        ascent, state = self.fit_at(theta)
        return best_temperature(calibration_curve(*ascent.leave_one_out(state)))[1]

    def _basis(self, theta):
        return WhitenedBasis(self.kernel, theta, self.Z)

    # Compass search, one poll of all directions an iteration.

    def search_state(self):
        """The state from which `search` starts."""
        return {
            "theta": self.start,
            "place": [0] * len(self.directions),
            "reach": _COARSEST,
            "tried": [],
            "loss": self.loss(self.start),
        }

    def search(self, state):
        """Poll the neighbours of the best place; returns minus its loss."""
        moved = False
        for i in range(len(self.directions)):
            for sign in (1, -1):
                place = list(state["place"])
                place[i] += sign * state["reach"]
                if place in state["tried"]:
                    continue
                state["tried"].append(place)
                shift = torch.tensor(place, dtype=torch.float64, device=self.Z.device) * _FINEST
                theta = (self.start + shift @ self.directions).clamp(*self.bounds.T)
                loss = self.loss(theta) + 0.5 * _SHIFT_PRECISION * shift.square().sum().item()
                if loss < state["loss"] - _LEAST_GAIN * len(self.rows):
                    state["tried"].append(state["place"])
                    state.update(theta=theta, place=place, loss=loss)
                    moved = True
        if not moved:
            state["reach"] //= 2
        return -state["loss"]

    # Entries of vector-valued hyper-parameters.

    def can_pay(self, loss):
        """Whether any fit could gain the half nat that every entry must."""
        return 0 < len(self.entries) < 2 * loss

    def entries_state(self, searched):
        """The state from which `tell_apart` starts."""
        _, state = self.fit_at(searched["theta"])
        return {
            "theta": searched["theta"],
            "common": searched["theta"],
            "mean": state["mean"],
            "root": state["root"],
        }

    def tell_apart(self, state):
        """One round: steps on the entries with q held, then sweeps; returns minus the loss."""
        X, y, weights = self.rows.take(slice(0, len(self.rows)))

        def objective(entries):
            theta = state["theta"].index_copy(0, self.entries, entries)
            A, residual = self._basis(theta)(X)
            sites, _, _ = batch_sites(self.hinge, A, residual, y, state["mean"], state["root"])
            shift = entries - state["common"][self.entries]
            pull = 0.5 * _SHIFT_PRECISION * shift.square().sum()
            return -(weights * sites.loss).sum() - pull

        best, value = lbfgs(
            objective, state["theta"][self.entries], self.bounds[self.entries], _STEPS_A_ROUND
        )
        state["theta"] = state["theta"].index_copy(0, self.entries, best)
        ascent = CoordinateAscent(self.hinge, self._basis(state["theta"]), self.rows)
        solved = ascent.initial(state["mean"], state["root"])
        for _ in range(2):
            ascent.sweep(solved)
        state["mean"], state["root"] = solved["mean"], solved["root"]
        return value

    def choose(self, run, prefix=""):
        """Run both stages of a fit; returns theta, float64."""
        searched = self.search_state()
        run.stage(f"{prefix}kernel", searched, self.search, 12, finished=lambda s: s["reach"] == 0)
        if not self.can_pay(searched["loss"]):
            return searched["theta"]
        told_apart = self.entries_state(searched)
        run.stage(f"{prefix}length scales", told_apart, self.tell_apart, _ROUNDS)
        gain = searched["loss"] - self.loss(told_apart["theta"])
        return (told_apart if gain > 0.5 * len(self.entries) else searched)["theta"]
