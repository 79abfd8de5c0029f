"""The two ways to fit a decoupled GP: conjugate gradients, and stochastic gradients."""

import sys
from dataclasses import replace

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel

from .._conjugate_gradients import parts_on_device
from .._estimators import FOLLOWED
from .._fitted_models import DecoupledModel
from .._hyperparameters.initialization import median_scales
from .._hyperparameters.periods import with_most_likely_periods
from .._objectives import elbo
from .._parameters import where
from .._predictive import Summary
from .._problem import Fitted
from .._sparse import LEARNING_RATE, MINIBATCH, MORE_FOLLOWED
from .._torch_kernels import theta_bounds
from .._variational import LEARNED, MEANS, check_variational_parameters, elbo_attributes
from ..kernels import MultiscaleRBF
from ..kernels._composite import exact_and_rest
from ..solvers import ConjugateGradients, StochasticGradient
from ._stochastic import DescentState, StochasticBound, StochasticDescent
from ._stream import DecoupledStream

SOLVERS = {"cg": ConjugateGradients(), "sgd": StochasticGradient()}
_CG, _SGD = where(solver=ConjugateGradients), where(solver=StochasticGradient)
USES = {
    "inducing_points": _CG,
    "tol": _CG,
    "solver__batch_size": _SGD | LEARNED,
    "solver__learning_rate": _SGD | LEARNED,
}
DECOUPLED_FOLLOWED = {
    "fit": FOLLOWED | MORE_FOLLOWED | {"n_mean_bases": _CG},
    "partial_fit": FOLLOWED | dict.fromkeys(MORE_FOLLOWED, _SGD),
}
GROWING = dict.fromkeys(("n_inducing", "n_mean_bases"), _SGD)


def by_steps(estimator):
    """Return whether an estimator is fitted by stochastic gradients."""
    return isinstance(estimator._solver(), StochasticGradient)


def check_decoupled_parameters(estimator):
    """Refuse wrong values of the parameters that regressor and classifier share."""
    estimator._check_number("n_mean_bases", 1, integer=True)
    check_variational_parameters(estimator, means=(*MEANS, None))
    if by_steps(estimator) and estimator.mean not in ("zero", None):
        raise ValueError(
            f"Stochastic gradients have no mean function; got mean={estimator.mean!r}. Use "
            "mean='zero', or solver='cg'."
        )


def decoupled_attributes(estimator, models, summaries, streamed):
    """Return the fitted attributes of a decoupled GP, a dict."""
    earlier = estimator.elbo_ if streamed and not by_steps(estimator) else 0.0
    found = elbo_attributes(estimator, models, summaries[0].elbo, earlier)
    return {**found, "mean_bases_": models[0].bases}


def with_rows_as_bases(model, n_bases, problem):
    """Return a model with bases at rows drawn at random, and the indices of these rows."""
    index = problem.rows.drawn(n_bases, problem.random_state)
    return model.with_bases(problem.rows.points(index).cpu().numpy()), index


def update_decoupled(estimator, problem, variance):
    """Update a decoupled GP by new rows, in the way that it was fitted."""
    if by_steps(estimator):
        return fit_by_stochastic_gradients(estimator, problem, variance, streamed=True)
    rows, old = problem.rows, problem.start
    parts = parts_on_device(old, estimator._make_likelihood(), rows)
    stream = DecoupledStream(*parts, rows, estimator.tol, old.state(rows.device))
    state = stream.init()
    curve = problem.run_stage("stream", stream, state, estimator.max_iter)
    return Fitted(old.at(state), curve, Summary(state.objective))


def fit_by_stochastic_gradients(estimator, problem, variance, *, streamed=False):
    """Fit a decoupled GP by stochastic gradients, in one pass if rows are streamed.

    The state of the problem's start, if any, is continued. ``variance`` is that of the default
    kernel.
    """
    rows, device, noise = problem.rows, problem.rows.device, estimator._noise_model
    solver = estimator._solver()
    likelihood = estimator._make_likelihood()
    start = problem.start or _initial_model(estimator, problem, likelihood, variance)
    (kernel,) = start.torch_kernels
    if exact_and_rest(kernel, rows.X.shape[1], sys.maxsize)[0]:
        raise ValueError(
            "Stochastic gradients support no linear and no constant terms of a kernel; got "
            f"{start.kernel!r}. Leave them out, or use solver='cg'."
        )
    learns, moves = estimator.optimizer is not None, estimator.learn_inducing
    learned = {"theta": learns, "noise": learns and noise.is_free, "Z": moves, "bases": moves}
    bound = StochasticBound(kernel, likelihood, solver.parametrization)
    descent = StochasticDescent(
        bound,
        rows,
        {"Z": estimator.n_inducing, "bases": estimator.n_mean_bases},
        solver.batch_size or MINIBATCH,
        LEARNING_RATE if solver.learning_rate is None else solver.learning_rate,
        [name for name, is_free in learned.items() if not is_free],
        {"theta": theta_bounds(start.kernel, device).unbind(-1), "noise": noise.limits()},
        problem.generator,
    )
    if problem.start:
        state = DescentState.from_arrays(start.steps, device)
    else:
        parts = start.state(device)
        state = descent.init(parts["theta"], parts["noise"], start.Z.shape[1], problem.scale)
    state.n_seen = rows.total_weight + (state.n_seen if streamed else 0.0)

    def evaluate(state):
        model = replace(start, gram=None).at(state.parameters | bound.posterior(state.parameters))
        at_noise = likelihood.at(state.parameters["noise"]).likelihood
        # The loss of these rows is scaled to all rows seen.
        value = elbo(model.posterior(device), at_noise, rows, state.n_seen / rows.total_weight)
        return [model], [Summary(value.item())]

    passes = 1 if streamed else estimator.max_iter
    options = {"must_converge": False}
    curve = problem.run_stage("posterior", descent, state, passes, evaluate, **options)
    (model,), (summary,) = evaluate(state)
    return Fitted(replace(model, steps=state.to_arrays()), curve, summary)


def _initial_model(estimator, problem, likelihood, variance):
    """Return a model without bases.

    The length scale is the median distance of some rows, and free periods are the most likely ones.
    """
    scaler = problem.scaler
    kernel, template = estimator._noise_model.split(estimator.kernel)
    d = len(scaler.scale_)
    if kernel is None:
        scales = median_scales(problem.rows, scaler, problem.random_state)
        bounds = np.outer(scales, (1e-3, 1e3))
        kernel = ConstantKernel(variance, (1e-3, 1e5)) * MultiscaleRBF(scales, bounds, n_features=d)
    elif estimator.optimizer is not None:
        kernel = with_most_likely_periods(kernel, problem.rows, problem.random_state)
    parts = kernel.get_params().values()
    wide = any(isinstance(part, MultiscaleRBF) for part in (kernel, *parts))
    noise = tuple(likelihood.parameters().tolist())
    return DecoupledModel(kernel, np.empty((0, 2 * d if wide else d)), noise, template=template)
