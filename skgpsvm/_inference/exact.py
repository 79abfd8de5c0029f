"""Exact Gaussian processes, whose mean has all rows as bases."""

from dataclasses import dataclass
from functools import partial

import torch

from .._bases import KernelBases
from .._linalg import cholesky
from .._panels import PanelCholesky
from .decoupled import DEFAULTS, DecoupledInference, covariance_kl, features
from .pcg import PCGState


@dataclass(kw_only=True)
class ExactState(PCGState):
    """State of `ExactInference`; ``means`` (q, n) are the kernel matrix times the coefficients."""

    target: torch.Tensor  # (c, n): targets of the sites, linear term over precision
    # (q, n): precisions of the sites times row weights; 0 for rows that a group does not know
    weight: torch.Tensor
    base: float  # ELBO of means of zero, nats


class ExactInference(DecoupledInference):
    r"""`DecoupledInference` for Gaussian noise where all rows are bases of the mean.

    Here :math:`\Phi = S = K`, the kernel matrix of all rows. One factor K cancels, and the system
    becomes that of the exact Gaussian process, with targets :math:`y = \Lambda^{-1} b`:

    .. math:: (K + \Lambda^{-1}) a = y.

    Up to 6,000 rows the preconditioner is the exact inverse. No n x n matrix is held beyond them;
    the preconditioner takes K to be its Nystroem approximation on 1,000 rows.

    With A the matrix of the system and r its residual, the ELBO may still gain
    :math:`\tfrac12 e^\top (K \Lambda K + K) e`, :math:`e = A^{-1} r`. That is
    :math:`\tfrac12 (r^\top \Lambda r - r^\top A^{-1} r)`.

    Source: Artemev, Burt and van der Wilk (2021), for the bound of such a solution; Gardner et al.
    (2018) for the iteration.
    """

    def init(self, start):
        """Return the first state, with means of zero."""
        first = super().init(start)
        linear, precision = torch.zeros_like(first.linear), torch.zeros_like(first.linear)
        loss = 0.0
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            var = features(self.basis, X, first.root)[1]
            sites = self.likelihood.sites(y, torch.zeros_like(var), var)
            linear[index], precision[index] = sites.linear, sites.precision
            loss += (weights * sites.loss).sum()
        weights = self.rows.weights.double()[:, None] * precision
        weights = weights.repeat(1, self._n_groups) * self.row_shares
        # Where ranks share the rows, each has these numbers of all rows.
        target, weight = (part.T for part in self.rows.collect(linear / precision, weights))
        (loss,) = self.rows.sum(loss)
        state = ExactState(
            coef=first.coef,
            root=first.root,
            means=torch.zeros_like(first.coef),
            precision=precision,
            target=target,
            weight=weight,
            base=-loss.item() - covariance_kl(first.root).item(),
        )
        residual = (weight > 0) * target.repeat(self._n_groups, 1)
        state.restart(residual, partial(self._precondition, state))
        return state

    def step(self, state):
        """Take one iteration of conjugate gradients; the objective is the ELBO, nats."""
        direction, known = state.direction, state.weight > 0
        (product,) = self.rows.sum(self.bases.kernel_product(direction, *self.rows.shard))
        # Rows of weight zero have no equation; their coefficients stay zero.
        over = torch.where(known, direction / state.weight, 0.0) + known * product
        size = state.advance(over, partial(self._precondition, state))
        state.means = state.means + size * product
        state.change = self._unsolved(state)
        c = self.likelihood.n_latents
        coef, means = state.coef[:c], state.means[:c]
        fit = state.weight[:c] * means * (state.target - 0.5 * means)
        state.objective = state.base + (fit - 0.5 * coef * means).sum().item()

    def _remaining_gain(self, state):
        of_rows = (state.weight * state.residual.square()).sum(1, keepdim=True)
        return 0.5 * (of_rows - state.norm)

    def _make_preconditioners(self, state):
        dense = self.rows.n_rows <= DEFAULTS.factored_rows
        return (self._exact_inverses if dense else self._nystroem_inverses)(state.weight)

    def _exact_inverses(self, weights):
        r"""Return functions that apply the inverse of the matrix, for each row of weights (q, n).

        With W the weights, :math:`(K + W^{-1})^{-1} = W^{1/2} (I + W^{1/2} K W^{1/2})^{-1}
        W^{1/2}`, which holds for weights of zero too.
        """

        def inverse(root):
            def panel(rows):
                inner = root[rows, None] * self.bases.prior(rows, slice(rows.stop))
                inner *= root[: rows.stop]
                inner[:, rows].diagonal().add_(1.0)
                return inner

            factor = PanelCholesky(panel, len(root))
            return lambda part: root * factor.inverse((root * part).T).T

        return [inverse(root) for root in weights.sqrt()]

    def _nystroem_inverses(self, weights):
        r"""Return functions like `_exact_inverses`, with K approximated by landmarks.

        With :math:`K \approx B^\top B`, B the landmarks' whitened features (k, n), Woodbury's
        identity gives :math:`W - W B^\top (I + B W B^\top)^{-1} B W`. Each rank has the columns of
        B of its own rows.
        """
        every = -(-self.rows.n_rows // DEFAULTS.landmarks)
        landmarks = KernelBases(self.bases.kernel, self.bases.theta, self.bases.points[::every])
        none = weights.new_zeros(1, landmarks.size)
        low_rank = torch.cat(
            [
                torch.linalg.solve_triangular(landmarks.chol, K.double().T, upper=False)
                for *_, K, _ in landmarks.passes(self.rows, none)
            ],
            1,
        )

        def inverse(weight):
            own = self.rows.own_part(weight)
            (inner,) = self.rows.sum((own * low_rank) @ low_rank.T)
            inner.diagonal().add_(1.0)
            chol = cholesky(inner, "preconditioner of the mean's system", jitter=0)

            def apply(part):
                scaled = own * self.rows.own_part(part[0])
                (sums,) = self.rows.sum(low_rank @ scaled[:, None])
                known = torch.cholesky_solve(sums, chol)[:, 0]
                return self.rows.collect(scaled - own * (known @ low_rank))[0][None]

            return apply

        return [inverse(weight) for weight in weights]

    def _kl(self, state, means):
        c = self.likelihood.n_latents
        coef = self.rows.own_part(state.coef[:c].T)
        (of_mean,) = self.rows.sum(0.5 * (coef * means[:, :c]).sum())
        return (of_mean + covariance_kl(state.root)).item()
