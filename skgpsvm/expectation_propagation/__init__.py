"""Gaussian-process classification by scalable expectation propagation."""

from ._classifier import EPClassifier

__all__ = ["EPClassifier"]
