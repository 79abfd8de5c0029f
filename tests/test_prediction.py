"""What is predicted from latent functions: noise of unit variance, checks, draws and moments."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import ring, waves
from sklearn.exceptions import NotFittedError

from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._prediction import _STANDARD_NOISE, LIKELIHOODS


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_noise_is_what_its_variance_says(name):
    _, variance = LIKELIHOODS[name](0.3).predict(*torch.zeros(2, 1, 1))
    assert_allclose(variance.item(), 0.3, rtol=1e-6)
    draws = _STANDARD_NOISE[name](np.random.RandomState(0), 200_000)
    # The variance of t with four degrees of freedom converges slowly.
    assert_allclose([draws.mean(), draws.var()], [0, 1], atol=0.05)


@pytest.mark.parametrize("kind", [SVGPRegressor, AdditiveGPRegressor])
def test_moments_of_draws_and_of_predictions_agree(kind):
    X, y = waves(60, 2)
    model = kind(random_state=0).fit(X, np.c_[y, -2 * y])
    mean, variance = model.latent_mean_and_variance(X[:3])
    draws = model.sample_latent(X[:3], 20_000)
    assert_allclose(draws.mean(0), mean, atol=0.05)
    assert_allclose(draws.var(0), variance, rtol=0.1, atol=1e-4)
    cov = model.predict(X[:3], return_cov=True)[1]
    std = model.predict(X[:3], return_std=True)[1]
    assert_allclose(np.diagonal(cov).T, std**2)
    with pytest.raises(RuntimeError, match="At most one of return_std or return_cov"):
        model.predict(X, return_std=True, return_cov=True)


@pytest.mark.parametrize("n_samples", [0, -1, 2.5, "3", None])
@pytest.mark.parametrize("kind", [SVGPRegressor, AdditiveGPRegressor])
def test_numbers_of_draws_are_positive_integers(kind, n_samples):
    X, y = waves(20, 2)
    model = kind(n_inducing=8).fit(X, y)
    message = f"n_samples={n_samples!r} must be an integer of at least 1"
    draws = [lambda: model.sample_y(X, n_samples), lambda: model.sample_latent(X, n_samples)]
    if kind is AdditiveGPRegressor:
        draws.append(lambda: model.sobol_indices(n_samples=n_samples))
    for draw in draws:
        with pytest.raises(ValueError, match=message):
            draw()


def test_latents_must_be_of_the_model():
    model = SVGPClassifier(n_inducing=8, random_state=0)
    with pytest.raises(NotFittedError):
        model.predict_proba_from_latent(np.zeros((1, 1)))
    model.fit(*ring(40, 2))
    with pytest.raises(ValueError, match="its last axis must have length 1"):
        model.predict_proba_from_latent(np.zeros((2, 3)))


@pytest.mark.parametrize("kind", [SVGPClassifier, AdditiveGPClassifier, HybridSVGPClassifier])
def test_probabilities_are_by_the_likelihood_of_the_fit(kind):
    X, y = ring(40, 2)
    model = kind(max_iter=200, random_state=0).fit(X, y)
    expected, latents = model.predict_proba(X), model.sample_latent(X[:3])
    given = model.predict_proba_from_latent(latents)
    model.set_params(likelihood="probit")
    assert_array_equal(model.predict_proba(X), expected)
    assert_array_equal(model.predict_proba_from_latent(latents), given)


@pytest.mark.parametrize("kind", [SVGPRegressor, AdditiveGPRegressor, HybridSVGPRegressor])
def test_draws_are_by_the_likelihood_of_the_fit(kind):
    X, y = waves(40, 2)
    model = kind(max_iter=200, random_state=0).fit(X, y)
    expected = model.sample_y(X[:3])
    assert_array_equal(model.set_params(likelihood="laplace").sample_y(X[:3]), expected)
