"""The list of trusted types, against what skops finds in fitted models."""

import every_estimator
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    DotProduct,
    ExpSineSquared,
    Kernel,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skgpsvm import (
    AdditiveGPRegressor,
    BayesianSVC,
    QSGPRegressor,
    QSRVMClassifier,
    SVGPRegressor,
    kernels,
)
from skgpsvm.kernels import (
    ANOVARBF,
    ANOVACategorical,
    ANOVAMatern,
    Columns,
    Linear,
    MultiscaleRBF,
)
from skgpsvm.persistence import TRUSTED_TYPES
from skgpsvm.solvers import NaturalGradient, QuadruplyStochastic

few, small = every_estimator.FEW, every_estimator.SMALL
many_points = {"inducing_points": np.random.default_rng(0).normal(size=(50, 3))}
levels = ANOVACategorical(np.full(30, 1 / 30))
MODELS = every_estimator.ESTIMATORS | {
    "named solver": SVGPRegressor(solver=NaturalGradient(batch_size=20), n_inducing=5, max_iter=2),
    "every kernel": SVGPRegressor(
        ((RBF() + Matern()) * RationalQuadratic() + DotProduct()) ** 2
        + (ExpSineSquared() + WhiteKernel() + Linear() + MultiscaleRBF())
        + (ANOVARBF(3) + ANOVAMatern(3) + Columns(RBF(), [0, 2])),
        n_inducing=5,
        optimizer=None,
    ),
    "kernel of categories": SVGPRegressor(levels, **small, solver="collapsed"),
    "two kernels": SVGPRegressor(
        CompoundKernel([RBF(), RBF()]), likelihood="heteroscedastic", **small
    ),
    "many points": BayesianSVC(optimizer=None, max_iter=2, **many_points),
    "exact": SVGPRegressor(solver="exact", **few),
    "counts": SVGPRegressor(likelihood="poisson", **small),
    "amounts": AdditiveGPRegressor(likelihood="gamma", interactions=None, **few),
    "mean field": QSGPRegressor(covariance="mean_field", n_basis=20, **few),
    "chevron": QSGPRegressor(covariance="chevron", n_basis=20, **few),
    "steps": QSRVMClassifier(solver=QuadruplyStochastic(), n_basis=20, **few),
    "categories": AdditiveGPRegressor(categorical_features=[1], interactions=None, **few),
    "monotone": AdditiveGPRegressor(monotonic_cst=[1, 0, 0], interactions=None, **few),
    "point masses": AdditiveGPRegressor(interactions=None, **few),
}


def data(name, model):
    """Return rows of three features, and targets that the model takes."""
    X, y = every_estimator.problem(model, 60)
    if name in ("counts", "amounts"):
        y = np.ceil(np.exp(y))
    if "categories" in name:
        X = np.abs(X.round())
    if name == "point masses":
        X[:30, 0] = 0
    return X, y


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", MODELS)
def test_skops_loads_every_model_of_the_trusted_types(name):
    io = pytest.importorskip("skops.io")
    model = clone(MODELS[name])
    X, y = data(name, model)
    dumped = io.dumps(model.fit(X, y))
    types = io.get_untrusted_types(data=dumped)
    own = [kind for kind in types if kind.startswith("every_estimator")]
    again = io.loads(dumped, trusted=[*TRUSTED_TYPES, *own])
    assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["sparse X", "two outputs"])
def test_skops_loads_models_of_other_forms_of_data(name):
    io = pytest.importorskip("skops.io")
    X, y = every_estimator.problem(SVGPRegressor(), 60)
    X, y = (csr_matrix(X), y) if name == "sparse X" else (X, np.stack([y, -y], 1))
    model = SVGPRegressor(**small).fit(X, y)
    again = io.loads(io.dumps(model), trusted=TRUSTED_TYPES)
    assert_array_equal(again.predict(X), model.predict(X))


def test_every_kernel_of_the_package_is_trusted():
    own = [value for value in vars(kernels).values() if isinstance(value, type)]
    names = {f"{kind.__module__}.{kind.__name__}" for kind in own if issubclass(kind, Kernel)}
    assert len(names) >= 5
    assert names <= set(TRUSTED_TYPES)
