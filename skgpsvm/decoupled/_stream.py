"""Streaming updates of a decoupled posterior that conjugate gradients solved for."""

import math
from dataclasses import dataclass, field

import torch

from .._fitting import Stage, State
from .._inference.decoupled import covariance_kl, roots
from .._linalg import (
    add_grams,
    cholesky,
    identity_like,
    mirror,
    natural_parameters,
    relative_change,
    spreads,
)
from .._local_variances import widened
from .._preconditioners import falkon

_ROUNDING = 1e-9  # fall of the ELBO that counts as rounding, relative


@dataclass(kw_only=True)
class StreamState(State):
    """State of `DecoupledStream`."""

    # theta, noise (k,): logarithms of the hyperparameters, which stay
    theta: torch.Tensor
    noise: torch.Tensor
    gram: torch.Tensor  # (c, M, M): precision that all rows add to the whitened coefficients
    # white, coef (c, M): whitened coefficients of the mean, and coefficients of the kernels
    white: torch.Tensor
    coef: torch.Tensor
    # (c, p, p): upper triangular roots of the covariances of the whitened inducing variables
    root: torch.Tensor
    local_root: torch.Tensor | None  # (c, p, p): the root of `LocalVariances`
    added: dict  # of Tensor: what the sites of the new rows add, see `DecoupledStream`
    # Fraction of the likelihood's step size that is taken. It halves when the ELBO falls, and
    # doubles, up to one, when it rises.
    share: float = 1.0
    before: dict = field(default_factory=dict)  # ``added`` before the last step
    n_steps: int = 0
    change: float = math.inf  # relative change of ``white`` in the last step


class DecoupledStream(Stage):
    r"""Update a fitted posterior, taken as the prior, with the sites of new rows.

    The mean's coefficients are whitened, :math:`w = C^\top a` with :math:`K_\alpha = CC^\top`, so
    that their prior is standard normal, as that of the whitened inducing variables is. The
    precision that earlier rows add to w is a matrix (M, M), which is kept. With Gaussian noise a
    stream is therefore a fit of all rows with the bases of the first call.

    What rows add to the prior is a dict: ``gram`` (c, M, M) and ``cross`` (c, M) to the natural
    parameters of w; ``inner`` (c, p, p) to the precision of the whitened inducing variables, and
    ``local`` (c, p, p) to that of ``local_root``.

    Streams have converged when the relative change of the whitened coefficients is below ``tol``.
    ``fitted`` is the posterior so far: ``theta``, ``noise``, ``coef`` (c, M), ``root`` (c, p, p),
    ``local_root`` (c, p, p) if there is one, and ``gram``. The latter is the precision that earlier
    rows add, (c, M, M), or (c, M), the site precisions D of `falkon`, whose estimate of it is
    :math:`C^\top D C`. The other arguments are as of `DecoupledInference`.
    """

    def __init__(self, likelihood, basis, bases, rows, tol, fitted):
        self.likelihood, self.basis, self.bases, self.rows = likelihood, basis, bases, rows
        self.tol, self._fitted = tol, fitted
        gram, root = fitted["gram"], fitted["root"]
        if gram.ndim == 2:
            gram = mirror(torch.stack([falkon(bases.chol, each) for each in gram]))
        white = fitted["coef"] @ bases.chol
        self._earlier = {
            "gram": gram,
            "cross": _times(gram, white) + white,
            "inner": _added_precision(root),
            "local": _added_precision(fitted.get("local_root", root)),
        }
        self._white, self._root = white, root

    def init(self):
        """Return the first state: the fitted posterior, no new rows."""
        return StreamState(
            **{name: self._fitted[name] for name in ("theta", "noise", "coef", "root")},
            local_root=self._fitted.get("local_root"),
            gram=self._earlier["gram"],
            white=self._white,
            added={name: torch.zeros_like(part) for name, part in self._earlier.items()},
        )

    def step(self, state):
        """Take a natural-gradient step, or undo half of the last one if it lowered the ELBO.

        The objective is the ELBO at its start less that of the earlier rows, nats. A step may be
        too long where a class that is hardly possible has been observed: the precisions of such
        sites vanish.
        """
        white, root = state.white, state.root
        sums, loss = {name: torch.zeros_like(part) for name, part in state.added.items()}, 0.0
        for _, X, y, weights, K, mean in self.bases.passes(self.rows, state.coef):
            A, residual = self.basis(X)
            var = (residual[:, None] + spreads(A, root)).double()
            sites = self.likelihood.sites(y, mean, var)
            precision = weights * sites.precision
            loss += (weights[:, 0] * sites.loss).sum()
            values = self.bases.whitened(K.double())
            sums["cross"] += (weights * sites.linear).T @ values
            add_grams(sums["gram"], values, precision)
            add_grams(sums["inner"], A, precision)
            add_grams(sums["local"], A, widened(precision, residual[:, None]))
        for name in ("gram", "inner", "local"):
            mirror(sums[name])
        loss, *parts = self.rows.sum(loss, *sums.values())
        gain = self._elbo_part(white, root) - self._elbo_part(self._white, self._root)
        objective = gain.item() - loss.item()
        if state.before and objective < state.objective - _ROUNDING * abs(state.objective):
            state.share /= 2
            self._move(state, state.before, 0.5)
            return
        state.objective, state.before = objective, state.added
        target = dict(zip(sums, parts, strict=True))
        self._move(state, target, state.share * self.likelihood.step(state.n_steps))
        state.change = relative_change(state.white, white) / state.share
        state.share = min(1.0, 2 * state.share)
        state.n_steps += 1

    def _move(self, state, target, size):
        """Move what the new rows add by a share of the way to a target, a dict by name."""
        state.added = {name: part.lerp(target[name], size) for name, part in state.added.items()}
        total = {name: self._earlier[name] + part for name, part in state.added.items()}
        state.gram, state.white = total["gram"], _solve(total["gram"], total["cross"])
        state.coef = self.bases.unwhitened(state.white)
        state.root = roots(total["inner"])
        if state.local_root is not None:
            state.local_root = roots(total["local"])

    def converged(self, state):
        return state.change < self.tol

    def _elbo_part(self, white, root):
        """Return the expected log of the earlier rows' sites, less the divergence from the prior.

        A constant of the sites is left out.
        """
        earlier = self._earlier
        products = _times(earlier["gram"], white)
        of_mean = (earlier["cross"] * white).sum() - 0.5 * (white * products).sum()
        of_covariance = 0.5 * (earlier["inner"] * (root @ root.mT)).sum()
        divergence = 0.5 * white.square().sum() + covariance_kl(root)
        return of_mean - of_covariance - divergence


def _added_precision(root):
    """Return what sites add to the prior's precision, (c, p, p), given roots of covariances."""
    precision, _ = natural_parameters(torch.zeros_like(root[..., 0]), root)
    return precision - identity_like(root)


def _solve(gram, cross):
    """Return whitened coefficients (c, M): solutions for the matrices gram + I."""
    gram = gram + identity_like(gram)
    chol = cholesky(gram, "precision of the mean's coefficients", jitter=0)
    return torch.cholesky_solve(cross[..., None], chol)[..., 0]


def _times(gram, coef):
    return (gram @ coef[..., None])[..., 0]
