"""Posteriors against published numbers, dense oracles and their samples."""

import math
from functools import partial

import numpy as np
import oracles
import pytest
import torch
from oracles import differences
from problems import assert_all_close, finite_bases, t64
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Matern,
)

from skgpsvm import _bases
from skgpsvm._bases import Dictionary, KernelBases
from skgpsvm._linalg import gaussian_kl
from skgpsvm._posteriors import InducingPosterior, Posterior, WeightPosterior, WhitenedBasis
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.kernels import Linear

# Jitter of the diagonal of the inducing points' kernel matrix, relative to its mean.
JITTER = 1e-6

# Exact terms and the rest: how `WhitenedBasis` splits a sum, written by hand.
SPLITS = {
    "smooth": (None, 1.5 * RBF([0.7, 2.0])),
    "finite": (Linear(0.8, offset=[0.3, -0.1]) + ConstantKernel(2.0), None),
    "default": (
        ConstantKernel(2.0) + Linear([1.3, 0.8], "fixed", offset=0.2),
        ConstantKernel(5.0) * RBF([0.7, 2.0]),
    ),
    "rough": (DotProduct(0.6), 0.5 * Matern(0.9, nu=1.5) * DotProduct(0.4)),
    "sum": (ConstantKernel(0.5), RBF(0.9) + Matern(0.3)),
}


def rows(n, seed, d=2):
    return np.random.default_rng(seed).normal(size=(n, d))


def whole(split):
    """Return the sum of the two parts of a split."""
    exact, rest = split
    return exact + rest if exact and rest else exact or rest


def upper(root):
    """Return upper triangular roots of the same covariances."""
    return torch.linalg.cholesky((root @ root.mT).flip(-2, -1)).flip(-2, -1)


def basis(kernel, Z):
    return WhitenedBasis(torch_kernel(kernel), t64(kernel.theta), t64(Z))


def random_weights(c, p, seed):
    """Return random means and upper triangular roots of the weights of c latents."""
    rng = np.random.default_rng(seed)
    root = 0.3 * np.triu(rng.normal(size=(c, p, p)), 1) / math.sqrt(p)
    root[:, np.arange(p), np.arange(p)] = rng.uniform(0.2, 1.5, (c, p))
    return rng.normal(size=(c, p)), root


def whitened_t1(kernel, mu, chol, Z):
    """Return the posterior whose inducing values have means mu and covariance factors chol."""
    K = kernel(Z)
    Lz = np.linalg.cholesky(K + JITTER * np.diag(K).mean() * np.eye(len(Z)))
    mean, root = np.linalg.solve(Lz, mu[..., None])[..., 0], np.linalg.solve(Lz, chol)
    return InducingPosterior(basis(kernel, Z), t64(mean), upper(t64(root)))


@pytest.fixture(params=SPLITS)
def split(request):
    return SPLITS[request.param]


@pytest.fixture
def t1():
    T1 = oracles.T1
    return whitened_t1(1.0 * RBF(1.0), T1.mu, T1.chol, T1.Z)


# Problem T1 of the specification, section 8.1


def test_t1_reaches_the_published_numbers(t1):
    A, residual = t1.basis(t64(oracles.T1.X))
    mean, var = t1.marginals(t64(oracles.T1.X))
    # The published numbers have no jitter; the specification allows 1e-5 for a relative 1e-6.
    close = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(
        A.T,
        [
            [0.8824969026, 0.8824969026, 0.6065306597, 0.0439369336],
            [-0.1598267913, 0.3383533199, 0.7248477847, 0.6261847390],
        ],
        **close,
    )
    np.testing.assert_allclose(
        residual, [0.1956546137, 0.1067162479, 0.1067162479, 0.6059622185], **close
    )
    np.testing.assert_allclose(
        t1.mean,
        [[0.6, -0.4174006652], [0.1, 0.4943098489], [-0.4, 0.4544785559]],
        **close,
    )
    np.testing.assert_allclose(
        mean,
        [
            [0.5962099506, 0.0092457332, -0.4256366103],
            [0.3882692408, 0.2555010687, -0.1992244328],
            [0.0613664483, 0.4189524649, 0.0868155106],
            [-0.2350077665, 0.3139229771, 0.2670127625],
        ],
        **close,
    )
    np.testing.assert_allclose(
        var,
        [
            [0.7469165778, 0.9757946096, 0.3989197299],
            [0.5904415029, 0.5349284901, 0.4752760785],
            [0.5261346194, 0.3466011883, 0.8611173797],
            [0.8257147700, 0.8457235055, 1.0570614248],
        ],
        **close,
    )
    np.testing.assert_allclose(
        gaussian_kl(t1.mean, t1.root), [0.3993648459, 0.4292700791, 0.5152358131], **close
    )


def test_t1_equals_the_dense_oracle_with_the_same_jitter(t1):
    T1 = oracles.T1
    K, kappa, kt = oracles.precompute(T1.X, T1.Z, jitter=JITTER)
    expected = oracles.latent_moments(kappa, kt, T1.mu, T1.Sig)
    # Sums are in two orders: the error is rounding times a condition number below 3.
    np.testing.assert_allclose(t1.marginals(t64(T1.X)), expected, rtol=0, atol=1e-13)
    kl = [oracles.gaussian_kl(m, S, np.zeros(2), K) for m, S in zip(T1.mu, T1.Sig, strict=True)]
    np.testing.assert_allclose(t1.kl(), sum(kl), rtol=1e-12)


# The basis


# With more than 128 features, the algebra is in blocks.
@pytest.mark.parametrize("n_points", [7, 150])
def test_features_and_residual_covariance_make_up_the_kernel(split, n_points):
    X, kernel = rows(12, seed=0), whole(split)
    features = basis(kernel, rows(n_points, seed=1))
    A, residual = features(t64(X))
    cov = features.residual_cov(t64(X))
    # This is exact for any inducing points, up to rounding of numbers below 30.
    np.testing.assert_allclose(A @ A.T + cov, kernel(X), rtol=0, atol=1e-13)
    np.testing.assert_allclose(A.square().sum(1) + residual, kernel.diag(X), rtol=0, atol=1e-13)
    assert (residual >= 0).all()


def test_features_at_the_inducing_points_are_the_kernel(split):
    X, kernel = rows(12, seed=0), whole(split)
    A, residual = basis(kernel, X)(t64(X))
    noise = kernel(X) - kernel(X, X)
    # K - K (K + eI)^-1 K is between 0 and eI; e is the jitter times the mean variance of the rest.
    jitter = JITTER * (split[1].diag(X).mean() if split[1] else 0) + 1e-12
    np.testing.assert_allclose((A @ A.T).numpy() + noise, kernel(X), rtol=0, atol=jitter)
    np.testing.assert_allclose(residual, np.diag(noise), rtol=0, atol=jitter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_residual_is_never_negative(split, dtype):
    X = rows(200, seed=2)
    features = basis(whole(split), X[:20])
    A, residual = features(t64(np.repeat(X, 2, 0)).to(dtype))
    assert A.dtype == residual.dtype == dtype
    assert (residual >= 0).all()
    if split[1] is None:
        assert not residual.any()


def test_float32_rows_give_float64_results_within_their_precision(split):
    features, X = basis(whole(split), rows(10, seed=1)), t64(rows(30, seed=2))
    single, double = features(X.float()), features(X)
    # The error is rounding of the kernel, 6e-8 relative, times the norm of the projection. This is
    # the root of a condition number of at most about 1e5.
    np.testing.assert_allclose(single[0], double[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(single[1], double[1], rtol=0, atol=1e-4)


def test_exact_terms_that_outnumber_the_inducing_points_are_projected():
    kernel, X = ConstantKernel(2.0) + Linear(0.7) + RBF(1.0), rows(12, seed=0, d=4)
    # With two points, the constant's feature is exact, but the four linear ones are too many.
    features = basis(kernel, rows(2, seed=1, d=4))
    assert features.size == 1 + 2
    A, _ = features(t64(X))
    np.testing.assert_allclose(
        A @ A.T + features.residual_cov(t64(X)), kernel(X), rtol=0, atol=1e-12
    )


# Hand-written gradients of a function of A A^T, which does not depend on rotations of features


def scalar_of(X, gram_weights, residual_weights, kernel, theta, Z):
    """Return a function of features and residuals that is differentiable in theta and Z."""
    A, residual = WhitenedBasis(kernel, theta, Z)(X)
    return (gram_weights * (A @ A.T)).sum() / 2 + residual_weights @ residual


def pulled_back(X, gram_weights, residual_weights, kernel, theta, Z):
    """Return the function's gradients in theta and Z by the two pull-backs."""
    features = WhitenedBasis(kernel, theta, Z)
    A, _ = features(X)
    projected = A.clone()
    projected[:, features.n_projected :] = 0
    # Residuals contain minus the squares of projected features.
    left = torch.cat([gram_weights, -2 * residual_weights.diag()], 1)
    right = torch.cat([A, projected])
    cross = A.double().T @ (left @ right).double()
    through_rows = features.pull_back(X, left, right, residual_weights)
    through_points = features.pull_back_projection(cross)
    return [a + b for a, b in zip(through_rows, through_points, strict=True)]


def pull_back_problem(split, dtype=torch.float64):
    rng = np.random.default_rng(0)
    kernel = whole(split)
    weights = rng.normal(size=(9, 9))
    given = t64(rows(9, seed=4)), t64(weights + weights.T), t64(rng.normal(size=9))
    theta, Z = t64(kernel.theta), t64(rows(6, seed=3))
    return *(part.to(dtype) for part in given), torch_kernel(kernel), theta, Z


def test_pull_backs_give_the_gradients_of_autograd(split):
    *given, theta, Z = pull_back_problem(split)
    leaves = theta.clone().requires_grad_(), Z.clone().requires_grad_()
    expected = torch.autograd.grad(
        scalar_of(*given, *leaves), leaves, allow_unused=True, materialize_grads=True
    )
    found = pulled_back(*given, theta, Z)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float64
        assert not a.requires_grad
        # The error is rounding times a condition number of about 1e3.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * (1 + b.abs().max()))
    assert found[1].any() == (split[1] is not None)


def test_pull_backs_give_finite_differences(split):
    *given, theta, Z = pull_back_problem(split)
    expected = differences(partial(scalar_of, *given), theta, Z, step=1e-5)
    assert_all_close(pulled_back(*given, theta, Z), expected, rtol=1e-5, atol=1e-5)


def test_pull_backs_of_float32_rows_are_those_of_float64(split):
    exact = pulled_back(*pull_back_problem(split))
    for a, b in zip(pulled_back(*pull_back_problem(split, torch.float32)), exact, strict=True):
        assert a.dtype == torch.float64
        # The error is 6e-8, times a projection of norm 1e2 and its gradient.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * (1 + b.abs().max()))


# The posterior


def dense_moments(split, Z, X, mean, root):
    """Return mean and covariance at X of one latent, by prior conditionals of the values at Z."""
    exact, rest = split
    m = len(Z) if rest else 0
    cov = root @ root.T
    smooth_mean, joint = np.zeros(len(X)), np.zeros((len(X), len(X)))
    parts = []
    if rest:
        Kzz = rest(Z, Z)
        Lz = np.linalg.cholesky(Kzz + JITTER * np.diag(Kzz).mean() * np.eye(m))
        kappa = np.linalg.solve(Lz @ Lz.T, rest(Z, X)).T
        smooth_mean = kappa @ Lz @ mean[:m]
        joint = rest(X) - kappa @ rest(Z, X)
        parts.append(kappa @ Lz)
    if exact:
        terms = [exact.k1, exact.k2] if hasattr(exact, "k1") else [exact]
        parts += [finite_features(term, X) for term in terms]
    features = np.hstack(parts)
    finite_mean = features[:, m:] @ mean[m:]
    return smooth_mean + finite_mean, joint + features @ cov @ features.T


def finite_features(term, X):
    """Return the feature map of a finite kernel, by its definition."""
    if isinstance(term, ConstantKernel):
        return np.full((len(X), 1), math.sqrt(term.constant_value))
    if isinstance(term, DotProduct):
        return np.hstack([np.full((len(X), 1), term.sigma_0), X])
    return (X - term.offset) / term.length_scale


@pytest.mark.parametrize(
    ("name", "n_points"),
    [("smooth", 6), ("finite", 6), ("default", 6), ("rough", 6), ("rough", 150)],
)
def test_marginals_equal_a_dense_oracle(name, n_points):
    split, Z, X = SPLITS[name], rows(n_points, seed=3), rows(9, seed=4)
    features = basis(whole(split), Z)
    mean, root = random_weights(3, features.size, seed=5)
    posterior = InducingPosterior(features, t64(mean), t64(root))
    assert isinstance(posterior, Posterior)
    expected = [dense_moments(split, Z, X, m, r) for m, r in zip(mean, root, strict=True)]
    m, v = posterior.marginals(t64(X))
    # The error is rounding times a condition number below 1e6.
    np.testing.assert_allclose(m.T, [e[0] for e in expected], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(v.T, [np.diag(e[1]) for e in expected], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["smooth", "finite", "default", "rough"])
def test_covariances_equal_a_dense_oracle(name):
    split, Z, X = SPLITS[name], rows(6, seed=3), rows(9, seed=4)
    features = basis(whole(split), Z)
    mean, root = random_weights(3, features.size, seed=5)
    cov = InducingPosterior(features, t64(mean), t64(root)).cov(t64(X))
    expected = [dense_moments(split, Z, X, m, r)[1] for m, r in zip(mean, root, strict=True)]
    # The error is rounding times a condition number below 1e6.
    np.testing.assert_allclose(cov, expected, rtol=0, atol=1e-9)


def test_variances_are_the_diagonal_of_the_covariances(split):
    features, X = basis(whole(split), rows(6, seed=3)), t64(rows(9, seed=4))
    mean, root = (t64(part) for part in random_weights(2, features.size, seed=5))
    posterior = InducingPosterior(features, mean, root)
    cov = posterior.cov(X)
    assert cov.shape == (2, 9, 9)
    np.testing.assert_allclose(
        cov.diagonal(dim1=1, dim2=2).T, posterior.marginals(X)[1], rtol=1e-11
    )
    np.testing.assert_allclose(cov, cov.mT, rtol=0, atol=1e-13)


def test_joint_moments_of_float32_rows_are_computed_in_float64():
    features, X = basis(whole(SPLITS["default"]), rows(20, seed=3)), t64(rows(9, seed=4)).float()
    mean, root = random_weights(2, features.size, seed=5)
    posterior = InducingPosterior(features, t64(mean), t64(root))
    assert torch.equal(posterior.cov(X), posterior.cov(X.double()))
    draws = [
        posterior.sample(part, 3, torch.Generator().manual_seed(0)) for part in (X, X.double())
    ]
    assert torch.equal(*draws)


@pytest.mark.parametrize("name", ["smooth", "finite", "default", "rough"])
def test_best_weights_under_gaussian_noise_give_the_exact_process(name):
    kernel, X, X_new, noise_var = whole(SPLITS[name]), rows(15, seed=6), rows(8, seed=7), 0.2
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    features = basis(kernel, X)
    A, _ = features(t64(X))
    cov = torch.linalg.inv(torch.eye(features.size) + A.T @ A / noise_var)
    mean, root = cov @ A.T @ t64(y) / noise_var, upper(torch.linalg.cholesky(cov))
    posterior = InducingPosterior(features, mean[None], root[None])
    m, v = posterior.marginals(t64(X_new))
    exact_mean, exact_cov, _ = oracles.exact_gp_regression(kernel, X, y, X_new, noise_var)
    # Jitter changes K by at most e = 1e-6 * variance <= 5e-6. With a noise variance of 0.2, the
    # relative changes are about e / 0.2.
    np.testing.assert_allclose(m[:, 0], exact_mean, rtol=0, atol=1e-4)
    np.testing.assert_allclose(v[:, 0], np.diag(exact_cov), rtol=0, atol=1e-4)


def test_prior_weights_give_the_prior_whatever_the_kernel(split):
    features, X = basis(whole(split), rows(6, seed=3)), rows(9, seed=4)
    mean, root = torch.zeros(2, features.size), torch.eye(features.size).expand(2, -1, -1)
    posterior = InducingPosterior(features, mean.double(), root.double())
    m, v = posterior.marginals(t64(X))
    assert not m.any()
    np.testing.assert_allclose(v[:, 1], whole(split).diag(X), rtol=1e-13)
    assert posterior.kl().item() == 0


def test_kl_is_that_of_dense_gaussians():
    mean, root = random_weights(4, 5, seed=8)
    expected = sum(
        oracles.gaussian_kl(m, r @ r.T, np.zeros(5), np.eye(5))
        for m, r in zip(mean, root, strict=True)
    )
    value = InducingPosterior(None, t64(mean), t64(root)).kl()
    np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_kl_gradient_is_the_closed_form():
    mean, root = (t64(part).requires_grad_() for part in random_weights(3, 4, seed=9))
    InducingPosterior(None, mean, root).kl().backward()
    # KL = (||R||^2 + ||m||^2 - p) / 2 - sum log R_ii.
    expected = root - torch.diag_embed(1 / root.diagonal(dim1=1, dim2=2))
    np.testing.assert_allclose(mean.grad, mean.detach(), rtol=1e-14)
    np.testing.assert_allclose(root.grad, expected.detach(), rtol=1e-13, atol=1e-14)


# Samples


@pytest.mark.parametrize("name", ["default", "rough", "sum"])
def test_samples_have_the_joint_moments(name):
    split, Z, X = SPLITS[name], rows(4, seed=3), rows(6, seed=4)
    features = basis(whole(split), Z)
    mean, root = random_weights(2, features.size, seed=5)
    posterior = InducingPosterior(features, t64(mean), t64(root))
    n = 20000
    draws = posterior.sample(t64(X), n, torch.Generator().manual_seed(0))
    assert draws.shape == (n, 6, 2)
    A, _ = features(t64(X))
    rest = features.residual_cov(t64(X)).numpy()
    white = []
    for j in range(2):
        cov = A.numpy() @ root[j] @ root[j].T @ A.numpy().T + rest
        expected = A.numpy() @ mean[j]
        # The marginals are those of the joint distribution.
        m, v = (moment[:, j] for moment in posterior.marginals(t64(X)))
        np.testing.assert_allclose(m, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(v, np.diag(cov), rtol=1e-11)
        white.append(np.linalg.solve(np.linalg.cholesky(cov), (draws[..., j].numpy() - expected).T))
    z = np.vstack(white)
    # Whitened with the right moments, the 12 numbers of a draw are independent and standard normal.
    # Standard errors are 1 / sqrt(n) = 0.007 for means, 0.007 for covariances and 0.01 for
    # variances. With 4.5 standard errors, a correct sampler fails 90 such tests with probability
    # 6e-4, and means off by 0.05 or variances off by 7 % are found almost certainly.
    np.testing.assert_allclose(z.mean(1), 0, rtol=0, atol=4.5 / math.sqrt(n))
    np.testing.assert_allclose(np.cov(z), np.eye(12), rtol=0, atol=4.5 * math.sqrt(2 / n))


def test_samples_are_functions_of_the_row_and_of_the_seed():
    features = basis(whole(SPLITS["default"]), rows(4, seed=3))
    mean, root = random_weights(2, features.size, seed=5)
    posterior = InducingPosterior(features, t64(mean), t64(root))
    X = t64(rows(5, seed=4)).repeat(2, 1)
    draws = [posterior.sample(X, 3, torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.isclose(draws[0], draws[2]).any()
    # Draws at equal rows differ by the root of rounding errors, 1e-16 times variances of about 10.
    np.testing.assert_allclose(draws[0][:, :5], draws[0][:, 5:], rtol=0, atol=1e-6)


def test_samples_of_float32_rows_are_finite_where_the_residual_vanishes():
    Z = rows(20, seed=3)
    features = basis(whole(SPLITS["default"]), Z)
    mean, root = random_weights(1, features.size, seed=5)
    posterior = InducingPosterior(features, t64(mean), t64(1e-3 * root))
    draws = posterior.sample(t64(Z).float(), 50, torch.Generator().manual_seed(0))
    m, v = posterior.marginals(t64(Z))
    # Six standard deviations, plus 1e-3 for the rounding of the rows.
    assert ((draws - m).abs() < 6 * v.sqrt() + 1e-3).all()


# Weights of finite bases


@pytest.fixture(params=[KernelBases, Dictionary])
def finite(request, monkeypatch):
    """Return seven bases, in two blocks, and dense prior precisions of two latents' weights."""
    monkeypatch.setattr(_bases, "JITTER", 0)
    monkeypatch.setattr(_bases, "_CHUNK_BASES", 4)
    bases, _, precisions = finite_bases(request.param)
    return bases, precisions


@pytest.fixture(params=[0, 2, 7])
def weighted(request, finite):
    """Return a posterior with some dense columns, and moments (2, 7), (2, 7, 7) of its weights."""
    k, rng = request.param, np.random.default_rng(1)
    mean, diag = rng.normal(size=(2, 7)), rng.uniform(0.3, 1.5, (2, 7))
    factor = 0.5 * np.tril(rng.normal(size=(2, 7, 7)), -1)
    factor[:, :, k:] = 0
    factor[:, np.arange(7), np.arange(7)] = diag
    posterior = WeightPosterior(finite[0], t64(mean), t64(diag), t64(factor[:, :, :k]))
    return posterior, mean, factor @ factor.transpose(0, 2, 1)


def dense_values(posterior, mean, cov, X):
    """Return means (2, b) and covariances (2, b, b) at rows."""
    values = posterior.bases.values(t64(X)).numpy()
    return mean @ values.T, values @ cov @ values.T


def test_moments_of_weights_equal_a_dense_oracle(weighted):
    posterior, X = weighted[0], rows(9, seed=4)
    mean, cov = dense_values(*weighted, X)
    assert isinstance(posterior, Posterior)
    m, v = posterior.marginals(t64(X))
    np.testing.assert_allclose(m.T, mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(v.T, cov.diagonal(axis1=1, axis2=2), rtol=1e-12)
    np.testing.assert_allclose(posterior.cov(t64(X)), cov, rtol=1e-12, atol=1e-14)


def test_float32_rows_give_moments_of_weights_within_their_precision(weighted):
    posterior, X = weighted[0], t64(rows(9, seed=4))
    for single, double in zip(posterior.marginals(X.float()), posterior.marginals(X), strict=True):
        assert single.dtype == torch.float32
        # The kernel errs by half of four roundings, 1.2e-7 each, of squared norms of up to 50:
        # 1.2e-5. Its square errs by twice that, times moments of at most 5.
        np.testing.assert_allclose(single, double, rtol=0, atol=1.2e-4)
    assert posterior.cov(X.float()).dtype == torch.float64


def test_kl_of_weights_is_that_of_dense_gaussians(weighted, finite):
    posterior, *moments = weighted
    expected = sum(
        oracles.gaussian_kl(mean, cov, np.zeros(7), np.linalg.inv(S))
        for mean, cov, S in zip(*moments, finite[1], strict=True)
    )
    # The error is rounding times a condition number of less than 100.
    np.testing.assert_allclose(posterior.kl(), expected, rtol=1e-11)


def test_samples_of_weights_have_the_joint_moments(weighted):
    posterior, X, n = weighted[0], 2 * rows(4, seed=4), 20000
    draws = posterior.sample(t64(X), n, torch.Generator().manual_seed(0))
    assert draws.shape == (n, 4, 2)
    white = []
    for j, (mean, cov) in enumerate(zip(*dense_values(*weighted, X), strict=True)):
        white.append(np.linalg.solve(np.linalg.cholesky(cov), (draws[..., j].numpy() - mean).T))
    z = np.vstack(white)
    # As above, whitened draws are independent and standard normal. Standard errors are 1 / sqrt(n)
    # for means and covariances, and sqrt(2 / n) for variances. With 4.5 of them, a correct sampler
    # fails the test of 44 numbers with probability 3e-4.
    np.testing.assert_allclose(z.mean(1), 0, rtol=0, atol=4.5 / math.sqrt(n))
    np.testing.assert_allclose(np.cov(z), np.eye(8), rtol=0, atol=4.5 * math.sqrt(2 / n))
