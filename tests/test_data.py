"""Training rows: weights, chunks, minibatches, subsets, and memory layouts."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_all_equal, rows_of, weighted_rows

from skgpsvm import _data
from skgpsvm._data import WeightedDataset, to_tensor
from skgpsvm._merging import merged_rows

CPU = torch.device("cpu")
N = 50  # number of rows of `weighted_rows`

LAYOUTS = {
    "C": lambda X: X,
    "Fortran": np.asfortranarray,
    "reversed rows": lambda X: X[::-1].copy()[::-1],
    "reversed columns": lambda X: X[:, ::-1].copy()[:, ::-1],
    "every other column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def layout(request):
    """Return a function that changes the memory layout of an array, but not its values."""
    return request.param


@pytest.fixture(params=[True, False], ids=["held", "streamed"])
def held(request, monkeypatch):
    """Return whether rows are moved to the device at once or chunk by chunk."""
    monkeypatch.setattr(_data, "HELD_BYTES", 2**28 if request.param else 0)
    return request.param


def test_rows_of_weight_zero_are_absent(held):
    X, y, weights = weighted_rows()
    rows = rows_of(X, y, weights)
    kept = weights > 0
    assert len(rows) == kept.sum()
    for got, expected in zip(rows.take(slice(0, N)), (X, y, weights), strict=True):
        assert_array_equal(got, expected[kept])


def test_slices_and_indices_take_the_same_rows(held):
    X, y, weights = weighted_rows()
    rows = rows_of(X, y, weights)
    assert_all_equal(rows.take(torch.tensor([3, 4, 5, 6])), rows.take(slice(3, 7)))
    X_taken, y_taken, _ = rows.take(torch.tensor([7, 2, 2]))
    assert_array_equal(X_taken, X[weights > 0][[7, 2, 2]])
    assert_array_equal(y_taken, y[weights > 0][[7, 2, 2]])


def test_chunks_cover_all_rows_in_order(held):
    X, y, weights = weighted_rows()
    rows = rows_of(X, y, weights)
    assert rows.chunks() == [slice(0, _data.CHUNK_ROWS)]
    parts = [rows.take(chunk)[0] for chunk in rows.chunks(7)]
    assert max(map(len, parts)) == 7
    assert_array_equal(torch.cat(parts), X[weights > 0])


@pytest.mark.parametrize("batch_size", [1, 3, 4, 9, 10, 99])
def test_minibatches_cover_all_rows_once_in_nearly_equal_parts(batch_size):
    rows = rows_of(np.zeros((10, 1)), np.zeros(10), np.ones(10))
    batches = rows.minibatches(batch_size, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(batches).tolist()) == list(range(10))
    sizes = [len(batch) for batch in batches]
    assert len(batches) == math.ceil(10 / batch_size)
    assert max(sizes) <= batch_size
    # A last batch of a few rows would have the same influence as the others.
    assert max(sizes) - min(sizes) <= 1


def test_minibatches_are_the_generator_s():
    rows = rows_of(np.zeros((50, 1)), np.zeros(50), np.ones(50))
    first, second = (torch.Generator().manual_seed(0) for _ in range(2))
    once, again = (torch.cat(rows.minibatches(50, g)) for g in (first, second))
    assert torch.equal(once, again)
    assert not torch.equal(once, torch.cat(rows.minibatches(50, first)))


def test_memory_layout_does_not_matter(held, layout):
    X, y, weights = weighted_rows()
    assert_array_equal(
        rows_of(layout(X), y, weights).take(slice(0, N))[0],
        rows_of(X, y, weights).take(slice(0, N))[0],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_rows_are_of_the_dtype_asked_for(held, dtype, given):
    X, y, weights = weighted_rows()
    X_taken, y_taken, weights_taken = rows_of(X.astype(given), y, weights, dtype).take(slice(0, 9))
    assert X_taken.dtype == weights_taken.dtype == dtype
    assert y_taken.dtype == torch.int64


def test_held_rows_are_a_copy():
    X, y, weights = weighted_rows()
    rows = rows_of(X, y, weights)
    before = rows.take(slice(0, N))[0].clone()
    X[:] = 0
    assert_array_equal(rows.take(slice(0, N))[0], before)


def test_read_only_memmap_is_read_chunk_by_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(_data, "HELD_BYTES", 0)
    X, y, weights = weighted_rows()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    rows = rows_of(mapped, y, weights)
    assert np.shares_memory(rows.X[0:3], mapped)
    assert_array_equal(rows.take(slice(0, N))[0], X[weights > 0])


def test_subset_draws_whole_rows_of_one_weight_without_replacement(held):
    X, y, _ = weighted_rows()
    rows = rows_of(X, y, np.full(N, 0.7))
    some = rows.subset(10, np.random.RandomState(0))
    again = rows.subset(10, np.random.RandomState(0))
    assert len(some) == 10
    parts, parts_again = some.take(slice(0, 10)), again.take(slice(0, 10))
    assert_all_equal(parts, parts_again)
    known = {(*x, t, 0.7) for x, t in zip(X.tolist(), y.tolist(), strict=True)}
    drawn = {(*x.tolist(), t.item(), w.item()) for x, t, w in zip(*parts, strict=True)}
    assert len(drawn) == 10
    assert drawn <= known


def test_subset_draws_rows_by_their_weight(held):
    X, y, _ = weighted_rows()
    weights = np.where(np.arange(N) < 3, 20.0, 1.0)
    rows, place = rows_of(X, y, weights), {tuple(x): i for i, x in enumerate(X.tolist())}
    units, random_state, mean = len(rows.units()), np.random.RandomState(0), np.zeros(N)
    for _ in range(500):
        some = rows.subset(10, random_state)
        assert some.n_rows == len(some) <= 10
        X_some, _, drawn = some.take(slice(0, 10))
        index = [place[tuple(x)] for x in X_some.tolist()]
        assert (drawn.numpy() <= weights[index]).all()
        mean[index] += drawn.numpy() / 500
    # Each unit is drawn with the same probability; the tolerance is three standard deviations.
    assert_allclose(mean[:3], weights[:3] * 10 / units, rtol=0.1)
    assert_allclose(mean[3:].mean(), 10 / units, rtol=0.1)


@pytest.mark.parametrize(("sizes", "drawn"), [((900, 5, 95), (47, 5, 47)), ((30, 40), (30, 40))])
def test_subset_by_class_keeps_rare_classes_and_totals(sizes, drawn):
    y = np.repeat(np.arange(len(sizes)), sizes)
    rows = rows_of(np.random.default_rng(0).normal(size=(len(y), 2)), y)
    some = rows.subset(100, np.random.RandomState(0), by_class=True)
    assert_array_equal(torch.bincount(some.targets), drawn)
    assert_allclose(torch.bincount(some.targets, some.weights), sizes)
    assert_allclose(some.total_weight, len(y))


def test_subset_of_few_rows_is_all_of_them():
    rows = rows_of(*weighted_rows())
    assert rows.subset(N, np.random.RandomState(0)) is rows


@pytest.mark.parametrize("weight", [1e-60, 1e60])
def test_weights_that_the_dtype_cannot_hold_are_refused(weight):
    X, y, _ = weighted_rows()
    assert len(rows_of(X, y, np.full(N, weight))) == N
    with pytest.raises(ValueError, match="do not fit in float32: scale them"):
        rows_of(X, y, np.full(N, weight), torch.float32)


def test_one_vanishing_weight_among_others_does_no_harm():
    X, y, weights = weighted_rows()
    weights[1] = 1e-60
    assert rows_of(X, y, weights, torch.float32).weights.sum() > 0


def test_tensors_copy_any_layout(layout):
    X = weighted_rows()[0]
    tensor = to_tensor(layout(X), CPU)
    assert_array_equal(tensor, X)
    tensor.zero_()
    assert X.any()


def test_values_come_back_in_the_order_of_the_rows_given():
    X, y, weights = weighted_rows()
    index = np.r_[:N, 3, 5]
    X, y, weights = X[index], y[index], weights[index]
    *merged, origin = merged_rows(X, y, weights)
    for rows in (
        WeightedDataset(*merged, CPU, torch.float64, origin=origin),
        rows_of(X, y, weights),
    ):
        values = rows.unmerged(rows.X[:, 0])
        assert_array_equal(values, np.where(weights > 0, X[:, 0], np.nan))
    none_left = WeightedDataset(
        X[:3], y[:3], np.ones(3), CPU, torch.float64, origin=np.array([1, -1, 2, 0])
    )
    assert_array_equal(
        none_left.unmerged(none_left.X[:, 0]), X[[1, 0, 2, 0], 0] * [1, np.nan, 1, 1]
    )


@pytest.mark.parametrize(
    ("scale", "numbers"), [(1e-6, [1, 1, 10]), (1.0, [1, 1, 10]), (1e6, [3, 1, 100])]
)
def test_units_divide_rows_by_their_weight(scale, numbers):
    """The mean weight is 4; weights of a million are numbers of observations, in proportion."""
    X, weights = np.arange(12.0)[:, None], np.array([*np.ones(10), 0.3, 37.7])
    rows = WeightedDataset(X, np.zeros(12), scale * weights, CPU, torch.float64)
    units, shares = rows.units(), 1 / np.array(numbers)
    assert np.bincount(units).tolist() == [*[numbers[0]] * 10, *numbers[1:]]
    first = np.searchsorted(units, [1, 11])
    without, alone = rows.divided(units, first)
    left = weights * (1 - np.eye(12)[1] * shares[0] - np.eye(12)[11] * shares[2])
    assert_allclose(without.weights, scale * left[left > 0])
    assert_allclose(alone.weights, scale * np.array([shares[0], 37.7 * shares[2]]))
    assert_array_equal(alone.X, X[[1, 11]])


def test_units_are_shares_of_many_observations():
    rows = WeightedDataset(np.eye(3), np.zeros(3), np.array([4e4, 1e4, 3.0]), CPU, torch.float64)
    assert np.bincount(rows.units()).tolist() == [100, 25, 1]


def dataset(X, weights):
    return WeightedDataset(X, np.arange(float(len(X))), np.array(weights), CPU, torch.float64)


def test_large_weights_are_scaled_to_one_on_average():
    weights = np.array([1.0, 1.0, 7.0])
    rows = dataset(np.eye(3), weights)
    assert_allclose(rows.with_moderate_weights().weights, weights / 3)
    assert_allclose(rows.with_moderate_weights().total_weight, 3)
    assert rows.total_weight == 9
    moderate = dataset(np.eye(3), weights / 2)
    assert moderate.with_moderate_weights() is moderate


def test_even_weights_are_one_or_their_mean_but_for_light_rows():
    X, weights = np.eye(4), np.array([0.5, 2.0, 5.49, 0.01])
    assert_allclose(dataset(X, weights).with_even_weights().weights, [1, 1, 1, 0.25])
    few = dataset(X, weights / 10).with_even_weights()  # fewer observations than rows
    assert_allclose(few.weights, np.array([1, 1, 1, 0.25]) * 0.8 / 3.25)
    assert_allclose(few.total_weight, 0.8)
    tiny = dataset(X, [1.0, 1.0, 1.0, 1e-12]).with_even_weights()  # as good as removed
    assert_allclose(tiny.weights[:3], 1, rtol=1e-9)
    for equal in (0.25, 1.0):
        rows = dataset(X, np.full(4, equal))
        assert rows.with_even_weights() is rows
    assert_allclose(dataset(X, np.full(4, 3.0)).with_even_weights().weights, 1)


def test_weights_of_rows_that_differ_in_the_target_alone_stay():
    ratings = dataset(np.ones((3, 2)), [1.0, 1.0, 7.0])
    assert ratings.with_moderate_weights() is ratings
    assert ratings.with_even_weights() is ratings


def test_rows_are_repeated_where_weights_are_unequal_or_large():
    assert dataset(np.eye(3), [1.0, 1.0, 4.0]).are_repeated()
    assert not dataset(np.eye(3), [1.0, 1.0, 1.0]).are_repeated()


def test_rows_are_left_out_with_all_weight_unless_others_differ_in_the_target():
    X = np.column_stack([np.arange(12.0), np.ones(12)])
    X[1] = X[0]
    weights, targets = np.resize([3.0, 0.5, 4.0, 1.0], 12), np.arange(12) % 2
    rows = WeightedDataset(X, targets, weights, "cpu", torch.float64)
    expected = np.r_[1, weights[1:]]
    assert_array_equal(rows.left_out_weights, expected)
    assert_array_equal(rows.part([0, 2], 0.5).left_out_weights, [1, 2])
    light = WeightedDataset(X, targets, weights / 4, "cpu", torch.float64)
    assert_array_equal(light.left_out_weights, weights / 4)
    missing = WeightedDataset(X * [1, np.nan], targets, weights, "cpu", torch.float64)
    assert_array_equal(missing.left_out_weights, expected)


@pytest.mark.parametrize(("n_values", "weight", "left"), [(9, 3, 1), (11, 3, 3), (20, 12, 1)])
def test_one_observation_is_left_out_where_features_have_few_values(n_values, weight, left):
    X = np.arange(float(n_values))[:, None]
    weights = np.full(n_values, float(weight))
    rows = WeightedDataset(X, np.zeros(n_values, int), weights, "cpu", torch.float64)
    assert_array_equal(rows.left_out_weights, np.full(n_values, left))
