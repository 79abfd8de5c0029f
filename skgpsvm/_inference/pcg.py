"""Recurrence of preconditioned conjugate gradients for systems that share a matrix."""

import math
from dataclasses import dataclass

import torch

from .._fitting import State


@dataclass(kw_only=True)
class PCGState(State):
    r"""State of preconditioned conjugate gradients on q systems that share a matrix.

    With the matrix A, the preconditioner :math:`P \approx A^{-1}` and the residual r of the
    iterate, z = P r. The next direction is :math:`d = z + \beta d` with
    :math:`\beta = r^\top z / r_{old}^\top z_{old}`; the step along it is
    :math:`\alpha = r^\top z / d^\top A d`. A step lowers the quadratic
    :math:`\tfrac12 x^\top A x - b^\top x` by :math:`\tfrac12 \alpha r^\top z`. Its minimum is lower
    by :math:`\tfrac12 r^\top A^{-1} r \approx \tfrac12 r^\top z`.
    """

    coef: torch.Tensor  # (q, M): the iterate: coefficients of the mean's bases
    # residual, direction (q, M), None before `restart`
    residual: torch.Tensor | None = None
    direction: torch.Tensor | None = None
    # norm (q, 1): squared norm of the residual under the preconditioner, r^T z
    norm: torch.Tensor | None = None
    first_norm: torch.Tensor | None = None  # (q, 1): the norm that `norm` is compared with
    change: float = math.inf  # distance from the end, which is compared with the tolerance
    # Of posteriors whose means are solved for. Root (c, p, p): upper triangular roots of the
    # covariances of the whitened weights
    root: torch.Tensor | None = None
    means: torch.Tensor | None = None  # latent means at the rows
    precision: torch.Tensor | None = None  # (n, c): precisions of the sites

    def restart(self, residual, precondition, right=None):
        """Set the residual of the iterate, and the direction to steepest descent.

        The first norm is that of the residual, or of the right-hand side (q, M) if it is given.
        """
        self.direction, self.residual = precondition(residual), residual
        self.norm = self.first_norm = _row_products(residual, self.direction)
        if right is not None:
            self.first_norm = _row_products(right, precondition(right))

    def advance(self, product, precondition):
        """Take one iteration, given the matrix times the direction; return the steps (q, 1)."""
        curvature = _row_products(self.direction, product)
        size = torch.where(curvature > 0, self.norm / curvature, 0.0)
        self.coef = self.coef + size * self.direction
        self.residual = self.residual - size * product
        z, before = precondition(self.residual), self.norm
        self.norm = _row_products(self.residual, z)
        self.direction = z + torch.where(before > 0, self.norm / before, 0.0) * self.direction
        return size

    def relative_residual(self):
        """Return the largest norm of a residual relative to its first one."""
        return (self.norm / self.first_norm).nan_to_num(0.0).max().sqrt().item()


def _row_products(one, other):
    """Return the inner products of rows of two matrices (q, M), as (q, 1)."""
    return (one * other).sum(1, keepdim=True)
