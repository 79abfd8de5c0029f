"""Equal rows, and orders of classes."""

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from problems import weighted_rows

from skgpsvm._merging import class_order, class_totals, merged_rows


def order_of(X, codes, weights, n_classes):
    """Return the `class_order` of rows."""
    return class_order(X, codes, weights, class_totals(codes, weights, n_classes))


def repeated_rows(seed=0):
    """Return rows with repetitions: X (60, 2), codes (60,), and weights (60,), some of them 0."""
    rng = np.random.RandomState(seed)
    X, y = rng.randint(3, size=(60, 2)).astype(float), rng.randint(2, size=60)
    weights = rng.randint(4, size=60).astype(float)
    return X, y, weights


@pytest.mark.parametrize("counts", [(5, 9, 7), (6, 6, 6), (4, 8, 4)])
def test_order_of_classes_does_not_depend_on_labels_nor_on_rows(counts):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), counts)
    X = rng.normal(size=(len(y), 2))
    weights = rng.integers(1, 4, len(y)).astype(float) if len(set(counts)) > 2 else np.ones(len(y))
    places = order_of(*merged_rows(X, y, weights)[:3], 3)
    assert sorted(places) == [0, 1, 2]
    heaviest = np.bincount(y, weights).argmax()
    assert len(set(counts)) == 1 or places[heaviest] == 0
    for relabelled in permutations(range(3)):
        codes, order = np.array(relabelled)[y], rng.permutation(len(y))
        parts = merged_rows(X[order], codes[order], weights[order])[:3]
        assert tuple(np.array(order_of(*parts, 3))[list(relabelled)]) == places


def test_order_of_classes_is_that_of_rows_with_positive_weight():
    X, y = np.arange(6.0)[:, None], np.array([0, 1, 1, 0, 2, 2])
    weights = np.array([0.0, 1, 0, 1, 1, 0])
    assert order_of(X, y, weights, 4) == (1, 0, 2, 3)


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
    X, y, _ = weighted_rows()
    order = np.random.RandomState(1).permutation(len(X))
    merged_X, merged_y, weights, origin = merged_rows(X[order], y[order], np.ones(len(X)))
    assert_array_equal(origin, order)
    assert_array_equal(merged_X, X)
    assert_array_equal(merged_y, y)
    assert_array_equal(weights, np.ones(len(X)))


def test_many_numbers_are_left_as_they_are(monkeypatch):
    X, y, weights = repeated_rows()
    monkeypatch.setattr("skgpsvm._merging._MAX_MERGED", X.size - 1)
    found = merged_rows(X, y, weights)
    assert found[0] is X
    assert found[1] is y
    assert found[2] is weights
    assert found[3] is None
    monkeypatch.setattr("skgpsvm._merging._MAX_MERGED", X.size)
    assert len(merged_rows(X, y, weights)[0]) < len(X)
