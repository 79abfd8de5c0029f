"""Chevron-shaped factors of the weights' covariance, at given site precisions."""

import torch

from .._inference.pcg import PCGState
from ..exceptions import NumericalWarning, warn

_MAX_ITERATIONS = 200
_RESIDUAL = 1e-6  # relative residual norm at which a dense column has converged


def chevron(bases, rows, index, precision, n_dense):
    r"""Return the optimal chevron factor of :math:`A^{-1} = (\Phi^\top \Lambda \Phi + S)^{-1}`.

    The diagonal columns have a closed form. Dense column r is :math:`u / \sqrt{u_1}` with
    :math:`u = A_{r:, r:}^{-1} e_1`. Preconditioned conjugate gradients solve for all dense columns
    at once. The ``precision`` (n, c) includes sample weights, and the preconditioner is computed
    from the rows ``index``. Returns diagonal and columns, see `WeightPosterior`. Source: Evans and
    Nair, Proposition 1.
    """
    c, M, k = precision.shape[1], bases.size, min(n_dense, bases.size)
    data = precision.new_zeros(c, M)
    for at, *_, values, _ in bases.passes(rows, precision.new_zeros(1, M)):
        data += precision[at].T @ values.double().square()
    (data,) = rows.sum(data)
    every = torch.arange(M, device=data.device)
    diag = (data + bases.prior_diag(every)).rsqrt()
    if not k:
        return diag, data.new_zeros(c, M, 0)
    below = (every >= every[:k, None]).repeat(c, 1)
    X, (at_index,) = rows.inputs(index), rows.collect(precision[rows.own(index)])
    preconditioners = bases.preconditioners(X, rows.n_rows / len(index) * at_index.T)

    def precondition(residual):
        parts = zip(preconditioners, residual.split(k), strict=True)
        return below * torch.cat([apply(part) for apply, part in parts])

    def product(p):
        total = bases.prior_product(p, *rows.shard)
        for at, *_, values, f in bases.passes(rows, p):
            total += ((precision[at].repeat_interleave(k, 1) * f).to(values).T @ values).double()
        return below * rows.sum(total)[0]

    residual = torch.eye(M, dtype=data.dtype, device=data.device)[:k].repeat(c, 1)
    state = PCGState(coef=torch.zeros_like(residual))
    state.restart(residual, precondition)
    for _ in range(_MAX_ITERATIONS):
        state.advance(product(state.direction), precondition)
        if state.relative_residual() <= _RESIDUAL:
            break
    else:
        warn(
            "Conjugate gradients for the dense columns of the covariance did not converge in "
            f"{_MAX_ITERATIONS} iterations. Lower n_dense_columns, raise noise_variance or set "
            "dtype='float64'.",
            NumericalWarning,
        )
    columns = state.coef.view(c, k, M)
    heads = columns.diagonal(dim1=1, dim2=2)
    columns = columns / heads.sqrt()[..., None]
    diag[:, :k] = heads.sqrt()
    return diag, columns.mT.contiguous()
