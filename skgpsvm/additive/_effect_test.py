"""Score test of the effects that an additive model lacks."""

from dataclasses import replace

import torch
from scipy.special import gammaincc


class EffectTest:
    r"""Score test of effects that a model lacks, of each and of several together.

    Let :math:`\Phi` be the whitened features of some effects at their initial hyperparameters, and
    R (n, c) the derivatives of the rows' log densities in the c latents, both centered. The score
    of the variance of these effects is

    .. math:: T = \|\Phi^\top R\|^2 = \mathrm{tr}\,K L, \qquad
              K = \Phi \Phi^\top, \qquad L = R R^\top.

    Without the effects, all permutations of the rows of R are equally likely. Their mean and
    variance of T have closed forms, and T is about a gamma variable with these moments.

    Parameters
    ----------
    basis : AdditiveBasis
    terms : list of tuples of ints
        The effects, each of a single feature.
    X : Tensor of shape (n, d)
    residuals : Tensor of shape (n, c)

    Notes
    -----
    Source: Lin (1997), the score test of a variance component; Kazi-Aoual et al. (1995), the
    moments under permutations.
    """

    def __init__(self, basis, terms, X, residuals):
        own = replace(basis, terms=list(terms))
        start = {
            name: X.new_tensor(list(values.values()), dtype=torch.float64)
            for name, values in own.start().items()
        }
        _, *features = own.at(start).features(basis.unit(X))[0]
        self._features = dict(zip(terms, map(_centered, features), strict=True))
        self._residuals = _centered(residuals)
        self._of_residuals = _invariants(self._residuals)

    def p_value(self, terms):
        """Return the probability that a permutation has a larger score of some effects together.

        The moments need four rows; fewer tell nothing.
        """
        if len(self._residuals) < 4:
            return 1.0
        features = torch.cat([self._features[term] for term in terms], 1)
        score = (features.T @ self._residuals).square().sum().item()
        mean, var = _moments(len(features), _invariants(features), self._of_residuals)
        return float(gammaincc(mean**2 / var, score * mean / var)) if var > 0 else 1.0


def _centered(values):
    return values - values.mean(0)


def _invariants(values):
    """Return the trace of the products of rows (n, n), of its square, and of its squared diagonal.

    These are all that moments under permutations depend on.
    """
    wide = values.shape[1] > len(values)
    gram = values @ values.T if wide else values.T @ values
    parts = gram.trace(), gram.square().sum(), values.square().sum(1).square().sum()
    return [part.item() for part in parts]


def _moments(n, first, second):
    """Return mean and variance of tr K L over permutations of n rows, given `_invariants`."""
    mean, var = first[0] * second[0] / (n - 1), 2.0 / ((n - 1) ** 2 * (n + 1) * (n - 2))
    rest = 1.0 / ((n + 1) * n * (n - 1) * (n - 2) * (n - 3))
    for trace, square, diagonal in (first, second):
        var *= (n - 1) * square - trace**2
        rest *= n * (n + 1) * diagonal - (n - 1) * (trace**2 + 2 * square)
    return mean, var + rest
