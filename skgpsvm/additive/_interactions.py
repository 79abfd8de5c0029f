"""Which pairs of features interact: a score test on a model of single effects."""

import torch

from ._processes import PROFILES, CentredAtPoints, Chebyshev, Levels

_LENGTH, _POINTS = 0.5, 4  # of the effects that the test looks for, on the unit interval
_MOST_FEATURES = 256  # of a pair of categories, beyond which it is not tested
_FEATURES_AT_ONCE = 1024


def score_moments(basis, X, residuals, precisions, posteriors):
    r"""Scores of pairs of features, and their means and variances where there is no interaction.

    With whitened features :math:`\Psi_p` of the product of two effects that the model does not
    have, and residuals r, the derivatives of the rows' expected log densities, the score is
    :math:`\lVert \Psi_p^\top r \rVert^2`, summed over the latents: a quadratic form with matrix
    :math:`H_p = \Psi_p^\top \mathrm{Cov}(r) \Psi_p`.

    Parameters
    ----------
    basis : AdditiveBasis
    X : Tensor of shape (n, d)
    residuals, precisions : Tensor of shape (n, c)
    posteriors : list of EffectsPosterior

    Returns
    -------
    moments : dict
        By pair (i, j), i < j: score, mean, variance.

    Notes
    -----
    Source: Lin (1997), the score test of a variance component; here of the collapsed bound.
    """
    u = basis.unit(X)
    features = sorted({j for term in basis.terms for j in term})
    single = {j: _features(basis, j, u[:, j]) for j in features}
    parts = zip(posteriors, precisions.T, strict=True)
    covariances = [posterior.of_residuals(X, precision) for posterior, precision in parts]
    known, found = set(basis.terms), {}
    for place, i in enumerate(features):
        sizes = {j: single[i].shape[1] * single[j].shape[1] for j in features[place + 1 :]}
        tested = [j for j, size in sizes.items() if (i, j) not in known and size <= _MOST_FEATURES]
        step = max(1, _FEATURES_AT_ONCE // max([1, *(sizes[j] for j in tested)]))
        for start in range(0, len(tested), step):
            some = tested[start : start + step]
            psi = [(single[i][:, :, None] * single[j][:, None]).flatten(1) for j in some]
            parts = zip(residuals.T, covariances, strict=True)
            moments = sum(_moments(psi, *part) for part in parts)
            found |= {(i, j): own for j, own in zip(some, moments.tolist(), strict=True)}
    return found


def _moments(psi, residual, covariance):
    """Of pairs with features ``psi`` each, (n_pairs, 3)."""
    found = []
    for own, H in zip(psi, covariance(psi), strict=True):
        score = (own.T @ residual).square().sum()
        found.append(torch.stack([score, H.trace(), 2 * H.square().sum()]))
    return torch.stack(found)


def _features(basis, j, column):
    """Whitened features (n, m) of one feature; zero where it is missing."""
    mean = torch.as_tensor(basis.means[j]).to(column)
    if basis.features[j].n_levels:
        levels = Levels(mean)
        return levels.features(levels.at(column))
    points = torch.linspace(0, 1, _POINTS).to(column)
    length, polynomials = column.new_tensor(_LENGTH), Chebyshev(basis.size, column)
    effect = CentredAtPoints(PROFILES["rbf"], length, points, polynomials, mean)
    return effect.features(effect.at(column.clamp(0, 1)))
