"""Test error along 100 queries, one at a time, by each query policy: the paper's Figure 5.

Every policy starts from the same random labeled row of each class and uses the same `BayesianSVC`,
fitted anew after each query. The seed determines the test rows (30 %, stratified) and the pool of
at most 2,000 rows. Run ``python -m benchmarks.active_learning``; a run that was killed continues
where it stopped. To add a policy, add an entry to ``POLICIES``.
"""

import sys
import warnings
from datetime import date

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm import BayesianSVC
from skgpsvm.active_learning import least_confident, mean_softmax_entropy, variation_ratio
from skgpsvm.inducing import select_inducing_points
from skgpsvm.kernels import Linear

from . import _data, _harness, _report

# Score of the pool by policy: the row with the highest score is queried. None queries at random.
POLICIES = {
    "variation ratio": variation_ratio,
    "least confident": least_confident,
    "entropy of softmax of means": mean_softmax_entropy,
    "random": None,
}
OURS = "least confident"
N_QUERIES = 100
N_INDUCING = 32
POOL_ROWS = TEST_ROWS = 2000
MIN_ROWS = 500
STEPS = tuple(range(0, N_QUERIES + 1, 5))
QUICK_STEPS = STEPS[:5]
QUICK_SETS = ("vehicle",)
SETTINGS = {"optimizer": None, "max_iter": 20}


def problem(name, seed):
    """Return standardized pool and test rows with labels, and the initially labeled rows."""
    data = _data.split_classification(name, seed, test_size=0.3)
    rng = np.random.default_rng(seed)
    pool = rng.permutation(len(data.y_train))
    _, first = np.unique(data.y_train[pool], return_index=True)
    order = np.concatenate([first, np.delete(np.arange(len(pool)), first)])
    pool = pool[order][:POOL_ROWS]
    test = rng.permutation(len(data.y_test))[:TEST_ROWS]
    labeled = list(range(len(first)))
    return (
        data.X_train[pool],
        data.y_train[pool],
        data.X_test[test],
        data.y_test[test],
        labeled,
        rng,
    )


def classifier(X_pool, seed, n_inducing=N_INDUCING):
    """Return the model of all policies, whose kernel and inducing points are given by the pool."""
    d = X_pool.shape[1]
    smooth = ConstantKernel(5.0) * RBF(np.sqrt(d / 2))
    kernel = smooth + ConstantKernel(5.0) + Linear(np.sqrt(d))
    Z = select_inducing_points(X_pool, n_inducing, random_state=seed)
    return BayesianSVC(kernel, inducing_points=Z, random_state=seed, **SETTINGS)


def best(scores, rng):
    """Return the index of the highest score; ties are broken at random."""
    return rng.choice(np.flatnonzero(scores == scores.max()))


def learn(set, seed, method, steps=STEPS):
    """Return the test error after each number of queries in ``steps``."""
    data = problem(set, seed)
    return errors_along(classifier(data[0], seed), POLICIES[method], *data, steps)


def errors_along(model, score, X, y, X_test, y_test, labeled, rng, steps, most=None):
    """Return the test error after each number of queries in ``steps``.

    Each query is among at most ``most`` rows of the pool, which are drawn anew for it.
    """
    labeled, errors = list(labeled), {}
    unlabeled = np.delete(np.arange(len(y)), labeled)
    for n_queries in range(steps[-1] + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X[labeled], y[labeled])
        if n_queries in steps:
            errors[f"q{n_queries}"] = 1 - model.score(X_test, y_test)
        some = np.arange(len(unlabeled))
        if most is not None and most < len(some):
            some = rng.choice(some, most, replace=False)
        rows = X[unlabeled[some]]
        chosen = some[best(score(model, rows) if score else rng.random(len(rows)), rng)]
        labeled.append(unlabeled[chosen])
        unlabeled = np.delete(unlabeled, chosen)
    return errors


def draw(errors, rank_curves, path):
    """Draw the mean rank and mean test error along the queries, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for policy in POLICIES:
        left.plot(rank_curves.index, rank_curves[policy], label=policy)
        right.plot(rank_curves.index, errors[policy], label=policy)
    left.set(xlabel="queries", ylabel="mean rank of the test error (1 best)")
    right.set(xlabel="queries", ylabel="mean test error")
    left.legend(frameon=False)
    figure.savefig(path, dpi=150)


def curves(results, steps):
    """Return mean ranks and mean test errors of the policies at every step, and errors by set."""
    columns = [f"q{step}" for step in steps]
    wide = results.pivot(index=["set", "seed"], columns="method", values=columns)
    mean_ranks = pd.DataFrame(
        [_report.ranks(wide[column], higher_is_better=False).mean() for column in columns], steps
    )
    errors = pd.DataFrame([wide[column].mean() for column in columns], steps)
    along = sum(wide[column] for column in columns) / len(columns)
    along = along.groupby("set", sort=False).mean()
    return mean_ranks[list(POLICIES)], errors[list(POLICIES)], along[list(POLICIES)]


def report(results, sets, steps, settings):
    """Return the parts of the text report, and the two curves."""
    mean_ranks, errors, along = curves(results, steps)
    parts = [
        _report.header("Active learning: queries one at a time", **settings),
        _report.failures(results),
        _report.table(
            _report.comparison(along, OURS, higher_is_better=False),
            f"Test error averaged along the queries, {OURS} against others, over sets",
        ),
        _report.table(
            mean_ranks.rename_axis("queries").reset_index(),
            "Mean rank of the test error over sets and seeds",
        ),
        _report.table(errors.rename_axis("queries").reset_index(), "Mean test error"),
    ]
    body = along.reindex(list(sets)).rename_axis("set").reset_index()
    body.insert(1, "C", [sets[name].c for name in body["set"]])
    parts.append(_report.table(body, "Test error averaged along the queries, set by set"))
    return parts, mean_ranks, errors


def main():
    """Run missing tasks, write the report and draw the figure."""
    sets = _data.classification_sets(min_rows=MIN_ROWS)
    plan = _harness.plan(__doc__, sets, QUICK_SETS, seeds=5)
    steps = QUICK_STEPS if plan.quick else STEPS
    tasks = plan.tasks(dict.fromkeys(POLICIES, _harness.package_code()))
    path = plan.results("active_learning")
    measured = [f"q{step}" for step in steps]

    def function(**task):
        return learn(**task, steps=steps)

    results = _harness.run_tasks(function, tasks, measured, path, plan.jobs, plan.methods)
    settings = {
        "sets": f"{len(plan.sets)} with n >= {MIN_ROWS} and 2 rows of every class; seeds 0 to "
        f"{len(plan.seeds) - 1}",
        "start": f"one random row of each class; {steps[-1]} queries; pool of at most {POOL_ROWS} "
        f"rows, test error on at most {TEST_ROWS} of the 30 % test rows",
        "model": f"BayesianSVC, 5 * RBF(sqrt(d/2)) + 5 + Linear(sqrt(d)), {N_INDUCING} k-means "
        f"inducing points of the pool, {SETTINGS}, fitted anew after each query",
        "processes": f"{plan.jobs} of one thread",
    }
    parts, mean_ranks, errors = report(results, plan.sets, steps, settings)
    _report.publish("active_learning", parts, write=plan.full)
    if plan.full:
        draw(errors, mean_ranks, _harness.RESULTS / f"active_learning-{date.today()}.png")
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
