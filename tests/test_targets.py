"""Distributions of y in a regression: moments, intervals and draws of every likelihood."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import laplace, norm, t

from skgpsvm._families import FAMILIES
from skgpsvm._targets import (
    LIKELIHOODS,
    STANDARD_NOISE,
    VARYING_NOISE,
    half_widths,
    target_distribution,
)

NOISE = {"student_t": t(4, scale=0.5**0.5), "laplace": laplace(scale=0.5**0.5)}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_noise_is_what_its_variance_says(name):
    _, variance = LIKELIHOODS[name](0.3).predict(*torch.zeros(2, 1, 1))
    assert_allclose(variance.item(), 0.3, rtol=1e-6)
    draws = STANDARD_NOISE[name](np.random.RandomState(0), 200_000)
    # The sample variance of t with four degrees of freedom converges slowly.
    assert_allclose([draws.mean(), draws.var()], [0, 1], atol=0.05)


@pytest.mark.parametrize("likelihood", NOISE)
@pytest.mark.parametrize(("level", "tol"), [(0.5, 1e-4), (0.9, 1e-4), (0.99, 2e-4), (0.999, 2e-3)])
def test_quantiles_of_heavy_tails_are_those_of_numerical_convolution(likelihood, level, tol):
    noise, p = NOISE[likelihood], (1 + level) / 2
    variance = np.array([[0.0], [0.01], [0.3], [4.0], [1e4]])
    found = half_widths(likelihood, variance, 4.0, level)[:, 0] / 2
    assert found[0] == pytest.approx(noise.ppf(p), rel=tol)
    for q, std in zip(found[1:], np.sqrt(variance[1:, 0]) / 2, strict=True):
        probability = 0.0
        for low, high in ((-10, q / std), (q / std, 10)):
            if low < high and high > -10 and low < 10:
                probability += quad(
                    lambda x, q=q, std=std: noise.cdf(q - std * x) * norm.pdf(x),
                    max(low, -10),
                    min(high, 10),
                    limit=200,
                )[0]
        assert probability == pytest.approx(p, abs=5 * tol * (1 - p))


@pytest.mark.parametrize("likelihood", [*LIKELIHOODS, *VARYING_NOISE, *FAMILIES])
def test_moments_and_intervals_are_those_of_draws(likelihood):
    parameters, rng = np.array([0.3, 0.1]), np.random.default_rng(0)
    mean = np.array([[0.4, -0.2, 0.3, -0.5], [1.2, 0.1, -1.0, 0.6]])
    variance = np.array([[0.2, 0.1, 0.1, 0.3], [0.05, 0.4, 0.2, 0.1]])
    if likelihood not in VARYING_NOISE:
        mean, variance = mean[:, :2], variance[:, :2]
    distribution = target_distribution(likelihood, parameters)
    latents = mean + np.sqrt(variance) * rng.standard_normal((200_000, *mean.shape))
    draws = distribution.draw(latents, np.random.RandomState(0))
    assert draws.shape == (200_000, 2, 2)
    found = distribution.moments(mean, variance)
    assert_allclose(found[0], draws.mean(0), atol=5 * np.sqrt(found[1].max() / len(draws)))
    assert_allclose(found[1], draws.var(0), rtol=0.05)
    lower, upper = distribution.interval(mean, variance, 0.8)
    held = ((lower <= draws) & (draws <= upper)).mean(0)
    if getattr(FAMILIES.get(likelihood), "is_count", False):
        assert (held > 0.8 - 0.005).all()  # quantiles of counts hold more
    else:
        assert_allclose(held, 0.8, atol=0.005)
    low, high = distribution.limits
    assert (draws >= low).all()
    assert (draws <= high).all()


@pytest.mark.parametrize("likelihood", [*LIKELIHOODS, *VARYING_NOISE, *FAMILIES])
def test_a_mean_that_does_not_vary_explains_nothing(likelihood):
    rng = np.random.default_rng(0)
    distribution, mean = target_distribution(likelihood, np.array([0.3])), rng.normal(size=(50, 1))
    y = distribution.draw(np.c_[mean, mean] if likelihood in VARYING_NOISE else mean, rng)
    y = y.clip(1e-3, distribution.limits[1] - 1e-3)
    assert distribution.explained(y, 0.0, mean, np.ones(50)) > 1
    nothing = distribution.explained(y, 0.0, np.full((50, 1), 0.2), np.ones(50))
    assert nothing == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("likelihood", FAMILIES)
def test_draws_are_finite_and_have_the_mean_however_large_it_is(likelihood):
    distribution, rng = target_distribution(likelihood, np.array([0.3])), np.random.RandomState(0)
    latents = np.repeat([[0.5], [30.0], [60.0]], 20_000, axis=1)[:, :, None]
    draws, means = (distribution.draw(latents, rng), FAMILIES[likelihood].link.inverse(latents))
    assert_allclose(draws.mean(1), means.mean(1), rtol=0.03)
    extreme = distribution.draw(np.array([[-1e4], [1e4]]), rng)
    assert np.isfinite(extreme).all()
    assert extreme[0] < 1e-9
    assert extreme[1] > 0.999
