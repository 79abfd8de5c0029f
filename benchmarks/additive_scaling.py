"""Time and memory of additive models against the numbers of rows and of features.

``AdditiveGPRegressor(interactions=None)`` is compared with pyGAM's grid search and explainable
boosting machines without pairs, on float32 memmaps of generated rows: 10^3 to 10^6 rows of 10
features (10^7 with ``--most-rows``), and 5 to 300 features of 5000 rows. Smaller runs are printed
only. Each fit has its own process, which is killed if it exceeds a time limit; the method is then
not run on larger sizes. Run ``python -m benchmarks.additive_scaling [--quick]``; a run that was
killed continues where it stopped.
"""

import argparse
import sys
import tempfile
import time
import warnings
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from skgpsvm import AdditiveGPRegressor

from . import _additive_peers, _harness, _report
from ._measure import PeakMemory, exponent

STEP = 100_000
ROWS, FEATURES = (10**3, 10**4, 10**5, 10**6, 10**7), (5, 10, 20, 50, 100, 300)
D, N = 10, 5000  # features and rows in the section where they do not vary
FROM = 10**4  # smallest number of rows to which exponents are fitted
OURS = "AdditiveGP"
MODELS = {
    OURS: lambda X, y: AdditiveGPRegressor(interactions=None, random_state=0).fit(X, y),
    "pyGAM": lambda X, y: _additive_peers.PyGAM().fit(X, y),
    "EBM": lambda X, y: _additive_peers.EBM(0, 0).fit(X, y),
}
MEASURED = ("fit_seconds", "anonymous_mib")


def generated(path, n, d):
    """Return rows on disk, and targets: an additive function of half of the features plus noise."""
    X = np.lib.format.open_memmap(path, "w+", np.float32, (n, d))
    y = np.empty(n)
    slopes = np.linspace(1, 3, -(-d // 2))
    for i in range(0, n, STEP):
        rng = np.random.default_rng((0, i))
        X[i : i + STEP] = part = rng.random((min(STEP, n - i), d))
        y[i : i + STEP] = np.sin(2 * slopes * part[:, : len(slopes)]).sum(1)
        y[i : i + STEP] += 0.3 * rng.standard_normal(len(part))
    X.flush()
    return np.load(path, mmap_mode="r"), y


def fitted(connection, n, d, method):
    """Send the processor seconds and memory of a fit in this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        X, y = generated(Path(folder) / "X.npy", n, d)
        with PeakMemory() as memory:
            start = time.process_time()
            MODELS[method](X, y)
            taken = time.process_time() - start
    connection.send({"fit_seconds": taken, "anonymous_mib": memory.growth["RssAnon"]})


def evaluate(section, n, d, method, limit):
    """Return `MEASURED` of a fit; seconds are infinite if it was killed."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=fitted, args=(sender, n, d, method))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            return {"fit_seconds": np.inf, "anonymous_mib": np.nan}
        return receiver.recv()
    finally:
        process.kill()
        process.join()


def run(sections, limit, path):
    """Return the results of all sections; a method stops at the first size beyond the limit."""
    found = []
    for method, code in {OURS: _harness.package_code(), **_additive_peers.CODES}.items():
        for section, sizes in sections.items():
            for n, d in sizes:
                task = {
                    **{"section": section, "n": n, "d": d, "method": method, "limit": limit},
                    "code": code,
                }
                found.append(_harness.run_tasks(evaluate, [task], MEASURED, path, 1))
                if not found[-1]["fit_seconds"][0] < limit:
                    break
    return pd.concat(found, ignore_index=True).infer_objects()


def report(results, limit):
    """Return the parts of the report: seconds and memory of each section, with exponents."""
    parts = []
    for section, rows in results.groupby("section", sort=False):
        slopes = []
        for method, part in rows.groupby("method", sort=False):
            part = part[np.isfinite(part["fit_seconds"])]
            part = part[part["n"] >= FROM] if section == "n" else part
            if len(part) > 1:
                slopes.append(f"{method} {exponent(part[section], part['fit_seconds']):.2f}")
        names = {"n": f"rows of {D} features", "d": f"features of {N} rows"}
        since = f" from n = {FROM} on" if section == "n" else ""
        told = f"Exponents of time in {section}{since}: {', '.join(slopes) or 'none'}."
        for field, title in {
            "fit_seconds": f"Processor seconds against {names[section]}; inf: over {limit} s of "
            f"wall time.\n{told}",
            "anonymous_mib": f"Memory above that before the fit, MiB, against {names[section]}; "
            "the file's pages are not counted",
        }.items():
            table = rows.pivot(index=section, columns="method", values=field)
            table = table.reindex(columns=[m for m in MODELS if m in table.columns])
            parts.append(_report.table(table.reset_index(), title, 1))
    return parts


def draw(results, path):
    """Draw the time and memory of both sections."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    labels = {"n": "rows", "d": "features"}
    titles = {"fit_seconds": "processor seconds", "anonymous_mib": "memory, MiB"}
    colors = {method: f"C{k}" for k, method in enumerate(MODELS)}
    for row, (field, title) in zip(axes, titles.items(), strict=True):
        for axis, (section, label) in zip(row, labels.items(), strict=True):
            shown = results[(results["section"] == section) & np.isfinite(results["fit_seconds"])]
            for method, part in shown.groupby("method", sort=False):
                axis.plot(part[section], part[field], "o-", color=colors[method], label=method)
            axis.set(xscale="log", yscale="log", xlabel=label, ylabel=title)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main():
    """Run missing tasks and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--most-rows", type=int, default=10**6, help="default 10^6; at most 10^7")
    parser.add_argument("--most-features", type=int, default=FEATURES[-1], help="default 300")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a fit; default 600")
    options = parser.parse_args()
    if options.quick:
        sections = {"n": [(250, 4), (500, 4)], "d": [(250, 8)]}
    else:
        sections = {
            "n": [(n, D) for n in ROWS if n <= options.most_rows],
            "d": [(N, d) for d in FEATURES if d <= options.most_features],
        }
    kept = not options.quick and options.most_rows >= 10**6
    kept = kept and options.most_features >= FEATURES[-1]
    path = None if options.quick else _harness.RESULTS / "additive_scaling.csv"
    results = run(sections, options.limit, path)
    settings = {
        OURS: "AdditiveGPRegressor(interactions=None)",
        "pyGAM": f"{_additive_peers.CODES.get('pyGAM', 'not installed')}, LinearGAM by gridsearch",
        "EBM": f"{_additive_peers.CODES['EBM']}, interactions=0",
        "processes": "one of one thread",
    }
    parts = [_report.header("Additive models against n and d", **settings)]
    for _, row in results[results["error"] != ""].iterrows():
        parts.append(f"FAILED: {row['method']} n = {row['n']}, d = {row['d']}: {row['error']}")
    parts += report(results[results["error"] == ""], options.limit)
    _report.publish("additive_scaling", parts, write=kept)
    if kept:
        draw(results, _report.RESULTS / f"additive_scaling-{date.today()}.png")
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
