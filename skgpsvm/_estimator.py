"""The boundary between scikit-learn and torch: validation, labels, weights, device and dtype."""

import sys
from copy import copy

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.callback import CallbackSupportMixin
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ._distributed import (
    all_sum,
    check_equal,
    gather,
    n_ranks,
    rank,
    together,
    warn_if_alone,
)

CHUNK_ROWS = 4096
_HELD_BYTES = 2**28
_MOST_MERGED = 2**21
_MOST_UNITS = 100  # that a row's weight is divided into
_ROUNDING = 1e-6  # of a unit, which is no further one
_PER_MEDIAN_DEVIATION = 1.4826  # standard deviations of a Gaussian
_MOST_TAMED = 0.2  # share of the weight
_MAY_DIFFER_BY_RANK = {"device", "random_state"}


def check_number(name, value, minimum, *, integer=False, optional=False, above=False):
    """Refuse what is no number, an integer where asked for, of at least or ``above`` a minimum."""
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    if optional and value is None:
        return
    wrong = isinstance(value, bool) or not isinstance(value, kinds) or not value >= minimum
    if wrong or (above and value == minimum):
        kind = "an integer" if integer else "a number"
        least = f"above {minimum}" if above else f"of at least {minimum}"
        none = ", or None" if optional else ""
        raise ValueError(f"{name}={value!r} must be {kind} {least}{none}.")


class Rows:
    """Training rows of positive weight as tensors, in chunks that bound the memory.

    Parameters
    ----------
    X : ndarray or memmap of shape (n, d)
        Moved to the device whole where that takes at most 256 MiB, else chunk by chunk.
    targets : ndarray of shape (n,) or (n, t)
        Codes, or floats.
    weights : ndarray of shape (n,)
    device : torch.device
    dtype : torch.dtype
    origin : ndarray, optional
        As of `merged_rows`.
    shared : bool
        Whether these are a rank's share of the rows; else every rank has the same ones.

    Attributes
    ----------
    n_rows : int
        Of all ranks; ``len`` is that of this one.
    total_weight : float
        Of the rows of all ranks.
    """

    def __init__(self, X, targets, weights, device, dtype, *, origin=None, shared=True):
        self.device, self.dtype, self._shared = device, dtype, shared
        self._kept = None if (weights > 0).all() else np.flatnonzero(weights)
        self._origin = origin
        if self._kept is not None:
            place = np.full(len(X), -1)
            place[self._kept] = np.arange(len(self._kept))
            self._origin = place if origin is None else np.where(origin < 0, -1, place[origin])
        floats = np.issubdtype(targets.dtype, np.floating)
        self.targets = self._tensor(self._keep(targets), dtype if floats else None)
        self.weights = self._tensor(self._keep(weights), dtype)
        self.total_weight = self.sum(self.weights.sum())[0].item()
        if not 0 < self.total_weight < np.inf:
            raise ValueError(
                f"Row weights of up to {weights.max(initial=0)} do not fit in {dtype}: scale them, "
                "or use dtype='float64'."
            )
        counts = gather(len(self)) if shared else [len(self)]
        self.n_rows, self._offset = sum(counts), sum(counts[: rank() if shared else 0])
        self.X = X
        if len(self) * X.shape[1] * dtype.itemsize <= _HELD_BYTES:
            self.X, self._kept = self._tensor(self._keep(X), dtype), None

    def __len__(self):
        return len(self.targets)

    def _keep(self, array):
        return array if self._kept is None else array[self._kept]

    def _tensor(self, array, dtype=None):
        return to_tensor(array, self.device, dtype)

    def take(self, index):
        """The rows of a slice or an index tensor: X (b, d), targets (b,), weights (b,)."""
        targets, weights = self.targets[index], self.weights[index]
        if isinstance(self.X, torch.Tensor):
            return self.X[index], targets, weights
        source = index if isinstance(index, slice) else index.cpu().numpy()
        source = source if self._kept is None else self._kept[source]
        return self._tensor(self.X[source], self.dtype), targets, weights

    def sum(self, *tensors):
        """Sums over the ranks that share the rows."""
        return all_sum(*tensors) if self._shared else tensors

    def spaced(self, max_rows):
        """Index (k,) of all ranks' rows, or of ``max_rows`` of them, equally spaced."""
        n = min(self.n_rows, max_rows)
        return torch.linspace(0, self.n_rows - 1, n, dtype=torch.float64).round().long()

    def own(self, index):
        """Which of this rank's rows are among those at an index (k,) into all ranks' rows."""
        index = index - self._offset
        return index[(index >= 0) & (index < len(self))]

    def collect(self, *tensors):
        """Tensors by row of all ranks that share the rows, one rank's below the other's."""
        if n_ranks() == 1 or not self._shared:
            return tensors
        ranks = gather([tensor.cpu() for tensor in tensors])
        return tuple(torch.cat(parts).to(self.device) for parts in zip(*ranks, strict=True))

    def unmerged(self, values):
        """Values of these rows (n, ...) for all that the user gave; NaN for weight 0."""
        if self._origin is None:
            return values
        origin = torch.as_tensor(self._origin, device=values.device)
        absent = values.new_full((1, *values.shape[1:]), torch.nan)
        return torch.cat([values, absent])[origin]

    def chunks(self, size=None):
        """Slices that cover all rows in order, of ``size`` or as many as elsewhere."""
        size = size or CHUNK_ROWS
        return [slice(i, i + size) for i in range(0, max(len(self), 1), size)]

    def passes(self, basis, size=None):
        """A function that goes over all rows in chunks, as often as it is called.

        Parameters
        ----------
        basis : WhitenedBasis
        size : int, optional
            As of `chunks`.

        Returns
        -------
        chunks : callable
            Gives X, targets, weights, features and residual variances of each chunk. Those two are
            held for the next pass where they take at most 256 MiB.
        """
        held, fits = {}, len(self) * basis.size * self.dtype.itemsize <= _HELD_BYTES

        def chunks():
            for index in self.chunks(size):
                X, targets, weights = self.take(index)
                found = held.get(index.start) or basis(X)
                if fits:
                    held[index.start] = found
                yield X, targets, weights, *found

        return chunks

    def units(self):
        """Which of all ranks' rows each unit of weight is of, an array.

        A row has as many as mean weights: what is drawn of the rows is drawn of them, so that a
        weight is the same as repetition.
        """
        (weights,) = self.collect(self.weights)
        relative = weights.double() / weights.double().mean()
        units = (relative - _ROUNDING).ceil().clamp(1, _MOST_UNITS).long().cpu().numpy()
        return np.repeat(np.arange(self.n_rows), units)

    def of_units(self, units, chosen):
        """This rank's rows with the share of weight that some units, an index array, have."""
        share = _shares(units, chosen)
        return self.part(share.nonzero()[0], share[share > 0])

    def divided(self, units, chosen):
        """These rows without, and with alone, the units at an index array into `units`."""
        others = np.delete(np.arange(len(units)), chosen)
        return self.of_units(units, others), self.of_units(units, chosen)

    def part(self, index, share=1.0):
        """This rank's rows at an index array, on this rank alone, read where these are.

        They have a share of their weights, a float or an array as long as the index.
        """
        part, index = copy(self), np.asarray(index)
        at = torch.as_tensor(index, device=self.device)
        part.targets = self.targets[at]
        part.weights = self.weights[at] * torch.as_tensor(share).to(self.weights)
        part.total_weight = part.weights.sum().item()
        part.n_rows, part._shared, part._origin = len(index), False, None
        if isinstance(self.X, torch.Tensor):
            part.X = self.X[at]
        else:
            part._kept = index if self._kept is None else self._kept[index]
        return part

    def tamed(self):
        """These rows with `tamed` targets."""
        part, arrays = copy(self), (self.targets.cpu().numpy(), self.weights.cpu().numpy())
        part.targets = self._tensor(tamed(*arrays))
        return part

    def subset(self, max_rows, random_state):
        """At most ``max_rows`` of all ranks' rows, by units without replacement, on every rank."""
        share = np.ones(self.n_rows)
        if self.n_rows > max_rows:
            units = self.units()
            share = _shares(units, random_state.choice(len(units), max_rows, replace=False))
        elif n_ranks() == 1:
            return self
        index = share.nonzero()[0]
        tensors = self.collect(*self.take(self.own(torch.as_tensor(index))))
        X, targets, weights = (tensor.cpu().numpy() for tensor in tensors)
        arrays = X, targets, weights * share[index].astype(weights.dtype)
        arrays = merged_rows(*arrays)[:3] if n_ranks() > 1 else arrays
        return Rows(*arrays, self.device, self.dtype, shared=False)


def _shares(units, chosen):
    """Share of the units of each row that are among those at an index array, (n,)."""
    total = np.bincount(units)
    return np.bincount(units[chosen], minlength=len(total)) / total


class TorchEstimator(CallbackSupportMixin, BaseEstimator):
    """What every estimator of the package shares; fitted state is NumPy on the CPU."""

    def _torch_options(self, X):
        """The device and dtype to compute on, for data ``X``."""
        try:
            device = torch.device("cpu" if self.device is None else self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(
                f"device={self.device!r} cannot be used here: {reason}. Use None or 'cpu' for the "
                "CPU, 'cuda' or 'cuda:1' where torch.cuda.is_available()."
            ) from error
        self._check_choice("dtype", ("float32", "float64", None))
        return device, getattr(torch, self.dtype or X.dtype.name)

    def _draw_seed(self):
        return int(check_random_state(self.random_state).randint(2**31))

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

    def _check_bool(self, name):
        value = getattr(self, name)
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name}={value!r} must be True or False.")

    def _validated(self, X, reset, **options):
        """``X``, and ``y`` where the options have it, by scikit-learn's checks."""
        return validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], **options)

    def _check_rows(self, X, y, sample_weight, reset, **options):
        """Validated ``X``, ``y`` and weights of this rank, some of them positive on some rank."""
        warn_if_alone()

        def checked():
            if n_ranks() > 1 and np.shape(y)[:1] == (0,):
                empty = self._validated(X, reset, ensure_min_samples=0)
                check_consistent_length(empty, y)
                return empty, np.asarray(y), np.zeros(0)
            rows = self._validated(X, reset, y=y, **options)
            return *rows, check_weights(sample_weight, rows[0])

        X, y, weights = together(checked)
        told = {
            f"parameter {name}": value
            for name, value in self.get_params().items()
            if name not in _MAY_DIFFER_BY_RANK
        }
        told |= {"n_features": X.shape[1], "X of dtype": X.dtype.name, "outputs": y.shape[1:]}
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

    def _map_rows(self, function, X):
        """``function`` of tensors (b, d), applied in chunks of rows, as one float64 array."""
        device, dtype = self._torch_options(X)
        with torch.no_grad():
            parts = [
                function(to_tensor(X[i : i + CHUNK_ROWS], device, dtype)).double().cpu().numpy()
                for i in range(0, len(X), CHUNK_ROWS)
            ]
        return np.concatenate(parts)


class TorchClassifier(ClassifierMixin, TorchEstimator):
    """Labels and weights of a classifier."""

    def _check_training_data(self, X, y, sample_weight, *, classes=None, reset=True):
        """`merged_rows` with class codes as targets; sets ``classes_`` where ``reset``."""
        X, y, weights = self._check_rows(X, y, sample_weight, reset)
        together(check_classification_targets, y)
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
            raise ValueError(
                f"y has classes {strangers} that are not among {self.classes_.tolist()}, those of "
                "the first call: give all that may come as its classes."
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
        """
        scores = self.decision_function(X)
        codes = scores.argmax(1) if scores.ndim == 2 else (scores > 0).astype(int)
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
    """Targets and weights of a regressor; targets are centred and scaled where asked for.

    That is by the mean and the deviation of `tamed` targets where noise has heavy tails.
    """

    def _is_heavy_tailed(self):
        return False

    def _check_training_data(self, X, y, sample_weight, *, classes=None, reset=True):
        """`merged_rows` with normalised targets (n, t)."""
        X, y, weights = self._check_rows(
            X, y, sample_weight, reset, multi_output=True, y_numeric=True
        )
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
                    mean, var = self._moments(tamed(targets, weights), average)
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


def merged_rows(X, targets, weights):
    """Rows that are alike made one, their weights summed, and sorted; those of weight 0 left out.

    So a weight is the same as repetition to the last bit, and repeated rows cost nothing. More than
    two million numbers, and with them every large memmap, come back as they are.

    Returns
    -------
    X, targets, weights : ndarray
    origin : ndarray or None
        Which of them each given row has become, -1 for weight 0; None where they are as they were.
    """
    if X.size > _MOST_MERGED:
        return X, targets, weights, None
    used = weights > 0
    X, targets, weights = X[used], targets[used], weights[used]
    values = np.column_stack([X, targets])
    np.nan_to_num(values, copy=False, nan=np.inf)  # no number is, and NaN is not like itself
    _, first, group = np.unique(values, axis=0, return_index=True, return_inverse=True)
    origin = np.full(len(used), -1)
    origin[used] = group.ravel()
    return X[first], targets[first], np.bincount(group.ravel(), weights), origin


def tamed(targets, weights):
    """Targets (n, t), none further from their median than three robust standard deviations.

    The median, and the median deviation from it, are those of all ranks' rows. Where more than a
    fifth are further away these are no gross errors, and the targets stay as they are.
    """
    every, weights = (np.concatenate(parts) for parts in (gather(targets), gather(weights)))
    centre = _median(every, weights)
    away = np.abs(every - centre)
    reach = 3 * _PER_MEDIAN_DEVIATION * _median(away, weights)
    reach[weights @ (away > reach) > _MOST_TAMED * weights.sum()] = np.inf
    reach[reach == 0] = np.inf
    return np.clip(targets, centre - reach, centre + reach)


def _median(values, weights):
    """Weighted median of each column, (t,)."""
    order = np.argsort(values, axis=0)
    totals = np.cumsum(weights[order], axis=0)
    middle = (totals < totals[-1] / 2).sum(0, keepdims=True)
    return np.take_along_axis(values, np.take_along_axis(order, middle, 0), 0)[0]


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


def to_tensor(array, device, dtype=None):
    """Copy of an array of any memory layout."""
    return torch.from_numpy(np.array(array, order="C")).to(device=device, dtype=dtype)


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
