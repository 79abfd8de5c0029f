"""`SVGPClassifier`: the estimator."""

from __future__ import annotations

from typing import Literal

from sklearn.gaussian_process.kernels import Kernel

from .._estimators import EvidenceMixin, GPClassifier
from .._hyperparameters.elbo_search import learn_on_elbo
from .._hyperparameters.initialization import at_points, shrink_length_scales
from .._hyperparameters.row_span import learn_in_row_span
from .._inference.natural_gradient import NaturalGradientInference
from .._parameters import ParameterRules
from .._sparse import N_INDUCING, SPARSE_FOLLOWED, fit_posterior, update_by_ascent
from .._typing import (
    ClassWeight,
    Device,
    Dtype,
    InducingPoints,
    MeanFunction,
    RandomStateLike,
    ndarray,
)
from .._variational import (
    CLASSIFIER_LIKELIHOODS,
    check_variational_parameters,
    classification_problem,
    classification_summary,
    converged_elbo_at,
    elbo_attributes,
    natural_sweep,
)
from ..likelihoods import Softmax
from ..solvers import Collapsed, NaturalGradient
from ._steps import MAX_FULL_BATCH, STEPS, USES, StepsLike, posterior_stage

_SOLVERS = {"auto": None, "collapsed": Collapsed(), **STEPS}
# Rows up to which all are inducing points by default, for one latent function: log loss of 16
# development fits is .2262 instead of .2305, see ``doc/development/decisions/svgp.rst``. For
# sparse X they are for any number of classes.
_MAX_ALL = 800
_POINTS_OF_EVALUATIONS = 1024  # of the softmax, half of the draws
SolverLike = Literal["auto", "collapsed"] | StepsLike | Collapsed


class SVGPClassifier(EvidenceMixin, GPClassifier):
    r"""Sparse variational Gaussian-process classification.

    Each class has a latent function with a Gaussian-process prior; two classes share one. A
    Gaussian posterior over the values at m inducing points summarizes all n rows. Posterior, kernel
    and inducing points maximize the ELBO, a lower bound on the log evidence. See the
    :ref:`user guide <svgp>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function. Optimization starts from its values; its bounds
        and "fixed" marks are respected. None is a squared exponential with one length scale per
        feature, or one for all features of :ref:`sparse X <sparse_X>`; its hyperparameters have a
        prior.
    likelihood : {"softmax", "probit", "robust_max", "ordinal"}, default="softmax"
        Class probabilities given the latents. ``"softmax"`` is the softmax of the latents, for two
        classes the logistic function of the only latent. ``"probit"``, for two classes only, is
        the normal distribution function of the only latent. ``"robust_max"`` takes the class of
        the largest latent, with one label in a thousand wrong. ``"ordinal"``, for ordered classes
        whose labels are numbers, has one latent with normal noise, and learned thresholds between
        the classes.
    solver : {"auto", "collapsed", "natural_gradient", "gradient"} or solver, default="auto"
        ``"collapsed"`` maximizes the ELBO over the hyperparameters by L-BFGS-B; in each
        evaluation, natural gradients find the optimal posterior. ``"natural_gradient"`` alternates
        natural gradients for the posterior with Adam for the rest; ``"gradient"`` uses Adam for
        everything. ``"auto"`` is ``"collapsed"`` for up to 10,000 rows, otherwise
        ``"natural_gradient"``. Objects with options are `skgpsvm.solvers.Collapsed`,
        `skgpsvm.solvers.NaturalGradient` and `skgpsvm.solvers.Gradient`.
    mean : {"zero", "constant", "linear"}, default="linear"
        Mean function, which becomes terms of the kernel: a constant of fixed variance and, for
        ``"linear"``, a linear function whose variance is learned.
    n_inducing : int, default=None
        Number of inducing points, m. None is every row of up to 800, if "collapsed" fits one
        latent function, as for two classes, or :ref:`sparse X <sparse_X>`; otherwise it is 256, or
        more for sparse X. More points are more accurate and slower. Fewer are used if the data
        have fewer distinct rows. Ignored if ``inducing_points`` is an array.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Initial inducing points: k-means centers of the standardized rows, random rows, or the given
        array, in units of X. A string has no effect where every row is a point.
    learn_inducing : bool, default=True
        Whether the inducing points are optimized. They are not where every row is one, if they
        have more than a million numbers, m d, nor if "collapsed" learns the default kernel of
        sparse X.
    optimizer : {"auto"} or None, default="auto"
        Whether the kernel's hyperparameters are learned. None keeps the initial ones.
    max_iter : int, default=100
        Maximum number of passes over the rows. With "collapsed", it is also the maximum number of
        rounds of twenty L-BFGS-B steps.
    tol : float, default=1e-2
        Stop when a pass changes the posterior means by less, relative to their norm. "collapsed"
        also stops when a step gains less than ``0.1 * tol`` nats per row. Smaller values take more
        passes.
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply predicted probabilities (:ref:`class_weights`).
    warm_start : bool, default=False
        Whether `fit` starts from the kernel, inducing points and posterior of the last fit, and
        keeps kernel and points if only few rows were added (:ref:`further_rows`). Changing a
        parameter on which these depend, such as ``kernel``, raises an error.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. The fitted state is always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the passes over rows. None is that of X, but float32 for products while
        "collapsed" learns. The algebra of inducing points is always in float64.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means and the minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    class_weight_ : ndarray of shape (n_classes,)
        Weight of each class.
    kernel_ : Kernel
        Kernel with the learned hyperparameters, including the terms of the mean function.
    inducing_points_ : ndarray of shape (m, d)
        Inducing points, in units of X.
    elbo_ : float
        ELBO, a lower bound on the log evidence, nats. For the softmax of more than two classes it
        is an estimate.
    objective_curve_ : ndarray of shape (n_iterations,)
        ELBO after each iteration, or each round of "collapsed"; an estimate with minibatches. If
        the default kernel is learned, it includes the log prior of the hyperparameters.
    n_iter_ : int
        Number of passes or rounds.
    thresholds_ : ndarray of shape (n_classes - 1,)
        Thresholds of the latent function between the classes. Only with ``likelihood="ordinal"``.
    temperature_ : float
        Power to which the class probabilities are raised. It minimizes the log loss of
        leave-one-out predictions, with a prior. A value above 1 means that these were too
        cautious. With ``optimizer=None`` it is 1, or that of the fit that a warm start continues.
    loo_log_loss_ : float
        Log loss of the leave-one-out predictions with this power, in nats per row. With more than
        3,000 rows, it is that of a sample of 3,000.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X has names and all are strings.

    Notes
    -----
    Source: Hensman et al. (2015); Khan and Lin (2017) for the natural gradients. A pass costs
    O(n m^2) time for each latent function.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import SVGPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> gp = SVGPClassifier(n_inducing=20, random_state=0).fit(X, y)
    >>> gp.score(X, y) > 0.95
    True
    """

    _takes_sparse = True
    _rules = ParameterRules(USES, SPARSE_FOLLOWED, solvers=_SOLVERS)

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray
    elbo_: float
    thresholds_: ndarray
    temperature_: float
    loo_log_loss_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        likelihood: Literal["softmax", "probit", "robust_max", "ordinal"] = "softmax",
        solver: SolverLike = "auto",
        mean: MeanFunction = "linear",
        n_inducing: int | None = None,
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

    @property
    def log_marginal_likelihood_value_(self) -> float:
        """The attribute ``elbo_``, by its name in `GaussianProcessClassifier`."""
        return self.elbo_

    def _evidence_at(self, *point):
        """Return the ELBO and its gradient in theta; see `evidence_at`."""
        sites = self._sites_of(self._likelihood)
        if isinstance(sites.likelihood, Softmax):
            sites.likelihood.n_points = _POINTS_OF_EVALUATIONS
        return converged_elbo_at(sites, *point)

    def _check_parameters(self):
        self._check_choice("likelihood", (*CLASSIFIER_LIKELIHOODS, "ordinal"))
        check_variational_parameters(self, chooses_number=True)

    def _max_all(self, collapsed, isotropic):
        """Return the number of rows up to which all are inducing points by default."""
        likelihood = self._make_likelihood()
        if not collapsed or likelihood.redescending:
            return 0
        return _MAX_ALL if isotropic or likelihood.n_latents == 1 else N_INDUCING

    def _fit_model(self, problem):
        rows, start = problem.rows, problem.start
        few = rows.n_rows <= MAX_FULL_BATCH
        solver = self._solver() or (Collapsed() if few else NaturalGradient())
        collapsed = isinstance(solver, Collapsed)
        max_all = self._max_all(collapsed, problem.is_isotropic)
        sparse = classification_problem(self, problem, self.mean, max_all)
        model = start or sparse.initial_model()
        if start is not None and problem.learns:
            model = at_points(start, sparse.points_of(start), sparse.likelihood, rows)
        if collapsed:
            if sparse.learns_in_row_span:
                model, curve = learn_in_row_span(sparse, model, sparse.likelihood.n_latents)
            else:
                model, curve = learn_on_elbo(sparse, model)
            stage = sparse.inference(model, NaturalGradientInference, [])
            return fit_posterior(sparse, model, stage, classification_summary, curve)
        if start is None and "theta" in sparse.free_parts(model):
            model, _ = shrink_length_scales(sparse, model)
        stage = posterior_stage(sparse, model, solver)
        return fit_posterior(sparse, model, stage, classification_summary)

    def _update_model(self, problem):
        return update_by_ascent(self, problem, natural_sweep, classification_summary, self.tol)

    def _fitted_attributes(self, models, summaries, streamed=False):
        [(bound, (mean, var, *rest))] = summaries
        noise = models[0].state("cpu")["noise"]
        found = self._tempered(self._log_p_of(mean, var, noise), *rest, streamed=streamed)
        return {
            **self._likelihood_attributes(noise),
            **elbo_attributes(self, models, bound, self.elbo_ if streamed else 0.0),
            **found,
            "loo_log_loss_": found["_tempering"].log_loss,
        }
