"""Additive models without inducing points: evidence, gradients, posteriors, equivalences."""

import math
import pickle
import warnings
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from problems import assert_all_close, average_information, rows_of, t64
from scipy.stats import expon, gamma, multivariate_normal
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor
from skgpsvm.additive import _ascent, _ascents, _exact_learning, _search, _terms
from skgpsvm.additive._basis import AdditiveBasis, Feature
from skgpsvm.additive._defaults import DEFAULTS
from skgpsvm.additive._exact import (
    ExactPosterior,
    RowEvidence,
    RowSums,
    evidence_gains,
)
from skgpsvm.additive._exact_learning import ExactGaussianAscent, ExactSiteAscent
from skgpsvm.additive._fixed_processes import Levels, Steps
from skgpsvm.additive._gaussian_ascent import GaussianAscent
from skgpsvm.additive._row_prior import RowPrior
from skgpsvm.kernels import ANOVARBF, ANOVAMatern

exact = {"sparse": False, "min_gain": 0}


def mixed_basis(data, shares):
    """Return a basis of two numbers, the second partly missing, three levels, and all pairs."""
    basis = AdditiveBasis(
        features=[Feature(), Feature(missing=True), Feature(n_levels=3)],
        terms=[(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)],
        kernel="matern52",
        pair_kernel="matern12",
        n_inducing=5,
        n_inducing_pair=3,
        points={},
        pair_points={},
        size=20,
        pair_size=20,
        constant=0.7,
        means=[],
        seconds=[],
        shares=shares,
    )
    rows = rows_of(data, np.zeros(len(data)))
    basis.measure(rows, True)
    basis.measure_by_atoms(rows, True)
    return basis


def mixed(n=23, shares=True, seed=0, known=False):
    """Return a basis, hyperparameters that differ between terms, and sums over rows."""
    rng = np.random.default_rng(seed)
    data = np.c_[rng.random((n, 2)), rng.integers(3, size=n)]
    data[::5, 1] = np.nan
    basis = mixed_basis(data, shares)
    start = basis.start()
    theta = {kind: t64(rng.normal(-1, 0.3, len(usual))) for kind, usual in start.items()}
    precision, linear = t64(rng.uniform(0.5, 2, n)), t64(rng.normal(size=n))
    u = basis.unit(t64(data))
    variances = t64(rng.uniform(0, 0.5, n)) if known else None
    return basis, {**theta, "noise": t64(-1.5)}, RowSums(u, precision, linear, 31.0, variances)


def evidence_of(basis, theta, sums):
    return RowEvidence(RowPrior(basis, theta, sums.u), sums, theta["noise"])


def dense(basis, theta, u, v):
    """Return the prior covariances of the constant and each term, by their definitions."""
    lengths = dict(zip(basis.start()["length"], theta["length"].exp(), strict=True))
    variances = dict(zip(basis.start()["variance"], theta["variance"].exp(), strict=True))

    def factor(j, length, rough):
        if j == 2:
            share = t64(basis.means[2])
            a, b = (torch.eye(3).double()[x[:, 2].long()] for x in (u, v))
            return a @ (torch.eye(3) - torch.outer(share, share) / share.square().sum()) @ b.T

        def g(a, b):
            r = (a[:, None] - b).abs() / length
            s = 5**0.5 * r
            return (-r).exp() if rough else (1 + s + s**2 / 3) * (-s).exp()

        atoms, weights = map(t64, basis.atoms[j])
        left, right = (g(x[:, j].nan_to_num(0.5), atoms) @ weights for x in (u, v))
        total = weights @ g(atoms, atoms) @ weights
        cov = g(u[:, j], v[:, j]) - torch.outer(left, right) / total
        return cov.nan_to_num(0.0)

    found = [torch.full((len(u), len(v)), basis.constant).double()]
    for term in basis.terms:
        cov = variances[term]
        for k, j in enumerate(term):
            shared = ("pairs", j) if len(term) == 2 and basis.shares else (term, k)
            cov = cov * factor(j, lengths.get(shared), len(term) == 2)
        if term == (1,):
            cov = cov + variances[1] * torch.outer(
                u[:, 1].isnan().double(), v[:, 1].isnan().double()
            )
        found.append(cov)
    return found


@pytest.mark.parametrize("shares", [True, False])
def test_prior_covariances_are_those_written_out(shares, monkeypatch):
    basis, theta, sums = mixed(shares=shares)
    monkeypatch.setattr("skgpsvm.additive._row_prior.SMALL_BLOCK", 700)  # several blocks
    prior = RowPrior(basis, theta, sums.u)
    expected = dense(basis, theta, sums.u, sums.u)
    assert_allclose(prior.matrix, sum(expected), atol=1e-12)
    new = sums.u[3:9]
    at = prior.at(new)
    found = prior.covariances(at, prior.rows)
    assert_all_close(found, dense(basis, theta, new, sums.u), atol=1e-12)
    assert_allclose(prior.between(at), sum(dense(basis, theta, new, sums.u)), atol=1e-12)
    diagonals = torch.stack([cov.diagonal() for cov in dense(basis, theta, new, new)], 1)
    assert_allclose(prior.variances(at), diagonals, atol=1e-12)


@pytest.mark.parametrize("known", [False, True])
def test_evidence_is_the_density_of_targets(known):
    basis, theta, sums = mixed(known=known)
    n, rng = len(sums.u), np.random.default_rng(1)
    weights, y = rng.integers(1, 4, n), rng.normal(size=n)
    sums = RowSums(sums.u, t64(weights), t64(weights * y), weights.sum(), sums.known)
    value = evidence_of(basis, theta, sums).value
    again = np.repeat(np.arange(n), weights)
    cov = sum(dense(basis, theta, sums.u, sums.u)).numpy()[again[:, None], again]
    cov[np.diag_indices(len(cov))] += np.exp(-1.5) + (sums.known.numpy()[again] if known else 0)
    assert_allclose(value, multivariate_normal(cov=cov).logpdf(y[again]))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shares", [True, False])
def test_derivatives_are_those_of_finite_differences(shares, known, monkeypatch):
    monkeypatch.setattr("skgpsvm.additive._row_prior.SMALL_BLOCK", 700)
    basis, theta, sums = mixed(shares=shares, known=known)
    slopes, _ = evidence_of(basis, theta, sums).derivatives(list(theta))
    assert set(slopes) == {"length", "variance", "noise"}
    for kind, slope in slopes.items():
        for place in np.ndindex(*slope.shape):
            values = []
            for move in (-1e-5, 1e-5):
                moved = theta[kind].clone()
                moved[place] += move
                values.append(evidence_of(basis, {**theta, kind: moved}, sums).value)
            assert_allclose(slope[place], (values[1] - values[0]) / 2e-5, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("known", [False, True])
def test_average_information_is_that_of_dense_algebra(known):
    basis, theta, sums = mixed(known=known)
    variances = sums.known if known else 0.0
    _, found = evidence_of(basis, theta, sums).derivatives(list(theta))

    def cov(parts):
        K = sum(dense(basis, parts, sums.u, sums.u))
        return K + torch.diag((parts["noise"].exp() + variances) / sums.precision)

    expected = average_information(cov, theta, sums.linear / sums.precision)
    assert_allclose(found, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("known", [False, True])
def test_derivatives_in_the_noise_alone_are_those_among_all(known):
    basis, theta, sums = mixed(known=known)
    evidence, names = evidence_of(basis, theta, sums), [*theta]
    slopes, information = evidence.derivatives(names)
    alone, own = evidence.derivatives(["noise"])
    place = [name for name in names for _ in slopes[name].reshape(-1)].index("noise")
    assert set(alone) == {"noise"}
    assert_allclose(alone["noise"], slopes["noise"], rtol=1e-12)
    assert_allclose(own, information[place, place].view(1, 1), rtol=1e-12)


def test_latents_with_the_same_hyperparameters_add_their_evidences():
    basis, theta, sums = mixed()
    theta["noise"] = theta["noise"].view(())
    rng, n = np.random.default_rng(2), len(sums.u)
    precision, linear = t64(rng.uniform(0.5, 2, (3, n))), t64(rng.normal(size=(3, n)))
    both = evidence_of(basis, theta, RowSums(sums.u, precision, linear))
    parts = [RowSums(sums.u, *own) for own in zip(precision, linear, strict=True)]
    alone = [evidence_of(basis, theta, part) for part in parts]
    assert_allclose(both.value, sum(own.value for own in alone))
    names = ["length", "variance"]
    slopes, information = both.derivatives(names)
    found = [own.derivatives(names) for own in alone]
    assert_allclose(information, sum(own[1] for own in found), atol=1e-10)
    for name in names:
        assert_allclose(slopes[name], sum(own[0][name] for own in found), atol=1e-10)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("log_noise", [-1.5, -6.0])
def test_gains_are_differences_of_evidences(known, log_noise):
    basis, theta, sums = mixed(known=known)
    theta["noise"] = t64(log_noise)
    found = evidence_gains(
        RowPrior(basis, theta, sums.u), theta["noise"], sums, range(len(basis.terms))
    )
    value = evidence_of(basis, theta, sums).value
    covariances, grown = dense(basis, theta, sums.u, sums.u), []
    for place, gain in enumerate(found):
        theta_without = {**theta, "variance": theta["variance"].clone()}
        theta_without["variance"][place] = -60.0
        if basis.terms[place] == (1,):
            theta_without["variance"][-1] = -60.0
        more = theta["noise"].exp() + covariances[1 + place].diagonal().mean()
        noises = theta["noise"], more.log()
        without = [
            evidence_of(basis, {**theta_without, "noise": noise}, sums).value for noise in noises
        ]
        assert_allclose(gain, value - max(without))
        grown.append(without[1] > without[0])
    assert known or any(grown) == (log_noise < -2)


def test_terms_that_are_noise_gain_nothing():
    """At the least length scale, the covariance of a pair of 20 rows is nearly diagonal."""
    rng = np.random.default_rng(0)
    data, y = rng.random((20, 2)), t64(rng.normal(size=20))
    basis = mixed_basis(np.c_[data, rng.integers(3, size=20)], True)
    start = basis.start()
    theta = {kind: t64(list(values.values())) for kind, values in start.items()}
    place = basis.terms.index((0, 1))
    theta["length"][-2:], theta["variance"][:] = math.log(1e-3), -60.0
    theta["variance"][place], theta["noise"] = 0.0, t64(-6.0)
    sums = RowSums(basis.unit(t64(np.c_[data, np.zeros(20)])), torch.ones_like(y), y, 20.0)
    [gain] = evidence_gains(RowPrior(basis, theta, sums.u), theta["noise"], sums, [place])
    assert abs(gain) < 0.5


def posterior_of(n=23):
    basis, theta, sums = mixed(n)
    return ExactPosterior(RowPrior(basis, theta, sums.u), sums.precision, sums.linear)


def test_posterior_is_that_of_dense_algebra():
    posterior = posterior_of()
    basis, theta, sums = mixed()
    new = sums.u[:9].clone()
    new[:, 0] += 0.01
    K = sum(dense(basis, theta, sums.u, sums.u))
    inverse = torch.linalg.inv(K + torch.diag(1 / sums.precision))
    y = sums.linear / sums.precision
    between, prior = dense(basis, theta, new, sums.u), dense(basis, theta, new, new)
    cov = sum(prior) - sum(between) @ inverse @ sum(between).T
    mean, var = (part[:, 0] for part in posterior.marginals(new))
    assert_allclose(mean, sum(between) @ inverse @ y, atol=1e-12)
    assert_allclose(var, cov.diagonal(), atol=1e-12)
    assert_allclose(posterior.cov(new)[0], cov, atol=1e-9)
    means, variances = posterior.effect_marginals(new)
    for k, (own, between_own) in enumerate(zip(prior, between, strict=True)):
        assert_allclose(means[:, k], between_own @ inverse @ y, atol=1e-12)
        left = own - between_own @ inverse @ between_own.T
        assert_allclose(variances[:, k], left.diagonal(), atol=1e-12)
    at_rows = K @ inverse @ y, (K - K @ inverse @ K).diagonal()
    assert_all_close(posterior.row_marginals(), at_rows, atol=1e-12)
    assert_allclose(posterior.intercept(), (between[0] @ inverse @ y)[0])
    S = (K - K @ inverse @ K).numpy() + 1e-9 * np.eye(len(K))
    prior = K.numpy() + 1e-9 * np.eye(len(K))
    mean = (K @ inverse @ y).numpy()
    kl = np.trace(np.linalg.solve(prior, S)) + mean @ np.linalg.solve(prior, mean) - len(K)
    kl += np.linalg.slogdet(prior)[1] - np.linalg.slogdet(S)[1]
    assert_allclose(posterior.kl(), 0.5 * kl, rtol=1e-3)


def test_shares_are_of_effects_and_their_draws():
    """Compare shares with the effects' moments at all products of values, by their counts."""
    posterior = posterior_of(40)
    basis, u = posterior.basis, posterior.arrays["u"]
    found = posterior.variances()
    drawn = posterior.drawn_variances(4000, np.random.RandomState(0)).mean(0)
    for place, term in enumerate(basis.terms):
        columns = [u[~u[:, j].isnan(), j] for j in term]
        grid = torch.cartesian_prod(*columns).view(-1, len(term))
        rows = torch.zeros(len(grid), 3).double()
        rows[:, list(term)] = grid
        mean, var = (part[:, 1 + place] for part in posterior.effect_marginals(rows))
        assert_allclose(mean.mean(), 0, atol=1e-12)
        assert_allclose(found[place], mean.square().mean(), rtol=1e-10)
        # A thousandth of a pair's prior variance is not drawn, and the number of draws is finite.
        assert_allclose(drawn[place], (mean.square() + var).mean(), rtol=0.05)


@pytest.mark.parametrize("n", [80, 1000])
def test_effects_have_zero_mean(n):
    rng = np.random.default_rng(0)
    data = np.c_[rng.random(n) ** 2, rng.integers(5, size=n)]
    y = np.sin(9 * data[:, 0]) * (data[:, 1] == 2) + 0.1 * rng.normal(size=n)
    latent = AdditiveGPRegressor(**exact, terms=[..., (0, 1)], interactions=None, max_iter=1)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        latent.fit(data, y)
    effects = latent.explain(data)
    assert_allclose(effects[:, :2].mean(0), 0, atol=1e-3 * effects.std() if n > 100 else 1e-10)
    for value in data[:3, 0]:
        held = np.c_[np.full(n, value), data[:, 1]]
        assert_allclose(latent.explain(held)[:, 2].mean(), 0, atol=1e-10)
    for value in range(5):
        held = np.c_[data[:, 0], np.full(n, value)]
        mean = latent.explain(held)[:, 2].mean()
        assert_allclose(mean, 0, atol=5e-3 * effects.std() if n > 100 else 1e-10)


# Estimators


def friedman(n=120, seed=0):
    return make_friedman1(n, n_features=5, noise=1.0, random_state=seed)


@pytest.mark.filterwarnings(
    "ignore:.*on bounds that were set:sklearn.exceptions.ConvergenceWarning"
)
@pytest.mark.parametrize(
    ("kernel", "pair_kernel", "tolerance"), [("rbf", "rbf", 1e-7), ("matern52", "matern12", 1e-2)]
)
def test_predictions_are_those_of_scikit_learns_process(kernel, pair_kernel, tolerance):
    data, y = friedman(60)
    model = AdditiveGPRegressor(
        **exact,
        kernel=kernel,
        kernel_interaction=pair_kernel,
        terms=[..., (0, 1), (1, 2)],
        interactions=None,
        scaling="minmax",
        measure="uniform",
        length_scale_bounds=(0.2, 5.0),
    ).fit(data, y)
    latent = model._latents[0]
    named = latent.basis.start()
    lengths, variances = (
        dict(zip(named[kind], np.exp(latent.theta[kind]), strict=True)) for kind in named
    )
    make = {
        "rbf": ANOVARBF,
        "matern52": lambda length, feature: ANOVAMatern(length, nu=2.5, feature=feature),
        "matern12": lambda length, feature: ANOVAMatern(length, nu=0.5, feature=feature),
    }
    kernel_sum = ConstantKernel(1.0)
    for term in model.terms_:
        own = ConstantKernel(variances[term])
        for j in term:
            if len(term) == 1:
                own *= make[kernel](lengths[term, 0], feature=j)
            else:
                own *= make[pair_kernel](lengths["pairs", j], feature=j)
        kernel_sum += own
    noise = np.exp(model._noise[0])
    low, high = data.min(0), data.max(0)
    unit, new = (data - low) / (high - low), friedman(30, seed=1)[0]
    peer = GaussianProcessRegressor(kernel_sum, alpha=noise, optimizer=None, normalize_y=True)
    mean, std = peer.fit(unit, y).predict((new - low) / (high - low), return_std=True)
    found, found_std = model.predict(new, return_std=True)
    assert_allclose(found, mean, rtol=tolerance)
    assert_allclose(found_std, np.sqrt(std**2 + noise * y.var()), rtol=tolerance)
    assert_allclose(model.elbo_, peer.log_marginal_likelihood_value_, atol=100 * tolerance)


def few_valued(n=120, seed=0):
    rng = np.random.RandomState(seed)
    data = np.c_[rng.randint(4, size=n), rng.randint(5, size=n)].astype(float)
    return data, 0.5 * data[:, 0] * (data[:, 1] - 2) + rng.normal(size=n)


SAME = {
    "kernel": "rbf",
    "kernel_interaction": "rbf",
    "terms": [..., (0, 1)],
    "interactions": None,
    "length_scale_bounds": (0.5, 3.0),
    "tol": 1e-7,
    "max_iter": 200,
    "min_gain": 0,
}
# Inducing points at every value, and no inducing points.
POINTS = [{"sparse": True, "n_inducing_interaction": None}, {"sparse": False}]


@pytest.mark.filterwarnings(
    "ignore:.*on bounds that were set:sklearn.exceptions.ConvergenceWarning"
)
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson"])
def test_points_at_every_value_give_the_same(likelihood, monkeypatch):
    # Without inducing points, noise and length scales have priors by default.
    monkeypatch.setattr(ExactGaussianAscent, "_log_prior", GaussianAscent._log_prior)
    monkeypatch.setattr(_ascent, "DEFAULTS", replace(DEFAULTS, round_gain=1e-3))
    data, y = few_valued()
    # Counts that are large enough for length scales inside their bounds.
    y = np.round(np.abs(4 * y)) if likelihood == "poisson" else y
    models = [
        AdditiveGPRegressor(**SAME, likelihood=likelihood, **points).fit(data, y)
        for points in POINTS
    ]
    values = [model.objective_curve_[-1] for model in models]
    assert_allclose(*values, atol=0.1)  # the change in a pass that ends a fit
    assert_allclose(models[0].predict(data), models[1].predict(data), atol=0.02)
    shares = [model.sobol_indices_ for model in models]
    assert_allclose(*shares, atol=0.01)


@pytest.mark.filterwarnings(
    "ignore:.*on bounds that were set:sklearn.exceptions.ConvergenceWarning"
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_points_at_every_value_give_the_same_classes(n_classes):
    data, y = few_valued()
    y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    models = [AdditiveGPClassifier(**SAME, **points).fit(data, y) for points in POINTS]
    values = [model.objective_curve_[-1] for model in models]
    assert_allclose(*values, atol=0.1)  # the change in a pass that ends a fit
    probabilities = [model.predict_proba(data) for model in models]
    assert_allclose(*probabilities, atol=0.02)


def test_weights_repeat_and_remove_rows():
    data, y = friedman(60)
    weights = np.random.RandomState(0).randint(3, size=60)
    # The range is that of the rows with positive weight; the scale of y is weighted.
    options = {**exact, "terms": [..., (0, 1)], "interactions": None, "tol": 1e-8}
    weighted = AdditiveGPRegressor(**options).fit(data, y, sample_weight=weights)
    again = np.repeat(np.arange(60), weights)
    repeated = AdditiveGPRegressor(**options).fit(data[again], y[again])
    assert_allclose(weighted.elbo_, repeated.elbo_, atol=1e-3)
    assert_allclose(weighted.predict(data), repeated.predict(data), atol=1e-2)


def test_tables_with_gaps_and_unknown_levels():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=200), "z": rng.normal(size=200)})
    table["kind"] = pd.Categorical(rng.choice(["a", "b", "c"], 200))
    y = np.sin(2 * table["x"]) * (table["kind"] == "a") + 0.1 * rng.normal(size=200)
    table.loc[::9, "z"] = np.nan
    model = AdditiveGPRegressor().fit(table, y)
    assert model._latents[0].form is None
    assert "x & kind" in model.term_names_
    assert model.score(table, y) > 0.8
    effects, std = model.explain(table, return_std=True)
    assert_allclose(model.intercept_ + effects.sum(1), model.predict(table), atol=1e-10)
    assert (std[:, model.term_names_.index("x & kind")] > 0).all()
    new = table.head(3).assign(kind=pd.Categorical(["d", "d", "a"]))
    effects, std = model.explain(new, return_std=True)
    place = model.term_names_.index("x & kind")
    assert_allclose(effects[:2, place], 0)
    assert (std[:2, place] > std[2, place]).all()


def test_pairs_are_chosen_by_the_evidence():
    data, y = friedman(300)
    model = AdditiveGPRegressor(random_state=0).fit(data, y)
    assert model._latents[0].form is None
    assert "x0 & x1" in model.term_names_
    assert len(model.interaction_scores_) == 10
    assert sum("&" in name for name in model.term_names_) <= 3
    new, truth = make_friedman1(500, n_features=5, noise=0.0, random_state=1)
    options = {"sparse": False, "kernel_interaction": "matern52"}, {"sparse": True}
    smooth = [AdditiveGPRegressor(**own, random_state=0).fit(data, y) for own in options]
    errors = [np.sqrt(np.mean((m.predict(new) - truth) ** 2)) for m in (*smooth, model)]
    assert errors[0] < 1.1 * errors[1]
    assert errors[2] < 1.4 * errors[1]  # the cost of a rough pair kernel on a smooth function


def test_smooth_pairs_where_their_evidence_is_clear():
    data, y = make_friedman1(120, n_features=5, noise=0.1, random_state=0)
    new, truth = make_friedman1(500, n_features=5, noise=0.0, random_state=1)
    found = AdditiveGPRegressor(random_state=0).fit(data, y)
    assert found.kernel_interaction_ == "matern52"
    rough = AdditiveGPRegressor(kernel_interaction="matern12", random_state=0).fit(data, y)
    assert rough.kernel_interaction_ == "matern12"
    assert found.elbo_ > rough.elbo_ + 0.05 * len(y)
    errors = [np.mean((model.predict(new) - truth) ** 2) for model in (found, rough)]
    assert errors[0] < 0.5 * errors[1]
    y = 2.0 * (data[:, 0] > 0.5) * (data[:, 1] > 0.3) + 0.1 * np.sin(40 * data[:, 2])
    assert AdditiveGPRegressor(random_state=0).fit(data, y).kernel_interaction_ == "matern12"


def test_priors_of_noise_and_lengths():
    data, y = friedman(60)
    model = AdditiveGPRegressor(**exact, shrinkage=3.0, terms=[..., (0, 1)], interactions=None).fit(
        data, y
    )
    basis, theta = model._latents[0].basis, model._latents[0].theta
    kinds = {"rbf": RBF(), "matern12": Matern(nu=0.5), "matern52": Matern(nu=2.5)}

    def spread(j, log_length, kernel):
        points, weights = basis.atoms[j]
        K = kinds[kernel](points[:, None] / np.exp(log_length))
        return weights @ K.diagonal() - weights @ K @ weights  # the sum of weights is one

    spreads = [
        np.prod([spread(j, next(lengths), kernel) for j in term])
        for lengths in [iter(theta["length"])]
        for term in basis.terms
        for kernel in [basis.kernel if len(term) == 1 else basis.pair_kernel]
    ]
    deviations = np.sqrt(np.exp(theta["variance"]) * spreads)
    expected = gamma(2, scale=1 / 3).logpdf(deviations).sum()
    expected += gamma(2, scale=1 / 1.5).logpdf(np.exp(0.5 * model._noise)).sum()
    # The density of u = length^-1/2 is exponential; that of log(length) is u / 2 times it.
    u = np.exp(-0.5 * theta["length"][: len(basis.axes)])
    expected += (expon(scale=1 / 1.5).logpdf(u) + np.log(u / 2)).sum()
    assert_allclose(model.objective_curve_[-1] - model.elbo_, expected, rtol=1e-9)

    form = "full", None
    ascent = ExactGaussianAscent(basis, rows_of(data, y[:, None]), None, form, 3.0, 0.0)
    own = {kind: t64(values) for kind, values in theta.items()} | {"noise": t64(-4.0)}

    def prior(own):
        return ascent._log_prior(own, RowPrior(basis, own, ascent._u))

    _, slopes, _ = prior(own)
    for kind, values in own.items():
        for k, move in enumerate(1e-5 * np.eye(values.numel())):
            moves = (t64(sign * move).view_as(values) for sign in (1, -1))
            up, down = (prior({**own, kind: values + move})[0] for move in moves)
            assert_allclose(slopes[kind].ravel()[k], (up - down) / 2e-5, rtol=1e-6, atol=1e-9)


def test_few_rows_with_many_features_of_noise():
    rng = np.random.default_rng(0)
    data, y = rng.standard_normal((50, 20)), rng.standard_normal(50)
    mean, std = AdditiveGPRegressor().fit(data, y).predict(rng.normal(size=(500, 20)), True)
    # Without priors of noise and length scales, half of them are.
    assert np.mean(np.abs(rng.standard_normal(500) - mean) < 1.96 * std) > 0.8


def test_pairs_are_no_part_of_the_noise():
    false = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        data = rng.uniform(size=(60, 5))
        y = np.sin(6 * data[:, 0]) + 0.5 * rng.normal(size=60)
        terms = AdditiveGPRegressor().fit(data, y).terms_
        assert (0,) in terms  # the noise is learned anew before effects are tested
        false += any(len(term) == 2 for term in terms)
    assert false <= 1


def test_pairs_need_less_where_more_are_found():
    search = object.__new__(_search.TermSearch)
    search.kept, search.min_gain, search.exact = [], 0.05, True
    search.scores = dict.fromkeys(combinations(range(10), 2))
    for pairs in ([(0, 1)], [(0, 1), (1, 2), (3, 4)]):
        basis = SimpleNamespace(pairs=pairs, features=[Feature()] * 10)
        rows = SimpleNamespace(n_rows=50)
        search.ascent = SimpleNamespace(
            basis=basis, rows=rows, learned=("noise",), learns_scale=False
        )
        expected = math.log(45 / (DEFAULTS.exact_gain_level * len(pairs)))
        assert_allclose(search._required_gain((0, 1)), expected)


def test_pairs_of_many_features_are_not_chance():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(1200, 20))
    truth = np.sin(data[:, 0]) + data[:, 1] * data[:, 2]
    y = truth + 0.5 * rng.normal(size=1200)
    model = AdditiveGPRegressor().fit(data[:300], y[:300])
    assert model._latents[0].form is None
    assert [name for name in model.term_names_ if "&" in name] == ["x1 & x2"]
    # With all 190 pairs at once, effects explained the noise, and 0.03 was left.
    assert 0.35 < np.sqrt(model.noise_variance_) < 0.55
    assert np.sqrt(np.mean((model.predict(data[300:]) - truth[300:]) ** 2)) < 0.35


def test_some_effects_are_those_of_all():
    data, y = friedman(60)
    model = AdditiveGPRegressor(**exact, terms=[..., (0, 1)], interactions=None).fit(data, y)
    every, some = (np.stack(model._explained(data, places)) for places in (None, [5, 0]))
    assert_allclose(some, every[:, :, [5, 0]], rtol=1e-12)
    none = AdditiveGPRegressor(sparse=False, interactions=None, min_gain=1e9).fit(data, y)
    assert none.explain(data).shape == (60, 0)


def test_number_of_pairs_is_held():
    data, y = friedman(60)
    model = AdditiveGPRegressor(interactions=2, min_gain=0).fit(data, y)
    assert sum(len(term) == 2 for term in model.terms_) == 2
    assert sum(len(term) == 1 for term in model.terms_) == 5
    given = AdditiveGPRegressor(terms=[..., (0, 4)], interactions=None).fit(data, y)
    assert [term for term in given.terms_ if len(term) == 2] == [(0, 4)]
    none = AdditiveGPRegressor(interactions=None).fit(data, y)
    assert not none.interaction_scores_
    assert all(len(term) == 1 for term in none.terms_)


def test_pairs_both_listed_and_found_are_one_term():
    data, y = make_friedman1(120, n_features=5, noise=0.1, random_state=0)
    model = AdditiveGPRegressor(terms=[..., (1, 0)], max_iter=5).fit(data, y)
    assert model.interaction_scores_["x0 & x1"] > 5
    assert model.terms_.count((0, 1)) == 1


def test_steps_are_borne():
    rng = np.random.default_rng(0)
    data = rng.random((300, 3))
    truth = (data[:, 0] > 0.5) * (data[:, 1] > 0.3) * 2.0
    y = truth + 0.1 * rng.normal(size=300)
    new = rng.random((1000, 3))
    new_truth = (new[:, 0] > 0.5) * (new[:, 1] > 0.3) * 2.0
    options = {"terms": [..., (0, 1)], "interactions": None, "random_state": 0}
    models = [
        AdditiveGPRegressor(sparse=sparse, n_inducing=20, **options).fit(data, y)
        for sparse in (False, True)
    ]
    errors = [np.mean((model.predict(new) - new_truth) ** 2) for model in models]
    assert errors[0] < 0.64 * errors[1]


def test_gains_of_clear_terms_are_computed_once(monkeypatch):
    data, y = make_friedman1(120, n_features=9, noise=1.0, random_state=0)
    tested, gains = [], ExactGaussianAscent.gains

    def recorded(self, state, terms):
        tested.append(list(terms))
        return gains(self, state, terms)

    monkeypatch.setattr(ExactGaussianAscent, "gains", recorded)
    monkeypatch.setattr(_search.TermSearch, "_drop_jointly", lambda self: [])
    model = AdditiveGPRegressor(interactions=None, random_state=0).fit(data, y)
    assert len(model.dropped_terms_) >= 2
    assert len(tested) >= 2
    assert {(0,), (1,), (3,), (4,)} <= set(tested[0])
    assert not {(0,), (1,), (3,), (4,)} & {term for terms in tested[1:] for term in terms}


@pytest.mark.parametrize("interactions", ["auto", None])
def test_points_that_lose_nothing_are_kept(interactions):
    data, y = make_friedman1(500, n_features=5, noise=1.0, random_state=0)
    if interactions is None:
        y -= 10 * np.sin(np.pi * data[:, 0] * data[:, 1])
    model, rows = (
        AdditiveGPRegressor(interactions=interactions, sparse=sparse, random_state=0).fit(data, y)
        for sparse in ("auto", False)
    )
    assert model.sparse_
    assert not rows.sparse_
    assert model.terms_ == rows.terms_
    new = make_friedman1(500, n_features=5, random_state=1)[0]
    (mean, std), (mean_rows, std_rows) = (
        each.predict(new, return_std=True) for each in (model, rows)
    )
    assert np.abs(mean - mean_rows).max() < 0.1
    assert_allclose(std, std_rows, rtol=0.005)


@pytest.mark.parametrize(("interactions", "n_pairs"), [("auto", 1), (2, 2)])
def test_fits_that_keep_points_have_their_limit_of_pairs(interactions, n_pairs, monkeypatch):
    for module in (_search, _terms):
        monkeypatch.setattr(module, "DEFAULTS", replace(DEFAULTS, pairs=1))
    rng = np.random.default_rng(0)
    data = rng.random((500, 4))
    first, second, third, fourth = data.T - 0.5
    y = 16 * first * second + 12 * third * fourth + 0.3 * rng.normal(size=500)
    model = AdditiveGPRegressor(interactions=interactions, random_state=0).fit(data, y)
    assert model.sparse_
    assert sum(len(term) == 2 for term in model.terms_) == n_pairs


@pytest.mark.parametrize("changes", [{"points_loss": -np.inf}, {"smooth_rows": 501}])
def test_points_that_lose_evidence_are_not_kept(changes, monkeypatch):
    data, y = make_friedman1(500, n_features=5, noise=1.0, random_state=0)
    for module in (_ascents, _search):
        monkeypatch.setattr(module, "DEFAULTS", replace(DEFAULTS, **changes))
    model, rows = (
        AdditiveGPRegressor(sparse=sparse, random_state=0).fit(data, y)
        for sparse in ("auto", False)
    )
    assert not model.sparse_
    assert_allclose(model.predict(data), rows.predict(data), rtol=1e-10)


def test_rough_pairs_have_no_points():
    rng = np.random.default_rng(0)
    data = rng.random((500, 3))
    y = 2.0 * ((data[:, 0] > 0.5) & (data[:, 1] > 0.3)) + 0.1 * rng.normal(size=500)
    model = AdditiveGPRegressor(random_state=0).fit(data, y)
    assert not model.sparse_
    assert (0, 1) in model.terms_


def test_few_rows_of_gaussian_noise_have_no_points(monkeypatch):
    data, y = friedman(60)
    options = {"interactions": None, "max_iter": 30}

    def is_exact(**more):
        model = AdditiveGPRegressor(**options, **more).fit(data, np.abs(np.round(y)))
        return model._latents[0].form is None

    assert is_exact()
    assert not is_exact(sparse=True)
    assert not is_exact(covariance="mean_field")
    assert not is_exact(likelihood="poisson")
    assert is_exact(likelihood="poisson", sparse=False)
    assert is_exact(sparse=False)
    with monkeypatch.context() as patch:
        patch.setattr(_ascents, "DEFAULTS", replace(DEFAULTS, exact_rows=50))
        assert not is_exact()
    few = replace(DEFAULTS, exact_numbers=290)  # 58 rows of five features
    monkeypatch.setattr(_ascents, "DEFAULTS", few)
    assert not is_exact()


@pytest.mark.filterwarnings("ignore:AdditiveGPClassifier reached max_iter")
def test_more_points_than_rows_are_none():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(30, 8))
    options = {"interactions": None, "max_iter": 5, "tol": 1e-2}

    def is_exact(**more):
        model = AdditiveGPClassifier(**options, **more).fit(data, data[:, 0] > 0)
        return not model.sparse_

    assert is_exact()
    assert not is_exact(sparse=True)
    assert not is_exact(batch_size=10)
    assert not is_exact(n_inducing=None)
    rows = AdditiveGPClassifier(**options).partial_fit(data, data[:, 0] > 0)
    assert rows.sparse_


def test_more_rows_need_points():
    data, y = friedman(60)
    model = AdditiveGPRegressor(interactions=None).fit(data, y)
    with pytest.raises(ValueError, match="takes no more rows: start with partial_fit"):
        model.partial_fit(data, y)
    with pytest.raises(ValueError, match="5 features"):
        model.partial_fit(data[:, :3], y)
    streamed = AdditiveGPRegressor(interactions=None).partial_fit(data[:40], y[:40])
    assert streamed.partial_fit(data[40:], y[40:]).score(data, y) > 0.5
    for kind in (AdditiveGPRegressor, AdditiveGPClassifier):
        assert not hasattr(kind(sparse=False), "partial_fit")
        assert hasattr(kind(sparse=True), "partial_fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparse": False, "covariance": "mean_field"}, "sparse=False has a full covariance"),
        ({"sparse": False, "batch_size": 10}, "needs all rows at once"),
        ({"sparse": True, "kernel_interaction": "matern12"}, "too rough for inducing points"),
        ({"kernel_interaction": "cubic"}, "is not one of None, 'rbf', 'matern12'"),
        ({"kernel": "matern12"}, "is not one of 'rbf', 'matern32', 'matern52'"),
        ({"sparse": "yes"}, "is not one of 'auto', True, False"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        AdditiveGPRegressor(**options).fit(*friedman(30))


def test_evidence_holds_with_hardly_any_noise():
    """Compare the evidence and its gradient with differences of large numbers."""
    basis, theta, sums = mixed()
    theta["noise"] = t64(np.log(1e-9))
    evidence = evidence_of(basis, theta, sums)
    slopes, _ = evidence.derivatives(list(theta))
    more, less = (
        evidence_of(basis, {**theta, "noise": theta["noise"] + move}, sums).value
        for move in (1e-4, -1e-4)
    )
    assert_allclose(slopes["noise"], (more - less) / 2e-4, rtol=1e-5)
    K = sum(dense(basis, theta, sums.u, sums.u)).numpy()
    y = (sums.linear / sums.precision).numpy()
    noise = np.diag(1e-9 / sums.precision.numpy())
    expected = multivariate_normal(cov=K + noise).logpdf(y)
    expected -= 0.5 * sums.precision.log().sum().item()
    expected -= 0.5 * (sums.weight - len(y)) * np.log(2 * np.pi * 1e-9)
    assert_allclose(evidence.value, expected, rtol=1e-7)


def test_repeated_rows_need_points():
    data, y = friedman(60)
    weights = np.random.RandomState(0).randint(3, size=60)
    again = np.repeat(np.arange(60), weights)
    models = [
        AdditiveGPRegressor(interactions=None).fit(data, y, sample_weight=weights),
        AdditiveGPRegressor(interactions=None).fit(data[again], y[again]),
    ]
    assert all(model._latents[0].form == ("full", None) for model in models)
    assert_allclose(models[0].predict(data), models[1].predict(data))
    light = AdditiveGPRegressor(interactions=None).fit(data, y, sample_weight=np.full(60, 0.5))
    assert light._latents[0].form is None
    # A few rows have most of the weight; the mean weight is one.
    uneven = np.where(np.arange(60) < 6, 5.0, 30 / 54)
    heavy = AdditiveGPRegressor(interactions=None).fit(data, y, sample_weight=uneven)
    assert heavy._latents[0].form == ("full", None)


@pytest.mark.parametrize("sparse", ["auto", True])
def test_large_weights_narrow_what_is_learned_without_them(sparse):
    data, y = friedman(80)
    options = {"terms": [..., (0, 1)], "interactions": None, "sparse": sparse}
    once = AdditiveGPRegressor(**options).fit(data, y)
    often = AdditiveGPRegressor(**options).fit(data, y, sample_weight=np.full(80, 100))
    assert often.term_names_ == once.term_names_
    assert_allclose(often.noise_variance_, once.noise_variance_, rtol=1e-6)
    latents = (model._latents[0] for model in (once, often))
    assert_allclose(*(np.concatenate(list(part.theta.values())) for part in latents), atol=1e-6)
    variance, narrow = (model.latent_mean_and_variance(data)[1] for model in (once, often))
    assert (narrow < variance / 4).all()


def test_numbers_far_away():
    data, y = friedman(40)
    model = AdditiveGPRegressor(terms=[..., (0, 1)], interactions=None, scaling="minmax").fit(
        data, y
    )
    far = np.array([[1e150], [1e160], [1e300], [-1e300]]) * np.ones(5)
    mean, std = model.predict(far, return_std=True)
    assert_allclose(mean, mean[0])
    assert np.isfinite(std).all()


@pytest.mark.parametrize("n", [102, 108])
def test_atoms_of_weights_that_hardly_weigh(n):
    data = np.random.default_rng(0).random((n, 1))
    weights = np.ones(n)
    weights[data[:, 0].argmax()] = 1e-18
    model = AdditiveGPRegressor(interactions=None).fit(data, data[:, 0] ** 2, weights)
    assert model.score(data, data[:, 0] ** 2) > 0.99


def test_pickles_and_several_outputs():
    data, y = friedman(60)
    both = np.c_[y, -2 * y + 3]
    model = AdditiveGPRegressor(terms=[..., (0, 1)], interactions=None).fit(data, both)
    again = pickle.loads(pickle.dumps(model))
    mean, std = model.predict(data, return_std=True)
    assert_allclose(again.predict(data), mean)
    assert_allclose(mean[:, 1], -2 * mean[:, 0] + 3, atol=1e-2)
    assert_allclose(std[:, 1], 2 * std[:, 0], rtol=1e-2)
    assert_allclose(model.predict(data[:1]), mean[:1])
    draws = model.sample_y(data[:3], n_samples=5, random_state=0)
    assert draws.shape == (3, 2, 5)


def test_draws_have_the_posteriors_moments():
    data, y = friedman(60)
    model = AdditiveGPRegressor(terms=[..., (0, 1)], interactions=None).fit(data, y)
    draws = model.sample_y(data[:4], n_samples=20_000, random_state=0)
    mean, cov = model.predict(data[:4], return_cov=True)
    assert_allclose(draws.mean(1), mean, atol=0.05)
    assert_allclose(np.cov(draws), cov, atol=0.05)


def test_the_basis_of_a_posterior_holds_without_pairs():
    basis, theta, sums = mixed()
    alone = replace(basis, terms=[])
    none = {kind: theta[kind][:0] for kind in ("length", "variance")}
    posterior = ExactPosterior(RowPrior(alone, none, sums.u), sums.precision, sums.linear)
    mean, var = posterior.marginals(sums.u[:2])
    total, pull = 1 / basis.constant + sums.precision.sum(), sums.linear.sum()
    assert_allclose(mean, t64([[pull / total]] * 2))
    assert_allclose(var, t64([[1 / total]] * 2))
    assert posterior.variances().shape == (0,)
    assert posterior.drawn_variances(3, np.random.RandomState(0)).shape == (3, 0)


def test_more_points_than_rows_are_not_begun_with(monkeypatch):
    monkeypatch.setattr(_ascents, "GaussianAscent", None)
    data, y = friedman(30)
    wide = np.c_[data, np.random.default_rng(0).normal(size=(30, 15))]
    model = AdditiveGPRegressor(interactions=1).fit(wide, y)
    assert model._latents[0].form is None
    with pytest.raises(TypeError):
        AdditiveGPRegressor(interactions=1).fit(*friedman(60))  # fewer points than rows


@pytest.mark.parametrize("seed", range(3))
def test_clear_effects_are_found_among_more_features_than_rows(seed):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(540, 60))
    truth = 1.5 * data[:, 0] - data[:, 1] + 0.7 * data[:, 2]
    y = truth + 0.5 * rng.normal(size=540)
    model = AdditiveGPRegressor(interactions=None).fit(data[:40], y[:40])
    assert model.terms_[:3] == [(0,), (1,), (2,)]
    assert len(model.terms_) <= 4
    mean, std = model.predict(data[40:], return_std=True)
    assert np.mean((mean - truth[40:]) ** 2) < 0.15
    # Without priors, the noise would vanish.
    assert 0.4 < np.mean(std**2) / np.mean((mean - y[40:]) ** 2) < 1.4


def test_effects_on_classes_are_found_among_more_features_than_rows():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 60))
    y = data[:, 0] - data[:, 1] + 0.5 * rng.normal(size=40) > 0
    model = AdditiveGPClassifier(interactions=None).fit(data, y)
    assert model.terms_ == [(0,), (1,)]


@pytest.mark.parametrize("kind", [AdditiveGPRegressor, AdditiveGPClassifier])
def test_covariances_are_kept_from_learning_to_the_posterior(kind, monkeypatch):
    rng, found = np.random.default_rng(0), []
    monkeypatch.setattr(_search.TermSearch, "refine", lambda search: found.append(search))
    data = rng.normal(size=(40, 2))
    kind(sparse=False, interactions=None).fit(data, 1.0 * (data[:, 0] > 0.5 * rng.normal(size=40)))
    [search] = found
    fresh = search.make_ascent(search.ascent.basis).posteriors(search.state)
    monkeypatch.setattr(_exact_learning, "RowPrior", None)
    kept = search.ascent.posteriors(search.state)
    for ours, theirs in zip(kept, fresh, strict=True):
        assert_allclose(ours.alpha, theirs.alpha)
        assert_allclose(ours.chol, theirs.chol)
    with pytest.raises(TypeError):
        search.make_ascent(search.ascent.basis).posteriors(search.state)


@pytest.mark.parametrize("sparse", [True, False])
def test_groups_of_dropped_terms_leave_one_of_two_alike(sparse):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(150, 7))
    data[:, 1] = data[:, 0] + 1e-3 * rng.normal(size=150)
    y = np.sin(2 * data[:, 0]) + 0.2 * rng.normal(size=150)
    options = {"sparse": sparse, "interactions": None, "shrinkage": 0}
    whole = AdditiveGPRegressor(**options, min_gain=0).fit(data, y)
    model = AdditiveGPRegressor(**options, min_gain=3).fit(data, y)
    assert len(model.terms_) == 1
    assert model.terms_[0] in [(0,), (1,)]
    assert model.elbo_ > whole.elbo_ - 1


@pytest.mark.parametrize("min_gain", [0.0, 0.05])
def test_a_listed_pair_stays_where_too_many_are_found(min_gain):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(120, 5))
    y = 3 * X[:, 0] * X[:, 1] + 3 * X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=120)
    terms = [..., (3, 4)]
    model = AdditiveGPRegressor(terms=terms, interactions=1, min_gain=min_gain).fit(X, y)
    pairs = [term for term in model.terms_ if len(term) == 2]
    assert (3, 4) in pairs
    assert len(pairs) == 2


def test_passes_do_not_scale_the_features_again(monkeypatch):
    found, sums_of = [], ExactSiteAscent._sums_of

    def recorded(*args):
        found.append(sums_of(*args))
        return found[-1]

    monkeypatch.setattr(ExactSiteAscent, "_sums_of", recorded)
    rng = np.random.RandomState(0)
    X = rng.uniform(size=(40, 2))
    AdditiveGPClassifier(**exact, interactions=None).fit(X, X[:, 0] > rng.uniform(size=40))
    assert len(found) > 5
    assert len({id(sums.u) for sums in found}) == 1


@pytest.mark.parametrize("kind", [Levels, Steps])
def test_functions_of_fixed_processes_have_their_covariances(kind):
    process = kind(t64([0.2, 0.5, 0.3]))
    at = process.at(t64([0, 2, -1, 1, 2]))  # one is missing
    features = process.features(at)
    # Features of steps have a jitter.
    assert_allclose(features @ features.T, process.between(at, at), atol=1e-6)
    assert (features[2] == 0).all()


@pytest.mark.parametrize(
    ("n", "d"),
    [
        (60, 50),
        *(pytest.param(60, d, marks=pytest.mark.slow) for d in (60, 100)),
        (40, 200),
    ],
)
@pytest.mark.parametrize("strong", [0.0, 3.0])
def test_noise_does_not_vanish_beside_effects_of_many_features(n, d, strong):
    # With 60 features, seed 2 had 28 effects of noise and a noise variance of .0015; with more
    # features than rows, all effects stayed.
    rng = np.random.default_rng((2, 0))
    X = rng.normal(size=(n, d))
    y = strong * np.sin(1.5 * X[:, 0]) + rng.normal(size=n)
    model = AdditiveGPRegressor(random_state=0).fit(X, y)
    assert model.noise_variance_ > 0.4
    assert len(model.terms_) <= 3
    assert ((0,) in model.terms_) == bool(strong)


@pytest.mark.parametrize("strong", [0.0, 1.0])
@pytest.mark.parametrize(
    ("n_outputs", "parameters"),
    [
        (1, {"sparse": True, "interactions": None}),
        (1, {"likelihood": "student_t", "interactions": None, "max_iter": 100}),
        pytest.param(3, {}, marks=pytest.mark.slow),
    ],
)
def test_scales_of_noise_do_not_vanish_beside_effects(n_outputs, parameters, strong):
    # Up to 38 effects of noise stayed, with squared errors of 1 to 1.5 where the function is zero.
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(60, 50)), rng.normal(size=(60, n_outputs))

    def function(X):
        return strong * 1.5 * np.c_[np.sin(1.5 * X[:, 0]), X[:, 1], X[:, 2]][:, :n_outputs]

    model = AdditiveGPRegressor(random_state=0, **parameters)
    model.fit(X, (function(X) + noise).squeeze())
    others = rng.normal(size=(500, 50))
    error = model.predict(others).reshape(500, -1) - function(others)
    assert np.mean(error**2) < 0.6
    assert len(model.terms_) <= 4


def test_noise_of_four_classes_has_no_effects():
    # Without a test, 16 effects stay in two of these draws, and log losses are .2 nats above that
    # of even probabilities.
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(60, 60)), rng.permutation(np.repeat(range(4), 15))
        model = AdditiveGPClassifier(random_state=0, interactions=None).fit(X, y)
        log_p = model.predict_log_proba(rng.normal(size=(500, 60)))
        assert -log_p.mean() - math.log(4) < 0.02


def test_rare_classes_do_not_ask_more_of_effects():
    rng = np.random.default_rng(0)
    y = np.repeat(range(4), [54, 40, 3, 3])
    X = rng.normal(size=(100, 20)) + 0.4 * np.where(np.arange(20) < 8, (y % 2)[:, None], 0)
    assert len(AdditiveGPClassifier(random_state=0, interactions=None).fit(X, y).terms_) >= 5
