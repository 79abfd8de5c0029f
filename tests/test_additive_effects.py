"""Tests of the score test by which effects of classes and counts join an additive model."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import softmax

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor
from skgpsvm.additive import _effect_test


def drawn_classes(logits, rng):
    """Draw classes from logits (n, c)."""
    return (rng.random((len(logits), 1)) > softmax(logits, 1).cumsum(1)[:, :-1]).sum(1)


@pytest.mark.parametrize("n_columns", [2, 8])
def test_moments_of_scores_are_those_of_all_permutations(n_columns):
    rng = np.random.default_rng(0)
    features, residuals = (
        values - values.mean(0)
        for values in (torch.from_numpy(rng.gamma(0.5, size=(6, k))) for k in (n_columns, 2))
    )
    orders = map(list, itertools.permutations(range(6)))
    scores = [(features.T @ residuals[order]).square().sum().item() for order in orders]
    parts = (_effect_test._invariants(values, torch.ones(6)) for values in (features, residuals))
    np.testing.assert_allclose(_effect_test._moments(6, *parts), (np.mean(scores), np.var(scores)))


def test_classes_of_noise_have_no_effects():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(100, 40))
    y = rng.random(100) < 0.5
    model = AdditiveGPClassifier(random_state=0, interactions=None).fit(X, y)
    assert not model.terms_
    assert len(model.dropped_terms_) == 40
    assert np.isfinite(model.elbo_)


def test_counts_of_noise_have_no_effects():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 40))
    # Seven effects gain enough in themselves.
    model = AdditiveGPRegressor(likelihood="poisson", random_state=0, interactions=None)
    model.fit(X, rng.poisson(2, 100))
    assert not model.terms_


def test_a_strong_effect_brings_no_effects_of_noise_along():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 60))
    y = rng.random(150) < 1 / (1 + np.exp(-3 * np.sin(1.5 * X[:, 0])))
    model = AdditiveGPClassifier(random_state=0, interactions=None).fit(X, y)
    assert (0,) in model.terms_
    assert len(model.terms_) <= 4


def test_levels_of_classes_have_effects_where_their_signal_is_modest():
    # Indicators of the levels of two categories. All effects were dropped.
    rng = np.random.default_rng(2)
    levels = rng.integers(0, 20, size=(1100, 2))
    logits = 1.2 * rng.normal(size=(2, 20, 3))[[0, 1], levels].sum(1)
    X, y = np.eye(20)[levels].reshape(1100, 40), drawn_classes(logits, rng)
    model = AdditiveGPClassifier(random_state=0, interactions=None).fit(X[:100], y[:100])
    assert model.terms_
    frequencies = np.bincount(y[:100]) / 100
    losses = [
        -np.log(P[np.arange(1000), y[100:]]).mean()
        for P in (model.predict_proba(X[100:]), np.tile(frequencies, (1000, 1)))
    ]
    assert losses[0] < losses[1]


def test_many_weak_effects_join_together():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 20))
    y = rng.random(200) < 1 / (1 + np.exp(-0.3 * X.sum(1)))
    model = AdditiveGPClassifier(random_state=0, interactions=None).fit(X, y)
    assert len(model.terms_) > 6


def test_listed_effects_are_kept_beside_those_that_are_found():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 5))
    y = rng.random(100) < 1 / (1 + np.exp(-3 * X[:, 1]))
    model = AdditiveGPClassifier(terms=[0, ...], random_state=0, interactions=None).fit(X, y)
    assert model.terms_[:2] == [(0,), (1,)]


def test_effects_of_features_that_are_nearly_alike_are_found_together():
    # The class depends on the difference of two features, and on neither of them alone.
    rng = np.random.default_rng(1)
    own = rng.normal(size=(130, 5))
    X = rng.normal(size=(130, 1)) + 0.3 * own
    y = rng.random(130) < 1 / (1 + np.exp(-2.5 * (own[:, 0] - own[:, 1])))
    model = AdditiveGPClassifier(random_state=0, interactions=None).fit(X, y)
    assert model.terms_ == [(0,), (1,)]
