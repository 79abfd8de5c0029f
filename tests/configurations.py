"""Configurations of all estimators for scikit-learn's checks and for the golden outputs."""

from sklearn.gaussian_process.kernels import RBF

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
from skgpsvm.solvers import CoordinateAscent, InterleavedEP, NaturalGradient, StochasticGradient

DETERMINISTIC = [
    BayesianSVC(),
    BayesianSVC(multi_class="ovr", n_inducing=16, optimizer=None),
    BayesianSVC(probability="argmax", n_inducing=16, optimizer=None),
    SVGPRegressor(),
    SVGPRegressor(likelihood="student_t", mean="linear", n_inducing=8, max_iter=5),
    SVGPClassifier(n_inducing=16, max_iter=5),
    EPClassifier(solver="sep", n_inducing=16, max_iter=10),
    EPClassifier(solver="gfitc", n_inducing=4, max_iter=1, mean="zero"),
    DecoupledGPRegressor(),
    DecoupledGPRegressor(likelihood="student_t", optimizer=None, learn_inducing=False),
    DecoupledGPClassifier(n_inducing=16, tol=0.1),
    QSGPRegressor(n_basis=400),
    QSGPRegressor(likelihood="laplace", covariance="chevron", n_basis=100, optimizer=None),
    QSGPClassifier(n_inducing=16, n_basis=200, tol=0.1),
    QSRVMRegressor(),
    QSRVMRegressor(likelihood="laplace", covariance="mean_field", optimizer=None),
    QSRVMClassifier(n_basis=50),
    QSRVMClassifier(covariance="mean_field", optimizer=None),
    AdditiveGPRegressor(),
    AdditiveGPRegressor(covariance="mean_field", scaling="minmax", interactions=None),
    AdditiveGPRegressor(sparse=False, likelihood="laplace", interactions=None, max_iter=8),
    AdditiveGPClassifier(max_iter=8),
    AdditiveGPClassifier(sparse=False, interactions=None, max_iter=4),
]
STOCHASTIC = [
    HybridBayesianSVC(max_iter=10, early_stopping=True, n_inducing=8, learning_rate=0.01),
    HybridSVGPClassifier(max_iter=10, n_inducing=8, learning_rate=0.01),
    HybridSVGPRegressor(max_iter=10),
    BayesianSVC(solver="gradient", n_inducing=8, max_iter=40),
    BayesianSVC(solver=CoordinateAscent(batch_size=8), n_inducing=8, optimizer=None, max_iter=30),
    SVGPRegressor(solver=NaturalGradient(batch_size=8), n_inducing=8, max_iter=4),
    SVGPClassifier(solver="gradient", n_inducing=8, max_iter=40),
    EPClassifier(solver=InterleavedEP(batch_size=32), n_inducing=8, max_iter=5),
    AdditiveGPClassifier(batch_size=32, interactions=None, n_inducing=8, max_iter=4),
    DecoupledGPRegressor(
        RBF(3.0),
        solver=StochasticGradient(batch_size=32, learning_rate=0.01),
        n_inducing=16,
        max_iter=20,
    ),
    DecoupledGPClassifier(
        4.0 * RBF(),
        solver=StochasticGradient("decoupled", batch_size=64),
        n_inducing=8,
        n_mean_bases=64,
        max_iter=15,
    ),
    QSGPRegressor(
        solver="sgd",
        basis="orthogonal",
        covariance="mean_field",
        n_basis=100,
        optimizer=None,
        max_iter=60,
    ),
    QSGPClassifier(
        solver="adagrad", basis="inducing", n_basis=50, optimizer=None, n_inducing=8, max_iter=60
    ),
    SVGPRegressor(likelihood="heteroscedastic", optimizer=None, n_inducing=8, max_iter=2),
]
