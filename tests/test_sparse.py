"""Fits, streams and warm starts of estimators with inducing points."""

import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import BayesianSVC, SVGPClassifier, SVGPRegressor
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
