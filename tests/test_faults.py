"""Killed, damaged and fuzzed fits: a few trials of each kind of ``benchmarks.faults``."""

import os

import pytest

faults = pytest.importorskip("benchmarks.faults", reason="the repository's root is not importable")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("kind", "trials"),
    [
        ("kills", 1),
        ("damage", 6),
        ("fuzz", 30),
        pytest.param("kills", 60, marks=pytest.mark.slow),
        pytest.param("damage", 120, marks=pytest.mark.slow),
        pytest.param("fuzz", 900, marks=pytest.mark.slow),
    ],
)
def test_a_few_faults(kind, trials):
    texts, wrong = faults.run([kind], {kind: trials}, first=100, seed=0)
    assert not wrong.total(), texts
