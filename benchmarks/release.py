"""Measure every figure that the documentation quotes, at one code: ``make release-figures``.

Each part takes an hour of one core at most. A part that has ended at this code of the package is
not run again, and a part that was killed continues where it stopped. ``runs.csv`` in the results
folder says at which commit each code was, and when a part ended.

Large sets have one split. Development and evaluation sets are in separate parts; the documentation
quotes the latter.
"""

import argparse
import csv
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

from . import _harness

RUNS = _harness.RESULTS / "runs.csv"
OWN_CLASSIFIERS = (
    "BayesianSVC SVGPClassifier EPClassifier DecoupledGPClassifier QSGPClassifier QSRVMClassifier "
    "AdditiveGPClassifier HybridBayesianSVC HybridSVGPClassifier"
)
ONE = "--seeds 1 --jobs 1"
PARTS = {
    "regression, evaluation, small": f"regression --use evaluation --most-rows 1500 {ONE}",
    "classification, evaluation, small": "classification --use evaluation --most-rows 1500 "
    f"--methods {OWN_CLASSIFIERS} {ONE}",
    "first screen": "first_screen",
    "cost": "cost --jobs 1",
    "classification, evaluation, large": "classification --use evaluation "
    f"--methods BayesianSVC {ONE}",
    "regression, evaluation, large": f"regression --use evaluation --methods SVGPRegressor {ONE}",
    "additive": f"additive --sets housing energy concrete airfoil {ONE}",
    "odd or even digits": "reproduce.paper2_mnist",
    "prediction": "prediction",
    "decoupled": "decoupled --sets kin40k protein --jobs 1 "
    "--methods DecoupledGPRegressor 'SVGPRegressor 512'",
    "decoupled, smaller sets": "decoupled --sets pol elevators bike pumadyn32nm --jobs 1 "
    "--methods DecoupledGPRegressor 'SVGPRegressor 512'",
    "random features": "reproduce.paper4_table --sets kin40k protein --jobs 1 "
    "--methods QSGPRegressor SVGPRegressor",
    "flights": "reproduce.paper2_airline",
    "hybrid": "hybrid_mnist",
    "hybrid, active learning": "hybrid_active_learning",
    "batch queries": "batch_queries --jobs 1",
    "intervals": "intervals",
    "sets of classes": "class_sets",
    "class weights": "class_weights",
    "copies of rows": "copies",
    "local variances": "local_variances --jobs 1",
    "relevance vectors": "relevance_steps",
    "bands": "additive_coverage --jobs 1",
    "regression, development": f"regression --use development --most-rows 6000 {ONE}",
    "classification, development": "classification --use development --most-rows 3200 "
    f"--methods {OWN_CLASSIFIERS} {ONE}",
}


def git(*words):
    """Return what git prints."""
    root = Path(__file__).parents[1]
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout.strip()


def ended():
    """Return the pairs of part and code that have ended."""
    with RUNS.open(newline="") as file:
        return {(row["part"], row["code"]) for row in csv.DictReader(file)}


def run(part, code, commit):
    """Run a part and note its end; return whether it succeeded."""
    command = [sys.executable, "-m", *shlex.split(f"benchmarks.{PARTS[part]}")]
    print(f"\n{part}\n$ {shlex.join(command[1:])}", flush=True)
    succeeded = subprocess.run(command).returncode == 0
    if succeeded:
        with RUNS.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([part, code, commit, date.today()])
    return succeeded


def main():
    """Run the parts that have not ended at this code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", metavar="NAME", help="these only; default all")
    options = parser.parse_args()
    if git("status", "--porcelain", "skgpsvm"):
        sys.exit("The package has changes that are not committed, so that no commit has its code.")
    parts = options.parts or list(PARTS)
    if unknown := sorted(set(parts) - set(PARTS)):
        sys.exit(f"No parts {unknown}; there are: {', '.join(PARTS)}.")
    code, commit = _harness.package_code(), git("log", "-1", "--format=%h", "--", "skgpsvm")
    done = ended()
    failed = [p for p in parts if (p, code) not in done and not run(p, code, commit)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
