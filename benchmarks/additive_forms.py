"""Time of the forms of an additive model's posterior covariance against its sizes.

One round of ``AdditiveGPRegressor(sparse=True, interactions=None)``, with each ``covariance``, on
generated rows; each of the numbers of rows, of features and of inducing points varies alone, and so
does the rank of "precision". The report has processor seconds, the least of three fits, and the
exponents of the paper's Table 1 as measured. Run ``python -m benchmarks.additive_forms
[--quick]``; a run that was killed continues where it stopped.
"""

import argparse
import sys
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter
from sklearn.exceptions import ConvergenceWarning

from skgpsvm import AdditiveGPRegressor

from . import _harness, _report
from ._measure import exponent

FORMS = ("full", "precision", "mean_field")
MIDDLE = {"n": 10_000, "d": 20, "m": 20, "rank": 0}  # rank 0 is that chosen by the ELBO
SIZES = {
    "n": (2500, 10_000, 40_000, 160_000),
    "d": (5, 10, 20, 40),
    "m": (5, 10, 20),
    "rank": (8, 32, 128),
}
QUICK = {"n": (500, 1000), "d": (2, 4), "m": (5, 10), "rank": (2, 4)}
REPEATS = 3


def evaluate(covariance, n, d, m, rank, repeats):
    """Return the least processor seconds of a round of a fit."""
    rng = np.random.default_rng(0)
    X = rng.random((n, d))
    y = np.sin(np.linspace(1, 6, d) * X).sum(1) + 0.3 * rng.standard_normal(n)
    options = {"n_inducing": m, "covariance": covariance, "rank": rank or None}
    model = AdditiveGPRegressor(
        **options, sparse=True, interactions=None, steps=None, min_gain=0, max_iter=1, tol=0
    )
    taken = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(repeats):
            start = time.process_time()
            model.fit(X, y)
            taken.append(time.process_time() - start)
    return {"fit_seconds": min(taken)}


def tasks(sizes, repeats):
    """Return the tasks of each section, a dict of lists, by the name of what varies."""
    code, found = _harness.package_code(), {}
    for name, values in sizes.items():
        found[name] = [
            {"covariance": form, **MIDDLE, name: value, "repeats": repeats, "code": code}
            for form in (("precision",) if name == "rank" else FORMS)
            for value in values
        ]
    return found


def report(results):
    """Return the parts of the report: seconds of each section, with exponents."""
    parts = []
    for name, rows in results.items():
        rows = rows.astype({name: float, "fit_seconds": float})
        slopes = [
            f"{form} {exponent(part[name], part['fit_seconds']):.2f}"
            for form, part in rows.groupby("covariance", sort=False)
        ]
        rows = rows.astype({name: int})
        table = rows.pivot(index=name, columns="covariance", values="fit_seconds")
        table = table.reindex(columns=[form for form in FORMS if form in table.columns])
        title = f"Processor seconds against {name}. Exponents: {', '.join(slopes)}."
        parts.append(_report.table(table.reset_index(), title, 2))
    return parts


def drawn(results):
    """Return a picture of the time of each section."""
    grid = {"figsize": (12, 3.2), "layout": "constrained", "sharey": True}
    figure, axes = plt.subplots(1, len(results), **grid)
    labels = {"n": "rows", "d": "features", "m": "inducing points", "rank": "rank"}
    for axis, (name, rows) in zip(axes, results.items(), strict=True):
        for form, part in rows.groupby("covariance", sort=False):
            color = f"C{FORMS.index(form)}"
            axis.plot(part[name], part["fit_seconds"], "o-", color=color, label=form)
        axis.set(xscale="log", yscale="log", xlabel=labels[name])
        axis.set_xticks(
            sorted(rows[name].unique()), [f"{k:,}" for k in sorted(rows[name].unique())]
        )
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("processor seconds")
    axes[0].legend(frameon=False)
    return figure


def main():
    """Run missing tasks and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    quick = parser.parse_args().quick
    path = None if quick else _harness.RESULTS / "additive_forms.csv"
    results = {
        name: _harness.run_tasks(evaluate, own, ("fit_seconds",), path, 1)
        for name, own in tasks(QUICK if quick else SIZES, 1 if quick else REPEATS).items()
    }
    settings = {
        "fixed": ", ".join(f"{name} = {value}" for name, value in MIDDLE.items() if value),
        "fits": f"one round, no pairs, all terms kept; least of {REPEATS}",
        "processes": "one of one thread",
    }
    parts = [_report.header("Forms of the covariance of additive models", **settings)]
    failed = [row for rows in results.values() for _, row in rows[rows["error"] != ""].iterrows()]
    parts += [f"FAILED: {row['covariance']} {row['error']}" for row in failed]
    parts += report(results)
    _report.publish("additive_forms", parts, write=not quick)
    if not quick:
        _report.publish_picture("additive_forms", drawn(results))
    sys.exit(int(bool(failed)))


if __name__ == "__main__":
    main()
