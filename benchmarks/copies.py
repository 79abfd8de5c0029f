"""Copies of rows: log losses where all rows are passed three times, and where rows recur.

The first table has sets of distinct rows: fits of 300 rows once, three times, and of a bootstrap
sample. The second has sets where at least a twentieth of the rows repeat another, three splits. It
takes some minutes. Run ``python -m benchmarks.copies [--use development]``.
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.metrics import log_loss

from skgpsvm import (
    AdditiveGPClassifier,
    BayesianSVC,
    DecoupledGPClassifier,
    EPClassifier,
    SVGPClassifier,
)

from . import _data, _report

N_SPLITS, N_ROWS, MOST_ROWS, MOST_CLASSES, RECURRING = 3, 300, 1000, 4, 0.05
MODELS = {
    "BayesianSVC": BayesianSVC(random_state=0),
    "SVGPClassifier": SVGPClassifier(random_state=0),
    "EPClassifier": EPClassifier(random_state=0),
    "DecoupledGPClassifier": DecoupledGPClassifier(random_state=0),
    "AdditiveGPClassifier": AdditiveGPClassifier(interactions=None, random_state=0),
}


def recurring(name):
    """Return the share of the rows of a set that repeat another row, with its label."""
    X, y = _data.load_classification(name)
    rows = np.nan_to_num(np.column_stack([X, y]), nan=np.inf)
    _, counts = np.unique(rows, axis=0, return_counts=True)
    return counts[counts > 1].sum() / len(y)


def chosen_sets(use):
    """Return the names of sets whose rows are distinct, and of those where many recur."""
    shares = {
        name: recurring(name)
        for name, info in _data.classification_sets(min_rows=150).items()
        if (name in _data.EVALUATION["classification"]) == (use == "evaluation")
        and info.n <= MOST_ROWS
    }
    sizes = _data.classification_sets()
    distinct = [
        name
        for name, share in shares.items()
        if share < RECURRING and sizes[name].c <= MOST_CLASSES
    ]
    return distinct, [name for name, share in shares.items() if share >= RECURRING]


def loss(model, X, y, split):
    """Return the log loss of the test rows after a fit to some rows, all classes included."""
    fitted = clone(model).fit(X, y)
    p = np.zeros((len(split.X_test), split.n_classes))
    p[:, fitted.classes_] = fitted.predict_proba(split.X_test)
    return log_loss(split.y_test, p, labels=range(split.n_classes))


def with_copies(model, split):
    """Return the losses of 300 rows once, of three copies of each, and of a bootstrap sample."""
    X, y = split.X_train[:N_ROWS], split.y_train[:N_ROWS]
    drawn = np.random.default_rng(0).integers(len(y), size=len(y))
    return [
        loss(model, X[i], y[i], split) for i in (slice(None), np.tile(np.arange(len(y)), 3), drawn)
    ]


def main():
    """Print the log losses of each classifier."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--use", choices=["development", "evaluation"], default="evaluation")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    distinct, recur = chosen_sets(options.use)
    copied, natural = [], []
    for name, model in MODELS.items():
        found = [with_copies(model, _data.split_classification(each, 0)) for each in distinct]
        copied.append([name, *np.mean(found, 0)])
        losses = []
        for each in recur:
            splits = (_data.split_classification(each, k) for k in range(N_SPLITS))
            losses.append(np.mean([loss(model, s.X_train, s.y_train, s) for s in splits]))
        natural.append([name, *losses])
    head = _report.header("Copies of rows", use=options.use, sets=", ".join(distinct))
    frame = pd.DataFrame(copied, columns=["classifier", "once", "three times", "bootstrap"])
    parts = [
        _report.table(frame, "Log loss after a fit to 300 rows"),
        _report.table(
            pd.DataFrame(natural, columns=["classifier", *recur]), "Sets whose rows recur"
        ),
    ]
    _report.publish(f"copies-{options.use}", [head, *parts], write=True)


if __name__ == "__main__":
    main()
