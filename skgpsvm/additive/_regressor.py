"""The estimator `AdditiveGPRegressor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self, overload

import numpy as np

from .._estimators import GPRegressor, all_or_nothing, fit_models, stream
from .._families import FAMILIES, family_sites
from .._parameters import OtherThan, ParameterRules, where
from .._predictive import LeftOut
from .._targets import LIKELIHOODS, VARYING_NOISE, regression_sites
from .._typing import (
    ArrayLike,
    Device,
    MatrixLike,
    RandomStateLike,
    RegressionLikelihood,
    available_if,
)
from ._base import FOLLOWED_BY_STREAMS, USES, AdditiveGP, takes_more_rows
from ._defaults import DEFAULTS
from ._terms import Term


def _noise_varies(estimator):
    """Return True if the noise of the fit varies; raise AttributeError otherwise."""
    likelihood = getattr(estimator, "_likelihood", estimator.likelihood)
    if likelihood not in VARYING_NOISE:
        raise AttributeError(
            "The noise has effects only with likelihood='heteroscedastic'; got "
            f"likelihood={likelihood!r}. Set it, and fit again."
        )
    return True


_USES = USES | {"batch_size": where(likelihood=OtherThan("gaussian"))}


class AdditiveGPRegressor(AdditiveGP, GPRegressor):
    r"""Bayesian generalized additive model: a Gaussian process for each effect.

    The latent function is a constant, a smooth function of each feature, and functions of some
    pairs of features. Every function has zero mean over its features, so that none can absorb part
    of another. The posteriors of effects are correlated. Length scales, variances of effects and
    the noise maximize the ELBO; pairs are selected by a score test. See the
    :ref:`user guide <additive>`.

    Parameters
    ----------
    likelihood : str, default="gaussian"
        Distribution of y: "gaussian", "heteroscedastic", "student_t", "laplace", "poisson",
        "negative_binomial", "gamma" or "beta". "heteroscedastic" is Gaussian noise whose variance
        varies: its logarithm has effects too, see `explain_noise`. "student_t" (4 degrees of
        freedom) and "laplace" are robust to outliers. The last four have a link. It is logarithmic
        with "poisson" for counts, or for rates with the exposures as ``sample_weight``, with
        "negative_binomial" for counts whose variance exceeds their mean, and with "gamma" for
        positive amounts of constant coefficient of variation. "beta" has log odds, of proportions
        between 0 and 1.
    kernel : {"rbf", "matern32", "matern52"}, default="matern52"
        Covariance of an effect before centering.
    length_scale_bounds : tuple of two floats, default=(0.05, 10.0)
        Lower and upper bound of length scales, in units of a feature's scaled range. Each effect
        learns its length scale; large ones give straight lines. With inducing points, a length
        scale is at least the distance between them; in a pair, at least 0.25, or twice the distance
        if that is smaller.
    kernel_interaction : {"rbf", "matern12", "matern32", "matern52"} or None, default=None
        Covariance of each factor of a pair. None is ``kernel`` with inducing points, which exclude
        "matern12". Without, it is "matern12", since many pairs have steps, unless the evidence of
        ``kernel`` is clearly larger.
    terms : list, default=None
        Terms of the model; None is an effect of each feature. An entry is a feature, by name or
        number; a pair of features, such as ("age", "city"); or a feature with the kind of its
        effect. Numbers are "smooth" by default, or ("age", "linear"), or ("hour", "cyclic", 24),
        where a value continues after a period; without the period, it is the number of integers in
        the range, or the range. The effect of a category is "random". An Ellipsis stands for all
        that the fit would have without the list: ``terms=[..., ("age", "city")]`` adds a pair, and
        ``terms=["age", "city"]`` is a model of two terms. Listed terms are kept whatever they gain.
    interactions : "auto", int or None, default="auto"
        Maximum number of pairs that the fit selects, besides those in ``terms``. "auto" is 10 with
        inducing points, any number without, and 0 if ``terms`` has no Ellipsis.
    monotonic_cst : array-like of shape (d,) or dict, default=None
        Constraints of effects, as in scikit-learn: 1 for an effect that does not decrease, -1 for
        one that does not increase, 0 for neither; or a dict of these by name or number. A feature
        with a constraint has no pairs and no point masses, and the fit has inducing points. See
        :ref:`additive_monotone`.
    convex_cst : array-like of shape (d,) or dict, default=None
        Constraints of curvature, in the same form: 1 for a convex effect, -1 for a concave one. A
        feature may have both constraints.
    categorical_features : "from_dtype", None, or array-like, default="from_dtype"
        Columns that are categories: a mask, integers or names. "from_dtype" takes the columns of a
        table with a categorical type, and columns of objects that are not all numbers. A missing
        category is a level. A level that was not in the fit has effect zero, with its prior
        variance.
    point_masses : "auto" or None, default="auto"
        Whether a number that many rows share, such as 0, a cap, or -999 for an absent value, has an
        effect of its own beside the smooth one. "auto" finds such numbers. They are terms such as
        "x0 = 0", which are dropped if they gain too little. At a number that is far from all
        others, the smooth effect and those of pairs are zero.
    steps : "auto" or None, default="auto"
        Whether effects may be rough: have steps, spikes, or bumps that are narrow. "auto" looks for
        structure that the smooth effects have left along a feature. Where there is, the feature has
        another effect, "steps of x0". It is a random walk over bins of equally many rows, up to 400
        in all, and is dropped if it gains too little.
    scaling : {"power", "minmax"}, default="power"
        Scaling of numerical features to the unit interval. "power" first applies the power
        transformation of Yeo and Johnson to skewed features.
    measure : {"empirical", "uniform"}, default="empirical"
        Measure under which effects have zero mean and Sobol indices are computed: that of the
        training rows, or the uniform one on the range.
    covariance : {"full", "precision", "mean_field"}, default="full"
        Form of the posterior covariance of all effects. "full" is the most accurate. "precision" is
        the prior's precision plus a matrix of low rank. "mean_field" has independent effects, whose
        credible bands are too narrow if features are correlated.
    rank : int, default=None
        Rank of "precision". None is the smallest that loses less than 0.01 nats of the ELBO.
    sparse : {"auto", True, False}, default="auto"
        Whether effects have inducing points, whose cost is linear in the number of rows. Without,
        effects may be rough and pairs numerous, but time is O(n^3) and memory O(n^2). "auto" has
        none for up to 1500 rows, or 20,000 / d if that is smaller, with Gaussian noise, and none if
        there would be more points than rows, with exceptions that :ref:`additive_sparse` lists.
        `partial_fit` always has them.
    n_inducing : int, "auto" or None, default="auto"
        Number of equally spaced inducing points of an effect of one feature. "auto" is between 7
        and 40, fewer with many features or few rows. A feature with fewer distinct values has one
        point at each of them. None takes every value of every feature, for a few hundred rows. See
        :ref:`additive_points`.
    n_inducing_interaction : int, "auto" or None, default="auto"
        Number of inducing points per axis of the grid of a pair, likewise. "auto" starts at 8, or
        fewer with few rows, and refines the grids of rough pairs as long as the ELBO gains. Only
        for fits with inducing points.
    shrinkage : float, default=4.0
        Rate of a gamma prior of shape 2 over the standard deviation of each effect, in units of the
        normalized y, or of the link of the mean; the default has mean 1/2. With Gaussian noise and
        without inducing points, the noise and the length scales have priors of half the rate; see
        :ref:`additive_priors`. 0 is no prior, as in the paper. It is overconfident with few rows or
        many features, where some effects fit noise, and slightly better with thousands of rows.
    min_gain : float, default=0.05
        Terms that add less than this to the ELBO, in nats, are dropped. Pairs, point masses and
        steps, of which many are tried, must add more, and so must all effects together where noise
        is learned; effects on counts join only if a score test finds them. See
        :ref:`additive_gains`. Terms listed in ``terms`` are kept. 0 keeps all.
    max_iter : int, default=30
        Maximum number of rounds in each stage: of twenty steps with Gaussian noise, of a pass over
        the rows otherwise.
    tol : float, default=1e-4
        Stop when a round gains less than this, in nats per row.
    batch_size : int, default=None
        Rows in a minibatch; None is all. Not used with Gaussian noise, which reads the rows once.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. Fitted attributes are always on the CPU.
    random_state : int, RandomState instance or None, default=None
        Seeds the minibatches, and the subsample of 10,000 rows of the score tests.

    Attributes
    ----------
    terms_ : list of tuples of ints
        Features of each effect.
    term_names_ : list of str
        Names of the terms: those of pairs are "a & b", those of point masses "a = 0", and "steps of
        a".
    dropped_terms_ : list of str
        Names of the terms that ``min_gain`` removed.
    interaction_scores_ : dict
        Standardized score of each tested pair, by name, from its last test: the number of standard
        deviations above its mean without an interaction.
    intercept_ : float or ndarray of shape (t,)
        Posterior mean of the constant, in units of y, or of the link of its mean.
    sobol_indices_ : ndarray of shape (n_terms,)
        Share of each term in the variance of the latent function, see `sobol_indices`.
    feature_importances_ : ndarray of shape (d,)
        Mean absolute effect of each feature over up to 1000 rows of the last `fit` or
        ``partial_fit``, divided by the sum of all. That of a pair counts half for each feature.
        :func:`skgpsvm.inspection.component_importances` has credible intervals and terms.
    sparse_ : bool
        Whether the fit has inducing points.
    kernel_interaction_ : str or None
        Covariance of each factor of a pair; None without pairs.
    noise_variance_ : float or ndarray of shape (t,)
        Variance of the noise, in squared units of y, without the known variances that `fit` was
        given; where it varies, a variance to which `predict_noise_variance` is relative. Not with a
        link.
    noise_intercept_ : float or ndarray of shape (t,)
        Of "heteroscedastic" only: mean logarithm of the standard deviation of the noise, in units
        of y; see `explain_noise`.
    dispersion_ : float or ndarray of shape (t,)
        Of "negative_binomial", "gamma" and "beta" only: a in the variance of y at the mean m, which
        is m + a m^2, a m^2 and a / (1 + a) m (1 - m).
    elbo_ : float
        ELBO of the normalized y, in nats, over the rows of `fit`. It is the log evidence itself
        without inducing points and with Gaussian noise.
    objective_curve_ : ndarray of shape (n_iterations,)
        ELBO plus log prior of each round, stage after stage, without rejected ones; after
        ``partial_fit``, over its rows.
    n_iter_ : int
        Number of rounds.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if all names of X are strings.

    Notes
    -----
    Source: Adam, Durrande and John (2018), with errata. Departs from the source: the collapsed
    bound replaces its stochastic optimization.

    With inducing points and Gaussian noise, a fit reads the rows a few times, for any number of
    rounds. Time is O(n r^2) for r columns, and memory O(r^2) beyond X; an effect has about 65
    columns and a pair 120 (2100 on the finest grid). Without inducing points, an evaluation is
    O(n^3 + n^2 d), and a fit of a thousand rows takes five to twenty seconds.

    Missing numbers have an effect of their own, which is zero with the prior's variance if `fit`
    had none. Outside the range of the training rows, effects return to zero, and their variances to
    the prior's, within a few length scales.

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

    _rules = ParameterRules(uses=_USES, followed=FOLLOWED_BY_STREAMS)

    # Fitted attributes
    noise_variance_: float | np.ndarray
    noise_intercept_: float | np.ndarray
    dispersion_: float | np.ndarray

    def __init__(
        self,
        *,
        likelihood: RegressionLikelihood = "gaussian",
        kernel: Literal["rbf", "matern32", "matern52"] = "matern52",
        length_scale_bounds: tuple[float, float] = (0.05, 10.0),
        kernel_interaction: Literal["rbf", "matern12", "matern32", "matern52"] | None = None,
        terms: Sequence[Term] | None = None,
        interactions: int | Literal["auto"] | None = "auto",
        monotonic_cst: ArrayLike | dict[str, int] | dict[int, int] | None = None,
        convex_cst: ArrayLike | dict[str, int] | dict[int, int] | None = None,
        categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        point_masses: Literal["auto"] | None = "auto",
        steps: Literal["auto"] | None = "auto",
        scaling: Literal["power", "minmax"] = "power",
        measure: Literal["empirical", "uniform"] = "empirical",
        covariance: Literal["full", "precision", "mean_field"] = "full",
        rank: int | None = None,
        sparse: bool | Literal["auto"] = "auto",
        n_inducing: int | Literal["auto"] | None = "auto",
        n_inducing_interaction: int | Literal["auto"] | None = "auto",
        shrinkage: float = 4.0,
        min_gain: float = 0.05,
        max_iter: int = 30,
        tol: float = 1e-4,
        batch_size: int | None = None,
        device: Device = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.likelihood = likelihood
        self.kernel = kernel
        self.length_scale_bounds = length_scale_bounds
        self.kernel_interaction = kernel_interaction
        self.terms = terms
        self.interactions = interactions
        self.monotonic_cst = monotonic_cst
        self.convex_cst = convex_cst
        self.categorical_features = categorical_features
        self.point_masses = point_masses
        self.steps = steps
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

    # Fitting

    normalize_y = True  # not a parameter

    @property
    def _constant(self):
        is_logarithm = self.likelihood not in LIKELIHOODS  # of a rate, or of the noise
        return DEFAULTS.constant_of_rates if is_logarithm else DEFAULTS.constant

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("likelihood", (*LIKELIHOODS, *VARYING_NOISE, *FAMILIES))

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
        X : array-like or table of shape (n, d)
            NaN is a missing value. A :ref:`source <sources>`, such as a memmap, is read in blocks.
        y : array-like of shape (n,) or (n, t)
            Several outputs have the same terms, but their own hyperparameters.
        sample_weight : array-like of shape (n,), default=None
            Factor of each row's log density: 0 removes the row, an integer repeats it. Weights
            count rows; inverse variances of the noise are not weights but ``noise_variance``. With
            "poisson", weights are exposures, and y is the number of events divided by exposure.
        noise_variance : array-like of shape (n,) or (n, t), default=None
            Known variances of the noise of each row, such as squared measurement errors, in squared
            units of y. The learned variance, ``noise_variance_``, is added to them. Only with
            Gaussian noise.

        Returns
        -------
        self : AdditiveGPRegressor

        Raises
        ------
        TypeError
            If a column of X has dates or times and is not a category, or mixes names and numbers.
        ValueError
            If parameters, data or weights are not valid.
        DivergenceError
            If the objective is not finite.

        Warns
        -----
        ConvergenceWarning
            If a stage reaches ``max_iter`` before it converges.
        """
        return fit_models(self, X, y, sample_weight, noise_variance=noise_variance)

    @available_if(takes_more_rows)
    @all_or_nothing
    def partial_fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Self:
        """Update the model with more rows.

        The first call fits as `fit` does, but always with inducing points; see ``sparse``. Later
        calls keep the terms, the hyperparameters
        and the scales of X and y, and add the rows to the posterior, exactly with Gaussian noise.
        A number outside the range of the first rows counts as the end of the range.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
        y : array-like of shape (n,) or (n, t)
        sample_weight : array-like of shape (n,), default=None
        noise_variance : array-like of shape (n,) or (n, t), default=None
            Known variances of the noise of these rows, as in `fit`.

        Returns
        -------
        self : AdditiveGPRegressor
        """
        return stream(self, X, y, sample_weight, noise_variance=noise_variance)

    def _make_likelihood(self):
        t = len(self._y_mean)
        if self.likelihood in FAMILIES:
            return family_sites(self.likelihood, t)
        return regression_sites(self.likelihood, np.full(t, DEFAULTS.initial_noise))

    def _fitted_attributes(self, models, summaries, streamed=False):
        found = super()._fitted_attributes(models, summaries, streamed)
        [latents], [(_, search)] = models, summaries
        if self.likelihood in VARYING_NOISE:
            constants = [part.posterior("cpu").intercept() for part in latents[self._n_outputs :]]
            median = found.get("noise_variance_", getattr(self, "noise_variance_", None))
            found["noise_intercept_"] = 0.5 * (np.log(median) + self._outputs(np.array(constants)))
        if search is None:
            return found
        likelihood = self._make_likelihood().at(search.state.noise).likelihood
        left_out = LeftOut.of(likelihood, *search.ascent.left_out(search.state))
        return found | {"_left_out": left_out}

    def _of_noise(self, noise):
        return super()._of_noise(noise) | self._noise_attributes(noise)

    # Effects

    @property
    def _n_mean_latents(self):
        return self._n_outputs

    @property
    def _effect_units(self):
        """Units of effects on each latent, (c,): those of y, and 1/2 for logarithms of variances.

        Effects on the noise are those on the logarithm of its standard deviation.
        """
        return np.append(self._y_std, np.full(len(self._latents) - self._n_outputs, 0.5))

    def _of_constant(self, constant):
        return self._outputs(constant * self._y_std + self._y_mean)

    @overload
    def explain_noise(self, X: MatrixLike, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def explain_noise(
        self, X: MatrixLike, return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def explain_noise(
        self, X: MatrixLike, return_std: bool
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...

    @available_if(_noise_varies)
    def explain_noise(
        self, X: MatrixLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the effect of each term on the noise: on the logarithm of its standard deviation.

        ``exp(noise_intercept_ + explain_noise(X).sum(1))`` is the posterior median of the standard
        deviation of the noise. Only with ``likelihood="heteroscedastic"``.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool, default=False
            Whether to return posterior standard deviations too.

        Returns
        -------
        effects : ndarray of shape (n, n_terms) or (n, n_terms, t)
            Effects in the order of ``term_names_``. An effect of 0.1 is about 10 % more noise.
        std : ndarray of the same shape, optional
            Posterior standard deviations.
        """
        found = self._explained(self._check_new(X))
        mean, std = (self._outputs(part[..., self._n_outputs :]) for part in found)
        return (mean, std) if return_std else mean
