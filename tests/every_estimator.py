"""A small fit of every estimator, and all of its predictions."""

import numpy as np
from numpy.testing import assert_array_equal
from sklearn.base import clone, is_classifier
from torch import nn

from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)


class Noisy(nn.Sequential):
    """Network that draws random numbers in training."""

    def __init__(self):
        super().__init__(nn.Linear(3, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 8))


FEW = {"random_state": 0, "max_iter": 2}
SMALL = {**FEW, "n_inducing": 12}
SGD = {**SMALL, "solver": "sgd"}
ESTIMATORS = {
    "svc": BayesianSVC(**SMALL),
    "svc, gradient": BayesianSVC(**SMALL, solver="gradient"),
    "svgp": SVGPRegressor(**SMALL),
    "svgp, laplace": SVGPRegressor(**SMALL, likelihood="laplace"),
    "svgp, heteroscedastic": SVGPRegressor(**SMALL, likelihood="heteroscedastic"),
    "svgp classifier": SVGPClassifier(**SMALL),
    "svgp classifier, gradient": SVGPClassifier(**SMALL, solver="gradient"),
    "ep": EPClassifier(**SMALL),
    "decoupled": DecoupledGPRegressor(**SMALL),
    "decoupled, sgd": DecoupledGPRegressor(**SGD),
    "decoupled classifier": DecoupledGPClassifier(**SMALL),
    "qsgp": QSGPRegressor(**SMALL, n_basis=60),
    "qsgp, sgd": QSGPRegressor(**SGD, n_basis=60),
    "qsgp classifier": QSGPClassifier(**SMALL, n_basis=60),
    "qsrvm": QSRVMRegressor(**FEW, n_basis=20),
    "qsrvm, stochastic": QSRVMRegressor(**FEW, n_basis=20, solver="quadruply_stochastic"),
    "qsrvm classifier": QSRVMClassifier(**FEW, n_basis=20),
    "additive": AdditiveGPRegressor(**FEW),
    "additive, sparse": AdditiveGPRegressor(**FEW, sparse=True, n_inducing=6),
    "additive classifier": AdditiveGPClassifier(**FEW, interactions=None),
    "hybrid svc": HybridBayesianSVC(**SMALL),
    "hybrid classifier": HybridSVGPClassifier(**SMALL, module=Noisy),
    "hybrid": HybridSVGPRegressor(**SMALL, module=Noisy, dtype="float32"),
}


def problem(estimator, n=120):
    """Return rows of three features, and targets or labels of two classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=n)
    return X, np.where(y > 0, "up", "down") if is_classifier(estimator) else y


def fitted(name, n=120):
    """Return the fitted estimator of a name."""
    estimator = clone(ESTIMATORS[name])
    return estimator.fit(*problem(estimator, n))


def predictions(model, n=120, source=np.asarray):
    """Return all predictions of a model at its training rows, by name; from sources of them."""
    X, _ = problem(model, n)
    X, some = source(X), source(X[:20])
    found = dict(zip(("mean", "variance"), model.latent_mean_and_variance(X), strict=True))
    found["draws"] = model.sample_latent(some, 3, random_state=0)
    found["latent cov"] = model.latent_covariance(some)
    if is_classifier(model):
        names = ("predict", "predict_proba", "decision_function")
        found |= {name: getattr(model, name)(X) for name in names}
        found["sets"] = model.predict_set(X)
        found["from draws"] = model.predict_proba_from_latent(found["draws"])
    else:
        found["std"] = model.predict(X, return_std=True)[1]
        found["lower"], found["upper"] = model.predict_interval(X)
        found["noise"] = model.predict_noise_variance(X)
        found["predict"], found["cov"] = model.predict(some, return_cov=True)
        found["sample_y"] = model.sample_y(some, random_state=0)
    if hasattr(model, "explain"):
        found["contributions"], found["their std"] = model.explain(X, return_std=True)
        found["sobol"] = model.sobol_indices(n_samples=10)["lower"]
    return found


def assert_same(found, expected):
    """Require that two dicts of arrays are equal to the last bit."""
    assert found.keys() == expected.keys()
    for name in expected:
        assert_array_equal(found[name], expected[name], err_msg=name)
