"""Posteriors of additive models with inducing points."""

from abc import abstractmethod
from functools import cached_property

import torch

from .._linalg import cholesky, gaussian_kl, identity_like, upper_inverse
from .._posteriors import Posterior
from ._bound import own_blocks, precision_root
from ._defaults import DEFAULTS
from ._shapes import constrained_moments

_ROUNDING = 1e-14  # jitter of covariances


def best_reduction(gram, chol, effects, covariance, rank):
    """Return I - S for the best covariance S of a form, given the Gram matrix over the noise.

    ``chol`` is the `precision_root` of the Gram matrix.

    Source: Titsias (2009), applied to all effects jointly; Adam, Durrande and John (2018) for the
    forms.
    """
    if covariance == "mean_field":
        roots = map(precision_root, own_blocks(gram, effects))
        return torch.block_diag(*map(_full_reduction, roots))
    if covariance == "full":
        return _full_reduction(chol)
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0)
    rank = chosen_rank(values) if rank is None else rank
    values, vectors = values[-rank:], vectors[:, -rank:]
    return vectors * (values / (1 + values)) @ vectors.T


def _full_reduction(chol):
    root = upper_inverse(chol)
    return identity_like(root) - root @ root.T


def chosen_rank(values):
    """Return the smallest rank that loses less than 0.01 nats, given ascending eigenvalues."""
    losses = 0.5 * (values - values.log1p()).cumsum(0)
    return max(int((losses >= DEFAULTS.rank_loss).sum()), 1)


def quadratic(vectors, matrix):
    """Return the quadratic forms (...) of a matrix at vectors (..., p)."""
    return ((vectors @ matrix) * vectors).sum(-1)


class EffectsPosterior(Posterior):
    """Gaussian posterior over a sum of effects."""

    @abstractmethod
    def effect_marginals(self, X, places=None):
        """Return means and variances (b, 1 + n_terms) of the constant and each term.

        ``places`` selects terms; the constant is term 0.
        """

    @abstractmethod
    def effect_means(self, X):
        """Return means (b, n_terms) of the terms; the constant is not among them."""

    @abstractmethod
    def drawn_effects(self, X, n_samples, rng):
        """Return joint draws (n_samples, b, n_terms) of the terms at rows.

        The variance that inducing points, or atoms of the measures, leave unexplained is not drawn.
        """

    @abstractmethod
    def intercept(self):
        """Return the posterior mean of the constant, a float."""

    @abstractmethod
    def variances(self):
        """Return variances (n_terms,) of the effects' posterior means under the features' measure.

        Source: Sobol (2001).
        """

    @abstractmethod
    def drawn_variances(self, n_samples, rng):
        """Return variances (n_samples, n_terms) of effects drawn from the posterior."""

    def sample(self, X, n_samples, generator):
        """Return joint draws at the rows of ``X``, (n_samples, b, 1). Memory is O(b^2)."""
        values, vectors = torch.linalg.eigh(self.cov(X)[0])
        root = vectors * values.clamp_min(0).sqrt()
        noise = torch.randn(len(root), n_samples, dtype=root.dtype, generator=generator)
        draws = self.marginals(X)[0] + root @ noise.to(root.device)
        return draws.T[..., None]


class AdditivePosterior(EffectsPosterior):
    """Posterior with inducing points: Gaussian weights of the whitened features of all terms.

    ``gram`` (p, p) and ``cross`` (p,) are the precision and the linear term that the rows add to
    the weights. For ``covariance`` and ``rank``, see `best_reduction`. The posterior mean
    ``weights`` (p,) and the ``reduction`` are given where they are known.

    Source: Adam, Durrande and John (2018), in whitened coordinates.
    """

    def __init__(
        self, effects, gram, cross, covariance="full", rank=None, *, weights=None, reduction=None
    ):
        self.effects, self.gram, self.cross, self.form = effects, gram, cross, (covariance, rank)
        self.weights, self._changed = weights, weights is not None
        if self._changed:
            self.reduction = reduction
        else:
            self._chol = precision_root(gram)
            self.weights = torch.cholesky_solve(cross[:, None], self._chol)[:, 0]

    @cached_property
    def reduction(self):
        """The identity, the prior covariance of the weights, less the posterior covariance."""
        return best_reduction(self.gram, self._chol, self.effects, *self.form)

    @property
    def _is_best(self):
        """True if the covariance of the weights is the inverse of their precision."""
        return self.form[0] == "full" and not self._changed

    def constrained(self):
        """Return the Gaussian posterior with the moments of this one, given its constraints."""
        rows = self.effects.constraints().cpu()
        if not len(rows):
            return self
        held = rows.abs().sum(0) > 0
        mean, cov = self.weights.cpu(), self._cov().cpu()
        within = cov[held][:, held]
        parts = (part.numpy() for part in (mean[held], within, rows[:, held]))
        new_mean, new_cov = map(torch.from_numpy, constrained_moments(*parts))
        # Other weights follow by their regression on these.
        gain = torch.linalg.solve(within, cov[held]).T
        weights = mean + gain @ (new_mean - mean[held])
        reduction = self.reduction.cpu() - gain @ (new_cov - within) @ gain.T
        known = {"weights": weights, "reduction": reduction}
        known = {name: part.to(self.weights) for name, part in known.items()}
        return AdditivePosterior(self.effects, self.gram, self.cross, *self.form, **known)

    @property
    def arrays(self):
        """Arrays from which the posterior is rebuilt at the same hyperparameters, by name."""
        found = {"gram": self.gram, "cross": self.cross}
        changed = {"weights": self.weights, "reduction": self.reduction}
        return found | changed if self._changed else found

    def expected(self, gram, cross):
        """Return the expectation, in nats, of the log density cross^T w - w^T gram w / 2."""
        w = self.weights
        trace = gram.trace() - (gram * self.reduction).sum()
        return cross @ w - 0.5 * (w @ gram @ w + trace)

    def _features(self, X):
        return self.effects.features(self.effects.basis.unit(X.double()))

    def marginals(self, X):
        psi, prior = self._features(X)
        mean, var = self._sum_marginals(torch.cat(psi, 1), prior)
        return mean[:, None], var[:, None]

    def _sum_marginals(self, psi, prior):
        """Return means and variances (b,) of the sum of all effects.

        ``psi`` (b, p) has the features of all terms, and ``prior`` (b, 1 + n_terms) variances.
        """
        var = prior.sum(1) - quadratic(psi, self.reduction)
        return psi @ self.weights, var.clamp_min(0)

    def predictive(self, X):
        """Return the marginals, but with variances that no constrained feature changes.

        Probabilities and rates are monotone in the mean only at a fixed variance. That of a
        constrained effect is replaced by its mean over the inducing points. Its covariances with
        other effects have mean zero under the measures, as the effect has.
        """
        places = self.effects.basis.constrained
        if not places:
            return self.marginals(X)
        psi, prior = self._features(X)
        mean, blocks = torch.cat(psi, 1) @ self.weights, own_blocks(self._cov(), self.effects)
        for place in places:
            [j] = self.effects.basis.terms[place]
            (_, features), cov = self.effects.at_knots(place), blocks[1 + place]
            size, missing = features.shape[1], X[:, j].isnan()
            var = quadratic(features, cov[:size, :size]).mean()
            prior[:, 1 + place] = torch.where(missing, prior[:, 1 + place], var)
            psi[1 + place] = psi[1 + place] * missing[:, None]
        _, var = self._sum_marginals(torch.cat(psi, 1), prior)
        return mean[:, None], var[:, None]

    def row_marginals(self, columns):
        """Return means and variances (b,) of rows, given their `RowColumns`."""
        psi, prior = columns.features(self.effects), columns.variances(self.effects)
        if self._is_best:
            left = torch.linalg.solve_triangular(self._chol, psi.T, upper=False).square().sum(0)
            gone = psi.square().sum(1) - left
        else:
            gone = quadratic(psi, self.reduction)
        return psi @ self.weights, (prior - gone).clamp_min(0)

    def effect_marginals(self, X, places=None):
        psi, prior = self._features(X)
        sizes = [part.shape[1] for part in psi]
        means = [part @ w for part, w in zip(psi, self.weights.split(sizes), strict=True)]
        blocks = own_blocks(self.reduction, self.effects)
        gone = [quadratic(*parts) for parts in zip(psi, blocks, strict=True)]
        found = torch.stack(means, 1), (prior - torch.stack(gone, 1)).clamp_min(0)
        return found if places is None else tuple(part[:, places] for part in found)

    def effect_means(self, X):
        return self._effects(X, self.weights)

    def drawn_effects(self, X, n_samples, rng):
        return self._effects(X, self._drawn_weights(n_samples, rng))

    def _effects(self, X, weights):
        """Return the terms (..., b, n_terms) at rows, given weights (..., p)."""
        psi, _ = self._features(X)
        parts = weights.split([part.shape[1] for part in psi], -1)
        found = [own @ part.T for part, own in zip(psi[1:], parts[1:], strict=True)]
        none = weights.new_empty(*weights.shape[:-1], len(X), 0)
        return torch.stack(found, -1) if found else none

    def intercept(self):
        return (self.effects.coefs[0] * self.weights[0]).item()

    def root(self):
        """Return a root (p, p) of the covariance of the weights."""
        if self._changed:  # the rank may be lower
            values, vectors = torch.linalg.eigh(self._cov())
            return vectors * values.clamp_min(0).sqrt()
        return cholesky(self._cov(), "covariance of the weights", jitter=_ROUNDING)

    def _cov(self):
        return identity_like(self.reduction) - self.reduction

    def kl(self):
        root = upper_inverse(self._chol) if self._is_best else self.root()
        return gaussian_kl(self.weights, root)

    def cov(self, X):
        u = self.effects.basis.unit(X.double())
        psi = torch.cat(self.effects.features(u)[0], 1)
        return (self.effects.cross(u) - psi @ self.reduction @ psi.T)[None]

    def variances(self):
        return self._variances(self.weights)

    def drawn_variances(self, n_samples, rng):
        return self._variances(self._drawn_weights(n_samples, rng))

    def _drawn_weights(self, n_samples, rng):
        noise = torch.from_numpy(rng.standard_normal((n_samples, len(self.weights))))
        return self.weights + noise @ self.root().T

    def _variances(self, weights):
        """Return variances (..., n_terms) of effects with weights (..., p)."""
        sizes = [coef.shape[1] for coef in self.effects.coefs]
        parts = zip(weights.split(sizes, -1)[1:], self.effects.seconds(), strict=True)
        none = [weights.new_empty((*weights.shape[:-1], 0))]
        return torch.cat(none + [quadratic(*part)[..., None] for part in parts], -1)
