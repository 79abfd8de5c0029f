"""View of a torch Dataset as a table of flat rows that are read on demand."""

import joblib
import numpy as np
from torch.utils.data import IterableDataset

from .._isolation import PrivateRandom


class DatasetArray:
    """Flat rows of a Dataset, with the slicing and indexing of an array of shape (n, d).

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        It must have a length and always return the same items: rows of any shape, or tuples of a
        row and a target. Items that draw random numbers from torch get them from a private
        generator.

    Raises
    ------
    TypeError
        If the Dataset has no length.
    ValueError
        If it is empty, or its rows have different shapes.
    """

    ndim = 2

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
        self.row_shape, self.shape = first.shape, (len(dataset), first.size)
        self.size = len(dataset) * first.size
        single = first.dtype in (np.float32, np.uint8)
        self.dtype = np.dtype(np.float32 if single else np.float64)

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        index = np.arange(len(self))[index]
        rows = np.empty((len(index), self.shape[1]), self.dtype)
        for place, i in zip(rows, index.tolist(), strict=True):
            row = _row(self._item(i))
            if row.shape != self.row_shape:
                raise ValueError(
                    f"Row {i} of the Dataset has shape {row.shape}, but row 0 has shape "
                    f"{self.row_shape}; all rows must have one shape."
                )
            place[:] = row.ravel()
        return rows

    def __getstate__(self):
        """Return the state that joblib hashes: the shape and a few rows."""
        return {"shape": self.shape, "rows": joblib.hash(self[self._sample()])}

    def _sample(self):
        """Return the indices of a few rows."""
        return np.unique(np.linspace(0, len(self) - 1, 5).astype(int))

    def _item(self, i):
        with PrivateRandom(0):
            return self._dataset[i]

    def __array__(self, dtype=None, copy=None):
        return self[:].astype(dtype or self.dtype, copy=False)

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
        if listed is not None and plain and len(listed) == len(self):
            if all(np.array_equal(listed[i], self._item(i)[1]) for i in self._sample().tolist()):
                return np.asarray(listed)
        return np.asarray([np.asarray(self._item(i)[1]) for i in range(len(self))])


def _row(item):
    return np.asarray(item[0] if isinstance(item, tuple | list) else item)
