"""Periods of a kernel are found from any start."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import rows_of, t64
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared

from skgpsvm import (
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    QSGPClassifier,
    QSGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._collapsed import Hyperparameters
from skgpsvm._hyperparameters.periods import columns_of_periods, most_likely_periods
from skgpsvm.kernels import Columns


def wave(period, n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 5 * period, (n, 1))
    return X, np.sin(2 * np.pi * X[:, 0] / period) + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("n_inducing", [None, 32])
@pytest.mark.parametrize("factor", [1 / 20, 35 / 40, 20])
def test_period_is_learned_from_any_start(factor, n_inducing):
    X, y = wave(40.0)
    kernel = 1.0 * ExpSineSquared(periodicity=40.0 * factor)
    model = SVGPRegressor(kernel, n_inducing=n_inducing, random_state=0).fit(X, y)
    assert model.kernel_.k1.k2.periodicity == pytest.approx(40.0, rel=0.02)


POINTS = {"basis": "inducing"}


def period_of(model):
    kernel = getattr(model.kernel_, "kernels", [model.kernel_])[0]
    (period,) = (v for name, v in kernel.get_params().items() if name.endswith("__periodicity"))
    return period


def labels(f, rng):
    return (rng.uniform(size=len(f)) < 1 / (1 + np.exp(-4 * f))).astype(int)


def three_labels(f, rng):
    return np.digitize(f + 0.3 * rng.normal(size=len(f)), [-0.5, 0.5])


def counts(f, rng):
    return rng.poisson(np.exp(1 + f))


def outliers(f, rng):
    return f + 0.2 * rng.standard_t(3, size=len(f))


def amounts(f, rng):
    return np.exp(f + 0.3 * rng.normal(size=len(f)))


def numbers(f, rng):
    return f + 0.5 * rng.normal(size=len(f))


def noise_of_wave(f, rng):
    return f + np.exp(0.5 * f - 1) * rng.normal(size=len(f))


@pytest.mark.parametrize("n", [32, 150])
@pytest.mark.parametrize(
    ("estimator", "draw", "options"),
    [
        (SVGPClassifier, labels, {}),
        (SVGPClassifier, three_labels, {}),
        (SVGPClassifier, labels, {"solver": "natural_gradient"}),
        (EPClassifier, labels, {}),
        (BayesianSVC, labels, {}),
        (BayesianSVC, three_labels, {"multi_class": "ovr"}),
        (DecoupledGPClassifier, labels, {}),
        (QSGPClassifier, labels, POINTS),
        (SVGPRegressor, numbers, {}),
        (SVGPRegressor, counts, {"likelihood": "poisson"}),
        (SVGPRegressor, amounts, {"likelihood": "gamma"}),
        (SVGPRegressor, outliers, {"likelihood": "student_t"}),
        (SVGPRegressor, noise_of_wave, {"likelihood": "heteroscedastic"}),
        (DecoupledGPRegressor, numbers, {}),
        (QSGPRegressor, numbers, POINTS),
        (QSGPRegressor, outliers, POINTS | {"likelihood": "laplace"}),
    ],
)
def test_every_estimator_finds_the_period(estimator, draw, options, n):
    rng = np.random.default_rng(n)
    X = rng.uniform(0, 5, (n, 1))
    y = draw(np.sin(2 * np.pi * X[:, 0]), rng)
    for start in (1 / 20, 20):
        kernel = 1.0 * ExpSineSquared(periodicity=start)
        model = estimator(kernel, random_state=0, **options).fit(X, y)
        assert period_of(model) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    ("estimator", "draw"), [(DecoupledGPClassifier, labels), (DecoupledGPRegressor, numbers)]
)
def test_stochastic_gradients_start_from_the_period(estimator, draw):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (150, 1))
    y = draw(np.sin(2 * np.pi * X[:, 0]), rng)
    kernel = 1.0 * ExpSineSquared(periodicity=1 / 20)
    options = {"n_inducing": 20, "max_iter": 20, "random_state": 0}
    model = estimator(kernel, solver="sgd", **options).fit(X, y)
    assert period_of(model) == pytest.approx(1.0, rel=0.1)  # steps go on until the last


def test_periods_stay_without_learning():
    X, y = wave(40.0)
    kernel = 1.0 * ExpSineSquared(periodicity=3.0)
    for estimator in (SVGPClassifier, EPClassifier, BayesianSVC):
        model = estimator(kernel, optimizer=None).fit(X, y > 0)
        assert period_of(model) == pytest.approx(3.0)


def test_period_that_is_nearly_right_is_learned_with_the_rest():
    # Steps of the size that suits length scales would miss the peak, and learning would end there.
    X, y = wave(1.0, n=150)
    kernel = 1.0 * ExpSineSquared(periodicity=1.0)
    model = SVGPClassifier(kernel, random_state=0).fit(X, y > 0)
    fixed = 1.0 * ExpSineSquared(periodicity=1.0, periodicity_bounds="fixed")
    assert model.elbo_ > SVGPClassifier(fixed, random_state=0).fit(X, y > 0).elbo_ - 1


def of_column(kernel, j):
    return 1.0 * Columns(kernel, [j])


@pytest.mark.parametrize("start", [1 / 20, 20])
@pytest.mark.parametrize("n", [32, 150])
@pytest.mark.parametrize("d", [2, 3])
def test_periods_of_several_features_are_found(d, n, start):
    rng = np.random.default_rng(n)
    periods = np.array([1.0, 0.37, 2.1])[:d]
    units = np.array([1.0, 100.0, 0.01])[:d]
    X = rng.uniform(0, 5, (n, d))
    y = np.sin(2 * np.pi * X / periods).sum(1) + 0.3 * rng.normal(size=n)
    X, periods = units * X, units * periods
    first, *rest = (of_column(ExpSineSquared(1.0, start * periods[j]), j) for j in range(d))
    kernel = sum(rest, first)
    wide = {n: (1e-9, 1e9) for n in kernel.get_params() if n.endswith("periodicity_bounds")}
    model = SVGPRegressor(kernel.set_params(**wide), random_state=0).fit(X, y)
    found = {n: v for n, v in model.kernel_.get_params().items() if n.endswith("periodicity")}
    assert sorted(found.values()) == pytest.approx(sorted(periods), rel=0.07)
    other = SVGPClassifier(of_column(ExpSineSquared(1.0, start), 0) * RBF(10.0), random_state=0)
    other.fit(X, np.sin(2 * np.pi * X[:, 0]) > 0)
    assert period_of(other) == pytest.approx(1.0, rel=0.07)


def test_period_beside_other_features_is_found():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (100, 3))
    y = (
        np.sin(2 * np.pi * X[:, 0])
        + np.cos(1.2 * X[:, 1] * X[:, 2] / 5)
        + 0.3 * rng.normal(size=100)
    )
    for start in (1 / 20, 20):
        kernel = of_column(ExpSineSquared(1.0, start), 0) + 1.0 * Columns(RBF([1.0, 1.0]), [1, 2])
        model = SVGPRegressor(kernel, random_state=0).fit(X, y)
        assert period_of(model) == pytest.approx(1.0, rel=0.02)
        assert model.score(X, y) > 0.85


def test_columns_of_periods_are_those_of_nested_kernels():
    inner = Columns(ExpSineSquared() * RBF(), [1, 0]) + ExpSineSquared()
    kernel = 1.0 * Columns(inner, [3, 4]) + ExpSineSquared(periodicity_bounds="fixed")
    found = columns_of_periods(kernel + ExpSineSquared())
    # The thetas are those of a constant, a length scale and a period, two length scales and a
    # period, two length scales and a period.
    assert found == {2: [4, 3], 5: [3, 4], 8: slice(None)}


@pytest.mark.parametrize("columns", [[], [0, 0], [3], [-1], [0.5], [[0]], "a", [True]])
def test_wrong_columns_are_refused(columns):
    X, y = np.zeros((5, 3)), np.arange(5.0)
    with pytest.raises(ValueError, match="of Columns must be a list of different integers from 0"):
        SVGPRegressor(Columns(RBF(), columns)).fit(X, y)
    with pytest.raises(ValueError, match="of Columns must be a list of different integers from 0"):
        Columns(RBF(), columns)(X)


def test_periods_of_several_terms_are_found():
    X, y = wave(1.0, n=120, seed=1)
    y += 0.6 * np.sin(2 * np.pi * X[:, 0] / 0.23)
    kernel = 1.0 * ExpSineSquared(1.0, 7.0) + 1.0 * ExpSineSquared(1.0, 7.0)
    point = Hyperparameters(t64(kernel.theta), t64(X[:1]), t64([np.log(0.1)]))
    found = most_likely_periods(kernel, rows_of(X, y[:, None]), point)
    kernel = kernel.clone_with_theta(found.numpy())
    periods = kernel.k1.k2.periodicity, kernel.k2.k2.periodicity
    assert sorted(periods) == pytest.approx([0.23, 1.0], rel=0.05)


@pytest.mark.parametrize(
    "kernel",
    [
        1.0 * ExpSineSquared(periodicity=3.0, periodicity_bounds="fixed"),
        1.0 * ExpSineSquared(periodicity=3.0, periodicity_bounds=(2.9, 3.1)),
        1.0 * RBF(1.0),
    ],
)
def test_bounds_of_a_period_hold(kernel):
    X, y = wave(1.0, n=50)
    point = Hyperparameters(t64(kernel.theta), t64(X[:1]), t64([np.log(0.1)]))
    found = kernel.clone_with_theta(
        most_likely_periods(kernel, rows_of(X, y[:, None]), point).numpy()
    )
    assert 2.9 <= getattr(found.k2, "periodicity", 3.0) <= 3.1


def test_period_of_one_row_stays():
    kernel = 1.0 * ExpSineSquared()
    point = Hyperparameters(t64(kernel.theta), t64([[0.0]]), t64([0.0]))
    found = most_likely_periods(kernel, rows_of(np.zeros((1, 1)), np.ones((1, 1))), point)
    assert_array_equal(found, point.theta)


def test_given_periods_stay_if_more_rows_prefer_them():
    rng, days = np.random.default_rng(0), np.arange(500) / 12
    weekend = days.astype(int) % 7 >= 5
    y = np.sin(2 * np.pi * days) + 0.5 * weekend + 0.05 * days + 0.3 * rng.normal(size=500)
    kernel = 1.0 * ExpSineSquared(periodicity=1.0) + 1.0 * ExpSineSquared(periodicity=7.0)
    model = SVGPRegressor(kernel, mean="linear", random_state=0).fit(days[:, None], y)
    periods = np.exp(model.kernel_.theta[[2, 5]])
    # 128 rows tell of a second period of 166 days.
    assert_allclose(periods, [1, 7], rtol=0.02)
