"""The ELBO and the log evidence against exact values, published ones, and estimates."""

import numpy as np
import oracles
import pytest
import torch
from problems import rows_of, t64
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm._linalg import cholesky
from skgpsvm._objectives import elbo, log_evidence
from skgpsvm._posteriors import InducingPosterior, WhitenedBasis
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.kernels import Linear
from skgpsvm.likelihoods import BinaryHinge, Gaussian, MulticlassHinge

NOISE_VAR = 0.2
KERNEL = ConstantKernel(2.0) + Linear(0.8) + ConstantKernel(1.5) * RBF([0.7, 2.0])
T1_KERNEL = ConstantKernel(1.0) * RBF(1.0)


def basis(kernel, Z, theta=None):
    theta = t64(kernel.theta) if theta is None else theta
    return WhitenedBasis(torch_kernel(kernel), theta, torch.as_tensor(Z))


def upper_root(cov):
    """Return the upper triangular R with R R^T = cov."""
    return torch.linalg.cholesky(cov.flip(-2, -1)).flip(-2, -1)


def regression(n=20):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.4 * rng.normal(size=n)


def best_posterior(features, X, y):
    """Return the posterior that maximizes the bound with Gaussian noise."""
    A, _ = features(t64(X))
    cov = torch.linalg.inv(torch.eye(features.size) + A.T @ A / NOISE_VAR)
    mean = cov @ A.T @ t64(y) / NOISE_VAR
    return InducingPosterior(features, mean[None], upper_root(cov)[None])


def bound(posterior, X, y, weights=None):
    likelihood = Gaussian(NOISE_VAR).requires_grad_(False)
    return elbo(posterior, likelihood, rows_of(X, y[:, None], weights))


def inducing_t1(T, mu, chol, theta, Z):
    """Return T1's posterior at given moments of the *inducing values*; it is differentiable."""
    kernel = torch_kernel(T1_KERNEL)
    Lz = cholesky(kernel(Z, Z, theta))
    mean = torch.linalg.solve_triangular(Lz, mu[..., None], upper=False)[..., 0]
    root = torch.linalg.solve_triangular(Lz, chol, upper=False)
    return InducingPosterior(basis(T1_KERNEL, Z, theta), mean, upper_root(root @ root.mT))


@pytest.fixture
def t1():
    """Return mu, chol, theta and Z of problem T1 as leaf tensors."""
    T1 = oracles.T1
    leaves = {"mu": T1.mu, "chol": T1.chol, "theta": np.zeros(2), "Z": T1.Z}
    return {name: t64(value).requires_grad_() for name, value in leaves.items()}


# Gaussian noise, for which the evidence is known


def test_is_the_evidence_at_the_exact_posterior():
    X, y = regression()
    posterior = best_posterior(basis(KERNEL, X), X, y)
    _, _, evidence = oracles.exact_gp_regression(KERNEL, X, y, X, NOISE_VAR)
    # The jitter is 1.5e-6 per row. It lowers the bound by at most 20 * 1.5e-6 / (2 * 0.2) = 8e-5
    # through the residual variances, and by no more through the features.
    assert evidence - 2e-4 < bound(posterior, X, y) < evidence


@pytest.mark.parametrize("n_points", [3, 6, 12])
def test_is_titsias_bound_at_the_best_posterior(n_points):
    X, y = regression()
    features = basis(KERNEL, X[:n_points])
    A, residual = (part.numpy() for part in features(t64(X)))
    _, _, of_features = oracles.exact_gp_regression(lambda a, b=None: A @ A.T, X, y, X, NOISE_VAR)
    expected = of_features - 0.5 * residual.sum() / NOISE_VAR
    value = bound(best_posterior(features, X, y), X, y).item()
    np.testing.assert_allclose(value, expected, rtol=1e-11)
    _, _, evidence = oracles.exact_gp_regression(KERNEL, X, y, X, NOISE_VAR)
    assert value < evidence


def test_is_below_the_evidence_everywhere():
    X, y = regression()
    _, _, evidence = oracles.exact_gp_regression(KERNEL, X, y, X, NOISE_VAR)
    best, rng = best_posterior(basis(KERNEL, X), X, y), np.random.default_rng(1)
    for scale in (0.01, 0.1, 1.0):
        shift = scale * t64(rng.normal(size=best.mean.shape))
        turn = torch.eye(best.basis.size) + scale * t64(np.triu(rng.normal(size=best.root.shape)))
        turned = upper_root(turn @ best.root @ best.root.mT @ turn.mT)
        for mean, root in ((best.mean + shift, best.root), (best.mean, turned)):
            value = bound(InducingPosterior(best.basis, mean, root), X, y)
            # The loss is quadratic in the shift, with curvatures of at least 1.
            assert value < evidence - scale**2


def test_gradient_vanishes_at_the_best_posterior():
    X, y = regression()
    best = best_posterior(basis(KERNEL, X[:6]), X, y)
    best.mean.requires_grad_()
    best.root.requires_grad_()
    bound(best, X, y).backward()
    # Gradients of the two terms are of size 100 and cancel.
    np.testing.assert_allclose(best.mean.grad, 0, rtol=0, atol=1e-11)
    np.testing.assert_allclose(best.root.grad.triu(), 0, rtol=0, atol=1e-10)


def test_log_evidence_is_a_normal_log_density_with_its_derivatives():
    rng = np.random.default_rng(0)
    half, Y = rng.normal(size=(7, 7)), rng.normal(size=(7, 2))
    cov, jitter = half @ half.T + np.eye(7), 1e-3
    mean = jitter * np.trace(cov) / 7
    densities = multivariate_normal(cov=cov + mean * np.eye(7)).logpdf(Y.T)
    value, *found = log_evidence(t64(cov), t64(Y), jitter)
    np.testing.assert_allclose(value, densities.sum(), rtol=1e-13)

    def at(cov, Y):
        total = cov + jitter * cov.trace() / 7 * torch.eye(7).double()
        return torch.distributions.MultivariateNormal(t64(np.zeros(7)), total).log_prob(Y.T).sum()

    leaves = [t64(cov).requires_grad_(), t64(Y).requires_grad_()]
    by_cov, by_targets = torch.autograd.grad(at(*leaves), leaves)
    np.testing.assert_allclose(found[0], 0.5 * (by_cov + by_cov.T), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found[1], -by_targets, rtol=1e-10)


# Weights and minibatches


def test_integer_weights_are_repeated_rows_and_zeros_removed_ones():
    X, y = regression()
    posterior = best_posterior(basis(KERNEL, X[:6]), X, y)
    weights = np.resize([0, 1, 3], len(X))
    repeated = np.repeat(X, weights, 0), np.repeat(y, weights)
    # The terms are the same, summed in another order.
    np.testing.assert_allclose(
        bound(posterior, X, y, weights), bound(posterior, *repeated), rtol=1e-13
    )


def test_minibatches_of_a_partition_average_to_the_full_value():
    X, y = regression(24)
    posterior = best_posterior(basis(KERNEL, X[:6]), X, y)
    weights = np.random.default_rng(2).uniform(size=24)
    likelihood = Gaussian(NOISE_VAR).requires_grad_(False)
    parts = [
        elbo(posterior, likelihood, rows_of(X[i], y[i][:, None], weights[i]), 4)
        for i in np.random.default_rng(3).permutation(24).reshape(4, 6)
    ]
    np.testing.assert_allclose(
        torch.stack(parts).mean(), bound(posterior, X, y, weights), rtol=1e-13
    )


# Problem T1 of the multi-class Bayesian SVM specification, sections 8.1 and 8.4


def test_t1_objective_and_gradients(t1):
    T1 = oracles.T1
    value = elbo(inducing_t1(T1, **t1), MulticlassHinge(), rows_of(T1.X, T1.y))
    value.backward()
    # The published numbers have no jitter; the specification allows 1e-5 for a relative 1e-6.
    np.testing.assert_allclose(value.item(), -10.5500609479, rtol=0, atol=1e-5)
    expected = {
        "mu": [
            [-0.8502673513, -0.3972375593],
            [0.9945550541, 0.4179951334],
            [-0.2618915799, -0.5825771853],
        ],
        "chol": [
            [[-0.4277072964, 0], [0.1189909349, 0.5738521978]],
            [[-0.9456825564, 0], [0.5243684952, 0.5081687020]],
            [[1.4474208588, 0], [-0.4407392047, -0.8276195188]],
        ],
        "theta": [-1.0220768297, 0.4961297365],
        "Z": [[-1.0342009505], [-0.5302182300]],
    }
    t1["chol"].grad.tril_()
    for name, gradient in expected.items():
        np.testing.assert_allclose(t1[name].grad, gradient, rtol=0, atol=1e-5, err_msg=name)


def test_t1_at_the_prior():
    T1 = oracles.T1
    features = basis(T1_KERNEL, T1.Z)
    mean, root = t64(np.zeros((3, 2))), t64(np.eye(2)).expand(3, -1, -1)
    prior = InducingPosterior(features, mean, root)
    value = elbo(prior, MulticlassHinge(), rows_of(T1.X, T1.y))
    # The value is -N (1 + sqrt(1 + 2 variance)) for all data, inducing points and jitter; the
    # variance of the violation is floored at 1e-12.
    np.testing.assert_allclose(value, -4 * (1 + np.sqrt(3)), rtol=1e-12)


def test_binary_objective(t1):
    T1 = oracles.T1_BINARY
    mu, chol = t64(T1.mu)[None], t64(T1.chol)[None]
    posterior = inducing_t1(T1, mu, chol, t1["theta"].detach(), t64(T1.Z))
    value = elbo(posterior, BinaryHinge(), rows_of(T1.X, T1.y))
    np.testing.assert_allclose(value, -7.3417183722, rtol=0, atol=1e-5)
