"""Coverage of the bands of effects for correlated features, by form of the posterior.

The function is Friedman's, and its pair of features is given. Features are independent, or have a
Gaussian copula of correlation 0.9. On other rows of the same distribution, the report has the
coverage of the true effects by the 95 % bands, the width of these bands, and the errors. Effects
have zero mean over the unit interval, so that the true effects do not depend on the correlation.
Run ``python -m benchmarks.additive_coverage [--quick]``; a run that was killed continues where it
stopped.
"""

import argparse
import sys
import time

from skgpsvm import AdditiveGPRegressor

from . import _friedman, _harness, _report

CORRELATIONS, KERNELS = (0.9, 0.0), ("matern52", "rbf")
# Covariance and rank of each form.
FORMS = {
    "full": ("full", None),
    "precision": ("precision", None),
    "precision, rank 8": ("precision", 8),
    "mean_field": ("mean_field", None),
}
SETTINGS = {
    "terms": [..., (0, 1)],
    "interactions": None,
    "measure": "uniform",
    "scaling": "minmax",
    "min_gain": 0,
}
N_TEST = 2000
MEASURED = (*_friedman.MEASURED, "elbo", "fit_seconds")
BY = ["correlation", "kernel", "form"]


def evaluate(n, seed, correlation, kernel, form):
    """Fit a form of the model to the rows of a seed and measure it; seconds are processor time."""
    X, y = _friedman.rows(n, seed, correlation)
    covariance, rank = FORMS[form]
    model = AdditiveGPRegressor(kernel=kernel, covariance=covariance, rank=rank, **SETTINGS)
    start = time.process_time()
    model.fit(X, y)
    taken = time.process_time() - start
    X, _ = _friedman.rows(N_TEST, (seed, 1), correlation)
    return {**_friedman.judged(model, X), "elbo": float(model.elbo_), "fit_seconds": taken}


def report(results):
    """Return the parts of the report: a table of all forms for each quantity."""
    results = results[results["error"] == ""]
    names = list(_friedman.TERMS)
    cover = _friedman.over_seeds(results, "cover", BY)
    cover["mean"] = cover[names].mean(axis=1)
    whole = results.groupby(BY, sort=False)[["elbo", "fit_seconds"]].mean().reset_index()
    return [
        _report.table(cover, "Truth within bands of 95 %, mean over seeds"),
        _report.table(
            _friedman.over_seeds(results, "cover", BY, "min"), "Least coverage of a seed"
        ),
        _report.table(_friedman.over_seeds(results, "width", BY), "Width of the bands, mean"),
        _report.table(_friedman.over_seeds(results, "rmse", BY), "RMSE of the effects, mean"),
        _report.table(whole, "Bound, nats, and seconds of the processor, means", 1),
    ]


def main():
    """Run missing tasks and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--seeds", type=int, default=10, help="default 10")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread; default 2")
    options = parser.parse_args()
    n, seeds = (250, 1) if options.quick else (5000, options.seeds)
    tasks = [
        {
            "n": n,
            "seed": s,
            "correlation": correlation,
            "kernel": kernel,
            "form": form,
            "code": code,
        }
        for code in (_harness.package_code(),)
        for s in range(seeds)
        for correlation in CORRELATIONS
        for kernel in KERNELS
        for form in FORMS
    ]
    path = None if options.quick else _harness.RESULTS / "additive_coverage.csv"
    results = _harness.run_tasks(evaluate, tasks, MEASURED, path, options.jobs)
    failed = (results["error"] != "").any()
    settings = {
        "rows": f"{n}, unit noise, seeds 0 to {seeds - 1}; judged on {N_TEST} others",
        "model": f"AdditiveGPRegressor({', '.join(f'{k}={v!r}' for k, v in SETTINGS.items())})",
        "effects that are dropped": "count as zero, with a band of no width",
        "processes": f"{options.jobs} of one thread",
    }
    parts = [_report.header("Bands of effects of correlated features", **settings)]
    parts += [results["error"].max()] if failed else report(results)
    _report.publish("additive_coverage", parts, write=not options.quick)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
