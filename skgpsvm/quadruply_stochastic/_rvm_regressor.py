"""`QSRVMRegressor`: the estimator."""

import numpy as np
import torch

from .._estimators import all_or_nothing
from .._validation import differs
from .._variational import VariationalRegressor
from ._rvm_base import RelevanceMachine

_LIKELIHOODS = ("gaussian", "laplace")
_NOISE_BOUNDS = (1e-6, 1e2)  # of its variance or squared scale, relative to the variance of y


class QSRVMRegressor(RelevanceMachine, VariationalRegressor):
    r"""Relevance vector machine for regression: a sum of a few kernel functions at rows.

    The latent function is a weighted sum of kernel functions at the rows, plus a constant. Each
    weight has a prior precision of its own, learned by maximizing the evidence: most of them grow
    without limit, and their functions are left out. What a prediction costs depends on the few
    that stay alone. See the :ref:`user guide <relevance_vector_machines>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        The functions, as a column for each row. None is a squared exponential of height 1 whose
        length scales are in proportion to the features' standard deviations; they start from the
        median distance of some rows.
    likelihood : {"gaussian", "laplace"}, default="gaussian"
        Noise; the second bears outliers.
    covariance : {"full", "mean_field"}, default="full"
        Of the weights a posteriori; or all of them independent, which leaves more out, and gives
        variances that are too small.
    n_basis : int, default=2000
        Functions to start from, M; rows drawn at random, all of them where there are no more.
    relevance_threshold : float, default=1e4
        Precision from which on a function is left out, above 1. It is meant for functions of
        height 1 and the normalized y.
    noise_variance : float, default=None
        To start from, in squared units of the normalized y; None is a tenth of its variance. It
        must be None where the kernel has a `WhiteKernel`, which is then the noise.
    optimizer : {"auto"} or None, default="auto"
        Whether noise and length scales are learned. Length scales are multiplied by one factor,
        the largest under which the log density of held-out thirds of at most 500 rows is within a
        standard error of the best. Other hyperparameters of the kernel stay as they are, and all of
        them with fewer than 3 rows. The noise is that of the greatest evidence; of predictions, no
        less than what thirds of the rows, held out, ask for: all three of them, or one of more than
        500 rows.
    max_iter : int, default=300
        Sweeps over the weights, at most.
    tol : float, default=1e-3
        Stop when a sweep leaves no function out and changes the bound by less, in nats.
    normalize_y : bool, default=True
        Whether y is centered and scaled to unit variance first. Otherwise y should be of
        order one: where learning starts, and its limits, are in units of one.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of rows, targets and predictions; functions' values and their sums are float64. None is
        float64.
    random_state : int, RandomState instance or None, default=None
        Rules the rows that are drawn, and those held out.

    Attributes
    ----------
    kernel_ : Kernel
        With the chosen length scales.
    relevance_vectors_ : ndarray of shape (r, d)
        Rows whose functions have stayed, in the units of X.
    relevance_ : ndarray of shape (r,) or (t, r)
        Prior precisions of their weights, those of each output in a row.
    noise_variance_ : float or ndarray of shape (t,)
        Variance of the noise of predictions, in squared units of y; one for each output. It is
        learned down to a millionth of the variance of y.
    elbo_ : float
        Lower bound on the log evidence of the normalized y, nats, at the noise under which it is
        greatest; with a full covariance and Gaussian noise the evidence itself.
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
    QSRVMClassifier : For classes.
    DecoupledGPRegressor : A Gaussian process, whose variance does not vanish far from all rows.

    Notes
    -----
    Source: Evans and Nair (2020), section 4; Tipping (2001), Tipping and Faul
    (2003). Departs from the source: sweeps are over all rows and functions that are left, not over
    samples of them; the user guide says how precisions are found.

    Several outputs share the functions, each with precisions of its own; one stays while it is
    relevant to any. The first sweeps cost O(n M^2) once and O(M^3) each, with Laplace noise
    O(n M^2) each; later ones that of the functions left. Memory beyond X is about
    ``8 * ((2 t + 3) * M**2 + 2**23)`` bytes for t outputs. A prediction costs O(r^2) a row.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm import QSRVMRegressor
    >>> X = np.linspace(-10, 10, 200)[:, None]
    >>> y = np.sinc(X[:, 0] / np.pi) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> rvm = QSRVMRegressor().fit(X, y)
    >>> len(rvm.relevance_vectors_) < 20
    True
    >>> rvm.predict([[0.0], [4.5]]).round(1)
    array([ 1. , -0.2])
    """

    def __init__(
        self,
        kernel=None,
        *,
        likelihood="gaussian",
        covariance="full",
        n_basis=2000,
        relevance_threshold=1e4,
        noise_variance=None,
        optimizer="auto",
        max_iter=300,
        tol=1e-3,
        normalize_y=True,
        device=None,
        dtype=None,
        random_state=None,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.covariance = covariance
        self.n_basis = n_basis
        self.relevance_threshold = relevance_threshold
        self.noise_variance = noise_variance
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.normalize_y = normalize_y
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
        y : array-like of shape (n,) or (n, t)
            Several outputs share kernel and functions.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log density of each row: 0 removes it, an integer repeats it.
            Divide inverse variances by their mean, as weights count rows: copies of a row are
            evidence of little noise.

        Returns
        -------
        self : QSRVMRegressor

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

    def _check_parameters(self):
        super()._check_parameters()
        self._check_choice("likelihood", _LIKELIHOODS)
        self._check_bool("normalize_y")
        self._check_noise()

    def _initial_noise(self, rows):
        y, weights = rows.targets.double(), rows.weights.double() / rows.total_weight
        mean = weights @ y
        var, mean = (weights @ (y - mean).square()).cpu().numpy(), mean.cpu().numpy()
        log_var = torch.from_numpy(np.log(np.where(differs(var, mean), var, 1.0)))
        power = 1.0 if self.likelihood == "gaussian" else 0.5
        start, given = self._make_likelihood().parameters(), self._given_noise
        if given is None and self.noise_variance is None:
            start = start + power * log_var
        if self.optimizer is None or not self._noise_is_free():
            return tuple(start.tolist()), None
        bounds = power * (log_var[:, None] + log_var.new_tensor(_NOISE_BOUNDS).log())
        bounds = bounds if given is None else bounds.new_tensor([given.limits])
        return tuple(start.tolist()), bounds.to(rows.device)
