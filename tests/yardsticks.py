"""Measure how hard the package is to follow: ``python -m tests.yardsticks`` prints it.

The measures show the state of the structure; they are not limits. For each estimator, they are the
package classes among its ancestors, its private members, the private members that a subclass
overrides, and the package files that `fit` and `predict` enter. For the package, they are its
lines, classes, functions, uses of dict states, numeric constants, and longest list of parameters.
"""

import ast
import inspect
import sys
import warnings
from pathlib import Path

import numpy as np
from sklearn.base import is_classifier

import skgpsvm
from benchmarks import constants

PACKAGE = Path(skgpsvm.__file__).parent


def ancestors(kind):
    """Return the package classes from which an estimator inherits, including itself."""
    return [base for base in kind.__mro__ if base.__module__.startswith("skgpsvm")]


def private_members(kind):
    """Return how often each private name is defined among the ancestors."""
    counts = {}
    for base in ancestors(kind):
        for name in vars(base):
            if name.startswith("_") and not name.startswith("__"):
                counts[name] = counts.get(name, 0) + 1
    return counts


def files_entered(function, *args):
    """Return the files of the package in which a call runs code."""
    files = set()

    def trace(frame, event, _):
        files.add(frame.f_code.co_filename)

    sys.setprofile(trace)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return {Path(name) for name in files if name.startswith(str(PACKAGE))}


def of_estimators():
    """Return a table: a header, and a line of measures for each estimator."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=60)
    lines = [("estimator", "classes", "private", "overridden", "fit files", "predict files")]
    for name in sorted(set(skgpsvm.__all__) - {"__version__"}):
        kind = getattr(skgpsvm, name)
        model = kind(max_iter=2)
        targets = (y > 0).astype(int) if is_classifier(model) else y
        private = private_members(kind)
        with warnings.catch_warnings(action="ignore"):
            fit = len(files_entered(model.fit, X, targets))
        predict = len(files_entered(model.predict, X))
        overridden = sum(count > 1 for count in private.values())
        lines.append((name, len(ancestors(kind)), len(private), overridden, fit, predict))
    return lines


def of_package():
    """Return the measures of the whole package, by name."""
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    nodes = [node for text in sources.values() for node in ast.walk(ast.parse(text))]
    found = constants.constants()
    most = max(
        (len(inspect.signature(getattr(skgpsvm, name)).parameters), name)
        for name in set(skgpsvm.__all__) - {"__version__"}
    )
    return {
        "lines": sum(text.count("\n") for text in sources.values()),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "functions": sum(isinstance(node, ast.FunctionDef) for node in nodes),
        "uses of dict states": sum(text.count('state["') for text in sources.values()),
        "constants": len(found),
        "constants that may change results": sum(not constants.is_skipped(one) for one in found),
        "most parameters": "{1} with {0}".format(*most),
    }


if __name__ == "__main__":
    for line in of_estimators():
        print("{:24}{:>9}{:>9}{:>12}{:>11}{:>15}".format(*line))
    for measure, value in of_package().items():
        print(measure, value)
