"""Initialization: length scales that beat the class frequencies, and a Gaussian-noise posterior."""

from dataclasses import replace

import numpy as np
import torch
from sklearn.gaussian_process.kernels import CompoundKernel

from .._distributed import gather
from .._inference.coordinate_ascent import CoordinateAscent
from .._sites import LikelihoodSites
from ..likelihoods import Gaussian

# Gains of the ELBO over a model of noise alone, nats per row: with the first, length scales are
# short enough; with the second, no other start is needed.
MIN_GAIN, CLEAR_GAIN = 0.02, 0.1
LENGTH_FACTORS = (1.0, 0.5, 0.25, 0.125)
_SWEEPS = 5
FIRST_ROWS = 1000  # on which starts are compared, and medians computed


def scaled_lengths(kernel, factor, of_constants=1.0):
    """Return theta with free length scales and constants multiplied, clipped to their bounds."""
    low, high = kernel.bounds.reshape(-1, 2).T
    change = np.log(factor) * free_lengths(kernel) + np.log(of_constants) * free_constants(kernel)
    return np.clip(kernel.theta + change, low, high)


def free_lengths(kernel):
    """Return 1 for each entry of theta that is a length scale, else 0."""
    return _free(kernel, "length_scale")


def lengths_by_feature(kernel, d):
    """Return the places in theta of free length scales by feature, (k, d), for k kernels in a sum.

    A kernel whose length scale is that of all features has no row, unless there is one feature.
    """
    free = [h for h in kernel.hyperparameters if not h.fixed]
    ends = np.cumsum([h.n_elements for h in free], dtype=int)
    places = [
        np.arange(end - d, end)
        for h, end in zip(free, ends, strict=True)
        if h.name.endswith("length_scale") and h.n_elements == d
    ]
    return np.array(places, dtype=int).reshape(-1, d)


def free_constants(kernel):
    """Return 1 for each entry of theta that is a constant, such as a variance, else 0."""
    return _free(kernel, "constant_value")


def free_periods(kernel):
    """Return 1 for each entry of theta that is a period, else 0."""
    return _free(kernel, "periodicity")


def _free(kernel, name):
    free = [h for h in kernel.hyperparameters if not h.fixed]
    matches = [h.name.endswith(name) for h in free for _ in range(h.n_elements)]
    return np.array(matches, float)


def median_scales(rows, scaler, random_state):
    """Return the median distance of standardized rows, in units of each feature, (d,)."""
    X = rows.subset(FIRST_ROWS, random_state).take(slice(None))[0].double().cpu()
    X = torch.unique(X, dim=0) / torch.as_tensor(scaler.scale_)
    distance = torch.pdist(X).median().item() if len(X) > 1 else 1.0
    return (distance or 1.0) * scaler.scale_


def with_lengths(start, factor, of_constants=1.0):
    """Return a start with the kernel's free length scales, and constants, multiplied."""
    theta = scaled_lengths(start.kernel, factor, of_constants)
    return replace(start, kernel=start.kernel.clone_with_theta(theta))


def shrink_length_scales(sparse, start):
    """Shrink the initial length scales until the ELBO beats the class frequencies.

    The ELBO is that of a few sweeps with the hyperparameters held. If the function varies over
    shorter distances than the length scales, learning would end at a model of noise alone. Returns
    the start, unchanged if no shorter length scales explain more or none are free, and whether its
    ELBO is clearly higher.
    """
    if not free_lengths(start.kernel).any():
        return start, False
    some = sparse.on_few(FIRST_ROWS).rows
    baseline, n = log_density_of_frequencies(some)
    for factor in LENGTH_FACTORS:
        scaled = with_lengths(start, factor)
        value = _elbo_of_sweeps(scaled, sparse.likelihood, some, baseline + CLEAR_GAIN * n)
        gain = (value - baseline) / n
        if gain > MIN_GAIN:
            return scaled, bool(gain > CLEAR_GAIN)
    return start, False


def log_density_of_frequencies(rows):
    """Return the log density of labels given the class frequencies, nats, and the total weight."""
    # A rank may lack the last classes.
    n_classes = max(gather(int(rows.targets.max()) + 1 if len(rows) else 0))
    counts = rows.class_counts(n_classes)
    n = counts.sum()
    return torch.xlogy(counts, counts / n).sum(), n


def _elbo_of_sweeps(start, sites, rows, enough):
    """Return the ELBO after a few sweeps, or as soon as it exceeds a value, nats."""
    ascent = CoordinateAscent(sites, start.basis(rows.device), rows)
    state = ascent.init()
    for _ in range(_SWEEPS):
        ascent.natural_sweep(state)
        value = ascent.elbo(state)
        if value > enough:
            break
    return value


def at_gaussian_posterior(start, variance, rows):
    """Return a start with the posterior under Gaussian noise of variance (t,) or (1,)."""
    n_outputs = rows.targets.shape[1]
    sites = LikelihoodSites(Gaussian(variance.cpu()), n_outputs).at(variance.log())
    ascent = CoordinateAscent(sites, start.basis(rows.device), rows)
    state = ascent.init(noise=start.state(rows.device)["noise"])
    ascent.sweep(state)
    return start.at(state)


def at_points(model, Z, likelihood, rows):
    """Return a model at other inducing points, with the posterior that its sites have there."""
    if Z is model.Z:
        return model
    state = model.state(rows.device)
    at_noise = likelihood.at(state["noise"])
    ascent = CoordinateAscent(at_noise, model.basis(rows.device), rows)
    sites = ascent.sites(ascent.init(state["mean"], state["root"], state["noise"]))
    moved = replace(model, Z=Z, mean=None, root=None)
    found = CoordinateAscent(at_noise, moved.basis(rows.device), rows).posterior_of(*sites)
    return moved.at(replace(found, noise=state["noise"]))


def with_constant_noise(start, kernel):
    """Return a start for noise that varies, at a posterior of the means with noise that does not.

    The posterior of the log noise variances, with the given kernel, is their prior.
    """
    mean, eye = np.zeros_like(start.mean), np.eye(start.mean.shape[1])
    return replace(
        start,
        kernel=CompoundKernel([start.kernel, kernel]),
        mean=np.concatenate([start.mean, mean]),
        root=np.concatenate([start.root, *[eye[None]] * len(mean)]),
    )
