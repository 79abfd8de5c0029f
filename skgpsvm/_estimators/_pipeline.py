"""The way of all fits: checks, rows on the device, one fit for each model, fitted attributes."""

import math
from functools import cache, partial

import numpy as np
import torch
from scipy.sparse import issparse

from .._data import WeightedDataset
from .._distributed import check_same, gather, raise_on_all_ranks, refuse_differences
from .._fitting import Run
from .._hyperparameters.default_kernels import feature_scales
from .._parameters import are_unchanged, parameter_names, remembered
from .._problem import N_INDUCING, Problem
from .._torch_kernels import latent_kernels
from .._validation import differs, draw_seed
from ..exceptions import warn

_MAX_GROWTH = 1.2  # of the weight of rows, above which a warm start starts anew
# A feature has other units, so that a warm start starts anew, if its scale, or its mean in units of
# the larger scale, differs by more than this. At a factor of 1/8, losses of four classifiers rose.
_OTHER_UNITS = 4.0
# At most a sixteenth of any distribution is so many standard deviations from its mean (Chebyshev).
# Rows of a stream are others than the first call's if more than an eighth are, and more than a few.
_FAR, _MANY_FAR, _FEW_FAR = 4.0, 0.125, 10
_MAX_NAMED = 5  # features that a warning lists
_OF_LEARNING = "learn_inducing", "max_iter", "optimizer", "solver", "tol"


def fit_models(estimator, X, y, sample_weight, **more):
    """Fit an estimator: anew, or by warm start from its fitted models.

    The estimator provides ``_fit_model(problem)``, which returns a `Fitted`, and
    ``_fitted_attributes(models, summaries)``, which returns the fitted attributes, a dict. Several
    models have the targets that ``_one_vs_rest_targets`` returns. ``more`` has further arguments of
    ``_check_training_data``: all ``classes`` that may occur, or the ``noise_variance`` of each row.
    """
    previous = getattr(estimator, "_latents", None) if estimator.warm_start else None
    check_same("a model to start from", previous and [part.comparable() for part in previous])
    if previous is None:
        estimator._forget()
    return _run(estimator, (X, y, sample_weight, more), previous)


def has_partial_fit(estimator):
    """Return whether an estimator can update its models by more rows with its solver."""
    return hasattr(estimator, "_update_model") and estimator._rules.allow_streams(estimator)


def stream(estimator, X, y, sample_weight, **more):
    """Fit an estimator in the first call of `partial_fit`, and update it in every further call.

    The parameters are those of `fit_models`. For updates, the estimator provides
    ``_update_model(problem)``, which returns a `Fitted`; its ``_fitted_attributes`` is called with
    ``streamed=True``. The first call warns if it has few rows, and further ones if many rows are
    far from those of the first. It is an update, too, if the estimator's ``_first_call_updates``
    says so.
    """
    if getattr(estimator, "class_weight", None) == "balanced":
        raise ValueError(
            "class_weight='balanced' needs all rows at once, which partial_fit does not have; "
            "give a dict, or weights by sample_weight."
        )
    previous = getattr(estimator, "_latents", None)
    check_same("a model to continue", previous)
    data = X, y, sample_weight, more
    if previous is not None:
        return _run(estimator, data, previous, streamed=True)
    updates = estimator._first_call_updates()
    estimator._forget()
    _run(estimator, data, None, streamed=updates, continued=True)
    if lacking := estimator._classes_without_rows():
        warn(
            f"The first call to {type(estimator).__name__}.partial_fit had no rows of the classes "
            f"{lacking}. It fixes what later calls keep, such as kernel, inducing points or terms, "
            "which suit the other classes alone. Pass some rows of every class to it."
        )
    if not updates and _chooses_points(estimator):
        n_rows, m = sum(gather(len(y))), estimator.n_inducing or N_INDUCING
        if n_rows < m:
            lower = "" if estimator.n_inducing is None else f", or lower n_inducing={m}"
            warn(
                f"The first call to {type(estimator).__name__}.partial_fit fixes the kernel and "
                f"the inducing points. It had only {n_rows} rows, which are the points and stay. "
                f"Pass more rows to it{lower}."
            )
    return estimator


def _run(estimator, data, previous, streamed=False, continued=False):
    """Fit or update an estimator; ``continued`` says whether `partial_fit` may follow a fit."""
    X, y, sample_weight, more = data
    method = "partial_fit" if streamed else "fit"
    with raise_on_all_ranks():
        estimator._check_parameters()
        estimator._rules.check(estimator, method if previous else None)
    fit = estimator._update_model if streamed else estimator._fit_model
    shown = X
    X, targets, weights, origin = estimator._check_training_data(
        X, y, sample_weight, **more, reset=previous is None
    )
    has_default = estimator._takes_sparse and estimator.kernel is None
    isotropic = has_default and _is_isotropic(previous, X, shown)
    fit_scaler = cache(partial(feature_scales, X, weights, isotropic=isotropic))
    if previous and not streamed:
        scaler = getattr(estimator, "_scaler", None)
        has_other_units = scaler is not None and _has_other_units(fit_scaler(), scaler)
        learns_anew = _has_grown(estimator, weights) or _begins_to_learn(estimator)
        if learns_anew or has_other_units or estimator._starts_anew(targets, weights):
            estimator._forget()
            return _run(estimator, data, None)
    targets_of_models = estimator._one_vs_rest_targets(targets)
    options = agreed_options(estimator, X)
    run = Run(estimator, shown, y, X, targets, weights, previous)

    @cache
    def seed():
        with raise_on_all_ranks() as seeds:
            seeds.append(run.checkpointed("seed", partial(draw_seed, estimator.random_state)))
        return seeds[0]

    attributes = partial(estimator._fitted_attributes, streamed=streamed)
    alone, fits, shared = len(targets_of_models) == 1, [], {}
    for j, part in enumerate(targets_of_models):
        rows = WeightedDataset(
            X, part, weights, *options, origin=origin, count_rows=estimator._weights_count_rows()
        )
        learns = streamed or not previous or not _knows_almost(estimator, rows)
        problem = Problem(
            run=run,
            prefix="" if alone else f"class {estimator.classes_[j]}: ",
            X=X,
            weights=weights,
            rows=rows,
            start=previous[j] if previous else None,
            learns=learns,
            draw_seed=seed,
            fit_scaler=fit_scaler,
            attributes=attributes if alone else None,
            shared=shared,
        )
        fits.append(fit(problem))
    models, curves, summaries = zip(*fits, strict=True)
    doubts = list if streamed else partial(estimator._doubts, X, targets, weights)
    if learns and not streamed and not (previous and _keeps_learned(estimator)):
        estimator._learned = _learned_with(estimator, rows) if run.has_converged else None
    if not previous and (estimator.warm_start or (continued and _chooses_points(estimator))):
        estimator._scaler = fit_scaler()
    run.end(attributes(models, summaries) | history(*curves), doubts)
    if previous and streamed and _chooses_points(estimator):
        _warn_of_far_rows(estimator, rows)
    return estimator


def _chooses_points(estimator):
    """Return whether an estimator has inducing points that it chooses in the first call."""
    return isinstance(getattr(estimator, "inducing_points", None), str)


def _warn_of_far_rows(estimator, rows):
    """Warn if many rows are far from those of the first call in some features."""
    scaler = getattr(estimator, "_scaler", None)
    if scaler is None or len(scaler.var_) < rows.X.shape[1]:
        return
    rounding = 8 * torch.finfo(rows.dtype).eps * np.abs(scaler.mean_)
    moments = scaler.mean_, np.maximum(_FAR * np.sqrt(scaler.var_), rounding)
    mean, reach = (torch.as_tensor(part, device=rows.device) for part in moments)
    numbers, total = torch.zeros_like(mean), torch.zeros_like(mean)
    for index in rows.chunks():
        X, _, weights = rows.take(index)
        far = ((X.to_dense().double() - mean).abs() > reach).double()
        numbers, total = numbers + far.sum(0), total + weights.double() @ far
    numbers, total = rows.sum(numbers, total)
    many = (numbers > _FEW_FAR) & (total > _MANY_FAR * rows.total_weight)
    if not many.any():
        return
    names = getattr(estimator, "feature_names_in_", [f"x{j}" for j in range(len(many))])
    found = [str(name) for name, own in zip(names, many.tolist(), strict=True) if own]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    warn(
        f"{type(estimator).__name__}.partial_fit got many rows far from those of the first call, "
        f"in {', '.join(found[:_MAX_NAMED])}{more}. The inducing points stay where they were, so "
        "that the model does not follow such rows. Pass rows of the whole range to the first call, "
        "or fit again."
    )


def _has_grown(estimator, weights):
    """Return whether rows have grown by more than a fifth since hyperparameters were learned.

    From the kernel of few rows, which may be almost linear, learning might not find that of all.
    """
    weight, _ = _learning_of(estimator)
    total = sum(gather(float(weights.sum())))
    return total > _MAX_GROWTH * weight and not _keeps_learned(estimator)


def _begins_to_learn(estimator):
    """Return whether a fit is to learn a kernel, but the last one did not."""
    last = estimator._fitted_parameters.get("optimizer", "auto")
    return last is None and estimator.optimizer is not None


def _keeps_learned(estimator):
    """Return whether a fit learns no kernel, and keeps the one that an earlier fit has learned."""
    learned_by = _learning_of(estimator)[1].get("optimizer")
    return getattr(estimator, "optimizer", "auto") is None and learned_by is not None


def _has_other_units(scaler, earlier):
    """Return whether a feature that varies has another scale or location than in an earlier fit."""
    old, new = earlier.scale_, scaler.scale_
    larger, moved = np.maximum(old, new), np.abs(scaler.mean_ - earlier.mean_)
    differ = (larger > _OTHER_UNITS * np.minimum(old, new)) | (moved > _OTHER_UNITS * larger)
    vary = (differs(found.var_, found.mean_) for found in (scaler, earlier))
    return bool(np.logical_and(*vary)[differ].any())


def _learned_with(estimator, rows):
    """Return what hyperparameters were learned with: total weight of rows, and parameters."""
    names = [name for name in parameter_names(estimator) if name in _OF_LEARNING]
    return rows.total_weight, remembered(estimator, names)


def _knows_almost(estimator, rows):
    """Return whether hyperparameters were learned with the same parameters on a few rows less.

    Where rows are as many as before or fewer, they may be others, or learning is to go on. Where
    they are many more, the fit has started anew.
    """
    weight, parameters = _learning_of(estimator)
    return weight < rows.total_weight and are_unchanged(estimator, parameters)


def _learning_of(estimator):
    """Return what `_learned_with` has recorded; an infinite weight if learning has not ended."""
    return getattr(estimator, "_learned", None) or (math.inf, {})


def _is_isotropic(previous, X, shown):
    """Return whether the default kernel has one length scale, as that of sparse X has.

    Many features are then words that are rare. A fitted model keeps as many as it has.
    """
    if previous is None or X.shape[1] == 1:
        return any(gather(issparse(shown)))
    parts = latent_kernels(previous[0].kernel)
    return all(h.n_elements == 1 for part in parts for h in part.hyperparameters)


def agreed_options(estimator, X):
    """Return the device and dtype, after a check that all ranks use devices of one kind."""
    with raise_on_all_ranks() as types:
        device, dtype = estimator._torch_options(X)
        types.append(device.type)
    refuse_differences("device of type", types)
    return device, dtype


def history(*curves):
    """Return the fitted attributes that tell how fits went, from their objective curves."""
    length = max(map(len, curves))
    padded = [np.pad(curve, (0, length - len(curve)), mode="edge") for curve in curves]
    return {"n_iter_": length, "objective_curve_": np.sum(padded, 0)}
