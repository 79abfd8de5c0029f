"""The package's own covariance functions as scikit-learn kernels."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from oracles import assert_kernel_gradient
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel

from skgpsvm.kernels import Linear, MultiscaleRBF

ARD = np.array([0.7, 1.3, 2.1])
OFFSET = np.array([0.5, -1.0, 2.0])
LINEAR = [
    Linear(),
    Linear(0.9, offset=0.4),
    Linear([0.9]),
    Linear(ARD),
    Linear(ARD, offset=OFFSET),
    Linear(ARD, "fixed", offset=OFFSET),
]
MULTISCALE = [
    MultiscaleRBF(),
    MultiscaleRBF([0.9]),
    MultiscaleRBF(ARD),
    MultiscaleRBF(ARD, "fixed"),
    MultiscaleRBF(0.9, n_features=3),
]
each_linear = pytest.mark.parametrize("kernel", LINEAR, ids=str)
each_multiscale = pytest.mark.parametrize("kernel", MULTISCALE, ids=str)
each_kernel = pytest.mark.parametrize("kernel", LINEAR + MULTISCALE, ids=str)

# Problem R of the decoupled GP specification, section 8.
R = SimpleNamespace(
    X=np.array([[-1, 0.5], [0, -0.5], [0.5, 1], [1.5, 0], [-0.5, -1]]),
    alpha=np.hstack([[[-1, 0.5], [0.5, 1], [1, -0.5]], np.log([[1, 1], [0.8, 1.2], [1.5, 0.7]])]),
    beta=np.hstack([[[0, -0.5], [1, 0.5]], np.log([[1, 1], [1.25, 0.9]])]),
    length_scale=np.array([0.9, 1.3]),
    rho=1.2,
)


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((6, 3))


def with_multipliers(X, seed=1, log_scale=0.5):
    """Return rows X with random multipliers of their own."""
    return np.hstack([X, log_scale * np.random.default_rng(seed).standard_normal(X.shape)])


@each_linear
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


@pytest.mark.parametrize(
    ("kernel", "multipliers"),
    [(kernel, False) for kernel in LINEAR + MULTISCALE]
    + [(kernel, True) for kernel in MULTISCALE[2:]],
)
def test_gradient_equals_differences(kernel, multipliers, X):
    assert_kernel_gradient(kernel, with_multipliers(X) if multipliers else X, atol=1e-8)


@each_kernel
def test_gradient_needs_one_set_of_rows(kernel, X):
    with pytest.raises(ValueError, match="only be evaluated when Y is None"):
        kernel(X, X, eval_gradient=True)


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
    assert set(copy.get_params()) == set(inspect.signature(type(kernel)).parameters)
    copy.set_params(length_scale=7.0)
    assert copy.length_scale == 7.0
    assert copy != kernel


def test_what_is_no_hyper_parameter_is_kept_when_theta_is_set():
    kernel = Linear(ARD, offset=OFFSET).clone_with_theta(np.zeros(3))
    assert_array_equal(kernel.length_scale, 1)
    assert_array_equal(kernel.offset, OFFSET)
    assert MultiscaleRBF([2.0], n_features=1).clone_with_theta(np.zeros(1)).n_features == 1


def test_repr():
    assert repr(Linear(2)) == "Linear(length_scale=2, offset=0)"
    assert repr(Linear([1, 0.5], offset=[0, 3])) == "Linear(length_scale=[1, 0.5], offset=[0, 3])"
    assert repr(MultiscaleRBF([1, 0.5])) == "MultiscaleRBF(length_scale=[1, 0.5])"
    assert repr(MultiscaleRBF(n_features=2)) == "MultiscaleRBF(length_scale=1, n_features=2)"
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
    """With one slope w ~ N(0, 1 / l^2) and noise s^2, the evidence is largest where
    1 / l^2 + s^2 / |x|^2 is the squared least-squares slope."""
    rng = np.random.default_rng(0)
    X, noise_var = rng.standard_normal((40, 1)) + 2, 0.1
    y = 1.5 * (X[:, 0] - 2) + np.sqrt(noise_var) * rng.standard_normal(40)
    model = GaussianProcessRegressor(Linear(5.0, offset=2.0), alpha=noise_var).fit(X, y)
    x = X[:, 0] - 2
    slope_var = (x @ y / (x @ x)) ** 2 - noise_var / (x @ x)
    # The optimizer stops at a gradient of 1e-5, and the curvature of the evidence is about one.
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


def test_multiscale_blocks_of_the_specification():
    kernel = MultiscaleRBF(R.length_scale)
    K = np.array(
        [
            [1, 0.169482681, 0.137001104],
            [0.169482681, 1, 0.383322793],
            [0.137001104, 0.383322793, 1],
        ]
    )
    half_digit = 5.1e-10  # half of the last of nine printed digits, plus rounding
    assert_allclose(kernel(R.alpha), K, rtol=0, atol=half_digit)
    assert_allclose(kernel(R.beta), [[1, 0.438755093], [0.438755093, 1]], rtol=0, atol=half_digit)
    row = R.rho * kernel(R.X[1:2], R.alpha)[0]
    assert_allclose(row, [0.481513803, 0.564324714, 0.764358174], rtol=0, atol=half_digit)
    row = R.rho * kernel(R.beta, R.X[2:3])[:, 0]
    assert_allclose(row, [0.528517213, 0.965635143], rtol=0, atol=half_digit)


@each_multiscale
def test_multiscale_of_plain_points_is_rbf(kernel, X):
    rbf = RBF(kernel.length_scale)
    Z = X[::-1] + 0.3
    assert_allclose(kernel(X, Z), rbf(X, Z), rtol=1e-13)  # rounding of exponents below 20
    assert_allclose(kernel(X), rbf(X), rtol=1e-13)
    assert_array_equal(kernel.diag(X), 1)
    assert not kernel.is_stationary()
    gradient = kernel(X, eval_gradient=True)[1]
    if kernel.n_dims:
        assert_allclose(gradient, rbf(X, eval_gradient=True)[1], rtol=1e-13)


@each_multiscale
def test_multipliers_of_one_make_no_difference(kernel, X):
    kernel = MultiscaleRBF(kernel.length_scale, n_features=3)
    same, scaled = np.hstack([X, 0 * X]), with_multipliers(X)
    assert_array_equal(kernel(same), kernel(X))
    assert_array_equal(kernel(same, scaled), kernel(X, scaled))
    assert_array_equal(kernel(scaled, X), kernel(X, scaled).T)
    assert_array_equal(np.diag(kernel(scaled)), 1)
    assert_array_equal(kernel.diag(scaled), 1)


def test_length_scale_and_multipliers_enter_by_their_product(X):
    scaled = with_multipliers(X)
    moved = scaled + np.repeat([0, np.log(2)], 3)
    # The error is rounding of each logarithm, times exponents below 20.
    assert_allclose(MultiscaleRBF(ARD)(moved), MultiscaleRBF(2 * ARD)(scaled), rtol=1e-13)


def test_multiscale_is_the_inner_product_of_its_features():
    X = with_multipliers(np.random.default_rng(0).uniform(-2, 2, (7, 1)))
    X[:3, 1] = 0
    length_scale = 0.8
    width = length_scale * np.exp(X[:, 1:])
    # The trapezoidal rule on Gaussians converges faster than any power: its error at this spacing,
    # and the integral beyond the ends, are below exp(-50).
    z = np.arange(-40, 40, 0.2 * width.min())
    features = (2 / (np.pi * width**2)) ** 0.25 * np.exp(-(((z - X[:, :1]) / width) ** 2))
    expected = features @ features.T * (z[1] - z[0])
    kernel = MultiscaleRBF(length_scale, n_features=1)
    assert_allclose(kernel(X), expected, rtol=1e-13, atol=1e-14)
    assert_allclose(kernel(X[:3, :1], X), expected[:3], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("log_scale", [0.1, 1.0, 3.0])
def test_points_and_bases_have_a_joint_covariance(d, log_scale):
    rng = np.random.default_rng(d)
    X, centers = rng.standard_normal((2, 15, d))
    bases = with_multipliers(centers, d, log_scale)
    kernel = MultiscaleRBF(0.7, n_features=d)
    K = np.block([[kernel(X), kernel(X, bases)], [kernel(bases, X), kernel(bases)]])
    # Eigenvalues err by a few eps times the largest, which is at most 30.
    assert np.linalg.eigvalsh(K).min() > -1e-14 * len(K)


@pytest.mark.parametrize(
    ("kernel", "columns", "message"),
    [
        (MultiscaleRBF(), (3, 6), "rows of 3 and of 6 columns.*needs n_features"),
        (MultiscaleRBF([0.5]), (6, 3), "rows of 6 and of 3 columns.*needs n_features"),
        (MultiscaleRBF(ARD), (3, 2), r"of 3 feature\(s\) takes rows of 3 .* of 6 with .*; got 2"),
        (MultiscaleRBF(n_features=2), (5, 2), r"of 2 feature\(s\) takes rows of 2 .* got 5"),
        (MultiscaleRBF(ARD, n_features=2), (2, 2), "has 3 entries but n_features is 2"),
    ],
)
def test_columns_that_do_not_fit_multiscale(kernel, columns, message):
    X, Z = (np.zeros((4, n)) for n in columns)
    with pytest.raises(ValueError, match=message):
        kernel(X, Z)


def test_diagonal_of_multiscale_checks_columns(X):
    with pytest.raises(ValueError, match=r"takes rows of 2 .* got 3"):
        MultiscaleRBF([1.0, 2.0]).diag(X)
