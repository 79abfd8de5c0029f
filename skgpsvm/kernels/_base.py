"""Base class of the covariance functions with one length-scale parameter."""

from typing import Literal

import numpy as np
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from .._typing import ArrayLike

Bounds = ArrayLike | Literal["fixed"]
MeasureLike = tuple[str | float, ...] | ArrayLike


def format_values(value):
    """Return a number or a vector as text, as kernels show it."""
    value = np.ravel(value)
    return f"{value[0]:.3g}" if value.size == 1 else f"[{', '.join(f'{v:.3g}' for v in value)}]"


class LengthScaleKernel(Kernel):
    """Kernel whose only hyperparameter is `length_scale`, a number or one for each feature."""

    @property
    def hyperparameter_length_scale(self) -> Hyperparameter:
        """Return the specification of the length scale that scikit-learn's optimizers read."""
        return Hyperparameter(
            "length_scale", "numeric", self.length_scale_bounds, np.size(self.length_scale)
        )
