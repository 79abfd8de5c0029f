"""GPs whose posterior mean solves a linear system: learning, solution and calibration."""

import math
from dataclasses import replace
from functools import partial

import torch

from ._collapsed import JITTER
from ._fitted_models import DecoupledModel, SparseModel
from ._hyperparameters.collapsed_search import CollapsedSearch, learned_jitter
from ._hyperparameters.elbo_search import learn_on_elbo
from ._hyperparameters.exact_evidence import EVIDENCE_ROWS, refine_on_evidence
from ._hyperparameters.held_out import (
    LOCAL_POWER_PRIOR,
    MIN_CALIBRATED,
    NOISE_PRIOR,
    HeldOutRows,
    training_shares,
)
from ._hyperparameters.initialization import shrink_length_scales
from ._inference.decoupled import DecoupledInference
from ._inference.exact import ExactInference
from ._inference.leave_one_out import leave_one_out
from ._inference.natural_gradient import NaturalGradientInference
from ._local_variances import LocalVariances
from ._memory import CHUNK_ROWS
from ._predictive import Summary
from ._problem import Fitted
from .exceptions import NumericalWarning, warn

_LEARNING_ROWS, _LEARNING_PASSES = 10_000, 30
_CALIBRATIONS = 3  # of the noise, on which local variances depend
_MAX_LOST = 0.01  # of the ELBO, relative or in nats per row, to rounding


def learn_classifier(sparse, batch_size=None, learning_rate=None):
    """Learn a classifier as a sparse GP on fewer rows.

    L-BFGS-B maximizes the ELBO of converged sites. If options of steps are given, Adam alternates
    with natural gradients. The first result is the model with the posterior of those rows; the
    second has predictions of them without them, as `leave_one_out` returns them. If nothing is
    learned, there is no posterior, and the second is None.
    """
    start = _start_without_posterior(sparse)
    free = sparse.free_parts(start)
    if not free:
        return start, None
    some = sparse.on(sparse.rows.subset(_LEARNING_ROWS, sparse.problem.random_state))
    if batch_size is None and learning_rate is None:
        model, _ = learn_on_elbo(some, start)
    else:
        if "theta" in free:
            start, _ = shrink_length_scales(sparse, start)
        options = {"batch_size": batch_size, "learning_rate": learning_rate}
        model = _learned_by_steps(some, start, **options)
    inference = some.inference(model, NaturalGradientInference, [])
    state = inference.init(model.state(some.rows.device))
    if model.mean is None:  # of so few rows that the kernel was chosen instead of learned
        run_stage = some.problem.run_stage
        run_stage("sparse posterior", inference, state, _LEARNING_PASSES, must_converge=False)
    return model, leave_one_out(inference.at(state), state)


def learn_regressor(sparse, **options):
    """Learn a regressor as a sparse GP on fewer rows.

    With Gaussian noise the collapsed ELBO and then the exact evidence are maximized. The results
    are those of `learn_classifier`: a model without a posterior, and no predictions.
    """
    start = _start_without_posterior(sparse)
    gaussian = sparse.noise.likelihood == "gaussian"
    search = CollapsedSearch(sparse, start, learned_jitter(sparse.rows, gaussian))
    if not gaussian:
        start = search.start_of_other_noise() if search.is_needed else search.start
        some = sparse.on(sparse.rows.subset(_LEARNING_ROWS, sparse.problem.random_state))
        return _learned_by_steps(some, start, **options), None
    model = search.learn_on_few(EVIDENCE_ROWS[0]) if search.is_needed else search.start
    return refine_on_evidence(sparse, model), None


def _start_without_posterior(sparse):
    """Return the hyperparameters and inducing points to start from, as a `SparseModel`."""
    start = sparse.problem.start or sparse.initial_model()
    return SparseModel(start.kernel, start.Z, start.noise, template=start.template)


def _learned_by_steps(sparse, start, **options):
    parts = sparse.free_parts(start)
    if not parts:
        return start
    inference = sparse.inference(start, NaturalGradientInference, parts, **options)
    state = inference.init(start.state(sparse.rows.device))
    run_stage = sparse.problem.run_stage
    run_stage("hyperparameters", inference, state, _LEARNING_PASSES, must_converge=False)
    return start.at(state)


def with_elbo(model, solve, state, left_out=None):
    """Return a solved model as it is, and its `Summary`.

    ``left_out`` has predictions of rows without them, see `learn_classifier`.
    """
    return model, Summary(solve.evaluate(state)[0], left_out)


def fit_by_conjugate_gradients(
    sparse, model, index, finish=with_elbo, *, row_shares=None, local=False
):
    """Solve for the posterior by conjugate gradients.

    If the model has a posterior, the first sites of likelihoods other than Gaussian are there.
    ``index`` (k,) are the rows that stand for all in the preconditioner. ``finish`` takes the
    solved model, the inference and its state; it returns the fitted model and its `Summary`. See
    `DecoupledInference` for ``row_shares`` (n, s). If ``local``, the bases of the mean are rows,
    from which the model gets `LocalVariances`.
    """
    rows = sparse.rows
    model = replace(model, jitter=JITTER[rows.dtype])
    likelihood, basis, bases = parts_on_device(model, sparse.likelihood, rows)
    all_rows = likelihood.conjugate and not bases.independent and len(index) == rows.n_rows
    inference_class = ExactInference if all_rows else DecoupledInference
    solve = inference_class(likelihood, basis, bases, rows, index, sparse.tol, row_shares)
    parts = model.state(rows.device)
    state = solve.init(parts)

    def evaluate(state):
        c = likelihood.n_latents
        found = {
            "mean": torch.zeros(c, basis.size, dtype=torch.float64),
            "root": state.root,
            "coef": state.coef[:c],
            "gram": solve.index_precisions(state),
        }
        if local and basis.projected is not None:
            found |= _local_sites(solve, state)
        fitted, summary = finish(model.at(parts | found), solve, state)
        return [fitted], [summary]

    curve = sparse.problem.run_stage("posterior", solve, state, sparse.max_iter, evaluate)
    solve.finish(state)
    (fitted,), (summary,) = evaluate(state)
    elbo = summary.elbo
    lost = abs(elbo - curve[-1]) - _MAX_LOST * (rows.total_weight + abs(elbo))
    if solve.conjugate and isinstance(fitted, DecoupledModel) and not lost < 0:
        warn(
            f"The ELBO of the solution is {elbo:.6g}, but conjugate gradients arrived at "
            f"{curve[-1]:.6g}: products lose too many digits for these data. "
            "Use dtype='float64', or a larger noise_variance with optimizer=None.",
            NumericalWarning,
        )
    return Fitted(fitted, curve, summary)


def parts_on_device(model, likelihood, rows):
    """Return the likelihood, the features of the covariance and the bases of the mean."""
    likelihood = likelihood.at(model.state(rows.device)["noise"])
    return likelihood, model.basis(rows.device), model.mean_bases(rows.device)


def is_calibrated(estimator, rows):
    """Return whether a regressor's noise and variances are calibrated on held-out rows."""
    gaussian = estimator.likelihood == "gaussian"
    return gaussian and estimator.optimizer is not None and rows.n_rows >= MIN_CALIBRATED


def calibrated_fit(sparse, model, index, *, local=False):
    """Solve by conjugate gradients, and calibrate the model on held-out rows.

    Parameters are as of `fit_by_conjugate_gradients`.
    """
    row_shares = training_shares(sparse.rows, sparse.problem.random_state)
    finish = partial(_calibrated, limits=sparse.noise.limits((-math.inf, math.inf)))
    options = {"row_shares": row_shares, "local": local}
    return fit_by_conjugate_gradients(sparse, model, index, finish, **options)


def _calibrated(model, solve, state, limits):
    """Return a solved model with noise and power fitted to held-out rows, and its `Summary`.

    Local variances depend on the noise, and are computed anew for each of a few fits.
    """
    rows = solve.rows
    elbo, means, variances = solve.evaluate(state)
    out = (solve.row_shares[:, -1] < 1).nonzero()[:, 0]
    held_out = _held_out_rows(solve, out, means, variances)
    if model.local_root is None:
        found = held_out.most_likely(model, limits, NOISE_PRIOR)
        return found, Summary(elbo, held_out.residuals(found))
    log_noise, more_noise = model.state(rows.device)["noise"], 0.0
    for _ in range(_CALIBRATIONS):
        sites = _local_sites(solve, state, 1, more_noise)
        local = LocalVariances(solve.basis, solve.bases.points, **sites)
        (variances,) = rows.collect(_at_rows(local, rows, out))
        held_out = replace(held_out, variances=variances)
        found = held_out.most_likely(model, limits, NOISE_PRIOR, LOCAL_POWER_PRIOR)
        more_noise = found.state(rows.device)["noise"].exp() - log_noise.exp()
    sites = _local_sites(solve, state, 0, more_noise)
    sites = {name: part.cpu().numpy() for name, part in sites.items()}
    return replace(found, **sites), Summary(elbo, held_out.residuals(found))


def regression_attributes(estimator, models, summaries, streamed):
    """Return the fitted attributes of the noise and the variances of a regression, a dict."""
    return {
        "noise_variance_": estimator._noise_variance(models[0].state("cpu")["noise"]),
        "variance_power_": models[0].power,
        "_left_out": estimator._left_out if streamed else summaries[0].left_out,
    }


def _local_sites(solve, state, group=0, more_noise=0.0):
    """Return the sites that `LocalVariances` needs, by field of a `DecoupledModel`.

    Parameters are as of `DecoupledInference.row_precisions`.
    """
    return {
        "local_root": solve.local_root(state, group, more_noise),
        "row_precisions": solve.row_precisions(state, group, more_noise),
    }


def _at_rows(function, rows, index):
    """Return the values of a function of inputs (b, d) at a rank's rows at an index."""
    return torch.cat([function(rows.take(at)[0].double()) for at in index.split(CHUNK_ROWS)])


def _held_out_rows(solve, out, means, variances):
    """Return the `HeldOutRows` of all ranks.

    ``out`` is the index of this rank's held-out rows. Latent means (n, 2 t) and variances (n, t)
    are those of all its rows; the means of the solution without held-out rows come last.
    """
    rows = solve.rows
    targets = rows.targets[out].double()
    weights = rows.weights[out].double() * (1 - solve.row_shares[out, -1])
    prior = _at_rows(solve.basis.projected_variance, rows, out)[:, None]
    moments = means[out, variances.shape[1] :], variances[out]
    return HeldOutRows(solve.likelihood, *rows.collect(targets, weights, *moments, prior))
