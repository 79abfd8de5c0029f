"""Decoupled Gaussian-process regression."""

from __future__ import annotations

from typing import Literal, Self

from sklearn.gaussian_process.kernels import Kernel

from .._conjugate_gradients import (
    calibrated_fit,
    fit_by_conjugate_gradients,
    is_calibrated,
    learn_regressor,
    regression_attributes,
)
from .._estimators import GPRegressor, all_or_nothing, stream
from .._hyperparameters.default_kernels import ROUGHER
from .._parameters import ParameterRules, where
from .._typing import (
    ArrayLike,
    Device,
    Dtype,
    InducingPoints,
    MatrixLike,
    MeanFunction,
    RandomStateLike,
    ndarray,
)
from .._variational import check_regression_parameters, regression_problem
from ..solvers import ConjugateGradients, StochasticGradient
from ._training import (
    DECOUPLED_FOLLOWED,
    GROWING,
    SOLVERS,
    USES,
    by_steps,
    check_decoupled_parameters,
    decoupled_attributes,
    fit_by_stochastic_gradients,
    update_decoupled,
    with_rows_as_bases,
)

_INITIAL_VARIANCE_OF_STEPS = 1.0  # of the noise
_STEPS = where(solver=StochasticGradient) | where(likelihood=("student_t", "laplace"))
_USES = USES | {
    name: (_STEPS, USES[name]) for name in ("solver__batch_size", "solver__learning_rate")
}


class DecoupledGPRegressor(GPRegressor):
    r"""Gaussian-process regression with separate bases for mean and covariance.

    The posterior mean is a weighted sum of kernel functions at ``n_mean_bases`` rows, its bases.
    The variance uses far fewer inducing points, and the nearest bases. With Gaussian noise,
    preconditioned conjugate gradients solve a linear system for the mean, and the variance has a
    closed form. If all rows are bases, the mean is that of the exact Gaussian process. See the
    :ref:`user guide <decoupled>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent function, in units of the normalized y. Hyperparameters are
        optimized from its values within its bounds, unless "fixed". None is a squared exponential
        or a Matern kernel, as in `SVGPRegressor`, with one length scale per feature; its
        hyperparameters and the noise have a prior. With ``solver="sgd"`` None is a
        `MultiscaleRBF`, whose bases have their own length scales.
    likelihood : {"gaussian", "student_t", "laplace"}, default="gaussian"
        Noise distribution. "student_t" (4 degrees of freedom) and "laplace" are robust to outliers.
    solver : {"cg", "sgd"} or solver, default="cg"
        "cg" learns hyperparameters on up to 10,000 rows and solves for the mean on all rows by
        conjugate gradients. "sgd", the paper's Algorithm 1, takes stochastic gradients of all
        parameters and adds bases from each minibatch. Objects with options, such as the
        parametrizations of "sgd", are `skgpsvm.solvers.ConjugateGradients` and
        `skgpsvm.solvers.StochasticGradient`.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function, in units of the normalized y. Its coefficients have a vague prior, which
        becomes a term of the kernel. None is "constant" or "linear", as in `SVGPRegressor`, or
        "zero" for ``solver="sgd"``, which supports no other.
    noise_variance : float, default=None
        Initial noise variance, in squared units of the normalized y; None is 0.1, or 1 for "sgd".
        Must be None if the kernel contains a `WhiteKernel`, which is then the noise.
    n_mean_bases : int, default=10000
        Number of bases of the mean, M: rows drawn at random, or all rows if there are no more.
        More bases give a better mean, and better variances if not all rows are bases; the time of a
        pass grows in proportion.
    n_inducing : int, default=256
        Number of inducing points of the covariance, m; fewer if the data have fewer distinct rows.
        More give better variances, at a cost of O(m^2) per row. "sgd" adds at most this many bases
        from each minibatch. Without effect if ``inducing_points`` is an array.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Initial inducing points: k-means centers of the standardized rows, rows drawn at random, or
        the given array, in units of X. Not for "sgd", whose bases come from the minibatches.
    learn_inducing : bool, default=True
        Whether to optimize the inducing points; "sgd" then optimizes the mean's bases too.
    optimizer : {"auto"} or None, default="auto"
        Whether to learn kernel and noise. If so, "cg" with Gaussian noise and at least 500 rows
        also calibrates the noise and the power of the variances on a held-out tenth of the rows,
        which takes no additional passes.
    max_iter : int, default=100
        Maximal number of passes over the rows: iterations of conjugate gradients, or epochs of
        minibatches. `partial_fit` with "sgd" takes one.
    tol : float, default=1e-2
        Tolerance of conjugate gradients; not for "sgd". With Gaussian noise they stop when two
        quantities are below it: the norm of the preconditioned residual, relative to that of a
        mean of zero, and the remaining gain of the ELBO, in nats per row. They also stop when ten
        iterations gained less than ``tol`` nats per row. With other noise they stop when a step
        changes the means by less, relative to their norm.
    normalize_y : bool, default=True
        Whether to center y and scale it to unit variance. If not, y should be of order one, which
        the initial values and limits of hyperparameters assume.
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters and inducing points of the last fit; "sgd"
        continues from its whole state, and "cg" keeps what was learned if only few rows were added
        (:ref:`further_rows`). Changing a parameter on which these depend, such as ``kernel``,
        raises an error.
    device : str or torch.device, default=None
        Device to compute on; None is the CPU. The fitted state is always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the covariance's features and of minibatches; "cg" always solves for the mean
        in float64. None is float64. "float32" is safe if the noise is not far below the signal.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means, the choice of bases and of held-out rows, and the minibatches.

    Attributes
    ----------
    kernel_ : Kernel
        The kernel with learned hyperparameters, including the terms of the mean function.
    inducing_points_ : ndarray of shape (m, d)
        Inducing points, in units of X. For a `MultiscaleRBF` with "sgd" the shape is (m, 2 d):
        logarithms of the length-scale multipliers come last.
    mean_bases_ : ndarray of shape (M, d)
        Bases of the mean, with the columns of ``inducing_points_``.
    noise_variance_ : float or ndarray of shape (t,)
        Noise variance in squared units of y, one per output, without the known variances that
        `fit` was given.
    variance_power_ : float
        Power to which the ratio of posterior and prior variance of the latent function is raised.
        At least 1; larger values correct variances that are too large.
    elbo_ : float
        ELBO, a lower bound on the log evidence of the normalized y, in nats. It is computed before
        calibration, from the variances of the inducing points alone.
    objective_curve_ : ndarray of shape (n_iterations,)
        ELBO after each pass; for "sgd", the mean of its estimates in the pass.
    n_iter_ : int
        Number of passes.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X has names that are all strings.

    Notes
    -----
    Source: Cheng and Boots (2017); Salimbeni et al. (2018) for the orthogonal form; Rudi, Carratino
    and Rosasco (2017) for the preconditioner; Snelson and Ghahramani (2007) and Gyger, Furrer and
    Sigrist (2025) for the variances.

    A pass costs O(n M), and the preconditioner O(M^3). Memory beyond X is about ``32 * M**2``
    bytes for up to 4,000 bases and ``4 * M**2`` for more. If all rows are bases and noise is
    Gaussian, up to 6,000 rows take one or two factors of ``4 * n**2`` bytes; with more rows, a
    pass costs O(n^2), and memory is about ``16_000 * n`` bytes.

    A predicted mean costs O(M) per row, and a variance O(M + 32 m^2) for its 32 neighbors. The
    first variance takes O(M m^2), after which ``8 * (t + 1) * M * m`` bytes are held for t
    outputs.

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

    _rules = ParameterRules(_USES, DECOUPLED_FOLLOWED, GROWING, SOLVERS)
    _first_call_updates = by_steps
    _default_dtype = "float64"

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray
    mean_bases_: ndarray
    noise_variance_: float | ndarray
    variance_power_: float
    elbo_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        likelihood: Literal["gaussian", "student_t", "laplace"] = "gaussian",
        solver: Literal["cg", "sgd"] | ConjugateGradients | StochasticGradient = "cg",
        mean: MeanFunction | None = None,
        noise_variance: float | None = None,
        n_mean_bases: int = 10_000,
        n_inducing: int = 256,
        inducing_points: InducingPoints = "kmeans",
        learn_inducing: bool = True,
        optimizer: Literal["auto"] | None = "auto",
        max_iter: int = 100,
        tol: float = 1e-2,
        normalize_y: bool = True,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.kernel = kernel
        self.likelihood = likelihood
        self.solver = solver
        self.mean = mean
        self.noise_variance = noise_variance
        self.n_mean_bases = n_mean_bases
        self.n_inducing = n_inducing
        self.inducing_points = inducing_points
        self.learn_inducing = learn_inducing
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.normalize_y = normalize_y
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    @all_or_nothing
    def partial_fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Self:
        """Update the model with more rows, as new data.

        With ``solver="cg"`` the first call is a `fit`; later calls keep kernel, noise, bases and
        the scale of y. The mean is then that of a fit of all rows with the bases of the first call.
        This holds for Gaussian noise without calibration, if the first call has at most
        ``n_mean_bases`` rows. Memory is O(M^2), the time of a call with b rows O(b M^2 + M^3).

        With "sgd" a call is one pass of minibatches that adds bases and updates all parameters.
        Earlier rows enter by their number only.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,) or (n, t)
        sample_weight : array-like of shape (n,), default=None
        noise_variance : array-like of shape (n,) or (n, t), default=None
            Known variances of the noise of these rows, as in `fit`.

        Returns
        -------
        self : DecoupledGPRegressor
        """
        return stream(self, X, y, sample_weight, noise_variance=noise_variance)

    def _check_parameters(self):
        check_decoupled_parameters(self)
        check_regression_parameters(self)

    def _make_likelihood(self):
        initial = _INITIAL_VARIANCE_OF_STEPS if by_steps(self) else None
        return self._noise_model.sites(self.noise_variance or initial)

    def _fit_model(self, problem):
        if by_steps(self):
            return fit_by_stochastic_gradients(self, problem, 1.0)
        sparse = regression_problem(self, problem, self.mean, rougher=ROUGHER)
        model, _ = learn_regressor(sparse, **self._solver().get_params())
        model, index = with_rows_as_bases(model, self.n_mean_bases, problem)
        solve = calibrated_fit if is_calibrated(self, problem.rows) else fit_by_conjugate_gradients
        return solve(sparse, model, index, local=True)

    def _update_model(self, problem):
        return update_decoupled(self, problem, 1.0)

    def _fitted_attributes(self, models, summaries, streamed=False):
        parts = self, models, summaries, streamed
        return decoupled_attributes(*parts) | regression_attributes(*parts)
