"""`SVGPClassifier`: the estimator."""

from .._estimators import all_or_nothing
from .._variational import VariationalClassifier


class SVGPClassifier(VariationalClassifier):
    r"""Sparse variational Gaussian-process classification.

    One latent function a class, or one in all for two, has a Gaussian-process prior; a Gaussian
    posterior over its values at m inducing points stands for all n rows and maximizes a lower bound
    on the evidence: by natural gradients, with steps of Adam on kernel and inducing points between
    them, or by Adam alone. See the :ref:`user guide <svgp>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function. Its values, bounds and "fixed" marks rule the
        optimization. None is a squared exponential with a length scale for each feature, whose
        hyperparameters have a prior.
    likelihood : {"softmax", "probit", "robust_max"}, default="softmax"
        Softmax of the latents, with two classes the logistic function of one; the normal
        distribution function of one, for two classes only; or the class of the largest latent, but
        for one label in a thousand.
    inference : {"natural_gradient", "gradient"}, default="natural_gradient"
        Natural gradients for the posterior, or Adam for everything.
    mean : {"zero", "constant", "linear"}, default="linear"
        Mean function: coefficients with a prior, which are part of the kernel as a fixed constant
        and a fixed linear term. The linear one's variance is chosen from five values by the bound
        of a linear model, where hyperparameters are learned.
    n_inducing : int, default=256
        Number of inducing points, m; fewer where the data have fewer distinct rows. Without effect
        where ``inducing_points`` is an array.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Where they start: centers of clusters of the standardized rows, rows drawn at random, or
        these, in units of X.
    learn_inducing : bool, default=True
        Whether the inducing points are moved.
    optimizer : {"auto"} or None, default="auto"
        Whether the kernel is learned.
    max_iter : int, default=100
        Passes over the rows, at most.
    tol : float, default=1e-2
        Stop when a pass changes the posterior means by less, relative to their norm.
    batch_size : int, default=None
        Rows in a minibatch. None is all rows for natural gradients up to 10,000 rows, else 1024;
        256 for Adam alone. Between natural gradients Adam takes up to 1024 rows in any case.
    learning_rate : float, default=None
        Step size of Adam; None is 0.05.
    class_weight : dict or "balanced", default=None
        Multiplies the sample weights of each class.
    warm_start : bool, default=False
        Whether `fit` starts from the kernel, inducing points and posterior of the last one. A
        change of what such a model holds, such as ``kernel``, is refused by name.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of the passes over rows; None is that of X. Algebra of inducing points is in float64.
    random_state : int, RandomState instance or None, default=None
        Rules k-means and minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    kernel_ : Kernel
        With the learned hyperparameters, the mean function's terms included.
    inducing_points_ : ndarray of shape (m, d)
        In the units of X.
    elbo_ : float
        Lower bound on the log evidence, nats; an estimate of it for the softmax of more than two
        classes.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound, or its estimate from minibatches, along the way; with the default kernel the
        prior of its hyperparameters is in it.
    n_iter_ : int
        Passes taken.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Hensman et al. (2015); Khan and Lin (2017) for the natural gradients. A pass costs
    O(n m^2) for each latent function.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import SVGPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> gp = SVGPClassifier(n_inducing=20, random_state=0).fit(X, y)
    >>> gp.score(X, y) > 0.95
    True
    """

    def __init__(
        self,
        kernel=None,
        *,
        likelihood="softmax",
        inference="natural_gradient",
        mean="linear",
        n_inducing=256,
        inducing_points="kmeans",
        learn_inducing=True,
        optimizer="auto",
        max_iter=100,
        tol=1e-2,
        batch_size=None,
        learning_rate=None,
        class_weight=None,
        warm_start=False,
        device=None,
        dtype=None,
        random_state=None,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.inference = inference
        self.mean = mean
        self.n_inducing = n_inducing
        self.inducing_points = inducing_points
        self.learn_inducing = learn_inducing
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    def _check_parameters(self):
        self._check_choice("inference", ("natural_gradient", "gradient"))
        self._check_variational_parameters()

    @all_or_nothing
    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            A large float32 or float64 memmap is read in chunks, never copied whole.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log likelihood of each row: 0 removes it, an integer repeats it.

        Returns
        -------
        self : SVGPClassifier

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights make no sense.
        DivergenceError
            If the bound is no longer finite. The estimator is then not fitted or, with
            ``warm_start``, as it was.
        """
        return self._fit(X, y, sample_weight)

    @all_or_nothing
    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Learn from more rows, as new data.

        The first call fits as `fit` does. Every later one holds kernel and inducing points, and
        takes the posterior so far as the prior of its rows: a row counts as often as it is passed.
        The first rows should hold some of every class, since what they say of kernel and points
        stays.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        classes : array-like of shape (c,), default=None
            All classes that may come; needed in the first call where its ``y`` lacks some.
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : SVGPClassifier

        Raises
        ------
        ValueError
            If parameters, data or weights make no sense, or a class comes that is not known.
        """
        return self._partial_fit(X, y, sample_weight, classes)
