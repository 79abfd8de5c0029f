"""The table of the papers' systems, variants, tables and figures: all that it names exists."""

import ast
import csv
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
from sklearn.gaussian_process import kernels

import skgpsvm
from skgpsvm import solvers

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
with open(RESULTS / "papers.csv", newline="") as file:
    ROWS = list(csv.DictReader(file))
# A cell may say instead that there is nothing to name, and why.
REASON = re.compile(r"not (applicable|built|measured|tested): \S")
PAPERS = 5


def cells(column):
    """Return the distinct cells of a column, apart from reasons why there is nothing to name."""
    return sorted({row[column] for row in ROWS if not REASON.match(row[column])})


def named(column):
    """Return the distinct things that a column names."""
    return sorted({name for cell in cells(column) for name in cell.split("; ")})


@cache
def definitions(path):
    """Return the names that a module defines."""
    return {getattr(node, "name", None) for node in ast.parse(path.read_text()).body}


def test_no_cell_is_empty_and_no_item_is_twice():
    assert all(cell.strip() for row in ROWS for cell in row.values())
    items = [(row["paper"], row["item"]) for row in ROWS]
    assert len(items) == len(set(items))
    assert len({paper for paper, _ in items}) == PAPERS


@pytest.mark.parametrize("name", named("where"))
def test_code_exists(name):
    package, *parts = name.split(".")
    if package == "skgpsvm":
        assert pkgutil.resolve_name(name) is not None
        return
    # Benchmarks import peers that may not be installed.
    path = ROOT.joinpath(package, *parts).with_suffix(".py")
    assert path.exists() or parts[-1] in definitions(path.parent.with_suffix(".py"))


@pytest.mark.parametrize("expression", named("selected"))
def test_words_are_those_of_a_constructor(expression):
    names = {
        name: getattr(module, name) for module in (skgpsvm, solvers) for name in module.__all__
    } | {"RBF": kernels.RBF, "WhiteKernel": kernels.WhiteKernel}
    estimator = eval(expression, {"__builtins__": {}}, names)
    estimator._check_parameters()
    estimator._rules.check(estimator, None)


def test_tests_exist():
    for name in named("tested"):
        file, test = name.split("::")
        assert test in definitions(ROOT / "tests" / file), name


def test_results_exist():
    for cell in cells("result"):
        assert (RESULTS / cell.split(": ")[0]).exists(), cell
