"""Start of the head: its posterior and kernel on the features of the untrained network."""

import torch

from .._inference.coordinate_ascent import CoordinateAscent
from .._inference.elbo_learning import ElboLearning
from .._optim import Free
from .._posteriors import WhitenedBasis
from .._sites import LikelihoodSites
from .._torch_kernels import theta_bounds, torch_kernel
from ._network import HEAD

_JITTER = 1e-6  # as of the bases of `HybridNetwork`
_TOL = 1e-2  # of the ELBO in nats per row, and of the change of the means
_MAX_SWEEPS = 20


def solve_head(kernel, Z, likelihood, rows, noise_bounds, prior=None, names=HEAD):
    """Return a head that explains rows of features, and the ascent and the state it comes from.

    Gaussian processes on the features of a random network are already good models: they are small
    where features explain nothing, and know the class frequencies or the noise of the targets.
    From a head at its prior, training fits single rows before it has learned these.

    ``kernel``, with its initial values, and the inducing points ``Z`` (m, D) are of the features,
    which are the ``rows``, in float64. ``noise_bounds`` are of the logarithms of the likelihood's
    parameters, and ``prior`` is a `SignalPrior` of theta. These are learned if the likelihood is a
    proper one: the objective of a pseudo-likelihood is no bound on the evidence. The head is a dict
    of tensors by the names of `HEAD`. Those among ``names`` are of the solution, others of the
    prior.
    """
    given = {"theta": torch.tensor(kernel.theta), "noise": likelihood.parameters(), "Z": Z}
    given = {name: value.to(rows.device) for name, value in given.items()}
    head = dict(given)
    kernel_of_rows, mean, root = torch_kernel(kernel), None, None
    free = [name for name in ("theta", "noise") if len(head[name])]
    if free and isinstance(likelihood, LikelihoodSites):
        bounds, units = theta_bounds(kernel, rows.device), torch.ones_like(head["Z"][0])
        parts = Free(free, bounds, units, noise_bounds, prior)
        learning = ElboLearning(likelihood, (kernel_of_rows,), rows, _JITTER, parts, _TOL)
        found = learning.init(head)
        learning.step(found)
        head |= {name: getattr(found, name) for name in free}
        mean, root = found.mean, found.root
    basis = WhitenedBasis(kernel_of_rows, head["theta"], head["Z"], _JITTER)
    ascent = CoordinateAscent(likelihood.at(head["noise"]), basis, rows)
    state = ascent.init(mean, root)
    for _ in range(_MAX_SWEEPS):
        ascent.natural_sweep(state)
        if state.change < _TOL:
            break
    raw_root = state.root.clone()
    raw_root.diagonal(dim1=-2, dim2=-1).log_()
    posterior = {"mean": state.mean, "raw_root": raw_root}
    at_prior = given | {name: torch.zeros_like(part) for name, part in posterior.items()}
    solution = head | posterior
    return at_prior | {name: solution[name] for name in names}, ascent, state
