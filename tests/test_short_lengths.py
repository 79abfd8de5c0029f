"""Short length scales of one feature or two."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import t64, waves
from scipy.special import expit, kl_div
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm import DecoupledGPClassifier, EPClassifier, SVGPClassifier
from skgpsvm._hyperparameters.initialization import lengths_by_feature
from skgpsvm._hyperparameters.short_lengths import SiteEvidence
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.callbacks import Checkpoint

EFFECTS = {
    "a feature": (6, lambda X: 2 * np.sin(4 * X[:, 0])),
    "a feature beside a trend": (6, lambda X: 2 * np.sin(4 * X[:, 2]) + X[:, 0]),
    "two features": (4, lambda X: 2 * np.sin(3 * (X[:, 0] + X[:, 3]))),
}


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
@pytest.mark.parametrize("kind", [SVGPClassifier, EPClassifier, DecoupledGPClassifier])
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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [SVGPClassifier, EPClassifier])
def test_checkpoint_changes_nothing_where_the_search_succeeds(kind, tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 8))
    y = (rng.uniform(size=400) < expit(3 * np.sin(4 * X[:, 0]))).astype(int)
    model = kind(random_state=0, max_iter=5)
    saved = clone(model).set_callbacks(Checkpoint(tmp_path)).fit(X, y)
    model.fit(X, y)
    assert_array_equal(saved.predict_proba(X), model.predict_proba(X))
    assert model.loo_log_loss_ < 0.45  # the search has found the wave


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


@pytest.mark.parametrize("group", [[1], [0, 2]], ids=["a feature", "two features"])
def test_length_scales_are_shortened_where_sites_call_for_it(group):
    rng, d = np.random.default_rng(0), 3
    X = rng.normal(size=(300, d))
    targets = np.sin(4 * X[:, group].sum(1)) + 0.3 * rng.normal(size=300)
    kernel = ConstantKernel(1.0) * RBF([4.0] * d)
    sites = np.full((300, 1), 1.5), 1.5 * targets[:, None]
    evidence = SiteEvidence(torch_kernel(kernel), *map(t64, (X, *sites)))
    low, bases = t64(kernel.bounds[:, 0]), t64(kernel.theta)[None]
    parts = bases, torch.as_tensor(lengths_by_feature(kernel, d)), t64(np.ones(d))
    theta = evidence.shortened(*parts, low)
    lengths = theta[1:].exp()
    assert (lengths[group] <= 0.5 + 1e-12).all()
    assert (lengths > 3).sum() == d - len(group)
    noise = 1.5 * rng.normal(scale=1.5**-0.5, size=(300, 1))
    noise = SiteEvidence(torch_kernel(kernel), *map(t64, (X, sites[0], noise)))
    assert noise.shortened(*parts, low) is None
    assert evidence.shortened(*parts, bases[0]) is None  # at the lower bounds
