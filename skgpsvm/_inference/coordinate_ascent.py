"""Coordinate ascent on the posterior of the weights."""

import math
from dataclasses import dataclass, replace

import torch

from .._fitting import SparseState
from .._linalg import (
    gaussian_kl,
    gram_rounding,
    mirror,
    natural_parameters,
    relative_change,
    weight_moments,
)
from .._memory import HELD_BYTES
from .._sites import batch_sites, dense_design, per_latent
from .mean_steps import ascend_means, newton_step, preconditioner, times

_MOVED = "precision", "linear", "mean", "root"
MAX_HALVINGS = 10
_SIZES = [0.5**k for k in range(MAX_HALVINGS)]  # of a step, in turn
ROUNDING = 1e-9  # fall of the ELBO that counts as rounding, relative
# Nats per row by which the ELBO may fall where its expectations, and those of derivatives, are
# averages over draws: the fixed point of the sweeps is then not quite its maximum.
_MAX_FALL = 1e-5


@dataclass(kw_only=True)
class AscentState(SparseState):
    """Gaussian posterior of the whitened weights, and the hyperparameters that it belongs to."""

    # precision (c, p, p), linear (c, p): natural parameters, which imply mean and root
    precision: torch.Tensor
    linear: torch.Tensor
    n_steps: int  # steps taken so far
    change: float = math.inf  # size of the last step of the means, relative to their norm


class CoordinateAscent:
    """Closed-form updates of q(weights) under Gaussian sites, for a fixed basis.

    Its methods change an `AscentState` in place. The basis may be a `GroupedBasis`, except for
    `ascend`. A sweep costs O(n p^2) for the features and, for each row, O(p^2) for each active
    latent. The prior of the weights is N(0, I), or has given natural parameters (precision,
    linear): in streaming, those of an earlier posterior.

    Source: Wistuba and Rawat (2018), Algorithm 1, in whitened coordinates; (S20)-(S23). Departs
    from the source: signs of the printed updates (errata E5-E9); the contrast is chosen anew in
    every sweep (E10), and steps are damped (`sweep`) or quasi-Newton (`ascend`).
    """

    def __init__(self, likelihood, basis, rows, dtype=None, prior=None):
        self.likelihood, self.rows, self.dtype = likelihood, rows, dtype or rows.dtype
        self.basis = basis
        self._prior_moments = None if prior is None else weight_moments(*prior)
        if prior is None:
            eye = torch.eye(basis.size, dtype=torch.float64, device=rows.device)
            eyes = eye.expand(likelihood.n_latents, -1, -1)
            prior = eyes, eye.new_zeros(likelihood.n_latents, basis.size)
        self.prior = prior

    @property
    def basis(self):
        """The feature map; setting it drops the cached features."""
        return self._basis

    @basis.setter
    def basis(self, basis):
        self._basis = basis
        self._holds = len(self.rows) * basis.size * self.dtype.itemsize <= HELD_BYTES
        self._batches, self._designs, self._last = {}, {}, (None, None)
        # Likelihood, mean and root, and what has been found there
        self._known = (None, None, None), {}

    def init(self, mean=None, root=None, noise=None):
        """Return the state at the prior, or at given moments (c, p) and (c, p, p).

        Given moments count as one step already taken, so that the next step is damped. ``noise``
        has the logarithms of the likelihood's parameters, by default its own.
        """
        if mean is None:
            return self._state(*self.prior, 0, noise)
        return self._state(*natural_parameters(mean, root), 1, noise)

    def _state(self, precision, linear, n_steps, noise=None):
        mean, root = weight_moments(precision, linear, self._rounding())
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

    def init_at(self, precision, linear):
        """Return `posterior_of` sites, with means at their optimum for its covariances."""
        state = self.posterior_of(precision, linear)
        if self.likelihood.smooth:
            self._ascend_means(state, self._mean_loss(state))
        return state

    def posterior_of(self, precision, linear):
        """Return the state that the sites (n, c) of all rows imply; it counts as a step.

        They may be from `sites` at another kernel.
        """
        total, shift = map(torch.zeros_like, self.prior)
        for index in self.rows.chunks():
            design = self._design(index)
            design.add_gram(total, precision[index])
            shift += design.total(linear[index])
        total, shift = self.rows.sum(mirror(total), shift)
        return self._state(self.prior[0] + total, self.prior[1] + shift, 1)

    def sites(self, state):
        """Return precisions and linear terms of the sites of all rows, each (n, c), weighted."""
        parts = []
        for index in self.rows.chunks():
            sites, _, active = self.batch_sites(index, state)
            weights = self.batch(index)[3][:, None]
            empty = weights.new_zeros(len(weights), self.likelihood.n_latents)
            pair = sites.precision, sites.linear
            parts.append([empty.scatter(1, active, weights * values) for values in pair])
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    def batch(self, index):
        """Return features, residual variances, targets and weights of the rows of ``index``.

        Those of the last index are kept, since a step asks for them several times.
        """
        if index is not self._last[0]:
            self._last = None, None  # first, as two batches may not fit in memory
            self._last = index, self._held(self._batches, index, self._batch)
        return self._last[1]

    def _held(self, known, index, compute):
        """Return what a function computes of rows; of slices it is kept if features are."""
        if not (self._holds and isinstance(index, slice)):
            return compute(index)
        if index.start not in known:
            known[index.start] = compute(index)
        return known[index.start]

    def _batch(self, index):
        X, y, weights = self.rows.take(index)
        A, residual = self.basis(X)
        return A.to(self.dtype), residual.to(self.dtype), y, weights.to(self.dtype)

    def _design(self, index):
        """Return the `dense_design` of a slice of rows, which keeps variances with the features."""
        return self._held(self._designs, index, lambda index: dense_design(self.batch(index)[0]))

    def batch_sites(self, index, state):
        """Return the `batch_sites` of the rows of ``index`` in a state.

        The ELBO after a step and the next step share those of a slice of rows.
        """
        moments = state.mean, state.root
        if not self.likelihood.activates_all:
            return batch_sites(self.likelihood, *self.batch(index)[:3], *moments)

        def compute(index):
            parts = *self.batch(index)[:3], *moments, self._design(index)
            return batch_sites(self.likelihood, *parts)

        return self._held(self._known_at(state), index, compute)

    def _known_at(self, state):
        """Return what has been found at the posterior of a state, a dict; that of the last only."""
        at = self.likelihood, state.mean, state.root
        if any(now is not last for now, last in zip(at, self._known[0], strict=True)):
            self._known = at, {}
        return self._known[1]

    def sweep(self, state):
        """Pass over all rows and take one damped step; return the ELBO before the step."""
        start, step = state.mean, self.likelihood.step(state.n_steps)
        value = self._step(state, self.rows.chunks(), 1.0, step)
        state.change = relative_change(state.mean, start)
        return value.item()

    def ascend(self, state):
        r"""Pass over all rows, then maximize the ELBO over the means; return the ELBO before.

        A pass costs O(n p^2) for each latent, a step on the means O(n p) and O(p^2). So the means
        are taken close to their optimum for each step of the covariances.

        The sites imply a target :math:`\hat\Lambda` of the precisions. Its distance
        :math:`\hat\Lambda - \Lambda` is the natural gradient in the precisions, which take the
        whole step, with means held. The step is halved while it lowers the ELBO. The means then
        take limited-memory BFGS steps that start from :math:`\Lambda^{-1}`, with covariances held
        (`ascend_means`).

        **The fixed point is the optimum.** The gradient in means and covariances is zero there. An
        expected hinge is convex in means and roots, as the sum of an affine function and the norm
        of one. A smooth maximum of such functions is convex, since it is convex and grows with each
        of them. The divergence is strictly convex. The ELBO is therefore
        smooth and strictly concave, and its only stationary point is the optimum.

        **The steps are safe.** The BFGS matrix is positive definite because pairs of negative
        curvature are left out, so a step that is short enough raises the ELBO. For fixed shares of
        the rivals the precision of a site bounds the curvature of the loss, and a whole step never
        lowers the ELBO.

        Where a likelihood is ``redescending``, precisions of sites may be negative. A step is then
        halved too while the posterior precision is not positive definite.

        ``change`` is the relative size of the first step of the means: what the last change of the
        covariances has moved them by. A likelihood that is not ``smooth`` takes a `sweep`.
        """
        if not self.likelihood.smooth:
            return self.sweep(state)
        if not state.n_steps:
            value = self.sweep(state)
            loss = self._mean_loss(state)
        else:
            value, loss = self._step_of_covariances(state)
        self._ascend_means(state, loss)
        return value

    def _step_of_covariances(self, state, max_fall=0.0):
        """Move the precisions towards those of the sites, with means held.

        The step is halved while the ELBO falls by more than ``max_fall`` and its rounding error.
        Return the ELBO before the step, and the `_mean_loss`.
        """
        start = state.precision
        (target, _), value = self._target(state, self.rows.chunks(), 1.0)
        value = value.item()
        if self.likelihood.redescending:
            target = target + self._negative_precisions(state)
        for size in (*_SIZES, 0.0):
            state.precision = torch.lerp(start, target, size)
            if size and torch.linalg.cholesky_ex(state.precision)[1].any():
                continue
            _, state.root = weight_moments(state.precision, state.linear, self._rounding())
            loss = self._mean_loss(state)
            after = (-loss(state.mean)[0] - self._kl(state)).item()
            if after >= value - max(max_fall, self._slack(value)):
                break
        state.n_steps += 1
        return value, loss

    def _negative_precisions(self, state):
        """Return what sites with a negative curvature, which count as zero, add to precisions."""
        total = torch.zeros_like(state.root)
        for index in self.rows.chunks():
            sites, design, _ = self.batch_sites(index, state)
            weights = self.batch(index)[3][:, None]
            design.add_gram(total, weights * (sites.curvature - sites.precision))
        return self.rows.sum(mirror(total))[0]

    def _ascend_means(self, state, loss):
        """Maximize the ELBO over the means, with covariances held; ``loss`` is a `_mean_loss`."""
        precision, linear = self.prior

        def value_and_gradient(mean):
            # Terms of the ELBO that depend on the means.
            value, gradient = loss(mean)
            by_prior = linear - self._by_prior(mean)
            return 0.5 * (mean * (linear + by_prior)).sum() - value, by_prior - gradient

        precondition = preconditioner(state.root, precision, self.likelihood.relative)
        mean, first = ascend_means(value_and_gradient, state.mean, precondition, self._slack)
        state.change = relative_change(first, state.mean)
        state.mean, state.linear = mean, times(state.precision, mean)

    def _mean_loss(self, state):
        """Return a function of the means (c, p): the loss at the covariances of a state.

        It returns the loss of all rows, a tensor, and its gradient (c, p).
        """
        chunks = self.rows.chunks()
        variances = [
            self.batch(index)[1][:, None] + self._design(index).variance(state.root)
            for index in chunks
        ]

        def loss(mean):
            total, gradient = 0.0, torch.zeros_like(mean)
            for index, var in zip(chunks, variances, strict=True):
                A, _, y, weights = self.batch(index)
                latents = A @ mean.to(A.dtype).T
                losses, gradients = self.likelihood.loss_and_gradient(y, latents, var)
                gradient += (weights[:, None] * gradients).T @ A
                total = total + (weights @ losses).double()
            gradient, total = self.rows.sum(gradient, total)
            return total, gradient

        return loss

    def _slack(self, value):
        """Return the rounding error of an ELBO, which is a sum in the dtype of products."""
        return 16 * torch.finfo(self.dtype).eps * abs(value)

    def uphill_sweep(self, state):
        """Take a `sweep`, halving its step until the ELBO does not fall; return the ELBO before.

        If an output has several latents, its first, second and so on step in turn. Steps of all at
        once would have to be short, and would converge slowly: a smaller noise lets the mean follow
        the rows, which lowers the noise.
        """
        start, step, value = state.mean, self.likelihood.step(state.n_steps), None
        for latents in self.likelihood.groups:
            last = replace(state)
            target, before = self._target(state, self.rows.chunks(), 1.0, latents)
            before = before.item()
            value = before if value is None else value
            self._move(state, last, target, step, latents)
            for _ in range(MAX_HALVINGS):
                if self.elbo(state) >= self._min_uphill(before):
                    break
                self._move(state, last, (state.precision, state.linear), 0.5, latents)
        state.n_steps += 1
        state.change = relative_change(state.mean, start)
        return value

    def natural_sweep(self, state):
        """Take an `uphill_sweep`, or what converges faster.

        Where the likelihood is ``redescending``, that is `ascend`. Rows whose gradient vanishes
        make the step of the sites too short: the ELBO of robust-max may rise for thousands of
        sweeps. Where latents are ``coupled``, precisions move as in `ascend`, and means take a
        Newton step, which may make up for a small fall. Steps of the sites would move means far
        where a class that is hardly possible has been observed, as their precision vanishes there.
        """
        if self.likelihood.redescending:
            return self.ascend(state)
        if not self.likelihood.coupled:
            return self.uphill_sweep(state)
        start = replace(state)
        for max_fall in (_MAX_FALL * self.rows.tolerance_scale, 0.0):
            value, _ = self._step_of_covariances(state, max_fall)
            self._newton_step(state)
            if not max_fall or self.elbo(state) >= value - self._slack(value):
                break
            for name in _MOVED:
                setattr(state, name, getattr(start, name))
        state.change = relative_change(state.mean, start.mean)
        return value

    def _newton_step(self, state):
        """Take a Newton step on the means, with covariances held, halved until the ELBO rises.

        Sites have the curvature in each latent alone. Where two classes compete, that in the
        difference of their latents is twice as large, and that in the sum vanishes: steps of the
        sites are too long in one direction, and too short in the other.
        """
        start, before, parts, by_loss = state.mean, self.elbo(state), [], 0.0
        for index in self.rows.chunks():
            sites, design, _ = self.batch_sites(index, state)
            A, residual, _, weights = self.batch(index)
            var = residual[:, None] + design.variance(state.root)
            hessian = self.likelihood.hessian(design.means(start), var)
            parts.append((A, weights[:, None, None] * hessian))
            by_loss = by_loss + design.total(weights[:, None] * sites.gradient)
        gradient = self.prior[1] - self._by_prior(start) - self.rows.sum(by_loss)[0]

        def product(step):
            by_rows = sum(times(hessian, A @ step.to(A.dtype).T).T @ A for A, hessian in parts)
            return self._by_prior(step) + self.rows.sum(by_rows)[0]

        precondition = preconditioner(state.root, self.prior[0], self.likelihood.relative)
        step = newton_step(gradient, product, precondition)
        for size in (*_SIZES, 0.0):
            state.mean = start + size * step
            if self.elbo(state) >= self._min_uphill(before):
                break
        state.linear = times(state.precision, state.mean)

    def _min_uphill(self, before):
        """Return the ELBO after a step that does not lower it, but for rounding errors."""
        return before - max(ROUNDING * abs(before), self._slack(before))

    def _by_prior(self, mean):
        """Return the products of the precision of the prior with means (c, p)."""
        return mean if self._prior_moments is None else times(self.prior[0], mean)

    def stochastic_sweep(self, state, batches):
        """Take a step of decreasing size for each minibatch; return the mean ELBO estimate."""
        values = []
        for index in batches:
            step = (state.n_steps + 1) ** -0.6
            values.append(self._step(state, [index], self.rows.scale_of(index), step))
        return (sum(values) / len(values)).item()  # the device is waited for once

    def _step(self, state, indices, scale, step):
        target, value = self._target(state, indices, scale)
        self._move(state, replace(state), target, step)
        state.n_steps += 1
        return value

    def _target(self, state, indices, scale, latents=slice(None)):
        """Return what the sites of the rows of ``indices`` imply, and an estimate of the ELBO.

        The former is (precision, linear), of which only the parts of the given latents are right.
        """
        mean, root = state.mean, state.root
        at_prior = self.likelihood.tied and not state.n_steps and not mean.any()
        precision, linear, loss = torch.zeros_like(root), torch.zeros_like(mean), 0.0
        for index in indices:
            if at_prior:  # all wrong classes are equal rivals
                loss += self.likelihood.tied_update(*self.batch(index), precision, linear)
            else:
                loss += self._update(index, state, precision, linear, latents)
        sums = scale * mirror(precision), scale * linear, scale * loss
        precision, linear, loss = self.rows.sum(*sums)
        prior_precision, prior_linear = self.prior
        target = prior_precision + precision, prior_linear + linear
        return target, -loss - self._kl(state)

    def _move(self, state, start, target, step, latents=slice(None)):
        """Put a state between the natural parameters of a start and a target (precision, linear).

        Step 0 is the start, 1 the target; only the given latents move.
        """
        pairs = (start.precision, target[0]), (start.linear, target[1])
        moved = [torch.lerp(first[latents], last[latents], step) for first, last in pairs]
        found = *moved, *weight_moments(*moved, self._rounding())
        for name, values in zip(_MOVED, found, strict=True):
            whole = getattr(start, name)
            if len(values) < len(whole):
                values = torch.cat([whole[: latents.start], values, whole[latents.stop :]])
            setattr(state, name, values)

    def _rounding(self):
        """Return the rounding error of the precisions, relative to their mean diagonal."""
        return gram_rounding(self.basis.size, self.dtype)

    def _kl(self, state):
        """Return the Kullback-Leibler divergence to the prior, nats, a tensor."""
        known = self._known_at(state)
        if "kl" not in known:
            mean, root = state.mean, state.root
            if self._prior_moments is not None:
                prior_mean, prior_root = self._prior_moments
                parts = (mean - prior_mean)[..., None], root
                shift, root = (
                    torch.linalg.solve_triangular(prior_root, part, upper=True) for part in parts
                )
                mean = shift[..., 0]
            known["kl"] = gaussian_kl(mean, root).sum()
        return known["kl"]

    def prior_variance(self, A):
        """Return the prior variance of the projected latents at features A, (b, c)."""
        if self._prior_moments is None:
            c = self.likelihood.n_latents
            return per_latent(A.square().sum(-1), c).expand(-1, c)
        return dense_design(A).variance(self._prior_moments[1])

    def _update(self, index, state, precision, linear, latents):
        """Add the sites of rows to the totals ``precision`` and ``linear``; return their loss."""
        sites, design, _ = self.batch_sites(index, state)
        weights, part = self.batch(index)[3], design.part(latents)
        # Gaussian noise may be so small that the rounding of float32 exceeds the prior's precision.
        part = part.precise() if self.likelihood.conjugate else part
        part.add_gram(precision[latents], weights[:, None] * sites.precision[:, latents])
        linear[latents] += part.total(weights[:, None] * sites.linear[:, latents])
        return (weights * sites.loss).sum().double()

    def elbo(self, state):
        r"""Return the ELBO of the posterior in a state, nats.

        It is :math:`\sum_i w_i\, E_q[\log p(y_i \mid f_i)] - KL(q \Vert p)`. For a hinge, which
        has no normalized density, minus the expected loss stands for the expected log density.
        """
        loss = 0.0
        for index in self.rows.chunks():
            sites, _, _ = self.batch_sites(index, state)
            loss = loss + (self.batch(index)[3] * sites.loss).sum().double()
        (loss,) = self.rows.sum(loss)
        return (-loss - self._kl(state)).item()
