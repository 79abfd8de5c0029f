"""Sparse GPs: the problem of fitting one, its posterior by a stage, and its fitted attributes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from scipy.sparse import csr_array
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel

from ._collapsed import are_points
from ._csr import CSRRows, array_of
from ._data import WeightedDataset
from ._distributed import n_ranks
from ._estimators import FOLLOWED
from ._fitted_models import SparseModel
from ._hyperparameters.periods import period_units, with_most_likely_periods
from ._inference.coordinate_ascent import CoordinateAscent
from ._inference.natural_gradient import AdamSteps, AscentStage, GradientInference
from ._linalg import natural_parameters
from ._noise import Noise
from ._optim import PARAMETER_BOUNDS, Free
from ._parameters import ALWAYS
from ._problem import N_INDUCING, Fitted, Problem
from ._sites import SiteLikelihood
from ._torch_kernels import theta_bounds
from ._validation import check_kernel
from .exceptions import NotPositiveDefiniteError
from .inducing import select_inducing_points

LEARNING_RATE = 0.05  # default of Adam
MINIBATCH = 1024  # default of its rows
# A warm start honors changes of these parameters, besides those that every further call honors.
MORE_FOLLOWED = dict.fromkeys(
    ("learn_inducing", "optimizer", "solver__batch_size", "solver__learning_rate"), ALWAYS
)
SPARSE_FOLLOWED = {
    "fit": FOLLOWED | MORE_FOLLOWED | {"solver": ALWAYS, "solver__rule": ALWAYS},
    "partial_fit": FOLLOWED,
}
_MAX_MOVED = 2**20  # numbers
MAX_DENSE_POINTS = 2**23  # numbers of sparse rows, as points
# Inducing points are chosen from so many rows where ranks share them, plus 40 per point.
_GATHERED_ROWS = 20_000


def check_sparse_parameters(estimator, *, chooses_number=False, n_kernels=1):
    """Refuse wrong values of the parameters that all sparse GPs have.

    ``chooses_number`` says whether ``n_inducing`` may be None, for a number that the estimator
    chooses, and ``n_kernels`` how many kernels a `CompoundKernel` has, which is refused if it is 1.
    """
    estimator._check_bool("learn_inducing")
    estimator._check_bool("warm_start")
    besides = (None,) if chooses_number else ()
    estimator._check_number("n_inducing", 1, integer=True, besides=besides)
    estimator._check_number("max_iter", 1, integer=True)
    estimator._check_number("tol", 0)
    estimator._rules.check_solver(estimator)
    check_kernel(estimator.kernel, n_kernels)


def check_optimizer(estimator, takes_function=True):
    """Refuse a wrong ``optimizer``, and a function where it could not optimize the kernel."""
    given = estimator.optimizer
    is_string = isinstance(given, str)
    known = given is None or (is_string and given == "auto") or (takes_function and callable(given))
    if not known:
        is_default = is_string and given == "fmin_l_bfgs_b"  # of scikit-learn
        hint = " Use 'auto', which is L-BFGS-B." if is_default else ""
        raise ValueError(
            f"optimizer={given!r} is not one of 'auto', None, or a function, which only "
            f"SVGPRegressor with Gaussian noise and EPClassifier take.{hint}"
        )
    if not callable(given):
        return
    if estimator.kernel is None:
        raise ValueError(
            "A function as optimizer needs a kernel, whose hyperparameters and bounds it gets. "
            "Give one, such as 1.0 * RBF(1.0), or set optimizer='auto'."
        )
    if n_ranks() > 1:
        raise ValueError(
            "A function as optimizer works in one process only, since ranks that share a fit must "
            "evaluate the same hyperparameters. Set optimizer='auto'."
        )


def optimized(optimizer, evaluate, model, rows):
    """Return a model with the hyperparameters of the kernel that a function finds.

    The optimizer is as that of `GaussianProcessRegressor`: it takes the function to minimize, the
    first theta and its bounds, and returns the best theta and its value. ``evaluate`` is as that of
    `evidence_at`. Inducing points are kept, and so is the noise unless the kernel has it.
    """
    kernel = model.whole_kernel
    if not kernel.n_dims:
        return model

    def loss(theta, eval_gradient=True):
        try:
            value, gradient = evaluate(model, rows, theta, eval_gradient)
        except NotPositiveDefiniteError:
            value, gradient = -math.inf, torch.zeros(kernel.n_dims)
        return (-value, -gradient.cpu().numpy()) if eval_gradient else -value

    theta, _ = optimizer(loss, kernel.theta, bounds=kernel.bounds)
    return model.at_theta(theta)


def takes_every_row(estimator, rows, max_all):
    """Return whether every row is an inducing point by default, as there are at most so many.

    Points are dense: sparse rows must not be too many numbers.
    """
    chosen = estimator.n_inducing is not None or not isinstance(estimator.inducing_points, str)
    size = rows.n_rows * rows.X.shape[1]
    fit = not isinstance(rows.X, CSRRows) or size <= MAX_DENSE_POINTS
    return not chosen and rows.n_rows <= max_all and fit


@dataclass(frozen=True)
class SparseProblem:
    """A sparse GP to fit: its data, its prior and likelihood, and what is learned."""

    problem: Problem  # run, start and random numbers
    rows: WeightedDataset  # of the problem, or some of them
    likelihood: SiteLikelihood
    kernel: Kernel  # initial kernel, without noise
    template: Kernel | None  # see `SparseModel`
    noise: Noise
    # Which of ``theta``, ``noise`` and ``Z`` are learned where there is anything to learn
    learned: tuple
    searches_periods: bool  # whether the kernel is learned, by gradients or not
    learning_dtype: torch.dtype  # of products of features in `ElboLearning`
    make_prior: Callable | None  # takes rows; returns the prior of theta, or None
    # Dicts of functions by name. Each takes the kernel, and returns one with the same entries of
    # theta that may replace it. Those of a dict are tried in turn, then those of the next with the
    # best of them.
    alternatives: tuple
    n_inducing: int
    inducing_points: object
    every_row: bool  # see `takes_every_row`
    max_iter: int
    tol: float

    @classmethod
    def of(cls, estimator, problem, kernel, *, learns, make_prior=None, alternatives=(), max_all=0):
        """Return the problem that an estimator's parameters describe.

        The initial kernel has its noise, if any. ``learns`` says whether gradients learn the
        hyperparameters where the `Problem` has them learned; only then is there a prior. Up to
        ``max_all`` rows are all inducing points, see `takes_every_row`. Of more rows, there are as
        many points if `learns_in_row_span` is true.
        """
        kernel, template = estimator._noise_model.split(kernel)
        learns = learns and problem.learns
        free = ["theta"] if learns else []
        free += ["noise"] if learns and estimator._noise_model.is_free else []
        free += ["Z"] if estimator.learn_inducing and problem.learns else []
        rows, dtype = problem.rows, problem.rows.dtype
        every_row = takes_every_row(estimator, rows, max_all)
        if estimator.dtype is None and not rows.targets.is_floating_point():
            # The curvature of the loss of class codes is bounded, so that rounding errors are far
            # below the last gain of learning.
            dtype = torch.float32
        found = cls(
            problem=problem,
            rows=rows,
            likelihood=estimator._make_likelihood(),
            kernel=kernel,
            template=template,
            noise=estimator._noise_model,
            learned=tuple(free),
            searches_periods=problem.learns and isinstance(estimator.optimizer, str),
            learning_dtype=dtype,
            make_prior=make_prior if learns else None,
            alternatives=alternatives,
            n_inducing=rows.n_rows if every_row else estimator.n_inducing or N_INDUCING,
            inducing_points=estimator.inducing_points,
            every_row=every_row,
            max_iter=estimator.max_iter,
            tol=estimator.tol,
        )
        if every_row or estimator.n_inducing is not None or not found.learns_in_row_span:
            return found
        n_inducing = min(max_all, MAX_DENSE_POINTS // rows.X.shape[1])
        return replace(found, n_inducing=max(N_INDUCING, n_inducing))

    def initial_model(self):
        """Return the model that a cold fit starts from: kernel, noise and inducing points.

        Periods that are learned start from the most likely ones.
        """
        Z, kernel = self._initial_points(), self.kernel
        if self.searches_periods:
            kernel = with_most_likely_periods(kernel, self.rows, self.problem.random_state)
        noise = tuple(self.likelihood.parameters().tolist())
        return SparseModel(kernel, Z, noise, template=self.template)

    def points_of(self, start):
        """Return the inducing points (m, d) of a fit that starts from a fitted model.

        They are the model's, unless every row is a point by default, now or in the model only.
        """
        were_all = isinstance(self.inducing_points, str) and len(start.Z) > self.n_inducing
        return self._initial_points() if self.every_row or were_all else start.Z

    def _initial_points(self):
        points, k = self.inducing_points, self.n_inducing
        if not isinstance(points, str):
            return self._points(self.problem.X, k, points)
        return self.problem.drawn(("points", points, k), self._drawn_points)

    def _drawn_points(self):
        problem, k = self.problem, self.n_inducing
        X, weights = problem.X, problem.weights
        if n_ranks() > 1:
            some = self.rows.subset(_GATHERED_ROWS + 40 * k, problem.random_state)
            X, _, weights = map(array_of, some.take(slice(None)))
        return self._points(X, k, self.inducing_points, weights)

    def _points(self, X, n_points, method="kmeans", weights=None):
        parts = n_points, method, weights, self.problem.random_state
        return select_inducing_points(X, *parts, standardize=not self.problem.is_isotropic)

    def fewer_points(self, Z, n_points):
        """Return at most so many points (m, d), centers of clusters of the points Z."""
        if len(Z) <= n_points:
            return Z
        return self._points(csr_array(Z) if isinstance(self.rows.X, CSRRows) else Z, n_points)

    def free_parts(self, model):
        """Return the names of the tensors of a model that are learned, a list.

        Inducing points at all rows stay: to move them cannot help. So do points of more than a
        million numbers, of which L-BFGS-B keeps some twenty copies.
        """
        free, few = [], model.Z.size <= _MAX_MOVED
        if "theta" in self.learned and model.kernel.n_dims:
            free.append("theta")
        if "noise" in self.learned and model.noise:
            free.append("noise")
        # In this order, since the last conditions take longest
        if "Z" in self.learned and few and model.uses_points and not are_points(self.rows, model.Z):
            free.append("Z")
        return free

    @property
    def learns_in_row_span(self):
        """True if `learn_in_row_span` is for it: where a default kernel of sparse X is learned."""
        has_default = self.make_prior is not None and self.problem.is_isotropic
        return has_default and not self.likelihood.redescending

    def prior(self):
        return None if self.make_prior is None else self.make_prior(self.rows)

    def free(self, model, names, noise_bounds=PARAMETER_BOUNDS):
        """Return the `Free` tensors of a model by names, such as those of `free_parts`.

        The noise has given bounds, unless a `WhiteKernel` has others.
        """
        if not names:
            return Free(prior=self.prior())
        bounds = theta_bounds(model.kernel, self.rows.device)
        noise_bounds = self.noise.limits(noise_bounds)
        scale = self.problem.scale
        units = period_units(model.kernel, scale)
        return Free(names, bounds, scale, noise_bounds, self.prior(), units)

    def inference(self, model, method, parts, *, batch_size=None, learning_rate=None, rule="adam"):
        """Return the stage that finds the posterior, and learns some parts by gradient steps.

        ``method`` is its class, `GradientInference` or a subclass of `CoordinateInference`;
        ``parts`` are some of `free_parts`. Without a batch size, steps take all rows.
        """
        rows, kernels = self.rows, model.torch_kernels
        if method is GradientInference:
            parts = [*parts, "mean", "raw_root"]
        rate = LEARNING_RATE if learning_rate is None else learning_rate
        free = self.free(model, parts)
        adam = AdamSteps(self.likelihood, kernels, rows, free, rate, rule, model.jitter)
        ascent = CoordinateAscent(self.likelihood, model.basis(rows.device), rows)
        generator = self.problem.generator
        return method(ascent, adam, self.max_iter, self.tol, batch_size, generator)

    def on(self, rows):
        return replace(self, rows=rows)

    def on_few(self, max_rows):
        """Return the problem of random rows; itself if there are not more."""
        if self.rows.n_rows <= max_rows:
            return self
        return self.on(self.rows.subset(max_rows, self.problem.random_state))


def fit_posterior(sparse, model, stage, summarize, learning=(), start=None):
    """Run a stage that finds the posterior of a sparse GP, from a model, and return the `Fitted`.

    ``stage`` is a `PosteriorStage`. ``summarize`` takes what its ``at`` returns, and the state, and
    returns the summary. The objectives of ``learning`` before, if any, are shown in place of the
    stage's. ``start`` has tensors by name that the stage starts from besides those of the model.
    """
    state = stage.init(model.state(sparse.rows.device) | (start or {}))

    def evaluate(state):
        return [model.at(state)], [summarize(stage.at(state), state)]

    curve = sparse.problem.run_stage(
        "posterior", stage, state, sparse.max_iter, evaluate, must_converge=not stage.is_exact
    )
    (fitted,), (summary,) = evaluate(state)
    return Fitted(fitted, learning or curve, summary)


def update_posterior(estimator, problem, stage, state, summarize):
    """Run a `PosteriorStage` that updates a fitted model by new rows; kernel and points stay."""
    options = {"must_converge": not stage.is_exact}
    curve = problem.run_stage("stream", stage, state, estimator.max_iter, **options)
    return Fitted(problem.start.at(state), curve, summarize(stage.at(state), state))


def update_by_ascent(estimator, problem, sweep, summarize, tol):
    """Update a sparse GP by new rows, for which the posterior so far is the prior.

    ``sweep`` is a method of `CoordinateAscent`, and ``tol`` that of `AscentStage`.
    """
    rows, tensors = problem.rows, problem.start.state(problem.rows.device)
    likelihood = estimator._make_likelihood().at(tensors["noise"])
    prior = natural_parameters(tensors["mean"], tensors["root"])
    ascent = CoordinateAscent(likelihood, problem.start.basis(rows.device), rows, prior=prior)
    stage = AscentStage(ascent, sweep, tol)
    return update_posterior(estimator, problem, stage, stage.init(tensors["noise"]), summarize)


def sparse_attributes(estimator, models):
    """Return the fitted attributes that describe sparse models, a dict."""
    alone = len(models) == 1
    kernels, Z = [part.whole_kernel for part in models], [part.Z for part in models]
    return {
        "kernel_": kernels[0] if alone else CompoundKernel(kernels),
        "inducing_points_": Z[0] if alone else Z,
        "_latents": list(models),
        "_fitted_parameters": estimator._rules.memory(estimator),
    }
