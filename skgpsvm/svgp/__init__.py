"""Sparse variational Gaussian processes."""

from ._classifier import SVGPClassifier
from ._regressor import SVGPRegressor

__all__ = ["SVGPClassifier", "SVGPRegressor"]
