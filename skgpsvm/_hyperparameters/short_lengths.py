"""Short length scales of one feature or two, where the labels of a classifier call for them."""

import math

import torch

from .._csr import CSRRows
from .._distributed import gather
from .._objectives import log_evidence
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
_ROWS, _DISTANCES = 500, 2**26
_MAX_SEARCHES, _ROUNDS = 3, 2  # each shortens those of one feature or two; rounds of their learning
_LONG = 4.0  # factor of the initial length scales of features that explain nothing yet
# Length scales to try, in standard deviations: three periods in six of them need .5, five .25.
_SHORT_LENGTHS = 0.5, 0.25
_N_PAIRED = 30  # features of which pairs are tried
_MIN_GAIN = 3.0  # of short length scales, in nats
# Share of the log density of the class frequencies: nothing is missing at a higher objective. On
# dermatology, six classes that hardly overlap, a search gains 35 nats of ELBO, but the log loss of
# other rows rises from .07 to .11.
_EXPLAINED = 0.5
_MIN_PRECISION = 1e-6  # of sites
_JITTER = 1e-10


def with_short_lengths(learning, state, kernel, problem, name):
    """Return a learned state, or a better one in which single features have short length scales.

    If labels vary quickly along one or two of several features, no length scale common to all
    features explains them: when all are short, no two rows are near each other. Learning then
    misses the effect, but the sites at its end still show it. A new state is returned if its
    objective is at least three nats higher. Nothing is tried where most labels are explained, see
    `_EXPLAINED`.

    ``learning`` is the stage, whose ``sites`` takes a state, ``kernel`` the initial one, and
    ``name`` that of the stage.
    """
    rows, scale = learning.rows, problem.scale
    d, bounds = rows.X.shape[1], theta_bounds(kernel, rows.device)
    places = torch.as_tensor(lengths_by_feature(kernel, d), device=rows.device)
    is_explained = state.objective > _EXPLAINED * log_density_of_frequencies(rows)[0].item()
    # A rank with few rows may have made them dense.
    is_sparse = any(gather(isinstance(rows.X, CSRRows)))
    if is_explained or d == 1 or not len(places) or is_sparse:
        return state
    n_rows = min(_ROWS, math.isqrt(_DISTANCES // d))
    index = torch.as_tensor(rows.spaced(n_rows), device=rows.device)
    X, long = rows.points(index), state.theta.new_tensor(scaled_lengths(kernel, _LONG))
    lengths, constants = (
        torch.as_tensor(of(kernel) > 0, device=rows.device) for of in (free_lengths, free_constants)
    )
    for j in range(_MAX_SEARCHES):
        sites = (part.double()[index] for part in rows.collect(*learning.sites(state)))
        # Learning shrinks the variance of a kernel that explains nothing: one base restores it.
        restored = torch.where(constants, state.theta.maximum(long), state.theta)
        bases = torch.stack([state.theta, torch.where(lengths, long, restored)])
        try:
            evidence = SiteEvidence(torch_kernel(kernel), X, *sites)
            theta = evidence.shortened(bases, places, scale, bounds[:, 0])
            if theta is None:
                break
            tried = learning.init(state.parameters() | {"theta": theta})
            stage = f"{name}, short length scales {j + 1}"
            problem.run_stage(stage, learning, tried, _ROUNDS, must_converge=False)
        except NotPositiveDefiniteError:  # the fit does not depend on what is only tried
            break
        if tried.objective < state.objective + _MIN_GAIN:
            break
        state = tried
    return state


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

    def shortened(self, bases, places, scale, low):
        r"""Return a base theta with one or two length scales shortened, or None.

        None is returned if no evidence is three nats above that of the first of the ``bases``
        (k, p). ``places`` are those of `lengths_by_feature`, ``scale`` (d,) has the standard
        deviations of the features, and ``low`` (p,) the lower bounds of theta.

        Adding :math:`\epsilon K \circ E_j` lets the function vary quickly with feature j too;
        :math:`E_j` is a squared exponential of it. The feature with the largest derivative of the
        evidence in :math:`\epsilon` is tried. A pair, with :math:`E_j \circ E_k`, is only tried if
        no single feature suffices.
        """
        values, gradients = zip(*map(self.value_and_gradient, bases), strict=True)
        gradients, pairs = torch.stack(gradients), []
        best = values[0] + _MIN_GAIN, None
        for lengths in (share * scale for share in _SHORT_LENGTHS):
            short = lengths.log().maximum(low[places])
            derivatives = torch.stack(
                [(gradients * self._cov(j, lengths)).sum((1, 2)) for j in range(len(scale))], 1
            )
            for theta, gradient, of_features in zip(bases, gradients, derivatives, strict=True):
                is_longer = (theta[places] > short).any(0)
                order = of_features.argsort(descending=True)
                order = order[is_longer[order]]
                if len(order):
                    best = self._better(best, theta, places, short, order[:1])
                if len(order) > 1:
                    pairs.append((theta, short, self._pair(gradient, lengths, order[:_N_PAIRED])))
        if best[1] is None:
            for theta, short, pair in pairs:
                best = self._better(best, theta, places, short, pair)
        return best[1]

    def value(self, theta):
        """Return the log evidence, nats."""
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta):
        """Return the log evidence, and its derivatives in the logarithms of K's entries, (n, n)."""
        K, value, by_K = self._kernel(self._X, self._X, theta), 0.0, 0.0
        sites = zip(self._variances, self._scales, self._targets, strict=True)
        for variances, scale, targets in sites:
            cov = scale[:, None] * (K + variances.diag()) * scale
            evidence, by_cov, _ = log_evidence(cov, targets[:, None], _JITTER)
            value = value + (evidence + scale.log().sum()).item()
            by_K = by_K + scale[:, None] * by_cov * scale
        return value, K * by_K

    def _better(self, best, theta, places, short, group):
        """Return the better pair of value and theta: the best, or with those of a group short."""
        shorter, at = theta.clone(), places[:, group]
        shorter[at] = shorter[at].minimum(short[:, group])
        return max(best, (self.value(shorter), shorter), key=lambda pair: pair[0])

    def _pair(self, gradient, lengths, features):
        """Return the pair of some features of the highest derivative, (2,)."""
        covs = torch.stack([self._cov(j, lengths).flatten() for j in features])
        derivatives = (covs * gradient.flatten()) @ covs.T
        is_pair = torch.ones_like(derivatives).triu(1) > 0
        best = derivatives.where(is_pair, -math.inf).argmax().item()
        return features[list(divmod(best, len(covs)))]

    def _cov(self, j, lengths):
        """Return the squared exponential of a feature, (n, n)."""
        x = self._X[:, j] / lengths[j]
        return (-0.5 * (x[:, None] - x).square()).exp()
