"""Fits, streams and warm starts of estimators with inducing points."""

import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import ring
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss

from skgpsvm import BayesianSVC, EPClassifier, SVGPClassifier, SVGPRegressor
from skgpsvm.svgp import _regressor

X = np.random.default_rng(0).normal(size=(30, 2))
Y = np.digitize(X[:, 0], [-0.5, 0.5])
HELD = {"inducing_points": X[:4], "learn_inducing": False, "optimizer": None}


def test_fits_one_versus_rest_are_told_as_one():
    model = BayesianSVC(n_inducing=5, multi_class="ovr", random_state=0).fit(X, Y)
    assert len(model.objective_curve_) == model.n_iter_


@pytest.mark.parametrize("estimator", [BayesianSVC, SVGPClassifier])
def test_given_points_stay_where_learning_leaves_them(estimator):
    model = estimator(1.0 * RBF(1.0), **HELD, random_state=0).fit(X, Y)
    assert_array_equal(model.inducing_points_, X[:4])


def precisions(model):
    root = model._latents[0].root
    return np.linalg.inv(root @ root.mT)


@pytest.mark.parametrize(
    "model",
    [SVGPClassifier(), BayesianSVC(), SVGPRegressor(likelihood="laplace")],
    ids=lambda model: type(model).__name__,
)
def test_rows_count_as_much_one_by_one_as_at_once(model):
    data = np.random.default_rng(0).normal(size=(330, 2))
    y = np.digitize(data @ [1.0, 0.5], [-0.5, 0.5])
    model = model.set_params(kernel=1.0 * RBF(1.0), **HELD).partial_fit(data[:300], y[:300])
    before, at_once = precisions(model), deepcopy(model).partial_fit(data[300:], y[300:])
    for i in range(300, 330):
        model.partial_fit(data[i : i + 1], y[i : i + 1])
    added = [np.trace(precisions(m) - before, axis1=1, axis2=2) for m in (model, at_once)]
    # Sites are at other means. Steps of 0.7 or 0.5 would lose 30 % or half of the rows' precision.
    assert_allclose(*added, rtol=0.05)


def test_steps_keep_the_jitter_of_the_fit_that_they_continue(monkeypatch):
    used, summary = [], _regressor.regression_summary

    def recorded(ascent, state):
        used.append(ascent.basis)
        return summary(ascent, state)

    monkeypatch.setattr(_regressor, "regression_summary", recorded)
    counts = np.random.default_rng(0).poisson(np.exp(1 + X[:, 0]))
    model = SVGPRegressor(likelihood="poisson", warm_start=True, max_iter=5, random_state=0)
    with warnings.catch_warnings(action="ignore"):
        model.fit(X, counts)
        model.set_params(solver="natural_gradient").fit(X, counts)
    rows = torch.from_numpy(X)
    expected = model._latents[0].basis("cpu")(rows)
    assert_allclose(used[-1](rows)[0], expected[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("classifier", [EPClassifier, SVGPClassifier])
def test_few_rows_of_two_classes_are_all_inducing_points(classifier):
    rows, y = ring(300, 2)
    rows = np.concatenate([rows, rows[:20]])  # repeated rows are one point
    y = np.concatenate([y, 1 - y[:10], y[10:20]])
    model = classifier(optimizer=None, random_state=0).fit(rows, y)
    assert_allclose(model.inducing_points_, np.unique(rows, axis=0))
    assert len(clone(model).set_params(n_inducing=20).fit(rows, y).inducing_points_) == 20
    given = clone(model).set_params(inducing_points=rows[:4], learn_inducing=False)
    if classifier is EPClassifier:  # points that are held whatever the parameter
        given.set_params(learn_inducing=False)
    assert_allclose(given.fit(rows, y).inducing_points_, rows[:4])


@pytest.mark.parametrize(
    ("model", "n", "n_classes"),
    [
        (EPClassifier(optimizer=None), 1001, 2),
        (SVGPClassifier(optimizer=None, learn_inducing=False), 801, 2),
        (EPClassifier(optimizer=None), 701, 3),
        (SVGPClassifier(optimizer=None, learn_inducing=False), 300, 3),
        (EPClassifier(learn_inducing=True, max_iter=1), 300, 2),
        (EPClassifier(solver="sep", max_iter=1), 300, 2),
        (SVGPClassifier(solver="natural_gradient", max_iter=1), 300, 2),
    ],
    ids=str,
)
def test_more_rows_and_points_that_move_have_256_points(model, n, n_classes):
    rows, y = ring(n, n_classes)
    with warnings.catch_warnings(action="ignore"):
        model = clone(model).set_params(random_state=0).fit(rows, y)
    points = model.inducing_points_
    assert all(len(Z) == 256 for Z in (points if isinstance(points, list) else [points]))


@pytest.mark.parametrize("classifier", [EPClassifier, SVGPClassifier])
def test_a_warm_start_has_every_row_among_its_points_once_it_learns(classifier):
    rows, y = ring(400, 2)
    model = classifier(warm_start=True, random_state=0).fit(rows[:40], y[:40])
    assert len(model.inducing_points_) == 40
    model.fit(rows[:44], y[:44])  # so few more rows that nothing is learned
    assert len(model.inducing_points_) == 40
    model.fit(rows[:300], y[:300])
    assert_allclose(model.inducing_points_, np.unique(rows[:300], axis=0))
    alone = classifier(random_state=0).fit(rows[:300], y[:300])
    assert log_loss(y[300:], model.predict_proba(rows[300:])) < 0.02 + log_loss(
        y[300:], alone.predict_proba(rows[300:])
    )


@pytest.mark.parametrize("classifier", [EPClassifier, SVGPClassifier])
def test_a_warm_start_at_other_points_goes_on_from_its_sites(classifier):
    """The posterior of a given kernel at all rows does not depend on the points before."""
    rows, y = ring(60, 2)
    kernel = 2.0 * RBF(1.0)
    held = {"optimizer": None, "mean": "zero", "tol": 1e-8, "max_iter": 500}
    model = classifier(kernel, warm_start=True, **held).fit(rows[:20], y[:20])
    for n in (20, 60):
        model.fit(rows[:n], y[:n])
    alone = classifier(kernel, **held).fit(rows, y)
    assert_allclose(model.inducing_points_, alone.inducing_points_)
    assert_allclose(
        model.latent_mean_and_variance(rows), alone.latent_mean_and_variance(rows), atol=1e-4
    )
