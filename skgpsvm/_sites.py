"""Likelihoods as Gaussian sites on the latents, one factor per row and active latent."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from ._linalg import add_gram, root_norms, spreads
from .likelihoods import Gaussian


@dataclass
class Sites:
    """Gaussian sites of b rows, one for each of the k active latents of a row."""

    loss: torch.Tensor  # (b,): minus the term of each row in the ELBO, nats
    # linear, precision (b, k): Natural parameters. The coordinate-ascent update adds ``linear * a``
    # and ``precision * a a^T`` to those of the latent's weights.
    linear: torch.Tensor
    precision: torch.Tensor
    # gradient, curvature (b, k): First and second derivatives of ``loss`` in the latent's mean. The
    # curvature is smaller than ``precision``, which is the curvature of the bound that the update
    # maximizes.
    gradient: torch.Tensor
    curvature: torch.Tensor


class SiteLikelihood(ABC):
    """Likelihood that gives each row Gaussian sites on its active latents."""

    n_latents: int
    latents_per_output = 1  # number k of latents: latent j of c is of output j modulo c / k
    # Factor of a latent's curvature that stands for that of all latents, see `leave_one_out`
    coupling = 1.0
    # Whether all latents tie at the prior, so that `active_latents` is arbitrary there and
    # `tied_update` is used instead
    tied = False
    conjugate = False  # whether the sites are the same at all means and variances
    activates_all = False  # whether every latent is active in every row, in order
    smooth = True  # whether the loss has a continuous gradient, so that sweeps have a fixed point
    relative = False  # whether the loss depends on the differences of latents only
    # Whether the gradient vanishes where the loss is large, so that sweeps converge slowly
    redescending = False
    coupled = False  # whether the loss has a curvature between latents, which `hessian` returns

    @property
    def groups(self):
        """Slices of the latents: the first of each output, the second of each, and so on."""
        size = self.n_latents // self.latents_per_output
        return [slice(j, j + size) for j in range(0, self.n_latents, size)]

    def parameters(self):
        """Return the logarithms of the parameters, (k,)."""
        return torch.empty(0, dtype=torch.float64)

    def at(self, parameters):
        """Return the same likelihood with other log parameters, a tensor (k,)."""
        return self

    @abstractmethod
    def step(self, n_steps):
        """Return the size of the next coordinate-ascent step."""

    @abstractmethod
    def active_latents(self, y, mean):
        """Return the active latents of each row, (b, k), given all latent means (b, c)."""

    @abstractmethod
    def sites(self, y, mean, var):
        """Return the `Sites` at means and variances of the active latents, (b, k)."""

    def loss(self, y, mean, var):
        """Return `Sites.loss`, (b,); differentiable."""
        return self.sites(y, mean, var).loss

    def loss_and_gradient(self, y, mean, var):
        """Return `Sites.loss` and `Sites.gradient`, (b,) and (b, k)."""
        sites = self.sites(y, mean, var)
        return sites.loss, sites.gradient


class LikelihoodSites(SiteLikelihood):
    r"""Sites of a proper likelihood; every latent is active in every row.

    With the expected log density E of a row, the sites have precision
    :math:`-2\,\partial E/\partial v` and linear term :math:`\partial E/\partial m + m \cdot`
    precision. Their update is a natural-gradient step. A negative precision is replaced by zero.

    Source: Khan and Lin (2017), conjugate-computation variational inference; Hensman et al. (2013)
    for Gaussian noise.
    """

    activates_all = True

    def __init__(self, likelihood, n_latents):
        self.likelihood, self.n_latents = likelihood, n_latents
        self.conjugate = isinstance(likelihood, Gaussian)
        self.latents_per_output = likelihood.latents_per_output
        self.relative, self.redescending = likelihood.relative, likelihood.redescending
        self.coupled = likelihood.coupled

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
        value, grad, hess = self.likelihood.expected_terms(*_precise(y, mean, var))
        grad, curvature = grad.to(mean.dtype), -hess.to(mean.dtype)
        precision = curvature.clamp_min(0)
        return Sites(
            loss=-value.to(mean.dtype),
            linear=grad + precision * mean,
            precision=precision,
            gradient=-grad,
            curvature=curvature,
        )

    def hessian(self, mean, var):
        """Return the second derivatives of the loss in all means, (b, c, c)."""
        return -self.likelihood.expected_hessian(mean, var)

    def loss(self, y, mean, var):
        return -self.likelihood.expected_log_prob(*_precise(y, mean, var)).to(mean.dtype)


def _precise(y, mean, var):
    """Return all in float64 if the targets are floats, as the noise of each output is float64."""
    return (y.double(), mean.double(), var.double()) if y.is_floating_point() else (y, mean, var)


class DenseDesign:
    """Features A (b, p) of a batch in which every latent is active; see `PerLatentDesign`.

    It keeps the variances of the last root.
    """

    def __init__(self, A):
        self._A, self._root, self._variance = A, None, None

    def part(self, latents):
        """Return the design of some latents, which share the features."""
        return self

    def means(self, mean):
        return self._A @ mean.to(self._A.dtype).T

    def variance(self, root):
        if root is not self._root:
            self._root, self._variance = root, spreads(self._A, root)
        return self._variance

    def add_gram(self, totals, weights):
        for total, w in zip(totals, weights.to(self._A.dtype).T, strict=True):
            add_gram(total, self._A, w[:, None] * self._A)

    def precise(self):
        """Return the design of the same features in float64."""
        return DenseDesign(self._A.double())

    def total(self, weights):
        return weights.to(self._A.dtype).T @ self._A


class GroupedDesign:
    """Features A (k, b, p) of a batch for k groups of latents, all active in every row.

    The groups are equally large; each is a `DenseDesign` of its own features.
    """

    def __init__(self, A):
        self._groups = [DenseDesign(group) for group in A]

    def means(self, mean):
        return torch.cat(self._each(DenseDesign.means, mean), 1)

    def variance(self, root):
        return torch.cat(self._each(DenseDesign.variance, root), 1)

    def add_gram(self, totals, weights):
        parts = totals.chunk(len(self._groups)), weights.chunk(len(self._groups), 1)
        for group, total, w in zip(self._groups, *parts, strict=True):
            group.add_gram(total, w)

    def total(self, weights):
        parts = weights.chunk(len(self._groups), 1)
        return torch.cat([g.total(w) for g, w in zip(self._groups, parts, strict=True)])

    def part(self, latents):
        """Return the design of a slice of the latents: of all, or of those of one group."""
        if latents.stop is None:
            return self
        return self._groups[latents.start // (latents.stop - latents.start)]

    def _each(self, method, tensor):
        parts = tensor.chunk(len(self._groups))
        return [method(group, part) for group, part in zip(self._groups, parts, strict=True)]


def dense_design(A):
    """Return the design of a batch in which every latent is active, from its features."""
    return DenseDesign(A) if A.ndim == 2 else GroupedDesign(A)


class PerLatentDesign:
    """Features (b, p) of a batch gathered per latent, so that a latent costs only its own rows.

    The active latents of each row are an index (b, k).
    """

    def __init__(self, A, active, n_latents):
        self._shape, flat = active.shape, active.reshape(-1)
        self._order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=n_latents).tolist()
        self._groups = A[self._order // active.shape[1]].split(counts)

    def _sorted(self, values):
        values = values.reshape(-1)[self._order]
        return values.split([len(group) for group in self._groups])

    def part(self, latents):
        """Return the design of a slice of the latents, which is all of them."""
        return self

    def variance(self, root):
        """Return the variances of the active latents due to the weights, (b, k).

        They are ||root_j^T a||^2 for the features a of a row.
        """
        groups = zip(self._groups, root.to(self._groups[0].dtype), strict=True)
        var = torch.cat([root_norms(group, r) for group, r in groups])
        return var[torch.argsort(self._order)].reshape(self._shape)

    def add_gram(self, totals, weights):
        """Add the sum of weight * a a^T to the lower triangles of each latent's total (c, p, p)."""
        pairs = zip(totals, self._groups, self._sorted(weights), strict=True)
        for total, group, w in pairs:
            add_gram(total, group, w[:, None] * group)

    def total(self, weights):
        """Return the sum of weight * a for each latent, (c, p); weights have shape (b, k)."""
        pairs = zip(self._groups, self._sorted(weights), strict=True)
        return torch.stack([w @ group for group, w in pairs])


def batch_sites(likelihood, A, residual, y, mean, root, design=None):
    """Return the `Sites` of a batch, its design per latent, and the active latents (b, k).

    A `DenseDesign` of the batch may be given where every latent is active.
    """
    design, active, moments = _active_moments(likelihood, A, residual, y, mean, root, design)
    return likelihood.sites(y, *moments), design, active


def batch_loss(likelihood, A, residual, y, mean, root, design=None):
    """Return the loss of each row of a batch, (b,); differentiable."""
    return likelihood.loss(y, *_active_moments(likelihood, A, residual, y, mean, root, design)[2])


def _active_moments(likelihood, A, residual, y, mean, root, design):
    if design is None and likelihood.activates_all:
        design = dense_design(A)
    latents = A @ mean.to(A.dtype).T if design is None else design.means(mean)
    active = likelihood.active_latents(y, latents)
    if design is None:
        design = PerLatentDesign(A, active, likelihood.n_latents)
    unexplained = per_latent(residual, likelihood.n_latents)
    return design, active, (latents.gather(1, active), unexplained + design.variance(root))


def per_latent(values, n_latents):
    """Return values (b, 1) of all latents, or (b, c) if they are given for groups of latents.

    They are given as (b,), or as (k, b) for k groups.
    """
    if values.ndim == 1:
        return values[:, None]
    return values.T.repeat_interleave(n_latents // len(values), 1)
