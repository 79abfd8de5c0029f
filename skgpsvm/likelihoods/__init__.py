"""Likelihoods: what an observation says about the latent functions at its row."""

from ._base import Likelihood
from ._classification import (
    BinaryHinge,
    Logistic,
    MulticlassHinge,
    Probit,
    RobustMax,
    Softmax,
    expected_hinge,
)
from ._families import Beta, Gamma, NegativeBinomial, Poisson
from ._ordinal import Ordinal
from ._regression import Gaussian, Heteroscedastic, Laplace, StudentT

__all__ = [
    "Beta",
    "BinaryHinge",
    "Gamma",
    "Gaussian",
    "Heteroscedastic",
    "Laplace",
    "Likelihood",
    "Logistic",
    "MulticlassHinge",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Probit",
    "RobustMax",
    "Softmax",
    "StudentT",
    "expected_hinge",
]
