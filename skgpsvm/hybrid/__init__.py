"""Hybrid models: a Bayesian SVM, or another head, on the features of a neural network."""

from ._extractors import MLP, CIFAR10Extractor, MNISTExtractor
from ._svc import HybridBayesianSVC

__all__ = ["MLP", "CIFAR10Extractor", "HybridBayesianSVC", "MNISTExtractor"]
