"""Active learning: scores of pool points, queries that choose points, and a stopping rule.

A higher score marks a more informative point.
"""

from ._epig import epig
from ._queries import (
    DiverseQueryStrategy,
    ScoreQueryStrategy,
    bald_sampling,
    diverse_sampling,
    entropy_sampling,
    epig_sampling,
    least_confident_sampling,
    margin_sampling,
    variation_ratio_sampling,
)
from ._scores import (
    bald,
    least_confident,
    margin,
    mean_softmax_entropy,
    predictive_entropy,
    variation_ratio,
)
from ._stopping import has_stabilized

__all__ = [
    "DiverseQueryStrategy",
    "ScoreQueryStrategy",
    "bald",
    "bald_sampling",
    "diverse_sampling",
    "entropy_sampling",
    "epig",
    "epig_sampling",
    "has_stabilized",
    "least_confident",
    "least_confident_sampling",
    "margin",
    "margin_sampling",
    "mean_softmax_entropy",
    "predictive_entropy",
    "variation_ratio",
    "variation_ratio_sampling",
]
