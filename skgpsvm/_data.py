"""Training rows: weighted tensors in chunks, and sharing between ranks."""

import math
from copy import copy

import numpy as np
import torch

from ._csr import CSRRows, array_of
from ._distributed import all_sum, gather, n_ranks, rank
from ._memory import CHUNK_ROWS, HELD_BYTES, LARGE_BLOCK, block_rows
from ._merging import merged_rows
from ._robust import winsorized
from ._rows import Rows
from ._transfers import to_device

_MIN_ROWS = 256  # of a chunk, however many features they have
# Weights of a larger mean are scaled where additive models and hybrid networks learn. That of
# bootstrap samples is below.
_MAX_MEAN_WEIGHT = 2.0
_LIGHT = 0.02  # share of the mean weight from which on a row counts fully in `with_even_weights`
_MAX_WEIGHT = 1.1  # rows are considered repeated if sum(w**2) / sum(w) is larger
# Rows recur by themselves if each feature has fewer values than this, or more units of weight for
# each of them.
_UNITS_PER_VALUE, _FEW_VALUES = 10, 10
_MAX_UNITS = 100  # maximum number of units into which a row's weight is divided
_ROUNDING = 1e-6  # a smaller excess over whole units is a rounding error


class WeightedDataset:
    """Training rows of positive weight as tensors, in chunks that bound the memory.

    X (n, d), an array, `Rows` or `CSRRows`, is moved to the device as a whole if it takes at most
    256 MiB, else chunk by chunk. Chunks of `CSRRows` are sparse tensors. Targets are codes (n,),
    floats (n,) or (n, t), or pairs (n, t, 2) of a float and the known variance of its noise.
    ``origin`` is the index returned by `merged_rows`. ``shared`` says whether the rows are shared
    between the ranks, each with its own part. If not, every rank has the same rows. ``count_rows``
    says whether weights are numbers of copies. Otherwise, they may be exposures in any unit.

    ``n_rows`` and ``total_weight`` are of the rows of all ranks; ``len`` is the number of rows of
    this rank.
    """

    def __init__(
        self, X, targets, weights, device, dtype, *, origin=None, shared=True, count_rows=True
    ):
        self.device, self.dtype, self._shared = device, dtype, shared
        self._count_rows = count_rows
        self._kept, self._origin = None, origin
        if not (weights > 0).all():  # merged rows have no weight of 0
            self._kept = np.flatnonzero(weights)
            self._origin = np.full(len(X), -1)
            self._origin[self._kept] = np.arange(len(self._kept))
            targets, weights = targets[self._kept], weights[self._kept]
        floats = np.issubdtype(targets.dtype, np.floating)
        self.targets = self._tensor(targets, dtype if floats else None)
        self.weights = self._unscaled = self._tensor(weights, dtype)
        self.total_weight = self.sum(self.weights.sum())[0].item()
        if not 0 < self.total_weight < torch.finfo(dtype).max ** 0.5:
            name = str(dtype).removeprefix("torch.")
            raise ValueError(
                f"Row weights of up to {weights.max(initial=0)}, or their squares, do not fit in "
                f"{name}: scale them, or use dtype='float64'."
            )
        self._count()
        self.X = X if isinstance(X, Rows | CSRRows) else Rows(X)
        self._hold()
        self._observations = None  # (n,); None until they are asked for

    def __len__(self):
        return len(self.targets)

    @property
    def tolerance_scale(self):
        """Factor of tolerances per row: the total weight, or the number of rows of any weight."""
        return self.total_weight if self._count_rows else self.n_rows

    def _hold(self):
        """Move the rows to the device if they take at most 256 MiB, and are not sparse."""
        n, d = len(self), self.X.shape[1]
        if isinstance(self.X, Rows) and n * d * self.dtype.itemsize <= HELD_BYTES:
            held = torch.empty(n, d, dtype=self.dtype, device=self.device)
            for index in self.chunks():
                held[index] = self.take(index)[0]
            self.X, self._kept = held, None

    def _count(self):
        """Set the number of rows of all ranks, and of those before this rank's."""
        counts = self._gathered(len(self))
        self.n_rows, self._offset = sum(counts), sum(counts[: rank() if self._shared else 0])

    def _tensor(self, array, dtype=None):
        return to_tensor(array, self.device, dtype)

    def take(self, index):
        """Return X (b, d), targets (b,) and weights (b,) at a slice or an index tensor."""
        at = index if isinstance(index, slice) else to_device(index, self.device)
        targets, weights = self.targets[at], self.weights[at]
        if isinstance(self.X, torch.Tensor):
            return self.X[at], targets, weights
        source = index if isinstance(index, slice) else index.cpu().numpy()
        source = source if self._kept is None else self._kept[source]
        return self._tensor(self.X[source], self.dtype), targets, weights

    def _gathered(self, value):
        """Return the values of the ranks that share the rows, a list."""
        return gather(value) if self._shared else [value]

    def sum(self, *tensors):
        """Return sums over the ranks that share the rows."""
        return all_sum(*tensors) if self._shared else tensors

    def class_counts(self, n_classes):
        """Return the total weights of the classes over all ranks, a tensor (n_classes,)."""
        (counts,) = self.sum(torch.bincount(self.targets, self.weights.double(), n_classes))
        return counts

    @property
    def n_shards(self):
        """Number of parts of the rows: one for each rank that shares them."""
        return n_ranks() if self._shared else 1

    @property
    def shard(self):
        """Number of this rank's part, and number of parts."""
        return rank() if self._shared else 0, self.n_shards

    def minibatches(self, batch_size, generator, *, repeat=True):
        """Return the rows of each minibatch of a shuffled pass, as index tensors.

        A minibatch has about ``batch_size`` rows, of which each rank has its share. A rank with
        fewer rows than there are minibatches repeats them; one without rows has empty tensors.
        Without ``repeat`` no row is repeated, and a rank with few rows has empty tensors. The
        generator is in the same state on all ranks, before and after. The tensors are where X is.
        """
        n, n_batches = len(self), math.ceil(self.n_rows / batch_size)
        own = self.own_generator(generator)
        if isinstance(self.X, Rows):
            order = self.X.shuffled(self._kept, own)
        else:
            order = torch.randperm(n, generator=own)
        if isinstance(self.X, torch.Tensor):
            order = to_device(order, self.device)  # once for all minibatches
        if repeat and 0 < n < n_batches:
            order = order.repeat(math.ceil(n_batches / n))[:n_batches]
        return order.tensor_split(n_batches)

    def own_generator(self, generator):
        """Return a generator of numbers that only this rank draws; without ranks the given one.

        The given one is in the same state on all ranks, before and after.
        """
        if self.n_shards == 1:
            return generator
        seed = torch.randint(2**31, (), generator=generator).item()
        return torch.Generator().manual_seed(seed + rank())

    def scale_of(self, index):
        """Return how many of this rank's rows each row of a minibatch stands for."""
        return len(self) / max(len(index), 1)

    def are_repeated(self):
        """Return whether the weighted mean of the weights exceeds 1.1, as for repeated rows.

        Repeated rows have no scatter, so that the exact evidence is largest without noise.
        """
        (squares,) = self.sum(self.weights.double().square().sum())
        return squares.item() > _MAX_WEIGHT * self.total_weight

    def with_moderate_weights(self):
        """Return these rows with weights scaled to a mean of one if their mean is above two.

        Copies of a row have no scatter, so that the evidence would favor too little noise. The
        weights are not scaled where there is `_scatter_in_copies`.
        """
        moderate = self.total_weight / self.n_rows <= _MAX_MEAN_WEIGHT
        return self if moderate or self._scatter_in_copies() else self.with_mean_weight_one()

    def with_even_weights(self):
        r"""Return these rows with equal weights, of a mean of at most one, to learn kernels from.

        The evidence takes a row of weight w for w rows that agree. Given residuals r and leverages
        h, it is highest at the noise

        .. math:: \sigma^2 = \sum_i w_i r_i^2 \Big/ \sum_i (w_i - h_i).

        If all rows have the same noise, whatever their weights, :math:`\sum_i w_i r_i^2` is
        :math:`\sigma^2 \sum_i w_i (1 - h_i)` on average (exactly so in weighted least squares). As
        heavy rows have large leverages, the estimate is too small, which makes these leverages
        larger still, until the function follows the heavy rows. Functions of classes likewise
        become large and rough.

        Rows of less than a fiftieth of the mean weight count in proportion to their weight, so
        that a weight of zero is the limit of small ones. Weights remain as they are where there is
        `_scatter_in_copies`. Exposures, which are not numbers of copies, are treated by
        `with_moderate_weights`.
        """
        if not self._count_rows:
            return self.with_moderate_weights()
        least = _LIGHT * self.total_weight / self.n_rows
        even = (self.weights / least).clamp_max(1.0)
        (n_even,) = self.sum(even.sum())
        even = even * min(self.total_weight / n_even.item(), 1.0)
        (n_changed,) = self.sum((even != self.weights).sum())
        if not n_changed or self._scatter_in_copies():
            return self
        return self._scaled(even / self.weights)

    def _scatter_in_copies(self):
        """Return whether most of the weight is on rows that others equal but for the target.

        Their weights then are numbers of observations that do scatter, such as ratings of items.
        """
        (scattered,) = self.sum(self.weights[self._have_others()].sum())
        return 2 * scattered.item() > self.total_weight

    def with_mean_weight_one(self):
        """Return these rows with weights that are scaled to a mean of one."""
        return self._scaled(self.n_rows / self.total_weight)

    def with_inputs(self, X):
        """Return these rows with other X, a tensor (n, k) of their dtype, on their device."""
        part = copy(self)
        part.X, part._kept = X, None
        return part

    def _scaled(self, factors):
        """Return these rows with weights multiplied by factors, of as many `observations`."""
        part = copy(self)
        part.weights = self.weights * factors
        part.total_weight = part.sum(part.weights.sum())[0].item()
        return part

    def _have_others(self):
        """Return for each row whether others differ from it in the target only, (n,)."""
        if not isinstance(self.X, torch.Tensor):
            return torch.zeros_like(self.weights, dtype=torch.bool)
        X = self.X.nan_to_num(nan=torch.inf)  # X has no infinity
        _, group, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
        return counts[group] > 1

    def _rows_recur(self):
        """Return whether rows recur by themselves, as each feature has few values for its weight.

        Rows of an array that is not held are taken not to do so.
        """
        if not all(self._gathered(isinstance(self.X, torch.Tensor))):
            return False
        enough = max(self.total_weight / _UNITS_PER_VALUE, _FEW_VALUES)
        return all(self._n_values(column) < enough for column in self.X.T)

    def _n_values(self, column):
        """Return the number of distinct values of a feature (n,) over all ranks' rows."""
        return len(np.unique(np.concatenate(self._gathered(column.unique().cpu().numpy()))))

    @property
    def observations(self):
        """Numbers of observations (n,), each of which is left out of predictions of itself.

        Copies of a row, or units of its weight, say the same. They are one observation, as each
        would predict the others. But where all features have few values, such as categories, rows
        recur by themselves. There, and where others differ from a row in the target only, weights
        above one are numbers of observations. Factors that scale weights do not change them. All
        ranks must ask for them at once.
        """
        if self._observations is None:
            counts = self._unscaled.clamp_min(1)
            if self.sum((counts > 1).sum())[0] and not self._rows_recur():
                counts = torch.where(self._have_others(), counts, 1)
            self._observations = counts
        return self._observations

    @property
    def left_out_weights(self):
        """Weights (n,) of one of the `observations` of each row."""
        return self.weights / self.observations

    @property
    def n_observations(self):
        """Number of observations of all ranks, rounded."""
        return round(self.sum(self.observations.double().sum())[0].item())

    def spaced(self, max_rows):
        """Return an index (k,) of at most ``max_rows`` equally spaced ones of all ranks' rows."""
        return evenly_spaced(self.n_rows, max_rows)

    def drawn(self, max_rows, random_state):
        """Return a sorted index (k,) of at most ``max_rows`` random ones of all ranks' rows."""
        index = np.arange(self.n_rows)
        if len(index) > max_rows:
            index = np.sort(random_state.choice(index, max_rows, replace=False))
        return torch.as_tensor(index, device=self.device)

    def own(self, index):
        """Return this rank's rows among those at an index (k,) into all ranks' rows."""
        index = index - self._offset
        return index[(index >= 0) & (index < len(self))]

    def own_part(self, values):
        """Return the values (n, ...) of this rank's rows, given those of all ranks' rows."""
        return values[self._offset : self._offset + len(self)]

    def collect(self, *tensors):
        """Return the tensors of all ranks that share the rows, concatenated by row."""
        if self.n_shards == 1:
            return tensors
        ranks = gather([tensor.cpu() for tensor in tensors])
        return tuple(_concatenated(parts).to(self.device) for parts in zip(*ranks, strict=True))

    def inputs(self, index):
        """Return X (k, d), on every rank, at an index (k,) into all ranks' rows.

        The rows of the first rank come first. Otherwise, they are in the order of the index.
        """
        return self.collect(self.take(self.own(index))[0])[0]

    def points(self, index):
        """Return the `inputs` at an index, in float64."""
        return self.inputs(index).double()

    def gathered(self):
        """Return the rows of all ranks on every rank; equal rows are merged."""
        return self if self.n_shards == 1 else self._collected(np.ones(self.n_rows))

    def _collected(self, share):
        """Return all ranks' rows on every rank, with this share (n,) of their weights."""
        index = share.nonzero()[0]
        own = self.own(torch.as_tensor(index))
        unscaled = self._unscaled[to_device(own, self.device)]
        tensors = self.collect(*self.take(own), unscaled)
        X, targets, weights, unscaled = map(array_of, tensors)
        share = share[index].astype(weights.dtype)
        weights, unscaled = weights * share, unscaled * share
        if n_ranks() > 1:
            X, targets, weights, origin = merged_rows(X, targets, weights)
            unscaled = unscaled if origin is None else np.bincount(origin, unscaled)
        part = WeightedDataset(
            X,
            targets,
            weights,
            self.device,
            self.dtype,
            shared=False,
            count_rows=self._count_rows,
        )
        part._unscaled = part._tensor(unscaled, self.dtype)
        return part

    def unmerged(self, values):
        """Return values (n, ...) of these rows at the rows the user passed; NaN for weight 0."""
        if self._origin is None:
            return values
        origin = torch.as_tensor(self._origin, device=values.device)
        absent = values.new_full((1, *values.shape[1:]), torch.nan)
        return torch.cat([values, absent])[origin]

    def chunks(self, size=None):
        """Return slices of ``size`` rows, at most ``CHUNK_ROWS``, that cover all rows in order."""
        size = min(size or CHUNK_ROWS, CHUNK_ROWS)
        return [slice(i, i + size) for i in range(0, max(len(self), 1), size)]

    def passes(self, basis, size=None):
        """Return a function that iterates over all rows in chunks, each time it is called.

        It yields X, targets, weights, features and residual variances of each chunk, of ``size``
        rows if given. If features and residual variances take at most 256 MiB, they are kept for
        the next pass.
        """
        held, fits = {}, len(self) * basis.size * self.dtype.itemsize <= HELD_BYTES

        def chunks():
            for index in self.chunks(size):
                X, targets, weights = self.take(index)
                found = held.get(index.start) or basis(X)
                if fits:
                    held[index.start] = found
                yield X, targets, weights, *found

        return chunks

    def units(self):
        """Return, for each unit of weight, the index of its row among all ranks' rows.

        The number of units of a row is the ratio of its weight to the mean weight, or the number of
        its `observations` if there are more, rounded up. Subsets draw units, not rows, so that a
        weight is equivalent to repetition. Factors that scale weights do not change them.
        """
        weights = self._unscaled.double()
        relative = weights * (self.n_rows / self.sum(weights.sum())[0])
        return self._repeated(torch.maximum(relative, self.observations.double()))

    def observed(self):
        """Return, for each of the `observations`, the index of its row among all ranks' rows.

        Copies of a row are one observation here. `units` divide them if they are of large weight.
        """
        return self._repeated(self.observations)

    def _repeated(self, numbers):
        """Return the indices of all ranks' rows, repeated by numbers (n,), which are rounded up.

        Before, the numbers are scaled to a maximum of 100 if one of them is larger.
        """
        (numbers,) = self.collect(numbers.double())
        numbers = numbers / max(1.0, numbers.max().item() / _MAX_UNITS)
        numbers = (numbers - _ROUNDING).ceil().clamp_min(1).long().cpu().numpy()
        return np.repeat(np.arange(self.n_rows), numbers)

    def of_units(self, units, chosen):
        """Return the rows, weighted by the share of their units in the array `chosen`."""
        share = shares(units, chosen)
        index = share.nonzero()[0]
        return self.part(index, share[index])

    def divided(self, units, chosen):
        """Return the rows of the other units and the rows of the units at the index `chosen`."""
        share = shares(units, chosen)
        index, others = share.nonzero()[0], (share < 1).nonzero()[0]
        return self.part(others, 1 - share[others]), self.part(index, share[index])

    def part(self, index, share=1.0):
        """Return the rows at an index array into all ranks' rows.

        Their weights are multiplied by `share`, a float or an array as long as the index. The index
        must be sorted if the rows are read in blocks, see `Rows.shuffled`.
        """
        part, index = copy(self), np.asarray(index)
        if self.n_shards > 1:
            index = index - self._offset
            is_own = (index >= 0) & (index < len(self))
            index, share = index[is_own], np.broadcast_to(share, index.shape)[is_own]
        at = torch.as_tensor(index, device=self.device)
        part.targets = self.targets[at]
        share = torch.as_tensor(share).to(self.weights)  # to the device and dtype of the weights
        part.weights, part._unscaled = self.weights[at] * share, self._unscaled[at] * share
        part.total_weight = part.sum(part.weights.sum())[0].item()
        part._observations = (self.observations[at] * share).clamp_min(1)
        part._origin = None
        part._count()
        if isinstance(self.X, torch.Tensor):
            part.X = self.X[at]
        else:
            part._kept = index if self._kept is None else self._kept[index]
            part._hold()
        return part

    def winsorized(self):
        arrays = self.targets.cpu().numpy(), self.weights.cpu().numpy()
        return self.with_targets(self._tensor(winsorized(*arrays)))

    def with_targets(self, targets):
        """Return these rows with other targets, a tensor (n, ...)."""
        part = copy(self)
        part.targets = targets
        return part

    def subset(self, max_rows, random_state, *, by_class=False):
        """Draw at most ``max_rows`` of all ranks' rows: units of weight, without replacement.

        All units are drawn with equal probability. With ``by_class``, for targets that are class
        codes, equally many are drawn of each class, or all of a smaller class, and their weights
        are scaled to the total weight of the class.
        """
        if self.n_rows <= max_rows:
            return self if n_ranks() == 1 else self._collected(np.ones(self.n_rows))
        units = self.units()
        if not by_class:
            drawn = random_state.choice(len(units), max_rows, replace=False)
            return self._collected(shares(units, drawn))
        part = self._collected(shares(units, self._drawn_by_class(units, max_rows, random_state)))
        n_classes = int(part.targets.max()) + 1
        factors = self.class_counts(n_classes) / part.class_counts(n_classes)
        return part._scaled(factors[part.targets].to(self.dtype))

    def _drawn_by_class(self, units, max_rows, random_state):
        """Return an index into units, of which equally many are drawn of each class."""
        (targets,) = self.collect(self.targets)
        order = random_state.permutation(len(units))
        codes = targets.cpu().numpy()[units[order]]
        order, sizes = order[np.argsort(codes, kind="stable")], np.bincount(codes)
        # Find the maximum number drawn per class: small classes leave more to the others.
        left = max_rows
        for i, size in enumerate(np.sort(sizes)):
            max_drawn = left // (len(sizes) - i)
            if size > max_drawn:
                break
            left -= size
        first = np.cumsum(sizes) - sizes
        drawn = np.minimum(sizes, max(max_drawn, 1))
        return np.concatenate([order[i : i + n] for i, n in zip(first, drawn, strict=True)])


def evenly_spaced(n, max_rows):
    """Return an index (k,) of at most so many of n rows, which are evenly spaced."""
    return torch.linspace(0, n - 1, min(n, max_rows), dtype=torch.float64).round().long()


def chunk_rows(X):
    """Return the number of rows to hold at a time, fewer if they are dense and long."""
    if isinstance(X, CSRRows):
        return CHUNK_ROWS
    return min(CHUNK_ROWS, block_rows(X.shape[1], LARGE_BLOCK, _MIN_ROWS))


def _concatenated(parts):
    """Return tensors of rows as one; a sparse one if any of them is sparse."""
    if any(part.is_sparse for part in parts):
        return torch.cat([part.to_sparse() for part in parts]).coalesce()
    return torch.cat(parts)


def shares(units, chosen):
    """Return the share (n,) of each row's units that the index array `chosen` selects."""
    total = np.bincount(units)
    return np.bincount(units[chosen], minlength=len(total)) / total


def to_tensor(array, device, dtype=None):
    """Return a tensor copy of an array of any memory layout, a sparse one of `CSRRows`."""
    if isinstance(array, CSRRows):
        return to_device(array.tensor(), device, dtype)
    return to_device(torch.from_numpy(np.array(array, order="C")), device, dtype)
