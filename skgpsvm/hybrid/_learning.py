"""Joint training of extractor and head by backpropagation, an epoch a step."""

import math
from contextlib import nullcontext

import torch

from .._isolation import PrivateRandom
from .._optim import minibatches
from .._sites import batch_loss

_LEAST_STEPS = 20  # of an epoch that counts as one without improvement
_HEAD_RATE = 10.0  # of the head's steps, in those of the extractor


class JointTraining:
    r"""Adam on all parameters, at rates that fall to zero along a cosine.

    The state is a dict: ``weights`` (the network's state dict), ``adam``, ``generator``,
    ``n_epochs``, and of early stopping ``best`` (weights), ``least_losses`` and ``n_worse`` epochs.

    Parameters
    ----------
    network : HybridNetwork
    sites : SiteLikelihood
    rows : Rows
    bounds : Tensor of shape (k, 2)
        Of theta.
    max_iter, batch_size : int
    learning_rate : float
        Of the extractor; the head's is ten times that.
    augmentation : callable or None
    noise_bounds : tuple of two floats
        Of the logarithms of the noise.
    patience : int or None
        Epochs, of 20 steps at least, in which no loss of the held-out rows fell, after which
        training ends; None trains on.
    held_out_losses : callable
        One or more losses of the held-out rows by the network as it is; the best weights are those
        of the least first one.
    generator : torch.Generator

    Notes
    -----
    Source: Wistuba and Rawat (2018), section 3.4.
    """

    def __init__(
        self,
        network,
        sites,
        rows,
        bounds,
        *,
        max_iter,
        batch_size,
        learning_rate,
        augmentation,
        noise_bounds,
        patience,
        held_out_losses,
        generator,
    ):
        self.network, self.sites, self.rows = network, sites, rows
        self.generator = generator
        self.max_iter, self.batch_size = max_iter, batch_size
        self.learning_rate, self._augmentation = learning_rate, augmentation
        self._patience, self._held_out_losses = patience, held_out_losses
        self._random = PrivateRandom(0)  # that of the epoch
        self._bounds = {"theta": bounds.unbind(-1), "noise": noise_bounds}

    def initial(self):
        """The state from which `step` starts."""
        return {
            "weights": self._weights(),
            "adam": None,
            "generator": self.generator.get_state(),
            "n_epochs": 0,
            "best": None,
            "least_losses": torch.tensor(math.inf),
            "n_worse": 0,
        }

    def step(self, state):
        """One epoch; returns the mean of the objective's estimates."""
        self.at(state)
        optimizer = self._optimizer()
        if state["adam"]:
            optimizer.load_state_dict(state["adam"])
        self.generator.set_state(state["generator"])
        seed = int(torch.randint(2**62, (), generator=self.generator))
        batches = minibatches(len(self.rows), self.batch_size, self.generator)
        total = 0.0
        self._random = PrivateRandom(seed)
        with torch.enable_grad():
            self.network.train()
            for i, index in enumerate(batches):
                progress = (state["n_epochs"] + i / len(batches)) / self.max_iter
                for group in optimizer.param_groups:
                    group["lr"] = group["rate"] * 0.5 * (1 + math.cos(math.pi * progress))
                optimizer.zero_grad()
                objective = self._objective(*self._batch(index))
                # Once an epoch, since a backward pass takes twice as long under it.
                with nullcontext() if i else self._random.refusing():
                    (-objective / self.rows.total_weight).backward()
                optimizer.step()
                self._clamp()
                total += objective.item()
        state |= {
            "weights": self._weights(),
            "adam": optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "n_epochs": state["n_epochs"] + 1,
        }
        if self._patience is not None:
            self._compare(state)
        sound = all(value.isfinite().all() for value in state["weights"].values())
        return total / len(batches) if sound else math.nan

    def at(self, state):
        """The network of a state."""
        self.network.load_state_dict(state["weights"])
        return self.network.eval()

    def best(self, state):
        """The network that early stopping keeps, else that of the last epoch."""
        if state["best"] is not None:
            state = {"weights": state["best"]}
        return self.at(state)

    def finished(self, state):
        """Whether all losses of the held-out rows have stopped falling."""
        if self._patience is None:
            return False
        n_batches = math.ceil(len(self.rows) / self.batch_size)
        return state["n_worse"] >= self._patience * math.ceil(_LEAST_STEPS / n_batches)

    def _compare(self, state):
        losses = torch.tensor(self._held_out_losses(self.network.eval()), dtype=torch.float64)
        fell = losses < state["least_losses"]
        if fell[0]:
            state["best"] = state["weights"]
        state["least_losses"] = losses.fmin(state["least_losses"])
        state["n_worse"] = 0 if fell.any() else state["n_worse"] + 1

    def _objective(self, X, y, weights):
        """Its estimate from a batch, in nats."""
        with self._random:
            features = self.network.features(X)
        posterior = self.network.posterior()
        A, residual = posterior.basis(features)
        likelihood = self.sites.at(self.network.noise)
        loss = batch_loss(likelihood, A, residual, y, posterior.mean, posterior.root)
        return -len(self.rows) / len(y) * (weights * loss).sum() - posterior.kl()

    def _batch(self, index):
        X, y, weights = self.rows.take(index)
        if self._augmentation is not None:
            X = X.reshape(len(X), *self.network.features.row_shape)
            shape = X.shape
            with self._random:
                X = self._augmentation(X)
            if not isinstance(X, torch.Tensor) or X.shape != shape:
                came = f"shape {tuple(X.shape)}" if isinstance(X, torch.Tensor) else f"{type(X)}"
                raise ValueError(
                    f"augmentation gave {came} for a batch of shape {tuple(shape)}; it must give a "
                    "tensor of the same shape."
                )
        return X, y, weights

    def _optimizer(self):
        groups = (
            (self.network.features.parameters(), self.learning_rate),
            (self.network.head(), _HEAD_RATE * self.learning_rate),
        )
        return torch.optim.Adam(
            [{"params": list(parameters), "rate": rate} for parameters, rate in groups]
        )

    @torch.no_grad()
    def _clamp(self):
        for name, (low, high) in self._bounds.items():
            getattr(self.network, name).clamp_(low, high)

    def _weights(self):
        return {name: value.clone() for name, value in self.network.state_dict().items()}
