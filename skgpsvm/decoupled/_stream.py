"""More rows for a decoupled posterior that conjugate gradients found."""

import torch

from .._bases import Inverse
from .._linalg import relative_change
from .._solve import divergence, features, roots

_SITES = ("new_gram", "new_cross", "new_inner")  # of the rows that are new


class DecoupledStream:
    r"""More rows for a fitted posterior, which is their prior.

    What the rows so far say about the mean is :math:`\Phi^\top \Lambda \Phi`, an
    (M, M) matrix that is held, so that a stream of Gaussian noise is a fit of all rows with the
    bases of the first. The state is a dict: ``gram`` (c, M, M), ``coef``, ``root``, ``change``.

    Parameters
    ----------
    likelihood, basis, bases, rows
        As of `DecoupledInference`.
    gram : Tensor of shape (c, M) or (c, M, M)
        That matrix; or what each base counts for, where it is :math:`K_\alpha D K_\alpha`.
    coef, root : Tensor of shape (c, M), (c, p, p)
    """

    def __init__(self, likelihood, basis, bases, rows, gram, coef, root):
        self.likelihood, self.basis, self.bases, self.rows = likelihood, basis, bases, rows
        chol = bases.chol
        if gram.ndim == 2:
            K = chol @ chol.T
            gram = K @ (gram[..., None] * K)
        self._gram, self._cross = gram, _times(gram, coef) + bases.prior_product(coef)
        identity = torch.eye(root.shape[-1]).to(root)
        self._inner = torch.cholesky_inverse(torch.linalg.cholesky(root @ root.mT)) - identity
        self._before = coef, root

    def initial(self):
        """The state from which `step` starts."""
        coef, root = self._before
        sites = {"new_gram": torch.zeros_like(self._gram), "new_cross": torch.zeros_like(coef)}
        inner = {"new_inner": torch.zeros_like(self._inner)}
        return {**sites, **inner, "gram": self._gram, "coef": coef, "root": root, "n_steps": 0}

    def step(self, state):
        """A natural-gradient step; returns the gain of the bound over that of the rows so far."""
        coef, root = state["coef"], state["root"]
        gram, cross, inner = (torch.zeros_like(state[n]) for n in _SITES)
        loss = 0.0
        for _, X, y, weights, K, mean in self.bases.passes(self.rows, coef):
            A, var = features(self.basis, X, root)
            sites = self.likelihood.sites(y, mean, var)
            precision = weights * sites.precision
            loss += (weights[:, 0] * sites.loss).sum().item()
            cross += (weights * sites.linear).T @ K.double()
            for j, column in enumerate(precision.T[..., None]):
                gram[j] += K.double().T @ (column * K)
                inner[j] += A.double().T @ (column * A)
        value = state["bound"] = self._gain(state) - loss
        size = self.likelihood.step(state["n_steps"])
        for name, new in zip(_SITES, (gram, cross, inner), strict=True):
            state[name] = state[name].lerp(new, size)
        state["gram"] = self._gram + state["new_gram"]
        state["coef"] = self._solved(state["gram"], self._cross + state["new_cross"])
        state["root"] = roots(self._inner + state["new_inner"])
        state["change"] = relative_change(state["coef"] @ self.bases.chol, coef @ self.bases.chol)
        state["n_steps"] += 1
        return value

    def bound(self, state):
        """Gain of the bound at the last step's start."""
        return state["bound"]

    def _solved(self, gram, cross):
        """Coefficients of the mean."""
        whitened = self.bases.whitened
        pairs = zip(gram, cross, strict=True)
        return torch.cat(
            [Inverse(self.bases, whitened(whitened(each).mT))(part[None]) for each, part in pairs]
        )

    def _gain(self, state):
        """Of the rows so far, divergence included, over the posterior that they had."""
        before, after = (
            self._of_rows(coef, root) - divergence(self.bases, coef, root)
            for coef, root in (self._before, (state["coef"], state["root"]))
        )
        return (after - before).item()

    def _of_rows(self, coef, root):
        of_mean = (self._cross * coef).sum() - 0.5 * (coef * _times(self._gram, coef)).sum()
        return of_mean - 0.5 * (self._inner * (root @ root.mT)).sum()


def _times(gram, coef):
    return (gram @ coef[..., None])[..., 0]
