"""`SVGPRegressor`: the estimator."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self, overload

from sklearn.gaussian_process.kernels import Kernel

from .._estimators import GPRegressor, all_or_nothing, evidence_at, stream
from .._families import FAMILIES, family_sites
from .._hyperparameters.collapsed_search import CollapsedSearch, learned_jitter
from .._hyperparameters.default_kernels import ROUGHER
from .._hyperparameters.elbo_search import learn_from_best
from .._hyperparameters.initialization import at_points
from .._inference.natural_gradient import NaturalGradientInference
from .._isolation import isolated
from .._noise import RegressionNoise
from .._parameters import OtherThan, ParameterRules, where
from .._sparse import (
    N_INDUCING,
    SPARSE_FOLLOWED,
    fit_posterior,
    optimized,
    takes_every_row,
    update_by_ascent,
)
from .._targets import LIKELIHOODS, VARYING_NOISE
from .._typing import (
    ArrayLike,
    Device,
    Dtype,
    InducingPoints,
    MatrixLike,
    MeanFunction,
    Optimizer,
    RandomStateLike,
    RegressionLikelihood,
    ndarray,
)
from .._variational import (
    MEANS,
    check_regression_parameters,
    check_variational_parameters,
    collapsed_elbo_at,
    converged_elbo_at,
    elbo_attributes,
    family_problem,
    natural_sweep,
    regression_problem,
    regression_summary,
    varying_noise_problem,
)
from ..solvers import Collapsed, Exact, NaturalGradient
from ._steps import MAX_FULL_BATCH, STEPS, USES, StepsLike, posterior_stage

_POINTS = ("n_inducing", "inducing_points", "learn_inducing")
_USES = USES | dict.fromkeys(_POINTS, where(solver=OtherThan(Exact)))
_HAVE_NOISE = where(likelihood=(*LIKELIHOODS, *VARYING_NOISE))
_USES |= dict.fromkeys(("noise_variance", "normalize_y"), _HAVE_NOISE)
_MAX_EXACT_ROWS = 2000
# Noise that varies: every row is a point up to so many, after a first fit of so many points.
_MAX_VARYING_ROWS, _FIRST_POINTS = 1000, 128
_MAX_COLLAPSED = 2e10  # n m^2
_SOLVERS = {"auto": None, "exact": Exact(), "collapsed": Collapsed(), **STEPS}
SolverLike = Literal["auto", "exact", "collapsed"] | StepsLike | Exact | Collapsed


class SVGPRegressor(GPRegressor):
    r"""Gaussian-process regression: exact on few rows, sparse variational on many.

    Up to 2,000 rows with Gaussian noise, the process is exact: L-BFGS-B maximizes the log evidence
    over kernel and noise. On more rows, a Gaussian posterior over the values of the latent function
    at m inducing points summarizes all n rows. With Gaussian noise its optimum has a closed form,
    and the collapsed ELBO, a lower bound on the log evidence, is maximized over the inducing points
    too. For other noise, and for very many rows, natural gradients find the posterior and Adam the
    rest. See the :ref:`user guide <svgp>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent function, in units of the normalized y. Optimization starts
        from its values; its bounds and "fixed" marks are respected. None is a squared exponential
        or a Matern kernel of smoothness 5/2, 3/2 or 1/2, whichever has the highest log evidence on
        up to 1,000 rows. It has one length scale per feature, or one for all features of
        :ref:`sparse X <sparse_X>`; hyperparameters and noise have a prior. Fewer than 15 rows, and
        more than 1,000 rows with a link, have the squared exponential. With
        ``likelihood="heteroscedastic"``, the log noise variance has a kernel of its own, which
        starts as a copy; a `CompoundKernel` gives both, that of the mean first.
    likelihood : str, default="gaussian"
        Distribution of y.

        - ``"gaussian"``: noise of constant variance.
        - ``"heteroscedastic"``: Gaussian noise whose variance varies with X.
        - ``"student_t"`` (4 degrees of freedom) and ``"laplace"``: noise with outliers.
        - ``"poisson"``: counts; ``"negative_binomial"``: counts whose variance exceeds their mean.
        - ``"gamma"``: positive amounts of constant coefficient of variation.
        - ``"beta"``: proportions between 0 and 1.

        The last four have a link: the latent function is the logarithm of the mean of y, and for
        proportions its log odds.
    solver : str or solver, default="auto"
        How the posterior and the hyperparameters are found.

        - ``"exact"``: every row is an inducing point. With Gaussian noise only.
        - ``"collapsed"``: L-BFGS-B maximizes the ELBO of the best posterior, which has a closed
          form with Gaussian noise. Not with "student_t" and "laplace".
        - ``"natural_gradient"``: natural gradients for the posterior, Adam for the rest.
        - ``"gradient"``: Adam for everything.
        - ``"auto"``: with Gaussian noise, exact up to 2,000 rows unless ``n_inducing`` or an array
          of ``inducing_points`` is given, and then collapsed if n m^2 is at most 2e10. With noise
          that varies and with a link, collapsed up to 10,000 rows. Natural gradients otherwise.

        Objects with options are `skgpsvm.solvers.Exact`, `skgpsvm.solvers.Collapsed`,
        `skgpsvm.solvers.NaturalGradient` and `skgpsvm.solvers.Gradient`.
    mean : {"zero", "constant", "linear"}, default=None
        Mean function, in units of the normalized y. Its coefficients have a vague prior, so it
        appears in the kernel as a fixed constant and a fixed linear term. None is "constant"; with
        the default kernel and fewer rows than features, the log evidence chooses between that and
        "linear".
    noise_variance : float, default=None
        Initial noise variance, in squared units of the normalized y; None is 0.1. It must be None
        if the kernel has a `WhiteKernel`, which is then the noise. Not with a link.
    n_inducing : int, default=None
        Number of inducing points, m. None is every row if the process is exact, and for up to
        1,000 rows with noise that varies or a link; otherwise it is 256. More points are more
        accurate and slower. Fewer are used if the data have fewer distinct rows. Ignored if
        ``inducing_points`` is an array.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
        Initial inducing points: k-means centers of the standardized rows, random rows, or the given
        array, in units of X. A string has no effect where every row is a point.
    learn_inducing : bool, default=True
        Whether the inducing points are optimized. They are not where every row is one, nor if they
        have more than a million numbers, m d.
    optimizer : {"auto"}, callable or None, default="auto"
        Whether kernel and noise are learned. None keeps them. A function with the interface of
        `GaussianProcessRegressor` maximizes `log_marginal_likelihood` over ``kernel_.theta``, with
        Gaussian noise. It needs a kernel, with a `WhiteKernel` if noise is to be learned, and
        inducing points stay.
    max_iter : int, default=50
        Maximum number of rounds of twenty steps of L-BFGS-B, or of passes over the rows.
    tol : float, default=5e-3
        Stop when a round gains less, in nats per row, or when a pass changes the posterior means by
        less, relative to their norm. Smaller values take more rounds or passes.
    normalize_y : bool, default=True
        Whether y is first centered and scaled to unit variance. Otherwise y should be of order one,
        as initial values and bounds do not depend on its scale. Not with a link.
    warm_start : bool, default=False
        Whether `fit` starts from the kernel, noise, inducing points and posterior of the last fit,
        and keeps the first three if only few rows were added (:ref:`further_rows`). Changing a
        parameter on which these depend, such as ``kernel``, raises an error.
    device : str or torch.device, default=None
        Device of the computation; None is the CPU. The fitted state is always on the CPU.
    dtype : {"float32", "float64"}, default=None
        Precision of the passes over rows; None is float64.
    random_state : int, RandomState instance or None, default=None
        Seeds k-means, the rows of the first rounds, and the minibatches.

    Attributes
    ----------
    kernel_ : Kernel
        Kernel with the learned hyperparameters, including the terms of the mean function. With
        noise that varies, a `CompoundKernel` of the mean's and that of the log noise variance.
    inducing_points_ : ndarray of shape (m, d)
        Inducing points, in units of X.
    noise_variance_ : float or ndarray of shape (t,)
        Noise variance of each output, in squared units of y, without the known variances that `fit`
        was given. Gaussian noise is at least a millionth of the variance of y. Noise that varies
        has this variance where its latent function is zero, as far from all rows;
        `predict_noise_variance` has the variance at rows. Not with a link.
    dispersion_ : float or ndarray of shape (t,)
        Of "negative_binomial", "gamma" and "beta" only: a in the variance of y at the mean m, which
        is m + a m^2, a m^2 and a / (1 + a) m (1 - m). With ``optimizer=None``, it is what a tenth
        of the variance of the link of y implies.
    elbo_ : float
        ELBO, a lower bound on the log evidence of the normalized y, nats.
    objective_curve_ : ndarray of shape (n_iterations,)
        ELBO after each iteration. The collapsed ELBO has row weights of at most 1 on average. If
        the default kernel is learned, it includes the log prior of the hyperparameters.
    n_iter_ : int
        Number of rounds or passes.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X has names and all are strings.

    Notes
    -----
    Source: Rasmussen and Williams (2006), section 5.4.1, for the exact process; Titsias (2009) for
    the closed form; Hensman et al. (2013) for natural gradients; Khan and Lin (2017) for those of
    other likelihoods; Lazaro-Gredilla and Titsias (2011) for noise that varies.

    A step of the exact process costs O(n^3). Memory is about ``100 * n**2`` bytes, and that of the
    fitted model ``8 * n**2``. A round of the closed form costs O(n m^2) for each of its twenty
    steps and a few more. Memory beyond X is about ``8 * (6 * m**2 + 6 * 4096 * m)`` bytes, plus
    caches of up to 256 MiB of features and 256 MiB of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm import SVGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> gp = SVGPRegressor(n_inducing=20, random_state=0).fit(X, y)
    >>> mean, std = gp.predict([[1.5], [9.0]], return_std=True)
    >>> mean.round(1), std.round(1)
    (array([1. , 0.3]), array([0.1, 0.8]))
    """

    _takes_sparse = True
    _rules = ParameterRules(_USES, SPARSE_FOLLOWED, solvers=_SOLVERS)
    _default_dtype = "float64"

    # Fitted attributes
    kernel_: Kernel
    inducing_points_: ndarray
    noise_variance_: float | ndarray
    dispersion_: float | ndarray
    elbo_: float

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        likelihood: RegressionLikelihood = "gaussian",
        solver: SolverLike = "auto",
        mean: MeanFunction | None = None,
        noise_variance: float | None = None,
        n_inducing: int | None = None,
        inducing_points: InducingPoints = "kmeans",
        learn_inducing: bool = True,
        optimizer: Literal["auto"] | Optimizer | None = "auto",
        max_iter: int = 50,
        tol: float = 5e-3,
        normalize_y: bool = True,
        warm_start: bool = False,
        device: Device = None,
        dtype: Dtype = None,
        random_state: RandomStateLike = None,
    ) -> None:
        self.kernel = kernel
        self.likelihood = likelihood
        self.solver = solver
        self.mean = mean
        self.noise_variance = noise_variance
        self.n_inducing = n_inducing
        self.inducing_points = inducing_points
        self.learn_inducing = learn_inducing
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.normalize_y = normalize_y
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state

    # Fitting

    def _check_parameters(self):
        n_kernels = 2 if self._noise_varies else 1
        check_variational_parameters(
            self,
            means=(*MEANS, None),
            takes_function=self.likelihood == "gaussian",
            chooses_number=True,
            n_kernels=n_kernels,
        )
        check_regression_parameters(self, (*LIKELIHOODS, *VARYING_NOISE, *FAMILIES))
        refused = () if self.likelihood == "gaussian" else (Exact, Collapsed)
        if self._learns_on_elbo:
            refused = Exact
        if isinstance(self._solver(), refused):
            name = "exact" if isinstance(self._solver(), Exact) else "collapsed"
            raise ValueError(
                f"solver={name!r} needs Gaussian noise; with likelihood={self.likelihood!r} "
                "use 'natural_gradient' or 'auto'."
            )

    @property
    def _noise_varies(self):
        return self.likelihood in VARYING_NOISE

    @property
    def _learns_on_elbo(self):
        return self._noise_varies or not self._has_noise()

    @all_or_nothing
    def partial_fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Self:
        """Update the posterior with more rows.

        The first call does the same as `fit`, with its rows as inducing points if they are few.
        Every further call keeps kernel, noise, inducing points and the scale of y, and takes the
        posterior so far as the prior of its rows, so a row counts as often as it is passed. With
        Gaussian noise the update is exact, given the inducing points.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,) or (n, t)
        sample_weight : array-like of shape (n,), default=None
        noise_variance : array-like of shape (n,) or (n, t), default=None
            Known variances of the noise of these rows, as in `fit`.

        Returns
        -------
        self : SVGPRegressor
        """
        return stream(self, X, y, sample_weight, noise_variance=noise_variance)

    @property
    def log_marginal_likelihood_value_(self) -> float:
        """The attribute ``elbo_``, by its name in `GaussianProcessRegressor`."""
        return self.elbo_

    @overload
    def log_marginal_likelihood(
        self,
        theta: ArrayLike | None = None,
        eval_gradient: Literal[False] = False,
        *,
        X: MatrixLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> float: ...

    @overload
    def log_marginal_likelihood(
        self,
        theta: ArrayLike | None = None,
        *,
        eval_gradient: Literal[True],
        X: MatrixLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> tuple[float, ndarray]: ...

    @isolated()
    def log_marginal_likelihood(
        self,
        theta: ArrayLike | None = None,
        eval_gradient: bool = False,
        *,
        X: MatrixLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> float | tuple[float, ndarray]:
        """Return the log evidence, or a lower bound on it, also at other hyperparameters.

        It is that of the normalized y: the exact log evidence if every row is an inducing point and
        the noise is Gaussian, and otherwise the ELBO of the best posterior. Inducing points are
        held fixed, and so is the likelihood, except for a `WhiteKernel` of the kernel. If several
        processes share the rows, all must call it.

        Parameters
        ----------
        theta : array-like of shape (k,), default=None
            Logarithms of the kernel's free hyperparameters. None is ``kernel_.theta``.
        eval_gradient : bool, default=False
            Whether to return the derivatives in ``theta`` too.
        X : array-like of shape (n, d), default=None
            The rows of `fit`, whose y the model does not keep. None returns ``elbo_``; it needs
            ``theta=None`` and no gradient.
        y : array-like of shape (n,) or (n, t), default=None
        sample_weight : array-like of shape (n,), default=None
        noise_variance : array-like of shape (n,) or (n, t), default=None
            Known variances of the noise, as in `fit`.

        Returns
        -------
        value : float
            Nats, summed over the outputs.
        gradient : ndarray of shape (k,), optional

        Raises
        ------
        ValueError
            If ``theta`` has another length than ``kernel_.theta``, or rows are missing.

        Notes
        -----
        Source: Rasmussen and Williams (2006), eqs. 5.8 and 5.9; Titsias (2009), eq. 9. Other noise
        has no closed form: natural gradients find the posterior, until their steps gain less than
        1e-9 nats per row. Its expectations are by quadrature, whose error the gradient of Student-t
        noise shows: it is about 1 % off.
        """
        data = X, y, sample_weight
        return evidence_at(self, theta, eval_gradient, *data, noise_variance=noise_variance)

    def _evidence_at(self, *point):
        """Return the ELBO and its gradient in theta; see `evidence_at`."""
        if self._likelihood == "gaussian":
            return collapsed_elbo_at(*point)
        if self._likelihood in FAMILIES:
            return converged_elbo_at(family_sites(self._likelihood, self._n_outputs), *point)
        noise = RegressionNoise(likelihood=self._likelihood, n_outputs=self._n_outputs)
        return converged_elbo_at(noise.sites(), *point)

    def _make_likelihood(self):
        if self._has_noise():
            return self._noise_model.sites(self.noise_variance)
        return family_sites(self.likelihood, self._n_outputs)

    def _is_exact(self, rows):
        """Return whether every row is an inducing point."""
        if self._solver() is not None:
            return isinstance(self._solver(), Exact)
        return self.likelihood == "gaussian" and takes_every_row(self, rows, _MAX_EXACT_ROWS)

    def _chosen_solver(self, n_rows, n_points):
        """Return the solver of a fit that is not exact, with "auto" resolved."""
        if self._solver() is not None:
            return self._solver()
        small = n_rows * n_points**2 <= _MAX_COLLAPSED
        return Collapsed() if self.likelihood == "gaussian" and small else NaturalGradient()

    def _start(self, sparse):
        """Return the model to start from; that of a warm start may need other points."""
        start = sparse.problem.start
        if start is None:
            return sparse.initial_model()
        Z = sparse.points_of(start)
        return start if Z is start.Z else replace(start, Z=Z, mean=None, root=None)

    def _fit_model(self, problem):
        n_rows = problem.rows.n_rows
        if self._learns_on_elbo:
            return self._fit_on_elbo(problem)
        sparse = regression_problem(self, problem, self.mean, rougher=ROUGHER)
        is_exact = self._is_exact(problem.rows)
        if is_exact:
            sparse = replace(sparse, n_inducing=n_rows, every_row=True)
        start = self._start(sparse)
        if callable(self.optimizer):
            if problem.learns:
                start = optimized(self.optimizer, collapsed_elbo_at, start, problem.rows)
            sparse = replace(sparse, learned=())
        solver = Exact() if is_exact else self._chosen_solver(n_rows, len(start.Z))
        if isinstance(solver, (Collapsed, Exact)):
            return self._fit_collapsed(sparse, start)
        search = CollapsedSearch(sparse, start, learned_jitter(problem.rows, collapsed=False))
        is_fresh = search.is_needed and search.start.mean is None
        model = search.start_of_other_noise() if is_fresh else search.start
        stage = posterior_stage(sparse, model, solver, in_batches=self.likelihood == "gaussian")
        return fit_posterior(sparse, model, stage, regression_summary)

    def _fit_collapsed(self, sparse, start):
        def stage_of(model):
            return sparse.inference(model, NaturalGradientInference, [])

        def evaluate(model):
            stage = stage_of(model)
            state = stage.init(model.state(sparse.rows.device))
            stage.step(state)
            return [model.at(state)], [regression_summary(stage.at(state), state)]

        jitter = learned_jitter(sparse.rows, collapsed=True)
        search, curve = CollapsedSearch(sparse, start, jitter, evaluate), ()
        model = search.start
        if search.is_needed:
            model, curve = search.learn(self.max_iter)
        return fit_posterior(sparse, model, stage_of(model), regression_summary, curve)

    def _fit_on_elbo(self, problem):
        n_rows = problem.rows.n_rows
        solver = self._solver() or (Collapsed() if n_rows <= MAX_FULL_BATCH else NaturalGradient())
        collapsed = isinstance(solver, Collapsed)
        jitter = learned_jitter(problem.rows, collapsed)
        make_problem = varying_noise_problem if self._noise_varies else family_problem

        def start_at(n_points, problem=problem):
            return make_problem(self, problem, self.mean, n_points, jitter)

        every_row = collapsed and takes_every_row(self, problem.rows, _MAX_VARYING_ROWS)
        sparse, starts = start_at(n_rows if every_row else self.n_inducing or N_INDUCING)
        if not collapsed:
            stage = posterior_stage(sparse, starts[0], solver, in_batches=False)
            return fit_posterior(sparse, starts[0], stage, regression_summary)
        if every_row and self._noise_varies and len(starts) > 1 and n_rows > _FIRST_POINTS:
            # The second start is near constant noise. The first is the optimum of few points,
            # as a mean that follows every row leaves no noise that could vary.
            prefix = f"{problem.prefix}{_FIRST_POINTS} points: "
            model, _ = learn_from_best(*start_at(_FIRST_POINTS, replace(problem, prefix=prefix)))
            starts[0] = at_points(model, starts[0].Z, sparse.likelihood, problem.rows)
        model, curve = learn_from_best(sparse, starts)
        stage = sparse.inference(model, NaturalGradientInference, [])
        return fit_posterior(sparse, model, stage, regression_summary, curve)

    def _update_model(self, problem):
        return update_by_ascent(self, problem, natural_sweep, regression_summary, self.tol)

    def _fitted_attributes(self, models, summaries, streamed=False):
        [(elbo, left_out)] = summaries
        if streamed:
            elbo += self.elbo_
            left_out = left_out and self._left_out.joined(left_out)
        found = elbo_attributes(self, models, elbo) | {"_left_out": left_out}
        return found | self._noise_attributes(models[0].state("cpu")["noise"])
