"""Slow, dense NumPy references for comparison in the tests, and tiny problems that they share."""

from types import SimpleNamespace

import numpy as np
import torch

# Problem T1 of the multi-class Bayesian SVM specification, section 8.1.
T1 = SimpleNamespace(
    X=np.array([[-1.0], [0.0], [0.5], [2.0]]),
    y=np.array([0, 1, 1, 2]),
    Z=np.array([[-0.5], [1.0]]),
    mu=np.array([[0.6, -0.2], [0.1, 0.5], [-0.4, 0.3]]),
    chol=np.array([[[0.8, 0.0], [0.1, 0.7]], [[0.9, 0.0], [-0.2, 0.6]], [[0.5, 0.0], [0.3, 1.0]]]),
)
T1.Sig = T1.chol @ T1.chol.transpose(0, 2, 1)

# Binary version of T1, section 8.4: the same inputs, inducing inputs and kernel, with one latent.
T1_BINARY = SimpleNamespace(
    X=T1.X,
    y=np.array([0, 0, 1, 1]),
    s=np.array([-1.0, -1.0, 1.0, 1.0]),
    Z=T1.Z,
    mu=np.array([-0.6, 0.4]),
    chol=np.array([[0.8, 0.0], [0.1, 0.7]]),
)
T1_BINARY.Sig = T1_BINARY.chol @ T1_BINARY.chol.T


def rbf(A, B, var=1.0, ls=1.0):
    """Return the squared exponential covariance of the rows of A (n, d) and B (m, d)."""
    d2 = ((A[:, None, :] - B[None, :, :]) ** 2).sum(-1)
    return var * np.exp(-0.5 * d2 / ls**2)


def precompute(X, Z, var=1.0, ls=1.0, jitter=0.0):
    """Return Kzz (m, m), the projection kappa (n, m) and the conditional variances (n,)."""
    K = rbf(Z, Z, var, ls) + jitter * np.eye(len(Z))
    Knp = rbf(X, Z, var, ls)
    kappa = np.linalg.solve(K, Knp.T).T
    return K, kappa, var - (kappa * Knp).sum(1)


def latent_moments(kappa, kt, mu, Sig):
    """Return means and variances (n, c) of the latent functions with q(u_j) = N(mu_j, Sig_j)."""
    return kappa @ mu.T, kt[:, None] + np.einsum("np,cpq,nq->nc", kappa, Sig, kappa)


def contrast(m, y):
    """Return the wrong class with the largest mean; the first one on ties."""
    m = m.copy()
    m[np.arange(len(y)), y] = -np.inf
    return m.argmax(1)


def b_moments(m, v, y, t):
    """Return E[b] and E[b^2] of the margin violation of class y against class t."""
    n = np.arange(len(y))
    Eb = 1 + m[n, t] - m[n, y]
    return Eb, Eb**2 + v[n, t] + v[n, y]


def row_terms(Eb, Eb2, alpha=None):
    """Return the terms (n,) of the objective at alpha, or at the best alpha if it is None."""
    a = Eb2 if alpha is None else alpha
    return -Eb - 0.5 * (np.sqrt(a) + Eb2 / np.sqrt(a))


def gaussian_kl(mean0, cov0, mean1, cov1):
    """Return KL(N(mean0, cov0) || N(mean1, cov1)) of dense Gaussians."""
    difference = mean1 - mean0
    return 0.5 * (
        np.trace(np.linalg.solve(cov1, cov0))
        + difference @ np.linalg.solve(cov1, difference)
        - len(mean0)
        + np.linalg.slogdet(cov1)[1]
        - np.linalg.slogdet(cov0)[1]
    )


def objective(K, kappa, kt, mu, Sig, y, t, alpha=None):
    """Return the objective of the multi-class Bayesian SVM; it is collapsed if alpha is None."""
    m, v = latent_moments(kappa, kt, mu, Sig)
    terms = row_terms(*b_moments(m, v, y, t), alpha)
    zero = np.zeros(len(K))
    return terms.sum() - sum(gaussian_kl(mu[j], Sig[j], zero, K) for j in range(len(mu)))


def sweep(K, kappa, kt, mu, Sig, y, t, sequential=True, rho=1.0):
    """Return the moments after one pass of coordinate ascent at fixed contrast classes t."""
    mu, Sig, Ki, n = mu.copy(), Sig.copy(), np.linalg.inv(K), np.arange(len(y))
    m, v = latent_moments(kappa, kt, mu, Sig)
    w = b_moments(m, v, y, t)[1] ** -0.5
    for j in range(len(mu)):
        isy, ist = (y == j).astype(float), (t == j).astype(float)
        c = isy * (1 + w * (1 + m[n, t])) - ist * (1 + w * (1 - m[n, y]))
        lam = Ki + (kappa * ((isy + ist) * w)[:, None]).T @ kappa
        old = np.linalg.inv(Sig[j])
        eta = (1 - rho) * old @ mu[j] + rho * kappa.T @ c
        Sig[j] = np.linalg.inv((1 - rho) * old + rho * lam)
        mu[j] = Sig[j] @ eta
        if sequential:
            m[:, j] = kappa @ mu[j]
    return mu, Sig


def binary_b_moments(kappa, kt, mu, Sig, s):
    """Return E[b] and E[b^2] of b = 1 - s f with one latent function; s holds +1 and -1."""
    m, v = latent_moments(kappa, kt, mu[None], Sig[None])
    Eb = 1 - s * m[:, 0]
    return Eb, Eb**2 + v[:, 0]


def binary_objective(K, kappa, kt, mu, Sig, s):
    """Return the collapsed objective of the binary Bayesian SVM."""
    terms = row_terms(*binary_b_moments(kappa, kt, mu, Sig, s))
    return terms.sum() - gaussian_kl(mu, Sig, np.zeros(len(K)), K)


def binary_sweep(K, kappa, kt, mu, Sig, s):
    """Return the moments after one closed-form update of the binary Bayesian SVM."""
    w = binary_b_moments(kappa, kt, mu, Sig, s)[1] ** -0.5
    Sig = np.linalg.inv(np.linalg.inv(K) + (kappa * w[:, None]).T @ kappa)
    return Sig @ kappa.T @ (s * (1 + w)), Sig


def exact_gp_regression(kernel, X, y, X_new, noise_var):
    """Return noise-free posterior mean (n_new,), covariance (n_new, n_new) and log evidence.

    `kernel` is a scikit-learn kernel, or any callable of one or two arrays of rows.
    """
    K = kernel(X) + noise_var * np.eye(len(X))
    K_new = kernel(X_new, X)
    mean = K_new @ np.linalg.solve(K, y)
    cov = kernel(X_new) - K_new @ np.linalg.solve(K, K_new.T)
    log_det = np.linalg.slogdet(K)[1]
    log_evidence = -0.5 * (y @ np.linalg.solve(K, y) + log_det + len(y) * np.log(2 * np.pi))
    return mean, cov, log_evidence


def collapsed(kernel, Z, bases, X, y, noise):
    """Return the collapsed decoupled bound, by its specification, section 10.3."""
    n = len(X)

    def explained(points):
        cross = kernel(X, points)
        return cross @ np.linalg.solve(kernel(points), cross.T)

    Q_mean, Q_cov = (explained(points) + noise * np.eye(n) for points in (bases, Z))
    misfit = y @ np.linalg.solve(Q_mean, y)
    unexplained = (kernel.diag(X) - Q_cov.diagonal() + noise).sum() / noise
    return -0.5 * (misfit + np.linalg.slogdet(Q_cov)[1] + n * np.log(2 * np.pi) + unexplained)


def means_at(kernel, bases, X, y, noise, X_new, weights=None):
    """Return the means at ``X_new`` of the posterior with given bases, by the normal equations."""
    weights = np.ones(len(X)) if weights is None else weights
    cross = kernel(X, bases)
    system = cross.T @ (weights[:, None] * cross) + noise * kernel(bases)
    return kernel(X_new, bases) @ np.linalg.lstsq(system, cross.T @ (weights * y), rcond=None)[0]


def differences(function, *parts, step=1e-6):
    """Return the derivatives of a scalar function in tensors, by central differences.

    Their error is step^2 times third derivatives, and the rounding of values over the step.
    """
    found = []
    for i, part in enumerate(parts):
        moves = step * torch.eye(part.numel(), dtype=part.dtype)
        ends = [
            [
                float(function(*parts[:i], part + sign * move.view_as(part), *parts[i + 1 :]))
                for sign in (1, -1)
            ]
            for move in moves
        ]
        slopes = [(up - down) / (2 * step) for up, down in ends]
        found.append(torch.tensor(slopes, dtype=part.dtype).view_as(part))
    return found


def assert_kernel_gradient(kernel, X, atol):
    """Require that the gradient of a kernel of scikit-learn is that of central differences."""
    K, gradient = kernel(X, eval_gradient=True)
    np.testing.assert_array_equal(K, kernel(X))
    assert gradient.shape == (len(X), len(X), kernel.n_dims)
    step = 1e-5  # they err by step^2 and eps / step, both about 1e-10
    for i, direction in enumerate(np.eye(kernel.n_dims)):
        above, below = (
            kernel.clone_with_theta(kernel.theta + sign * step * direction)(X) for sign in (1, -1)
        )
        found = (above - below) / (2 * step)
        np.testing.assert_allclose(gradient[:, :, i], found, rtol=1e-8, atol=atol)


def local_variances(kernel, local, Z, X, noise, candidates, n_neighbors, X_new):
    """Return variances (n_new,) given rows whose residuals are correlated only near each place.

    Parameters
    ----------
    kernel, local : scikit-learn kernel
        The whole kernel, and its terms that the inducing points represent.
    Z, X, X_new : ndarray of shape (m, d), (n, d), (n_new, d)
    noise : ndarray of shape (n,)
    candidates : ndarray of shape (k,)
        Indices of rows that may be neighbors.
    n_neighbors : int
    """
    found = []
    for x in X_new:
        every = np.vstack([x, X])
        to_points = local(every, Z)
        whole, residual = kernel(every), local(every)
        residual = residual - to_points @ np.linalg.solve(local(Z), to_points.T)
        gain = local(x[None], X[candidates])[0] ** 2
        gain /= local.diag(X[candidates]) + noise[candidates]
        near = np.r_[0, 1 + np.asarray(candidates)[np.argsort(-gain)[:n_neighbors]]]
        correlated = np.eye(len(every), dtype=bool)
        correlated[np.ix_(near, near)] = True
        K = whole - np.where(correlated, 0, residual)
        K[1:, 1:] += np.diag(noise)
        found.append(K[0, 0] - K[0, 1:] @ np.linalg.solve(K[1:, 1:], K[1:, 0]))
    return np.array(found)
