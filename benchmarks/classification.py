"""Accuracy and probabilities of classifiers on every classification set, default settings.

``BayesianSVC()`` is compared with ``SVC()`` by accuracy, with a temperature-calibrated ``SVC`` by
log loss, and with the package's other classifiers, two sparse GPs, an exact GP and gradient
boosting by both. Splits are stratified, 80/20; rows are mean-imputed and standardized with training
statistics. Sets whose smallest class has one row are left out. On the first split the log loss is
recorded during the fits.

Run ``python -m benchmarks.classification``. A run that was killed continues where it stopped, and
results of older code of the package are computed anew. To add a method, add an entry to
``METHODS``; to add a data set, put its archive beside the others.
"""

import sys
from datetime import date

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import accuracy_score, log_loss
from sklearn.svm import SVC

from skgpsvm import (
    AdditiveGPClassifier,
    BayesianSVC,
    DecoupledGPClassifier,
    EPClassifier,
    HybridBayesianSVC,
    HybridSVGPClassifier,
    QSGPClassifier,
    QSRVMClassifier,
    SVGPClassifier,
)

from . import _data, _harness, _measure, _peers, _report
from ._harness import Method

QUICK_SETS = ("iris", "heart")
OURS = "BayesianSVC"
SAME_M = "BayesianSVC, points moved"
OTHERS = (
    SVGPClassifier,
    EPClassifier,
    DecoupledGPClassifier,
    QSGPClassifier,
    QSRVMClassifier,
    HybridBayesianSVC,
    HybridSVGPClassifier,
)
ROBUST = "SVGPClassifier, robust-max"
N_BINS = 15
N_FOLDS = 5
N_INDUCING = 64  # inducing points of the sparse GPs
SAME_M_SVGP = f"SVGPClassifier, {N_INDUCING} points"
MAX_EXACT = 2000
MAX_EFFECTS = 60_000  # rows times features times latents of additive models; more take minutes
WATCHED_ROWS = 2000


def calibrated_svc(X, y, seed, clock):
    """Fit an `SVC` that is calibrated by one temperature in 5 folds.

    The folds need 5 rows of every class, so rows of smaller classes are repeated. Over the sets
    with such classes, this gave the peer a lower log loss than fewer folds did.
    """
    rows = [np.arange(len(y))]
    for label, count in zip(*np.unique(y, return_counts=True), strict=True):
        rows.append(np.resize(np.flatnonzero(y == label), max(0, N_FOLDS - count)))
    rows = np.concatenate(rows)
    model = CalibratedClassifierCV(SVC(), method="temperature", ensemble=False, cv=N_FOLDS)
    return model.fit(X[rows], y[rows])


def exact(X, y, seed, clock):
    """Fit the exact GP with one length scale; with more than 2000 rows it is too slow."""
    if len(X) > MAX_EXACT:
        return None
    kernel = ConstantKernel() * RBF(np.sqrt(X.shape[1] / 2))
    return GaussianProcessClassifier(kernel, random_state=seed).fit(X, y)


def ours(estimator, *, only_watched=False):
    """Return `Method.fit` for an estimator of this package, or only for fits that are watched."""

    def fit(X, y, seed, clock):
        if only_watched and not clock.callbacks():
            return None
        model = clone(estimator).set_params(random_state=seed)
        return model.set_callbacks(*clock.callbacks()).fit(X, y)

    return fit


def additive(X, y, seed, clock):
    """Fit the additive model; with too many effects it is too slow."""
    n_classes = len(np.unique(y))
    if X.size * (n_classes if n_classes > 2 else 1) > MAX_EFFECTS:
        return None
    return ours(AdditiveGPClassifier())(X, y, seed, clock)


PROBABILITIES = ("log_loss", "brier", "calibration_error")
ALL = ("accuracy", *PROBABILITIES)
PACKAGE, SKLEARN = _harness.package_code(), _harness.sklearn_code()

METHODS = {
    OURS: Method(ours(BayesianSVC()), PACKAGE, ALL),
    "SVC": Method(lambda X, y, seed, clock: SVC().fit(X, y), SKLEARN, ("accuracy",)),
    "calibrated SVC": Method(calibrated_svc, SKLEARN, PROBABILITIES),
    "one-vs-rest": Method(ours(BayesianSVC(multi_class="ovr")), PACKAGE, ALL),
    **{kind.__name__: Method(ours(kind()), PACKAGE, ALL) for kind in OTHERS},
    AdditiveGPClassifier.__name__: Method(additive, PACKAGE, ALL),
    ROBUST: Method(ours(SVGPClassifier(likelihood="robust_max")), PACKAGE, ALL),
    SAME_M_SVGP: Method(ours(SVGPClassifier(n_inducing=N_INDUCING)), PACKAGE, ALL),
    SAME_M: Method(
        ours(BayesianSVC(n_inducing=N_INDUCING, learn_inducing=True), only_watched=True),
        PACKAGE,
        (),
    ),
    **_peers.svgp_methods(N_INDUCING, ALL),
    "exact GP": Method(exact, SKLEARN, ALL),
    "gradient boosting": Method(
        lambda X, y, seed, clock: HistGradientBoostingClassifier(random_state=seed).fit(X, y),
        SKLEARN,
        ALL,
    ),
}

# For each metric: whether higher is better, and the title of its table.
METRICS = {
    "accuracy": (True, "Accuracy on test rows"),
    "log_loss": (False, "Log-loss on test rows, nats"),
    "brier": (False, "Brier score: mean squared distance to the true class's indicator"),
    "calibration_error": (False, f"Expected calibration error, top class, {N_BINS} equal bins"),
}
MEASURED = (*METRICS, *_measure.MEASURED)


def evaluate(set, seed, method):
    """Fit a method to one split of a set and measure it; seconds are processor time."""
    data = _data.split_classification(set, seed)

    def measure(model):
        found = probability_metrics(model, data) if hasattr(model, "predict_proba") else {}
        return {
            "log_loss": np.nan,
            **found,
            "accuracy": accuracy_score(data.y_test, model.predict(data.X_test)),
        }

    watching = seed == 0 and len(data.y_train) + len(data.y_test) >= WATCHED_ROWS
    return _measure.measured_fit(
        METHODS[method].fit, data, seed, measure, "log_loss", watching=watching
    )


def probability_metrics(model, data):
    """Return log loss, Brier score and calibration error; classes not in training get zero."""
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
    """Run missing tasks and write the report."""
    sets = _data.classification_sets()
    plan = _harness.plan(__doc__, sets, QUICK_SETS, seeds=5, kind="classification")
    path = plan.results("classification")
    results = _harness.run_methods(METHODS, evaluate, plan, MEASURED, path)
    settings = {
        "sets": f"{len(plan.sets)}, every class of at least 2 rows",
        "splits": f"stratified 80/20, seeds 0 to {len(plan.seeds) - 1}, of more than "
        f"{_harness.LARGE} rows seed 0; mean-imputed, standardized",
        "SVC": "SVC()",
        "calibrated SVC": "CalibratedClassifierCV(SVC(), ensemble=False, method='temperature', "
        f"cv={N_FOLDS}); training classes of fewer than {N_FOLDS} rows have theirs repeated",
        SAME_M: f"BayesianSVC(n_inducing={N_INDUCING}, learn_inducing=True), as many points as the "
        "peers and learned as theirs, on the fits that are watched",
        "one-vs-rest": "BayesianSVC(multi_class='ovr')",
        SAME_M_SVGP: f"SVGPClassifier(n_inducing={N_INDUCING}), as many points as the peers",
        "GPyTorch SVGP, GPflow SVGP": f"{N_INDUCING} inducing points; {_peers.protocol()}",
        AdditiveGPClassifier.__name__: f"at most {MAX_EFFECTS:,} rows times features times latents",
        "exact GP": "GaussianProcessClassifier, one length scale, sets of at most "
        f"{MAX_EXACT} training rows",
        "gradient boosting": "HistGradientBoostingClassifier()",
        "processes": f"{plan.jobs} of one thread",
    }
    parts = [_report.header("Classification: every set, default settings", **settings)]
    sizes = pd.DataFrame({name: vars(info) for name, info in plan.sets.items()}).T[["n", "d", "c"]]
    parts += _report.by_use(results, sizes, METHODS, METRICS, OURS, "classification")
    parts += _report.against_time(
        results, sizes, "log-loss", (OURS, SAME_M, SAME_M_SVGP), "GPyTorch SVGP"
    )
    _report.publish("classification", parts, write=plan.full)
    if plan.full:
        shown = (OURS, SAME_M, SAME_M_SVGP, "GPyTorch SVGP")
        path = _harness.RESULTS / f"classification-{date.today()}.png"
        _report.draw_curves(results, shown, "log-loss", path)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
