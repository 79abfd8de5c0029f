"""Leave-one-out predictions of coordinate ascent."""

import torch

from .._linalg import mirror, weight_moments
from .._sites import dense_design, per_latent

MAX_LEFT_OUT = 3000  # rows


def leave_one_out(ascent, state, left_out=None):
    r"""Return latent moments of rows under the model without them, their targets and weights.

    They take one Newton step from the posterior of all rows. ``left_out`` are indices among the
    rows of all ranks; None is every row, or 3000 equally spaced ones.

    With the loss's gradient g and curvature H at a row, and :math:`u = a^\top(\Lambda_H)^{-1}a`
    where :math:`\Lambda_H` is the Hessian of the whole objective in the mean,

    .. math:: m_{-n} = m + \frac{u g}{1 - H u}, \qquad
              v_{-n} = \tilde k + \frac{v}{1 - \beta v}.

    The variance removes the row's site. It is at most that of the prior, which matters where damped
    steps do not yet hold the whole site. The site is weighted by ``left_out_weights`` of the rows.

    Where an output has several latents, as noise that varies has, curvature between them is left
    out.

    Cavity means of the sites themselves would be too optimistic: their precision is the curvature
    of a bound, which exceeds that of the loss. Off-diagonal curvature between latents is taken as
    that of a complete graph, which scales the diagonal by c / (c - 1).
    """
    newton_root = state.root if ascent.likelihood.conjugate else _newton_root(ascent, state)
    chosen = ascent.rows.own(ascent.rows.spaced(MAX_LEFT_OUT) if left_out is None else left_out)
    left_weights = ascent.rows.left_out_weights
    everything = torch.equal(chosen, torch.arange(len(ascent.rows)))
    parts = [
        _left_out(ascent, index, state, newton_root, left_weights[index])
        for index in (
            ascent.rows.chunks() if everything else chosen.to(ascent.rows.device).split(1024)
        )
    ]
    return ascent.rows.collect(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _newton_root(ascent, state):
    """Return roots (c, p, p) of the inverse Hessians of the objective in the means.

    Negative curvatures, as of outliers of Student-t noise, are left out: before the optimum, the
    Hessian might be indefinite.
    """
    hessian = torch.zeros_like(state.root)
    for index in ascent.rows.chunks():
        sites, design, _ = ascent.batch_sites(index, state)
        weights = ascent.batch(index)[3][:, None]
        design.add_gram(
            hessian, ascent.likelihood.coupling * weights * sites.curvature.clamp_min(0)
        )
    (hessian,) = ascent.rows.sum(mirror(hessian))
    return weight_moments(ascent.prior[0] + hessian, state.mean)[1]


def _left_out(ascent, index, state, newton_root, left_weights):
    """Return left-out means and variances (b, c), targets and weights of some rows."""
    sites, _, active = ascent.batch_sites(index, state)
    A, residual, y, weights = ascent.batch(index)
    c = ascent.likelihood.n_latents

    def dense(values):
        return A.new_zeros(len(y), c).scatter(1, active, left_weights[:, None] * values)

    all_active = dense_design(A)
    v = all_active.variance(state.root)
    u = v if newton_root is state.root else all_active.variance(newton_root)
    curvature = ascent.likelihood.coupling * dense(sites.curvature)
    left_mean = all_active.means(state.mean)
    left_mean = left_mean + u * dense(sites.gradient) / (1 - curvature * u).clamp_min(1e-3)
    prior, left = ascent.prior_variance(A), 1 - dense(sites.precision) * v
    left_var = per_latent(residual, c) + torch.where(left > 0, v / left, prior).minimum(prior)
    return left_mean.double(), left_var.double(), y, weights.double()
