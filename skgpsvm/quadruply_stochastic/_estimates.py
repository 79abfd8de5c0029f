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


def draw(bases, support_bases, n_units, X, support, generator):
    """One unit of each of ``n_units`` strata of nearly equal length, none twice.

    At the support rows the functions may have other hyperparameters.
    """
    edges = torch.linspace(0, bases.n_units, n_units + 1, dtype=torch.float64).long()
    lengths = edges.diff()
    uniform = torch.rand(n_units, dtype=torch.float64, generator=generator)
    units = (edges[:-1] + (uniform * lengths).long()).to(X.device)
    coordinates, n_exact = bases.coordinates(units)
    copies = (len(coordinates) - n_exact) // max(n_units, 1)
    scale = torch.cat([lengths.repeat(copies), lengths.new_ones(n_exact)]).to(X.device).double()
    if support_bases is bases:
        values = bases.sampled(torch.cat([X, support]), units).split([len(X), len(support)])
    else:
        values = bases.sampled(X, units), support_bases.sampled(support, units)
    return Draw(units, coordinates, scale, *values)


def of_rows(f, f_tilde, var, linear, precision):
    r"""Estimate of what rows add to :math:`\mathcal L_\mu + \mathcal L_\Sigma`, in -2 nats.

    Parameters
    ----------
    f, f_tilde, var : Tensor of shape (b, c)
        Independent estimates of the latent means, and one of their variances.
    linear, precision : Tensor of shape (b, c)
        Of the sites, times what each row stands for.

    Notes
    -----
    Source: Evans and Nair, Theorems 1 and 2. Departs from the source: the
    linear term is split between the draws.
    """
    return (precision * (f * f_tilde + var) - linear * (f + f_tilde)).sum()


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
