"""The loop of a fit: stages and their ends, callbacks, resuming from a checkpoint."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from problems import t64
from sklearn.callback import with_callbacks
from sklearn.exceptions import ConvergenceWarning

from skgpsvm._estimators import GPEstimator
from skgpsvm._fitting import Run, Stage, State
from skgpsvm.callbacks import Checkpoint
from skgpsvm.exceptions import DistributedError, DivergenceError

X, Y = np.zeros((3, 1)), np.arange(3)


@dataclass
class Halved(State):
    """State with a number, and the sum of the numbers before it."""

    value: object = None  # a tensor, like the sum
    total: object = None
    stage: int = 0


class Half(Stage):
    """Stage that repeats a method of the estimator until the number is below a threshold."""

    def __init__(self, method, threshold):
        self.method, self.threshold = method, threshold

    def step(self, state):
        self.method(state)

    def converged(self, state):
        return state.value < self.threshold


class Halving(GPEstimator):
    """Estimator that starts from one and halves it; its objective is minus the number."""

    def __init__(self, max_iter=5, finished_below=0.0, converged_below=None, n_stages=1):
        self.max_iter = max_iter
        self.finished_below = finished_below
        self.converged_below = converged_below
        self.n_stages = n_stages

    def step(self, state):
        state.value = state.value / 2
        state.total = state.total + state.value
        state.objective = -state.value

    @with_callbacks
    def fit(self, X, y, weights=None):
        run = Run(self, X, y, X, y, weights)
        self.seed_ = run.checkpointed("seed", self.draw_seed)
        self.states_, self.curves_ = [], []
        for i in range(self.n_stages):
            state = Halved(value=t64(1.0), total=t64(float(self.seed_)), stage=i)
            must_converge = self.converged_below is not None
            threshold = max(self.finished_below, self.converged_below or 0.0)
            curve = run.run(
                f"stage {i}",
                Half(self.step, threshold),
                state,
                self.max_iter,
                must_converge=must_converge,
                attributes=lambda state: {"value_": state.value.item()},
            )
            self.states_.append(state)
            self.curves_.append(curve)
        run.end({"value_": state.value.item()})
        return self

    def draw_seed(self):
        return 7


class Recorder:
    """Callback that records every task, and stops a stage when the value is below a threshold."""

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


def test_ranks_exchange_one_message_in_an_iteration(monkeypatch):
    sent = []

    def exchange(values, value):
        sent.append(value)
        values[:] = [value] * len(values)

    monkeypatch.setattr("skgpsvm._distributed.n_ranks", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", exchange)
    assert Halving(max_iter=4).fit(X, Y).curves_ == [[-0.5, -0.25, -0.125, -0.0625]]
    assert len(sent) == 4


def test_ranks_whose_objectives_differ_do_not_go_on(monkeypatch):
    def exchange(values, value):
        ((objective, done),), failure = value
        values[:] = [value, ([(objective - 1, done)], failure)]

    monkeypatch.setattr("skgpsvm._distributed.n_ranks", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", exchange)
    told = r"rank 0 has objective -0\.5; rank 1 has objective -1\.5"
    with pytest.raises(DistributedError, match=told):
        Halving(max_iter=4).fit(X, Y)


def test_stage_runs_its_iterations_and_returns_their_objectives():
    model = Halving(max_iter=4).fit(X, Y)
    assert model.curves_ == [[-0.5, -0.25, -0.125, -0.0625]]
    assert model.states_[0] == Halved(-0.0625, t64(0.0625), t64(7 + 0.9375), 0)


def test_stage_ends_where_it_is_finished_or_converged():
    for model in (Halving(50, finished_below=0.2), Halving(50, converged_below=0.2)):
        assert model.fit(X, Y).curves_ == [[-0.5, -0.25, -0.125]]


def test_only_a_stage_that_should_have_converged_warns():
    with warnings.catch_warnings(action="error"):
        Halving(max_iter=3).fit(X, Y)
        Halving(max_iter=3, converged_below=0.2).fit(X, Y)
        Halving(max_iter=9, finished_below=0.2, converged_below=0.01).fit(X, Y)
    with pytest.warns(ConvergenceWarning, match=r"Halving reached max_iter=2 .* tol"):
        Halving(max_iter=2, converged_below=0.2).fit(X, Y)


def test_stages_warn_together():
    with pytest.warns(ConvergenceWarning, match="in stages 'stage 0', 'stage 1'") as told:
        Halving(max_iter=2, converged_below=0.2, n_stages=2).fit(X, Y)
    assert len(told) == 1
    with pytest.warns(ConvergenceWarning, match="'stage 1', 'stage 2' and 7 more"):
        Halving(max_iter=2, converged_below=0.2, n_stages=10).fit(X, Y)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_objective_that_is_not_finite_raises(value):
    class Diverging(Halving):
        def step(self, state):
            super().step(state)
            state.objective = value if state.objective > -0.2 else -1.0

    model, recorder = Diverging(max_iter=9), Recorder()
    with pytest.raises(DivergenceError, match=f"became {value} in iteration 3 of stage 'stage 0'"):
        model.set_callbacks(recorder).fit(X, Y)
    assert not hasattr(model, "value_")
    assert recorder.events[-1] == "teardown"


def test_objectives_may_be_tensors():
    class Tensors(Halving):
        def step(self, state):
            super().step(state)
            state.objective = t64(state.objective.item())

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
    """Error that interrupts a fit in these tests."""


class Interrupted(Halving):
    """Estimator that raises in a given call of `step`, counted over all stages; -1 is never."""

    kill_at, calls = -1, 0

    def step(self, state):
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed
        super().step(state)


def interrupted(directory, kill_at, every, **parameters):
    """Return a fit, killed at a call and resumed by a new object, and its number of later calls."""
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
    # States are saved after every (second) iteration, and after the last one of a stage.
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
    # The value is forgotten when the fit has ended.
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


# Maximizers and minibatches
