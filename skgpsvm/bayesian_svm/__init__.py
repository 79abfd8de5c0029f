"""Multi-class and binary Bayesian support vector machines."""

from ._svc import BayesianSVC

__all__ = ["BayesianSVC"]
