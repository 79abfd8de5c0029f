"""Estimators of variational GPs: mean functions, learning on the collapsed bound, predictions."""

import math
from dataclasses import replace

import torch
from sklearn.base import clone

from ._collapsed import (
    BY_ADAM,
    BY_LBFGS,
    JITTER,
    NOISE_BOUNDS,
    PARTS,
    CollapsedBound,
    CollapsedLearning,
)
from ._distributed import gather, n_ranks
from ._estimators import GPClassifier, GPRegressor
from ._hyperparameters.default_kernels import smooth_kernel, with_mean
from ._hyperparameters.initialization import (
    LEAST_GAIN,
    at_gaussian_posterior,
    free_lengths,
    shrink_length_scales,
    with_lengths,
    with_linear_variance,
)
from ._hyperparameters.priors import Penalized, default_prior
from ._inducing_estimator import InducingEstimator
from ._inference.natural_gradient import NaturalGradientInference
from ._latents import Latents
from ._parameters import OtherThan, where
from ._predictive import LIKELIHOODS, classification_sites, regression_sites
from ._torch_kernels import theta_bounds, torch_kernel

_ALL_ROWS, _MINIBATCH = 10_000, 1024  # rows up to which all are a batch, and else its size
STAGES = ((2000, 2), (8000, 3))  # rows and rounds
_MANY_ROWS, _MANY_FEATURES = 5000, 20  # from which on a slow start pays
# Factors of the length scales to start from in turn, until the bound is above that of mere noise.
_LENGTHS = (1.0, 0.7, 1.4, 0.5)
LEARNED = where(optimizer=OtherThan(None)) | where(learn_inducing=True)
_WAVES = (0.125, 0.03)  # others of so few features, as a trend may hide waves
_FEW_FEATURES = 2
_USES = InducingEstimator._uses | {"learning_rate": LEARNED | where(inference="gradient")}
# Of few rows with more features all of these are tried, factors of the length scales, of constants
# and of the noise: the bound has many maxima there, and each of them alone ends at a poor one in a
# quarter of draws of Friedman's function (100 and 150 rows, 20 and 50 features). The first steps
# are without the prior, which would drop a feature of quadratic effect (all of four draws, R2 0.83
# in the place of 0.93).
_FEW_ROWS, _FEW_ROWS_PER_FEATURE = 500, 20
_FEW_ROWS_STARTS = ((1.0, 1.0, 1.0), (4.0, 16.0, 1.0), (2.0, 1.0, 5.0))


class VariationalGP(InducingEstimator):
    """Kernel with a mean function; the evidence bound is what is found out about a posterior."""

    _uses = _USES

    _inference_class = NaturalGradientInference
    _has_prior = True
    _optimizers = ("auto", None)
    _means = ("zero", "constant", "linear")
    _start_variance = 1.0
    _starts_without_prior = False
    _mean_variance = 5.0  # of coefficients of a mean function: vague beside the latents

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
        if self.batch_size is None and by_batches and rows.n_rows > _ALL_ROWS:
            return _MINIBATCH
        return self.batch_size

    def _evaluate_posterior(self, ascent, state):
        return ascent.objective(state)

    def _attributes(self, latents, bounds, streamed=False):
        earlier = self.elbo_ if streamed else 0.0
        return {
            **self._latents_attributes(latents),
            "elbo_": earlier + bounds[0],
            "_likelihood": self.likelihood,
        }


def _are_points(rows, Z):
    """Whether each row is an inducing point, so that no others can say more."""
    if rows.n_rows > len(Z):
        return False
    points = set(map(tuple, Z.tolist()))
    X = rows.take(slice(None))[0].tolist()
    return all(gather(points.issuperset(map(tuple, X))))


class VariationalRegressor(GPRegressor, VariationalGP):
    """Likelihoods, hyperparameters learned on the collapsed bound, and predictions.

    A subclass says whether that bound is all there is to learn on (`_is_collapsed`).
    """

    _start_noise = 0.1
    _starts_without_prior = True

    def _check_variational_parameters(self):
        super()._check_variational_parameters()
        self._check_choice("likelihood", tuple(LIKELIHOODS))
        self._check_bool("normalize_y")
        self._check_noise()

    def _check_noise(self):
        """Refuse a start of the noise that makes no sense, or beside a `WhiteKernel`."""
        self._check_number("noise_variance", 0, optional=True, above=True)
        if self._given_noise is not None and self.noise_variance is not None:
            raise ValueError(
                f"noise_variance={self.noise_variance!r} and the WhiteKernel of "
                f"kernel={self.kernel!r} both say what the noise is. Leave one of them out."
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
        """Learning on the collapsed bound: all of it there, else a start on few rows."""
        collapsed, fresh = self._is_collapsed(start, rows), start.mean is None
        jitter = JITTER[rows.dtype] if collapsed else Latents.jitter
        if start.jitter != jitter:
            start = replace(start, jitter=jitter, mean=None, root=None)
        trained = [part for part in super()._free_parameters(start, rows) if part in PARTS]
        if not trained or not (collapsed or fresh):
            return start, []
        rows = rows.winsorized() if self._is_heavy_tailed() else rows
        normalized = rows.with_normalized_weights() if self.likelihood == "gaussian" else rows
        bounds = theta_bounds(start.kernel, rows.device)
        scale = torch.tensor(scaler.scale_, device=rows.device)
        limits = self._noise_limits(NOISE_BOUNDS)

        def learned(state):
            sites = regression_sites(self.likelihood, state["noise"].exp().cpu(), len(self._y_mean))
            return start.at({**state, "noise": sites.parameters()})

        def attributes(state):
            found = learned(state)
            inference = self._inference(found, rows, scaler, torch.Generator())
            swept = inference.initial(found.state(rows.device))
            inference.step(swept)
            findings = self._evaluate_posterior(inference.at(swept), swept)
            return self._attributes([found.at(swept)], [findings])

        def climb(state, n_rows, rounds, end="finished", attempt="", **ways):
            some = normalized.subset(n_rows, random_state) if n_rows < rows.n_rows else normalized
            bound = CollapsedBound(torch_kernel(start.kernel), some)
            learning = learning_of(bound, **ways)
            stage = f"{name}hyperparameters, {some.n_rows} rows{attempt}"
            ends = {end: learning.finished}
            if collapsed:
                ends["attributes"] = attributes
            return run.stage(stage, learning.start(state), learning.step, rounds, **ends), bound

        prior = self._prior(start, rows, scaler)

        def learning_of(bound, parts=trained, prior=prior, maximize=BY_LBFGS):
            wanted = bound if prior is None else Penalized(bound, prior)
            return CollapsedLearning(wanted, parts, bounds, scale, self.tol, maximize, limits)

        state = start.state(rows.device)
        state["noise"] = self._variance_of_noise(state["noise"]).log()
        d = rows.X.shape[1]
        free = "theta" in trained and free_lengths(start.kernel).any()

        def scaled(factor, of_constants=1.0, of_noise=1.0):
            theta = with_lengths(start, factor, of_constants).state(rows.device)["theta"]
            noise = (state["noise"] + math.log(of_noise)).clamp(*limits)
            return {**state, "theta": theta, "noise": noise}

        few = rows.n_rows <= min(_FEW_ROWS, _FEW_ROWS_PER_FEATURE * d) and d > _FEW_FEATURES
        n_rows, rounds = STAGES[0]
        # Without the prior, which would drop features before any is seen to matter, but where rows
        # are fewer than features.
        at_first = {} if rows.n_rows < d else {"prior": None}

        def attempt(factor):
            own, told = scaled(factor), f", lengths {factor}"
            if rows.n_rows > _MANY_ROWS or d >= _MANY_FEATURES:
                climb(own, n_rows, 1, attempt=f"{told}, Adam", maximize=BY_ADAM, **at_first)
            _, bound = climb(own, n_rows, rounds, attempt=told, **at_first)
            return own, gain(own, bound)

        def gain(own, bound):
            return bound.gain_over_noise(*(own[part] for part in PARTS), limits)

        def best_of_few_rows():
            held, tried = [part for part in trained if part != "Z"], []
            for factors in _FEW_ROWS_STARTS:
                own, told = scaled(*factors), f", factors {factors}"
                climb(own, n_rows, rounds, attempt=told, parts=held, prior=None)
                _, bound = climb(own, n_rows, rounds, attempt=f"{told}, then", parts=held)
                tried.append((own, gain(own, bound)))
            found, gained = max(tried, key=lambda pair: pair[0]["value"])
            return found if gained > LEAST_GAIN else None

        def likelier(found):
            """Of states that learning with the prior leads to, the one with the larger value."""
            climb(found, n_rows, rounds, attempt=", then with the prior")
            plain = scaled(1.0)
            climb(plain, n_rows, rounds, attempt=", with the prior")
            return max(found, plain, key=lambda own: own["value"])

        if fresh:
            found = best_of_few_rows() if free and few else None
            if found is None:
                waves = _WAVES if free and d <= _FEW_FEATURES else ()
                found = _best_attempt(attempt, _LENGTHS if free else _LENGTHS[:1], waves)
            state = likelier(found) if prior is not None and free else found
        if collapsed:
            curve = self._refine_hyperparameters(climb, state, rows, fresh)
            return learned(state), curve
        return at_gaussian_posterior(learned(state), state["noise"].exp(), rows), []

    def _with_prior(self, bound, start, rows, scaler):
        prior = self._prior(start, rows, scaler)
        return bound if prior is None else Penalized(bound, prior)

    def _refine_hyperparameters(self, climb, state, rows, fresh):
        """Learning on more rows, the state changed in place; the curve of objectives."""
        for n_rows, rounds in STAGES[1:]:
            if fresh and n_rows < rows.n_rows:
                climb(state, n_rows, rounds)
        return climb(state, rows.n_rows, self.max_iter, "converged")[0]

    def _attributes(self, latents, bounds, streamed=False):
        noise_variance = self._noise_variance(latents[0].state("cpu")["noise"])
        return {**super()._attributes(latents, bounds, streamed), "noise_variance_": noise_variance}


def _best_attempt(attempt, factors, waves):
    """The state of the first attempt above mere noise, else of the first; of waves that gain more.

    Parameters
    ----------
    attempt : callable
        From a factor of the length scales to a state, and its gain over mere noise, nats a row.
    factors, waves : sequence of float
        Factors that are tried until one is above mere noise, and those that are tried in any case.
    """
    tried = []
    for factor in factors:
        tried.append(attempt(factor))
        if tried[-1][1] > LEAST_GAIN:
            break
    best, gain = tried[-1] if tried[-1][1] > LEAST_GAIN else tried[0]
    for factor in waves:
        other, gained = attempt(factor)
        if gained > gain + LEAST_GAIN:
            best, gain = other, gained
    return best


class VariationalClassifier(GPClassifier, VariationalGP):
    """Likelihoods and class probabilities."""

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
