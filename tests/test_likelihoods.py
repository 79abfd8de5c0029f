"""Likelihood terms against published numbers, closed forms, quadrature and each other."""

import inspect
import itertools
import math
import typing

import numpy as np
import oracles
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_all_close, t64
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import erfcx, expit, log_ndtr, ndtr
from scipy.stats import laplace, norm, poisson
from scipy.stats import t as student

from skgpsvm import likelihoods
from skgpsvm._quadrature import gauss_hermite, normal_points
from skgpsvm.likelihoods import (
    Beta,
    BinaryHinge,
    Gamma,
    Gaussian,
    Heteroscedastic,
    Laplace,
    Likelihood,
    Logistic,
    MulticlassHinge,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Probit,
    RobustMax,
    Softmax,
    StudentT,
    expected_hinge,
)

LIKELIHOODS = {
    "Gaussian": lambda: Gaussian(0.3),
    "Heteroscedastic": lambda: Heteroscedastic(0.7),
    "Laplace": lambda: Laplace(0.7),
    "StudentT": lambda: StudentT(0.7),
    "Poisson": Poisson,
    "NegativeBinomial": lambda: NegativeBinomial(0.6),
    "Beta": lambda: Beta(0.3),
    "Gamma": lambda: Gamma(0.4),
    "Probit": Probit,
    "Ordinal": lambda: Ordinal([-0.4, 0.9]),
    "Logistic": Logistic,
    "Softmax": Softmax,
    "RobustMax": lambda: RobustMax(0.02),
    "BinaryHinge": BinaryHinge,
    "MulticlassHinge": MulticlassHinge,
}
FAMILIES = (Poisson, NegativeBinomial, Gamma, Beta)
REGRESSION = (Gaussian, Heteroscedastic, Laplace, StudentT, *FAMILIES)
MULTICLASS = (MulticlassHinge, Softmax, RobustMax)


@pytest.fixture(params=LIKELIHOODS)
def likelihood(request):
    return LIKELIHOODS[request.param]()


def rows(likelihood, b=12, dtype=torch.float64, seed=0):
    """Return observations, means and variances of b rows."""
    generator = torch.Generator().manual_seed(seed)
    n_latents = 2 if isinstance(likelihood, REGRESSION) else 1
    n_latents = 3 if isinstance(likelihood, MULTICLASS) else n_latents
    mean = 1.5 * torch.randn(b, n_latents, generator=generator, dtype=torch.float64)
    var = 0.05 + 2 * torch.rand(b, n_latents, generator=generator, dtype=torch.float64)
    if isinstance(likelihood, REGRESSION):
        t = n_latents // likelihood.latents_per_output
        y = torch.randn(b, t, generator=generator, dtype=torch.float64).to(dtype)
    else:
        n_classes = getattr(likelihood, "n_classes", 2)
        y = torch.randint(max(n_latents, n_classes), (b,), generator=generator)
    if isinstance(likelihood, Heteroscedastic):
        mean[:, 1] /= 2
    if isinstance(likelihood, FAMILIES):
        y, mean = (1.5 * y).square().floor(), mean / 2
    if isinstance(likelihood, Beta):
        y = (y + 1) / (y + 3)
    if isinstance(likelihood, Gamma):
        y = y + 0.5
        mean = mean / 2 + y.log()
    return y, mean.to(dtype), var.to(dtype)


# Properties of every likelihood


def test_every_likelihood_is_tested_here():
    concrete = {
        value
        for value in vars(likelihoods).values()
        if inspect.isclass(value)
        and issubclass(value, Likelihood)
        and not inspect.isabstract(value)
        and not value.__name__.startswith("_")
    }
    assert {type(make()) for make in LIKELIHOODS.values()} == concrete
    assert {value.__name__ for value in concrete} <= set(likelihoods.__all__)


@pytest.mark.parametrize("method", ["expected_log_prob", "log_marginal"])
def test_zero_variance_gives_log_prob(likelihood, method):
    y, mean, var = rows(likelihood)
    value = getattr(likelihood, method)(y, mean, torch.zeros_like(var))
    # Variances are floored at 1e-12, and curvatures of order one.
    torch.testing.assert_close(value, likelihood.log_prob(y, mean), rtol=0, atol=1e-10)


def test_jensen(likelihood):
    y, mean, var = rows(likelihood, b=200)
    assert (
        likelihood.expected_log_prob(y, mean, var) <= likelihood.log_marginal(y, mean, var)
    ).all()


@pytest.mark.parametrize("method", ["log_prob", "expected_log_prob", "log_marginal"])
def test_leading_axes_are_samples_and_rows_do_not_mix(likelihood, method):
    y, mean, var = rows(likelihood)
    moments = (mean,) if method == "log_prob" else (mean, var)
    function = getattr(likelihood, method)
    run_on_all_ranks = function(y, *(torch.stack([value, value + 1]) for value in moments))
    assert run_on_all_ranks.shape == (2, 12)
    for s in range(2):
        alone = [function(y[[i]], *(value[[i]] + s for value in moments)) for i in range(12)]
        torch.testing.assert_close(run_on_all_ranks[s], torch.cat(alone), rtol=1e-12, atol=0)


@pytest.mark.parametrize("method", ["expected_log_prob", "log_marginal"])
def test_float32_keeps_its_dtype(likelihood, method):
    y, mean, var = rows(likelihood, dtype=torch.float32)
    value = getattr(likelihood, method)(y, mean, var)
    exact = getattr(likelihood, method)(
        y.double() if y.is_floating_point() else y, mean.double(), var.double()
    )
    assert value.dtype == torch.float32
    # The error is a few roundings of 6e-8, and variances are floored at 1e-8.
    torch.testing.assert_close(value.double(), exact, rtol=3e-6, atol=1e-6)
    for prediction in likelihood.predict(mean, var):
        assert prediction.dtype == torch.float32


@pytest.mark.parametrize("method", ["expected_log_prob", "log_marginal"])
def test_first_and_second_derivatives(likelihood, method):
    y, mean, var = rows(likelihood, b=4, seed=1)
    inputs = (mean.requires_grad_(), var.requires_grad_())

    def function(mean, var):
        return getattr(likelihood, method)(y, mean, var)

    assert torch.autograd.gradcheck(function, inputs)
    # Expectation propagation needs the second derivative in the mean.
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["expected_log_prob", "log_marginal"])
@pytest.mark.parametrize("var", [0.0, 1e-10, 1.0, 1e8])
def test_values_and_gradients_are_finite_far_out(likelihood, method, dtype, var):
    y, mean, _ = rows(likelihood, dtype=dtype)
    for size in (0.0, 1.0, 1e4):
        m = (size * mean).requires_grad_()
        v = torch.full_like(mean, var, requires_grad=True)
        value = getattr(likelihood, method)(y, m, v)
        value.sum().backward()
        for tensor in (value, m.grad, v.grad):
            assert torch.isfinite(tensor).all()


def test_predictions_are_distributions(likelihood):
    y, mean, var = rows(likelihood)
    prediction = likelihood.predict(mean, var)
    annotation = typing.get_type_hints(likelihood.predict)["return"]
    assert isinstance(prediction, typing.get_origin(annotation) or annotation)
    if isinstance(likelihood, REGRESSION):
        predicted_mean, predicted_var = prediction
        if isinstance(likelihood, FAMILIES):
            mean = torch.exp(mean + var / 2)
            var = 0.4 * mean.square() if isinstance(likelihood, Gamma) else predicted_mean
        if isinstance(likelihood, Beta):
            mean, var = predicted_mean, 0.3 / 1.3 * predicted_mean * (1 - predicted_mean)
        t = y.shape[1]
        mean, var = mean[:, :t], var[:, :t]
        assert torch.equal(predicted_mean, mean)
        assert (predicted_var > var).all()
    else:
        assert prediction.shape == (12, int(y.max()) + 1)
        assert (prediction >= 0).all()
        torch.testing.assert_close(prediction.sum(-1), torch.ones(12).double(), rtol=0, atol=1e-14)


def test_parameters_are_named_and_trainable(likelihood):
    names = {name for name, _ in likelihood.named_parameters()}
    expected = {
        "Gaussian": {"log_noise_var"},
        "Heteroscedastic": {"log_noise_var"},
        "Laplace": {"log_scale"},
        "StudentT": {"log_scale"},
        "NegativeBinomial": {"log_dispersion"},
        "Gamma": {"log_dispersion"},
        "Beta": {"log_dispersion"},
        "Ordinal": {"center", "log_widths"},
    }
    assert names == expected.get(type(likelihood).__name__, set())
    y, mean, var = rows(likelihood)
    for method in ("expected_log_prob", "log_marginal"):
        for parameter in likelihood.parameters():
            value = getattr(likelihood, method)(y, mean, var).sum()
            (gradient,) = torch.autograd.grad(value, parameter)
            step = 1e-6
            with torch.no_grad():
                parameter += step
                up = getattr(likelihood, method)(y, mean, var).sum()
                parameter -= 2 * step
                down = getattr(likelihood, method)(y, mean, var).sum()
                parameter += step
            # The error of central differences is step^2, and rounding of 1e-15 / step.
            assert float(gradient) == pytest.approx(float(up - down) / (2 * step), rel=1e-6)


# Closed forms against adaptive quadrature


def gaussian_expectation(function, mean, var, kinks):
    std = math.sqrt(var)
    low, high = mean - 12 * std, mean + 12 * std
    inside = [kink for kink in kinks if low < kink < high]
    value, _ = quad(
        lambda f: function(f) * norm.pdf(f, mean, std),
        low,
        high,
        points=[mean, *inside],
        epsabs=1e-13,
        epsrel=1e-12,
        limit=200,
    )
    return value


@pytest.mark.parametrize(
    "name",
    ["Gaussian", "Laplace", "Poisson", "Gamma", "Probit", "Ordinal", "Logistic", "BinaryHinge"],
)
def test_closed_forms_equal_quadrature(name):
    likelihood = LIKELIHOODS[name]()
    y, mean, var = rows(likelihood, b=6)
    expected = likelihood.expected_log_prob(y, mean, var).detach()
    marginal = likelihood.log_marginal(y, mean, var).detach()
    for i in range(6):
        row_expected, row_marginal = 0.0, 0.0
        for j in range(mean.shape[1]):
            # One column at a time: columns are independent.
            y_ij = y[[i], j : j + 1] if y.ndim == 2 else y[[i]]

            def log_prob(f, y_ij=y_ij):
                return float(likelihood.log_prob(y_ij, t64([[f]])).detach())

            kinks = [float(y_ij)] if y.ndim == 2 else [-1.0, 1.0]
            moments = float(mean[i, j]), float(var[i, j])
            row_expected += gaussian_expectation(log_prob, *moments, kinks)
            row_marginal += math.log(
                gaussian_expectation(lambda f, g=log_prob: math.exp(g(f)), *moments, kinks)
            )
        # Adaptive quadrature errs by 1e-12, 32 nodes by up to 1e-7 at a variance of 2.
        assert float(marginal[i]) == pytest.approx(row_marginal, abs=1e-7)
        if name == "BinaryHinge":
            # The value is the collapsed bound of the scale mixture, not the expectation itself.
            assert float(expected[i]) < row_expected
        else:
            assert float(expected[i]) == pytest.approx(row_expected, abs=1e-7)


def test_exact_marginals_to_all_digits():
    y, mean, var = rows(Gaussian(0.3))
    value = Gaussian(0.3).log_marginal(y, mean, var).detach()
    exact = norm.logpdf(y, mean, (var + 0.3).sqrt()).sum(-1)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    np.testing.assert_allclose(
        Laplace(0.7).log_prob(y, mean).detach(), laplace.logpdf(y, mean, 0.7).sum(-1)
    )


def test_gaussian_predictive_variance_includes_the_noise():
    mean, var = t64([[0.5]]), t64([[2.0]])
    assert float(Gaussian(0.3).predict(mean, var)[1].detach()) == pytest.approx(2.3)
    # The variance of a Laplace variable is twice its squared scale.
    assert float(Laplace(0.7).predict(mean, var)[1].detach()) == pytest.approx(2.0 + 2 * 0.49)


@pytest.mark.parametrize("var", [1e-4, 1.0, 1e6])
def test_laplace_marginal_is_accurate_for_any_variance(var):
    # With noise of 1e-3 and a variance of 1e6, the result is almost Gaussian; and vice versa.
    y, mean = t64([[0.5]]), t64([[-0.2]])
    if var == 1e6:
        value = Laplace(1e-3).log_marginal(y, mean, t64([[var]]))
        assert float(value.detach()) == pytest.approx(norm.logpdf(0.7, 0, 1e3), abs=1e-11)
    value = Laplace(1e3).log_marginal(y, mean, t64([[var]])).detach()
    assert float(value) == pytest.approx(laplace.logpdf(0.7, 0, 1e3), abs=2 * math.sqrt(var) / 1e3)


def test_probit_probability():
    probability = Probit().predict(t64([[0.7]]), t64([[1.9]]))
    # The published numbers have six digits.
    assert float(probability[0, 1]) == pytest.approx(0.659484, abs=5e-7)


def test_probit_far_tail():
    # In this range, torch's own derivatives of log Phi lose all digits.
    z = t64([[-1e4], [-300.0], [-40.0], [-5.0], [-0.0], [5.0], [30.0]]).requires_grad_()
    value = Probit().log_prob(torch.ones(7, dtype=torch.int64), z)
    (first,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    x = z.detach().numpy()
    np.testing.assert_allclose(value.detach(), log_ndtr(x[:, 0]), rtol=1e-12)
    ratio = math.sqrt(2 / math.pi) / erfcx(-x / math.sqrt(2))
    np.testing.assert_allclose(first.detach(), ratio, rtol=1e-12)
    # In the far tail the limit is -1, up to 1 / z^2.
    exact = np.where(x < -100, -1.0, -ratio * (ratio + x))
    np.testing.assert_allclose(second, exact, rtol=2e-5, atol=1e-12)
    y = torch.zeros(1, dtype=torch.int64)
    z = torch.tensor([[1e5]], requires_grad=True)
    Probit().log_prob(y, z).backward()
    assert float(z.grad) == pytest.approx(-1e5, rel=1e-6)


@pytest.mark.parametrize("make", [Probit, Logistic])
def test_proper_binary_likelihoods_sum_to_one(make):
    f = torch.linspace(-30, 30, 61, dtype=torch.float64)[:, None]
    total = sum(make().log_prob(torch.full((61,), code), f).exp() for code in (0, 1))
    torch.testing.assert_close(total, torch.ones(61, dtype=torch.float64), rtol=0, atol=1e-15)


def test_logistic_predictions_are_symmetric():
    mean, var = t64([[0.7], [3.0]]), t64([[1.9], [0.1]])
    torch.testing.assert_close(
        Logistic().predict(mean, var), Logistic().predict(-mean, var).flip(-1)
    )


# Noise that varies


class SlowHeteroscedastic(Heteroscedastic):
    """`Heteroscedastic` with the expectations of the base class, by quadrature."""

    expected_log_prob = Likelihood.expected_log_prob
    expected_terms = Likelihood.expected_terms
    log_marginal = Likelihood.log_marginal


def test_default_quadrature_of_two_latents_equals_closed_forms():
    likelihood, slow = Heteroscedastic(0.3), SlowHeteroscedastic(0.3)
    y, mean, var = rows(likelihood, b=20)
    for method, share in (
        ("expected_log_prob", 1.0),
        ("expected_derivatives", 1.0),
        ("log_marginal", 0.01),  # beyond, the density is too narrow for twenty nodes
    ):
        parts = y, mean, share * var
        found, expected = (getattr(each, method)(*parts) for each in (slow, likelihood))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_grid_of_two_latents_keeps_outputs_apart():
    likelihood = SlowHeteroscedastic(0.3)
    one = [rows(likelihood, seed=seed) for seed in (0, 1)]
    both = [torch.cat([part[0][:, [0]], part[1][:, [0]]], 1) for part in zip(*one, strict=True)]
    for j in (1, 2):
        of_noise = [part[j][:, [1]] for part in one]
        both[j] = torch.cat([both[j], *of_noise], 1)
    found = likelihood.expected_log_prob(*both)
    expected = sum(likelihood.expected_log_prob(*part) for part in one)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shift", [0.0, -40.0])  # on either side of where it becomes linear
def test_derivatives_of_varying_noise_are_those_of_its_expectation(shift):
    likelihood = Heteroscedastic(0.3)
    y, mean, var = rows(likelihood)
    mean = mean + t64([0.0, shift])
    closed = likelihood.expected_derivatives(y, mean, var)
    found = Likelihood.expected_terms(likelihood, y, mean, var)[1:]
    torch.testing.assert_close(closed, found, rtol=1e-12, atol=1e-12)
    assert (closed[1] < 0).all()


def test_varying_noise_by_nested_quadrature():
    likelihood = Heteroscedastic(0.3)
    y, mean, var = rows(likelihood, b=4)
    marginal = likelihood.log_marginal(y, mean, var).detach()
    predicted = likelihood.predict(mean, var)[1].detach()
    for i in range(4):
        (m, mu), (v, nu) = mean[i].tolist(), var[i].tolist()

        def density(g, i=i, m=m, v=v):
            return norm.pdf(float(y[i, 0]), m, math.sqrt(v + 0.3 * math.exp(g)))

        exact = gaussian_expectation(density, mu, nu, [])
        assert float(marginal[i]) == pytest.approx(math.log(exact), abs=1e-4)
        noise = gaussian_expectation(lambda g: 0.3 * math.exp(g), mu, nu, [])
        assert float(predicted[i]) == pytest.approx(v + noise, rel=1e-9)


# Counts, amounts and proportions

# The distributions of scipy at a latent value, with the dispersions above.
DISTRIBUTIONS = {
    "Poisson": lambda f: stats.poisson(np.exp(f)),
    "NegativeBinomial": lambda f: stats.nbinom(1 / 0.6, 1 / (1 + 0.6 * np.exp(f))),
    "Gamma": lambda f: stats.gamma(1 / 0.4, scale=0.4 * np.exp(f)),
    "Beta": lambda f: stats.beta(expit(f) / 0.3, expit(-f) / 0.3),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_rates_have_the_distributions_of_scipy(name):
    likelihood, distribution = LIKELIHOODS[name](), DISTRIBUTIONS[name]
    y, f, var = (part[:, :1] for part in rows(likelihood))
    given, values = distribution(f.numpy()), y.numpy()
    log_prob = given.logpmf(values) if hasattr(given, "logpmf") else given.logpdf(values)
    np.testing.assert_allclose(likelihood.log_prob(y, f).detach(), log_prob[:, 0], rtol=1e-12)
    moments = [part.detach().numpy() for part in likelihood.predict(f, torch.zeros_like(f))]
    np.testing.assert_allclose(moments, given.stats("mv"), rtol=1e-12)
    # The law of total variance, by quadrature over f.
    nodes, weights = gauss_hermite(32, f)
    mean, variance = distribution((f + var.sqrt() * nodes).numpy()).stats("mv")
    expected = mean @ weights.numpy()
    total = (variance + mean**2) @ weights.numpy() - expected**2
    moments = [part.detach().numpy()[:, 0] for part in likelihood.predict(f, var)]
    np.testing.assert_allclose(moments, (expected, total), rtol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 60.0])  # on either side of where the rate becomes linear
@pytest.mark.parametrize("name", ["Poisson", "NegativeBinomial", "Gamma"])
def test_derivatives_of_rates_are_those_of_their_expectation(name, shift):
    likelihood = LIKELIHOODS[name]()
    y, mean, var = rows(likelihood)
    shift = -shift if name == "Gamma" else shift
    closed = likelihood.expected_derivatives(y, mean + shift, var)
    by_autograd = Likelihood.expected_terms(likelihood, y, mean + shift, var)[1:]
    # The second derivative of the quadrature in the variance errs by 1e-5.
    tolerance = 1e-4 if name == "NegativeBinomial" else 1e-14
    for value, expected in zip(closed, by_autograd, strict=True):
        torch.testing.assert_close(value.detach(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [1e3, 1e9, 1e15])
def test_large_counts_are_most_likely_at_their_mean(size):
    y = torch.full((1, 1), size, dtype=torch.float64)
    likelihood = NegativeBinomial(0.4)
    at, above, below = (likelihood.log_prob(y, y.log() + move) for move in (0.0, 0.5, -0.5))
    assert at > above + 0.1
    assert at > below + 0.1
    slope, curvature = likelihood.expected_derivatives(y, y.log(), torch.zeros(1, 1).double())
    assert slope.abs() < 1e-6
    assert curvature.item() == pytest.approx(-1 / 0.4, rel=1e-2)


def test_counts_of_little_dispersion_are_poisson():
    y, mean, var = rows(Poisson())
    little = NegativeBinomial(1e-6)
    for method in ("expected_log_prob", "log_marginal"):
        value = getattr(little, method)(y, mean, var).detach()
        expected = getattr(Poisson(), method)(y, mean, var)
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-3)


def test_published_terms_of_poisson():
    y, mean, var = t64([[2.0]]), t64([[0.3]]), t64([[0.8]])
    first, second = Poisson().expected_derivatives(y, mean, var)
    half_digit = 5e-11  # half of the last of ten printed digits
    value = float(Poisson().expected_log_prob(y, mean, var))
    assert value == pytest.approx(-2.1068998880, abs=half_digit)
    assert float(second) == pytest.approx(-2.0137527075, abs=half_digit)
    assert float(first) == pytest.approx(2 - math.exp(0.7), rel=1e-15)


def test_poisson_is_a_distribution_over_counts():
    y = torch.arange(400, dtype=torch.float64)[:, None]
    f, var = torch.full_like(y, 3.0), torch.full_like(y, 0.4)
    np.testing.assert_allclose(Poisson().log_prob(y, f), poisson.logpmf(y[:, 0], math.exp(3)))
    probability = Poisson().log_marginal(y, f, var).exp()
    mean, variance = (float(moment[0]) for moment in Poisson().predict(f, var))
    # Counts beyond 400 are 4.7 standard deviations of the latent away, times squared counts.
    first, second = (float(probability @ y[:, 0] ** power) for power in (1, 2))
    assert float(probability.sum()) == pytest.approx(1.0, abs=1e-5)
    assert first == pytest.approx(mean, rel=1e-4)
    assert second - first**2 == pytest.approx(variance, rel=1e-2)


@pytest.mark.parametrize("var", [1e-6, 1.0, 4.0])
@pytest.mark.parametrize("mean", [-1.0, 4.0])
@pytest.mark.parametrize("y", [0.0, 0.5, 7.0, 1000.0, 1e6])
def test_poisson_marginal_of_large_counts(y, mean, var):
    def log_joint(f):
        log_prob = float(Poisson().log_prob(t64([[y]]), t64([[f]])))
        return log_prob - (f - mean) ** 2 / (2 * var) - 0.5 * math.log(2 * math.pi * var)

    mode = minimize_scalar(lambda f: -log_joint(f), bracket=(mean, math.log(y + 1))).x
    height, spread = log_joint(mode), 1 / math.sqrt(1 / var + math.exp(mode))
    total = sum(
        quad(lambda z: math.exp(log_joint(mode + spread * z) - height), *ends)[0]
        for ends in itertools.pairwise([-40.0, -5.0, 0.0, 5.0, 40.0])
    )
    value = float(Poisson().log_marginal(t64([[y]]), t64([[mean]]), t64([[var]])))
    # 32 nodes err by up to 3e-6 at a variance of 4. The variance's floor of 1e-12 is multiplied by
    # the squared slope.
    tolerance = 3e-6 + 1e-12 * (y - math.exp(mean)) ** 2
    assert value == pytest.approx(math.log(spread * total) + height, abs=tolerance)


def test_weighted_rates_are_counts_over_exposures():
    count, exposure = t64([[3.0], [0.0], [11.0]]), t64([2.0, 0.5, 4.0])
    f = t64([[0.3], [-1.0], [2.0]])
    moved = f + 0.7
    rate = count / exposure[:, None]
    by_weight = exposure * (Poisson().log_prob(rate, moved) - Poisson().log_prob(rate, f))
    offset = exposure.log()[:, None]
    direct = Poisson().log_prob(count, moved + offset) - Poisson().log_prob(count, f + offset)
    torch.testing.assert_close(by_weight, direct, rtol=1e-13, atol=1e-13)


def test_continued_rate_is_smooth_and_concave():
    f = torch.linspace(40, 60, 201, dtype=torch.float64)[:, None].requires_grad_()
    value = Poisson().log_prob(torch.zeros(201, 1).double(), f)
    (slope,) = torch.autograd.grad(value.sum(), f)
    # The error is rounding of the exponent.
    assert (slope.diff(dim=0) <= 1e-13 * math.exp(50)).all()
    assert float(slope[-1]) == pytest.approx(-math.exp(50))
    # Steps are at most 0.1 along the tangent, plus rounding.
    assert (value.diff().abs() <= (0.1 + 1e-10) * math.exp(50)).all()


# The expected hinge


def test_hinge_is_a_scale_mixture():
    f = t64([[0.6], [-0.5], [1.0], [3.0]])
    value = BinaryHinge().log_prob(torch.ones(4, dtype=torch.int64), f).exp()
    # For b = 0.4, 1.5, 0 and -2, the published numbers have ten digits.
    np.testing.assert_allclose(value, [0.4493289641, 0.0497870684, 1.0, 1.0], rtol=0, atol=1e-10)
    for b, likelihood_value in zip([0.4, 1.5, 0.0, -2.0], value.tolist(), strict=True):
        # lambda = u^2 removes the singularity at zero.
        mixture, _ = quad(
            lambda u, b=b: 2 * math.exp(-((b + u * u) ** 2) / (2 * u * u)) / math.sqrt(2 * math.pi),
            0,
            np.inf,
        )
        assert mixture == pytest.approx(likelihood_value, abs=1e-8)


@pytest.mark.parametrize(
    ("mean_b", "var_b", "alpha", "at_alpha", "best_alpha", "best"),
    [
        (0.3, 0.5, 0.8, -1.0770336222, 0.59, -1.0681145748),
        (-1.2, 0.25, 2.0, -0.1046120113, 1.69, -0.1),
    ],
)
def test_collapsed_term_is_the_maximum_over_alpha(mean_b, var_b, alpha, at_alpha, best_alpha, best):
    second_moment = mean_b**2 + var_b
    h, r = map(float, expected_hinge(t64(mean_b), t64(var_b)))
    # Printed to ten digits; the error of the variance's floor of 1e-12 is smaller.
    assert oracles.row_terms(mean_b, second_moment, alpha) == pytest.approx(at_alpha, abs=1e-10)
    assert r**2 == pytest.approx(best_alpha, abs=1e-10)
    assert -h == pytest.approx(best, abs=1e-10)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert oracles.row_terms(mean_b, second_moment, factor * best_alpha) < -h


def test_derivatives_of_the_expected_hinge():
    mean_b = t64([-3.0, -0.5, 0.0, 0.5, 3.0]).requires_grad_()
    var_b = t64([0.2, 1.0, 2.0, 0.1, 5.0]).requires_grad_()
    h, r = expected_hinge(mean_b, var_b)
    h.sum().backward()
    # The error is due to the variance's floor of 1e-12.
    torch.testing.assert_close(mean_b.grad, (h / r).detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(var_b.grad, (0.5 / r).detach(), rtol=1e-10, atol=0)
    assert ((mean_b.grad > 0) & (mean_b.grad < 2)).all()
    assert float(mean_b.grad[2]) == pytest.approx(1.0, abs=1e-12)


def test_expected_hinge_does_not_cancel_in_float32():
    h, _ = expected_hinge(torch.tensor(-30.0), torch.tensor(0.01))
    exact = 0.01 / (30 + math.sqrt(900.01))
    # The naive formula gives 1.6594e-4. The error is a few roundings of 6e-8.
    assert float(h) == pytest.approx(exact, rel=3e-7)
    assert exact == pytest.approx(1.66666e-4, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expected_hinge_at_zero_and_at_huge_values(dtype):
    # Squares of 1e30 overflow in float32.
    mean_b = torch.tensor([0.0, 0.0, 1e30, -1e30, 1.0, -1.0], dtype=dtype).requires_grad_()
    var_b = torch.tensor([0.0, 1e30, 1.0, 1.0, 0.0, 0.0], dtype=dtype).requires_grad_()
    h, r = expected_hinge(mean_b, var_b)
    h.sum().backward()
    expected = torch.tensor([0.0, 1e15, 2e30, 0.0, 2.0, 0.0], dtype=dtype)
    torch.testing.assert_close(h.detach(), expected, rtol=1e-6, atol=1e-20)
    assert (r > 0).all()
    expected = torch.tensor([1.0, 1.0, 2.0, 0.0, 2.0, 0.0], dtype=dtype)
    torch.testing.assert_close(mean_b.grad, expected, rtol=1e-6, atol=1e-7)
    assert torch.isfinite(var_b.grad).all()
    torch.testing.assert_close(
        var_b.grad[4:], torch.full((2,), 0.5, dtype=dtype), rtol=1e-6, atol=0
    )


def test_point_mass_pays_twice_the_hinge():
    b = torch.linspace(-3, 3, 25, dtype=torch.float64)
    h, _ = expected_hinge(b, torch.zeros_like(b))
    assert torch.equal(h, 2 * b.clamp_min(0))


# The multi-class hinge


def t1_moments():
    T1 = oracles.T1
    _, kappa, kt = oracles.precompute(T1.X, T1.Z)
    mean, var = oracles.latent_moments(kappa, kt, T1.mu, T1.Sig)
    return torch.tensor(T1.y), torch.tensor(mean), torch.tensor(var)


def test_published_terms_of_problem_t1():
    likelihood = MulticlassHinge()
    y, mean, var = t1_moments()
    mean_b, var_b = likelihood.violation_moments(y, mean, var)
    _, r = expected_hinge(mean_b, var_b)
    ell = likelihood.expected_log_prob(y, mean, var)
    assert likelihood.contrast_class(y, mean).tolist() == [1, 0, 2, 1]
    # The published numbers have ten digits.
    for value, expected in (
        (mean_b, [0.4130357826, 1.1327681721, 0.6678630457, 1.0469102146]),
        (r**2, [1.8933097451, 2.4085337246, 1.6537596158, 2.9988059277]),
        (ell, [-1.7890117072, -2.6847133144, -1.9538488993, -2.7786162889]),
    ):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)


def test_term_at_the_prior():
    mean, var = torch.zeros(4, 3).double(), torch.ones(4, 3).double()
    value = MulticlassHinge().expected_log_prob(t1_moments()[0], mean, var)
    # The sum is -N (1 + sqrt(1 + 2 sf2)) for all data.
    assert float(value.sum()) == pytest.approx(-4 * (1 + math.sqrt(3)), abs=1e-11)


def test_oracle_reproduces_the_published_objectives():
    T1 = oracles.T1
    problem, t = oracles.precompute(T1.X, T1.Z), np.array([1, 0, 2, 1])
    mean, _ = oracles.latent_moments(*problem[1:], T1.mu, T1.Sig)
    np.testing.assert_array_equal(oracles.contrast(mean, T1.y), t)

    def objective(q, alpha=None):
        return oracles.objective(*problem, *q, T1.y, t, alpha)

    alpha = np.array([1.0, 2.0, 0.5, 1.5])
    start = T1.mu, T1.Sig
    sequential = oracles.sweep(*problem, *start, T1.y, t)
    simultaneous = oracles.sweep(*problem, *start, T1.y, t, sequential=False)
    assert objective(start) == pytest.approx(-10.5500609479, abs=1e-9)
    assert objective(start, alpha) == pytest.approx(-10.9693227300, abs=1e-9)
    assert objective(sequential) == pytest.approx(-9.2971890666, abs=1e-9)
    assert objective(simultaneous) == pytest.approx(-9.3645868354, abs=1e-9)


def test_discontinuity_where_wrong_classes_tie_in_mean():
    y, mean = torch.tensor([0, 0]), torch.zeros(2, 3).double()
    var = t64([[0.5, 0.2, 2.0], [0.5, 2.0, 0.2]])
    # The published numbers have six decimals. On ties, the first class is taken.
    value = MulticlassHinge().expected_log_prob(y, mean, var)
    np.testing.assert_allclose(value, [-2.303841, -2.870829], rtol=0, atol=1e-6)


def test_contrast_class_is_the_best_of_all_wrong_classes():
    y, mean, _ = rows(MulticlassHinge(), b=100)
    t = MulticlassHinge().contrast_class(y, mean)
    for i in range(100):
        wrong = [j for j in range(3) if j != y[i]]
        assert t[i] == wrong[int(np.argmax([mean[i, j] for j in wrong]))]


def test_only_the_true_and_the_contrast_class_get_gradients():
    likelihood = MulticlassHinge()
    y, mean, var = t1_moments()
    mean.requires_grad_()
    var.requires_grad_()
    likelihood.expected_log_prob(y, mean, var).sum().backward()
    t = likelihood.contrast_class(y, mean)
    compared = torch.zeros(4, 3, dtype=torch.bool).scatter(1, torch.stack([y, t], 1), True)
    assert torch.equal(mean.grad != 0, compared)
    assert torch.equal(var.grad != 0, compared)
    # The gradients of the two classes are equal and opposite.
    torch.testing.assert_close(mean.grad.sum(-1), torch.zeros(4).double(), rtol=0, atol=1e-15)


def test_common_shifts_change_nothing_and_relabelling_permutes():
    likelihood = MulticlassHinge()
    y, mean, var = t1_moments()
    value = likelihood.expected_log_prob(y, mean, var)
    shifted = likelihood.expected_log_prob(y, mean + t64([[5.0], [-2.0], [0.3], [9.0]]), var)
    torch.testing.assert_close(shifted, value, rtol=0, atol=1e-14)
    order = torch.tensor([2, 0, 1])
    relabelled = likelihood.expected_log_prob(order.argsort()[y], mean[:, order], var[:, order])
    torch.testing.assert_close(relabelled, value, rtol=0, atol=1e-14)


def test_multiclass_log_prob_uses_the_true_maximum():
    y, f, _ = rows(MulticlassHinge(), b=50)
    wrong = f.clone()
    wrong[range(50), y] = -torch.inf
    expected = -2 * (1 + wrong.amax(-1) - f[range(50), y]).clamp_min(0)
    value = MulticlassHinge().log_prob(y, f)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-14)


def test_hinge_is_not_a_normalized_likelihood():
    f = t64([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    total = sum(MulticlassHinge().log_prob(torch.full((3,), code), f).exp() for code in (0, 1))
    # The published numbers have four digits.
    np.testing.assert_allclose(total, [0.2707, 1.0183, 1.0025], rtol=0, atol=5e-5)


def test_multiclass_marginal_is_that_of_the_fixed_contrast():
    likelihood = MulticlassHinge()
    y, mean, var = rows(likelihood, b=6)
    mean_b, var_b = likelihood.violation_moments(y, mean, var)
    value = likelihood.log_marginal(y, mean, var)
    for i in range(6):
        expected = gaussian_expectation(
            lambda b: math.exp(-2 * max(b, 0)), float(mean_b[i]), float(var_b[i]), [0.0]
        )
        assert float(value[i]) == pytest.approx(math.log(expected), abs=1e-9)


def test_multiclass_prediction_is_the_probability_of_the_largest():
    # Moments of problem T1 at x = 0.25, published with ten digits.
    mean = t64([[0.2279358913, 0.3419038369, -0.0569839728]])
    var = t64([[0.5618573233, 0.4157345312, 0.6722612107]])
    expected = [[0.3540835603, 0.4155110665, 0.2304053732]]
    np.testing.assert_allclose(MulticlassHinge().predict(mean, var), expected, rtol=0, atol=3e-10)


# The binary hinge


def test_published_terms_of_the_binary_problem():
    B = oracles.T1_BINARY
    _, kappa, kt = oracles.precompute(B.X, B.Z)
    mean, var = map(torch.tensor, oracles.latent_moments(kappa, kt, B.mu[None], B.Sig[None]))
    y = torch.tensor(B.y)
    mean_b, var_b = BinaryHinge().violation_moments(y, mean, var)
    ell = BinaryHinge().expected_log_prob(y, mean, var)
    # The published numbers have ten digits.
    for value, expected in (
        (mean_b, [0.3699940775, 0.6832768325, 0.9080946770, 0.6325831317]),
        (mean_b**2 + var_b, [0.8838121952, 1.0573087327, 1.3507705617, 1.2258761886]),
        (ell, [-1.3101069405, -1.7115320209, -2.0703212305, -1.7397760637]),
    ):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)


def test_oracle_reproduces_the_published_binary_objectives():
    B = oracles.T1_BINARY
    problem = oracles.precompute(B.X, B.Z)
    assert oracles.binary_objective(*problem, B.mu, B.Sig, B.s) == pytest.approx(-7.3417183722)
    mu, Sig = oracles.binary_sweep(*problem, B.mu, B.Sig, B.s)
    np.testing.assert_allclose(mu, [-1.0775058985, 1.0062997073], rtol=0, atol=1e-9)
    assert oracles.binary_objective(*problem, mu, Sig, B.s) == pytest.approx(-6.4010014843)


def test_two_classes_equal_the_binary_hinge_of_their_difference():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    var = torch.rand(20, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (20,), generator=generator)
    difference, total = mean[:, [1]] - mean[:, [0]], var.sum(-1, keepdim=True)
    for method in ("expected_log_prob", "log_marginal"):
        torch.testing.assert_close(
            getattr(MulticlassHinge(), method)(y, mean, var),
            getattr(BinaryHinge(), method)(y, difference, total),
            rtol=1e-13,
            atol=1e-14,
        )
    torch.testing.assert_close(
        MulticlassHinge().predict(mean, var),
        BinaryHinge().predict(difference, total),
        rtol=0,
        atol=1e-11,  # the variance's floor of 1e-12
    )


def test_binary_hinge_predicts_the_sign_of_the_latent_function():
    probability = BinaryHinge().predict(t64([[0.7], [0.0], [-2.0]]), t64([[1.9], [0.0], [0.0]]))
    expected = [ndtr(0.7 / math.sqrt(1.9)), 0.5, 0.0]
    np.testing.assert_allclose(probability[:, 1], expected, rtol=0, atol=1e-11)


# Other values of parameters


@pytest.mark.parametrize("make", [Gaussian, Laplace, StudentT])
def test_likelihood_at_other_parameters_is_a_new_one(make):
    likelihood, other = make([0.3, 0.5]), make([2.0, 0.1])
    y, mean, var = rows(likelihood)
    before = likelihood.expected_log_prob(y, mean, var).detach()
    parameters = torch.cat([value.detach() for value in other.parameters()]).requires_grad_()
    value = likelihood.at(parameters).expected_log_prob(y, mean, var)
    expected = other.expected_log_prob(y, mean, var)
    # The function and its arguments are the same.
    assert torch.equal(value, expected)
    (gradient,) = torch.autograd.grad(value.sum(), parameters)
    assert torch.equal(gradient, *torch.autograd.grad(expected.sum(), other.parameters()))
    assert torch.equal(likelihood.expected_log_prob(y, mean, var), before)


@pytest.mark.parametrize("make", [Probit, Logistic, Softmax, RobustMax])
def test_likelihood_without_parameters_is_the_same_anywhere(make):
    likelihood = make()
    y, mean, var = rows(likelihood)
    value = likelihood.at(t64([])).expected_log_prob(y, mean, var)
    assert torch.equal(value, likelihood.expected_log_prob(y, mean, var))


@pytest.mark.parametrize("likelihood", [Gaussian([0.1, 0.2]), StudentT(0.3), Laplace(0.5)])
def test_parameters_may_be_replaced_again(likelihood):
    y, mean, var = t64([[1.0, -2.0]]), t64([[0.5, 0.0]]), t64([[0.1, 0.3]])
    first = torch.cat([part.detach().ravel() for part in likelihood.parameters()])
    once, twice = likelihood.at(first + 1.0), likelihood.at(first).at(first + 1.0)
    assert_array_equal(twice.log_marginal(y, mean, var), once.log_marginal(y, mean, var))
    assert (likelihood.log_marginal(y, mean, var) != once.log_marginal(y, mean, var)).all()


@pytest.mark.parametrize("make", [Gaussian, Laplace, StudentT])
def test_columns_may_have_parameters_of_their_own(make):
    y, mean, var = rows(make())
    both, alone = make([0.3, 2.0]), [make(0.3), make(2.0)]
    columns = [slice(0, 1), slice(1, 2)]
    for method in ("log_prob", "expected_log_prob", "log_marginal"):
        moments = (mean,) if method == "log_prob" else (mean, var)
        parts = [
            getattr(one, method)(y[:, j], *(moment[:, j] for moment in moments))
            for one, j in zip(alone, columns, strict=True)
        ]
        torch.testing.assert_close(
            getattr(both, method)(y, *moments), sum(parts), rtol=1e-13, atol=1e-13
        )
    predicted = both.predict(mean, var)[1]
    parts = [one.predict(mean[:, j], var[:, j])[1] for one, j in zip(alone, columns, strict=True)]
    assert torch.equal(predicted, torch.cat(parts, 1))


# Derivatives of the expectations


def differences(likelihood, y, mean, var, step=1e-3):
    """Return first and second central differences of `expected_log_prob` in each latent's mean."""
    first, second = torch.empty_like(mean), torch.empty_like(mean)
    for j in range(mean.shape[1]):
        shift = step * torch.eye(mean.shape[1], dtype=mean.dtype)[j]
        down, here, up = (
            likelihood.expected_log_prob(y, mean + sign * shift, var).detach()
            for sign in (-1, 0, 1)
        )
        first[:, j] = (up - down) / (2 * step)
        second[:, j] = (up - 2 * here + down) / step**2
    return first, second


@pytest.mark.parametrize("name", ["Gaussian", "Laplace", "StudentT", "Probit", "Logistic"])
def test_expected_derivatives_are_those_in_the_mean(name):
    likelihood = LIKELIHOODS[name]()
    y, mean, var = rows(likelihood)
    # The error is step^2 = 1e-6 times higher derivatives. For Student's t, quadrature makes a
    # difference between twice the derivative in the variance and the second one in the mean.
    error = 5e-3 if name == "StudentT" else 1e-5
    assert_all_close(
        likelihood.expected_derivatives(y, mean, var),
        differences(likelihood, y, mean, var),
        rtol=0,
        atol=error,
    )


@pytest.mark.parametrize("make", [Softmax, RobustMax])
def test_expected_derivatives_of_several_classes_are_those_in_the_means(make):
    likelihood = make()
    y, mean, var = rows(likelihood)
    found = likelihood.expected_derivatives(y, mean, var)
    # Also, the quadrature errs by 1e-9, times log odds of 7, over step^2.
    for a, b, error in zip(found, differences(likelihood, y, mean, var), (2e-5, 2e-2), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=error)
    # The sum is zero since a common shift changes nothing.
    np.testing.assert_allclose(found[0].sum(1), 0, rtol=0, atol=1e-9)


def test_expected_derivatives_neither_need_nor_leave_a_graph(likelihood):
    y, mean, var = rows(likelihood, dtype=torch.float32)
    with torch.no_grad():
        parts = likelihood.expected_derivatives(y, mean, var)
    for part in parts:
        assert part.shape == mean.shape
        assert not part.requires_grad


@pytest.mark.parametrize("make", [Gaussian, Laplace, Probit, Logistic, Softmax])
def test_log_concave_likelihoods_bend_down_everywhere(make):
    likelihood = make()
    y, mean, _ = rows(likelihood, b=100)
    for var in (1e-8, 1.0, 1e4):
        for scale in (1.0, 30.0):
            _, second = likelihood.expected_derivatives(y, scale * mean, torch.full_like(mean, var))
            # The error is rounding next to zero.
            assert (second <= 1e-300).all()


def test_true_class_pulls_up_and_the_others_down():
    for likelihood in (Softmax(), RobustMax()):
        y, mean, var = rows(likelihood, b=50)
        first, _ = likelihood.expected_derivatives(y, mean, var)
        assert (first.gather(1, y[:, None]) > 0).all()
        assert (first.scatter(1, y[:, None], -1.0) < 0).all()


# Student's t


@pytest.mark.parametrize(("scale", "dof"), [(0.7, 4.0), (2.0, 2.5), (0.3, 30.0)])
def test_student_t_density(scale, dof):
    f = np.linspace(-5, 5, 11)[:, None]
    value = StudentT(scale, dof).log_prob(t64([[0.4]]), t64(f)).detach()
    np.testing.assert_allclose(value, student.logpdf(0.4, dof, f[:, 0], scale), rtol=1e-13)
    total, _ = quad(
        lambda y: StudentT(scale, dof).log_prob(t64([[y]]), t64([[0.4]])).exp().item(),
        -np.inf,
        np.inf,
    )
    assert total == pytest.approx(1, abs=1e-8)


def test_student_t_predictive_variance_includes_the_noise():
    _, var = StudentT(0.7, 5.0).predict(t64([[0.5]]), t64([[2.0]]))
    assert var.item() == pytest.approx(2.0 + student.var(5.0, scale=0.7), rel=1e-14)


@pytest.mark.parametrize(
    ("scale", "dof", "var", "error"),
    # The density has poles at a distance of scale * sqrt(dof) from the real axis. The smaller this
    # is in standard deviations of the latent, the larger is the error of 32 nodes.
    [(2.0, 4.0, 0.5, 1e-11), (2.0, 4.0, 2.0, 1e-9), (0.7, 4.0, 0.5, 1e-6), (0.7, 4.0, 2.0, 5e-3)],
)
def test_student_t_expectations_equal_quadrature(scale, dof, var, error):
    likelihood = StudentT(scale, dof)
    for mean in (-0.9, 0.1, 1.7):
        y, moments = t64([[0.4]]), (t64([[mean]]), t64([[var]]))
        expected = gaussian_expectation(
            lambda f: student.logpdf(0.4, dof, f, scale), mean, var, [0.4]
        )
        marginal = gaussian_expectation(lambda f: student.pdf(0.4, dof, f, scale), mean, var, [0.4])
        assert likelihood.expected_log_prob(y, *moments).item() == pytest.approx(
            expected, abs=error
        )
        assert likelihood.log_marginal(y, *moments).item() == pytest.approx(
            math.log(marginal), abs=error
        )


def test_student_t_with_many_degrees_of_freedom_is_gaussian():
    y, mean, var = rows(StudentT())
    a = StudentT(0.8, 1e7).expected_log_prob(y, mean, var)
    b = Gaussian(0.64).expected_log_prob(y, mean, var)
    # The error is fourth powers of residuals, up to about 1e3, over the degrees of freedom.
    torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


def test_student_t_forgives_an_outlier_that_gaussian_noise_does_not():
    y = t64([[3.0], [30.0]])
    mean, var = torch.zeros_like(y), torch.full_like(y, 0.1)
    first, second = StudentT(1.0).expected_derivatives(y, mean, var)
    assert first[1] < first[0]
    assert (second > 0).all()


# Several classes


def product_rule(mean, var, n_nodes=40):
    """Return latent values (b, n_nodes^3, 3) and weights of a product Gauss–Hermite rule."""
    x, w = gauss_hermite(n_nodes, mean)
    nodes = torch.cartesian_prod(x, x, x)
    return mean[:, None] + var.sqrt()[:, None] * nodes, torch.cartesian_prod(w, w, w).prod(1)


@pytest.mark.parametrize(
    ("size", "of_log", "of_probability"), [(0.1, 2e-3, 1e-3), (1.0, 1e-2, 3e-3), (4.0, 3e-2, 7e-3)]
)
def test_softmax_expectations_equal_a_product_rule(size, of_log, of_probability):
    likelihood = Softmax()
    y, mean, var = rows(likelihood, b=50)
    var = size * var / 2
    f, w = product_rule(mean, var)
    log_p = torch.log_softmax(f, -1)
    p = log_p.exp()
    # There are 128 equally weighted points; the tolerances are about twice the largest error.
    expected = torch.einsum("h,bhc->bc", w, log_p).gather(1, y[:, None])[:, 0]
    value = likelihood.expected_log_prob(y, mean, var)
    np.testing.assert_allclose(value, expected, rtol=0, atol=of_log)
    probability = torch.einsum("h,bhc->bc", w, p)
    close = {"rtol": 0, "atol": of_probability}
    np.testing.assert_allclose(likelihood.predict(mean, var), probability, **close)
    np.testing.assert_allclose(
        likelihood.log_marginal(y, mean, var).exp(),
        probability.gather(1, y[:, None])[:, 0],
        **close,
    )
    first, second = likelihood.expected_derivatives(y, mean, var)
    own = torch.nn.functional.one_hot(y, 3)
    np.testing.assert_allclose(first, own - probability, **close)
    np.testing.assert_allclose(second, torch.einsum("h,bhc->bc", w, p * (p - 1)), **close)


def test_expected_hessian_of_the_softmax_is_that_of_its_expectation():
    y, mean, var = rows(Softmax(), b=20)
    found = Softmax().expected_hessian(mean, var)

    for i, row in enumerate(mean):
        at = slice(i, i + 1)
        wanted = torch.autograd.functional.hessian(
            lambda m, at=at: Softmax().expected_log_prob(y[at], m[None], var[at])[0], row
        )
        torch.testing.assert_close(found[i], wanted, rtol=1e-10, atol=1e-12)


def test_softmax_of_two_classes_is_the_logistic_function_of_their_difference():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    var = torch.rand(20, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (20,), generator=generator)
    difference, total = mean[:, [1]] - mean[:, [0]], var.sum(-1, keepdim=True)
    for method in ("expected_log_prob", "log_marginal"):
        # 128 points in the plane are compared with 32 nodes.
        torch.testing.assert_close(
            getattr(Softmax(), method)(y, mean, var),
            getattr(Logistic(), method)(y, difference, total),
            rtol=0,
            atol=1e-2,
        )


@pytest.mark.parametrize("c", [2, 3, 5])
def test_robust_max_expectations_equal_samples(c):
    likelihood, n = RobustMax(0.1), 200_000
    generator = torch.Generator().manual_seed(c)
    mean = torch.randn(4, c, generator=generator, dtype=torch.float64)
    var = 0.1 + torch.rand(4, c, generator=generator, dtype=torch.float64)
    y = torch.arange(4) % c
    f = mean + var.sqrt() * torch.randn(n, 4, c, generator=generator, dtype=torch.float64)
    log_p = likelihood.log_prob(y, f)
    # Five standard errors of the samples' mean; the quadrature's error of 1e-9 is negligible.
    for value, samples in (
        (likelihood.expected_log_prob(y, mean, var), log_p),
        (likelihood.log_marginal(y, mean, var).exp(), log_p.exp()),
    ):
        assert ((value - samples.mean(0)).abs() < 5 * samples.std(0) / math.sqrt(n)).all()


@pytest.mark.parametrize("noise", [1e-3, 0.2])
def test_robust_max_is_a_distribution_of_the_labels(noise):
    likelihood = RobustMax(noise)
    _, f, var = rows(likelihood)
    p = torch.stack([likelihood.log_prob(torch.full((12,), j), f) for j in range(3)], 1).exp()
    np.testing.assert_allclose(p.sum(1), 1, rtol=0, atol=1e-15)
    np.testing.assert_allclose(p.amax(1), 1 - noise, rtol=1e-14)
    np.testing.assert_allclose(p.sort(1).values[:, :2], noise / 2, rtol=1e-14)
    # Probabilities lie between those of a certainly wrong and a certainly right label.
    predicted = likelihood.predict(f, var)
    assert ((predicted >= noise / 2) & (predicted <= 1 - noise)).all()


def test_softmax_is_a_distribution_of_the_labels():
    _, f, _ = rows(Softmax())
    p = torch.stack([Softmax().log_prob(torch.full((12,), j), f) for j in range(3)], 1).exp()
    torch.testing.assert_close(p, torch.softmax(f, 1), rtol=1e-14, atol=0)


def test_softmax_with_an_order_permutes_with_the_classes():
    y, mean, var = rows(Softmax())
    order = torch.tensor([2, 0, 1])
    places = Softmax([1, 2, 0])
    other = Softmax([places.order[k] for k in order])
    codes = order.argsort()[y]
    permuted = mean[:, order], var[:, order]
    for one, two in (
        (places.predict(mean, var)[:, order], other.predict(*permuted)),
        (places.expected_log_prob(y, mean, var), other.expected_log_prob(codes, *permuted)),
        (places.log_marginal(y, mean, var), other.log_marginal(codes, *permuted)),
        (
            places.expected_hessian(mean, var)[:, order][:, :, order],
            other.expected_hessian(*permuted),
        ),
    ):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-14)
    # Without an order, the first class has the first coordinate of the points.
    assert (
        Softmax().predict(*permuted) - Softmax().predict(mean, var)[:, order]
    ).abs().max() > 1e-6


# Bad arguments


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_noise_must_be_positive_and_finite(value):
    with pytest.raises(ValueError, match="noise_var must be positive and finite, got"):
        Gaussian(value)
    with pytest.raises(ValueError, match="scale must be positive and finite, got"):
        Laplace(value)
    with pytest.raises(ValueError, match="scale must be positive and finite, got"):
        StudentT([1.0, value])


@pytest.mark.parametrize("dof", [2, 0.0, -1.0, math.inf, math.nan])
def test_student_t_needs_a_variance(dof):
    with pytest.raises(ValueError, match="dof must be above 2 and finite, got"):
        StudentT(1.0, dof)


@pytest.mark.parametrize("noise", [0, 1, -0.1, math.nan])
def test_share_of_random_labels_is_between_none_and_all(noise):
    with pytest.raises(ValueError, match="noise must be between 0 and 1, got"):
        RobustMax(noise)


@pytest.mark.parametrize("make", [Probit, Logistic, BinaryHinge])
def test_binary_likelihoods_have_one_latent_function(make):
    y, mean = torch.tensor([0, 1]), torch.zeros(2, 2)
    with pytest.raises(ValueError, match="one latent function, got 2"):
        make().expected_log_prob(y, mean, mean + 1)


def test_multiclass_hinge_needs_two_classes():
    with pytest.raises(ValueError, match="at least two latent functions"):
        MulticlassHinge().log_prob(torch.tensor([0]), torch.zeros(1, 1))


def test_softmax_does_not_depend_on_how_rows_are_divided(monkeypatch):
    mean, var = t64(np.random.default_rng(0).normal(size=(2, 7, 4)))
    y, likelihood = torch.arange(7) % 4, Softmax()
    kinds = ("expected_log_prob", "log_marginal", "expected_derivatives")

    def found():
        parts = [getattr(likelihood, kind)(y, mean, var.abs()) for kind in kinds]
        return [*parts[:2], *parts[2], likelihood.predict(mean, var.abs())]

    whole = found()
    monkeypatch.setattr("skgpsvm.likelihoods._classification.SMALL_BLOCK", 128 * 4 * 2)
    assert_all_close(whole, found(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_terms_of_the_softmax_hold_for_all_sizes_of_latents(dtype):
    mean, var = t64(np.random.default_rng(0).normal(size=(2, 9, 4)))
    mean = mean * torch.tensor([1.0, 30.0, 3e3]).repeat(3)[:, None]
    var = var.abs() * torch.tensor([1.0, 100.0, 1e4]).repeat_interleave(3)[:, None]
    y, likelihood = torch.arange(9) % 4, Softmax()
    value, first, second = likelihood.expected_terms(y, mean.to(dtype), var.to(dtype))
    rtol = 1e-10 if dtype == torch.float64 else 1e-3
    assert_allclose(value, likelihood.expected_log_prob(y, mean, var), rtol=rtol, atol=rtol)
    f = mean + var.sqrt() * normal_points(64, 4, mean)[:, None]
    p = torch.softmax(f, -1)
    one_hot = torch.nn.functional.one_hot(y, 4)
    assert_allclose(first, one_hot - p.mean(0), atol=rtol)
    assert_allclose(second, (p * (p - 1)).mean(0), atol=rtol)


def test_softmax_of_equal_latents_is_nearly_even():
    p = Softmax().predict(torch.zeros(1, 10), torch.full((1, 10), 5.0))
    assert_allclose(p, 0.1, atol=0.008)


@torch.no_grad()
def test_rounding_is_averaged_over():
    rng = np.random.default_rng(0)
    y, mean, var = (
        t64(rng.normal(size=(6, 1))),
        t64(rng.normal(size=(6, 2))),
        t64(rng.random((6, 2))),
    )
    exact, rounded = Heteroscedastic(0.3), Heteroscedastic(0.3, rounding=0.2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)  # exact for squares
    weights = weights / weights.sum()
    shifted = [exact.expected_log_prob(y + 0.2**0.5 * x, mean, var) for x in nodes]
    expected = sum(w * part for w, part in zip(weights, shifted, strict=True))
    assert_allclose(rounded.expected_log_prob(y, mean, var), expected, rtol=1e-12)
    slopes = [exact.expected_derivatives(y + 0.2**0.5 * x, mean, var) for x in nodes]
    for found, *parts in zip(rounded.expected_derivatives(y, mean, var), *slopes, strict=True):
        average = sum(w * part for w, part in zip(weights, parts, strict=True))
        assert_allclose(found, average, rtol=1e-12)
