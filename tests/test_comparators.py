"""Methods of the papers that only benchmarks compare with."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF

ivsgpr = pytest.importorskip("benchmarks._ivsgpr", reason="the repository's root is not importable")

KERNEL = RBF(1.0)


def problem(n=12, m=4, d=2, seed=0):
    """Return rows, targets and bases in length scales, with multipliers of one."""
    rng = np.random.default_rng(seed)
    Z = torch.from_numpy(rng.normal(size=(m, d)))
    X, y = torch.from_numpy(rng.normal(size=(n, d))), torch.from_numpy(rng.normal(size=n))
    return X, y, Z, torch.ones_like(Z)


def test_products_of_bases_are_integrals():
    # A basis at z with multiplier c is exp(-((z - u) / c)^2), scaled to norm one; rows have c = 1.
    Z, c = (
        torch.tensor([[0.3], [-0.8], [1.1]]).double(),
        torch.tensor([[0.6], [1.0], [2.5]]).double(),
    )
    X = torch.tensor([[0.0], [1.7]]).double()
    u = np.linspace(-15, 15, 6001)

    def curves(z, c):
        values = np.exp(-(((z - u) / c) ** 2))
        return values / np.sqrt((values**2).sum(1, keepdims=True))

    bases, rows = curves(Z.numpy(), c.numpy()), curves(X.numpy(), 1.0)
    assert_allclose(ivsgpr.gram(Z, c, Z, c), bases @ bases.T, rtol=1e-10)
    chol = ivsgpr.factor(Z, c)
    assert_allclose(chol @ ivsgpr.whitened_features(Z, c, chol, X), bases @ rows.T, rtol=1e-10)


def test_a_whole_step_of_ivsgpr_lands_on_the_optimum():
    X, y, Z, c = problem()
    before = Z, c, ivsgpr.factor(Z, c), torch.arange(4.0).double(), torch.eye(4).double()
    linear, quadratic = ivsgpr.proximal_step(Z, c, before, X, y, precision=5.0, step=1.0)
    new, chol = X[:3] + 0.5, ivsgpr.factor(Z, c)
    coef = torch.linalg.solve(torch.eye(4) + quadratic, linear)
    mean = coef @ ivsgpr.whitened_features(Z, c, chol, new)
    # The mean of the optimal process, in coefficients of the kernel at the bases.
    X, y, Z, new = (part.numpy() for part in (X, y, Z, new))
    K, cross = KERNEL(Z) + 1e-6 * np.eye(4), KERNEL(Z, X)
    expected = KERNEL(new, Z) @ np.linalg.solve(K + 5 * cross @ cross.T, 5 * cross @ y)
    assert_allclose(mean, expected, rtol=1e-9)


def test_a_part_of_a_step_keeps_the_rest_of_the_posterior():
    X, y, Z, c = problem()
    posterior = Z, c, ivsgpr.factor(Z, c), torch.arange(4.0).double(), 2 * torch.eye(4).double()
    whole, none, half = (
        ivsgpr.proximal_step(Z, c, posterior, X, y, 5.0, step) for step in (1, 0, 0.5)
    )
    jitter = 1e-5  # the projection has it once, and the factor twice
    for after, old in zip(none, posterior[3:], strict=True):
        assert_allclose(after, old, atol=10 * jitter)
    for after, old, new in zip(half, none, whole, strict=True):
        assert_allclose(after, (old + new) / 2, rtol=1e-12)


def test_ivsgpr_learns_a_function():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=400)
    y = (y - y.mean()) / y.std()
    model = ivsgpr.IncrementalSparseGP(m=20, batch_size=100, n_increment=10, max_iter=200).fit(X, y)
    mean, variance = model.predict(X)
    assert np.mean((mean - y) ** 2) < 0.05
    assert 0.01 < model.noise_variance < 0.1
    assert (variance > 0).all()
    # The bound is below the evidence of the exact process with the same hyperparameters.
    with torch.no_grad():
        lengths, scale = model._log_lengths.exp().numpy(), model._log_scale.exp().item()
    cov = scale**2 * KERNEL(X / lengths) + model.noise_variance * np.eye(400)
    evidence = multivariate_normal.logpdf(y, np.zeros(400), cov)
    assert evidence - 40 < model.bound(X, y, 400) < evidence
