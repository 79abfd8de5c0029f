"""Encoding of tables as numbers: categories, missing values, dates and objects."""

import datetime
import math
import re
from collections import Counter
from decimal import Decimal
from numbers import Real

import numpy as np

from .._distributed import gather
from .._estimators import date_error, is_date
from .._rows import Rows, chunks, is_source
from .._validation import is_missing

_CATEGORICAL_TYPES = (
    "category",
    "categorical",
    "enum",
    "str",
    "string",
    "large_string",
    "dictionary",
    "object",
    "bool",
    "boolean",
)


class TableEncoder:
    """Encode the categories of a table as codes 0, 1, ...; other columns are numbers already.

    A level that was not in the fit has code -1. Missing values are a level of their own if the fit
    had any. ``categorical`` (d,) is a mask of the columns that are categories.
    """

    def __init__(self, categorical):
        self.categorical = categorical

    def fit(self, X):
        """Learn the levels of a table; return self."""
        names = list(getattr(X, "columns", range(len(self.categorical))))
        chosen = np.flatnonzero(self.categorical)
        self.names = [names[j] for j in chosen]
        parts = [
            [_levels(*named) for named in zip(columns(part, chosen), self.names, strict=True)]
            for part in (chunks(Rows(X)) if is_source(X) else [X])
        ]
        self.levels = [
            _levels([level for part in every for level in part], name)
            for name, *every in zip(self.names, *parts, strict=True)
        ]
        return self

    def with_levels_of_all_ranks(self, codes):
        """Add the levels of the other ranks; return the codes (n, d) of the rows by all levels.

        Those of `Rows` are computed when they are read.
        """
        ranks = gather(self.levels)
        if len(ranks) == 1:
            return codes
        own, self.levels = self.levels, []
        for j, before, name, *every in zip(
            np.flatnonzero(self.categorical), own, self.names, *ranks, strict=True
        ):
            levels = _levels([level for part in every for level in part], name)
            self.levels.append(levels)
            if isinstance(codes, Rows):
                codes.forget()
                continue
            places = {level: code for code, level in enumerate(levels) if not is_missing(level)}
            new = [places.get(level, len(levels) - 1) for level in before]
            codes[:, j] = np.array([*new, -1])[codes[:, j].astype(int)]
        return codes

    @property
    def n_levels(self):
        """Number of levels of each column (d,); 0 for numbers."""
        found = np.zeros(len(self.categorical), dtype=int)
        found[self.categorical] = [len(levels) for levels in self.levels]
        return found

    def transform(self, X):
        """Return the codes and numbers of a table, float64 (n, d)."""
        found = np.empty((len(X), len(self.categorical)))
        chosen = np.flatnonzero(self.categorical)
        parts = zip(chosen, self.names, self.levels, columns(X, chosen), strict=True)
        for j, name, levels, values in parts:
            _check_kind(name, levels, values)
            known, values = _in_common_precision(levels, values)
            codes = {level: code for code, level in enumerate(known) if not is_missing(level)}
            absent = len(levels) - 1 if levels and is_missing(levels[-1]) else -1
            found[:, j] = [
                absent if is_missing(level) else codes.get(level, -1) for level in values
            ]
        numbers = np.flatnonzero(~self.categorical)
        for j, values in zip(numbers, columns(X, numbers), strict=True):
            found[:, j] = values
        return found


def _levels(column, name):
    """Return the sorted levels of a column of this name; NaN, if any is missing, comes last."""
    try:
        missing = [is_missing(level) for level in column]
        known = {level for level, absent in zip(column, missing, strict=True) if not absent}
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"Column {name!r} of X has values of type {type(column[0]).__name__}, which are "
            "neither numbers nor categories. Make a column of each number in them, or leave it out."
        ) from error
    if len({isinstance(level, str) for level in known}) > 1:
        kinds = ", ".join(sorted({type(level).__name__ for level in known}))
        raise TypeError(
            f"Categories of column {name!r} of X are of types {kinds}. Convert them to one type, "
            "for example by astype(str)."
        )
    return sorted(known) + [np.nan] * any(missing)


def _in_common_precision(levels, column):
    """Return levels and a column, both in the lower precision of the two if they are floats."""
    if column.dtype.kind != "f" or not levels or not isinstance(levels[0], float | np.floating):
        return levels, column
    dtype = min(column.dtype, np.asarray(levels[0]).dtype, key=lambda each: each.itemsize)
    return np.asarray(levels, dtype), column.astype(dtype)


def _check_kind(name, levels, column):
    """Raise TypeError if a column has strings and its levels are none, or the reverse.

    All its rows would count as unknown.
    """
    known = levels[0] if levels else None  # one that is missing comes last
    for level in () if is_missing(known) else column:
        if isinstance(level, str) != isinstance(known, str) and not is_missing(level):
            kinds = (f"{each!r} ({type(each).__name__})" for each in (level, known))
            raise TypeError(
                "Column {!r} of X has the category {}, but in fit it had categories such as {}. "
                "Convert it to the type that it had, for example by astype.".format(name, *kinds)
            )


def refuse_dates(X, categorical):
    """Raise TypeError if a column of a table has dates or times and is no category.

    Converted to numbers, their unit would be arbitrary.
    """
    for j, name in enumerate(_names(X)):
        if _is_dated(X[name]) and (categorical is None or not categorical[j]):
            raise date_error(name, X[name].dtype)


def _names(X):
    """Return the column names of a table, [] for an array.

    A ValueError is raised on duplicates, and a TypeError for a table of pyarrow.
    """
    if hasattr(X, "column_names") and hasattr(X, "to_pandas"):
        raise TypeError(
            f"X is a {type(X).__name__} of {type(X).__module__.partition('.')[0]}, but must be an "
            "array or a DataFrame: pass X.to_pandas()."
        )
    names = list(X.columns) if hasattr(X, "columns") else []
    if twice := sorted(str(name) for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"X has more than one column of the name {', '.join(twice)}: rename them.")
    return names


def _is_dated(column):
    """Return whether a column has dates or times, by its dtype or its first known object."""
    if str(column.dtype) not in ("object", "Object"):
        return is_date(column.dtype)
    first = next((value for value in column if not is_missing(value)), None)
    return isinstance(first, (datetime.date, datetime.time, datetime.timedelta))


def _are_numbers(objects):
    """Return whether objects that are not missing are numbers; bools are not."""
    known = (value for value in objects if not is_missing(value))
    return all(isinstance(x, Real | Decimal) and not isinstance(x, bool) for x in known)


def with_objects_as_numbers(X, categorical):
    """Return a pandas table whose columns of objects that are numbers are float64.

    None and NA become NaN. Columns of the mask ``categorical``, which may be None, stay.
    """
    if not (hasattr(X, "iloc") and hasattr(X, "columns")):
        return X
    masked = [False] * X.shape[1] if categorical is None else categorical
    objects = [
        name
        for name, is_category in zip(_names(X), masked, strict=False)
        if not is_category and X[name].dtype == object and _are_numbers(X[name])
    ]
    if not objects:
        return X
    X = X.copy(deep=False)
    for name in objects:
        X[name] = [math.nan if is_missing(value) else float(value) for value in X[name]]
    return X


def columns(X, chosen):
    """Return the chosen columns of a table or an array, a list of ndarrays (n,)."""
    if hasattr(X, "columns"):
        names = list(X.columns)
        return [np.asarray(X[names[j]]) for j in chosen]
    X = np.asarray(X)
    return [X[:, j] for j in chosen]


def categorical_mask(categorical_features, X):
    """Return a mask (d,) of the columns that are categories, or None if there are none."""
    names = _names(X)
    if categorical_features is None:
        return None
    if isinstance(categorical_features, str):
        if categorical_features != "from_dtype":
            raise ValueError(
                f"categorical_features={categorical_features!r} must be 'from_dtype', None, or a "
                "list of columns."
            )
        types = [re.split(r"[(\[<]", str(X[name].dtype).lower())[0] for name in names]
        mask = [
            kind in _CATEGORICAL_TYPES
            and not _is_dated(X[name])
            and not (
                kind == "object" and _are_numbers(X[name]) and not all(map(is_missing, X[name]))
            )
            for kind, name in zip(types, names, strict=True)
        ]
        mask = np.array(mask, dtype=bool)
        return mask if mask.any() else None
    if not names and len(np.shape(X)) != 2:
        return None  # validation raises the error
    chosen, d = np.atleast_1d(np.asarray(categorical_features)), len(names) or np.shape(X)[1]
    if chosen.dtype.kind in "OU":
        if unknown := [name for name in chosen.tolist() if name not in names]:
            raise ValueError(f"categorical_features has {unknown}, which are not columns of X.")
        chosen = np.array([names.index(name) for name in chosen], dtype=int)
    if chosen.dtype.kind == "b" and chosen.shape == (d,):
        chosen = np.flatnonzero(chosen)
    mask = np.zeros(d, dtype=bool)
    if chosen.size:
        if not (chosen.dtype.kind in "iu" and -d <= chosen.min() <= chosen.max() < d):
            raise ValueError(
                f"categorical_features={categorical_features!r} must be {d} bools, or names, or "
                f"integers from {-d} to {d - 1}."
            )
        mask[chosen] = True
    return mask if mask.any() else None
