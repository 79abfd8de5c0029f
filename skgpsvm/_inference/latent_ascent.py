"""Natural-gradient sweeps on the latent values at all rows, where each is an inducing point.

`CoordinateAscent` finds the same posterior from whitened features, at several times the cost.
"""

from dataclasses import dataclass

import torch

from .._evidence import distinct_rows
from .._linalg import cholesky
from .._sites import Sites
from .coordinate_ascent import MAX_HALVINGS, ROUNDING
from .mean_steps import times

_MIN_PRECISION = 1e-9  # of a site, relative to the mean precision of the prior


@dataclass(frozen=True)
class LatentPart:
    """Posterior of the values of k latent functions with one prior at u distinct rows."""

    # precision, linear (n, k): weighted sites of the rows
    precision: torch.Tensor
    linear: torch.Tensor
    # mean, variance, weights (k, u): marginal moments, and the products of the inverse prior
    # covariance with the means
    mean: torch.Tensor
    variance: torch.Tensor
    weights: torch.Tensor
    # scale (k, u), inverse (k, u, u): square roots of the precisions of distinct rows, and the
    # inverse of B, see `LatentAscent`
    scale: torch.Tensor
    inverse: torch.Tensor
    kl: torch.Tensor  # (): Kullback-Leibler divergence to the prior, nats

    @classmethod
    def of(cls, K, precision, linear, group):
        """Return the posterior that sites (n, k) imply under prior covariances K (u, u).

        ``group`` has the distinct row that each row equals.
        """
        sums = K.new_zeros(2, precision.shape[1], len(K))
        sums.index_add_(2, group, torch.stack([precision.T, linear.T]))
        scale = sums[0].clamp_min(_MIN_PRECISION / K.diagonal().mean()).sqrt()
        B = K * (scale[:, :, None] * scale[:, None, :])
        B.diagonal(dim1=-2, dim2=-1).add_(1.0)
        chol = cholesky(B, "precision of the latent values", jitter=0.0)
        inverse = torch.cholesky_inverse(chol)
        shares = inverse.diagonal(dim1=-2, dim2=-1)
        weights = scale * times(inverse, sums[1] / scale)
        mean = weights @ K
        kl = 0.5 * ((shares - 1).sum() + (weights * mean).sum())
        kl = kl + chol.diagonal(dim1=-2, dim2=-1).log().sum()
        variance = (1 - shares) / scale.square()
        return cls(precision, linear, mean, variance, weights, scale, inverse, kl)

    def by_prior(self):
        """Return the derivatives of minus the divergence in the prior covariance, (u, u)."""
        outer = self.weights.T @ self.weights
        spread = (self.scale[:, :, None] * self.inverse * self.scale[:, None, :]).sum(0)
        return 0.5 * (outer - spread)


@dataclass
class LatentPosterior:
    """Posterior of all latent functions, with the sites at its moments."""

    # Of the first latent functions of the outputs, of the second ones, and so on
    parts: list
    sites: Sites
    value: float  # ELBO, nats


class LatentAscent:
    r"""Closed-form updates of the posterior under Gaussian sites, at given hyperparameters.

    Let :math:`\Lambda` be the diagonal matrix of the precisions of a latent function's sites, r
    their linear terms, and :math:`B = I + \Lambda^{1/2} K \Lambda^{1/2}`. The posterior of the
    values has

    .. math:: \alpha = K^{-1} m = \Lambda^{1/2} B^{-1} \Lambda^{-1/2} r, \qquad
        v_i = (1 - (B^{-1})_{ii}) / \Lambda_{ii},

    and its divergence from the prior is :math:`\tfrac12 (\log |B| + \mathrm{tr}\, B^{-1} - u +
    \alpha^\top m)`. With the posterior held, the derivatives of the ELBO in K are
    :math:`\tfrac12 (\alpha \alpha^\top - \Lambda^{1/2} B^{-1} \Lambda^{1/2})`. A sweep takes a
    Cholesky factor and an inverse, about u^3 operations, for each latent function.

    Every latent must be active in every row, and no site may have a negative precision.

    Source: Opper and Archambeau (2009), The variational Gaussian approximation revisited, eq. 10,
    for the covariance; Rasmussen and Williams (2006), eqs. 3.26 and 3.27, for B.
    """

    def __init__(self, likelihood, kernels, theta, rows):
        self.likelihood, self._kernels, self._theta, self._rows = likelihood, kernels, theta, rows
        self._priors = []
        for kernel in kernels:
            K, pull_back = kernel.vjp(rows.X, rows.X, theta, points=False)
            self._priors.append((K.diagonal_scatter(kernel.diag(rows.X, theta)), pull_back))

    def posterior_of(self, precision, linear):
        """Return the posterior that weighted sites (n, c) imply."""
        precision, linear = precision.double(), linear.double()
        groups = enumerate(self.likelihood.groups)
        return self._posterior([self._part(j, precision[:, g], linear[:, g]) for j, g in groups])

    def _part(self, j, precision, linear):
        K, _ = self._priors[j % len(self._priors)]
        return LatentPart.of(K, precision, linear, self._rows.group)

    def _posterior(self, parts):
        sites = self.likelihood.sites(self._rows.targets, *self._moments(parts))
        loss = self._rows.weights @ sites.loss + sum(part.kl for part in parts)
        return LatentPosterior(parts, sites, -loss.item())

    def _moments(self, parts):
        """Return means and variances of the latents of all rows, each (n, c)."""
        pairs = zip(*((part.mean, part.variance) for part in parts), strict=True)
        return [torch.cat(values)[:, self._rows.group].T for values in pairs]

    def elbo(self, posterior):
        """Return the ELBO, nats."""
        return posterior.value

    def natural_sweep(self, posterior):
        """Take an uphill sweep, see `CoordinateAscent.uphill_sweep`; return the ELBO before."""
        before, step = posterior.value, self.likelihood.step(1)
        for j, latents in enumerate(self.likelihood.groups):
            part, min_elbo = posterior.parts[j], posterior.value - ROUNDING * abs(posterior.value)
            targets = [target[:, latents] for target in self.sites(posterior)]
            pairs = list(zip((part.precision, part.linear), targets, strict=True))
            for k in range(MAX_HALVINGS):
                moved = self._part(j, *(torch.lerp(*pair, step * 0.5**k) for pair in pairs))
                found = self._posterior([*posterior.parts[:j], moved, *posterior.parts[j + 1 :]])
                if found.value >= min_elbo:
                    break
            vars(posterior).update(vars(found))
        return before

    def sites(self, posterior):
        """Return precisions and linear terms of the sites of all rows, each (n, c), weighted."""
        found, weights = posterior.sites, self._rows.weights[:, None]
        return [weights * part for part in (found.precision, found.linear)]

    def value_and_gradient(self, posterior):
        """Return the ELBO, its gradient in theta with the posterior held, and the sites.

        See `DifferentiableAscent.value_and_gradient`.
        """
        by_theta, n_kernels = torch.zeros_like(self._theta), len(self._kernels)
        for j, (kernel, (_, pull_back)) in enumerate(zip(self._kernels, self._priors, strict=True)):
            by_K = sum(part.by_prior() for part in posterior.parts[j::n_kernels])
            variances = by_K.diagonal().clone()
            by_theta += pull_back(by_K.fill_diagonal_(0.0))[0]
            by_theta += kernel.diag_gradient(self._rows.X, self._theta, variances)
        return posterior.value, {"theta": by_theta}, self.sites(posterior)

    def noise_gradient(self, posterior, likelihood, noise):
        """Return the gradient in the likelihood's parameters, as `DifferentiableAscent` does."""
        noise = noise.detach().requires_grad_()
        with torch.enable_grad():
            moments = self._moments(posterior.parts)
            loss = self._rows.weights @ likelihood.at(noise).loss(self._rows.targets, *moments)
            (gradient,) = torch.autograd.grad(loss, noise)
        return -gradient


class LatentRows:
    """The rows of all ranks in float64, of which the posterior has the latent values.

    ``X`` (u, d) are the distinct rows, and ``group`` (n,) the distinct row that each row equals.
    """

    def __init__(self, rows):
        X, self.targets, weights = rows.take(slice(None))
        self.weights = weights.double()
        self.X, self.group = distinct_rows(X.to_dense().double())
