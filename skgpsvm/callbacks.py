"""Callbacks of a fit beyond scikit-learn's own: the checkpoint from which a killed fit resumes."""

import numbers
import os
from pathlib import Path

import joblib
import torch

__all__ = ["Checkpoint"]


class Checkpoint:
    """Save the state of a fit after its iterations, and resume a killed fit from it.

    Set on an estimator with ``set_callbacks``. A fit of the same estimator, parameters and data
    that finds its own file in ``directory`` continues from it and ends with the same model as a
    fit that was never interrupted; any other fit ignores the file. The file's name is a digest of
    class, parameters, data and weights, so one directory serves a whole grid search. The file is
    replaced atomically and removed when the fit has ended well.

    Parameters
    ----------
    directory : str or path-like
        Where the files are written; made if missing.
    every : int, default=1
        Save after every so many iterations.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from skgpsvm import BayesianSVC
    >>> from skgpsvm.callbacks import Checkpoint
    >>> svc = BayesianSVC(random_state=0).set_callbacks(Checkpoint(tempfile.mkdtemp()))
    >>> svc.fit(*load_iris(return_X_y=True)).score(*load_iris(return_X_y=True)) > 0.9
    True
    """

    def __init__(self, directory, every=1):
        self.directory = directory
        self.every = every

    def setup(self, estimator, context):
        """Offer this checkpoint to the fit that begins."""
        if not isinstance(self.every, numbers.Integral) or self.every < 1:
            raise ValueError(f"every={self.every!r} must be an integer of at least 1.")
        estimator._checkpoint = self

    def teardown(self, estimator, context):
        """Withdraw it."""
        vars(estimator).pop("_checkpoint", None)

    def on_fit_task_begin(self, estimator, context):
        """Do nothing."""

    def on_fit_task_end(self, estimator, context):
        """Do nothing: the fit itself saves, since only it knows its whole state."""

    def open(self, estimator, *data):
        """The file of one fit: `CheckpointFile`."""
        identity = (type(estimator).__name__, estimator.get_params(), *data)
        name = f"{type(estimator).__name__}-{joblib.hash(identity)}.pt"
        return CheckpointFile(Path(self.directory) / name, self.every)


class CheckpointFile:
    """The stages of one fit on disk: plain values and tensors, so that loading runs no code."""

    def __init__(self, path, every):
        self.path, self.every = path, every
        path.parent.mkdir(parents=True, exist_ok=True)
        self.stages = torch.load(path, weights_only=True) if path.exists() else {}

    def save(self, stage, state, *, due):
        """Record the state of a stage and write the file if it is due."""
        self.stages[stage] = state
        if due:
            draft = self.path.with_suffix(f".{os.getpid()}.tmp")
            torch.save(self.stages, draft)
            os.replace(draft, self.path)

    def remove(self):
        """Forget the fit: it has ended; also what a kill in the midst of writing left."""
        for file in (self.path, *self.path.parent.glob(f"{self.path.stem}.*.tmp")):
            file.unlink(missing_ok=True)
