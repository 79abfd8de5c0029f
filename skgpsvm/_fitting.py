"""The loop of every fit: iterations, callbacks, stopping and checkpoints."""

import math

import joblib
import torch
from sklearn.exceptions import ConvergenceWarning

from ._distributed import check_equal, gather, rank, run_on_all_ranks
from .exceptions import DivergenceError, warn


class Run:
    """One fit: a sequence of stages, each a loop over a state that can be saved.

    Parameters
    ----------
    estimator : CallbackSupportMixin
        Its callbacks are told of every iteration, and its `Checkpoint`, if any, resumes the fit.
    X, y : array-like
        What the callbacks are shown.
    *data : object
        What tells this fit from another of the same estimator: checked data, and where it starts.
    """

    def __init__(self, estimator, X, y, *data):
        self._estimator, self._shown = estimator, {"X": X, "y": y}
        self._context = estimator._init_callback_context(max_subtasks=None)
        self._context.call_on_fit_task_begin(estimator=estimator, **self._shown)
        checkpoint = getattr(estimator, "_checkpoint", None)
        self._checkpoint, self._unconverged = None, {}
        if checkpoint:
            shards = gather(joblib.hash(data))
            self._checkpoint = run_on_all_ranks(checkpoint.open, estimator, rank(), *shards)

    def checkpointed(self, name, make):
        """The value that ``make`` gave when the fit began, also where it resumes."""
        if not self._checkpoint:
            return make()
        if name not in self._checkpoint.stages:
            self._checkpoint.save(name, make(), due=True)
        return self._checkpoint.stages[name]

    def stage(self, name, state, step, max_iter, *, finished=None, converged=None, attributes=None):
        """Iterate ``objective = step(state)`` and return the objectives of all iterations.

        Parameters
        ----------
        name : str
        state : dict
            Tensors and plain values, changed in place by ``step``: all that the stage needs to
            continue. Restored from the checkpoint, where there is one.
        step : callable
            Takes the state, does one iteration and returns the objective (higher is better).
        max_iter : int
        finished, converged : callable, optional
            Take the state after each iteration and end the stage where true. A stage that should
            have ``converged`` and did not is in the `ConvergenceWarning` of `end`.
        attributes : callable, optional
            Takes the state and returns the fitted attributes it stands for, for callbacks that
            ask for the estimator as it is.

        Raises
        ------
        DivergenceError
            If an objective is not finite.
        """
        curve, done = [], False
        outline = self._checkpoint and repr(_outline(state))
        saved = self._checkpoint.stages.get(name) if self._checkpoint else None
        if saved and saved["outline"] != outline:
            self._checkpoint.set_aside("a state in it is laid out otherwise than this fit's", name)
            saved = None
        held = gather(len(saved["curve"]) if saved else 0)
        if saved and len(set(held)) == 1:  # else a rank was killed before it could save
            state.clear()
            state.update(saved["state"])
            curve, done = list(saved["curve"]), saved["done"]
        shown = dict(self._shown)
        if attributes is not None:
            shown["reconstruction_attributes"] = lambda: attributes(state)
        context = self._context.subcontext(task_name=name, max_subtasks=max_iter)
        context.call_on_fit_task_begin(estimator=self._estimator, **self._shown)
        while not done and len(curve) < max_iter:
            task = context.subcontext(task_name="iteration")
            task.call_on_fit_task_begin(estimator=self._estimator, **shown)
            objective = float(step(state))
            check_equal({"objective": objective})
            if not math.isfinite(objective):
                raise DivergenceError(
                    f"The objective became {objective} in iteration {len(curve) + 1} of stage "
                    f"{name!r}. Scale the features, lower learning_rate or use dtype='float64'."
                )
            curve.append(objective)
            stop = run_on_all_ranks(task.call_on_fit_task_end, estimator=self._estimator, **shown)
            done = bool(stop) or any(test(state) for test in (finished, converged) if test)
            done = any(gather(done))
            if self._checkpoint:
                due = done or len(curve) == max_iter or len(curve) % self._checkpoint.every == 0
                saved = {"state": dict(state), "curve": curve, "done": done}
                self._checkpoint.save(name, saved | {"outline": outline}, due=due)
        if converged and not done:
            self._unconverged[name] = max_iter
        context.call_on_fit_task_end(estimator=self._estimator, **shown)
        return curve

    def end(self, attributes, doubts=list):
        """Give the estimator what was found, tell its callbacks, and forget its checkpoint.

        Parameters
        ----------
        attributes : dict
        doubts : callable
            Called when the estimator has the attributes; gives messages to warn of.

        Warns
        -----
        ConvergenceWarning
            If stages should have converged and did not, and of every doubt.
        """
        self._context.call_on_fit_task_end(
            estimator=self._estimator, **self._shown, reconstruction_attributes=lambda: attributes
        )
        if self._checkpoint:
            self._checkpoint.remove()
        vars(self._estimator).update(attributes)
        if self._unconverged:
            names = ", ".join(map(repr, self._unconverged))
            stages = f"stage{'s' * (len(self._unconverged) > 1)} {names}"
            warn(
                f"{type(self._estimator).__name__} reached "
                f"max_iter={max(self._unconverged.values())} before its change fell below tol, in "
                f"{stages}. Raise max_iter, or tol if the scores are good enough.",
                ConvergenceWarning,
            )
        for doubt in doubts():
            warn(doubt, ConvergenceWarning)


def _outline(value):
    """Names, shapes and kinds of all in a state."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, dict):
        return {name: _outline(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_outline(part) for part in value]
    return type(value).__name__
