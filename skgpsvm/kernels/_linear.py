"""Linear kernels: one with a length scale per feature, and the torch form of DotProduct."""

from __future__ import annotations

import torch
from sklearn.gaussian_process.kernels import DotProduct

from .._csr import squared_norms
from .._torch_kernels import FeatureKernel, check_per_feature, register_torch_kernel
from .._transfers import to_device
from .._typing import ArrayLike
from ._base import Bounds, LengthScaleKernel, format_values


class Linear(LengthScaleKernel):
    r"""Linear kernel with a length scale for each feature.

    .. math::
        k(x, x') = \sum_j \frac{(x_j - o_j)(x'_j - o_j)}{\ell_j^2}

    It is the prior of a linear function that is zero at the offset :math:`o` and whose slopes are
    independent and normal with standard deviation :math:`1 / \ell_j`.

    Parameters
    ----------
    length_scale : float or ndarray of shape (d,), default=1.0
        Length scale of all features, or of each.
    length_scale_bounds : pair of floats >= 0 or "fixed", default=(1e-5, 1e5)
        Lower and upper bound on `length_scale`; "fixed" keeps it out of the optimization.
    offset : float or ndarray of shape (d,), default=0.0
        Where the function is zero, in the units of X. It is not a hyperparameter: it has no
        bounds and is never learned.

    Raises
    ------
    ValueError
        On evaluation, if `length_scale` or `offset` fits neither a scalar nor the features of X.

    Notes
    -----
    Source: Rasmussen and Williams (2006), section 4.2.2, the dot-product kernel with a diagonal
    covariance of the weights.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm.kernels import Linear
    >>> Linear(length_scale=[1.0, 2.0])(np.array([[1.0, 2.0], [3.0, 0.0]]))
    array([[2., 3.],
           [3., 9.]])
    """

    def __init__(
        self,
        length_scale: ArrayLike = 1.0,
        length_scale_bounds: Bounds = (1e-5, 1e5),
        offset: ArrayLike = 0.0,
    ) -> None:
        self.length_scale = length_scale
        self.length_scale_bounds = length_scale_bounds
        self.offset = offset

    def __repr__(self):
        length_scale, offset = format_values(self.length_scale), format_values(self.offset)
        return f"{type(self).__name__}(length_scale={length_scale}, offset={offset})"


@register_torch_kernel(Linear)
class _TorchLinear(FeatureKernel):
    takes_sparse = True

    def __init__(self, kernel, start):
        super().__init__(kernel, start)
        self._offset = torch.tensor(kernel.offset, dtype=torch.float64).squeeze()

    def __call__(self, X, Z, theta):
        if not X.is_sparse:
            return super().__call__(X, Z, theta)
        offset, scale = self._offset_of(X).to(X.dtype), self.per_feature("length_scale", theta, X)
        weights = (Z - offset).to(X.dtype) / scale.square()
        return X @ weights.T.contiguous() - weights @ offset

    def diag(self, X, theta):
        if not X.is_sparse:
            return super().diag(X, theta)
        offset, scale = self._offset_of(X).to(X.dtype), self.per_feature("length_scale", theta, X)
        factors = scale.square().reciprocal()
        cross = X @ (-2 * factors * offset) + (factors * offset.square()).sum()
        return squared_norms(X, factors) + cross

    def _offset_of(self, X):
        """Return the offset of each column of ``X``, (d,)."""
        check_per_feature("offset of Linear", self._offset, X.shape[1])
        return to_device(self._offset, X.device).expand(X.shape[1])

    def n_exact_features(self, d):
        return d

    def exact_features(self, X, theta):
        centered = (X.to_dense() - self._offset_of(X)).to(X.dtype)
        return centered / self.per_feature("length_scale", theta, X)


@register_torch_kernel(DotProduct)
class _DotProduct(FeatureKernel):
    """Torch form of DotProduct, sigma_0^2 + x . z."""

    takes_sparse = True

    def __call__(self, X, Z, theta):
        if not X.is_sparse:
            return super().__call__(X, Z, theta)
        return X @ Z.T.to(X.dtype).contiguous() + self.value("sigma_0", theta, X).square()

    def diag(self, X, theta):
        if not X.is_sparse:
            return super().diag(X, theta)
        sigma = self.value("sigma_0", theta, X)
        return squared_norms(X, torch.ones_like(sigma)) + sigma.square()

    def n_exact_features(self, d):
        return d + 1

    def exact_features(self, X, theta):
        return torch.cat([self.value("sigma_0", theta, X).expand(X.shape[0], 1), X.to_dense()], 1)
