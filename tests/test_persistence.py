"""The list of trusted types, against what skops finds in fitted models."""

import every_estimator
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    DotProduct,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skgpsvm import BayesianSVC, SVGPRegressor
from skgpsvm.kernels import Linear
from skgpsvm.persistence import TRUSTED_TYPES
from skgpsvm.solvers import NaturalGradient

many_points = {"inducing_points": np.random.default_rng(0).normal(size=(50, 3))}
MODELS = every_estimator.ESTIMATORS | {
    "named solver": SVGPRegressor(solver=NaturalGradient(batch_size=20), n_inducing=5, max_iter=2),
    "every kernel": SVGPRegressor(
        ((RBF() + Matern()) * RationalQuadratic() + DotProduct()) ** 2 + WhiteKernel() + Linear(),
        n_inducing=5,
        max_iter=2,
    ),
    "many points": BayesianSVC(optimizer=None, max_iter=2, **many_points),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", MODELS)
def test_skops_loads_every_model_of_the_trusted_types(name):
    io = pytest.importorskip("skops.io")
    model = clone(MODELS[name])
    model.fit(*every_estimator.problem(model, 60))
    data = io.dumps(model)
    own = [kind for kind in io.get_untrusted_types(data=data) if kind.startswith("every_estimator")]
    again = io.loads(data, trusted=[*TRUSTED_TYPES, *own])
    X, _ = every_estimator.problem(model, 60)
    assert_array_equal(again.predict(X), model.predict(X))
