"""Stochastic steps of relevance vector machines: their gradient, their optimum, pruning."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from problems import rows_of, t64
from scipy.optimize import minimize_scalar
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import QSRVMClassifier, QSRVMRegressor
from skgpsvm._targets import regression_sites
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.exceptions import DivergenceError
from skgpsvm.quadruply_stochastic import _stochastic
from skgpsvm.quadruply_stochastic._estimates import Draw
from skgpsvm.quadruply_stochastic._relevance import BiasedDictionary
from skgpsvm.quadruply_stochastic._relevance_steps import RelevanceSteps
from skgpsvm.solvers import QuadruplyStochastic

# The rows and points of the specification's tiny problem, two outputs, and a constant.
X = t64([-1.0, -0.25, 0.5, 1.25])[:, None]
Y = t64([[0.3, 1.0], [-0.6, 0.2], [0.8, -0.4], [1.1, 0.5]])
POINTS = t64([-0.8, 0.1, 1.0])[:, None]
PRECISIONS = t64([[0.5, 1.0, 2.0, 0.1], [3.0, 0.2, 1.0, 0.3]])
COEF = t64([[0.2, -0.5, 0.7, 0.1], [0.4, 0.3, -0.2, -0.6]])
NOISE = 0.25
KERNEL, THETA = torch_kernel(RBF(1.0, "fixed")), t64([])


def steps_on(X, Y, points, precisions, *, n_dense=0, passes=50, **options):
    options = {"batch_size": 2, "n_sampled_basis": 2, "control_variate": None} | options
    rows = rows_of(np.asarray(X), np.asarray(Y))
    return RelevanceSteps(
        regression_sites("gaussian", np.array([NOISE]), Y.shape[1]),
        BiasedDictionary(KERNEL, THETA, points, precisions),
        None,
        rows,
        torch.Generator().manual_seed(0),
        QuadruplyStochastic(**options),
        n_dense=n_dense,
        passes=passes,
        threshold=1e4,
    )


def begun(steps, support):
    state = steps.init(THETA, t64([np.log(NOISE)]), support)
    steps.begin(state)
    return state


def draws_at(bases, index):
    """Return all draws of one unit from each of two strata, at rows and two support rows."""
    for units in product([0], [1, 2]):
        units = torch.tensor(units)
        at, _ = bases.coordinates(units)
        values = bases.sampled(X[index], units), bases.sampled(X[1::2], units)
        yield Draw(units, at, at, t64([1.0, 2.0, 1.0]), *values)


@pytest.mark.parametrize("control", ["interpolating", "gram", None])
@pytest.mark.parametrize("gradient", ["symmetric", "plain"])
def test_steps_average_to_the_gradient(control, gradient, monkeypatch):
    options = {"control_variate": control, "gradient": gradient, "learning_rate": -1.0}
    steps, found = steps_on(X, Y, POINTS, PRECISIONS, **options), []
    monkeypatch.setattr(steps, "_inverse_scale", lambda state, at: 1.0)
    values = steps.bases.values(X)
    for index in combinations(range(4), 2):
        for pair in product(draws_at(steps.bases, list(index)), repeat=2):
            state = begun(steps, X[1::2])
            state.coef, state.at_support = COEF.clone(), values[1::2] @ COEF.T
            steps._prepare(state)
            given = iter(pair)
            monkeypatch.setattr(_stochastic, "draw", lambda *_, given=given: next(given))
            steps.update(state, torch.tensor(index))
            found.append(state.coef - COEF)
    gradient = (COEF @ values.T - Y.T) @ values / NOISE + PRECISIONS * COEF
    assert_allclose(torch.stack(found).mean(0), gradient, atol=1e-12)


def test_precisions_move_to_the_maximum_of_the_bound():
    steps = steps_on(X, Y, POINTS, PRECISIONS, n_dense=1)
    state = begun(steps, X)
    state.n_steps = 1000
    state.coef = torch.cat([COEF, t64([[0.5, 0.1, -0.2, 0.3], [0.4, -0.1, 0.2, 0.1]])])
    state.data = t64([[7.0, 5.0, 6.0, 8.0], [2.0, 3.0, 4.0, 1.0]])
    steps._at(state)

    def slack(log_s, mean, square, data):
        """Return twice the negative bound of a precision, with its variance at its optimum."""
        s = np.exp(log_s)
        return s * (mean**2 + square) - log_s + (np.log(data + s) if data else 0.0)

    best = torch.zeros(2, 4).double()
    for j, i in product(range(2), range(4)):
        data = state.data[j, i].item() if i else None  # the first has a column of its own
        parts = COEF[j, i].item(), state.coef[2 + j, i].square().item(), data
        best[j, i] = minimize_scalar(slack, args=parts, bracket=(0, 1), tol=1e-12).x
    away = (state.precisions.log() - best).abs()
    for _ in range(200):
        steps._learn_prior(state, torch.arange(4))
        before, away = away, (state.precisions.log() - best).abs()
        assert (away < before + 1e-6).all()
    assert (away < 1e-6).all()


def sinc(n, seed=0):
    """Return rows (n, 1), targets of unit variance and the truth in the same unit."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(-10, 10, (n, 1))
    truth = np.sinc(places / np.pi)
    y = truth + 0.1 * rng.normal(size=(n, 1))
    return places / 1.5, y / y.std(), truth / y.std()


@pytest.mark.parametrize(("n_dense", "step"), [(0, "sgd"), (5, "sgd"), (0, "adagrad")])
def test_steps_approach_the_optimum_at_given_precisions(n_dense, step):
    places, y, _ = sinc(60)
    points = t64(np.linspace(-6, 6, 12)[:, None])
    precisions = torch.linspace(0.1, 5, 13, dtype=torch.float64)[None]
    options = {"batch_size": 30, "n_sampled_basis": 6, "control_variate": "interpolating"}
    options |= {"n_dense": n_dense, "step": step}
    steps = steps_on(places, y, points, precisions, passes=400, **options)
    steps._n_first_steps = torch.inf
    state = begun(steps, t64(places[:40]))
    for _ in range(400):
        steps.step(state)
    values = steps.bases.values(t64(places))
    A = values.T @ values / NOISE + precisions[0].diag()
    right = values.T @ t64(y)[:, 0] / NOISE
    best = torch.linalg.solve(A, right)
    found = steps.posterior(state)
    gap = found["coef"][0] - best
    assert (gap @ A @ gap) < 0.02 * (best @ right)
    assert_allclose(found["diag"][0, n_dense:], A.diagonal()[n_dense:].rsqrt(), rtol=0.01)
    for r, column in enumerate(found["columns"][0].T):
        solved = torch.linalg.solve(A[r:, r:], torch.eye(13 - r).double()[0])
        assert_allclose(column[r:], solved / solved[0].sqrt(), atol=0.05)
    assert_allclose(state.at_support, steps.bases.mean(state.support, state.coef), atol=1e-9)


def test_steps_learn_what_sweeps_do():
    places, y, truth = sinc(100)
    kernel = RBF(1.0, "fixed")
    options = {"covariance": "mean_field", "normalize_y": False, "random_state": 0}
    swept = QSRVMRegressor(kernel, **options).fit(places, y[:, 0])
    solver = QuadruplyStochastic(batch_size=50, n_sampled_basis=50, n_support=50)
    options |= {"max_iter": 400, "solver": solver}
    stepped = QSRVMRegressor(kernel, **options).fit(places, y[:, 0])
    assert len(stepped.relevance_vectors_) <= len(swept.relevance_vectors_) + 10
    # That of the sweeps has held-out rows besides.
    assert_allclose(stepped.noise_variance_, swept.noise_variance_, rtol=0.25)
    assert_allclose(stepped.predict(places), swept.predict(places), atol=0.2)
    # The estimate is at the last coefficients, before they are averaged.
    assert swept.elbo_ - 25 < stepped.elbo_ < swept.elbo_ + 5
    errors = [model.predict(places) - truth[:, 0] for model in (stepped, swept)]
    assert np.std(errors[0]) < 1.2 * np.std(errors[1])


@pytest.mark.parametrize("n_dense", [0, 2])
def test_pruning_removes_functions_from_all_of_the_state(n_dense):
    steps = steps_on(X, Y, POINTS, PRECISIONS, n_dense=n_dense)
    state = begun(steps, X[1::2])
    steps.step(state)
    state.precisions[:, 0] = 1e5
    before = {name: part.clone() for name, part in steps.posterior(state).items()}
    coef = state.coef.clone()
    steps._prune(state)
    assert_allclose(state.bases, POINTS[1:])
    assert_allclose(state.coef[:2], coef[:2, 1:])
    assert_allclose(state.at_support, steps.bases.mean(X[1::2], state.coef), atol=1e-12)
    after = steps.posterior(state)
    assert_allclose(after["diag"], before["diag"][:, 1:])
    if n_dense:
        assert_allclose(after["columns"][:, :, 0], before["columns"][:, 1:, 1])
        own = torch.diag_embed(before["diag"])[:, 1:, 2]
        assert_allclose(after["columns"][:, :, 1], own)
    steps.step(state)
    assert np.isfinite(state.objective)


def test_a_stream_ends_near_a_fit():
    places, y, _ = sinc(200)
    solver = QuadruplyStochastic(batch_size=25, n_sampled_basis=30, n_support=50)
    model = QSRVMRegressor(RBF(1.0, "fixed"), solver=solver, max_iter=60, random_state=0)
    whole = model.fit(places, y[:, 0]).predict(places)
    for start in range(0, 200, 50):
        model.set_params(max_iter=200)
        rows = slice(start, start + 50)
        model = model if start else QSRVMRegressor(**model.get_params(deep=False))
        model.partial_fit(places[rows], y[rows, 0])
    assert_allclose(model.predict(places), whole, atol=0.7)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_are_learned(n_classes):
    rng = np.random.default_rng(0)
    places = rng.normal(size=(150, 2))
    labels = np.digitize(np.hypot(*places.T), [0.9, 1.5][: n_classes - 1])
    solver = QuadruplyStochastic(batch_size=50, n_sampled_basis=50, n_support=50)
    options = {"solver": solver, "max_iter": 100, "optimizer": None, "random_state": 0}
    model = QSRVMClassifier(RBF(1.0), **options).fit(places, labels)
    assert model.score(places, labels) > 0.9
    assert len(model.relevance_vectors_) < 100


def test_covariances_of_the_other_solver_are_refused():
    for options in (
        {"covariance": "chevron"},
        {"covariance": "full", "solver": QuadruplyStochastic()},
    ):
        with pytest.raises(ValueError, match=r"^covariance='.*' is not for solver="):
            QSRVMRegressor(**options).fit(X, Y)


def test_first_rows_of_a_stream_are_refused_as_later_ones_are():
    model = QSRVMClassifier(solver="quadruply_stochastic", class_weight="balanced")
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows"):
        model.partial_fit(X, [0, 1, 0, 1])


def test_error_of_divergence_names_no_solver_that_a_vector_machine_lacks():
    places, y, _ = sinc(50)
    model = QSRVMRegressor(RBF(1.0), solver=QuadruplyStochastic(learning_rate=1e4), max_iter=9)
    with pytest.raises(DivergenceError, match="or use another solver"):
        model.set_params(optimizer=None, random_state=0).fit(places, y[:, 0])
