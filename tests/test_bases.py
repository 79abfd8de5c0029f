"""Bases of a mean: values by blocks, the prior against dense matrices, the preconditioner."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from problems import finite_bases, rows_of, t64, waves

from skgpsvm import _bases
from skgpsvm._bases import Dictionary, KernelBases

BOTH = pytest.mark.parametrize("kind", [KernelBases, Dictionary])


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch):
    monkeypatch.setattr(_bases, "JITTER", 0)


def coefficients():
    """Return coefficients, one row for each of two latents."""
    return np.random.default_rng(1).normal(size=(2, 7))


# Values


@pytest.mark.parametrize("held", [True, False])
def test_passes_over_the_same_rows_compute_values_once(held, monkeypatch):
    monkeypatch.setattr(_bases, "HELD_VALUE_BYTES", 2**20 if held else 0)
    bases, _, _ = finite_bases(KernelBases)
    X, y = waves(5, d=2)
    rows, others = rows_of(X, y), rows_of(X + 1, y)
    calls, values = [], bases.values
    monkeypatch.setattr(bases, "values", lambda X: calls.append(1) or values(X))
    for each in (rows, rows, others):
        ((_, own, *_, found, _),) = bases.passes(each, t64(coefficients()))
        assert torch.equal(found, values(own))
    assert len(calls) == (2 if held else 3)


@BOTH
@pytest.mark.parametrize("size", [1, 3, 7, 4096])
def test_values_by_blocks_are_the_whole(kind, size, monkeypatch):
    monkeypatch.setattr(_bases, "_CHUNK_BASES", size)
    bases, kernel, _ = finite_bases(kind)
    X = waves(5, d=2)[0]
    parts, values = zip(*bases.blocks(t64(X)), strict=True)
    assert len(parts) == -(-7 // size)
    # The error is rounding of squared distances of size 10.
    assert_allclose(torch.cat(values, 1), bases.values(t64(X)), rtol=1e-12)
    expected = kernel(X, bases.points.numpy())
    assert_allclose(torch.cat(values, 1), expected, rtol=1e-12)
    for part, block in zip(parts, values, strict=True):
        assert_allclose(block, expected[:, part], rtol=1e-12)
    coef = coefficients()
    assert_allclose(bases.mean(t64(X), t64(coef)), expected @ coef.T, rtol=1e-11, atol=1e-13)


# The prior


@BOTH
def test_squares_and_products_are_those_of_dense_precisions(kind):
    bases, _, precisions = finite_bases(kind)
    coef = coefficients()
    products = np.stack([a @ S for a, S in zip(coef, precisions, strict=True)])
    assert_allclose(bases.prior_product(t64(coef)), products, rtol=1e-11, atol=1e-13)
    assert_allclose(bases.rkhs_norm_sq(t64(coef)), (products * coef).sum(1), rtol=1e-11)
    which = torch.tensor([4, 0])
    diagonals = [S.diagonal()[which] for S in precisions]
    assert_allclose(bases.prior_diag(which).expand(2, -1), diagonals, rtol=1e-14)


@BOTH
@pytest.mark.parametrize("most", [4000, 2])
@pytest.mark.parametrize("n_parts", [1, 3, 5])
def test_shares_of_the_prior_sum_to_it(kind, most, n_parts, monkeypatch):
    monkeypatch.setattr(_bases, "_MAX_SQUARE", most)
    monkeypatch.setattr(_bases.MeanBases, "chunk_size", lambda self, device: 2)
    bases, coef = finite_bases(kind)[0], t64(coefficients())
    parts = [bases.prior_product(coef, part, n_parts) for part in range(n_parts)]
    assert_allclose(sum(parts), bases.prior_product(coef), rtol=1e-12)


@BOTH
@pytest.mark.parametrize("k", [0, 2, 7])
def test_trace_and_log_det_are_those_of_dense_precisions(kind, k):
    bases, _, precisions = finite_bases(kind)
    rng = np.random.default_rng(2)
    diag, columns = rng.uniform(0.5, 2, (2, 7)), rng.normal(size=(2, 7, k))
    covs = [np.diag(d**2) + c @ c.T for d, c in zip(diag, columns, strict=True)]
    trace = sum(np.trace(S @ cov) for S, cov in zip(precisions, covs, strict=True))
    assert bases.prior_trace(t64(diag), t64(columns)).item() == pytest.approx(trace, rel=1e-12)
    log_det = np.linalg.slogdet(precisions)[1].sum()
    # The error is rounding times a condition number of less than 100.
    assert bases.prior_log_det(2).item() == pytest.approx(log_det, rel=1e-11)
