"""The estimator `HybridSVGPClassifier`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from sklearn.gaussian_process.kernels import Kernel

from .._estimators import GPClassifier
from .._parameters import ParameterRules
from .._predictive import classification_sites
from .._typing import ClassWeight, Device, Dtype, RandomStateLike
from .._variational import CLASS_VARIANCE, CLASSIFIER_LIKELIHOODS
from ._base import HybridMixin
from ._design import NetworkDesign
from ._held_out import DensityLoss
from ._training import (
    HYBRID_FOLLOWED,
    LOSS_USES,
    check_hybrid_parameters,
    fit_network,
    network_attributes,
)


class HybridSVGPClassifier(HybridMixin, GPClassifier):
    r"""Sparse variational Gaussian-process classifier on the features of a neural network.

    This is deep kernel learning: module, kernel and posterior jointly maximize the ELBO. See the
    :ref:`user guide <hybrid>`.

    Parameters
    ----------
    module : callable, default=None
        The network without its last layer: a `torch.nn.Module` class, or a function that returns a
        new Module, which maps a batch (b, \*row_shape) to features (b, D). A Module itself is not
        allowed, since every fit has its own weights. `MNISTExtractor` and `CIFAR10Extractor` are
        those of Wistuba and Rawat (2018). None is an `MLP` with ``linear=True`` for tables, whose
        columns are standardized.
    module_params : dict, default=None
        Keyword arguments of ``module``.
    input_shape : tuple of int, default=None
        Shape in which the module receives a row, if rows of X are flat. None is the shape in X.
    augmentation : callable, default=None
        Random transformation of training batches, a function from a tensor (b, \*row_shape) to one
        of the same shape.
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent functions of the module's features, which are normalized to
        mean zero and variance one. Optimization starts from its values; its bounds and "fixed"
        marks are respected. None is a squared exponential plus a constant.
    likelihood : {"softmax", "probit", "robust_max"}, default="softmax"
        Likelihood of the labels; see `SVGPClassifier`.
    n_inducing : int, default=64
        Number of inducing points, m, in the space of features. Fewer are used if there are fewer
        rows.
    max_iter : int, default=50
        Maximum number of epochs, over which the learning rates decay to zero.
    batch_size : int, default=None
        Rows per minibatch. None is a tenth of the rows, but at least 16 and at most 128.
    learning_rate : float, default=1e-3
        Initial learning rate of Adam for the module; that of the head is ten times higher. Both
        decay to zero along a cosine over ``max_iter`` epochs.
    early_stopping : bool, default=True
        Whether training ends when the loss of the held-out rows no longer falls. The model of the
        best epoch is kept, or the initial model of a first fit if the best epoch is not better by
        two standard errors.
    validation_fraction : float, default=0.1
        With ``early_stopping``, the share of the rows that is held out of training.
    n_iter_no_change : int, default=5
        With ``early_stopping``, the number of epochs without improvement that ends training.
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply predicted probabilities (:ref:`class_weights`).
    warm_start : bool, default=False
        Whether `fit` starts from the model of the last fit. Changing a parameter on which it
        depends, such as ``kernel``, raises an error.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Precision of the network; None is that of X, and float32 for uint8. The head is in float64.
    random_state : int, RandomState instance or None, default=None
        Seeds initial weights, held-out rows, minibatches, dropout and augmentation.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    class_weight_ : ndarray of shape (n_classes,)
        Weight of each class.
    kernel_ : Kernel
        Kernel of the features, with the learned hyperparameters.
    inducing_points_ : ndarray of shape (m, D)
        Inducing points, in units of the normalized features.
    input_shape_ : tuple of int
        Shape in which the module receives a row.
    validation_loss_ : float
        Lowest log loss of the held-out rows in any epoch, in nats per row. NaN if no rows are held
        out.
    objective_curve_ : ndarray of shape (n_iterations,)
        Mean estimate of the ELBO in each epoch, in nats.
    n_iter_ : int
        Number of epochs.
    n_features_in_ : int
        Number of entries of a flat row, d.
    feature_names_in_ : ndarray of shape (d,)
        Column names of X, if they are all strings.

    Notes
    -----
    Source: Hensman et al. (2015); Wilson et al. (2016), stochastic variational deep kernel
    learning.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import HybridSVGPClassifier
    >>> gp = HybridSVGPClassifier(module_params={"hidden_layer_sizes": (32,)}, random_state=0)
    >>> gp.fit(*load_iris(return_X_y=True)).score(*load_iris(return_X_y=True)) > 0.9
    True
    """

    _rules = ParameterRules(LOSS_USES, HYBRID_FOLLOWED)
    _saved = "_likelihood", "classes_", "class_weight_"

    def __init__(
        self,
        module: Callable[..., torch.nn.Module] | None = None,
        *,
        module_params: dict[str, Any] | None = None,
        input_shape: Sequence[int] | None = None,
        augmentation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        kernel: Kernel | None = None,
        likelihood: Literal["softmax", "probit", "robust_max"] = "softmax",
        n_inducing: int = 64,
        max_iter: int = 50,
        batch_size: int | None = None,
        learning_rate: float = 1e-3,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        class_weight: ClassWeight = None,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.module = module
        self.module_params = module_params
        self.input_shape = input_shape
        self.augmentation = augmentation
        self.kernel = kernel
        self.likelihood = likelihood
        self.n_inducing = n_inducing
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    def _check_parameters(self):
        check_hybrid_parameters(self)
        self._check_choice("likelihood", CLASSIFIER_LIKELIHOODS)

    def _sites_of(self, likelihood):
        # The network and the posterior start from random numbers in the order of the labels.
        return classification_sites(likelihood, len(self.classes_))

    def _network_design(self):
        return NetworkDesign.of(self, CLASS_VARIANCE)

    def _fit_model(self, problem):
        design = self._network_design()
        share = self.validation_fraction if self.early_stopping else 0.0
        return fit_network(self, problem, design, DensityLoss(design.likelihood), share)

    def _fitted_attributes(self, models, losses, streamed=False):
        return {
            **network_attributes(self, models[0]),
            "validation_loss_": losses[0],
            "_likelihood": self.likelihood,
        }
