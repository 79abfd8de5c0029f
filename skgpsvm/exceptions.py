"""Errors and warnings of the package."""

import sys
import warnings

__all__ = ["DistributedError", "DivergenceError", "NotPositiveDefiniteError", "NumericalWarning"]

_NOT_OF_USERS = {"skgpsvm", "sklearn", "torch", "joblib", "contextlib"}


class DistributedError(RuntimeError):
    """The processes that share a fit cannot go on together: another one failed, or differs."""


class DivergenceError(ArithmeticError):
    """The objective of a fit is no longer finite."""


class NotPositiveDefiniteError(ValueError):
    """A matrix that has to be positive definite is not, or holds NaN or infinity."""


class NumericalWarning(UserWarning):
    """A result was obtained only after the numbers were made safer than asked for."""


def warn(message, category=UserWarning):
    """Warn of the line of the user's own code that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_OF_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
