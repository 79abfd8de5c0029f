"""Encoding of tables for additive models: categories, missing values, dates, scales of columns."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import every, rows_of, t64, waves
from sklearn.preprocessing import PowerTransformer

from skgpsvm import AdditiveGPRegressor, _data
from skgpsvm.additive._basis import yeo_johnson
from skgpsvm.additive._description import described, distinct
from skgpsvm.additive._encoding import TableEncoder, categorical_mask

quick = {"sparse": True, "interactions": None, "n_inducing": 8, "length_scale_bounds": (0.2, 10.0)}


def test_different_numbers_of_columns_that_have_few(monkeypatch):
    monkeypatch.setattr(_data, "CHUNK_ROWS", 3)
    data = np.array([[1, 1, np.nan], [0, 2, np.nan], [1, 3, np.nan], [0, 4, 7], [2, 5, np.nan]])
    found = distinct(rows_of(data, np.zeros(5)), [0, 1, 2], 3)
    assert {j: own.tolist() for j, own in found.items()} == {0: [0, 1, 2], 2: [7]}


def test_yeo_johnson_is_that_of_scikit_learn():
    x = np.r_[np.linspace(-3, 40, 50), 0.0]
    for power in (-2.0, 0.0, 0.7, 1.0, 2.0, 4.0):
        transformer = PowerTransformer(standardize=False).fit(x[:, None])
        transformer.lambdas_ = np.array([power])
        expected = transformer.transform(x[:, None])[:, 0]
        assert_allclose(yeo_johnson(t64(x), power), expected, rtol=1e-12, atol=1e-14)


def test_names_of_rows_cost_nothing():
    frame, y = table(500)
    frame = frame.assign(name=[f"row {i}" for i in range(500)])
    weights = np.full(500, 1 + 1e-12)
    model = AdditiveGPRegressor(interactions=None).fit(frame, y, sample_weight=weights)
    assert "name" not in model.term_names_
    assert max(second.size for second in model._latents[0].basis.seconds) < 500**2


def table(n=400, seed=0):
    rng = np.random.RandomState(seed)
    frame = pd.DataFrame(
        {
            "size": rng.uniform(size=n),
            "kind": pd.Categorical(rng.choice(["u", "v", "w"], n)),
            "skewed": rng.lognormal(sigma=1.5, size=n),
        }
    )
    effects = {"u": 0.0, "v": 2.0, "w": -1.0}
    y = 3 * frame["size"] + frame["kind"].map(effects).astype(float) + np.log(frame["skewed"])
    frame.loc[rng.uniform(size=n) < 0.1, "size"] = np.nan
    return frame, y.to_numpy() + 0.1 * rng.normal(size=n)


def test_tables_of_mixed_types():
    frame, y = table()
    model = AdditiveGPRegressor(interactions=None).fit(frame, y)
    assert model.term_names_ == ["size", "kind", "skewed"]
    assert_array_equal(model.feature_names_in_, ["size", "kind", "skewed"])
    known = frame["size"].notna()
    assert model.score(frame[known], y[known]) > 0.98
    polars = pl.DataFrame({name: frame[name].tolist() for name in frame})
    for kind in (pl.String, pl.Categorical, pl.Enum(["u", "v", "w"])):
        typed = polars.with_columns(pl.col("kind").cast(kind))
        other = AdditiveGPRegressor(interactions=None).fit(typed, y)
        assert_allclose(other.predict(typed), model.predict(frame), rtol=1e-10)
    codes = frame.assign(kind=frame["kind"].cat.codes).to_numpy(float)
    third = AdditiveGPRegressor(interactions=None, categorical_features=[1]).fit(codes, y)
    assert_allclose(third.predict(codes), model.predict(frame), rtol=1e-10)


def test_missing_and_unknown_values():
    frame, y = table()
    model = AdditiveGPRegressor(interactions=None).fit(frame, y)
    effects, std = model.explain(frame, return_std=True)
    missing = frame["size"].isna().to_numpy()
    assert np.ptp(effects[missing, 0]) == 0
    assert np.ptp(effects[~missing, 0]) > 2
    strange = frame[:2].assign(kind=pd.Categorical(["zzz", None]))
    effects, unknown = model.explain(strange, return_std=True)
    assert_array_equal(effects[:, 1], 0)
    assert (unknown[:, 1] > 5 * std[:, 1].max()).all()


@pytest.mark.parametrize("sparse", [True, False])
def test_numbers_that_only_now_are_missing_have_the_priors_variance(sparse):
    frame, y = table(200)
    known = frame["size"].notna()
    complete, y = frame[known], y[known]
    options = {
        "terms": [..., ("size", "kind")],
        "interactions": None,
        "kernel_interaction": "matern52",
        "min_gain": 0,
    }
    model = AdditiveGPRegressor(sparse=sparse, **options).fit(complete, y)
    absent = complete.assign(size=np.nan)
    effects, std = model.explain(absent, return_std=True)
    assert_array_equal(effects[:, [0, 3]], 0)
    own, pair = np.exp(0.5 * model._latents[0].theta["variance"][[0, 3]]) * model._y_std
    assert_allclose(std[:, 0], own)
    # The pair with a known level has this variance, since the level's effect is centered.
    shares = complete["kind"].value_counts(normalize=True)
    share = complete["kind"].map(shares).astype(float)
    assert_allclose(std[:, 3], pair * np.sqrt(1 - share**2 / (shares**2).sum()))
    predicted = model.predict(absent, return_std=True)[1]
    assert (predicted > np.hypot(own, model.predict(complete, return_std=True)[1].min())).all()
    cov = model.predict(absent[:3], return_cov=True)[1]
    assert_allclose(np.sqrt(cov.diagonal()), predicted[:3])


def test_streams_warn_of_categories_that_the_first_call_lacked():
    frame, y = table(300)
    first = frame["kind"] != "u"
    model = AdditiveGPRegressor(interactions=None).partial_fit(frame[first], y[first])
    with pytest.warns(UserWarning, match="categories that it lacked, in .*kind"):
        model.partial_fit(frame[~first], y[~first])


def test_a_missing_level_that_was_seen_is_a_level():
    frame, y = table()
    absent = np.arange(len(y)) % 7 == 0
    frame.loc[absent, "kind"] = None
    y[absent] += 5
    model = AdditiveGPRegressor(interactions=None).fit(frame, y)
    assert model.explain(frame)[absent, 1].min() > 2


@pytest.mark.parametrize("dtype", ["string", "boolean"])
def test_nullable_columns_have_a_missing_level(dtype):
    values = {"string": ["a", None, "b"], "boolean": [True, None, False]}[dtype]
    frame = pd.DataFrame({"one": pd.Series(values * 20, dtype=dtype)})
    y = np.tile([0.0, 5.0, 1.0], 20)
    assert_allclose(AdditiveGPRegressor().fit(frame, y).predict(frame), y, atol=0.1)


@pytest.mark.parametrize("others", [[], ["kind"]])
@pytest.mark.parametrize("absent", [None, np.nan, pd.NA])
@pytest.mark.parametrize("number", [float, Decimal])
def test_objects_that_are_numbers_are_numbers(others, absent, number):
    frame, y = table()
    frame = frame[["size", *others]]
    size = pd.Series(list(map(number, frame["size"])), dtype=object)
    objects = frame.assign(size=size.where(frame["size"].notna(), absent))
    assert objects["size"].dtype == object
    model = AdditiveGPRegressor(**quick).fit(frame, y)
    expected = model.predict(frame)
    assert_array_equal(model.predict(objects), expected)
    nothing = objects[objects["size"].isna()]
    assert_array_equal(model.predict(nothing), model.predict(frame.loc[nothing.index]))
    assert_array_equal(AdditiveGPRegressor(**quick).fit(objects, y).predict(objects), expected)


@pytest.mark.parametrize("make", [lambda x: pd.DataFrame({"litres": x}), lambda x: x[:, None]])
def test_categories_may_be_in_another_precision(make):
    litres = np.tile([1.2, 1.4, 1.6, np.nan], 10)
    double, single = make(litres), make(litres.astype(np.float32))
    y = np.tile([0.0, 5.0, 1.0, 3.0], 10)
    model = AdditiveGPRegressor(categorical_features=[0], **quick)
    for known, other in ((double, single), (single, double)):
        model.fit(known, y)
        assert_array_equal(model.predict(other), model.predict(known))
        assert_allclose(model.predict(other), y, atol=0.2)


def test_other_objects_are_categories():
    values = {
        "strings": ["1", "2", None],
        "bools": [True, False, None],
        "none": [None] * 3,
        "counts": [1, np.int64(2), np.nan],
    }
    frame = pd.DataFrame({name: pd.Series(own, dtype=object) for name, own in values.items()})
    assert_array_equal(categorical_mask("from_dtype", frame), [True, True, True, False])


KINDS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "array": None}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_categories_of_another_kind_than_in_fit_are_refused(make):
    strings = ["1", "2", "3"] * 20
    numbers = [int(level) for level in strings]
    if make is None:
        texts, codes = np.array([strings], dtype=object).T, np.array([numbers]).T
    else:
        texts, codes = make({"c": strings}), make({"c": numbers})
    model = AdditiveGPRegressor(categorical_features=[0])
    for known, other in ((texts, codes), (codes, texts)):
        model.fit(known, numbers)
        assert_array_equal(model.predict(known[:3]).round(), [1, 2, 3])
        with pytest.raises(TypeError, match=r"has the category .*, but in fit it had .* such as"):
            model.predict(other)


@pytest.mark.parametrize("others", [[], ["size"], ["size", "kind"]])
@pytest.mark.parametrize("kind", ["naive", "zoned", "period", "difference", "objects"])
def test_dates_are_refused(kind, others):
    frame, y = table(60)
    days = pd.date_range("2020", periods=60).to_series(index=range(60))
    kinds = {
        "naive": days,
        "zoned": days.dt.tz_localize("UTC"),
        "period": days.dt.to_period("D"),
        "difference": days - days[0],
        "objects": days.dt.date,
    }
    frame["when"] = kinds[kind]
    with pytest.raises(TypeError, match="Column 'when' of X has dates or times"):
        AdditiveGPRegressor().fit(frame[[*others, "when"]], y)


@pytest.mark.parametrize("as_objects", [False, True])
def test_dates_may_be_categories(as_objects):
    frame = pd.DataFrame({"when": pd.date_range("2020", periods=3).repeat(20)})
    if as_objects:
        frame["when"] = frame["when"].dt.date
    model = AdditiveGPRegressor(categorical_features=["when"]).fit(frame, np.arange(60) // 20)
    assert_allclose(model.predict(frame), np.arange(60) // 20, atol=0.05)


def test_tables_of_pyarrow_are_refused():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"size": np.arange(9.0)})
    with pytest.raises(TypeError, match=r"X is a Table of pyarrow.*pass X.to_pandas\(\)"):
        AdditiveGPRegressor().fit(table, np.arange(9.0))
    model = AdditiveGPRegressor().fit(table.to_pandas(), np.arange(9.0))
    with pytest.raises(TypeError, match=r"pass X.to_pandas\(\)"):
        model.predict(table)


def test_columns_of_one_name_are_refused_later_too():
    frame, y = table(60)
    model = AdditiveGPRegressor(**quick).fit(frame, y)
    with pytest.raises(ValueError, match="more than one column of the name size"):
        model.predict(pd.concat([frame, frame["size"]], axis=1))


def test_a_column_is_no_table():
    frame, y = table(60)
    with pytest.raises(ValueError, match="Expected a 2-dimensional container"):
        AdditiveGPRegressor().fit(frame["size"], y)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_one_row_of_a_table_is_no_table():
    frame, y = table(60)
    model = AdditiveGPRegressor(**quick).fit(frame, y)
    with pytest.raises(ValueError, match="Expected a 2-dimensional container"):
        model.predict(frame.iloc[0])
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        model.predict(frame.head(2).to_dict("records"))


def test_levels_of_mixed_types_are_refused():
    frame, y = table(60)
    frame["both"] = [1, "one"] * 30
    with pytest.raises(TypeError, match="column 'both' of X are of types int, str"):
        AdditiveGPRegressor().fit(frame, y)


def test_levels_may_be_strings_of_numpy_too():
    frame, y = table(60)
    frame["both"] = pd.Series([np.str_("one"), "two"] * 30, dtype=object)
    model = AdditiveGPRegressor(interactions=None).fit(frame, y)
    assert model.explain(frame).shape[0] == 60


def test_columns_of_one_name_are_refused():
    frame, y = table(60)
    with pytest.raises(ValueError, match="more than one column of the name size: rename"):
        AdditiveGPRegressor().fit(pd.concat([frame, frame[["size"]]], axis=1), y)


@pytest.mark.parametrize("categorical", [None, [0]])
def test_targets_are_asked_for(categorical):
    gam = AdditiveGPRegressor(categorical_features=categorical)
    with pytest.raises(ValueError, match=r"AdditiveGPRegressor.* requires y to be passed"):
        gam.fit(np.zeros((5, 2)), None)


def test_categories_of_one_dimension_are_refused():
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        AdditiveGPRegressor(categorical_features=[0]).fit(np.arange(20.0), np.arange(20.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("auto", "categorical_features='auto' must be 'from_dtype'"),
        ({7: 8}, "which are not columns of X"),
        ([7], "must be 3 bools, or names, or integers from -3 to 2"),
        (["none"], r"has \['none'\], which are not columns of X"),
        ([True], "must be 3 bools"),
    ],
)
def test_bad_categories(given, message):
    with pytest.raises(ValueError, match=message):
        AdditiveGPRegressor(categorical_features=given).fit(*table(50))


def test_columns_and_levels_of_an_encoder():
    frame, _ = table(30)
    assert_array_equal(categorical_mask("from_dtype", frame), [False, True, False])
    assert categorical_mask("from_dtype", frame.to_numpy()) is None
    assert_array_equal(categorical_mask(["kind"], frame), [False, True, False])
    encoder = TableEncoder(np.array([False, True, False])).fit(frame)
    assert encoder.levels == [["u", "v", "w"]]
    assert_array_equal(encoder.n_levels, [0, 3, 0])
    assert_array_equal(encoder.transform(frame)[:, 1], frame["kind"].cat.codes)


def test_ranges_and_powers_of_columns():
    rng = np.random.RandomState(0)
    data = np.c_[rng.uniform(-3, 5, 500), rng.lognormal(size=500), np.ones(500)]
    data[0, 0] = np.nan
    even, skewed, constant = described(data, np.ones(500), np.zeros(3, int), "power", every(3))
    assert even.missing
    assert even.power == 1 != skewed.power
    assert constant.constant
    unit = skewed.unit(t64(data[:, 1])).numpy()
    assert_allclose([unit.min(), unit.max()], [0, 1], atol=1e-12)
    assert abs(np.mean(unit) - np.median(unit)) < 0.05


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_numbers_out_of_the_range_of_skewed_columns_stay_apart(sign, sigma):
    data = sign * np.random.RandomState(0).lognormal(sigma=sigma, size=(500, 1))
    (feature,) = described(data, np.ones(500), np.zeros(1, int), "power", every(1))
    assert feature.power != 1
    # The power function alone would map all of a long tail to the end of the range.
    far = feature.unit(t64(data[np.abs(data).argmax()] * 10.0 ** np.arange(5)))
    assert (sign * far.diff() > 0.04).all()
    assert abs(far[-1]) > 50
    other = feature.unit(t64(-sign * np.array([1.0, 10.0, 100.0])))
    assert (sign * other < 0).all() if sign == 1 else (other > 1).all()
    assert (sign * other.diff() < -0.1).all()
    # The map is continuous at the ends of the range.
    ends = t64([data.min(), data.max()])
    assert_allclose(feature.unit(ends + 1e-6) - feature.unit(ends - 1e-6), 0, atol=1e-4)
    assert_allclose(feature.unit(ends), [0, 1], atol=1e-12)


def test_levels_of_single_rows_have_no_effect():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"row {i}" for i in range(60)], "x": rng.uniform(size=60)})
    y = frame["x"] + 0.1 * rng.standard_normal(60)
    model = AdditiveGPRegressor(**quick).fit(frame, y)
    assert model.term_names_ == ["x"]
    assert_allclose(model.noise_variance_, 0.01, rtol=0.5)
    weighted = AdditiveGPRegressor(**quick).fit(frame, y, sample_weight=np.full(60, 2.0))
    assert "id" in weighted.term_names_ + weighted.dropped_terms_


def test_columns_whose_squares_overflow_are_refused():
    X, y = waves(40)
    with pytest.raises(ValueError, match="Squares of X overflow"):
        AdditiveGPRegressor(interactions=None).fit(1e200 * X, y)
