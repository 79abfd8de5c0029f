"""Record fitted attributes and predictions, and compare this code with the record.

``python tests/golden_outputs.py`` prints the distance of this code's outputs from the record, for
each case. With ``--record``, it writes the record anew; commit that separately, with the reason.
Each case has a file in ``tests/golden``, with numbers to nine digits.
"""

import argparse
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from configurations import DETERMINISTIC, STOCHASTIC
from sklearn.base import clone, is_classifier
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_friedman1,
)
from sklearn.gaussian_process.kernels import Kernel
from sklearn.preprocessing import StandardScaler

from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPRegressor,
    EPClassifier,
    HybridSVGPRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)

FOLDER = Path(__file__).parent / "golden"
N_PREDICTED = 12
MAX_ENTRIES = 60  # larger arrays are recorded as a few sums
# On one machine, a change of structure alone changes no bits. The instruction set of an older
# processor (ATEN_CPU_CAPABILITY=default, MKL_ENABLE_INSTRUCTIONS=SSE4_2) changes outputs by up to
# 1e-6, since L-BFGS amplifies a different order of summation (2026-11-26).
RTOL = 1e-4


@dataclass(frozen=True)
class Case:
    """Estimator, and the data to which it is fitted.

    Attributes
    ----------
    name : str
        Name of the case and of its file.
    estimator : BaseEstimator
    data : callable
        Function that returns features and targets.
    """

    name: str
    estimator: object
    data: object

    @property
    def path(self):
        """File with the record of this case."""
        return FOLDER / f"{self.name}.json"

    def outputs(self):
        """Return summaries of fitted attributes and predictions, by name."""
        X, y = self.data()
        model = clone(self.estimator)
        if "random_state" in model.get_params():
            model.set_params(random_state=0)
        with warnings.catch_warnings(action="ignore"):
            model.fit(X, y)
        return attributes(model) | predictions(model, X[:: -(-len(X) // N_PREDICTED)] * 1.1)


def waves():
    """Return a regression problem with 80 rows and one output."""
    return make_friedman1(80, n_features=5, noise=0.5, random_state=0)


def blobs():
    """Return three overlapping classes with 80 rows."""
    rng = np.random.RandomState(0)
    y = np.arange(80) % 3
    return 1.5 * rng.normal(size=(3, 3))[y] + rng.normal(size=(80, 3)), y


def standardized(load, step=1):
    """Return a function that returns every ``step``-th row of a data set, standardized."""

    def data():
        X, y = load(return_X_y=True)
        X, y = StandardScaler().fit_transform(X[::step]), y[::step]
        return X, (y if len(np.unique(y)) < 20 else (y - y.mean()) / y.std())

    return data


def checked(number, estimator):
    """Return the case of a configuration that scikit-learn's checks use."""
    data = blobs if is_classifier(estimator) else waves
    return Case(f"{number:02}-{type(estimator).__name__}", estimator, data)


REAL = [
    Case("real-SVGPRegressor-diabetes", SVGPRegressor(), standardized(load_diabetes)),
    Case("real-DecoupledGPRegressor", DecoupledGPRegressor(), standardized(load_diabetes)),
    Case("real-QSGPRegressor", QSGPRegressor(n_basis=500), standardized(load_diabetes)),
    Case("real-QSRVMRegressor", QSRVMRegressor(), standardized(load_diabetes, 2)),
    Case("real-AdditiveGPRegressor", AdditiveGPRegressor(), standardized(load_diabetes, 2)),
    Case("real-HybridSVGPRegressor", HybridSVGPRegressor(), standardized(load_diabetes)),
    Case("real-BayesianSVC-wine", BayesianSVC(), standardized(load_wine)),
    Case("real-BayesianSVC-digits", BayesianSVC(n_inducing=32), standardized(load_digits, 6)),
    Case("real-EPClassifier", EPClassifier(n_inducing=32), standardized(load_breast_cancer, 2)),
    Case("real-SVGPClassifier-iris", SVGPClassifier(), standardized(load_iris)),
    Case(
        "real-SVGPClassifier-cancer",
        SVGPClassifier(n_inducing=64),
        standardized(load_breast_cancer),
    ),
    # A search for pairs in many features amplifies rounding: two processors differ by 2e-3.
    Case(
        "real-AdditiveGPClassifier-cancer",
        AdditiveGPClassifier(interactions=None),
        standardized(load_breast_cancer, 4),
    ),
    Case("real-AdditiveGPClassifier-iris", AdditiveGPClassifier(), standardized(load_iris)),
]
CASES = [checked(i, model) for i, model in enumerate([*DETERMINISTIC, *STOCHASTIC])] + REAL


def attributes(model):
    """Return summaries of the public fitted attributes that are numbers or kernels."""
    found = {}
    for name, value in sorted(vars(model).items()):
        if name.startswith("_") or not name.endswith("_"):
            continue
        if isinstance(value, Kernel):
            found[name] = summary(value.theta)
        elif isinstance(value, float | int | np.ndarray) and np.asarray(value).dtype.kind in "fiu":
            found[name] = summary(value)
    return found


def predictions(model, X):
    """Return summaries of all predictions of a model."""
    found = dict(zip(("mean", "variance"), model.latent_mean_and_variance(X), strict=True))
    if is_classifier(model):
        found["predict_proba"] = model.predict_proba(X)
    else:
        found["predict"], found["std"] = model.predict(X, return_std=True)
        found["cov"] = model.predict(X, return_cov=True)[1]
    return {name: summary(value) for name, value in found.items()}


def summary(values):
    """Return the shape and entries of an array, or a few sums if it is large."""
    values = np.asarray(values, float)
    entries = values.ravel()
    if values.size > MAX_ENTRIES:
        weights = np.cos(np.arange(values.size))  # so that a swap of two entries changes a sum
        sums = entries.mean(), entries.std(), entries @ weights / values.size**0.5
        entries = np.array(sums)
    return {"shape": list(values.shape), "entries": [float(f"{entry:.9g}") for entry in entries]}


def distance(found, recorded):
    """Return the largest difference of two summaries, relative to the record; inf if unlike."""
    if found["shape"] != recorded["shape"]:
        return np.inf
    new, old = np.array(found["entries"]), np.array(recorded["entries"])
    if not np.array_equal(np.isfinite(new), np.isfinite(old)):
        return np.inf
    new, old = new[np.isfinite(new)], old[np.isfinite(old)]
    return float(np.abs(new - old).max(initial=0.0) / max(np.abs(old).max(initial=0.0), 1e-6))


def distances(case):
    """Return the distance of each output of a case; inf if only one side has it."""
    found, recorded = case.outputs(), json.loads(case.path.read_text())
    return {
        name: distance(found[name], recorded[name])
        if found.keys() & recorded.keys() >= {name}
        else np.inf
        for name in found.keys() | recorded.keys()
    }


def main():
    """Print the distances, or write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases; all unless given")
    parser.add_argument("--record", action="store_true", help="write the record anew")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    worst = 0.0
    for case in CASES:
        if options.names and case.name not in options.names:
            continue
        if options.record:
            lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in case.outputs().items())
            case.path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            print(case.name, flush=True)
            continue
        found = distances(case)
        name = max(found, key=found.get)
        worst = max(worst, found[name])
        print(f"{case.name}: {found[name]:.1e} ({name})", flush=True)
    sys.exit(int(worst > RTOL))


if __name__ == "__main__":
    main()
