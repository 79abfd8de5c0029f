"""Decoupled Gaussian processes."""

from ._classifier import DecoupledGPClassifier
from ._regressor import DecoupledGPRegressor

__all__ = ["DecoupledGPClassifier", "DecoupledGPRegressor"]
