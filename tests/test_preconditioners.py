"""Preconditioners against the matrices whose inverses they approximate."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from problems import finite_bases, t64, waves
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import _preconditioners
from skgpsvm._bases import KernelBases
from skgpsvm._preconditioners import CholeskyPreconditioner, falkon


@pytest.mark.parametrize("block", [256, 7])
def test_preconditioner_of_all_rows_is_the_inverse(block, monkeypatch):
    monkeypatch.setattr(_preconditioners, "_BLOCK", block)
    X = waves(40)[0]
    K = t64((1.5 * RBF(1.0))(X) + 1e-3 * np.eye(40))
    precision = torch.linspace(0, 3, 40, dtype=torch.float64)
    vectors = torch.randn(2, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    product = vectors @ (K @ (precision[:, None] * K) + K)
    bases = finite_bases(KernelBases)[0]
    bases.chol = torch.linalg.cholesky(K)
    got = CholeskyPreconditioner(bases, falkon(bases.chol, precision))(product)
    # The error is rounding times the condition number, 1e7.
    assert_allclose(got, vectors, atol=1e-7)
