"""Additive GPs without inducing points: evidence, its derivatives, and the exact posterior."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import torch

from .._linalg import cholesky
from .._memory import SMALL_BLOCK, block_rows
from ._posterior import EffectsPosterior

_ROUNDING = 1e-10  # relative, of eigenvalues
_VAGUE = 1e-5  # square root of a precision, below which linear terms are kept apart
_DRAWS = 50  # that are computed at once


@dataclass
class RowSums:
    """Sufficient statistics of the rows for one latent without inducing points, or for several."""

    u: torch.Tensor  # (n, d): features on the unit interval
    # (..., n): precisions and linear terms of the sites of the rows. With Gaussian noise, the
    # weights, and the weights times the targets.
    precision: torch.Tensor
    linear: torch.Tensor
    weight: float = 0.0  # total weight with Gaussian noise, as in `Sums`
    known: torch.Tensor | None = None  # (..., n): known variances of Gaussian noise

    def latents(self):
        """Return the statistics of each latent, given those of several, a list."""
        known = [None] * len(self.linear) if self.known is None else self.known
        parts = zip(self.precision, self.linear, known, strict=True)
        return [
            RowSums(self.u, precision, linear, self.weight, own) for precision, linear, own in parts
        ]

    def var(self, log_var):
        """Return the variance of the noise, (..., n) if a part is known, else like ``log_var``."""
        return log_var.exp() if self.known is None else log_var.exp() + self.known

    def sites(self, log_var):
        """Return precisions and linear terms (..., n) of the sites, noise included.

        ``log_var`` is a scalar, or (..., 1).
        """
        var = self.var(log_var)
        return self.precision / var, self.linear / var

    def normalization(self, log_var):
        """Return the terms (...) of the log evidence that depend on the noise alone, nats."""
        if self.known is None:
            return -0.5 * self.weight * (math.log(2 * math.pi) + log_var).sum(-1)
        return -0.5 * ((2 * math.pi * self.var(log_var)).log() * self.precision).sum(-1)


def _factorized(K, root):
    """Return the Cholesky factor of A = I + B^1/2 K B^1/2, given the diagonal of B^1/2."""
    inner = (root[..., :, None] * K).mul_(root[..., None, :])
    inner.diagonal(dim1=-2, dim2=-1).add_(1)
    return cholesky(inner, "covariance of the rows", jitter=0)


def _solved(K, root, chol, linear):
    """Solve for the posterior mean given sites with linear terms (n, k), without cancellation.

    Returns four Tensors (n, k): the linear terms divided by roots of precisions, A^-1 times these,
    the linear terms of sites whose precision is too small to divide by, and alpha, which is K^-1
    times the posterior mean.
    """
    root = root[..., None]
    vague = root < _VAGUE
    rest = torch.where(vague, linear, 0.0)
    scaled = torch.where(vague, 0.0, linear / root) - root * (K @ rest)
    solved = torch.cholesky_solve(scaled, chol)
    return scaled, solved, rest, root * solved + rest


def _evidence(K, chol, scaled, solved, rest):
    """Return the log evidence, in nats, without terms that do not depend on K."""
    log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * ((rest * (K @ rest) - scaled * solved).sum((-2, -1)) - log_det)


def _scaled_sites(log_var, sums):
    """Return roots of precisions (..., n) and linear terms (..., n, 1), see `RowSums.sites`."""
    precision, linear = sums.sites(log_var)
    return precision.clamp_min(0).sqrt(), linear[..., None]


class RowEvidence:
    """Log evidence of a latent's hyperparameters, and its derivatives on request.

    The ``sums`` are those of c latents with the same hyperparameters, whose evidences are added.
    ``noise`` is the logarithm of the variance of their noise. ``value`` is in nats, up to constants
    of sites.

    Source: Adam, Durrande and John (2018), appendix B; Rasmussen and Williams (2006), (3.27)
    and (5.9).
    """

    def __init__(self, prior, sums, noise):
        self._prior, self._sums, self._noise = prior, sums, noise
        K, (root, linear) = prior.matrix, _scaled_sites(noise, sums)
        self._root, linear = root.view(-1, len(K)), linear.view(-1, len(K), 1)
        self._chol = _factorized(K, self._root)
        *parts, self._alpha = _solved(K, self._root, self._chol, linear)
        constants = sums.normalization(noise)
        self.value = (_evidence(K, self._chol, *parts) + constants).sum().item()
        self._solved = parts[1]

    def derivatives(self, names):
        r"""Return the gradient and the average information in the hyperparameters.

        The covariance C of the pseudo-targets, with the derivatives :math:`C_i`, has the
        information

        .. math:: I_{ij} = \tfrac12 (C_i \alpha)^\top C^{-1} (C_j \alpha).

        Where the evidence is quadratic, it is the mean of the observed and the expected
        information, up to the second derivatives of C.

        The gradient is a dict of Tensors by name, and the information a Tensor (k, k) for the
        hyperparameters of ``names``, one kind after the other. With the noise alone, the prior has
        no derivatives to compute.

        Source: Gilmour, Thompson and Cullis (1995).
        """
        root, sums = self._root[..., None], self._sums
        inverse, alpha = torch.cholesky_inverse(self._chol), self._alpha[..., 0].T
        gradient, moves = {}, {}
        if set(names) != {"noise"}:
            adjoint = 0.5 * (alpha @ alpha.T - (root * inverse * root.mT).sum(0))
            gradient, moves = self._prior.derivatives(adjoint, alpha)
        # Where C_i is the variance of the noise, B^1/2 C_i alpha is what `_solved` returned, times
        # the share of that variance in all noise.
        share, left = torch.ones_like(root), 1 - inverse.diagonal(dim1=-2, dim2=-1)[..., None]
        excess = self._solved.square() + left
        if sums.known is not None:
            share = (self._noise.exp() / sums.var(self._noise))[..., None]
            by_noise = 0.5 * (share * (excess - sums.precision[..., None])).sum()
        else:
            by_noise = 0.5 * (excess.sum() - sums.weight * len(root))
        scaled = {name: root * part.permute(2, 1, 0) for name, part in moves.items()}
        scaled = scaled | {"noise": share * self._solved}
        scaled = torch.cat([scaled[name] for name in names], -1)
        half = torch.linalg.solve_triangular(self._chol, scaled, upper=False).flatten(0, 1)
        return gradient | {"noise": by_noise}, 0.5 * half.T @ half


def _evidence_at(K, log_var, sums):
    """Return the log evidence (...) given prior covariances (..., n, n), see `RowSums.sites`."""
    root, linear = _scaled_sites(log_var, sums)
    chol = _factorized(K, root)
    return _evidence(K, chol, *_solved(K, root, chol, linear)[:3]) + sums.normalization(log_var)


def evidence_gains(prior, noise, sums, places):
    """Return how much some terms add to the log evidence, in nats.

    Hyperparameters are fixed. Without a term, however, the variance of Gaussian noise may grow by
    the mean prior variance of the term, if the evidence is then higher. A rough function of idle
    features is noise by another name, and gains nothing.
    """
    K, after_constant = prior.matrix, [1 + place for place in places]
    covariances = prior.covariances(prior.rows, prior.rows, after_constant)
    size, without = block_rows(K.numel(), SMALL_BLOCK), []
    while group := list(itertools.islice(covariances, size)):
        gone = torch.stack(group)
        without.append(_evidence_at(K - gone, noise.expand(len(gone), 1), sums))
        if sums.weight:
            more = noise.exp() + gone.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
            without[-1] = without[-1].maximum(_evidence_at(K - gone, more.log(), sums))
    return _evidence_at(K, noise, sums) - torch.cat(without)


class ExactPosterior(EffectsPosterior):
    """Exact posterior of an additive GP given a Gaussian site of each row.

    ``prior`` is a `RowPrior`, and ``precision`` and ``linear`` (n,) are of the sites. Given where
    they are known: the root ``chol`` (n, n) of I + B^1/2 K B^1/2 for the precisions B, and the
    weights ``alpha`` (n,) of the prior covariances with the rows in the posterior mean.
    """

    form = None

    def __init__(self, prior, precision, linear, chol=None, alpha=None):
        self._prior, self.basis = prior, prior.basis
        self.precision, self.linear = precision, linear
        self._root = precision.clamp_min(0).sqrt()
        if chol is None:
            chol = _factorized(self._K, self._root)
            alpha = _solved(self._K, self._root, chol, linear[:, None])[-1][:, 0]
        self.chol, self.alpha = chol, alpha

    @property
    def _K(self):
        return self._prior.matrix

    @property
    def arrays(self):
        """Arrays from which the posterior is rebuilt at the same hyperparameters, by name."""
        names = "precision", "linear", "chol", "alpha"
        return {"u": self._prior.u} | {name: getattr(self, name) for name in names}

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

    def intercept(self):
        return (self.basis.constant * self.alpha.sum()).item()

    def kl(self):
        held = torch.cholesky_inverse(self.chol).trace() - len(self.chol)
        log_det = 2 * self.chol.diagonal().log().sum()
        return 0.5 * (held + self.alpha @ self._K @ self.alpha + log_det)

    def cov(self, X):
        u = self.basis.unit(X.double())
        gone = self._explained(self._prior.between(self._prior.at(u)))
        return (self._prior.cross(u) - gone.T @ gone)[None]

    # Shares

    def variances(self):
        found = [self.alpha.new_empty(0)]
        for _, factors, variance in self._prior.parts()[1:]:
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
        found = self.alpha.new_empty(n_samples, len(self._sets))
        for index, weights, _ in self._drawn_weights(n_samples, rng):
            for place, (own, part) in enumerate(zip(weights, self._sets, strict=True)):
                left, right = part.moments
                found[index, place] = (left @ own @ right * own).sum((1, 2))
        return found

    def effect_means(self, X):
        places = range(1, len(self._prior.terms))
        covariances = self._prior.covariances(self._at(X), self._prior.rows, places)
        found = [cov @ self.alpha for cov in covariances]
        return torch.stack(found, 1) if found else self.alpha.new_empty(len(X), 0)

    def drawn_effects(self, X, n_samples, rng):
        places, missing = self._at(X)
        features = [part.at(places) for part in self._sets]
        found = self.alpha.new_empty(n_samples, len(X), len(features))
        for index, weights, absent in self._drawn_weights(n_samples, rng):
            for place, (own, (left, right)) in enumerate(zip(weights, features, strict=True)):
                found[index, :, place] = ((left @ own) * right).sum(-1)
            for place, own in absent.items():
                (j,) = self.basis.terms[place]
                found[index, :, place] += own * missing[:, j]
        return found

    @cached_property
    def _sets(self):
        """`_AtomFeatures` of each term."""
        return [_AtomFeatures(*own) for _, *own in self._prior.parts()[1:]]

    def _drawn_weights(self, n_samples, rng):
        """Yield draws of a few weights at once, until there are ``n_samples``.

        They are the slice of the numbers of the draws, the weights (size, p, q) of the features of
        each term, and the effects (size, 1) of missing numbers by place of the term.
        """
        features = [part.at(self._prior.rows[0]) for part in self._sets]
        for start in range(0, n_samples, _DRAWS):
            index = slice(start, min(start + _DRAWS, n_samples))
            yield index, *self._drawn(index.stop - start, features, rng)

    def _drawn(self, size, features, rng):
        """Return draws of weights and effects of missing numbers, as `_drawn_weights` yields.

        Prior draws are corrected by the residuals of the rows, which makes them posterior draws.
        """

        def normal(*shape):
            return torch.from_numpy(rng.standard_normal((size, *shape)))

        prior, absent = math.sqrt(self.basis.constant) * normal(1), {}
        for place, term in enumerate(self.basis.terms):
            if (variance := self._prior.absent(term)) is not None:
                absent[place] = variance.sqrt() * normal(1)
                prior = prior + absent[place] * self._prior.rows[1][:, term[0]]
        weights = [normal(left.shape[1], right.shape[1]) for left, right in features]
        for own, (left, right) in zip(weights, features, strict=True):
            prior = prior + ((left @ own) * right).sum(-1)
        linear = self.linear - self.precision * prior - self._root * normal(len(self.linear))
        alpha = _solved(self._K, self._root, self.chol, linear.T)[-1].T
        weights = [
            own + (left.T * alpha[:, None]) @ right
            for own, (left, right) in zip(weights, features, strict=True)
        ]
        for place in absent:
            (j,) = self.basis.terms[place]
            variance = self._prior.absent((j,))
            absent[place] = absent[place] + variance * (alpha @ self._prior.rows[1][:, j, None])
        return weights, absent


class _AtomFeatures:
    """Features of a term by the atoms of its measures, whose weights are standard normal.

    They are products of a column of each of two matrices; the second has a single one if the term
    has one feature. ``factors`` are the processes of the term, and ``moments`` (p, p), (q, q) the
    second moments of the columns under the measures.
    """

    def __init__(self, factors, variance):
        self._factors, self._roots, self.moments, self._scale = factors, [], [], variance.sqrt()
        for factor in factors:
            at = factor.at(factor.atoms)
            values, vectors = torch.linalg.eigh(factor.between(at, at))
            kept = values > _ROUNDING * values[-1]
            values, vectors = values[kept], vectors[:, kept]
            self._roots.append(vectors / values.sqrt())
            root = vectors * values.sqrt()
            self.moments.append(root.T * factor.weights @ root)
        if len(factors) == 1:
            self.moments.append(variance.new_ones(1, 1))
        self.moments[0] = variance * self.moments[0]

    def at(self, places):
        """Return the two matrices (b, p), (b, q) at rows in the form of `Prior.at`."""
        left, *right = (
            factor.between(factor.at(factor.atoms), places[factor]).T @ root
            for factor, root in zip(self._factors, self._roots, strict=True)
        )
        return self._scale * left, right[0] if right else left.new_ones(len(left), 1)
