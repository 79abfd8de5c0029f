"""Regressions of counts, amounts and proportions: posterior, distributions, weights, refusals."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import expit
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import GammaRegressor, LinearRegression, PoissonRegressor
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from skgpsvm import AdditiveGPRegressor, DecoupledGPRegressor, SVGPRegressor
from skgpsvm._families import FAMILIES, family_quantiles

KINDS = (SVGPRegressor, AdditiveGPRegressor)
DISPERSION = 0.3


def latents(n, likelihood="gamma", seed=0):
    """Return X (n, 2) and links of means of y: waves in one feature and a trend in another."""
    X = np.random.default_rng(seed).uniform(-2, 2, (n, 2))
    constant = 0.0 if likelihood == "beta" else 1.5
    return X, constant + np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]


def drawn(likelihood, f, seed=1):
    mean = FAMILIES[likelihood].link.inverse(f)
    return FAMILIES[likelihood].distribution(mean, DISPERSION).rvs(random_state=seed).astype(float)


def link(likelihood, y):
    return FAMILIES[likelihood].link.of(torch.as_tensor(y)).numpy()


@pytest.fixture(
    params=[(kind, name) for kind in KINDS for name in FAMILIES], ids=str, scope="module"
)
def fit(request):
    """A fit of 150 rows, with X and y."""
    kind, name = request.param
    X, f = latents(150, name)
    y = drawn(name, f)
    model = kind(likelihood=name, random_state=0)
    if kind is AdditiveGPRegressor:
        model.set_params(interactions=None)
    return model.fit(X, y), X, y


# What all estimators have


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.* first call")
@pytest.mark.filterwarnings("ignore:likelihood='negative_binomial' is for counts")
@parametrize_with_checks(
    [
        SVGPRegressor(likelihood="negative_binomial", n_inducing=8, max_iter=3),
        AdditiveGPRegressor(likelihood="gamma", interactions=None),
    ],
    # Its targets are negative, whatever the tag positive_only says.
    expected_failed_checks=lambda _: {"check_regressor_multioutput": "negative targets"},
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


# The posterior


@pytest.mark.parametrize("name", FAMILIES)
def test_posterior_is_the_fixed_point_of_a_dense_process(name):
    X, f = latents(25, name)
    y, kernel = drawn(name, f), 2.0 * RBF(1.0)
    model = SVGPRegressor(kernel, likelihood=name, mean="zero", optimizer=None, tol=1e-10)
    model.set_params(inducing_points=X, learn_inducing=False, max_iter=400).fit(X, y)
    m, v = model.latent_mean_and_variance(X)
    likelihood = FAMILIES[name].make(getattr(model, "dispersion_", 1.0)).requires_grad_(False)
    columns = (torch.as_tensor(part)[:, None] for part in (y, m, v))
    first, second = (part.numpy()[:, 0] for part in likelihood.expected_derivatives(*columns))
    K, precision = kernel(X), np.diag(-second)
    assert_allclose(m, K @ first, atol=1e-4)
    assert_allclose(v, np.diag(np.linalg.inv(np.linalg.inv(K) + precision)), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_exposures_are_weights_of_rates(kind):
    X, f = latents(60)
    exposure = np.random.default_rng(2).integers(1, 5, 60).astype(float)
    counts = np.random.default_rng(1).poisson(exposure * np.exp(f))
    model = kind(likelihood="poisson", random_state=0)
    weighted = clone(model).fit(X, counts / exposure, sample_weight=exposure)
    # A row of exposure k and k rows of exposure 1 with the same mean have the same likelihood.
    index = np.repeat(np.arange(60), exposure.astype(int))
    repeated = clone(model).fit(X[index], (counts / exposure)[index])
    assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-5)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
@pytest.mark.parametrize("kind", KINDS)
def test_exposures_have_any_unit(kind, unit):
    X, f = latents(100)
    exposure = np.random.default_rng(2).uniform(1, 5, 100)
    counts = np.random.default_rng(1).poisson(exposure * np.exp(f))
    model = kind(likelihood="poisson", random_state=0)
    (mean, var), (other_mean, other_var) = (
        clone(model).fit(X, counts / each, sample_weight=each).latent_mean_and_variance(X)
        for each in (exposure, exposure / unit)
    )
    # The prior of the constant has a standard deviation of 10.
    assert_allclose(other_mean - np.log(unit), mean, atol=0.05)
    assert_allclose(other_var, var, rtol=0.1)


# Distributions of y


def test_means_are_found(fit):
    model, X, y = fit
    X_new, f_new = latents(400, model.likelihood, seed=5)
    error = np.sqrt(np.mean((link(model.likelihood, model.predict(X_new)) - f_new) ** 2))
    if model.likelihood == "beta":
        linear = LinearRegression().fit(X, link("beta", y)).predict(X_new)
    else:
        power = 2 if model.likelihood == "gamma" else 1
        of_mean = (GammaRegressor if power == 2 else PoissonRegressor)(alpha=0).fit(X, y)
        linear, mean_new = np.log(of_mean.predict(X_new)), np.exp(f_new)
        score = d2_tweedie_score(mean_new, model.predict(X_new), power=power)
        assert score > d2_tweedie_score(mean_new, of_mean.predict(X_new), power=power)
    assert error < 0.5 * np.sqrt(np.mean((linear - f_new) ** 2))
    if model.likelihood == "poisson":
        assert not hasattr(model, "dispersion_")
    else:
        assert model.dispersion_ == pytest.approx(DISPERSION, rel=0.4)
    assert not hasattr(model, "noise_variance_")
    assert not hasattr(model, "predict_noise_variance")


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_moments_and_intervals_are_those_of_draws(fit, level):
    model, X, _ = fit
    lower, upper = model.predict_interval(X[:40], level)
    draws = model.sample_y(X[:40], 4000)
    error = 4 * np.sqrt(0.25 / 4000)
    for bound, p in ((lower, (1 - level) / 2), (upper, (1 + level) / 2)):
        assert ((draws <= bound[:, None]).mean(1) > p - error).all()
        assert ((draws < bound[:, None]).mean(1) < p + error).all()
    mean, std = model.predict(X[:40], return_std=True)
    assert_allclose(mean, model.predict(X[:40]))
    assert (np.abs(draws.mean(1) - mean) < 5 * std / np.sqrt(4000)).all()
    assert_allclose(draws.std(1), std, rtol=0.2)


def test_conformal_intervals_hold(fit):
    model, _, _ = fit
    X_new, f = latents(1000, model.likelihood, seed=7)
    y = drawn(model.likelihood, f, seed=8)
    lower, upper = model.predict_interval(X_new, 0.9, method="conformal")
    assert (lower >= 0).all()
    assert (upper <= FAMILIES[model.likelihood].link.largest).all()
    assert 0.84 < ((lower <= y) & (y <= upper)).mean() < 0.97


def test_latent_function_is_the_link_of_the_mean(fit):
    model, X, _ = fit
    f, variance = model.latent_mean_and_variance(X)
    if model.likelihood != "beta":
        assert_allclose(np.log(model.predict(X)), f + variance / 2)
    else:
        nodes, weights = np.polynomial.hermite_e.hermegauss(32)
        means = expit(f[:, None] + np.sqrt(variance)[:, None] * nodes)
        assert_allclose(model.predict(X), means @ weights / weights.sum(), rtol=1e-8)
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.predict(X), model.predict(X))


@pytest.mark.parametrize("probability", [1e-4, 0.05, 0.5, 0.95])
@pytest.mark.parametrize("likelihood", FAMILIES)
def test_quantiles_without_uncertainty_are_those_of_scipy(likelihood, probability):
    f = np.array([[-8.0], [0.0], [3.0], [12.0]])
    mean = FAMILIES[likelihood].link.inverse(f)
    expected = FAMILIES[likelihood].distribution(mean, DISPERSION).ppf(probability)
    given = likelihood, np.array([DISPERSION]), f, np.full_like(f, 1e-20)
    assert_allclose(family_quantiles(*given, probability), expected, rtol=1e-8)


@pytest.mark.parametrize("mean", [0.0, 24.0, 100.0])
@pytest.mark.parametrize("variance", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("likelihood", [name for name in FAMILIES if name != "beta"])
def test_quantiles_far_from_the_rows_are_about_log_normal(likelihood, variance, mean):
    given = likelihood, np.array([DISPERSION]), np.array([[mean]]), np.array([[variance]])
    lower, upper = (family_quantiles(*given, p).item() for p in (0.05, 0.95))
    std = np.sqrt(variance)
    assert_allclose(np.log(upper), mean + 1.645 * std, atol=0.2 + 0.05 * std)
    if mean - 1.645 * std > 1:
        assert_allclose(np.log(lower), mean - 1.645 * std, atol=0.2 + 0.05 * std)
    assert 0 <= lower < upper


@pytest.mark.parametrize("dispersion", [1e-4, 1.0])
@pytest.mark.parametrize("variance", [0.01, 1.0])
@pytest.mark.parametrize("mean", [1.0, 10.0])
@pytest.mark.parametrize("likelihood", FAMILIES)
def test_quantiles_have_their_probability(likelihood, mean, variance, dispersion):
    """Also where y hardly scatters about its uncertain mean."""
    mean = mean / 10 if likelihood == "beta" else mean
    given = likelihood, np.array([dispersion]), np.array([[mean]]), np.array([[variance]])
    f = np.linspace(-8, 8, 200_001)
    weights = np.exp(-0.5 * f**2) / np.exp(-0.5 * f**2).sum()
    means = FAMILIES[likelihood].link.inverse(mean + variance**0.5 * f)
    given_f = FAMILIES[likelihood].distribution(means, dispersion)
    for p in (0.05, 0.5, 0.95):
        value = family_quantiles(*given, p).item()
        reached = weights @ given_f.cdf(value)
        if FAMILIES[likelihood].is_count:
            assert weights @ given_f.cdf(value - 1) < p + 1e-3
            assert reached > p - 1e-3
        else:
            assert reached == pytest.approx(p, abs=1e-3)


@pytest.mark.parametrize("likelihood", FAMILIES)
@pytest.mark.parametrize("mean", [-1000.0, -300.0, 300.0, 1000.0])
def test_quantiles_do_not_overflow(likelihood, mean):
    given = likelihood, np.array([DISPERSION]), np.array([[mean]]), np.array([[1e5]])
    with warnings.catch_warnings(action="error"):
        lower, upper = (family_quantiles(*given, p).item() for p in (0.05, 0.95))
    assert 0 <= lower <= upper < np.inf


@pytest.mark.parametrize("likelihood", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_several_outputs_and_streams(kind, likelihood):
    X, f = latents(60, likelihood)
    Y = np.stack([drawn(likelihood, f), drawn(likelihood, 2 * f.mean() - f)], 1)
    model = kind(likelihood=likelihood, random_state=0, max_iter=5)
    with warnings.catch_warnings(action="ignore"):
        model.partial_fit(X[:40], Y[:40]).partial_fit(X[40:], Y[40:])
    predicted, std = model.predict(X, return_std=True)
    assert predicted.shape == std.shape == (60, 2)
    assert np.corrcoef(link(likelihood, predicted[:, 0]), f)[0, 1] > 0.7
    assert np.corrcoef(link(likelihood, predicted[:, 1]), f)[0, 1] < -0.7
    lower, upper = model.predict_interval(X)
    assert lower.shape == upper.shape == (60, 2)
    assert model.sample_y(X[:3], 2).shape == (3, 2, 2)
    if likelihood != "poisson":
        assert model.dispersion_.shape == (2,)


# Odd data


@pytest.mark.parametrize("likelihood", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["one row", "two rows", "duplicates", "large y", "large X"])
def test_odd_data_give_finite_predictions(kind, likelihood, case):
    if (likelihood, case) == ("beta", "large y"):
        pytest.skip("proportions have no unit")
    X, f = latents(40, likelihood)
    y = drawn(likelihood, f)
    index = {"one row": [0], "two rows": [0, 1], "duplicates": np.repeat(np.arange(10), 4)}
    X, y = (part[index.get(case, slice(None))] for part in (X, y))
    X, y = X * (1e8 if case == "large X" else 1), y * (1e6 if case == "large y" else 1)
    with warnings.catch_warnings(action="ignore"):
        model = kind(likelihood=likelihood, random_state=0).fit(X, y)
    predicted, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X)
    assert np.isfinite([predicted, std, lower, upper]).all()
    assert ((lower <= upper) & (std > 0)).all()


@pytest.mark.parametrize("likelihood", FAMILIES)
def test_single_precision_is_near_double(likelihood):
    X, f = latents(60, likelihood)
    y = drawn(likelihood, f)
    model = SVGPRegressor(likelihood=likelihood, n_inducing=80, random_state=0)  # of 60 rows
    single = clone(model).set_params(dtype="float32").fit(X, y).predict(X)
    assert_allclose(single, model.fit(X, y).predict(X), rtol=0.02)


# Scales


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", [1e-15, 1e-6, 1e6, 1e15])
def test_amounts_have_any_unit(kind, unit):
    X, f = latents(60)
    y = drawn("gamma", f)
    model = kind(likelihood="gamma", random_state=0)
    predicted = clone(model).fit(X, y).predict(X)
    assert_allclose(clone(model).fit(X, unit * y).predict(X), unit * predicted, rtol=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_may_be_large(kind):
    X, f = latents(100)
    amounts = drawn("gamma", f)  # which very large counts are, up to their unit
    model = kind(likelihood="negative_binomial", random_state=0)
    few, many = (
        clone(model).fit(X, np.round(unit * amounts)).predict(X) / unit for unit in (1e5, 1e10)
    )
    assert_allclose(many, few, rtol=0.05)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("spread", [0.0, 1e-9, 1e-6, 1e-4])
@pytest.mark.parametrize("likelihood", ["gamma", "beta"])
@pytest.mark.parametrize("kind", KINDS)
def test_amounts_may_be_equal_or_almost(kind, likelihood, spread):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = 0.3 * (1 + spread * rng.normal(size=200))
    model = kind(likelihood=likelihood, random_state=0).fit(X, y)
    assert_allclose(model.predict(X), 0.3, rtol=1e-3)
    assert 0 < model.dispersion_ < 1e-5
    lower, upper = model.predict_interval(X)
    assert np.mean((lower <= y) & (y <= upper)) > 0.9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("likelihood", "gross"), [("gamma", 1e-6), ("gamma", 1e6), ("negative_binomial", 1e6)]
)
def test_steps_of_an_additive_model_do_not_overflow(likelihood, gross):
    # At the mean of y, the other rows are so unlikely that Newton steps went far beyond them.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    y = rng.gamma(2, 1, 120) if likelihood == "gamma" else rng.poisson(3, 120).astype(float)
    y[7] = gross
    model = AdditiveGPRegressor(likelihood=likelihood, interactions=None, random_state=0)
    fit = model.fit(X, y)
    assert 0.1 < np.median(fit.predict(X)) < 100
    assert fit.elbo_ > -2000


def test_equal_amounts_in_rows_alike_do_not_remove_the_dispersion():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(150, 3))
    X = np.concatenate([X, X[:60] + 1e-3 * rng.normal(size=(60, 3))])
    f = np.sin(X[:, 0]) + 0.3 * rng.normal(size=210)
    f[150:] = f[:60]
    f[200:] += 0.5
    y = np.exp(np.round(2 * f) / 2)
    noise = SVGPRegressor(random_state=0).fit(X, np.log(y)).noise_variance_
    assert SVGPRegressor(likelihood="gamma", random_state=0).fit(X, y).dispersion_ > 0.45 * noise


@pytest.mark.parametrize("dispersion", [1e-3, 0.3, 3.0, 100.0])
def test_dispersion_of_a_variance_of_the_link(dispersion):
    f = torch.tensor([-1.0, 0.5], dtype=torch.float64)
    p = f.sigmoid().numpy()
    of_gamma, of_a, of_b = (
        stats.loggamma(share / dispersion).var() for share in (np.ones(2), p, 1 - p)
    )
    for name, variance in (("gamma", of_gamma), ("beta", of_a + of_b)):
        found = FAMILIES[name].dispersion(torch.as_tensor(variance), f)
        assert_allclose(found, dispersion, rtol=1e-6)


@pytest.mark.parametrize("likelihood", ["gamma", "beta"])
def test_large_dispersions_are_found(likelihood):
    rng, true = np.random.default_rng(0), 3.0
    X = rng.uniform(-2, 2, (400, 2))
    f = 0.8 * X[:, 0]
    mean = FAMILIES[likelihood].link.inverse(f)
    y = FAMILIES[likelihood].draw(mean, true, np.random.RandomState(0))
    y = np.clip(y, 1e-200, np.inf if likelihood == "gamma" else 1 - 1e-16)
    model = SVGPRegressor(likelihood=likelihood, random_state=0).fit(X, y)
    # A lower bound of half the variance of the link would be more than twice the dispersion.
    assert_allclose(model.dispersion_, true, rtol=0.2)
    assert np.corrcoef(model.latent_mean_and_variance(X)[0], f)[0, 1] > 0.95


def test_dispersion_of_counts_without_signal_is_the_most_likely_one():
    rng = np.random.default_rng(103)
    X = rng.normal(size=(1060, 5))
    y = drawn("negative_binomial", np.full(1060, 1.5), seed=rng)[:60]
    model = SVGPRegressor(likelihood="negative_binomial", random_state=0).fit(X[:60], y)

    def log_likelihood(dispersion):
        return FAMILIES["negative_binomial"].distribution(y.mean(), dispersion).logpmf(y).sum()

    best = max(log_likelihood(d) for d in np.geomspace(1e-4, 1, 50))
    assert log_likelihood(model.dispersion_) > best - 0.5 > log_likelihood(1e-4) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_counts_that_are_all_zero_or_equal(kind):
    X, _ = latents(30)
    for y in (np.zeros(30), np.full(30, 7.0)):
        with warnings.catch_warnings(action="ignore"):
            model = kind(likelihood="poisson", random_state=0).fit(X, y)
        assert np.isfinite(model.predict(X)).all()
        assert abs(model.predict(X).mean() - y.mean()) < 1
    # Zeros alone are as likely at any dispersion.
    overdispersed = kind(likelihood="negative_binomial", random_state=0).fit(X, np.zeros(30))
    assert overdispersed.predict(X).max() < 0.1


@pytest.mark.parametrize(
    "likelihood", ["laplace", "student_t", "gamma", "negative_binomial", "beta"]
)
def test_effects_of_noise_are_dropped_together(likelihood):
    """One by one each seems needed, since the scale of y is learned beside all of them."""
    rng = np.random.default_rng(101)
    X = rng.uniform(-1.7, 1.7, (60, 20))
    if likelihood in FAMILIES:
        y = drawn(likelihood, np.full(60, np.log(4)), seed=3)
    else:
        y = rng.laplace(size=60) if likelihood == "laplace" else rng.standard_t(4, size=60)
    model = AdditiveGPRegressor(likelihood=likelihood, interactions=None, random_state=0)
    assert model.fit(X, y).terms_ == []


# Refusals


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_targets_are_told(kind):
    X, f = latents(30)
    y = drawn("gamma", f)
    with pytest.raises(ValueError, match=r"not negative; y is between -1\.0 and"):
        kind(likelihood="negative_binomial").fit(X, np.r_[-1, y[1:]])
    with pytest.raises(ValueError, match=r"needs positive amounts; y is between 0\.0 and"):
        kind(likelihood="gamma").fit(X, np.r_[0, y[1:]])
    for end in (0.0, 1.0, 73.0):
        with pytest.raises(ValueError, match="needs proportions between 0 and 1"):
            kind(likelihood="beta").fit(X, np.r_[end, np.full(29, 0.5)])
    with pytest.raises(ValueError, match=r"between 0\.5 and 1\.0 in float32"):
        SVGPRegressor(likelihood="beta", dtype="float32").fit(X, np.r_[1 - 1e-9, np.full(29, 0.5)])
    with pytest.warns(UserWarning, match="is for counts; y has 30 values that are not integers"):
        kind(likelihood="negative_binomial").fit(X, y)
    model = kind(likelihood="gamma").fit(X, np.r_[0, y[1:]], sample_weight=np.r_[0, np.ones(29)])
    with pytest.raises(ValueError, match="gives no covariance"):
        model.predict(X, return_cov=True)


def test_parameters_of_noise_are_not_for_rates():
    X, f = latents(30)
    for given in ({"normalize_y": False}, {"noise_variance": 0.2}, {"solver": "exact"}):
        with pytest.raises(ValueError, match=r"normalize_y|noise_variance|solver='exact'"):
            SVGPRegressor(likelihood="gamma", **given).fit(X, np.exp(f))
    with pytest.raises(ValueError, match="'poisson' is not one of"):
        DecoupledGPRegressor(likelihood="poisson").fit(X, np.exp(f))


def test_another_likelihood_leaves_nothing_behind():
    X, f = latents(30)
    y = np.exp(f)
    model = SVGPRegressor(random_state=0).fit(X, y)
    model.set_params(likelihood="gamma").fit(X, y)
    assert not hasattr(model, "noise_variance_")
    model.set_params(likelihood="gaussian").fit(X, y)
    assert not hasattr(model, "dispersion_")


@pytest.mark.parametrize("likelihood", FAMILIES)
def test_kernel_that_explains_nothing_is_told(likelihood):
    X, f = latents(200, likelihood)
    kernel = ConstantKernel(1.0) * RBF(1.0)
    level = 0.0 if likelihood == "beta" else np.log(4)
    with pytest.warns(match="hardly any signal"):
        SVGPRegressor(kernel, likelihood=likelihood).fit(X, drawn(likelihood, np.full(200, level)))
    with warnings.catch_warnings(action="error"):
        SVGPRegressor(kernel, likelihood=likelihood).fit(X, drawn(likelihood, f))


def sparse_outcomes(likelihood, n, seed):
    """Return X, outcomes of weak information, and a wave's means: few counts, or heavy tails."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    mean = np.exp(1 + np.sin(1.5 * X[:, 0]) + 0.3 * X[:, 1])
    if likelihood == "gamma":
        return X, 1e4 * rng.gamma(0.7, mean / 0.7), 1e4 * mean
    if likelihood == "poisson":
        return X, rng.poisson(mean / 15), mean / 15
    return X, rng.negative_binomial(1, 1 / (1 + mean / 10)), mean / 10


@pytest.mark.parametrize(
    ("likelihood", "seed"),
    [("poisson", 2), ("poisson", 4), ("negative_binomial", 3), ("gamma", 0), ("gamma", 2)],
)
def test_effects_on_few_counts_and_heavy_tailed_amounts_are_found(likelihood, seed):
    # As Gaussian links they are all noise, or a function that follows every row.
    X, y, _ = sparse_outcomes(likelihood, 200, seed)
    new, _, mean = sparse_outcomes(likelihood, 800, 1000 + seed)
    options = {"likelihood": likelihood, "random_state": 0}
    kernel = 1.0 * RBF([1.2, 3.0])
    fixed = SVGPRegressor(kernel, optimizer=None, **options).fit(X, y)
    learned = SVGPRegressor(kernel, **options).fit(X, y)
    assert learned.elbo_ > fixed.elbo_ - 0.1
    for model in (learned, SVGPRegressor(**options).fit(X, y)):
        error = np.sqrt(np.mean((model.predict(new) - mean) ** 2)) / mean.std()
        assert error < 0.95
