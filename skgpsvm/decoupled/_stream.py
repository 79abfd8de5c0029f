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

_MOVED = "new_gram", "new_cross", "new_inner", "new_local"
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
    # new_gram (c, M, M), new_cross (c, M): what the sites of the new rows add to ``gram`` and to
    # the linear term of the whitened coefficients
    new_gram: torch.Tensor
    new_cross: torch.Tensor
    # new_inner, new_local (c, p, p): what they add to the precision of the whitened inducing
    # variables, and to that of ``local_root``
    new_inner: torch.Tensor
    new_local: torch.Tensor
    # Fraction of the likelihood's step size that is taken. It halves when the ELBO falls, and
    # doubles, up to one, when it rises.
    share: float = 1.0
    before: dict = field(default_factory=dict)  # what the last step has moved, by name
    n_steps: int = 0
    change: float = math.inf  # relative change of ``white`` in the last step


class DecoupledStream(Stage):
    r"""Update a fitted posterior, taken as the prior, with the sites of new rows.

    The mean's coefficients are whitened, :math:`w = C^\top a` with :math:`K_\alpha = CC^\top`, so
    that their prior is standard normal, as that of the whitened inducing variables is. The
    precision that earlier rows add to w is a matrix (M, M), which is kept. With Gaussian noise a
    stream is therefore a fit of all rows with the bases of the first call.

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
        # Natural parameters of what earlier rows added to the prior.
        self._gram, self._cross = gram, _times(gram, white) + white
        self._inner = _added_precision(root)
        self._local = _added_precision(fitted.get("local_root", root))
        self._white, self._root = white, root

    def init(self):
        """Return the first state: the fitted posterior, no new rows."""
        return StreamState(
            **{name: self._fitted[name] for name in ("theta", "noise", "coef", "root")},
            local_root=self._fitted.get("local_root"),
            gram=self._gram,
            white=self._white,
            new_gram=torch.zeros_like(self._gram),
            new_cross=torch.zeros_like(self._cross),
            new_inner=torch.zeros_like(self._inner),
            new_local=torch.zeros_like(self._inner),
        )

    def step(self, state):
        """Take a natural-gradient step, or undo half of the last one if it lowered the ELBO.

        The objective is the ELBO at its start less that of the earlier rows, nats. A step may be
        too long where a class that is hardly possible has been observed: the precisions of such
        sites vanish.
        """
        white, root = state.white, state.root
        gram, cross = torch.zeros_like(state.new_gram), torch.zeros_like(state.new_cross)
        inner, local = torch.zeros_like(state.new_inner), torch.zeros_like(state.new_local)
        loss = 0.0
        for _, X, y, weights, K, mean in self.bases.passes(self.rows, state.coef):
            A, residual = self.basis(X)
            var = (residual[:, None] + spreads(A, root)).double()
            sites = self.likelihood.sites(y, mean, var)
            precision = weights * sites.precision
            loss += (weights[:, 0] * sites.loss).sum()
            values = self.bases.whitened(K.double())
            cross += (weights * sites.linear).T @ values
            add_grams(gram, values, precision)
            add_grams(inner, A, precision)
            add_grams(local, A, widened(precision, residual[:, None]))
        parts = mirror(gram), cross, mirror(inner), mirror(local), loss
        gram, cross, inner, local, loss = self.rows.sum(*parts)
        gain = self._elbo_part(white, root) - self._elbo_part(self._white, self._root)
        objective = gain.item() - loss.item()
        if state.before and objective < state.objective - _ROUNDING * abs(state.objective):
            state.share /= 2
            self._move(state, state.before, 0.5)
            return
        state.objective = objective
        state.before = {name: getattr(state, name) for name in _MOVED}
        found = dict(zip(_MOVED, (gram, cross, inner, local), strict=True))
        self._move(state, found, state.share * self.likelihood.step(state.n_steps))
        state.change = relative_change(state.white, white) / state.share
        state.share = min(1.0, 2 * state.share)
        state.n_steps += 1

    def _move(self, state, target, size):
        """Move what the new rows add by a share of the way to a target, a dict by name."""
        for name in _MOVED:
            setattr(state, name, getattr(state, name).lerp(target[name], size))
        state.gram = self._gram + state.new_gram
        state.white = _solve(state.gram, self._cross + state.new_cross)
        state.coef = self.bases.unwhitened(state.white)
        state.root = roots(self._inner + state.new_inner)
        if state.local_root is not None:
            state.local_root = roots(self._local + state.new_local)

    def converged(self, state):
        """Return whether the whitened coefficients hardly changed."""
        return state.change < self.tol

    def _elbo_part(self, white, root):
        """Return the expected log of the earlier rows' sites, less the divergence from the prior.

        A constant of the sites is left out.
        """
        of_mean = (self._cross * white).sum() - 0.5 * (white * _times(self._gram, white)).sum()
        of_covariance = 0.5 * (self._inner * (root @ root.mT)).sum()
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
