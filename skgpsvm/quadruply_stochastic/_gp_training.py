"""The ways to fit a quadruply stochastic GP: conjugate gradients, and stochastic steps."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from .._collapsed import JITTER
from .._conjugate_gradients import calibrated_fit, fit_by_conjugate_gradients, with_elbo
from .._features import FourierFeatures
from .._hyperparameters.held_out import HeldOutRows, held_out_units
from .._objectives import elbo
from .._parameters import ALWAYS, OtherThan, where
from .._predictive import Summary
from .._sparse import MORE_FOLLOWED
from .._torch_kernels import theta_bounds
from .._variational import LEARNED, MEANS, check_variational_parameters, elbo_attributes
from ..solvers import ConjugateGradients, QuadruplyStochastic
from ._factors import chevron
from ._step_runs import STEP_USES, STEPS, STREAM_FOLLOWED, by_steps, run_steps
from ._stochastic import StochasticSteps

SOLVERS = {
    "cg": ConjugateGradients(),
    "sgd": QuadruplyStochastic(),
    "adagrad": QuadruplyStochastic(step="adagrad"),
}
_CG = where(solver=ConjugateGradients)
_HAS_POINTS = _CG | where(covariance="nystroem") | where(optimizer=OtherThan(None))
_MAX_LANDMARKS = 4096
_N_SEEDS = 2**31
_MAX_LOG_NOISE_CHANGE = math.log(1e3)  # along the stochastic steps
_MAX_HELD_OUT = 2000


USES = STEP_USES | {
    "n_dense_columns": where(covariance="chevron"),
    "n_inducing": _HAS_POINTS,
    "inducing_points": _HAS_POINTS,
    "solver__batch_size": STEPS | LEARNED,
    "solver__learning_rate": STEPS | LEARNED,
    "tol": _CG | LEARNED,
}
QS_FOLLOWED = {
    "fit": STREAM_FOLLOWED
    | MORE_FOLLOWED
    | {"solver__learn_hyperparameters": ALWAYS}
    | dict.fromkeys(
        (
            "augment",
            "basis",
            "covariance",
            "learn_inducing",
            "n_basis",
            "n_dense_columns",
            "optimizer",
            "tol",
        ),
        _CG,
    ),
    "partial_fit": STREAM_FOLLOWED,
}


def check_qs_parameters(estimator):
    """Refuse wrong values of the parameters that regressor and classifier share."""
    estimator._check_choice("basis", ("fourier", "orthogonal", "inducing"))
    estimator._check_choice("covariance", ("nystroem", "chevron", "mean_field"))
    estimator._check_bool("augment")
    for name in ("n_basis", "n_dense_columns"):
        estimator._check_number(name, 1, integer=True)
    check_variational_parameters(estimator, means=(*MEANS, None))
    basis, covariance = estimator.basis, estimator.covariance
    learns = by_steps(estimator) and estimator._solver().learn_hyperparameters
    if learns and basis == "inducing" and covariance != "nystroem":
        raise ValueError(
            "learn_hyperparameters=True needs the bound's gradient in the kernel's "
            f"hyperparameters, which basis='inducing' with covariance={covariance!r} hides in the "
            "determinant of a kernel matrix. Use covariance='nystroem' or basis='fourier'."
        )
    if estimator.augment and (basis != "inducing" or covariance == "nystroem"):
        raise ValueError(
            f"augment=True is for basis='inducing' with covariance='mean_field' or 'chevron'; got "
            f"basis={basis!r} and covariance={covariance!r}, whose variance returns to the prior's "
            "without it. Set augment=False."
        )


def qs_attributes(estimator, models, summaries):
    """Return the fitted attributes of a quadruply stochastic GP, a dict."""
    return {**elbo_attributes(estimator, models, summaries[0].elbo), "basis_": models[0].bases}


def fit_qs(estimator, sparse, learn, *, is_calibrated=False):
    """Fit a quadruply stochastic GP.

    ``learn`` is `learn_classifier` or `learn_regressor`. If ``is_calibrated``, noise and variances
    are fitted to held-out rows.
    """
    problem, rows, others = sparse.problem, sparse.rows, None
    in_steps = by_steps(estimator)
    if in_steps and problem.start:
        return take_steps(estimator, problem, problem.start, rows)
    if in_steps and is_calibrated:
        rows, others = rows.divided(*held_out_units(rows, problem.random_state, _MAX_HELD_OUT))
    sparse = sparse.on(rows)
    if not _HAS_POINTS.holds(estimator):
        # The points are not used. To choose them would draw random numbers, on which the basis
        # functions would then depend.
        first = rows.points(torch.zeros(1, dtype=torch.int64, device=rows.device))
        sparse = replace(sparse, inducing_points=first.cpu().numpy())
    options = {} if in_steps else estimator._solver().get_params()
    learned, left_out = learn(sparse, **options)
    model, index = _with_functions(estimator, learned, rows, problem.random_state)
    if in_steps:
        model = replace(model, jitter=JITTER[rows.dtype], mean=None, root=None)
        return take_steps(estimator, problem, model, rows, others=others, left_out=left_out)
    if is_calibrated:
        return calibrated_fit(sparse, model, index)
    finish = partial(with_elbo, left_out=left_out)
    if estimator.covariance != "nystroem":
        finish = partial(_in_weight_space, estimator=estimator, left_out=left_out)
    return fit_by_conjugate_gradients(sparse, model, index, finish)


def _with_functions(estimator, model, rows, random_state):
    """Return a model with basis functions, and the indices of rows that stand for all rows."""
    seed = int(random_state.randint(_N_SEEDS))
    index = random_state.permutation(rows.n_rows)
    if estimator.basis == "inducing":
        index = torch.as_tensor(np.sort(index[: estimator.n_basis]), device=rows.device)
        return model.with_bases(rows.points(index).cpu().numpy()), index
    n_pairs = -(-estimator.n_basis // 2)
    index = index[: min(n_pairs, _MAX_LANDMARKS)].copy()  # the other rows' are not kept
    nystroem = not by_steps(estimator) and estimator.covariance == "nystroem"
    bases = FourierFeatures(n_pairs, seed, estimator.basis == "orthogonal", nystroem)
    return model.with_bases(bases), torch.as_tensor(index, device=rows.device)


def _in_weight_space(model, solve, state, estimator, left_out):
    """Return a solved model with its `WeightPosterior`, and the `Summary`."""
    rows = solve.rows
    precision = rows.weights.double()[:, None] * state.precision
    n_dense = estimator.n_dense_columns if estimator.covariance == "chevron" else 0
    diag, columns = chevron(solve.bases, rows, solve.index, precision, n_dense)
    parts = {"diag": diag, "columns": columns}
    if estimator.augment:
        parts |= _augmentation(rows, precision)
    model = model.with_weights(parts)
    value = elbo(model.posterior(rows.device), solve.likelihood.likelihood, rows)
    return model, Summary(value.item(), left_out)


def _augmentation(rows, precision):
    """Return the rows that augment the variance and their precisions, by field of the model.

    They are those of all ranks.
    """
    X = torch.cat([rows.take(at)[0].double() for at in rows.chunks()])
    X, precision = rows.collect(X, precision)
    return {"rows": X, "row_precisions": precision.T.contiguous()}


def take_steps(estimator, problem, start, rows, *, others=None, left_out=None, streamed=False):
    """Fit by stochastic steps on rows, from a model with basis functions.

    If that is the start of the problem, its steps are continued. ``others`` are held-out rows for
    calibration, and ``left_out`` has predictions of rows without them, see `learn_classifier`. Rows
    that are streamed come in addition to earlier ones, and get one pass.
    """
    given, limits, log_noise_change = start.state(rows.device), None, 0.0
    if not streamed and estimator._solver().learn_hyperparameters:
        limits = _hyperparameter_limits(start, estimator._noise_model, given["noise"])
    if start.steps is not None:
        # Calibration has changed the noise of predictions since the state was stored.
        log_noise_change = given["noise"] - torch.as_tensor(start.steps["noise"]).to(given["noise"])

    def fitted(steps, state):
        parts = steps.posterior(state)
        learned = {"theta": state.theta, "noise": state.noise + log_noise_change}
        if estimator.covariance == "nystroem":
            solved = start.at(learned | parts)
            return solved if others is None else _calibrated_on(estimator, solved, others)
        if estimator.augment:
            parts |= _augmentation(rows, steps.row_precisions(state))
        if estimator.augment and streamed:
            for name, axis in (("rows", 0), ("row_precisions", 1)):
                parts[name] = torch.cat([given[name], parts[name]], axis)
        return start.at(learned).with_weights(parts)

    return run_steps(
        StochasticSteps,
        estimator,
        problem,
        start,
        rows,
        fitted,
        left_out=left_out,
        streamed=streamed,
        limits=limits,
    )


def _hyperparameter_limits(model, noise_model, noise):
    """Return bounds of theta and the noise's logarithms, (k, 2); None if nothing is free."""
    free = torch.stack([noise - _MAX_LOG_NOISE_CHANGE, noise + _MAX_LOG_NOISE_CHANGE], 1)
    free = free.clamp(*noise_model.limits((-math.inf, math.inf)))
    limits = torch.cat([theta_bounds(model.kernel, noise.device), free])
    return limits if len(limits) else None


def _calibrated_on(estimator, model, others):
    """Return a model whose noise and variances are fitted to held-out rows."""
    model = replace(model, power=1.0)
    posterior = model.posterior(others.device)
    X, targets, weights = (part.double() for part in others.gathered().take(slice(None)))
    prior = posterior.basis.projected_variance(X)[:, None]
    parts = targets, weights, *posterior.marginals(X), prior
    held_out = HeldOutRows(estimator._make_likelihood(), *parts)
    return held_out.most_likely(model, estimator._noise_model.limits((-math.inf, math.inf)))
