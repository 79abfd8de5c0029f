"""Fits by quadruply stochastic steps: the run, and the state that is stored."""

from dataclasses import replace

from .._estimators import FOLLOWED
from .._parameters import ALWAYS, OtherThan, where
from .._predictive import Summary
from .._problem import Fitted
from ..solvers import QuadruplyStochastic

_OPTIONS = "batch_size", "control_variate", "decay", "gradient", "learning_rate", "n_sampled_basis"
# A pass of steps has no tolerance.
STREAM_FOLLOWED = {name: use for name, use in FOLLOWED.items() if name != "tol"} | {
    f"solver__{name}": ALWAYS for name in _OPTIONS
}
STEPS = where(solver=QuadruplyStochastic)
STEP_USES = {
    "solver__n_support": where(solver__step="sgd") | where(solver__control_variate=OtherThan(None))
}


def by_steps(estimator):
    """Return whether an estimator is fitted by stochastic steps."""
    return isinstance(estimator._solver(), QuadruplyStochastic)


def refuse_known_noise(estimator, noise_variance, solver):
    """Refuse known noise of rows with stochastic steps, in favor of another solver."""
    if noise_variance is not None and by_steps(estimator):
        raise ValueError(
            "Stochastic steps take no noise_variance of rows: leave it out, or set "
            f"solver={solver!r}."
        )


def run_steps(
    kind, estimator, problem, start, rows, fitted, *, left_out=None, streamed=False, **options
):
    """Run passes of steps over rows; return the `Fitted`, with estimates of the ELBO as curve.

    ``kind`` is `StochasticSteps` or a subclass, and ``options`` are arguments that only it has. The
    steps begin at the model ``start`` with support rows drawn at random; if that is the start of
    the problem, they continue those that it was fitted by. ``fitted`` takes the steps and their
    state, and returns the fitted model. ``left_out`` is that of the `Summary`. If ``streamed``, the
    rows come in addition to earlier ones, and get one pass.
    """
    # Independent of draws by the learning, which may be resumed.
    problem.generator.manual_seed(problem.seed)
    device, solver = rows.device, estimator._solver()
    passes = 1 if streamed else estimator.max_iter
    basis = start.basis(device) if estimator.covariance == "nystroem" else None
    n_dense = estimator.n_dense_columns if estimator.covariance == "chevron" else 0
    parts = estimator._make_likelihood(), start.mean_bases(device), basis, rows
    options |= {"passes": passes, "n_dense": n_dense}
    steps = kind(*parts, problem.generator, solver, **options)
    if start is problem.start:
        state = kind.state_class.from_arrays(start.steps, device)
    else:
        given = start.state(device)
        support = rows.points(rows.drawn(solver.n_support, problem.random_state))
        state = steps.init(given["theta"], given["noise"], support)
    steps.begin(state, more=streamed)

    def evaluate(state):
        return [fitted(steps, state)], [Summary(state.objective, left_out)]

    curve = problem.run_stage("posterior", steps, state, passes, evaluate, must_converge=False)
    steps.check(state)
    (model,), (summary,) = evaluate(state)
    return Fitted(replace(model, steps=state.to_arrays()), curve, summary)
