"""Processor time of small fits and of refits, beside that of another version of the package.

Run ``python -m benchmarks.fixed_cost [--before FOLDER] [--sizes 10 60] [--quick]``. The folder has
the files of the other version. The versions take turns fit by fit, in processes of one thread, and
the fastest of six fits counts, after one that does not, as other programs may run too. Data and
estimators are those of ``fit_time.py``.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd

from . import _report
from .fit_time import OURS, REFITTED

SIZES = (10, 60, 150, 300)
REPEATS = 6
REFIT_ROWS = 200
ROOT = Path(__file__).resolve().parent.parent
# Prints the seconds of each fit that a line of the input asks for, by name and by size or kind
WORKER = """
import json, sys, warnings
from copy import deepcopy
from functools import cache
from sklearn.base import clone
from threadpoolctl import threadpool_limits
from benchmarks.fit_time import GIVEN, OURS, REFITTED, fit_seconds, refit, targets
warnings.simplefilter("ignore")

@cache
def refitted(name, kind, n):
    options = GIVEN if kind == "given" else {}
    model = REFITTED[name](n_inducing=100, warm_start=True, random_state=0, **options)
    return refit(model, n)

with threadpool_limits(1):
    for line in sys.stdin:
        name, size, n = json.loads(line)
        if name.startswith("refit of "):
            model, data = refitted(name.removeprefix("refit of "), size, n)
            seconds = fit_seconds(deepcopy(model), *data)
        else:
            seconds = fit_seconds(clone(OURS[name]), *targets(OURS[name], size))
        print(seconds, flush=True)
"""


def start(folder):
    """Start the process that fits with the version in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", WORKER], env=environment, cwd=folder, **options)


def seconds(worker, *task):
    """Return the processor time of a fit in a process."""
    print(json.dumps(task), file=worker.stdin, flush=True)
    return float(worker.stdout.readline())


def measured(folders, sizes, repeats, refit_rows):
    """Return the least seconds of fits and refits by each version, dicts by name and size."""
    workers, tasks = [start(folder) for folder in folders], {}
    for name in OURS:
        tasks |= {(name, str(size)): (name, size, size) for size in sizes}
    for name in (f"refit of {name}" for name in REFITTED):
        tasks |= {(name, kind): (name, kind, refit_rows) for kind in ("learned", "given")}
    times = [{} for _ in folders]
    for key, task in tasks.items():
        turns = [[seconds(worker, *task) for worker in workers] for _ in range(repeats + 1)]
        for found, of_version in zip(times, zip(*turns[1:], strict=True), strict=True):
            found[key] = min(of_version)
    for worker in workers:
        worker.communicate()
    return times


def table(names, versions):
    """Return a table of milliseconds by name and size; the versions are divided by a slash."""
    sizes = list(dict.fromkeys(size for name, size in versions[0] if name in names))
    rows = [
        {"": name}
        | {
            size: " / ".join(f"{1000 * part[name, size]:.0f}" for part in versions)
            for size in sizes
        }
        for name in names
    ]
    return pd.DataFrame(rows).to_string(index=False)


def main():
    """Measure the versions, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of another version")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of rows")
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    folders = [ROOT] if options.before is None else [options.before.resolve(), ROOT]
    if options.quick:
        fastest = measured(folders, SIZES[:1], 1, 40)
    else:
        fastest = measured(folders, options.sizes, REPEATS, REFIT_ROWS)
    names = list(dict.fromkeys(name for name, _ in fastest[0]))
    refits = [name for name in names if name.startswith("refit")]
    columns = "Milliseconds" + (", before / after" if len(folders) > 1 else "")
    parts = [
        _report.header("Fixed cost of fits"),
        f"{columns}, by number of rows\n" + table([n for n in names if n not in refits], fastest),
        f"{columns}, refits with ten more labels\n" + table(refits, fastest),
    ]
    _report.publish("fixed_cost", parts, write=not options.quick)


if __name__ == "__main__":
    main()
