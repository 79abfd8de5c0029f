"""Stationary covariance functions: profiles of scaled distances, and those of scikit-learn."""

import math
from functools import partial

import torch
from sklearn.gaussian_process import kernels as sk

from .._torch_kernels import TorchKernel, register_torch_kernel, spare

_LOG2_E = math.log2(math.e)


def _squared_distance(X, Z, scale):
    """Return squared Euclidean distances (n, m) between the rows of X / scale and Z / scale."""
    center = Z.detach().mean(0)  # distances do not depend on it, their rounding errors do
    A, B = (X - center) / scale, (Z - center) / scale
    # Four roundings below the squared norms, coinciding points are at distance zero, not at the
    # root of the rounding error; elsewhere this is of the size of the rounding error.
    shrink = 1 - 4 * torch.finfo(A.dtype).eps
    a, b = (shrink * C.square().sum(1, keepdim=True) for C in (A, B))
    left = torch.cat([-2 * A, a, torch.ones_like(a)], 1)
    return (left @ torch.cat([B, torch.ones_like(b), b], 1).T).relu_()


def _root(sq):
    """Return the root of sq; at zero, relu in `_squared_distance` stops its gradient."""
    return torch.sqrt(sq, out=spare(sq))


# Profiles are functions of sq = factor * r^2, r the distance: what they would multiply every entry
# by is a scale of the points. Powers of two take processors half the time of exp, or less.


def _squared_exponential(sq):
    """exp(-r^2 / 2), factor 1 / log 4."""
    return torch.neg(sq, out=spare(sq)).exp2_()


def _matern12(sq):
    """exp(-r), factor 1 / log(2)^2."""
    r = _root(sq)
    return torch.neg(r, out=spare(r)).exp2_()


def _matern32(sq):
    """(1 + u) exp(-u), u^2 = sq, factor 3."""
    u = _root(sq)
    decay = (u * -_LOG2_E).exp2_()
    return torch.addcmul(decay, u, decay)


def _matern52(sq):
    """(1 + u + u^2 / 3) exp(-u), u^2 = sq, factor 5."""
    u = _root(sq)
    decay = (u * -_LOG2_E).exp2_()
    return torch.addcmul(decay, torch.addcmul(u, u, u, value=1 / 3), decay)


def _rational_quadratic(sq, alpha):
    """(1 + sq / alpha)^-alpha, factor 1 / 2; accurate for large alpha too."""
    return (-alpha * torch.log1p(sq / alpha)).exp_()


def _exp_sine_squared(sq, length_scale):
    """exp(-2 sin(pi r)^2 / length_scale^2), factor pi^2."""
    return (-2 * (torch.sin(_root(sq)) / length_scale).square()).exp_()


RBF_PROFILE = 1 / math.log(4), _squared_exponential
_MATERN_PROFILES = {
    0.5: (1 / math.log(2) ** 2, _matern12),
    1.5: (3.0, _matern32),
    2.5: (5.0, _matern52),
    math.inf: RBF_PROFILE,
}


def stationary(profile, X, Z, scale, *shape):
    """Return values (n, m) of a profile (factor, function) of scaled distances."""
    factor, function = profile
    return function(_squared_distance(X, Z, scale / math.sqrt(factor)), *shape)


class _Stationary(TorchKernel):
    """A profile of distances in units of the hyperparameter `scale`; variance one.

    The spectrum, where there is one, is Student's t of `dof` degrees of freedom.
    """

    returns_new_memory = True

    def __init__(self, kernel, start, profile, scale="length_scale", shape=(), dof=None):
        super().__init__(kernel, start)
        self._profile, self._scale, self._shape, self._dof = profile, scale, shape, dof

    def __call__(self, X, Z, theta):
        shape = (self.value(name, theta, X) for name in self._shape)
        return stationary(self._profile, X, Z, self.per_feature(self._scale, theta, X), *shape)

    def diag(self, X, theta):
        return X.new_ones(X.shape[0])

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
    partial(_Stationary, profile=(0.5, _rational_quadratic), shape=("alpha",))
)
register_torch_kernel(sk.ExpSineSquared)(
    partial(
        _Stationary,
        profile=(math.pi**2, _exp_sine_squared),
        scale="periodicity",
        shape=("length_scale",),
    )
)
