"""The squared exponential kernel whose rows may have length scales of their own."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from .._memory import SMALL_BLOCK, block_rows
from .._torch_kernels import TorchKernel, register_torch_kernel, spare
from .._typing import ArrayLike
from ._base import Bounds, LengthScaleKernel, format_values
from ._stationary import RBF_PROFILE, stationary

# Factors per product; with four, single precision does not overflow for multipliers below e^11.
_FACTORS = 4


class MultiscaleRBF(LengthScaleKernel):
    r"""Squared exponential kernel whose rows may have length scales of their own.

    .. math::
        k(x, x') = \prod_j \sqrt{\frac{2 l_j l'_j}{l_j^2 + l_j'^2}}
        \exp\Bigl(-\frac{(x_j - x'_j)^2}{l_j^2 + l_j'^2}\Bigr), \qquad
        l_j = c_j \ell_j, \quad l'_j = c'_j \ell_j

    Each row is either a plain point, of d columns, whose multipliers :math:`c_j` are one, or has
    2 d columns: the point, and then the natural logarithms of its d multipliers. The variance is
    one whatever the multipliers. Between plain points this is scikit-learn's ``RBF``; rows with
    multipliers serve as inducing functions wider or narrower than it.

    Parameters
    ----------
    length_scale : float or ndarray of shape (d,), default=1.0
        Length scale :math:`\ell_j` of all features, or of each.
    length_scale_bounds : pair of floats >= 0 or "fixed", default=(1e-5, 1e5)
        Lower and upper bound on `length_scale`; "fixed" keeps it out of the optimization.
    n_features : int, default=None
        The number d of features. If None, it is the number of entries of `length_scale`; if that
        is one number, all rows are plain points, of equally many columns. It is not a
        hyperparameter.

    Raises
    ------
    ValueError
        On evaluation, if rows have neither d nor 2 d columns, or `length_scale` neither one entry
        nor d.

    Notes
    -----
    Source: Cheng and Boots (2017), equation 19. It is the inner product of the functions
    :math:`\prod_j (2 / \pi l_j^2)^{1/4} \exp(-(z_j - x_j)^2 / l_j^2)` of :math:`z`, hence positive
    definite for all multipliers.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm.kernels import MultiscaleRBF
    >>> kernel = MultiscaleRBF(length_scale=[1.0, 2.0])
    >>> X = np.array([[0.0, 0.0], [1.0, 2.0]])
    >>> kernel(X)
    array([[1.   , 0.368],
           [0.368, 1.   ]])
    >>> wider = np.hstack([X, np.log([[1.0, 1.0], [3.0, 1.5]])])
    >>> kernel(X, wider)
    array([[1.   , 0.495],
           [0.368, 0.744]])
    """

    def __init__(
        self,
        length_scale: ArrayLike = 1.0,
        length_scale_bounds: Bounds = (1e-5, 1e5),
        n_features: int | None = None,
    ) -> None:
        self.length_scale = length_scale
        self.length_scale_bounds = length_scale_bounds
        self.n_features = n_features

    def _n_features(self, *arrays):
        """Return the number of features, d, of the rows of all arrays."""
        return _check_columns(self.n_features, np.size(self.length_scale), *arrays)

    def _evaluate(self, X, Y, eval_gradient):
        X = np.atleast_2d(X)
        Y = X if Y is None else np.atleast_2d(Y)
        d = self._n_features(X, Y)
        length_scale = np.squeeze(np.asarray(self.length_scale, dtype=float))
        A, B = X[:, :d] / length_scale, Y[:, :d] / length_scale
        a, b = (np.exp(Z[:, d:]) if Z.shape[1] > d else np.ones(Z.shape) for Z in (X, Y))
        n_exponents = self.n_dims if eval_gradient and self.n_dims else 1
        exponents = np.zeros((n_exponents, len(X), len(Y)))
        squared_factor = np.ones((len(X), len(Y)))
        for j in range(d):
            squared_width = np.add.outer(a[:, j] ** 2, b[:, j] ** 2)
            squared_factor *= 2 * np.multiply.outer(a[:, j], b[:, j]) / squared_width
            exponents[j % n_exponents] += np.subtract.outer(A[:, j], B[:, j]) ** 2 / squared_width
        K = np.sqrt(squared_factor) * np.exp(-exponents.sum(0))
        if not eval_gradient:
            return K
        return K, 2 * K[:, :, np.newaxis] * np.moveaxis(exponents[: self.n_dims], 0, 2)

    def diag(self, X: ArrayLike) -> np.ndarray:
        X = np.atleast_2d(X)
        self._n_features(X)
        return np.ones(len(X))

    def __repr__(self):
        n_features = "" if self.n_features is None else f", n_features={self.n_features}"
        return f"{type(self).__name__}(length_scale={format_values(self.length_scale)}{n_features})"


def _check_columns(n_features, n_scales, *arrays):
    """Return the number of features, d; raise ValueError unless every array fits it."""
    widths = [array.shape[1] for array in arrays]
    if n_features is None and n_scales == 1:
        if len(set(widths)) > 1:
            raise ValueError(
                f"MultiscaleRBF got rows of {widths[0]} and of {widths[1]} columns; to tell "
                f"features from multipliers it needs n_features, or a length_scale with one entry "
                f"for each feature."
            )
        return widths[0]
    d = n_scales if n_features is None else n_features
    if n_scales not in (1, d):
        raise ValueError(
            f"length_scale of MultiscaleRBF has {n_scales} entries but n_features is {d}; "
            f"give a scalar or one entry for each feature."
        )
    for width in widths:
        if width not in (d, 2 * d):
            raise ValueError(
                f"MultiscaleRBF of {d} feature(s) takes rows of {d} column(s), or of {2 * d} with "
                f"the logarithms of their multipliers; got {width}."
            )
    return d


@register_torch_kernel(MultiscaleRBF)
class _TorchMultiscaleRBF(TorchKernel):
    returns_new_memory = takes_double_points = True

    def __init__(self, kernel, start):
        super().__init__(kernel, start)
        self._sizes = kernel.n_features, np.size(kernel.length_scale)

    def __call__(self, X, Z, theta):
        d = _check_columns(*self._sizes, X, Z)
        (A, a), (B, b) = ((rows[:, :d], rows[:, d:]) for rows in (X, Z))
        scale = self.per_feature("length_scale", theta, A)
        center = B.detach().mean(0) if len(B) else 0.0  # no rows would have NaN gradients
        A, B = ((points - center).to(X.dtype) for points in (A, B))
        b = b.to(X.dtype)
        if a.shape[1] and b.shape[1]:
            return _BothScaled.apply(A / scale, a, B / scale, b)
        if b.shape[1]:
            return _one_scaled(A, B, b, scale)
        if a.shape[1]:
            return _one_scaled(B, A, a, scale).T
        return stationary(RBF_PROFILE, A, B, scale)

    def diag(self, X, theta):
        return X.new_ones(X.shape[0])


def _one_scaled(A, B, b, scale):
    """MultiscaleRBF of plain points A (n, d) and points B (m, d) with log multipliers b (m, d).

    All are relative to a center, for small rounding errors.
    """
    A, B = A / scale, B / scale
    weight = torch.sigmoid(-2 * b)
    exponent = torch.addmm(
        (weight * B.square()).sum(1),
        torch.cat([A.square(), A], 1),
        torch.cat([weight, -2 * weight * B], 1).T,
    ).relu_()
    log_factor = ((math.log(2) - torch.logaddexp(b, -b)) / 2).sum(1)  # log sqrt(2 c / (1 + c^2))
    return torch.sub(log_factor, exponent, out=spare(exponent)).exp_()


class _BothScaled(torch.autograd.Function):
    r"""Return the kernel of points in units of length scales, by blocks, with derivatives by hand.

    With :math:`w_j = (a_j^2 + b_j^2) / 2` of the multipliers the logarithm is
    :math:`\frac12 \sum_j \log(a_j b_j / w_j) - (x_j - z_j)^2 / w_j`.
    """

    @staticmethod
    def forward(ctx, A, a, B, b):
        K = A.new_empty(len(A), len(B))
        sides = _sides(A, a, B, b)
        for rows in _blocks(K):
            twice_log = torch.add(a[rows].sum(1, keepdim=True), b.sum(1))
            product = torch.ones_like(twice_log)
            for j, (x, half, z, other_half) in enumerate(zip(*sides, strict=True), 1):
                width = torch.add(half[rows], other_half)
                product.mul_(width)
                twice_log.addcdiv_(torch.sub(x[rows], z).square_(), width, value=-1)
                if j % _FACTORS == 0 or j == A.shape[1]:
                    twice_log.sub_(product.log_())
                    product.fill_(1)
            torch.exp(twice_log.mul_(0.5), out=K[rows])
        ctx.save_for_backward(A, a, B, b, K)
        return K

    @staticmethod
    @once_differentiable
    def backward(ctx, adjoint):
        *points, K = ctx.saved_tensors
        sides = _sides(*points)
        adjoints = by_A, by_a, by_B, by_b = [torch.zeros_like(part) for part in points]
        for rows in _blocks(K):
            by_log = adjoint[rows] * K[rows]
            by_a[rows] += 0.5 * by_log.sum(1, keepdim=True)
            by_b += 0.5 * by_log.sum(0)[:, None]
            for j, (x, half, z, other_half) in enumerate(zip(*sides, strict=True)):
                inverse = torch.add(half[rows], other_half).reciprocal_()
                ratio = torch.sub(x[rows], z).mul_(inverse)
                by_width = inverse.addcmul_(ratio, ratio, value=-1).mul_(by_log)
                by_a[rows, j] -= half[rows, 0] * by_width.sum(1)
                by_b[:, j] -= other_half * by_width.sum(0)
                by_difference = ratio.mul_(by_log)
                by_A[rows, j] = -by_difference.sum(1)
                by_B[:, j] += by_difference.sum(0)
        return tuple(adjoints)


def _blocks(K):
    """Return slices of the rows of a matrix that fit in the cache."""
    size = block_rows(K.shape[1], SMALL_BLOCK)
    return [slice(start, start + size) for start in range(0, len(K), size)]


def _sides(A, a, B, b):
    """Yield a column and half its squared multipliers, of A and of B, for each feature."""
    left = (part.T.contiguous()[..., None] for part in (A, 0.5 * (2 * a).exp()))
    right = (part.T.contiguous() for part in (B, 0.5 * (2 * b).exp()))
    return *left, *right
