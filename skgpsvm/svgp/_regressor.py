"""`SVGPRegressor`: the estimator."""

from dataclasses import replace

import numpy as np
import torch
from sklearn.callback import with_callbacks
from sklearn.utils import check_random_state

from .._distributed import n_ranks
from .._estimator import TorchRegressor, to_tensor
from .._sites import LikelihoodSites
from .._torch_kernels import torch_kernel
from ..likelihoods import Gaussian, Laplace, StudentT
from ._base import SVGP, scaled_lengths
from ._collapsed import BY_ADAM, BY_LBFGS, JITTER, PARTS, CollapsedBound, CollapsedLearning

_DOF = 4.0  # of Student's t
_LIKELIHOODS = {
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
_START_NOISE = 0.1
_MOST_COLLAPSED = 2e10  # n m^2
_STAGES = ((2000, 2), (8000, 3))  # rows and rounds
_MANY_ROWS = 5000  # from which on a slow start pays
# Factors of the length scales to start from in turn, until the bound is above that of mere noise.
_LENGTHS = (1.0, 0.7, 1.4, 0.5)
_LEAST_GAIN = 0.02  # nats a row


class SVGPRegressor(TorchRegressor, SVGP):
    r"""Sparse variational Gaussian-process regression.

    A Gaussian posterior over the values of the latent function at m inducing points stands for all
    n rows. With Gaussian noise the posterior is known in closed form, and kernel, noise and
    inducing points maximise what is left, a lower bound on the evidence, by L-BFGS-B; else, and
    for many rows, natural gradients find the posterior and Adam the rest. See the
    :ref:`user guide <svgp>`.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels, default=None
        Prior covariance of the latent function, in units of the normalised y. Its values, bounds
        and "fixed" marks rule the optimisation. None is a squared exponential with a length scale
        for each feature.
    likelihood : {"gaussian", "student_t", "laplace"}, default="gaussian"
        Noise; the second (four degrees of freedom) and third bear outliers.
    inference : {"auto", "collapsed", "natural_gradient", "gradient"}, default="auto"
        The closed form (Gaussian noise only); natural gradients for the posterior; or Adam for
        everything. "auto" is the closed form where it applies and n m^2 is at most 2e10, else
        natural gradients.
    mean : {"zero", "constant", "linear"}, default="zero"
        Mean function, in units of the normalised y: coefficients with a vague prior, which are
        part of the kernel as a fixed constant and a fixed linear term.
    noise_variance : float, default=None
        To start from, in squared units of the normalised y; None is 0.1.
    n_inducing : int, default=256
        Number of inducing points, m; fewer where the data have fewer distinct rows.
    inducing_points : {"kmeans", "random"} or array-like of shape (m, d), default="kmeans"
    learn_inducing : bool, default=True
        Whether the inducing points are moved.
    optimizer : {"auto"} or None, default="auto"
        Whether kernel and noise are learned.
    max_iter : int, default=50
        Rounds of twenty steps of L-BFGS-B, or passes over the rows, at most.
    tol : float, default=5e-3
        Stop when a round gains less, in nats a row; or when a pass changes the posterior means by
        less, relative to their norm.
    batch_size : int, default=None
        Rows in a minibatch of natural gradients and of Adam. None is all rows for natural gradients
        up to 10,000 rows, else 1024.
    learning_rate : float, default=0.05
        Step size of Adam.
    normalize_y : bool, default=True
        Whether y is centred and scaled to unit variance first.
    warm_start : bool, default=False
        Whether `fit` starts from the kernel, noise, inducing points and posterior of the last one.
    device : str or torch.device, default=None
        Where to compute; None is the CPU. Fitted state is on the CPU in any case.
    dtype : {"float32", "float64"}, default=None
        Of the passes over rows; None is float64.
    random_state : int, RandomState instance or None, default=None
        Rules k-means, the rows of the first rounds, and minibatches.

    Attributes
    ----------
    kernel_ : Kernel
        With the learned hyper-parameters, the mean function's terms included.
    inducing_points_ : ndarray of shape (m, d)
        In the units of X.
    noise_variance_ : float or ndarray of shape (t,)
        Variance of the noise, in squared units of y; one for each output.
    elbo_ : float
        Lower bound on the log evidence of the normalised y, nats.
    objective_curve_ : ndarray of shape (n_iterations,)
        The bound along the way.
    n_iter_ : int
        Rounds or passes taken.
    n_features_in_ : int
        Number of features, d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    Source: Titsias (2009) for the closed form; Hensman et al. (2013) for natural gradients; Khan
    and Lin (2017) for those of other likelihoods.

    A round of the closed form costs O(n m^2) for each of its twenty steps and a few more. Memory
    beyond X is about ``8 * (6 * m**2 + 6 * 4096 * m)`` bytes, and up to 256 MiB of features and 256
    MiB of rows are held where they fit.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpsvm import SVGPRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> gp = SVGPRegressor(n_inducing=20, random_state=0).fit(X, y)
    >>> mean, std = gp.predict([[1.5], [9.0]], return_std=True)
    >>> mean.round(1), std.round(1)
    (array([1. , 0.2]), array([0.1, 0.8]))
    """

    def __init__(
        self,
        kernel=None,
        *,
        likelihood="gaussian",
        inference="auto",
        mean="zero",
        noise_variance=None,
        n_inducing=256,
        inducing_points="kmeans",
        learn_inducing=True,
        optimizer="auto",
        max_iter=50,
        tol=5e-3,
        batch_size=None,
        learning_rate=0.05,
        normalize_y=True,
        warm_start=False,
        device=None,
        dtype=None,
        random_state=None,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.inference = inference
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

    # Fitting

    def _check_parameters(self):
        self._check_choice("likelihood", tuple(_LIKELIHOODS))
        self._check_choice("inference", ("auto", "collapsed", "natural_gradient", "gradient"))
        self._check_bool("normalize_y")
        self._check_number("noise_variance", 0, optional=True)
        self._check_svgp_parameters()
        if self.noise_variance == 0:
            raise ValueError("noise_variance=0 must be positive, or None.")
        if self.inference == "collapsed" and self.likelihood != "gaussian":
            raise ValueError(
                f"inference='collapsed' needs Gaussian noise; with likelihood={self.likelihood!r} "
                "use 'natural_gradient' or 'auto'."
            )

    def _torch_options(self, X):
        device, dtype = super()._torch_options(X)
        return device, dtype if self.dtype else torch.float64

    @with_callbacks
    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            A float32 or float64 memmap is read in chunks, never copied whole.
        y : array-like of shape (n,) or (n, t)
            Several outputs share kernel and inducing points.
        sample_weight : array-like of shape (n,), default=None
            Multiplies the log density of each row: 0 removes it, an integer repeats it.

        Returns
        -------
        self : SVGPRegressor

        Raises
        ------
        TypeError
            If the kernel is unknown.
        ValueError
            If parameters, data or weights make no sense.
        DivergenceError
            If the bound is no longer finite. The estimator is then not fitted or, with
            ``warm_start``, as it was.
        """
        return self._fit(X, y, sample_weight)

    @with_callbacks
    def partial_fit(self, X, y, sample_weight=None):
        """Learn from more rows, as new data.

        The first call fits as `fit` does. Every later one holds kernel, noise, inducing points and
        the scale of y, and takes the posterior so far as the prior of its rows: a row counts as
        often as it is passed. With Gaussian noise that is exact.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,) or (n, t)
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : SVGPRegressor
        """
        return self._partial_fit(X, y, sample_weight)

    def _sites(self):
        var = _START_NOISE if self.noise_variance is None else self.noise_variance
        t = len(self._y_mean)
        return LikelihoodSites(_LIKELIHOODS[self.likelihood](np.full(t, var)), t)

    def _is_collapsed(self, start, rows):
        if self.inference == "auto":
            small = rows.n_rows * len(start.Z) ** 2 <= _MOST_COLLAPSED
            return self.likelihood == "gaussian" and (small or n_ranks() > 1)
        return self.inference == "collapsed"

    def _trained(self, start, rows):
        return [] if self._is_collapsed(start, rows) else super()._trained(start, rows)

    def _batch_size(self, start, rows):
        return None if self._is_collapsed(start, rows) else super()._batch_size(start, rows)

    def _prepared(self, run, name, start, rows, scaler, random_state):
        """Learning on the collapsed bound: all of it there, else a start on few rows."""
        collapsed, fresh = self._is_collapsed(start, rows), start.mean is None
        if collapsed:
            start = replace(start, jitter=JITTER[rows.dtype])
        trained = [part for part in super()._trained(start, rows) if part in PARTS]
        if not trained or not (collapsed or fresh):
            return start, []
        bounds = torch.tensor(start.kernel.bounds)
        scale = torch.tensor(scaler.scale_, device=rows.device)

        def learned(state):
            variance = state["noise"].exp().cpu()
            sites = LikelihoodSites(_LIKELIHOODS[self.likelihood](variance), 1)
            return start.at({**state, "noise": sites.parameters()})

        def attributes(state):
            found = learned(state)
            inference = self._inference(found, rows, scaler, torch.Generator())
            swept = inference.initial(found.state(rows.device))
            inference.step(swept)
            findings = self._findings(inference.at(swept), swept)
            return self._attributes([found.at(swept)], [findings])

        def climb(state, n_rows, rounds, end="finished", attempt="", maximize=BY_LBFGS):
            some = rows.subset(n_rows, random_state) if n_rows < rows.n_rows else rows
            bound = CollapsedBound(torch_kernel(start.kernel), some)
            learning = CollapsedLearning(bound, trained, bounds, scale, self.tol, maximize)
            stage = f"{name}hyper-parameters, {some.n_rows} rows{attempt}"
            ends = {end: learning.finished}
            if collapsed:
                ends["attributes"] = attributes
            curve = run.stage(stage, learning.start(state), learning.step, rounds, **ends)
            return curve, bound.gain_over_noise(state["value"])

        state = start.state(rows.device)
        state["noise"] = self._variance_of_noise(state["noise"]).log()
        if fresh:
            tried = []
            for factor in _LENGTHS if "theta" in trained else _LENGTHS[:1]:
                theta = torch.tensor(scaled_lengths(start.kernel, factor), device=rows.device)
                tried.append({**state, "theta": theta})
                (n_rows, rounds), attempt = _STAGES[0], f", lengths {factor}"
                if rows.n_rows > _MANY_ROWS:
                    climb(tried[-1], n_rows, 1, attempt=f"{attempt}, Adam", maximize=BY_ADAM)
                _, gain = climb(tried[-1], n_rows, rounds, attempt=attempt)
                if gain > _LEAST_GAIN:
                    break
            state = tried[-1] if gain > _LEAST_GAIN else tried[0]
        curve = []
        if collapsed:
            for n_rows, rounds in _STAGES[1:]:
                if fresh and n_rows < rows.n_rows:
                    climb(state, n_rows, rounds)
            curve, _ = climb(state, rows.n_rows, self.max_iter, "converged")
        return learned(state), curve

    def _variance_of_noise(self, parameters):
        """Of the normalised outputs, (t,), at the likelihood's parameters."""
        likelihood = self._sites().at(parameters).likelihood
        return likelihood.predict(*torch.zeros(2, len(self._y_std)).to(parameters))[1]

    def _attributes(self, latents, bounds, streamed=False):
        noise_variance = self._variance_of_noise(latents[0].state("cpu")["noise"]).numpy()
        noise_variance = self._outputs(noise_variance * self._y_std**2)
        shared = super()._attributes(latents, bounds, streamed)
        return {**shared, "noise_variance_": noise_variance}

    # Prediction

    def latent_mean_and_variance(self, X):
        """Posterior mean and variance of the latent functions; no noise is added.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        mean, variance : ndarray of shape (n, t)
            In units of y and squared units of y.
        """
        mean, variance = super().latent_mean_and_variance(X)
        return mean * self._y_std + self._y_mean, variance * self._y_std**2

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
            In units of y.
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
        mean, variance = self.latent_mean_and_variance(X)
        if return_cov:
            return self._outputs(mean), self._outputs(self._cov(X))
        if return_std:
            return self._outputs(mean), self._outputs(np.sqrt(variance + self.noise_variance_))
        return self._outputs(mean)

    def _cov(self, X):
        X = self._check_new(X)
        device, dtype = self._torch_options(X)
        cov = self._latents[0].posterior(device).cov(to_tensor(X, device, dtype))
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
        noise = _STANDARD_NOISE[self.likelihood](rng, latent.shape) * std
        return np.moveaxis(self._outputs(latent + noise), 0, -1)
