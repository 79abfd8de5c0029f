"""`QSGPRegressor`: the estimator."""

from dataclasses import replace

from sklearn.utils.metaestimators import available_if

from .._estimators import all_or_nothing
from .._parameters import where
from .._solved import SolvedRegressor
from ._gp_base import QuadruplyStochasticGP, has_partial_fit

_MAX_HELD_OUT = 2000
_USES = QuadruplyStochasticGP._uses | {
    "batch_size": (
        where(solver=("sgd", "adagrad")) | where(likelihood="laplace"),
        QuadruplyStochasticGP._uses["batch_size"],
    )
}


class QSGPRegressor(QuadruplyStochasticGP, SolvedRegressor):
    r"""Quadruply stochastic Gaussian-process regression: very many functions span the mean.

    The mean is a weighted sum of ``n_basis`` random Fourier features or kernels at rows. Its
    weights solve a linear system by preconditioned conjugate gradients, or are learned by steps
    that sample rows once and functions twice, so that their cost depends on neither number. See the
    :ref:`user guide <quadruply_stochastic>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent function, in units of the normalized y; with Fourier features
        a sum of RBF and Matern kernels times constants. Its values, bounds and "fixed" marks rule
        the optimization. None is a squared exponential with a length scale for each feature.
        Its hyperparameters and the noise have a prior.
    likelihood : {"gaussian", "laplace"}, default="gaussian"
        Noise; the second bears outliers.
    solver : {"cg", "sgd", "adagrad"}, default="cg"
        How the mean's coefficients are found: preconditioned conjugate gradients, which see all
        functions at all rows in every iteration; or stochastic steps, whose cost depends on neither
        number, of constant size with an average (sgd) or scaled by past gradients (the paper's).
    basis : {"fourier", "orthogonal", "inducing"}, default="fourier"
        Functions: cosines and sines of random frequencies, independent or orthogonal in blocks of
        d, of an RBF or Matern kernel; or kernels at rows.
    n_basis : int, default=10000
        How many, m: rounded up to pairs of cosine and sine; of rows at most all of them.
    covariance : {"nystroem", "chevron", "mean_field"}, default="nystroem"
        Of the latent function. "nystroem" lives on the inducing points, at a cost that does not
        depend on m. The others are the paper's, over the weights: independent, or with
        ``n_dense_columns`` dense columns of their covariance's factor.
    n_dense_columns : int, default=10
        Of "chevron".
    augment : bool, default=False
        Whether the variance at x has that of one more kernel function at x itself added, up to the
        prior's; for ``basis="inducing"`` with "chevron" or "mean_field", whose variance would fall
        to zero far from the data. Keeps the training rows.
    control_variate : {"interpolating", "gram", None}, default="interpolating"
        Of stochastic steps, from the mean at ``n_support`` rows: kriging to the minibatch, or the
        paper's. All leave the gradient unbiased.
    gradient : {"symmetric", "plain"}, default="symmetric"
        Of stochastic steps: whether the linear term is split between the two draws of functions, or
        the first has all of it, the paper's form.
    n_sampled_basis : int, default=1024
        Units in each of the two draws of a stochastic step: pairs, or kernels at rows.
    n_support : int, default=256
        Rows of the control variates.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function, in units of the normalized y: coefficients with a vague prior, which are
        part of the kernel. None is "constant", with stochastic steps, which vague terms slow down,
        "zero".
    noise_variance : float, default=None
        To start from, in squared units of the normalized y; None is 0.1. It must be None where the
        kernel has a `WhiteKernel`, which is then the noise.
    n_inducing : int, default=256
        Inducing points of the "nystroem" covariance, k; hyperparameters are learned from them too.
    inducing_points : {"kmeans", "random"} or array-like of shape (k, d), default="kmeans"
        Where they start: centers of clusters of the standardized rows, rows drawn at random, or
        these, in units of X.
    learn_inducing : bool, default=True
        Whether the inducing points are moved.
    optimizer : {"auto", "stochastic"} or None, default="auto"
        Whether kernel and noise are learned, on some thousand rows. Where they are, and there are
        at least 500 rows, Gaussian noise and a "nystroem" covariance, the noise and the power of
        the variances are set by a tenth of the rows, held out. "stochastic" goes on learning both
        along the stochastic steps.
    max_iter : int, default=100
        Iterations of conjugate gradients, at most; passes of minibatches over the rows.
        `partial_fit` takes one.
    tol : float, default=1e-3
        At which conjugate gradients stop: the norm of the preconditioned residual, relative to
        that of the prior mean, and what the bound may still gain, nats a row; or what it has
        gained in ten iterations. Of other than Gaussian noise, relative change of the means.
    batch_size : int, default=None
        Rows in a minibatch; None is 512. For "cg" of the rows that hyperparameters of other than
        Gaussian noise are learned from, where None is all.
    learning_rate : float, default=None
        Of stochastic steps; None is 0.1 for "adagrad", for "sgd" the inverse of the greatest
        eigenvalue that the support rows tell of.
    normalize_y : bool, default=True
        Whether y is centered and scaled to unit variance first. Otherwise y should be of
        order one: where learning starts, and its limits, are in units of one.
    warm_start : bool, default=False
        Whether `fit` starts from the hyperparameters of the last one; stochastic steps from all of
        its state, and with its calibration. A change of what such a model holds, such as
        ``kernel``, is refused by name.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of features and products with them, summed in float64; None is float64. "float32" halves
        the time and is safe while the noise is not far below the signal. Kernels at rows of
        ``solver="cg"`` are float64 in any case.
    random_state : int, RandomState instance or None, default=None
        Rules k-means, frequencies, rows drawn and minibatches.

    Attributes
    ----------
    kernel_ : Kernel
        With the learned hyperparameters, the mean function's terms included.
    inducing_points_ : ndarray of shape (k, d)
        Those of the "nystroem" covariance and of learning, in the units of X. Stochastic steps with
        neither use none: one row stands there.
    basis_ : FourierFeatures or ndarray of shape (m, d)
        What the functions of the mean are: number and seed of the frequencies, or rows.
    noise_variance_ : float or ndarray of shape (t,)
        Variance of the noise, in squared units of y; one for each output.
    variance_power_ : float
        Power of the ratio of posterior and prior variance of the latent function, at least 1.
    elbo_ : float
        Lower bound on the log evidence of the normalized y, nats, before calibration; of stochastic
        steps the mean of its estimates in the last pass.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound along the way, or its estimates.
    n_iter_ : int
        Passes taken.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Evans and Nair (2020), Theorems 1 and 2, Propositions 1 to 4. Departs from the source:
    its Theorem 3 is not a bound, quadratic bounds take its place; defaults are the forms found
    better, the user guide says which.

    With ``solver="cg"`` an iteration costs O(n m d); memory beyond X is about
    ``8 * (q * m + 4 * q**2 + 2**23)`` bytes, with q = min(m / 2, n, 4096) rows of the
    preconditioner. A stochastic step of b rows, s sampled functions and p support rows costs
    O((b + p) s d + b p^2) whatever n and m; memory is O(m) for coefficients alone, and frequencies
    are drawn anew for every use where they would take over 256 MiB: O(s d^3) more a step where they
    are orthogonal. A prediction costs O(m d + k^2) a row.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm import QSGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> gp = QSGPRegressor(n_basis=200, n_inducing=20, random_state=0).fit(X, y)
    >>> gp.predict([[1.5], [3.0]]).round(1)
    array([1. , 0.1])
    """

    _uses = _USES

    def __init__(
        self,
        kernel=None,
        *,
        likelihood="gaussian",
        solver="cg",
        basis="fourier",
        n_basis=10_000,
        covariance="nystroem",
        n_dense_columns=10,
        augment=False,
        control_variate="interpolating",
        gradient="symmetric",
        n_sampled_basis=1024,
        n_support=256,
        mean=None,
        noise_variance=None,
        n_inducing=256,
        inducing_points="kmeans",
        learn_inducing=True,
        optimizer="auto",
        max_iter=100,
        tol=1e-3,
        batch_size=None,
        learning_rate=None,
        normalize_y=True,
        warm_start=False,
        device=None,
        dtype=None,
        random_state=None,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.solver = solver
        self.basis = basis
        self.n_basis = n_basis
        self.covariance = covariance
        self.n_dense_columns = n_dense_columns
        self.augment = augment
        self.control_variate = control_variate
        self.gradient = gradient
        self.n_sampled_basis = n_sampled_basis
        self.n_support = n_support
        self.mean = mean
        self.noise_variance = noise_variance
        self.n_inducing = n_inducing
        self.inducing_points = inducing_points
        self.learn_inducing = learn_inducing
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.normalize_y = normalize_y
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    def _check_variational_parameters(self):
        super()._check_variational_parameters()
        self._check_choice("likelihood", ("gaussian", "laplace"))

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
            Divide inverse variances by their mean, as weights count rows.
            With Gaussian noise hyperparameters are learned as of weights of 1 on average, where
            they are more: copies of a row have no scatter, and would be evidence of little noise.

        Returns
        -------
        self : QSGPRegressor

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights make no sense, or the kernel has no spectrum.
        DivergenceError
            If the bound is no longer finite, or stochastic steps end at one far below that of no
            steps at all.

        Warns
        -----
        ConvergenceWarning
            If conjugate gradients end by ``max_iter``.
        """
        return self._fit(X, y, sample_weight)

    @available_if(has_partial_fit)
    @all_or_nothing
    def partial_fit(self, X, y, sample_weight=None):
        """Learn from more rows, as new data, by a pass of stochastic steps.

        The first call fits as `fit` does; every later one holds kernel, noise and functions. Rows
        seen before count by their number. Not for ``solver="cg"``, which needs all rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,) or (n, t)
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : QSGPRegressor

        Raises
        ------
        AttributeError
            If ``solver="cg"``.
        ValueError
            If parameters, data or weights make no sense.
        DivergenceError
            As of `fit`. The estimator is then as it was.
        """
        return self._partial_fit(X, y, sample_weight)

    def _is_calibrated(self, rows):
        return self.covariance == "nystroem" and super()._is_calibrated(rows)

    def _split_for_calibration(self, rows, random_state):
        if not self._is_calibrated(rows):
            return rows, None
        return rows.divided(*self._held_out(rows, random_state, _MAX_HELD_OUT))

    def _calibrated_on(self, latents, others):
        if others is None:
            return latents
        latents = replace(latents, power=1.0)
        noise, posterior = latents.state(others.device)["noise"], latents.posterior(others.device)
        X, y, weights = (part.double() for part in others.take(slice(None)))
        prior = posterior.basis.projected_variance(X)[:, None]
        return self._most_likely(latents, noise, y, weights, *posterior.marginals(X), prior)
