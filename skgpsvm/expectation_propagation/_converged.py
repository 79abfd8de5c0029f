"""Sites updated until they have converged, and hyperparameters that maximize their evidence."""

import math
from dataclasses import dataclass, replace

import torch
from sklearn.exceptions import ConvergenceWarning

from .._fitting import Stage
from .._optim import lbfgs
from ..exceptions import warn
from ._inference import MIN_DAMPING
from ._propagation import EPState

_SLOW, _MORE_DAMPED, _LESS_DAMPED = 0.5, 0.7, 1.2  # share of a move left; factors of the damping
_ROUND = 10  # steps of L-BFGS-B
_LEAST_GAIN = 0.3  # of a step, in units of tol
_MAX_UPDATES = 200
_SITE_TOL = {torch.float64: 1e-6, torch.float32: 2e-4}


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
            damping = min(max(damping, MIN_DAMPING), 1.0)
        last_move = move
        propagation.move_sites(state, update, damping)
        propagation.refresh(state)
    warn(
        f"The sites did not converge in {_MAX_UPDATES} updates; the evidence is that of the last "
        "update.",
        ConvergenceWarning,
    )
    return propagation.site_update(state)
