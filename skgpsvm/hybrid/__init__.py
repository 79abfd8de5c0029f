"""Hybrid models: a Bayesian SVM or another Gaussian process on features of a neural network."""

from ._classifier import HybridSVGPClassifier
from ._extractors import MLP, CIFAR10Extractor, MNISTExtractor
from ._regressor import HybridSVGPRegressor
from ._svc import HybridBayesianSVC

__all__ = [
    "MLP",
    "CIFAR10Extractor",
    "HybridBayesianSVC",
    "HybridSVGPClassifier",
    "HybridSVGPRegressor",
    "MNISTExtractor",
]
