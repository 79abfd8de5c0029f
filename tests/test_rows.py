"""Rows of sources: blocks, checks, row numbers in errors, shuffles; the same models from all."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from skgpsvm import _rows
from skgpsvm._rows import Rows, checked_rows, chunks, column, is_source


class Source:
    """Rows in memory that can only be sliced, as those of a file; counts the rows read."""

    def __init__(self, rows, chunks=None):
        self._rows, self.shape, self.dtype = rows, rows.shape, rows.dtype
        self.read = 0
        if chunks is not None:
            self.chunks = chunks

    def __getitem__(self, part):
        assert isinstance(part, slice)
        rows = self._rows[part]
        self.read += len(rows)
        return rows


@pytest.fixture
def small_blocks(monkeypatch):
    """Make blocks of ten rows of three features, of which four are in memory."""
    monkeypatch.setattr(_rows, "_BLOCK_BYTES", 10 * 3 * 8)
    monkeypatch.setattr(_rows, "_HELD_BYTES", 4 * 10 * 3 * 8)


def table(n=95):
    return np.random.default_rng(0).normal(size=(n, 3))


@pytest.mark.parametrize("chunks", [None, (7, 3), ((40, 1, 4, 50), (3,))])
def test_rows_are_those_of_the_array(chunks, small_blocks):
    X = table()
    rows = Rows(Source(X, chunks))
    assert (rows.shape, rows.dtype, rows.size, len(rows)) == (X.shape, X.dtype, X.size, 95)
    for part in (slice(None), slice(3, 17), slice(90, 200), slice(5, 5), slice(0, 95, 30)):
        assert_array_equal(rows[part], X[part])
    index = np.random.default_rng(1).integers(0, 95, 60)
    assert_array_equal(rows[index], X[index])
    assert_array_equal(np.asarray(rows), X)
    assert_array_equal(column(rows, 1), X[:, 1])
