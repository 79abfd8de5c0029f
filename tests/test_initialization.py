"""Initial length scales, variances and posteriors."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from oracles import exact_gp_regression
from problems import rows_of, t64, waves
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.preprocessing import StandardScaler

from skgpsvm import (
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._fitted_models import SparseModel
from skgpsvm._hyperparameters.initialization import (
    at_gaussian_posterior,
    lengths_by_feature,
    median_scales,
    scaled_lengths,
    shrink_length_scales,
    with_lengths,
)
from skgpsvm._sites import LikelihoodSites
from skgpsvm.likelihoods import Logistic


def stripes(n, waves_per_unit, seed=0):
    X = np.random.default_rng(seed).uniform(-3, 3, size=(n, 1))
    return X, (np.sin(waves_per_unit * X[:, 0]) > 0).astype(int)


def test_scaled_lengths_stay_within_their_bounds():
    kernel = ConstantKernel(3.0) * RBF([1.0, 2.0], (0.9, 10.0)) + RBF(4.0, "fixed")
    assert_allclose(np.exp(scaled_lengths(kernel, 0.5)), [3.0, 0.9, 1.0])


def test_start_has_the_longest_length_scale_that_explains_something():
    X, y = stripes(150, 5)
    start = SparseModel(5.0 * RBF(1.2), X[:60], ())

    def shrunk(start, y):
        problem = SimpleNamespace(rows=rows_of(X, y), likelihood=LikelihoodSites(Logistic(), 1))
        problem.on_few = lambda max_rows: problem
        return shrink_length_scales(problem, start)

    found, _ = shrunk(start, y)
    shorter = [with_lengths(start, factor).kernel.theta for factor in (0.5, 0.25, 0.125)]
    assert any(np.array_equal(found.kernel.theta, theta) for theta in shorter)
    noise = np.random.default_rng(0).integers(2, size=150)
    assert shrunk(start, noise) == (start, False)
    easy = (X[:, 0] > 0).astype(int)
    kept, is_clear = shrunk(start, easy)
    assert np.array_equal(kept.kernel.theta, start.kernel.theta)
    assert is_clear
    held = SparseModel(5.0 * RBF(1.2, "fixed"), X[:60], ())
    kept, _ = shrunk(held, easy)
    assert kept is held


@pytest.mark.parametrize("kind", [SVGPClassifier, EPClassifier, DecoupledGPClassifier])
def test_short_waves_are_found(kind):
    X, y = stripes(150, 5, seed=1)
    model = kind(random_state=0).fit(X, y)
    assert model.score(*stripes(300, 5, seed=2)) > 0.93


def test_gaussian_posterior_is_the_exact_one():
    X, y = waves(30)
    start = SparseModel(2.0 * RBF(1.5), X, (0.0,), jitter=1e-10)
    found = at_gaussian_posterior(start, t64([0.2]), rows_of(X, y[:, None]))
    mean, var = found.posterior("cpu").marginals(t64(X[:5] + 0.1))
    expected = exact_gp_regression(start.kernel, X, y, X[:5] + 0.1, 0.2)
    assert_allclose(mean[:, 0], expected[0], atol=1e-6)
    assert_allclose(var[:, 0], expected[1].diagonal(), atol=1e-6)


def test_median_distance_is_that_of_rows_in_any_order():
    X = np.sort(np.random.default_rng(0).normal(size=(800, 1)), axis=0)
    scaler = StandardScaler().fit(X)
    found = median_scales(rows_of(X, X), scaler, np.random.RandomState(0))
    assert_allclose(found, np.median(pdist(X)), rtol=1e-3)


@pytest.mark.parametrize("kind", [SVGPRegressor, DecoupledGPRegressor])
@pytest.mark.parametrize("likelihood", ["laplace", "student_t"])
def test_tails_do_not_cost_what_gaussian_noise_finds(kind, likelihood):
    X, y = waves(100, d=2, noise=0.05)
    gaussian = SVGPRegressor(random_state=0).fit(X, y)
    model = kind(likelihood=likelihood, random_state=0).fit(X, y)
    held = kind(
        gaussian.kernel_,
        likelihood=likelihood,
        noise_variance=gaussian.noise_variance_ / y.var(),
        optimizer=None,
        max_iter=500,
        random_state=0,
    ).fit(X, y)
    assert model.elbo_ > held.elbo_ - 2
    truth = np.sin(2 * X[:, 0]) + X[:, 1]
    assert np.sqrt(np.mean((model.predict(X) - truth) ** 2)) < 0.03


def test_length_scales_by_feature_are_those_of_ard_kernels():
    kernel = ConstantKernel(3.0) * RBF([1.0, 2.0]) + RBF(4.0) + Matern([1.0, 2.0])
    assert_array_equal(lengths_by_feature(kernel, 2), [[1, 2], [4, 5]])
    assert lengths_by_feature(RBF([1.0, 2.0], "fixed"), 2).shape == (0, 2)


@pytest.mark.parametrize(
    ("model", "least_score"),
    [
        (SVGPRegressor(random_state=0), 0.95),
        # Without a prior, some length scales of idle features are those of chance.
        (SVGPRegressor(1.0 * RBF(np.ones(50)), random_state=0), 0.9),
        pytest.param(DecoupledGPRegressor(random_state=0), 0.95, marks=pytest.mark.slow),
    ],
    ids=["SVGPRegressor", "own kernel", "DecoupledGPRegressor"],
)
def test_no_feature_is_missing_among_many_idle_ones(model, least_score):
    # In five draws, starts alone end without a feature that has a quadratic effect.
    for seed in range(10):
        X, y = make_friedman1(150, n_features=50, noise=1, random_state=seed)
        fresh, truth = make_friedman1(1000, n_features=50, random_state=1000 + seed)
        of_X, of_y = StandardScaler().fit(X), StandardScaler().fit(y[:, None])
        X, fresh = of_X.transform(X), of_X.transform(fresh)
        y, truth = (of_y.transform(part[:, None])[:, 0] for part in (y, truth))
        # The process of the five features that matter is a limit of that of all.
        kernel = 1.0 * RBF(np.full(5, 5.0)) + WhiteKernel(0.1)
        known = GaussianProcessRegressor(kernel).fit(X[:, :5], y)
        model = clone(model).fit(X, y)
        assert model.elbo_ > known.log_marginal_likelihood_value_ - 2
        assert model.score(fresh, truth) > least_score


def test_few_rows_of_many_features_are_points():
    X, y = make_friedman1(150, n_features=50, noise=1, random_state=2)
    model = SVGPRegressor(random_state=0).fit(X, y)
    # All rows are inducing points, so that other points could not be better.
    assert_array_equal(model.inducing_points_, np.unique(X, axis=0))
