"""Chevron-shaped factors of a covariance of weights, at given sites."""

import torch

from ..exceptions import NumericalWarning, warn

_MOST_ITERATIONS = 200
_RESIDUAL = 1e-6  # relative norm at which a dense column is done


def chevron(bases, rows, index, precision, n_dense):
    r"""The optimal factor of :math:`(\Phi^\top \Lambda \Phi + S)^{-1}` of that shape.

    Diagonal columns have a closed form. A dense column r is :math:`u / \sqrt{u_1}` with
    :math:`u = A_{r:, r:}^{-1} e_1`, by preconditioned conjugate gradients, all at once.

    Parameters
    ----------
    bases : MeanBases
    rows : Rows
    index : Tensor of shape (k,)
        Rows that stand for all in the preconditioner.
    precision : Tensor of shape (n, c)
        Diagonal of Lambda for each latent, weights included.
    n_dense : int
        Dense columns, k.

    Returns
    -------
    diag, columns : Tensor of shape (c, M), (c, M, k)
        See `WeightPosterior`.

    Notes
    -----
    Source: Evans and Nair, Proposition 1.
    """
    c, M, k = precision.shape[1], bases.size, min(n_dense, bases.size)
    data = precision.new_zeros(c, M)
    for at, *_, values, _ in bases.passes(rows, precision.new_zeros(1, M)):
        data += precision[at].T @ values.double().square()
    every = torch.arange(M, device=data.device)
    diag = (data + bases.prior_diag(every)).rsqrt()
    if not k:
        return diag, data.new_zeros(c, M, 0)
    below = (every >= every[:k, None]).repeat(c, 1)
    X, each = rows.take(index)[0], len(rows) / len(index)
    conditions = bases.preconditioners(X, each * precision[index].T)

    def conditioned(residual):
        parts = zip(conditions, residual.split(k), strict=True)
        return below * torch.cat([condition(part) for condition, part in parts])

    def product(p):
        total = bases.prior_product(p)
        for at, *_, values, f in bases.passes(rows, p):
            total += ((precision[at].repeat_interleave(k, 1) * f).to(values).T @ values).double()
        return below * total

    residual = torch.eye(M, dtype=data.dtype, device=data.device)[:k].repeat(c, 1)
    z = conditioned(residual)
    solution, direction, norm = torch.zeros_like(residual), z, (residual * z).sum(1, keepdim=True)
    first = norm
    for _ in range(_MOST_ITERATIONS):
        over = product(direction)
        curvature = (direction * over).sum(1, keepdim=True)
        size = torch.where(curvature > 0, norm / curvature, 0.0)
        solution, residual = solution + size * direction, residual - size * over
        z = conditioned(residual)
        new = (residual * z).sum(1, keepdim=True)
        if (new <= _RESIDUAL**2 * first).all():
            break
        direction, norm = z + torch.where(norm > 0, new / norm, 0.0) * direction, new
    else:
        warn(
            f"The dense columns of the covariance are not solved for after {_MOST_ITERATIONS} "
            "iterations. Use fewer n_dense_columns, dtype='float64' or a larger noise_variance.",
            NumericalWarning,
        )
    columns = solution.view(c, k, M)
    heads = columns.diagonal(dim1=1, dim2=2)
    columns = columns / heads.sqrt()[..., None]
    diag[:, :k] = heads.sqrt()
    return diag, columns.mT.contiguous()
