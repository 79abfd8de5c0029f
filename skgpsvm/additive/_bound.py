"""The ELBO of additive models with inducing points, and its derivatives, from sums over rows."""

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch

from .._linalg import add_grams, cholesky, identity_like, mirror
from .._transfers import to_device

_EPSILON = torch.finfo(torch.float64).eps


class RowColumns:
    """Columns of the terms at some rows; the features at the latest hyperparameters are kept.

    ``parts`` are Tensors (n, r) for the constant and each term, as an `AdditiveBasis` gives them.
    """

    def __init__(self, parts):
        self.parts, self._features, self._variances = parts, (None, None), (None, None)

    @cached_property
    def joined(self):
        """Columns (n, r) of all terms."""
        return torch.cat(self.parts, 1)

    def features(self, effects):
        """Return whitened features (n, p) at `Effects`."""
        if self._features[0] is not effects:
            parts = zip(self.parts, effects.coefs, strict=True)
            self._features = effects, torch.cat([part @ coef for part, coef in parts], 1)
        return self._features[1]

    def variances(self, effects):
        """Return prior variances (n,) of the sum of all terms at `Effects`."""
        if self._variances[0] is not effects:
            parts = zip(self.parts, effects.covs, strict=True)
            self._variances = effects, sum(((part @ cov) * part).sum(1) for part, cov in parts)
        return self._variances[1]


@dataclass
class Sums:
    """Sufficient statistics of the rows for one latent, or for several.

    The variance of Gaussian noise is in none of the sums.
    """

    gram: torch.Tensor  # (..., r, r): Gram matrix of the columns, weighted by the rows' precisions
    # (..., r): products of the columns with the targets, or with the linear terms of sites
    cross: torch.Tensor
    # With Gaussian noise, the weighted sums (...) of squared targets and the total weight; else 0
    squares: torch.Tensor | float = 0.0
    weight: float = 0.0

    def of_features(self, effects):
        """Return the `FeatureSums` of `Effects`."""
        return _SummedFeatures(effects, self)

    def own_grams(self, effects):
        """Return Gram matrices (r, r) of the columns of each term, summed over latents, a list."""
        gram = self.gram.reshape(-1, *self.gram.shape[-2:])
        sizes = [len(coef) for coef in effects.coefs]
        return [block.sum(0) for block in diagonal_blocks(gram, sizes)]


@dataclass
class SiteRows:
    """Sites of the rows for one latent, or for several, with the columns that `Sums` sum over.

    Where rows are few, products of their features take less time than those of the
    Gram matrix of the columns.
    """

    columns: RowColumns
    precision: torch.Tensor  # (..., n)
    linear: torch.Tensor  # (..., n)
    squares, weight = 0.0, 0.0

    @cached_property
    def cross(self):
        """Sums of the columns times the linear terms, (..., r)."""
        return self.linear @ self.columns.joined

    def of_features(self, effects):
        """Return the `FeatureSums` of `Effects`."""
        return _RowFeatures(effects, self)

    @cached_property
    def _own_grams(self):
        total = self.precision.reshape(-1, self.precision.shape[-1]).sum(0)[:, None]
        return [part.T @ (total * part) for part in self.columns.parts]

    def own_grams(self, effects):
        """Return Gram matrices (r, r) of the columns of each term, summed over latents, a list."""
        return self._own_grams


class FeatureSums(ABC):
    """Products of whitened features, summed over the rows with their precisions.

    They are ``gram`` (..., p, p), and ``cross`` (..., p) with the targets, or with the linear terms
    of sites.
    """

    @abstractmethod
    def with_columns(self, weights):
        """Return sums (c, r, k) of the columns times functions, given their weights (c, p, k)."""

    @abstractmethod
    def along(self, moves):
        """Return sums of products of functions of the columns with features, and with each other.

        ``moves`` has the coefficients (c, r, k) of the functions of some terms, by place. The sums
        are (c, k, p) and (c, k, k) for the functions of all terms.
        """

    @abstractmethod
    def by_coefs(self, by_features):
        """Return products of columns and features (r, p) with adjoints (c, p, p), a list by term.

        They are summed over latents, and each term has its own rows and columns.
        """


class _SummedFeatures(FeatureSums):
    """`FeatureSums` from the Gram matrix of the columns."""

    def __init__(self, effects, sums):
        self._rows, self._sizes = zip(*(coef.shape for coef in effects.coefs), strict=True)
        self._coefs, self._columns = effects.coefs, sums.gram
        self._half = self._of_features(sums.gram)
        gram = zip(self._coefs, self._half.split(self._rows, -2), strict=True)
        self.gram = torch.cat([coef.T @ part for coef, part in gram], -2)
        self.cross = self._of_features(sums.cross)

    def _of_features(self, array):
        found = array.new_empty(*array.shape[:-1], sum(self._sizes))
        parts = (found.split(self._sizes, -1), array.split(self._rows, -1), self._coefs)
        for own, part, coef in zip(*parts, strict=True):
            own.copy_(part @ coef)  # the product of one term at a time is in memory
        return found

    def with_columns(self, weights):
        return self._half @ weights

    def along(self, moves):
        def of_moves(matrix):
            parts = matrix.split(self._rows, -2)
            found = [own.mT @ parts[place] for place, own in moves.items()]
            return torch.cat([matrix[..., :0, :], *found], -2)

        return of_moves(self._half), of_moves(of_moves(self._columns).mT)

    def by_coefs(self, by_features):
        parts = self._half.split(self._rows, -2), by_features.split(self._sizes, -1)
        return [(half @ by).sum(0) for half, by in zip(*parts, strict=True)]


class _RowFeatures(FeatureSums):
    """`FeatureSums` from the features of the rows."""

    def __init__(self, effects, rows):
        self._columns, self._precision = rows.columns, rows.precision[..., None]
        self._sizes = [coef.shape[1] for coef in effects.coefs]
        self._features = rows.columns.features(effects)
        p, precision = self._features.shape[1], rows.precision.reshape(-1, len(self._features))
        gram = precision.new_zeros(len(precision), p, p)
        add_grams(gram, self._features, precision.T)
        self.gram = mirror(gram).view(*rows.precision.shape[:-1], p, p)
        self.cross = rows.linear @ self._features

    def with_columns(self, weights):
        of_rows = self._precision * (self._features @ weights)  # (c, n, k)
        found = of_rows.mT.flatten(0, 1) @ self._columns.joined  # one pass over columns
        return found.unflatten(0, (len(weights), -1)).mT

    def along(self, moves):
        parts = [own.mT @ self._columns.parts[place].T for place, own in moves.items()]
        functions = torch.cat([self._precision.mT[:, :0], *parts], 1)  # (c, k, n)
        weighted = self._precision.mT * functions
        return weighted @ self._features, weighted @ functions.mT

    def by_coefs(self, by_features):
        pairs = zip(self._precision, by_features, strict=True)
        by_rows = sum(precision * (self._features @ by) for precision, by in pairs)
        parts = zip(self._columns.parts, by_rows.split(self._sizes, 1), strict=True)
        return [part.T @ by for part, by in parts]


class EffectsBound:
    """Collapsed bound of the best posterior of a form, and its derivatives on request.

    The ``sums`` are those of c latents with the same hyperparameters, whose bounds are added, and
    are divided by a variance, whose logarithm is ``noise``. A ``rank`` of None is the bound of full
    rank. ``value`` is in nats, up to constants of sites.

    Source: Titsias (2009), applied to all effects jointly, less the loss of the best posterior of
    the form.
    """

    def __init__(self, effects, sums, noise, covariance="full", rank=None):
        self._prior, self._sums, self._var = effects, sums, noise.exp()
        self._covariance, self._rank = covariance, rank
        self._found = sums.of_features(effects)
        self._gram, self._cross = self._found.gram / self._var, self._found.cross / self._var
        self._chol = precision_root(self._gram)
        self._weights = torch.cholesky_solve(self._cross[..., None], self._chol)[..., 0]
        self._log_det = 2 * self._chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        # What the terms leave of their prior variances, summed over rows and latents.
        pairs = zip(effects.covs, sums.own_grams(effects), strict=True)
        prior = torch.stack([(cov * gram).sum() for cov, gram in pairs]) / self._var
        explained = [_traces(block).sum() for block in own_blocks(self._gram, effects)]
        self._unexplained = prior - torch.stack(explained)
        size = sums.squares / self._var + sums.weight * (math.log(2 * math.pi) + noise)
        fit = (self._cross * self._weights).sum(-1) - self._log_det
        self.value = 0.5 * ((fit - self._loss() - size).sum() - self._unexplained.sum()).item()

    @cached_property
    def _left(self):
        """Eigenvalues and eigenvectors of the Gram matrices beyond the rank."""
        values, vectors = torch.linalg.eigh(self._gram)
        left = max(values.shape[-1] - self._rank, 0)
        return values[..., :left].clamp_min(0), vectors[..., :left]

    def _own_precisions(self):
        """Return the diagonal blocks of the precisions of the weights."""
        return own_blocks(_plus_one(self._gram), self._prior)

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
            blocks = zip(own_blocks(found, self._prior), self._own_precisions(), strict=True)
            for block, own in blocks:
                block.copy_(-torch.linalg.inv(own))
            return found
        if self._covariance == "precision" and self._rank is not None:
            values, vectors = self._left
            return -cov - vectors * (values / (1 + values))[..., None, :] @ vectors.mT
        return -cov

    def gains(self):
        """Return how much each term adds to the bounds of full covariance, (n_terms,)."""
        blocks = own_blocks(torch.cholesky_inverse(self._chol), self._prior)
        weights = self._weights[..., None].split([block.shape[-1] for block in blocks], -2)
        found = [
            (w * torch.linalg.solve(block, w)).sum() + torch.logdet(block).sum()
            for block, w in zip(blocks, weights, strict=True)
        ]
        return 0.5 * (torch.stack(found) - self._unexplained)[1:]

    def derivatives(self, names):
        r"""Return the gradient and the average information in the hyperparameters.

        The information is that of `RowEvidence.derivatives`, for the covariance
        :math:`C = W^{-1} + \Phi \Phi^\top` of the targets of the rows, whose precisions are W. With
        the columns T of the rows and :math:`\Phi = T A`, the product :math:`C_i \alpha` is
        :math:`T v_i` with :math:`v_i = A_i w + A A_i^\top \rho` and :math:`\rho = T^\top \alpha`.
        For the noise, it is the residual e, with :math:`T^\top W e = \rho`.
        """
        w, var, cov = self._weights[..., None], self._var, torch.cholesky_inverse(self._chol)
        rho = (self._sums.cross[..., None] - self._found.with_columns(w)) / var
        gradient, moves = self._gradient_and_moves(cov, rho[..., 0], names)
        # Each C_i alpha is T times a column of V, plus the residual for the noise. A column of V is
        # zero outside the rows of the term that its hyperparameter belongs to.
        order = [key for own in moves.values() for key in own]
        V = {place: torch.stack(list(own.values()), -1) for place, own in moves.items()}
        of_weights, of_rows = (part / var for part in self._found.along(V))
        information = (of_rows - of_weights @ cov @ of_weights.mT).sum(0)
        rest = rho - self._found.with_columns(cov @ w) / var
        rest = rest.split([len(coef) for coef in self._prior.coefs], -2)
        mixed = [(own.mT @ rest[place]).sum((0, 2)) for place, own in V.items()]
        mixed = torch.cat([w.new_zeros(0), *mixed])
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
        effects, sums, w = self._prior, self._sums, self._weights
        rows, sizes = zip(*(coef.shape for coef in effects.coefs), strict=True)
        by_gram = 0.5 * (self._by_log_dets(cov) - w[..., :, None] * w[..., None, :])
        fit = (by_gram * self._gram).sum() + (self._cross * w).sum()
        misfit = (sums.squares / self._var - sums.weight).sum() + self._unexplained.sum()
        gradient = {"noise": 0.5 * misfit[None] - fit}
        if set(names) == {"noise"}:
            return gradient, {}
        by_coefs, weights = self._found.by_coefs(_plus_one(2 * by_gram)), w.split(sizes, -1)
        parts = zip(by_coefs, sums.cross.split(rows, -1), weights, strict=True)
        by_coefs = [(by + y.T @ own) / self._var for by, y, own in parts]
        by_covs = [-0.5 / self._var * block for block in sums.own_grams(effects)]
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


def _traces(matrices):
    """Return the traces (...) of matrices (..., p, p)."""
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def own_blocks(gram, effects):
    """Return the diagonal blocks of matrices (..., p, p), for the constant and each term."""
    return diagonal_blocks(gram, [coef.shape[1] for coef in effects.coefs])
