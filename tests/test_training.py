"""The loop of a fit: stages, their ends, what callbacks see, resuming; L-BFGS-B; minibatches."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from problems import t64
from scipy.optimize import minimize
from sklearn.callback import with_callbacks
from sklearn.exceptions import ConvergenceWarning

from skgpsvm._estimator import TorchEstimator
from skgpsvm._training import Packing, Run, adam, by_autograd, lbfgs, minibatches
from skgpsvm.callbacks import Checkpoint
from skgpsvm.exceptions import DivergenceError, NotPositiveDefiniteError

X, Y = np.zeros((3, 1)), np.arange(3)


class Halving(TorchEstimator):
    """Halves a number from one; its objective is minus the number."""

    def __init__(self, max_iter=5, finished_below=0.0, converged_below=None, n_stages=1):
        self.max_iter = max_iter
        self.finished_below = finished_below
        self.converged_below = converged_below
        self.n_stages = n_stages

    def step(self, state):
        state["value"] = state["value"] / 2
        state["total"] = state["total"] + state["value"]
        return -state["value"]

    def converged(self, state):
        return state["value"] < self.converged_below

    @with_callbacks
    def fit(self, X, y, weights=None):
        run = Run(self, X, y, X, y, weights)
        self.seed_ = run.remember("seed", self.draw_seed)
        self.states_, self.curves_ = [], []
        for i in range(self.n_stages):
            state = {"value": t64(1.0), "total": t64(float(self.seed_)), "stage": i}
            curve = run.stage(
                f"stage {i}",
                state,
                self.step,
                self.max_iter,
                finished=lambda state: state["value"] < self.finished_below,
                converged=None if self.converged_below is None else self.converged,
                attributes=lambda state: {"value_": state["value"].item()},
            )
            self.states_.append(state)
            self.curves_.append(curve)
        run.end({"value_": state["value"].item()})
        return self

    def draw_seed(self):
        return 7


class Recorder:
    """Notes every task; stops an iteration's stage where the value is below a threshold."""

    def __init__(self, stop_below=0.0):
        self.stop_below = stop_below
        self.events, self.values, self.shown = [], [], []

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, X, y, fitted_estimator):
        self.events.append(f"end {context.task_name}")
        self.shown.append((X, y))
        if context.task_name == "iteration":
            self.values.append(fitted_estimator.value_)
            return fitted_estimator.value_ < self.stop_below
        return False


# Stages


def test_stage_runs_its_iterations_and_returns_their_objectives():
    model = Halving(max_iter=4).fit(X, Y)
    assert model.curves_ == [[-0.5, -0.25, -0.125, -0.0625]]
    assert model.states_[0] == {"value": 0.0625, "total": 7 + 0.9375, "stage": 0}


def test_stage_ends_where_it_is_finished_or_converged():
    for model in (Halving(50, finished_below=0.2), Halving(50, converged_below=0.2)):
        assert model.fit(X, Y).curves_ == [[-0.5, -0.25, -0.125]]


def test_only_a_stage_that_should_have_converged_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Halving(max_iter=3).fit(X, Y)
        Halving(max_iter=3, converged_below=0.2).fit(X, Y)
        Halving(max_iter=9, finished_below=0.2, converged_below=0.01).fit(X, Y)
    with pytest.warns(ConvergenceWarning, match=r"Halving reached max_iter=2 .* tol"):
        Halving(max_iter=2, converged_below=0.2).fit(X, Y)


def test_stages_warn_together():
    with pytest.warns(ConvergenceWarning, match="in stages 'stage 0', 'stage 1'") as told:
        Halving(max_iter=2, converged_below=0.2, n_stages=2).fit(X, Y)
    assert len(told) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_objective_that_is_not_finite_raises(value):
    class Diverging(Halving):
        def step(self, state):
            return value if super().step(state) > -0.2 else -1.0

    model, recorder = Diverging(max_iter=9), Recorder()
    with pytest.raises(DivergenceError, match=f"became {value} in iteration 3 of stage 'stage 0'"):
        model.set_callbacks(recorder).fit(X, Y)
    assert not hasattr(model, "value_")
    assert recorder.events[-1] == "teardown"


def test_objectives_may_be_tensors():
    class Tensors(Halving):
        def step(self, state):
            return t64(super().step(state).item())

    curve = Tensors(max_iter=2).fit(X, Y).curves_[0]
    assert curve == [-0.5, -0.25]
    assert all(type(value) is float for value in curve)


# Callbacks


def test_callbacks_see_every_task_and_the_model_so_far():
    recorder = Recorder()
    Halving(max_iter=2, n_stages=2).set_callbacks(recorder).fit(X, Y)
    iterations = ["begin iteration", "end iteration"] * 2
    stages = [
        event for i in range(2) for event in (f"begin stage {i}", *iterations, f"end stage {i}")
    ]
    assert recorder.events == ["setup", "begin fit", *stages, "end fit", "teardown"]
    assert recorder.values == [0.5, 0.25] * 2
    assert all(shown[0] is X and shown[1] is Y for shown in recorder.shown)


def test_callback_can_stop_a_stage_without_a_warning():
    recorder = Recorder(stop_below=0.2)
    model = Halving(max_iter=9, converged_below=1e-9, n_stages=2).set_callbacks(recorder).fit(X, Y)
    assert model.curves_ == [[-0.5, -0.25, -0.125]] * 2


# Resuming


class Killed(Exception):
    """What interrupts a fit here."""


class Interrupted(Halving):
    """Raises in a given call of `step`, counted over all stages; -1 is never."""

    kill_at, calls = -1, 0

    def step(self, state):
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed
        return super().step(state)


def interrupted(directory, kill_at, every, **parameters):
    """A fit, killed at a call and then resumed by a new object; and the calls it still took."""
    killed = Interrupted(n_stages=2, **parameters).set_callbacks(Checkpoint(directory, every))
    killed.kill_at = kill_at
    with pytest.raises(Killed):
        killed.fit(X, Y)
    assert len(list(directory.iterdir())) == 1
    model = Interrupted(n_stages=2, **parameters).set_callbacks(Checkpoint(directory, every))
    return model.fit(X, Y), model.calls


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kill_at", range(1, 9))
def test_killed_fit_resumes_to_the_same_end(tmp_path, kill_at, every):
    whole = Halving(max_iter=4, n_stages=2).fit(X, Y)
    model, calls = interrupted(tmp_path, kill_at, every, max_iter=4)
    assert model.curves_ == whole.curves_
    assert model.states_ == whole.states_
    # Saved after every (second) iteration and after the last one of a stage.
    assert calls == 8 - (kill_at - 1) // every * every
    assert not list(tmp_path.iterdir())


def test_stage_that_converged_is_not_continued(tmp_path):
    model, calls = interrupted(tmp_path, 4, 1, max_iter=9, converged_below=0.2)
    assert calls == 3
    assert model.curves_ == [[-0.5, -0.25, -0.125]] * 2


def test_remembered_value_outlives_the_kill(tmp_path):
    seeds = iter([3, 5])

    class Random(Interrupted):
        def draw_seed(self):
            return next(seeds)

    killed = Random().set_callbacks(Checkpoint(tmp_path))
    killed.kill_at = 2
    with pytest.raises(Killed):
        killed.fit(X, Y)
    assert Random().set_callbacks(Checkpoint(tmp_path)).fit(X, Y).seed_ == 3
    # Forgotten with the fit.
    assert Random().set_callbacks(Checkpoint(tmp_path)).fit(X, Y).seed_ == 5


def test_other_data_parameters_or_weights_do_not_resume(tmp_path):
    killed = Interrupted(max_iter=4).set_callbacks(Checkpoint(tmp_path))
    killed.kill_at = 3
    with pytest.raises(Killed):
        killed.fit(X, Y, weights=Y)
    for parameters, data in (
        ({"max_iter": 4}, (X, Y, None)),
        ({"max_iter": 4}, (X + 1, Y, Y)),
        ({"max_iter": 5}, (X, Y, Y)),
    ):
        model = Interrupted(**parameters).set_callbacks(Checkpoint(tmp_path)).fit(*data)
        assert model.calls == parameters["max_iter"]
    model = Interrupted(max_iter=4).set_callbacks(Checkpoint(tmp_path)).fit(X, Y, Y)
    assert model.calls == 2


# Maximisers and minibatches


@pytest.mark.parametrize("seed", range(3))
def test_lbfgs_finds_the_constrained_optimum_of_a_quadratic(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 5))
    H, centre = t64(root @ root.T + np.eye(5)), t64(2 * rng.normal(size=5))
    bounds = t64([[-0.5, 0.5]] * 5)

    def objective(x):
        return 3 - 0.5 * (x - centre) @ H @ (x - centre)

    best, value = lbfgs(by_autograd(objective), torch.zeros(5, dtype=torch.float64), bounds, 200)
    assert ((best >= -0.5) & (best <= 0.5)).all()
    assert value == pytest.approx(objective(best).item(), rel=1e-12)
    # Karush–Kuhn–Tucker: no slope inside, and outward slopes at the bounds.
    slope = -H @ (best - centre)
    inside = best.abs() < 0.5
    assert 0 < (~inside).sum()
    np.testing.assert_allclose(slope[inside], 0, atol=1e-4)
    assert (slope * best.sign())[~inside].min() > 0


def test_lbfgs_reaches_an_optimum_inside_and_counts_iterations():
    centre = t64([0.3, -0.2])

    def objective(x):
        return -((x - centre) ** 4).sum() - (x - centre).square().sum()

    start, bounds = t64([1.0, 1.0]), t64([[-2.0, 2.0]] * 2)
    best, value = lbfgs(by_autograd(objective), start, bounds, 100)
    # The default tolerance of the gradient, 1e-5, over a curvature of 2.
    np.testing.assert_allclose(best, centre, rtol=0, atol=1e-5)
    assert value == pytest.approx(0, abs=1e-9)
    once, _ = lbfgs(by_autograd(objective), start, bounds, 1)
    assert objective(start) < objective(once) < value
    reference = minimize(
        lambda x: -objective(t64(x)).item(), start, method="L-BFGS-B", options={"maxiter": 100}
    )
    assert value == pytest.approx(-reference.fun, abs=1e-9)


def _log_or_error(x):
    if x[0] <= 0:
        raise NotPositiveDefiniteError("The matrix is not positive definite.")
    return x[0].log() - x[0], 1 / x - 1


def _log_or_nan(x):
    value = x[0].log() - x[0]
    return value, 1 / x - 1 if x[0] > 0 else torch.full_like(x, torch.nan)


@pytest.mark.parametrize("maximize", [lbfgs, partial(adam, learning_rate=1.5)])
@pytest.mark.parametrize("objective", [_log_or_error, _log_or_nan])
def test_steps_to_where_the_objective_fails_are_rejected(maximize, objective):
    failures = []

    def counted(x):
        failures.append(bool(x[0] <= 0))
        value, slope = objective(x)
        return value.item(), slope

    start, bounds = t64([4.0]), t64([[-1e3, 1e3]])
    best, value = maximize(counted, start, bounds, 200)
    assert any(failures)
    np.testing.assert_allclose(best, 1, rtol=0, atol=1e-2)
    assert value == pytest.approx(-1, abs=1e-4)


@pytest.mark.parametrize("maximize", [lbfgs, partial(adam, learning_rate=0.1)])
def test_a_start_where_the_objective_fails_is_an_error(maximize):
    with pytest.raises(NotPositiveDefiniteError):
        maximize(_log_or_error, t64([-1.0]), t64([[-1e3, 1e3]]), 20)


def test_lbfgs_takes_gradients_from_either_source():
    centre = t64([0.3, -0.2])
    start, bounds = t64([1.0, 1.0]), t64([[-2.0, 2.0], [0.0, 2.0]])

    def by_hand(x):
        assert not x.requires_grad
        z = x - centre
        return -(z**4 + z**2).sum().item(), -(4 * z**3 + 2 * z)

    best, value = lbfgs(by_hand, start, bounds, 100)
    automatic = by_autograd(lambda x: -((x - centre) ** 4 + (x - centre) ** 2).sum())
    same, same_value = lbfgs(automatic, start, bounds, 100)
    # The same steps, but for rounding of the gradients.
    np.testing.assert_allclose(best, same, rtol=0, atol=1e-9)
    assert value == pytest.approx(same_value, rel=1e-12)
    np.testing.assert_allclose(best, [0.3, 0.0], rtol=0, atol=1e-5)
    assert torch.equal(start, t64([1.0, 1.0]))


def test_adam_steps_alike_in_all_coordinates_and_ends_at_the_optimum_within_bounds():
    slopes, centre = t64([1e4, 1.0, 1e-3]), t64([0.5, 0.5, 2.0])
    start, bounds = torch.zeros(3, dtype=torch.float64), t64([[-1.0, 1.0]] * 3)
    objective = by_autograd(lambda x: -0.5 * (slopes * (x - centre).square()).sum())
    first, _ = adam(objective, start, bounds, 1, 0.03)
    np.testing.assert_allclose(first, [0.03] * 3, rtol=1e-4)
    best, value = adam(objective, start, bounds, 300, 0.03)
    np.testing.assert_allclose(best, [0.5, 0.5, 1.0], rtol=0, atol=1e-3)
    assert value == pytest.approx(objective(best)[0], rel=1e-12)
    assert not start.any()


def test_packed_tensors_come_back_with_their_slopes_and_bounds():
    state = {"a": t64([1.0, 2.0]), "b": t64([[1.0, 2.0], [3.0, 4.0]]), "c": t64([9.0])}
    packing = Packing(["b", "a"], {"b": t64([2.0, 4.0])}, {"a": t64([[0.0, 1.0], [2.0, 3.0]])})
    vector = packing.vector(state)
    np.testing.assert_array_equal(vector, [0.5, 0.5, 1.5, 1.0, 1.0, 2.0])
    parts = packing.parts(vector, state)
    assert list(parts) == ["b", "a"]
    for name, part in parts.items():
        assert torch.equal(part, state[name])

    def objective(point):
        parts = packing.parts(point, state)
        return (parts["a"] ** 3).sum() + (parts["b"] ** 2).sum()

    _, slope = by_autograd(objective)(vector.clone())
    by_hand = packing.slope({"a": 3 * state["a"] ** 2, "b": 2 * state["b"]})
    np.testing.assert_allclose(by_hand, slope, rtol=1e-14)
    limits = packing.limits(state)
    np.testing.assert_array_equal(limits[:4], [[-np.inf, np.inf]] * 4)
    np.testing.assert_array_equal(limits[4:], [[0, 1], [2, 3]])


def test_value_and_gradient_by_autograd():
    z = t64([0.7, 0.7])
    with torch.no_grad():
        value, gradient = by_autograd(lambda x: -(x**4 + x**2).sum())(z.clone())
    assert isinstance(value, float)
    assert value == pytest.approx(-(z**4 + z**2).sum().item(), rel=1e-14)
    np.testing.assert_allclose(gradient, -(4 * z**3 + 2 * z), rtol=1e-14)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 9, 10, 99])
def test_minibatches_cover_all_rows_once_in_nearly_equal_parts(batch_size):
    batches = minibatches(10, batch_size, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(batches).tolist()) == list(range(10))
    sizes = [len(batch) for batch in batches]
    assert len(batches) == math.ceil(10 / batch_size)
    assert max(sizes) <= batch_size
    # A last batch of a few rows would stand for all rows as much as the others do.
    assert max(sizes) - min(sizes) <= 1


def test_minibatches_are_the_generator_s():
    first, second = (torch.Generator().manual_seed(0) for _ in range(2))
    once, again = (torch.cat(minibatches(50, 50, g)) for g in (first, second))
    assert torch.equal(once, again)
    assert not torch.equal(once, torch.cat(minibatches(50, 50, first)))
