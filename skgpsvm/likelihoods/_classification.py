"""Likelihoods of class codes: of two classes, of several, and the pseudo-likelihoods of hinges."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from .._memory import SMALL_BLOCK, block_rows
from .._quadrature import argmax_probability, expect, normal_cdf, normal_points, safe_std
from ._base import Likelihood, log_expected_decay, log_inverse_mills, log_ndtr

_PREDICTIVE_POINTS = 256


class SingleLatent(Likelihood):
    """A normalized distribution of classes given one latent function, of two by default."""

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return 2

    @abc.abstractmethod
    def _terms(self, y, f):
        """Return `log_prob` (..., b) and its two derivatives in f, stacked: (..., b, 3)."""

    @torch.no_grad()
    def expected_terms(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return expectations of derivatives of `log_prob` itself; the second is not positive."""
        value, *derivatives = expect(partial(self._terms, y), mean, var).split(1, -1)
        return value[..., 0], *derivatives

    def predict(self, mean: Tensor, var: Tensor) -> Tensor:
        codes = torch.arange(self.n_classes, device=mean.device)
        return torch.stack([self.log_marginal(code, mean, var) for code in codes], -1).exp()


class Probit(SingleLatent):
    """Two classes, ``P(y = 1 | f) = Phi(f)``, with the standard normal distribution function Phi.

    Notes
    -----
    Source: Rasmussen and Williams (2006), section 3.9, (3.82).
    """

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return log_ndtr(_signed(y, f))

    def _terms(self, y, f):
        # With r = phi(z) / Phi(z), the derivatives of log Phi(z) are r and -r (z + r). The latter
        # is the variance, less one, of a normal variable below z.
        z = _signed(y, f).double()
        ratio = log_inverse_mills(z).exp()
        second = (-ratio * (z + ratio)).clamp(-1, 0)
        return torch.stack([log_ndtr(z), (2 * y - 1) * ratio, second], -1).to(f)

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return log_ndtr(_signed(y, mean / (1 + var).sqrt()))


class Logistic(SingleLatent):
    """Two classes, ``P(y = 1 | f) = 1 / (1 + exp(-f))``.

    Notes
    -----
    Every expectation is by quadrature. The error of `expected_log_prob` is at most 1e-14, 9e-6 and
    1e-2 at variances 1, 10 and 100.
    """

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(_signed(y, f))

    def _terms(self, y, f):
        p = torch.sigmoid(single(f))
        return torch.stack([self.log_prob(y, f), y - p, p * (p - 1)], -1)


class Softmax(Likelihood):
    """Several classes, ``P(y | f) = exp(f_y) / sum over k of exp(f_k)``, a latent function each.

    Expectations are averages over points of a scrambled Sobol sequence and their mirror images, the
    same for all rows: 128 while learning, 512 of probabilities. With ten classes and a variance of
    5 the former are up to 0.1 nats off the expected logarithm, either way, the latter up to .01.

    Parameters
    ----------
    order : sequence of int, default=None
        Coordinate of the points for each class; None is the order of the codes. The points are not
        symmetric under permutations of the classes. If the order follows a property of the classes
        other than their codes, a permutation of the codes permutes all expectations.
    """

    step = 0.7
    relative = coupled = True
    n_points = 64  # of expectations, half of the draws

    def __init__(self, order: Sequence[int] | None = None) -> None:
        super().__init__()
        self.order = None if order is None else list(order)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.log_softmax(f, -1).gather(-1, _index(y, f))[..., 0]

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        true = mean.gather(-1, _index(y, mean))[..., 0]
        log_sum = self._over_draws(lambda f: torch.logsumexp(f, 0).mean(-1)[None], mean, var)
        return true - log_sum[..., 0]

    def expected_terms(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return expectations of derivatives of `log_prob` itself; the second is not positive."""

        def moments(f):
            largest = f.amax(0)
            p = (f - largest).exp_()
            total = p.sum(0)
            p /= total
            log_sum = (largest + total.log()).mean(-1)
            squares = torch.linalg.vecdot(p, p) / p.shape[-1]
            return torch.cat([log_sum[None], p.mean(-1), squares])

        c = mean.shape[-1]
        log_sum, p, squares = self._over_draws(moments, mean, var).split([1, c, c], -1)
        index = _index(y, mean)
        value = (mean.gather(-1, index) - log_sum)[..., 0]
        return value, (-p).scatter_add(-1, index, torch.ones_like(p)), squares - p

    def expected_hessian(self, mean: Tensor, var: Tensor) -> Tensor:
        """Return the expected second derivatives of `log_prob` in all latent values.

        Parameters
        ----------
        mean, var : Tensor of shape (b, c)
            Moments of the latent values.

        Returns
        -------
        hessian : Tensor of shape (b, c, c)
            Negative semidefinite.
        """

        def second(f):
            p = torch.softmax(f, 0).movedim(0, 1)
            products = p @ p.mT / p.shape[-1]
            return (products - torch.diag_embed(p.mean(-1))).flatten(1).T

        return self._over_draws(second, mean, var).unflatten(-1, (-1, mean.shape[-1]))

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        def log_mean(f):
            return torch.logsumexp(torch.log_softmax(f, 0), -1) - math.log(f.shape[-1])

        log_p = self._over_draws(log_mean, mean, var, _PREDICTIVE_POINTS)
        return log_p.gather(-1, _index(y, log_p))[..., 0]

    def predict(self, mean: Tensor, var: Tensor) -> Tensor:
        def average(f):
            return torch.softmax(f, 0).mean(-1)

        return self._over_draws(average, mean, var, _PREDICTIVE_POINTS)

    def _over_draws(self, function, mean, var, n_points=None):
        """Reduce latent draws (c, b, s) to (k, b) by a function, in blocks of rows.

        Classes come first and draws last, since a reduction over a short last axis is slow. The
        result has the shape (..., b, k).
        """
        mean, var = torch.broadcast_tensors(mean, var)
        z = normal_points(n_points or self.n_points, mean.shape[-1], mean).T
        z = (z if self.order is None else z[self.order])[:, None]
        step = block_rows(z.numel(), SMALL_BLOCK)
        flat = (part.flatten(0, -2).T[..., None].split(step, 1) for part in (mean, safe_std(var)))
        found = torch.cat([function(m + std * z) for m, std in zip(*flat, strict=True)], 1)
        return found.T.unflatten(0, mean.shape[:-1])


class RobustMax(Likelihood):
    """Several classes: that of the largest latent function, but for a few random labels.

    Parameters
    ----------
    noise : float
        Probability that the label is one of the others.

    Notes
    -----
    Source: Hernandez-Lobato et al. (2011), Robust multi-class Gaussian process classification. The
    expectations are exact up to quadrature.
    """

    step = 0.5
    relative = redescending = True

    def __init__(self, noise: float = 1e-3) -> None:
        super().__init__()
        if not 0 < noise < 1:
            raise ValueError(f"noise must be between 0 and 1, got {noise!r}")
        self.noise = noise

    def _levels(self, c):
        """Return the log probabilities of the label of the largest latent, and of any other."""
        return math.log1p(-self.noise), math.log(self.noise / (c - 1))

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        right, wrong = self._levels(f.shape[-1])
        return torch.where(f.argmax(-1) == y, f.new_tensor(right), f.new_tensor(wrong))

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        right, wrong = self._levels(mean.shape[-1])
        p = argmax_probability(mean, var).gather(-1, _index(y, mean))[..., 0]
        return wrong + (right - wrong) * p

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return self.predict(mean, var).gather(-1, _index(y, mean))[..., 0].log()

    def predict(self, mean: Tensor, var: Tensor) -> Tensor:
        c = mean.shape[-1]
        share = self.noise / (c - 1)
        return share + (1 - self.noise - share) * argmax_probability(mean, var)


class _Hinge(Likelihood):
    """Pseudo-likelihood ``exp(-2 max(v, 0))`` of a margin violation v that is affine in f."""

    @abc.abstractmethod
    def violation_moments(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and variance of the margin violation.

        Parameters
        ----------
        y : Tensor of shape (b,)
            Class codes.
        mean, var : Tensor of shape (..., b, c)
            Moments of the latent values.

        Returns
        -------
        mean_b, var_b : Tensor of shape (..., b)
            Moments of the violation by which `log_prob` is ``-2 max(violation, 0)``.
        """

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        violation, _ = self.violation_moments(y, f, torch.zeros_like(f))
        return -2 * violation.clamp_min(0)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        h, _ = expected_hinge(*self.violation_moments(y, mean, var))
        return -h

    def log_marginal(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        mean_b, var_b = self.violation_moments(y, mean, var)
        met = log_ndtr(-mean_b / safe_std(var_b))
        return torch.logaddexp(met, log_expected_decay(2.0, mean_b, var_b))


class BinaryHinge(_Hinge):
    """Bayesian SVM with two classes, coded 0 and 1, and one latent function.

    With s = 2 y - 1 the margin violation is ``b = 1 - s f`` and `log_prob` is ``-2 max(b, 0)``: a
    *pseudo*-likelihood, which does not sum to one over the classes. Objectives built on it must not
    be compared with those of proper likelihoods. `expected_log_prob` is the tight bound
    ``-E[b] - sqrt(E[b^2]) <= E[log_prob]`` of the scale-mixture augmentation at its best
    augmentation variable; `log_marginal` is exact. `predict` gives the probability of the sign of
    the latent function, ``P(y = 1) = Phi(mean / sqrt(var))``.

    Notes
    -----
    Source: Polson and Scott (2011); Wenzel et al. (2017).
    """

    def violation_moments(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return 1 - _signed(y, mean), single(var)

    def predict(self, mean: Tensor, var: Tensor) -> Tensor:
        z = single(mean / safe_std(var))
        return normal_cdf(torch.stack([-z, z], -1))


class MulticlassHinge(_Hinge):
    """Multi-class Bayesian SVM (Crammer–Singer hinge): one latent function for each class.

    `log_prob` is ``-2 max(b, 0)`` with the margin violation ``b = 1 + max_{t != y} f_t - f_y``: a
    *pseudo*-likelihood, which does not sum to one over the classes. Under a Gaussian the contrast
    class t of each row is the wrong one of largest mean, of several the first, and no gradient
    flows through that choice. `expected_log_prob` is ``-E[b] - sqrt(E[b^2])`` and `log_marginal`
    exact for the violation so fixed, which is at most the violation with the maximum inside. So
    objectives built on them bound the evidence of that relaxed model only, and must not be compared
    with those of proper likelihoods. `predict` gives the probability that a class has the largest
    latent value: the limit of the paper's sampled frequencies, over-confident on noisy data.

    Notes
    -----
    Source: Wistuba and Rawat (2018); the user guide for the soft contrast.
    """

    @torch.no_grad()
    def contrast_class(self, y: Tensor, mean: Tensor) -> Tensor:
        """Return the code of the wrong class that each row is compared with.

        Parameters
        ----------
        y : Tensor of shape (b,)
            Class codes.
        mean : Tensor of shape (..., b, c)
            Means of the latent values, c >= 2.

        Returns
        -------
        t : Tensor of shape (..., b), int64
            Never equal to `y`.

        Raises
        ------
        ValueError
            If there is only one latent function.
        """
        if mean.shape[-1] < 2:
            raise ValueError("MulticlassHinge needs at least two latent functions, got one")
        return mean.scatter(-1, _index(y, mean), -torch.inf).argmax(-1)

    def violation_moments(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        true, wrong = _index(y, mean), _index(self.contrast_class(y, mean), mean)
        mean_b = 1 + mean.gather(-1, wrong) - mean.gather(-1, true)
        var_b = var.gather(-1, wrong) + var.gather(-1, true)
        return mean_b[..., 0], var_b[..., 0]

    def predict(self, mean: Tensor, var: Tensor) -> Tensor:
        return argmax_probability(mean, var)


def expected_hinge(mean_b: Tensor, var_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the collapsed expected hinge loss of a Gaussian margin violation b, elementwise.

    Parameters
    ----------
    mean_b, var_b : Tensor
        Moments of b, of one shape. Variances may be zero.

    Returns
    -------
    h : Tensor
        ``E[b] + sqrt(E[b^2])``, at least ``2 E[max(b, 0)]``; equal to ``2 max(b, 0)`` if the
        variance is zero.
    r : Tensor
        ``sqrt(E[b^2])``, the root of the best augmentation variable; never zero. The derivatives
        of h are h / r in the mean and 1 / (2 r) in the variance.

    Notes
    -----
    Source: Polson and Scott (2011). The sum is rewritten as
    ``2 max(E[b], 0) + var_b / (r + |E[b]|)``, which does not cancel where E[b] is very negative.
    """
    size = mean_b.abs()
    r = torch.hypot(mean_b, safe_std(var_b))
    return mean_b + size + var_b / (r + size), r


def single(f):
    """Return the only latent function, (..., b, 1) -> (..., b)."""
    if f.shape[-1] != 1:
        raise ValueError(f"The likelihood has one latent function, got {f.shape[-1]}")
    return f[..., 0]


def _signed(y, f):
    """Return the only latent function, (..., b), with its sign flipped where the code y is 0."""
    return (2 * y - 1) * single(f)


def _index(y, f):
    """Return codes (b,) as an index (..., b, 1) into the last axis of f (..., b, c)."""
    return y.expand(f.shape[:-1])[..., None]
