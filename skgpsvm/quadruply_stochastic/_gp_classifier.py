"""`QSGPClassifier`: the estimator."""

from sklearn.utils.metaestimators import available_if

from .._estimators import all_or_nothing
from .._variational import VariationalClassifier
from ._gp_base import QuadruplyStochasticGP, has_partial_fit


class QSGPClassifier(QuadruplyStochasticGP, VariationalClassifier):
    r"""Quadruply stochastic Gaussian-process classification: very many functions span the means.

    The latent means, one a class, or one in all for two, are weighted sums of ``n_basis`` random
    Fourier features or kernels at rows. Natural-gradient steps alternate with preconditioned
    conjugate gradients for the weights; or these are learned, under a quadratic bound of the
    likelihood, by steps that sample rows once and functions twice, so that their cost depends on
    neither number. See the :ref:`user guide <quadruply_stochastic>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function; with Fourier features a sum of RBF and Matern
        kernels times constants. Its values, bounds and "fixed" marks rule the optimization. None is
        a squared exponential with a length scale for each feature, whose hyperparameters have a
        prior.
    solver : {"cg", "sgd", "adagrad"}, default="cg"
        How the mean's coefficients are found: preconditioned conjugate gradients, which see all
        functions at all rows in every iteration; or stochastic steps, whose cost depends on neither
        number, of constant size with an average (sgd) or scaled by past gradients (the paper's).
    basis : {"fourier", "orthogonal", "inducing"}, default="fourier"
        Functions: cosines and sines of random frequencies, independent or orthogonal in blocks of
        d, of an RBF or Matern kernel; or kernels at rows.
    n_basis : int, default=4000
        How many, m: rounded up to pairs of cosine and sine; of rows at most all of them.
    covariance : {"nystroem", "chevron", "mean_field"}, default="nystroem"
        Of the latent function. "nystroem" lives on the inducing points, at a cost that does not
        depend on m. The others are the paper's, over the weights: independent, or with
        ``n_dense_columns`` dense columns of their covariance's factor.
    n_dense_columns : int, default=10
        Of "chevron".
    augment : bool, default=False
        Whether the variance at x has that of one more kernel function at x itself added, up to the
        prior's; for ``basis="inducing"`` with "chevron" or "mean_field", whose variance would fall
        to zero far from the data. Keeps the training rows.
    control_variate : {"interpolating", "gram", None}, default="interpolating"
        Of stochastic steps, from the mean at ``n_support`` rows: kriging to the minibatch, or the
        paper's. All leave the gradient unbiased.
    gradient : {"symmetric", "plain"}, default="symmetric"
        Of stochastic steps: whether the linear term is split between the two draws of functions, or
        the first has all of it, the paper's form.
    n_sampled_basis : int, default=1024
        Units in each of the two draws of a stochastic step: pairs, or kernels at rows.
    n_support : int, default=256
        Rows of the control variates.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function: coefficients with a prior, as of `SVGPClassifier`. None is
        "linear", with stochastic steps, which vague terms slow down, "zero".
    n_inducing : int, default=256
        Inducing points of the "nystroem" covariance, k, from which the kernel is learned too.
    inducing_points : {"kmeans", "random"} or array-like of shape (k, d), default="kmeans"
        Where they start: centers of clusters of the standardized rows, rows drawn at random, or
        these, in units of X.
    learn_inducing : bool, default=True
        Whether the inducing points are moved.
    optimizer : {"auto", "stochastic"} or None, default="auto"
        Whether the kernel is learned, by a sparse GP of at most 10,000 rows. "stochastic" goes on
        learning it along the stochastic steps.
    max_iter : int, default=100
        Iterations of conjugate gradients, at most; passes of minibatches over the rows.
        `partial_fit` takes one.
    tol : float, default=1e-2
        Stop conjugate gradients when a natural-gradient step changes the means by less, relative to
        their norm.
    batch_size : int, default=None
        Rows in a minibatch; None is 512. For "cg" of the rows that the kernel is learned
        from, where None is all.
    learning_rate : float, default=None
        Of stochastic steps; None is 0.1 for "adagrad", for "sgd" the inverse of the greatest
        eigenvalue that the support rows tell of.
    class_weight : dict or "balanced", default=None
        Multiplies the sample weights of each class.
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters of the last one; stochastic steps from all of
        its state. A change of what such a model holds, such as ``kernel``, is refused by name.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of features and products with them, summed in float64; None is that of X. Kernels at rows
        of ``solver="cg"`` are float64 in any case.
    random_state : int, RandomState instance or None, default=None
        Rules k-means, frequencies, rows drawn and minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    kernel_ : Kernel
        With the learned hyperparameters, the mean function's terms included.
    inducing_points_ : ndarray of shape (k, d)
        Those of the "nystroem" covariance and of learning, in the units of X. Stochastic steps with
        neither use none: one row stands there.
    basis_ : FourierFeatures or ndarray of shape (m, d)
        What the functions of the mean are: number and seed of the frequencies, or rows.
    elbo_ : float
        Lower bound on the log evidence, nats; of stochastic steps the mean of its estimates in the
        last pass, under the quadratic bound.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound along the way, or its estimates.
    n_iter_ : int
        Passes taken.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Evans and Nair (2020), Theorems 1 and 2, Propositions 1 to 4. Departs from the source:
    its Theorem 3 is not a bound, quadratic bounds take its place; defaults are the forms found
    better, the user guide says which.

    With ``solver="cg"`` an iteration costs O(n m d); memory beyond X is about
    ``8 * (q * m + (c + 3) * q**2 + 2**23)`` bytes for c latents, with q = min(m / 2, n, 4096) rows
    of the preconditioner. A stochastic step of b rows, s sampled functions and p support rows costs
    O((b + p) s d + b p^2) whatever n and m; memory is O(m) for coefficients alone, and frequencies
    are drawn anew for every use where they would take over 256 MiB: O(s d^3) more a step where they
    are orthogonal. A prediction costs O(m d + k^2) a row.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import QSGPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> gp = QSGPClassifier(n_basis=200, n_inducing=20, random_state=0).fit(X, y)
    >>> gp.score(X, y) > 0.95
    True
    """

    likelihood = "softmax"

    def __init__(
        self,
        kernel=None,
        *,
        solver="cg",
        basis="fourier",
        n_basis=4000,
        covariance="nystroem",
        n_dense_columns=10,
        augment=False,
        control_variate="interpolating",
        gradient="symmetric",
        n_sampled_basis=1024,
        n_support=256,
        mean=None,
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
        self.solver = solver
        self.basis = basis
        self.n_basis = n_basis
        self.covariance = covariance
        self.n_dense_columns = n_dense_columns
        self.augment = augment
        self.control_variate = control_variate
        self.gradient = gradient
        self.n_sampled_basis = n_sampled_basis
        self.n_support = n_support
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
        self : QSGPClassifier

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights make no sense, or the kernel has no spectrum.
        DivergenceError
            If the bound is no longer finite, or stochastic steps end at one far below that of no
            steps at all. The estimator is then not fitted or, with
            ``warm_start``, as it was.
        """
        return self._fit(X, y, sample_weight)

    @available_if(has_partial_fit)
    @all_or_nothing
    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Learn from more rows, as new data, by a pass of stochastic steps.

        The first call fits as `fit` does; every later one holds kernel and functions. Rows
        seen before count by their number. Not for ``solver="cg"``, which needs all rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        classes : array-like of shape (c,), default=None
            All classes that may come; needed in the first call where its ``y`` lacks some.
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : QSGPClassifier

        Raises
        ------
        AttributeError
            If ``solver="cg"``.
        ValueError
            If parameters, data or weights make no sense.
        DivergenceError
            As of `fit`. The estimator is then as it was.
        """
        return self._partial_fit(X, y, sample_weight, classes)
