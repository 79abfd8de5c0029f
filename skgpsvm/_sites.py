"""Likelihoods as Gaussian sites: what a row says about the weights of the latents it touches."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from ._linalg import add_gram, root_norms, spreads
from .likelihoods import Gaussian


@dataclass
class Sites:
    """One Gaussian site for each row and each of the k latents that its hinge touches.

    Attributes
    ----------
    loss : Tensor of shape (b,)
        h of each row, the negative of its term in the objective, in nats.
    linear, precision : Tensor of shape (b, k)
        Natural parameters: the coordinate-ascent update adds ``linear * a`` and
        ``precision * a a^T`` to those of the latent's weights.
    gradient, curvature : Tensor of shape (b, k)
        First and second derivative of ``loss`` with respect to the latent's mean. The curvature is
        smaller than ``precision``, the curvature of the bound that the update maximizes.
    """

    loss: torch.Tensor
    linear: torch.Tensor
    precision: torch.Tensor
    gradient: torch.Tensor
    curvature: torch.Tensor


class SiteLikelihood(ABC):
    """A likelihood as coordinate ascent sees it: of each row, sites on the latents it touches.

    Attributes
    ----------
    n_latents : int
    coupling : float
        What the curvature of one latent is multiplied by to stand for that of all, see
        `CoordinateAscent.leave_one_out`.
    tied : bool
        Whether `active_latents` means nothing at the prior, where `tied_update` is used instead.
    conjugate : bool
        Whether the sites are the same at all means and variances.
    touches_all : bool
        Whether each row touches every latent, in order.
    smooth : bool
        Whether the loss has a continuous gradient, so that sweeps have a fixed point.
    """

    coupling = 1.0
    tied = conjugate = activates_all = False
    smooth = True

    def parameters(self):
        """Logarithms of the parameters, (k,)."""
        return torch.empty(0, dtype=torch.float64)

    def at(self, parameters):
        """The same likelihood at other parameters, a tensor (k,)."""
        return self

    @abstractmethod
    def step(self, n_steps):
        """Size of the next coordinate-ascent step."""

    @abstractmethod
    def active_latents(self, y, mean):
        """The latents that each row touches, (b, k), given all latent means (b, c)."""

    @abstractmethod
    def sites(self, y, mean, var):
        """`Sites` at the means and variances of the touched latents, (b, k)."""

    def loss(self, y, mean, var):
        """`Sites.loss`, (b,); differentiable."""
        return self.sites(y, mean, var).loss


class LikelihoodSites(SiteLikelihood):
    r"""Sites of a proper likelihood, which touch every latent.

    The update with precision :math:`-2\,\partial E/\partial v` and linear term
    :math:`\partial E/\partial m + m \cdot` precision, E the expected log density of a row, is a
    natural-gradient step. Where that precision is negative, it is taken as zero.

    Parameters
    ----------
    likelihood : Likelihood
    n_latents : int

    Notes
    -----
    Source: Khan and Lin (2017), conjugate-computation variational inference; Hensman et al. (2013)
    for Gaussian noise.
    """

    activates_all = True

    def __init__(self, likelihood, n_latents):
        self.likelihood, self.n_latents = likelihood, n_latents
        self.conjugate = isinstance(likelihood, Gaussian)

    def parameters(self):
        values = [value.detach().ravel() for value in self.likelihood.parameters()]
        return torch.cat(values) if values else super().parameters()

    def at(self, parameters):
        return LikelihoodSites(self.likelihood.at(parameters), self.n_latents)

    def step(self, n_steps):
        return self.likelihood.step if n_steps else 1.0

    def active_latents(self, y, mean):
        return torch.arange(self.n_latents, device=mean.device).expand(len(mean), -1)

    def sites(self, y, mean, var):
        grad, hess = self.likelihood.expected_derivatives(*_precise(y, mean, var))
        grad, precision = grad.to(mean.dtype), -hess.to(mean.dtype)
        return Sites(
            loss=self.loss(y, mean, var),
            linear=grad + precision.clamp_min(0) * mean,
            precision=precision.clamp_min(0),
            gradient=-grad,
            curvature=precision,
        )

    def loss(self, y, mean, var):
        return -self.likelihood.expected_log_prob(*_precise(y, mean, var)).to(mean.dtype)


def _precise(y, mean, var):
    """In float64 where the targets are floats, since the noise of each output is."""
    return (y.double(), mean.double(), var.double()) if y.is_floating_point() else (y, mean, var)


class DenseDesign:
    """The rows of a batch, A (b, p), each of which touches every latent; see `PerLatentDesign`."""

    def __init__(self, A):
        self._A = A

    def spread(self, root):
        return spreads(self._A, root)

    def add_gram(self, totals, weights):
        for total, w in zip(totals, weights.to(self._A.dtype).T, strict=True):
            add_gram(total, self._A, w[:, None] * self._A)

    def total(self, weights):
        return weights.T @ self._A


class PerLatentDesign:
    """The rows of a batch gathered latent by latent, so that a latent costs only its own rows.

    Parameters
    ----------
    A : Tensor of shape (b, p)
    touched : Tensor of shape (b, k)
        Latents that each row touches.
    n_latents : int
    """

    def __init__(self, A, active, n_latents):
        self._shape, flat = active.shape, active.reshape(-1)
        self._order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=n_latents).tolist()
        self._groups = A[self._order // active.shape[1]].split(counts)

    def _sorted(self, values):
        values = values.reshape(-1)[self._order]
        return values.split([len(group) for group in self._groups])

    def spread(self, root):
        """Variance that each row's weights give its latents: ||root_j^T a||^2, (b, k)."""
        spread = torch.cat(
            [root_norms(group, r) for group, r in zip(self._groups, root, strict=True)]
        )
        return spread[torch.argsort(self._order)].reshape(self._shape)

    def add_gram(self, totals, weights):
        """Add the sum of weight * a a^T to the lower triangle of each latent's total (c, p, p)."""
        pairs = zip(totals, self._groups, self._sorted(weights), strict=True)
        for total, group, w in pairs:
            add_gram(total, group, w[:, None] * group)

    def total(self, weights):
        """Sum of weight * a for each latent, (c, p); weights (b, k)."""
        pairs = zip(self._groups, self._sorted(weights), strict=True)
        return torch.stack([w @ group for group, w in pairs])


def batch_sites(likelihood, A, residual, y, mean, root):
    """`Sites` of a batch, its rows by latent, and the latents touched."""
    groups, active, moments = _touched_moments(likelihood, A, residual, y, mean, root)
    return likelihood.sites(y, *moments), groups, active


def batch_loss(likelihood, A, residual, y, mean, root):
    """The loss of each row of a batch, (b,); differentiable."""
    return likelihood.loss(y, *_touched_moments(likelihood, A, residual, y, mean, root)[2])


def _touched_moments(likelihood, A, residual, y, mean, root):
    latents = A @ mean.to(A.dtype).T
    active = likelihood.active_latents(y, latents)
    groups = (
        DenseDesign(A)
        if likelihood.activates_all
        else PerLatentDesign(A, active, likelihood.n_latents)
    )
    var = residual[:, None] + groups.spread(root.to(A.dtype))
    return groups, active, (latents.gather(1, active), var)
