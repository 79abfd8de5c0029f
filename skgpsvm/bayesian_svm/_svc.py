"""`BayesianSVC`: the estimator."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel

from .. import solvers
from .._calibration import Calibration
from .._estimators import GPClassifier
from .._hinge_sites import BinarySites, ContrastSites
from .._hyperparameters.default_kernels import linear_kernel, smooth_kernel, with_one_unit
from .._inference.leave_one_out import leave_one_out
from .._inference.natural_gradient import CoordinateInference, GradientInference
from .._parameters import ALWAYS, ParameterRules, where
from .._predictive import pseudo_likelihood_probabilities
from .._sparse import (
    SPARSE_FOLLOWED,
    SparseProblem,
    check_sparse_parameters,
    fit_posterior,
    sparse_attributes,
    update_by_ascent,
)
from .._typing import ClassWeight, Device, Dtype, InducingPoints, RandomStateLike, ndarray
from ._kernel_choice import chosen_kernel

_LOO_TOL_DIVISOR = 10  # for fewer rows than features, where leave-one-out needs the optimum
_SOLVERS = {"coordinate_ascent": solvers.CoordinateAscent(), "gradient": solvers.Gradient()}
SolverLike = Literal["coordinate_ascent", "gradient"] | solvers.CoordinateAscent | solvers.Gradient
_USES = {
    "contrast": where(multi_class="crammer_singer"),
    "solver__learning_rate": where(solver=solvers.Gradient)
    | where(learn_inducing=True)
    | where(optimizer="adam"),
}
_FOLLOWED = {
    call: table | {"contrast": ALWAYS, "probability": ALWAYS}
    for call, table in SPARSE_FOLLOWED.items()
}


class BayesianSVC(GPClassifier):
    r"""Bayesian support vector machine: a Gaussian-process classifier with a hinge loss.

    Each class has a latent function with a Gaussian-process prior. The functions are fitted to
    Crammer and Singer's hinge loss, and closed-form updates find a Gaussian posterior over inducing
    points. One model covers all classes. The defaults need no tuning: hyperparameters and the
    calibration of probabilities are learned without cross-validation. See the :ref:`user guide
    <bayesian_svm>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function; with two classes or "ovr", of the decision
        function. Optimization starts from its values; its bounds and "fixed" marks are respected.
        None is a squared exponential with one length scale per feature, plus a constant and a
        linear term. It measures features in their standard deviations, so they need no scaling.
        They are left in their own units if leave-one-out predictions are then clearly better, as
        for images, and for :ref:`sparse X <sparse_X>`, which has one length scale.
    multi_class : {"crammer_singer", "ovr"}, default="crammer_singer"
        One model of all classes, or one binary model for each class against the rest, each with
        kernel and inducing points of its own. With two classes both are the binary model.
    solver : {"coordinate_ascent", "gradient"} or solver, default="coordinate_ascent"
        ``"coordinate_ascent"`` takes closed-form sweeps; ``"gradient"`` uses Adam on the same
        objective. Objects with options are `skgpsvm.solvers.CoordinateAscent` and
        `skgpsvm.solvers.Gradient`.
    contrast : {"soft", "hard"}, default="soft"
        ``"soft"`` compares each row with all wrong classes. ``"hard"``, as in the paper, compares
        it with the strongest one, at a cost that hardly grows with classes; its sweeps have no
        fixed point. Not for "ovr". With two classes both are the same.
    probability : {"calibrated", "argmax"}, default="calibrated"
        ``"calibrated"`` averages the softmax of the latents over the posterior, with a temperature,
        a variance factor and intercepts fitted to leave-one-out predictions. ``"argmax"`` is the
        probability that a class has the largest latent, the limit of the paper's samples. It is
        overconfident on noisy data.
    n_inducing : int, default=256
        Number of inducing points, m. More points are more accurate and slower. Fewer are used if
        the data have fewer distinct rows. Ignored if ``inducing_points`` is an array.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Initial inducing points: k-means centers of the standardized rows, random rows, or the given
        array, in units of X.
    learn_inducing : bool, default=False
        Whether gradient steps optimize the inducing points. They do not if the points have more
        than a million numbers, m d.
    optimizer : {"auto", "leave_one_out", "adam"} or None, default="auto"
        How hyperparameters are learned. ``"leave_one_out"`` minimizes the leave-one-out log loss on
        at most 6000 rows; separate length scales per feature are kept only if they lower the
        held-out log loss. ``"adam"`` takes gradient steps on the objective. None keeps them.
        ``"auto"`` is ``"adam"`` with ``solver="gradient"`` or ``learn_inducing=True``, else
        ``"leave_one_out"``.
    max_iter : int, default=200
        Maximum number of sweeps, or of epochs with ``"gradient"``.
    tol : float, default=3e-3
        Stop when, after a step of the covariances, the first step of the posterior means is shorter
        than this, relative to their norm. With a hard contrast, minibatches or gradients,
        stop when an iteration moves them by less. With more features than rows, a tenth of this
        value applies, because leave-one-out predictions need the optimum.
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply predicted probabilities (:ref:`class_weights`).
    warm_start : bool, default=False
        Whether `fit` starts from the kernel, inducing points and posterior of the last fit, and
        keeps kernel and points if only few rows were added (:ref:`further_rows`). Changing a
        parameter on which these depend, such as ``kernel``, raises an error.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. The fitted state is always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the passes over rows; None is that of X. The algebra of inducing points is
        always in float64.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means, the subsample used to learn hyperparameters, and the minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    class_weight_ : ndarray of shape (n_classes,)
        Weight of each class.
    kernel_ : Kernel
        Kernel with the learned hyperparameters; a `CompoundKernel` of one per class for "ovr".
    inducing_points_ : ndarray of shape (m, d), or list of them for "ovr"
        Inducing points, in units of X.
    temperature_ : float
        Factor of the latents in the softmax of the calibrated probabilities.
    spread_ : float
        Factor of the latents' posterior variance in the calibrated probabilities.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Added to the scaled latents in the softmax of the calibrated probabilities.
    loo_log_loss_ : float
        Log loss of the calibrated leave-one-out predictions, in nats per row, for comparing models.
        As an estimate of the log loss of new rows it is slightly too low, since hyperparameters
        were learned on the same rows.
    objective_curve_ : ndarray of shape (n_iterations,)
        Objective before each iteration, nats. It is not a bound on the evidence, since the hinge
        loss is a pseudo-likelihood.
    n_iter_ : int
        Number of sweeps or epochs; for "ovr" the largest of any class.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X has names and all are strings.

    Notes
    -----
    Source: Wistuba and Rawat (2018), Scalable multi-class Bayesian support vector machines; Wenzel
    et al. (2017) for two classes; Broderick et al. (2013), streaming variational Bayes, for
    `partial_fit`.
    Departs from the source: signs of its updates; whitening; soft contrast and quasi-Newton steps,
    damped steps with the hard one; two classes as one latent; leave-one-out choice of
    hyperparameters and calibration.

    A sweep costs O(n p^2) time for each active latent of a row: one per class, or two with the hard
    contrast. Here p is m + d + 1, or m + 1 if d is above both 500 and 4 m. Memory beyond X is about
    ``8 * (5 * n_classes * p**2 + 5 * 4096 * p)`` bytes, plus caches of up to 256 MiB of features
    and 256 MiB of rows.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.model_selection import train_test_split
    >>> from skgpsvm import BayesianSVC
    >>> X_train, X_test, y_train, y_test = train_test_split(
    ...     *load_wine(return_X_y=True), random_state=0
    ... )
    >>> svc = BayesianSVC(random_state=0).fit(X_train, y_train)
    >>> svc.predict_proba(X_test[1:3]).round(2)
    array([[0., 0., 1.],
           [0., 1., 0.]])
    """

    _takes_sparse = True
    _rules = ParameterRules(_USES, _FOLLOWED, solvers=_SOLVERS)

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray | list[ndarray]
    temperature_: float
    spread_: float
    intercept_: ndarray
    loo_log_loss_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        multi_class: Literal["crammer_singer", "ovr"] = "crammer_singer",
        solver: SolverLike = "coordinate_ascent",
        contrast: Literal["soft", "hard"] = "soft",
        probability: Literal["calibrated", "argmax"] = "calibrated",
        n_inducing: int = 256,
        inducing_points: InducingPoints = "kmeans",
        learn_inducing: bool = False,
        optimizer: Literal["auto", "leave_one_out", "adam"] | None = "auto",
        max_iter: int = 200,
        tol: float = 3e-3,
        class_weight: ClassWeight = None,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.kernel = kernel
        self.multi_class = multi_class
        self.solver = solver
        self.contrast = contrast
        self.probability = probability
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
        self._check_choice("multi_class", ("crammer_singer", "ovr"))
        self._check_choice("contrast", ("soft", "hard"))
        self._check_choice("probability", ("calibrated", "argmax"))
        self._check_choice("optimizer", ("auto", "leave_one_out", "adam", None))
        check_sparse_parameters(self)
        if self.optimizer == "leave_one_out" and self._by_gradient():
            raise ValueError(
                "optimizer='leave_one_out' needs fixed inducing points and coordinate ascent. Use "
                "optimizer='adam' or 'auto' with solver='gradient' or learn_inducing=True."
            )

    def _by_gradient(self):
        return isinstance(self._solver(), solvers.Gradient) or self.learn_inducing

    def _optimizer(self):
        """Return the optimizer, with "auto" resolved."""
        if self.optimizer != "auto":
            return self.optimizer
        return "adam" if self._by_gradient() else "leave_one_out"

    def _one_vs_rest_targets(self, codes):
        """Return the targets of one model of all classes, or of one per class."""
        if self.multi_class == "ovr" and len(self.classes_) > 2:
            return [(codes == j).astype(codes.dtype) for j in range(len(self.classes_))]
        return [codes]

    def _class_probabilities(self):
        calibration = self.temperature_, self.spread_, self.intercept_
        return pseudo_likelihood_probabilities(self.probability, *calibration)

    def _make_likelihood(self):
        if self.multi_class == "ovr" or len(self.classes_) == 2:
            return BinarySites()
        return ContrastSites(len(self.classes_), self.contrast)

    def _fit_model(self, problem):
        learns = self._optimizer() == "adam"
        kernel = self._start_kernel(problem.scaler)
        sparse = SparseProblem.of(self, problem, kernel, learns=learns)
        sparse = replace(sparse, tol=self._tolerance(problem.rows))
        model = problem.start or sparse.initial_model()
        if problem.learns and self._optimizer() == "leave_one_out" and model.kernel.n_dims:
            one_unit, other = with_one_unit(problem.scaler), None
            if self.kernel is None and problem.start is None and one_unit is not None:
                other = self._start_kernel(one_unit)
            model = replace(model, kernel=chosen_kernel(sparse, model, other))
        solver = self._solver()
        by_gradient = isinstance(solver, solvers.Gradient)
        method = GradientInference if by_gradient else CoordinateInference
        stage = sparse.inference(model, method, sparse.free_parts(model), **solver.get_params())
        return fit_posterior(sparse, model, stage, leave_one_out)

    def _update_model(self, problem):
        tol = self._tolerance(problem.rows)
        return update_by_ascent(self, problem, CoordinateInference.sweep, leave_one_out, tol)

    def _tolerance(self, rows):
        return self.tol / (_LOO_TOL_DIVISOR if rows.n_rows < rows.X.shape[1] else 1)

    def _start_kernel(self, scaler):
        """Return the given kernel, or a squared exponential plus a constant and a linear term."""
        if self.kernel is not None:
            return clone(self.kernel)
        # One latent is the difference of two classes, whose prior variance is twice theirs.
        variance = 2.0 if self._make_likelihood().n_latents == 1 else 1.0
        constant = ConstantKernel(variance, "fixed")
        return smooth_kernel(scaler, variance) + constant + linear_kernel(scaler, variance)

    def _fitted_attributes(self, models, left_out, streamed=False):
        mean, var = (torch.cat([part[i] for part in left_out], 1) for i in (0, 1))
        targets, weights = left_out[0][2], left_out[0][3]
        if len(models) > 1:
            targets = torch.stack([part[2] for part in left_out], 1).argmax(1)
        earlier = (
            self._calibration if streamed else Calibration.prior(mean.shape[1], targets, weights)
        )
        calibration = earlier.updated(mean, var, targets, weights)
        scales = calibration.temperature, calibration.spread, calibration.intercept.numpy()
        probabilities = pseudo_likelihood_probabilities(self.probability, *scales)
        log_p = probabilities.of_moments(mean, var).log_p
        return {
            **sparse_attributes(self, models),
            "_left_out": self._scores(log_p, targets, weights, streamed),
            "_calibration": calibration,
            "temperature_": calibration.temperature,
            "spread_": calibration.spread,
            "intercept_": calibration.intercept.numpy(),
            "loo_log_loss_": calibration.log_loss,
        }
