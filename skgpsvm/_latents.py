"""What a fitted model holds, or a fit starts from: arrays, and the posterior that they are."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel

from ._bases import KernelBases
from ._features import FourierBases, FourierFeatures, NystroemFourierBases
from ._noise import with_noise
from ._posteriors import DecoupledPosterior, InducingPosterior, WeightPosterior, WhitenedBasis
from ._torch_kernels import torch_kernel
from .kernels._composite import exact_and_rest


class FittedModel(ABC):
    """Arrays of a fitted model, and the torch posterior that they define.

    A posterior holds factorizations, so it is made once for each device and kept with the model.
    Pickles and copies by `dataclasses.replace` leave it out.
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

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_posteriors"}


@dataclass
class Latents(FittedModel):
    """Latents of one kernel and one set of inducing points: a posterior, or the start of a fit.

    Attributes
    ----------
    kernel : Kernel
    Z : ndarray of shape (m, d)
    noise : tuple of k floats
        Logarithms of the likelihood's parameters.
    mean, root : ndarray of shape (c, p), (c, p, p), or None
        Of the weights, see `InducingPosterior`.
    jitter : float
        See `WhitenedBasis`.
    bases : ndarray of shape (M, d), FourierFeatures or None
        Further bases of the mean: points, or random features.
    coef : ndarray of shape (c, M), or None
        See `DecoupledPosterior`.
    gram : ndarray of shape (c, M) or (c, M, M), or None
        What the rows so far say about them, see `DecoupledStream`.
    power : float
        See `DecoupledPosterior`.
    diag, columns : ndarray of shape (c, M), (c, M, k), or None
        See `WeightPosterior`.
    rows, row_precisions : ndarray of shape (n, d), (c, n), or None
        Likewise.
    steps : dict or None
        State of the stochastic steps that led here, to go on from, in arrays.
    template : Kernel or None
        The kernel that `kernel` is a part of, where it has a `WhiteKernel`.
    """

    kernel: Kernel
    Z: np.ndarray
    noise: tuple
    mean: np.ndarray | None = None
    root: np.ndarray | None = None
    jitter: float = 1e-6
    bases: np.ndarray | FourierFeatures | None = None
    coef: np.ndarray | None = None
    gram: np.ndarray | None = None
    power: float = 1.0
    diag: np.ndarray | None = None
    columns: np.ndarray | None = None
    rows: np.ndarray | None = None
    row_precisions: np.ndarray | None = None
    steps: dict | None = None
    template: Kernel | None = None

    @property
    def whole_kernel(self):
        """The kernel, the noise among its terms if the template has it there."""
        if self.template is None:
            return self.kernel
        return with_noise(self.template, self.kernel, math.exp(self.noise[0]))

    @property
    def n_latents(self):
        """Their number, c."""
        return len(self.mean if self.coef is None else self.coef)

    @property
    def uses_points(self):
        """Whether a term of the kernel is projected on the inducing points."""
        m, d = self.Z.shape
        return exact_and_rest(torch_kernel(self.kernel), d, m)[1] is not None

    def state(self, device):
        """The tensors of the parts there are, by name."""
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
        kernel = self.kernel.clone_with_theta(tensors["theta"].cpu().numpy())
        return replace(self, kernel=kernel, noise=tuple(tensors["noise"].tolist()), **parts)

    def basis(self, device):
        """The whitened features."""
        state = self.state(device)
        return WhitenedBasis(torch_kernel(self.kernel), state["theta"], state["Z"], self.jitter)

    def mean_bases(self, device):
        """The functions that span the mean."""
        state, kernel = self.state(device), torch_kernel(self.kernel)
        if isinstance(self.bases, FourierFeatures):
            if self.bases.nystroem and (basis := self.basis(device)).projected:
                return NystroemFourierBases(basis, self.bases, self.Z.shape[1])
            return FourierBases(kernel, state["theta"], self.bases, self.Z.shape[1])
        return KernelBases(kernel, state["theta"], state["bases"])

    def make_posterior(self, device):
        state = self.state(device)
        if self.diag is not None:
            names = ("coef", "diag", "columns", "rows", "row_precisions")
            parts = (state.get(name) for name in names)
            return WeightPosterior(self.mean_bases(device), *parts)
        basis = self.basis(device)
        parts = basis, state["mean"], state["root"]
        if self.bases is None:
            return InducingPosterior(*parts)
        return DecoupledPosterior(*parts, self.mean_bases(device), state["coef"], self.power)
