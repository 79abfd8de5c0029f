"""Steps on the means of the posterior, with covariances held, by limited-memory BFGS."""

import torch

_MAX_STEPS = 40
_MAX_TRIALS = 10
_SHORTENED = (0.1, 0.7)  # bounds of the factor of a step that lowers the ELBO
_MAX_PAIRS = 8
_PRECISION = 0.1  # the predicted gain of the last step is its square, relative to the first


def ascend_means(value_and_gradient, mean, precondition, slack):
    """Maximize the part of the ELBO that depends on the means (c, p), a concave function.

    ``value_and_gradient`` takes means. ``precondition`` is as `preconditioner` returns it, and
    ``slack`` takes a value and returns its rounding error.

    The steps end once the predicted gain of the next one is at most a hundredth of that of the
    first, or the rounding error of the value. At least one is taken. A step that lowers the value
    by more than that error is shortened to where the slope along it vanishes, by interpolation.
    Returns the means of the last step, and those to which the first step, of full length, would
    lead.

    Source: Nocedal and Wright (2006), Numerical Optimization, algorithm 7.4.
    """
    pairs, value, gradient = [], *value_and_gradient(mean)
    first = first_gain = None
    for _ in range(_MAX_STEPS):
        step = _bfgs_step(gradient, pairs, precondition)
        slope = (gradient * step).sum()
        if first is None:
            first, first_gain = mean + step, slope
        elif slope <= max(_PRECISION**2 * first_gain, slack(value)):
            break
        for _ in range(_MAX_TRIALS):
            new_value, new_gradient = value_and_gradient(mean + step)
            if new_value >= value - slack(value):
                break
            factor = slope / (slope - (new_gradient * step).sum())
            step, slope = (part * factor.clamp(*_SHORTENED) for part in (step, slope))
        else:
            break
        change_of_gradient = gradient - new_gradient
        curvature = (step * change_of_gradient).sum()
        if curvature > 0:
            pairs = [*pairs, (step, change_of_gradient, curvature)][-_MAX_PAIRS:]
        mean, value, gradient = mean + step, new_value, new_gradient
    return mean, first


def newton_step(gradient, product, precondition):
    """Return the Newton step (c, p) at a gradient (c, p), by conjugate gradients.

    ``product`` multiplies with minus the Hessian, which is positive definite; ``precondition`` is
    as `preconditioner` returns it. Iterations end as those of `ascend_means` do.
    """
    step, residual, direction = torch.zeros_like(gradient), gradient, precondition(gradient)
    norm = first = (gradient * direction).sum()
    for _ in range(_MAX_STEPS):
        if norm <= _PRECISION**2 * first:
            break
        curved = product(direction)
        size = norm / (direction * curved).sum()
        step, residual = step + size * direction, residual - size * curved
        conditioned = precondition(residual)
        last, norm = norm, (residual * conditioned).sum()
        direction = conditioned + norm / last * direction
    return step


def preconditioner(root, prior_precision, relative):
    r"""Return a function that multiplies gradients (c, p) with an approximate inverse Hessian.

    It multiplies with the covariances ``root @ root.mT``, :math:`\Lambda_j^{-1}`, of the latents'
    weights, the closed-form step of the sites. If the loss is ``relative``, depending on
    differences of latents only, this is done for differences from the mean over latents. The
    Hessian of a common shift of all latents is that of the prior, :math:`\sum_j \Lambda_{0j}`,
    which is far smaller than the precisions of the sites. Without this, steps along a common shift
    would be too short by their ratio.
    """

    def by_covariances(gradient):
        return times(root, times(root.mT, gradient))

    if not relative:
        return by_covariances
    shift_factor = torch.linalg.cholesky(prior_precision.sum(0))

    def precondition(gradient):
        common = gradient.sum(0, keepdim=True)
        step = by_covariances(gradient - common / len(gradient))
        return step - step.mean(0) + torch.cholesky_solve(common.T, shift_factor).T

    return precondition


def times(matrices, vectors):
    """Return the products of matrices (c, p, p) and vectors (c, p), a pair for each latent."""
    # Products with a row are several times faster than those with a column.
    return (vectors[:, None] @ matrices.mT)[:, 0]


def _bfgs_step(gradient, pairs, precondition):
    """Return the product of a gradient (c, p) with a limited-memory BFGS matrix.

    ``precondition`` multiplies with the matrix from which the updates start. ``pairs`` are the
    differences of means, and of gradients with the sign reversed, over the last steps, and their
    scalar products, which are positive.
    """
    shares = []
    for shift, change_of_gradient, curvature in reversed(pairs):
        shares.append((shift * gradient).sum() / curvature)
        gradient = gradient - shares[-1] * change_of_gradient
    step = precondition(gradient)
    for (shift, change_of_gradient, curvature), share in zip(pairs, shares[::-1], strict=True):
        step = step + (share - (change_of_gradient * step).sum() / curvature) * shift
    return step
