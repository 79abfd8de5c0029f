"""Active learning on MNIST by a convolutional Bayesian SVM: a pool of 60,000, 100 at a time.

Every policy starts from the same 100 random digits, and queries the 100 highest scores ten times.
After each round the network is trained anew on the labeled digits. Then a pool of a million
generated rows, in a file on disk, is scored in bounded memory. Run
``python -m benchmarks.hybrid_active_learning``; a run that was killed continues where it stopped.
"""

import argparse
import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification
from torch import nn

from skgpsvm import HybridBayesianSVC
from skgpsvm.active_learning import bald, least_confident, mean_softmax_entropy

from . import _harness, _report
from ._measure import PeakMemory, seconds
from .hybrid_mnist import load

# Score of the pool by policy; None queries at random.
POLICIES = {
    "least confident": least_confident,
    "BALD": bald,
    "entropy of softmax of means": mean_softmax_entropy,
    "random": None,
}
ROUNDS, QUERIES = 10, 100
POOL, QUICK_POOL = 60_000, 1000
EPOCHS = 30
ROWS, FEATURES, CHUNK = 10**6, 20, 10**5  # size of the generated pool, and of its chunks


class Small(nn.Sequential):
    """Network for images (1, 28, 28) that is a hundred times cheaper than the paper's."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 5 * 5, 64),
        )


def learn(set, n, seed, method, rounds=ROUNDS):
    """Return the test error after each round of queries."""
    X, y, X_test, y_test = load()
    X, y = X[:n], y[:n]
    rng = np.random.default_rng(seed)
    labeled = rng.choice(n, QUERIES, replace=False)
    errors = {}
    for done in range(rounds + 1):
        model = HybridBayesianSVC(Small, max_iter=EPOCHS, random_state=seed)
        model.fit(X[labeled], y[labeled])
        errors[f"r{done}"] = 1 - model.score(X_test, y_test)
        rest = np.setdiff1d(np.arange(n), labeled)
        score = POLICIES[method]
        scores = score(model, X[rest]) if score else rng.random(len(rest))
        labeled = np.concatenate([labeled, rest[np.argsort(-scores)[:QUERIES]]])
    return errors


def scored(n_rows):
    """Return a table of the seconds and memory of scores of a pool on disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.npy"
        pool = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, FEATURES))
        rng = np.random.default_rng(0)
        for start in range(0, n_rows, CHUNK):
            part = pool[start : start + CHUNK]
            part[:] = rng.standard_normal(part.shape, np.float32)
        X, y = make_classification(2000, FEATURES, n_informative=8, n_classes=5, random_state=0)
        model = HybridBayesianSVC(max_iter=10, random_state=0).fit(X.astype(np.float32), y)
        rows = []
        for name, score in POLICIES.items():
            if score:
                with PeakMemory() as memory:
                    taken = seconds(lambda score=score: score(model, pool))
                rows.append({"score": name, "seconds": taken, "MiB": memory.growth["RssAnon"]})
    return pd.DataFrame(rows)


def draw(errors, path):
    """Draw the mean test error along the queries."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axis = figure.subplots()
    for policy in errors:
        axis.semilogy(errors.index, errors[policy], "o-", ms=3, label=policy)
    axis.set(xlabel="labeled digits", ylabel="test error, mean over seeds")
    for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        which(PercentFormatter(1, decimals=0))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=130)


def main():
    """Run missing tasks, write the report and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--seeds", type=int, default=3, help="default 3")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread; default 2")
    options = parser.parse_args()
    n, seeds, rounds = (QUICK_POOL, 1, 1) if options.quick else (POOL, options.seeds, ROUNDS)
    tasks = [
        {"set": "mnist", "n": n, "seed": seed, "method": method, "code": _harness.package_code()}
        for seed in range(seeds)
        for method in POLICIES
    ]
    path = None if options.quick else _harness.RESULTS / "hybrid_active_learning.csv"
    steps = [f"r{done}" for done in range(rounds + 1)]

    def function(**task):
        return learn(**task, rounds=rounds)

    results = _harness.run_tasks(function, tasks, steps, path, options.jobs)
    errors = results.groupby("method", sort=False)[steps].mean().T
    errors.index = QUERIES * np.arange(1, rounds + 2)
    below = results.groupby("method", sort=False)[steps[-1]].agg(["mean", "min", "max"])
    parts = [
        _report.header(
            f"Active learning on MNIST, pool of {n}",
            rows=f"{QUERIES} at random, then {rounds} times the {QUERIES} highest scores; seeds 0 "
            f"to {seeds - 1}",
            model=f"HybridBayesianSVC on a network of two strided convolutions, {EPOCHS} passes, "
            "trained anew in each round",
            processes=f"{options.jobs} of one thread",
        ),
        _report.failures(results),
        _report.table(
            errors.rename_axis("labeled").reset_index(), "Test error, mean over seeds", digits=4
        ),
        _report.table(below.reset_index(), "At the end: mean, least and largest", digits=4),
        _report.table(
            scored(20_000 if options.quick else ROWS),
            f"Scores of {20_000 if options.quick else ROWS} rows of {FEATURES} features on disk, "
            "growth of memory",
            digits=1,
        ),
    ]
    _report.publish("hybrid_active_learning", parts, write=not options.quick)
    if not options.quick:
        draw(errors, _harness.RESULTS / f"hybrid_active_learning-{date.today()}.png")
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
