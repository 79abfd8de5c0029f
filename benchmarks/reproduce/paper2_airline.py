"""Paper 2, Figure 4: two million flights from a memmap, log-loss against time.

Hernandez-Lobato and Hernandez-Lobato (2016), section 6.3, on a generated stand-in for the airline
set: 8 features of a flight, whether it is late, smooth effects that are not linear, and much noise.
`EPClassifier` and `SVGPClassifier` in minibatches, one thread each, against logistic regression.
Run ``python -m benchmarks.reproduce.paper2_airline [--quick]``.
"""

import argparse
import sys
import tempfile
from datetime import date
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, zero_one_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpsvm import EPClassifier, SVGPClassifier
from skgpsvm.solvers import InterleavedEP, NaturalGradient

from .. import _data, _harness, _measure, _report

ROWS, M, D, N_TEST = 2_000_000, 200, 8, 10_000
STEP = 100_000  # rows generated at a time
BATCH_SIZE = 1024
COMMON = {
    "n_inducing": M,
    "learn_inducing": True,
    "random_state": 0,
    "tol": 0.02,
}
MODELS = {
    "EPClassifier": EPClassifier(**COMMON, solver=InterleavedEP(batch_size=BATCH_SIZE), max_iter=6),
    "SVGPClassifier": SVGPClassifier(
        **COMMON, likelihood="probit", solver=NaturalGradient(batch_size=BATCH_SIZE), max_iter=4
    ),
}
LINEAR = "logistic regression"
MEASURED = ("error_rate", "log_loss", "best_log_loss", *_measure.MEASURED)


def flights(n, seed):
    """Flights (n, 8), whether each is late, and the probability that it is.

    Columns: age of the aircraft in years, distance in miles, time in the air, departure and arrival
    in minutes, day of the week, day of the month, month.
    """
    rng = np.random.default_rng((seed, n))
    age = rng.gamma(3, 4, n)
    distance = np.exp(rng.normal(6.4, 0.6, n))
    air_time = distance / 7.5 + 18 + rng.normal(0, 8, n)
    peak = rng.choice([480, 780, 1080], n)
    departure = np.clip(rng.normal(peak, 120), 300, 1430)
    arrival = (departure + air_time + 25) % 1440
    weekday, day, month = rng.integers(1, 8, n), rng.integers(1, 32, n), rng.integers(1, 5, n)
    X = np.column_stack([age, distance, air_time, departure, arrival, weekday, day, month])
    evening = np.exp(-(((departure - 1110) / 150) ** 2))
    storms = np.exp(-(((day - 8 * month + 2) / 2.5) ** 2))  # a few days of each month
    headwind = (air_time - distance / 7.5 - 18) / 8
    logit = (
        -0.9
        + 1.3 * evening * (1 + 0.5 * np.cos(2 * np.pi * (weekday - 5) / 7))
        - 0.9 * np.exp(-(((departure - 390) / 80) ** 2))
        + 1.2 * storms
        + 0.5 * headwind * (np.log(distance) - 6)
        - 0.5 * np.cos(2 * np.pi * age / 20)
    )
    p = ndtr(logit)
    return X, rng.uniform(size=n) < p, p


def load(path, n):
    """The `Split`, training rows on disk, standardized, and the loss of the true probabilities."""
    X_test, y_test, p_test = flights(N_TEST, 1)
    scaler = StandardScaler().fit(X_test)
    X = np.lib.format.open_memmap(path, "w+", np.float32, (n, D))
    y = np.empty(n, dtype=np.int8)
    for i in range(0, n, STEP):
        part, late, _ = flights(min(STEP, n - i), 2 + i)
        X[i : i + STEP], y[i : i + STEP] = scaler.transform(part), late
    X.flush()
    X_test = scaler.transform(X_test).astype(np.float32)
    split = _data.Split(np.load(path, mmap_mode="r"), y, X_test, y_test.astype(np.int8), 2)
    return split, log_loss(y_test, p_test)


def fit(name, X, y, seed, clock):
    """`Method.fit` of a model."""
    if name == LINEAR:
        return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    return MODELS[name].set_callbacks(*clock.callbacks()).fit(X, y)


def evaluate(n_rows, method):
    """Fit a model and measure it; seconds are of the processor."""
    with tempfile.TemporaryDirectory() as folder:
        data, best = load(Path(folder) / "flights.npy", n_rows)

        def measure(model):
            p = model.predict_proba(data.X_test)
            error = zero_one_loss(data.y_test, p.argmax(1))
            return {
                "error_rate": error,
                "log_loss": log_loss(data.y_test, p),
                "best_log_loss": best,
            }

        return _measure.measured_fit(
            partial(fit, method), data, 0, measure, "log_loss", watching=True
        )


def draw(results, path):
    """Log-loss against time."""
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    rows = results.set_index("method")
    for name in MODELS:
        axis.plot(*_measure.curve(rows["curve"][name]), "o-", label=name)
    axis.axhline(rows["log_loss"][LINEAR], color="k", ls="--", lw=1, label=LINEAR)
    best = rows["best_log_loss"][LINEAR]
    axis.axhline(best, color="k", ls=":", lw=1, label="true probabilities")
    axis.set(xscale="log", xlabel="processor seconds, one thread", ylabel="log-loss on test rows")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.7))
    figure.savefig(path, dpi=150)


def main():
    """Run what is missing and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="others than 2 million: printed only"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread; default 2")
    options = parser.parse_args()
    n_rows = 20_000 if options.quick else options.rows
    kept = n_rows == ROWS
    codes = dict.fromkeys(MODELS, _harness.package_code()) | {LINEAR: _harness.sklearn_code()}
    tasks = [{"n_rows": n_rows, "method": name, "code": code} for name, code in codes.items()]
    path = _harness.RESULTS / "paper2_airline.csv" if kept else None
    results = _harness.run_tasks(evaluate, tasks, MEASURED, path, options.jobs)
    failed = (results["error"] != "").any()
    parts = [
        _report.header(
            f"Generated flights, {n_rows} x {D} float32 from a memmap, m = {M}",
            best=f"log-loss {results['best_log_loss'].max():.4f} of the true probabilities",
            processes=f"{options.jobs} of one thread",
        ),
        *_report.watched(results, f"{N_TEST} test rows", LINEAR),
    ]
    _report.publish("paper2_airline", parts, write=kept)
    if kept and not failed:
        draw(results, _report.RESULTS / f"paper2_airline-{date.today()}.png")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
