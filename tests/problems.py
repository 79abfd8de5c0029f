"""Small problems that several tests share, and helper functions that fit them."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import oracles
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits, make_friedman1
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from torch import nn

from skgpsvm import DecoupledGPRegressor, _bases
from skgpsvm._bases import Dictionary, KernelBases
from skgpsvm._data import WeightedDataset
from skgpsvm._hinge_sites import BinarySites, ContrastSites
from skgpsvm._inference import decoupled, exact
from skgpsvm._inference.coordinate_ascent import CoordinateAscent
from skgpsvm._inference.decoupled import DecoupledInference
from skgpsvm._posteriors import InducingPosterior, WhitenedBasis
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.additive._terms import TermNames
from skgpsvm.kernels import MultiscaleRBF
from skgpsvm.likelihoods import Gaussian

JITTER = 1e-6
HINGES = {
    "binary": BinarySites,
    "hard": partial(ContrastSites, 3, "hard"),
    "soft": partial(ContrastSites, 3, "soft"),
}
# Transformations of features after which every model must give finite predictions.
EDGES = {
    "rows all alike": lambda X: np.tile(X[:1], (len(X), 1)),
    "duplicated rows": lambda X: np.repeat(X[: len(X) // 2], 2, axis=0),
    "a constant feature": lambda X: np.c_[X, np.full(len(X), 7.0)],
    "one feature": lambda X: X[:, :1],
    "fewer rows than points": lambda X: X[:5],
    "two rows": lambda X: X[:2],
    "tiny": lambda X: 1e-12 * X,
    "huge": lambda X: 1e12 * X,
    "far from zero": lambda X: X + 1e6,
    "single precision": lambda X: X.astype(np.float32),
}


def t64(values):
    return torch.tensor(values, dtype=torch.float64)


def codes(values):
    return torch.as_tensor(np.asarray(values))


def assert_all_close(found, expected, **tolerances):
    """Require that arrays are close to others, one by one."""
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, **tolerances)


def assert_all_equal(found, expected):
    """Require that arrays are equal to others, one by one."""
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one, other)


def rows_of(X, y, weights=None, dtype=torch.float64):
    weights = np.ones(len(X)) if weights is None else weights
    return WeightedDataset(X, y, weights, torch.device("cpu"), dtype)


def weighted_rows(n=50, d=3, seed=0):
    """Return rows sorted as by `merged_rows`, class codes, and weights, every third of them 0."""
    rng = np.random.RandomState(seed)
    weights = rng.uniform(0.5, 2, size=n)
    weights[::3] = 0
    X, y = rng.normal(size=(n, d)), rng.randint(3, size=n)
    return X[np.argsort(X[:, 0])], y, weights


def ascent_of(hinge, kernel, X, y, Z, weights=None, prior=None):
    basis = WhitenedBasis(torch_kernel(kernel), t64(kernel.theta), t64(Z))
    return CoordinateAscent(hinge, basis, rows_of(X, y, weights), prior=prior)


def swept(ascent, n_sweeps, state=None):
    """Return the state after some sweeps, from a given state or the prior."""
    state = ascent.init() if state is None else state
    for _ in range(n_sweeps):
        ascent.sweep(state)
    return state


def weights_of(state):
    """Return means and roots of the weights."""
    return state.mean, state.root


def undamped(ascent, mean, root):
    """Return the state at given moments of the weights whose next step is undamped."""
    return replace(ascent.init(mean, root), n_steps=0)


def upper(cov):
    """Return the upper triangular R with R R^T = cov."""
    return torch.linalg.cholesky(cov.flip(-2, -1)).flip(-2, -1)


def moments(ascent, state, X):
    """Return latent means and variances at rows."""
    return InducingPosterior(ascent.basis, state.mean, state.root).marginals(t64(X))


def ring(n, n_classes, seed=0):
    """Return overlapping classes around a circle: X (n, 2), codes (n,)."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    angle = 2 * np.pi * y / n_classes
    return np.stack([np.cos(angle), np.sin(angle)], 1) + 0.7 * rng.normal(size=(n, 2)), y


class Unwhitened:
    """Tiny problem of the specification, with its dense oracle at the package's jitter."""

    def __init__(self, T, var=1.0):
        self.T, self.kernel = T, ConstantKernel(var) * RBF(1.0)
        self.parts = oracles.precompute(T.X, T.Z, var=var, jitter=JITTER * var)
        self.chol = np.linalg.cholesky(self.parts[0])

    def ascent(self, hinge, weights=None):
        return ascent_of(hinge, self.kernel, self.T.X, self.T.y, self.T.Z, weights)

    def start(self, ascent):
        """Return the state at the problem's own moments of the inducing values."""
        mu, chol = np.atleast_2d(self.T.mu), self.T.chol.reshape(-1, 2, 2)
        mean, root = (
            np.linalg.solve(self.chol, mu[..., None])[..., 0],
            np.linalg.solve(self.chol, chol),
        )
        return undamped(ascent, t64(mean), upper(t64(root @ root.transpose(0, 2, 1))))

    def moments(self, state):
        """Return means and covariances of the inducing values."""
        mean, root = state.mean.numpy(), self.chol @ state.root.numpy()
        return mean @ self.chol.T, root @ root.transpose(0, 2, 1)


class FixedContrast(ContrastSites):
    """Hinge of every class against the next one, undamped: concave, with a unique optimum."""

    def __init__(self, n_classes=3):
        super().__init__(n_classes, "hard")

    def step(self, n_steps):
        return 1.0

    def active_latents(self, y, mean):
        return torch.stack([y, (y + 1) % self.n_latents], 1)


def waves(n=80, d=3, seed=0, noise=0.1):
    """Return rows, and targets: a smooth function of the first two features, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + noise * rng.normal(size=n)


def sinc(n=500, seed=0, noise=0.1):
    """Return rows, targets and function of the decoupled GPs' specification, section 8.9."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-5, 5, size=(n, 1))
    f = np.sinc(X[:, 0])
    return X, f + noise * rng.normal(size=n), f


# Data R of the specification of decoupled GPs, section 8. A basis is a point followed by the
# logarithms of its multipliers.
R = SimpleNamespace(
    X=t64([(-1, 0.5), (0, -0.5), (0.5, 1), (1.5, 0), (-0.5, -1)]),
    Y=t64((0.3, -0.2, 0.8, 0.1, -0.6))[:, None],
    X_new=t64([(0.25, 0.25), (2, -1)]),
    rho=1.2,
    noise=0.1,
    kernel=ConstantKernel(1.2**2) * MultiscaleRBF([0.9, 1.3]),
    multipliers=t64([(1, 1), (1.25, 0.9)]),
    alpha=torch.cat(
        [t64([(-1, 0.5), (0.5, 1), (1, -0.5)]), t64([(1, 1), (0.8, 1.2), (1.5, 0.7)]).log()], 1
    ),
)
R.beta = torch.cat([t64([(0, -0.5), (1, 0.5)]), R.multipliers.log()], 1)


def unit_gram(A, B):
    """Return the Gram matrix of bases of norm one, with the length scales of data R."""
    return t64(MultiscaleRBF([0.9, 1.3])(A.numpy(), B.numpy()))


def gaussian_sites(noise=R.noise, t=1):
    return LikelihoodSites(Gaussian(np.full(t, noise)), t)


def begun_solve(kernel, Z, bases, rows, noise, tol=1e-10, row_shares=None, kind=DecoupledInference):
    """Return the inference at given bases, and its initial state."""
    tk, theta = torch_kernel(kernel), t64(kernel.theta)
    basis = WhitenedBasis(tk, theta, t64(Z), _bases.JITTER)
    index = torch.arange(len(bases)) % len(rows)
    parts = basis, KernelBases(tk, theta, t64(bases)), rows
    sites = gaussian_sites(noise, rows.take(slice(0, 1))[1].shape[1])
    inference = kind(sites, *parts, index, tol, row_shares)
    return inference, inference.init({"theta": theta})


def solve_of(kernel, Z, bases, X, y, noise, weights=None, **options):
    """Return the inference at given bases, and its final state."""
    rows = rows_of(X, y.reshape(len(X), -1), weights)
    inference, state = begun_solve(kernel, Z, bases, rows, noise, **options)
    for _ in range(200):
        inference.step(state)
        if inference.converged(state):
            return inference, state
    raise AssertionError("no convergence")


def set_constants(monkeypatch, **values):
    """Set fields of the ``DEFAULTS`` of `DecoupledInference` and `ExactInference`."""
    for module in (decoupled, exact):
        monkeypatch.setattr(module, "DEFAULTS", replace(module.DEFAULTS, **values))


def given(kernel, Z, **parameters):
    """Return a decoupled regressor with fixed hyperparameters and inducing points Z."""
    fixed = {"optimizer": None, "learn_inducing": False, "normalize_y": False, "tol": 1e-10}
    fixed["mean"] = "zero"
    return DecoupledGPRegressor(kernel, inducing_points=Z, **{**fixed, **parameters})


def finite_bases(kind):
    """Return seven bases, their kernel, and prior precisions (2, 7, 7) of two latents' weights."""
    rng = np.random.default_rng(0)
    kernel, points = 1.5 * RBF([0.7, 2.0]), 2 * rng.normal(size=(7, 2))
    parts = torch_kernel(kernel), t64(kernel.theta), t64(points)
    if kind is KernelBases:
        return kind(*parts), kernel, np.stack([kernel(points)] * 2)
    precisions = rng.uniform(0.5, 3, (2, 7))
    return Dictionary(*parts, t64(precisions)), kernel, precisions[:, None] * np.eye(7)


def friedman(n=1000, seed=0, noise=1.0):
    return make_friedman1(n, n_features=6, noise=noise, random_state=seed)


def few_valued(n, seed=0):
    """Return rows with three features, two of which have few distinct values, and targets."""
    rng = np.random.RandomState(seed)
    data = np.c_[rng.randint(2, size=n), rng.randint(5, size=n) ** 2, rng.uniform(size=n)]
    return data, data[:, 0] - np.sqrt(data[:, 1]) + np.sin(4 * data[:, 2]) + rng.normal(size=n)


class WithNoise(nn.Sequential):
    """Network of d features whose layers behave differently in training."""

    def __init__(self, d=4, n_outputs=5):
        super().__init__(
            nn.Linear(d, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(16, n_outputs),
        )


class Images(nn.Sequential):
    """Small network for digits of shape (1, 8, 8)."""

    def __init__(self, n_filters=8, n_outputs=16):
        super().__init__(
            nn.Conv2d(1, n_filters, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(9 * n_filters, n_outputs),
        )


def images():
    """Return images of digits, (n, 1, 8, 8) with pixels in [0, 1], and their labels."""
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32).reshape(-1, 1, 8, 8), y


def shifted(batch):
    """Return a batch of rows with noise."""
    return batch + 0.1 * torch.randn_like(batch)


class Source:
    """Rows in memory that can only be sliced, as those of a file.

    Parameters
    ----------
    rows : ndarray
    chunks : tuple, optional
        Numbers of rows and columns in a chunk.

    Attributes
    ----------
    read : int
        Number of rows that were read.
    """

    def __init__(self, rows, chunks=None):
        self._rows, self.shape, self.dtype, self.read = rows, rows.shape, rows.dtype, 0
        if chunks is not None:
            self.chunks = chunks

    def __getitem__(self, part):
        assert isinstance(part, slice)
        rows = self._rows[part]
        self.read += len(rows)
        return rows

    def __reduce__(self):
        raise AssertionError("a source was pickled")


def every(d):
    """Return the `RequestedTerms` of a model with an effect of each of d numbers."""
    return TermNames(()).requested(None, np.zeros(d, bool))


def average_information(cov, theta, targets):
    """Return the average information (k, k) of a covariance, by central differences.

    ``cov`` takes a dict of hyperparameters; those of ``theta`` come one after the other.
    """
    sizes = [own.numel() for own in theta.values()]

    def at(vector):
        parts = zip(theta.items(), vector.split(sizes), strict=True)
        return cov({name: part.view_as(own) for (name, own), part in parts})

    point = torch.cat([own.reshape(-1) for own in theta.values()])
    C, steps = at(point), 1e-5 * torch.eye(len(point), dtype=point.dtype)
    alpha = torch.linalg.solve(C, targets)
    moves = torch.stack([(at(point + step) - at(point - step)) @ alpha / 2e-5 for step in steps])
    return 0.5 * moves @ torch.linalg.solve(C, moves.T)
