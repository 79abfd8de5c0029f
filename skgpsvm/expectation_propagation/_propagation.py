"""Expectation propagation on the inducing values: sites, evidence and its gradient."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .._fitting import SparseState
from .._linalg import add_gram, mirror, root_norms, weight_moments
from .._posteriors import WhitenedBasis
from .._transfers import to_device
from ._tilted import SiteUpdate, TiltedMoments, ep_updates, log_likelihood

# A move that undoes more than this share of the last one lowers the damping by this factor.
_UNDONE, _DAMPING_FACTOR, _MIN_DAMPING = 0.5, 0.7, 0.05
_MIN_RATIO = 1e-9  # of the posterior's variance to that without a row, against rounding
_MAX_SHARE = 0.5  # of a posterior's precision that is of a single site, in `first_state`


@dataclass(kw_only=True)
class EPState(SparseState):
    """Hyperparameters, sites and posterior of expectation propagation; the probit has no noise."""

    # precision, shift (n,): natural parameters of the sites, one site a row
    precision: torch.Tensor
    shift: torch.Tensor
    site_gram: torch.Tensor  # (p, p): sum of the sites' precision matrices
    linear: torch.Tensor  # (1, p): linear natural parameter of the posterior
    last_move: torch.Tensor  # (2 n,): the last update less the sites before it
    damping: float = 1.0  # share of the way to an update that the sites move
    change: float = math.inf  # relative change of the posterior mean in the last update

    def sites(self):
        """Return the natural parameters of the sites by name."""
        return {"precision": self.precision, "shift": self.shift}


class _Marginals(NamedTuple):
    """Posterior moments of the feature combinations of rows, and residual variances, (n,)."""

    mean: torch.Tensor
    var: torch.Tensor
    residual: torch.Tensor


class Propagation:
    r"""Expectation propagation for probit labels under the FITC prior, in whitened coordinates.

    The likelihood of a row depends on :math:`h_i = a_i^\top w` alone. It is :math:`\Phi(y_i h_i /
    \sqrt{1 + \delta_i})`, with :math:`\delta_i` the residual variance of :class:`WhitenedBasis`.
    The site is :math:`\exp(-\tilde\nu_i h_i^2 / 2 + \tilde\mu_i h_i)`. All sites are updated at
    once.

    Labels have the codes 0 and 1. A weight of at least one counts as so many copies of the row,
    each with its own site; a smaller weight is a power of the row's likelihood. The prior is
    N(0, I), unless natural parameters (p, p) and (p,) are given: a stream passes an earlier
    posterior.

    Source: Hernandez-Lobato and Hernandez-Lobato (2016), scalable expectation propagation, eqs. 14
    to 29, with the corrections of (20), (23) and (29). The site parameters and other numbers of a
    row are float64 whatever the dtype of the features.
    """

    def __init__(self, kernel, rows, jitter=1e-6, prior=None):
        self.kernel, self.rows, self.jitter, self._prior = kernel, rows, jitter, prior
        weights = rows.weights.double()
        self._copies, self._signs = weights.clamp_min(1), 2.0 * rows.targets.double() - 1
        self._n_copies = self._copies.sum()
        self._power = weights.clamp_max(1) if (weights < 1).any() else None
        self._basis_parameters, self._basis, self._passes = None, None, None

    def init(self, theta, Z):
        """Return the state without sites, whose posterior is the prior."""
        options = {"dtype": torch.float64, "device": self.rows.device}
        p = self._basis_at(theta, Z).size
        sites, site_gram = torch.zeros(2, len(self.rows), **options), torch.zeros(p, p, **options)
        linear = (site_gram.new_zeros(p) if self._prior is None else self._prior[1])[None]
        mean, root = self._posterior_moments(site_gram, linear)
        return EPState(
            theta=theta,
            Z=Z,
            noise=theta.new_zeros(0),
            precision=sites[0],
            shift=sites[1],
            site_gram=site_gram,
            linear=linear,
            mean=mean,
            root=root,
            last_move=sites.new_zeros(2 * len(self.rows)),
        )

    def first_state(self, start):
        """Return the state with a start's sites, or those of its posterior, or without sites.

        Those of a posterior are found by two updates of each row with the posterior held. The
        cavities of the first are the posterior itself, which includes the row's own site. The
        second removes the site that the first found, unless that has more than half of the
        posterior's precision. The sites are close to converged where most rows are the same.
        """
        state = self.init(start["theta"], start["Z"])
        if "precision" in start:
            state.precision, state.shift = start["precision"], start["shift"]
        elif "mean" in start:
            state.mean, state.root = start["mean"], start["root"]
            marginals = self.marginals(state)
            first = self._updated(state, marginals)
            is_part = first.precision * marginals.var < _MAX_SHARE
            state.precision, state.shift = first.precision * is_part, first.shift * is_part
            second = self._updated(state, marginals)
            state.precision = torch.where(is_part, second.precision, first.precision)
            state.shift = torch.where(is_part, second.shift, first.shift)
        else:
            return state
        self.refresh(state)
        return state

    def basis(self, state):
        """Return the features at a state; they are computed anew when theta or Z change."""
        return self._basis_at(state.theta, state.Z)

    def _basis_at(self, theta, Z):
        parameters = theta, Z
        known = self._basis_parameters
        if known is None or not all(map(torch.equal, parameters, known)):
            self._basis = self.make_basis(theta, Z)
            self._passes = self.rows.passes(self._basis)
            self._basis_parameters = parameters
        return self._basis

    def make_basis(self, theta, Z):
        """Return new features, differentiable in ``theta`` and ``Z``."""
        return WhitenedBasis(self.kernel, theta, Z, self.jitter)

    def _chunks(self, state):
        """Yield chunks of all rows: their slice, X, copies, and features with residuals."""
        self.basis(state)
        start = 0
        for X, _, _, A, residual in self._passes():
            index = slice(start, start + len(X))
            start = index.stop
            yield index, X, self._copies[index], A, residual.double()

    def _powers(self, index):
        return None if self._power is None else self._power[index]

    def refresh(self, state):
        """Recompute the posterior of a state from its sites, theta and Z."""
        state.site_gram, linear = self._sums(state, state.precision, state.shift)
        state.linear = linear[None] if self._prior is None else (self._prior[1] + linear)[None]
        state.mean, state.root = self._posterior_moments(state.site_gram, state.linear)

    def _sums(self, state, by_cov, by_mean):
        """Return sums over rows of ``by_cov * outer(a, a)``, (p, p), and ``by_mean * a``, (p,)."""
        p = self.basis(state).size
        gram = torch.zeros(p, p, dtype=torch.float64, device=self.rows.device)
        linear = gram.new_zeros(p)
        for index, _, copies, A, _ in self._chunks(state):
            scaled = (copies * by_cov[index]).to(A.dtype)[:, None] * A
            add_gram(gram, A, scaled)
            linear += (copies * by_mean[index]).to(A.dtype) @ A
        return self.rows.sum(mirror(gram), linear)

    def _posterior_moments(self, site_gram, linear):
        """Return mean and root of the posterior from the sums over all sites."""
        eye = torch.eye(len(site_gram), dtype=site_gram.dtype, device=site_gram.device)
        prior = eye if self._prior is None else self._prior[0]
        return weight_moments((prior + site_gram)[None], linear)

    def site_update(self, state):
        """Return the `SiteUpdate` of all rows; the state is not changed."""
        return self._updated(state, self.marginals(state))

    def left_out_probits(self, state):
        """Return the probits (n,) of label 1 at rows under the posterior without their sites.

        The weights that are left out are ``left_out_weights`` of the rows.
        """
        mean, var, residual = self.marginals(state)
        copies = self.rows.left_out_weights.double().clamp_min(1)
        precision, shift = copies * state.precision, copies * state.shift
        var_ratio = (1 - precision * var).clamp_min(_MIN_RATIO)
        left_mean = mean + var * (precision * mean - shift) / var_ratio
        return left_mean / (1 + residual + var / var_ratio).sqrt()

    def marginals(self, state):
        """Return the `_Marginals` of all rows under the posterior of a state."""
        mean, root, parts = state.mean[0], state.root[0], []
        for _, _, _, A, residual in self._chunks(state):
            var = root_norms(A, root.to(A.dtype))
            parts.append(((A @ mean.to(A.dtype)).double(), var.double(), residual))
        return _Marginals(*map(torch.cat, zip(*parts, strict=True)))

    def _updated(self, state, marginals):
        """Return the `SiteUpdate` of the sites of a state, given the marginals of the rows."""
        parts = []
        for index in self.rows.chunks():
            given = *marginals, state.precision, state.shift, self._signs
            parts.append(ep_updates(*(part[index] for part in given), self._powers(index)))
        return SiteUpdate(*map(torch.cat, zip(*parts, strict=True)))

    def step_sites(self, state, update):
        """Move the sites of a state towards an update, less far if successive moves turn back."""
        move = torch.cat([update.precision - state.precision, update.shift - state.shift])
        along, size = self.rows.sum(move @ state.last_move, state.last_move @ state.last_move)
        if along < -_UNDONE * size:
            state.damping = max(_DAMPING_FACTOR * state.damping, _MIN_DAMPING)
        state.precision = torch.lerp(state.precision, update.precision, state.damping)
        state.shift = torch.lerp(state.shift, update.shift, state.damping)
        state.last_move = move

    def minibatch(self, state, index, old, basis, n_batches):
        """Update the sites of a batch of rows, and the posterior with them.

        Features of the rows' current sites are those of ``old``, and features of their new sites
        those of ``basis``. The sites of the state are changed in place, and its posterior is made
        anew. Where ranks share the rows, each has its own part of the batch. The sites of all parts
        change the posterior; what is returned is of the rank's part alone.

        The results are the rows' terms of the log evidence, and a function of a basis. It returns
        an estimate, differentiable in the basis, of the part of the log evidence that depends on
        theta and Z, with the cavities held. Source: (6), in whitened coordinates.
        """
        X, _, _ = self.rows.take(index)
        index = to_device(index, X.device)
        y, copies, power = self._signs[index], self._copies[index], self._powers(index)
        A, residual = (part.double() for part in basis(X))
        before = A if old is basis else old(X)[0].double()
        mean, root = state.mean[0], state.root[0]
        nu, mu = state.precision[index], state.shift[index]
        half_before, half = before @ root, A @ root
        cross = (half_before * half).sum(1)
        var_ratio = 1 - nu * half_before.square().sum(1)  # of posterior to cavity
        cavity_var = half.square().sum(1) + nu * cross.square() / var_ratio
        cavity_mean = A @ mean + cross * (nu * (before @ mean) - mu) / var_ratio
        tilted = TiltedMoments(cavity_mean, cavity_var, residual, y, power)
        new_nu = torch.lerp(nu, tilted.precision, state.damping)
        new_mu = torch.lerp(mu, tilted.shift, state.damping)
        gram, linear = self.rows.sum(
            (A.T * (copies * new_nu)) @ A - (before.T * (copies * nu)) @ before,
            (copies * new_mu) @ A - (copies * mu) @ before,
        )
        state.site_gram, state.linear = state.site_gram + gram, state.linear + linear
        state.precision[index], state.shift[index] = new_nu, new_mu
        state.mean, state.root = self._posterior_moments(state.site_gram, state.linear)
        mean, root = state.mean[0], state.root[0]
        cov_A = A @ root @ root.T
        var, center = (cov_A * A).sum(1), A @ mean
        log_sites = ep_updates(center, var, residual, new_nu, new_mu, y, power).log_site
        var_ratio = 1 - new_nu * var
        var_factor, mean_factor = new_nu / var_ratio, (new_nu * center - new_mu) / var_ratio
        # A rank with fewer rows than minibatches has no row in some of these.
        n_filled = max(min(n_batches, len(self.rows)), 1)
        scale = n_batches / n_filled * self._n_copies / copies.sum().clamp_min(1)

        def surrogate(basis):
            A, residual = (part.double() for part in basis(X))
            cov = (A * cov_A).sum(1)
            cavity_mean = A @ mean + mean_factor * cov
            cavity_var = (A @ root).square().sum(1) + var_factor * cov.square()
            return scale * (copies @ log_likelihood(cavity_mean, cavity_var, residual, y, power))

        return copies @ log_sites, surrogate

    def evidence(self, state, update):
        """Return the log evidence at a state in nats, given the `site_update` there."""
        (log_sites,) = self.rows.sum(self._copies @ update.log_site)
        return self.log_normalizer(state) + log_sites.item()

    def log_normalizer(self, state):
        """Return the log evidence without the terms of the rows, a float."""
        value = _log_normalizer(state.mean, state.root, state.linear)
        if self._prior:
            precision, linear = (part[None] for part in self._prior)
            value -= _log_normalizer(*weight_moments(precision, linear), linear)
        return value.item()

    def gradient(self, state, update, approximate=False):
        r"""Return the derivatives of the evidence in theta and Z.

        The parameters of all sites are held, and the prior is N(0, I). Write :math:`\theta_i,
        \psi_i` for the derivatives of a site's log scale in mean and variance of :math:`h_i`,
        :math:`A = \sum \psi_i a_i a_i^\top` and :math:`p = \Sigma \sum \theta_i a_i`. The
        derivatives in the features are

        .. math:: -\tilde\nu_i H a_i + \tilde\mu_i (\mu + p) + 2 \psi_i \Sigma a_i + \theta_i \mu,
            \qquad H = \Sigma + \mu\mu^\top + 2 \Sigma A \Sigma + p\mu^\top + \mu p^\top,

        and those in the residual variances are added.

        The approximate derivatives, eq. 4 of the source, hold the posterior and all cavities of
        the inducing values, so that only prior and likelihoods move. With :math:`\alpha_i,
        \zeta_i` the `SiteUpdate`'s ``cavity_grad`` and ``cavity_weight``, those in the features are
        :math:`r_i = \alpha_i \mu + \zeta_i \Sigma a_i`, and those in :math:`K_{zz}` have
        :math:`-\frac12 L^{-\top} (I - \Sigma - \mu\mu^\top + \sum a_i r_i^\top) L^{-1}` more, made
        symmetric. Both agree at converged sites.
        """
        basis, root, mean = self.basis(state), state.root[0], state.mean[0]
        cov, eye = root @ root.T, torch.eye(len(root)).to(root)
        second_moment = cov + torch.outer(mean, mean)
        # The cross products of features and adjoints that `pull_back_projection` takes, first
        # without those of the residual variances.
        if approximate:
            by_cov, by_mean = update.cavity_weight, update.cavity_grad
            gram, linear = self._sums(state, by_cov, by_mean)
            cross = gram @ cov + torch.outer(linear, mean)
            cross = cross + cross.T + eye - second_moment
        else:
            by_cov, by_mean = 2 * update.grad_var, update.grad_mean
            gram, linear = self._sums(state, by_cov, by_mean)
            p = cov @ linear
            H = second_moment + cov @ gram @ cov + torch.outer(p, mean) + torch.outer(mean, p)
            cross = gram @ cov + torch.outer(linear, mean) - state.site_gram @ H
            cross = cross + torch.outer(state.linear[0], mean + p)
        m = basis.n_projected
        residual_gram = root.new_zeros(m, m)
        grad_theta, grad_Z = torch.zeros_like(state.theta), torch.zeros_like(state.Z)
        for index, X, copies, A, _ in self._chunks(state):
            wide = A.double()
            grad = (by_cov[index, None] * wide) @ cov + torch.outer(by_mean[index], mean)
            if not approximate:
                grad -= (state.precision[index, None] * wide) @ H
                grad += torch.outer(state.shift[index], mean + p)
            projected = wide[:, :m]
            by_residual = 2 * update.grad_residual[index, None] * projected
            grad[:, :m] -= by_residual
            add_gram(residual_gram, projected, copies[:, None] * by_residual)
            grad_residual = (copies * update.grad_residual[index]).to(A.dtype)
            grad = (copies[:, None] * grad).to(A.dtype)
            parts = basis.pull_back(X, grad, eye.to(A.dtype), grad_residual)
            grad_theta, grad_Z = grad_theta + parts[0], grad_Z + parts[1]
        residual_gram, grad_theta, grad_Z = self.rows.sum(mirror(residual_gram), grad_theta, grad_Z)
        parts = basis.pull_back_projection(cross[:m, :m] - residual_gram)
        return {"theta": grad_theta + parts[0], "Z": grad_Z + parts[1]}


def _log_normalizer(mean, root, linear):
    """Return the log normalizer of a Gaussian, up to a constant.

    It is given by its moments and its linear natural parameter.
    """
    return root.diagonal(dim1=1, dim2=2).log().sum() + 0.5 * (mean * linear).sum()
