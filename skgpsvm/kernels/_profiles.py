"""Covariances of one distance, with the integrals that constrain a function's mean to zero."""

import math
from abc import ABC, abstractmethod

import torch

_LOG2_E = math.log2(math.e)
# Of each nu, coefficients, lowest first: p; q, the sum of the derivatives of p; the same of q.
# Integrals of p exp(-u) and of q exp(-u) from 0 are then q(0) - q(u) exp(-u), and so on.
_POLYNOMIALS = {
    0.5: ((1.0,), (1.0,), (1.0,)),
    1.5: ((1.0, 1.0), (2.0, 1.0), (3.0, 1.0)),
    2.5: ((1.0, 1.0, 1 / 3), (8 / 3, 5 / 3, 1 / 3), (5.0, 7 / 3, 1 / 3)),
}


class Profile(ABC):
    """Even function g with g(0) = 1, of distances in units of ``unit`` length scales."""

    unit = 1.0

    @abstractmethod
    def excess(self, u):
        """Return g(u) - 1, accurate for small u too."""

    @abstractmethod
    def value(self, u):
        """Return g(u) for u >= 0."""

    @abstractmethod
    def value_and_weight(self, u):
        """Return g(u) and -g'(u) / u for u >= 0, zero where that is infinite."""

    def value_and_derivative(self, u):
        """Return g(u), and its derivative times u. Takes no gradients."""
        value, weight = self.value_and_weight(u)
        return value, (u * u).mul_(weight).neg_()

    @abstractmethod
    def integral(self, u):
        """Return the integral of g from 0 to u, an odd function."""

    @abstractmethod
    def double_integral(self, u):
        """Return the integral of `integral` from 0 to u >= 0."""

    def normal_excess(self, mean, var):
        """Return the expectation of `excess` over a normal distance."""
        raise ValueError(
            "A Gaussian measure is for ANOVARBF. ANOVAMatern takes ('uniform', low, high) or an "
            "array of atoms; give it quantiles of the normal distribution as atoms."
        )


class SquaredExponential(Profile):
    """exp(-u^2 / 2)."""

    def excess(self, u):
        return torch.expm1(-0.5 * u.square())

    def value(self, u):
        return (-0.5 * u.square()).exp()

    def value_and_weight(self, u):
        value = self.value(u)
        return value, value

    def integral(self, u):
        return math.sqrt(math.pi / 2) * torch.erf(u / math.sqrt(2))

    def double_integral(self, u):
        return u * self.integral(u) + self.excess(u)

    def normal_excess(self, mean, var):
        return torch.expm1(-0.5 * (torch.log1p(var) + mean.square() / (1 + var)))


class Matern(Profile):
    """p(u) exp(-u) for u >= 0, p a polynomial; the unit is length_scale / sqrt(2 nu)."""

    def __init__(self, nu):
        if nu not in _POLYNOMIALS:
            allowed = ", ".join(map(str, _POLYNOMIALS))
            raise ValueError(
                f"nu of ANOVAMatern must be one of {allowed}; got {nu!r}. "
                f"The limit of large nu is ANOVARBF."
            )
        self.unit = 1 / math.sqrt(2 * nu)
        self._p, self._q, self._t = _POLYNOMIALS[nu]

    def excess(self, u):
        u = u.abs()
        excess = torch.expm1(-u)
        return excess + u * _decaying(self._p[1:], u) if len(self._p) > 1 else excess

    # In as few passes over the distances as possible. Powers of two take processors half the time
    # of exp, or less.

    def value(self, u):
        decay = (u * -_LOG2_E).exp2_()
        if len(self._p) == 1:
            return decay
        rise = u if len(self._p) == 2 else torch.addcmul(u, u, u, value=1 / 3)
        return torch.addcmul(decay, rise, decay)

    def value_and_weight(self, u):
        decay = (u * -_LOG2_E).exp2_()
        if len(self._p) == 1:
            return decay, (decay / u).masked_fill_(u == 0, 0.0)
        value = torch.addcmul(decay, u, decay)
        if len(self._p) == 2:
            return value, decay
        return torch.addcmul(value, u * u, decay, value=1 / 3), value / 3

    def integral(self, u):
        sign = torch.where(u < 0, -1.0, 1.0).to(u)  # not that of torch, whose slope at 0 is 0
        return sign * (self._q[0] - _decaying(self._q, sign * u))

    def double_integral(self, u):
        return self._q[0] * u - self._t[0] + _decaying(self._t, u)


def _decaying(coefficients, u):
    """Return a polynomial of u, lowest coefficient first, times exp(-u)."""
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = value * u
        value += coefficient
    return value * torch.exp(-u)
