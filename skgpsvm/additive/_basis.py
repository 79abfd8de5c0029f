"""The terms of an additive model as columns of rows, and as whitened weights."""

import math
from dataclasses import dataclass, field

import torch

from .._quadrature import gauss_legendre
from ._effects import Effects
from ._processes import Chebyshev, uniform_moments

_ATOMS = 100  # of the measure of a number that has more values
_LENGTH, _PAIR_LENGTH = 0.4, 0.6  # of the unit interval, to start from


@dataclass
class Feature:
    """What is known of a column.

    Attributes
    ----------
    n_levels : int
        0 for a numerical one.
    missing : bool
        Whether numbers were missing: an effect of its own. (Levels that are missing are a level.)
    constant : bool
        Whether it has no effect since the rows do not differ.
    center, scale, power : float
        The numbers are centered, scaled, and transformed by Yeo and Johnson's function.
    low, high : float
        Range of the scaled numbers.
    """

    n_levels: int = 0
    missing: bool = False
    constant: bool = False
    center: float = 0.0
    scale: float = 1.0
    power: float = 1.0
    low: float = 0.0
    high: float = 1.0

    def is_new(self, x):
        """Which numbers are outside the range, or levels unknown, of an array."""
        if self.n_levels:
            return x < 0
        x = (x - self.center) / self.scale
        return (x < self.low) | (x > self.high)

    def unit(self, x):
        """Numbers on the unit interval; outside the range further along the tangents at its ends.

        The transformation itself is bounded on one side, with powers beyond 0 and 2.
        """
        x = (x - self.center) / self.scale
        held = x.clamp(self.low, self.high)
        low, high = yeo_johnson(x.new_tensor([self.low, self.high]), self.power)
        slope = (1 + held.abs()) ** (held.sign() * (self.power - 1))
        return (yeo_johnson(held, self.power) - low + slope * (x - held)) / (high - low)


def yeo_johnson(x, power):
    """The transformation of Yeo and Johnson (2000), elementwise."""
    if power == 1:
        return x
    right, left = x.clamp_min(0), -x.clamp_max(0)
    up = right.log1p() if power == 0 else torch.expm1(power * right.log1p()) / power
    down = left.log1p()
    down = down if power == 2 else torch.expm1((2 - power) * down) / (2 - power)
    return torch.where(x >= 0, up, -down)


@dataclass
class AdditiveBasis:
    """The terms of an additive model: a constant, effects of features, effects of pairs.

    Attributes
    ----------
    features : list of Feature
    terms : list of tuples of ints
        Features of each effect, one or two.
    kernel, pair_kernel : {"rbf", "matern12", "matern32", "matern52"}
    n_inducing, n_inducing_pair : int
        Equally spaced points of an effect, and of each feature of a pair.
    points, pair_points : dict
        Points (m,) of features that have others, on the unit interval.
    tabled : frozenset
        Features whose numbers, in the rows of a fit, are all at its points: their columns are
        indicators of these, of which there are fewer than polynomials.
    shares : bool
        Whether all pairs of a feature share its length scale.
    atoms : dict
        Of numbers in a model without inducing points: values (k,) and weights (k,) of the measure.
    size, pair_size : int
        Number of polynomials of an effect, and of each feature of a pair.
    constant : float
        Prior variance of the constant.
    means, seconds : list of ndarray
        Moments of each feature's polynomials, (size,), (size, size), or indicators of levels.
    """

    features: list
    terms: list
    kernel: str
    pair_kernel: str
    n_inducing: int
    n_inducing_pair: int
    points: dict
    pair_points: dict
    size: int
    pair_size: int
    constant: float
    means: list
    seconds: list
    tabled: frozenset = frozenset()
    shares: bool = False
    atoms: dict = field(default_factory=dict)

    def __post_init__(self):
        numbers = [term for term in self.terms if len(term) == 1 and self.is_number(term[0])]
        # Features that have a length scale, in the order of theta["length"].
        self.axes = [j for (j,) in numbers]
        in_pairs = [j for term in self.pairs for j in term if self.is_number(j)]
        self.pair_axes = sorted(set(in_pairs)) if self.shares else in_pairs
        places = map(self.pair_axes.index, in_pairs) if self.shares else range(len(in_pairs))
        self.pair_places = list(places)  # of each number of each pair among `pair_axes`
        self.absent = [j for j in self.axes if self.features[j].missing]

    def is_number(self, j):
        return not self.features[j].n_levels

    @property
    def pairs(self):
        """The terms of two features."""
        return [term for term in self.terms if len(term) == 2]

    @property
    def n_weights(self):
        """Of the terms of one feature: inducing points, or levels."""
        points = {j: len(own) for j, own in self.points.items()}
        alone = [term[0] for term in self.terms if len(term) == 1]
        return sum(self.features[j].n_levels or points.get(j, self.n_inducing) for j in alone)

    # The features of rows

    def unit(self, X):
        """Columns of X (b, d): numbers on the unit interval, codes as they are, NaN stays."""
        parts = zip(self.features, X.unbind(1), strict=True)
        return torch.stack([x if f.n_levels else f.unit(x) for f, x in parts], 1)

    def columns(self, polynomials, u, j):
        """Of one feature: polynomials of numbers held in the range, or indicators of levels."""
        if not self.is_number(j):
            levels = torch.arange(self.features[j].n_levels, device=u.device)
            return (u[:, j, None] == levels).to(u)
        known = ~u[:, j].isnan()
        return polynomials(u[:, j].nan_to_num(0.5).clamp(0, 1)) * known[:, None]

    def _indicators(self, u, j):
        """Of a tabled feature: which of its points a number is at."""
        points = torch.as_tensor(self.points[j]).to(u)
        nearest = (u[:, j, None] - points).abs().nan_to_num(0.0).argmin(1)
        known = ~u[:, j].isnan()
        return torch.nn.functional.one_hot(nearest, len(points)).to(u) * known[:, None]

    def kept(self, i, j, device):
        """Which products of two features' columns a pair has: polynomials of limited degree."""
        sizes = [self.features[k].n_levels or self.pair_size for k in (i, j)]
        a, b = (torch.arange(size, device=device) for size in sizes)
        if self.is_number(i) and self.is_number(j):
            return torch.nonzero((a[:, None] + b < self.pair_size).ravel())[:, 0]
        return torch.arange(sizes[0] * sizes[1], device=device)

    def __call__(self, X):
        """Columns of rows X (b, d) that whitened features are linear in, a list: one, terms."""
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
                columns = [self.columns(polynomials, u, j) for j in term]
                left, right = (
                    part[:, : self.pair_size] if self.is_number(j) else part
                    for part, j in zip(columns, term, strict=True)
                )
                product = (left[:, :, None] * right[:, None]).flatten(1)
                found.append(product[:, self.kept(*term, u.device)])
        return found

    # What hyperparameters make of them

    def at(self, theta):
        """The `Effects` at hyperparameters: logarithms of ``length`` and ``variance``."""
        return Effects(self, theta)

    def start(self):
        """Hyperparameters to start from, logarithms by what they are of.

        A length scale is of a term and the place of an axis in it, or of a feature in all its
        pairs; a variance of a term, or of the absence of a feature.
        """
        places = [(pair, k) for pair in self.pairs for k, j in enumerate(pair) if self.is_number(j)]
        in_pairs = [("pairs", j) for j in self.pair_axes] if self.shares else places
        lengths = dict.fromkeys([((j,), 0) for j in self.axes], math.log(_LENGTH))
        lengths |= dict.fromkeys(in_pairs, math.log(_PAIR_LENGTH))
        variances = {term: math.log(0.5) if len(term) == 2 else 0.0 for term in self.terms}
        variances |= dict.fromkeys(self.absent, math.log(0.5))
        return {"length": lengths, "variance": variances}

    def measure(self, rows, empirical):
        """Learn the means and second moments of the columns of each feature from all rows.

        Parameters
        ----------
        rows : Rows
        empirical : bool
            Else numbers are uniform on the unit interval.
        """
        totals = None
        for index in rows.chunks():
            X, _, weights = rows.take(index)
            u = self.unit(X)
            polynomials = Chebyshev(self.size, u)
            columns = [self.columns(polynomials, u, j) for j in range(u.shape[1])]
            own = [(weights[:, None] * T).T @ T for T in columns]
            totals = own if totals is None else [a + b for a, b in zip(totals, own, strict=True)]
        self.means, self.seconds = [], []
        for feature, total in zip(self.features, rows.sum(*totals), strict=True):
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
        """Learn the measures of numbers as sums of atoms: their values, or quantiles of these.

        Parameters
        ----------
        rows : Rows
        empirical : bool
            Else numbers are uniform on the unit interval.
        """
        X, _, weights = rows.take(slice(None))
        uniform, u = gauss_legendre(_ATOMS, weights), self.unit(X)
        self.atoms = {}
        for j in {*self.axes, *self.pair_axes}:
            own = _atoms(u[:, j], weights) if empirical else uniform
            self.atoms[j] = tuple(part.cpu().numpy() for part in own)


def _atoms(u, weights):
    """Values (k,) of numbers and their weights, merged by quantiles where they are many."""
    u, weights = u[~u.isnan()], weights[~u.isnan()]
    values, place = u.unique(return_inverse=True)  # sorted
    mass = torch.zeros_like(values).index_add(0, place, weights / weights.sum())
    if len(values) > _ATOMS:
        place = ((mass.cumsum(0) - 0.5 * mass) * _ATOMS).long().clamp_max(_ATOMS - 1)
        sums = (
            torch.zeros_like(values[:_ATOMS]).index_add(0, place, x) for x in (mass * values, mass)
        )
        moment, mass = sums
        values, mass = (moment / mass)[mass > 0], mass[mass > 0]
    return values, mass
