"""Scales of the features, and default kernels in these scales."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.preprocessing import StandardScaler

from skgpsvm._hyperparameters import default_kernels
from skgpsvm._hyperparameters.default_kernels import (
    feature_scales,
    linear_kernel,
    smooth_kernel,
    with_one_unit,
)


def scattered(n=50, seed=0):
    """Return rows of three features of different means and spreads, and weights, some of them 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 20.0, 0.01] + [0.0, 300.0, -5.0]
    weights = rng.uniform(0.5, 2, n)
    weights[::4] = 0
    return X, weights


# Feature scales


def test_scales_are_the_weighted_moments(monkeypatch):
    X, weights = scattered()
    monkeypatch.setattr(default_kernels, "CHUNK_ROWS", 7)
    scaler = feature_scales(X, weights)
    mean = np.average(X, axis=0, weights=weights)
    assert_allclose(scaler.mean_, mean, rtol=1e-13)
    var = np.average((X - mean) ** 2, axis=0, weights=weights)
    # Means of chunks have rounding errors of 1e-16, and are five hundred times the deviations.
    assert_allclose(scaler.var_, var, rtol=1e-10)
    assert_allclose(scaler.scale_, np.sqrt(var), rtol=1e-10)


def test_scales_take_weights_as_repetitions():
    X, _ = scattered()
    counts = np.resize([1, 0, 3, 2], 50)
    weighted = feature_scales(X, counts.astype(float))
    repeated = feature_scales(np.repeat(X, counts, axis=0), np.ones(counts.sum()))
    assert_allclose(weighted.scale_, repeated.scale_, rtol=1e-11)


def test_chunks_without_weight_count_for_nothing(monkeypatch):
    X, _ = scattered()
    weights = np.r_[np.zeros(20), np.ones(30)]
    monkeypatch.setattr(default_kernels, "CHUNK_ROWS", 10)
    assert_allclose(feature_scales(X, weights).scale_, X[20:].std(0), rtol=1e-10)


def test_scales_of_float32_rows_are_computed_in_float64():
    X, weights = scattered()
    X = X.astype(np.float32)
    expected = feature_scales(X.astype(np.float64), weights)
    assert_array_equal(feature_scales(X, weights).scale_, expected.scale_)


@pytest.mark.parametrize("scale", [1e160, 1e300])
def test_squares_that_overflow_are_refused(scale):
    X = np.random.default_rng(0).normal(size=(50, 3))
    with pytest.raises(ValueError, match="overflow in float64: scale them down"):
        feature_scales(scale * X, np.ones(50))


def test_constant_feature_has_unit_scale():
    X, weights = scattered()
    X[:, 1] = 4.0
    scaler = feature_scales(X, weights)
    assert scaler.scale_[1] == 1
    assert scaler.var_[1] == 0


def test_rows_whose_squares_overflow_are_refused():
    X, weights = scattered()
    with pytest.raises(ValueError, match="Squares of X, times the weights, overflow"):
        feature_scales(1e200 * X, weights)


# Default kernels


def test_smooth_kernel_has_a_length_scale_from_each_feature_s_spread():
    X, _ = scattered()
    scaler = StandardScaler().fit(X)
    kernel = smooth_kernel(scaler, 5.0)
    scales = X.std(0) * np.sqrt(3 / 2)
    expected = ConstantKernel(5.0) * RBF(scales)
    assert_allclose(kernel(X), expected(X), rtol=1e-12)
    # The mean squared distance of two standardized rows is 2 d: a correlation of exp(-2).
    Z = (X - X.mean(0)) / X.std(0)
    difference = Z[:, None] - Z
    assert_allclose(kernel(X), 5.0 * np.exp(-(difference**2).sum(-1) / 3), rtol=1e-9)
    low, high = np.exp(kernel.bounds).T
    assert_allclose(low, [1e-3, *1e-3 * scales])
    assert_allclose(high, [1e5, *1e3 * scales])


def test_linear_kernel_has_its_variance_on_average():
    X, _ = scattered()
    kernel = linear_kernel(StandardScaler().fit(X), 7.0)
    # Standardized features have unit mean square, so the kernel's diagonal has mean `variance`.
    assert kernel.diag(X).mean() == pytest.approx(7.0, rel=1e-12)
    Z = (X - X.mean(0)) / X.std(0)
    assert_allclose(kernel(X), 7.0 / 3 * Z @ Z.T, rtol=0, atol=1e-9)
    assert kernel.n_dims == 0


def test_kernels_do_not_count_constant_features():
    X, _ = scattered()
    padded = np.c_[X[:, :2], np.full(50, 3.0)]
    for make in (smooth_kernel, linear_kernel):
        kernel = make(StandardScaler().fit(padded), 2.0)
        alone = make(StandardScaler().fit(X[:, :2]), 2.0)
        assert_allclose(kernel(padded), alone(X[:, :2]), rtol=1e-12, atol=1e-12)


def test_kernels_of_constant_rows_are_finite():
    X = np.full((5, 2), 3.0)
    scaler = StandardScaler().fit(X)
    assert_allclose(smooth_kernel(scaler, 2.0)(X), 2.0)
    assert_array_equal(linear_kernel(scaler, 2.0)(X), np.zeros((5, 5)))


@pytest.mark.parametrize("make", [smooth_kernel, linear_kernel])
def test_kernels_do_not_depend_on_the_units_of_the_features(make):
    X, _ = scattered()
    units = np.array([1e-3, 1.0, 1e4])
    a = make(StandardScaler().fit(X), 2.0)(X)
    b = make(StandardScaler().fit(X * units), 2.0)(X * units)
    assert_allclose(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [1e-140, 1.0, 1e150])
def test_kernels_of_one_unit_depend_on_distances_alone(size):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * [0.1, 1.0, 3.0] * size
    scaler = StandardScaler().fit(X)
    same = with_one_unit(scaler)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    kernel = smooth_kernel(same, 2.0)
    assert_allclose(kernel(X), kernel(X @ rotation), rtol=1e-9)
    # The mean squared distance, in units of the length scales, is that of standardized features.
    for found in (same, scaler):
        lengths = smooth_kernel(found, 2.0).k2.length_scale
        assert_allclose(2 * (X.std(0) / lengths).dot(X.std(0) / lengths), 4.0, rtol=1e-9)


@pytest.mark.parametrize("stds", [[2.0], [2.0, 2.1, 2.0], [2.0, 0.0, 0.0]])
def test_features_of_equal_deviations_have_one_unit_already(stds):
    X = np.random.default_rng(0).normal(size=(500, len(stds)))
    assert with_one_unit(StandardScaler().fit(stds * (X - X.mean(0)) / X.std(0) + 1)) is None
