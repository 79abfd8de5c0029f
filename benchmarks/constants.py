"""Effect of the package's constants: fits with each of them halved and doubled.

A constant is a number with an upper-case name in a module, or a field of a module's ``DEFAULTS``.
It is halved and doubled wherever it is imported, and estimators whose fit enters a module that has
it are fitted, by default, to rows of development sets. Losses (log loss, negative log density) and
processor times are compared with those of the constant as it is. Constants that set no result
(chunk sizes, tolerances below rounding) and those of larger data show no effect here. Values that
Python copies when it defines a function are not changed. Run ``python -m benchmarks.constants
[--modules PATTERN] [--estimators NAME ...]``; a run that was killed continues where it stopped.
"""

import argparse
import ast
import contextlib
import importlib
import pkgutil
import re
import sys
import time
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.base import is_classifier
from sklearn.metrics import log_loss

import skgpsvm

from . import _data, _harness, _report

NAME = re.compile(r"_?[A-Z][A-Z0-9_]*$")
SETS = {True: ("pima", "autos", "ionosphere"), False: ("housing", "airfoil", "wine")}
ROWS = 200
ESTIMATORS = [
    name
    for name in skgpsvm.__all__
    if hasattr(getattr(skgpsvm, name), "fit") and not name.startswith("Hybrid")
]
MEASURED = ("loss", "seconds")
NO_EFFECT, SMALL = 1e-6, 1e-3  # nats


def modules():
    """Return all modules of the package by name."""
    found = pkgutil.walk_packages(skgpsvm.__path__, "skgpsvm.")
    return {info.name: importlib.import_module(info.name) for info in found}


def is_number(value):
    """Return whether a value is a number that can be halved and doubled."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0


def constants():
    """Return the constants, "module:NAME" or "module:field", each with the modules that have it.

    A constant belongs to the module that assigns it; others have it if they import it.
    """
    loaded, found = modules(), {}
    assigned = {name: _assigned(module) for name, module in loaded.items()}
    for name, module in loaded.items():
        for key in assigned[name]:
            value = vars(module)[key]
            users = [
                other
                for other, m in loaded.items()
                if other == name or (vars(m).get(key) is value and key not in assigned[other])
            ]
            if is_number(value):
                found[f"{name}:{key}"] = users
            elif key == "DEFAULTS" and is_dataclass(value):
                names = [field.name for field in fields(value)]
                own = [field for field in names if is_number(getattr(value, field))]
                found |= {f"{name}:{field}": users for field in own}
    return found


def _assigned(module):
    """Return the upper-case names that the source of a module assigns at its top level."""
    nodes = ast.parse(Path(module.__file__).read_text()).body
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    names = [part.id for target in targets for part in ast.walk(target) if hasattr(part, "id")]
    return {name for name in names if NAME.match(name)}


@contextlib.contextmanager
def changed(constant, factor):
    """Multiply a constant by a factor, wherever it was imported, for the time of a context."""
    if not constant:
        yield
        return
    key = constant.split(":")[1]
    holders = [modules()[user] for user in constants()[constant]]
    if not NAME.match(key):  # a field of an object that all of them share
        holders = [holders[0].DEFAULTS]
    old = getattr(holders[0], key)
    new = old * factor if isinstance(old, float) else max(1, round(old * factor))
    try:
        for holder in holders:
            object.__setattr__(holder, key, new)
        yield
    finally:
        for holder in holders:
            object.__setattr__(holder, key, old)


def rows(name, classes):
    """Return the first split of a set, with at most 200 training rows."""
    data = _data.split_classification(name, 0) if classes else _data.split_regression(name, 0)
    return data.X_train[:ROWS], data.y_train[:ROWS], data.X_test, data.y_test


def evaluate(constant, factor, estimator, set):
    """Fit an estimator with a changed constant, and return its loss on test rows and its time."""
    kind = getattr(skgpsvm, estimator)
    classes = is_classifier(kind())
    X, y, X_test, y_test = rows(set, classes)
    start = time.process_time()
    with changed(constant, factor):
        model = kind(random_state=0).fit(X, y)
        seconds = time.process_time() - start
        if classes:
            known = np.isin(y_test, model.classes_)
            p = model.predict_proba(X_test[known])
            return {"loss": log_loss(y_test[known], p, labels=model.classes_), "seconds": seconds}
        mean, std = model.predict(X_test, return_std=True)
    losses = np.log(std) + 0.5 * ((y_test - mean) / std) ** 2 + 0.5 * np.log(2 * np.pi)
    return {"loss": losses.mean(), "seconds": seconds}


def entered(estimator):
    """Return the names of the modules whose functions a fit and a prediction enter."""
    kind = getattr(skgpsvm, estimator)
    classes = is_classifier(kind())
    X, y, X_test, _ = rows(SETS[classes][0], classes)
    files = {module.__file__: name for name, module in modules().items()}
    seen = set()

    def trace(frame, event, _):
        seen.add(frame.f_code.co_filename)

    sys.setprofile(trace)
    try:
        kind(random_state=0).fit(X[:60], y[:60]).predict(X_test[:5])
    finally:
        sys.setprofile(None)
    return {files[path] for path in seen & files.keys()}


def tasks(pattern, estimators):
    """Return the tasks: fits as they are, and with each constant of the modules that they enter."""
    code, found = _harness.package_code(), []
    known = {name: users for name, users in constants().items() if re.search(pattern, name)}
    for estimator in estimators:
        sets = SETS[is_classifier(getattr(skgpsvm, estimator)())]
        inside = entered(estimator)
        reached = [name for name, users in known.items() if inside.intersection(users)]
        cells = [("", 1.0), *((name, factor) for name in reached for factor in (0.5, 2.0))]
        found += [
            {"constant": name, "factor": factor, "estimator": estimator, "set": set, "code": code}
            for name, factor in cells
            for set in sets
        ]
    return found


def summary(results):
    """Return a table of the constants: largest and mean change of the loss, and ratio of times."""
    key = ["estimator", "set"]
    results = results.assign(constant=results["constant"].fillna(""))
    base = results[results["constant"] == ""].set_index(key)[["loss", "seconds"]]
    rest = results[results["constant"] != ""].join(base, on=key, rsuffix="_base")
    rest["change"] = rest["loss"] - rest["loss_base"]
    rest["ratio"] = rest["seconds"] / rest["seconds_base"]
    rest["failed"] = rest["error"] != ""
    found = []
    for constant, part in rest.groupby("constant"):
        row = {"constant": constant.removeprefix("skgpsvm.")}
        for factor, name in ((0.5, "half"), (2.0, "double")):
            own = part[part["factor"] == factor]
            row |= {
                f"{name}: mean": own["change"].mean(),
                f"{name}: largest": own["change"].abs().max(),
                f"{name}: time": np.exp(np.log(own["ratio"]).mean()),
            }
        found.append(row | {"fits": len(part), "failed": int(part["failed"].sum())})
    table = pd.DataFrame(found).set_index("constant")
    largest = table[["half: largest", "double: largest"]].max(axis=1)
    group = np.select(
        [largest < NO_EFFECT, largest < SMALL], ["no effect", "small"], default="effect"
    )
    return table.assign(group=group)


def main():
    """Run the benchmark and print its report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", default="", metavar="PATTERN", help="of modules' names")
    parser.add_argument("--estimators", nargs="+", default=ESTIMATORS, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread; default 2")
    options = parser.parse_args()
    todo = tasks(options.modules, options.estimators)
    path = _harness.RESULTS / "constants.csv"
    table = summary(_harness.run_tasks(evaluate, todo, MEASURED, path, options.jobs))
    settings = {
        "sets": ", ".join(SETS[True] + SETS[False]) + f"; {ROWS} rows of the first split",
        "estimators": ", ".join(options.estimators) + "; defaults",
        "columns": "change of the loss in the mean over sets and estimators, largest absolute "
        "change, geometric mean of the ratios of processor times",
    }
    parts = [_report.header("Constants halved and doubled", **settings)]
    for group, part in table.groupby("group"):
        shown = part.drop(columns="group").reset_index()
        parts.append(_report.table(shown, f"{group}: {len(part)}", 4))
    _report.publish("constants", parts, write=not options.modules)


if __name__ == "__main__":
    main()
