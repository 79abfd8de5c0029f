"""Minibatches of natural-gradient steps."""

from .._distributed import n_ranks

_MAX_FULL_BATCH, _MINIBATCH = 10_000, 1024  # rows


def batch_size(given, rows):
    """Return the rows per minibatch of natural gradients; None is all rows."""
    if given is None and n_ranks() == 1 and rows.n_rows > _MAX_FULL_BATCH:
        return _MINIBATCH
    return given
