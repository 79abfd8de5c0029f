"""Errors and warnings of the package."""

__all__ = ["DistributedError", "DivergenceError", "NotPositiveDefiniteError", "NumericalWarning"]


class DistributedError(RuntimeError):
    """The processes that share a fit cannot go on together: another one failed, or differs."""


class DivergenceError(ArithmeticError):
    """The objective of a fit is no longer finite."""


class NotPositiveDefiniteError(ValueError):
    """A matrix that has to be positive definite is not, or holds NaN or infinity."""


class NumericalWarning(UserWarning):
    """A result was obtained only after the numbers were made safer than asked for."""
