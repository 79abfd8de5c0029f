"""Posteriors of the latent values at all rows, compared with those of whitened features."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import differences
from problems import assert_all_close, ring, rows_of, t64
from sklearn.gaussian_process.kernels import RBF, CompoundKernel, ConstantKernel

from skgpsvm._inference.coordinate_ascent import CoordinateAscent
from skgpsvm._inference.elbo_learning import ElboLearning
from skgpsvm._inference.latent_ascent import LatentAscent, LatentRows
from skgpsvm._optim import Free
from skgpsvm._posteriors import InducingPosterior, whitened_basis
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import theta_bounds, torch_kernels
from skgpsvm.likelihoods import Heteroscedastic, Logistic, Softmax, StudentT
from skgpsvm.likelihoods._base import Likelihood

KERNEL = 2.0 * RBF([1.0, 1.5]) + ConstantKernel(1.0)
TWO_KERNELS = CompoundKernel([KERNEL, 0.8 * RBF(2.0)])
CASES = {
    "logistic": (LikelihoodSites(Logistic(), 1), KERNEL),
    "softmax": (LikelihoodSites(Softmax(), 3), KERNEL),
    "student_t": (LikelihoodSites(StudentT(0.3), 1), KERNEL),
    "varying noise": (LikelihoodSites(Heteroscedastic(0.3), 2), TWO_KERNELS),
    "varying noise, one kernel": (LikelihoodSites(Heteroscedastic(0.3), 2), KERNEL),
}
NO_JITTER = 1e-12


def problem(name, n=24):
    """Return the likelihood, kernel, rows, and log parameters of the likelihood, of a case.

    Six rows have the features of others, and all have weights.
    """
    likelihood, kernel = CASES[name]
    X, y = ring(n, 3 if name == "softmax" else 2)
    if name not in ("softmax", "logistic"):
        y = np.sin(X[:, :1]) + 0.3 * np.random.default_rng(0).normal(size=(n, 1))
    X[:6] = X[6:12]
    rows = rows_of(X, y, np.linspace(0.5, 2.0, n))
    return likelihood, kernel, rows, likelihood.parameters()


def converged(name, theta=None, noise=None):
    likelihood, kernel, rows, parameters = problem(name)
    theta = t64(kernel_theta(kernel)) if theta is None else theta
    likelihood = likelihood.at(parameters if noise is None else noise)
    ascent = LatentAscent(likelihood, torch_kernels(kernel), theta, LatentRows(rows))
    empty = torch.zeros(rows.n_rows, likelihood.n_latents, dtype=torch.float64)
    posterior = ascent.posterior_of(empty, empty)
    for _ in range(25):
        ascent.natural_sweep(posterior)
    return ascent, posterior


def kernel_theta(kernel):
    parts = kernel.kernels if isinstance(kernel, CompoundKernel) else [kernel]
    return np.concatenate([part.theta for part in parts])


@pytest.mark.parametrize("name", CASES)
def test_posterior_of_sites_is_that_of_whitened_features(name):
    likelihood, kernel, rows, _ = problem(name)
    kernels, theta = torch_kernels(kernel), t64(kernel_theta(kernel))
    basis = whitened_basis(kernels, theta, rows.X[6:], NO_JITTER)
    wanted = CoordinateAscent(likelihood, basis, rows)
    ascent = LatentAscent(likelihood, kernels, theta, LatentRows(rows))
    rng = np.random.default_rng(1)
    shape = rows.n_rows, likelihood.n_latents
    sites = t64(rng.exponential(size=shape)), t64(rng.normal(size=shape))
    found, state = ascent.posterior_of(*sites), wanted.posterior_of(*sites)
    assert ascent.elbo(found) == pytest.approx(wanted.elbo(state), abs=1e-6)
    for _ in range(3):
        ascent.natural_sweep(found)
        wanted.uphill_sweep(state)
        assert ascent.elbo(found) == pytest.approx(wanted.elbo(state), abs=1e-6)
    assert_all_close(ascent.sites(found), wanted.sites(state), rtol=1e-5, atol=1e-6)
    if basis.groups == [basis]:
        mean, variance = InducingPosterior(basis, state.mean, state.root).marginals(rows.X)
        assert_all_close(ascent._moments(found.parts), (mean, variance), atol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "varying noise"])
def test_gradient_is_that_of_the_best_elbo(name):
    likelihood, kernel, _, noise = problem(name)
    theta = t64(kernel_theta(kernel))
    ascent, posterior = converged(name)
    value, gradients, _ = ascent.value_and_gradient(posterior)
    assert value == ascent.elbo(posterior)

    def best(theta, noise):
        return converged(name, theta=theta, noise=noise)[1].value

    found = [gradients["theta"]]
    found.append(ascent.noise_gradient(posterior, likelihood, noise) if len(noise) else noise)
    # Expected derivatives by quadrature are not exactly those of the expectation.
    assert_all_close(found, differences(best, theta, noise, step=1e-4), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["logistic", "varying noise"])
def test_learning_is_that_of_whitened_features(name):
    likelihood, kernel, rows, noise = problem(name)
    start = {"theta": t64(kernel_theta(kernel)), "Z": rows.X[6:], "noise": noise}
    free = ["theta", "noise"] if len(noise) else ["theta"]
    parts = torch_kernels(kernel), rows, NO_JITTER
    free = Free(free, theta_bounds(kernel, rows.device), t64([1.0, 1.0]))
    ends = []
    for every_row in (False, True):
        learning = ElboLearning(likelihood, *parts, free, 1e-5, every_row=every_row)
        state = learning.init(start)
        for _ in range(3):
            learning.step(state)
        ends.append(state)
    whitened, values = ends
    assert values.objective == pytest.approx(whitened.objective, abs=1e-2)
    # Both leave a posterior of whitened weights.
    assert_allclose(values.mean, whitened.mean, atol=0.05)
    assert values.root.shape == whitened.root.shape


class Scale(Likelihood):
    """Normal observations of mean f and standard deviation exp(g), by automatic derivatives."""

    latents_per_output = 2

    def log_prob(self, y, f):
        f, g = f.chunk(2, -1)
        return (-0.5 * ((y - f) / g.exp()).square() - g - 0.5 * math.log(2 * math.pi)).sum(-1)

    def expected_log_prob(self, y, mean, var):
        (f, g), (v, nu) = mean.chunk(2, -1), var.chunk(2, -1)
        squares = ((y - f).square() + v) * (2 * nu - 2 * g).exp()
        return (-0.5 * squares - g - 0.5 * math.log(2 * math.pi)).sum(-1)

    def predict(self, mean, var):
        return mean, var


@pytest.mark.parametrize("likelihood", [Heteroscedastic(0.3), Scale()], ids=["half", "whole"])
def test_latents_of_one_output_converge_in_few_sweeps(likelihood):
    # Natural gradients in both at once, of half length, need 60 sweeps.
    X = np.linspace(0, 6, 60)[:, None]
    y = np.sin(X) + (0.02 + 0.1 * X) * np.random.default_rng(0).normal(size=(60, 1))
    kernels, rows = CompoundKernel([2.0 * RBF(0.7), 1.0 * RBF(2.0)]), rows_of(X, y)
    theta = t64(kernel_theta(kernels))
    basis = whitened_basis(torch_kernels(kernels), theta, rows.X[::2])
    ascent = CoordinateAscent(LikelihoodSites(likelihood, 2), basis, rows)
    state = ascent.init()
    values = [ascent.uphill_sweep(state) for _ in range(80)]
    assert (np.diff(values) >= -1e-8 * np.abs(values[1:])).all()
    assert values[12] > values[-1] - 0.1
