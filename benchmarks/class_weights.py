"""Balanced classes: weights of classes against weights of rows, and logistic regression.

Each set of two to eight classes that is not balanced, and of at most ``--most-rows`` rows, is split
twice. The log loss and the accuracy are means over the classes. It takes some minutes. Run
``python -m benchmarks.class_weights [--use development] [--most-rows N]``.
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.utils.class_weight import compute_sample_weight

from skgpsvm import (
    AdditiveGPClassifier,
    BayesianSVC,
    EPClassifier,
    QSRVMClassifier,
    SVGPClassifier,
)

from . import _data, _report

N_SPLITS, MOST_CLASSES, LEAST_RATIO = 2, 8, 1.5
MODELS = {
    "BayesianSVC": BayesianSVC(random_state=0),
    "SVGPClassifier": SVGPClassifier(random_state=0),
    "EPClassifier": EPClassifier(random_state=0),
    "QSRVMClassifier": QSRVMClassifier(random_state=0),
    "AdditiveGPClassifier": AdditiveGPClassifier(interactions=None, random_state=0),
    "logistic regression": LogisticRegression(max_iter=2000),
}


def scores(model, split):
    """Return log loss and accuracy, balanced: with weights of classes, of rows, and with neither.

    Logistic regression takes weights of classes as weights of rows. Its class probabilities without
    weights are therefore multiplied here.
    """
    X, y = split.X_train, split.y_train
    weights, test_weights = (compute_sample_weight("balanced", part) for part in (y, split.y_test))
    factors = len(y) / np.bincount(y)
    plain = clone(model).fit(X, y)
    p = plain.predict_proba(split.X_test)
    if isinstance(model, LogisticRegression):
        multiplied = p * factors / (p * factors).sum(1, keepdims=True)
    else:
        balanced = clone(model).set_params(class_weight="balanced").fit(X, y)
        multiplied = balanced.predict_proba(split.X_test)
    of_rows = clone(model).fit(X, y, sample_weight=weights).predict_proba(split.X_test)
    found = []
    for each in (multiplied, of_rows, p):
        loss = log_loss(split.y_test, each, sample_weight=test_weights, labels=plain.classes_)
        found += [loss, balanced_accuracy_score(split.y_test, each.argmax(1))]
    return found


def chosen_sets(use, most_rows):
    """Return the names of the sets whose largest class has 1.5 times the rows of the smallest."""
    return [
        name
        for name, info in _data.classification_sets().items()
        if (name in _data.EVALUATION["classification"]) == (use == "evaluation")
        and info.n <= most_rows
        and info.c <= MOST_CLASSES
        and np.bincount(_data.load_classification(name)[1]).max() >= LEAST_RATIO * info.smallest
    ]


def main():
    """Print balanced log losses and accuracies of each classifier."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--use", choices=["development", "evaluation"], default="evaluation")
    parser.add_argument("--most-rows", type=int, default=1500)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = chosen_sets(options.use, options.most_rows)
    splits = [_data.split_classification(name, k) for name in names for k in range(N_SPLITS)]
    rows, gains = [], []
    for name, model in MODELS.items():
        found = np.array([scores(model, split) for split in splits])
        gain = (found[:, 2] - found[:, 0]).reshape(len(names), N_SPLITS).mean(1)
        rows.append([name, *found.mean(0), (gain > 0).sum()])
        gains.append(gain)
    kinds = [
        f"{what}, {how}" for how in ("classes", "rows", "none") for what in ("loss", "accuracy")
    ]
    frame = pd.DataFrame(rows, columns=["classifier", *kinds, "sets won"])
    head = _report.header("Class weights", use=options.use, splits=N_SPLITS, sets=", ".join(names))
    by_set = pd.DataFrame(np.transpose(gains), columns=[*MODELS])
    by_set.insert(0, "set", names)
    parts = [
        _report.table(frame, "Balanced log loss and accuracy, by what the weights multiply"),
        _report.table(by_set, "Log loss with weights of rows less that with weights of classes"),
    ]
    name = "class_weights" if options.use == "evaluation" else f"class_weights-{options.use}"
    _report.publish(name, [head, *parts], write=True)


if __name__ == "__main__":
    main()
