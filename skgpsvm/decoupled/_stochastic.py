"""Algorithm 1 of the decoupled paper: bases from minibatches, gradient steps on everything."""

import math
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from .._linalg import cholesky, gaussian_kl, upper_root, weight_moments
from .._optim import NOISE_BOUNDS, minibatches

PARTS = ("theta", "noise", "Z", "bases", "coef", "factor", "mean", "raw_root")
PARAMETRIZATIONS = ("orthogonal", "hybrid", "shared", "decoupled")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # as torch's Adam calls them
_SAME = 1 - 1e-6  # covariance of bases of norm one that are the same
_CHUNK_ENTRIES = 2**21  # of a block of the bases' kernel matrix
_JITTER = 1e-6
_LEAST_NORM = 1e-2  # of what inducing points leave of a basis
_MOST_WIDER = 1.5  # logarithm of a basis's length-scale multiplier


class StochasticBound:
    r"""Unbiased estimates of the evidence bound of the four parametrisations.

    Bases have norm one: :math:`\psi_z = k(\cdot, z) / k(z, z)^{1/2}`. The parameters are a dict of
    tensors: ``theta``, ``noise``, ``Z`` (m, e), ``bases`` (M, e), ``coef`` (c, M); of the decoupled
    and the shared form ``factor`` (c, m, m), lower triangular, and of the shared one ``mean``
    (c, m), further coefficients, those of Z; of the hybrid and the orthogonal form ``mean`` (c, m)
    and ``raw_root`` (c, m, m) of the whitened inducing variables.

    Parameters
    ----------
    kernel : TorchKernel
    likelihood : SiteLikelihood
    parametrization : str
        One of `PARAMETRIZATIONS`.

    Notes
    -----
    Source: Cheng and Boots (2017), eqs. 7 to 14, and Salimbeni et al. (2018) for the orthogonal
    one; the user guide for the others. Departs from the source: columns of the
    bases' kernel matrix enter by value, their diagonal exactly.
    """

    def __init__(self, kernel, likelihood, parametrization):
        self.kernel, self.likelihood, self.parametrization = kernel, likelihood, parametrization
        self.has_factor = parametrization in ("shared", "decoupled")

    def value(self, parameters, X, y, weights, ratio, columns):
        """Estimate from rows, each for ``ratio`` rows, and from columns of the mean's bases."""
        mean, var, divergence = self._moments(parameters, X, columns)
        loss = self.likelihood.at(parameters["noise"]).loss(y, mean, var)
        return -ratio * (weights * loss).sum() - divergence

    def posterior(self, parameters):
        """Whitened mean (c, m), root (c, m, m), bases (M, e) and coefficients (c, M) of k."""
        Z, theta = parameters["Z"], parameters["theta"]
        chol = self._chol(parameters)
        bases, coef = self._span(parameters)
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
        return mean, root, bases, coef / self._norms(bases, theta)

    def added(self, parameters, X, y, Z, bases):
        """The parameters with rows as new bases, until there are as many as told."""
        found, theta = dict(parameters), parameters["theta"]
        if len(found["Z"]) >= Z and len(found["bases"]) >= bases:
            return found
        e = parameters["Z"].shape[1]
        new = torch.nn.functional.pad(X, (0, e - X.shape[1]))
        variance = self.kernel.diag(new, theta)
        for name, most in (("Z", Z), ("bases", bases)):
            known = found[name]
            apart = new
            if len(known):
                apart = new[self._gram(new, known, theta).max(1).values < _SAME]
            found[name] = torch.cat([known, apart[: max(most - len(known), 0)]])
        m, c, before = len(found["Z"]), len(parameters["coef"]), len(parameters["Z"])

        def grown(matrix, value):
            wide = torch.zeros(c, m, m).to(matrix)
            wide.diagonal(dim1=1, dim2=2)[:, before:] = value
            wide[:, :before, :before] = matrix
            return wide

        for name, size in (("mean", m), ("coef", len(found["bases"]))):
            if name in found:
                found[name] = _padded(parameters[name], (c, size))
        if self.has_factor:
            # The precision of having seen a new basis once; a zero would have no gradient.
            var = variance[:, None].expand(-1, c)
            seen = self.likelihood.at(parameters["noise"]).sites(y, torch.zeros_like(var), var)
            typical = (var * seen.precision).mean(0).sqrt()
            found["factor"] = grown(parameters["factor"], typical[:, None])
        else:
            # Whitened, what is new is independent of what is known: the posterior stays.
            found["raw_root"] = grown(parameters["raw_root"], 0.0)
        if self.parametrization == "orthogonal":
            self._keep_orthogonal(parameters, found)
        return found

    def _keep_orthogonal(self, parameters, found):
        """Write the mean's bases known before in the units that more inducing points give them."""
        before, size = parameters["mean"].shape[1], parameters["coef"].shape[1]
        old, new = (self._spanned(part, self._chol(part)) for part in (parameters, found))
        coef = self._scaled(parameters, old)
        units = self._scaled({"coef": torch.ones_like(coef[:1])}, new[:, :size])
        found["coef"][:, :size] = coef / units
        found["mean"][:, before:] = (coef @ new[:, :size].T)[:, before:]

    def _chol(self, parameters):
        gram = self._gram(parameters["Z"], parameters["Z"], parameters["theta"])
        return cholesky(gram, "kernel matrix of the bases", jitter=_JITTER)

    def n_bases(self, parameters):
        """Of the mean."""
        return len(self._span(parameters)[0])

    def _moments(self, parameters, X, columns):
        Z, theta = parameters["Z"], parameters["theta"]
        cross = self._cross(X, Z, theta)
        bases, coef = self._span(parameters)
        prior = self.kernel.diag(X, theta)[:, None]
        if self.has_factor:
            factor = parameters["factor"].tril()
            inner = torch.eye(len(Z)).to(factor) + factor.mT @ self._gram(Z, Z, theta) @ factor
            chol = cholesky(inner, "precision of the bases", jitter=0)
            explained = torch.linalg.solve_triangular(chol, factor.mT @ cross.T, upper=False)
            var = prior - explained.square().sum(1).T
            inverse = torch.cholesky_inverse(chol).diagonal(dim1=1, dim2=2).sum(1)
            log_det = chol.diagonal(dim1=1, dim2=2).log().sum(1)
            divergence = (log_det - 0.5 * (len(Z) - inverse)).sum()
            mean = 0.0
        else:
            chol = self._chol(parameters)
            A = torch.linalg.solve_triangular(chol, cross.T, upper=False).T
            weights, root = parameters["mean"], upper_root(parameters["raw_root"])
            var = prior - A.square().sum(1, keepdim=True) + (A @ root).square().sum(2).T
            divergence = gaussian_kl(weights, root).sum()
            spanned = self._spanned(parameters, chol)
            coef = self._scaled(parameters, spanned)
            projected = coef @ spanned.T
            if self.parametrization == "hybrid":
                divergence = divergence + (weights * projected).sum()
            else:
                weights = weights - projected
                divergence = divergence - _sampled_half_square(spanned, coef, projected, columns)
            mean = A @ weights.T
        divergence = divergence + 0.5 * coef.square().sum()
        coef = coef / self._norms(bases, theta)
        mean = mean + self.kernel(X, bases, theta) @ coef.T
        return mean, var.clamp_min(0), divergence + self._half_others(bases, coef, theta, columns)

    def _half_others(self, bases, coef, theta, columns):
        """Half the squared norm of the mean but its diagonal, estimated from some columns.

        The coefficients are those of the kernel.
        """
        ratio, total, some = coef.shape[1] / len(columns), 0.0, bases[columns]
        size = max(_CHUNK_ENTRIES // len(columns), 1)

        def part(rows, weights, at, some, theta):
            K = self.kernel(rows, some, theta) * (at[:, None] != columns)
            return ((weights @ K) * coef[:, columns]).sum()

        if size < len(bases):
            part = partial(checkpoint, part, use_reentrant=False)
        places = torch.arange(len(bases), device=bases.device)
        chunks = zip(bases.split(size), coef.split(size, 1), places.split(size), strict=True)
        for rows, weights, at in chunks:
            total = total + 0.5 * ratio * part(rows, weights, at, some, theta)
        return total

    def _span(self, parameters):
        """All bases of the mean, and their coefficients."""
        parts = [(parameters["bases"], parameters["coef"])]
        if self.parametrization == "shared":
            parts.append((parameters["Z"], parameters["mean"]))
        bases, coef = zip(*parts, strict=True)
        return torch.cat(bases), torch.cat(coef, 1)

    def _spanned(self, parameters, chol):
        """The mean's bases in the whitened inducing variables, (m, M)."""
        cross = self._gram(parameters["Z"], parameters["bases"], parameters["theta"])
        return torch.linalg.solve_triangular(chol, cross, upper=False)

    def _scaled(self, parameters, spanned):
        """Coefficients of bases of norm one; the orthogonal form keeps them in other units."""
        if self.parametrization == "hybrid":
            return parameters["coef"]
        left = 1 - spanned.detach().square().sum(0)
        return parameters["coef"] / left.clamp_min(_LEAST_NORM).sqrt()

    def _norms(self, Z, theta):
        return self.kernel.diag(Z, theta).sqrt()

    def _cross(self, X, Z, theta):
        """Covariances (b, m) of latent values and bases of norm one."""
        return self.kernel(X, Z, theta) / self._norms(Z, theta)

    def _gram(self, Z, other, theta):
        """Covariances of bases of norm one."""
        return self._cross(Z, other, theta) / self._norms(Z, theta)[:, None]


class StochasticDescent:
    """Algorithm 1: bases from each minibatch, then a step of Adam on everything.

    Parameters
    ----------
    bound : StochasticBound
    rows : Rows
    most : dict
        Of ``bases`` and ``Z``: how many there can be. As many as ``Z`` come from each minibatch.
    batch_size : int
    learning_rate : float
        gamma_0; step t is ``gamma_0 / (1 + 0.1 sqrt(t))``.
    trained : list of str
        Which of `PARTS`.
    bounds : Tensor of shape (k, 2)
        Of theta.
    generator : torch.Generator
    noise_bounds : tuple of two floats
        Of the logarithms of the noise.

    Notes
    -----
    Source: Cheng and Boots (2017), Algorithm 1.
    """

    def __init__(
        self,
        bound,
        rows,
        most,
        batch_size,
        learning_rate,
        trained,
        bounds,
        generator,
        noise_bounds=NOISE_BOUNDS,
    ):
        self.bound, self.rows, self._most = bound, rows, most
        self._batch_size, self._learning_rate = batch_size, learning_rate
        self._free_parameters, self._generator = trained, generator
        self._bounds = {"theta": bounds.unbind(-1), "noise": noise_bounds}

    def initial(self, start, n_columns, scale):
        """The state from which `step` starts: no bases yet, of so many numbers each.

        The scale (d,) is the unit of all steps on the bases' positions, later rows' too: moments
        of Adam are in it.
        """
        c, zeros = self.bound.likelihood.n_latents, start["theta"].new_zeros
        if self.bound.has_factor:
            further = {"factor": zeros(c, 0, 0)}
        else:
            further = {"raw_root": zeros(c, 0, 0)}
        if self.bound.parametrization != "decoupled":
            further["mean"] = zeros(c, 0)
        return {
            "theta": start["theta"],
            "noise": start["noise"],
            "Z": zeros(0, n_columns),
            "bases": zeros(0, n_columns),
            "coef": zeros(c, 0),
            **further,
            "scale": scale,
            "moments": {},
            "n_steps": 0,
            "n_seen": 0.0,
            "generator": self._generator.get_state(),
        }

    def bound_at(self, posterior, state):
        """The bound of the rows seen, were they all as these; nats."""
        loss, likelihood = 0.0, self.bound.likelihood.at(state["noise"])
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            mean, var = posterior.marginals(X.double())
            loss += (weights * likelihood.loss(y, mean, var)).sum().item()
        return -state["n_seen"] / self.rows.total_weight * loss - posterior.kl().item()

    def step(self, state):
        """Learn from shuffled minibatches of all rows; returns the mean estimate of the bound."""
        self._generator.set_state(state["generator"].cpu())
        batches = minibatches(len(self.rows), self._batch_size, self._generator)
        values = [self._learn(state, index.to(self.rows.device)) for index in batches]
        state["generator"] = self._generator.get_state()
        return sum(values) / len(values)

    def _learn(self, state, index):
        """Add bases and take a step; returns the estimate of the bound before it."""
        X, y, weights = self.rows.take(index)
        X, weights = X.double(), weights.double()
        parts = {name: state[name] for name in PARTS if name in state}
        most = {n: min(size, len(state[n]) + self._most["Z"]) for n, size in self._most.items()}
        state.update(self.bound.added(parts, X, y, **most))
        ratio = state["n_seen"] / self.rows.total_weight * len(self.rows) / len(X)
        return self._moved(state, X, y, weights, ratio)

    @torch.enable_grad()
    def _moved(self, state, X, y, weights, ratio):
        """A step of Adam; returns the estimate of the bound before it."""
        parts = {name: state[name] for name in PARTS if name in state}
        scale, trained = state["scale"], [name for name in self._free_parameters if name in parts]
        units = {name: _unit(name, parts[name], scale) for name in trained}
        leaves = {name: (parts[name] / unit).requires_grad_() for name, unit in units.items()}
        size = self.bound.n_bases(parts)
        columns = torch.randperm(size, generator=self._generator)[: self._batch_size]
        moved = {name: leaf * units[name] for name, leaf in leaves.items()}
        value = self.bound.value(parts | moved, X, y, weights, ratio, columns.to(X.device))
        rate = self._learning_rate / (1 + 0.1 * math.sqrt(state["n_steps"] + 1))
        optimizer = torch.optim.Adam(leaves.values(), lr=rate, maximize=True)
        for name, leaf in leaves.items():
            none = leaf.new_zeros([0] * leaf.ndim)
            moments = [_padded(m, leaf.shape) for m in state["moments"].get(name, (none, none))]
            step = torch.tensor(float(state["n_steps"]))
            optimizer.state[leaf] = dict(zip(_MOMENTS, (step, *moments), strict=True))
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for name, leaf in leaves.items():
                if leaf.grad is not None:
                    state["moments"][name] = [optimizer.state[leaf][m] for m in _MOMENTS[1:]]
                if name in self._bounds and leaf.numel():
                    leaf.clamp_(*self._bounds[name])
                if name in ("Z", "bases"):
                    leaf[:, len(scale) :].clamp_(-_MOST_WIDER, _MOST_WIDER)
                state[name] = leaf.detach() * units[name]
        state["n_steps"] += 1
        return value.item()


def _unit(name, part, scale):
    """Of a part's steps."""
    if name not in ("Z", "bases"):
        return 1.0
    return torch.nn.functional.pad(scale, (0, part.shape[1] - len(scale)), value=1.0)


def _sampled_half_square(spanned, coef, total, columns):
    """Half the squared norm of ``total = coef @ spanned.T``, (c, m), estimated from some columns.

    The same columns as of the bases' kernel matrix: what is left of a sampled column is what the
    inducing points leave of it, which is small where that is, as the exact norm would not be.
    """
    norms = spanned.square().sum(0)
    others = total @ spanned[:, columns] - coef[:, columns] * norms[columns]
    ratio = coef.shape[1] / len(columns)
    return 0.5 * ((coef.square() * norms).sum() + ratio * (coef[:, columns] * others).sum())


def _padded(tensor, shape):
    """With zeros after its entries along each axis."""
    wide = tensor.new_zeros(shape)
    wide[tuple(slice(size) for size in tensor.shape)] = tensor
    return wide
