"""Rules for the parameters of all estimators: when each has an effect, and which may change."""

import inspect
from dataclasses import dataclass, field, replace

import joblib
import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.gaussian_process.kernels import Kernel

_ANEW = {
    "fit": "set it back, or set warm_start=False to start anew.",
    "partial_fit": "set it back, or start anew by fit.",
}
_MAX_BYTES = 1000  # of larger arrays, only a digest is kept
_MAX_SHOWN = 200  # maximum number of characters of a value in a message


class OtherThan:
    """All values of a parameter except the given ones."""

    def __init__(self, *values):
        self.values = values

    def __str__(self):
        return f"other than {_joined(self.values)}"


@dataclass(frozen=True)
class Where:
    """Condition on the parameters of an estimator."""

    # A dict maps parameters to their allowed values: a value, a tuple of values or
    # `OtherThan`. The condition holds if all parameters of one of the dicts have allowed values.
    alternatives: tuple
    # Values of a parameter to which the condition applies. If empty, it applies to every value
    # except the default.
    values: tuple = ()

    def __or__(self, other):
        return replace(self, alternatives=self.alternatives + other.alternatives)

    def of(self, *values):
        """Return the same condition, applied to the given values of a parameter only."""
        return replace(self, values=values)

    def holds(self, estimator):
        """Return whether the parameters of an estimator meet the condition."""
        return any(
            all(_allows(allowed, parameter(estimator, name)) for name, allowed in options.items())
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
    """Return the condition that parameters have the given values; ``|`` joins alternatives."""
    return Where((options,))


ALWAYS = where()


_ABSENT = object()  # value of an option that the solver does not have


def parameter(estimator, name):
    """Return the value of a parameter; ``solver`` as an object, ``solver__name`` its option."""
    if name == "solver":
        return estimator._solver()
    owner, _, option = name.rpartition("__")
    if owner:
        return getattr(parameter(estimator, owner), option, _ABSENT)
    return getattr(estimator, name)


def parameter_names(estimator):
    """Return the names of all parameters, those of the solver's options included."""
    names = list(estimator.get_params(deep=False))
    solver = parameter(estimator, "solver") if "solver" in names else None
    options = solver.get_params(deep=False) if isinstance(solver, BaseEstimator) else ()
    return names + [f"solver__{name}" for name in options]


@dataclass(frozen=True)
class ParameterRules:
    """Rules for the parameters of an estimator that concern several of them, or several calls."""

    # Where a parameter has an effect, if not everywhere: a `Where` or a tuple; see `check_uses`
    uses: dict = field(default_factory=dict)
    # By method, ``"fit"`` by warm start and ``"partial_fit"``, the changes of
    # parameters that a further call follows; see `check_unchanged`
    followed: dict = field(default_factory=dict)
    # Numbers that a further call follows if they increase
    growing: dict = field(default_factory=dict)
    # Solvers by the string that stands for each; None where the data decide
    solvers: dict = field(default_factory=dict)
    # Class of the solvers that `partial_fit` needs; None is any solver
    streaming: type | None = None

    def check(self, estimator, continued_by=None):
        """Refuse parameters without effect, and changes that a fitted model cannot follow.

        ``continued_by`` is the method that continues a fitted model, if any.
        """
        self.check_uses(estimator)
        if continued_by is not None:
            self.check_unchanged(estimator, continued_by)

    def check_uses(self, estimator):
        """Refuse a parameter that is set but has no effect with the other parameters.

        All conditions of a parameter must hold. Parameters without one always have an effect.
        """
        conditions = (
            (name, use)
            for name, uses_of in self.uses.items()
            for use in (uses_of if isinstance(uses_of, tuple) else (uses_of,))
        )
        for name, use in conditions:
            value = parameter(estimator, name)
            if value is _ABSENT:  # an option of another solver
                continue
            default = _default(estimator, name)
            is_set = _allows(use.values, value) if use.values else not _same(value, default)
            if is_set and not use.holds(estimator):
                others = use.names()
                now = " and ".join(f"{one}={_shown_parameter(estimator, one)}" for one in others)
                raise ValueError(
                    f"{name}={_shown_parameter(estimator, name)} has no effect with {now}; it is "
                    f"for {use}. Leave it at its default, {default!r}, or change "
                    f"{' or '.join(others)}."
                )

    def check_unchanged(self, estimator, method):
        """Refuse changed parameters that the fitted model could not adopt in a further call."""
        followed, changed = self.followed[method], []
        for name, then in estimator._fitted_parameters.items():
            now = _memory(estimator, name)
            if now is _ABSENT:  # the class of the solver has changed
                continue
            grows = name in self.growing and now > then
            tables = (followed, self.growing) if grows else (followed,)
            if _same(then, now) or any(t[name].holds(estimator) for t in tables if name in t):
                continue
            was, is_now = _shown(then), _shown(now)
            if was == is_now:
                is_now = "another one, which differs in digits or bounds,"
            changed.append(f"{name} was {was} at the fit and is {is_now} now")
        if changed:
            raise ValueError(
                f"{'; '.join(changed)}. The fitted model cannot follow: {_ANEW[method]}"
            )

    def memory(self, estimator):
        """Return the parameters whose change a further call may not follow."""
        tables, names = self.followed.values(), parameter_names(estimator)
        held = [name for name in names if any(table.get(name) != ALWAYS for table in tables)]
        return remembered(estimator, held)

    def solver(self, given):
        """Return a solver as an object; None where the data decide, or where it is invalid."""
        return self.solvers.get(given) if isinstance(given, str) else given

    def allow_streams(self, estimator):
        """Return True if the solver can take rows by `partial_fit`; else raise AttributeError."""
        if self.streaming and not isinstance(estimator._solver(), self.streaming):
            strings = [
                repr(string)
                for string, solver in self.solvers.items()
                if isinstance(solver, self.streaming)
            ]
            raise AttributeError(
                f"partial_fit is not available with solver={estimator.solver!r}, which needs all "
                f"rows at once. Use solver={' or '.join(strings)}."
            )
        return True

    def solver_classes(self):
        return tuple(dict.fromkeys(type(one) for one in self.solvers.values() if one))

    def check_solver(self, estimator):
        """Refuse a solver that is not for this estimator, or that has invalid options."""
        given = estimator.solver
        known = isinstance(given, str) and given in self.solvers
        if not known and not isinstance(given, self.solver_classes()):
            strings = ", ".join(map(repr, self.solvers))
            names = ", ".join(each.__name__ for each in self.solver_classes())
            hint = f" Pass an instance, {given.__name__}()." if isinstance(given, type) else ""
            raise ValueError(
                f"solver={given!r} is not one of {strings}, nor one of the solvers of "
                f"skgpsvm.solvers for {type(estimator).__name__}: {names}.{hint}"
            )
        if not known:
            given.check()

    def with_solver_object(self, params, given):
        """Return parameters to set, where options of the name of a solver turn it into its object.

        ``given`` is the solver that they may have options of.
        """
        name = params.get("solver", given)
        options = [key for key in params if key.startswith("solver__")]
        if not (options and isinstance(name, str) and name in self.solvers):
            return params
        if self.solvers[name] is None:
            names = ", ".join(each.__name__ for each in self.solver_classes())
            raise ValueError(
                f"{options[0]} is an option of a solver, but with solver={name!r} the data "
                f"decide which. Set solver to an object of skgpsvm.solvers: {names}."
            )
        return {**params, "solver": clone(self.solvers[name])}


def check_has_kernel(params, given):
    """Refuse to set hyperparameters of a kernel if there is none, or only the name of one.

    ``given`` is the kernel that the parameters to set, a dict, may have hyperparameters of.
    """
    kernel = params.get("kernel", given)
    options = [key for key in params if key.startswith("kernel__")]
    if options and not hasattr(kernel, "set_params"):
        raise ValueError(
            f"{options[0]} is a hyperparameter of a kernel, but kernel={kernel!r} is not one. Set "
            "kernel first, where the estimator takes one, such as 1.0 * RBF(1.0)."
        )


def remembered(estimator, names):
    """Return copies of parameters by name, for `ParameterRules` to compare with later.

    Kernels are copied; large arrays are replaced by a digest.
    """
    return {name: _memory(estimator, name) for name in names}


def are_unchanged(estimator, before):
    """Return whether parameters are those that `remembered` returned before."""
    return all(_same(then, _memory(estimator, name)) for name, then in before.items())


class Digest(str):
    """Description of a large array by its shape and hash."""


def _default(estimator, name):
    """Return the default of a parameter that the estimator or its solver has."""
    owner, _, option = name.rpartition("__")
    owner = parameter(estimator, owner) if owner else estimator
    return inspect.signature(type(owner)).parameters[option].default


def _shown_parameter(estimator, name):
    """Return a parameter as text, the solver as the user gave it."""
    value = estimator.solver if name == "solver" else parameter(estimator, name)
    return "absent" if value is _ABSENT else _shown(value)


@dataclass(frozen=True)
class SolverMemory:
    """Class of a solver, and the solver as the user gave it; only the classes are compared."""

    kind: str
    given: str = field(compare=False)

    def __repr__(self):
        return self.given


def _memory(estimator, name):
    """Return a small copy of a parameter, or a digest of a large array."""
    value = parameter(estimator, name)
    if name == "solver":
        return SolverMemory(type(value).__name__, repr(estimator.solver))
    if isinstance(value, Kernel):
        return clone(value)
    if isinstance(value, dict):
        return dict(value)
    if not _is_listed(value):
        return value
    array = _array(value)
    if array.nbytes <= _MAX_BYTES:
        return array.copy()
    return Digest(f"an array of shape {array.shape} with hash {joblib.hash(array)}")


def _same(one, other):
    """Return whether two values of a parameter are equal, comparing the content of arrays."""
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
    """Return a list or array as an array of floats if possible, else of objects."""
    try:
        return np.ascontiguousarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(len(value), dtype=object)
        array[:] = [tuple(part) if _is_listed(part) else part for part in value]
        return array


def _allows(allowed, value):
    if isinstance(allowed, OtherThan):
        return value is not _ABSENT and not _is_one_of(value, allowed.values)
    return _is_one_of(value, allowed if isinstance(allowed, tuple) else (allowed,))


def _is_one_of(value, values):
    """Return whether a value is one of some values, or an object of one of some classes."""
    return any(isinstance(value, o) if isinstance(o, type) else _same(value, o) for o in values)


def _in_words(name, allowed):
    if isinstance(allowed, OtherThan):
        return f"{name} {allowed}"
    return f"{name}={_joined(allowed if isinstance(allowed, tuple) else (allowed,))}"


def _joined(values):
    texts = (f"{value.__name__}()" if isinstance(value, type) else repr(value) for value in values)
    *most, last = texts
    return f"{', '.join(most)} or {last}" if most else last


def _shown(value):
    """Return a value as text for a message."""
    if isinstance(value, Digest):
        return str(value)
    if _is_listed(value) and _array(value).nbytes > _MAX_BYTES:
        return f"<array of shape {np.shape(value)}>"
    told = repr(value.tolist() if hasattr(value, "tolist") else value)
    return told if len(told) <= _MAX_SHOWN else f"{told[:_MAX_SHOWN]}..."
