"""Processor time of small fits and of refits, beside that of another version of the package.

Run ``python -m benchmarks.fixed_cost [--before FOLDER] [--sizes 10 60] [--quick]``. The folder has
the files of the other version. The versions take turns, in processes of one thread, and the fastest
run counts, as other programs may run too. Data and estimators are those of ``fit_time.py``.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd

from . import _report

SIZES = (10, 60, 150, 300)
REPEATS, TURNS = 2, 2  # fits of each kind in a process, and processes of each version
ROOT = Path(__file__).resolve().parent.parent
MEASURE = """
import json, warnings
from sklearn.base import clone
from threadpoolctl import threadpool_limits
from benchmarks.fit_time import GIVEN, OURS, REFITTED, fit_seconds, refit, targets
warnings.simplefilter("ignore")
times, repeats, sizes = {{}}, {repeats}, {sizes}
with threadpool_limits(1):
    for name, model in OURS.items():
        for n in sizes:
            data = targets(model, n)
            times[name, n] = min(fit_seconds(clone(model), *data) for _ in range(repeats))
    for name, make in REFITTED.items():
        for kind, options in (("learned", {{}}), ("given", GIVEN)):
            model = make(n_inducing=100, warm_start=True, random_state=0, **options)
            model, more = refit(model, {refit_rows})
            times["refit of " + name, kind] = fit_seconds(model, *more)
print(json.dumps([[*key, value] for key, value in times.items()]))
"""


def measured(folder, sizes, quick):
    """Return the seconds of fits and refits by the version in a folder, by name and size."""
    options = {"repeats": 1, "sizes": (10,), "refit_rows": 40}
    if not quick:
        options = {"repeats": REPEATS, "sizes": tuple(sizes), "refit_rows": 200}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", MEASURE.format(**options)]
    done = subprocess.run(
        command, env=environment, cwd=folder, check=True, capture_output=True, text=True
    )
    return {(name, str(size)): value for name, size, value in json.loads(done.stdout)}


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
    turns = 1 if options.quick else TURNS
    wanted = options.sizes, options.quick
    runs = [[measured(folder, *wanted) for folder in folders] for _ in range(turns)]
    fastest = [
        {key: min(times[key] for times in of_version) for key in of_version[0]}
        for of_version in zip(*runs, strict=True)
    ]
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
