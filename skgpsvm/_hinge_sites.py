"""The hinge of each row as Gaussian sites on the latents that it touches."""

import math

import torch

from ._linalg import add_gram
from ._sites import PerLatentDesign, SiteLikelihood, Sites
from .likelihoods import expected_hinge

_SHARPNESS = 2.0
_MIN_SCALE = 1e-5
_MOST_CONTRASTS = 9  # up to ten classes the objective is smooth; more would make every sweep slower


class BinarySites(SiteLikelihood):
    """b = 1 - s f with s = -1, 1 for the codes 0, 1. Source: Wenzel et al. (2017); (S15)."""

    n_latents, activates_all = 1, True

    def step(self, n_steps):
        """Size of the next coordinate-ascent step: undamped ascent is monotone."""
        return 1.0

    def active_latents(self, y, mean):
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
    r"""Crammer and Singer's hinge, each row contrasted with one or several wrong classes.

    With :math:`b_t = 1 + f_t - f_y` and :math:`h_t` its expected hinge, the loss of a row is h of
    the hardest wrong class by mean ("hard", the paper's rule), or the smooth maximum
    :math:`\frac1\gamma\log\frac1k\sum_t e^{\gamma h_t}` over k wrong classes ("soft"): all of them,
    or the nine hardest by mean.

    Notes
    -----
    Source: Wistuba and Rawat (2018), appendix; (S9), (S19), (S23).
    Departs from the source: the printed update with a hard contrast cycles (erratum E10). Where
    classes are left out, the loss jumps or bends as another becomes the hardest. Since the sweeps
    push the hardest down until others equal it, they end at such places: a smooth maximum of the
    two hardest of ten classes moves by 15 % in every sweep, of all nine it converges. The steps
    of the hard contrast shrink from the fifth on, as those of subgradient methods must.
    """

    tied = True

    def __init__(self, n_classes, contrast):
        self.smooth = contrast == "soft"
        self.n_latents = n_classes
        self.n_contrasts = min(_MOST_CONTRASTS, n_classes - 1) if self.smooth else 1
        self.activates_all = self.n_contrasts == n_classes - 1
        self.coupling = n_classes / (n_classes - 1)

    def step(self, n_steps):
        """Size of the next coordinate-ascent step."""
        if not n_steps:
            return 1.0
        return 0.7 if self.smooth else 0.5 * min(1.0, 5 / (n_steps + 1))

    def active_latents(self, y, mean):
        """All classes, or the true one and the hardest wrong ones by mean: (b, 1 + n_contrasts)."""
        if self.activates_all:
            return torch.arange(self.n_latents, device=y.device).expand(len(y), -1)
        rivals = mean.detach().scatter(1, y[:, None], -torch.inf)
        return torch.cat([y[:, None], rivals.topk(self.n_contrasts, 1).indices], 1)

    def sites(self, y, mean, var):
        """`Sites` at the means and variances of the active latents, (b, 1 + n_contrasts)."""
        own = y[:, None] if self.activates_all else torch.zeros_like(y)[:, None]
        is_own = torch.zeros_like(mean, dtype=torch.bool).scatter(1, own, True)
        m_y, both = mean.gather(1, own), var + var.gather(1, own)
        h, scale = expected_hinge(1 + mean - m_y, both)
        scale = scale.clamp_min(_MIN_SCALE)
        tilted = (_SHARPNESS * h).masked_fill(is_own, -torch.inf)
        share = torch.softmax(tilted, 1)  # 0 of the true class
        loss = (torch.logsumexp(tilted, 1) - math.log(self.n_contrasts)) / _SHARPNESS
        w = share / scale
        slope = share * h / scale
        hess = share * both / scale**3
        # A mean moves the shares too: that of the true class all slopes at once, a rival's its own.
        steepness = _SHARPNESS * slope * (h / scale)
        total = slope.sum(1, keepdim=True)

        def joined(own, rivals):
            return torch.where(is_own, own.sum(1, keepdim=True), rivals)

        return Sites(
            loss=loss,
            linear=joined(share + w * (1 + mean), -(share + w * (1 - m_y))),
            precision=joined(w, w),
            gradient=joined(-slope, slope),
            curvature=joined(
                hess + steepness - _SHARPNESS * slope * total,
                hess + steepness - _SHARPNESS * slope.square(),
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
        own = PerLatentDesign(A, y[:, None], self.n_latents)
        w = weights / scale
        shared = torch.zeros_like(precision[0])
        add_gram(shared, A, share * w[:, None] * A)
        precision += shared
        own.add_gram(precision, (1 - share) * w[:, None])
        w = w + weights
        linear += (1 + share) * own.total(w[:, None]) - share * (w @ A)
        return (weights * (1 + scale)).sum().double()
