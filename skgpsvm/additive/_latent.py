"""Fitted latent functions of additive models, and the doubts about them."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from .._doubts import bounds_message, described_end
from .._fitted_models import FittedModel
from ._basis import AdditiveBasis
from ._exact import ExactPosterior
from ._posterior import AdditivePosterior
from ._row_prior import RowPrior

LENGTH_BOUNDS = (0.05, 10.0)  # default of the estimators


@dataclass
class AdditiveLatent(FittedModel):
    """Fitted latent function: its basis, hyperparameters, and the arrays of its posterior."""

    basis: AdditiveBasis
    theta: dict  # logarithms of ``length`` and ``variance``
    arrays: dict  # arguments of `AdditivePosterior` or `ExactPosterior`
    form: tuple | None  # covariance and rank of the posterior; None without inducing points
    # Whether the effects are on the mean of y, and have to satisfy constraints; not on its noise
    is_mean: bool = True
    n_latents = 1

    def at(self, posterior):
        """Return a copy with the arrays of a posterior, whose effects satisfy their constraints."""
        if self.basis.constrained and self.is_mean:
            posterior = posterior.constrained()
        arrays = {name: part.cpu().numpy() for name, part in posterior.arrays.items()}
        return replace(self, arrays=arrays)

    def make_posterior(self, device):
        theta, arrays = (
            {name: torch.tensor(part, device=device) for name, part in parts.items()}
            for parts in (self.theta, self.arrays)
        )
        if self.form is None:
            return ExactPosterior(RowPrior(self.basis, theta, arrays.pop("u")), **arrays)
        gram, cross = arrays.pop("gram"), arrays.pop("cross")
        return AdditivePosterior(self.basis.at(theta), gram, cross, *self.form, **arrays)


def fitted_latents(ascent, state):
    """Return the `AdditiveLatent` of each latent at the state of an `AdditiveAscent`."""
    # Moments under uniform measures need polynomials.
    tabled = {j: own for j, own in ascent.basis.tabled.items() if own is not None}
    basis, latents = replace(ascent.basis, tabled=tabled), []
    pairs = zip(ascent.latents(state), ascent.posteriors(state), strict=True)
    for j, (own, posterior) in enumerate(pairs):
        theta = {kind: own[kind].cpu().numpy() for kind in ("length", "variance")}
        latent = AdditiveLatent(basis, theta, {}, posterior.form, j < ascent.n_means)
        latents.append(latent.at(posterior))
    return latents


def update_state(ascent, latents, noise):
    """Return the state from which an ascent adds its rows to fitted latents.

    ``noise`` (k,) has the logarithms of the likelihood's parameters.
    """
    like = ascent.rows.weights
    length, variance = (
        like.new_tensor(np.stack([part.theta[kind] for part in latents]))
        for kind in ("length", "variance")
    )
    earlier = [
        [like.new_tensor(part.arrays[name]) for name in ("gram", "cross")] for part in latents
    ]
    return ascent.init_update(length, variance, like.new_tensor(noise), earlier)


def doubts_of_bounds(estimator, latents, bounds, names):
    """Return a message, in a list, if length scales ended on the user's bounds; else []."""
    on_bounds = []
    for latent in latents:
        lengths = zip(latent.basis.start()["length"], latent.theta["length"], strict=True)
        for key, length in lengths:
            if end := described_end(math.exp(length), bounds, LENGTH_BOUNDS):
                on_bounds.append(f"the length scale of {names.length_scale(*key)} {end}")
    on_bounds = list(dict.fromkeys(on_bounds))  # several latents may have the same
    return [bounds_message(estimator, on_bounds)] if on_bounds else []
