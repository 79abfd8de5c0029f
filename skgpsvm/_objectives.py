"""Objectives of Gaussian processes: the ELBO, the collapsed ELBO and the log evidence."""

import math

import torch

from ._linalg import HARMLESS_NOISE, gaussian_kl, jittered_cholesky
from ._sites import batch_loss


def elbo(posterior, likelihood, rows, scale=1.0):
    r"""Return the evidence lower bound of a posterior.

    It is :math:`s \sum_i w_i\, E_q[\log p(y_i \mid f_i)] - KL(q \Vert p)`.

    ``scale`` is the weight s of the rows, if they stand for others. The result is in nats, a scalar
    tensor, which is differentiable where no ranks share the rows.
    """
    fit = 0.0
    for index in rows.chunks():
        X, targets, weights = rows.take(index)
        moments = posterior.marginals(X.double())
        fit = fit + weights.double() @ likelihood.expected_log_prob(targets, *moments)
    (fit,) = rows.sum(fit)
    return scale * fit - posterior.kl()


def minibatch_elbo(likelihood, features, targets, weights, moments, rows):
    """Return an estimate of the ELBO from a minibatch, in nats, a scalar tensor.

    Where ranks share the rows, it is this rank's part; the sum over ranks is the estimate.

    ``features`` are whitened ones (b, p) and residual variances (b,), and ``moments`` are mean
    (c, p) and root (c, p, p) of the weights. The minibatch is drawn from the ``rows``.
    """
    losses = batch_loss(likelihood, *features, targets, *moments)
    divergence = gaussian_kl(*moments).sum()
    return -rows.scale_of(targets) * (weights * losses).sum() - divergence / rows.n_shards


def collapsed_elbo(gram, cross, residuals, squares, weight, noise, jitter):
    r"""Return the collapsed ELBO of sparse GP regression, and its derivatives, from sums over rows.

    It is the ELBO at the optimal Gaussian posterior of the weights, see `CollapsedBound`, in nats,
    summed over the outputs. With whitened features :math:`a_i` and residual variances :math:`r_i`,
    the sums are ``gram`` (p, p), :math:`\sum_i w_i a_i a_i^\top`; ``cross`` (p, t), :math:`\sum_i
    w_i a_i y_i^\top`; ``residuals``, :math:`\sum_i w_i r_i`; ``squares`` (t,), :math:`\sum_i w_i
    y_i^2`; and ``weight``, :math:`\sum_i w_i`. ``noise`` (t,) or (1,) are the logarithms of the
    noise variances of the outputs, or of the one that they share. The jitter is added to the
    diagonal of the weights' precision, relative to its mean, for the rounding of ``gram``.

    The derivatives are in ``gram``, symmetric and as if its entries were independent, and in
    ``cross``, ``residuals`` and ``noise``.

    Source: Titsias (2009), eq. 9, in whitened coordinates.

    For one output, with Gram matrix G, cross products c, noise variance v,
    :math:`\Lambda = I + G / v`, posterior mean :math:`b = \Lambda^{-1} c / v` and s the sum of
    ``squares`` and ``residuals``, the ELBO is

    .. math:: F = -\tfrac12 \bigl[ w \log(2 \pi v) + \log|\Lambda| + s / v
        - c^\top \Lambda^{-1} c / v^2 \bigr].

    As :math:`d \log|\Lambda| = \mathrm{tr}\, \Lambda^{-1} d\Lambda` and
    :math:`d (c^\top \Lambda^{-1} c / v^2) = 2 b^\top d(c / v) - b^\top d\Lambda\, b`,

    .. math:: M = \frac{\partial F}{\partial \Lambda} = -\tfrac12 (\Lambda^{-1} + b b^\top),
        \quad \frac{\partial F}{\partial G} = \frac{M}{v},
        \quad \frac{\partial F}{\partial c} = \frac{b}{v},
        \quad \frac{\partial F}{\partial \log v} = -\tfrac12 \Bigl(w - \frac{s}{v}\Bigr)
        - \frac{\mathrm{tr}\, M G + b^\top c}{v}.

    The jitter j adds :math:`j\, \mathrm{tr}(\Lambda) I / p` to :math:`\Lambda`, and so
    :math:`j\, \mathrm{tr}(M) I / p` to M. Outputs that share their noise share :math:`\Lambda`.
    """
    k, p = len(noise), len(gram)
    var, per_noise = noise.exp(), len(squares) // k
    by_output = cross.T.reshape(k, per_noise, p).mT
    precision = gram / var[:, None, None]
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
    chol, added = jittered_cholesky(
        precision, "precision of the weights", jitter=jitter, expected=jitter
    )
    half = torch.linalg.solve_triangular(chol, by_output / var[:, None, None], upper=False)
    mean = torch.linalg.solve_triangular(chol.mT, half, upper=True)
    log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    misfit = (squares.view(k, per_noise) + residuals).sum(1) / var
    normalization = weight * (math.log(2 * math.pi) + noise)
    explained = half.square().sum((1, 2))
    elbo = -0.5 * (per_noise * (normalization + log_det) + misfit - explained).sum()
    by_precision = -0.5 * (per_noise * torch.cholesky_inverse(chol) + mean @ mean.mT)
    traces = by_precision.diagonal(dim1=-2, dim2=-1).sum(-1)
    by_precision.diagonal(dim1=-2, dim2=-1).add_((added * traces / p)[:, None])
    products = ((by_precision * gram).sum((1, 2)) + (mean * by_output).sum((1, 2))) / var
    by_noise = -0.5 * (per_noise * weight - misfit) - products
    by_gram = (by_precision / var[:, None, None]).sum(0)
    by_cross = (mean / var[:, None, None]).mT.reshape(-1, p).T
    return elbo, by_gram, by_cross, -0.5 * per_noise * var.reciprocal().sum(), by_noise


def log_evidence(cov, targets, jitter):
    r"""Return the log evidence of targets with Gaussian noise, and its derivatives.

    ``cov`` (n, n) is the covariance of the targets (n, t) of each output, noise included; the
    jitter is added to its diagonal, relative to its mean. Returns the evidence in nats, summed over
    the outputs; the derivatives (n, n) in the entries of ``cov`` as if they were independent; and
    (n, t), minus the derivatives in the targets.

    Source: Rasmussen and Williams (2006), eqs. 5.8 and 5.9.

    The derivatives in a covariance C of t outputs Y are
    :math:`\frac12 (C^{-1} Y Y^\top C^{-1} - t\, C^{-1})`. The jitter adds its share of their trace
    to each diagonal entry.
    """
    n, t = targets.shape
    evidence, chol, half, added = evidence_and_root(cov, targets, jitter)
    solved = torch.linalg.solve_triangular(chol.T, half, upper=True)
    by_cov = torch.cholesky_inverse(chol, out=chol)  # in place, as n^2 numbers are many
    by_cov.addmm_(solved, solved.T, beta=-0.5 * t, alpha=0.5)
    by_cov.diagonal().add_(added * by_cov.trace() / n)
    return evidence, by_cov, solved


def evidence_and_root(cov, targets, jitter):
    r"""Return the log evidence, and what `log_evidence` computes its derivatives from.

    These are the Cholesky factor L of the covariance (n, n), :math:`L^{-1} Y` (n, t), and the added
    jitter.
    """
    n, t = targets.shape
    chol, added = jittered_cholesky(
        cov, "covariance of the rows", jitter=jitter, harmless=HARMLESS_NOISE
    )
    half = torch.linalg.solve_triangular(chol, targets, upper=False)
    log_det = 2 * chol.diagonal().log().sum()
    evidence = -0.5 * (half.square().sum() + t * (n * math.log(2 * math.pi) + log_det))
    return evidence, chol, half, added
