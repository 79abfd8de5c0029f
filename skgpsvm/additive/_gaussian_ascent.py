"""The stage that learns additive models of Gaussian noise, by sums over the rows."""

import torch

from .._linalg import add_gram, mirror
from ..likelihoods._regression import observations
from ._ascent import AdditiveAscent, AdditiveState
from ._bound import Sums
from ._defaults import DEFAULTS


class GaussianAscent(AdditiveAscent):
    """Gaussian noise: one pass over the rows suffices, and outputs share the Gram matrix."""

    trial_rounds = DEFAULTS.trial_rounds

    def __init__(self, *args):
        super().__init__(*args)
        self._read()

    def _read(self):
        gram, cross, squares = self._zeros(), 0.0, 0.0
        for index in self.rows.chunks(self._chunk_rows()):
            X, y, weights = self.rows.take(index)
            columns = torch.cat(self.basis(X), 1)
            weighted = weights[:, None] * columns
            add_gram(gram, columns, weighted)
            cross, squares = cross + weighted.T @ y, squares + weights @ y.square()
        self._gram, self._cross, self._squares = self.rows.sum(mirror(gram), cross, squares)

    def _noise(self, state, k):
        return state.noise[k]

    def _sums_of(self, state, index):
        gram = self._gram.expand(len(self._squares), -1, -1)
        weight = self.rows.total_weight
        return Sums(gram[index], self._cross.T[index], self._squares[index], weight)

    def init(self, noise, before=None):
        hyper = self._start(before, len(noise))
        return AdditiveState(**hyper, noise=noise.to(self.rows.weights))

    def step(self, state):
        """Take one round of steps; the objective is that after it."""
        objective = self._learn_hyperparameters(state)
        self._record(state, objective, self._log_priors(state))

    def residuals(self, state, rows):
        """Return X, derivatives of log densities in the latents, and precisions, (n, c) each."""
        X, targets, weights = rows.take(slice(None))
        y, known = observations(targets)
        mean, _ = self._row_moments(self.posteriors(state, whole=False), X)
        var = state.noise.exp() if known is None else state.noise.exp() + known
        precision = weights[:, None] / var
        return X, precision * (y - mean), precision

    def _drop_columns(self, state, going):
        columns = self._kept_columns(state, going)
        self._gram, self._cross = self._gram[columns[:, None], columns], self._cross[columns]
