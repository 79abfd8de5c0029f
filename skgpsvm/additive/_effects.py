"""The terms of an additive model at hyper-parameters: prior covariances, whitened features."""

import torch

from ._processes import PROFILES, Centred, CentredAtPoints, Chebyshev, Levels


class Prior:
    """Prior covariances of the constant and the terms of an additive basis at hyper-parameters.

    Parameters
    ----------
    basis : AdditiveBasis
    theta : dict of Tensor
        Logarithms of ``length`` and ``variance``.

    Attributes
    ----------
    terms : list of tuples of ints
        Features of each, none of the constant, which is the first.
    variance : Tensor of shape (1 + n_terms,)
    factors : list of lists
        The processes that each is a product of: `Centred` or `Levels`.
    """

    def __init__(self, basis, theta):
        self.basis, self.terms = basis, [(), *basis.terms]
        variances = theta["variance"].exp().split([len(basis.terms), len(basis.absent)])
        self.variance = torch.cat([variances[0].new_tensor([basis.constant]), variances[0]])
        self._absent = [variance.view(1, 1) for variance in variances[1]]
        lengths = theta["length"].exp().split([len(basis.axes), len(basis.pair_axes)])
        mains, pairs = iter(self._mains(lengths[0])), iter(self._pairs(lengths[1]))
        levels = {
            j: Levels(torch.as_tensor(basis.means[j]).to(self.variance))
            for j, feature in enumerate(basis.features)
            if feature.n_levels
        }
        self.factors = [
            [levels.get(j) or next(mains if len(term) == 1 else pairs) for j in term]
            for term in self.terms
        ]

    def _mains(self, lengths):
        return self._centred(self.basis.axes, lengths)

    def _pairs(self, lengths):
        return self._centred(self.basis.pair_axes, lengths)

    def _centred(self, axes, lengths):
        """The process of each axis, computed together."""
        if not axes:
            return []
        means = self._means(axes, self.basis.size, lengths)
        polynomials = Chebyshev(self.basis.size, lengths)
        group = Centred(PROFILES[self.basis.kernel], lengths, polynomials, torch.stack(means))
        return [group[k] for k in range(len(axes))]

    def _means(self, axes, size, like):
        return [torch.as_tensor(self.basis.means[j][:size]).to(like) for j in axes]

    def absent(self, term):
        """Prior variance (1, 1) of the effect of missing numbers; None where there are none."""
        if len(term) == 1 and term[0] in self.basis.absent:
            return self._absent[self.basis.absent.index(term[0])]
        return None

    def at(self, u):
        """Rows (b, d) on the unit interval as each term takes them.

        Returns
        -------
        placed : list of tuples
            Of each term: what its factors say of the rows, and which rows have all its features.
        """
        found = []
        for term, factors in zip(self.terms, self.factors, strict=True):
            known = (~u[:, list(term)].isnan().any(1)).to(u)
            columns = u[:, list(term)].nan_to_num(0.5).unbind(1)
            parts = [factor.at(x) for factor, x in zip(factors, columns, strict=True)]
            found.append((parts, known))
        return found

    def _terms(self, *placed):
        return zip(self.terms, self.factors, self.variance, *placed, strict=True)

    def variances(self, placed):
        """Prior variances (b, 1 + n_terms)."""
        found = []
        for term, factors, variance, (parts, known) in self._terms(placed):
            own = variance * known
            for factor, part in zip(factors, parts, strict=True):
                own = own * factor.variances(part)
            if (absent := self.absent(term)) is not None:
                own = own + absent[0] * (1 - known)
            found.append(own)
        return torch.stack(found, 1)

    def covariances(self, a, b):
        """Prior covariances (b, b') between rows `at` two places, one after the other."""
        for term, factors, variance, (left, known), (right, known_right) in self._terms(a, b):
            cov = variance * torch.outer(known, known_right)
            for factor, *parts in zip(factors, left, right, strict=True):
                cov = cov * factor.between(*parts)
            if (absent := self.absent(term)) is not None:
                cov = cov + absent * torch.outer(1 - known, 1 - known_right)
            yield cov

    def cross(self, u):
        """Prior covariances (b, b) of the sum between rows (b, d) on the unit interval."""
        placed = self.at(u)
        total = sum(self.covariances(placed, placed))
        return total.diagonal_scatter(self.variances(placed).sum(1))  # of unknown levels too


class Effects(Prior):
    """Likewise, with inducing points.

    Attributes
    ----------
    coefs : list of Tensor of shape (r, p)
        Of the constant and each term: whitened features of a row are its columns times these.
    covs : list of Tensor of shape (r, r)
        Prior covariances of the coefficients of the columns.
    """

    def __init__(self, basis, theta):
        super().__init__(basis, theta)
        one = torch.ones_like(self.variance[:1, None])
        self.coefs, self.covs = [], []
        for term, factors, variance in self._terms():
            tabled = len(term) == 1 and term[0] in basis.tabled
            coef, cov = one, one
            for factor in factors:
                part = self._part(tabled, factor)
                coef, cov = (torch.kron(*pair) for pair in zip((coef, cov), part, strict=True))
            if len(term) == 2:
                kept = basis.kept(*term, one.device)
                coef, cov = coef[kept], cov[kept[:, None], kept]
            coef, cov = variance.sqrt() * coef, variance * cov
            if (absent := self.absent(term)) is not None:
                coef, cov = torch.block_diag(coef, absent.sqrt()), torch.block_diag(cov, absent)
            self.coefs.append(coef)
            self.covs.append(cov)

    @staticmethod
    def _part(tabled, factor):
        return (factor.point_coef, factor.prior) if tabled else (factor.coef, factor.cov)

    def _mains(self, lengths):
        basis = self.basis
        return self._at_points(basis.axes, lengths, basis.points, basis.n_inducing, basis.size)

    def _pairs(self, lengths):
        basis = self.basis
        points = basis.pair_points, basis.n_inducing_pair
        return self._at_points(basis.pair_axes, lengths, *points, basis.pair_size)

    def _at_points(self, axes, lengths, points, n_inducing, size):
        """The process of each axis, computed together where they have as many points."""
        equal = torch.linspace(0, 1, n_inducing, dtype=torch.float64)
        points = [torch.as_tensor(points.get(j, equal)).to(lengths) for j in axes]
        means = self._means(axes, size, lengths)
        found, profile = {}, PROFILES[self.basis.kernel]
        for m in {len(own) for own in points}:
            places = [place for place, own in enumerate(points) if len(own) == m]
            Z, mean = (torch.stack([parts[place] for place in places]) for parts in (points, means))
            group = CentredAtPoints(profile, lengths[places], Z, Chebyshev(size, lengths), mean)
            found |= {place: group[k] for k, place in enumerate(places)}
        return [found[place] for place in range(len(axes))]

    def features(self, u):
        """Of rows (b, d) on the unit interval: whitened features and variances of each term.

        Returns
        -------
        features : list of Tensor of shape (b, p)
            Of the constant and each term.
        variances : Tensor of shape (b, 1 + n_terms)
        """
        placed = self.at(u)
        found = []
        for term, factors, variance, (parts, known) in self._terms(placed):
            psi = variance.sqrt() * known[:, None]
            for factor, part in zip(factors, parts, strict=True):
                psi = (psi[:, :, None] * factor.features(part)[:, None]).flatten(1)
            if (absent := self.absent(term)) is not None:
                psi = torch.cat([psi, absent.sqrt() * (1 - known[:, None])], 1)
            found.append(psi)
        return found, self.variances(placed)

    def seconds(self):
        """Second moments (p, p) of the whitened features of each term under the measure.

        Of a basis without `tabled` features, whose columns are others.
        """
        if self.basis.tabled:
            raise ValueError("Moments under the measure are those of polynomials.")
        like, found = self.variance, []
        for term, coef in zip(self.basis.terms, self.coefs[1:], strict=True):
            parts = [torch.as_tensor(self.basis.seconds[j]).to(like) for j in term]
            if len(term) == 2:
                parts = [
                    part[: self.basis.pair_size, : self.basis.pair_size]
                    if self.basis.is_number(j)
                    else part
                    for part, j in zip(parts, term, strict=True)
                ]
                kept = self.basis.kept(*term, like.device)
                moment = torch.kron(*parts)[kept[:, None], kept]
            else:
                (moment,) = parts
            rest = len(coef) - len(moment)  # the effect of missing numbers has no share
            moment = torch.nn.functional.pad(moment, (0, rest, 0, rest))
            found.append(coef.T @ moment @ coef)
        return found
