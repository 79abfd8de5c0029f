"""Covariances of the quadruply stochastic steps: running sums over minibatches.

They have one interface, which `NystroemSum` describes. Sums stand for all rows.
"""

from dataclasses import dataclass, replace

import torch

from .._bases import MeanBases
from .._inference.decoupled import features, roots
from .._linalg import add_grams, gaussian_kl, mirror
from .._posteriors import WeightPosterior, WhitenedBasis


@dataclass(frozen=True)
class NystroemSum:
    """Covariance in the features of inducing points: a running precision-weighted Gram matrix."""

    basis: WhitenedBasis
    jitter: float  # see `WhitenedBasis`
    n_dense = 0

    def at(self, bases):
        """Return the covariance at the hyperparameters of some bases of the mean."""
        basis = WhitenedBasis(bases.kernel, bases.theta, self.basis.Z, self.jitter)
        return replace(self, basis=basis)

    def init(self, state):
        """Set the fields of the prior."""
        c, q, coef = len(state.mean_precision), self.basis.size, state.coef
        state.gram = coef.new_zeros(c, q, q)
        state.root = torch.eye(q).to(coef).expand(c, -1, -1)

    def prepare(self, state):
        """Compute the covariance's root, which a whole pass uses."""
        state.root = roots(mirror(state.gram))

    def rescale(self, state, share, n_summed):
        """Multiply the sums by a share; they are then means over so many minibatches."""
        state.gram = share * state.gram

    def update(self, state, X, estimates, precision, min_weight, sum_over_ranks):
        """Add a minibatch, with this least weight; return latent variances (b, c) at its rows.

        The variances are those of ``root``, which `prepare` renews. If ranks share the rows, each
        has its own part of the minibatch, and ``sum_over_ranks`` is `WeightedDataset.sum`.
        """
        A, var = features(self.basis, X, state.root)
        gram = torch.zeros_like(state.gram)
        add_grams(gram, A, precision)
        (gram,) = sum_over_ranks(gram)
        state.gram = state.gram.lerp(gram, max(1 / state.n_summed, min_weight))
        return var

    def variances(self, state, X, first, values, f):
        """Return the latent variances (b, c) at rows; see `ChevronSum.variances`."""
        return features(self.basis, X, state.root)[1]

    def posterior(self, state):
        """Return the covariance by field of the fitted model."""
        root = roots(mirror(state.gram))
        return {"mean": torch.zeros_like(root[..., 0]), "root": root}

    def kl(self, state):
        """Return the covariance's part of the divergence from the prior, in nats."""
        return gaussian_kl(*self.posterior(state).values()).sum().item()


@dataclass(frozen=True)
class ChevronSum:
    """Covariance of all basis functions by a chevron: a diagonal, and ``n_dense`` dense columns.

    The diagonal is a running sum; the dense columns are coefficients that take gradient steps.
    """

    bases: MeanBases
    n_dense: int

    def at(self, bases):
        return replace(self, bases=bases)

    def init(self, state):
        M, zeros = self.bases.size, state.coef.new_zeros
        state.data, state.counts = zeros(len(state.mean_precision), M), zeros(M)

    def prepare(self, state):
        pass  # variances are computed from the sums

    def rescale(self, state, share, n_summed):
        state.data = share * state.data
        state.counts = n_summed / max(state.n_summed, 1) * state.counts

    def update(self, state, X, estimates, precision, min_weight, sum_over_ranks):
        squares = [precision.T @ each.values.square().double() for each in estimates.draws]
        for each, new in zip(estimates.draws, sum_over_ranks(*squares), strict=True):
            at = each.coordinates
            state.counts[at] += 1
            weight = (1 / state.counts[at]).clamp_min(min_weight)
            state.data[:, at] = state.data[:, at].lerp(new, weight)
        first = estimates.draws[0]
        return self.variances(state, X, first, first.values, estimates.f)

    def variances(self, state, X, first, values, f):
        """Estimate the latent variances (b, c) at rows.

        The diagonal columns' part is estimated from the draw ``first`` with its ``values`` (b, u),
        that of the dense columns from the estimates ``f`` (b, c + c k) with both draws.
        """
        c, k = len(state.mean_precision), self.n_dense
        diag = (first.coordinates >= k) * self.diag(state, first.coordinates).square()
        f_i, f_j = (each[:, c:].view(len(each), c, k) for each in f)
        return values.square().double() @ (first.scale * diag).T + (f_i * f_j).sum(2)

    def diag(self, state, index=None):
        """Return the diagonal of the covariance's factor, (c, M), or its entries at an index."""
        c, k = len(state.mean_precision), self.n_dense
        if index is None:
            index = torch.arange(self.bases.size, device=state.coef.device)
        prior = self.bases.prior_diag(index).detach()  # held as hyperparameters take a step
        diag = (state.data[:, index] + prior).rsqrt()
        if not k:
            return diag
        dense = state.coef[c:].view(c, k, self.bases.size).diagonal(dim1=1, dim2=2)
        return torch.where(index < k, dense[:, index.clamp_max(k - 1)], diag)

    def posterior(self, state):
        c, k = len(state.mean_precision), self.n_dense
        columns = state.coef[c:].view(c, k, self.bases.size).mT.contiguous()
        return {"diag": self.diag(state), "columns": columns}

    def kl(self, state):
        zero = state.coef.new_zeros(len(state.mean_precision), self.bases.size)
        return WeightPosterior(self.bases, zero, **self.posterior(state)).kl().item()
