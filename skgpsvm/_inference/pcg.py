"""Posteriors with separate bases for the mean, solved by preconditioned conjugate gradients."""

import math
from dataclasses import dataclass, field
from functools import partial

import torch

from .._bases import CholeskyPreconditioner, KernelBases
from .._fitting import Stage, State
from .._linalg import (
    add_gram,
    add_grams,
    cholesky,
    gaussian_kl,
    mirror,
    relative_change,
    spreads,
    weight_moments,
)

_MIN_RESIDUAL = 1e-6  # in standard deviations, below which the site precision is the curvature
_MIN_PRECISION = 1e-12
_POINT = ("coef", "means", "root", "linear", "precision")  # fields that a rejected step restores
_ROUNDING = 1e-6  # relative fall of the ELBO that counts as rounding
_MIN_STEP_SCALE = 2.0**-7  # if no longer step raises the ELBO, only _INNER_TOL is left to gain
_MAX_FACTORED_ROWS = 6000  # rows, all of them bases, whose kernel matrix is factorized
_MAX_DENSE_BASES = 4000  # bases whose dense system matrix is computed
_MAX_LANDMARKS = 1000
_MAX_INNER = 4  # iterations between site updates, beyond which the preconditioner is made anew
_GRAM_SPEED = 50  # entries of a Gram matrix product that take as long as one entry of a pass
_INNER_TOL = 0.1  # residual norm, relative to its start, at which the sites are updated
_DELAY = 10  # iterations whose gain estimates what was left to gain before them


@dataclass(kw_only=True)
class PCGState(State):
    r"""State of preconditioned conjugate gradients on q systems that share a matrix.

    With the matrix A, the preconditioner :math:`P \approx A^{-1}` and the residual r of the
    iterate, z = P r. The next direction is :math:`d = z + \beta d` with
    :math:`\beta = r^\top z / r_{old}^\top z_{old}`; the step along it is
    :math:`\alpha = r^\top z / d^\top A d`. A step lowers the quadratic
    :math:`\tfrac12 x^\top A x - b^\top x` by :math:`\tfrac12 \alpha r^\top z`. Its minimum is lower
    by :math:`\tfrac12 r^\top A^{-1} r \approx \tfrac12 r^\top z`.

    Attributes
    ----------
    coef : Tensor of shape (q, M)
        The iterate: coefficients of the mean's bases.
    residual, direction : Tensor of shape (q, M)
    norm : Tensor of shape (q, 1)
        Squared norm of the residual under the preconditioner, r^T z.
    first_norm : Tensor of shape (q, 1)
        The norm that `norm` is compared with.
    root : Tensor of shape (c, p, p)
        Upper triangular roots of the covariances of the whitened weights.
    means : Tensor
        Latent means at the rows.
    precision : Tensor of shape (n, c)
        Precisions of the sites.
    change : float
        What `DecoupledInference.converged` compares with the tolerance.
    """

    coef: torch.Tensor
    residual: torch.Tensor
    direction: torch.Tensor
    norm: torch.Tensor
    first_norm: torch.Tensor
    root: torch.Tensor
    means: torch.Tensor
    precision: torch.Tensor
    change: float = math.inf

    def restart(self, residual, precondition):
        """Set the residual of the iterate, and the direction to steepest descent."""
        z = precondition(residual)
        self.residual, self.direction = residual, z
        self.norm = (residual * z).sum(1, keepdim=True)

    def advance(self, product, precondition):
        """Take one iteration, given the matrix times the direction; return the steps (q, 1)."""
        curvature = (self.direction * product).sum(1, keepdim=True)
        size = torch.where(curvature > 0, self.norm / curvature, 0.0)
        self.coef = self.coef + size * self.direction
        before, direction = self.norm, self.direction
        self.restart(self.residual - size * product, precondition)
        beta = torch.where(before > 0, self.norm / before, 0.0)
        self.direction = self.direction + beta * direction
        return size

    def relative_residual(self):
        """Return the largest norm of a residual relative to its first one."""
        return (self.norm / self.first_norm).nan_to_num(0.0).max().sqrt().item()


@dataclass(kw_only=True)
class DecoupledState(PCGState):
    """State of `DecoupledInference`.

    Attributes
    ----------
    means : Tensor of shape (n, c)
        Latent means at the rows when the sites were last computed.
    linear : Tensor of shape (n, c)
        Linear terms of the sites.
    right : Tensor of shape (q, M)
        Right-hand side of the systems, for Gaussian noise.
    stale : bool
        Whether the sites are to be computed before the next iteration.
    warm : bool
        Whether the sites were set at another posterior, so that the first update keeps them.
    dense : bool
        Whether the preconditioner is the inverse of the dense system matrix.
    n_updates : int
        Updates of the sites so far.
    n_inner : int
        Iterations since the last update.
    step_scale : float
        Factor of the likelihood's step, halved where the ELBO fell.
    best : float
        Highest ELBO so far.
    accepted : dict
        Values of the fields `_POINT` at the last ELBO that was not a fall.
    index_precisions : Tensor of shape (c, k) or (1, k), or None
        Precisions that the preconditioner was made with; None before the first one.
    gains : list of Tensor of shape (q, 1)
        Gains of the last iterations, nats.
    """

    linear: torch.Tensor
    right: torch.Tensor
    stale: bool = True
    warm: bool = False
    dense: bool = False
    n_updates: int = 0
    n_inner: int = 0
    step_scale: float = 1.0
    best: float = -math.inf
    accepted: dict = field(default_factory=dict)
    index_precisions: torch.Tensor | None = None
    gains: list = field(default_factory=list)


@dataclass(kw_only=True)
class ExactState(PCGState):
    """State of `ExactInference`.

    Attributes
    ----------
    means : Tensor of shape (q, n)
        Posterior means at the rows: the kernel matrix times the coefficients.
    target : Tensor of shape (c, n)
        Targets of the sites, linear term over precision.
    weight : Tensor of shape (q, n)
        Precisions of the sites times row weights; 0 for rows that a group does not know.
    base : float
        ELBO of means of zero, nats.
    """

    target: torch.Tensor
    weight: torch.Tensor
    base: float


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

    Parameters
    ----------
    likelihood : SiteLikelihood
    basis : WhitenedBasis
        Features of the covariance.
    bases : MeanBases
    rows : WeightedDataset
    index : Tensor of shape (k,)
        Rows that stand for all rows in the preconditioner; where bases are rows, those rows.
    tol : float
        Tolerance. For Gaussian noise it bounds the preconditioned residual norm, relative to that
        of the prior mean, and the ELBO's remaining gain, nats per row. A gain of the last ten
        iterations below it is enough, too. For other likelihoods it bounds the relative change of
        the means.
    row_shares : Tensor of shape (n, g), optional
        Share of each row that a group of columns knows: 1.0, or less for held-out rows.

    Notes
    -----
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

        Parameters
        ----------
        start : dict of Tensor
            Moments of the whitened weights, ``mean`` (c, p) and ``root`` (c, p, p), if any.
        """
        n, c, p = len(self.rows), self.likelihood.n_latents, self.basis.size
        zeros = torch.zeros(n, c, dtype=torch.float64, device=self.rows.device)
        linear, precision = zeros, zeros
        root = torch.eye(p).to(zeros).expand(c, -1, -1)
        gram = zeros.new_zeros(self._n_groups * c, p, p)
        cross = zeros.new_zeros(self._n_groups * c, p)
        warm = not self.conjugate and "root" in start
        if warm:
            linear, precision = torch.empty_like(zeros), torch.empty_like(zeros)
            root = start["root"]
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
        gram = mirror(gram)
        mean, _ = weight_moments(gram + torch.eye(p).to(gram), cross)
        coef = self.bases.embed(mean if self.conjugate else torch.zeros_like(mean))
        none, norm = torch.zeros_like(coef), coef.new_zeros(len(coef), 1)
        return DecoupledState(
            coef=coef,
            residual=none,
            direction=none,
            norm=norm,
            first_norm=norm,
            root=roots(gram[:c]),
            means=zeros,
            precision=precision,
            linear=linear,
            right=none,
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
            state.restart(state.residual, precondition)
            state.first_norm = _norm(state.right, precondition)
        sums = torch.zeros_like(state.direction)
        for index, _, _, weights, K, f in self.bases.passes(self.rows, state.direction):
            precision = state.precision[index].repeat(1, self._n_groups)
            sums += self._sum_rows(K, weights * precision * f, index)
        product = self.bases.prior_product(state.direction) + self.bases.adjoint(sums)
        norm = state.norm
        size = state.advance(product, precondition)
        state.n_inner += 1
        if not self.conjugate:
            state.stale = state.relative_residual() < _INNER_TOL
            return
        gains = 0.5 * size * norm
        state.objective += gains[: self.likelihood.n_latents].sum().item()
        state.change = min(self._unsolved(state), self._recent_gain(state, gains))

    def converged(self, state):
        """Return whether the residual, or the change of the means, is below the tolerance."""
        return state.change < self.tol

    def finish(self, state):
        """Return to the best ELBO if the last, unfinished step has a lower one."""
        if not self.conjugate and self.bound(state) < state.best:
            state.restore(state.accepted)

    def bound(self, state):
        """Return the ELBO, nats."""
        return self.evaluate(state)[0]

    def evaluate(self, state):
        """Return the ELBO, and means (n, q) and variances (n, c) at the rows."""
        means, variances, loss = [], [], 0.0
        for _, X, y, weights, _, f in self.bases.passes(self.rows, state.coef):
            _, var = features(self.basis, X, state.root)
            mean = f[:, : self.likelihood.n_latents]
            loss += (weights[:, 0] * self.likelihood.loss(y, mean, var)).sum().item()
            means.append(f)
            variances.append(var)
        means = torch.cat(means)
        return -loss - self._kl(state, means), means, torch.cat(variances)

    def index_precisions(self, state):
        """Return the site precisions at the index rows, scaled by n/k: (c, k)."""
        precisions = self.rows.weights.double()[:, None] * state.precision
        return len(self.rows) / len(self.index) * precisions[self.index].T

    def _dense_pays(self, state):
        """Return whether passes have taken as long as the dense system matrix would."""
        possible = self.conjugate and not state.dense and self.bases.size <= _MAX_DENSE_BASES
        return possible and state.n_inner * _GRAM_SPEED >= self.bases.size

    def _unsolved(self, state):
        """Return the larger of the relative residual and the remaining gain, nats per row."""
        return max(state.relative_residual(), self._max_per_row(self._remaining_gain(state)))

    def _recent_gain(self, state, gains):
        """Record the gains (q, 1) of an iteration; return those of the last ten, nats per row."""
        state.gains = [*state.gains, gains][-_DELAY:]
        enough = len(state.gains) == _DELAY
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
        of_mean = 0.5 * (coef * self.bases.prior_product(coef)).sum()
        return (of_mean + covariance_kl(state.root)).item()

    def _update_sites(self, state, again=False):
        """Step the sites towards the present moments, and restart conjugate gradients.

        If the ELBO is lower than at the last accepted sites, return to them and take half the step,
        ``again``. If the step is already very short, nothing is left to gain.
        """
        c, before, root = self.likelihood.n_latents, state.means, state.root
        point = {name: getattr(state, name) for name in _POINT}
        size = state.step_scale * self.likelihood.step(state.n_updates)
        if state.warm:
            size, state.warm = 0.0, False
        old_linear, old_precision = state.linear, state.precision
        state.linear, state.precision = torch.zeros_like(old_linear), torch.zeros_like(old_linear)
        state.means = torch.zeros_like(before)
        sums, right = torch.zeros_like(state.coef), torch.zeros_like(state.coef)
        gram, loss = torch.zeros_like(root), 0.0
        for index, X, y, weights, K, f in self.bases.passes(self.rows, state.coef):
            A, var = features(self.basis, X, root)
            state.means[index] = f[:, :c]
            sites = self.likelihood.sites(y, f[:, :c], var)
            loss += (weights[:, 0] * sites.loss).sum().item()
            state.linear[index] = linear = old_linear[index].lerp(sites.linear, size)
            state.precision[index] = precision = old_precision[index].lerp(sites.precision, size)
            if not self.conjugate:
                add_grams(gram, A, weights * precision)
            linear, precision = (part.repeat(1, self._n_groups) for part in (linear, precision))
            sums += self._sum_rows(K, weights * (linear - precision * f), index)
            if self.conjugate:
                right += self._sum_rows(K, weights * linear, index)
        # Phi^T b - (Phi^T Lambda Phi + S) a, with the mean f = Phi a of the pass
        residual = self.bases.adjoint(sums) - self.bases.prior_product(state.coef)
        state.objective = value = -loss - self._kl(state, state.means)
        if not self.conjugate:
            if value < state.best - _ROUNDING * abs(value):
                state.restore(state.accepted)
                state.step_scale /= 2
                if state.step_scale < _MIN_STEP_SCALE:
                    state.change = 0.0
                self._update_sites(state, again=True)
                return
            if state.n_updates and not again:
                state.change = relative_change(state.means, before) / state.step_scale
                state.step_scale = min(2 * state.step_scale, 1.0)
            state.best, state.accepted = max(value, state.best), point
            state.root = roots(mirror(gram))
        state.n_updates += 1
        state.stale = False
        if state.index_precisions is None or state.n_inner > _MAX_INNER:
            precisions = self.index_precisions(state)
            precisions = precisions.mean(0, keepdim=True) if self.conjugate else precisions
            state.index_precisions, self._preconditioners = precisions, None
        state.n_inner = 0
        precondition = partial(self._precondition, state)
        state.restart(residual, precondition)
        state.first_norm = state.norm
        if self.conjugate:
            state.right = self.bases.adjoint(right)
            state.first_norm = _norm(state.right, precondition)

    def _precondition(self, state, residual):
        """Return the preconditioned residuals (q, M); outputs of Gaussian noise share one inverse.

        The dense inverse is an exception: each output has its own.
        """
        if self._preconditioners is None and state.dense:
            gram, precision = self._unit_gram(), state.precision[0]
            inverses = [CholeskyPreconditioner(self.bases, gram * each) for each in precision]
            self._preconditioners = inverses * self._n_groups
        elif self._preconditioners is None:
            X = self.rows.take(self.index)[0]
            self._preconditioners = self.bases.preconditioners(X, state.index_precisions)
        parts = residual.split(len(residual) // len(self._preconditioners))
        pairs = zip(self._preconditioners, parts, strict=True)
        return torch.cat([condition(part) for condition, part in pairs])

    def _unit_gram(self):
        """Return the whitened Gram matrix of sites of precision 1: lower triangle of (M, M)."""
        none = self.rows.weights.new_zeros(1, self.bases.size, dtype=torch.float64)
        gram = none.new_zeros(self.bases.size, self.bases.size)
        for _, _, _, weights, values, _ in self.bases.passes(self.rows, none):
            values = self.bases.whitened(self.bases.adjoint(values.double()))
            add_gram(gram, values, weights * values)
        return gram

    def _sum_rows(self, K, values, index):
        """Return values (b, q) of a chunk's rows, each by its share, times the block K: (q, M)."""
        return ((values * self.row_shares[index]).to(K.dtype).T @ K).double()


class ExactInference(DecoupledInference):
    r"""`DecoupledInference` for Gaussian noise where all rows are bases of the mean.

    Here :math:`\Phi = S = K`, the kernel matrix of all rows. One factor K cancels, and the system
    becomes that of the exact Gaussian process, with targets :math:`y = \Lambda^{-1} b`:

    .. math:: (K + \Lambda^{-1}) a = y.

    Up to 6,000 rows the preconditioner is the exact inverse. Beyond them no n x n matrix is held;
    the preconditioner takes K to be its Nystroem approximation on 1,000 rows.

    With A the matrix of the system and r its residual, the ELBO may still gain
    :math:`\tfrac12 e^\top (K \Lambda K + K) e`, :math:`e = A^{-1} r`. That is
    :math:`\tfrac12 (r^\top \Lambda r - r^\top A^{-1} r)`.

    Notes
    -----
    Source: Artemev, Burt and van der Wilk (2021), for the bound of such a solution; Gardner et al.
    (2018) for the iteration.
    """

    def init(self, start):
        """Return the first state, with means of zero."""
        first = super().init(start)
        linear, precision = torch.zeros_like(first.linear), torch.zeros_like(first.linear)
        loss = 0.0
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            var = features(self.basis, X, first.root)[1]
            sites = self.likelihood.sites(y, torch.zeros_like(var), var)
            linear[index], precision[index] = sites.linear, sites.precision
            loss += (weights * sites.loss).sum().item()
        target = (linear / precision).T
        weights = self.rows.weights.double()[:, None] * precision
        weight = (weights.repeat(1, self._n_groups) * self.row_shares).T
        state = ExactState(
            coef=first.coef,
            residual=first.residual,
            direction=first.direction,
            norm=first.norm,
            first_norm=first.first_norm,
            root=first.root,
            means=torch.zeros_like(first.coef),
            precision=precision,
            target=target,
            weight=weight,
            base=-loss - covariance_kl(first.root).item(),
        )
        residual = (weight > 0) * target.repeat(self._n_groups, 1)
        state.restart(residual, partial(self._precondition, state))
        state.first_norm = state.norm
        return state

    def step(self, state):
        """Take one iteration of conjugate gradients; the objective is the ELBO, nats."""
        direction, known = state.direction, state.weight > 0
        product = self._kernel_product(direction)
        # Rows of weight zero have no equation; their coefficients stay zero.
        over = torch.where(known, direction / state.weight, 0.0) + known * product
        size = state.advance(over, partial(self._precondition, state))
        state.means = state.means + size * product
        state.change = self._unsolved(state)
        c = self.likelihood.n_latents
        coef, means = state.coef[:c], state.means[:c]
        fit = state.weight[:c] * means * (state.target - 0.5 * means)
        state.objective = state.base + (fit - 0.5 * coef * means).sum().item()

    def _remaining_gain(self, state):
        of_rows = (state.weight * state.residual.square()).sum(1, keepdim=True)
        return 0.5 * (of_rows - state.norm)

    def _kernel_product(self, coef):
        """Return coefficients (q, n) times the kernel matrix, half of whose entries are made."""
        product = torch.zeros_like(coef)
        for index in self.bases.chunks(self.rows):
            X, stop = self.rows.take(index)[0], index.start + len(self.rows.weights[index])
            K = self.bases.sampled(X.double(), slice(index.start, None))
            product[:, index] += coef[:, index.start :] @ K.T
            product[:, stop:] += coef[:, index] @ K[:, stop - index.start :]
        return product

    def _precondition(self, state, residual):
        if self._preconditioners is None:
            dense = len(self.rows) <= _MAX_FACTORED_ROWS
            make = self._exact_inverses if dense else self._nystroem_inverses
            self._preconditioners = make(state.weight)
        pairs = zip(self._preconditioners, residual, strict=True)
        return torch.stack([condition(part) for condition, part in pairs])

    def _exact_inverses(self, weights):
        r"""Return functions that apply the inverse of the matrix, for each row of weights (q, n).

        With W the weights, :math:`(K + W^{-1})^{-1} = W^{1/2} (I + W^{1/2} K W^{1/2})^{-1}
        W^{1/2}`, which holds for weights of zero too.
        """
        every = slice(None)
        K = self.bases.prior(every, every)

        def inverse(root):
            inner = root[:, None] * K * root
            inner.diagonal().add_(1.0)
            chol = cholesky(inner, "matrix of the mean's system", jitter=0)
            return lambda part: root * torch.cholesky_solve((root * part)[:, None], chol)[:, 0]

        return [inverse(root) for root in weights.sqrt()]

    def _nystroem_inverses(self, weights):
        r"""Return functions like `_exact_inverses`, with K approximated by landmarks.

        With :math:`K \approx B^\top B`, B the landmarks' whitened features (k, n), Woodbury's
        identity gives :math:`W - W B^\top (I + B W B^\top)^{-1} B W`.
        """
        every = -(-len(self.rows) // _MAX_LANDMARKS)
        landmarks = KernelBases(self.bases.kernel, self.bases.theta, self.bases.points[::every])
        none = weights.new_zeros(1, landmarks.size)
        low_rank = torch.cat(
            [
                torch.linalg.solve_triangular(landmarks.chol, K.double().T, upper=False)
                for *_, K, _ in landmarks.passes(self.rows, none)
            ],
            1,
        )

        def inverse(weight):
            inner = (weight * low_rank) @ low_rank.T
            inner.diagonal().add_(1.0)
            chol = cholesky(inner, "preconditioner of the mean's system", jitter=0)

            def apply(part):
                scaled = weight * part
                known = torch.cholesky_solve(low_rank @ scaled[:, None], chol)[:, 0]
                return scaled - weight * (known @ low_rank)

            return apply

        return [inverse(weight) for weight in weights]

    def _kl(self, state, means):
        c = self.likelihood.n_latents
        of_mean = 0.5 * (state.coef[:c].T * means[:, :c]).sum()
        return (of_mean + covariance_kl(state.root)).item()


def _norm(residual, precondition):
    """Return the squared norms (q, 1) of residuals under a preconditioner."""
    return (residual * precondition(residual)).sum(1, keepdim=True)


def covariance_kl(root):
    """Return the divergence from the prior, nats, of roots (c, p, p) at means of zero; a tensor."""
    return gaussian_kl(torch.zeros_like(root[..., 0]), root).sum()


def features(basis, X, root):
    """Return features of the covariance (b, p), and latent variances (b, c)."""
    A, residual = basis(X)
    return A, (residual[:, None] + spreads(A, root)).double()


def roots(gram):
    """Return upper triangular roots of the covariances whose precisions are gram + I."""
    precision = gram + torch.eye(gram.shape[-1]).to(gram)
    return weight_moments(precision, torch.zeros_like(gram[..., 0]))[1]
