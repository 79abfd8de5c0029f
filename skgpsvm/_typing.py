"""Types that many signatures share. Shapes and meanings are in the docstrings."""

import os
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

import torch
from numpy import integer, ndarray
from numpy.random import RandomState
from numpy.typing import ArrayLike
from sklearn.utils import metaestimators
from torch.utils.data import Dataset

Method = TypeVar("Method", bound=Callable)


class SparseMatrix(Protocol):
    """A sparse matrix or array of SciPy, whether or not SciPy's types are installed."""

    def tocsr(self) -> Any: ...


class RowSource(Protocol):
    """Rows that are read when they are needed, see `skgpsvm.data`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


# Rows: an array, a table, a sparse matrix, or a source.
MatrixLike = ArrayLike | SparseMatrix | RowSource | Dataset
RandomStateLike = int | integer | RandomState | None
ClassWeight = dict[Any, float] | dict[Any, int] | Literal["balanced"] | None  # by label
Device = str | torch.device | None
Dtype = Literal["float32", "float64"] | None
InducingPoints = Literal["kmeans", "random"] | ArrayLike
MeanFunction = Literal["zero", "constant", "linear"]
# Takes a function of theta, where to start, and bounds; returns the best theta and its value.
Optimizer = Callable[..., tuple[ndarray, float]]
RegressionLikelihood = Literal[
    "gaussian",
    "student_t",
    "laplace",
    "heteroscedastic",
    "poisson",
    "negative_binomial",
    "gamma",
    "beta",
]
Score = Callable[..., ndarray]  # of a classifier and rows
PathLike = str | os.PathLike[str]


def available_if(check: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """Return scikit-learn's decorator of this name, which keeps the type of a method."""
    return metaestimators.available_if(check)
