"""The collapsed bound of sparse GP regression, its gradient, and its maximization."""

import math
from functools import partial

import torch

from ._linalg import add_gram, cholesky, gram_rounding, mirror
from ._optim import FlatParameters, adam, lbfgs
from ._posteriors import WhitenedBasis
from .kernels._composite import exact_and_rest

# Of Kzz; features in single precision cannot stand the ill-conditioned solutions of a smaller one.
JITTER = {torch.float64: 1e-9, torch.float32: 1e-6}
PARTS = ("theta", "Z", "noise")  # of what the bound is a function
_CHUNK_ROWS = 1024  # fewer than elsewhere: the kernel's derivatives then stay in the cache
# Ways of a round.
BY_LBFGS = partial(lbfgs, max_iter=20)
BY_ADAM = partial(adam, max_iter=100, learning_rate=0.03)
_MOST_UNITS = 10.0  # length scales that count as unit of an inducing point, in standard deviations
NOISE_BOUNDS = (math.log(1e-6), math.log(1e2))  # of the logarithm of a variance


class CollapsedBound:
    r"""Titsias' bound on the log evidence of Gaussian noise, the posterior optimized out.

    With whitened features a of the rows, residual variances r and :math:`\Lambda = I + \sum_i w_i
    a_i a_i^\top / \sigma^2`,

    .. math:: \log N(y; 0, AA^\top + \sigma^2 I) - \sum_i w_i r_i / (2 \sigma^2),

    summed over the outputs, each with noise of its own or all with the same. Value and gradient
    take two passes over the rows in chunks: the bound depends on the sums :math:`\sum w a a^\top`,
    :math:`\sum w a y` and :math:`\sum w r` alone, whose derivatives turn, row by row, into those in
    the features.

    Parameters
    ----------
    kernel : TorchKernel
    rows : Rows
        With float targets (n, t).

    Notes
    -----
    Source: Titsias (2009), eq. 9, in whitened coordinates; weights multiply the log density.
    """

    def __init__(self, kernel, rows):
        self.kernel, self.rows, self.jitter = kernel, rows, JITTER[rows.dtype]
        weights = rows.weights.double()
        self.weight, self.squares = rows.sum(
            weights.sum(), weights @ rows.targets.double().square()
        )

    def _sums(self, basis, chunks):
        """Gram matrix (p, p), cross products (p, t) and residual sum of this rank's rows."""
        gram = torch.zeros(basis.size, basis.size, dtype=torch.float64, device=self.rows.device)
        cross, residuals = gram.new_zeros(basis.size, len(self.squares)), gram.new_zeros(())
        for _, y, weights, A, residual in chunks():
            weighted = weights[:, None] * A
            add_gram(gram, A, weighted)
            cross += weighted.T @ y.to(A.dtype)
            residuals += weights @ residual
        return mirror(gram), cross, residuals

    def _value(self, gram, cross, residuals, noise):
        """The bound at sums and log noise variances (t,), or (1,) for all outputs alike."""
        noise = noise.expand(len(self.squares))
        var = noise.exp()[:, None, None]
        inner = torch.eye(len(gram)).to(gram) + gram / var
        jitter = gram_rounding(len(gram), self.rows.dtype)
        chol = cholesky(inner, "precision of the weights", jitter=jitter, expected=jitter)
        half = torch.linalg.solve_triangular(chol, cross.T[..., None] / var, upper=False)
        log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum()
        misfit = (self.squares + residuals) @ (-noise).exp() - half.square().sum()
        size = self.weight * (math.log(2 * math.pi) + noise).sum()
        return -0.5 * (size + log_det + misfit)

    def value(self, theta, Z, noise):
        """The bound, nats."""
        basis = WhitenedBasis(self.kernel, theta, Z, self.jitter)
        sums = self._sums(basis, self.rows.passes(basis, _CHUNK_ROWS))
        return self._value(*self.rows.sum(*sums), noise).item()

    def gain_over_noise(self, theta, Z, noise, bounds=NOISE_BOUNDS):
        """How much the bound is above the evidence of mere noise within bounds, nats a row."""
        found = self.squares / self.weight
        alike = found if len(noise) == len(found) else found.mean().expand(len(found))
        var = alike.log().clamp(*bounds).exp()
        noise_only = -0.5 * (math.log(2 * math.pi) + var.log() + found / var).sum()
        return self.value(theta, Z, noise) / self.weight.item() - noise_only.item()

    def value_and_gradient(self, theta, Z, noise):
        """The bound and its derivatives in theta, Z and the logarithms of the noise."""
        basis = WhitenedBasis(self.kernel, theta, Z, self.jitter)
        chunks = self.rows.passes(basis, _CHUNK_ROWS)
        own = self._sums(basis, chunks)
        sums = [*self.rows.sum(*own), noise]
        with torch.enable_grad():
            leaves = [part.detach().requires_grad_() for part in sums]
            value = self._value(*leaves)
            by_gram, by_cross, by_residuals, by_noise = torch.autograd.grad(value, leaves)
        gram, cross, _ = own
        right = torch.cat([by_gram + by_gram.T, by_cross.T])
        # The squares of projected features are subtracted from the residuals.
        right[: basis.n_projected].diagonal().sub_(2 * by_residuals)
        by_theta, by_Z = basis.pull_back_projection(torch.cat([gram, cross], 1) @ right)
        for X, y, weights, A, _ in chunks():
            left = torch.cat([A, y.to(A.dtype)], 1).mul_(weights[:, None])
            parts = basis.pull_back(X, left, right.to(X.dtype), by_residuals.to(X.dtype) * weights)
            by_theta, by_Z = by_theta + parts[0], by_Z + parts[1]
        return value.item(), *self.rows.sum(by_theta, by_Z), by_noise


class CollapsedLearning:
    """Rounds of maximization of the collapsed bound.

    The state of a fit is a dict: ``theta``, ``Z``, ``noise``, the ``value`` of the bound and its
    ``gain`` in the last round, nats a row. In each round the inducing points are in units of the
    length scales at its start.

    Parameters
    ----------
    bound : CollapsedBound
    trained : list of str
        Which of `PARTS`.
    bounds : Tensor of shape (k, 2)
        Of theta.
    scale : Tensor of shape (d,)
        Standard deviations of the features.
    tol : float
        Gain at which rounds end.
    maximize : callable
        `BY_LBFGS` or `BY_ADAM`.
    noise_bounds : tuple of two floats
        Of the logarithms of the noise.
    """

    def __init__(
        self, bound, trained, bounds, scale, tol, maximize=BY_LBFGS, noise_bounds=NOISE_BOUNDS
    ):
        self.bound, self.trained, self.maximize = bound, trained, maximize
        self.bounds, self.scale, self.tol = bounds, scale, tol
        self.noise_bounds = noise_bounds

    def start(self, state):
        """The state from which `step` starts, the same dict."""
        state["value"] = self.bound.value(*(state[part] for part in PARTS))
        return state

    def step(self, state):
        """One round; returns the bound."""
        bounds = {"theta": self.bounds, "noise": self.bounds.new_tensor([self.noise_bounds])}
        units = {"Z": self._length_scales(state)} if "Z" in self.trained else {}
        packing = FlatParameters(self.trained, units, bounds)

        def value_and_gradient(point):
            parts = {**state, **packing.parts(point, state)}
            value, *slopes = self.bound.value_and_gradient(*(parts[part] for part in PARTS))
            return value, packing.gradient(dict(zip(PARTS, slopes, strict=True)))

        start, limits = packing.vector(state), packing.limits(state)
        best, value = self.maximize(value_and_gradient, start, limits)
        gain = (value - state["value"]) / self.bound.weight.item()
        state.update(packing.parts(best, state), value=value, gain=gain)
        return value

    def finished(self, state):
        """Whether the last round hardly gained."""
        return state["gain"] < self.tol

    def _length_scales(self, state):
        """How far each feature must change for the kernel to fall by a factor of about e^(-1/2).

        From the covariance of the inducing point of largest variance with copies moved by a tenth
        of a standard deviation, which is exact for a squared exponential; one that does not fall
        gives ten.
        """
        _, kernel = exact_and_rest(self.bound.kernel, len(self.scale), len(state["Z"]))
        if kernel is None:
            return self.scale
        Z, theta, step = state["Z"], state["theta"], 0.1
        variances = kernel.diag(Z, theta)
        z = Z[variances.argmax()][None]
        moved = z + step * torch.diag(self.scale)
        fall = 1 - kernel(z, moved, theta)[0] / variances.max()
        return self.scale * (step / (2 * fall).clamp_min((step / _MOST_UNITS) ** 2).sqrt())
