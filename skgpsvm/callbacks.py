"""Callback that saves checkpoints of a fit, from which a killed fit resumes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import numbers
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import joblib
import torch
from sklearn.base import BaseEstimator
from sklearn.callback import CallbackContext

from ._estimators import GPEstimator
from ._fitted_models import LAYOUT
from ._typing import PathLike
from ._validation import check_number
from .exceptions import warn

try:
    import fcntl
except ImportError:  # on Windows, where identical fits that run at once need separate folders
    # Windows has none.
    fcntl = None  # type: ignore[assignment]

__all__ = ["Checkpoint"]

_FIRST_LINE = b"skgpsvm checkpoint\n"
_ZIP = b"PK\x03\x04"
_MAX_HEADER, _CHUNK = 2**16, 2**20
_UNPICKLABLE = pickle.PicklingError, AttributeError, TypeError
_UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}


class Checkpoint:
    """Callback that saves the state of a fit, and resumes a killed fit from it.

    Set it with ``set_callbacks`` on an estimator of the package. If the estimator is inside a
    pipeline or a search, set it on the estimator, not on the pipeline or search.

    A fit saves its state to a file in ``directory``. If it is killed, a fit of the same estimator,
    parameters and data continues from the file, and ends with the same model as a fit that was
    never interrupted. Other fits ignore the file: its name is a digest of class, parameters, data
    and weights, so one directory serves a whole grid search. The file is replaced atomically, and
    removed when the fit has succeeded.

    Parameters
    ----------
    directory : str or path-like
        Directory of the files. It is created if it does not exist.
    every : int, default=1
        Number of iterations between saves. Each save writes the whole state to the disk: use a
        larger number if iterations are quick or the disk is slow.

    Notes
    -----
    A file that cannot be used (damaged, empty, of another version, not a checkpoint) is renamed to
    end in ``.bad``, and the fit starts anew. A UserWarning names the file and the reason. If the
    directory or the disk cannot be written to, the fit goes on without being saved, with one
    UserWarning.

    If identical fits run at once, in threads or processes, only the first one is saved; the others
    warn. Windows and some network file systems lack the lock, ``flock``, that this needs: there,
    the file has the state of whichever fit saved last.

    The parameters must be picklable. Functions and classes among them are identified by name, so a
    `lambda` is refused.

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

    def __init__(self, directory: PathLike, every: int = 1) -> None:
        self.directory = directory
        self.every = every

    def setup(self, estimator: BaseEstimator, context: CallbackContext) -> None:
        """Check the parameters, and attach this checkpoint to the estimator."""
        if not isinstance(estimator, GPEstimator):
            raise TypeError(
                f"Checkpoint saves fits of skgpsvm's estimators only; it was set on "
                f"{type(estimator).__name__}. Set it on the estimator inside, as in "
                "make_pipeline(StandardScaler(), SVGPRegressor().set_callbacks(Checkpoint(...)))."
            )
        every, directory = self.every, self.directory
        check_number("every", every, 1, integer=True)
        named = isinstance(directory, str | os.PathLike) and isinstance(os.fspath(directory), str)
        if not (named and os.fspath(directory)):
            raise ValueError(
                f"directory={directory!r} must be the path of a folder, a string that is not empty "
                "or a pathlib.Path."
            )
        for name, value in estimator.get_params(deep=False).items():
            try:
                joblib.hash(value)
            except _UNPICKLABLE as error:
                raise ValueError(
                    f"Checkpoint tells fits apart by their parameters, and {name}={value!r} cannot "
                    "be pickled. Define functions and classes by name at the top of a module, or "
                    "fit without Checkpoint."
                ) from error
        estimator._checkpoint = self

    def teardown(self, estimator: BaseEstimator, context: CallbackContext) -> None:
        """Detach this checkpoint, and release its file for other fits."""
        vars(estimator).pop("_checkpoint", None)
        if file := vars(estimator).pop("_checkpoint_file", None):
            file.close()

    def on_fit_task_begin(self, estimator: BaseEstimator, context: CallbackContext) -> None:
        """Do nothing."""

    def on_fit_task_end(self, estimator: BaseEstimator, context: CallbackContext) -> None:
        """Do nothing: the fit itself saves its state, which only it knows as a whole."""

    def open(self, estimator: GPEstimator, *data: Any) -> CheckpointFile:
        """Return the `CheckpointFile` of one fit."""
        identity = (type(estimator).__name__, estimator.get_params(), *data)
        name = f"{type(estimator).__name__}-{joblib.hash(identity)}.checkpoint"
        estimator._checkpoint_file = CheckpointFile(Path(self.directory) / name, self.every)
        return estimator._checkpoint_file


class CheckpointFile:
    """File with the stages of one fit: plain values and tensors, so that loading runs no code.

    The file begins with a fixed line and the SHA-256 of the rest. The rest is a line of JSON that
    describes the file, and the stages as ``torch.save`` writes them.

    ``stages`` has values and states of stages, by name. Initially, they are those of the file.
    """

    def __init__(self, path, every):
        from . import __version__

        self.path, self.every, self.stages = path, every, {}
        self._header = {"layout": LAYOUT, "version": __version__, "fit": path.stem}
        self._told, self._lock, self._is_ours = False, None, False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock, self._is_ours = _locked(path.with_suffix(".lock"))
            if self._is_ours:
                self._remove_drafts()
        except OSError as error:
            self._tell(error)
            return
        if not self._is_ours:
            warn(
                f"Another fit of the same estimator, parameters and data is running and saves to "
                f"{path}: this one goes on without being saved."
            )
        elif os.path.lexists(path):
            try:
                self.stages = self._loaded()
            except _Unusable as error:
                self.set_aside(error)

    def __getstate__(self):
        return vars(self) | {"_lock": None, "_is_ours": False}

    def save(self, stage, state, *, due):
        """Record the state of a stage and write the file if it is due."""
        self.stages[stage] = state
        if due and self._is_ours:
            try:
                self._write()
            except OSError as error:
                self._tell(error)

    def set_aside(self, reason, stage=None):
        """Rename the file, warn, and drop its stages, or those from ``stage`` on."""
        names = list(self.stages)
        for name in names[names.index(stage) :] if stage else names:
            del self.stages[name]
        bad, count = self.path.with_suffix(".bad"), 1
        while os.path.lexists(bad):
            count += 1
            bad = self.path.with_suffix(f".bad-{count}")
        try:
            os.rename(self.path, bad)
            fate = f"It is now {bad.name}"
        except OSError as error:
            self._is_ours, fate = False, f"It could not be renamed ({_reason(error)})"
        warn(
            f"The checkpoint {self.path} cannot be used: {reason}. {fate}, and the fit starts "
            f"{f'its stage {stage!r} ' if stage else ''}anew."
        )

    def remove(self):
        """Remove the file, after the fit has ended."""
        if self._is_ours:
            try:
                self.path.unlink(missing_ok=True)
                self._remove_drafts()
            except OSError as error:
                self._tell(error, "removed")

    def close(self):
        """Release the lock, so that another fit can use the file."""
        if self._lock:
            with contextlib.suppress(OSError):  # the folder may be gone or read-only by now
                self.path.with_suffix(".lock").unlink(missing_ok=True)
            self._lock.close()
        self._lock, self._is_ours = None, False

    def _write(self):
        buffer = io.BytesIO()
        torch.save(self.stages, buffer)
        parts = json.dumps(self._header).encode() + b"\n", buffer.getbuffer()
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        draft = self.path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            with open(draft, "wb") as file:
                file.write(_FIRST_LINE + digest.hexdigest().encode() + b"\n")
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
        finally:
            with contextlib.suppress(OSError):  # the error of the write itself is what matters
                draft.unlink(missing_ok=True)
        _sync_folder(self.path.parent)

    def _loaded(self):
        """Return the stages of the file, checked before it is unpickled; raise `_Unusable`."""
        if not self.path.is_file():
            raise _Unusable("it is not a file")
        try:
            with open(self.path, "rb") as file:
                if file.read(len(_FIRST_LINE)) != _FIRST_LINE:
                    raise _Unusable("it is empty, foreign or of an older version of skgpsvm")
                told, digest = file.read(65), hashlib.sha256()
                start = file.tell()
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                if told != digest.hexdigest().encode() + b"\n":
                    raise _Unusable("it is damaged, its checksum does not match")
                file.seek(start)
                header = _parsed(file.readline(_MAX_HEADER))
                if header != self._header:
                    raise _Unusable(f"it is of {header}, and this fit of {self._header}")
                content = file.read()
        except OSError as error:
            raise _Unusable(_reason(error)) from error
        if not content.startswith(_ZIP):  # torch would read anything else as its old format
            raise _Unusable("its content is not that of a checkpoint")
        try:
            stages = torch.load(io.BytesIO(content), weights_only=True)
        except Exception as error:  # a forged file or another torch can cause any error
            raise _Unusable(f"torch cannot load it, {type(error).__name__}") from error
        if not (isinstance(stages, dict) and all(map(_is_sound, stages.values()))):
            raise _Unusable("its content is not that of a checkpoint")
        return stages

    def _remove_drafts(self):
        """Remove temporary files of fits that were killed while writing."""
        for draft in self.path.parent.glob(f"{self.path.stem}.*.tmp"):
            draft.unlink(missing_ok=True)

    def _tell(self, error, what="saved"):
        if not self._told:
            self._told = True
            warn(
                f"The checkpoint {self.path} could not be {what} ({_reason(error)}). The fit goes "
                "on; if it is killed it starts anew, or from the last state that could be saved."
            )


class _Unusable(Exception):
    """Error that a file is not a usable checkpoint; its message is a clause with the reason."""


def _parsed(line):
    try:
        return json.loads(line)
    except ValueError as error:
        raise _Unusable("its header is not of a checkpoint") from error


def _is_sound(entry):
    """Return whether an entry is a number, or a stage as `Run` saves it."""
    if isinstance(entry, numbers.Number):
        return True
    return (
        isinstance(entry, dict)
        and entry.keys() == {"state", "curve", "done", "outline"}
        and isinstance(entry["state"], dict)
        and isinstance(entry["curve"], list)
        and isinstance(entry["done"], bool)
    )


def _reason(error):
    return error.strerror or type(error).__name__


def _locked(path):
    """Return the open file with the lock (None without one), and whether the lock was free."""
    if fcntl is None:
        return None, True
    while True:
        file = open(path, "ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between the two calls.
            if os.path.lexists(path) and os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                return file, True
        except BlockingIOError:
            file.close()
            return None, False
        except FileNotFoundError:
            pass
        except OSError as error:
            file.close()
            if error.errno in _UNSUPPORTED:
                return None, True
            raise
        file.close()


def _sync_folder(folder):
    """Write a rename through to the disk, if the operating system supports it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)
