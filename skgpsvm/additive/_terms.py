"""Names of the terms of an additive model, and the terms that a user requested."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import EllipsisType

import numpy as np

from .._validation import check_number
from ._defaults import DEFAULTS

# Entry of the parameter ``terms``.
Term = int | str | EllipsisType | Sequence[int | str | float]
KINDS = "smooth", "linear", "cyclic", "random"  # of effects of one feature; "random" of categories
ROUGH = "matern12"  # kernel of pairs, without inducing points only


@dataclass(frozen=True)
class TermNames:
    """Names of terms and length scales."""

    columns: Sequence  # their names if all are strings, else empty
    features: Sequence = ()  # the `Feature` of each column, point mass and steps of a fit

    def term(self, term):
        """Return the name of a term: its feature, "a & b", "a = 0" or "steps of a"."""
        return " & ".join(map(self._feature, term))

    def _feature(self, j):
        if self.features and (own := self.features[j]).column is not None:
            column = self._feature(own.column)
            return f"{column} = {own.value:.6g}" if own.is_mass else f"steps of {column}"
        return str(self.columns[j]) if len(self.columns) else f"x{j}"

    def length_scale(self, axis, j):
        """Return the name of a length scale, given its key of `AdditiveBasis.start`."""
        if axis == "pairs":
            return f"{self.term((j,))} in pairs"
        if len(axis) == 1:
            return self.term(axis)
        return f"{self.term((axis[j],))} in {self.term(axis)}"

    def requested(self, terms, is_category, monotonic_cst=None, convex_cst=None):
        """Return the `RequestedTerms` of the parameters of an estimator.

        A ValueError is raised if an entry is not a feature, a pair or a feature with a kind that
        fits it, if features or pairs are named twice, if a column has the name of a term of other
        columns, or if a constraint is for no effect that can have it.
        """
        self._check_distinct()
        found = self._requested(terms, is_category)
        found.monotonic = self._signs("monotonic_cst", monotonic_cst, len(is_category))
        found.convex = self._signs("convex_cst", convex_cst, len(is_category))
        for parameter, signs, kinds in [
            ("monotonic_cst", found.monotonic, ("smooth", "linear")),
            ("convex_cst", found.convex, ("smooth",)),
        ]:
            for j in signs:
                kind, _ = found.kinds.get(j, ("smooth", None))
                if is_category[j]:
                    wrong = "which is a category"
                elif kind not in kinds:
                    wrong = f"whose effect is {kind}"
                elif pair := next((pair for pair in found.pairs if j in pair), None):
                    wrong = f"but terms has the pair {self.term(pair)!r}"
                else:
                    continue
                raise ValueError(
                    f"{parameter} has a constraint for {self.term((j,))!r}, {wrong}. Only "
                    f"{' and '.join(kinds)} effects of numbers that have no pairs can have one."
                )
        return found

    def _check_distinct(self):
        """Raise ValueError if a column has the name that a term of other columns would have."""
        names = set(map(str, self.columns))
        for name in names:
            parts = [{name.removeprefix("steps of ")}, {re.sub(r" = [-+.e\d]+$", "", name)}]
            parts += [{name[: at.start()], name[at.end() :]} for at in re.finditer(" & ", name)]
            if any(part <= names and name not in part for part in parts):
                raise ValueError(
                    f"The column {name!r} of X has a name that a term of other columns may have, "
                    "such as 'a & b', the pair of a and b. Rename the column."
                )

    def _signs(self, parameter, requested, d):
        """Return the sign of the constraint of each feature that has one, a dict."""
        if requested is None:
            return {}
        if isinstance(requested, dict):
            numbers = {name: j for j, name in enumerate(self.columns)}
            signs = {numbers.get(name, name): sign for name, sign in requested.items()}
        else:
            array = np.asarray(requested)
            signs = dict(enumerate(array.tolist())) if array.shape == (d,) else {None: None}
        columns = all(_is_integer(j) and 0 <= j < d for j in signs)
        if not columns or not all(_is_integer(sign) and abs(sign) <= 1 for sign in signs.values()):
            raise ValueError(
                f"{parameter}={requested!r} must be None, {d} integers that are -1, 0 or 1, or a "
                "dict of these by the name or number of a feature."
            )
        return {int(j): int(sign) for j, sign in signs.items() if sign}

    def _requested(self, terms, is_category):
        d = len(is_category)
        if terms is None:
            return RequestedTerms(singles=list(range(d)), searched=True)
        if isinstance(terms, str) or not hasattr(terms, "__iter__"):
            raise ValueError(f"terms={terms!r} must be None or a list of features and pairs.")
        found = RequestedTerms(singles=[], searched=False)
        for entry in terms:
            if entry is ...:
                found.searched = True
                continue
            term, kind = self._entry(entry, d)
            if term in found.kept:
                raise ValueError(f"terms has {self.term(term)!r} twice. List each term once.")
            if kind is not None and (kind[0] == "random") != is_category[term[0]]:
                name = self.term(term)
                raise ValueError(
                    f"terms has {entry!r}, but {name!r} is a category, whose effect is 'random'."
                    if is_category[term[0]]
                    else f"terms has {entry!r}, but {name!r} is a number. List it in "
                    "categorical_features if it is a category."
                )
            found.kept.append(term)
            if kind is not None:
                found.kinds[term[0]] = kind
        named = [term[0] for term in found.kept if len(term) == 1]
        found.singles = list(range(d)) if found.searched else sorted(named)
        return found

    def _entry(self, entry, d):
        """Return the term of an entry of ``terms``, and its kind, (name, period or None), or None.

        A column that has the name of a kind counts as a column.
        """
        names = {name: j for j, name in enumerate(self.columns)}

        def column(part):
            if isinstance(part, str):
                return names.get(part)
            return int(part) if _is_integer(part) and 0 <= part < d else None

        parts = entry if isinstance(entry, (tuple, list)) else (entry,)
        columns = [column(part) for part in parts]
        if len(parts) == 1 and columns[0] is not None:
            return (columns[0],), None
        if len(parts) == 2 and None not in columns and columns[0] != columns[1]:
            return tuple(sorted(columns)), None
        if len(parts) in (2, 3) and columns[0] is not None and columns[1] is None:
            kind, period = parts[1], parts[2] if len(parts) == 3 else None
            if period is None and isinstance(kind, str) and kind in KINDS and len(parts) == 2:
                return (columns[0],), (kind, None)
            if kind == "cyclic" and isinstance(period, Real) and 0 < period < math.inf:
                return (columns[0],), (kind, float(period))
        raise ValueError(
            f"terms has {entry!r}. An entry must be `...`, a feature by name or number below {d}, "
            f"a pair of features, or a feature with one of {', '.join(map(repr, KINDS))}; "
            "'cyclic' may be followed by the period."
        )


@dataclass
class RequestedTerms:
    """Terms that a user requested."""

    singles: list  # features that have an effect of their own
    # Whether other terms, such as pairs, may be found: the list has an Ellipsis, or is None
    searched: bool
    kept: list = field(default_factory=list)  # terms that are kept whatever their gain
    kinds: dict = field(default_factory=dict)  # (name, period or None) of effects, by feature
    # 1 by each feature whose effect must not decrease, or must be convex; -1 for the reverse
    monotonic: dict = field(default_factory=dict)
    convex: dict = field(default_factory=dict)

    @property
    def constrained(self):
        """Features whose effect must be monotone, convex or concave, a set."""
        return {*self.monotonic, *self.convex}

    @property
    def pairs(self):
        """Pairs among the terms, in ascending order."""
        return sorted(term for term in self.kept if len(term) == 2)

    @property
    def used(self):
        """Features of any term, a set."""
        return {*self.singles, *(j for term in self.kept for j in term)}

    def most_pairs(self, interactions, exact):
        """Return how many pairs may be found besides those listed.

        Without inducing points, "auto" allows any number.
        """
        if interactions == "auto":
            return (math.inf if exact else DEFAULTS.pairs) if self.searched else 0
        return interactions or 0


def check_interactions(requested):
    """Raise ValueError if the parameter ``interactions`` is neither "auto", an integer nor None."""
    if requested is None or (isinstance(requested, str) and requested == "auto"):
        return
    if not (_is_integer(requested) and requested >= 0):
        raise ValueError(
            f"interactions={requested!r} must be 'auto', None, or the maximum number of pairs to "
            "look for. Pairs are listed in terms: [..., ('a', 'b')] adds one to all features."
        )
    check_number("interactions", requested, 0, integer=True)


def of_features(terms, importances, n_features):
    """Return importances (..., d) of features from those of terms (..., n_terms).

    That of a pair is divided equally between its features, as the Shapley values of a sum of
    zero-mean effects are.
    """
    found = np.zeros((*importances.shape[:-1], n_features))
    for place, term in enumerate(terms):
        for j in term:
            found[..., j] += importances[..., place] / len(term)
    return found


def pair_kernels(requested, kernel, has_pairs, exact):
    """Return the candidate kernels of pairs, among which the evidence decides.

    A ValueError is raised if the user's is too rough for the inducing points of a fit with pairs.
    """
    if requested is None:
        return [ROUGH, kernel] if exact else [kernel]
    if requested == ROUGH and has_pairs and not exact:
        raise ValueError(
            "kernel_interaction='matern12' is too rough for inducing points, which this fit "
            "has. Set sparse=False, or choose another kernel."
        )
    return [requested]


def _is_integer(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
