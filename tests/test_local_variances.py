"""Variances of decoupled regressors from the rows nearest to each place."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from oracles import exact_gp_regression, local_variances
from problems import given, waves
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

from skgpsvm import DecoupledGPRegressor, _local_variances
from skgpsvm.solvers import StochasticGradient

MATERN = 1.5 * Matern([0.7, 1.0, 2.0], nu=1.5)
N_NEIGHBORS = 32  # of a place, whose rows its variance is given
# A mean function: a constant and a linear term of the kernel.
WITH_MEAN = ConstantKernel(3.0, "fixed") + MATERN + 2.0 * DotProduct(1.0)


def variances(model, X):
    return model.latent_mean_and_variance(X)[1]


# All rows as neighbors


@pytest.mark.parametrize("kernel", [MATERN, WITH_MEAN], ids=["zero mean", "linear mean"])
def test_all_rows_as_neighbors_give_the_variance_of_the_exact_process(kernel):
    X, y = waves(N_NEIGHBORS)
    X_new = 2 * waves(40, seed=1)[0]
    weights = np.random.default_rng(2).integers(1, 4, N_NEIGHBORS)
    known = np.random.default_rng(3).uniform(0, 0.2, N_NEIGHBORS)
    model = given(kernel, X[:10], noise_variance=0.05)
    model.fit(X, y, sample_weight=weights, noise_variance=known)
    noise = np.diag((0.05 + known) / weights)
    cross = kernel(X, X_new)
    reduction = (cross * np.linalg.solve(kernel(X) + noise, cross)).sum(0)
    assert_allclose(variances(model, X_new), kernel.diag(X_new) - reduction, rtol=1e-8)


def test_outputs_have_variances_of_their_own():
    X, y = waves(N_NEIGHBORS)
    X_new = waves(20, seed=1)[0]
    known = np.random.default_rng(3).uniform(0, 0.2, (N_NEIGHBORS, 2))
    both = given(MATERN, X[:10], noise_variance=0.05)
    both.fit(X, np.c_[y, -2 * y], noise_variance=known)
    for j in range(2):
        alone = given(MATERN, X[:10], noise_variance=0.05).fit(X, y, noise_variance=known[:, j])
        assert_allclose(variances(both, X_new)[:, j], variances(alone, X_new), rtol=1e-9)


def test_rows_at_the_same_place_are_one_neighbor():
    X, _ = waves(N_NEIGHBORS)
    many, y = np.repeat(X, 4, axis=0), waves(4 * N_NEIGHBORS)[1]
    X_new = waves(20, seed=1)[0]
    model = given(MATERN, X[:10], noise_variance=0.2).fit(many, y)
    cov = exact_gp_regression(MATERN, X, y[:N_NEIGHBORS], X_new, 0.2 / 4)[1]
    assert_allclose(variances(model, X_new), np.diag(cov), rtol=1e-8)


def test_sites_of_other_noise_have_the_variance_of_a_process_with_their_precisions():
    X, y = waves(N_NEIGHBORS)
    X_new = waves(20, seed=1)[0]
    model = given(MATERN, X[:10], likelihood="student_t", noise_variance=0.05, tol=1e-3).fit(X, y)
    (fitted,) = model._latents
    precisions = fitted.row_precisions[0]
    assert (precisions >= 0).all()
    used, scale = precisions > 0, np.sqrt(precisions)
    scaled = scale[:, None] * MATERN(fitted.bases) * scale + np.eye(N_NEIGHBORS)
    cross = scale[:, None] * MATERN(fitted.bases, X_new)
    expected = 1.5 - (cross * np.linalg.solve(scaled, cross)).sum(0)
    assert used.sum() > N_NEIGHBORS / 2
    assert_allclose(variances(model, X_new), expected, rtol=1e-8)


# Few neighbors


@pytest.mark.parametrize("n_bases", [200, 60])
@pytest.mark.parametrize("kernel", [MATERN, WITH_MEAN], ids=["zero mean", "linear mean"])
def test_few_neighbors_are_those_of_a_partially_independent_process(kernel, n_bases):
    X, y = waves(200)
    X_new = 1.5 * waves(30, seed=1)[0]
    weights = np.random.default_rng(2).uniform(0.5, 2, 200)
    settings = {"noise_variance": 0.05, "n_mean_bases": n_bases, "random_state": 0}
    model = given(kernel, X[:15], **settings).fit(X, y, sample_weight=weights)
    rows = {tuple(row): i for i, row in enumerate(X)}
    near = [rows[tuple(row)] for row in model.mean_bases_]
    expected = local_variances(kernel, MATERN, X[:15], X, 0.05 / weights, near, N_NEIGHBORS, X_new)
    # The error is the jitter of 1e-9 over the noise.
    assert_allclose(variances(model, X_new), expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("nu", "median"), [(0.5, 1.02), (1.5, 1.02), (np.inf, 1.2)])
def test_variances_are_close_to_the_exact_ones_and_hardly_ever_below(nu, median, seed):
    X, y = waves(400, seed=seed)
    X_new = 1.5 * waves(200, seed=seed + 10)[0]
    kernel = 1.5 * Matern([0.7, 1.0, 2.0], nu=nu)
    model = given(kernel, X[::20], noise_variance=0.01).fit(X, y)
    exact = np.diag(exact_gp_regression(kernel, X, y, X_new, 0.01)[1])
    ratio = np.sqrt(variances(model, X_new) / exact)
    assert ratio.min() > 0.97
    assert np.quantile(ratio, 0.05) > 0.995
    # The smoother the function, the more rows away from a place are informative.
    assert np.median(ratio) < median
    assert np.quantile(ratio, 0.95) < median + 0.3


def test_variances_return_to_the_prior_far_away():
    X, y = waves(100)
    model = given(MATERN, X[:10], noise_variance=0.05).fit(X, y)
    assert_allclose(variances(model, 100 + X[:3]), 1.5, rtol=1e-9)
    assert (variances(model, 1.5 * X) <= 1.5 * (1 + 1e-9)).all()


def test_streamed_rows_count_through_the_inducing_points():
    X, y = waves(200)
    X_new = waves(30, seed=1)[0]
    stream = given(WITH_MEAN, X[:15], noise_variance=0.05)
    for part in np.split(np.arange(200), [80, 150]):
        stream.partial_fit(X[part], y[part])
    noise = np.full(200, 0.05)
    expected = local_variances(
        WITH_MEAN, MATERN, X[:15], X, noise, np.arange(80), N_NEIGHBORS, X_new
    )
    assert_allclose(variances(stream, X_new), expected, rtol=1e-6)


# Joint covariances, precision, chunks, and models without local variances


def test_joint_covariances_have_the_local_variances():
    X, y = waves(100)
    X_new = 1.5 * waves(8, seed=1)[0]
    model = given(MATERN, X[:10], noise_variance=0.05).fit(X, np.c_[y, -y])
    mean, std = model.predict(X_new, return_std=True)
    cov = model.predict(X_new, return_cov=True)[1]
    assert_allclose(np.einsum("iij->ij", cov), std**2, rtol=1e-9)
    assert np.linalg.eigvalsh(cov[..., 0]).min() > 0.049
    draws = model.sample_latent(X_new, 4000)
    latent = std**2 - 0.05
    # Five standard errors of means and of variances.
    assert (np.abs(draws.mean(0) - mean) < 5 * np.sqrt(latent / 4000)).all()
    assert (np.abs(draws.var(0) / latent - 1) < 5 * np.sqrt(2 / 4000)).all()


def test_power_is_that_of_the_ratio_to_the_prior():
    X, y = waves(100)
    X_new = 1.5 * waves(8, seed=1)[0]
    model = given(MATERN, X[:10], noise_variance=0.05).fit(X, y)
    plain = variances(model, X_new)
    model._latents = [replace(model._latents[0], power=1.7)]
    assert_allclose(variances(model, X_new), 1.5 * (plain / 1.5) ** 1.7, rtol=1e-9)
    std, cov = model.predict(X_new, True)[1], model.predict(X_new, return_cov=True)[1]
    assert_allclose(np.diag(cov), std**2, rtol=1e-9)


def test_rows_are_predicted_alone_as_together(monkeypatch):
    X, y = waves(150)
    X_new = waves(20, seed=1)[0]
    model = given(MATERN, X[:10], noise_variance=0.05).fit(X, y)
    together = variances(model, X_new)
    assert_allclose([variances(model, row[None])[0] for row in X_new], together, rtol=1e-9)
    monkeypatch.setattr(_local_variances, "CACHED_BLOCK", 600)
    monkeypatch.setattr(_local_variances, "_BLOCK_ROWS", 70)
    assert_allclose(variances(model, X_new), together, rtol=1e-9)
    assert_array_equal(variances(pickle.loads(pickle.dumps(model)), X_new), variances(model, X_new))


def test_single_precision_agrees_with_double():
    X, y = waves(200)
    X_new = waves(20, seed=1)[0]
    double = given(MATERN, X[:20], noise_variance=0.01).fit(X, y)
    single = given(MATERN, X[:20], noise_variance=0.01, dtype="float32").fit(X, y)
    assert_allclose(variances(single, X_new), variances(double, X_new), rtol=1e-3)


def test_noise_may_vanish():
    X, _ = waves(300)
    y = np.sin(X[:, 0])
    kernel = 1.5 * RBF([0.7, 1.0, 2.0])
    model = given(kernel, X[:20], noise_variance=1e-8, tol=1e-2).fit(X, y)
    at_rows, away = variances(model, X), variances(model, X + 0.3)
    assert (at_rows < 1e-6).all()
    assert np.isfinite(away).all()
    # Factors of the dense kernel matrix have a rounding error of the size of the noise.
    exact = np.diag(exact_gp_regression(kernel, X, y, X + 0.3, 1e-8)[1])
    assert np.quantile(np.sqrt(away / exact), 0.05) > 0.99


def test_no_row_is_given_where_a_rank_holds_none_out():
    X, y = waves(50)
    model = given(MATERN, X[:10], noise_variance=0.05).fit(X, y)
    posterior = model._latents[0].posterior("cpu")
    assert posterior.local(torch.empty(0, 3)).shape == (0, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": StochasticGradient(batch_size=20), "max_iter": 2},
        {"kernel": 2.0 * DotProduct(1.0)},
    ],
    ids=["stochastic gradients", "linear kernel"],
)
def test_variances_stay_those_of_the_inducing_points(settings):
    X, y = waves(60)
    model = DecoupledGPRegressor(random_state=0, n_inducing=10).set_params(**settings).fit(X, y)
    assert model._latents[0].local_root is None
    assert (variances(model, X) > 0).all()
