"""Variational GPs: a mean function in the kernel, a prior of the default kernel, and the ELBO."""

import math
from dataclasses import replace
from functools import cache, partial

import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import CompoundKernel

from ._collapsed import Hyperparameters, evidence_or_bound
from ._csr import CSRRows
from ._families import FAMILIES
from ._hyperparameters.collapsed_search import CollapsedSearch
from ._hyperparameters.default_kernels import (
    ROUGHER,
    linear_kernel,
    rougher_kernels,
    smooth_kernel,
    with_learned_mean,
    with_mean,
)
from ._hyperparameters.initialization import (
    at_gaussian_posterior,
    free_constants,
    scaled_lengths,
    with_constant_noise,
    with_lengths,
)
from ._hyperparameters.priors import JointPrior, SignalPrior, default_prior
from ._inference.elbo_learning import DifferentiableAscent
from ._inference.leave_one_out import leave_one_out
from ._inference.natural_gradient import NaturalGradientInference
from ._noise import GivenNoise, RegressionNoise, noise_entries
from ._optim import PARAMETER_BOUNDS
from ._parameters import where
from ._predictive import LeftOut, Summary, at_frequencies
from ._sparse import SparseProblem, check_optimizer, check_sparse_parameters, sparse_attributes
from ._targets import LIKELIHOODS
from ._torch_kernels import latent_kernels, torch_kernel

MEANS = ("zero", "constant", "linear")
MEAN_VARIANCE = 5.0  # of the mean function's coefficients, vague compared to the latents
# Lower bounds of the dispersion: of amounts, relative to that which noise of their link implies,
# and of counts, where it adds so much to the variance at the mean of y.
_MIN_SHARE_OF_AMOUNTS, _MIN_SHARE_OF_COUNTS = 0.5, 0.05
# Variance of noise of links, and the dispersion of amounts, are not lower, as where all amounts are
# equal: the prior variance of the mean is 10^10 times as large, of the 10^15 of float64.
_MIN_VARIANCE_OF_LINKS = 1e-8
# `MEAN_VARIANCE` where y is not normalized, and the latents are its link
_MEAN_VARIANCE_OF_LINKS = 100.0
# Where that of a linear function starts if it is learned. From vague slopes, the ascent of several
# latent functions ends at a linear model.
_FIRST_TREND = 1.5
CLASS_VARIANCE = 5.0  # initial prior variance of a classifier's latent functions
# Factor of the prior variance of the log noise variance at the second start: 0.01 with the default
# kernel, a standard deviation of 5 % of the noise.
_LITTLE_NOISE = 0.01
CLASSIFIER_LIKELIHOODS = ("softmax", "probit", "robust_max")
LEARNED = where(optimizer="auto") | where(optimizer=None, learn_inducing=True)
natural_sweep = NaturalGradientInference.sweep


def check_variational_parameters(estimator, *, means=MEANS, takes_function=False, **options):
    """Refuse wrong values of the parameters that all variational GPs have.

    Options are those of `check_sparse_parameters`; ``takes_function`` is that of `check_optimizer`.
    """
    estimator._check_choice("mean", means)
    check_optimizer(estimator, takes_function)
    check_sparse_parameters(estimator, **options)


def check_regression_parameters(estimator, likelihoods=tuple(LIKELIHOODS)):
    """Refuse wrong values of the parameters that regressors have besides."""
    estimator._check_choice("likelihood", likelihoods)
    estimator._check_bool("normalize_y")
    check_noise(estimator)


def check_noise(estimator):
    """Refuse an invalid ``noise_variance``, and one beside a `WhiteKernel`."""
    estimator._check_number("noise_variance", 0, besides=(None,), above=True)
    if estimator._given_noise is not None and estimator.noise_variance is not None:
        raise ValueError(
            f"noise_variance={estimator.noise_variance!r} and the WhiteKernel of "
            f"kernel={estimator.kernel!r} both set the noise. Leave one of them out."
        )


def regression_problem(
    estimator, problem, mean, *, kernel=None, rougher=(), mean_variance=MEAN_VARIANCE
):
    """Return the `SparseProblem` of a regression, with the estimator's kernel or another.

    Mean None is a constant, to which a choice may add a linear function. ``rougher`` has the
    smoothness of Matern kernels that may replace the default kernel. If there are any, a linear
    mean function may be added where dense rows are fewer than features.
    """
    scaler = problem.scaler
    kernel = initial_kernel(estimator, scaler, 1.0) if kernel is None else clone(kernel)
    kernel = with_mean(kernel, mean or "constant", scaler, mean_variance)
    prior = partial(default_prior, kernel, scale=scaler.scale_)
    alternatives = (rougher_kernels(rougher),) if rougher else ()
    few = problem.rows.n_rows < problem.X.shape[1] and not isinstance(problem.X, CSRRows)
    if rougher and mean is None and few:
        linear = linear_kernel(scaler, mean_variance)
        alternatives += ({"linear": lambda kernel: kernel + linear},)
    return _sparse_problem(estimator, problem, kernel, prior, alternatives)


def varying_noise_problem(estimator, problem, mean, n_inducing, jitter):
    """Return the `SparseProblem` of a regression whose noise varies, and a list of starts.

    A cold fit starts where the noise is constant: at the kernel, noise variance and posterior of
    few rows. The log noise variance has a kernel of its own, with the mean's initial values unless
    the estimator's kernel is a `CompoundKernel` of both. Its mean is a parameter of the likelihood.
    A second start has noise that hardly varies: from one alone, an ascent may end at noise that
    varies too much, or not at all.
    """
    given = [None] if estimator.kernel is None else latent_kernels(estimator.kernel)
    sparse, of_noise = (
        regression_problem(estimator, problem, each, kernel=kernel, rougher=ROUGHER)
        for kernel, each in ((given[0], mean), (given[-1], "zero"))
    )
    of_mean, of_noise = sparse.kernel, of_noise.kernel
    noise = replace(sparse.noise, likelihood="gaussian")
    likelihood = noise.sites(estimator.noise_variance)
    sparse = replace(sparse, n_inducing=n_inducing)
    constant = replace(sparse, kernel=of_mean, likelihood=likelihood, noise=noise)

    def make_prior(rows):
        parts = constant.make_prior(rows), SignalPrior(of_noise, rows.device)
        k = of_mean.n_dims
        return JointPrior(parts, [slice(k), slice(k, None)])

    sparse = replace(
        sparse,
        kernel=CompoundKernel([of_mean, of_noise]),
        make_prior=make_prior if constant.make_prior else None,
    )
    if problem.start is not None:
        return sparse, [problem.start]
    start = constant.initial_model()
    search = CollapsedSearch(constant, start, jitter)
    if search.is_needed:
        start = search.start_of_other_noise()
    else:
        log_noise = search.start.state(problem.rows.device)["noise"]
        variance = noise.variance(log_noise)
        start = at_gaussian_posterior(search.start, variance, problem.rows)
    kernels = [of_noise]
    if estimator.optimizer is not None and free_constants(of_noise).any():
        little = scaled_lengths(of_noise, 1.0, _LITTLE_NOISE)
        kernels.append(of_noise.clone_with_theta(little))
    return sparse, [with_constant_noise(start, kernel) for kernel in kernels]


def family_problem(estimator, problem, mean, n_inducing, jitter):
    """Return the `SparseProblem` of a regression by a family, and a list of its starts.

    A cold fit starts from a Gaussian process of the link of y: at its kernel and posterior, in
    units of the link, with the dispersion that the variance of its noise implies. Its weights have
    a mean of one, as those of the rows may be exposures in any unit. If the kernel is learned, the
    second start has the initial one, and the posterior and dispersion of links that are all noise.
    """
    rougher = ROUGHER if n_inducing >= problem.rows.n_rows else ()  # few points cannot follow them
    options = {"rougher": rougher, "mean_variance": _MEAN_VARIANCE_OF_LINKS}
    sparse = regression_problem(estimator, problem, mean, **options)
    sparse = replace(sparse, n_inducing=n_inducing)
    learned = sparse.make_prior and (lambda rows: SignalPrior(sparse.kernel, rows.device))
    found = replace(sparse, make_prior=learned)
    if problem.start is not None:
        return found, [problem.start]
    rows, family = problem.rows, FAMILIES[estimator.likelihood]
    half = 0.5 / rows.weights[:, None] if family.is_count else 0.0  # half a count
    links = rows.with_targets(family.link.of(rows.targets + half)).with_mean_weight_one()
    means = links.sum(links.weights @ links.targets)[0] / links.total_weight
    squares = links.sum(links.weights @ (links.targets - means).square())[0]
    scale = (squares / links.total_weight).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    noise = RegressionNoise(likelihood="gaussian", n_outputs=len(scale))
    normalized = links.with_targets((links.targets - means) / scale)
    constant = replace(sparse.on(normalized), likelihood=noise.sites(), noise=noise)
    search = CollapsedSearch(constant, constant.initial_model(), jitter)
    start = search.start
    if search.is_needed:
        start = search.start_of_other_noise()
        unit = scale.square().mean().item()
        start = replace(start, kernel=with_lengths(start, 1.0, unit).kernel)
    variance = noise.variance(start.state(rows.device)["noise"]) * scale.square()
    variance = variance.clamp_min(_MIN_VARIANCE_OF_LINKS)
    # As Gaussian links, few counts or amounts of heavy tails may be all noise, or no noise.
    starts = [(start.kernel, variance)]
    if found.learned:
        starts.append((sparse.kernel, scale.square().clamp_min(_MIN_VARIANCE_OF_LINKS)))
    start = replace(start, noise=(), mean=None, root=None)
    has_dispersion = len(sparse.likelihood.parameters()) > 0
    if has_dispersion:
        dispersion = family.dispersion(variance, means)
        lowest = _min_dispersion(rows, dispersion, family.is_count)
        # Zeros alone are as likely at any dispersion, and the larger it is, at any mean.
        all_zero = not rows.sum(rows.weights @ rows.targets)[0].any()
        limits = math.log(lowest), math.log(lowest) if all_zero else PARAMETER_BOUNDS[1]
        found = replace(found, noise=replace(found.noise, given=GivenNoise(lowest, limits)))

    def start_at(kernel, variance):
        noise = ()
        if has_dispersion:
            noise = tuple(family.dispersion(variance, means).clamp_min(lowest).log().tolist())
        return at_gaussian_posterior(replace(start, kernel=kernel, noise=noise), variance, links)

    return found, [start_at(*each) for each in starts]


def _min_dispersion(rows, dispersion, is_count):
    """Return a lower bound of the dispersion, given those (t,) that noise of the link implies.

    Amounts that are equal in rows alike would be followed without any dispersion. Where that of
    counts hardly adds to the variance of Poisson counts, its gradient vanishes.
    """
    if not is_count:
        return max(_MIN_SHARE_OF_AMOUNTS * dispersion.min().item(), _MIN_VARIANCE_OF_LINKS)
    total = rows.sum(rows.weights @ rows.targets)[0].max().item()
    return _MIN_SHARE_OF_COUNTS * rows.total_weight / max(total, 1.0)


def classification_problem(estimator, problem, mean, max_all=0):
    """Return the `SparseProblem` of a classification, whose linear mean has a learned variance.

    Up to ``max_all`` rows are all inducing points, see `takes_every_row`.
    """
    scaler = problem.scaler
    kernel, parts = initial_kernel(estimator, scaler, CLASS_VARIANCE), (mean, scaler, MEAN_VARIANCE)
    if estimator.optimizer is None:
        kernel = with_mean(kernel, *parts)
    else:
        kernel = with_learned_mean(kernel, *parts, _FIRST_TREND)
    n_latents = estimator._make_likelihood().n_latents
    prior = cache(partial(SignalPrior, kernel, problem.rows.device, n_latents))
    sparse = _sparse_problem(estimator, problem, kernel, lambda rows: prior(), max_all=max_all)
    if not len(sparse.likelihood.parameters()):
        return sparse
    variance = _mean_variance(sparse.kernel, sparse.rows)
    return replace(sparse, likelihood=at_frequencies(sparse.likelihood, sparse.rows, variance))


def _mean_variance(kernel, rows):
    """Return the mean of a kernel's prior variances at the rows."""
    of_rows, total = torch_kernel(kernel), rows.weights.new_zeros((), dtype=torch.float64)
    theta = torch.as_tensor(kernel.theta, device=rows.device)
    for index in rows.chunks():
        X, _, weights = rows.take(index)
        total += (weights * of_rows.diag(X, theta)).sum()
    return rows.sum(total)[0].item() / rows.total_weight


def initial_kernel(estimator, scaler, variance):
    """Return a copy of the kernel that an estimator was given, or the default of a variance."""
    given = estimator.kernel
    return smooth_kernel(scaler, variance) if given is None else clone(given)


def _sparse_problem(estimator, problem, kernel, make_prior, alternatives=(), max_all=0):
    """Return a `SparseProblem`; prior and alternatives are for a default kernel that is learned."""
    learns = estimator.optimizer is not None
    if not learns or estimator.kernel is not None:
        make_prior, alternatives = None, ()
    parts = {"make_prior": make_prior, "alternatives": alternatives, "max_all": max_all}
    return SparseProblem.of(estimator, problem, kernel, learns=learns, **parts)


def elbo_attributes(estimator, models, bound, earlier=0.0):
    """Return the fitted attributes of a variational GP; ``earlier`` is the ELBO of past rows."""
    return {
        **sparse_attributes(estimator, models),
        "elbo_": earlier + bound,
        "_likelihood": estimator.likelihood,
    }


def classification_summary(ascent, state):
    """Return the `Summary` of a state of coordinate ascent, with leave-one-out moments."""
    return Summary(ascent.elbo(state), leave_one_out(ascent, state))


def regression_summary(ascent, state):
    """Return the `Summary` of a state of coordinate ascent, with leave-one-out residuals."""
    mean, var, targets, weights = leave_one_out(ascent, state)
    parts = ascent.likelihood.likelihood, targets, mean, var, weights
    return Summary(ascent.elbo(state), LeftOut.of(*parts))


def collapsed_elbo_at(model, rows, theta, with_gradient):
    """Return the collapsed ELBO, or the evidence, at the inducing points of a fitted model.

    The noise of the model is kept unless it is part of theta. See `evidence_at` for the parameters.
    """
    tensors = model.at_theta(theta).state(rows.device)
    bound = evidence_or_bound(*model.torch_kernels, rows, tensors["Z"])
    point = Hyperparameters(*(tensors[name] for name in Hyperparameters._fields))
    if not with_gradient:
        return bound.value(*point), None
    value, by_theta, _, by_noise = bound.value_and_gradient(*point)
    of_noise = torch.as_tensor(noise_entries(model.whole_kernel), device=rows.device)
    gradient = by_theta.new_empty(len(of_noise))
    gradient[~of_noise] = by_theta
    if of_noise.any():
        gradient[of_noise] = by_noise
    return value, gradient


def converged_elbo_at(likelihood, model, rows, theta, with_gradient):
    """Return the ELBO of the best posterior at the inducing points of a fitted model.

    The sweeps start from the sites of the fitted posterior. Parameters of the likelihood, given as
    sites, are kept. See `evidence_at` for the other parameters.
    """
    tensors = model.state(rows.device)
    likelihood, bases = likelihood.at(tensors["noise"]), (model, model.at_theta(theta))
    fitted, ascent = (
        DifferentiableAscent(likelihood, part.basis(rows.device), rows) for part in bases
    )
    sites = fitted.sites(fitted.init(tensors["mean"], tensors["root"]))
    state = ascent.posterior_of(*sites)
    value = ascent.converge(state)
    return value, ascent.value_and_gradient(state)[1]["theta"] if with_gradient else None
