"""Unbiased estimates of the ELBO from sampled rows and sampled basis functions."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from .._transfers import to_device


@dataclass
class Draw:
    """A random sample of basis functions."""

    units: torch.Tensor  # (u,): sampled units, as `MeanBases.sampled` takes them
    coordinates: torch.Tensor  # (k,): indices of the coefficients that belong to these units
    drawn: torch.Tensor  # (k,): the same on the CPU, where their values are known without a wait
    scale: torch.Tensor  # (k,): inverse of each coefficient's inclusion probability
    values: torch.Tensor  # (b, k): values of the functions at the rows of the minibatch
    support: torch.Tensor  # (p, k): values of the functions at the support rows

    def sums(self, coef):
        """Estimate the functions with coefficients (q, M) at minibatch and support rows."""
        part = self.scale * coef[:, self.coordinates]
        return self.values @ part.T.to(self.values), self.support @ part.T.to(self.support)


class LatentEstimates(NamedTuple):
    """Estimates of the functions whose coefficients are ``coef``, one from each of two draws."""

    draws: list  # of two Draw
    # (b, c + c k): estimates at the rows of the minibatch, by the control variate if it
    # interpolates
    f: list
    errors: list  # (p, c + c k): true values at the support rows, less the estimates there


def draw(bases, support_bases, n_units, X, support, generator):
    """Draw one unit from each of ``n_units`` strata of nearly equal length.

    The strata are disjoint, so no unit is drawn twice. At the support rows ``support_bases`` are
    evaluated: the same functions, possibly at other hyperparameters.
    """
    edges = torch.linspace(0, bases.n_units, n_units + 1, dtype=torch.float64).long()
    lengths = edges.diff()
    uniform = torch.rand(n_units, dtype=torch.float64, generator=generator)
    units = edges[:-1] + (uniform * lengths).long()
    drawn, n_exact = bases.coordinates(units)
    units, coordinates = (to_device(index, X.device) for index in (units, drawn))
    copies = (len(drawn) - n_exact) // max(n_units, 1)
    scale = torch.cat([lengths.repeat(copies), lengths.new_ones(n_exact)])
    scale = to_device(scale, X.device, torch.float64)
    if support_bases is bases:
        values = bases.sampled(torch.cat([X, support]), units).split([len(X), len(support)])
    else:
        values = bases.sampled(X, units), support_bases.sampled(support, units)
    return Draw(units, coordinates, drawn, scale, *values)


def rows_term(f, f_tilde, var, linear, precision):
    r"""Estimate the rows' term of :math:`\mathcal L_\mu + \mathcal L_\Sigma`, times -2, in nats.

    ``f`` and ``f_tilde`` are independent estimates of the latent means. Site parameters are times
    the multiplicity of each row. Source: Evans and Nair, Theorems 1 and 2. Departs from the source:
    the linear term is split between the two estimates.
    """
    return (precision * (f * f_tilde + var) - linear * (f + f_tilde)).sum()


def prior_term(bases, draw_i, draw_j, coef):
    """Estimate the squared norms in S, summed over the rows of ``coef`` (q, M)."""
    if bases.independent:
        halves = (
            (d.scale * bases.prior_diag(d.coordinates) * coef[:, d.coordinates].square()).sum()
            for d in (draw_i, draw_j)
        )
        return 0.5 * sum(halves)
    left, right = (d.scale * coef[:, d.coordinates] for d in (draw_i, draw_j))
    return ((left @ bases.prior(draw_i.coordinates, draw_j.coordinates)) * right).sum()
