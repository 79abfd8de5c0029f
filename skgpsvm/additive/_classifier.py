"""`AdditiveGPClassifier`: the estimator."""

from sklearn.utils.metaestimators import available_if

from .._estimators import GPClassifier, all_or_nothing
from .._predictive import classification_sites
from ._base import AdditiveGP, takes_more_rows


class AdditiveGPClassifier(AdditiveGP, GPClassifier):
    r"""Bayesian generalized additive model of classes: a Gaussian process for each effect.

    The log odds of two classes, or a function for each of several under the softmax, are a
    constant, a smooth function of each feature, and functions of some pairs of features. Every
    function has zero mean over its features and a posterior of its own, correlated with the
    others'. See the :ref:`user guide <additive>`.

    Parameters
    ----------
    likelihood : {"softmax", "probit"}, default="softmax"
        Link: the logistic function for two classes, the softmax for more; or the normal
        distribution function, for two.
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
        effects may be rough and pairs are many; a pass is O(n^3) and memory O(n^2). "auto" is with
        them, but where there would be more of them than rows, if the covariance is full and
        ``batch_size`` is None.
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
        before centering, in units of the latent functions: its mean is half of them. 0 is no
        prior, as in the paper: the evidence alone, which with few rows or many features is too
        sure of effects that are chance.
    min_gain : float, default=0.05
        Terms that add less to the evidence bound, nats, are dropped, but for pairs that
        ``interactions`` lists; pairs that were found need log(100 P) among P, without inducing
        points log(P). 0 keeps all. Without inducing points and with more features than rows all
        effects of one feature stay.
    max_iter : int, default=30
        Passes over the rows of each stage.
    tol : float, default=5e-4
        Stop when a pass changes the bound by less, in nats a row.
    batch_size : int, default=None
        Rows in a minibatch; None is all.
    class_weight : dict, "balanced" or None, default=None
        Multiplies the weights of the rows of each class.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    random_state : int, RandomState instance or None, default=None
        Rules minibatches, and which 10,000 rows interactions are looked for in.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    terms_ : list of tuples of ints
        Features of each effect.
    term_names_ : list of str
        Likewise by name; pairs are "a & b".
    dropped_terms_ : list of str
        Effects that ``min_gain`` left out.
    interaction_scores_ : dict
        Of each pair that was looked at, by name: how many standard deviations its score, when it
        was last looked at, is above what it is where there is no interaction.
    intercept_ : float or ndarray of shape (n_classes,)
        The mean of the constant.
    sobol_indices_ : ndarray of shape (n_terms,)
        Share of each term in the variance of the latent functions, see `sobol_indices`.
    sparse_ : bool
        Whether the fit has inducing points.
    kernel_interaction_ : str or None
        Covariance of each factor of a pair; None where there are no pairs.
    elbo_ : float
        Lower bound on the log evidence, nats, of the rows of `fit`.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound and the logarithm of the prior along the way, stage after stage; after
        ``partial_fit``, of its rows.
    n_iter_ : int
        Passes taken.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Adam, Durrande and John (2018), with errata; natural-gradient steps in the place of
    stochastic optimization.

    With inducing points a pass is O(n r^2) for r columns, about 70 an effect and 120 a pair
    (2100 on the finest grid). Missing numbers have an effect of their own; where `fit` saw none, it
    is zero with the prior's variance.

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

    _constant = 25.0

    def __init__(
        self,
        *,
        likelihood="softmax",
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
        tol=5e-4,
        batch_size=None,
        class_weight=None,
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
        self.class_weight = class_weight
        self.device = device
        self.random_state = random_state

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("likelihood", ("softmax", "probit"))

    @all_or_nothing
    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
            NaN is missing. A large float32 or float64 memmap is read in chunks, never copied whole.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log likelihood of each row: 0 removes it, an integer repeats it.

        Returns
        -------
        self : AdditiveGPClassifier

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
    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Learn from more rows, as new data.

        The first call fits as `fit` does, but with inducing points, which an earlier `fit` of few
        rows need not have: see ``sparse``. Every later one holds the terms, the hyperparameters
        and the scales of X, and adds the rows to the posterior. A number outside the range of the
        first rows counts as the end of the range.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
        y : array-like of shape (n,)
        classes : array-like of shape (c,), default=None
            All classes that may come; needed in the first call where its ``y`` lacks some.
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : AdditiveGPClassifier

        Raises
        ------
        ValueError
            If parameters, data or weights make no sense, or a class comes that is not known.
        """
        return self._partial_fit(X, y, sample_weight, classes)

    def _is_gaussian(self):
        return False

    def _make_likelihood(self):
        return classification_sites(self.likelihood, len(self.classes_))

    def _of_constant(self, constant):
        return constant.item() if len(constant) == 1 else constant

    def _of_effects(self, effects):
        return effects[..., 0] if len(self.classes_) == 2 else effects
