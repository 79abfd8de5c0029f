"""Noise of regressors; a WhiteKernel in the kernel's sum is Gaussian noise."""

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel, Sum, WhiteKernel

from ._optim import NOISE_BOUNDS, PARAMETER_BOUNDS
from ._targets import regression_sites
from ._torch_kernels import latent_kernels

INITIAL_VARIANCE = 0.1  # of the noise of standardized targets


def split_noise(kernel):
    """Split the sum at the top of a kernel into functions and noise.

    The former is the sum without its `WhiteKernel` terms, None where nothing is left; the latter a
    list of these, however the sum is nested.
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

    ``template`` is the kernel that was split. The result has its terms in the same places, with
    their bounds. ``functions`` have learned values; ``level`` is the variance of the noise.
    """
    if type(template) is WhiteKernel:
        return WhiteKernel(level, template.noise_level_bounds)
    if type(template) is not Sum or not split_noise(template)[1]:
        return functions
    left = [split_noise(part)[0] is not None for part in (template.k1, template.k2)]
    parts = (functions.k1, functions.k2) if all(left) else (functions, functions)
    pairs = zip((template.k1, template.k2), parts, strict=True)
    return Sum(*(with_noise(part, own, level) for part, own in pairs))


def noise_entries(kernel):
    """Return which entries of a kernel's theta are the noise of `split_noise`, a mask (k,)."""
    if type(kernel) is Sum:
        return np.concatenate([noise_entries(kernel.k1), noise_entries(kernel.k2)])
    return np.full(kernel.n_dims, type(kernel) is WhiteKernel)


@dataclass(frozen=True)
class GivenNoise:
    """Gaussian noise given by a `WhiteKernel`, with one variance for all outputs."""

    # Variance if it is fixed, else its initial value, in squared units of the normalized y
    level: float
    limits: tuple  # of two floats: bounds of the log variance; equal if it is fixed

    @property
    def fixed(self):
        return self.limits[0] == self.limits[1]


def given_noise(kernel):
    """Return the `GivenNoise` of a `WhiteKernel` in a kernel's sum, None if there is no such term.

    A ValueError is raised if there are several such terms, no term of another kind, or no noise.
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
    if not white.noise_level > 0:
        raise ValueError(
            f"kernel={kernel!r} has a WhiteKernel of noise_level={white.noise_level!r}, but noise "
            "must be positive. Give a small number, such as 1e-10."
        )
    if white.hyperparameter_noise_level.fixed:
        limits = (math.log(white.noise_level),) * 2
    else:
        low, high = white.bounds[0]
        limits = max(low, min(NOISE_BOUNDS[0], high)), high
    return GivenNoise(float(white.noise_level), tuple(map(float, limits)))


@dataclass(frozen=True)
class Noise:
    """Parameters of a likelihood; ``given`` is the noise that a `WhiteKernel` gives, if any."""

    given: GivenNoise | None = None

    def split(self, kernel):
        """Return a kernel without its noise, and the whole kernel if it has noise, else None.

        A ValueError is raised if noise is left.
        """
        functions, whole = (
            (kernel, None) if self.given is None else (split_noise(kernel)[0], kernel)
        )
        if _has_noise(functions):
            raise ValueError(
                "The kernel has a WhiteKernel where it is not the noise of the targets. "
                "Regressors with Gaussian noise take it as a term of the sum at the top of their "
                "kernel, as in 1.0 * RBF() + WhiteKernel(); not in products or powers, and not "
                "with other likelihoods, which have noise of their own. Of the classifiers, only "
                "EPClassifier takes it. Leave it out here."
            )
        return functions, whole

    @property
    def is_free(self):
        """True if the parameters may be learned."""
        return self.given is None or not self.given.fixed

    def limits(self, default=PARAMETER_BOUNDS):
        """Return bounds of the parameters' logarithms: those of the `WhiteKernel`, or a default."""
        return default if self.given is None else self.given.limits


class LatentNoise(Noise):
    """Noise of the latent functions: a `WhiteKernel` remains a part of their kernel."""

    def split(self, kernel):
        return kernel, None


def _has_noise(kernel):
    """Return whether a kernel has a `WhiteKernel` at any depth; None has not."""
    if not isinstance(kernel, Kernel):
        return False
    parts = chain(latent_kernels(kernel), kernel.get_params(deep=False).values())
    inner = (part for part in parts if part is not kernel)
    return type(kernel) is WhiteKernel or any(map(_has_noise, inner))


@dataclass(frozen=True)
class RegressionNoise(Noise):
    """Noise of a regression, as a likelihood with a variance for each output."""

    likelihood: str = "gaussian"  # A key of `LIKELIHOODS` or `VARYING_NOISE`
    n_outputs: int = 1  # number of outputs, t

    def sites(self, variance=None):
        """Return the likelihood with the kernel's noise, or with a variance of all outputs.

        The variance is `INITIAL_VARIANCE` if it is None.
        """
        if self.given is None:
            variance = INITIAL_VARIANCE if variance is None else variance
            return self.sites_of(np.full(self.n_outputs, variance))
        return self.sites_of(np.array([self.given.level]))

    def sites_of(self, variances):
        """Return the likelihood with these noise variances, (t,) or (1,)."""
        return regression_sites(self.likelihood, variances, self.n_outputs)

    def variance(self, parameters):
        """Return the noise variances, (t,) or (1,), at parameters of the likelihood."""
        likelihood = self.sites(1.0).at(parameters).likelihood
        n_latents = likelihood.latents_per_output * len(parameters)
        return likelihood.predict(*torch.zeros(2, n_latents).to(parameters))[1]
