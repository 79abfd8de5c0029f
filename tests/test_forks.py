"""Child processes of a process with several threads fit and predict as it does."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork"
)
def test_children_of_a_process_with_threads():
    done = subprocess.run(
        [sys.executable, children.__file__],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "passive",  # leaves the cores to other tests' threads
        },
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
