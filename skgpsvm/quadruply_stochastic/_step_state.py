"""State of the stochastic steps."""

from dataclasses import dataclass

import torch

from .._fitting import State


@dataclass(kw_only=True)
class StochasticState(State):
    """Solution of the stochastic steps.

    Sizes: c latents, M basis functions, k dense columns of each latent's chevron, p support rows,
    q inducing points. Fields that may be None belong to options that are not in use, but for
    ``auxiliary``, which `StochasticSteps.begin` sets.
    """

    # theta (t,), noise (s,): logarithms of the kernel's and the likelihood's hyperparameters
    theta: torch.Tensor
    noise: torch.Tensor
    # (c + c k, M): coefficients of the means, then the dense columns of all latents
    coef: torch.Tensor
    support: torch.Tensor  # (p, d): support rows of the control variates
    # (t,): hyperparameters of the control variates, which may lag behind ``theta``
    support_theta: torch.Tensor
    # (p, c + c k): values at the support rows of the functions whose coefficients are ``coef``
    at_support: torch.Tensor
    mean_precision: torch.Tensor  # (c,): running mean of the site precisions
    # (n, c): auxiliary variables of the training rows, see `QuadraticBound`
    auxiliary: torch.Tensor | None = None
    # (c, M): sum of the means' coefficients over averaged steps, complete up to ``last_averaged``
    coef_sum: torch.Tensor
    last_averaged: torch.Tensor  # (M,): number of averaged steps when each function was last drawn
    n_averaged: int = 0
    # n_steps, first_step: steps so far, and those before the last call of `StochasticSteps.begin`
    n_steps: int = 0
    first_step: int = 0
    n_passes: int = 0  # passes over the rows so far
    n_seen: float = 0.0  # total weight of all rows seen so far
    n_summed: float = 0.0  # number of minibatches that the running covariance averages
    generator_state: torch.Tensor  # state of the random number generator
    # (c + c k, M): sums of squared gradients, for AdaGrad
    squared_gradients: torch.Tensor | None = None
    # (t + s,): sum of the gradient estimates in theta and noise since the last step of Adam
    hyper_gradient: torch.Tensor | None = None
    # adam_mean, adam_square (t + s,): first and second moments of Adam
    adam_mean: torch.Tensor | None = None
    adam_square: torch.Tensor | None = None
    n_adam_steps: int = 0
    # (c, q, q): running precision-weighted Gram matrices of the features of the "nystroem"
    # covariance
    gram: torch.Tensor | None = None
    root: torch.Tensor | None = None  # (c, q, q): root of the covariance that ``gram`` gives
    # (c, M): running precision-weighted sums of squares of the functions, for a chevron
    data: torch.Tensor | None = None
    # (M,): number of minibatches that each entry of ``data`` averages
    counts: torch.Tensor | None = None

    def to_arrays(self):
        """Return the fields but for ``auxiliary``, which belongs to the rows of a call."""
        return {name: part for name, part in super().to_arrays().items() if name != "auxiliary"}
