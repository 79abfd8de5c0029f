"""Treat a WhiteKernel in a regressor's kernel as its Gaussian noise."""

import math
from dataclasses import dataclass

from sklearn.gaussian_process.kernels import Kernel, Sum, WhiteKernel

from ._optim import NOISE_BOUNDS


def split_noise(kernel):
    """Split the sum at the top of a kernel into functions and noise.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel

    Returns
    -------
    functions : Kernel or None
        The sum without its `WhiteKernel`; None where nothing is left.
    noise : list of WhiteKernel
        The `WhiteKernel` terms of the sum, however it is nested.
    """
    if type(kernel) is WhiteKernel:
        return None, [kernel]
    if type(kernel) is not Sum:
        return kernel, []
    (first, some), (second, others) = split_noise(kernel.k1), split_noise(kernel.k2)
    if not (some or others):
        return kernel, []
    left = [part for part in (first, second) if part is not None]
    return (Sum(*left) if len(left) == 2 else next(iter(left), None)), some + others


def with_noise(template, functions, level):
    """Return the kernel with functions and noise joined again: the inverse of `split_noise`.

    Parameters
    ----------
    template : Kernel
        The kernel that was split. The result has its terms in the same places, with their bounds.
    functions : Kernel or None
        Its functions, with learned values.
    level : float
        Variance of the noise.
    """
    if type(template) is WhiteKernel:
        return WhiteKernel(level, template.noise_level_bounds)
    if type(template) is not Sum or not split_noise(template)[1]:
        return functions
    left = [split_noise(part)[0] is not None for part in (template.k1, template.k2)]
    parts = (functions.k1, functions.k2) if all(left) else (functions, functions)
    pairs = zip((template.k1, template.k2), parts, strict=True)
    return Sum(*(with_noise(part, own, level) for part, own in pairs))


@dataclass(frozen=True)
class GivenNoise:
    """Gaussian noise given by a `WhiteKernel`, with one variance for all outputs.

    Attributes
    ----------
    level : float
        Variance if it is fixed, else its initial value, in squared units of the normalized y.
    limits : tuple of two floats
        Bounds of the log variance; equal if it is fixed.
    """

    level: float
    limits: tuple

    @property
    def fixed(self):
        """Whether the variance is fixed, not learned."""
        return self.limits[0] == self.limits[1]


def given_noise(kernel):
    """Return the noise given by a `WhiteKernel` in a kernel's sum.

    Parameters
    ----------
    kernel : Kernel, str or None
        The estimator's parameter `kernel`.

    Returns
    -------
    noise : GivenNoise or None
        None if the kernel has no such term.

    Raises
    ------
    ValueError
        If there are several such terms, or no term of another kind.
    """
    if not isinstance(kernel, Kernel):
        return None
    functions, whites = split_noise(kernel)
    if not whites:
        return None
    if len(whites) > 1 or functions is None:
        raise ValueError(
            f"kernel={kernel!r} must have one WhiteKernel, which is the noise, beside a kernel of "
            "the function, such as 1.0 * RBF() + WhiteKernel()."
        )
    (white,) = whites
    if white.hyperparameter_noise_level.fixed:
        limits = (math.log(white.noise_level),) * 2
    else:
        low, high = white.bounds[0]
        limits = max(low, min(NOISE_BOUNDS[0], high)), high
    return GivenNoise(float(white.noise_level), tuple(map(float, limits)))
