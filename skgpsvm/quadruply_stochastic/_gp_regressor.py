"""Quadruply stochastic Gaussian-process regressor."""

from __future__ import annotations

from typing import Literal

from sklearn.gaussian_process.kernels import Kernel

from .._conjugate_gradients import is_calibrated, learn_regressor, regression_attributes
from .._estimators import GPRegressor
from .._features import FourierFeatures
from .._hyperparameters.held_out import MIN_CALIBRATED
from .._parameters import ParameterRules, where
from .._typing import Device, Dtype, InducingPoints, MeanFunction, RandomStateLike, ndarray
from .._variational import check_regression_parameters, regression_problem
from ..solvers import ConjugateGradients, QuadruplyStochastic
from ._gp_training import (
    QS_FOLLOWED,
    SOLVERS,
    USES,
    check_qs_parameters,
    fit_qs,
    qs_attributes,
    take_steps,
)
from ._step_runs import by_steps, refuse_known_noise

# The smoothness is chosen for few rows, whose variances are not calibrated. Random features of
# rougher kernels are poor, and in many rows those of this one.
_ROUGHER = (2.5,)
_STEPS = where(solver=QuadruplyStochastic) | where(likelihood="laplace")
_USES = USES | {
    name: (_STEPS, USES[name]) for name in ("solver__batch_size", "solver__learning_rate")
}


class QSGPRegressor(GPRegressor):
    r"""Gaussian-process regression whose mean has very many basis functions.

    The posterior mean is a weighted sum of ``n_basis`` random Fourier features or kernel functions
    at rows. By default, preconditioned conjugate gradients solve a linear system for the weights.
    Alternatively, stochastic steps learn them, whose cost does not depend on the number of rows or
    functions. See the :ref:`user guide <quadruply_stochastic>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent function, in units of the normalized y. With Fourier
        features it must be a sum of RBF and Matern kernels times constants. Hyperparameters start
        from its values and are learned within its bounds, unless they are "fixed". None is a
        squared exponential with one length scale per feature; with ``solver="cg"`` and fewer than
        500 rows, it is a Matern kernel of smoothness 5/2 if the log evidence is higher. Its
        hyperparameters and the noise have a prior.
    likelihood : {"gaussian", "laplace"}, default="gaussian"
        Distribution of the noise. "laplace" is robust to outliers.
    solver : {"cg", "sgd", "adagrad"} or solver, default="cg"
        How the coefficients of the mean are learned. "cg" runs preconditioned conjugate gradients,
        which evaluate all functions at all rows in every iteration. "sgd" and "adagrad" take
        stochastic steps, for millions of functions. Steps of "sgd" have a constant size and are
        averaged; those of "adagrad", as in the paper, are scaled by past gradients. Objects with
        options are `skgpsvm.solvers.ConjugateGradients` and `skgpsvm.solvers.QuadruplyStochastic`.
    basis : {"fourier", "orthogonal", "inducing"}, default="fourier"
        Basis functions of the mean. "fourier" are cosines and sines with random frequencies from
        the spectrum of the kernel. "orthogonal" are the same, with frequencies that are orthogonal
        in blocks of d. "inducing" are kernel functions at rows.
    n_basis : int, default=10000
        Number of basis functions, m. Fourier features are rounded up to pairs of cosine and sine;
        kernel functions are at most as many as rows. More functions approximate the exact process
        better, at a proportional cost.
    covariance : {"nystroem", "chevron", "mean_field"}, default="nystroem"
        Posterior covariance. "nystroem" is that of the values at the inducing points, at a cost
        that does not depend on m. The others, as in the paper, are covariances of the weights:
        "mean_field" makes weights independent, and "chevron" adds ``n_dense_columns`` dense
        columns to the factor.
    n_dense_columns : int, default=10
        Number of dense columns of "chevron".
    augment : bool, default=False
        Whether to add the variance of one more kernel function, at the predicted point, up to that
        of the prior. It is for ``basis="inducing"`` with "chevron" or "mean_field", whose variance
        would otherwise fall to zero far from the data. The fitted model then stores the training
        rows.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function, in units of the normalized y. Its coefficients have a vague prior, which
        becomes a term of the kernel. None is "constant" for "cg", and "zero" for stochastic steps,
        which terms with vague priors slow down.
    noise_variance : float, default=None
        Initial noise variance, in squared units of the normalized y; None is 0.1. It must be None
        if the kernel has a `WhiteKernel`, which is then the noise.
    n_inducing : int, default=256
        Number of inducing points, k, of the "nystroem" covariance and of the sparse GP that learns
        the hyperparameters.
    inducing_points : {"kmeans", "random"} or array-like of shape (k, d), default="kmeans"
        Initial inducing points: k-means centers of the standardized rows, rows drawn at random, or
        the given array, in units of X.
    learn_inducing : bool, default=True
        Whether the inducing points are optimized.
    optimizer : {"auto"} or None, default="auto"
        Whether kernel and noise are learned, on some thousand rows. If so, the noise and the power
        of the variances are then calibrated on a held-out tenth of the rows; this needs at least
        500 rows, Gaussian noise and a "nystroem" covariance. None keeps the given values, unless
        stochastic steps learn them.
    max_iter : int, default=100
        Maximum number of iterations of conjugate gradients, or number of passes of minibatches over
        the rows. `partial_fit` takes one pass.
    tol : float, default=1e-3
        Tolerance of conjugate gradients. With Gaussian noise they stop when two quantities are
        below it: the norm of the preconditioned residual, relative to that of a mean of zero, and
        the remaining gain of the ELBO, in nats per row. They also stop when ten iterations gained
        less than ``tol`` nats per row. With Laplace noise they stop when a step changes the means
        by less, relative to their norm.
    normalize_y : bool, default=True
        Whether to center y and scale it to unit variance. If not, y should be of order one, which
        the initial values and limits of hyperparameters assume.
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters of the last fit, and stochastic steps also
        from its coefficients, covariance and calibration. With "cg", hyperparameters are kept if
        only few rows were added (:ref:`further_rows`). Changing a parameter on which these depend,
        such as ``kernel``, raises an error.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. Fitted attributes are always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the features and their products, which are summed in float64. None is float64.
        "float32" halves the time and is safe unless the noise is far below the signal. Kernel
        functions at rows with ``solver="cg"`` are always float64.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means, the random frequencies, the subsamples of rows and the minibatches.

    Attributes
    ----------
    kernel_ : Kernel
        Kernel with the learned hyperparameters, including the terms of the mean function.
    inducing_points_ : ndarray of shape (k, d)
        Inducing points of the "nystroem" covariance and of the sparse GP, in units of X. If
        neither is used, this is one row of X.
    basis_ : FourierFeatures or ndarray of shape (m, d)
        Basis functions of the mean: the rows of kernel functions, or an object that defines random
        Fourier features by their number of frequencies, ``n_pairs``, and ``seed``.
    noise_variance_ : float or ndarray of shape (t,)
        Noise variance, in squared units of y, for each output.
    variance_power_ : float
        Power to which the ratio of posterior and prior variance of the latent function is raised.
        At least 1; larger values correct variances that are too large.
    elbo_ : float
        Lower bound on the log evidence of the normalized y, in nats, before calibration. For
        stochastic steps, the mean of its estimates in the last pass.
    objective_curve_ : ndarray of shape (n_iterations,)
        The ELBO after each iteration, or its estimate in each pass.
    n_iter_ : int
        Number of iterations or passes.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the features, if the columns of X have names that are all strings.

    Notes
    -----
    Source: Evans and Nair (2020), Theorems 1 and 2, Propositions 1 to 4. Departs from the source:
    its Theorem 3 is not a bound, and quadratic bounds replace it. The user guide lists further
    differences.

    With ``solver="cg"`` an iteration costs O(n m d). Memory beyond X is about
    ``8 * (q * m + 4 * q**2 + 2**23)`` bytes, with q = min(m / 2, n, 4096) rows in the
    preconditioner. A stochastic step of b rows, s sampled functions and p support rows costs O((b
    + p) s d + b p^2), for any n and m, and O(m) memory. Frequencies that would take over 256 MiB
    are drawn anew for every use, which adds O(s d^3) to a step if they are orthogonal. A
    prediction costs O(m d + k^2) per row.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm import QSGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> gp = QSGPRegressor(n_basis=200, n_inducing=20, random_state=0).fit(X, y)
    >>> gp.predict([[1.5], [3.0]]).round(1)
    array([1. , 0.1])
    """

    _rules = ParameterRules(_USES, QS_FOLLOWED, solvers=SOLVERS, streaming=QuadruplyStochastic)
    _default_dtype = "float64"

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray
    basis_: FourierFeatures | ndarray
    noise_variance_: float | ndarray
    variance_power_: float
    elbo_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        likelihood: Literal["gaussian", "laplace"] = "gaussian",
        solver: Literal["cg", "sgd", "adagrad"] | ConjugateGradients | QuadruplyStochastic = "cg",
        basis: Literal["fourier", "orthogonal", "inducing"] = "fourier",
        n_basis: int = 10_000,
        covariance: Literal["nystroem", "chevron", "mean_field"] = "nystroem",
        n_dense_columns: int = 10,
        augment: bool = False,
        mean: MeanFunction | None = None,
        noise_variance: float | None = None,
        n_inducing: int = 256,
        inducing_points: InducingPoints = "kmeans",
        learn_inducing: bool = True,
        optimizer: Literal["auto"] | None = "auto",
        max_iter: int = 100,
        tol: float = 1e-3,
        normalize_y: bool = True,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.kernel = kernel
        self.likelihood = likelihood
        self.solver = solver
        self.basis = basis
        self.n_basis = n_basis
        self.covariance = covariance
        self.n_dense_columns = n_dense_columns
        self.augment = augment
        self.mean = mean
        self.noise_variance = noise_variance
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

    def _knows_noise(self, noise_variance):
        refuse_known_noise(self, noise_variance, "cg")
        return super()._knows_noise(noise_variance)

    def _check_parameters(self):
        check_qs_parameters(self)
        check_regression_parameters(self, ("gaussian", "laplace"))

    def _make_likelihood(self):
        return self._noise_model.sites(self.noise_variance)

    def _fit_model(self, problem):
        mean = self.mean or ("zero" if by_steps(self) else "constant")
        few = not by_steps(self) and problem.rows.n_rows < MIN_CALIBRATED
        sparse = regression_problem(self, problem, mean, rougher=_ROUGHER if few else ())
        calibrated = self.covariance == "nystroem" and is_calibrated(self, problem.rows)
        return fit_qs(self, sparse, learn_regressor, is_calibrated=calibrated)

    def _update_model(self, problem):
        return take_steps(self, problem, problem.start, problem.rows, streamed=True)

    def _fitted_attributes(self, models, summaries, streamed=False):
        found = regression_attributes(self, models, summaries, streamed)
        return qs_attributes(self, models, summaries) | found
