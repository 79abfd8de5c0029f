"""Fisher scoring: Newton's method with an approximate information in place of the Hessian."""

import math

import torch

from .exceptions import NotPositiveDefiniteError

RADIUS = 1.0  # of the trust region at most: hyperparameters are logarithms
_MEMORY = 5  # steps that correct the information
_MIN_CURVATURE = 0.2  # of a corrected information, relative to that before
_RIDGE = 1e-3  # precision of entries without information


def fisher_scoring(evaluate, start, bounds, max_iter, min_gain, radius=RADIUS):
    """Maximize a log likelihood by Newton's steps with its information, within a trust region.

    ``evaluate`` takes a Tensor (k,). It returns the value, a float, and a callable that returns the
    gradient (k,) and the information (k, k), which approximates minus the Hessian. The start is
    clipped to the bounds (k, 2). There are at most ``max_iter`` steps besides those that are
    rejected. They end when the next one is expected to gain less than ``min_gain``, which is
    positive. The trust region has this ``radius`` at first. Returns the best point, its value and
    the last radius.

    Source: Nocedal and Wright (2006), algorithm 4.1. Departs from the source: the trust region is
    a box that shrinks at rejected steps alone, and BFGS updates by the last steps correct the
    information. A step is rejected where the value does not rise or is not finite, or where the
    evaluation ends in a `NotPositiveDefiniteError`. The first point cannot be rejected.
    """
    best = start.clamp(*bounds.unbind(1))
    value, derive = evaluate(best)
    gradient, hess = derive()
    del derive  # and the matrices that it holds, while the next point has its own
    ridge = _RIDGE * torch.eye(len(hess)).to(hess)
    hess = hess + ridge
    pairs, n_steps = [], 0
    while True:
        ends = (bounds - best[:, None]).clamp(-radius, radius)
        step = _bounded_step(gradient, hess, ends)
        expected = (step @ (gradient - 0.5 * hess @ step)).item()
        if not expected >= min_gain:
            break
        try:
            new, derive = evaluate(best + step)
        except NotPositiveDefiniteError:
            new = -math.inf
        gain = new - value
        if not (math.isfinite(new) and gain > 0):
            radius = 0.25 * step.abs().max().item()
            continue
        if gain > 0.75 * expected:
            radius = min(2 * radius, RADIUS)
        best, value, n_steps = best + step, new, n_steps + 1
        if n_steps == max_iter:
            break
        before = gradient
        gradient, hess = derive()
        del derive
        pairs = [*pairs[1 - _MEMORY :], (step, before - gradient)]
        hess = _corrected(hess, pairs) + ridge
    return best, value, radius


def _corrected(hess, pairs):
    """Return a matrix (k, k) after BFGS updates by pairs of steps and falls of the gradient.

    Source: Nocedal and Wright (2006), procedure 18.2, for the damping that keeps it positive.
    """
    for step, fall in pairs:
        moved = hess @ step
        usual, found = step @ moved, step @ fall
        if found < _MIN_CURVATURE * usual:
            share = (1 - _MIN_CURVATURE) * usual / (usual - found)
            fall = torch.lerp(moved, fall, share)
        hess = hess - torch.outer(moved, moved) / usual + torch.outer(fall, fall) / (step @ fall)
    return hess


def _bounded_step(gradient, hess, ends):
    """Return the step s (k,) within bounds (k, 2) that maximizes g^T s - s^T H s / 2.

    Source: Nocedal and Wright (2006), section 16.5. Departs from the source: all entries that leave
    their bounds are held there at once, and those whose multipliers are at least half the largest
    are released at once.
    """
    low, high = ends.unbind(1)
    step, free = torch.zeros_like(gradient), low < high
    for _ in range(2 * len(gradient)):
        index = free.nonzero()[:, 0]
        rest = gradient - hess @ step.masked_fill(free, 0.0)
        step[index] = torch.linalg.solve(hess[index[:, None], index], rest[index])
        out = (step < low) | (step > high)
        step = step.clamp(low, high)
        if out.any():
            free &= ~out
            continue
        residual = gradient - hess @ step
        inward = torch.where(step == low, residual, torch.where(step == high, -residual, 0.0))
        inward = torch.where(low < high, inward, 0.0)
        if not (inward > 0).any():
            break
        free |= inward >= 0.5 * inward.max()
    return step
