"""The solvers of sparse GPs that take steps."""

from typing import Literal

from .._inference.natural_gradient import GradientInference, NaturalGradientInference
from .._parameters import where
from .._sparse import MINIBATCH
from .._variational import LEARNED
from ..solvers import Gradient, NaturalGradient

STEPS = {"natural_gradient": NaturalGradient(), "gradient": Gradient()}
StepsLike = Literal["natural_gradient", "gradient"] | NaturalGradient | Gradient
USES = {"solver__learning_rate": LEARNED | where(solver=Gradient)}
MAX_FULL_BATCH = 10_000  # rows


def posterior_stage(sparse, model, solver, *, in_batches=True):
    """Return the stage of a solver that finds the posterior and learns what is free.

    If ``in_batches``, natural gradients on many rows take minibatches by default.
    """
    method, batch_size = GradientInference, solver.batch_size
    if isinstance(solver, NaturalGradient):
        method, many = NaturalGradientInference, sparse.rows.n_rows > MAX_FULL_BATCH
        if batch_size is None and in_batches and many:
            batch_size = MINIBATCH
    options = solver.get_params() | {"batch_size": batch_size}
    return sparse.inference(model, method, sparse.free_parts(model), **options)
