"""Time, memory and quality against time of one call."""

import threading
import time
from pathlib import Path

import numpy as np
import torch

MEMORY_FIELDS = ("VmRSS", "RssAnon")
MEASURED = ("fit_seconds", "peak_mib", "curve")


def seconds(function, device="cpu"):
    """Wall time of one call, the device's work included."""
    start = time.perf_counter()
    function()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def medians(functions, repeats, device="cpu"):
    """Median times of functions that take turns."""
    turns = [[seconds(function, device) for function in functions] for _ in range(repeats)]
    return np.median(turns, axis=0)


def exponent(x, y):
    """Slope of log y on log x."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def resident():
    """This process's resident memory by field of /proc/self/status, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {field: int(values[field].split()[0]) / 1024 for field in MEMORY_FIELDS}


class PeakMemory:
    """Growth to the largest resident memory within a ``with`` block, sampled every 5 ms."""

    def __enter__(self):
        self._before = self._peak = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join()
        self.growth = {field: peak - self._before[field] for field, peak in self._peak.items()}

    def _sample(self):
        while not self._stop.wait(0.005):
            self._peak = {field: max(self._peak[field], now) for field, now in resident().items()}


class Clock:
    """Processor seconds of a fit, and its loss along the way, whose measuring is not counted.

    Parameters
    ----------
    measure : callable
        Takes a fitted model; returns a dict.
    loss : str
        The entry of that dict to watch.
    watching : bool
        Whether models are measured along the way, not only at the end.

    Attributes
    ----------
    points : list of tuple
        Seconds and loss of each model that was measured.
    found : dict
        What was measured last.
    """

    def __init__(self, measure, loss, *, watching):
        self._measure, self._loss, self._watching = measure, loss, watching
        self.points = []
        self._start = time.process_time()

    def stop(self):
        """Stop while a model is made and measured; returns the seconds so far."""
        self._stopped = time.process_time()
        return self._stopped - self._start

    def record(self, model):
        """Measure a model, made since the clock was stopped, and go on.

        The point is late by what making the model took, as if the fit had ended with it.
        """
        made = time.process_time() - self._start
        self.found = self._measure(model)
        self.points.append((made, self.found[self._loss]))
        self._start += time.process_time() - self._stopped

    def watch(self, model):
        """`stop` and `record` for a model that is there, where models are watched."""
        if self._watching:
            self.stop()
            self.record(model)

    def callbacks(self):
        """For estimators of this package: what watches their iterations."""
        return (_Stop(self), _Record(self)) if self._watching else ()

    def falls(self):
        """The points with a loss below all before, and the last, as text."""
        kept, least = [], np.inf
        for i, (taken, loss) in enumerate(self.points):
            if loss < least or i == len(self.points) - 1:
                kept.append(f"{taken:.4g}:{loss:.6g}")
            least = min(least, loss)
        return " ".join(kept)


class _Hooks:
    def __init__(self, clock):
        self.clock = clock

    def setup(self, estimator, context):
        """Do nothing."""

    def teardown(self, estimator, context):
        """Do nothing."""

    def on_fit_task_begin(self, estimator, context):
        """Do nothing."""


class _Stop(_Hooks):
    def on_fit_task_end(self, estimator, context):
        """Stop the clock before the model is made."""
        self.clock.stop()


class _Record(_Hooks):
    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        """Measure the model, if this task has one."""
        if fitted_estimator is not None:
            self.clock.record(fitted_estimator)


def measured_fit(fit, data, seed, measure, loss, *, watching):
    """Fit a model to the training rows of a split: what ``measure`` finds, and `MEASURED`.

    Parameters
    ----------
    fit : callable
        Rows, targets, seed and `Clock` to a fitted model, or None where it declines.
    data : Split
    seed : int
    measure, loss, watching
        As of `Clock`.

    Returns
    -------
    found : dict
        Empty where ``fit`` declined.
    """
    with PeakMemory() as memory:
        clock = Clock(measure, loss, watching=watching)
        model = fit(data.X_train, data.y_train, seed, clock)
        if model is None:
            return {}
        fit_seconds = clock.stop()
        clock.record(model)
    return {
        **clock.found,
        "fit_seconds": fit_seconds,
        "peak_mib": memory.growth["VmRSS"],
        "curve": clock.falls(),
    }


def curve(text):
    """Seconds and losses of a curve as text."""
    points = [point.split(":") for point in text.split()]
    return np.array(points, dtype=float).reshape(-1, 2).T


def time_to(text, target):
    """Seconds at which a curve first is at most ``target``; infinite where it never is."""
    taken, losses = curve(text)
    reached = losses <= target + 1e-9
    return taken[reached.argmax()] if reached.any() else np.inf
