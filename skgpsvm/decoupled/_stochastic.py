"""Algorithm 1 of the decoupled paper: bases from minibatches, gradient steps on all parameters."""

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from .._fitting import Stage, State
from .._linalg import cholesky, gaussian_kl, upper_root, weight_moments
from .._memory import CACHED_BLOCK, block_rows, n_cached_blocks
from .._optim import adam_step
from .._transfers import to_device

_DUPLICATE = 1 - 1e-6  # covariance of unit-norm bases from which on they count as the same
_JITTER = 1e-6
_MIN_RESIDUAL_NORM = 1e-2  # squared, of what the inducing points leave of a basis
_MAX_LOG_MULTIPLIER = 1.5  # of a basis's length scales


class StochasticBound:
    r"""Unbiased estimates of the ELBO in each of the four parametrizations.

    Bases have norm one: :math:`\psi_z = k(\cdot, z) / k(z, z)^{1/2}`. The parameters are a dict of
    tensors:

    - in all forms ``theta``, ``noise``, ``Z`` (m, e), ``bases`` (M, e) and ``coef`` (c, M);
    - in the decoupled and the shared form ``factor`` (c, m, m), lower triangular;
    - in the shared form also ``mean`` (c, m), the coefficients of Z;
    - in the hybrid and the orthogonal form ``mean`` (c, m) and ``raw_root`` (c, m, m), the moments
      of the whitened inducing variables.

    Source: Cheng and Boots (2017), eqs. 7 to 14; Salimbeni et al. (2018) for the orthogonal form;
    the user guide for the others. Departs from the source: columns of the bases' kernel matrix
    enter by value, and its diagonal exactly.
    """

    def __init__(self, kernel, likelihood, parametrization):
        self.kernel, self.likelihood, self.parametrization = kernel, likelihood, parametrization
        self.has_factor = parametrization in ("shared", "decoupled")

    def value(self, parameters, X, y, weights, ratio, columns, part=(0, 1)):
        """Estimate the ELBO, nats, from a minibatch of rows and of columns.

        Each row stands for ``ratio`` rows. ``columns`` (s,) are sampled bases of the mean, whose
        columns of the kernel matrix enter. If ranks share the rows, the sum of their values is the
        estimate: each has its own rows of the minibatch, and its ``part`` of the columns: its
        number, and the number of parts.
        """
        mean, var, divergence = self._moments(parameters, X, columns, part)
        loss = self.likelihood.at(parameters["noise"]).loss(y, mean, var)
        return -ratio * (weights * loss).sum() - divergence

    def posterior(self, parameters):
        """Return the posterior of the parameters by name: mean, root, bases and coef.

        The first two are moments of the whitened inducing variables, the others further bases of
        the mean (M, e) and the coefficients (c, M) of the kernels there.
        """
        Z, theta = parameters["Z"], parameters["theta"]
        chol = self._chol(parameters)
        bases, coef = self.span(parameters)
        if self.has_factor:
            half = chol.T @ parameters["factor"].tril()
            precision = torch.eye(len(Z)).to(half) + half @ half.mT
            mean, root = weight_moments(precision, half.new_zeros(len(half), len(Z)))
        else:
            spanned = self._spanned(parameters, chol)
            coef = self._scaled(parameters, spanned)
            mean, root = parameters["mean"], upper_root(parameters["raw_root"])
            if self.parametrization == "orthogonal":
                mean = mean - coef @ spanned.T
        coef = coef / self._norms(bases, theta)
        return {"mean": mean, "root": root, "bases": bases, "coef": coef}

    def with_new_bases(self, parameters, X, y, Z, bases):
        """Return the parameters with rows as new bases, up to ``Z`` and ``bases`` of them.

        Rows that are bases already, and repeated ones, are left out.
        """
        grown, theta = dict(parameters), parameters["theta"]
        if len(grown["Z"]) >= Z and len(grown["bases"]) >= bases:
            return grown
        e = parameters["Z"].shape[1]
        new = torch.nn.functional.pad(X, (0, e - X.shape[1]))
        variance = self.kernel.diag(new, theta)
        for name, size in (("Z", Z), ("bases", bases)):
            n_known, every = len(grown[name]), torch.cat([grown[name], new])
            to_earlier = self._gram(new, every, theta).tril(n_known - 1)
            distinct = new[to_earlier.amax(1) < _DUPLICATE]
            grown[name] = torch.cat([grown[name], distinct[: max(size - n_known, 0)]])
        m, c, before = len(grown["Z"]), len(parameters["coef"]), len(parameters["Z"])

        def enlarged(matrix, diagonal):
            wide = _padded(matrix, (c, m, m))
            wide.diagonal(dim1=1, dim2=2)[:, before:] = diagonal
            return wide

        for name, size in (("mean", m), ("coef", len(grown["bases"]))):
            if name in grown:
                grown[name] = _padded(parameters[name], (c, size))
        if self.has_factor:
            # The precision of one row at the new basis; a zero would have no gradient.
            var = variance[:, None].expand(-1, c)
            sites = self.likelihood.at(parameters["noise"]).sites(y, torch.zeros_like(var), var)
            typical = (var * sites.precision).mean(0).sqrt()
            grown["factor"] = enlarged(parameters["factor"], typical[:, None])
        else:
            # Whitened, a new variable is independent of the others, so the posterior stays.
            grown["raw_root"] = enlarged(parameters["raw_root"], 0.0)
        if self.parametrization == "orthogonal":
            self._keep_orthogonal(parameters, grown)
        return grown

    def _keep_orthogonal(self, parameters, grown):
        """Rescale the coefficients of earlier bases, which more inducing points project on."""
        before, size = parameters["mean"].shape[1], parameters["coef"].shape[1]
        old, new = (self._spanned(part, self._chol(part)) for part in (parameters, grown))
        coef = self._scaled(parameters, old)
        units = self._scaled({"coef": torch.ones_like(coef[:1])}, new[:, :size])
        grown["coef"][:, :size] = coef / units
        grown["mean"][:, before:] = (coef @ new[:, :size].T)[:, before:]

    def _chol(self, parameters):
        gram = self._gram(parameters["Z"], parameters["Z"], parameters["theta"])
        return cholesky(gram, "kernel matrix of the bases", jitter=_JITTER)

    def _moments(self, parameters, X, columns, part):
        """Return latent means and variances (b, c), and an estimate of the divergence, nats.

        The latter is this rank's part of it.
        """
        Z, theta = parameters["Z"], parameters["theta"]
        cross = self._cross(X, Z, theta)
        bases, coef = self.span(parameters)
        own, ratio = columns.tensor_split(part[1])[part[0]], coef.shape[1] / len(columns)
        prior, share = self.kernel.diag(X, theta)[:, None], 1 / part[1]
        if self.has_factor:
            factor = parameters["factor"].tril()
            inner = torch.eye(len(Z)).to(factor) + factor.mT @ self._gram(Z, Z, theta) @ factor
            chol = cholesky(inner, "precision of the bases", jitter=0)
            explained = torch.linalg.solve_triangular(chol, factor.mT @ cross.T, upper=False)
            var = prior - explained.square().sum(1).T
            inverse = torch.cholesky_inverse(chol).diagonal(dim1=1, dim2=2).sum(1)
            log_det = chol.diagonal(dim1=1, dim2=2).log().sum(1)
            divergence = share * (log_det - 0.5 * (len(Z) - inverse)).sum()
            mean = 0.0
        else:
            chol = self._chol(parameters)
            A = torch.linalg.solve_triangular(chol, cross.T, upper=False).T
            weights, root = parameters["mean"], upper_root(parameters["raw_root"])
            var = prior - A.square().sum(1, keepdim=True) + (A @ root).square().sum(2).T
            divergence = share * gaussian_kl(weights, root).sum()
            spanned = self._spanned(parameters, chol)
            coef = self._scaled(parameters, spanned)
            projected = coef @ spanned.T
            if self.parametrization == "hybrid":
                divergence = divergence + share * (weights * projected).sum()
            else:
                weights = weights - projected
                sampled = spanned, coef, projected, own, ratio, share
                divergence = divergence - _sampled_half_square(*sampled)
            mean = A @ weights.T
        divergence = divergence + share * 0.5 * coef.square().sum()
        coef = coef / self._norms(bases, theta)
        mean = mean + self.kernel(X, bases, theta) @ coef.T
        off_diagonal = self._half_off_diagonal(bases, coef, theta, own, ratio)
        return mean, var.clamp_min(0), divergence + off_diagonal

    def _half_off_diagonal(self, bases, coef, theta, columns, ratio):
        """Estimate half of the off-diagonal part of the mean's squared norm from some columns.

        Each column stands for ``ratio`` columns. The coefficients are those of the kernels.
        """
        total, sampled = 0.0, bases[columns]
        if not len(columns):  # a rank's part of very few
            return total
        size = block_rows(len(columns), n_cached_blocks(bases.device) * CACHED_BLOCK)

        def part(rows, weights, at, sampled, theta):
            K = self.kernel(rows, sampled, theta) * (at[:, None] != columns)
            return ((weights @ K) * coef[:, columns]).sum()

        if size < len(bases):
            part = partial(checkpoint, part, use_reentrant=False)
        places = torch.arange(len(bases), device=bases.device)
        chunks = zip(bases.split(size), coef.split(size, 1), places.split(size), strict=True)
        for rows, weights, at in chunks:
            total = total + 0.5 * ratio * part(rows, weights, at, sampled, theta)
        return total

    def span(self, parameters):
        """Return all bases of the mean, and their coefficients."""
        parts = [(parameters["bases"], parameters["coef"])]
        if self.parametrization == "shared":
            parts.append((parameters["Z"], parameters["mean"]))
        bases, coef = zip(*parts, strict=True)
        return torch.cat(bases), torch.cat(coef, 1)

    def _spanned(self, parameters, chol):
        """Return the projections of the mean's bases on the whitened inducing variables, (m, M)."""
        cross = self._gram(parameters["Z"], parameters["bases"], parameters["theta"])
        return torch.linalg.solve_triangular(chol, cross, upper=False)

    def _scaled(self, parameters, spanned):
        """Return coefficients of unit-norm bases.

        The orthogonal form keeps them in units of what the inducing points leave of each basis.
        """
        if self.parametrization == "hybrid":
            return parameters["coef"]
        left = 1 - spanned.detach().square().sum(0)
        return parameters["coef"] / left.clamp_min(_MIN_RESIDUAL_NORM).sqrt()

    def _norms(self, Z, theta):
        return self.kernel.diag(Z, theta).sqrt()

    def _cross(self, X, Z, theta):
        """Return covariances (b, m) of latent values and unit-norm bases."""
        return self.kernel(X, Z, theta) / self._norms(Z, theta)

    def _gram(self, Z, other, theta):
        """Return covariances of unit-norm bases."""
        return self._cross(Z, other, theta) / self._norms(Z, theta)[:, None]


@dataclass(kw_only=True)
class DescentState(State):
    """State of `StochasticDescent`."""

    parameters: dict  # of Tensor: as of `StochasticBound`
    # (d,): Unit of all steps on the bases' positions, for each feature. Adam's moments are in it,
    # so that it stays when later rows have another scale.
    scale: torch.Tensor
    generator: torch.Tensor  # state of the random generator
    # Adam's first and second moments of each learned parameter
    moments: dict = field(default_factory=dict)
    n_steps: int = 0  # minibatches so far
    n_seen: float = 0.0  # total weight of the rows seen


class StochasticDescent(Stage):
    """Algorithm 1: add bases from each minibatch, then take a step of Adam on all parameters.

    ``max_bases`` has the largest numbers of ``Z`` and of ``bases``. Each minibatch adds at most
    ``max_bases["Z"]`` of either, and samples ``batch_size`` columns of the bases' kernel matrix.
    With ``learning_rate`` gamma_0, step t is ``gamma_0 / (1 + 0.1 sqrt(t))``. Parameters are
    learned unless they are ``fixed``, ``theta`` and ``noise`` within ``limits``.

    Source: Cheng and Boots (2017), Algorithm 1.
    """

    def __init__(self, bound, rows, max_bases, batch_size, learning_rate, fixed, limits, generator):
        self.bound, self.rows, self._max_bases = bound, rows, max_bases
        self._batch_size, self._learning_rate = batch_size, learning_rate
        self._fixed, self._limits, self._generator = fixed, limits, generator

    def init(self, theta, noise, n_columns, scale):
        """Return the first state, which has no bases; each has ``n_columns`` numbers."""
        c, zeros = self.bound.likelihood.n_latents, theta.new_zeros
        parameters = {
            "theta": theta,
            "noise": noise,
            "Z": zeros(0, n_columns),
            "bases": zeros(0, n_columns),
            "coef": zeros(c, 0),
        }
        parameters["factor" if self.bound.has_factor else "raw_root"] = zeros(c, 0, 0)
        if self.bound.parametrization != "decoupled":
            parameters["mean"] = zeros(c, 0)
        generator = self._generator.get_state()
        return DescentState(parameters=parameters, scale=scale, generator=generator)

    def step(self, state):
        """Pass once over shuffled minibatches; the objective is the mean estimate of the ELBO."""
        self._generator.set_state(state.generator.cpu())
        batches = self.rows.minibatches(self._batch_size, self._generator)
        values = [self._learn(state, index) for index in batches]
        state.generator = self._generator.get_state()
        state.objective = (sum(values) / len(values)).item()

    def _learn(self, state, index):
        """Add bases and take a step; return the estimate of the ELBO before it."""
        X, y, weights = self.rows.take(index)
        X, weights = X.double(), weights.double()
        step = self._max_bases["Z"]
        sizes = {
            name: min(size, len(state.parameters[name]) + step)
            for name, size in self._max_bases.items()
        }
        if any(len(state.parameters[name]) < size for name, size in sizes.items()):
            # The parts of the ranks are mixed, so that all of them contribute bases.
            place = torch.arange(len(X), dtype=torch.float64, device=X.device) / max(len(X), 1)
            new, labels, place = self.rows.collect(X, y, place)
            order = place.argsort(stable=True)
            parts = state.parameters, new[order], labels[order]
            state.parameters = self.bound.with_new_bases(*parts, **sizes)
        ratio = state.n_seen / self.rows.total_weight * len(self.rows) / max(len(X), 1)
        return self._adam_step(state, X, y, weights, ratio)

    @torch.enable_grad()
    def _adam_step(self, state, X, y, weights, ratio):
        """Take a step of Adam; return the estimate of the ELBO before it.

        Bases that are new have moments of zero.
        """
        parameters, scale = state.parameters, state.scale
        free = [name for name in parameters if name not in self._fixed]
        units = {name: _unit(name, parameters[name], scale) for name in free}
        leaves = {name: (parameters[name] / unit).requires_grad_() for name, unit in units.items()}
        size = len(self.bound.span(parameters)[0])
        columns = torch.randperm(size, generator=self._generator)[: self._batch_size]
        moved = {name: leaf * units[name] for name, leaf in leaves.items()}
        columns, part = to_device(columns, X.device), self.rows.shard
        value = self.bound.value(parameters | moved, X, y, weights, ratio, columns, part)
        rate = self._learning_rate / (1 + 0.1 * math.sqrt(state.n_steps + 1))
        gradients = torch.autograd.grad(value, [*leaves.values()], materialize_grads=True)
        value, *gradients = self.rows.sum(value.detach(), *gradients)
        with torch.no_grad():
            for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
                none = leaf.new_zeros([0] * leaf.ndim)
                moments = [_padded(m, leaf.shape) for m in state.moments.get(name, (none, none))]
                step, memory = adam_step((state.n_steps, *moments), gradient, rate)
                leaf += step
                _, *state.moments[name] = memory
                if name in self._limits and leaf.numel():
                    leaf.clamp_(*self._limits[name])
                if name in ("Z", "bases"):
                    leaf[:, len(scale) :].clamp_(-_MAX_LOG_MULTIPLIER, _MAX_LOG_MULTIPLIER)
                parameters[name] = leaf.detach() * units[name]
        state.n_steps += 1
        return value


def _unit(name, part, scale):
    """Return the unit of the steps on a parameter."""
    if name not in ("Z", "bases"):
        return 1.0
    return torch.nn.functional.pad(scale, (0, part.shape[1] - len(scale)), value=1.0)


def _sampled_half_square(spanned, coef, total, columns, ratio, share):
    """Estimate half the squared norm of ``total = coef @ spanned.T``, (c, m), from some columns.

    Each of the columns stands for ``ratio`` columns; the exact part counts by ``share``. They are
    the columns that are sampled of the bases' kernel matrix. The two estimates are subtracted, and
    of each column what the inducing points leave remains. That is small where they explain the
    basis; with the exact norm it would not be.
    """
    norms = spanned.square().sum(0)
    others = total @ spanned[:, columns] - coef[:, columns] * norms[columns]
    exact = (coef.square() * norms).sum()
    return 0.5 * (share * exact + ratio * (coef[:, columns] * others).sum())


def _padded(tensor, shape):
    """Return a tensor padded with zeros at the end of each axis."""
    wide = tensor.new_zeros(shape)
    wide[tuple(slice(size) for size in tensor.shape)] = tensor
    return wide
