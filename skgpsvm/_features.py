"""Random Fourier features from a counter-based generator.

Any of them can be drawn, in any order and on any device, and is always the same.
"""

import math
import sys
from dataclasses import dataclass
from functools import cached_property

import torch

from ._bases import MeanBases
from ._linalg import add_gram
from ._memory import HELD_BYTES, HELD_VALUE_BYTES, LARGE_BLOCK, block_rows
from ._preconditioners import Woodbury
from .kernels._composite import exact_and_rest

_MIN_ROWS = 1024  # of a chunk, if frequencies are drawn anew for each chunk
_GRAM_BLOCK = 1024  # functions whose products are summed at a time
_WORD = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_RADII, _MIXTURE = 1 << 30, 1 << 31  # counters of lengths and scale mixtures, beyond any feature


def philox(counter, key):
    """Return four random words of 32 bits by Philox-4x32-10, int64 tensors.

    The counter is four int64 tensors that broadcast, the key two integers, of 32 bits each.
    Products of 64 bits wrap around in int64, which keeps their bits. Source: Salmon et al. (2011).
    """
    x0, x1, x2, x3 = torch.broadcast_tensors(*counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (
            (second >> 32 & _WORD) ^ x1 ^ k0,
            second & _WORD,
            (first >> 32 & _WORD) ^ x3 ^ k1,
            first & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return [x0, x1, x2, x3]


def counted_normals(index, n_normals, seed, start=0):
    """Return standard normals (q, n_normals), float64, a function of each index and the seed alone.

    ``start`` is the first value of the counter; it distinguishes the uses of an index.
    """
    steps = torch.arange(start, start + -(-n_normals // 4), device=index.device)
    column = index[:, None]
    counter = column & _WORD, column >> 32, steps[None], torch.zeros_like(column)
    words = philox(counter, (seed & _WORD, seed >> 32 & _WORD))
    uniform = [(word.double() + 0.5) / 2**32 for word in words]
    normals = []
    for radius, angle in (uniform[:2], uniform[2:]):
        length, turn = (-2 * radius.log()).sqrt(), 2 * math.pi * angle
        normals += [length * turn.cos(), length * turn.sin()]
    return torch.stack(normals, 2).flatten(1)[:, :n_normals]


@dataclass(frozen=True)
class FourierFeatures:
    """Specification of random Fourier features, from which they are drawn again."""

    n_pairs: int  # number of frequencies, each with a cosine and a sine
    seed: int
    # Whether frequencies are orthogonal within blocks of d, the number of features of X
    orthogonal: bool = False
    # Whether they model what inducing points leave unexplained, see `NystroemFourierBases`
    nystroem: bool = False

    def normals(self, index, d):
        """Return frequencies (q, d) of a squared exponential kernel with length scale one."""
        if not self.orthogonal:
            return counted_normals(index, d, self.seed)
        blocks, place = torch.unique(index // d, return_inverse=True)
        members = (blocks[:, None] * d + torch.arange(d, device=index.device)).ravel()
        draws = counted_normals(members, d, self.seed).view(len(blocks), d, d)
        rotation, upper = torch.linalg.qr(draws)
        rotation = rotation * upper.diagonal(dim1=1, dim2=2).sign()[:, None]
        lengths = counted_normals(index, d, self.seed, _RADII).norm(dim=1)
        return lengths[:, None] * rotation[place, :, index % d]

    def mixture(self, index, dof):
        """Return factors (q, 1) of the frequencies for a Matern kernel of smoothness ``dof / 2``.

        The spectrum is a Student t distribution, a scale mixture of normals.
        """
        if math.isinf(dof):
            return 1.0
        squares = counted_normals(index, int(dof), self.seed, _MIXTURE).square()
        return (dof / squares.sum(1, keepdim=True)).sqrt()


class FourierBases(MeanBases):
    r"""Cosines and sines of random frequencies, with standard normal weights.

    With Q frequencies :math:`\omega_q` drawn from the spectrum of a stationary kernel of variance
    v, the features are :math:`\sqrt{v / Q} \cos \omega_q^\top x`, followed by as many sines. The
    terms of the kernel share the frequencies evenly. The features of terms with an exact finite
    feature map come last.

    X has d features. A ValueError is raised if the spectrum of a term of the kernel is not known.

    Frequencies are kept if they take at most 256 MiB, and are else drawn anew for every use. The
    unscaled orthogonal ones are kept too, since drawing one takes a factorization of d x d.
    Source: Rahimi and Recht (2007); Evans and Nair, section 1.2.
    """

    def __init__(self, kernel, theta, features, d):
        self.kernel, self.theta, self.features, self._d = kernel, theta, features, d
        self._exact, rest = exact_and_rest(kernel, d, sys.maxsize)
        self.n_pairs = self.n_units = features.n_pairs if rest else 0
        self._terms = rest.spectra() if rest else []
        self.n_exact = self._exact.n_exact_features(d) if self._exact else 0
        self.size = 2 * self.n_pairs + self.n_exact
        starts = [i * self.n_pairs // max(len(self._terms), 1) for i in range(len(self._terms) + 1)]
        self._starts = starts

    def at(self, theta):
        moved = FourierBases(self.kernel, theta, self.features, self._d)
        moved._normals = self._normals
        return moved

    def sampled(self, X, units):
        return torch.cat([*self._waves(X, *self._drawn(units)), self.exact(X)], 1)

    def coordinates(self, units):
        Q = self.n_pairs
        exact = torch.arange(2 * Q, self.size, device=units.device)
        return torch.cat([units, Q + units, exact]), self.n_exact

    def prior_diag(self, which):
        return self.theta.new_ones(1, len(which))

    def exact(self, X):
        """Return the features of terms with an exact map, (b, n_exact)."""
        if self._exact is None:
            return X.new_zeros(len(X), 0)
        return self._exact.exact_features(X, self.theta)

    def values(self, X):
        values = X.new_empty(len(X), self.size)
        for part, block in self.blocks(X):
            values[:, part] = block
        return values

    def chunk_size(self, device):
        min_rows = 0 if self._fit_in_memory() else _MIN_ROWS
        return max(super().chunk_size(device), min_rows)

    def blocks(self, X):
        Q, size = self.n_pairs, block_rows(max(len(X), self._d), LARGE_BLOCK)
        for start in range(0, Q, size):
            stop = min(start + size, Q)
            if self._held is None:
                drawn = self._drawn(torch.arange(start, stop, device=X.device))
            else:
                drawn = [tensor[start:stop] for tensor in self._held]
            cos, sin = self._waves(X, *drawn)
            yield slice(start, stop), cos
            yield slice(Q + start, Q + stop), sin
        yield slice(2 * Q, 2 * Q + self.n_exact), self.exact(X)

    def prior_product(self, coef, part=0, n_parts=1):
        return coef / n_parts

    def preconditioners(self, X, precisions):
        values, size = X.new_empty(len(X), self.size), self.chunk_size(X.device)
        for part, rows in zip(values.split(size), X.split(size), strict=True):
            part.copy_(self.values(rows))
        values = self.adjoint(values)
        gram = values.new_zeros(len(X), len(X), dtype=torch.float64)
        for block in values.T.split(_GRAM_BLOCK):
            wide = block.double()  # products in float32 may lose the smallest eigenvalues
            add_gram(gram, wide, wide)
        return [Woodbury(values, gram, precision) for precision in precisions]

    def prior_trace(self, diag, columns):
        return diag.square().sum() + columns.square().sum()

    def prior_log_det(self, c):
        return self.theta.new_zeros(())

    def overlap(self, basis):
        return self.theta.new_zeros(self.size, basis.size)

    @cached_property
    def _held(self):
        """Scaled frequencies and amplitudes of all pairs; None if they are too many to keep."""
        return self._drawn(self._every_pair()) if self._fit_in_memory() else None

    @cached_property
    def _normals(self):
        """Unscaled frequencies of all pairs, if they are orthogonal and few enough to keep."""
        if not (self.features.orthogonal and self._fit_in_memory()):
            return None
        return self.features.normals(self._every_pair(), self._d)

    def _fit_in_memory(self):
        return self.n_pairs * self._d * 8 <= HELD_BYTES

    def _every_pair(self):
        return torch.arange(self.n_pairs, device=self.theta.device)

    def _drawn(self, index):
        """Return scaled frequencies (q, d) and amplitudes (q,) of pairs, float64."""
        if self._normals is None:
            frequencies = self.features.normals(index, self._d)
        else:
            frequencies = self._normals[index]
        amplitudes = frequencies.new_zeros(len(index))
        for i, (variance, scale, dof) in enumerate(self._terms):
            start, stop = self._starts[i : i + 2]
            of_term = (index >= start) & (index < stop)
            factor = self.features.mixture(index, dof) / scale(self.theta, frequencies)
            frequencies = torch.where(of_term[:, None], frequencies * factor, frequencies)
            share = (variance(self.theta, frequencies) / max(stop - start, 1)).sqrt()
            amplitudes = torch.where(of_term, share, amplitudes)
        return frequencies, amplitudes

    def _waves(self, X, frequencies, amplitudes):
        """Return cosines and sines (b, q) at rows."""
        phase, amplitudes = X @ frequencies.T.to(X.dtype), amplitudes.to(X.dtype)
        return phase.cos() * amplitudes, phase.sin() * amplitudes


class NystroemFourierBases(FourierBases):
    r"""Whitened features of inducing points, and random features of the unexplained rest.

    With the projection a(x) on the inducing points, :math:`a(Z) a(Z)^\top = k(Z, Z)`, and Fourier
    features :math:`\phi(x)` of the kernel, the functions are a(x) and

    .. math:: \phi(x) - \Phi(Z)^\top a(Z)^{-\top} a(x).

    In expectation over frequencies their inner products equal the kernel. With finitely many, only
    :math:`k(x, x') - a(x)^\top a(x')` is approximated, and there is no error at the inducing
    points. `values` returns :math:`\phi` and a; `apply` transforms the coefficients accordingly.

    Some terms of the kernel must be projected.
    """

    def __init__(self, basis, features, d):
        super().__init__(basis.projected, basis.theta, features, d)
        self._basis, self._n_waves = basis, self.size
        self.size += basis.size

    def blocks(self, X):
        yield from super().blocks(X)
        yield slice(self._n_waves, self.size), self._basis(X)[0]

    def apply(self, coef):
        waves, projected = coef.split([self._n_waves, self._basis.size], 1)
        at_points = sum(values @ waves[:, part].T for part, values in self._at_points())
        projected = projected.clone()
        projected[:, : len(at_points)] -= self._basis.whitened(at_points.T)
        return torch.cat([waves, projected], 1)

    def embed(self, mean):
        return torch.cat([mean.new_zeros(len(mean), self._n_waves), mean], 1)

    def adjoint(self, sums):
        projected = slice(self._n_waves, self._n_waves + self._basis.n_projected)
        weights = self._basis.unwhitened(sums[:, projected])
        for part, at_points in self._at_points():
            sums[:, part].addmm_(weights, at_points.to(sums.dtype), alpha=-1)
        return sums

    def overlap(self, basis):
        eye = torch.eye(basis.size).to(self.theta)
        return torch.cat([self.theta.new_zeros(self._n_waves, basis.size), eye])

    def _at_points(self):
        """Yield slices of the random features and their values at the inducing points."""
        return self._held_at_points or super().blocks(self._basis.Z)

    @cached_property
    def _held_at_points(self):
        """The slices and values of `_at_points`; None if they are too many to keep."""
        fits = self._n_waves * len(self._basis.Z) * 8 <= HELD_VALUE_BYTES
        return list(super().blocks(self._basis.Z)) if fits else None
