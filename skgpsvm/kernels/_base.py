"""Base classes of the covariance functions that scikit-learn lacks."""

from typing import Literal, overload

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from .._isolation import isolated
from .._torch_kernels import torch_kernel
from .._typing import ArrayLike

Bounds = ArrayLike | Literal["fixed"]
MeasureLike = tuple[str | float, ...] | ArrayLike


def format_values(value):
    """Return a number or a vector as text, as kernels show it."""
    value = np.ravel(value)
    return f"{value[0]:.3g}" if value.size == 1 else f"[{', '.join(f'{v:.3g}' for v in value)}]"


class NonstationaryKernel(Kernel):
    """Kernel with the interface of scikit-learn's, which its torch form computes."""

    @overload
    def __call__(
        self, X: ArrayLike, Y: ArrayLike | None = None, eval_gradient: Literal[False] = False
    ) -> np.ndarray: ...

    @overload
    def __call__(
        self, X: ArrayLike, Y: None = None, *, eval_gradient: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    def __call__(
        self, X: ArrayLike, Y: ArrayLike | None = None, eval_gradient: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return k(X, Y), and on request the gradient of k(X, X) in theta."""
        if eval_gradient and Y is not None:
            raise ValueError("Gradient can only be evaluated when Y is None.")
        return self._evaluate(X, Y, eval_gradient)

    def _tensors(self, *arrays):
        """Return the torch form, theta, and the arrays as tensors."""
        copies = (np.array(np.atleast_2d(array), dtype=float, order="C") for array in arrays)
        return torch_kernel(self), torch.tensor(self.theta), *map(torch.from_numpy, copies)

    @isolated()
    def _evaluate(self, X, Y, eval_gradient):
        """Return what a call does; Y is None, for X, where the gradient is wanted."""
        k, theta, X, Z = self._tensors(X, X if Y is None else Y)
        if not (eval_gradient and len(theta)):
            K = k(X, Z, theta).numpy()
            return (K, np.empty((*K.shape, 0))) if eval_gradient else K
        with torch.enable_grad():
            K = k(X, Z, theta.requires_grad_())
            # The gradient of a weighted sum of entries is linear in the weights.
            weights = torch.zeros_like(K, requires_grad=True)
            (weighted,) = torch.autograd.grad(K, theta, weights, create_graph=True)
            parts = (torch.autograd.grad(sum_, weights, retain_graph=True) for sum_ in weighted)
            gradient = torch.stack([part for (part,) in parts], 2)
        return K.detach().numpy(), gradient.numpy()

    @isolated()
    def diag(self, X: ArrayLike) -> np.ndarray:
        k, theta, X = self._tensors(X)
        return k.diag(X, theta).numpy()

    def is_stationary(self) -> bool:
        return False


class LengthScaleKernel(NonstationaryKernel):
    """Kernel whose only hyperparameter is `length_scale`, a number or one for each feature."""

    @property
    def hyperparameter_length_scale(self) -> Hyperparameter:
        """Return the specification of the length scale that scikit-learn's optimizers read."""
        return Hyperparameter(
            "length_scale", "numeric", self.length_scale_bounds, np.size(self.length_scale)
        )
