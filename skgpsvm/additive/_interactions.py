"""Tests of what an additive model has left: interactions of pairs, and steps of features."""

import math

import torch
from torch.nn.functional import one_hot

from .._memory import CACHED_BLOCK, block_rows
from ._defaults import DEFAULTS

_TINY = torch.finfo(torch.float64).tiny
_ROUNDING = 1e-10  # relative, of eigenvalues
_SMALL = 1e-5  # relative, of eigenvalues of a smooth covariance that are left out


def score_moments(basis, terms, X, residuals, precisions, counts):
    r"""Return the scores of pairs of features, and their moments without an interaction.

    Observations fall into the cells of a grid whose bins have equally many. Let :math:`R_c` and
    :math:`W_c` be the sums of their residuals r, the derivatives of their log densities, and of
    their precisions, in cell c. The score is

    .. math:: T = R^\top D^{-1/2} M D^{-1/2} R, \qquad D = \mathrm{diag}(W), \qquad M = Q S Q,

    where Q projects out the effects of the bins of each feature, so that an effect that the model
    has not learned is no interaction. There are several scores: a smooth interaction has most power
    if :math:`S = D^{1/2} K D^{1/2}` for the covariance K of a smooth one, and hot spots and edges
    have it if S is the identity on a finer grid. With several latents, a score is the sum over
    them.

    Without an interaction, two residuals have a mean product of zero. The moments of the score are
    then those for independent random signs of the observations,

    .. math:: E[T] = \mathrm{tr}\,M\Lambda, \qquad
              \mathrm{Var}[T] = 2\,\mathrm{tr}\,M\Lambda M\Lambda - 2\sum_i M_{cc}^2 r_i^4 / W_c^2

    for observation i in cell c, with :math:`\Lambda_{cc} = \sum_i r_i^2 / W_c`.

    The features of the ``terms`` may have pairs. ``residuals`` and ``precisions`` (n, c) are those
    of one observation, of which ``counts`` (n,) are equal. Returns, by pair (i, j) with i < j, a
    list of (score, mean, variance) of each grid. Grids whose cells have no interaction to test are
    left out, and pairs without grids too.

    Source: Lin (1997), the score test of a variance component. Departs from the source: with the
    moments of random signs, it holds for any variances of the noise.
    """
    u, known = basis.unit(X), set(basis.terms)
    present = {j for term in terms for j in basis.in_columns(term)}
    features = sorted(j for j in present if not basis.features[j].constrained)
    # The latents have equal weight, and a row has one weight.
    scale = (counts @ precisions / counts.sum()).clamp_min(_TINY).rsqrt()
    rows = _Rows(residuals * scale, (precisions * scale.square()).mean(1), counts)
    levels = {j: basis.features[j].n_levels for j in features}
    values = {j: u[:, j] if levels[j] else _ranks(u[:, j], counts) for j in features}
    pairs = [(i, j) for i in features for j in features if i < j and (i, j) not in known]
    found = {pair: [] for pair in pairs}
    for n_bins, smooth in _grids(counts.sum()):
        bins = {j: _bins(values[j], 1 if levels[j] else n_bins) for j in features}
        alike = {}  # pairs by the numbers of levels of their features, 0 without levels
        for i, j in pairs:
            if smooth or not (levels[i] and levels[j]):  # levels have one grid
                alike.setdefault((levels[i], levels[j]), []).append((i, j))
        for n_levels, batch in alike.items():
            grid = _Grid(n_levels, n_bins, smooth)
            for block in grid.blocks(batch, rows):
                left, right = (torch.stack([bins[pair[k]] for pair in block]) for k in (0, 1))
                moments, testable = grid.moments(left, right, rows)
                for k in testable.nonzero()[:, 0].tolist():
                    found[block[k]].append(moments[k])
    return {pair: scores for pair, scores in found.items() if scores}


def step_p_values(basis, terms, X, residuals, precisions, counts):
    """Return the probability of the residuals along each number with a smooth effect, a dict.

    Observations fall into bins of equally many. The test is of the largest mean of the residuals of
    a bin, and of the largest difference between those of neighbors, on several grids. The variance
    of a mean is that by the precisions, or by the scatter in the bin where this is larger, such as
    around an outlier. Probabilities are normal, and corrected for the number of means (Bonferroni).

    The smooth effects are among the ``terms``. For the other arguments, see `score_moments`.
    """
    u, found = basis.unit(X), {}
    for (j,) in [term for term in terms if len(term) == 1]:
        feature = basis.features[j]
        if feature.n_levels or feature.linear or feature.period or feature.constrained:
            continue
        known = u[:, j].isfinite()
        n = counts[known]
        rows = n[:, None] * torch.stack([residuals, residuals.square(), precisions])[:, known]
        ranks, n_bins, largest, n_means = _ranks(u[known, j], n), DEFAULTS.step_bins, 0.0, 0
        while n_bins * DEFAULTS.step_rows_in_bin <= n.sum():
            cells, cell = (n_bins * ranks).floor().unique(return_inverse=True)
            size = torch.bincount(cell, n)
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


def _ranks(u, counts):
    """Return the ranks (n,) of numbers, between 0 and 1, ties in the middle; else as in `u`."""
    known = u.isfinite()
    _, place = u[known].unique(return_inverse=True)
    sizes = torch.bincount(place, counts[known])
    middle = sizes.cumsum(0) - 0.5 * sizes
    return u.masked_scatter(known, (middle / sizes.sum())[place])


def _bins(values, n_bins):
    """Return the bins (n,) of numbers between 0 and 1, or of codes of levels; -1 if unknown."""
    known = values.isfinite() & (values >= 0)
    return torch.where(known, (n_bins * values).floor(), -1).long()


class _Rows:
    """Weights of rows, and the products of residuals of observations that are summed in cells.

    ``terms`` (n, 2 + c + c * c) are weights, residuals, products of two residuals, and squares of
    their sum of squares; ``sizes`` has the numbers of columns of these.
    """

    def __init__(self, residuals, weights, counts):
        products = (residuals[:, :, None] * residuals[:, None]).flatten(1)
        fourth = residuals.square().sum(1, keepdim=True).square()
        terms = [weights[:, None], residuals, products, fourth]
        self.weights, self.terms = weights, counts[:, None] * torch.cat(terms, 1)
        self.sizes = [term.shape[1] for term in terms]


class _Grid:
    r"""Cells of the bins of two features, the same for all pairs of a batch.

    ``sizes`` are the numbers of bins of the two features. ``features`` F of the cells make
    :math:`F F^\top` the covariance of a smooth function of these; None is the identity.
    """

    def __init__(self, levels, n_bins, smooth):
        self.sizes = tuple(n_levels or n_bins for n_levels in levels)
        self.features = None
        if smooth and self.n_cells <= DEFAULTS.test_cells:
            own = [torch.eye(m, dtype=torch.float64) if m else _smooth(n_bins) for m in levels]
            self.features = torch.kron(*own)

    @property
    def n_cells(self):
        """Number of cells."""
        return math.prod(self.sizes)

    def blocks(self, pairs, rows):
        """Return pairs in lists for `moments`, none if there are too many cells.

        This bounds the memory. A tensor of a block has at most `CACHED_BLOCK` numbers, or is of a
        single pair; the largest are matrices of the cells with rows or of the bins, and the rows'
        terms and their sums.
        """
        if self.n_cells > DEFAULTS.test_cells:
            return []
        n_rows, n_terms = rows.terms.shape
        side = max(min(self.n_cells, n_rows), sum(self.sizes))
        size = block_rows(max(side**2, max(self.n_cells, n_rows) * n_terms), CACHED_BLOCK)
        return [pairs[start : start + size] for start in range(0, len(pairs), size)]

    def moments(self, left, right, rows):
        """Return score, mean and variance of each pair, a list, and which can be tested (p,).

        A pair cannot be tested if the effects of the bins explain any values in the cells with
        rows. Those of two indicators of one category do, which are never both 1. ``left`` and
        ``right`` (p, n) are the bins of the features of each pair.
        """
        cells, n_held, sums = self._sums(left, right, rows)
        weights, residuals, squares, both = sums.split(rows.sizes, 2)
        root = weights.sqrt()
        inverse = torch.where(root > 0, 1 / root, 0)  # cells without rows have no effect
        first, second = self.sizes
        effects = [one_hot(cells // second, first), one_hot(cells % second, second)]
        effects = root * torch.cat(effects, 2)
        values, vectors = torch.linalg.eigh(effects.mT @ effects)
        spanned = values > _ROUNDING * values[:, -1:]
        effects = effects @ (vectors * torch.where(spanned, values, torch.inf).rsqrt()[:, None])
        if self.features is None:
            M = torch.eye(cells.shape[1]).to(root) - effects @ effects.mT
        else:
            smooth = root * self.features.to(root)[cells]
            smooth = smooth - effects @ (effects.mT @ smooth)
            M = smooth @ smooth.mT
        residuals, squares, both = residuals * inverse, squares * inverse**2, both * inverse**4
        score = (residuals * (M @ residuals)).sum((1, 2))
        own = squares[:, :, :: residuals.shape[2] + 1].sum(2)
        diagonal = M.diagonal(dim1=1, dim2=2)
        mean = (diagonal * own).sum(1)
        products = (M.square() @ squares * squares).sum((1, 2))
        var = 2 * (products - (diagonal.square() * both[:, :, 0]).sum(1))
        return torch.stack([score, mean, var], 1).tolist(), spanned.sum(1) < n_held

    def _sums(self, left, right, rows):
        """Return the cells with rows (p, m) of pairs, their number (p,), and sums of rows in them.

        Pairs with fewer than m have other cells at the end, whose sums (p, m, k) are zero.
        """
        known = (left >= 0) & (right >= 0) & (rows.weights > 0)
        # Other rows have a cell of their own, behind the grid.
        cell = torch.where(known, left * self.sizes[1] + right, self.n_cells)
        n_pairs, size = len(cell), self.n_cells + 1
        pairs = torch.arange(n_pairs, device=cell.device)[:, None]
        sums = rows.terms.new_zeros(n_pairs * size, rows.terms.shape[1])
        sums.index_add_(0, (pairs * size + cell).ravel(), rows.terms.repeat(n_pairs, 1))
        sums = sums.unflatten(0, (n_pairs, size))[:, :-1]
        held = sums[:, :, 0] > 0
        n_held = held.sum(1)
        cells = held.long().argsort(dim=1, descending=True, stable=True)[:, : n_held.max()]
        return cells, n_held, sums[pairs, cells]


def _smooth(n_bins):
    """Return features (b, k) of bins, whose products are the covariance of a smooth function.

    Directions of small variance are left out. They change a score by 1e-4 of its mean or less.
    """
    at = torch.arange(n_bins, dtype=torch.float64) / (n_bins * DEFAULTS.test_length)
    values, vectors = torch.linalg.eigh(torch.exp(-0.5 * (at[:, None] - at).square()))
    kept = values > _SMALL * values[-1]
    return vectors[:, kept] * values[kept].sqrt()
