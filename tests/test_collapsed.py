"""The collapsed bound of sparse GP regression and its gradient."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import differences
from problems import assert_all_close, rows_of, t64, waves
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skgpsvm import _collapsed
from skgpsvm._collapsed import (
    CollapsedBound,
    CollapsedLearning,
    evidence_or_bound,
)
from skgpsvm._evidence import Evidence
from skgpsvm._objectives import collapsed_elbo
from skgpsvm._optim import Free
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.kernels import Linear

KERNELS = [
    2.0 * RBF([1.0, 2.0, 3.0]) + ConstantKernel(0.5) + Linear(1.3),
    1.5 * Matern(1.0, nu=2.5),
    ConstantKernel(2.0) + Linear([1.0, 2.0, 3.0]),
]


def bound_of(kernel, X, Y, weights=None):
    return CollapsedBound(torch_kernel(kernel), rows_of(X, Y.reshape(len(X), -1), weights))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradient_is_the_derivative_of_the_bound(kernel, monkeypatch):
    monkeypatch.setattr(_collapsed, "_CHUNK_ROWS", 30)
    X, y = waves()
    weights = np.random.default_rng(1).uniform(0.5, 2, 80)
    bound = bound_of(kernel, X, np.c_[y, X[:, 2] - y], weights)
    parts = [t64(kernel.theta), t64(X[:7] + 0.1), t64([-2.0, -1.0])]
    value, *gradients = bound.value_and_gradient(*parts)
    assert value == pytest.approx(bound.value(*parts), rel=1e-12)
    assert_all_close(gradients, differences(bound.value, *parts), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("n_noise", [1, 2])
@pytest.mark.parametrize("jitter", [0.0, 1e-3])
def test_derivatives_in_the_sums_are_those_of_autograd(n_noise, jitter):
    rng = np.random.default_rng(0)
    A, Y = t64(rng.normal(size=(20, 6))), t64(rng.normal(size=(20, 2)))
    sums = A.T @ A, A.T @ Y, t64(3.0), t64([-1.0, -2.0])[:n_noise]
    leaves = gram, cross, residuals, noise = [part.clone().requires_grad_() for part in sums]
    known = Y.square().sum(0), t64(20.0)
    eye, noises = torch.eye(6, dtype=torch.float64), noise.expand(2)
    reference = 0.0
    for b, square, log_var in zip(cross.T, known[0], noises, strict=True):
        precision = eye + gram / log_var.exp()
        precision = precision + jitter * precision.trace() / 6 * eye
        scaled = b / log_var.exp()
        misfit = (square + residuals) / log_var.exp() - scaled @ precision.inverse() @ scaled
        reference = reference - 0.5 * (
            20 * (np.log(2 * np.pi) + log_var) + precision.logdet() + misfit
        )
    expected = torch.autograd.grad(reference, leaves)
    gram, cross, residuals, noise = sums
    value, *found = collapsed_elbo(gram, cross, residuals, *known, noise, jitter)
    assert value.item() == pytest.approx(reference.item(), rel=1e-12)
    assert_all_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_evidence_takes_the_place_of_the_bound_where_every_row_is_a_point(kernel):
    X, y = waves(30)
    weights = np.random.default_rng(1).uniform(0.5, 2, 30)
    bound = bound_of(kernel, X, np.c_[y, X[:, 2] - y], weights)
    theta, Z, noise = t64(kernel.theta), t64(X[::-1].copy()), t64([-2.0, -1.0])
    same = evidence_or_bound(bound.kernel, bound.rows, Z)
    assert isinstance(same, Evidence)
    assert isinstance(evidence_or_bound(bound.kernel, bound.rows, Z[1:]), CollapsedBound)
    expected = bound.value_and_gradient(theta, Z, noise)
    value, by_theta, by_Z, by_noise = same.value_and_gradient(theta, Z, noise)
    # The jitter, of 1e-9, is on Kzz of the one and on the covariance of the rows of the other.
    assert value == pytest.approx(expected[0], abs=1e-5)
    assert_allclose(by_theta, expected[1], rtol=1e-6, atol=1e-5)
    assert_allclose(by_noise, expected[3], rtol=1e-6, atol=1e-5)
    assert not by_Z.any()
    gains = [part.gain_over_noise(theta, Z, noise) for part in (bound, same)]
    assert gains[0] == pytest.approx(gains[1], abs=1e-6)


def test_noise_may_be_one_for_all_outputs():
    X, y = waves()
    bound = bound_of(KERNELS[0], X, np.c_[y, X[:, 2] - y])
    theta, Z, noise = t64(KERNELS[0].theta), t64(X[:7]), t64([-1.0])
    value, by_theta, by_Z, by_noise = bound.value_and_gradient(theta, Z, noise)
    apart = bound.value_and_gradient(theta, Z, noise.expand(2))
    assert value == pytest.approx(apart[0], rel=1e-14)
    assert_allclose(by_theta, apart[1], rtol=1e-10)
    assert_allclose(by_Z, apart[2], rtol=1e-10)
    assert_allclose(by_noise, [apart[3].sum()], rtol=1e-10)
    # Pure noise is less likely with one variance than with two, and with bounds than without.
    gains = [bound.gain_over_noise(theta, Z, part) for part in (noise, noise.expand(2))]
    assert gains[0] > gains[1]
    assert bound.gain_over_noise(theta, Z, noise, (-1.0, -1.0)) > gains[0]


def test_bound_is_titsias():
    X, y = waves(30)
    Z, kernel, noise = X[:6], 1.5 * RBF(1.2), 0.3
    Kzz = kernel(Z) + 1.5 * 1e-9 * np.eye(6)
    Kxz = kernel(X, Z)
    Q = Kxz @ np.linalg.solve(Kzz, Kxz.T)
    cov = Q + noise * np.eye(30)
    log_density = -0.5 * (
        y @ np.linalg.solve(cov, y) + np.linalg.slogdet(cov)[1] + 30 * np.log(2 * np.pi)
    )
    expected = log_density - (kernel.diag(X) - np.diag(Q)).sum() / (2 * noise)
    value = bound_of(kernel, X, y).value(t64(kernel.theta), t64(Z), t64([np.log(noise)]))
    assert value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("m", [1, 5, 20])
def test_bound_is_below_the_evidence_and_grows_with_the_inducing_points(m):
    X, y = waves(60)
    kernel = 1.5 * RBF(1.2)
    evidence = GaussianProcessRegressor(kernel, alpha=0.1, optimizer=None).fit(X, y)
    noise = t64([np.log(0.1)])
    fewer, more = (
        bound_of(kernel, X, y).value(t64(kernel.theta), t64(X[:size]), noise) for size in (m, m + 5)
    )
    assert fewer < more < evidence.log_marginal_likelihood_value_


def test_bound_takes_weights_as_repetitions():
    X, y = waves(30)
    weights = np.resize([1, 2, 3], 30)
    again = np.repeat(np.arange(30), weights)
    kernel = KERNELS[0]
    parts = t64(kernel.theta), t64(X[:6]), t64([-1.0])
    weighted = bound_of(kernel, X, y, weights.astype(float)).value_and_gradient(*parts)
    repeated = bound_of(kernel, X[again], y[again]).value_and_gradient(*parts)
    assert_all_close(weighted, repeated, rtol=1e-9, atol=1e-9)


def test_rounds_raise_the_bound_within_the_bounds_of_the_kernel():
    X, y = waves()
    kernel = ConstantKernel(1.0, (0.9, 1.1)) * RBF([1.0] * 3, (0.5, 2.0))
    learning = CollapsedLearning(
        bound_of(kernel, X, y),
        Free(["theta", "noise", "Z"], t64(kernel.bounds), t64(X.std(0))),
        0.0,
    )
    state = learning.init(t64(kernel.theta), t64(X[:8]), t64([-2.0]))
    values = [learning.bound.value(*state.hyperparameters)]
    for _ in range(3):
        learning.step(state)
        values.append(state.objective)
    assert (np.diff(values) > 0).all()
    low, high = kernel.bounds.T
    assert (low <= state.theta.numpy()).all()
    assert (state.theta.numpy() <= high).all()
    assert values[-1] == pytest.approx(learning.bound.value(*state.hyperparameters), rel=1e-10)
    assert state.gain == pytest.approx((values[-1] - values[-2]) / 80)


def test_mean_residual_is_the_variance_that_the_points_leave_out(monkeypatch):
    monkeypatch.setattr(_collapsed, "_CHUNK_ROWS", 30)
    X, y = waves()
    weights = np.random.default_rng(1).uniform(0.5, 2, 80)
    kernel = 1.5 * RBF([1.0] * 3)
    K, cross, inner = kernel(X), kernel(X, X[:8]), kernel(X[:8])
    expected = np.diag(K - cross @ np.linalg.solve(inner, cross.T)) @ weights / weights.sum()
    found = bound_of(kernel, X, y, weights).mean_residual(t64(kernel.theta), t64(X[:8]))
    # The jitter is 1e-9 of the diagonal, and the smallest eigenvalue of the matrix is 0.1.
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_length_scales_are_those_of_the_kernel():
    X, y = waves()
    kernel = 3.0 * RBF([0.5, 2.0, 1e3]) + ConstantKernel(4.0)
    learning = CollapsedLearning(
        bound_of(kernel, X, y), Free(["Z"], t64(kernel.bounds), t64(X.std(0))), 0.0
    )
    found = learning._length_scales(t64(kernel.theta), t64(X[:8]))
    # The step is a tenth of a standard deviation; values are limited to ten standard deviations.
    assert_allclose(found[:2], [0.5, 2.0], rtol=0.02)
    assert_allclose(found[2], 10 * X.std(0)[2])


def test_length_scales_are_known_where_a_point_has_no_variance():
    X, y = waves()
    kernel = Linear() * RBF([0.5, 2.0, 1e3])
    learning = CollapsedLearning(
        bound_of(kernel, X, y), Free(["Z"], t64(kernel.bounds), t64(X.std(0))), 0.0
    )
    theta, Z = t64(kernel.theta), t64(X[:8])
    first = learning._length_scales(theta, Z)
    Z = torch.cat([torch.zeros(1, 3, dtype=torch.float64), Z])
    assert first.isfinite().all()
    assert torch.equal(learning._length_scales(theta, Z), first)
