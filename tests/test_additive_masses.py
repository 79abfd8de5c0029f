"""Point masses of additive models: numbers that many rows share, caps and sentinels."""

import json

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import log_loss

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor
from skgpsvm.additive._description import PointMasses, point_masses
from skgpsvm.inspection import (
    ComponentEffectDisplay,
    ComponentEffects,
    ContributionDisplay,
    component_importances,
)

SIZES = pytest.mark.parametrize("n", [400, 1800])  # all rows, inducing points


def spike(n, share=0.3, seed=0):
    """Return rows, a third of which are zero in the first column, and a target with a spike."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(0, 10, n), rng.uniform(size=n)])
    X[rng.uniform(size=n) < share, 0] = 0
    return X, 2 * (X[:, 0] == 0) + 0.1 * rng.normal(size=n)


def masses(column):
    """Return the point masses of a column without the limits of numbers that are not far."""
    found = point_masses(np.asarray(column, dtype=np.float64))
    return PointMasses(found.values, found.sentinels)


# Which numbers are point masses


def test_numbers_that_many_rows_share_are_point_masses():
    rng = np.random.default_rng(0)
    smooth = rng.normal(size=200)
    assert masses(smooth) == PointMasses()
    assert masses(np.r_[smooth, np.full(30, 0.5), np.full(8, 2.0)]) == PointMasses((0.5,))
    assert masses(np.r_[smooth, np.full(30, -1), np.full(30, -1 + 1e-9)]).values[0] == -1
    assert masses(np.minimum(smooth, 1)) == PointMasses((1.0,))
    gaps = np.r_[smooth, np.full(30, 0.5), np.full(50, np.nan)]
    assert masses(gaps) == PointMasses((0.5,))


def test_rounded_and_few_numbers_are_no_point_masses():
    rng = np.random.default_rng(0)
    for column in (
        rng.poisson(3, 500),
        rng.integers(2, size=500),
        rng.choice([0, 1, 2], p=[0.8, 0.1, 0.1], size=500),
        rng.normal(size=2000).round(1),
        np.r_[rng.normal(size=100), np.repeat(np.arange(5), 30)],
        np.full(50, 3.0),
        np.full(50, np.nan),
    ):
        assert masses(column) == PointMasses()


def test_numbers_far_from_all_others_are_sentinels():
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 500)
    assert masses(np.r_[age, np.full(12, -999)]) == PointMasses((-999.0,), (-999.0,))
    both = PointMasses((-999.0, -998.0), (-999.0, -998.0))
    assert masses(np.r_[age, np.full(40, -999), np.full(40, -998)]) == both
    ends = PointMasses((-999.0, 9999.0), (-999.0, 9999.0))
    assert masses(np.r_[age, np.full(40, -999), np.full(40, 9999)]) == ends
    assert masses(np.r_[age, np.full(9, -999)]) == PointMasses()
    assert masses(np.r_[np.repeat([1, 2, 3, 4], 40), np.full(40, 99)]).sentinels == (99,)
    near = masses(np.r_[age, np.full(60, -1)])
    assert near == PointMasses((-1.0,))


@pytest.mark.parametrize("wanted", [True, False])
def test_far_numbers_of_few_rows_are_outside_the_range(wanted):
    age = np.random.default_rng(0).uniform(20, 80, 500)
    for far, is_far in (
        ([-999], True),
        ([1e8, -999], True),
        ([-999] * 9, True),
        ([-999] * 10, wanted),
        ([-100, 150], False),
        (np.linspace(1000, 1060, 30), False),
    ):
        column = np.r_[age, far]
        found = point_masses(column, wanted)
        assert found.are_far(column).tolist() == [False] * 500 + [is_far] * len(far)
        assert not found.are_far(np.array([np.nan]))
        assert found.sentinels == ((-999,) if wanted and len(far) == 10 else ())


def test_no_number_is_far_from_few():
    found = masses(np.r_[np.zeros(500), np.ones(3)]), point_masses(np.zeros(500))
    assert not found[0].sentinels
    assert not found[1].are_far(np.array([1.0, np.nan])).any()


# Fits


@SIZES
def test_a_spike_does_not_bend_its_neighborhood(n):
    X, y = spike(n)
    new = np.array([[0, 0.5], [0.005, 0.5], [0.05, 0.5], [0.5, 0.5], [5, 0.5]])
    model = AdditiveGPRegressor().fit(X, y)
    assert "x0 = 0" in model.term_names_
    assert_allclose(model.predict(new), [2, 0, 0, 0, 0], atol=0.04)
    assert model.predict(new, return_std=True)[1].max() < 0.13
    place = model.term_names_.index("x0 = 0")
    assert model.terms_[place] == (0,)
    assert_allclose(model.intercept_ + model.explain(new).sum(1), model.predict(new), rtol=1e-9)
    without = AdditiveGPRegressor(point_masses=None, steps=None, interactions=None).fit(X, y)
    assert "x0 = 0" not in without.term_names_
    assert abs(without.predict(new)[2]) > 0.5


@SIZES
def test_zeros_without_a_jump_change_nothing(n):
    rng = np.random.default_rng(1)
    X = np.maximum(rng.normal(size=(n, 2)), -0.3)
    X[:, 1] = rng.uniform(size=n)
    truth = np.sin(2 * X[:, 0])
    y = truth + 0.2 * rng.normal(size=n)
    errors = [
        np.sqrt(np.mean((AdditiveGPRegressor(point_masses=own).fit(X, y).predict(X) - truth) ** 2))
        for own in ("auto", None)
    ]
    assert errors[0] < 1.1 * errors[1]


@SIZES
def test_caps_and_several_masses(n):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, n)
    x = np.where(x < 0.2, 0, np.where(x > 0.85, 0.85, x))
    X = np.column_stack([x, rng.normal(size=n)])
    truth = x + 1.5 * (x == 0) - (x == 0.85)
    model = AdditiveGPRegressor().fit(X, truth + 0.1 * rng.normal(size=n))
    assert {"x0 = 0", "x0 = 0.85"} <= set(model.term_names_)
    new = np.array([[0, 0], [0.21, 0], [0.8, 0], [0.85, 0]])
    assert_allclose(model.predict(new), [1.5, 0.21, 0.8, -0.15], atol=0.08)


@SIZES
@pytest.mark.parametrize("terms", [None, [(0, "linear"), 1], [(0, "cyclic", 5), 1]])
def test_sentinels_do_not_squeeze_the_rest(n, terms):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, n)
    linear = terms is not None and terms[0][1] == "linear"
    wave = 0.2 * x if linear else np.sin(2 * np.pi * x / 5)
    absent, gap = rng.uniform(size=n) < 0.1, rng.uniform(size=n) < 0.1
    x = np.where(absent, -999, np.where(gap, np.nan, x))
    X = np.column_stack([x, rng.uniform(size=n)])
    truth = np.where(absent, 1.5, np.where(gap, -1, wave))
    y = truth + 0.1 * rng.normal(size=n)
    model = AdditiveGPRegressor(terms=terms, interactions=0).fit(X, y)
    assert_allclose(model.predict(X), truth, atol=0.25)
    # At the sentinel, the effect is that of the point mass, and that of a missing number its own.
    at = model.explain([[-999, 0.5], [np.nan, 0.5]])
    smooth, mass = (model.term_names_.index(name) for name in ("x0", "x0 = -999"))
    assert at[0, smooth] == 0
    assert at[1, smooth] != 0
    assert at[0, mass] > 0.3


def test_sentinels_have_no_pairs():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 2))
    y = 3 * X[:, 0] * X[:, 1] + 0.05 * rng.normal(size=300)
    X[:60, 0], y[:60] = -999, X[:60, 1]
    for sparse in (True, False):
        model = AdditiveGPRegressor(sparse=sparse).fit(X, y)
        assert "x0 & x1" in model.term_names_
        pair = model.term_names_.index("x0 & x1")
        effects, std = model.explain(X, return_std=True)
        assert_array_equal(effects[:60, pair], 0)
        assert_array_equal(std[:60, pair], 0)
        assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 0.1


@SIZES
@pytest.mark.parametrize("n_classes", [2, 3])
def test_masses_of_classes(n, n_classes):
    rng = np.random.default_rng(0)
    X, _ = spike(n + 1000)
    latent = 4 * (X[:, 0] == 0) - 2 + rng.logistic(size=len(X))
    y = np.digitize(latent, [0, 2][: n_classes - 1])
    model = AdditiveGPClassifier(interactions=None, max_iter=15, tol=1e-3).fit(X[:n], y[:n])
    assert "x0 = 0" in model.term_names_
    truth = AdditiveGPClassifier(terms=[0], categorical_features=[0], tol=1e-3)
    truth.fit((X == 0)[:n].astype(float), y[:n])
    right = log_loss(y[n:], truth.predict_proba((X == 0)[n:].astype(float)))
    assert log_loss(y[n:], model.predict_proba(X[n:])) < right + 0.01


@pytest.mark.parametrize("sparse", [True, False])
def test_masses_of_several_outputs_and_counts(sparse):
    X, y = spike(300)
    both = np.column_stack([y, -3 * y + X[:, 1]])
    model = AdditiveGPRegressor(sparse=sparse, interactions=None).fit(X, both)
    assert_allclose(model.predict([[0, 0.5], [0.3, 0.5]]), [[2, -5.5], [0, 0.5]], atol=0.15)
    counts = np.random.default_rng(0).poisson(np.exp(y))
    options = {"likelihood": "poisson", "interactions": None}
    model = AdditiveGPRegressor(sparse=sparse, **options).fit(X, counts)
    assert "x0 = 0" in model.term_names_


def test_masses_of_streams():
    X, y = spike(900)
    X[::5, 1] = -999
    model = AdditiveGPRegressor(interactions=None)
    model.partial_fit(X[:500], y[:500]).partial_fit(X[500:], y[500:])  # without a warning
    assert_allclose(model.predict([[0, 0.5], [0.3, -999]]), [2, 0], atol=0.1)


def test_tables_name_masses_and_list_keeps_them_with_their_feature():
    X, y = spike(300)
    frame = pd.DataFrame(X, columns=["claims", "age"])
    model = AdditiveGPRegressor(terms=["claims"]).fit(frame, y)
    assert model.term_names_ == ["claims", "claims = 0"]
    assert AdditiveGPRegressor(terms=["age"]).fit(frame, y).term_names_ == ["age"]


# Effects


def test_masses_are_shown_and_exported():
    X, y = spike(300)
    X[:30, 1], y[:30] = -999, 3.0
    model = AdditiveGPRegressor(interactions=None, min_gain=0, sparse=False).fit(X, y)
    assert model.term_names_ == ["x0", "x1", "x0 = 0", "x1 = -999"]
    assert component_importances(model, X).features.importance.shape == (2,)
    assert model.sobol_indices().share.shape == (4,)
    display = ComponentEffectDisplay.from_estimator(model, X, features=["x1", 0, "x0 = 0"])
    smooth, _, mass = display.effects
    assert smooth.grid[0].min() >= 0  # not from the sentinel on
    assert mass.grid[0].tolist() == ["other", "0"]
    effects = model.explain([[0, 0.5], [5, 0.5]])[:, 2]
    assert_allclose(mass.effect[::-1], effects)
    table = json.loads(json.dumps(ComponentEffects.from_estimator(model).to_dict()))
    by_name = {part["term"]: part for part in table["effects"]}
    assert by_name["x0 = 0"]["point_mass"] == 0
    assert by_name["x1"]["sentinels"] == [[-999]]

    def at(part, row):
        x = row[int(part["features"][0][1])]
        if part["point_mass"] is not None:
            return part["effect"][int(x == part["point_mass"])]
        return 0 if x in part["sentinels"][0] else np.interp(x, *part["grid"], part["effect"])

    names = ContributionDisplay.from_estimator(model, [[0, 0.5]]).names
    assert {"x0 = 0", "point mass at x0 = 0", "x1 \N{NOT EQUAL TO} -999"} <= set(names)
    found = [sum(at(part, row) for part in table["effects"]) for row in X[:60]]
    assert_allclose(found, model.explain(X[:60]).sum(1), atol=2e-3)


def test_displays_without_the_smooth_effect():
    X, y = spike(300)
    model = AdditiveGPRegressor(interactions=None, min_gain=5).fit(X, y)
    assert model.term_names_ == ["x0 = 0"]
    with pytest.raises(ValueError, match="no effect of 0"):
        ComponentEffectDisplay.from_estimator(model, X, features=[0])
    ComponentEffectDisplay.from_estimator(model, X)
