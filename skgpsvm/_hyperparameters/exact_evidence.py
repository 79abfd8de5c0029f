"""Hyperparameters of a sparse GP, refined on the exact evidence of some rows."""

import math
from dataclasses import replace

import numpy as np

from .._collapsed import CollapsedLearning, Hyperparameters
from .._evidence import Evidence, SharedScaling
from .._optim import NOISE_BOUNDS
from .._torch_kernels import directions
from .priors import Penalized

# Cumulative rows: training, validation, more training; and rounds.
EVIDENCE_ROWS, _EVIDENCE_ROUNDS = (2000, 4000, 5000), 5
_MAX_FACTOR, _MAX_STEPS = math.log(20), 8
_LEARNING_TOL = 1e-3  # nats per row


def refine_on_evidence(sparse, model):
    """Refine hyperparameters on the exact evidence of fewer rows.

    Those with the higher density of validation rows are kept, and the noise is refitted there. A
    second comparison decides on a common scaling learned on more rows. Sparse processes learn too
    long length scales for data that their inducing points do not resolve.
    """
    free = {"theta": model.kernel.n_dims > 0, "noise": True}
    parts = [part for part in free if free[part] and part in sparse.learned]
    if not parts:
        return model
    problem, device = sparse.problem, sparse.rows.device
    rows = sparse.rows.with_even_weights()
    units = rows.units()
    order = problem.random_state.permutation(len(units))[: EVIDENCE_ROWS[-1]].copy()
    train, validation, more = np.split(order, EVIDENCE_ROWS[:-1])
    few, compared, every = (
        rows.of_units(units, part).gathered() if len(part) else None
        for part in (train, validation, np.concatenate([train, more]))
    )
    del units  # as many as all rows
    evidence = Evidence(*model.torch_kernels, few)
    free = sparse.free(model, parts, NOISE_BOUNDS)
    objective = evidence if free.prior is None else Penalized(evidence, free.prior)
    learning = CollapsedLearning(objective, free, _LEARNING_TOL)
    tensors = model.state(device)
    before = Hyperparameters(tensors["theta"], tensors["Z"], tensors["noise"])
    state = learning.init(*before)
    problem.run_stage("evidence", learning, state, _EVIDENCE_ROUNDS, must_converge=False)
    after = state.hyperparameters
    if compared is None:
        return model.at(after._asdict())
    compared = compared, free.noise_bounds[1]
    best = _select_by_predictive_density(evidence, before, after, *compared)
    if not len(more) or not model.kernel.n_dims:
        return model.at(best._asdict())
    evidence = Evidence(evidence.kernel, every)
    axes = directions(model.kernel).to(device)
    scaling = SharedScaling(evidence, best.theta, axes, free.theta_bounds)
    within = axes.new_tensor([[-_MAX_FACTOR, _MAX_FACTOR]]).expand(len(axes), 2)
    shared = replace(free, theta_bounds=within, relative_units=None)
    learning = CollapsedLearning(scaling, shared, _LEARNING_TOL, _MAX_STEPS)
    state = learning.init(axes.new_zeros(len(axes)), best.Z, best.noise)
    problem.run_stage("evidence of more rows", learning, state, 1, must_converge=False)
    after = state.hyperparameters._replace(theta=scaling.theta(state.theta))
    best = _select_by_predictive_density(evidence, best, after, *compared)
    return model.at(best._asdict())


def _select_by_predictive_density(evidence, before, after, rows, max_log_noise):
    """Return the hyperparameters with the higher density of other rows, their noise refitted.

    The noise of ``after`` is the lower bound of the refitted noise. Where both are equally good,
    ``after`` is returned.
    """
    scored = []
    for point in (before, after):
        noise, density = evidence.refit_noise(
            point.theta, point.noise, rows, after.noise, max_log_noise
        )
        scored.append((density, point._replace(noise=noise)))
    return scored[0][1] if scored[0][0] > scored[1][0] else scored[1][1]
