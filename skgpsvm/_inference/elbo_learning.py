"""Hyperparameters and inducing points by L-BFGS-B on the ELBO of converged sites."""

import math
from dataclasses import dataclass, replace

import torch
from sklearn.exceptions import ConvergenceWarning

from .._fitting import SparseState, Stage
from .._linalg import add_gram, mirror
from .._posteriors import whitened_basis
from .._sites import batch_loss
from ..exceptions import warn
from .coordinate_ascent import CoordinateAscent
from .latent_ascent import LatentAscent, LatentRows

# The last step of L-BFGS-B gains less than this, in units of tol: 0.001 nats per row by default, of
# the rows and as many more, since a tenth of a nat tells nothing of any number of rows.
_MIN_GAIN, _EXTRA_ROWS = 0.1, 100
_MIN_GAIN_OF_SWEEP = 0.3  # of that, which the last sweep of an evaluation gains
# An evaluation also ends once a sweep gains less than this share of the distance to the best ELBO:
# further sweeps would not change the order of the two.
_SHARE_OF_DISTANCE = 0.1
_MAX_SWEEPS = 20
# `DifferentiableAscent.converge`: nats per row that the last sweep gains, and limit of the sweeps
_ROUNDING_GAIN, _MANY_SWEEPS = 1e-9, 200


@dataclass(kw_only=True)
class LearningState(SparseState):
    """State of `ElboLearning`; the posterior is that of the best evaluation."""

    # precision, linear (n, c): weighted sites of the best evaluation, from which the next ones
    # start
    precision: torch.Tensor
    linear: torch.Tensor
    ended: bool = False  # whether the last round ended before its last step


class DifferentiableAscent(CoordinateAscent):
    """Natural-gradient sweeps from given sites, and the gradient of the ELBO in the basis.

    Every latent must be active in every row.
    """

    def converge(self, state):
        """Sweep until the ELBO of a state no longer changes; return the ELBO.

        A ConvergenceWarning says if 200 sweeps do not suffice.
        """
        little = _ROUNDING_GAIN * self.rows.tolerance_scale
        for _ in range(_MANY_SWEEPS):
            before = self.natural_sweep(state)
            value = self.elbo(state)
            if abs(value - before) <= max(little, self._slack(value)):
                return value
        warn(
            f"The ELBO at the given theta has not converged within {_MANY_SWEEPS} sweeps; the last "
            f"one changed it by {value - before:.1e} nats. Its gradient may be inaccurate.",
            ConvergenceWarning,
        )
        return value

    def noise_gradient(self, state, likelihood, noise):
        """Return the gradient of the ELBO in the likelihood's parameters, posterior held, (q,).

        The likelihood is that of the ascent, at any parameters, and ``noise`` their logarithms.
        """
        noise, loss = noise.detach().requires_grad_(), 0.0
        with torch.enable_grad():
            likelihood = likelihood.at(noise)
            for index in self.rows.chunks():
                *batch, weights = self.batch(index)
                parts = *batch, state.mean, state.root, self._design(index)
                loss = loss + (weights * batch_loss(likelihood, *parts)).sum()
            (gradient,) = torch.autograd.grad(loss, noise)
        return -self.rows.sum(gradient)[0]

    def value_and_gradient(self, state):
        r"""Return the ELBO, its gradient with the whitened posterior held, and the sites.

        With the covariances :math:`S_j` of the weights, the derivatives :math:`g_{ij}` and
        :math:`h_{ij}` of a row's loss in the latent's mean, and twice that in its variance, the
        derivatives of the ELBO in the features of a row are

        .. math:: -\sum_j (g_{ij} \mu_j + h_{ij} S_j a_i),

        and in its residual variance :math:`-\tfrac12 \sum_j h_{ij}`. Where the sites have
        converged, the ELBO is stationary in the posterior, so that this is the whole gradient. The
        gradient is a dict with ``theta`` and ``Z``; the sites are those of `sites`.
        """
        basis, root, bases = self.basis, state.root, self.basis.groups
        moments = state.mean.chunk(len(bases)), (root @ root.mT).chunk(len(bases))
        totals, loss, kept = root.new_zeros(len(bases), *root.shape[1:]), 0.0, []
        by_theta, by_Z = torch.zeros_like(basis.theta), torch.zeros_like(basis.Z)
        for index in self.rows.chunks():
            X, _, _ = self.rows.take(index)
            features, _, _, weights = self.batch(index)
            features = features.view(len(bases), len(X), basis.size)
            sites, _, _ = self.batch_sites(index, state)
            loss = loss + (weights * sites.loss).sum().double()
            kept.append([weights[:, None] * part for part in (sites.precision, sites.linear)])
            derivatives = (part.chunk(len(bases), 1) for part in (sites.gradient, sites.curvature))
            groups = zip(bases, features, totals, *derivatives, *moments, strict=True)
            for one, A, total, gradient, curvature, mean, covariances in groups:
                m, p = one.n_projected, one.size
                A, eye = A[:, :p], torch.eye(p, dtype=X.dtype, device=A.device)
                adjoint = -(gradient @ mean[:, :p].to(A.dtype))
                for h, S in zip(curvature.T, covariances[:, :p, :p].to(A.dtype), strict=True):
                    adjoint -= (h[:, None] * A) @ S
                by_residual = -0.5 * curvature.sum(1)
                # The squares of projected features are subtracted from the residual variance.
                adjoint[:, :m] -= 2 * by_residual[:, None] * A[:, :m]
                adjoint *= weights[:, None]
                add_gram(total[:p, :p], A, adjoint)
                adjoints = adjoint.to(X.dtype), eye, (weights * by_residual).to(X.dtype)
                parts = one.pull_back(X, *adjoints)
                by_theta, by_Z = by_theta + parts[0], by_Z + parts[1]
        loss, totals, by_theta, by_Z = self.rows.sum(loss, totals, by_theta, by_Z)
        for one, total in zip(bases, totals, strict=True):
            parts = one.pull_back_projection(mirror(total))
            by_theta, by_Z = by_theta + parts[0], by_Z + parts[1]
        gradients = {"theta": by_theta, "Z": by_Z}
        value = (-loss - self._kl(state)).item()
        return value, gradients, [torch.cat(part) for part in zip(*kept, strict=True)]


class ElboLearning(Stage):
    """Maximize the ELBO of the best posterior by rounds of L-BFGS-B.

    Each evaluation starts from the sites of the best one so far, at the new hyperparameters, and
    takes natural-gradient sweeps until these gain little.

    The last step is the first that gains less than a tenth of ``tol``, in nats per row. Where
    ``every_row`` says that every row is an inducing point that stays, and no site has a negative
    precision, the posterior of an evaluation is that of the latent values, see `LatentAscent`.
    ``dtype`` is that of products of features; by default that of the rows, in which features are
    computed.

    Source: Adam, Chang, Khan and Solin (2021), Dual parameterization of sparse variational Gaussian
    processes, for sites that are kept while hyperparameters change.
    """

    def __init__(self, likelihood, kernels, rows, jitter, free, tol, every_row=False, dtype=None):
        self.likelihood, self.kernels, self.jitter = likelihood, kernels, jitter
        self.rows = rows.gathered() if every_row else rows
        self._values = LatentRows(self.rows) if every_row else None
        self._dtype = dtype or rows.dtype
        self.free, self._learns_noise = free, "noise" in free.names
        self._min_gain = _MIN_GAIN * tol * (rows.tolerance_scale + _EXTRA_ROWS)

    def init(self, start):
        """Return the state with the sites at the prior, or at the posterior of a start."""
        theta, Z, noise = (start[name] for name in ("theta", "Z", "noise"))
        ascent = self._whitened(theta, Z, noise)
        sites = ascent.sites(ascent.init(start.get("mean"), start.get("root"), noise))
        return LearningState(theta=theta, Z=Z, noise=noise, precision=sites[0], linear=sites[1])

    def sites(self, state):
        """Return precisions and linear terms of the sites, (n, c) each, weighted."""
        return state.precision, state.linear

    def _ascent(self, theta, Z, noise):
        if self._values is None:
            return self._whitened(theta, Z, noise)
        return LatentAscent(self.likelihood.at(noise), self.kernels, theta, self._values)

    def _whitened(self, theta, Z, noise):
        basis = whitened_basis(self.kernels, theta, Z, self.jitter)
        return DifferentiableAscent(self.likelihood.at(noise), basis, self.rows, self._dtype)

    def _converge(self, ascent, state, best=math.nan):
        """Return the converged posterior at the basis of an ascent, and its ELBO."""
        posterior = ascent.posterior_of(state.precision, state.linear)
        for _ in range(_MAX_SWEEPS):
            before = ascent.natural_sweep(posterior)
            value = ascent.elbo(posterior)
            little = _MIN_GAIN_OF_SWEEP * self._min_gain
            if math.isfinite(best):
                little = max(little, _SHARE_OF_DISTANCE * abs(value - best))
            if value - before < little:
                break
        return posterior, value

    def best_theta(self, thetas, state):
        """Return the theta of highest ELBO; sweeps start from a state, then from the best."""
        best = -math.inf, None, state
        for theta in thetas:
            ascent = self._ascent(theta, state.Z, state.noise)
            posterior, value = self._converge(ascent, best[2], best[0])
            if value > best[0]:
                precision, linear = ascent.sites(posterior)
                best = value, theta, replace(state, precision=precision, linear=linear)
        return best[1]

    def step(self, state):
        """Take one round; the objective is the ELBO after it, plus the log prior."""
        best, best_posterior = -math.inf, None

        def value_and_gradients(parts):
            nonlocal best, best_posterior
            ascent = self._ascent(**parts)
            prior = self.free.log_prior(parts["theta"]).item()
            posterior, _ = self._converge(ascent, state, best - prior)
            value, gradients, sites = ascent.value_and_gradient(posterior)
            if self._learns_noise:
                gradients["noise"] = ascent.noise_gradient(
                    posterior, self.likelihood, parts["noise"]
                )
            value += prior
            if value > best:
                best = value
                state.precision, state.linear = sites
                best_posterior = posterior
            return value, self.free.with_prior(gradients, parts["theta"])

        state.ended = self.free.maximize(value_and_gradients, state, self._min_gain)
        if self._values is not None:
            sites = (part.to(self._dtype) for part in (state.precision, state.linear))
            best_posterior = self._whitened(**state.parameters()).posterior_of(*sites)
        state.mean, state.root = best_posterior.mean, best_posterior.root

    def converged(self, state):
        return state.ended
