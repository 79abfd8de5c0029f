"""Hyperparameters of a classifier, learned on the ELBO of converged sites."""

from .._inference.elbo_learning import ElboLearning
from .._torch_kernels import theta_bounds, torch_kernel
from .initialization import shrink_length_scales

_FIRST_ROWS = 1000  # the first rounds are on so many rows
_FIRST_ROUNDS = 2
_EXPLAINED = 0.1  # nats per row, with which the first start is taken without comparison


def learn_on_elbo(sparse, start):
    """Return the model with the learned parts, and the curve of objectives.

    A cold start learns on few rows first. Its length scales are those that `shrink_length_scales`
    finds. If these explain little, the smoothest kernel of the prior is tried too.

    Parameters
    ----------
    sparse : SparseProblem
    start : SparseModel
        With a posterior where a fit continues.
    """
    free, rows, problem = sparse.free_parts(start), sparse.rows, sparse.problem
    if not free:
        return start, []
    model = start
    if start.mean is None:
        some = rows
        if rows.n_rows > _FIRST_ROWS:
            some = rows.subset(_FIRST_ROWS, problem.random_state)
        if "theta" in free:
            parts = sparse.likelihood, some, problem.random_state
            model = shrink_length_scales(model, *parts)
        learning = _learning(sparse.on(some), model, free)
        state = _first_state(learning, model)
        if some is rows:
            curve = problem.run_stage("hyperparameters", learning, state, sparse.max_iter)
            return model.at(state), curve
        options = {"must_converge": False}
        name = f"hyperparameters, {some.n_rows} rows"
        problem.run_stage(name, learning, state, _FIRST_ROUNDS, **options)
        # The posterior is kept as a start, since it hardly changes with the rows.
        model = model.at(state)
    learning = _learning(sparse, model, free)
    state = learning.init(model.state(rows.device))
    curve = problem.run_stage("hyperparameters", learning, state, sparse.max_iter)
    return model.at(state), curve


def _learning(sparse, model, free):
    """Return the stage that learns the free parts of a model."""
    return ElboLearning(
        sparse.likelihood,
        torch_kernel(model.kernel),
        sparse.rows,
        model.jitter,
        free,
        theta_bounds(model.kernel, sparse.rows.device),
        sparse.problem.scale,
        sparse.tol,
        sparse.prior(),
    )


def _first_state(learning, model):
    """Return the state to learn from: at a model, or where the better of two starts ends.

    The starts, the model and the smoothest kernel of the prior, are compared after one round.
    """
    tensors = model.state(learning.rows.device)
    state = learning.init(tensors)
    if learning.prior is None or learning.explained(state) > _EXPLAINED:
        return state
    states = [state, learning.init({**tensors, "theta": learning.prior.smoothest()})]
    for each in states:
        learning.step(each)
    return max(states, key=lambda each: each.objective)
