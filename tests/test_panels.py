"""Cholesky factors by panels, and the preconditioner made of them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from problems import t64, waves
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import _bases, _panels
from skgpsvm._bases import KernelBases
from skgpsvm._linalg import cholesky
from skgpsvm._panels import PanelCholesky, PanelFalkon
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.exceptions import NotPositiveDefiniteError

N = 40
X = waves(N)[0]
K = t64((1.5 * RBF(1.0))(X) + 1e-3 * np.eye(N))
PRECISION = torch.linspace(0, 3, N, dtype=torch.float64)
VECTORS = torch.randn(2, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def panel(rows):
    """Return rows of K up to the diagonal."""
    return K[rows, : rows.stop].clone()


@pytest.mark.parametrize("size", [256, 40, 13, 1])
def test_factor_and_solutions_are_those_of_the_whole_matrix(size, monkeypatch):
    monkeypatch.setattr(_panels, "_PANEL", size)
    factor, chol = PanelCholesky(panel, N), torch.linalg.cholesky(K)
    for rows, part in zip(factor.rows, factor.panels, strict=True):
        assert part.shape == (rows.stop - rows.start, rows.stop)
        assert_allclose(part, chol[rows, : rows.stop], rtol=0, atol=1e-12)
    b = VECTORS.T
    half = torch.linalg.solve_triangular(chol, b, upper=False)
    # The errors are rounding times the condition number of K, 3e4, or its root.
    assert_allclose(factor.solve(b), half, rtol=0, atol=1e-10)
    back = torch.linalg.solve_triangular(chol.T, b, upper=True)
    assert_allclose(factor.solve_transposed(b), back, rtol=0, atol=1e-10)
    assert_allclose(K @ factor.inverse(b), b, rtol=0, atol=1e-10)


def test_single_precision_is_that_of_the_entries_held(monkeypatch):
    monkeypatch.setattr(_panels, "_PANEL", 13)
    factor = PanelCholesky(panel, N, jitter=1e-5, scale=1.5, dtype=torch.float32)
    assert {part.dtype for part in factor.panels} == {torch.float32}
    L = torch.cat([torch.nn.functional.pad(p, (0, N - p.shape[1])) for p in factor.panels]).double()
    held = L @ L.T
    assert_allclose(held, K + 1.5e-5 * torch.eye(N), rtol=0, atol=1e-6)
    # Solutions are those of the rounded factor, to double precision: one symmetric matrix.
    assert_allclose(held @ factor.inverse(VECTORS.T), VECTORS.T, rtol=0, atol=1e-10)


def test_jitter_grows_as_in_the_factorization_of_a_square_matrix():
    eye = torch.eye(N, dtype=torch.float64)
    singular = torch.ones_like(eye) - 2e-4 * eye

    def rows_of_it(rows):
        return singular[rows, : rows.stop].clone()

    factor = PanelCholesky(rows_of_it, N, jitter=1e-6)
    assert_allclose(
        factor.panels[0], cholesky(singular + 1e-3 * eye, jitter=0), rtol=1e-9, atol=1e-12
    )
    for matrix, jitter in ((singular, 0.0), (singular - eye, 1e-6)):
        with pytest.raises(NotPositiveDefiniteError, match=r"shape \(40, 40\) .* not positive"):
            PanelCholesky(lambda rows, A=matrix: A[rows, : rows.stop].clone(), N, jitter=jitter)
    with pytest.raises(NotPositiveDefiniteError):
        PanelCholesky(lambda rows: torch.nan * panel(rows), N)


@pytest.mark.parametrize("size", [256, 7])
def test_preconditioner_of_all_rows_is_the_inverse(size, monkeypatch):
    monkeypatch.setattr(_panels, "_PANEL", size)
    product = VECTORS @ (K @ (PRECISION[:, None] * K) + K)
    # The error is rounding times the condition number, 1e7.
    got = PanelFalkon(PanelCholesky(panel, N), PRECISION)(product)
    assert_allclose(got, VECTORS, atol=1e-7)


def test_bases_beyond_a_limit_hold_no_square_matrix(monkeypatch):
    bases = KernelBases(torch_kernel(1.5 * RBF(1.0)), t64(np.log([1.5, 1.0])), t64(X))
    product = bases.prior_product(VECTORS)
    residual = VECTORS @ K
    (condition,) = bases.preconditioners(None, PRECISION[None])
    expected = condition(residual)
    monkeypatch.setattr(_bases, "_MAX_SQUARE", N - 1)
    monkeypatch.setattr(_bases, "CACHED_BLOCK", 1)
    monkeypatch.setattr(KernelBases, "chol", property(None))
    assert_allclose(bases.prior_product(VECTORS), product, rtol=0, atol=1e-6)
    (by_panels,) = bases.preconditioners(None, PRECISION[None])
    assert isinstance(by_panels, PanelFalkon)
    # They differ by their jitters, 1e-5 and 1e-9, and by single precision.
    error = (by_panels(residual) - expected) @ K
    assert error.norm() < 1e-2 * residual.norm()
