"""The protocol of every fit: states, stages, and the loop that runs a stage.

A *state* is typed and holds all that an algorithm needs to continue. A *stage* is one algorithm: it
makes a state and improves it, iteration by iteration. A *run* is one fit: it iterates stages, tells
callbacks of every iteration, and saves states to a checkpoint.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import joblib
import torch
from sklearn.exceptions import ConvergenceWarning

from ._data import to_tensor
from ._distributed import gather, raise_on_all_ranks, rank, refuse_differences
from .exceptions import DivergenceError, warn

_MAX_NAMED = 3  # stages that a warning lists


@dataclass
class State:
    """Solution of an algorithm so far, and all that the algorithm needs to continue.

    Fields of a subclass are tensors, plain values, and lists, tuples and dicts of these: what
    `torch.load` reads with ``weights_only``.
    """

    objective: float = math.nan  # of the last iteration, in nats; higher is better

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, without copies of tensors."""
        return dict(vars(self))

    def restore(self, fields: dict[str, Any]) -> None:
        """Set all fields to those that `as_dict` gave."""
        vars(self).update(fields)

    def to_arrays(self) -> dict[str, Any]:
        """Return the fields by name, tensors as arrays, for a fitted model to keep."""
        return _converted(self.as_dict(), lambda tensor: tensor.cpu().numpy())

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], device) -> Self:
        """Return the state that `to_arrays` gave, with new tensors on a device."""
        return cls(**_converted(arrays, lambda array: to_tensor(array, device)))


@dataclass(kw_only=True)
class SparseState(State):
    """State of the fit of a sparse GP."""

    theta: torch.Tensor  # (k,): logarithms of the kernel's free hyperparameters
    Z: torch.Tensor  # (m, d): inducing points
    noise: torch.Tensor  # (q,): logarithms of the likelihood's parameters
    # mean (c, p), root (c, p, p): posterior of the whitened weights, None before there is one. The
    # covariance is ``root @ root.mT``, and roots are upper triangular.
    mean: torch.Tensor | None = None
    root: torch.Tensor | None = None

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return what can be learned besides the posterior, by name."""
        return {"theta": self.theta, "Z": self.Z, "noise": self.noise}


def _converted(value, convert):
    """Return tensors or arrays, nested in dicts, lists and tuples, with all converted."""
    if isinstance(value, dict):
        return {name: _converted(part, convert) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_converted(part, convert) for part in value)
    return convert(value) if hasattr(value, "shape") else value


class Stage(ABC):
    """One algorithm. It holds the problem (rows, kernel, likelihood); its state holds the solution.

    Subclasses also have a method that makes the initial state, ``init``, whose arguments differ.
    """

    @abstractmethod
    def step(self, state) -> None:
        """Take one iteration: change the state in place and set its ``objective``."""

    def converged(self, state) -> bool:
        """Return whether the last iteration found nothing more to do."""
        return False


class PosteriorStage(Stage):
    """Stage that finds the posterior of a fitted model, or updates it."""

    is_exact = False  # whether one step finds the posterior

    @abstractmethod
    def at(self, state) -> Any:
        """Return what holds the posterior of a state, from which summaries are computed."""


class Run:
    """One fit: a sequence of stages, whose states a checkpoint can save.

    The callbacks of the estimator hear of every iteration, and its `Checkpoint`, if any, resumes
    the fit. They get X and y. ``data`` is everything that distinguishes this fit from another of
    the same estimator: validated data, and the model that it starts from.
    """

    def __init__(self, estimator, X, y, *data):
        self._estimator, self._shown = estimator, {"X": X, "y": y}
        self._context = estimator._init_callback_context(max_subtasks=None)
        self._context.call_on_fit_task_begin(estimator=estimator, **self._shown)
        checkpoint = getattr(estimator, "_checkpoint", None)
        self._checkpoint = None
        # Limits by names of the stages that reached them though they must converge
        self.unconverged: dict[str, int] = {}
        if checkpoint:
            shards = gather(joblib.hash(data))
            with raise_on_all_ranks():
                self._checkpoint = checkpoint.open(estimator, rank(), *shards)

    @property
    def has_converged(self):
        """True if all stages that must converge have done so."""
        return not self.unconverged

    def checkpointed(self, name, make):
        """Return the value that ``make`` gave when the fit began, also if the fit was resumed."""
        if not self._checkpoint:
            return make()
        if name not in self._checkpoint.stages:
            self._checkpoint.save(name, make(), due=True)
        return self._checkpoint.stages[name]

    def run(
        self,
        name: str,
        stage: Stage,
        state: State,
        max_iter: int,
        *,
        must_converge: bool = True,
        attributes=None,
    ) -> list[float]:
        """Iterate a stage until it has converged; return the objectives of all iterations.

        The state is changed in place, or replaced by the content of the checkpoint. The ``name`` of
        the stage is that in checkpoints, callbacks and warnings; it is unique within a fit.
        ``must_converge`` says whether `end` warns if ``max_iter`` came first. ``attributes`` takes
        the state and returns the fitted attributes it stands for, for callbacks that ask for the
        estimator in the middle of a fit. A `DivergenceError` is raised if an objective is not
        finite.
        """
        outline = self._checkpoint and repr(_outline(state.as_dict()))
        curve, done = self._resumed(name, state, outline)
        shown = dict(self._shown)
        if attributes is not None:
            shown["reconstruction_attributes"] = lambda: attributes(state)
        context = self._context.subcontext(task_name=name, max_subtasks=max_iter)
        context.call_on_fit_task_begin(estimator=self._estimator, **self._shown)
        while not done and len(curve) < max_iter:
            task = context.subcontext(task_name="iteration")
            task.call_on_fit_task_begin(estimator=self._estimator, **shown)
            stage.step(state)
            objective = float(state.objective)
            with raise_on_all_ranks() as ranks:
                if not math.isfinite(objective):
                    raise DivergenceError(
                        f"The objective became {objective} in iteration {len(curve) + 1} of stage "
                        f"{name!r}. Scale the features, lower learning_rate or use dtype='float64'."
                    )
                curve.append(objective)
                stop = task.call_on_fit_task_end(estimator=self._estimator, **shown)
                ranks.append((objective, bool(stop) or bool(stage.converged(state))))
            objectives, ends = zip(*ranks, strict=True)
            refuse_differences("objective", objectives)
            done = any(ends)
            if self._checkpoint:
                due = done or len(curve) == max_iter or len(curve) % self._checkpoint.every == 0
                entry = {"state": state.as_dict(), "curve": curve, "done": done, "outline": outline}
                self._checkpoint.save(name, entry, due=due)
        if must_converge and not done:
            self.unconverged[name] = max_iter
        context.call_on_fit_task_end(estimator=self._estimator, **shown)
        return curve

    def _resumed(self, name, state, outline):
        """Restore a state from the checkpoint; return its curve, and whether its stage is done."""
        checkpoint = self._checkpoint
        if not checkpoint:
            return [], False
        saved = checkpoint.stages.get(name)
        if saved and saved["outline"] != outline:
            checkpoint.set_aside("a state in it is laid out otherwise than this fit's", name)
            saved = None
        held = gather(len(saved["curve"]) if saved else 0)
        if not saved or len(set(held)) > 1:  # a rank was killed before it could save
            return [], False
        state.restore(saved["state"])
        return list(saved["curve"]), saved["done"]

    def end(self, attributes, doubts=list) -> None:
        """Set the fitted attributes, tell the callbacks, and remove the checkpoint.

        Warns if a stage that must converge did not, and of every doubt: ``doubts`` is called once
        the attributes are set, and returns messages.
        """
        self._context.call_on_fit_task_end(
            estimator=self._estimator, **self._shown, reconstruction_attributes=lambda: attributes
        )
        if self._checkpoint:
            self._checkpoint.remove()
        vars(self._estimator).update(attributes)
        if self.unconverged:
            names = [repr(name) for name in self.unconverged]
            rest = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            stages = f"stage{'s' * (len(names) > 1)} {', '.join(names[:_MAX_NAMED])}{rest}"
            warn(
                f"{type(self._estimator).__name__} reached "
                f"max_iter={max(self.unconverged.values())} before its change fell below tol, in "
                f"{stages}. Raise max_iter, or tol if the scores are good enough.",
                ConvergenceWarning,
            )
        for doubt in doubts():
            warn(doubt, ConvergenceWarning)


def _outline(value):
    """Return names, shapes and types of all parts of a state."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, dict):
        return {name: _outline(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_outline(part) for part in value]
    return type(value).__name__
