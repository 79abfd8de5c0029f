"""Adversarial attacks on fitted hybrid networks, and their detection by uncertainty scores."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_consistent_length, column_or_1d

from ._calibration import log_probability
from ._isolation import isolated
from ._rows import is_source
from ._typing import ArrayLike, RandomStateLike, Score
from ._validation import check_number
from .active_learning import least_confident

__all__ = ["detection_roc", "fast_gradient_sign", "projected_gradient"]

_ROWS = 256  # number of rows attacked at a time


def fast_gradient_sign(
    classifier: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike,
    strength: float,
    *,
    clip: tuple[float, float] | None = None,
) -> np.ndarray:
    r"""Attack rows by one step of size ``strength`` along the sign of the gradient of the loss.

    Every entry moves by ``strength`` in the direction that raises the loss:

    .. math:: x + \epsilon \operatorname{sign} \nabla_x \mathcal{L}(x, y)

    Parameters
    ----------
    classifier : HybridBayesianSVC or HybridSVGPClassifier
        The fitted classifier to attack.
    X : array-like of shape (n, d) or (n, ...)
        Rows in the form that `fit` accepts.
    y : array-like of shape (n,)
        True labels of the rows.
    strength : float
        Size of the step, :math:`\epsilon`, in the units of X.
    clip : tuple of two floats, default=None
        Range to which the attacked rows are clipped, such as (0, 1) for pixels between 0 and 1.
        None clips nothing.

    Returns
    -------
    X_attacked : ndarray of the shape of X
        The attacked rows, as floats.

    Raises
    ------
    ValueError
        If `y` has unknown labels, if rows lie outside `clip`, or if `strength` or `clip` is
        invalid.
    TypeError
        If the classifier has no network.

    Notes
    -----
    The loss is the cross-entropy of a softmax of the predictive means. The hinge loss has no
    gradient for rows outside the margin, so a model attacked with it would only look robust.

    Source: Goodfellow et al. (2015).
    """
    check_number("strength", strength, 0)
    _check_clip(clip)

    def attack(rows, gradient):
        return _clipped(rows + strength * gradient(rows).sign(), clip)

    return _attacked(classifier, X, y, clip, attack)


def projected_gradient(
    classifier: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike,
    strength: float,
    *,
    clip: tuple[float, float] | None = None,
    n_steps: int = 10,
    step: float | None = None,
    random_state: RandomStateLike = None,
) -> np.ndarray:
    """Attack rows by several signed gradient steps, within ``strength`` of every entry.

    Parameters
    ----------
    classifier : HybridBayesianSVC or HybridSVGPClassifier
        The fitted classifier to attack.
    X : array-like of shape (n, d) or (n, ...)
        Rows in the form that `fit` accepts.
    y : array-like of shape (n,)
        True labels of the rows.
    strength : float
        Largest change of an entry, in the units of X.
    clip : tuple of two floats, default=None
        Range to which the attacked rows are clipped. None clips nothing.
    n_steps : int, default=10
        Number of gradient steps.
    step : float, default=None
        Size of each step. None means ``2.5 * strength / n_steps``.
    random_state : int, RandomState instance or None, default=None
        Seeds the starting points, which are uniform within ``strength`` of each row.

    Returns
    -------
    X_attacked : ndarray of the shape of X
        The attacked rows, as floats.

    Raises
    ------
    ValueError
        If `y` has unknown labels, if rows lie outside `clip`, or if `strength`, `n_steps`, `step`
        or `clip` is invalid.
    TypeError
        If the classifier has no network.

    Notes
    -----
    The loss is the same as for `fast_gradient_sign`.

    Source: Madry et al. (2018).
    """
    check_number("strength", strength, 0)
    _check_clip(clip)
    check_number("n_steps", n_steps, 1, integer=True)
    step = 2.5 * strength / n_steps if step is None else step
    check_number("step", step, 0)
    rng = check_random_state(random_state)

    def attack(rows, gradient):
        shift = torch.tensor(rng.uniform(-strength, strength, rows.shape)).to(rows)
        for _ in range(n_steps):
            moved = _clipped(rows + shift, clip)
            shift = (moved - rows + step * gradient(moved).sign()).clamp(-strength, strength)
        return _clipped(rows + shift, clip)

    return _attacked(classifier, X, y, clip, attack)


def detection_roc(
    classifier: BaseEstimator, X: ArrayLike, X_attacked: ArrayLike, score: Score = least_confident
) -> Bunch:
    """Return the ROC curve of a score as a detector of attacked rows.

    Parameters
    ----------
    classifier : estimator
        A fitted classifier.
    X : array-like of shape (n, ...)
        Clean rows.
    X_attacked : array-like of shape (k, ...)
        Attacked rows.
    score : callable, default=least_confident
        Function ``score(classifier, X)`` that is higher for less certain rows. See
        `skgpsvm.active_learning` for alternatives; the paper uses `variation_ratio`.

    Returns
    -------
    roc : Bunch
        The curve as ``fpr``, ``tpr`` and ``thresholds``, the area under it as ``auc``, and the
        scores as ``clean`` (n,) and ``attacked`` (k,).
    """
    clean, attacked = score(classifier, X), score(classifier, X_attacked)
    scores = np.concatenate([clean, attacked])
    is_attacked = np.arange(len(scores)) >= len(clean)
    fpr, tpr, thresholds = roc_curve(is_attacked, scores)
    return Bunch(
        fpr=fpr,
        tpr=tpr,
        thresholds=thresholds,
        auc=roc_auc_score(is_attacked, scores),
        clean=clean,
        attacked=attacked,
    )


def _check_clip(clip):
    if clip is not None and not (len(clip) == 2 and clip[0] < clip[1]):
        raise ValueError(f"clip={clip!r} must be None or two numbers, the lower one first.")


def _clipped(rows, clip):
    return rows if clip is None else rows.clamp(*clip)


@isolated()
def _attacked(classifier, X, y, clip, attack):
    """Return ``attack(rows, gradient)`` for all rows, computed in chunks.

    ``gradient`` is a function that returns the gradient of the loss with respect to the rows.
    """
    if not hasattr(classifier, "to_torch") or not hasattr(classifier, "classes_"):
        raise TypeError(
            f"An attack needs the gradient of a fitted hybrid classifier, such as "
            f"skgpsvm.HybridBayesianSVC; got {type(classifier).__name__}."
        )
    check_consistent_length(X, y)
    X = np.asarray(X) if is_source(X) else X
    classifier._check_new(X)
    X, y = np.asarray(X), column_or_1d(y)
    if clip is not None and (X.min() < clip[0] or X.max() > clip[1]):
        raise ValueError(
            f"X lies between {X.min()} and {X.max()}, beyond clip={clip!r}: scale it, or give the "
            "range that it has."
        )
    if strangers := np.setdiff1d(y, classifier.classes_).tolist():
        raise ValueError(
            f"y has labels {strangers} that are not among {classifier.classes_.tolist()}."
        )
    codes = torch.from_numpy(np.searchsorted(classifier.classes_, y))
    module = classifier.to_torch(classifier.device)
    device = next(iter(module.state_dict().values())).device
    floats = np.issubdtype(X.dtype, np.floating)
    dtype = X.dtype.newbyteorder("=") if floats else np.dtype(np.float32)
    parts = []
    for start in range(0, len(X), _ROWS):
        part = slice(start, start + _ROWS)
        targets = codes[part].to(device)

        def gradient(rows, targets=targets):
            rows = rows.detach().requires_grad_()
            mean, _ = module.latents(rows)
            loss = torch.nn.functional.nll_loss(log_probability(mean), targets, reduction="sum")
            return torch.autograd.grad(loss, rows)[0]

        rows = torch.tensor(np.ascontiguousarray(X[part], dtype), device=device)
        parts.append(attack(rows, gradient).cpu().numpy())
    return np.concatenate(parts)
