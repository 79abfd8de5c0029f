"""What the relevance vector machines share: dictionary, length scales, fitted attributes."""

import math
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF

from .._distributed import refuse_ranks
from .._hyperparameters.default_kernels import feature_scales
from .._hyperparameters.initialization import median_scales, with_lengths
from .._latents import Latents
from .._torch_kernels import torch_kernel
from .._variational import VariationalGP
from ._relevance import BiasedDictionary, RelevanceSweeps

_CHOICE_ROWS, _CHOICE_SWEEPS = 500, 15
_FOLDS = 3
# Factors of the length scales that are compared, and then those about the best one. Not by the
# bound: with a precision for each function it always finds reasons for functions of one row.
_FACTORS = 2.0 ** np.arange(-4, 3)
_FINER_FACTORS = 2.0 ** np.array([-0.5, 0.5])


@dataclass
class RelevanceLatents(Latents):
    """Latents whose bases are a dictionary with a constant.

    Attributes
    ----------
    precisions : ndarray of shape (c, M), or None
        See `BiasedDictionary`.
    """

    precisions: np.ndarray | None = None

    def mean_bases(self, device):
        state = self.state(device)
        parts = (state[name] for name in ("theta", "bases", "precisions"))
        return BiasedDictionary(torch_kernel(self.kernel), *parts)


class RelevanceMachine(VariationalGP):
    """A dictionary of kernel functions at rows, and sweeps that leave most of them out."""

    warm_start = False  # no parameter: every fit is a new one
    _uses, _followed = {}, {}

    def _check_parameters(self):
        self._check_choice("covariance", ("full", "mean_field"))
        self._check_choice("optimizer", ("auto", None))
        self._check_number("n_basis", 1, integer=True)
        self._check_number("relevance_threshold", 0)
        self._check_number("max_iter", 1, integer=True)
        self._check_number("tol", 0)
        if self.relevance_threshold <= 1:
            raise ValueError(
                f"relevance_threshold={self.relevance_threshold!r} must be above 1, the precision "
                "that all functions start with."
            )
        self._check_kernel()
        refuse_ranks(self)

    def _fit_latents(self, run, name, X, weights, rows, start, seed, alone):
        random_state = np.random.RandomState(seed)
        scaler = feature_scales(X, weights)
        noise, noise_bounds = self._noise(rows)
        kernel, template = self._split_kernel(self._median_kernel(scaler, rows, random_state))
        points = np.empty((0, X.shape[1]))
        start = RelevanceLatents(kernel, points, noise, template=template)

        def sweeps(start, rows):
            """From a kernel: the sweeps and their state, at the functions of these rows."""
            functions = _functions(rows, self.n_basis, random_state)
            sweeps = RelevanceSweeps(
                self._make_likelihood(),
                torch_kernel(start.kernel),
                rows,
                mean_field=self.covariance == "mean_field",
                threshold=self.relevance_threshold,
                tol=self.tol,
                noise_bounds=noise_bounds,
            )
            given = start.state(rows.device)
            return sweeps, sweeps.init(given["theta"], given["noise"], functions)

        def unseen(start, folds, stage):
            """`RelevanceSweeps.likeliest_noise` of rows that fits have not seen."""
            moments = []
            for i, (given, held) in enumerate(folds):
                learning, state = sweeps(start, given)
                stage_of = f"{name}{stage}, fold {i}"
                run.run(stage_of, learning, state, _CHOICE_SWEEPS, must_converge=False)
                moments.append(learning.moments(state, held))
            return learning.likeliest_noise(state.noise, moments)

        learned = self.optimizer is not None and rows.n_rows >= _FOLDS
        if learned and _has_lengths(kernel):
            some = rows.subset(_CHOICE_ROWS, random_state, by_class=not noise)
            start = _scaled(unseen, start, some, random_state)
        learning, state = sweeps(start, rows)
        least_noise = torch.full_like(state.noise, -math.inf)
        if learned and noise_bounds is not None:
            n_folds = 1 if rows.n_rows > _CHOICE_ROWS else _FOLDS
            folds = islice(_folds(rows, random_state), n_folds)
            *_, least_noise = unseen(start, folds, "noise")

        def found(state):
            return start.at(replace(state, noise=state.noise.maximum(least_noise)))

        def attributes(state):
            return self._attributes([found(state)], [state.objective])

        stage_of = f"{name}posterior"
        curve = run.run(stage_of, learning, state, self.max_iter, attributes=attributes)
        return found(state), curve, state.objective

    def _noise(self, rows):
        """Logarithms to start from and, where they are learned, their bounds."""
        return (), None

    def _is_learned(self, name):
        return name.endswith(("length_scale", "noise_level"))

    def _median_kernel(self, scaler, rows, random_state):
        if self.kernel is not None:
            return clone(self.kernel)
        scales = median_scales(rows, scaler, random_state)
        return RBF(scales, np.outer(scales, (1e-3, 1e3)))

    def _latents_attributes(self, latents):
        (found,) = latents
        relevance = found.precisions[:, :-1]
        return {
            "kernel_": found.whole_kernel,
            "relevance_vectors_": found.bases,
            "relevance_": relevance[0] if len(relevance) == 1 else relevance,
            "_latents": list(latents),
        }


def _functions(rows, n_basis, random_state):
    """Different rows at which functions are, float64 (M, d)."""
    index = torch.arange(len(rows))
    if len(rows) > n_basis:
        index = np.sort(random_state.choice(len(rows), n_basis, replace=False))
    index = torch.as_tensor(index, device=rows.device)
    return torch.unique(rows.take(index)[0].double(), dim=0)


def _scaled(unseen, start, rows, random_state):
    """Return the start with the longest length scales that held-out rows do not clearly refuse.

    Their log density is within a standard error of the best: with few rows, or rows of a rare
    class, differences are mostly chance, and long length scales are the simpler model.
    """
    folds = list(_folds(rows, random_state))
    best, densities = 1.0, {}
    for factors in (_FACTORS, _FINER_FACTORS):
        for factor in best * factors:
            stage = f"length scales times {factor:.3g}"
            densities[factor], weights, _ = unseen(with_lengths(start, factor), folds, stage)
        most = max(densities.values(), key=lambda values: (weights @ values).item())
        best = max(
            factor for factor, values in densities.items() if _as_good(values, most, weights)
        )
    return with_lengths(start, best)


def _as_good(values, most, weights):
    """Whether weighted sums of rows' values differ by less than the difference's standard error."""
    lost = most - values
    gap = weights @ lost
    variance = weights @ (lost - gap / weights.sum()).square()
    return bool(gap <= variance.sqrt())


def _folds(rows, random_state):
    """Pairs of rows: without a fold of the units of weight, and the fold; classes are spread."""
    units = rows.units()
    order = random_state.permutation(len(units))
    if not rows.targets.is_floating_point():
        (codes,) = rows.collect(rows.targets)
        order = order[np.argsort(codes.cpu().numpy()[units[order]], kind="stable")]
    return (rows.divided(units, np.sort(order[i::_FOLDS])) for i in range(_FOLDS))


def _has_lengths(kernel):
    return any(h.name.endswith("length_scale") and not h.fixed for h in kernel.hyperparameters)
