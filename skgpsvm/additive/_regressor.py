"""`AdditiveGPRegressor`: the estimator."""

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._estimators import GPRegressor, all_or_nothing
from .._parameters import where
from .._predictive import LIKELIHOODS, regression_sites
from .._sites import LikelihoodSites
from ..likelihoods import Poisson
from ._base import AdditiveGP, takes_more_rows

_START_NOISE = 0.2  # variance, of the normalized y
_VAGUE = 100.0  # prior variance of the logarithm of a rate
_USES = AdditiveGP._uses | {"batch_size": where(likelihood=("student_t", "laplace", "poisson"))}


class AdditiveGPRegressor(AdditiveGP, GPRegressor):
    r"""Bayesian generalized additive model: a Gaussian process for each effect.

    The latent function is a constant, a smooth function of each feature, and functions of some
    pairs of features. Every function has zero mean over its features, so that none can stand for
    part of another, and a posterior of its own, correlated with the others'. Smoothness, size of
    effects and noise maximize the evidence bound; pairs are found by a score test. See the
    :ref:`user guide <additive>`.

    Parameters
    ----------
    likelihood : {"gaussian", "student_t", "laplace", "poisson"}, default="gaussian"
        Noise; the second (four degrees of freedom) and third bear outliers. The last is for counts
        or rates, with a logarithmic link: of rates, give the exposures as ``sample_weight``.
    kernel : {"rbf", "matern32", "matern52"}, default="matern52"
        Covariance of an effect before it is centered.
    length_scale_bounds : tuple of two floats, default=(0.05, 10.0)
        Of a feature's scaled range, 1. Each effect learns a length scale; long ones are straight
        lines. With inducing points none is below their distance, in a pair 0.25, or twice their
        distance if that is less.
    kernel_interaction : {"rbf", "matern12", "matern32", "matern52"} or None, default=None
        Covariance of each factor of a pair. "matern12" is for fits without inducing points alone.
        None is ``kernel`` with these; without, "matern12", since many pairs have steps, unless the
        evidence of ``kernel`` is larger by 0.05 nats a row.
    interactions : "auto", int, None, or list of pairs, default="auto"
        Pairs of features that have an effect of their own, by number or name; or how many may
        be found. "auto" is 10 with inducing points, and any number without.
    categorical_features : "from_dtype", None, or array-like, default="from_dtype"
        Columns that are categories: those of a table whose type says so, objects too unless they
        are all numbers; or bools, integers or names. A missing category is a level; of one that
        `fit` did not see the effect is zero with its prior variance.
    scaling : {"power", "minmax"}, default="power"
        Whether skewed features are transformed by Yeo and Johnson's power before their range is
        mapped to the unit interval.
    measure : {"empirical", "uniform"}, default="empirical"
        Over what effects have zero mean, and shares are of: the training rows, or the range.
    covariance : {"full", "precision", "mean_field"}, default="full"
        Of the posterior of all effects: the best there is; the prior's precision plus a matrix of
        low rank; or independent effects, whose bands are too narrow where features are correlated.
    rank : int, default=None
        Of "precision". None is as much as loses next to nothing.
    sparse : {"auto", True, False}, default="auto"
        Whether effects have inducing points, whose cost is linear in the number of rows. Without,
        effects may be rough and pairs are many; time is O(n^3) and memory O(n^2). "auto" is without
        for up to 1500 rows, or 20,000 / d if that is less, with Gaussian noise, and where there
        would be more points than rows; but for other covariances than the full one, in
        ``partial_fit``, and where rows are repeated or weigh more than 1.1, on average over all
        weight: where equal rows have no scatter, noise would be learned to be none. (Weights above
        2 on average are scaled to 1 for that.)
    n_inducing : int or None, default=20
        Equally spaced inducing points of an effect of one feature; of n rows at most the largest of
        n / 16, n / 2d and 10. Where the feature has fewer values, these. None is every value of any
        feature, for some hundred rows.
    n_inducing_interaction : int, "auto" or None, default="auto"
        Of each feature of a pair, whose grid has the square of it; at most half the root of the
        number of rows, or 5. "auto" is 8, and where a pair is as rough as its grid bears more of
        them, as long as the bound gains, up to 2048 points of all grids. None is every value, for
        features with few. Only for fits with inducing points.
    shrinkage : float, default=4.0
        Rate of a gamma prior of shape 2 over the standard deviation of each effect's kernel,
        before centering, in units of the normalized y, or of the logarithm of a rate: its mean is
        half of them. Half the rate is, with Gaussian noise and without inducing points, that of
        such a prior of the noise, and of an exponential one of the inverse root of the length scale
        of each effect of one feature. 0 is no prior, as in the paper: the evidence alone, which
        with few rows or many features is too sure of effects that are chance, and with thousands
        a little better.
    min_gain : float, default=0.05
        Terms that add less to the evidence bound, nats, are dropped, but for pairs that
        ``interactions`` lists; pairs that were found need log(100 P) among P, without inducing
        points log(P). 0 keeps all. Without inducing points and with more features than rows all
        effects of one feature stay.
    max_iter : int, default=30
        Rounds of twenty steps of L-BFGS-B, or passes over the rows, of each stage.
    tol : float, default=1e-4
        Stop when a round gains less, in nats a row.
    batch_size : int, default=None
        Rows in a minibatch, for other than Gaussian noise, which needs all rows once only.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    random_state : int, RandomState instance or None, default=None
        Rules minibatches, and which 10,000 rows interactions are looked for in.

    Attributes
    ----------
    terms_ : list of tuples of ints
        Features of each effect.
    term_names_ : list of str
        Likewise by name; pairs are "a & b".
    dropped_terms_ : list of str
        Effects that ``min_gain`` left out.
    interaction_scores_ : dict
        Of each pair that was looked at, by name: how many standard deviations its score, when it
        was last looked at, is above what it is where there is no interaction.
    intercept_ : float or ndarray of shape (t,)
        The mean of the constant, in units of y; of its logarithm for "poisson".
    sobol_indices_ : ndarray of shape (n_terms,)
        Share of each term in the variance of the latent function, see `sobol_indices`.
    sparse_ : bool
        Whether the fit has inducing points.
    kernel_interaction_ : str or None
        Covariance of each factor of a pair; None where there are no pairs.
    noise_variance_ : float or ndarray of shape (t,)
        Of the noise, in squared units of y. Not for "poisson".
    elbo_ : float
        Lower bound on the log evidence of the normalized y, nats, of the rows of `fit`; the
        evidence itself without inducing points and with Gaussian noise.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound and the logarithm of the prior along the way, stage after stage; after
        ``partial_fit``, of its rows.
    n_iter_ : int
        Rounds or passes taken.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Adam, Durrande and John (2018), with errata; the collapsed bound in place of its
    stochastic optimization.

    With inducing points a fit reads the rows a few times, whatever the number of rounds: time is
    O(n r^2) for r columns, about 70 an effect and 120 a pair (2100 on the finest grid), and memory
    O(r^2) beyond X. Without, an evaluation is O(n^3), and a fit half a minute to a minute for a
    thousand rows. Missing numbers have an effect of their own; where `fit` saw none, it is zero
    with the prior's variance. Outside the range of the training rows, effects go back to zero, and
    their variances to the prior's, within a few length scales.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skgpsvm import AdditiveGPRegressor
    >>> X, y = make_friedman1(500, n_features=6, noise=1.0, random_state=0)
    >>> gam = AdditiveGPRegressor(sparse=True, min_gain=1).fit(X, y)
    >>> gam.term_names_
    ['x0', 'x1', 'x2', 'x3', 'x4', 'x0 & x1']
    >>> effects = gam.explain(X)
    >>> bool(abs(gam.intercept_ + effects.sum(1) - gam.predict(X)).max() < 1e-10)
    True
    """

    _uses = _USES

    def __init__(
        self,
        *,
        likelihood="gaussian",
        kernel="matern52",
        length_scale_bounds=(0.05, 10.0),
        kernel_interaction=None,
        interactions="auto",
        categorical_features="from_dtype",
        scaling="power",
        measure="empirical",
        covariance="full",
        rank=None,
        sparse="auto",
        n_inducing=20,
        n_inducing_interaction="auto",
        shrinkage=4.0,
        min_gain=0.05,
        max_iter=30,
        tol=1e-4,
        batch_size=None,
        device=None,
        random_state=None,
    ):
        self.likelihood = likelihood
        self.kernel = kernel
        self.length_scale_bounds = length_scale_bounds
        self.kernel_interaction = kernel_interaction
        self.interactions = interactions
        self.categorical_features = categorical_features
        self.scaling = scaling
        self.measure = measure
        self.covariance = covariance
        self.rank = rank
        self.sparse = sparse
        self.n_inducing = n_inducing
        self.n_inducing_interaction = n_inducing_interaction
        self.shrinkage = shrinkage
        self.min_gain = min_gain
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.likelihood == "poisson"
        return tags

    # Fitting

    @property
    def normalize_y(self):
        """Whether y is centered and scaled: always but for counts."""
        return self.likelihood != "poisson"

    @property
    def _constant(self):
        return 1.0 if self.normalize_y else _VAGUE

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("likelihood", (*LIKELIHOODS, "poisson"))

    def _check_training_data(self, X, y, sample_weight, *, classes=None, reset=True):
        X, targets, weights, origin = super()._check_training_data(
            X, y, sample_weight, classes=classes, reset=reset
        )
        if self.likelihood == "poisson":
            used = targets[weights > 0]
            if (used < 0).any():
                raise ValueError(
                    "likelihood='poisson' needs counts or rates, which are not negative; y is "
                    f"between {used.min()} and {used.max()}."
                )
        return X, targets, weights, origin

    @all_or_nothing
    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
            NaN is missing. A large float32 or float64 memmap is read in chunks, never copied whole.
        y : array-like of shape (n,) or (n, t)
            Several outputs have the same terms, and hyperparameters of their own.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log density of each row: 0 removes it, an integer repeats it. Divide
            inverse variances by their mean, as weights count rows. With "poisson", exposures: y is
            then the number of events by exposure.

        Returns
        -------
        self : AdditiveGPRegressor

        Raises
        ------
        TypeError
            If a column of X has dates or times and is no category, or both names and numbers.
        ValueError
            If parameters, data or weights make no sense.
        DivergenceError
            If the bound is no longer finite.

        Warns
        -----
        ConvergenceWarning
            If a stage ends by ``max_iter``.
        """
        return self._fit(X, y, sample_weight)

    @available_if(takes_more_rows)
    @all_or_nothing
    def partial_fit(self, X, y, sample_weight=None):
        """Learn from more rows, as new data.

        The first call fits as `fit` does, but with inducing points, which an earlier `fit` of few
        rows need not have: see ``sparse``. Every later one holds the terms, the hyperparameters
        and the scales of X and y, and adds the rows to the posterior: with Gaussian noise exactly.
        A number outside the range of the first rows counts as the end of the range.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
        y : array-like of shape (n,) or (n, t)
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : AdditiveGPRegressor
        """
        return self._partial_fit(X, y, sample_weight)

    def _is_gaussian(self):
        return self.likelihood == "gaussian"

    def _has_noise(self):
        return self.likelihood != "poisson"

    def _make_likelihood(self):
        t = len(self._y_mean)
        if self.likelihood == "poisson":
            return LikelihoodSites(Poisson(), t)
        return regression_sites(self.likelihood, np.full(t, _START_NOISE))

    def _of_noise(self, noise):
        found = super()._of_noise(noise)
        if self.likelihood == "poisson":
            return found
        return {**found, "noise_variance_": self._noise_variance(noise)}

    def _of_constant(self, constant):
        found = self._outputs(constant * self._y_std + self._y_mean)
        return found.item() if found.ndim == 0 else found

    def _of_effects(self, effects):
        return self._outputs(effects * self._y_std)

    # Prediction

    def predict(self, X, return_std=False, return_cov=False):
        """Mean of y, and on request its standard deviation or covariance, noise included.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
        return_std : bool, default=False
            Whether the standard deviation of each observation is returned too.
        return_cov : bool, default=False
            Whether their joint covariance is, not with "poisson"; memory is O(n^2).

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
            If the covariance of counts is requested.
        """
        check_is_fitted(self)
        if self._likelihood != "poisson" or (return_std and return_cov):
            return super().predict(X, return_std, return_cov)
        if return_cov:
            raise ValueError("likelihood='poisson' gives no covariance; use sample_y.")
        moments = self._map_moments(lambda *latent: torch.cat(Poisson().predict(*latent), 1), X)
        mean, variance = np.split(moments, 2, axis=1)
        mean, std = self._outputs(mean), self._outputs(np.sqrt(variance))
        return (mean, std) if return_std else mean

    def sample_y(self, X, n_samples=1, random_state=0):
        """Draws of the latent functions at all rows jointly, with independent noise added.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
            Memory is O(n^2).
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=0

        Returns
        -------
        y_samples : ndarray of shape (n, n_samples) or (n, t, n_samples)
            Of "poisson", counts at exposure one.
        """
        check_is_fitted(self)
        if self._likelihood != "poisson":
            return super().sample_y(X, n_samples, random_state)
        rng = check_random_state(random_state)
        counts = rng.poisson(np.exp(self.sample_latent(X, n_samples, rng)))
        return np.moveaxis(self._outputs(counts), 0, -1)
