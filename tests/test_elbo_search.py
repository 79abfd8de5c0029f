"""Fits that learn on the ELBO of converged sites."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import ring
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import DecoupledGPClassifier, EPClassifier, SVGPClassifier


def test_a_warm_start_with_the_same_rows_changes_little():
    X, y = ring(60, 3)
    model = SVGPClassifier(n_inducing=20, random_state=0, warm_start=True).fit(X, y)
    kernel, elbo = model.kernel_, model.elbo_
    model.fit(X, y)
    assert model.elbo_ == pytest.approx(elbo, abs=1)
    assert_allclose(model.kernel_.theta, kernel.theta, atol=0.7)


@pytest.mark.parametrize("solver", ["collapsed", "natural_gradient"])
def test_robust_max_is_fitted_by_both_solvers(solver):
    X, y = ring(60, 3)
    model = SVGPClassifier(likelihood="robust_max", solver=solver, n_inducing=20, random_state=0)
    assert model.fit(X, y).score(X, y) > 0.8


def test_learning_does_not_end_at_a_linear_model_where_a_nonlinear_one_explains_more():
    """Classes are convex combinations of two of three triangles (Breiman et al., 1984)."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=150)
    triangles = np.maximum(6 - abs(np.arange(21) - np.array([[6], [14], [10]])), 0)
    share, pairs = rng.uniform(size=(150, 1)), np.array([(0, 1), (0, 2), (1, 2)])[y].T
    X = rng.normal(size=(150, 40))
    X[:, :21] += share * triangles[pairs[0]] + (1 - share) * triangles[pairs[1]]
    X /= X.std(0)
    constant, linear = (
        SVGPClassifier(mean=mean, n_inducing=40, random_state=0).fit(X, y).elbo_
        for mean in ("constant", "linear")
    )
    assert linear > constant - 5


@pytest.mark.parametrize("kind", [SVGPClassifier, EPClassifier, DecoupledGPClassifier])
def test_few_rows_choose_a_common_factor_of_the_length_scales(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    few, more = (kind(random_state=0).fit(X[:n], X[:n, 0] > 0).kernel_ for n in (19, 20))
    lengths = np.exp(few.theta[1:4])
    assert_allclose(lengths / X[:19].std(0), lengths[0] / X[:19, 0].std())
    assert np.ptp(np.exp(more.theta[1:4]) / X.std(0)) > 0.1


@pytest.mark.parametrize("kind", [SVGPClassifier, EPClassifier, DecoupledGPClassifier])
def test_few_rows_choose_shorter_length_scales_for_shorter_waves(kind):
    X = np.linspace(-2, 2, 19)[:, None]
    fits = [kind(random_state=0).fit(X, np.sin(waves * X[:, 0]) > 0) for waves in (0.5, 3.0)]
    long, short = (fit.kernel_.theta[1] for fit in fits)
    assert long - short > np.log(1.9)
    assert fits[1].score(X, np.sin(3.0 * X[:, 0]) > 0) == 1


def test_few_rows_learn_a_given_kernel_and_keep_that_of_a_warm_start():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    y = X[:, 0] > 0
    given = 1.0 * RBF([1.0, 1.0])
    learned = SVGPClassifier(kernel=given, random_state=0).fit(X[:10], y[:10]).kernel_
    assert np.ptp(learned.theta[1:3]) > 0.1
    model = SVGPClassifier(warm_start=True, random_state=0).fit(X[:10], y[:10])
    before = model.kernel_.theta
    assert_allclose(model.fit(X[:12], y[:12]).kernel_.theta, before)
    assert abs(model.fit(X, y).kernel_.theta - before).max() > 0.1
