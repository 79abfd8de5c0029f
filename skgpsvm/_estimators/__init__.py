"""The boundary between scikit-learn and torch: base classes of all estimators."""

from ._base import FOLLOWED, GPEstimator, all_or_nothing, unwrapped
from ._classifier import GPClassifier
from ._evidence import EvidenceMixin, evidence_at
from ._inputs import date_error, is_date, validated
from ._pipeline import fit_models, stream
from ._regressor import GPRegressor, target_moments

__all__ = [
    "FOLLOWED",
    "EvidenceMixin",
    "GPClassifier",
    "GPEstimator",
    "GPRegressor",
    "all_or_nothing",
    "date_error",
    "evidence_at",
    "fit_models",
    "is_date",
    "stream",
    "target_moments",
    "unwrapped",
    "validated",
]
