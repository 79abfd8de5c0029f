"""Errors and warnings of the package."""

import sys
import warnings

__all__ = ["DistributedError", "DivergenceError", "NotPositiveDefiniteError", "NumericalWarning"]

_LIBRARIES = {"skgpsvm", "sklearn", "torch", "joblib", "contextlib"}


class DistributedError(RuntimeError):
    """The processes that share a fit cannot continue: one of them failed or differs."""


class DivergenceError(ArithmeticError):
    """The objective of a fit is no longer finite."""


class NotPositiveDefiniteError(ValueError):
    """A matrix that must be positive definite is not, or holds NaN or infinity."""


class NumericalWarning(UserWarning):
    """A result needed more numerical safeguards, such as jitter, than were asked for."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning located at the line of the user's code that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
