"""Warnings about a fit: hyperparameters on bounds, and a kernel that explains nothing."""

import math

from sklearn.gaussian_process.kernels import CompoundKernel

_DEFAULT_BOUNDS = (1e-5, 1e5)  # scikit-learn's defaults for every kernel
_NEAR = 1e-3  # a value is on a bound if its logarithm is closer than this
_MAX_NAMED = 5
# Smallest gain in log likelihood over a constant, summed over the rows, in nats. A fit with two
# degrees of freedom, about as many as a kernel of the smallest amplitude has, gains as much on one
# in twenty data sets of pure noise.
MIN_NATS = 3.0


def on_bounds(kernel, learned):
    """Describe the free hyperparameters of a fitted kernel that are on bounds set by the user.

    Bounds other than scikit-learn's defaults, 1e-5 and 1e5, are the user's. ``learned`` takes the
    name of a hyperparameter and returns whether it was learned.
    """
    parts = {"kernel_": kernel}
    if isinstance(kernel, CompoundKernel):
        parts = {f"kernel_.kernels[{j}]": part for j, part in enumerate(kernel.kernels)}
    descriptions = []
    for path, part in parts.items():
        values = map(math.exp, part.theta)
        for parameter in part.hyperparameters:
            for j in range(0 if parameter.fixed else parameter.n_elements):
                place = f"[{j}]" if parameter.n_elements > 1 else ""
                name = f"{path}.{parameter.name.replace('__', '.')}{place}"
                end = described_end(next(values), parameter.bounds[j], _DEFAULT_BOUNDS)
                if end and learned(parameter.name):
                    descriptions.append(f"{name} {end}")
    return descriptions


def described_end(value, bounds, defaults):
    """Describe a positive value that is on one of its bounds; return None if that is a default."""
    if bounds[0] == bounds[1]:
        return None
    for side, bound, default in zip(("lower", "upper"), bounds, defaults, strict=True):
        if bound != default and bound > 0 and abs(math.log(value / bound)) < _NEAR:
            return f"= {value:.3g} on its {side} bound {bound:.3g}"
    return None


def bounds_message(name, descriptions):
    """Return the text of an estimator's warning about the values that `on_bounds` lists."""
    more = f" and {len(descriptions) - _MAX_NAMED} more" if len(descriptions) > _MAX_NAMED else ""
    return (
        f"{name} ended with hyperparameters on bounds that were set for them: "
        f"{', '.join(descriptions[:_MAX_NAMED])}{more}. "
        "Widen the bounds and fit again, which may find a better value; or mark a value as "
        "'fixed' if it is meant."
    )


def noise_message(name, kernel, nats):
    """Return the text of the warning that a fit explains no more than a constant."""
    return (
        f"{name} found hardly any signal: with kernel={kernel!r}, its log likelihood of the "
        f"training rows is only {nats:.2g} nats higher in total than that of a constant, which may "
        "be chance. An optimizer finds the optimum near its start, so try other initial "
        "hyperparameters, such as a shorter length scale or another periodicity, or wider bounds. "
        "kernel=None searches for a start."
    )
