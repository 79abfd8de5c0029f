"""Additive GPs without inducing points: evidence, its derivatives, and the exact posterior."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import torch

from .._linalg import cholesky
from ._bound import EffectsPosterior
from ._effects import Prior
from ._processes import PROFILES, Levels, Points, ZeroMeanKernel

_BLOCK_ENTRIES = 2**18  # of the covariances of all processes, so that a block fits in the cache
_ROUNDING = 1e-10  # relative, of eigenvalues
_VAGUE = 1e-5  # square root of a precision, below which linear terms are kept apart
_DRAWS = 50  # that are computed at once


@dataclass
class RowSums:
    """Sufficient statistics of the rows of a fit without inducing points.

    Attributes
    ----------
    u : Tensor of shape (n, d)
        Features on the unit interval.
    precision, linear : Tensor of shape (n,)
        Precisions and linear terms of the sites of the rows. With Gaussian noise, the weights, and
        the weights times the targets.
    weight : float
        Total weight with Gaussian noise, as in `Sums`; else 0.
    """

    u: torch.Tensor
    precision: torch.Tensor
    linear: torch.Tensor
    weight: float = 0.0


class RowPrior(Prior):
    """Prior covariance between the rows of a fit, with derivatives written by hand.

    The covariance is a polynomial in the covariances of the processes: a constant, the weighted sum
    of those of single numbers, and a polynomial of degree two in those of levels and of numbers in
    pairs.

    Parameters
    ----------
    basis : AdditiveBasis
    theta : dict of Tensor
        Logarithms of ``length`` and ``variance``.
    u : Tensor of shape (n, d)
        Features of the rows on the unit interval.
    """

    @torch.no_grad()
    def __init__(self, basis, theta, u):
        super().__init__(basis, theta)
        self.rows = self.at(u)
        self._levels = [p for p in self.processes if isinstance(p, Levels)]
        others = [*self._in_pairs.members, *self._levels]
        places = {p: place for place, p in enumerate(others)}
        # Of each term, the places of its factors among the others; none of a single number.
        self._members = [[places[p] for p in own if p in places] for own in self.factors]
        self._weights = u.new_zeros(len(basis.axes))  # variances of the effects of single numbers
        self._linear = u.new_zeros(len(others), 1, 1)
        self._bilinear = u.new_zeros(len(others), len(others))
        for term, own, variance in zip(self.terms, self._members, self.variance, strict=True):
            if len(own) == 2:
                self._bilinear[own[0], own[1]] = self._bilinear[own[1], own[0]] = variance
            elif own:
                self._linear[own] = variance
            elif term:
                self._weights[basis.axes.index(term[0])] = variance

    def _mains(self, lengths):
        self._alone = _Numbers(self.basis, self.basis.kernel, self.basis.axes, lengths)
        return self._alone.members

    def _pairs(self, lengths):
        self._in_pairs = _Numbers(self.basis, self.basis.pair_kernel, self.basis.pair_axes, lengths)
        return self._in_pairs.members

    def at(self, u):
        """Convert rows as `Prior.at` does. Places are those of the two `_Numbers`, too."""
        places = {p: p.at(u[:, j]) for p, j in self.processes.items() if isinstance(p, Levels)}
        for numbers in (self._alone, self._in_pairs):
            places[numbers] = numbers.at(u)
            places |= zip(numbers.members, places[numbers].unbind(), strict=True)
        return places, u.isnan().to(u)

    def _part(self, at, index):
        """Return the rows at an index of rows in the form of `at`, without those of processes."""
        places, missing = at
        found = {p: (places[p][0][index],) for p in self._levels}
        for numbers in (self._alone, self._in_pairs):
            found[numbers] = places[numbers].at(index)
        return found, missing[index]

    def _blocks(self, n, n_others):
        """Return slices of n rows whose covariances with ``n_others`` rows fit in a block."""
        n_processes = len(self._weights) + len(self._linear)
        size = max(1, _BLOCK_ENTRIES // max(n_processes, 1) // n_others)
        return [slice(start, start + size) for start in range(0, n, size)]

    def _triangle(self):
        """Return pairs of slices that cover the upper triangle: a block, and rows from it on."""
        n = len(self.rows[1])
        return [(block, slice(block.start, n)) for block in self._blocks(n, n)]

    def _with_levels(self, between, a, b):
        """Return covariances (q, b, b') of numbers in pairs, followed by those of levels."""
        levels = [process.between(a[process], b[process])[None] for process in self._levels]
        return torch.cat([between, *levels]) if levels else between

    def _mixed(self, between):
        """Return what each covariance of `_with_levels` is multiplied by in products."""
        return (self._bilinear @ between.flatten(1)).view_as(between)

    def total(self, a, b):
        """Return prior covariances (b, b') of the sum of all terms, of rows as `_part` has them."""
        (left, a_missing), (right, b_missing) = a, b
        alone, paired = self._alone, self._in_pairs
        K = a_missing.new_full((len(a_missing), len(b_missing)), self.basis.constant)
        if len(self._weights):
            own, kernel = (left[alone], right[alone]), alone.kernel
            K += torch.tensordot(self._weights, kernel.stationary(*own), 1)
            K -= (own[0].h.T * (self._weights / kernel.total)) @ own[1].h
        if len(self._linear):
            between = paired.kernel.between(left[paired], right[paired])
            between = self._with_levels(between, left, right)
            K += self._mixed(between).mul_(0.5).add_(self._linear).mul_(between).sum(0)
        for j, variance in zip(self.basis.absent, self._absent, strict=True):
            K += variance * torch.outer(a_missing[:, j], b_missing[:, j])
        return K

    @torch.no_grad()
    def between(self, at):
        """Return prior covariances (b, n) between other rows and those of the fit."""
        n = len(self.rows[1])
        rows, blocks = self._part(self.rows, slice(None)), self._blocks(len(at[1]), n)
        return torch.cat([self.total(self._part(at, block), rows) for block in blocks])

    @torch.no_grad()
    def matrix(self):
        """Return prior covariances (n, n) between the rows of the fit."""
        n = len(self.rows[1])
        K = self.variance.new_empty(n, n)
        for block, rest in self._triangle():
            cov = self.total(*(self._part(self.rows, index) for index in (block, rest)))
            K[block, rest], K[rest, block] = cov, cov.T
        return K

    @torch.no_grad()
    def slopes(self, adjoint):
        r"""Return derivatives in the hyperparameters, by name, from the covariance's (n, n).

        Let M be the adjoint of a process's covariance :math:`g - h h^\top / H`. With g', h' and H'
        the derivatives in the logarithm of all distances, that is, in minus the logarithm of the
        length scale, the derivative in the latter is

        .. math:: -\langle M, g' \rangle + 2 h'^\top M h / H - h^\top M h \, H' / H^2.
        """
        alone, paired, n_paired = self._alone, self._in_pairs, len(self._in_pairs.members)
        of_g, of_slope = adjoint.new_zeros(2, len(self._weights))  # <adjoint, g> and with g'
        by_log, held = adjoint.new_zeros(n_paired), torch.zeros_like(self.rows[0][paired].h)
        by_linear = torch.zeros_like(self._linear).ravel()
        by_bilinear = torch.zeros_like(self._bilinear)
        h = self.rows[0][paired].h
        for block, rest in self._triangle():
            own = adjoint[block, rest].clone()
            own[:, len(own) :] *= 2
            left, right = (self._part(self.rows, index)[0] for index in (block, rest))
            if len(self._weights):
                both = alone.kernel.stationary_and_slope(left[alone], right[alone])
                for sums, part in zip((of_g, of_slope), both, strict=True):
                    sums += part.flatten(1) @ own.ravel()
            if len(self._linear):
                between, slope = paired.kernel.between_and_slope(left[paired], right[paired])
                between = self._with_levels(between, left, right)
                weighted = (own * between).flatten(1)
                by_linear += weighted.sum(1)
                by_bilinear += weighted @ between.flatten(1).T
                adjoints = self._mixed(between).add_(self._linear).mul_(own)[:n_paired]
                held[:, block] += 0.5 * (adjoints @ h[:, rest, None])[..., 0]
                held[:, rest] += 0.5 * (adjoints.mT @ h[:, block, None])[..., 0]
                by_log += adjoints.mul_(slope).sum((1, 2))
        h = self.rows[0][alone].h
        held_alone = h @ adjoint
        by_weight = of_g - (h * held_alone).sum(1) / alone.kernel.total
        by_length = [
            self._weights * alone.by_length(of_slope, self.rows[0][alone], held_alone),
            paired.by_length(by_log, self.rows[0][paired], held),
        ]
        by_variance = []
        for term, own in zip(self.terms[1:], self._members[1:], strict=True):
            if len(own) == 2:
                by_variance.append(by_bilinear[own[0], own[1]])
            else:
                alone_at = None if own else self.basis.axes.index(term[0])
                by_variance.append(by_linear[own[0]] if own else by_weight[alone_at])
        missing = self.rows[1]
        for j in self.basis.absent:
            by_variance.append(missing[:, j] @ adjoint @ missing[:, j])
        by_variance = torch.stack(by_variance) if by_variance else adjoint.new_zeros(0)
        variance = torch.cat([self.variance[1:], *(part.ravel() for part in self._absent)])
        return {"length": torch.cat(by_length), "variance": variance * by_variance}


class _Numbers:
    """Processes of numbers of one kernel, whose covariances are computed together.

    Parameters
    ----------
    basis : AdditiveBasis
    kernel : str
    axes : list of int
        The feature of each process.
    lengths : Tensor of shape (p,)

    Attributes
    ----------
    kernel : ZeroMeanKernel
        The kernels of all processes. Measures with fewer atoms than others end in atoms of weight
        zero.
    members : list of ZeroMeanKernel
        The kernel of each process.
    """

    def __init__(self, basis, kernel, axes, lengths):
        self._axes = axes
        atoms = [[torch.as_tensor(x).to(lengths) for x in basis.atoms[j]] for j in axes]
        most = max((len(points) for points, _ in atoms), default=1)
        measures = lengths.new_zeros(2, len(axes), most)
        for place, measure in enumerate(atoms):
            measures[:, place, : len(measure[0])] = torch.stack(measure)
        self.kernel = ZeroMeanKernel(PROFILES[kernel], lengths, *measures)
        self.members = [self.kernel[place] for place in range(len(axes))]

    def at(self, u):
        """Return the `Points` of rows u (n, d), (p, n) each."""
        own = u[:, self._axes].T
        found = [self.kernel[part].at(own[part]) for part in self._parts(len(u))]
        return Points.cat(found)

    def _parts(self, n):
        """Return slices of processes whose covariances of n points with atoms fit in a block."""
        p, n_atoms = self.kernel.atoms.shape
        size = max(1, _BLOCK_ENTRIES // (n * n_atoms))
        return [slice(start, start + size) for start in range(0, max(p, 1), size)]

    def by_length(self, by_slope, rows, held):
        """Return derivatives in the logarithms of length scales, see `RowPrior.slopes`.

        Parameters
        ----------
        by_slope : Tensor of shape (p,)
            Products of adjoints and g'.
        rows : Points
        held : Tensor of shape (p, n)
            Products of adjoints and h.
        """
        kernel, n = self.kernel, held.shape[1]
        parts = [kernel[part].slopes_of_h(rows.u[part]) for part in self._parts(n)]
        h_slope, total_slope = map(torch.cat, zip(*parts, strict=True))
        by_h = (rows.known * h_slope * held).sum(1) / kernel.total
        by_total = (rows.h * held).sum(1) * total_slope / kernel.total.square()
        return 2 * by_h - by_slope - by_total


def _factorized(K, root):
    """Return the Cholesky factor of A = I + B^1/2 K B^1/2, given the diagonal of B^1/2."""
    inner = root[:, None] * K * root
    inner.diagonal(dim1=-2, dim2=-1).add_(1)
    return cholesky(inner, "covariance of the rows", jitter=0)


def _solved(K, root, chol, linear):
    """Solve for the posterior mean given sites with linear terms (n, k), without cancellation.

    Returns
    -------
    scaled, solved : Tensor of shape (n, k)
        Linear terms divided by roots of precisions, and A^-1 times these.
    rest : Tensor of shape (n, k)
        Linear terms of sites whose precision is too small to divide by.
    alpha : Tensor of shape (n, k)
        K^-1 times the posterior mean.
    """
    root = root[:, None]
    vague = root < _VAGUE
    rest = torch.where(vague, linear, 0.0)
    scaled = torch.where(vague, 0.0, linear / root) - root * (K @ rest)
    solved = torch.cholesky_solve(scaled, chol)
    return scaled, solved, rest, root * solved + rest


def _evidence(K, chol, scaled, solved, rest):
    """Return the log evidence, in nats, without terms that do not depend on K."""
    log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * ((rest * (K @ rest) - scaled * solved).sum((-2, -1)) - log_det)


def _scaled_sites(own, sums):
    """Return roots of precisions (n,) and linear terms (n, 1) of the sites, noise included."""
    var = own["noise"].exp()
    return (sums.precision / var).clamp_min(0).sqrt(), sums.linear[:, None] / var


def _constants(own, sums):
    """Return the terms of the log evidence of Gaussian noise that `_evidence` leaves out."""
    return -0.5 * sums.weight * (math.log(2 * math.pi) + own["noise"])


def _evidence_at(K, root, linear):
    chol = _factorized(K, root)
    return _evidence(K, chol, *_solved(K, root, chol, linear)[:3])


def evidence(basis, own, sums):
    """Return the log evidence of a latent's hyperparameters, in nats, up to constants of sites."""
    K = RowPrior(basis, own, sums.u).matrix()
    return _evidence_at(K, *_scaled_sites(own, sums)) + _constants(own, sums)


def evidence_gains(basis, own, sums):
    """Return how much each term adds to the log evidence at fixed hyperparameters, in nats."""
    prior, sites = RowPrior(basis, own, sums.u), _scaled_sites(own, sums)
    K, covariances = prior.matrix(), prior.covariances(prior.rows, prior.rows)
    next(covariances)  # skip the constant
    size = max(1, _BLOCK_ENTRIES // K.numel())
    groups = iter(lambda: list(itertools.islice(covariances, size)), [])
    without = [_evidence_at(K - torch.stack(group), *sites) for group in groups]
    return _evidence_at(K, *sites) - torch.cat(without)


def evidence_and_slopes(basis, own, sums):
    """Return the log evidence, in nats, and its derivatives in a latent's hyperparameters by name.

    Notes
    -----
    Source: Adam, Durrande and John (2018), appendix B; Rasmussen and Williams (2006), (3.27)
    and (5.9).
    """
    prior = RowPrior(basis, own, sums.u)
    K, (root, linear) = prior.matrix(), _scaled_sites(own, sums)
    chol = _factorized(K, root)
    inverse = torch.cholesky_inverse(chol)
    *parts, alpha = _solved(K, root, chol, linear)
    value = _evidence(K, chol, *parts) + _constants(own, sums)
    adjoint = 0.5 * (alpha @ alpha.T - root[:, None] * inverse * root)
    by_noise = 0.5 * (parts[1].square().sum() + len(root) - inverse.trace() - sums.weight)
    return value.item(), prior.slopes(adjoint) | {"noise": by_noise}


class ExactPosterior(EffectsPosterior):
    """Exact posterior of an additive GP given a Gaussian site of each row.

    Parameters
    ----------
    basis : AdditiveBasis
    theta : dict of Tensor
    u : Tensor of shape (n, d)
        Rows on the unit interval.
    precision, linear : Tensor of shape (n,)
        Of their sites.
    chol, alpha : Tensor, optional
        The attributes, where they are known.

    Attributes
    ----------
    chol : Tensor of shape (n, n)
        Root of I + B^1/2 K B^1/2, for the precisions B.
    alpha : Tensor of shape (n,)
        Weights of the prior covariances with the rows in the posterior mean.
    """

    form = None

    def __init__(self, basis, theta, u, precision, linear, chol=None, alpha=None):
        self.basis, self.u, self.precision, self.linear = basis, u, precision, linear
        self._prior = RowPrior(basis, theta, u)
        self._root = precision.clamp_min(0).sqrt()
        if chol is None:
            chol = _factorized(self._K, self._root)
            alpha = _solved(self._K, self._root, chol, linear[:, None])[-1][:, 0]
        self.chol, self.alpha = chol, alpha

    @cached_property
    def _K(self):
        return self._prior.matrix()

    @property
    def arrays(self):
        """Arrays from which the posterior is rebuilt at the same hyperparameters, by name."""
        names = "u", "precision", "linear", "chol", "alpha"
        return {name: getattr(self, name) for name in names}

    def _explained(self, cov):
        """Return V (n, b), given covariances (b, n) with the rows: V^T V is the reduction."""
        return torch.linalg.solve_triangular(self.chol, self._root[:, None] * cov.T, upper=False)

    def _at(self, X):
        return self._prior.at(self.basis.unit(X.double()))

    def marginals(self, X):
        at = self._at(X)
        cov = self._prior.between(at)
        var = self._prior.variances(at).sum(1) - self._explained(cov).square().sum(0)
        return (cov @ self.alpha)[:, None], var.clamp_min(0)[:, None]

    def row_marginals(self):
        """Return means and variances (n,) at the rows of the fit."""
        var = self._K.diagonal() - self._explained(self._K).square().sum(0)
        return self._K @ self.alpha, var.clamp_min(0)

    def effect_marginals(self, X, places=None):
        at, places = self._at(X), range(len(self._prior.terms)) if places is None else places
        mean, gone = self.alpha.new_empty(2, len(X), len(places))
        for k, cov in enumerate(self._prior.covariances(at, self._prior.rows, places)):
            mean[:, k], gone[:, k] = cov @ self.alpha, self._explained(cov).square().sum(0)
        return mean, (self._prior.variances(at)[:, list(places)] - gone).clamp_min(0)

    def of_residuals(self, X, precision):
        def covariances(psi):
            left = self._explained(torch.cat(psi, 1).T)
            return [part.T @ part for part in left.split([own.shape[1] for own in psi], 1)]

        return covariances

    def intercept(self):
        """Return the posterior mean of the constant."""
        return (self.basis.constant * self.alpha.sum()).item()

    def kl(self):
        held = torch.cholesky_inverse(self.chol).trace() - len(self.chol)
        log_det = 2 * self.chol.diagonal().log().sum()
        return 0.5 * (held + self.alpha @ self._K @ self.alpha + log_det)

    def cov(self, X):
        """Return covariances (1, b, b) at the rows of ``X``."""
        u = self.basis.unit(X.double())
        gone = self._explained(self._prior.between(self._prior.at(u)))
        return (self._prior.cross(u) - gone.T @ gone)[None]

    # Shares

    def _terms(self):
        """Return the terms other than the constant, their factors and their variances."""
        prior = self._prior
        return zip(prior.terms[1:], prior.factors[1:], prior.variance[1:], strict=True)

    def variances(self):
        found = [self.alpha.new_empty(0)]
        for _, factors, variance in self._terms():
            left, *right = (self._from_rows(factor) for factor in factors)
            effect = variance * self.alpha * left
            effect = effect @ right[0].T if right else effect.sum(1, keepdim=True)
            weights = [factor.weights for factor in factors]
            weights = torch.outer(*weights) if right else weights[0][:, None]
            found.append((weights * effect.square()).sum()[None])
        return torch.cat(found)

    def _from_rows(self, process):
        """Return covariances (k, n) of the atoms of a process's measure with the fit's rows."""
        return process.between(process.at(process.atoms), self._prior.rows[0][process])

    def drawn_variances(self, n_samples, rng):
        features = [self._features(*part) for part in self._terms()]
        sizes = [min(_DRAWS, n_samples - start) for start in range(0, n_samples, _DRAWS)]
        return torch.cat([self._drawn(size, features, rng) for size in sizes])

    def _drawn(self, size, features, rng):
        """Return the variances of the effects of a few draws, (size, n_terms)."""

        def normal(*shape):
            return torch.from_numpy(rng.standard_normal((size, *shape)))

        prior = math.sqrt(self.basis.constant) * normal(1)
        for term in self._prior.terms:
            if (absent := self._prior.absent(term)) is not None:
                prior = prior + absent.sqrt() * normal(1) * self._prior.rows[1][:, term[0]]
        weights = [normal(left.shape[1], right.shape[1]) for (left, right), _ in features]
        for own, ((left, right), _) in zip(weights, features, strict=True):
            prior = prior + ((left @ own) * right).sum(-1)
        linear = self.linear - self.precision * prior - self._root * normal(len(self.u))
        alpha = _solved(self._K, self._root, self.chol, linear.T)[-1].T
        found = [alpha.new_empty(size, 0)]
        for own, ((left, right), moments) in zip(weights, features, strict=True):
            own = own + (left.T * alpha[:, None]) @ right
            found.append((moments[0] @ own @ moments[1] * own).sum((1, 2))[:, None])
        return torch.cat(found, 1)

    def _features(self, _, factors, variance):
        """Return two factors of a term's features, whose weights are standard normal.

        Returns
        -------
        features : list of Tensors (n, p), (n, q)
            The features of the rows are the products of a column of each.
        moments : list of Tensors (p, p), (q, q)
            Second moments of the factors under the measure.
        """
        one = variance.new_ones(1, 1)
        features, moments = [], []
        for factor in factors:
            at = factor.at(factor.atoms)
            values, vectors = torch.linalg.eigh(factor.between(at, at))
            kept = values > _ROUNDING * values[-1]
            values, vectors = values[kept], vectors[:, kept]
            features.append(self._from_rows(factor).T @ (vectors / values.sqrt()))
            root = vectors * values.sqrt()
            moments.append(root.T * factor.weights @ root)
        if len(factors) == 1:
            features.append(one.expand(len(self.u), 1))
            moments.append(one)
        features[0], moments[0] = variance.sqrt() * features[0], variance * moments[0]
        return features, moments
