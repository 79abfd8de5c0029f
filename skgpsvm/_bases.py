"""Functions that span a posterior mean: kernels at points, and random Fourier features."""

from abc import ABC, abstractmethod
from functools import cached_property

import torch

from ._linalg import cholesky

JITTER = 1e-9  # of the points' kernel matrix, relative to its mean diagonal
_CHUNK_ENTRIES = 2**19  # of a block of values at rows, as a processor's cache holds
_DEVICE_CHUNKS = 16  # of those at a time on another device
_CHUNK_BASES = 4096
_BLOCK = 256


class MeanBases(ABC):
    r"""Functions :math:`\phi_j`, whose weights have the prior :math:`N(0, S^{-1})`.

    Attributes
    ----------
    size : int
        Their number, M.
    n_units : int
        Units that are sampled together.
    independent : bool
        Whether S is diagonal.
    """

    independent = True

    @abstractmethod
    def at(self, theta):
        """The same functions at other hyperparameters."""

    @abstractmethod
    def values(self, X):
        """Of all of them at rows: (b, d) -> (b, M)."""

    @abstractmethod
    def sampled(self, X, units):
        """Values (b, k) at rows of some units, an int64 tensor, and of what is never left out."""

    @abstractmethod
    def coordinates(self, units):
        """Which functions those are, an int64 tensor (k,), and how many are never left out."""

    @abstractmethod
    def prior_diag(self, which):
        """The diagonal of S for functions (k,): (1, k), or (c, k) where it is by latent."""

    @abstractmethod
    def prior_product(self, coef):
        """Coefficients (q, M) times S, in new memory."""

    def rkhs_norm_sq(self, coef):
        """Squared norms in S of coefficients (q, M): (q,)."""
        return (coef * self.prior_product(coef)).sum(1)

    @abstractmethod
    def preconditioners(self, X, precisions):
        r"""Approximate inverses of :math:`\Phi^\top \Lambda \Phi + S`, one a latent.

        Parameters
        ----------
        X : Tensor of shape (k, d)
            Rows that stand for all; the points, where the functions are kernels at points.
        precisions : Tensor of shape (c, k)
            Their precisions, times the number of rows that each stands for.

        Returns
        -------
        conditions : list of c callables
            Of residuals (q, M).
        """

    def whitened(self, sums):
        """Sums (q, M) over rows times values, in coordinates of which the prior is standard."""
        return sums

    def unwhitened(self, coef):
        """Coefficients (q, M) of those in these coordinates: the transpose of `whitened`."""
        return coef

    @abstractmethod
    def overlap(self, basis):
        """Prior covariance (M, p) of what the functions stand for and a basis's weights."""

    @abstractmethod
    def prior_trace(self, diag, columns):
        """Trace of S and the covariance of a factor: diagonal (c, M), plus columns (c, M, k)."""

    @abstractmethod
    def prior_log_det(self, c):
        """Log determinant of S, summed over c latents."""

    @abstractmethod
    def blocks(self, X):
        """Slices of the functions and their values at rows, block by block."""

    def spread(self, coef):
        """Coefficients (q, M) of the values, which the functions may be combinations of."""
        return coef

    def embed(self, mean):
        """Coefficients (q, M) of whitened features times weights (q, p); zero where not spanned."""
        return mean.new_zeros(len(mean), self.size)

    def adjoint(self, sums):
        """Sums (q, M) over rows times values, as of the functions: the transpose of `spread`.

        They may be overwritten.
        """
        return sums

    def mean(self, X, coef):
        """Their sum at rows, (b, q), with coefficients (q, M)."""
        coef = self.spread(coef)
        return sum(values @ coef[:, part].T.to(values.dtype) for part, values in self.blocks(X))

    def chunk_size(self, device):
        """How many rows have their values made at a time."""
        entries = _CHUNK_ENTRIES * (1 if device.type == "cpu" else _DEVICE_CHUNKS)
        return max(entries // self.size, 64)

    def chunks(self, rows):
        """Slices that cover all rows."""
        return rows.chunks(self.chunk_size(rows.device))

    def passes(self, rows, coef):
        """Index, X, y, weights, values (b, M) and means (b, q) of each chunk of rows."""
        coef = self.spread(coef).T
        for index in self.chunks(rows):
            X, y, weights = rows.take(index)
            values = self.values(X)
            means = (values @ coef.to(values.dtype)).double()
            yield index, X, y, weights.double()[:, None], values, means


class KernelBases(MeanBases):
    r"""Functions :math:`k(\cdot, z_j)`, S their kernel matrix.

    Their values are float64, but for those sampled: coefficients are large and cancel, the more so
    the smoother the kernel.

    Parameters
    ----------
    kernel : TorchKernel
    theta : Tensor
        Logarithms of its free hyperparameters.
    points : Tensor of shape (M, d)
        Float64.
    """

    independent = False

    def __init__(self, kernel, theta, points):
        self.kernel, self.theta, self.points = kernel, theta, points
        self.size = self.n_units = len(points)

    @cached_property
    def chol(self):
        """Lower Cholesky factor of their kernel matrix."""
        K = self.kernel(self.points, self.points, self.theta)
        return cholesky(K, "kernel matrix of the mean's bases", jitter=JITTER)

    def at(self, theta):
        return KernelBases(self.kernel, theta, self.points)

    def values(self, X):
        return self.sampled(X.double(), slice(None))

    def sampled(self, X, units):
        return self.kernel(X, self.points[units].to(X.dtype), self.theta)

    def blocks(self, X):
        for i in range(0, max(self.size, 1), _CHUNK_BASES):
            part = slice(i, min(i + _CHUNK_BASES, self.size))
            yield part, self.sampled(X.double(), part)

    def coordinates(self, units):
        return units, 0

    def prior(self, one, other):
        return self.kernel(self.points[one], self.points[other], self.theta)

    def prior_diag(self, which):
        return self.kernel.diag(self.points[which], self.theta)[None]

    def prior_product(self, coef):
        return (coef @ self.chol) @ self.chol.T

    def rkhs_norm_sq(self, coef):
        return (coef * self.mean(self.points, coef).T).sum(1)

    def prior_trace(self, diag, columns):
        prior, rows = self.chol.square().sum(1), columns.mT.flatten(0, 1)
        return (diag.square() * prior).sum() + (rows * self.prior_product(rows)).sum()

    def prior_log_det(self, c):
        return 2 * c * self.chol.diagonal().log().sum()

    def preconditioners(self, X, precisions):
        return [
            CholeskyPreconditioner(self, falkon(self.chol, precision)) for precision in precisions
        ]

    def whitened(self, sums):
        return torch.linalg.solve_triangular(self.chol, sums.T, upper=False).T

    def unwhitened(self, coef):
        return torch.linalg.solve_triangular(self.chol.T, coef.T, upper=True).T

    def overlap(self, basis):
        return basis(self.points)[0]


class Dictionary(KernelBases):
    r"""Functions :math:`k(\cdot, z_j)` whose weights are independent, each with a precision.

    Parameters
    ----------
    kernel, theta, points
        As of `KernelBases`.
    precisions : Tensor of shape (c, M)
        Prior precisions of the weights of each latent.

    Notes
    -----
    Source: Tipping (2001), the relevance vector machine.
    """

    independent = True

    def __init__(self, kernel, theta, points, precisions):
        super().__init__(kernel, theta, points)
        self.precisions = precisions

    def at(self, theta):
        return type(self)(self.kernel, theta, self.points, self.precisions)

    def prior_diag(self, which):
        return self.precisions[:, which]

    def prior_product(self, coef):
        return coef * self.precisions

    def rkhs_norm_sq(self, coef):
        return (coef * self.prior_product(coef)).sum(1)

    def prior_trace(self, diag, columns):
        return (self.precisions * (diag.square() + columns.square().sum(2))).sum()

    def prior_log_det(self, c):
        return self.precisions.log().sum()


class CholeskyPreconditioner:
    r"""Inverse of :math:`\Phi^\top \Lambda \Phi + S`.

    Parameters
    ----------
    bases : MeanBases
    gram : Tensor of shape (M, M)
        The first term in the coordinates of `MeanBases.whitened`, or what is near it; float64, of
        which the lower triangle counts. It is overwritten.
    """

    def __init__(self, bases, gram):
        self._bases = bases
        gram.diagonal().add_(1.0)
        self._chol = cholesky(gram, "precision of the mean's coefficients", jitter=0)

    def __call__(self, residual):
        """Of residuals (q, M)."""
        whitened = self._bases.whitened(residual)
        return self._bases.unwhitened(torch.cholesky_solve(whitened.T, self._chol).T)


def falkon(chol, precision):
    r"""Return an approximation of :math:`K_{\alpha X} \Lambda K_{X \alpha}`, whitened.

    The sum over rows is estimated from the rows that are bases: with :math:`K_\alpha = CC^\top` it
    is :math:`C (C^\top D C) C^\top`.

    Parameters
    ----------
    chol : Tensor of shape (M, M)
        C, lower triangular.
    precision : Tensor of shape (M,)
        Diagonal of D.

    Returns
    -------
    gram : Tensor of shape (M, M)
        Its lower triangle.

    Notes
    -----
    Source: Rudi, Carratino and Rosasco (2017), FALKON.
    """
    gram = torch.zeros_like(chol)
    for i in range(0, len(chol), _BLOCK):
        stop = min(i + _BLOCK, len(chol))
        gram[i:stop, :stop] = (chol[i:, i:stop] * precision[i:, None]).T @ chol[i:, :stop]
    return gram
