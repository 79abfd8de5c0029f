"""Sizes of blocks."""

import pytest
import torch

from skgpsvm._memory import block_rows, n_cached_blocks


@pytest.mark.parametrize(
    ("width", "least", "expected"), [(7, 1, 14), (100, 1, 1), (101, 1, 1), (7, 20, 20), (0, 1, 100)]
)
def test_block_has_at_most_so_many_numbers_or_the_fewest_rows(width, least, expected):
    assert block_rows(width, 100, least) == expected


def test_other_devices_have_larger_blocks():
    cpu, other = (n_cached_blocks(torch.device(name)) for name in ("cpu", "meta"))
    assert cpu == 1 < other
