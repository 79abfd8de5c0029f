"""Shared parts of the benchmarks: options, and tasks in one-thread processes with saved results."""

import argparse
import csv
import hashlib
import json
import math
import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import joblib
import pandas as pd
import sklearn
import torch
from threadpoolctl import threadpool_limits

import skgpsvm

from . import _data

RESULTS = Path(__file__).parent / "results"
LARGE = 2000  # rows beyond which a set has one split


@dataclass(frozen=True)
class Method:
    """Method of a comparison.

    Attributes
    ----------
    fit : callable
        Function of training rows, targets, seed and `Clock` that returns a fitted model, or None if
        the method is not applicable.
    code : str
        Version of the code that is run.
    metrics : tuple of str
        Metrics by which the method is ranked.
    """

    fit: Callable
    code: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Sets, seeds and options of a run, from the command line.

    Attributes
    ----------
    sets : dict
        Data sets to run, by name.
    seeds : range
    jobs : int
    quick, full : bool
        Whether the run is the small version; whether it has all sets, so that its report is kept.
    methods : list of str or None
        Methods to run. Of other methods, the results in the file are shown, at whatever code
        version they were measured.
    """

    sets: dict
    seeds: range
    jobs: int
    quick: bool
    full: bool
    methods: list | None = None

    def results(self, name):
        """Return the results file for `run_tasks`; None for the small version."""
        return None if self.quick else RESULTS / f"{name}.csv"

    def tasks(self, codes):
        """Return the tasks for `run_tasks`: every method on every set, for every seed.

        Sets of more than `LARGE` rows have the first seed only. ``codes`` maps methods to their
        code versions. All sets of a seed come before the next seed.
        """
        return [
            {"set": name, "seed": seed, "method": method, "code": code}
            for seed in self.seeds
            for name, info in self.sets.items()
            if seed == self.seeds[0] or info.n <= LARGE
            for method, code in codes.items()
        ]


def add_options(parser):
    """Add the options of `run_tasks` to a parser: ``methods`` and ``jobs``."""
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="run these only; of the others, earlier results are shown, and of what code",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread; default 2")


def plan(doc, sets, quick_sets, *, seeds, quick_seeds=1, kind=None):
    """Return the `Plan` of a benchmark over seeds and sets; each set has its number of rows.

    If the sets are all of a ``kind`` of task, a run may be limited to those for one use.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument(
        "--sets", nargs="+", metavar="NAME", help="these sets only; the report is printed"
    )
    parser.add_argument(
        "--most-rows",
        type=int,
        metavar="N",
        help="sets of at most so many rows; the report is printed",
    )
    if kind:
        parser.add_argument(
            "--use",
            choices=("development", "evaluation"),
            help="sets for this use only; the report is printed",
        )
    parser.add_argument("--seeds", type=int, default=seeds, help=f"default {seeds}")
    add_options(parser)
    options = parser.parse_args()
    names = options.sets or (quick_sets if options.quick else sets)
    if unknown := sorted(set(names) - set(sets)):
        sys.exit(f"No usable data sets {unknown}; there are: {' '.join(sets)}.")
    use = getattr(options, "use", None)
    if use:
        evaluation = set(_data.EVALUATION[kind])
        names = [name for name in names if (name in evaluation) == (use == "evaluation")]
    most = options.most_rows or math.inf
    return Plan(
        {name: info for name, info in sets.items() if name in names and info.n <= most},
        range(quick_seeds if options.quick else options.seeds),
        options.jobs,
        options.quick,
        not (options.quick or options.sets or options.most_rows or use),
        options.methods,
    )


@cache
def package_code():
    """Return version and source digest of the package, as the code version of a result."""
    root = Path(skgpsvm.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"skgpsvm {skgpsvm.__version__} {digest.hexdigest()[:8]}"


def sklearn_code():
    """Return the version of scikit-learn, as the code version of its estimators' results."""
    return f"scikit-learn {sklearn.__version__}"


def run_methods(methods, function, plan, measured, path):
    """Call `run_tasks` with every method, set and seed of a `Plan`, and return the results."""
    tasks = plan.tasks({name: method.code for name, method in methods.items()})
    return run_tasks(function, tasks, measured, path, plan.jobs, plan.methods)


def run_tasks(function, tasks, measured, path, jobs, methods=None):
    """Return the results of all tasks: those already in a file, and those computed now.

    Parameters
    ----------
    function : callable
        Function of a task's items (without ``code``) as keywords that returns a dict with the keys
        ``measured``.
    tasks : list of dict
        Tasks, all with the same keys. ``code`` is the version of the code that is run: results of
        another version are ignored and replaced.
    measured : sequence of str
    path : Path or None
        CSV file to which a line is added when a task ends, so that a killed run can continue. None
        keeps the results in memory. Failed tasks are not written, so that they are tried again.
    jobs : int
        Number of processes, each with one thread.
    methods : list of str or None
        Values of ``method`` to run. Of other methods, the results in the file are returned, at
        whatever code version they were measured.

    Returns
    -------
    results : DataFrame
        One row per task, in the order of ``tasks``: its items, the measured values, ``warnings``
        (kinds and counts) and ``error`` (empty if there was none).
    """
    keys = list(tasks[0])
    columns = [*keys, *measured, "warnings"]
    held = _held(path, columns)
    held = held.astype({key: type(tasks[0][key]) for key in keys})
    if methods:
        tasks = _chosen(tasks, methods, held)
    known = set(held[keys].astype(str).itertuples(index=False, name=None))
    todo = [task for task in tasks if tuple(map(str, task.values())) not in known]
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        rows = []
        for row in parallel(joblib.delayed(_attempt)(function, task) for task in todo):
            rows.append(row)
            if path and not row["error"]:
                _append(path, row, columns)
            done = " ".join(str(row[key]) for key in keys if key != "code")
            print(f"{len(rows)} of {len(todo)}: {done} {row['error']}", flush=True)
    new = pd.DataFrame(rows, columns=[*columns, "error"])
    results = pd.concat([held, new], ignore_index=True) if len(held) else new
    identity = [key for key in keys if key != "code"]
    results = results.drop_duplicates(identity, keep="last").fillna({"warnings": "", "error": ""})
    if path:
        kept = results[results["error"] == ""].sort_values(identity)
        kept.to_csv(path, index=False, columns=columns)
    return pd.DataFrame(tasks).merge(results, on=keys, how="left")


def run_ranks(module, n_ranks, *arguments):
    """Run a module by torchrun, one thread a rank; return its last line, which is JSON."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}"]
    done = subprocess.run(
        [sys.executable, *launch, "-m", module, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _chosen(tasks, methods, held):
    """Return the tasks of the given methods, and those of others that have results in the file."""
    if unknown := sorted(set(methods) - {task["method"] for task in tasks}):
        names = " ".join(dict.fromkeys(task["method"] for task in tasks))
        sys.exit(f"No methods {unknown}; there are: {names}.")
    identity = [key for key in tasks[0] if key != "code"]
    codes = held.astype(str).set_index(identity)["code"].to_dict()
    chosen = []
    for task in tasks:
        code = codes.get(tuple(str(task[key]) for key in identity))
        if task["method"] in methods:
            chosen.append(task)
        elif code:
            chosen.append({**task, "code": code})
    return chosen


def _held(path, columns):
    """Return the results in a file with these columns, without a truncated last line."""
    if path and path.exists():
        text = path.read_text()
        text = text[: text.rfind("\n") + 1]
        if text.startswith(",".join(columns) + "\n"):
            path.write_text(text)
            return pd.read_csv(path).assign(error="")
    return pd.DataFrame(columns=[*columns, "error"])


def _append(path, row, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = ",".join(columns) + "\n"
    started = path.exists() and path.read_text().startswith(header)
    with path.open("a" if started else "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        if not started:
            writer.writeheader()
        writer.writerow(row)


def _attempt(function, task):
    """Return the row of a task; a failure is part of the row."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught, threadpool_limits(1):
        warnings.simplefilter("always")
        try:
            found, error = function(**{k: v for k, v in task.items() if k != "code"}), ""
        except Exception as failure:  # any error: the report lists it, and the run goes on
            found, error = {}, f"{type(failure).__name__}: {failure}".splitlines()[0]
    kinds = Counter(warning.category.__name__ for warning in caught)
    told = " ".join(f"{kind}:{count}" for kind, count in sorted(kinds.items()))
    return {**task, **found, "warnings": told, "error": error}
