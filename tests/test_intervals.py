"""Intervals of y: quantiles of predictive distributions, and conformal intervals."""

import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_all_close, assert_all_equal, waves
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import LeaveOneOut

from skgpsvm import (
    AdditiveGPRegressor,
    DecoupledGPRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPRegressor,
)
from skgpsvm._predictive import LeftOut

KERNEL = 1.0 * RBF(0.5)
GIVEN = {"optimizer": None, "normalize_y": False, "mean": "zero", "noise_variance": 0.05}
SCENES = {
    "as modeled": lambda X, rng: 0.3 * rng.normal(size=len(X)),
    "heavy tails": lambda X, rng: 0.3 * rng.standard_t(2, size=len(X)),
    "skewed": lambda X, rng: 0.3 * (rng.exponential(size=len(X)) - 1),
    "uneven": lambda X, rng: 0.1 * np.exp(X[:, 0]) * rng.normal(size=len(X)),
    "steps": lambda X, rng: np.sign(np.sin(5 * X[:, 0])) + 0.05 * rng.normal(size=len(X)),
}


def scene(noise, seed, n=40, n_new=50):
    """Return training rows and new rows of a sine with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n + n_new, 1))
    y = np.sin(3 * X[:, 0]) + SCENES[noise](X, rng)
    return X[:n], y[:n], X[n:], y[n:]


def covered(model, X, y, *args):
    lower, upper = model.predict_interval(X, *args)
    return np.mean((lower <= y) & (y <= upper))


# Predictive quantiles


def test_gaussian_intervals_are_standard_deviations():
    X, y = waves(60)
    Y = np.c_[y, X[:, 2] - y]
    model = SVGPRegressor(KERNEL, **GIVEN).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X, 0.95)
    assert_allclose(lower, mean - norm.ppf(0.975) * std)
    assert_allclose(upper, mean + norm.ppf(0.975) * std)
    assert lower.shape == (60, 2)
    assert model.fit(X, y).predict_interval(X)[0].shape == (60,)


@pytest.mark.parametrize("likelihood", ["student_t", "laplace"])
def test_intervals_hold_draws_of_the_model(likelihood):
    X, y = waves(80)
    options = {"solver": "natural_gradient", "inducing_points": X[:20], "learn_inducing": False}
    model = SVGPRegressor(KERNEL, likelihood=likelihood, **GIVEN | options)
    with warnings.catch_warnings(action="ignore"):
        model.fit(X, y)
    lower, upper = model.predict_interval(X[:10], 0.8)
    draws = model.sample_y(X[:10], 4000)
    held = ((lower[:, None] <= draws) & (draws <= upper[:, None])).mean(1)
    assert_allclose(held, 0.8, atol=5 * np.sqrt(0.16 / 4000))


# Conformal intervals


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("points", [60, 15])
def test_scores_are_those_of_refits_without_a_row(points, known):
    X, y = waves(60)
    Y, variances = np.c_[y, X[:, 2] - y], np.linspace(0.01, 0.3, 60)
    options = GIVEN | {"inducing_points": X[:points], "learn_inducing": False}
    model = SVGPRegressor(1.5 * RBF(1.0), **options)
    noise = {"noise_variance": variances} if known else {}
    whole = clone(model).fit(X, Y, **noise)
    order = np.lexsort(X.T[::-1])
    assert_array_equal(whole._left_out.weights, np.ones(60))
    for place, i in enumerate(order):
        others = np.arange(60) != i
        noise = {"noise_variance": variances[others]} if known else {}
        mean, std = clone(model).fit(X[others], Y[others], **noise).predict(X[[i]], return_std=True)
        total = np.sqrt(std**2 + variances[i] * known)
        assert_allclose(whole._left_out.scores[place], np.abs(Y[i] - mean[0]) / total[0], rtol=1e-4)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("weights", [np.ones(60), np.resize([1.0, 3.0, 0.5], 60)])
def test_scores_of_effects_are_those_of_a_dense_oracle(known, weights):
    X, y = waves(60)
    variances = np.linspace(0.01, 0.3, 60) if known else np.zeros(60)
    noise = {"noise_variance": variances} if known else {}
    model = AdditiveGPRegressor(sparse=False, interactions=None).fit(X, y, weights, **noise)
    order = np.lexsort(X.T[::-1])
    K = model._latents[0].posterior("cpu")._prior.matrix.numpy()
    var = (variances[order] + model.noise_variance_) / model._y_std**2
    of_mean = var / weights[order]  # of so many observations
    inverse = np.linalg.inv(K + np.diag(of_mean))
    alpha = inverse @ ((y[order] - model._y_mean) / model._y_std)
    # Rasmussen and Williams (2006), eqs. 5.10 to 5.12; a new row is one observation.
    left_var = 1 / inverse.diagonal() - of_mean
    expected = np.abs(alpha) / inverse.diagonal() / np.sqrt(left_var + var)
    assert_allclose(model._left_out.scores[:, 0], expected, atol=1e-12)


@pytest.mark.parametrize("model", [DecoupledGPRegressor(), QSGPRegressor(n_basis=300)], ids=str)
def test_conformal_intervals_of_calibrated_models_have_held_out_rows(model):
    X, y, *new = scene("heavy tails", 0, 600, 2000)
    model = clone(model).set_params(random_state=0).fit(X, y)
    assert model._left_out.weights.sum() == 60
    # Four standard errors, of 60 held-out and 2000 new rows.
    assert covered(model, *new, 0.9, "conformal") == pytest.approx(0.9, abs=4 * 0.3 / np.sqrt(58))
    lower, upper = model.predict_interval(X, 0.9)
    assert (lower < upper).all()
    model.fit(X[:400], y[:400])
    with pytest.raises(ValueError, match="has no residuals of rows"):
        model.predict_interval(X, 0.9, "conformal")


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"likelihood": "laplace"}], ids=str)
def test_conformal_intervals_of_effects_hold(options):
    X, y = waves(2400, noise=0.3)
    model = AdditiveGPRegressor(**options).fit(X[:400], y[:400])
    found = covered(model, X[400:], y[400:], 0.9, "conformal")
    assert found == pytest.approx(0.9, abs=4 * 0.3 / np.sqrt(333))


@pytest.mark.parametrize("noise", SCENES)
def test_conformal_intervals_hold_new_rows_whatever_the_noise(noise):
    # The model's noise has a standard deviation of .1, a third of the true one or less.
    model = SVGPRegressor(KERNEL, **GIVEN | {"noise_variance": 0.01})
    by_method = {"conformal": [], "predictive": []}
    for seed in range(200):
        X, y, *new = scene(noise, seed)
        model.fit(X, y)
        for method, found in by_method.items():
            found.append(covered(model, *new, 0.9, method))
    # Four standard errors, with 40 training rows in each of 200 problems.
    assert np.mean(by_method["conformal"]) == pytest.approx(0.9, abs=4 * 0.06 / np.sqrt(200))
    assert np.mean(by_method["predictive"]) < 0.8


def dense_jackknife(kernel, noise, X, y, X_new):
    """Return residuals (n,) of rows without them, and their standard deviations.

    Further arrays are means and standard deviations at new rows, (k, 1) of all rows, and (k, n)
    without each. With A the inverse of the covariance of y and g = A k(x), these are m - g_i r_i
    and the root of v + g_i^2 / A_ii, from the inverse of a matrix without a row.
    """
    inverse = np.linalg.inv(kernel(X) + noise * np.eye(len(X)))
    diag, cross = inverse.diagonal(), kernel(X_new, X)
    residual, G = inverse @ y / diag, cross @ inverse
    mean = (G @ y)[:, None]
    var = (kernel.diag(X_new) + noise - (G * cross).sum(1))[:, None]
    without = mean - G * residual, np.sqrt(var + G**2 / diag)
    return residual, diag**-0.5, mean, np.sqrt(var), *without


def jackknife_plus(residual, mean, level, scale=1.0):
    """Return the intervals of Barber et al. (2021), eq. 1.3, with residuals relative to scales."""
    k = int(np.ceil(level * (len(residual) + 1) - 1e-9)) - 1
    half = np.abs(residual) * scale
    return -np.sort(half - mean)[:, k], np.sort(mean + half)[:, k]


@pytest.mark.parametrize("noise", SCENES)
def test_conformal_intervals_are_nearly_those_of_the_jackknife_plus(noise):
    """The bound of the jackknife+ holds for them too: 1 - 2 alpha = .8 at level .9."""
    model, found = SVGPRegressor(KERNEL, **GIVEN | {"noise_variance": 0.01}), []
    for seed in range(200):
        X, y, X_new, y_new = scene(noise, seed, n=20)
        residual, sd, _, sd_new, *without = dense_jackknife(KERNEL, 0.01, X, y, X_new)
        lower, upper = model.fit(X, y).predict_interval(X_new, 0.9, "conformal")
        z = np.sort(np.abs(residual) / sd)[18]
        assert_allclose(upper - lower, 2 * z * sd_new[:, 0], rtol=1e-4)
        both = (lower, upper), jackknife_plus(residual / sd, without[0], 0.9, without[1])
        share = [np.mean((low <= y_new) & (y_new <= high)) for low, high in both]
        found.append([*share, np.median(upper - lower) / np.median(np.subtract(*both[1][::-1]))])
    ours, plus, length = np.mean(found, 0)
    # Four standard errors, with 20 training rows in each of 200 problems.
    error = 4 * 0.09 / np.sqrt(200)
    assert min(ours, plus) > 0.8 + error
    assert ours == pytest.approx(plus, abs=0.02)
    assert 0.9 < length < 1


@pytest.mark.parametrize(("method", "noise"), [("base", "steps"), ("plus", "heavy tails")])
def test_jackknife_is_that_of_mapie(method, noise):
    mapie = pytest.importorskip("mapie.regression")
    X, y, X_new, _ = scene(noise, 0, n=20)
    model = SVGPRegressor(KERNEL, **GIVEN | {"noise_variance": 0.01})
    peer = mapie.CrossConformalRegressor(
        model, confidence_level=0.9, method=method, cv=LeaveOneOut()
    ).fit_conformalize(X, y)
    residual, _, mean, _, without, _ = dense_jackknife(KERNEL, 0.01, X, y, X_new)
    mean = without if method == "plus" else mean.repeat(20, 1)
    expected = np.stack(jackknife_plus(residual, mean, 0.9), 1)
    assert_allclose(peer.predict_interval(X_new)[1][..., 0], expected, atol=1e-4)


@pytest.mark.parametrize("noise", ["as modeled", "uneven", "steps"])
def test_conformal_intervals_hold_new_rows_if_the_kernel_is_learned(noise):
    model, found = SVGPRegressor(1.0 * RBF(0.5), random_state=0), []
    with warnings.catch_warnings(action="ignore"):
        for seed in range(30):
            X, y, *new = scene(noise, seed)
            found.append(covered(model.fit(X, y), *new, 0.9, "conformal"))
    # The kernel has seen the row that is left out, so that coverage is a little lower.
    assert 0.85 < np.mean(found) < 0.95


@pytest.mark.parametrize("options", [{"n_inducing": 20}, {"likelihood": "student_t"}], ids=str)
def test_conformal_intervals_of_sparse_models_hold(options):
    X, y, *new = scene("as modeled", 0, 400, 2000)
    model = SVGPRegressor(random_state=0, **options).fit(X, y)
    # Four standard errors, of 400 and 2000 rows.
    assert covered(model, *new, 0.9, "conformal") == pytest.approx(0.9, abs=4 * 0.3 / np.sqrt(333))


def test_integer_weights_are_repetitions():
    X, y = waves(40)
    weights = np.resize([1, 2, 3], 40)
    model = SVGPRegressor(KERNEL, **GIVEN)
    weighted = clone(model).fit(X, y, sample_weight=weights)
    repeated = clone(model).fit(np.repeat(X, weights, 0), np.repeat(y, weights))
    assert_all_close(
        weighted.predict_interval(X, 0.9, "conformal"),
        repeated.predict_interval(X, 0.9, "conformal"),
    )


def test_quantiles_count_the_new_row():
    left_out = LeftOut(np.arange(1.0, 10)[::-1, None], np.ones(9))
    # The new row is one of ten: the ninth of nine is exceeded with probability .1 at most.
    assert left_out.quantiles(0.9) == 9
    assert left_out.quantiles(0.8) == 8
    assert left_out.quantiles(0.81) == 9
    assert left_out.quantiles(0.1) == 1
    with pytest.raises(ValueError, match=r"level=0\.95 needs rows of weight 19 .* there are 9"):
        left_out.quantiles(0.95)
    both = left_out.joined(LeftOut(np.full((10, 1), 20.0), np.full(10, 0.5)))
    assert both.quantiles(0.5) == 8
    assert both.quantiles(0.9) == 20


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_scores_of_a_long_stream_are_thinned_and_keep_their_weight(weight):
    rng = np.random.default_rng(0)
    left_out = LeftOut(rng.uniform(size=(300, 1)), np.full(300, weight))
    for _ in range(11):
        left_out = left_out.joined(LeftOut(rng.uniform(size=(300, 1)), np.full(300, weight)))
    assert len(left_out.scores) == len(left_out.weights) == 3000
    assert left_out.weights.sum() == pytest.approx(3600 * weight)
    assert left_out.quantiles(0.9) == pytest.approx(0.9, abs=0.02)
    # Few new rows of larger scores count no more than their share.
    left_out = left_out.joined(LeftOut(np.full((300, 1), 2.0), np.full(300, weight)))
    share = left_out.weights[left_out.scores[:, 0] == 2].sum() / left_out.weights.sum()
    assert share == pytest.approx(300 / 3900, rel=0.02)


def test_every_row_of_a_stream_counts():
    X, y = waves(60)
    options = GIVEN | {"inducing_points": X[:15], "learn_inducing": False}
    model = SVGPRegressor(KERNEL, **options)
    for part in (slice(0, 40), slice(40, 60)):
        model.partial_fit(X[part], y[part])
    assert len(model._left_out.scores) == 60


def test_residuals_are_pickled_and_forgotten():
    X, y = waves(40)
    model = SVGPRegressor(KERNEL, **GIVEN).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert_all_equal(
        again.predict_interval(X, 0.9, "conformal"), model.predict_interval(X, 0.9, "conformal")
    )


def test_invalid_arguments_are_refused():
    X, y = waves(15)
    with pytest.raises(NotFittedError):
        SVGPRegressor().predict_interval(X)
    model = SVGPRegressor(KERNEL, **GIVEN).fit(X, y)
    with pytest.raises(ValueError, match=r"level=1\.5 must be between 0 and 1"):
        model.predict_interval(X, 1.5)
    with pytest.raises(ValueError, match="method='mapie' is not one of"):
        model.predict_interval(X, method="mapie")
    with pytest.raises(ValueError, match=r"level=0\.99 needs rows of weight 99"):
        model.predict_interval(X, 0.99, "conformal")
    other = QSRVMRegressor(n_basis=10, random_state=0).fit(X, y)
    assert (np.subtract(*other.predict_interval(X)) < 0).all()
    with pytest.raises(ValueError, match=r"This QSRVMRegressor has no .* 'Intervals and sets'"):
        other.predict_interval(X, method="conformal")
