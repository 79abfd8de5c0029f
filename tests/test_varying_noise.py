"""Regression whose noise varies: the optimum, its derivatives, and what users see of it."""

import math
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_all_close, rows_of, t64
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, CompoundKernel, ConstantKernel, WhiteKernel

from skgpsvm import DecoupledGPRegressor, SVGPRegressor
from skgpsvm._inference.coordinate_ascent import CoordinateAscent
from skgpsvm._inference.elbo_learning import DifferentiableAscent
from skgpsvm._posteriors import whitened_basis
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import torch_kernels
from skgpsvm.exceptions import NumericalWarning
from skgpsvm.likelihoods import Heteroscedastic
from skgpsvm.svgp import _steps

KERNELS = CompoundKernel([1.5 * RBF(1.0) + ConstantKernel(5.0, "fixed"), 0.8 * RBF(2.0)])
FIXED = {"optimizer": None, "learn_inducing": False, "normalize_y": False, "mean": "zero"}


def fan(n=60, seed=0):
    """Return rows of a sine whose noise grows, and the noise's standard deviation."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 6, n))
    std = 0.05 + 0.1 * x
    return x[:, None], np.sin(x) + std * rng.normal(size=n), std


def regressor(kernel=None, **parameters):
    return SVGPRegressor(kernel, likelihood="heteroscedastic", random_state=0, **parameters)


# The posterior


def dense_elbo(X, y, noise_var):
    """Return minus the ELBO with every row as an inducing point, and its gradient.

    Its parameters are the whitened means and the logarithms of site precisions of both latents: the
    optimal covariances have the form (K^-1 + diag(precision))^-1.
    """
    chols = [np.linalg.cholesky(k(X) + 1e-9 * np.eye(len(X))) for k in KERNELS.kernels]
    chols, y, eye = [t64(L) for L in chols], t64(y), torch.eye(len(X), dtype=torch.float64)

    def moments(p):
        found = []
        for L, (u, log_precision) in zip(chols, p.view(2, 2, -1), strict=True):
            inner = torch.linalg.cholesky(eye + L.T @ (log_precision.exp()[:, None] * L))
            half = torch.linalg.solve_triangular(inner, L.T, upper=False)
            trace = torch.linalg.solve_triangular(inner, eye, upper=False).square().sum()
            kl = 0.5 * (trace + u @ u - len(u)) + inner.diagonal().log().sum()
            found.append((L @ u, half.square().sum(0), kl))
        return found

    def loss(p):
        p = t64(p).requires_grad_()
        (m, v, kl), (mu, nu, kl_noise) = moments(p)
        log_var = mu + math.log(noise_var)
        square = ((y - m).square() + v) * torch.exp(0.5 * nu - log_var)
        value = 0.5 * (math.log(2 * math.pi) + log_var + square).sum() + kl + kl_noise
        value.backward()
        return value.item(), p.grad.numpy()

    return loss, moments


def test_posterior_is_the_optimum_of_the_elbo():
    X, y, _ = fan(45)
    model = regressor(KERNELS, **FIXED, inducing_points=X, noise_variance=0.1, tol=1e-9)
    model.set_params(solver="natural_gradient", max_iter=2000).fit(X, y)
    loss, moments = dense_elbo(X, y, 0.1)
    start = np.zeros((2, 2, 45))
    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-11}
    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    # Natural gradients add 1e-6 of the variance to the diagonal of Kzz.
    assert model.elbo_ == pytest.approx(-found.fun, abs=2e-3)
    (m, v, _), (mu, nu, _) = ([p.detach().numpy() for p in q] for q in moments(t64(found.x)))
    mean, variance = model.latent_mean_and_variance(X)
    assert_allclose(mean, m, atol=2e-3)
    assert_allclose(variance, v, atol=2e-3)
    assert_allclose(model.predict_noise_variance(X), 0.1 * np.exp(mu + nu / 2), rtol=1e-2)


def test_several_kernels_of_one_kind_are_independent_processes():
    # Two groups of one latent with the same kernel are two latents with one kernel.
    X, y, _ = fan(40)
    likelihood = LikelihoodSites(Heteroscedastic(0.1), 2)
    kernel, rows = 1.2 * RBF(0.8), rows_of(X, y[:, None])
    both = CompoundKernel([kernel, kernel])
    values = []
    for each in (kernel, both):
        theta = t64(each.theta)
        ascent = CoordinateAscent(
            likelihood, whitened_basis(torch_kernels(each), theta, t64(X[::4])), rows
        )
        state = ascent.init()
        for _ in range(5):
            ascent.uphill_sweep(state)
        values.append((ascent.elbo(state), state.mean, state.root))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-12)
    for one, other in zip(values[0][1:], values[1][1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_gradients_at_the_optimal_posterior_are_those_of_the_best_elbo():
    X, y, _ = fan(40)
    rows, kernels, noise = rows_of(X, y[:, None]), torch_kernels(KERNELS), t64([math.log(0.1)])
    likelihood = LikelihoodSites(Heteroscedastic(), 2)

    def best(theta, Z, noise):
        basis = whitened_basis(kernels, theta, Z)
        ascent = DifferentiableAscent(likelihood.at(noise), basis, rows)
        state = ascent.init()
        for _ in range(60):
            ascent.uphill_sweep(state)
        return ascent, state

    point = {"theta": t64(np.concatenate([k.theta for k in KERNELS.kernels])), "Z": t64(X[::5])}
    point["noise"] = noise
    ascent, state = best(**point)
    _, gradients, _ = ascent.value_and_gradient(state)
    gradients["noise"] = ascent.noise_gradient(state, likelihood, noise)
    for name, value in point.items():
        for j in range(min(value.numel(), 4)):
            ends = []
            for step in (1e-4, -1e-4):
                moved = value.clone()
                moved.view(-1)[j] += step
                other, at = best(**{**point, name: moved})
                ends.append(other.elbo(at))
            numeric = (ends[0] - ends[1]) / 2e-4
            assert gradients[name].view(-1)[j].item() == pytest.approx(numeric, rel=1e-3, abs=1e-3)


# What is learned


def test_noise_of_the_issue_is_found():
    # y = 5 / (x + 1) times normal noise, whose standard deviation was 1.40 everywhere.
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 300)
    model = regressor().fit(x[:, None], 5 / (x + 1) * rng.normal(size=300))
    X_new = np.array([[0.2], [5.0], [9.5]])
    std = np.sqrt(model.predict_noise_variance(X_new))
    # Some 25 rows determine each value: two of their standard errors.
    assert_allclose(std, 5 / (X_new[:, 0] + 1), rtol=0.28)
    assert_allclose(model.predict(X_new, return_std=True)[1], std, rtol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_constant_noise_stays_constant(seed):
    rng = np.random.default_rng(seed)
    X, X_new = rng.uniform(0, 6, (100, 1)), rng.uniform(0, 6, (1000, 1))
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=100)
    y_new = np.sin(X_new[:, 0]) + 0.3 * rng.normal(size=1000)
    densities = []
    for model in (SVGPRegressor(random_state=0), regressor()):
        mean, std = model.fit(X, y).predict(X_new, return_std=True)
        densities.append(np.mean(-0.5 * ((y_new - mean) / std) ** 2 - np.log(std)))
    assert densities[1] > densities[0] - 0.01


def test_varying_noise_is_more_likely_than_constant_noise():
    X, y, _ = fan(200)
    X_new, y_new, std = fan(1000, seed=1)
    densities = []
    for model in (SVGPRegressor(random_state=0), regressor()):
        mean, found = model.fit(X, y).predict(X_new, return_std=True)
        densities.append(np.mean(-0.5 * ((y_new - mean) / found) ** 2 - np.log(found)))
    assert densities[1] > densities[0] + 0.15
    noise = np.sqrt(model.predict_noise_variance(X_new))
    assert np.median(np.abs(np.log(noise / std))) < 0.15


@pytest.mark.parametrize("solver", ["natural_gradient", "gradient"])
def test_other_solvers_learn_it_too(solver):
    X, y, std = fan(200)
    options = {"max_iter": 300} if solver == "gradient" else {}
    model = regressor(solver=solver, n_inducing=20, **options).fit(X, y)
    noise = np.sqrt(model.predict_noise_variance(X))
    assert np.median(np.abs(np.log(noise / std))) < 0.25


def test_rows_beyond_one_batch_converge(monkeypatch):
    # Passes of minibatches would still move the means after 50, and 11 suffice.
    monkeypatch.setattr(_steps, "MAX_FULL_BATCH", 50)
    monkeypatch.setattr(_steps, "MINIBATCH", 20)
    X, y, _ = fan(1000)
    with warnings.catch_warnings(action="error", category=ConvergenceWarning):
        regressor(solver="natural_gradient", n_inducing=10, max_iter=20).fit(X, y)


# What users see


@pytest.mark.parametrize("y", [np.sin, np.ones_like], ids=["function", "constant"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_noise_does_not_vanish(y, dtype):
    X = np.random.default_rng(0).normal(size=(60, 1))
    y = y(X[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a hyperparameter at a bound
        warnings.simplefilter("ignore", NumericalWarning)  # single precision is too coarse here
        model = SVGPRegressor(likelihood="heteroscedastic", dtype=dtype, random_state=0).fit(X, y)
    # Rounding errors have a variance of 1e-6 in units of the normalized y.
    limit = -0.5 * (np.log(2 * np.pi * 1e-6) + 1)
    assert model.elbo_ < 60 * limit
    assert (model.predict_noise_variance(X) > 1e-8 * (y.var() or 1)).all()


def test_units_of_y():
    X, y, _ = fan()
    one, other = (regressor(n_inducing=15).fit(X, values) for values in (y, 1e3 * y + 7))
    assert other.elbo_ == pytest.approx(one.elbo_, rel=1e-6)
    mean, std = one.predict(X, return_std=True)
    other_mean, other_std = other.predict(X, return_std=True)
    # Means pass zero: their rounding errors are relative to the spread of y.
    assert_allclose(other_mean, 1e3 * mean + 7, rtol=1e-4, atol=1e-5 * 1e3 * y.std())
    assert_allclose(other_std, 1e3 * std, rtol=1e-4)
    noise = other.predict_noise_variance(X)
    assert_allclose(noise, 1e6 * one.predict_noise_variance(X), rtol=1e-4)


def test_integer_weights_repeat_rows():
    X, y, _ = fan(40)
    weights = np.arange(40) % 3 + 1
    repeated = np.repeat(np.arange(40), weights)
    weighted = regressor(n_inducing=12).fit(X, y, sample_weight=weights)
    expected = regressor(n_inducing=12).fit(X[repeated], y[repeated])
    assert_all_close(
        weighted.predict(X, return_std=True), expected.predict(X, return_std=True), rtol=1e-6
    )


def test_predictions_agree_with_each_other():
    X, y, _ = fan()
    model = regressor(n_inducing=15).fit(X, np.c_[y, -2 * y])
    mean, std = model.predict(X, return_std=True)
    assert_array_equal(model.predict(X), mean)
    latent_mean, latent_variance = model.latent_mean_and_variance(X)
    noise = model.predict_noise_variance(X)
    assert mean.shape == std.shape == noise.shape == latent_mean.shape == (60, 2)
    assert_array_equal(latent_mean, mean)
    assert_allclose(std**2, latent_variance + noise)
    cov = model.predict(X, return_cov=True)[1]
    assert_allclose(cov.diagonal().T, std**2, rtol=1e-6)
    assert model.noise_variance_.shape == (2,)
    draws = model.sample_y(X, 20_000, random_state=0)
    assert_allclose(draws.mean(2), mean, atol=0.1)
    assert_allclose(draws.std(2), std, rtol=0.1)
    assert model.sample_latent(X, 3).shape == (3, 60, 2)
    # Outputs that are multiples of each other have the same noise, in units of each.
    assert_allclose(noise[:, 1], 4 * noise[:, 0], rtol=1e-3)


def test_intervals_hold_new_rows_everywhere():
    X, y, _ = fan(300)
    model = regressor(n_inducing=20).fit(X, y)
    X_new, y_new, std = fan(4000, seed=1)
    lower, upper = model.predict_interval(X_new, level=0.9)
    inside = (lower < y_new) & (y_new < upper)
    for part in (std < 0.25, (std >= 0.25) & (std < 0.45), std >= 0.45):
        assert 0.84 < inside[part].mean() < 0.96
    # Half of the interval is between the mean and either end.
    assert_allclose((lower + upper) / 2, model.predict(X_new), atol=1e-9)
    lower, upper = model.predict_interval(X_new, level=0.9, method="conformal")
    inside = (lower < y_new) & (y_new < upper)
    for part in (std < 0.25, (std >= 0.25) & (std < 0.45), std >= 0.45):
        assert 0.84 < inside[part].mean() < 0.96


@pytest.mark.parametrize("n_points", [60, 12])
def test_left_out_residuals_are_close_to_those_of_refits(n_points):
    X, y, _ = fan()
    options = FIXED | {"inducing_points": X[:: 60 // n_points], "tol": 1e-6, "max_iter": 300}
    model = regressor(KERNELS, noise_variance=0.1, **options).fit(X, y)
    expected = []
    for i in range(60):
        others = np.arange(60) != i
        refit = regressor(KERNELS, noise_variance=0.1, **options).fit(X[others], y[others])
        mean, std = refit.predict(X[[i]], return_std=True)
        expected.append(np.abs(y[i] - mean[0]) / std[0])
    mean, std = model.predict(X, return_std=True)
    within, left_out = np.abs(y - mean) / std, model._left_out.scores[:, 0]
    assert_array_equal(X, np.sort(X, 0))  # the order of the residuals
    assert np.mean(np.abs(left_out - expected)) < 0.15 * np.mean(np.abs(within - expected))


def test_constant_noise_is_predicted_at_every_row():
    X, y, _ = fan()
    model = SVGPRegressor(n_inducing=10, random_state=0).fit(X, y)
    assert_array_equal(model.predict_noise_variance(X), np.full(60, model.noise_variance_))
    both = model.fit(X, np.c_[y, y]).predict_noise_variance(X)
    assert_array_equal(both, np.tile(model.noise_variance_, (60, 1)))


def test_warm_start_and_stream():
    X, y, std = fan(200)
    model = regressor(n_inducing=15, warm_start=True).fit(X, y)
    elbo = model.elbo_
    assert model.fit(X, y).elbo_ > elbo - 1.0
    stream = regressor(n_inducing=15)
    for part in (slice(0, None, 2), slice(1, None, 2)):
        stream.partial_fit(X[part], y[part])
    assert len(stream._left_out.scores) == 200
    noise = np.sqrt(stream.predict_noise_variance(X))
    assert np.median(np.abs(np.log(noise / std))) < 0.25


def test_learned_kernels_can_be_given():
    X, y, _ = fan()
    model = regressor(n_inducing=15).fit(X, y)
    assert isinstance(model.kernel_, CompoundKernel)
    of_mean, of_noise = model.kernel_.kernels
    assert of_noise.n_dims == 2
    given = {"inducing_points": model.inducing_points_, "noise_variance": None}
    variance = float(model.noise_variance_ / y.var())
    given |= {"noise_variance": variance, "optimizer": None, "learn_inducing": False}
    again = regressor(CompoundKernel([of_mean, of_noise]), mean="zero", tol=1e-6, **given)
    assert again.set_params(max_iter=500).fit(X, y).elbo_ == pytest.approx(model.elbo_, abs=0.5)


def test_what_is_refused():
    X, y, _ = fan()
    with pytest.raises(ValueError, match="solver='exact' needs Gaussian noise"):
        regressor(solver="exact").fit(X, y)
    with pytest.raises(ValueError, match="must have 2 kernels"):
        regressor(CompoundKernel([RBF()])).fit(X, y)
    with pytest.raises(ValueError, match="not with other likelihoods"):
        regressor(1.0 * RBF() + WhiteKernel()).fit(X, y)
    with pytest.raises(TypeError, match="for each of several latent functions"):
        SVGPRegressor(CompoundKernel([RBF(), RBF()])).fit(X, y)
    with pytest.raises(ValueError, match="likelihood"):
        DecoupledGPRegressor(likelihood="heteroscedastic").fit(X, y)
