"""Gaussian-process classification by expectation propagation as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Literal, NamedTuple

import torch
from sklearn.gaussian_process.kernels import Kernel

from .._estimators import EvidenceMixin, GPClassifier
from .._hyperparameters.default_kernels import with_learned_mean
from .._hyperparameters.elbo_search import with_kernel_of_few_rows
from .._hyperparameters.priors import SignalPrior
from .._hyperparameters.row_span import learn_in_row_span
from .._linalg import natural_parameters
from .._noise import LatentNoise
from .._parameters import ParameterRules, where
from .._sites import LikelihoodSites
from .._sparse import (
    LEARNING_RATE,
    SPARSE_FOLLOWED,
    SparseProblem,
    fit_posterior,
    optimized,
    sparse_attributes,
    update_posterior,
)
from .._typing import (
    ClassWeight,
    Device,
    Dtype,
    InducingPoints,
    MeanFunction,
    Optimizer,
    RandomStateLike,
    ndarray,
)
from .._variational import CLASS_VARIANCE, check_variational_parameters, initial_kernel
from ..likelihoods import Probit
from ..solvers import ConvergedEP, InterleavedEP
from ._converged import run_ep_to_convergence
from ._inference import EPProblem, MinibatchEP, SiteUpdates
from ._probabilities import ProbitProbabilities, log_proba
from ._propagation import Propagation
from ._rules import RULES
from ._starts import at_points, ep_problem, learn_on_evidence, select_start, with_fewer_points

# With more rows, EP to convergence for each evaluation costs too much: about ten updates each on
# 60,000 rows.
_MAX_CONVERGED_ROWS = 10_000
# Rows up to which all are inducing points by default, of two classes and of more: log loss of 14
# development fits of more is .2003 instead of .2035, see
# ``doc/development/decisions/expectation_propagation.rst``.
_MAX_ALL, _MAX_ALL_OF_CLASSES = 1000, 700
_SOLVERS = {"auto": None, "sep": InterleavedEP(), "gfitc": ConvergedEP()}
_LEARNED = where(optimizer="auto")
_OF_LEARNING = "learn_inducing", "solver__gradient", "solver__learning_rate", "solver__rule"
_USES = {"solver": _LEARNED.of(ConvergedEP)} | dict.fromkeys(_OF_LEARNING, _LEARNED)


class EPEvaluation(NamedTuple):
    """Summary of one fitted binary model."""

    evidence: float  # log evidence in nats
    # (n,): leave-one-out probits of label 1 at the rows of the fit, those of all ranks
    probit: torch.Tensor
    targets: torch.Tensor  # (n,): labels, 0 or 1
    weights: torch.Tensor  # (n,)
    # (n_passed,): the same probits by row as passed to this rank: repeated rows apart, NaN for rows
    # of weight 0
    all_probits: torch.Tensor


class EPClassifier(EvidenceMixin, GPClassifier):
    r"""Gaussian-process classification by scalable expectation propagation.

    The likelihood is probit, :math:`p(y | f) = \Phi(y f)`, and the latent function has the FITC
    prior: its values at the rows are independent given those at the inducing points. Expectation
    propagation replaces the likelihood of each row by a Gaussian factor, its site, with the same
    posterior mean and variance. The log evidence and the leave-one-out probabilities then have
    closed forms. With more than two classes, each class has a binary model against the rest, and
    the probabilities are normalized. See the :ref:`user guide <expectation_propagation>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function. Optimization starts from its values; its bounds
        and "fixed" marks are respected. None is a squared exponential with one length scale per
        feature, or one for all features of :ref:`sparse X <sparse_X>`; its hyperparameters have a
        prior, which prevents overfitting. A `WhiteKernel` in the kernel is noise of the latent
        function. It is redundant: noise of variance s has the same effect as dividing the other
        terms by 1 + s.
    solver : {"auto", "sep", "gfitc"} or solver, default="auto"
        How hyperparameters are learned. "gfitc" maximizes the evidence of converged sites by
        L-BFGS-B, with at most 100 inducing points if these are fixed. For the default kernel of
        :ref:`sparse X <sparse_X>` it maximizes the ELBO of some hundred rows instead. "sep" takes a
        gradient step after each update of the sites, and is faster for many rows. "auto" is "gfitc"
        for up to 10,000 rows, otherwise "sep". Objects with options, such as minibatches and the
        paper's step rules, are `skgpsvm.solvers.InterleavedEP` for "sep" and
        `skgpsvm.solvers.ConvergedEP` for "gfitc".
    mean : {"zero", "constant", "linear"}, default="linear"
        Mean function, which becomes terms of the kernel: a constant of fixed variance and, for
        "linear", a linear function whose variance is learned.
    n_inducing : int, default=None
        Number of inducing points, m. None is every row of up to 1,000 of two classes, or of up to
        700 of more, if "gfitc" is used and the points are fixed; otherwise it is 256, or more for
        :ref:`sparse X <sparse_X>`. More points approximate the process better, at a cost of O(m^2)
        for each row. Fewer are used if the data have fewer distinct rows. Ignored if
        ``inducing_points`` is an array.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Initial inducing points: cluster centers of the standardized rows, rows drawn at random, or
        the given points, in units of X. A string has no effect where every row is a point.
    learn_inducing : bool, default=False
        Whether inducing points are optimized. Fewer points are then enough, but the model overfits
        where the signal is weak, since the evidence is not a bound. Points of more than a million
        numbers stay.
    optimizer : {"auto"}, callable or None, default="auto"
        Whether the kernel is learned. None holds the kernel and the inducing points fixed. A
        function with the interface of `GaussianProcessClassifier` maximizes
        `log_marginal_likelihood` over the theta of each class's kernel, which you must pass;
        inducing points stay. With None or a function, ``solver="gfitc"`` would have no effect and
        is refused.
    max_iter : int, default=100
        Maximum number of updates of all sites, or of epochs of minibatches. "sep" learns
        hyperparameters in the first 70 %. "gfitc" first learns them in at most as many rounds of
        twenty L-BFGS-B steps.
    tol : float, default=1e-3
        Stop when an update changes the posterior mean by less, relative to its norm. "gfitc" also
        stops its rounds when a step gains less than ``0.3 * tol * (n + 300)`` nats.
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply predicted probabilities (:ref:`class_weights`).
    warm_start : bool, default=False
        Whether `fit` starts from the kernel and the inducing points of the last fit, and keeps
        them if only few rows were added (:ref:`further_rows`). Changing a parameter on which they
        depend, such as ``kernel``, raises an error.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Precision of the features; None is that of X. Sites and posterior are in float64.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means and the minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    class_weight_ : ndarray of shape (n_classes,)
        Weight of each class.
    kernel_ : Kernel
        Kernel with the learned hyperparameters, including the terms of the mean function. With
        more than two classes, a `CompoundKernel` of one kernel for each class.
    inducing_points_ : ndarray of shape (m, d), or a list of one for each class
        Inducing points, in units of X.
    log_marginal_likelihood_value_ : float
        Log evidence in nats, summed over the classes' models. It is not a bound.
    temperature_ : float
        Power to which the class probabilities are raised. It minimizes the log loss of
        leave-one-out predictions, with a prior. A value above 1 means that these were too
        cautious. With ``optimizer=None`` it is 1, or that of the fit that a warm start continues.
    loo_log_loss_ : float
        Mean leave-one-out log loss with this power, in nats per row. As an estimate of the log
        loss of new rows it is slightly too low, since hyperparameters were learned on the same
        rows.
    loo_proba_ : ndarray of shape (n, n_classes)
        Leave-one-out class probabilities of the rows that were last passed. Copies of a row
        are :ref:`left out together <left_out_rows>`. NaN for rows of weight 0.
    objective_curve_ : ndarray of shape (n_iterations,)
        Log evidence after each iteration, or each round of "gfitc"; an estimate with minibatches.
        If the default kernel is learned, the log density of its prior is added, up to a constant.
        With "gfitc" and the default kernel of sparse X, iterations are the last updates of sites.
    n_iter_ : int
        Number of updates, epochs or rounds; with more than two classes, the largest number of all
        models.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Column names of X, if they are all strings.

    Notes
    -----
    Source: Hernandez-Lobato and Hernandez-Lobato (2016).

    Departs from the source: equations 20, 23 and 29, of the sites and the evidence, are corrected;
    gradients of the evidence hold the sites' parameters fixed while the whitened features move;
    the default kernel's hyperparameters have a prior; inducing points are not optimized by
    default.

    The source's algorithm is ``EPClassifier(kernel, solver=InterleavedEP("sign"),
    mean="zero", inducing_points="random", learn_inducing=True)``, with your own kernel. Its
    generalized FITC has ``solver="gfitc"`` instead.

    An update costs O(n m^2) time, and memory is O(n + m^2). The evidence and the leave-one-out
    loss accumulate over calls of `partial_fit`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skgpsvm import EPClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ep = make_pipeline(StandardScaler(), EPClassifier(n_inducing=20, random_state=0)).fit(X, y)
    >>> ep.score(X, y) > 0.97
    True
    """

    _takes_sparse = True
    _noise_model = LatentNoise()
    _rules = ParameterRules(_USES, SPARSE_FOLLOWED, solvers=_SOLVERS)

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray | list[ndarray]
    log_marginal_likelihood_value_: float
    temperature_: float
    loo_log_loss_: float
    loo_proba_: ndarray

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        solver: Literal["auto", "sep", "gfitc"] | InterleavedEP | ConvergedEP = "auto",
        mean: MeanFunction = "linear",
        n_inducing: int | None = None,
        inducing_points: InducingPoints = "kmeans",
        learn_inducing: bool = False,
        optimizer: Literal["auto"] | Optimizer | None = "auto",
        max_iter: int = 100,
        tol: float = 1e-3,
        class_weight: ClassWeight = None,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.kernel = kernel
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

    # Fitting

    def _check_parameters(self):
        check_variational_parameters(self, takes_function=True, chooses_number=True)

    @property
    def _n_latents(self):
        """Number of latent functions, each of a model of its own."""
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def _one_vs_rest_targets(self, codes):
        """Return the binary targets of each model: one for two classes, else one a class."""
        if self._n_latents == 1:
            return [codes]
        return [(codes == j).astype(codes.dtype) for j in range(self._n_latents)]

    def _make_likelihood(self):
        return LikelihoodSites(Probit(), 1)

    def _sparse_problem(self, problem):
        scaler, learns = problem.scaler, self.optimizer == "auto"
        kernel = initial_kernel(self, scaler, CLASS_VARIANCE)
        kernel = with_learned_mean(kernel, self.mean, scaler, CLASS_VARIANCE, start=CLASS_VARIANCE)
        prior = cache(partial(SignalPrior, kernel, problem.rows.device))
        make_prior = (lambda rows: prior()) if self.kernel is None else None
        parts = {"make_prior": make_prior, "max_all": self._max_all(problem.rows)}
        sparse = SparseProblem.of(self, problem, kernel, learns=learns, **parts)
        return sparse if learns else replace(sparse, learned=())

    def _max_all(self, rows):
        """Return the number of rows up to which all are inducing points by default."""
        converges = isinstance(self._chosen_solver(rows), ConvergedEP)
        if not converges or self.learn_inducing:
            return 0
        return _MAX_ALL if self._n_latents == 1 else _MAX_ALL_OF_CLASSES

    def _chosen_solver(self, rows):
        """Return the solver, with "auto" resolved."""
        few = rows.n_rows <= _MAX_CONVERGED_ROWS
        return self._solver() or (ConvergedEP() if few else InterleavedEP())

    def _fit_model(self, problem):
        sparse, rows = self._sparse_problem(problem), problem.rows
        model, curve, sites = problem.start or sparse.initial_model(), (), {}
        sparse, model = with_kernel_of_few_rows(sparse, model)
        if problem.start is not None and problem.learns:
            model, sites = at_points(sparse, model, sparse.points_of(model))
        if callable(self.optimizer) and problem.learns:
            model = optimized(self.optimizer, self._evidence_at, model, rows)
        solver, free = self._chosen_solver(rows), sparse.free_parts(model)
        converges = isinstance(solver, ConvergedEP)
        if converges and free == ["theta"] and sparse.learns_in_row_span:
            # The objectives are ELBOs, so that those of the posterior are kept.
            model, _ = learn_in_row_span(sparse, model, self._n_latents)
        elif free:
            model, sites, curve = self._with_hyperparameters(sparse, model, free, sites, converges)
        stage = self._stage(sparse, ep_problem(sparse, model, [] if converges else free), solver)
        return fit_posterior(sparse, model, stage, _summary, curve, sites)

    def _with_hyperparameters(self, sparse, start, free, sites, converges):
        """Return the start with better hyperparameters, its sites, and the objectives if any.

        They are those of the highest evidence if learning ``converges``, otherwise a better start.
        """
        # Copies of rows would be evidence of a function that follows each of them.
        learned_from = sparse.on(sparse.rows.with_even_weights())
        model = with_fewer_points(sparse, start) if free == ["theta"] else start
        curve, ended = (), None
        if sparse.problem.start is None and "theta" in free:
            model, ended = select_start(learned_from, model)
        if converges:
            parts = free, start.kernel, sites, ended
            model, sites, curve = learn_on_evidence(learned_from, model, *parts)
        if len(model.Z) < len(start.Z):
            model = replace(model, Z=start.Z, mean=None, root=None)
        return model, sites, curve

    def _stage(self, sparse, problem, solver):
        """Return the stage that finds the sites, and learns what is free by gradient steps."""
        if isinstance(solver, ConvergedEP):
            return SiteUpdates(problem, None, self.max_iter, self.tol)
        rate = LEARNING_RATE if solver.learning_rate is None else solver.learning_rate
        rule = RULES[solver.rule](rate) if problem.free.names else None
        problem = replace(problem, approximate=solver.gradient == "approximate")
        if solver.batch_size is None:
            return SiteUpdates(problem, rule, self.max_iter, self.tol)
        options = rule, self.max_iter, self.tol, solver.batch_size, sparse.problem.generator
        return MinibatchEP(problem, *options)

    def _update_model(self, problem):
        old, rows = problem.start, problem.rows
        tensors = old.state(rows.device)
        prior = natural_parameters(tensors["mean"][0], tensors["root"][0])
        propagation = Propagation(*old.torch_kernels, rows, old.jitter, prior)
        stage = SiteUpdates(EPProblem(propagation), None, self.max_iter, self.tol)
        first = stage.init({name: tensors[name] for name in ("theta", "Z")})
        return update_posterior(self, problem, stage, first, _summary)

    def _fitted_attributes(self, models, evaluations, streamed=False):
        targets = torch.stack([each.targets for each in evaluations], 1)
        targets = targets[:, 0] if len(evaluations) == 1 else targets.argmax(1)
        weights = evaluations[0].weights.double()
        probits = torch.stack([each.probit for each in evaluations], 1)
        found = self._tempered(log_proba(probits), targets, weights, streamed=streamed)
        tempering = found["_tempering"]
        all_probits = torch.stack([each.all_probits for each in evaluations], 1)
        evidences = [each.evidence for each in evaluations]
        if streamed:
            evidences.append(self.log_marginal_likelihood_value_)
        return {
            **sparse_attributes(self, models),
            **found,
            "loo_log_loss_": tempering.log_loss,
            "log_marginal_likelihood_value_": sum(evidences),
            "loo_proba_": log_proba(all_probits, tempering.power).exp().cpu().numpy(),
        }

    # Prediction

    @staticmethod
    def _evidence_at(model, rows, theta, with_gradient):
        """Return the log evidence of converged sites, and its gradient; see `evidence_at`."""
        propagation = Propagation(*model.torch_kernels, rows, model.jitter)
        Z = model.state(rows.device)["Z"]
        state = propagation.init(torch.as_tensor(theta, device=rows.device), Z)
        update = run_ep_to_convergence(propagation, state)
        gradient = propagation.gradient(state, update)["theta"] if with_gradient else None
        return propagation.evidence(state, update), gradient

    def _class_probabilities(self):
        return ProbitProbabilities(self._tempering.power)


def _summary(propagation, state):
    """Return the `EPEvaluation` of a fitted state."""
    update, rows = propagation.site_update(state), propagation.rows
    probits = propagation.left_out_probits(state)
    return EPEvaluation(
        propagation.evidence(state, update),
        *rows.collect(probits, rows.targets, rows.weights),
        all_probits=rows.unmerged(probits),
    )
