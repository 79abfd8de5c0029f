"""Tests of what an additive model has left: interactions of pairs, and steps of features."""

import math

import torch

from ._defaults import DEFAULTS

_TINY = torch.finfo(torch.float64).tiny
_ROUNDING = 1e-10  # relative, of eigenvalues


def score_moments(basis, X, residuals, precisions):
    r"""Return the scores of pairs of features, and their moments without an interaction.

    The rows fall into the cells of a grid whose bins have equally many rows. Let :math:`R_c` and
    :math:`W_c` be the sums of the rows' residuals r, the derivatives of their log densities, and of
    their precisions, in cell c. The score is

    .. math:: T = R^\top D^{-1/2} M D^{-1/2} R, \qquad D = \mathrm{diag}(W), \qquad M = Q S Q,

    where Q projects out the effects of the bins of each feature, so that an effect that the model
    has not learned is no interaction. There are several scores: a smooth interaction has most power
    if :math:`S = D^{1/2} K D^{1/2}` for the covariance K of a smooth one, and hot spots and edges
    have it if S is the identity on a finer grid. With several latents, a score is the sum over
    them.

    Without an interaction, the residuals of two rows have a mean product of zero. The moments of
    the score are then those for independent random signs of the rows,

    .. math:: E[T] = \mathrm{tr}\,M\Lambda, \qquad
              \mathrm{Var}[T] = 2\,\mathrm{tr}\,M\Lambda M\Lambda - 2\sum_i M_{cc}^2 r_i^4 / W_c^2

    for row i in cell c, with :math:`\Lambda_{cc} = \sum_i r_i^2 / W_c`.

    Parameters
    ----------
    basis : AdditiveBasis
    X : Tensor of shape (n, d)
    residuals, precisions : Tensor of shape (n, c)

    Returns
    -------
    moments : dict
        By pair (i, j) with i < j, a list of (score, mean, variance) of each grid. Grids whose cells
        have no interaction to test are left out, and pairs without grids too.

    Notes
    -----
    Source: Lin (1997), the score test of a variance component. Departs from the source: with the
    moments of random signs, it holds for any variances of the noise.
    """
    u, known = basis.unit(X), set(basis.terms)
    present = {basis.in_columns((j,))[0] for term in basis.terms for j in term}
    features = sorted(j for j in present if not basis.features[j].monotonic)
    # The latents have equal weight, and a row has one weight.
    scale = precisions.mean(0).clamp_min(_TINY).rsqrt()
    residuals, weights = residuals * scale, (precisions * scale.square()).mean(1)
    levels = {j: basis.features[j].n_levels for j in features}
    values = {j: u[:, j] if levels[j] else _ranks(u[:, j]) for j in features}
    pairs = [(i, j) for i in features for j in features if i < j and (i, j) not in known]
    found = {}
    for pair in pairs:
        grids = [(1, True)] if all(levels[j] for j in pair) else _grids(len(u))
        scores = []
        for n_bins, smooth in grids:
            bins = [_Bins(values[j], levels[j], n_bins, smooth) for j in pair]
            if bins[0].size * bins[1].size <= DEFAULTS.test_cells:
                scores.append(_moments(*bins, smooth, residuals, weights))
        if scores := [moments.tolist() for moments in scores if moments is not None]:
            found[pair] = scores
    return found


def step_p_values(basis, X, residuals, precisions):
    """Return the probability of the residuals along each number that has a smooth effect, a dict.

    Rows fall into bins of equally many. The test is of the largest mean of the residuals of a bin,
    and of the largest difference between those of neighbors, on several grids of bins. The variance
    of a mean is that by the precisions, or by the scatter in the bin where this is larger, such as
    around an outlier. Probabilities are normal, and corrected for the number of means (Bonferroni).

    Parameters
    ----------
    basis : AdditiveBasis
    X : Tensor of shape (n, d)
    residuals, precisions : Tensor of shape (n, c)
        Derivatives of the log densities of rows in the latents, and their variances.
    """
    u, found = basis.unit(X), {}
    for (j,) in [term for term in basis.terms if len(term) == 1]:
        feature = basis.features[j]
        if feature.n_levels or feature.linear or feature.period or feature.monotonic:
            continue
        known = u[:, j].isfinite()
        rows = torch.stack([residuals, residuals.square(), precisions])[:, known]
        ranks, n_bins, largest, n_means = _ranks(u[known, j]), DEFAULTS.step_bins, 0.0, 0
        while n_bins * DEFAULTS.step_rows_in_bin <= len(ranks):
            cells, cell, size = (
                (n_bins * ranks).floor().unique(return_inverse=True, return_counts=True)
            )
            sums = rows.new_zeros(3, len(cells), rows.shape[2]).index_add(1, cell, rows)
            mean, square, precision = sums / size[:, None]
            scatter = (square - mean.square()) / (size[:, None] - 1).clamp_min(1)
            var = torch.maximum(precision / size[:, None], scatter).clamp_min(_TINY)
            ratios = [mean.square() / var, mean.diff(dim=0).square() / (var[1:] + var[:-1])]
            ratios = torch.cat(ratios)
            largest, n_means = max(largest, ratios.max().item()), n_means + ratios.numel()
            n_bins *= 2
        found[j] = min(1.0, max(n_means, 1) * math.erfc(math.sqrt(largest / 2)))
    return found


def _grids(n):
    """Return the numbers of bins of numbers, and whether the score is that of a smooth interaction.

    The others are powers of two for which cells have enough rows on average.
    """
    n_bins, found = 4, [(DEFAULTS.test_smooth_bins, True)]
    while n_bins**2 * DEFAULTS.test_rows_in_cell <= n:
        found.append((n_bins, False))
        n_bins *= 2
    return found


def _ranks(u):
    """Return the ranks (n,) of numbers, between 0 and 1, ties in the middle; else as in `u`."""
    known = u.isfinite()
    _, place, counts = u[known].unique(return_inverse=True, return_counts=True)
    middle = counts.cumsum(0).to(u) - 0.5 * counts
    return u.masked_scatter(known, (middle / known.sum())[place])


class _Bins:
    """Bins of a feature: levels of a category, or intervals with equally many numbers.

    Attributes
    ----------
    size : int
    of_rows : Tensor of shape (n,)
    known : Tensor of shape (n,), bool
    cov : Tensor of shape (size, size)
        Covariance of a smooth function of the bins.
    """

    def __init__(self, values, n_levels, n_bins, smooth):
        self.size = n_levels or n_bins
        self.of_rows = values if n_levels else (n_bins * values).floor()
        self.known = self.of_rows.isfinite() & (self.of_rows >= 0)
        self.cov = torch.eye(self.size).to(values)
        if smooth and not n_levels:
            at = torch.arange(n_bins).to(values) / (n_bins * DEFAULTS.test_length)
            self.cov = torch.exp(-0.5 * (at[:, None] - at).square())

    def indicators(self, places):
        """Return indicators (k, size) of bins."""
        return torch.nn.functional.one_hot(places, self.size).to(self.cov)


def _moments(left, right, smooth, residuals, weights):
    """Return score, mean and variance (3,) of a pair, given the `_Bins` of its features.

    Return None if the effects of the bins explain any values in the cells with rows. Those of two
    indicators of one category do, which are never both 1.
    """
    known = left.known & right.known & (weights > 0)
    places, r = [own.of_rows[known].long() for own in (left, right)], residuals[known]
    cells, cell = (places[0] * right.size + places[1]).unique(return_inverse=True)

    def in_cells(values):
        return values.new_zeros(len(cells), *values.shape[1:]).index_add(0, cell, values)

    root = in_cells(weights[known]).sqrt()[:, None]
    i, j = cells // right.size, cells % right.size
    effects = root * torch.cat([left.indicators(i), right.indicators(j)], 1)
    values, vectors = torch.linalg.eigh(effects.T @ effects)
    held = values > _ROUNDING * values[-1]
    if held.sum() == len(cells):
        return None
    effects = effects @ (vectors[:, held] * values[held].rsqrt())
    M = torch.eye(len(cells)).to(root) - effects @ effects.T
    if smooth:
        M = M @ (root * left.cov[i][:, i] * right.cov[j][:, j] * root.T) @ M
    sums = in_cells(r) / root
    score = (sums * (M @ sums)).sum()
    squares = in_cells((r[:, :, None] * r[:, None]).flatten(1)) / root.square()
    own = squares[:, :: r.shape[1] + 1].sum(1)
    both = in_cells(r.square().sum(1).square()) / root[:, 0] ** 4
    diagonal, products = M.diagonal(), (M.square() @ squares * squares).sum()
    return torch.stack([score, diagonal @ own, 2 * (products - diagonal.square() @ both)])
