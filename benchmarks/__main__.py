"""Run every benchmark: ``python -m benchmarks [--quick] [--jobs N]``.

Each runs in a process of its own; options are handed on to all that know them. The extra ``gpflow``
adds GPflow to the peers.
"""

import argparse
import subprocess
import sys

SCRIPTS = {
    "scaling": [],
    "collapsed": [],
    "epochs": [],
    "device": [],
    "classification": ["--jobs"],
    "regression": ["--jobs"],
    "active_learning": ["--jobs"],
    "reproduce.paper1_tables": ["--jobs"],
}


def main():
    """Run all, and say at the end which failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small versions, printed only")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    options = parser.parse_args()
    failed = []
    for script, known in SCRIPTS.items():
        command = [sys.executable, "-m", f"benchmarks.{script}"]
        command += ["--quick"] if options.quick else []
        command += ["--jobs", str(options.jobs)] if "--jobs" in known else []
        print(f"\n$ python {' '.join(command[1:])}", flush=True)
        if subprocess.run(command).returncode:
            failed.append(script)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
