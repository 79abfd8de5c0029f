"""Ends of a fit that its user should hear of: values on bounds of their own, and mere noise."""

import math

from sklearn.gaussian_process.kernels import CompoundKernel

_DEFAULT_BOUNDS = (1e-5, 1e5)  # of every kernel of scikit-learn: bounds that nobody has set
_NEAR = 1e-3  # of logarithms: on a bound
_MOST_NAMED = 5
# Of all rows, that a fit must explain more than a constant. Two degrees of freedom, about what a
# kernel's smallest amplitude leaves, explain as much of mere noise in one data set of twenty.
LEAST_NATS = 3.0


def on_bounds(kernel, learned=lambda name: True):
    """Describe the free hyperparameters of a fitted kernel that are on bounds set by its user.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
    learned : callable
        Whether the hyperparameter of a name was learned.

    Returns
    -------
    told : list of str
        One for each value that is on a bound other than scikit-learn's defaults, 1e-5 and 1e5.
    """
    parts = {"kernel_": kernel}
    if isinstance(kernel, CompoundKernel):
        parts = {f"kernel_.kernels[{j}]": part for j, part in enumerate(kernel.kernels)}
    told = []
    for path, part in parts.items():
        values = map(math.exp, part.theta)
        for parameter in part.hyperparameters:
            for j in range(0 if parameter.fixed else parameter.n_elements):
                place = f"[{j}]" if parameter.n_elements > 1 else ""
                name = f"{path}.{parameter.name.replace('__', '.')}{place}"
                end = described_end(next(values), parameter.bounds[j], _DEFAULT_BOUNDS)
                if end and learned(parameter.name):
                    told.append(f"{name} {end}")
    return told


def described_end(value, bounds, defaults):
    """Describe a value on one of its bounds where that is no default; None elsewhere.

    Parameters
    ----------
    value : float
        Positive.
    bounds, defaults : pair of floats
    """
    if bounds[0] == bounds[1]:
        return None
    for side, bound, default in zip(("lower", "upper"), bounds, defaults, strict=True):
        if bound != default and bound > 0 and abs(math.log(value / bound)) < _NEAR:
            return f"= {value:.3g} on its {side} bound {bound:.3g}"
    return None


def bounds_message(name, told):
    """The warning of an estimator of a name, from what `on_bounds` or the like found."""
    more = f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
    return (
        f"{name} ended with hyperparameters on bounds that were set for them: "
        f"{', '.join(told[:_MOST_NAMED])}{more}. Widen the bounds and fit again, which may find a "
        "better value; or mark a value as 'fixed' if it is meant."
    )


def noise_message(name, kernel, nats):
    """The warning that a fit explains nothing."""
    return (
        f"{name} ended at mere noise: with kernel={kernel!r} it explains the training rows by "
        f"{nats:.2g} nats in all better than a constant does, which may be chance. Learning finds "
        "the optimum next to its start: give other hyperparameters to start from, such as a "
        "shorter length scale or another periodicity, or wider bounds. kernel=None looks for a "
        "start."
    )
