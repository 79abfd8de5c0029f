"""Design of a hybrid network, from the parameters of its estimator, and its initial weights."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel

from .._distributed import run_on_all_ranks
from .._inference.natural_gradient import START_STD
from .._isolation import PrivateRandom
from .._posteriors import WhitenedBasis
from .._sites import SiteLikelihood
from .._torch_kernels import torch_kernel
from ..inducing import select_inducing_points
from ._network import (
    EXTRACTED_ROWS,
    FeatureMap,
    HybridNetwork,
    average_buffers,
    raw_features,
)
from ._state import HybridLatents, build_extractor

_INIT_ROWS = 4096  # inducing points are chosen from the features of so many rows


@dataclass
class NetworkDesign:
    """A network before it has weights: extractor, kernel and likelihood.

    Attributes
    ----------
    module : callable or None
        Extractor of features; None is the default one, on standardized features.
    build : callable
        Function that returns an untrained extractor.
    row_shape : tuple of int
        Shape of a row as the extractor takes it.
    kernel : Kernel or None
        Kernel of the features without its noise; None is a squared exponential.
    prior_variance : float
        Initial variance of the default kernel.
    likelihood : SiteLikelihood
    """

    module: object
    build: partial
    row_shape: tuple
    kernel: Kernel | None
    prior_variance: float
    likelihood: SiteLikelihood

    @classmethod
    def of(cls, estimator, prior_variance):
        """Return the design of an estimator whose number of features is known."""
        module, n_features = estimator.module, estimator.n_features_in_
        kernel = estimator.kernel
        return cls(
            module,
            partial(build_extractor, module, estimator.module_params, n_features),
            (n_features,) if module is None else estimator.input_shape_,
            None if kernel is None else estimator._noise_model.split(clone(kernel))[0],
            prior_variance,
            estimator._make_likelihood(),
        )

    def start_kernel(self, n_outputs):
        """Return the initial kernel of so many features."""
        if self.kernel is not None:
            return self.kernel
        variance = ConstantKernel(self.prior_variance, (1e-3, 1e5))
        return variance * RBF(np.sqrt(2 * n_outputs), (1e-2, 1e3))

    def model(self, kernel, seed, threshold):
        """Return a `HybridLatents` without weights."""
        return HybridLatents(self.build, self.row_shape, kernel, {}, seed, threshold)

    def initial(self, problem, rows, threshold, n_inducing):
        """Return a `HybridLatents` without weights, and the initial network.

        Parameters
        ----------
        problem : Problem
        rows : WeightedDataset
            Training rows, a part of those of the problem.
        threshold : float
            See `split`.
        n_inducing : int
        """
        seed, random_state = problem.seed, problem.random_state
        model = self.model(None, seed, threshold)
        extractor = model.extractor().to(rows.device, rows.dtype)
        if self.module is None:
            extractor[0].mean.copy_(torch.tensor(problem.scaler.mean_))
            extractor[0].scale.copy_(torch.tensor(problem.scaler.scale_))
        if rows.n_rows > _INIT_ROWS:
            units = rows.units()
            chosen = random_state.choice(len(units), _INIT_ROWS, replace=False)
            rows = rows.of_units(units, chosen)
        before = {name: buffer.clone() for name, buffer in extractor.named_buffers()}
        with torch.no_grad(), PrivateRandom(seed):
            raw = run_on_all_ranks(self._raw_features, extractor, rows)
            (raw,) = rows.collect(raw)
            average_buffers(extractor, before, rows)
            moments = raw.mean(0), raw.var(0, correction=0)
            network = FeatureMap(extractor, self.row_shape, *moments).eval()
            features = network.normalizer(raw).double().cpu().numpy()
        Z = select_inducing_points(features, n_inducing, random_state=random_state)
        model.kernel = self.start_kernel(features.shape[1])
        kernel, head = torch_kernel(model.kernel), self._head(model.kernel, Z, problem.generator)
        return model, HybridNetwork(network, kernel, head).to(rows.device)

    def _raw_features(self, extractor, rows):
        """Return the features of this rank's rows; of shape (0,) if there are none."""
        if not len(rows):
            return torch.empty(0, dtype=rows.dtype, device=rows.device)
        parts = torch.arange(len(rows)).tensor_split(math.ceil(len(rows) / EXTRACTED_ROWS))
        raw = [raw_features(extractor, rows.take(i)[0], self.row_shape) for i in parts]
        return torch.cat(raw)

    def _head(self, kernel, Z, generator):
        """Return the initial parameters of the head, by name."""
        theta, Z = torch.tensor(kernel.theta), torch.tensor(Z)
        shape = self.likelihood.n_latents, WhitenedBasis(torch_kernel(kernel), theta, Z).size
        draws = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return {
            "theta": theta,
            "noise": self.likelihood.parameters(),
            "Z": Z,
            "mean": START_STD * draws,
            "raw_root": torch.zeros(*shape, shape[1], dtype=torch.float64),
        }
