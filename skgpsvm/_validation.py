"""Checks of numbers, kernels, labels and weights, with error messages that say what to do."""

import math
import sys
from numbers import Real

import numpy as np
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel
from sklearn.utils import check_array, check_consistent_length, check_random_state

_MAX_INTEGER = 2**63 - 1


def check_number(name, value, minimum, *, integer=False, besides=(), above=False):
    """Raise ValueError unless a value is a finite number, or an integer, of at least a minimum.

    With ``above`` it must exceed the minimum. ``besides`` has strings or None that are allowed too.
    Python integers that do not fit in 64 bits are refused, since no array or tensor holds them.
    """
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    if (value is None or isinstance(value, str)) and value in besides:
        return
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    number = value.item() if isinstance(value, np.generic) else value
    if not (is_number and minimum <= number < math.inf) or (above and number == minimum):
        finite = "finite " if is_number and number == math.inf else ""
        kind = "an integer" if integer else f"a {finite}number"
        least = f"above {minimum}" if above else f"of at least {minimum}"
        others = "".join(f", or {other!r}" for other in besides)
        raise ValueError(f"{name}={value!r} must be {kind} {least}{others}.")
    if isinstance(value, int) and value > _MAX_INTEGER:
        raise ValueError(f"{name}={value!r} does not fit in 64 bits; it must be below 2**63.")


def check_choice(name, value, allowed):
    """Raise ValueError unless a value is one of the allowed strings, booleans or None."""
    if not (value is None or isinstance(value, (str, bool, np.bool_))) or value not in allowed:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")


def check_bool(name, value):
    """Raise ValueError unless a value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={value!r} must be True or False.")


def check_kernel(kernel, n_parts=1):
    """Raise an error unless the parameter ``kernel`` is a valid kernel or None.

    A `CompoundKernel` must have ``n_parts`` kernels, more than one.
    """
    if n_parts > 1 and isinstance(kernel, CompoundKernel):
        if len(kernel.kernels) != n_parts:
            raise ValueError(
                f"kernel={kernel!r} must have {n_parts} kernels, that of the mean first; "
                "or give one kernel, which all latent functions start from."
            )
        for part in kernel.kernels:
            check_kernel(part)
        return
    if isinstance(kernel, CompoundKernel):
        raise TypeError(
            "A CompoundKernel has a kernel for each of several latent functions, which only "
            "SVGPRegressor with likelihood='heteroscedastic' takes. Give one kernel, such as "
            "1.0 * RBF(1.0)."
        )
    if not (kernel is None or isinstance(kernel, Kernel)):
        raise TypeError(
            f"kernel={kernel!r} is not a kernel of sklearn.gaussian_process.kernels; give one, "
            "such as 1.0 * RBF(1.0), or None."
        )
    if kernel is not None:
        check_hyperparameters(kernel)


def check_hyperparameters(kernel):
    """Raise ValueError if values or bounds of a kernel's hyperparameters are invalid.

    A value is one finite number, or one for each element, positive where it is free and not
    negative where it is fixed. Bounds are ascending pairs of numbers.
    """
    values = kernel.get_params()
    for parameter in kernel.hyperparameters:
        value, bounds = np.asarray(values[parameter.name]), parameter.bounds
        if not (
            value.dtype.kind in "fiu"
            and value.ndim <= 1
            and value.size == parameter.n_elements > 0
            and (np.isfinite(value) & (value >= 0) & (parameter.fixed | (value > 0))).all()
        ):
            least = "at least 0" if parameter.fixed else "above 0"
            raise ValueError(
                f"The kernel's {parameter.name}={values[parameter.name]!r} must be finite and "
                f"{least}: one number or, where the kernel takes them, a list of numbers."
            )
        if not parameter.fixed and not (
            np.asarray(bounds).dtype.kind in "fiu"
            and np.shape(bounds) == (parameter.n_elements, 2)
            and (bounds[:, 0] >= 0).all()
            and (bounds[:, 0] <= bounds[:, 1]).all()
        ):
            given = values.get(f"{parameter.name}_bounds", bounds)
            raise ValueError(
                f"The kernel's {parameter.name}_bounds={given!r} must be a pair of numbers with "
                "0 <= lower <= upper, one such pair for each element, or 'fixed'."
            )


def check_level(level):
    """Raise ValueError unless a level is a probability between 0 and 1."""
    if not (isinstance(level, Real) and 0 < level < 1):
        raise ValueError(f"level={level!r} must be between 0 and 1.")


def refuse_missing(targets):
    """Raise ValueError if targets, of one or several outputs, have missing values."""
    values = np.asarray(targets)
    if values.dtype.kind not in "fO" or not values.ndim or not values.size:
        return
    is_float = values.dtype.kind == "f"
    missing = np.isnan(values) if is_float else np.array([*map(is_missing, values.flat)])
    missing = missing.reshape(len(values), -1)
    rows = missing.any(1)
    if not rows.any():
        return
    advice = (
        "Leave these rows out of X and y."
        if missing[rows].all()
        else "Leave these rows out, or fit a model for each output, to the rows that have it."
    )
    raise ValueError(
        f"Input y contains NaN in {rows.sum()} of {len(rows)} rows, first in row {rows.argmax()}. "
        f"{advice}"
    )


def check_numeric(targets):
    """Raise an error if targets of a regressor are missing, dates, or strings but no numbers."""
    refuse_missing(targets)
    values = np.asarray(targets)
    if values.dtype.kind in "mM":
        raise TypeError(
            f"y has dates or times ({values.dtype}). Convert them to numbers in a unit of your "
            "choice, such as days by (y - y.min()) / np.timedelta64(1, 'D')."
        )
    odd = next(filter(is_text, values.flat if values.dtype.kind in "OU" else ()), None)
    if odd is not None:
        raise ValueError(
            f"y has {str(odd)!r}, which is not a number. A regressor needs numbers; labels are "
            "for a classifier, such as SVGPClassifier."
        )


def is_text(value):
    """Return whether a value is a string that is no number."""
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def check_weights(sample_weight, X):
    """Return row weights as float64 (n,), finite and not negative; ones for None."""
    if sample_weight is None:
        return np.ones(len(X))
    if isinstance(sample_weight, str | Real):
        raise TypeError(
            f"sample_weight={sample_weight!r} must be an array of a weight for each row, or None. "
            "Classifiers take class_weight='balanced'."
        )
    weights = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
    )
    if weights.ndim != 1:
        raise ValueError(f"sample_weight has {weights.ndim} dimensions; it must have one, (n,).")
    check_consistent_length(X, weights)
    if weights.min() < 0:
        raise ValueError(
            f"sample_weight has {np.count_nonzero(weights < 0)} negative values, the least "
            f"{weights.min()}; weights must not be negative."
        )
    return weights


def check_noise_variance(noise_variance, y):
    """Return known variances of the noise, (n, t) float64, of targets (n,) or (n, t)."""
    variances = check_array(
        noise_variance,
        ensure_2d=False,
        dtype=np.float64,
        ensure_min_samples=0,
        input_name="noise_variance",
    )
    if variances.shape not in (y.shape, y.shape[:1]):
        shapes = " or ".join(map(str, dict.fromkeys((y.shape[:1], y.shape))))
        raise ValueError(
            f"noise_variance has shape {variances.shape}; it must have shape {shapes}, a variance "
            "for each row or for each entry of y."
        )
    if (variances < 0).any():
        raise ValueError(f"noise_variance must not be negative; the least is {variances.min()}.")
    variances = variances if variances.ndim == 2 else variances[:, None]
    return np.broadcast_to(variances, (len(y), np.prod(y.shape[1:], dtype=int)))


def check_labels(name, labels):
    """Raise ValueError if labels cannot be sorted, or are numbers in an array of objects."""
    if labels.dtype == object:
        kinds = {_kind(label): label for label in labels.ravel().tolist()}
        if len(kinds) > 1 or not kinds.keys() <= {"strings", "numbers"}:
            told = ", ".join(f"{label!r} ({type(label).__name__})" for label in kinds.values())
            raise ValueError(
                f"Labels in {name} must be all strings or all numbers or booleans; got {told}. "
                "Leave out rows without a label, or give them a label of the same type."
            )
        if "numbers" in kinds:
            raise ValueError(
                f"Unknown label type: labels in {name} are numbers in an array of dtype=object. "
                f"Convert it, for example by {name}.astype(int)."
            )


def kind_of_labels(y):
    """Return the kind of a rank's labels; it must be the same on all ranks."""
    if y.dtype == object:
        return _kind(y[0]) if len(y) else "objects"
    kinds = {"U": "strings", "S": "bytes", "b": "booleans", "f": "floats"}
    return kinds.get(y.dtype.kind, "integers")


def _kind(label):
    for kind, types in (("strings", str), ("numbers", Real)):
        if isinstance(label, types):
            return kind
    return type(label)


def check_finite(values, X):
    """Return predictions (n, ...) of the rows of ``X``; raise ValueError unless all are finite."""
    finite = np.isfinite(values).reshape(len(X), -1).all(1)
    if not finite.all():
        i = int(finite.argmin())
        largest = np.nanmax(np.abs(X[i : i + 1]), initial=0.0)
        raise ValueError(
            f"The prediction of row {i} of X is not finite. Its largest number is {largest:.3g}; "
            "numbers so far from those of the training rows overflow. Check the units of X, or "
            "clip it."
        )
    return values


def is_missing(value):
    """Return whether a label or level is None, NaN or pandas' NA."""
    na = getattr(sys.modules.get("pandas"), "NA", None)
    return value is None or value is na or value != value


def differs(var, mean):
    """Return whether a variance, array or float, exceeds the rounding errors of a constant."""
    return var > (10 * np.finfo(np.float64).eps * np.abs(mean)) ** 2


def draw_seed(random_state):
    """Return a seed that the parameter ``random_state`` gives, an integer."""
    try:
        return int(check_random_state(random_state).randint(2**31))
    except ValueError as error:
        raise ValueError(
            f"random_state={random_state!r} must be an integer from 0 to 2**32 - 1, a "
            "numpy.random.RandomState, or None."
        ) from error
