"""Calibrated class probabilities, those of the paper's argmax rule, and gains of losses."""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch

from ._quadrature import argmax_probability

# Prior and bounds of the logarithms of temperature and spread, and of the share, in this order.
_PRIOR_STDS = 2.0, 2.0, 1.0
_BOUNDS = ((math.log(0.05), math.log(100.0)), (math.log(1e-3), math.log(100.0)), (-5.0, 5.0))
# The same of the logarithm of the power of a likelihood's probabilities.
_POWER_PRIOR_STD = 0.5
_POWER_BOUNDS = ((math.log(0.1), math.log(10.0)),)
_NEWTON_STEPS = 50
_MAX_HALVINGS = 20
_MIN_DECREASE = 1e-8  # of the loss, relative; predicted for a further step


def is_significant_gain(gain, n_errors=1.0):
    """Return whether the sum of gains of rows exceeds so many of its standard errors.

    A single row has none.
    """
    return len(gain) > 1 and bool(gain.sum() > n_errors * gain.std() * math.sqrt(len(gain)))


def calibrated_scores(mean, var, temperature, intercept):
    r"""Return the logits :math:`(\tau m + b) / \sqrt{1 + \pi \tau^2 v / 8}`, (b, c).

    Their softmax approximates the average of softmax(tau f + b) over the latents. Source: MacKay
    (1992), the probit approximation of the logistic integral, for each latent.
    """
    return (temperature * mean + intercept) / (1 + math.pi / 8 * temperature**2 * var).sqrt()


def tempered(log_p, power, log_frequencies=()):
    """Return log probabilities (..., n_classes) whose ratios to frequencies are raised to a power.

    Without ``log_frequencies``, a tuple of floats, classes are equally frequent.
    """
    if power == 1:
        return log_p
    base = log_p.new_tensor(log_frequencies) if log_frequencies else 0.0
    return (base + power * (log_p - base)).log_softmax(-1)


def log_frequencies_of(n_classes, targets, weights):
    """Return the logarithms of the class frequencies, a tensor (n_classes,).

    Half a row of each class keeps the frequencies positive.
    """
    counts = torch.bincount(targets, weights.double(), n_classes) + 0.5
    return (counts / counts.sum()).log()


def log_probability(logits):
    """Return log class probabilities; one logit means two classes, (b, 1) -> (b, 2)."""
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], -1)
    return torch.log_softmax(logits, -1)


@dataclass(frozen=True)
class _Fitted:
    """Parameters of class probabilities, fitted to the rows so far, which they summarize."""

    values: tuple  # of k floats: the parameters; of scales, their logarithms
    precision: tuple  # of k tuples of k floats: curvature of the penalized loss at `values`
    # loss, weight: weighted sum of the rows' negative log probabilities, in nats, and their total
    # weight
    loss: float = 0.0
    weight: float = 0.0

    @property
    def log_loss(self):
        """Return the mean negative log probability, in nats; NaN without rows."""
        return self.loss / self.weight if self.weight else math.nan

    def _after(self, derivatives, weight, bounds=None):
        """Return the parameters after more rows, for which the present ones are the prior.

        ``derivatives`` takes parameters (k,) and returns the loss of the rows, its gradient and
        Hessian; ``weight`` is the total weight of the rows. Without bounds, a pair for each, the
        parameters stay.
        """
        best, precision = weight.new_tensor(self.values), weight.new_tensor(self.precision)
        if bounds is not None:
            prior, prior_precision = best, precision

            def penalized(values):
                prior_gradient = prior_precision @ (values - prior)
                penalty = 0.5 * prior_gradient @ (values - prior), prior_gradient, prior_precision
                return tuple(a + b for a, b in zip(derivatives(values), penalty, strict=True))

            best, hessian = _minimum(penalized, prior, weight.new_tensor(bounds))
            curvatures, vectors = torch.linalg.eigh(hessian)
            precision = vectors * curvatures.clamp_min(0) @ vectors.T
        return replace(
            self,
            values=tuple(best.tolist()),
            precision=tuple(map(tuple, precision.tolist())),
            loss=self.loss + derivatives(best)[0].item(),
            weight=self.weight + weight.item(),
        )


@dataclass(frozen=True)
class Calibration(_Fitted):
    """Calibration of class probabilities: temperature, spread of variances, and intercepts.

    Under a pseudo-likelihood, neither the scale of the latents nor that of their uncertainty
    determines how often they are right. The intercepts are a share of the logarithms of the class
    frequencies, and give these frequencies where the latents say nothing. The parameters are the
    logarithms of temperature and spread, and the share.
    """

    values: tuple = (0.0, 0.0, 0.0)
    precision: tuple = tuple(map(tuple, torch.tensor(_PRIOR_STDS).pow(-2).diag().tolist()))
    # Of c classes; of two classes, only the log odds of the second
    log_frequencies: tuple = ()

    @classmethod
    def prior(cls, n_latents, targets, weights):
        """Return the calibration before any rows, with the class frequencies of given targets."""
        logs = log_frequencies_of(max(n_latents, 2), targets, weights)
        logs = logs if n_latents > 1 else logs[1:] - logs[:1]
        return cls(log_frequencies=tuple(logs.tolist()))

    @property
    def temperature(self):
        """Return the factor of the latents."""
        return math.exp(self.values[0])

    @property
    def spread(self):
        """Return the factor of the latent variances."""
        return math.exp(self.values[1])

    @property
    def intercept(self):
        """Return the intercepts of the latents, a tensor (c,)."""
        return self.values[2] * torch.tensor(self.log_frequencies, dtype=torch.float64)

    def log_losses(self, mean, var, targets):
        """Return the negative log probabilities of rows (n,), in nats."""
        intercept = self.intercept.to(mean)
        scores = calibrated_scores(mean, self.spread * var, self.temperature, intercept)
        return -log_probability(scores).gather(1, targets[:, None])[:, 0]

    def updated(self, mean, var, targets, weights):
        """Return the calibration after more rows; this one summarizes all rows before them.

        ``mean`` and ``var`` are leave-one-out latent moments (n, c).
        """
        offset = mean.new_tensor(self.log_frequencies)
        derivatives = partial(_loss_derivatives, mean, var, offset, targets, weights)
        return self._after(derivatives, weights.sum(), _BOUNDS)

    def informed(self, mean, var, targets, weights, worth):
        """Return a prior with the calibration of some rows, which counts as few of them.

        See `updated` for the rows. The prior has the information of ``worth`` rows at most.
        """
        fitted = self.updated(mean, var, targets, weights)
        parts = self.precision, fitted.precision
        before, after = (torch.tensor(part, dtype=torch.float64) for part in parts)
        precision = before.lerp(after, min(worth / fitted.weight, 1.0)).tolist()
        return replace(self, values=fitted.values, precision=tuple(map(tuple, precision)))


@dataclass(frozen=True)
class Tempering(_Fitted):
    """Power that the class probabilities of a likelihood are raised to.

    One-vs-rest models, and priors of hyperparameters that keep weak signals small, make
    probabilities too cautious where classes are well separated. Functions that fit single rows make
    them too certain. Predictions of rows without them show it.
    """

    values: tuple = (0.0,)
    precision: tuple = ((_POWER_PRIOR_STD**-2,),)
    # Of the classes, which probabilities tend to as the power falls; of equal ones if empty
    log_frequencies: tuple = ()

    @classmethod
    def of_prior(cls, spread):
        """Return the tempering before any rows, with a prior deviation of the power's logarithm."""
        return cls(precision=((spread**-2,),))

    @classmethod
    def to_frequencies(cls, n_classes, targets, weights):
        """Return the tempering before any rows, towards the class frequencies of given targets."""
        logs = log_frequencies_of(n_classes, targets, weights)
        return cls(log_frequencies=tuple(logs.tolist()))

    @property
    def power(self):
        return math.exp(self.values[0])

    def updated(self, log_p, targets, weights, *, learns=True):
        """Return the tempering after more rows; this one summarizes all rows before them.

        ``log_p`` are leave-one-out log probabilities of the likelihood, (n, n_classes). Where the
        power is not learned, only the loss is summed.
        """
        base = log_p.new_tensor(self.log_frequencies) if self.log_frequencies else 0.0
        derivatives = partial(_power_derivatives, log_p - base, base, targets, weights)
        return self._after(derivatives, weights.sum(), _POWER_BOUNDS if learns else None)


def _minimum(function, start, bounds):
    """Minimize a function within bounds by Newton steps; return the point and the Hessian there.

    ``function`` returns value, gradient and Hessian. Negative eigenvalues of the Hessian change
    their sign, and steps are halved while the function grows. Coordinates at a bound that the
    gradient points out of are held.
    """
    point, (value, gradient, hessian) = start, function(start)
    for _ in range(_NEWTON_STEPS):
        outward = torch.where(gradient > 0, point <= bounds[:, 0], point >= bounds[:, 1])
        gradient = gradient.masked_fill(outward, 0)
        held = outward[:, None] | outward
        values, vectors = torch.linalg.eigh(hessian.masked_fill(held, 0))
        step = vectors @ (
            (vectors.T @ gradient) / values.abs().clamp_min(1e-10 + 1e-6 * abs(value))
        )
        if gradient @ step <= _MIN_DECREASE * abs(value):
            break
        for _ in range(_MAX_HALVINGS):
            new_point = (point - step).clamp(*bounds.unbind(-1))
            found = function(new_point)
            if found[0] < value:
                break
            step = step / 2
        else:
            break
        point, (value, gradient, hessian) = new_point, found
    return point, hessian


def _loss_derivatives(mean, var, offset, targets, weights, values):
    r"""Return the weighted loss, and its gradient and Hessian in the values of `Calibration`.

    With :math:`r = 1 / (1 + \pi\tau^2\phi v/8)` and :math:`q = 1 - r`, a logit is
    :math:`s = (\tau m + \beta o)\sqrt r`. The derivatives of r in the logarithms of :math:`\tau`
    and :math:`\phi` are :math:`-2rq` and :math:`-rq`. Those of s are therefore
    :math:`\tau m\sqrt r - qs` and :math:`-qs/2`, and :math:`o\sqrt r` in :math:`\beta`.
    """
    temperature, spread = values[:2].exp()
    r = 1 / (1 + math.pi / 8 * temperature**2 * spread * var)
    q = 1 - r
    scaled, shift = temperature * mean * r.sqrt(), offset * r.sqrt()
    s = scaled + values[2] * shift
    of_t, of_p = scaled - q * s, -0.5 * q * s
    first = torch.stack([of_t, of_p, shift])
    log_p = log_probability(s)
    p, log_likelihood = log_p.exp(), log_p.gather(1, targets[:, None])[:, 0]
    error = p.scatter_add(1, targets[:, None], -torch.ones_like(p[:, :1]))
    if s.shape[1] == 1:  # the logit of the first of two classes is zero
        p, error = p[:, 1:], error[:, 1:]
    gradient = (weights[:, None] * error * first).sum((1, 2))
    means = (p * first).sum(2)
    weighted = weights[:, None] * p * first
    hessian = torch.einsum("anc,bnc->ab", weighted, first) - (weights * means) @ means.T
    tt = scaled * r - q * (2 * r * s + of_t)
    tp, pp = -0.5 * q * (2 * r * s + of_t), -0.5 * q * (r * s + of_p)
    tb, pb = -q * shift, -0.5 * q * shift
    second = torch.stack([tt, tp, tb, tp, pp, pb, tb, pb, torch.zeros_like(s)])
    hessian = hessian + (weights[:, None] * error * second).sum((1, 2)).view(3, 3)
    return -(weights @ log_likelihood), gradient, hessian


def _power_derivatives(log_ratios, base, targets, weights, values):
    r"""Return the weighted loss, and its gradient and Hessian in the logarithm of the power.

    With log ratios r of the probabilities to the frequencies, whose logarithms are b, the logits
    are :math:`b + \ell` with :math:`\ell = s r`, and their derivatives in :math:`\log s` are
    :math:`\ell`. With the tempered probabilities q, those of the loss of a row of class y are
    :math:`E_q \ell - \ell_y` and :math:`\mathrm{Var}_q \ell + E_q \ell - \ell_y`.
    """
    logits = values.exp() * log_ratios
    log_q = (base + logits).log_softmax(1)
    mean = (log_q.exp() * logits).sum(1, keepdim=True)
    variance = (log_q.exp() * (logits - mean).square()).sum(1)
    own = targets[:, None]
    gradient = (mean - logits.gather(1, own))[:, 0]
    loss = -(weights @ log_q.gather(1, own)[:, 0])
    return loss, (weights @ gradient)[None], (weights @ (variance + gradient))[None, None]


def argmax_scores(mean, var):
    """Return logits of the probability that a class has the largest latent: the paper's rule."""
    if mean.shape[1] == 1:
        ratio = mean / var.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
        return torch.special.log_ndtr(ratio) - torch.special.log_ndtr(-ratio)
    return argmax_probability(mean, var).clamp_min(torch.finfo(mean.dtype).tiny).log()
