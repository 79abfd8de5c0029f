"""Additive models on real sets: errors, predictive densities, log loss and time.

``AdditiveGPRegressor()`` and ``AdditiveGPClassifier()``, by default, without pairs, and with
inducing points, are compared with explainable boosting machines (with and without pairs), pyGAM by
its grid search, and ``SVGP*``, which is not additive. Regression uses the sets' own splits
(``test_mask``), classification stratified 80/20 splits. Rows and targets are standardized with
training statistics. scikit-learn's California housing is left out, since it has to be downloaded.
Run ``python -m benchmarks.additive``; a run that was killed continues where it stopped. It needs
the extra ``bench``.
"""

import sys

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss
from sklearn.metrics import root_mean_squared_error as rmse

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor, SVGPClassifier, SVGPRegressor

from . import _additive_peers, _data, _harness, _measure, _report
from ._harness import Method

REGRESSION = ("yacht", "housing", "energy", "concrete", "airfoil", "bike", "protein")
CLASSIFICATION = ("heart", "pima", "credit_g", "spambase")
QUICK_SETS = ("heart", "yacht")
OURS, OURS_ALONE, WHOLE = "AdditiveGP", "AdditiveGP, no pairs", "SVGP"
OURS_SPARSE = "AdditiveGP, inducing points"
SVGP = {
    "regression": SVGPRegressor(n_inducing=256),
    "classification": SVGPClassifier(n_inducing=64),
}
# For each kind of set: name of the metric, whether higher is better, and the title of its table.
METRICS = {
    "regression": {
        "rmse": (False, "Root mean squared error, in standard deviations of y"),
        "nlpd": (False, "Mean negative log predictive density, nats"),
    },
    "classification": {"log_loss": (False, "Log-loss on test rows, nats")},
}
LOG_SCORE = {"regression": "nlpd", "classification": "log_loss"}
MEASURED = ("rmse", "nlpd", "log_loss", "n_pairs", *_measure.MEASURED)


def additive(**options):
    """Return `Method.fit` for our additive models."""

    def fit(X, y, seed, clock):
        classes = _additive_peers.is_classification(y)
        kind = AdditiveGPClassifier if classes else AdditiveGPRegressor
        return kind(**options, random_state=seed).fit(X, y)

    return fit


def svgp(X, y, seed, clock):
    """Fit the sparse Gaussian process of all features jointly."""
    kind = "classification" if _additive_peers.is_classification(y) else "regression"
    return type(SVGP[kind])(**SVGP[kind].get_params() | {"random_state": seed}).fit(X, y)


def methods(metrics=()):
    """Return all methods by name, ours first."""
    package = _harness.package_code()
    return {
        OURS: Method(additive(), package, metrics),
        OURS_ALONE: Method(additive(interactions=None), package, metrics),
        OURS_SPARSE: Method(additive(sparse=True), package, metrics),
        **_additive_peers.methods(metrics),
        WHOLE: Method(svgp, package, metrics),
    }


def kind_of(name):
    """Return "regression" or "classification" for a set."""
    return "regression" if name in REGRESSION else "classification"


def evaluate(set, seed, method):
    """Fit a method to one split of a set and measure it; seconds are processor time."""
    regression = kind_of(set) == "regression"
    data = (_data.split_regression if regression else _data.split_classification)(set, seed)

    def measure(model):
        found = dict.fromkeys(MEASURED[:3], np.nan)
        terms = getattr(model, "terms_", ())
        found["n_pairs"] = sum(len(term) == 2 for term in terms)
        if not regression:
            p = model.predict_proba(data.X_test)
            return found | {"log_loss": log_loss(data.y_test, p, labels=model.classes_)}
        mean, std = model.predict(data.X_test, return_std=True)
        nlpd = np.mean(np.log(std) + 0.5 * ((data.y_test - mean) / std) ** 2)
        nlpd += 0.5 * np.log(2 * np.pi)
        return found | {"rmse": rmse(data.y_test, mean), "nlpd": nlpd}

    loss = "rmse" if regression else "log_loss"
    return _measure.measured_fit(methods()[method].fit, data, seed, measure, loss, watching=False)


def sets():
    """Return `Size` or `Info` by name, smallest set first."""
    found = {**_data.regression_sets(), **_data.classification_sets()}
    chosen = {name: found[name] for name in (*REGRESSION, *CLASSIFICATION) if name in found}
    return dict(sorted(chosen.items(), key=lambda item: (item[1].n, item[0])))


def verdicts(results, use):
    """Return mean ranks of the additive models by log score, and ours against the best other.

    ``use`` is that of the sets, for titles.
    """
    shown = [name for name in methods() if name != WHOLE]
    means = results.groupby(["set", "method"])[["rmse", "nlpd", "log_loss"]].mean().unstack()
    names = list(dict.fromkeys(results["set"]))
    score = {name: means.loc[name, LOG_SCORE[kind_of(name)]].reindex(shown) for name in names}
    scores = pd.DataFrame(score).T
    mean_ranks = _report.ranks(scores, higher_is_better=False).mean().to_frame("mean rank").T
    title = f"Mean ranks of the additive models by log density and log-loss, {use} sets"
    parts = [_report.table(mean_ranks, title, 2)]
    rows = []
    for name in names:
        for metric in METRICS[kind_of(name)]:
            if metric == "nlpd":
                continue
            values = means.loc[name, metric]
            others = values.reindex(shown).drop([OURS, OURS_ALONE, OURS_SPARSE])
            if others.isna().all():
                continue
            rows.append(
                {
                    "set": name,
                    "metric": metric,
                    OURS: values[OURS],
                    "best other": others.min(),
                    "which": others.idxmin(),
                    "excess %": 100 * (values[OURS] / others.min() - 1),
                    "SVGP excess %": 100 * (values[WHOLE] / others.min() - 1),
                    "pairs": results.loc[
                        (results["set"] == name) & (results["method"] == OURS), "n_pairs"
                    ].mean(),
                }
            )
    title = f"Against the best other additive model, {use} sets; wanted: at most 1 % above"
    return [*parts, _report.table(pd.DataFrame(rows), title)]


def report(results, plan):
    """Return the parts of the report: the verdicts, then every set, by kind and use."""
    evaluated = results["set"].isin([name for sets in _data.EVALUATION.values() for name in sets])
    parts = []
    for use, chosen in (("evaluation", evaluated), ("development", ~evaluated)):
        if chosen.any():
            parts += verdicts(results[chosen], use)
    for kind, metrics in METRICS.items():
        names = [name for name in plan.sets if kind_of(name) == kind]
        if names:
            sizes = pd.DataFrame({name: vars(plan.sets[name]) for name in names}).T[["n", "d"]]
            of_kind = results[results["set"].isin(names)]
            parts.append(kind.capitalize())
            parts += _report.by_use(of_kind, sizes, methods(tuple(metrics)), metrics, OURS, kind)
    return parts


def main():
    """Run missing tasks and write the report."""
    plan = _harness.plan(__doc__, sets(), QUICK_SETS, seeds=2)
    path = plan.results("additive")
    results = _harness.run_methods(methods(), evaluate, plan, MEASURED, path)
    settings = {
        "sets": ", ".join(plan.sets),
        "splits": f"columns 0 to {len(plan.seeds) - 1} of test_mask, or stratified 80/20 of these "
        "seeds; rows and y standardized",
        OURS: "AdditiveGPRegressor(), AdditiveGPClassifier(); without pairs: interactions=None; "
        "with inducing points: sparse=True",
        "EBM": f"{_additive_peers.CODES['EBM']}, as it comes; without pairs: interactions=0; its "
        "density is Gaussian, with the spread of residuals on 20 % of the rows, held out from a "
        "second, smaller fit that is not in its seconds",
        "pyGAM": f"{_additive_peers.CODES.get('pyGAM', 'not installed')}, LinearGAM or "
        "LogisticGAM by gridsearch; its density is Gaussian, from its prediction intervals",
        WHOLE: "SVGPRegressor(n_inducing=256), SVGPClassifier(n_inducing=64): not additive",
        "processes": f"{plan.jobs} of one thread",
    }
    parts = [_report.header("Additive models on real sets", **settings)]
    parts += report(results, plan)
    _report.publish("additive", parts, write=plan.full)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
