"""ANOVA kernels: covariances of functions of one feature whose mean is zero."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch

from .._torch_kernels import TorchKernel, register_torch_kernel
from .._typing import ArrayLike
from ._base import (
    Bounds,
    LengthScaleKernel,
    MeasureLike,
    NonstationaryKernel,
    format_values,
)
from ._measures import measure_of
from ._profiles import Matern, SquaredExponential


class _TorchOneFeature(TorchKernel):
    """Torch form of a kernel of one column of X."""

    returns_new_memory = takes_double_points = True

    def __init__(self, kernel, start):
        super().__init__(kernel, start)
        self._feature = kernel.feature

    def column(self, X):
        """Return the column (n,) of X (n, d) that the kernel uses."""
        d = X.shape[1]
        if not (isinstance(self._feature, int | np.integer) and 0 <= self._feature < d):
            raise ValueError(
                f"feature of {self._kernel_name} must be the index of a column of X, one of "
                f"0, ..., {d - 1}; got {self._feature!r}."
            )
        return X[:, self._feature]


class _TorchANOVA(_TorchOneFeature):
    """Torch form of the kernels of a profile and a measure.

    With the excess e(x, y) = g(x, y) - 1, its mean e(x) over y and the mean of that, E, the kernel
    g - h(x) h(y) / H is e(x, y) - (e(x) + e(y) + e(x) e(y) - E) / (1 + E), without cancellation.
    """

    def __init__(self, kernel, start):
        super().__init__(kernel, start)
        if np.size(kernel.length_scale) != 1:
            raise ValueError(
                f"length_scale of {self._kernel_name} is that of its one feature: give one number, "
                f"got {kernel.length_scale!r}."
            )
        self._profile, self._measure = kernel._profile(), measure_of(kernel.measure)

    def __call__(self, X, Z, theta):
        x, z = self.column(X).double(), self.column(Z).double()
        unit = self._unit(theta, x)
        a, b = (self._measure.excess(self._profile, column, unit).to(X) for column in (x, z))
        mean = self._measure.mean_excess(self._profile, unit).to(X)
        excess = self._profile.excess(((x[:, None] - z) / unit).to(X))
        return excess - (a[:, None] + b + torch.outer(a, b) - mean) / (1 + mean)

    def diag(self, X, theta):
        x = self.column(X).double()
        unit = self._unit(theta, x)
        a = self._measure.excess(self._profile, x, unit).to(X)
        mean = self._measure.mean_excess(self._profile, unit).to(X)
        return (mean - 2 * a - a.square()) / (1 + mean)

    def _unit(self, theta, X):
        """Return the unit of distance of the profile, in units of X."""
        return self.value("length_scale", theta, X) * self._profile.unit


class _ANOVA(LengthScaleKernel):
    """Kernel g(x, y) - h(x) h(y) / H of a profile g and a measure."""

    @abstractmethod
    def _profile(self):
        """Return the profile g."""

    def _formatted(self):
        """Return the parameters as text for the representation."""
        measure = self.measure
        if not isinstance(measure, tuple):
            measure = f"<{len(np.atleast_1d(measure))} atoms>"
        length_scale = format_values(self.length_scale)
        return f"length_scale={length_scale}, feature={self.feature}, measure={measure}"

    def __repr__(self):
        return f"{type(self).__name__}({self._formatted()})"


class ANOVARBF(_ANOVA):
    r"""Squared exponential kernel of one feature, of functions whose mean is zero.

    .. math::
        k(x, y) = g(x, y) - \frac{h(x) h(y)}{H}, \qquad
        g(x, y) = \exp\Bigl(-\frac{(x - y)^2}{2 \ell^2}\Bigr)

    with :math:`h(x) = \int g(x, s) d\nu(s)` and :math:`H = \int h(s) d\nu(s)`, where :math:`\nu` is
    a measure of the feature. It is the covariance of a function with prior covariance :math:`g`
    conditioned on :math:`\int f d\nu = 0`, which every sample and every posterior mean then
    fulfils. Sums and products of such kernels over features are the terms of a functional ANOVA.

    Parameters
    ----------
    length_scale : float, default=1.0
        Length scale :math:`\ell`, in units of the feature.
    length_scale_bounds : pair of floats >= 0 or "fixed", default=(1e-5, 1e5)
        Lower and upper bound on `length_scale`; "fixed" keeps it out of the optimization.
    feature : int, default=0
        Index of the column of X; all others are ignored.
    measure : tuple or array-like of shape (n,) or (n, 2), default=("uniform", 0.0, 1.0)
        ``("uniform", low, high)``, ``("gaussian", mean, std)``, an array (n,) of atoms of equal
        weight, say the training values, or an array (n, 2) of atoms and their weights, which need
        not sum to one. X may lie outside the interval or between the atoms. It is not a
        hyperparameter: it is never learned.

    Raises
    ------
    ValueError
        On evaluation, if `length_scale` is not one number, X has no column `feature`, or `measure`
        is none of the above.

    Notes
    -----
    The variance is not one, nor constant: it is below that of :math:`g`, and for large length
    scales the kernel tends to :math:`(x - c)(y - c) / \ell^2`, where :math:`c` is the mean of
    :math:`\nu`. Rounding errors are relative to the kernel itself for any length scale above the
    width of the measure; below, they grow as its ratio to the length scale.

    Atoms cost n kernel values for each row: of many values take a hundred quantiles or so. The
    covariance matrix of all atoms is singular.

    Source: Durrande et al. (2013); Adam, Durrande and John (2018), (8).

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm.kernels import ANOVARBF
    >>> X = np.array([[0.0], [0.2], [0.7]])
    >>> ANOVARBF(length_scale=0.3)(X)
    array([[ 0.753,  0.433, -0.345],
           [ 0.433,  0.453, -0.362],
           [-0.345, -0.362,  0.316]])

    An additive model with an interaction:

    >>> first, second = (ANOVARBF(feature=j, measure=("gaussian", 0.0, 1.0)) for j in range(2))
    >>> kernel = 1.0 * first + 1.0 * second + 0.5 * first * second
    """

    def __init__(
        self,
        length_scale: float = 1.0,
        length_scale_bounds: Bounds = (1e-5, 1e5),
        feature: int = 0,
        measure: MeasureLike = ("uniform", 0.0, 1.0),
    ) -> None:
        self.length_scale = length_scale
        self.length_scale_bounds = length_scale_bounds
        self.feature = feature
        self.measure = measure

    def _profile(self):
        return SquaredExponential()


class ANOVAMatern(_ANOVA):
    r"""Matern kernel of one feature, of functions whose mean is zero.

    As `ANOVARBF`, with scikit-learn's ``Matern`` of the same `nu` as :math:`g`.

    Parameters
    ----------
    length_scale : float, default=1.0
        Length scale, in units of the feature.
    length_scale_bounds : pair of floats >= 0 or "fixed", default=(1e-5, 1e5)
        Lower and upper bound on `length_scale`; "fixed" keeps it out of the optimization.
    nu : {0.5, 1.5, 2.5}, default=1.5
        Smoothness: samples are 0, 1 or 2 times differentiable.
    feature : int, default=0
        Index of the column of X; all others are ignored.
    measure : tuple or array-like of shape (n,) or (n, 2), default=("uniform", 0.0, 1.0)
        ``("uniform", low, high)``, an array (n,) of atoms of equal weight, or an array (n, 2) of
        atoms and their weights.

    Raises
    ------
    ValueError
        On evaluation, if `length_scale` is not one number, X has no column `feature`, or `nu` or
        `measure` is none of the above.

    See Also
    --------
    ANOVARBF : Says more about measures, atoms and accuracy.

    Notes
    -----
    Source: Durrande et al. (2013); Adam, Durrande and John (2018), (8). With :math:`F` the integral
    of :math:`g` from 0, the uniform measure on :math:`[a, b]` has
    :math:`h(x) = F(b - x) + F(x - a)` and :math:`H = 2 \int_0^{b - a} F(u) du`, up to scale;
    :math:`F` and its integral are polynomials times an exponential.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm.kernels import ANOVAMatern
    >>> X = np.array([[0.0], [0.2], [0.7]])
    >>> ANOVAMatern(length_scale=0.3, nu=2.5)(X)
    array([[ 0.765,  0.377, -0.305],
           [ 0.377,  0.478, -0.352],
           [-0.305, -0.352,  0.362]])
    """

    def __init__(
        self,
        length_scale: float = 1.0,
        length_scale_bounds: Bounds = (1e-5, 1e5),
        nu: float = 1.5,
        feature: int = 0,
        measure: MeasureLike = ("uniform", 0.0, 1.0),
    ) -> None:
        self.length_scale = length_scale
        self.length_scale_bounds = length_scale_bounds
        self.nu = nu
        self.feature = feature
        self.measure = measure

    def _profile(self):
        return Matern(self.nu)

    def _formatted(self):
        return f"{super()._formatted()}, nu={self.nu}"


register_torch_kernel(ANOVARBF)(_TorchANOVA)
register_torch_kernel(ANOVAMatern)(_TorchANOVA)


class ANOVACategorical(NonstationaryKernel):
    r"""Kernel of a categorical feature, of effects whose weighted mean is zero.

    .. math::
        k(i, j) = \delta_{ij} - \frac{\pi_i \pi_j}{\sum_q \pi_q^2}

    is the covariance of independent standard normal effects of the levels conditioned on
    :math:`\sum_j \pi_j f_j = 0`.

    Parameters
    ----------
    weights : array-like of shape (n_levels,)
        Weights :math:`\pi` of the levels, say their counts in the training data; their scale
        cancels.
    feature : int, default=0
        Index of the column of X, which holds the codes 0, ..., n_levels - 1; all other columns are
        ignored.

    Raises
    ------
    ValueError
        On evaluation, if `weights` are not finite and non-negative, or all zero, or if X has no
        column `feature`.

    Notes
    -----
    The kernel has no hyperparameters; multiply it by a ``ConstantKernel``. Any other code is a
    level that was not seen, as is NaN: its effect has variance one and no covariance with those of
    other levels. The covariance matrix of all levels has rank n_levels - 1.

    Source: Adam, Durrande and John (2018), (8), over levels.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm.kernels import ANOVACategorical
    >>> ANOVACategorical([0.5, 0.3, 0.2])(np.array([[0], [1], [2], [3]]))
    array([[ 0.342, -0.395, -0.263,  0.   ],
           [-0.395,  0.763, -0.158,  0.   ],
           [-0.263, -0.158,  0.895,  0.   ],
           [ 0.   ,  0.   ,  0.   ,  1.   ]])
    """

    def __init__(self, weights: ArrayLike, feature: int = 0) -> None:
        self.weights = weights
        self.feature = feature

    def __repr__(self):
        weights = format_values(self.weights)
        return f"{type(self).__name__}(weights={weights}, feature={self.feature})"


@register_torch_kernel(ANOVACategorical)
class _TorchANOVACategorical(_TorchOneFeature):
    def __init__(self, kernel, start):
        super().__init__(kernel, start)
        weights = np.asarray(kernel.weights, dtype=float)
        valid = weights.ndim == 1 and np.isfinite(weights).all() and (weights >= 0).all()
        if not (valid and weights.any()):
            raise ValueError(
                f"weights of ANOVACategorical must be an array (n_levels,) of finite numbers >= 0, "
                f"not all zero; got {kernel.weights!r}."
            )
        self._direction = torch.tensor(weights / np.linalg.norm(weights))

    def __call__(self, X, Z, theta):
        x, z = self.column(X)[:, None], self.column(Z)
        same = (x == z) | (x.isnan() & z.isnan())
        return same.to(X) - self._weight(x) * self._weight(z).to(X)

    def diag(self, X, theta):
        return 1 - self._weight(self.column(X)).square()

    def _weight(self, codes):
        """Entry of the unit vector along the weights for each code, zero for levels not seen."""
        direction = self._direction.to(codes)
        seen = (codes >= 0) & (codes < len(direction)) & (codes == codes.floor())
        return torch.where(seen, direction[torch.where(seen, codes, 0.0).long()], 0.0)
