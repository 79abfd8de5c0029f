"""Hybrid models: a Bayesian SVM or another Gaussian process on features of a neural network."""

from ._extractors import MLP, CIFAR10Extractor, MNISTExtractor
from ._svc import HybridBayesianSVC
from ._svgp import HybridSVGPClassifier, HybridSVGPRegressor

__all__ = [
    "MLP",
    "CIFAR10Extractor",
    "HybridBayesianSVC",
    "HybridSVGPClassifier",
    "HybridSVGPRegressor",
    "MNISTExtractor",
]
