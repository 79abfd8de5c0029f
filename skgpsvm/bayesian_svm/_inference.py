"""The two ways to the posterior: coordinate ascent, alternating with gradient steps, and Adam."""

import torch

from .._linalg import gaussian_kl
from .._posteriors import WhitenedBasis
from .._training import minibatches
from ._ascent import batch_sites

_SWEEPS_BETWEEN = 3
_STEPS_BETWEEN = 10
_STEP_ROWS = 1024
_EPOCH_ROWS = 256
_LEARNING_SHARE = 0.7


class AdamSteps:
    """Adam on the objective of minibatches, over some of theta, Z, mean and raw root.

    The state is a dict: the tensors by name, ``adam`` (the optimiser's state, or None) and
    ``generator`` (the state of the random generator).

    Parameters
    ----------
    hinge : BinarySites or ContrastSites
    kernel : TorchKernel
    rows : Rows
    trained : tuple of str
        Names of the tensors to train.
    learning_rate : float
    bounds : Tensor of shape (k, 2)
        Of theta.
    scale : Tensor of shape (d,)
        Unit of the steps on the inducing points, for each feature.
    """

    def __init__(self, hinge, kernel, rows, trained, learning_rate, bounds, scale):
        self.hinge, self.kernel, self.rows = hinge, kernel, rows
        self.trained, self.learning_rate = trained, learning_rate
        self.bounds, self.units = bounds, {"Z": scale}

    @torch.enable_grad()
    def run(self, state, batches):
        """One step for each minibatch; returns the mean of the objective's estimates."""
        units = {name: self.units.get(name, 1.0) for name in self.trained}
        leaves = {name: (state[name] / unit).requires_grad_() for name, unit in units.items()}
        optimizer = torch.optim.Adam(leaves.values(), lr=self.learning_rate)
        if state["adam"]:
            optimizer.load_state_dict(state["adam"])
        total = 0.0
        for index in batches:
            optimizer.zero_grad()
            tensors = {name: leaf * units[name] for name, leaf in leaves.items()}
            objective = self._objective({**state, **tensors}, index)
            (-objective / self.rows.weights.sum()).backward()
            optimizer.step()
            if "theta" in leaves:
                with torch.no_grad():
                    leaves["theta"].clamp_(*self.bounds.T)
            total += objective.item()
        state.update({name: leaf.detach() * units[name] for name, leaf in leaves.items()})
        state["adam"] = optimizer.state_dict()
        return total / len(batches)

    def _objective(self, tensors, index):
        X, y, weights = self.rows.take(index)
        A, residual = WhitenedBasis(self.kernel, tensors["theta"], tensors["Z"])(X)
        mean = tensors["mean"]
        root = upper_root(tensors["raw_root"]) if "raw_root" in self.trained else tensors["root"]
        sites, _, _ = batch_sites(self.hinge, A, residual, y, mean, root)
        kl = gaussian_kl(mean, root).sum()
        return -len(self.rows) / len(y) * (weights * sites.loss).sum() - kl


class _Inference:
    """A way to the posterior; the state of a fit is a dict that `step` changes.

    Parameters
    ----------
    ascent : CoordinateAscent
    adam : AdamSteps
    max_iter : int
    tol : float
    batch_size : int or None
    generator : torch.Generator
    """

    def __init__(self, ascent, adam, max_iter, tol, batch_size, generator):
        self.ascent, self.adam = ascent, adam
        self.max_iter, self.tol = max_iter, tol
        self.batch_size, self.generator = batch_size, generator

    def at(self, state):
        """The coordinate ascent, at the basis of a state."""
        basis = self.ascent.basis
        if not (torch.equal(basis.theta, state["theta"]) and torch.equal(basis.Z, state["Z"])):
            self.ascent.basis = WhitenedBasis(self.adam.kernel, state["theta"], state["Z"])
        return self.ascent

    def _minibatches(self, batch_size):
        return minibatches(len(self.ascent.rows), batch_size, self.generator)

    def converged(self, state):
        """Whether an iteration hardly moved the means."""
        return state["change"] < self.tol


class CoordinateInference(_Inference):
    """Sweeps of coordinate ascent; every few of them, Adam steps on theta and Z with q held.

    Those steps hold the whitened posterior, so that the objective's divergence does not resist a
    change of the kernel. They end when 70 % of ``max_iter`` is spent.
    """

    def initial(self, theta, Z, mean=None, root=None):
        """The state from which `step` starts: at the prior, or at means and roots."""
        return {
            **self.ascent.initial(mean, root),
            "theta": theta,
            "Z": Z,
            "adam": None,
            "generator": self.generator.get_state(),
            "n_sweeps": 0,
        }

    def _learning(self, state):
        return bool(self.adam.trained) and state["n_sweeps"] < _LEARNING_SHARE * self.max_iter

    def step(self, state):
        """One sweep; returns the objective."""
        self.generator.set_state(state["generator"])
        if self._learning(state) and state["n_sweeps"] % _SWEEPS_BETWEEN == _SWEEPS_BETWEEN - 1:
            self.adam.run(state, [self._minibatches(_STEP_ROWS)[0] for _ in range(_STEPS_BETWEEN)])
        ascent = self.at(state)
        if self.batch_size is None:
            objective = ascent.sweep(state)
        else:
            objective = ascent.stochastic_sweep(state, self._minibatches(self.batch_size))
        state["n_sweeps"] += 1
        state["generator"] = self.generator.get_state()
        return objective

    def converged(self, state):
        """Whether a sweep hardly moved the means, and no more steps are to come."""
        return not self._learning(state) and super().converged(state)


class GradientInference(_Inference):
    """Adam on everything, an epoch a step. Source: Wistuba and Rawat (2018), section 3.2."""

    def initial(self, theta, Z, mean=None, root=None):
        """The state from which `step` starts; small random means break the tie of the classes."""
        shape = (self.ascent.hinge.n_latents, self.ascent.basis.size)
        if mean is None:
            mean = 0.01 * torch.randn(*shape, generator=self.generator, dtype=torch.float64)
            root = torch.eye(shape[1], dtype=torch.float64).expand(shape[0], -1, -1)
        root = root.to(Z.device)
        log_diagonal = root.diagonal(dim1=1, dim2=2).log()
        return {
            "theta": theta,
            "Z": Z,
            "mean": mean.to(Z.device),
            "root": root,
            "raw_root": root.diagonal_scatter(log_diagonal, dim1=1, dim2=2),
            "adam": None,
            "generator": self.generator.get_state(),
            "change": float("inf"),
        }

    def step(self, state):
        """One epoch; returns the mean of the objective's estimates."""
        before = state["mean"]
        self.generator.set_state(state["generator"])
        objective = self.adam.run(state, self._minibatches(self.batch_size or _EPOCH_ROWS))
        state["generator"] = self.generator.get_state()
        state["root"] = upper_root(state["raw_root"])
        state["change"] = ((state["mean"] - before).norm() / state["mean"].norm()).item()
        return objective


def upper_root(raw):
    """An upper triangular matrix with positive diagonal from a free one, batched."""
    diagonal = raw.diagonal(dim1=-2, dim2=-1).exp()
    return raw.triu(1) + torch.diag_embed(diagonal)
