"""Design of a hybrid network, from the parameters of its estimator, and its initial weights."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel

from .._csr import array_of
from .._data import WeightedDataset
from .._distributed import raise_on_all_ranks
from .._hyperparameters.default_kernels import deviations
from .._hyperparameters.priors import SignalPrior
from .._isolation import PrivateRandom
from .._sites import SiteLikelihood
from .._torch_kernels import torch_kernel
from .._variational import MEAN_VARIANCE
from ..inducing import select_inducing_points
from ._head import solve_head
from ._network import (
    EXTRACTED_ROWS,
    HEAD,
    FeatureMap,
    HybridNetwork,
    average_buffers,
    raw_features,
)
from ._state import HybridLatents, build_extractor

_INIT_ROWS = 4096  # the head starts from the features of so many rows


@dataclass
class NetworkDesign:
    """A network before it has weights: extractor, kernel and likelihood."""

    module: object  # extractor of features; None is the default one, on standardized features
    build: partial  # returns an untrained extractor
    row_shape: tuple  # of a row as the extractor takes it
    # Kernel of the features without its noise; None is a squared exponential, plus a constant where
    # training starts from a solved mean
    kernel: Kernel | None
    prior_variance: float  # initial variance of the squared exponential
    likelihood: SiteLikelihood
    noise_bounds: tuple  # of two floats: bounds of the logarithms of the likelihood's parameters
    # Parameters of the head that training starts with solved, see `solve_head`. The others start at
    # the prior.
    solved: tuple

    @classmethod
    def of(cls, estimator, prior_variance, solved=HEAD):
        """Return the design of an estimator whose number of features is known."""
        module, n_features = estimator.module, estimator.n_features_in_
        kernel = estimator.kernel
        return cls(
            module,
            partial(build_extractor, module, estimator.module_params, n_features, "mean" in solved),
            (n_features,) if module is None else estimator.input_shape_,
            None if kernel is None else estimator._noise_model.split(clone(kernel))[0],
            prior_variance,
            estimator._make_likelihood(),
            estimator._noise_model.limits(),
            solved,
        )

    def start_kernel(self, n_outputs):
        """Return the initial kernel of so many features."""
        if self.kernel is not None:
            return self.kernel
        variance = ConstantKernel(self.prior_variance, (1e-3, 1e5))
        smooth = variance * RBF(np.sqrt(2 * n_outputs), (1e-2, 1e3))
        if "mean" not in self.solved:  # training from the prior would take long to learn a constant
            return smooth
        return smooth + ConstantKernel(MEAN_VARIANCE, "fixed")

    def model(self, kernel, seed, threshold, is_initial=False):
        """Return a `HybridLatents` without weights."""
        return HybridLatents(self.build, self.row_shape, kernel, {}, seed, threshold, is_initial)

    def initial(self, problem, rows, threshold, n_inducing):
        """Return a `HybridLatents` without weights, the initial network, and what its head is of.

        The last is the ascent and the state that `solve_head` returns. The ``rows`` are those of
        the problem that are trained on; see `split` for the threshold.
        """
        seed, random_state = problem.seed, problem.random_state
        model = self.model(None, seed, threshold)
        extractor = model.extractor().to(rows.device, rows.dtype)
        if self.module is None:
            extractor[0].mean.copy_(torch.tensor(problem.scaler.mean_))
            extractor[0].scale.copy_(torch.tensor(deviations(problem.scaler)))
        if rows.n_rows > _INIT_ROWS:
            units = rows.units()
            chosen = random_state.choice(len(units), _INIT_ROWS, replace=False)
            rows = rows.of_units(units, chosen)
        before = {name: buffer.clone() for name, buffer in extractor.named_buffers()}
        with torch.no_grad(), PrivateRandom(seed):
            with raise_on_all_ranks():
                raw = self._raw_features(extractor, rows)
            raw, *labels = rows.collect(raw, rows.targets, rows.weights)
            average_buffers(extractor, before, rows)
            moments = raw.mean(0), raw.var(0, correction=0)
            network = FeatureMap(extractor, self.row_shape, *moments).eval()
            features = network.normalizer(raw).double().cpu().numpy()
        Z = select_inducing_points(features, n_inducing, random_state=random_state)
        model.kernel = self.start_kernel(features.shape[1])
        parts = features, *map(array_of, labels), rows.device, torch.float64
        rows = WeightedDataset(*parts, shared=False)
        prior = None
        if self.kernel is None:
            prior = SignalPrior(model.kernel, rows.device, self.likelihood.n_latents)
        low, high = self.noise_bounds
        if "mean" not in self.solved and len(initial := self.likelihood.parameters()):
            # A mean of zero leaves more to the noise than that of the solution.
            low = max(low, min(initial.min().item(), high))
        parts = model.kernel, torch.tensor(Z), self.likelihood, rows, (low, high), prior
        head, *solution = solve_head(*parts, self.solved)
        network = HybridNetwork(network, torch_kernel(model.kernel), head).to(rows.device)
        return model, network, solution

    def _raw_features(self, extractor, rows):
        """Return the features of this rank's rows; of shape (0,) if there are none."""
        if not len(rows):
            return torch.empty(0, dtype=rows.dtype, device=rows.device)
        parts = torch.arange(len(rows)).tensor_split(math.ceil(len(rows) / EXTRACTED_ROWS))
        raw = [raw_features(extractor, rows.take(i)[0], self.row_shape) for i in parts]
        return torch.cat(raw)
