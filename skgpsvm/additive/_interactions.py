"""Score test of interactions between pairs of features, given a fitted additive model."""

import torch

from ._defaults import DEFAULTS
from ._processes import PROFILES, CenteredAtPoints, Chebyshev, Levels, equally_spaced

_MAX_FEATURES = 256  # of a pair; pairs of categories with more are not tested
_FEATURES_AT_ONCE = 1024


def score_moments(basis, X, residuals, precisions, posteriors):
    r"""Return the scores of pairs of features, and their moments without an interaction.

    Let :math:`\Psi_p` be the whitened features of the product of two effects, a term that the model
    does not have. The residuals r are the derivatives of the rows' expected log densities. The
    score is :math:`\lVert \Psi_p^\top r \rVert^2`, summed over the latents. It is a quadratic form
    with matrix :math:`H_p = \Psi_p^\top \mathrm{Cov}(r) \Psi_p`.

    Parameters
    ----------
    basis : AdditiveBasis
    X : Tensor of shape (n, d)
    residuals, precisions : Tensor of shape (n, c)
    posteriors : list of EffectsPosterior

    Returns
    -------
    moments : dict
        Score, mean and variance, a list of floats, by pair (i, j) with i < j.

    Notes
    -----
    Source: Lin (1997), the score test of a variance component. Departs from the source: the test is
    of the collapsed bound.
    """
    u = basis.unit(X)
    present = {j for term in basis.terms for j in term} - basis.masses.keys()
    features = sorted(j for j in present if not basis.features[j].monotonic)
    single = {j: _features(basis, j, u[:, j]) for j in features}
    parts = zip(posteriors, precisions.T, strict=True)
    covariances = [posterior.of_residuals(X, precision) for posterior, precision in parts]
    known, found = set(basis.terms), {}
    for place, i in enumerate(features):
        sizes = {j: single[i].shape[1] * single[j].shape[1] for j in features[place + 1 :]}
        tested = [j for j, size in sizes.items() if (i, j) not in known and size <= _MAX_FEATURES]
        step = max(1, _FEATURES_AT_ONCE // max([1, *(sizes[j] for j in tested)]))
        for start in range(0, len(tested), step):
            others = tested[start : start + step]
            psi = [(single[i][:, :, None] * single[j][:, None]).flatten(1) for j in others]
            parts = zip(residuals.T, covariances, strict=True)
            moments = sum(_moments(psi, *part) for part in parts)
            found |= {(i, j): own for j, own in zip(others, moments.tolist(), strict=True)}
    return found


def _moments(psi, residual, covariance):
    """Return scores, means and variances (n_pairs, 3) of pairs from a list of their features."""
    found = []
    for own, H in zip(psi, covariance(psi), strict=True):
        score = (own.T @ residual).square().sum()
        found.append(torch.stack([score, H.trace(), 2 * H.square().sum()]))
    return torch.stack(found)


def _features(basis, j, column):
    """Return whitened features (n, m) of one column; they are zero where it is missing."""
    mean = torch.as_tensor(basis.means[j]).to(column)
    if basis.features[j].n_levels:
        levels = Levels(mean)
        return levels.features(levels.at(column))
    [cyclic] = basis.cyclic([j])
    points = equally_spaced(DEFAULTS.test_points, cyclic).to(column)
    length, polynomials = column.new_tensor(DEFAULTS.test_length), Chebyshev(basis.size, column)
    cyclic = torch.tensor(True, device=column.device) if cyclic else None
    effect = CenteredAtPoints(PROFILES["rbf"], length, points, polynomials, mean, cyclic)
    return effect.features(effect.at(column.clamp(0, 1).where(column.isfinite(), column)))
