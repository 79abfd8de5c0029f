"""Short length scales of one feature or two, where the labels of a classifier call for them."""

import math

import torch

from .._csr import CSRRows
from .._linalg import cholesky
from .._objectives import log_evidence
from .._torch_kernels import theta_bounds, torch_kernel
from .initialization import (
    free_constants,
    lengths_by_feature,
    log_density_of_frequencies,
    scaled_lengths,
)

_ROWS, _MAX_SEARCHES = 500, 3  # of which short length scales are tried; and how often
_LONG = 4.0  # factor of the initial length scales of features that explain nothing yet
# In standard deviations: a wave with three periods in six of them needs .5, one with five .25.
_SHORT_LENGTHS = 0.5, 0.25
_N_PAIRED = 30  # features of which pairs are tried
_MIN_GAIN = 3.0  # of short length scales, in nats
# Share of the log density of the class frequencies. With a higher objective, nothing is missing.
# Where the classes of dermatology are told apart, 35 nats more for six of them have .11 instead of
# .07 on other rows.
_EXPLAINED = 0.5
_MIN_PRECISION = 1e-6  # of sites
_JITTER = 1e-10


def with_short_lengths(learning, state, sites_of, sparse, run):
    """Return a learned state, or a better one in which single features have short length scales.

    Where one or two of several features have an effect that varies quickly, no common length scale
    explains it: at short ones, no row is near another. Learning then ends without the effect. At
    its end, the sites tell of it.

    ``learning`` is the stage, ``sites_of`` takes its state and returns precisions and linear terms
    (n, c), and ``run`` takes a round or two from a state. A state is better if its objective is, by
    three nats. Nothing is tried where most labels are explained already, see `_EXPLAINED`.
    """
    rows, kernel, scale = learning.rows, sparse.kernel, sparse.problem.scale
    d, bounds = rows.X.shape[1], theta_bounds(kernel, rows.device)
    places = torch.as_tensor(lengths_by_feature(kernel, d), device=rows.device)
    is_explained = state.objective > _EXPLAINED * log_density_of_frequencies(rows)[0].item()
    if is_explained or d == 1 or not len(places) or isinstance(rows.X, CSRRows):
        return state
    index = torch.as_tensor(rows.spaced(_ROWS), device=rows.device)
    X, constants = rows.points(index), state.theta.new_tensor(free_constants(kernel)) > 0
    initial = state.theta.new_tensor(scaled_lengths(kernel, _LONG))
    for _ in range(_MAX_SEARCHES):
        parts = (part.double()[index] for part in rows.collect(*sites_of(state)))
        evidence = SiteEvidence(torch_kernel(kernel), X, *parts)
        # A kernel that explains nothing has vanished, and has to come back.
        bases = state.theta, torch.where(constants, initial.maximum(state.theta), initial)
        theta = evidence.shortened(bases, places, scale)
        if theta is None:
            break
        tried = learning.init(state.parameters() | {"theta": theta.clamp(*bounds.T)})
        run(tried)
        if tried.objective < state.objective + _MIN_GAIN:
            break
        state = tried
    return state


class SiteEvidence:
    r"""Log evidence of the Gaussian sites of some rows X (n, d), summed over the latents.

    With sites of precisions w and linear terms, (n, c) each, it is that of a regression,
    :math:`\log N(\tilde y; 0, K + W^{-1})`, whose targets are the sites' means.
    """

    def __init__(self, kernel, X, precision, linear):
        self._kernel, self._X = kernel, X
        precision = precision.clamp_min(_MIN_PRECISION)
        # Rows are scaled to similar variances, since the jitter is relative to their mean.
        self._variances, self._scales = 1 / precision.T, (1 + 1 / precision.T).rsqrt()
        self._targets = self._scales * (linear / precision).T

    def shortened(self, bases, places, scale):
        r"""Return one of some theta with one or two length scales shortened, or None.

        Its evidence is higher than that of the first of the ``bases`` by three nats. ``places`` are
        those of `lengths_by_feature`, and ``scale`` (d,) has the features' standard deviations.

        The derivative of the evidence in the share :math:`\epsilon` of :math:`K \circ E_j`, the
        covariance of a function that varies with feature j too, tells which feature is tried;
        :math:`E_j` is a squared exponential. A pair, with :math:`E_j \circ E_k`, is tried if no
        feature alone has evidence enough.
        """
        derivatives = [self._derivatives(theta) for theta in bases]
        least = self.value(bases[0]) + _MIN_GAIN
        for size in (1, 2):
            best = least, None
            for lengths in (share * scale for share in _SHORT_LENGTHS):
                for theta, weighted in zip(bases, derivatives, strict=True):
                    missing = (theta[places] > lengths.log()).any(0).nonzero()[:, 0]
                    if len(missing) < size:
                        continue
                    group = self._highest(weighted, lengths, missing, size)
                    shorter, at = theta.clone(), places[:, group]
                    shorter[at] = shorter[at].minimum(lengths[group].log())
                    best = max(best, (self.value(shorter), shorter), key=lambda each: each[0])
            if best[1] is not None:
                return best[1]
        return None

    def value(self, theta):
        """Return the log evidence, nats."""
        covs = self._covariances(theta)
        chol = cholesky(covs, "covariance of the sites", jitter=_JITTER)
        half = torch.linalg.solve_triangular(chol, self._targets[..., None], upper=False)
        log_det = 2 * (chol.diagonal(dim1=1, dim2=2) / self._scales).log().sum()
        size = self._targets.numel() * math.log(2 * math.pi)
        return -0.5 * (half.square().sum() + log_det + size).item()

    def _covariances(self, theta):
        """Return the covariances (c, n, n) of the scaled targets."""
        K = self._kernel(self._X, self._X, theta)
        noisy = K + torch.diag_embed(self._variances)
        return self._scales[:, :, None] * noisy * self._scales[:, None]

    def _derivatives(self, theta):
        """Return K times the derivatives of the evidence in its entries, (n, n)."""
        by_K = 0.0
        covs = self._covariances(theta)
        for cov, targets, scale in zip(covs, self._targets, self._scales, strict=True):
            by_cov = log_evidence(cov, targets[:, None], _JITTER)[1]
            by_K = by_K + scale[:, None] * by_cov * scale
        return by_K * self._kernel(self._X, self._X, theta)

    def _highest(self, weighted, lengths, features, size):
        """Return the feature, or the pair, of the highest derivative, (size,)."""

        def cov(j):
            x = self._X[:, j] / lengths[j]
            return (-0.5 * (x[:, None] - x).square()).exp()

        derivatives = torch.stack([(weighted * cov(j)).sum() for j in features])
        order = features[derivatives.argsort(descending=True)]
        if size == 1:
            return order[:1]
        covs = torch.stack([cov(j).flatten() for j in order[:_N_PAIRED]])
        derivatives = (covs * weighted.flatten()) @ covs.T
        is_pair = torch.ones_like(derivatives).triu(1) > 0
        best = derivatives.where(is_pair, -math.inf).argmax().item()
        return order[list(divmod(best, len(covs)))]
