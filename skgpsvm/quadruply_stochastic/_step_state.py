"""State and options of the quadruply stochastic steps, and their estimates of latents."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from .._fitting import State


@dataclass(kw_only=True)
class StochasticState(State):
    """Solution of the stochastic steps.

    Sizes: c latents, M basis functions, k dense columns of each latent's chevron, p support rows,
    q inducing points. Fields that may be None belong to options that are not in use, but for
    ``auxiliary``, which `StochasticSteps.begin` sets.

    Attributes
    ----------
    theta, noise : Tensor of shape (t,), (s,)
        Logarithms of the kernel's and the likelihood's hyperparameters.
    coef : Tensor of shape (c + c k, M)
        Coefficients of the means, then the dense columns of all latents.
    support : Tensor of shape (p, d)
        Support rows of the control variates.
    support_theta : Tensor of shape (t,)
        Hyperparameters of the control variates, which may lag behind ``theta``.
    at_support : Tensor of shape (p, c + c k)
        Values at the support rows of the functions whose coefficients are ``coef``.
    mean_precision : Tensor of shape (c,)
        Running mean of the site precisions.
    auxiliary : Tensor of shape (n, c), or None
        Auxiliary variables of the training rows, see `QuadraticBound`.
    coef_sum : Tensor of shape (c, M)
        Sum of the means' coefficients over averaged steps, complete up to ``last_averaged``.
    last_averaged : Tensor of shape (M,)
        Number of averaged steps when each function was last drawn.
    n_averaged : int
        Number of averaged steps.
    n_steps, first_step : int
        Steps so far, and those before the last call of `StochasticSteps.begin`.
    n_passes : int
        Passes over the rows so far.
    n_seen : float
        Total weight of all rows seen so far.
    n_summed : float
        Number of minibatches that the running covariance averages.
    generator_state : Tensor
        State of the random number generator.
    squared_gradients : Tensor of shape (c + c k, M), or None
        Sums of squared gradients, for AdaGrad.
    hyper_gradient : Tensor of shape (t + s,), or None
        Sum of the gradient estimates in theta and noise since the last step of Adam.
    adam_mean, adam_square : Tensor of shape (t + s,), or None
        First and second moments of Adam.
    n_adam_steps : int
    gram : Tensor of shape (c, q, q), or None
        Running precision-weighted Gram matrices of the features of the "nystroem" covariance.
    root : Tensor of shape (c, q, q), or None
        Root of the covariance that ``gram`` gives.
    data : Tensor of shape (c, M), or None
        Running precision-weighted sums of squares of the functions, for a chevron.
    counts : Tensor of shape (M,), or None
        Number of minibatches that each entry of ``data`` averages.
    """

    theta: torch.Tensor
    noise: torch.Tensor
    coef: torch.Tensor
    support: torch.Tensor
    support_theta: torch.Tensor
    at_support: torch.Tensor
    mean_precision: torch.Tensor
    auxiliary: torch.Tensor | None = None
    coef_sum: torch.Tensor
    last_averaged: torch.Tensor
    n_averaged: int = 0
    n_steps: int = 0
    first_step: int = 0
    n_passes: int = 0
    n_seen: float = 0.0
    n_summed: float = 0.0
    generator_state: torch.Tensor
    squared_gradients: torch.Tensor | None = None
    hyper_gradient: torch.Tensor | None = None
    adam_mean: torch.Tensor | None = None
    adam_square: torch.Tensor | None = None
    n_adam_steps: int = 0
    gram: torch.Tensor | None = None
    root: torch.Tensor | None = None
    data: torch.Tensor | None = None
    counts: torch.Tensor | None = None


@dataclass(frozen=True)
class StepOptions:
    """Options of `StochasticSteps`.

    Attributes
    ----------
    n_dense : int or None
        Number of dense columns of a chevron, k. None selects a "nystroem" covariance.
    batch_size : int
        Rows in a minibatch.
    n_sampled : int
        Units in a draw of basis functions.
    control_variate : {"interpolating", "gram", None}
    n_steps : int
        Total number of steps. Coefficients are averaged over the second half.
    symmetric : bool
        Whether the linear term is split between the two draws. Otherwise the first has all of it.
    adagrad : bool
        Whether each coefficient's steps are scaled by its past gradients.
    learning_rate : float or None
        None is 0.1 for AdaGrad. Otherwise it is a fraction of the inverse of the largest
        eigenvalue, which is estimated on the support rows.
    decay : float
        Rate of the last step, in units of the first's.
    """

    n_dense: int | None
    batch_size: int
    n_sampled: int
    control_variate: str | None
    n_steps: int
    symmetric: bool = True
    adagrad: bool = False
    learning_rate: float | None = None
    decay: float = 1.0

    def decayed(self, state):
        """Return the rate of the next step, in units of the first's."""
        share = (state.n_steps - state.first_step) / max(self.n_steps - 1, 1)
        return self.decay**share


class LatentEstimates(NamedTuple):
    """Estimates of the functions whose coefficients are ``coef``, one from each of two draws.

    Attributes
    ----------
    draws : list of two Draw
    f : list of two Tensor of shape (b, c + c k)
        Estimates at the rows of the minibatch, by the control variate if it interpolates.
    errors : list of two Tensor of shape (p, c + c k)
        True values at the support rows, less the estimates there.
    """

    draws: list
    f: list
    errors: list
