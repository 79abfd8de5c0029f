"""Hinge losses of Bayesian SVMs as Gaussian sites on the active latents of a row."""

import math
from typing import NamedTuple

import torch

from ._linalg import add_gram
from ._sites import PerLatentDesign, SiteLikelihood, Sites
from .likelihoods import expected_hinge

_SHARPNESS = 2.0
_MIN_SCALE = 1e-5


class BinarySites(SiteLikelihood):
    """Hinge loss of two classes: b = 1 - s f with s = -1, 1 for the codes 0, 1.

    Source: Wenzel et al. (2017); (S15).
    """

    n_latents, activates_all = 1, True

    def step(self, n_steps):
        return 1.0  # undamped coordinate ascent is monotone

    def active_latents(self, y, mean):
        return torch.zeros_like(y)[:, None]

    def _hinge(self, y, mean, var):
        """Return signs of the labels, expected hinges, and their root mean squares, (b, 1)."""
        sign = (2 * y - 1).to(mean.dtype)[:, None]
        loss, scale = expected_hinge(1 - sign * mean, var)
        return sign, loss, scale.clamp_min(_MIN_SCALE)

    def loss_and_gradient(self, y, mean, var):
        sign, loss, scale = self._hinge(y, mean, var)
        return loss[:, 0], -sign * loss / scale

    def sites(self, y, mean, var):
        sign, loss, scale = self._hinge(y, mean, var)
        return Sites(
            loss=loss[:, 0],
            linear=sign * (1 + 1 / scale),
            precision=1 / scale,
            gradient=-sign * loss / scale,
            curvature=var / scale**3,
        )


class Contrasts(NamedTuple):
    """Contrasts of rows with their k rivals; entries of the true class are meaningless."""

    true: torch.Tensor  # (b, 1): position of the true class among the active latents
    is_true: torch.Tensor  # (b, 1 + k): mask of that position
    variance: torch.Tensor  # (b, 1 + k): of the contrast
    hinge: torch.Tensor  # (b, 1 + k): expected hinge of the contrast
    scale: torch.Tensor  # (b, 1 + k): root mean square of the contrast
    share: torch.Tensor  # (b, 1 + k): weight in the smooth maximum; 0 for the true class
    loss: torch.Tensor  # (b,): the smooth maximum


class ContrastSites(SiteLikelihood):
    r"""Crammer and Singer's hinge loss, which contrasts each row with wrong classes.

    With :math:`b_t = 1 + f_t - f_y` and its expected hinge :math:`h_t`, the loss of a row depends
    on the contrast. ``"hard"``, the paper's rule, takes h of the wrong class with the highest mean.
    ``"soft"`` takes the smooth maximum :math:`\frac1\gamma\log\frac1k\sum_t e^{\gamma h_t}` over
    the k wrong classes.

    Source: Wistuba and Rawat (2018), appendix; (S9), (S19), (S23).
    Departs from the source: the printed update with a hard contrast cycles (erratum E10). If some
    classes are left out, the loss jumps or has a kink where another becomes the strongest. Sweeps
    push the strongest down until others equal it, so they end at such points. A smooth maximum over
    the two strongest of ten classes moves by 15 % in every sweep; over all nine it converges. The
    steps of the hard contrast shrink from the fifth on, as those of subgradient methods must.
    """

    tied = relative = True

    def __init__(self, n_classes, contrast):
        self.smooth = contrast == "soft"
        self.n_latents = n_classes
        self.n_contrasts = n_classes - 1 if self.smooth else 1
        self.activates_all = self.n_contrasts == n_classes - 1
        self.coupling = n_classes / (n_classes - 1)

    def step(self, n_steps):
        if not n_steps:
            return 1.0
        return 0.7 if self.smooth else 0.5 * min(1.0, 5 / (n_steps + 1))

    def active_latents(self, y, mean):
        """Return all classes, or the true one and its strongest rival, (b, 1 + n_contrasts)."""
        if self.activates_all:
            return torch.arange(self.n_latents, device=y.device).expand(len(y), -1)
        rivals = mean.detach().scatter(1, y[:, None], -torch.inf)
        return torch.cat([y[:, None], rivals.topk(self.n_contrasts, 1).indices], 1)

    def contrasts(self, y, mean, var):
        """Return the `Contrasts` at moments of the active latents, (b, 1 + n_contrasts)."""
        true = y[:, None] if self.activates_all else torch.zeros_like(y)[:, None]
        is_true = torch.zeros_like(mean, dtype=torch.bool).scatter_(1, true, True)
        variance = var + var.gather(1, true)
        hinge, scale = expected_hinge(1 + mean - mean.gather(1, true), variance)
        scale = scale.clamp_min(_MIN_SCALE)
        tilted = (_SHARPNESS * hinge).masked_fill(is_true, -torch.inf)
        total = torch.logsumexp(tilted, 1)
        share = (tilted - total[:, None]).exp()
        loss = (total - math.log(self.n_contrasts)) / _SHARPNESS
        return Contrasts(true, is_true, variance, hinge, scale, share, loss)

    def loss_and_gradient(self, y, mean, var):
        own = self.contrasts(y, mean, var)
        gradient = own.share * own.hinge / own.scale
        return own.loss, gradient.scatter(1, own.true, -gradient.sum(1, keepdim=True))

    def sites(self, y, mean, var):
        own = self.contrasts(y, mean, var)
        m_y, share = mean.gather(1, own.true), own.share
        w = share / own.scale
        grad = share * own.hinge / own.scale
        hess = share * own.variance / own.scale**3
        # Means move the shares as well. The true class moves all gradients, a rival only its own.
        steepness = _SHARPNESS * grad * (own.hinge / own.scale)
        total = grad.sum(1, keepdim=True)

        def joined(of_true, of_rivals):
            return torch.where(own.is_true, of_true.sum(1, keepdim=True), of_rivals)

        return Sites(
            loss=own.loss,
            linear=joined(share + w * (1 + mean), -(share + w * (1 - m_y))),
            precision=joined(w, w),
            gradient=joined(-grad, grad),
            curvature=joined(
                hess + steepness - _SHARPNESS * grad * total,
                hess + steepness - _SHARPNESS * grad.square(),
            ),
        )

    def tied_update(self, A, residual, y, weights, precision, linear):
        """Add a batch's sites at the prior, where all wrong classes are rivals; return the loss.

        ``precision`` (c, p, p) and ``linear`` (c, p) are totals, changed in place.
        """
        scale = (1 + 2 * (residual + A.square().sum(1))).sqrt()
        share = 1 / (self.n_latents - 1)
        true = PerLatentDesign(A, y[:, None], self.n_latents)
        w = weights / scale
        shared = torch.zeros_like(precision[0])
        add_gram(shared, A, share * w[:, None] * A)
        precision += shared
        true.add_gram(precision, (1 - share) * w[:, None])
        w = w + weights
        linear += (1 + share) * true.total(w[:, None]) - share * (w @ A)
        return (weights * (1 + scale)).sum().double()
