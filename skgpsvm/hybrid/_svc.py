"""The estimator `HybridBayesianSVC`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from sklearn.gaussian_process.kernels import Kernel

from .._calibration import Calibration
from .._estimators import GPClassifier
from .._hinge_sites import BinarySites, ContrastSites
from .._parameters import ALWAYS, ParameterRules
from .._predictive import pseudo_likelihood_probabilities
from .._typing import ClassWeight, Device, Dtype, RandomStateLike, ndarray
from ._base import HybridMixin
from ._design import NetworkDesign
from ._held_out import CalibratedLoss
from ._training import (
    HYBRID_FOLLOWED,
    HYBRID_USES,
    check_hybrid_parameters,
    fit_network,
    network_attributes,
)

_FOLLOWED = {
    "fit": HYBRID_FOLLOWED["fit"]
    | dict.fromkeys(("contrast", "early_stopping", "probability"), ALWAYS)
}


class HybridBayesianSVC(HybridMixin, GPClassifier):
    r"""Bayesian support vector machine on the features of a neural network.

    The Bayesian SVM takes the place of a network's softmax layer, and both are trained together by
    backpropagation in minibatches. Class probabilities account for the uncertainty of the SVM, and
    are calibrated on held-out rows. See the :ref:`user guide <hybrid>`.

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
    contrast : {"soft", "hard"}, default="soft"
        How the hinge loss compares classes. "soft" compares the class of each row with all wrong
        classes, "hard", as in the paper, with the strongest one.
    probability : {"calibrated", "argmax"}, default="calibrated"
        "calibrated" is the posterior mean of a softmax of the latents, whose temperature, spread
        and intercepts are fitted to held-out rows. "argmax" is the probability that a class has
        the largest latent, which the paper estimates by sampling.
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
        Share of the rows that is held out of training, for the calibration of probabilities and
        for early stopping. With 0, which needs ``early_stopping=False``, probabilities are an
        uncalibrated softmax.
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
    temperature_ : float
        Factor of the latents in the calibrated softmax. Larger values give more confident
        probabilities.
    spread_ : float
        Factor of the latents' posterior variances in the calibrated probabilities.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Terms added to the scaled latents in the calibrated softmax, a share of the log class
        frequencies.
    validation_loss_ : float
        Log loss of the held-out rows after calibration on them, in nats per row. The log loss of
        new rows is slightly higher. NaN if no rows are held out.
    objective_curve_ : ndarray of shape (n_iterations,)
        Mean estimate of the objective in each epoch, in nats. It is not a bound on the evidence,
        since the hinge loss is a pseudo-likelihood.
    n_iter_ : int
        Number of epochs.
    n_features_in_ : int
        Number of entries of a flat row, d.
    feature_names_in_ : ndarray of shape (d,)
        Column names of X, if they are all strings.

    Notes
    -----
    Source: Wistuba and Rawat (2018), section 3.4.

    Departs from the source: features are normalized; inducing points start from their k-means
    centers, and the posterior from its optimum on the features of the untrained network; soft
    contrast, calibration and early stopping are added.

    A step costs a pass of the module, and O(b m (D + m)) for each latent that a row uses. X is
    held on the device if it takes at most 256 MiB, and is otherwise read in minibatches.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.model_selection import train_test_split
    >>> from skgpsvm import HybridBayesianSVC
    >>> X_train, X_test, y_train, y_test = train_test_split(
    ...     *load_wine(return_X_y=True), random_state=0
    ... )
    >>> svc = HybridBayesianSVC(module_params={"hidden_layer_sizes": (32,)}, random_state=0)
    >>> svc.fit(X_train, y_train).score(X_test, y_test) > 0.9
    True
    """

    _rules = ParameterRules(HYBRID_USES, _FOLLOWED)
    _saved = "classes_", "class_weight_", "temperature_", "spread_", "intercept_"

    # Fitted attributes
    temperature_: float
    spread_: float
    intercept_: ndarray

    def __init__(
        self,
        module: Callable[..., torch.nn.Module] | None = None,
        *,
        module_params: dict[str, Any] | None = None,
        input_shape: Sequence[int] | None = None,
        augmentation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        kernel: Kernel | None = None,
        contrast: Literal["soft", "hard"] = "soft",
        probability: Literal["calibrated", "argmax"] = "calibrated",
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
        self.contrast = contrast
        self.probability = probability
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
        self._check_choice("contrast", ("soft", "hard"))
        self._check_choice("probability", ("calibrated", "argmax"))

    def _class_probabilities(self):
        calibration = self.temperature_, self.spread_, self.intercept_
        return pseudo_likelihood_probabilities(self.probability, *calibration)

    def _make_likelihood(self):
        if len(self.classes_) == 2:
            return BinarySites()
        return ContrastSites(len(self.classes_), self.contrast)

    def _network_design(self):
        # A single latent is the difference of two classes: its prior variance is twice theirs.
        return NetworkDesign.of(self, 2.0 if len(self.classes_) == 2 else 1.0)

    def _fit_model(self, problem):
        design, labels = self._network_design(), (problem.rows.targets, problem.rows.weights)
        prior = Calibration.prior(design.likelihood.n_latents, *problem.rows.collect(*labels))
        # Calibration needs held-out rows even without early stopping.
        return fit_network(self, problem, design, CalibratedLoss(prior), self.validation_fraction)

    def _fitted_attributes(self, models, calibrations, streamed=False):
        (model,), (calibration,) = models, calibrations
        return {
            **network_attributes(self, model),
            "temperature_": calibration.temperature,
            "spread_": calibration.spread,
            "intercept_": calibration.intercept.numpy(),
            "validation_loss_": calibration.log_loss,
        }
