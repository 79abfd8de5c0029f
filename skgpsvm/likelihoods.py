"""Likelihoods: what an observation says about the latent functions at its row."""

import abc
import copy
import functools
import math

import torch
from torch.special import erfcx

from ._quadrature import argmax_probability, expect, log_expect, normal_cdf, normal_points, safe_std

__all__ = [
    "BinaryHinge",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "Logistic",
    "MulticlassHinge",
    "Probit",
    "RobustMax",
    "Softmax",
    "StudentT",
    "expected_hinge",
]


class Likelihood(torch.nn.Module, abc.ABC):
    """Distribution of the observations of a row given its c latent function values.

    All methods take one row per entry of the axis ``b`` and never mix rows.

    * ``f``, ``mean``, ``var`` have shape (..., b, c): latent values, or the means and variances of
      independent Gaussian latent values. Leading axes, of samples say, broadcast.
    * ``y`` holds int64 codes 0, ..., n_classes - 1 of shape (b,) for classifiers, and floats of
      shape (b, c), one for each latent function, for regressors. Codes are not checked.

    Parameters, if any, are kept as logarithms in float64. The defaults of `expected_log_prob` and
    `log_marginal` are Gauss–Hermite quadrature with 32 nodes and hold for a single latent function
    (c = 1); closed forms override them.

    Attributes
    ----------
    step : float
        Size of natural-gradient steps on all rows that converges, at most 1.
    """

    step = 1.0

    def at(self, parameters):
        """The same likelihood with other parameters.

        Parameters
        ----------
        parameters : torch.Tensor of shape (k,)
            Logarithms, in the order of ``self.parameters()``; differentiable.

        Returns
        -------
        likelihood : Likelihood
        """
        other, names = copy.deepcopy(self), dict(self.named_parameters())
        values = parameters.split([old.numel() for old in names.values()])
        for (name, old), value in zip(names.items(), values, strict=True):
            delattr(other, name)
            setattr(other, name, value.view_as(old))
        return other

    @abc.abstractmethod
    def log_prob(self, y, f):
        """Log density of observations given latent values.

        Parameters
        ----------
        y : torch.Tensor of shape (b,) or (b, c)
            Class codes or targets.
        f : torch.Tensor of shape (..., b, c)
            Latent values.

        Returns
        -------
        log_prob : torch.Tensor of shape (..., b)
            In nats, summed over the columns of `y`.
        """

    def expected_log_prob(self, y, mean, var):
        """Expectation of `log_prob` over independent Gaussian latent values.

        Parameters
        ----------
        y : torch.Tensor of shape (b,) or (b, c)
            Class codes or targets.
        mean, var : torch.Tensor of shape (..., b, c)
            Moments of the latent values; variances may be zero.

        Returns
        -------
        expected_log_prob : torch.Tensor of shape (..., b)
            In nats.
        """
        return expect(functools.partial(self.log_prob, y), mean, var)

    @torch.enable_grad()
    def expected_derivatives(self, y, mean, var):
        """Expectations of the first and second derivative of `log_prob` in each latent value.

        Parameters
        ----------
        y : torch.Tensor of shape (b,) or (b, c)
            Class codes or targets.
        mean, var : torch.Tensor of shape (b, c)
            Moments of the latent values.

        Returns
        -------
        first, second : torch.Tensor of shape (b, c)
            Derivatives of `expected_log_prob`: in the mean, and twice that in the variance.
        """
        mean, var = mean.detach().requires_grad_(), var.detach().requires_grad_()
        first, half = torch.autograd.grad(self.expected_log_prob(y, mean, var).sum(), (mean, var))
        return first, 2 * half

    def log_marginal(self, y, mean, var):
        """Log of the expected density, ``log E[exp(log_prob(y, f))]``, f ~ N(mean, var).

        Parameters
        ----------
        y : torch.Tensor of shape (b,) or (b, c)
            Class codes or targets.
        mean, var : torch.Tensor of shape (..., b, c)
            Moments of the latent values; variances may be zero.

        Returns
        -------
        log_marginal : torch.Tensor of shape (..., b)
            In nats.
        """
        return log_expect(functools.partial(self.log_prob, y), mean, var)

    @abc.abstractmethod
    def predict(self, mean, var):
        """Predictive distribution of a new observation.

        Parameters
        ----------
        mean, var : torch.Tensor of shape (b, c)
            Moments of the latent values; variances may be zero.

        Returns
        -------
        prediction : torch.Tensor of shape (b, n_classes) or tuple of two tensors of shape (b, c)
            Class probabilities, whose rows sum to one; or the mean and the variance of the
            observation, noise included.
        """


class Gaussian(Likelihood):
    """Gaussian noise, ``y ~ N(f, noise_var)``, independent over columns.

    Parameters
    ----------
    noise_var : float or array-like of shape (c,)
        Variance of the noise, of all columns or of each, in squared units of y. The trainable
        parameter is `log_noise_var`.

    Raises
    ------
    ValueError
        If `noise_var` is not positive and finite.
    """

    def __init__(self, noise_var=1.0):
        super().__init__()
        self.log_noise_var = _log_parameter("noise_var", noise_var)

    @property
    def noise_var(self):
        """Variance of the noise, a tensor."""
        return self.log_noise_var.exp()

    def log_prob(self, y, f):
        return _log_normal(y - f, self.noise_var).sum(-1)

    def expected_log_prob(self, y, mean, var):
        return (_log_normal(y - mean, self.noise_var) - 0.5 * var / self.noise_var).sum(-1)

    def log_marginal(self, y, mean, var):
        return _log_normal(y - mean, var + self.noise_var).sum(-1)

    def predict(self, mean, var):
        return mean, var + self.noise_var


class Laplace(Likelihood):
    """Laplace noise, density ``exp(-|y - f| / scale) / (2 scale)``, independent over columns.

    Parameters
    ----------
    scale : float or array-like of shape (c,)
        Mean absolute deviation of the noise, in units of y; its variance is ``2 scale**2``. The
        trainable parameter is `log_scale`.

    Raises
    ------
    ValueError
        If `scale` is not positive and finite.

    Notes
    -----
    Source: quadruply stochastic GP specification, section 4.7.1 (the expected absolute value).
    """

    def __init__(self, scale=1.0):
        super().__init__()
        self.log_scale = _log_parameter("scale", scale)

    @property
    def scale(self):
        """Mean absolute deviation of the noise, a tensor."""
        return self.log_scale.exp()

    step = 0.5

    def log_prob(self, y, f):
        return -((y - f).abs() / self.scale + self._log_normalizer()).sum(-1)

    def expected_log_prob(self, y, mean, var):
        expected = _expected_abs((y - mean) / self.scale, var / self.scale**2)
        return -(expected + self._log_normalizer()).sum(-1)

    def log_marginal(self, y, mean, var):
        residual, var = (y - mean) / self.scale, var / self.scale**2
        right = _log_expected_decay(1.0, residual, var)
        left = _log_expected_decay(1.0, -residual, var)
        return (torch.logaddexp(left, right) - self._log_normalizer()).sum(-1)

    def predict(self, mean, var):
        return mean, var + 2 * self.scale**2

    def _log_normalizer(self):
        """log(2 scale)."""
        return math.log(2.0) + self.log_scale


class StudentT(Likelihood):
    """Student's t noise about f, independent over columns: Gaussian noise with outliers.

    Parameters
    ----------
    scale : float or array-like of shape (c,)
        In units of y. The trainable parameter is `log_scale`.
    dof : float
        Degrees of freedom, above 2, so that the noise has a variance.

    Raises
    ------
    ValueError
        If `scale` is not positive and finite, or `dof` not above 2.
    """

    step = 0.5

    def __init__(self, scale=1.0, dof=4.0):
        super().__init__()
        if not 2 < dof < math.inf:
            raise ValueError(f"dof must be above 2 and finite, got {dof!r}")
        self.log_scale, self.dof = _log_parameter("scale", scale), dof

    def log_prob(self, y, f):
        return self._log_density(y, f).sum(-1)

    def _log_density(self, y, f):
        half = 0.5 * (self.dof + 1)
        normalizer = math.lgamma(0.5 * self.dof) - math.lgamma(half)
        normalizer += 0.5 * math.log(self.dof * math.pi)
        spread = torch.log1p(((y - f) / self.log_scale.exp()).square() / self.dof)
        return -half * spread - normalizer - self.log_scale

    def expected_log_prob(self, y, mean, var):
        return expect(functools.partial(self._log_density, y), mean, var).sum(-1)

    def log_marginal(self, y, mean, var):
        return log_expect(functools.partial(self._log_density, y), mean, var).sum(-1)

    def predict(self, mean, var):
        return mean, var + self.dof / (self.dof - 2) * (2 * self.log_scale).exp()


class _Bernoulli(Likelihood):
    """A normalised distribution of two classes, coded 0 and 1, given one latent function."""

    @torch.enable_grad()
    def expected_derivatives(self, y, mean, var):
        """By the derivatives of `log_prob` itself, so that the second is never positive."""

        def derivatives(f):
            f = f.detach().requires_grad_()
            (first,) = torch.autograd.grad(self.log_prob(y, f).sum(), f, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), f)
            return torch.stack([first.detach(), second], 1)

        return expect(derivatives, mean, var).unbind()

    def predict(self, mean, var):
        return torch.stack([self.log_marginal(code, mean, var) for code in (0, 1)], -1).exp()


class Probit(_Bernoulli):
    """Two classes, ``P(y = 1 | f) = Phi(f)``, with the standard normal distribution function Phi.

    Notes
    -----
    Source: scalable EP specification, section 3; multi-class Bayesian SVM specification, 5.5.
    """

    def log_prob(self, y, f):
        return _log_ndtr(_signed(y, f))

    def log_marginal(self, y, mean, var):
        return _log_ndtr(_signed(y, mean / (1 + var).sqrt()))


class Logistic(_Bernoulli):
    """Two classes, ``P(y = 1 | f) = 1 / (1 + exp(-f))``.

    Notes
    -----
    Every expectation is by quadrature. The error of `expected_log_prob` is at most 1e-14, 9e-6 and
    1e-2 at variances 1, 10 and 100.
    """

    def log_prob(self, y, f):
        return torch.nn.functional.logsigmoid(_signed(y, f))


class Softmax(Likelihood):
    """Several classes, ``P(y | f) = exp(f_y) / sum over k of exp(f_k)``, a latent function each.

    Expectations are averages over 64 points of a scrambled Sobol sequence and their mirror images,
    the same for all rows.
    """

    step = 0.7

    def log_prob(self, y, f):
        return torch.log_softmax(f, -1).gather(-1, _index(y, f))[..., 0]

    def expected_log_prob(self, y, mean, var):
        true = mean.gather(-1, _index(y, mean))[..., 0]
        return true - torch.logsumexp(self._draws(mean, var), -1).mean(0)

    def expected_derivatives(self, y, mean, var):
        """By the derivatives of `log_prob` itself, so that the second is never positive."""
        p = torch.softmax(self._draws(mean, var), -1)
        first = -p.mean(0)
        return first.scatter_add(1, y[:, None], torch.ones_like(first)), (p * (p - 1)).mean(0)

    def log_marginal(self, y, mean, var):
        log_p = self.log_prob(y, self._draws(mean, var))
        return torch.logsumexp(log_p, 0) - math.log(len(log_p))

    def predict(self, mean, var):
        return torch.softmax(self._draws(mean, var), -1).mean(0)

    def _draws(self, mean, var):
        z = normal_points(64, mean.shape[-1], mean).reshape(
            -1, *[1] * (mean.ndim - 1), mean.shape[-1]
        )
        return mean + safe_std(var) * z


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

    def __init__(self, noise=1e-3):
        super().__init__()
        if not 0 < noise < 1:
            raise ValueError(f"noise must be between 0 and 1, got {noise!r}")
        self.noise = noise

    def _levels(self, c):
        """Log probabilities of the label of the largest latent, and of any other."""
        return math.log1p(-self.noise), math.log(self.noise / (c - 1))

    def log_prob(self, y, f):
        right, wrong = self._levels(f.shape[-1])
        return torch.where(f.argmax(-1) == y, f.new_tensor(right), f.new_tensor(wrong))

    def expected_log_prob(self, y, mean, var):
        right, wrong = self._levels(mean.shape[-1])
        p = argmax_probability(mean, var).gather(-1, _index(y, mean))[..., 0]
        return wrong + (right - wrong) * p

    def log_marginal(self, y, mean, var):
        return self.predict(mean, var).gather(-1, _index(y, mean))[..., 0].log()

    def predict(self, mean, var):
        c = mean.shape[-1]
        share = self.noise / (c - 1)
        return share + (1 - self.noise - share) * argmax_probability(mean, var)


class _Hinge(Likelihood):
    """Pseudo-likelihood ``exp(-2 max(v, 0))`` of a margin violation v that is affine in f."""

    @abc.abstractmethod
    def violation_moments(self, y, mean, var):
        """Mean and variance of the margin violation.

        Parameters
        ----------
        y : torch.Tensor of shape (b,)
            Class codes.
        mean, var : torch.Tensor of shape (..., b, c)
            Moments of the latent values.

        Returns
        -------
        mean_b, var_b : torch.Tensor of shape (..., b)
            Moments of the violation by which `log_prob` is ``-2 max(violation, 0)``.
        """

    def log_prob(self, y, f):
        violation, _ = self.violation_moments(y, f, torch.zeros_like(f))
        return -2 * violation.clamp_min(0)

    def expected_log_prob(self, y, mean, var):
        h, _ = expected_hinge(*self.violation_moments(y, mean, var))
        return -h

    def log_marginal(self, y, mean, var):
        mean_b, var_b = self.violation_moments(y, mean, var)
        met = _log_ndtr(-mean_b / safe_std(var_b))
        return torch.logaddexp(met, _log_expected_decay(2.0, mean_b, var_b))


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
    Source: multi-class Bayesian SVM specification, sections 3.7 and 5.5, (S9); Wenzel et al. 2017.
    """

    def violation_moments(self, y, mean, var):
        return 1 - _signed(y, mean), _single(var)

    def predict(self, mean, var):
        z = _single(mean / safe_std(var))
        return normal_cdf(torch.stack([-z, z], -1))


class MulticlassHinge(_Hinge):
    """Multi-class Bayesian SVM (Crammer–Singer hinge): one latent function for each class.

    `log_prob` is ``-2 max(b, 0)`` with the margin violation ``b = 1 + max_{t != y} f_t - f_y``: a
    *pseudo*-likelihood, which does not sum to one over the classes. Under a Gaussian the contrast
    class t of each row is fixed by the rule `contrast`, and then no gradient flows through the
    choice. `expected_log_prob` is ``-E[b] - sqrt(E[b^2])`` and `log_marginal` exact for the
    violation so fixed, which is at most the violation with the maximum inside. So objectives built
    on them bound the evidence of that relaxed model only, and must not be compared with those of
    proper likelihoods. `predict` gives the probability that a class has the largest latent value:
    the limit of the paper's sampled frequencies, over-confident on noisy data.

    Parameters
    ----------
    contrast : {"mean", "bound"}
        The wrong class that a row is compared with: the one with the largest mean, or the one with
        the largest expected hinge. Ties go to the lowest code.

    Raises
    ------
    ValueError
        If `contrast` is neither.

    Notes
    -----
    Source: multi-class Bayesian SVM specification, (S1), (S9), (S19), sections 4.1 and 5.3;
    Wistuba and Rawat 2018.
    """

    def __init__(self, contrast="mean"):
        super().__init__()
        if contrast not in ("mean", "bound"):
            raise ValueError(f"contrast must be 'mean' or 'bound', got {contrast!r}")
        self.contrast = contrast

    @torch.no_grad()
    def contrast_class(self, y, mean, var):
        """Code of the wrong class that each row is compared with.

        Parameters
        ----------
        y : torch.Tensor of shape (b,)
            Class codes.
        mean, var : torch.Tensor of shape (..., b, c)
            Moments of the latent values, c >= 2.

        Returns
        -------
        t : torch.Tensor of shape (..., b), int64
            Never equal to `y`.

        Raises
        ------
        ValueError
            If there is only one latent function.
        """
        if mean.shape[-1] < 2:
            raise ValueError("MulticlassHinge needs at least two latent functions, got one")
        true = _index(y, mean)
        if self.contrast == "mean":
            score = mean.clone()
        else:
            mean_b = 1 + mean - mean.gather(-1, true)
            score, _ = expected_hinge(mean_b, var + var.gather(-1, true))
        return score.scatter_(-1, true, -torch.inf).argmax(-1)

    def violation_moments(self, y, mean, var):
        true, wrong = _index(y, mean), _index(self.contrast_class(y, mean, var), mean)
        mean_b = 1 + mean.gather(-1, wrong) - mean.gather(-1, true)
        var_b = var.gather(-1, wrong) + var.gather(-1, true)
        return mean_b[..., 0], var_b[..., 0]

    def predict(self, mean, var):
        return argmax_probability(mean, var)


def expected_hinge(mean_b, var_b):
    """Collapsed expected hinge loss of a Gaussian margin violation b, elementwise.

    Parameters
    ----------
    mean_b, var_b : torch.Tensor
        Moments of b, of one shape. Variances may be zero.

    Returns
    -------
    h : torch.Tensor
        ``E[b] + sqrt(E[b^2])``, at least ``2 E[max(b, 0)]``; equal to ``2 max(b, 0)`` if the
        variance is zero.
    r : torch.Tensor
        ``sqrt(E[b^2])``, the root of the best augmentation variable; never zero. The derivatives
        of h are h / r in the mean and 1 / (2 r) in the variance.

    Notes
    -----
    Source: multi-class Bayesian SVM specification, (S9) and section 9. The sum is rewritten as
    ``2 max(E[b], 0) + var_b / (r + |E[b]|)``, which does not cancel where E[b] is very negative.
    """
    size = mean_b.abs()
    r = torch.hypot(mean_b, safe_std(var_b))
    return mean_b + size + var_b / (r + size), r


def _log_parameter(name, value):
    """Trainable logarithm of positive numbers."""
    values = torch.as_tensor(value, dtype=torch.float64)
    if not ((values > 0) & (values < math.inf)).all():
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return torch.nn.Parameter(values.log())


def _single(f):
    """The only latent function, (..., b, 1) -> (..., b)."""
    if f.shape[-1] != 1:
        raise ValueError(f"A binary likelihood has one latent function, got {f.shape[-1]}")
    return f[..., 0]


def _signed(y, f):
    """The only latent function, with its sign turned where the code y is 0: (..., b)."""
    return (2 * y - 1) * _single(f)


def _index(y, f):
    """Codes (b,) as an index of shape (..., b, 1) into the last axis of f (..., b, c)."""
    return y.expand(f.shape[:-1])[..., None]


def _log_normal(residual, var):
    """Log density of N(0, var) at the residual."""
    return -0.5 * (residual**2 / var + torch.log(2 * math.pi * var))


def _log_ndtr(x):
    """log Phi(x); in the far tail torch's own is right but its derivatives are not."""
    tail = _log_upper_tail(-x.clamp_max(0)) - 0.5 * x.clamp_max(0) ** 2
    return torch.where(x < 0, tail, torch.log1p(-normal_cdf(-x.clamp_min(0))))


def _log_upper_tail(z):
    """log(Phi(-z) exp(z^2 / 2)) for z >= 0."""
    return torch.log(0.5 * erfcx(z / math.sqrt(2)))


def _expected_abs(mean, var):
    """E|x| of x ~ N(mean, var)."""
    std = safe_std(var)
    z = mean / std
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(z / math.sqrt(2))


def _log_expected_decay(rate, mean, var):
    """log E[exp(-rate x) 1{x > 0}] of x ~ N(mean, var)."""
    std = safe_std(var)
    z = rate * std - mean / std
    # rate^2 var / 2 - rate mean + log Phi(-z), whose terms cancel where z > 0.
    tail = _log_upper_tail(z.clamp_min(0)) - 0.5 * (mean / std) ** 2
    body = 0.5 * (rate * std) ** 2 - rate * mean + _log_ndtr(-z.clamp_max(0))
    return torch.where(z > 0, tail, body)
