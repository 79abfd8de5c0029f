"""The estimator `AdditiveGPClassifier`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from numpy import ndarray

from .._calibration import Tempering
from .._estimators import GPClassifier, all_or_nothing, fit_models, stream
from .._predictive import at_frequencies
from .._typing import ArrayLike, ClassWeight, Device, MatrixLike, RandomStateLike, available_if
from ._base import AdditiveGP, takes_more_rows
from ._defaults import DEFAULTS
from ._terms import Term


class AdditiveGPClassifier(AdditiveGP, GPClassifier):
    r"""Bayesian generalized additive model of classes: a Gaussian process for each effect.

    The latent function is a constant, a smooth function of each feature, and functions of some
    pairs of features. Two classes have one latent function, their log odds under the logistic link.
    More classes have one each under the softmax, with the same hyperparameters. Every effect has
    zero mean over its features, and the posteriors of effects are correlated. See the
    :ref:`user guide <additive>`.

    Parameters
    ----------
    likelihood : {"softmax", "probit", "ordinal"}, default="softmax"
        Link function. "softmax" is the logistic function for two classes; "probit", the normal
        distribution function, is for two classes only. "ordinal", for classes in the order of their
        labels, which must be numbers, has one latent function with normal noise, and learned
        thresholds between the classes.
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
        one that does not increase, 0 for neither; or a dict of these by name or number. With them,
        the probability of ``classes_[1]`` is monotone, or with "ordinal" those of higher classes
        together. Not for more classes without an order. A feature with a constraint has no pairs
        and no point masses, and the fit has inducing points. See :ref:`additive_monotone`.
    convex_cst : array-like of shape (d,) or dict, default=None
        Constraints of curvature, in the same form: 1 for a convex effect on the latent function,
        -1 for a concave one. A feature may have both constraints.
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
        effects may be rough and pairs numerous, but a pass is O(n^3) and memory O(n^2). "auto" has
        them, unless there would be more of them than rows, the covariance is full and
        ``batch_size`` is None.
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
        latent functions; the default has mean 1/2. See :ref:`additive_priors`. 0 is no prior, as in
        the paper. It is overconfident with few rows or many features, where some effects fit noise.
    min_gain : float, default=0.05
        Terms that add less than this to the ELBO, in nats, are dropped. Pairs, point masses and
        steps, of which many are tried, must add more. Effects join the model only if a score test
        finds them; see :ref:`additive_gains`. Terms listed in ``terms`` are kept. 0 keeps all.
    max_iter : int, default=30
        Maximum number of passes over the rows in each stage.
    tol : float, default=5e-4
        Stop when a pass changes the objective by less than this, in nats per row.
    batch_size : int, default=None
        Rows in a minibatch; None is all.
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply predicted probabilities (:ref:`class_weights`).
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. Fitted attributes are always on the CPU.
    random_state : int, RandomState instance or None, default=None
        Seeds the minibatches, and the subsample of 10,000 rows of the score tests.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    class_weight_ : ndarray of shape (n_classes,)
        Weight of each class.
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
    intercept_ : float or ndarray of shape (n_classes,)
        Posterior mean of the constant.
    sobol_indices_ : ndarray of shape (n_terms,)
        Share of each term in the variance of the latent functions, see `sobol_indices`.
    feature_importances_ : ndarray of shape (d,)
        Mean absolute effect of each feature over up to 1000 rows of the last `fit` or
        ``partial_fit``, divided by the sum of all. That of a pair counts half for each feature.
        :func:`skgpsvm.inspection.component_importances` has credible intervals and terms.
    sparse_ : bool
        Whether the fit has inducing points.
    kernel_interaction_ : str or None
        Covariance of each factor of a pair; None without pairs.
    thresholds_ : ndarray of shape (n_classes - 1,)
        Values of the latent function between the classes, only with ``likelihood="ordinal"``.
    temperature_ : float
        Power that the class probabilities are raised to. It minimizes the log loss of leave-one-out
        predictions of the rows of `fit`, with a prior. Above 1, these were too cautious.
    loo_log_loss_ : float
        Log loss of the leave-one-out predictions, with this power, in nats per row. Above 3,000
        rows, it is that of 3,000 of them.
    elbo_ : float
        ELBO, in nats, over the rows of `fit`.
    objective_curve_ : ndarray of shape (n_iterations,)
        ELBO plus log prior of each pass, stage after stage, without rejected ones; after
        ``partial_fit``, over its rows.
    n_iter_ : int
        Number of passes.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if all names of X are strings.

    Notes
    -----
    Source: Adam, Durrande and John (2018), with errata. Departs from the source: natural-gradient
    steps replace its stochastic optimization.

    With inducing points, a pass is O(n r^2) for r columns; an effect has about 65 columns and a
    pair 120 (2100 on the finest grid). Missing numbers have an effect of their own, which is zero
    with the prior's variance if `fit` had none.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.metrics import log_loss
    >>> from skgpsvm import AdditiveGPClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> gam = AdditiveGPClassifier(interactions=None).fit(X[::2, :8], y[::2])
    >>> bool(log_loss(y[1::2], gam.predict_proba(X[1::2, :8])) < 0.2)
    True
    """

    _constant, _information = DEFAULTS.constant_of_classes, 0.25  # p (1 - p) is at most 1/4

    # Fitted attributes
    thresholds_: ndarray
    temperature_: float
    loo_log_loss_: float

    def __init__(
        self,
        *,
        likelihood: Literal["softmax", "probit", "ordinal"] = "softmax",
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
        tol: float = 5e-4,
        batch_size: int | None = None,
        class_weight: ClassWeight = None,
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
        self.class_weight = class_weight
        self.device = device
        self.random_state = random_state

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("likelihood", ("softmax", "probit", "ordinal"))

    @all_or_nothing
    def fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
            NaN is a missing value. A :ref:`source <sources>`, such as a memmap, is read in blocks.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n,), default=None
            Factor of each row's log likelihood: 0 removes the row, an integer repeats it.

        Returns
        -------
        self : AdditiveGPClassifier

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
        return fit_models(self, X, y, sample_weight)

    @available_if(takes_more_rows)
    @all_or_nothing
    def partial_fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Update the model with more rows.

        The first call fits as `fit` does, but always with inducing points; see ``sparse``. Later
        calls keep the terms, the hyperparameters
        and the scales of X, and add the rows to the posterior. A number outside the range of the
        first rows counts as the end of the range.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
        y : array-like of shape (n,)
        classes : array-like of shape (c,), default=None
            All classes of any call. Needed in the first call if its ``y`` lacks some.
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : AdditiveGPClassifier

        Raises
        ------
        ValueError
            If parameters, data or weights are not valid, or y has an unknown class.
        """
        return stream(self, X, y, sample_weight, classes=classes)

    def _fit_model(self, problem, sparse=None):
        if (constraint := self._constraint) and self._make_likelihood().n_latents > 1:
            raise ValueError(
                f"{constraint} is for two classes, or ordered ones; got {len(self.classes_)}. Set "
                "likelihood='ordinal' if they are ordered; else leave it out, or fit a model of "
                "each class against the others."
            )
        return super()._fit_model(problem, sparse)

    def _first_parameters(self, rows):
        sites = self._make_likelihood()
        if self.likelihood == "ordinal":
            sites = at_frequencies(sites, rows)
        return sites.parameters()

    def _fitted_attributes(self, models, summaries, streamed=False):
        found = super()._fitted_attributes(models, summaries, streamed)
        [(_, search)] = summaries
        if search is None:
            return found
        targets, mean, var, weights = search.ascent.left_out(search.state)
        rest = self._log_p_of(mean, var, search.state.noise), targets, weights
        found |= self._tempered(*rest, earlier=Tempering.of_prior(DEFAULTS.power_spread))
        return found | {"loo_log_loss_": found["_tempering"].log_loss}

    def _of_noise(self, noise):
        return super()._of_noise(noise) | self._likelihood_attributes(noise)

    def _of_constant(self, constant):
        return self._outputs(constant)

    _effect_units = 1.0
