"""Likelihood of ordered classes: intervals of a noisy latent function."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._typing import ArrayLike
from ._base import log_inverse_mills, log_ndtr, log_scaled_ndtr
from ._classification import SingleLatent, single


class Ordinal(SingleLatent):
    r"""Ordered classes: ``y = k`` where f plus standard normal noise is between two thresholds.

    With thresholds :math:`b_1 < \dots < b_{C-1}`, :math:`b_0 = -\infty` and :math:`b_C = \infty`,

    .. math:: P(y = k \mid f) = \Phi(b_{k+1} - f) - \Phi(b_k - f), \qquad k = 0, \dots, C - 1.

    Parameters
    ----------
    thresholds : array-like of shape (n_classes - 1,)
        Increasing, in units of the noise. The trainable parameters are a weighted mean, ``center``,
        and the logarithms of the differences, ``log_widths``.
    weights : array-like of shape (n_classes - 1,), default=None
        Weights of the thresholds in their mean, relative to each other. None is
        :math:`\exp(-2 b_k^2)`, so that thresholds between many rows count most, and learning does
        not move these with the widths of rare classes. If the order of the classes is reversed,
        learning takes the same steps.

    Raises
    ------
    ValueError
        If `thresholds` are not finite or not increasing, or there are none, or if `weights` have
        another shape, are negative or not finite, or are all zero.

    Notes
    -----
    Two classes with the threshold 0 are those of `Probit`. The log probability is concave in f.
    `log_marginal` is exact; `expected_log_prob` is by quadrature.

    Source: Chu and Ghahramani (2005), Gaussian processes for ordinal regression. Departs from the
    source: the noise has variance one, and the prior variance of f is learned in its place.
    """

    weights: Tensor

    def __init__(self, thresholds: ArrayLike, weights: ArrayLike | None = None) -> None:
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
        if weights is None:
            weights = torch.softmax(-2 * values.square(), 0)
        parts = torch.as_tensor(weights, dtype=torch.float64)
        if parts.shape != values.shape or not (parts >= 0).all() or not 0 < parts.sum() < torch.inf:
            raise ValueError(
                f"weights must be {len(values)} finite numbers, one for each threshold, none "
                f"negative and not all zero; got {weights!r}"
            )
        self.register_buffer("weights", parts / parts.sum())
        self.center = torch.nn.Parameter(self.weights @ values[:, None])
        self.log_widths = torch.nn.Parameter(widths.log())

    @property
    def thresholds(self) -> Tensor:
        """Thresholds between the classes, (n_classes - 1,)."""
        above_first = F.pad(self.log_widths.exp().cumsum(0), (1, 0))
        return self.center + above_first - self.weights @ above_first

    @property
    def n_classes(self) -> int:
        return len(self.log_widths) + 2

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self._interval(y, single(f)).log_mass.to(f)

    def _terms(self, y, f):
        interval = self._interval(y, single(f))
        return torch.stack([interval.log_mass, *interval.derivatives()], -1).to(f)

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return self._interval(y, single(mean), (1 + single(var)).sqrt()).log_mass.to(mean)

    def _interval(self, y, f, scale=1.0):
        """Return the `_Interval` of classes at latent values (..., b), in units of a scale."""
        f, cuts, last = f.double(), self.thresholds, self.n_classes - 1
        low, high = cuts[(y - 1).clamp_min(0)], cuts[y.clamp_max(last - 1)]
        width, low, high = ((part / scale) for part in (high - low, low - f, high - f))
        is_open = (y == 0) | (y == last)
        is_mirrored = torch.where(is_open, y > 0, low + high > 0)
        return _Interval(torch.where(is_mirrored, -low, high), width, is_open, is_mirrored)


class _Interval:
    r"""Standard normal probability :math:`M = \Phi(a) - \Phi(a - w)` of an interval of width w.

    Intervals with their middle above zero are mirrored, so that the end a is closer to zero than
    the other one, :math:`b = a - w`. Then :math:`q = (a^2 - b^2) / 2 = w (a + b) / 2` is not
    positive. Open intervals have :math:`b = -\infty`, whatever their width.
    """

    def __init__(self, near, width, is_open, is_mirrored):
        self._near, self._far = near, near - torch.where(is_open, 1.0, width)
        self._is_open, self._is_mirrored = is_open, is_mirrored
        self._q = 0.5 * width * (self._near + self._far)
        # log(Phi(b) / Phi(a)), where squares that almost cancel are not subtracted
        squares = torch.where(near < 0, self._q, -0.5 * self._far.square())
        ratio = log_scaled_ndtr(self._far) - log_scaled_ndtr(near) + squares
        share = -torch.expm1(ratio.clamp_max(-torch.finfo(near.dtype).tiny))
        self._log_share = torch.where(is_open, 0.0, share.log())
        self.log_mass = log_ndtr(near) + self._log_share

    def derivatives(self):
        r"""Return the first and second derivatives of log M in f, which is subtracted from a and b.

        With the density :math:`\phi`, they are :math:`d = (\phi(b) - \phi(a)) / M`, of opposite
        sign if mirrored, and :math:`(b \phi(b) - a \phi(a)) / M - d^2`. The latter is the variance
        of a normal variable in the interval less one.
        """
        near, far = self._near, self._far
        at_near = torch.exp(log_inverse_mills(near) - self._log_share)
        decay = torch.where(self._is_open, 0.0, self._q.exp())  # phi(b) / phi(a)
        first = at_near * torch.where(self._is_open, -1.0, self._q.expm1())
        second = at_near * (far * decay - near) - first.square()
        return torch.where(self._is_mirrored, -first, first), second.clamp(-1, 0)
