"""Coverage of intervals of y: predictive and conformal ones, and those of MAPIE if it is installed.

The problems are 40 rows of a sine with five kinds of noise. Hyperparameters are either given, with
a noise of a third of the true standard deviation, or learned. With given ones, MAPIE refits the
same estimator without each row, by the jackknife and the jackknife+. Run
``python -m benchmarks.intervals [--problems K]``.
"""

import argparse
import time
import warnings

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import LeaveOneOut

from skgpsvm import SVGPRegressor

from . import _report

try:
    from mapie.regression import CrossConformalRegressor
except ImportError:
    CrossConformalRegressor = None

LEVEL, N_ROWS, N_NEW = 0.9, 40, 50
KERNEL = 1.0 * RBF(0.5)
FIXED = {"optimizer": None, "normalize_y": False, "mean": "zero", "noise_variance": 0.01}
MODELS = {"given": SVGPRegressor(KERNEL, **FIXED), "learned": SVGPRegressor(KERNEL, random_state=0)}
# Noise, or what is added to the sine, at rows X (n, 1).
NOISE = {
    "Gaussian": lambda X, rng: 0.3 * rng.normal(size=len(X)),
    "heavy tails": lambda X, rng: 0.3 * rng.standard_t(2, size=len(X)),
    "skewed": lambda X, rng: 0.3 * (rng.exponential(size=len(X)) - 1),
    "uneven": lambda X, rng: 0.1 * np.exp(X[:, 0]) * rng.normal(size=len(X)),
    "steps": lambda X, rng: np.sign(np.sin(5 * X[:, 0])) + 0.05 * rng.normal(size=len(X)),
}


def problem(noise, seed):
    """Return training rows, their targets, new rows, and their targets."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(N_ROWS + N_NEW, 1))
    y = np.sin(3 * X[:, 0]) + NOISE[noise](X, rng)
    return X[:N_ROWS], y[:N_ROWS], X[N_ROWS:], y[N_ROWS:]


def ours(method):
    """Return a function that fits a model and returns intervals of new rows."""
    return lambda model, X, y, new: model.fit(X, y).predict_interval(new, LEVEL, method)


def mapie(method):
    """Return the same by MAPIE's cross-conformal regressor, which leaves out each row."""

    def intervals(model, X, y, new):
        options = {"confidence_level": LEVEL, "method": method, "cv": LeaveOneOut()}
        conformal = CrossConformalRegressor(model, **options).fit_conformalize(X, y)
        return conformal.predict_interval(new)[1][:, :, 0].T

    return intervals


OURS = {"predictive": ours("predictive"), "conformal": ours("conformal")}
METHODS = {"given": OURS, "learned": OURS}
if CrossConformalRegressor is not None:
    peers = {"MAPIE, jackknife": mapie("base"), "MAPIE, jackknife+": mapie("plus")}
    METHODS["given"] = OURS | peers


def main():
    """Print coverage, mean width and seconds of processor time of each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=30)
    n_problems, found = parser.parse_args().problems, []
    warnings.simplefilter("ignore")
    for (kind, model), noise in ((pair, noise) for pair in MODELS.items() for noise in NOISE):
        for method, intervals in METHODS[kind].items():
            measured = []
            for seed in range(n_problems):
                X, y, new, y_new = problem(noise, seed)
                start = time.process_time()
                lower, upper = intervals(clone(model), X, y, new)
                seconds = time.process_time() - start
                held = np.mean((lower <= y_new) & (y_new <= upper))
                measured.append((held, np.mean(upper - lower), seconds))
            found.append((kind, noise, method, *np.mean(measured, 0)))
    columns = ["hyperparameters", "noise", "method", "coverage", "width", "seconds"]
    table = _report.table(pd.DataFrame(found, columns=columns))
    head = _report.header("Intervals of y", level=LEVEL, rows=N_ROWS, problems=n_problems)
    _report.publish("intervals", [head, table], write=True)


if __name__ == "__main__":
    main()
