"""Rules for the parameters of every estimator: which are used where, and which may change."""

import inspect
from dataclasses import dataclass, replace

import joblib
import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel

_MAX_BYTES = 1000  # larger arrays are remembered by a digest
_MAX_SHOWN = 200  # characters of a value in a message


class OtherThan:
    """Every value of a parameter but some."""

    def __init__(self, *values):
        self.values = values

    def __str__(self):
        return f"other than {_joined(self.values)}"


@dataclass(frozen=True)
class Where:
    """A condition on the parameters of an estimator.

    Attributes
    ----------
    alternatives : tuple of dict
        The condition holds where any of the dicts does. A dict has parameters and the values that
        they may have: a value, a tuple of values or `OtherThan`.
    values : tuple
        The values of a parameter that the condition is for; empty for every one but the default.
    """

    alternatives: tuple
    values: tuple = ()

    def __or__(self, other):
        return replace(self, alternatives=self.alternatives + other.alternatives)

    def of(self, *values):
        """Return the same condition for some values of a parameter."""
        return replace(self, values=values)

    def holds(self, estimator):
        """Return whether the parameters of an estimator meet the condition."""
        return any(
            all(_allows(allowed, getattr(estimator, name)) for name, allowed in options.items())
            for options in self.alternatives
        )

    def names(self):
        """Return the parameters that the condition depends on."""
        return list(dict.fromkeys(name for options in self.alternatives for name in options))

    def __str__(self):
        return ", or ".join(
            " and ".join(_in_words(name, allowed) for name, allowed in options.items())
            for options in self.alternatives
        )


def where(**options):
    """Return the condition that parameters have these values; ``|`` joins several."""
    return Where((options,))


ALWAYS = where()


def check_uses(estimator, uses):
    """Refuse a parameter that was set and has no effect with the others.

    Parameters
    ----------
    estimator : BaseEstimator
    uses : dict of str to Where or tuple of Where
        Where a parameter has an effect: where all conditions hold; everywhere without any.

    Raises
    ------
    ValueError
        If a parameter has no effect and is not at its default.
    """
    signature = inspect.signature(type(estimator)).parameters
    conditions = (
        (name, use)
        for name, uses_of in uses.items()
        for use in (uses_of if isinstance(uses_of, tuple) else (uses_of,))
    )
    for name, use in conditions:
        value, default = getattr(estimator, name), signature[name].default
        is_set = _is_one_of(value, use.values) if use.values else not _same(value, default)
        if is_set and not use.holds(estimator):
            others = use.names()
            now = " and ".join(f"{other}={_shown(getattr(estimator, other))}" for other in others)
            raise ValueError(
                f"{name}={_shown(value)} has no effect with {now}; it is for {use}. Leave it at "
                f"its default, {default!r}, or change {' or '.join(others)}."
            )


def remembered(estimator, names):
    """Return copies of parameters by name, for `check_unchanged` to compare with later.

    Kernels are copied, and of large arrays a digest is kept.
    """
    return {name: _memory(getattr(estimator, name)) for name in names}


def check_unchanged(estimator, before, followed, growing, advice):
    """Refuse parameters that have changed, where a model that goes on could not follow.

    Parameters
    ----------
    estimator : BaseEstimator
    before : dict
        What `remembered` returned at the fit.
    followed : dict of str to Where
        The parameters of which a further call follows a change, and where.
    growing : dict of str to Where
        Likewise of a number that has become larger.
    advice : str
        What to do.

    Raises
    ------
    ValueError
        If another parameter has changed.
    """
    changed = []
    for name, then in before.items():
        now = _memory(getattr(estimator, name))
        tables = (followed, growing) if name in growing and now > then else (followed,)
        if _same(then, now) or any(t[name].holds(estimator) for t in tables if name in t):
            continue
        was, is_now = _shown(then), _shown(now)
        if was == is_now:
            is_now = "another one, which differs in digits or bounds,"
        changed.append(f"{name} was {was} at the fit and is {is_now} now")
    if changed:
        raise ValueError(f"{'; '.join(changed)}. The fitted model cannot follow: {advice}")


class _Digest(str):
    """Stands for a large array."""


def _memory(value):
    if isinstance(value, Kernel):
        return clone(value)
    if isinstance(value, dict):
        return dict(value)
    if not _is_listed(value):
        return value
    array = _array(value)
    if array.nbytes <= _MAX_BYTES:
        return array.copy()
    return _Digest(f"an array of shape {array.shape} with hash {joblib.hash(array)}")


def _same(one, other):
    """Return whether two values of a parameter are equal; arrays and kernels by content."""
    if isinstance(one, Kernel) and isinstance(other, Kernel):
        parts = one.get_params(deep=False), other.get_params(deep=False)
        return type(one) is type(other) and _same(*parts)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if _is_listed(one) and _is_listed(other):
        return np.array_equal(_array(one), _array(other))
    if _is_listed(one) or _is_listed(other):
        return False
    return one is other or bool(one == other)


def _is_listed(value):
    return isinstance(value, (list, tuple)) or (hasattr(value, "__array__") and np.ndim(value) > 0)


def _array(value):
    """Return a list or array as an array of floats if it has numbers, else of objects."""
    try:
        return np.ascontiguousarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(len(value), dtype=object)
        array[:] = [tuple(part) if _is_listed(part) else part for part in value]
        return array


def _allows(allowed, value):
    if isinstance(allowed, OtherThan):
        return not _is_one_of(value, allowed.values)
    return _is_one_of(value, allowed if isinstance(allowed, tuple) else (allowed,))


def _is_one_of(value, values):
    return any(_same(value, one) for one in values)


def _in_words(name, allowed):
    if isinstance(allowed, OtherThan):
        return f"{name} {allowed}"
    return f"{name}={_joined(allowed if isinstance(allowed, tuple) else (allowed,))}"


def _joined(values):
    *most, last = map(repr, values)
    return f"{', '.join(most)} or {last}" if most else last


def _shown(value):
    """Return a value as text for a message."""
    if isinstance(value, _Digest):
        return str(value)
    if _is_listed(value) and _array(value).nbytes > _MAX_BYTES:
        return f"<array of shape {np.shape(value)}>"
    told = repr(value.tolist() if hasattr(value, "tolist") else value)
    return told if len(told) <= _MAX_SHOWN else f"{told[:_MAX_SHOWN]}..."
