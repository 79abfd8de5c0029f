"""Copies of tensors from the memory of the CPU to that of a device."""

import torch

_PINNING = ("cuda",)  # devices that copy from pinned memory while the CPU goes on


def to_device(tensor, device, dtype=None):
    """Return a tensor on a device, in a dtype; it may be the tensor itself.

    A CUDA device copies from pinned memory, for which the CPU does not wait. It prepares the next
    rows while the device computes with these. Torch keeps the pinned memory until it is copied.
    """
    tensor = tensor.to(dtype=dtype)
    pins = torch.device(device).type in _PINNING and tensor.device.type == "cpu"
    pins = pins and not tensor.is_sparse
    return (tensor.pin_memory() if pins else tensor).to(device, non_blocking=pins)
