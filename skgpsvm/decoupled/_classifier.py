"""Decoupled Gaussian-process classification."""

from __future__ import annotations

from functools import partial
from typing import Literal

from sklearn.gaussian_process.kernels import Kernel

from .._conjugate_gradients import fit_by_conjugate_gradients, learn_classifier, with_elbo
from .._estimators import GPClassifier
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
from .._variational import CLASS_VARIANCE, CLASSIFIER_LIKELIHOODS, classification_problem
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


class DecoupledGPClassifier(GPClassifier):
    r"""Gaussian-process classification with separate bases for means and covariances.

    There is one latent function per class, or a single one for two classes. Posterior means are
    weighted sums of kernel functions at ``n_mean_bases`` rows, their bases; covariances use far
    fewer inducing points. Natural-gradient steps alternate with preconditioned conjugate gradients
    for the means. See the :ref:`user guide <decoupled>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function. Hyperparameters are optimized from its values
        within its bounds, unless "fixed". None is a squared exponential with one length scale per
        feature, whose hyperparameters have a prior. With ``solver="sgd"`` None is a
        `MultiscaleRBF`, whose bases have their own length scales.
    likelihood : {"softmax", "probit", "robust_max"}, default="softmax"
        Class probabilities given the latents. "softmax" is the softmax of the latents, for two
        classes the logistic function of the only latent. "probit", for two classes only, is the
        normal distribution function of the only latent. "robust_max" takes the class of the
        largest latent, with one label in a thousand wrong.
    solver : {"cg", "sgd"} or solver, default="cg"
        "cg" learns hyperparameters on up to 10,000 rows and solves for the means on all rows by
        conjugate gradients. "sgd", the paper's Algorithm 1, takes stochastic gradients of all
        parameters and adds bases from each minibatch. Objects with options, such as the
        parametrizations of "sgd", are `skgpsvm.solvers.ConjugateGradients` and
        `skgpsvm.solvers.StochasticGradient`.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function. Its coefficients have a prior, as in `SVGPClassifier`. None is "linear", or
        "zero" for ``solver="sgd"``, which supports no other.
    n_mean_bases : int, default=2000
        Number of bases of the means, M: rows drawn at random, or all rows if there are no more.
        More bases give better means; the time of a pass grows in proportion.
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
        Whether to learn the kernel. "cg" learns it by a sparse GP on at most 10,000 rows.
    max_iter : int, default=100
        Maximal number of passes over the rows: iterations of conjugate gradients, or epochs of
        minibatches. `partial_fit` with "sgd" takes one.
    tol : float, default=1e-2
        Stop conjugate gradients when a natural-gradient step changes the means by less, relative to
        their norm. Not for "sgd".
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply predicted probabilities (:ref:`class_weights`).
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters and inducing points of the last fit; "sgd"
        continues from its whole state, and "cg" keeps what was learned if only few rows were added
        (:ref:`further_rows`). Changing a parameter on which these depend, such as ``kernel``,
        raises an error.
    device : str or torch.device, default=None
        Device to compute on; None is the CPU. The fitted state is always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the covariance's features and of minibatches; "cg" always solves for the means
        in float64. None is the dtype of X, but float32 for products while "cg" learns.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means, the choice of bases, and the minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    class_weight_ : ndarray of shape (n_classes,)
        Weight of each class.
    kernel_ : Kernel
        The kernel with learned hyperparameters, including the terms of the mean function.
    inducing_points_ : ndarray of shape (m, d)
        Inducing points, in units of X. For a `MultiscaleRBF` with "sgd" the shape is (m, 2 d):
        logarithms of the length-scale multipliers come last.
    mean_bases_ : ndarray of shape (M, d)
        Bases of the mean, with the columns of ``inducing_points_``.
    elbo_ : float
        ELBO, a lower bound on the log evidence, in nats.
    objective_curve_ : ndarray of shape (n_iterations,)
        ELBO after each pass; for "sgd", the mean of its estimates in the pass.
    n_iter_ : int
        Number of passes.
    temperature_ : float
        Power to which the class probabilities are raised. It minimizes the log loss of
        leave-one-out predictions of the sparse process that learns the kernel. If nothing is
        learned, it is 1, or that of the fit that a warm start continues.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X has names that are all strings.

    Notes
    -----
    Source: Cheng and Boots (2017); Salimbeni et al. (2018) for the orthogonal form; Rudi, Carratino
    and Rosasco (2017) for the preconditioner.

    A pass costs O(n M), and the preconditioner of each latent O(M^3). Memory beyond X is about
    ``8 * (c + 3) * M**2`` bytes for c latents, or ``2 * (c + 1) * M**2`` for more than 4,000
    bases. A prediction costs O(M + m^2) per row and latent.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import DecoupledGPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> gp = DecoupledGPClassifier(n_inducing=20, random_state=0).fit(X, y)
    >>> gp.score(X, y) > 0.95
    True
    """

    _rules = ParameterRules(USES, DECOUPLED_FOLLOWED, GROWING, SOLVERS)
    _first_call_updates = by_steps

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray
    mean_bases_: ndarray
    elbo_: float
    temperature_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        likelihood: Literal["softmax", "probit", "robust_max"] = "softmax",
        solver: Literal["cg", "sgd"] | ConjugateGradients | StochasticGradient = "cg",
        mean: MeanFunction | None = None,
        n_mean_bases: int = 2000,
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
        self.likelihood = likelihood
        self.solver = solver
        self.mean = mean
        self.n_mean_bases = n_mean_bases
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

    def _check_parameters(self):
        check_decoupled_parameters(self)
        self._check_choice("likelihood", CLASSIFIER_LIKELIHOODS)

    def _fit_model(self, problem):
        if by_steps(self):
            return fit_by_stochastic_gradients(self, problem, CLASS_VARIANCE)
        sparse = classification_problem(self, problem, self.mean or "linear")
        model, left_out = learn_classifier(sparse, **self._solver().get_params())
        model, index = with_rows_as_bases(model, self.n_mean_bases, problem)
        finish = partial(with_elbo, left_out=left_out)
        return fit_by_conjugate_gradients(sparse, model, index, finish)

    def _update_model(self, problem):
        return update_decoupled(self, problem, CLASS_VARIANCE)

    def _fitted_attributes(self, models, summaries, streamed=False):
        return {
            **decoupled_attributes(self, models, summaries, streamed),
            **self._tempering_of_learning(summaries[0].left_out),
        }
