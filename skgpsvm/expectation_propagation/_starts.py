"""Starts of expectation propagation: the better of two kernels, and fewer inducing points."""

from dataclasses import replace

from .._hyperparameters.elbo_search import better_start
from .._hyperparameters.initialization import FIRST_ROWS, shrink_length_scales
from .._hyperparameters.short_lengths import with_short_lengths
from ._converged import EvidenceLearning
from ._inference import EPProblem
from ._propagation import Propagation

_LEARNING_POINTS = 100


def ep_problem(sparse, model, free):
    """Return the `EPProblem` that all ways of learning share."""
    propagation = Propagation(*model.torch_kernels, sparse.rows, model.jitter)
    return EPProblem(propagation, sparse.free(model, free))


def select_start(sparse, start):
    """Return the better of two starts, and the state of the learning if it has ended there.

    They have shrunk length scales, or the smoothest kernel.

    The former are taken if they explain the labels. Otherwise, objectives after a round on a
    subsample are compared. Inducing points move too where they are learned: held, a few of them may
    explain nothing but a straight boundary, for which the smoothest kernel is best.
    """
    some = sparse.on_few(FIRST_ROWS)
    start, is_clear = shrink_length_scales(some, start)
    if is_clear or sparse.make_prior is None:
        return start, None
    problem = ep_problem(some, start, sparse.free_parts(start))
    learning = EvidenceLearning(problem, sparse.tol)
    state = better_start(learning, start.state(sparse.rows.device), problem.free.prior)
    has_ended = state.ended and some is sparse
    return replace(start.at(state), mean=None, root=None), state if has_ended else None


def learn_on_evidence(sparse, start, free, kernel, sites, ended):
    """Return the model whose hyperparameters have the highest evidence, its sites, and objectives.

    ``kernel`` is the initial one, ``sites`` are those of an earlier fit, a dict, and ``ended`` is
    the final state if `select_start` has completed the learning, else None. At the end of a cold
    start, short length scales are tried, see `with_short_lengths`.
    """
    learning = EvidenceLearning(ep_problem(sparse, start, free), sparse.tol)
    name = "hyperparameters"

    def run(state, name=name):
        return sparse.problem.run_stage(name, learning, state, sparse.max_iter)

    if ended is None:
        state = learning.init(start.state(sparse.rows.device) | sites)
        curve = run(state)
    else:
        state, curve = ended, [ended.objective]
    if "theta" in free and sparse.problem.start is None:
        found = with_short_lengths(learning, state, kernel, sparse.problem, name)
        if found is not state:
            curve = [found.objective] if found.ended else run(found, f"{name}, from these")
        state = found
    return start.at(state), state.sites(), curve


def with_fewer_points(sparse, start):
    """Return a start with 100 inducing points at most, for the learning of hyperparameters.

    The hyperparameters hardly depend on their number, but the cost is proportional to its square.
    The points are centers of clusters of the given ones.
    """
    if not start.uses_points or len(start.Z) <= _LEARNING_POINTS:
        return start
    Z = sparse.fewer_points(start.Z, _LEARNING_POINTS)
    return replace(start, Z=Z, mean=None, root=None)


def at_points(sparse, start, Z):
    """Return the start of a fit at other inducing points, and the sites that it has at its own.

    The sites, a dict as of `EPState.sites`, are empty where the points are the start's own.
    """
    if Z is start.Z:
        return start, {}
    problem = ep_problem(sparse, start, [])
    sites = problem.propagation.first_state(start.state(sparse.rows.device)).sites()
    return replace(start, Z=Z, mean=None, root=None), sites
