"""Classification of generated text: 10,000 rows of 30,000 words, 0.3 % of which are not zero.

A document mixes the words of its topic with those of another and with common ones. Word frequencies
are Zipf's, times a gamma variable for each topic, so that topics share most of their words. Rows
are tf-idf. Time is processor time of `fit`, and memory is the growth of the process in fit and
prediction. Run ``python -m benchmarks.text``; a run that was killed continues where it stopped.
Seeds below 100 of `documents` are for development.
"""

import sys
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import accuracy_score, log_loss
from sklearn.svm import SVC

from skgpsvm import BayesianSVC, EPClassifier, SVGPClassifier

from . import _data, _harness, _measure, _report
from ._harness import Method

N_TEST, N_WORDS, LENGTH, FIRST_SEED = 2000, 30_000, 95, 100
METRICS = ("accuracy", "log_loss")
MEASURED = (*METRICS, *_measure.MEASURED)


class Info(NamedTuple):
    """Size of a set of documents: training rows and topics."""

    n: int
    topics: int


SETS = {
    "10 topics": Info(10_000, 10),
    "15 topics": Info(10_000, 15),
    "20 topics": Info(10_000, 20),
    "small": Info(1_000, 10),
}


def documents(n, topics, seed):
    """Return counts of words, a CSR array (n, 30000), and the topics of documents, (n,)."""
    rng = np.random.default_rng(seed)
    common = 1 / (np.arange(N_WORDS) + 10.0)
    ends = [np.cumsum(common * rng.gamma(0.1, 10, N_WORDS)) for _ in range(topics)]
    ends.append(np.cumsum(common))
    y, entries = rng.integers(topics, size=n), []
    lengths = np.maximum(rng.lognormal(np.log(LENGTH), 0.5, n).astype(int), 5)
    for i, length in enumerate(lengths):
        own = rng.binomial(length, rng.beta(2, 2 * 0.65 / 0.35))
        other = rng.binomial(length - own, 0.2)
        sources = y[i], rng.integers(topics), topics
        for source, size in zip(sources, (own, other, length - own - other), strict=True):
            words = np.searchsorted(ends[source], rng.uniform(0, ends[source][-1], size))
            entries.append(np.stack([np.full(size, i), words]))
    rows, words = np.concatenate(entries, 1)
    return csr_array((np.ones(len(rows)), (rows, words)), shape=(n, N_WORDS)), y


def ours(estimator):
    """Return `Method.fit` for an estimator of this package."""

    def fit(X, y, seed, clock):
        return estimator(random_state=seed).fit(X, y)

    return fit


def calibrated_svc(X, y, seed, clock):
    """Fit an `SVC` calibrated by one temperature, as in `benchmarks.classification`."""
    model = CalibratedClassifierCV(SVC(), method="temperature", ensemble=False, cv=5)
    return model.fit(X, y)


def linear(X, y, seed, clock):
    """Fit a logistic regression whose penalty has the lowest log loss in three folds."""
    grid = {
        "Cs": [1, 3, 10, 30],
        "cv": 3,
        "scoring": "neg_log_loss",
        "use_legacy_attributes": False,
    }
    return LogisticRegressionCV(**grid, l1_ratios=(0,)).fit(X, y)


PACKAGE, SKLEARN = _harness.package_code(), _harness.sklearn_code()
METHODS = {
    **{
        kind.__name__: Method(ours(kind), PACKAGE, METRICS)
        for kind in (BayesianSVC, SVGPClassifier, EPClassifier)
    },
    "SVC": Method(lambda X, y, seed, clock: SVC().fit(X, y), SKLEARN, ("accuracy",)),
    "calibrated SVC": Method(calibrated_svc, SKLEARN, METRICS),
    "logistic regression": Method(linear, SKLEARN, METRICS),
}


def evaluate(set, seed, method):
    """Fit a method to the documents of a seed and measure it."""
    info = SETS[set]
    counts, y = documents(info.n + N_TEST, info.topics, FIRST_SEED + seed)
    X = TfidfTransformer().fit(counts[: info.n]).transform(counts).tocsr()
    data = _data.Split(X[: info.n], y[: info.n], X[info.n :], y[info.n :], info.topics)

    def measure(model):
        has_proba = hasattr(model, "predict_proba")
        p = model.predict_proba(data.X_test) if has_proba else None
        return {
            "accuracy": accuracy_score(data.y_test, model.predict(data.X_test)),
            "log_loss": log_loss(data.y_test, p) if has_proba else np.nan,
        }

    return _measure.measured_fit(
        METHODS[method].fit, data, seed, measure, "log_loss", watching=False
    )


def main():
    """Run missing tasks and write the report."""
    plan = _harness.plan(__doc__, SETS, ("small",), seeds=1)
    results = _harness.run_methods(METHODS, evaluate, plan, MEASURED, plan.results("text"))
    alone = results[results["method"] == "SVC"].set_index(["set", "seed"])["fit_seconds"]
    keys = zip(results["set"], results["seed"], strict=True)
    results["times SVC"] = results["fit_seconds"] / [alone.get(key, np.nan) for key in keys]
    shown = ["set", "seed", "method", *METRICS, "fit_seconds", "times SVC", "peak_mib", "code"]
    parts = [
        _report.header(
            "Generated text, default settings",
            rows=f"{N_WORDS} words, tf-idf; {N_TEST} test rows",
            SVC="SVC(); calibrated by a temperature in 5 folds",
        ),
        _report.failures(results),
        _report.table(results[shown]),
    ]
    _report.publish("text", parts, write=plan.full)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
