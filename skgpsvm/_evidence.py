"""The exact log evidence of GP regression on few rows, and its gradients."""

import math
from abc import ABC, abstractmethod
from copy import copy
from typing import NamedTuple

import torch

from ._linalg import cholesky
from ._objectives import log_evidence
from ._optim import NOISE_BOUNDS, maximize_density
from .likelihoods._regression import observations

_JITTER = 1e-14
_MAX_RISE = math.log(1e6)  # of the log noise in `Evidence.refit_noise`


def distinct_rows(X):
    """Return the distinct rows of a tensor (n, d), and the index of each row among them, (n,)."""
    distinct, index = torch.unique(X, dim=0, return_inverse=True)
    if len(distinct) < len(X):
        return distinct, index
    return X, torch.arange(len(X), device=X.device)


class GaussianNoiseObjective(ABC):
    """Log evidence of rows under Gaussian noise, or a lower bound on it.

    ``weight`` is the total weight of the ``rows``, and ``squares`` (t,) are the weighted sums of
    the squared targets.
    """

    @abstractmethod
    def value(self, theta, Z, noise):
        """Return the objective, nats."""

    @abstractmethod
    def value_and_gradient(self, theta, Z, noise):
        """Return the objective and its derivatives in theta, Z and the log noise variances."""

    def gain_over_noise(self, theta, Z, noise, bounds=NOISE_BOUNDS):
        """Return the gain of the objective over a model of noise alone, nats per row.

        The latter is the log density of independent noise of the best variance within bounds.
        """
        noise_only = self._density_of_noise(noise, bounds)
        return self.value(theta, Z, noise) / self.weight.item() - noise_only

    def _density_of_noise(self, noise, bounds):
        """Return the highest log density of independent noise, nats per row."""
        if self.rows.targets.ndim == 3:
            return self._density_with_known_noise(noise, bounds)
        squares = (self.squares / self.weight).view(len(noise), -1)
        var = squares.mean(1, keepdim=True).log().clamp(*bounds).exp()
        return -0.5 * (math.log(2 * math.pi) + var.log() + squares / var).sum().item()

    def _density_with_known_noise(self, noise, bounds):
        targets, weights = self.rows.collect(self.rows.targets, self.rows.weights)
        y, known = observations(targets.double())
        weights = weights.double() / self.weight

        def log_density(log_noise):
            var = log_noise.exp().expand(y.shape[1]) + known
            return -0.5 * ((2 * math.pi * var).log() + y.square() / var).sum(1)

        limits = noise.new_tensor([bounds]).expand(len(noise), 2)
        return maximize_density(log_density, weights, noise.clamp(*bounds), limits)[1]


class Evidence(GaussianNoiseObjective):
    r"""Log evidence of rows with Gaussian noise, :math:`\log N(y; 0, K + \sigma^2 W^{-1})`.

    It is summed over the outputs, which have noise variances of their own or share one. Known
    variances of the noise are added to :math:`\sigma^2`, row by row. The collapsed decoupled ELBO
    equals it if the rows are the bases of mean and covariance. `CollapsedLearning` can maximize it.

    Targets are floats (n, t) or (n, t, 2), see `observations`. Memory is O(n^2) and time O(n^3),
    where n counts distinct features; known noise multiplies the time by t. ``jitter`` is added to
    the diagonal of the covariance, relative to its mean.

    Source: Rasmussen and Williams (2006), eqs. 5.8 and 5.9. A weight w divides the noise variance
    and counts as w rows in its density: a row of weight 2 is two rows with the same target. Rows
    with the same features are merged, see `_EqualNoise`.
    """

    def __init__(self, kernel, rows, jitter=_JITTER):
        self.kernel, self.rows, self._jitter = kernel, rows, jitter
        X, targets, weights = (part.to_dense().double() for part in rows.take(slice(None)))
        y, known = observations(targets)
        self.weight, self.squares = weights.sum(), weights @ y.square()
        self._X, group = distinct_rows(X)
        if known is None:
            self._noise = [_EqualNoise(y, weights, group)]
        else:
            columns = zip(y.T, known.T, strict=True)
            self._noise = [_KnownNoise(*column, weights, group) for column in columns]

    def value(self, theta, Z, noise):
        """Return the log evidence, nats; it does not depend on Z."""
        return self._parts(self.kernel(self._X, self._X, theta), theta, noise)[0].item()

    def value_and_gradient(self, theta, Z, noise):
        """Return the log evidence and its derivatives in theta, Z (zero) and the log noise."""
        K, pull_back = self.kernel.vjp(self._X, self._X, theta, points=False)
        value, by_cov, by_noise = self._parts(K, theta, noise)
        variances = by_cov.diagonal().clone()
        by_cov.fill_diagonal_(0.0)
        by_theta = pull_back(by_cov)[0] + self.kernel.diag_gradient(self._X, theta, variances)
        return value.item(), by_theta, torch.zeros_like(Z), by_noise

    def by_features(self, theta, noise, lengths):
        r"""Return derivatives of the log evidence in the share of each feature, (d,).

        The covariance :math:`K + \epsilon K \circ E_j` adds a function that varies with feature j
        too: :math:`E_j` is a squared exponential of the feature alone, with the j-th of the length
        scales (d,). The derivatives are in :math:`\epsilon`, at zero.
        """
        K = self.kernel(self._X, self._X, theta)
        weighted = self._parts(K, theta, noise)[1] * K
        columns = (self._X / lengths).T
        return torch.stack(
            [(weighted * (-0.5 * (x[:, None] - x).square()).exp()).sum() for x in columns]
        )

    def refit_noise(self, theta, noise, rows, min_log_noise, max_log_noise=math.inf):
        """Fit the noise to the density of other rows given these; return its log and the density.

        The predictive mean is that at the given noise. The log density is in nats, up to a
        constant.
        """
        X, targets, weights = (part.to_dense().double() for part in rows.take(slice(None)))
        y, known = observations(targets)
        cross, K = self.kernel(self._X, X, theta), self.kernel(self._X, self._X, theta)
        own, prior = self.kernel.diag(self._X, theta), self.kernel.diag(X, theta)[:, None]
        refitted, total = [], 0.0
        for i, (log_var, lower) in enumerate(zip(noise, min_log_noise, strict=True)):
            moments = []
            for outputs in self._outputs(noise, i):
                merged = outputs.at(log_var)
                noisy = K.diagonal_scatter(own + merged.var)
                cov, Y, between = outputs.scaled(noisy, merged.y, cross)
                chol = cholesky(cov, "covariance of the rows", jitter=_JITTER)
                half = torch.linalg.solve_triangular(chol, between, upper=False)
                mean = between.T @ torch.cholesky_solve(Y, chol)
                explained = torch.linalg.vector_norm(half, dim=0).square()
                moments.append((mean, prior - explained[:, None]))
            mean, var = (torch.cat(part, 1) for part in zip(*moments, strict=True))
            squares = (y.chunk(len(noise), 1)[i] - mean).square()
            if known is not None:
                var = var + known.chunk(len(noise), 1)[i]

            def log_density(log_noise, squares=squares, var=var):
                total_var = var + log_noise.exp()
                return -0.5 * (total_var.log() + squares / total_var).sum(1)

            start = torch.maximum(log_var, lower)[None]
            limits = torch.stack([lower, (lower + _MAX_RISE).clamp_max(max_log_noise)])[None]
            best, value = maximize_density(log_density, weights, start, limits)
            refitted.append(best)
            total += value
        return torch.cat(refitted), total

    def _outputs(self, noise, i):
        """Return the `_EqualNoise` or `_KnownNoise` of the outputs with the i-th noise variance."""
        if len(noise) == 1:
            return self._noise
        if isinstance(self._noise[0], _EqualNoise):
            return [self._noise[0].chunk(len(noise), i)]
        per_noise = len(self._noise) // len(noise)
        return self._noise[i * per_noise : (i + 1) * per_noise]

    def _parts(self, K, theta, noise):
        """Return the log evidence and its derivatives in K (n, n) and in the log noise."""
        value, by_K = noise.new_zeros(()), None
        by_noise, prior = torch.zeros_like(noise), self.kernel.diag(self._X, theta)
        for i, log_var in enumerate(noise):
            for outputs in self._outputs(noise, i):
                merged = outputs.at(log_var)
                cov, Y = outputs.scaled(K.diagonal_scatter(prior + merged.var), merged.y)
                of_means, by_cov, solved = log_evidence(cov, Y, self._jitter)
                by_cov, solved = outputs.scaled(by_cov, solved)
                by_K = by_cov if by_K is None else by_K.add_(by_cov)
                by_noise[i] += outputs.by_noise(log_var, merged, by_cov.diagonal(), solved)
                value = value + of_means - 0.5 * (merged.misfit + Y.shape[1] * merged.size)
        return value, by_K, by_noise


class _Merged(NamedTuple):
    r"""Rows of distinct features, which stand for all rows given the noise of some outputs.

    The log density of all rows is that of the means ``y``, less half of ``misfit`` and of t times
    ``size``.
    """

    y: torch.Tensor  # (n, t): means of the targets
    var: torch.Tensor  # (n,): variances of the noise of the means
    # (): squared deviations of the targets from the means, in units of the noise variance
    misfit: torch.Tensor
    # (): normalization of the density of the deviations, and of a change of scale
    size: torch.Tensor


class _Scaled:
    """Rows that are scaled to similar variances, unless they have equal weights.

    The noise of rows may differ by orders of magnitude, and the jitter is relative to the mean of
    their variances: it would be noise that rows of large weight do not have.
    """

    def __init__(self, weights):
        # (n,), or None if rows are not scaled
        self._scale = None if (weights == weights[:1]).all() else (1 + 1 / weights).rsqrt()

    def scaled(self, matrix, *factors):
        """Return a matrix (n, n) and others with n rows, times the scale of each row."""
        if self._scale is None:
            return matrix, *factors
        column = self._scale[:, None]
        return column * matrix * self._scale, *(column * factor for factor in factors)

    def _log_scales(self):
        """Return the sum of the logarithms of the squared scales."""
        return 0.0 if self._scale is None else 2 * self._scale.log().sum()


class _EqualNoise(_Scaled):
    r"""Distinct rows of outputs whose noise differs between rows by the weights alone.

    Rows with the same features are one row of their total weight w and mean target, times the
    density of the deviations from it, :math:`(2 \pi \sigma^2)^{-(w - 1) / 2} w^{-1/2}
    \exp(-\sum_i w_i (y_i - \bar y)^2 / 2 \sigma^2)`. The arguments are targets (n, t), weights, and
    the index of the distinct row that each row is merged into.
    """

    def __init__(self, y, weights, group):
        squares = weights @ y.square()
        self._y, self._weights = _merged(y, weights, group)
        super().__init__(self._weights)
        self._scatter = squares - self._weights @ self._y.square()
        self._constant = self._weights.log().sum() - self._log_scales()
        # A row of weight w has w - 1 further targets; `_scatter` is their squared deviation.
        self._more = 0.5 * (weights.sum() - len(self._weights))

    def chunk(self, n_chunks, i):
        """Return the i-th of so many equal parts of the outputs."""
        part = copy(self)
        part._y = self._y.chunk(n_chunks, 1)[i]
        part._scatter = self._scatter.chunk(n_chunks)[i]
        return part

    def at(self, log_var):
        """Return the `_Merged` rows at the logarithm of the noise variance."""
        return _Merged(
            y=self._y,
            var=log_var.exp() / self._weights,
            misfit=self._scatter.sum() / log_var.exp(),
            size=self._constant + 2 * self._more * (math.log(2 * math.pi) + log_var),
        )

    def by_noise(self, log_var, merged, by_var, solved):
        """Return the derivative of the log evidence in the logarithm of the noise variance.

        ``merged`` are the rows there, ``by_var`` the derivatives in the variances of their noise,
        (n,), and ``solved`` minus the derivatives in their means, (n, t).
        """
        return by_var @ merged.var - solved.shape[1] * self._more + 0.5 * merged.misfit


class _KnownNoise(_Scaled):
    """Distinct rows of an output, whose noise has a known variance besides a common one.

    Its methods are those of `_EqualNoise`. The means weight rows by the precisions of their noise,
    so that they depend on the common variance.
    """

    def __init__(self, y, known, weights, group):
        self._y, self._known, self._weights, self._group = y, known, weights, group
        super().__init__(_merged(y[:, None], weights / (1 + known), group)[1])

    def at(self, log_var):
        var = log_var.exp() + self._known
        precision = self._weights / var
        mean, total = _merged(self._y[:, None], precision, self._group)
        deviations = self._y - mean[self._group, 0]
        return _Merged(
            y=mean,
            var=1 / total,
            misfit=precision @ deviations.square(),
            size=(total / (2 * math.pi)).log().sum()
            - self._log_scales()
            + self._weights @ (2 * math.pi * var).log(),
        )

    @torch.enable_grad()
    def by_noise(self, log_var, merged, by_var, solved):
        leaf = log_var.detach().requires_grad_()
        merged = self.at(leaf)
        through_rows = by_var @ merged.var - (solved * merged.y).sum()
        density = through_rows - 0.5 * (merged.misfit + merged.size)
        return torch.autograd.grad(density, leaf)[0]


def _merged(y, weights, group):
    """Return weighted means (g, t) and total weights (g,) of groups of rows."""
    if len(group) == group.max() + 1:
        return y, weights
    n_groups = int(group.max()) + 1
    totals = weights.new_zeros(n_groups).index_add(0, group, weights)
    sums = y.new_zeros(n_groups, y.shape[1]).index_add(0, group, weights[:, None] * y)
    return sums / totals[:, None], totals


class SharedScaling:
    """Log evidence as a function of factors that scale several hyperparameters together.

    Each factor scales all entries of one hyperparameter, such as the length scales of an ARD
    kernel. `CollapsedLearning` can maximize it, with the logarithms of the factors, (k,), as theta.

    All factors are 1 at ``theta`` (p,). ``directions`` (k, p) are as that function returns them,
    and theta is clipped to the bounds (p, 2).
    """

    def __init__(self, evidence, theta, directions, bounds):
        self.evidence, self.start, self.directions = evidence, theta, directions
        self._low, self._high = bounds.T
        self.weight = evidence.weight

    def theta(self, logs):
        """Return the hyperparameters at logarithms of the factors."""
        return (self.start + logs @ self.directions).clamp(self._low, self._high)

    def value_and_gradient(self, theta, Z, noise):
        """Return the log evidence and its derivatives in the log factors, Z and the log noise."""
        theta = self.theta(theta)
        value, by_theta, by_Z, by_noise = self.evidence.value_and_gradient(theta, Z, noise)
        moving = (self._low < theta) & (theta < self._high)
        return value, self.directions @ (by_theta * moving), by_Z, by_noise
