"""Make computations independent of the caller's torch modes, defaults and global generators.

All contexts here are torch's own, and affect the calling thread only.
"""

import threading
from contextlib import ExitStack, contextmanager
from functools import cache

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_DEVICES = ("cpu", "cuda")
# Functions that return tensors of the default dtype: always, or if given Python floats.
_MADE_OF_DEFAULT = {
    torch.empty,
    torch.empty_permuted,
    torch.empty_strided,
    torch.eye,
    torch.linspace,
    torch.logspace,
    torch.ones,
    torch.rand,
    torch.randn,
    torch.zeros,
}
_MADE_OF_FLOATS = {
    torch.arange,
    torch.as_tensor,
    torch.asarray,
    torch.full,
    torch.scalar_tensor,
    torch.tensor,
}


@contextmanager
def isolated():
    """Run a block, or a decorated function, with torch's initial modes and defaults.

    Derivatives can be taken, even if the caller is inside ``no_grad`` or ``inference_mode``. The
    caller's ``autocast``, default device and default dtype have no effect. Nothing is changed for
    other threads.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device_type in filter(torch.is_autocast_enabled, _DEVICES):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch.get_default_dtype() != torch.float32:
            stack.enter_context(_SinglePrecision())
        yield


class _SinglePrecision(TorchFunctionMode):
    """Mode in which tensors made without a dtype are float32, not of the process's default."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("dtype") is None and kwargs.get("out") is None:
            if func in _MADE_OF_DEFAULT or (func in _MADE_OF_FLOATS and self._infers(func, args)):
                kwargs = {**kwargs, "dtype": torch.float32}
        return func(*args, **kwargs)

    @staticmethod
    def _infers(func, args):
        """Return whether a function of Python numbers returns a tensor of the default dtype."""
        of_numbers = not any(hasattr(arg, "dtype") for arg in args)
        return of_numbers and func(*args).dtype == torch.get_default_dtype()


class _Draws:
    """Dispatch of `PrivateRandom`.

    It is inherited, since a mode's own ``__torch_dispatch__`` is wrapped by torch and its first
    call imports torch's compiler, which takes a second.
    """

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        return self._dispatch(op, *args, **kwargs or {})


class PrivateRandom(_Draws, TorchDispatchMode):
    """Context in which torch's random operations draw from private generators.

    Networks draw initial weights, dropout and noise from torch's global generator, and most of
    them accept no other. This context intercepts their operations one by one, below autograd, and
    passes its own generator to each. The operations draw the same numbers as they would from the
    global generator with this seed. If the context is entered again, it continues its sequence.

    ``has_drawn`` says whether an operation has drawn random numbers.

    NumPy's and Python's global generators are not covered, nor are operations in threads that a
    network starts. On a GPU, fused attention and cuDNN's recurrent layers with dropout can draw
    only from the device's generator. It is seeded for each such operation and restored after it.
    """

    def __init__(self, seed):
        super().__init__()
        self.has_drawn = False
        self._seed, self._generators, self._refusing = seed, {}, False

    @contextmanager
    def refusing(self):
        """Refuse further draws inside the block, such as a backward pass, if any came before."""
        if not self.has_drawn:
            yield
            return
        self._refusing = True
        try:
            with self:
                yield
        finally:
            self._refusing = False

    def _dispatch(self, op, /, *args, **kwargs):
        if torch.Tag.nondeterministic_seeded not in op.tags:
            return op(*args, **kwargs)
        device = _device(args, kwargs)
        if device.type == "meta":  # no numbers are drawn there
            return op(*args, **kwargs)
        if self._refusing:
            raise RuntimeError(
                f"The module draws random numbers ({op}) in its backward pass, as "
                "torch.utils.checkpoint does to repeat a layer with dropout; they would differ "
                "from those of the forward pass. Do not checkpoint layers that draw."
            )
        self.has_drawn = True
        generator = self._generator(device)
        if op is torch.ops.aten.native_dropout.default:
            return _dropout(generator, *args, **kwargs)
        seeded, place = _with_generator(op)
        if seeded is None:
            return self._on_device(generator, op, *args, **kwargs)
        if place < len(args):
            given = args[place] if args[place] is not None else generator
            return seeded(*args[:place], given, *args[place + 1 :], **kwargs)
        if kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": generator}
        return seeded(*args, **kwargs)

    def _generator(self, device):
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    def _on_device(self, generator, op, *args, **kwargs):
        """Run an operation that can draw only from the default generator of a GPU."""
        device = generator.device
        if device.type != "cuda":  # elsewhere these operations draw nothing themselves
            return op(*args, **kwargs)
        seed = int(torch.randint(2**62, (), generator=self._generator(torch.device("cpu"))))
        with _DEVICE_GENERATORS, torch.cuda.device(device):
            state = torch.cuda.get_rng_state(device)
            try:
                torch.cuda.manual_seed(seed)
                return op(*args, **kwargs)
            finally:
                torch.cuda.set_rng_state(state, device)


_DEVICE_GENERATORS = threading.RLock()


def _device(args, kwargs):
    """Return the device of an operation: that of its first tensor, else its argument `device`."""
    given = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), None)
    return given or torch.device(kwargs.get("device") or "cpu")


@cache
def _with_generator(op):
    """Return the overload of an operation that takes a generator, and that argument's position.

    The overload is None if there is none.
    """

    def names(overload):
        return [argument.name for argument in overload._schema.arguments]

    packet = op.overloadpacket
    for overload in (op, *(getattr(packet, name) for name in packet.overloads())):
        taken = names(overload)
        others = [name for name in taken if name != "generator"]
        if len(others) < len(taken) and (overload is op or others == names(op)):
            return overload, taken.index("generator")
    return None, 0


def _dropout(generator, X, p, train):
    """Return the values after dropout and the mask, as ``native_dropout`` does."""
    if train is False or p == 0:
        return X.clone(), torch.ones_like(X, dtype=torch.bool)
    mask = torch.empty_like(X, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return X * mask * (0.0 if p == 1 else 1 / (1 - p)), mask
