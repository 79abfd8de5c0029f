"""Rows that are not in memory: read in blocks, checked, and indexed as an array of shape (n, d)."""

import math
from functools import lru_cache

import joblib
import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import check_array
from torch.utils.data import Dataset, IterableDataset

from ._isolation import PrivateRandom
from ._memory import CHUNK_ROWS

FLOATS = (np.float64, np.float32)
_BLOCK_BYTES = 2**20
_HELD_BYTES = 2**27  # of blocks in memory; half of them are shuffled together


def is_source(X):
    """Return whether the rows of ``X`` are read when they are needed.

    It is a memmap, a torch Dataset, or another object of at least two axes with a ``shape``, a
    NumPy ``dtype`` and slices.
    """
    if isinstance(X, np.ndarray):
        return isinstance(X, np.memmap) and X.ndim >= 2
    shape, dtype = getattr(X, "shape", None), getattr(X, "dtype", None)
    has_rows = isinstance(shape, tuple) and len(shape) >= 2 and isinstance(dtype, np.dtype)
    sliced = has_rows and hasattr(X, "__getitem__") and not issparse(X)
    return sliced or isinstance(X, Dataset | DatasetArray)


def checked_rows(source, dtypes=FLOATS, transform=None, **options):
    """Return `Rows` of a source that `check_array` checks, with options, whenever they are read.

    The first of ``dtypes`` replaces all others. ``transform`` takes flat rows (b, d) of the source,
    and returns those that are checked.
    """
    if isinstance(source, Dataset):
        source = DatasetArray(source)
    dtype = np.dtype(source.dtype if source.dtype in dtypes else dtypes[0])
    options = {"input_name": "X", "ensure_min_samples": 0, **options, "dtype": dtype}

    def check(rows):
        return check_array(rows if transform is None else transform(rows), **options)

    return Rows(source, dtype, check)


def chunks(X):
    """Yield the rows of an array or of `Rows` in order, some thousand at a time."""
    return (X[start : start + CHUNK_ROWS] for start in range(0, len(X), CHUNK_ROWS))


def column(X, j):
    """Return column ``j`` of an array or of `Rows`, (n,)."""
    return np.concatenate([chunk[:, j] for chunk in chunks(X)])


class Rows:
    """Flat rows (n, d) of a source, which are read when they are indexed.

    Arrays and Datasets are indexed themselves. Of other sources, blocks of rows are read in order,
    and the last ones are kept in memory. Blocks end where chunks of the source end.

    See `is_source` for sources. The attribute ``chunks`` of a source, if any, is that of an array
    of h5py, Zarr or Dask: the number of rows in a chunk, or the numbers of all chunks, come first.
    ``dtype`` is that of checked rows, by default the source's; ``check`` takes flat rows (b, d) and
    returns an array (b, d). ``row_shape`` is the shape of a row in the source.
    """

    ndim = 2

    def __init__(self, source, dtype=None, check=None):
        n, *row_shape = source.shape
        self.source, self._check = source, check
        self.dtype = np.dtype(source.dtype if dtype is None else dtype)
        self.row_shape, self.shape = tuple(row_shape), (n, math.prod(row_shape))
        self.size = math.prod(self.shape)
        self._is_indexed = isinstance(source, np.ndarray | DatasetArray)
        if not self._is_indexed:
            row_bytes = max(self.shape[1] * self.dtype.itemsize, 1)
            self._ends = _block_ends(source, max(_BLOCK_BYTES // row_bytes, 1))
            self._starts = np.concatenate([[0], self._ends[:-1]])
            most = max(int((self._ends - self._starts).max()), 1)
            self._n_held = max(_HELD_BYTES // (most * row_bytes), 2)
            self._block = lru_cache(self._n_held)(self._read)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        """Return rows at a slice, a mask, or an index array in any order."""
        numbers = _row_numbers(index, len(self))
        if self._is_indexed:
            return self._checked(np.asarray(self.source[index]), numbers)
        numbers = np.asarray(numbers, dtype=int)
        rows, order = np.empty((len(numbers), self.shape[1]), self.dtype), np.argsort(numbers)
        blocks, first = np.unique(
            np.searchsorted(self._ends, numbers[order], side="right"), return_index=True
        )
        for i, at in zip(blocks.tolist(), np.split(order, first[1:]), strict=False):
            rows[at] = self._block(i)[numbers[at] - self._starts[i]]
        return rows

    def _read(self, i):
        """Return the checked rows of a block."""
        numbers = range(self._starts[i], self._ends[i])
        rows = np.asarray(self.source[numbers.start : numbers.stop])
        return np.array(self._checked(rows, numbers), self.dtype)

    def forget(self):
        """Forget the blocks in memory; they are read and checked anew."""
        if not self._is_indexed:
            self._block.cache_clear()

    def _checked(self, rows, numbers):
        """Return flat rows; an error tells the number of the first row that causes it."""
        if rows.shape != (len(numbers), *self.row_shape):
            raise ValueError(
                f"{len(numbers)} rows of X have shape {rows.shape}, but X has shape "
                f"{(len(self), *self.row_shape)}."
            )
        rows = rows.reshape(len(rows), self.shape[1])
        if self._check is None:
            return rows
        try:
            return self._check(rows)
        except (TypeError, ValueError) as error:
            while len(rows) > 1:
                half = len(rows) // 2
                part = slice(half) if self._error(rows[:half]) else slice(half, None)
                rows, numbers = rows[part], numbers[part]
            kind = TypeError if isinstance(error, TypeError) else ValueError
            told = self._error(rows) or error
            raise kind(f"Row {numbers[0]} of X: {told}") from None

    def _error(self, rows):
        try:
            self._check(rows)
        except (TypeError, ValueError) as error:
            return error

    def check(self):
        """Read all rows, so that errors in them are raised."""
        for _ in chunks(self):
            pass

    def shuffled(self, kept, generator):
        """Return a random order of rows, a tensor (k,) of places in the sorted index ``kept``.

        Rows that are read in blocks are shuffled in groups: a group has all rows of random blocks
        that take half the memory for blocks. Thus each block is read about once.
        """
        n = len(self) if kept is None else len(kept)
        if self._is_indexed or 2 * len(self._ends) <= self._n_held:
            return torch.randperm(n, generator=generator)
        edges = np.concatenate([[0], self._ends])
        edges = edges if kept is None else np.searchsorted(kept, edges)
        order = []
        for blocks in torch.randperm(len(self._ends), generator=generator).split(self._n_held // 2):
            group = torch.cat([torch.arange(edges[i], edges[i + 1]) for i in blocks])
            order.append(group[torch.randperm(len(group), generator=generator)])
        return torch.cat(order)

    def __array__(self, dtype=None, copy=None):
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getstate__(self):
        """Return the state that joblib hashes: the shape, and the rows or some of a Dataset."""
        is_dataset = isinstance(self.source, DatasetArray)
        parts = [self[self.source.sample()]] if is_dataset else chunks(self)
        return {"shape": self.shape, "rows": [joblib.hash(part) for part in parts]}


def _row_numbers(index, n):
    """Return the numbers, from 0, of rows at a slice, a mask (n,) or an index array."""
    if isinstance(index, slice):
        return range(n)[index]
    index = np.asarray(index)
    if index.dtype == bool:
        if index.shape != (n,):
            raise IndexError(f"A mask of {n} rows has shape {index.shape}.")
        return np.flatnonzero(index)
    numbers = np.where(index < 0, index + n, index)
    if outside := index[(numbers < 0) | (numbers >= n)].tolist():
        raise IndexError(f"There are {n} rows, and none with number {outside[0]}.")
    return numbers


def _block_ends(source, size):
    """Return the ends of blocks of at least ``size`` rows, an ascending array (k,)."""
    n = source.shape[0]
    along = getattr(source, "chunks", None)
    along = 1 if along is None or isinstance(along, str) else along[0]  # "auto" tells nothing
    if isinstance(along, tuple):
        ends = np.cumsum(along)
        ends = ends[np.searchsorted(ends, np.arange(size, n, size))]
    else:
        step = math.ceil(size / max(along, 1)) * max(along, 1)
        ends = np.arange(step, n, step)
    return np.unique([*ends, n]).astype(int)


class DatasetArray:
    """A torch Dataset as a source: its rows are read one by one.

    The Dataset must have a length and always return the same items: rows of any shape, or tuples of
    a row and a target. Items that draw random numbers from torch get them from a private
    generator. A TypeError is raised without a length, and a ValueError if the Dataset is empty or
    its rows have different shapes.
    """

    def __init__(self, dataset):
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise TypeError(
                f"{type(dataset).__name__} has no length; pass a Dataset with __len__ and "
                "__getitem__."
            )
        if not len(dataset):
            raise ValueError("Found array with 0 sample(s): the Dataset is empty.")
        self._dataset = dataset
        first = _row(self._item(0))
        self.shape = len(dataset), *first.shape
        single = first.dtype in (np.float32, np.uint8)
        self.dtype = np.dtype(np.float32 if single else np.float64)

    def __getitem__(self, index):
        """Return the rows at a slice, a mask, or an index array."""
        numbers = np.asarray(_row_numbers(index, self.shape[0])).tolist()
        rows = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        for place, i in zip(rows, numbers, strict=True):
            row = _row(self._item(i))
            if row.shape != self.shape[1:]:
                raise ValueError(
                    f"Row {i} of the Dataset has shape {row.shape}, but row 0 has shape "
                    f"{self.shape[1:]}; all rows must have one shape."
                )
            place[...] = row
        return rows

    def sample(self):
        """Return the indices of a few rows."""
        return np.unique(np.linspace(0, self.shape[0] - 1, 5).astype(int))

    def _item(self, i):
        with PrivateRandom(0):
            return self._dataset[i]

    def targets(self):
        """Return the targets of all rows.

        They are the Dataset's ``targets`` if a few items agree with them. Otherwise, all items are
        read.
        """
        first = self._item(0)
        if not (isinstance(first, tuple | list) and len(first) > 1):
            raise ValueError(
                "The Dataset has no targets: return pairs of a row and a target as its items, or "
                "pass y."
            )
        listed = getattr(self._dataset, "targets", None)
        plain = getattr(self._dataset, "target_transform", None) is None
        if listed is not None and plain and len(listed) == self.shape[0]:
            if all(np.array_equal(listed[i], self._item(i)[1]) for i in self.sample().tolist()):
                return np.asarray(listed)
        return np.asarray([np.asarray(self._item(i)[1]) for i in range(self.shape[0])])


def _row(item):
    return np.asarray(item[0] if isinstance(item, tuple | list) else item)
