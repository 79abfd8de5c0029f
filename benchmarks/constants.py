"""Effect of the package's constants: fits with each of them halved and doubled.

A constant is a number with an upper-case name in a module, alone or in a tuple, or a field of a
``DEFAULTS``. It is changed wherever it is imported, and cases that read it while they fit are
fitted to rows of development sets. Losses (log loss, negative log density) and processor times are
compared with those of the constant as it is; ``random_state`` shows the noise of the comparison.
Not changed are the constants of ``SKIPPED``, and values that Python copies when it defines a
function or class. Run ``python -m benchmarks.constants [--modules PATTERN] [--cases PATTERN]``;
a run that was killed continues where it stopped, as long as the package stays as it is.
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
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss

import skgpsvm
from skgpsvm.solvers import (
    CoordinateAscent,
    InterleavedEP,
    NaturalGradient,
    QuadruplyStochastic,
    StochasticGradient,
)

from . import _data, _harness, _report

SETS = {True: ("pima", "column3C", "ionosphere"), False: ("housing", "airfoil", "wine")}
ROWS = 150
# Estimators, the modules whose constants are changed in their fits, and rows if not as many.
CASES = {
    "EP": (
        skgpsvm.EPClassifier(),
        "propagation._(starts|converged|propagation)|priors|initialization:_(MIN|SWEEPS)",
    ),
    "EP, sep": (skgpsvm.EPClassifier(solver="sep"), "propagation._inference"),
    "EP, minibatches": (
        skgpsvm.EPClassifier(solver=InterleavedEP(batch_size=64), n_inducing=50),
        "_inference:_MINIBATCH|_rules|_tilted",
    ),
    "EP, sign": (skgpsvm.EPClassifier(solver=InterleavedEP("sign"), n_inducing=50), "_rules"),
    "EP, adadelta": (
        skgpsvm.EPClassifier(solver=InterleavedEP("adadelta"), n_inducing=50),
        "_rules:_ADA|_optim:_ADA",
    ),
    "Decoupled": (
        skgpsvm.DecoupledGPRegressor(),
        "_conjugate|exact_evidence|held_out|_local_variances|decoupled",
    ),
    "Decoupled, 800 rows": (
        skgpsvm.DecoupledGPRegressor(),
        "held_out|_local_variances|_conjugate|collapsed_search:_LONGEST",
        800,
    ),
    "Decoupled, student_t": (
        skgpsvm.DecoupledGPRegressor(likelihood="student_t", n_inducing=50),
        "_inference.decoupled|_conjugate",
    ),
    "Decoupled, sgd": (
        skgpsvm.DecoupledGPRegressor(
            4.0 * RBF(3.0), solver=StochasticGradient(batch_size=32), n_inducing=20, max_iter=10
        ),
        "decoupled._(stochastic|training)|_optim:_ADAM|_posteriors|_sparse:MINIBATCH|_doubts",
    ),
    "QSGP": (skgpsvm.QSGPRegressor(), "quadruply_stochastic._(gp_training|factors)"),
    "QSGP, sgd": (
        skgpsvm.QSGPRegressor(solver=QuadruplyStochastic(batch_size=32), n_basis=200, max_iter=20),
        "quadruply_stochastic._(stochastic|step_runs|gp_training)",
    ),
    "QSGP, adagrad": (
        skgpsvm.QSGPClassifier(
            solver=QuadruplyStochastic("adagrad", batch_size=32), n_basis=200, max_iter=20
        ),
        "quadruply_stochastic._(stochastic|bounds)|_posteriors",
    ),
    "QSRVM": (skgpsvm.QSRVMRegressor(), "quadruply_stochastic"),
    "QSRVM, classes": (skgpsvm.QSRVMClassifier(), "quadruply_stochastic"),
    "QSRVM, sgd": (
        skgpsvm.QSRVMRegressor(solver=QuadruplyStochastic(batch_size=32), max_iter=20),
        "relevance_steps",
    ),
    "Hybrid, SVM": (skgpsvm.HybridBayesianSVC(n_inducing=50, max_iter=50), "hybrid"),
    "Hybrid, regression": (
        skgpsvm.HybridSVGPRegressor(n_inducing=50, max_iter=50, early_stopping=True),
        "hybrid",
    ),
    "SVC": (
        skgpsvm.BayesianSVC(),
        "bayesian_svm|_calibration|_hinge|mean_steps|coordinate_ascent|default_kernels",
    ),
    "SVC, adam": (skgpsvm.BayesianSVC(optimizer="adam", n_inducing=50), "natural_gradient"),
    "SVC, minibatches": (
        skgpsvm.BayesianSVC(solver=CoordinateAscent(batch_size=32), n_inducing=50, optimizer=None),
        "coordinate_ascent|natural_gradient",
    ),
    "SVGP": (
        skgpsvm.SVGPRegressor(),
        "collapsed|default_kernels|priors|_evidence|_noise|svgp|_variational|_doubts|_optim|periods",
    ),
    "SVGP, collapsed": (
        skgpsvm.SVGPRegressor(solver="collapsed", n_inducing=50),
        "collapsed|inducing",
    ),
    "SVGP, varying noise": (
        skgpsvm.SVGPRegressor(likelihood="heteroscedastic", n_inducing=50),
        "elbo_learning|svgp|coordinate_ascent|_variational:_LITTLE",
    ),
    "SVGP, student_t": (
        skgpsvm.SVGPRegressor(likelihood="student_t", n_inducing=50),
        "natural_gradient|_data|_targets|_sparse|inducing|svgp._regressor:_MAX_COLL",
    ),
    "SVGP, classes": (
        skgpsvm.SVGPClassifier(),
        "elbo|initialization|coordinate_ascent|_variational",
    ),
    "SVGP, class minibatches": (
        skgpsvm.SVGPClassifier(solver=NaturalGradient(batch_size=64), n_inducing=50),
        "natural_gradient|_sparse|_optim|_linalg|inducing|_data:_ORDER",
    ),
    "SVGP, gradient": (
        skgpsvm.SVGPClassifier(solver="gradient", n_inducing=50),
        "natural_gradient|_sparse|_optim:_ADAM",
    ),
    "Additive": (skgpsvm.AdditiveGPRegressor(), "additive"),
    "Additive, sparse": (skgpsvm.AdditiveGPRegressor(sparse=True), "additive"),
    "Additive, classes": (skgpsvm.AdditiveGPClassifier(), "additive"),
}
SKIPPED = {
    "MAX_MOVED|MAX_DENSE_POINTS|BYTES|ENTRIES|BLOCK|CHUNK"
    "|_AT_ONCE|BATCH_|PANEL|_DRAWS$|DEVICE|_HELD|EXTRACTED": "memory",
    "DECIMALS|_MIN_(NORM|RATIO|SLOPE|VARIANCE)$"
    "|JITTER|ROUNDING|TINY|EPSILON|PRECISION$|_TOL$|_TAIL|_NODES|_REACH$|_SQUARE|_SERIES": "digits",
    "LAYOUT|_SEEDS|_WORD|_ROUNDS$|MULTIPLIERS|WEYL|_RADII|_MIXTURE|GOLDEN": "random numbers",
    r"_ROWS(\[\d\])?$|_rows$|MAX_EXACT|MAX_CONVERGED|MAX_FULL|exact_|gram_speed|dense_|factored_"
    "|LANDMARKS|_MERGED|_MANY|(_SEARCH|_REFINEMENT)_SIZE$|_MAX_CLASSES": "numbers of rows, by time",
    "_MAX_(NAMED|SHOWN|LABEL|LABELS|HEADER|WIDTH|COLS|LABEL_CHARS|FEATURES)$|WIDTH|HEIGHT|COLS$"
    "|FADED|PER_INCH|_SOFT$|_NEAR$|MAX_INTEGER|MAX_DENSE$|LOG2_E|_PROFILE": "display and formats",
    "_?MAX_(UPDATES|SWEEPS|STEPS|TRIALS|HALVINGS|DOUBLINGS|ITERATIONS)|NEWTON_STEPS": "loops",
    "BOUNDS|PRECISIONS|ROUGHER|PER_MEDIAN|MIN_NATS|_MAX_LOST": "bounds, warnings and mathematics",
}
NAME = re.compile(r"_?[A-Z][A-Z0-9_]*$")
MEASURED = ("loss", "seconds")
NOISE, TIME = 1e-3, 1.05  # mean change in nats, ratio of processor times


@cache
def modules():
    """Return all modules of the package by name."""
    found = pkgutil.walk_packages(skgpsvm.__path__, "skgpsvm.")
    return {info.name: importlib.import_module(info.name) for info in found}


def is_number(value):
    """Return whether a value is a number that can be halved and doubled."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0


@cache
def constants():
    """Return modules that have a constant, and its place, by "module:NAME", with index or field.

    The place is a key of the modules' variables, and an index of a tuple, the name of a field or
    None. A constant belongs to the module that assigns it; others have it if they import it.
    """
    assigned = {name: _assigned(module) for name, module in modules().items()}
    found = {}
    for name, module in modules().items():
        for key in assigned[name]:
            value = vars(module)[key]
            users = [
                other
                for other, m in modules().items()
                if other == name or (vars(m).get(key) is value and key not in assigned[other])
            ]
            parts = {None: value}
            if isinstance(value, tuple):
                parts = dict(enumerate(value))
            elif key == "DEFAULTS" and is_dataclass(value):
                parts = {field.name: getattr(value, field.name) for field in fields(value)}
            for part, number in parts.items():
                label = {type(None): key, int: f"{key}[{part}]", str: part}[type(part)]
                if is_number(number):
                    found[f"{name}:{label}"] = users, key, part
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
    if constant not in constants():
        yield
        return
    users, key, part = constants()[constant]
    holders = [modules()[user] for user in users]
    if isinstance(part, str):  # a field of an object that all of them share
        holders, key = [holders[0].DEFAULTS], part
    old = new = getattr(holders[0], key)
    if isinstance(part, int):
        new = (*old[:part], times(old[part], factor), *old[part + 1 :])
    else:
        new = times(old, factor)
    try:
        for holder in holders:
            object.__setattr__(holder, key, new)
        yield
    finally:
        for holder in holders:
            object.__setattr__(holder, key, old)


def times(value, factor):
    """Return a number times a factor; integers stay integers of one at least."""
    return value * factor if isinstance(value, float) else max(1, round(value * factor))


@cache
def rows(name, classes, n_rows=ROWS):
    """Return the first split of a set, with at most so many training rows."""
    data = _data.split_classification(name, 0) if classes else _data.split_regression(name, 0)
    return data.X_train[:n_rows], data.y_train[:n_rows], data.X_test, data.y_test


def evaluate(constant, factor, case, set):
    """Fit a case with a changed constant, and return its loss on test rows and its time."""
    seed = {1.0: 0, 0.5: 1, 2.0: 2}[factor] if constant == "random_state" else 0
    model, classes = (
        clone(CASES[case][0]).set_params(random_state=seed),
        is_classifier(CASES[case][0]),
    )
    X, y, X_test, y_test = rows(set, classes, *CASES[case][2:])
    with changed(constant, factor):
        start = time.process_time()
        model.fit(X, y)
        seconds = time.process_time() - start
        if classes:
            known = np.isin(y_test, model.classes_)
            p = model.predict_proba(X_test[known])
            return {"loss": log_loss(y_test[known], p, labels=model.classes_), "seconds": seconds}
        mean, std = model.predict(X_test, return_std=True)
    losses = np.log(std) + 0.5 * ((y_test - mean) / std) ** 2 + 0.5 * np.log(2 * np.pi)
    return {"loss": losses.mean(), "seconds": seconds}


def read(case):
    """Return the constants that functions read which a fit and a prediction call."""
    classes = is_classifier(CASES[case][0])
    X, y, X_test, _ = rows(SETS[classes][-1], classes, *CASES[case][2:])
    entered = set()

    def trace(frame, event, _):
        entered.add(frame.f_code)

    sys.setprofile(trace)
    try:
        clone(CASES[case][0]).set_params(random_state=0).fit(X, y).predict(X_test[:5])
    finally:
        sys.setprofile(None)
    names = {}
    for code in entered:
        names.setdefault(code.co_filename, set()).update(code.co_names)
    inside = {name: names.get(module.__file__, set()) for name, module in modules().items()}
    return [
        constant
        for constant, (users, key, part) in constants().items()
        if (isinstance(part, str) and any(part in found for found in inside.values()))
        or any(key in inside[user] for user in users)
    ]


def is_skipped(constant):
    """Return whether a constant is one of ``SKIPPED``."""
    return any(re.search(pattern, constant.split(":")[1]) for pattern in SKIPPED)


def tasks(pattern, cases):
    """Return the tasks: fits as they are, and with each constant that they read changed."""
    code, found = _harness.package_code(), []
    for case in cases:
        patterns = pattern, CASES[case][1]
        reached = [
            name
            for name in read(case)
            if all(re.search(each, name) for each in patterns) and not is_skipped(name)
        ]
        changes = [(name, factor) for name in ["random_state", *reached] for factor in (0.5, 2.0)]
        found += [
            {"constant": name, "factor": factor, "case": case, "set": set, "code": code}
            for name, factor in [("random_state", 1.0), *changes]
            for set in SETS[is_classifier(CASES[case][0])]
        ]
    return found


def summary(results):
    """Return a table of the constants: mean and largest change of the loss, and ratio of times."""
    key = ["case", "set"]
    base = results[results["factor"] == 1].set_index(key)[["loss", "seconds"]]
    rest = results[results["factor"] != 1].join(base, on=key, rsuffix="_base")
    rest["change"] = rest["loss"] - rest["loss_base"]
    rest["ratio"] = rest["seconds"] / rest["seconds_base"]
    found = []
    for (case, constant), part in rest.groupby(["case", "constant"]):
        row = {"case": case, "constant": constant.removeprefix("skgpsvm.")}
        for factor, name in ((0.5, "half"), (2.0, "double")):
            own = part[part["factor"] == factor]
            row |= {
                f"{name}: mean": own["change"].mean(),
                f"{name}: largest": own["change"].abs().max(),
                f"{name}: time": np.exp(np.log(own["ratio"]).mean()),
            }
        found.append(row | {"failed": int((part["error"] != "").sum())})
    table = pd.DataFrame(found)
    loss = table[["half: largest", "double: largest"]].max(axis=1)
    slower = np.exp(np.log(table[["half: time", "double: time"]]).abs().max(axis=1))
    groups = ["same", "below noise", "time alone"]
    conditions = [loss < 1e-9, (loss < NOISE) & (slower < TIME), loss < NOISE]
    return table.assign(group=np.select(conditions, groups, default="loss"))


def main():
    """Run the benchmark and print its report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", default="", metavar="PATTERN", help="of modules' names")
    parser.add_argument("--cases", default="", metavar="PATTERN", help="of names of cases")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread; default 1")
    options = parser.parse_args()
    todo = tasks(options.modules, [case for case in CASES if re.search(options.cases, case)])
    path = _harness.RESULTS / "constants.csv"
    table = summary(_harness.run_tasks(evaluate, todo, MEASURED, path, options.jobs))
    settings = {
        "sets": ", ".join(SETS[True] + SETS[False]) + f"; {ROWS} rows of the first split",
        "columns": "change of the loss in the mean over sets, largest absolute change, geometric "
        "mean of the ratios of processor times",
        "skipped": "; ".join(f"{reason} ({names})" for names, reason in SKIPPED.items()),
    }
    parts = [_report.header("Constants halved and doubled", **settings)]
    for group, part in table.groupby("group"):
        shown = part.drop(columns="group")
        parts.append(_report.table(shown, f"{group}: {len(part)}", 4))
    _report.publish("constants", parts, write=not (options.modules or options.cases))


if __name__ == "__main__":
    main()
