"""Leave-one-out predictions against refits without a row."""

import numpy as np
import pytest
import torch
from problems import HINGES, FixedContrast, ascent_of, moments, ring, swept, t64
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF

from skgpsvm._hinge_sites import BinarySites, ContrastSites
from skgpsvm._inference.leave_one_out import leave_one_out
from skgpsvm._sites import LikelihoodSites
from skgpsvm.likelihoods import Gaussian, StudentT


def refitted(make, kernel, X, y, Z, n_sweeps):
    """Return the moments of every row under a fit without that row."""
    mean, var = [], []
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        ascent = ascent_of(make(), kernel, X[others], y[others], Z)
        m, v = moments(ascent, swept(ascent, n_sweeps), X[i : i + 1])
        mean.append(m)
        var.append(v)
    return torch.cat(mean), torch.cat(var)


@pytest.mark.parametrize(
    ("make", "n_sweeps", "mean_factor", "var_factor"),
    [
        # One Newton step has an error of second order in a row's influence.
        (BinarySites, 25, 0.2, 0.2),
        # Off-diagonal curvature between latents is approximate, and the strongest class may change.
        (FixedContrast, 25, 0.4, 0.25),
        (HINGES["soft"], 40, 0.3, 0.25),
    ],
    ids=["binary", "fixed", "soft"],
)
def test_left_out_moments_are_close_to_those_of_refits(make, n_sweeps, mean_factor, var_factor):
    X, y = ring(40, max(make().n_latents, 2))
    kernel, Z = 1.0 * RBF(1.0), X[:15]
    ascent = ascent_of(make(), kernel, X, y, Z)
    state = swept(ascent, n_sweeps)
    mean, var, targets, weights = leave_one_out(ascent, state)
    np.testing.assert_array_equal(targets, y)
    assert (weights == 1).all()
    true_mean, true_var = refitted(make, kernel, X, y, Z, n_sweeps)
    in_mean, in_var = moments(ascent, state, X)

    def error(approximate, exact):
        return (approximate - exact).abs().mean()

    assert error(mean, true_mean) < mean_factor * error(in_mean, true_mean)
    assert error(var, true_var) < var_factor * error(in_var, true_var)


def test_row_that_others_contradict_loses_one_copy(hinge):
    n_classes = max(hinge.n_latents, 2)
    X, y = ring(20, n_classes)
    X, y = np.tile(X, (2, 1)), np.concatenate([y, (y + 1) % n_classes])
    weights = np.resize([1, 3, 2], 40)
    kernel, Z = 1.0 * RBF(1.0), X[:6]
    repeated = np.repeat(np.arange(40), weights)
    weighted = ascent_of(hinge, kernel, X, y, Z, weights.astype(float))
    longer = ascent_of(hinge, kernel, X[repeated], y[repeated], Z)
    a = leave_one_out(weighted, swept(weighted, 6))
    b = leave_one_out(longer, swept(longer, 6))
    np.testing.assert_array_equal(a[3], weights)
    for of_weighted, of_repeated in zip(a[:3], b[:3], strict=True):
        # Sums are in another order.
        np.testing.assert_allclose(of_weighted[repeated], of_repeated, rtol=0, atol=1e-11)


@pytest.mark.parametrize("contradicted", [False, True])
def test_left_out_rows_of_gaussian_noise_are_those_of_refits(contradicted):
    X, labels = ring(12, 2)
    y = labels[:, None] + X[:, :1]
    if contradicted:
        X, y = np.tile(X, (2, 1)), np.concatenate([y, y - 1])
    weights = np.resize([1.0, 3.0, 2.5], len(X))
    parts = LikelihoodSites(Gaussian(0.1), 1), 1.0 * RBF(1.0)

    def fit(weights):
        ascent = ascent_of(*parts, X, y, X[:6], weights)
        return ascent, swept(ascent, 2)

    mean, var, *_ = leave_one_out(*fit(weights))
    for i in range(len(X)):
        # All weight of the row is left out, or that of one observation.
        left = np.minimum(weights, 1) if contradicted else weights
        others = fit(weights - np.where(np.arange(len(X)) == i, left, 0))
        m, v = moments(*others, X[i : i + 1])
        np.testing.assert_allclose([mean[i], var[i]], [m[0], v[0]], rtol=1e-8)


def test_row_of_tiny_weight_is_hardly_left_out(hinge):
    X, y = ring(20, max(hinge.n_latents, 2))
    weights = np.where(np.arange(20) == 7, 1e-9, 1.0)
    ascent = ascent_of(hinge, 1.0 * RBF(1.0), X, y, X[:6], weights)
    state = swept(ascent, 6)
    mean, var, *_ = leave_one_out(ascent, state)
    m, v = moments(ascent, state, X)
    np.testing.assert_allclose(mean[7], m[7], rtol=0, atol=1e-7)
    np.testing.assert_allclose(var[7], v[7], rtol=0, atol=1e-7)
    assert ((mean - m).abs().max(1).values > 1e-4).sum() > 15


def test_left_out_rows_can_be_a_subset(hinge):
    X, y = ring(30, max(hinge.n_latents, 2))
    ascent = ascent_of(hinge, 1.0 * RBF(1.0), X, y, X[:6])
    state = swept(ascent, 5)
    some, every = leave_one_out(ascent, state, ascent.rows.spaced(4)), leave_one_out(ascent, state)
    for part, whole in zip(some, every, strict=True):
        np.testing.assert_allclose(part, whole[[0, 10, 19, 29]], rtol=1e-10, atol=1e-12)


def test_leave_one_out_variances_are_at_most_the_priors():
    X, y = load_digits(return_X_y=True)
    X, y = X[:200] / 16, y[:200]
    ascent = ascent_of(ContrastSites(10, "soft"), 10.0 * RBF(2.0), X, y, X[:60])
    state = swept(ascent, 16)
    _, var, *_ = leave_one_out(ascent, state)
    assert (var <= 10.0 + 1e-8).all()


def test_outliers_of_negative_curvature_leave_a_hessian_definite():
    X = np.linspace(0, 1, 20)[:, None]
    y = np.where(np.arange(20) % 2, 3.0, -3.0)[:, None]
    ascent = ascent_of(LikelihoodSites(StudentT(0.1), 1), 1e4 * RBF(0.2), X, y, X[:5])
    state = ascent.init(t64(np.zeros((1, 5))), t64(1e-4 * np.eye(5))[None])
    mean, var, *_ = leave_one_out(ascent, state)
    assert mean.isfinite().all()
    assert (var > 0).all()
