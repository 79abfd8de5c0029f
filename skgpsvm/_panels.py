"""Cholesky factors in half the memory of a square matrix, for preconditioners."""

import torch

from ._linalg import LARGEST_JITTER
from .exceptions import NotPositiveDefiniteError

_PANEL = 256  # rows


class PanelCholesky:
    r"""Lower Cholesky factor :math:`LL^\top = A`, held as panels of rows without the zeros.

    The rows of A are computed panel by panel and not kept, so that memory is half that of a square
    matrix. All sums are in float64, those of solutions too: a factor rounded to float32 is still
    the factor of some matrix, but with rounded products conjugate gradients would stall.

    ``panel`` takes a slice of rows and returns their entries up to the diagonal, (b, stop), in new
    float64 memory. ``jitter``, relative to ``scale``, is added to the diagonal. Where the
    factorization fails, it grows by factors of 10 up to 1e-2, beyond which there is a
    `NotPositiveDefiniteError`; 0 does not grow. Entries are stored in ``dtype``; float32 needs a
    jitter of about 1e-5.
    """

    def __init__(self, panel, size, *, jitter=0.0, scale=1.0, dtype=torch.float64):
        self.rows = [slice(i, min(i + _PANEL, size)) for i in range(0, size, _PANEL)]
        self.panels = []
        while not self._factorized(panel, jitter * scale, dtype):
            jitter *= 10
            if not 0 < jitter < 1.5 * LARGEST_JITTER:
                raise NotPositiveDefiniteError(
                    f"A matrix of shape ({size}, {size}) that preconditions conjugate gradients is "
                    "not positive definite. Likely causes: rows on very different scales, a kernel "
                    "that is not positive definite, or too small a noise variance."
                )

    def _factorized(self, panel, shift, dtype):
        """Set the panels; return whether the matrix is positive definite."""
        self.panels = []
        for rows in self.rows:
            entries = panel(rows)
            entries[:, rows].diagonal().add_(shift)
            for before, above in zip(self.rows, self.panels, strict=False):
                above = above.double()
                entries[:, before] -= entries[:, : before.start] @ above[:, : before.start].T
                chol = above[:, before]
                solved = torch.linalg.solve_triangular(chol, entries[:, before].T, upper=False)
                entries[:, before] = solved.T
            left = entries[:, : rows.start]
            chol, info = torch.linalg.cholesky_ex(entries[:, rows] - left @ left.T)
            if info or not chol.diagonal().isfinite().all():
                return False
            entries[:, rows] = chol
            self.panels.append(entries.to(dtype))
        return True

    def solve(self, b):
        """Return :math:`L^{-1} b` for b (k, q), float64."""
        x = torch.zeros_like(b)
        for rows, panel in zip(self.rows, self.panels, strict=True):
            left, chol = panel[:, : rows.start].double(), panel[:, rows].double()
            known = b[rows] - left @ x[: rows.start]
            x[rows] = torch.linalg.solve_triangular(chol, known, upper=False)
        return x

    def solve_transposed(self, b):
        r"""Return :math:`L^{-\top} b` for b (k, q), float64."""
        x = b.clone()
        for rows, panel in zip(reversed(self.rows), reversed(self.panels), strict=True):
            left, chol = panel[:, : rows.start].double(), panel[:, rows].double()
            x[rows] = torch.linalg.solve_triangular(chol.T, x[rows], upper=True)
            x[: rows.start] -= left.T @ x[rows]
        return x

    def inverse(self, b):
        """Return the inverse of A times b (k, q)."""
        return self.solve_transposed(self.solve(b))


class PanelFalkon:
    r"""`CholeskyPreconditioner` of `falkon`'s estimate with the diagonal ``precision``, by panels.

    ``factor`` is the `PanelCholesky` C with :math:`CC^\top = K_\alpha`.
    """

    def __init__(self, factor, precision):
        self._factor = factor

        def panel(rows):
            """Return rows of :math:`C^T D C + I`, up to the diagonal."""
            total = precision.new_zeros(rows.stop - rows.start, rows.stop)
            for below, part in zip(factor.rows, factor.panels, strict=True):
                if below.stop >= rows.stop:
                    part = part[:, : rows.stop].double()
                    total += (part[:, rows] * precision[below, None]).T @ part
            total[:, rows].diagonal().add_(1.0)
            return total

        size, dtype = len(precision), factor.panels[0].dtype
        self._inner = PanelCholesky(panel, size, dtype=dtype)

    def __call__(self, residual):
        whitened = self._factor.solve(residual.T)
        return self._factor.solve_transposed(self._inner.inverse(whitened)).T
