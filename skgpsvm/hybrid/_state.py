"""The fitted hybrid model: arrays, and the network that is built from them."""

import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from sklearn.gaussian_process.kernels import Kernel
from torch import nn

from .._fitted_models import FittedModel
from .._isolation import PrivateRandom
from .._torch_kernels import torch_kernel
from ._extractors import MLP
from ._network import HEAD, FeatureMap, HybridNetwork, NetworkPosterior, Standardize


@dataclass
class HybridLatents(FittedModel):
    """Fitted `HybridNetwork`, as arrays."""

    build: partial  # returns an untrained extractor
    row_shape: tuple  # of a row as the extractor takes it
    kernel: Kernel  # of the normalized features
    weights: dict  # of str to ndarray: state dict of the network
    # Seed with which the extractor is built, so that random values that are not in its state dict
    # are the same each time
    seed: int
    threshold: float  # observations whose `observed_hashes` are at most this are held out
    is_initial: bool = False  # whether it is the initial network, which training has not improved

    @property
    def n_latents(self):
        """Number of latent functions, c."""
        return len(self.weights["mean"])

    def comparable(self):
        return replace(self, build=None)  # the module may be a lambda

    def make_posterior(self, device):
        return NetworkPosterior(self.frozen_network(device))

    def frozen_network(self, device):
        """Return the network in evaluation mode; its weights take no gradients."""
        return self.network(device).eval().requires_grad_(False)

    def network(self, device):
        """Return the network on a device, for further training."""
        weights = {name: torch.tensor(value) for name, value in self.weights.items()}
        moments = [weights[f"features.normalizer.running_{name}"] for name in ("mean", "var")]
        extractor = self.extractor().to(moments[0].dtype)
        features = FeatureMap(extractor, self.row_shape, *moments)
        head = {name: weights[name] for name in HEAD}
        network = HybridNetwork(features, torch_kernel(self.kernel), head)
        network.load_state_dict(weights)
        return network.to(device)

    def extractor(self):
        """Return a new, untrained extractor."""
        with PrivateRandom(self.seed):
            return copy.deepcopy(self.build())

    def at(self, network):
        """Return a copy with the weights of a network."""
        state = network.state_dict()
        weights = {name: value.cpu().numpy().copy() for name, value in state.items()}
        return replace(self, kernel=self.kernel.clone_with_theta(weights["theta"]), weights=weights)


def build_extractor(module, params, n_inputs, linear):
    """Return the extractor that the parameters of an estimator describe, a Module.

    ``linear`` is the default of the parameter of `MLP`, which ``params`` can override.
    """
    if module is None:
        neutral = Standardize(torch.zeros(n_inputs), torch.ones(n_inputs))
        return nn.Sequential(neutral, MLP(n_inputs, **{"linear": linear, **(params or {})}))
    factory = callable(module) and not isinstance(module, nn.Module)
    made = module(**(params or {})) if factory else None
    if not isinstance(made, nn.Module):
        raise TypeError(
            f"module={module!r} must be a torch.nn.Module class or a function that returns a new "
            "Module, so that every fit and clone has its own weights. Set its arguments by "
            "module_params."
        )
    return made
