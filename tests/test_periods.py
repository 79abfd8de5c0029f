"""Periods of a kernel are found from any start."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from problems import rows_of, t64
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared

from skgpsvm import SVGPRegressor
from skgpsvm._collapsed import Hyperparameters
from skgpsvm._hyperparameters.periods import most_likely_periods


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
