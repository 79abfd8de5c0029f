"""Zero-mean processes of one feature, numerical or categorical, and their whitened features."""

from abc import abstractmethod
from copy import copy
from typing import NamedTuple

import torch

from .._linalg import cholesky
from ..kernels._profiles import Matern, SquaredExponential

# Stationary covariances of variance one.
PROFILES = {
    "rbf": SquaredExponential(),
    "matern12": Matern(0.5),
    "matern32": Matern(1.5),
    "matern52": Matern(2.5),
}
_JITTER = 1e-8
_MAX_DISTANCE = 1e3  # in units of the profile


class Chebyshev:
    """Chebyshev polynomials on the unit interval, and interpolation by them.

    Parameters
    ----------
    size : int
        Number of polynomials.
    like : Tensor
        Sets the dtype and the device.
    """

    def __init__(self, size, like):
        self.size = size
        angle = torch.pi * (torch.arange(size, dtype=like.dtype, device=like.device) + 0.5) / size
        self.nodes = 0.5 + 0.5 * angle.cos()
        orders = torch.arange(size, dtype=like.dtype, device=like.device)
        values = (orders[:, None] * angle).cos()
        # Coefficients (size,) of the interpolant from values at the nodes.
        self.transform = values * (2 - (orders == 0).to(values))[:, None] / size

    def measure(self, mean):
        """Return the nodes, and weights by which the polynomials have these means, (..., size)."""
        return self.nodes.expand_as(mean), mean @ self.transform

    def __call__(self, u):
        """Return the polynomials (..., size) at points u (...)."""
        x = 2 * u - 1
        found = [torch.ones_like(x), x]
        while len(found) < self.size:
            found.append(2 * x * found[-1] - found[-2])
        return torch.stack(found[: self.size], -1)


def uniform_moments(size):
    """Return means (size,) and second moments (size, size) of the polynomials under uniform u."""
    orders = torch.arange(2 * size, dtype=torch.float64)
    mean = torch.where(orders % 2 == 0, 1 / (1 - orders.square()), 0.0)
    a = torch.arange(size)
    return mean[:size], 0.5 * (mean[a[:, None] + a] + mean[(a[:, None] - a).abs()])


class Points(NamedTuple):
    """Points u (..., b) of numerical features, with h of `ZeroMeanKernel` there.

    ``known`` is 0 where a point is missing or a sentinel, else 1; ``u`` is then arbitrary and ``h``
    is 0. ``complete`` says that there are none.
    """

    u: torch.Tensor
    h: torch.Tensor
    known: torch.Tensor
    complete: bool

    @classmethod
    def cat(cls, parts):
        """Concatenate points of several batches of processes."""
        *arrays, complete = zip(*parts, strict=True)
        return cls(*map(torch.cat, arrays), all(complete))

    def at(self, index):
        """Return the points at an index."""
        return Points(*(part[..., index] for part in self[:3]), self.complete)

    def unbind(self):
        """Return the points of each process, a list."""
        return [Points(*parts, self.complete) for parts in zip(*self[:3], strict=True)]


class ZeroMeanKernel:
    r"""Zero-mean processes of a numerical feature; their variance before centering is one.

    The covariance is :math:`g(x, y) - h(x) h(y) / H` with :math:`h(x) = \int g(x, s) d\nu(s)` and
    :math:`H = \int h d\nu`. It is that of a process whose integral over the feature's measure
    :math:`\nu` is zero.

    Parameters
    ----------
    profile : Profile
        The stationary covariance g, one of `PROFILES`.
    length : Tensor of shape (...)
        Length scales on the unit interval, one for each process.
    atoms : Tensor of shape (..., k)
        Atoms of the measure.
    weights : Tensor of shape (..., k)
        Their weights.
    cyclic : Tensor of shape (...), bool, optional
        Whether the ends of the unit interval are the same point. Distances are then those of chords
        of a circle of circumference one.

    Attributes
    ----------
    length, atoms, weights, cyclic : Tensor
    total : Tensor of shape (...)
        H.

    Notes
    -----
    Source: Durrande et al. (2013); Adam, Durrande and John (2018), (8).
    """

    def __init__(self, profile, length, atoms, weights, cyclic=None):
        self.profile, self.length, self.atoms, self.weights = profile, length, atoms, weights
        self.cyclic = cyclic
        self._at_atoms = (self._g(atoms, atoms) @ weights[..., None])[..., 0]
        self.total = (weights * self._at_atoms).sum(-1)

    def __getitem__(self, index):
        one = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(one, name, value[index])
        return one

    def unbind(self):
        """Return each of a batch of processes, a list.

        Derivatives of all pass through one operation a tensor, which indices would not.
        """
        parts = {k: v.unbind() for k, v in vars(self).items() if isinstance(v, torch.Tensor)}
        found = [copy(self) for _ in self.length]
        for place, one in enumerate(found):
            vars(one).update({name: part[place] for name, part in parts.items()})
        return found

    @property
    def unit(self):
        """Unit of distance of the profile, in the scale of the unit interval."""
        return self.profile.unit * self.length

    def _g(self, a, b):
        distance = self._chord(a[..., :, None] - b[..., None, :])
        return 1 + self.profile.excess(distance / self.unit[..., None, None])

    def _chord(self, difference):
        """Return the differences (..., b, b') of points, those of cyclic features along chords."""
        if self.cyclic is None:
            return difference
        chord = torch.sin(torch.pi * difference) / torch.pi
        return torch.where(self.cyclic[..., None, None], chord, difference)

    def _outer(self, a, b):
        return a[..., :, None] * b[..., None, :] / self.total[..., None, None]

    def at(self, u):
        """Return the `Points` u (..., b). The process is zero at NaN and at infinity."""
        known, u = u.isfinite().to(u), u.nan_to_num(0.5, posinf=0.5)
        h = (self.profile.value(self._distance(u, self.atoms)) @ self.weights[..., None])[..., 0]
        return Points(u, known * h, known, bool(known.all()))

    def _weighted(self, u):
        """Return h at points u (..., b)."""
        return (self._g(u, self.atoms) @ self.weights[..., None])[..., 0]

    def variances(self, at):
        """Return prior variances (..., b) at points."""
        return at.known - at.h.square() / self.total[..., None]

    def stationary(self, a, b):
        """Return g (..., b, b') between points; zero where one is missing."""
        return self._known(a, b, self.profile.value(self._distance(a.u, b.u)))

    def stationary_and_slope(self, a, b):
        """Return g between points, and its derivatives in the logarithms of distances."""
        parts = self.profile.value_and_slope(self._distance(a.u, b.u))
        return tuple(self._known(a, b, part) for part in parts)

    def between(self, a, b):
        """Return prior covariances (..., b, b') between points."""
        return self._centered(a, b, self.stationary(a, b))

    def between_and_slope(self, a, b, a_tilt, b_tilt):
        """Return prior covariances, and derivatives in logarithms of distances, given the tilts.

        See `RowPrior.slopes`.
        """
        g, slope = self.stationary_and_slope(a, b)
        scale = 1 / self.total[..., None]
        for left, right in ((a_tilt, b.h), (a.h, b_tilt)):
            slope.addcmul_(left[..., :, None], (scale * right)[..., None, :], value=-1)
        return self._centered(a, b, g), slope

    def slopes_of_h(self, u):
        """Return derivatives of h at points u (..., b) and of H in the logarithms of distances."""
        at_points, at_atoms = (
            (self.profile.value_and_slope(self._distance(points, self.atoms))[1] @ weights)[..., 0]
            for weights in [self.weights[..., None]]
            for points in (u, self.atoms)
        )
        return at_points, (self.weights * at_atoms).sum(-1)

    def _centered(self, a, b, g):
        """Subtract the part of the mean from g, in place."""
        return g.addcmul_(a.h[..., :, None], (b.h / self.total[..., None])[..., None, :], value=-1)

    def _distance(self, a, b):
        """Return distances (..., b, b') in units of the profile.

        Beyond the maximum g is zero, and squares would overflow.
        """
        unit = self.unit[..., None]
        if self.cyclic is not None:
            chord = self._chord(a[..., :, None] - b[..., None, :])
            return (chord / unit[..., None]).abs_().clamp_max_(_MAX_DISTANCE)
        scaled = a / unit, b / unit
        return (scaled[0][..., :, None] - scaled[1][..., None, :]).abs_().clamp_max_(_MAX_DISTANCE)

    @staticmethod
    def _known(a, b, array):
        """Set entries of an array to zero where a point is missing, in place."""
        if a.complete and b.complete:
            return array
        return array.mul_(a.known[..., :, None]).mul_(b.known[..., None, :])


class AtValues(ZeroMeanKernel):
    """Zero-mean processes of a numerical feature with an inducing point at every value.

    Parameters
    ----------
    profile : Profile
    length : Tensor of shape (...)
        Length scales on the unit interval, one for each process.
    points : Tensor of shape (..., m)
        The values.
    atoms, weights : Tensor of shape (..., k)
        Of the measures.
    cyclic : Tensor of shape (...), bool, optional

    Attributes
    ----------
    cov : Tensor of shape (..., m, m)
        Prior covariance of the process at the points.
    coef : Tensor of shape (..., m, m)
        Values of the whitened features there.
    """

    def __init__(self, profile, length, points, atoms, weights, cyclic=None):
        super().__init__(profile, length, atoms, weights, cyclic)
        self.cov = self._at_points(points)
        self.coef = self._whitened(self.cov)

    def _at_points(self, points):
        """Set the inducing points; return the prior covariance there."""
        self._points = points
        self._h = self._at_atoms if points is self.atoms else self._weighted(points)
        prior = self._g(points, points) - self._outer(self._h, self._h)
        self._chol = cholesky(prior, "covariance of an effect's inducing points", jitter=_JITTER)
        return prior

    def _whitened(self, K):
        return torch.linalg.solve_triangular(self._chol, K.mT, upper=False).mT

    def features(self, at):
        """Return whitened features (..., b, m) at points."""
        g = at.known[..., None] * self._g(at.u, self._points)
        return self._whitened(g - self._outer(at.h, self._h))


class CenteredAtPoints(AtValues):
    r"""Zero-mean processes of a numerical feature with inducing points.

    Parameters
    ----------
    profile : Profile
    length : Tensor of shape (...)
        Length scales on the unit interval, one for each process.
    points : Tensor of shape (..., m)
        Inducing points.
    polynomials : Chebyshev
        Their nodes are the atoms.
    mean : Tensor of shape (..., size)
        Means of the polynomials under the measures.
    cyclic : Tensor of shape (...), bool, optional

    Attributes
    ----------
    cov : Tensor of shape (..., size, size)
        Prior covariance of the coefficients of the process.
    coef : Tensor of shape (..., size, m)
        Coefficients of the whitened features in the polynomials.

    Notes
    -----
    Source: Adam, Durrande and John (2018), (8), by quadrature. Covariances with the rows of a fit
    are interpolated by polynomials. For a squared exponential of length scale 0.1, 34 polynomials
    give an error of 1e-8.
    """

    def __init__(self, profile, length, points, polynomials, mean, cyclic=None):
        F, nodes = polynomials.transform, polynomials.nodes
        ZeroMeanKernel.__init__(self, profile, length, *polynomials.measure(mean), cyclic)
        self._at_points(points)
        of_h = self._at_atoms @ F.T
        self.cov = F @ self._g(nodes, nodes) @ F.T - self._outer(of_h, of_h)
        self.coef = self._whitened(F @ self._g(nodes, points) - self._outer(of_h, self._h))


def equally_spaced(m, cyclic=False):
    """Return m points on the unit interval; the end of a cyclic one is its beginning."""
    points = torch.linspace(0, 1, m + cyclic, dtype=torch.float64)
    return points[:m]


class FixedProcess:
    """Zero-mean process of a feature that has no hyperparameters: a sum of a few functions."""

    @abstractmethod
    def at(self, u):
        """Return the functions at points u (b,), a tuple of one Tensor (b, q)."""


class Line(FixedProcess):
    """Linear effect of a numerical feature, of variance one under the feature's measure.

    Parameters
    ----------
    mean : Tensor of shape (size,)
        Means of the feature's polynomials under its measure.
    second : Tensor of shape (size, size)
        Their second moments.

    Attributes
    ----------
    atoms, weights : Tensor of shape (2,)
        A measure with the same mean and variance.
    coef, cov : Tensor of shape (size, 1), (size, size)
        See `CenteredAtPoints`.
    """

    def __init__(self, mean, second):
        # The polynomial of degree one is 2 u - 1.
        scale = (second[1, 1] - mean[1].square()).clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
        self._mean, self._scale = mean[1], scale
        self.atoms = 0.5 + 0.5 * torch.stack([mean[1] - scale, mean[1] + scale])
        self.weights = torch.full_like(self.atoms, 0.5)
        self.coef = torch.zeros_like(mean)[:, None]
        self.coef[0, 0], self.coef[1, 0] = -mean[1] / scale, 1 / scale
        self.cov = self.coef @ self.coef.T

    def at(self, u):
        """Return standardized numbers, a tuple of one Tensor (b, 1); 0 where one is missing."""
        line = (2 * u - 1 - self._mean) / self._scale
        return (torch.where(u.isfinite(), line, 0.0)[:, None],)

    def features(self, at):
        """Return whitened features (b, 1)."""
        return at[0]

    def variances(self, at):
        """Return prior variances (b,)."""
        return at[0][:, 0].square()

    def between(self, a, b):
        """Return prior covariances (b, b')."""
        return a[0] @ b[0].T


class Levels(FixedProcess):
    """Zero-mean effect of the levels of a category, the analogue of `ZeroMeanKernel`.

    Parameters
    ----------
    share : Tensor of shape (q,)
        Share of each level in the rows.

    Attributes
    ----------
    atoms, weights : Tensor of shape (q,)
        Codes of the levels and their shares.

    Notes
    -----
    Source: Adam, Durrande and John (2018), (8), over levels.
    """

    def __init__(self, share):
        direction = share / share.norm()
        q = len(share)
        self.atoms, self.weights = torch.arange(q).to(share), share
        eye = torch.eye(q, dtype=share.dtype, device=share.device)
        self.cov = eye - torch.outer(direction, direction)
        # Columns of the Householder reflection that sends the direction to the first axis.
        v = direction.clone()
        v[0] += 1.0 if direction[0] >= 0 else -1.0
        self.coef = (eye - 2 * torch.outer(v, v) / v.dot(v))[:, 1:]

    def at(self, codes):
        """Return indicators of levels, a tuple of one Tensor (b, q); zeros for unknown codes."""
        levels = torch.arange(len(self.coef), device=codes.device)
        return ((codes[:, None] == levels).to(self.coef),)

    def features(self, at):
        """Return whitened features (b, q - 1)."""
        return at[0] @ self.coef

    def variances(self, at):
        """Return prior variances (b,); that of an unknown level is one."""
        (H,) = at
        return ((H @ self.cov) * H).sum(1) + (1 - H.sum(1))

    def between(self, a, b):
        """Return prior covariances (b, b'); those of an unknown level are zero."""
        return a[0] @ self.cov @ b[0].T


class Steps(FixedProcess):
    """Zero-mean random walk over the bins of a number, in steps of equal variance.

    Its covariance before centering is that of a Matern process of smoothness 1/2, whose length
    scale is the number of bins.

    Parameters
    ----------
    share : Tensor of shape (q,)
        Share of each bin in the rows.

    Attributes
    ----------
    atoms, weights : Tensor of shape (q,)
        Codes of the bins and their shares.
    coef, cov : Tensor of shape (q, q)
        Values of the whitened features in the bins, and the prior covariance.
    """

    def __init__(self, share):
        self.atoms, self.weights = torch.arange(len(share)).to(share), share
        g = PROFILES["matern12"].value((self.atoms[:, None] - self.atoms).abs() / len(share))
        h = g @ share
        self.cov = g - torch.outer(h, h) / (h @ share)
        self.coef = cholesky(self.cov, "covariance of the steps of a feature", jitter=_JITTER)

    def at(self, codes):
        """Return the codes, a tuple of one Tensor (b,)."""
        return (codes.long(),)

    def features(self, at):
        """Return whitened features (b, q); zeros for a missing number."""
        return self.coef[at[0]] * (at[0] >= 0)[:, None]

    def variances(self, at):
        """Return prior variances (b,)."""
        return self.cov.diagonal()[at[0]] * (at[0] >= 0)

    def between(self, a, b):
        """Return prior covariances (b, b')."""
        known = torch.outer(*((own[0] >= 0).to(self.cov) for own in (a, b)))
        return self.cov[a[0]][:, b[0]] * known
