"""Sources: rows that do not fit in memory, which the estimators read in blocks.

An array of h5py, Zarr or Dask, a `numpy.memmap` and a torch Dataset are sources themselves. So is
every object with a ``shape``, a NumPy ``dtype`` and slices of rows. Parquet files need an adapter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ._rows import Rows
from ._typing import PathLike

if TYPE_CHECKING:
    import pyarrow.dataset


class ParquetRows:
    """Numeric columns of Parquet files as a source of rows.

    Row groups are read one at a time, so that memory is that of some row groups. Files that are
    written for training should have row groups of at most some ten megabytes, as rows of few groups
    are shuffled together. It needs pyarrow.

    Parameters
    ----------
    data : str, path-like, list of these, or pyarrow.dataset.Dataset
        File, folder of files, or files in the order of their rows.
    columns : list of str, default=None
        Names of the features in the order that a model sees; None is all columns.

    Attributes
    ----------
    column_names : list of str
        Names of the features, which become ``feature_names_in_`` of a model.
    shape : tuple of int
        Number of rows and of features.
    dtype : numpy.dtype
        float32 if it has all values of all columns, else float64.
    chunks : tuple
        Numbers of rows of all row groups, and of columns, as those of a Dask array.

    Raises
    ------
    ImportError
        If pyarrow is not installed.
    TypeError
        If a column does not have numbers or booleans.
    ValueError
        If there is no file, or one that lacks a column.

    Notes
    -----
    A null is read as NaN, which the additive estimators take as a missing value and the others
    refuse. Decimals and 64-bit integers are rounded to float64.

    Examples
    --------
    >>> from skgpsvm import SVGPRegressor
    >>> from skgpsvm.data import ParquetRows
    >>> X = ParquetRows("flights/", columns=["age", "distance"])  # doctest: +SKIP
    >>> SVGPRegressor().fit(X, y).predict(X)  # doctest: +SKIP
    """

    def __init__(
        self,
        data: PathLike | list[PathLike] | pyarrow.dataset.Dataset,
        columns: Sequence[str] | None = None,
    ) -> None:
        try:
            import pyarrow.dataset
            from pyarrow import types
        except ImportError as error:
            raise ImportError(
                "ParquetRows needs pyarrow. Install it by pip install skgpsvm[parquet]."
            ) from error
        if not isinstance(data, pyarrow.dataset.Dataset):
            paths = [os.fspath(path) for path in data] if isinstance(data, list) else data
            data = pyarrow.dataset.dataset(paths, format="parquet")
        self._schema = data.schema
        if not self._schema.names:
            raise ValueError(
                "data has no columns; it must be a Parquet file, or a folder or list of such files."
            )
        self.column_names = self._schema.names if columns is None else list(columns)
        if unknown := [name for name in self.column_names if name not in self._schema.names]:
            raise ValueError(f"columns has {unknown}, but the files have {self._schema.names}.")
        kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
        dtypes = []
        for name in self.column_names:
            kind = self._schema.field(name).type
            if not any(is_kind(kind) for is_kind in kinds):
                raise TypeError(
                    f"Column {name!r} has type {kind}; columns must have numbers or booleans. "
                    "Leave it out by columns=..., or encode it as numbers."
                )
            dtypes.append(np.float64 if types.is_decimal(kind) else kind.to_pandas_dtype())
        self.dtype = np.result_type(np.float32, *dtypes)
        self._groups, sizes = [], []
        for fragment in data.get_fragments():
            keys = pyarrow.dataset.get_partition_keys(fragment.partition_expression)
            known = [*fragment.physical_schema.names, *keys]
            if absent := [name for name in self.column_names if name not in known]:
                raise ValueError(
                    f"The file {fragment.path!r} has the columns {known}, without {absent}. All "
                    "files must have all columns; leave these out by columns=..., or the file."
                )
            for group in fragment.split_by_row_group():
                sizes.append(group.row_groups[0].num_rows)
                self._groups.append(group)
        self._ends = np.cumsum(sizes, dtype=int)
        self.shape = int(sum(sizes)), len(self.column_names)
        self.chunks = tuple(sizes), (self.shape[1],)

    @property
    def header(self) -> pyarrow.Table:
        """Table without rows, from which scikit-learn reads the names of the features."""
        return self.table(slice(0))

    def table(self, part: slice | np.ndarray) -> pyarrow.Table:
        """Return the rows at a slice or an index array as a pyarrow Table with their names."""
        from pyarrow import table

        return table(dict(zip(self.column_names, self[part].T, strict=True)))

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, part):
        """Return the rows at a slice, a mask, or an index array in any order."""
        if not isinstance(part, slice) or (part.step or 1) < 0:
            return Rows(self)[part]
        start, stop, step = part.indices(len(self))
        first = np.searchsorted(self._ends, start, side="right")
        last = np.searchsorted(self._ends, stop)
        before = int(self._ends[first - 1]) if first else 0
        parts = [self._read(group) for group in self._groups[first : last + 1]]
        empty = np.empty((0, self.shape[1]), self.dtype)
        return np.concatenate([empty, *parts])[start - before : max(stop - before, 0) : step]

    def __array__(self, dtype=None, copy=None):
        return self[:].astype(dtype or self.dtype, copy=False)

    def _read(self, group):
        """Return the rows of a row group, (b, d)."""
        table = group.to_table(columns=self.column_names, schema=self._schema)
        rows = np.empty((len(table), self.shape[1]), self.dtype)
        for j, values in enumerate(table.columns):
            rows[:, j] = values.cast("double").to_numpy()
        return rows
