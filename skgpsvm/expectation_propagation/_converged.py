"""Sites updated until they have converged, and hyperparameters that maximize their evidence."""

import math
from dataclasses import dataclass, replace

import torch
from sklearn.exceptions import ConvergenceWarning

from .._fitting import Stage
from ..exceptions import warn
from ._propagation import EPState

# Of a step, in units of tol, per row of the rows and as many more, since a tenth of a nat tells
# nothing of any number of rows.
_MIN_GAIN, _EXTRA_ROWS = 0.3, 300
_MAX_UPDATES = 200
_SITE_TOL = {torch.float64: 1e-6, torch.float32: 2e-4}


@dataclass(kw_only=True)
class EvidenceState(EPState):
    """State of `EvidenceLearning`; ``ended`` if the last round ended before its last step."""

    ended: bool = False


class EvidenceLearning(Stage):
    r"""Maximize the evidence of converged sites by rounds of L-BFGS-B.

    The sites of each evaluation start from those of the last. The evidence is stationary in the
    sites at a fixed point. Where all natural parameters are within :math:`\epsilon` of it, the
    error of the evidence is of order :math:`\epsilon^2` for each row. Sites thus converge only to
    the root of ``tol``, which takes two or three updates.

    It converges to ``tol``, in nats per row of 300 more rows. The last step is the first that gains
    less than 0.3 times as much.

    Source: generalized FITC, Naish-Guzman and Holden (2007). Its fixed points and evidence are
    those of `SiteUpdates`.
    """

    def __init__(self, problem, tol):
        self.problem, self.propagation, self.tol = problem, problem.propagation, tol
        self.rows = problem.propagation.rows

    def init(self, start):
        """Return the first state; see `Propagation.first_state`."""
        return EvidenceState(**self.propagation.first_state(start).as_dict())

    def sites(self, state):
        """Return precisions and linear terms of the sites, (n, 1) each, weighted."""
        copies = self.rows.weights.double().clamp_min(1)  # each has the site
        return [(copies * part)[:, None] for part in (state.precision, state.shift)]

    def step(self, state):
        """Take one round; the objective is the evidence after it."""

        def value_and_gradients(parts):
            # A copy: after a failure, the state has the sites of the last success.
            tried = replace(state, **parts)
            update = self._converge(tried)
            value = self.problem.objective(tried, update)
            if math.isfinite(value):
                state.restore(tried.as_dict())
            return value, self.problem.gradients(tried, update)

        min_gain = _MIN_GAIN * self.tol * (self.propagation.rows.total_weight + _EXTRA_ROWS)
        state.ended = self.problem.free.maximize(value_and_gradients, state, min_gain)
        self._converge(state)

    def _converge(self, state):
        return run_ep_to_convergence(self.propagation, state, math.sqrt(self.tol))

    def converged(self, state):
        return state.ended


def run_ep_to_convergence(propagation, state, tol=0.0):
    """Update the sites of a state until they have converged; return the last update.

    They have converged when an update would move all natural parameters by less than ``tol``, or by
    the precision of the rows if that is more. A ConvergenceWarning says if 200 updates do not
    suffice.
    """
    state.damping, state.last_move = 1.0, torch.zeros_like(state.last_move)
    tol = max(tol, _SITE_TOL[propagation.rows.dtype])
    propagation.refresh(state)
    for _ in range(_MAX_UPDATES):
        update = propagation.site_update(state)
        moves = (update.precision - state.precision).abs(), (update.shift - state.shift).abs()
        (n_large,) = propagation.rows.sum((torch.maximum(*moves) >= tol).sum().double())
        if not n_large:
            return update
        propagation.step_sites(state, update)
        propagation.refresh(state)
    warn(
        f"The sites did not converge in {_MAX_UPDATES} updates; the evidence is that of the last "
        "update.",
        ConvergenceWarning,
    )
    return propagation.site_update(state)
