"""Files of weights: what `save_weights` writes, read with every name, shape and number checked."""

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

_MOST_HEADER = 2**22  # bytes of names and plain values: some 100,000 feature names
_MOST_FEATURES = 2**31
_MOST_LABELS = 2**24  # bytes of labels as an array
_MOMENTS = "features.normalizer.running_mean"
_TOLERANCE = 1e-6  # of logarithms, beyond their bounds
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
    """Write arrays by name, plain values that describe them, and a checksum of both."""
    from safetensors.numpy import save_file

    weights = {name: np.asarray(value, order="C") for name, value in weights.items()}
    text = json.dumps(description)
    if len(text) > _MOST_HEADER // 2:
        raise ValueError(
            f"Names and values that describe the model take {len(text)} bytes; the file may have "
            f"{_MOST_HEADER // 2}. Fit on columns without names."
        )
    save_file(weights, path, {"skgpsvm": text, "sha256": checksum(weights, text)})


def checksum(weights, text):
    """SHA-256 of arrays by name and of the text that describes them."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(weights):
        value = weights[name]
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


class WeightsFile:
    """An open file of weights; every error is a ValueError that names the file.

    Parameters
    ----------
    path : str or path-like

    Attributes
    ----------
    description : dict
        Not yet checked.
    shapes : dict of tuple
        Of the arrays, by name.
    """

    def __init__(self, path):
        from safetensors import SafetensorError, safe_open

        self.path = path
        with open(path, "rb") as file:
            start = file.read(8)
        if len(start) < 8 or struct.unpack("<Q", start)[0] > _MOST_HEADER:
            raise self.error("it is not a file of safetensors, or its header is damaged")
        try:
            self._file = safe_open(path, framework="np").__enter__()
            metadata = self._file.metadata() or {}
            slices = {name: self._file.get_slice(name) for name in self._file.keys()}
            self.shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            self._kinds = {name: part.get_dtype() for name, part in slices.items()}
        except SafetensorError as error:
            raise self.error(f"safetensors says: {error}") from error
        if not metadata.keys() >= {"skgpsvm", "sha256"}:
            raise ValueError(f"{path} was not written by save_weights of this version.")
        self._text, self._sha256 = metadata["skgpsvm"], metadata["sha256"]
        try:
            self.description = json.loads(self._text)
        except (ValueError, RecursionError) as error:
            raise self.error("its description is damaged") from error
        whole = isinstance(self.description, dict)
        if not (whole and self.description.keys() == {"model", "seed", "threshold", "attributes"}):
            raise self.error("it does not describe a model")

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self._file.__exit__(*raised)

    def error(self, reason):
        """That the file cannot be used, to be raised."""
        return ValueError(f"{self.path} holds no weights of this estimator: {reason}.")

    def check_model(self, name, own):
        """Refuse a model of another class, kernel or likelihood."""
        model = self.description["model"]
        if not isinstance(model, dict) or model.get(name) != own:
            raise ValueError(
                f"{self.path} holds another model, {str(model)[:500]}, than this, of {name} {own}."
            )

    @property
    def dtype(self):
        """Of the extractor."""
        kind = self._kinds.get(_MOMENTS)
        return torch.float64 if kind == "F64" else torch.float32

    @property
    def n_outputs(self):
        """Number of features that the extractor gives."""
        moments, Z = self.shapes.get(_MOMENTS, ()), self.shapes.get("Z", ())
        if len(moments) != 1 or len(Z) != 2 or Z[1] != moments[0] or 0 in Z:
            raise self.error(f"Z of shape {Z} is not of inducing points of {moments} features")
        return moments[0]

    def weights(self, expected):
        """The arrays by name, where they are like tensors on any device."""
        for name in sorted(expected.keys() | self.shapes.keys()):
            wanted = expected.get(name)
            wanted = None if wanted is None else (_DTYPES.get(wanted.dtype), tuple(wanted.shape))
            found = (self._kinds[name], self.shapes[name]) if name in self.shapes else None
            if wanted != found:
                raise self.error(
                    f"{name} should be {_told(wanted)} with these parameters, and is {_told(found)}"
                )
        weights = {name: self._file.get_tensor(name) for name in self.shapes}
        if checksum(weights, self._text) != self._sha256:
            raise self.error("it is damaged, its checksum does not match")
        for name, value in weights.items():
            if not np.isfinite(value).all():
                raise self.error(f"{name} has NaN or infinite numbers")
        return weights


def _told(found):
    return f"{found[0]} of shape {found[1]}" if found else "not there"


def skeleton(latents, kernel, sites, file):
    """A network of the parameters and of the file's shapes, most of it without memory of its own.

    Parameters
    ----------
    latents : HybridLatents
        What builds the extractor, and the shape of a row.
    kernel : Kernel
    sites : SiteLikelihood
    file : WeightsFile
        Of its shapes the free ones are taken: the numbers of features and of inducing points.

    Returns
    -------
    network : HybridNetwork
        Its own head is on the meta device.
    """
    d, (m, _) = file.n_outputs, file.shapes["Z"]
    tk, c = torch_kernel(kernel), sites.n_latents
    exact, rest = exact_and_rest(tk, d, m)
    p = (exact.n_exact_features(d) if exact else 0) + (m if rest else 0)
    head = {"theta": (kernel.n_dims,), "noise": sites.parameters().shape, "Z": (m, d)}
    head |= {"mean": (c, p), "raw_root": (c, p, p)}
    if latents.build.args[0] is None:  # so the file says how large the first layer is
        with torch.device("meta"):
            extractor = latents.build().to(file.dtype)
    else:
        extractor = latents.extractor().to(file.dtype)
    moments = torch.empty(d, dtype=file.dtype, device="meta")
    features = FeatureMap(extractor, latents.row_shape, moments, moments)
    return HybridNetwork(features, tk, {n: torch.empty(head[n], device="meta") for n in HEAD})


def check_values(network, kernel, noise_bounds, file):
    """Refuse numbers that no fit of such a network ends with."""
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
        raise file.error(f"its posterior cannot be made, {error}") from error
    if not posterior.root.isfinite().all():
        raise file.error("raw_root overflows")


# Plain values


def to_json(value):
    """An attribute as plain values; an array with its dtype."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.str if value.dtype != "O" else "O"}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value):
    """What `to_json` was given, tuples as tuples; ValueError if it was nothing of the kind."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    if value.keys() != {"array", "dtype"} or not isinstance(value["array"], list):
        raise ValueError("an array has other parts than its values and dtype")
    kind, values = str(value["dtype"]), value["array"]
    if not re.fullmatch(r"O|[<>=|]?([biuf][1248]|U[0-9]{1,8})", kind):
        raise ValueError(f"an array has dtype {kind[:20]!r}")
    if "U" in kind and np.dtype(kind).itemsize * len(values) > _MOST_LABELS:
        raise ValueError("labels are too long")
    try:
        return np.array(values, dtype=kind)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"values are not of dtype {kind!r}") from error


def _is_number(value, least=-math.inf):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > least


def _is_count(value, most=_MOST_FEATURES):
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most


def _is_vector(value, kinds, least=-math.inf):
    if not (isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in kinds):
        return False
    return value.dtype.kind != "f" or bool((np.isfinite(value) & (value > least)).all())


def _are_labels(value):
    if not _is_vector(value, "biufUO") or len(value) < 2:
        return False
    if value.dtype == object and not all(isinstance(label, str | int | float) for label in value):
        return False
    try:
        return np.array_equal(np.unique(value), value)
    except TypeError:  # they cannot be sorted
        return False


_CHECKS = {
    "n_features_in_": _is_count,
    "input_shape_": lambda value: isinstance(value, tuple) and value and all(map(_is_count, value)),
    "feature_names_in_": lambda value: (
        _is_vector(value, "O") and all(isinstance(name, str) for name in value)
    ),
    "classes_": _are_labels,
    "temperature_": lambda value: _is_number(value, 0),
    "spread_": lambda value: _is_number(value, 0),
    "noise_variance_": lambda value: _is_number(value, 0) or _is_vector(value, "f", 0),
    "validation_loss_": lambda value: _is_number(value) or value != value,
    "objective_curve_": lambda value: _is_vector(value, "f"),
    "n_iter_": _is_count,
    "_y_mean": lambda value: _is_vector(value, "f"),
    "_y_std": lambda value: _is_vector(value, "f", 0),
    "_y_ndim": lambda value: _is_count(value, 2),
    "_likelihood": lambda value: isinstance(value, str),
}
_AGREE = (
    (("input_shape_", "n_features_in_"), lambda shape, n: math.prod(shape) == n),
    (("feature_names_in_", "n_features_in_"), lambda names, n: len(names) == n),
    (("objective_curve_", "n_iter_"), lambda curve, n: len(curve) == n),
    (("_y_mean", "_y_std"), lambda mean, std: mean.shape == std.shape),
    (
        ("noise_variance_", "_y_mean", "_y_ndim"),
        lambda noise, mean, ndim: (
            (len(mean) == 1 and np.ndim(noise) == 0) if ndim == 1 else np.shape(noise) == mean.shape
        ),
    ),
)


def checked_attributes(described, wanted, file):
    """Fitted attributes of the names wanted and, where X had them, names of the features."""
    if not isinstance(described, dict):
        raise file.error("it does not describe fitted attributes")
    names = {*wanted, "feature_names_in_"} & {*described, *wanted}
    if described.keys() != names:
        others = sorted(described.keys() ^ names)
        raise file.error(f"it has other attributes than this estimator, {', '.join(others)[:200]}")
    known = {}
    for name in names:
        try:
            known[name] = from_json(described[name])
        except ValueError as error:
            raise file.error(f"of {name} {error}") from error
        if not _CHECKS[name](known[name]):
            raise file.error(f"{name} makes no sense")
    for joint, agree in _AGREE:
        if known.keys() >= {*joint} and not agree(*(known[name] for name in joint)):
            raise file.error(f"{' and '.join(joint)} disagree")
    return known
