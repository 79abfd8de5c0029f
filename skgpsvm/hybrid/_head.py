"""Start of the head: its posterior and kernel on the features of the untrained network."""

from dataclasses import replace

import torch

from .._calibration import Calibration
from .._inference.coordinate_ascent import CoordinateAscent
from .._inference.elbo_learning import ElboLearning
from .._inference.leave_one_out import leave_one_out
from .._optim import Free
from .._posteriors import WhitenedBasis
from .._sites import LikelihoodSites
from .._torch_kernels import theta_bounds, torch_kernel
from ._network import HEAD

_JITTER = 1e-6  # as of the bases of `HybridNetwork`
_TOL = 1e-2  # of the ELBO in nats per row, and of the change of the means
_MAX_SWEEPS = 20
# Slopes of nearly linear functions, relative to the initial kernel, that theta may start from. From
# the length scales of the initial kernel, learning shrinks weak signals to nothing.
_SLOPES = 1.0, 0.5, 0.25, 0.125


def solve_head(kernel, Z, likelihood, rows, noise_bounds, prior=None, names=HEAD):
    """Return a head that explains rows of features, and the ascent and the state it comes from.

    Gaussian processes on the features of a random network are already good models: they are small
    where features explain nothing, and know the class frequencies or the noise of the targets.
    From a head at its prior, training fits single rows before it has learned these.

    ``kernel``, with its initial values, and the inducing points ``Z`` (m, D) are of the features,
    which are the ``rows``, in float64. ``noise_bounds`` are of the logarithms of the likelihood's
    parameters, and ``prior`` is a `SignalPrior` of theta. These are learned if the likelihood is a
    proper one. The objective of a pseudo-likelihood is no bound on the evidence: leave-one-out
    predictions then choose theta among some values. The head is a dict of tensors by the names of
    `HEAD`. Those among ``names`` are of the solution, others of the prior.
    """
    given = {"theta": torch.tensor(kernel.theta), "noise": likelihood.parameters(), "Z": Z}
    given = {name: value.to(rows.device) for name, value in given.items()}
    head = dict(given)
    thetas = [given["theta"]]
    if prior is not None:
        thetas += map(prior.smoothest, _SLOPES)
    free = [name for name in ("theta", "noise") if len(head[name])]
    if free and isinstance(likelihood, LikelihoodSites):
        bounds, units = theta_bounds(kernel, rows.device), torch.ones_like(head["Z"][0])
        parts = Free(free, bounds, units, noise_bounds, prior)
        kernels = (torch_kernel(kernel),)
        learning = ElboLearning(likelihood, kernels, rows, _JITTER, parts, _TOL)
        found = learning.init(head)
        if len(thetas) > 1:
            found = replace(found, theta=learning.best_theta(thetas, found))
        learning.step(found)
        head |= {name: getattr(found, name) for name in free}
        ascent, state = _posterior(kernel, head, likelihood, rows, found.mean, found.root)
    else:
        heads = [head | {"theta": theta} for theta in thetas]
        solutions = [(*_posterior(kernel, each, likelihood, rows), each) for each in heads]
        ascent, state, head = min(solutions, key=_left_out_loss) if prior else solutions[0]
    raw_root = state.root.clone()
    raw_root.diagonal(dim1=-2, dim2=-1).log_()
    posterior = {"mean": state.mean, "raw_root": raw_root}
    at_prior = given | {name: torch.zeros_like(part) for name, part in posterior.items()}
    solution = head | posterior
    return at_prior | {name: solution[name] for name in names}, ascent, state


def _posterior(kernel, head, likelihood, rows, mean=None, root=None):
    """Return the ascent at the hyperparameters of a head, and its state after some sweeps."""
    basis = WhitenedBasis(torch_kernel(kernel), head["theta"], head["Z"], _JITTER)
    ascent = CoordinateAscent(likelihood.at(head["noise"]), basis, rows)
    state = ascent.init(mean, root)
    for _ in range(_MAX_SWEEPS):
        ascent.natural_sweep(state)
        if state.change < _TOL:
            break
    return ascent, state


def _left_out_loss(solution):
    """Return the log loss of calibrated leave-one-out predictions, given an ascent and a state."""
    ascent, state, *_ = solution
    mean, var, targets, weights = leave_one_out(ascent, state)
    prior = Calibration.prior(mean.shape[1], targets, weights)
    return prior.updated(mean, var, targets, weights).log_loss
