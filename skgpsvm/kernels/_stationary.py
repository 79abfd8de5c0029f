"""Stationary covariance functions: profiles of scaled distances, and those of scikit-learn."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from sklearn.gaussian_process import kernels as sk

from .._csr import squared_norms
from .._torch_kernels import TorchKernel, register_torch_kernel, spare
from ._profiles import Matern

_CENTER_POINTS = 32


def _scaled(X, Z, scale):
    """Return X / scale and Z / scale relative to a center of Z, in the dtype of X.

    Differences to the center have small rounding errors, in the wider dtype of X and Z.
    The center is the mean, but between the quartiles of some points, so that a far point does not
    cause rounding errors of the others. Sparse rows are not centered, so that they stay sparse.
    """
    if X.is_sparse:
        return X * scale.reciprocal(), Z.to(X.dtype) / scale
    center = _center(Z.detach()) if len(Z) else 0.0  # no rows would have NaN gradients
    A = (X - center).to(X.dtype) / scale
    return A, A if Z is X else (Z - center).to(X.dtype) / scale


def _center(Z):
    some = Z[:: len(Z) // _CENTER_POINTS + 1].sort(0).values
    n = len(some)
    return Z.mean(0).clamp(some[n // 4], some[-1 - n // 4])


def _squared_distance(A, B):
    """Return squared Euclidean distances (n, m) between the rows of A and B."""
    # Four roundings below the squared norms, coinciding points are at distance zero, not at the
    # root of the rounding error; elsewhere this is of the size of the rounding error.
    shrink = 1 - 4 * torch.finfo(A.dtype).eps
    a = shrink * A.square().sum(1, keepdim=True)
    b = a if B is A else shrink * B.square().sum(1, keepdim=True)
    left = torch.cat([-2 * A, a, torch.ones_like(a)], 1)
    return (left @ torch.cat([B, torch.ones_like(b), b], 1).T).relu_()


def _distance_to_sparse(X, Z, scale):
    """Return squared distances (n, m) of sparse rows to points, in units of the scale.

    It is differentiable in the scale and in Z, which a scaled sparse tensor would not be.
    """
    shrink = 1 - 4 * torch.finfo(X.dtype).eps  # see `_squared_distance`
    factors = scale.square().reciprocal()
    Z = Z.to(X.dtype)
    weighted = Z * factors
    norms = squared_norms(X, factors)[:, None] + (Z * weighted).sum(1)
    return torch.add(shrink * norms, X @ weighted.T.contiguous(), alpha=-2).relu_()


def _root(sq):
    """Return the root of sq; at zero, relu in `_squared_distance` stops its gradient."""
    return torch.sqrt(sq, out=spare(sq))


# Profiles are functions of sq = factor * r^2, r the distance: what they would multiply every entry
# by is a scale of the points.


def _squared_exponential(sq):
    """exp(-r^2 / 2), factor 1 / log 4."""
    return torch.neg(sq, out=spare(sq)).exp2_()


def _squared_exponential_derivative(sq):
    """The derivative of 2^-sq is -log(2) 2^-sq."""
    K = sq.neg().exp2_()
    return K, K


def _matern_values(matern, sq):
    """Return the values of a `Matern` profile."""
    return matern.value(_root(sq))


def _matern_weights(matern, sq):
    """Return values and weights of a `Matern` profile, see `Profile.value_and_weight`."""
    return matern.value_and_weight(sq.sqrt())


def _rational_quadratic(sq, alpha):
    """(1 + sq / alpha)^-alpha, factor 1 / 2; accurate for large alpha too."""
    return (-alpha * torch.log1p(sq / alpha)).exp_()


def _exp_sine_squared(sq, length_scale):
    """exp(-2 sin(pi r)^2 / length_scale^2), factor pi^2."""
    return (-2 * (torch.sin(_root(sq)) / length_scale).square()).exp_()


class RadialProfile(NamedTuple):
    """Function of squared scaled distances."""

    factor: float  # the function is of sq, the squared distance times this factor
    # Takes sq (n, m), which it may overwrite, and shape parameters; returns values (n, m)
    function: Callable
    # Takes sq alone; returns the values, and the derivatives in sq divided by ``derivative_unit``
    with_derivative: Callable | None = None
    derivative_unit: float = 1.0


RBF_PROFILE = RadialProfile(
    1 / math.log(4), _squared_exponential, _squared_exponential_derivative, -math.log(2)
)


# Of each smoothness nu, with u^2 = 2 nu r^2; the derivative in u^2 is minus half the weight.
_MATERN_PROFILES = {
    nu: RadialProfile(
        2 * nu, partial(_matern_values, Matern(nu)), partial(_matern_weights, Matern(nu)), -0.5
    )
    for nu in (0.5, 1.5, 2.5)
}
_MATERN_PROFILES[math.inf] = RBF_PROFILE


def stationary(profile, X, Z, scale, *shape):
    """Return values (n, m) of a `RadialProfile` of scaled distances."""
    scale = scale / math.sqrt(profile.factor)
    if X.is_sparse:
        return profile.function(_distance_to_sparse(X, Z, scale), *shape)
    return profile.function(_squared_distance(*_scaled(X, Z, scale)), *shape)


class _Stationary(TorchKernel):
    """A profile of distances in units of the hyperparameter `scale`; variance one.

    The spectrum, where there is one, is Student's t of `dof` degrees of freedom.
    """

    returns_new_memory = takes_sparse = takes_double_points = True

    def __init__(self, kernel, start, profile, scale="length_scale", shape=(), dof=None):
        super().__init__(kernel, start)
        self._profile, self._scale, self._shape, self._dof = profile, scale, shape, dof

    def __call__(self, X, Z, theta):
        shape = (self.value(name, theta, X) for name in self._shape)
        return stationary(self._profile, X, Z, self.per_feature(self._scale, theta, X), *shape)

    def diag(self, X, theta):
        return torch.ones(len(X), dtype=X.dtype, device=X.device)

    def vjp(self, X, Z, theta, points=True):
        r"""Return the cross-covariance and its vector-Jacobian product.

        With points a and b in units of the scales, W the derivatives of the scalar in the squared
        distances, and r and c the sums of its rows and columns, the derivatives are

        .. math:: \frac{\partial}{\partial b_k} = 2 (c_k b_k - \sum_i W_{ik} a_i), \qquad
            \frac{\partial}{\partial \log \ell_j} = -2 \sum_{ik} W_{ik} (a_{ij} - b_{kj})^2
            = -2 \Bigl(\sum_i r_i a_{ij}^2 + \sum_k c_k b_{kj}^2
            - 2 \sum_k b_{kj} \sum_i W_{ik} a_{ij}\Bigr).

        With one scale, the latter is minus twice the sum of W times the squared distances, which
        takes no product with the rows.
        """
        profile = self._profile
        if profile.with_derivative is None:
            return super().vjp(X, Z, theta, points)
        scale = self.per_feature(self._scale, theta, X) / math.sqrt(profile.factor)
        A, B = _scaled(X, Z, scale)
        sq = _distance_to_sparse(X, Z, scale) if X.is_sparse else _squared_distance(A, B)
        K, derivative = profile.with_derivative(sq)
        if points or scale.ndim:
            sq = None  # n m numbers that the derivatives do not need

        def pull_back(adjoint):
            W = adjoint * derivative
            if sq is not None:
                by_scale = (-2 * profile.derivative_unit) * (W * sq).sum().to(theta)
                return self._by_theta(by_scale, theta), theta.new_zeros(())
            columns, at_A = W.sum(0)[:, None] * B, W.T @ A
            squares = W.sum(1) @ A.square() + ((columns - 2 * at_A) * B).sum(0)
            by_scale = (-2 * profile.derivative_unit) * squares.to(theta)
            by_theta = self._by_theta(by_scale if scale.ndim else by_scale.sum(), theta)
            by_Z = (2 * profile.derivative_unit) * (columns - at_A) / scale
            return by_theta, by_Z.to(Z.dtype)

        return K, pull_back

    def _by_theta(self, by_log, theta):
        """Return derivatives in theta, given those in the logarithm of the scale."""
        by_theta = torch.zeros_like(theta)
        for position in self._position.values():  # none if it is fixed
            by_theta[position] = by_log
        return by_theta

    def diag_gradient(self, X, theta, adjoint):
        return torch.zeros_like(theta)

    def spectra(self):
        if self._dof is None:
            return super().spectra()
        return [
            (lambda theta, X: X.new_ones(()), partial(self.per_feature, self._scale), self._dof)
        ]


@register_torch_kernel(sk.Matern)
def _matern(kernel, start):
    """Return the torch form of Matern for smoothnesses with an elementary closed form."""
    if kernel.nu not in _MATERN_PROFILES:
        allowed = ", ".join(map(str, _MATERN_PROFILES))
        raise ValueError(f"nu of Matern must be one of {allowed}; got {kernel.nu!r}.")
    return _Stationary(kernel, start, _MATERN_PROFILES[kernel.nu], dof=2 * kernel.nu)


register_torch_kernel(sk.RBF)(partial(_Stationary, profile=RBF_PROFILE, dof=math.inf))
register_torch_kernel(sk.RationalQuadratic)(
    partial(_Stationary, profile=RadialProfile(0.5, _rational_quadratic), shape=("alpha",))
)
register_torch_kernel(sk.ExpSineSquared)(
    partial(
        _Stationary,
        profile=RadialProfile(math.pi**2, _exp_sine_squared),
        scale="periodicity",
        shape=("length_scale",),
    )
)
