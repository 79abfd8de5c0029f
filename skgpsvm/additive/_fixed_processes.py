"""Zero-mean processes of one feature that have no hyperparameters: lines, levels and steps."""

from abc import abstractmethod

import torch

from .._linalg import cholesky
from ._processes import JITTER, PROFILES


class FixedProcess:
    """Zero-mean process of a feature that has no hyperparameters: a sum of a few functions."""

    @abstractmethod
    def at(self, u):
        """Return the functions at points u (b,), a tuple of one Tensor (b, q)."""


class Line(FixedProcess):
    """Linear effect of a numerical feature, of variance one under the feature's measure.

    Parameters
    ----------
    mean : Tensor of shape (size,)
        Means of the feature's polynomials under its measure.
    second : Tensor of shape (size, size)
        Their second moments.

    Attributes
    ----------
    atoms, weights : Tensor of shape (2,)
        A measure with the same mean and variance.
    coef, cov : Tensor of shape (size, 1), (size, size)
        See `CenteredAtPoints`.
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
        """Return standardized numbers, a tuple of one Tensor (b, 1); 0 where one is missing."""
        line = (2 * u - 1 - self._mean) / self._scale
        return (torch.where(u.isfinite(), line, 0.0)[:, None],)

    def features(self, at):
        """Return whitened features (b, 1)."""
        return at[0]

    def variances(self, at):
        """Return prior variances (b,)."""
        return at[0][:, 0].square()

    def between(self, a, b):
        """Return prior covariances (b, b')."""
        return a[0] @ b[0].T


class Levels(FixedProcess):
    """Zero-mean effect of the levels of a category, the analogue of `ZeroMeanKernel`.

    Parameters
    ----------
    share : Tensor of shape (q,)
        Share of each level in the rows.

    Attributes
    ----------
    atoms, weights : Tensor of shape (q,)
        Codes of the levels and their shares.

    Notes
    -----
    Source: Adam, Durrande and John (2018), (8), over levels.
    """

    def __init__(self, share):
        direction = share / share.norm()
        q = len(share)
        self.atoms, self.weights = torch.arange(q).to(share), share
        eye = torch.eye(q, dtype=share.dtype, device=share.device)
        self.cov = eye - torch.outer(direction, direction)
        # Columns of the Householder reflection that sends the direction to the first axis.
        v = direction.clone()
        v[0] += 1.0 if direction[0] >= 0 else -1.0
        self.coef = (eye - 2 * torch.outer(v, v) / v.dot(v))[:, 1:]

    def at(self, codes):
        """Return indicators of levels, a tuple of one Tensor (b, q); zeros for unknown codes."""
        levels = torch.arange(len(self.coef), device=codes.device)
        return ((codes[:, None] == levels).to(self.coef),)

    def features(self, at):
        """Return whitened features (b, q - 1)."""
        return at[0] @ self.coef

    def variances(self, at):
        """Return prior variances (b,); that of an unknown level is one."""
        (H,) = at
        return ((H @ self.cov) * H).sum(1) + (1 - H.sum(1))

    def between(self, a, b):
        """Return prior covariances (b, b'); those of an unknown level are zero."""
        return a[0] @ self.cov @ b[0].T


class Steps(FixedProcess):
    """Zero-mean random walk over the bins of a number, in steps of equal variance.

    Its covariance before centering is that of a Matern process of smoothness 1/2, whose length
    scale is the number of bins.

    Parameters
    ----------
    share : Tensor of shape (q,)
        Share of each bin in the rows.

    Attributes
    ----------
    atoms, weights : Tensor of shape (q,)
        Codes of the bins and their shares.
    coef, cov : Tensor of shape (q, q)
        Values of the whitened features in the bins, and the prior covariance.
    """

    def __init__(self, share):
        self.atoms, self.weights = torch.arange(len(share)).to(share), share
        g = PROFILES["matern12"].value((self.atoms[:, None] - self.atoms).abs() / len(share))
        h = g @ share
        self.cov = g - torch.outer(h, h) / (h @ share)
        self.coef = cholesky(self.cov, "covariance of the steps of a feature", jitter=JITTER)

    def at(self, codes):
        """Return the codes, a tuple of one Tensor (b,)."""
        return (codes.long(),)

    def features(self, at):
        """Return whitened features (b, q); zeros for a missing number."""
        return self.coef[at[0]] * (at[0] >= 0)[:, None]

    def variances(self, at):
        """Return prior variances (b,)."""
        return self.cov.diagonal()[at[0]] * (at[0] >= 0)

    def between(self, a, b):
        """Return prior covariances (b, b')."""
        known = torch.outer(*((own[0] >= 0).to(self.cov) for own in (a, b)))
        return self.cov[a[0]][:, b[0]] * known
