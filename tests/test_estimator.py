"""The boundary of NumPy and torch: rows, weights, labels, options, chunks."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.utils.class_weight import compute_sample_weight

from skgpsvm import _estimator
from skgpsvm._estimator import (
    Rows,
    TorchClassifier,
    TorchRegressor,
    check_weights,
    merged_rows,
    tamed,
    to_tensor,
)

CPU = torch.device("cpu")
N, D = 50, 3


class Stub(TorchClassifier):
    """As little of a classifier as the base class needs."""

    def __init__(self, device=None, dtype=None, class_weight=None, size=1):
        self.device = device
        self.dtype = dtype
        self.class_weight = class_weight
        self.size = size

    def fit(self, X, y):
        self._check_training_data(X, y, None)
        return self


def data(seed=0):
    """Rows in order, class codes and weights of which every third is 0."""
    rng = np.random.RandomState(seed)
    weights = rng.uniform(0.5, 2, size=N)
    weights[::3] = 0
    X, y = rng.normal(size=(N, D)), rng.randint(3, size=N)
    # As `merged_rows` leaves them.
    return X[np.argsort(X[:, 0])], y, weights


def rows_of(X, y, weights, dtype=torch.float64):
    return Rows(X, y, weights, CPU, dtype)


LAYOUTS = {
    "C": lambda X: X,
    "Fortran": np.asfortranarray,
    "reversed rows": lambda X: X[::-1].copy()[::-1],
    "reversed columns": lambda X: X[:, ::-1].copy()[:, ::-1],
    "every other column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def layout(request):
    """A function that lays an array out in memory in one of several ways, its values kept."""
    return request.param


@pytest.fixture(params=[True, False], ids=["held", "streamed"])
def held(request, monkeypatch):
    """Whether rows are moved to the device at once or chunk by chunk."""
    monkeypatch.setattr(_estimator, "_HELD_BYTES", 2**28 if request.param else 0)
    return request.param


# Rows


def test_rows_of_weight_zero_are_absent(held):
    X, y, weights = data()
    rows = rows_of(X, y, weights)
    kept = weights > 0
    assert len(rows) == kept.sum()
    for got, expected in zip(rows.take(slice(0, N)), (X, y, weights), strict=True):
        assert_array_equal(got, expected[kept])


def test_slices_and_indices_take_the_same_rows(held):
    X, y, weights = data()
    rows = rows_of(X, y, weights)
    for got, expected in zip(
        rows.take(torch.tensor([3, 4, 5, 6])), rows.take(slice(3, 7)), strict=True
    ):
        assert_array_equal(got, expected)
    X_taken, y_taken, _ = rows.take(torch.tensor([7, 2, 2]))
    assert_array_equal(X_taken, X[weights > 0][[7, 2, 2]])
    assert_array_equal(y_taken, y[weights > 0][[7, 2, 2]])


def test_chunks_cover_all_rows_in_order(held):
    X, y, weights = data()
    rows = rows_of(X, y, weights)
    assert rows.chunks() == [slice(0, _estimator.CHUNK_ROWS)]
    parts = [rows.take(chunk)[0] for chunk in rows.chunks(7)]
    assert max(map(len, parts)) == 7
    assert_array_equal(torch.cat(parts), X[weights > 0])


def test_memory_layout_does_not_matter(held, layout):
    X, y, weights = data()
    assert_array_equal(
        rows_of(layout(X), y, weights).take(slice(0, N))[0],
        rows_of(X, y, weights).take(slice(0, N))[0],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_rows_are_of_the_dtype_asked_for(held, dtype, given):
    X, y, weights = data()
    X_taken, y_taken, weights_taken = rows_of(X.astype(given), y, weights, dtype).take(slice(0, 9))
    assert X_taken.dtype == weights_taken.dtype == dtype
    assert y_taken.dtype == torch.int64


def test_held_rows_are_a_copy():
    X, y, weights = data()
    rows = rows_of(X, y, weights)
    before = rows.take(slice(0, N))[0].clone()
    X[:] = 0
    assert_array_equal(rows.take(slice(0, N))[0], before)


def test_read_only_memmap_is_read_chunk_by_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(_estimator, "_HELD_BYTES", 0)
    X, y, weights = data()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    rows = rows_of(mapped, y, weights)
    assert rows.X is mapped
    assert_array_equal(rows.take(slice(0, N))[0], X[weights > 0])


def test_subset_draws_whole_rows_of_one_weight_without_replacement(held):
    X, y, _ = data()
    rows = rows_of(X, y, np.full(N, 0.7))
    some = rows.subset(10, np.random.RandomState(0))
    again = rows.subset(10, np.random.RandomState(0))
    assert len(some) == 10
    parts, parts_again = some.take(slice(0, 10)), again.take(slice(0, 10))
    for part, part_again in zip(parts, parts_again, strict=True):
        assert_array_equal(part, part_again)
    known = {(*x, t, 0.7) for x, t in zip(X.tolist(), y.tolist(), strict=True)}
    drawn = {(*x.tolist(), t.item(), w.item()) for x, t, w in zip(*parts, strict=True)}
    assert len(drawn) == 10
    assert drawn <= known


def test_subset_draws_rows_by_their_weight(held):
    X, y, _ = data()
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
    # Each unit is drawn with one probability; the error is about three standard deviations.
    assert_allclose(mean[:3], weights[:3] * 10 / units, rtol=0.1)
    assert_allclose(mean[3:].mean(), 10 / units, rtol=0.1)


def test_subset_of_few_rows_is_all_of_them():
    rows = rows_of(*data())
    assert rows.subset(N, np.random.RandomState(0)) is rows


@pytest.mark.parametrize("weight", [1e-60, 1e60])
def test_weights_that_the_dtype_cannot_hold_are_refused(weight):
    X, y, _ = data()
    assert len(rows_of(X, y, np.full(N, weight))) == N
    with pytest.raises(ValueError, match=r"do not fit in torch\.float32: scale them"):
        rows_of(X, y, np.full(N, weight), torch.float32)


def test_one_vanishing_weight_among_others_does_no_harm():
    X, y, weights = data()
    weights[1] = 1e-60
    assert rows_of(X, y, weights, torch.float32).weights.sum() > 0


def test_tensors_copy_any_layout(layout):
    X = data()[0]
    tensor = to_tensor(layout(X), CPU)
    assert_array_equal(tensor, X)
    tensor.zero_()
    assert X.any()


# Weights


def test_values_come_back_in_the_order_of_the_rows_given():
    X, y, weights = data()
    index = np.r_[:N, 3, 5]
    X, y, weights = X[index], y[index], weights[index]
    *merged, origin = merged_rows(X, y, weights)
    for rows in (Rows(*merged, CPU, torch.float64, origin=origin), rows_of(X, y, weights)):
        values = rows.unmerged(rows.X[:, 0])
        assert_array_equal(values, np.where(weights > 0, X[:, 0], np.nan))
    none_left = Rows(X[:3], y[:3], np.ones(3), CPU, torch.float64, origin=np.array([1, -1, 2, 0]))
    assert_array_equal(
        none_left.unmerged(none_left.X[:, 0]), X[[1, 0, 2, 0], 0] * [1, np.nan, 1, 1]
    )


def test_no_weights_are_ones():
    assert_array_equal(check_weights(None, np.zeros((4, 2))), np.ones(4))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], "inconsistent numbers of samples"),
        (np.ones((3, 1)), "has 2 dimensions; it must have one"),
        ([1, -2, -3], r"2 negative values, the least -3\.0"),
        ([1, np.nan, 1], "sample_weight contains NaN"),
        ([1, np.inf, 1], "sample_weight contains infinity"),
        (["a", "b", "c"], "could not convert string to float"),
    ],
)
def test_bad_weights_are_refused_by_name(weights, message):
    with pytest.raises(ValueError, match=message):
        check_weights(weights, np.zeros((3, 2)))


@pytest.mark.parametrize("class_weight", ["balanced", {0: 2.0, 1: 0.5, 2: 3.0}, {1: 4.0}])
def test_class_weights_multiply_sample_weights(class_weight):
    X, y, weights = data()
    y_used, used = y[weights > 0], weights[weights > 0]
    if class_weight == "balanced":
        totals = np.bincount(y_used, used)
        factors = used.sum() / (3 * totals)
    else:
        factors = np.array([class_weight.get(label, 1.0) for label in range(3)])
    _, _, got, _ = Stub(class_weight=class_weight)._check_training_data(X, y, weights)
    # One product, one quotient; rows of weight 0 are left out.
    assert_allclose(got, (weights * factors[y])[weights > 0], rtol=1e-14)


def test_balanced_weights_are_scikit_learn_s_for_unit_weights():
    X, y, _ = data()
    _, _, got, _ = Stub(class_weight="balanced")._check_training_data(X, y, None)
    assert_allclose(got, compute_sample_weight("balanced", y), rtol=1e-14)


def test_weights_given_are_left_alone():
    X, y, weights = data()
    before = weights.copy()
    Stub(class_weight="balanced")._check_training_data(X, y, weights)
    assert_array_equal(weights, before)


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 2.0, 2: 3.0}])
def test_class_without_weight_is_absent(class_weight):
    X, y, _ = data()
    stub = Stub(class_weight=class_weight)
    _, codes, weights, _ = stub._check_training_data(X, y, (y != 1).astype(float))
    assert_array_equal(stub.classes_, [0, 2])
    assert_array_equal(stub.classes_[codes], y[y != 1])
    assert (weights > 0).all()


@pytest.mark.parametrize("class_weight", ["auto", [1, 2, 3], 2.0])
def test_class_weight_that_is_none(class_weight):
    X, y, _ = data()
    with pytest.raises(ValueError, match=r"class_weight=.* must be a dict of classes to numbers"):
        Stub(class_weight=class_weight)._check_training_data(X, y, None)


def test_class_weight_zero_removes_a_class():
    X, y, _ = data()
    stub = Stub(class_weight={0: 1, 1: 0, 2: 1})
    stub._check_training_data(X, y, None)
    assert_array_equal(stub.classes_, [0, 2])


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ({0: -1, 1: 1, 2: 1}, "must be finite and not negative"),
        ({0: np.nan, 1: 1, 2: 1}, "must be finite and not negative"),
        ({0: 1, 7: 1}, "not in class_weight"),
        ("equal", "class_weight"),
        ([1, 2, 3], "class_weight"),
    ],
)
def test_bad_class_weights_are_refused(class_weight, message):
    X, y, _ = data()
    with pytest.raises(ValueError, match=message):
        Stub(class_weight=class_weight)._check_training_data(X, y, None)


def test_class_weights_of_classes_that_a_batch_lacks_are_fine():
    X, y, _ = data()
    stub = Stub(class_weight={2: 5.0})
    stub._check_training_data(X, y, None)
    first = y != 2
    _, _, weights, _ = stub._check_training_data(
        X[first], y[first], None, classes=stub.classes_, reset=False
    )
    assert_array_equal(weights, np.ones(first.sum()))


# Labels


@pytest.mark.parametrize(
    "labels", [["b", "a", "c"], [10, -3, 7], [0.0, 1.0, 2.0], np.array(["x", "yy", "z"], object)]
)
def test_codes_index_the_sorted_classes(labels):
    X, y, _ = data()
    labels = np.asarray(labels)
    stub = Stub()
    _, codes, _, _ = stub._check_training_data(X, labels[y], None)
    assert_array_equal(stub.classes_, np.unique(labels))
    assert_array_equal(stub.classes_[codes], labels[y])


def test_classes_may_be_given():
    X, y, _ = data()
    stub = Stub()
    _, codes, _, _ = stub._check_training_data(X, y, None, classes=[9, 0, 2, 1])
    assert_array_equal(stub.classes_, [0, 1, 2, 9])
    assert_array_equal(codes, y)


def test_unknown_classes_are_named():
    X, y, _ = data()
    with pytest.raises(ValueError, match=r"classes \[2\] that are not among \[0, 1\]"):
        Stub()._check_training_data(X, y, None, classes=[0, 1])


def test_unknown_class_of_weight_zero_is_absent():
    X, y, _ = data()
    stub = Stub()
    stub._check_training_data(X, y, (y != 2).astype(float), classes=[0, 1])
    assert_array_equal(stub.classes_, [0, 1])


def test_one_class_is_not_enough():
    X, y, _ = data()
    with pytest.raises(ValueError, match=r"at least two classes .* got 1 class: \[1\]"):
        Stub()._check_training_data(X, y, (y == 1).astype(float))


def test_checking_without_reset_changes_nothing():
    X, y, _ = data()
    stub = Stub()
    stub._check_training_data(X, y, None)
    before = dict(vars(stub))
    with pytest.raises(ValueError, match="expecting 3 features"):
        stub._check_training_data(X[:, :2], y, None, classes=stub.classes_, reset=False)
    stub._check_training_data(X, y, None, classes=stub.classes_, reset=False)
    assert vars(stub) == before


# Options


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        (None, np.float32, torch.float32),
        (None, np.float64, torch.float64),
        ("float32", np.float64, torch.float32),
        ("float64", np.float32, torch.float64),
    ],
)
@pytest.mark.parametrize("device", [None, "cpu", CPU])
def test_options_are_a_device_and_a_dtype(device, dtype, given, expected):
    assert Stub(device, dtype)._torch_options(np.zeros((2, 2), given)) == (CPU, expected)


@pytest.mark.parametrize("dtype", ["float16", "double", np.float32, torch.float32, ["float32"]])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match=r"dtype=.* is not one of 'float32', 'float64', None"):
        Stub(dtype=dtype)._torch_options(np.zeros((2, 2)))


@pytest.mark.parametrize("device", ["gpu", "cuda:99", ["cpu"], 3.5])
def test_absent_devices_are_refused(device):
    with pytest.raises(ValueError, match=r"device=.* cannot be used here: .* Use None or 'cpu'"):
        Stub(device=device)._torch_options(np.zeros((2, 2)))


@pytest.mark.parametrize("value", ["c", 1, True, ["a"], np.array(["a"])])
def test_choices_are_checked(value):
    with pytest.raises(ValueError, match=r"size=.* is not one of 'a', 'b', None"):
        Stub(size=value)._check_choice("size", ("a", "b", None))


@pytest.mark.parametrize("value", [0, -1.0, np.nan, "3", None, True, [1], 1 + 0j])
def test_numbers_are_checked(value):
    with pytest.raises(ValueError, match=r"size=.* must be a number of at least 1\."):
        Stub(size=value)._check_number("size", 1)


@pytest.mark.parametrize("value", [2.0, np.float64(2), 0])
def test_integers_are_checked(value):
    with pytest.raises(ValueError, match=r"must be an integer of at least 1, or None\."):
        Stub(size=value)._check_number("size", 1, integer=True, optional=True)


@pytest.mark.parametrize("value", [1, 2, np.int64(3), None])
def test_good_numbers_pass(value):
    Stub(size=value)._check_number("size", 1, integer=True, optional=True)


# Prediction


def test_rows_are_mapped_chunk_by_chunk(monkeypatch, layout):
    monkeypatch.setattr(_estimator, "CHUNK_ROWS", 7)
    X = data()[0]
    seen = []

    def function(chunk):
        seen.append(len(chunk))
        return chunk.exp()

    assert_allclose(Stub()._map_rows(function, layout(X)), np.exp(X), rtol=1e-14)  # two libraries
    assert seen == [7] * (N // 7) + [N % 7]


def test_mapped_values_are_float64_and_without_graph():
    X = data()[0].astype(np.float32)
    factor = torch.ones(1, requires_grad=True)
    mapped = Stub()._map_rows(lambda chunk: factor * chunk, X)
    assert mapped.dtype == np.float64
    assert_array_equal(mapped, X)


def test_new_rows_are_only_for_fitted_estimators():
    with pytest.raises(NotFittedError):
        Stub()._check_new(np.zeros((2, 2)))


# Rows that are alike


def repeated_rows(seed=0):
    """Rows with repetitions: X (60, 2), codes (60,), weights (60,) of which some are 0."""
    rng = np.random.RandomState(seed)
    X, y = rng.randint(3, size=(60, 2)).astype(float), rng.randint(2, size=60)
    weights = rng.randint(4, size=60).astype(float)
    return X, y, weights


def test_tamed_targets_are_near_their_median():
    rng = np.random.default_rng(0)
    targets = rng.normal(5, 2, (10_000, 2))
    targets[:100, 0] = 1e9
    found = tamed(targets, np.ones(10_000))
    assert_allclose([found.min(), found.max()], [5 - 6, 5 + 6], atol=0.2)
    assert np.mean(found == targets) > 0.99
    weights = rng.integers(1, 4, 99).astype(float)
    repeated = np.repeat(targets[:99, 1:], weights.astype(int), axis=0)
    assert tamed(repeated, np.ones(len(repeated))).max() == tamed(targets[:99, 1:], weights).max()
    same = np.ones((5, 1))
    same[0] = 7
    assert_array_equal(tamed(same, np.ones(5)), same)
    # A function of a part of the rows is no error.
    partly = np.where(np.arange(100) < 60, 1e-6 * rng.normal(size=100), 3)[:, None]
    assert_array_equal(tamed(partly, np.ones(100)), partly)


def test_merged_rows_are_different_and_have_the_summed_weights():
    X, y, weights = repeated_rows()
    merged_X, merged_y, merged, origin = merged_rows(X, y, weights)
    table = {}
    for row, code, weight in zip(X, y, weights, strict=True):
        if weight > 0:
            table[(*row, code)] = table.get((*row, code), 0) + weight
    assert [(*row, code) for row, code in zip(merged_X, merged_y, strict=True)] == sorted(table)
    # Sums of small integers are exact.
    assert merged.tolist() == [table[key] for key in sorted(table)]
    assert merged_X.dtype == X.dtype
    assert merged_y.dtype == y.dtype
    used = weights > 0
    assert_array_equal(merged_X[origin[used]], X[used])
    assert_array_equal(merged_y[origin[used]], y[used])
    assert_array_equal(origin[~used], -1)


def test_merged_rows_do_not_depend_on_order_nor_on_how_rows_are_repeated():
    X, y, weights = repeated_rows()
    once = merged_rows(X, y, weights)
    order = np.random.RandomState(1).permutation(60)
    again = merged_rows(X[order], y[order], weights[order])
    index = np.repeat(np.arange(60), weights.astype(int))
    repeated = merged_rows(X[index], y[index], np.ones(len(index)))
    for parts in zip(once[:3], again[:3], repeated[:3], strict=True):
        assert_array_equal(parts[0], parts[1])
        assert_array_equal(parts[0], parts[2])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_units_divide_rows_by_their_weight(scale):
    weights = np.array([1.0, 1.0, 0.3, 37.7])
    rows = Rows(np.eye(4), np.zeros(4), scale * weights, torch.device("cpu"), torch.float64)
    units = rows.units()
    # The mean weight is 10.
    assert units.tolist() == [0, 1, 2, 3, 3, 3, 3]
    without, alone = rows.divided(units, np.array([1, 4]))
    assert_allclose(without.weights, scale * np.array([1, 0.3, 0.75 * 37.7]))
    assert_allclose(alone.weights, scale * np.array([1, 0.25 * 37.7]))
    assert_array_equal(alone.X, np.eye(4)[[1, 3]])


def test_rows_that_miss_the_same_values_are_alike():
    X = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, 1.0], [2.0, 1.0]])
    merged_X, _, weights, origin = merged_rows(X, np.zeros(4), np.array([1.0, 2.0, 4.0, 8.0]))
    assert_array_equal(merged_X[origin], X)
    assert_array_equal(weights[origin], [5, 2, 5, 8])


def test_rows_with_different_targets_are_kept_apart():
    X = np.zeros((4, 2))
    targets = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0], [0.0, 3.0]])
    merged_X, merged_targets, weights, origin = merged_rows(
        X, targets, np.array([1.0, 2.0, 4.0, 8.0])
    )
    assert_array_equal(merged_X, np.zeros((3, 2)))
    assert_array_equal(merged_targets, [[0, 3], [1, 2], [1, 3]])
    assert_array_equal(weights, [8, 5, 2])
    assert_array_equal(origin, [1, 2, 1, 0])


def test_different_rows_are_only_sorted():
    X, y, _ = data()
    order = np.random.RandomState(1).permutation(N)
    merged_X, merged_y, weights, origin = merged_rows(X[order], y[order], np.ones(N))
    assert_array_equal(origin, order)
    assert_array_equal(merged_X, X)
    assert_array_equal(merged_y, y)
    assert_array_equal(weights, np.ones(N))


def test_many_numbers_are_left_as_they_are(monkeypatch):
    X, y, weights = repeated_rows()
    monkeypatch.setattr(_estimator, "_MOST_MERGED", X.size - 1)
    found = merged_rows(X, y, weights)
    assert found[0] is X
    assert found[1] is y
    assert found[2] is weights
    assert found[3] is None
    monkeypatch.setattr(_estimator, "_MOST_MERGED", X.size)
    assert len(merged_rows(X, y, weights)[0]) < len(X)


# Targets of a regressor


class Regressor(TorchRegressor):
    """As little of a regressor as the base class needs."""

    def __init__(self, normalize_y=True):
        self.normalize_y = normalize_y

    def checked(self, X, y, sample_weight=None, reset=True):
        return self._check_training_data(X, y, sample_weight, reset=reset)[:3]


def regression(n=30, seed=0):
    """Rows, two targets and weights."""
    rng = np.random.RandomState(seed)
    y = rng.normal(size=(n, 2)) * [1.0, 50.0] + [3.0, -200.0]
    return rng.normal(size=(n, D)), y, rng.uniform(0.5, 2, size=n)


def test_targets_are_centred_and_scaled_by_their_weighted_moments():
    X, y, weights = regression()
    weights[:5] = 0
    _, targets, used = Regressor().checked(X, y, weights)
    assert len(targets) == 25
    assert_allclose(np.average(targets, axis=0, weights=used), 0, atol=1e-14)
    assert_allclose(np.average(targets**2, axis=0, weights=used), 1, rtol=1e-13)
    assert_allclose(used.sum(), weights.sum(), rtol=1e-14)


def test_integer_weights_are_repeated_rows_to_the_last_bit():
    X, y, _ = regression()
    counts = np.resize([1, 0, 3, 2], 30)
    index = np.repeat(np.arange(30), counts)
    weighted = Regressor().checked(X, y, counts)
    repeated = Regressor().checked(X[index], y[index])
    for a, b in zip(weighted, repeated, strict=True):
        assert_array_equal(a, b)


def test_targets_may_be_left_as_they_are():
    X, y, _ = regression()
    order = np.lexsort(X.T[::-1])
    assert_array_equal(Regressor(normalize_y=False).checked(X, y)[1], y[order])


def test_constant_targets_are_centred_only():
    X, _, _ = regression()
    _, targets, _ = Regressor().checked(X, np.full(30, 7.0))
    assert_array_equal(targets, np.zeros((30, 1)))


def test_later_targets_are_on_the_first_ones_scale():
    X, y, _ = regression()
    model = Regressor()
    model.checked(X, y)
    _, targets, _ = model.checked(X[:7], 2 * y[:7], reset=False)
    order = np.lexsort(X[:7].T[::-1])
    assert_allclose(targets, (2 * y[:7] - y.mean(0))[order] / y.std(0), rtol=1e-12)
    with pytest.raises(ValueError, match="y has 1 outputs, but the model was fitted with 2"):
        model.checked(X, y[:, 0], reset=False)


@pytest.mark.parametrize("columns", [0, [0], [0, 1]])
def test_outputs_have_the_axes_of_the_targets(columns):
    X, y, _ = regression()
    model = Regressor()
    _, targets, _ = model.checked(X, y[:, columns])
    assert targets.shape == (30, np.size(columns))
    assert model._outputs(targets).shape == y[:, columns].shape
