"""What estimators learn and predict stays as it was recorded, see `golden_outputs`."""

import golden_outputs
import pytest


@pytest.mark.parametrize("case", golden_outputs.CASES, ids=lambda case: case.name)
def test_outputs_are_as_recorded(case):
    found = golden_outputs.distances(case)
    assert {name: gap for name, gap in found.items() if gap > golden_outputs.RTOL} == {}
