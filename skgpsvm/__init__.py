"""Gaussian-process models and Bayesian support vector machines as scikit-learn estimators."""

from .additive import AdditiveGPClassifier, AdditiveGPRegressor
from .bayesian_svm import BayesianSVC
from .decoupled import DecoupledGPClassifier, DecoupledGPRegressor
from .expectation_propagation import EPClassifier
from .hybrid import HybridBayesianSVC, HybridSVGPClassifier, HybridSVGPRegressor
from .quadruply_stochastic import (
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
)
from .svgp import SVGPClassifier, SVGPRegressor

__version__ = "0.2.0"

__all__ = [
    "AdditiveGPClassifier",
    "AdditiveGPRegressor",
    "BayesianSVC",
    "DecoupledGPClassifier",
    "DecoupledGPRegressor",
    "EPClassifier",
    "HybridBayesianSVC",
    "HybridSVGPClassifier",
    "HybridSVGPRegressor",
    "QSGPClassifier",
    "QSGPRegressor",
    "QSRVMClassifier",
    "QSRVMRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
    "__version__",
]
