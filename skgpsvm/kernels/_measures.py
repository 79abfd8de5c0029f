"""Measures of one feature, and the means of a covariance under them."""

from abc import ABC, abstractmethod
from numbers import Real

import numpy as np
import torch

from .._quadrature import gauss_legendre

_N_NODES = 12


class Measure(ABC):
    """Probability measure of one feature.

    Both means are of the `excess` of a profile g, whose distances are in `unit`, a tensor ().
    """

    @abstractmethod
    def excess(self, profile, x, unit):
        """Return the mean (n,) of g(x - s) - 1 over s, for each entry of x (n,)."""

    @abstractmethod
    def mean_excess(self, profile, unit):
        """Return the mean () of g(s - t) - 1 over independent s and t."""


class Uniform(Measure):
    """Uniform on an interval; where all distances are below a unit, by Gauss-Legendre nodes.

    There the closed forms cancel, and 12 nodes leave nothing.
    """

    def __init__(self, low, high):
        if not (np.isfinite([low, high]).all() and low < high):
            raise ValueError(
                f"The uniform measure needs finite low < high, got low={low!r} and high={high!r}."
            )
        self._low, self._high = float(low), float(high)

    def excess(self, profile, x, unit):
        width = (self._high - self._low) / unit
        left, right = (x - self._low) / unit, (self._high - x) / unit
        near = (left.abs() < 1) & (right.abs() < 1)
        by_nodes = 0.0
        for u in (left, right):
            u = torch.where(near, u, 0.0)
            t, w = gauss_legendre(_N_NODES, u)
            by_nodes = by_nodes + u * (profile.excess(u[:, None] * t) @ w)
        closed = profile.integral(left) + profile.integral(right) - width
        return torch.where(near, by_nodes, closed) / width

    def mean_excess(self, profile, unit):
        width = (self._high - self._low) / unit
        t, w = gauss_legendre(_N_NODES, width)
        by_nodes = 2 * (w * (1 - t)) @ profile.excess(width.clamp_max(1) * t)
        wide = width.clamp_min(1)
        closed = 2 * profile.double_integral(wide) / wide.square() - 1
        return torch.where(width < 1, by_nodes, closed)


class Gaussian(Measure):
    """Normal distribution."""

    def __init__(self, mean, std):
        if not (np.isfinite([mean, std]).all() and std > 0):
            raise ValueError(
                f"The Gaussian measure needs a finite mean and a finite std > 0, "
                f"got mean={mean!r} and std={std!r}."
            )
        self._mean, self._std = float(mean), float(std)

    def excess(self, profile, x, unit):
        return profile.normal_excess((x - self._mean) / unit, (self._std / unit).square())

    def mean_excess(self, profile, unit):
        return profile.normal_excess(torch.zeros_like(unit), 2 * (self._std / unit).square())


class Atoms(Measure):
    """Finitely many values with weights."""

    def __init__(self, values, weights):
        finite = np.isfinite(values).all() and np.isfinite(weights).all()
        if not (finite and (weights >= 0).all() and weights.sum() > 0):
            raise ValueError(
                "Atoms of a measure must be finite and their weights finite and non-negative, "
                "not all zero."
            )
        self._values, self._weights = torch.tensor(values), torch.tensor(weights / weights.sum())

    def excess(self, profile, x, unit):
        distances = (x[:, None] - self._values.to(x)) / unit
        return profile.excess(distances) @ self._weights.to(x)

    def mean_excess(self, profile, unit):
        return self._weights.to(unit) @ self.excess(profile, self._values.to(unit), unit)


_NAMED = {"uniform": Uniform, "gaussian": Gaussian}


def measure_of(specification):
    """Return the measure that a kernel's `measure` names, or raise ValueError."""
    if isinstance(specification, tuple | list) and isinstance(next(iter(specification), 0), str):
        name, *values = specification
        if name in _NAMED and len(values) == 2 and all(isinstance(v, Real) for v in values):
            return _NAMED[name](*values)
    else:
        atoms = np.asarray(specification)
        if atoms.dtype.kind in "iuf" and atoms.size:
            if atoms.ndim == 1:
                return Atoms(atoms.astype(float), np.ones(len(atoms)))
            if atoms.ndim == 2 and atoms.shape[1] == 2:
                return Atoms(*atoms.astype(float).T)
    raise ValueError(
        f"measure must be ('uniform', low, high), ('gaussian', mean, std), an array (n,) of atoms "
        f"or an array (n, 2) of atoms and their weights; got {specification!r}."
    )
