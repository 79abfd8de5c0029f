"""The boundary between scikit-learn and torch: base classes of all estimators."""

from ._base import FOLLOWED, GPEstimator, all_or_nothing, history, unwrapped
from ._classifier import GPClassifier
from ._regressor import GPRegressor

__all__ = [
    "FOLLOWED",
    "GPClassifier",
    "GPEstimator",
    "GPRegressor",
    "all_or_nothing",
    "history",
    "unwrapped",
]
