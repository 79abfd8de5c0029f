"""A torch Dataset as a table of flat rows that are read when they are used."""

import numpy as np


class DatasetArray:
    """Rows of a Dataset, flat: an array of shape (n, d) as far as slices and indices go.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        With a length; its items are rows of any shape, or tuples of a row and a target.
    """

    ndim = 2

    def __init__(self, dataset):
        self._dataset = dataset
        first = _row(dataset[0])
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
            place[:] = _row(self._dataset[i]).ravel()
        return rows

    def __array__(self, dtype=None, copy=None):
        return self[:].astype(dtype or self.dtype, copy=False)

    def targets(self):
        """Targets of all rows: the Dataset's ``targets``, else those of its items."""
        if hasattr(self._dataset, "targets"):
            return np.asarray(self._dataset.targets)
        first = self._dataset[0]
        if not (isinstance(first, tuple | list) and len(first) > 1):
            raise ValueError(
                "The Dataset gives no targets: its items must be pairs of a row and a target, or y "
                "must be given."
            )
        return np.asarray([np.asarray(self._dataset[i][1]) for i in range(len(self))])


def _row(item):
    return np.asarray(item[0] if isinstance(item, tuple | list) else item)
