"""The exact log evidence of GP regression on few rows, and its gradients."""

import math

import torch

from ._linalg import cholesky
from ._optim import by_autograd, lbfgs

_NAME = "covariance of the rows"
_JITTER = 1e-14
_MAX_RISE = math.log(1e6)  # of the log noise in `Evidence.refit_noise`
_STEPS = 50


class Evidence:
    r"""Log evidence of rows with Gaussian noise, :math:`\log N(y; 0, K + \sigma^2 W^{-1})`.

    It is summed over the outputs, which have noise variances of their own or share one. The
    collapsed decoupled ELBO equals it if the rows are the bases of mean and covariance.
    `CollapsedLearning` can maximize it.

    Parameters
    ----------
    kernel : TorchKernel
    rows : WeightedDataset
        With float targets (n, t); O(n^2) memory, O(n^3) time.

    Notes
    -----
    Source: Rasmussen and Williams (2006), eqs. 5.8 and 5.9. A weight w divides the noise variance
    and counts as w rows in its density: a row of weight 2 is two rows with the same target.
    """

    def __init__(self, kernel, rows):
        self.kernel, self.rows = kernel, rows
        self._X, y, weights = rows.take(slice(None))
        self._X, self._y, self._weights = self._X.double(), y.double(), weights.double()
        self.weight = self._weights.sum()

    def value(self, theta, Z, noise):
        """Return the log evidence, nats; it does not depend on Z."""
        return self._parts(self._cov(theta), noise)[0].item()

    def value_and_gradient(self, theta, Z, noise):
        """Return the log evidence and its derivatives in theta, Z (zero) and the log noise."""
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            K = self._cov(leaf)
            value, by_K, by_noise = self._parts(K.detach(), noise)
            by_theta = torch.zeros_like(theta)
            if K.requires_grad:
                (by_theta,) = torch.autograd.grad(K, leaf, by_K)
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

    def _parts(self, K, noise):
        """Return the log evidence and its derivatives in K (n, n) and in the log noise (t,)."""
        value, by_K, by_noise = noise.new_zeros(()), torch.zeros_like(K), []
        for y, log_var in zip(self._y.T, noise.expand(self._y.shape[1]), strict=True):
            var = log_var.exp() / self._weights
            chol = cholesky(K + var.diag(), _NAME, jitter=_JITTER)
            a = torch.cholesky_solve(y[:, None], chol)
            half = 0.5 * (a @ a.T - torch.cholesky_inverse(chol))
            by_K += half
            # A row of weight w has w - 1 further targets, all equal to their mean.
            more = 0.5 * (self._weights - 1).sum()
            by_noise.append(half.diagonal() @ var - more)
            log_det = 2 * chol.diagonal().log().sum() + self._weights.log().sum()
            size = self.weight * math.log(2 * math.pi)
            value = value - 0.5 * (y @ a[:, 0] + log_det + size) - more * log_var
        return value, by_K, torch.stack(by_noise).sum_to_size(len(noise))


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
