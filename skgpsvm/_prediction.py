"""Estimators with Gaussian posteriors over latent functions: what is predicted from them."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import softmax, xlogy
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ._calibration import argmax_scores, calibrated_scores, log_probability
from ._distributed import gather
from ._doubts import LEAST_NATS, bounds_message, noise_message, on_bounds
from ._estimators import TorchClassifier, TorchEstimator, TorchRegressor, check_number
from ._isolation import isolated
from ._noise import given_noise, split_noise
from ._rows import to_tensor
from ._sites import LikelihoodSites
from .likelihoods import Gaussian, Laplace, Logistic, Probit, RobustMax, Softmax, StudentT

_DOF = 4.0  # of Student's t
_DOUBTED_ROWS = 2000  # that tell whether a fit explains anything
LIKELIHOODS = {
    "gaussian": Gaussian,
    "student_t": lambda var: StudentT((var * (_DOF - 2) / _DOF) ** 0.5, _DOF),
    "laplace": lambda var: Laplace((var / 2) ** 0.5),
}
# Draws of variance one.
_STANDARD_NOISE = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "student_t": lambda rng, shape: rng.standard_t(_DOF, shape) * np.sqrt((_DOF - 2) / _DOF),
    "laplace": lambda rng, shape: rng.laplace(0, np.sqrt(0.5), shape),
}


def regression_sites(likelihood, variance, n_outputs=None):
    """Sites of one of `LIKELIHOODS` with noise of variances (t,), or (1,) for all outputs alike."""
    return LikelihoodSites(LIKELIHOODS[likelihood](variance), n_outputs or len(variance))


def classification_sites(likelihood, n_classes):
    """Sites of "softmax", "probit" or "robust_max"; two classes are one latent but for the last."""
    if likelihood == "robust_max":
        return LikelihoodSites(RobustMax(), n_classes)
    if n_classes == 2:
        return LikelihoodSites(Logistic() if likelihood == "softmax" else Probit(), 1)
    if likelihood == "probit":
        raise ValueError(
            f"likelihood='probit' is for two classes; y has {n_classes}. Use 'softmax'."
        )
    return LikelihoodSites(Softmax(), n_classes)


class LatentEstimator(TorchEstimator):
    """An estimator whose fitted state, ``_latents``, is a list of models with posteriors.

    Each has ``posterior(device)``, a `Posterior`, and the number of its latents, ``n_latents``.
    """

    def __sklearn_is_fitted__(self):
        return hasattr(self, "_latents")

    def _latent_spread(self):
        """What the posterior's variances are multiplied by."""
        return 1.0

    def _split_kernel(self, kernel):
        """A kernel without its noise, and the whole of it where it has some, else None."""
        return kernel, None

    def _noise_is_free(self):
        """Whether the likelihood's parameters may be learned."""
        return True

    def _noise_limits(self, default):
        """Bounds of their logarithms."""
        return default

    @isolated()
    def _map_moments(self, function, X, spread=None):
        """``function`` of latent means and variances (b, c), by chunks of rows of ``X``.

        Variances are multiplied by ``spread``, `_latent_spread` unless given.
        """
        return self._map_checked(function, self._check_new(X), spread)

    def _map_checked(self, function, X, spread=None):
        """`_map_moments` of rows that are checked."""
        posteriors = [part.posterior(self._torch_options(X)[0]) for part in self._latents]
        spread = self._latent_spread() if spread is None else spread

        def from_rows(chunk):
            mean, var = zip(*(p.marginals(chunk) for p in posteriors), strict=True)
            return function(torch.cat(mean, 1).double(), spread * torch.cat(var, 1).double())

        return self._map_rows(from_rows, X)

    def _doubts(self, X, targets, weights):
        """Messages about a fit, of checked rows, that ended on its user's bounds or at mere noise.

        Only of a kernel that was given and learned: the default kernel has starts that find a
        signal where there is one, and its user has set no bounds.
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
        if nats < LEAST_NATS:
            doubts.append(noise_message(name, self.kernel, nats))
        return doubts

    def _is_learned(self, name):
        """Whether a fit learns the kernel's hyperparameter of a name, if it is free."""
        return True

    def latent_mean_and_variance(self, X):
        """Posterior mean and variance of the latent functions; no noise is added.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        mean, variance : ndarray of shape (n,) or (n, c)
            One column for each latent function, and no second axis where there is only one.
        """
        mean, variance = self._latent_moments(X)
        return self._latent_outputs(mean), self._latent_outputs(variance)

    def _latent_moments(self, X, spread=None):
        """Posterior means and variances of the latent functions, (n, c) each."""
        moments = self._map_moments(lambda mean, var: torch.cat([mean, var], 1), X, spread)
        mean, variance = np.split(moments, 2, axis=1)
        return mean, variance

    def _latent_outputs(self, array):
        """An array (n, c) with as many axes as users get."""
        return array[:, 0] if array.shape[1] == 1 else array

    def _checked_latents(self, latents):
        """Values (..., c) of the latent functions, as `sample_latent` gives them."""
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
        """Joint draws of the latent functions at all rows.

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


class LatentRegressor(TorchRegressor, LatentEstimator):
    """Latents in units of the normalized y; a subclass has ``likelihood``, and learns noise.

    ``_likelihood`` is the one that it was fitted with.
    """

    def _is_heavy_tailed(self):
        return self.likelihood in ("student_t", "laplace")

    @property
    def _given_noise(self):
        """`GivenNoise` of the kernel, or None; other likelihoods have noise of their own."""
        return given_noise(self.kernel) if self.likelihood == "gaussian" else None

    def _split_kernel(self, kernel):
        if self._given_noise is None:
            return super()._split_kernel(kernel)
        return split_noise(kernel)[0], kernel

    def _noise_is_free(self):
        return self._given_noise is None or not self._given_noise.fixed

    def _noise_limits(self, default):
        """Bounds of the noise's logarithm: those of the kernel's `WhiteKernel`, or a default."""
        return default if self._given_noise is None else self._given_noise.limits

    def _noise_sites(self, variance):
        """Sites whose noise is the kernel's, or has this variance in each output to start from."""
        t, given = len(self._y_mean), self._given_noise
        start = np.full(t, variance) if given is None else np.array([given.level])
        return regression_sites(self.likelihood, start, t)

    def _explained_nats(self, X, targets, weights):
        """Log density that the variation of the mean over rows is worth at the fitted noise."""
        if not weights.any():
            return 0.0
        mean = self._map_checked(lambda mean, _: mean, X) * self._y_std
        squares = weights @ (mean - np.average(mean, axis=0, weights=weights)) ** 2
        return float((0.5 * squares / self.noise_variance_).sum())

    def _variance_of_noise(self, parameters):
        """Of the normalized outputs, (t,) or (1,), at the likelihood's parameters."""
        likelihood = self._make_likelihood().at(parameters).likelihood
        return likelihood.predict(*torch.zeros(2, len(parameters)).to(parameters))[1]

    def _noise_variance(self, parameters):
        """Of y, in its units squared: the attribute."""
        return self._outputs(self._variance_of_noise(parameters).numpy() * self._y_std**2)

    def latent_mean_and_variance(self, X):
        """Posterior mean and variance of the latent functions; no noise is added.

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

    def _latent_outputs(self, array):
        return self._outputs(array)

    def sample_latent(self, X, n_samples=1, random_state=0):
        """Joint draws of the latent functions at all rows; no noise is added.

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
        """Mean of y, and on request its standard deviation or covariance, noise included.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool, default=False
            Whether the standard deviation of each observation is returned too.
        return_cov : bool, default=False
            Whether their joint covariance is; memory is O(n^2).

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
        mean, variance = self._latent_moments(X)
        if return_cov:
            return self._outputs(mean), self._outputs(self._cov(X))
        if return_std:
            return self._outputs(mean), self._outputs(np.sqrt(variance + self.noise_variance_))
        return self._outputs(mean)

    @isolated()
    def _cov(self, X):
        X = self._check_new(X)
        device, dtype = self._torch_options(X)
        rows = to_tensor(X, device, dtype)
        cov = torch.cat([part.posterior(device).cov(rows) for part in self._latents])
        cov = cov.permute(1, 2, 0).cpu().numpy() * self._y_std**2
        return cov + np.eye(len(X))[..., None] * self.noise_variance_

    def sample_y(self, X, n_samples=1, random_state=0):
        """Draws of the latent functions at all rows jointly, with independent noise added.

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
        noise = _STANDARD_NOISE[self._likelihood](rng, latent.shape) * std
        return np.moveaxis(self._outputs(latent + noise), 0, -1)


class Predictive(NamedTuple):
    """What is predicted for rows: scores (b, n_classes), or (b, 1) for two classes, and so on.

    Attributes
    ----------
    scores : Tensor
        What `decision_function` gives, ties by rounding excepted.
    log_p, p : Tensor of shape (b, n_classes)
        Class probabilities and their logarithms, which are finite.
    """

    scores: torch.Tensor
    log_p: torch.Tensor
    p: torch.Tensor

    def ranked_scores(self):
        """Scores that are highest where the probabilities are, ties by rounding included."""
        scores, p = self.scores, self.p
        if scores.shape[1] == 1:
            sign = (p[:, 1:] - p[:, :1]).sign()
            return torch.where(scores.sign() == sign, scores, sign * torch.finfo(p.dtype).tiny)
        highest = scores.amax(1, keepdim=True)
        below = torch.minimum(scores, highest.nextafter(torch.full_like(highest, -torch.inf)))
        return torch.where(p == p.amax(1, keepdim=True), highest, below)


class ProbabilisticClassifier(TorchClassifier, LatentEstimator):
    """Predictions from latent moments: a subclass gives ``_predictive(mean, var)``."""

    def _explained_nats(self, X, targets, weights):
        """How much likelier the classes of rows are than by their frequencies."""
        counts = np.bincount(targets, weights, len(self.classes_))
        total = sum(gather(counts))
        if not weights.any():
            return 0.0
        log_p = self._map_checked(lambda *moments: self._predictive(*moments).log_p, X)
        by_chance = (xlogy(counts, total) - xlogy(counts, total.sum())).sum()
        return float(weights @ log_p[np.arange(len(X)), targets] - by_chance)

    def predict_proba(self, X):
        """Class probabilities, averaged over the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        probabilities : ndarray of shape (n, n_classes)
        """
        return self._map_moments(lambda *moments: self._predictive(*moments).p, X)

    def predict_log_proba(self, X):
        """Logarithms of the class probabilities.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        log_probabilities : ndarray of shape (n, n_classes)
            Finite, also where `predict_proba` underflows to zero.
        """
        return self._map_moments(lambda *moments: self._predictive(*moments).log_p, X)

    def decision_function(self, X):
        """Logits of `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        scores : ndarray of shape (n, n_classes), or (n,) for two classes
            Logarithms of the class probabilities; for two classes the log odds of ``classes_[1]``.
        """
        scores = self._map_moments(lambda *moments: self._predictive(*moments).ranked_scores(), X)
        return scores[:, 0] if scores.shape[1] == 1 else scores


class LatentClassifier(ProbabilisticClassifier):
    """Class probabilities by ``_likelihood``, the one that a subclass was fitted with."""

    def _fitted_likelihood(self):
        return classification_sites(self._likelihood, len(self.classes_)).likelihood

    def _predictive(self, mean, var):
        p = self._fitted_likelihood().predict(mean, var)
        log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()
        scores = log_p[:, 1:] - log_p[:, :1] if p.shape[1] == 2 else log_p
        return Predictive(scores, log_p, p)

    @isolated()
    def predict_proba_from_latent(self, latents):
        """Class probabilities given values of the latent functions, as `sample_latent` draws them.

        Parameters
        ----------
        latents : array-like of shape (..., c)

        Returns
        -------
        probabilities : ndarray of shape (..., n_classes)
        """
        latents, likelihood = self._checked_latents(latents), self._fitted_likelihood()
        mean = torch.from_numpy(latents.reshape(-1, latents.shape[-1]))
        codes = torch.arange(len(self.classes_))[:, None].expand(-1, len(mean))
        log_p = [likelihood.log_prob(code, mean) for code in codes]
        return torch.stack(log_p, -1).exp().numpy().reshape(*latents.shape[:-1], -1)


class CalibratedClassifier(ProbabilisticClassifier):
    """Class probabilities of a pseudo-likelihood: calibrated, or those of the largest latent.

    A subclass has the parameter ``probability`` and the attributes of its calibration,
    ``temperature_`` and ``spread_``.
    """

    def latent_mean_and_variance(self, X):
        """Posterior mean and variance of the latent functions; no noise is added.

        With ``probability="calibrated"`` the variance is the posterior's times ``spread_``, and
        that of `sample_latent`'s draws too: what `predict_proba` averages over.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        mean, variance : ndarray of shape (n,) or (n, c)
            One latent for each class; for two classes one in all, without a second axis, positive
            for ``classes_[1]``.
        """
        return super().latent_mean_and_variance(X)

    def _latent_spread(self):
        return self.spread_ if self.probability == "calibrated" else 1.0

    def _predictive(self, mean, var):
        if self.probability == "argmax":
            scores = argmax_scores(mean, var)
        else:
            scores = calibrated_scores(mean, var, self.temperature_)
        log_p = log_probability(scores)
        return Predictive(scores, log_p, log_p.exp())

    def decision_function(self, X):
        """Logits of `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        scores : ndarray of shape (n, n_classes), or (n,) for two classes
            Up to a constant in each row, logarithms of the class probabilities; for two classes
            the log odds of ``classes_[1]``.
        """
        return super().decision_function(X)

    def predict_proba(self, X):
        """Class probabilities: calibrated, or those of the largest latent.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        probabilities : ndarray of shape (n, n_classes)
        """
        return super().predict_proba(X)

    def predict_proba_from_latent(self, latents):
        """Class probabilities given values of the latent functions, as `sample_latent` draws them.

        Parameters
        ----------
        latents : array-like of shape (..., c)

        Returns
        -------
        probabilities : ndarray of shape (..., n_classes)
        """
        latents = self._checked_latents(latents)
        if latents.shape[-1] == 1:
            latents = np.concatenate([np.zeros_like(latents), latents], -1)
        if self.probability == "argmax":
            return np.eye(latents.shape[-1])[latents.argmax(-1)]
        return softmax(self.temperature_ * latents, axis=-1)
