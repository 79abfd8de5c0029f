"""The package's own covariance functions as scikit-learn kernels."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct, WhiteKernel

from skgpsvm.kernels import Linear

ARD = np.array([0.7, 1.3, 2.1])
OFFSET = np.array([0.5, -1.0, 2.0])
KERNELS = [
    Linear(),
    Linear(0.9, offset=0.4),
    Linear([0.9]),
    Linear(ARD),
    Linear(ARD, offset=OFFSET),
    Linear(ARD, "fixed", offset=OFFSET),
]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((6, 3))


@each_kernel
def test_linear_is_the_weighted_dot_product(kernel, X):
    Z = X[::-1] + 1
    weight = np.broadcast_to(1 / np.square(kernel.length_scale), 3)
    expected = (X - kernel.offset) @ np.diag(weight) @ (Z - kernel.offset).T
    assert_allclose(kernel(X, Z), expected, rtol=1e-13, atol=1e-13)  # rounding of 3 terms
    assert_allclose(kernel(X), kernel(X, X), rtol=1e-15)
    assert_allclose(kernel.diag(X), np.diag(kernel(X)), rtol=1e-14)
    assert not kernel.is_stationary()


def test_linear_without_scale_or_offset_is_the_dot_product(X):
    assert_allclose(Linear()(X), DotProduct(0.0, "fixed")(X), rtol=1e-14)


@each_kernel
def test_gradient_equals_differences(kernel, X):
    K, gradient = kernel(X, eval_gradient=True)
    assert_array_equal(K, kernel(X))
    assert gradient.shape == (6, 6, kernel.n_dims)
    step = 1e-5  # central differences err by step^2 and eps / step, both about 1e-10
    for i, direction in enumerate(np.eye(kernel.n_dims)):
        above, below = (
            kernel.clone_with_theta(kernel.theta + sign * step * direction)(X) for sign in (1, -1)
        )
        assert_allclose(gradient[:, :, i], (above - below) / (2 * step), rtol=1e-8, atol=1e-8)


def test_gradient_needs_one_set_of_rows(X):
    with pytest.raises(ValueError, match="only be evaluated when Y is None"):
        Linear()(X, X, eval_gradient=True)


@each_kernel
def test_theta_and_bounds(kernel):
    n_dims = 0 if kernel.length_scale_bounds == "fixed" else np.size(kernel.length_scale)
    assert kernel.n_dims == n_dims
    if n_dims:
        assert_allclose(kernel.theta, np.log(np.ravel(kernel.length_scale)), rtol=1e-15)
        assert_allclose(np.exp(kernel.bounds), np.tile([1e-5, 1e5], (n_dims, 1)), rtol=1e-13)


@each_kernel
def test_clone_and_params(kernel):
    copy = clone(kernel)
    assert copy == kernel
    assert set(copy.get_params()) == {"length_scale", "length_scale_bounds", "offset"}
    copy.set_params(offset=7.0)
    assert copy.offset == 7.0
    assert copy != kernel


def test_offset_is_kept_when_theta_is_set():
    kernel = Linear(ARD, offset=OFFSET).clone_with_theta(np.zeros(3))
    assert_array_equal(kernel.length_scale, 1)
    assert_array_equal(kernel.offset, OFFSET)


def test_repr():
    assert repr(Linear(2)) == "Linear(length_scale=2, offset=0)"
    assert repr(Linear([1, 0.5], offset=[0, 3])) == "Linear(length_scale=[1, 0.5], offset=[0, 3])"
    assert repr(2.0 * Linear() + 1.0) == "1.41**2 * Linear(length_scale=1, offset=0) + 1**2"


def test_arithmetic(X):
    kernel = 2.0 * Linear(ARD) + WhiteKernel(0.1) ** 2
    assert_allclose(kernel(X), 2 * Linear(ARD)(X) + 0.01 * np.eye(6), rtol=1e-14)
    assert kernel.n_dims == 5
    assert "k1__k2__offset" in kernel.get_params()


@pytest.mark.parametrize("name", ["length_scale", "offset"])
def test_sizes_that_do_not_fit_the_rows(name, X):
    kernel = Linear(**{name: [1.0, 2.0]})
    with pytest.raises(ValueError, match=rf"{name} of Linear has shape \(2,\) but X has 3 feature"):
        kernel(X)
    with pytest.raises(ValueError, match=name):
        kernel.diag(X)


def test_regressor_finds_the_length_scale_of_greatest_evidence():
    """Of one slope w ~ N(0, 1 / l^2) and noise s^2 the evidence is greatest where
    1 / l^2 + s^2 / |x|^2 is the squared least-squares slope."""
    rng = np.random.default_rng(0)
    X, noise_var = rng.standard_normal((40, 1)) + 2, 0.1
    y = 1.5 * (X[:, 0] - 2) + np.sqrt(noise_var) * rng.standard_normal(40)
    model = GaussianProcessRegressor(Linear(5.0, offset=2.0), alpha=noise_var).fit(X, y)
    x = X[:, 0] - 2
    slope_var = (x @ y / (x @ x)) ** 2 - noise_var / (x @ x)
    # The optimiser stops at a gradient of 1e-5, the evidence having curvature of about one.
    assert_allclose(model.kernel_.length_scale, 1 / np.sqrt(slope_var), rtol=1e-4)
    assert model.kernel_.offset == 2.0


def test_regressor_finds_the_relevant_feature():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = 2 * X[:, 0] + 0.1 * rng.standard_normal(60)
    bounds = (1e-2, 1e3)
    model = GaussianProcessRegressor(Linear([1.0, 1.0], bounds) + WhiteKernel(0.1)).fit(X, y)
    relevant, irrelevant = model.kernel_.k1.length_scale
    assert relevant < 1 < 10 < irrelevant
