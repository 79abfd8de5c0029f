"""Likelihoods as Gaussian sites, and the rows of a batch gathered latent by latent."""

import math

import numpy as np
import pytest
import torch
from problems import ascent_of, codes, swept, t64
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm._linalg import mirror
from skgpsvm._sites import DenseDesign, LikelihoodSites, PerLatentDesign
from skgpsvm.likelihoods import (
    Gaussian,
    Laplace,
    Logistic,
    Probit,
    RobustMax,
    Softmax,
    StudentT,
)

# Likelihoods as sites

PROPER = {
    "Gaussian": (lambda: Gaussian([0.3, 0.1]), 2),
    "Laplace": (lambda: Laplace(0.7), 1),
    "StudentT": (lambda: StudentT(0.7), 1),
    "Probit": (Probit, 1),
    "Logistic": (Logistic, 1),
    "Softmax": (Softmax, 3),
    "RobustMax": (lambda: RobustMax(0.05), 3),
}


@pytest.fixture(params=PROPER)
def proper(request):
    make, n_latents = PROPER[request.param]
    return LikelihoodSites(make(), n_latents)


def random_moments(sites, n=40, seed=0):
    """Return observations, and means and variances of the latents."""
    rng = np.random.default_rng(seed)
    shape = n, sites.n_latents
    if isinstance(sites.likelihood, Gaussian | Laplace | StudentT):
        y = t64(rng.normal(size=shape))
    else:
        y = codes(rng.integers(max(sites.n_latents, 2), size=n))
    return y, t64(rng.uniform(-1.5, 1.5, shape)), t64(rng.uniform(0.05, 1, shape))


def test_every_latent_is_touched(proper):
    y, mean, _ = random_moments(proper)
    active = proper.active_latents(y, mean)
    assert torch.equal(active, torch.arange(proper.n_latents).expand(40, -1))


def test_loss_is_the_negative_expected_log_density(proper):
    y, mean, var = random_moments(proper)
    expected = -proper.likelihood.expected_log_prob(y, mean, var).detach()
    assert torch.equal(proper.sites(y, mean, var).loss.detach(), expected)
    assert torch.equal(proper.loss(y, mean, var).detach(), expected)


def test_gradient_and_curvature_are_the_derivatives_of_the_loss(proper):
    y, mean, var = random_moments(proper)
    sites = proper.sites(y, mean, var)
    loss = proper.loss(y, mean.requires_grad_(), var)
    (gradient,) = torch.autograd.grad(loss.sum(), mean, create_graph=True)
    np.testing.assert_allclose(sites.gradient, gradient.detach(), rtol=0, atol=1e-9)
    curvature = [
        torch.autograd.grad(column.sum(), mean, retain_graph=True)[0][:, j]
        for j, column in enumerate(gradient.T)
    ]
    # Twice the derivative in the variance, if it is used, differs by the quadrature.
    error = 5e-3 if isinstance(proper.likelihood, StudentT) else 1e-7
    np.testing.assert_allclose(sites.curvature, torch.stack(curvature, 1), rtol=0, atol=error)


def test_update_is_the_natural_gradient_of_the_loss(proper):
    y, mean, var = random_moments(proper)
    sites = proper.sites(y, mean, var)
    leaves = mean.clone().requires_grad_(), var.clone().requires_grad_()
    in_mean, in_var = torch.autograd.grad(proper.loss(y, *leaves).sum(), leaves)
    bent = sites.curvature > 0
    # Khan and Lin (2017): eta2 gains -d/dv, eta1 gains -d/dm + 2 m d/dv. For the logistic and the
    # softmax, the expected second derivative replaces the derivative in the variance.
    error = {"Logistic": 1e-6, "Softmax": 5e-2}.get(type(proper.likelihood).__name__, 1e-9)
    close = {"rtol": 0, "atol": error}
    np.testing.assert_allclose(sites.precision[bent], 2 * in_var[bent], **close)
    np.testing.assert_allclose(sites.linear[bent], (2 * mean * in_var - in_mean)[bent], **close)
    # If the loss is concave, the site has no precision, and its linear term is the gradient.
    assert not sites.precision[~bent].any()
    np.testing.assert_allclose(sites.linear[~bent], -in_mean[~bent], **close)
    may_bend_down = isinstance(proper.likelihood, StudentT | RobustMax)
    assert (~bent).any() == may_bend_down


@pytest.mark.parametrize("seed", range(3))
def test_one_step_of_size_one_with_gaussian_noise_is_the_closed_form(seed):
    rng = np.random.default_rng(seed)
    X, Y, noise = rng.normal(size=(30, 2)), rng.normal(size=(30, 2)), [0.3, 0.05]
    weights = rng.uniform(0.5, 2, 30)
    kernel = 2.0 * RBF(1.0) + ConstantKernel(0.5)
    ascent = ascent_of(LikelihoodSites(Gaussian(noise), 2), kernel, X, Y, X[:6], weights)
    A, residual = (part.numpy() for part in ascent.basis(t64(X)))
    eye, p = np.eye(A.shape[1]), A.shape[1]
    root = np.triu(0.2 * rng.normal(size=(2, p, p)), 1) + np.diag(rng.uniform(0.3, 2, p))
    for state in (ascent.init(), ascent.init(t64(rng.normal(size=(2, p))), t64(root))):
        ascent.sweep(state)
        for j, var in enumerate(noise):
            cov = np.linalg.inv(eye + A.T * weights @ A / var)
            mean = cov @ A.T @ (weights * Y[:, j]) / var
            # The error is rounding times a condition number of about 1e4.
            np.testing.assert_allclose(state.mean[j], mean, rtol=0, atol=1e-10)
            found = state.root[j] @ state.root[j].T
            np.testing.assert_allclose(found, cov, rtol=0, atol=1e-10)
    # With unit weights the optimum is Titsias' bound. It is below the evidence by at most the term
    # of the residuals.
    ascent = ascent_of(LikelihoodSites(Gaussian(noise), 2), kernel, X, Y, X[:6])
    state = swept(ascent, 1)
    bound = sum(
        multivariate_normal.logpdf(Y[:, j], cov=A @ A.T + var * np.eye(30))
        - residual.sum() / (2 * var)
        for j, var in enumerate(noise)
    )
    assert ascent.elbo(state) == pytest.approx(bound, rel=1e-10)


def test_steps_are_whole_at_first_and_then_the_likelihood_s(proper):
    assert proper.step(0) == 1
    assert [proper.step(n) for n in (1, 2, 1000)] == [proper.likelihood.step] * 3
    assert 0 < proper.likelihood.step <= 1


def test_parameters_say_where_the_likelihood_is(proper):
    y, mean, var = random_moments(proper)
    parameters = proper.parameters()
    assert parameters.dtype == torch.float64
    assert parameters.ndim == 1
    assert not parameters.requires_grad
    same = proper.at(parameters)
    assert same.n_latents == proper.n_latents
    assert torch.equal(same.loss(y, mean, var), proper.loss(y, mean, var))
    assert len(parameters) == {"Gaussian": 2, "Laplace": 1, "StudentT": 1}.get(
        type(proper.likelihood).__name__, 0
    )


def test_sites_at_other_parameters():
    sites = LikelihoodSites(Gaussian([0.3, 0.1]), 2)
    y, mean, var = random_moments(sites)
    before, noise = sites.loss(y, mean, var).detach(), t64([0.5, 2.0])
    log_noise = noise.log().requires_grad_()
    moved = sites.at(log_noise)
    residual = (y - mean).square() + var
    expected = 0.5 * (residual / noise + (2 * math.pi * noise).log())
    np.testing.assert_allclose(moved.loss(y, mean, var).detach(), expected.sum(1), rtol=1e-13)
    (gradient,) = torch.autograd.grad(moved.loss(y, mean, var).sum(), log_noise)
    np.testing.assert_allclose(gradient, 0.5 * (1 - residual / noise).sum(0), rtol=1e-12)
    np.testing.assert_allclose(
        moved.sites(y, mean, var).precision.detach(), (1 / noise).expand(40, 2), rtol=1e-13
    )
    assert torch.equal(sites.loss(y, mean, var), before)


def test_sites_without_parameters_stay(hinge):
    assert hinge.at(hinge.parameters()) is hinge
    assert hinge.parameters().shape == (0,)


def test_sites_of_float32_rows_are_float32(proper):
    y, mean, var = random_moments(proper)
    y = y.float() if y.is_floating_point() else y
    found = vars(proper.sites(y, mean.float(), var.float()))
    exact = vars(proper.sites(y, mean, var))
    for name, part in found.items():
        assert part.dtype == torch.float32
        # The error is rounding of 6e-8 of values of up to about 50.
        np.testing.assert_allclose(part.detach(), exact[name].detach(), rtol=1e-4, atol=1e-4)


# Rows by latent


def test_rows_by_latent_give_the_sums_of_a_loop():
    rng = np.random.default_rng(0)
    # Latent 3 has no row, and features are in two blocks.
    A, weights, p = rng.normal(size=(30, 130)), rng.normal(size=(30, 2)), 130
    active = np.array([0, 1, 2, 4])[rng.permuted(np.tile(np.arange(4), (30, 1)), axis=1)[:, :2]]
    root = np.triu(rng.normal(size=(5, p, p)))
    groups = PerLatentDesign(t64(A), codes(active), 5)
    gram, total, spread = np.zeros((5, p, p)), np.zeros((5, p)), np.zeros((30, 2))
    for n in range(30):
        for k in range(2):
            gram[active[n, k]] += weights[n, k] * np.outer(A[n], A[n])
            total[active[n, k]] += weights[n, k] * A[n]
            spread[n, k] = ((A[n] @ root[active[n, k]]) ** 2).sum()
    sums = torch.ones(5, p, p, dtype=torch.float64)
    groups.add_gram(sums, t64(weights))
    # Sums of 30 terms are in another order.
    np.testing.assert_allclose(mirror(sums), 1 + gram, rtol=0, atol=1e-13)
    np.testing.assert_allclose(groups.total(t64(weights)), total, rtol=0, atol=1e-13)
    np.testing.assert_allclose(groups.variance(t64(root)), spread, rtol=1e-12)


def test_rows_that_touch_all_give_the_sums_of_rows_by_latent():
    rng = np.random.default_rng(0)
    A, weights = t64(rng.normal(size=(30, 130))), t64(rng.normal(size=(30, 3)))
    root = t64(np.triu(rng.normal(size=(3, 130, 130))))
    by_latent = PerLatentDesign(A, torch.arange(3).expand(30, 3), 3)
    sums = torch.ones(2, 3, 130, 130, dtype=torch.float64)
    for groups, total in zip((DenseDesign(A), by_latent), sums, strict=True):
        groups.add_gram(total, weights)
    # Sums of 30 terms are in another order.
    torch.testing.assert_close(*sums, rtol=0, atol=1e-13)
    torch.testing.assert_close(DenseDesign(A).total(weights), by_latent.total(weights))
    torch.testing.assert_close(DenseDesign(A).variance(root), by_latent.variance(root))
