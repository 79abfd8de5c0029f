"""Accuracy and probabilities of classifiers on every classification set, default settings.

``BayesianSVC()`` against ``SVC()`` by accuracy, against a temperature-calibrated ``SVC`` by
log-loss, and against one-vs-rest and two sparse GPs by both: stratified 80/20 splits, mean-imputed
and standardised with training statistics; sets whose smallest class has one row are left out. Run
``python -m benchmarks.classification``; a run that was killed continues, and results of an older
source of the package are computed anew. To add a method, add an entry to ``METHODS``; to add a data
set, put its archive beside the others.
"""

import sys
import time

import numpy as np
import pandas as pd
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss
from sklearn.svm import SVC

from skgpsvm import BayesianSVC, SVGPClassifier

from . import _data, _harness, _peers, _report
from ._harness import Method

QUICK_SETS = ("iris", "wine", "glass", "sonar", "ecoli", "heart", "vehicle", "vowel")
OURS = "BayesianSVC"
N_BINS = 15
N_FOLDS = 5
N_INDUCING = 64  # of the sparse GPs


def calibrated_svc(X, y, seed):
    """`SVC` calibrated by one temperature in 5 folds.

    Classes of fewer than 5 rows, which the folds refuse, have theirs repeated up to 5: over the
    sets concerned that gave the peer a lower log-loss than fewer folds.
    """
    rows = [np.arange(len(y))]
    for label, count in zip(*np.unique(y, return_counts=True), strict=True):
        rows.append(np.resize(np.flatnonzero(y == label), max(0, N_FOLDS - count)))
    rows = np.concatenate(rows)
    model = CalibratedClassifierCV(SVC(), method="temperature", ensemble=False, cv=N_FOLDS)
    return model.fit(X[rows], y[rows])


PROBABILITIES = ("log_loss", "brier", "calibration_error")

METHODS = {
    OURS: Method(
        lambda X, y, seed: BayesianSVC(random_state=seed).fit(X, y),
        _harness.package_code(),
        ("accuracy", *PROBABILITIES),
    ),
    "SVC": Method(lambda X, y, seed: SVC().fit(X, y), _harness.sklearn_code(), ("accuracy",)),
    "calibrated SVC": Method(calibrated_svc, _harness.sklearn_code(), PROBABILITIES),
    "one-vs-rest": Method(
        lambda X, y, seed: BayesianSVC(multi_class="ovr", random_state=seed).fit(X, y),
        _harness.package_code(),
        ("accuracy", *PROBABILITIES),
    ),
    "SVGPClassifier": Method(
        lambda X, y, seed: SVGPClassifier(n_inducing=N_INDUCING, random_state=seed).fit(X, y),
        _harness.package_code(),
        ("accuracy", *PROBABILITIES),
    ),
    "GPyTorch SVGP": Method(
        lambda X, y, seed: _peers.GPyTorchSVGP(N_INDUCING, seed).fit(X, y),
        _peers.gpytorch_code(),
        ("accuracy", *PROBABILITIES),
    ),
}

# Name: whether higher is better, and the title of its table.
METRICS = {
    "accuracy": (True, "Accuracy on test rows"),
    "log_loss": (False, "Log-loss on test rows, nats"),
    "brier": (False, "Brier score: mean squared distance to the true class's indicator"),
    "calibration_error": (False, f"Expected calibration error, top class, {N_BINS} equal bins"),
}
MEASURED = (*METRICS, "fit_seconds", "predict_seconds")


def evaluate(set, seed, method):
    """Fit a method to one split of a set and measure it; seconds are of the processor."""
    data = _data.split_classification(set, seed)
    start = time.process_time()
    model = METHODS[method].fit(data.X_train, data.y_train, seed)
    fitted = time.process_time()
    predicted = model.predict(data.X_test)
    found = dict.fromkeys(MEASURED, np.nan)
    if hasattr(model, "predict_proba"):
        found.update(probability_metrics(model, data))
    found["accuracy"] = np.mean(predicted == data.y_test)
    found["fit_seconds"] = fitted - start
    found["predict_seconds"] = time.process_time() - fitted
    return found


def probability_metrics(model, data):
    """Log-loss, Brier score and calibration error; classes unknown to the model get zero."""
    p = np.zeros((len(data.y_test), data.n_classes))
    p[:, model.classes_] = model.predict_proba(data.X_test)
    top, right = p.max(1), p.argmax(1) == data.y_test
    bins = np.minimum((top * N_BINS).astype(int), N_BINS - 1)
    gaps = np.bincount(bins, right - top, N_BINS)
    return {
        "log_loss": log_loss(data.y_test, p, labels=np.arange(data.n_classes)),
        "brier": np.square(p - np.eye(data.n_classes)[data.y_test]).sum(1).mean(),
        "calibration_error": np.abs(gaps).sum() / len(top),
    }


def main():
    """Run what is missing and write the report."""
    options = _harness.options(__doc__, seeds=5)
    names = options.sets or (QUICK_SETS if options.quick else None)
    sets = _data.chosen(_data.classification_sets(), names)
    seeds = range(1 if options.quick else options.seeds)
    full = not (options.quick or options.sets)
    path = _harness.RESULTS / "classification.csv" if full else None
    results = _harness.run_methods(METHODS, evaluate, sets, seeds, MEASURED, path, options.jobs)
    settings = {
        "sets": f"{len(sets)}, every class of at least 2 rows",
        "splits": f"stratified 80/20, seeds 0 to {len(seeds) - 1}; mean-imputed, standardised",
        "SVC": "SVC()",
        "calibrated SVC": "CalibratedClassifierCV(SVC(), ensemble=False, method='temperature', "
        f"cv={N_FOLDS}); training classes of fewer than {N_FOLDS} rows have theirs repeated",
        "one-vs-rest": "BayesianSVC(multi_class='ovr')",
        "SVGPClassifier": f"SVGPClassifier(n_inducing={N_INDUCING})",
        "GPyTorch SVGP": f"{N_INDUCING} inducing points; {_peers.gpytorch_code()}",
        "processes": f"{options.jobs} of one thread",
    }
    parts = [_report.header("Classification: every set, default settings", **settings)]
    sizes = pd.DataFrame({name: vars(info) for name, info in sets.items()}).T[["n", "d", "c"]]
    parts += _report.methods(results, sizes, METHODS, METRICS, OURS)
    _report.publish("classification", parts, write=full)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
