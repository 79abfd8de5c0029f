"""Sparse X: rows in CSR format, chunks of them as sparse tensors, and what kernels need of those.

Kernels read X through products with points and through norms, so that X stays sparse. Tensors are
in COO format, whose products need no particular library and run on every device.
"""

import math

import numpy as np
import torch
from scipy.sparse import csr_array

from ._memory import LARGE_BLOCK, block_rows

MAX_DENSE = 2**21  # numbers up to which a sparse X becomes an array


class CSRRows:
    """Rows (n, d) of a sparse matrix, with the interface of an array as far as fits need it.

    Rows at an index are `CSRRows`. NumPy's functions take them as dense arrays.

    The matrix is not changed; its duplicate entries are summed. ``dense`` says whether their
    tensors are dense, for kernels that do not take sparse ones.
    """

    ndim = 2

    def __init__(self, matrix, *, dense=False):
        self.matrix = csr_array(matrix)
        if not self.matrix.has_canonical_format:
            self.matrix = self.matrix.copy()
            self.matrix.sum_duplicates()
        self.shape, self.dtype = self.matrix.shape, self.matrix.dtype
        self.size, self._dense = math.prod(self.shape), dense

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        return CSRRows(self.matrix[index], dense=self._dense)

    def __array__(self, dtype=None, copy=None):
        return self.matrix.toarray().astype(dtype or self.dtype, copy=False)

    def tensor(self):
        """Return the rows as a tensor, which is sparse if kernels take it so."""
        if self._dense:
            return torch.from_numpy(self.matrix.toarray())
        rows = np.repeat(np.arange(len(self)), np.diff(self.matrix.indptr))
        indices = np.stack([rows, self.matrix.indices.astype(np.int64)])
        parts = torch.from_numpy(indices), torch.from_numpy(self.matrix.data.copy())
        return torch.sparse_coo_tensor(
            *parts, self.shape, is_coalesced=True, check_invariants=False
        )


def array_of(X):
    """Return a tensor of rows, dense or sparse, as an ndarray or `CSRRows`."""
    if not X.is_sparse:
        return X.cpu().numpy()
    X = X.cpu().coalesce()
    parts = X.values().numpy(), tuple(X.indices().numpy())
    return CSRRows(csr_array(parts, shape=tuple(X.shape)))


def dense_blocks(X):
    """Return the rows of a tensor as dense tensors, whose size is bounded if it is sparse."""
    if not X.is_sparse:
        return [X]
    size = block_rows(X.shape[1], LARGE_BLOCK)
    numbers = torch.arange(len(X), device=X.device).split(size)
    return [X.index_select(0, some).to_dense() for some in numbers]


def squared_norms(X, factors):
    """Return weighted squared norms (n,) of sparse rows, given factors of features, () or (d,)."""
    return X.square() @ factors.expand(X.shape[1])


def inner_products(X):
    """Return the inner products (n, n) of the rows of a tensor, dense or sparse."""
    if not X.is_sparse:
        return X @ X.T
    rows = array_of(X).matrix  # torch has such products in beta state
    return torch.from_numpy((rows @ rows.T).toarray()).to(X.device)
