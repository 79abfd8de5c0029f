"""Errors and warnings: the classes by which they can be caught."""

import pytest
from problems import waves
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpsvm import SVGPRegressor, exceptions


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


def test_warnings_point_at_the_line_of_the_user():
    model = make_pipeline(StandardScaler(), SVGPRegressor(n_inducing=5, max_iter=1, tol=0.0))
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(*waves(50))
    assert {warning.filename for warning in caught} == {__file__}
