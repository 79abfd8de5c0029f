"""Quadruply stochastic Gaussian processes and relevance vector machines."""

from ._gp_classifier import QSGPClassifier
from ._gp_regressor import QSGPRegressor
from ._rvm_classifier import QSRVMClassifier
from ._rvm_regressor import QSRVMRegressor

__all__ = ["QSGPClassifier", "QSGPRegressor", "QSRVMClassifier", "QSRVMRegressor"]
