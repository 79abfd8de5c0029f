"""Quadruply stochastic Gaussian-process classifier."""

from __future__ import annotations

from typing import Literal

from sklearn.gaussian_process.kernels import Kernel

from .._conjugate_gradients import learn_classifier
from .._estimators import GPClassifier
from .._features import FourierFeatures
from .._parameters import ParameterRules
from .._typing import (
    ClassWeight,
    Device,
    Dtype,
    InducingPoints,
    MeanFunction,
    RandomStateLike,
    ndarray,
)
from .._variational import classification_problem
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
from ._step_runs import by_steps


class QSGPClassifier(GPClassifier):
    r"""Gaussian-process classification whose latent means have very many basis functions.

    Each class has a latent function; two classes share one. The latent means are weighted sums of
    ``n_basis`` random Fourier features or kernel functions at rows. By default, natural-gradient
    steps alternate with preconditioned conjugate gradients for the weights. Alternatively,
    stochastic steps, whose cost does not depend on the number of rows or functions, learn the
    weights under a quadratic bound on the likelihood. See the
    :ref:`user guide <quadruply_stochastic>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function. With Fourier features it must be a sum of RBF and
        Matern kernels times constants. Hyperparameters start from its values and are learned within
        its bounds, unless they are "fixed". None is a squared exponential with a length scale for
        each feature, whose hyperparameters have a prior.
    solver : {"cg", "sgd", "adagrad"} or solver, default="cg"
        How the coefficients of the means are learned. "cg" runs preconditioned conjugate
        gradients, which evaluate all functions at all rows in every iteration. "sgd" and "adagrad"
        take stochastic steps, for millions of functions. Steps of "sgd" have a constant size and
        are averaged; those of "adagrad", as in the paper, are scaled by past gradients. Objects
        with options are `skgpsvm.solvers.ConjugateGradients` and
        `skgpsvm.solvers.QuadruplyStochastic`.
    basis : {"fourier", "orthogonal", "inducing"}, default="fourier"
        Basis functions of the mean. "fourier" are cosines and sines with random frequencies from
        the spectrum of the kernel. "orthogonal" are the same, with frequencies that are orthogonal
        in blocks of d. "inducing" are kernel functions at rows.
    n_basis : int, default=4000
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
        Mean function, whose coefficients have a prior, see `SVGPClassifier`. None is "linear" for
        "cg", and "zero" for stochastic steps, which terms with vague priors slow down.
    n_inducing : int, default=256
        Number of inducing points, k, of the "nystroem" covariance and of the sparse GP that learns
        the kernel.
    inducing_points : {"kmeans", "random"} or array-like of shape (k, d), default="kmeans"
        Initial inducing points: k-means centers of the standardized rows, rows drawn at random, or
        the given array, in units of X.
    learn_inducing : bool, default=True
        Whether the inducing points are optimized.
    optimizer : {"auto"} or None, default="auto"
        Whether the kernel is learned, on up to 10,000 rows. None keeps the given one, unless
        stochastic steps learn it.
    max_iter : int, default=100
        Maximum number of iterations of conjugate gradients, or number of passes of minibatches over
        the rows. `partial_fit` takes one pass.
    tol : float, default=1e-2
        Stop conjugate gradients when a natural-gradient step changes the means by less, relative to
        their norm.
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply predicted probabilities (:ref:`class_weights`).
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters of the last fit, and stochastic steps also
        from its coefficients and covariance. With "cg", hyperparameters are kept if only few rows
        were added (:ref:`further_rows`). Changing a parameter on which these depend, such as
        ``kernel``, raises an error.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. Fitted attributes are always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the features and their products, which are summed in float64. None is the
        dtype of X, but float32 while hyperparameters are learned. Kernel functions at rows with
        ``solver="cg"`` are always float64.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means, the random frequencies, the subsamples of rows and the minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    class_weight_ : ndarray of shape (n_classes,)
        Weight of each class.
    kernel_ : Kernel
        Kernel with the learned hyperparameters, including the terms of the mean function.
    inducing_points_ : ndarray of shape (k, d)
        Inducing points of the "nystroem" covariance and of the sparse GP, in units of X. If
        neither is used, this is one row of X.
    basis_ : FourierFeatures or ndarray of shape (m, d)
        Basis functions of the mean: the rows of kernel functions, or an object that defines random
        Fourier features by their number of frequencies, ``n_pairs``, and ``seed``.
    elbo_ : float
        Lower bound on the log evidence, in nats. For stochastic steps, the mean of its estimates in
        the last pass, under the quadratic bound.
    objective_curve_ : ndarray of shape (n_iterations,)
        The ELBO after each iteration, or its estimate in each pass.
    n_iter_ : int
        Number of iterations or passes.
    temperature_ : float
        Power to which the class probabilities are raised. It minimizes the log loss of
        leave-one-out predictions of the sparse GP that learns the kernel. If nothing is learned,
        it is 1, or that of the fit that a warm start continues.
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
    ``8 * (q * m + (c + 3) * q**2 + 2**23)`` bytes for c latents, with q = min(m / 2, n, 4096) rows
    in the preconditioner. A stochastic step of b rows, s sampled functions and p support rows
    costs O((b + p) s d + b p^2), for any n and m, and O(m) memory. Frequencies that would take
    over 256 MiB are drawn anew for every use, which adds O(s d^3) to a step if they are
    orthogonal. A prediction costs O(m d + k^2) per row.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import QSGPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> gp = QSGPClassifier(n_basis=200, n_inducing=20, random_state=0).fit(X, y)
    >>> gp.score(X, y) > 0.95
    True
    """

    _rules = ParameterRules(USES, QS_FOLLOWED, solvers=SOLVERS, streaming=QuadruplyStochastic)
    _check_parameters = check_qs_parameters

    likelihood = "softmax"

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray
    basis_: FourierFeatures | ndarray
    elbo_: float
    temperature_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        solver: Literal["cg", "sgd", "adagrad"] | ConjugateGradients | QuadruplyStochastic = "cg",
        basis: Literal["fourier", "orthogonal", "inducing"] = "fourier",
        n_basis: int = 4000,
        covariance: Literal["nystroem", "chevron", "mean_field"] = "nystroem",
        n_dense_columns: int = 10,
        augment: bool = False,
        mean: MeanFunction | None = None,
        n_inducing: int = 256,
        inducing_points: InducingPoints = "kmeans",
        learn_inducing: bool = True,
        optimizer: Literal["auto"] | None = "auto",
        max_iter: int = 100,
        tol: float = 1e-2,
        class_weight: ClassWeight = None,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.kernel = kernel
        self.solver = solver
        self.basis = basis
        self.n_basis = n_basis
        self.covariance = covariance
        self.n_dense_columns = n_dense_columns
        self.augment = augment
        self.mean = mean
        self.n_inducing = n_inducing
        self.inducing_points = inducing_points
        self.learn_inducing = learn_inducing
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    def _fit_model(self, problem):
        mean = self.mean or ("zero" if by_steps(self) else "linear")
        sparse = classification_problem(self, problem, mean)
        return fit_qs(self, sparse, learn_classifier)

    def _update_model(self, problem):
        return take_steps(self, problem, problem.start, problem.rows, streamed=True)

    def _fitted_attributes(self, models, summaries, streamed=False):
        return {
            **qs_attributes(self, models, summaries),
            **self._tempering_of_learning(summaries[0].left_out),
        }
