"""Approximate inverses of the systems that conjugate gradients solve."""

import torch

from ._linalg import cholesky

_BLOCK = 256


class CholeskyPreconditioner:
    r"""Apply the inverse of :math:`\Phi^\top \Lambda \Phi + S`.

    ``gram`` (M, M), float64, is the first term in the coordinates of `MeanBases.whitened`, or an
    approximation. Only the lower triangle is read. It is overwritten.
    """

    def __init__(self, bases, gram):
        self._bases = bases
        gram.diagonal().add_(1.0)
        self._chol = cholesky(gram, "precision of the mean's coefficients", jitter=0)

    def __call__(self, residual):
        """Return the inverse times residuals (q, M)."""
        whitened = self._bases.whitened(residual)
        return self._bases.unwhitened(torch.cholesky_solve(whitened.T, self._chol).T)


def falkon(chol, precision):
    r"""Return an estimate of :math:`K_{\alpha X} \Lambda K_{X \alpha}`, whitened.

    Only the lower triangle is right.

    The sum over rows is estimated from the rows that are bases. With :math:`K_\alpha = CC^\top` the
    estimate is :math:`K_\alpha D K_\alpha = C (C^\top D C) C^\top`, which whitened is
    :math:`C^\top D C`. The diagonal D is ``precision`` (M,): site precisions at the bases, times
    the number of rows that each stands for. Source: Rudi, Carratino and Rosasco (2017), FALKON.
    """
    gram = torch.zeros_like(chol)
    for i in range(0, len(chol), _BLOCK):
        stop = min(i + _BLOCK, len(chol))
        gram[i:stop, :stop] = (chol[i:, i:stop] * precision[i:, None]).T @ chol[i:, :stop]
    return gram


class Woodbury:
    r"""Apply an approximate inverse of :math:`\Phi^\top \Lambda \Phi + I` made from k rows P.

    .. math:: (\Phi_P^\top D \Phi_P + I)^{-1} =
        I - \Phi_P^\top D^{1/2} (I + D^{1/2} \Phi_P \Phi_P^\top D^{1/2})^{-1} D^{1/2} \Phi_P

    ``values`` (k, M) are of the functions at these rows, and ``gram`` (k, k), float64, has the
    inner products of the values; only its lower triangle is read. ``precision`` (k,) is the
    diagonal of D: site precisions, times the number of rows that each row stands for.

    Source: Woodbury's identity, for fewer rows than features.
    """

    def __init__(self, values, gram, precision):
        self._values, self._root = values, precision.sqrt()[:, None]
        inner = self._root * gram * self._root.T
        inner.diagonal().add_(1.0)
        self._chol = cholesky(inner, "preconditioner of the features' coefficients", jitter=0)

    def __call__(self, residual):
        """Return the inverse times residuals (q, M)."""
        scaled = self._root * (self._values @ residual.T.to(self._values)).double()
        inner = self._root * torch.cholesky_solve(scaled, self._chol)
        return residual - (self._values.T @ inner.to(self._values)).T.to(residual)
