"""Prior covariances between the rows of a fit without inducing points, and their derivatives."""

import itertools
import math
from functools import cached_property

import torch

from .._memory import SMALL_BLOCK, block_rows
from ._effects import Prior
from ._fixed_processes import FixedProcess
from ._processes import PROFILES, Points, ZeroMeanKernel

_AT_ONCE = 16  # processes of single numbers whose covariances are computed together


class RowPrior(Prior):
    """Prior covariance between the rows of a fit, with derivatives written by hand.

    The covariance is a constant, the weighted sum of the covariances of single numbers, that of the
    functions of single terms without hyperparameters, and a quadratic form in the covariances of
    the processes in pairs. ``u`` (n, d) are the rows on the unit interval.
    """

    @torch.no_grad()
    def __init__(self, basis, theta, u):
        super().__init__(basis, theta)
        self.u = u
        pairs = {place: own for place, own in enumerate(self.factors) if len(own) == 2}
        in_pairs = {p: None for own in pairs.values() for p in own}
        self._fixed = [p for p in in_pairs if isinstance(p, FixedProcess)]
        singles = {place: own[0] for place, own in enumerate(self.factors) if len(own) == 1}
        # Terms of a single `FixedProcess` by place, and the variances of its whitened features: the
        # covariance of these functions has low rank.
        self._functions = {k: p for k, p in singles.items() if isinstance(p, FixedProcess)}
        own = [self.variance[k].expand(p.coef.shape[1]) for k, p in self._functions.items()]
        self._of_functions = torch.cat([self.variance[:0], *own])
        self._of_numbers = [place for place in singles if place not in self._functions]
        # Variances of the effects of single numbers, in the order of the axes.
        self._weights = self.variance[self._of_numbers]
        self.rows = self.at(u)
        places = {p: k for k, p in enumerate([*self._in_pairs.members, *self._fixed])}
        self._pairs_of = {k: [places[p] for p in own] for k, own in pairs.items()}
        self._bilinear = u.new_zeros(len(places), len(places))
        for place, (i, j) in self._pairs_of.items():
            self._bilinear[i, j] = self._bilinear[j, i] = self.variance[place]

    def _mains(self, lengths):
        kernel, axes, size = self.basis.kernel, self.basis.axes, _AT_ONCE
        parts = [slice(k, min(k + size, len(axes))) for k in range(0, len(axes), size)]
        self._alone = {
            _Numbers(self.basis, kernel, axes[part], lengths[part]): part for part in parts
        }
        return [member for numbers in self._alone for member in numbers.members]

    def _pairs(self, lengths):
        self._in_pairs = _Numbers(self.basis, self.basis.pair_kernel, self.basis.pair_axes, lengths)
        return self._in_pairs.members

    def at(self, u):
        """Convert rows as `Prior.at` does.

        ``places`` also holds the rows of each `_Numbers`, and the features of the "functions".
        """
        places = {
            p: p.at(u[:, j]) for p, j in self.processes.items() if isinstance(p, FixedProcess)
        }
        functions = [p.features(places[p]) for p in self._functions.values()]
        places["functions"] = torch.cat([u.new_zeros(len(u), 0), *functions], 1)
        for numbers in (*self._alone, self._in_pairs):
            places[numbers] = numbers.at(u)
            places |= zip(numbers.members, places[numbers].unbind(), strict=True)
        return places, u.isnan().to(u)

    def _part(self, at, index):
        """Return the rows at an index of rows in the form of `at`, without those of processes."""
        places, missing = at
        found = {p: places[p][index] for p in self._fixed}
        found["functions"] = places["functions"][index]
        for numbers in (*self._alone, self._in_pairs):
            found[numbers] = places[numbers].at(index)
        return found, missing[index]

    def _blocks(self, at, n_others=None):
        """Return pairs of slices of rows, and the rows of each in the form of `_part`.

        Covariances of two blocks, or of a block with ``n_others`` rows, fit in the cache.
        """
        n_processes = max(min(len(self._weights), _AT_ONCE), len(self._bilinear), 1)
        size = block_rows(n_processes * (n_others or 1), SMALL_BLOCK)
        size = math.isqrt(size) if n_others is None else size
        slices = [slice(start, start + size) for start in range(0, len(at[1]), size)]
        return [(index, self._part(at, index)) for index in slices]

    def _triangle(self):
        """Return pairs of blocks of rows of the fit that cover the upper triangle."""
        return itertools.combinations_with_replacement(self._blocks(self.rows), 2)

    def _with_fixed(self, between, a, b):
        """Return covariances (q, b, b') of numbers in pairs, then those of fixed processes."""
        fixed = [process.between(a[process], b[process])[None] for process in self._fixed]
        return torch.cat([between, *fixed]) if fixed else between

    def _mixed(self, between):
        """Return what each covariance of `_with_fixed` is multiplied by in products."""
        return (self._bilinear @ between.flatten(1)).view_as(between)

    def total(self, a, b):
        """Return prior covariances (b, b') of the sum of all terms, of rows as `_part` has them."""
        (left, a_missing), (right, b_missing) = a, b
        paired = self._in_pairs
        K = a_missing.new_full((len(a_missing), len(b_missing)), self.basis.constant)
        for alone, part in self._alone.items():
            own, kernel, weights = (left[alone], right[alone]), alone.kernel, self._weights[part]
            K += torch.tensordot(weights, kernel.stationary(*own), 1)
            K -= (own[0].h.T * (weights / kernel.total)) @ own[1].h
        K += (left["functions"] * self._of_functions) @ right["functions"].T
        if len(self._bilinear):
            between = paired.kernel.between(left[paired], right[paired])
            between = self._with_fixed(between, left, right)
            K += self._mixed(between).mul_(0.5).mul_(between).sum(0)
        for j, variance in self._absent.items():
            K += variance * torch.outer(a_missing[:, j], b_missing[:, j])
        return K

    @torch.no_grad()
    def between(self, at):
        """Return prior covariances (b, n) between other rows and those of the fit."""
        K = self.variance.new_empty(len(at[1]), len(self.rows[1]))
        blocks = self._blocks(at)
        rows = self._blocks(self.rows, max((len(left[1]) for _, left in blocks), default=1))
        for (index, left), (others, right) in itertools.product(blocks, rows):
            K[index, others] = self.total(left, right)
        return K

    @cached_property
    @torch.no_grad()
    def matrix(self):
        """Prior covariances (n, n) between the rows of the fit."""
        n = len(self.rows[1])
        K = self.variance.new_empty(n, n)
        for (block, left), (other, right) in self._triangle():
            cov = self.total(left, right)
            K[block, other], K[other, block] = cov, cov.T
        return K

    @torch.no_grad()
    def derivatives(self, adjoint, vectors):
        r"""Return derivatives in the hyperparameters.

        Let the covariance of a process be :math:`k = g - h h^\top / H`. With g', h' and H' the
        derivatives in the logarithm of all distances, that is, in minus the logarithm of the length
        scale, and with the tilt :math:`t = h' - h H' / 2H`, that of k is
        :math:`g' - (t h^\top + h t^\top) / H`.

        The symmetric ``adjoint`` (n, n) has the derivatives of a function in the covariance.
        Returns its derivatives (k,) by name, and the products (k, n, c) of the derivatives of the
        covariance with the vectors (n, c), by name.
        """
        paired, n_terms = self._in_pairs, len(self.terms) - 1
        n_alone, n_paired = len(self._weights), len(paired.members)
        variance = torch.cat([self.variance[1:], *(part[0] for part in self._absent.values())])
        by_length = _Products(adjoint, vectors, n_alone + n_paired)
        by_variance = _Products(adjoint, vectors, len(variance))
        # The constant has no hyperparameter.
        of_numbers, of_pairs = ([k - 1 for k in own] for own in (self._of_numbers, self._pairs_of))
        tilts = {part: part.tilts(self.rows[0][part]) for part in (*self._alone, paired)}
        for (block, (left, _)), (other, (right, _)) in self._triangle():

            def covariances(numbers, left=left, right=right, index=(block, other)):
                ends = (tilts[numbers][:, own] for own in index)
                return numbers.kernel.between_and_derivative(left[numbers], right[numbers], *ends)

            for alone, part in self._alone.items():
                between, derivative = covariances(alone)
                by_variance.add(of_numbers[part], block, other, between)
                by_length.add(part, block, other, derivative)
            if of_pairs:
                between, derivative = covariances(paired)
                between = self._with_fixed(between, left, right)
                factors = self._mixed(between)[:n_paired]
                by_length.add(slice(n_alone, None), block, other, derivative.mul_(factors))
                own = between.new_empty(len(of_pairs), *between.shape[1:])
                for factors, product in zip(self._pairs_of.values(), own, strict=True):
                    torch.mul(*(between[factor] for factor in factors), out=product)
                by_variance.add(of_pairs, block, other, own)
        places, missing = self.rows
        for place, process in self._functions.items():
            by_variance.add_columns(place - 1, process.features(places[process]))
        for place, j in enumerate(self.basis.absent, n_terms):
            by_variance.add_columns(place, missing[:, j, None])
        scale = -torch.cat([self._weights, torch.ones_like(variance[:1]).expand(n_paired)])
        found = {"length": by_length.scaled(scale), "variance": by_variance.scaled(variance)}
        return tuple({name: part[k] for name, part in found.items()} for k in range(2))


class _Products:
    """Products of matrices, whose blocks come one after the other, with an adjoint and vectors.

    ``dots`` (k,) are the sums of the elementwise products with the adjoint, and ``moves`` (k, n, c)
    the products with the vectors.
    """

    def __init__(self, adjoint, vectors, k):
        self._adjoint, self._vectors = adjoint, vectors
        self.dots, self.moves = vectors.new_zeros(k), vectors.new_zeros(k, *vectors.shape)

    def add(self, places, block, other, matrices):
        """Add a block of the upper triangle of symmetric matrices, a Tensor (q, b, b')."""
        own = self._adjoint[block, other].reshape(-1)
        self.moves[places, block] += matrices @ self._vectors[other]
        if other == block:
            self.dots[places] += matrices.flatten(1) @ own
        else:
            self.dots[places] += 2 * (matrices.flatten(1) @ own)
            left = self._vectors[block].T.expand(len(matrices), -1, -1)
            self.moves[places, other] += torch.bmm(left, matrices).mT

    def add_columns(self, place, columns):
        """Set the products of the matrix ``columns @ columns.T``, given columns (n, q)."""
        self.dots[place] = ((self._adjoint @ columns) * columns).sum()
        self.moves[place] = columns @ (columns.T @ self._vectors)

    def scaled(self, scale):
        """Return the products of the matrices times factors (k,)."""
        return scale * self.dots, scale[:, None, None] * self.moves


class _Numbers:
    """Processes of numbers of one kernel, whose covariances are computed together.

    ``axes`` has the feature of each process. ``kernel`` is the `ZeroMeanKernel` of all processes,
    where measures with fewer atoms than others end in atoms of weight zero; ``members`` has that of
    each.
    """

    def __init__(self, basis, kernel, axes, lengths):
        self._axes = axes
        atoms = [[torch.as_tensor(x).to(lengths) for x in basis.atoms[j]] for j in axes]
        most = max((len(points) for points, _ in atoms), default=1)
        measures = lengths.new_zeros(2, len(axes), most)
        for place, measure in enumerate(atoms):
            measures[:, place, : len(measure[0])] = torch.stack(measure)
        cyclic = basis.cyclic(axes, lengths.device)
        self.kernel = ZeroMeanKernel(PROFILES[kernel], lengths, *measures, cyclic)
        self.members = self.kernel.unbind()

    def at(self, u):
        """Return the `Points` of rows u (n, d), (p, n) each."""
        own = u[:, self._axes].T
        found = [self.kernel[part].at(own[part]) for part in self._parts(len(u))]
        return Points.cat(found)

    def _parts(self, n):
        """Return slices of processes whose covariances of n points with atoms fit in a block."""
        p, n_atoms = self.kernel.atoms.shape
        size = block_rows(n * n_atoms, SMALL_BLOCK)
        return [slice(start, start + size) for start in range(0, max(p, 1), size)]

    def tilts(self, rows):
        """Return tilts (p, n) at `Points`, see `RowPrior.derivatives`."""
        parts = self._parts(rows.u.shape[1])
        return torch.cat([self.kernel[part].tilts(rows.of(part)) for part in parts])
