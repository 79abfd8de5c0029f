"""The boundary between scikit-learn and torch: base classes of all estimators."""

import functools

import numpy as np
import torch
from scipy.special import xlogy
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MultiOutputMixin,
    RegressorMixin,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel
from sklearn.pipeline import Pipeline
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from . import _forks  # noqa: F401 (its hook lets forked children compute)
from ._distributed import check_equal, gather, meet, n_ranks, run_on_all_ranks
from ._doubts import MIN_NATS, bounds_message, noise_message, on_bounds
from ._fitted_models import LAYOUT
from ._isolation import isolated
from ._noise import given_noise, split_noise
from ._parameters import ALWAYS, check_unchanged, check_uses, remembered
from ._predictive import (
    STANDARD_NOISE,
    LikelihoodProbabilities,
    classification_sites,
    regression_sites,
)
from ._rows import CHUNK_ROWS, merged_rows, to_tensor, winsorized
from ._validation import (
    check_finite,
    check_hyperparameters,
    check_labels,
    check_number,
    check_weights,
    differs,
    kind_of_labels,
)
from .exceptions import warn

# A mean weight above this, or below its inverse, warns. On a sine of 100 rows with noise of
# standard deviation .1 to .5 and weights proportional to inverse variances, 95 % intervals of the
# function cover .92 at a mean weight of 1, .98 at 1/2, .82 at 2, .59 at 5, .17 at 100 (2026-11).
_MAX_MEAN_WEIGHT = 2.0
_DOUBTED_ROWS = 2000  # rows that are predicted to see whether a fit explains anything
# Parameters whose change a fitted model follows in every further call.
FOLLOWED = dict.fromkeys(
    ("class_weight", "device", "dtype", "max_iter", "random_state", "tol", "warm_start"), ALWAYS
)
_ANEW = {
    "fit": "set it back, or set warm_start=False to start anew.",
    "partial_fit": "set it back, or start anew by fit.",
}


def all_or_nothing(method):
    """Decorate `fit` or `partial_fit` so that it runs with callbacks and leaves no half a model.

    After an error or an interrupt, an estimator whose model was being continued is as it was
    before; any other is unfitted. Torch's modes and defaults make no difference, see `isolated`.
    """
    with_teardown = with_callbacks(isolated()(method))

    @functools.wraps(method)
    def whole(estimator, *args, **kwargs):
        before = dict(vars(estimator))
        try:
            meet(estimator, method.__name__)
            return with_teardown(estimator, *args, **kwargs)
        except BaseException:
            continued = hasattr(estimator, "_latents")
            for name in vars(estimator).keys() - before.keys():
                delattr(estimator, name)
            vars(estimator).update(before)
            if not continued:
                estimator._forget()
            raise

    return whole


class GPEstimator(CallbackSupportMixin, BaseEstimator):
    """Base of all estimators: parameters, device, validation, and what latent functions predict.

    Fitted state is NumPy on the CPU: ``_latents``, a list of `FittedModel`. A subclass checks the
    values of its parameters (`_check_parameters`) and has three tables of them. ``_uses`` says
    where a parameter has an effect, if not everywhere, see `check_uses`. ``_followed`` says which
    changes a ``"fit"`` by warm start and a ``"partial_fit"`` follow, and ``_growing`` which of
    them only upwards, see `check_unchanged`.
    """

    # Of the HTML representation, which shows descriptions of parameters only where it can link to
    # them. The documentation has no public address: the link is that from a page of its gallery.
    _doc_link_module = "skgpsvm"
    _doc_link_template = "../generated/skgpsvm.{estimator_name}.html"

    _chunk_rows = CHUNK_ROWS  # that predictions hold on the device at a time
    _uses, _followed, _growing = {}, {}, {}

    def __getstate__(self):
        return {**super().__getstate__(), "_layout": LAYOUT}

    def __setstate__(self, state):
        if state.get("_layout") != LAYOUT:
            raise ValueError(
                f"This pickle of {type(self).__name__} was written by another version of skgpsvm, "
                "whose fitted state is laid out otherwise. Fit the model again with this version."
            )
        super().__setstate__({name: part for name, part in state.items() if name != "_layout"})

    def _check_all_parameters(self, continued_by=None):
        """Refuse parameters with wrong values, without effect, or that a model cannot follow."""
        self._check_parameters()
        check_uses(self, self._uses)
        if continued_by is not None:
            followed = self._followed[continued_by]
            known, advice = self._fitted_parameters, _ANEW[continued_by]
            check_unchanged(self, known, followed, self._growing, advice)

    def _parameters_of_fit(self):
        """Return the parameters whose change a further call may not follow."""
        tables = self._followed.values()
        names = self.get_params(deep=False)
        held = [name for name in names if any(table.get(name) != ALWAYS for table in tables)]
        return remembered(self, held)

    def _forget(self):
        """Become unfitted."""
        for name in [*vars(self)]:
            if name in ("_latents", "_fitted_parameters") or (
                name.endswith("_") and not name.startswith("_")
            ):
                delattr(self, name)

    def _torch_options(self, X):
        """Return the device and dtype to compute on, for data ``X``."""
        try:
            device = torch.device("cpu" if self.device is None else self.device)
            torch.empty(0, dtype=torch.float64, device=device)
        except (RuntimeError, AssertionError, TypeError, ValueError, OverflowError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(
                f"device={self.device!r} cannot be used here: {reason}. Use None or 'cpu' for the "
                "CPU, 'cuda' or 'cuda:1' where torch.cuda.is_available()."
            ) from error
        self._check_choice("dtype", ("float32", "float64", None))
        return device, getattr(torch, self.dtype or X.dtype.name)

    def _draw_seed(self):
        try:
            return int(check_random_state(self.random_state).randint(2**31))
        except ValueError as error:
            raise ValueError(
                f"random_state={self.random_state!r} must be an integer from 0 to 2**32 - 1, a "
                "numpy.random.RandomState, or None."
            ) from error

    def _check_streamed(self):
        """Refuse class weights that need all rows."""
        if getattr(self, "class_weight", None) == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows at once, which partial_fit does not have; "
                "give a dict, or weights by sample_weight."
            )

    def _check_choice(self, name, allowed):
        value = getattr(self, name)
        if not (value is None or isinstance(value, (str, bool, np.bool_))) or value not in allowed:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")

    def _check_number(self, name, minimum, **options):
        check_number(name, getattr(self, name), minimum, **options)

    def _check_kernel(self):
        kernel = self.kernel
        if isinstance(kernel, CompoundKernel):
            raise TypeError(f"kernel={kernel!r} has one of each of several classes: give one.")
        if not (kernel is None or isinstance(kernel, Kernel)):
            raise TypeError(
                f"kernel={kernel!r} is not a kernel of sklearn.gaussian_process.kernels; give one, "
                "such as 1.0 * RBF(1.0), or None."
            )
        if kernel is not None:
            check_hyperparameters(kernel)

    def _check_bool(self, name):
        value = getattr(self, name)
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name}={value!r} must be True or False.")

    def _validated(self, X, reset, **options):
        """Check ``X``, and ``y`` where the options have it, by scikit-learn's checks."""
        return validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], **options)

    def _check_rows(self, X, y, sample_weight, reset, **options):
        """Return validated ``X``, ``y`` and weights of this rank; some weight is positive."""

        def checked():
            if n_ranks() > 1 and np.shape(y)[:1] == (0,):
                empty = self._validated(X, reset, ensure_min_samples=0)
                check_consistent_length(empty, y)
                return empty, np.asarray(y), np.zeros(0)
            rows = self._validated(X, reset, y=y, **options)
            return *rows, check_weights(sample_weight, rows[0])

        X, y, weights = run_on_all_ranks(checked)
        told = {"n_features": X.shape[1], "X of dtype": X.dtype.name, "outputs": y.shape[1:]}
        names = getattr(self, "feature_names_in_", None)
        check_equal(told | {"feature names": None if names is None else names.tolist()})
        if not sum(gather(weights.sum())) > 0:
            raise ValueError(
                "All values of sample_weight are zero; at least one must be positive."
                if len(weights)
                else "There are no rows on any rank."
            )
        return X, y, weights

    def _check_new(self, X):
        check_is_fitted(self)
        return self._validated(X, reset=False)

    @isolated()
    def _map_rows(self, function, X):
        """Apply a function of tensors (b, d) to chunks of rows; return one float64 array."""
        (device, dtype), size = self._torch_options(X), self._chunk_rows
        with torch.no_grad():
            parts = [
                function(to_tensor(X[i : i + size], device, dtype)).double().cpu().numpy()
                for i in range(0, len(X), size)
            ]
        return check_finite(np.concatenate(parts), X)

    def __sklearn_is_fitted__(self):
        return hasattr(self, "_latents")

    def _latent_spread(self):
        """Return the factor by which predictions multiply the posterior variances."""
        return 1.0

    def _split_kernel(self, kernel):
        """Return a kernel without its noise, and the whole kernel if it has noise, else None."""
        return kernel, None

    def _noise_is_free(self):
        """Return whether the likelihood's parameters may be learned."""
        return True

    def _noise_limits(self, default):
        """Return bounds of the logarithms of the likelihood's parameters."""
        return default

    @isolated()
    def _map_moments(self, function, X, spread=None):
        """Apply a function of latent means and variances (b, c) to chunks of rows of ``X``.

        Variances are multiplied by ``spread``, which is `_latent_spread` by default.
        """
        return self._map_checked(function, self._check_new(X), spread)

    def _map_checked(self, function, X, spread=None):
        """Apply `_map_moments` to rows that are already validated."""
        posteriors = [part.posterior(self._torch_options(X)[0]) for part in self._latents]
        spread = self._latent_spread() if spread is None else spread

        def from_rows(chunk):
            mean, var = zip(*(p.marginals(chunk) for p in posteriors), strict=True)
            return function(torch.cat(mean, 1).double(), spread * torch.cat(var, 1).double())

        return self._map_rows(from_rows, X)

    def _doubts(self, X, targets, weights):
        """Return warnings about a fit that ended on the user's bounds or explains nothing.

        They concern kernels that were given and learned. The default kernel has no bounds of the
        user's, and starts that find a signal where there is one.
        """
        if self.kernel is None or getattr(self, "optimizer", "auto") is None:
            return []
        if not self.kernel_.n_dims:
            return []
        name, doubts = type(self).__name__, []
        if told := on_bounds(self.kernel_, self._is_learned):
            doubts.append(bounds_message(name, told))
        some = np.linspace(0, len(X) - 1, min(len(X), _DOUBTED_ROWS)).astype(int)
        share = weights[some].sum() / weights.sum() if weights.any() else 1.0
        nats = sum(gather(self._explained_nats(X[some], targets[some], weights[some] / share)))
        if nats < MIN_NATS:
            doubts.append(noise_message(name, self.kernel, nats))
        return doubts

    def _is_learned(self, name):
        """Return whether a fit learns the hyperparameter of this name if it is free."""
        return True

    def latent_mean_and_variance(self, X):
        """Return the posterior mean and variance of the latent functions, without noise.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        mean, variance : ndarray of shape (n,) or (n, c)
            One column for each latent function, and no second axis where there is only one. A
            single latent function of a classifier is positive for ``classes_[1]``. A model that is
            calibrated by ``spread_`` multiplies the variance by it, as `predict_proba` does.
        """
        mean, variance = self._latent_moments(X)
        return self._latent_outputs(mean), self._latent_outputs(variance)

    def _latent_moments(self, X, spread=None):
        """Return posterior means and variances of the latent functions, (n, c) each."""
        moments = self._map_moments(lambda mean, var: torch.cat([mean, var], 1), X, spread)
        mean, variance = np.split(moments, 2, axis=1)
        return mean, variance

    def _latent_outputs(self, array):
        """Return an array (n, c) with the axes that users see."""
        return array[:, 0] if array.shape[1] == 1 else array

    def _checked_latents(self, latents):
        """Validate values (..., c) of the latent functions, as `sample_latent` gives them."""
        check_is_fitted(self)
        latents = np.asarray(latents, dtype=np.float64)
        n_latents = sum(part.n_latents for part in self._latents)
        if latents.shape[-1:] != (n_latents,):
            raise ValueError(
                f"latents has shape {latents.shape}; its last axis must have length {n_latents}, "
                "as that of sample_latent's."
            )
        return latents

    @isolated()
    def sample_latent(self, X, n_samples=1, random_state=0):
        """Draw joint samples of the latent functions at all rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Memory is O(n^2): draw for a few thousand rows at most.
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=0

        Returns
        -------
        samples : ndarray of shape (n_samples, n, c)
            The last axis stays where there is only one latent function.
        """
        X = self._check_new(X)
        check_number("n_samples", n_samples, 1, integer=True)
        device, dtype = self._torch_options(X)
        generator = torch.Generator()
        generator.manual_seed(int(check_random_state(random_state).randint(2**31)))
        rows = to_tensor(X, device, dtype)
        posteriors = [part.posterior(device) for part in self._latents]
        draws = torch.cat([p.sample(rows, n_samples, generator) for p in posteriors], 2)
        mean = torch.cat([p.marginals(rows)[0] for p in posteriors], 1)
        return torch.lerp(mean.double(), draws, self._latent_spread() ** 0.5).cpu().numpy()


class GPClassifier(ClassifierMixin, GPEstimator):
    """Base of classifiers: labels, class weights and class probabilities.

    A subclass whose class probabilities are not those of its ``_likelihood`` gives others by
    `_class_probabilities`.
    """

    def _check_training_data(self, X, y, sample_weight, *, classes=None, reset=True):
        """`merged_rows` with class codes as targets; sets ``classes_`` where ``reset``."""
        X, y, weights = self._check_rows(X, y, sample_weight, reset)
        run_on_all_ranks(check_labels, "y", y)
        run_on_all_ranks(check_classification_targets, y)
        check_equal({"labels that are": kind_of_labels(y)}, counts=len(y) > 0)
        if classes is not None:
            run_on_all_ranks(check_labels, "classes", np.asarray(classes))
        if not reset:
            now = self.classes_ if classes is None else np.unique(classes)
            if not np.array_equal(now, self.classes_):
                raise ValueError(
                    f"classes={now.tolist()} are not {self.classes_.tolist()}, those of the first "
                    "call: leave them out, or start anew by fit."
                )
            classes = self.classes_
        check_equal({"classes": None if classes is None else np.unique(classes).tolist()})
        present = _labels(y[weights > 0])
        if self.class_weight is not None:
            weights = weights * self._class_factors(y, weights, present, classes)
            present = _labels(y[weights > 0])
        if reset:
            known = present if classes is None else np.unique(classes)
            if len(known) < 2:
                raise ValueError(
                    f"{type(self).__name__} needs rows of at least two classes with positive "
                    f"weight; got {len(known)} class: {known.tolist()}."
                )
            self.classes_ = known
        if strangers := np.setdiff1d(present, self.classes_).tolist():
            warm = getattr(self, "warm_start", False)
            anew = ", or set warm_start=False to start anew" if warm else ""
            raise ValueError(
                f"y has classes {strangers} that are not among {self.classes_.tolist()}, those of "
                f"the first call: give all that may come as its classes{anew}."
            )
        y = y if len(y) else y.astype(self.classes_.dtype)
        return merged_rows(X, np.searchsorted(self.classes_, y), weights)

    def predict(self, X):
        """Predict the most probable class of each row.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        labels : ndarray of shape (n,)
            Among equally probable classes, the first in ``classes_``.
        """
        codes = self.predict_proba(X).argmax(1)
        return self.classes_[codes]

    def _class_factors(self, y, weights, present, classes):
        """Return the factor of each row by ``class_weight``, (n,); weight 0 counts as absent."""
        if not (isinstance(self.class_weight, dict) or self.class_weight == "balanced"):
            raise ValueError(
                f"class_weight={self.class_weight!r} must be a dict of classes to numbers, "
                "'balanced', or None."
            )
        used = weights > 0
        own = y[used] if used.any() else present[:0]
        totals = np.bincount(np.searchsorted(present, own), weights[used], len(present))
        labels = present
        if isinstance(self.class_weight, dict) and classes is not None:
            labels = np.union1d(labels, classes)
        by_class = compute_class_weight(
            self.class_weight, classes=labels, y=present, sample_weight=sum(gather(totals))
        )
        if not (np.isfinite(by_class) & (by_class >= 0)).all():
            raise ValueError(
                f"class_weight={self.class_weight!r} must be finite and not negative for any class."
            )
        factors = np.ones(len(y))
        factors[used] = by_class[np.searchsorted(labels, own)]
        return factors

    def _class_probabilities(self):
        """Return the `ClassProbabilities` of the fitted model."""
        likelihood = classification_sites(self._likelihood, len(self.classes_)).likelihood
        return LikelihoodProbabilities(likelihood, len(self.classes_))

    def _latent_spread(self):
        return self._class_probabilities().spread

    def _explained_nats(self, X, targets, weights):
        """Return the gain in log likelihood over the class frequencies, in nats."""
        counts = np.bincount(targets, weights, len(self.classes_))
        total = sum(gather(counts))
        if not weights.any():
            return 0.0
        of_moments = self._class_probabilities().of_moments
        log_p = self._map_checked(lambda *moments: of_moments(*moments).log_p, X)
        by_chance = (xlogy(counts, total) - xlogy(counts, total.sum())).sum()
        return float(weights @ log_p[np.arange(len(X)), targets] - by_chance)

    def _map_predictive(self, function, X):
        """Apply a function of the `Predictive` to chunks of rows of ``X``."""
        check_is_fitted(self)
        of_moments = self._class_probabilities().of_moments
        return self._map_moments(lambda *moments: function(of_moments(*moments)), X)

    def predict_proba(self, X):
        """Return class probabilities, averaged over the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        probabilities : ndarray of shape (n, n_classes)
        """
        return self._map_predictive(lambda predictive: predictive.p, X)

    def predict_log_proba(self, X):
        """Return logarithms of the class probabilities.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        log_probabilities : ndarray of shape (n, n_classes)
            Finite, also where `predict_proba` underflows to zero.
        """
        return self._map_predictive(lambda predictive: predictive.log_p, X)

    def decision_function(self, X):
        """Return logits of `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        scores : ndarray of shape (n, n_classes), or (n,) for two classes
            Logarithms of the class probabilities, up to a constant in each row. For two classes,
            the log odds of ``classes_[1]``.
        """
        scores = self._map_predictive(lambda predictive: predictive.ranked_scores(), X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @isolated()
    def predict_proba_from_latent(self, latents):
        """Return class probabilities given values of the latent functions.

        Parameters
        ----------
        latents : array-like of shape (..., c)
            As `sample_latent` draws them.

        Returns
        -------
        probabilities : ndarray of shape (..., n_classes)
        """
        latents = self._checked_latents(latents)
        return self._class_probabilities().of_latents(latents)


class GPRegressor(MultiOutputMixin, RegressorMixin, GPEstimator):
    """Base of regressors: normalized targets, noise, and predictions in units of y.

    A subclass has a parameter ``likelihood``, and ``_likelihood``, the one of the last fit. Targets
    are centered and scaled where ``normalize_y`` asks for it; those of heavy-tailed noise by the
    mean and deviation of `winsorized` targets.
    """

    def _has_noise(self):
        """Return whether y has noise to learn; weights of counts are exposures."""
        return True

    def _warn_of_weights(self, weights):
        """Warn if weights are not integers and their mean is far from 1.

        Weights count rows: 1 / sd**2 in other units of y would be another number of rows.
        """
        used = weights[weights > 0]
        counted = bool((used == used.round()).all())
        sums = gather((used.sum(), len(used), counted))
        mean = sum(part[0] for part in sums) / sum(part[1] for part in sums)
        far = not 1 / _MAX_MEAN_WEIGHT <= mean <= _MAX_MEAN_WEIGHT
        if far and not all(part[2] for part in sums):
            warn(
                f"The mean of sample_weight is {mean:.3g}. Weights are not relative: a row of "
                f"weight 2 counts as two rows, so that these {sum(part[1] for part in sums)} rows "
                f"count as {sum(part[0] for part in sums):.3g}. Divide inverse variances by their "
                "mean. Weights that are all integers are taken as counts, without this warning."
            )

    def _check_training_data(self, X, y, sample_weight, *, classes=None, reset=True):
        """`merged_rows` with normalized targets (n, t)."""
        X, y, weights = self._check_rows(
            X, y, sample_weight, reset, multi_output=True, y_numeric=True
        )
        if self._has_noise():
            self._warn_of_weights(weights)
        if reset:
            self._y_ndim = np.ndim(y)
        t = np.prod(y.shape[1:], dtype=int)
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), t)
        X, targets, weights, origin = merged_rows(X, targets, weights)

        def average(values):
            return sum(gather(weights @ values)) / sum(gather(weights.sum()))

        if reset:
            self._y_mean, self._y_std = np.zeros(t), np.ones(t)
            with np.errstate(over="ignore"):
                mean, var = self._moments(targets, average)
                if self._is_heavy_tailed() and np.isfinite(var).all():
                    mean, var = self._moments(winsorized(targets, weights), average)
            if not np.isfinite(var).all():
                raise ValueError(
                    "Squares of y, times the weights, overflow in float64: scale them down."
                )
            if self.normalize_y:
                self._y_mean = mean
                self._y_std = np.where(differs(var, self._y_mean), np.sqrt(var), 1.0)
        elif targets.shape[1] != len(self._y_mean):
            raise ValueError(
                f"y has {targets.shape[1]} outputs, but the model was fitted with "
                f"{len(self._y_mean)}."
            )
        return X, (targets - self._y_mean) / self._y_std, weights, origin

    @staticmethod
    def _moments(targets, average):
        mean = average(targets)
        return mean, average((targets - mean) ** 2)

    def _outputs(self, array):
        """Return an array whose last axis, of outputs, is there only if y had two axes."""
        return array[..., 0][()] if self._y_ndim == 1 else array

    def _is_heavy_tailed(self):
        return self.likelihood in ("student_t", "laplace")

    @property
    def _given_noise(self):
        """Return the `GivenNoise` of the kernel, or None; only Gaussian noise is part of it."""
        return given_noise(self.kernel) if self.likelihood == "gaussian" else None

    def _split_kernel(self, kernel):
        if self._given_noise is None:
            return super()._split_kernel(kernel)
        return split_noise(kernel)[0], kernel

    def _noise_is_free(self):
        return self._given_noise is None or not self._given_noise.fixed

    def _noise_limits(self, default):
        """Return bounds of the log noise: those of the kernel's `WhiteKernel`, or a default."""
        return default if self._given_noise is None else self._given_noise.limits

    def _noise_sites(self, variance):
        """Return the likelihood with the kernel's noise, or with an initial variance."""
        t, given = len(self._y_mean), self._given_noise
        start = np.full(t, variance) if given is None else np.array([given.level])
        return regression_sites(self.likelihood, start, t)

    def _explained_nats(self, X, targets, weights):
        """Return the log density gained by the variation of the mean at the fitted noise."""
        if not weights.any():
            return 0.0
        mean = self._latent_means(X)
        squares = weights @ (mean - np.average(mean, axis=0, weights=weights)) ** 2
        return float((0.5 * squares / self.noise_variance_).sum())

    def _variance_of_noise(self, parameters):
        """Return the noise variance of normalized y, (t,) or (1,), at given parameters."""
        likelihood = self._make_likelihood().at(parameters).likelihood
        return likelihood.predict(*torch.zeros(2, len(parameters)).to(parameters))[1]

    def _noise_variance(self, parameters):
        """Return the noise variance in squared units of y, for ``noise_variance_``."""
        return self._outputs(self._variance_of_noise(parameters).numpy() * self._y_std**2)

    def latent_mean_and_variance(self, X):
        """Return the posterior mean and variance of the latent functions, without noise.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        mean, variance : ndarray of shape (n,) or (n, t)
            In units of y and squared units of y; with the axes of `predict`'s mean.
        """
        return super().latent_mean_and_variance(X)

    def _latent_moments(self, X, spread=None):
        mean, variance = super()._latent_moments(X, spread)
        return mean * self._y_std + self._y_mean, variance * self._y_std**2

    @isolated()
    def _latent_means(self, X):
        """Return the means of validated rows, (n, t), in units of y."""
        posteriors = [part.posterior(self._torch_options(X)[0]) for part in self._latents]
        means = self._map_rows(lambda rows: torch.cat([p.means(rows) for p in posteriors], 1), X)
        return means * self._y_std + self._y_mean

    def _latent_outputs(self, array):
        return self._outputs(array)

    def sample_latent(self, X, n_samples=1, random_state=0):
        """Draw joint samples of the latent functions at all rows, without noise.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Memory is O(n^2): draw for a few thousand rows at most.
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=0

        Returns
        -------
        samples : ndarray of shape (n_samples, n, t)
            In units of y. The last axis stays where y has one dimension.
        """
        draws = super().sample_latent(X, n_samples, random_state)
        return draws * self._y_std + self._y_mean

    def predict(self, X, return_std=False, return_cov=False):
        """Predict the mean of y and, on request, its standard deviation or covariance.

        The latter two include the noise.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool, default=False
            Whether to return the standard deviation of each observation too.
        return_cov : bool, default=False
            Whether to return their joint covariance too; memory is O(n^2).

        Returns
        -------
        mean : ndarray of shape (n,) or (n, t)
        std : ndarray of shape (n,) or (n, t), optional
        cov : ndarray of shape (n, n) or (n, n, t), optional

        Raises
        ------
        RuntimeError
            If both are requested.
        """
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")
        if return_std:
            mean, variance = self._latent_moments(X)
            return self._outputs(mean), self._outputs(np.sqrt(variance + self.noise_variance_))
        mean = self._outputs(self._latent_means(self._check_new(X)))
        return (mean, self._outputs(self._cov(X))) if return_cov else mean

    @isolated()
    def _cov(self, X):
        X = self._check_new(X)
        device, dtype = self._torch_options(X)
        rows = to_tensor(X, device, dtype)
        cov = torch.cat([part.posterior(device).cov(rows) for part in self._latents])
        cov = cov.permute(1, 2, 0).cpu().numpy() * self._y_std**2
        return cov + np.eye(len(X))[..., None] * self.noise_variance_

    def sample_y(self, X, n_samples=1, random_state=0):
        """Draw joint samples of y: of the latent functions at all rows, plus independent noise.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Memory is O(n^2).
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=0

        Returns
        -------
        y_samples : ndarray of shape (n, n_samples) or (n, t, n_samples)
        """
        rng = check_random_state(random_state)
        latent = self.sample_latent(X, n_samples, rng)
        std = np.sqrt(np.broadcast_to(self.noise_variance_, latent.shape[-1:]))
        noise = STANDARD_NOISE[self._likelihood](rng, latent.shape) * std
        return np.moveaxis(self._outputs(latent + noise), 0, -1)


def unwrapped(model, X, wanted):
    """Return the part of a fitted model that satisfies a predicate, and ``X`` as that part sees it.

    Parts are the last step of a pipeline and the best estimator of a search. The part is None if
    none satisfies it.
    """
    while not wanted(model):
        if isinstance(model, Pipeline):
            X = model[:-1].transform(X) if len(model) > 1 else X
            model = model[-1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return None, X
    return model, X


def _labels(y):
    """Return the distinct labels of all ranks, sorted."""
    parts = [part for part in gather(np.unique(y)) if len(part)]
    return np.unique(np.concatenate(parts or [y]))


def history(*curves):
    """Return the fitted attributes that tell how fits went, from their objective curves."""
    length = max(map(len, curves))
    padded = [np.pad(curve, (0, length - len(curve)), mode="edge") for curve in curves]
    return {"n_iter_": length, "objective_curve_": np.sum(padded, 0)}
