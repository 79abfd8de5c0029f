"""Targets without gross errors."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from skgpsvm._robust import winsorized


def test_tamed_targets_are_near_their_median():
    rng = np.random.default_rng(0)
    targets = rng.normal(5, 2, (10_000, 2))
    targets[:100, 0] = 1e9
    found = winsorized(targets, np.ones(10_000))
    assert_allclose([found.min(), found.max()], [5 - 6, 5 + 6], atol=0.2)
    assert np.mean(found == targets) > 0.99
    weights = rng.integers(1, 4, 99).astype(float)
    repeated = np.repeat(targets[:99, 1:], weights.astype(int), axis=0)
    assert (
        winsorized(repeated, np.ones(len(repeated))).max()
        == winsorized(targets[:99, 1:], weights).max()
    )
    same = np.ones((5, 1))
    same[0] = 7
    assert_array_equal(winsorized(same, np.ones(5)), same)
    # Values of a large share of the rows are not gross errors.
    partly = np.where(np.arange(100) < 60, 1e-6 * rng.normal(size=100), 3)[:, None]
    assert_array_equal(winsorized(partly, np.ones(100)), partly)
