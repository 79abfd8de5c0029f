"""The hinge of each row as Gaussian sites on the latents that it touches."""

import torch

from ._linalg import add_gram
from ._sites import ByLatent, SiteLikelihood, Sites
from .likelihoods import expected_hinge

_SHARPNESS = 2.0
_MIN_SCALE = 1e-5


class BinarySites(SiteLikelihood):
    """b = 1 - s f with s = -1, 1 for the codes 0, 1. Source: Wenzel et al. (2017); (S15)."""

    n_latents, touches_all = 1, True

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


class ContrastSites(SiteLikelihood):
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

    tied = True

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

    def tied_update(self, A, residual, y, weights, precision, linear):
        """Add a batch's sites at the prior, where every wrong class is an equal rival.

        Parameters
        ----------
        A : Tensor of shape (b, p)
        residual, y, weights : Tensor of shape (b,)
        precision, linear : Tensor of shape (c, p, p), (c, p)
            Totals to add to.

        Returns
        -------
        loss : Tensor of shape ()
        """
        scale = (1 + 2 * (residual + A.square().sum(1))).sqrt()
        share = 1 / (self.n_latents - 1)
        own = ByLatent(A, y[:, None], self.n_latents)
        w = weights / scale
        shared = torch.zeros_like(precision[0])
        add_gram(shared, A, share * w[:, None] * A)
        precision += shared
        own.add_gram(precision, (1 - share) * w[:, None])
        w = w + weights
        linear += (1 + share) * own.total(w[:, None]) - share * (w @ A)
        return (weights * (1 + scale)).sum().double()
