"""Estimators of variational GPs: mean functions, and learning on the collapsed ELBO."""

import math
from dataclasses import replace

import torch
from sklearn.base import clone

from ._collapsed import (
    BY_ADAM,
    BY_LBFGS,
    JITTER,
    NOISE_BOUNDS,
    CollapsedBound,
    CollapsedLearning,
    Hyperparameters,
)
from ._distributed import gather, n_ranks
from ._estimators import GPClassifier, GPRegressor
from ._fitted_models import SparseModel
from ._hyperparameters.default_kernels import smooth_kernel, with_mean
from ._hyperparameters.initialization import (
    MIN_GAIN,
    at_gaussian_posterior,
    free_lengths,
    shrink_length_scales,
    with_lengths,
    with_linear_variance,
)
from ._hyperparameters.priors import Penalized, default_prior
from ._inducing_estimator import InducingEstimator
from ._inference.natural_gradient import NaturalGradientInference
from ._parameters import OtherThan, where
from ._predictive import LIKELIHOODS, classification_sites, regression_sites
from ._torch_kernels import theta_bounds, torch_kernel

_MAX_FULL_BATCH, _MINIBATCH = 10_000, 1024  # rows
STAGES = ((2000, 2), (8000, 3))  # rows and rounds of learning on the collapsed ELBO
_MANY_ROWS, _MANY_FEATURES = 5000, 20  # from either on, a round of Adam comes first
# Factors of the initial length scales, tried in turn until the ELBO beats a model of noise alone.
_LENGTHS = (1.0, 0.7, 1.4, 0.5)
LEARNED = where(optimizer=OtherThan(None)) | where(learn_inducing=True)
_WAVES = (0.125, 0.03)  # tried as well for at most `_FEW_FEATURES`, where a trend may hide waves
_FEW_FEATURES = 2
_USES = InducingEstimator._uses | {"learning_rate": LEARNED | where(inference="gradient")}
# Starts on few rows of more features: factors of the length scales, the constants and the noise.
# All are tried, since the bound has many maxima there. Each start alone ends at a poor one in a
# quarter of draws of Friedman's function (100 and 150 rows, 20 and 50 features). The first steps
# leave out the prior, which would drop a feature of quadratic effect (all of four draws, R2 0.83
# instead of 0.93).
_FEW_ROWS, _FEW_ROWS_PER_FEATURE = 500, 20
_FEW_ROWS_STARTS = ((1.0, 1.0, 1.0), (4.0, 16.0, 1.0), (2.0, 1.0, 5.0))


class VariationalGP(InducingEstimator):
    """GP with a mean function in its kernel, whose posterior is summarized by its ELBO."""

    _uses = _USES

    _inference_class = NaturalGradientInference
    _has_prior = True
    _optimizers = ("auto", None)
    _means = ("zero", "constant", "linear")
    _start_variance = 1.0
    _starts_without_prior = False
    _mean_variance = 5.0  # of the mean function's coefficients, vague compared to the latents

    def _check_variational_parameters(self):
        self._check_choice("mean", self._means)
        self._check_choice("optimizer", self._optimizers)
        self._check_inducing_parameters()

    def _mean_function(self):
        return self.mean

    def _optimizer(self):
        return None if self.optimizer is None else "adam"

    def _start_kernel(self, scaler):
        if self.kernel is None:
            kernel = smooth_kernel(scaler, self._start_variance)
        else:
            kernel = clone(self.kernel)
        return with_mean(kernel, self._mean_function(), scaler, self._mean_variance)

    def _prior_of_default(self, kernel, rows, scaler):
        return default_prior(kernel, rows, scaler.scale_, self._starts_without_prior)

    def _free_parameters(self, start, rows):
        trained = super()._free_parameters(start, rows)
        if "Z" in trained and _are_points(rows, start.Z):
            trained.remove("Z")
        return trained

    def _batch_size(self, start, rows):
        by_batches = self.inference != "gradient" and n_ranks() == 1
        if self.batch_size is None and by_batches and rows.n_rows > _MAX_FULL_BATCH:
            return _MINIBATCH
        return self.batch_size

    def _evaluate_posterior(self, ascent, state):
        return ascent.elbo(state)

    def _attributes(self, latents, bounds, streamed=False):
        earlier = self.elbo_ if streamed else 0.0
        return {
            **self._latents_attributes(latents),
            "elbo_": earlier + bounds[0],
            "_likelihood": self.likelihood,
        }


def _are_points(rows, Z):
    """Return whether every row is an inducing point, so that moving them cannot help."""
    if rows.n_rows > len(Z):
        return False
    points = set(map(tuple, Z.tolist()))
    X = rows.take(slice(None))[0].tolist()
    return all(gather(points.issuperset(map(tuple, X))))


class VariationalRegressor(GPRegressor, VariationalGP):
    """Regressor whose hyperparameters are learned on the collapsed ELBO.

    A subclass says whether the collapsed ELBO is the objective itself or only finds a start, in
    ``_is_collapsed(start, rows)``.
    """

    _start_noise = 0.1
    _starts_without_prior = True

    def _check_variational_parameters(self):
        super()._check_variational_parameters()
        self._check_choice("likelihood", tuple(LIKELIHOODS))
        self._check_bool("normalize_y")
        self._check_noise()

    def _check_noise(self):
        """Refuse an invalid ``noise_variance``, and one beside a `WhiteKernel`."""
        self._check_number("noise_variance", 0, optional=True, above=True)
        if self._given_noise is not None and self.noise_variance is not None:
            raise ValueError(
                f"noise_variance={self.noise_variance!r} and the WhiteKernel of "
                f"kernel={self.kernel!r} both set the noise. Leave one of them out."
            )

    def _torch_options(self, X):
        device, dtype = super()._torch_options(X)
        return device, dtype if self.dtype else torch.float64

    def _make_likelihood(self):
        var = self._start_noise if self.noise_variance is None else self.noise_variance
        return self._noise_sites(var)

    def _free_parameters(self, start, rows):
        return [] if self._is_collapsed(start, rows) else super()._free_parameters(start, rows)

    def _learn_hyperparameters(self, run, name, start, rows, scaler, random_state):
        """Learn on the collapsed ELBO: all the way where it applies, else a start on few rows."""
        collapsed, fresh = self._is_collapsed(start, rows), start.mean is None
        jitter = JITTER[rows.dtype] if collapsed else SparseModel.jitter
        if start.jitter != jitter:
            start = replace(start, jitter=jitter, mean=None, root=None)
        trained = super()._free_parameters(start, rows)
        trained = [part for part in trained if part in Hyperparameters._fields]
        if not trained or not (collapsed or fresh):
            return start, []
        rows = rows.winsorized() if self._is_heavy_tailed() else rows
        normalized = rows.with_normalized_weights() if self.likelihood == "gaussian" else rows
        bounds = theta_bounds(start.kernel, rows.device)
        scale = torch.tensor(scaler.scale_, device=rows.device)
        limits = self._noise_limits(NOISE_BOUNDS)

        def learned(point):
            sites = regression_sites(self.likelihood, point.noise.exp().cpu(), len(self._y_mean))
            return start.at(point._replace(noise=sites.parameters())._asdict())

        def attributes(state):
            latents = learned(state.hyperparameters)
            inference = self._inference(latents, rows, scaler, torch.Generator())
            swept = inference.init(latents.state(rows.device))
            inference.step(swept)
            evaluation = self._evaluate_posterior(inference.at(swept), swept)
            return self._attributes([latents.at(swept)], [evaluation])

        prior = self._prior(start, rows, scaler)

        def climb(point, n_rows, rounds, attempt="", *, parts=trained, prior=prior, **options):
            """Maximize from a point on some rows; return state, curve and collapsed ELBO."""
            maximize = options.pop("maximize", BY_LBFGS)
            some = normalized.subset(n_rows, random_state) if n_rows < rows.n_rows else normalized
            bound = CollapsedBound(torch_kernel(start.kernel), some)
            penalized = bound if prior is None else Penalized(bound, prior)
            learning = CollapsedLearning(
                penalized, parts, bounds, scale, self.tol, maximize, limits
            )
            stage = f"{name}hyperparameters, {some.n_rows} rows{attempt}"
            options = {"must_converge": False} | options
            if collapsed:
                options["attributes"] = attributes
            state = learning.init(*point)
            return state, run.run(stage, learning, state, rounds, **options), bound

        tensors = start.state(rows.device)
        noise = self._variance_of_noise(tensors["noise"]).log()
        first = Hyperparameters(tensors["theta"], tensors["Z"], noise)
        d = rows.X.shape[1]
        free = "theta" in trained and free_lengths(start.kernel).any()

        def scaled(factor, of_constants=1.0, of_noise=1.0):
            theta = with_lengths(start, factor, of_constants).state(rows.device)["theta"]
            noise = (first.noise + math.log(of_noise)).clamp(*limits)
            return first._replace(theta=theta, noise=noise)

        few = rows.n_rows <= min(_FEW_ROWS, _FEW_ROWS_PER_FEATURE * d) and d > _FEW_FEATURES
        n_rows, rounds = STAGES[0]
        # The first steps leave out the prior, which would drop features before their effect shows.
        # Where rows are fewer than features, the prior is needed from the start.
        at_first = {} if rows.n_rows < d else {"prior": None}

        def attempt(factor):
            point, label = scaled(factor), f", lengths {factor}"
            if rows.n_rows > _MANY_ROWS or d >= _MANY_FEATURES:
                by_adam = {"maximize": BY_ADAM, **at_first}
                state, _, _ = climb(point, n_rows, 1, f"{label}, Adam", **by_adam)
                point = state.hyperparameters
            state, _, bound = climb(point, n_rows, rounds, label, **at_first)
            return state, bound.gain_over_noise(*state.hyperparameters, limits)

        def best_of_few_rows():
            held, tried = [part for part in trained if part != "Z"], []
            for factors in _FEW_ROWS_STARTS:
                point, label = scaled(*factors), f", factors {factors}"
                state, _, _ = climb(point, n_rows, rounds, label, parts=held, prior=None)
                point = state.hyperparameters
                state, _, bound = climb(point, n_rows, rounds, f"{label}, then", parts=held)
                tried.append((state, bound.gain_over_noise(*state.hyperparameters, limits)))
            best, gain = max(tried, key=lambda pair: pair[0].objective)
            return best.hyperparameters if gain > MIN_GAIN else None

        def best_with_prior(point):
            """Learn with the prior from a point and from the start; return the higher ELBO's."""
            ends = [
                climb(point, n_rows, rounds, ", then with the prior")[0],
                climb(scaled(1.0), n_rows, rounds, ", with the prior")[0],
            ]
            return max(ends, key=lambda state: state.objective).hyperparameters

        point = first
        if fresh:
            best = best_of_few_rows() if free and few else None
            if best is None:
                waves = _WAVES if free and d <= _FEW_FEATURES else ()
                best = _best_attempt(attempt, _LENGTHS if free else _LENGTHS[:1], waves)
            point = best_with_prior(best) if prior is not None and free else best
        if collapsed:
            point, curve = self._refine_hyperparameters(climb, point, rows, fresh)
            return learned(point), curve
        return at_gaussian_posterior(learned(point), point.noise.exp(), rows), []

    def _with_prior(self, bound, start, rows, scaler):
        prior = self._prior(start, rows, scaler)
        return bound if prior is None else Penalized(bound, prior)

    def _refine_hyperparameters(self, climb, point, rows, fresh):
        """Learn on more rows from a point.

        Parameters
        ----------
        climb : callable
            Takes `Hyperparameters`, a number of rows and a number of rounds; returns the
            `CollapsedState` that they end in, the curve of objectives, and the bound.
        point : Hyperparameters
        rows : WeightedDataset
        fresh : bool
            Whether no earlier fit is continued.

        Returns
        -------
        point : Hyperparameters
        curve : list of float
            Objectives on all rows.
        """
        for n_rows, rounds in STAGES[1:]:
            if fresh and n_rows < rows.n_rows:
                point = climb(point, n_rows, rounds)[0].hyperparameters
        state, curve, _ = climb(point, rows.n_rows, self.max_iter, must_converge=True)
        return state.hyperparameters, curve

    def _attributes(self, latents, bounds, streamed=False):
        noise_variance = self._noise_variance(latents[0].state("cpu")["noise"])
        return {**super()._attributes(latents, bounds, streamed), "noise_variance_": noise_variance}


def _best_attempt(attempt, factors, waves):
    """Return the hyperparameters of the best of several attempts.

    That is the first attempt whose ELBO beats a model of noise alone, else the first of all. A
    later attempt at waves replaces it if it gains more.

    Parameters
    ----------
    attempt : callable
        Takes a factor of the length scales; returns a `CollapsedState` and its gain over noise
        alone, nats per row.
    factors : sequence of float
        Tried until one beats a model of noise alone.
    waves : sequence of float
        Tried in any case.

    Returns
    -------
    best : Hyperparameters
    """
    tried = []
    for factor in factors:
        tried.append(attempt(factor))
        if tried[-1][1] > MIN_GAIN:
            break
    best, best_gain = tried[-1] if tried[-1][1] > MIN_GAIN else tried[0]
    for factor in waves:
        state, gain = attempt(factor)
        if gain > best_gain + MIN_GAIN:
            best, best_gain = state, gain
    return best.hyperparameters


class VariationalClassifier(GPClassifier, VariationalGP):
    """Classifier with a likelihood, whose initial length scales are shortened if needed."""

    _start_variance = 5.0

    def _check_variational_parameters(self):
        super()._check_variational_parameters()
        self._check_choice("likelihood", ("softmax", "probit", "robust_max"))

    def _make_likelihood(self):
        return classification_sites(self.likelihood, len(self.classes_))

    def _learn_hyperparameters(self, run, name, start, rows, scaler, random_state):
        if start.mean is None and "theta" in self._free_parameters(start, rows):
            if self._mean_function() == "linear":
                start = with_linear_variance(start, self._make_likelihood(), rows, random_state)
            start = shrink_length_scales(start, self._make_likelihood(), rows, random_state)
        return start, []
