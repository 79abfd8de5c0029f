"""`DecoupledGPRegressor`: the estimator."""

from .._estimators import all_or_nothing
from .._parameters import where
from .._solved import SolvedRegressor
from ._base import DecoupledGP

_USES = DecoupledGP._uses | {
    name: (
        where(solver="sgd") | where(likelihood=("student_t", "laplace")),
        DecoupledGP._uses[name],
    )
    for name in ("batch_size", "learning_rate")
}


class DecoupledGPRegressor(DecoupledGP, SolvedRegressor):
    r"""Gaussian-process regression whose mean has thousands of bases, its covariance some hundred.

    Posterior mean and covariance of a sparse variational process live on bases of their own: the
    mean on ``n_mean_bases`` rows, in linear time for each, the covariance on ``n_inducing``
    inducing points. At Gaussian noise the mean solves a linear system by preconditioned conjugate
    gradients, and the covariance has a closed form. With all rows as bases the mean is that of the
    exact process. See the :ref:`user guide <decoupled>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent function, in units of the normalized y. Its values, bounds
        and "fixed" marks rule the optimization. None is a squared exponential with a length scale
        for each feature, whose hyperparameters have a prior, as has the noise; with
        ``solver="sgd"`` a `MultiscaleRBF`, whose bases have length scales of their own.
    likelihood : {"gaussian", "student_t", "laplace"}, default="gaussian"
        Noise; the second (four degrees of freedom) and third bear outliers.
    solver : {"cg", "sgd"}, default="cg"
        Hyperparameters from some thousand rows, then conjugate gradients on all of them; or
        stochastic gradients for everything, bases from each minibatch: the paper's Algorithm 1.
    parametrization : {"orthogonal", "hybrid", "shared", "decoupled"}, default="orthogonal"
        Of ``solver="sgd"``: whether the mean has bases of its own alone (the last, the paper's) or
        the inducing points too, and how they are told apart. Not for "cg", which finds the optimum
        on its bases.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function, in units of the normalized y: coefficients with a vague prior, which are
        part of the kernel. None is "constant", with ``solver="sgd"`` "zero", the only one that it
        knows.
    noise_variance : float, default=None
        To start from, in squared units of the normalized y; None is 0.1, or 1 for "sgd". It must be
        None where the kernel has a `WhiteKernel`, which is then the noise.
    n_mean_bases : int, default=10000
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
        Whether kernel and noise are learned. Where they are, and "cg" has at least 500 rows and
        Gaussian noise, the noise and the power of the variances are set by a tenth of the
        rows, held out from a solution of the others that costs no further pass.
    max_iter : int, default=100
        Passes over the rows, at most: iterations of conjugate gradients, or passes of minibatches.
        `partial_fit` of "sgd" takes one.
    tol : float, default=1e-2
        At which conjugate gradients stop: the norm of the preconditioned residual, relative to the
        first, and what the bound may still gain, nats a row; or what it has gained in ten
        iterations. Of other than Gaussian noise, relative change of the means. Not for "sgd".
    batch_size : int, default=None
        Rows in a minibatch; None is 1024. For "cg" those of the rows that hyperparameters of other
        than Gaussian noise are learned from, where None is all.
    learning_rate : float, default=None
        Step size of Adam, None is 0.05; step t of "sgd" has ``learning_rate / (1 + 0.1 sqrt(t))``.
        Not for "cg" with Gaussian noise.
    normalize_y : bool, default=True
        Whether y is centered and scaled to unit variance first. Otherwise y should be of
        order one: where learning starts, and its limits, are in units of one.
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters and inducing points of the last one; "sgd"
        from all of its state. A change of what such a model holds, such as ``kernel``, is refused
        by name.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of the covariance's features, and of minibatches; the mean of "cg" is solved for in float64.
        None is float64. "float32" is safe while the noise is not far below the signal.
    random_state : int, RandomState instance or None, default=None
        Rules k-means, the rows that are bases, those held out, and minibatches.

    Attributes
    ----------
    kernel_ : Kernel
        With the learned hyperparameters, the mean function's terms included.
    inducing_points_ : ndarray of shape (m, d)
        In the units of X; of a `MultiscaleRBF` under "sgd" (m, 2 d), log multipliers last.
    mean_bases_ : ndarray of shape (M, d)
        Likewise.
    noise_variance_ : float or ndarray of shape (t,)
        Variance of the noise, in squared units of y; one for each output.
    variance_power_ : float
        Power of the ratio of posterior and prior variance of the latent function, at least 1: few
        inducing points leave too much variance near the data.
    elbo_ : float
        Lower bound on the log evidence of the normalized y, nats, at the noise that the mean was
        solved with and variances as they were before calibration.
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

    A pass costs O(n M), the two factors of the preconditioner and their product O(M^3); memory
    beyond X is about ``8 * (4 * M**2 + 2**20)`` bytes, since products with the kernel matrix of
    rows and bases go in chunks. Where all rows are bases, and noise is Gaussian, up to 6,000 rows
    take a factor or two of size n^2; beyond them nothing of that size is held: a pass costs O(n^2),
    memory is about ``8 * (1000 * n + 2**20)`` bytes. A prediction costs O(M + m^2) a row.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm import DecoupledGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> gp = DecoupledGPRegressor(n_inducing=20, random_state=0).fit(X, y)
    >>> gp.predict([[1.5], [3.0]]).round(1)
    array([1. , 0.2])
    """

    _uses = _USES

    def __init__(
        self,
        kernel=None,
        *,
        likelihood="gaussian",
        solver="cg",
        parametrization="orthogonal",
        mean=None,
        noise_variance=None,
        n_mean_bases=10_000,
        n_inducing=256,
        inducing_points="kmeans",
        learn_inducing=True,
        optimizer="auto",
        max_iter=100,
        tol=1e-2,
        batch_size=None,
        learning_rate=None,
        normalize_y=True,
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
        self.noise_variance = noise_variance
        self.n_mean_bases = n_mean_bases
        self.n_inducing = n_inducing
        self.inducing_points = inducing_points
        self.learn_inducing = learn_inducing
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.normalize_y = normalize_y
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    @property
    def _start_noise(self):
        return 1.0 if self.solver == "sgd" else super()._start_noise

    @all_or_nothing
    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            A large float32 or float64 memmap is read in chunks, never copied whole.
        y : array-like of shape (n,) or (n, t)
            Several outputs share kernel, inducing points and bases.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log density of each row: 0 removes it, an integer repeats it.
            Divide inverse variances by their mean, as weights count rows.
            With Gaussian noise hyperparameters are learned as of weights of 1 on average, where
            they are more: copies of a row have no scatter, and would be evidence of little noise.

        Returns
        -------
        self : DecoupledGPRegressor

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights make no sense.
        DivergenceError
            If the bound is no longer finite.

        Warns
        -----
        ConvergenceWarning
            If conjugate gradients end by ``max_iter``.
        """
        return self._fit(X, y, sample_weight)

    @all_or_nothing
    def partial_fit(self, X, y, sample_weight=None):
        """Learn from more rows, as new data.

        With ``solver="cg"`` the first call fits as `fit` does; every later one holds kernel, noise,
        bases and the scale of y. With Gaussian noise, no calibration and no more rows in the first
        call than ``n_mean_bases``, the mean is then that of a fit of all rows with the bases of the
        first; memory is O(M^2), a call's time O(b M^2 + M^3). With "sgd" a call is one pass of
        minibatches that adds bases and learns everything; rows seen before count by their number.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,) or (n, t)
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : DecoupledGPRegressor
        """
        return self._partial_fit(X, y, sample_weight)
