"""Fits of hybrid networks: the parameters of all, and the way from rows to a fitted model."""

from dataclasses import replace

import numpy as np

from .._calibration import is_significant_gain
from .._distributed import check_equal
from .._estimators import FOLLOWED
from .._parameters import ALWAYS, where
from .._problem import Fitted
from .._torch_kernels import theta_bounds
from .._validation import check_kernel
from ._held_out import latent_moments, split
from ._learning import JointTraining

# With batch_size=None: the number of steps in an epoch, and the limits of the batch size.
_STEPS, _BATCH_SIZES = 10, (16, 128)
# Standard errors of the gain on held-out rows that is clear.
_CLEAR = 2.0
HYBRID_USES = {"n_iter_no_change": where(early_stopping=True)}
# Of estimators whose held-out rows are for early stopping only. Without it, none is held out.
LOSS_USES = HYBRID_USES | {
    "validation_fraction": where(early_stopping=True) | where(validation_fraction=0)
}
HYBRID_FOLLOWED = {
    "fit": FOLLOWED
    | dict.fromkeys(("augmentation", "batch_size", "learning_rate", "n_iter_no_change"), ALWAYS)
}


def check_hybrid_parameters(estimator):
    """Refuse wrong values of the parameters that all hybrid estimators have."""
    for name in ("early_stopping", "warm_start"):
        estimator._check_bool(name)
    for name in ("n_inducing", "max_iter", "n_iter_no_change"):
        estimator._check_number(name, 1, integer=True)
    estimator._check_number("batch_size", 1, integer=True, besides=(None,))
    estimator._check_number("learning_rate", 0, above=True)
    shape, params = estimator.input_shape, estimator.module_params
    if shape is not None and not (
        isinstance(shape, (tuple, list))
        and all(isinstance(size, (int, np.integer)) and size > 0 for size in shape)
    ):
        raise ValueError(
            f"input_shape={shape!r} must be the shape of a row as the module takes it, a tuple "
            "of positive integers such as (1, 28, 28), or None."
        )
    if not (params is None or isinstance(params, dict)):
        raise TypeError(
            f"module_params={params!r} must be a dict of arguments of the module, or None."
        )
    estimator._check_number("validation_fraction", 0)
    if estimator.validation_fraction >= 1:
        raise ValueError(
            f"validation_fraction={estimator.validation_fraction!r} must be below 1: it is the "
            "share of the rows that are held out."
        )
    if estimator.early_stopping and not estimator.validation_fraction:
        raise ValueError(
            "early_stopping=True needs held-out rows: set validation_fraction above 0."
        )
    augmentation = estimator.augmentation
    if not (augmentation is None or callable(augmentation)):
        raise TypeError(
            f"augmentation={augmentation!r} must be a function that takes a batch of "
            "rows, a tensor, and returns a tensor of the same shape; or None."
        )
    check_kernel(estimator.kernel)


def fit_network(estimator, problem, design, criterion, held_out_share):
    """Fit extractor and head jointly, anew or from the network of an earlier fit.

    ``held_out_share`` of the rows are held out of training in a first fit. With early stopping, an
    initial network whose head is solved is kept if training does not gain clearly on them. A fit
    that would go on from such a network is a first fit again. The summary of the `Fitted` is that
    of the `HeldOutCriterion`.
    """
    check_equal({"rows of shape": estimator.input_shape_})
    # Copies of rows would be evidence of a network that follows each of them.
    rows = problem.rows.with_moderate_weights()
    is_first = problem.start is None or problem.start.is_initial
    start = None if is_first else problem.start
    salt, threshold = (problem.seed, None) if start is None else (start.seed, start.threshold)
    trained_on, held_out, threshold = split(rows, held_out_share, salt, threshold)
    of_initial = criterion
    if is_first:
        parts = problem, trained_on, threshold, estimator.n_inducing
        start, network, solution = design.initial(*parts)
        if held_out is not None:
            of_initial, criterion = criterion.informed(*solution)
    else:
        network = start.network(rows.device)
        network.features.to(rows.dtype)

    def validation_losses(network):
        return criterion.losses(network, latent_moments(network, held_out))

    stop_early = estimator.early_stopping and held_out is not None
    training = JointTraining(
        network,
        design.likelihood,
        trained_on,
        bounds={
            "theta": theta_bounds(start.kernel, rows.device).unbind(-1),
            "noise": design.noise_bounds,
        },
        max_iter=estimator.max_iter,
        batch_size=_batch_size(estimator, trained_on.n_rows),
        learning_rate=estimator.learning_rate,
        augmentation=estimator.augmentation,
        validation_losses=validation_losses if stop_early else None,
        patience=estimator.n_iter_no_change,
        generator=problem.generator,
    )

    def evaluate(network, criterion=criterion):
        moments = None if held_out is None else latent_moments(network, held_out)
        return [start.at(network)], [criterion.summary(network, moments)]

    def weighted_losses(network, criterion):
        moments = latent_moments(network, held_out)
        return moments.weights * criterion.row_losses(network, moments)

    state = training.init()
    is_solved = stop_early and is_first and "mean" in design.solved
    if is_solved:
        initial, initial_losses = state.weights, weighted_losses(network, of_initial)
    curve = problem.run_stage(
        "network",
        training,
        state,
        estimator.max_iter,
        lambda state: evaluate(training.at(state.weights)),
        must_converge=False,
    )
    best = training.at(state.best_weights or state.weights)
    if is_solved:
        gain = initial_losses - weighted_losses(best, criterion)
        if not is_significant_gain(gain, _CLEAR):
            best = training.at(initial)
            start, criterion = replace(start, is_initial=True), of_initial
    (model,), (summary,) = evaluate(best, criterion)
    return Fitted(model, curve, summary)


def _batch_size(estimator, n_rows):
    if estimator.batch_size is not None:
        return estimator.batch_size
    return int(np.clip(n_rows // _STEPS, *_BATCH_SIZES))


def network_attributes(estimator, model):
    """Return the fitted attributes that all hybrid estimators have, a dict."""
    return {
        "kernel_": model.kernel,
        "inducing_points_": model.weights["Z"],
        "_latents": [model],
        "_fitted_parameters": estimator._rules.memory(estimator),
    }
