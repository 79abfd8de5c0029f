"""Additive models through their public interface: terms, streams, interactions, behavior."""

import pickle
import re
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import EDGES, few_valued, friedman, t64
from scipy.special import expit
from scipy.stats import gamma
from sklearn.datasets import load_iris, make_classification, make_friedman1
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor
from skgpsvm.additive import _ascent
from skgpsvm.additive._bound import Sums
from skgpsvm.additive._defaults import DEFAULTS
from skgpsvm.additive._posterior import AdditivePosterior
from skgpsvm.additive._search import TermSearch
from skgpsvm.callbacks import Checkpoint

on_set_bounds = pytest.mark.filterwarnings(  # bounds set by `quick`
    "ignore:.*on bounds that were set:sklearn.exceptions.ConvergenceWarning"
)
quick = {"sparse": True, "interactions": None, "n_inducing": 8, "length_scale_bounds": (0.2, 10.0)}


def test_shares_are_those_of_contributions():
    data, y = few_valued(400)
    model = AdditiveGPRegressor(sparse=True, interactions=None, min_gain=0).fit(data, y)
    assert list(model._latents[0].basis.tabled) == [0, 1]
    variances = model.explain(data).var(0)
    assert_allclose(model.sobol_indices().share, variances / variances.sum(), atol=1e-5)


@pytest.mark.parametrize("sparse", [True, False])
def test_bounds_of_length_scales_hold_in_double_precision(sparse):
    data, y = friedman(30)
    bounds = {"length_scale_bounds": (0.3, 0.3), "interactions": None}
    model = AdditiveGPRegressor(sparse=sparse, min_gain=0, max_iter=2, **bounds).fit(data, y)
    assert_allclose(np.exp(model._latents[0].theta["length"]), 0.3, rtol=1e-14)


def test_friedman_is_found():
    data, y = friedman(1000)
    model = AdditiveGPRegressor(sparse=True, min_gain=1, random_state=0).fit(data, y)
    assert model.term_names_ == ["x0", "x1", "x2", "x3", "x4", "x0 & x1"]
    assert model.dropped_terms_ == ["x5"]
    shares = [0.197310, 0.197310, 0.093267, 0.349751, 0.087438, 0.074924]
    assert_allclose(model.sobol_indices_, shares, atol=0.05)  # sampling error of a thousand rows
    new, truth = friedman(500, seed=1, noise=0.0)
    mean, std = model.predict(new, return_std=True)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.25
    assert_allclose(model.noise_variance_, 1, atol=0.15)
    assert 0.93 < np.mean(np.abs(friedman(500, seed=1)[1] - mean) < 1.96 * std) < 0.98
    indices = model.sobol_indices()
    assert (indices.lower < indices.share).all()
    assert (indices.share < indices.upper).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson"])
def test_contributions_add_up(likelihood):
    data, y = friedman(200)
    model = AdditiveGPRegressor(likelihood=likelihood, **quick).fit(data, np.round(np.abs(y) / 4))
    mean, std = model.explain(data, return_std=True)
    latent, _ = model.latent_mean_and_variance(data)
    assert_allclose(model.intercept_ + mean.sum(1), latent, atol=1e-10)
    assert mean.shape == std.shape == (200, len(model.terms_))
    # Effects have zero mean over the training rows, up to the interpolation of the kernel.
    assert np.abs(mean.mean(0)).max() < 1e-3 * mean.std()


@on_set_bounds
def test_contributions_of_classes_and_outputs_add_up():
    data, y = load_iris(return_X_y=True)
    model = AdditiveGPClassifier(tol=1e-2, **quick).fit(data, y)
    total = model.intercept_ + model.explain(data).sum(1)
    assert_allclose(total, model.latent_mean_and_variance(data)[0], atol=1e-10)
    both = np.c_[data[:, 3], 10 - data[:, 2]]
    model = AdditiveGPRegressor(**quick).fit(data[:, :2], both)
    total = model.intercept_ + model.explain(data[:, :2]).sum(1)
    assert_allclose(total, model.predict(data[:, :2]), atol=1e-10)
    alone = AdditiveGPRegressor(**quick, min_gain=0).fit(data[:, :2], both[:, 0])
    joint = AdditiveGPRegressor(**quick, min_gain=0).fit(data[:, :2], both)
    assert_allclose(joint.predict(data[:, :2])[:, 0], alone.predict(data[:, :2]), atol=1e-3)


def test_the_order_of_columns_does_not_matter():
    data, y = friedman(300)
    order = [3, 0, 5, 1, 4, 2]
    options = {"interactions": 2, "n_inducing": 8, "n_inducing_interaction": 4}
    one = AdditiveGPRegressor(**options).fit(data, y)
    other = AdditiveGPRegressor(**options).fit(data[:, order], y)
    # The point where the optimizer stops depends on rounding.
    assert_allclose(one.predict(data), other.predict(data[:, order]), atol=5e-3)
    assert {frozenset(order[j] for j in term) for term in other.terms_} == set(
        map(frozenset, one.terms_)
    )


def test_units_of_features_and_of_y_do_not_matter():
    data, y = friedman(200)
    one = AdditiveGPRegressor(**quick).fit(data, y)
    other = AdditiveGPRegressor(**quick).fit(100 * data - 3, 1e3 * y + 7)
    assert_allclose(other.predict(100 * data - 3), 1e3 * one.predict(data) + 7, rtol=1e-4)


@pytest.mark.parametrize("known", [False, True])
def test_more_rows_are_those_of_a_fit_at_the_same_hyper_parameters(known):
    data, y = friedman(300)
    variances = np.random.default_rng(0).uniform(0, 2, 300) if known else np.zeros(300)
    first, more = (
        {"noise_variance": variances[part]} if known else {}
        for part in (slice(0, 200), slice(200, None))
    )
    model = AdditiveGPRegressor(**quick).fit(data[:200], y[:200], **first)
    basis, theta = model._latents[0].basis, model._latents[0].theta
    model.partial_fit(data[200:], y[200:], **more)
    inside = np.clip(data, data[:200].min(0), data[:200].max(0))
    columns = torch.cat(basis(t64(inside)), 1)
    target = t64((y - model._y_mean) / model._y_std)
    precision = 1 / (np.exp(model._noise[0]) + t64(variances / model._y_std**2))
    sums = Sums(columns.T * precision @ columns, columns.T @ (precision * target), 0.0, 0.0)
    effects = basis.at({kind: t64(value) for kind, value in theta.items()})
    found = sums.of_features(effects)
    posterior = AdditivePosterior(effects, found.gram, found.cross)
    expected = posterior.marginals(t64(data))[0][:, 0].numpy() * model._y_std + model._y_mean
    # The sites of known noise are those before the last step of the learned noise.
    assert_allclose(model.predict(data), expected, atol=2e-3 if known else 1e-7)


@pytest.mark.parametrize("weight", [0.01, 1, 10])
def test_rows_without_a_count_have_a_small_rate(weight):
    X = np.random.default_rng(0).normal(size=(200, 1))
    weights = np.full(200, weight)
    counts = np.c_[np.zeros(200), np.ones(200)]
    for y in (counts[:, 0], counts):
        model = AdditiveGPRegressor(likelihood="poisson").fit(X, y, sample_weight=weights)
        rates = model.predict(X).reshape(200, -1)
        assert (rates[:, 0] > 0).all()
        # The rows expect less than one count in all; with a total weight of 2, the prior adds some.
        assert (rates[:, 0] < 1 / weights.sum()).all()
        assert_allclose(rates[:, 1:], 1, atol=0.01)


@on_set_bounds
@pytest.mark.parametrize("kind", ["poisson", "classes"])
def test_more_rows_of_other_likelihoods_sharpen(kind):
    data, y = friedman(400)
    y = np.round(np.abs(y) / 4) if kind == "poisson" else y > 14
    model = AdditiveGPClassifier(**quick)
    if kind == "poisson":
        model = AdditiveGPRegressor(likelihood="poisson", **quick)
    first = model.fit(data[:200], y[:200]).latent_mean_and_variance(data)[1].mean()
    curve = model.objective_curve_
    second = model.partial_fit(data[200:], y[200:]).latent_mean_and_variance(data)
    assert 1 < model.n_iter_ == len(model.objective_curve_) < len(curve)
    assert model.objective_curve_[-1] > model.objective_curve_[0]
    whole = type(model)(**model.get_params()).fit(data, y).latent_mean_and_variance(data)
    assert second[1].mean() < 0.8 * first
    assert np.corrcoef(second[0], whole[0])[0, 1] > 0.95


@on_set_bounds
@pytest.mark.parametrize("kind", ["poisson", "laplace", "classes"])
def test_rows_one_by_one_count_as_those_at_once(kind):
    data, y = friedman(230)
    start = {"poisson": np.round(y / 4), "laplace": y, "classes": np.digitize(y, [11, 17])}[kind]
    model = AdditiveGPClassifier(**quick)
    if kind != "classes":
        model = AdditiveGPRegressor(likelihood=kind, **quick)
    first = model.fit(data[:200], start[:200])
    once, single = deepcopy(first), deepcopy(first)
    once.partial_fit(data[200:], start[200:])
    for i in range(200, 230):
        single.partial_fit(data[i : i + 1], start[i : i + 1])
    before, at_once, apart = (
        1 / m.latent_mean_and_variance(data[200:])[1].mean() for m in (first, once, single)
    )
    assert (apart - before) / (at_once - before) == pytest.approx(1, abs=0.1)


def test_streams_warn_of_a_first_call_of_few_rows():
    data, y = friedman(15)
    with pytest.warns(UserWarning, match="it had only 15 rows"):
        AdditiveGPRegressor(interactions=None).partial_fit(data, y)


def test_streams_warn_of_rows_outside_the_range_of_the_first():
    data, y = friedman(200)
    first = data[:, 0] < 0.5
    model = AdditiveGPRegressor(**quick).partial_fit(data[first], y[first])
    with pytest.warns(UserWarning, match="many rows .* in x0\\."):
        model.partial_fit(data[~first], y[~first])


@on_set_bounds
def test_rows_of_another_likelihood_are_refused():
    data, y = friedman(60)
    model = AdditiveGPRegressor(**quick).fit(data, y).set_params(likelihood="laplace")
    with pytest.raises(
        ValueError, match="likelihood was 'gaussian' at the fit and is 'laplace' now"
    ):
        model.partial_fit(data, y)


@on_set_bounds
def test_rates_with_exposures_are_counts():
    rng = np.random.RandomState(0)
    data, exposure = rng.uniform(size=(300, 2)), rng.uniform(0.5, 5, 300)
    counts = rng.poisson(exposure * np.exp(1 + np.sin(3 * data[:, 0])))
    model = AdditiveGPRegressor(likelihood="poisson", **quick)
    model.fit(data, counts / exposure, sample_weight=exposure)
    assert_allclose(model.predict(data), np.exp(1 + np.sin(3 * data[:, 0])), rtol=0.35)
    assert_allclose(np.sum(exposure * model.predict(data)), counts.sum(), rtol=0.01)
    _, std = model.predict(data[:3], return_std=True)
    draws = model.sample_y(data[:3], 4000)
    assert draws.shape == (3, 4000)
    assert_array_equal(draws, np.round(draws))
    assert_allclose(draws.std(1), std, rtol=0.1)
    with pytest.raises(ValueError, match="gives no covariance"):
        model.predict(data, return_cov=True)
    with pytest.raises(ValueError, match="which are not negative; y is between -1"):
        model.fit(data, counts - 1.0 - counts.min())


@pytest.mark.filterwarnings(
    "ignore:.*on bounds that were set:sklearn.exceptions.ConvergenceWarning"
)
def test_covariance_forms_of_bands():
    data, y = friedman(200)
    data[:, 1] = data[:, 0] + 0.1 * data[:, 1]
    stds = {}
    for covariance in ("full", "mean_field", "precision"):
        model = AdditiveGPRegressor(covariance=covariance, min_gain=0, **quick)
        stds[covariance] = model.fit(data, y).explain(data, return_std=True)[1]
    assert stds["mean_field"][:, :2].mean() < 0.8 * stds["full"][:, :2].mean()
    assert_allclose(stds["precision"], stds["full"], atol=0.05)


def test_robust_noise_bears_outliers():
    data, y = friedman(400, noise=0.3)
    truth = friedman(400, noise=0.0)[1]
    y[::20] += 30
    options = {**quick, "terms": [..., (0, 1)], "interactions": None}
    models = (AdditiveGPRegressor(likelihood=name, **options) for name in ("gaussian", "student_t"))
    errors = [np.mean((model.fit(data, y).predict(data) - truth) ** 2) for model in models]
    assert errors[1] < 0.01 * errors[0]


def test_minibatches_come_close():
    data, y = friedman(600)
    options = {**quick, "random_state": 0}
    whole = AdditiveGPClassifier(**options).fit(data, y > 14)
    parts = AdditiveGPClassifier(batch_size=200, tol=1e-3, **options).fit(data, y > 14)
    assert np.abs(whole.predict_proba(data) - parts.predict_proba(data)).mean() < 0.03


def test_two_categories_interact():
    rng = np.random.RandomState(0)
    frame = pd.DataFrame({name: rng.choice(["a", "b"], 300) for name in ("one", "two")})
    y = (frame["one"] == frame["two"]).to_numpy() + 0.1 * rng.normal(size=300)
    model = AdditiveGPRegressor().fit(frame, y)
    assert model.term_names_[-1] == "one & two"
    assert model.score(frame, y) > 0.9


# Interactions and pruning


def test_interactions_are_chosen_by_users():
    data, y = friedman(300)
    frame = pd.DataFrame(data, columns=list("abcdef"))
    model = AdditiveGPRegressor(terms=[..., ("b", "a"), (4, 5)], interactions=None).fit(frame, y)
    assert model.terms_[-2:] == [(0, 1), (4, 5)]
    assert model.interaction_scores_ == {}
    found = AdditiveGPRegressor(interactions=1).fit(frame, y)
    assert found.term_names_[-1] == "a & b"
    assert next(iter(found.interaction_scores_)) == "a & b"


def coast(n, seed=0):
    """Return rows of two features on a coast and two others, and values that peak at places."""
    rng = np.random.default_rng(seed)
    places = np.array([[0.1, 0.9], [0.3, 0.7], [0.5, 0.5], [0.7, 0.3], [0.9, 0.1]])
    data = places[rng.integers(5, size=n)] + 0.07 * rng.normal(size=(n, 2))
    square = np.square(data[:, None] - places).sum(2)
    value = np.exp(-0.5 * square / 0.03**2) @ [1.5, 1.0, 2.0, 1.0, 1.5]
    return np.column_stack([data, rng.uniform(size=(n, 2))]), value, rng


@pytest.mark.parametrize(
    "kind",
    [
        "gaussian",
        "poisson",
        "classes",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("laplace", "outputs")),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_hot_spots_of_correlated_features_are_found(kind):
    data, value, rng = coast(2000)
    data[::50, 2] = np.nan
    value = 2 * value + np.sin(6 * data[:, 3])
    options = {**quick, "interactions": 1, "n_inducing_interaction": 5, "max_iter": 8}
    if kind == "classes":
        labels = 3 * value - 3 + rng.logistic(size=2000) > 0
        model = AdditiveGPClassifier(**options).fit(data, labels)
    else:
        y = value + 0.4 * rng.normal(size=2000)
        if kind == "outputs":
            y = np.column_stack([data[:, 3] + 0.1 * rng.normal(size=2000), y])
        elif kind == "poisson":
            y = rng.poisson(np.exp(value))
        likelihood = "gaussian" if kind == "outputs" else kind
        model = AdditiveGPRegressor(**options, likelihood=likelihood).fit(data, y)
    scores = model.interaction_scores_
    assert scores.pop("x0 & x1") > 10
    assert max(scores.values()) < 5


def test_effects_that_are_not_learned_and_uneven_noise_are_no_interactions():
    scores = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        data = rng.uniform(size=(2000, 5))
        y = 40 * data[:, 0] % 2 + np.exp(3 * data[:, 1] * data[:, 2]) * rng.standard_t(4, 2000) / 5
        model = AdditiveGPRegressor(**{**quick, "interactions": 1}).fit(data, y)
        scores += model.interaction_scores_.values()
        assert not any(len(term) == 2 for term in model.terms_)
    assert abs(np.mean(scores) - 1) < 0.5  # the largest of four scores of variance one


@pytest.mark.parametrize("given", ["x", True, -1, 1.5, [(0, 1)]])
def test_bad_interactions(given):
    with pytest.raises(ValueError, match=r"interactions=.* must be 'auto', None, or the maximum"):
        AdditiveGPRegressor(interactions=given).fit(*friedman(50))


@pytest.mark.parametrize(
    "entry",
    [
        *((0, 9), (1, 1), (0, 1.0), (0, True), 9, ("a", "b"), "x", (0, "wavy"), (0, 1, 2), None),
        *((0, "cyclic", 0), (0, "cyclic", np.inf), (0, "linear", 2), (), ("linear", 0)),
    ],
)
def test_bad_terms(entry):
    with pytest.raises(ValueError, match=r"terms has .*An entry must be `...`, a feature by name"):
        AdditiveGPRegressor(terms=[entry]).fit(*friedman(50))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("age", "must be None or a list"),
        (3, "must be None or a list"),
        ([0, (0, "linear")], "'x0' twice"),
        ([(0, 1), (1, 0)], "'x0 & x1' twice"),
        ([(0, "random")], "'x0' is a number. List it in categorical_features"),
        ([(5, "linear")], "'x5' is a category"),
    ],
)
def test_terms_that_contradict(terms, message):
    with pytest.raises(ValueError, match=message):
        AdditiveGPRegressor(terms=terms, categorical_features=[5]).fit(*friedman(50))


@pytest.mark.parametrize("name", ["a & b", "a = 0", "a = -1e+06", "steps of b"])
def test_columns_that_have_the_name_of_a_term_are_refused(name):
    data, y = friedman(50)
    frame = pd.DataFrame(data[:, :3], columns=["a", "b", name])
    with pytest.raises(ValueError, match=f"{re.escape(repr(name))} of X has a name that a term"):
        AdditiveGPRegressor(interactions=None).fit(frame, y)
    frame.columns = ["c", "d", name]  # no such columns
    assert name in AdditiveGPRegressor(interactions=None).fit(frame, y).term_names_


@pytest.mark.parametrize("sparse", [True, False])
def test_a_list_of_terms_is_the_model(sparse):
    data, y = friedman(150)
    frame = pd.DataFrame(data, columns=["a", "b", "linear", "d", "e", "f"])
    frame["g"] = np.where(frame["f"] > 0.5, "up", "down")
    terms = ["d", ("g", "random"), ("a", "b"), ("a", "linear"), 4]  # "linear" is a column here
    model = AdditiveGPRegressor(terms=terms, sparse=sparse, min_gain=1e9).fit(frame, y)
    assert model.term_names_ == ["d", "e", "g", "a & b", "a & linear"]
    assert model.interaction_scores_ == {}
    assert_allclose(model.intercept_ + model.explain(frame).sum(1), model.predict(frame))
    assert model.feature_importances_[5] == 0
    changed = frame.assign(f=np.nan)
    assert_array_equal(model.predict(changed), model.predict(frame))


def test_an_ellipsis_is_all_that_would_be_without_the_list():
    data, y = friedman(120)
    default = AdditiveGPRegressor(interactions=2).fit(data, y)
    same = AdditiveGPRegressor(terms=[...], interactions=2).fit(data, y)
    assert_array_equal(same.predict(data), default.predict(data))
    kept = AdditiveGPRegressor(terms=[..., 5], interactions=None, min_gain=1e9).fit(data, y)
    assert kept.term_names_ == ["x5"]
    found = AdditiveGPRegressor(terms=[..., (4, 5)], sparse=True).fit(*friedman(300))
    assert {"x4 & x5", "x0 & x1"} <= {*found.term_names_}


KINDS = {
    "regressor": (AdditiveGPRegressor, {}),
    "several outputs": (AdditiveGPRegressor, {}),
    "student": (AdditiveGPRegressor, {"likelihood": "student_t"}),
    "classifier": (AdditiveGPClassifier, {}),
}


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_linear_effects_are_lines(kind, sparse):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.lognormal(0, 1, 120), rng.uniform(size=120), rng.normal(size=120)])
    X[:7, 0] = np.nan
    latent = np.nan_to_num(X[:, 0], nan=-1) + np.sin(5 * X[:, 1])
    y = latent + 0.2 * rng.normal(size=120)
    method, options = KINDS[kind]
    y = y > 1 if kind == "classifier" else np.stack([y, -y], 1) if "outputs" in kind else y
    terms = [(0, "linear"), 1, (2, "linear"), (0, 2)]
    model = method(terms=terms, sparse=sparse, **options).fit(X, y)
    grid = np.column_stack([np.linspace(-5, 30, 15), np.full(15, 0.4), np.zeros(15)])
    effects, std = model.explain(grid, return_std=True)
    steps = np.diff(effects[:, 0], axis=0)
    assert_allclose(steps, np.broadcast_to(steps[:1], steps.shape), rtol=1e-6, atol=1e-12)
    assert (np.abs(steps) > 0.01).all()
    assert (std[-1, 0] > std[6, 0]).all()
    missing = model.explain(X[:1])[0, 0]
    assert (np.sign(missing) == -np.sign(steps[0])).all()
    latent = model.latent_mean_and_variance(X)[0]
    total = model.intercept_ + model.explain(X).sum(1)
    assert_allclose(total, latent, rtol=1e-8, atol=1e-8)
    assert model.sobol_indices().lower.shape == (4,)


@pytest.mark.parametrize("sparse", [True, False])
def test_lines_shrink_as_in_ridge_regression(sparse):
    """The posterior of a single linear effect is that of Bayesian linear regression."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1))
    y = 0.5 * X[:, 0] + rng.normal(size=60)
    model = AdditiveGPRegressor(terms=[(0, "linear")], sparse=sparse).fit(X, y)
    (latent,) = model._latents
    assert latent.theta["length"].size == 0
    (variance,) = np.exp(latent.theta["variance"])
    design = np.column_stack([np.ones(60), (X[:, 0] - X[:, 0].mean()) / X[:, 0].std()])
    target = (y - model._y_mean) / model._y_std
    noise = model.noise_variance_ / model._y_std**2
    precision = design.T @ design / noise + np.diag([1, 1 / variance])
    weights = np.linalg.solve(precision, design.T @ target / noise)
    mean, std = model.latent_mean_and_variance(X)
    assert_allclose(mean, design @ weights * model._y_std + model._y_mean, rtol=1e-6)
    cov = np.linalg.inv(precision)
    assert_allclose(std, ((design @ cov) * design).sum(1) * model._y_std**2, rtol=1e-5)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("period", [None, 24])
def test_cyclic_effects_continue_after_a_period(sparse, period):
    rng = np.random.default_rng(0)
    hour = rng.integers(0, 24, 300) if period is None else rng.uniform(0, 24, 300)
    X = np.column_stack([hour, rng.uniform(size=300)])
    truth = np.exp(np.cos(2 * np.pi * (hour - 1) / 24))
    y = truth + X[:, 1] + 0.3 * rng.normal(size=300)
    entry = (0, "cyclic") if period is None else (0, "cyclic", period)
    # The pair of a cyclic feature is cyclic too.
    model = AdditiveGPRegressor(terms=[entry, 1, (0, 1)], sparse=sparse, max_iter=5).fit(X, y)
    hours = np.column_stack([np.linspace(-24, 48, 73), np.full(73, 0.7)])
    effects, std = model.explain(hours, return_std=True)
    for values in (effects[:, [0, 2]], std[:, [0, 2]]):
        assert_allclose(values[24:49], values[:25], atol=1e-9)
        assert_allclose(values[48:], values[24:49], atol=1e-9)
        # Without a jump at the end of the day.
        late = np.column_stack([[23.99, 24.01], [0.7, 0.7]])
        jump = np.diff(model.explain(late)[:, [0, 2]], axis=0)
        assert np.abs(jump).max() < 0.03
    free = AdditiveGPRegressor(terms=[0, 1, (0, 1)], sparse=sparse, max_iter=5).fit(X, y)
    new = np.column_stack([np.linspace(0, 23, 47), np.full(47, 0.5)])
    right = np.exp(np.cos(2 * np.pi * (new[:, 0] - 1) / 24)) + 0.5
    error = [np.sqrt(np.mean((m.predict(new) - right) ** 2)) for m in (model, free)]
    assert error[0] < 1.02 * error[1]


def test_cyclic_effects_of_streams_and_of_gaps():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 7, 200), rng.uniform(size=200)])
    y = np.sin(2 * np.pi * X[:, 0] / 7) + 0.1 * rng.normal(size=200)
    X[::10, 0] = np.nan
    model = AdditiveGPRegressor(terms=[(0, "cyclic", 7), 1], n_inducing=8)
    model.partial_fit(X[:100], y[:100])
    shifted = X[100:] + np.array([70, 0])
    model.partial_fit(shifted, y[100:])  # no warning of numbers outside the range
    new = np.column_stack([np.linspace(700, 707, 20), np.full(20, 0.5)])
    assert_allclose(model.predict(new), np.sin(2 * np.pi * new[:, 0] / 7), atol=0.25)


def test_pruning_can_be_off():
    data, y = friedman(200)
    assert AdditiveGPRegressor(**quick, min_gain=0).fit(data, y).dropped_terms_ == []
    none = AdditiveGPRegressor(**quick, min_gain=1e9).fit(data, y)
    assert none.terms_ == []
    assert_allclose(none.predict(data), y.mean(), rtol=1e-2)
    assert none.explain(data).shape == (200, 0)
    assert none.sobol_indices_.shape == (0,)


@on_set_bounds
@pytest.mark.parametrize("kind", [AdditiveGPRegressor, AdditiveGPClassifier])
def test_the_objective_is_the_bound_and_the_prior_of_effects(kind, monkeypatch):
    monkeypatch.setattr(_ascent, "DEFAULTS", replace(DEFAULTS, round_gain=1e-3))
    X, y = make_friedman1(60, n_features=5, noise=1.0, random_state=0)
    y = y if kind is AdditiveGPRegressor else y > np.median(y)
    model = kind(**quick, shrinkage=3.0, min_gain=0).fit(X, y)
    latent = model._latents[0]
    log_spreads = latent.posterior("cpu").effects.log_spreads()[0].numpy()
    stds = np.exp(0.5 * (latent.theta["variance"] + log_spreads))
    prior = gamma(2, scale=1 / 3).logpdf(stds).sum()
    # The last entry of a classifier's curve is the bound before its last step on the variances.
    assert_allclose(model.objective_curve_[-1] - model.elbo_, prior, atol=0.05)
    alone = kind(**quick, shrinkage=0, min_gain=0).fit(X, y)
    assert_allclose(alone.objective_curve_[-1], alone.elbo_)


@on_set_bounds
def test_the_prior_keeps_many_effects_from_chance():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((460, 30))
    chance = expit(1.5 * X[:, 0] + X[:, 1])
    y = rng.random(len(X)) < chance
    model = AdditiveGPClassifier(**quick, min_gain=0)
    alone, kept = (
        model.set_params(shrinkage=rate).fit(X[:160], y[:160]).predict_proba(X[160:])
        for rate in (0.0, 7.0)
    )
    assert log_loss(y[160:], alone) > log_loss(y[160:], chance[160:]) + 0.2
    assert log_loss(y[160:], kept) < log_loss(y[160:], chance[160:]) + 0.05


@pytest.mark.parametrize("kind", [AdditiveGPRegressor, AdditiveGPClassifier])
def test_effects_of_noise_are_dropped_together_and_many_weak_ones_are_not(kind):
    rng = np.random.default_rng(2)
    noise, X = rng.normal(size=(60, 20)), rng.normal(size=(150, 12))
    y, weak = rng.normal(size=60), 0.5 * X.sum(1) + rng.logistic(size=150)
    if kind is AdditiveGPClassifier:
        y, weak = y > 0, weak > 0
    assert kind(interactions=None).fit(noise, y).terms_ == []
    assert kind(interactions=None, terms=[0, ...]).fit(noise, y).terms_ == [(0,)]
    assert len(kind(interactions=None).fit(X, weak).terms_) > 8


def test_further_pairs_are_tested_without_those_that_gain_too_little(monkeypatch):
    tested, searches = TermSearch._tested, []

    def recorded(search, level):
        if not search.exact:
            searches.append((list(search.ascent.basis.pairs), list(search.dropped)))
        return tested(search, level)

    monkeypatch.setattr(TermSearch, "_tested", recorded)
    X, y = make_classification(
        400, 6, n_informative=5, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0
    )
    gam = AdditiveGPClassifier(random_state=0).fit(X, y)
    (none, _), (kept, dropped) = searches
    assert not none
    assert kept == gam._latents[0].basis.pairs == [(4, 5)]
    of_pairs = [term for term in dropped if len(term) == 2]
    assert (0, 2) in of_pairs
    assert (4, 5) not in of_pairs


@on_set_bounds
def test_found_pair_must_gain_more_than_chance_would():
    rng = np.random.default_rng(0)
    data = rng.uniform(size=(500, 3))
    y = np.sin(4 * data[:, 0]) + 0.7 * (data[:, 0] - 0.5) * (data[:, 1] - 0.5)
    y = y + 0.5 * rng.normal(size=500)
    # The test finds this pair. Its gain is above min_gain, but below log(3 pairs / 0.01).
    search = {**quick, "interactions": 1}
    found = AdditiveGPRegressor(**search).fit(data, y)
    assert "x0 & x1" in found.dropped_terms_
    assert "x0 & x1" in AdditiveGPRegressor(**search, min_gain=0).fit(data, y).term_names_
    given = AdditiveGPRegressor(**quick, terms=[..., (0, 1)]).fit(data, y)
    assert "x0 & x1" in given.term_names_


# Behavior


@pytest.mark.parametrize("make", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("kind", ["gaussian", "poisson", "classes"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_edges_of_data(make, kind):
    data, y = friedman(40)
    data = make(data)
    y = y[: len(data)]
    if kind == "classes":
        model = AdditiveGPClassifier(max_iter=8).fit(data, np.arange(len(y)) % 2)
        assert np.isfinite(model.predict_proba(data)).all()
    else:
        model = AdditiveGPRegressor(likelihood=kind, max_iter=8).fit(data, np.round(np.abs(y)))
        mean, std = model.predict(data, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()
        assert np.isfinite(std).all()


def test_one_row_and_columns_without_effect():
    data, y = friedman(30)
    assert_allclose(AdditiveGPRegressor().fit(data[:1], y[:1]).predict(data), y[0])
    frame = pd.DataFrame({"a": data[:, 3], "level": "same", "none": None, "nan": np.nan})
    model = AdditiveGPRegressor().fit(frame, y)
    assert model.term_names_ == ["a"]


def test_outside_the_range_effects_fade_and_bands_widen():
    data, y = friedman(400)
    model = AdditiveGPRegressor(**quick).fit(data, y)
    far = data[:1].copy()
    far[0, 2] = 100.0
    near, wide = model.explain(data, True)[1][:, 2].max(), model.explain(far, True)[1][0, 2]
    assert wide > 3 * near


def test_samples_have_the_moments_of_predictions():
    data, y = friedman(200)
    model = AdditiveGPRegressor(**quick).fit(data, y)
    mean, cov = model.predict(data[:4], return_cov=True)
    draws = model.sample_y(data[:4], 20_000)
    assert_allclose(draws.mean(1), mean, atol=0.05)
    assert_allclose(np.cov(draws), cov, atol=0.05)


def test_memmaps_are_read_in_chunks(tmp_path, monkeypatch):
    data, y = friedman(500)
    np.save(tmp_path / "X.npy", data)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    whole = AdditiveGPRegressor(**quick).fit(data, y)
    monkeypatch.setattr("skgpsvm._data.HELD_BYTES", 0)
    monkeypatch.setattr("skgpsvm._merging._MAX_MERGED", 0)
    # Rows are in another order: the point where the optimizer stops depends on rounding.
    read = AdditiveGPRegressor(**quick).fit(mapped, y)
    assert_allclose(read.predict(data), whole.predict(data), rtol=1e-4)


def test_pickles_predict_and_pipelines_search():
    data, y = friedman(120)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), AdditiveGPRegressor(**quick)),
        {"additivegpregressor__kernel": ["rbf", "matern52"]},
        cv=2,
    ).fit(data, y)
    again = pickle.loads(pickle.dumps(search))
    assert_array_equal(again.predict(data), search.predict(data))


@pytest.mark.parametrize(("sparse", "n_killed"), [(True, 3), (False, 2)])
def test_a_fit_killed_between_stages_ends_the_same(sparse, n_killed, tmp_path):
    data, y = friedman(200)

    class Kill:
        def setup(self, estimator, context): ...

        def teardown(self, estimator, context): ...

        def on_fit_task_begin(self, estimator, context): ...

        def on_fit_task_end(self, estimator, context):
            if context.task_name.startswith(("effects", "all rows")):
                raise KeyboardInterrupt

    options = {"interactions": 1, "n_inducing": 8, "sparse": sparse, "tol": 1e-3}
    options |= {"n_inducing_interaction": 4} if sparse else {}
    plain = AdditiveGPRegressor(**options).fit(data, y)
    for _ in range(n_killed):
        model = AdditiveGPRegressor(**options).set_callbacks(Checkpoint(tmp_path), Kill())
        with pytest.raises(KeyboardInterrupt):
            model.fit(data, y)
    again = AdditiveGPRegressor(**options).set_callbacks(Checkpoint(tmp_path)).fit(data, y)
    assert_array_equal(again.predict(data), plain.predict(data))
    assert_array_equal(again.objective_curve_, plain.objective_curve_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "linear"}, "kernel='linear' is not one of 'rbf', 'matern32', 'matern52'"),
        ({"covariance": "low"}, "covariance='low' is not one of"),
        ({"measure": "gaussian"}, "measure='gaussian' is not one of"),
        ({"scaling": "quantile"}, "scaling='quantile' is not one of"),
        ({"rank": 0}, "rank=0 must be an integer of at least 1, or None"),
        ({"n_inducing": 1}, "n_inducing=1 must be an integer of at least 2"),
        (
            {"n_inducing_interaction": "all"},
            "an integer of at least 2, or 'auto', or None",
        ),
        ({"length_scale_bounds": (1, 0.1)}, "must be two positive numbers in ascending order"),
        ({"length_scale_bounds": "fixed"}, "must be two positive numbers in ascending order"),
        ({"min_gain": -1}, "min_gain=-1 must be a number of at least 0"),
        ({"likelihood": "tweedie"}, "likelihood='tweedie' is not one of"),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        AdditiveGPRegressor(**options).fit(*friedman(20))


def test_bad_levels_and_links():
    data, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="likelihood='probit' is for two classes; y has 3"):
        AdditiveGPClassifier(likelihood="probit").fit(data, y)
    model = AdditiveGPRegressor(**quick).fit(data, y)
    for level in (2, "a", None):
        with pytest.raises(ValueError, match=f"level={level!r} must be between 0 and 1"):
            model.sobol_indices(level=level)


def test_streams_refuse_balanced_classes():
    X, y = np.arange(20.0)[:, None], np.arange(20) % 2
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows"):
        AdditiveGPClassifier(class_weight="balanced").partial_fit(X, y)


def deviations(ascent, state):
    """Return the prior standard deviations of effects over their measure, (n_terms,)."""
    [(own, _, prior)] = ascent._parts(state)
    return (0.5 * (own["variance"] + prior.whole.log_spreads()[0])).exp()


@pytest.mark.parametrize("likelihood", ["laplace", "poisson"])
@pytest.mark.parametrize("sparse", [True, False])
def test_stages_start_from_the_latents_of_the_stage_before(likelihood, sparse, monkeypatch):
    found = []
    monkeypatch.setattr(TermSearch, "prune", lambda search: found.append(search))
    X, y = friedman(150)
    options = {**quick, "sparse": sparse, "likelihood": likelihood, "random_state": 0}
    AdditiveGPRegressor(**options).fit(X, (y - y.min()).round())
    [search] = found
    state = search.ascent.init(search.state.noise, (search.ascent, search.state))
    search.ascent.step(state)
    assert_allclose(state.objective, search.state.objective, atol=0.3)
    assert_allclose(*(deviations(search.ascent, each) for each in (state, search.state)), atol=0.1)


def test_leave_one_out_predictions_show_caution_of_several_classes():
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(3, 8))
    y = rng.integers(3, size=2060)
    X = centers[y] + 0.8 * rng.normal(size=(2060, 8))
    model = AdditiveGPClassifier(interactions=0, random_state=0).fit(X[:60], y[:60])
    assert 1.1 < model.temperature_ < 3
    tempered = model.predict_proba(X[60:])
    plain = tempered ** (1 / model.temperature_)
    plain /= plain.sum(1, keepdims=True)
    loss = log_loss(y[60:], tempered)
    assert loss < 0.9 * log_loss(y[60:], plain)
    assert abs(model.loo_log_loss_ - loss) < 0.05


def test_a_stream_keeps_the_power_of_its_first_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = (X[:, 0] > 0).astype(int)
    model = AdditiveGPClassifier(interactions=0, random_state=0).partial_fit(X[:60], y[:60])
    power = model.temperature_
    assert model.partial_fit(X[60:], y[60:]).temperature_ == power != 1


def test_classes_have_the_same_hyperparameters():
    data, y = friedman(150)
    labels = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    for sparse in (True, False):
        model = AdditiveGPClassifier(sparse=sparse, interactions=None).fit(data, labels)
        first, *others = (latent.theta for latent in model._latents)
        assert len(others) == 2
        for other in others:
            assert_allclose(other["length"], first["length"], rtol=0)
            assert_allclose(other["variance"], first["variance"], rtol=0)
