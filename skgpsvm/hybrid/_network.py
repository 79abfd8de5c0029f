"""The hybrid network: a feature extractor, and Gaussian processes on its features."""

import torch
from torch import nn

from .._distributed import differentiable_sum, n_ranks
from .._linalg import upper_root
from .._posteriors import InducingPosterior, Posterior, WhitenedBasis
from ..exceptions import DivergenceError

EXTRACTED_ROWS = 256  # number of rows passed to the extractor at a time in prediction
HEAD = ("theta", "noise", "Z", "mean", "raw_root")  # names of the head's parameters


class Standardize(nn.Module):
    """Layer that subtracts means (d,) from features and divides them by scales (d,)."""

    def __init__(self, mean, scale):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def forward(self, X):
        """Return the standardized features (b, d) of rows (b, d)."""
        return (X - self.mean) / self.scale


class FeatureMap(nn.Module):
    """Extractor of features (b, D) from rows (b, *row_shape), which are checked and normalized.

    In training, features have mean zero and variance one in each batch; afterwards the running
    moments, (D,) at first ``mean`` and ``var``, normalize them. Without normalization, training
    stays on the plateau where all latents are zero. Where ranks share a fit, a batch is the union
    of their rows.
    """

    def __init__(self, extractor, row_shape, mean, var):
        super().__init__()
        self.extractor, self.row_shape = extractor, row_shape
        self.normalizer = nn.BatchNorm1d(len(mean), affine=False).to(mean)
        self.normalizer.running_mean.copy_(mean)
        self.normalizer.running_var.copy_(var)

    def forward(self, X):
        """Return normalized features (b, D) of rows (b, d) or (b, *row_shape)."""
        return self.normalized(self.raw(X))

    def raw(self, X):
        """Return the features of the extractor; it is not called without rows."""
        X = X.to(self.normalizer.running_mean)
        if not len(X):
            return X.new_empty(0, len(self.normalizer.running_mean))
        size = len(X) if self.training else EXTRACTED_ROWS
        raw = [raw_features(self.extractor, chunk, self.row_shape) for chunk in X.split(size)]
        return torch.cat(raw)

    def normalized(self, raw):
        """Return normalized features, and move the running moments in training."""
        if self.training and n_ranks() > 1:
            return self._normalized_over_ranks(raw)
        self.normalizer.train(self.training and len(raw) > 1)
        return self.normalizer(raw)

    def _normalized_over_ranks(self, raw):
        """Normalize by the moments of all ranks' rows, as `BatchNorm1d` does by those of one."""
        normalizer = self.normalizer
        center = normalizer.running_mean.double().clone()
        values = raw.double() - center
        sums = values.new_tensor([len(raw)]), values.sum(0), values.square().sum(0)
        count, first, second = differentiable_sum(*sums)
        n = count.item()
        if n < 2:
            return normalizer.eval()(raw)
        mean = first / n
        var = (second / n - mean.square()).clamp_min(0)
        with torch.no_grad():
            normalizer.num_batches_tracked += 1
            moments = {"running_mean": center + mean, "running_var": var * n / (n - 1)}
            for name, moment in moments.items():
                running = getattr(normalizer, name)
                running.lerp_(moment.to(running), normalizer.momentum)
        return ((values - mean) / (var + normalizer.eps).sqrt()).to(raw)


def raw_features(extractor, X, row_shape):
    """Return the features (b, D) of an extractor, after a check of their shape and values.

    They are in the dtype of ``X``, also where the extractor computes in a lower precision.
    """
    try:
        # The extractor may change its input, which may be a view of the rows.
        features = extractor(X.reshape(len(X), *row_shape).clone())
    except Exception as error:  # the user's module may raise any error; it is raised again below
        error.add_note(
            f"The module raised this for a batch of shape {(len(X), *row_shape)}: rows of X, or "
            "input_shape, must have the shape that the module takes."
        )
        raise
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != len(X):
        result = type(features).__name__
        if isinstance(features, torch.Tensor):
            result = f"a tensor of shape {tuple(features.shape)}"
        raise ValueError(
            f"The module returned {result} for a batch of shape {(len(X), *row_shape)}; it must "
            f"return features of shape ({len(X)}, D), one row for each row of the batch."
        )
    if not torch.isfinite(features).all():
        bad = int((~torch.isfinite(features)).any(1).sum())
        raise DivergenceError(
            f"The module returned NaN or infinite features for {bad} of {len(X)} rows. Look for "
            "NaN in rows of a Dataset, scale the inputs, lower learning_rate, or check its layers."
        )
    return features.to(X.dtype)


def average_buffers(module, before, rows):
    """Average what the ranks' rows have added to buffers, such as moments of `BatchNorm1d`.

    ``before`` is a state dict of the module with the buffers that all ranks had. A rank counts by
    the number of its ``rows``, which moved the buffers.
    """
    buffers, share = dict(module.named_buffers()), len(rows) / rows.n_rows
    names = [name for name in buffers if name in before]
    if rows.n_shards == 1 or not names:
        return
    moves = [share * (buffers[name].double() - before[name].double()) for name in names]
    for name, move in zip(names, rows.sum(*moves), strict=True):
        value = before[name].double() + move
        kind = buffers[name].dtype
        buffers[name].copy_(value if kind.is_floating_point else value.round())


class HybridNetwork(nn.Module):
    """Network whose latents are sparse Gaussian processes on the features of an extractor.

    The kernel is of the normalized features, and ``head`` has tensors by the names of `HEAD`, see
    `InducingPosterior`; ``raw_root`` is the root with logarithms on its diagonal. Source: Wistuba
    and Rawat (2018), section 3.4.
    """

    def __init__(self, features, kernel, head):
        super().__init__()
        self.features, self.kernel = features, kernel
        for name in HEAD:
            self.register_parameter(name, nn.Parameter(head[name].double()))

    def posterior(self):
        """Return the posterior of the latents as functions of the features."""
        basis = WhitenedBasis(self.kernel, self.theta, self.Z)
        return InducingPosterior(basis, self.mean, upper_root(self.raw_root))

    def marginals(self, X):
        """Return means and variances of the latents at rows, (b, c) each."""
        return self.posterior().marginals(self.features(X))


class NetworkPosterior(Posterior):
    """Posterior of a `HybridNetwork` in evaluation mode: its head is factorized once."""

    def __init__(self, network):
        self.network, self._head = network, network.posterior()

    def marginals(self, X):
        return self._head.marginals(self.network.features(X))

    def means(self, X):
        return self._head.means(self.network.features(X))

    def kl(self):
        return self._head.kl()

    def sample(self, X, n_samples, generator):
        return self._head.sample(self.network.features(X), n_samples, generator)

    def cov(self, X):
        return self._head.cov(self.network.features(X))


class Predictor(nn.Module):
    """Differentiable module that maps rows to the predictions of a fitted hybrid network.

    ``output`` maps latent means and variances (b, c) to predictions.
    """

    def __init__(self, network, output):
        super().__init__()
        self.network, self._output = network, output

    def forward(self, X):
        """Return logits (b, n_classes) of class probabilities, or means (b, t) of the targets."""
        return self._output(*self.latents(X))

    def latents(self, X):
        """Return latent means and variances (b, c) at rows (b, d) or (b, *row_shape)."""
        return self.network.marginals(X)


def log_probabilities(probabilities, mean, var):
    """Return logits (b, n_classes) of `ClassProbabilities` at latent means and variances (b, c)."""
    return probabilities.of_moments(mean, var).log_p


def in_units_of_y(shift, scale, mean, var):
    """Return means (b, t) of the targets, given arrays (t,) of their means and deviations."""
    scale, shift = (torch.tensor(part).to(mean) for part in (scale, shift))
    return mean * scale + shift
