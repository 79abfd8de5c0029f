"""Base classes of the covariance functions that scikit-learn lacks."""

from abc import abstractmethod
from typing import Literal, overload

import numpy as np
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from .._typing import ArrayLike

Bounds = ArrayLike | Literal["fixed"]
MeasureLike = tuple[str | float, ...] | ArrayLike


def format_values(value):
    """Return a number or a vector as text, as kernels show it."""
    value = np.ravel(value)
    return f"{value[0]:.3g}" if value.size == 1 else f"[{', '.join(f'{v:.3g}' for v in value)}]"


class NonstationaryKernel(Kernel):
    """Kernel with the interface of scikit-learn's, which a subclass computes by `_evaluate`."""

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

    @abstractmethod
    def _evaluate(self, X, Y, eval_gradient):
        """Return what a call does; Y is None, for X, where the gradient is wanted."""

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
