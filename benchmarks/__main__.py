"""Run every benchmark: ``python -m benchmarks [--quick | --all] [--jobs N]``.

Each benchmark runs in its own process. The default run uses one split and data sets with few rows,
so that it takes less than an hour on two cores; it took 58 minutes. ``--quick`` runs small
versions, ``--jobs`` of them at once, in about five minutes on two cores; their times are not
reliable. ``--all`` runs every set and split, which takes many hours; a run that was killed
continues where it stopped. The extra ``gpflow`` adds GPflow to the peers.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# Options of the default run: scripts of one process, and scripts that accept ``--jobs``.
TIMINGS = {
    "scaling": "--only growth",
    "collapsed": "",
    "sweep": "",
    "epochs": "--most-rows 100000",
    "decoupled_solves": "",
    "decoupled_step": "",
    "quadruply_stochastic_step": "",
    "relevance_steps": "--quick",
    "control_variates": "--evaluations 100",
    "device": "",
    "prediction": "",
    "sources": "--most-rows 100000",
    "fit_time": "",
    "fixed_cost": "",
    "cost": "",
    "first_screen": "",
    "wide": "",
    "additive_scaling": "--most-rows 10000 --most-features 20",
    "additive_forms": "",
    "reproduce.paper1_queries": "--quick",
    "reproduce.paper2_loops": "--quick",
    "reproduce.paper2_points": "--quick",
    "reproduce.paper2_times": "--quick",
    "reproduce.paper3_curves": "--quick",
    "reproduce.paper3_forms": "--quick",
    "reproduce.paper3_sinc": "--quick",
}
COMPARISONS = {
    "classification": "--seeds 1 --most-rows 600",
    "regression": "--seeds 1 --most-rows 4200",
    "decoupled": "--most-rows 4500 --methods DecoupledGPRegressor 'SVGPRegressor 512'",
    "local_variances": "--sets airfoil wine",
    "mnist_odd_even": "--rows 10000",
    "weak_signal": "--rows 60 --features 1 5 --draws 2",
    "active_learning": "--seeds 1 --most-rows 700",
    "batch_queries": "--seeds 1 --sets vehicle pima",
    "additive": "--seeds 1 --most-rows 800",
    "additive_coverage": "--seeds 1",
    "interactions": "--seeds 1 --sets friedman products kinks hub",
    "hybrid_mnist": "--rows 10000 --epochs 2",
    "hybrid_active_learning": "--seeds 1",
    "reproduce.paper1_tables": "--seeds 1 --most-rows 1000",
    "reproduce.paper2_table": "--seeds 2",
    "reproduce.paper2_mnist": "--rows 10000",
    "reproduce.paper2_airline": "--rows 200000",
    "reproduce.paper3_table": "--sets kin40k",
    "reproduce.paper4_table": "--sets keggdirected --methods QSGPRegressor SVGPRegressor",
    "reproduce.paper5_friedman": "--seeds 5",
}
SCRIPTS = {**TIMINGS, **COMPARISONS}


def main():
    """Run all benchmarks, and print at the end which failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small versions, printed only")
    size.add_argument("--all", action="store_true", help="every set and split")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    options = parser.parse_args()
    start = time.monotonic()
    at_once = options.jobs if options.quick else 1
    with ThreadPoolExecutor(at_once) as pool:
        taken = dict(zip(SCRIPTS, pool.map(lambda name: run(name, options), SCRIPTS), strict=True))
    print("\nMinutes")
    for script, (_, minutes) in taken.items():
        print(f"{minutes:6.1f}  {script}")
    print(f"{(time.monotonic() - start) / 60:6.1f}  all")
    if failed := [script for script, (succeeded, _) in taken.items() if not succeeded]:
        sys.exit(f"failed: {', '.join(failed)}")


def run(script, options):
    """Run a script, and return whether it succeeded and how many minutes it took."""
    command = [sys.executable, "-m", f"benchmarks.{script}"]
    if options.quick:
        command += ["--quick"]
    elif not options.all:
        command += shlex.split(SCRIPTS[script])
    if script in COMPARISONS:
        command += ["--jobs", str(1 if options.quick else options.jobs)]
    told = f"\n$ python {' '.join(command[1:])}"
    start = time.monotonic()
    if options.quick:
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, env=one_thread, **pipes)
        print(f"{told}\n{done.stdout}", flush=True)
    else:
        print(told, flush=True)
        done = subprocess.run(command)
    return done.returncode == 0, (time.monotonic() - start) / 60


if __name__ == "__main__":
    main()
