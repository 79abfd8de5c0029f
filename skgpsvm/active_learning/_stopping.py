"""When to stop asking for labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from sklearn.metrics import cohen_kappa_score
from sklearn.utils import check_consistent_length

from .._typing import ArrayLike
from .._validation import check_number


def has_stabilized(
    predictions: Sequence[ArrayLike], threshold: float = 0.99, n_rounds: int = 3
) -> bool:
    """Return whether the last models of an active-learning loop predict nearly the same labels.

    Parameters
    ----------
    predictions : sequence of array-likes of shape (n,)
        For each model of the loop so far, in order, the labels that it predicted for the same
        rows. These may be the pool, or some thousands of its rows.
    threshold : float, default=0.99
        Smallest mean agreement at which to stop; 1 means identical predictions.
    n_rounds : int, default=3
        Number of pairs of successive models whose agreement is averaged.

    Returns
    -------
    stable : bool
        Whether to stop. False for up to ``n_rounds`` models.

    Notes
    -----
    The agreement of two models is Cohen's kappa of their predictions: the share of rows on which
    they agree, corrected for chance. It is undefined if both predict the same label for all rows,
    and taken as 0: early models often predict the most frequent class only, and a loop that stopped
    there would never find a rare one.

    Source: Bloodgood and Vijay-Shanker (2009), "A method for stopping active learning based on
    stabilizing predictions and the need for user-adjustable stopping".

    Examples
    --------
    >>> from skgpsvm.active_learning import has_stabilized
    >>> has_stabilized([["a", "b", "a"], ["a", "b", "b"], ["a", "b", "b"]], n_rounds=1)
    True
    >>> has_stabilized([["a", "b", "a"], ["a", "b", "b"], ["a", "b", "b"]], n_rounds=2)
    False
    """
    check_number("threshold", threshold, -1)
    if threshold > 1:
        raise ValueError(f"threshold={threshold!r} must be at most 1, which means no difference.")
    check_number("n_rounds", n_rounds, 1, integer=True)
    if len(predictions) <= n_rounds:
        return False
    last = [np.asarray(labels) for labels in predictions[-n_rounds - 1 :]]
    if shape := next((labels.shape for labels in last if labels.ndim != 1), None):
        raise ValueError(
            f"predictions has an array of shape {shape}; give labels of shape (n,) for each "
            "model, those of predict and not of predict_proba."
        )
    check_consistent_length(*last)
    return bool(np.mean([_agreement(*pair) for pair in pairwise(last)]) >= threshold)


def _agreement(one, other):
    """Return Cohen's kappa, or 0 where it is undefined, since both predict one label only."""
    if (one == other).all():
        return 1.0 if (one != one[:1]).any() else 0.0
    return cohen_kappa_score(one, other)
