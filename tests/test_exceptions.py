"""Errors and warnings: what they can be caught as."""

import pytest

from skgpsvm import exceptions


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("DivergenceError", ArithmeticError),
        ("NotPositiveDefiniteError", ValueError),
        ("NumericalWarning", UserWarning),
    ],
)
def test_what_each_is_caught_as(name, base):
    assert issubclass(getattr(exceptions, name), base)
    assert name in exceptions.__all__
