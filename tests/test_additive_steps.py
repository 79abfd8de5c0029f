"""Steps of additive models: where they are found, their prior, their bins, and their plots."""

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import norm

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor
from skgpsvm.additive import _search
from skgpsvm.additive._interactions import step_p_values
from skgpsvm.inspection import ComponentEffectDisplay, ComponentEffects, ContributionDisplay

QUICK = {"interactions": None, "tol": 1e-3, "random_state": 0}
SIZES = pytest.mark.parametrize("n", [400, 1600])  # all rows, inducing points


def step(n, noise=0.1, seed=0):
    """Return rows of three features, the mean, which has a step of the first, and y."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 3))
    f = 1.0 * (X[:, 0] > 0.37) + X[:, 1]
    return X, f, f + noise * rng.normal(size=n)


def error(model, truth=step):
    X, f, _ = truth(1000, seed=1)
    return np.sqrt(np.mean((model.predict(X) - f) ** 2))


@pytest.fixture(scope="module")
def stepped():
    X, _, y = step(800)
    X[::50, 0] = np.nan
    return AdditiveGPRegressor(sparse=True, **QUICK).fit(X, y), X, y


# Where steps are found


def test_p_values_hold_for_any_noise(stepped):
    basis, rng = stepped[0]._latents[0].basis, np.random.default_rng(0)
    X, ones = torch.tensor(rng.uniform(size=(200, 3))), torch.ones(200, 1).double()
    rare = (rng.uniform(size=(100, 200, 1)) < 0.05) - 0.05
    for draws in (rng.normal(size=(200, 200, 1)), rng.standard_t(3, size=(100, 200, 1)), rare):
        found = [
            step_p_values(basis, basis.terms, X, r, r.var() * ones, ones[:, 0]).values()
            for r in torch.tensor(draws)
        ]
        assert np.mean([3 * min(own) < 0.05 for own in found]) < 0.08
    few = X[:20], 9 * ones[:20], ones[:20], ones[:20, 0]
    assert set(step_p_values(basis, basis.terms, *few).values()) == {1.0}


def test_p_values_are_those_of_bins_and_neighbors(stepped):
    basis, rng = stepped[0]._latents[0].basis, np.random.default_rng(1)
    X, r, w = rng.uniform(size=(48, 3)), rng.normal(size=(48, 2)), rng.gamma(9, size=(48, 2)) / 9
    ratios = []
    for bins in (4, 8):
        cells = np.argsort(X[:, 1]).reshape(bins, -1)
        k = cells.shape[1]
        mean = r[cells].mean(1)
        var = np.maximum(w[cells].mean(1), r[cells].var(1, ddof=1)) / k
        ratios += [mean**2 / var, np.diff(mean, axis=0) ** 2 / (var[1:] + var[:-1])]
    ratios = np.concatenate(ratios)
    found = step_p_values(basis, basis.terms, *map(torch.tensor, (X, r, w, np.ones(48))))
    assert_allclose(found[1], min(1, ratios.size * 2 * norm.sf(np.sqrt(ratios.max()))))


@SIZES
def test_a_step_is_found_and_smooth_effects_have_none(n):
    X, _, y = step(n)
    rough, smooth = (AdditiveGPRegressor(steps=own, **QUICK).fit(X, y) for own in ("auto", None))
    assert set(rough.term_names_) - set(smooth.term_names_) == {"steps of x0"}
    assert rough.terms_[rough.term_names_.index("steps of x0")] == (0,)
    assert rough.elbo_ > smooth.elbo_ + 10
    assert error(rough) < 0.9 * error(smooth)


def test_steps_that_lower_the_elbo_leave_the_smooth_model(monkeypatch):
    X = np.random.default_rng(0).uniform(size=(400, 3))
    y = np.sin(6 * X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=400)
    smooth = AdditiveGPRegressor(sparse=True, steps=None, **QUICK).fit(X, y)
    monkeypatch.setattr(_search, "step_p_values", lambda *args: dict.fromkeys(range(3), 0.0))
    run, stages = _search.TermSearch._run, []

    def in_one_round(search, name, stage, max_iter, **options):
        run(search, name, stage, 1 if name == "steps" else max_iter, **options)
        stages.append(name)

    monkeypatch.setattr(_search.TermSearch, "_run", in_one_round)
    # No warning says that the stage which is rejected has not converged, nor do its rounds count.
    tried = AdditiveGPRegressor(sparse=True, **QUICK).fit(X, y)
    assert "steps" in stages
    assert_allclose(tried.objective_curve_, smooth.objective_curve_, rtol=1e-12)
    assert_allclose(tried.elbo_, smooth.elbo_, rtol=1e-12)
    assert_allclose(tried.predict(X), smooth.predict(X), rtol=1e-12)


@pytest.mark.parametrize(
    ("method", "likelihood"),
    [
        (AdditiveGPRegressor, "student_t"),
        (AdditiveGPRegressor, "poisson"),
        (AdditiveGPClassifier, "softmax"),
        (AdditiveGPClassifier, "probit"),
    ],
)
def test_every_likelihood_has_steps(method, likelihood):
    X, rng = step(600)[0], np.random.default_rng(2)
    f = 4.0 * (abs(X[:, 0] - 0.4) < 0.05) + X[:, 1]
    y = {"student_t": f / 8 + 0.1 * rng.normal(size=600), "poisson": rng.poisson(np.exp(f - 2))}
    y = y.get(likelihood, rng.uniform(size=600) < 1 / (1 + np.exp(2 - f)))
    model = method(likelihood=likelihood, terms=[0, 1], n_inducing=6, **QUICK).fit(X, y)
    assert "steps of x0" in model.term_names_
    assert "steps of x1" not in model.term_names_


def test_levels_of_a_number_may_differ_freely():
    rng = np.random.default_rng(0)
    group, x = rng.integers(50, size=1600), rng.uniform(size=1600)
    level = rng.normal(size=50)
    y = level[group] + x + 0.1 * rng.normal(size=1600)
    model = AdditiveGPRegressor(**QUICK).fit(np.column_stack([group, x]), y)
    feature = model._latents[0].basis.features[-1]
    assert len(feature.edges) == 49  # a bin of each value
    new = np.column_stack([np.arange(50), np.full(50, 0.5)])
    assert_allclose(model.predict(new), level + 0.5, atol=0.12)


# Prior and bins


def test_steps_are_a_centered_random_walk_over_bins(stepped):
    model, X, _ = stepped
    latent = model._latents[0]
    basis, place = latent.basis, model.term_names_.index("steps of x0")
    [(k, column)] = [(k, own.column) for k, own in enumerate(basis.features) if own.edges]
    assert (basis.terms[place], column) == ((k,), 0)
    edges = basis.features[0].inverse(torch.tensor(basis.features[k].edges)).numpy()
    m, known = len(edges) + 1, ~np.isnan(X[:, 0])
    bins = np.searchsorted(edges, X[:, 0])
    counts = np.bincount(bins[known], minlength=m)
    assert counts.min() >= 3
    assert counts.max() <= 5
    theta = {kind: torch.tensor(own) for kind, own in latent.theta.items()}
    variance = theta["variance"][place].exp().item()
    g = np.exp(-abs(np.subtract.outer(np.arange(m), np.arange(m))) / m)
    h = g @ counts / counts.sum()
    cov = variance * (g - np.outer(h, h) / (h @ counts / counts.sum()))
    effects, columns = basis.at(theta), basis(torch.tensor(X))
    psi = (columns[1 + place] @ effects.coefs[1 + place]).numpy()
    expected = np.where(np.outer(known, known), cov[np.ix_(bins % m, bins % m)], 0)
    assert_allclose(psi @ psi.T, expected, atol=1e-6)
    features, variances = effects.features(basis.unit(torch.tensor(X)))
    assert_allclose(features[1 + place], psi, atol=1e-9)
    prior = variances[:, 1 + place].numpy()
    assert_allclose(prior[known], cov.diagonal()[bins[known]], atol=1e-9)


def test_both_forms_have_the_same_posterior():
    X, _, y = step(400)
    exact = AdditiveGPRegressor(terms=[0], sparse=False, **QUICK).fit(X, y)
    sparse = AdditiveGPRegressor(terms=[0], sparse=True, **QUICK).fit(X, y)
    assert exact.term_names_ == sparse.term_names_ == ["x0", "steps of x0"]
    assert_allclose(exact.predict(X), sparse.predict(X), atol=0.1)
    assert abs(error(exact) - error(sparse)) < 0.1 * error(exact)


def test_more_rows_keep_the_bins():
    X, _, y = step(1200)
    model = AdditiveGPRegressor(sparse=True, **QUICK).partial_fit(X[:800], y[:800])
    before, first = model._latents[0].basis.features[-1].edges, error(model)
    model.partial_fit(X[800:], y[800:])
    assert model._latents[0].basis.features[-1].edges == before
    assert error(model) < first


# Plots and tables


def test_tables_have_steps_as_they_are(stepped):
    model, X, _ = stepped
    table = json.loads(json.dumps(ComponentEffects.from_estimator(model).to_dict()))
    part = next(part for part in table["effects"] if part["term"] == "steps of x0")
    [grid], known = part["grid"], X[~np.isnan(X[:, 0])]
    effects = model.explain(known)[:, model.term_names_.index("steps of x0")]
    assert_allclose(np.interp(known[:, 0], grid, part["effect"]), effects, atol=1e-9)
    assert len(set(np.round(part["effect"], 12))) < len(grid)


def test_steps_are_drawn(stepped):
    model, X, _ = stepped
    display = ComponentEffectDisplay.from_estimator(model, X, features=["steps of x0", "x1"])
    assert [ax.get_xlabel() for ax in display.axes_] == ["x0", "x1"]
    names = ContributionDisplay.from_estimator(model, X[1:2]).names
    assert f"steps at x0 = {X[1, 0]:.3g}" in names
