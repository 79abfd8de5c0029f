"""Relevance vector machines: numbers of the specification, oracles, bounds, degenerate data."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import EDGES, ring, rows_of, t64, waves
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel
from sklearn.linear_model import LogisticRegression

from skgpsvm import QSRVMClassifier, QSRVMRegressor
from skgpsvm._posteriors import WeightPosterior
from skgpsvm._problem import Problem
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.callbacks import Checkpoint
from skgpsvm.likelihoods import Gaussian, Laplace, Logistic, Softmax
from skgpsvm.quadruply_stochastic import _rvm_training
from skgpsvm.quadruply_stochastic._relevance import (
    PRECISIONS,
    BiasedDictionary,
    HeldOutFit,
    RelevanceSweeps,
    fixed_point,
    joint_precisions,
    per_weight_precisions,
)

# The tiny problem of the specification, 8.1; the constant is negligible.
X = np.array([-1.0, -0.25, 0.5, 1.25])[:, None]
Z = np.array([-0.8, 0.1, 1.0])[:, None]
Y = np.array([0.3, -0.6, 0.8, 1.1])
LABELS = np.array([1, 0, 1, 1])
PRIOR = t64([[0.5, 1.0, 2.0, 1e30]])
DIGITS = {"rtol": 0, "atol": 6e-11}  # half of the last printed digit, plus rounding
WIDE = t64([[-14.0, 5.0]])


def sweeps_of(likelihood, X, y, kernel=None, n_latents=1, **options):
    y = y[:, None] if y.dtype == float else y
    options = {"mean_field": False, "threshold": 1e300, "tol": 1e-6, **options}
    sites = LikelihoodSites(likelihood, n_latents)
    return RelevanceSweeps(sites, torch_kernel(kernel or RBF(1.0)), rows_of(X, y), **options)


def start_of(sweeps, points, kernel=None):
    theta = t64((kernel or RBF(1.0)).theta)
    noise = sweeps._sites.parameters()
    return sweeps.init(theta, noise, t64(points))


def bound_after_step(sweeps, state):
    sweeps.step(state)
    return state.objective


def settled(likelihood, y, n_rounds=1, **options):
    """Return the tiny problem's state at given precisions, with converged means and bound."""
    sweeps = sweeps_of(likelihood, X, y, **options)
    state = start_of(sweeps, Z)
    state.precisions = PRIOR
    for _ in range(n_rounds):
        sweeps._accumulate_statistics(state)
        sweeps._solve(state)
    sweeps._accumulate_statistics(state)
    return sweeps, state


def sinc(n=500, seed=0):
    """Return X (n, 1), y and the truth of a noisy sinc function."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-10, 10, (n, 1))
    truth = np.sinc(X[:, 0] / np.pi)
    return X, truth + 0.1 * rng.normal(size=n), truth


# The specification's numbers


def test_closed_form_of_a_precision():
    got = joint_precisions(t64([0.3, 0.01]), t64([10.0, 10.0]))
    assert_allclose(got, [6.6666666667, 311.2672920174], **DIGITS)
    mean, data = t64([1e-3, 0.1, 1.0, 30.0]), t64([1e-2, 5.0, 80.0, 1e4])
    s = joint_precisions(mean, data)
    assert_allclose(s * (mean.square() + 1 / (data + s)), 1, rtol=1e-12)


def test_closed_form_of_a_mean_of_zero_is_irrelevant():
    assert_array_equal(joint_precisions(t64([0.0, 0.0]), t64([1.0, 0.0])), np.inf)


def test_full_covariance_at_given_precisions():
    sweeps, state = settled(Gaussian([0.25]), Y)
    assert_allclose(sweeps.value(state), -5.8114274761, **DIGITS)
    mean = [-0.2611703035, 0.0282613107, 0.7170607465]
    assert_allclose(state.coef[0, :3], mean, **DIGITS)
    bases = BiasedDictionary(sweeps._kernel, state.theta, state.bases, PRIOR)
    posterior = WeightPosterior(bases, state.coef, state.diag, state.columns)
    moments = [float(part) for part in posterior.marginals(t64([[0.2]]))]
    assert_allclose(moments, [0.3904055309, 0.1002004535], **DIGITS)
    assert_array_equal(state.columns.triu(1), 0)


def test_mean_field_at_given_precisions():
    sweeps, state = settled(Gaussian([0.25]), Y, mean_field=True)
    diag = [0.3514305212, 0.3130191576, 0.3196901624]
    assert_allclose(state.diag[0, :3], diag, **DIGITS)
    assert_allclose(sweeps.value(state), -6.7278070329, **DIGITS)


def test_logistic_bound_at_given_precisions(monkeypatch):
    monkeypatch.setattr(RelevanceSweeps, "_is_bound", lambda _: True)  # as specified
    sweeps, state = settled(Logistic(), LABELS, n_rounds=50)
    assert_allclose(sweeps.value(state), -3.1394587065, **DIGITS)
    # A change of the bound is of second order in the means.
    mean = [0.2001600494, 0.2175730155, 0.2549555176]
    assert_allclose(state.coef[0, :3], mean, rtol=0, atol=1e-9)


def test_two_classes_reach_the_greatest_elbo_at_given_precisions():
    sweeps, state = settled(Logistic(), LABELS, n_rounds=50)
    values = np.exp(-0.5 * (X - Z.T) ** 2)
    s, sign, nodes = PRIOR[0, :3].numpy(), 2 * LABELS - 1, np.polynomial.hermite_e.hermegauss(60)

    def loss(parameters):
        mean, root = parameters[:3], np.zeros((3, 3))
        root[np.tril_indices(3)] = parameters[3:]
        f = values @ mean + np.linalg.norm(values @ root, axis=1) * nodes[0][:, None]
        expected = -nodes[1] @ np.logaddexp(0, -sign * f) / nodes[1].sum()
        trace = s @ (root**2).sum(1) + s @ mean**2 - 3 - np.log(s).sum()
        return 0.5 * trace - np.log(np.abs(np.diag(root))).sum() - expected.sum()

    start = np.concatenate([np.zeros(3), np.eye(3)[np.tril_indices(3)]])
    best = minimize(loss, start, method="BFGS", options={"gtol": 1e-8})
    assert_allclose(sweeps.value(state), -best.fun, rtol=0, atol=1e-9)
    assert_allclose(state.coef[0, :3], best.x[:3], rtol=0, atol=1e-5)
    assert sweeps.value(state) > -3.1394587065  # value of the specification's bound


def test_laplace_bound_at_given_precisions():
    sweeps, state = settled(Laplace([0.5]), Y, n_rounds=300)
    assert_allclose(sweeps.value(state), -6.5680898354, **DIGITS)


def test_targets_that_are_met_deviate_by_nothing():
    y = 0.3 + 1e-10 * np.arange(-8, 9)
    sweeps = sweeps_of(Laplace([0.5]), np.zeros((17, 1)), y, noise_bounds=WIDE)
    state = start_of(sweeps, Z)
    state.coef = t64([[0.0, 0.0, 0.0, 0.3]])
    state.columns = torch.zeros(1, 4, 4, dtype=torch.float64)
    sweeps._accumulate_statistics(state)
    # The error is rounding of squares of 0.3, of which the root is taken.
    assert 0 <= state.deviation.item() < 17 * 1e-8


# Updates are maxima


def dense_evidence(log_s, values, y, noise_var):
    cov = (values / np.exp(log_s)) @ values.T + noise_var * np.eye(len(y))
    return multivariate_normal.logpdf(y, cov=cov)


@pytest.mark.parametrize("target", [Y, np.array([0.3, 0.6, 0.5, 0.4])])
def test_single_precisions_maximize_the_evidence(target):
    _, state = settled(Gaussian([0.25]), target)
    precisions, coef, columns = PRIOR[0, :3], state.coef[0, :3], state.columns[0, :3, :3]
    got = per_weight_precisions(precisions, coef, columns).numpy()
    values = np.exp(-0.5 * (X - Z.T) ** 2)
    found = precisions.log().numpy().copy()
    for i in range(3):

        def loss(log_s, i=i):
            trial = found.copy()
            trial[i] = log_s
            return -dense_evidence(trial, values, target, 0.25)

        bounds = np.log(PRECISIONS)
        # Brent's method is used over few decades only, since the evidence is flat at the ends.
        grid = np.linspace(*bounds, 85)
        best = grid[np.argmin([loss(value) for value in grid])]
        near = np.clip([best - 0.5, best + 0.5], *bounds)
        options = {"bounds": near, "method": "bounded", "options": {"xatol": 1e-9}}
        found[i] = minimize_scalar(loss, **options).x
        if got[i] >= PRECISIONS[1]:  # leaving the function out is best
            assert loss(bounds[1]) <= loss(found[i]) + 1e-9
            found[i] = bounds[1]
        else:
            assert_allclose(np.log(got[i]), found[i], rtol=0, atol=1e-5)
    assert 1 <= np.count_nonzero(got < 1e6) <= 2


def test_converged_precisions_are_fixed_points():
    data, y, _ = sinc(40)
    sweeps = sweeps_of(Gaussian([0.1]), data, y, threshold=1e4, tol=1e-12, noise_bounds=WIDE)
    state = start_of(sweeps, data)
    for _ in range(100):
        sweeps.step(state)
    assert sweeps.converged(state)
    expected = fixed_point(state.coef, state.gamma)
    assert_allclose(state.precisions, expected, rtol=1e-5)
    eps = 1e-3
    values = []
    for shift in (-eps, 0.0, eps):
        moved = replace(state, noise=state.noise + shift)
        sweeps._accumulate_statistics(moved)
        sweeps._solve(moved)
        sweeps._accumulate_statistics(moved)
        values.append(sweeps.value(moved))
    assert abs(values[2] - values[0]) < 1e-4 * abs(values[2] + values[0] - 2 * values[1]) / eps
    assert values[1] > max(values[0], values[2])


@pytest.mark.parametrize("n", [50, 200])
def test_the_tolerance_is_a_change_per_row(n):
    X = np.linspace(-2, 2, n)[:, None]
    sweeps = sweeps_of(Gaussian([0.1]), X, np.sin(X[:, 0]), tol=1e-3)
    state = start_of(sweeps, X[::10])
    state.change = 0.1
    assert sweeps.converged(state) == (n == 200)
    state.change = 9.0
    sweeps.step(state)  # single precisions from ten times the tolerance on, or from 1 nat
    assert not state.per_weight
    state.change = 1.5
    sweeps.step(state)
    assert state.per_weight == (n == 200)


@pytest.mark.parametrize("mean_field", [True, False])
@pytest.mark.parametrize("likelihood", ["gaussian", "laplace", "logistic", "softmax"])
def test_the_bound_never_falls(likelihood, mean_field):
    data, y = ring(45, 3 if likelihood == "softmax" else 2)
    c, learned = (3 if likelihood == "softmax" else 1), {"noise_bounds": WIDE}
    kinds = {
        "gaussian": (Gaussian([0.1]), learned),
        "laplace": (Laplace([0.3]), learned),
        "logistic": (Logistic(), {}),
        "softmax": (Softmax(), {}),
    }
    kind, options = kinds[likelihood]
    y = waves(45, 2)[1] if options else y
    sweeps = sweeps_of(kind, data, y, n_latents=c, mean_field=mean_field, **options)
    state = start_of(sweeps, data)
    values = [state.objective, *(bound_after_step(sweeps, state) for _ in range(60))]
    # The error is rounding of sums over weights with precisions of up to exp(28).
    assert np.diff(values).min() > -1e-7
    assert values[-1] > values[0] + 1


@pytest.mark.parametrize("mean_field", [True, False])
@pytest.mark.parametrize("kind", [Gaussian([0.1]), Laplace([0.3]), Logistic()])
def test_weights_of_rows_are_repetitions(kind, mean_field):
    data, labels = ring(20, 2)
    y = labels if isinstance(kind, Logistic) else data[:, :1] + 0.5
    bounds = None if isinstance(kind, Logistic) else WIDE
    weights = 1 + np.arange(20) % 3
    repeated = [np.repeat(part, weights, 0) for part in (data, y)]
    found = []
    for rows in (rows_of(data, y, weights.astype(float)), rows_of(*repeated)):
        options = {"mean_field": mean_field, "threshold": 1e4, "tol": 0, "noise_bounds": bounds}
        sweeps = RelevanceSweeps(LikelihoodSites(kind, 1), torch_kernel(RBF(1.0)), rows, **options)
        state = start_of(sweeps, data)
        values = [bound_after_step(sweeps, state) for _ in range(5)]
        given = bounds, state.noise, sweeps.moments(state, rows)
        fit = HeldOutFit.of(sweeps._sites, *given, shrinks=True)
        found.append([*values, fit.weights @ fit.densities])
    assert_allclose(*found, rtol=1e-8)


@pytest.mark.parametrize("covariance", ["full", "mean_field"])
def test_an_output_that_needs_no_function(covariance):
    data, y, _ = sinc(50)
    both = np.c_[y, np.zeros(50)]
    model = QSRVMRegressor(RBF(1.5, "fixed"), covariance=covariance).fit(data, both)
    assert len(model.relevance_vectors_) > 2
    assert_array_equal(model.relevance_[1], PRECISIONS[1])
    assert_allclose(model.predict(data)[:, 1], 0, atol=1e-12)


@pytest.mark.parametrize("mean_field", [True, False])
def test_functions_leave_the_latents_that_they_are_irrelevant_to(mean_field):
    data, y = ring(45, 3)
    options = {"n_latents": 3, "mean_field": mean_field, "threshold": 1e4}
    sweeps = sweeps_of(Softmax(), data, y, **options)
    state = start_of(sweeps, data)
    precisions = 10.0 ** (torch.arange(3 * 46) % 7).double().view(3, 46)
    state.precisions = precisions.clone()
    sweeps._prune(state)
    sweeps._solve(state)
    relevant = precisions < 1e4
    relevant[:, -1] = True
    assert relevant.any(0).all()
    assert_array_equal(state.precisions[~relevant], PRECISIONS[1])
    assert_array_equal(state.coef[~relevant], 0)
    assert_array_equal(state.gamma[~relevant], 0)
    for j, own in enumerate(relevant):
        data_part = state.products[0][own][:, own]
        cov = torch.linalg.inv(data_part + precisions[j, own].diag())
        assert_allclose(state.coef[j, own], cov @ state.linear[j, own], rtol=1e-9, atol=1e-12)
        if mean_field:
            var = 1 / (data_part.diagonal() + precisions[j, own])
            assert_allclose(state.diag[j, own].square(), var, rtol=1e-9)
        else:
            C = state.columns[j]
            assert_allclose((C @ C.T)[own][:, own], cov, rtol=1e-9, atol=1e-12)
            assert_allclose(C.diagonal(), state.diag[j])
    for state.per_weight in (False, True):  # they do not return
        assert_array_equal(sweeps._precisions(state)[~relevant], PRECISIONS[1])


def test_value_is_the_dense_evidence():
    data, y, _ = sinc(60)
    model = QSRVMRegressor(RBF(1.5), noise_variance=0.05, optimizer=None).fit(data, y)
    values = np.c_[model.kernel_(data, model.relevance_vectors_), np.ones(60)]
    bias = model._latents[0].precisions[0, -1]
    s = np.append(model.relevance_, bias)
    noise_var = model.noise_variance_ / y.std() ** 2
    target = (y - y.mean()) / y.std()
    expected = dense_evidence(np.log(s), values, target, noise_var)
    assert_allclose(model.elbo_, expected, rtol=1e-8)
    cov = np.linalg.inv(values.T @ values / noise_var + np.diag(s))
    mean = cov @ values.T @ target / noise_var
    got, got_cov = model.predict(data, return_cov=True)
    assert_allclose(got, y.mean() + y.std() * values @ mean, rtol=1e-6)
    expected = y.var() * (values @ cov @ values.T + noise_var * np.eye(60))
    assert_allclose(got_cov, expected, rtol=1e-6, atol=1e-12)
    draws = model.sample_latent(data[:2], 4000)[:, :, 0]
    std = np.sqrt(got_cov.diagonal()[:2] - model.noise_variance_)
    # Five standard errors.
    assert_allclose(draws.mean(0), got[:2], rtol=0, atol=5 * std.max() / 4000**0.5)
    assert_allclose(draws.std(0), std, rtol=5 / 8000**0.5)


@pytest.mark.parametrize(("n", "d"), [(150, 50), (600, 40)])
def test_intervals_cover_rows_that_evidence_is_too_sure_of(n, d):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n + 1000, d))
    y = np.sin(X[:, 0]) + X[:, 1] + 0.5 * X[:, 2] * X[:, 3] + 0.3 * rng.normal(size=n + 1000)
    model = QSRVMRegressor(random_state=0).fit(X[:n], y[:n])
    mean, std = model.predict(X[n:], return_std=True)
    # With the noise that maximizes the evidence it is 0.77 and 0.78.
    assert 0.93 < np.mean(np.abs(y[n:] - mean) < 1.96 * std) < 0.99


# Held-out rows


@pytest.mark.parametrize("slope", [0.0, 0.4, 2.0])
def test_share_and_noise_maximize_the_density_of_held_out_rows(slope):
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(200, 1)), rng.uniform(0.1, 0.5, (200, 1))
    y = 1.0 + slope * (mean - 1.0) + 0.3 * rng.normal(size=(200, 1))
    weights = rng.uniform(0.5, 2.0, 200)
    sites = LikelihoodSites(Gaussian([0.25]), 1)
    moments = tuple(map(t64, (mean, var, y, weights)))
    center = np.average(y[:, 0], weights=weights)

    def loss(parameters):
        share, log_noise = parameters
        total = share**2 * var + np.exp(log_noise)
        squares = (y - center - share * (mean - center)) ** 2 / total
        return 0.5 * weights @ (np.log(2 * np.pi * total) + squares)[:, 0]

    best = minimize(loss, [0.5, -1.0], bounds=[(0, 1), (-14, 5)], tol=1e-12)
    fit = HeldOutFit.of(sites, WIDE, t64([0.0]), moments, shrinks=True)
    assert_allclose([fit.share.item(), fit.noise.item()], best.x, atol=1e-3)
    assert_allclose(fit.weights @ fit.densities, -best.fun, rtol=1e-6)
    plain = HeldOutFit.of(sites, WIDE, t64([0.0]), moments)
    assert plain.share.item() == 1


def test_calibrated_latents_are_a_share_of_their_deviations():
    sweeps, state = settled(Gaussian([0.25]), Y, noise_bounds=WIDE)
    share, center, others = t64([0.3]), t64([0.7]), t64([[0.2], [0.9]])
    fit = HeldOutFit(None, None, t64([-1.0]), share, center)
    found, moments = fit.calibrated(state), []
    for each in (state, found):
        bases = BiasedDictionary(sweeps._kernel, each.theta, each.bases, each.precisions)
        posterior = WeightPosterior(bases, each.coef, each.diag, each.columns)
        moments.append(posterior.marginals(others))
    (mean, var), (shrunk, less) = moments
    assert_allclose(shrunk, 0.7 + 0.3 * (mean - 0.7), rtol=1e-12)
    assert_allclose(less, 0.3**2 * var, rtol=1e-12)
    assert found.noise.item() == max(-1.0, state.noise.item())


def test_probabilities_are_tempered_by_held_out_rows():
    data, y = ring(60, 3)
    fits = [QSRVMClassifier(optimizer=o, random_state=0).fit(data, y) for o in ("auto", None)]
    assert [fit.temperature_ == 1 for fit in fits] == [False, True]
    assert fits[0]._tempering.weight == 60  # each row is held out once
    frequencies = (np.bincount(y) + 0.5) / 61.5
    assert_allclose(np.exp(fits[0]._tempering.log_frequencies), frequencies)


# Sparsity and accuracy


@pytest.mark.parametrize("length", [1.0, 1.5, 2.0])
def test_noisy_sinc_needs_few_of_500_rows(length):
    data, y, truth = sinc()
    model = QSRVMRegressor(RBF(length, "fixed"), random_state=0).fit(data, y)
    # Specification 6.5: the source has 13; between 8 and 20 is a reproduction.
    assert 8 <= len(model.relevance_vectors_) <= 20
    assert (model.relevance_ < 1e4).all()
    exact = GaussianProcessRegressor(
        1.39**2 * RBF(2.79) + WhiteKernel(0.0656), optimizer=None, normalize_y=True
    ).fit(data, y)
    rmse = [np.sqrt(np.mean((m.predict(data) - truth) ** 2)) for m in (model, exact)]
    assert rmse[0] < 1.2 * rmse[1]
    assert_allclose(np.sqrt(model.noise_variance_), 0.1, rtol=0.1)
    assert {*model.relevance_vectors_[:, 0]} <= {*data[:, 0]}


def test_mean_field_keeps_fewer_and_is_surer():
    data, y, truth = sinc()
    fits = [
        QSRVMRegressor(RBF(1.0, "fixed"), covariance=covariance).fit(data, y)
        for covariance in ("full", "mean_field")
    ]
    assert 7 <= len(fits[1].relevance_vectors_) < len(fits[0].relevance_vectors_)
    assert fits[1].elbo_ < fits[0].elbo_
    assert np.sqrt(np.mean((fits[1].predict(data) - truth) ** 2)) < 0.03


def test_length_scales_are_not_those_of_noise():
    rng = np.random.default_rng(0)
    data, y = rng.normal(size=(150, 5)), rng.normal(size=150)
    model = QSRVMRegressor(random_state=0).fit(data, y)
    assert len(model.relevance_vectors_) < 15
    assert_allclose(model.noise_variance_, y.var(), rtol=0.2)


def test_length_scales_are_learned_unless_told():
    data, y, truth = sinc(200)
    given, fixed = RBF(0.2), RBF(0.2, "fixed")
    models = [
        QSRVMRegressor(kernel, optimizer=optimizer, random_state=0).fit(data, y)
        for kernel, optimizer in ((given, "auto"), (given, None), (fixed, "auto"))
    ]
    assert models[0].kernel_.length_scale == pytest.approx(0.8, rel=0.5)
    assert [model.kernel_.length_scale for model in models[1:]] == [0.2, 0.2]
    assert_allclose(models[1].noise_variance_, 0.1 * y.var())
    rmse = [np.sqrt(np.mean((model.predict(data) - truth) ** 2)) for model in models]
    assert rmse[0] < 0.7 * rmse[2]


def test_folds_are_made_when_they_are_wanted():
    made = []
    rows = SimpleNamespace(
        units=lambda: np.arange(30),
        divided=lambda _, held: made.append(held),
        targets=torch.arange(30) % 10 // 9,
        collect=lambda *tensors: tensors,
    )
    folds = iter(_rvm_training._folds(rows, np.random.RandomState(0)))
    next(folds)
    assert [len(held) for held in made] == [10]
    assert list(folds) == [None, None]
    assert [sum(held % 10 == 9) for held in made] == [1, 1, 1]  # rows of the rare class
    assert_array_equal(np.sort(np.concatenate(made)), np.arange(30))


def test_other_labels_give_the_same_folds():
    """Sizes of the classes are no multiples of the number of folds."""
    held, codes = [], np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [7, 13, 20]))
    for targets in (codes, 2 - codes, (codes + 1) % 3):
        rows = SimpleNamespace(
            units=lambda: np.arange(40),
            divided=lambda _, chosen: chosen.tolist(),
            targets=torch.as_tensor(targets),
            collect=lambda *tensors: tensors,
        )
        held.append(list(_rvm_training._folds(rows, np.random.RandomState(0))))
    assert held[0] == held[1] == held[2]


@pytest.mark.parametrize("y", [[3.0], [3.0, 3.0], [-5.0, 1.0]])
def test_noise_of_one_or_two_rows_is_not_learned(y):
    model = QSRVMRegressor().fit(np.arange(len(y))[:, None], y)
    expected = 0.1 * (np.var(y) or 1.0)  # a tenth of the variance, 1 for that of a constant
    assert_allclose(model.noise_variance_, expected)


@pytest.mark.parametrize("n", [9, 11])
def test_length_scales_are_learned_from_few_rows(n):
    data = np.linspace(-3, 3, n)[:, None]
    model = QSRVMRegressor(random_state=0).fit(data, np.sin(2 * data[:, 0]))
    grid = np.linspace(-3, 3, 100)[:, None]
    # With the initial length scales it is 0.65.
    assert np.abs(model.predict(grid) - np.sin(2 * grid[:, 0])).mean() < 0.1


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_length_scales_that_are_clearly_worse_are_tried_on_one_fold(kind, monkeypatch):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(120, 5))
    f = data @ [1.0, -2.0, 0.0, 0.0, 1.0]
    model, y = QSRVMRegressor(random_state=0), f + 0.1 * rng.normal(size=120)
    if kind == "classification":
        model, y = QSRVMClassifier(random_state=0), np.digitize(f, [-1.0, 1.0])
    run_stage, tried = Problem.run_stage, []

    def recorded(self, name, *args, **kwargs):
        tried.append(name)
        return run_stage(self, name, *args, **kwargs)

    monkeypatch.setattr(Problem, "run_stage", recorded)
    raced, shortest = model.fit(data, y).kernel_, "length scales times 0.0625, fold "
    assert shortest + "0" in tried
    assert shortest + "1" not in tried
    monkeypatch.setattr(_rvm_training, "_STANDARD_ERRORS", (1e300, 1e300, 1.0))
    assert model.fit(data, y).kernel_ == raced
    assert shortest + "2" in tried


def relative_errors(seed, n=100):
    """Return the number of relevance vectors of n rows of a sinc, and RMSE relative to a GP's."""
    rng = np.random.default_rng(seed)
    data = rng.uniform(-10, 10, (n, 1))
    grid = np.linspace(-10, 10, 500)[:, None]
    y = np.sinc(data[:, 0] / np.pi) + 0.1 * rng.normal(size=n)
    model = QSRVMRegressor(random_state=0).fit(data, y)
    kernel = 1.0 * RBF() + WhiteKernel()
    exact = GaussianProcessRegressor(kernel, normalize_y=True).fit(data, y)
    truth = np.sinc(grid[:, 0] / np.pi)
    rmse = [np.sqrt(np.mean((m.predict(grid) - truth) ** 2)) for m in (model, exact)]
    return len(model.relevance_vectors_), rmse[0] / rmse[1]


def test_length_scales_that_one_draw_of_sinc_is_sensitive_to():
    n_vectors, ratio = relative_errors(4)
    assert n_vectors <= 14
    assert ratio < 1.2  # 2.3 if the choice required a gain of 0.02 nats per row


def test_functions_that_others_can_replace_are_pruned():
    n_vectors, ratio = relative_errors(4, n=500)
    assert n_vectors <= 14  # 32 with a tolerance of 1e-5
    assert ratio < 1.2


@pytest.mark.slow
@pytest.mark.parametrize(("n", "largest_ratio"), [(100, 1.2), (500, 1.25)])
def test_ten_draws_of_sinc(n, largest_ratio):
    vectors, ratios = np.transpose([relative_errors(seed, n) for seed in range(10)])
    assert np.median(vectors) <= 14
    assert vectors.max() <= 20
    assert ratios.max() < largest_ratio


def test_a_kernel_without_length_scales():
    data, _ = waves(50, 3)
    line = data @ [1.0, -2.0, 0.5] + 3 + 0.1 * np.random.default_rng(0).normal(size=50)
    model = QSRVMRegressor(DotProduct(0.0, "fixed")).fit(data, line)
    assert len(model.relevance_vectors_) <= 4
    assert model.score(data, line) > 0.99


def test_far_away_there_is_the_constant():
    data, y, _ = sinc(100)
    model = QSRVMRegressor(RBF(1.0, "fixed"), normalize_y=False).fit(data, y + 5)
    assert_allclose(model.predict([[1e3]]), 5, atol=0.1)


def test_laplace_noise_bears_outliers():
    data, y, truth = sinc(200)
    y[::10] += 4
    rmse = [
        np.sqrt(
            np.mean(
                (
                    QSRVMRegressor(RBF(1.5, "fixed"), likelihood=likelihood)
                    .fit(data, y)
                    .predict(data)
                    - truth
                )
                ** 2
            )
        )
        for likelihood in ("gaussian", "laplace")
    ]
    assert rmse[1] < 0.3 * rmse[0]


def test_outputs_share_functions():
    data, y, _ = sinc(100)
    both = np.c_[y, 10 * np.cos(data[:, 0])]
    model = QSRVMRegressor(RBF(1.5, "fixed")).fit(data, both)
    assert model.relevance_.shape == (2, len(model.relevance_vectors_))
    assert (model.relevance_.min(0) < 1e4).all()
    assert model.noise_variance_.shape == (2,)
    assert model.score(data, both) > 0.9
    assert model.predict(data, return_std=True)[1].shape == (100, 2)
    assert model.sample_y(data[:3], 5).shape == (3, 2, 5)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("covariance", ["full", "mean_field"])
def test_classes(n_classes, covariance):
    data, y = ring(150, n_classes)
    model = QSRVMClassifier(RBF(1.0, "fixed"), covariance=covariance).fit(data[:75], y[:75])
    assert model.score(data[75:], y[75:]) > (0.85 if n_classes == 2 else 0.7)
    assert len(model.relevance_vectors_) < 25
    P = model.predict_proba(data)
    assert_allclose(P.sum(1), 1, atol=1e-12)
    assert_array_equal(model.classes_[P.argmax(1)], model.predict(data))
    # The bound on the evidence is above that of class frequencies alone: the functions help.
    assert -75 * np.log(n_classes) < model.elbo_ < 0
    expected = (len(model.relevance_vectors_),)
    assert model.relevance_.shape == (expected if n_classes == 2 else (3, *expected))


def test_sweeps_that_overshoot_take_less_of_a_step():
    rng = np.random.default_rng(112)
    X = rng.normal(size=(300, 4))
    y = (rng.uniform(size=300) < expit(3 * np.sin(4 * X[:, 0]))).astype(int)
    # Most rows have a function of their own. With steps of half the length the ELBO fell to -5e9.
    model = QSRVMClassifier(RBF(0.2), optimizer=None, random_state=0).fit(X, y)
    assert np.diff(model.objective_curve_).min() > -1.0
    assert model.n_iter_ < model.max_iter


def test_classes_without_structure_have_their_rates():
    rng = np.random.default_rng(0)
    data, y = rng.normal(size=(120, 2)), np.arange(120) % 4 == 0
    P = QSRVMClassifier(random_state=0).fit(data, y).predict_proba(data)
    assert_allclose(P[:, 1].mean(), 0.25, atol=0.02)
    assert P[:, 1].std() < 0.1


def rare_classes(kind, n, seed):
    """Return rows, probabilities and labels of a rare class."""
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(n, 3))
    logit = {
        "linear": 2 * data[:, 0] + data[:, 1] - 6,
        "steep": 3 * data[:, 0] - 9,
        "local": 9 * np.exp(-((data - 1) ** 2).sum(1)) - 5,
        "both sides": 2.5 * np.abs(data[:, 0]) - 8,
        "weak": data[:, 0] - 4,
        "none": np.full(n, -4.0),
    }[kind]
    p = 1 / (1 + np.exp(-logit))
    return data, p, (rng.random(n) < p).astype(int)


@pytest.mark.parametrize(
    ("kind", "n"),
    [
        ("linear", 600),
        *(
            pytest.param(kind, 6000, marks=pytest.mark.slow)
            for kind in ("linear", "steep", "local", "both sides", "weak", "none")
        ),
    ],
)
def test_probabilities_of_rare_classes(kind, n):
    data, _, y = rare_classes(kind, n, 0)
    others, p, _ = rare_classes(kind, 5000, 1)

    def excess(q):
        """Return the expected excess log loss over the true probabilities, in nats per row."""
        return (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()

    loss = -(p * np.log(p) + (1 - p) * np.log1p(-p)).mean()
    own = excess(QSRVMClassifier(random_state=0).fit(data, y).predict_proba(others)[:, 1])
    linear = excess(LogisticRegression().fit(data, y).predict_proba(others)[:, 1])
    assert loss + own < 1.1 * (loss + linear)
    assert own <= excess(y.mean()) + 1e-4  # this is optimal without signal


# Conventions of all estimators


@pytest.mark.parametrize("kind", [QSRVMRegressor, QSRVMClassifier])
def test_integer_weights_are_repetitions(kind, monkeypatch):
    monkeypatch.setattr(_rvm_training, "_FACTORS", np.array([0.5, 1.0]))
    data, y = ring(60, 2)
    y = y if kind is QSRVMClassifier else data[:, 0] ** 2 + y
    weights = np.arange(60) % 3
    models = [
        kind(random_state=0).fit(data, y, sample_weight=weights.astype(float)),
        kind(random_state=0).fit(np.repeat(data, weights, 0), np.repeat(y, weights)),
    ]
    one, other = (model.latent_mean_and_variance(data) for model in models)
    assert_array_equal(one, other)
    assert models[0].elbo_ == models[1].elbo_


@pytest.mark.parametrize("kind", [QSRVMRegressor, QSRVMClassifier])
def test_pickles_hold_few_numbers_and_no_tensors(kind):
    data, y = ring(200, 2)
    model = kind(RBF(2.0), optimizer=None, random_state=0).fit(data, y)
    stored = pickle.dumps(model)
    assert b"torch" not in stored
    assert len(stored) < 30_000
    assert_array_equal(pickle.loads(stored).predict(data), model.predict(data))


def test_functions_are_at_most_n_basis():
    data, y, _ = sinc(200)
    model = QSRVMRegressor(RBF(2.0, "fixed"), n_basis=10, relevance_threshold=1e300, random_state=0)
    assert model.fit(data, y).relevance_vectors_.shape == (10, 1)
    other = model.set_params(random_state=1).fit(data, y)
    assert len(other.relevance_vectors_) == 10


def test_chunks_of_rows_change_nothing_but_roundings(monkeypatch):
    data, y = ring(90, 3)
    fits = []
    for entries in (2**22, 1):
        monkeypatch.setattr("skgpsvm.quadruply_stochastic._relevance.LARGE_BLOCK", entries)
        fits.append(QSRVMClassifier(RBF(1.0, "fixed"), random_state=0).fit(data, y))
    assert_allclose(*(fit.predict_proba(data) for fit in fits), atol=1e-6)


def test_single_precision_values():
    data, y, _ = sinc(200)
    fits = [QSRVMRegressor(RBF(1.5, "fixed"), dtype=d).fit(data, y) for d in ("float32", None)]
    assert_allclose(*(fit.predict(data) for fit in fits), atol=0.02)


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("covariance", ["full", "mean_field"])
@pytest.mark.parametrize("kind", [QSRVMRegressor, QSRVMClassifier])
def test_edges_of_data_give_finite_predictions(kind, covariance, edge, monkeypatch):
    monkeypatch.setattr(_rvm_training, "_FACTORS", np.array([0.25, 1.0, 4.0]))
    data, y = ring(30, 3)
    data = edge(data)
    options = {"full": {}, "mean_field": {"optimizer": None}}[covariance]  # one is enough
    model = kind(covariance=covariance, random_state=0, **options).fit(data, y[: len(data)])
    mean, variance = model.latent_mean_and_variance(data)
    assert np.isfinite(mean).all()
    assert (variance >= 0).all()
    if kind is QSRVMClassifier:
        assert_allclose(model.predict_proba(data).sum(1), 1, atol=1e-9)
    else:
        assert np.isfinite(model.predict(data, return_std=True)).all()


def test_a_constant_y():
    data, _ = ring(30, 2)
    model = QSRVMRegressor(random_state=0).fit(data, np.full(30, 7.0))
    assert_allclose(model.predict(data), 7.0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kernel": "rbf"}, TypeError, "not a kernel"),
        ({"covariance": "chevron"}, ValueError, "covariance='chevron' is not for"),
        ({"likelihood": "student_t"}, ValueError, "likelihood='student_t' is not one of"),
        ({"n_basis": 0}, ValueError, "n_basis=0 must be an integer of at least 1"),
        ({"relevance_threshold": 0.5}, ValueError, "must be above 1"),
        ({"noise_variance": 0}, ValueError, "noise_variance=0 must be a number above 0"),
        ({"optimizer": "adam"}, ValueError, "optimizer='adam' is not one of"),
        ({"max_iter": 0}, ValueError, "max_iter=0 must be an integer"),
        ({"tol": -1.0}, ValueError, "tol=-1.0 must be a number"),
        ({"normalize_y": 1}, ValueError, "normalize_y=1 must be True or False"),
    ],
)
def test_bad_parameters(options, error, message):
    with pytest.raises(error, match=message):
        QSRVMRegressor(**options).fit(*waves(10, 2))


def test_a_killed_fit_resumes(tmp_path):
    data, y, _ = sinc(40)
    plain = QSRVMRegressor(random_state=3).fit(data, y)

    class Killed(Exception):
        pass

    class Kill:
        n_left = 50

        def setup(self, *args, **kwargs):
            pass

        teardown = on_fit_task_begin = setup

        def on_fit_task_end(self, *args, **kwargs):
            self.n_left -= 1
            if not self.n_left:
                raise Killed

    model = QSRVMRegressor(random_state=3).set_callbacks(Checkpoint(tmp_path, 10), Kill())
    with pytest.raises(Killed):
        model.fit(data, y)
    again = QSRVMRegressor(random_state=3).set_callbacks(Checkpoint(tmp_path, 10)).fit(data, y)
    assert_array_equal(again.predict(data), plain.predict(data))


def test_too_few_sweeps_are_told():
    data, y, _ = sinc(50)
    with pytest.warns(ConvergenceWarning, match="QSRVMRegressor reached max_iter=2"):
        model = QSRVMRegressor(RBF(1.0, "fixed"), max_iter=2).fit(data, y)
    assert model.n_iter_ == len(model.objective_curve_) == 2
    assert model.objective_curve_[-1] == model.elbo_


def test_torch_s_random_state_is_left_alone():
    before = torch.get_rng_state()
    QSRVMRegressor(random_state=0).fit(*waves(20, 2))
    assert_array_equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("first", "others"), [(1000, 1), (5, 5)])
def test_weights_do_not_spoil_the_choice_of_length_scales(first, others):
    rng = np.random.RandomState(3)
    X, X_new = rng.randn(150, 2), rng.randn(200, 2)
    y, y_new = (np.sin(2 * part[:, 0]) + 0.5 * part[:, 1] for part in (X, X_new))
    weights = np.r_[first, np.full(149, others)]
    model = QSRVMRegressor(random_state=0)
    model.fit(X, y + 0.1 * rng.randn(150), sample_weight=weights)
    # It is 0.28 if one fold has all of a large weight, 0.32 if folds of equal weight share rows.
    assert model.score(X_new, y_new) > 0.9


def test_length_scales_are_those_of_the_function():
    X, y = waves(120)
    X_new, y_new = waves(500, seed=1, noise=0.0)
    for seed in range(2):
        model = QSRVMRegressor(random_state=seed).fit(X, y)
        assert model.score(X_new, y_new) > 0.88
