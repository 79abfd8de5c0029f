"""Exact processes of `SVGPRegressor` on few rows, and the smoothness of its default kernel."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import rows_of, t64, waves
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel

from skgpsvm import SVGPRegressor
from skgpsvm._collapsed import are_points
from skgpsvm._evidence import Evidence
from skgpsvm._hyperparameters.default_kernels import with_smoothness
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.svgp import _regressor


def regression(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n)


def process_draw(kernel, n, noise, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 1))
    root = np.linalg.cholesky(kernel(X) + 1e-8 * np.eye(n))
    return X, root @ rng.normal(size=n) + noise * rng.normal(size=n)


def test_few_rows_are_fitted_as_scikit_learns_process_is():
    X, y = regression(300)
    y = (y - y.mean()) / y.std()
    ours = SVGPRegressor(random_state=0).fit(X, y)
    kernel = ours.kernel_ + WhiteKernel(ours.noise_variance_)
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=0.01)
    X_new = regression(50, seed=1)[0]
    for found, expected in zip(
        ours.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), strict=True
    ):
        assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("kernel", [1.0 * RBF(0.1), 1.0 * Matern(0.3, nu=1.5)])
def test_exact_evidence_is_as_high_as_scikit_learns(kernel):
    X, y = process_draw(kernel, 150, 0.2, seed=0)
    y = (y - y.mean()) / y.std()
    ours = SVGPRegressor(kernel, mean="zero", tol=1e-6, random_state=0).fit(X, y)
    exact = GaussianProcessRegressor(kernel + WhiteKernel(0.1), random_state=0).fit(X, y)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-3)


def test_number_of_rows_and_the_parameters_decide_whether_the_process_is_exact(monkeypatch):
    monkeypatch.setattr(_regressor, "_MAX_EXACT_ROWS", 100)
    monkeypatch.setattr("skgpsvm._sparse.N_INDUCING", 30)
    X, y = regression(101)

    def n_points(n_rows, **options):
        model = SVGPRegressor(1.0 * RBF(1.0), random_state=0, **options)
        return len(model.fit(X[:n_rows], y[:n_rows]).inducing_points_)

    assert n_points(100) == 100
    assert n_points(101) == 30
    assert n_points(100, n_inducing=20) == 20
    assert n_points(100, inducing_points=X[:10]) == 10
    assert n_points(101, solver="exact") == 101


def test_warm_start_takes_new_rows_as_points(monkeypatch):
    monkeypatch.setattr(_regressor, "_MAX_EXACT_ROWS", 100)
    monkeypatch.setattr("skgpsvm._sparse.N_INDUCING", 30)
    X, y = regression(150)
    model = SVGPRegressor(random_state=0, warm_start=True).fit(X[:80], y[:80])
    model.fit(X[:100], y[:100])
    fresh = SVGPRegressor(random_state=0).fit(X[:100], y[:100])
    assert_array_equal(model.inducing_points_, fresh.inducing_points_)
    assert model.elbo_ > fresh.elbo_ - 1.0
    assert len(model.fit(X, y).inducing_points_) == 30


def test_stream_continues_an_exact_process_at_its_points():
    X, y = regression(150)
    options = {"kernel": 1.0 * RBF(1.0), "optimizer": None, "normalize_y": False}
    model = SVGPRegressor(noise_variance=0.01, random_state=0, **options)
    with pytest.warns(UserWarning, match="only 100 rows"):
        model.partial_fit(X[:100], y[:100])
    model.partial_fit(X[100:], y[100:])
    points = SVGPRegressor(
        noise_variance=0.01, inducing_points=X[:100], learn_inducing=False, **options
    )
    expected = points.fit(X, y).predict(X, return_std=True)
    for found, value in zip(model.predict(X, return_std=True), expected, strict=True):
        assert_allclose(found, value, atol=1e-4)


@pytest.mark.parametrize("likelihood", ["student_t", "laplace"])
def test_exact_process_needs_gaussian_noise(likelihood):
    model = SVGPRegressor(likelihood=likelihood, solver="exact")
    with pytest.raises(ValueError, match="'exact' needs Gaussian noise"):
        model.fit(*regression())


@pytest.mark.parametrize("option", [{"n_inducing": 5}, {"learn_inducing": False}])
def test_exact_process_has_no_other_points(option):
    with pytest.raises(ValueError, match="has no effect with solver='exact'"):
        SVGPRegressor(solver="exact", **option).fit(*regression())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_at_points_are_recognized_if_they_are_repeated(dtype):
    X, y = regression()
    rows = rows_of(np.r_[X, X[:5]], np.r_[y, y[:5]][:, None], dtype=dtype)
    assert are_points(rows, X)
    assert not are_points(rows, X[1:])


def test_evidence_of_repeated_rows_is_their_density():
    X, y = waves(30)
    X[20:] = X[:10]
    kernel, noise = 1.5 * RBF([1.0, 2.0, 3.0]), t64([-2.0, -1.0])
    Y = np.c_[y, np.cos(y)]
    evidence = Evidence(torch_kernel(kernel), rows_of(X, Y), jitter=0.0)
    theta, Z = t64(kernel.theta), t64(X[:1])
    value, by_theta, _, by_noise = evidence.value_and_gradient(theta, Z, noise)
    expected = sum(
        multivariate_normal(cov=kernel(X) + variance * np.eye(30)).logpdf(part)
        for part, variance in zip(Y.T, noise.exp().tolist(), strict=True)
    )
    assert value == pytest.approx(expected, rel=1e-10)
    for vector, slope in ((theta, by_theta), (noise, by_noise)):
        for j in range(len(vector)):
            step = torch.zeros_like(vector)
            step[j] = 1e-5
            ends = [
                evidence.value(theta + s * step, Z, noise)
                if vector is theta
                else evidence.value(theta, Z, noise + s * step)
                for s in (1, -1)
            ]
            assert slope[j].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("nu", [np.inf, 1.5, 0.5])
def test_default_kernel_is_as_smooth_as_the_function(nu):
    shape = RBF(0.1) if nu == np.inf else Matern(0.3, nu=nu)
    X, y = process_draw(shape, 300, 0.02, seed=0)
    found = SVGPRegressor(random_state=0).fit(X, y).kernel_.k1.k2
    assert type(found) is type(shape)
    assert getattr(found, "nu", np.inf) == nu


def test_smoothness_changes_nothing_else_of_a_kernel():
    kernel = 2.0 * RBF([1.0, 3.0], (0.1, 10)) + WhiteKernel(0.3)
    rough = with_smoothness(kernel, 1.5)
    assert rough == 2.0 * Matern([1.0, 3.0], (0.1, 10), nu=1.5) + WhiteKernel(0.3)
    assert_array_equal(rough.bounds, kernel.bounds)


def test_given_kernel_keeps_its_smoothness():
    X, y = process_draw(Matern(0.3, nu=0.5), 100, 0.02, seed=0)
    model = SVGPRegressor(1.0 * RBF(0.1), random_state=0).fit(X, y)
    assert type(model.kernel_.k1.k2) is RBF
