"""Peers from other libraries, trained as in their manuals, with scikit-learn's interface."""

import copy
from abc import ABC, abstractmethod
from importlib.util import find_spec

import gpytorch
import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.model_selection import train_test_split

from ._harness import Method

RATE, _BATCH, _HELD_OUT = 0.02, 256, 0.1
_PATIENCE, _MAX_EPOCHS = 10, 500
NEIGHBORS = 32  # of VNNGP; its authors' 256 take minutes for an epoch


class _Model(gpytorch.models.ApproximateGP):
    """Latent functions with constant mean, ARD squared exponential and shared inducing points."""

    def __init__(self, Z, n_latents, *, nearest=False):
        shape = torch.Size([n_latents]) if n_latents > 1 else torch.Size()
        if nearest:
            q = gpytorch.variational.MeanFieldVariationalDistribution(len(Z))
            strategy = gpytorch.variational.NNVariationalStrategy(
                self, Z, q, k=min(NEIGHBORS, len(Z) - 1), training_batch_size=_BATCH
            )
        else:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z), batch_shape=shape)
            strategy = gpytorch.variational.VariationalStrategy(self, Z, q)
        if n_latents > 1:
            strategy = gpytorch.variational.IndependentMultitaskVariationalStrategy(
                strategy, num_tasks=n_latents
            )
        super().__init__(strategy)
        self.mean = gpytorch.means.ConstantMean(batch_shape=shape)
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=Z.shape[1], batch_shape=shape)
        rbf.lengthscale = max(1.0, np.sqrt(Z.shape[1]) / 2)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=shape)

    def forward(self, X):
        """Return the prior of the latent functions at rows."""
        return gpytorch.distributions.MultivariateNormal(self.mean(X), self.covar_module(X))


class SVGP(ABC):
    """Sparse variational GP, trained by Adam from k-means until the held-out loss stops falling.

    Ten per cent of the rows are held out, stratified by class if there are classes. Training ends
    when their loss has not fallen for ten epochs. The parameters of the best epoch are kept.

    Parameters
    ----------
    n_inducing : int
    random_state : int
    device : str, default=None
        None is the CPU. Only GPyTorch's model can be on another.
    max_epochs : int
    """

    def __init__(self, n_inducing, random_state, device=None, max_epochs=_MAX_EPOCHS):
        self.n_inducing, self.random_state = n_inducing, random_state
        self.device, self.max_epochs = device, max_epochs

    def fit(self, X, y, watch=lambda model: None):
        """Train on rows and float targets or class codes; call ``watch(self)`` after each epoch."""
        torch.manual_seed(self.random_state)
        classes = np.unique(y) if y.dtype.kind == "i" else None
        counts = None if classes is None else np.bincount(y)
        stratify = None if classes is None or counts[counts > 0].min() < 2 else y
        size = max(_HELD_OUT, len(classes) / len(y)) if stratify is not None else _HELD_OUT
        parts = train_test_split(
            X, y, test_size=size, stratify=stratify, random_state=self.random_state
        )
        self.classes_ = classes
        if classes is not None:
            parts[2:] = [np.searchsorted(classes, part) for part in parts[2:]]
        X, X_held = (self._tensor(part, torch.float32) for part in parts[:2])
        kind = torch.float32 if classes is None else torch.int64
        y, y_held = (self._tensor(part, kind) for part in parts[2:])
        self._build(self._points(X), len(X))
        best, since = (np.inf, None), 0
        for _ in range(self.max_epochs):
            self._epoch(X, y)
            loss = self._loss(X_held, y_held)
            watch(self)
            since += 1
            if loss < best[0]:
                best, since = (loss, self._parameters()), 0
            if since >= _PATIENCE:
                break
        self._restore(best[1])
        return self

    def _tensor(self, array, dtype=torch.float32):
        return torch.tensor(array, dtype=dtype, device=self.device)

    def _points(self, X):
        """Return the initial inducing points."""
        m = min(self.n_inducing, len(X))
        centers = KMeans(m, n_init=1, random_state=self.random_state).fit(X.numpy(force=True))
        return self._tensor(centers.cluster_centers_)

    def _epoch(self, X, y):
        """Take a step on each minibatch of the rows."""
        for index in torch.randperm(len(X), device=self.device).split(_BATCH):
            self._step(X[index], y[index])

    def _loss(self, X, y):
        """Return the mean negative log predictive density of rows."""
        if self.classes_ is None:
            return -self._log_density(X, y).mean().item()
        p = torch.tensor(self._probabilities(X), device=self.device).clamp_min(1e-12)
        return -p.log().gather(1, y[:, None]).mean().item()

    def predict_proba(self, X):
        """Return class probabilities."""
        p = self._probabilities(self._tensor(X))
        return p / p.sum(1, keepdims=True)

    def predict(self, X, return_std=False):
        """Return classes, or means and standard deviations that include the noise."""
        if self.classes_ is not None:
            return self.classes_[self.predict_proba(X).argmax(1)]
        mean, std = self._moments(self._tensor(X))
        return (mean, std) if return_std else mean

    @abstractmethod
    def _build(self, Z, n):
        """Build the initial model for n rows."""

    @abstractmethod
    def _step(self, X, y):
        """Take one step of Adam on a minibatch."""

    @abstractmethod
    def _parameters(self):
        """Return a copy of all parameters."""

    @abstractmethod
    def _restore(self, parameters):
        """Restore the parameters that `_parameters` returned."""

    @abstractmethod
    def _log_density(self, X, y):
        """Return the log predictive densities of rows."""

    @abstractmethod
    def _probabilities(self, X):
        """Return class probabilities as an array."""

    @abstractmethod
    def _moments(self, X):
        """Return predictive means and standard deviations as arrays."""


class GPyTorchSVGP(SVGP):
    """GPyTorch's SVGP; probabilities average 64 draws."""

    nearest = False

    def _build(self, Z, n):
        c = 1 if self.classes_ is None else len(self.classes_)
        self.model = _Model(Z, c if c > 2 else 1, nearest=self.nearest)
        if c == 1:
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        elif c == 2:
            self.likelihood = gpytorch.likelihoods.BernoulliLikelihood()
        else:
            self.likelihood = gpytorch.likelihoods.SoftmaxLikelihood(
                num_classes=c, mixing_weights=False
            )
        self._objective = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=n)
        self.model.to(self.device)
        self.likelihood.to(self.device)
        parameters = [*self.model.parameters(), *self.likelihood.parameters()]
        self._adam = torch.optim.Adam(parameters, lr=RATE)

    def _mode(self, *, training):
        self.model.train(training)
        self.likelihood.train(training)

    def _step(self, X, y):
        self._mode(training=True)
        self._adam.zero_grad()
        (-self._objective(self.model(X), y)).backward()
        self._adam.step()

    def _parameters(self):
        return copy.deepcopy((self.model.state_dict(), self.likelihood.state_dict()))

    def _restore(self, parameters):
        self.model.load_state_dict(parameters[0])
        self.likelihood.load_state_dict(parameters[1])

    @torch.no_grad()
    def _log_density(self, X, y):
        self._mode(training=False)
        return self.likelihood.log_marginal(y, self.model(X))

    @torch.no_grad()
    def _probabilities(self, X):
        self._mode(training=False)
        with gpytorch.settings.num_likelihood_samples(64):
            p = self.likelihood(self.model(X)).probs.numpy(force=True)
        p = np.stack([1 - p, p], 1) if len(self.classes_) == 2 else p.mean(0)
        return p.astype(np.float64)

    @torch.no_grad()
    def _moments(self, X):
        self._mode(training=False)
        found = self.likelihood(self.model(X))
        return tuple(part.double().numpy(force=True) for part in (found.mean, found.stddev))


class GPyTorchVNNGP(GPyTorchSVGP):
    """GPyTorch's VNNGP for regression: every row is an inducing point with 32 neighbors."""

    nearest = True

    def _points(self, X):
        return X

    def _epoch(self, X, y):
        self._mode(training=True)
        strategy = self.model.variational_strategy
        for _ in range(strategy._total_training_batches):
            self._adam.zero_grad()
            found = strategy(x=None)  # of a minibatch that the strategy draws
            (-self._objective(found, y[strategy.current_training_indices])).backward()
            self._adam.step()


def protocol():
    """Return a description of how the peers are trained."""
    return f"rate {RATE} batch {_BATCH} patience {_PATIENCE}"


def svgp_methods(n_inducing, metrics):
    """Return a `Method` for GPyTorch's sparse GP and, if it is installed, for GPflow's."""
    classes = {"GPyTorch SVGP": (GPyTorchSVGP, f"gpytorch {gpytorch.__version__} {protocol()}")}
    if find_spec("gpflow"):
        from ._gpflow import GPflowSVGP, version

        classes["GPflow SVGP"] = (GPflowSVGP, f"gpflow {version} {protocol()}")

    return {
        name: _method(kind, n_inducing, code, metrics) for name, (kind, code) in classes.items()
    }


def vnngp_method(metrics):
    """Return the `Method` of GPyTorch's VNNGP, which is for regression only."""
    code = f"gpytorch {gpytorch.__version__} {protocol()} neighbors {NEIGHBORS}"
    return _method(GPyTorchVNNGP, None, code, metrics)


def _method(peer, n_inducing, code, metrics):
    return Method(
        lambda X, y, seed, clock: peer(n_inducing, seed).fit(X, y, clock.watch), code, metrics
    )
