"""Base class of hybrid estimators: inputs of any rank, training, held-out rows, weight files."""

import copy
import math
from abc import ABC, abstractmethod
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, validate_data
from torch.utils.data import Dataset

from .._distributed import refuse_ranks
from .._estimators import FOLLOWED, GPEstimator
from .._isolation import PrivateRandom, isolated
from .._parameters import ALWAYS, where
from .._posteriors import WhitenedBasis
from .._problem import Fitted
from .._torch_kernels import theta_bounds, torch_kernel
from ..inducing import select_inducing_points
from ._data import DatasetArray
from ._learning import EarlyStopping, JointTraining
from ._network import (
    EXTRACTED_ROWS,
    FeatureMap,
    HybridNetwork,
    Predictor,
    chunk_rows,
    raw_features,
)
from ._state import HybridLatents, build_extractor, row_hashes
from ._weights import WeightsFile, check_values, checked_attributes, skeleton, to_json, write

_INIT_ROWS = 4096  # inducing points are chosen from the features of so many rows
_NONE_HELD = -1.0  # threshold below the hash of any row
_START_STD = 0.01  # initial posterior means are random, to break the symmetry of the classes
# With batch_size=None: the number of steps in an epoch, and the limits of the batch size.
_STEPS, _BATCH_SIZES = 10, (16, 128)
_USES = {"n_iter_no_change": where(early_stopping=True)}
_FOLLOWED = {
    "fit": FOLLOWED
    | dict.fromkeys(("augmentation", "batch_size", "learning_rate", "n_iter_no_change"), ALWAYS)
}


class LatentMoments(NamedTuple):
    """Latent moments at held-out rows, in float64.

    Attributes
    ----------
    mean, var : Tensor of shape (n, c)
    targets : Tensor of shape (n,) or (n, t)
    weights : Tensor of shape (n,)
    """

    mean: torch.Tensor
    var: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


class HybridEstimator(GPEstimator, ABC):
    """Base class of estimators whose latents are Gaussian processes of a network's features.

    A subclass provides the likelihood (`_make_likelihood`), the prior variance for a number of
    latents (`_prior_variance`), the losses of held-out rows (`_held_out_losses`), the fitted
    attributes that depend on them (`_held_out_attributes`) and the output of the module of
    `to_torch` (`_output`). ``_saved_attributes`` are the fitted attributes that its weight files
    have in addition to ``_saved_attributes_of_all``.
    """

    _uses, _followed = _USES, _FOLLOWED
    _saved_attributes = ()
    _saved_attributes_of_all = (
        "n_features_in_",
        "input_shape_",
        "validation_loss_",
        "objective_curve_",
        "n_iter_",
    )

    # Input

    @property
    def _chunk_rows(self):
        return chunk_rows(self.n_features_in_)

    def _validated(self, X, reset, **options):
        options["dtype"] = [np.float64, np.float32, np.uint8]
        if isinstance(X, Dataset):
            return self._validated_dataset(DatasetArray(X), reset, options)
        row_shape = None
        if _n_axes(X) > 2:
            X = np.asarray(X)
            row_shape = X.shape[1:]
            self._check_row_shape(row_shape, reset)
            X = X.reshape(len(X), math.prod(row_shape))
        checked = validate_data(self, X, reset=reset, **options)
        if reset:
            self._set_row_shape(row_shape)
        return checked

    def _validated_dataset(self, X, reset, options):
        self._check_row_shape(X.row_shape, reset)
        if reset:
            self.n_features_in_ = X.shape[1]
            self._set_row_shape(X.row_shape)
        if "y" not in options:
            return X
        y = X.targets() if options["y"] is None else options["y"]
        kinds = {name: options[name] for name in ("multi_output", "y_numeric") if name in options}
        y = validate_data(self, X="no_validation", y=y, reset=reset, **kinds)
        check_consistent_length(X, y)
        return X, y

    def _check_row_shape(self, row_shape, reset):
        known = self.input_shape if reset else self.input_shape_
        flat = len(row_shape) == 1 and known is not None and math.prod(known) == row_shape[0]
        if known is not None and not flat and tuple(known) != tuple(row_shape):
            raise ValueError(
                f"Rows of X have shape {tuple(row_shape)}; {type(self).__name__} takes rows of "
                f"shape {tuple(known)}, or flat rows of {math.prod(known)} features."
            )

    def _set_row_shape(self, row_shape):
        shape = self.input_shape
        if shape is not None and math.prod(shape) != self.n_features_in_:
            raise ValueError(
                f"input_shape={shape!r} has {math.prod(shape)} entries, but rows of X have "
                f"{self.n_features_in_} features."
            )
        self.input_shape_ = tuple(shape or row_shape or (self.n_features_in_,))

    def _torch_options(self, X):
        if self.dtype is None and X.dtype == np.uint8:
            X = np.empty(0, np.float32)
        return super()._torch_options(X)

    # Fitting

    def _check_parameters(self):
        for name in ("early_stopping", "warm_start"):
            self._check_bool(name)
        for name in ("n_inducing", "max_iter", "n_iter_no_change"):
            self._check_number(name, 1, integer=True)
        self._check_number("batch_size", 1, integer=True, optional=True)
        self._check_number("learning_rate", 0, above=True)
        shape, params = self.input_shape, self.module_params
        if shape is not None and not (
            isinstance(shape, (tuple, list))
            and all(isinstance(size, (int, np.integer)) and size > 0 for size in shape)
        ):
            raise ValueError(
                f"input_shape={shape!r} must be the shape of a row as the module takes it, a tuple "
                "of positive integers such as (1, 28, 28), or None."
            )
        if not (params is None or isinstance(params, dict)):
            raise TypeError(
                f"module_params={params!r} must be a dict of arguments of the module, or None."
            )
        self._check_number("validation_fraction", 0)
        if self.validation_fraction >= 1:
            raise ValueError(
                f"validation_fraction={self.validation_fraction!r} must be below 1: it is the "
                "share of the rows that are held out."
            )
        if self.early_stopping and not self.validation_fraction:
            raise ValueError(
                "early_stopping=True needs held-out rows: set validation_fraction above 0."
            )
        if not (self.augmentation is None or callable(self.augmentation)):
            raise TypeError(
                f"augmentation={self.augmentation!r} must be a function that takes a batch of "
                "rows, a tensor, and returns a tensor of the same shape; or None."
            )
        self._check_kernel()
        refuse_ranks(self)

    def _fit_model(self, problem):
        rows, previous = problem.rows, problem.start
        salt = problem.seed if previous is None else previous.seed
        threshold = None if previous is None else previous.threshold
        trained_on, held_out, threshold = self._split(rows, salt, threshold)
        if previous is None:
            start, network = self._init_network(problem, trained_on, threshold)
        else:
            start, network = previous, previous.network(rows.device)

        def validation_losses(network):
            return self._held_out_losses(network, _latent_moments(network, held_out))

        stop_early = self.early_stopping and held_out is not None
        training = JointTraining(
            network,
            self._make_likelihood(),
            trained_on,
            bounds={
                "theta": theta_bounds(start.kernel, rows.device).unbind(-1),
                "noise": self._noise_model.limits(),
            },
            max_iter=self.max_iter,
            batch_size=self._batch_size(len(trained_on)),
            learning_rate=self.learning_rate,
            augmentation=self.augmentation,
            early_stopping=(
                EarlyStopping(self.n_iter_no_change, validation_losses) if stop_early else None
            ),
            generator=problem.generator,
        )

        def evaluate(network):
            moments = None if held_out is None else _latent_moments(network, held_out)
            return [start.at(network)], [self._held_out_attributes(network, moments)]

        state = training.init()
        curve = problem.run_stage(
            "network",
            training,
            state,
            self.max_iter,
            lambda state: evaluate(training.at(state)),
            must_converge=False,
        )
        (model,), (validated,) = evaluate(training.best(state))
        return Fitted(model, curve, validated)

    def _fitted_attributes(self, models, validated, streamed=False):
        (model,), (validated,) = models, validated
        return {
            "kernel_": self._whole_kernel(model.kernel, vars(self) | validated),
            "inducing_points_": model.weights["Z"],
            "_latents": [model],
            "_fitted_parameters": self._parameters_of_fit(),
            **validated,
        }

    def _batch_size(self, n):
        if self.batch_size is not None:
            return self.batch_size
        return int(np.clip(n // _STEPS, *_BATCH_SIZES))

    @abstractmethod
    def _held_out_losses(self, network, moments):
        """Return the validation losses that early stopping compares.

        Parameters
        ----------
        network : HybridNetwork
        moments : LatentMoments

        Returns
        -------
        losses : list of float
            In nats per row. The weights with the lowest first loss are kept; training goes on
            while any of the losses falls.
        """

    @abstractmethod
    def _held_out_attributes(self, network, moments):
        """Return the fitted attributes that depend on held-out rows.

        Parameters
        ----------
        network : HybridNetwork
        moments : LatentMoments or None
            None where no rows are held out.

        Returns
        -------
        attributes : dict
        """

    def _validation_share(self):
        """Return the share of the rows that are held out of training."""
        return self.validation_fraction if self.early_stopping else 0.0

    def _split(self, rows, salt, threshold):
        """Split rows into training and held-out rows.

        A row is held out by the hash of its content, so that a warm start holds out the rows of
        the first fit. One row of each class is always a training row.

        Parameters
        ----------
        rows : WeightedDataset
        salt : int
            Seed of the hashes.
        threshold : float or None
            Rows with hashes up to this are held out; None in a first fit, which chooses it.

        Returns
        -------
        training : WeightedDataset
        held_out : WeightedDataset or None
        threshold : float
        """
        if threshold is None and not self._validation_share():
            threshold = _NONE_HELD
        if threshold == _NONE_HELD:
            return rows, None, threshold
        n, hashes = len(rows), row_hashes(rows, salt)
        order = np.argsort(hashes, kind="stable")[::-1]
        targets = rows.targets.cpu().numpy()[order]
        kept = (
            np.unique(targets, return_index=True)[1] if targets.ndim == 1 else np.arange(min(2, n))
        )
        free = np.delete(order, kept)[::-1]
        if threshold is None:
            n_held = min(int(self._validation_share() * n), len(free))
            threshold = float(hashes[free[n_held - 1]]) if n_held else _NONE_HELD
        held = np.sort(free[hashes[free] <= threshold])
        if not len(held):
            return rows, None, threshold
        return rows.part(np.setdiff1d(order, held)), rows.part(held), threshold

    def _init_network(self, problem, rows, threshold):
        """Return a `HybridLatents` without weights, and the initial network."""
        seed, random_state = problem.seed, problem.random_state
        build = partial(build_extractor, self.module, self.module_params, self.n_features_in_)
        row_shape = (self.n_features_in_,) if self.module is None else self.input_shape_
        start = HybridLatents(build, row_shape, None, {}, seed, threshold)
        extractor = start.extractor().to(rows.device, rows.dtype)
        if self.module is None:
            extractor[0].mean.copy_(torch.tensor(problem.scaler.mean_))
            extractor[0].scale.copy_(torch.tensor(problem.scaler.scale_))
        if len(rows) > _INIT_ROWS:
            units = rows.units()
            chosen = random_state.choice(len(units), _INIT_ROWS, replace=False)
            rows = rows.of_units(units, chosen)
        parts = torch.arange(len(rows)).tensor_split(math.ceil(len(rows) / EXTRACTED_ROWS))
        with torch.no_grad(), PrivateRandom(seed):
            raw = torch.cat([raw_features(extractor, rows.take(i)[0], row_shape) for i in parts])
            moments = raw.mean(0), raw.var(0, correction=0)
            network = FeatureMap(extractor, row_shape, *moments).eval()
            features = network.normalizer(raw).double().cpu().numpy()
        Z = torch.tensor(
            select_inducing_points(features, self.n_inducing, random_state=random_state)
        )
        likelihood = self._make_likelihood()
        start.kernel = self._start_kernel(features.shape[1], likelihood.n_latents)
        kernel = torch_kernel(start.kernel)
        theta = torch.tensor(start.kernel.theta)
        shape = likelihood.n_latents, WhitenedBasis(kernel, theta, Z).size
        draws = {"generator": problem.generator, "dtype": torch.float64}
        head = {
            "theta": theta,
            "noise": likelihood.parameters(),
            "Z": Z,
            "mean": _START_STD * torch.randn(*shape, **draws),
            "raw_root": torch.zeros(*shape, shape[1], dtype=torch.float64),
        }
        return start, HybridNetwork(network, kernel, head).to(rows.device)

    def _start_kernel(self, n_outputs, n_latents):
        """Return the given kernel, or the default: a squared exponential of the features."""
        if self.kernel is not None:
            return self._noise_model.split(clone(self.kernel))[0]
        variance = ConstantKernel(self._prior_variance(n_latents), (1e-3, 1e5))
        return variance * RBF(np.sqrt(2 * n_outputs), (1e-2, 1e3))

    def _whole_kernel(self, kernel, attributes):
        """Return the fitted kernel, including the noise term if the given kernel has one."""
        return kernel

    # The network

    @isolated()
    def to_torch(self, device=None):
        """Return the fitted network as a torch module, for attacks and explanations.

        Parameters
        ----------
        device : str or torch.device, default=None
            Device of the module; None is the CPU.

        Returns
        -------
        module : torch.nn.Module
            It is in evaluation mode and differentiable in its input. It takes rows as `fit` does,
            flat ones (b, d) or rows of their own shape. A classifier's module returns logits
            (b, n_classes), whose softmax is `predict_proba`. A regressor's module returns means
            (b, t). Its method ``latents`` returns means and variances (b, c) of the latent
            functions.
        """
        check_is_fitted(self)
        network = self._latents[0].make_posterior(torch.device(device or "cpu"))
        return Predictor(network, copy.copy(self)._output).eval()

    def save_weights(self, path):
        """Write the fitted model to a safetensors file: tensors and plain values, no code.

        Parameters
        ----------
        path : str or path-like
            File to write.

        Raises
        ------
        ImportError
            If safetensors is not installed.
        """
        check_is_fitted(self)
        _check_safetensors()
        latents, names = (
            self._latents[0],
            {*self._saved_attributes_of_all, *self._saved_attributes, "feature_names_in_"},
        )
        description = {
            "model": self._description(latents.kernel),
            "seed": latents.seed,
            "threshold": latents.threshold,
            "attributes": {n: to_json(value) for n, value in vars(self).items() if n in names},
        }
        write(path, latents.weights, description)

    def _description(self, kernel):
        """Return the description of the model in a weight file: class, likelihood and kernel.

        The values of the learned hyperparameters are left out.
        """
        return {
            "class": type(self).__name__,
            "kernel": repr(kernel.clone_with_theta(np.zeros(kernel.n_dims))),
            "learned": [h.name for h in kernel.hyperparameters if not h.fixed],
            "likelihood": getattr(self, "likelihood", None),
        }

    @isolated()
    def load_weights(self, path):
        """Load the model that `save_weights` of an estimator with the same parameters wrote.

        Parameters
        ----------
        path : str or path-like
            Weight file. Loading runs no code from it; module and kernel are those of this
            estimator.

        Returns
        -------
        self : estimator

        Raises
        ------
        ImportError
            If safetensors is not installed.
        OSError
            If the file cannot be opened.
        ValueError
            If the file has another model, or is damaged. The estimator is then unchanged. Names,
            shapes and plain values are checked before memory for arrays is allocated.
        """
        _check_safetensors()
        with WeightsFile(path) as file:
            description = file.description
            file.check_model("class", type(self).__name__)
            names = (*self._saved_attributes_of_all, *self._saved_attributes)
            model = copy.copy(self)
            model._forget()
            vars(model).update(checked_attributes(description["attributes"], names, file))
            latents = model._latents_from_file(file)
            network = skeleton(latents, latents.kernel, model._make_likelihood(), file)
            latents.weights = file.weights(network.state_dict())
        try:
            network = latents.make_posterior(torch.device("cpu"))
        except RuntimeError as error:
            raise file.error(f"torch says: {error}") from error
        limits = model._noise_model.limits()
        check_values(network, latents.kernel, limits, file)
        latents.kernel = latents.kernel.clone_with_theta(latents.weights["theta"])
        fitted = {
            "kernel_": model._whole_kernel(latents.kernel, vars(model)),
            "inducing_points_": latents.weights["Z"],
            "_latents": [latents],
        }
        self._forget()
        fitted["_fitted_parameters"] = self._parameters_of_fit()
        vars(self).update(vars(model) | fitted)
        return self

    def _latents_from_file(self, file):
        """Return a `HybridLatents` without weights; the attributes of the file are already set."""
        row_shape = self.input_shape_
        if self.input_shape is not None and tuple(self.input_shape) != row_shape:
            raise file.error(f"it takes rows of shape {row_shape}, not {tuple(self.input_shape)}")
        seed, threshold = file.description["seed"], file.description["threshold"]
        seed_is_valid = isinstance(seed, int) and 0 <= seed < 2**31
        threshold_is_valid = isinstance(threshold, int | float) and -1 <= threshold <= 1
        if not (seed_is_valid and threshold_is_valid):
            raise file.error("its seed or its threshold of held-out rows is invalid")
        kernel = self._start_kernel(file.n_outputs, self._make_likelihood().n_latents)
        for name, value in self._description(kernel).items():
            file.check_model(name, value)
        build = partial(build_extractor, self.module, self.module_params, self.n_features_in_)
        row_shape = (self.n_features_in_,) if self.module is None else row_shape
        return HybridLatents(build, row_shape, kernel, {}, seed, threshold)


def _n_axes(X):
    """Return the number of axes of an array or nested list; 2 for anything else."""
    if isinstance(X, list):
        return np.ndim(X)
    return getattr(X, "ndim", 2)


def _latent_moments(network, rows):
    """Return the `LatentMoments` of a network at rows."""
    parts = []
    with torch.no_grad():
        for index in rows.chunks(chunk_rows(rows.X.shape[1])):
            X, targets, weights = rows.take(index)
            parts.append((*network.marginals(X), targets, weights))
    mean, var, targets, weights = (torch.cat(part) for part in zip(*parts, strict=True))
    return LatentMoments(mean.double(), var.double(), targets, weights.double())


def _check_safetensors():
    """Raise an error that says what to install if safetensors is missing."""
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "save_weights and load_weights need safetensors: pip install safetensors."
        ) from error
