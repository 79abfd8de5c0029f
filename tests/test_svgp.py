"""Sparse variational GPs: the collapsed bound, its gradient, and the two estimators."""

import json
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import EDGES, assert_all_close, waves
from scipy.stats import kstest, norm
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    WhiteKernel,
)

from skgpsvm import (
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPRegressor,
    EPClassifier,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm.active_learning import bald
from skgpsvm.exceptions import NotPositiveDefiniteError
from skgpsvm.kernels import TorchKernel, register_torch_kernel
from skgpsvm.solvers import NaturalGradient


def given(kernel, X, **parameters):
    """Return a regressor with fixed hyperparameters and inducing points X."""
    fixed = {"optimizer": None, "learn_inducing": False, "normalize_y": False, "mean": "zero"}
    return SVGPRegressor(kernel, inducing_points=X, **{**fixed, **parameters})


# The collapsed bound


@pytest.mark.parametrize("solver", ["collapsed", "natural_gradient"])
def test_all_rows_as_inducing_points_are_the_exact_process(solver):
    X, y = waves(100)
    kernel = 1.5 * RBF([1.0, 2.0, 3.0])
    ours = given(kernel, X, solver=solver, noise_variance=0.05, tol=1e-10).fit(X, y)
    exact = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None).fit(X, y)
    X_new = waves(50, seed=1)[0]
    mean, std = ours.predict(X_new, return_std=True)
    exact_mean, exact_std = exact.predict(X_new, return_std=True)
    # The closed form adds 1e-9 of the variance to the diagonal of Kzz, natural gradients 1e-6.
    tol = 1e-6 if solver == "collapsed" else 1e-3
    assert_allclose(mean, exact_mean, atol=tol)
    assert_allclose(std, np.sqrt(exact_std**2 + 0.05), atol=tol)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, rel=tol)
    _, cov = ours.predict(X_new, return_cov=True)
    exact_cov = exact.predict(X_new, return_cov=True)[1] + 0.05 * np.eye(50)
    assert_allclose(cov, exact_cov, atol=tol)
    latent_mean, latent_variance = ours.latent_mean_and_variance(X_new)
    assert_allclose(latent_mean, mean)
    assert_allclose(latent_variance, std**2 - 0.05, atol=1e-12)


def test_a_natural_gradient_step_lands_on_the_collapsed_optimum():
    X, y = waves(100)
    settings = {"noise_variance": 0.05, "random_state": 0, "tol": 0.0, "max_iter": 1}
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        collapsed = given(1.5 * RBF(1.0), X[:20], **settings).fit(X, y)
        one = given(1.5 * RBF(1.0), X[:20], solver="natural_gradient", **settings).fit(X, y)
    X_new = waves(50, seed=1)[0]
    # Both take one step from the prior, with different jitters.
    assert_all_close(
        one.latent_mean_and_variance(X_new), collapsed.latent_mean_and_variance(X_new), atol=1e-4
    )
    assert one.elbo_ == pytest.approx(collapsed.elbo_, rel=1e-4)


@pytest.mark.parametrize("solver", ["collapsed", "natural_gradient"])
def test_one_step_that_is_exact_does_not_warn(solver):
    X, y = waves(100)
    one, many = (given(RBF(1.0), X[:20], solver=solver, max_iter=n) for n in (1, 50))
    for start in (0, 50):  # the second call continues the stream
        for model in (one, many):
            model.partial_fit(X[start : start + 50], y[start : start + 50])
        assert_allclose(one.predict(X), many.predict(X), atol=1e-12)
        assert one.elbo_ == pytest.approx(many.elbo_, rel=1e-12)


def test_one_step_that_is_not_exact_warns():
    X, y = waves(100)
    model = given(RBF(1.0), X[:20], solver=NaturalGradient(batch_size=20), max_iter=1)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 before its change fell below tol"):
        model.fit(X, y)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 before its change fell below tol"):
        given(RBF(1.0), X[:20], likelihood="laplace", max_iter=1).fit(X, y)


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
@pytest.mark.parametrize("solver", ["natural_gradient", "gradient"])
def test_every_way_learns_a_function(likelihood, solver):
    X, y = waves(200, noise=0.2)
    # The solver "gradient" has few steps in an epoch of so few rows.
    settings = {"gradient": {"max_iter": 300, "tol": 0.0}, "natural_gradient": {}}[solver]
    model = SVGPRegressor(
        likelihood=likelihood, solver=solver, n_inducing=24, random_state=0, **settings
    )
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(X, y)
    X_new, truth = waves(200, seed=1, noise=0.0)
    assert np.sqrt(np.mean((model.predict(X_new) - truth) ** 2)) < 0.25
    assert 0.1**2 < model.noise_variance_ < 0.45**2


def test_one_batch_of_gradient_steps_goes_on_from_the_best_posterior():
    # The first step moves the hyperparameters, for which the best means then are others.
    X, y = waves(150, noise=0.2)
    model = SVGPRegressor(solver="gradient", n_inducing=24, random_state=0).fit(X, y)
    X_new, truth = waves(200, seed=1, noise=0.0)
    assert model.n_iter_ > 5
    assert np.sqrt(np.mean((model.predict(X_new) - truth) ** 2)) < 0.2


def test_learning_finds_the_noise_and_the_features_that_matter():
    X, y = waves(400, noise=0.3)
    # The default kernel has a prior, which the curve would include.
    kernel = ConstantKernel(1.0) * RBF(np.ones(3))
    model = SVGPRegressor(kernel, n_inducing=50, random_state=0).fit(X, y)
    # Four standard errors of a variance from 400 rows.
    assert model.noise_variance_ == pytest.approx(0.09, rel=4 * np.sqrt(2 / 400))
    lengths = model.kernel_.k1.k2.length_scale
    assert lengths[2] > 3 * lengths[0]
    assert (np.diff(model.objective_curve_) >= 0).all()
    assert model.n_iter_ == len(model.objective_curve_)
    assert model.elbo_ == pytest.approx(model.objective_curve_[-1], rel=1e-6)


@pytest.mark.parametrize("estimator", [SVGPRegressor, DecoupledGPRegressor, AdditiveGPRegressor])
def test_gross_errors_do_not_hide_all_else(estimator):
    X, y = waves(300)
    y[::15] += 1e4
    X_new, truth = waves(200, seed=1, noise=0.0)
    model = estimator(likelihood="student_t", n_inducing=40, random_state=0).fit(X, y)
    assert np.sqrt(np.mean((model.predict(X_new) - truth) ** 2)) < 0.1


def test_student_t_bears_outliers():
    X, y = waves(300)
    wild = y.copy()
    wild[::15] += 20
    X_new, truth = waves(200, seed=1, noise=0.0)
    errors = {
        likelihood: np.sqrt(
            np.mean(
                (
                    SVGPRegressor(likelihood=likelihood, n_inducing=40, random_state=0)
                    .fit(X, wild)
                    .predict(X_new)
                    - truth
                )
                ** 2
            )
        )
        for likelihood in ("gaussian", "student_t")
    }
    assert errors["student_t"] < 0.3 * errors["gaussian"]


def test_unit_of_y_does_not_matter():
    X, y = waves()
    model = SVGPRegressor(n_inducing=10, random_state=0)
    mean, std = clone(model).fit(X, y).predict(X, return_std=True)
    larger_mean, larger_std = clone(model).fit(X, 1024 * y).predict(X, return_std=True)
    # A power of two keeps the arithmetic the same.
    assert_allclose(larger_mean, 1024 * mean, rtol=1e-12)
    assert_allclose(larger_std, 1024 * std, rtol=1e-12)


def test_outputs_share_kernel_and_inducing_points():
    X, y = waves()
    Y = np.c_[y, 3 - 2 * X[:, 0]]
    kernel = 1.5 * RBF(1.0)
    settings = {"noise_variance": 0.1, "normalize_y": True}
    both = given(kernel, X[:10], **settings).fit(X, Y)
    assert both.predict(X).shape == (80, 2)
    assert both.predict(X, return_cov=True)[1].shape == (80, 80, 2)
    assert both.sample_y(X, 5).shape == (80, 2, 5)
    alone = [given(kernel, X[:10], **settings).fit(X, column) for column in Y.T]
    for j, model in enumerate(alone):
        for got, expected in zip(
            both.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
        ):
            assert_allclose(got[:, j], expected, rtol=1e-9)
    assert both.elbo_ == pytest.approx(sum(model.elbo_ for model in alone))
    learned = SVGPRegressor(n_inducing=10, random_state=0).fit(X, Y)
    assert learned.noise_variance_.shape == (2,)
    assert learned.noise_variance_[1] < learned.noise_variance_[0]
    with pytest.raises(ValueError, match="y has 1 outputs, but the model was fitted with 2"):
        learned.partial_fit(X, y)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_mean_function_goes_on_where_the_process_ends(mean):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(100, 1))
    y = 5 + (2 * X[:, 0] if mean == "linear" else 0) + 0.1 * rng.normal(size=100)
    kernel = ConstantKernel(0.01, "fixed") * RBF(0.1, "fixed")
    model = SVGPRegressor(kernel, mean=mean, normalize_y=False, n_inducing=10, random_state=0)
    far = 25 if mean == "linear" else 5
    assert model.fit(X, y).predict([[10.0]])[0] == pytest.approx(far, abs=1.0)
    zero = clone(model).set_params(mean="zero").fit(X, y)
    assert abs(zero.predict([[10.0]])[0]) < 1e-6


def test_stream_of_gaussian_noise_is_a_fit_of_all_rows():
    X, y = waves(120)
    kernel = 1.5 * RBF(1.0)
    whole = given(kernel, X[:15], noise_variance=0.1).fit(X, y)
    stream = given(kernel, X[:15], noise_variance=0.1)
    for part in np.split(np.arange(120), 4):
        stream.partial_fit(X[part], y[part])
    # The stream passes through the inverse of a covariance and back.
    assert_all_close(
        stream.predict(X, return_std=True), whole.predict(X, return_std=True), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_waves_are_found_under_a_trend(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(400, 1))
    y = 2 * X[:, 0] + 0.7 * np.sin(40 * np.pi * X[:, 0]) + 0.1 * rng.normal(size=400)
    assert SVGPRegressor(random_state=0).fit(X, y).score(X, y) > 0.97


def test_features_that_matter_are_found_among_many():
    X, y = make_friedman1(1400, n_features=60, noise=1, random_state=0)
    model = SVGPRegressor(random_state=0).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.9


@pytest.mark.parametrize("kind", [SVGPRegressor, DecoupledGPRegressor])
def test_bootstrap_samples_are_not_without_noise(kind):
    X, y = make_friedman1(1150, n_features=6, noise=1, random_state=0)
    drawn = np.random.default_rng(0).integers(0, 150, 450)
    model = kind(random_state=0).fit(X[drawn], y[drawn])
    mean, std = model.predict(X[150:], return_std=True)
    assert model.score(X[150:], y[150:]) > 0.9
    assert np.mean(np.abs(y[150:] - mean) < 1.96 * std) > 0.9


@pytest.mark.parametrize(
    ("n_inducing", "advice"), [(20, "to it, or lower n_inducing=20"), (None, "to it")]
)
def test_first_rows_fewer_than_the_points_are_told(n_inducing, advice):
    X, y = waves(30)
    model = SVGPRegressor(RBF(1.0), n_inducing=n_inducing, optimizer=None)
    told = rf"only 10 rows, which are the points and stay. Pass more rows {advice}\.$"
    with pytest.warns(UserWarning, match=told):
        model.partial_fit(X[:10], y[:10])
    model.partial_fit(X[10:], y[10:])


STREAMED = [SVGPRegressor, SVGPClassifier, DecoupledGPRegressor, BayesianSVC, EPClassifier]


@pytest.mark.parametrize("kind", STREAMED)
def test_rows_far_from_those_of_the_first_call_are_told(kind):
    X = np.random.default_rng(0).uniform(-3, 3, (300, 3))
    X[:, 2] = 0.1  # constant up to rounding
    y = (X[:, 0] > 0).astype(int)
    near = np.argsort(abs(X[:, 1]))
    options = {"n_inducing": 10, "random_state": 0}
    model = kind(**options).partial_fit(X[near[:60]], y[near[:60]])
    model.partial_fit(X[near[-10:]], y[near[-10:]])  # too few to tell
    with pytest.warns(UserWarning, match="far from those of the first call, in x1. The inducing"):
        model.partial_fit(X[near[-60:]], y[near[-60:]])
    given = kind(inducing_points=X[:10], **options).partial_fit(X[near[:60]], y[near[:60]])
    given.partial_fit(X[near[-60:]], y[near[-60:]])


@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_further_rows_of_the_same_distribution_are_not_far(dtype, kind):
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [
            rng.standard_t(1.5, 600),
            rng.lognormal(0, 2, 600),
            rng.random(600) < 0.05,
            2e4 + rng.normal(size=600),
            np.where(rng.random(600) < 0.1, -999, rng.normal(size=600)),
        ]
    ).astype(dtype)
    y = (X[:, 3] > 2e4).astype(int)
    model = kind(n_inducing=10, random_state=0)
    for part in np.split(np.arange(600), 6):
        model.partial_fit(X[part], y[part])


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
def test_draws_have_the_moments_of_the_prediction(likelihood):
    X, y = waves(100)
    kernel = 1.5 * RBF(1.0)
    model = given(kernel, X[:30], likelihood=likelihood, noise_variance=0.5).fit(X, y)
    X_new = waves(20, seed=1)[0]
    mean, std = model.predict(X_new, return_std=True)
    draws = model.sample_y(X_new, 4000, random_state=0)
    assert draws.shape == (20, 4000)
    # Five standard errors; a t with four degrees of freedom has no fourth moment.
    assert (np.abs(draws.mean(1) - mean) < 5 * std / np.sqrt(4000)).all()
    assert_allclose(draws.std(1), std, rtol=0.15 if likelihood == "student_t" else 0.08)
    if likelihood == "gaussian":
        assert kstest((draws[0] - mean[0]) / std[0], "norm").pvalue > 1e-3
        _, cov = model.predict(X_new, return_cov=True)
        scale = np.sqrt(np.outer(cov.diagonal(), cov.diagonal()))
        assert (np.abs(np.cov(draws) - cov) < 5 * scale * np.sqrt(2 / 4000)).all()


def test_precisions_agree():
    X, y = waves(200)
    kernel = 1.5 * RBF(1.0)
    double = given(kernel, X[:20], noise_variance=0.1).fit(X, y)
    same = given(kernel, X[:20], noise_variance=0.1).fit(X.astype(np.float32), y)
    single = given(kernel, X[:20], noise_variance=0.1, dtype="float32").fit(X, y)
    # With float32 input, sums are in float64; with dtype="float32", they are in float32.
    for model, tol in ((same, 1e-5), (single, 5e-3)):
        assert_all_close(
            model.predict(X, return_std=True), double.predict(X, return_std=True), atol=tol
        )


def test_mean_function_needs_no_inducing_points():
    X = np.random.default_rng(0).normal(size=(100, 12))
    y = X.sum(1) + 0.1 * np.sin(5 * X[:, 0])
    model = SVGPRegressor(n_inducing=4, mean="linear", random_state=0).fit(X, y)
    assert model.score(X, y) > 0.99


def test_single_precision_bears_rows_without_noise():
    X, _ = waves(400)
    y = np.sin(X[:, 0]) * X[:, 1]
    model = SVGPRegressor(n_inducing=60, dtype="float32", random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9999
    assert model.noise_variance_ < 1e-4


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
@pytest.mark.parametrize("solver", ["natural_gradient", "gradient"])
def test_single_precision_serves_every_likelihood(likelihood, solver):
    X, y = waves(100)
    options = {"likelihood": likelihood, "solver": solver, "max_iter": 10, "random_state": 0}
    fixed = given(1.5 * RBF(1.0), X[:12], noise_variance=0.1, **options)
    learned = SVGPRegressor(n_inducing=12, dtype="float32", **options)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        double = clone(fixed).fit(X, y).predict(X)
        single = clone(fixed).set_params(dtype="float32").fit(X, y).predict(X)
        score = learned.fit(X, y).score(X, y)
    assert_allclose(single, double, atol=5e-3)
    # For "gradient", ten steps of Adam are too few.
    assert score > 0.9 or solver == "gradient"


def test_what_was_learned_serves_as_parameters():
    X, y = waves(60)
    model = SVGPRegressor(n_inducing=10, random_state=0).fit(X, y)
    assert json.loads(json.dumps(model.noise_variance_)) == model.noise_variance_
    options = {"kernel": model.kernel_, "noise_variance": model.noise_variance_}
    assert clone(model).set_params(**options, optimizer=None).fit(X, y).score(X, y) > 0.9


def test_linear_kernels_bear_white_noise():
    X, y = waves(100)
    kernel = DotProduct() + WhiteKernel()
    sparse = SVGPRegressor(kernel, mean="zero", random_state=0).fit(X, y)
    exact = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    assert_allclose(sparse.predict(X), exact.predict(X), atol=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
def test_minibatches_keep_what_the_start_has_learned(likelihood):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (4000, 2))
    truth = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 / 3
    y = truth + 0.1 * rng.standard_t(3, 4000)
    options = {"n_inducing": 40, "max_iter": 12, "random_state": 0, "likelihood": likelihood}
    options |= {"solver": NaturalGradient(batch_size=400)}
    model = SVGPRegressor(**options).fit(X, y)
    assert np.sqrt(np.mean((model.predict(X) - truth) ** 2)) < 0.03
    assert abs(np.log(model.noise_variance_ / 0.03)) < 0.3


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"solver": "collapsed", "likelihood": "laplace"}, "needs Gaussian noise"),
        ({"noise_variance": 0}, "noise_variance=0 must be a number above 0, or None"),
        ({"noise_variance": -1.0}, "noise_variance=-1.0 must be a number above 0, or None"),
        ({"likelihood": "binomial"}, "not one of 'gaussian', 'student_t', 'laplace'"),
        ({"mean": "quadratic"}, "not one of 'zero', 'constant', 'linear'"),
        ({"optimizer": "adam"}, "not one of 'auto', None"),
        ({"normalize_y": "yes"}, "must be True or False"),
    ],
)
def test_bad_parameters_of_the_regressor_are_refused_in_words(parameters, message):
    with pytest.raises(ValueError, match=message):
        SVGPRegressor(**parameters).fit(*waves(20))


@pytest.mark.parametrize("kind", [SVGPRegressor, DecoupledGPRegressor, AdditiveGPRegressor])
def test_targets_whose_squares_overflow_are_refused(kind):
    X, y = waves(20)
    with pytest.raises(ValueError, match="Squares of y, times the weights, overflow"):
        kind().fit(X, 1e200 * y)


@pytest.mark.parametrize("kind", [SVGPRegressor, DecoupledGPRegressor, AdditiveGPRegressor])
def test_targets_whose_squares_underflow_are_refused(kind):
    X, y = waves(20)
    with pytest.raises(ValueError, match="Squares of the differences in y underflow"):
        kind().fit(X, np.c_[y, 1e-200 * y])
    weights = np.arange(20) > 0  # the others are equal
    constant = kind().fit(X, np.r_[1e-201, np.full(19, 1e-200)], weights).predict(X)
    assert_allclose(constant, 1e-200, rtol=1e-12, atol=0)


def test_std_and_cov_are_not_both_given():
    X, y = waves(20)
    with pytest.raises(RuntimeError, match="At most one"):
        given(RBF(1.0), X).fit(X, y).predict(X, return_std=True, return_cov=True)


class Indefinite(RBF):
    """Indefinite kernel, whose torch form is a distance with a unit diagonal."""


@register_torch_kernel(Indefinite)
class TorchIndefinite(TorchKernel):
    def __call__(self, X, Z, theta):
        return torch.cdist(X, Z) / self.value("length_scale", theta, X)

    def diag(self, X, theta):
        return X.new_ones(len(X))


@pytest.mark.parametrize(
    ("n_inducing", "matrix"),
    [(10, "kernel matrix of the inducing points"), (20, "covariance of the rows")],
)
def test_kernel_that_is_not_positive_definite_is_reported_as_such(n_inducing, matrix):
    X, y = waves(20)
    with pytest.raises(NotPositiveDefiniteError, match=matrix):
        SVGPRegressor(Indefinite(1.0), n_inducing=n_inducing).fit(X, y)


# Degenerate data


def both(**options):
    """Return a regressor and a classifier."""
    options = {"n_inducing": 8, "max_iter": 5, "random_state": 0, **options}
    return SVGPRegressor(**options), SVGPClassifier(**options)


def fitted(model, X, labels):
    """Return a model fitted to labels, or to them as numbers, even if it reaches max_iter."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return model.fit(X, labels)


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("kind", [0, 1], ids=["regression", "classification"])
def test_edges_of_data_give_finite_predictions(edge, kind):
    X, y = blobs(60, n_classes=2)
    X = edge(X)
    model = fitted(both()[kind], X, y[: len(X)])
    mean, variance = model.latent_mean_and_variance(X)
    assert np.isfinite(mean).all()
    assert (variance >= 0).all()
    if kind == 1:
        assert_allclose(model.predict_proba(X).sum(1), 1, atol=1e-9)
    else:
        assert np.isfinite(model.predict(X, return_std=True)).all()


def test_unit_of_the_features_does_not_matter():
    X, y = blobs(60, n_classes=2)
    for scale in (2.0**-40, 2.0**40):
        for model in both():
            one, other = fitted(clone(model), X, y), fitted(clone(model), scale * X, y)
            # The scale is a power of two. Bounds and initial values are in units of the data.
            assert_all_close(
                other.latent_mean_and_variance(scale * X),
                one.latent_mean_and_variance(X),
                rtol=0.02,
                atol=0.02,
            )


@pytest.mark.parametrize("y", [3.0, 1e-12, 1e12])
def test_constant_target_is_predicted(y):
    X = waves(30)[0]
    mean, std = (
        SVGPRegressor(n_inducing=8, random_state=0)
        .fit(X, np.full(30, y))
        .predict(X, return_std=True)
    )
    assert_allclose(mean, y, rtol=1e-6)
    assert np.isfinite(std).all()


def test_one_row_is_enough_for_a_regression():
    model = SVGPRegressor(random_state=0).fit([[1.0, 2.0]], [5.0])
    assert model.predict([[1.0, 2.0]])[0] == pytest.approx(5.0)


# Classification


def blobs(n=120, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    return 3 * rng.normal(size=(n_classes, 2))[y] + rng.normal(size=(n, 2)), y


LIKELIHOODS = [("softmax", 2), ("probit", 2), ("robust_max", 2), ("softmax", 3), ("robust_max", 3)]


@pytest.mark.parametrize(("likelihood", "n_classes"), LIKELIHOODS)
@pytest.mark.parametrize("solver", ["natural_gradient", "gradient"])
def test_every_likelihood_learns_classes(likelihood, n_classes, solver):
    X, y = blobs(n_classes=n_classes)
    settings = {"n_inducing": 16, "random_state": 0}
    if solver == "gradient":
        settings |= {"max_iter": 100, "tol": 0.0}
    model = SVGPClassifier(likelihood=likelihood, solver=solver, **settings)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(X, y)
    P = model.predict_proba(X)
    assert model.score(X, y) > 0.7
    assert P.shape == (120, n_classes)
    assert_allclose(P.sum(1), 1, atol=1e-9)
    assert_array_equal(model.predict(X), P.argmax(1))
    scores = model.decision_function(X)
    if n_classes == 2:
        assert_array_equal(scores > 0, P[:, 1] > P[:, 0])
    else:
        assert_allclose(np.exp(scores), P, rtol=1e-9)
    assert model.elbo_ < 0
    assert (bald(model, X) >= -1e-9).all()


@pytest.mark.parametrize(("likelihood", "n_classes"), LIKELIHOODS)
def test_full_passes_at_a_fixed_kernel_never_lower_the_bound(likelihood, n_classes):
    X, y = blobs(n_classes=n_classes)
    model = SVGPClassifier(
        20.0 * RBF(0.7),
        likelihood=likelihood,
        optimizer=None,
        learn_inducing=False,
        n_inducing=20,
        max_iter=50,
        tol=1e-6,
        random_state=0,
    )
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        curve = model.fit(X, y).objective_curve_
    # Steps are halved until the bound falls by less than a relative 1e-9. With averages over draws,
    # Newton steps on the means end beside the maximum of the bound, by 6e-7 nats per row here.
    is_drawn = likelihood == "softmax" and n_classes > 2
    slack = 1e-6 * len(y) if is_drawn else 1e-8 * np.abs(curve)
    assert (np.maximum.accumulate(curve) - curve <= slack).all()
    assert curve[-1] > curve[0]


def test_probabilities_are_near_those_of_laplace_s_approximation():
    X, y = blobs(n_classes=2)
    kernel = 2.0 * RBF(1.0)
    settings = {"optimizer": None, "learn_inducing": False, "mean": "zero", "tol": 1e-4}
    ours = SVGPClassifier(kernel, inducing_points=X, **settings).fit(X, y)
    exact = GaussianProcessClassifier(kernel, optimizer=None).fit(X, y)
    # These are two approximations of the same posterior.
    assert_allclose(ours.predict_proba(X), exact.predict_proba(X), atol=0.05)


def test_probabilities_average_those_of_draws():
    X, y = blobs()
    for likelihood in ("softmax", "robust_max"):
        model = SVGPClassifier(
            2.0 * RBF(1.0), likelihood=likelihood, optimizer=None, n_inducing=10, random_state=0
        ).fit(X, y)
        P = model.predict_proba_from_latent(model.sample_latent(X, 4000))
        # Four standard errors of 4000 draws, plus the error of 128 points.
        assert_allclose(P.mean(0), model.predict_proba(X), atol=4 * np.sqrt(0.25 / 4000) + 0.01)
    with pytest.raises(ValueError, match="last axis must have length 3"):
        model.predict_proba_from_latent(np.zeros((5, 2)))


def test_probit_is_for_two_classes():
    with pytest.raises(ValueError, match="'probit' is for two classes; y has 3"):
        SVGPClassifier(likelihood="probit").fit(*blobs())


def test_minibatches_approach_the_posterior_of_all_rows():
    X, y = blobs(600)
    settings = {"optimizer": None, "learn_inducing": False, "n_inducing": 12, "random_state": 0}
    whole = SVGPClassifier(2.0 * RBF(1.0), tol=1e-4, max_iter=200, **settings).fit(X, y)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        parts = SVGPClassifier(
            2.0 * RBF(1.0), solver=NaturalGradient(batch_size=100), **settings
        ).fit(X, y)
    # The steps of minibatches are still shrinking.
    assert np.abs(parts.predict_proba(X) - whole.predict_proba(X)).mean() < 0.02


def test_bound_of_the_classifier_is_below_the_evidence():
    X, y = np.array([[-1.0], [0.3], [1.2]]), np.array([0, 1, 1])
    kernel = 2.0 * RBF(1.0)
    settings = {"optimizer": None, "learn_inducing": False, "mean": "zero", "tol": 1e-6}
    model = SVGPClassifier(kernel, likelihood="probit", inducing_points=X, **settings).fit(X, y)
    x, w = np.polynomial.hermite_e.hermegauss(40)
    z = np.stack(np.meshgrid(x, x, x, indexing="ij"), -1).reshape(-1, 3)
    weights = (w[:, None, None] * w[:, None] * w).ravel() / w.sum() ** 3
    f = z @ np.linalg.cholesky(kernel(X)).T
    evidence = np.log(weights @ norm.cdf(f * [-1, 1, 1]).prod(1))
    assert evidence - 0.1 < model.elbo_ < evidence


def test_periods_of_several_features_are_named_as_no_covariance():
    X, y = waves(60)
    kernel = 1.0 * ExpSineSquared() * RBF(1.0, "fixed")
    with pytest.raises(NotPositiveDefiniteError, match="ExpSineSquared of several features"):
        SVGPRegressor(kernel).fit(X, y)
