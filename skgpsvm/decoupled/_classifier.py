"""`DecoupledGPClassifier`: the estimator."""

from .._estimators import all_or_nothing
from .._variational import VariationalClassifier
from ._base import DecoupledGP


class DecoupledGPClassifier(DecoupledGP, VariationalClassifier):
    r"""Gaussian-process classification with means on thousands of bases, covariances on hundreds.

    Posterior means and covariances of the latent functions, one a class, or one in all for two,
    live on bases of their own: the means on ``n_mean_bases`` rows, the covariances on
    ``n_inducing`` inducing points. Natural-gradient steps alternate with preconditioned conjugate
    gradients for the means. See the :ref:`user guide <decoupled>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function. Its values, bounds and "fixed" marks rule the
        optimization. None is a squared exponential with a length scale for each feature,
        whose hyperparameters have a prior; with ``solver="sgd"`` a `MultiscaleRBF`, whose
        bases have length scales of their own.
    likelihood : {"softmax", "probit", "robust_max"}, default="softmax"
        Softmax of the latents, with two classes the logistic function of one; the normal
        distribution function of one, for two classes only; or the class of the largest latent, but
        for one label in a thousand.
    solver : {"cg", "sgd"}, default="cg"
        Hyperparameters from some thousand rows, then conjugate gradients on all of them; or
        stochastic gradients for everything, bases from each minibatch: the paper's Algorithm 1.
    parametrization : {"orthogonal", "hybrid", "shared", "decoupled"}, default="orthogonal"
        Of ``solver="sgd"``: whether the mean has bases of its own alone (the last, the paper's) or
        the inducing points too, and how they are told apart. Not for "cg", which finds the optimum
        on its bases.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function: coefficients with a prior, as of `SVGPClassifier`. None is
        "linear", with ``solver="sgd"`` "zero", the only one that it knows.
    n_mean_bases : int, default=2000
        Bases of the mean, M; rows drawn at random, all of them where there are no more.
    n_inducing : int, default=256
        Inducing points of the covariance, m; fewer where the data have fewer distinct rows. "sgd"
        adds as many bases from each minibatch. Without effect where ``inducing_points`` is an
        array.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Where they start: centers of clusters of the standardized rows, rows drawn at random, or
        these, in units of X. Not for "sgd", whose bases come from the minibatches.
    learn_inducing : bool, default=True
        Whether the inducing points are moved, by "sgd" the mean's bases too.
    optimizer : {"auto"} or None, default="auto"
        Whether the kernel is learned: "cg" learns it by a sparse GP of at most 10,000 rows.
    max_iter : int, default=100
        Passes over the rows, at most: iterations of conjugate gradients, or passes of minibatches.
        `partial_fit` of "sgd" takes one.
    tol : float, default=1e-2
        Stop conjugate gradients when a natural-gradient step changes the means by less, relative to
        their norm. Not for "sgd".
    batch_size : int, default=None
        Rows in a minibatch; None is 1024. For "cg" of the rows that the kernel is learned from,
        where None is all.
    learning_rate : float, default=None
        Step size of Adam, None is 0.05; step t of "sgd" has ``learning_rate / (1 + 0.1 sqrt(t))``.
    class_weight : dict or "balanced", default=None
        Multiplies the sample weights of each class.
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters and inducing points of the last one; "sgd"
        from all of its state. A change of what such a model holds, such as ``kernel``, is refused
        by name.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of the covariance's features, and of minibatches; the mean of "cg" is solved for in float64.
        None is that of X.
    random_state : int, RandomState instance or None, default=None
        Rules k-means, the rows that are bases, and minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    kernel_ : Kernel
        With the learned hyperparameters, the mean function's terms included.
    inducing_points_ : ndarray of shape (m, d)
        In the units of X; of a `MultiscaleRBF` under "sgd" (m, 2 d), log multipliers last.
    mean_bases_ : ndarray of shape (M, d)
        Likewise.
    elbo_ : float
        Lower bound on the log evidence, nats.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound along the way; of "sgd" its estimates.
    n_iter_ : int
        Passes taken.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Cheng and Boots (2017); Salimbeni et al. (2018) for the orthogonal form; Rudi, Carratino
    and Rosasco (2017) for the preconditioner.

    A pass costs O(n M), the preconditioner of each latent O(M^3); memory beyond X is about
    ``8 * ((c + 3) * M**2 + 2**23)`` bytes for c latents, since products with the kernel matrix of
    rows and bases go in chunks. A prediction costs O(M + m^2) a row and latent.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import DecoupledGPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> gp = DecoupledGPClassifier(n_inducing=20, random_state=0).fit(X, y)
    >>> gp.score(X, y) > 0.95
    True
    """

    def __init__(
        self,
        kernel=None,
        *,
        likelihood="softmax",
        solver="cg",
        parametrization="orthogonal",
        mean=None,
        n_mean_bases=2000,
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
        self.solver = solver
        self.parametrization = parametrization
        self.mean = mean
        self.n_mean_bases = n_mean_bases
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
        self : DecoupledGPClassifier

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

        With ``solver="cg"`` the first call fits as `fit` does; every later one holds kernel,
        inducing points and bases, and takes the posterior so far as the prior of its rows, so
        that the first rows should hold some of every class. With "sgd" a call is one pass of
        minibatches that adds bases and learns everything.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        classes : array-like of shape (c,), default=None
            All classes that may come; needed in the first call where its ``y`` lacks some.
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : DecoupledGPClassifier

        Raises
        ------
        ValueError
            If parameters, data or weights make no sense, or a class comes that is not known.
        """
        return self._partial_fit(X, y, sample_weight, classes)
