"""Coverage and size of sets of classes: predictive and conformal ones of each classifier.

Hyperparameters are learned on two splits of the evaluation sets of at most ``--most-rows`` rows.
They are given, and wrong, in problems of 40 rows and two classes, where conformal sets are also
made from refits without each row. It takes some minutes. Run
``python -m benchmarks.class_sets [--problems K] [--most-rows N]``.
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import (
    AdditiveGPClassifier,
    BayesianSVC,
    DecoupledGPClassifier,
    EPClassifier,
    QSGPClassifier,
    SVGPClassifier,
)

from . import _data, _report

LEVEL, N_SPLITS, N_ROWS, N_NEW = 0.9, 2, 40, 50
METHODS = ("predictive", "conformal")
LEARNED = {
    "BayesianSVC": BayesianSVC(random_state=0),
    "BayesianSVC, argmax": BayesianSVC(probability="argmax", random_state=0),
    "SVGPClassifier": SVGPClassifier(random_state=0),
    "EPClassifier": EPClassifier(random_state=0),
    "DecoupledGPClassifier": DecoupledGPClassifier(random_state=0),
    "QSGPClassifier": QSGPClassifier(random_state=0),
    "AdditiveGPClassifier": AdditiveGPClassifier(interactions=None, random_state=0),
}
OPTIONS = {"optimizer": None, "mean": "zero", "random_state": 0}
GIVEN = {"SVGP": SVGPClassifier(**OPTIONS), "EP": EPClassifier(**OPTIONS)}
KERNELS = {
    "right": 10.0 * RBF(0.6),
    "long": 1.0 * RBF(5.0),
    "short": 10.0 * RBF(0.2),
    "short, large": 100.0 * RBF(0.1),
}
# Latent functions, given a sine f.
SCENES = {
    "sine": lambda f, rng: 4 * f,
    "30 % wrong labels": lambda f, rng: np.where(rng.uniform(size=len(f)) < 0.3, -4 * f, 4 * f),
    "no signal": lambda f, rng: 0 * f,
}


def problem(scene, seed):
    """Return training rows, their labels, new rows, and their labels."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(N_ROWS + N_NEW, 1))
    f = SCENES[scene](np.sin(3 * X[:, 0]), rng)
    y = (rng.uniform(size=len(X)) < 1 / (1 + np.exp(-f))).astype(int)
    return X[:N_ROWS], y[:N_ROWS], X[N_ROWS:], y[N_ROWS:]


def measured(members, model, y):
    """Return the coverage and the mean size of sets."""
    codes = np.searchsorted(model.classes_, y)
    return members[np.arange(len(y)), codes].mean(), members.sum(1).mean()


def by_refits(model, X, y, X_new):
    """Return conformal sets of new rows from refits without each row."""
    losses = []
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        refit = clone(model).fit(X[others], y[others])
        losses.append(-refit.predict_log_proba(X[[i]])[0, y[i]])
    threshold = np.sort(losses)[int(np.ceil(LEVEL * (len(X) + 1))) - 1]
    found = -model.predict_log_proba(X_new)
    return found <= np.maximum(threshold, found.min(1, keepdims=True))


def on_sets(names):
    """Return a table of the classifiers on sets, with learned hyperparameters."""
    rows = []
    for name, model in LEARNED.items():
        found = []
        for split in (
            _data.split_classification(each, k) for each in names for k in range(N_SPLITS)
        ):
            fitted = clone(model).fit(split.X_train, split.y_train)
            X, y = split.X_test, split.y_test
            sets = (fitted.predict_set(X, LEVEL, method) for method in METHODS)
            of_sets = [part for members in sets for part in measured(members, fitted, y)]
            found.append([fitted.score(X, y), *of_sets])
        rows.append([name, *np.mean(found, 0)])
    columns = [f"{method}, {what}" for method in METHODS for what in ("coverage", "size")]
    return pd.DataFrame(rows, columns=["classifier", "accuracy", *columns])


def on_problems(n_problems):
    """Return a table of kernels and problems, with given hyperparameters."""
    rows = []
    for name, model in GIVEN.items():
        for (kernel, given), scene in (
            (pair, scene) for pair in KERNELS.items() for scene in SCENES
        ):
            found = []
            for seed in range(n_problems):
                X, y, X_new, y_new = problem(scene, seed)
                fitted = clone(model).set_params(kernel=given).fit(X, y)
                sets = [fitted.predict_set(X_new, LEVEL, method) for method in METHODS]
                sets.append(by_refits(fitted, X, y, X_new))
                found.append([measured(members, fitted, y_new)[0] for members in sets])
            rows.append([name, kernel, scene, *np.mean(found, 0)])
    return pd.DataFrame(rows, columns=["classifier", "kernel", "problem", *METHODS, "by refits"])


def main():
    """Print the coverage and the mean size of sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--most-rows", type=int, default=400)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = [
        name
        for name, info in _data.classification_sets().items()
        if info.n <= options.most_rows and name in _data.EVALUATION["classification"]
    ]
    sizes = {"level": LEVEL, "problems": options.problems, "splits": N_SPLITS}
    head = _report.header("Sets of classes", **sizes, sets=", ".join(names))
    given = _report.table(on_problems(options.problems), "Coverage, given hyperparameters")
    learned = _report.table(on_sets(names), "Learned hyperparameters")
    _report.publish("class_sets", [head, given, learned], write=True)


if __name__ == "__main__":
    main()
