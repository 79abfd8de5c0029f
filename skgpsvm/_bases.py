"""Functions that span a posterior mean: the abstract class, and kernels at points."""

from abc import ABC, abstractmethod
from functools import cached_property

import torch

from ._linalg import cholesky
from ._memory import CACHED_BLOCK, HELD_VALUE_BYTES, block_rows, n_cached_blocks
from ._panels import PanelCholesky, PanelFalkon
from ._preconditioners import CholeskyPreconditioner, falkon
from ._torch_kernels import fitting_points

JITTER = 1e-9  # added to the points' kernel matrix, relative to its mean diagonal
_CHUNK_BASES = 1024
_MAX_SQUARE = 4000  # points whose kernel matrix is held; it bounds memory
_PANEL_JITTER = 1e-5  # of factors in float32


class MeanBases(ABC):
    r"""Functions :math:`\phi_j` whose weights have the prior :math:`N(0, S^{-1})`.

    There are ``size`` functions, M. Those of one of ``n_units`` units, such as a cosine and a sine,
    are sampled together. ``independent`` says whether S is diagonal.
    """

    independent = True
    _kept = None, None  # rows, and the values of their chunks

    @abstractmethod
    def at(self, theta):
        """Return the same functions at other hyperparameters."""

    @abstractmethod
    def values(self, X):
        """Return the values of all functions at rows: (b, d) -> (b, M)."""

    @abstractmethod
    def sampled(self, X, units):
        """Return values (b, k) at rows, of the units (an int64 tensor) and the exact features."""

    @abstractmethod
    def coordinates(self, units):
        """Return the indices (k,) of the functions in `sampled`, and the number of exact ones.

        Exact features come last and are part of every sample.
        """

    @abstractmethod
    def prior_diag(self, which):
        """Return the diagonal of S for functions (k,): (1, k), or (c, k) if latents differ."""

    @abstractmethod
    def prior_product(self, coef, part=0, n_parts=1):
        """Return coefficients (q, M) times S in new memory; the sum of all parts is the product."""

    def rkhs_norm_sq(self, coef):
        """Return the squared RKHS norms, coef S coef^T, of coefficients (q, M): (q,)."""
        return (coef * self.prior_product(coef)).sum(1)

    @abstractmethod
    def preconditioners(self, X, precisions):
        r"""Return approximate inverses of :math:`\Phi^\top \Lambda \Phi + S`, one per latent.

        Rows ``X`` (k, d) stand for all rows; if the functions are kernels at points, they are the
        points. Their site ``precisions`` (c, k) include the number of rows that each stands for. A
        preconditioner maps residuals (q, M) to preconditioned ones.
        """

    def whitened(self, sums):
        """Return sums (q, M) over rows of values, in coordinates with a standard normal prior."""
        return sums

    def unwhitened(self, coef):
        """Return coefficients (q, M) of whitened ones; this is the transpose of `whitened`."""
        return coef

    @abstractmethod
    def overlap(self, basis):
        """Return the RKHS inner products (M, p) of the functions and the features of a basis.

        Random Fourier features are taken to be orthogonal to the latter.
        """

    @abstractmethod
    def prior_trace(self, diag, columns):
        """Return the trace of S times the covariances ``diag**2 + columns columns^T``, summed."""

    @abstractmethod
    def prior_log_det(self, c):
        """Return the log determinant of S, summed over c latents."""

    @abstractmethod
    def blocks(self, X):
        """Yield slices of the functions and their values at rows, block by block."""

    def apply(self, coef):
        """Return coefficients (q, M) of the values for coefficients (q, M) of the functions.

        They differ where the functions are linear combinations of what `values` returns.
        """
        return coef

    def embed(self, mean):
        """Return the coefficients (q, M) of whitened features times weights (q, p).

        They are zero if the functions do not span the features.
        """
        return mean.new_zeros(len(mean), self.size)

    def adjoint(self, sums):
        """Return sums (q, M) over rows of the functions, given those of the values.

        This is the transpose of `apply`. The sums may be overwritten.
        """
        return sums

    def mean(self, X, coef):
        """Return the functions with coefficients (q, M), summed, at rows: (b, q)."""
        coef = self.apply(coef)
        return sum(values @ coef[:, part].T.to(values.dtype) for part, values in self.blocks(X))

    def chunk_size(self, device):
        """Return the number of rows whose values are computed at a time."""
        return block_rows(self.size, n_cached_blocks(device) * CACHED_BLOCK, 64)

    def passes(self, rows, coef):
        """Yield index, X, y, weights (b, 1), values (b, M) and means (b, q), chunk by chunk.

        The values are kept for the next pass if they are few; they are not to be overwritten.
        """
        coef = self.apply(coef).T
        if self._kept[0] is not rows:
            self._kept = rows, {}
        fits = len(rows) * self.size * 8 <= HELD_VALUE_BYTES
        for index in rows.chunks(self.chunk_size(rows.device)):
            X, y, weights = rows.take(index)
            values = self._kept[1].get((index.start, index.stop))
            if values is None:
                values = self.values(X)
                if fits:
                    self._kept[1][index.start, index.stop] = values
            means = (values @ coef.to(values.dtype)).double()
            yield index, X, y, weights.double()[:, None], values, means


class KernelBases(MeanBases):
    r"""Functions :math:`k(\cdot, z_j)`, with S their kernel matrix.

    Values are float64, except those of `sampled`: coefficients are large and cancel, and more so
    for smoother kernels.

    The points (M, d) are in float64.
    """

    independent = False

    def __init__(self, kernel, theta, points):
        self.kernel, self.theta, self.points = kernel, theta, points
        self.size = self.n_units = len(points)

    @cached_property
    def chol(self):
        """Lower Cholesky factor of the points' kernel matrix."""
        K = self.kernel(self.points, self.points, self.theta)
        return cholesky(K, "kernel matrix of the mean's bases", jitter=JITTER)

    def at(self, theta):
        return KernelBases(self.kernel, theta, self.points)

    def values(self, X):
        return self.sampled(X.double(), slice(None))

    def sampled(self, X, units):
        points = fitting_points(self.kernel, self.points[units], X)
        return self.kernel(X, points, self.theta)

    def blocks(self, X):
        for i in range(0, max(self.n_units, 1), _CHUNK_BASES):
            part = slice(i, min(i + _CHUNK_BASES, self.n_units))
            yield part, KernelBases.sampled(self, X.double(), part)

    def coordinates(self, units):
        return units, 0

    def prior(self, one, other):
        """Return a block of S for two indices of points."""
        return self.kernel(self.points[one], self.points[other], self.theta)

    def prior_diag(self, which):
        return self.kernel.diag(self.points[which], self.theta)[None]

    def prior_product(self, coef, part=0, n_parts=1):
        if self.size > _MAX_SQUARE:
            return self.kernel_product(coef, part, n_parts)
        return (coef @ self.chol) @ self.chol.T / n_parts

    def kernel_product(self, coef, part, n_parts):
        """Return `prior_product` without a kernel matrix, half of which is computed."""
        product, step = torch.zeros_like(coef), self.chunk_size(coef.device)
        for start in range(part * step, self.size, n_parts * step):
            own, later = slice(start, start + step), slice(start + step, None)
            K = self.prior(own, slice(start, None))
            product[:, own] += coef[:, start:] @ K.T
            product[:, later] += coef[:, own] @ K[:, step:]
        return product

    def rkhs_norm_sq(self, coef):
        return (coef * self.mean(self.points, coef).T).sum(1)

    def prior_trace(self, diag, columns):
        prior, rows = self.chol.square().sum(1), columns.mT.flatten(0, 1)
        return (diag.square() * prior).sum() + (rows * self.prior_product(rows)).sum()

    def prior_log_det(self, c):
        return 2 * c * self.chol.diagonal().log().sum()

    def preconditioners(self, X, precisions):
        if self.size > _MAX_SQUARE:
            factor = self._panels()
            return [PanelFalkon(factor, precision) for precision in precisions]
        return [
            CholeskyPreconditioner(self, falkon(self.chol, precision)) for precision in precisions
        ]

    def _panels(self):
        """Return the Cholesky factor of the points' kernel matrix in float32, by panels."""
        scale = self.kernel.diag(self.points, self.theta).mean().item()
        options = {"jitter": _PANEL_JITTER, "scale": scale, "dtype": torch.float32}
        return PanelCholesky(
            lambda rows: self.prior(rows, slice(rows.stop)).clone(), self.size, **options
        )

    def whitened(self, sums):
        return torch.linalg.solve_triangular(self.chol, sums.T, upper=False).T

    def unwhitened(self, coef):
        return torch.linalg.solve_triangular(self.chol.T, coef.T, upper=True).T

    def overlap(self, basis):
        return basis(self.points)[0]


class Dictionary(KernelBases):
    r"""Functions :math:`k(\cdot, z_j)` with independent weights of given prior precisions (c, M).

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

    def prior_product(self, coef, part=0, n_parts=1):
        return coef * self.precisions / n_parts

    rkhs_norm_sq = MeanBases.rkhs_norm_sq  # that of `KernelBases` has the kernel matrix

    def prior_trace(self, diag, columns):
        return (self.precisions * (diag.square() + columns.square().sum(2))).sum()

    def prior_log_det(self, c):
        return self.precisions.log().sum()
