"""Errors and warnings of the package."""

__all__ = ["DivergenceError", "NotPositiveDefiniteError", "NumericalWarning"]


class DivergenceError(ArithmeticError):
    """The objective of a fit is no longer finite."""


class NotPositiveDefiniteError(ValueError):
    """A matrix that has to be positive definite is not, or holds NaN or infinity."""


class NumericalWarning(UserWarning):
    """A result was obtained only after the numbers were made safer than asked for."""
