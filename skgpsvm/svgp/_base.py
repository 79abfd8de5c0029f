"""What the sparse variational GP's regressor and classifier share."""

import numpy as np
from sklearn.base import clone

from .._distributed import n_ranks
from .._inducing_estimator import InducingEstimator, smooth_kernel, with_mean
from .._inference import NaturalGradientInference

_ALL_ROWS, _MINIBATCH = 10_000, 1024  # rows up to which all are a batch, and else its size


class SVGP(InducingEstimator):
    """Kernel with a mean function; the evidence bound is what is found out about a posterior."""

    _ascents = NaturalGradientInference
    _start_variance = 1.0
    _mean_variance = 100.0  # of coefficients of a mean function: vague beside the latents

    def _check_svgp_parameters(self):
        self._check_choice("mean", ("zero", "constant", "linear"))
        self._check_choice("optimizer", ("auto", None))
        self._check_inducing_parameters()

    def _optimizer(self):
        return None if self.optimizer is None else "adam"

    def _start_kernel(self, scaler):
        if self.kernel is None:
            kernel = smooth_kernel(scaler, self._start_variance)
        else:
            kernel = clone(self.kernel)
        return with_mean(kernel, self.mean, scaler, self._mean_variance)

    def _batch_size(self, start, rows):
        by_batches = self.inference != "gradient" and n_ranks() == 1
        if self.batch_size is None and by_batches and rows.n_rows > _ALL_ROWS:
            return _MINIBATCH
        return self.batch_size

    def _findings(self, ascent, state):
        return ascent.objective(state)

    def _attributes(self, latents, bounds, streamed=False):
        earlier = self.elbo_ if streamed else 0.0
        return {
            **self._latents_attributes(latents),
            "elbo_": earlier + bounds[0],
            "_likelihood": self.likelihood,
        }

    def _problems(self, targets, previous):
        if previous and self._likelihood != self.likelihood:
            raise ValueError(
                f"The model to continue was fitted with another likelihood than "
                f"{self.likelihood!r}: set it back, or start anew by fit without warm_start."
            )
        return [targets]


def scaled_lengths(kernel, factor):
    """Theta of a kernel with its free length scales multiplied, within their bounds."""
    free = [h for h in kernel.hyperparameters if not h.fixed]
    lengths = [h.name.endswith("length_scale") for h in free for _ in range(h.n_elements)]
    return np.clip(kernel.theta + np.log(factor) * np.array(lengths, float), *kernel.bounds.T)
