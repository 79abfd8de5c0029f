"""Run every benchmark: ``python -m benchmarks [--quick | --all] [--jobs N]``.

Each runs in a process of its own. As it comes, the run takes under an hour: one split, and of the
sets those with few rows. ``--all`` is every set and split, many hours, continued where it was
killed. The extra ``gpflow`` adds GPflow to the peers.
"""

import argparse
import subprocess
import sys
import time

# What the run as it comes leaves out; None for those that do not run over sets.
SCRIPTS = {
    "scaling": None,
    "collapsed": None,
    "sweep": None,
    "epochs": None,
    "decoupled_solves": None,
    "decoupled_step": None,
    "quadruply_stochastic_step": None,
    "control_variates": None,
    "device": None,
    "additive_scaling": None,
    "classification": ["--seeds", "1", "--most-rows", "1500"],
    "regression": ["--seeds", "1", "--most-rows", "6000"],
    "decoupled": ["--most-rows", "4500"],
    "mnist_odd_even": ["--rows", "10000"],
    "active_learning": ["--seeds", "1", "--most-rows", "700"],
    "additive": ["--seeds", "1", "--most-rows", "800"],
    "additive_coverage": ["--seeds", "1"],
    "interactions": ["--seeds", "1"],
    "hybrid_mnist": ["--rows", "10000", "--epochs", "2"],
    "hybrid_active_learning": ["--seeds", "1"],
    "reproduce.paper1_tables": ["--seeds", "1", "--most-rows", "1000"],
    "reproduce.paper2_table": ["--seeds", "2"],
    "reproduce.paper2_mnist": [],
    "reproduce.paper2_airline": [],
    "reproduce.paper3_table": ["--sets", "kin40k"],
    "reproduce.paper4_table": ["--sets", "kin40k"],
    "reproduce.paper5_friedman": ["--seeds", "5"],
}


def main():
    """Run all, and say at the end which failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small versions, printed only")
    size.add_argument("--all", action="store_true", help="every set and split")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    options = parser.parse_args()
    failed, minutes = [], {}
    for script, fewer in SCRIPTS.items():
        command = [sys.executable, "-m", f"benchmarks.{script}"]
        if options.quick:
            command += ["--quick"]
        if fewer is not None:
            command += ["--jobs", str(options.jobs)]
            command += [] if options.quick or options.all else fewer
        print(f"\n$ python {' '.join(command[1:])}", flush=True)
        start = time.monotonic()
        if subprocess.run(command).returncode:
            failed.append(script)
        minutes[script] = (time.monotonic() - start) / 60
    print("\nMinutes")
    for script, taken in (minutes | {"all": sum(minutes.values())}).items():
        print(f"{taken:6.1f}  {script}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
