"""The exact log evidence: scikit-learn's value, gradient, weights, noise refitted to rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from oracles import differences
from problems import assert_all_close, rows_of, t64, waves
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skgpsvm._evidence import Evidence, SharedScaling
from skgpsvm._torch_kernels import directions, torch_kernel


@pytest.mark.parametrize("kernel", [1.5 * RBF([1.0, 2.0, 3.0]), 1.5 * RBF(1.0) + Matern(0.1)])
def test_evidence_is_that_of_the_exact_process(kernel):
    X, y = waves(40)
    exact = GaussianProcessRegressor(kernel, alpha=0.2, optimizer=None).fit(X, y)
    expected = exact.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    evidence = Evidence(torch_kernel(kernel), rows_of(X, y[:, None]))
    parts = t64(kernel.theta), t64(X[:3]), t64([np.log(0.2)])
    value, by_theta, by_points, _ = evidence.value_and_gradient(*parts)
    assert value == pytest.approx(expected[0], rel=1e-10)
    assert evidence.value(*parts) == pytest.approx(value, rel=1e-14)
    assert_allclose(by_theta, expected[1], rtol=1e-8, atol=1e-9)
    assert_array_equal(by_points, np.zeros((3, 3)))


def test_gradient_of_the_evidence_is_its_derivative():
    X, y = waves(30)
    kernel = 1.5 * RBF([1.0, 2.0, 3.0])
    weights = np.random.default_rng(1).uniform(0.5, 2, 30)
    evidence = Evidence(torch_kernel(kernel), rows_of(X, np.c_[y, X[:, 2] - y], weights))
    theta, Z, noise = t64(kernel.theta), t64(X[:1]), t64([-2.0, -1.0])
    _, by_theta, _, by_noise = evidence.value_and_gradient(theta, Z, noise)
    numeric = differences(lambda *point: evidence.value(point[0], Z, point[1]), theta, noise)
    assert_all_close((by_theta, by_noise), numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weights", [None, np.geomspace(1e-3, 1e3, 30)])
def test_gradient_of_the_evidence_includes_the_jitter(weights):
    X, y = waves(30)
    kernel = 1.5 * RBF(1.0)
    evidence = Evidence(torch_kernel(kernel), rows_of(X, y[:, None], weights), jitter=0.01)
    theta, Z, noise = t64(kernel.theta), t64(X[:1]), t64([-2.0])
    _, by_theta, _, by_noise = evidence.value_and_gradient(theta, Z, noise)
    numeric = differences(
        lambda *point: evidence.value(point[0], Z, point[1]), theta, noise, step=1e-5
    )
    assert_all_close((by_theta, by_noise), numeric, rtol=1e-6, atol=1e-6)


def test_shares_of_features_are_those_of_products_of_kernels():
    X, y = waves(20)
    kernel, lengths = 1.5 * RBF([1.0, 2.0, 3.0]), [0.5, 1.0, 2.0]
    rows, noise, theta = rows_of(X, np.c_[y, X[:, 2]]), t64([-2.0, -1.0]), t64(kernel.theta)
    found = Evidence(torch_kernel(kernel), rows).by_features(theta, noise, t64(lengths))

    def evidence(j, share):
        of_feature = RBF(np.where(np.arange(3) == j, lengths[j], 1e9))
        whole = kernel + ConstantKernel(share) * kernel * of_feature
        return Evidence(torch_kernel(whole), rows).value(t64(whole.theta), t64(X[:1]), noise)

    expected = [(evidence(j, 1e-5) - evidence(j, 1e-6)) / 9e-6 for j in range(3)]
    assert_allclose(found, expected, rtol=2e-3)


def test_weights_of_the_evidence_are_repetitions():
    X, y = waves(20)
    Y, weights = np.c_[y, X[:, 2]], np.resize([1, 2, 3], 20)
    again = np.repeat(np.arange(20), weights)
    kernel = 1.5 * RBF(1.0)
    parts = t64(kernel.theta), t64(X[:1]), t64([-1.0, -2.0])
    weighted, repeated = (
        Evidence(torch_kernel(kernel), rows).value_and_gradient(*parts)
        for rows in (rows_of(X, Y, weights.astype(float)), rows_of(X[again], Y[again]))
    )
    assert_all_close(weighted, repeated, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weight", [1e-8, 1e-12, 1e-20])
@pytest.mark.parametrize("knows_noise", [False, True])
def test_rows_of_tiny_weight_are_as_if_left_out(weight, knows_noise):
    X, y = waves(40)
    targets = y[:, None]
    if knows_noise:
        targets = np.stack([targets, np.full_like(targets, 0.01)], -1)
    weights = np.where(np.arange(40) < 25, 1.0, weight)
    kernel = 1.5 * RBF(1.0)
    parts = t64(kernel.theta), t64(X[:1]), t64([-2.0])
    found, expected = (
        Evidence(torch_kernel(kernel), rows).value_and_gradient(*parts)
        for rows in (rows_of(X, targets, weights), rows_of(X[:25], targets[:25]))
    )
    # Fifteen rows of weight 1e-8 count as much as 1.5e-7 rows.
    assert_all_close(found, expected, rtol=1e-6, atol=1e-5)


def test_noise_that_predicts_other_rows_best_is_found():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(150, 1))
    kernel = 1.5 * RBF(1.0)
    f = np.linalg.cholesky(kernel(X) + 1e-9 * np.eye(150)) @ rng.normal(size=(150, 2))
    Y = f + np.sqrt([0.1, 0.4]) * rng.normal(size=(150, 2))
    weights = rng.uniform(0.5, 2, 110)
    evidence = Evidence(torch_kernel(kernel), rows_of(X[:40], Y[:40]))
    others = rows_of(X[40:], Y[40:], weights)
    start = t64(np.log([0.2, 0.2]))
    noise, density = evidence.refit_noise(t64(kernel.theta), start, others, start - 5)
    total = 0.0
    for y, found in zip(Y.T, noise.tolist(), strict=True):
        exact = GaussianProcessRegressor(kernel, alpha=0.2, optimizer=None).fit(X[:40], y[:40])
        mean, std = exact.predict(X[40:], return_std=True)

        def loss(log, mean=mean, std=std, y=y):
            return -weights @ norm.logpdf(y[40:], mean, np.sqrt(std**2 + np.exp(log)))

        best = minimize_scalar(loss, bounds=(-6, 2), method="bounded")
        # The maximum is found to a relative gain of 1e-9.
        assert found == pytest.approx(best.x, abs=1e-3)
        total -= best.fun - 0.5 * np.log(2 * np.pi) * weights.sum()
    assert density == pytest.approx(total, abs=1e-5)
    # Four standard errors of the logarithm of a variance, from 110 rows of unequal weight.
    assert_allclose(noise, np.log([0.1, 0.4]), atol=4 * np.sqrt(2 / 90))
    limited, lower = evidence.refit_noise(t64(kernel.theta), start, others, start)
    assert_allclose(limited, [start[0].item(), noise[1].item()], atol=1e-3)
    assert lower < density


def test_noise_may_be_one_for_all_outputs():
    X, y = waves(40)
    y[20:] += 3 * np.random.default_rng(2).normal(size=20)
    kernel = 1.5 * RBF(1.0)
    rows, others = (rows_of(X[p], np.c_[y, X[:, 2] - y][p]) for p in np.split(np.arange(40), 2))
    evidence, theta, Z = Evidence(torch_kernel(kernel), rows), t64(kernel.theta), t64(X[:1])
    value, by_theta, _, by_noise = evidence.value_and_gradient(theta, Z, t64([-1.0]))
    apart = evidence.value_and_gradient(theta, Z, t64([-1.0, -1.0]))
    assert value == pytest.approx(apart[0], rel=1e-14)
    assert_allclose(by_theta, apart[1], rtol=1e-12)
    assert_allclose(by_noise, [apart[3].sum()], rtol=1e-12)
    noise, density = evidence.refit_noise(theta, t64([-1.0]), others, t64([-9.0]))
    assert len(noise) == 1
    single = [
        evidence.refit_noise(theta, t64([-1.0, -1.0]), others, t64([at] * 2), at)[1]
        for at in (noise.item() - 0.1, noise.item(), noise.item() + 0.1)
    ]
    assert density == pytest.approx(single[1], abs=1e-6)
    assert density > max(single[0], single[2])
    assert evidence.refit_noise(theta, t64([-1.0]), others, t64([-9.0]), -8.0)[0] <= -8.0


def test_entries_of_a_hyper_parameter_have_one_direction():
    kernel = ConstantKernel(2.0, "fixed") * RBF([1.0, 2.0, 3.0]) + WhiteKernel(0.1)
    assert_array_equal(directions(kernel), [[1, 1, 1, 0], [0, 0, 0, 1]])
    assert directions(ConstantKernel(2.0, "fixed")).shape == (0, 0)


def test_common_factors_move_entries_together_within_their_bounds():
    X, y = waves(30)
    # The second length scale is at its upper bound and can only decrease.
    kernel = 1.5 * RBF([1.0, 2.0, 3.0], (0.1, 2.0))
    evidence = Evidence(torch_kernel(kernel), rows_of(X, y[:, None]))
    bounds, theta = t64(kernel.bounds), t64(np.log([1.5, 1.0, 2.0, 1.2]))
    factors = SharedScaling(evidence, theta, directions(kernel), bounds)
    Z, noise = t64(X[:1]), t64([-1.0])
    assert_allclose(factors.theta(t64(np.log([2.0, 1.5]))).exp(), [3.0, 1.5, 2.0, 1.8])
    value, *_ = factors.value_and_gradient(t64([0.0, 0.0]), Z, noise)
    assert value == evidence.value_and_gradient(theta, Z, noise)[0]
    for logs in (t64([0.1, 0.2]), t64([-0.3, -0.2])):
        _, slopes, _, _ = factors.value_and_gradient(logs, Z, noise)
        (expected,) = differences(
            lambda point: evidence.value(factors.theta(point), Z, noise), logs
        )
        assert_allclose(slopes, expected, rtol=1e-6, atol=1e-6)


def test_evidence_bears_covariances_singular_but_for_rounding():
    X = np.random.default_rng(0).normal(size=(200, 3))
    kernel = 1e5 * RBF(10.0)
    evidence = Evidence(torch_kernel(kernel), rows_of(X, np.sin(X[:, :1])))
    value, *slopes = evidence.value_and_gradient(t64(kernel.theta), t64(X[:1]), t64([-30.0]))
    assert np.isfinite(value)
    assert all(part.isfinite().all() for part in slopes)
