"""Unbiased estimates of the evidence bound from some rows and some functions of the bases."""

from dataclasses import dataclass

import torch


@dataclass
class Draw:
    """Some functions of the bases, drawn at random.

    Attributes
    ----------
    units : Tensor of shape (u,)
        Which, as `MeanBases.sampled` takes them.
    coordinates : Tensor of shape (k,)
        The same, as indices of coefficients.
    scale : Tensor of shape (k,)
        Inverse of the probability that each is drawn.
    values : Tensor of shape (b, k)
        At the rows of the minibatch.
    support : Tensor of shape (p, k)
        At the support rows.
    """

    units: torch.Tensor
    coordinates: torch.Tensor
    scale: torch.Tensor
    values: torch.Tensor
    support: torch.Tensor

    def sums(self, coef):
        """Estimates with coefficients (q, M), at the rows (b, q) and at the support (p, q)."""
        part = self.scale * coef[:, self.coordinates]
        return self.values @ part.T.to(self.values), self.support @ part.T.to(self.support)


def draw(bases, n_units, X, support, generator):
    """One unit of each of ``n_units`` strata of nearly equal length, none twice."""
    edges = torch.linspace(0, bases.n_units, n_units + 1, dtype=torch.float64).long()
    lengths = edges.diff()
    uniform = torch.rand(n_units, dtype=torch.float64, generator=generator)
    units = (edges[:-1] + (uniform * lengths).long()).to(X.device)
    coordinates, n_exact = bases.coordinates(units)
    copies = (len(coordinates) - n_exact) // n_units
    scale = torch.cat([lengths.repeat(copies), lengths.new_ones(n_exact)]).to(X.device).double()
    values = bases.sampled(torch.cat([X, support]), units).split([len(X), len(support)])
    return Draw(units, coordinates, scale, *values)


def of_means(bases, one, other, coef, linear, precision, *, symmetric=True):
    r"""Estimate of :math:`\mathcal L_\mu` (nats, twice negative) from independent draws.

    Parameters
    ----------
    bases : MeanBases
    one, other : Draw
    coef : Tensor of shape (c, M)
    linear, precision : Tensor of shape (b, c)
        Of the sites of the minibatch, times what each row stands for.
    symmetric : bool
        Whether the linear term is split between the draws, or the first alone has it, as in print.

    Notes
    -----
    Source: Evans and Nair, Theorem 1; its specification, 4.1 and 4.3.
    """
    mine, (theirs, _) = one.sums(coef)[0], other.sums(coef)
    about = mine + theirs if symmetric else 2 * mine
    return (precision * mine * theirs - linear * about).sum() + of_prior(bases, one, other, coef)


def of_prior(bases, one, other, coef):
    """Estimate of the squared norms in S, summed over the rows of coef (q, M)."""
    if bases.independent:
        halves = (
            (d.scale * bases.prior_diag(d.coordinates) * coef[:, d.coordinates].square()).sum()
            for d in (one, other)
        )
        return 0.5 * sum(halves)
    left, right = (d.scale * coef[:, d.coordinates] for d in (one, other))
    return ((left @ bases.prior(one.coordinates, other.coordinates)) * right).sum()


def of_covariance(bases, one, other, columns, diag, precision):
    r"""Estimate of :math:`\mathcal L_\Sigma` of one latent with a chevron-shaped factor.

    Its dense columns are all there; of the others, those drawn.

    Parameters
    ----------
    bases : MeanBases
    one, other : Draw
    columns : Tensor of shape (k, M)
    diag : Tensor of shape (M,)
    precision : Tensor of shape (b,)
        As of `of_means`.

    Notes
    -----
    Source: Evans and Nair, Theorem 2; its specification, 4.5 (b). Departs from the source: columns
    are not drawn uniformly, which had thousands of times the variance.
    """
    k = len(columns)
    (mine, _), (theirs, _) = one.sums(columns), other.sums(columns)
    dense = (precision[:, None] * mine * theirs).sum() + of_prior(bases, one, other, columns)
    at = one.coordinates
    own = precision @ one.values.square() + bases.prior_diag(at)[0]
    alone = diag[at].square() * own - 2 * diag[at].log()
    drawn = (one.scale * torch.where(at >= k, alone, 0.0)).sum()
    return dense - 2 * diag[:k].log().sum() + drawn
