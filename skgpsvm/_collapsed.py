"""The collapsed ELBO of sparse GP regression, its gradient, and its maximization."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ._csr import CSRRows
from ._distributed import gather
from ._evidence import Evidence, GaussianNoiseObjective
from ._fitting import SparseState, Stage
from ._linalg import add_gram, gram_rounding, mirror
from ._objectives import collapsed_elbo
from ._optim import ROUND
from ._posteriors import WhitenedBasis
from .kernels._composite import exact_and_rest
from .likelihoods._regression import observations

# Jitter of Kzz. Single precision needs the larger one, as its solutions are ill-conditioned.
JITTER = {torch.float64: 1e-9, torch.float32: 1e-6}
_CHUNK_ROWS = 1024  # fewer than elsewhere, so that the kernel's derivatives stay in the cache
# A step of L-BFGS-B that gains less ends the round: in units of tol, nats per row of the rows and
# of some more, since a hundredth of a nat tells nothing of any number of rows.
_MIN_GAIN, _EXTRA_ROWS = 0.01, 300
_MAX_REPEATS = 10  # of rows at inducing points, in the mean
_MAX_UNITS = 10.0  # unit of the inducing points, in standard deviations of a feature


class Hyperparameters(NamedTuple):
    """Arguments of the collapsed ELBO."""

    theta: torch.Tensor  # (k,): logarithms of the kernel's free hyperparameters
    Z: torch.Tensor  # (m, d): inducing points
    # (t,) or (1,): logarithms of the noise variances of the outputs, or of the one that they share
    noise: torch.Tensor


class CollapsedBound(GaussianNoiseObjective):
    r"""Collapsed ELBO: Titsias' lower bound on the log evidence under Gaussian noise.

    The optimal posterior is substituted. With whitened features a of the rows, residual variances r
    and :math:`\Lambda = I + \sum_i w_i a_i a_i^\top / \sigma^2`, the bound is

    .. math:: \log N(y; 0, AA^\top + \sigma^2 I) - \sum_i w_i r_i / (2 \sigma^2),

    summed over the outputs, which have noise variances of their own or share one. Known variances
    of the noise are added to :math:`\sigma^2`, row by row.

    Value and gradient take two passes over the rows in chunks. The bound depends only on the sums
    :math:`\sum w a a^\top`, :math:`\sum w a y` and :math:`\sum w r`. Their derivatives turn, row
    by row, into those in the features.

    Targets are floats (n, t) or (n, t, 2), see `observations`. Known noise multiplies the time by
    t.

    Source: Titsias (2009), eq. 9, in whitened coordinates; weights multiply the log density.
    """

    def __init__(self, kernel, rows):
        self.kernel, self.rows, self.jitter = kernel, rows, JITTER[rows.dtype]
        weights, (y, known) = rows.weights.double(), observations(rows.targets)
        self.weight, self.squares = rows.sum(weights.sum(), weights @ y.double().square())
        self._knows_noise = known is not None

    def _collapsed(self, basis, chunks, noise):
        """Return the parts of the bound, each of outputs with the same sums over the rows."""
        options = self.weight, basis.size, self.rows
        if self._knows_noise:
            of_outputs = noise.repeat_interleave(len(self.squares) // len(noise)).split(1)
            parts = [_KnownNoisePart(j, var, *options) for j, var in enumerate(of_outputs)]
        else:
            parts = [_EqualNoisePart(self.squares, noise, *options)]
        for _, targets, weights, A, residual in chunks():
            for part in parts:
                part.add(targets, weights, A, residual)
        for part in parts:
            part.collapse()
        return parts

    def mean_residual(self, theta, Z):
        """Return the mean residual variance of the rows, given the inducing points."""
        basis = WhitenedBasis(self.kernel, theta, Z, self.jitter)
        residuals = torch.zeros_like(self.weight)
        for _, _, weights, _, residual in self.rows.passes(basis, _CHUNK_ROWS)():
            residuals += weights @ residual
        return self.rows.sum(residuals)[0] / self.weight

    def value(self, theta, Z, noise):
        basis = WhitenedBasis(self.kernel, theta, Z, self.jitter)
        parts = self._collapsed(basis, self.rows.passes(basis, _CHUNK_ROWS), noise)
        return sum(part.value for part in parts).item()

    def value_and_gradient(self, theta, Z, noise):
        basis = WhitenedBasis(self.kernel, theta, Z, self.jitter)
        chunks = self.rows.passes(basis, _CHUNK_ROWS)
        parts = self._collapsed(basis, chunks, noise)
        right = torch.cat([part.right(basis.n_projected) for part in parts])
        left = torch.cat([part.left for part in parts], 1)
        by_theta, by_Z = basis.pull_back_projection(left @ right)
        for X, targets, weights, A, residual in chunks():
            left = A.new_empty(len(A), len(right))
            adjoints = [
                part.pull_back(columns, targets, weights, A, residual)
                for part, columns in zip(parts, left.chunk(len(parts), 1), strict=True)
            ]
            found = basis.pull_back(X, left, right.to(X.dtype), sum(adjoints))
            by_theta, by_Z = by_theta + found[0], by_Z + found[1]
        by_noise = torch.cat([part.by_noise() for part in parts])
        value = sum(part.value for part in parts).item()
        return value, *self.rows.sum(by_theta, by_Z), by_noise.view(len(noise), -1).sum(1)


class _EqualNoisePart:
    """Collapsed ELBO of outputs whose noise differs between rows by the weights alone.

    ``squares`` (t,) are the weighted sums of the squared targets of all ranks, ``noise`` (t,) or
    (1,) the logarithms of the noise variances, and ``weight`` is the total weight of all ranks'
    rows, which have p features. After `collapse`, ``value`` is the `collapsed_elbo`.
    """

    def __init__(self, squares, noise, weight, p, rows):
        self._squares, self._noise, self._weight, self._rows = squares, noise, weight, rows
        self._gram = torch.zeros(p, p, dtype=torch.float64, device=rows.device)
        self._cross, self._residuals = self._gram.new_zeros(p, len(squares)), weight.new_zeros(())

    def add(self, y, weights, A, residual):
        """Add rows to the sums, given their features and residual variances."""
        weighted = weights[:, None] * A
        add_gram(self._gram, A, weighted)
        self._cross += weighted.T @ y.to(A.dtype)
        self._residuals += weights @ residual

    def collapse(self):
        """Compute the value and its derivatives in the sums over all ranks."""
        self._gram = mirror(self._gram)
        sums = self._rows.sum(self._gram, self._cross, self._residuals)
        jitter = gram_rounding(len(self._gram), self._rows.dtype)
        known = self._squares, self._weight, self._noise, jitter
        self.value, *self._derivatives = collapsed_elbo(*sums, *known)

    @property
    def left(self):
        """Sums of this rank's rows that `right` multiplies: (p, p + t)."""
        return torch.cat([self._gram, self._cross], 1)

    def right(self, n_projected):
        """Return the factor (p + t, p) of the derivatives in the features, see `pull_back`."""
        by_gram, by_cross, by_residuals, _ = self._derivatives
        right = torch.cat([2 * by_gram, by_cross.T])
        # The squares of projected features are subtracted from the residuals.
        right[:n_projected].diagonal().sub_(2 * by_residuals)
        return right

    def pull_back(self, left, y, weights, A, residual):
        """Return the derivatives in the residual variances (b,) of some rows.

        Those in the features are the product of `left` (b, p + t), which is overwritten, and
        `right`.
        """
        p = len(self._gram)
        torch.mul(weights[:, None], A, out=left[:, :p])
        torch.mul(weights[:, None], y.to(A.dtype), out=left[:, p:])
        return self._derivatives[2].to(A.dtype) * weights

    def by_noise(self):
        """Return the derivatives in the logarithms of the noise variances, after `pull_back`."""
        return self._derivatives[3]


class _KnownNoisePart(_EqualNoisePart):
    r"""Collapsed ELBO of an output whose noise has a known variance besides a common one.

    Known noise of variance :math:`v_i` changes the noise :math:`\sigma^2 / w_i` of a row of weight
    :math:`w_i` to :math:`\sigma^2 / (w_i s_i)`, with the share :math:`s_i = \sigma^2 / (\sigma^2 +
    v_i)` of the common noise. The ELBO is therefore that of the smaller weights :math:`w_i s_i`,
    except for the normalization of the density: it keeps :math:`w_i`, and
    :math:`\tfrac12 \sum_i w_i \log s_i` is added.

    Let :math:`q_i` be the derivative in a smaller weight. As :math:`d \log s_i / d \log \sigma^2 =
    1 - s_i`, the derivative in :math:`\log \sigma^2` with these weights held is raised by

    .. math:: \sum_i w_i (1 - s_i) \bigl( s_i q_i + \tfrac12 \bigr).

    The output is a column of the targets.
    """

    def __init__(self, column, noise, weight, p, rows):
        super().__init__(weight.new_zeros(1), noise, weight, p, rows)
        self._column = column
        self._log_shares, self._by_weights = weight.new_zeros(2)

    def _read(self, targets, weights):
        """Return targets (b,), smaller weights and shares of the common noise; all float64."""
        y, known = targets[:, self._column].double().unbind(-1)
        var = self._noise.exp()
        shares = var / (var + known)
        return y, weights.double() * shares, shares

    def add(self, targets, weights, A, residual):
        y, smaller, shares = self._read(targets, weights)
        super().add(y[:, None], smaller.to(A.dtype), A, residual)
        self._squares += smaller @ y.square()
        self._log_shares += 0.5 * weights.double() @ shares.log()

    def collapse(self):
        self._squares, log_shares = self._rows.sum(self._squares, self._log_shares)
        super().collapse()
        self.value = self.value + log_shares

    def pull_back(self, left, targets, weights, A, residual):
        y, smaller, shares = self._read(targets, weights)
        by_gram, by_cross, by_residuals, _ = self._derivatives
        features = A.double()
        by_weights = ((features @ by_gram) * features).sum(1) + features @ by_cross[:, 0] * y
        by_weights += by_residuals * residual - 0.5 * y.square() / self._noise.exp()
        change = shares * by_weights + 0.5
        self._by_weights += weights.double() @ ((1 - shares) * change)
        return super().pull_back(left, y[:, None], smaller.to(A.dtype), A, residual)

    def by_noise(self):
        return super().by_noise() + self._rows.sum(self._by_weights)[0]


def evidence_or_bound(kernel, rows, Z):
    """Return the objective of learning on rows with inducing points Z.

    It is the `CollapsedBound`, or the `Evidence`, which costs a quarter of that, where every row is
    an inducing point: both are then equal, and do not depend on Z.
    """
    if are_points(rows, Z):
        return Evidence(kernel, rows.gathered(), JITTER[torch.float64])
    return CollapsedBound(kernel, rows)


def are_points(rows, Z):
    """Return whether every row is at an inducing point, so that moving them cannot help.

    Far more rows than points are not examined, nor are more sparse rows than points: they need not
    fit in memory.
    """
    if rows.n_rows > (1 if isinstance(rows.X, CSRRows) else _MAX_REPEATS) * len(Z):
        return False
    points = _as_bytes(torch.as_tensor(Z).to(rows.dtype))
    chunks = (rows.take(index)[0].to_dense() for index in rows.chunks())
    return all(gather(all(_as_bytes(chunk) <= points for chunk in chunks)))


def _as_bytes(X):
    """Return the set of the rows of a tensor (n, d) as bytes; both zeros are the same."""
    return {row.tobytes() for row in (X + 0.0).cpu().numpy()}


@dataclass(kw_only=True)
class CollapsedState(SparseState):
    """Hyperparameters of `CollapsedLearning`, and the gain of the last round, nats per row."""

    gain: float = math.nan

    @property
    def hyperparameters(self):
        """The hyperparameters alone, as arguments of a bound."""
        return Hyperparameters(**self.parameters())


class CollapsedLearning(Stage):
    """Rounds of maximization of the collapsed ELBO, or of the log evidence.

    In each round the inducing points are in units of the length scales at its start.

    The bound is a `GaussianNoiseObjective`, a `SharedScaling` or a `Penalized`. ``free`` says which
    fields of `Hyperparameters` to train; its prior is left to the bound. Rounds, of at most
    ``n_steps`` steps of L-BFGS-B, end when one gains less than ``tol``, in nats per row.
    """

    def __init__(self, bound, free, tol, n_steps=ROUND):
        self.bound, self.free, self.tol, self.n_steps = bound, free, tol, n_steps

    def init(self, theta, Z, noise):
        return CollapsedState(theta=theta, Z=Z, noise=noise)

    def step(self, state):
        """Take one round; the objective is the bound after it."""
        free, first = self.free, None
        if "Z" in free.names:
            free = replace(free, scale=self._length_scales(state.theta, state.Z))

        def value_and_gradients(parts):
            nonlocal first
            value, *gradients = self.bound.value_and_gradient(**parts)
            first = value if first is None else first
            return value, Hyperparameters(*gradients)._asdict()

        weight = self.bound.weight.item()
        min_gain = _MIN_GAIN * self.tol * (weight + _EXTRA_ROWS)
        free.maximize(value_and_gradients, state, min_gain, self.n_steps)
        state.gain = (state.objective - first) / weight

    def converged(self, state):
        """Return whether the last round hardly raised the bound."""
        return state.gain < self.tol

    def _length_scales(self, theta, Z):
        """Return the change of each feature at which the kernel falls by a factor e^(-1/2).

        It is computed from the covariance of the inducing point of largest variance with copies
        moved by a tenth of a standard deviation. This is exact for a squared exponential. A
        feature in which the kernel does not fall gets ten standard deviations.
        """
        scale = self.free.scale
        _, kernel = exact_and_rest(self.bound.kernel, len(scale), len(Z))
        if kernel is None:
            return scale
        step = 0.1
        variances = kernel.diag(Z, theta)
        z = Z[variances.argmax()][None]
        moved = z + step * torch.diag(scale)
        fall = 1 - kernel(z, moved, theta)[0] / variances.max()
        return scale * (step / (2 * fall).clamp_min((step / _MAX_UNITS) ** 2).sqrt())
