"""Fitted models, and starts of fits: NumPy arrays, and the torch posterior that they define."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel

from ._bases import KernelBases
from ._features import FourierBases, FourierFeatures, NystroemFourierBases
from ._local_variances import LocalVariances
from ._noise import noise_entries, with_noise
from ._posteriors import (
    DecoupledPosterior,
    IndependentPosterior,
    InducingPosterior,
    WeightPosterior,
    whitened_basis,
)
from ._torch_kernels import torch_kernels, with_theta
from .kernels._composite import exact_and_rest

# Layout of fitted models in pickles and of states in checkpoints; those of another are refused.
# Raise it with every change of what they hold or mean.
LAYOUT = 14


class FittedModel(ABC):
    """Arrays of a fitted model, and the torch posterior that they define.

    A posterior holds factorizations, so it is made once for each device and kept with the model.
    Pickles and copies by `dataclasses.replace` leave it out, and torch kernels too.
    """

    def posterior(self, device):
        """Return the posterior on a device; its tensors take no gradients and must not change."""
        device = torch.device(device)
        # Threads that come here at the same time may make it twice; the results are the same.
        made = vars(self).setdefault("_posteriors", {})
        if device not in made:
            made[device] = self.make_posterior(device)
        return made[device]

    @abstractmethod
    def make_posterior(self, device):
        """Return a new posterior on a device."""

    def comparable(self):
        """Return the model without what cannot be hashed, for ranks to compare."""
        return self

    def __getstate__(self):
        # A copy, since a prediction in another thread may add the posteriors meanwhile.
        made = {"_posteriors", "torch_kernels"}
        return {name: part for name, part in vars(self).items() if name not in made}


@dataclass
class SparseModel(FittedModel):
    """Sparse GP of one kernel and one set of inducing points; without a posterior, a start."""

    # A `CompoundKernel` has one kernel for each of several groups of latent functions
    kernel: Kernel
    Z: np.ndarray  # (m, d): inducing points
    noise: tuple  # of k floats: logarithms of the likelihood's parameters
    # mean (c, p), root (c, p, p): posterior of the whitened weights, see `InducingPosterior`; None
    # before there is one
    mean: np.ndarray | None = None
    root: np.ndarray | None = None
    jitter: float = 1e-6  # see `WhitenedBasis`
    # The kernel that ``kernel`` is a part of, if that has a `WhiteKernel`
    template: Kernel | None = None

    @cached_property
    def torch_kernels(self):
        """Torch forms of the kernel of each group, a tuple of functions of the whole theta."""
        return torch_kernels(self.kernel)

    @property
    def whole_kernel(self):
        """The kernel, with the noise among its terms if the template has it there."""
        if self.template is None:
            return self.kernel
        return with_noise(self.template, self.kernel, math.exp(self.noise[0]))

    @property
    def n_latents(self):
        """Number of latent functions, c."""
        return len(self.mean)

    @property
    def uses_points(self):
        """True if a term of the kernel is projected on the inducing points."""
        m, d = self.Z.shape
        return any(exact_and_rest(part, d, m)[1] for part in self.torch_kernels)

    def state(self, device):
        """Return new float64 tensors of all arrays that there are, by name."""
        parts = {"theta": self.kernel.theta, "noise": self.noise}
        parts |= {name: part for name, part in vars(self).items() if isinstance(part, np.ndarray)}
        return {
            name: torch.tensor(part, dtype=torch.float64, device=device)
            for name, part in parts.items()
        }

    def at(self, state):
        """Return a copy with the values of a `State`, or of tensors by name."""
        tensors = state if isinstance(state, dict) else vars(state)
        names = tensors.keys() & vars(self).keys() - {"kernel", "noise"}
        parts = {name: tensors[name].cpu().numpy() for name in names if tensors[name] is not None}
        kernel = with_theta(self.kernel, tensors["theta"].cpu().numpy())
        return replace(self, kernel=kernel, noise=tuple(tensors["noise"].tolist()), **parts)

    def at_theta(self, theta):
        """Return a copy whose whole kernel, noise included, has another theta, ndarray (k,)."""
        of_noise = noise_entries(self.whole_kernel)
        noise = tuple(theta[of_noise].tolist()) if of_noise.any() else self.noise
        return replace(self, kernel=with_theta(self.kernel, theta[~of_noise]), noise=noise)

    def basis(self, device):
        """Return the whitened features of the inducing points."""
        state = self.state(device)
        return whitened_basis(self.torch_kernels, state["theta"], state["Z"], self.jitter)

    def make_posterior(self, device):
        state, bases = self.state(device), self.basis(device).groups
        moments = (state[name].chunk(len(bases)) for name in ("mean", "root"))
        parts = [
            InducingPosterior(basis, mean[:, : basis.size], root[:, : basis.size, : basis.size])
            for basis, mean, root in zip(bases, *moments, strict=True)
        ]
        return parts[0] if len(parts) == 1 else IndependentPosterior(parts)

    def with_bases(self, bases):
        """Return a `DecoupledModel` with these bases of the mean."""
        return DecoupledModel(**_fields(self, SparseModel), bases=bases)


@dataclass
class ModelWithBases(SparseModel):
    """Model whose mean has bases besides the inducing points, or in their place."""

    # Points (M, d) at which the bases are kernels, or random features
    bases: np.ndarray | FourierFeatures | None = None
    coef: np.ndarray | None = None  # (c, M): coefficients of the bases
    power: float = 1.0  # see `DecoupledPosterior`; 1 changes nothing
    # Arrays of the state of stochastic steps, from which a further call continues
    steps: dict | None = None

    @property
    def n_latents(self):
        return len(self.coef)

    def mean_bases(self, device):
        """Return the functions that span the mean."""
        state, (kernel,) = self.state(device), self.torch_kernels
        if isinstance(self.bases, FourierFeatures):
            if self.bases.nystroem and (basis := self.basis(device)).projected:
                return NystroemFourierBases(basis, self.bases, self.Z.shape[1])
            return FourierBases(kernel, state["theta"], self.bases, self.Z.shape[1])
        return KernelBases(kernel, state["theta"], state["bases"])

    def with_weights(self, tensors):
        """Return a `WeightSpaceModel`, given tensors of its posterior by name."""
        parts = {name: part.cpu().numpy() for name, part in tensors.items()}
        parts |= {"mean": None, "root": None}
        return WeightSpaceModel(**_fields(self, ModelWithBases) | parts)


@dataclass
class DecoupledModel(ModelWithBases):
    """Model whose mean has bases of its own, and whose covariance has the inducing points."""

    # (c, M) or (c, M, M): what the rows so far say about the bases, see `DecoupledStream`
    gram: np.ndarray | None = None
    # row_precisions (c, M), local_root (c, p, p): site precisions of the rows that are the bases,
    # and the root of `LocalVariances`; None if the variances are those of the inducing points
    row_precisions: np.ndarray | None = None
    local_root: np.ndarray | None = None

    def make_posterior(self, device):
        state, basis = self.state(device), self.basis(device)
        parts = state["mean"], state["root"], self.mean_bases(device), state["coef"]
        local = None
        if self.local_root is not None:
            sites = {name: state[name] for name in ("local_root", "row_precisions")}
            local = LocalVariances(basis, state["bases"], **sites)
        return DecoupledPosterior(basis, *parts, self.power, local)


@dataclass
class WeightSpaceModel(ModelWithBases):
    """Model with a posterior over the weights of its bases; it has no inducing points."""

    # diag (c, M), columns (c, M, k): factor of the covariance, see `WeightPosterior`
    diag: np.ndarray | None = None
    columns: np.ndarray | None = None
    # rows (n, d), row_precisions (c, n): rows that augment the variance, and their precisions
    rows: np.ndarray | None = None
    row_precisions: np.ndarray | None = None

    def make_posterior(self, device):
        state = self.state(device)
        names = ("coef", "diag", "columns", "rows", "row_precisions")
        return WeightPosterior(self.mean_bases(device), *(state.get(name) for name in names))


def _fields(model, kind):
    """Return the fields of a model that one of its classes has, by name."""
    return {field.name: getattr(model, field.name) for field in fields(kind)}
