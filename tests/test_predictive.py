"""Predictions and predictive distributions: noise, checks, draws, moments, cached posteriors."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from every_estimator import ESTIMATORS, assert_same, fitted, predictions, problem
from numpy.testing import assert_allclose, assert_array_equal
from problems import ring, waves
from sklearn.base import clone, is_classifier
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import log_loss

import skgpsvm
from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPClassifier,
    EPClassifier,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._fitted_models import LAYOUT
from skgpsvm._predictive import Predictive

FEW = {"n_inducing": 6, "n_mean_bases": 12, "n_basis": 12, "max_iter": 3, "optimizer": None}
EVERY = [getattr(skgpsvm, name) for name in sorted(skgpsvm.__all__) if name[0] != "_"]
CLASSIFIERS = [kind for kind in EVERY if is_classifier(kind())]
REGRESSORS = [kind for kind in EVERY if kind not in CLASSIFIERS]


def few(kind, X, y, **parameters):
    """Return a quick, rough fit of an estimator."""
    model = kind(random_state=0, **parameters)
    options = {name: value for name, value in FEW.items() if name in model.get_params()}
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return model.set_params(**options).fit(X, y)


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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [kind for kind in REGRESSORS if kind is not AdditiveGPRegressor])
def test_covariances_of_rows_without_noise_have_their_variances(kind, dtype):
    X, y = waves(60, 2)
    options = {"noise_variance": 1e-12, "optimizer": None, "dtype": dtype, "random_state": 0}
    model = kind(**{name: options[name] for name in options if hasattr(kind(), name)}).fit(X, y)
    rows = np.concatenate([X, X + 0.01])
    cov = model.predict(rows, return_cov=True)[1]
    std = model.predict(rows, return_std=True)[1]
    # A variance is a difference, of which single precision leaves five digits of the prior's.
    tolerance = {"rtol": 1e-5, "atol": 1e-4 * y.var() if dtype == "float32" else 1e-12}
    assert_allclose(np.diagonal(cov), std**2, **tolerance)


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


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_latent_of_a_classifier_has_no_axis(kind, n_classes):
    X, y = ring(30, n_classes)
    model = few(kind, X, y)
    shape = (30,) if n_classes == 2 else (30, 3)
    assert [part.shape for part in model.latent_mean_and_variance(X)] == [shape, shape]
    draws = model.sample_latent(X, 2)
    assert draws.shape == (2, 30, 1 if n_classes == 2 else 3)
    assert model.predict_proba_from_latent(draws).shape == (2, 30, n_classes)


def test_two_latents_of_two_classes_have_one():
    X, y = ring(30, 2)
    model = few(SVGPClassifier, X, y, likelihood="robust_max")
    assert model.latent_mean_and_variance(X)[0].shape == (30, 2)


@pytest.mark.parametrize("kind", REGRESSORS)
@pytest.mark.parametrize("columns", [0, [0], [0, 1]])
def test_latents_of_a_regressor_have_the_axes_of_its_targets(kind, columns):
    X, y = waves(30, 2)
    y = np.c_[y, -y][:, columns]
    model = few(kind, X, y)
    mean, variance = model.latent_mean_and_variance(X)
    assert mean.shape == variance.shape == y.shape
    assert_allclose(mean, model.predict(X), rtol=1e-6)
    assert model.sample_latent(X, 2).shape == (2, 30, np.size(columns))


def far_apart(part):
    """Return a fitted model with means so far apart that probabilities underflow."""
    means = {name: getattr(part, name, None) for name in ("mean", "coef")}
    return replace(part, **{k: 1e6 * mean for k, mean in means.items() if mean is not None})


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_log_probabilities_are_finite_and_those_of_the_probabilities(kind, n_classes):
    X, y = ring(30, n_classes)
    model = few(kind, X, y)
    p, log_p = model.predict_proba(X), model.predict_log_proba(X)
    assert_allclose(np.exp(log_p), p, rtol=1e-12)
    assert_array_equal(model.predict(X), model.classes_[p.argmax(1)])
    model._latents = [far_apart(part) for part in model._latents]
    p, log_p = model.predict_proba(X), model.predict_log_proba(X)
    assert np.isfinite(log_p).all()
    assert (log_p <= 0).all()
    assert_allclose(log_p[p > 0], np.log(p[p > 0]), rtol=1e-10, atol=1e-15)
    with pytest.raises(NotFittedError):
        clone(model).predict_log_proba(X)


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_class_weights_multiply_probabilities(kind, n_classes):
    X, y = ring(30, n_classes)
    plain, factors = few(kind, X, y), np.array([0.5, 3.0, 1.0])[:n_classes]
    model = few(kind, X, y, class_weight=dict(enumerate(factors)))
    assert_array_equal(model.class_weight_, factors)
    assert_array_equal(model.latent_mean_and_variance(X), plain.latent_mean_and_variance(X))

    def weighted(p):
        return p * factors / (p * factors).sum(-1, keepdims=True)

    p = model.predict_proba(X)
    assert_allclose(p, weighted(plain.predict_proba(X)), rtol=1e-10)
    assert_array_equal(model.predict(X), p.argmax(1))
    scores = model.decision_function(X)
    difference = scores if n_classes == 2 else scores[:, 1] - scores[:, 0]
    assert_allclose(difference, np.log(p[:, 1] / p[:, 0]), atol=1e-10)
    draws = model.sample_latent(X, 2)
    given = model.predict_proba_from_latent(draws)
    assert_allclose(given, weighted(plain.predict_proba_from_latent(draws)), rtol=1e-12)


@pytest.mark.parametrize("kind", [BayesianSVC, EPClassifier, SVGPClassifier])
def test_rows_passed_three_times_are_not_three_times_as_certain(kind):
    # Each copy predicted the others, and the loss was .8 to 2.1.
    X, y = make_classification(260, 5, flip_y=0.2, random_state=0)
    X, y, X_new, y_new = X[:160], y[:160], X[160:], y[160:]
    copies = np.tile(X, (3, 1)), np.tile(y, 3)
    once, thrice = (
        log_loss(y_new, kind(random_state=0).fit(*rows).predict_proba(X_new))
        for rows in ((X, y), copies)
    )
    assert thrice < once + 0.1


@pytest.mark.parametrize("kind", [BayesianSVC, EPClassifier, SVGPClassifier])
def test_balanced_classes_without_signal_are_near_chance(kind):
    # Rows weighted by class would look like copies, and thus like signal: the loss was 2 to 3.5.
    random_state = np.random.RandomState(0)
    X, y = random_state.randn(600, 4), (random_state.rand(600) < 0.1).astype(int)
    model = kind(class_weight="balanced", random_state=0).fit(X[:200], y[:200])
    log_p = model.predict_log_proba(X[200:])
    loss = -np.mean([log_p[y[200:] == label, label].mean() for label in (0, 1)])
    assert loss < 0.8


def test_conformal_sets_do_not_depend_on_class_weights_but_have_the_label():
    X, y = ring(120, 2)
    plain, model = (few(SVGPClassifier, X, y, class_weight=w) for w in (None, {0: 1.0, 1: 20.0}))
    expected, found = (fit.predict_set(X, 0.7, method="conformal") for fit in (plain, model))
    labels = model.predict(X)
    same = labels == plain.predict(X)
    assert 0 < same.sum() < len(X)
    assert_array_equal(found[same], expected[same])
    assert found[np.arange(len(X)), labels].all()


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_draws_of_probabilities_are_finite_whatever_the_class_weights(kind):
    X, y = ring(40, 3)
    model = few(kind, X, y, class_weight={0: 1e-300, 1: 1.0, 2: 1e300})
    for p in (model.sample_proba(1e3 * X, 5), model.predict_proba(1e3 * X)):
        assert_allclose(p.sum(-1), 1, rtol=1e-10)


@pytest.mark.parametrize("n_copies", [4, 50])
@pytest.mark.parametrize("kind", [BayesianSVC, EPClassifier, SVGPClassifier, DecoupledGPClassifier])
def test_rows_of_few_values_recur_and_are_remembered(kind, n_copies):
    # Without all copies of a cell, the others predict the wrong label.
    cells = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    for y in (np.array([0, 0, 0, 1]), np.array([0, 1, 1, 0])):
        model = kind(random_state=0).fit(np.tile(cells, (n_copies, 1)), np.tile(y, n_copies))
        assert_array_equal(model.predict(cells), y)
        assert model.predict_proba(cells)[range(4), y].min() > 0.9


def test_class_of_weight_zero_without_rows_has_finite_log_probabilities():
    X, y = ring(60, 3)
    model = SVGPClassifier(n_inducing=8, class_weight={2: 0.0}, random_state=0)
    model.partial_fit(X, y, classes=[0, 1, 2])
    assert (model.predict_proba(X)[:, 2] < 1e-100).all()
    assert np.isfinite(model.predict_log_proba(X)).all()


@pytest.mark.parametrize("factor", [1e-20, 1e-16, 1e6])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("kind", [BayesianSVC, EPClassifier, SVGPClassifier])
def test_ties_of_probabilities_are_ties_of_all_predictions(kind, n_classes, factor):
    X, y = ring(60, n_classes)
    model = few(kind, X, y)
    model._latents = [replace(part, mean=factor * part.mean) for part in model._latents]
    if kind is BayesianSVC:
        model.intercept_ = 0 * model.intercept_
    p, scores, labels = model.predict_proba(X), model.decision_function(X), model.predict(X)
    if factor == 1e-20 and kind is not SVGPClassifier:  # its variances differ between classes
        assert (p == p[:, :1]).all()
    assert_array_equal(labels, p.argmax(1))
    if n_classes == 2:
        assert_array_equal(scores > 0, labels)
        assert_array_equal(scores == 0, p[:, 0] == p[:, 1])
    else:
        assert_array_equal(scores.argmax(1), labels)
        tied = p == p.max(1, keepdims=True)
        assert_array_equal(scores == scores.max(1, keepdims=True), tied)


def test_scores_rank_as_rounded_probabilities():
    p = torch.tensor([[0.5, 0.5], [0.4, 0.6], [0.6, 0.4]], dtype=torch.float64)
    scores = torch.tensor([[1e-20], [0.0], [-0.4]], dtype=torch.float64)
    ranked = Predictive(scores, p.log(), p).ranked_scores()[:, 0]
    assert ranked[0] == 0 < ranked[1]
    assert ranked[2] == -0.4
    p = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)
    scores = torch.tensor([[9.0, 10.0, -1.0], [3.0, 2.0, 3.0]], dtype=torch.float64)
    ranked = Predictive(scores, p.log(), p).ranked_scores()
    assert ranked[0].tolist() == [10, 10, -1]
    assert ranked[1].argmax() == 2
    assert ranked[1].tolist() == pytest.approx([3, 2, 3])


@pytest.mark.parametrize("kind", [SVGPClassifier, BayesianSVC, EPClassifier])
def test_rows_that_overflow_are_refused_by_number(kind):
    X, y = ring(40, 2)
    model = kind(n_inducing=8, max_iter=5, random_state=0)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(X.astype(np.float32), y)
    X[3, 1] = 1e38
    with pytest.raises(ValueError, match=r"prediction of row 3 of X .* largest number is 1e\+38"):
        model.latent_mean_and_variance(X.astype(np.float32))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [n for n, m in ESTIMATORS.items() if not is_classifier(m)])
def test_means_alone_are_those_with_deviations_to_the_last_bit(name):
    model = fitted(name)
    X, _ = problem(model)
    assert_array_equal(model.predict(X), model.predict(X, return_std=True)[0])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_posterior_is_made_once_and_is_not_pickled(name, monkeypatch):
    model = fitted(name)
    before = pickle.dumps(model)
    found = predictions(model)
    assert len(pickle.dumps(model)) == len(before)

    def refuse(self, device):
        raise AssertionError("the posterior was made again")

    for kind in {type(part) for part in model._latents}:
        monkeypatch.setattr(kind, "make_posterior", refuse)
    assert_same(predictions(model), found)
    monkeypatch.undo()
    assert_same(predictions(pickle.loads(before)), found)


def test_pickle_of_another_layout_is_refused():
    model = SVGPRegressor(n_inducing=4, max_iter=2)
    state = model.__getstate__()
    other = SVGPRegressor.__new__(SVGPRegressor)
    for layout in (
        {**state, "_layout": LAYOUT - 1},
        {k: state[k] for k in state if k != "_layout"},
    ):
        with pytest.raises(ValueError, match="SVGPRegressor was written by another version"):
            other.__setstate__({**state, "_layout": layout})
    other.__setstate__(state)
    assert vars(other) == vars(model)
