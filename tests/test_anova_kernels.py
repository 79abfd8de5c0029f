"""ANOVA kernels: published numbers, zero means, closed forms against quadrature, torch forms."""

import inspect
import math
from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from oracles import assert_kernel_gradient
from scipy.integrate import quad
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel

from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.kernels import ANOVARBF, ANOVACategorical, ANOVAMatern

INTERVAL = ("uniform", -0.5, 1.5)
GAUSSIAN = ("gaussian", 0.3, 0.7)
ATOMS = np.array([0.1, 0.3, 0.35, 0.8])
WEIGHTED = np.c_[ATOMS, [1.0, 0.5, 0.0, 2.0]]
NUS = (0.5, 1.5, 2.5)
RBFS = [
    ANOVARBF(),
    ANOVARBF(0.3, feature=1),
    ANOVARBF([0.3], measure=INTERVAL),
    ANOVARBF(0.2, "fixed", measure=GAUSSIAN),
    ANOVARBF(4.0, feature=2, measure=GAUSSIAN),
    ANOVARBF(0.4, measure=ATOMS),
    ANOVARBF(30.0, measure=WEIGHTED),
]
MATERNS = [
    ANOVAMatern(length_scale, nu=nu, feature=1, measure=measure)
    for nu in NUS
    for length_scale, measure in [(0.3, INTERVAL), (20.0, INTERVAL), (0.7, WEIGHTED)]
]
CATEGORICAL = [ANOVACategorical([0.5, 0.3, 0.2], feature=1), ANOVACategorical([3, 0, 1])]
CONTINUOUS = RBFS + MATERNS
COMPOSITES = [
    2.0 * ANOVARBF(0.3) + ANOVAMatern(0.6, feature=1) + Matern(0.1),
    0.5 * ANOVARBF(0.4) * ANOVARBF(0.6, "fixed", feature=1) * ANOVACategorical([1, 2], feature=2),
]
HALF_DIGIT = 5.1e-13  # half of the last of twelve printed digits, plus rounding


def each(kernels):
    return pytest.mark.parametrize("kernel", kernels, ids=str)


def column(values):
    return np.reshape(values, (-1, 1))


def rows(n=7, seed=0):
    """Return rows of three columns, partly outside all measures; the second partly holds codes."""
    X = np.random.default_rng(seed).normal(0.4, 0.8, (n, 3))
    X[: n // 2, 1] = np.arange(n // 2) % 3
    return X


def base(kernel):
    """Return the kernel before its mean is constrained."""
    length_scale = float(np.ravel(kernel.length_scale)[0])
    return Matern(length_scale, nu=kernel.nu) if hasattr(kernel, "nu") else RBF(length_scale)


def expectation(kernel, function, x=0.0):
    """Return the mean under the kernel's measure of a function that is smooth except at x."""
    measure = kernel.measure
    if not isinstance(measure, tuple):
        weighted = np.column_stack([measure, np.ones(len(measure))])[:, :2]
        atoms, weights = (weighted if measure.ndim == 1 else measure).T
        return np.array([function(atom) for atom in atoms]) @ weights / weights.sum()
    name, a, b = measure
    if name == "gaussian":
        # The trapezoidal rule on analytic functions converges faster than any power.
        nodes = np.linspace(-9, 9, 181)
        weights = np.exp(-(nodes**2) / 2)
        return np.array([function(a + b * z) for z in nodes]) @ weights / weights.sum()
    kinks = [x] if a < x < b else None
    value, _ = quad(function, a, b, points=kinks, epsabs=1e-14, epsrel=1e-12, limit=400)
    return value / (b - a)


# Published numbers


def test_published_values():
    k = ANOVARBF(0.3)
    X, Y = column([0.0, 0.2, 0.5, 0.0]), column([0.0, 0.7, 0.5, 1.0])
    expected = [0.753287567823, -0.361953872514, 0.191395155842, -0.242846512038]
    assert_allclose(np.diag(k(X, Y)), expected, rtol=0, atol=HALF_DIGIT)
    value = 2 * ANOVARBF(0.5)(X[1:2], Y[1:2]).item()
    assert value == pytest.approx(-0.380014388559, abs=HALF_DIGIT)
    gradient = k(np.vstack([X[1:2], Y[1:2]]), eval_gradient=True)[1][0, 1, 0]
    assert gradient / 0.3 == pytest.approx(1.042108177467, abs=HALF_DIGIT)
    average = quad(lambda x: k.diag([[x]]).item(), 0, 1, epsabs=1e-14)[0]
    assert average == pytest.approx(0.412746764202, abs=HALF_DIGIT)


def test_published_values_are_invariant_to_the_units_of_the_feature():
    X, Y = (-2 + 5 * column(values) for values in ([0.0, 0.2, 0.5, 0.0], [0.0, 0.7, 0.5, 1.0]))
    expected = [0.753287567823, -0.361953872514, 0.191395155842, -0.242846512038]
    value = np.diag(ANOVARBF(1.5, measure=("uniform", -2, 3))(X, Y))
    assert_allclose(value, expected, rtol=0, atol=HALF_DIGIT)


@pytest.mark.parametrize(
    ("length_scale", "expected"),
    [(10, -1.19847558553e-3), (100, -1.19998474456e-5), (1000, -1.19999984744e-7)],
)
def test_published_values_of_long_length_scales(length_scale, expected):
    value = ANOVARBF(length_scale)([[0.2]], [[0.9]]).item()
    assert value == pytest.approx(expected, rel=5e-12)  # half of the last printed digit


def test_published_moments_of_the_gaussian_measure():
    # This follows from h(x)^2 = (1 - k(x, x)) H and g(x, x) = 1.
    k = ANOVARBF(0.5, measure=GAUSSIAN)
    h, H = 0.455737689453, 0.450834817334
    assert k.diag([[0.9]]).item() == pytest.approx(1 - h**2 / H, abs=3 * HALF_DIGIT)


def test_published_values_of_the_empirical_measure():
    K = ANOVARBF(0.4, measure=ATOMS)(column(ATOMS))
    assert_allclose(K[0, [0, 3]], [0.2770653, -0.3294474], rtol=0, atol=5.1e-8)
    expected = [0, 5.005291e-4, 0.131960, 0.843562]
    assert_allclose(np.linalg.eigvalsh(K), expected, rtol=0, atol=5.1e-7)
    H = RBF(0.4)(column(ATOMS)).mean()
    assert pytest.approx(0.737810865360, abs=HALF_DIGIT) == H
    weighted = np.c_[ATOMS, np.full(4, 7.0)]
    assert_allclose(ANOVARBF(0.4, measure=weighted)(column(ATOMS)), K, rtol=0, atol=1e-15)


def test_published_values_of_the_categorical_kernel():
    K = ANOVACategorical([0.5, 0.3, 0.2])(column([0, 1, 2]))
    expected = [0.34210526, -0.39473684, -0.26315789]
    assert_allclose(K[0], expected, rtol=0, atol=5.1e-9)
    assert np.linalg.matrix_rank(K) == 2


def test_conditioning_is_not_double_centering():
    k = ANOVARBF(0.3)
    h = quad(lambda s: RBF(0.3)([[0.0]], [[s]]).item(), 0, 1)[0]
    H = 0.572039051157
    centered = 1 - 2 * h + H
    assert centered == pytest.approx(0.820696, abs=5e-7)
    assert k.diag([[0.0]]).item() == pytest.approx(0.753288, abs=5e-7)
    assert k.diag([[0.0]]).item() == pytest.approx(1 - h**2 / H, abs=1e-11)


# Defining properties of the kernels


@each(CONTINUOUS)
def test_mean_is_zero(kernel):
    for x in (0.0, 0.2, 0.5, 1.3):
        row = np.full((1, 3), x)

        def covariance(s, row=row):
            return kernel(row, np.full((1, 3), s)).item()

        size = max(abs(covariance(s)) for s in (-0.5, 0.1, 0.8))
        # The error is rounding and that of adaptive quadrature, relative to the kernel.
        assert abs(expectation(kernel, covariance, x)) < 1e-12 * size


@each(CONTINUOUS)
def test_definition(kernel):
    g = base(kernel)
    x, y = 0.2, 0.9

    def h(x):
        return expectation(kernel, lambda s: g([[x]], [[s]]).item(), x)

    H = expectation(kernel, h, 0.3)
    X = np.zeros((2, 3))
    X[:, kernel.feature] = x, y
    expected = g([[x]], [[y]]).item() - h(x) * h(y) / H
    # Numbers of order one from adaptive quadrature cancel.
    assert kernel(X[:1], X[1:]).item() == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        (ANOVARBF, 1e-12),
        (partial(ANOVAMatern, nu=2.5), 1e-12),
        (partial(ANOVAMatern, nu=1.5), 1e-8),
        (partial(ANOVAMatern, nu=0.5), 1e-4),
    ],
)
@pytest.mark.parametrize("length_scale", [0.1, 0.6, 3.0, 50.0])
def test_uniform_measure_is_the_limit_of_atoms(make, tolerance, length_scale):
    """Compare with Gauss-Legendre nodes on panels between the points, at which Matern has kinks."""
    X = column([-0.3, 0.0, 0.25, 0.5, 1.0, 1.75])
    nodes, weights = np.polynomial.legendre.leggauss(24)
    panels = np.arange(0, 1, 0.05)
    atoms = np.c_[(panels[:, None] + 0.025 * (1 + nodes)).ravel(), np.tile(weights, len(panels))]
    K, discrete = (make(length_scale, measure=m)(X) for m in (("uniform", 0, 1), atoms))
    # H errs at the kink of the kernel, at nodes that are close to one another.
    assert_allclose(discrete, K, rtol=0, atol=tolerance * np.abs(K).max())


@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("length_scale", [1e2, 1e4])
def test_matern_of_long_length_scales(nu, length_scale):
    """Compare with the leading terms in 1 / length_scale, which (S4) would lose to rounding."""
    X = column([0.1, 0.4, 0.8])
    K = ANOVAMatern(length_scale, nu=nu)(X)
    assert_array_equal(K, K.T)
    if nu == 0.5:
        # g = 1 - |u| / l: the covariance of a random walk without its mean.
        x = X[:, 0]
        mean = (x**2 + (1 - x) ** 2) / 2
        expected = (-np.abs(x[:, None] - x) + mean[:, None] + mean - 1 / 3) / length_scale
    else:
        # g = 1 - c u^2 / l^2: straight lines.
        c = {1.5: 1.5, 2.5: 5 / 6}[nu]
        expected = 2 * c * (X - 0.5) * (X - 0.5).T / length_scale**2
    # The next term is smaller by about the length scale.
    assert_allclose(K, expected, rtol=0, atol=3 / length_scale * np.abs(expected).max())


@each(CONTINUOUS)
def test_kernels_are_positive_semidefinite(kernel):
    X = np.random.default_rng(1).uniform(-1, 2, (30, 3))
    K = kernel(X)
    assert_array_equal(K, K.T)
    # The largest eigenvalue is at most 30; eigenvalues err by a few eps times it.
    assert np.linalg.eigvalsh(K).min() > -1e-13


def test_far_from_the_measure_nothing_is_constrained():
    X = column([1e4, 1e4 + 0.2, -1e6])
    for kernel in (ANOVARBF(0.3), ANOVARBF(0.3, measure=GAUSSIAN), ANOVAMatern(0.3)):
        assert_allclose(kernel(X), base(kernel)(X), rtol=0, atol=1e-9)  # 1e6 eps


def test_categorical_levels_that_were_not_seen():
    K = ANOVACategorical([2, 1])(column([0, 1, 2, 2, 0.5, -1, np.nan, np.nan]))
    assert_allclose(K[:2, :2], np.eye(2) - np.outer([2, 1], [2, 1]) / 5, rtol=1e-14)
    same = np.eye(6)
    same[0, 1] = same[1, 0] = same[4, 5] = same[5, 4] = 1
    assert_array_equal(K[2:, 2:], same)
    assert not K[:2, 2:].any()


@each(CATEGORICAL)
def test_categorical_mean_is_zero(kernel):
    X = np.repeat(column(np.arange(3)), 2, axis=1)
    assert_allclose(kernel(X) @ np.asarray(kernel.weights), 0, atol=1e-15)


# scikit-learn's interface


@each(CONTINUOUS + CATEGORICAL + COMPOSITES)
def test_gradient_equals_differences(kernel):
    assert_kernel_gradient(kernel, rows(), atol=1e-9)


@each(CONTINUOUS + CATEGORICAL)
def test_interface(kernel):
    X = rows()
    assert_allclose(kernel.diag(X), np.diag(kernel(X)), rtol=1e-12, atol=1e-15)
    assert_allclose(kernel(X, X[::-1]), kernel(X)[:, ::-1], rtol=0, atol=1e-15)
    assert not kernel.is_stationary()
    copy = clone(kernel)
    assert copy == kernel
    assert set(copy.get_params()) == set(inspect.signature(type(kernel)).parameters)
    others = np.delete(X, kernel.feature, axis=1)
    X[:, [j for j in range(3) if j != kernel.feature]] = -others
    assert_array_equal(kernel(X), copy(rows()))
    with pytest.raises(ValueError, match="only be evaluated when Y is None"):
        kernel(X, X, eval_gradient=True)


def test_theta_and_bounds():
    kernel = ANOVAMatern(0.3, (0.1, 10.0))
    assert_allclose(kernel.theta, [math.log(0.3)])
    assert_allclose(np.exp(kernel.bounds), [[0.1, 10.0]])
    assert kernel.clone_with_theta(np.zeros(1)).length_scale == 1.0
    assert ANOVARBF(length_scale_bounds="fixed").n_dims == 0
    assert ANOVACategorical([1, 2]).n_dims == 0


def test_repr():
    assert repr(ANOVARBF(0.5)) == (
        "ANOVARBF(length_scale=0.5, feature=0, measure=('uniform', 0.0, 1.0))"
    )
    assert repr(ANOVAMatern(2, feature=1, measure=ATOMS)) == (
        "ANOVAMatern(length_scale=2, feature=1, measure=<4 atoms>, nu=1.5)"
    )
    assert repr(ANOVACategorical([2, 1])) == "ANOVACategorical(weights=[2, 1], feature=0)"


def test_regressor_learns_an_additive_function():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (80, 3))
    X[:, 2] = rng.integers(0, 3, 80)
    effects = np.array([0.5, -0.25, -0.25])
    f = np.sin(2 * np.pi * X[:, 0]) + X[:, 1] + effects[X[:, 2].astype(int)]
    y = f + 0.1 * rng.standard_normal(80)
    bounds = (1e-2, 1e2)
    terms = [
        1.0 * ANOVARBF(0.5, bounds),
        1.0 * ANOVAMatern(0.5, bounds, nu=2.5, feature=1),
        1.0 * ANOVACategorical(np.ones(3), feature=2),
    ]
    kernel = terms[0] + terms[1] + terms[2] + 4.0 + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel).fit(X, y)
    fixed = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    assert model.log_marginal_likelihood_value_ > fixed.log_marginal_likelihood_value_ + 10
    # The noise is 0.1, and 80 rows leave about half of it in the function.
    assert np.sqrt(np.mean((model.predict(X) - f) ** 2)) < 0.07
    # The posterior mean of the first component has mean zero and is close to the sine.
    grid = np.linspace(0, 1, 201)[:, None] * [1, 0, 0]
    component = model.kernel_.k1.k1.k1.k1(grid, X) @ model.alpha_
    assert abs(np.trapezoid(component, grid[:, 0])) < 1e-4  # error of the trapezoidal rule
    assert_allclose(component, np.sin(2 * np.pi * grid[:, 0]), rtol=0, atol=0.15)


# Torch forms


def tensors(kernel, *arrays):
    return torch_kernel(kernel), torch.tensor(kernel.theta), *map(torch.tensor, arrays)


@each(CONTINUOUS + CATEGORICAL + COMPOSITES)
def test_torch_form_equals_scikit_learn(kernel):
    X, Z = rows(), rows(5, 1)
    k, theta, tX, tZ = tensors(kernel, X, Z)
    assert_allclose(k(tX, tZ, theta), kernel(X, Z), rtol=1e-13, atol=1e-14)
    assert_allclose(k.diag(tX, theta), kernel.diag(X), rtol=1e-13, atol=1e-14)
    gradient = torch.autograd.functional.jacobian(
        lambda t: k(tX, tX, t).diagonal_scatter(k.diag(tX, t)), theta
    )
    assert_allclose(gradient, kernel(X, eval_gradient=True)[1], rtol=1e-12, atol=1e-13)


@each(CONTINUOUS + COMPOSITES)
def test_torch_gradients_in_rows_and_theta(kernel):
    """Check them also at the ends of the interval; no rows coincide, as Matern 1/2 has a kink."""
    X, Z = rows(4), rows(3, 1)
    X[0, :2], Z[0, :2] = 0.0, 1.0
    k, *inputs = tensors(kernel, X, Z)
    theta, X, Z = (tensor.requires_grad_() for tensor in inputs)
    for function, arguments in [(k, (X, Z, theta)), (k.diag, (X, theta))]:

        def tied(X, *others, function=function):
            return function(X, *others) + 0 * X.sum()

        assert torch.autograd.gradcheck(tied, arguments)


@each(CONTINUOUS)
@pytest.mark.parametrize("length_scale", [1e-5, 1e-2, 1.0, 1e2, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_forms_are_finite_and_keep_their_dtype(kernel, length_scale, dtype):
    theta = torch.tensor([math.log(length_scale)], dtype=dtype, requires_grad=True)
    kernel = clone(kernel).set_params(length_scale=1.0, length_scale_bounds=(1e-5, 1e5))
    X = torch.tensor(np.vstack([rows(), np.full((3, 3), 0.1)]), dtype=dtype, requires_grad=True)
    k = torch_kernel(kernel)
    K, diagonal = k(X, X.detach()[-4:], theta), k.diag(X, theta)
    assert K.dtype == diagonal.dtype == dtype
    gradients = torch.autograd.grad(K.sum() + diagonal.sum(), (X, theta))
    for tensor in (K, diagonal, *gradients):
        assert tensor.isfinite().all()


@each([ANOVARBF(100.0), ANOVARBF(1e3, measure=GAUSSIAN), ANOVARBF(50.0, measure=ATOMS)])
def test_single_precision_of_long_length_scales(kernel):
    X = column([0.0, 0.2, 0.9, 1.4])
    k, theta, tX = tensors(kernel, X.astype(np.float32))
    K = kernel(tX.numpy())
    # The error is a few roundings of 6e-8, not multiplied by the squared length scale.
    assert_allclose(k(tX, tX, theta), K, rtol=0, atol=2e-6 * np.abs(K).max())


# Bad inputs


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (ANOVARBF(feature=3), r"feature of ANOVARBF must be .* one of 0, \.\.\., 2; got 3"),
        (ANOVAMatern(feature=-1), "feature of ANOVAMatern .* got -1"),
        (ANOVACategorical([1, 2], feature=0.0), "feature of ANOVACategorical .* got 0.0"),
        (ANOVARBF([1.0, 2.0]), r"length_scale of ANOVARBF .* one number, got \[1.0, 2.0\]"),
        (ANOVAMatern(nu=2), "nu of ANOVAMatern must be one of 0.5, 1.5, 2.5; got 2"),
        (ANOVAMatern(measure=GAUSSIAN), "Gaussian measure is for ANOVARBF"),
        (ANOVARBF(measure=("uniform", 1, 0)), "finite low < high, got low=1 and high=0"),
        (ANOVARBF(measure=("uniform", 0, np.inf)), "finite low < high"),
        (ANOVARBF(measure=("gaussian", 0, 0)), "a finite std > 0, got mean=0 and std=0"),
        (ANOVARBF(measure=("normal", 0, 1)), r"measure must be .*; got \('normal', 0, 1\)"),
        (ANOVARBF(measure=("uniform", 0)), "measure must be"),
        (ANOVARBF(measure=("uniform", "0", "1")), "measure must be"),
        (ANOVARBF(measure="uniform"), "measure must be"),
        (ANOVARBF(measure=None), "measure must be .*; got None"),
        (ANOVARBF(measure=[]), "measure must be"),
        (ANOVARBF(measure=np.zeros((4, 3))), "measure must be"),
        (ANOVARBF(measure=[0.0, np.nan]), "Atoms of a measure must be finite"),
        (ANOVARBF(measure=[[0.0, 1.0], [1.0, -1.0]]), "weights finite and non-negative"),
        (ANOVARBF(measure=[[0.0, 0.0]]), "not all zero"),
        (ANOVACategorical([0, 0]), r"weights of ANOVACategorical .* got \[0, 0\]"),
        (ANOVACategorical([1, -1]), "weights of ANOVACategorical"),
        (ANOVACategorical([[1, 1]]), "weights of ANOVACategorical"),
    ],
)
def test_bad_values_are_refused_in_words(kernel, message):
    with pytest.raises(ValueError, match=message):
        kernel(rows())
    with pytest.raises(ValueError, match=message):
        kernel.diag(rows())
