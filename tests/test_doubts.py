"""Fits warn if they end on bounds set by the user, or explain nothing but noise."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    ConstantKernel,
    ExpSineSquared,
    WhiteKernel,
)

from skgpsvm import (
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._doubts import on_bounds

FEW = {"n_inducing": 8, "random_state": 0, "max_iter": 3}
NETWORK = {"module_params": {"hidden_layer_sizes": (4,)}, "max_iter": 2, "random_state": 0}
LEARNERS = [
    BayesianSVC(**FEW),
    BayesianSVC(**FEW, multi_class="ovr"),
    DecoupledGPClassifier(**FEW),
    DecoupledGPRegressor(**FEW),
    DecoupledGPRegressor(**FEW, solver="sgd"),
    EPClassifier(**FEW),
    HybridBayesianSVC(**NETWORK),
    HybridSVGPClassifier(**NETWORK),
    HybridSVGPRegressor(**NETWORK),
    QSGPClassifier(**FEW, n_basis=20),
    QSGPRegressor(**FEW, n_basis=20),
    QSRVMClassifier(max_iter=3),
    QSRVMRegressor(max_iter=3),
    SVGPClassifier(**FEW),
    SVGPRegressor(**FEW),
    SVGPRegressor(**FEW, likelihood="student_t"),
]
learners = pytest.mark.parametrize("model", LEARNERS, ids=str)


def blobs(n=40, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return rng.normal(size=(n, 2)) + 1.5 * y[:, None], y


def told(model, X, y):
    """Return the warnings of a fit, except those of too few iterations."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clone(model).fit(X, y)
    doubts = [str(one.message) for one in caught if one.category is ConvergenceWarning]
    return [doubt for doubt in doubts if "reached max_iter" not in doubt]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (RBF(2.0, (2.0, 9.0)), ["kernel_.length_scale = 2 on its lower bound 2"]),
        (RBF(9.0, (2.0, 9.0)), ["kernel_.length_scale = 9 on its upper bound 9"]),
        (1.0 * RBF([2.0, 3.0, 9.0], (2.0, 9.0)), ["kernel_.k2.length_scale[0]", "..[2]"]),
        (WhiteKernel(0.5, (0.1, 0.5)) + RBF(), ["kernel_.k1.noise_level = 0.5 on its upper"]),
        (RBF(1e5) + ConstantKernel(1e-5), []),  # scikit-learn's default bounds, not set by the user
        (RBF(2.0, (1e-5, 2.0)), ["kernel_.length_scale = 2 on its upper bound 2"]),
        (RBF(2.1, (2.0, 9.0)), []),
        (RBF(2.0, "fixed"), []),
        (RBF(2.0, (2.0, 2.0)), []),
        (CompoundKernel([RBF(), RBF(2.0, (2.0, 9.0))]), ["kernel_.kernels[1].length_scale = 2"]),
    ],
    ids=str,
)
def test_values_on_bounds_are_named(kernel, expected):
    found = on_bounds(kernel, lambda name: True)
    assert len(found) == len(expected)
    for got, start in zip(found, expected, strict=True):
        assert start.removeprefix("..") in got


@learners
def test_every_estimator_tells_of_the_user_s_bounds(model):
    # The bounds are so close to each other that every value is on one of them.
    kernel = RBF(1.0, (1.0, 1.0015)) + RBF(3.0, "fixed")
    message = told(model.set_params(kernel=kernel), *blobs())[0]
    assert message.startswith(f"{type(model).__name__} ended with hyperparameters on bounds")
    assert "length_scale = 1 on its " in message
    assert "Widen the bounds" in message


@learners
def test_every_estimator_tells_of_hardly_any_signal(model):
    kernel = {"kernel": 1.0 * RBF(1e3, "fixed")}
    if "mean" in model.get_params():
        kernel["mean"] = "zero"
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(40, 2)), rng.integers(0, 2, 40)
    (message,) = told(model.set_params(**kernel), X, y)
    assert message.startswith(f"{type(model).__name__} found hardly any signal: with kernel=1**2")
    assert "nats higher in total" in message


def test_hardly_any_signal_is_told_where_rows_have_weight_zero(monkeypatch):
    monkeypatch.setattr("skgpsvm._merging._MAX_MERGED", 0)  # as of large data, whose rows all stay
    monkeypatch.setattr("skgpsvm._estimators._base._DOUBTED_ROWS", 20)
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(40, 1)), rng.normal(size=40), np.ones(40)
    weights[np.linspace(0, 39, 20).astype(int)] = 0
    with pytest.warns(ConvergenceWarning, match="found hardly any signal"):
        SVGPRegressor(ConstantKernel(1e-3, "fixed") * RBF(), random_state=0).fit(X, y, weights)


def test_another_period_than_the_data_s_is_told():
    x = np.random.default_rng(0).uniform(0, 400, 100)
    y = np.sin(2 * np.pi * x / 40)
    kernel = 1.0 * ExpSineSquared(1.0, 35.0, periodicity_bounds="fixed")
    (message,) = told(SVGPRegressor(kernel, n_inducing=30, random_state=0), x[:, None], y)
    assert "another periodicity" in message
    kernel = 1.0 * ExpSineSquared(1.0, 40.0, periodicity_bounds="fixed")
    assert not told(SVGPRegressor(kernel, n_inducing=30, random_state=0), x[:, None], y)


@pytest.mark.parametrize(
    "parameters",
    [
        {},  # the default kernel correctly ends at noise
        {"kernel": RBF(1.0, (1.0, 1.0015)), "optimizer": None},
        {"kernel": 1.0 * RBF(1.0)},
        {"kernel": ConstantKernel(0.01, "fixed") * RBF(0.1, "fixed")},  # only noise is learned
    ],
    ids=str,
)
def test_users_who_set_no_bounds_hear_nothing(parameters):
    X, y = blobs()
    if not parameters or not parameters["kernel"].n_dims:
        y = np.random.default_rng(0).normal(size=40)
    assert not told(SVGPRegressor(n_inducing=8, random_state=0, **parameters), X, y)


def test_additive_models_tell_of_the_user_s_bounds():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    model = AdditiveGPRegressor(interactions=None)
    assert not told(model, X, y)
    (message,) = told(model.set_params(length_scale_bounds=(0.05, 0.3)), X, y)
    assert "the length scale of x0 = 0.3 on its upper bound 0.3" in message
