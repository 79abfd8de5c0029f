"""Names of the terms of an additive model, and the pairs that a user requested."""

import math
from dataclasses import dataclass

import numpy as np

from .._validation import check_number
from ._defaults import DEFAULTS

ROUGH = "matern12"  # kernel of pairs, without inducing points only


@dataclass(frozen=True)
class TermNames:
    """Names of terms and length scales, from those of the features, an array or None."""

    features: np.ndarray | None

    def term(self, term):
        """Return the name of a term: that of its feature, or "a & b"."""
        names = self.features
        return " & ".join(f"x{j}" if names is None else str(names[j]) for j in term)

    def length_scale(self, axis, j):
        """Return the name of a length scale, given its key of `AdditiveBasis.start`."""
        if axis == "pairs":
            return f"{self.term((j,))} in pairs"
        if len(axis) == 1:
            return self.term(axis)
        return f"{self.term((axis[j],))} in {self.term(axis)}"

    def requested_pairs(self, requested, n_features, exact):
        """Return the pairs that a user listed, and how many others may be found.

        Parameters
        ----------
        requested : "auto", int, None, or list of pairs
            Parameter ``interactions`` of an estimator.
        n_features : int
        exact : bool
            Whether the fit has no inducing points; "auto" then allows any number of pairs.

        Raises
        ------
        ValueError
            If ``requested`` is something else.
        """
        if isinstance(requested, str) and requested == "auto":
            return [], math.inf if exact else DEFAULTS.pairs
        if requested is None:
            return [], 0
        if _is_integer(requested) and requested >= 0:
            check_number("interactions", requested, 0, integer=True)
            return [], int(requested)
        names = {name: j for j, name in enumerate(() if self.features is None else self.features)}
        try:
            pairs = [tuple(sorted(names.get(j, j) for j in pair)) for pair in requested]
        except TypeError:
            pairs = [()]
        for pair in pairs:
            columns = [j for j in pair if _is_integer(j) and 0 <= j < n_features]
            if len(pair) != 2 or len(set(columns)) != 2:
                raise ValueError(
                    f"interactions={requested!r} must be None, 'auto', the number of pairs to look "
                    "for, or a list of pairs of different features, by name or by number below "
                    f"{n_features}."
                )
        return sorted(set(pairs)), 0


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


def pair_kernels(requested, kernel, exact):
    """Return the candidate kernels of pairs, among which the evidence decides."""
    if requested is not None:
        return [requested]
    return [ROUGH, kernel] if exact else [kernel]


def check_rough_pairs(requested, has_pairs, exact):
    """Raise ValueError if the user's kernel of pairs is too rough for inducing points."""
    if requested == ROUGH and has_pairs and not exact:
        raise ValueError(
            "kernel_interaction='matern12' is too rough for inducing points, which this fit "
            "has. Set sparse=False, or choose another kernel."
        )


def _is_integer(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
