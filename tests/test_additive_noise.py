"""Additive models whose noise varies: posterior, effects on the noise, predictions, refusals."""

import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._testing import ignore_warnings
from sklearn.utils.estimator_checks import parametrize_with_checks

from skgpsvm import AdditiveGPRegressor, SVGPRegressor
from skgpsvm.additive import _ascent
from skgpsvm.additive._defaults import DEFAULTS
from skgpsvm.inspection import ComponentEffectDisplay, ComponentEffects, ContributionDisplay
from skgpsvm.likelihoods import Heteroscedastic

quick = {"likelihood": "heteroscedastic", "interactions": None, "random_state": 0}


def fans(n, seed=0):
    """Return X (n, 3), a mean of the first feature, and noise that the others double and triple."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 3))
    mean, std = np.sin(6 * X[:, 0]), 0.1 * 2.0 ** X[:, 1] * 3.0 ** (X[:, 2] > 0.5)
    return X, mean, std, mean + std * rng.standard_normal(n)


@pytest.fixture(scope="module")
def fit():
    """A fit of 600 rows, with X and y."""
    X, _, _, y = fans(600)
    return AdditiveGPRegressor(**quick).fit(X, y), X, y


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.* first call")
@parametrize_with_checks(
    [AdditiveGPRegressor(**quick, max_iter=3, steps=None, n_inducing=6, sparse=True)]
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_posterior_is_the_fixed_point_of_a_dense_process(monkeypatch):
    monkeypatch.setattr(_ascent, "DEFAULTS", replace(DEFAULTS, round_gain=1e-4))
    X, _, _, y = fans(30)
    model = AdditiveGPRegressor(**quick, sparse=False, min_gain=0, steps=None, tol=1e-7)
    model.set_params(max_iter=100, point_masses=None).fit(X, y)
    posteriors = [latent.posterior("cpu") for latent in model._latents]
    kept = np.argsort(
        np.argsort(posteriors[0].arrays["u"][:, 0].numpy())
    )  # the order of rows in the fit
    X, y = (part[np.argsort(X[:, 0])][kept] for part in (X, y))
    marginals = zip(*(part.marginals(torch.as_tensor(X)) for part in posteriors), strict=True)
    mean, variance = (torch.cat(parts, 1) for parts in marginals)
    likelihood = Heteroscedastic(model.noise_variance_ / y.var(), 1e-6).requires_grad_(False)
    target = torch.as_tensor((y - y.mean()) / y.std())[:, None]
    derivatives = likelihood.expected_derivatives(target, mean, variance)
    for part, *columns in zip(
        posteriors, *(t.T for t in (mean, variance, *derivatives)), strict=True
    ):
        m, v, first, second = (column.numpy() for column in columns)
        assert_allclose(part.precision, -second, rtol=0.02)
        assert_allclose(part.linear, first - second * m, atol=0.02 * abs(first).max())
        K, precision = part._prior.matrix.numpy(), part.precision.numpy()
        cov = K - K @ np.linalg.inv(K + np.diag(1 / precision)) @ K
        assert_allclose(m, cov @ part.linear.numpy(), atol=1e-6)
        assert_allclose(v, np.diag(cov), atol=1e-6)
    log_std = 0.5 * (mean[:, 1].numpy() + np.log(model.noise_variance_))
    assert_allclose(model.noise_intercept_ + model.explain_noise(X).sum(1), log_std, atol=1e-10)


def test_effects_on_the_mean_and_on_the_noise_are_found(fit):
    model = fit[0]
    new, mean, std, y = fans(1000, seed=1)
    found, deviation = model.predict(new, return_std=True)
    assert np.sqrt(np.mean((found - mean) ** 2)) < 0.05
    assert np.std(np.log(model.predict_noise_variance(new) / std**2) / 2) < 0.2
    assert np.mean(abs(y - found) < 1.96 * deviation) == pytest.approx(0.95, abs=0.02)
    effects, bands = model.explain_noise(new, return_std=True)
    assert effects.shape == bands.shape == (1000, len(model.terms_))
    by_name = dict(zip(model.term_names_, effects.T, strict=True))
    step = by_name["x2"] + by_name.get("steps of x2", 0)
    rise = step[new[:, 2] > 0.6].mean() - step[new[:, 2] < 0.4].mean()
    assert rise == pytest.approx(np.log(3), abs=0.2)
    place = model.term_names_.index("x0")  # has no effect on the noise
    assert (abs(effects[:, place]) < 2 * bands[:, place]).all()
    assert abs(effects[:, place]).max() < 0.15
    # The shares are those of the mean, which only the first feature moves.
    assert model.sobol_indices_[model.term_names_.index("x0")] > 0.99
    assert model.feature_importances_[0] > 0.9


def test_contributions_add_up(fit):
    model, X, _ = fit
    mean, variance = model.latent_mean_and_variance(X)
    assert_allclose(model.intercept_ + model.explain(X).sum(1), mean, atol=1e-10)
    assert_allclose(mean, model.predict(X), atol=1e-10)
    median = np.exp(2 * (model.noise_intercept_ + model.explain_noise(X).sum(1)))
    ratio = model.predict_noise_variance(X) / median
    assert ratio.min() > 1  # the mean of a log-normal variable
    assert ratio.max() < 1.5
    total = variance + model.predict_noise_variance(X)
    assert_allclose(model.predict(X, return_std=True)[1], np.sqrt(total), rtol=1e-10)


def test_units_of_y_do_not_matter(fit):
    model, X, y = fit
    other = AdditiveGPRegressor(**quick).fit(X, 1000 * y + 7)
    assert_allclose(other.explain_noise(X), model.explain_noise(X), atol=1e-4)
    assert other.noise_intercept_ - model.noise_intercept_ == pytest.approx(np.log(1000), abs=1e-4)
    assert_allclose(other.explain(X), 1000 * model.explain(X), atol=0.1)


def test_several_outputs_have_their_own_noise():
    X, mean, _, y = fans(200)
    both = np.c_[y, mean + 0.2 * np.random.default_rng(2).standard_normal(200)]
    model = AdditiveGPRegressor(**quick).fit(X, both)
    assert model.explain(X).shape == model.explain_noise(X).shape == (200, len(model.terms_), 2)
    assert_allclose(model.intercept_ + model.explain(X).sum(1), model.predict(X), atol=1e-10)
    spread = np.log(model.predict_noise_variance(X)).std(0)
    assert spread[0] > 0.8 > 0.3 > spread[1]
    assert list(ComponentEffects.from_estimator(model).intercepts) == [0, 1, "noise 0", "noise 1"]


def test_noise_is_drawn_and_held_by_intervals(fit):
    model = fit[0]
    new, _, _, y = fans(1000, seed=2)
    for method in ("predictive", "conformal"):
        lower, upper = model.predict_interval(new, 0.9, method)
        assert np.mean((lower < y) & (y < upper)) == pytest.approx(0.9, abs=0.03)
    draws = model.sample_y(new[:20], 4000)
    assert_allclose(draws.std(1), model.predict(new[:20], return_std=True)[1], rtol=0.1)


def test_more_rows_sharpen_both():
    X, _, _, y = fans(400)
    model = AdditiveGPRegressor(**quick).partial_fit(X[:200], y[:200])
    before = model.explain_noise(X, return_std=True)[1].mean()
    model.partial_fit(X[200:], y[200:])
    assert model.explain_noise(X, return_std=True)[1].mean() < 0.9 * before
    whole = AdditiveGPRegressor(**quick, sparse=True).fit(X, y)
    assert np.corrcoef(model.explain_noise(X).sum(1), whole.explain_noise(X).sum(1))[0, 1] > 0.9


def test_noise_without_effects_has_none():
    rng = np.random.default_rng(100)
    X, y = rng.standard_normal((60, 20)), rng.standard_normal(60)
    model = AdditiveGPRegressor(**quick).fit(X, y)
    assert model.terms_ == []
    assert model.predict_noise_variance(X[:1]) == pytest.approx(y.var(), rel=0.1)


def test_effects_on_the_noise_are_drawn(fit):
    model, X, _ = fit
    display = ComponentEffectDisplay.from_estimator(model, X, latent="noise")
    shares = [part.share for part in display.effects]
    assert shares == sorted(shares, reverse=True)
    assert display.effects[0].name != "x0"
    of_mean = ComponentEffectDisplay.from_estimator(model, X)
    assert (of_mean.effects[0].name, of_mean.effects[0].latent) == ("x0", 0)
    row = ContributionDisplay.from_estimator(model, X[:1], latent="noise")
    total = row.intercept + row.contributions.sum()
    expected = model.noise_intercept_ + model.explain_noise(X[:1]).sum()
    assert total == pytest.approx(expected)
    assert "noise" in row.label
    table = ComponentEffects.from_estimator(model).to_dict()
    assert [own["latent"] for own in table["intercepts"]] == [0, "noise"]
    plt.close("all")


@pytest.mark.parametrize("kind", [AdditiveGPRegressor, SVGPRegressor])
def test_names_of_columns_are_checked_once(kind):
    X, _, _, y = fans(60)
    table = pd.DataFrame(X, columns=list("abc"))
    model = kind(likelihood="heteroscedastic", max_iter=3, n_inducing=8, random_state=0)
    with ignore_warnings(category=ConvergenceWarning):
        model.fit(table, y)
    with warnings.catch_warnings(action="error"):  # such as that of names
        assert_allclose(
            model.predict(table, return_std=True)[1] ** 2,
            model.latent_mean_and_variance(table)[1] + model.predict_noise_variance(table),
        )


ODD = {
    "one row": lambda X, y: (X[:1], y[:1]),
    "two rows": lambda X, y: (X[:2], y[:2]),
    "fewer rows than features": lambda X, y: (np.tile(X[:8], 4) ** np.arange(1, 13), y[:8]),
    "duplicated rows": lambda X, y: (np.repeat(X[:15], 3, 0), np.repeat(y[:15], 3)),
    "equal targets": lambda X, y: (X[:45], np.full(45, 5.0)),
    "huge targets": lambda X, y: (X[:45], 1e8 * y[:45] + 1e9),
    "tiny targets": lambda X, y: (X[:45], 1e-8 * y[:45]),
    "huge features": lambda X, y: (1e8 * X[:45], y[:45]),
    "missing numbers": lambda X, y: (np.where(X[:45] < 0.1, np.nan, X[:45]), y[:45]),
    "single precision": lambda X, y: (X[:45].astype(np.float32), y[:45].astype(np.float32)),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_data_give_finite_predictions(case):
    X, _, _, y = fans(60)
    X, y = ODD[case](X, y)
    model = AdditiveGPRegressor(**quick)
    with ignore_warnings(category=ConvergenceWarning):
        model.fit(X, y)
    mean, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X)
    assert np.isfinite(mean).all()
    assert np.isfinite(model.explain_noise(X)).all()
    assert std.min() > 0
    assert (lower < mean).all()
    assert (mean < upper).all()
    assert np.abs(mean - y).max() < 6 * std.max()


def test_another_likelihood_leaves_nothing_behind():
    X, _, _, y = fans(60)
    model = AdditiveGPRegressor(**quick).fit(X, y)
    model.set_params(likelihood="gaussian")
    assert model.explain_noise(X).shape == model.explain(X).shape  # those of the fit
    model.fit(X, y)
    assert not hasattr(model, "noise_intercept_")
    assert not hasattr(model, "explain_noise")
    assert list(ComponentEffects.from_estimator(model).intercepts) == [0]


def test_refusals(fit):
    model, X, y = fit
    with pytest.raises(AttributeError) as refused:
        AdditiveGPRegressor().explain_noise(X)
    assert "likelihood='heteroscedastic'" in str(refused.value.__cause__)
    with pytest.raises(ValueError, match="noise_variance is that of Gaussian noise"):
        AdditiveGPRegressor(**quick).fit(X, y, noise_variance=np.ones(600))
    with pytest.raises(ValueError, match="latent='noises' must be one of"):
        ComponentEffectDisplay.from_estimator(model, X, latent="noises")
