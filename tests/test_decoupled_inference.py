"""Means by conjugate gradients against dense oracles."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import collapsed, exact_gp_regression, means_at
from problems import R, assert_all_close, begun_solve, rows_of, solve_of, t64, unit_gram, waves
from sklearn.base import is_classifier
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF
from sklearn.preprocessing import StandardScaler

from skgpsvm import DecoupledGPClassifier, DecoupledGPRegressor, _bases
from skgpsvm._collapsed import CollapsedBound
from skgpsvm._posteriors import DecoupledPosterior
from skgpsvm._torch_kernels import torch_kernel


def test_optimum_is_the_specification_s(monkeypatch):
    monkeypatch.setattr(_bases, "JITTER", 0)
    parts = R.kernel, R.beta.numpy(), R.alpha.numpy()
    inference, state = solve_of(*parts, R.X.numpy(), R.Y.numpy(), R.noise)
    coef = R.rho * state.coef
    expected = [[-0.0402426743, 0.8269282678, -0.5869274451]]
    assert_allclose(coef, expected, rtol=0, atol=1e-9)
    inverse = torch.linalg.inv(torch.linalg.cholesky(unit_gram(R.beta, R.beta)))
    root = state.root[0]
    increment = torch.linalg.inv(root @ root.T) - torch.eye(2)
    expected = [[29.0578908776, -3.9890838137], [-3.9890838137, 19.9908842915]]
    assert_allclose(inverse.T @ increment @ inverse, expected, rtol=0, atol=1e-9)
    assert inference.evaluate(state)[0] == pytest.approx(-17.7603344451, abs=1e-9)
    dense = collapsed(*parts, R.X.numpy(), R.Y[:, 0].numpy(), R.noise)
    assert dense == pytest.approx(-17.7603344451, abs=1e-9)
    parts = torch.zeros(1, 2, dtype=torch.float64), state.root, inference.bases, state.coef
    posterior = DecoupledPosterior(inference.basis, *parts)
    assert posterior.kl().item() == pytest.approx(2.4838576771, abs=1e-9)
    mean, var = posterior.marginals(R.X_new)
    assert_allclose(mean[:, 0], [0.3673825120, -0.3385813238], rtol=0, atol=1e-9)
    assert_allclose(var[:, 0], [0.2683892047, 1.3201187126], rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_collapsed_bound_is_the_dense_one_and_below_the_evidence(seed):
    rng = np.random.default_rng(seed)
    X, y = waves(60, seed=seed)
    kernel = 1.5 * RBF([1.0, 1.5, 2.0])
    Z, bases = rng.normal(size=(5, 3)), rng.normal(size=(25, 3))
    evidence = exact_gp_regression(kernel, X, y, X, 0.1)[2]
    inference, state = solve_of(kernel, Z, bases, X, y, 0.1)
    bound = inference.evaluate(state)[0]
    # The error is the jitter of 1e-9 in a kernel matrix with a condition number of 1e4.
    assert bound == pytest.approx(collapsed(kernel, Z, bases, X, y, 0.1), rel=1e-7)
    assert bound < evidence
    inference, state = solve_of(kernel, Z, Z, X, y, 0.1)
    titsias = CollapsedBound(torch_kernel(kernel), rows_of(X, y[:, None]))
    expected = titsias.value(t64(kernel.theta), t64(Z), t64([np.log(0.1)]))
    assert inference.evaluate(state)[0] == pytest.approx(expected, rel=1e-9)
    # More bases of the mean raise the bound.
    assert bound > collapsed(kernel, Z, bases[:20], X, y, 0.1)
    inference, state = solve_of(kernel, X, X, X, y, 0.1)
    assert inference.evaluate(state)[0] == pytest.approx(evidence, rel=1e-6)


def test_bases_stand_for_all_rows():
    X, y = waves(60)
    weights = np.random.default_rng(1).uniform(0.5, 2, 60)
    inference, state = solve_of(1.5 * RBF(1.0), X[:8], X[:20], X, y, 0.1, weights=weights)
    assert_allclose(inference.index_precisions(state)[0], 60 / 20 * weights[:20] / 0.1, rtol=1e-12)


def test_chunks_of_rows_change_nothing(monkeypatch):
    X, y = waves(150)
    kernel = 1.5 * RBF(1.0)
    one = solve_of(kernel, X[:8], X[:30], X, y, 0.1)
    monkeypatch.setattr(_bases, "CACHED_BLOCK", 1)
    two = solve_of(kernel, X[:8], X[:30], X, y, 0.1)
    K = t64(kernel(X[:30]))
    assert_allclose(two[1].coef @ K, one[1].coef @ K, rtol=1e-9, atol=1e-9)
    assert_all_close(two[0].evaluate(two[1]), one[0].evaluate(one[1]), rtol=1e-9, atol=1e-9)


def test_further_groups_are_the_solutions_without_their_rows():
    X, y = waves(80)
    Y = np.c_[y, X[:, 2]]
    kept = torch.ones(80, 3, dtype=torch.float64)
    kept[:30, 1], kept[50:, 2] = 0, 0
    kernel = 1.5 * RBF(1.0)
    inference, state = solve_of(kernel, X[:8], X, X, Y, 0.1, row_shares=kept)
    _, means, _ = inference.evaluate(state)
    for j, rows in enumerate(kept.bool().numpy().T):
        for i, target in enumerate(Y.T):
            expected = means_at(kernel, X, X[rows], target[rows], 0.1, X)
            assert_allclose(means[:, 2 * j + i], expected, atol=1e-6)


def test_covariance_of_rows_in_float32_is_that_of_their_features():
    X, y = waves(20_000)
    X, kernel = X.astype(np.float32), 10 * RBF(3.0)
    rows = rows_of(X, y[:, None], dtype=torch.float32)
    inference, state = begun_solve(kernel, X[:40], X[:5], rows, 1e-4)
    A = inference.basis(torch.as_tensor(X))[0].double()
    root = state.root[0]
    expected = torch.linalg.inv(A.T @ A / 1e-4 + torch.eye(A.shape[1]))
    assert_allclose((root @ root.T).diagonal(), expected.diagonal(), rtol=1e-8)


@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
def test_means_of_smooth_kernels_in_float32_are_those_in_float64(kind):
    X = np.random.default_rng(0).normal(size=(1200, 2)).astype(np.float32)
    y = np.sin(2 * X).sum(1)
    held = {"kernel": 4 * RBF(2.0), "inducing_points": X[:20], "learn_inducing": False}
    held |= {"optimizer": None, "n_mean_bases": 100, "random_state": 0}
    if is_classifier(kind()):
        # Sites depend on variances, whose inducing points have a jitter of float32.
        y, atol = y > 0, 0.02
    else:
        held["noise_variance"], atol = 1e-3, 1e-6
    models = (kind(**held, dtype=dtype) for dtype in ("float32", "float64"))
    fitted = [model.fit(X[:1000], y[:1000]) for model in models]
    single, double = (model.latent_mean_and_variance(X[1000:])[0] for model in fitted)
    assert_allclose(single, double, rtol=0, atol=atol)


def test_row_weights_are_repetitions():
    X, y = waves(40)
    weights = np.resize([1, 2, 3], 40)
    again = np.repeat(np.arange(40), weights)
    kernel = 1.5 * RBF(1.0)
    weighted = solve_of(kernel, X[:8], X[:20], X, y, 0.1, weights=weights.astype(float))
    repeated = solve_of(kernel, X[:8], X[:20], X[again], y[again], 0.1)
    K = t64(kernel(X[:20]))
    assert_allclose(weighted[1].coef @ K, repeated[1].coef @ K, rtol=1e-8, atol=1e-8)
    assert_allclose(weighted[1].root, repeated[1].root, rtol=1e-10, atol=1e-12)
    ours, theirs = (inference.evaluate(state)[0] for inference, state in (weighted, repeated))
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_passes_end_where_no_step_raises_the_bound():
    X, y = load_iris(return_X_y=True)
    some = np.random.RandomState(1).permutation(150)[:40]
    X = StandardScaler().fit_transform(X[some])
    model = DecoupledGPClassifier(random_state=0).fit(X, y[some])
    assert model.n_iter_ < 50
