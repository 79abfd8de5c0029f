"""Hyperparameters learned on the ELBO of converged sites: of classifiers, and of varying noise."""

from dataclasses import replace

from .._collapsed import are_points
from .._inference.elbo_learning import ElboLearning
from .._sites import LikelihoodSites
from ..likelihoods import Softmax
from .initialization import FIRST_ROWS, LENGTH_FACTORS, shrink_length_scales, with_lengths
from .short_lengths import with_short_lengths

_COMPARED_ROWS = 500  # on which starts are compared where every row is an inducing point
_FIRST_ROUNDS = 2  # on `FIRST_ROWS`
# Fewer rows choose among a few kernels. Their evidence hardly determines a length scale of each
# feature: see ``doc/development/decisions/learning.rst``.
_LEARNING_ROWS = 20


def learn_on_elbo(sparse, start, name="hyperparameters"):
    """Return the model with the learned parts, and the curve of objectives.

    A cold start learns on few rows first. Below 20 rows, theta is chosen, see
    `with_kernel_of_few_rows`. Otherwise its length scales are those that `shrink_length_scales`
    finds. If these explain little, the smoothest kernel of the prior is tried too, or where the
    likelihood is redescending, the model learned with the softmax. Under such a likelihood, rows
    that are misfitted at the start may stay so. At the end of a cold start, short length scales of
    single features are tried, see `with_short_lengths`.
    """
    sparse, start = with_kernel_of_few_rows(sparse, start)
    # Copies of rows would be evidence of a function that follows each of them.
    sparse = sparse.on(sparse.rows.with_even_weights())
    free, run_stage = sparse.free_parts(start), sparse.problem.run_stage
    if not free:
        return start, []
    if start.mean is not None:
        return _learn_from(sparse, start, free)
    some, model, is_clear = sparse.on_few(FIRST_ROWS), start, True
    if "theta" in free:
        model, is_clear = shrink_length_scales(some, start)
    if sparse.likelihood.redescending:
        sites = LikelihoodSites(Softmax(), sparse.likelihood.n_latents)
        softmax, _ = learn_on_elbo(replace(sparse, likelihood=sites), start, "softmax")
        return learn_from_best(sparse, [model, softmax])
    learning, tensors = elbo_learning(some, model, free), model.state(sparse.rows.device)
    if is_clear or learning.free.prior is None:
        state = learning.init(tensors)
    else:
        state = better_start(learning, tensors, learning.free.prior)
    is_all = some is sparse
    stage = name if is_all else f"{name}, {some.rows.n_rows} rows"
    rounds = sparse.max_iter if is_all else _FIRST_ROUNDS

    def run(state, stage=stage):
        return run_stage(stage, learning, state, rounds, must_converge=is_all)

    curve = [state.objective] if is_all and state.ended else run(state)
    if "theta" in free and sparse.problem.start is None:
        found = with_short_lengths(learning, state, model.kernel, sparse.problem, stage)
        if found is not state and is_all:
            curve = [found.objective] if found.ended else run(found, f"{stage}, from these")
        state = found
    if is_all:
        return model.at(state), curve
    # The posterior is kept as a start, since it hardly changes with the rows.
    return _learn_from(sparse, model.at(state), free, name)


def with_kernel_of_few_rows(sparse, start):
    """Return the problem without theta to learn, and a start at a chosen kernel, if rows are few.

    With 20 rows, or without a prior of theta, both are returned as they are. The kernel of a start
    with a posterior stays. Otherwise it is the one of highest ELBO among the prior's smoothest and
    those with the initial length scales or shorter ones.
    """
    prior = sparse.prior()
    if prior is None or sparse.rows.n_rows >= _LEARNING_ROWS:
        return sparse, start
    free = sparse.free_parts(start)
    if "theta" in free and start.mean is None:
        learning, tensors = elbo_learning(sparse, start, free), start.state(sparse.rows.device)
        scaled = [with_lengths(start, factor).kernel.theta for factor in LENGTH_FACTORS]
        thetas = [prior.smoothest(), *map(tensors["theta"].new_tensor, scaled)]
        state = learning.init(tensors)
        start = start.at(replace(state, theta=learning.best_theta(thetas, state)))
    learned = tuple(part for part in sparse.learned if part != "theta")
    return replace(sparse, learned=learned), start


def learn_from_best(sparse, starts):
    """Return the model learned from the best of some starts, and the curve of objectives.

    Starts are compared after one round on at most 1,000 rows.
    """
    free, ends = sparse.free_parts(starts[0]), []
    if not free:
        return starts[0], []
    if len(starts) == 1:
        return _learn_from(sparse, *starts, free)
    some = sparse.on_few(_COMPARED_ROWS if _every_row(sparse, starts[0], free) else FIRST_ROWS)
    for j, model in enumerate(starts):
        learning = elbo_learning(some, model, free)
        state = learning.init(model.state(sparse.rows.device))
        name = f"hyperparameters, {some.rows.n_rows} rows, start {j}"
        sparse.problem.run_stage(name, learning, state, 1, must_converge=False)
        ends.append((state.objective, model.at(state)))
    _, model = max(ends, key=lambda end: end[0])
    return _learn_from(sparse, model, free)


def _learn_from(sparse, model, free, name="hyperparameters"):
    learning = elbo_learning(sparse, model, free)
    state = learning.init(model.state(sparse.rows.device))
    curve = sparse.problem.run_stage(name, learning, state, sparse.max_iter)
    return model.at(state), curve


def elbo_learning(sparse, model, free):
    """Return the stage that learns the free parts of a model."""
    return ElboLearning(
        sparse.likelihood,
        model.torch_kernels,
        sparse.rows,
        model.jitter,
        sparse.free(model, free),
        sparse.tol,
        every_row=_every_row(sparse, model, free),
        dtype=sparse.learning_dtype,
    )


def _every_row(sparse, model, free):
    """Return whether every row is an inducing point that stays; see `ElboLearning`."""
    fixed = model.uses_points and "Z" not in free and not sparse.likelihood.redescending
    return fixed and are_points(sparse.rows, model.Z)


def better_start(learning, tensors, prior):
    """Return the better state after one round: from some tensors, or at the smoothest kernel."""
    states = [learning.init({**tensors, "theta": t}) for t in (tensors["theta"], prior.smoothest())]
    for state in states:
        learning.step(state)
    return max(states, key=lambda state: state.objective)
