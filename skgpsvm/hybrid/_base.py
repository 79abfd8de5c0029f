"""Methods that all hybrid estimators have: rows of any shape, torch modules, and weight files."""

from __future__ import annotations

from functools import partial
from typing import Self

import torch
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from .._estimators import all_or_nothing, fit_models
from .._isolation import isolated
from .._typing import ArrayLike, Device, MatrixLike, PathLike, ndarray
from ._inputs import validated_rows
from ._network import Predictor, log_probabilities
from ._persistence import read_model, save_model
from ._training import network_attributes


class HybridMixin:
    """Methods that all hybrid estimators have.

    A subclass gives its `NetworkDesign` by ``_network_design()``. The fitted attributes ``_saved``
    are in its weight files besides those of all hybrid estimators.
    """

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray
    input_shape_: tuple[int, ...]
    validation_loss_: float

    @all_or_nothing
    def fit(
        self, X: MatrixLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train the network and its head.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, ...), or torch.utils.data.Dataset
            Rows of any shape. A :ref:`source <sources>`, such as a Dataset or a memmap, is read in
            blocks.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans. None uses those of a Dataset.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log likelihood of each row, or its loss: 0 removes the row. Weights count
            rows.

        Returns
        -------
        self : estimator

        Raises
        ------
        TypeError
            If ``module`` returns no Module, or the kernel is unknown.
        ValueError
            If parameters, data, weights or the shape of the module's output are invalid.
        DivergenceError
            If the objective or the module's output is no longer finite. The estimator is then
            unfitted or, with ``warm_start``, unchanged.
        """
        return fit_models(self, X, y, sample_weight)

    @isolated()
    def to_torch(self, device: Device = None) -> torch.nn.Module:
        """Return the fitted network as a torch module, for attacks and explanations.

        Parameters
        ----------
        device : str or torch.device, default=None
            Device of the module; None is the CPU.

        Returns
        -------
        module : torch.nn.Module
            It is in evaluation mode and differentiable in its input. It takes rows as `fit` does,
            flat ones (b, d) or rows of their own shape. For a classifier, it returns logits
            (b, n_classes), whose softmax is `predict_proba`; for a regressor, means (b, t). Its
            method ``latents`` returns means and variances (b, c) of the latent functions.
        """
        check_is_fitted(self)
        network = self._latents[0].frozen_network(device or "cpu")
        return Predictor(network, self._torch_output()).eval()

    def save_weights(self, path: PathLike) -> None:
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
        save_model(self, path, self._saved)

    def load_weights(self, path: PathLike) -> Self:
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
        TypeError
            If a parameter of this estimator, such as ``module``, has an invalid type.
        ValueError
            If the file has another model or is damaged, or a parameter is invalid. The estimator
            is then unchanged. Names, shapes and plain values are checked before memory for arrays
            is allocated.
        """
        attributes, model = read_model(self, path, self._saved)
        self._forget()
        # The rows that hyperparameters were learned with are not in the file.
        vars(self).update(attributes | network_attributes(self, model) | {"_learned": None})
        return self

    def _torch_output(self):
        """Return the function of latent moments (b, c) whose values `to_torch` returns."""
        return partial(log_probabilities, self._weighted_probabilities())

    def _validated(self, X, reset, **options):
        return validated_rows(self, X, reset, **options)
