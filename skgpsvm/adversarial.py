"""Attacks on fitted hybrid networks, and how well scores of uncertainty detect them."""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_consistent_length, column_or_1d

from ._isolation import isolated
from ._validation import check_number
from .active_learning import least_confident

__all__ = ["detection_roc", "fast_gradient_sign", "projected_gradient"]

_ROWS = 256  # attacked at a time


def fast_gradient_sign(classifier, X, y, strength, *, clip=None):
    r"""Move rows by ``strength`` in every entry, in the direction that raises the loss.

    .. math:: x + \epsilon \operatorname{sign} \nabla_x \mathcal{L}(x, y)

    Parameters
    ----------
    classifier : HybridBayesianSVC or HybridSVGPClassifier
        Fitted.
    X : array-like of shape (n, d) or (n, ...)
        Rows as they come to `fit`.
    y : array-like of shape (n,)
        Their true labels.
    strength : float
        In units of X.
    clip : tuple of two floats, default=None
        Range that the rows stay in, (0, 1) for images of such pixels.

    Returns
    -------
    X_attacked : ndarray of the shape of X
        Of floats.

    Raises
    ------
    ValueError
        If labels are unknown, rows outside the range, or strength or range make no sense.
    TypeError
        If the classifier has no network.

    Notes
    -----
    The loss is the cross-entropy of a softmax of the predictive means: that of the hinge has no
    gradient for rows outside the margin, and would only look robust. Source: Goodfellow et al.
    (2015).
    """
    _check_size("strength", strength)
    _check_clip(clip)

    def attack(rows, gradient):
        return _clipped(rows + strength * gradient(rows).sign(), clip)

    return _attacked(classifier, X, y, clip, attack)


def projected_gradient(
    classifier, X, y, strength, *, clip=None, n_steps=10, step=None, random_state=None
):
    """Move rows by at most ``strength`` in every entry, by several signed steps up the loss.

    Parameters
    ----------
    classifier : HybridBayesianSVC or HybridSVGPClassifier
        Fitted.
    X : array-like of shape (n, d) or (n, ...)
        Rows as they come to `fit`.
    y : array-like of shape (n,)
        Their true labels.
    strength : float
        In units of X.
    clip : tuple of two floats, default=None
        Range that the rows stay in.
    n_steps : int, default=10
        Gradients taken.
    step : float, default=None
        Size of a step; None is ``2.5 * strength / n_steps``.
    random_state : int, RandomState instance or None, default=None
        Rules the start, uniform within ``strength`` of each row.

    Returns
    -------
    X_attacked : ndarray of the shape of X
        Of floats.

    Raises
    ------
    ValueError
        If labels are unknown, rows outside the range, or strength, steps or range make no sense.
    TypeError
        If the classifier has no network.

    Notes
    -----
    Source: Madry et al. (2018); the loss is that of `fast_gradient_sign`.
    """
    _check_size("strength", strength)
    _check_clip(clip)
    check_number("n_steps", n_steps, 1, integer=True)
    step = 2.5 * strength / n_steps if step is None else step
    _check_size("step", step)
    rng = check_random_state(random_state)

    def attack(rows, gradient):
        shift = torch.tensor(rng.uniform(-strength, strength, rows.shape)).to(rows)
        for _ in range(n_steps):
            moved = _clipped(rows + shift, clip)
            shift = (moved - rows + step * gradient(moved).sign()).clamp(-strength, strength)
        return _clipped(rows + shift, clip)

    return _attacked(classifier, X, y, clip, attack)


def detection_roc(classifier, X, X_attacked, score=least_confident):
    """Return the ROC curve of a score that tells attacked rows from clean ones.

    Parameters
    ----------
    classifier : estimator
        Fitted.
    X : array-like of shape (n, ...)
        Clean rows.
    X_attacked : array-like of shape (k, ...)
        Attacked ones.
    score : callable, default=least_confident
        Of a classifier and rows, higher for what is less certain; see `skgpsvm.active_learning`.
        The paper's is `variation_ratio`.

    Returns
    -------
    roc : Bunch
        ``fpr``, ``tpr``, ``thresholds`` of the curve, the area under it, ``auc``, and the scores,
        ``clean`` (n,) and ``attacked`` (k,).
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


def _check_size(name, value):
    check_number(name, value, 0)
    if value == np.inf:
        raise ValueError(f"{name}={value!r} must be finite.")


def _check_clip(clip):
    if clip is not None and not (len(clip) == 2 and clip[0] < clip[1]):
        raise ValueError(f"clip={clip!r} must be None or two numbers, the lower one first.")


def _clipped(rows, clip):
    return rows if clip is None else rows.clamp(*clip)


@isolated()
def _attacked(classifier, X, y, clip, attack):
    """Apply ``attack(rows, gradient)`` in chunks; ``gradient`` is that of the loss in the rows."""
    if not hasattr(classifier, "to_torch") or not hasattr(classifier, "classes_"):
        raise TypeError(
            f"An attack needs the gradient of a fitted hybrid classifier, such as "
            f"skgpsvm.HybridBayesianSVC; got {type(classifier).__name__}."
        )
    check_consistent_length(X, y)
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
            if mean.shape[1] == 1:
                mean = torch.cat([torch.zeros_like(mean), mean], 1)
            loss = torch.nn.functional.cross_entropy(mean, targets, reduction="sum")
            return torch.autograd.grad(loss, rows)[0]

        rows = torch.tensor(np.ascontiguousarray(X[part], dtype), device=device)
        parts.append(attack(rows, gradient).cpu().numpy())
    return np.concatenate(parts)
