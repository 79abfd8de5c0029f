"""A kernel of some columns of X, and its torch form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from .._torch_kernels import TorchKernel, register_torch_kernel, torch_kernel
from .._typing import ArrayLike
from ._base import NonstationaryKernel


class Columns(NonstationaryKernel):
    """Kernel of some columns of X.

    Products and sums of such kernels have different kernels for different features: a periodic one
    for time, say, and a squared exponential for the others. They are needed for ``ExpSineSquared``,
    which is not positive definite as a kernel of several features.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels
        Kernel of these columns. Its hyperparameters are those of the whole, with the prefix
        ``kernel__``.
    columns : sequence of int
        Places of the columns in X, from 0 on, each once.

    Raises
    ------
    ValueError
        On evaluation, if `columns` are not such places.

    See Also
    --------
    sklearn.compose.ColumnTransformer : Other features for different columns.

    Notes
    -----
    Source: none; other libraries call the columns active dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF, ExpSineSquared
    >>> from skgpsvm.kernels import Columns
    >>> kernel = Columns(ExpSineSquared(periodicity=24.0), [0]) * Columns(RBF(), [1, 2])
    >>> kernel(np.array([[0.0, 1.0, 2.0], [24.0, 1.0, 2.0]])).round(6)
    array([[1., 1.],
           [1., 1.]])
    """

    def __init__(self, kernel: Kernel, columns: Sequence[int]) -> None:
        self.kernel = kernel
        self.columns = columns

    def get_params(self, deep: bool = True) -> dict:
        """Return the parameters by name, with those of the kernel if ``deep``."""
        found = {"kernel": self.kernel, "columns": self.columns}
        inner = self.kernel.get_params() if deep else {}
        return found | {f"kernel__{name}": value for name, value in inner.items()}

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """Return the specifications of the kernel's hyperparameters."""
        return [
            Hyperparameter(f"kernel__{h.name}", h.value_type, h.bounds, h.n_elements, h.fixed)
            for h in self.kernel.hyperparameters
        ]

    def _evaluate(self, X, Y, eval_gradient):
        return self.kernel(self._of(X), None if Y is None else self._of(Y), eval_gradient)

    def diag(self, X: ArrayLike) -> np.ndarray:
        return self.kernel.diag(self._of(X))

    def is_stationary(self) -> bool:
        return self.kernel.is_stationary()

    def __repr__(self):
        return f"{type(self).__name__}({self.kernel!r}, {list(self.columns)!r})"

    def _of(self, X):
        """Return the columns of X."""
        X = np.atleast_2d(X)
        return X[:, checked_columns(self.columns, X.shape[1])]


def checked_columns(columns, d):
    """Return columns as a list of int, after a check that they are different places of d."""
    found = np.asarray(columns)
    is_list = found.ndim == 1 and found.dtype.kind in "iu" and 0 < len(set(found)) == len(found)
    if not is_list or found.min() < 0 or found.max() >= d:
        raise ValueError(
            f"columns={columns!r} of Columns must be a list of different integers from 0 to "
            f"{d - 1}, as X has {d} feature(s)."
        )
    return found.tolist()


@register_torch_kernel(Columns)
class _TorchColumns(TorchKernel):
    def __init__(self, kernel, start):
        self._inner, self._columns = torch_kernel(kernel.kernel, start), kernel.columns
        self.returns_new_memory = self._inner.returns_new_memory
        self.takes_double_points = self._inner.takes_double_points

    def _of(self, X):
        return X[:, checked_columns(self._columns, X.shape[1])]

    def __call__(self, X, Z, theta):
        return self._inner(self._of(X), self._of(Z), theta)

    def diag(self, X, theta):
        return self._inner.diag(self._of(X), theta)

    def vjp(self, X, Z, theta, points=True):
        value, pull_back_own = self._inner.vjp(self._of(X), self._of(Z), theta, points)

        def pull_back(adjoint):
            by_theta, by_own = pull_back_own(adjoint)
            by_Z = torch.zeros_like(Z)
            by_Z[:, checked_columns(self._columns, Z.shape[1])] = by_own
            return by_theta, by_Z

        return value, pull_back

    def diag_gradient(self, X, theta, adjoint):
        return self._inner.diag_gradient(self._of(X), theta, adjoint)

    def n_exact_features(self, d):
        return self._inner.n_exact_features(len(self._columns))

    def exact_features(self, X, theta):
        return self._inner.exact_features(self._of(X), theta)
