"""The exact log evidence of Gaussian noise on few rows, and its gradients."""

import math

import torch

from ._linalg import cholesky
from ._optim import by_autograd, lbfgs

_NAME = "covariance of the rows"
_JITTER = 1e-14
_MOST_RISE = math.log(1e6)
_STEPS = 50


class Evidence:
    r"""Log evidence of rows with Gaussian noise, :math:`\log N(y; 0, K + \sigma^2 W^{-1})`.

    Summed over the outputs, each with noise of its own or all with the same. It is what the
    collapsed decoupled bound becomes with the rows as bases of mean and covariance;
    `CollapsedLearning` can maximize it.

    Parameters
    ----------
    kernel : TorchKernel
    rows : Rows
        With float targets (n, t); O(n^2) memory, O(n^3) time.

    Notes
    -----
    Source: Rasmussen and Williams (2006), eqs. 5.8 and 5.9. A weight w divides the variance of the
    noise, and counts as w rows in its density: a row of weight 2 is two rows with one target.
    """

    def __init__(self, kernel, rows):
        self.kernel, self.rows = kernel, rows
        self._X, y, weights = rows.take(slice(None))
        self._X, self._y, self._weights = self._X.double(), y.double(), weights.double()
        self.weight = self._weights.sum()

    def value(self, theta, Z, noise):
        """The evidence, nats."""
        return self._parts(self._cov(theta), noise)[0].item()

    def value_and_gradient(self, theta, Z, noise):
        """The evidence and its derivatives in theta, Z (none) and the logarithms of the noise."""
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            K = self._cov(leaf)
            value, by_K, by_noise = self._parts(K.detach(), noise)
            by_theta = torch.zeros_like(theta)
            if K.requires_grad:
                (by_theta,) = torch.autograd.grad(K, leaf, by_K)
        return value.item(), by_theta, torch.zeros_like(Z), by_noise

    def predicted(self, theta, noise, rows, least, most=math.inf):
        """The noise (t,), not below the least, that makes other rows most likely given these.

        The mean of the prediction is that at the noise given, of which there may be one for all
        outputs. ``most`` is an upper bound of its logarithm. Returns the noise and the log density,
        nats, up to a constant.
        """
        X, y, weights = (part.double() for part in rows.take(slice(None)))
        cross, K = self.kernel(self._X, X, theta), self._cov(theta)
        prior, found, total = self.kernel.diag(X, theta)[:, None], [], 0.0
        groups = zip(self._y.chunk(len(noise), 1), y.chunk(len(noise), 1), strict=True)
        for (own, other), log_var, lower in zip(groups, noise, least, strict=True):
            chol = cholesky(K + (log_var.exp() / self._weights).diag(), _NAME, jitter=_JITTER)
            half = torch.linalg.solve_triangular(chol, cross, upper=False)
            mean = cross.T @ torch.cholesky_solve(own, chol)
            squares, var = (other - mean).square(), prior - half.square().sum(0)[:, None]

            def density(log_noise, squares=squares, var=var):
                spread = var + log_noise.exp()
                return -0.5 * (weights @ (spread.log() + squares / spread)).sum()

            start = torch.maximum(log_var, lower)[None]
            limits = torch.stack([lower, (lower + _MOST_RISE).clamp_max(most)])[None]
            best, value = lbfgs(by_autograd(density), start, limits, _STEPS)
            found.append(best)
            total += value
        return torch.cat(found), total

    def _cov(self, theta):
        K = self.kernel(self._X, self._X, theta)
        return K.diagonal_scatter(self.kernel.diag(self._X, theta))

    def _parts(self, K, noise):
        """The evidence and its derivatives in the covariance (n, n) and in the log noise (t,)."""
        value, by_K, by_noise = noise.new_zeros(()), torch.zeros_like(K), []
        for y, log_var in zip(self._y.T, noise.expand(self._y.shape[1]), strict=True):
            var = log_var.exp() / self._weights
            chol = cholesky(K + var.diag(), _NAME, jitter=_JITTER)
            a = torch.cholesky_solve(y[:, None], chol)
            half = 0.5 * (a @ a.T - torch.cholesky_inverse(chol))
            by_K += half
            # A row of weight w has w - 1 further targets, at no distance from their mean.
            more = 0.5 * (self._weights - 1).sum()
            by_noise.append(half.diagonal() @ var - more)
            log_det = 2 * chol.diagonal().log().sum() + self._weights.log().sum()
            size = self.weight * math.log(2 * math.pi)
            value = value - 0.5 * (y @ a[:, 0] + log_det + size) - more * log_var
        return value, by_K, torch.stack(by_noise).sum_to_size(len(noise))


class SharedScaling:
    """An evidence by factors of the hyperparameters, each common to all entries of one.

    `CollapsedLearning` can maximize it, with logarithms of the factors (k,) for theta.

    Parameters
    ----------
    evidence : Evidence
    theta : Tensor
        Where all factors are 1.
    directions : Tensor of shape (k, len(theta))
        See `directions`.
    bounds : Tensor of shape (len(theta), 2)
        Outside of which no entry is moved.
    """

    def __init__(self, evidence, theta, directions, bounds):
        self.evidence, self.start, self.directions = evidence, theta, directions
        self._low, self._high = bounds.T
        self.weight = evidence.weight

    def theta(self, logs):
        """The hyperparameters at logarithms of the factors."""
        return (self.start + logs @ self.directions).clamp(self._low, self._high)

    def value(self, logs, Z, noise):
        """As of `Evidence`."""
        return self.evidence.value(self.theta(logs), Z, noise)

    def value_and_gradient(self, logs, Z, noise):
        """As of `Evidence`, with derivatives in the logarithms."""
        theta = self.theta(logs)
        value, by_theta, by_Z, by_noise = self.evidence.value_and_gradient(theta, Z, noise)
        moving = (self._low < theta) & (theta < self._high)
        return value, self.directions @ (by_theta * moving), by_Z, by_noise
