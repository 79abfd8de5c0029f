"""The collapsed bound of sparse GP regression, its gradient, and its maximisation."""

import math

import torch

from .._linalg import add_gram, cholesky, mirror
from .._posteriors import WhitenedBasis
from .._training import lbfgs

# Of Kzz; features in single precision cannot stand the ill-conditioned solutions of a smaller one.
JITTER = {torch.float64: 1e-9, torch.float32: 1e-6}
_HELD_BYTES = 2**28
_CHUNK_ROWS = 1024  # fewer than elsewhere: the kernel's derivatives then stay in the cache
_STEPS_A_ROUND = 20
_MOST_UNITS = 10.0  # length scales that count as unit of an inducing point, in standard deviations
_NOISE_BOUNDS = (math.log(1e-6), math.log(1e2))


class CollapsedBound:
    r"""Titsias' bound on the log evidence of Gaussian noise, the posterior optimised out.

    With whitened features a of the rows, residual variances r and :math:`\Lambda = I + \sum_i w_i
    a_i a_i^\top / \sigma^2`,

    .. math:: \log N(y; 0, AA^\top + \sigma^2 I) - \sum_i w_i r_i / (2 \sigma^2),

    summed over the outputs, each with noise of its own. Value and gradient take two passes over the
    rows in chunks: the bound depends on the sums :math:`\sum w a a^\top`, :math:`\sum w a y` and
    :math:`\sum w r` alone, whose derivatives turn, row by row, into those in the features.

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
        self.weight = rows.weights.double().sum()
        squares = rows.weights.double()[:, None] * rows.targets.double().square()
        self.squares = squares.sum(0)

    def _passes(self, basis):
        """A function that gives chunks of X, y, weights, features and residuals, held if small."""
        held = {}
        fits = len(self.rows) * basis.size * self.rows.dtype.itemsize <= _HELD_BYTES

        def chunks():
            for index in self.rows.chunks(_CHUNK_ROWS):
                X, y, weights = self.rows.take(index)
                found = held.get(index.start) or basis(X)
                if fits:
                    held[index.start] = found
                yield X, y.to(X.dtype), weights, *found

        return chunks

    def _sums(self, basis, chunks):
        """Gram matrix (p, p), cross products (p, t) and residual sum of the rows."""
        gram = torch.zeros(basis.size, basis.size, dtype=torch.float64, device=self.rows.device)
        cross, residuals = gram.new_zeros(basis.size, len(self.squares)), gram.new_zeros(())
        for _, y, weights, A, residual in chunks():
            weighted = weights[:, None] * A
            add_gram(gram, A, weighted)
            cross += weighted.T @ y
            residuals += weights @ residual
        return mirror(gram), cross, residuals

    def _value(self, gram, cross, residuals, noise):
        """The bound at sums and log noise variances (t,)."""
        var = noise.exp()[:, None, None]
        chol = cholesky(torch.eye(len(gram)).to(gram) + gram / var, jitter=0)
        half = torch.linalg.solve_triangular(chol, cross.T[..., None] / var, upper=False)
        log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum()
        misfit = (self.squares + residuals) @ (-noise).exp() - half.square().sum()
        size = self.weight * (math.log(2 * math.pi) + noise).sum()
        return -0.5 * (size + log_det + misfit)

    def per_row(self, value):
        """How much a value of the bound is above the evidence of mere noise, nats a row."""
        noise_only = -0.5 * (math.log(2 * math.pi) + 1 + (self.squares / self.weight).log()).sum()
        return value / self.weight.item() - noise_only.item()

    def value(self, theta, Z, noise):
        """The bound, nats."""
        basis = WhitenedBasis(self.kernel, theta, Z, self.jitter)
        return self._value(*self._sums(basis, self._passes(basis)), noise).item()

    def value_and_gradient(self, theta, Z, noise):
        """The bound and its derivatives in theta, Z and the log noise variances (t,)."""
        basis = WhitenedBasis(self.kernel, theta, Z, self.jitter)
        chunks = self._passes(basis)
        sums = [*self._sums(basis, chunks), noise]
        with torch.enable_grad():
            leaves = [part.detach().requires_grad_() for part in sums]
            value = self._value(*leaves)
            by_gram, by_cross, by_residuals, by_noise = torch.autograd.grad(value, leaves)
        gram, cross, _, _ = sums
        right = torch.cat([by_gram + by_gram.T, by_cross.T])
        # The squares of projected features are subtracted from the residuals.
        right[: basis.n_projected].diagonal().sub_(2 * by_residuals)
        by_theta, by_Z = basis.pull_back_projection(torch.cat([gram, cross], 1) @ right)
        for X, y, weights, A, _ in chunks():
            left = torch.cat([A, y], 1).mul_(weights[:, None])
            parts = basis.pull_back(X, left, right.to(X.dtype), by_residuals.to(X.dtype) * weights)
            by_theta, by_Z = by_theta + parts[0], by_Z + parts[1]
        return value.item(), by_theta, by_Z, by_noise


class CollapsedLearning:
    """Rounds of L-BFGS-B on the collapsed bound.

    The state of a fit is a dict: ``theta``, ``Z``, ``noise``, the ``value`` of the bound and its
    ``gain`` in the last round, nats a row. In each round the inducing points are in units of the
    length scales at its start.

    Parameters
    ----------
    bound : CollapsedBound
    trained : tuple of str
        Which of theta, Z and noise.
    bounds : Tensor of shape (k, 2)
        Of theta.
    scale : Tensor of shape (d,)
        Standard deviations of the features.
    tol : float
        Gain at which rounds end.
    """

    def __init__(self, bound, trained, bounds, scale, tol):
        self.bound, self.trained = bound, trained
        self.bounds, self.scale, self.tol = bounds, scale, tol

    def start(self, state):
        """The state from which `step` starts, the same dict."""
        state["value"] = self.bound.value(*self._parts(state))
        return state

    def step(self, state):
        """One round; returns the bound."""
        self.units = {"Z": self._length_scales(state)}
        self.state = state
        start = torch.cat([self._pack(name, state[name]) for name in self.trained])
        best, value = lbfgs(self, start, self._limits(), _STEPS_A_ROUND)
        gain = (value - state["value"]) / self.bound.weight.item()
        state.update(self._unpack(best), value=value, gain=gain)
        return value

    def finished(self, state):
        """Whether the last round hardly gained."""
        return state["gain"] < self.tol

    def value_and_gradient(self, point):
        """The bound and its gradient, of the trained parts in one vector."""
        parts = {**self.state, **self._unpack(point)}
        value, *gradients = self.bound.value_and_gradient(*self._parts(parts))
        gradients = dict(zip(("theta", "Z", "noise"), gradients, strict=True))
        units = [self.units.get(name, 1.0) for name in self.trained]
        pieces = [
            (gradients[name] * unit).ravel() for name, unit in zip(self.trained, units, strict=True)
        ]
        return value, torch.cat(pieces)

    @staticmethod
    def _parts(state):
        return state["theta"], state["Z"], state["noise"]

    def _pack(self, name, tensor):
        return (tensor / self.units.get(name, 1.0)).ravel()

    def _unpack(self, point):
        sizes = [self.state[name].numel() for name in self.trained]
        return {
            name: part.view_as(self.state[name]) * self.units.get(name, 1.0)
            for name, part in zip(self.trained, point.split(sizes), strict=True)
        }

    def _limits(self):
        limits = {"theta": self.bounds, "noise": torch.tensor([_NOISE_BOUNDS])}
        free = torch.tensor([[-torch.inf, torch.inf]])
        return torch.cat(
            [
                limits.get(name, free).double().cpu().expand(self.state[name].numel(), 2)
                for name in self.trained
            ]
        )

    def _length_scales(self, state):
        """How far each feature must change for the kernel to fall by a factor of about e^(-1/2).

        From the covariance of inducing points with copies that are moved by a tenth of a standard
        deviation; a kernel that does not fall gives ten standard deviations.
        """
        _, kernel = self.bound.kernel.split(len(self.scale), len(state["Z"]))
        if kernel is None:
            return self.scale
        Z, theta, step = state["Z"], state["theta"], 0.1
        moved = Z[:1] + step * torch.diag(self.scale)
        fall = 1 - kernel(Z[:1], moved, theta)[0] / kernel(Z[:1], Z[:1], theta)[0, 0]
        return self.scale * (step / (2 * fall).clamp_min((step / _MOST_UNITS) ** 2).sqrt())
