"""Relevance vector machines: coordinate ascent on the evidence of sparse Bayesian weights."""

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from .._bases import Dictionary
from .._fitting import Stage, State
from .._linalg import cholesky, triangular_product, upper_inverse
from .._memory import LARGE_BLOCK, block_rows
from .._optim import maximize_density
from ..likelihoods import Logistic
from ..likelihoods._regression import observations
from ._bounds import ExpectedQuadratic, KnownNoise, quadratic_bound

PRECISIONS = (math.exp(-14.0), math.exp(28.0))  # bounds of the prior precisions of the weights
_JITTER = 1e-14
_TINY = 1e-300
# Change of the bound in nats, below which precisions are set one by one. Without that, the log loss
# is .371 instead of .356 on five development sets; it is .352 if they always are (2026-11-27), but
# that takes O(M^3) time with M functions.
_PER_WEIGHT_CHANGE = 1.0
# The same limit, as a multiple of the least change, if that is higher: with many rows.
_PER_WEIGHT_FACTOR = 10.0
_MIN_SHARE = 1e-14
# Shares of a sweep that are tried in turn where it lowers the objective.
_SHARES = 0.5, 0.25, 0.125, 0.0625, 0.03125


class BiasedDictionary(Dictionary):
    """`Dictionary` whose last function is the constant 1; M is the number of points plus one."""

    def __init__(self, kernel, theta, points, precisions):
        super().__init__(kernel, theta, points, precisions)
        self.size = precisions.shape[1]

    def sampled(self, X, units):
        return _with_ones(super().sampled(X, units))

    def coordinates(self, units):
        constant = units.new_full((1,), self.n_units)
        return torch.cat([units, constant]), 1

    def blocks(self, X):
        for part, values in super().blocks(X):
            if part.stop == self.n_units:
                part, values = slice(part.start, self.size), _with_ones(values)
            yield part, values

    def chunk_size(self, device):  # sums of outer products take longer over fewer rows
        return block_rows(self.size, LARGE_BLOCK, 64)


def _with_ones(values):
    return torch.cat([values, values.new_ones(len(values), 1)], 1)


@dataclass(kw_only=True)
class RelevanceState(State):
    """Solution of the relevance sweeps.

    Sizes: c latents, M basis functions, k columns (M, or 0 for a mean-field covariance). Sums over
    rows are in units in which the noise is 1. `RelevanceSweeps.init` sets all fields that may be
    None, except ``solved_products`` and ``solved_linear``, which only two classes have.
    """

    # theta (t,), noise (s,): logarithms of the kernel's and the likelihood's hyperparameters
    theta: torch.Tensor
    noise: torch.Tensor
    bases: torch.Tensor  # (M - 1, d): points of the functions; the last function is the constant
    precisions: torch.Tensor  # (c, M): prior precisions of the weights
    coef: torch.Tensor  # (c, M): means of the weights
    # (c, M): how well the data determine each weight, between 0 and 1 (Tipping's gamma)
    gamma: torch.Tensor
    # diag (c, M), columns (c, M, k): covariance of the weights, see `WeightPosterior`
    diag: torch.Tensor | None = None
    columns: torch.Tensor | None = None
    # (1, M, M) or (c, M, M): sums over rows of the functions' outer products, times the site
    # precisions
    products: torch.Tensor | None = None
    # (c, M): sums over rows of the functions, times the linear terms of the sites
    linear: torch.Tensor | None = None
    # solved_products, solved_linear: the values of ``products`` and ``linear`` that gave ``coef``
    # and the covariance
    solved_products: torch.Tensor | None = None
    solved_linear: torch.Tensor | None = None
    # (c,): weighted sum of squared residuals, or of absolute deviations for Laplace noise
    deviation: torch.Tensor | None = None
    loss: torch.Tensor | None = None  # (): negative expectation of the quadratic bound, in nats
    change: float = math.inf  # absolute change of the objective in the last sweep, in nats
    n_pruned: int = 0  # number of functions that the last sweep pruned
    per_weight: bool = False  # whether precisions are set one by one, see `per_weight_precisions`


class HeldOutFit(NamedTuple):
    """Densities of held-out rows, and the parameters that maximize them."""

    densities: torch.Tensor  # (n,): log predictive densities, nats
    weights: torch.Tensor  # (n,): weights of the rows
    noise: torch.Tensor  # (s,): logarithms of the noise
    share: torch.Tensor  # (c,), between 0 and 1: factor of the latents' deviations from the center
    center: torch.Tensor | None = None  # (c,): means of the targets; None if the noise is fixed

    @classmethod
    def of(cls, sites, noise_bounds, noise, moments, *, shrinks=False):
        """Learn the noise and the share of the latents from held-out rows.

        A model of few functions has too small variances to assess its means by, and functions that
        fit single rows make its means too large. Without bounds of the noise nothing is learned,
        and the share is only where ``shrinks`` is true.

        ``noise`` (s,) has the logarithms of the noise to start from, and ``moments`` are as of
        `RelevanceSweeps.moments`.
        """
        mean, var, y, weights = moments
        share = mean.new_ones(mean.shape[1])
        if noise_bounds is None:
            likelihood = sites.at(noise).likelihood
            return cls(likelihood.log_marginal(y, mean, var), weights, noise, share)
        targets, known = observations(y)
        shares = weights[:, None] if known is None else weights[:, None] / (noise.exp() + known)
        center, sizes = (shares * targets).sum(0) / shares.sum(0), (len(noise), len(share))

        def densities(values):
            noise, share = values.split(sizes)
            shrunk = center + share * (mean - center), share.square() * var
            return sites.at(noise).likelihood.log_marginal(y, *shrunk)

        bounds = [
            noise_bounds.expand(len(noise), 2),
            share[:, None] * share.new_tensor([0 if shrinks else 1, 1]),
        ]
        start = torch.cat([noise, share])
        best, _ = maximize_density(densities, weights, start, torch.cat(bounds))
        return cls(densities(best), weights, *best.split(sizes), center)

    def calibrated(self, state):
        """Return a `RelevanceState` with at least this noise and this share of the latents."""
        share = self.share[:, None]
        coef = share * state.coef
        coef[:, -1] += (1 - self.share) * self.center
        return replace(
            state,
            noise=state.noise.maximum(self.noise),
            coef=coef,
            diag=share * state.diag,
            columns=share[:, None] * state.columns,
        )


class RelevanceSweeps(Stage):
    r"""Coordinate ascent on the ELBO of weights that each have a prior precision.

    A sweep sets the precisions, then the noise, and prunes functions that have become irrelevant,
    for each latent by itself. It then solves for the means and the covariance. Finally, a pass over
    the rows updates the quadratic bound on the likelihood.

    Functions whose prior precision is above ``threshold`` are irrelevant. Sweeps have converged if
    the bound changes by less than ``tol``, nats per row. ``noise_bounds`` (c, 2), or (1, 2) for all
    latents, are bounds of the noise's logarithm; without them the noise is fixed.

    Source: Evans and Nair, sections 3 and 4; Tipping (2001) for the fixed point; Tipping and Faul
    (2003) for single weights.

    Departs from the source: the means solve their linear system directly. With a full covariance
    the fixed point slows down while hundreds of functions explain the same. Once the bound changes
    by less than 1 nat, or by ten times the tolerance, precisions are therefore set to their exact
    maxima, one after the other.

    If the fixed point itself would lower the bound, the logarithms of the precisions move half as
    far, which cannot lower it (Wipf and Nagarajan, 2008). The bound thus never falls, except for
    the contribution of pruned functions. Two classes have the expected quadratic of their
    likelihood instead of a quadratic bound, see `ExpectedQuadratic`. If a sweep overshoots, the
    sums over rows move half as far as well, and less if the ELBO still falls clearly.
    """

    def __init__(self, sites, kernel, rows, *, mean_field, threshold, tol, noise_bounds=None):
        self._sites, self._kernel, self._rows = sites, kernel, rows
        self._mean_field, self._threshold = mean_field, threshold
        self._min_change = tol * rows.total_weight
        self._noise_bounds, self._knows_noise = noise_bounds, rows.targets.ndim == 3
        self._dictionary = None

    def init(self, theta, noise, bases):
        """Return a state with functions at ``bases`` (M - 1, d) and all prior precisions 1."""
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
        little = max(_PER_WEIGHT_CHANGE, _PER_WEIGHT_FACTOR * self._min_change)
        state.per_weight = state.per_weight or state.change < little
        precisions = self._precisions(state)
        self._sweep(state, precisions)
        shares, allowed = _SHARES, 0.0
        if self._is_bound():  # half a sweep cannot lower it
            shares = () if self._mean_field else _SHARES[:1]
        for share in shares:
            if state.objective >= before.objective - allowed:
                break
            self._sweep_partly(state, before, precisions, share)
            allowed = little
        if not self._is_bound() and state.objective < before.objective - little:
            state.restore(before.as_dict())
        state.change = abs(state.objective - before.objective)
        state.n_pruned = before.precisions.shape[1] - state.precisions.shape[1]

    def converged(self, state):
        return state.change < self._min_change and not state.n_pruned

    def value(self, state):
        """Return the lower bound on the log evidence, in nats."""
        s, gamma = state.precisions, state.gamma
        kl = 0.5 * (s * state.coef.square() - gamma - s.log()) - state.diag.log()
        return -(state.loss + kl.sum()).item()

    def moments(self, state, rows):
        """Return latent means and variances (b, c), targets and weights of other rows."""
        parts = []
        for _, _, y, weights, values, mean in self._bases(state).passes(rows, state.coef):
            y = y.double() if y.is_floating_point() else y
            parts.append((mean, self._variances(state, values), y, weights[:, 0]))
        return rows.collect(*map(torch.cat, zip(*parts, strict=True)))

    # Parts of a sweep

    def _sweep(self, state, precisions):
        """Set the precisions and the noise, prune, solve, and update the sums over rows."""
        state.precisions = precisions
        if self._noise_bounds is not None and not self._knows_noise:
            state.noise = self._noise(state)
        self._prune(state)
        self._solve(state)
        if self._noise_bounds is not None and self._knows_noise:
            state.noise = self._noise_beside_known(state)
        self._accumulate_statistics(state)
        state.objective = self.value(state)

    def _sweep_partly(self, state, before, precisions, share):
        """Sweep from the state ``before`` with a share of the changes, see `RelevanceSweeps`."""
        state.restore(before.as_dict())
        if not self._is_bound():
            state.products = state.solved_products.lerp(state.products, share)
            state.linear = state.solved_linear.lerp(state.linear, share)
        self._sweep(state, before.precisions * (precisions / before.precisions).pow(share))

    def _precisions(self, state):
        """Return the next precisions (c, M)."""
        if self._mean_field:
            data = state.products.diagonal(dim1=1, dim2=2) / self._noise_unit(state)[:, None]
            precisions = joint_precisions(state.coef, data)
        elif state.per_weight:
            precisions = state.precisions.clone()
            for j, relevant in enumerate(self._relevant(precisions)):
                block = _block(relevant)
                given = precisions[j, block[1]], state.coef[j, block[1]], state.columns[j][block]
                precisions[j, block[1]] = per_weight_precisions(*given)
        else:
            precisions = fixed_point(state.coef, state.gamma)
        return precisions.clamp(*PRECISIONS)

    def _noise(self, state):
        """Return the logarithms of the noise that maximizes the bound."""
        total = state.deviation
        if self._sites.conjugate:
            total = total + self._noise_unit(state) * state.gamma.sum(1)
        if len(state.noise) == 1:
            total = total.mean(0, keepdim=True)
        noise = (total / self._rows.total_weight).clamp_min(_TINY).log()
        return noise.clamp(*self._noise_bounds.unbind(1))

    def _noise_beside_known(self, state):
        """Return the logarithms of the learned noise that maximizes the bound beside known noise.

        It is not a factor of the sums over rows, which are therefore those of the last noise until
        the weights are solved for.
        """
        mean, var, y, weights = self.moments(state, self._rows)

        def expected(noise):
            return self._sites.at(noise).likelihood.expected_log_prob(y, mean, var)

        bounds = self._noise_bounds.expand(len(state.noise), 2)
        return maximize_density(expected, weights, state.noise, bounds)[0]

    def _relevant(self, precisions):
        """Return whether each function is relevant to each latent, (c, M); the constant is."""
        relevant = precisions < self._threshold
        relevant[:, -1] = True
        return relevant

    def _prune(self, state):
        """Remove irrelevant functions from each latent, and altogether if no latent has them.

        A weight that is removed has the largest precision, from which no update returns.
        """
        relevant = self._relevant(state.precisions)
        state.precisions = state.precisions.masked_fill(~relevant, PRECISIONS[1])
        kept = relevant.any(0)
        if kept.all():
            return
        state.bases = state.bases[kept[:-1]]
        state.precisions, state.coef = state.precisions[:, kept], state.coef[:, kept]
        state.linear = state.linear[:, kept]
        state.products = state.products[:, kept][:, :, kept]

    def _solve(self, state):
        """Set the means and the covariance to their optimum; irrelevant weights have mean zero."""
        unit, s = self._noise_unit(state), state.precisions
        coef, gamma = torch.zeros(2, *s.shape).to(s)
        diag = s.rsqrt()
        columns = s.new_zeros(*s.shape, 0) if self._mean_field else torch.diag_embed(diag)
        shares_products = len(state.products) == 1
        # Latents start with the same precisions.
        repeats = (s[1:] == s[:-1]).all(1) & (unit[1:] == unit[:-1]) & shares_products
        repeats = [False, *repeats.tolist()]
        for j, relevant in enumerate(self._relevant(s)):
            if not repeats[j]:
                block = _block(relevant)
                part = block[1]
                scale = diag[j, part]
                products = state.products[0 if shares_products else j][block] / unit[j]
                B = scale[:, None] * products * scale
                B.diagonal().add_(1.0)
                root = _lower_root(B)
                C = scale[:, None] * root
            coef[j, part] = C @ (C.T @ state.linear[j, part]) / unit[j]
            if self._mean_field:
                data = products.diagonal()
                gamma[j, part] = data / (data + s[j, part])
                diag[j, part] = (data + s[j, part]).rsqrt()
            else:
                gamma[j, part] = 1 - root.square().sum(1)
                columns[j][block], diag[j, part] = C, C.diagonal()
        state.coef, state.diag, state.columns, state.gamma = coef, diag, columns, gamma
        if not self._is_bound():
            state.solved_products, state.solved_linear = state.products, state.linear

    def _accumulate_statistics(self, state):
        """Recompute the sums over rows at the optimal auxiliary variables of the bound."""
        bound = self._quadratic(state)
        unit = self._noise_unit(state)
        c, M = state.precisions.shape
        # With fixed site precisions the products never change.
        is_new = not bound.fixed_precision or state.products is None
        if is_new:
            products = unit.new_zeros(1 if bound.fixed_precision else c, M, M)
        linear, deviation, loss = unit.new_zeros(c, M), unit.new_zeros(c), unit.new_zeros(())
        for _, _, y, weights, values, mean in self._bases(state).passes(self._rows, state.coef):
            y = y.double() if y.is_floating_point() else y
            square = mean.square()
            if not bound.fixed_precision:
                square = square + self._variances(state, values)
            auxiliary = bound.auxiliary(y, mean, square)
            linear_term, precision, constant = bound.sites(y, auxiliary)
            row_loss = (0.5 * precision * square - linear_term * mean).sum(1) - constant
            loss += weights[:, 0] @ row_loss
            linear += (weights * linear_term * unit).T @ values
            if is_new:
                for total, w in zip(products, (weights * precision * unit).T, strict=False):
                    total += (w[:, None] * values).T @ values
            if self._noise_bounds is not None and not self._knows_noise:
                absolute = auxiliary.clamp_min(0).sqrt()  # rounding may make it negative
                each = (y - mean).square() if self._sites.conjugate else absolute
                deviation += (weights * each).sum(0)
        linear, deviation, loss = self._rows.sum(linear, deviation, loss)
        if is_new:
            (state.products,) = self._rows.sum(products)
        if bound.fixed_precision:  # the latent variances' part, which the rows' loss leaves out
            loss = loss + 0.5 * state.gamma.sum()
        state.linear, state.deviation, state.loss = linear, deviation, loss

    def _variances(self, state, values):
        """Return latent variances (b, c), or ones if there is no posterior yet."""
        if state.diag is None:
            return values.new_ones(len(values), self._sites.n_latents)
        if self._mean_field:
            return values.square() @ state.diag.square().T
        return torch.stack([(values @ C).square().sum(1) for C in state.columns], 1)

    def _bases(self, state):
        """Return the functions, with the values that the last pass kept if they are the same."""
        known = self._dictionary
        if not (known and known.theta is state.theta and known.points is state.bases):
            parts = state.theta, state.bases, state.precisions
            self._dictionary = BiasedDictionary(self._kernel, *parts)
        self._dictionary.precisions = state.precisions
        return self._dictionary

    def _quadratic(self, state):
        """Return the quadratic that replaces the log likelihood."""
        parts = self._sites.at(state.noise).likelihood, self._sites.n_latents
        if self._knows_noise:
            return KnownNoise(*parts)
        return quadratic_bound(*parts) if self._is_bound() else ExpectedQuadratic(*parts)

    def _is_bound(self):
        """Return whether a quadratic bound replaces the likelihood, so that it never falls.

        The bound for two classes is too loose if one of them is rare. The bound for more classes is
        loose too, which costs up to 5 % of the log loss. But its curvature is the same in every
        sweep. Exact expectations would need c products of n x M matrices in each, which multiplies
        the time of a fit by six.
        """
        return not isinstance(self._sites.likelihood, Logistic)

    def _noise_unit(self, state):
        """Return the factor (c,) of the site precisions in the sums over rows."""
        noise, c = state.noise, self._sites.n_latents
        is_factor = len(noise) and not self._knows_noise
        return noise.exp().expand(c) if is_factor else noise.new_ones(c)


def joint_precisions(coef, data):
    r"""Return the prior precisions s that are jointly optimal with the variances of the weights.

    They solve :math:`s \mu^2 + s / (d + s) = 1`, with the data's contribution d to the posterior
    precision of a weight of mean :math:`\mu`; infinite where the mean is zero.
    """
    squares = coef.square()
    return 2 / (squares + (squares.square() + 4 * squares / data.clamp_min(_TINY)).sqrt())


def fixed_point(coef, gamma):
    r"""Take a step of the fixed-point iteration :math:`s = (1 - s \Sigma_{ii}) / \mu^2`.

    ``gamma`` are the numerators. Source: Tipping (2001), eq. 16.
    """
    return gamma.clamp_min(_TINY**0.5) / coef.square().clamp_min(_TINY)


def per_weight_precisions(precisions, coef, columns):
    """Maximize the evidence over one prior precision (M,) after the other, within `PRECISIONS`.

    The means and the root of the covariance, ``columns`` (M, M), are those that the current ones
    give. The quality and the sparsity of a function follow from the posterior mean and variance of
    its weight. A rank-1 update keeps these current. Source: Tipping and Faul (2003), eqs. 18 to 21.
    """
    low, high = PRECISIONS
    updated, coef = precisions.tolist(), coef.cpu().clone()
    # There are many short steps, for which no device is faster.
    cov = triangular_product(columns, columns.T).cpu()
    means, variances = coef.numpy(), cov.diagonal().numpy()  # views, whose entries are read faster
    for i, s in enumerate(updated):
        mean, share = means.item(i), s * variances.item(i)
        share = min(max(share, _MIN_SHARE), 1 - _MIN_SHARE)
        sparsity, quality = s * (1 - share) / share, s * mean / share
        excess = quality**2 - sparsity
        updated[i] = min(max(sparsity**2 / excess, low), high) if excess > 0 else high
        if updated[i] == s:  # most functions are left out, and remain so
            continue
        gain = (updated[i] - s) / (1 + (updated[i] - s) * share / s)
        row = cov[i].clone()
        coef.sub_(row, alpha=gain * mean)
        cov.addr_(row, row, alpha=-gain)
    return precisions.new_tensor(updated)


def _block(chosen):
    """Return the indices of the chosen (M,) rows and columns of a square matrix."""
    if chosen.all():
        return slice(None), slice(None)
    (index,) = chosen.nonzero(as_tuple=True)
    return index[:, None], index


def _lower_root(B):
    """Return the lower triangular R with R R^T = B^{-1}."""
    chol = cholesky(B.flip(0, 1), "precision of the weights", jitter=_JITTER)
    return upper_inverse(chol).flip(0, 1)
