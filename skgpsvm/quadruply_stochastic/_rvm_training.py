"""Fits of relevance vector machines."""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF

from .._calibration import Tempering
from .._fitted_models import WeightSpaceModel
from .._hyperparameters.initialization import free_lengths, median_scales, with_lengths
from .._parameters import ALWAYS, OtherThan, ParameterRules, where
from .._predictive import Summary
from .._problem import Fitted
from .._torch_kernels import theta_bounds
from .._validation import check_kernel
from ..solvers import QuadruplyStochastic, Sweeps
from ._relevance import BiasedDictionary, HeldOutFit, RelevanceSweeps
from ._relevance_steps import RelevanceSteps
from ._step_runs import STEP_USES, STREAM_FOLLOWED, by_steps, run_steps

_CV_ROWS, _CV_SWEEPS, _N_FOLDS = 500, 15, 3
# Factors of the length scales that cross-validation compares. The evidence cannot choose: with a
# precision for each function it favors functions of one row.
_FACTORS = 2.0 ** np.arange(-4, 3)
# Up to so many rows, every second factor: on 10 to 60 rows of development sets, losses are alike,
# in .65 of the time; on 100 rows the density is .004 lower (2026-11-28).
_MAX_COARSE_ROWS = 60
_EQUAL = 1.0  # nats of all held-out rows that tell nothing, however alike the rows' gains are
# Change of the bound, nats per row, below which sweeps on a fold of a regression end. Classifiers
# take all sweeps: with this limit their log loss rises by .02 (50 rows of 18 development sets).
_FOLD_TOL = 1e-2
# After each fold, candidates that are worse than the best by more standard errors are dropped. With
# one after every fold, 79 fits of development sets, 150 rows, are level in .77 of the time, but two
# of six draws of 100 rows of a sinc have an RMSE of 1.24 and 1.14 times a GP's instead of 1.12 and
# .96 (2026-11-28).
_STANDARD_ERRORS = (3.0, 3.0, 1.0)


@dataclass
class RelevanceModel(WeightSpaceModel):
    """`WeightSpaceModel` of a `BiasedDictionary`; its precisions are None at the start of a fit."""

    precisions: np.ndarray | None = None

    def mean_bases(self, device):
        state = self.state(device)
        parts = (state[name] for name in ("theta", "bases", "precisions"))
        return BiasedDictionary(*self.torch_kernels, *parts)


SOLVERS = {"sweeps": Sweeps(), "quadruply_stochastic": QuadruplyStochastic()}
_SWEEPS = where(solver=Sweeps)
_STREAM_FOLLOWED = STREAM_FOLLOWED | {"relevance_threshold": ALWAYS}
RVM_RULES = ParameterRules(
    STEP_USES
    | {
        "n_dense_columns": where(covariance="chevron"),
        "tol": _SWEEPS | where(optimizer=OtherThan(None)),
    },
    {
        "fit": _STREAM_FOLLOWED
        | dict.fromkeys(("optimizer", "solver__learn_hyperparameters"), ALWAYS)
        | dict.fromkeys(("covariance", "n_basis", "tol"), _SWEEPS),
        "partial_fit": _STREAM_FOLLOWED,
    },
    solvers=SOLVERS,
    streaming=QuadruplyStochastic,
)


def check_rvm_parameters(estimator):
    """Refuse wrong values of the parameters that regressor and classifier share."""
    estimator._rules.check_solver(estimator)
    estimator._check_choice("covariance", ("auto", "full", "chevron", "mean_field"))
    estimator._check_choice("optimizer", ("auto", None))
    estimator._check_bool("warm_start")
    for name in ("n_basis", "n_dense_columns"):
        estimator._check_number(name, 1, integer=True)
    estimator._check_number("relevance_threshold", 0)
    estimator._check_number("max_iter", 1, integer=True)
    estimator._check_number("tol", 0)
    given = estimator.covariance
    if given == ("full" if by_steps(estimator) else "chevron"):
        raise ValueError(
            f"covariance={given!r} is not for solver={estimator.solver!r}. Stochastic steps have "
            "'chevron' and 'mean_field', and sweeps have 'full' and 'mean_field'. Use "
            "covariance='auto', or another solver."
        )
    if estimator.relevance_threshold <= 1:
        raise ValueError(
            f"relevance_threshold={estimator.relevance_threshold!r} must be above 1, the initial "
            "precision of all functions. The default is 1e4."
        )
    check_kernel(estimator.kernel)


def fit_rvm(estimator, problem, noise=(), noise_bounds=None):
    """Fit a relevance vector machine: length scales first, then noise and precisions.

    ``noise`` are initial logarithms of the likelihood's parameters, if any, and ``noise_bounds``
    their bounds, (c, 2) or (1, 2); None if they are fixed.
    """
    in_steps, rows, random_state = by_steps(estimator), problem.rows, problem.random_state
    has_folds = rows.n_rows >= _N_FOLDS
    noise_bounds = noise_bounds if has_folds else None  # one row would be evidence of no noise
    if problem.start and in_steps:
        return take_rvm_steps(estimator, problem, problem.start, noise_bounds=noise_bounds)
    fits = RelevanceFits(estimator, problem, noise_bounds)
    start = problem.start or _initial_model(estimator, problem, noise)
    learns = estimator.optimizer is not None and has_folds
    has_lengths, predicted = free_lengths(start.kernel).any(), None
    if learns and not problem.start and (in_steps or has_lengths):
        subset = rows.subset(_CV_ROWS, random_state, by_class=not noise)
        if has_lengths:
            start, predicted = fits.select_length_scales(start, subset)
        if in_steps and noise_bounds is not None:
            if predicted is None:
                predicted = fits.predict_folds(start, _folds(subset, random_state), "noise")
            held_out = fits.held_out_fit(*predicted)
            start = replace(start, noise=tuple(held_out.noise.tolist()))
    if in_steps:
        functions = _functions(rows, estimator.n_basis, random_state).cpu().numpy()
        precisions = np.ones((estimator._make_likelihood().n_latents, len(functions) + 1))
        model = replace(start, bases=functions, precisions=precisions)
        return take_rvm_steps(estimator, problem, model, noise_bounds=noise_bounds)
    sweeps, state = fits.initialize(start, rows)
    held_out, left_out = None, None
    if learns:
        has_many_rows = rows.n_rows > _CV_ROWS
        folds = islice(_folds(rows, random_state), 1 if has_many_rows else _N_FOLDS)
        if noise_bounds is not None:
            if predicted is None or has_many_rows:
                predicted = fits.predict_folds(start, folds, "noise")
            held_out = fits.held_out_fit(*predicted, shrinks=True)
        elif not noise:
            # Fits that have not converged are more cautious than the one that is calibrated.
            _, moments = fits.predict_folds(start, folds, "calibration", estimator.max_iter)
            n_classes = len(estimator.classes_)
            labels = rows.collect(rows.targets, rows.weights)
            left_out = moments, Tempering.to_frequencies(n_classes, *labels)

    def evaluate(state):
        # The ELBO is that of the noise and the weights before they are calibrated.
        state = state if held_out is None else held_out.calibrated(state)
        return [start.at(state)], [Summary(state.objective, left_out)]

    curve = problem.run_stage("posterior", sweeps, state, estimator.max_iter, evaluate)
    (model,), (summary,) = evaluate(state)
    return Fitted(model, curve, summary)


class RelevanceFits:
    """Relevance sweeps on some rows, and their cross-validation."""

    def __init__(self, estimator, problem, noise_bounds):
        self.estimator, self.problem, self.noise_bounds = estimator, problem, noise_bounds

    def initialize(self, start, rows, tol=0.0):
        """Return sweeps on rows and their initial state, with the kernel of a model.

        The tolerance is that of the estimator, or ``tol`` if that is larger.
        """
        estimator = self.estimator
        functions = _functions(rows, estimator.n_basis, self.problem.random_state)
        sweeps = RelevanceSweeps(
            estimator._make_likelihood(),
            *start.torch_kernels,
            rows,
            mean_field=estimator.covariance == "mean_field",
            threshold=estimator.relevance_threshold,
            tol=max(estimator.tol, tol),
            noise_bounds=self.noise_bounds,
        )
        given = start.state(rows.device)
        return sweeps, sweeps.init(given["theta"], given["noise"], functions)

    def predict_fold(self, start, fold, name, max_sweeps=_CV_SWEEPS):
        """Return the noise of sweeps on a fold, and `moments` of the held-out rows."""
        training_rows, held_out_rows = fold
        tol = 0.0 if self.noise_bounds is None else _FOLD_TOL
        sweeps, state = self.initialize(start, training_rows, tol)
        self.problem.run_stage(name, sweeps, state, max_sweeps, must_converge=False)
        return state.noise, sweeps.moments(state, held_out_rows)

    def predict_folds(self, start, folds, stage, max_sweeps=_CV_SWEEPS):
        """Return the last fold's noise, and moments of the held-out rows of all folds."""
        moments = []
        for i, fold in enumerate(folds):
            name = f"{stage}, fold {i}"
            noise, found = self.predict_fold(start, fold, name, max_sweeps)
            moments.append(found)
        return noise, _concatenated(moments)

    def held_out_fit(self, noise, moments, **options):
        """Return the `HeldOutFit` of what `predict_folds` returned."""
        sites = self.estimator._make_likelihood()
        return HeldOutFit.of(sites, self.noise_bounds, noise, moments, **options)

    def select_length_scales(self, start, rows):
        """Find the longest length scales that cross-validation does not rule out.

        Returns the model with these, and what `predict_folds` returns for it.

        All are multiplied by one factor. Their held-out log density is within a nat, or a standard
        error, of the best. With few rows, or few rows of a rare class, differences are mostly due
        to chance, and long length scales are the simpler model. Factors that are clearly worse are
        not tried on further folds.
        """
        factors = _FACTORS[::2] if rows.n_rows <= _MAX_COARSE_ROWS else _FACTORS
        moments, best_noise = {factor: [] for factor in factors}, None
        folds = _folds(rows, self.problem.random_state)
        for i, (fold, n_errors) in enumerate(zip(folds, _STANDARD_ERRORS, strict=True)):
            fits, noises = {}, {}
            for factor in moments:
                name = f"length scales times {factor:.3g}, fold {i}"
                model = with_lengths(start, factor)
                noises[factor], found = self.predict_fold(model, fold, name)
                moments[factor].append(found)
                # The noise of other length scales is closer than that of few training rows.
                near = noises[factor] if best_noise is None else best_noise
                fits[factor] = self.held_out_fit(near, _concatenated(moments[factor]))
                best_noise = fits[factor].noise
            moments = {factor: moments[factor] for factor in _not_worse(fits, n_errors)}
        factor = max(moments)
        return with_lengths(start, factor), (noises[factor], _concatenated(moments[factor]))


def take_rvm_steps(estimator, problem, start, *, noise_bounds=None, streamed=False):
    """Fit a relevance vector machine by stochastic steps, from a model with functions.

    If that is the start of the problem, its steps are continued. Streamed rows come in addition to
    earlier ones, and get one pass.
    """

    def fitted(steps, state):
        return start.at(state.as_dict() | steps.posterior(state))

    return run_steps(
        RelevanceSteps,
        estimator,
        problem,
        start,
        problem.rows,
        fitted,
        streamed=streamed,
        limits=None if streamed else _limits(estimator, problem, start, noise_bounds),
        threshold=estimator.relevance_threshold,
    )


def _limits(estimator, problem, model, noise_bounds):
    """Return the bounds that `RelevanceSteps` learn the hyperparameters in; None if none is."""
    given = model.state(problem.rows.device)
    theta, noise = (given[name][:, None].expand(-1, 2) for name in ("theta", "noise"))
    if estimator._solver().learn_hyperparameters:
        theta = theta_bounds(model.kernel, theta.device)
    elif noise_bounds is None:
        return None
    limits = torch.cat([theta, noise if noise_bounds is None else noise_bounds.expand_as(noise)])
    return limits if len(limits) else None


def rvm_attributes(estimator, models, summaries):
    """Return the fitted attributes of a relevance vector machine, a dict."""
    (only,) = models
    relevance = only.precisions[:, :-1]
    return {
        "kernel_": only.whole_kernel,
        "relevance_vectors_": only.bases,
        "relevance_": relevance[0] if len(relevance) == 1 else relevance,
        "elbo_": summaries[0].elbo,
        "_likelihood": estimator.likelihood,
        "_fitted_parameters": estimator._rules.memory(estimator),
        "_latents": list(models),
    }


def is_learned(name):
    """Return whether fits learn the hyperparameter of this name if it is free."""
    return name.endswith(("length_scale", "noise_level"))


def _initial_model(estimator, problem, noise):
    """Return a model without functions; default length scales are from the median distance."""
    if estimator.kernel is not None:
        kernel = clone(estimator.kernel)
    else:
        scales = median_scales(problem.rows, problem.scaler, problem.random_state)
        kernel = RBF(scales, np.outer(scales, (1e-3, 1e3)))
    kernel, template = estimator._noise_model.split(kernel)
    return RelevanceModel(kernel, np.empty((0, problem.X.shape[1])), noise, template=template)


def _functions(rows, n_basis, random_state):
    """Return at most ``n_basis`` distinct rows as points of the functions, float64 (M, d)."""
    return torch.unique(rows.points(rows.drawn(n_basis, random_state)), dim=0)


def _not_worse(fits, n_errors):
    """Return the keys of each `HeldOutFit` that is as good as the best, or nearly so.

    Their weighted sums differ by at most a nat, or by ``n_errors`` standard errors.
    """
    weights = next(iter(fits.values())).weights
    densities = {key: fit.densities for key, fit in fits.items()}
    highest = max(densities.values(), key=lambda values: (weights @ values).item())

    def is_as_good(values):
        loss = highest - values
        gap = weights @ loss
        variance = weights @ (loss - gap / weights.sum()).square()
        return gap <= (n_errors * variance.sqrt()).clamp_min(_EQUAL)

    return [key for key, values in densities.items() if is_as_good(values)]


def _concatenated(parts):
    """Return a tuple of tensors from several such tuples, joined by their rows."""
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def _folds(rows, random_state):
    """Return an iterator over pairs of training rows and held-out rows, one per fold.

    Folds divide the units of weight. Each has nearly the same number of every class. Classes are in
    the order of their first units, so that other labels give the same folds.
    """
    units = rows.units()
    order = random_state.permutation(len(units))
    if not rows.targets.is_floating_point():
        (codes,) = rows.collect(rows.targets)
        codes = codes.cpu().numpy()[units[order]]
        _, first, group = np.unique(codes, return_index=True, return_inverse=True)
        order = order[np.argsort(first[group], kind="stable")]
    return (rows.divided(units, np.sort(order[i::_N_FOLDS])) for i in range(_N_FOLDS))
