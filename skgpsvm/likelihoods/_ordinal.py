"""Likelihood of ordered classes: intervals of a noisy latent function."""

from __future__ import annotations

import math

import torch

from .._quadrature import expect
from .._typing import ArrayLike
from ._base import log_ndtr
from ._classification import SingleLatent, single

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Ordinal(SingleLatent):
    r"""Ordered classes: ``y = k`` where f plus standard normal noise is between two thresholds.

    With thresholds :math:`b_1 < \dots < b_{C-1}`, :math:`b_0 = -\infty` and :math:`b_C = \infty`,

    .. math:: P(y = k \mid f) = \Phi(b_{k+1} - f) - \Phi(b_k - f), \qquad k = 0, \dots, C - 1.

    Parameters
    ----------
    thresholds : array-like of shape (n_classes - 1,)
        Increasing, in units of the noise. The trainable parameters are the first one, ``first``,
        and the logarithms of the differences, ``log_widths``.

    Raises
    ------
    ValueError
        If `thresholds` are not finite or not increasing, or there are none.

    Notes
    -----
    Two classes with the threshold 0 are those of `Probit`. The log probability is concave in f.
    `log_marginal` is exact; `expected_log_prob` is by quadrature.

    Source: Chu and Ghahramani (2005), Gaussian processes for ordinal regression, eqs. 3 to 5, with
    noise of variance one, which the prior variance of f makes up for.
    """

    def __init__(self, thresholds: ArrayLike) -> None:
        super().__init__()
        values = torch.as_tensor(thresholds, dtype=torch.float64).clone()
        widths = values.diff()
        if (
            values.ndim != 1
            or not len(values)
            or not values.isfinite().all()
            or (widths <= 0).any()
        ):
            raise ValueError(f"thresholds must be increasing finite numbers, got {thresholds!r}")
        self.first = torch.nn.Parameter(values[:1])
        self.log_widths = torch.nn.Parameter(widths.log())

    @property
    def thresholds(self) -> torch.Tensor:
        """Thresholds between the classes, (n_classes - 1,)."""
        return torch.cat([self.first, self.first + self.log_widths.exp().cumsum(0)])

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.log_widths) + 2

    def log_prob(self, y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        return self._log_mass(y, single(f), 1.0)

    def expected_terms(
        self, y: torch.Tensor, mean: torch.Tensor, var: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return expectations of derivatives of `log_prob` itself; the second is not positive."""

        def terms(f):
            f = single(f)
            low, high = self._ends(y, f)
            log_p = self._log_mass(y, f, 1.0)
            # Densities of the noise at the ends, relative to the probability between them
            below, above = (_density(end, log_p) for end in (low, high))
            below, above = below * (y > 0), above * (y < self.n_classes - 1)
            first = below - above
            second = low * below - high * above - first.square()
            return torch.stack([log_p, first, second.clamp_max(0)], -1)

        value, *derivatives = expect(terms, mean, var).detach().split(1, -1)
        return value[..., 0], *derivatives

    def log_marginal(self, y: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return self._log_mass(y, single(mean), (1 + single(var)).sqrt())

    def _ends(self, y, f):
        """Return the ends of the intervals of classes, relative to latent values (..., b).

        In place of an infinite end it is the other one.
        """
        cuts = self.thresholds.to(f)
        return cuts[(y - 1).clamp_min(0)] - f, cuts[y.clamp_max(len(cuts) - 1)] - f

    def _log_mass(self, y, f, scale):
        """Return the log probability of classes where the noise has another scale."""
        low, high = (end / scale for end in self._ends(y, f))
        is_open = (y == 0) | (y == self.n_classes - 1)
        # Mirrored where the interval is above zero, its farther end has the smaller tail.
        is_mirrored = torch.where(is_open, y > 0, low + high > 0)
        near, far = torch.where(is_mirrored, -low, high), torch.where(is_mirrored, -high, low)
        reached, beyond = log_ndtr(near), log_ndtr(torch.where(is_open, near - 1, far))
        # log(Phi(near) - Phi(far)), of the logarithms of both
        share = -torch.expm1((beyond - reached).clamp_max(-torch.finfo(f.dtype).tiny))
        return reached + torch.where(is_open, 0.0, share.log())


def _density(x, log_scale):
    """Return the standard normal density, divided by a scale."""
    return torch.exp(-0.5 * x.square() - _HALF_LOG_TAU - log_scale)
