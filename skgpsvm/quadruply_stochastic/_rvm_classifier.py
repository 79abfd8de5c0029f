"""`QSRVMClassifier`: the estimator."""

from .._estimators import all_or_nothing
from .._variational import VariationalClassifier
from ._rvm_base import RelevanceMachine


class QSRVMClassifier(RelevanceMachine, VariationalClassifier):
    r"""Relevance vector machine for classes: latent functions that are sums of a few functions.

    One latent function a class, or one in all for two, is a weighted sum of kernel functions at
    the rows, plus a constant. Each weight has a prior precision of its own, learned by maximizing a
    lower bound on the evidence: most of them grow without limit, and functions that no class needs
    are left out. Classes are the softmax of the latents, with two the logistic function of one. See
    the :ref:`user guide <relevance_vector_machines>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        The functions, as a column for each row. None is a squared exponential of height 1 whose
        length scales are in proportion to the features' standard deviations; they start from the
        median distance of some rows.
    covariance : {"full", "mean_field"}, default="full"
        Of the weights of a latent a posteriori; or all of them independent, which leaves more out,
        and gives variances that are too small.
    n_basis : int, default=2000
        Functions to start from, M; rows drawn at random, all of them where there are no more.
    relevance_threshold : float, default=1e4
        Precision from which on a function is left out, above 1. It is meant for functions of
        height 1.
    optimizer : {"auto"} or None, default="auto"
        Whether length scales are learned. They are multiplied by one factor, the largest under
        which the log loss of held-out thirds of at most 500 rows is within a standard error of the
        best; rows of rare classes are all among them. Other hyperparameters of the kernel stay as
        they are, and all of them with fewer than 3 rows.
    max_iter : int, default=300
        Sweeps over the weights, at most.
    tol : float, default=1e-2
        Stop when a sweep leaves no function out and changes the bound by less, in nats.
    class_weight : dict or "balanced", default=None
        Multiplies the sample weights of each class.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of rows and predictions; functions' values and their sums are float64. None is that of X.
    random_state : int, RandomState instance or None, default=None
        Rules the rows that are drawn, and those held out.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    kernel_ : Kernel
        With the chosen length scales.
    relevance_vectors_ : ndarray of shape (r, d)
        Rows whose functions have stayed, in the units of X.
    relevance_ : ndarray of shape (r,) or (n_classes, r)
        Prior precisions of their weights, those of each class in a row.
    elbo_ : float
        Lower bound on the log evidence, nats.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound after each sweep.
    n_iter_ : int
        Sweeps taken.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    See Also
    --------
    QSRVMRegressor : For numbers.
    DecoupledGPClassifier : A Gaussian process, whose variance does not vanish far from all rows.

    Notes
    -----
    Source: Evans and Nair (2020), section 4; Tipping (2001), Tipping and Faul (2003); Opper and
    Archambeau (2009) for two classes, the bound of Boehning for more. Departs from the source:
    sweeps are over all rows and functions that are left, not over samples of them; the expected
    log likelihood of two classes in the place of a bound, which rare classes need; more than two
    classes.

    The first sweeps cost O(n M^2 + M^3) each for two classes, O(n M^2) once and O(c M^3) each for c
    of them; later ones that of the functions left. Memory beyond X is about
    ``8 * ((2 c + 3) * M**2 + 2**23)`` bytes. A prediction costs O(r^2) a row and latent.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import QSRVMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> rvm = QSRVMClassifier().fit(X, y)
    >>> rvm.score(X, y) > 0.95
    True
    >>> len(rvm.relevance_vectors_) < 30
    True
    """

    likelihood = "softmax"

    def __init__(
        self,
        kernel=None,
        *,
        covariance="full",
        n_basis=2000,
        relevance_threshold=1e4,
        optimizer="auto",
        max_iter=300,
        tol=1e-2,
        class_weight=None,
        device=None,
        dtype=None,
        random_state=None,
    ):
        self.kernel = kernel
        self.covariance = covariance
        self.n_basis = n_basis
        self.relevance_threshold = relevance_threshold
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

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
            Multiplies the log likelihood of each row: 0 removes it, an integer repeats it.

        Returns
        -------
        self : QSRVMClassifier

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights make no sense.
        DivergenceError
            If the bound is no longer finite.

        Warns
        -----
        ConvergenceWarning
            If sweeps end by ``max_iter``.
        """
        return self._fit(X, y, sample_weight)
