"""Test error along ten batches of ten queries, by each way to choose a batch.

All policies but "random" start from ten rows by k-means++ of the pool, which needs no labels;
"random" starts from ten random rows, and is as good in batches as one by one. The model is a
`BayesianSVC` that is fitted anew after each batch, without a search for its kernel. Those of
scikit-activeml get the same probabilities; BADGE takes the rows as its embedding. Run
``python -m benchmarks.batch_queries``; a run that was killed continues where it stopped.
"""

import sys
import warnings

import numpy as np
import pandas as pd
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning

from skgpsvm import BayesianSVC
from skgpsvm.active_learning import DiverseQueryStrategy, ScoreQueryStrategy, bald, epig

from . import _data, _harness, _report
from .active_learning import problem

BATCH, N_BATCHES = 10, 10
STEPS = tuple(range(0, N_BATCHES + 1))
DEVELOPMENT = ("segment", "kr_vs_kp", "nursery", "pima", "waveform5000", "tic_tac_toe")
EVALUATION = (
    "australian",
    "balance_scale",
    "cmc",
    "letter",
    "mushroom",
    "optdigits",
    "pendigits",
    "sick",
    "vehicle",
    "vowel",
)
OURS = "diverse"


def _activeml(name):
    """Return a query function of scikit-activeml."""

    def query(model, X, y, seed):
        from skactiveml import pool
        from skactiveml.classifier import SklearnClassifier

        strategy = getattr(pool, name)(random_state=seed)
        options = {"batch_size": BATCH}
        if name != "TypiClust" and name != "CoreSet":
            given = SklearnClassifier(model, classes=np.unique(y[~np.isnan(y)]))
            options["clf"] = given.fit(X, y)
            options["fit_clf"] = False
        return strategy.query(X, y, **options)

    return query


def _ours(strategy):
    def query(model, X, y, seed):
        strategy.set_params(random_state=seed)
        return strategy.query(X, y, model, fit_clf=False, batch_size=BATCH)

    return query


def _random(model, X, y, seed):
    unlabeled = np.flatnonzero(np.isnan(y))
    return np.random.default_rng(seed).choice(unlabeled, BATCH, replace=False)


POLICIES = {
    OURS: _ours(DiverseQueryStrategy()),
    "least confident": _ours(ScoreQueryStrategy()),
    "diverse, EPIG": _ours(DiverseQueryStrategy(epig)),
    "BALD": _ours(ScoreQueryStrategy(bald)),
    "EPIG": _ours(ScoreQueryStrategy(epig)),
    "scikit-activeml BADGE": _activeml("Badge"),
    "scikit-activeml TypiClust": _activeml("TypiClust"),
    "scikit-activeml CoreSet": _activeml("CoreSet"),
    "random": _random,
}


def learn(set, seed, method):
    """Return the test error after each batch."""
    X, y, X_test, y_test, _, rng = problem(set, seed)
    if method == "random":
        labeled = [*rng.choice(len(y), BATCH, replace=False)]
    else:
        labeled = [*kmeans_plusplus(X, BATCH, random_state=seed)[1]]
    while len(np.unique(y[labeled])) < 2:  # a classifier needs two classes
        labeled.append(rng.choice(np.setdiff1d(np.arange(len(y)), labeled)))
    model, errors = BayesianSVC(optimizer=None, tol=0.1, random_state=seed), {}
    for step in STEPS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X[labeled], y[labeled])
            errors[f"b{step}"] = 1 - model.score(X_test, y_test)
            known = np.full(len(y), np.nan)
            known[labeled] = y[labeled]
            labeled.extend(POLICIES[method](model, X, known, seed + step))
    return errors


def report(results, sets):
    """Return tables of one group of sets."""
    columns = [f"b{step}" for step in STEPS]
    results = results[results["set"].isin(sets)]
    wide = results.pivot(index=["set", "seed"], columns="method", values=columns)
    ranks = pd.DataFrame(
        [_report.ranks(wide[column], higher_is_better=False).mean() for column in columns], STEPS
    )
    errors = pd.DataFrame([wide[column].mean() for column in columns], STEPS)
    along = sum(wide[column] for column in columns[1:]) / N_BATCHES
    along = along.groupby("set").mean()
    early = sum(wide[column] for column in columns[1:4]).groupby("set").mean() / 3
    order = list(POLICIES)
    return [
        _report.table(ranks[order].rename_axis("batches").reset_index(), "Mean rank, test error"),
        _report.table(errors[order].rename_axis("batches").reset_index(), "Mean test error"),
        _report.table(along[order].reset_index(), "Test error averaged over ten batches"),
        _report.table(early[order].reset_index(), "Test error averaged over the first three"),
    ]


def main():
    """Run missing tasks and write the report."""
    infos = _data.classification_sets()
    sets = {name: infos[name] for name in (*DEVELOPMENT, *EVALUATION)}
    plan = _harness.plan(__doc__, sets, ("vehicle",), seeds=3)
    tasks = plan.tasks(dict.fromkeys(POLICIES, _harness.package_code()))
    path = plan.results("batch_queries")
    measured = [f"b{step}" for step in STEPS]
    results = _harness.run_tasks(learn, tasks, measured, path, plan.jobs, plan.methods)
    parts = [
        _report.header(
            "Active learning: batches of ten queries",
            seeds=f"0 to {len(plan.seeds) - 1}",
            pool="at most 2,000 rows; test error on at most 2,000",
            model="BayesianSVC(optimizer=None, tol=0.1), fitted anew after each batch",
        ),
        _report.failures(results),
    ]
    for title, group in (("Evaluation sets", EVALUATION), ("Development sets", DEVELOPMENT)):
        if chosen := [name for name in group if name in plan.sets]:
            parts += [title, *report(results, chosen)]
    _report.publish("batch_queries", parts, write=plan.full)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
