"""Variances of a sparse GP that the rows nearest to each place sharpen."""

from functools import cached_property
from typing import NamedTuple

import torch

from ._linalg import HARMLESS_NOISE, cholesky, identity_like
from ._memory import CACHED_BLOCK, block_rows, n_cached_blocks

_NEIGHBORS = 32
_BLOCK_ROWS = 256  # neighbors whose kernel matrix is computed at a time
_JITTER = 1e-12  # of the residuals' covariance plus noise, relative
_NAME = "covariance of the residuals of the nearest rows"


class _Rows(NamedTuple):
    """Distinct rows, with what variances need of them."""

    X: torch.Tensor  # (k, d)
    # features (k, p), halves (c, k, p): features of the inducing points, alone and times the root
    features: torch.Tensor
    halves: torch.Tensor
    residual: torch.Tensor  # (k,): prior variances that the features leave unexplained
    # precisions, counted (c, k): precisions of the sites, and what they added to the precision
    # along the features
    precisions: torch.Tensor
    counted: torch.Tensor
    # (k,): the variance of a value with covariance k is reduced by ``gain * k**2``, by this row
    # alone
    gain: torch.Tensor


class LocalVariances:
    r"""Posterior variances given inducing points and the nearest rows.

    The features of the inducing points leave a residual of the latent function unexplained, with
    prior covariance :math:`r(x, x') = k(x, x') - a(x)^\top a(x')`. The variance at a place x is
    that of the Gaussian process given all sites, under the assumption that residuals are
    correlated among x and its nearest rows N, but independent at all other rows:

    .. math::
        v(x) &= r(x, x) - r_{xN} (R_N + D_N)^{-1} r_{Nx} + b^\top S_x b, \qquad
        b = a(x) - A_N^\top (R_N + D_N)^{-1} r_{Nx}, \\
        S_x^{-1} &= I + \sum_{i \notin N} \frac{a_i a_i^\top}{d_i + r_{ii}}
            + A_N^\top (R_N + D_N)^{-1} A_N .

    Here :math:`d_i` are the inverse precisions of the sites. If N is all rows, this is the variance
    of the exact process.

    A part of the basis's kernel must be projected. The ``rows`` (k, d), float64, may be neighbors.
    ``local_root`` (c, p, p) are upper triangular roots of the covariances of the weights given all
    sites with independent residuals: of the inverse of I plus the sum over all rows.
    ``row_precisions`` (c, k) are those of the sites of ``rows``, zero for a row that is not known.

    Source: Snelson and Ghahramani (2007), the partially independent conditional, with a block for
    each place; Gyger, Furrer and Sigrist (2025) for neighbors of the residual process. The
    variance is that given fewer data, and so an upper bound of the exact one, but for residuals of
    other rows that are taken to be independent.

    The neighbors of x are the rows that would reduce the prior variance at x most, each alone. With
    a stationary kernel and equal precisions they are nearest in the metric of the kernel.
    """

    def __init__(self, basis, rows, local_root, row_precisions):
        self._basis, self._root = basis, local_root
        self._given = rows, row_precisions
        self._kernel, self._theta = basis.projected, basis.theta

    def __call__(self, X):
        """Return the variances of the latents at rows: (b, d) -> (b, c), in the dtype of X."""
        rows, scale = self._rows, n_cached_blocks(X.device)
        n_neighbors = min(_NEIGHBORS, len(rows.X))
        size = block_rows(len(rows.X), scale * CACHED_BLOCK)
        at_once = max(int(scale**0.5) * _BLOCK_ROWS // n_neighbors, 1)
        parts = []
        for some in X.double().split(size):
            gains = self._kernel(some, rows.X, self._theta).square() * rows.gain
            near = gains.topk(n_neighbors, sorted=False).indices
            pairs = zip(some.split(at_once), near.split(at_once), strict=True)
            parts += [self._given_neighbors(*pair) for pair in pairs]
        return torch.cat(parts, 1).T.to(X.dtype)

    @cached_property
    def _rows(self):
        # Rows at the same place, with other targets, are one row with the sum of their precisions.
        X, place = torch.unique(self._given[0], dim=0, return_inverse=True)
        features, residual = self._basis(X)
        prior = self._basis.projected_variance(X)

        def per_place(values):
            return values.new_zeros(len(values), len(X)).index_add_(1, place, values)

        given = self._given[1]
        precisions = per_place(given)
        return _Rows(
            X=X,
            features=features,
            halves=features @ self._root,
            residual=residual,
            precisions=precisions,
            counted=per_place(widened(given, residual[place])),
            gain=widened(precisions.mean(0), prior),
        )

    def _given_neighbors(self, X, near):
        """Return variances (c, b) at places, given neighbors at indices (b, k)."""
        rows, (b, k), every = self._rows, near.shape, torch.arange(len(X), device=X.device)
        flat = rows.X[near].flatten(0, 1)
        among = self._kernel(flat, flat, self._theta).view(b, k, b, k)[every, :, every]
        cross = self._kernel(X, flat, self._theta).view(b, b, k)[every, every]
        a, residual = self._basis(X)
        A, m = rows.features[near], self._basis.n_projected
        R = among - A[..., :m] @ A[..., :m].mT
        R = R.diagonal_scatter(rows.residual[near], dim1=1, dim2=2)
        r = cross - (A[..., :m] @ a[:, :m, None])[..., 0]

        # In units of the sites' deviations, whose noise has then variance one.
        precisions = rows.precisions[:, near]
        scale, eye = precisions.sqrt(), identity_like(R)
        scaled = scale[..., None] * R * scale[..., None, :]
        chol = cholesky(scaled + eye, _NAME, jitter=_JITTER, harmless=HARMLESS_NOISE)
        half = torch.linalg.solve_triangular(chol, (scale * r)[..., None], upper=False)
        inverse = torch.cholesky_inverse(chol)
        var = (residual - half.square().sum((-2, -1))).clamp_min(0)

        weights = scale * torch.linalg.solve_triangular(chol.mT, half, upper=True)[..., 0]
        g = (a - (weights[..., None, :] @ A)[..., 0, :]) @ self._root
        H = scale[..., None] * rows.halves[:, near]
        # The precision along the features, without what the neighbors counted for, and with what
        # they say: P - B^T V B, whose inverse follows from that of P by Woodbury's identity.
        counted = (rows.counted[:, near] / precisions).nan_to_num(0.0)
        V = torch.diag_embed(counted) - inverse
        u = (H @ g[..., None])[..., 0]
        system = eye - V @ (H @ H.mT)
        solved = torch.linalg.solve(system, (V @ u[..., None])[..., 0])
        return var + (g.square().sum(-1) + (u * solved).sum(-1)).clamp_min(0)


def widened(precision, residual):
    """Return precisions of sites whose noise has the variances of residuals too."""
    return precision / (1 + precision * residual)
