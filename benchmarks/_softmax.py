"""Network with a softmax layer, trained like the hybrid models: their baseline."""

import math

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import nn

_ROWS = 256


class SoftmaxNetwork(ClassifierMixin, BaseEstimator):
    """Feature extractor with a softmax layer, trained by Adam on the cross-entropy.

    Parameters
    ----------
    module : callable
        Function that returns the extractor.
    n_features : int
        Number of features that the extractor returns.
    max_iter, batch_size, learning_rate, device
        Parameters as in `HybridBayesianSVC`; the learning rate follows the same cosine.
    random_state : int
    """

    def __init__(
        self,
        module,
        n_features=100,
        max_iter=3,
        batch_size=128,
        learning_rate=1e-3,
        device=None,
        random_state=0,
    ):
        self.module = module
        self.n_features = n_features
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.device = device
        self.random_state = random_state

    def fit(self, X, y):
        """Train on rows (n, ...) and labels (n,)."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        rows, codes = (torch.from_numpy(part).to(self.device or "cpu") for part in (X, codes))
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            self.network_ = nn.Sequential(
                self.module(), nn.Linear(self.n_features, len(self.classes_))
            ).to(self.device or "cpu")
            optimizer = torch.optim.Adam(self.network_.parameters(), lr=self.learning_rate)
            n_batches = math.ceil(len(rows) / self.batch_size)
            for epoch in range(self.max_iter):
                for i, index in enumerate(torch.randperm(len(rows)).tensor_split(n_batches)):
                    progress = (epoch + i / n_batches) / self.max_iter
                    rate = self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
                    optimizer.param_groups[0]["lr"] = rate
                    optimizer.zero_grad()
                    logits = self.network_(rows[index])
                    nn.functional.cross_entropy(logits, codes[index]).backward()
                    optimizer.step()
        return self

    def decision_function(self, X):
        """Return logits, (n, c)."""
        with torch.no_grad():
            rows = torch.from_numpy(X).to(self.device or "cpu")
            parts = [self.network_(part) for part in rows.split(_ROWS)]
        return torch.cat(parts).double().cpu().numpy()

    def predict_proba(self, X):
        """Return the softmax of the logits, (n, c)."""
        return torch.tensor(self.decision_function(X)).softmax(1).numpy()

    def predict(self, X):
        """Return labels, (n,)."""
        return self.classes_[self.decision_function(X).argmax(1)]

    def _check_new(self, X):
        """Return rows unchanged; `skgpsvm.adversarial` calls this method of a classifier."""
        return X

    def to_torch(self, device=None):
        """Return the network for `skgpsvm.adversarial`: logits are latents without variance."""
        module = nn.Sequential(self.network_)
        module.latents = lambda X: (self.network_(X), None)
        return module
