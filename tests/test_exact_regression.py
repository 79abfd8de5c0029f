"""Exact processes of `SVGPRegressor` on few rows, and the smoothness of its default kernel."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_all_close, rows_of, t64, waves
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpsvm import DecoupledGPRegressor, SVGPRegressor, _sparse
from skgpsvm._collapsed import CollapsedBound, are_points
from skgpsvm._csr import CSRRows
from skgpsvm._estimators import _inputs
from skgpsvm._evidence import Evidence
from skgpsvm._hyperparameters import collapsed_search
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


@pytest.mark.parametrize("seed", range(3))
def test_a_function_without_noise_does_not_warn(seed):
    X = np.random.default_rng(seed).integers(5, size=(80, 3)).astype(float)
    for model in (SVGPRegressor(random_state=0), DecoupledGPRegressor(random_state=0)):
        assert model.fit(X, np.sin(X[:, 0])).score(X, np.sin(X[:, 0])) > 1 - 1e-9


def test_few_rows_are_fitted_as_scikit_learns_process_is():
    X, y = regression(300)
    y = (y - y.mean()) / y.std()
    ours = SVGPRegressor(random_state=0).fit(X, y)
    kernel = ours.kernel_ + WhiteKernel(ours.noise_variance_)
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=0.01)
    X_new = regression(50, seed=1)[0]
    assert_all_close(
        ours.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), atol=1e-4
    )


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
    assert_all_close(model.predict(X, return_std=True), expected, atol=1e-4)


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


def test_far_more_rows_than_points_are_not_examined():
    X = np.zeros((21, 1))
    assert are_points(rows_of(X[:20], X[:20]), np.zeros((2, 1)))
    assert not are_points(rows_of(X, X), np.zeros((2, 1)))


def test_fewer_than_fifteen_rows_choose_no_kernel(monkeypatch):
    monkeypatch.setattr(collapsed_search, "_MIN_GAIN", -100.0)
    X, y = regression(15)
    chosen = [str(SVGPRegressor(random_state=0).fit(X[:n], y[:n]).kernel_) for n in (14, 15)]
    assert ["Matern" in kernel for kernel in chosen] == [False, True]


@pytest.mark.parametrize("solver", ["auto", "exact"])
def test_few_sparse_rows_are_an_exact_process(solver, monkeypatch):
    monkeypatch.setattr(_inputs, "MAX_DENSE", 0)
    X, _ = regression(60)
    X[:20, 0] = X[15:30, 1] = 0
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    model = SVGPRegressor(1.0 * RBF(1.0), solver=solver, random_state=0)
    dense, learned_on = clone(model).fit(X, y), []
    monkeypatch.setattr(
        CollapsedBound, "__init__", lambda self, *parts: learned_on.append("the bound")
    )
    model.fit(csr_array(X), y)
    assert not learned_on
    assert model.elbo_ == pytest.approx(dense.elbo_, abs=1e-4)
    assert_allclose(model.predict(X), dense.predict(X), atol=1e-3)
    # As points they are dense, and so must not have too many numbers.
    monkeypatch.setattr(_sparse, "MAX_DENSE_POINTS", X.size - 1)
    assert model._is_exact(SimpleNamespace(X=CSRRows(X), n_rows=len(X))) == (solver == "exact")


def test_weights_are_repetitions():
    X, y = regression(60)
    weights = np.random.default_rng(1).integers(1, 6, 60)
    kernel = 1.0 * RBF(1.0)
    weighted = SVGPRegressor(kernel, random_state=0).fit(X, y, sample_weight=weights)
    repeated = SVGPRegressor(kernel, random_state=0).fit(
        np.repeat(X, weights, 0), np.repeat(y, weights)
    )
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, rel=1e-9)
    assert_allclose(weighted.predict(X), repeated.predict(X), atol=1e-9)


def test_rows_that_differ_in_the_target_alone_are_noise():
    X, y = regression(60)
    X, y = np.repeat(X, 2, 0), np.repeat(y, 2)
    y[::2] += 0.5
    y[1::2] -= 0.5
    model = SVGPRegressor(random_state=0).fit(X, y)
    assert len(model.inducing_points_) == 60
    assert model.noise_variance_ == pytest.approx(0.25, rel=0.3)


def test_outputs_have_noise_of_their_own():
    X, y = regression(80)
    Y = np.c_[y, np.cos(y) + np.random.default_rng(1).normal(size=80)]
    Y = (Y - Y.mean(0)) / Y.std(0)
    ours = SVGPRegressor(1.0 * RBF(1.0), random_state=0).fit(X, Y)
    mean, std = ours.predict(X, return_std=True)
    for j, noise in enumerate(ours.noise_variance_):
        kernel = ours.kernel_ + WhiteKernel(noise)
        exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, Y[:, j])
        for found, expected in zip((mean, std), exact.predict(X, return_std=True), strict=True):
            assert_allclose(found[:, j], expected, atol=1e-4)


@pytest.mark.parametrize(("unit_of_X", "unit_of_y"), [(1e8, 1e-8), (1e-8, 1e8)])
def test_units_do_not_matter(unit_of_X, unit_of_y):
    X, y = regression(100)
    usual = SVGPRegressor(random_state=0).fit(X, y)
    other = SVGPRegressor(random_state=0).fit(unit_of_X * X, unit_of_y * y)
    assert other.elbo_ == pytest.approx(usual.elbo_, abs=0.05)
    found, expected = other.predict(unit_of_X * X) / unit_of_y, usual.predict(X)
    assert_allclose(found, expected, atol=2e-3 * y.std())


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("d", [1, 20])
def test_fewest_rows_are_fitted(n, d):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, d)), rng.normal(size=n)
    for rows in (X, np.ones_like(X)):
        mean, std = SVGPRegressor(random_state=0).fit(rows, y).predict(rows, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()


def test_single_precision_learns_the_same():
    X, y = regression(150)
    X = X.astype(np.float32).astype(np.float64)
    double, single = (
        SVGPRegressor(dtype=dtype, random_state=0).fit(X, y) for dtype in ("float64", "float32")
    )
    # The factor of Kzz has a jitter of 1e-6 instead of 1e-9.
    assert_allclose(single.predict(X), double.predict(X), atol=2e-3)


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


def bands(n, seed=0):
    """Return rows of 100 bands that are mixtures of five peaks, and a linear function of these."""
    rng = np.random.default_rng(seed)
    peaks = np.exp(
        -0.5 * ((np.linspace(0, 1, 100) - np.linspace(0.1, 0.9, 5)[:, None]) / 0.12) ** 2
    )
    shares = rng.uniform(size=(n, 5))
    X = shares @ peaks + 0.002 * rng.normal(size=(n, 100))
    return X, shares[:, 1] - 0.5 * shares[:, 3]


@pytest.mark.parametrize("kind", [SVGPRegressor, DecoupledGPRegressor])
def test_spectra_of_few_rows_have_a_linear_mean(kind):
    (X, f), (X_test, f_test) = bands(60), bands(200, seed=1)
    y = f + 0.01 * np.random.default_rng(2).normal(size=60)

    def error(model):
        return np.sqrt(np.mean((model.fit(X, y).predict(X_test) - f_test) ** 2))

    ridge = error(make_pipeline(StandardScaler(), RidgeCV(np.logspace(-6, 3, 30))))
    found, constant = kind(random_state=0), kind(mean="constant", random_state=0)
    assert error(found) < min(1.5 * ridge, 0.5 * error(constant))
    assert found.elbo_ > constant.elbo_ + 5


@pytest.mark.parametrize("case", ["noise", "as many rows", "given kernel"])
def test_other_fits_have_a_constant_mean(case):
    X, y = bands(100 if case == "as many rows" else 30)
    kernel = 1.0 * RBF() if case == "given kernel" else None
    if case == "noise":
        y = np.random.default_rng(0).normal(size=30)
    found, constant = (
        SVGPRegressor(kernel, mean=mean, random_state=0).fit(X, y) for mean in (None, "constant")
    )
    assert_array_equal(found.predict(X), constant.predict(X))


WEIGHTS = {
    "exponential": lambda rng, n: rng.exponential(size=n),
    "lognormal": lambda rng, n: rng.lognormal(size=n),
    "two values": lambda rng, n: rng.choice([0.1, 1.9], n),
}


def test_heavy_rows_make_the_noise_of_highest_evidence_too_small():
    """Check the formulas of `WeightedDataset.with_even_weights`."""
    X, y = waves(40)
    w = np.random.default_rng(0).exponential(size=40)
    evidence, kernel = Evidence(torch_kernel(RBF(1.0)), rows_of(X, y, w)), RBF(1.0)(X)

    def loss(log_noise):
        return -evidence.value(t64([0.0]), t64(X[:1]), t64([log_noise]))

    noise = np.exp(minimize_scalar(loss, (-4.0, 0.0), options={"xtol": 1e-9}).x)
    smoother = kernel @ np.linalg.inv(kernel + np.diag(noise / w))
    residuals, leverages = y - smoother @ y, smoother.diagonal()
    assert_allclose(noise, w @ residuals**2 / (w - leverages).sum(), rtol=1e-5)
    # Weighted least squares, with independent noise of variance one
    Q = np.vander(X[:, 0], 4)
    smoother = Q @ np.linalg.solve(Q.T @ (w[:, None] * Q), Q.T * w)
    expected = w @ ((np.eye(40) - smoother) ** 2).sum(1)
    assert_allclose(w @ (1 - smoother.diagonal()), expected)
    assert expected < 0.98 * (w - smoother.diagonal()).sum()


@pytest.mark.parametrize("method", [SVGPRegressor, DecoupledGPRegressor])
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("amplitude", [0.0, 1.0])
def test_unequal_weights_hide_no_noise(amplitude, name, method):
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 6, (250, 1))
    y = amplitude * np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=250)
    weights = WEIGHTS[name](np.random.default_rng(101), 250)
    model = method(random_state=0).fit(X, y, sample_weight=weights / weights.mean())
    assert_allclose(model.noise_variance_, 0.09, rtol=0.25)
    grid = np.linspace(0, 6, 200)[:, None]
    mean, std = model.predict(grid, return_std=True)
    assert_allclose(std.mean(), 0.3, rtol=0.2)
    assert np.sqrt(np.mean((mean - amplitude * np.sin(2 * grid[:, 0])) ** 2)) < 0.15
