"""Files as sources: HDF5 datasets, and Parquet files by their adapter."""

import datetime

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from skgpsvm import AdditiveGPRegressor, SVGPClassifier, SVGPRegressor, _data, _rows
from skgpsvm._rows import checked_rows
from skgpsvm.active_learning import ScoreQueryStrategy, _scores, bald, epig, predictive_entropy
from skgpsvm.data import ParquetRows

N, NAMES = 250, ["a", "b", "c"]
FEW = {"n_inducing": 10, "max_iter": 2, "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def pa():
    """Return pyarrow with its module of Parquet files."""
    pytest.importorskip("pyarrow.parquet")
    return pytest.importorskip("pyarrow")


@pytest.fixture
def in_blocks(monkeypatch):
    """Make blocks of ten rows of three features, and keep no rows on the device."""
    monkeypatch.setattr(_rows, "_BLOCK_BYTES", 240)
    monkeypatch.setattr("skgpsvm._merging._MAX_MERGED", 0)
    monkeypatch.setattr(_data, "HELD_BYTES", 0)


def table():
    X = np.random.default_rng(0).normal(size=(N, 3))
    return X, np.sin(X[:, 0]) + X[:, 1]


def written(pa, folder, columns, row_group_size=40):
    """Write a table to two files of a folder."""
    every = pa.table(columns)
    for k, part in enumerate((every.slice(0, 100), every.slice(100))):
        pa.parquet.write_table(part, folder / f"{k}.parquet", row_group_size=row_group_size)
    return folder


def named(X):
    return {name: X[:, j].copy() for j, name in enumerate(NAMES)}


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("chunks", [None, (30, 2)])
def test_datasets_of_hdf5_files_are_sources(chunks, tmp_path):
    h5py = pytest.importorskip("h5py")
    X, y = table()
    whole = SVGPRegressor(**FEW).fit(X, y)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        rows = file.create_dataset("X", data=X, chunks=chunks)
        read = SVGPRegressor(**FEW).fit(rows, y)
        assert_array_equal(read.predict(rows), whole.predict(X))
        model = SVGPClassifier(**FEW).fit(rows, y > 0)
        assert_array_equal(predictive_entropy(model, rows), predictive_entropy(model, X))


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("chunks", [(250, 3), (30, 2)])
def test_arrays_of_zarr_are_sources(chunks, tmp_path):
    zarr = pytest.importorskip("zarr")
    X, y = table()
    rows = zarr.create_array(tmp_path / "rows.zarr", shape=X.shape, dtype=X.dtype, chunks=chunks)
    rows[:] = X
    model, whole = SVGPRegressor(**FEW).fit(rows, y), SVGPRegressor(**FEW).fit(X, y)
    assert_array_equal(model.predict(rows), whole.predict(X))
    rows[7, 1] = np.nan
    with pytest.raises(ValueError, match="Row 7 of X: Input X contains NaN"):
        model.fit(rows, y)


def test_columns_that_a_file_lacks_are_told(pa, tmp_path):
    X, _ = table()
    written(pa, tmp_path, named(X))
    pa.parquet.write_table(pa.table({"a": X[:5, 0]}), tmp_path / "2.parquet")
    with pytest.raises(
        ValueError, match=r"2.parquet' has the columns \['a'\], without \['b', 'c'\]"
    ):
        ParquetRows(tmp_path)
    assert_array_equal(ParquetRows(tmp_path, columns=["a"])[:][-5:, 0], X[:5, 0])


def test_columns_of_partitions_are_read(pa, tmp_path):
    X, _ = table()
    columns = {**named(X), "half": np.arange(N) // (N // 2)}
    pa.parquet.write_to_dataset(pa.table(columns), tmp_path, partition_cols=["half"])
    data = pa.dataset.dataset(tmp_path, format="parquet", partitioning="hive")
    rows = ParquetRows(data, columns=["half", "a"])
    expected = np.c_[columns["half"], X[:, 0]]
    found = rows[:]
    assert_array_equal(found[found[:, 1].argsort()], expected[expected[:, 1].argsort()])


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("chunks", ["auto", (0, 3), None])
def test_sources_whose_chunks_tell_nothing(chunks):
    class Held:
        def __init__(self, X):
            self.X, self.shape, self.dtype, self.chunks = X, X.shape, X.dtype, chunks

        def __getitem__(self, part):
            return self.X[part]

    X, y = table()
    whole = SVGPRegressor(**FEW).fit(X, y)
    assert_array_equal(SVGPRegressor(**FEW).fit(Held(X), y).predict(X), whole.predict(X))


def test_parquet_rows_are_those_of_the_table(pa, tmp_path):
    X, _ = table()
    rows = ParquetRows(written(pa, tmp_path, named(X)))
    assert (rows.shape, rows.dtype, rows.column_names) == (X.shape, X.dtype, NAMES)
    assert rows.chunks == ((40, 40, 20, 40, 40, 40, 30), (3,))
    for part in (slice(None), slice(35, 105), slice(240, 999), slice(7, 7), slice(0, 200, 3)):
        assert_array_equal(rows[part], X[part])
    for part in (np.array([240, 3, 77]), [-1, 3, -N], X[:, 0] > 0, slice(None, None, -3)):
        assert_array_equal(rows[part], X[part])
    with pytest.raises(IndexError, match=r"mask of 250 rows has shape \(3,\)"):
        rows[np.array([True, False, True])]
    for part in ([N], [0, -N - 1]):
        with pytest.raises(IndexError, match="There are 250 rows, and none with number"):
            rows[part]
    assert_array_equal(np.asarray(rows), X)
    files = [tmp_path / "1.parquet", str(tmp_path / "0.parquet")]
    assert_array_equal(ParquetRows(files, columns=["c", "a"])[:], np.roll(X, -100, 0)[:, [2, 0]])


@pytest.mark.usefixtures("in_blocks")
def test_parquet_files_give_the_model_of_an_array(pa, tmp_path):
    X, y = table()
    rows = ParquetRows(written(pa, tmp_path, named(X)))
    whole, read = SVGPRegressor(**FEW).fit(X, y), SVGPRegressor(**FEW).fit(rows, y)
    assert_array_equal(read.predict(rows), whole.predict(X))
    assert read.feature_names_in_.tolist() == NAMES
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        read.predict(ParquetRows(tmp_path, columns=NAMES[::-1]))


@pytest.mark.parametrize("score", [predictive_entropy, bald])
def test_scores_of_parquet_files_keep_the_names_of_the_features(score, pa, tmp_path, monkeypatch):
    monkeypatch.setattr(_scores, "ROWS", 100)
    X, y = table()
    rows = ParquetRows(written(pa, tmp_path, named(X)))
    model = SVGPClassifier(**FEW).fit(rows, y > 0)
    frame = pd.DataFrame(named(X))
    assert_array_equal(score(model, rows), score(model, frame))  # a lost name is a warning
    query = ScoreQueryStrategy(score).query(rows, np.full(N, np.nan), model, fit_clf=False)
    assert_array_equal(query, [score(model, frame).argmax()])


def test_targets_of_parquet_files_keep_the_names_of_the_features(pa, tmp_path):
    X, y = table()
    rows = ParquetRows(written(pa, tmp_path, named(X)))
    model = SVGPClassifier(**FEW).fit(rows, y > 0)
    assert_array_equal(epig(model, rows), epig(model, pd.DataFrame(named(X))))


def test_types_of_columns(pa, tmp_path):
    columns = {"a": np.arange(N, dtype=np.int8), "b": np.arange(N, dtype=np.float32)}
    assert ParquetRows(written(pa, tmp_path, columns)).dtype == np.float32
    columns["c"] = pa.array([None, True] * (N // 2))
    rows = ParquetRows(written(pa, tmp_path, columns))
    assert_array_equal(rows[:2], [[0, 0, np.nan], [1, 1, 1]])
    columns["c"] = pa.array([None, 2**40] * (N // 2))
    assert ParquetRows(written(pa, tmp_path, columns)).dtype == np.float64
    for values in (["x"] * N, [datetime.date(2026, 1, 1)] * N):
        written(pa, tmp_path, columns | {"c": values})
        with pytest.raises(TypeError, match="Column 'c' has type"):
            ParquetRows(tmp_path)
        assert ParquetRows(tmp_path, columns=["a"]).shape == (N, 1)
    with pytest.raises(ValueError, match=r"columns has \['d'\]"):
        ParquetRows(tmp_path, columns=["d"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="data has no columns; it must be a Parquet file"):
        ParquetRows(tmp_path / "empty")


def test_nulls_are_missing_values(pa, tmp_path):
    X, y = table()
    rows = ParquetRows(written(pa, tmp_path, named(X) | {"c": pa.array([None, 1.0] * (N // 2))}))
    with pytest.raises(ValueError, match=r"Row 0 of X: Input X contains NaN"):
        SVGPRegressor().fit(rows, y)
    model = AdditiveGPRegressor(max_iter=2, interactions=None).fit(rows, y)
    frame = pd.DataFrame(rows[:], columns=NAMES)
    assert_array_equal(model.predict(rows), model.predict(frame))


def test_row_groups_are_blocks(pa, tmp_path):
    X, _ = table()
    rows = checked_rows(ParquetRows(written(pa, tmp_path, named(X), row_group_size=200)))
    index = np.random.default_rng(0).permutation(N)
    assert_array_equal(rows[index], X[index])
