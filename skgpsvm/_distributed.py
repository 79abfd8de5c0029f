"""Share a fit between the ranks of a torch.distributed group; a single process is rank 0."""

import os
import pickle
from contextlib import contextmanager

import joblib
import torch
import torch.distributed as dist

from .exceptions import DistributedError

_MAY_DIFFER = {"device", "random_state"}  # parameters that may differ between ranks


def n_ranks():
    """Return the number of processes in the default group; 1 without a group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank():
    """Return the rank of this process in the default group; 0 without a group."""
    return dist.get_rank() if n_ranks() > 1 else 0


def all_sum(*tensors):
    """Return sums of tensors over the ranks, in float64, with the same bits on each rank.

    All tensors travel in one exchange. Without a group they come back unchanged.
    """
    if n_ranks() == 1:
        return tensors
    packed = torch.cat([tensor.double().ravel() for tensor in tensors])
    with _exchange():
        dist.all_reduce(packed)
    parts = packed.split([tensor.numel() for tensor in tensors])
    return tuple(part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True))


class _AllSum(torch.autograd.Function):
    """Sum of a vector over the ranks; its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx, packed):
        return all_sum(packed)[0]

    @staticmethod
    def backward(ctx, gradient):
        return all_sum(gradient)[0]


def differentiable_sum(*tensors):
    """Return sums of tensors over the ranks, as `all_sum`, through which gradients pass.

    Every rank must take the gradient of something that depends on the sums.
    """
    packed = torch.cat([tensor.double().ravel() for tensor in tensors])
    # So that the backward pass comes here on every rank, also where the tensors have no graph.
    summed = _AllSum.apply(packed if packed.requires_grad else packed.requires_grad_())
    parts = summed.split([tensor.numel() for tensor in tensors])
    return tuple(part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True))


def gather(value):
    """Return the values of all ranks, in the order of the ranks."""
    if n_ranks() == 1:
        return [value]
    values = [None] * n_ranks()
    with _exchange():
        dist.all_gather_object(values, value)
    return values


@contextmanager
def raise_on_all_ranks():
    """Raise on all ranks if the block fails on any of them.

    The block gets an empty list, to which it may append a value. Afterwards, the list has the
    values of all ranks, in their order: they travel with the failures, in one exchange.
    """
    values, failure = [], None
    if n_ranks() == 1:
        yield values
        return
    try:
        yield values
    except Exception as error:  # any error: the other ranks would wait for this one forever
        failure = error
    try:
        ranks = gather((values, failure and f"{type(failure).__name__}: {failure}"))
    finally:
        if failure:
            raise failure
    _raise_if(f"rank {i} failed: {told}" for i, (_, told) in enumerate(ranks) if told)
    values[:] = [value for own, _ in ranks for value in own]


def refuse_differences(name, values):
    """Raise if the values of the ranks, which all ranks have, differ."""
    if len(set(values)) > 1:
        _raise_if(f"rank {i} has {name} {value!r}" for i, value in enumerate(values))


def check_equal(values, *, counts=True):
    """Raise on all ranks if a value of the dict differs between ranks.

    A rank with ``counts`` false, such as one without rows, is not compared. The ranks may pass
    different names; differences are reported in the order of the first rank's names.
    """
    if n_ranks() == 1:
        return
    own = {name: (_digest(value), repr(value)) for name, value in values.items()}
    by_rank = dict(enumerate(gather(own if counts else None)))
    by_rank = {i: reported for i, reported in by_rank.items() if reported is not None}
    for name in dict.fromkeys(name for reported in by_rank.values() for name in reported):
        told = {i: reported.get(name, (None, "missing")) for i, reported in by_rank.items()}
        if len({digest for digest, _ in told.values()}) > 1:
            _raise_if(f"rank {i} has {name} {value}" for i, (_, value) in told.items())


def _digest(value):
    """Return a hash that is equal on all ranks, or a name if pickling fails, as for a lambda."""
    try:
        return joblib.hash(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return getattr(value, "__qualname__", None) or repr(value)


def meet(estimator, method):
    """Check that all ranks begin the same fit, by the method "fit" or "partial_fit".

    A `DistributedError` is raised if estimator, method, parameters or callbacks are not the same on
    all ranks, or if torchrun started several processes that have not formed a process group.
    """
    if n_ranks() == 1:
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise DistributedError(
                f"torchrun started this process as one of {os.environ['WORLD_SIZE']}, but no "
                "process group has been initialized, so each process would fit its own model. Call "
                "torch.distributed.init_process_group() before the fit; or, to fit alone, remove "
                "WORLD_SIZE from the environment."
            )
        return
    parameters = {
        f"parameter {name}": value
        for name, value in estimator.get_params().items()
        if name not in _MAY_DIFFER
    }
    callbacks = [type(callback).__name__ for callback in getattr(estimator, "_skl_callbacks", [])]
    who = {"estimator": type(estimator).__name__, "method": method, "callbacks": callbacks}
    check_equal(who | parameters)


def check_same(name, thing):
    """Raise on all ranks if the hash of an object, which may be large, differs between ranks."""
    if n_ranks() > 1:
        check_equal({name: joblib.hash(thing)})


def refuse_ranks(form, remedy):
    """Refuse a group of processes for a form of an estimator whose fit cannot be shared."""
    if n_ranks() > 1:
        raise ValueError(f"{form} runs in one process; there are {n_ranks()}. {remedy}")


def _raise_if(messages):
    if messages := list(messages):
        raise DistributedError(f"The ranks cannot fit together: {'; '.join(messages)}.")


@contextmanager
def _exchange():
    try:
        yield
    except RuntimeError as error:
        raise DistributedError(
            f"Rank {rank()} of {n_ranks()} could not exchange sums with the others: one of them "
            "has ended, is not in this fit, or took longer than the time-out of the process group "
            "(init_process_group's timeout). That rank's own error message gives the cause."
        ) from error
