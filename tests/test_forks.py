"""Child processes of a process with several threads fit and predict as it does."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).parents[1]
# One estimator of each family for a fork, which copies the parent; few for a new process.
NAMES = {
    "fork": (
        "svc, gradient",
        "svgp, laplace",
        "ep",
        "decoupled classifier",
        "qsgp classifier",
        "qsrvm",
        "additive, sparse",
        "hybrid",
    ),
    "forkserver": ("ep", "hybrid"),
    "spawn": ("ep", "hybrid"),
    "http": (),
}


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork"
)
@pytest.mark.parametrize("method", NAMES)
def test_child_of_a_process_with_threads(method):
    done = subprocess.run(
        [sys.executable, children.__file__, method, *NAMES[method]],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "passive",  # leaves the cores to other tests' threads
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
