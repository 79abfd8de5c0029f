"""The ELBO of additive models with inducing points, and its derivatives, from sums over rows."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import torch

from .._linalg import cholesky, identity_like
from .._transfers import to_device

_EPSILON = torch.finfo(torch.float64).eps


@dataclass
class Sums:
    """Sufficient statistics of the rows for one latent, or for several.

    Attributes
    ----------
    gram : Tensor of shape (..., r, r)
        Gram matrix of the columns, weighted by the rows' precisions.
    cross : Tensor of shape (..., r)
        Products of the columns with the targets, or with the linear terms of sites.
    squares : Tensor of shape (...) or float
        With Gaussian noise: the weighted sum of squared targets. The noise variance is in none of
        the sums. Else 0.
    weight : float
        With Gaussian noise, the total weight. Else 0.
    """

    gram: torch.Tensor
    cross: torch.Tensor
    squares: float = 0.0
    weight: float = 0.0


def products(effects, sums):
    """Return the Gram matrix (p, p) and cross products (p,) of features, and residual variances.

    Residual variances (1 + n_terms,) are the prior variances that each term's features do not
    explain, summed over the rows with their precisions.
    """
    _, gram, cross, prior = _products(effects, sums)
    taken = torch.stack([block.trace() for block in own_blocks(gram, effects)])
    return gram, cross, prior - taken


def _products(effects, sums):
    """Return products of columns and features (..., r, p), `products`, and prior variances.

    The third is the cross products (..., p); the fourth is (..., 1 + n_terms), summed as in
    `products`.
    """
    coefs = effects.coefs
    sizes, widths = zip(*(coef.shape for coef in coefs), strict=True)

    def of_features(array):
        found = array.new_empty(*array.shape[:-1], sum(widths))
        parts = zip(found.split(widths, -1), array.split(sizes, -1), coefs, strict=True)
        for own, part, coef in parts:  # the product of one term at a time is in memory
            own.copy_(part @ coef)
        return found

    half = of_features(sums.gram)
    gram = zip(coefs, half.split(sizes, -2), strict=True)
    gram = torch.cat([coef.T @ part for coef, part in gram], -2)
    covs = zip(effects.covs, diagonal_blocks(sums.gram, sizes), strict=True)
    prior = torch.stack([(cov * block).sum((-2, -1)) for cov, block in covs], -1)
    return half, gram, of_features(sums.cross), prior


class EffectsBound:
    """Collapsed bound of the best posterior of a form, and its derivatives on request.

    Parameters
    ----------
    effects : Effects
    sums : Sums
        Those of c latents with the same hyperparameters, whose bounds are added.
    noise : Tensor, scalar
        Logarithm of the variance by which the sums are divided.
    covariance : {"full", "precision", "mean_field"}
    rank : int or None
        Rank of "precision". None is the bound of full rank.

    Attributes
    ----------
    value : float
        The bound, in nats, up to constants of sites.
    prior : Effects

    Notes
    -----
    Source: Titsias (2009), applied to all effects jointly, less the loss of the best posterior of
    the form.
    """

    def __init__(self, effects, sums, noise, covariance="full", rank=None):
        self.prior, self._sums, self._var = effects, sums, noise.exp()
        self._covariance, self._rank = covariance, rank
        products = (part.div_(self._var) for part in _products(effects, sums))
        self._half, self._gram, self._cross, prior = products
        self._chol = precision_root(self._gram)
        self._weights = torch.cholesky_solve(self._cross[..., None], self._chol)[..., 0]
        self._log_det = 2 * self._chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        explained = self._gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        self._misfit = sums.squares / self._var + prior.sum(-1) - explained
        size = sums.weight * (math.log(2 * math.pi) + noise)
        fit = (self._cross * self._weights).sum(-1) - self._log_det
        self.value = 0.5 * (fit - self._loss() - size - self._misfit).sum().item()

    @cached_property
    def _left(self):
        """Eigenvalues and eigenvectors of the Gram matrices beyond the rank."""
        values, vectors = torch.linalg.eigh(self._gram)
        left = max(values.shape[-1] - self._rank, 0)
        return values[..., :left].clamp_min(0), vectors[..., :left]

    def _own_precisions(self):
        """Return the diagonal blocks of the precisions of the weights."""
        return own_blocks(_plus_one(self._gram), self.prior)

    def _loss(self):
        """Return twice what the form loses, in nats."""
        if self._covariance == "mean_field":
            return sum(torch.logdet(block) for block in self._own_precisions()) - self._log_det
        if self._covariance == "precision" and self._rank is not None:
            values, _ = self._left
            return (values - values.log1p()).sum(-1)
        return 0.0

    def _by_log_dets(self, cov):
        """Return derivatives, in the Gram matrix, of minus the log determinant and the loss."""
        if self._covariance == "mean_field":
            found = torch.zeros_like(cov)
            blocks = zip(own_blocks(found, self.prior), self._own_precisions(), strict=True)
            for block, own in blocks:
                block.copy_(-torch.linalg.inv(own))
            return found
        if self._covariance == "precision" and self._rank is not None:
            values, vectors = self._left
            return -cov - vectors * (values / (1 + values))[..., None, :] @ vectors.mT
        return -cov

    def derivatives(self, names):
        r"""Return the gradient and the average information in the hyperparameters.

        The information is that of `RowEvidence.derivatives`, for the covariance
        :math:`C = W^{-1} + \Phi \Phi^\top` of the targets of the rows, whose precisions are W. With
        the columns T of the rows and :math:`\Phi = T A`, the product :math:`C_i \alpha` is
        :math:`T v_i` with :math:`v_i = A_i w + A A_i^\top \rho` and :math:`\rho = T^\top \alpha`.
        For the noise, it is the residual e, with :math:`T^\top W e = \rho`.

        Parameters
        ----------
        names : list of str
            Kinds of hyperparameters.

        Returns
        -------
        gradient : dict of Tensor
            Derivatives of the bound, by name.
        information : Tensor of shape (k, k)
            For the hyperparameters of ``names``, one kind after the other.
        """
        w, half, cov = self._weights[..., None], self._half, torch.cholesky_inverse(self._chol)
        rho = self._sums.cross[..., None] / self._var - half @ w
        gradient, moves = self._gradient_and_moves(cov, rho[..., 0], names)
        # Each C_i alpha is T times a column of V, plus the residual for the noise. A column of V is
        # zero outside the rows of the term that its hyperparameter belongs to.
        ends = itertools.accumulate(len(coef) for coef in self.prior.coefs)
        rows = [slice(end - len(A), end) for end, A in zip(ends, self.prior.coefs, strict=True)]
        order = [key for own in moves.values() for key in own]
        V = [(rows[place], torch.stack(list(own.values()), -1)) for place, own in moves.items()]

        def of_moves(matrix):
            """Return V^T times a matrix (c, r, ...)."""
            none = matrix[..., :0, :]
            return torch.cat([none, *(own.mT @ matrix[..., at, :] for at, own in V)], -2)

        of_weights = of_moves(half)
        of_rows = of_moves(of_moves(self._sums.gram).mT) / self._var
        information = (of_rows - of_weights @ cov @ of_weights.mT).sum(0)
        mixed = of_moves(rho - half @ (cov @ w)).sum((0, 2))
        square = self._sums.squares / self._var - 2 * (self._cross * self._weights).sum(-1)
        square = (square + (w.mT @ (self._gram - cov) @ w)[..., 0, 0]).sum()
        information = torch.cat([information, mixed[None]])
        information = torch.cat([information, torch.cat([mixed, square[None]])[:, None]], 1)
        order.append(("noise", 0))
        places = {key: place for place, key in enumerate(order)}
        wanted = [places[name, k] for name in names for k in range(len(gradient[name]))]
        wanted = to_device(torch.tensor(wanted), w.device)
        return gradient, 0.5 * information[wanted][:, wanted]

    def _gradient_and_moves(self, cov, rho, names):
        """Return derivatives of the bound by name, and the vectors v_i of lengths and variances.

        Of the latter only the entries (c, r) in the rows of a term are returned, by its place, and
        then by name and index.
        """
        effects, sums, w = self.prior, self._sums, self._weights
        rows, sizes = zip(*(coef.shape for coef in effects.coefs), strict=True)
        by_gram = 0.5 * (self._by_log_dets(cov) - w[..., :, None] * w[..., None, :])
        fit = (by_gram * self._gram).sum() + (self._cross * w).sum()
        gradient = {"noise": 0.5 * (self._misfit - sums.weight).sum()[None] - fit}
        if set(names) == {"noise"}:
            return gradient, {}
        by_features = _plus_one(2 * by_gram).split(sizes, -1)
        targets = (sums.cross / self._var).split(rows, -1)
        halves, weights = self._half.split(rows, -2), w.split(sizes, -1)
        parts = zip(halves, by_features, targets, weights, strict=True)
        by_coefs = [(half @ by).sum(0) + y.T @ own for half, by, y, own in parts]
        blocks = diagonal_blocks(sums.gram, rows)
        by_covs = [-0.5 / self._var * block.sum(0) for block in blocks]
        gradient |= {name: w.new_zeros(size) for name, size in effects.sizes.items()}
        own_rho, moves = rho.split(rows, -1), {}
        for name, index, place, coef, cov in effects.derivatives():
            gradient[name][index] = (by_coefs[place] * coef).sum() + (by_covs[place] * cov).sum()
            move = weights[place] @ coef.T + (own_rho[place] @ coef) @ effects.coefs[place].T
            moves.setdefault(place, {})[name, index] = move
        return gradient, moves


def _plus_one(matrices):
    """Return the identity plus matrices (..., p, p)."""
    return matrices + identity_like(matrices)


def precision_root(gram):
    """Return the Cholesky factor of I + gram, the weights' precision.

    The jitter is of the size of the rounding error in gram (..., p, p).
    """
    jitter = gram.shape[-1] * _EPSILON
    return cholesky(_plus_one(gram), "precision of the weights", jitter=jitter)


def diagonal_blocks(matrix, sizes):
    """Return the diagonal blocks of square matrices (..., r, r)."""
    starts = [0, *itertools.accumulate(sizes)]
    return [matrix[..., a:b, a:b] for a, b in itertools.pairwise(starts)]


def gains(effects, sums, noise):
    """Return how much each term adds to the collapsed bound of full covariance, (n_terms,)."""
    var = noise.exp()
    gram, cross, residuals = products(effects, sums)
    chol = precision_root(gram / var)
    cov = torch.cholesky_inverse(chol)
    weights = cov @ cross / var
    found = []
    for block, w in zip(
        own_blocks(cov, effects), weights.split([c.shape[1] for c in effects.coefs]), strict=True
    ):
        fit = w @ torch.linalg.solve(block, w)
        found.append(0.5 * (fit + torch.logdet(block)))
    return (torch.stack(found) - 0.5 * residuals / var)[1:]


def own_blocks(gram, effects):
    """Return the diagonal blocks of matrices (..., p, p), for the constant and each term."""
    return diagonal_blocks(gram, [coef.shape[1] for coef in effects.coefs])
