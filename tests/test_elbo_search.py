"""Fits that learn on the ELBO of converged sites."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import ring

from skgpsvm import SVGPClassifier


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
