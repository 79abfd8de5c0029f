"""Gaussian expectations and the probability of being the largest of several Gaussians."""

import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from numpy.polynomial.legendre import leggauss
from problems import t64
from scipy.integrate import quad
from scipy.special import log_expit, ndtr
from scipy.stats import norm

from skgpsvm import _quadrature
from skgpsvm._quadrature import (
    argmax_probability,
    expect,
    gauss_hermite,
    log_expect,
    normal_cdf,
    normal_points,
    safe_std,
)

# Expectations


def test_rule_integrates_normal_moments_exactly():
    x, w = gauss_hermite(10, t64([]))
    # Moments of N(0, 1) are exact up to degree 2 * 10 - 1; that of degree 18 is 17!! = 3.4e7.
    for k in range(20):
        moment = math.prod(range(k - 1, 0, -2)) if k % 2 == 0 else 0
        assert float(w @ x**k) == pytest.approx(moment, rel=1e-12, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expectation_of_an_exponential(dtype):
    mean = torch.tensor([[0.3], [-2.0]], dtype=dtype)
    var = torch.tensor([0.5, 2.0, 0.0], dtype=dtype)
    value = expect(torch.exp, mean, var)
    assert value.dtype == dtype
    torch.testing.assert_close(value, torch.exp(mean + 0.5 * var), rtol=2e-6, atol=0)


def test_function_gets_a_leading_axis_and_may_reduce_others():
    mean, var = t64([[0.3, -1.0]] * 4), t64([[0.2, 0.5]] * 4)

    def total_square(f):
        assert f.shape == (7, 4, 2)
        return f.square().sum(-1)

    value = expect(total_square, mean, var, n_nodes=7)
    # This is exact up to the variance's floor of 1e-12.
    torch.testing.assert_close(value, (mean**2 + var).sum(-1), rtol=0, atol=1e-11)


def test_derivative_in_the_variance_holds_at_zero():
    # d/dvar E[cos f] = -cos(mean) / 2; differences over a width of 1e-6 have at least four digits.
    mean, var = t64([0.0, 0.7, 2.0]), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    expect(torch.cos, mean, var).sum().backward()
    torch.testing.assert_close(var.grad, -0.5 * mean.cos(), rtol=0, atol=1e-4)


def test_safe_std_is_the_square_root():
    var = t64([0.0, 1e-6, 1.0, 1e12])
    torch.testing.assert_close(safe_std(var), var.sqrt(), rtol=1e-6, atol=1e-6)


def test_log_expectation_neither_under_nor_overflows():
    mean, var = t64([0.3, -2.0]), t64([0.5, 2.0])
    for shift in (-1e4, 0.0, 1e4):
        value = log_expect(lambda f, shift=shift: f + shift, mean, var)
        # log E[exp f] = mean + var / 2; the error is rounding of 1e4.
        torch.testing.assert_close(value, shift + mean + 0.5 * var, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("var", "error"), [(1.0, 1e-13), (10.0, 1e-5), (100.0, 2e-2)])
def test_documented_error_for_log_sigmoid(var, error):
    for mean in (-3.0, 0.0, 1.0, 5.0):
        std = math.sqrt(var)
        exact, _ = quad(
            lambda f, mean=mean, std=std: log_expit(f) * norm.pdf(f, mean, std),
            mean - 12 * std,
            mean + 12 * std,
            points=[0.0],
            epsabs=1e-14,
            limit=200,
        )
        value = expect(torch.nn.functional.logsigmoid, t64(mean), t64(var))
        # The variance's floor of 1e-12 adds less than that.
        assert abs(float(value) - exact) < error + 1e-12


def test_nodes_made_in_inference_mode_serve_training():
    with torch.inference_mode():
        expect(torch.square, t64(0.0), t64(1.0), n_nodes=11)
    mean = t64(0.5).requires_grad_()
    expect(torch.square, mean, t64(1.0), n_nodes=11).backward()
    assert float(mean.grad) == pytest.approx(1.0, abs=1e-12)


def test_normal_distribution_function_in_both_tails():
    x = torch.linspace(-37, 37, 75, dtype=torch.float64)
    # The tail is exp(-700), and the error is rounding of the exponent, 700 * 1e-16.
    np.testing.assert_allclose(normal_cdf(x), ndtr(x.numpy()), rtol=1e-12)


# Points of equal weight


@pytest.mark.parametrize("c", [1, 2, 3, 10])
def test_normal_points_have_the_moments_of_the_standard_normal(c):
    points = normal_points(64, c, t64([]))
    assert points.shape == (128, c)
    # Mirror images and scaling make these exact up to rounding.
    np.testing.assert_allclose(points.mean(0), 0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(points.square().mean(0), 1, rtol=1e-14)
    assert not points[:64].add(points[64:]).any()
    # The tolerance is for the sequence's error. Covariances of random points would err by at least
    # 0.12 (one standard deviation of 64 pairs), and fourth moments of 3 by 1.2.
    cov = points.T @ points / 128
    np.testing.assert_allclose(cov, np.eye(c), rtol=0, atol=0.25)
    assert cov.sub(torch.eye(c)).abs().sum() <= 0.06 * c**2
    np.testing.assert_allclose(points.pow(4).mean(0), 3, rtol=0, atol=1.3)


def test_more_normal_points_integrate_better():
    slope = t64([0.5, -0.3, 0.2])
    exact = math.exp(0.5 * slope.square().sum().item())
    errors = [
        abs((normal_points(n, 3, slope) @ slope).exp().mean().item() - exact)
        for n in (16, 256, 4096)
    ]
    # Random pairs of points would err by 0.2 / sqrt(n): 0.05, 0.012 and 0.003.
    assert errors[0] < 0.03
    assert errors[1] < 0.005
    assert errors[2] < 0.0015


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_points_are_the_same_each_time_and_of_the_dtype_asked_for(dtype):
    before = torch.random.get_rng_state()
    a, b = (normal_points(8, 3, torch.zeros(1, dtype=dtype)) for _ in range(2))
    assert torch.equal(a, b)
    assert a.dtype == dtype
    # Global random numbers do not change, nor do the points if a copy is overwritten.
    assert torch.equal(torch.random.get_rng_state(), before)
    a.zero_()
    assert torch.equal(normal_points(8, 3, b), b)


# Probability of being the largest


def argmax_reference(mean, std):
    """Return it by a Gauss–Legendre rule with break points at multiples of all components' std."""
    multiples = np.array([-9, -7, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 9])
    edges = np.unique(mean[:, None] + std[:, None] * multiples)
    x, w = leggauss(60)
    half = 0.5 * np.diff(edges)[:, None]
    z, weight = (edges[:-1, None] + half * (x + 1)).ravel(), (half * w).ravel()
    u = (z - mean[:, None]) / std[:, None]
    cdf, pdf = ndtr(u), norm.pdf(u) / std[:, None]
    return np.array([(weight * pdf[j] * np.delete(cdf, j, 0).prod(0)).sum() for j in range(len(u))])


@pytest.mark.parametrize(
    ("x", "expected", "variation_ratio"),
    [
        (0.25, [0.3540835603, 0.4155110665, 0.2304053732], 0.5844889335),
        (3.0, [0.2983564225, 0.3519963784, 0.3496471991], 0.6480036216),
        (50.0, [1 / 3, 1 / 3, 1 / 3], 0.6666666667),
    ],
)
def test_published_probabilities_of_problem_t1(x, expected, variation_ratio):
    T1 = oracles.T1
    _, kappa, kt = oracles.precompute(np.array([[x]]), T1.Z)
    mean, var = map(torch.tensor, oracles.latent_moments(kappa, kt, T1.mu, T1.Sig))
    probability = argmax_probability(mean, var)
    # The published numbers have ten digits.
    np.testing.assert_allclose(probability[0], expected, rtol=0, atol=2e-10)
    assert 1 - float(probability.max()) == pytest.approx(variation_ratio, abs=2e-10)


def test_published_probabilities_of_the_true_class():
    T1 = oracles.T1
    _, kappa, kt = oracles.precompute(T1.X, T1.Z)
    mean, var = map(torch.tensor, oracles.latent_moments(kappa, kt, T1.mu, T1.Sig))
    true = argmax_probability(mean, var)[range(4), T1.y]
    expected = [0.6133345924, 0.3765201912, 0.4510598396, 0.3996388658]
    np.testing.assert_allclose(true, expected, rtol=0, atol=2e-10)


def test_widest_class_can_be_likeliest_without_the_largest_mean():
    probability = argmax_probability(t64([[0.0, 0.1, 0.1]]), t64([[4.0, 0.01, 0.01]]))
    # The published numbers have four digits.
    np.testing.assert_allclose(probability, [[0.4689, 0.2656, 0.2656]], rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    ("n_classes", "ratio"),
    [*itertools.product([3, 4, 10], [1.0, 2.0, 3.0, 10.0, 100.0, 1e4, 1e6]), (30, 100.0)],
)
def test_error_is_below_1e_9_at_any_ratio_of_standard_deviations(n_classes, ratio):
    rng = np.random.default_rng(int(n_classes * ratio))
    for draw in range(6):
        # Scales are in two groups or spread out, with means at the scale of one component.
        exponent = rng.random(n_classes) if draw % 2 else rng.random(n_classes) < 0.5
        std = ratio ** -np.asarray(exponent, dtype=float)
        mean = rng.normal(size=n_classes) * (1.0, std.min(), std.mean())[draw % 3]
        value = argmax_probability(t64(mean)[None], t64(std**2)[None])[0]
        np.testing.assert_allclose(value, argmax_reference(mean, std), rtol=0, atol=1e-9)


def test_agrees_with_monte_carlo():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=5), np.array([0.02, 2.0, 0.5, 1.0, 0.1])
    n_samples = 400_000
    largest = (mean + std * rng.standard_normal((n_samples, 5))).argmax(1)
    frequency = np.bincount(largest, minlength=5) / n_samples
    probability = argmax_probability(t64(mean)[None], t64(std**2)[None])[0].numpy()
    standard_error = np.sqrt(probability * (1 - probability) / n_samples)
    # Four standard errors, plus one count for vanishing probabilities.
    assert (np.abs(frequency - probability) <= 4 * standard_error + 1 / n_samples).all()


def test_two_classes_in_closed_form():
    probability = argmax_probability(t64([[0.2, -0.3]]), t64([[0.5, 1.1]]))
    assert float(probability[0, 1]) == pytest.approx(0.3463163920, abs=1e-10)
    # A third class that never wins changes nothing.
    three = argmax_probability(t64([[0.2, -0.3, -40.0]]), t64([[0.5, 1.1, 1.0]]))
    torch.testing.assert_close(three[:, :2], probability, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("mean", "var", "expected"),
    [
        ([1.0, 0.0], [0.0, 0.0], [1.0, 0.0]),
        ([1.0, 1.0], [0.0, 0.0], [0.5, 0.5]),
        ([1.0, 0.0], [0.0, 4.0], [ndtr(0.5), ndtr(-0.5)]),
        ([1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.5]),
        ([3.0, 0.0, 0.0], [0.0, 1e-4, 0.0], [1.0, 0.0, 0.0]),
        ([0.0, 0.5, -1.0], [0.0, 1.0, 0.0], [ndtr(-0.5), ndtr(0.5), 0.0]),
        ([0.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.5 * ndtr(-0.5), ndtr(0.5), 0.5 * ndtr(-0.5)]),
        ([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.25] * 4),
        ([2.0], [1.0], [1.0]),
    ],
)
def test_point_masses_and_ties(mean, var, expected):
    mean, var = t64([mean]).requires_grad_(), t64([var]).requires_grad_()
    probability = argmax_probability(mean, var)
    # Point masses have standard deviations of 1e-6: the maximum of ties is 6e-7 higher.
    np.testing.assert_allclose(probability.detach()[0], expected, rtol=0, atol=1e-6)
    probability[0, 0].backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(var.grad).all()


def random_rows(b, c, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(b, c, generator=generator, dtype=torch.float64)
    return mean, 10 ** (-4 * torch.rand(b, c, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("n_classes", [1, 2, 3, 8, 200])
def test_rows_sum_to_one(n_classes):
    probability = argmax_probability(*random_rows(50, n_classes))
    assert (probability >= 0).all()
    # The error is rounding of a normalized row.
    torch.testing.assert_close(
        probability.sum(-1), torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("n_classes", [2, 3, 8])
def test_a_row_does_not_depend_on_its_batch(n_classes, monkeypatch):
    mean, var = random_rows(40, n_classes)
    run_on_all_ranks = argmax_probability(mean, var)
    alone = torch.cat([argmax_probability(mean[[i]], var[[i]]) for i in range(40)])
    torch.testing.assert_close(alone, run_on_all_ranks, rtol=0, atol=1e-14)
    monkeypatch.setattr(_quadrature, "CACHED_BLOCK", 1000)
    torch.testing.assert_close(argmax_probability(mean, var), run_on_all_ranks, rtol=0, atol=1e-14)


def test_permuting_classes_permutes_probabilities():
    mean, var = random_rows(20, 6)
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    torch.testing.assert_close(
        argmax_probability(mean[:, order], var[:, order]),
        argmax_probability(mean, var)[:, order],
        rtol=0,
        atol=1e-14,
    )


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_units_do_not_matter(scale):
    mean, var = random_rows(20, 4)
    torch.testing.assert_close(
        argmax_probability(scale * mean, scale**2 * var),
        argmax_probability(mean, var),
        rtol=0,
        atol=1e-12,
    )


def test_float32_in_and_out():
    mean, var = random_rows(20, 4)
    probability = argmax_probability(mean.float(), var.float())
    assert probability.dtype == torch.float32
    # Rounding the inputs changes means by 1e-7, relative to standard deviations of 1e-2.
    torch.testing.assert_close(
        probability.double(), argmax_probability(mean, var), atol=1e-4, rtol=0
    )


def test_no_rows():
    assert argmax_probability(torch.empty(0, 3), torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_gradients(n_classes):
    mean, var = random_rows(5, n_classes, seed=3)
    assert torch.autograd.gradcheck(
        argmax_probability, (mean.requires_grad_(), (var + 0.1).requires_grad_()), atol=1e-6
    )
