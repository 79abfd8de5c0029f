"""Additive processes without inducing points: evidence, derivatives and posterior from all rows."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from .._linalg import cholesky
from ._bound import EffectsPosterior, quadratic
from ._effects import Prior
from ._processes import Chebyshev, Levels

_BLOCK_ENTRIES = 2**16  # of a matrix: its derivatives then stay in the cache
_LEAST_SHARE = 1e-6  # of the largest eigenvalue of an effect's covariance, in shares


@dataclass
class RowSums:
    """What a fit without inducing points needs of the rows.

    Attributes
    ----------
    u : Tensor of shape (n, d)
        On the unit interval.
    precision, linear : Tensor of shape (n,)
        Of the sites of the rows; with Gaussian noise weights, and these times the targets.
    squares, weight : float
        As of `Sums`.
    """

    u: torch.Tensor
    precision: torch.Tensor
    linear: torch.Tensor
    squares: float = 0.0
    weight: float = 0.0


class RowPrior:
    """Prior covariance between the rows of a fit, and its derivatives by hand.

    Parameters
    ----------
    basis : AdditiveBasis
    theta : dict of Tensor
    u : Tensor of shape (n, d)
    """

    def __init__(self, basis, theta, u):
        self._theta = {
            kind: theta[kind].detach().requires_grad_() for kind in ("length", "variance")
        }
        with torch.enable_grad():
            self._prior = Prior(basis, self._theta)
            self._placed = self._prior.at(u)
        size = max(1, _BLOCK_ENTRIES // len(u))
        # Rows, and all from these on: the rest is on the other side of the diagonal.
        self._blocks = [(slice(i, i + size), slice(i, None)) for i in range(0, len(u), size)]

    @torch.no_grad()
    def matrix(self):
        """Covariance (n, n) of the sum of all terms."""
        n = len(self._placed[0][1])
        K = self._prior.variance.new_empty(n, n)
        for block, rest in self._blocks:
            own, others = (self._part(self._placed, index) for index in (block, rest))
            cov = sum(self._prior.covariances(own, others))
            K[block, rest], K[rest, block] = cov, cov.T
        return K

    @staticmethod
    def _part(placed, index):
        return [
            ([tuple(x[index] for x in part) for part in parts], known[index])
            for parts, known in placed
        ]

    @torch.no_grad()
    def slopes(self, adjoint):
        """Derivatives in the hyper-parameters from those (n, n) in the covariance, by name."""
        outputs, adjoints, by_variance = [], [], []
        for place, (term, (parts, known)) in enumerate(
            zip(self._prior.terms, self._placed, strict=True)
        ):
            *own, own_by_variance = self._slopes_of(place, parts, known, adjoint)
            by_variance.append(own_by_variance)
            if (absent := self._prior.absent(term)) is not None:
                own.append((absent, ((1 - known) @ adjoint @ (1 - known)).view(1, 1)))
            outputs += [output for output, _ in own]
            adjoints += [slope for _, slope in own]
        outputs.append(self._prior.variance)
        adjoints.append(torch.stack(by_variance))
        theta = list(self._theta.values())
        found = torch.autograd.grad(outputs, theta, adjoints, materialize_grads=True)
        return dict(zip(self._theta, found, strict=True))

    def _slopes_of(self, place, parts, known, adjoint):
        """Of one term: what its numerical factors are made of, and the derivatives in it."""
        factors, variance = self._prior.factors[place], self._prior.variance[place]
        numbers = [k for k, factor in enumerate(factors) if not isinstance(factor, Levels)]
        by_log = dict.fromkeys(numbers, 0.0)
        pulled = {k: torch.zeros_like(known) for k in numbers}
        by_variance = 0.0
        for block, rest in self._blocks:
            own = adjoint[block, rest] * torch.outer(known[block], known[rest])
            size = len(own)
            own[:, size:] *= 2
            found = [
                factor.between_and_slope(*(tuple(x[at] for x in part) for at in (block, rest)))
                for factor, part in zip(factors, parts, strict=True)
            ]
            covs = [cov for cov, _ in found]
            by_variance += (own * math.prod(covs)).sum()
            for k in numbers:
                h = parts[k][1]
                others = variance * own * math.prod(covs[:k] + covs[k + 1 :])
                by_log[k] -= (others * found[k][1]).sum()
                pulled[k][block] += others @ h[rest]
                pulled[k][rest] += others.T @ h[block]
        slopes = []
        for k in numbers:
            factor, h = factors[k], parts[k][1]
            slopes += [
                (factor.length, by_log[k] / factor.length),
                (h, -pulled[k] / factor.total),
                (factor.total, 0.5 * h @ pulled[k] / factor.total.square()),
            ]
        return *slopes, by_variance


def _factorised(K, root):
    """Root of I + B^1/2 K B^1/2, for square roots of precisions B."""
    inner = root[:, None] * K * root
    inner.diagonal().add_(1)
    return cholesky(inner, "covariance of the rows", jitter=0)


def evidence_and_slopes(basis, own, sums):
    """The log evidence, nats, constants of sites left out, and its derivatives by name.

    Notes
    -----
    Source: additive GP specification, section 4.5; Rasmussen and Williams (2006), (3.27), (5.9).
    """
    prior, var = RowPrior(basis, own, sums.u), own["noise"].exp()
    K, precision, linear = prior.matrix(), sums.precision / var, sums.linear / var
    root = precision.clamp_min(0).sqrt()
    chol = _factorised(K, root)
    inverse = torch.cholesky_inverse(chol)
    alpha = _alpha(K, root, chol, linear)
    mean = K @ alpha
    log_det = 2 * chol.diagonal().log().sum()
    size, misfit = sums.weight * (math.log(2 * math.pi) + own["noise"]), sums.squares / var
    value = 0.5 * (linear @ mean - log_det - size - misfit)
    adjoint = 0.5 * (torch.outer(alpha, alpha) - root[:, None] * inverse * root)
    held = len(root) - inverse.trace() + precision @ mean.square()
    by_noise = 0.5 * (held - sums.weight + misfit) - linear @ mean
    return value.item(), prior.slopes(adjoint) | {"noise": by_noise}


def _alpha(K, root, chol, linear):
    """K^-1 times the posterior mean of the rows, (n, ...)."""
    product = (K @ linear).view(len(K), -1)
    solved = root[:, None] * torch.cholesky_solve(root[:, None] * product, chol)
    return linear - solved.view_as(linear)


class ExactPosterior(EffectsPosterior):
    """The process given Gaussian sites of rows.

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
        self.basis, self._theta = basis, theta
        self.u, self.precision, self.linear = u, precision, linear
        self._prior = Prior(basis, theta)
        self._placed = self._prior.at(u)
        self._root = precision.clamp_min(0).sqrt()
        if chol is None:
            chol = _factorised(self._K, self._root)
            alpha = _alpha(self._K, self._root, chol, linear)
        self.chol, self.alpha = chol, alpha

    @cached_property
    def _K(self):
        return RowPrior(self.basis, self._theta, self.u).matrix()

    @property
    def arrays(self):
        """What a posterior at the same hyper-parameters is made of, by name."""
        names = "u", "precision", "linear", "chol", "alpha"
        return {name: getattr(self, name) for name in names}

    def _explained(self, cov):
        """Roots (n, b) of what the rows take from the prior, of covariances (b, n) with them."""
        return torch.linalg.solve_triangular(self.chol, self._root[:, None] * cov.T, upper=False)

    def _at(self, X):
        return self._prior.at(self.basis.unit(X.double()))

    def marginals(self, X):
        placed = self._at(X)
        cov = sum(self._prior.covariances(placed, self._placed))
        gone = self._explained(cov).square().sum(0)
        var = self._prior.variances(placed).sum(1) - gone
        return (cov @ self.alpha)[:, None], var.clamp_min(0)[:, None]

    def row_marginals(self, columns=None):
        """Means and variances (n,) at the rows themselves."""
        var = self._K.diagonal() - self._explained(self._K).square().sum(0)
        return self._K @ self.alpha, var.clamp_min(0)

    def effect_marginals(self, X):
        """Means and variances (b, 1 + n_terms) of the constant and each term."""
        placed, means, gone = self._at(X), [], []
        for cov in self._prior.covariances(placed, self._placed):
            means.append(cov @ self.alpha)
            gone.append(self._explained(cov).square().sum(0))
        var = self._prior.variances(placed) - torch.stack(gone, 1)
        return torch.stack(means, 1), var.clamp_min(0)

    def intercept(self):
        """Posterior mean of the constant."""
        return (self.basis.constant * self.alpha.sum()).item()

    def kl(self):
        held = torch.cholesky_inverse(self.chol).trace() - len(self.chol)
        log_det = 2 * self.chol.diagonal().log().sum()
        return 0.5 * (held + self.alpha @ self._K @ self.alpha + log_det)

    def cov(self, X):
        """Covariances (1, b, b) at the rows of ``X``."""
        u = self.basis.unit(X.double())
        gone = self._explained(sum(self._prior.covariances(self._prior.at(u), self._placed)))
        return (self._prior.cross(u) - gone.T @ gone)[None]

    # Shares

    def variances(self):
        found = [quadratic(self.alpha @ psi, second) for psi, second in self._features()]
        return torch.stack(found) if found else self.alpha.new_empty(0)

    def drawn_variances(self, n_samples, rng):
        features = self._features()
        weights = [
            torch.from_numpy(rng.standard_normal((n_samples, psi.shape[1]))) for psi, _ in features
        ]
        constant = torch.from_numpy(rng.standard_normal((n_samples, 1)))
        noise = torch.from_numpy(rng.standard_normal((n_samples, len(self.u))))
        prior = math.sqrt(self.basis.constant) * constant
        prior = prior + sum(w @ psi.T for w, (psi, _) in zip(weights, features, strict=True))
        linear = self.linear - self.precision * prior - self._root * noise
        alpha = _alpha(self._K, self._root, self.chol, linear.T).T
        found = [alpha.new_empty(n_samples, 0)]
        for own, (psi, second) in zip(weights, features, strict=True):
            found.append(quadratic(own + alpha @ psi, second)[:, None])
        return torch.cat(found, 1)

    def _features(self):
        """Of each term: features (n, p) of the rows whose weights are standard normal, moments."""
        basis, found = self.basis, []
        polynomials = Chebyshev(basis.size, self.u)
        terms = zip(
            *(self._prior.terms, self._prior.factors, self._prior.variance, self._placed),
            strict=True,
        )
        for term, factors, variance, (_, known) in list(terms)[1:]:
            psi, second = variance.sqrt() * known[:, None], variance.new_ones(1, 1)
            for j, factor in zip(term, factors, strict=True):
                values, vectors = torch.linalg.eigh(factor.cov)
                kept = values > _LEAST_SHARE * values[-1]
                root = vectors[:, kept] * values[kept].sqrt()
                own = basis.columns(polynomials, self.u, j) @ root
                psi = (psi[:, :, None] * own[:, None]).flatten(1)
                moment = torch.as_tensor(basis.seconds[j]).to(root)
                second = torch.kron(second, root.T @ moment @ root)
            second = variance * second
            if (absent := self._prior.absent(term)) is not None:
                psi = torch.cat([psi, absent.sqrt() * (1 - known[:, None])], 1)
                second = torch.nn.functional.pad(second, (0, 1, 0, 1))
            found.append((psi, second))
        return found
