"""Fits that learn on the ELBO of converged sites."""

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
