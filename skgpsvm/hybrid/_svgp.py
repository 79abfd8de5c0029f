"""`HybridSVGPClassifier` and `HybridSVGPRegressor`: sparse variational GPs on a network."""

import numpy as np
import torch

from .._estimators import GPClassifier, GPRegressor, all_or_nothing
from .._noise import with_noise
from .._optim import NOISE_BOUNDS, by_autograd, lbfgs
from .._parameters import where
from .._predictive import LIKELIHOODS, classification_sites
from ._base import HybridEstimator

_START_NOISE = 0.1
_NOISE_STEPS = 50
_NOISE_PRIOR_STD = 1.0  # of the likeliest noise's logarithm, about that of the bound
_USES = HybridEstimator._uses | {"validation_fraction": where(early_stopping=True)}


class _Likely(HybridEstimator):
    """A head with a proper likelihood."""

    _uses = _USES

    _saved_attributes = ("_likelihood",)

    def _log_density(self, noise, mean, var, targets, weights):
        likelihood = self._make_likelihood().at(noise).likelihood
        return weights @ likelihood.log_marginal(targets, mean, var)

    def _held_out_loss(self, noise, *moments):
        return -(self._log_density(noise, *moments) / moments[-1].sum()).item()

    def _held_out_losses(self, network, *moments):
        return [self._held_out_loss(network.noise.detach(), *moments)]

    def _found(self, network, moments):
        losses = self._held_out_losses(network, *moments) if moments else [float("nan")]
        return {"validation_loss_": losses[0], "_likelihood": self.likelihood}


class HybridSVGPClassifier(GPClassifier, _Likely):
    r"""Sparse variational Gaussian-process classifier on the features of a neural network.

    Deep kernel learning: module, kernel and posterior maximize one bound on the evidence. See the
    :ref:`user guide <hybrid>`.

    Parameters
    ----------
    module : callable, default=None
        A `torch.nn.Module` class, or a function that makes one, never a Module itself: every fit
        has weights of its own. It maps a batch (b, \*row_shape) to features (b, D).
        `MNISTExtractor` and `CIFAR10Extractor` are the paper's. None is an `MLP` of standardized
        features, for tables.
    module_params : dict, default=None
        Arguments of ``module``.
    input_shape : tuple of int, default=None
        Shape of a row as the module takes it, where rows of X are flat. None is that of X.
    augmentation : callable, default=None
        Takes a training batch, a tensor (b, \*row_shape), and gives one like it.
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Of the features, each normalized to mean zero and variance one. Its values, bounds and
        "fixed" marks rule the optimization. None is a squared exponential.
    likelihood : {"softmax", "probit", "robust_max"}, default="softmax"
        As of `SVGPClassifier`.
    n_inducing : int, default=64
        Number of inducing points, m, in the space of features; fewer where there are fewer rows.
    max_iter : int, default=50
        Passes over the rows, at most.
    batch_size : int, default=None
        Rows in a minibatch. None is a tenth of the rows, at least 16 and at most 128.
    learning_rate : float, default=1e-3
        First step size of Adam for the module; ten times that for the head. Both fall to zero along
        a cosine over ``max_iter`` passes.
    early_stopping : bool, default=True
        Whether training ends when the held-out rows' loss has stopped falling, and the weights of
        the best pass are kept.
    validation_fraction : float, default=0.1
        Share of the rows that are held out of training, to stop by, with ``early_stopping``.
    n_iter_no_change : int, default=5
        Passes without improvement that end training, with ``early_stopping``; where a pass has
        fewer than 20 steps, as many times more as make up for it.
    class_weight : dict or "balanced", default=None
        Multiplies the sample weights of each class.
    warm_start : bool, default=False
        Whether `fit` starts from the network of the last one. A change of what such a model holds,
        such as ``kernel``, is refused by name.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of the network; None is that of X, float32 for uint8. The head's algebra is in float64.
    random_state : int, RandomState instance or None, default=None
        Rules first weights, held-out rows, minibatches, dropout and augmentation.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    kernel_ : Kernel
        Of the features, with the learned hyperparameters.
    inducing_points_ : ndarray of shape (m, D)
        Normalized features.
    input_shape_ : tuple of int
        Shape of a row as the module takes it.
    validation_loss_ : float
        Negative log probability of the held-out rows, the least of all passes, nats a row; NaN
        where there are none.
    objective_curve_ : ndarray of shape (n_iterations,)
        Mean of the bound's estimates in each pass, nats.
    n_iter_ : int
        Passes taken.
    n_features_in_ : int
        Number of entries of a row, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

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

    _saved_attributes = (*_Likely._saved_attributes, "classes_")

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("likelihood", ("softmax", "probit", "robust_max"))

    @all_or_nothing
    def fit(self, X, y=None, sample_weight=None):
        """Train network and head.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, ...), or torch.utils.data.Dataset
            Rows of any shape. A memmap of float32, float64 or uint8 and a Dataset are read in
            minibatches, never copied whole.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans. None takes those of a Dataset.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log likelihood of each row: 0 removes it.

        Returns
        -------
        self : HybridSVGPClassifier

        Raises
        ------
        TypeError
            If the module is none, or the kernel unknown.
        ValueError
            If parameters, data, weights or the shape of the module's output make no sense.
        DivergenceError
            If the bound or the module's output is no longer finite. The estimator is then not
            fitted or, with ``warm_start``, as it was.
        """
        return self._fit(X, y, sample_weight)

    def _make_likelihood(self):
        return classification_sites(self.likelihood, len(self.classes_))

    def _prior_variance(self, n_latents):
        return 5.0

    def _output(self, mean, var):
        return self._class_probabilities().of_moments(mean, var).log_p


class HybridSVGPRegressor(GPRegressor, _Likely):
    r"""Sparse variational Gaussian-process regressor on the features of a neural network.

    Deep kernel learning: module, kernel, noise and posterior maximize one bound on the evidence;
    with rows held out, the noise is then the one under which those are likeliest. Outputs share all
    but posterior and noise. See the :ref:`user guide <hybrid>`.

    Parameters
    ----------
    module : callable, default=None
        A `torch.nn.Module` class, or a function that makes one, never a Module itself: every fit
        has weights of its own. It maps a batch (b, \*row_shape) to features (b, D).
        `MNISTExtractor` and `CIFAR10Extractor` are the paper's. None is an `MLP` of standardized
        features, for tables.
    module_params : dict, default=None
        Arguments of ``module``.
    input_shape : tuple of int, default=None
        Shape of a row as the module takes it, where rows of X are flat. None is that of X.
    augmentation : callable, default=None
        Takes a training batch, a tensor (b, \*row_shape), and gives one like it.
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Of the features, each normalized to mean zero and variance one. Its values, bounds and
        "fixed" marks rule the optimization; a `WhiteKernel` in its sum is the noise, in squared
        units of the normalized y. None is a squared exponential.
    likelihood : {"gaussian", "student_t", "laplace"}, default="gaussian"
        As of `SVGPRegressor`.
    normalize_y : bool, default=True
        Whether each output is centered and scaled for the fit. Otherwise y should be of
        order one: where learning starts, and its limits, are in units of one.
    n_inducing : int, default=64
        Number of inducing points, m, in the space of features; fewer where there are fewer rows.
    max_iter : int, default=50
        Passes over the rows, at most.
    batch_size : int, default=None
        Rows in a minibatch. None is a tenth of the rows, at least 16 and at most 128.
    learning_rate : float, default=1e-3
        First step size of Adam for the module; ten times that for the head. Both fall to zero along
        a cosine over ``max_iter`` passes.
    early_stopping : bool, default=True
        Whether training ends when the held-out rows' loss has stopped falling, with the noise that
        they show and with that of the bound; the weights of the best pass are kept.
    validation_fraction : float, default=0.1
        Share of the rows that are held out of training, to stop and to set the noise by, with
        ``early_stopping``.
    n_iter_no_change : int, default=5
        Passes without improvement that end training, with ``early_stopping``; where a pass has
        fewer than 20 steps, as many times more as make up for it.
    warm_start : bool, default=False
        Whether `fit` starts from the network of the last one. A change of what such a model holds,
        such as ``kernel``, is refused by name.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of the network; None is that of X, float32 for uint8. The head's algebra is in float64.
    random_state : int, RandomState instance or None, default=None
        Rules first weights, held-out rows, minibatches, dropout and augmentation.

    Attributes
    ----------
    noise_variance_ : float or ndarray of shape (t,)
        In squared units of y; the noise that the held-out rows show, where there are any.
    kernel_ : Kernel
        Of the features, with the learned hyperparameters.
    inducing_points_ : ndarray of shape (m, D)
        Normalized features.
    input_shape_ : tuple of int
        Shape of a row as the module takes it.
    validation_loss_ : float
        Negative log probability of the held-out rows, the least of all passes at the noise that
        they show, nats a row; other rows have a little more. NaN where there are none.
    objective_curve_ : ndarray of shape (n_iterations,)
        Mean of the bound's estimates in each pass, nats.
    n_iter_ : int
        Passes taken.
    n_features_in_ : int
        Number of entries of a row, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

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
        *_Likely._saved_attributes,
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
        """Train network and head.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, ...), or torch.utils.data.Dataset
            Rows of any shape. A memmap of float32, float64 or uint8 and a Dataset are read in
            minibatches, never copied whole.
        y : array-like of shape (n,) or (n, t)
            Targets. None takes those of a Dataset.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log likelihood of each row: 0 removes it.
            Divide inverse variances by their mean, as weights count rows.

        Returns
        -------
        self : HybridSVGPRegressor

        Raises
        ------
        TypeError
            If the module is none, or the kernel unknown.
        ValueError
            If parameters, data, weights or the shape of the module's output make no sense.
        DivergenceError
            If the bound or the module's output is no longer finite. The estimator is then not
            fitted or, with ``warm_start``, as it was.
        """
        return self._fit(X, y, sample_weight)

    def _make_likelihood(self):
        return self._noise_sites(_START_NOISE)

    def _whole_kernel(self, kernel, attributes):
        if self._given_noise is None:
            return kernel
        levels = np.atleast_1d(attributes["noise_variance_"]) / attributes["_y_std"] ** 2
        return with_noise(self.kernel, kernel, float(levels[0]))

    def _prior_variance(self, n_latents):
        return 1.0

    def _noise(self, network, moments):
        """That under which rows held out are likeliest; where there are none, the bound's."""
        learned = network.noise.detach()
        if not moments:
            return learned

        def density(noise):
            misfit = ((noise - learned) / _NOISE_PRIOR_STD).square().sum()
            return self._log_density(noise, *moments) - 0.5 * misfit

        bounds = learned.new_tensor([self._noise_limits(NOISE_BOUNDS)]).expand(len(learned), 2)
        return lbfgs(by_autograd(density), learned, bounds, _NOISE_STEPS)[0]

    def _held_out_losses(self, network, *moments):
        likeliest = self._held_out_loss(self._noise(network, moments), *moments)
        return [likeliest, *super()._held_out_losses(network, *moments)]

    def _found(self, network, moments):
        noise_variance = self._noise_variance(self._noise(network, moments).cpu())
        found = super()._found(network, moments)
        found["validation_loss_"] += float(np.log(self._y_std).sum())
        return {**found, "noise_variance_": noise_variance}

    def _output(self, mean, var):
        scale, shift = (torch.tensor(part).to(mean) for part in (self._y_std, self._y_mean))
        return mean * scale + shift
