"""`WhiteKernel` is the noise of regressors, as in scikit-learn's GP; most others refuse it."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

from skgpsvm import (
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    HybridBayesianSVC,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._noise import split_noise, with_noise
from skgpsvm.solvers import QuadruplyStochastic

exact_process = partial(GaussianProcessRegressor, alpha=1e-12)


def sine(n=60, n_outputs=None, seed=0):
    """Return rows in [-3, 3], and a noisy sine or several outputs of different units."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-3, 3, n))[:, None]
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n)
    if n_outputs:
        others = np.cos(X) * np.arange(1, n_outputs) * 3 + rng.normal(size=(n, n_outputs - 1))
        y = np.column_stack([y, others])
    return X, y


def at_all_rows(X, **parameters):
    """Return regressors with all rows as inducing points, equivalent to the exact GP."""
    points = {"inducing_points": X, "n_inducing": len(X), "learn_inducing": False, "mean": "zero"}
    points |= parameters
    return [
        SVGPRegressor(**points),
        DecoupledGPRegressor(**points),
        QSGPRegressor(**points, basis="inducing"),
    ]


NETWORK = {"module_params": {"hidden_layer_sizes": (4,)}, "max_iter": 3, "random_state": 0}
FEW = {"n_inducing": 8, "random_state": 0}
REGRESSORS = [
    SVGPRegressor(**FEW),
    SVGPRegressor(**FEW, solver="natural_gradient"),
    SVGPRegressor(**FEW, solver="gradient"),
    DecoupledGPRegressor(**FEW),
    DecoupledGPRegressor(**FEW, solver="sgd"),
    QSGPRegressor(**FEW, n_basis=50),
    QSGPRegressor(**FEW, n_basis=50, solver=QuadruplyStochastic(learn_hyperparameters=True)),
    QSRVMRegressor(),
    HybridSVGPRegressor(**NETWORK),
]
regressors = pytest.mark.parametrize("model", REGRESSORS, ids=str)


# The terms of a kernel


@pytest.mark.parametrize(
    ("kernel", "functions"),
    [
        (RBF() + WhiteKernel(0.3), RBF()),
        (WhiteKernel(0.3) + RBF(), RBF()),
        (RBF() + WhiteKernel(0.3, "fixed") + 2.0, RBF() + 2.0),
        (RBF() + (DotProduct() + (WhiteKernel(0.3) + 2.0)), RBF() + (DotProduct() + 2.0)),
        ((RBF() + 2.0) + (DotProduct() + WhiteKernel(0.3)), (RBF() + 2.0) + DotProduct()),
        (WhiteKernel(0.3), None),
    ],
    ids=str,
)
def test_noise_is_taken_out_and_put_back_where_it_was(kernel, functions):
    found, noise = split_noise(kernel)
    assert found == functions
    assert [white.noise_level for white in noise] == [0.3]
    assert with_noise(kernel, found, 0.3) == kernel
    assert split_noise(with_noise(kernel, found, 0.7))[1][0].noise_level == 0.7


def test_kernels_without_noise_at_the_top_are_left_as_they_are():
    for kernel in (RBF() + 2.0, 2.0 * (RBF() + WhiteKernel()), (RBF() + WhiteKernel()) ** 2):
        assert split_noise(kernel) == (kernel, [])


# As in scikit-learn


@pytest.mark.parametrize("n_outputs", [None, 2])
@pytest.mark.parametrize("normalize_y", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_noise_is_that_of_the_exact_process(fixed, normalize_y, n_outputs):
    X, y = sine(n_outputs=n_outputs)
    shared = {"kernel": RBF(0.8) + WhiteKernel(0.09), "optimizer": None}
    if fixed:  # nothing is learned
        shared = {"kernel": RBF(0.8, "fixed") + WhiteKernel(0.09, "fixed")}
    shared["normalize_y"] = normalize_y
    exact, X_new = exact_process(**shared).fit(X, y), sine(20, seed=1)[0]
    mean, std = exact.predict(X_new, return_std=True)
    for model in at_all_rows(X, **shared):
        model.fit(X, y)
        got = model.predict(X_new, return_std=True)
        assert_allclose(got[0], mean, atol=1e-6)
        assert_allclose(got[1], std, atol=1e-6)
        cov = model.predict(X_new, return_cov=True)[1]
        assert_allclose(cov, exact.predict(X_new, return_cov=True)[1], atol=1e-6)
        assert model.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-5)
        assert_allclose(model.noise_variance_, 0.09 * exact._y_train_std**2, rtol=1e-12)


@pytest.mark.parametrize("n_outputs", [None, 2])
@pytest.mark.parametrize("bounds", ["fixed", (1e-5, 1e5)])
def test_kernels_with_noise_are_learned_as_by_the_exact_process(bounds, n_outputs):
    X, y = sine(n_outputs=n_outputs)
    kernel = 1.0 * RBF(0.8) + WhiteKernel(0.3, bounds)
    exact = exact_process(kernel, normalize_y=True).fit(X, y)
    for model in at_all_rows(X, kernel=kernel, tol=1e-6):
        model.fit(X, y)
        assert_allclose(model.kernel_.theta, exact.kernel_.theta, atol=2e-3)
        assert model.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-4)
        white = model.kernel_.k2.noise_level
        assert white == pytest.approx(exact.kernel_.k2.noise_level, rel=2e-3)
        assert_allclose(model.noise_variance_, white * model._y_std[: n_outputs or 1] ** 2)
        if bounds == "fixed":
            assert white == 0.3


def test_weights_divide_the_noise():
    X, y = sine()
    weights = np.random.default_rng(1).uniform(0.5, 2, 60)
    kernel, shared = RBF(0.8), {"optimizer": None, "normalize_y": False}
    exact = GaussianProcessRegressor(kernel, alpha=0.09 / weights, optimizer=None).fit(X, y)
    mean, std = exact.predict(X, return_std=True)
    for model in at_all_rows(X, kernel=kernel + WhiteKernel(0.09), **shared):
        got = model.fit(X, y, weights).predict(X, return_std=True)
        assert_allclose(got[0], mean, atol=1e-6)
        assert_allclose(got[1], np.sqrt(std**2 + 0.09), atol=1e-6)


def test_integer_weights_repeat_rows_under_the_noise_of_the_kernel():
    X, y = sine(20)
    weights = np.resize([1, 0, 3], 20)
    again = np.repeat(np.arange(20), weights)
    kernel = RBF(0.8) + WhiteKernel(0.09)
    exact = exact_process(kernel, optimizer=None).fit(X[again], y[again])
    used = X[weights > 0]
    for model in at_all_rows(used, kernel=kernel, optimizer=None, normalize_y=False):
        model.fit(X, y, weights)
        assert_allclose(model.predict(X), exact.predict(X), atol=1e-6)
        assert model.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-5)


def test_noise_of_the_kernel_is_in_the_standard_deviation_once():
    X, y = sine(100)
    model = SVGPRegressor(1.0 * RBF(0.8) + WhiteKernel(0.09, "fixed"), normalize_y=False)
    variance = model.fit(X, y).latent_mean_and_variance(X)[1]
    std = model.predict(X, return_std=True)[1]
    assert model.noise_variance_ == pytest.approx(0.09, rel=1e-12)
    assert_allclose(std, np.sqrt(np.ravel(variance) + 0.09), rtol=1e-12)
    assert std.mean() == pytest.approx(0.314, abs=0.005)
    draws = model.sample_y(X, 500)
    assert (draws - draws.mean(1, keepdims=True)).std() == pytest.approx(std.mean(), rel=0.05)


# In every regressor


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_outputs", [None, 2])
@regressors
def test_fixed_noise_stays(model, n_outputs):
    X, y = sine(30, n_outputs)
    kernel = 1.0 * RBF(0.8) + WhiteKernel(0.2, "fixed")
    model = clone(model).set_params(kernel=kernel, max_iter=3).fit(X, y)
    white = next(k for k in model.kernel_.get_params().values() if isinstance(k, WhiteKernel))
    assert white.noise_level == pytest.approx(0.2, rel=1e-12)
    assert_allclose(model.noise_variance_, 0.2 * model._y_std[: n_outputs or 1] ** 2, rtol=1e-12)
    assert np.ndim(model.noise_variance_) == (n_outputs is not None)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@regressors
def test_free_noise_is_one_for_all_outputs_and_within_its_bounds(model):
    X, y = sine(30, 2)
    kernel = 1.0 * RBF(0.8) + WhiteKernel(0.4, (0.3, 0.5))
    model = clone(model).set_params(kernel=kernel, max_iter=3).fit(X, y)
    white = next(k for k in model.kernel_.get_params().values() if isinstance(k, WhiteKernel))
    assert 0.3 * (1 - 1e-9) <= white.noise_level <= 0.5 * (1 + 1e-9)
    assert white.noise_level != pytest.approx(0.4, rel=1e-9)
    assert_allclose(model.noise_variance_, white.noise_level * model._y_std**2, rtol=1e-12)


@pytest.mark.parametrize("model", [DecoupledGPRegressor(**FEW), QSGPRegressor(**FEW, n_basis=50)])
def test_calibration_leaves_fixed_noise_alone(model):
    X, y = sine(600)
    kernel = 1.0 * RBF(0.8) + WhiteKernel(0.5, "fixed")
    model.set_params(kernel=kernel).fit(X, y)
    assert model.noise_variance_ == pytest.approx(0.5 * y.var(), rel=1e-12)
    free = clone(model).set_params(kernel=1.0 * RBF(0.8) + WhiteKernel(0.5)).fit(X, y)
    assert free.noise_variance_ == pytest.approx(0.09, rel=0.3)
    assert free.kernel_.k1.k2.noise_level * y.var() == pytest.approx(free.noise_variance_)


def test_learned_kernels_serve_as_parameters():
    X, y = sine()
    model = SVGPRegressor(1.0 * RBF(0.8) + WhiteKernel(0.3), mean="zero", **FEW).fit(X, y)
    fixed = {"kernel": model.kernel_, "inducing_points": model.inducing_points_}
    again = clone(model).set_params(**fixed, optimizer=None, learn_inducing=False).fit(X, y)
    assert_allclose(again.predict(X), model.predict(X), rtol=1e-6)
    assert again.elbo_ == pytest.approx(model.elbo_, rel=1e-6)


def test_streams_and_warm_starts_keep_the_noise():
    X, y = sine()
    kernel = RBF(0.8) + WhiteKernel(0.09)
    model = SVGPRegressor(kernel, **FEW, optimizer=None, warm_start=True, normalize_y=False)
    for go_on in (model.fit, model.fit, model.partial_fit):
        go_on(X, y)
        assert model.noise_variance_ == pytest.approx(0.09, rel=1e-12)
        assert_allclose(model.kernel_.theta, kernel.theta, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_hybrid_weights_bring_the_noise_back(tmp_path):
    pytest.importorskip("safetensors")
    X, y = sine(30)
    model = HybridSVGPRegressor(kernel=RBF(0.8) + WhiteKernel(0.3), **NETWORK)
    model.fit(X, y).save_weights(tmp_path / "weights")
    other = clone(model).load_weights(tmp_path / "weights")
    assert other.noise_variance_ == model.noise_variance_
    assert other.kernel_ == model.kernel_


# In other estimators


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": RBF() + WhiteKernel(), "noise_variance": 0.1}, "both set the noise"),
        ({"kernel": WhiteKernel()}, "must have one WhiteKernel, .* beside a kernel"),
        ({"kernel": RBF() + WhiteKernel(0.0, "fixed")}, "noise must be positive"),
        ({"kernel": RBF() + WhiteKernel() + WhiteKernel()}, "must have one WhiteKernel"),
        ({"kernel": RBF() + 0.5 * WhiteKernel()}, "not in products or powers"),
        ({"kernel": 2.0 * (RBF() + WhiteKernel())}, "not in products or powers"),
        ({"kernel": (RBF() + WhiteKernel()) ** 2}, "not in products or powers"),
        ({"kernel": RBF() + WhiteKernel(), "likelihood": "laplace"}, "not with other likelihoods"),
    ],
)
@pytest.mark.parametrize(
    "kind", [SVGPRegressor, DecoupledGPRegressor, QSGPRegressor, QSRVMRegressor]
)
def test_noise_that_is_not_clear_is_refused_in_words(kind, parameters, message):
    with pytest.raises(ValueError, match=message):
        kind(**parameters).fit(*sine(10))


@pytest.mark.parametrize(
    "kind",
    [
        BayesianSVC,
        DecoupledGPClassifier,
        HybridBayesianSVC,
        HybridSVGPClassifier,
        QSGPClassifier,
        QSRVMClassifier,
        SVGPClassifier,
    ],
)
def test_classifiers_refuse_noise_in_words(kind):
    X, y = sine(20)
    model = kind(kernel=ConstantKernel() * RBF() + WhiteKernel(1.0, "fixed"))
    with pytest.raises(ValueError, match="other likelihoods, which have noise of their own"):
        model.fit(X, y > 0)
