"""Expectation propagation on the inducing values: sites, evidence and its gradient."""

import math
from dataclasses import dataclass

import torch

from .._linalg import add_gram, mirror, root_norms, weight_moments
from .._posteriors import WhitenedBasis

_TAIL = -50.0  # below which rho + z cancels
_REACH, _N_NODES = 8, 64  # of the quadrature, in standard deviations
_LEAST_VARIANCE = 1e-12


@dataclass
class SiteUpdate:
    """What expectation propagation finds at each row, (n,), given its sites and the posterior.

    Attributes
    ----------
    precision, shift : Tensor
        Natural parameters of the undamped new sites.
    log_site : Tensor
        Logarithms of the sites' scales: what rows add to the log evidence.
    left_out : Tensor
        Probits of label 1 under the model without the row.
    by_mean, by_var, by_residual : Tensor
        Derivatives of `log_site` in mean and variance of the row's feature combination, and in its
        residual variance. The first two vanish where the sites no longer change.
    """

    precision: torch.Tensor
    shift: torch.Tensor
    log_site: torch.Tensor
    left_out: torch.Tensor
    by_mean: torch.Tensor
    by_var: torch.Tensor
    by_residual: torch.Tensor


class Propagation:
    r"""Expectation propagation for probit labels under the FITC prior, in whitened coordinates.

    The likelihood of a row is that of :math:`h_i = a_i^\top w` alone, :math:`\Phi(y_i h_i /
    \sqrt{1 + \delta_i})`, with :math:`\delta_i` the residual variance of :class:`WhitenedBasis`;
    its site is :math:`\exp(-\tilde\nu_i h_i^2 / 2 + \tilde\mu_i h_i)`. All sites are updated at
    once.

    The state of a fit is a dict: ``theta``, ``Z``, the sites' ``precision`` and ``shift`` (n,),
    their sums ``site_gram`` (p, p) and ``linear`` (1, p), the posterior's ``mean`` (1, p) and
    ``root`` (1, p, p), and the relative ``change`` of the means in the last update.

    Parameters
    ----------
    kernel : TorchKernel
    rows : Rows
        With codes 0 and 1. A weight of at least one counts as so many copies of the row, each with
        its own site; a smaller one is the power that the row's likelihood is raised to.
    jitter : float
        See :class:`WhitenedBasis`.
    prior : tuple of Tensors, optional
        Natural parameters (p, p), (p,) that the sites add to; those of N(0, I) by default, those
        of an earlier posterior for a stream.

    Notes
    -----
    Source: Hernandez-Lobato and Hernandez-Lobato (2016), scalable expectation propagation, eqs. 14
    to 29, with the corrections of (20), (23) and (29). Scalars of rows are float64 whatever the
    dtype of the features.
    """

    def __init__(self, kernel, rows, jitter=1e-6, prior=None):
        self.kernel, self.rows, self.jitter, self._prior = kernel, rows, jitter, prior
        weights = rows.weights.double()
        self._copies = weights.clamp_min(1)
        self._all_copies = self._copies.sum()
        self._power = weights.clamp_max(1) if (weights < 1).any() else None
        self._at, self._basis, self._chunks = None, None, None

    def start(self, theta, Z):
        """The state without sites: the prior."""
        zeros = torch.zeros(2, len(self.rows), dtype=torch.float64, device=self.rows.device)
        state = {"theta": theta, "Z": Z, "precision": zeros[0], "shift": zeros[1]}
        self.refresh(state)
        return state | {"change": math.inf}

    def basis(self, state):
        """The features at a state; held until theta or Z change."""
        at = state["theta"], state["Z"]
        if self._at is None or not all(map(torch.equal, at, self._at)):
            self._basis = self.new_basis(state)
            self._chunks = self.rows.passes(self._basis)
            self._at = at
        return self._basis

    def new_basis(self, state):
        """The features at a state."""
        return WhitenedBasis(self.kernel, state["theta"], state["Z"], self.jitter)

    def _slices(self, state):
        """Chunks of rows with features, each with its slice of all rows."""
        self.basis(state)
        start = 0
        for X, y, _, A, residual in self._chunks():
            index = slice(start, start + len(X))
            start = index.stop
            yield index, X, 2.0 * y.double() - 1, self._copies[index], A, residual.double()

    def _powers(self, index):
        return None if self._power is None else self._power[index]

    def refresh(self, state):
        """Put the posterior that follows from sites, theta and Z into a state."""
        p = self.basis(state).size
        gram = torch.zeros(p, p, dtype=torch.float64, device=self.rows.device)
        linear = gram.new_zeros(p)
        for index, _, _, weights, A, _ in self._slices(state):
            scaled = (weights * state["precision"][index]).to(A.dtype)[:, None] * A
            add_gram(gram, A, scaled)
            linear += (weights * state["shift"][index]).to(A.dtype) @ A
        state["site_gram"], linear = self.rows.sum(mirror(gram), linear)
        state["linear"] = linear[None] if self._prior is None else (self._prior[1] + linear)[None]
        self._moments(state)

    def _moments(self, state):
        """Put the posterior that follows from the sums of all sites into a state."""
        prior = torch.eye(len(state["site_gram"])).to(state["site_gram"])
        prior = prior if self._prior is None else self._prior[0]
        precision = (prior + state["site_gram"])[None]
        state["mean"], state["root"] = weight_moments(precision, state["linear"])

    def visit(self, state):
        """The `SiteUpdate` of all rows at a state, which stays as it is."""
        mean, root = state["mean"][0], state["root"][0]
        found = []
        for index, _, y, _, A, residual in self._slices(state):
            var = root_norms(A, root.to(A.dtype)).double()
            sites = state["precision"][index], state["shift"][index]
            center = (A @ mean.to(A.dtype)).double()
            found.append(ep_updates(center, var, residual, *sites, y, self._powers(index)))
        parts = zip(*(vars(part).values() for part in found), strict=True)
        return SiteUpdate(*(torch.cat(part) for part in parts))

    def update(self, state, visit, damping):
        """Move the sites of a state by ``damping`` of the way to those of a visit."""
        state["precision"] = torch.lerp(state["precision"], visit.precision, damping)
        state["shift"] = torch.lerp(state["shift"], visit.shift, damping)

    def minibatch(self, state, index, old, basis, damping):
        """Update the sites of some rows one batch at a time, the sums of all sites with them.

        Parameters
        ----------
        state : dict
            Its ``precision`` and ``shift`` are changed in place; its posterior is made anew.
        index : Tensor of shape (b,)
        old, basis : WhitenedBasis
            The features that the rows' sites are on, and those that they are put on.
        damping : float

        Returns
        -------
        log_sites : float
            What the rows add to the log evidence.
        surrogate : callable
            Takes a basis; an estimate, differentiable in it, of the part of the log evidence that
            moves with theta and Z, cavities held. Source: (6), in whitened coordinates.
        """
        X, y, _ = self.rows.take(index)
        y, copies, power = 2.0 * y.double() - 1, self._copies[index], self._powers(index)
        A, residual = (part.double() for part in basis(X))
        before = A if old is basis else old(X)[0].double()
        mean, root = state["mean"][0], state["root"][0]
        nu, mu = state["precision"][index], state["shift"][index]
        half_before, half = before @ root, A @ root
        cross = (half_before * half).sum(1)
        kept = 1 - nu * half_before.square().sum(1)
        cavity_var = half.square().sum(1) + nu * cross.square() / kept
        cavity_mean = A @ mean + cross * (nu * (before @ mean) - mu) / kept
        match = TiltedMoments(cavity_mean, cavity_var, residual, y, power)
        new_nu, new_mu = (
            torch.lerp(nu, match.precision, damping),
            torch.lerp(mu, match.shift, damping),
        )
        state["site_gram"] = state["site_gram"] + (A.T * (copies * new_nu)) @ A
        state["site_gram"] -= (before.T * (copies * nu)) @ before
        state["linear"] = state["linear"] + (copies * new_mu) @ A - (copies * mu) @ before
        state["precision"][index], state["shift"][index] = new_nu, new_mu
        self._moments(state)
        mean, root = state["mean"][0], state["root"][0]
        spread = A @ root @ root.T
        var, center = (spread * A).sum(1), A @ mean
        log_sites = ep_updates(center, var, residual, new_nu, new_mu, y, power).log_site
        kept = 1 - new_nu * var
        gain, pull = new_nu / kept, (new_nu * center - new_mu) / kept
        scale = self._all_copies / copies.sum()

        def surrogate(basis):
            A, residual = (part.double() for part in basis(X))
            along = (A * spread).sum(1)
            cavity_mean = A @ mean + pull * along
            cavity_var = (A @ root).square().sum(1) + gain * along.square()
            return scale * (copies @ log_likelihood(cavity_mean, cavity_var, residual, y, power))

        return (copies @ log_sites).item(), surrogate

    def evidence(self, state, visit):
        """The logarithm of the evidence at a state, nats."""
        (log_sites,) = self.rows.sum(self._copies @ visit.log_site)
        return self.size(state) + log_sites.item()

    def size(self, state):
        """What the posterior, beside the sites' own scales, adds to the log evidence."""
        size = _log_normalizer(state["mean"], state["root"], state["linear"])
        if self._prior:
            precision, linear = (part[None] for part in self._prior)
            size -= _log_normalizer(*weight_moments(precision, linear), linear)
        return size.item()

    def gradient(self, state, visit):
        r"""Derivatives of the evidence in theta and Z, the scalars of all sites held.

        With :math:`\theta_i, \psi_i` the derivatives of a site's log scale in mean and variance of
        :math:`h_i`, :math:`A = \sum \psi_i a_i a_i^\top` and :math:`p = \Sigma \sum \theta_i a_i`,
        those in the features are

        .. math:: -\tilde\nu_i H a_i + \tilde\mu_i (\mu + p) + 2 \psi_i \Sigma a_i + \theta_i \mu,
            \qquad H = \Sigma + \mu\mu^\top + 2 \Sigma A \Sigma + p\mu^\top + \mu p^\top,

        and what the residual variances add.
        """
        basis, root, mean = self.basis(state), state["root"][0], state["mean"][0]
        gram = torch.zeros_like(root)
        linear = torch.zeros_like(mean)
        for index, _, _, weights, A, _ in self._slices(state):
            scaled = (weights * visit.by_var[index]).to(A.dtype)[:, None] * A
            add_gram(gram, A, scaled)
            linear += (weights * visit.by_mean[index]).to(A.dtype) @ A
        gram, linear = self.rows.sum(mirror(gram), linear)
        cov = root @ root.T
        moved = cov @ linear
        cross = torch.outer(moved, mean)
        second = cov + torch.outer(mean, mean) + 2 * cov @ gram @ cov + cross + cross.T
        total = torch.zeros_like(root)
        eye = torch.eye(len(root)).to(root)
        by_theta, by_Z = torch.zeros_like(state["theta"]), torch.zeros_like(state["Z"])
        for index, X, _, weights, A, _ in self._slices(state):
            nu, mu = state["precision"][index], state["shift"][index]
            wide = A.double()
            slope = -(nu[:, None] * wide) @ second
            slope += (2 * visit.by_var[index, None] * wide) @ cov
            slope += torch.outer(mu, mean + moved) + torch.outer(visit.by_mean[index], mean)
            projected = wide[:, : basis.n_projected]
            slope[:, : basis.n_projected] -= 2 * visit.by_residual[index, None] * projected
            slope *= weights[:, None]
            add_gram(total, wide, slope)
            adjoint = (weights * visit.by_residual[index]).to(A.dtype)
            parts = basis.pull_back(X, slope.to(A.dtype), eye.to(A.dtype), adjoint)
            by_theta, by_Z = by_theta + parts[0], by_Z + parts[1]
        parts = basis.pull_back_projection(mirror(total))
        return self.rows.sum(by_theta + parts[0], by_Z + parts[1])


def _log_normalizer(mean, root, linear):
    """Of a Gaussian of given moments and linear natural parameter, but for a constant."""
    return root.diagonal(dim1=1, dim2=2).log().sum() + 0.5 * (mean * linear).sum()


def ep_updates(mean, var, residual, precision, shift, y, power=None):
    """The `SiteUpdate` of rows.

    Parameters
    ----------
    mean, var : Tensor of shape (b,)
        Posterior moments of the feature combinations h.
    residual : Tensor of shape (b,)
    precision, shift : Tensor of shape (b,)
        Of the sites.
    y : Tensor of shape (b,)
        Labels, -1 or 1.
    power : Tensor of shape (b,), optional
        That likelihoods are raised to; one by default.
    """
    kept = 1 - precision * var
    cavity = (mean - shift * var) / kept, var / kept
    match = TiltedMoments(*cavity, residual, y, power)
    fit = shift.square() * var - 2 * shift * mean + precision * mean.square()
    by_mean = (match.slope + precision * mean - shift) / kept
    return SiteUpdate(
        precision=match.precision,
        shift=match.shift,
        log_site=match.log_z - 0.5 * kept.log() + 0.5 * fit / kept,
        left_out=match.probit,
        by_mean=by_mean,
        by_var=0.5 * (by_mean.square() + precision / kept - match.curvature / kept.square()),
        by_residual=match.by_residual,
    )


class TiltedMoments:
    """The sites that match the moments of labels under cavities, each (b,).

    Attributes
    ----------
    probit : Tensor
        Of label 1 under the cavity.
    log_z : Tensor
        Log of the expected likelihood.
    slope, curvature, by_residual : Tensor
        Its first derivative in the cavity's mean, minus the second, and the first in the residual
        variance.
    precision, shift : Tensor
        Natural parameters of the sites.
    """

    def __init__(self, mean, var, residual, y, power):
        total = 1 + residual + var
        self.probit = mean / total.sqrt()
        self.log_z = torch.special.log_ndtr(y * self.probit)
        ratio, fall = probit_ratios(y * self.probit)
        self.slope, self.curvature = y * ratio / total.sqrt(), fall / total
        self.by_residual = -0.5 * self.slope * mean / total
        if power is not None:
            self._raise_to(mean, var, residual, y, power)
        rest = 1 - self.curvature * var
        self.precision = self.curvature / rest
        self.shift = (self.slope + self.curvature * mean) / rest

    def _raise_to(self, mean, var, residual, y, power):
        var = var.clamp_min(_LEAST_VARIANCE)
        nodes, terms = _power_terms(mean, var, residual, y, power)
        weights = terms.softmax(0)
        center = (weights * nodes).sum(0)
        spread = (weights * (nodes - center).square()).sum(0)
        scale = (1 + residual).sqrt()
        ratio, _ = probit_ratios(y * nodes / scale)
        found = {
            "log_z": terms.logsumexp(0),
            "slope": (center - mean) / var,
            "curvature": (var - spread) / var.square(),
            "by_residual": -0.5 * power * y * (weights * ratio * nodes).sum(0) / scale**3,
        }
        for name, value in found.items():
            setattr(self, name, torch.where(power < 1, value, getattr(self, name)))


def log_likelihood(mean, var, residual, y, power):
    """Log of the expected likelihood of labels under h of given moments, (b,); differentiable.

    In closed form; by quadrature where the likelihood is raised to a power below one.
    """
    closed = torch.special.log_ndtr(y * mean / (1 + residual + var).sqrt())
    if power is None:
        return closed
    var = var.clamp_min(_LEAST_VARIANCE)
    raised = _power_terms(mean, var, residual, y, power)[1].logsumexp(0)
    return torch.where(power < 1, raised, closed)


def _power_terms(mean, var, residual, y, power):
    """Nodes h (k, b) and logs of the terms (k, b) whose sum is the expected power of a likelihood.

    The trapezoidal rule in t, where h is the width of the likelihood's step times sinh(t): as fine
    as that at the step, and wide where the Gaussian is. The terms are differentiable, nodes held.
    """
    with torch.no_grad():
        scale, std = (1 + residual).sqrt(), var.sqrt()
        total = 1 + residual + var
        ratio, _ = probit_ratios(y * mean / total.sqrt())
        tilted = mean + var * y * ratio / total.sqrt()
        low = torch.asinh((torch.minimum(mean, tilted) - _REACH * std) / scale)
        high = torch.asinh((torch.maximum(mean, tilted) + _REACH * std) / scale)
        share = torch.linspace(0, 1, _N_NODES, dtype=mean.dtype, device=mean.device)[:, None]
        t = low + (high - low) * share
        nodes = scale * torch.sinh(t)
        widths = (scale * torch.cosh(t) * (high - low) / (_N_NODES - 1)).log()
    density = -0.5 * ((nodes - mean).square() / var + (2 * math.pi * var).log())
    label = torch.special.log_ndtr(y * nodes / (1 + residual).sqrt())
    return nodes, power * label + density + widths


def probit_ratios(z):
    r"""The ratio :math:`\varrho = \varphi / \Phi` and :math:`\varrho (\varrho + z)`, for any z.

    Source: the scaled complementary error function, whose ratio does not underflow.
    """
    ratio = math.sqrt(2 / math.pi) / torch.special.erfcx(-z / math.sqrt(2))
    x = (-z).clamp_min(-_TAIL)
    tail = 1 / x - 2 / x**3 + 10 / x**5 - 74 / x**7 + 706 / x**9
    return ratio, ratio * torch.where(z < _TAIL, tail, ratio + z)
