"""The hinge of each row as Gaussian sites on the latents that it touches."""

from dataclasses import dataclass

import torch

from .._linalg import add_gram, root_norms
from ..likelihoods import expected_hinge

_SHARPNESS = 2.0
_MIN_SCALE = 1e-5


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
        smaller than ``precision``, the curvature of the bound that the update maximises.
    """

    loss: torch.Tensor
    linear: torch.Tensor
    precision: torch.Tensor
    gradient: torch.Tensor
    curvature: torch.Tensor


class BinarySites:
    """b = 1 - s f with s = -1, 1 for the codes 0, 1. Source: Wenzel et al. (2017); (S15)."""

    n_latents = 1
    coupling = 1.0

    def step(self, n_steps):
        """Size of the next coordinate-ascent step: undamped ascent is monotone."""
        return 1.0

    def touched(self, y, mean):
        """Latents that each row touches, (b, 1)."""
        return torch.zeros_like(y)[:, None]

    def sites(self, y, mean, var):
        """`Sites` at latent means and variances (b, 1)."""
        sign = (2 * y - 1).to(mean.dtype)[:, None]
        loss, scale = expected_hinge(1 - sign * mean, var)
        scale = scale.clamp_min(_MIN_SCALE)
        return Sites(
            loss=loss[:, 0],
            linear=sign * (1 + 1 / scale),
            precision=1 / scale,
            gradient=-sign * loss / scale,
            curvature=var / scale**3,
        )


class ContrastSites:
    r"""Crammer and Singer's hinge, each row contrasted with its hardest wrong classes.

    With :math:`b_t = 1 + f_t - f_y` and :math:`h_t` its expected hinge, a row costs h of the
    hardest wrong class by mean ("hard", the paper's rule), or the smooth maximum
    :math:`\frac1\gamma\log\frac12\sum_t e^{\gamma h_t}` over the two hardest ("soft").

    Notes
    -----
    Source: Wistuba and Rawat (2018), appendix; (S9), (S19), (S23).
    Departs from the source: the printed update with a hard contrast cycles (erratum E10); the soft
    contrast jumps less, and damped steps that shrink from the fifth on end the cycling.
    """

    def __init__(self, n_classes, contrast):
        self.n_latents = n_classes
        self.n_contrasts = min(2, n_classes - 1) if contrast == "soft" else 1
        self._damping = 0.7 if contrast == "soft" else 0.5
        self.coupling = n_classes / (n_classes - 1)

    def step(self, n_steps):
        """Size of the next coordinate-ascent step."""
        return self._damping * min(1.0, 5 / (n_steps + 1)) if n_steps else 1.0

    def touched(self, y, mean):
        """The true class, then the hardest wrong classes by mean: (b, 1 + n_contrasts)."""
        rivals = mean.detach().scatter(1, y[:, None], -torch.inf)
        return torch.cat([y[:, None], rivals.topk(self.n_contrasts, 1).indices], 1)

    def sites(self, y, mean, var):
        """`Sites` at the means and variances of the touched latents, (b, 1 + n_contrasts)."""
        m_y, m_t = mean[:, :1], mean[:, 1:]
        h, scale = expected_hinge(1 + m_t - m_y, var[:, :1] + var[:, 1:])
        scale = scale.clamp_min(_MIN_SCALE)
        share = torch.softmax(_SHARPNESS * h, 1)
        loss = (torch.logsumexp(_SHARPNESS * h, 1) - h.new_tensor(h.shape[1]).log()) / _SHARPNESS
        w = share / scale
        slope = share * h / scale
        bend = share * (var[:, :1] + var[:, 1:]) / scale**3
        # A mean moves the shares too: that of the true class all slopes at once, a rival's its own.
        steepness = _SHARPNESS * slope * (h / scale)
        total = slope.sum(1, keepdim=True)

        def joined(own, rivals):
            return torch.cat([own.sum(1, keepdim=True), rivals], 1)

        return Sites(
            loss=loss,
            linear=joined(share + w * (1 + m_t), -(share + w * (1 - m_y))),
            precision=joined(w, w),
            gradient=joined(-slope, slope),
            curvature=joined(
                bend + steepness - _SHARPNESS * slope * total,
                bend + steepness - _SHARPNESS * slope.square(),
            ),
        )


class ByLatent:
    """The rows of a batch gathered latent by latent, so that a latent costs only its own rows.

    Parameters
    ----------
    A : Tensor of shape (b, p)
    touched : Tensor of shape (b, k)
        Latents that each row touches.
    n_latents : int
    """

    def __init__(self, A, touched, n_latents):
        self._shape = touched.shape
        if n_latents == 1:
            self._order, gathered, counts = None, A, [len(A)]
        else:
            flat = touched.reshape(-1)
            self._order = torch.argsort(flat, stable=True)
            gathered = A[self._order // touched.shape[1]]
            counts = torch.bincount(flat, minlength=n_latents).tolist()
        self._groups = gathered.split(counts)

    def _sorted(self, values):
        values = values.reshape(-1)
        values = values if self._order is None else values[self._order]
        return values.split([len(group) for group in self._groups])

    def spread(self, root):
        """Variance that each row's weights give its latents: ||root_j^T a||^2, (b, k)."""
        spread = torch.cat(
            [root_norms(group, r) for group, r in zip(self._groups, root, strict=True)]
        )
        if self._order is not None:
            spread = spread[torch.argsort(self._order)]
        return spread.reshape(self._shape)

    def add_gram(self, totals, weights):
        """Add the sum of weight * a a^T to the lower triangle of each latent's total (c, p, p)."""
        pairs = zip(totals, self._groups, self._sorted(weights), strict=True)
        for total, group, w in pairs:
            add_gram(total, group, w[:, None] * group)

    def total(self, weights):
        """Sum of weight * a for each latent, (c, p); weights (b, k)."""
        pairs = zip(self._groups, self._sorted(weights), strict=True)
        return torch.stack([w @ group for group, w in pairs])
