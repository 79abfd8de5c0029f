"""Dense linear algebra that the models share: a safe Cholesky factor and the Gaussian KL."""

import torch

from .exceptions import NotPositiveDefiniteError, NumericalWarning, warn

_LARGEST_JITTER = 1e-2
_LIKELY_CAUSES = (
    "Likely causes: duplicated or nearly duplicated rows, rows on very different scales "
    "(standardize the features), a length scale much longer than the distances between rows, "
    "or a kernel that is not positive definite, as ExpSineSquared of several features."
)
_COARSE = "Products in float32 are too coarse for these data: use dtype='float64'."
_LEAST_NORM = 1e-3  # of what counts as more than nothing


def cholesky(K, name="matrix", *, jitter=1e-6, expected=0.0):
    """Lower Cholesky factor of a covariance matrix, in float64.

    `jitter` times the mean of the diagonal is always added to the diagonal. Where that is not
    enough it is multiplied by 10 until it reaches 1e-2, separately for each matrix of a batch.

    Parameters
    ----------
    K : torch.Tensor of shape (..., m, m)
        Symmetric; only the lower triangle is read.
    name : str
        What `K` is, for messages.
    jitter : float
        Relative to the mean of the diagonal. 0 factorizes `K` exactly as given, or raises.
    expected : float
        Jitter that needs no warning, as `K` is known to be rounded so much, of float32.

    Returns
    -------
    L : torch.Tensor of shape (..., m, m), float64
        Lower triangular, ``L @ L.mT == K + jitter * K.diagonal().mean() * I``. Differentiable,
        the jitter's dependence on `K` included.

    Raises
    ------
    NotPositiveDefiniteError
        If `K` holds NaN or infinity, or is not positive definite with the largest jitter.

    Warns
    -----
    NumericalWarning
        Once a call, if more than `jitter` and than what is expected was added.

    Notes
    -----
    The jitter grows by 10 up to 1e-2; the float64 default of `jitter` serves float32 input too,
    because the algebra is float64.
    """
    K = K.double()
    scale = K.diagonal(dim1=-2, dim2=-1).mean(-1)
    relative = torch.full_like(scale, jitter)
    L, info = _factor(K, relative * scale)
    # NaN and infinity end in the diagonal, where the factorization did not stop at them.
    if (info > 0).any() or not L.diagonal(dim1=-2, dim2=-1).isfinite().all():
        _refuse_nonfinite(K, name)
    while (failed := info > 0).any():
        grown = torch.where(failed, 10 * relative, relative)
        # The factor 1.5 is for rounding in the repeated products.
        if jitter == 0 or (grown[failed] > 1.5 * _LARGEST_JITTER).any():
            raise NotPositiveDefiniteError(
                f"The {name} of shape {tuple(K.shape)} is not positive definite, with a jitter of "
                f"{float(relative[failed].max()):.0e} times its mean diagonal. {_LIKELY_CAUSES}"
            )
        relative = grown
        L, info = _factor(K, relative * scale)
    if (relative > max(jitter, expected)).any():
        warn(
            f"The {name} is close to singular: a jitter of {float(relative.max()):.0e} times its "
            f"mean diagonal was needed instead of {max(jitter, expected):.0e}. "
            + (_COARSE if expected else _LIKELY_CAUSES),
            NumericalWarning,
        )
    return L


def _factor(K, added):
    """Factor and info of K plus some of the identity, all (...)."""
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
    """Upper triangular inverse of ``L.T`` for lower triangular L (..., m, m)."""
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    return torch.linalg.solve_triangular(L, eye, upper=False).mT


def gram_rounding(size, dtype):
    """Rounding of Gram matrices of ``size`` features in a dtype, relative to the mean diagonal."""
    return size * torch.finfo(dtype).eps if dtype == torch.float32 else 0.0


def weight_moments(precision, linear, expected=0.0):
    """Means and triangular roots of the covariances for natural parameters, batched."""
    name = "precision of the weights"
    root = upper_inverse(cholesky(precision, name, jitter=1e-14, expected=expected))
    return (root @ (root.mT @ linear[..., None]))[..., 0], root


def natural_parameters(mean, root):
    """The inverse of `weight_moments`."""
    inverse = upper_inverse(root.mT)
    precision = inverse.mT @ inverse
    return precision, (precision @ mean[..., None])[..., 0]


def gaussian_kl(mean, chol):
    """Kullback–Leibler divergence from N(mean, chol chol^T) to the standard normal.

    Parameters
    ----------
    mean : torch.Tensor of shape (..., p)
    chol : torch.Tensor of shape (..., p, p)
        Triangular with a positive diagonal.

    Returns
    -------
    kl : torch.Tensor of shape (...), float64
        In nats.

    Notes
    -----
    Source: the divergence of two normal distributions, of which the second is standard.
    """
    mean, chol = mean.double(), chol.double()
    log_det = chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    squares = chol.square().sum((-2, -1)) + mean.square().sum(-1)
    return 0.5 * (squares - mean.shape[-1]) - log_det


def relative_change(after, before):
    """Norm of a difference over that of what came, at least 1e-3; a float."""
    return ((after - before).norm() / after.norm().clamp_min(_LEAST_NORM)).item()


def triangular_product(A, T):
    """``A @ T`` for upper triangular T, without most of the products with its zeros."""
    return torch.cat([A[:, : cols.stop] @ T[: cols.stop, cols] for cols in _blocks(len(T))], 1)


def root_norms(A, root):
    """Squared norm of ``root.T @ a`` for each row a of A (b, p) and upper triangular root: (b,)."""
    return sum(
        (A[:, : cols.stop] @ root[: cols.stop, cols]).square().sum(1) for cols in _blocks(len(root))
    )


def spreads(A, roots):
    """`root_norms` of rows A (b, p) for each of the roots (c, p, p), in the rows' dtype: (b, c)."""
    return torch.stack([root_norms(A, root) for root in roots.to(A.dtype)], 1)


def add_gram(total, A, B):
    """Add the lower triangle of ``A.T @ B``, symmetric, to float64 ``total`` (p, p) in place.

    Blocks above the diagonal stay as they are.
    """
    for rows in _blocks(len(total)):
        total[rows, : rows.stop] += A[:, rows].T @ B[:, : rows.stop]


def add_grams(totals, A, precision):
    """`add_gram` of rows A (b, p) times each column of their precisions (b, c): (c, p, p).

    In float64: products of float32 may be indefinite by more than a prior.
    """
    A = A.double()
    for total, column in zip(totals, precision.double().T, strict=True):
        add_gram(total, A, column[:, None] * A)


def mirror(lower):
    """Symmetric matrices from their lower triangles, batched."""
    return lower.tril() + lower.tril(-1).mT


def _blocks(p):
    """Slices of at most 128 columns: wide enough for fast products, few enough zeros."""
    return [slice(i, min(i + 128, p)) for i in range(0, p, 128)]


def upper_root(raw):
    """An upper triangular matrix with positive diagonal from a free one, batched."""
    diagonal = raw.diagonal(dim1=-2, dim2=-1).exp()
    return raw.triu(1) + torch.diag_embed(diagonal)
