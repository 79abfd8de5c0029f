"""Short length scales of one feature or two, where labels or targets call for them."""

import math

import torch

from .._csr import CSRRows
from .._distributed import gather
from .._objectives import evidence_and_root, log_evidence
from .._torch_kernels import theta_bounds, torch_kernel
from ..exceptions import NotPositiveDefiniteError
from .initialization import (
    free_constants,
    free_lengths,
    lengths_by_feature,
    log_density_of_frequencies,
    scaled_lengths,
)

# Rows at which the evidence is computed, fewer with more features: numbers of all their distances.
N_ROWS, _DISTANCES = 500, 2**26
_MAX_SEARCHES, _ROUNDS = 3, 2  # each shortens those of one feature or two; rounds of their learning
_LONG = 4.0  # factor of the initial length scales of features that explain nothing yet
# Length scales to try, in standard deviations: three periods in six of them need .5, five .25.
SHORT_LENGTHS = 0.5, 0.25
_N_PAIRED = 30  # features of which pairs are tried
CLEAR_NATS = 3.0  # least gain of short length scales
# Share of the log density of the class frequencies: nothing is missing at a higher objective. On
# dermatology, six classes that hardly overlap, a search gains 35 nats of ELBO, but the log loss of
# other rows rises from .07 to .11. That of BayesianSVC would rise from .091 to .123 on breast.
_EXPLAINED = 0.5
_MIN_PRECISION = 1e-6  # of sites
_JITTER = 1e-10


def with_short_lengths(learning, state, kernel, problem, name):
    """Return a learned state, or a better one in which single features have short length scales.

    If labels vary quickly along one or two of several features, no length scale common to all
    features explains them: when all are short, no two rows are near each other. Learning then
    misses the effect, but the sites at its end still show it. A new state is returned if its
    objective is at least three nats higher. Nothing is tried if `explains_most` is true.

    ``learning`` is the stage, whose ``sites`` takes a state, ``kernel`` the initial one, and
    ``name`` that of the stage.
    """
    rows = learning.rows
    if explains_most(state.objective, rows):
        return state
    for j in range(_MAX_SEARCHES):
        theta = shortened(kernel, state.theta, rows, learning.sites(state), problem.scale)
        if theta is None:
            break
        try:
            tried = learning.init(state.parameters() | {"theta": theta})
            stage = f"{name}, short length scales {j + 1}"
            problem.run_stage(stage, learning, tried, _ROUNDS, must_converge=False)
        except NotPositiveDefiniteError:
            break
        if tried.objective < state.objective + CLEAR_NATS:
            break
        state = tried
    return state


def explains_most(objective, rows):
    """Return whether an objective, nats, shows that most labels are explained, see `_EXPLAINED`."""
    return objective > _EXPLAINED * log_density_of_frequencies(rows)[0].item()


def has_several_lengths(kernel, rows):
    """Return whether rows are dense, and a kernel has a length scale for each of several features.

    The answer is the same on all ranks, of which one with few rows may have made them dense.
    """
    d = rows.X.shape[1]
    has_lengths = d > 1 and len(lengths_by_feature(kernel, d)) > 0
    return has_lengths and not any(gather(isinstance(rows.X, CSRRows)))


def shortened(kernel, theta, rows, sites, scale, lengths=SHORT_LENGTHS):
    """Return theta with one or two length scales shortened, or None, see `SiteEvidence.shortened`.

    ``kernel`` is the initial one, ``sites`` are the precisions and linear terms of the rows,
    ``scale`` (d,) has the standard deviations of the features, and ``lengths`` are in units of
    them. None is returned too if `has_several_lengths` is false.
    """
    if not has_several_lengths(kernel, rows):
        return None
    d, bounds = rows.X.shape[1], theta_bounds(kernel, rows.device)
    places = torch.as_tensor(lengths_by_feature(kernel, d), device=rows.device)
    n_rows = min(N_ROWS, math.isqrt(_DISTANCES // d))
    index = torch.as_tensor(rows.spaced(n_rows), device=rows.device)
    sites = (part.double()[index] for part in rows.collect(*sites))
    evidence = SiteEvidence(torch_kernel(kernel), rows.points(index), *sites)
    is_length, is_constant = (
        torch.as_tensor(of(kernel) > 0, device=rows.device) for of in (free_lengths, free_constants)
    )
    # Learning shrinks the variance of a kernel that explains nothing: one base restores it.
    long = theta.new_tensor(scaled_lengths(kernel, _LONG))
    restored = torch.where(is_constant, theta.maximum(long), theta)
    bases = torch.stack([theta, torch.where(is_length, long, restored)])
    try:
        return evidence.shortened(bases, places, [share * scale for share in lengths], bounds[:, 0])
    except NotPositiveDefiniteError:  # the fit does not depend on what is only tried
        return None


class SiteEvidence:
    r"""Log evidence of a GP regression on the Gaussian sites of rows X (n, d).

    It is :math:`\log N(\tilde y; 0, K + W^{-1})`, summed over the latents, with the means
    :math:`\tilde y` and precisions w of the sites. The arguments are their precisions and linear
    terms, (n, c) each.
    """

    def __init__(self, kernel, X, precision, linear):
        self._kernel, self._X = kernel, X
        precision = precision.clamp_min(_MIN_PRECISION)
        # Rows are scaled to similar variances, since the jitter is relative to their mean.
        self._variances, self._scales = 1 / precision.T, (1 + 1 / precision.T).rsqrt()
        self._targets = self._scales * (linear / precision).T
        is_upper = torch.ones(len(X), len(X), device=X.device).triu(1) > 0
        self._upper = is_upper.nonzero(as_tuple=True)  # all pairs of rows

    def shortened(self, bases, places, lengths, low):
        r"""Return a base theta with one or two length scales shortened, or None.

        None is returned if no evidence is three nats above that of the first of the ``bases``
        (k, p). ``places`` are those of `lengths_by_feature`, ``lengths`` is a list of length
        scales (d,) to try, and ``low`` (p,) are the lower bounds of theta.

        Adding :math:`\epsilon K \circ E_j` lets the function vary quickly with feature j too;
        :math:`E_j` is a squared exponential of it. The feature with the largest derivative of the
        evidence in :math:`\epsilon` is tried. A pair, with :math:`E_j \circ E_k`, is only tried if
        no single feature suffices.
        """
        values, gradients = zip(*map(self.value_and_gradient, bases), strict=True)
        gradients, pairs = torch.stack([each[self._upper] for each in gradients]), []
        best = values[0] + CLEAR_NATS, None
        for tried in lengths:
            short = tried.log().maximum(low[places])
            covs = torch.stack([self._cov(j, tried) for j in range(len(tried))])
            derivatives = gradients @ covs.T
            for theta, gradient, of_features in zip(bases, gradients, derivatives, strict=True):
                is_longer = (theta[places] > short).any(0)
                order = of_features.argsort(descending=True)
                order = order[is_longer[order]]
                if len(order):
                    best = self._better(best, theta, places, short, order[:1])
                if len(order) > 1:
                    some = order[:_N_PAIRED]
                    pairs.append((theta, short, some[self._pair(gradient, covs[some])]))
        if best[1] is None:
            for theta, short, pair in pairs:
                best = self._better(best, theta, places, short, pair)
        return best[1]

    def value(self, theta):
        """Return the log evidence, nats."""
        evidences = [evidence_and_root(*given, _JITTER)[0] for given in self._given(theta)[1]]
        return (sum(evidences) + self._scales.log().sum()).item()

    def value_and_gradient(self, theta):
        """Return the log evidence, and its derivatives in the logarithms of K's entries, (n, n)."""
        value, by_K, (K, given) = self._scales.log().sum(), 0.0, self._given(theta)
        for scale, (cov, targets) in zip(self._scales, given, strict=True):
            evidence, by_cov, _ = log_evidence(cov, targets, _JITTER)
            value, by_K = value + evidence, by_K + scale[:, None] * by_cov * scale
        return value.item(), K * by_K

    def _given(self, theta):
        """Return K, and an iterator over scaled covariances (n, n) and targets (n, 1)."""
        K = self._kernel(self._X, self._X, theta)
        sites = zip(self._variances, self._scales, self._targets, strict=True)
        return K, (
            (scale[:, None] * (K + variances.diag()) * scale, targets[:, None])
            for variances, scale, targets in sites
        )

    def _better(self, best, theta, places, short, group):
        """Return the better pair of value and theta: the best, or with those of a group short."""
        shorter, at = theta.clone(), places[:, group]
        shorter[at] = shorter[at].minimum(short[:, group])
        return max(best, (self.value(shorter), shorter), key=lambda pair: pair[0])

    def _pair(self, gradient, covs):
        """Return the indices of the two of some covariances (k, pairs) of highest derivative."""
        derivatives = (covs * gradient) @ covs.T
        is_pair = torch.ones_like(derivatives).triu(1) > 0
        best = derivatives.where(is_pair, -math.inf).argmax().item()
        return list(divmod(best, len(covs)))

    def _cov(self, j, lengths):
        """Return the squared exponential of a feature of all pairs of rows."""
        x = self._X[:, j] / lengths[j]
        one, other = self._upper
        return (-0.5 * (x[one] - x[other]).square()).exp()
