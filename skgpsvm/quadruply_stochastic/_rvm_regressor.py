"""Relevance vector machine for regression."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel

from .._estimators import GPRegressor, target_moments
from .._optim import NOISE_BOUNDS
from .._typing import Device, Dtype, RandomStateLike
from .._validation import differs
from .._variational import check_regression_parameters
from ..solvers import QuadruplyStochastic, Sweeps
from ._rvm_training import (
    RVM_RULES,
    check_rvm_parameters,
    fit_rvm,
    is_learned,
    rvm_attributes,
    take_rvm_steps,
)
from ._step_runs import refuse_known_noise


class QSRVMRegressor(GPRegressor):
    r"""Relevance vector machine for regression, a sparse sum of kernel functions.

    The latent function is a weighted sum of kernel functions at the rows, plus a constant. Each
    weight has its own prior precision, which maximizes the evidence. Most precisions grow without
    limit, and their functions are pruned. The cost of a prediction depends only on the few that
    remain. See the :ref:`user guide <relevance_vector_machines>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Kernel of the basis functions, one for each row. None is a squared exponential of height 1,
        with length scales proportional to the features' standard deviations. They start from the
        median distance between some rows.
    likelihood : {"gaussian", "laplace"}, default="gaussian"
        Distribution of the noise. "laplace" is robust to outliers.
    solver : {"sweeps", "quadruply_stochastic"} or solver, default="sweeps"
        How the model is fitted. "sweeps" is coordinate ascent over all rows and functions.
        "quadruply_stochastic", the paper's, takes steps on samples of both. Take it only for more
        functions than sweeps can hold, or for `partial_fit`: sweeps are more accurate in less
        time. Objects with options are `skgpsvm.solvers.Sweeps` and
        `skgpsvm.solvers.QuadruplyStochastic`.
    covariance : {"auto", "full", "chevron", "mean_field"}, default="auto"
        Posterior covariance of the weights. "auto" is "full" for sweeps and "mean_field" for
        stochastic steps. "mean_field" makes weights independent, which prunes more functions and
        underestimates variances. "chevron", for stochastic steps, adds ``n_dense_columns`` dense
        columns to the factor.
    n_dense_columns : int, default=10
        Number of dense columns of "chevron".
    n_basis : int, default=2000
        Initial number of functions, M: at rows drawn at random, or at all rows if there are no
        more.
    relevance_threshold : float, default=1e4
        Prior precision above which a function is pruned; more than 1. Smaller values prune more.
        The default assumes functions of height 1 and the normalized y.
    noise_variance : float, default=None
        Initial noise variance, in squared units of the normalized y; None is a tenth of the
        variance of y. It must be None if the kernel has a `WhiteKernel`, which is then the noise.
    optimizer : {"auto"} or None, default="auto"
        Whether noise and length scales are learned. Threefold cross-validation on at most 500 rows
        multiplies all length scales by one factor: the largest power of two, or of four with up to
        60 rows, whose log density is within a standard error of the best. Other hyperparameters of
        the kernel are fixed, and so are length scales with fewer than 3 rows. The noise maximizes
        the evidence. After sweeps, the noise of predictions is at least the value with the highest
        density of held-out rows (all three folds, or one of more than 500 rows), and the same rows
        determine how far predictions are shrunk to the mean of y.
    max_iter : int, default=300
        Maximum number of sweeps over the weights, or number of passes of minibatches over the
        rows. `partial_fit` takes one pass, which also updates the precisions and prunes functions.
    tol : float, default=1e-7
        Stop when a sweep prunes no function and changes the bound by less, in nats per row. With a
        larger value, more functions remain that others can replace: pruning them hardly changes
        the bound or the predictions.
    normalize_y : bool, default=True
        Whether to center y and scale it to unit variance. If not, y should be of order one, which
        the initial values and limits of hyperparameters assume.
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters of the last fit, and stochastic steps also
        from its weights and precisions. Changing a parameter on which these depend, such as
        ``kernel``, raises an error.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. Fitted attributes are always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the rows, targets and predictions. None is float64. The functions' values and
        their sums are always float64.
    random_state : int, RandomState instance or None, default=None
        Seeds the choice of the rows that functions start at, the held-out rows and the minibatches.

    Attributes
    ----------
    kernel_ : Kernel
        Kernel with the selected length scales.
    relevance_vectors_ : ndarray of shape (r, d)
        Rows whose functions remain, in units of X.
    relevance_ : ndarray of shape (r,) or (t, r)
        Prior precisions of their weights; for several outputs, one row per output. It is exp(28)
        for a function that only other outputs use.
    noise_variance_ : float or ndarray of shape (t,)
        Noise variance of predictions, in squared units of y, for each output, without the known
        variances that `fit` was given. Its lower limit is a millionth of the variance of y.
    elbo_ : float
        Lower bound on the log evidence of the normalized y, in nats, at the noise that maximizes
        it. With a full covariance and Gaussian noise it is the log evidence itself.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound after each sweep, or its estimate in each pass.
    n_iter_ : int
        Number of sweeps or passes.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the features, if the columns of X have names that are all strings.

    See Also
    --------
    QSRVMClassifier : Relevance vector machine for classification.
    DecoupledGPRegressor : Gaussian process whose variance does not vanish far from all rows.

    Notes
    -----
    Source: Evans and Nair (2020), section 4; Tipping (2001), Tipping and Faul (2003). The source's
    algorithm is ``solver=QuadruplyStochastic(step="adagrad")`` with ``covariance="chevron"``. The
    user guide describes how precisions are learned.

    Several outputs share the functions, each with its own precisions. A function remains while it
    is relevant to any output. Each of the first sweeps costs O(M^3), and all together O(n M^2);
    with Laplace or known noise, each costs O(n M^2). In later sweeps, M is the number of functions
    that an output still uses. Memory beyond X is about ``8 * ((2 t + 3) * M**2 + 2**23)`` bytes
    for t outputs. A stochastic step costs the same for all n and M, and the memory of the steps is
    O(n + M). A prediction costs O(r^2) per row, or O(r) with independent weights.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm import QSRVMRegressor
    >>> X = np.linspace(-10, 10, 200)[:, None]
    >>> y = np.sinc(X[:, 0] / np.pi) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> rvm = QSRVMRegressor().fit(X, y)
    >>> len(rvm.relevance_vectors_) < 20
    True
    >>> rvm.predict([[0.0], [4.5]]).round(1)
    array([ 1. , -0.2])
    """

    _rules = RVM_RULES
    _is_learned = staticmethod(is_learned)
    _default_dtype = "float64"

    # Fitted attributes
    kernel_: Kernel
    relevance_vectors_: np.ndarray
    relevance_: np.ndarray
    noise_variance_: float | np.ndarray
    elbo_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        likelihood: Literal["gaussian", "laplace"] = "gaussian",
        solver: Literal["sweeps", "quadruply_stochastic"] | Sweeps | QuadruplyStochastic = "sweeps",
        covariance: Literal["auto", "full", "chevron", "mean_field"] = "auto",
        n_dense_columns: int = 10,
        n_basis: int = 2000,
        relevance_threshold: float = 1e4,
        noise_variance: float | None = None,
        optimizer: Literal["auto"] | None = "auto",
        max_iter: int = 300,
        tol: float = 1e-7,
        normalize_y: bool = True,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.kernel = kernel
        self.likelihood = likelihood
        self.solver = solver
        self.covariance = covariance
        self.n_dense_columns = n_dense_columns
        self.n_basis = n_basis
        self.relevance_threshold = relevance_threshold
        self.noise_variance = noise_variance
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.normalize_y = normalize_y
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    def _check_parameters(self):
        check_rvm_parameters(self)
        check_regression_parameters(self, ("gaussian", "laplace"))

    def _knows_noise(self, noise_variance):
        refuse_known_noise(self, noise_variance, "sweeps")
        return super()._knows_noise(noise_variance)

    def _make_likelihood(self):
        return self._noise_model.sites(self.noise_variance)

    def _fit_model(self, problem):
        return fit_rvm(self, problem, *self._initial_noise(problem.rows))

    def _update_model(self, problem):
        return take_rvm_steps(self, problem, problem.start, streamed=True)

    def _fitted_attributes(self, models, summaries, streamed=False):
        noise_variance = self._noise_variance(models[0].state("cpu")["noise"])
        return rvm_attributes(self, models, summaries) | {"noise_variance_": noise_variance}

    def _initial_noise(self, rows):
        """Return where the noise starts, and between which bounds it is learned, for `fit_rvm`."""
        parts = (part.double().cpu().numpy() for part in (rows.targets, rows.weights))
        mean, var = target_moments(*parts)
        log_var = torch.from_numpy(np.log(np.where(differs(var, mean), var, 1.0)))
        power = 1.0 if self.likelihood == "gaussian" else 0.5
        start, given = self._make_likelihood().parameters(), self._given_noise
        if given is None and self.noise_variance is None:
            start = start + power * log_var
        if self.optimizer is None or not self._noise_model.is_free:
            return tuple(start.tolist()), None
        bounds = power * (log_var[:, None] + log_var.new_tensor(NOISE_BOUNDS))
        bounds = bounds if given is None else bounds.new_tensor([given.limits])
        return tuple(start.tolist()), bounds.to(rows.device)
