"""Learning on the ELBO of converged sites: its gradient and its rounds."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import differences
from problems import assert_all_close, ring, t64
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm._data import WeightedDataset
from skgpsvm._inference.elbo_learning import DifferentiableAscent, ElboLearning
from skgpsvm._optim import Free
from skgpsvm._posteriors import WhitenedBasis
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import theta_bounds, torch_kernel
from skgpsvm.kernels import Linear
from skgpsvm.likelihoods import Logistic, Probit, Softmax

KERNEL = 2.0 * RBF([1.0, 1.5]) + ConstantKernel(1.0) + Linear(0.7)
DAMPED = Softmax()
DAMPED.step = 0.4  # with larger steps sweeps do not settle
LIKELIHOODS = {
    "logistic": (LikelihoodSites(Logistic(), 1), 2),
    "probit": (LikelihoodSites(Probit(), 1), 2),
    "softmax": (LikelihoodSites(DAMPED, 3), 3),
}


def rows_of(n_classes, n=40):
    X, y = ring(n, n_classes)
    weights = np.linspace(0.5, 2.0, n)
    return WeightedDataset(X, y, weights, torch.device("cpu"), torch.float64)


def basis_of(theta, Z):
    return WhitenedBasis(torch_kernel(KERNEL), theta, Z)


def converged(likelihood, rows, theta, Z):
    """Return an ascent and the state after many sweeps."""
    ascent = DifferentiableAscent(likelihood, basis_of(theta, Z), rows)
    state = ascent.init()
    for _ in range(300):
        ascent.sweep(state)
    return ascent, state


def points(rows):
    return t64(KERNEL.theta), rows.X[::5] + 0.1


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradient_is_that_of_autograd_with_the_posterior_held(name):
    likelihood, n_classes = LIKELIHOODS[name]
    rows = rows_of(n_classes)
    theta, Z = points(rows)
    ascent, state = converged(likelihood, rows, theta, Z)
    value, gradients, sites = ascent.value_and_gradient(state)
    assert value == pytest.approx(ascent.elbo(state), rel=1e-12)
    assert_all_close(sites, ascent.sites(state))
    # Expected derivatives are not exactly the derivatives of the expectation, which is a sum over
    # nodes or points. So the chain rule is tested with the former given.
    leaves = theta.clone().requires_grad_(), Z.clone().requires_grad_()
    A, residual = basis_of(*leaves)(rows.X)
    latents = A @ state.mean.T
    variances = residual[:, None] + (A @ state.root).square().sum(2).T
    with torch.no_grad():
        at = likelihood.sites(rows.targets, latents, variances)
    terms = at.gradient * latents + 0.5 * at.curvature * variances
    by_theta, by_Z = torch.autograd.grad(-(rows.weights[:, None] * terms).sum(), leaves)
    assert_allclose(gradients["theta"], by_theta, atol=1e-3 * by_theta.abs().max())
    assert_allclose(gradients["Z"], by_Z, atol=1e-3 * by_Z.abs().max())


@pytest.mark.parametrize("name", ["logistic", "probit"])
def test_gradient_at_converged_sites_is_that_of_the_best_elbo(name):
    likelihood, n_classes = LIKELIHOODS[name]
    rows = rows_of(n_classes)
    theta, Z = points(rows)

    def best(theta):
        ascent, state = converged(likelihood, rows, theta, Z)
        return ascent.elbo(state)

    ascent, state = converged(likelihood, rows, theta, Z)
    (numeric,) = differences(best, theta, step=1e-4)
    found = ascent.value_and_gradient(state)[1]["theta"]
    assert_allclose(found, numeric, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_converged_sites_imply_their_posterior(name):
    likelihood, n_classes = LIKELIHOODS[name]
    rows = rows_of(n_classes)
    ascent, state = converged(likelihood, rows, *points(rows))
    again = ascent.posterior_of(*ascent.sites(state))
    assert_allclose(again.mean, state.mean, atol=1e-3)
    assert_allclose(again.root, state.root, atol=1e-3)


@pytest.mark.parametrize("free", [["theta"], ["Z"], ["theta", "Z"]])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_rounds_raise_the_elbo_and_move_what_is_free(name, free):
    likelihood, n_classes = LIKELIHOODS[name]
    rows = rows_of(n_classes)
    theta, Z = points(rows)
    bounds, scale = theta_bounds(KERNEL, rows.device), t64([1.0, 1.0])
    parts = (torch_kernel(KERNEL),), rows, 1e-6, Free(free, bounds, scale), 1e-3
    learning = ElboLearning(likelihood, *parts)
    state = learning.init({"theta": theta, "Z": Z, "noise": theta[:0]})
    ascent, posterior = converged(likelihood, rows, theta, Z)
    before = ascent.elbo(posterior)
    for _ in range(10):
        learning.step(state)
        if learning.converged(state):
            break
    assert learning.converged(state)
    assert state.objective > before
    assert torch.equal(state.theta, theta) != ("theta" in free)
    assert torch.equal(state.Z, Z) != ("Z" in free)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_single_precision_of_products_changes_little(name):
    likelihood, n_classes = LIKELIHOODS[name]
    rows = rows_of(n_classes)
    theta, Z = points(rows)
    basis = basis_of(theta, Z)
    coarse, fine = (
        DifferentiableAscent(likelihood, basis, rows, dtype)
        for dtype in (torch.float32, torch.float64)
    )
    found, wanted = coarse.init(), fine.init()
    for ascent, state in ((coarse, found), (fine, wanted)):
        for _ in range(4):
            ascent.natural_sweep(state)
    found, wanted = coarse.value_and_gradient(found), fine.value_and_gradient(wanted)
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    for part in ("theta", "Z"):
        scale = wanted[1][part].abs().max()
        assert_allclose(found[1][part], wanted[1][part], atol=1e-3 * scale)
    assert all(part.dtype == torch.float32 for part in found[2])
