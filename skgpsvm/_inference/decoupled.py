"""Posteriors with separate bases for the mean, which conjugate gradients solve for."""

import math
from dataclasses import dataclass, field
from functools import partial

import torch

from .._fitting import Stage
from .._linalg import (
    add_gram,
    add_grams,
    gaussian_kl,
    identity_like,
    mirror,
    relative_change,
    spreads,
    weight_moments,
)
from .._local_variances import widened
from .._preconditioners import CholeskyPreconditioner
from .pcg import PCGState

_MIN_RESIDUAL = 1e-6  # in standard deviations, below which the site precision is the curvature
_MIN_PRECISION = 1e-12
_ROUNDING = 1e-6  # relative fall of the ELBO that counts as rounding
_POINT = ("coef", "means", "root", "linear", "precision")  # fields that a rejected step restores


@dataclass(frozen=True)
class Defaults:
    """Constants of `DecoupledInference` and `ExactInference`."""

    # Evidence of the next three: 21 fits at given kernels and noise, to 600 rows of six development
    # sets, which take 930 iterations (2026-11-28).
    # Scale at which shorter steps of the sites are given up: then only ``inner_tol`` is left to
    # gain. With 1/2 a fit stays at the class frequencies; 2^-20 changes no loss.
    min_step_scale: float = 2.0**-7
    # Residual norm, relative to its start, at which the sites are updated. With .5 and .02 there
    # are 743 and 1025 iterations in .97 of the time, and losses differ in the third digit.
    inner_tol: float = 0.1
    # Iterations between site updates, beyond which the preconditioner is made anew. If it never is,
    # two of nine log losses are .002 and .005 larger; if it always is, fits take 1.2 times as long.
    inner_iterations: int = 4
    # Iterations whose gain estimates what was left to gain before them ("two stopping rules" in
    # ``doc/development/decisions/decoupled.rst``)
    delay: int = 10
    # Entries of a Gram matrix product that take as long as one entry of a pass: a ratio of times
    gram_speed: int = 50
    dense_bases: int = 4000  # Most bases whose dense system matrix is computed. It bounds memory.
    # Most rows, all of them bases, whose kernel matrix is factorized. It bounds memory.
    factored_rows: int = 6000
    # Rows of the Nystroem approximation that preconditions more rows. With 8,000 rows of eight
    # features, half and twice as many take 14 and 3 iterations instead of 7, in .97 and 1.11 times
    # the time (2026-11-28).
    landmarks: int = 1000


DEFAULTS = Defaults()


@dataclass(kw_only=True)
class DecoupledState(PCGState):
    """State of `DecoupledInference`; ``means`` (n, c) are those of the last sites."""

    linear: torch.Tensor  # (n, c): linear terms of the sites
    right: torch.Tensor | None = None  # (q, M): right-hand side of the systems, Gaussian noise
    stale: bool = True  # whether the sites are to be computed before the next iteration
    # Whether the sites were set at another posterior, so that the first update keeps them
    warm: bool = False
    dense: bool = False  # whether the preconditioner is the inverse of the dense system matrix
    n_updates: int = 0  # updates of the sites so far
    n_inner: int = 0  # iterations since the last update
    step_scale: float = 1.0  # factor of the likelihood's step, halved where the ELBO fell
    best: float = -math.inf  # highest ELBO so far
    # Values of the fields `_POINT` at the last ELBO that was not a fall
    accepted: dict = field(default_factory=dict)
    # (c, k) or (1, k): precisions that the preconditioner was made with; None before the first one
    index_precisions: torch.Tensor | None = None
    gains: list = field(default_factory=list)  # (q, 1): gains of the last iterations, nats


class DecoupledInference(Stage):
    r"""Solve for a Gaussian posterior whose mean and covariance have bases of their own.

    Every row has a site, a Gaussian factor with precision :math:`\Lambda` and linear term b that
    stands for its likelihood. The mean is :math:`\Phi a` with the prior
    :math:`a \sim N(0, S^{-1})`, so that the ELBO depends on the coefficients a by

    .. math:: b^\top \Phi a - \tfrac12 a^\top \Phi^\top \Lambda \Phi a - \tfrac12 a^\top S a,

    which is largest at the solution of

    .. math:: (\Phi^\top \Lambda \Phi + S) a = \Phi^\top b.

    Conjugate gradients solve it, with one pass over the rows per iteration. The covariance has a
    closed form on the features A of the inducing points: the precision of their weights is
    :math:`A^\top \Lambda A + I`.

    The preconditioner is :math:`(\Phi_P^\top D \Phi_P + S)^{-1}`, where the index rows P stand for
    all rows and D holds their precisions times n/k. For Gaussian noise and at most 4,000 bases
    there is a second one: once the passes have taken as long as computing
    :math:`\Phi^\top \Lambda \Phi` would, it is computed, and its exact inverse takes over.

    Sites of Gaussian noise are fixed. Other sites are updated by a damped natural-gradient step
    whenever the residual has fallen to a tenth. A step after which the ELBO is lower is halved.

    Further groups of c columns solve the same problem without some of the rows.

    ``basis`` has the features of the covariance, and ``bases`` are those of the mean. ``index``
    (k,) are the rows that stand for all rows in the preconditioner; where bases are rows, those
    rows. For Gaussian noise ``tol`` bounds the preconditioned residual norm, relative to that of
    the prior mean, and the ELBO's remaining gain, nats per row. A gain of the last ten iterations
    below it is enough, too. For other likelihoods it bounds the relative change of the means.
    ``row_shares`` (n, g) are the shares of each row that the groups of columns know: 1, or less for
    held-out rows.

    Source: Cheng and Boots (2017), eq. 7, collapsed; Rudi et al. (2017) for the preconditioner;
    Strakoš and Tichý (2002) for the gain of past iterations, which is most of what was left.
    """

    def __init__(self, likelihood, basis, bases, rows, index, tol, row_shares=None):
        self.likelihood, self.basis, self.bases, self.rows = likelihood, basis, bases, rows
        self.index, self.tol, self._preconditioners = index, tol, None
        self.conjugate = likelihood.conjugate
        if row_shares is None:
            row_shares = torch.ones(len(rows), 1, dtype=torch.float64, device=rows.device)
        self._n_groups = row_shares.shape[1]
        self.row_shares = row_shares.repeat_interleave(likelihood.n_latents, 1)

    def init(self, start):
        """Return the first state.

        Sites are computed at the posterior of the start if there is one and the noise is not
        Gaussian, else at the prior. The means are zero, with one exception: for Gaussian noise and
        bases that span the features of the inducing points, they are the optimum on the features.
        """
        n, c, p = len(self.rows), self.likelihood.n_latents, self.basis.size
        means = torch.zeros(n, c, dtype=torch.float64, device=self.rows.device)
        linear, precision = torch.zeros_like(means), torch.zeros_like(means)
        gram = means.new_zeros(self._n_groups * c, p, p)
        cross = means.new_zeros(self._n_groups * c, p)
        warm = not self.conjugate and "root" in start
        root = start["root"] if warm else torch.eye(p).to(means).expand(c, -1, -1)
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            A, var = features(self.basis, X, root)
            if warm:
                mean = (A @ start["mean"].T.to(A.dtype)).double()
                terms = self._warm_sites(y, mean, var)
                linear[index], precision[index] = terms
            else:
                sites = self.likelihood.sites(y, torch.zeros_like(var), var)
                terms = sites.linear, sites.precision
            held = weights.double()[:, None] * self.row_shares[index]
            add_grams(gram, A, held * terms[1].repeat(1, self._n_groups))
            cross += (held * terms[0].repeat(1, self._n_groups)).T @ A.double()
        gram, cross = self.rows.sum(mirror(gram), cross)
        mean, _ = weight_moments(gram + identity_like(gram), cross)
        coef = self.bases.embed(mean if self.conjugate else torch.zeros_like(mean))
        return DecoupledState(
            coef=coef,
            root=roots(gram[:c]),
            means=means,
            precision=precision,
            linear=linear,
            warm=warm,
        )

    def _warm_sites(self, y, mean, var):
        """Return linear terms and precisions (b, c) of sites at moments of another posterior.

        For regression the precisions are those of iteratively reweighted least squares: curvatures
        may be negative there, and full steps too long.
        """
        sites = self.likelihood.sites(y, mean, var)
        if not y.is_floating_point():
            return sites.linear, sites.precision
        residual = mean - y
        far = residual.abs() > _MIN_RESIDUAL * var.sqrt()
        precision = torch.where(far, sites.gradient / residual, sites.precision)
        precision = precision.clamp_min(_MIN_PRECISION)
        return precision * y, precision

    def step(self, state):
        """Take one iteration of conjugate gradients.

        The objective is the ELBO, nats; where noise is not Gaussian, at the last site update.
        """
        if state.stale:
            self._update_sites(state)
        precondition = partial(self._precondition, state)
        if self._dense_pays(state):
            state.dense, self._preconditioners = True, None
            state.restart(state.residual, precondition, state.right)
        sums = torch.zeros_like(state.direction)
        for index, _, _, weights, K, f in self.bases.passes(self.rows, state.direction):
            precision = state.precision[index].repeat(1, self._n_groups)
            sums += self._sum_rows(K, weights * precision * f, index)
        prior = self.bases.prior_product(state.direction, *self.rows.shard)
        (product,) = self.rows.sum(prior + self.bases.adjoint(sums))
        norm = state.norm
        size = state.advance(product, precondition)
        state.n_inner += 1
        if not self.conjugate:
            state.stale = state.relative_residual() < DEFAULTS.inner_tol
            return
        gains = 0.5 * size * norm
        state.objective += gains[: self.likelihood.n_latents].sum().item()
        state.change = min(self._unsolved(state), self._recent_gain(state, gains))

    def converged(self, state):
        return state.change < self.tol

    def finish(self, state):
        """Return to the best ELBO if the last, unfinished step has a lower one."""
        if not self.conjugate and self.evaluate(state)[0] < state.best:
            state.restore(state.accepted)

    def evaluate(self, state):
        """Return the ELBO, and means (n, q) and variances (n, c) at the rows."""
        means, variances, loss = [], [], 0.0
        for _, X, y, weights, _, f in self.bases.passes(self.rows, state.coef):
            _, var = features(self.basis, X, state.root)
            mean = f[:, : self.likelihood.n_latents]
            loss += (weights[:, 0] * self.likelihood.loss(y, mean, var)).sum()
            means.append(f)
            variances.append(var)
        (loss,), means = self.rows.sum(loss), torch.cat(means)
        return -loss.item() - self._kl(state, means), means, torch.cat(variances)

    def index_precisions(self, state):
        """Return the site precisions at the index rows, scaled by n/k: (c, k)."""
        return self.rows.n_rows / len(self.index) * self.row_precisions(state)

    def row_precisions(self, state, group=0, more_noise=0.0):
        """Return the site precisions at the index rows that a group of columns knows, (c, k).

        ``more_noise`` is added to the variances of the noise that the mean is solved with.
        """
        own = self.rows.own(self.index)
        return self.rows.collect(self._known_precisions(state, own, group, more_noise))[0].T

    def local_root(self, state, group=0, more_noise=0.0):
        """Return the root of `LocalVariances` given the rows that a group knows, (c, p, p).

        Parameters are as of `row_precisions`.
        """
        gram = torch.zeros_like(state.root)
        for index in self.rows.chunks():
            A, residual = self.basis(self.rows.take(index)[0])
            precision = self._known_precisions(state, index, group, more_noise)
            add_grams(gram, A, widened(precision, residual[:, None]))
        return roots(*self.rows.sum(mirror(gram)))

    def _known_precisions(self, state, index, group, more_noise):
        """Return the site precisions of rows, times their weights and a group's shares, (b, c)."""
        c = self.likelihood.n_latents
        shares = self.row_shares[index, group * c : (group + 1) * c]
        precision = widened(state.precision[index], more_noise)
        return self.rows.weights.double()[index, None] * shares * precision

    def _dense_pays(self, state):
        """Return whether passes have taken as long as the dense system matrix would."""
        possible = self.conjugate and not state.dense and self.bases.size <= DEFAULTS.dense_bases
        return possible and state.n_inner * DEFAULTS.gram_speed >= self.bases.size

    def _unsolved(self, state):
        """Return the larger of the relative residual and the remaining gain, nats per row."""
        return max(state.relative_residual(), self._max_per_row(self._remaining_gain(state)))

    def _recent_gain(self, state, gains):
        """Record the gains (q, 1) of an iteration; return those of the last ten, nats per row."""
        state.gains = [*state.gains, gains][-DEFAULTS.delay :]
        enough = len(state.gains) == DEFAULTS.delay
        return self._max_per_row(sum(state.gains)) if enough else math.inf

    def _max_per_row(self, columns):
        """Return the largest sum over a group's columns (q, 1), divided by the total weight."""
        sums = columns.view(self._n_groups, -1).sum(1)
        return sums.max().item() / self.rows.total_weight

    def _remaining_gain(self, state):
        """Estimate what each column (q, 1) may still add to the ELBO, nats; see `PCGState`."""
        return 0.5 * state.norm

    def _kl(self, state, means):
        """Return the divergence from the prior, nats, given the means (n, q) at the rows."""
        coef = state.coef[: self.likelihood.n_latents]
        (product,) = self.rows.sum(self.bases.prior_product(coef, *self.rows.shard))
        of_mean = 0.5 * (coef * product).sum()
        return (of_mean + covariance_kl(state.root)).item()

    def _update_sites(self, state, again=False):
        """Step the sites towards the present moments, and restart conjugate gradients.

        If the ELBO is lower than at the last accepted sites, return to them and take half the step,
        ``again``. If the step is already very short, nothing is left to gain.
        """
        before = state.means
        point = {name: getattr(state, name) for name in _POINT}
        size = state.step_scale * self.likelihood.step(state.n_updates)
        if state.warm:
            size, state.warm = 0.0, False
        residual, right, gram = self._move_sites(state, size)
        if not self.conjugate:
            value = state.objective
            if value < state.best - _ROUNDING * abs(value):
                state.restore(state.accepted)
                state.step_scale /= 2
                if state.step_scale < DEFAULTS.min_step_scale:
                    state.change = 0.0
                self._update_sites(state, again=True)
                return
            if state.n_updates and not again:
                change = relative_change(state.means, before, self.rows.sum)
                state.change = change / state.step_scale
                state.step_scale = min(2 * state.step_scale, 1.0)
            state.best, state.accepted = max(value, state.best), point
            state.root = roots(gram)
        state.n_updates += 1
        state.stale = False
        if state.index_precisions is None or state.n_inner > DEFAULTS.inner_iterations:
            precisions = self.index_precisions(state)
            precisions = precisions.mean(0, keepdim=True) if self.conjugate else precisions
            state.index_precisions, self._preconditioners = precisions, None
        state.n_inner = 0
        state.right = right if self.conjugate else None
        state.restart(residual, partial(self._precondition, state), state.right)

    def _move_sites(self, state, size):
        """Take a pass in which the sites go a share of the way to those at the present moments.

        It sets sites, means and objective of the state. Returns the residual and the right-hand
        side of the systems, and what the sites add to the precisions of the covariance.
        """
        c, root = self.likelihood.n_latents, state.root
        old_linear, old_precision = state.linear, state.precision
        state.linear, state.precision = torch.zeros_like(old_linear), torch.zeros_like(old_linear)
        state.means = torch.zeros_like(state.means)
        sums, right = torch.zeros_like(state.coef), torch.zeros_like(state.coef)
        gram, loss = torch.zeros_like(root), 0.0
        for index, X, y, weights, K, f in self.bases.passes(self.rows, state.coef):
            A, var = features(self.basis, X, root)
            state.means[index] = f[:, :c]
            sites = self.likelihood.sites(y, f[:, :c], var)
            loss += (weights[:, 0] * sites.loss).sum()
            state.linear[index] = linear = old_linear[index].lerp(sites.linear, size)
            state.precision[index] = precision = old_precision[index].lerp(sites.precision, size)
            if not self.conjugate:
                add_grams(gram, A, weights * precision)
            linear, precision = (part.repeat(1, self._n_groups) for part in (linear, precision))
            sums += self._sum_rows(K, weights * (linear - precision * f), index)
            if self.conjugate:
                right += self._sum_rows(K, weights * linear, index)
        # Phi^T b - (Phi^T Lambda Phi + S) a, with the mean f = Phi a of the pass
        residual = self.bases.adjoint(sums) - self.bases.prior_product(state.coef, *self.rows.shard)
        parts = residual, self.bases.adjoint(right), mirror(gram), loss
        residual, right, gram, loss = self.rows.sum(*parts)
        state.objective = -loss.item() - self._kl(state, state.means)
        return residual, right, gram

    def _precondition(self, state, residual):
        """Return the preconditioned residuals (q, M)."""
        if self._preconditioners is None:
            self._preconditioners = self._make_preconditioners(state)
        parts = residual.split(len(residual) // len(self._preconditioners))
        pairs = zip(self._preconditioners, parts, strict=True)
        return torch.cat([condition(part) for condition, part in pairs])

    def _make_preconditioners(self, state):
        """Return functions of residuals, each for equally many of the systems, in their order.

        Outputs of Gaussian noise share one, except that each has a dense inverse of its own.
        """
        if not state.dense:
            return self.bases.preconditioners(self.rows.inputs(self.index), state.index_precisions)
        grams = self._dense_grams(state.precision)
        return [CholeskyPreconditioner(self.bases, gram) for gram in grams] * self._n_groups

    def _dense_grams(self, precision):
        """Yield the whitened Gram matrix of each output: lower triangle of (M, M).

        Without known noise, the sites of an output have the same precision (n, c) in all rows.
        """
        if self.rows.targets.ndim == 3:
            yield from map(self._dense_gram, precision.T)
        else:
            gram = self._dense_gram(torch.ones_like(precision[:, 0]))
            yield from (gram * each for each in self.rows.collect(precision[:1])[0][0])

    def _dense_gram(self, precision):
        none = self.rows.weights.new_zeros(1, self.bases.size, dtype=torch.float64)
        gram = none.new_zeros(self.bases.size, self.bases.size)
        for index, _, _, weights, values, _ in self.bases.passes(self.rows, none):
            values = self.bases.whitened(self.bases.adjoint(values.double().clone()))
            add_gram(gram, values, weights * precision[index, None] * values)
        return self.rows.sum(gram)[0]

    def _sum_rows(self, K, values, index):
        """Return values (b, q) of a chunk's rows, each by its share, times the block K: (q, M)."""
        return ((values * self.row_shares[index]).to(K.dtype).T @ K).double()


def covariance_kl(root):
    """Return the divergence from the prior, nats, of roots (c, p, p) at means of zero; a tensor."""
    return gaussian_kl(torch.zeros_like(root[..., 0]), root).sum()


def features(basis, X, root):
    """Return features of the covariance (b, p), and latent variances (b, c)."""
    A, residual = basis(X)
    return A, (residual[:, None] + spreads(A, root)).double()


def roots(gram):
    """Return upper triangular roots of the covariances whose precisions are gram + I."""
    precision = gram + identity_like(gram)
    return weight_moments(precision, torch.zeros_like(gram[..., 0]))[1]
