"""Likelihoods of counts: Poisson."""

import torch

from .._quadrature import gauss_hermite, safe_std
from ._base import Likelihood, capped_exp, capped_exp_slope

_NEWTON_STEPS = 6  # reach the mode to rounding from anywhere


class Poisson(Likelihood):
    r"""Counts with log link, ``y ~ Poisson(exp(f))``, independent over columns.

    Any y >= 0 is allowed; the gamma function extends the factorial. To model counts over exposures,
    pass the rates ``y = count / exposure`` with sample weights ``exposure``.

    Notes
    -----
    Up to terms that do not depend on f, a weight of w on the rate y is the log probability of the
    count w y with mean w exp(f).

    Above :math:`e^{50}` the rate, and its expectation in `expected_log_prob`, continue as the
    tangent of the exponential: far from the data, values and derivatives stay finite, and the log
    density stays concave. `predict` gives the moments of the log-normal rate itself, which are
    infinite where they overflow.

    `log_marginal` has its 32 nodes about the mode of the posterior of f, with the spread that its
    curvature implies, and so holds for large counts too; at a variance of 4 it errs by 3e-6 nats.

    Source: McCullagh and Nelder (1989), chapter 6.
    """

    step = 0.5

    def log_prob(self, y, f) -> torch.Tensor:
        return self._log_mass(y, f).sum(-1)

    def _log_mass(self, y, f):
        return y * f - capped_exp(f) - torch.lgamma(y + 1)

    def expected_log_prob(self, y, mean, var) -> torch.Tensor:
        return (y * mean - capped_exp(mean + 0.5 * var) - torch.lgamma(y + 1)).sum(-1)

    def expected_derivatives(self, y, mean, var):
        slope = capped_exp_slope(mean + 0.5 * var)
        return y - slope, -slope

    def log_marginal(self, y, mean, var) -> torch.Tensor:
        y, mean, var = torch.broadcast_tensors(y, mean, var)
        std = safe_std(var)
        z, w = (part.reshape(-1, *[1] * mean.ndim) for part in gauss_hermite(32, mean))
        mode, spread = _posterior_mode(y, mean.detach(), std.detach())
        t = mode + spread * z
        log_ratio = 0.5 * (z.square() - t.square()) + spread.log()
        terms = self._log_mass(y, mean + std * t) + log_ratio + w.log()
        return torch.logsumexp(terms, 0).sum(-1)

    def predict(self, mean, var) -> tuple[torch.Tensor, torch.Tensor]:
        rate = torch.exp(mean + 0.5 * var)
        # exp(2 mean + var) (exp(var) - 1), without 0 times infinity.
        rate_var = torch.exp(2 * (mean + var) + torch.log(-torch.expm1(-var)))
        return rate, rate + rate_var


def _posterior_mode(y, mean, std):
    """Return the mode of t given y, and its Laplace standard deviation.

    Here f = mean + std t, with t ~ N(0, 1).

    At the mode u = log(var * rate) solves u + exp(u) = mean + var y + log(var). Newton's method
    starts to the right of the root of this convex increasing function.
    """
    log_var = 2 * std.log()
    target = mean + std.square() * y + log_var
    u = torch.where(target > 1, target.clamp_min(1).log(), target)
    for _ in range(_NEWTON_STEPS):
        u = u - (u + u.exp() - target) / (1 + u.exp())
    f = u - log_var
    mode = torch.where(std < 1, std * (y - capped_exp_slope(f)), (f - mean) / std)
    return mode, (1 + u.exp()).rsqrt()
