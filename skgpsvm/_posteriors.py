"""Gaussian posteriors over latent functions: sparse, decoupled and weight-space."""

from abc import ABC, abstractmethod
from functools import partial

import torch

from ._csr import dense_blocks
from ._linalg import (
    HARMLESS_NOISE,
    gaussian_kl,
    jittered_cholesky,
    spreads,
    triangular_product,
    upper_inverse,
)
from ._memory import LARGE_BLOCK, block_rows
from ._torch_kernels import fitting_points, gradients
from .kernels._composite import exact_and_rest

_MIN_RATIO = 1e-12
_NAME = "kernel matrix of the inducing points"


class Posterior(ABC):
    """A Gaussian posterior q over c latent functions."""

    @abstractmethod
    def marginals(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means and variances of the latents at rows: (b, d) -> (b, c), (b, c)."""

    def means(self, X: torch.Tensor) -> torch.Tensor:
        """Return the means of `marginals` alone, (b, c), to the same bits."""
        return self.marginals(X)[0]

    def predictive(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the moments from which classes, counts and amounts are predicted, as `marginals`.

        They differ from these only where predictions must be monotone.
        """
        return self.marginals(X)

    @abstractmethod
    def kl(self) -> torch.Tensor:
        """Return the KL divergence from the prior, a scalar in nats."""

    @abstractmethod
    def sample(self, X: torch.Tensor, n_samples, generator) -> torch.Tensor:
        """Draw joint samples at the rows of ``X``, (n_samples, b, c); memory is O(b^2)."""

    @abstractmethod
    def cov(self, X: torch.Tensor) -> torch.Tensor:
        """Return covariances (c, b, b) at the rows of ``X``."""


class WhitenedBasis:
    r"""Whitened features of the inducing points, and the prior variance they leave unexplained.

    The weights of the features are standard normal under the prior.

    The kernel is split into terms with an exact finite feature map (a constant, a linear kernel)
    and the rest, :math:`k = \phi\phi^\top + k_r`. Exact features are used as they are. The rest is
    projected on the inducing points, :math:`a(x) = L^{-1} k_r(Z, x)` with
    :math:`LL^\top = k_r(Z, Z)`. The projection leaves the residual variance
    :math:`k_r(x, x) - \lVert a(x) \rVert^2`.

    Terms with an exact map are exact if they have at most m features, or at most max(4m, 500)
    features for a mean function. ``jitter`` is added to the diagonal of `Kzz`, relative to its
    mean.

    The m x m algebra is done in float64. Source: Hensman et al. (2015), section 3, with the
    finite terms taken out.
    """

    def __init__(self, kernel, theta, Z, jitter=1e-6):
        self.theta, self.Z, self._jitter = theta, Z, jitter
        # projected: the part of the kernel that is projected, or None if all features are exact
        self._exact, self.projected = exact_and_rest(kernel, Z.shape[1], len(Z))
        self.size = self._exact.n_exact_features(Z.shape[1]) if self._exact else 0
        if self.projected:
            Kzz = self.projected(Z.double(), Z.double(), theta)
            chol, self._added = jittered_cholesky(
                Kzz, _NAME, jitter=jitter, harmless=HARMLESS_NOISE
            )
            self._projection = upper_inverse(chol)
            self.size += len(Z)

    def __call__(self, X):
        """Return features (b, p) and residual variances (b,), in the dtype of ``X``."""
        A = self.features(X)
        if not self.projected:
            return A, A.new_zeros(len(A))
        explained = A[:, : self.n_projected].square().sum(1)
        return A, (self.projected.diag(X, self.theta) - explained).clamp_min(0)

    def features(self, X):
        """Return the features (b, p) alone."""
        parts = [self._project(X)] if self.projected else []
        if self._exact:
            parts.append(self._exact.exact_features(X, self.theta))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def _project(self, X):
        Z = fitting_points(self.projected, self.Z, X)
        return self.whitened(self.projected(X, Z, self.theta))

    def pull_back(self, X, left, right, residual_adjoint):
        """Return the gradient of a scalar in theta and Z through the rows, with `Kzz` held.

        ``left @ right``, (b, q) and (q, p), are its derivatives in the features, including those
        through the residual variances; ``residual_adjoint`` (b,) are those in the residual
        variances.
        """
        m, by_theta, by_Z = self.n_projected, torch.zeros_like(self.theta), torch.zeros_like(self.Z)
        if self.projected:
            through = (right[:, :m].double() @ self._projection.T).to(X.dtype)
            Z = fitting_points(self.projected, self.Z, X)
            _, pull_back = self.projected.vjp(X, Z, self.theta)
            of_theta, of_Z = pull_back(left @ through)
            by_theta += of_theta + self.projected.diag_gradient(X, self.theta, residual_adjoint)
            by_Z += of_Z
        if self._exact:
            theta = self.theta.detach().requires_grad_()
            with torch.enable_grad():
                features = self._exact.exact_features(X, theta)
            if features.requires_grad:
                by_theta += gradients(features, left @ right[:, m:], theta)[0]
        return by_theta, by_Z

    def pull_back_projection(self, cross):
        r"""Return the gradient in theta and Z through `Kzz`.

        ``cross`` (p, p) is the sum over rows of the outer products of features and their adjoints,
        residuals included. It is symmetric, since the scalar must be invariant to rotations of the
        features. Such a scalar depends on the features :math:`A^\top = L^{-1} K_{zx}` only through
        :math:`A A^\top = K_{xz} K_{zz}^{-1} K_{zx}`. If H are its derivatives in that matrix, those
        in A are :math:`2 H A`, and ``cross`` is :math:`C = 2 A^\top H A`. Those in `Kzz` are

        .. math:: -K_{zz}^{-1} K_{zx} H K_{xz} K_{zz}^{-1} = -\tfrac12 L^{-\top} C L^{-1}.

        The jitter adds its share of their trace to each diagonal entry.
        """
        if not self.projected:
            return torch.zeros_like(self.theta), torch.zeros_like(self.Z)
        m = self.n_projected
        by_Kzz = -0.5 * self._projection @ cross[:m, :m] @ self._projection.T
        by_Kzz.diagonal().add_(self._added * by_Kzz.trace() / m)
        # Both arguments are Z, and adjoint and kernel are symmetric.
        _, pull_back = self.projected.vjp(self.Z, self.Z, self.theta)
        by_theta, by_Z = pull_back(by_Kzz)
        return by_theta, 2 * by_Z

    def whitened(self, values):
        """Return values (q, m) of functions at the inducing points in whitened coordinates."""
        return triangular_product(values, self._projection.to(values.dtype))

    def unwhitened(self, values):
        """Return whitened coordinates (q, m) as weights of kernels at the inducing points."""
        return values @ self._projection.T.to(values.dtype)

    @property
    def groups(self):
        """The bases of the groups of latent functions, see `GroupedBasis`: this one of all."""
        return [self]

    @property
    def n_projected(self):
        """Number of features that are projections on the inducing points; they come first."""
        return len(self.Z) if self.projected else 0

    def projected_variance(self, X):
        """Return prior variances (b,) of the projected part at rows."""
        return self.projected.diag(X, self.theta) if self.projected else X.new_zeros(len(X))

    def residual_cov(self, X):
        """Return the prior covariance (b, b) that the features leave unexplained."""
        if not self.projected:
            return torch.zeros(len(X), len(X), dtype=X.dtype, device=X.device)
        A = self._project(X)
        prior = [self.projected(X, block, self.theta) for block in dense_blocks(X)]
        cov = torch.cat(prior, 1) - A @ A.T
        return cov.diagonal_scatter(self.projected.diag(X, self.theta) - A.square().sum(1))


class GroupedBasis:
    """Whitened features for groups of latent functions, each with a kernel of its own.

    The groups are equally large and share the inducing points. Where one has fewer features than
    another, zeros follow them, whose weights stay at the prior.
    """

    def __init__(self, bases):
        self.groups, self.theta, self.Z = bases, bases[0].theta, bases[0].Z
        self.size = max(basis.size for basis in bases)

    def __call__(self, X):
        """Return features (k, b, p) of the k groups and their residual variances (k, b)."""
        features, residuals = zip(*(basis(X) for basis in self.groups), strict=True)
        padded = (torch.nn.functional.pad(A, (0, self.size - A.shape[1])) for A in features)
        return torch.stack([*padded]), torch.stack(residuals)


def whitened_basis(kernels, theta, Z, jitter=1e-6):
    """Return the `WhitenedBasis` of one kernel, or the `GroupedBasis` of several."""
    bases = [WhitenedBasis(kernel, theta, Z, jitter) for kernel in kernels]
    return bases[0] if len(bases) == 1 else GroupedBasis(bases)


class IndependentPosterior(Posterior):
    """Independent posteriors of several groups of latent functions, in order."""

    def __init__(self, parts):
        self.parts = parts

    def marginals(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        means, variances = zip(*(part.marginals(X) for part in self.parts), strict=True)
        return torch.cat(means, 1), torch.cat(variances, 1)

    def means(self, X: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.means(X) for part in self.parts], 1)

    def kl(self) -> torch.Tensor:
        return sum(part.kl() for part in self.parts)

    def sample(self, X: torch.Tensor, n_samples, generator) -> torch.Tensor:
        return torch.cat([part.sample(X, n_samples, generator) for part in self.parts], 2)

    def cov(self, X: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.cov(X) for part in self.parts])


class InducingPosterior(Posterior):
    r"""Posterior of a sparse GP: Gaussian weights of a :class:`WhitenedBasis` for each latent.

    The covariance of the weights of latent j is ``root[j] @ root[j].T``, with upper triangular
    roots (c, p, p). The prior has mean zero and root I for every kernel. A step on hyperparameters
    or inducing points therefore keeps the posterior meaningful.

    Source: Wistuba and Rawat (2018), section 3.2, in whitened coordinates.
    """

    def __init__(self, basis, mean, root):
        self.basis, self.mean, self.root = basis, mean, root

    def marginals(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        A, residual = self.basis(X)
        return A @ self.mean.to(A.dtype).T, residual[:, None] + spreads(A, self.root)

    def means(self, X: torch.Tensor) -> torch.Tensor:
        return self.basis.features(X) @ self.mean.to(X.dtype).T

    def kl(self) -> torch.Tensor:
        return gaussian_kl(self.mean, self.root).sum()

    def sample(self, X: torch.Tensor, n_samples, generator) -> torch.Tensor:
        X = X.double()
        A = self.basis.features(X)
        values, vectors = torch.linalg.eigh(self.basis.residual_cov(X))
        scale = vectors * values.clamp_min(0).sqrt()
        normal = partial(_normal, generator, A.device)
        weights = self.mean[..., None] + self.root @ normal(*self.mean.shape, n_samples)
        residual = scale @ normal(len(self.mean), len(A), n_samples)
        return (A @ weights + residual).permute(2, 1, 0)

    def cov(self, X: torch.Tensor) -> torch.Tensor:
        X = X.double()
        half = self.basis.features(X) @ self.root
        return half @ half.mT + self.basis.residual_cov(X)


class DecoupledPosterior(InducingPosterior):
    r"""Posterior whose covariance is that of a sparse GP and whose mean has further bases.

    ``power`` is the exponent of the ratio of posterior to prior variance, see `shrinkage`. Few
    inducing points, and few neighbors, leave too much variance near the data; far away the full
    prior variance is right. `LocalVariances`, if given, replace the variances of the inducing
    points. Joint covariances are scaled to them, and keep the correlations of the inducing points.

    Source: Cheng and Boots (2017), eqs. 11 to 13 (the hybrid form); with ``mean`` zero eq. 7.
    """

    def __init__(self, basis, mean, root, bases, coef, power=1.0, local=None):
        super().__init__(basis, mean, root)
        self.bases, self.coef, self.power, self.local = bases, coef, power, local

    def marginals(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.local is not None:
            var = self.local(X)
            return self.means(X), self._shrinkage(X, var) * var
        mean, var = super().marginals(X)
        return mean + self.bases.mean(X, self.coef), self._shrinkage(X, var) * var

    def means(self, X: torch.Tensor) -> torch.Tensor:
        return super().means(X) + self.bases.mean(X, self.coef)

    def sample(self, X: torch.Tensor, n_samples, generator) -> torch.Tensor:
        X = X.double()
        mean, var = super().marginals(X)
        scaled = self._factor(X, var).sqrt() * (super().sample(X, n_samples, generator) - mean)
        return scaled + mean + self.bases.mean(X, self.coef)

    def cov(self, X: torch.Tensor) -> torch.Tensor:
        X = X.double()
        _, var = super().marginals(X)
        factor = self._factor(X, var).sqrt().T
        return factor[:, :, None] * super().cov(X) * factor[:, None, :]

    def kl(self) -> torch.Tensor:
        between = self.coef * (self.mean @ self.bases.overlap(self.basis).T)
        return super().kl() + 0.5 * self.bases.rkhs_norm_sq(self.coef).sum() + between.sum()

    def _factor(self, X, var):
        """Return the factors (b, c) of the variances of the inducing points."""
        if self.local is None:
            return self._shrinkage(X, var)
        local = self.local(X)
        return self._shrinkage(X, local) * local / var.clamp_min(torch.finfo(var.dtype).tiny)

    def _shrinkage(self, X, var):
        return shrinkage(var, self.basis.projected_variance(X)[:, None], self.power)


class WeightPosterior(Posterior):
    r"""Gaussian posterior over weights of finitely many bases, with a chevron-shaped factor.

    The covariance factor C is lower triangular. Its first k columns are dense, the others diagonal.
    With k = 0 the weights are independent (mean field); with k = M the covariance is unrestricted.

    ``diag`` (c, M) is the diagonal of C, positive, and ``columns`` (c, M, k) are its first columns,
    diagonal included, zero above it. Training ``rows`` (n, d) and their ``precisions`` (c, n), if
    given, augment the variance at x by that of a kernel function at x itself, up to the prior's, to
    which it returns far from all points.

    Source: Evans and Nair, section 3 and Proposition 4. Departs from the source: near the rows the
    augmented variance counts twice, so it is capped at the prior's. The function at x leaves out
    the kernel's exact terms, see `exact_and_rest`. A constant or linear mean is known from all
    rows, however far away; with it in the function, no place would seem unknown.
    """

    def __init__(self, bases, coef, diag, columns, rows=None, precisions=None):
        self.bases, self.coef, self.diag, self.columns = bases, coef, diag, columns
        self._rows, self._precisions, self._local = rows, precisions, None
        if rows is not None:
            _, self._local = exact_and_rest(bases.kernel, rows.shape[1], bases.size)
        self._alone = diag.clone()
        self._alone[:, : columns.shape[2]] = 0.0

    def marginals(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, var = self._own_marginals(X)
        factor, more = self._augmentation(X, var)
        return mean, factor.square() * var + more

    def means(self, X: torch.Tensor) -> torch.Tensor:
        return self.bases.mean(X, self.coef).to(X.dtype)

    def _own_marginals(self, X):
        """Return means and variances (b, c) at rows, without augmentation."""
        mean, var = X.new_zeros(2, len(X), len(self.coef))
        dense = X.new_zeros(len(self.coef), len(X), self.columns.shape[2])
        for part, values in self.bases.blocks(X):
            mean += values @ self.coef[:, part].T.to(values.dtype)
            var += values.square() @ self._alone[:, part].T.square().to(values.dtype)
            dense += values @ self.columns[:, part].to(values.dtype)
        return mean, var + dense.square().sum(2).T

    def _augmentation(self, X, var):
        """Return the factors of deviations from the mean, and the added variances, (b, c) each."""
        if self._local is None:
            return torch.ones_like(var), torch.zeros_like(var)
        prior = self.bases.kernel.diag(X, self.bases.theta)[:, None]
        local = self._local.diag(X, self.bases.theta)[:, None]
        known = X.new_zeros(len(X), len(self.coef))
        step = block_rows(len(X), LARGE_BLOCK)
        parts = zip(self._rows.split(step), self._precisions.split(step, 1), strict=True)
        for rows, precisions in parts:
            rows = fitting_points(self._local, rows, X)
            squares = self._local(X, rows, self.bases.theta).square()
            known += squares @ precisions.T.to(X.dtype)
        total = (var + local.square() / (known + local)).minimum(prior)
        return (total / var).clamp_max(1).sqrt().nan_to_num(1.0), (total - var).clamp_min(0)

    def kl(self) -> torch.Tensor:
        c, M = self.coef.shape
        trace = self.bases.prior_trace(self._alone, self.columns)
        log_det = 2 * self.diag.log().sum() + self.bases.prior_log_det(c)
        return 0.5 * (self.bases.rkhs_norm_sq(self.coef).sum() + trace - c * M - log_det)

    def sample(self, X: torch.Tensor, n_samples, generator) -> torch.Tensor:
        (c, M), normal = self.coef.shape, partial(_normal, generator, self.coef.device)
        weights = self.coef[:, None] + normal(c, n_samples, M) * self._alone[:, None]
        weights = weights + normal(c, n_samples, self.columns.shape[2]) @ self.columns.mT
        draws = self.bases.mean(X.double(), weights.flatten(0, 1))
        draws = draws.T.reshape(c, n_samples, len(X)).permute(1, 2, 0)
        if self._local is None:
            return draws
        mean, var = self._own_marginals(X.double())
        factor, more = self._augmentation(X.double(), var)
        return mean + factor * (draws - mean) + more.sqrt() * normal(n_samples, len(X), c)

    def cov(self, X: torch.Tensor) -> torch.Tensor:
        total = X.new_zeros(len(self.coef), len(X), len(X), dtype=torch.float64)
        dense = X.new_zeros(*total.shape[:2], self.columns.shape[2], dtype=torch.float64)
        for part, values in self.bases.blocks(X.double()):
            half = values * self._alone[:, None, part]
            total += half @ half.mT
            dense += values @ self.columns[:, part]
        total += dense @ dense.mT
        factor, more = self._augmentation(X.double(), total.diagonal(dim1=1, dim2=2).T)
        return factor.T[:, :, None] * total * factor.T[:, None, :] + torch.diag_embed(more.T)


def _normal(generator, device, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(device)


def shrinkage(var, prior, power):
    """Return the variance correction factor (var / prior)^(power - 1), (b, c).

    The prior variances (b, 1) are those of the part that is projected on inducing points. That of a
    mean function is known from all rows, near and far.
    """
    ratio = var / prior.clamp_min(torch.finfo(var.dtype).tiny)
    return ratio.clamp(_MIN_RATIO, 1) ** (power - 1)
