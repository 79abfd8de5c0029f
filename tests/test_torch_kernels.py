"""Torch kernels against scikit-learn's values and gradients, and the algebra built on them."""

import inspect
import pickle
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.base import is_classifier
from sklearn.gaussian_process import kernels as sk
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Hyperparameter,
    Matern,
    Product,
    RationalQuadratic,
    Sum,
    WhiteKernel,
)

from skgpsvm import (
    BayesianSVC,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPRegressor,
    _torch_kernels,
)
from skgpsvm._torch_kernels import theta_bounds, torch_kernel
from skgpsvm.kernels import Columns, Linear, MultiscaleRBF, TorchKernel, register_torch_kernel
from skgpsvm.kernels._composite import exact_and_rest

D = 3
ARD = np.array([0.7, 1.3, 2.1])
LEAVES = [
    RBF(0.8),
    RBF([0.8]),
    RBF(ARD),
    RBF(ARD, "fixed"),
    *[Matern(ell, nu=nu) for ell in (1.2, ARD) for nu in (0.5, 1.5, 2.5, np.inf)],
    RationalQuadratic(1.4, 0.6),
    RationalQuadratic(1.4, 0.6, length_scale_bounds="fixed"),
    RationalQuadratic(1.4, 0.6, alpha_bounds="fixed"),
    RationalQuadratic(1.4, 300.0),
    ConstantKernel(2.5),
    ConstantKernel(2.5, "fixed"),
    DotProduct(1.7),
    DotProduct(0.0, "fixed"),
    ExpSineSquared(1.1, 1.7),
    ExpSineSquared(1.1, 1.7, periodicity_bounds="fixed"),
    Linear(0.9),
    Linear(ARD, offset=[0.5, -1.0, 2.0]),
    Linear(ARD, "fixed", offset=0.4),
    MultiscaleRBF(0.9),
    MultiscaleRBF(ARD),
    MultiscaleRBF(ARD, "fixed"),
    WhiteKernel(0.3),
    WhiteKernel(0.3, "fixed"),
]
COMPOSITES = [
    2.0 * RBF(ARD) + Matern(0.5, nu=1.5),
    RBF(0.4) + ConstantKernel(0.5, "fixed") * Matern(ARD, nu=0.5) * 3.0,
    ConstantKernel(1.5) * ConstantKernel(0.5, "fixed"),
    (RBF(ARD, "fixed") + 0.5) * (Linear(ARD) + RationalQuadratic(1.0, 2.0)),
    (DotProduct(0.5) + Linear(1.3) * 0.7) ** 3 + ExpSineSquared(0.9, 2.2),
    (1.5 * Matern(1.1, nu=1.5)) ** 0.5 * Matern([1, 2, 3], nu=2.5) ** 2,
    (RBF(2.0) + 0.4) ** 2 + (RBF() * DotProduct(0.3) + 1.0) ** 1,
    2.0 * (RBF(ARD) + WhiteKernel(0.3)) ** 2 + WhiteKernel(0.1),
    Columns(ExpSineSquared(1.1, 1.7), [1]) * Columns(2.0 * RBF([0.7, 1.3]), [2, 0]),
    Columns(Columns(Linear(ARD[:2]), [1, 0]) * Matern(0.5, nu=1.5), (0, 2)) + DotProduct(0.3),
]
MULTISCALE = [
    MultiscaleRBF(0.9, n_features=D),
    MultiscaleRBF(ARD),
    MultiscaleRBF(ARD, "fixed"),
    1.5 * MultiscaleRBF(ARD) + 0.1,
]
each_pair = pytest.mark.parametrize(
    "multipliers", [(True, True), (True, False), (False, True)], ids=["both", "left", "right"]
)


def each(kernels):
    return pytest.mark.parametrize("kernel", kernels, ids=str)


def rows(n=7, m=5, seed=0, dtype=np.float64):
    """Return rows X and Z; the last two rows of Z are rows of X."""
    rng = np.random.default_rng(seed)
    X, Z = rng.standard_normal((n, D)), rng.standard_normal((m, D))
    Z[-2:] = X[:2]
    return X.astype(dtype), Z.astype(dtype)


def multiscale_rows(multipliers, **options):
    """Return `rows`, with log multipliers if requested; equal points have equal multipliers."""
    return [
        np.hstack([array, array[:, ::-1] / 2]) if own else array
        for array, own in zip(rows(**options), multipliers, strict=True)
    ]


def tensors(kernel, *arrays):
    """Return the torch kernel, its theta in float64, and the arrays as tensors."""
    return torch_kernel(kernel), torch.tensor(kernel.theta), *map(torch.tensor, arrays)


def cov(k, X, theta):
    """Return the covariance of the rows of X with themselves, with noise on the diagonal."""
    return k(X, X, theta).diagonal_scatter(k.diag(X, theta))


# In float64, squared distances err by about 1e-14 here, and so do values. With the roots in
# (...)**0.5 and Matern, the error is at most 10 times as large for points not closer than 0.1.
@each(LEAVES + COMPOSITES)
def test_values_equal_scikit_learn(kernel):
    X, Z = rows()
    k, theta, tX, tZ = tensors(kernel, X, Z)
    assert_allclose(k(tX, tZ, theta), kernel(X, Z), rtol=2e-13, atol=2e-13)
    assert_allclose(k.diag(tX, theta), kernel.diag(X), rtol=2e-13)
    assert_allclose(cov(k, tX, theta), kernel(X), rtol=2e-13, atol=2e-13)


@each(LEAVES + COMPOSITES)
def test_theta_gradient_equals_scikit_learn(kernel):
    X, _ = rows()
    k, theta, tX = tensors(kernel, X)
    gradient = torch.autograd.functional.jacobian(lambda t: cov(k, tX, t), theta)
    assert_allclose(gradient, kernel(X, eval_gradient=True)[1], rtol=2e-12, atol=2e-12)


@each([kernel for kernel in LEAVES + COMPOSITES if kernel.n_dims])
def test_theta_is_an_argument(kernel):
    X, Z = rows()
    k, theta, tX, tZ = tensors(kernel, X, Z)
    moved = theta + torch.linspace(-0.3, 0.4, len(theta), dtype=theta.dtype)
    expected = kernel.clone_with_theta(moved.numpy())(X, Z)
    assert_allclose(k(tX, tZ, moved), expected, rtol=1e-12, atol=1e-12)


@each([*LEAVES, *COMPOSITES, RBF(ARD) + Matern(2.0, "fixed"), RBF(ARD, "fixed")])
def test_bounds_have_a_row_for_each_entry_of_theta(kernel):
    bounds = theta_bounds(kernel, torch.device("cpu"))
    assert bounds.shape == (kernel.n_dims, 2)
    assert_allclose(bounds.ravel(), kernel.bounds.ravel(), rtol=0)


def test_bounds_of_nested_terms_are_read_once():
    class Counted(RBF):
        n_reads = 0

        @property
        def hyperparameters(self):
            type(self).n_reads += 1
            return super().hyperparameters

    kernel = 2.0 * (1.0 * Counted() + ConstantKernel()) + WhiteKernel()
    theta_bounds(kernel, torch.device("cpu"))
    assert Counted.n_reads == 1


@each(LEAVES + COMPOSITES)
def test_gradients_in_rows_and_theta_by_differences(kernel):
    """Check also equal rows, where Matern 1/2 has a kink, whose central difference is zero."""
    k, *inputs = tensors(kernel, *rows(n=4, m=3))
    theta, X, Z = (tensor.requires_grad_() for tensor in inputs)
    # Constant results, such as the covariance of noise, are made functions of X for gradcheck.
    # Steps of 1e-4 resolve the distances of coinciding points; their square is the error.
    for function, arguments in [(k, (X, Z, theta)), (k.diag, (X, theta))]:

        def tied(X, *others, function=function):
            return function(X, *others) + 0 * X.sum()

        assert torch.autograd.gradcheck(tied, arguments, eps=1e-4, atol=1e-6)


@each(LEAVES + COMPOSITES)
def test_vector_jacobian_products_are_those_of_autograd(kernel):
    k, *inputs = tensors(kernel, *rows())
    theta, X, Z = (tensor.requires_grad_() for tensor in inputs)
    K, variances = k(X, Z, theta), k.diag(X, theta)
    K_adjoint, diag_adjoint = torch.linspace(-1, 2, K.numel()).view_as(K).to(K), X.detach()[:, 0]
    options = {"allow_unused": True, "materialize_grads": True}
    tied = K + 0 * (Z.sum() + theta.sum())  # constant results are made functions of both
    expected = torch.autograd.grad(tied, (theta, Z), K_adjoint, **options)
    tied = variances + 0 * theta.sum()
    expected += torch.autograd.grad(tied, theta, diag_adjoint, **options)
    values, pull_back = k.vjp(X.detach(), Z.detach(), theta.detach())
    found = *pull_back(K_adjoint), k.diag_gradient(X.detach(), theta.detach(), diag_adjoint)
    # In float64, squared distances err by about 1e-14 here.
    assert_allclose(values, K.detach(), rtol=2e-13, atol=2e-13)
    for gradient, reference in zip(found, expected, strict=True):
        assert not gradient.requires_grad
        assert_allclose(gradient, reference, rtol=1e-11, atol=1e-11)
    _, pull_back = k.vjp(X.detach(), Z.detach(), theta.detach(), points=False)
    assert_allclose(pull_back(K_adjoint)[0], expected[0], rtol=1e-11, atol=1e-11)


@each(LEAVES + COMPOSITES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vector_jacobian_products_are_finite_where_all_rows_coincide(kernel, dtype):
    k, theta, X, Z = tensors(kernel, np.full((4, D), 0.3), np.full((2, D), 0.3))
    X, Z = X.to(dtype), Z.to(dtype)
    K, pull_back = k.vjp(X, Z, theta)
    by_theta, by_Z = pull_back(torch.ones_like(K))
    assert (K.dtype, by_theta.dtype, by_Z.dtype) == (dtype, torch.float64, dtype)
    assert all(part.isfinite().all() for part in (by_theta, by_Z))


@each(LEAVES + COMPOSITES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_where_all_rows_coincide(kernel, dtype):
    k, *inputs = tensors(kernel, np.full((4, D), 0.3), np.full((2, D), 0.3))
    theta, X, Z = inputs = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    K = k(X, Z, theta)
    assert K.dtype == dtype
    outputs = K.sum() + k.diag(X, theta).sum() + 0 * X.sum()
    for gradient in torch.autograd.grad(outputs, inputs, allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@each([k for k in LEAVES if k.is_stationary() and not isinstance(k, WhiteKernel)])
def test_stationary_kernels_are_flat_where_rows_coincide(kernel):
    k, theta, X = tensors(kernel, rows()[0])
    x = X[:1].clone().requires_grad_()
    K = k(x, X[:1], theta) + 0 * x.sum()
    K.backward()
    assert_allclose(K.detach(), k.diag(X[:1], theta)[:, None], rtol=1e-15)
    assert_allclose(x.grad, 0, atol=1e-15)


def test_gradient_is_finite_where_the_base_of_a_power_underflows():
    k, theta, X = tensors(RBF(1e-3) ** 0.5, rows()[0])
    theta.requires_grad_()
    k(X, X, theta).sum().backward()
    assert theta.grad.isfinite().all()


@each(LEAVES + COMPOSITES)
def test_the_path_without_graph_computes_the_same_and_leaves_its_arguments(kernel):
    k, theta, X, Z = tensors(kernel, *rows())
    copies = [t.clone() for t in (theta, X, Z)]
    first, second = k(X, Z, theta), k(X, Z, theta)
    # Fixed values may be shared with the kernel, so what is new memory must be free to change.
    diagonal = k.diag(X, theta)
    if k.returns_new_memory:
        first += 1
    diagonal += 1
    with_graph = k(X.requires_grad_(), Z, theta.requires_grad_()).detach()
    assert_allclose(second, with_graph, rtol=1e-15, atol=1e-15)
    assert_allclose(diagonal - 1, k.diag(X, theta).detach(), rtol=1e-15)
    for tensor, copy in zip((theta, X, Z), copies, strict=True):
        assert torch.equal(tensor.detach(), copy)


# Squared distances err by a few eps = 1.2e-7 times the squared norms after centering (below 40 in
# units of the length scales), and kernels by at most about as much. Dot products and their powers
# err by a few eps relative to their size.
@each(LEAVES + COMPOSITES)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_float32(kernel, offset):
    X, Z = (array + np.float32(offset) for array in rows(dtype=np.float32))
    k, theta, tX, tZ = tensors(kernel, X, Z)
    K = k(tX, tZ, theta)
    assert K.dtype == k.diag(tX, theta).dtype == torch.float32
    expected = kernel(X.astype(np.float64), Z.astype(np.float64))
    assert_allclose(K, expected, rtol=2e-5, atol=2e-5)
    assert_allclose(k.diag(tX, theta), kernel.diag(X.astype(np.float64)), rtol=1e-6)
    assert_allclose(k(tX, tZ, theta.float()), K, rtol=2e-5, atol=2e-5)


# Far from zero, points would be rounded to 1e-3 in the dtype of the rows.
@each(LEAVES + COMPOSITES)
def test_float32_rows_beside_points_in_float64(kernel):
    X, Z = rows()
    Z[-2:] += 0.3  # the roots of small distances err by more
    X, Z = (X + 2e4).astype(np.float32), Z + 2e4
    k, theta, tX, tZ = tensors(kernel, X, Z)
    assert k.takes_double_points
    K, pull_back = k.vjp(tX, tZ, theta)
    assert K.dtype == k(tX, tZ, theta).dtype == torch.float32
    wide, pull_back_wide = k.vjp(tX.double(), tZ, theta)
    assert_allclose(k(tX, tZ, theta), K, rtol=1e-6)
    assert_allclose(K, wide, rtol=2e-5, atol=2e-5)
    for gradient, expected in zip(
        pull_back(torch.ones_like(K)), pull_back_wide(torch.ones_like(wide)), strict=True
    ):
        assert gradient.dtype == torch.float64
        size = max([1.0, *expected.abs().ravel().tolist()])
        assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * size)


@each(MULTISCALE)
@each_pair
def test_multiscale_float32_rows_beside_points_in_float64(kernel, multipliers):
    X, Z = multiscale_rows(multipliers)
    X[:, :D] += 2e4
    Z[:, :D] += 2e4
    k, theta, tX, tZ = tensors(kernel, X.astype(np.float32), Z)
    K = k(tX, tZ, theta)
    assert K.dtype == torch.float32
    assert_allclose(K, k(tX.double(), tZ, theta), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_equal_rows_of_different_arrays_are_at_distance_zero(nu, dtype):
    """Require a distance of exactly 0: sqrt(eps) would cost Matern 1/2 half of its digits."""
    X = torch.tensor(np.random.default_rng(0).standard_normal((2000, 20)), dtype=dtype)
    k, theta = tensors(Matern(0.5, nu=nu))
    assert torch.all(k(X, X[:500].clone(), theta).diagonal() == 1)


@each(MULTISCALE)
@each_pair
def test_multiscale_values_equal_its_numpy_form(kernel, multipliers):
    """Compare both forms; tolerances, here and in the next test, are those of the other kernels."""
    X, Z = multiscale_rows(multipliers)
    k, theta, tX, tZ = tensors(kernel, X, Z)
    assert_allclose(k(tX, tZ, theta), kernel(X, Z), rtol=2e-13, atol=2e-13)
    assert_allclose(k.diag(tX, theta), kernel.diag(X), rtol=2e-13)


@each(MULTISCALE)
def test_multiscale_theta_gradient_equals_its_numpy_form(kernel):
    X, _ = multiscale_rows((True, True))
    k, theta, tX = tensors(kernel, X)
    gradient = torch.autograd.functional.jacobian(lambda t: cov(k, tX, t), theta)
    assert_allclose(gradient, kernel(X, eval_gradient=True)[1], rtol=2e-12, atol=2e-12)


@each(MULTISCALE)
@each_pair
def test_multiscale_gradients_in_rows_and_theta_by_differences(kernel, multipliers):
    k, *inputs = tensors(kernel, *multiscale_rows(multipliers, n=4, m=3))
    theta, X, Z = (tensor.requires_grad_() for tensor in inputs)
    # Differences with steps of 1e-4 err by their square.
    assert torch.autograd.gradcheck(k, (X, Z, theta), eps=1e-4, atol=1e-6)


def test_multiscale_in_blocks_and_with_many_features(monkeypatch):
    kernel = MultiscaleRBF(np.linspace(0.5, 2, 6))
    X, Z = np.split(np.random.default_rng(0).standard_normal((9, 12)), [5])
    k, theta, tX, tZ = tensors(kernel, X, Z)
    whole = k(tX, tZ, theta)
    assert_allclose(whole, kernel(X, Z), rtol=1e-13)
    monkeypatch.setattr("skgpsvm.kernels._multiscale.SMALL_BLOCK", 8)
    assert torch.equal(k(tX, tZ, theta), whole)
    inputs = [tensor.requires_grad_() for tensor in (tX, tZ, theta)]
    assert torch.autograd.gradcheck(k, inputs)


@each_pair
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multiscale_where_all_rows_coincide(multipliers, dtype):
    plain, scaled = np.full((4, D), 0.3), np.hstack([np.full((4, D), 0.3), np.zeros((4, D))])
    arrays = [scaled if own else plain for own in multipliers]
    k, *inputs = tensors(MultiscaleRBF(ARD), *arrays)
    theta, X, Z = inputs = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    K = k(X, Z, theta)
    assert K.dtype == dtype
    assert torch.all(K == 1)
    # This is the maximum of k in the points and in the ratio of the multipliers.
    for gradient in torch.autograd.grad(K.sum(), inputs):
        assert_allclose(gradient, 0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multiscale_does_not_exceed_one(dtype):
    """Check values at equal points, whose exponent is a difference of large terms."""
    X = torch.tensor(np.random.default_rng(0).standard_normal((500, 20)), dtype=dtype)
    k, theta = tensors(MultiscaleRBF(0.5, n_features=20))
    bases = torch.cat([X, torch.zeros_like(X)], 1)
    assert torch.all(k(bases, bases, theta).diagonal() == 1)
    for K in k(X, bases, theta), k(bases, X, theta):
        assert K.max() <= 1
        # Both squared norms are about 80 here, and their difference errs by a few eps times that.
        assert_allclose(K.diagonal(), 1, rtol=1000 * torch.finfo(dtype).eps)


@each(MULTISCALE)
@each_pair
def test_multiscale_without_graph_computes_the_same_and_leaves_its_arguments(kernel, multipliers):
    k, theta, X, Z = tensors(kernel, *multiscale_rows(multipliers))
    copies = [t.clone() for t in (theta, X, Z)]
    first, second = k(X, Z, theta), k(X, Z, theta)
    first += 1
    with_graph = k(X.requires_grad_(), Z, theta.requires_grad_()).detach()
    assert_allclose(second, with_graph, rtol=1e-15, atol=1e-15)
    for tensor, copy in zip((theta, X, Z), copies, strict=True):
        assert torch.equal(tensor.detach(), copy)


@each(MULTISCALE)
@each_pair
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_multiscale_float32(kernel, multipliers, offset):
    """Compare in float32, with the tolerances of the other kernels, for the same reasons."""
    X, Z = multiscale_rows(multipliers, dtype=np.float32)
    X[:, :D] += np.float32(offset)
    Z[:, :D] += np.float32(offset)
    k, theta, tX, tZ = tensors(kernel, X, Z)
    K = k(tX, tZ, theta)
    assert K.dtype == torch.float32
    expected = kernel(X.astype(np.float64), Z.astype(np.float64))
    assert_allclose(K, expected, rtol=2e-5, atol=2e-5)


@each_pair
def test_multiscale_keeps_no_matrix_for_each_feature(multipliers, monkeypatch):
    monkeypatch.setattr("skgpsvm.kernels._multiscale.SMALL_BLOCK", 100)

    def kept(d):
        shapes = []

        def pack(tensor):
            shapes.append(tuple(tensor.shape))
            return tensor

        n, m = 60, 50
        X, Z = (
            torch.zeros(rows, 2 * d if own else d, requires_grad=True)
            for rows, own in zip((n, m), multipliers, strict=True)
        )
        k, theta = tensors(MultiscaleRBF(np.ones(d)))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            k(X, Z, theta.requires_grad_())
        assert max(map(len, shapes)) <= 2
        return sum(sorted(shape) == [m, n] for shape in shapes)

    assert 1 <= kept(2) == kept(7)


EXACT = [
    (ConstantKernel(2.0), 1),
    (ConstantKernel(0.0, "fixed"), 1),
    (ConstantKernel(2.0) * 3.0 * ConstantKernel(0.5, "fixed"), 1),
    (DotProduct(0.7), D + 1),
    (Linear(ARD, offset=1.0), D),
    (2.0 * Linear(0.8) * 0.3, D),
    (DotProduct(0.7) + Linear(ARD) + 1.0, 2 * D + 2),
    (2.0 * (DotProduct(0.7) + 1.0 * Linear(ARD)), 2 * D + 1),
    (RBF(), None),
    (1.0 * RBF(), None),
    (DotProduct() + RBF(), None),
    (DotProduct() * Linear(), None),
    (DotProduct() ** 2, None),
]


@pytest.mark.parametrize(("kernel", "size"), EXACT, ids=str)
def test_exact_features(kernel, size):
    k, theta, X, Z = tensors(kernel, *rows())
    assert k.n_exact_features(D) == size
    if size is None:
        with pytest.raises(NotImplementedError, match="no exact finite feature map"):
            k.exact_features(X, theta)
    else:
        F = k.exact_features(X, theta)
        assert F.shape == (len(X), size)
        assert_allclose(F @ k.exact_features(Z, theta).T, k(X, Z, theta), rtol=1e-14, atol=1e-14)


SUM = 1.5 * RBF(ARD) + DotProduct(0.6) + (Matern(0.1) + (ConstantKernel(0.3) + Linear(ARD)))


@pytest.mark.parametrize(
    ("kernel", "max_features", "size"),
    [
        (SUM, 100, 2 * D + 2),
        (SUM, 2 * D + 2, 2 * D + 2),
        (SUM, 2 * D + 1, D + 2),  # Linear no longer fits
        (SUM, D, 1),  # neither fits, but the constant after DotProduct does
        (SUM, 0, None),
        (RBF() + Matern(), 100, None),
        (Linear(), D, D),
        (Linear(), D - 1, None),
        (1.0 * (RBF() + Linear()), 100, None),  # the outermost operation is not a sum
    ],
)
def test_split_adds_up(kernel, max_features, size):
    k, theta, X, Z = tensors(kernel, *rows())
    exact, rest = exact_and_rest(k, D, max_features)
    assert (exact and exact.n_exact_features(D)) == size
    parts = [part for part in (exact, rest) if part]
    assert_allclose(sum(part(X, Z, theta) for part in parts), k(X, Z, theta), rtol=1e-14)
    assert_allclose(sum(part.diag(X, theta) for part in parts), k.diag(X, theta), rtol=1e-14)


def test_split_takes_more_of_what_is_held():
    kernel = torch_kernel(ConstantKernel(9.0, "fixed") + Linear(2.0, "fixed") + Linear() + RBF())
    for d, most, size in ((D, 1, 1 + D), (500, 1, 501), (501, 1, 1), (501, 126, 502)):
        exact, rest = exact_and_rest(kernel, d, most)
        assert exact.n_exact_features(d) == size
        assert rest.n_exact_features(d) is None


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_held_takes_nothing_from_free_terms(order):
    terms = (Linear(np.ones(40), "fixed"), ConstantKernel())[::order]
    kernel = torch_kernel(terms[0] + terms[1] + RBF())
    assert exact_and_rest(kernel, 40, 16)[0].n_exact_features(40) == 41


def test_split_may_leave_nothing_to_the_rest():
    assert exact_and_rest(torch_kernel(Linear() + 1.0), D, 100)[1] is None


@each(LEAVES + COMPOSITES)
def test_pickles(kernel):
    k, theta, X, Z = tensors(kernel, *rows())
    assert torch.equal(pickle.loads(pickle.dumps(k))(X, Z, theta), k(X, Z, theta))


def test_read_only_length_scale():
    scale = ARD.copy()
    scale.flags.writeable = False
    kernel = RBF(scale, "fixed")
    X, Z = rows()
    k, theta, tX, tZ = tensors(kernel, X, Z)
    assert_allclose(k(tX, tZ, theta), kernel(X, Z), rtol=1e-13)


def test_later_changes_of_the_kernel_do_not_reach_its_torch_form():
    kernel = RBF(ARD.copy(), "fixed")
    k, theta, X = tensors(kernel, rows()[0])
    before = k(X, X, theta)
    kernel.length_scale *= 2
    assert torch.equal(k(X, X, theta), before)


@pytest.mark.parametrize("bounds", [(1e-5, 1e5), "fixed"])
@pytest.mark.parametrize("kernel_class", [RBF, Matern, Linear])
def test_length_scales_that_do_not_fit_the_rows(kernel_class, bounds):
    k, theta, X = tensors(kernel_class([1.0, 2.0], bounds), rows()[0])
    message = rf"length_scale of {kernel_class.__name__} has shape \(2,\) but X has 3 feature"
    with pytest.raises(ValueError, match=message):
        k(X, X, theta)


def test_offset_that_does_not_fit_the_rows():
    k, theta, X = tensors(Linear(offset=[1.0, 2.0]), rows()[0])
    with pytest.raises(ValueError, match=r"offset of Linear has shape \(2,\) but X has 3 feature"):
        k(X, X, theta)


@pytest.mark.parametrize("kernel_class", [RationalQuadratic, ExpSineSquared])
def test_isotropic_kernels_take_one_length_scale(kernel_class):
    with pytest.raises(ValueError, match=r"must hold 1 value\(s\), got 3"):
        torch_kernel(kernel_class(ARD))


def test_columns_that_do_not_fit_multiscale():
    X, Z = map(torch.tensor, rows())
    k, theta = tensors(MultiscaleRBF([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"takes rows of 2 column\(s\), or of 4 .*; got 3"):
        k(X, Z, theta)
    k, theta = tensors(MultiscaleRBF())
    with pytest.raises(ValueError, match=r"rows of 3 and of 2 columns; .* needs n_features"):
        k(X, Z[:, :2], theta)


def test_matern_of_other_smoothness():
    with pytest.raises(ValueError, match=r"one of 0.5, 1.5, 2.5, inf; got 0.7"):
        torch_kernel(Matern(nu=0.7))


def test_dtype_of_smoothness_does_not_matter():
    assert torch_kernel(Matern(nu=np.float32(1.5)))


LEAF_CLASSES = {type(kernel) for kernel in LEAVES}
UNSUPPORTED = {
    sk.CompoundKernel: sk.CompoundKernel([RBF(), RBF()]),  # several matrices, not a covariance
    sk.PairwiseKernel: sk.PairwiseKernel(),  # any function of arrays
}


def test_every_kernel_of_scikit_learn_is_supported_or_listed():
    theirs = {
        member
        for _, member in inspect.getmembers(sk, inspect.isclass)
        if issubclass(member, sk.Kernel) and not inspect.isabstract(member)
    }
    supported = (LEAF_CLASSES - {Linear, MultiscaleRBF}) | {Sum, Product, Exponentiation}
    assert theirs == supported | set(UNSUPPORTED)


@pytest.mark.parametrize("wrap", [lambda k: k, lambda k: 1.0 * k + RBF(), lambda k: k**2])
@pytest.mark.parametrize("kernel", UNSUPPORTED.values(), ids=lambda k: type(k).__name__)
def test_unsupported_kernels_are_named(kernel, wrap):
    message = rf"type {type(kernel).__name__}\..*ConstantKernel, .*RBF.*register_torch_kernel"
    with pytest.raises(TypeError, match=message):
        torch_kernel(wrap(kernel))


def test_not_a_kernel():
    with pytest.raises(TypeError, match=r"kernel 'rbf' of type str"):
        torch_kernel("rbf")


class ScaledRBF(RBF):
    """User-defined kernel scale * RBF, whose theta has a vector followed by a number."""

    def __init__(self, length_scale=1.0, scale=1.0, scale_bounds=(1e-5, 1e5)):
        super().__init__(length_scale)
        self.scale = scale
        self.scale_bounds = scale_bounds

    @property
    def hyperparameter_scale(self):
        return Hyperparameter("scale", "numeric", self.scale_bounds)

    def __call__(self, X, Y=None):
        return self.scale * super().__call__(X, Y)

    def diag(self, X):
        return self.scale * super().diag(X)


@pytest.mark.parametrize("scale_bounds", [(1e-5, 1e5), "fixed"])
def test_registered_kernel_works_within_others(monkeypatch, scale_bounds):
    monkeypatch.setattr(_torch_kernels, "_REGISTRY", dict(_torch_kernels._REGISTRY))

    @register_torch_kernel(ScaledRBF)
    class TorchScaledRBF(TorchKernel):
        def __call__(self, X, Z, theta):
            shift = (X[:, None] - Z) / self.per_feature("length_scale", theta, X)
            return self.value("scale", theta, X) * torch.exp(-shift.square().sum(2) / 2)

        def diag(self, X, theta):
            return self.value("scale", theta, X) * X.new_ones(len(X))

    kernel = DotProduct(0.7) + 0.5 * ScaledRBF(ARD, 3.0, scale_bounds)
    X, Z = rows()
    k, theta, tX, tZ = tensors(kernel, X, Z)
    assert len(theta) == 5 + (scale_bounds != "fixed")
    assert_allclose(k(tX, tZ, theta), kernel(X, Z), rtol=1e-13)
    assert_allclose(k.diag(tX, theta), kernel.diag(X), rtol=1e-13)
    assert exact_and_rest(k, D, 100)[0].n_exact_features(D) == D + 1
    assert TorchScaledRBF.__name__ == "TorchScaledRBF"  # the decorator returns the class


def test_subclasses_are_not_taken_for_their_base():
    with pytest.raises(TypeError, match="type ScaledRBF"):
        torch_kernel(ScaledRBF())


@pytest.mark.parametrize("argument", [int, RBF(), lambda kernel, start: None])
def test_register_takes_a_kernel_class(argument):
    with pytest.raises(TypeError, match="takes a subclass of"):
        register_torch_kernel(argument)


@pytest.mark.cuda
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 2e-5), (torch.float64, 2e-13)])
@pytest.mark.parametrize("theta_device", ["cpu", "cuda"])
def test_cuda_equals_cpu(theta_device, dtype, tol):
    """Compare both devices, with the tolerances of the comparison with scikit-learn."""
    plain = [(kernel, *rows()) for kernel in LEAVES + COMPOSITES]
    pairs = [(True, True), (True, False), (False, True)]
    scaled = [(kernel, *multiscale_rows(pair)) for kernel in MULTISCALE for pair in pairs]
    for kernel, *arrays in plain + scaled:
        k, theta, X, Z = tensors(kernel, *arrays)
        X, Z = X.to(dtype), Z.to(dtype)
        K = k(X.cuda(), Z.cuda(), theta.to(theta_device))
        diagonal = k.diag(X.cuda(), theta.to(theta_device))
        assert K.device.type == diagonal.device.type == "cuda"
        assert_allclose(K.cpu(), k(X, Z, theta), rtol=tol, atol=tol, err_msg=str(kernel))
        assert_allclose(diagonal.cpu(), k.diag(X, theta), rtol=tol, err_msg=str(kernel))


class Kept(RBF):
    """Kernel whose torch form returns views, and tensors that it keeps."""


class TorchKept(TorchKernel):
    kept: ClassVar = []

    def __call__(self, X, Z, theta):
        scale = self.value("length_scale", theta, X)
        K = (-0.5 * (X[:, None] - Z).square().sum(2) / scale**2).exp()
        if not K.requires_grad:
            self.kept.append((K, K.clone()))
        return K

    def diag(self, X, theta):
        return X.new_ones(1).expand(len(X))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(_torch_kernels, "_REGISTRY", dict(_torch_kernels._REGISTRY))
    monkeypatch.setattr(TorchKept, "kept", [])
    register_torch_kernel(Kept)(TorchKept)
    return TorchKept.kept


@pytest.mark.parametrize(
    "around",
    [
        lambda k: k,
        lambda k: 2.0 * k,
        lambda k: k * 2.0 * RBF(2.0),
        lambda k: k + 0.3,
        lambda k: k + 0.5 * RBF(2.0),
        lambda k: (k + 0.3) * 2.0,
        lambda k: (k**2 + DotProduct()) * k,
    ],
)
def test_what_a_registered_kernel_returns_is_never_overwritten(around, registered):
    X = torch.tensor(np.random.default_rng(0).normal(size=(20, 3)))
    theta = torch.tensor(around(RBF(0.9)).theta)
    kernel, plain = torch_kernel(around(Kept(0.9))), torch_kernel(around(RBF(0.9)))
    assert_allclose(kernel(X, X[:8], theta), plain(X, X[:8], theta), rtol=1e-12)
    assert_allclose(kernel.diag(X, theta), plain.diag(X, theta), rtol=1e-12)
    assert all(torch.equal(now, then) for now, then in registered)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator",
    [
        SVGPRegressor(n_inducing=8, max_iter=2),
        SVGPRegressor(n_inducing=8, likelihood="laplace", max_iter=2),
        SVGPRegressor(n_inducing=8, optimizer=None),
        BayesianSVC(n_inducing=8, max_iter=2),
        EPClassifier(n_inducing=8, max_iter=2),
        DecoupledGPRegressor(n_inducing=8, max_iter=2),
        QSGPRegressor(basis="inducing", n_basis=20, n_inducing=8, max_iter=2),
        QSRVMRegressor(n_basis=20, max_iter=2),
        HybridBayesianSVC(n_inducing=8, max_iter=2),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_estimators_overwrite_nothing_that_a_registered_kernel_returns(estimator, registered):
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = (X[:, 0] > 0).astype(int) if is_classifier(estimator) else X[:, 0]
    estimator.set_params(kernel=2.0 * Kept(1.5) + 0.5 * RBF(3.0), random_state=0).fit(X, y).predict(
        X
    )
    assert registered
    assert all(torch.equal(now, then) for now, then in registered)
