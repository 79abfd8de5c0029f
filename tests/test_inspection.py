"""Displays of effects: the numbers are those of `explain`, and each effect has its panel."""

import builtins
import json
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.testing import assert_array_equal
from scipy.stats import norm
from sklearn.feature_selection import RFECV, SelectFromModel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import SVC
from sklearn.utils import Bunch

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor
from skgpsvm.inspection import (
    ComponentEffectDisplay,
    ComponentEffects,
    ContributionDisplay,
    component_importances,
)

pytestmark = pytest.mark.filterwarnings(  # bounds set by SMALL
    "ignore:.*on bounds that were set:sklearn.exceptions.ConvergenceWarning"
)
SMALL = {
    "length_scale_bounds": (0.5, 10.0),
    "n_inducing": 6,
    "n_inducing_interaction": 4,
    "min_gain": 0,
    "tol": 1e-2,
}
# The display computes with codes and `explain` with tables, but the operations are the same.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(autouse=True)
def no_figures_stay():
    yield
    plt.close("all")


def fitted(X, y, method=AdditiveGPRegressor, **options):
    options = {**SMALL, "random_state": 0, **options}
    pairs = options.get("interactions", "auto") is not None or "terms" in options
    if not (pairs and options.get("sparse", True)):
        del options["n_inducing_interaction"]
    return method(**options).fit(X, y)


def numbers(n=120, d=3):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, d))
    return X, X[:, 0] + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)


def mixed(n=150):
    """Return a table of categories and numbers, both partly missing."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "age": rng.uniform(20, 70, n),
            "city": pd.Categorical(rng.choice(["Bonn", "Cork", "Delft"], n)),
            "income": rng.lognormal(3, 0.4, n),
        }
    )
    age, cork = (table["age"] - 45) / 25, table["city"] == "Cork"
    y = np.log(table["income"]) + (2 * cork - 1) * age + cork + 0.1 * rng.standard_normal(n)
    table.loc[::9, "income"] = np.nan
    table.loc[::11, "city"] = None
    return table, y.to_numpy()


@pytest.fixture(scope="module")
def plain():
    X, y = numbers()
    return fitted(X, y, terms=[..., (1, 2)], interactions=None), X


@pytest.fixture(scope="module")
def table():
    X, y = mixed()
    return fitted(X, y, terms=[..., ("age", "city")], interactions=None), X


def by_name(display):
    return {part.name: part for part in display.effects}


def assert_interval(part, mean, std, level=0.95):
    width = norm.ppf((1 + level) / 2)
    np.testing.assert_allclose(part.effect, mean, **EXACT)
    np.testing.assert_allclose(part.lower, mean - width * std, **EXACT)
    np.testing.assert_allclose(part.upper, mean + width * std, **EXACT)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_curves_are_what_explain_says(plain, level):
    model, X = plain
    display = ComponentEffectDisplay.from_estimator(model, X, level=level, n_points=20)
    for j, name in enumerate(("x0", "x1", "x2")):
        part = by_name(display)[name]
        (grid,) = part.grid
        np.testing.assert_array_equal(grid, np.linspace(X[:, j].min(), X[:, j].max(), 20))
        rows = np.repeat(X[:1], 20, axis=0)
        rows[:, j] = grid
        mean, std = model.explain(rows, return_std=True)
        assert_interval(part, mean[:, j], std[:, j], level)


def test_heat_map_is_what_explain_says(plain):
    model, X = plain
    display = ComponentEffectDisplay.from_estimator(model, X, features=[(2, 1)], n_points=12)
    (part,) = display.effects
    assert part.feature_names == ("x1", "x2")
    assert part.effect.shape == (6, 6)
    rows = np.repeat(X[:1], 36, axis=0)
    rows[:, 1:] = [(a, b) for a in part.grid[0] for b in part.grid[1]]
    mean, std = (values[:, 3].reshape(6, 6) for values in model.explain(rows, return_std=True))
    assert_interval(part, mean, std)


def test_levels_and_missing_numbers_are_what_explain_says(table):
    model, X = table
    effects = by_name(ComponentEffectDisplay.from_estimator(model, X, n_points=10))
    levels = ["Bonn", "Cork", "Delft", "missing"]
    np.testing.assert_array_equal(effects["city"].grid[0], levels)
    rows = pd.concat([X[X["city"] == level][:1] for level in levels[:3]] + [X[:1]])
    assert rows["city"].isna().tolist() == [False, False, False, True]
    mean, std = (values[:, 1] for values in model.explain(rows, return_std=True))
    assert_interval(effects["city"], mean, std)
    mean, std = (values[0, 2] for values in model.explain(X[:1], return_std=True))
    width = norm.ppf(0.975)
    expected = [mean, mean - width * std, mean + width * std]
    np.testing.assert_allclose(effects["income"].missing, expected, **EXACT)
    assert effects["age"].missing is None
    assert effects["age & city"].effect.shape == (5, 4)
    assert effects["age & city"].categorical == (False, True)


def test_terms_come_by_share_or_as_asked(plain):
    model, X = plain
    display = ComponentEffectDisplay.from_estimator(model, X, n_points=8)
    shares = [part.share for part in display.effects]
    assert shares == sorted(model.sobol_indices_, reverse=True)
    wanted = ["x2", ("x2", 1), 0, "x1 & x2"]
    display = ComponentEffectDisplay.from_estimator(model, X, features=wanted, n_points=8)
    assert [part.name for part in display.effects] == ["x2", "x1 & x2", "x0", "x1 & x2"]


def test_one_term_need_not_be_a_list(plain):
    model, X = plain
    display = ComponentEffectDisplay.from_estimator(model, X, features="x1", n_points=8)
    assert [part.name for part in display.effects] == ["x1"]


def test_panels_have_curve_band_and_rug(plain):
    model, X = plain
    display = ComponentEffectDisplay.from_estimator(model, X, features=[0, (1, 2)])
    curve, pair = display.axes_
    assert curve.figure is display.figure_
    zero, line, rug = curve.lines
    np.testing.assert_array_equal(line.get_ydata(), display.effects[0].effect)
    assert len(curve.collections) == 1  # the band
    assert set(rug.get_xdata()) <= set(X[:, 0])
    assert len(rug.get_xdata()) <= 100
    assert zero.get_ydata() == [0, 0]
    assert curve.get_ylabel() == "effect"
    assert curve.get_title() == f"x0 ({100 * model.sobol_indices_[0]:.1f} %)"
    image, contours = pair.collections
    np.testing.assert_array_equal(image.get_array(), display.effects[1].effect.T)
    assert image.norm.vmin == -image.norm.vmax
    assert contours.levels.size
    assert (pair.get_xlabel(), pair.get_ylabel()) == ("x1", "x2")
    assert len(display.figure_.axes) == 3  # two panels and a color bar


def test_pairs_are_faded_where_no_rows_are_near(plain):
    model, X = plain
    X = X[np.abs(X[:, 1] - X[:, 2]) < 0.5]
    display = ComponentEffectDisplay.from_estimator(model, X, features=[(1, 2)])
    (part,), (panel,) = display.effects, display.axes_
    assert set(map(tuple, part.rug)) <= set(map(tuple, X[:, 1:]))
    # Grids round a distance by at most a step, and the place of a row by half of one.
    ranges, steps = (np.array([pick(grid) for grid in part.grid]) for pick in (np.ptp, step_of))
    points = np.stack(np.meshgrid(*part.grid, indexing="ij"), -1)
    away = np.abs(points[:, :, None] - X[:, 1:])  # (k, l, n, 2)
    near, far = 0.04 * ranges - steps, 0.04 * ranges + steps
    assert part.support[(away <= near).all(3).any(2)].all()
    assert not part.support[~(away <= far).all(3).any(2)].any()
    assert 0.2 < part.support.mean() < 0.9
    image, contours = panel.collections
    faded = image.get_alpha() < 1
    assert_array_equal(faded, ~part.support.T)
    assert panel.patch.get_hatch()
    assert image.norm.vmax == np.abs(part.effect[part.support]).max()
    rows = np.concatenate([path.vertices for path in contours.get_paths()])
    places = [
        np.abs(grid[:, None] - own).argmin(0) for grid, own in zip(part.grid, rows.T, strict=True)
    ]
    assert part.support[*places].all()


def step_of(grid):
    return grid[1] - grid[0]


def test_levels_and_counts_are_near_their_rows():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "city": pd.Categorical(rng.choice(["Bonn", "Cork", "Delft"], 200)),
            "rooms": rng.integers(1, 6, 200).astype(float),
        }
    )
    table = table[(table["city"] != "Cork") | (table["rooms"] < 4)]
    y = table["rooms"] * (table["city"] == "Bonn") + 0.1 * rng.standard_normal(len(table))
    table.loc[table.index[::7], "rooms"] = np.nan
    model = fitted(table, y, terms=[..., ("city", "rooms")], interactions=None)
    display = ComponentEffectDisplay.from_estimator(model, table, features=[("city", "rooms")])
    (part,) = display.effects
    assert_array_equal(part.grid[0], ["Bonn", "Cork", "Delft"])
    expected = np.ones((3, 50), bool)
    expected[1] = part.grid[1] < 3.5  # half the gap from rows with three rooms
    assert_array_equal(part.support, expected)
    assert np.isfinite(part.rug).all()
    (alone,) = ComponentEffects.from_estimator(model, features=[("city", "rooms")]).effects
    assert alone.support is None
    assert alone.rug is None


def test_curves_are_light_where_text_is(plain):
    model, X = plain
    with plt.style.context("dark_background"):
        dark = ComponentEffectDisplay.from_estimator(model, X, features=[0], n_points=8)
    light = ComponentEffectDisplay.from_estimator(model, X, features=[0], n_points=8)
    for display, ink, color in ((dark, "white", "#56B4E9"), (light, "black", "#0072B2")):
        _, line, rug = display.axes_[0].lines
        assert (line.get_color(), rug.get_color()) == (color, ink)


def test_many_panels_are_smaller_and_their_titles_wrapped(plain):
    model, X = plain
    effects = ComponentEffectDisplay.from_estimator(model, X, features=[0], n_points=8).effects
    for n_panels, n_cols, width in ((2, 2, 7.2), (9, 3, 10.8), (31, 6, 14.4)):
        display = ComponentEffectDisplay(effects * n_panels).plot()
        assert display.axes_[0].get_subplotspec().get_gridspec().ncols == n_cols
        assert display.figure_.get_size_inches()[0] == pytest.approx(width)
    long = Bunch(**{**effects[0], "name": "a name of many words, more than there is room for"})
    (panel,) = ComponentEffectDisplay([long]).plot().axes_
    assert panel.get_title().count("\n") == 1


def test_curves_share_a_scale_that_holds_all_bands(table):
    model, X = table
    display = ComponentEffectDisplay.from_estimator(model, X, features=["age", "city", "income"])
    limits = {panel.get_ylim() for panel in display.axes_}
    ((low, high),) = limits
    for part in display.effects:
        assert low < part.lower.min()
        assert high > part.upper.max()


def test_ticks_name_levels_and_what_is_missing(table):
    model, X = table
    display = ComponentEffectDisplay.from_estimator(
        model, X, features=["city", "income", ("age", "city")]
    )
    levels = ["Bonn", "Cork", "Delft", "missing"]
    city, income, pair = display.axes_
    assert [tick.get_text() for tick in city.get_xticklabels()] == levels
    assert len(city.containers) == 1  # points with error bars
    assert [tick.get_text() for tick in income.get_xticklabels()][-1] == "missing"
    assert [tick.get_text() for tick in pair.get_yticklabels()] == levels
    assert len(pair.collections) == 1  # levels have no contour lines


def test_long_names_of_levels_are_slanted(table):
    model, X = table
    city = ComponentEffectDisplay.from_estimator(model, X, features=["city"]).axes_[0]
    assert {tick.get_rotation() for tick in city.get_xticklabels()} == {35}


def test_names_of_many_levels_do_not_overlap():
    rng = np.random.default_rng(0)
    for n_levels, n_labels in ((20, 20), (45, 15)):
        area = np.array([f"area {k:02d}" for k in range(n_levels)])
        table = pd.DataFrame({"area": pd.Categorical(np.tile(area, 10))})
        model = fitted(table, rng.standard_normal(len(table)), interactions=None)
        display = ComponentEffectDisplay.from_estimator(model, table)
        display.figure_.draw_without_rendering()
        labels = display.axes_[0].get_xticklabels()
        assert [label.get_text() for label in labels] == list(area[:: n_levels // n_labels])
        boxes = [label.get_window_extent() for label in labels]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_polars_and_integers_as_categories():
    X, y = mixed()
    cities = X["city"].astype(object).where(X["city"].notna(), None)
    rows = pl.DataFrame({**{name: X[name].to_numpy() for name in X}, "city": cities.tolist()})
    display = ComponentEffectDisplay.from_estimator(fitted(rows, y, interactions=None), rows)
    assert list(by_name(display)["city"].grid[0]) == ["Bonn", "Cork", "Delft", "missing"]
    X, y = numbers()
    X[:, 2] = np.round(X[:, 2])
    model = fitted(X, y, interactions=None, categorical_features=[2])
    display = ComponentEffectDisplay.from_estimator(model, X, features=[2])
    assert list(display.effects[0].grid[0]) == ["-1", "0", "1"]


def test_a_class_by_its_label():
    X, _ = numbers()
    y = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.3, 0.3])]
    model = fitted(X, y, AdditiveGPClassifier, interactions=None)
    display = ComponentEffectDisplay.from_estimator(model, X, features=[0], latent="c", n_points=8)
    (part,) = display.effects
    rows = np.repeat(X[:1], 8, axis=0)
    rows[:, 0] = part.grid[0]
    mean, std = (values[:, 0, 2] for values in model.explain(rows, return_std=True))
    assert_interval(part, mean, std)
    with pytest.raises(ValueError, match=r"latent=None must be one of \['a', 'b', 'c'\]"):
        ComponentEffectDisplay.from_estimator(model, X)


def test_an_output_by_its_number():
    X, y = numbers()
    model = fitted(X, np.column_stack([y, -3 * y]), interactions=None)
    one, other = (
        ComponentEffectDisplay.from_estimator(model, X, features=[0], latent=k) for k in (0, 1)
    )
    # Outputs that are multiples of each other have the same normalized fit.
    np.testing.assert_allclose(other.effects[0].effect, -3 * one.effects[0].effect, rtol=1e-6)
    with pytest.raises(ValueError, match=r"latent=2 must be one of \[0, 1\]"):
        ComponentEffectDisplay.from_estimator(model, X, latent=2)


def test_two_classes_need_no_label():
    X, y = numbers()
    model = fitted(X, y > 0, AdditiveGPClassifier, interactions=None)
    default, named = (
        ComponentEffectDisplay.from_estimator(model, X, features=[0], latent=label)
        for label in (None, True)
    )
    np.testing.assert_array_equal(default.effects[0].effect, named.effects[0].effect)


def test_axes_given_are_drawn_on(plain):
    model, X = plain
    display = ComponentEffectDisplay.from_estimator(model, X, n_points=8)
    figure, axes = plt.subplots(2, 2)
    display.plot(ax=axes)
    assert display.figure_ is figure
    assert list(display.axes_) == list(axes.ravel())
    figure, (left, right) = plt.subplots(1, 2)
    display.plot(ax=right, n_cols=2)
    assert display.figure_ is figure
    assert len(display.axes_) == 4
    assert not right.axison
    assert not left.lines


def test_keywords_reach_matplotlib(plain):
    model, X = plain
    display = ComponentEffectDisplay.from_estimator(
        *(model, X),
        features=[0, (1, 2)],
        n_points=8,
        n_cols=1,
        line_kw={"color": "#ff0000"},
        heatmap_kw={"cmap": "PiYG"},
    )
    assert display.axes_[0].lines[1].get_color() == "#ff0000"
    assert display.axes_[1].collections[0].get_cmap().name == "PiYG"
    assert len({panel.get_position().x0 for panel in display.axes_}) <= 2
    assert display.axes_[0].get_subplotspec().get_gridspec().ncols == 1


def test_color_may_be_abbreviated(plain):
    model, X = plain
    display = ComponentEffectDisplay.from_estimator(model, X, features=[0], line_kw={"c": "red"})
    assert display.axes_[0].lines[1].get_color() == "red"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": [(0, 1)]}, r"no effect of \(0, 1\)\. It has those of \['x0', 'x1', 'x2', "),
        ({"features": ["z"]}, "no effect of 'z'"),
        ({"features": [(0, "z")]}, r"no effect of \(0, 'z'\)"),
        ({"n_cols": 0}, "n_cols=0 must be an integer of at least 1"),
        ({"level": "a"}, "level='a' must be between 0 and 1"),
        ({"features": []}, "There is no effect to draw"),
        ({"level": 95}, "level=95 must be between 0 and 1"),
        ({"n_cols": True}, "n_cols=True must be an integer of at least 1"),
        ({"n_points": 2}, "n_points=2 must be an integer of at least 4"),
        ({"ax": []}, "ax has 0 Axes for 4 effects"),
        ({"latent": 1}, r"latent=1 must be one of \[0\]"),
    ],
)
def test_what_makes_no_sense_is_refused(plain, options, message):
    model, X = plain
    with pytest.raises(ValueError, match=message):
        ComponentEffectDisplay.from_estimator(model, X, **options)


def test_one_row_has_no_range(plain):
    model, X = plain
    with pytest.raises(ValueError, match="X has no two different numbers in 'x0'"):
        ComponentEffectDisplay.from_estimator(model, X[:1])


def test_other_estimators_have_no_effects():
    with pytest.raises(ValueError, match="SVC has no effects"):
        ComponentEffectDisplay.from_estimator(SVC(), numbers()[0])


@pytest.mark.parametrize("searched", [False, True])
def test_effects_of_a_pipeline_s_last_step(plain, searched):
    model, X = plain
    pipe = Pipeline([("scale", MinMaxScaler().fit(X)), ("gam", model)])
    whole = GridSearchCV(pipe, {}) if searched else pipe
    if searched:
        whole.best_estimator_ = pipe
    display = ComponentEffectDisplay.from_estimator(whole, X, n_points=8)
    direct = ComponentEffectDisplay.from_estimator(model, pipe[0].transform(X), n_points=8)
    for one, other in zip(display.effects, direct.effects, strict=True):
        assert_array_equal(one.effect, other.effect)


def test_bars_of_one_row_are_its_contributions():
    X, y = numbers(d=4)
    model = fitted(X, np.column_stack([X[:, 3], y]), sparse=True, interactions=None)
    row, last = X[3:4], len(model.terms_) - 1
    mean, std = model.explain(row, return_std=True)
    mean, std = mean[0, :, 1], std[0, :, 1]
    order = np.argsort(-abs(mean))
    display = ContributionDisplay.from_estimator(model, row, latent=1, level=0.5)
    np.testing.assert_allclose(display.contributions, mean[order], **EXACT)
    np.testing.assert_allclose(display.widths, norm.ppf(0.75) * std[order], **EXACT)
    latent, _ = model.latent_mean_and_variance(row)
    np.testing.assert_allclose(display.intercept + display.contributions.sum(), latent[0, 1])
    bars = display.ax_.patches
    ends = display.intercept + display.contributions.cumsum()
    np.testing.assert_allclose([bar.get_x() for bar in bars[1:]], ends[:-1])
    few = ContributionDisplay.from_estimator(model, row, latent=1, max_terms=last)
    assert few.names == [*display.names[: last - 1], "2 other terms"]
    np.testing.assert_allclose(few.contributions[-1], mean[order[-2:]].sum(), **EXACT)
    whole = ContributionDisplay.from_estimator(model, row, latent=1, max_terms=1)
    drawn = model._drawn_effects(row, 1000, np.random.RandomState(0))[:, 0, :, 1].sum(1)
    np.testing.assert_allclose(whole.widths, [norm.ppf(0.975) * drawn.std()])


def test_bars_name_values_and_levels(table, plain):
    model, X = table
    row = X.iloc[[1]].assign(city=None)
    names = ContributionDisplay.from_estimator(model, row).names
    assert {f"age = {row.age.iloc[0]:.3g}", "city = missing"} <= set(names)
    model, X = plain
    with pytest.raises(ValueError, match="X has 2 rows"):
        ContributionDisplay.from_estimator(model, X[:2])


def test_without_matplotlib_the_error_says_what_to_install(plain, monkeypatch):
    model, X = plain
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        ComponentEffectDisplay.from_estimator(model, X)


# Tables, and the form for other programs


def evaluated(table, rows, latent):
    """Return the latent function at rows, dicts of values by name, from a table of JSON alone."""
    found = next(part["value"] for part in table["intercepts"] if part["latent"] == latent)
    found = np.full(len(rows), found)
    for effect in table["effects"]:
        if effect["latent"] == latent:
            found += [at_row(effect, row) for row in rows]
    return found


def at_row(effect, row):
    values = [row[name] for name in effect["features"]]
    weights = []
    for value, grid, categorical in zip(values, effect["grid"], effect["categorical"], strict=True):
        if categorical:
            weights.append([float(level == value) for level in grid])
        elif value is None:
            return effect["missing"][0] if effect["missing"] else 0.0
        else:
            weights.append([np.interp(value, grid, own) for own in np.eye(len(grid))])
    found = np.array(effect["effect"])
    for weight in weights:
        found = np.tensordot(weight, found, 1)
    return float(found)


def as_rows(table):
    """Return rows as dicts of values by name; missing ones are None, or a level of its own."""
    rows = table.astype({"city": object}).to_dict("records")
    for row in rows:
        row["income"] = None if np.isnan(row["income"]) else row["income"]
        row["city"] = row["city"] if isinstance(row["city"], str) else "missing"
    return rows


@pytest.mark.parametrize("sparse", [True, False])
def test_another_program_evaluates_effects_from_json(table, sparse):
    X, y = mixed()
    options = {"kernel_interaction": "matern52"} if not sparse else {}
    model = fitted(
        X,
        y,
        terms=[..., ("age", "city"), ("age", "income")],
        interactions=None,
        sparse=sparse,
        **options,
    )
    text = json.dumps(ComponentEffects.from_estimator(model).to_dict())
    rows = X.iloc[:30]
    np.testing.assert_allclose(
        evaluated(json.loads(text), as_rows(rows), 0),
        model.intercept_ + model.explain(rows).sum(1),
        atol=5e-3 * y.std(),
    )


def test_another_program_evaluates_skewed_features_and_classes_from_json():
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.lognormal(0, 2, 150), rng.uniform(0, 1, 150)])
    y = np.array(["low", "mid", "high"])[np.digitize(np.log(X[:, 0]) + X[:, 1], [-1, 1])]
    model = fitted(X, y, AdditiveGPClassifier, terms=[..., (0, 1)], interactions=None)
    effects = ComponentEffects.from_estimator(model)
    table = json.loads(json.dumps(effects.to_dict()))
    assert table["link"] == "softmax"
    rows = [{"x0": a, "x1": b} for a, b in X[:20]]
    expected = model.intercept_ + model.explain(X[:20]).sum(1)
    for place, label in enumerate(model.classes_):
        found = evaluated(table, rows, label)
        np.testing.assert_allclose(found, expected[:, place], atol=5e-3 * expected.std())
    assert set(effects.to_frame()["latent"]) == set(model.classes_)


def test_frames_have_a_row_for_each_point_of_a_grid(table):
    model, X = table
    effects = ComponentEffects.from_estimator(model, X, n_points=10, level=0.8)
    frame = effects.to_frame()
    assert list(frame.columns) == ["term", "latent", "x1", "x2", "effect", "lower", "upper"]
    display = ComponentEffectDisplay.from_estimator(model, X, n_points=10, level=0.8)
    for part in display.effects:
        own = frame[frame["term"] == part.name]
        known = own[own["x1"].notna()]
        assert_array_equal(known["effect"], part.effect.ravel())
        assert_array_equal(known["upper"], part.upper.ravel())
        assert len(own) - len(known) == (part.missing is not None)
    pair = frame[frame["term"] == "age & city"]
    assert set(pair["x2"]) == {"Bonn", "Cork", "Delft", "missing"}


def test_frames_need_pandas(plain, monkeypatch):
    effects = ComponentEffects.from_estimator(plain[0])
    original = builtins.__import__

    def without_pandas(name, *args, **kwargs):
        if name.startswith("pandas"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(ImportError, match=r"needs pandas.*to_dict does not"):
        effects.to_frame()
    assert effects.to_dict()["link"] == "identity"


@pytest.mark.parametrize(
    ("method", "options", "target", "link"),
    [
        (AdditiveGPRegressor, {"likelihood": "poisson"}, np.abs, "log"),
        (AdditiveGPClassifier, {}, np.sign, "logit"),
        (AdditiveGPClassifier, {"likelihood": "probit"}, np.sign, "probit"),
    ],
)
def test_links_are_named(method, options, target, link):
    X, y = numbers(60)
    model = fitted(X, target(y).round(), method, interactions=None, **options)
    assert ComponentEffects.from_estimator(model).to_dict()["link"] == link


# Importances


def test_importances_of_a_table_that_cannot_be_written_to():
    """pandas returns arrays that are not writable, which torch warns of where it shares them."""
    X, y = numbers()
    table = pd.DataFrame(X)
    model = AdditiveGPRegressor(interactions=None).fit(table, y)
    torch.set_warn_always(True)
    try:
        component_importances(model, table, n_samples=2)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("sparse", [True, False])
def test_importances_are_mean_absolute_effects(sparse):
    X, y = numbers()
    model = fitted(X, y, terms=[..., (1, 2)], interactions=None, sparse=sparse)
    of_terms = np.abs(model.explain(X)).mean(0)
    of_features = of_terms[:3] + of_terms[3] * np.array([0, 0.5, 0.5])
    np.testing.assert_allclose(model.feature_importances_, of_features / of_features.sum())
    found = component_importances(model, X)
    assert found.terms.name == model.term_names_
    np.testing.assert_allclose(found.terms.importance, of_terms)
    np.testing.assert_allclose(found.features.importance, of_features)
    assert found.features.name == ["x0", "x1", "x2"]
    assert (found.features.lower < found.features.upper).all()
    assert found.features.lower[0] < of_features[0] < found.features.upper[0]


@pytest.mark.parametrize("sparse", [True, False])
def test_importances_are_of_draws_with_the_moments_of_effects(sparse):
    X, y = mixed()
    model = fitted(X, y, terms=[..., ("age", "income")], interactions=None, sparse=sparse)
    rows = model._check_new(X.iloc[:12])
    (latent,) = model._latents
    posterior = latent.posterior("cpu")
    draws = posterior.drawn_effects(torch.tensor(rows), 4000, np.random.RandomState(0)).numpy()
    mean, std = (part / model._y_std for part in model.explain(X.iloc[:12], return_std=True))
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.07 * std.max())
    np.testing.assert_allclose(draws.std(0), std, rtol=0.1, atol=0.05 * std.max())


@pytest.mark.parametrize("outputs", [1, 2])
def test_importances_are_sums_over_latent_functions(outputs):
    X, y = numbers(80)
    model = fitted(X, np.stack([y, 3 * X[:, 2]][:outputs], 1), interactions=None)
    found = component_importances(model, X, n_samples=10)
    effects = np.abs(model.explain(X)).mean(0).sum(-1)
    np.testing.assert_allclose(found.terms.importance, effects)
    classes = fitted(X, np.digitize(y, [-0.5, 0.5]), AdditiveGPClassifier, interactions=None)
    found = component_importances(classes, X, n_samples=10)
    np.testing.assert_allclose(found.features.importance, np.abs(classes.explain(X)).mean(0).sum(1))


def test_importances_select_features():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (100, 6))
    y = X[:, 1] + np.sin(3 * X[:, 4]) + 0.1 * rng.standard_normal(100)
    options = {**SMALL, "sparse": True, "interactions": None}
    del options["n_inducing_interaction"]
    model = AdditiveGPRegressor(**options)
    chosen = SelectFromModel(model, max_features=2).fit(X, y)
    assert_array_equal(chosen.get_support(indices=True), [1, 4])
    chosen = RFECV(model, step=2, cv=2, min_features_to_select=2).fit(X, y)
    assert chosen.support_[[1, 4]].all()
    model.partial_fit(X[:60], y[:60]).partial_fit(X[60:], y[60:])
    effects = np.abs(model.explain(X[60:])).mean(0)
    np.testing.assert_allclose(model.feature_importances_, effects / effects.sum())


def test_importances_without_terms_are_zero():
    X, y = numbers(60)
    model = fitted(X, y, interactions=None, min_gain=1e9, sparse=True)
    assert_array_equal(model.feature_importances_, np.zeros(3))
    assert component_importances(model, X).terms.importance.shape == (0,)


def test_levels_have_different_names():
    rng = np.random.default_rng(0)
    levels = [[1234567.0, 1234568.0, 0.1, np.nan], ["missing", "a", "b", None]]
    parts = {name: rng.permutation(own * 10) for name, own in zip("ab", levels, strict=True)}
    table = pd.DataFrame(parts)
    model = AdditiveGPRegressor(interactions=None, min_gain=0, categorical_features=["a", "b"])
    effects = ComponentEffects.from_estimator(model.fit(table, rng.normal(size=40))).to_dict()
    grids = {own["term"]: own["grid"][0] for own in effects["effects"]}
    assert grids == {
        "a": ["0.1", "1234567", "1234568", "missing"],
        "b": ["a", "b", "missing", "no value"],
    }
