"""The estimators `HybridSVGPClassifier` and `HybridSVGPRegressor`."""

import numpy as np
import torch

from .._estimators import GPClassifier, GPRegressor, all_or_nothing, fit_models
from .._noise import with_noise
from .._optim import by_autograd, lbfgs
from .._parameters import where
from .._predictive import LIKELIHOODS, classification_sites
from ._base import HybridEstimator

_NOISE_STEPS = 50
# Standard deviation of the log noise's prior on held-out rows; its mean is the learned log noise.
_NOISE_PRIOR_STD = 1.0
_USES = HybridEstimator._uses | {"validation_fraction": where(early_stopping=True)}


def _log_density(likelihood, noise, moments):
    """Return the log predictive density of held-out rows, a scalar tensor.

    Parameters
    ----------
    likelihood : SiteLikelihood
    noise : Tensor of shape (k,)
        Logarithms of the likelihood's parameters.
    moments : LatentMoments
    """
    log_p = likelihood.at(noise).likelihood.log_marginal(moments.targets, moments.mean, moments.var)
    return moments.weights @ log_p


def _held_out_loss(likelihood, noise, moments):
    """Return the negative log predictive density of held-out rows, in nats per row."""
    return -(_log_density(likelihood, noise, moments) / moments.weights.sum()).item()


class HybridSVGPClassifier(GPClassifier, HybridEstimator):
    r"""Sparse variational Gaussian-process classifier on the features of a neural network.

    Deep kernel learning: module, kernel and posterior jointly maximize the ELBO. See the
    :ref:`user guide <hybrid>`.

    Parameters
    ----------
    module : callable, default=None
        Extractor of features: a `torch.nn.Module` class, or a function that returns a new Module.
        A Module itself is not allowed, since every fit has its own weights. It maps a batch
        (b, \*row_shape) to features (b, D). `MNISTExtractor` and `CIFAR10Extractor` are the
        paper's. None is an `MLP` of the standardized features, for tables.
    module_params : dict, default=None
        Keyword arguments of ``module``.
    input_shape : tuple of int, default=None
        Shape of a row as the module takes it, if rows of X are flat. None is the shape in X.
    augmentation : callable, default=None
        Random transformation of training batches: takes a tensor (b, \*row_shape) and returns one
        of the same shape.
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent functions of the features, each normalized to mean zero and
        variance one. Its values are where optimization starts; its bounds and "fixed" marks are
        respected. None is a squared exponential.
    likelihood : {"softmax", "probit", "robust_max"}, default="softmax"
        Likelihood of the labels; see `SVGPClassifier`.
    n_inducing : int, default=64
        Number of inducing points, m, in the space of features. Fewer are used if there are fewer
        rows.
    max_iter : int, default=50
        Maximum number of epochs. The learning rates decay to zero over them.
    batch_size : int, default=None
        Rows in a minibatch. None is a tenth of the rows, but at least 16 and at most 128.
    learning_rate : float, default=1e-3
        Initial learning rate of Adam for the module; that of the head is ten times higher. Both
        decay to zero as a cosine over ``max_iter`` epochs.
    early_stopping : bool, default=True
        Whether training ends when the loss of the held-out rows no longer falls. The weights of
        the best epoch are kept.
    validation_fraction : float, default=0.1
        Share of the rows that are held out of training, with ``early_stopping``.
    n_iter_no_change : int, default=5
        With ``early_stopping``, the number of epochs without improvement that ends training. If an
        epoch has fewer than 20 steps, the number is raised to make up for it.
    class_weight : dict or "balanced", default=None
        Factors of the sample weights, by class.
    warm_start : bool, default=False
        Whether `fit` starts from the network of the last fit. A changed parameter that such a fit
        could not follow, such as ``kernel``, raises an error.
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
    kernel_ : Kernel
        Kernel of the features, with the learned hyperparameters.
    inducing_points_ : ndarray of shape (m, D)
        In units of the normalized features.
    input_shape_ : tuple of int
        Shape of a row as the module takes it.
    validation_loss_ : float
        Lowest negative log probability of the held-out rows in any epoch, in nats per row. NaN if
        no rows are held out.
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

    _uses = _USES

    def __init__(
        self,
        module=None,
        *,
        module_params=None,
        input_shape=None,
        augmentation=None,
        kernel=None,
        likelihood="softmax",
        n_inducing=64,
        max_iter=50,
        batch_size=None,
        learning_rate=1e-3,
        early_stopping=True,
        validation_fraction=0.1,
        n_iter_no_change=5,
        class_weight=None,
        warm_start=False,
        device=None,
        dtype=None,
        random_state=None,
    ):
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

    _saved_attributes = ("_likelihood", "classes_")

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("likelihood", ("softmax", "probit", "robust_max"))

    @all_or_nothing
    def fit(self, X, y=None, sample_weight=None):
        """Train the network and the Gaussian process.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, ...), or torch.utils.data.Dataset
            Rows of any shape. A memmap of float32, float64 or uint8 and a Dataset are read in
            minibatches and never copied as a whole.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans. None uses those of a Dataset.
        sample_weight : array-like of shape (n,), default=None
            Factor of the log likelihood of each row: 0 removes the row.

        Returns
        -------
        self : HybridSVGPClassifier

        Raises
        ------
        TypeError
            If ``module`` returns no Module, or the kernel is unknown.
        ValueError
            If parameters, data, weights or the shape of the module's output are invalid.
        DivergenceError
            If the ELBO or the module's output is no longer finite. The estimator is then unfitted
            or, with ``warm_start``, unchanged.
        """
        return fit_models(self, X, y, sample_weight)

    def _make_likelihood(self):
        return classification_sites(self.likelihood, len(self.classes_))

    def _prior_variance(self, n_latents):
        return 5.0

    def _held_out_losses(self, network, moments):
        return [_held_out_loss(self._make_likelihood(), network.noise.detach(), moments)]

    def _held_out_attributes(self, network, moments):
        loss = float("nan") if moments is None else self._held_out_losses(network, moments)[0]
        return {"validation_loss_": loss, "_likelihood": self.likelihood}

    def _output(self, mean, var):
        return self._class_probabilities().of_moments(mean, var).log_p


class HybridSVGPRegressor(GPRegressor, HybridEstimator):
    r"""Sparse variational Gaussian-process regressor on the features of a neural network.

    Deep kernel learning: module, kernel, noise and posterior jointly maximize the ELBO. If rows
    are held out, the noise is then refitted to them. Several outputs share all but the posterior
    and the noise. See the :ref:`user guide <hybrid>`.

    Parameters
    ----------
    module : callable, default=None
        Extractor of features: a `torch.nn.Module` class, or a function that returns a new Module.
        A Module itself is not allowed, since every fit has its own weights. It maps a batch
        (b, \*row_shape) to features (b, D). `MNISTExtractor` and `CIFAR10Extractor` are the
        paper's. None is an `MLP` of the standardized features, for tables.
    module_params : dict, default=None
        Keyword arguments of ``module``.
    input_shape : tuple of int, default=None
        Shape of a row as the module takes it, if rows of X are flat. None is the shape in X.
    augmentation : callable, default=None
        Random transformation of training batches: takes a tensor (b, \*row_shape) and returns one
        of the same shape.
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent functions of the features, each normalized to mean zero and
        variance one. Its values are where optimization starts; its bounds and "fixed" marks are
        respected. A `WhiteKernel` in its sum is the noise, in squared units of the normalized y.
        None is a squared exponential.
    likelihood : {"gaussian", "student_t", "laplace"}, default="gaussian"
        Likelihood of the targets; see `SVGPRegressor`.
    normalize_y : bool, default=True
        Whether each output is standardized for the fit. If not, y should be of order one, since
        initial values and bounds are.
    n_inducing : int, default=64
        Number of inducing points, m, in the space of features. Fewer are used if there are fewer
        rows.
    max_iter : int, default=50
        Maximum number of epochs. The learning rates decay to zero over them.
    batch_size : int, default=None
        Rows in a minibatch. None is a tenth of the rows, but at least 16 and at most 128.
    learning_rate : float, default=1e-3
        Initial learning rate of Adam for the module; that of the head is ten times higher. Both
        decay to zero as a cosine over ``max_iter`` epochs.
    early_stopping : bool, default=True
        Whether training ends when the loss of the held-out rows no longer falls, neither with the
        refitted noise nor with that of the ELBO. The weights of the best epoch are kept.
    validation_fraction : float, default=0.1
        Share of the rows that are held out of training, with ``early_stopping``. The noise is
        refitted to them.
    n_iter_no_change : int, default=5
        With ``early_stopping``, the number of epochs without improvement that ends training. If an
        epoch has fewer than 20 steps, the number is raised to make up for it.
    warm_start : bool, default=False
        Whether `fit` starts from the network of the last fit. A changed parameter that such a fit
        could not follow, such as ``kernel``, raises an error.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Precision of the network; None is that of X, and float32 for uint8. The head is in float64.
    random_state : int, RandomState instance or None, default=None
        Seeds initial weights, held-out rows, minibatches, dropout and augmentation.

    Attributes
    ----------
    noise_variance_ : float or ndarray of shape (t,)
        Noise variance in squared units of y, refitted to the held-out rows if there are any.
    kernel_ : Kernel
        Kernel of the features, with the learned hyperparameters.
    inducing_points_ : ndarray of shape (m, D)
        In units of the normalized features.
    input_shape_ : tuple of int
        Shape of a row as the module takes it.
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
    >>> X, y = make_friedman1(500, random_state=0)
    >>> gp = HybridSVGPRegressor(random_state=0).fit(X, y)
    >>> gp.score(X, y) > 0.9
    True
    """

    _uses = _USES

    def __init__(
        self,
        module=None,
        *,
        module_params=None,
        input_shape=None,
        augmentation=None,
        kernel=None,
        likelihood="gaussian",
        normalize_y=True,
        n_inducing=64,
        max_iter=50,
        batch_size=None,
        learning_rate=1e-3,
        early_stopping=True,
        validation_fraction=0.1,
        n_iter_no_change=5,
        warm_start=False,
        device=None,
        dtype=None,
        random_state=None,
    ):
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

    _saved_attributes = (
        "_likelihood",
        "noise_variance_",
        "_y_mean",
        "_y_std",
        "_y_ndim",
    )

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("likelihood", tuple(LIKELIHOODS))
        self._check_bool("normalize_y")

    @all_or_nothing
    def fit(self, X, y=None, sample_weight=None):
        """Train the network and the Gaussian process.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, ...), or torch.utils.data.Dataset
            Rows of any shape. A memmap of float32, float64 or uint8 and a Dataset are read in
            minibatches and never copied as a whole.
        y : array-like of shape (n,) or (n, t)
            Targets. None uses those of a Dataset.
        sample_weight : array-like of shape (n,), default=None
            Factor of the log likelihood of each row: 0 removes the row.
            Weights count rows: to pass inverse variances, divide them by their mean.

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
            If the ELBO or the module's output is no longer finite. The estimator is then unfitted
            or, with ``warm_start``, unchanged.
        """
        return fit_models(self, X, y, sample_weight)

    def _make_likelihood(self):
        return self._noise_model.sites()

    def _whole_kernel(self, kernel, attributes):
        if self._noise_model.given is None:
            return kernel
        levels = np.atleast_1d(attributes["noise_variance_"]) / attributes["_y_std"] ** 2
        return with_noise(self.kernel, kernel, float(levels[0]))

    def _prior_variance(self, n_latents):
        return 1.0

    def _refitted_noise(self, network, moments):
        """Return the log noise that maximizes the held-out density, given a prior.

        The prior is normal about the learned noise, which is returned if no rows are held out.
        """
        learned, likelihood = network.noise.detach(), self._make_likelihood()
        if moments is None:
            return learned

        def density(noise):
            misfit = ((noise - learned) / _NOISE_PRIOR_STD).square().sum()
            return _log_density(likelihood, noise, moments) - 0.5 * misfit

        bounds = learned.new_tensor([self._noise_model.limits()]).expand(len(learned), 2)
        return lbfgs(by_autograd(density), learned, bounds, _NOISE_STEPS)[0]

    def _held_out_losses(self, network, moments):
        noises = self._refitted_noise(network, moments), network.noise.detach()
        return [_held_out_loss(self._make_likelihood(), noise, moments) for noise in noises]

    def _held_out_attributes(self, network, moments):
        noise = self._refitted_noise(network, moments)
        loss = float("nan")
        if moments is not None:
            loss = _held_out_loss(self._make_likelihood(), noise, moments)
        return {
            "validation_loss_": loss + float(np.log(self._y_std).sum()),
            "noise_variance_": self._noise_variance(noise.cpu()),
            "_likelihood": self.likelihood,
        }

    def _output(self, mean, var):
        scale, shift = (torch.tensor(part).to(mean) for part in (self._y_std, self._y_mean))
        return mean * scale + shift
