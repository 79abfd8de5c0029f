"""Known variances of the noise: scikit-learn's alpha, dense oracles, gradients, units, routing."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from oracles import differences
from problems import assert_all_close, rows_of, t64, waves
from scipy.stats import multivariate_normal, norm
from sklearn import config_context
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpsvm import (
    AdditiveGPRegressor,
    DecoupledGPRegressor,
    HybridSVGPRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPRegressor,
    _collapsed,
)
from skgpsvm._collapsed import CollapsedBound, evidence_or_bound
from skgpsvm._evidence import Evidence
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.additive._exact_learning import ExactGaussianAscent

KERNEL = 1.5 * RBF([1.0, 2.0, 3.0])
GIVEN = {"optimizer": None, "normalize_y": False, "mean": "zero", "noise_variance": 0.05}
GIVEN_RVM = {"optimizer": None, "normalize_y": False, "noise_variance": 0.05, "random_state": 0}
KERNEL_OF_FEATURES = 1.0 * RBF(8.0)
POINTS = {"learn_inducing": False, "inducing_points": waves(60)[0]}
SOLVERS = {
    "exact": ({"solver": "exact"}, 1e-6),
    "collapsed": ({"solver": "collapsed", **POINTS}, 1e-6),
    # The jitter of natural gradients is a thousand times that of the collapsed ELBO.
    "natural_gradient": ({"solver": "natural_gradient", **POINTS}, 3e-4),
}
objectives = pytest.mark.parametrize("objective", [Evidence, CollapsedBound])


def measured(n=60, seed=0):
    """Return rows, targets with noise of known variances, and these variances."""
    X, y = waves(n, seed=seed, noise=0.1)
    rng = np.random.default_rng(seed + 100)
    known = rng.uniform(0.01, 0.5, n)
    return X, y + np.sqrt(known) * rng.normal(size=n), known


def two_outputs(n=40):
    """Return rows, some of them repeated, pairs of targets and variances (n, 2, 2), and weights."""
    X, y, known = measured(n)
    X[5:9], X[20] = X[10:14], X[21]
    targets = np.stack([np.c_[y, X[:, 2] - y], np.c_[known, known[::-1]]], -1)
    return X, targets, np.random.default_rng(1).uniform(0.5, 2, n)


def objective_of(objective, X, targets, weights=None):
    return objective(torch_kernel(KERNEL), rows_of(X, targets, weights))


def assert_same_predictions(ours, other, X, atol):
    assert_all_close(ours.predict(X, return_std=True), other.predict(X, return_std=True), atol=atol)


# Against scikit-learn


@pytest.mark.parametrize("solver", SOLVERS)
def test_known_noise_is_scikit_learns_alpha(solver):
    options, tol = SOLVERS[solver]
    X, y, known = measured()
    ours = SVGPRegressor(KERNEL, **GIVEN, **options).fit(X, y, noise_variance=known)
    exact = GaussianProcessRegressor(KERNEL + WhiteKernel(0.05), alpha=known, optimizer=None)
    exact.fit(X, y)
    assert_same_predictions(ours, exact, waves(30, seed=1)[0], tol)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=10 * tol)
    _, variance = ours.latent_mean_and_variance(X)
    function = GaussianProcessRegressor(KERNEL, alpha=known + 0.05, optimizer=None).fit(X, y)
    assert_allclose(np.sqrt(variance), function.predict(X, return_std=True)[1], atol=tol)


@pytest.mark.parametrize("solver", SOLVERS)
def test_outputs_may_have_variances_of_their_own(solver):
    options, _ = SOLVERS[solver]
    X, y, known = measured()
    Y, both = np.c_[y, X[:, 2] - y], np.c_[known, known[::-1]]
    model = SVGPRegressor(KERNEL, **GIVEN, **options)
    together = clone(model).fit(X, Y, noise_variance=both)
    means, stds = together.predict(X, return_std=True)
    for j in range(2):
        alone = clone(model).fit(X, Y[:, j], noise_variance=both[:, j])
        mean, std = alone.predict(X, return_std=True)
        assert_allclose(means[:, j], mean, atol=1e-9)
        assert_allclose(stds[:, j], std, atol=1e-9)
    same = clone(model).fit(X, Y, noise_variance=known)
    repeated = clone(model).fit(X, Y, noise_variance=np.c_[known, known])
    assert_array_equal(same.predict(X), repeated.predict(X))


def test_mean_of_a_row_with_several_measurements_weights_them_by_their_precisions():
    X, y, known = measured(20)
    again = np.repeat(np.arange(20), 3)
    rng = np.random.default_rng(2)
    Y, variances = y[again] + rng.normal(size=60), known[again] * rng.uniform(0.5, 2, 60)
    ours = SVGPRegressor(KERNEL, **GIVEN).fit(X[again], Y, noise_variance=variances)
    exact = GaussianProcessRegressor(KERNEL + WhiteKernel(0.05), alpha=variances, optimizer=None)
    assert_same_predictions(ours, exact.fit(X[again], Y), X, 1e-6)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-5)
    # Equal measurements of unequal variance are not one row.
    Y, variances = y[again], known[again] * np.tile([0.1, 1.0, 10.0], 20)
    ours.fit(X[again], Y, noise_variance=variances)
    exact.set_params(alpha=variances).fit(X[again], Y)
    assert_same_predictions(ours, exact, X, 1e-6)


# Objectives


def test_evidence_is_that_of_a_dense_oracle():
    X, targets, _ = two_outputs()
    weights = np.resize([1.0, 2.0, 3.0], 40)
    again = np.repeat(np.arange(40), weights.astype(int))
    evidence = objective_of(Evidence, X, targets, weights)
    for noise in ([-2.0, -1.0], [-1.5]):
        expected = 0.0
        for j, log_var in enumerate(np.broadcast_to(noise, 2)):
            y, known = targets[again, j].T
            cov = KERNEL(X[again]) + np.diag(np.exp(log_var) + known)
            expected += multivariate_normal(cov=cov).logpdf(y)
        value = evidence.value(t64(KERNEL.theta), t64(X[:1]), t64(noise))
        assert value == pytest.approx(expected, rel=1e-9)


def test_bound_is_titsias_with_a_diagonal_noise_matrix():
    X, targets, weights = two_outputs()
    bound, Z = objective_of(CollapsedBound, X, targets, weights), X[30:37]
    Kzz, Kxz = KERNEL(Z) + 1.5e-9 * np.eye(7), KERNEL(X, Z)
    Q, expected = Kxz @ np.linalg.solve(Kzz, Kxz.T), 0.0
    for j, log_var in enumerate([-2.0, -1.0]):
        y, known = targets[:, j].T
        var = (np.exp(log_var) + known) / weights
        expected += multivariate_normal(cov=Q + np.diag(var)).logpdf(y)
        expected -= 0.5 * ((KERNEL.diag(X) - np.diag(Q)) / var).sum()
        # A weight multiplies the log density: the normalization counts w rows of the noise itself.
        logs = np.log(2 * np.pi * var) - weights * np.log(2 * np.pi * var * weights)
        expected += 0.5 * logs.sum()
    value = bound.value(t64(KERNEL.theta), t64(Z), t64([-2.0, -1.0]))
    assert value == pytest.approx(expected, rel=1e-8)


@objectives
@pytest.mark.parametrize("noise", [[-2.0, -1.0], [-1.5]], ids=["own", "shared"])
def test_gradient_is_the_derivative(objective, noise, monkeypatch):
    monkeypatch.setattr(_collapsed, "_CHUNK_ROWS", 15)
    X, targets, weights = two_outputs()
    target = objective_of(objective, X, targets, weights)
    parts = [t64(KERNEL.theta), t64(X[30:37] + 0.1), t64(noise)]
    value, *gradients = target.value_and_gradient(*parts)
    assert value == pytest.approx(target.value(*parts), rel=1e-12)
    assert_all_close(gradients, differences(target.value, *parts), rtol=1e-6, atol=1e-5)


@objectives
def test_equal_variances_add_to_the_noise(objective):
    X, targets, weights = two_outputs()
    theta, Z, var = t64(KERNEL.theta), t64(X[30:37]), t64([0.2, 0.4])
    targets[..., 1] = 0.1
    split = objective_of(objective, X, targets, weights)
    whole = objective_of(objective, X, targets[..., 0], weights)
    found = split.value_and_gradient(theta, Z, (var - 0.1).log())
    expected = whole.value_and_gradient(theta, Z, var.log())
    assert_all_close(found[:3], expected[:3], rtol=1e-9, atol=1e-9)
    assert_allclose(found[3], expected[3] * (var - 0.1) / var, rtol=1e-9)
    gains = [each.gain_over_noise(theta, Z, (var - 0.1).log()) for each in (split, whole)]
    values = [part.value(theta, Z, (var - 0.1).log()) / weights.sum() for part in (split, whole)]
    assert gains[0] - values[0] == pytest.approx(gains[1] - values[1], abs=1e-8)


@objectives
def test_weights_are_repetitions(objective):
    X, targets, _ = two_outputs()
    weights = np.resize([1, 2, 3], 40)
    again = np.repeat(np.arange(40), weights)
    parts = t64(KERNEL.theta), t64(X[30:37]), t64([-1.0, -2.0])
    weighted = objective_of(objective, X, targets, weights.astype(float))
    repeated = objective_of(objective, X[again], targets[again])
    assert_all_close(
        weighted.value_and_gradient(*parts),
        repeated.value_and_gradient(*parts),
        rtol=1e-9,
        atol=1e-9,
    )


def test_evidence_takes_the_place_of_the_bound_where_every_row_is_a_point():
    X, targets, weights = two_outputs()
    bound = objective_of(CollapsedBound, X, targets, weights)
    theta, Z, noise = t64(KERNEL.theta), torch.unique(t64(X), dim=0), t64([-2.0, -1.0])
    same = evidence_or_bound(bound.kernel, bound.rows, Z)
    assert isinstance(same, Evidence)
    expected = bound.value_and_gradient(theta, Z, noise)
    found = same.value_and_gradient(theta, Z, noise)
    # The jitter is on different matrices.
    assert found[0] == pytest.approx(expected[0], abs=1e-5)
    assert_allclose(found[1], expected[1], rtol=1e-6, atol=1e-5)
    assert_allclose(found[3], expected[3], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("noise", [[-3.0, -3.0], [-3.0]], ids=["own", "shared"])
def test_noise_refitted_to_other_rows_includes_what_is_known_of_them(noise):
    X, targets, weights = two_outputs(80)
    train, others = slice(0, 40), slice(40, None)
    evidence = objective_of(Evidence, X[train], targets[train])
    theta, noise = t64(KERNEL.theta), t64(noise)
    rows = rows_of(X[others], targets[others], weights[others])
    found, density = evidence.refit_noise(theta, noise, rows, noise - 5)
    for shift in (-0.05, 0.0, 0.05):
        total = 0.0
        for j, log_var in enumerate((found + shift).expand(2).tolist()):
            (y, known), (y_new, known_new) = targets[train, j].T, targets[others, j].T
            alpha = known + np.exp(-3.0)
            exact = GaussianProcessRegressor(KERNEL, alpha=alpha, optimizer=None).fit(X[train], y)
            mean, std = exact.predict(X[others], return_std=True)
            density_at = norm.logpdf(y_new, mean, np.sqrt(std**2 + known_new + np.exp(log_var)))
            total += weights[others] @ (density_at + 0.5 * np.log(2 * np.pi))
        if shift:
            assert total < density
        else:
            assert total == pytest.approx(density, abs=1e-5)


# Learning


def test_excess_noise_is_learned():
    X, y, known = measured(400)
    model = SVGPRegressor(random_state=0).fit(X, y, noise_variance=known)
    # The scatter beyond the known noise has standard deviation .1, much less than the known noise.
    assert model.noise_variance_ < 0.05
    rng = np.random.default_rng(1)
    model.fit(X, y + 0.5 * rng.normal(size=400), noise_variance=known)
    # Three standard errors of a variance of .26 among noise of mean variance .25, 400 rows.
    assert model.noise_variance_ == pytest.approx(0.26, abs=3 * 0.51 * np.sqrt(2 / 400))


def test_known_noise_gives_better_means_and_intervals_that_hold():
    X, y, known = measured(300)
    known *= np.where(np.arange(300) % 3, 1, 30)
    f = np.sin(2 * X[:, 0]) + X[:, 1]
    y = f + np.sqrt(known) * np.random.default_rng(3).normal(size=300)
    X_new = waves(500, seed=1)[0]
    f_new = np.sin(2 * X_new[:, 0]) + X_new[:, 1]
    alike = SVGPRegressor(random_state=0).fit(X, y)
    told = SVGPRegressor(random_state=0).fit(X, y, noise_variance=known)
    assert told.score(X_new, f_new) > 1 - 0.5 * (1 - alike.score(X_new, f_new))
    mean, variance = told.latent_mean_and_variance(X_new)
    assert np.mean(np.abs(f_new - mean) < 1.96 * np.sqrt(variance)) > 0.85


@pytest.mark.parametrize("options", [{}, {"n_inducing": 15}, {"solver": "gradient"}], ids=str)
def test_units_of_y_make_no_difference(options):
    X, y, known = measured(80)
    options = {"n_inducing": 15, "max_iter": 5, **options} if options else {}
    model = SVGPRegressor(random_state=0, **options)
    with warnings.catch_warnings(action="ignore"):
        plain = clone(model).fit(X, y, noise_variance=known)
        scaled = clone(model).fit(X, 1024 * y, noise_variance=1024**2 * known)
    assert_allclose(scaled.predict(X), 1024 * plain.predict(X), rtol=1e-7)
    assert scaled.noise_variance_ == pytest.approx(1024**2 * plain.noise_variance_, rel=1e-6)


def test_rows_of_huge_noise_are_as_good_as_absent():
    X, y, known = measured()
    known[::10] = 1e12
    y[::10] += 1e6 * np.random.default_rng(5).normal(size=6)
    kept = np.arange(60) % 10 > 0
    whole = SVGPRegressor(random_state=0).fit(X, y, noise_variance=known)
    part = SVGPRegressor(random_state=0).fit(X[kept], y[kept], noise_variance=known[kept])
    assert_allclose(whole.predict(X), part.predict(X), atol=0.02)
    assert_allclose(
        np.sqrt(whole.latent_mean_and_variance(X)[1]),
        np.sqrt(part.latent_mean_and_variance(X)[1]),
        atol=0.02,
    )


def test_white_kernel_is_what_is_added_to_the_known_noise():
    X, y, known = measured()
    options = GIVEN | {"noise_variance": None}
    fixed = SVGPRegressor(KERNEL + WhiteKernel(0.05, "fixed"), **options)
    given = SVGPRegressor(KERNEL, **GIVEN)
    for model in (fixed, given):
        model.fit(X, y, noise_variance=known)
    assert_array_equal(fixed.predict(X), given.predict(X))
    tiny = SVGPRegressor(KERNEL + WhiteKernel(1e-10, "fixed"), **options)
    exact = GaussianProcessRegressor(KERNEL, alpha=known, optimizer=None).fit(X, y)
    assert_same_predictions(tiny.fit(X, y, noise_variance=known), exact, X, 1e-6)


@pytest.mark.parametrize("solver", ["collapsed", "natural_gradient", "gradient"])
def test_single_precision_is_close(solver):
    X, y, known = measured(100)
    options = {"solver": solver, "inducing_points": X[:20], "learn_inducing": False}
    double = SVGPRegressor(KERNEL, **GIVEN | options, random_state=0)
    single = clone(double).set_params(dtype="float32")
    with warnings.catch_warnings(action="ignore"):
        for model in (double, single):
            model.fit(X, y, noise_variance=known)
    assert_same_predictions(single, double, X, 5e-3)


def test_natural_gradients_learn_as_the_collapsed_bound_does():
    X, y, known = measured(200)
    options = {"n_inducing": 20, "random_state": 0, "mean": "zero", "max_iter": 200}
    steps = SVGPRegressor(1.0 * RBF(), solver="natural_gradient", **options)
    collapsed = SVGPRegressor(1.0 * RBF(), solver="collapsed", **options)
    with warnings.catch_warnings(action="ignore"):
        for model in (steps, collapsed):
            model.fit(X, y, noise_variance=known)
    assert steps.elbo_ == pytest.approx(collapsed.elbo_, abs=2)
    assert_allclose(steps.predict(X), collapsed.predict(X), atol=0.15)


@pytest.mark.parametrize("solver", [*SOLVERS, "gradient"])
def test_equal_variances_are_a_part_of_the_noise(solver):
    X, y, _ = measured()
    options = SOLVERS[solver][0] if solver in SOLVERS else {"solver": solver, **POINTS}
    model = SVGPRegressor(KERNEL, **GIVEN, **options, random_state=0)
    split, whole = clone(model), clone(model).set_params(noise_variance=0.15)
    with warnings.catch_warnings(action="ignore"):
        split.fit(X, y, noise_variance=np.full(60, 0.1))
        whole.fit(X, y)
    assert_allclose(split.predict(X), whole.predict(X), atol=1e-9)
    assert split.elbo_ == pytest.approx(whole.elbo_, abs=1e-8)


# Bases of the mean


@pytest.mark.parametrize("n_bases", [120, 60])
def test_decoupled_means_are_those_of_dense_oracles(n_bases):
    X, y, known = measured(120)
    Y, both = np.c_[y, X[:, 2] - y], np.c_[known, known[::-1]]
    options = {"inducing_points": X, "learn_inducing": False, "n_mean_bases": n_bases}
    model = DecoupledGPRegressor(
        KERNEL, **GIVEN, **options, tol=1e-12, max_iter=500, random_state=0
    ).fit(X, Y, noise_variance=both)
    X_new = waves(30, seed=1)[0]
    means, stds = model.predict(X_new, return_std=True)
    bases = model.mean_bases_
    K, Kx = KERNEL(bases), KERNEL(X, bases)
    for j in range(2):
        precision = 1 / (both[:, j] + 0.05)
        coef = np.linalg.solve(Kx.T * precision @ Kx + K, Kx.T @ (precision * Y[:, j]))
        assert_allclose(means[:, j], KERNEL(X_new, bases) @ coef, atol=1e-4)
        exact = GaussianProcessRegressor(KERNEL + WhiteKernel(0.05), alpha=both[:, j])
        exact.set_params(optimizer=None).fit(X, Y[:, j])
        mean, std = exact.predict(X_new, return_std=True)
        assert_allclose(stds[:, j], std, atol=1e-6)
        if n_bases == 120:
            assert_allclose(means[:, j], mean, atol=1e-6)


@pytest.mark.parametrize("solver", ["cg", "sgd"])
def test_equal_variances_are_a_part_of_the_noise_of_decoupled_models(solver):
    X, y, _ = measured(80)
    model = DecoupledGPRegressor(
        KERNEL, **GIVEN, solver=solver, n_mean_bases=40, max_iter=10, random_state=0
    )
    split, whole = clone(model), clone(model).set_params(noise_variance=0.15)
    with warnings.catch_warnings(action="ignore"):
        split.fit(X, y, noise_variance=np.full(80, 0.1))
        whole.fit(X, y)
    assert_allclose(split.predict(X), whole.predict(X), atol=1e-6)
    assert split.elbo_ == pytest.approx(whole.elbo_, rel=1e-6)


@pytest.mark.parametrize("covariance", ["nystroem", "chevron"])
def test_equal_variances_are_a_part_of_the_noise_of_random_features(covariance):
    X, y, _ = measured(80)
    model = QSGPRegressor(KERNEL, **GIVEN, covariance=covariance, n_basis=60, random_state=0)
    split, whole = clone(model), clone(model).set_params(noise_variance=0.15)
    split.fit(X, y, noise_variance=np.full(80, 0.1))
    whole.fit(X, y)
    assert_allclose(split.predict(X), whole.predict(X), atol=1e-6)
    assert split.elbo_ == pytest.approx(whole.elbo_, rel=1e-6)
    split.set_params(covariance="nystroem", solver="sgd")
    with pytest.raises(ValueError, match=r"Stochastic steps take no noise_variance .* solver='cg'"):
        split.fit(X, y, noise_variance=np.full(80, 0.1))


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_calibration_on_held_out_rows_leaves_known_noise_out(seed):
    X, y, known = measured(600, seed)
    model = DecoupledGPRegressor(random_state=0).fit(X, y, noise_variance=known)
    # The learned noise has variance .01, the known noise .26.
    assert model.noise_variance_ < 0.05
    mean, variance = model.latent_mean_and_variance(X)
    f = np.sin(2 * X[:, 0]) + X[:, 1]
    # With less of a prior on the power, the variances of two seeds covered a third of the function.
    assert np.mean(np.abs(f - mean) < 1.96 * np.sqrt(variance)) > 0.85


@pytest.mark.parametrize("sparse", [False, True])
def test_large_weights_beside_known_noise(sparse):
    """Hyperparameters are learned at normalized weights, and the posterior at the given ones."""
    X, y = waves(60, seed=0)
    y = y - 0.3 * np.cos(X[:, 0])
    weights = np.r_[300.0, np.ones(59)]
    options = {"sparse": sparse, "interactions": 0, "random_state": 0}
    known, other = AdditiveGPRegressor(**options), AdditiveGPRegressor(**options)
    known.fit(X, y, sample_weight=weights, noise_variance=np.full(60, 1e-9))
    other.fit(X, y, sample_weight=weights)
    found, expected = (np.stack(m.predict(X, return_std=True)) for m in (known, other))
    assert_allclose(found, expected, atol=0.02 * y.std())


def test_decoupled_stream_is_a_fit_of_all_rows():
    X, y, known = measured(120)
    options = GIVEN | {"inducing_points": X[:30], "learn_inducing": False, "n_mean_bases": 60}
    stream = DecoupledGPRegressor(KERNEL, **options, tol=1e-10, max_iter=500, random_state=0)
    for part in (slice(0, 60), slice(60, None)):
        stream.partial_fit(X[part], y[part], noise_variance=known[part])
    bases = stream.mean_bases_
    K, Kx, precision = KERNEL(bases), KERNEL(X, bases), 1 / (known + 0.05)
    coef = np.linalg.solve(Kx.T * precision @ Kx + K, Kx.T @ (precision * y))
    assert_allclose(stream.predict(X), Kx @ coef, atol=1e-4)


# Relevance vectors


def test_evidence_of_relevance_vectors_is_that_of_a_dense_oracle():
    X, y, known = measured()
    Y, both = np.c_[y, X[:, 2] - y], np.c_[known, known[::-1]]
    model = QSRVMRegressor(RBF(1.0), **GIVEN_RVM, tol=1e-10).fit(X, Y, noise_variance=both)
    functions = np.c_[RBF(1.0)(X, model.relevance_vectors_), np.ones(60)]
    state = model._latents[0].state("cpu")
    expected = 0.0
    for j in range(2):
        cov = functions / state["precisions"][j].numpy() @ functions.T
        total = cov + np.diag(both[:, j] + 0.05)
        expected += multivariate_normal(cov=total).logpdf(Y[:, j])
        mean = cov @ np.linalg.solve(total, Y[:, j])
        assert_allclose(model.predict(X)[:, j], mean, atol=1e-8)
    assert model.elbo_ == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("covariance", ["full", "mean_field"])
def test_equal_variances_are_a_part_of_the_noise_of_relevance_vectors(covariance):
    X, y, _ = measured(80)
    split = QSRVMRegressor(RBF(1.0), **GIVEN_RVM, covariance=covariance)
    whole = clone(split).set_params(noise_variance=0.15)
    split.fit(X, y, noise_variance=np.full(80, 0.1))
    whole.fit(X, y)
    assert_allclose(split.predict(X), whole.predict(X), atol=1e-8)
    assert split.elbo_ == pytest.approx(whole.elbo_, abs=1e-8)
    split.set_params(solver="quadruply_stochastic", covariance="auto")
    with pytest.raises(ValueError, match=r"take no noise_variance .* solver='sweeps'"):
        split.fit(X, y, noise_variance=np.full(80, 0.1))


@pytest.mark.parametrize("covariance", ["full", "mean_field"])
def test_sweeps_beside_known_noise_never_lower_the_bound(covariance):
    X, y, known = measured(150)
    known *= np.where(np.arange(150) % 3, 1, 30)
    model = QSRVMRegressor(covariance=covariance, random_state=0).fit(X, y, noise_variance=known)
    assert (np.diff(model.objective_curve_) >= 0).all()


def test_noise_of_relevance_vectors_maximizes_the_evidence_beside_known_noise():
    X, y, known = measured(150)
    y = y + 0.4 * np.random.default_rng(1).normal(size=150)
    kernel = RBF(1.0, "fixed")
    model = QSRVMRegressor(kernel, normalize_y=False, random_state=0, tol=1e-10)
    model.fit(X, y, noise_variance=known)
    functions = np.c_[kernel(X, model.relevance_vectors_), np.ones(150)]
    cov = functions / model._latents[0].precisions[0] @ functions.T
    grid = np.linspace(0.001, 1.0, 1000)
    density = [multivariate_normal(cov=cov + np.diag(known + v)).logpdf(y) for v in grid]
    # Held-out rows may raise the noise of predictions, but not that of the bound.
    assert model.elbo_ == pytest.approx(max(density), abs=1e-3)
    assert model.noise_variance_ > grid[np.argmax(density)] - 0.001


# Networks


def test_equal_variances_are_a_part_of_the_noise_of_networks():
    X, y, _ = measured(80)
    y = (y - y.mean()) / y.std()
    fixed = {"early_stopping": False, "max_iter": 3, "random_state": 0}
    split, whole = (
        HybridSVGPRegressor(kernel=KERNEL_OF_FEATURES + WhiteKernel(v, "fixed"), **fixed)
        for v in (0.05, 0.15)
    )
    split.fit(X, y, noise_variance=np.full(80, 0.1))
    whole.fit(X, y)
    # Where known noise is equal, the solution of the head takes other steps to the same optimum.
    assert_allclose(split.predict(X), whole.predict(X), atol=1e-6)


def test_networks_are_trained_beside_known_noise():
    X, _, known = measured(300)
    known *= np.where(np.arange(300) % 3, 1, 30)
    f = np.sin(2 * X[:, 0]) + X[:, 1]
    y = f + np.sqrt(known) * np.random.default_rng(3).normal(size=300)
    X_new = waves(500, seed=1)[0]
    f_new = np.sin(2 * X_new[:, 0]) + X_new[:, 1]
    told, alike = (
        HybridSVGPRegressor(random_state=0).fit(X, y, noise_variance=variance)
        for variance in (known, None)
    )
    assert told.score(X_new, f_new) > 1 - 0.7 * (1 - alike.score(X_new, f_new))
    assert told.noise_variance_ < 0.5 < 1 < alike.noise_variance_


# Sums of effects


@pytest.mark.parametrize("sparse", [False, True])
def test_effects_are_learned_beside_known_noise(sparse):
    X, _, known = measured(300)
    known *= np.where(np.arange(300) % 3, 1, 20)
    f = np.sin(2 * X[:, 0]) + X[:, 1]
    y = f + np.sqrt(known) * np.random.default_rng(3).normal(size=300)
    told, alike = (
        AdditiveGPRegressor(sparse=sparse).fit(X, y, noise_variance=variance)
        for variance in (known, None)
    )
    assert told.noise_variance_ < 0.1 < 1 < alike.noise_variance_
    X_new = waves(500, seed=1)[0]
    f_new = np.sin(2 * X_new[:, 0]) + X_new[:, 1]
    mean, variance = told.latent_mean_and_variance(X_new)
    assert told.score(X_new, f_new) > 1 - 0.5 * (1 - alike.score(X_new, f_new))
    assert np.mean(np.abs(f_new - mean) < 1.96 * np.sqrt(variance)) > 0.85
    scaled = clone(told).fit(X, 1024 * y, noise_variance=1024**2 * known)
    assert_allclose(scaled.predict(X), 1024 * told.predict(X), rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_equal_variances_are_a_part_of_the_noise_of_additive_models(sparse, monkeypatch):
    monkeypatch.setattr(ExactGaussianAscent, "_share", 0.1)  # near the optimum
    X, y, _ = measured(200)
    split, whole = (
        AdditiveGPRegressor(sparse=sparse, tol=1e-6, max_iter=100).fit(X, y, noise_variance=equal)
        for equal in (np.full(200, 0.1), None)
    )
    assert split.term_names_ == whole.term_names_
    assert split.noise_variance_ + 0.1 == pytest.approx(whole.noise_variance_, rel=0.02)
    assert split.elbo_ == pytest.approx(whole.elbo_, abs=0.2)
    assert_allclose(split.predict(X), whole.predict(X), atol=0.03)


def test_additive_posterior_is_that_of_the_known_noise():
    X, y, known = measured(100)
    model = AdditiveGPRegressor(sparse=False, interactions=None).fit(X, y, noise_variance=known)
    prior = model._latents[0].posterior("cpu")._prior
    K = prior.matrix.numpy()
    var = (known + model.noise_variance_) / model._y_std**2
    order = np.lexsort(X.T[::-1])
    rows = (y[order] - model._y_mean) / model._y_std
    cov = K + np.diag(var[order])
    assert model.elbo_ == pytest.approx(multivariate_normal(cov=cov).logpdf(rows), abs=1e-6)
    mean = K @ np.linalg.solve(cov, rows) * model._y_std + model._y_mean
    assert_allclose(model.predict(X[order]), mean, atol=1e-6)


# Further fits


def test_stream_is_a_fit_of_all_rows():
    X, y, known = measured()
    options = GIVEN | {"inducing_points": X[:15], "learn_inducing": False}
    whole = SVGPRegressor(KERNEL, **options).fit(X, y, noise_variance=known)
    stream = SVGPRegressor(KERNEL, **options)
    for part in (slice(0, 25), slice(25, None)):
        stream.partial_fit(X[part], y[part], noise_variance=known[part])
    assert_same_predictions(stream, whole, X, 1e-8)
    assert stream.elbo_ == pytest.approx(whole.elbo_, abs=1e-6)
    # Rows without known noise have that of the model alone.
    mixed, zeros = SVGPRegressor(KERNEL, **options), np.zeros(35)
    mixed.partial_fit(X[:25], y[:25], noise_variance=known[:25]).partial_fit(X[25:], y[25:])
    whole.fit(X, y, noise_variance=np.r_[known[:25], zeros])
    assert_same_predictions(mixed, whole, X, 1e-8)


def test_warm_start_takes_known_noise():
    X, y, known = measured(100)
    model = SVGPRegressor(random_state=0, warm_start=True).fit(X, y, noise_variance=known)
    first = model.elbo_
    model.fit(X, y, noise_variance=known)
    assert model.elbo_ >= first - 0.01
    fresh = SVGPRegressor(random_state=0).fit(X, y)
    assert model.fit(X, y).elbo_ > fresh.elbo_ - 1.0


# The interface


@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(likelihood="student_t"),
        SVGPRegressor(likelihood="heteroscedastic"),
        AdditiveGPRegressor(likelihood="heteroscedastic"),
        HybridSVGPRegressor(likelihood="laplace"),
        QSRVMRegressor(likelihood="laplace"),
    ],
    ids=str,
)
def test_known_noise_is_gaussian(model):
    X, y, known = measured()
    with pytest.raises(ValueError, match="noise_variance is that of Gaussian noise"):
        clone(model).fit(X, y, noise_variance=known)


def test_invalid_variances_are_refused():
    X, y, known = measured()
    for wrong, message in (
        (known[:-1], r"noise_variance has shape \(59,\); it must have shape \(60,\)"),
        (np.c_[known, known], r"noise_variance has shape \(60, 2\); it must have shape \(60,\)"),
        (-known, "noise_variance must not be negative; the least is"),
        (np.r_[known[1:], np.nan], "noise_variance contains NaN"),
        (0.1, r"noise_variance has shape \(\); it must"),
    ):
        with pytest.raises(ValueError, match=message):
            SVGPRegressor().fit(X, y, noise_variance=wrong)
    with pytest.raises(ValueError, match=r"must have shape \(60,\) or \(60, 3\)"):
        SVGPRegressor().fit(X, np.c_[y, y, y], noise_variance=np.c_[known, known])


def test_weights_far_from_one_are_told_of_the_parameter():
    X, y, known = measured()
    with pytest.warns(UserWarning, match="Pass known variances of the noise as noise_variance"):
        SVGPRegressor(KERNEL, **GIVEN).fit(X, y, sample_weight=1e3 / known)


def test_known_noise_is_routed():
    X, y, known = measured()
    with config_context(enable_metadata_routing=True):
        model = SVGPRegressor(KERNEL, **GIVEN).set_fit_request(noise_variance=True)
        pipeline = make_pipeline(StandardScaler(), model)
        search = GridSearchCV(
            pipeline, {"svgpregressor__kernel": [KERNEL, 1.0 * RBF()]}, cv=[(range(40), range(40))]
        )
        search.fit(X, y, noise_variance=known)
        pipeline.fit(X, y, noise_variance=known)
    scaled = StandardScaler().fit_transform(X)
    direct = SVGPRegressor(KERNEL, **GIVEN).fit(scaled, y, noise_variance=known)
    assert_array_equal(pipeline.predict(X), direct.predict(scaled))
    few = StandardScaler().fit_transform(X[:40])
    part = SVGPRegressor(KERNEL, **GIVEN).fit(few, y[:40], noise_variance=known[:40])
    assert search.cv_results_["mean_test_score"][0] == pytest.approx(part.score(few, y[:40]))
