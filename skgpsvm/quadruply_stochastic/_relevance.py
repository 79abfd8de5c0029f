"""Relevance vector machines: sweeps over means, covariance, precisions and noise of the weights."""

import math
from copy import copy
from dataclasses import dataclass

import torch

from .._bases import Dictionary
from .._fitting import Stage, State
from .._linalg import cholesky, upper_inverse
from .._optim import by_autograd, lbfgs
from ..likelihoods import Logistic
from ._bounds import ExpectedQuadratic, quadratic_bound

PRECISIONS = (math.exp(-14.0), math.exp(28.0))  # between which those of the weights are held
_JITTER = 1e-14
_CHUNK_ENTRIES = 2**22
_NOISE_STEPS = 50
_TINY = 1e-300
_COARSE = 1.0  # nats of change of the bound at which single weights are looked at
_LEAST_SHARE = 1e-14


class BiasedDictionary(Dictionary):
    r"""A `Dictionary` whose last function is the constant 1.

    Parameters
    ----------
    kernel, theta, points
        As of `Dictionary`.
    precisions : Tensor of shape (c, M)
        Prior precisions of the weights of each latent, M one more than the points.
    """

    def __init__(self, kernel, theta, points, precisions):
        super().__init__(kernel, theta, points, precisions)
        self.size = precisions.shape[1]

    def values(self, X):
        values = super().values(X)
        return torch.cat([values, values.new_ones(len(X), 1)], 1)

    def blocks(self, X):
        yield slice(self.size), self.values(X)


@dataclass(kw_only=True)
class RelevanceState(State):
    """Solution of relevance sweeps: c latents, M functions, k = M columns or 0 for mean field.

    Sums over rows are in units in which the noise is 1. Fields that may be None are so only until
    `RelevanceSweeps.init` has passed over the rows, but for ``solved_products`` and
    ``solved_linear``, which only two classes have.

    Attributes
    ----------
    theta, noise : Tensor of shape (t,), (s,)
        Logarithms of the kernel's and the likelihood's hyperparameters.
    bases : Tensor of shape (M - 1, d)
        Points of the functions; the last function is the constant.
    precisions : Tensor of shape (c, M)
        Prior precisions of the weights.
    coef : Tensor of shape (c, M)
        Means of the weights.
    gamma : Tensor of shape (c, M)
        Share of each weight that the data determine.
    diag, columns : Tensor of shape (c, M), (c, M, k), or None
        Covariance of the weights, see `WeightPosterior`.
    products : Tensor of shape (1, M, M) or (c, M, M), or None
        Sums of the weighted outer products of the functions.
    linear : Tensor of shape (c, M), or None
        Sums of the functions times the linear terms of the sites.
    solved_products, solved_linear : Tensor or None
        Values of `products` and `linear` from which means and covariance were last solved for.
    deviation : Tensor of shape (c,), or None
        Sum of the squared residuals or absolute deviations, from which the noise is learned.
    loss : Tensor of shape (), or None
        Negative expected log likelihood, in nats.
    change : float
        Absolute change of the objective in the last sweep, in nats.
    n_left_out : int
        Functions left out in the last sweep.
    per_weight : bool
        Whether precisions are set one by one.
    """

    theta: torch.Tensor
    noise: torch.Tensor
    bases: torch.Tensor
    precisions: torch.Tensor
    coef: torch.Tensor
    gamma: torch.Tensor
    diag: torch.Tensor | None = None
    columns: torch.Tensor | None = None
    products: torch.Tensor | None = None
    linear: torch.Tensor | None = None
    solved_products: torch.Tensor | None = None
    solved_linear: torch.Tensor | None = None
    deviation: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    change: float = math.inf
    n_left_out: int = 0
    per_weight: bool = False


class RelevanceSweeps(Stage):
    r"""Coordinate ascent on the evidence bound of weights with a prior precision each.

    A sweep sets the precisions, then the noise, leaves out functions that have become irrelevant,
    and solves for means and covariance; a pass over the rows then renews the quadratic bound of the
    likelihood.

    Parameters
    ----------
    sites : LikelihoodSites
    kernel : TorchKernel
    rows : Rows
    mean_field : bool
        Whether weights are independent a posteriori.
    threshold : float
        Precision from which on a function is irrelevant.
    tol : float
        Change of the bound, nats, at which sweeps have converged.
    noise_bounds : Tensor of shape (c, 2) or (1, 2), optional
        Of the noise's logarithm, which may be the same for all latents; without them it is held.

    Notes
    -----
    Source: Evans and Nair, sections 3 and 4; Tipping (2001) for the fixed
    point; Tipping and Faul (2003) for single weights. Departs from the source: means solve their
    system directly. With a full covariance the fixed point, which slows down while hundreds of
    functions explain the same, gives way to the exact maximum over one precision after the other
    once the bound changes by less than 1 nat; where the fixed point itself would lower the bound,
    precisions move half as far in their logarithms, which cannot (Wipf and Nagarajan, 2008). So the
    bound never falls, but for what functions left out have contributed. Two classes have no
    quadratic bound but the expected quadratic of their likelihood, see `ExpectedQuadratic`; where
    a sweep overshoots, the sums over rows move half as far too.
    """

    def __init__(self, sites, kernel, rows, *, mean_field, threshold, tol, noise_bounds=None):
        self._sites, self._kernel, self._rows = sites, kernel, rows
        self._mean_field, self._threshold, self._tol = mean_field, threshold, tol
        self._noise_bounds = noise_bounds

    def init(self, theta, noise, bases):
        """Return the state with functions at ``bases`` (M - 1, d) and precisions of 1."""
        c, M = self._sites.n_latents, len(bases) + 1
        precisions = theta.new_ones(c, M)
        coef, gamma = torch.zeros(2, c, M).to(precisions)
        state = RelevanceState(
            theta=theta, noise=noise, bases=bases, precisions=precisions, coef=coef, gamma=gamma
        )
        self._accumulate_statistics(state)
        self._solve(state)
        self._accumulate_statistics(state)
        state.objective = self.value(state)
        return state

    def step(self, state):
        """Take one sweep; the objective is the bound, in nats."""
        before = copy(state)
        state.per_weight = state.per_weight or state.change < _COARSE
        wanted = self._precisions(state)
        self._advance(state, wanted)
        if state.objective < before.objective and not (self._mean_field and self._is_bound()):
            state.restore(before.as_dict())
            if not self._is_bound():
                state.products = 0.5 * (state.products + state.solved_products)
                state.linear = 0.5 * (state.linear + state.solved_linear)
            self._advance(state, (before.precisions * wanted).sqrt())
        state.change = abs(state.objective - before.objective)
        state.n_left_out = before.precisions.shape[1] - state.precisions.shape[1]

    def converged(self, state):
        """Whether the last sweep left nothing out and changed the bound by less than ``tol``."""
        return state.change < self._tol and not state.n_left_out

    def value(self, state):
        """The bound on the log evidence, nats."""
        s, gamma = state.precisions, state.gamma
        kl = 0.5 * (s * state.coef.square() - gamma - s.log()) - state.diag.log()
        return -(state.loss + kl.sum()).item()

    def moments(self, state, rows):
        """Targets, weights, and means and variances (b, c) of other rows."""
        parts = []
        for index in rows.chunks(self._chunk(state)):
            X, y, weights = rows.take(index)
            values = self._bases(state).values(X).double()
            y = y.double() if y.is_floating_point() else y
            moments = values @ state.coef.T, self._spread(state, values)
            parts.append((y, weights.double(), *moments))
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def likeliest_noise(self, noise, moments):
        """Return log densities of rows that several fits have not seen, and the noise they set.

        The variances of a model of few functions are too small to judge its means by.

        Parameters
        ----------
        noise : Tensor of shape (c,)
            To start from.
        moments : list
            `moments` of each fit.

        Returns
        -------
        densities : Tensor of shape (n,)
            In nats, at that noise.
        weights : Tensor of shape (n,)
        noise : Tensor of shape (c,)
        """
        y, weights, *moments = (torch.cat(part) for part in zip(*moments, strict=True))

        def densities(noise):
            return self._sites.at(noise).likelihood.log_marginal(y, *moments)

        if self._noise_bounds is not None:
            value = by_autograd(lambda noise: weights @ densities(noise))
            noise, _ = lbfgs(value, noise, self._noise_bounds, _NOISE_STEPS)
        return densities(noise), weights, noise

    # Parts of a sweep

    def _advance(self, state, precisions):
        state.precisions = precisions
        if self._noise_bounds is not None:
            state.noise = self._noise(state)
        self._leave_out(state)
        self._solve(state)
        self._accumulate_statistics(state)
        state.objective = self.value(state)

    def _precisions(self, state):
        if self._mean_field:
            data = state.products.diagonal(dim1=1, dim2=2) / self._unit(state)[:, None]
            found = joint_precisions(state.coef, data)
        elif state.per_weight:
            parts = zip(state.precisions, state.coef, state.columns, strict=True)
            found = torch.stack([per_weight_precisions(*part) for part in parts])
        else:
            found = fixed_point(state.coef, state.gamma)
        return found.clamp(*PRECISIONS)

    def _noise(self, state):
        """Logarithms of the most likely noise."""
        total = state.deviation
        if self._is_gaussian():
            total = total + self._unit(state) * state.gamma.sum(1)
        if len(state.noise) == 1:
            total = total.mean(0, keepdim=True)
        noise = (total / self._rows.total_weight).clamp_min(_TINY).log()
        return noise.clamp(*self._noise_bounds.unbind(1))

    def _leave_out(self, state):
        """Only functions that are relevant to a latent, and the constant."""
        kept = (state.precisions < self._threshold).any(0)
        kept[-1] = True
        if kept.all():
            return
        state.bases = state.bases[kept[:-1]]
        state.precisions, state.coef = state.precisions[:, kept], state.coef[:, kept]
        state.linear = state.linear[:, kept]
        state.products = state.products[:, kept][:, :, kept]

    def _solve(self, state):
        """Means and covariance, optimal at what else there is."""
        unit, s = self._unit(state), state.precisions
        scale = s.rsqrt()
        parts = []
        for j in range(len(s)):
            products = state.products[j % len(state.products)]
            B = scale[j][:, None] * products * (scale[j] / unit[j])
            B.diagonal().add_(1.0)
            root = _lower_root(B)
            C = scale[j][:, None] * root
            coef = C @ (C.T @ state.linear[j]) / unit[j]
            if self._mean_field:
                data = products.diagonal() / unit[j]
                parts.append((coef, (data + s[j]).rsqrt(), C[:, :0], data / (data + s[j])))
            else:
                parts.append((coef, C.diagonal(), C, 1 - root.square().sum(1)))
        parts = map(torch.stack, zip(*parts, strict=True))
        state.coef, state.diag, state.columns, state.gamma = parts
        if not self._is_bound():
            state.solved_products, state.solved_linear = state.products, state.linear

    def _accumulate_statistics(self, state):
        """A pass over the rows: what they say about weights and noise, at the best bound."""
        bound = self._quadratic(state)
        bases, unit = self._bases(state), self._unit(state)
        c, M = state.precisions.shape
        renewed = not bound.fixed_precision or state.products is None
        if renewed:
            products = unit.new_zeros(1 if bound.fixed_precision else c, M, M)
        linear, deviation, loss = unit.new_zeros(c, M), unit.new_zeros(c), unit.new_zeros(())
        for index in self._rows.chunks(self._chunk(state)):
            X, y, weights = self._rows.take(index)
            values, weights = bases.values(X).double(), weights.double()[:, None]
            y = y.double() if y.is_floating_point() else y
            mean = values @ state.coef.T
            square = mean.square()
            if not bound.fixed_precision:
                square = square + self._spread(state, values)
            auxiliary = bound.auxiliary(y, mean, square)
            slope, precision, constant = bound.sites(y, auxiliary)
            own = (0.5 * precision * square - slope * mean).sum(1) - constant
            loss += weights[:, 0] @ own
            linear += (weights * slope * unit).T @ values
            if renewed:
                for total, w in zip(products, (weights * precision * unit).T, strict=False):
                    total += (w[:, None] * values).T @ values
            if self._noise_bounds is not None:
                far = auxiliary.clamp_min(0).sqrt()  # rounding may leave less than nothing
                gaps = (y - mean).square() if self._is_gaussian() else far
                deviation += (weights * gaps).sum(0)
        if renewed:
            state.products = products
        if bound.fixed_precision:  # the variances' part
            loss = loss + 0.5 * state.gamma.sum()
        state.linear, state.deviation, state.loss = linear, deviation, loss

    def _spread(self, state, values):
        """Variances (b, c) of latents; 1 where there is no posterior yet."""
        if state.diag is None:
            return values.new_ones(len(values), self._sites.n_latents)
        if self._mean_field:
            return values.square() @ state.diag.square().T
        return torch.stack([(values @ C).square().sum(1) for C in state.columns], 1)

    def _bases(self, state):
        return BiasedDictionary(self._kernel, state.theta, state.bases, state.precisions)

    def _chunk(self, state):
        """Rows of which values are held at a time."""
        return max(_CHUNK_ENTRIES // state.precisions.shape[1], 64)

    def _quadratic(self, state):
        """The quadratic that stands for the log likelihood of a row."""
        likelihood = self._sites.at(state.noise).likelihood
        kind = quadratic_bound if self._is_bound() else ExpectedQuadratic
        return kind(likelihood, self._sites.n_latents)

    def _is_bound(self):
        """Whether a quadratic bound stands for the likelihood, so that no sweep lowers the value.

        The bound for two classes is too loose where one is rare. The one for more classes is loose
        too, which costs up to 5 % of the log loss, but its curvature is the same in every sweep:
        exact expectations need c products of n x M matrices in each, six times the time of a fit.
        """
        return not isinstance(self._sites.likelihood, Logistic)

    def _is_gaussian(self):
        return self._sites.conjugate

    def _unit(self, state):
        """What precisions of rows are multiplied by in the sums, (c,)."""
        noise, c = state.noise, self._sites.n_latents
        return noise.exp().expand(c) if len(noise) else noise.new_ones(c)


def joint_precisions(coef, data):
    r"""The best precision s and variance of a weight with a given mean, together: s.

    Parameters
    ----------
    coef, data : Tensor
        Means, and what the data add to each precision, d: the variance is 1 / (d + s).

    Returns
    -------
    precisions : Tensor
        Infinite for means of zero.

    Notes
    -----
    Source: the fixed point :math:`s \mu^2 + s / (d + s) = 1`.
    """
    squares = coef.square()
    return 2 / (squares + (squares.square() + 4 * squares / data.clamp_min(_TINY)).sqrt())


def fixed_point(coef, gamma):
    r"""A step of :math:`s = (1 - s \Sigma_{ii}) / \mu^2` towards the best precisions.

    Parameters
    ----------
    coef, gamma : Tensor
        Means, and the numerators.

    Returns
    -------
    precisions : Tensor

    Notes
    -----
    Source: Tipping (2001), eq. 16.
    """
    return gamma.clamp_min(_TINY**0.5) / coef.square().clamp_min(_TINY)


def per_weight_precisions(precisions, coef, columns):
    r"""The best precision of one weight after the other, the other precisions held.

    Parameters
    ----------
    precisions, coef : Tensor of shape (M,)
        The present ones, and the means they give.
    columns : Tensor of shape (M, M)
        A root of the covariance that they give.

    Returns
    -------
    precisions : Tensor of shape (M,)
        Within `PRECISIONS`.

    Notes
    -----
    Source: Tipping and Faul (2003), eqs. 18 to 21. What a function explains and what others leave
    to it follow from mean and variance of its weight, renewed by a product of rank 1 each time.
    """
    least, most = PRECISIONS
    found, coef = precisions.tolist(), coef.cpu().clone()
    cov = (columns @ columns.T).cpu()  # many short steps: no device is faster
    for i, s in enumerate(found):
        row, mean = cov[i].clone(), coef[i].item()
        share = min(max(s * row[i].item(), _LEAST_SHARE), 1 - _LEAST_SHARE)
        sparsity, quality = s * (1 - share) / share, s * mean / share
        excess = quality**2 - sparsity
        found[i] = min(max(sparsity**2 / excess, least), most) if excess > 0 else most
        gain = (found[i] - s) / (1 + (found[i] - s) * share / s)
        coef.sub_(row, alpha=gain * mean)
        cov.addr_(row, row, alpha=-gain)
    return precisions.new_tensor(found)


def _lower_root(B):
    """Lower triangular R with R R^T the inverse of B."""
    chol = cholesky(B.flip(0, 1), "precision of the weights", jitter=_JITTER)
    return upper_inverse(chol).flip(0, 1)
