"""The estimator `HybridSVGPRegressor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel

from .._estimators import GPRegressor, all_or_nothing, fit_models
from .._noise import with_noise
from .._parameters import ParameterRules
from .._targets import LIKELIHOODS
from .._typing import ArrayLike, Device, Dtype, MatrixLike, PathLike, RandomStateLike
from ._base import HybridMixin
from ._design import NetworkDesign
from ._held_out import RefittedNoiseLoss
from ._network import in_units_of_y
from ._training import (
    HYBRID_FOLLOWED,
    LOSS_USES,
    check_hybrid_parameters,
    fit_network,
    network_attributes,
)


class HybridSVGPRegressor(HybridMixin, GPRegressor):
    r"""Sparse variational Gaussian-process regressor on the features of a neural network.

    This is deep kernel learning: module, kernel, noise and posterior jointly maximize the ELBO. If
    rows are held out, the noise is then refitted to them. Several outputs share module, kernel and
    inducing points. See the :ref:`user guide <hybrid>`.

    Parameters
    ----------
    module : callable, default=None
        The network without its last layer: a `torch.nn.Module` class, or a function that returns a
        new Module, which maps a batch (b, \*row_shape) to features (b, D). A Module itself is not
        allowed, since every fit has its own weights. `MNISTExtractor` and `CIFAR10Extractor` are
        those of Wistuba and Rawat (2018). None is an `MLP` for tables, whose columns are
        standardized.
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
        marks are respected. A `WhiteKernel` in its sum is the noise, in squared units of the
        normalized y. None is a squared exponential.
    likelihood : {"gaussian", "student_t", "laplace"}, default="gaussian"
        Likelihood of the targets; see `SVGPRegressor`.
    normalize_y : bool, default=True
        Whether to center y and scale it to unit variance. If not, y should be of order one, which
        the initial values and limits of hyperparameters assume.
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
        Whether training ends when the loss of the held-out rows no longer falls, both with the
        refitted noise and with that of the ELBO. The model of the best epoch is kept, or the
        initial one if no epoch is better.
    validation_fraction : float, default=0.1
        With ``early_stopping``, the share of the rows that is held out of training, and to which
        the noise is refitted.
    n_iter_no_change : int, default=5
        With ``early_stopping``, the number of epochs without improvement that ends training.
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
    noise_variance_ : float or ndarray of shape (t,)
        Noise variance in squared units of y, without the known variances that `fit` was given. It
        is refitted to the held-out rows if there are any.
    kernel_ : Kernel
        Kernel of the features, with the learned hyperparameters.
    inducing_points_ : ndarray of shape (m, D)
        Inducing points, in units of the normalized features.
    input_shape_ : tuple of int
        Shape in which the module receives a row.
    validation_loss_ : float
        Lowest negative log density of the held-out rows in any epoch, with the refitted noise, in
        nats per row. That of new rows is slightly higher. NaN if no rows are held out.
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
    Source: Hensman et al. (2013); Wilson et al. (2016), stochastic variational deep kernel
    learning.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skgpsvm import HybridSVGPRegressor
    >>> X, y = make_friedman1(200, random_state=0)
    >>> gp = HybridSVGPRegressor(random_state=0).fit(X, y)
    >>> gp.score(X, y) > 0.9
    True
    """

    _rules = ParameterRules(LOSS_USES, HYBRID_FOLLOWED)
    _saved = "_likelihood", "noise_variance_", "_y_mean", "_y_std", "_y_ndim"

    # Fitted attributes
    noise_variance_: float | np.ndarray

    def __init__(
        self,
        module: Callable[..., torch.nn.Module] | None = None,
        *,
        module_params: dict[str, Any] | None = None,
        input_shape: Sequence[int] | None = None,
        augmentation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        kernel: Kernel | None = None,
        likelihood: Literal["gaussian", "student_t", "laplace"] = "gaussian",
        normalize_y: bool = True,
        n_inducing: int = 64,
        max_iter: int = 50,
        batch_size: int | None = None,
        learning_rate: float = 1e-3,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
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
        self.normalize_y = normalize_y
        self.n_inducing = n_inducing
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    @all_or_nothing
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Self:
        """Train the network and its head.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, ...), or torch.utils.data.Dataset
            Rows of any shape. A :ref:`source <sources>`, such as a Dataset or a memmap, is read in
            blocks.
        y : array-like of shape (n,) or (n, t)
            Targets, several for (n, t). None uses those of a Dataset.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log likelihood of each row: 0 removes the row. Weights count rows;
            inverse variances of the noise are not weights but ``noise_variance``.
        noise_variance : array-like of shape (n,) or (n, t), default=None
            Known variances of the noise of each row, such as squared measurement errors, in squared
            units of y. The learned variance, ``noise_variance_``, is added to them. Only with
            Gaussian noise.

        Returns
        -------
        self : HybridSVGPRegressor

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
        return fit_models(self, X, y, sample_weight, noise_variance=noise_variance)

    def _check_parameters(self):
        check_hybrid_parameters(self)
        self._check_choice("likelihood", tuple(LIKELIHOODS))
        self._check_bool("normalize_y")

    def load_weights(self, path: PathLike) -> Self:
        super().load_weights(path)
        self.kernel_ = self._kernel_with_noise(self.kernel_, self.noise_variance_)
        return self

    def _torch_output(self):
        return partial(in_units_of_y, self._y_mean, self._y_std)

    def _make_likelihood(self):
        return self._noise_model.sites()

    def _network_design(self):
        # From a solved posterior, features of the network would be learned less well.
        return NetworkDesign.of(self, 1.0, solved=("noise", "Z"))

    def _fit_model(self, problem):
        design = self._network_design()
        criterion = RefittedNoiseLoss(design.likelihood, self._noise_model.limits())
        share = self.validation_fraction if self.early_stopping else 0.0
        return fit_network(self, problem, design, criterion, share)

    def _fitted_attributes(self, models, summaries, streamed=False):
        (model,), ((loss, noise),) = models, summaries
        variance = self._noise_variance(noise.cpu())
        return {
            **network_attributes(self, model),
            "kernel_": self._kernel_with_noise(model.kernel, variance),
            "validation_loss_": loss + float(np.log(self._y_std).sum()),
            "noise_variance_": variance,
            "_likelihood": self.likelihood,
        }

    def _kernel_with_noise(self, kernel, variance):
        """Return the fitted kernel, with a noise term if the given kernel has one."""
        if self._noise_model.given is None:
            return kernel
        level = np.atleast_1d(variance / self._y_std**2)[0]
        return with_noise(self.kernel, kernel, float(level))
