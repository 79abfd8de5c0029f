"""Variational GPs: a mean function in the kernel, a prior of the default kernel, and the ELBO."""

from functools import partial

from sklearn.base import clone

from ._hyperparameters.default_kernels import smooth_kernel, with_mean
from ._hyperparameters.initialization import shrink_length_scales, with_linear_variance
from ._hyperparameters.priors import default_prior
from ._inference.natural_gradient import NaturalGradientInference
from ._parameters import OtherThan, where
from ._predictive import LIKELIHOODS
from ._sparse import SparseProblem, check_sparse_parameters, sparse_attributes

MEANS = ("zero", "constant", "linear")
MEAN_VARIANCE = 5.0  # of the mean function's coefficients, vague compared to the latents
CLASS_VARIANCE = 5.0  # initial prior variance of a classifier's latent functions
CLASSIFIER_LIKELIHOODS = ("softmax", "probit", "robust_max")
LEARNED = where(optimizer=OtherThan(None)) | where(learn_inducing=True)
natural_sweep = NaturalGradientInference.sweep


def check_variational_parameters(
    estimator, *, means=MEANS, optimizers=("auto", None), chooses_number=False
):
    """Refuse wrong values of the parameters that all variational GPs have.

    ``chooses_number`` is that of `check_sparse_parameters`.
    """
    estimator._check_choice("mean", means)
    estimator._check_choice("optimizer", optimizers)
    check_sparse_parameters(estimator, chooses_number=chooses_number)


def check_regression_parameters(estimator, likelihoods=tuple(LIKELIHOODS)):
    """Refuse wrong values of the parameters that regressors have besides."""
    estimator._check_choice("likelihood", likelihoods)
    estimator._check_bool("normalize_y")
    check_noise(estimator)


def check_noise(estimator):
    """Refuse an invalid ``noise_variance``, and one beside a `WhiteKernel`."""
    estimator._check_number("noise_variance", 0, optional=True, above=True)
    if estimator._given_noise is not None and estimator.noise_variance is not None:
        raise ValueError(
            f"noise_variance={estimator.noise_variance!r} and the WhiteKernel of "
            f"kernel={estimator.kernel!r} both set the noise. Leave one of them out."
        )


def variational_problem(estimator, problem, mean, *, sparse_start, variance=1.0, smoothness=()):
    """Return the `SparseProblem` of a variational GP.

    Parameters
    ----------
    estimator : GPEstimator
    problem : Problem
    mean : str
        Mean function.
    sparse_start : bool
        Whether slopes of the default kernel have their prior where rows are fewer than features:
        for learning that can start without it, see `default_prior`.
    variance : float
        Of the default kernel.
    smoothness : tuple of float
        Of the Matern kernels that may replace the default kernel.
    """
    scaler = problem.scaler
    is_default, learns = estimator.kernel is None, estimator.optimizer is not None
    kernel = smooth_kernel(scaler, variance) if is_default else clone(estimator.kernel)
    kernel = with_mean(kernel, mean, scaler, MEAN_VARIANCE)
    prior = partial(default_prior, kernel, scale=scaler.scale_, sparse=sparse_start)
    make_prior = prior if is_default and learns else None
    return SparseProblem.of(
        estimator,
        problem,
        kernel,
        learns=learns,
        make_prior=make_prior,
        smoothness=smoothness if is_default and learns else (),
    )


def shortened(sparse, start, mean):
    """Return a start of a classifier with better hyperparameters, if it has no posterior yet.

    The variance of a linear mean is chosen and length scales are shortened where the kernel is
    learned.
    """
    if start.mean is not None or "theta" not in sparse.free_parts(start):
        return start
    parts = sparse.likelihood, sparse.rows, sparse.problem.random_state
    if mean == "linear":
        start = with_linear_variance(start, *parts)
    return shrink_length_scales(start, *parts)


def elbo_attributes(estimator, models, bounds, earlier=0.0):
    """Return the fitted attributes of a variational GP, a dict.

    Parameters
    ----------
    estimator : GPEstimator
    models : sequence of SparseModel
    bounds : sequence of float
        ELBOs.
    earlier : float
        ELBO of rows before these.
    """
    return {
        **sparse_attributes(estimator, models),
        "elbo_": earlier + bounds[0],
        "_likelihood": estimator.likelihood,
    }


def elbo(ascent, state):
    """Return the ELBO of a state of coordinate ascent."""
    return ascent.elbo(state)
