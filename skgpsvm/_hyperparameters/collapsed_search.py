"""Hyperparameters of a regression from several starts, learned on the collapsed ELBO."""

import math
from dataclasses import replace

import torch

from .._collapsed import (
    JITTER,
    CollapsedBound,
    CollapsedLearning,
    Hyperparameters,
    are_points,
    evidence_or_bound,
)
from .._evidence import Evidence
from .._fitted_models import SparseModel
from .._noise import INITIAL_VARIANCE
from .._optim import NOISE_BOUNDS
from ..likelihoods._regression import observations
from .initialization import (
    MIN_GAIN,
    at_gaussian_posterior,
    free_lengths,
    free_periods,
    lengths_by_feature,
    with_lengths,
)
from .priors import Penalized
from .short_lengths import CLEAR_NATS, N_ROWS, SHORT_LENGTHS, has_several_lengths, shortened

# Starts are compared on the exact evidence of so many rows, unless there are fewer inducing points.
# It equals the collapsed ELBO there, at a quarter of the cost.
_MIN_EXACT_ROWS, _EXACT_ROWS = 200, 256
# More rows start also from at most this factor of the initial length scales, so that the effect of
# a feature can show that few rows did not: from a long length scale, the gradient vanishes.
_LONGEST = 2.0
# With many features they start from another search instead, on more rows. Relevant features that
# lower the evidence one at a time, and raise it together, do not come back from an optimum without
# them.
_RESTART_ROWS, _RESTART_ROWS_PER_FEATURE = 1000, 22
STAGES = ((2000, 2), (8000, 3))  # rows and rounds of learning on the collapsed ELBO
_EXACT_STAGES = ((700, 2), (2000, 2))  # the same where every row is an inducing point
_COMPARED_ROWS = 1000  # whose exact evidence chooses among kernels of several smoothnesses
# Least gain of an alternative kernel over the default one, nats. Without signal all are alike, and
# smooth functions extrapolate better. On the development sets, 0 to 8 nats choose alike.
_MIN_GAIN = 5.0
# Fewer rows cannot gain that. On samples of nine development sets, 10 rows chose none of 80
# alternatives, 15 rows 3 of 70, and 20 rows 12 of 50. Nor do they have steps without the prior.
_CHOOSING_ROWS = 15
# Factors of the initial length scales, tried in turn until the ELBO beats a model of noise alone.
_LENGTHS = (1.0, 0.7, 1.4, 0.5)
# Tried as well for at most `_MAX_WAVE_FEATURES`, where a trend may hide waves.
_WAVES = (0.125, 0.03)
_MAX_WAVE_FEATURES = 2
# Starts on few rows of more features: factors of the length scales, the constants and the noise.
# All are tried, since the bound has many maxima there. Each start alone ends at a poor one in a
# quarter of draws of Friedman's function (100 and 150 rows, 20 and 50 features). The first steps
# leave out the prior, which would drop a feature of quadratic effect (all of four draws, R2 0.83
# instead of 0.93).
_SMALL_SAMPLE_ROWS, _MAX_ROWS_PER_FEATURE = 500, 20
_SMALL_SAMPLE_STARTS = ((1.0, 1.0, 1.0), (4.0, 16.0, 1.0), (2.0, 1.0, 5.0))
# Length scale, in standard deviations, at which missing features are tried, how many of them at a
# time, and how often. In half the draws of Friedman's function (150 rows, 50 features) one is
# missing: it gains 28 to 38 nats at 2 to 4 and 4 to 27 at 6, and no other feature gains anything.
_MODERATE_LENGTH, _TRIED_FEATURES, _MAX_SEARCHES = 3.0, 5, 5
_SHORT_LENGTHS = *SHORT_LENGTHS, 0.1  # noise hides waves less than labels do
_LARGE_NOISE = 1.0  # variance of the noise of a second start, where the first has little


class CollapsedSearch:
    """Search for hyperparameters that maximize the collapsed ELBO.

    A search begins on few rows, from one or several length scales: on the exact evidence of a few
    hundred rows, or on the collapsed ELBO of up to 2,000 rows. A default kernel is replaced there
    by the best of its alternatives. If every row is an inducing point, the collapsed ELBO is the
    exact evidence.

    The noise of the `SparseProblem` is taken to be Gaussian; heavy tails are winsorized. ``jitter``
    is that of `SparseModel`. ``evaluate``, for callbacks, takes a model without a posterior and
    returns models and their summaries.
    """

    def __init__(self, sparse, start, jitter, evaluate=None):
        if start.jitter != jitter:
            start = replace(start, jitter=jitter, mean=None, root=None)
        self.start, self._sparse, self._evaluate = start, sparse, evaluate
        self._free_parts, rows, noise = sparse.free_parts(start), sparse.rows, sparse.noise
        # The same parts of alternative kernels are free.
        self._free = sparse.free(start, self._free_parts, NOISE_BOUNDS)
        gaussian = noise.likelihood == "gaussian"
        self._rows = rows.with_even_weights() if gaussian else rows.winsorized()
        tensors = start.state(rows.device)
        log_variance = noise.variance(tensors["noise"]).log()
        self._first = Hyperparameters(tensors["theta"], tensors["Z"], log_variance)
        self._d = rows.X.shape[1]
        # The first steps leave out the prior, which would drop features before their effect shows.
        # Where rows are fewer than features, the prior is needed from the start.
        self._without_prior = {} if rows.n_rows < self._d else {"prior": None}
        n_exact = min(rows.n_rows, len(start.Z), _EXACT_ROWS)
        is_exact = n_exact >= min(rows.n_rows, _MIN_EXACT_ROWS)
        self._n_exact, self._subsets = n_exact if is_exact else None, {}
        self._all_are_points = are_points(rows, start.Z)
        self._few, self._more = _EXACT_STAGES if self._all_are_points else STAGES
        self._min_gain = sparse.tol * min(rows.n_rows, self._n_exact or self._few[0])

    @property
    def is_needed(self):
        """True if there is anything to learn."""
        return bool(self._free_parts)

    def learn(self, max_iter):
        """Learn on all rows; return the model without a posterior, and the curve of objectives."""
        n, point = self._rows.n_rows, self._first
        if self._sparse.problem.start is None:
            point = self._first_point() if n <= self._few[0] else self._point_of_few_rows()
            if n > self._more[0]:
                point = self._climb(point, *self._more)[0].hyperparameters
        state, curve, _ = self._climb(point, n, max_iter, must_converge=True)
        return self._model(state.hyperparameters), curve

    def learn_on_few(self, min_rows):
        """Return the model learned on some of the rows; more of them beyond a number of rows."""
        point = self._point_of_few_rows()
        if self._rows.n_rows > min_rows:
            point = self._climb(point, *self._more)[0].hyperparameters
        return self._model(point)

    def start_of_other_noise(self):
        """Return a start for a likelihood that is not Gaussian: at the posterior of one that is."""
        point = self._point_of_few_rows()
        model, rows = self._model(point), self._rows
        return at_gaussian_posterior(model, point.noise.exp(), rows)

    def _model(self, point):
        """Return the model at a point, with the parameters of the likelihood for its noise."""
        sites = self._sparse.noise.sites_of(point.noise.exp().cpu())
        return self.start.at(point._replace(noise=sites.parameters())._asdict())

    def _point_of_few_rows(self):
        """Return where learning on the rows of the first of the `STAGES` ends."""
        point = self._first_point()
        if self._n_exact is None:  # learned on these rows already
            return point
        return self._climb(point, *self._few, ", from the best")[0].hyperparameters

    def _first_point(self):
        """Return where the start of highest ELBO, or log evidence, ends."""
        if self._n_exact is not None and self._free_parts == ["Z"]:
            return self._first  # the evidence has no inducing points to learn
        learns_lengths = "theta" in self._free_parts and free_lengths(self.start.kernel).any()
        n, d = self._rows.n_rows, self._d
        few = n <= min(_SMALL_SAMPLE_ROWS, _MAX_ROWS_PER_FEATURE * d) and d > _MAX_WAVE_FEATURES
        if learns_lengths and few and n < _CHOOSING_ROWS and self._free.prior is not None:
            points = {"the first": (1.0,), "long length scales": _SMALL_SAMPLE_STARTS[1]}
            ends = [
                self._start(self._scaled(*factors), f", with the prior, from {name}")[0]
                for name, factors in points.items()
            ]
            best = max(ends, key=lambda state: state.objective)
            return self._with_missing_features(best).hyperparameters
        best = self._best_of_few_rows() if learns_lengths and few else None
        if best is None:
            waves = [(factor,) for factor in _WAVES if learns_lengths and d <= _MAX_WAVE_FEATURES]
            lengths = _LENGTHS if learns_lengths else _LENGTHS[:1]
            best = self._best_attempt(lengths, [*waves, *self._factors_of_noise()])
        if not learns_lengths:
            return best.hyperparameters
        if self._free.prior is None:
            return self._with_missing_features(best).hyperparameters
        ends = [
            self._start(best.hyperparameters, ", then with the prior")[0],
            self._start(self._scaled(1.0), ", with the prior")[0],
        ]
        best = self._with_missing_features(max(ends, key=lambda state: state.objective))
        if n >= _CHOOSING_ROWS:
            for alternatives in self._sparse.alternatives:
                best = self._at_best_of(alternatives, best)
        point = best.hyperparameters
        if self._n_exact in (None, self._rows.n_rows):
            return point
        return self._on_more_rows(point)

    def _with_missing_features(self, state):
        """Return a state whose evidence no feature with a long length scale can raise.

        The gradient vanishes at a long length scale, and a feature of quadratic effect gets one
        before its effect shows. A gain counts if it is one at which rounds do not end.
        """
        for count in range(_MAX_SEARCHES):
            point, min_gain = self._with_shorter_lengths(state.hyperparameters), self._min_gain
            if point is None:
                point, min_gain = self._with_short_lengths(state.hyperparameters), CLEAR_NATS
            if point is None:
                break
            found = self._start(point, f", missing features {count}")[0]
            if found.objective < state.objective + min_gain:
                break
            state = found
        return state

    def _with_short_lengths(self, point):
        """Return the point with one or two length scales far shorter; None if none is missing.

        Outputs share the length scales. One that is lost gains less than the others would lose, so
        that the noisiest output is asked alone if all together want no change.
        """
        if not has_several_lengths(self.start.kernel, self._rows):
            return None
        rows = self._subset(N_ROWS, gathered=True)
        targets, known = observations(rows.targets.double())
        variances = point.noise.exp() if known is None else point.noise.exp() + known
        precision = (rows.weights.double()[:, None] / variances).expand_as(targets)
        sites = precision, precision * targets
        of_rows, tried = (self.start.kernel, point.theta, rows), (self._free.scale, _SHORT_LENGTHS)
        theta = shortened(*of_rows, sites, *tried)
        if theta is None and targets.shape[1] > 1:
            noisiest = [int(point.noise.argmax())]
            theta = shortened(*of_rows, [part[:, noisiest] for part in sites], *tried)
            # The others need the length scales that are shorter already.
            theta = None if theta is None else theta.minimum(point.theta)
        return None if theta is None else point._replace(theta=theta)

    def _with_shorter_lengths(self, point):
        """Return the point with length scales shortened that raise the evidence; None if none does.

        The features of the largest `Evidence.by_features` are tried, each added to those before.
        """
        parts = torch.as_tensor(lengths_by_feature(self.start.kernel, self._d))
        lengths = _MODERATE_LENGTH * self._free.scale
        logs = torch.maximum(lengths.log(), self._free.theta_bounds[parts, 0])
        missing = (point.theta[parts] > logs).any(0)
        if self._d == 1 or not missing.any():
            return None
        learning, evidence = self._learning(point, self._n_exact or _EXACT_ROWS, exact=True)
        derivatives = evidence.by_features(point.theta, point.noise, lengths)
        order = derivatives.where(missing, -math.inf).argsort(descending=True)
        best, found = learning.bound.value(*point), None
        for j in order[: min(_TRIED_FEATURES, int(missing.sum()))].tolist():
            for place, log_length in zip(parts[:, j], logs[:, j], strict=True):
                theta = (found or point).theta.clone()
                theta[place] = theta[place].minimum(log_length)
                value = learning.bound.value(theta, point.Z, point.noise)
                if value > best + self._min_gain:
                    best, found = value, point._replace(theta=theta)
        return found

    def _on_more_rows(self, point):
        """Return where a round on more rows ends, given where learning ends on few.

        The round starts twice, and the higher ELBO is taken: from the length scales of the few
        rows, and so that features can show that these rows have dropped. That is a search on more
        rows if the few rows are very few for the features, else shorter length scales.
        """
        n_rows = min(self._rows.n_rows, _RESTART_ROWS, _RESTART_ROWS_PER_FEATURE * self._d)
        if n_rows > self._n_exact:
            options = {"exact": True, **self._without_prior}
            state, _, _ = self._climb(self._scaled(1.0), n_rows, 1, ", anew", **options)
            other = {", from anew": state.hyperparameters}
        else:
            longest = self._scaled(_LONGEST).theta
            lengths = torch.as_tensor(free_lengths(self.start.kernel) > 0, device=longest.device)
            shorter = torch.where(lengths, torch.minimum(point.theta, longest), point.theta)
            other = {", from shorter lengths": point._replace(theta=shorter)}
        starts = {", from few": point, **other}
        ends = [
            self._climb(self._with_residual(start), self._few[0], 1, label)[0]
            for label, start in starts.items()
        ]
        return max(ends, key=lambda state: state.objective).hyperparameters

    def _at_best_of(self, alternatives, state):
        """Return the state of the best kernel, given that of the start's.

        Alternatives are learned in turn, each from where the one before ended, and the kernel of
        the start becomes that of the highest exact evidence, less `_MIN_GAIN` for alternatives.
        The collapsed ELBO would favor smooth kernels: inducing points leave out more of a rough
        function.
        """
        base, ends = self.start, [(self.start, state)]
        for name, alternative in alternatives.items():
            self.start = replace(base, kernel=alternative(base.kernel))
            point = ends[-1][1].hyperparameters
            ends.append((self.start, self._start(point, f", {name}")[0]))
        if self._n_exact is not None and self._n_exact < self._rows.n_rows:
            for self.start, state in ends:
                point = state.hyperparameters
                learning, _ = self._learning(point, _COMPARED_ROWS, exact=True)
                state.objective = learning.bound.value(*point)
        for _, state in ends[1:]:
            state.objective -= _MIN_GAIN
        self.start, best = max(ends, key=lambda end: end[1].objective)
        return best

    def _with_residual(self, point):
        """Return a point whose noise has the variance that the inducing points leave out, too."""
        if self._all_are_points:  # they leave nothing out
            return point
        bound = CollapsedBound(*self.start.torch_kernels, self._subset(self._few[0]))
        variances = point.noise.exp() + bound.mean_residual(point.theta, point.Z)
        return point._replace(noise=variances.log().clamp(*self._free.noise_bounds))

    def _start(self, point, label, **options):
        """Take a round from one of the starts on few rows; return state, curve and objective."""
        exact, n_rows = self._n_exact is not None, self._n_exact or self._few[0]
        return self._climb(point, n_rows, 1, label, exact=exact, **options)

    def _climb(
        self, point, n_rows, rounds, label="", *, exact=False, must_converge=False, **options
    ):
        """Maximize from a point on some rows; return state, curve and objective.

        The objective is the collapsed ELBO or, if ``exact``, the log evidence. Options are
        ``parts`` to learn and ``prior``, if others than the search's.
        """
        learning, bound = self._learning(point, n_rows, exact=exact, **options)

        def evaluate(state):
            return self._evaluate(self._model(state.hyperparameters))

        state = learning.init(*point)
        name = f"hyperparameters, {bound.rows.n_rows} rows{label}"
        options = {"must_converge": must_converge, "evaluate": self._evaluate and evaluate}
        curve = self._sparse.problem.run_stage(name, learning, state, rounds, **options)
        return state, curve, bound

    def _learning(self, point, n_rows, *, exact=False, **options):
        """Return the stage that maximizes from a point on some rows, and its objective.

        The prior is left out of the latter. See `_climb` for the parameters.
        """
        rows, (kernel,) = self._subset(n_rows, gathered=exact), self.start.torch_kernels
        parts = options.get("parts", self._free_parts)
        prior = options.get("prior", self._free.prior)
        if exact:
            bound = Evidence(kernel, rows, JITTER[torch.float64])
            parts = [part for part in parts if part != "Z"]
        else:
            bound = evidence_or_bound(kernel, rows, point.Z)
        learning = CollapsedLearning(
            bound if prior is None else Penalized(bound, prior),
            replace(self._free, names=parts),
            self._sparse.tol,
        )
        return learning, bound

    def _subset(self, n_rows, *, gathered=False):
        """Return at most so many rows, the same in every call; on every rank if gathered."""
        if n_rows >= self._rows.n_rows and not gathered:
            return self._rows
        if n_rows not in self._subsets:
            random_state = self._sparse.problem.random_state
            self._subsets[n_rows] = self._rows.subset(n_rows, random_state)
        return self._subsets[n_rows]

    def _scaled(self, factor, of_constants=1.0, of_noise=1.0):
        """Return the first point with length scales, constants and noise multiplied."""
        scaled = with_lengths(self.start, factor, of_constants)
        theta = scaled.state(self._rows.device)["theta"]
        noise = (self._first.noise + math.log(of_noise)).clamp(*self._free.noise_bounds)
        return self._first._replace(theta=theta, noise=noise)

    def _factors_of_noise(self):
        """Return the factors, see `_scaled`, of another start if the noise starts from little.

        From little noise, an ascent may end at a function that follows every row. With a free
        period the initial variance is little: the less noise, the fewer steps keep to the period.
        """
        lowest = self._first.noise.exp().min().item()
        has_periods = "theta" in self._free_parts and free_periods(self.start.kernel).any()
        limit = _LARGE_NOISE if has_periods else INITIAL_VARIANCE
        is_little = "noise" in self._free_parts and lowest < limit
        return [(1.0, 1.0, _LARGE_NOISE / lowest)] if is_little else []

    def _best_of_few_rows(self):
        """Return the best end of `_SMALL_SAMPLE_STARTS`; None if none explains more than noise."""
        held, tried = [part for part in self._free_parts if part != "Z"], []
        for factors in (*_SMALL_SAMPLE_STARTS, *self._factors_of_noise()):
            tried.append(self._attempt(*factors, parts=held, prior=None))
        best, gain = max(tried, key=lambda pair: pair[0].objective)
        return best if gain > MIN_GAIN else None

    def _attempt(self, *factors, **options):
        """Learn from a scaled point; return the state and its gain over noise, nats per row."""
        label, point = f", factors {factors}", self._scaled(*factors)
        state, _, bound = self._start(point, label, **(options or self._without_prior))
        return state, bound.gain_over_noise(*state.hyperparameters, self._free.noise_bounds)

    def _best_attempt(self, lengths, others):
        """Return the state of the best of several attempts.

        Factors of the length scales are tried until one beats a model of noise alone; if none does,
        the first attempt stays. The other factors, see `_scaled`, are tried in any case and replace
        it if they gain more.
        """
        tried = []
        for factor in lengths:
            tried.append(self._attempt(factor))
            if tried[-1][1] > MIN_GAIN:
                break
        best, best_gain = tried[-1] if tried[-1][1] > MIN_GAIN else tried[0]
        for factors in others:
            state, gain = self._attempt(*factors)
            if gain > best_gain + MIN_GAIN:
                best, best_gain = state, gain
        return best


def learned_jitter(rows, collapsed):
    """Return the jitter of a model whose objective is the collapsed ELBO, or another."""
    return JITTER[rows.dtype] if collapsed else SparseModel.jitter
