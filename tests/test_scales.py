"""Scales of features with a few far values."""

import numpy as np
import pytest
from every_estimator import ESTIMATORS, problem
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_regressor
from sklearn.metrics import log_loss

from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    EPClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._hyperparameters import default_kernels
from skgpsvm._hyperparameters.default_kernels import feature_scales
from skgpsvm._scales import usual_deviations
from skgpsvm.inducing import select_inducing_points


def usual(column):
    """Return the standard deviation of a column without far values."""
    return usual_deviations(column[:, None], len(column), column.std(keepdims=True))[0]


@pytest.mark.parametrize("n", [2, 3, 10, 50, 1000])
def test_usual_features_keep_their_deviations(n):
    rng = np.random.default_rng(n)
    columns = [
        rng.normal(size=n) - 1e6,
        rng.uniform(size=n),
        rng.exponential(size=n),
        rng.lognormal(size=n),
        rng.normal(size=n) * (rng.random(n) < 0.1),  # mostly zeros
        rng.poisson(2.0, size=n),
        np.arange(n) < max(n // 50, 1),  # two values, one of them rare
        (np.arange(n) % 2) * (1 + 1e-15 * rng.normal(size=n)),  # two values and rounding errors
        np.full(n, 3.0),
    ]
    X = np.array(columns, float).T
    assert_array_equal(usual_deviations(X, n, X.std(0)), X.std(0))


@pytest.mark.parametrize("unit", [1e-140, 1.0, 1e140])
@pytest.mark.parametrize("code", [-99.0, -999.0, 5e5, 1e10])
def test_far_values_do_not_determine_the_scale(unit, code):
    x = np.random.default_rng(0).normal(size=300)
    x[:30] = code
    near = np.sort(x[30:])
    assert usual(unit * x) <= 4 * near.std() * unit
    x[:6] = code * np.arange(2, 8)
    assert usual(unit * x) <= 4 * near.std() * unit
    grades = np.resize([1.0, 2.0, 3.0, 4.0, 5.0], 300)
    grades[::30] = code
    assert_allclose(usual(unit * grades), np.std([1, 2, 3, 4, 5]) * unit)


@pytest.mark.parametrize("code", [-30.0, -999.0])
@pytest.mark.parametrize("n", [30, 300, 10_000])
def test_a_single_far_value_does_not_determine_the_scale(code, n):
    x = np.random.default_rng(n).normal(size=n)
    x[0] = code
    near = x[1:].std()
    # A hundredth more or less comes from sorting out equal values.
    assert_allclose(usual(x), near if x.std() > 2 * near else x.std(), rtol=0.01)


def test_rounding_errors_are_no_usual_values():
    rng = np.random.default_rng(0)
    x = rng.integers(3, size=300) * (1 + 1e-9 * rng.normal(size=300)) + 1e-10 * rng.normal(size=300)
    assert usual(x) == x.std()


def test_values_that_no_gap_divides_are_not_far():
    x = np.exp(np.linspace(0, 5, 50))
    assert usual(x) == x.std()
    assert usual(np.append(x, 3 * x[-1])) == np.append(x, 3 * x[-1]).std()


def test_weights_and_chunks_do_not_change_the_scale(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    X[:4, 0] = 1e5
    weights = rng.integers(3, size=200)
    expected = feature_scales(np.repeat(X, weights, axis=0), np.ones(weights.sum()))
    monkeypatch.setattr(default_kernels, "CHUNK_ROWS", 30)
    found = feature_scales(X, weights.astype(float))
    assert_allclose(found.scale_, expected.scale_, rtol=1e-11)
    assert found.scale_[0] < 2
    # The moments are still those of all rows.
    assert_allclose(found.var_, np.repeat(X, weights, axis=0).var(0))


def test_large_data_are_sorted_in_part(monkeypatch):
    X = np.random.default_rng(0).normal(size=(1000, 2))
    X[::100, 1] = 1e5
    monkeypatch.setattr(default_kernels, "_MAX_SORTED", 500)
    assert_allclose(feature_scales(X, np.ones(1000)).scale_, [1, 1], rtol=0.25)


@pytest.mark.parametrize("code", [1e4, 1e6])
def test_clusters_follow_a_feature_with_a_far_value(code):
    X = np.random.default_rng(0).normal(size=(1000, 2))
    X[0, 0] = code
    Z = select_inducing_points(X, 40, random_state=0)
    # Were the feature ignored, each point would be the mean of some 25 random values.
    assert Z[Z[:, 0] < code / 2, 0].std() > 0.5


@pytest.mark.parametrize(("code", "count"), [(-30, 1), (-30, 5), (-999, 1), (-999, 5), (1e8, 1)])
@pytest.mark.parametrize(
    "model",
    [
        AdditiveGPClassifier,
        AdditiveGPRegressor,
        BayesianSVC,
        EPClassifier,
        QSRVMRegressor,
        SVGPClassifier,
        SVGPRegressor,
    ],
)
def test_a_coded_value_does_not_hide_its_feature(model, code, count):
    rng = np.random.default_rng(1)
    X, X_test = rng.normal(size=(200, 3)), rng.normal(size=(500, 3))
    y, y_test = (np.sin(2 * Z[:, 0]) + 0.3 * rng.normal(size=len(Z)) for Z in (X, X_test))
    X[:count, 0] = code
    if is_regressor(model()):
        # Without the feature it is below .1; relevance vectors have .72 without a far value, too.
        least = 0.7 if model is QSRVMRegressor else 0.8
        assert model(random_state=0).fit(X, y).score(X_test, y_test) > least
    else:
        fit = model(random_state=0).fit(X, y > 0)
        assert log_loss(y_test > 0, fit.predict_proba(X_test)) < 0.35  # .69 if the feature is lost


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_float32_rows_far_from_zero_are_predicted_as_in_float64(name):
    """Rows are days, say: float32 has their differences to 0.002, and points between rows not."""
    model = clone(ESTIMATORS[name])
    X, y = problem(model)
    X += 2e4
    rows = X.astype(np.float32)
    model.fit(X, y)
    # Phases of random features err by 1e-3.
    tol = 5e-4 if name.startswith("qsgp") else 3e-5
    single, double = map(model.latent_mean_and_variance, (rows, rows.astype(float)))
    for found, expected in zip(single, double, strict=True):
        assert_allclose(found, expected, rtol=0, atol=tol * np.abs(expected).max())


@pytest.mark.parametrize("model", [EPClassifier, SVGPClassifier])
def test_float32_rows_far_from_zero_are_learned_from_as_in_float64(model):
    rng = np.random.default_rng(3)
    X = np.c_[2e4 + rng.uniform(0, 10, 200), rng.normal(size=200)].astype(np.float32)
    y = rng.random(200) < 1 / (1 + np.exp(-5 * np.sin(X[:, 0] - 2e4)))
    single, double = (model(random_state=0).fit(rows, y) for rows in (X, X.astype(float)))
    P, expected = single.predict_proba(X), double.predict_proba(X)
    assert np.abs(P - expected).mean() < 0.01
