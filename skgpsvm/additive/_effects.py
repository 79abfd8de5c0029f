"""Prior covariances and whitened features of the terms, at given hyperparameters."""

from abc import ABC, abstractmethod

import torch

from ._defaults import DEFAULTS
from ._fixed_processes import Levels, Line, Steps
from ._processes import (
    PROFILES,
    AtValues,
    CenteredAtPoints,
    Chebyshev,
    equally_spaced,
)


class Prior(ABC):
    """Prior covariances of the constant and the terms of an additive basis at hyperparameters.

    ``theta`` has the logarithms of ``length`` and ``variance``. ``terms`` has the features of each
    term, of which the constant, (), is the first. ``factors`` has the processes whose product each
    term is, `ZeroMeanKernel` or `FixedProcess`, and ``processes`` the feature of each process.
    """

    def __init__(self, basis, theta):
        self.basis, self.terms = basis, [(), *basis.terms]
        variances = theta["variance"].exp().split([len(basis.terms), len(basis.absent)])
        self.variance = torch.cat([variances[0].new_tensor([basis.constant]), variances[0]])
        self._absent = dict(zip(basis.absent, variances[1][:, None, None], strict=True))
        # Features without missing numbers in the fit.
        unseen = [not (f.n_levels or f.missing) for f in basis.features]
        self._unseen = torch.tensor(unseen, device=self.variance.device)
        lengths = theta["length"].exp().split([len(basis.axes), len(basis.pair_axes)])
        mains, pairs = self._mains(lengths[0]), self._pairs(lengths[1])
        # Places of processes among the length scales
        self._places = {process: place for place, process in enumerate([*mains, *pairs])}
        mains, pairs = iter(mains), iter([pairs[place] for place in basis.pair_places])
        levels, lines = {}, {}
        for j, feature in enumerate(basis.features):
            if feature.n_levels:
                kind = Steps if feature.edges else Levels
                levels[j] = kind(self._tensor(basis.means[j]))
            elif feature.linear:
                lines[j] = Line(self._tensor(basis.means[j]), self._tensor(basis.seconds[j]))
        self.factors = [
            [fixed.get(j) or next(others) for j in term]
            for term in self.terms
            for fixed, others in [(levels | lines, mains) if len(term) == 1 else (levels, pairs)]
        ]
        self.processes = {
            factor: j
            for term, factors in zip(self.terms, self.factors, strict=True)
            for j, factor in zip(term, factors, strict=True)
        }

    def _tensor(self, array):
        return torch.as_tensor(array).to(self.variance)

    @property
    def whole(self):
        """This prior; that of `InformedEffects` has more features."""
        return self

    def log_spreads(self):
        """Return the logarithms (n_terms,) of the terms' mean variances over their measures.

        The mean is that of the product of the processes with a length scale, without the variance
        of the term. Also returns the derivatives (n_terms, n_lengths) in the logarithms of the
        length scales.
        """
        has = torch.zeros(len(self.basis.terms), len(self._places))
        if not self._places:
            return has.sum(1).to(self.variance), has.to(self.variance)
        for place, factors in enumerate(self.factors[1:]):
            has[place, [self._places[own] for own in factors if own in self._places]] = 1
        has = has.to(self.variance)
        spread, slope = (
            torch.stack([getattr(process, name) for process in self._places])
            for name in ("log_spread", "spread_slope")
        )
        return has @ spread, has * slope

    @abstractmethod
    def _mains(self, lengths):
        """Return the process of each of the basis's ``axes``, given their length scales."""

    @abstractmethod
    def _pairs(self, lengths):
        """Return the process of each of the basis's ``pair_axes``, given their length scales."""

    def absent(self, term):
        """Return the prior variance (1, 1) of the effect of missing numbers, or None."""
        return self._absent.get(term[0]) if len(term) == 1 else None

    def at(self, u):
        """Convert rows (b, d) on the unit interval to the form that other methods take.

        It is a dict of what the ``at`` of each process returned, and a Tensor (b, d) that is 1
        where a number is missing.
        """
        places = {process: process.at(u[:, j]) for process, j in self.processes.items()}
        return places, u.isnan().to(u)

    def parts(self):
        """Return each term with its factors and its variance, the constant first."""
        return list(zip(self.terms, self.factors, self.variance, strict=True))

    def variances(self, at):
        """Return prior variances (b, 1 + n_terms).

        A missing number of a feature that had none in the fit has the variance before centering.
        """
        places, missing = at
        unknown, found = missing * self._unseen, []
        for term, factors, variance in self.parts():
            own = variance.expand(len(missing))
            for j, factor in zip(term, factors, strict=True):
                own = own * (factor.variances(places[factor]) + unknown[:, j])
            if (absent := self.absent(term)) is not None:
                own = own + absent[0] * missing[:, term[0]]
            found.append(own)
        return torch.stack(found, 1)

    def covariances(self, a, b, places=None):
        """Yield prior covariances (b, b') of each term between rows in the form of `at`.

        ``places`` selects terms; the constant is term 0.
        """
        parts = self.parts()
        for term, factors, variance in parts if places is None else [parts[k] for k in places]:
            cov = variance.expand(len(a[1]), len(b[1]))
            for factor in factors:
                cov = cov * factor.between(a[0][factor], b[0][factor])
            if (absent := self.absent(term)) is not None:
                cov = cov + absent * torch.outer(a[1][:, term[0]], b[1][:, term[0]])
            yield cov

    def cross(self, u):
        """Return prior covariances (b, b) of the sum between rows (b, d) on the unit interval."""
        at = self.at(u)
        total = sum(self.covariances(at, at))
        return total.diagonal_scatter(self.variances(at).sum(1))  # unknown levels included


class Effects(Prior):
    """Prior and whitened features of the terms with inducing points.

    The columns of a row times ``coefs``, a matrix (r, p) for the constant and each term, are its
    whitened features. ``covs`` are the prior covariances (r, r) of the columns' coefficients.
    """

    def __init__(self, basis, theta):
        self._groups = []
        super().__init__(basis, theta)
        one = torch.ones_like(self.variance[:1, None])
        self.coefs, self.covs = [], []
        for term, factors, variance in self.parts():
            parts = [(factor.coef, factor.cov) for factor in factors] or [(one, one)]
            coef, cov = self._product(term, parts, variance)
            if (absent := self.absent(term)) is not None:
                coef, cov = torch.block_diag(coef, absent.sqrt()), torch.block_diag(cov, absent)
            self.coefs.append(coef)
            self.covs.append(cov)

    def _product(self, term, parts, variance):
        """Return coefficients and covariance of a term, given those of its factors."""
        coef, cov = parts[0]
        if len(term) == 2:
            coef, cov = torch.kron(coef, parts[1][0]), torch.kron(cov, parts[1][1])
            kept = self.basis.kept(*term, coef.device)
            coef, cov = coef[kept], cov[kept[:, None], kept]
        return variance.sqrt() * coef, variance * cov

    @property
    def sizes(self):
        """Numbers of hyperparameters, by name."""
        n_variances = len(self.basis.terms) + len(self.basis.absent)
        return {"length": len(self._places), "variance": n_variances}

    def derivatives(self):
        """Yield derivatives of a term's ``coefs`` and ``covs`` in each logarithm they depend on.

        Before these two come "length" or "variance", the place of the hyperparameter among those of
        this name, and the place of the term; the constant is term 0.
        """
        derivatives = {}
        for group, members in self._groups:
            derivatives |= zip(members, zip(*group.derivatives(), strict=True), strict=True)
        for place, (term, factors, variance) in enumerate(self.parts()):
            coef, cov = self.coefs[place], self.covs[place]
            has_absent = self.absent(term) is not None
            pad = (0, int(has_absent)) * 2  # the row and the column of missing numbers
            for k, factor in enumerate(factors):
                if factor in self._places:
                    parts = [(own.coef, own.cov) for own in factors]
                    parts[k] = derivatives[factor]
                    own = self._product(term, parts, variance)
                    own = (torch.nn.functional.pad(part, pad) for part in own)
                    yield "length", self._places[factor], place, *own
            if has_absent:
                of_missing = torch.zeros_like(coef), torch.zeros_like(cov)
                for own, whole in zip(of_missing, (coef, cov), strict=True):
                    own[-1, -1] = whole[-1, -1]
                index = len(self.basis.terms) + self.basis.absent.index(term[0])
                yield "variance", index, place, 0.5 * of_missing[0], of_missing[1]
                coef, cov = coef - of_missing[0], cov - of_missing[1]
            if term:
                yield "variance", place - 1, place, 0.5 * coef, cov

    def informed(self, sums, noise):
        """Return the `InformedEffects` of `Sums`, given the logarithm of the noise variance."""
        directions = []
        for coef, gram in zip(self.coefs, sums.own_grams(self), strict=True):
            values, vectors = torch.linalg.eigh(coef.T @ gram @ coef / noise.exp())
            # Relative to a small largest value, so that an effect of small variance can grow again.
            least = DEFAULTS.least_information * values[-1:].clamp_max(1)
            directions.append(vectors[:, values > least])
        return InformedEffects(self, directions)

    def _mains(self, lengths):
        basis = self.basis
        points = basis.points, basis.n_inducing, basis.size
        return self._at_points(basis.kernel, basis.axes, lengths, *points)

    def _pairs(self, lengths):
        basis = self.basis
        points = basis.pair_points, basis.n_inducing_pair, basis.pair_size
        return self._at_points(basis.pair_kernel, basis.pair_axes, lengths, *points)

    def _at_points(self, kernel, axes, lengths, points, n_inducing, size):
        """Return the process of each axis; those of one kind and size are computed together."""
        basis, groups = self.basis, {}
        for place, j in enumerate(axes):
            is_cyclic = basis.features[j].period > 0
            own = torch.as_tensor(points.get(j, equally_spaced(n_inducing, is_cyclic)))
            tabled, shares = j in basis.tabled and j in points, basis.tabled.get(j)
            by_values = tabled and shares is not None
            measure = torch.as_tensor(shares if by_values else basis.means[j][:size])
            kind = tabled, by_values, len(own)
            groups.setdefault(kind, []).append((place, own, measure))
        found, polynomials = {}, Chebyshev(size, lengths)
        for (tabled, by_values, _), members in groups.items():
            places, *parts = zip(*members, strict=True)
            Z, measure = (torch.stack(part).to(lengths) for part in parts)
            cyclic = basis.cyclic([axes[place] for place in places], Z.device)
            given = PROFILES[kernel], lengths[list(places)], Z
            if by_values:
                group = AtValues(*given, Z, measure, cyclic)
            elif tabled:
                group = AtValues(*given, *polynomials.measure(measure), cyclic)
            else:
                group = CenteredAtPoints(*given, polynomials, measure, cyclic)
            members = group.unbind()
            self._groups.append((group, members))
            found |= zip(places, members, strict=True)
        return [found[place] for place in range(len(axes))]

    def features(self, u):
        """Return whitened features and prior variances of rows (b, d) on the unit interval.

        The features are a list of Tensors (b, p) for the constant and each term, and the variances
        a Tensor (b, 1 + n_terms).
        """
        at = places, missing = self.at(u)
        constrained = {self.factors[1 + place][0] for place in self.basis.constrained}
        found = []
        for term, factors, variance in self.parts():
            psi = variance.sqrt().expand(len(u), 1)
            for factor in factors:
                if factor in constrained:
                    own = self._interpolated(u, term[0], factor)
                else:
                    own = factor.features(places[factor])
                psi = (psi[:, :, None] * own[:, None]).flatten(1)
            if (absent := self.absent(term)) is not None:
                psi = torch.cat([psi, absent.sqrt() * missing[:, term]], 1)
            found.append(psi)
        variances = self.variances(at)
        for place in self.basis.constrained:  # interpolation may exceed the process's own variance
            own = variances[:, 1 + place]
            variances[:, 1 + place] = torch.maximum(own, found[1 + place].square().sum(1))
        return found, variances

    def cross(self, u):
        at, (features, variances) = self.at(u), self.features(u)
        parts = list(self.covariances(at, at))
        for place in self.basis.constrained:  # the values of the effect at its points determine it
            parts[1 + place] = features[1 + place] @ features[1 + place].T
        return sum(parts).diagonal_scatter(variances.sum(1))

    def knots(self, j, factor):
        """Return points (m,) of a constrained feature, and whitened features (m, p) there.

        Between the points, its effect is linear in the numbers before any transformation, so that
        convexity is that in the user's numbers.
        """
        equal = equally_spaced(self.basis.n_inducing)
        points = self._tensor(self.basis.points.get(j, equal))
        return points, factor.features(factor.at(points))

    def at_knots(self, place):
        """Return the `knots` of a constrained term, whose features have its variance."""
        [j], [factor] = self.terms[1 + place], self.factors[1 + place]
        points, features = self.knots(j, factor)
        return points, self.variance[1 + place].sqrt() * features

    def _interpolated(self, u, j, factor):
        """Return the features (b, p) of a constrained feature; zero where a number is missing."""
        (points, features), numbers = self.knots(j, factor), self.basis.features[j].standardized
        inside = u[:, j].nan_to_num(0.5, posinf=0.5).clamp(points[0], points[-1])
        right = torch.searchsorted(points, inside).clamp(1, len(points) - 1)
        low, high = numbers(points[right - 1]), numbers(points[right])
        share = ((numbers(inside) - low) / (high - low)).clamp(0, 1)[:, None]
        known = u[:, j].isfinite()[:, None]
        return known * torch.lerp(features[right - 1], features[right], share)

    def constraints(self):
        """Return products (k, p) with the weights that are not negative if constraints hold."""
        sizes = [coef.shape[1] for coef in self.coefs]
        found = [self.variance.new_zeros(0, sum(sizes))]
        for place, feature in self.basis.constrained.items():
            points, features = self.at_knots(place)
            slopes = features.diff(dim=0) / feature.standardized(points).diff()[:, None]
            own = torch.cat([feature.monotonic * slopes, feature.convex * slopes.diff(dim=0)])
            own = own[own.any(1)]
            start = sum(sizes[: 1 + place])
            found.append(own.new_zeros(len(own), sum(sizes)))
            found[-1][:, start : start + own.shape[1]] = own
        return torch.cat(found)

    def seconds(self):
        """Return second moments (p, p) of each term's whitened features under the measure."""
        found = []
        for term, coef in zip(self.basis.terms, self.coefs[1:], strict=True):
            moment, *right = (self._second(j, len(term) == 2) for j in term)
            if right:
                kept = self.basis.kept(*term, moment.device)
                moment = torch.kron(moment, *right)[kept[:, None], kept]
            rest = len(coef) - len(moment)  # the effect of missing numbers has no share
            moment = torch.nn.functional.pad(moment, (0, rest, 0, rest))
            found.append(coef.T @ moment @ coef)
        return found

    def _second(self, j, in_pair):
        """Return the second moments of the columns of a feature, alone or in pairs."""
        basis = self.basis
        if j in (tabled := basis.tabled_in_pairs if in_pair else basis.tabled):
            return self._tensor(tabled[j]).diag()
        size = basis.pair_size if in_pair and basis.is_number(j) else None
        return self._tensor(basis.seconds[j])[:size, :size]


class InformedEffects:
    """`Effects` with only those features of a term that the rows tell of, to learn with.

    Features are rotated within a term. Those along the other directions of the prior have a
    posterior that is next to the prior, and no effect on the bound, but products of features take a
    multiple of the time with them. ``directions`` (p, q) are orthonormal columns, for the constant
    and each term of the ``whole`` `Effects`.
    """

    def __init__(self, whole, directions):
        self.whole, self.directions = whole, directions
        self.covs, self.sizes = whole.covs, whole.sizes
        parts = zip(whole.coefs, directions, strict=True)
        self.coefs = [coef @ own for coef, own in parts]

    def derivatives(self):
        """Yield derivatives as `Effects.derivatives` does, of these ``coefs``."""
        for name, index, place, coef, cov in self.whole.derivatives():
            yield name, index, place, coef @ self.directions[place], cov
