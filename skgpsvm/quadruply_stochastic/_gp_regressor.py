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
    r"""Gaussian-process regression with a mean of very many basis functions.

    The posterior mean is a weighted sum of ``n_basis`` random Fourier features or kernels at rows.
    By default, preconditioned conjugate gradients solve a linear system for the weights.
    Alternatively, stochastic steps learn them, which sample rows once and basis functions twice;
    their cost depends on neither number. See the :ref:`user guide <quadruply_stochastic>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent function, in units of the normalized y. With Fourier features
        it must be a sum of RBF and Matern kernels times constants. Hyperparameters start from its
        values and are learned within its bounds, unless they are "fixed". None is a squared
        exponential with a length scale for each feature or, if the log evidence is higher and
        ``solver="cg"`` has fewer than 500 rows, a Matern kernel of smoothness 5/2. Its
        hyperparameters and the noise have a prior.
    likelihood : {"gaussian", "laplace"}, default="gaussian"
        Distribution of the noise. "laplace" is robust to outliers.
    solver : {"cg", "sgd", "adagrad"} or solver, default="cg"
        How the coefficients of the mean are learned. "cg" runs preconditioned conjugate
        gradients, which use all functions at all rows in every iteration. "sgd" and "adagrad" take
        stochastic steps, whose cost depends on neither number. Steps of "sgd" have a constant size
        and are averaged. Those of "adagrad", as in the paper, are scaled by past gradients. Objects
        with options are `skgpsvm.solvers.ConjugateGradients` and
        `skgpsvm.solvers.QuadruplyStochastic`.
    basis : {"fourier", "orthogonal", "inducing"}, default="fourier"
        Basis functions of the mean. "fourier" and "orthogonal" are cosines and sines with random
        frequencies of an RBF or Matern kernel, independent or orthogonal in blocks of d.
        "inducing" are kernels at rows.
    n_basis : int, default=10000
        Number of basis functions, m. Fourier features are rounded up to pairs of cosine and sine;
        kernels at rows are at most as many as rows. More functions are closer to the exact
        process, at a cost in proportion.
    covariance : {"nystroem", "chevron", "mean_field"}, default="nystroem"
        Posterior covariance. "nystroem" is a covariance on the inducing points, at a cost that does
        not depend on m. The others, as in the paper, are covariances of the weights: independent
        for "mean_field", with ``n_dense_columns`` dense columns of its factor for "chevron".
    n_dense_columns : int, default=10
        Number of dense columns of "chevron".
    augment : bool, default=False
        Whether to add the variance of one more kernel function at x itself, up to the prior's. It
        is for ``basis="inducing"`` with "chevron" or "mean_field", whose variance would otherwise
        fall to zero far from the data. The fitted model then stores the training rows.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function, in units of the normalized y. Its coefficients have a vague prior and are
        part of the kernel. None is "constant" for "cg", and "zero" for stochastic steps, which
        vague terms slow down.
    noise_variance : float, default=None
        Initial noise variance, in squared units of the normalized y; None is 0.1. It must be None
        if the kernel has a `WhiteKernel`, which is then the noise.
    n_inducing : int, default=256
        Number of inducing points, k, of the "nystroem" covariance and of the sparse GP that learns
        the hyperparameters.
    inducing_points : {"kmeans", "random"} or array-like of shape (k, d), default="kmeans"
        Initial inducing points: centers of clusters of the standardized rows, rows drawn at random,
        or the given points, in units of X.
    learn_inducing : bool, default=True
        Whether the inducing points are optimized.
    optimizer : {"auto"} or None, default="auto"
        Whether kernel and noise are learned, on some thousand rows. None keeps the given ones,
        unless stochastic steps learn them. Unless it is None, the noise and the power of the
        variances are calibrated on a tenth of the rows, held out. Calibration needs at least 500
        rows, Gaussian noise and a "nystroem" covariance.
    max_iter : int, default=100
        Maximum number of iterations of conjugate gradients, or number of passes of minibatches over
        the rows. `partial_fit` takes one pass.
    tol : float, default=1e-3
        Stop conjugate gradients when two quantities are below it: the norm of the preconditioned
        residual, relative to that at the prior mean, and the remaining gain of the bound, in nats
        per row. They also stop when ten iterations have gained less. With Laplace noise it is the
        relative change of the means.
    normalize_y : bool, default=True
        Whether y is centered and scaled to unit variance first. Otherwise y should be of order
        one, since the initial values and the limits of learning assume it.
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters of the previous fit, and stochastic steps also
        from its coefficients, covariance and calibration. Few more rows keep what was learned
        before "cg", see :ref:`further_rows`. A parameter that such a model has fixed, for instance
        ``kernel``, must not change; an error names it.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. Fitted attributes are always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the features and their products, which are summed in float64. None is float64.
        "float32" halves the time and is safe unless the noise is far below the signal. Kernels at
        rows with ``solver="cg"`` are always float64.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means, the random frequencies, the subsamples of rows and the minibatches.

    Attributes
    ----------
    kernel_ : Kernel
        Kernel with the learned hyperparameters, including the terms of the mean function.
    inducing_points_ : ndarray of shape (k, d)
        Inducing points of the "nystroem" covariance and of learning, in units of X. If neither uses
        them, this is one row of X.
    basis_ : FourierFeatures or ndarray of shape (m, d)
        Basis functions of the mean: rows, or the specification of random Fourier features by
        ``n_pairs``, the number of frequencies, and ``seed``, from which they are drawn.
    noise_variance_ : float or ndarray of shape (t,)
        Noise variance, in squared units of y, for each output.
    variance_power_ : float
        Power to which the ratio of posterior and prior variance of the latent function is raised;
        at least 1.
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
    its Theorem 3 is not a bound, and quadratic bounds replace it. Some defaults differ from the
    paper because they proved better; the user guide lists them.

    With ``solver="cg"`` an iteration costs O(n m d). Memory beyond X is about
    ``8 * (q * m + 4 * q**2 + 2**23)`` bytes, where the preconditioner has q = min(m / 2, n, 4096)
    rows. A stochastic step of b rows, s sampled functions and p support rows costs
    O((b + p) s d + b p^2), independent of n and m. Its memory is O(m), for the coefficients alone:
    frequencies that would take over 256 MiB are drawn anew for every use. Orthogonal frequencies
    then add O(s d^3) to a step. A prediction costs O(m d + k^2) per row.

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
        return take_steps(self, problem, streamed=True)

    def _fitted_attributes(self, models, summaries, streamed=False):
        found = regression_attributes(self, models, summaries, streamed)
        return qs_attributes(self, models, summaries) | found
