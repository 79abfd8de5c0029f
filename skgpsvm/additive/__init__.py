"""Bayesian generalized additive models (paper 5)."""

from ._classifier import AdditiveGPClassifier
from ._regressor import AdditiveGPRegressor

__all__ = ["AdditiveGPClassifier", "AdditiveGPRegressor"]
