"""A torch device that uses the CPU's memory under another name, and does not mix with the CPU.

It tests on a machine without accelerator what must hold on every accelerator: all tensors of a fit
are made and kept on the device, and results are the same as on the CPU. It also counts how often
the CPU waits for the device.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from skgpsvm import _transfers

NAME = "pretend"
_MOVES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_local_scalar_dense"}
_INDEXING = ("aten::index", "aten::_index")  # CPU tensors may be indices, as on other devices
# Operations that return a value, or a tensor whose shape depends on values.
_VALUES = {"_local_scalar_dense", "_unique2", "bincount", "equal", "nonzero", "unique_dim"}
# Numbers of "values" and "copies" for which the CPU waits, and of "pinned" copies.
counts = Counter()


class Pretend(torch.Tensor):
    """Tensor on the device."""

    @staticmethod
    def __new__(cls, raw):
        layout = {"strides": raw.stride(), "storage_offset": raw.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), **layout, dtype=raw.dtype, device=torch.device(NAME, 0)
        )

    def __init__(self, raw):
        self.raw = raw

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return _on_raw(op, *args, **(kwargs or {}))

    def __repr__(self):
        return f"Pretend({self.raw})"

    # Methods in which torch makes tensors without its dispatcher

    def __getitem__(self, index):
        return torch.Tensor.__getitem__(self, _as_index(index))

    def __setitem__(self, index, value):
        torch.Tensor.__setitem__(self, _as_index(index), value)

    def __matmul__(self, other):
        if self.dim() == 1 and other.dim() > 1:
            return (self[None] @ other)[..., 0, :]
        if other.dim() == 1 and self.dim() > 1:
            return (self @ other[:, None])[..., 0]
        return torch.Tensor.__matmul__(self, other)

    def tolist(self):
        return self.cpu().tolist()

    def new_tensor(self, data, dtype=None, device=None):
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device)

    def new_full(self, size, value, dtype=None, device=None):
        return _placed(torch.full(size, value, dtype=dtype or self.dtype), device or self.device)


def _as_index(index):
    if isinstance(index, tuple):
        return tuple(torch.tensor(i) if isinstance(i, tuple) else _as_index(i) for i in index)
    if isinstance(index, (list, range)):
        return torch.tensor(list(index), dtype=torch.int64)
    return index


def _on_raw(op, *args, **kwargs):
    """Run an operation on the CPU memory of its arguments."""
    tensors = []

    def raw(x):
        if isinstance(x, torch.Tensor):
            tensors.append(x)
        return x.raw if isinstance(x, Pretend) else x

    device = kwargs.get("device")
    leaves = device is not None and torch.device(device).type != NAME
    placed = kwargs if device is None else {**kwargs, "device": torch.device("cpu")}
    inputs = [_map(raw, x) for x in args]
    options = {key: _map(raw, x) for key, x in placed.items()}
    own = {id(t.raw): t for t in tensors if isinstance(t, Pretend)}
    name = op._schema.name
    _count(name.removeprefix("aten::"), args, kwargs)
    strange = [t for t in tensors if t.dim() and not isinstance(t, Pretend)]
    if strange and name not in _MOVES and not name.startswith(_INDEXING):
        raise RuntimeError(f"{name} takes tensors of shape {strange[0].shape} on the CPU, too.")
    found = op(*inputs, **options)
    if name == "aten::copy_":
        return args[0]

    def held(x):
        if leaves or not isinstance(x, torch.Tensor):
            return x
        known = own.get(id(x))
        return known if known is not None and known.shape == x.shape else Pretend(x)

    return _map(held, found)


def _map(function, x):
    """Return what a function makes of a value, or of each in nested lists and tuples."""
    if isinstance(x, (list, tuple)):
        return type(x)([_map(function, each) for each in x])
    return function(x)


def _count(name, args, kwargs):
    """Count an operation that needs a value, or copies between the CPU and the device."""
    if name in ("_to_copy", "copy_"):
        source = args[name == "copy_"]
        target = args[0].device if name == "copy_" else kwargs.get("device") or source.device
        if torch.device(target).type != source.device.type and source.numel():
            counts["pinned" if hasattr(source, "is_held") else "copies"] += 1
    elif name in ("index", "index_put_", "_index_put_impl_"):
        indices = [i for i in args[1] if i is not None]
        counts["values"] += any(i.dtype == torch.bool for i in indices)
        counts["copies"] += any(i.dim() and not isinstance(i, Pretend) for i in indices)
    else:
        counts["values"] += name in _VALUES


def _on_device(make):
    """Return a version of a torch function that makes its result on the CPU and then moves it."""

    def made(*args, device=None, **options):
        data, *others = args
        if isinstance(data, torch.Tensor):
            device = data.device if device is None else device
            found = data.detach() if make is _MADE["as_tensor"] else data.detach().clone()
            return found.to(device=device, dtype=options.get("dtype"))
        data = _map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, data)
        found = make(data, *others, **options)
        if device is None:
            return found
        return found.to(device) if make in _FROM_VALUES else _placed(found, device)

    return made


def _placed(tensor, device):
    """Return a tensor that the device has made, if it is not the CPU."""
    return Pretend(tensor) if torch.device(device).type == NAME else tensor


def _pinned(tensor):
    """Return a copy in memory that is pinned, for this device."""
    copy = tensor.clone()
    copy.is_held = True
    return copy


_MADE = {
    name: getattr(torch, name) for name in ("tensor", "as_tensor", "arange", "linspace", "eye")
}
_FROM_VALUES = _MADE["tensor"], _MADE["as_tensor"]


def register():
    """Register the device with torch, in a process that has not taken derivatives yet."""
    _setup_privateuseone_for_python_backend(NAME)
    register.library = torch.library.Library("_", "IMPL")
    register.library.fallback(_on_raw, "PrivateUse1")
    for name, make in _MADE.items():
        setattr(torch, name, _on_device(make))
    torch.Tensor.pin_memory = _pinned
    _transfers._PINNING += (NAME,)


# The device must be registered before the first derivative, and should not affect other tests.
PROGRAM = """
import sys
from importlib import import_module
import pretend_device
pretend_device.register()
getattr(import_module(sys.argv[1]), sys.argv[2])(*sys.argv[3:])
"""


def run_there(function, *arguments):
    """Call a function in a process that knows the device; return its error output."""
    called = function.__module__, function.__name__, *arguments
    process = [sys.executable, "-c", PROGRAM, *called]
    done = subprocess.run(process, capture_output=True, text=True, cwd=Path(__file__).parent)
    return done.stderr if done.returncode else ""
