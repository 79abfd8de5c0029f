"""The exact log evidence of GP regression on few rows, and its gradients."""

import math
from abc import ABC, abstractmethod

import torch

from ._linalg import cholesky, jittered_cholesky
from ._noise import NOISE_BOUNDS
from ._optim import by_autograd, lbfgs

_NAME = "covariance of the rows"
_JITTER = 1e-14
_MAX_RISE = math.log(1e6)  # of the log noise in `Evidence.refit_noise`
_STEPS = 50


class GaussianNoiseObjective(ABC):
    """Log evidence of rows under Gaussian noise, or a lower bound on it.

    Attributes
    ----------
    weight : Tensor of shape ()
        Total weight of the rows.
    squares : Tensor of shape (t,)
        Weighted sums of the squared targets.
    """

    @abstractmethod
    def value(self, theta, Z, noise):
        """Return the objective, nats."""

    @abstractmethod
    def value_and_gradient(self, theta, Z, noise):
        """Return the objective and its derivatives in theta, Z and the log noise variances.

        Returns
        -------
        value : float
        by_theta, by_Z, by_noise : Tensor
        """

    def gain_over_noise(self, theta, Z, noise, bounds=NOISE_BOUNDS):
        """Return the gain of the objective over a model of noise alone, nats per row.

        The latter is the log density of independent noise of the best variance within bounds.
        """
        mean_squares = self.squares / self.weight
        pooled = mean_squares
        if len(noise) != len(mean_squares):
            pooled = mean_squares.mean().expand(len(mean_squares))
        var = pooled.log().clamp(*bounds).exp()
        noise_only = -0.5 * (math.log(2 * math.pi) + var.log() + mean_squares / var).sum()
        return self.value(theta, Z, noise) / self.weight.item() - noise_only.item()


class Evidence(GaussianNoiseObjective):
    r"""Log evidence of rows with Gaussian noise, :math:`\log N(y; 0, K + \sigma^2 W^{-1})`.

    It is summed over the outputs, which have noise variances of their own or share one. The
    collapsed decoupled ELBO equals it if the rows are the bases of mean and covariance.
    `CollapsedLearning` can maximize it.

    Parameters
    ----------
    kernel : TorchKernel
    rows : WeightedDataset
        With float targets (n, t); O(n^2) memory, O(n^3) time, where n counts distinct features.
    jitter : float
        Added to the diagonal of the covariance, relative to its mean.

    Notes
    -----
    Source: Rasmussen and Williams (2006), eqs. 5.8 and 5.9. A weight w divides the noise variance
    and counts as w rows in its density: a row of weight 2 is two rows with the same target. Rows
    with the same features are one row of their total weight w and mean target, times the density of
    the deviations from it, :math:`(2 \pi \sigma^2)^{-(w - 1) / 2} w^{-1/2}
    \exp(-\sum_i w_i (y_i - \bar y)^2 / 2 \sigma^2)`.
    """

    def __init__(self, kernel, rows, jitter=_JITTER):
        self.kernel, self.rows, self._jitter = kernel, rows, jitter
        X, y, weights = (part.double() for part in rows.take(slice(None)))
        self.weight, self.squares = weights.sum(), weights @ y.square()
        self._X, self._y, self._weights = _distinct(X, y, weights)
        self._scatter = self.squares - self._weights @ self._y.square()
        # A row of weight w has w - 1 further targets; `_scatter` is their squared deviation.
        self._log_weights = self._weights.log().sum()
        self._more = 0.5 * (self.weight - len(self._weights))

    def value(self, theta, Z, noise):
        """Return the log evidence, nats; it does not depend on Z."""
        return self._parts(self.kernel(self._X, self._X, theta), theta, noise)[0].item()

    def value_and_gradient(self, theta, Z, noise):
        """Return the log evidence and its derivatives in theta, Z (zero) and the log noise."""
        K, pull_back = self.kernel.vjp(self._X, self._X, theta)
        value, by_cov, by_noise = self._parts(K, theta, noise)
        variances = by_cov.diagonal().clone()
        by_cov.fill_diagonal_(0.0)
        by_theta = pull_back(by_cov)[0] + self.kernel.diag_gradient(self._X, theta, variances)
        return value.item(), by_theta, torch.zeros_like(Z), by_noise

    def refit_noise(self, theta, noise, rows, min_log_noise, max_log_noise=math.inf):
        """Fit the noise to the density of other rows given these.

        The predictive mean is that at the given noise.

        Parameters
        ----------
        theta : Tensor of shape (k,)
        noise : Tensor of shape (t,) or (1,)
            Logarithms of the noise variances of the outputs, or of the one that they share.
        rows : WeightedDataset
            Validation rows.
        min_log_noise : Tensor of shape (t,) or (1,)
            Lower bounds of the result.
        max_log_noise : float
            Its upper bound.

        Returns
        -------
        noise : Tensor of shape (t,) or (1,)
        density : float
            Log density of the other rows, nats, up to a constant.
        """
        X, y, weights = (part.double() for part in rows.take(slice(None)))
        cross, K = self.kernel(self._X, X, theta), self._cov(theta)
        prior, refitted, total = self.kernel.diag(X, theta)[:, None], [], 0.0
        groups = zip(self._y.chunk(len(noise), 1), y.chunk(len(noise), 1), strict=True)
        for (train, other), log_var, lower in zip(groups, noise, min_log_noise, strict=True):
            chol = cholesky(K + (log_var.exp() / self._weights).diag(), _NAME, jitter=_JITTER)
            half = torch.linalg.solve_triangular(chol, cross, upper=False)
            mean = cross.T @ torch.cholesky_solve(train, chol)
            squares, var = (other - mean).square(), prior - half.square().sum(0)[:, None]

            def density(log_noise, squares=squares, var=var):
                total_var = var + log_noise.exp()
                return -0.5 * (weights @ (total_var.log() + squares / total_var)).sum()

            start = torch.maximum(log_var, lower)[None]
            limits = torch.stack([lower, (lower + _MAX_RISE).clamp_max(max_log_noise)])[None]
            best, value = lbfgs(by_autograd(density), start, limits, _STEPS)
            refitted.append(best)
            total += value
        return torch.cat(refitted), total

    def _cov(self, theta):
        K = self.kernel(self._X, self._X, theta)
        return K.diagonal_scatter(self.kernel.diag(self._X, theta))

    def _parts(self, K, theta, noise):
        r"""Return the log evidence and its derivatives in K (n, n) and in the log noise.

        Its derivatives in a covariance :math:`C = K + v W^{-1}` of t outputs Y are
        :math:`\frac12 (C^{-1} Y Y^\top C^{-1} - t\, C^{-1})`. The jitter adds its share of their
        trace to each diagonal entry.
        """
        value, by_K, by_noise, n = noise.new_zeros(()), None, [], len(K)
        prior = self.kernel.diag(self._X, theta)
        groups = self._y.chunk(len(noise), 1), self._scatter.chunk(len(noise)), noise
        for Y, scatter, log_var in zip(*groups, strict=True):
            misfit = scatter.sum() / log_var.exp()
            var = log_var.exp() / self._weights
            cov = K.diagonal_scatter(prior + var)
            chol, added = jittered_cholesky(cov, _NAME, jitter=self._jitter)
            half = torch.linalg.solve_triangular(chol, Y, upper=False)
            A, t = torch.linalg.solve_triangular(chol.T, half, upper=True), Y.shape[1]
            by_cov = torch.addmm(torch.cholesky_inverse(chol), A, A.T, beta=-0.5 * t, alpha=0.5)
            by_cov.diagonal().add_(added * by_cov.trace() / n)
            by_K = by_cov if by_K is None else by_K.add_(by_cov)
            by_noise.append(by_cov.diagonal() @ var - t * self._more + 0.5 * misfit)
            log_det = 2 * chol.diagonal().log().sum() + self._log_weights
            size = self.weight * math.log(2 * math.pi) + 2 * self._more * log_var
            value = value - 0.5 * (half.square().sum() + misfit + t * (log_det + size))
        return value, by_K, torch.stack(by_noise)


def _distinct(X, y, weights):
    """Return rows of distinct features, with mean targets and total weights."""
    distinct, group = torch.unique(X, dim=0, return_inverse=True)
    if len(distinct) == len(X):
        return X, y, weights
    totals = weights.new_zeros(len(distinct)).index_add_(0, group, weights)
    sums = y.new_zeros(len(distinct), y.shape[1]).index_add_(0, group, weights[:, None] * y)
    return distinct, sums / totals[:, None], totals


class SharedScaling:
    """Log evidence as a function of factors that scale several hyperparameters together.

    Each factor scales all entries of one hyperparameter, such as the length scales of an ARD
    kernel. `CollapsedLearning` can maximize it, with the logarithms of the factors, (k,), as theta.

    Parameters
    ----------
    evidence : Evidence
    theta : Tensor
        Hyperparameters where all factors are 1.
    directions : Tensor of shape (k, len(theta))
        See `directions`.
    bounds : Tensor of shape (len(theta), 2)
        Bounds of theta; entries are clipped to them.
    """

    def __init__(self, evidence, theta, directions, bounds):
        self.evidence, self.start, self.directions = evidence, theta, directions
        self._low, self._high = bounds.T
        self.weight = evidence.weight

    def theta(self, logs):
        """Return the hyperparameters at logarithms of the factors."""
        return (self.start + logs @ self.directions).clamp(self._low, self._high)

    def value(self, logs, Z, noise):
        """Return the log evidence, nats."""
        return self.evidence.value(self.theta(logs), Z, noise)

    def value_and_gradient(self, logs, Z, noise):
        """Return the log evidence and its derivatives in the log factors, Z and the log noise."""
        theta = self.theta(logs)
        value, by_theta, by_Z, by_noise = self.evidence.value_and_gradient(theta, Z, noise)
        moving = (self._low < theta) & (theta < self._high)
        return value, self.directions @ (by_theta * moving), by_Z, by_noise
