"""Measure the processor time of fits and refits of all estimators, beside scikit-learn's.

Run ``python -m benchmarks.fit_time [--quick]``. All times are of one thread. The tables have the
time of importing the package, of fits of 10 to 1,000 generated rows, and of refits with ten more
labels, as in a loop of active learning. ``--profile BayesianSVC --rows 300`` prints the profile of
one fit instead, and ``--refit`` that of a refit.
"""

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

import skgpsvm

from . import _report

D, SIZES = 5, (10, 100, 300, 1000)
N_CLASSES, REFIT_ROWS, MORE, N_INDUCING = 10, 200, 10, 100
OURS = {
    name: getattr(skgpsvm, name)(random_state=0)
    for name in skgpsvm.__all__
    if name != "__version__"
}
KERNEL = 1.0 * RBF(np.ones(D))
PEERS = {
    "SVC, calibrated": CalibratedClassifierCV(SVC(), ensemble=False, cv=3),
    "GaussianProcessClassifier": GaussianProcessClassifier(KERNEL),
    "GaussianProcessRegressor": GaussianProcessRegressor(KERNEL + WhiteKernel(), normalize_y=True),
}
REFITTED = {
    "BayesianSVC": skgpsvm.BayesianSVC,
    "EPClassifier": skgpsvm.EPClassifier,
    "SVGPClassifier": skgpsvm.SVGPClassifier,
}
GIVEN = {"optimizer": None, "learn_inducing": False}
IMPORT = """
import time
start = time.process_time()
import torch, sklearn
before = time.process_time()
import skgpsvm
print(before - start, time.process_time() - before)
"""
FIRST_FIT = """
import time, warnings
from benchmarks.fit_time import OURS, targets
warnings.simplefilter("ignore")
model, data = OURS[{name!r}], targets(OURS[{name!r}], {n})
start = time.process_time()
model.fit(*data)
print(time.process_time() - start)
"""


def targets(model, n):
    """Return rows, and the labels or targets that a model is fitted to."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, D))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=n)
    return X, (y > np.median(y)).astype(int) if is_classifier(model) else y


def fit_seconds(model, *data):
    """Return the processor time of a fit."""
    start = time.process_time()
    model.fit(*data)
    return time.process_time() - start


def in_new_process(code):
    """Return the numbers that code prints in a process of its own."""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()]


def imports(repeats):
    """Return a table of the time of importing the package."""
    others, ours = np.median([in_new_process(IMPORT) for _ in range(repeats)], axis=0)
    row = {"torch and sklearn s": others, "skgpsvm above them s": ours}
    return _report.table(pd.DataFrame([row]), "Import. Wanted: at most 0.3 s above the others.")


def fits(sizes, repeats):
    """Return a table of fits by estimator and number of rows."""
    rows = []
    for name, model in (OURS | PEERS).items():
        row = {"estimator": name}
        if name in OURS:
            (row["first, 10 rows"],) = in_new_process(FIRST_FIT.format(name=name, n=10))
        for n in sizes:
            data = targets(model, n)
            times = [fit_seconds(clone(model), *data) for _ in range(repeats if n < 1000 else 1)]
            row[f"{n} rows"] = min(times)
        rows.append(row)
    title = (
        "Seconds of a fit: the first one of a process, and the fastest of later ones.\n"
        "Wanted: at most 0.030 for 10 rows."
    )
    return _report.table(pd.DataFrame(rows), title)


def refit(model, n):
    """Return a fitted model, and data with more labels for it."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(N_CLASSES, D))
    labels = np.arange(n + MORE) % N_CLASSES
    X = 1.5 * centers[labels] + rng.normal(size=(n + MORE, D))
    return model.fit(X[:n], labels[:n]), (X, labels)


def refits(n, repeats):
    """Return a table of the time to continue a fit with ten more labels."""
    rows = []
    for name, make in REFITTED.items():
        row = {"estimator": name}
        for kind, options in (("defaults", {}), ("given kernel and points", GIVEN)):
            times = []
            for _ in range(repeats):
                given = {"n_inducing": N_INDUCING, "warm_start": True, "random_state": 0}
                model, more = refit(make(**given, **options), n)
                times.append(fit_seconds(model, *more))
            row[kind] = min(times)
        rows.append(row)
    title = (
        f"Seconds of a refit with warm_start: {n} rows of {N_CLASSES} classes, {N_INDUCING} "
        f"points, {MORE} more labels.\nWanted: at most 0.050."
    )
    return _report.table(pd.DataFrame(rows), title)


def profile(model, *data):
    """Print the calls of a fit that take most time."""
    profiler = cProfile.Profile()
    profiler.runcall(model.fit, *data)
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(40)


def main():
    """Run the sections and write the report, or print a profile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--profile", choices=OURS, help="print the profile of a fit instead")
    parser.add_argument("--rows", type=int, default=300, help="of the profiled fit")
    parser.add_argument("--refit", action="store_true", help="profile a refit with more labels")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        if options.profile:
            model = clone(OURS[options.profile])
            if options.refit:
                given = {"warm_start": True, "n_inducing": N_INDUCING}
                model, data = refit(model.set_params(**given), options.rows)
            else:
                data = targets(model, options.rows)
                clone(model).fit(*data)  # imports of the first fit are no part of the profile
            return profile(model, *data)
        quick = options.quick
        parts = [_report.header("Time of fits")]
        parts += [
            imports(1 if quick else 5),
            fits(SIZES[:1] if quick else SIZES, 1 if quick else 3),
        ]
        parts.append(refits(40 if quick else REFIT_ROWS, 1 if quick else 3))
    _report.publish("fit_time", parts, write=not quick)


if __name__ == "__main__":
    main()
