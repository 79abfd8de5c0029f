"""Short length scales of one feature or two."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import rows_of, t64, waves
from scipy.special import expit, kl_div
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm import (
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    QSGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._hyperparameters.initialization import lengths_by_feature
from skgpsvm._hyperparameters.short_lengths import SiteEvidence
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.callbacks import Checkpoint
from skgpsvm.exceptions import NotPositiveDefiniteError
from skgpsvm.expectation_propagation._converged import EvidenceLearning, run_ep_to_convergence
from skgpsvm.expectation_propagation._inference import EPProblem
from skgpsvm.expectation_propagation._propagation import Propagation

EFFECTS = {
    "a feature": (6, lambda X: 2 * np.sin(4 * X[:, 0])),
    "a feature beside a trend": (6, lambda X: 2 * np.sin(4 * X[:, 2]) + X[:, 0]),
    "two features": (4, lambda X: 2 * np.sin(3 * (X[:, 0] + X[:, 3]))),
}
CLASSIFIERS = [SVGPClassifier, EPClassifier, DecoupledGPClassifier, BayesianSVC]


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_waves_of_some_features_are_found(kind, effect):
    d, latent = effect
    rng = np.random.default_rng(1)
    X, X_new = rng.normal(size=(1200, d)), rng.normal(size=(500, d))
    y = (rng.uniform(size=1200) < expit(latent(X))).astype(int)
    P = kind(random_state=0).fit(X, y).predict_proba(X_new)
    true = expit(latent(X_new))
    true = np.stack([1 - true, true], 1)
    # A constant has .17 to .19, and a straight boundary .16.
    assert kl_div(true, P).sum(1).mean() < 0.04


def test_bayesian_svm_finds_one_wave_after_the_other():
    rng = np.random.default_rng(0)
    X, X_new = rng.normal(size=(1500, 6)), rng.normal(size=(500, 6))

    def probabilities(X):
        return expit(2 * np.sin(4 * X[:, 0]) + 2 * np.sin(4 * X[:, 1]))

    y = (rng.uniform(size=1500) < probabilities(X)).astype(int)
    p = BayesianSVC(random_state=0).fit(X, y).predict_proba(X_new)[:, 1]
    # A model of the first wave alone has an error of .25.
    assert np.sqrt(np.mean((p - probabilities(X_new)) ** 2)) < 0.17


@pytest.mark.parametrize("kind", [SVGPRegressor, QSGPRegressor, DecoupledGPRegressor])
def test_regressors_find_waves_beside_a_trend(kind):
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.uniform(size=1500), rng.normal(size=(1500, 3))])
    f = np.sin(2 * np.pi * 8 * X[:, 0]) + X[:, 1]
    y = f + 0.3 * rng.normal(size=1500)
    mean = kind(random_state=0).fit(X[:1000], y[:1000]).predict(X[1000:])
    # The trend alone has .7.
    assert np.sqrt(np.mean((mean - f[1000:]) ** 2)) < 0.15


@pytest.mark.parametrize("kind", [SVGPRegressor, DecoupledGPRegressor])
def test_a_wave_of_one_of_several_outputs_is_found(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (500, 3))
    F = np.column_stack([np.sin(2 * X[:, 0]), np.sin(6 * X[:, 2])])
    Y = F + 0.1 * rng.normal(size=F.shape)
    mean = kind(random_state=0).fit(X[:200], Y[:200]).predict(X[200:])
    # With the length scales that suit the first output alone, the second has .72.
    assert np.all(np.sqrt(np.mean((mean - F[200:]) ** 2, 0)) < 0.15)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [SVGPClassifier, EPClassifier])
def test_checkpoint_changes_nothing_where_the_search_succeeds(kind, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 6))
    # Learning does not end at its start, since it finds the trend.
    y = (rng.uniform(size=1000) < expit(3 * np.sin(4 * X[:, 0]) + 3 * X[:, 1])).astype(int)
    model = kind(random_state=0, max_iter=5)
    saved = clone(model).set_callbacks(Checkpoint(tmp_path)).fit(X, y)
    model.fit(X, y)
    assert_array_equal(saved.predict_proba(X), model.predict_proba(X))
    assert model.loo_log_loss_ < 0.36  # the search has found the wave


def test_evidence_of_sites_is_that_of_a_regression_with_their_variances():
    X, _ = waves(20, d=2)
    rng, theta = np.random.default_rng(0), np.log([2.0, 1.0, 1.5])
    precision, targets = rng.uniform(0.1, 2.0, size=(2, 20, 3))
    kernel = ConstantKernel(2.0) * RBF([1.0, 1.5])
    evidence = SiteEvidence(torch_kernel(kernel), *map(t64, (X, precision, precision * targets)))
    expected = sum(
        multivariate_normal.logpdf(y, cov=kernel(X) + np.diag(1 / w))
        for y, w in zip(targets.T, precision.T, strict=True)
    )
    assert_allclose(evidence.value(t64(theta)), expected, rtol=1e-8)


def test_value_is_that_beside_the_gradient():
    X, y = waves(20, d=2)
    precision = np.random.default_rng(0).uniform(0.1, 2.0, size=(20, 1))
    sites = map(t64, (X, precision, precision * y[:, None]))
    evidence = SiteEvidence(torch_kernel(RBF([1.0, 1.5])), *sites)
    theta = t64(np.log([0.5, 2.0]))
    assert evidence.value(theta) == evidence.value_and_gradient(theta)[0]


def test_gradient_of_the_evidence_is_that_of_a_share_of_a_further_covariance():
    rng = np.random.default_rng(0)
    X, precision = rng.normal(size=(25, 2)), rng.uniform(0.1, 5.0, size=(25, 2))
    targets = rng.normal(size=(25, 2))
    kernel, more = ConstantKernel(2.0) * RBF([1.0, 1.5]), RBF([0.4, 1e5])
    evidence = SiteEvidence(torch_kernel(kernel), *map(t64, (X, precision, precision * targets)))
    _, gradient = evidence.value_and_gradient(t64(kernel.theta))

    def of_share(share):
        K = kernel(X) + share * kernel(X) * more(X)
        sites = zip(targets.T, precision.T, strict=True)
        return sum(multivariate_normal.logpdf(y, cov=K + np.diag(1 / w)) for y, w in sites)

    step = 1e-5  # the error is of its square, and of rounding, 1e-16 of some 80 nats, over it
    expected = (of_share(step) - of_share(-step)) / (2 * step)
    assert_allclose((gradient.numpy() * more(X)).sum(), expected, rtol=1e-7)


def test_sites_of_a_weight_are_those_of_as_many_copies():
    X, y = waves(30, d=2)
    labels, weights = (y > 0).astype(int), np.where(np.arange(30) < 10, 3.0, 1.0)
    rows = rows_of(X, labels, weights)
    propagation = Propagation(torch_kernel(2.0 * RBF([1.0, 1.0])), rows)
    learning = EvidenceLearning(EPProblem(propagation), 1e-3)
    state = learning.init({"theta": t64(np.log([2.0, 1.0, 1.0])), "Z": t64(X)})
    run_ep_to_convergence(propagation, state)
    precision, linear = learning.sites(state)
    # With every row a point, the sites give the posterior of the latent values.
    K = (2.0 * RBF([1.0, 1.0]))(X)
    w, shift = precision[:, 0].numpy(), linear[:, 0].numpy()
    expected = np.linalg.solve(np.eye(30) + K * w, K @ shift)
    found = propagation.make_basis(state.theta, state.Z).features(t64(X)) @ state.mean[0]
    assert_allclose(found, expected, atol=1e-4)


def test_search_that_fails_leaves_the_fit_as_it_was(monkeypatch):
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    expected = SVGPClassifier(random_state=0).fit(X, y).predict_proba(X)

    def fail(*_):
        raise NotPositiveDefiniteError("not positive definite")

    monkeypatch.setattr(SiteEvidence, "shortened", fail)
    assert_array_equal(SVGPClassifier(random_state=0).fit(X, y).predict_proba(X), expected)


@pytest.mark.parametrize("group", [[1], [0, 2]], ids=["a feature", "two features"])
def test_length_scales_are_shortened_where_sites_call_for_it(group):
    rng, d = np.random.default_rng(0), 3
    X = rng.normal(size=(300, d))
    targets = np.sin(4 * X[:, group].sum(1)) + 0.3 * rng.normal(size=300)
    kernel = ConstantKernel(1.0) * RBF([4.0] * d)
    sites = np.full((300, 1), 1.5), 1.5 * targets[:, None]
    evidence = SiteEvidence(torch_kernel(kernel), *map(t64, (X, *sites)))
    low, bases = t64(kernel.bounds[:, 0]), t64(kernel.theta)[None]
    tried = [t64(np.full(d, length)) for length in (0.5, 0.25)]
    parts = bases, torch.as_tensor(lengths_by_feature(kernel, d)), tried
    theta = evidence.shortened(*parts, low)
    lengths = theta[1:].exp()
    assert (lengths[group] <= 0.5 + 1e-12).all()
    assert (lengths > 3).sum() == d - len(group)
    noise = 1.5 * rng.normal(scale=1.5**-0.5, size=(300, 1))
    noise = SiteEvidence(torch_kernel(kernel), *map(t64, (X, sites[0], noise)))
    assert noise.shortened(*parts, low) is None
    assert evidence.shortened(*parts, bases[0]) is None  # at the lower bounds
