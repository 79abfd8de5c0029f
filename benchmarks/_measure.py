"""Measurement of the time and memory of a call, and of its quality against time."""

import threading
import time
from pathlib import Path

import numpy as np
import torch

MEMORY_FIELDS = ("VmRSS", "RssAnon")
MEASURED = ("fit_seconds", "peak_mib", "curve")


def seconds(function, device="cpu"):
    """Return the wall time of one call, including the work of the device."""
    start = time.perf_counter()
    function()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def medians(functions, repeats, device="cpu"):
    """Return the median times of functions that are called in turn."""
    turns = [[seconds(function, device) for function in functions] for _ in range(repeats)]
    return np.median(turns, axis=0)


def exponent(x, y):
    """Return the slope of log y on log x."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def resident():
    """Return this process's resident memory, in MiB, by field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {field: int(values[field].split()[0]) / 1024 for field in MEMORY_FIELDS}


class PeakMemory:
    """Context that measures peak growth of resident memory, sampled every 5 ms."""

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
    """Clock of the processor time of a fit that records the loss over time.

    The time spent on measuring the loss is not counted.

    Parameters
    ----------
    measure : callable
        Function of a fitted model that returns a dict.
    loss : str
        Key of the loss in that dict.
    watching : bool
        Whether models are also measured during the fit, not only at its end.

    Attributes
    ----------
    points : list of tuple
        Seconds and loss of each model that was measured.
    found : dict
        Result of the last measurement.
    """

    def __init__(self, measure, loss, *, watching):
        self._measure, self._loss, self._watching = measure, loss, watching
        self.points = []
        self._start = time.process_time()

    def stop(self):
        """Stop the clock while a model is made and measured, and return the seconds so far."""
        self._stopped = time.process_time()
        return self._stopped - self._start

    def record(self, model):
        """Measure a model that was made since the clock was stopped, and start the clock again.

        The recorded time includes making the model, as if the fit had ended with it.
        """
        made = time.process_time() - self._start
        self.found = self._measure(model)
        self.points.append((made, self.found[self._loss]))
        self._start += time.process_time() - self._stopped

    def watch(self, model):
        """Stop the clock and measure a model, if models are measured during the fit."""
        if self._watching:
            self.stop()
            self.record(model)

    def callbacks(self):
        """Return callbacks that watch the iterations of this package's estimators."""
        return (_Stop(self), _Record(self)) if self._watching else ()

    def falls(self):
        """Return the points whose loss is lower than all before, and the last point, as text."""
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
    """Fit a model to the training rows of a split, and return its measurements.

    Parameters
    ----------
    fit : callable
        Function of rows, targets, seed and `Clock` that returns a fitted model, or None if the
        method is not applicable.
    data : Split
    seed : int
    measure, loss, watching
        Parameters of `Clock`.

    Returns
    -------
    found : dict
        Results of ``measure``, and `MEASURED`; empty if ``fit`` returned None.
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
    """Return the seconds and losses of a curve that is given as text."""
    points = [point.split(":") for point in text.split()]
    return np.array(points, dtype=float).reshape(-1, 2).T


def time_to(text, target):
    """Return the seconds after which a curve is first at most ``target``; infinity if never."""
    taken, losses = curve(text)
    reached = losses <= target + 1e-9
    return taken[reached.argmax()] if reached.any() else np.inf
