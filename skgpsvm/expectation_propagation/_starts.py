"""Starts of expectation propagation: the better of two kernels, and fewer inducing points."""

from dataclasses import replace

from .._torch_kernels import theta_bounds, torch_kernel
from ._converged import EvidenceLearning
from ._inference import EPProblem
from ._propagation import Propagation

_LEARNING_POINTS = 100
_START_ROWS = 1000  # on which initial hyperparameters are compared
_EXPLAINED = 0.1  # nats per row, with which the first start is taken without comparison


def ep_problem(sparse, model, free):
    """Return the `EPProblem` that all ways of learning share."""
    rows = sparse.rows
    return EPProblem(
        Propagation(torch_kernel(model.kernel), rows, model.jitter),
        free,
        theta_bounds(model.kernel, rows.device),
        sparse.problem.scale,
        sparse.prior(),
    )


def select_start(sparse, start):
    """Return the better of two starts, the given one and the smoothest, on a subsample.

    The given one is taken if it explains the labels. Otherwise, the objectives after ten steps are
    compared. Inducing points move too where they are learned: held, a few of them may explain
    nothing but a straight boundary, for which the smoothest kernel is best.
    """
    if sparse.make_prior is None:
        return start
    rows = sparse.rows
    if rows.n_rows > _START_ROWS:
        rows = rows.subset(_START_ROWS, sparse.problem.random_state)
    problem = ep_problem(sparse.on(rows), start, sparse.free_parts(start))
    learning = EvidenceLearning(problem, sparse.tol)
    tensors, states = start.state(rows.device), []
    if learning.explained(tensors) > _EXPLAINED:
        return start
    for theta in (tensors["theta"], problem.prior.smoothest()):
        states.append(learning.init({**tensors, "theta": theta}))
        learning.step(states[-1])
    best = max(states, key=lambda state: state.objective)
    return replace(start.at(best), mean=None, root=None)


def with_fewer_points(sparse, start):
    """Return a start with 100 inducing points at most, for the learning of hyperparameters.

    The hyperparameters hardly depend on their number, but the cost is proportional to its square.
    The points are centers of clusters of the given ones.

    Parameters
    ----------
    sparse : SparseProblem
    start : SparseModel
    """
    if not start.uses_points or len(start.Z) <= _LEARNING_POINTS:
        return start
    Z = sparse.fewer_points(start.Z, _LEARNING_POINTS)
    return replace(start, Z=Z, mean=None, root=None)
