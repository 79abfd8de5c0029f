"""More rows for a decoupled posterior that conjugate gradients found."""

import torch

from .._bases import falkon
from .._inference.pcg import covariance_divergence, features, roots
from .._linalg import add_grams, cholesky, mirror, natural_parameters, relative_change

_SITES = ("new_gram", "new_cross", "new_inner")  # of the rows that are new


class DecoupledStream:
    r"""More rows for a fitted posterior, which is their prior.

    The mean's bases are seen in coordinates w = coef C, :math:`K_\alpha = CC^\top`, of which the
    prior is standard, as the inducing points are. What the rows so far say about them is a matrix
    (M, M) that is held, so that a stream of Gaussian noise is a fit of all rows with the bases of
    the first. The state is a dict: ``gram`` (c, M, M), ``white`` (c, M), ``coef``, ``root``,
    ``change``.

    Parameters
    ----------
    likelihood, basis, bases, rows
        As of `DecoupledInference`.
    gram : Tensor of shape (c, M) or (c, M, M)
        That matrix; or what each base counts for, where it is :math:`C^\top D C`.
    coef, root : Tensor of shape (c, M), (c, p, p)
    """

    def __init__(self, likelihood, basis, bases, rows, gram, coef, root):
        self.likelihood, self.basis, self.bases, self.rows = likelihood, basis, bases, rows
        if gram.ndim == 2:
            gram = mirror(torch.stack([falkon(bases.chol, counts) for counts in gram]))
        white = coef @ bases.chol
        self._gram, self._cross = gram, _times(gram, white) + white
        precision, _ = natural_parameters(torch.zeros_like(root[..., 0]), root)
        self._inner = precision - torch.eye(root.shape[-1]).to(root)
        self._before = {"white": white, "coef": coef, "root": root}

    def initial(self):
        """The state from which `step` starts."""
        held = self._gram, self._cross, self._inner
        sites = {name: torch.zeros_like(part) for name, part in zip(_SITES, held, strict=True)}
        return {**self._before, **sites, "gram": self._gram, "n_steps": 0}

    def step(self, state):
        """A natural-gradient step; returns the gain of the bound over that of the rows so far."""
        white, root = state["white"], state["root"]
        gram, cross, inner = (torch.zeros_like(state[n]) for n in _SITES)
        loss = 0.0
        for _, X, y, weights, K, mean in self.bases.passes(self.rows, state["coef"]):
            A, var = features(self.basis, X, root)
            sites = self.likelihood.sites(y, mean, var)
            precision = weights * sites.precision
            loss += (weights[:, 0] * sites.loss).sum().item()
            values = self.bases.whitened(K.double())
            cross += (weights * sites.linear).T @ values
            add_grams(gram, values, precision)
            add_grams(inner, A, precision)
        value = state["bound"] = self._gain(state) - loss
        size = self.likelihood.step(state["n_steps"])
        for name, new in zip(_SITES, (mirror(gram), cross, mirror(inner)), strict=True):
            state[name] = state[name].lerp(new, size)
        state["gram"] = self._gram + state["new_gram"]
        state["white"] = _solved(state["gram"], self._cross + state["new_cross"])
        state["coef"] = self.bases.unwhitened(state["white"])
        state["root"] = roots(self._inner + state["new_inner"])
        state["change"] = relative_change(state["white"], white)
        state["n_steps"] += 1
        return value

    def bound(self, state):
        """Gain of the bound at the last step's start."""
        return state["bound"]

    def _gain(self, state):
        """Of the rows so far, divergence included, over the posterior that they had."""
        return (self._of_rows(state) - self._of_rows(self._before)).item()

    def _of_rows(self, state):
        white, root = state["white"], state["root"]
        of_mean = (self._cross * white).sum() - 0.5 * (white * _times(self._gram, white)).sum()
        of_covariance = 0.5 * (self._inner * (root @ root.mT)).sum()
        divergence = 0.5 * white.square().sum() + covariance_divergence(root)
        return of_mean - of_covariance - divergence


def _solved(gram, cross):
    """Whitened coefficients of the mean, (c, M)."""
    gram = gram + torch.eye(gram.shape[-1]).to(gram)
    chol = cholesky(gram, "precision of the mean's coefficients", jitter=0)
    return torch.cholesky_solve(cross[..., None], chol)[..., 0]


def _times(gram, coef):
    return (gram @ coef[..., None])[..., 0]
