"""Peers from other libraries, trained as their manuals do, with the interface of scikit-learn."""

import copy

import gpytorch
import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.model_selection import train_test_split

_RATE, _BATCH, _HELD_OUT = 0.02, 256, 0.1
_PATIENCE, _MOST_EPOCHS = 10, 500


class _Model(gpytorch.models.ApproximateGP):
    """Latent functions with a constant mean and an ARD squared exponential, shared points."""

    def __init__(self, Z, n_latents):
        shape = torch.Size([n_latents]) if n_latents > 1 else torch.Size()
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
        self.kernel = gpytorch.kernels.ScaleKernel(rbf, batch_shape=shape)

    def forward(self, X):
        """Prior of the latent functions at rows."""
        return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))


class GPyTorchSVGP:
    """GPyTorch's sparse variational GP: k-means start, Adam, until the held-out loss stops falling.

    Ten per cent of the rows are held out, stratified where there are classes; training ends when
    their loss has not fallen for ten epochs, and the best epoch's parameters are kept.

    Parameters
    ----------
    n_inducing : int
    random_state : int
    """

    def __init__(self, n_inducing, random_state):
        self.n_inducing, self.random_state = n_inducing, random_state

    def fit(self, X, y, watch):
        """Train on rows and float targets or codes; ``watch`` is shown the model in each epoch."""
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
        X, X_held = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
        kind = torch.float32 if classes is None else torch.int64
        y, y_held = (torch.tensor(part, dtype=kind) for part in parts[2:])
        self._build(X)
        rows = torch.utils.data.TensorDataset(X, y)
        batches = torch.utils.data.DataLoader(rows, batch_size=_BATCH, shuffle=True)
        objective = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=len(y))
        parameters = [*self.model.parameters(), *self.likelihood.parameters()]
        adam = torch.optim.Adam(parameters, lr=_RATE)
        best, since = (np.inf, None), 0
        for _ in range(_MOST_EPOCHS):
            self._mode(training=True)
            for X_batch, y_batch in batches:
                adam.zero_grad()
                (-objective(self.model(X_batch), y_batch)).backward()
                adam.step()
            loss = self._loss(X_held, y_held)
            watch(self)
            since += 1
            if loss < best[0]:
                modules = self.model.state_dict(), self.likelihood.state_dict()
                best, since = (loss, copy.deepcopy(modules)), 0
            if since >= _PATIENCE:
                break
        self.model.load_state_dict(best[1][0])
        self.likelihood.load_state_dict(best[1][1])
        return self

    def _build(self, X):
        m = min(self.n_inducing, len(X))
        centres = KMeans(m, n_init=1, random_state=self.random_state).fit(X.numpy())
        Z = torch.tensor(centres.cluster_centers_, dtype=torch.float32)
        c = 1 if self.classes_ is None else len(self.classes_)
        self.model = _Model(Z, c if c > 2 else 1)
        if c == 1:
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        elif c == 2:
            self.likelihood = gpytorch.likelihoods.BernoulliLikelihood()
        else:
            self.likelihood = gpytorch.likelihoods.SoftmaxLikelihood(
                num_classes=c, mixing_weights=False
            )

    def _mode(self, *, training):
        self.model.train(training)
        self.likelihood.train(training)

    @torch.no_grad()
    def _loss(self, X, y):
        """Mean negative log predictive density of rows."""
        self._mode(training=False)
        if self.classes_ is None:
            return -self.likelihood.log_marginal(y, self.model(X)).mean().item()
        p = torch.tensor(self._probabilities(X)).clamp_min(1e-12)
        return -p.log().gather(1, y[:, None]).mean().item()

    @torch.no_grad()
    def _probabilities(self, X):
        with gpytorch.settings.num_likelihood_samples(64):
            p = self.likelihood(self.model(X)).probs.numpy()
        p = np.stack([1 - p, p], 1) if len(self.classes_) == 2 else p.mean(0)
        return p.astype(np.float64)

    def predict_proba(self, X):
        """Class probabilities, the average of 64 draws."""
        self._mode(training=False)
        p = self._probabilities(torch.tensor(X, dtype=torch.float32))
        return p / p.sum(1, keepdims=True)

    @torch.no_grad()
    def predict(self, X, return_std=False):
        """Classes; or means and standard deviations, noise included."""
        if self.classes_ is not None:
            return self.classes_[self.predict_proba(X).argmax(1)]
        self._mode(training=False)
        found = self.likelihood(self.model(torch.tensor(X, dtype=torch.float32)))
        mean, std = found.mean.double().numpy(), found.stddev.double().numpy()
        return (mean, std) if return_std else mean


def gpytorch_code():
    """Version of GPyTorch and of how it is trained here."""
    return f"gpytorch {gpytorch.__version__} rate {_RATE} batch {_BATCH} patience {_PATIENCE}"
