"""Weight files written by `save_weights`; reading checks all names, shapes and values."""

import hashlib
import json
import math
import re
import struct

import numpy as np
import torch

from .._torch_kernels import theta_bounds, torch_kernel
from ..kernels._composite import exact_and_rest
from ._network import HEAD, FeatureMap, HybridNetwork

_MAX_HEADER = 2**22  # bytes of names and plain values: about 100,000 feature names
_MAX_FEATURES = 2**31
_MAX_LABELS = 2**24  # bytes of labels as an array
_MOMENTS = "features.normalizer.running_mean"
_TOLERANCE = 1e-6  # logarithms may exceed their bounds by this much
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write(path, weights, description):
    """Write a file of named arrays, a description in plain values, and a checksum of both."""
    from safetensors.numpy import save_file

    weights = {name: np.asarray(value, order="C") for name, value in weights.items()}
    text = json.dumps(description)
    if len(text) > _MAX_HEADER // 2:
        raise ValueError(
            f"The description of the model takes {len(text)} bytes; a weight file may have at most "
            f"{_MAX_HEADER // 2}. Fit on columns without names."
        )
    save_file(weights, path, {"skgpsvm": text, "sha256": checksum(weights, text)})


def checksum(weights, text):
    """Return the SHA-256 of named arrays and their description, a str."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(weights):
        value = weights[name]
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


class WeightsFile:
    """Open weight file, whose errors are all ValueErrors that name the file.

    ``description`` has plain values as read, not yet checked, and ``arrays`` the dtype and shape of
    each array by name.
    """

    def __init__(self, path):
        from safetensors import SafetensorError, safe_open

        self.path = path
        with open(path, "rb") as file:
            start = file.read(8)
        if len(start) < 8 or struct.unpack("<Q", start)[0] > _MAX_HEADER:
            raise self.error("it is not a safetensors file, or its header is damaged")
        try:
            self._file = safe_open(path, framework="np").__enter__()
            metadata = self._file.metadata() or {}
            parts = {name: self._file.get_slice(name) for name in self._file.keys()}
            self.arrays = {n: (p.get_dtype(), tuple(p.get_shape())) for n, p in parts.items()}
        except SafetensorError as error:
            raise self.error(f"safetensors says: {error}") from error
        if not metadata.keys() >= {"skgpsvm", "sha256"}:
            raise ValueError(f"{path} was not written by save_weights of this version.")
        self._text, self._sha256 = metadata["skgpsvm"], metadata["sha256"]
        try:
            self.description = json.loads(self._text)
        except (ValueError, RecursionError) as error:
            raise self.error("its description is damaged") from error
        names = {"model", "seed", "threshold", "is_initial", "attributes"}
        if not (isinstance(self.description, dict) and self.description.keys() == names):
            raise self.error("it does not describe a model")

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self._file.__exit__(*raised)

    def error(self, reason):
        """Return an error that says why the file cannot be used."""
        return ValueError(f"{self.path} has no weights of this estimator: {reason}.")

    def check_model(self, name, expected):
        """Raise an error if the model has another class or kernel."""
        model = self.description["model"]
        if not isinstance(model, dict) or model.get(name) != expected:
            raise ValueError(
                f"{self.path} has another model, {str(model)[:500]}; the {name} of this estimator "
                f"is {expected}."
            )

    @property
    def dtype(self):
        """Dtype of the extractor."""
        return torch.float64 if self.arrays[_MOMENTS][0] == "F64" else torch.float32

    @property
    def n_outputs(self):
        """Number of features that the extractor returns."""
        (_, moments), (_, Z) = (self.arrays.get(name, ("", ())) for name in (_MOMENTS, "Z"))
        if len(moments) != 1 or len(Z) != 2 or Z[1] != moments[0] or 0 in Z:
            raise self.error(f"Z of shape {Z} does not fit features of shape {moments}")
        return moments[0]

    def weights(self, expected):
        """Return the arrays by name, after a check of names, dtypes, shapes, values and checksum.

        ``expected`` has tensors with the right dtypes and shapes, which may be on the meta device.
        """
        required = {n: (_DTYPES.get(t.dtype), tuple(t.shape)) for n, t in expected.items()}
        for name in sorted(required.keys() | self.arrays.keys()):
            if required.get(name) != self.arrays.get(name):
                raise self.error(
                    f"{name} should be {_described(required.get(name))} with these parameters, "
                    f"and is {_described(self.arrays.get(name))}"
                )
        weights = {name: self._file.get_tensor(name) for name in self.arrays}
        if checksum(weights, self._text) != self._sha256:
            raise self.error("it is damaged: its checksum does not match")
        for name, value in weights.items():
            if not np.isfinite(value).all():
                raise self.error(f"{name} has NaN or infinite values")
        return weights


def _described(array):
    """Return a dtype and shape in words; None is a missing array."""
    return f"{array[0]} of shape {array[1]}" if array else "absent"


def skeleton(latents, sites, file):
    """Return a `HybridNetwork` of the shapes that the parameters and the file define.

    The head takes no memory, so that shapes are checked before arrays are read. ``latents`` builds
    the extractor and knows the shape of a row.
    """
    d, m = file.n_outputs, file.arrays["Z"][1][0]
    tk, c = torch_kernel(latents.kernel), sites.n_latents
    exact, rest = exact_and_rest(tk, d, m)
    p = (exact.n_exact_features(d) if exact else 0) + (m if rest else 0)
    head = {"theta": (latents.kernel.n_dims,), "noise": sites.parameters().shape, "Z": (m, d)}
    head |= {"mean": (c, p), "raw_root": (c, p, p)}
    if latents.build.args[0] is None:  # the file defines the size of the first layer
        with torch.device("meta"):
            extractor = latents.build().to(file.dtype)
    else:
        extractor = latents.extractor().to(file.dtype)
    moments = torch.empty(d, dtype=file.dtype, device="meta")
    features = FeatureMap(extractor, latents.row_shape, moments, moments)
    return HybridNetwork(features, tk, {n: torch.empty(head[n], device="meta") for n in HEAD})


def check_values(network, kernel, noise_bounds, file):
    """Raise an error if weights have values that no fit of the network could have."""
    limits = {"theta": theta_bounds(kernel, "cpu"), "noise": torch.tensor([noise_bounds])}
    for name, bounds in limits.items():
        value, (low, high) = getattr(network, name), bounds.unbind(-1)
        if ((value < low - _TOLERANCE) | (value > high + _TOLERANCE)).any():
            raise file.error(f"{name} is outside its bounds")
    if (network.features.normalizer.running_var < 0).any():
        raise file.error("features.normalizer.running_var is negative")
    try:
        posterior = network.posterior()
    except (RuntimeError, ValueError) as error:
        raise file.error(f"its posterior cannot be computed: {error}") from error
    if not posterior.root.isfinite().all():
        raise file.error("raw_root overflows")


# Plain values


def to_json(value):
    """Return an attribute as plain values; an array as a dict with its dtype."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.str if value.dtype != "O" else "O"}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value):
    """Return what `to_json` encoded, or raise a ValueError; a list becomes a tuple."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    if value.keys() != {"array", "dtype"} or not isinstance(value["array"], list):
        raise ValueError("an array must be given by its values and dtype")
    kind, values = str(value["dtype"]), value["array"]
    if not re.fullmatch(r"O|[<>=|]?([biuf][1248]|U[0-9]{1,8})", kind):
        raise ValueError(f"an array has dtype {kind[:20]!r}")
    if "U" in kind and np.dtype(kind).itemsize * len(values) > _MAX_LABELS:
        raise ValueError("labels are too long")
    try:
        return np.array(values, dtype=kind)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"values are not of dtype {kind!r}") from error


def _is_number(value, above=-math.inf):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > above


def _is_count(value, maximum=_MAX_FEATURES):
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= maximum


def _is_vector(value, kinds, above=-math.inf):
    if not (isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in kinds):
        return False
    return value.dtype.kind != "f" or bool((np.isfinite(value) & (value > above)).all())


def _are_labels(value):
    if not _is_vector(value, "biufUO") or len(value) < 2:
        return False
    if value.dtype == object and not all(isinstance(label, str | int | float) for label in value):
        return False
    try:
        return np.array_equal(np.unique(value), value)
    except TypeError:  # the labels cannot be sorted
        return False


_CHECKS = {
    "n_features_in_": _is_count,
    "input_shape_": lambda value: isinstance(value, tuple) and value and all(map(_is_count, value)),
    "feature_names_in_": lambda value: (
        _is_vector(value, "O") and all(isinstance(name, str) for name in value)
    ),
    "classes_": _are_labels,
    "class_weight_": lambda value: _is_vector(value, "f") and bool((value >= 0).all()),
    "temperature_": lambda value: _is_number(value, 0),
    "spread_": lambda value: _is_number(value, 0),
    "intercept_": lambda value: _is_vector(value, "f"),
    "noise_variance_": lambda value: _is_number(value, 0) or _is_vector(value, "f", 0),
    "validation_loss_": lambda value: _is_number(value) or value != value,
    "objective_curve_": lambda value: _is_vector(value, "f"),
    "n_iter_": _is_count,
    "_y_mean": lambda value: _is_vector(value, "f"),
    "_y_std": lambda value: _is_vector(value, "f", 0),
    "_y_ndim": lambda value: _is_count(value, 2),
    "_likelihood": lambda value: isinstance(value, str),
}
# Attributes that depend on each other, and the condition they must meet.
_CONSISTENT = (
    (("input_shape_", "n_features_in_"), lambda shape, n: math.prod(shape) == n),
    (("feature_names_in_", "n_features_in_"), lambda names, n: len(names) == n),
    (("objective_curve_", "n_iter_"), lambda curve, n: len(curve) == n),
    (
        ("intercept_", "classes_"),
        lambda intercept, classes: len(intercept) == (len(classes) if len(classes) > 2 else 1),
    ),
    (("class_weight_", "classes_"), lambda weights, classes: len(weights) == len(classes)),
    (("_y_mean", "_y_std"), lambda mean, std: mean.shape == std.shape),
    (
        ("noise_variance_", "_y_mean", "_y_ndim"),
        lambda noise, mean, ndim: (
            (len(mean) == 1 and np.ndim(noise) == 0) if ndim == 1 else np.shape(noise) == mean.shape
        ),
    ),
)


def checked_attributes(described, required, file):
    """Return the fitted attributes of a file, a dict, after checks of their names and values.

    They are ``described`` as by `to_json`. The file must have the ``required`` names;
    ``feature_names_in_`` is optional.
    """
    if not isinstance(described, dict):
        raise file.error("it does not describe fitted attributes")
    names = {*required, "feature_names_in_"} & {*described, *required}
    if described.keys() != names:
        others = ", ".join(sorted(described.keys() ^ names))
        raise file.error(f"its attributes differ from those of this estimator in {others[:200]}")
    attributes = {}
    for name in names:
        try:
            attributes[name] = from_json(described[name])
        except ValueError as error:
            raise file.error(f"{name} cannot be read: {error}") from error
        if not _CHECKS[name](attributes[name]):
            raise file.error(f"{name} is invalid")
    for joint, agree in _CONSISTENT:
        if attributes.keys() >= {*joint} and not agree(*(attributes[name] for name in joint)):
            raise file.error(f"{' and '.join(joint)} are inconsistent")
    return attributes
