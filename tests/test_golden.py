"""Fitted attributes and predictions are those recorded by `golden_outputs`."""

import golden_outputs
import numpy as np
import pytest
from golden_outputs import distance, summary


@pytest.mark.parametrize("case", golden_outputs.CASES, ids=lambda case: case.name)
def test_outputs_are_as_recorded(case):
    found = golden_outputs.distances(case)
    assert {name: gap for name, gap in found.items() if gap > golden_outputs.RTOL} == {}


@pytest.mark.parametrize("size", [5, 500])
def test_changes_of_an_entry_of_the_order_or_of_the_shape_show(size):
    values = np.random.default_rng(0).normal(size=size)
    recorded = summary(values)
    assert distance(summary(values), recorded) == 0.0
    assert distance(summary(values + 1e-9), recorded) < golden_outputs.RTOL
    for other in (values * 1.01, values[::-1], np.roll(values, 1)):
        assert distance(summary(other), recorded) > golden_outputs.RTOL
    for other in (values[None], values[1:], np.where(values > 0, np.nan, values)):
        assert distance(summary(other), recorded) == np.inf
