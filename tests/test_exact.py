"""Exact processes by conjugate gradients, without a factor of the kernel matrix of all rows."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import exact_gp_regression
from problems import assert_all_close, given, set_constants, sinc, solve_of, waves
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from skgpsvm._inference.exact import ExactInference


@pytest.fixture
def no_factor(monkeypatch):
    """Use the solution for many rows, with fewer landmarks than rows."""
    set_constants(monkeypatch, factored_rows=0)
    set_constants(monkeypatch, landmarks=30)


def test_solution_without_a_factor_is_the_exact_process(no_factor):
    X, y = waves(100)
    kernel = 1.5 * RBF([1.0, 2.0, 3.0])
    ours = given(kernel, X, noise_variance=0.05).fit(X, y)
    exact = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None).fit(X, y)
    X_new = waves(50, seed=1)[0]
    # Residuals end at 1e-10, relative to the first, and the mean has no jitter.
    assert_allclose(ours.predict(X_new), exact.predict(X_new), atol=1e-8)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-5)
    curve = ours.objective_curve_
    assert len(curve) > 3
    assert (np.diff(curve) > -1e-12 * np.abs(curve[1:])).all()
    assert ours.elbo_ == pytest.approx(curve[-1], rel=1e-9)


def test_solution_without_a_factor_is_that_with_one(monkeypatch, no_factor):
    X, y = waves(80)
    Y = np.c_[y, X[:, 2] - y]
    weights = np.random.default_rng(1).uniform(0.5, 2, 80)
    model = given(1.5 * RBF(1.0), X[:10], noise_variance=0.1)
    one = clone(model).fit(X, Y, sample_weight=weights)
    set_constants(monkeypatch, factored_rows=80)
    two = clone(model).fit(X, Y, sample_weight=weights)
    assert one.n_iter_ != two.n_iter_
    # The jitter of 1e-9 over the noise, summed over rows; then also times the stream's factors.
    for tol in (5e-6, 5e-5):
        assert_all_close(one.predict(X, return_std=True), two.predict(X, return_std=True), atol=tol)
        assert one.elbo_ == pytest.approx(two.elbo_, rel=tol)
        for each in (one, two):
            each.partial_fit(X[:20] + 0.1, Y[:20])


def test_groups_without_a_factor_are_the_solutions_without_their_rows(no_factor):
    X, y = waves(80)
    Y = np.c_[y, X[:, 2]]
    kept = torch.ones(80, 2, dtype=torch.float64)
    kept[:30, 1] = 0
    kernel = 1.5 * RBF(1.0)
    inference, state = solve_of(kernel, X[:8], X, X, Y, 0.1, row_shares=kept, kind=ExactInference)
    _, means, _ = inference.evaluate(state)
    for j, rows in enumerate(kept.bool().numpy().T):
        for i, target in enumerate(Y.T):
            expected = exact_gp_regression(kernel, X[rows], target[rows], X, 0.1)[0]
            assert_allclose(means[:, 2 * j + i], expected, atol=1e-8)


def test_landmarks_save_iterations(monkeypatch, no_factor):
    X, y, _ = sinc(300)
    model = given(RBF(0.5), X[:20], noise_variance=0.01, tol=1e-6)
    some = clone(model).fit(X, y).n_iter_
    set_constants(monkeypatch, landmarks=1)
    one = clone(model).fit(X, y).n_iter_
    set_constants(monkeypatch, landmarks=300)
    every = clone(model).fit(X, y).n_iter_
    assert every <= 3
    assert every < some < 0.5 * one
