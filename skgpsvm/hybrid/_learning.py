"""Joint training of the extractor and the Gaussian-process head by backpropagation."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from .._distributed import raise_on_all_ranks, rank
from .._fitting import Stage, State
from .._isolation import PrivateRandom
from .._objectives import minibatch_elbo
from .._optim import adam_step
from ._network import average_buffers

# Learning rate of the head, relative to that of the extractor. With half of it the losses of two
# cases of ``benchmarks/constants.py`` are .007 and .044 larger, with twice as much .004 and .048
# smaller (2026-11-27), which is within the noise of seeds, .06 and .13.
_HEAD_RATE = 10.0


@dataclass(kw_only=True)
class TrainingState(State):
    """State of `JointTraining`."""

    weights: dict  # of str to Tensor: state dict of the network
    # Memory of `adam_step` for each group of parameters; empty before the first epoch
    adam: list = field(default_factory=list)
    generator: torch.Tensor  # state of the random generator
    n_epochs: int = 0
    # Weights with the lowest first validation loss, the initial ones or those after an epoch; None
    # without early stopping
    best_weights: dict | None = None
    # () or (k,): lowest validation losses so far; one infinity without early stopping
    lowest_losses: torch.Tensor
    n_worse: int = 0  # successive epochs in which no validation loss fell


class JointTraining(Stage):
    """Stage that trains all parameters by Adam, one epoch per step.

    The learning rates follow a cosine over ``max_iter`` epochs, from ``learning_rate`` of the
    extractor and ten times as much of the head to zero. ``bounds`` has the lower and upper bounds
    of ``theta`` and ``noise``, and ``augmentation`` takes a batch and returns another. For early
    stopping, ``validation_losses`` takes the network and returns a list. The weights with the
    lowest first loss are kept, the initial ones or those after an epoch, and training ends after
    ``patience`` successive epochs in which no loss fell.

    Where ranks share the rows, each has its share of every minibatch, and takes steps by the sum of
    all gradients. Source: Wistuba and Rawat (2018), section 3.4.
    """

    def __init__(
        self,
        network,
        likelihood,
        rows,
        *,
        bounds,
        max_iter,
        batch_size,
        learning_rate,
        augmentation,
        validation_losses,
        patience,
        generator,
    ):
        self.network, self.likelihood, self.rows = network, likelihood, rows
        self.max_iter, self.batch_size, self.learning_rate = max_iter, batch_size, learning_rate
        self.validation_losses, self.patience = validation_losses, patience
        self.generator, self._bounds, self._augmentation = generator, bounds, augmentation
        self._random = PrivateRandom(0)  # seeded anew in each epoch

    def init(self):
        """Return the state before the first epoch, a `TrainingState`."""
        state = TrainingState(
            weights=self._weights(),
            generator=self.generator.get_state(),
            lowest_losses=torch.tensor(math.inf),
        )
        if self.validation_losses is not None:
            self._validate(state)
        return state

    def step(self, state):
        """Train for one epoch; the objective is the mean of the estimates from its batches.

        The objective is NaN if a weight is no longer finite.
        """
        self.at(state.weights)
        groups = self._groups()
        memory = state.adam or [None] * len(groups)
        before = state.weights
        self.generator.set_state(state.generator)
        seed = int(torch.randint(2**62, (), generator=self.generator))
        batches = self.rows.minibatches(self.batch_size, self.generator)
        total = 0.0
        self._random = PrivateRandom(seed + rank())
        with torch.enable_grad():
            self.network.train()
            for i, index in enumerate(batches):
                progress = (state.n_epochs + i / len(batches)) / self.max_iter
                decay = 0.5 * (1 + math.cos(math.pi * progress))
                self.network.zero_grad()
                with raise_on_all_ranks():
                    X, y, weights = self._batch(index)
                    with self._random:
                        raw = self.network.features.raw(X)
                objective = self._objective(raw, y, weights)
                # Only in the first step: a backward pass takes twice as long in this context.
                with nullcontext() if i else self._random.refusing():
                    (objective / self.rows.total_weight).backward()
                gradients = self.rows.sum(*(_gradient(parameters) for parameters, _ in groups))
                steps = zip(groups, gradients, memory, strict=True)
                memory = [_ascend(*group, gradient, each, decay) for group, gradient, each in steps]
                with torch.no_grad():
                    for name, (low, high) in self._bounds.items():
                        getattr(self.network, name).clamp_(low, high)
                total = total + objective.detach().double()
        average_buffers(self.network, before, self.rows)
        (total,) = self.rows.sum(total)
        state.weights, state.adam = self._weights(), memory
        state.generator = self.generator.get_state()
        state.n_epochs += 1
        if self.validation_losses is not None:
            self._validate(state)
        finite = all(value.isfinite().all() for value in state.weights.values())
        state.objective = (total / len(batches)).item() if finite else math.nan

    def at(self, weights):
        """Return the network with some weights, in evaluation mode."""
        self.network.load_state_dict(weights)
        return self.network.eval()

    def converged(self, state):
        return state.n_worse >= self.patience

    def _validate(self, state):
        """Compare the validation losses of the network with the lowest so far."""
        losses = self.validation_losses(self.network.eval())
        losses = torch.tensor(losses, dtype=torch.float64)
        fell = losses < state.lowest_losses
        if fell[0]:
            state.best_weights = state.weights
        state.lowest_losses = losses.fmin(state.lowest_losses)
        state.n_worse = 0 if fell.any() else state.n_worse + 1

    def _objective(self, raw, y, weights):
        """Return this rank's part of the estimate of the ELBO from raw features (b, D), in nats."""
        features = self.network.features.normalized(raw)
        posterior = self.network.posterior()
        likelihood = self.likelihood.at(self.network.noise)
        moments = posterior.mean, posterior.root
        return minibatch_elbo(likelihood, posterior.basis(features), y, weights, moments, self.rows)

    def _batch(self, index):
        """Return inputs, augmented, targets and weights of a batch."""
        X, y, weights = self.rows.take(index)
        if self._augmentation is not None and len(X):
            X = X.reshape(len(X), *self.network.features.row_shape)
            shape = X.shape
            with self._random:
                X = self._augmentation(X)
            if not isinstance(X, torch.Tensor) or X.shape != shape:
                result = f"shape {tuple(X.shape)}" if isinstance(X, torch.Tensor) else f"{type(X)}"
                raise ValueError(
                    f"augmentation returned {result} for a batch of shape {tuple(shape)}; it must "
                    "return a tensor of the same shape."
                )
        return X, y, weights

    def _groups(self):
        """Return the parameters in lists of one dtype and learning rate, and these rates."""
        groups, rate = {}, self.learning_rate
        for parameter in self.network.features.parameters():
            groups.setdefault((parameter.dtype, rate), []).append(parameter)
        for parameter in self.network.parameters(recurse=False):  # of the head
            groups.setdefault((parameter.dtype, _HEAD_RATE * rate), []).append(parameter)
        return [(parameters, rate) for (_, rate), parameters in groups.items()]

    def _weights(self):
        return {name: value.clone() for name, value in self.network.state_dict().items()}


def _gradient(parameters):
    """Return the gradients of some parameters, as one vector."""
    gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)
    return torch.cat([gradient.ravel() for gradient in gradients])


@torch.no_grad()
def _ascend(parameters, rate, gradient, memory, decay):
    """Take a step of Adam on some parameters, given their gradient; return its new memory."""
    step, memory = adam_step(memory, gradient.to(parameters[0].dtype), rate * decay)
    parts = step.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter += part.view_as(parameter)
    return memory
