"""`HybridBayesianSVC`: the estimator."""

from .._calibration import Calibration
from .._estimators import GPClassifier, all_or_nothing
from .._hinge_sites import BinarySites, ContrastSites
from .._parameters import ALWAYS
from .._predictive import pseudo_likelihood_probabilities
from ._base import HybridEstimator

_PRIOR_VARIANCE = 1.0
_FOLLOWED = {
    "fit": HybridEstimator._followed["fit"]
    | dict.fromkeys(("contrast", "early_stopping", "probability"), ALWAYS)
}


class HybridBayesianSVC(GPClassifier, HybridEstimator):
    r"""Bayesian support vector machine on the features of a neural network.

    Extractor and Bayesian SVM are one model, trained together by backpropagation in minibatches:
    a network whose last layer knows what it does not know. Class probabilities are calibrated on
    held-out rows. See the :ref:`user guide <hybrid>`.

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
    contrast : {"soft", "hard"}, default="soft"
        "soft" compares each row with all wrong classes (the nine strongest of more than ten);
        "hard", as in the paper, with the strongest one.
    probability : {"calibrated", "argmax"}, default="calibrated"
        Softmax of the latents averaged over the posterior, whose scale and spread are fitted to
        held-out rows; or the probability that a class has the largest latent, the limit of the
        paper's samples.
    n_inducing : int, default=64
        Number of inducing points, m, in the space of features; fewer where there are fewer rows.
    max_iter : int, default=50
        Passes over the rows, at most.
    batch_size : int, default=None
        Rows in a minibatch. None is a tenth of the rows, at least 16 and at most 128.
    learning_rate : float, default=1e-3
        First step size of Adam for the module; ten times that for the head. Both fall to zero along
        a cosine over ``max_iter`` passes.
    early_stopping : bool, default=False
        Whether training ends when the held-out rows' loss has stopped falling, and the weights of
        the best pass are kept.
    validation_fraction : float, default=0.1
        Share of the rows that are held out of training, to calibrate probabilities and to stop
        by. With 0 probabilities are not calibrated, but of a softmax of the latents as they are.
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
    temperature_ : float
        What the calibrated probabilities' softmax multiplies the latents by.
    spread_ : float
        What they multiply the latents' posterior variance by.
    validation_loss_ : float
        Log loss of the held-out rows, by which it is calibrated, nats a row; other rows have a
        little more. NaN where there are none.
    objective_curve_ : ndarray of shape (n_iterations,)
        Mean of the objective's estimates in each pass, nats; not a bound on the evidence, since the
        hinge is a pseudo-likelihood.
    n_iter_ : int
        Passes taken.
    n_features_in_ : int
        Number of entries of a row, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Wistuba and Rawat (2018), section 3.4.
    Departs from the source: features are normalized and inducing points start from k-means of
    them, without which the objective stays on the plateau of latents that are zero; the soft
    contrast; calibration.

    A step costs what the module costs, and O(b m (D + m)) for each latent that a row touches. X is
    held on the device where that takes at most 256 MiB, else read in minibatches.

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

    _followed = _FOLLOWED

    def __init__(
        self,
        module=None,
        *,
        module_params=None,
        input_shape=None,
        augmentation=None,
        kernel=None,
        contrast="soft",
        probability="calibrated",
        n_inducing=64,
        max_iter=50,
        batch_size=None,
        learning_rate=1e-3,
        early_stopping=False,
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

    _saved_attributes = ("classes_", "temperature_", "spread_")

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("contrast", ("soft", "hard"))
        self._check_choice("probability", ("calibrated", "argmax"))

    @all_or_nothing
    def fit(self, X, y=None, sample_weight=None):
        """Train network and Bayesian SVM.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, ...), or torch.utils.data.Dataset
            Rows of any shape. A memmap of float32, float64 or uint8 and a Dataset are read in
            minibatches, never copied whole.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans. None takes those of a Dataset.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the loss of each row: 0 removes it.

        Returns
        -------
        self : HybridBayesianSVC

        Raises
        ------
        TypeError
            If the module is none, or the kernel unknown.
        ValueError
            If parameters, data, weights or the shape of the module's output make no sense.
        DivergenceError
            If the objective or the module's output is no longer finite. The estimator is then not
            fitted or, with ``warm_start``, as it was.
        """
        return self._fit(X, y, sample_weight)

    def _class_probabilities(self):
        calibration = self.temperature_, self.spread_
        return pseudo_likelihood_probabilities(self.probability, *calibration)

    def _make_likelihood(self):
        if len(self.classes_) == 2:
            return BinarySites()
        return ContrastSites(len(self.classes_), self.contrast)

    def _prior_variance(self, n_latents):
        # One latent is the difference of two classes, whose prior variance is twice theirs.
        return _PRIOR_VARIANCE * (2 if n_latents == 1 else 1)

    def _held_out_losses(self, network, *moments):
        calibration = Calibration().updated(*moments)
        return [calibration.loss / calibration.weight]

    def _held_share(self):
        return self.validation_fraction  # to calibrate by, whether or not to stop by

    def _found(self, network, moments):
        calibration = Calibration()
        if moments:
            calibration = calibration.updated(*moments)
        weight = calibration.weight
        return {
            "temperature_": calibration.temperature,
            "spread_": calibration.spread,
            "validation_loss_": calibration.loss / weight if weight else float("nan"),
        }

    def _output(self, mean, var):
        probabilities = self._class_probabilities()
        return probabilities.of_moments(mean, probabilities.spread * var).log_p
