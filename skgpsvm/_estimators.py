"""The boundary between scikit-learn and torch: validation, labels, weights, device and dtype."""

import functools
import math
import sys
from numbers import Real

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MultiOutputMixin,
    RegressorMixin,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from . import _forks  # noqa: F401 (its hook lets forked children compute)
from ._distributed import check_equal, gather, meet, n_ranks, run_on_all_ranks
from ._isolation import isolated
from ._parameters import ALWAYS, check_unchanged, check_uses, remembered
from ._rows import CHUNK_ROWS, merged_rows, to_tensor, winsorized
from .exceptions import warn

_MOST_INTEGER = 2**63 - 1
# Of the mean weight, or its inverse, without a warning. On a sine of 100 rows with noise of SD
# .1 to .5 and weights in proportion to the inverse variances, 95 % intervals of the
# function cover .92 at a mean weight of 1, .98 at 1/2, .82 at 2, .59 at 5, .17 at 100 (2026-11).
_MOST_MEAN_WEIGHT = 2.0
# Parameters of which a fitted model follows a change in every further call.
FOLLOWED = dict.fromkeys(
    ("class_weight", "device", "dtype", "max_iter", "random_state", "tol", "warm_start"), ALWAYS
)
_ANEW = {
    "fit": "set it back, or set warm_start=False to start anew.",
    "partial_fit": "set it back, or start anew by fit.",
}


def check_number(name, value, minimum, *, integer=False, optional=False, above=False):
    """Refuse what is not a finite number or an integer, of at least or ``above`` a minimum.

    Integers of Python that do not fit in 64 bits are refused too: no array or tensor holds them.
    """
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    if optional and value is None:
        return
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    number = value.item() if isinstance(value, np.generic) else value
    if not (is_number and minimum <= number < math.inf) or (above and number == minimum):
        finite = "finite " if is_number and number == math.inf else ""
        kind = "an integer" if integer else f"a {finite}number"
        least = f"above {minimum}" if above else f"of at least {minimum}"
        none = ", or None" if optional else ""
        raise ValueError(f"{name}={value!r} must be {kind} {least}{none}.")
    if isinstance(value, int) and value > _MOST_INTEGER:
        raise ValueError(f"{name}={value!r} does not fit in 64 bits; it must be below 2**63.")


def check_hyperparameters(kernel):
    """Refuse a kernel with hyperparameters whose values or bounds make no sense.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel

    Raises
    ------
    ValueError
        If a value is not one finite number, or one for each element, positive where it is free and
        not negative where it is fixed; or if bounds are not ascending pairs of numbers.
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
    """Refuse what is no probability of an interval."""
    if not (isinstance(level, Real) and 0 < level < 1):
        raise ValueError(f"level={level!r} must be between 0 and 1.")


def all_or_nothing(method):
    """Decorate `fit` or `partial_fit`: it runs with callbacks, and leaves no half of a model.

    Where it ends by an error or an interrupt, an estimator whose model was to be continued is as it
    was before, and any other is unfitted. Torch's modes and defaults make no difference, see
    `isolated`.
    """
    with_teardown = with_callbacks(isolated()(method))

    @functools.wraps(method)
    def whole(estimator, *args, **kwargs):
        before = dict(vars(estimator))
        try:
            meet(estimator, method.__name__)
            return with_teardown(estimator, *args, **kwargs)
        except BaseException:
            continued = hasattr(estimator, "_latents")
            for name in vars(estimator).keys() - before.keys():
                delattr(estimator, name)
            vars(estimator).update(before)
            if not continued:
                estimator._forget()
            raise

    return whole


class TorchEstimator(CallbackSupportMixin, BaseEstimator):
    """What every estimator of the package shares; fitted state is NumPy on the CPU.

    A subclass checks the values of its parameters (`_check_parameters`), and has two tables of
    them: ``_uses`` says where a parameter has an effect, if not everywhere, see `check_uses`;
    ``_followed`` which changes a ``"fit"`` by warm start and a ``"partial_fit"`` follow, and
    ``_growing`` which of them only upwards, see `check_unchanged`.
    """

    # Of the HTML representation, which shows descriptions of parameters only where it can link to
    # them. The documentation has no public address: the link is that from a page of its gallery.
    _doc_link_module = "skgpsvm"
    _doc_link_template = "../generated/skgpsvm.{estimator_name}.html"

    _chunk_rows = CHUNK_ROWS  # that predictions hold on the device at a time
    _uses, _followed, _growing = {}, {}, {}

    def _check_all_parameters(self, continued_by=None):
        """Refuse parameters with wrong values, without effect, or that a model cannot follow."""
        self._check_parameters()
        check_uses(self, self._uses)
        if continued_by is not None:
            followed = self._followed[continued_by]
            known, advice = self._fitted_parameters, _ANEW[continued_by]
            check_unchanged(self, known, followed, self._growing, advice)

    def _parameters_of_fit(self):
        """The attribute ``_fitted_parameters``: those whose change a call may not follow."""
        tables = self._followed.values()
        names = self.get_params(deep=False)
        held = [name for name in names if any(table.get(name) != ALWAYS for table in tables)]
        return remembered(self, held)

    def _forget(self):
        """Become unfitted."""
        for name in [*vars(self)]:
            if name in ("_latents", "_fitted_parameters") or (
                name.endswith("_") and not name.startswith("_")
            ):
                delattr(self, name)

    def _torch_options(self, X):
        """The device and dtype to compute on, for data ``X``."""
        try:
            device = torch.device("cpu" if self.device is None else self.device)
            torch.empty(0, dtype=torch.float64, device=device)
        except (RuntimeError, AssertionError, TypeError, ValueError, OverflowError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(
                f"device={self.device!r} cannot be used here: {reason}. Use None or 'cpu' for the "
                "CPU, 'cuda' or 'cuda:1' where torch.cuda.is_available()."
            ) from error
        self._check_choice("dtype", ("float32", "float64", None))
        return device, getattr(torch, self.dtype or X.dtype.name)

    def _draw_seed(self):
        try:
            return int(check_random_state(self.random_state).randint(2**31))
        except ValueError as error:
            raise ValueError(
                f"random_state={self.random_state!r} must be an integer from 0 to 2**32 - 1, a "
                "numpy.random.RandomState, or None."
            ) from error

    def _check_streamed(self):
        """Refuse class weights that need all rows."""
        if getattr(self, "class_weight", None) == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows at once, which partial_fit does not have; "
                "give a dict, or weights by sample_weight."
            )

    def _check_choice(self, name, allowed):
        value = getattr(self, name)
        if not (value is None or isinstance(value, (str, bool, np.bool_))) or value not in allowed:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")

    def _check_number(self, name, minimum, **options):
        check_number(name, getattr(self, name), minimum, **options)

    def _check_kernel(self):
        kernel = self.kernel
        if isinstance(kernel, CompoundKernel):
            raise TypeError(f"kernel={kernel!r} has one of each of several classes: give one.")
        if not (kernel is None or isinstance(kernel, Kernel)):
            raise TypeError(
                f"kernel={kernel!r} is not a kernel of sklearn.gaussian_process.kernels; give one, "
                "such as 1.0 * RBF(1.0), or None."
            )
        if kernel is not None:
            check_hyperparameters(kernel)

    def _check_bool(self, name):
        value = getattr(self, name)
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name}={value!r} must be True or False.")

    def _validated(self, X, reset, **options):
        """``X``, and ``y`` where the options have it, by scikit-learn's checks."""
        return validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], **options)

    def _check_rows(self, X, y, sample_weight, reset, **options):
        """Validated ``X``, ``y`` and weights of this rank, some of them positive on some rank."""

        def checked():
            if n_ranks() > 1 and np.shape(y)[:1] == (0,):
                empty = self._validated(X, reset, ensure_min_samples=0)
                check_consistent_length(empty, y)
                return empty, np.asarray(y), np.zeros(0)
            rows = self._validated(X, reset, y=y, **options)
            return *rows, check_weights(sample_weight, rows[0])

        X, y, weights = run_on_all_ranks(checked)
        told = {"n_features": X.shape[1], "X of dtype": X.dtype.name, "outputs": y.shape[1:]}
        names = getattr(self, "feature_names_in_", None)
        check_equal(told | {"feature names": None if names is None else names.tolist()})
        if not sum(gather(weights.sum())) > 0:
            raise ValueError(
                "All values of sample_weight are zero; at least one must be positive."
                if len(weights)
                else "There are no rows on any rank."
            )
        return X, y, weights

    def _check_new(self, X):
        check_is_fitted(self)
        return self._validated(X, reset=False)

    @isolated()
    def _map_rows(self, function, X):
        """``function`` of tensors (b, d), applied in chunks of rows, as one float64 array."""
        (device, dtype), size = self._torch_options(X), self._chunk_rows
        with torch.no_grad():
            parts = [
                function(to_tensor(X[i : i + size], device, dtype)).double().cpu().numpy()
                for i in range(0, len(X), size)
            ]
        return _finite(np.concatenate(parts), X)


class TorchClassifier(ClassifierMixin, TorchEstimator):
    """Labels and weights of a classifier."""

    def _check_training_data(self, X, y, sample_weight, *, classes=None, reset=True):
        """`merged_rows` with class codes as targets; sets ``classes_`` where ``reset``."""
        X, y, weights = self._check_rows(X, y, sample_weight, reset)
        run_on_all_ranks(_check_labels, "y", y)
        run_on_all_ranks(check_classification_targets, y)
        check_equal({"labels that are": _kind_of_labels(y)}, counts=len(y) > 0)
        if classes is not None:
            run_on_all_ranks(_check_labels, "classes", np.asarray(classes))
        if not reset:
            now = self.classes_ if classes is None else np.unique(classes)
            if not np.array_equal(now, self.classes_):
                raise ValueError(
                    f"classes={now.tolist()} are not {self.classes_.tolist()}, those of the first "
                    "call: leave them out, or start anew by fit."
                )
            classes = self.classes_
        check_equal({"classes": None if classes is None else np.unique(classes).tolist()})
        present = _labels(y[weights > 0])
        if self.class_weight is not None:
            weights = weights * self._class_factors(y, weights, present, classes)
            present = _labels(y[weights > 0])
        if reset:
            known = present if classes is None else np.unique(classes)
            if len(known) < 2:
                raise ValueError(
                    f"{type(self).__name__} needs rows of at least two classes with positive "
                    f"weight; got {len(known)} class: {known.tolist()}."
                )
            self.classes_ = known
        if strangers := np.setdiff1d(present, self.classes_).tolist():
            warm = getattr(self, "warm_start", False)
            anew = ", or set warm_start=False to start anew" if warm else ""
            raise ValueError(
                f"y has classes {strangers} that are not among {self.classes_.tolist()}, those of "
                f"the first call: give all that may come as its classes{anew}."
            )
        y = y if len(y) else y.astype(self.classes_.dtype)
        return merged_rows(X, np.searchsorted(self.classes_, y), weights)

    def predict(self, X):
        """Most probable class of each row.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        labels : ndarray of shape (n,)
            Of equally probable classes the first in ``classes_``.
        """
        codes = self.predict_proba(X).argmax(1)
        return self.classes_[codes]

    def _class_factors(self, y, weights, present, classes):
        """What ``class_weight`` multiplies each row by, (n,); rows of weight 0 count as absent."""
        if not (isinstance(self.class_weight, dict) or self.class_weight == "balanced"):
            raise ValueError(
                f"class_weight={self.class_weight!r} must be a dict of classes to numbers, "
                "'balanced', or None."
            )
        used = weights > 0
        own = y[used] if used.any() else present[:0]
        totals = np.bincount(np.searchsorted(present, own), weights[used], len(present))
        labels = present
        if isinstance(self.class_weight, dict) and classes is not None:
            labels = np.union1d(labels, classes)
        by_class = compute_class_weight(
            self.class_weight, classes=labels, y=present, sample_weight=sum(gather(totals))
        )
        if not (np.isfinite(by_class) & (by_class >= 0)).all():
            raise ValueError(
                f"class_weight={self.class_weight!r} must be finite and not negative for any class."
            )
        factors = np.ones(len(y))
        factors[used] = by_class[np.searchsorted(labels, own)]
        return factors


class TorchRegressor(MultiOutputMixin, RegressorMixin, TorchEstimator):
    """Targets and weights of a regressor; targets are centered and scaled where asked for.

    That is by the mean and the deviation of `winsorized` targets where noise has heavy tails.
    """

    def _is_heavy_tailed(self):
        return False

    def _has_noise(self):
        """Whether y has a noise to learn; weights of counts are exposures."""
        return True

    def _warn_of_weights(self, weights):
        """Warn of positive weights that are no counts and whose mean is far from 1.

        Weights count rows: 1 / sd**2 in other units of y would be another number of rows.
        """
        used = weights[weights > 0]
        counted = bool((used == used.round()).all())
        sums = gather((used.sum(), len(used), counted))
        mean = sum(part[0] for part in sums) / sum(part[1] for part in sums)
        far = not 1 / _MOST_MEAN_WEIGHT <= mean <= _MOST_MEAN_WEIGHT
        if far and not all(part[2] for part in sums):
            warn(
                f"The mean of sample_weight is {mean:.3g}. Weights are not relative: a row of "
                f"weight 2 counts as two rows, so that these {sum(part[1] for part in sums)} rows "
                f"count as {sum(part[0] for part in sums):.3g}. Divide inverse variances by their "
                "mean. Weights that are all integers are taken as counts, without this warning."
            )

    def _check_training_data(self, X, y, sample_weight, *, classes=None, reset=True):
        """`merged_rows` with normalized targets (n, t)."""
        X, y, weights = self._check_rows(
            X, y, sample_weight, reset, multi_output=True, y_numeric=True
        )
        if self._has_noise():
            self._warn_of_weights(weights)
        if reset:
            self._y_ndim = np.ndim(y)
        t = np.prod(y.shape[1:], dtype=int)
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), t)
        X, targets, weights, origin = merged_rows(X, targets, weights)

        def average(values):
            return sum(gather(weights @ values)) / sum(gather(weights.sum()))

        if reset:
            self._y_mean, self._y_std = np.zeros(t), np.ones(t)
            with np.errstate(over="ignore"):
                mean, var = self._moments(targets, average)
                if self._is_heavy_tailed() and np.isfinite(var).all():
                    mean, var = self._moments(winsorized(targets, weights), average)
            if not np.isfinite(var).all():
                raise ValueError(
                    "Squares of y, times the weights, overflow in float64: scale them down."
                )
            if self.normalize_y:
                self._y_mean = mean
                self._y_std = np.where(differs(var, self._y_mean), np.sqrt(var), 1.0)
        elif targets.shape[1] != len(self._y_mean):
            raise ValueError(
                f"y has {targets.shape[1]} outputs, but the model was fitted with "
                f"{len(self._y_mean)}."
            )
        return X, (targets - self._y_mean) / self._y_std, weights, origin

    @staticmethod
    def _moments(targets, average):
        mean = average(targets)
        return mean, average((targets - mean) ** 2)

    def _outputs(self, array):
        """As many axes of outputs (last) as the y of `fit` had."""
        return array[..., 0][()] if self._y_ndim == 1 else array


def unwrapped(model, X, wanted):
    """The first part of a fitted model that is ``wanted``, or None, and `X` as that part sees it.

    Parts are the last step of a pipeline and the best estimator of a search.
    """
    while not wanted(model):
        if isinstance(model, Pipeline):
            X = model[:-1].transform(X) if len(model) > 1 else X
            model = model[-1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return None, X
    return model, X


def _check_labels(name, labels):
    """Refuse labels that cannot be sorted."""
    if labels.dtype == object:
        kinds = {_kind(label): label for label in labels.ravel().tolist()}
        if len(kinds) > 1 or not kinds.keys() <= {"strings", "numbers"}:
            told = ", ".join(f"{label!r} ({type(label).__name__})" for label in kinds.values())
            raise ValueError(
                f"Labels in {name} must be all strings or all numbers or booleans; got {told}. "
                "Leave out rows without a label, or give them a label of the same type."
            )


def _kind_of_labels(y):
    """What a rank's labels are, for messages; those of several ranks are to be alike."""
    if y.dtype == object:
        return _kind(y[0]) if len(y) else "objects"
    kinds = {"U": "strings", "S": "bytes", "b": "booleans", "f": "floats"}
    return kinds.get(y.dtype.kind, "integers")


def _kind(label):
    for kind, types in (("strings", str), ("numbers", Real)):
        if isinstance(label, types):
            return kind
    return type(label)


def _finite(values, X):
    """Values by row of ``X``, (n, ...), that are finite; else ValueError names a row."""
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
    """Whether a label or level is None, NaN or pandas' NA."""
    na = getattr(sys.modules.get("pandas"), "NA", None)
    return value is None or value is na or value != value


def differs(var, mean):
    """Whether a variance, array or float, is more than what rounding leaves of a constant."""
    return var > (10 * np.finfo(np.float64).eps * np.abs(mean)) ** 2


def _labels(y):
    """Different labels of all ranks, sorted."""
    parts = [part for part in gather(np.unique(y)) if len(part)]
    return np.unique(np.concatenate(parts or [y]))


def history(*curves):
    """Fitted attributes that say how one or several fits, of objectives by iteration, went."""
    length = max(map(len, curves))
    padded = [np.pad(curve, (0, length - len(curve)), mode="edge") for curve in curves]
    return {"n_iter_": length, "objective_curve_": np.sum(padded, 0)}


def check_weights(sample_weight, X):
    """Row weights as float64 (n,): finite, not negative; ones for None."""
    if sample_weight is None:
        return np.ones(len(X))
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
