"""Gaussian-process classification by expectation propagation as a scikit-learn estimator."""

from dataclasses import replace

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from .._distributed import check_shareable, gather
from .._estimators import GPClassifier, all_or_nothing
from .._hyperparameters.default_kernels import smooth_kernel, with_learned_mean
from .._hyperparameters.initialization import shrink_length_scales
from .._hyperparameters.priors import SignalPrior
from .._inducing_estimator import InducingEstimator
from .._isolation import isolated
from .._linalg import natural_parameters
from .._parameters import ALWAYS, OtherThan, where
from .._predictive import ClassProbabilities, Predictive
from .._rows import Rows
from .._sites import LikelihoodSites
from .._torch_kernels import theta_bounds, torch_kernel
from ..likelihoods import Probit
from ._inference import (
    PARTS,
    RULES,
    ConvergedEP,
    InterleavedEP,
    MinibatchLearning,
    run_ep_to_convergence,
)
from ._propagation import Propagation

_VARIANCE = 5.0
# Of more, converged sites for each evaluation cost too much: on 60,000 rows some ten updates each.
_MOST_SETTLED_ROWS = 10_000
_START_ROWS = 1000  # that starts are compared on
_USES = InducingEstimator._uses | {
    "approximation": where(optimizer=OtherThan(None)).of("gfitc"),
    "batch_size": where(approximation=("auto", "sep")),
    "learning_rate": (where(approximation=("auto", "sep")), where(optimizer=OtherThan(None))),
    "optimizer": where(approximation=("auto", "sep")).of("sign", "adadelta"),
}
_FOLLOWED = {
    **InducingEstimator._followed,
    "fit": InducingEstimator._followed["fit"] | {"approximation": ALWAYS},
}


class EPClassifier(GPClassifier, InducingEstimator):
    r"""Gaussian-process classification by scalable expectation propagation.

    Labels are probit, :math:`p(y | f) = \Phi(y f)`, and inducing values stand for the latent
    function under the FITC prior. Each row is a Gaussian factor on one combination of them,
    matched to the moments of its label given all others. The logarithm of the evidence is a sum
    over the rows in closed form, and so are the probabilities that leave a row out. More than two
    classes are one against the rest, their probabilities normalized. See the
    :ref:`user guide <expectation_propagation>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of each latent function. Its values, bounds and "fixed" marks rule the
        optimization. None is a squared exponential with a length scale for each feature; its
        hyperparameters then have a prior, which keeps them from fitting chance.
    approximation : {"auto", "sep", "gfitc"}, default="auto"
        How hyperparameters are learned: "sep" takes a step after each update of the sites, "gfitc"
        maximizes the evidence of converged sites by L-BFGS-B. The model is the same. "auto" is
        "sep" for minibatches, where an ``optimizer`` by name or a ``learning_rate`` is given, and
        for more than 10,000 rows; else "gfitc".
    mean : {"zero", "constant", "linear"}, default="linear"
        Mean function, as terms of the kernel: a constant of fixed variance, and a linear function
        whose variance is learned.
    n_inducing : int, default=256
        Number of inducing points, m; fewer where the data have fewer distinct rows. Without effect
        where ``inducing_points`` is an array.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Where they start: centers of clusters of the standardized rows, rows drawn at random, or
        these, in units of X.
    learn_inducing : bool, default=False
        Whether the inducing points are moved. Moved points make do with fewer, but overfit where
        the signal is weak, since the evidence is no bound.
    optimizer : {"auto", "sign", "adadelta"} or None, default="auto"
        Steps of "sep": Adam ("auto"), or the source's rules. Those are "sign" for
        updates of all rows, a rate for each parameter that grows by 2 % while its slope keeps its
        sign and else halves; and for minibatches "adadelta", with ``learning_rate=1``. None holds
        the kernel and the inducing points.
    max_iter : int, default=100
        Updates of all sites, or epochs of minibatches, at most; hyperparameters are learned in the
        first 70 %. With "gfitc", rounds of ten steps of L-BFGS-B besides, after
        which the sites are found anew.
    tol : float, default=1e-3
        Stop when an update changes the posterior mean by less, relative to its norm; and of
        "gfitc" when a round gains less, nats a row.
    batch_size : int, default=None
        Rows in a minibatch of "sep", after each of which posterior and hyperparameters move; None
        is all.
    learning_rate : float, default=None
        Of the steps of "sep"; None is 0.05. "auto" is "sep" where it is given.
    class_weight : dict or "balanced", default=None
        Multiplies the sample weights of each class.
    warm_start : bool, default=False
        Whether `fit` starts from the kernel and inducing points of the last one. A change of what
        such a model holds, such as ``kernel``, is refused by name.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of the passes over rows; None is that of X. What belongs to a row is in float64.
    random_state : int, RandomState instance or None, default=None
        Rules k-means and minibatches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    kernel_ : Kernel
        With the learned hyperparameters, the mean function's terms included; a `CompoundKernel` of
        one for each class where there are more than two.
    inducing_points_ : ndarray of shape (m, d), or a list of one for each class
        In the units of X.
    log_marginal_likelihood_value_ : float
        The logarithm of the evidence, nats, summed over the classes' models. Not a bound.
    loo_log_loss_ : float
        Mean logarithm of the probability of a row's label under the model without the row, times
        -1: the log-loss to expect of new rows, but slightly optimistic, since hyperparameters
        were learned on the same rows.
    loo_proba_ : ndarray of shape (n, n_classes)
        Class probabilities of each row that was last passed, under the model without it (without
        one copy of it, where its weight is above one). NaN for rows of weight 0.
    objective_curve_ : ndarray of shape (n_iterations,)
        The evidence along the way, from minibatches an estimate of it; with "gfitc" that of rounds.
        With the default kernel, the log density of its prior is in it, up to a constant.
    n_iter_ : int
        Updates, epochs or rounds taken; with more than two classes, the most of any.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Hernandez-Lobato and Hernandez-Lobato (2016). Departs from the source: corrected sites
    and evidence (errata of 20, 23 and 29); gradients of the evidence at fixed scalars of the sites,
    features moving; whitened coordinates; a prior of the default kernel's hyperparameters; inducing
    points that stay. The source's algorithm is ``EPClassifier(kernel, approximation="sep",
    optimizer="sign", mean="zero", inducing_points="random", learn_inducing=True)`` with a kernel of
    one's own, and its generalized FITC the same with "gfitc" for "sep" and without ``optimizer``.
    An update costs O(n m^2), memory is O(n + m^2).

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

    _uses, _followed = _USES, _FOLLOWED

    _has_prior = True

    def __init__(
        self,
        kernel=None,
        *,
        approximation="auto",
        mean="linear",
        n_inducing=256,
        inducing_points="kmeans",
        learn_inducing=False,
        optimizer="auto",
        max_iter=100,
        tol=1e-3,
        batch_size=None,
        learning_rate=None,
        class_weight=None,
        warm_start=False,
        device=None,
        dtype=None,
        random_state=None,
    ):
        self.kernel = kernel
        self.approximation = approximation
        self.mean = mean
        self.n_inducing = n_inducing
        self.inducing_points = inducing_points
        self.learn_inducing = learn_inducing
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    # Fitting

    def _check_parameters(self):
        self._check_choice("approximation", ("auto", "sep", "gfitc"))
        self._check_choice("mean", ("zero", "constant", "linear"))
        self._check_choice("optimizer", (*RULES, None))
        self._check_inducing_parameters()

    @all_or_nothing
    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            A large float32 or float64 memmap is read in chunks, never copied whole.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n,), default=None
            The power that a row's likelihood is raised to: 0 removes it, an integer repeats it.

        Returns
        -------
        self : EPClassifier

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights make no sense.
        DivergenceError
            If the evidence is no longer finite. The estimator is then not fitted or, with
            ``warm_start``, as it was.
        """
        return self._fit(X, y, sample_weight)

    @all_or_nothing
    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Learn from more rows, as new data.

        The first call fits as `fit` does. Every later one holds kernel and inducing points, and
        takes the posterior so far as the prior of its rows: a row counts as often as it is passed.
        The first rows should hold some of every class, since what they say of kernel and points
        stays. Evidence and leave-one-out loss add up over the calls.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        classes : array-like of shape (c,), default=None
            All classes that may come; needed in the first call where its ``y`` lacks some.
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : EPClassifier

        Raises
        ------
        ValueError
            If parameters, data or weights make no sense, or a class comes that is not known.
        """
        return self._partial_fit(X, y, sample_weight, classes)

    def _one_vs_rest_targets(self, codes):
        """Two classes, or each class against the rest."""
        if len(self.classes_) == 2:
            return [codes]
        return [(codes == j).astype(codes.dtype) for j in range(len(self.classes_))]

    def _make_likelihood(self):
        return LikelihoodSites(Probit(), 1)

    def _start_kernel(self, scaler):
        kernel = smooth_kernel(scaler, _VARIANCE) if self.kernel is None else clone(self.kernel)
        return with_learned_mean(kernel, self.mean, scaler, _VARIANCE)

    def _prior_of_default(self, kernel, rows, scaler):
        return SignalPrior(kernel, rows.device)

    def _settles(self, rows):
        """Whether hyperparameters are learned on the evidence of converged sites."""
        if self.approximation != "auto":
            return self.approximation == "gfitc"
        given = self.batch_size is not None or self.learning_rate is not None
        by_adam = given or self.optimizer in ("sign", "adadelta")
        return not by_adam and rows.n_rows <= _MOST_SETTLED_ROWS

    def _free_parameters(self, start, rows):
        points = self.learn_inducing and start.uses_points
        wanted = {"theta": start.kernel.n_dims > 0, "Z": points}
        return [part for part in PARTS if self.optimizer is not None and wanted[part]]

    def _problem(self, start, rows, scaler):
        """What both ways of learning are given."""
        propagation = Propagation(torch_kernel(start.kernel), rows, start.jitter)
        bounds = theta_bounds(start.kernel, rows.device)
        scale = torch.tensor(scaler.scale_, device=rows.device)
        prior = self._prior(start, rows, scaler)
        return propagation, self._free_parameters(start, rows), bounds, scale, prior

    def _learn_hyperparameters(self, run, name, start, rows, scaler, random_state):
        if start.mean is None and "theta" in self._free_parameters(start, rows):
            start = shrink_length_scales(start, self._make_likelihood(), rows, random_state)
            start = self._better_start(start, rows, scaler, random_state)
        if not self._settles(rows) or not self._free_parameters(start, rows):
            return start, []
        learning = ConvergedEP(self.tol, *self._problem(start, rows, scaler))
        state = learning.initial(start.state(rows.device))
        stage = f"{name}hyperparameters"
        curve = run.stage(stage, state, learning.step, self.max_iter, converged=learning.converged)
        return replace(start.at(state), mean=None, root=None), curve

    def _better_start(self, start, rows, scaler, random_state):
        """The start, or the smoothest one, after ten steps on some rows: the more likely one."""
        some = rows.subset(_START_ROWS, random_state) if rows.n_rows > _START_ROWS else rows
        propagation, _, *units = self._problem(start, some, scaler)
        prior = units[-1]
        if prior is None:
            return start
        learning = ConvergedEP(self.tol, propagation, ["theta"], *units)
        first, found = start.state(rows.device), []
        for theta in (first["theta"], prior.smoothest()):
            state = learning.initial({**first, "theta": theta})
            found.append((learning.step(state), state))
        _, best = max(found, key=lambda pair: pair[0])
        return replace(start.at(best), mean=None, root=None)

    def _inference(self, start, rows, scaler, generator):
        propagation, trained, *units = self._problem(start, rows, scaler)
        settles = self._settles(rows)
        trained = [] if settles else trained
        rule = RULES[self.optimizer](self._adam_rate) if trained else None
        learning = rule, self.max_iter, self.tol, propagation, trained, *units
        if self.batch_size is None or settles:
            return InterleavedEP(*learning)
        check_shareable(self.batch_size)
        return MinibatchLearning(self.batch_size, generator, *learning)

    def _evaluate_posterior(self, propagation, state):
        visit, rows = propagation.visit(state), propagation.rows
        left_out = rows.unmerged(visit.left_out)
        return (
            propagation.evidence(state, visit),
            visit.left_out,
            rows.targets,
            rows.weights,
            left_out,
        )

    def _streaming_update(self, old, rows):
        now = old.state(rows.device)
        prior = natural_parameters(now["mean"][0], now["root"][0])
        propagation = Propagation(torch_kernel(old.kernel), rows, old.jitter, prior)
        bounds, scale = torch.empty(0, 2), torch.ones(1)
        learning = InterleavedEP(None, self.max_iter, self.tol, propagation, [], bounds, scale)
        return learning.initial(now), learning.step, propagation

    def _attributes(self, latents, findings, streamed=False):
        evidences, left_out, targets, weights, all_rows = zip(*findings, strict=True)
        targets, weights = torch.stack(targets, 1), weights[0].double()
        targets = targets[:, 0] if len(findings) == 1 else targets.argmax(1)
        log_p = _log_proba(torch.stack(left_out, 1)).gather(1, targets[:, None])[:, 0]
        loss, weight = sum(gather(np.array([-(weights @ log_p).item(), weights.sum().item()])))
        if streamed:
            evidences = *evidences, self.log_marginal_likelihood_value_
            loss, weight = loss + self._loo[0], weight + self._loo[1]
        return {
            **self._latents_attributes(latents),
            "log_marginal_likelihood_value_": sum(evidences),
            "loo_log_loss_": loss / weight,
            "loo_proba_": _log_proba(torch.stack(all_rows, 1)).exp().cpu().numpy(),
            "_loo": (loss, weight),
        }

    @isolated()
    def log_marginal_likelihood(
        self, theta=None, eval_gradient=False, *, X=None, y=None, sample_weight=None
    ):
        """Logarithm of the evidence, also at other hyperparameters; inducing points are held.

        Processes that share the rows must all call it.

        Parameters
        ----------
        theta : array-like of shape (k,), default=None
            Logarithms of the kernel's free hyperparameters, as ``kernel_.theta``, which None is.
        eval_gradient : bool, default=False
            Whether the derivatives in ``theta`` are returned too.
        X : array-like of shape (n, d), default=None
            The rows of `fit`, which the model does not keep. None is possible only where no more
            than ``log_marginal_likelihood_value_`` is asked for.
        y : array-like of shape (n,), default=None
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        value : float
            Nats, summed over the classes' models; sites have converged.
        gradient : ndarray of shape (k,), optional

        Raises
        ------
        ValueError
            If ``theta`` has another length than ``kernel_.theta``, or rows are needed.
        """
        check_is_fitted(self)
        if X is None:
            if theta is None and not eval_gradient:
                return self.log_marginal_likelihood_value_
            raise ValueError(
                "The model does not keep its rows: pass those of fit, as X and y, to evaluate the "
                "evidence at a theta or its gradient."
            )
        theta = np.asarray(self.kernel_.theta if theta is None else theta, dtype=np.float64)
        sizes = [part.kernel.n_dims for part in self._latents]
        if theta.shape != (sum(sizes),):
            raise ValueError(
                f"theta has shape {theta.shape}, but kernel_.theta has shape {(sum(sizes),)}."
            )
        X, codes, weights, _ = self._check_training_data(X, y, sample_weight, reset=False)
        options = self._agreed_options(X)
        thetas = np.split(theta, np.cumsum(sizes)[:-1])
        value, gradient = 0.0, []
        for part, at, targets in zip(
            self._latents, thetas, self._one_vs_rest_targets(codes), strict=True
        ):
            rows = Rows(X, targets, weights, *options)
            propagation = Propagation(torch_kernel(part.kernel), rows, part.jitter)
            now = part.state(rows.device)
            state = propagation.start(torch.as_tensor(at, device=rows.device), now["Z"])
            visit = run_ep_to_convergence(propagation, state)
            value += propagation.evidence(state, visit)
            if eval_gradient:
                gradient.append(propagation.gradient(state, visit)[0].cpu().numpy())
        return (value, np.concatenate(gradient)) if eval_gradient else value

    # Prediction

    def _class_probabilities(self):
        return ProbitProbabilities()

    def decision_function(self, X):
        r"""Return the probits of the classes' own models, :math:`m / \sqrt{1 + v}`.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        scores : ndarray of shape (n, n_classes), or (n,) for two classes
        """
        return super().decision_function(X)


class ProbitProbabilities(ClassProbabilities):
    """Class probabilities of one-vs-rest probit models, normalized to sum to one."""

    def of_moments(self, mean, var):
        probits = mean / (1 + var).sqrt()
        log_p = _log_proba(probits)
        return Predictive(probits, log_p, log_p.exp())

    def of_latents(self, latents):
        return _log_proba(torch.from_numpy(latents)).exp().numpy()


def _log_proba(probits):
    """Of the classes, (..., n_classes), given the probits of their models or, of two, of one."""
    probits = torch.cat([-probits, probits], -1) if probits.shape[-1] == 1 else probits
    return torch.special.log_ndtr(probits).log_softmax(-1)
