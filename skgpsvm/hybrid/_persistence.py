"""Fitted hybrid estimators in weight files: `save_weights` and `load_weights`."""

import copy

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._isolation import isolated
from ._weights import WeightsFile, check_values, checked_attributes, skeleton, to_json, write

_SAVED_OF_ALL = (
    "n_features_in_",
    "input_shape_",
    "validation_loss_",
    "objective_curve_",
    "n_iter_",
)


def save_model(estimator, path, names):
    """Write a fitted model, and attributes that only some hybrid estimators have, by ``names``."""
    check_is_fitted(estimator)
    _check_safetensors()
    (model,), names = estimator._latents, {*_SAVED_OF_ALL, *names, "feature_names_in_"}
    description = {
        "model": _description(estimator, model.kernel),
        "seed": model.seed,
        "threshold": model.threshold,
        "is_initial": model.is_initial,
        "attributes": {n: to_json(value) for n, value in vars(estimator).items() if n in names},
    }
    write(path, model.weights, description)


@isolated()
def read_model(estimator, path, names):
    """Return the attributes, a dict, and the `HybridLatents` in a weight file, after all checks.

    The estimator is not changed; its method ``_network_design`` gives the `NetworkDesign`. See
    `save_model` for ``names``.
    """
    _check_safetensors()
    estimator._check_parameters()
    with WeightsFile(path) as file:
        file.check_model("class", type(estimator).__name__)
        described = file.description["attributes"]
        attributes = checked_attributes(described, (*_SAVED_OF_ALL, *names), file)
        reader = copy.copy(estimator)
        vars(reader).update(attributes)
        design = reader._network_design()
        model = _model_of_file(reader, design, file)
        network = skeleton(model, design.likelihood, file)
        model.weights = file.weights(network.state_dict())
    try:
        network = model.frozen_network("cpu")
    except RuntimeError as error:
        raise file.error(f"torch says: {error}") from error
    check_values(network, model.kernel, reader._noise_model.limits(), file)
    model.kernel = model.kernel.clone_with_theta(model.weights["theta"])
    return attributes, model


def _model_of_file(estimator, design, file):
    """Return a `HybridLatents` without weights; the estimator has the attributes of the file."""
    row_shape = estimator.input_shape_
    if estimator.input_shape is not None and tuple(estimator.input_shape) != row_shape:
        raise file.error(f"it takes rows of shape {row_shape}, not {tuple(estimator.input_shape)}")
    fitted, own = (getattr(estimator, name, None) for name in ("_likelihood", "likelihood"))
    if fitted != own:
        raise file.error(f"its likelihood is {fitted!r}, and this estimator's is {own!r}")
    parts = (file.description[name] for name in ("seed", "threshold", "is_initial"))
    seed, threshold, is_initial = parts
    seed_is_valid = isinstance(seed, int) and 0 <= seed < 2**31
    threshold_is_valid = isinstance(threshold, int | float) and -1 <= threshold <= 1
    if not (seed_is_valid and threshold_is_valid and isinstance(is_initial, bool)):
        raise file.error("its seed, threshold or is_initial is invalid")
    kernel = design.start_kernel(file.n_outputs)
    for name, value in _description(estimator, kernel).items():
        file.check_model(name, value)
    return design.model(kernel, seed, threshold, is_initial)


def _description(estimator, kernel):
    """Return the description of the model in a weight file: class and kernel.

    The values of the learned hyperparameters are left out.
    """
    return {
        "class": type(estimator).__name__,
        "kernel": repr(kernel.clone_with_theta(np.zeros(kernel.n_dims))),
        "learned": [h.name for h in kernel.hyperparameters if not h.fixed],
    }


def _check_safetensors():
    """Raise an error that says what to install if safetensors is missing."""
    try:
        import safetensors  # noqa: F401 (whether it is there)
    except ImportError as error:
        raise ImportError(
            "save_weights and load_weights need safetensors: pip install safetensors."
        ) from error
