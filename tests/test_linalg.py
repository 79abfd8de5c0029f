"""Cholesky factors with reported jitter, triangular solves and the Gaussian KL."""

import warnings

import numpy as np
import oracles
import pytest
import torch
from problems import t64

from skgpsvm import _linalg
from skgpsvm._linalg import (
    add_gram,
    add_grams,
    cholesky,
    gaussian_kl,
    mirror,
    root_norms,
    spreads,
    triangular_product,
    upper_inverse,
    upper_root,
    weight_moments,
)
from skgpsvm.exceptions import NotPositiveDefiniteError, NumericalWarning


def random_covariance(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return A @ A.mT + torch.eye(shape[-1], dtype=torch.float64)


def with_smallest_eigenvalue(value, m=5, seed=0):
    """Return a matrix whose eigenvalues are 1, except for one."""
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(m, m, generator=generator, dtype=torch.float64))
    eigenvalues = torch.ones(m, dtype=torch.float64)
    eigenvalues[0] = value
    return (Q * eigenvalues) @ Q.T


def test_no_jitter_is_exact():
    K = random_covariance(3, 6, 6)
    # The algorithm and numbers are the same, so results are equal to the last bit.
    assert torch.equal(cholesky(K, jitter=0), torch.linalg.cholesky(K))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_jitter_is_relative_to_the_mean_diagonal_of_each_matrix(scale):
    K = scale * random_covariance(3, 6, 6) * torch.tensor([1.0, 10.0, 100.0])[:, None, None]
    L = cholesky(K, jitter=1e-3)
    added = (L @ L.mT - K).diagonal(dim1=-2, dim2=-1)
    expected = 1e-3 * K.diagonal(dim1=-2, dim2=-1).mean(-1)
    # This is a difference of numbers that are 1e3 times larger: 1e-16 becomes 1e-13.
    torch.testing.assert_close(added, expected[:, None].expand(3, 6), rtol=1e-11, atol=0)


def test_algebra_is_float64_for_float32_input():
    x = torch.linspace(0, 1, 64)
    K = torch.exp(-0.5 * (x[:, None] - x).square() / 0.1**2)
    L = cholesky(K)
    assert L.dtype == torch.float64
    # Float32 algebra would err by 1e-7 or fail: this matrix has eigenvalues below 1e-15.
    expected = K.double() + 1e-6 * torch.eye(64, dtype=torch.float64)
    torch.testing.assert_close(L @ L.T, expected, rtol=0, atol=1e-14)


def test_growing_jitter_warns_once_and_says_why():
    K = with_smallest_eigenvalue(-5e-4)
    with pytest.warns(NumericalWarning) as record:
        L = cholesky(K, "covariance of the inducing points")
    assert len(record) == 1
    message = str(record[0].message)
    assert "covariance of the inducing points" in message
    assert "1e-03" in message
    assert "duplicated" in message
    # The mean eigenvalue is (4 - 5e-4) / 5, so the jitter of 1e-3 is the first that is enough.
    scale = K.diagonal().mean()
    torch.testing.assert_close(
        L @ L.T, K + 1e-3 * scale * torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-14
    )


def test_more_than_the_rounding_of_float32_warns_what_to_do():
    K = with_smallest_eigenvalue(-5e-4)
    with pytest.warns(NumericalWarning, match="instead of 1e-04.*dtype='float64'"):
        cholesky(K, jitter=1e-14, expected=1e-4)
    with warnings.catch_warnings(action="error"):
        cholesky(K, jitter=1e-14, expected=2e-3)


def test_harmless_jitter_does_not_warn():
    K = with_smallest_eigenvalue(-5e-4)
    with warnings.catch_warnings(action="error"):
        cholesky(K, jitter=1e-14, harmless=2e-3)
    with pytest.warns(NumericalWarning, match="instead of 1e-14.*duplicated"):
        cholesky(K, jitter=1e-14, harmless=1e-4)


def test_only_the_failing_matrix_of_a_batch_gets_more_jitter():
    good, bad = random_covariance(5, 5), with_smallest_eigenvalue(-5e-4)
    with pytest.warns(NumericalWarning):
        L = cholesky(torch.stack([good, bad]))
    torch.testing.assert_close(L[0], cholesky(good), rtol=1e-14, atol=0)


def test_duplicated_rows_need_no_warning():
    K = torch.ones(4, 4, dtype=torch.float64)
    with warnings.catch_warnings(action="error"):
        L = cholesky(K)
    # L L^T is K plus a jitter of 1e-6.
    torch.testing.assert_close(L @ L.T, K, rtol=0, atol=1.1e-6)


@pytest.mark.parametrize("jitter", [0, 1e-6, 1e-1])
def test_indefinite_matrix_raises(jitter):
    K = with_smallest_eigenvalue(-0.5)
    with pytest.raises(NotPositiveDefiniteError, match=r"prior covariance.*not positive definite"):
        cholesky(K, "prior covariance", jitter=jitter)


def test_error_names_the_largest_jitter_tried():
    with pytest.raises(NotPositiveDefiniteError, match="1e-02 times its mean diagonal"):
        cholesky(with_smallest_eigenvalue(-0.5))


def test_no_jitter_never_grows():
    with pytest.raises(NotPositiveDefiniteError, match=r"0e\+00"):
        cholesky(torch.ones(3, 3), jitter=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_entries_are_reported_as_such(value):
    K = random_covariance(4, 4)
    K[2, 1] = value
    with pytest.raises(NotPositiveDefiniteError, match=r"1 entries \(of 16\) that are NaN or inf"):
        cholesky(K)


def test_cholesky_gradient_includes_the_jitter():
    K = random_covariance(2, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda K: cholesky(K + K.mT, jitter=1e-2), (K,))


@pytest.mark.parametrize("m", [1, 5, 301])
def test_upper_inverse(m):
    L = cholesky(random_covariance(2, m, m) + torch.eye(m))
    root = upper_inverse(L)
    assert torch.equal(root, root.triu())
    # Condition numbers are at most about 40, so that the error is some ulps.
    torch.testing.assert_close(L.mT @ root, torch.eye(m, dtype=L.dtype).expand(2, m, m))


def test_upper_inverse_by_halves_is_differentiable(monkeypatch):
    monkeypatch.setattr(_linalg, "_BLOCK", 1)
    L = cholesky(random_covariance(2, 3, 3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda L: upper_inverse(L.tril()), (L,))


@pytest.mark.parametrize("p", [1, 7, 128, 300])
def test_products_with_triangular_matrices(p):
    generator = torch.Generator().manual_seed(2)
    A = torch.randn(9, p, generator=generator, dtype=torch.float64)
    T = torch.randn(p, p, generator=generator, dtype=torch.float64).triu()
    # The error is that of sums of up to 300 products of order one.
    torch.testing.assert_close(triangular_product(A, T), A @ T, rtol=0, atol=1e-12)
    torch.testing.assert_close(root_norms(A, T), (A @ T).square().sum(1), rtol=1e-13, atol=0)
    total = torch.ones(p, p, dtype=torch.float64)
    add_gram(total, A, A)
    torch.testing.assert_close(mirror(total), 1 + A.T @ A, rtol=0, atol=1e-13)


def test_gram_matrices_of_float32_rows_are_summed_in_float64():
    rng = np.random.default_rng(0)
    A, precision = torch.tensor(rng.normal(size=(50, 7))).float(), t64(rng.uniform(size=(50, 2)))
    totals = torch.zeros(2, 7, 7, dtype=torch.float64)
    add_grams(totals, A, precision)
    expected = torch.einsum("bi,bc,bj->cij", A.double(), precision, A.double())
    torch.testing.assert_close(mirror(totals), expected, rtol=0, atol=1e-12)


def test_weight_moments_invert_the_natural_parameters():
    rng = np.random.default_rng(0)
    root = np.tril(rng.normal(size=(3, 5, 5))) + 2 * np.eye(5)
    precision, linear = t64(root @ root.transpose(0, 2, 1)), t64(rng.normal(size=(3, 5)))
    mean, factor = weight_moments(precision, linear)
    # The error is rounding and a jitter of 1e-14, times a condition number below 1e3.
    np.testing.assert_allclose((precision @ mean[..., None])[..., 0], linear, atol=1e-10)
    np.testing.assert_allclose(factor @ factor.mT, torch.linalg.inv(precision), atol=1e-10)


def test_gaussian_kl_equals_dense_formula():
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    chol = torch.linalg.cholesky(random_covariance(3, 6, 6, seed=2))
    expected = [
        oracles.gaussian_kl(m.numpy(), (L @ L.T).numpy(), np.zeros(6), np.eye(6))
        for m, L in zip(mean, chol, strict=True)
    ]
    np.testing.assert_allclose(gaussian_kl(mean, chol), expected, rtol=1e-12)
    assert gaussian_kl(mean.float(), chol.float()).dtype == torch.float64


def test_gaussian_kl_of_whitened_problem_t1():
    T1 = oracles.T1
    Lz = torch.linalg.cholesky(torch.tensor(oracles.rbf(T1.Z, T1.Z)))
    mean = torch.linalg.solve_triangular(Lz, torch.tensor(T1.mu.T), upper=False).T
    chol = torch.linalg.solve_triangular(Lz, torch.tensor(T1.chol), upper=False)
    # The published numbers have ten digits.
    np.testing.assert_allclose(
        gaussian_kl(mean, chol), [0.3993648459, 0.4292700791, 0.5152358131], rtol=0, atol=1e-10
    )


def test_gaussian_kl_is_stationary_and_zero_at_the_prior():
    mean = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    chol = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1).requires_grad_()
    kl = gaussian_kl(mean, chol)
    kl.sum().backward()
    assert torch.equal(kl, torch.zeros(2, dtype=torch.float64))
    assert not mean.grad.any()
    assert not chol.grad.any()


def test_upper_root_has_a_positive_diagonal():
    raw = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    root = upper_root(raw)
    assert torch.equal(root, root.triu())
    np.testing.assert_allclose(root.diagonal(dim1=1, dim2=2), raw.diagonal(dim1=1, dim2=2).exp())
    assert torch.equal(root.triu(1), raw.triu(1))


def test_bases_may_be_empty():
    A, root = torch.ones(5, 0), torch.ones(3, 0, 0)
    assert torch.equal(spreads(A, root), torch.zeros(5, 3))
    assert triangular_product(A, root[0]).shape == (5, 0)
