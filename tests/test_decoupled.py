"""Decoupled variational GPs: conjugate gradients, variances, streams, both solvers."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from oracles import collapsed, means_at
from problems import EDGES, assert_all_close, given, set_constants, sinc, t64, waves
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.kernel_ridge import KernelRidge

from skgpsvm import (
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
    _bases,
)
from skgpsvm.kernels import MultiscaleRBF
from skgpsvm.solvers import ConjugateGradients, StochasticGradient

# The exact GP


def test_all_rows_as_bases_and_inducing_points_are_the_exact_process():
    X, y = waves(100)
    kernel = 1.5 * RBF([1.0, 2.0, 3.0])
    ours = given(kernel, X, noise_variance=0.05).fit(X, y)
    exact = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None).fit(X, y)
    X_new = waves(50, seed=1)[0]
    mean, std = ours.predict(X_new, return_std=True)
    exact_mean, exact_std = exact.predict(X_new, return_std=True)
    # The error is the jitter of 1e-9 over the noise, summed over rows.
    assert_allclose(mean, exact_mean, atol=5e-6)
    assert_allclose(std, np.sqrt(exact_std**2 + 0.05), atol=1e-6)
    exact_cov = exact.predict(X_new, return_cov=True)[1] + 0.05 * np.eye(50)
    assert_allclose(ours.predict(X_new, return_cov=True)[1], exact_cov, atol=1e-6)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-5)
    assert ours.variance_power_ == 1.0
    assert ours.noise_variance_ == pytest.approx(0.05)


def test_mean_is_that_of_kernel_ridge_regression():
    X, y = waves(100)
    ours = given(RBF(1.3), X[:5], noise_variance=0.2).fit(X, y)
    ridge = KernelRidge(alpha=0.2, kernel="rbf", gamma=0.5 / 1.3**2).fit(X, y)
    X_new = waves(50, seed=1)[0]
    assert_allclose(ours.predict(X_new), ridge.predict(X_new), atol=1e-6)


def test_fewer_bases_than_rows_solve_the_normal_equations():
    X, y = waves(100)
    kernel = 1.5 * RBF([1.0, 2.0, 3.0])
    ours = given(kernel, X[:10], n_mean_bases=30, noise_variance=0.05, random_state=0).fit(X, y)
    bases = ours.mean_bases_
    assert len({tuple(base) for base in bases} & {tuple(row) for row in X}) == len(bases) == 30
    X_new = waves(50, seed=1)[0]
    # The error is the jitter of 1e-9 over the noise, summed over rows.
    assert_allclose(ours.predict(X_new), means_at(kernel, bases, X, y, 0.05, X_new), atol=5e-6)
    sparse = SVGPRegressor(
        kernel,
        mean="zero",
        inducing_points=X[:10],
        noise_variance=0.05,
        optimizer=None,
        learn_inducing=False,
        normalize_y=False,
    ).fit(X, y)
    variance = variances_of_points(ours, X_new)
    assert_allclose(variance[:, 0], sparse.latent_mean_and_variance(X_new)[1], rtol=1e-9)
    assert ours.elbo_ == pytest.approx(collapsed(kernel, X[:10], bases, X, y, 0.05), rel=1e-6)


def variances_of_points(model, X):
    """Return the variances of the inducing points alone, without the rows near a place."""
    posterior = replace(model._latents[0], local_root=None).posterior("cpu")
    return posterior.marginals(t64(X))[1].numpy()


class Identity:
    """Preconditioner that does nothing."""

    def __init__(self, bases, gram):
        pass

    def __call__(self, residual):
        return residual


def test_preconditioner_saves_most_iterations(monkeypatch):
    X, y, _ = sinc()
    set_constants(monkeypatch, gram_speed=0)
    settings = {"n_mean_bases": 100, "noise_variance": 0.01, "random_state": 0}
    model = given(RBF(0.5), X[:20], **settings, tol=1e-6).fit(X, y)
    # The specification's gap falls below 1e-4 in ten iterations; a residual of 1e-6 needs more.
    assert model.n_iter_ <= 25
    early = clone(model).set_params(tol=1e-2).fit(X, y)
    assert early.n_iter_ < model.n_iter_
    gap = np.abs(early.predict(X) - model.predict(X)).max()
    monkeypatch.setattr(_bases, "CholeskyPreconditioner", Identity)
    settings = {"max_iter": 3 * model.n_iter_}
    with pytest.warns(ConvergenceWarning, match=r"reached max_iter=\d+ before its change"):
        plain = clone(model).set_params(**settings).fit(X, y)
    assert plain.elbo_ < early.elbo_ < model.elbo_
    assert np.abs(plain.predict(X) - model.predict(X)).max() > gap


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_passes_that_take_as_long_as_the_matrix_are_followed_by_its_inverse(n_outputs, monkeypatch):
    X, y = waves(600)
    Y = np.c_[y, 2 * X[:, 2] - y][:, :n_outputs]
    kernel, noise = RBF(0.5), 1e-6
    settings = {"n_mean_bases": 150, "noise_variance": noise, "random_state": 0}
    models = [given(kernel, X[:20], **settings, tol=1e-2).fit(X, Y)]
    set_constants(monkeypatch, gram_speed=0)
    models += [clone(models[0]).fit(X, Y)]
    # There are three passes with the first preconditioner and one with the inverse.
    assert models[0].n_iter_ == 4
    assert models[1].n_iter_ > 20
    for model in models:
        mean = model.predict(X).reshape(600, n_outputs)
        for j, target in enumerate(Y.T):
            expected = means_at(kernel, model.mean_bases_, X, target, noise, X)
            # The bound is within 0.01 nats per row of its maximum: this error over twice the noise.
            assert np.square(mean[:, j] - expected).mean() < 2e-2 * noise


def test_exact_processes_stop_when_their_bound_is_near_its_maximum(monkeypatch):
    set_constants(monkeypatch, factored_rows=0)
    # With fewer landmarks, hundreds of iterations would depend on the number of threads.
    set_constants(monkeypatch, landmarks=100)
    X, y = waves(300)
    kernel, noise = RBF(1.0), 1e-4
    model = given(kernel, X[:20], noise_variance=noise, tol=1e-2, max_iter=1000).fit(X, y)
    expected = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X, y).predict(X)
    # The bound is within 0.01 nats per row of its maximum: this error over twice the noise. A
    # factor of two is for the estimate by the preconditioner of a hundred rows.
    assert np.square(model.predict(X) - expected).mean() < 4e-2 * noise


def test_iterations_end_where_ten_have_gained_next_to_nothing(monkeypatch):
    set_constants(monkeypatch, dense_bases=0)
    monkeypatch.setattr(_bases, "CholeskyPreconditioner", Identity)
    X, y = waves(600)
    kernel, noise, tol = RBF(0.5), 1e-2, 1e-2
    settings = {"n_mean_bases": 100, "noise_variance": noise, "tol": tol, "random_state": 0}
    model = given(kernel, X[:20], **settings, max_iter=1000).fit(X, y)
    gained = np.subtract(model.objective_curve_[10:], model.objective_curve_[:-10]) / len(X)
    assert gained[-1] < tol < gained[:-1].min()
    # Without a preconditioner, the remaining gap is about twice the tolerance.
    expected = means_at(kernel, model.mean_bases_, X, y, noise, X)
    assert np.square(model.predict(X) - expected).mean() < 3 * 2 * tol * noise
    # The estimate of the remaining gap alone would not have stopped the iterations.
    set_constants(monkeypatch, delay=1000)
    assert model.n_iter_ < clone(model).fit(X, y).n_iter_ - 20


def test_too_few_iterations_are_warned_of(monkeypatch):
    X, y, _ = sinc(200)
    set_constants(monkeypatch, gram_speed=0)
    model = given(RBF(0.5), X[:20], n_mean_bases=50, noise_variance=0.01, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="reached max_iter=2 before its change"):
        model.fit(X, y)
    assert model.n_iter_ == 2


def test_conjugate_gradients_of_classifiers_start_from_the_posterior_of_learning():
    X, y = load_digits(return_X_y=True)
    X, y = X[:200, 20:44:2], y[:200]
    sparse = SVGPClassifier(n_inducing=30, random_state=0).fit(X, y)
    model = DecoupledGPClassifier(n_inducing=30, random_state=0).fit(X, y)
    # Bases at all rows span the features of the inducing points, so their optimum is higher.
    assert model.elbo_ > sparse.elbo_
    # From sites at the prior, there are 50 iterations, and the bound ends below the sparse one.
    assert model.n_iter_ < 25  # half of these; draws of the softmax move the number


def test_conjugate_gradients_raise_the_bound_to_its_end():
    X, y, _ = sinc(200)
    model = given(RBF(0.5), X[:20], n_mean_bases=50, noise_variance=0.01, random_state=0)
    curve = model.fit(X, y).objective_curve_
    # At the end, the error is rounding.
    assert (np.diff(curve) > -1e-12 * np.abs(curve[1:])).all()
    assert curve[-1] > curve[0] + 0.1
    assert model.elbo_ == pytest.approx(curve[-1], rel=1e-9)
    assert model.n_iter_ == len(curve)


def test_multiscale_kernel_is_the_plain_one_between_rows():
    X, y = waves(100)
    settings = {"noise_variance": 0.1, "n_mean_bases": 40, "random_state": 0}
    one = given(1.5 * RBF([1.0, 2.0, 3.0]), X[:10], **settings).fit(X, y)
    two = given(1.5 * MultiscaleRBF([1.0, 2.0, 3.0]), X[:10], **settings).fit(X, y)
    assert_all_close(two.predict(X, return_std=True), one.predict(X, return_std=True), rtol=1e-9)
    assert two.elbo_ == pytest.approx(one.elbo_, rel=1e-10)


# Weights and outputs


@pytest.mark.parametrize("solver", ["cg", "sgd"])
def test_weights_are_repetitions_and_zeros_remove(solver):
    X, y = waves(60)
    weights = np.resize([1, 0, 3], 60)
    again = np.repeat(np.arange(60), weights)
    model = DecoupledGPRegressor(n_inducing=8, n_mean_bases=30, max_iter=20, random_state=0)
    own = {
        "cg": {"learn_inducing": False},
        "sgd": {"solver": StochasticGradient(batch_size=20), "max_iter": 2},
    }
    model.set_params(**own[solver])
    weighted = clone(model).fit(X, y, sample_weight=weights)
    repeated = clone(model).fit(X[again], y[again])
    X[1::3], y[1::3] = 1e3, 1e6
    absent = clone(model).fit(X, y, sample_weight=weights)
    X_new = waves(20, seed=1)[0]
    for other in (repeated, absent):
        assert_array_equal(other.mean_bases_, weighted.mean_bases_)
        # Sums are in another order.
        assert_all_close(
            other.predict(X_new, return_std=True),
            weighted.predict(X_new, return_std=True),
            rtol=1e-9,
        )


def test_outputs_are_solved_as_if_alone():
    X, y = waves()
    Y = np.c_[y, 3 - 2 * X[:, 0]]
    settings = {"noise_variance": 0.1, "n_mean_bases": 40, "random_state": 0}
    model = given(1.5 * RBF(1.0), X[:10], **settings, normalize_y=True)
    both = clone(model).fit(X, Y)
    assert both.predict(X, return_cov=True)[1].shape == (80, 80, 2)
    alone = [clone(model).fit(X, column) for column in Y.T]
    for j, one in enumerate(alone):
        for got, expected in zip(
            both.predict(X, return_std=True), one.predict(X, return_std=True), strict=True
        ):
            # Residuals end at 1e-10, relative to the first.
            assert_allclose(got[:, j], expected, rtol=1e-7, atol=1e-7)
    assert both.elbo_ == pytest.approx(sum(one.elbo_ for one in alone), rel=1e-9)


# Other likelihoods


def blobs(n, n_classes, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    return 1.5 * rng.normal(size=(n_classes, 2))[y] + rng.normal(size=(n, 2)), y


@pytest.mark.parametrize("case", ["logit", "probit", "softmax", "student_t", "laplace"])
def test_all_rows_as_bases_agree_with_sparse_variational_gps(case):
    fixed = {"optimizer": None, "learn_inducing": False, "mean": "zero"}
    if case in ("student_t", "laplace"):
        X, y = waves(40)
        y[::10] += 5
        X_new = waves(30, seed=1)[0]
        fixed |= {"likelihood": case, "normalize_y": False, "noise_variance": 0.1}
        kernel, models = 1.5 * RBF(1.5), (DecoupledGPRegressor, SVGPRegressor)
    else:
        n_classes = 3 if case == "softmax" else 2
        (X, y), (X_new, _) = blobs(40, n_classes), blobs(30, n_classes, seed=1)
        fixed |= {"likelihood": "probit" if case == "probit" else "softmax"}
        kernel, models = 2.0 * RBF(1.0), (DecoupledGPClassifier, SVGPClassifier)
    fixed |= {"inducing_points": X, "max_iter": 500}
    ours = models[0](kernel, tol=3e-4, **fixed).fit(X, y)
    sparse = models[1](kernel, tol=1e-5, **fixed).fit(X, y)
    (mean, var), (expected_mean, expected_var) = (
        model.latent_mean_and_variance(X_new) for model in (ours, sparse)
    )
    # Iterations end at a change of the means of 3e-4, with sites of the step before; the sparse
    # models' jitter is 1e-6.
    assert_allclose(mean, expected_mean, atol=0.01)
    assert_allclose(var, expected_var, atol=3e-3)
    assert ours.elbo_ == pytest.approx(sparse.elbo_, abs=3e-3)
    if models[0] is DecoupledGPClassifier:
        assert_allclose(ours.predict_proba(X_new), sparse.predict_proba(X_new), atol=1e-3)


# Variances and their calibration


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": "cg"},
        {
            "solver": StochasticGradient("decoupled", batch_size=40, learning_rate=0.1),
            "max_iter": 10,
        },
    ],
    ids=["cg", "sgd"],
)
def test_learned_variances_are_between_zero_and_the_prior(settings):
    X, y = waves(80)
    model = DecoupledGPRegressor(mean="zero", n_inducing=10, random_state=0, **settings).fit(X, y)
    _, var = model.latent_mean_and_variance(np.r_[X, 100 * X])
    prior = model.kernel_.k1.constant_value * y.var()
    assert (var > 0).all()
    assert (var <= prior * (1 + 1e-12)).all()
    assert var[:80].max() < prior
    assert var[80:].max() == pytest.approx(prior)


@pytest.mark.parametrize("seed", range(4, 8))
def test_a_row_repeated_far_away_does_not_set_the_noise(seed):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (600, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=600)
    X[0], y[0] = 8.0, 2.0
    weights = np.ones(600)
    weights[0] = 300
    model = DecoupledGPRegressor(n_inducing=20, random_state=seed)
    # The truth is .01; with all 300 units held out, it would be .6.
    assert 0.003 < model.fit(X, y, sample_weight=weights).noise_variance_ < 0.04


# Streams


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_stream_of_gaussian_noise_solves_the_normal_equations_of_all_rows(n_outputs):
    X, y = waves(120)
    Y = np.c_[y, X[:, 2] - y][:, :n_outputs]
    kernel = 1.5 * RBF([1.0, 1.5, 2.0])
    weights = np.random.default_rng(1).uniform(0.5, 2, 120)
    stream = given(kernel, X[:10], noise_variance=0.1)
    for part in np.split(np.arange(120), [50, 80]):
        stream.partial_fit(X[part], Y[part], sample_weight=weights[part])
    assert_array_equal(np.sort(stream.mean_bases_, axis=0), np.sort(X[:50], axis=0))
    mean = stream.predict(X).reshape(120, n_outputs)
    for j, target in enumerate(Y.T):
        expected = means_at(kernel, X[:50], X, target, 0.1, X, weights)
        # The jitter of 1e-9 over the noise, summed over rows, passes through two more factors.
        assert_allclose(mean[:, j], expected, atol=5e-5)
    fixed = {"optimizer": None, "learn_inducing": False, "normalize_y": False, "mean": "zero"}
    sparse = SVGPRegressor(kernel, inducing_points=X[:10], noise_variance=0.1, **fixed)
    sparse.fit(X, Y, sample_weight=weights)
    assert_allclose(
        variances_of_points(stream, X),
        sparse.latent_mean_and_variance(X)[1].reshape(120, n_outputs),
        rtol=1e-7,
    )


def test_bound_of_a_stream_is_that_of_all_rows():
    X, y = waves(120)
    kernel = 1.5 * RBF([1.0, 1.5, 2.0])
    stream = given(kernel, X[:10], noise_variance=0.1)
    for part in np.split(np.arange(120), [50]):
        stream.partial_fit(X[part], y[part])
    expected = collapsed(kernel, X[:10], X[:50], X, y, 0.1)
    # The error is the jitter of 1e-9 over the noise, summed over rows.
    assert stream.elbo_ == pytest.approx(expected, rel=5e-6)
    assert stream.noise_variance_ == pytest.approx(0.1)


def test_stream_of_classes_approaches_the_fit_of_all_rows():
    X, y = blobs(300, 3)
    model = DecoupledGPClassifier(
        2.0 * RBF(1.0),
        optimizer=None,
        learn_inducing=False,
        inducing_points=X[:60],
        n_mean_bases=150,
        random_state=0,
    )
    whole, stream = clone(model).fit(X, y), clone(model)
    for part in np.split(np.arange(300), 2):
        stream.partial_fit(X[part], y[part])
    first = clone(model).fit(X[:150], y[:150])
    probabilities = whole.predict_proba(X)
    gaps = [np.abs(m.predict_proba(X) - probabilities).mean() for m in (stream, first)]
    # Sites of the first half are those of a fit without the second half.
    assert gaps[0] < 0.02
    assert gaps[0] < 0.5 * gaps[1]


def test_shuffled_stream_of_stochastic_gradients_approaches_a_fit():
    X, y, f = sinc(1500)
    model = DecoupledGPRegressor(
        solver=StochasticGradient("decoupled", batch_size=25, learning_rate=0.1),
        n_inducing=10,
        n_mean_bases=50,
        max_iter=1,
        random_state=0,
    )
    whole, stream = clone(model).fit(X, y), clone(model)
    for part in np.split(np.arange(1500), 10):
        stream.partial_fit(X[part], y[part])
    assert len(stream.mean_bases_) == 50
    # Both take sixty steps, on different minibatches.
    assert stream.score(X, f) > 0.85
    assert abs(stream.score(X, f) - whole.score(X, f)) < 0.1


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_single_rows_move_bases_in_the_unit_of_the_first_ones(method):
    X, y = waves(60)
    X *= 1e-3
    model = DecoupledGPRegressor(
        solver="sgd", n_inducing=5, n_mean_bases=10, max_iter=3, warm_start=True, random_state=0
    ).fit(X, y)
    before, rate = model.mean_bases_[:, :3], 0.05  # by default
    getattr(model.set_params(max_iter=1), method)(X[:1], y[:1])
    # A step of Adam is about the learning rate, in units of the features' standard deviation.
    assert np.abs(model.mean_bases_[:, :3] - before).max() < 3 * rate * X.std()


def test_rows_of_a_stream_of_stochastic_gradients_count_by_their_number():
    X, y = waves(60)
    weights = np.random.default_rng(1).uniform(0.5, 2, 60)
    model = DecoupledGPRegressor(
        solver="sgd", n_inducing=8, n_mean_bases=30, normalize_y=False, random_state=0
    )
    for part in (slice(20), slice(20, 60)):
        model.partial_fit(X[part], y[part], sample_weight=weights[part])
    mean, var = model.latent_mean_and_variance(X[20:])
    log_density = norm.logpdf(y[20:], mean, np.sqrt(model.noise_variance_))
    expected = log_density - 0.5 * var / model.noise_variance_
    ratio = weights.sum() / weights[20:].sum()
    bound = ratio * (weights[20:] @ expected) - model._latents[0].posterior("cpu").kl().item()
    assert model.elbo_ == pytest.approx(bound, rel=1e-9)
    whole = clone(model).set_params(max_iter=2).fit(X, y)
    mean, var = whole.latent_mean_and_variance(X)
    log_density = norm.logpdf(y, mean, np.sqrt(whole.noise_variance_))
    expected = (log_density - 0.5 * var / whole.noise_variance_).sum()
    divergence = whole._latents[0].posterior("cpu").kl().item()
    assert whole.elbo_ == pytest.approx(expected - divergence, rel=1e-9)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"solver": "adam"}, "solver='adam' is not one of 'cg', 'sgd'"),
        (
            {"solver": StochasticGradient("jacobi")},
            "parametrization='jacobi' is not one of 'orthogonal'",
        ),
        (
            {"solver": StochasticGradient(batch_size=0)},
            "batch_size=0 must be an integer of at least 1, or None",
        ),
        (
            {"solver": ConjugateGradients(learning_rate=0.0)},
            "learning_rate=0.0 must be a number above 0, or None",
        ),
        ({"n_mean_bases": 0}, "n_mean_bases=0 must be an integer of at least 1"),
        ({"n_mean_bases": 3.5}, "n_mean_bases=3.5 must be an integer of at least 1"),
    ],
)
@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_parameters_are_refused_in_words(kind, method, parameters, message):
    X, y = blobs(20, 2)
    with pytest.raises(ValueError, match=message):
        getattr(kind(**parameters), method)(X, y)


def test_terms_without_bases_are_refused_by_stochastic_gradients():
    model = DecoupledGPRegressor(RBF(1.0) + ConstantKernel(2.0), solver="sgd")
    with pytest.raises(ValueError, match="no linear and no constant terms of a kernel"):
        model.fit(*waves(20))


@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
def test_mean_function_is_refused_by_stochastic_gradients(kind):
    with pytest.raises(ValueError, match="have no mean function"):
        kind(solver="sgd", mean="linear", n_inducing=5, max_iter=1).fit(*blobs(20, 2))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("solver", ["cg", "sgd"])
def test_model_of_another_solver_is_not_continued(solver, method):
    X, y = waves(80)
    model = DecoupledGPRegressor(
        solver=solver, n_inducing=8, max_iter=3, warm_start=True, random_state=0
    )
    model.set_params(**{"cg": {"tol": 0.5}, "sgd": {}}[solver]).fit(X, y)
    changes = [("solver", "sgd" if solver == "cg" else "cg")]
    if solver == "sgd":
        changes.append(("solver__parametrization", StochasticGradient("decoupled")))
    for name, other in changes:
        with pytest.raises(ValueError, match=f"{name} was .* The fitted model cannot follow"):
            getattr(clone_fitted(model).set_params(tol=1e-2, solver=other), method)(X, y)


def clone_fitted(model):
    return pickle.loads(pickle.dumps(model))


def test_number_of_bases_may_grow_but_not_fall():
    X, y = waves(80)
    model = DecoupledGPRegressor(
        solver=StochasticGradient(batch_size=40),
        n_inducing=8,
        n_mean_bases=20,
        max_iter=3,
        random_state=0,
    ).fit(X, y)
    for fewer in ({"n_inducing": 3}, {"n_mean_bases": 15}):
        with pytest.raises(ValueError, match=f"{next(iter(fewer))} was"):
            clone_fitted(model).set_params(**fewer).partial_fit(X, y)
    model.set_params(n_inducing=9, n_mean_bases=25).partial_fit(X, y)
    assert model.inducing_points_.shape[0] == 9
    assert model.mean_bases_.shape[0] == 25


@pytest.mark.parametrize("case", ["softmax", "student_t"])
def test_tight_tolerances_are_reached(case):
    fixed = {"optimizer": None, "learn_inducing": False, "mean": "zero", "tol": 1e-6}
    if case == "softmax":
        X, y = blobs(60, 3)
        model = DecoupledGPClassifier(2.0 * RBF(1.0), inducing_points=X, **fixed)
    else:
        X, y = waves(60)
        y[::15] += 5
        fixed |= {"noise_variance": 0.1, "normalize_y": False}
        model = DecoupledGPRegressor(1.5 * RBF(1.5), likelihood=case, inducing_points=X, **fixed)
    model.set_params(max_iter=500).fit(X, y)  # a ConvergenceWarning is an error


# Precisions and copies


def test_single_precision_agrees_with_double():
    X, y = waves(200)
    settings = {"noise_variance": 0.1, "n_mean_bases": 60, "random_state": 0, "tol": 1e-3}
    model = given(1.5 * RBF([1.0, 1.5, 2.0]), X[:20], **settings)
    double, single = clone(model).fit(X, y), clone(model).set_params(dtype="float32").fit(X, y)
    (mean, std), (expected_mean, expected_std) = (
        each.predict(X, return_std=True) for each in (single, double)
    )
    # The error is single precision of products, times the condition number of the bases' kernel
    # matrix over that of the preconditioned system.
    assert_allclose(mean, expected_mean, atol=0.02)
    assert_allclose(std, expected_std, atol=1e-4)
    assert single.elbo_ == pytest.approx(double.elbo_, abs=0.05)
    X, y = blobs(100, 3)
    model = DecoupledGPClassifier(
        2.0 * RBF(1.0),
        optimizer=None,
        learn_inducing=False,
        n_inducing=10,
        n_mean_bases=40,
        random_state=0,
    )
    double, single = clone(model).fit(X, y), clone(model).set_params(dtype="float32").fit(X, y)
    assert_allclose(single.predict_proba(X), double.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("solver", ["cg", "sgd"])
@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
def test_pickled_models_predict_and_go_on_the_same(kind, solver):
    X, y = blobs(60, 2)
    model = kind(solver=solver, mean="zero", n_inducing=8, n_mean_bases=30, random_state=0)
    model.set_params(max_iter=3 if solver == "sgd" else 100).fit(X[:40], y[:40])
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X), model.predict(X))
    moments = [each.latent_mean_and_variance(X) for each in (again, model)]
    assert_array_equal(*moments)
    for each in (again, model):
        each.partial_fit(X[40:], y[40:])
    assert_array_equal(*(each.latent_mean_and_variance(X) for each in (again, model)))
    assert np.abs(model.latent_mean_and_variance(X)[0] - moments[0][0]).max() > 1e-3


@pytest.mark.filterwarnings("ignore:.* first call .* only 2 rows")
@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("solver", ["cg", "sgd"])
@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_edges_of_data_give_finite_predictions(kind, solver, edge, method):
    X, y = blobs(60, 2)
    X = edge(X)
    model = kind(solver=solver, mean="zero", n_inducing=4, n_mean_bases=7, random_state=0)
    model.set_params(max_iter=3 if solver == "sgd" else 100)
    getattr(model, method)(X, y[: len(X)])
    mean, variance = model.latent_mean_and_variance(X)
    assert np.isfinite(mean).all()
    assert (variance >= 0).all()
    if kind is DecoupledGPClassifier:
        assert_allclose(model.predict_proba(X).sum(1), 1, atol=1e-9)
    else:
        assert np.isfinite(model.predict(X, return_std=True)).all()


# Mean functions, streams and steps that are taken back


@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_calibrated_variances_are_the_priors_far_away(mean):
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 20, size=(800, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=800)
    kernel = ConstantKernel(1.0, "fixed") * RBF(0.7, "fixed")
    settings = {"mean": mean, "n_inducing": 10, "random_state": 0}
    for model in (
        DecoupledGPRegressor(kernel, n_mean_bases=300, **settings),
        QSGPRegressor(kernel, n_basis=300, **settings),
    ):
        _, var = model.fit(X, y).latent_mean_and_variance([[30.0], [60.0]])
        assert_allclose(var, y.var(), rtol=0.05)


def test_streams_follow_nearly_straight_functions():
    # The rows have a kernel matrix that is singular up to rounding.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = X @ [3.0, 2.0, 1.0] + 0.01 * rng.normal(size=120)
    model = DecoupledGPRegressor(random_state=0).fit(X[:80], y[:80]).partial_fit(X[80:], y[80:])
    assert model.score(X, y) > 0.999


@pytest.mark.parametrize("kind", [DecoupledGPClassifier, QSGPClassifier])
def test_separable_classes_are_fitted_as_by_the_sparse_process(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 60))
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    model = kind(random_state=0).fit(X, y)
    assert model.elbo_ > SVGPClassifier(random_state=0).fit(X, y).elbo_ - 3
    sparse = SVGPClassifier(model.kernel_, mean="zero", optimizer=None, learn_inducing=False)
    sparse.set_params(inducing_points=model.inducing_points_)
    assert model.elbo_ == pytest.approx(sparse.fit(X, y).elbo_, abs=0.01)
    assert (np.diff(model.objective_curve_) > -1e-4).all()
    assert model.objective_curve_.max() < 0


def test_steps_go_back_where_the_bound_falls(monkeypatch):
    X, y = blobs(60, 2)
    y = np.where(X[:, 0] > 0, 0, 1)
    model = DecoupledGPClassifier(1e4 * RBF(3.0), optimizer=None, n_inducing=20, random_state=0)
    with pytest.warns(ConvergenceWarning):
        curve = model.set_params(max_iter=6).fit(X, y).objective_curve_
    assert (np.diff(curve) >= 0).all()
    assert model.elbo_ >= curve[-1] - 1e-6 * abs(curve[-1])


def test_failed_streams_leave_the_steps_as_they_were():
    class Failing:
        def setup(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context):
            if context.parent is None:
                raise RuntimeError("at the end")

        def teardown(self, estimator, context):
            pass

    X, y = waves(60)
    model = DecoupledGPRegressor(
        solver="sgd", n_inducing=5, n_mean_bases=10, max_iter=2, random_state=0
    ).fit(X, y)
    before = pickle.dumps(model._latents)
    with pytest.raises(RuntimeError, match="at the end"):
        model.set_callbacks(Failing()).partial_fit(X, y)
    assert pickle.dumps(model._latents) == before
