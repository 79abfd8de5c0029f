"""Posteriors over the latent functions: the abstract one, and the whitened inducing-point one."""

from abc import ABC, abstractmethod

import torch

from ._linalg import cholesky, gaussian_kl, root_norms, triangular_product, upper_inverse


class Posterior(ABC):
    """A Gaussian posterior q over c latent functions."""

    @abstractmethod
    def marginals(self, X):
        """Mean and variance of every latent at the rows of ``X``: (b, d) -> (b, c), (b, c)."""

    @abstractmethod
    def kl(self):
        """Divergence from the prior in nats, a scalar."""


class WhitenedBasis:
    r"""Features whose prior weights are standard normal, and what they leave unexplained.

    The kernel is split into terms that have an exact finite feature map (a constant, a linear
    kernel) and the rest, :math:`k = \phi\phi^\top + k_r`. The exact features stand as they are; the
    rest is projected on the inducing points, :math:`a(x) = L^{-1} k_r(Z, x)` with
    :math:`LL^\top = k_r(Z, Z)`, which leaves the residual variance
    :math:`k_r(x, x) - \lVert a(x) \rVert^2`.

    Parameters
    ----------
    kernel : TorchKernel
    theta : Tensor
        Logarithms of the kernel's free hyper-parameters, float64.
    Z : Tensor of shape (m, d)
        Inducing points. Terms with an exact map are taken exactly as long as their features
        number at most m.

    Notes
    -----
    The m x m algebra is done in float64. Source: Hensman et al. (2015), section 3, with the
    finite terms taken out.
    """

    def __init__(self, kernel, theta, Z):
        self.theta, self.Z = theta, Z
        self._exact, self._rest = kernel.split(Z.shape[1], len(Z))
        self.size = self._exact.n_exact_features(Z.shape[1]) if self._exact else 0
        if self._rest:
            Kzz = self._rest(Z.double(), Z.double(), theta)
            Lz = cholesky(Kzz, name="kernel matrix of the inducing points")
            self._projection = upper_inverse(Lz)
            self.size += len(Z)

    def __call__(self, X):
        """Features (b, p) and residual variances (b,), in the dtype of ``X``."""
        parts, residual = [], X.new_zeros(len(X))
        if self._rest:
            A = self._project(X)
            residual = (self._rest.diag(X, self.theta) - A.square().sum(1)).clamp_min(0)
            parts.append(A)
        if self._exact:
            parts.append(self._exact.exact_features(X, self.theta))
        return (torch.cat(parts, 1) if len(parts) > 1 else parts[0]), residual

    def _project(self, X):
        Kxz = self._rest(X, self.Z.to(X.dtype), self.theta)
        return triangular_product(Kxz, self._projection.to(X.dtype))

    def residual_cov(self, X):
        """Prior covariance (b, b) that the features leave unexplained."""
        if not self._rest:
            return X.new_zeros(len(X), len(X))
        A = self._project(X)
        cov = self._rest(X, X, self.theta) - A @ A.T
        return cov.diagonal_scatter(self._rest.diag(X, self.theta) - A.square().sum(1))


class InducingPosterior(Posterior):
    r"""Gaussian weights of a :class:`WhitenedBasis`, independent between latents.

    Parameters
    ----------
    basis : WhitenedBasis
    mean : Tensor of shape (c, p)
    root : Tensor of shape (c, p, p)
        Upper triangular; the covariance of latent j's weights is ``root[j] @ root[j].T``. The
        prior has mean zero and root I whatever the kernel, so that a step on the kernel's
        hyper-parameters or on the inducing points does not throw the posterior away.

    Notes
    -----
    Source: Wistuba and Rawat (2018), section 3.2, in whitened coordinates.
    """

    def __init__(self, basis, mean, root):
        self.basis, self.mean, self.root = basis, mean, root

    def marginals(self, X):
        A, residual = self.basis(X)
        mean = A @ self.mean.to(A.dtype).T
        spread = [root_norms(A, root) for root in self.root.to(A.dtype)]
        return mean, residual[:, None] + torch.stack(spread, 1)

    def kl(self):
        return gaussian_kl(self.mean, self.root).sum()

    def sample(self, X, n_samples, generator):
        """Joint draws at the rows of ``X``, (n_samples, b, c). Memory O(b^2)."""
        A, _ = self.basis(X)
        A = A.double()
        values, vectors = torch.linalg.eigh(self.basis.residual_cov(X.double()))
        scale = vectors * values.clamp_min(0).sqrt()

        def normal(*shape):
            draws = torch.randn(*shape, dtype=A.dtype, generator=generator)
            return draws.to(A.device)

        weights = self.mean[..., None] + self.root @ normal(*self.mean.shape, n_samples)
        residual = scale @ normal(len(self.mean), len(A), n_samples)
        return (A @ weights + residual).permute(2, 1, 0)
