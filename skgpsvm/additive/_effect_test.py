"""Score test of the effects that an additive model lacks."""

from dataclasses import replace

import torch
from scipy.special import gammaincc


class EffectTest:
    r"""Score test of effects that a model lacks, of each and of several together.

    Let :math:`\Phi` be the whitened features of some effects at their initial hyperparameters, and
    R (n, c) the derivatives of the log densities of n observations in the c latents, both centered.
    The score of the variance of these effects is

    .. math:: T = \|\Phi^\top R\|^2 = \mathrm{tr}\,K L, \qquad
              K = \Phi \Phi^\top, \qquad L = R R^\top.

    Without the effects, all permutations of the rows of R are equally likely. Their mean and
    variance of T have closed forms, and T is about a gamma variable with these moments.

    The score of all effects has a second form, in which :math:`K` is
    :math:`\Phi (I + w \Phi^\top \Phi)^{-1} \Phi^\top` for the mean precision w of the rows. Effects
    of features that are nearly alike, of which only differences matter, have power in this form
    alone. What the effects in the model explain of the others is removed from their features.

    Equal observations are one row of :math:`\Phi` and R, times the square root of their number.
    ``residuals`` and ``precisions`` (n, c) are those of one observation, of which ``counts`` (n,)
    are equal.

    Source: Lin (1997), the score test of a variance component; Kazi-Aoual et al. (1995), the
    moments under permutations.
    """

    def __init__(self, basis, terms, X, residuals, precisions, counts):
        self._counts, self._n = counts, counts.sum().item()
        present = [term for term in basis.terms if len(term) == 1]
        own = replace(basis, terms=present + terms)
        start = {
            name: X.new_tensor(list(values.values()), dtype=torch.float64)
            for name, values in own.start().items()
        }
        _, *features = map(self._centered, own.at(start).features(basis.unit(X))[0])
        self._precision = (counts @ precisions / self._n).mean()
        if present:
            known = torch.cat(features[: len(present)], 1)
            root = self._root(known)
            parts = (torch.cholesky_solve(known.T @ part, root) for part in features)
            features = [
                part - self._precision * (known @ explained)
                for part, explained in zip(features, parts, strict=True)
            ]
        self._features = dict(zip(terms, features[len(present) :], strict=True))
        self._residuals = self._centered(residuals)
        self._of_residuals = _invariants(self._residuals, counts)

    def _centered(self, values):
        """Return values less their mean over the observations, times the roots of the counts."""
        return self._counts.sqrt()[:, None] * (values - self._counts @ values / self._n)

    def _root(self, features):
        """Return the Cholesky factor of the posterior precision of the features' weights."""
        gram = self._precision * features.T @ features
        return torch.linalg.cholesky(gram + torch.eye(len(gram)).to(gram))

    def p_values(self):
        """Return the p-value of each effect, a dict."""
        return {term: self._p_value(features) for term, features in self._features.items()}

    def joint_p_values(self):
        """Return the p-values of the two scores of all effects together."""
        features = torch.cat(list(self._features.values()), 1)
        if features.shape[1] > len(features):
            values, vectors = torch.linalg.eigh(features @ features.T)
            features = vectors * values.clamp_min(0).sqrt()
        fitted = torch.linalg.solve_triangular(self._root(features), features.T, upper=False).T
        return [self._p_value(features), self._p_value(fitted)]

    def _p_value(self, features):
        """Return the probability that a permutation has a larger score.

        The moments need four observations; fewer tell nothing.
        """
        if self._n < 4:
            return 1.0
        score = (features.T @ self._residuals).square().sum().item()
        mean, var = _moments(self._n, _invariants(features, self._counts), self._of_residuals)
        return float(gammaincc(mean**2 / var, score * mean / var)) if var > 0 else 1.0


def _invariants(values, counts):
    """Return the traces of the products of observations, of its square, and its squared diagonal.

    These are all that moments under permutations depend on. The rows of ``values`` are as of
    `EffectTest`.
    """
    wide = values.shape[1] > len(values)
    gram = values @ values.T if wide else values.T @ values
    diagonal = values.square().sum(1).square() / counts
    parts = gram.trace(), gram.square().sum(), diagonal.sum()
    return [part.item() for part in parts]


def _moments(n, first, second):
    """Return mean and variance of tr K L over permutations of n rows, given `_invariants`."""
    mean, var = first[0] * second[0] / (n - 1), 2.0 / ((n - 1) ** 2 * (n + 1) * (n - 2))
    rest = 1.0 / ((n + 1) * n * (n - 1) * (n - 2) * (n - 3))
    for trace, square, diagonal in (first, second):
        var *= (n - 1) * square - trace**2
        rest *= n * (n + 1) * diagonal - (n - 1) * (trace**2 + 2 * square)
    return mean, var + rest
