"""Variational GPs: a mean function in the kernel, a prior of the default kernel, and the ELBO."""

from functools import partial

from sklearn.base import clone

from ._hyperparameters.default_kernels import smooth_kernel, with_learned_mean, with_mean
from ._hyperparameters.priors import SignalPrior, default_prior
from ._inference.leave_one_out import leave_one_out
from ._inference.natural_gradient import NaturalGradientInference
from ._parameters import OtherThan, where
from ._predictive import LIKELIHOODS, LeftOut, Summary
from ._sparse import SparseProblem, check_sparse_parameters, sparse_attributes

MEANS = ("zero", "constant", "linear")
MEAN_VARIANCE = 5.0  # of the mean function's coefficients, vague compared to the latents
CLASS_VARIANCE = 5.0  # initial prior variance of a classifier's latent functions
LOG_CONCAVE = ("softmax", "probit")
CLASSIFIER_LIKELIHOODS = (*LOG_CONCAVE, "robust_max")
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


def regression_problem(estimator, problem, mean, *, smoothness=()):
    """Return the `SparseProblem` of a regression.

    Parameters
    ----------
    estimator : GPEstimator
    problem : Problem
    mean : str
        Mean function.
    smoothness : tuple of float
        Of the Matern kernels that may replace the default kernel.
    """
    scaler = problem.scaler
    kernel = with_mean(_kernel(estimator, scaler, 1.0), mean, scaler, MEAN_VARIANCE)
    prior = partial(default_prior, kernel, scale=scaler.scale_)
    return _sparse_problem(estimator, problem, kernel, prior, smoothness)


def classification_problem(estimator, problem, mean):
    """Return the `SparseProblem` of a classification, whose linear mean has a learned variance.

    Parameters
    ----------
    estimator : GPEstimator
    problem : Problem
    mean : str
        Mean function.
    """
    scaler = problem.scaler
    add_mean = with_mean if estimator.optimizer is None else with_learned_mean
    kernel = _kernel(estimator, scaler, CLASS_VARIANCE)
    kernel = add_mean(kernel, mean, scaler, MEAN_VARIANCE)
    n_latents = estimator._make_likelihood().n_latents

    def make_prior(rows):
        return SignalPrior(kernel, rows.device, n_latents)

    return _sparse_problem(estimator, problem, kernel, make_prior)


def _kernel(estimator, scaler, variance):
    """Return a copy of the kernel that an estimator was given, or the default of a variance."""
    given = estimator.kernel
    return smooth_kernel(scaler, variance) if given is None else clone(given)


def _sparse_problem(estimator, problem, kernel, make_prior, smoothness=()):
    """Return a `SparseProblem`; prior and smoothness are for a default kernel that is learned."""
    learns = estimator.optimizer is not None
    if not learns or estimator.kernel is not None:
        make_prior, smoothness = None, ()
    parts = {"learns": learns, "make_prior": make_prior, "smoothness": smoothness}
    return SparseProblem.of(estimator, problem, kernel, **parts)


def elbo_attributes(estimator, models, bound, earlier=0.0):
    """Return the fitted attributes of a variational GP, a dict.

    Parameters
    ----------
    estimator : GPEstimator
    models : sequence of SparseModel
    bound : float
        ELBO.
    earlier : float
        ELBO of rows before these.
    """
    return {
        **sparse_attributes(estimator, models),
        "elbo_": earlier + bound,
        "_likelihood": estimator.likelihood,
    }


def elbo(ascent, state):
    """Return the ELBO of a state of coordinate ascent."""
    return ascent.elbo(state)


def regression_summary(ascent, state):
    """Return the `Summary` of a state of coordinate ascent, with leave-one-out residuals."""
    mean, var, targets, weights = leave_one_out(ascent, state)
    parts = ascent.likelihood.likelihood, targets, mean, var, weights
    return Summary(ascent.elbo(state), LeftOut.of(*parts))
