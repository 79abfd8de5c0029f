"""Relevance vector machine for classification."""

from __future__ import annotations

from typing import Literal

from sklearn.gaussian_process.kernels import Kernel

from .._estimators import GPClassifier
from .._typing import ClassWeight, Device, Dtype, RandomStateLike, ndarray
from ..solvers import QuadruplyStochastic, Sweeps
from ._rvm_training import (
    RVM_RULES,
    check_rvm_parameters,
    fit_rvm,
    is_learned,
    rvm_attributes,
    take_rvm_steps,
)


class QSRVMClassifier(GPClassifier):
    r"""Relevance vector machine for classification, a sparse sum of kernel functions.

    Each class has a latent function; two classes share one. A latent function is a weighted sum of
    kernel functions at the rows, plus a constant. Each weight has its own prior precision, which
    maximizes a lower bound on the evidence. Most precisions grow without limit, and functions that
    no class needs are pruned. Class probabilities are the softmax of the latents, for two classes
    the logistic function of the only latent. See the
    :ref:`user guide <relevance_vector_machines>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Kernel of the basis functions, one for each row. None is a squared exponential of height 1,
        with length scales proportional to the features' standard deviations. They start from the
        median distance between some rows.
    solver : {"sweeps", "quadruply_stochastic"} or solver, default="sweeps"
        How the model is fitted. "sweeps" is coordinate ascent over all rows and functions.
        "quadruply_stochastic", the paper's, takes steps on samples of both. Take it only for more
        functions than sweeps can hold, or for `partial_fit`: sweeps are more accurate in less
        time. Objects with options are `skgpsvm.solvers.Sweeps` and
        `skgpsvm.solvers.QuadruplyStochastic`.
    covariance : {"auto", "full", "chevron", "mean_field"}, default="auto"
        Posterior covariance of the weights of a latent. "auto" is "full" for sweeps and
        "mean_field" for stochastic steps. "mean_field" makes weights independent, which prunes
        more functions and underestimates variances. "chevron", for stochastic steps, adds
        ``n_dense_columns`` dense columns to the factor.
    n_dense_columns : int, default=10
        Number of dense columns of "chevron".
    n_basis : int, default=2000
        Initial number of functions, M: at rows drawn at random, or at all rows if there are no
        more.
    relevance_threshold : float, default=1e4
        Prior precision above which a function is pruned; more than 1. Smaller values prune more.
        The default assumes functions of height 1.
    optimizer : {"auto"} or None, default="auto"
        Whether the length scales are learned, by threefold cross-validation on at most 500 rows,
        with all rows of rare classes. They are multiplied by one factor: the largest power of two,
        or of four with up to 60 rows, whose log loss is within a standard error of the best. Other
        hyperparameters of the kernel are fixed. Held-out rows also determine ``temperature_``.
        None, or fewer than 3 rows, keeps the length scales.
    max_iter : int, default=300
        Maximum number of sweeps over the weights, or number of passes of minibatches over the
        rows. `partial_fit` takes one pass, which also updates the precisions and prunes functions.
    tol : float, default=1e-4
        Stop when a sweep prunes no function and changes the bound by less, in nats per row.
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply predicted probabilities (:ref:`class_weights`).
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters of the last fit, and stochastic steps also
        from its weights and precisions. Changing a parameter on which these depend, such as
        ``kernel``, raises an error.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. Fitted attributes are always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the rows and predictions. None is the dtype of X. The functions' values and
        their sums are always float64.
    random_state : int, RandomState instance or None, default=None
        Seeds the choice of the rows that functions start at, the held-out rows and the minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    class_weight_ : ndarray of shape (n_classes,)
        Weight of each class.
    kernel_ : Kernel
        Kernel with the selected length scales.
    relevance_vectors_ : ndarray of shape (r, d)
        Rows whose functions remain, in units of X.
    relevance_ : ndarray of shape (r,) or (n_classes, r)
        Prior precisions of their weights; for more than two classes, one row per class. It is
        exp(28) for a function that only other classes use.
    elbo_ : float
        Lower bound on the log evidence, in nats.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound after each sweep, or its estimate in each pass.
    n_iter_ : int
        Number of sweeps or passes.
    temperature_ : float
        Power to which the ratios of class probabilities to class frequencies are raised. Sweeps
        determine it from held-out rows. If nothing is learned, it is 1, or that of the fit that a
        warm start continues.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the features, if the columns of X have names that are all strings.

    See Also
    --------
    QSRVMRegressor : Relevance vector machine for regression.
    DecoupledGPClassifier : Gaussian process whose variance does not vanish far from all rows.

    Notes
    -----
    Source: Evans and Nair (2020), section 4; Tipping (2001), Tipping and Faul (2003); Opper and
    Archambeau (2009) for two classes, the bound of Boehning for more. The source's algorithm is
    ``solver=QuadruplyStochastic(step="adagrad")`` with ``covariance="chevron"``. Departs from the
    source: sweeps with two classes use the expected log likelihood instead of a bound, which is
    more accurate for rare classes. Stochastic steps have the bound of Jaakkola and Jordan. There
    may be more than two classes.

    With two classes, each of the first sweeps costs O(n M^2 + M^3). With c classes, it costs
    O(c M^3), and all together O(n M^2). In later sweeps, M is the number of functions that a class
    still uses. Memory beyond X is about ``8 * ((2 c + 3) * M**2 + 2**23)`` bytes. A stochastic
    step costs the same for all n and M, and the memory of the steps is O(n + M). A prediction
    costs O(r^2) per row and latent, or O(r) with independent weights.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import QSRVMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> rvm = QSRVMClassifier().fit(X, y)
    >>> rvm.score(X, y) > 0.95
    True
    >>> len(rvm.relevance_vectors_) < 30
    True
    """

    likelihood = "softmax"
    _rules = RVM_RULES
    _check_parameters = check_rvm_parameters
    _is_learned = staticmethod(is_learned)

    # Fitted attributes
    kernel_: Kernel
    relevance_vectors_: ndarray
    relevance_: ndarray
    elbo_: float
    temperature_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        solver: Literal["sweeps", "quadruply_stochastic"] | Sweeps | QuadruplyStochastic = "sweeps",
        covariance: Literal["auto", "full", "chevron", "mean_field"] = "auto",
        n_dense_columns: int = 10,
        n_basis: int = 2000,
        relevance_threshold: float = 1e4,
        optimizer: Literal["auto"] | None = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        class_weight: ClassWeight = None,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.kernel = kernel
        self.solver = solver
        self.covariance = covariance
        self.n_dense_columns = n_dense_columns
        self.n_basis = n_basis
        self.relevance_threshold = relevance_threshold
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    def _fit_model(self, problem):
        return fit_rvm(self, problem)

    def _update_model(self, problem):
        return take_rvm_steps(self, problem, problem.start, streamed=True)

    def _fitted_attributes(self, models, summaries, streamed=False):
        left_out, prior = summaries[0].left_out or (None, None)
        found = rvm_attributes(self, models, summaries)
        return found | self._tempering_of_learning(left_out, prior)
