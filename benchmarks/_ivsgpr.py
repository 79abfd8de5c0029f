"""Incremental sparse variational GP regression, for comparison with the decoupled processes."""

import math
from dataclasses import dataclass

import torch

_JITTER = 1e-6  # added to the unit diagonal of the bases' Gram matrix
_MAX_LOG_MULTIPLIER, _MIN_NOISE = 1.5, 1e-6


def gram(Z, c, Z2, c2):
    """Return inner products of bases at Z (m, d) with multipliers c; inputs in length scales."""
    inverse = (c[:, None].square() + c2.square()).reciprocal()
    logs = (2 * c).log().sum(-1)[:, None] + c2.log().sum(-1) + inverse.log().sum(-1)
    return (0.5 * logs - ((Z[:, None] - Z2).square() * inverse).sum(-1)).exp()


def factor(Z, c):
    """Return the Cholesky factor of the Gram matrix of bases."""
    return torch.linalg.cholesky(gram(Z, c, Z, c) + _JITTER * torch.eye(len(Z), dtype=Z.dtype))


def whitened_features(Z, c, chol, X):
    """Return inner products (m, n) of the orthonormalized bases and the plain features of rows."""
    q = 1 + c.square()
    log_norm = 0.5 * (2 * c / q).log().sum(-1) - (Z.square() / q).sum(-1)
    products = (log_norm[:, None] + 2 * (Z / q) @ X.T - (1 / q) @ X.square().T).exp()
    return torch.linalg.solve_triangular(chol, products, upper=False)


def proximal_step(Z, c, posterior, X, y, precision, step):
    r"""Return the projection on bases of a posterior after a step of mirror ascent.

    Parameters
    ----------
    Z, c : Tensor of shape (m, d)
        Bases to project on, in length scales, and their multipliers.
    posterior : tuple of Tensor
        Bases, multipliers and Cholesky factor L of their Gram matrix K; then the natural
        parameters :math:`L^T (I + BK) a` and :math:`L^T B L`.
    X, y : Tensor of shape (n, d), (n,)
        The minibatch: rows in length scales, and targets in units of the latent scale.
    precision : float
        Precision of a row's target in these units, times the number of rows that it represents.
    step : float
        Step size, from 0 to 1; a step of 1 discards the posterior.

    Returns
    -------
    linear, quadratic : Tensor of shape (m,), (m, m)
        Natural parameters on the bases.
    """
    Z_old, c_old, chol_old, linear, quadratic = posterior
    chol = factor(Z, c)
    kept = torch.linalg.solve_triangular(chol, gram(Z, c, Z_old, c_old), upper=False)
    kept = torch.linalg.solve_triangular(chol_old.T, kept, upper=True, left=False)
    features = whitened_features(Z, c, chol, X)
    gain = step * precision
    linear = (1 - step) * kept @ linear + gain * features @ y
    quadratic = (1 - step) * kept @ quadratic @ kept.T + gain * features @ features.T
    return linear, quadratic


def projection_divergence(linear, quadratic):
    """Return the KL divergence from a projection to its target, up to a constant in the bases."""
    chol = torch.linalg.cholesky(quadratic + torch.eye(len(linear), dtype=linear.dtype))
    mean = torch.linalg.solve_triangular(chol, linear[:, None], upper=False)
    return chol.diagonal().log().sum() - 0.5 * (quadratic.trace() + mean.square().sum())


@dataclass
class IncrementalSparseGP:
    r"""Sparse variational GP regression by stochastic mirror ascent, with moving bases.

    The kernel is a squared exponential with a length scale per feature. Each basis has multipliers
    of its own. The mean is zero, and the noise is Gaussian. Rows and targets must be standardized.

    Parameters
    ----------
    m : int
        Number of bases.
    batch_size : int
    n_increment : int
        Number of bases added from a minibatch, until there are ``m``.
    max_iter : int
    learning_rate, step : float
        Step sizes of Adam and of the mirror ascent. They are divided by :math:`1 + 0.1 \sqrt t` in
        iteration t.
    seed : int

    Notes
    -----
    Source: Cheng and Boots (2016), as Cheng and Boots (2017) describe it.

    One step of Adam moves the bases towards the proximal target, by Theorem 1, with the
    coefficients at their optimum. The projection then sets the coefficients to this optimum.
    Another step of Adam moves the hyperparameters along the gradient of the minibatch's bound. It
    keeps the whitened coefficients fixed, so that the gradient of the divergence from the prior is
    zero.
    """

    m: int = 256
    batch_size: int = 1024
    n_increment: int = 128
    max_iter: int = 2000
    learning_rate: float = 0.1
    step: float = 1.0
    seed: int = 0

    def fit(self, X, y):
        """Fit to rows (n, d) and targets (n,)."""
        X, y = _tensor(X), _tensor(y)
        batches = _batches(X, y, min(self.batch_size, len(X)), self.seed)
        self._start(*next(batches))
        for t in range(1, self.max_iter + 1):
            batch = next(batches)
            decay = 1 / (1 + 0.1 * math.sqrt(t))
            if len(self._Z) < self.m:
                self._add_bases(batch[0])
            self._move_bases(*batch, len(X), decay)
            self._move_hyper_parameters(*batch, decay)
        return self

    def predict(self, X):
        """Return mean and variance of the latent function at rows."""
        with torch.no_grad():
            mean, variance = self._latent(_tensor(X), *self._moments())
        return mean.numpy(), variance.numpy()

    @property
    def noise_variance(self):
        """Variance of the Gaussian noise."""
        return self._log_noise.exp().item()

    def bound(self, X, y, n_total):
        """Return the ELBO of ``n_total`` rows, estimated from a sample of them, in nats."""
        with torch.no_grad():
            coef, cov = self._moments()
            expected = self._expected(_tensor(X), _tensor(y), coef, cov)
        divergence = 0.5 * (coef.square().sum() + cov.trace() - len(coef) - cov.logdet())
        return (n_total * expected - divergence).item()

    def _start(self, X, y):
        """Start from the prior without bases, with hyperparameters by the median trick."""
        d = X.shape[1]
        distance = torch.pdist(X).median()
        distance = distance if distance > 0 else torch.ones_like(distance)
        self._log_lengths = distance.log().repeat(d).requires_grad_()
        self._log_scale = torch.zeros_like(distance, requires_grad=True)
        self._log_noise = y.var().log().requires_grad_()
        self._theta = torch.optim.Adam([self._log_lengths, self._log_scale, self._log_noise])
        self._Z, self._log_c = X[:0], X[:0]
        self._linear, self._quadratic = X.new_zeros(0), X.new_zeros(0, 0)

    def _add_bases(self, X):
        """Add rows as bases; the posterior stays the same, and Adam's moments are reset."""
        Z = X[: min(self.n_increment, self.m - len(self._Z))]
        pad = torch.nn.functional.pad
        self._Z = torch.cat([self._Z.detach(), Z]).requires_grad_()
        self._log_c = pad(self._log_c.detach(), (0, 0, 0, len(Z))).requires_grad_()
        self._linear = pad(self._linear, (0, len(Z)))
        self._quadratic = pad(self._quadratic, (0, len(Z), 0, len(Z)))
        self._bases = torch.optim.Adam([self._Z, self._log_c])

    def _move_bases(self, X, y, n, decay):
        """Move the bases towards the proximal target, and project the target on them."""
        lengths, scale = self._log_lengths.detach().exp(), self._log_scale.detach().exp()
        precision = n / len(X) * scale.square() / self._log_noise.detach().exp()
        Z, c = self._Z.detach() / lengths, self._log_c.detach().exp()
        posterior = Z, c, factor(Z, c), self._linear, self._quadratic
        rest = posterior, X / lengths, y / scale, precision, decay * self.step
        natural = proximal_step(self._Z / lengths, self._log_c.exp(), *rest)
        _ascend(self._bases, -projection_divergence(*natural), decay * self.learning_rate)
        with torch.no_grad():
            self._log_c.clamp_(-_MAX_LOG_MULTIPLIER, _MAX_LOG_MULTIPLIER)
            moved = self._Z / lengths, self._log_c.exp()
            self._linear, self._quadratic = proximal_step(*moved, *rest)

    def _move_hyper_parameters(self, X, y, decay):
        """Move the hyperparameters along the gradient of the minibatch's bound."""
        value = self._expected(X, y, *self._moments())
        _ascend(self._theta, value, decay * self.learning_rate)
        with torch.no_grad():
            self._log_noise.clamp_(min=math.log(_MIN_NOISE))

    def _moments(self):
        """Return mean (m,) and covariance (m, m) of the whitened inducing variables."""
        precision = self._quadratic + torch.eye(len(self._linear), dtype=self._linear.dtype)
        cov = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        return cov @ self._linear, cov

    def _latent(self, X, coef, cov):
        """Return mean and variance of the latent function at rows."""
        lengths, scale = self._log_lengths.exp(), self._log_scale.exp()
        Z, c = self._Z.detach() / lengths, self._log_c.detach().exp()
        features = whitened_features(Z, c, factor(Z, c), X / lengths)
        variance = 1 - (features * (features - cov @ features)).sum(0)
        return scale * coef @ features, scale.square() * variance

    def _expected(self, X, y, coef, cov):
        """Return the expected log density of the targets, averaged over rows."""
        mean, variance = self._latent(X, coef, cov)
        squares = ((y - mean).square() + variance).mean()
        return -0.5 * (math.log(2 * math.pi) + self._log_noise + squares / self._log_noise.exp())


def _tensor(values):
    return torch.as_tensor(values, dtype=torch.float64)


def _batches(X, y, size, seed):
    """Yield minibatches in shuffled passes; a last incomplete minibatch of a pass is left out."""
    generator = torch.Generator().manual_seed(seed)
    full = len(X) // size * size
    while True:
        for index in torch.randperm(len(X), generator=generator)[:full].split(size):
            yield X[index], y[index]


def _ascend(optimizer, value, rate):
    """Take one step of Adam up the gradient of a value."""
    optimizer.param_groups[0]["lr"] = rate
    optimizer.zero_grad()
    (-value).backward()
    optimizer.step()
