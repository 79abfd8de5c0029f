"""Rows of sources: blocks, checks, row numbers in errors, shuffles; the same models from all."""

import pickle

import joblib
import numpy as np
import pytest
import torch
from every_estimator import ESTIMATORS, assert_same, predictions, problem
from numpy.testing import assert_array_equal
from problems import Source
from scipy.sparse import csr_array
from sklearn.base import clone
from torch.utils.data import TensorDataset

from skgpsvm import (
    AdditiveGPRegressor,
    HybridBayesianSVC,
    SVGPRegressor,
    _data,
    _rows,
)
from skgpsvm._data import WeightedDataset
from skgpsvm._rows import Rows, checked_rows, column, is_source
from skgpsvm.inducing import select_inducing_points
from skgpsvm.solvers import NaturalGradient

N, D = 95, 3
CHUNKS = [None, (7, D), ((40, 1, 4, 50), (D,))]


@pytest.fixture
def small_blocks(monkeypatch):
    """Make blocks of ten rows, of which four are in memory, and keep no rows on the device."""
    monkeypatch.setattr(_rows, "_BLOCK_BYTES", 10 * D * 8)
    monkeypatch.setattr(_rows, "_HELD_BYTES", 4 * 10 * D * 8)
    monkeypatch.setattr("skgpsvm._merging._MAX_MERGED", 0)
    monkeypatch.setattr(_data, "HELD_BYTES", 0)


@pytest.fixture
def one_group(small_blocks, monkeypatch):
    """Keep all blocks in memory, so that a shuffle is that of an array."""
    monkeypatch.setattr(_rows, "_HELD_BYTES", 2**20)


def table(n=N):
    return np.random.default_rng(0).normal(size=(n, D))


def mapped(folder, X):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


# Rows


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunks", CHUNKS)
def test_rows_are_those_of_the_array(chunks):
    X = table()
    rows = Rows(Source(X, chunks))
    assert (rows.shape, rows.dtype, rows.size, len(rows)) == (X.shape, X.dtype, X.size, N)
    for part in (slice(None), slice(3, 17), slice(90, 200), slice(5, 5), slice(0, 95, 30)):
        assert_array_equal(rows[part], X[part])
    index = np.random.default_rng(1).integers(0, N, 60)
    assert_array_equal(rows[index], X[index])
    assert_array_equal(np.asarray(rows), X)
    assert_array_equal(column(rows, 1), X[:, 1])


def test_arrays_in_memory_and_tables_are_no_sources(tmp_path):
    X = table()
    for other in (X, X.tolist(), torch.from_numpy(X), csr_array(X), Source(X[:, 0]), 1.0):
        assert not is_source(other)
    for source in (mapped(tmp_path, X), Source(X), TensorDataset(torch.from_numpy(X))):
        assert is_source(source)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("kept", [None, np.arange(0, N, 2)])
def test_a_shuffled_pass_reads_each_block_about_once(chunks, kept):
    source = Source(table(), chunks)
    rows = Rows(source)
    order = rows.shuffled(kept, torch.Generator().manual_seed(0))
    n = N if kept is None else len(kept)
    assert sorted(order.tolist()) == list(range(n))
    index = order.numpy() if kept is None else kept[order.numpy()]
    for batch in np.array_split(index, n // 8):
        assert_array_equal(rows[batch], table()[batch])
    assert source.read <= 1.25 * N


@pytest.mark.usefixtures("small_blocks")
def test_minibatches_of_blocks_are_unbiased():
    # Ten blocks of ten rows, groups of two: every row is as likely as any other in every step.
    X, n_draws = table(100), 1000
    rows = WeightedDataset(
        checked_rows(Source(X)), np.zeros(100), np.ones(100), torch.device("cpu"), torch.float64
    )
    generator, counts = torch.Generator().manual_seed(0), np.zeros((10, 100))
    for _ in range(n_draws):
        for step, index in enumerate(rows.minibatches(10, generator)):
            counts[step, index.numpy()] += 1
    assert_array_equal(counts.sum(0), n_draws)
    std = np.sqrt(n_draws * 0.1 * 0.9)
    assert np.abs(counts - n_draws / 10).max() < 5 * std


@pytest.mark.usefixtures("small_blocks")
def test_states_distinguish_rows():
    X, other = table(), table()
    other[-1, -1] += 1
    assert joblib.hash(checked_rows(Source(X))) == joblib.hash(checked_rows(Source(X, (7, D))))
    assert joblib.hash(checked_rows(Source(X))) != joblib.hash(checked_rows(Source(other)))


# Errors


def spoiled(value, dtype=np.float64, n=N):
    X = table(n).astype(dtype)
    X[77, 1] = value
    return X


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (spoiled(np.nan), r"Row 77 of X: Input X contains NaN"),
        (spoiled(np.inf), r"Row 77 of X: Input X contains infinity"),
        (spoiled(np.inf, np.float16), r"Row 77 of X: Input X contains infinity"),
        (spoiled("many", object), r"Row 77 of X: could not convert string to float: 'many'"),
        (table().astype(str)[:, :1].astype("U1"), r"could not convert string to float"),
        (table() * 1j, r"Complex data not supported"),
        (table()[:, :, None], r"Found array with dim 3"),
        (table()[:0], r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\)"),
        (table()[:, :0], r"Found array with 0 feature\(s\) \(shape=\(1, 0\)\)"),
    ],
)
def test_invalid_rows_are_refused_with_their_numbers(X, message):
    with pytest.raises(ValueError, match=message):
        SVGPRegressor().fit(Source(X), np.arange(len(X), dtype=float))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_predictions_check_rows_and_features(tmp_path):
    X = table()
    model = SVGPRegressor(max_iter=1).fit(Source(X), X[:, 0])
    for source in (Source(spoiled(np.nan)), mapped(tmp_path, spoiled(np.nan))):
        with pytest.raises(ValueError, match=r"Row 77 of X: Input X contains NaN"):
            model.predict(source)
    with pytest.raises(ValueError, match="X has 2 features, but SVGPRegressor is expecting 3"):
        model.predict(Source(X[:, :2]))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(Source(X), X[:-1, 0])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_tells_the_number_of_an_invalid_row(name):
    estimator = clone(ESTIMATORS[name])
    X, y = problem(estimator)
    X[77, 1] = np.inf
    for source in (Source(X), TensorDataset(torch.from_numpy(X))):
        with pytest.raises(ValueError, match=r"Row 77 of X: Input X contains infinity"):
            estimator.fit(source, y)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("later", [np.full((N, D), np.nan), table()[:50]])
def test_a_source_that_changes_between_passes_is_refused(later):
    class Changing(Source):
        def __getitem__(self, part):
            if self.read >= N:
                self._rows = later
            return super().__getitem__(part)

    with pytest.raises(ValueError, match=r"Row \d+ of X: .* NaN|rows of X have shape \(\d+, 3\)"):
        SVGPRegressor(random_state=0).fit(Changing(table()), table()[:, 0])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [np.float16, np.int8, bool])
def test_numbers_of_any_type_are_read_as_those_of_an_array(dtype):
    X, model = (10 * table()).astype(dtype), SVGPRegressor(optimizer=None, random_state=0)
    read, whole = (clone(model).fit(own, table()[:, 0]) for own in (Source(X, (1, D)), X))
    assert_array_equal(read.predict(Source(X)), whole.predict(X))


def test_a_source_with_fewer_rows_than_its_shape_is_refused():
    source = Source(table())
    source.shape = 200, D
    with pytest.raises(ValueError, match=r"rows of X have shape \(95, 3\), but X has shape \(200"):
        SVGPRegressor().fit(source, np.zeros(200))


# Estimators


@pytest.mark.usefixtures("one_group")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_gives_one_model_of_array_and_source(name):
    estimator = ESTIMATORS[name]
    X, y = problem(estimator)
    whole = clone(estimator).fit(X, y)
    read = clone(estimator).fit(Source(X, (7, D)), y)
    assert_same(predictions(read, source=Source), predictions(whole))
    assert_array_equal(read.predict(TensorDataset(torch.from_numpy(X))), whole.predict(X))
    assert b"Source" not in pickle.dumps(read)


@pytest.mark.usefixtures("one_group")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["svc", "ep", "decoupled, sgd", "additive, sparse"])
def test_streams_of_arrays_and_sources_give_one_model(name):
    estimator = ESTIMATORS[name]
    X, y = problem(estimator)
    whole, read = clone(estimator), clone(estimator)
    for part in (slice(None, None, 2), slice(1, None, 2)):
        whole.partial_fit(X[part], y[part])
        read.partial_fit(Source(X[part]), y[part])
    assert_same(predictions(read), predictions(whole))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["memmap", "Dataset"])
@pytest.mark.parametrize("name", ["svc, gradient", "svgp", "qsgp, sgd", "additive, sparse"])
def test_memmaps_and_datasets_are_sources_of_every_estimator(name, kind, tmp_path):
    estimator = ESTIMATORS[name]
    X, y = problem(estimator)
    source = mapped(tmp_path, X) if kind == "memmap" else TensorDataset(torch.from_numpy(X))
    read = clone(estimator).fit(source, y)
    assert_same(predictions(read), predictions(clone(estimator).fit(X, y)))
    assert_array_equal(read.predict(source), read.predict(X))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_groups_of_blocks_give_as_good_a_model():
    # Rows are sorted, which is the worst order for shuffles of blocks.
    X = np.sort(np.random.default_rng(0).uniform(0, 6, (400, 1)), axis=0)
    y = np.sin(X[:, 0])
    model = SVGPRegressor(n_inducing=10, max_iter=5, random_state=0)
    model.set_params(solver=NaturalGradient(batch_size=20), optimizer=None).fit(Source(X), y)
    assert model.score(X, y) > 0.99


def test_categories_of_a_source_are_encoded_as_those_of_an_array(monkeypatch):
    X, y = problem(AdditiveGPRegressor())
    X = np.column_stack([X[:, 0], np.arange(len(X)) % 4 * 10])
    X[5, 1] = np.nan
    model = AdditiveGPRegressor(max_iter=2, interactions=None, categorical_features=[1])
    monkeypatch.setattr("skgpsvm._merging._MAX_MERGED", 0)
    whole, read = (clone(model).fit(own, y) for own in (X, Source(X)))
    assert_array_equal(read.predict(Source(X)), whole.predict(X))


def test_images_of_a_source_are_those_of_an_array():
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4)).astype(np.uint8)
    y = images.mean((1, 2)) > images.mean()
    model = HybridBayesianSVC(max_iter=2, n_inducing=5, random_state=0)
    whole, read = (clone(model).fit(own, y) for own in (images, Source(images)))
    assert read.input_shape_ == (4, 4)
    assert_array_equal(read.predict_proba(Source(images)), whole.predict_proba(images))


def test_inducing_points_of_a_source():
    X = table(20_000)
    assert_array_equal(
        select_inducing_points(Source(X), 8, random_state=0),
        select_inducing_points(X, 8, random_state=0),
    )
