"""Base class of all estimators: parameters, devices, validation, latent predictions."""

from __future__ import annotations

import functools
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.pipeline import Pipeline
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from .. import _forks  # noqa: F401 (its hook lets forked children compute)
from .._data import chunk_rows, to_tensor
from .._distributed import check_equal, gather, meet, n_ranks, raise_on_all_ranks
from .._doubts import MIN_NATS, bounds_message, noise_message, on_bounds
from .._fitted_models import LAYOUT
from .._isolation import isolated
from .._noise import Noise
from .._parameters import ALWAYS, ParameterRules, check_has_kernel
from .._typing import MatrixLike, Method, RandomStateLike
from .._validation import (
    check_bool,
    check_choice,
    check_finite,
    check_number,
    check_weights,
    draw_seed,
)
from ._inputs import validated

_FITTED = (
    "_latents",
    "_fitted_parameters",
    "_learned",
    "_scaler",
    "_left_out",
    "_tempering",
    "_class_order",
    "_class_totals",
)
_DOUBTED_ROWS = 2000  # rows that are predicted to see whether a fit explains anything
# Parameters whose change a fitted model follows in every further call.
FOLLOWED = dict.fromkeys(
    ("class_weight", "device", "dtype", "max_iter", "random_state", "tol", "warm_start"), ALWAYS
)


def all_or_nothing(method: Method) -> Method:
    """Decorate a fit so that it runs with callbacks and never leaves a half-fitted model.

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

    return cast(Method, whole)


class GPEstimator(CallbackSupportMixin, BaseEstimator):
    """Base of all estimators: parameters, device, validation, and what latent functions predict.

    Fitted state is NumPy on the CPU: ``_latents``, a list of `FittedModel`. A subclass checks the
    values of its parameters (`_check_parameters`), and has `ParameterRules` for what concerns
    several of them (``_rules``).
    """

    # Used by the HTML representation, which shows parameter descriptions only if it can link to
    # them. The documentation has no public address, so the link is relative to a gallery page.
    _doc_link_module = "skgpsvm"
    _doc_link_template = "../generated/skgpsvm.{estimator_name}.html"

    warm_start = False  # of estimators without this parameter
    _takes_sparse = False  # whether X may be sparse
    _noise_model = Noise()
    _default_dtype = None  # of computations; None is that of X
    _rules = ParameterRules()
    _left_out = None  # `LeftOut` residuals or log losses of the last fit

    # Fitted attributes
    n_features_in_: int
    feature_names_in_: np.ndarray
    objective_curve_: np.ndarray
    n_iter_: int

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._takes_sparse
        return tags

    def __getstate__(self):
        return {**super().__getstate__(), "_layout": LAYOUT}

    def __setstate__(self, state):
        if state.get("_layout") != LAYOUT:
            raise ValueError(
                f"This pickle of {type(self).__name__} was written by another version of skgpsvm, "
                "whose fitted state is laid out otherwise. Fit the model again with this version."
            )
        super().__setstate__({name: part for name, part in state.items() if name != "_layout"})

    def _forget(self):
        """Become unfitted."""
        for name in [*vars(self)]:
            if name in _FITTED or (name.endswith("_") and not name.startswith("_")):
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
        of_data = "float32" if X.dtype == np.uint8 else X.dtype.name
        return device, getattr(torch, self.dtype or self._default_dtype or of_data)

    def _one_vs_rest_targets(self, targets):
        """Return the targets of each model to fit, a list."""
        return [targets]

    def _starts_anew(self, targets, weights):
        """Return whether an earlier fit is no start for these targets, which are in its units."""
        return False

    def _weights_count_rows(self):
        """Return whether the weight of a row is the number of its copies, and no exposure."""
        return True

    def _classes_without_rows(self):
        """Return the labels of the classes that the rows of the first call lack, a list."""
        return []

    def _first_call_updates(self):
        """Return whether the first call of `partial_fit` updates a model of no rows."""
        return False

    def _check_choice(self, name, allowed):
        check_choice(name, getattr(self, name), allowed)

    def _solver(self):
        """Return the solver as an object; None where the data decide, or where it is invalid."""
        return self._rules.solver(self.solver)

    def set_params(self, **params: Any) -> Self:
        """Set parameters.

        An option of a solver that is given by its name, such as ``solver__batch_size``, turns the
        name into the solver's object.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : estimator

        Raises
        ------
        ValueError
            If a parameter is unknown, an option is given where the data decide on the solver, or a
            hyperparameter where there is no kernel.
        """
        check_has_kernel(params, getattr(self, "kernel", None))
        params = self._rules.with_solver_object(params, getattr(self, "solver", None))
        return super().set_params(**params)

    def _check_number(self, name, minimum, **options):
        check_number(name, getattr(self, name), minimum, **options)

    def _check_bool(self, name):
        check_bool(name, getattr(self, name))

    def _validated(self, X, reset, **options):
        """Return checked ``X``, and ``y`` where the options have it; see `validated`."""
        return validated(self, X, reset, **options)

    def _check_rows(self, X, y, sample_weight, reset, **options):
        """Return validated ``X``, ``y`` and weights of this rank; some weight is positive."""
        with raise_on_all_ranks() as totals:
            if n_ranks() > 1 and np.shape(y)[:1] == (0,):
                X = self._validated(X, reset, ensure_min_samples=0)
                check_consistent_length(X, y)
                y, weights = np.asarray(y), np.zeros(0)
            else:
                X, y = self._validated(X, reset, y=y, **options)
                weights = check_weights(sample_weight, X)
            totals.append(weights.sum())
        told = {"n_features": X.shape[1], "X of dtype": X.dtype.name, "outputs": y.shape[1:]}
        names = getattr(self, "feature_names_in_", None)
        check_equal(told | {"feature names": None if names is None else names.tolist()})
        if not sum(totals) > 0:
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
        (device, dtype), size = self._torch_options(X), chunk_rows(X)
        values = None
        with torch.no_grad():
            for i in range(0, len(X), size):
                rows = to_tensor(X[i : i + size], device, dtype)
                part = function(rows).double().cpu().numpy()
                values = np.empty((len(X), *part.shape[1:])) if values is None else values
                values[i : i + size] = part
        return check_finite(values, X)

    def __sklearn_is_fitted__(self):
        return hasattr(self, "_latents")

    def _latent_spread(self):
        """Return the factor by which predictions multiply the posterior variances."""
        return 1.0

    @isolated()
    def _map_moments(self, function, X, moments="predictive"):
        """Apply a function of latent means and variances (b, c) to chunks of rows of ``X``.

        ``moments`` is the name of a method of `Posterior`.
        """
        return self._map_checked(function, self._check_new(X), moments)

    def _map_checked(self, function, X, moments="predictive"):
        """Apply `_map_moments` to rows that are already validated."""
        posteriors = [part.posterior(self._torch_options(X)[0]) for part in self._latents]

        def from_rows(chunk):
            found = zip(*(getattr(p, moments)(chunk) for p in posteriors), strict=True)
            return function(*(torch.cat(part, 1).double() for part in found))

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
        used = np.flatnonzero(weights)
        some = used[np.linspace(0, len(used) - 1, min(len(used), _DOUBTED_ROWS)).astype(int)]
        share = weights[some].sum() / weights.sum() if len(used) else 1.0
        nats = sum(gather(self._explained_nats(X[some], targets[some], weights[some] / share)))
        if nats < MIN_NATS:
            doubts.append(noise_message(name, self.kernel, nats))
        return doubts

    def _is_learned(self, name):
        """Return whether a fit learns the hyperparameter of this name if it is free."""
        return True

    def _left_out_quantiles(self, level, what):
        """Return quantiles of the scores of rows predicted without them, for conformal sets."""
        if self._left_out is None:
            raise ValueError(
                f"This {type(self).__name__} has no {what} of rows that were predicted without "
                "them, which method='conformal' needs. The section 'Intervals and sets' of the "
                "user guide says which fits have them. Otherwise, use method='predictive'."
            )
        return self._left_out.quantiles(level)

    def latent_mean_and_variance(self, X: MatrixLike) -> tuple[np.ndarray, np.ndarray]:
        """Return the posterior mean and variance of the latent functions, without noise.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        mean, variance : ndarray of shape (n,) or (n, c)
            For a regressor: in units of y and squared units of y, with the axes of `predict`'s
            mean; for counts and amounts, of the logarithm of the mean; for proportions, of its log
            odds.
            For a classifier: one column per latent function; the second axis is absent if there is
            only one, whose positive values favor ``classes_[1]``. A model that is calibrated by
            ``spread_`` multiplies the variance by it, as `predict_proba` does.
        """
        mean, variance = self._latent_moments(X)
        return self._outputs(mean), self._outputs(variance * self._latent_spread())

    def _latent_moments(self, X, moments="marginals"):
        """Return posterior means and variances of the latent functions, (n, c) each."""
        found = self._map_moments(lambda *parts: torch.cat(parts, 1), X, moments)
        mean, variance = np.split(found, 2, axis=1)
        return mean, variance

    def _outputs(self, array):
        """Return an array (..., c) with the axes that users see."""
        return array[..., 0] if array.shape[-1] == 1 else array

    def latent_covariance(self, X: MatrixLike) -> np.ndarray:
        """Return the joint posterior covariance of the latent functions at all rows, without noise.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Memory is O(n^2).

        Returns
        -------
        cov : ndarray of shape (n, n) or (n, n, c)
            Covariance of each latent function, in the units of `latent_mean_and_variance`, whose
            variances are the diagonal, up to the rounding errors of ``dtype="float32"``. Different
            latent functions have none.
        """
        return self._outputs(self._latent_cov(X))

    @isolated()
    def _latent_cov(self, X):
        """Return posterior covariances of the latent functions, (n, n, c)."""
        X = self._check_new(X)
        device, dtype = self._torch_options(X)
        rows = to_tensor(X, device, dtype)
        cov = torch.cat([part.posterior(device).cov(rows) for part in self._latents])
        return cov.permute(1, 2, 0).cpu().numpy() * self._latent_spread()

    def sample_latent(
        self, X: MatrixLike, n_samples: int = 1, random_state: RandomStateLike = 0
    ) -> np.ndarray:
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
            For a regressor: in units of y, without noise, one function for each output. The last
            axis stays where there is only one latent function.
        """
        return self._in_units(self._sample_latent(X, n_samples, random_state))

    def _in_units(self, latents):
        """Return latents (..., c) as users see them: for a regressor, in units of y."""
        return latents

    @isolated()
    def _sample_latent(self, X, n_samples, random_state):
        X = self._check_new(X)
        check_number("n_samples", n_samples, 1, integer=True)
        device, dtype = self._torch_options(X)
        generator = torch.Generator()
        generator.manual_seed(draw_seed(random_state))
        rows = to_tensor(X, device, dtype)
        posteriors = [part.posterior(device) for part in self._latents]
        draws = torch.cat([p.sample(rows, n_samples, generator) for p in posteriors], 2)
        mean = torch.cat([p.means(rows) for p in posteriors], 1)
        return torch.lerp(mean.double(), draws, self._latent_spread() ** 0.5).cpu().numpy()


def unwrapped(model, X, wanted):
    """Return the part of a fitted model that satisfies a predicate, and ``X`` as that part sees it.

    Parts are the last step of a pipeline and the best estimator of a search. The part is None if
    none satisfies it. ``X`` may be None.
    """
    while not wanted(model):
        if isinstance(model, Pipeline):
            if X is not None and len(model) > 1:
                X = model[:-1].transform(X)
            model = model[-1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return None, X
    return model, X
