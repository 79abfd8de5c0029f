"""Hyperparameters of sparse X, learned on few rows in coordinates of the space that they span."""

from dataclasses import replace

import torch

from .._csr import inner_products
from .elbo_search import elbo_learning, learn_from_best, with_kernel_of_few_rows
from .initialization import scaled_lengths

# Rows for one latent function, and for several, each of which takes a Cholesky factor of its own.
# Learning takes some 5 to 10 seconds with either.
_MAX_ROWS, _MAX_ROWS_OF_CLASSES = 800, 400
# A line search from too large a variance may pass over weak signal and end at no function at all.
_VARIANCE_FACTORS = (1.0, 0.1)


def learn_in_row_span(sparse, start, n_latents):
    r"""Return a start with learned hyperparameters, and the objectives if all rows took part.

    Rows with many features resemble no center of a cluster, so that a few inducing points bound the
    evidence so loosely that a function without signal is best; points that move separate the rows
    that they are fitted to, and no others. Here, every one of some hundred rows is an inducing
    point, which leaves no gap. Learning starts from the initial kernel and from the smoothest one,
    each with its variances or a tenth of them, whichever have the higher ELBO.

    The kernel has one length scale for all features, and depends on inner products of the rows
    only. With :math:`X X^\top = V \Lambda V^\top`, the rows of :math:`V \Lambda^{1/2}` have the
    same ones, and no more coordinates than there are rows.

    ``n_latents`` is the number of the classifier's latent functions, of one model or of several.
    """
    max_rows = _MAX_ROWS if n_latents == 1 else _MAX_ROWS_OF_CLASSES
    rows = sparse.rows.subset(max_rows, sparse.problem.random_state)
    X = _coordinates(rows.take(slice(None))[0].double()).to(rows.dtype)
    rows = rows.with_inputs(X).with_even_weights()
    learned = tuple(name for name in sparse.learned if name != "Z")
    few, model = replace(sparse, rows=rows, learned=learned), replace(start, mean=None, root=None)
    few, first = with_kernel_of_few_rows(few, replace(model, Z=X.cpu().numpy()))
    starts, free = [first], few.free_parts(first)
    if "theta" in free:
        learning, tensors = elbo_learning(few, first, free), first.state(rows.device)
        state, thetas = learning.init(tensors), (tensors["theta"], few.prior().smoothest())
        best = [learning.best_theta(_variances(first, theta), state) for theta in thetas]
        starts = [first.at(replace(state, theta=theta)) for theta in best]
    found, curve = learn_from_best(few, starts)
    found = replace(model, kernel=found.kernel, noise=found.noise)
    return found, curve if rows.n_rows == sparse.rows.n_rows else ()


def _variances(model, theta):
    """Return theta of a model's kernel with each of the factors of its variances."""
    kernel = model.kernel.clone_with_theta(theta.cpu().numpy())
    scaled = [scaled_lengths(kernel, 1.0, factor) for factor in _VARIANCE_FACTORS]
    return [theta.new_tensor(each) for each in scaled]


def _coordinates(X):
    """Return coordinates (n, n) of rows, sparse or not, that have the same inner products."""
    values, vectors = torch.linalg.eigh(inner_products(X))
    return vectors * values.clamp_min(0).sqrt()
