"""What hybrid estimators share: input of any rank, joint training, held-out rows, weights."""

import copy
import math
from functools import partial

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, validate_data
from torch.utils.data import Dataset

from .._distributed import refuse_ranks
from .._estimators import FOLLOWED, GPEstimator, history
from .._fitting import Run
from .._hyperparameters.default_kernels import feature_scales
from .._isolation import PrivateRandom, isolated
from .._optim import NOISE_BOUNDS
from .._parameters import ALWAYS, where
from .._posteriors import WhitenedBasis
from .._rows import Rows
from .._torch_kernels import theta_bounds, torch_kernel
from ..inducing import select_inducing_points
from ._data import DatasetArray
from ._learning import JointTraining
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

_FIRST_ROWS = 4096  # whose features inducing points are chosen from
_NONE_HELD = -1.0  # below the hash of any row
_START_STD = 0.01  # of the means: breaks the tie of the classes
_STEPS, _BATCH_SIZES = 10, (16, 128)  # of an epoch where batch_size is None, and their sizes
_USES = {"n_iter_no_change": where(early_stopping=True)}
_FOLLOWED = {
    "fit": FOLLOWED
    | dict.fromkeys(("augmentation", "batch_size", "learning_rate", "n_iter_no_change"), ALWAYS)
}


class HybridEstimator(GPEstimator):
    """An estimator whose latents are functions of a network's features.

    A subclass provides the likelihood (`_make_likelihood`), the prior variance of so many latents
    (`_prior_variance`), losses of held-out rows (`_held_out_losses`), the fitted attributes that
    follow from them (`_found`), what `to_torch`'s module gives (`_output`), and which fitted
    attributes files of weights hold beside those of all (`_saved_attributes`).
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
        found = validate_data(self, X, reset=reset, **options)
        if reset:
            self._set_row_shape(row_shape)
        return found

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
                f"Rows of X have shape {tuple(row_shape)}, but {type(self).__name__} takes rows of "
                f"shape {tuple(known)}, or flat ones of {math.prod(known)} features."
            )

    def _set_row_shape(self, row_shape):
        given = self.input_shape
        if given is not None and math.prod(given) != self.n_features_in_:
            raise ValueError(
                f"input_shape={given!r} has {math.prod(given)} entries, but rows of X have "
                f"{self.n_features_in_} features."
            )
        self.input_shape_ = tuple(given or row_shape or (self.n_features_in_,))

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
                f"input_shape={shape!r} must be the shape of one row for the module, a tuple of "
                "positive integers such as (1, 28, 28); or None."
            )
        if not (params is None or isinstance(params, dict)):
            raise TypeError(
                f"module_params={params!r} must be a dict of the module's arguments, or None."
            )
        self._check_number("validation_fraction", 0)
        if self.validation_fraction >= 1:
            raise ValueError(
                f"validation_fraction={self.validation_fraction!r} must be below 1, the share of "
                "rows that are held out."
            )
        if self.early_stopping and not self.validation_fraction:
            raise ValueError(
                "early_stopping=True needs rows to be held out: set validation_fraction."
            )
        if not (self.augmentation is None or callable(self.augmentation)):
            raise TypeError(
                f"augmentation={self.augmentation!r} must be a function of a batch of rows, a "
                "tensor, that gives one of the same shape; or None."
            )
        self._check_kernel()
        refuse_ranks(self)

    def _fit(self, X, y, sample_weight):
        previous = self._latents[0] if self.warm_start and hasattr(self, "_latents") else None
        if previous is None:
            self._forget()
        self._check_all_parameters("fit" if previous else None)
        shown = X
        X, targets, weights, origin = self._check_training_data(
            X, y, sample_weight, reset=previous is None
        )
        device, dtype = self._torch_options(X)
        run = Run(self, shown, y, X, targets, weights, previous)
        seed = run.checkpointed("seed", self._draw_seed)
        random_state, generator = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        rows = Rows(X, targets, weights, device, dtype, origin=origin)
        salt = seed if previous is None else previous.seed
        threshold = None if previous is None else previous.threshold
        trained_on, held_out, threshold = self._split(rows, salt, threshold)
        if previous is None:
            scaler = feature_scales(X, weights) if self.module is None else None
            parts = trained_on, scaler, seed, threshold, random_state, generator
            start, network = self._first(*parts)
        else:
            start, network = previous, previous.network(device)

        def held_moments(network):
            return held_out and _moments(network, held_out)

        learning = JointTraining(
            network,
            self._make_likelihood(),
            trained_on,
            theta_bounds(start.kernel, device),
            max_iter=self.max_iter,
            batch_size=self._batch_size(len(trained_on)),
            learning_rate=self.learning_rate,
            augmentation=self.augmentation,
            noise_bounds=self._noise_limits(NOISE_BOUNDS),
            patience=self.n_iter_no_change if self.early_stopping and held_out else None,
            held_out_losses=lambda network: self._held_out_losses(network, *held_moments(network)),
            generator=generator,
        )

        def attributes(network):
            latents, found = start.at(network), self._found(network, held_moments(network))
            return {
                "kernel_": self._whole_kernel(latents.kernel, vars(self) | found),
                "inducing_points_": latents.weights["Z"],
                "_latents": [latents],
                "_fitted_parameters": self._parameters_of_fit(),
                **found,
            }

        state = learning.initial()
        curve = run.stage(
            "network",
            state,
            learning.step,
            self.max_iter,
            finished=learning.finished,
            attributes=lambda state: attributes(learning.at(state)),
        )
        found = attributes(learning.best(state)) | history(curve)
        run.end(found, partial(self._doubts, X, targets, weights))
        return self

    def _batch_size(self, n):
        if self.batch_size is not None:
            return self.batch_size
        return int(np.clip(n // _STEPS, *_BATCH_SIZES))

    def _held_share(self):
        """Share of the rows that are held out of training."""
        return self.validation_fraction if self.early_stopping else 0.0

    def _split(self, rows, salt, threshold):
        """Rows to train on, those held out, or None, and the hash up to which they are.

        A row's hash is of its content, so that what one fit holds out, a warm start does too.
        One row of each class is always trained on.
        """
        if threshold is None and not self._held_share():
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
            n_held = min(int(self._held_share() * n), len(free))
            threshold = float(hashes[free[n_held - 1]]) if n_held else _NONE_HELD
        held = np.sort(free[hashes[free] <= threshold])
        if not len(held):
            return rows, None, threshold
        return rows.part(np.setdiff1d(order, held)), rows.part(held), threshold

    def _first(self, rows, scaler, seed, threshold, random_state, generator):
        """What training starts from: the latents, and their network."""
        build = partial(build_extractor, self.module, self.module_params, self.n_features_in_)
        row_shape = (self.n_features_in_,) if self.module is None else self.input_shape_
        start = HybridLatents(build, row_shape, None, {}, seed, threshold)
        extractor = start.extractor().to(rows.device, rows.dtype)
        if scaler is not None:
            extractor[0].mean.copy_(torch.tensor(scaler.mean_))
            extractor[0].scale.copy_(torch.tensor(scaler.scale_))
        if len(rows) > _FIRST_ROWS:
            units = rows.units()
            chosen = random_state.choice(len(units), _FIRST_ROWS, replace=False)
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
        sites = self._make_likelihood()
        start.kernel = self._start_kernel(features.shape[1], sites.n_latents)
        kernel = torch_kernel(start.kernel)
        theta = torch.tensor(start.kernel.theta)
        shape = sites.n_latents, WhitenedBasis(kernel, theta, Z).size
        head = {
            "theta": theta,
            "noise": sites.parameters(),
            "Z": Z,
            "mean": _START_STD * torch.randn(*shape, generator=generator, dtype=torch.float64),
            "raw_root": torch.zeros(*shape, shape[1], dtype=torch.float64),
        }
        return start, HybridNetwork(network, kernel, head).to(rows.device)

    def _start_kernel(self, n_outputs, n_latents):
        """The kernel given, or a squared exponential of normalized features."""
        if self.kernel is not None:
            return self._split_kernel(clone(self.kernel))[0]
        variance = ConstantKernel(self._prior_variance(n_latents), (1e-3, 1e5))
        return variance * RBF(np.sqrt(2 * n_outputs), (1e-2, 1e3))

    def _whole_kernel(self, kernel, attributes):
        """A kernel of features with the noise of fitted attributes, where it has such a term."""
        return kernel

    # The network

    @isolated()
    def to_torch(self, device=None):
        """The fitted network as a torch module, for attacks and explanations.

        Parameters
        ----------
        device : str or torch.device, default=None
            None is the CPU.

        Returns
        -------
        module : torch.nn.Module
            In evaluation mode and differentiable in its input. It maps rows as they come to `fit`,
            (b, d) or of their own shape, to logits of `predict_proba` (b, n_classes), whose softmax
            it is, or of a regressor to means (b, t). Its ``latents`` gives means and variances
            (b, c) of the latent functions.
        """
        check_is_fitted(self)
        network = self._latents[0].make_posterior(torch.device(device or "cpu"))
        return Predictor(network, copy.copy(self)._output).eval()

    def save_weights(self, path):
        """Write the fitted model as safetensors: tensors and plain values, no code.

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        ImportError
            Where safetensors is not installed.
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
        """What weights alone do not tell of a model: of the kernel, all but learned values."""
        return {
            "class": type(self).__name__,
            "kernel": repr(kernel.clone_with_theta(np.zeros(kernel.n_dims))),
            "learned": [h.name for h in kernel.hyperparameters if not h.fixed],
            "likelihood": getattr(self, "likelihood", None),
        }

    @isolated()
    def load_weights(self, path):
        """Become the model that `save_weights` of an estimator of these parameters wrote.

        Parameters
        ----------
        path : str or path-like
            Loading runs no code from the file: module and kernel are those of this estimator.

        Returns
        -------
        self : estimator

        Raises
        ------
        ImportError
            Where safetensors is not installed.
        OSError
            If the file cannot be opened.
        ValueError
            If the file is not of such a model, or is damaged. Names, shapes and plain values are
            checked before anything of their size is made. The estimator is then as it was.
        """
        _check_safetensors()
        with WeightsFile(path) as file:
            told = file.description
            file.check_model("class", type(self).__name__)
            wanted = (*self._saved_attributes_of_all, *self._saved_attributes)
            model = copy.copy(self)
            model._forget()
            vars(model).update(checked_attributes(told["attributes"], wanted, file))
            latents = model._described_latents(told, file)
            network = skeleton(latents, latents.kernel, model._make_likelihood(), file)
            latents.weights = file.weights(network.state_dict())
        try:
            network = latents.make_posterior(torch.device("cpu"))
        except RuntimeError as error:
            raise file.error(f"torch says: {error}") from error
        limits = model._noise_limits(NOISE_BOUNDS)
        check_values(network, latents.kernel, limits, file)
        latents.kernel = latents.kernel.clone_with_theta(latents.weights["theta"])
        whole = model._whole_kernel(latents.kernel, vars(model))
        found = {"kernel_": whole, "inducing_points_": latents.weights["Z"]}
        self._forget()
        found |= {"_latents": [latents], "_fitted_parameters": self._parameters_of_fit()}
        vars(self).update(vars(model) | found)
        return self

    def _described_latents(self, told, file):
        """Latents without weights, of what a file tells of them and the attributes set from it."""
        n_features, row_shape = self.n_features_in_, self.input_shape_
        if self.input_shape is not None and tuple(self.input_shape) != row_shape:
            raise file.error(f"it takes rows of shape {row_shape}, not {tuple(self.input_shape)}")
        seed, threshold = told["seed"], told["threshold"]
        seeds = isinstance(seed, int) and 0 <= seed < 2**31
        if not (seeds and isinstance(threshold, int | float) and -1 <= threshold <= 1):
            raise file.error("its seed or the share of rows held out makes no sense")
        kernel = self._start_kernel(file.n_outputs, self._make_likelihood().n_latents)
        for name, value in self._description(kernel).items():
            file.check_model(name, value)
        build = partial(build_extractor, self.module, self.module_params, n_features)
        row_shape = (n_features,) if self.module is None else row_shape
        return HybridLatents(build, row_shape, kernel, {}, seed, threshold)


def _n_axes(X):
    """Of an array or of nested lists; anything else is a table to scikit-learn's checks."""
    if isinstance(X, list):
        return np.ndim(X)
    return getattr(X, "ndim", 2)


def _moments(network, rows):
    """Latent means and variances of all rows, their targets and weights, in float64."""
    parts = []
    with torch.no_grad():
        for index in rows.chunks(chunk_rows(rows.X.shape[1])):
            X, targets, weights = rows.take(index)
            parts.append((*network.marginals(X), targets, weights))
    mean, var, targets, weights = (torch.cat(part) for part in zip(*parts, strict=True))
    return mean.double(), var.double(), targets, weights.double()


def _check_safetensors():
    """Tell what to install where safetensors is not there."""
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Weights are written and read by safetensors: pip install safetensors."
        ) from error
