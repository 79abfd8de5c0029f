"""Figures of the results files, and the code of the package at which they were measured.

The role ``figure`` of the documentation (``doc/measured.py``) quotes them; ``benchmarks.tables``
makes tables of them.
"""

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Run:
    """Where and when the package had a code: version, commit and date; commit may be unknown."""

    version: str
    commit: str
    date: str
    last: bool

    def __str__(self):
        at = f"commit {self.commit}" if self.commit else "a commit that is not recorded"
        return f"{self.date}, skgpsvm {self.version} at {at}"


@cache
def runs():
    """Return the `Run` of each code in ``runs.csv``; that of the last release run is marked."""
    with (RESULTS / "runs.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    release = [line["code"] for line in lines if line["part"]][-1]
    return {
        line["code"]: Run(
            line["code"].split()[1], line["commit"], line["date"], line["code"] == release
        )
        for line in lines
    }


class Rows:
    """Selected rows of a results file, which remembers the codes they were measured at."""

    def __init__(self, file, **equal):
        self.frame = _read(file)
        for column, value in equal.items():
            values = np.atleast_1d(value).astype(str)
            self.frame = self.frame[self.frame[column].astype(str).isin(values)]
        if not len(self.frame):
            raise LookupError(f"No rows of {file}.csv with {equal}.")

    def codes(self):
        """Return the codes of this package among those of the rows."""
        return {code for code in self.frame["code"] if code.startswith("skgpsvm")}

    def newest(self, *by):
        """Keep only the results of the newest code, in each group by these columns."""
        order = list(runs())
        age = self.frame["code"].map(lambda code: order.index(code) if code in order else -1)
        newest = (
            age.groupby([self.frame[name] for name in by]).transform("max") if by else age.max()
        )
        self.frame = self.frame[age == newest]
        return self


@cache
def _read(file):
    return pd.read_csv(RESULTS / f"{file}.csv")


def shown(value, form):
    """Return a number as text; nothing for a missing one."""
    return "" if np.isnan(value) else format(value, form).replace("%", " %")


def cell(file, column, form, **equal):
    """Return the mean of a column over rows of the newest code, as text, and that code."""
    rows = Rows(file, **equal).newest()
    return shown(rows.frame[column].mean(), form), rows.codes()


@cache
def _report(name):
    """Return the newest report of a name, without spaces that align columns."""
    paths = [p for p in RESULTS.glob(f"{name}-*.txt") if re.fullmatch(rf"{name}-[\d-]+", p.stem)]
    if not paths:
        raise LookupError(f"No report {name}-<date>.txt.")
    return re.sub(" +", " ", max(paths).read_text(encoding="utf-8"))


def line(name, start, index, form):
    """Return a number of the first line of the newest report that starts so, and its code."""
    text = _report(name)
    found = re.search(rf"^ ?{re.escape(start)} (.*)$", text, re.M)
    if not found:
        raise LookupError(f"No line of the report {name} starts with {start!r}.")
    number = float(found[1].split()[index].rstrip("."))
    return shown(number, form), {re.search(r"skgpsvm \S+ \w{8}", text)[0]}


def figure(query):
    """Return a figure as text, and the codes it was measured at.

    The query is a results file, a column, a format and the rows whose mean is taken, such as
    ``"cost fit_seconds .1f rows=1000; method=SVC"``; or a report, the start of a line, the index
    of a number in its rest, and a format: ``"prediction: QSRVMRegressor: 0 .1f"``.
    """
    if found := re.fullmatch(r"(\w+): (.*): (\d+) (\S+)", query):
        name, start, index, form = found.groups()
        return line(name, start, int(index), form)
    if found := re.fullmatch(r"(\w+) (\w+) (\S+) (\w+=.*)", query):
        file, column, form, where = found.groups()
        return cell(file, column, form, **dict(part.split("=") for part in where.split("; ")))
    raise LookupError(f"{query!r} is neither of a results file nor of a report.")
