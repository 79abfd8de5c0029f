"""Base class of regressors: normalized targets, noise, and predictions in units of y."""

from __future__ import annotations

from typing import Literal, Self, overload

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._distributed import check_equal, gather, raise_on_all_ranks
from .._families import FAMILIES, check_family
from .._isolation import isolated
from .._merging import merged_rows
from .._noise import RegressionNoise, given_noise
from .._robust import weighted_median, winsorized
from .._targets import VARYING_NOISE, target_distribution
from .._typing import ArrayLike, MatrixLike, RandomStateLike, available_if
from .._validation import check_choice, check_level, check_noise_variance, check_numeric, differs
from ._base import GPEstimator, all_or_nothing
from ._inputs import warn_of_weights
from ._pipeline import fit_models, has_partial_fit, stream

# A warm start keeps the normalization of y if the mean, and the deviation, of the new rows are
# within these, in units of the earlier deviation.
_SAME_MEANS, _SAME_SCALES = 2.0, (0.25, 4.0)


def has_added_noise(estimator):
    """Return True if y is a function plus noise; raise AttributeError otherwise."""
    if not estimator._has_noise():
        raise AttributeError(
            "predict_noise_variance is for noise that is added to a function; with "
            f"likelihood={estimator.likelihood!r} the variance follows from the mean. Use "
            "predict(X, return_std=True)."
        )
    return True


class GPRegressor(MultiOutputMixin, RegressorMixin, GPEstimator):
    """Base of regressors: normalized targets, noise, and predictions in units of y.

    A subclass has a parameter ``likelihood``, and ``_likelihood``, the one of the last fit. Targets
    are centered and scaled where ``normalize_y`` asks for it, unless the mean has a link; those of
    heavy-tailed noise by the mean and deviation of `winsorized` targets.
    """

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = not self._has_noise()
        return tags

    @all_or_nothing
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            A :ref:`source <sources>`, such as a memmap, is read in blocks. Some estimators take
            :ref:`sparse X <sparse_X>`.
        y : array-like of shape (n,) or (n, t)
            Several outputs share the kernel and the inducing points or basis functions.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log density of each row: 0 removes it, an integer repeats it. Weights
            count rows; inverse variances of the noise are not weights but ``noise_variance``. With
            Gaussian noise, weights above 1 on average are scaled to a mean of 1 for learning
            hyperparameters: copies of a row have no scatter, and would be evidence of little noise.
            With "poisson", weights are exposures, and y is the number of events divided by
            exposure.
        noise_variance : array-like of shape (n,) or (n, t), default=None
            Known variances of the noise of each row, such as squared measurement errors, in squared
            units of y. The learned variance, ``noise_variance_``, is added to them. Only with
            Gaussian noise, and not with stochastic steps of `QSGPRegressor` and `QSRVMRegressor`.

        Returns
        -------
        self : object

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights are invalid.
        DivergenceError
            If the objective is no longer finite, or stochastic steps end at one far below the
            prior's. The estimator is then unfitted or, with ``warm_start``, unchanged.

        Warns
        -----
        ConvergenceWarning
            If the fit reaches ``max_iter`` before it converges.
        """
        return fit_models(self, X, y, sample_weight, noise_variance=noise_variance)

    @available_if(has_partial_fit)
    @all_or_nothing
    def partial_fit(
        self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Update the model with more rows, as new data.

        The first call does the same as `fit`. Further calls keep its kernel, noise and basis
        functions. They make one pass of stochastic steps, in which earlier rows count in proportion
        to their number. Hybrid networks, and solvers that need all rows at once, have none.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,) or (n, t)
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : object

        Raises
        ------
        AttributeError
            If the solver needs all rows at once.
        ValueError
            If parameters, data or weights are invalid.
        DivergenceError
            See `fit`. The estimator is then unchanged.
        """
        return stream(self, X, y, sample_weight)

    def _has_noise(self):
        """Return whether y is a function plus noise; it is not where the function is a link."""
        return self.likelihood not in FAMILIES

    def _check_training_data(self, X, y, sample_weight, *, noise_variance=None, reset=True):
        """`merged_rows` with normalized targets (n, t), or (n, t, 2) with known noise."""
        with raise_on_all_ranks():
            check_numeric(y)
        X, y, weights = self._check_rows(
            X, y, sample_weight, reset, multi_output=True, y_numeric=True
        )
        if self._has_noise():
            known = "Pass known variances of the noise as noise_variance"
            warn_of_weights(weights, f"{known}, or divide inverse variances by their mean.")
        if reset:
            self._y_ndim = np.ndim(y)
        t = np.prod(y.shape[1:], dtype=int)
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), t)
        if self._knows_noise(noise_variance):
            with raise_on_all_ranks():
                known = check_noise_variance(noise_variance, y)
            targets = np.stack([targets, known], -1)
        X, targets, weights, origin = merged_rows(X, targets, weights)
        if not self._has_noise():
            _, dtype = self._torch_options(X)
            rounded = torch.as_tensor(targets[weights > 0]).to(dtype).numpy()
            with raise_on_all_ranks():
                check_family(self.likelihood, rounded)

        if reset:
            self._y_mean, self._y_std = np.zeros(t), np.ones(t)
            mean, var = self._moments(targets, weights)
            if not np.isfinite(var).all():
                raise ValueError(
                    "Squares of y, times the weights, overflow in float64: scale them down."
                )
            if self.normalize_y and self._has_noise():
                if (var < np.finfo(np.float64).tiny).any():
                    used = targets[weights > 0]
                    _refuse_underflow(used if used.ndim == 2 else used[..., 0], var)
                self._y_mean = mean
                self._y_std = np.where(differs(var, self._y_mean), np.sqrt(var), 1.0)
        elif targets.shape[1] != len(self._y_mean):
            raise ValueError(
                f"y has {targets.shape[1]} outputs, but the model was fitted with "
                f"{len(self._y_mean)}."
            )
        if targets.ndim == 3:
            y, known = np.moveaxis(targets, -1, 0)
            normalized = (y - self._y_mean) / self._y_std, known / self._y_std**2
            return X, np.stack(normalized, -1), weights, origin
        return X, (targets - self._y_mean) / self._y_std, weights, origin

    def _moments(self, targets, weights):
        """Return mean and variance (t,) by which targets are normalized."""
        with np.errstate(over="ignore"):
            mean, var = target_moments(targets, weights)
            if self.likelihood in ("student_t", "laplace") and np.isfinite(var).all():
                mean, var = target_moments(winsorized(targets, weights), weights)
        return mean, var

    def _weights_count_rows(self):
        return self._has_noise()  # those of counts, amounts and proportions may be exposures

    def _starts_anew(self, targets, weights):
        if not (self.normalize_y and self._has_noise()):
            return False
        mean, var = self._moments(targets, weights)
        low, high = _SAME_SCALES
        other_scale = (var > high**2) | (0 < var) & (var < low**2)  # a single row has none
        return bool((other_scale | (np.abs(mean) > _SAME_MEANS)).any())

    def _knows_noise(self, noise_variance):
        """Return whether all ranks were given the variances of known noise, or none."""
        given = noise_variance is not None
        check_equal({"noise_variance given": given})
        if given and self.likelihood != "gaussian":
            raise ValueError(
                "noise_variance is that of Gaussian noise; leave it out with "
                f"likelihood={self.likelihood!r}, or set likelihood='gaussian'."
            )
        return given

    def _outputs(self, array):
        """Return an array whose last axis, of outputs, is there only if y had two axes."""
        return array[..., 0][()] if self._y_ndim == 1 else array

    @property
    def _given_noise(self):
        """Return the `GivenNoise` of the kernel, or None; only Gaussian noise is part of it."""
        return given_noise(self.kernel) if self.likelihood == "gaussian" else None

    @property
    def _n_outputs(self):
        """Number of outputs, t; their latent functions come before those of the noise."""
        return len(self._y_mean)

    @property
    def _noise_model(self):
        return RegressionNoise(self._given_noise, self.likelihood, self._n_outputs)

    def _explained_nats(self, X, targets, weights):
        """Return the log density gained by the variation of the mean at the fitted noise."""
        if not weights.any():
            return 0.0
        known = 0.0
        if targets.ndim == 3:
            targets, known = targets[..., 0], targets[..., 1] * self._y_std**2
        explained = self._distribution().explained
        return explained(targets, known, self._latent_means(X), weights)

    def _noise_variance(self, parameters):
        """Return the noise variance in squared units of y, for ``noise_variance_``."""
        return self._outputs(self._noise_model.variance(parameters).numpy() * self._y_std**2)

    def _noise_attributes(self, parameters):
        """Return the fitted attributes of the likelihood's log parameters (k,), a dict."""
        if self._has_noise():
            return {"noise_variance_": self._noise_variance(parameters)}
        return {"dispersion_": self._outputs(parameters.exp().numpy())} if len(parameters) else {}

    def _distribution(self):
        """Return the `TargetDistribution` of the last fit."""
        if self._likelihood in FAMILIES:
            parameters = getattr(self, "dispersion_", 1.0)
        else:
            parameters = self.noise_variance_
        parameters = np.broadcast_to(parameters, (self._n_outputs,)).astype(np.float64)
        return target_distribution(self._likelihood, parameters)

    def _latent_moments(self, X):
        return [part[:, : self._n_outputs] for part in self._all_moments(X)]

    def _all_moments(self, X, moments="marginals"):
        """Return moments (n, c) of all latent functions, those of the outputs in units of y."""
        mean, variance = super()._latent_moments(X, moments)
        variance[:, : self._n_outputs] *= self._y_std**2
        return self._all_in_units(mean), variance

    def _moments_for(self, distribution, X):
        """Return `_all_moments` at which the distribution of y keeps constraints of the mean."""
        name = "marginals" if distribution.mean_is_latent else "predictive"
        return self._all_moments(X, name)

    @isolated()
    def _latent_means(self, X):
        """Return the means of validated rows, (n, t), in units of y."""
        posteriors = [part.posterior(self._torch_options(X)[0]) for part in self._latents]
        means = self._map_rows(lambda rows: torch.cat([p.means(rows) for p in posteriors], 1), X)
        return self._in_units(means)

    def _in_units(self, latents):
        return self._all_in_units(latents)[..., : self._n_outputs]

    def _all_in_units(self, latents):
        """Return latent functions (..., c), those of the outputs in units of y."""
        outputs, noise = np.split(latents, [self._n_outputs], axis=-1)
        return np.concatenate([outputs * self._y_std + self._y_mean, noise], -1)

    @overload
    def predict(
        self, X: MatrixLike, return_std: Literal[False] = False, return_cov: Literal[False] = False
    ) -> np.ndarray: ...

    @overload
    def predict(
        self, X: MatrixLike, return_std: Literal[True], return_cov: Literal[False] = False
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def predict(
        self, X: MatrixLike, return_std: Literal[False] = False, *, return_cov: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def predict(
        self, X: MatrixLike, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...

    def predict(
        self, X: MatrixLike, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean of y and, on request, its standard deviation or covariance.

        Standard deviation and covariance include the noise. If the noise varies, its variance at
        each row is the posterior mean.

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
        ValueError
            If the covariance of counts, amounts or proportions is requested.
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")
        distribution = self._distribution()
        if return_cov and not distribution.mean_is_latent:
            raise ValueError(
                f"likelihood={self._likelihood!r} gives no covariance. Draw from sample_y instead."
            )
        if return_std or not distribution.mean_is_latent:
            mean, variance = distribution.moments(*self._moments_for(distribution, X))
            mean, std = self._outputs(mean), self._outputs(np.sqrt(variance))
            return (mean, std) if return_std else mean
        mean = self._outputs(self._latent_means(self._check_new(X)))
        if not return_cov:
            return mean
        noise = np.eye(len(mean))[..., None] * self._noise_at(X)
        return mean, self._outputs(self._latent_cov(X) + noise)

    def predict_interval(
        self,
        X: MatrixLike,
        level: float = 0.9,
        method: Literal["predictive", "conformal"] = "predictive",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict intervals that hold y with a given probability, with the learned noise.

        Parameters
        ----------
        X : array-like of shape (n, d)
        level : float, default=0.9
            Probability of the intervals. With hyperparameters learned from fewer than about 100
            rows, they hold .05 to .1 less.
        method : {"predictive", "conformal"}, default="predictive"
            ``"predictive"`` takes central quantiles of the predictive distribution of y, which has
            the tails of the likelihood; counts are those at exposure one. ``"conformal"``
            multiplies the predictive standard deviation by a quantile of residuals. They are those
            of training rows that were predicted without them, relative to their standard
            deviations. These intervals are right on average even if the noise or the kernel is not.
            Not all regressors have them, see the :ref:`user guide <intervals>`.

        Returns
        -------
        lower, upper : ndarray of shape (n,) or (n, t)

        Raises
        ------
        ValueError
            If there are no such residuals, or fewer than the level needs.
        """
        check_is_fitted(self)
        check_level(level)
        check_choice("method", method, ("predictive", "conformal"))
        distribution = self._distribution()
        moments = self._moments_for(distribution, X)
        if method == "predictive":
            ends = distribution.interval(*moments, level)
        else:
            factor = self._left_out_quantiles(level, "residuals")
            mean, variance = distribution.moments(*moments)
            reach = factor * np.sqrt(variance)
            ends = np.clip([mean - reach, mean + reach], *distribution.limits)
        return tuple(map(self._outputs, ends))

    @available_if(has_added_noise)
    def predict_noise_variance(self, X: MatrixLike) -> np.ndarray:
        """Predict the variance of the noise at rows.

        It is ``noise_variance_`` at every row unless the noise varies. Then it is the posterior
        mean of the variance.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        noise_variance : ndarray of shape (n,) or (n, t)
            In squared units of y; with the axes of `predict`'s mean.
        """
        shape = len(self._check_new(X)), self._n_outputs
        return self._outputs(np.broadcast_to(self._noise_at(X), shape).copy())

    def _noise_at(self, X):
        """Return noise variances in squared units of y, (n, t) or (t,)."""
        distribution = self._distribution()
        if self._likelihood not in VARYING_NOISE:
            return distribution.variances
        return distribution.noise(*self._all_moments(X))

    def _latent_cov(self, X):
        return super()._latent_cov(X)[..., : self._n_outputs] * self._y_std**2

    def sample_y(
        self, X: MatrixLike, n_samples: int = 1, random_state: RandomStateLike = 0
    ) -> np.ndarray:
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
            Counts are those at exposure one.
        """
        check_is_fitted(self)
        rng = check_random_state(random_state)
        latents = self._all_in_units(self._sample_latent(X, n_samples, rng))
        return np.moveaxis(self._outputs(self._distribution().draw(latents, rng)), 0, -1)


def target_moments(targets, weights):
    """Return means and variances of the outputs, (t,) each, over the rows of all ranks.

    Targets are (n, t), or (n, t, 2) with known noise.
    """
    if targets.ndim == 3:
        targets, known = np.moveaxis(targets, -1, 0)
        columns = zip(targets.T, _discounted(weights, known).T, strict=True)
        parts = [target_moments(column[:, None], own) for column, own in columns]
        mean, var = zip(*parts, strict=True)
        return np.concatenate(mean), np.concatenate(var)

    def average(values):
        sums, totals = zip(*gather((weights @ values, weights.sum())), strict=True)
        return sum(sums) / sum(totals)

    mean = average(targets)
    return mean, average((targets - mean) ** 2)


def _refuse_underflow(targets, var):
    """Refuse outputs that differ between rows but have variances (t,) below float64's range."""
    parts = [part for part in gather(targets) if len(part)]
    differ = np.max([part.max(0) for part in parts], 0) > np.min([part.min(0) for part in parts], 0)
    if (differ & (var < np.finfo(np.float64).tiny)).any():
        raise ValueError("Squares of the differences in y underflow in float64: scale y up.")


def _discounted(weights, known):
    """Return weights (n, t) by which rows of large known noise hardly set the scale of y.

    The weight of a row of variance v is multiplied by m / (m + v), where m is the median variance.
    """
    every = map(np.concatenate, zip(*gather((known, weights)), strict=True))
    typical = weighted_median(*every)
    total = np.where(known > 0, typical + known, 1.0)
    return weights[:, None] * np.where(known > 0, typical / total, 1.0)
