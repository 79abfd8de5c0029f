"""Provide dense linear algebra: a Cholesky factor with jitter, and the Gaussian KL."""

import torch

from .exceptions import NotPositiveDefiniteError, NumericalWarning, warn

LARGEST_JITTER = 1e-2  # relative to the mean diagonal
# Jitter that does not warn where as much may be added: noise whose standard deviation is a
# thousandth of that of the diagonal.
HARMLESS_NOISE = 1e-6
_LIKELY_CAUSES = (
    "Likely causes: duplicated or nearly duplicated rows, rows on very different scales "
    "(standardize the features), a length scale much longer than the distances between rows, "
    "or a kernel that is not positive definite, as ExpSineSquared of several features; give it one "
    "by skgpsvm.kernels.Columns."
)
_COARSE = "Products in float32 are too coarse for these data: use dtype='float64'."
_BLOCK = 128  # columns of a block of a triangular matrix
_MIN_NORM = 1e-3  # smallest denominator of a relative change


def cholesky(K, name="matrix", *, jitter=1e-6, expected=0.0, harmless=0.0):
    """Return the lower Cholesky factor of covariance matrices (..., m, m), in float64.

    Only the lower triangle is read. `jitter` times the mean of the diagonal is always added to the
    diagonal; 0 factorizes `K` exactly as given. If the factorization fails, the jitter grows by
    factors of 10 up to 1e-2, separately for each matrix of a batch. A `NumericalWarning` says if it
    exceeds `jitter`, `expected`, which is for a `K` rounded to float32, and `harmless`, which is
    for a `K` to which as much may be added. The factor is differentiable, the jitter's dependence
    on `K` included.

    A `NotPositiveDefiniteError` is raised if `K` holds NaN or infinity, or is not positive definite
    with the largest jitter; `name` is that of `K` in messages.
    """
    return jittered_cholesky(K, name, jitter=jitter, expected=expected, harmless=harmless)[0]


def jittered_cholesky(K, name="matrix", *, jitter=1e-6, expected=0.0, harmless=0.0):
    """Return `cholesky` of a covariance matrix and the relative jitter (...) that was added.

    The jitter of a matrix of zeros, such as that of noise at distinct points, is absolute.
    """
    K = K.double()
    scale = K.diagonal(dim1=-2, dim2=-1).mean(-1)
    scale = torch.where(scale == 0, 1.0, scale)
    relative = torch.full_like(scale, jitter)
    L, info = _factor(K, relative * scale) if jitter else torch.linalg.cholesky_ex(K)
    # NaN and infinity end in the diagonal, where the factorization did not stop at them.
    if ((info == 0).all() & L.diagonal(dim1=-2, dim2=-1).sum().isfinite()).item():
        return L, relative
    _refuse_nonfinite(K, name)
    while (failed := info > 0).any():
        grown = torch.where(failed, 10 * relative, relative)
        # The factor 1.5 is for rounding in the repeated products.
        if jitter == 0 or (grown[failed] > 1.5 * LARGEST_JITTER).any():
            raise NotPositiveDefiniteError(
                f"The {name} of shape {tuple(K.shape)} is not positive definite, with a jitter of "
                f"{float(relative[failed].max()):.0e} times its mean diagonal. {_LIKELY_CAUSES}"
            )
        relative = grown
        L, info = _factor(K, relative * scale)
    if (relative > max(jitter, expected, harmless)).any():
        warn(
            f"The {name} is close to singular: a jitter of {float(relative.max()):.0e} times its "
            f"mean diagonal was needed instead of {max(jitter, expected):.0e}. "
            + (_COARSE if expected else _LIKELY_CAUSES),
            NumericalWarning,
        )
    return L, relative


def _factor(K, added):
    """Return the Cholesky factor and info (...) of K with `added` (...) on its diagonal."""
    K = K.clone()
    K.diagonal(dim1=-2, dim2=-1).add_(added[..., None])
    return torch.linalg.cholesky_ex(K)


def _refuse_nonfinite(K, name):
    bad = int((~torch.isfinite(K)).sum())
    if bad:
        raise NotPositiveDefiniteError(
            f"The {name} has {bad} entries (of {K.numel()}) that are NaN or infinite, so it has no "
            "Cholesky factor. Check the kernel's parameters and the rows it was computed from."
        )


def upper_inverse(L):
    """Return the upper triangular inverse of ``L.T`` for lower triangular L (..., m, m).

    A large matrix is inverted by halves. That takes m^3 / 3 multiplications, where a solve against
    the identity takes three times as many.
    """
    m = L.shape[-1]
    if m <= _BLOCK:
        eye = torch.eye(m, dtype=L.dtype, device=L.device).expand_as(L)
        return torch.linalg.solve_triangular(L, eye, upper=False).mT
    first, last = slice(0, m // 2), slice(m // 2, m)
    A, B, D = L[..., first, first], L[..., last, first], L[..., last, last]
    # The inverse of ((A, 0), (B, D)) is ((A^-1, 0), (-D^-1 B A^-1, D^-1)).
    between = torch.linalg.solve_triangular(D, B, upper=False)
    between = torch.linalg.solve_triangular(A, between, upper=False, left=False)
    top = torch.cat([upper_inverse(A), -between.mT], -1)
    bottom = torch.cat([torch.zeros_like(B), upper_inverse(D)], -1)
    return torch.cat([top, bottom], -2)


def identity_like(matrix):
    """Return the identity (p, p) of the size, dtype and device of square matrices (..., p, p)."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def gram_rounding(size, dtype):
    """Return the rounding of Gram matrices of ``size`` features, relative to the mean diagonal."""
    return size * torch.finfo(dtype).eps if dtype == torch.float32 else 0.0


def weight_moments(precision, linear, expected=0.0):
    """Return means and triangular covariance roots for natural parameters, batched."""
    name = "precision of the weights"
    root = upper_inverse(cholesky(precision, name, jitter=1e-14, expected=expected))
    return (root @ (root.mT @ linear[..., None]))[..., 0], root


def natural_parameters(mean, root):
    """Return precision and precision-weighted mean: the inverse of `weight_moments`."""
    inverse = upper_inverse(root.mT)
    precision = inverse.mT @ inverse
    return precision, (precision @ mean[..., None])[..., 0]


def gaussian_kl(mean, chol):
    """Return the Kullback–Leibler divergence from N(mean, chol chol^T) to the standard normal.

    The triangular ``chol`` (..., p, p) has a positive diagonal.
    """
    mean, chol = mean.double(), chol.double()
    log_det = chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    squares = chol.square().sum((-2, -1)) + mean.square().sum(-1)
    return 0.5 * (squares - mean.shape[-1]) - log_det


def relative_change(after, before, sum_over_ranks=None):
    """Return the norm of the change, divided by the norm of `after` or 1e-3 if larger.

    If ranks have parts of the tensors, ``sum_over_ranks`` is `WeightedDataset.sum`.
    """
    change, norm = (after - before).norm(), after.norm()
    if sum_over_ranks is not None:
        change, norm = (s.sqrt() for s in sum_over_ranks(change.square(), norm.square()))
    return (change / norm.clamp_min(_MIN_NORM)).item()


def triangular_product(A, T):
    """Return ``A @ T`` for upper triangular T, skipping most products with its zeros."""
    return torch.cat([A[:, : cols.stop] @ T[: cols.stop, cols] for cols in _blocks(len(T))], 1)


def root_norms(A, root):
    """Return ``||root.T @ a||^2`` for each row a of A (b, p), (b,); root is upper triangular."""
    return sum(
        (A[:, : cols.stop] @ root[: cols.stop, cols]).square().sum(1) for cols in _blocks(len(root))
    )


def spreads(A, roots):
    """Return `root_norms` of A (b, p) for each root of (c, p, p), in the dtype of A, (b, c)."""
    return torch.stack([root_norms(A, root) for root in roots.to(A.dtype)], 1)


def add_gram(total, A, B):
    """Add the lower triangle of ``A.T @ B``, symmetric, to float64 ``total`` (p, p) in place.

    Blocks above the diagonal stay as they are.
    """
    for rows in _blocks(len(total)):
        total[rows, : rows.stop] += A[:, rows].T @ B[:, : rows.stop]


def add_grams(totals, A, precision):
    """Add ``A.T @ diag(precision[:, j]) @ A`` to ``totals[j]``, lower triangles, in place.

    A is (b, p), precision (b, c) and totals (c, p, p). The products are in float64: in float32
    they may be indefinite by more than a prior.
    """
    A = A.double()
    for total, column in zip(totals, precision.double().T, strict=True):
        add_gram(total, A, column[:, None] * A)


def mirror(lower):
    """Make matrices symmetric in place, given their lower triangles, batched; return them."""
    for cols in _blocks(lower.shape[-1]):
        lower[..., : cols.start, cols] = lower[..., cols, : cols.start].mT
        own = lower[..., cols, cols].tril()
        lower[..., cols, cols] = own + own.tril(-1).mT
    return lower


def _blocks(p):
    """Return slices of at most 128 columns: fast products with few zeros. One may be empty."""
    return [slice(i, min(i + _BLOCK, p)) for i in range(0, max(p, 1), _BLOCK)]


def upper_root(raw):
    """Return an upper triangular matrix with positive diagonal from a free one, batched."""
    diagonal = raw.diagonal(dim1=-2, dim2=-1).exp()
    return raw.triu(1) + torch.diag_embed(diagonal)
