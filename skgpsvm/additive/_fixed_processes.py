"""Zero-mean processes of one feature that have no hyperparameters: lines, levels and steps."""

import torch

from .._linalg import cholesky
from ._processes import JITTER, PROFILES


class FixedProcess:
    """Zero-mean process of a feature that has no hyperparameters: a sum of a few functions.

    ``atoms`` and ``weights`` (k,) are a measure under which the process has the same variance as
    under the feature's. For ``coef`` (r, p) and ``cov`` (r, r), see `CenteredAtPoints`.
    """


class Line(FixedProcess):
    """Linear effect of a numerical feature, of variance one under the feature's measure.

    ``mean`` (size,) and ``second`` (size, size) are the moments of the feature's polynomials.
    """

    def __init__(self, mean, second):
        # The polynomial of degree one is 2 u - 1.
        scale = (second[1, 1] - mean[1].square()).clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
        self._mean, self._scale = mean[1], scale
        self.atoms = 0.5 + 0.5 * torch.stack([mean[1] - scale, mean[1] + scale])
        self.weights = torch.full_like(self.atoms, 0.5)
        self.coef = torch.zeros_like(mean)[:, None]
        self.coef[0, 0], self.coef[1, 0] = -mean[1] / scale, 1 / scale
        self.cov = self.coef @ self.coef.T

    def at(self, u):
        """Return standardized numbers (b, 1); 0 where one is missing."""
        line = (2 * u - 1 - self._mean) / self._scale
        return torch.where(u.isfinite(), line, 0.0)[:, None]

    def features(self, at):
        """Return whitened features (b, 1)."""
        return at

    def variances(self, at):
        """Return prior variances (b,)."""
        return at[:, 0].square()

    def between(self, a, b):
        """Return prior covariances (b, b')."""
        return a @ b.T


class Levels(FixedProcess):
    """Zero-mean effect of the levels of a category, the analogue of `ZeroMeanKernel`.

    ``share`` (q,) is the share of each level in the rows.

    Source: Adam, Durrande and John (2018), (8), over levels.
    """

    _unknown = 1.0  # variance of a level that is not known

    def __init__(self, share):
        self.atoms, self.weights = torch.arange(len(share)).to(share), share
        direction = share / share.norm()
        eye = torch.eye(len(share)).to(share)
        self.cov = eye - torch.outer(direction, direction)
        # Columns of the Householder reflection that sends the direction to the first axis.
        v = direction.clone()
        v[0] += 1.0 if direction[0] >= 0 else -1.0
        self.coef = (eye - 2 * torch.outer(v, v) / v.dot(v))[:, 1:]

    def at(self, codes):
        """Return indicators of levels (b, q); zeros for unknown codes."""
        return (codes[:, None] == self.atoms).to(self.atoms)

    def features(self, at):
        """Return whitened features (b, p)."""
        return at @ self.coef

    def variances(self, at):
        """Return prior variances (b,)."""
        return at @ self.cov.diagonal() + self._unknown * (1 - at.sum(1))

    def between(self, a, b):
        """Return prior covariances (b, b'); those of an unknown level are zero."""
        return a @ self.cov @ b.T


class Steps(Levels):
    """Zero-mean random walk over the bins of a number, in steps of equal variance.

    Its covariance before centering is that of a Matern process of smoothness 1/2, whose length
    scale is the number of bins. ``share`` (q,) is the share of each bin in the rows.
    """

    _unknown = 0.0  # that of a missing number

    def __init__(self, share):
        self.atoms, self.weights = torch.arange(len(share)).to(share), share
        g = PROFILES["matern12"].value((self.atoms[:, None] - self.atoms).abs() / len(share))
        h = g @ share
        self.cov = g - torch.outer(h, h) / (h @ share)
        self.coef = cholesky(self.cov, "covariance of the steps of a feature", jitter=JITTER)
