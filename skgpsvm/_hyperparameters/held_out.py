"""Noise and power of the variances of a regression, from held-out rows."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from .._data import shares, to_tensor
from .._optim import maximize_density
from .._posteriors import shrinkage
from .._predictive import LeftOut
from .._sites import SiteLikelihood

MIN_CALIBRATED = 500  # rows
_HELD_OUT = 0.1  # share of the rows
_MAX_CHANGE = math.log(100)  # of noise and power
NOISE_PRIOR = 0.2  # standard deviation of the change of the log noise
# Rates of the log power, which few or noisy rows hardly determine: of the variances of few points,
# and of local variances. The latter are a smaller share of the prior's, so that a power changes
# them more.
POWER_PRIOR, LOCAL_POWER_PRIOR = 1.0, 10.0


def held_out_units(rows, random_state, max_units=np.inf):
    """Choose some units of weight to hold out; return all units, and the index of these."""
    units = rows.units()
    size = int(min(_HELD_OUT * len(units), max_units))
    return units, random_state.choice(len(units), size, replace=False)


def training_shares(rows, random_state):
    """Return the shares of rows that each of two solutions knows, (n, 2).

    The first solution knows all rows, and the second all but the held-out ones.
    """
    share = rows.own_part(shares(*held_out_units(rows, random_state)))
    return to_tensor(np.column_stack([np.ones(len(rows)), 1 - share]), rows.device)


@dataclass(frozen=True)
class HeldOutRows:
    """Predictions of held-out rows, to which the noise and a power of the variances are fitted."""

    likelihood: SiteLikelihood  # Gaussian noise, whose value is that of the model
    targets: torch.Tensor  # (n, t) or (n, t, 2), see `observations`
    weights: torch.Tensor  # (n,)
    # means, variances (n, t): latent moments
    means: torch.Tensor
    variances: torch.Tensor
    prior: torch.Tensor  # (n, 1): projected prior variances

    def most_likely(self, model, limits, spread=math.inf, power_prior=POWER_PRIOR):
        """Return a model with the noise and power under which these rows are most likely.

        ``limits`` are bounds of the log noise. ``spread`` is the standard deviation of a Gaussian
        prior of its change, infinite where the means do not solve the system exactly, as their
        errors look like noise. ``power_prior`` is the rate of the exponential prior of the log
        power.
        """
        noise = model.state(self.means.device)["noise"]

        def log_density(logs):
            return self._at(logs[:-1]).log_marginal(
                self.targets, self.means, self._latent(logs[-1].exp())
            )

        def log_prior(logs):
            changes = (logs[:-1] - noise) / spread
            return -0.5 * changes.square().sum() - power_prior * logs[-1]

        start = torch.cat([noise, noise.new_zeros(1)])
        bounds = torch.stack([start - _MAX_CHANGE, start + _MAX_CHANGE], 1)
        bounds[:-1] = bounds[:-1].clamp(*limits)
        bounds[-1, 0] = 0.0  # the power is at least 1
        best, _ = maximize_density(log_density, self.weights, start, bounds, log_prior)
        return replace(model, power=best[-1].exp().item(), noise=tuple(best[:-1].tolist()))

    def _at(self, noise):
        """Return the likelihood at logarithms of the noise, (k,)."""
        return self.likelihood.at(noise).likelihood

    def _latent(self, power):
        """Return the latent variances, corrected by a power."""
        return shrinkage(self.variances, self.prior, power) * self.variances

    def residuals(self, model):
        """Return the `LeftOut` residuals at the noise and power of a model."""
        likelihood = self._at(model.state(self.means.device)["noise"])
        moments = self.means, self._latent(model.power)
        return LeftOut.of(likelihood, self.targets, *moments, self.weights)
