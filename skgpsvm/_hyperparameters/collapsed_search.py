"""Hyperparameters of a regression from several starts, learned on the collapsed ELBO."""

import math
from dataclasses import replace

from .._collapsed import (
    BY_ADAM,
    BY_LBFGS,
    JITTER,
    NOISE_BOUNDS,
    CollapsedLearning,
    Hyperparameters,
    evidence_or_bound,
)
from .._fitted_models import SparseModel
from .._torch_kernels import theta_bounds, torch_kernel
from .initialization import MIN_GAIN, at_gaussian_posterior, free_lengths, with_lengths
from .priors import Penalized

STAGES = ((2000, 2), (8000, 3))  # rows and rounds of learning on the collapsed ELBO
_MANY_ROWS, _MANY_FEATURES = 5000, 20  # from either on, a round of Adam comes first
# Factors of the initial length scales, tried in turn until the ELBO beats a model of noise alone.
_LENGTHS = (1.0, 0.7, 1.4, 0.5)
_WAVES = (0.125, 0.03)  # tried as well for at most `_FEW_FEATURES`, where a trend may hide waves
_FEW_FEATURES = 2
# Starts on few rows of more features: factors of the length scales, the constants and the noise.
# All are tried, since the bound has many maxima there. Each start alone ends at a poor one in a
# quarter of draws of Friedman's function (100 and 150 rows, 20 and 50 features). The first steps
# leave out the prior, which would drop a feature of quadratic effect (all of four draws, R2 0.83
# instead of 0.93).
_FEW_ROWS, _FEW_ROWS_PER_FEATURE = 500, 20
_FEW_ROWS_STARTS = ((1.0, 1.0, 1.0), (4.0, 16.0, 1.0), (2.0, 1.0, 5.0))


class CollapsedSearch:
    """Search for hyperparameters that maximize the collapsed ELBO.

    A search begins on up to 2,000 rows, from one or several length scales.

    Parameters
    ----------
    sparse : SparseProblem
        Of a regression. Its noise is taken to be Gaussian; heavy tails are winsorized.
    start : SparseModel
    jitter : float
        See `SparseModel`.
    evaluate : callable, optional
        Takes a model without a posterior and returns models and their summaries, for callbacks.
    """

    def __init__(self, sparse, start, jitter, evaluate=None):
        if start.jitter != jitter:
            start = replace(start, jitter=jitter, mean=None, root=None)
        self.start, self._sparse, self._evaluate = start, sparse, evaluate
        self._trained = sparse.free_parts(start)
        rows, noise = sparse.rows, sparse.noise
        gaussian = noise.likelihood == "gaussian"
        self._rows = rows.with_normalized_weights() if gaussian else rows.winsorized()
        self._limits, self._prior = noise.limits(NOISE_BOUNDS), sparse.prior()
        tensors = start.state(rows.device)
        log_variance = noise.variance(tensors["noise"]).log()
        self._first = Hyperparameters(tensors["theta"], tensors["Z"], log_variance)
        self._d = rows.X.shape[1]
        # The first steps leave out the prior, which would drop features before their effect shows.
        # Where rows are fewer than features, the prior is needed from the start.
        self._at_first = {} if rows.n_rows < self._d else {"prior": None}

    @property
    def is_needed(self):
        """True if there is anything to learn."""
        return bool(self._trained)

    @property
    def _is_fresh(self):
        return self.start.mean is None

    def learn(self, max_iter):
        """Learn on all rows; return the model without a posterior, and the curve of objectives."""
        point = self._first_point() if self._is_fresh else self._first
        n = self._rows.n_rows
        for n_rows, rounds in STAGES[1:]:
            if self._is_fresh and n_rows < n:
                point = self._climb(point, n_rows, rounds)[0].hyperparameters
        state, curve, _ = self._climb(point, n, max_iter, must_converge=True)
        return self._model(state.hyperparameters), curve

    def learn_on_few(self, min_rows):
        """Return the model learned on some of the rows; more of them beyond a number of rows."""
        point = self._first_point()
        for n_rows, rounds in STAGES[1:]:
            if self._rows.n_rows > min_rows:
                point = self._climb(point, n_rows, rounds)[0].hyperparameters
        return self._model(point)

    def start_of_other_noise(self):
        """Return a start for a likelihood that is not Gaussian: at the posterior of one that is."""
        point = self._first_point()
        model, rows = self._model(point), self._rows
        return at_gaussian_posterior(model, point.noise.exp(), rows)

    def _model(self, point):
        """Return the model at a point, with the parameters of the likelihood for its noise."""
        sites = self._sparse.noise.sites_of(point.noise.exp().cpu())
        return self.start.at(point._replace(noise=sites.parameters())._asdict())

    def _first_point(self):
        """Return where learning on few rows ends that has the highest ELBO."""
        learns_lengths = "theta" in self._trained and free_lengths(self.start.kernel).any()
        n, d = self._rows.n_rows, self._d
        few = n <= min(_FEW_ROWS, _FEW_ROWS_PER_FEATURE * d) and d > _FEW_FEATURES
        point = self._best_of_few_rows() if learns_lengths and few else None
        if point is None:
            waves = _WAVES if learns_lengths and d <= _FEW_FEATURES else ()
            point = self._best_attempt(_LENGTHS if learns_lengths else _LENGTHS[:1], waves)
        if self._prior is None or not learns_lengths:
            return point
        n_rows, rounds = STAGES[0]
        ends = [
            self._climb(point, n_rows, rounds, ", then with the prior")[0],
            self._climb(self._scaled(1.0), n_rows, rounds, ", with the prior")[0],
        ]
        return max(ends, key=lambda state: state.objective).hyperparameters

    def _climb(
        self, point, n_rows, rounds, label="", *, maximize=BY_LBFGS, must_converge=False, **options
    ):
        """Maximize from a point on some rows; return state, curve and collapsed ELBO.

        Options are ``parts`` to learn and ``prior``, if others than the search's.
        """
        rows, problem = self._rows, self._sparse.problem
        if n_rows < rows.n_rows:
            rows = rows.subset(n_rows, problem.random_state)
        bound = evidence_or_bound(torch_kernel(self.start.kernel), rows, point.Z)
        prior = options.get("prior", self._prior)
        learning = CollapsedLearning(
            bound if prior is None else Penalized(bound, prior),
            options.get("parts", self._trained),
            theta_bounds(self.start.kernel, rows.device),
            problem.scale,
            self._sparse.tol,
            maximize,
            self._limits,
        )
        evaluate = None
        if self._evaluate is not None:

            def evaluate(state):
                return self._evaluate(self._model(state.hyperparameters))

        state = learning.init(*point)
        name = f"hyperparameters, {rows.n_rows} rows{label}"
        run_stage, keep = problem.run_stage, {"must_converge": must_converge}
        return state, run_stage(name, learning, state, rounds, evaluate, **keep), bound

    def _scaled(self, factor, of_constants=1.0, of_noise=1.0):
        """Return the first point with length scales, constants and noise multiplied."""
        scaled = with_lengths(self.start, factor, of_constants)
        theta = scaled.state(self._rows.device)["theta"]
        noise = (self._first.noise + math.log(of_noise)).clamp(*self._limits)
        return self._first._replace(theta=theta, noise=noise)

    def _best_of_few_rows(self):
        """Return the best of `_FEW_ROWS_STARTS`; None if none explains more than noise."""
        held, tried = [part for part in self._trained if part != "Z"], []
        n_rows, rounds = STAGES[0]
        for factors in _FEW_ROWS_STARTS:
            point, label = self._scaled(*factors), f", factors {factors}"
            state, _, _ = self._climb(point, n_rows, rounds, label, parts=held, prior=None)
            point = state.hyperparameters
            state, _, bound = self._climb(point, n_rows, rounds, f"{label}, then", parts=held)
            tried.append((state, bound.gain_over_noise(*state.hyperparameters, self._limits)))
        best, gain = max(tried, key=lambda pair: pair[0].objective)
        return best.hyperparameters if gain > MIN_GAIN else None

    def _attempt(self, factor):
        """Learn from scaled lengths; return the state and its gain over noise, nats per row."""
        point, label = self._scaled(factor), f", lengths {factor}"
        n_rows, rounds = STAGES[0]
        if self._rows.n_rows > _MANY_ROWS or self._d >= _MANY_FEATURES:
            by_adam = {"maximize": BY_ADAM, **self._at_first}
            state, _, _ = self._climb(point, n_rows, 1, f"{label}, Adam", **by_adam)
            point = state.hyperparameters
        state, _, bound = self._climb(point, n_rows, rounds, label, **self._at_first)
        return state, bound.gain_over_noise(*state.hyperparameters, self._limits)

    def _best_attempt(self, factors, waves):
        """Return the hyperparameters of the best of several attempts.

        That is the first attempt whose ELBO beats a model of noise alone, else the first of all. A
        later attempt at waves replaces it if it gains more.

        Parameters
        ----------
        factors : sequence of float
            Of the length scales, tried until one beats a model of noise alone.
        waves : sequence of float
            Tried in any case.
        """
        tried = []
        for factor in factors:
            tried.append(self._attempt(factor))
            if tried[-1][1] > MIN_GAIN:
                break
        best, best_gain = tried[-1] if tried[-1][1] > MIN_GAIN else tried[0]
        for factor in waves:
            state, gain = self._attempt(factor)
            if gain > best_gain + MIN_GAIN:
                best, best_gain = state, gain
        return best.hyperparameters


def learned_jitter(rows, collapsed):
    """Return the jitter of a model whose objective is the collapsed ELBO, or another."""
    return JITTER[rows.dtype] if collapsed else SparseModel.jitter
