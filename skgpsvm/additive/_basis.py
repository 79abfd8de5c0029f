"""Terms of an additive model: their columns at rows, and their measures."""

import math
from dataclasses import dataclass, field

import torch

from .._quadrature import gauss_legendre
from .._transfers import to_device
from ._defaults import DEFAULTS
from ._effects import Effects
from ._processes import Chebyshev, uniform_moments

_FARTHEST = 1e300  # numbers on the unit interval; sentinels alone are farther


@dataclass
class Feature:
    """Description of a column, or of a point mass or the steps of a column."""

    n_levels: int = 0  # of a category; 0 for a number
    # Whether numbers were missing, which then have an effect of their own. A missing category is a
    # level.
    missing: bool = False
    constant: bool = False  # whether it has no effect, for example since the rows do not differ
    # Numbers are centered, scaled, and transformed by the function of Yeo and Johnson.
    center: float = 0.0
    scale: float = 1.0
    power: float = 1.0
    low: float = 0.0  # range of the scaled numbers
    high: float = 1.0
    linear: bool = False  # whether the effect is linear; in pairs it is smooth
    period: float = 0.0  # of a cyclic feature, in scaled numbers; else 0
    monotonic: int = 0  # 1 if the effect does not decrease, -1 if it does not increase
    convex: int = 0  # 1 if the effect is convex, -1 if it is concave
    sentinels: tuple = ()  # numbers far from all others, at which the smooth effect is zero
    # Of a point mass, whose levels are 0 for other numbers of the column, and 1 for the value
    column: int | None = None
    value: float = 0.0
    edges: tuple = ()  # of steps of ``column``: levels are bins between them on the unit interval

    @property
    def is_mass(self):
        """True if the feature is a point mass of a column."""
        return self.column is not None and not self.edges

    @property
    def constrained(self):
        """Whether the effect must be monotone, convex or concave.

        Numbers outside the range then count as its ends.
        """
        return self.monotonic != 0 or self.convex != 0

    def is_new(self, x):
        """Return a mask of the numbers of an array outside the range, or of unknown levels."""
        if self.n_levels:
            return x < 0
        new = (x - self.center) / self.scale
        new = abs(new) == math.inf if self.period else (new < self.low) | (new > self.high)
        for value in self.sentinels:
            new = new & (x != value)
        return new

    def unit(self, x):
        """Return numbers scaled to the unit interval, extrapolated linearly outside the range.

        The transformation itself is bounded on one side for powers below 0 or above 2. Cyclic
        numbers are scaled by their period. Sentinels become infinite.
        """
        found = self._scaled((x - self.center) / self.scale).clamp(-_FARTHEST, _FARTHEST)
        for value in self.sentinels:
            found = found.masked_fill(x == value, math.inf)
        return found

    def codes(self, u):
        """Return the codes of the bins of scaled numbers (n,); -1 where one is missing."""
        bins = torch.bucketize(u, u.new_tensor(self.edges))
        return torch.where(u.isfinite(), bins, -1)

    def _scaled(self, x):
        if self.period:
            return ((x - self.low) / self.period) % 1
        held = x.clamp(self.low, self.high)
        # Scalars on the CPU enter operations on a device without a wait.
        low, high = yeo_johnson(torch.tensor([self.low, self.high], dtype=x.dtype), self.power)
        x = held if self.constrained else x
        slope = (1 + held.abs()) ** (held.sign() * (self.power - 1))
        return (yeo_johnson(held, self.power) - low + slope * (x - held)) / (high - low)

    def inverse(self, u):
        """Return the numbers at points u of the unit interval, Tensors (m,)."""
        return self.center + self.scale * self.standardized(u)

    def standardized(self, u):
        """Return the centered and scaled numbers, not transformed, at points u, Tensors (m,)."""
        if self.period:
            return self.low + u * self.period
        low, high = yeo_johnson(u.new_tensor([self.low, self.high]), self.power)
        return _inverse_yeo_johnson(low + u * (high - low), self.power).clamp(self.low, self.high)


def yeo_johnson(x, power):
    """Return the transformation of Yeo and Johnson (2000), elementwise."""
    if power == 1:
        return x
    right, left = x.clamp_min(0), -x.clamp_max(0)
    up = right.log1p() if power == 0 else torch.expm1(power * right.log1p()) / power
    down = left.log1p()
    down = down if power == 2 else torch.expm1((2 - power) * down) / (2 - power)
    return torch.where(x >= 0, up, -down)


def _inverse_yeo_johnson(x, power):
    """Return the numbers whose transforms are x, elementwise."""

    def inverse(x, power):
        return torch.expm1(x if power == 0 else torch.log1p(power * x) / power)

    return torch.where(x >= 0, inverse(x.clamp_min(0), power), -inverse(-x.clamp_max(0), 2 - power))


@dataclass
class AdditiveBasis:
    """Terms of an additive model: a constant, effects of features, effects of pairs."""

    features: list  # `Feature` of each column, followed by those of point masses and of steps
    terms: list  # features of each effect, a tuple of one or two
    kernel: str
    pair_kernel: str
    n_inducing: int  # equally spaced inducing points of an effect
    n_inducing_pair: int  # the same of each feature of a pair
    # Inducing points (m,) on the unit interval, by feature, where they are not equally spaced
    points: dict
    pair_points: dict
    size: int  # polynomials of an effect
    pair_size: int  # polynomials of each feature of a pair
    constant: float  # prior variance of the constant
    # First and second moments of each feature's polynomials, (size,) and (size, size), or of its
    # indicators of levels
    means: list
    seconds: list
    # Weights (m,) of the values in the measure, or None if it is uniform, by feature with an
    # inducing point at every value in the rows of a fit, and fewer of them than polynomials. Its
    # columns are indicators of the points, in pairs too if these have the points.
    tabled: dict = field(default_factory=dict)
    shares: bool = False  # whether all pairs of a feature share one length scale for it
    # Values (k,) and weights (k,) of the measures of numbers, in a model without inducing points
    atoms: dict = field(default_factory=dict)

    def __post_init__(self):
        numbers = [term for term in self.terms if len(term) == 1 and self.is_number(term[0])]
        # Features that have a length scale, in the order of theta["length"].
        self.axes = [j for (j,) in numbers if not self.features[j].linear]
        in_pairs = [j for term in self.pairs for j in term if self.is_number(j)]
        self.pair_axes = sorted(set(in_pairs)) if self.shares else in_pairs
        places = map(self.pair_axes.index, in_pairs) if self.shares else range(len(in_pairs))
        self.pair_places = list(places)  # of each number of each pair among `pair_axes`
        self.absent = [j for (j,) in numbers if self.features[j].missing]

    def is_number(self, j):
        """Return whether a feature is numerical."""
        return not self.features[j].n_levels

    def cyclic(self, axes, device):
        """Return which of some features are cyclic, a Tensor (k,), or None if none is."""
        found = [self.features[j].period > 0 for j in axes]
        return torch.tensor(found, device=device) if any(found) else None

    @property
    def pairs(self):
        """Terms of two features."""
        return [term for term in self.terms if len(term) == 2]

    @property
    def n_weights(self):
        """Total number of inducing points, or levels, of the terms of one feature."""
        points = {j: len(own) for j, own in self.points.items()}
        points |= {j: 1 for j, feature in enumerate(self.features) if feature.linear}
        alone = [term[0] for term in self.terms if len(term) == 1]
        return sum(self.features[j].n_levels or points.get(j, self.n_inducing) for j in alone)

    # Columns of rows

    def unit(self, X):
        """Return X (b, d) with numbers scaled to the unit interval; codes and NaN are unchanged."""
        columns = X.unbind(1)
        parts = zip(self.features, columns, strict=False)  # others have no column of their own
        found = [x if f.n_levels else f.unit(x) for f, x in parts]
        for f in self.features[len(columns) :]:
            own = f.codes(found[f.column]) if f.edges else columns[f.column] == f.value
            found.append(own.to(X))
        return torch.stack(found, 1)

    def in_columns(self, term):
        """Return the columns of X of a term."""
        columns = (self.features[j].column for j in term)
        return tuple(j if own is None else own for j, own in zip(term, columns, strict=True))

    @property
    def constrained(self):
        """Features whose effect is monotone, convex or concave, by the place of its term, a dict.

        They have no pairs.
        """
        first = {place: self.features[term[0]] for place, term in enumerate(self.terms)}
        return {place: feature for place, feature in first.items() if feature.constrained}

    def columns(self, polynomials, u, j):
        """Return one feature's polynomials, of numbers clipped to the range, or indicators."""
        if not self.is_number(j):
            levels = torch.arange(self.features[j].n_levels, device=u.device)
            return (u[:, j, None] == levels).to(u)
        known = u[:, j].isfinite()
        return polynomials(u[:, j].nan_to_num(0.5).clamp(0, 1)) * known[:, None]

    def _indicators(self, u, j):
        """Return indicators of the points of a tabled feature."""
        points = torch.as_tensor(self.points[j]).to(u)
        nearest = (u[:, j, None] - points).abs().nan_to_num(0.0).argmin(1)
        known = u[:, j].isfinite()
        return torch.nn.functional.one_hot(nearest, len(points)).to(u) * known[:, None]

    @property
    def tabled_in_pairs(self):
        """Those of the `tabled` features whose columns of a pair are indicators too."""
        return {j: own for j, own in self.tabled.items() if j in self.pair_points}

    def _columns_in_pairs(self, polynomials, u, j):
        if j in self.tabled_in_pairs:
            return self._indicators(u, j)
        columns = self.columns(polynomials, u, j)
        return columns[:, : self.pair_size] if self.is_number(j) else columns

    def kept(self, i, j, device):
        """Return indices of the products of two features' columns that a pair has.

        Products of polynomials have a total degree below ``pair_size``.
        """
        tabled = {k: len(self.points[k]) for k in self.tabled_in_pairs}
        sizes = [self.features[k].n_levels or tabled.get(k) for k in (i, j)]
        a, b = (torch.arange(size or self.pair_size) for size in sizes)
        if any(sizes):
            return torch.arange(len(a) * len(b), device=device)
        return to_device(torch.nonzero((a[:, None] + b < self.pair_size).ravel())[:, 0], device)

    def __call__(self, X):
        """Return the columns of rows X (b, d), a list: of the constant, and of each term.

        Whitened features are linear in them.
        """
        u = self.unit(X)
        polynomials, found = Chebyshev(self.size, u), [u.new_ones(len(u), 1)]
        for term in self.terms:
            if len(term) == 1:
                (j,) = term
                tabled = j in self.tabled
                columns = [self._indicators(u, j) if tabled else self.columns(polynomials, u, j)]
                if j in self.absent:
                    columns.append(u[:, j].isnan().to(u)[:, None])
                found.append(torch.cat(columns, 1))
            else:
                left, right = (self._columns_in_pairs(polynomials, u, j) for j in term)
                product = (left[:, :, None] * right[:, None]).flatten(1)
                found.append(product[:, self.kept(*term, u.device)])
        return found

    def n_columns(self, rows):
        """Return the number of columns of the rows of a `WeightedDataset`."""
        return sum(part.shape[1] for part in self(rows.take(slice(0))[0]))

    # Hyperparameters and measures

    def at(self, theta):
        """Return the `Effects` at hyperparameters: logarithms of ``length`` and ``variance``."""
        return Effects(self, theta)

    def start(self):
        """Return initial hyperparameters: dicts of logarithms for ``length`` and ``variance``.

        The key of a length scale is (term, place in the term), or ("pairs", feature) if pairs
        share it. The key of a variance is a term, or a feature for its missing numbers.
        """
        places = [(pair, k) for pair in self.pairs for k, j in enumerate(pair) if self.is_number(j)]
        in_pairs = [("pairs", j) for j in self.pair_axes] if self.shares else places
        lengths = dict.fromkeys([((j,), 0) for j in self.axes], math.log(DEFAULTS.length))
        lengths |= dict.fromkeys(in_pairs, math.log(DEFAULTS.pair_length))
        variances = {term: math.log(0.5) if len(term) == 2 else 0.0 for term in self.terms}
        variances |= dict.fromkeys(self.absent, math.log(0.5))
        return {"length": lengths, "variance": variances}

    def measure(self, rows, empirical):
        """Compute the means and second moments of each feature's columns from all rows.

        Unless the measure is ``empirical``, numbers are uniform on the unit interval.
        """
        totals = None
        for index in rows.chunks():
            X, _, weights = rows.take(index)
            u = self.unit(X)
            polynomials = Chebyshev(self.size, u)
            columns = (self.columns(polynomials, u, j) for j in range(u.shape[1]))
            own = [(weights[:, None] * T).T @ T for T in columns]
            own += [weights @ self._indicators(u, j) for j in self.tabled]
            totals = own if totals is None else [a + b for a, b in zip(totals, own, strict=True)]
        totals = rows.sum(*totals)
        totals, tables = totals[: len(self.features)], totals[len(self.features) :]
        self.tabled = {
            j: (own / own.sum()).cpu().numpy() if empirical else None
            for j, own in zip(self.tabled, tables, strict=True)
        }
        self.means, self.seconds = [], []
        for feature, total in zip(self.features, totals, strict=True):
            if feature.n_levels:
                share = total.diagonal() / total.trace()
                moments = share, torch.diag(share)
            elif empirical and not feature.constant:
                moments = total[0] / total[0, 0], total / total[0, 0]
            else:
                moments = uniform_moments(self.size)
            self.means.append(moments[0].cpu().numpy())
            self.seconds.append(moments[1].cpu().numpy())

    def measure_by_atoms(self, rows, empirical):
        """Compute the measures of numbers as sums of atoms: values, or means of quantile bins.

        Unless the measure is ``empirical``, numbers are uniform on the unit interval.
        """
        X, _, weights = rows.take(slice(None))
        uniform, u = gauss_legendre(DEFAULTS.atoms, weights), self.unit(X)
        self.atoms = {}
        for j in {*self.axes, *self.pair_axes}:
            own = _atoms(u[:, j], weights) if empirical else uniform
            self.atoms[j] = tuple(part.cpu().numpy() for part in own)


def _atoms(u, weights):
    """Return values (k,) of numbers and their weights; many values are merged by quantiles."""
    u, weights = u[u.isfinite()], weights[u.isfinite()]
    values, place = u.unique(return_inverse=True)  # sorted
    mass = torch.zeros_like(values).index_add(0, place, weights / weights.sum())
    most = DEFAULTS.atoms
    if len(values) > most:
        place = ((mass.cumsum(0) - 0.5 * mass) * most).long().clamp_max(most - 1)
        moment, mass = (
            torch.zeros_like(values[:most]).index_add(0, place, x) for x in (mass * values, mass)
        )
        values, mass = (moment / mass)[mass > 0], mass[mass > 0]
    return values, mass
