"""Coordinate ascent on the posterior of the weights, and its leave-one-out predictions."""

import math
from dataclasses import dataclass, field, replace

import torch

from .._fitting import Stage, State
from .._linalg import (
    gaussian_kl,
    gram_rounding,
    mirror,
    natural_parameters,
    relative_change,
    spreads,
    weight_moments,
)
from .._sites import batch_loss, batch_sites

_HELD_BYTES = 2**28
_MAX_HALVINGS = 10
_ROUNDING = 1e-9
_MAX_PAIRS = 8  # with 4, convergence took up to 4 sweeps more; with 16, no fewer
_MAX_LEFT_OUT = 3000  # rows


@dataclass(kw_only=True)
class AscentState(State):
    """Gaussian posterior of the whitened weights, and the hyperparameters that it belongs to.

    Attributes
    ----------
    theta : Tensor of shape (k,)
        Logarithms of the kernel's free hyperparameters.
    Z : Tensor of shape (m, d)
        Inducing points.
    noise : Tensor of shape (q,)
        Logarithms of the likelihood's parameters.
    precision, linear : Tensor of shape (c, p, p), (c, p)
        Natural parameters.
    mean, root : Tensor of shape (c, p), (c, p, p)
        Moments that the natural parameters imply; the covariance is ``root @ root.mT``, and roots
        are upper triangular.
    n_steps : int
        Steps taken so far.
    change : float
        Size of the last step of the means, relative to their norm.
    start : tuple (mean, precision, gradient, value) or None
        Where the last quasi-Newton step started: mean, precision, gradient of the ELBO in the mean,
        and ELBO. None before the first.
    pairs : list of (Tensor, Tensor), each of shape (c, p)
        Differences of means, and of gradients with the sign reversed, over the last steps.
    """

    theta: torch.Tensor
    Z: torch.Tensor
    noise: torch.Tensor
    precision: torch.Tensor
    linear: torch.Tensor
    mean: torch.Tensor
    root: torch.Tensor
    n_steps: int
    change: float = math.inf
    start: tuple | None = None
    pairs: list = field(default_factory=list)

    def forget_steps(self):
        """Drop the quasi-Newton history, which belongs to an objective that has changed."""
        self.start, self.pairs = None, []


class CoordinateAscent:
    r"""Closed-form updates of q(weights) under Gaussian sites, for a fixed basis.

    Its methods change an `AscentState` in place.

    Parameters
    ----------
    likelihood : SiteLikelihood
    basis : WhitenedBasis
    rows : WeightedDataset

    Notes
    -----
    Source: Wistuba and Rawat (2018), Algorithm 1, in whitened coordinates; (S20)-(S23).
    Departs from the source: signs of the printed updates (errata E5-E9); the contrast is chosen
    anew in every sweep (E10), and steps are damped (`sweep`) or quasi-Newton (`ascend`).

    A sweep costs O(n p^2) for the features and, for each row, O(p^2) for each active latent.
    """

    def __init__(self, likelihood, basis, rows):
        self.likelihood, self.rows = likelihood, rows
        self.basis = basis
        eye = torch.eye(basis.size, dtype=torch.float64, device=rows.device)
        eyes = eye.expand(likelihood.n_latents, -1, -1)
        self._prior = eyes, eye.new_zeros(likelihood.n_latents, basis.size)
        self._prior_moments = None  # where the prior is not N(0, I)

    @property
    def prior(self):
        """Natural parameters (precision, linear) of the prior of the weights.

        The prior is N(0, I) unless it is set: in streaming, to an earlier posterior.
        """
        return self._prior

    @prior.setter
    def prior(self, prior):
        self._prior, self._prior_moments = prior, weight_moments(*prior)

    @property
    def basis(self):
        """The feature map; setting it drops the cached features."""
        return self._basis

    @basis.setter
    def basis(self, basis):
        self._basis = basis
        size = len(self.rows) * basis.size * self.rows.dtype.itemsize
        self._cache = {} if size <= _HELD_BYTES else None

    def init(self, mean=None, root=None, noise=None):
        """Return the state at the prior, or at given moments.

        Parameters
        ----------
        mean, root : Tensor of shape (c, p), (c, p, p), optional
            Given moments count as one step already taken, so that the next step is damped.
        noise : Tensor of shape (q,), optional
            Logarithms of the likelihood's parameters; by default those of the likelihood.

        Returns
        -------
        state : AscentState
        """
        n_steps = 0 if mean is None else 1
        precision, linear = natural_parameters(mean, root) if n_steps else self.prior
        mean, root = weight_moments(precision, linear)
        return AscentState(
            theta=self.basis.theta,
            Z=self.basis.Z,
            noise=self.likelihood.parameters() if noise is None else noise,
            precision=precision,
            linear=linear,
            mean=mean,
            root=root,
            n_steps=n_steps,
        )

    def _batch(self, index):
        """Return features, residual variances, targets and weights of the rows of ``index``."""
        key = index.start if isinstance(index, slice) else None
        if self._cache is None or key is None:
            X, y, weights = self.rows.take(index)
            return (*self.basis(X), y, weights)
        if key not in self._cache:
            X, y, weights = self.rows.take(index)
            self._cache[key] = (*self.basis(X), y, weights)
        return self._cache[key]

    def sweep(self, state):
        """Pass over all rows and take one damped step; return the ELBO before the step."""
        return self._step(state, self.rows.chunks(), 1.0, self.likelihood.step(state.n_steps))

    def ascend(self, state):
        r"""Pass over all rows and take a quasi-Newton step; return the ELBO before the step.

        The sites imply targets :math:`\hat\Lambda, \hat\eta` of the natural parameters. They hold
        the gradient in the means, :math:`g = \hat\eta - \hat\Lambda m`, and the natural gradient
        in the precisions, :math:`\hat\Lambda - \Lambda`. The precisions take a step of size
        :math:`\rho` along theirs. The means take the step of a limited-memory BFGS matrix that
        starts from :math:`\rho\Lambda^{-1}`; without earlier steps this is a damped sweep. If the
        ELBO turns out to have fallen, the next call halves the step instead.

        **The fixed point is the optimum.** It has :math:`g = 0` and
        :math:`\hat\Lambda = \Lambda`, so the gradient in means and covariances is zero. An expected
        hinge is convex in means and roots, as the sum of an affine function and the norm of one. A
        smooth maximum of such functions is convex, since it is convex and grows with each of them.
        The divergence is strictly convex. If every rival is contrasted, the ELBO is therefore
        smooth and strictly concave, and its only stationary point is the optimum.

        **When a step is safe.** The BFGS matrix is positive definite because pairs of negative
        curvature are left out. The steps of means and precisions both have a positive product with
        the gradient, so halving ends. For fixed shares of the rivals the precision of a site
        bounds the curvature of the loss, and a sweep with :math:`\rho = 1` never lowers the
        ELBO. Shares that move with the means add curvature that the sites lack. Of 60 steps on
        each of seven sets with 3 to 10 classes, up to 7 had to be halved with :math:`\rho = 1`, at
        most one with .7.

        ``change`` is the relative size of the undamped closed-form step, :math:`\Lambda^{-1} g`, or
        of a halved step. A likelihood that is not ``smooth``, whose g does not vanish at the
        optimum, takes a `sweep`.

        Notes
        -----
        Source: Nocedal and Wright (2006), Numerical Optimization, algorithm 7.4.
        """
        if not self.likelihood.smooth:
            return self.sweep(state)
        size = self.likelihood.step(state.n_steps)
        (target_precision, target_linear), value = self._target(state, self.rows.chunks(), 1.0)
        mean, precision = state.mean, state.precision
        # The ELBO is a sum in the dtype of the rows.
        rounding = max(_ROUNDING, 16 * torch.finfo(self.rows.dtype).eps)
        if state.start and value < state.start[-1] - rounding * abs(value):
            start_mean, start_precision, *_ = state.start
            precision = torch.lerp(start_precision, precision, 0.5)
            mean = torch.lerp(start_mean, mean, 0.5)
            _, root = weight_moments(precision, mean, self._rounding())
            state.pairs, state.change = [], relative_change(mean, start_mean)
        else:
            gradient = target_linear - _times(target_precision, mean)
            if state.start:
                start_mean, _, start_gradient, _ = state.start
                pair = mean - start_mean, start_gradient - gradient
                state.pairs = [*state.pairs, pair][-_MAX_PAIRS:]
            state.start = mean, precision, gradient, value
            precision = torch.lerp(precision, target_precision, size)
            undamped, root = weight_moments(precision, gradient, self._rounding())
            state.change = relative_change(mean + undamped, mean)
            mean = mean + _bfgs_step(gradient, state.pairs, size, root)
        state.precision, state.linear = precision, _times(precision, mean)
        state.mean, state.root = mean, root
        state.n_steps += 1
        return value

    def uphill_sweep(self, state):
        """Take a `sweep`, halving its step until the ELBO does not fall; return the ELBO before."""
        before = replace(state)
        value = self.sweep(state)
        for _ in range(_MAX_HALVINGS):
            if self.elbo(state) >= value - _ROUNDING * abs(value):
                break
            self._move(state, before, (state.precision, state.linear), 0.5)
        return value

    def stochastic_sweep(self, state, batches):
        """Take a step of decreasing size for each minibatch; return the mean estimate of the ELBO.

        Parameters
        ----------
        state : AscentState
        batches : list of LongTensor
            Indices of the rows of each minibatch.
        """
        values = []
        for index in batches:
            step = (state.n_steps + 1) ** -0.6
            values.append(self._step(state, [index], len(self.rows) / len(index), step))
        return sum(values) / len(values)

    def _step(self, state, indices, scale, step):
        target, value = self._target(state, indices, scale)
        self._move(state, replace(state), target, step)
        state.n_steps += 1
        return value

    def _target(self, state, indices, scale):
        """Return what the sites of the rows of ``indices`` imply.

        Returns
        -------
        target : tuple (precision, linear)
            Natural parameters.
        value : float
            Estimate of the ELBO, nats.
        """
        mean, root = state.mean, state.root
        at_prior = self.likelihood.tied and not state.n_steps and not mean.any()
        update = self._tied_update if at_prior else self._update
        precision, linear = torch.zeros_like(root), torch.zeros_like(mean)
        loss = sum(update(self._batch(i), mean, root, precision, linear) for i in indices)
        precision, linear, loss = self.rows.sum(mirror(precision), linear, loss)
        prior_precision, prior_linear = self.prior
        target = prior_precision + scale * precision, prior_linear + scale * linear
        return target, (-scale * loss - self._kl(mean, root)).item()

    def _move(self, state, start, target, step):
        """Put a state between the natural parameters of a start and a target (precision, linear).

        Parameters
        ----------
        state, start : AscentState
        target : tuple (precision, linear)
        step : float
            0 is the start, 1 the target.
        """
        state.precision = torch.lerp(start.precision, target[0], step)
        state.linear = torch.lerp(start.linear, target[1], step)
        state.mean, state.root = weight_moments(state.precision, state.linear, self._rounding())
        state.change = relative_change(state.mean, start.mean)

    def _rounding(self):
        """Return the rounding error of the precisions, relative to their mean diagonal."""
        return gram_rounding(self.basis.size, self.rows.dtype)

    def _kl(self, mean, root):
        """Return the Kullback-Leibler divergence to the prior, nats, a tensor."""
        if self._prior_moments is not None:
            prior_mean, prior_root = self._prior_moments
            parts = (mean - prior_mean)[..., None], root
            shift, root = (
                torch.linalg.solve_triangular(prior_root, part, upper=True) for part in parts
            )
            mean = shift[..., 0]
        return gaussian_kl(mean, root).sum()

    def _prior_variance(self, A):
        """Return the prior variance of the projected latents at features A, (b, c)."""
        if self._prior_moments is None:
            return A.square().sum(1, keepdim=True).expand(-1, self.likelihood.n_latents)
        return spreads(A, self._prior_moments[1])

    def _update(self, batch, mean, root, precision, linear):
        """Add a batch's sites to the totals ``precision`` and ``linear``; return its loss."""
        sites, groups, _ = batch_sites(self.likelihood, *batch[:3], mean, root)
        weights = batch[3]
        groups.add_gram(precision, weights[:, None] * sites.precision)
        linear += groups.total(weights[:, None] * sites.linear)
        return (weights * sites.loss).sum().double()

    def _tied_update(self, batch, mean, root, precision, linear):
        """Do as `_update` at zero means, where all wrong classes are equal rivals."""
        return self.likelihood.tied_update(*batch, precision, linear)

    def elbo(self, state):
        r"""Return the ELBO of the posterior in a state, nats.

        It is :math:`\sum_i w_i\, E_q[\log p(y_i \mid f_i)] - KL(q \Vert p)`. For a hinge, which
        has no normalized density, minus the expected loss stands for the expected log density.
        """
        loss = 0.0
        for index in self.rows.chunks():
            *batch, weights = self._batch(index)
            terms = batch_loss(self.likelihood, *batch, state.mean, state.root)
            loss = loss + (weights * terms).sum().double()
        (loss,) = self.rows.sum(loss)
        return (-loss - self._kl(state.mean, state.root)).item()

    def leave_one_out(self, state, left_out=None):
        r"""Return latent moments of rows under the model fitted without them.

        They take one Newton step from the posterior of all rows.

        With the loss's gradient g and curvature H at a row, and :math:`u = a^\top(\Lambda_H)^{-1}a`
        where :math:`\Lambda_H` is the Hessian of the whole objective in the mean,

        .. math:: m_{-n} = m + \frac{u g}{1 - H u}, \qquad
                  v_{-n} = \tilde k + \frac{v}{1 - \beta v}.

        The variance removes the row's site. It is at most that of the prior, which matters where
        damped steps do not yet hold the whole site. A row of weight above one loses one copy.

        Parameters
        ----------
        state : AscentState
        left_out : LongTensor of shape (n_left_out,), default=None
            Indices among the rows of all ranks. None is every row, or 3000 equally spaced ones.

        Returns
        -------
        mean, var : Tensor of shape (n_left_out, c)
        targets, weights : Tensor of shape (n_left_out,)

        Notes
        -----
        Cavity means of the sites themselves would be too optimistic: their precision is the
        curvature of a bound, which exceeds that of the loss. Off-diagonal curvature between latents
        is taken as that of a complete graph, which scales the diagonal by c / (c - 1).
        """
        mean, root = state.mean, state.root
        hessian = torch.zeros_like(root)
        for index in self.rows.chunks():
            batch = self._batch(index)
            sites, groups, _ = batch_sites(self.likelihood, *batch[:3], mean, root)
            groups.add_gram(hessian, self.likelihood.coupling * batch[3][:, None] * sites.curvature)
        (hessian,) = self.rows.sum(mirror(hessian))
        _, newton_root = weight_moments(self.prior[0] + hessian, mean)
        chosen = self.rows.own(self.rows.spaced(_MAX_LEFT_OUT) if left_out is None else left_out)
        parts = [
            self._left_out(self._batch(index), mean, root, newton_root)
            for index in chosen.to(self.rows.device).split(1024)
        ]
        return self.rows.collect(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _left_out(self, batch, mean, root, newton_root):
        """Return left-out means and variances (b, c), targets and weights of a batch."""
        sites, _, active = batch_sites(self.likelihood, *batch[:3], mean, root)
        A, residual, y, weights = batch
        one_copy = weights.clamp_max(1)[:, None]

        def dense(values):
            return A.new_zeros(len(A), self.likelihood.n_latents).scatter(
                1, active, one_copy * values
            )

        u, v = spreads(A, newton_root), spreads(A, root)
        curvature = self.likelihood.coupling * dense(sites.curvature)
        left_mean = A @ mean.to(A.dtype).T
        left_mean = left_mean + u * dense(sites.gradient) / (1 - curvature * u).clamp_min(1e-3)
        prior, left = self._prior_variance(A), 1 - dense(sites.precision) * v
        left_var = residual[:, None] + torch.where(left > 0, v / left, prior).minimum(prior)
        return left_mean.double(), left_var.double(), y, weights.double()


class AscentStage(Stage):
    """Sweeps of coordinate ascent at fixed hyperparameters, until they hardly move the means.

    Parameters
    ----------
    ascent : CoordinateAscent
    sweep : callable
        A method of `CoordinateAscent` that takes the ascent and a state, such as its `ascend`.
    tol : float
        Relative change of the means at which the sweeps have converged.
    """

    def __init__(self, ascent, sweep, tol):
        self.ascent, self._sweep, self._tol = ascent, sweep, tol

    @property
    def is_exact(self):
        """True if one sweep finds the posterior from any start."""
        return self.ascent.likelihood.conjugate

    def at(self, state):
        """Return the coordinate ascent, whose hyperparameters are those of every state."""
        return self.ascent

    def init(self, noise):
        """Return the state at the prior; ``noise`` (q,) are the likelihood's log parameters."""
        return self.ascent.init(noise=noise)

    def step(self, state):
        """Take one sweep."""
        state.objective = self._sweep(self.ascent, state)

    def converged(self, state):
        """Return whether the last sweep hardly moved the means."""
        return state.change < self._tol


def _times(matrices, vectors):
    return (matrices @ vectors[..., None])[..., 0]


def _bfgs_step(gradient, pairs, size, root):
    """Return the product of a gradient (c, p) with a limited-memory BFGS matrix.

    The matrix starts from ``size * root @ root.mT``; see `CoordinateAscent.ascend`.
    """
    used = []
    for shift, change_of_gradient in reversed(pairs):
        curvature = (shift * change_of_gradient).sum()
        if curvature > 0:
            share = (shift * gradient).sum() / curvature
            gradient = gradient - share * change_of_gradient
            used.append((shift, change_of_gradient, curvature, share))
    step = size * _times(root, _times(root.mT, gradient))
    for shift, change_of_gradient, curvature, share in reversed(used):
        step = step + (share - (change_of_gradient * step).sum() / curvature) * shift
    return step
