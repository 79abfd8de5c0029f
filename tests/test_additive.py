"""Additive models: the specification's numbers, oracles, tables, and what users rely on."""

import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import EDGES, rows_of, t64, waves
from scipy.special import expit
from scipy.stats import gamma, multivariate_normal
from sklearn.datasets import load_iris, make_friedman1
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor, _rows
from skgpsvm._sites import LikelihoodSites
from skgpsvm.additive import _processes
from skgpsvm.additive._basis import AdditiveBasis, Feature, yeo_johnson
from skgpsvm.additive._bound import (
    AdditivePosterior,
    Sums,
    collapsed,
    collapsed_and_slopes,
    gains,
    precision_root,
    products,
)
from skgpsvm.additive._encoding import TableEncoder, categorical_mask, described, distinct
from skgpsvm.additive._interactions import score_moments
from skgpsvm.additive._learning import SiteAscent
from skgpsvm.additive._processes import (
    PROFILES,
    CentredAtPoints,
    Chebyshev,
    Levels,
    uniform_moments,
)
from skgpsvm.callbacks import Checkpoint
from skgpsvm.kernels import ANOVARBF
from skgpsvm.likelihoods import Logistic, Probit

# The tiny example of the specification, 9.2, which has no jitter.
X = np.array([[0.1, 0.9], [0.3, 0.2], [0.55, 0.6], [0.8, 0.35], [0.95, 0.75]])
Y = np.array([0.5, -0.3, 0.8, 1.2, -0.1])
LABELS = np.array([1, 0, 1, 1, 0])
NEW = t64([[0.2, 0.5], [0.7, 0.1]])
THETA = {
    "length": t64([0.3, 0.5, 0.4, 0.6]).log(),
    "variance": t64([1.0, 0.7, 0.9]).log(),
    "noise": t64(0.25).log(),
}
DIGITS = {"rtol": 0, "atol": 2e-8}  # the specification's tolerance, and its rounding
FORMS = {"full": ("full", None), "mean_field": ("mean_field", None), "rank 2": ("precision", 2)}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
quick = {"sparse": True, "interactions": None, "n_inducing": 8, "length_scale_bounds": (0.2, 10.0)}


@pytest.fixture
def no_jitter(monkeypatch):
    monkeypatch.setattr(_processes, "_JITTER", 0)


def tiny(points=None, size=34):
    """The tiny example's basis; at these inducing points, or its own."""
    mean, second = (part.numpy() for part in uniform_moments(size))
    own = t64([0.25, 0.75])
    return AdditiveBasis(
        features=[Feature(), Feature()],
        terms=[(0,), (1,), (0, 1)],
        kernel="rbf",
        pair_kernel="rbf",
        n_inducing=3,
        n_inducing_pair=2,
        points=points or {},
        pair_points=points or {0: own, 1: own},
        size=size,
        pair_size=size,
        constant=0.5,
        means=[mean, mean],
        seconds=[second, second],
    )


def sums_of(basis, weights=None, y=Y):
    weights = t64(np.ones(len(X)) if weights is None else weights)
    columns, y = torch.cat(basis(t64(X)), 1), t64(y)
    weighted = weights[:, None] * columns
    return Sums(
        weighted.T @ columns, weighted.T @ y, (weights * y).dot(y).item(), weights.sum().item()
    )


def posterior_of(basis, form=("full", None)):
    effects, var = basis.at(THETA), THETA["noise"].exp()
    gram, cross, _ = products(effects, sums_of(basis))
    return AdditivePosterior(effects, gram / var, cross / var, *form)


def friedman(n=1000, seed=0, noise=1.0):
    return make_friedman1(n, n_features=6, noise=noise, random_state=seed)


# The specification's numbers


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (("full", None), -7.5095874340),
        (("mean_field", None), -7.5095874340 - 0.2815583327),
        (("precision", 2), -8.6847134750),
        (("precision", 5), -7.5095874340),
    ],
)
def test_collapsed_bound(no_jitter, form, value):
    basis = tiny()
    found = collapsed(basis.at(THETA), sums_of(basis), THETA["noise"], *form)
    assert_allclose(found.item(), value, **DIGITS)


def test_weights_replicate_rows(no_jitter):
    basis = tiny()
    found = collapsed(basis.at(THETA), sums_of(basis, [1, 2, 1, 3, 1]), THETA["noise"])
    assert_allclose(found.item(), -10.3665270008, **DIGITS)


def test_points_at_all_rows_give_the_exact_evidence(no_jitter):
    basis = tiny({j: t64(X[:, j]) for j in range(2)})
    found = collapsed(basis.at(THETA), sums_of(basis), THETA["noise"])
    assert_allclose(found.item(), -6.4239220869, **DIGITS)
    mean, var = posterior_of(basis).effect_marginals(NEW)
    assert_allclose(mean[:, 1], [-0.3386277407, 0.3636233532], **DIGITS)
    assert_allclose(var[:, 1], [0.0926205995, 0.0839273914], **DIGITS)


MEANS = [
    [0.3704849740, -0.2245785993, 0.0485706036, -0.0106613245],
    [0.3704849740, 0.1879047763, -0.0772497411, 0.2186170728],
]
VARIANCES = {
    "full": [
        [0.0499898892, 0.2084468431, 0.0274837635, 0.0067472774, 0.3227320706],
        [0.0499898892, 0.1938517605, 0.1184980230, 0.0410339550, 0.4578617973],
    ],
    "mean_field": [
        [0.0454545455, 0.1930226253, 0.0239880899, 0.0066133994, 0.2690786601],
        [0.0454545455, 0.1834617282, 0.1038069322, 0.0368491019, 0.3695723078],
    ],
    "rank 2": [
        [0.0683185951, 0.2223484536, 0.0286778230, 0.0067804723, 0.3488846341],
        [0.0683185951, 0.2063955804, 0.2684693673, 0.0572039932, 0.7196848135],
    ],
}


@pytest.mark.parametrize("name", FORMS)
def test_effects_at_the_gaussian_optimum(no_jitter, name):
    posterior = posterior_of(tiny(), FORMS[name])
    mean, var = posterior.effect_marginals(NEW)
    total_mean, total_var = posterior.marginals(NEW)
    assert_allclose(mean, MEANS, **DIGITS)
    assert_allclose(torch.cat([var, total_var], 1), VARIANCES[name], **DIGITS)
    assert_allclose(total_mean[:, 0], [0.1838156539, 0.6997570820], **DIGITS)
    assert_allclose(posterior.cov(NEW)[0].diagonal(), total_var[:, 0], rtol=1e-12)


def test_importance_at_the_gaussian_optimum(no_jitter):
    posterior = posterior_of(tiny())
    found = posterior.variances()
    assert_allclose(found, [0.0398978917, 0.0021602536, 0.0364145440], **DIGITS)


# The converged sites of the specification's labels; the second column is the best of rank 2.
@pytest.mark.parametrize(
    ("likelihood", "form", "value"),
    [
        (Logistic(), ("full", None), -3.8517403727),
        (Probit(), ("full", None), -4.3047425817),
        (Logistic(), ("precision", 2), -3.8595232663),
        (Probit(), ("precision", 2), -4.3533228016),
    ],
)
def test_sites_converge_to_the_optimum(no_jitter, likelihood, form, value):
    rows, sites = rows_of(X, LABELS), LikelihoodSites(likelihood, 1)
    ascent = SiteAscent(
        *(tiny(), rows, None, form, 0.0, 0.0),
        sites=sites,
        batch_size=None,
        generator=torch.Generator(),
    )
    state = {name: THETA[name][None] for name in ("length", "variance")}
    state |= {"noise": torch.empty(0, dtype=torch.float64)}
    state = ascent.continued(state, [(torch.zeros(11, 11).double(), torch.zeros(11).double())])
    for _ in range(40):
        found = ascent.step(state)
    # Nodes of the quadrature: 32 here, 20 there.
    assert_allclose(found, value, rtol=0, atol=1e-7)


# Identities


@forms
def test_slopes_are_those_of_differences(form):
    basis = tiny()
    sums, h = sums_of(basis), 1e-5
    value, slopes = collapsed_and_slopes(basis, THETA, sums, *form)
    assert_allclose(value, collapsed(basis.at(THETA), sums, THETA["noise"], *form).item())
    for name, parameter in THETA.items():
        for k in range(parameter.numel()):
            ends = []
            for sign in (-1, 1):
                moved = {key: part.clone() for key, part in THETA.items()}
                moved[name].view(-1)[k] += sign * h
                ends.append(collapsed(basis.at(moved), sums, moved["noise"], *form).item())
            slope = (ends[1] - ends[0]) / (2 * h)
            # Error of the difference is of the order h^2.
            assert_allclose(slopes[name].reshape(-1)[k], slope, rtol=1e-6, atol=1e-7)


def test_gains_are_differences_of_bounds():
    basis = tiny()
    effects, sums = basis.at(THETA), sums_of(basis)
    sizes = [len(coef) for coef in effects.coefs]
    places = torch.arange(sum(sizes)).split(sizes)
    whole, found = collapsed(effects, sums, THETA["noise"]), gains(effects, sums, THETA["noise"])
    for k in range(3):
        kept = torch.cat([place for j, place in enumerate(places) if j != k + 1])
        part = Sums(sums.gram[kept[:, None], kept], sums.cross[kept], sums.squares, sums.weight)
        without = basis.at(THETA)
        del without.coefs[k + 1], without.covs[k + 1]
        assert_allclose(found[k], whole - collapsed(without, part, THETA["noise"]), atol=1e-9)


def test_polynomials_interpolate():
    u = torch.linspace(0, 1, 101, dtype=torch.float64)
    polynomials = Chebyshev(20, u)
    values = (3 * polynomials.nodes).sin()
    assert_allclose(polynomials(u) @ (polynomials.transform @ values), (3 * u).sin(), atol=1e-13)
    mean, second = uniform_moments(20)
    fine = polynomials((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
    assert_allclose(fine.mean(0), mean, atol=2e-6)  # of the midpoint rule
    assert_allclose(fine.T @ fine / len(fine), second, atol=2e-6)


def test_levels_have_zero_mean_and_the_covariance_of_the_specification():
    levels = Levels(t64([0.5, 0.3, 0.2]))
    assert_allclose(levels.cov[0], [0.34210526, -0.39473684, -0.26315789], atol=1e-8)
    assert_allclose(levels.coef @ levels.coef.T, levels.cov, atol=1e-14)
    at = levels.at(t64([2.0, -1.0]))
    assert_allclose(levels.features(at)[1], [0, 0])
    assert_allclose(levels.variances(at), [levels.cov[2, 2], 1.0])


def test_equal_to_exact_regression_under_the_summed_kernel(monkeypatch):
    monkeypatch.setattr(_processes, "_JITTER", 1e-12)
    rng = np.random.RandomState(0)
    data = np.c_[rng.permutation(7), rng.permutation(7)] / 6
    y = np.sin(4 * data[:, 0]) + data[:, 1] ** 2
    basis = tiny({j: t64(data[:, j]) for j in range(2)})
    columns = torch.cat(basis(t64(data)), 1)
    sums = Sums(columns.T @ columns, columns.T @ t64(y), y @ y, len(y))
    effects, var = basis.at(THETA), THETA["noise"].exp()
    gram, cross, _ = products(effects, sums)
    posterior = AdditivePosterior(effects, gram / var, cross / var)
    kernel = ConstantKernel(0.5) + ANOVARBF(0.3, feature=0)
    kernel += ConstantKernel(0.7) * ANOVARBF(0.5, feature=1)
    kernel += ConstantKernel(0.9) * ANOVARBF(0.4, feature=0) * ANOVARBF(0.6, feature=1)
    exact = GaussianProcessRegressor(kernel, alpha=0.25, optimizer=None).fit(data, y)
    new = rng.uniform(-0.2, 1.2, size=(8, 2))
    mean, std = exact.predict(new, return_std=True)
    found_mean, found_var = posterior.marginals(t64(new))
    # The root of the jitter.
    assert_allclose(found_mean[:, 0], mean, atol=1e-6)
    assert_allclose(found_var[:, 0], std**2, atol=1e-6)
    evidence = multivariate_normal(cov=kernel(data) + 0.25 * np.eye(len(y))).logpdf(y)
    assert_allclose(collapsed(effects, sums, THETA["noise"]).item(), evidence, atol=1e-6)


def test_points_at_every_value_give_the_exact_process():
    rng = np.random.RandomState(0)
    data = np.c_[rng.permutation(15), rng.permutation(15)] / 14
    y = np.sin(4 * data[:, 0]) + data[:, 1] ** 2 + 0.2 * rng.normal(size=15)
    model = AdditiveGPRegressor(
        kernel="rbf",
        sparse=True,
        interactions=None,
        scaling="minmax",
        measure="uniform",
        n_inducing=None,
        min_gain=0,
        length_scale_bounds=(0.2, 5.0),
    ).fit(data, y)
    lengths, variances = (np.exp(part) for part in model._latents[0].theta.values())
    kernel = ConstantKernel(1.0)
    for j in range(2):
        kernel += ConstantKernel(variances[j]) * ANOVARBF(lengths[j], feature=j)
    noise = np.exp(model._noise[0])
    exact = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None, normalize_y=True)
    mean, std = exact.fit(data, y).predict(data, return_std=True)
    found, found_std = model.predict(data, return_std=True)
    # The jitter of the inducing points, over the noise.
    assert_allclose(found, mean, atol=1e-4)
    assert_allclose(found_std, np.sqrt(std**2 + noise * y.var()), atol=1e-4)
    evidence = multivariate_normal(cov=kernel(data) + noise * np.eye(15)).logpdf(exact.y_train_)
    assert_allclose(model.elbo_, evidence, atol=1e-3)


def few_valued(n, seed=0):
    """Rows of three numbers of which two have few values, and targets."""
    rng = np.random.RandomState(seed)
    data = np.c_[rng.randint(2, size=n), rng.randint(5, size=n) ** 2, rng.uniform(size=n)]
    return data, data[:, 0] - np.sqrt(data[:, 1]) + np.sin(4 * data[:, 2]) + rng.normal(size=n)


@pytest.mark.parametrize("kernel", ["rbf", "matern32", "matern52"])
def test_columns_of_few_values_are_those_of_their_features(kernel):
    data, y = few_valued(60)
    data[:7, 1] = np.nan
    options = {"sparse": True, "interactions": [(0, 2)], "min_gain": 0}
    model = AdditiveGPRegressor(kernel=kernel, **options).fit(data, y)
    latent = model._latents[0]
    assert {j: len(own) for j, own in latent.basis.points.items()} == {0: 2, 1: 5}
    basis = replace(latent.basis, tabled=frozenset({0, 1}))
    theta = {kind: t64(value) for kind, value in latent.theta.items()}
    columns, effects = basis(t64(data)), basis.at(theta)
    assert [part.shape[1] for part in columns[:3]] == [1, 2, 6]
    features, variances = effects.features(basis.unit(t64(data)))
    parts = zip(columns[:3], effects.coefs, effects.covs, features, variances.T, strict=False)
    for own, coef, cov, feature, variance in parts:
        assert_allclose(own @ coef, feature, atol=1e-7)
        assert_allclose(((own @ cov) * own).sum(1), variance, atol=1e-12)


def test_few_values_give_what_points_at_every_value_give():
    data, y = few_valued(300)
    options = {"sparse": True, "interactions": None, "min_gain": 0, "shrinkage": 0}
    few = AdditiveGPRegressor(**options).fit(data[:, :2], y)
    every = AdditiveGPRegressor(**options, n_inducing=None).fit(data[:, :2], y)
    assert_allclose(few.elbo_, every.elbo_, rtol=1e-7)
    assert_allclose(few.predict(data[:, :2]), every.predict(data[:, :2]), atol=1e-4)


def test_more_rows_may_have_values_that_the_first_had_not():
    data, y = few_valued(400)
    first = data[:, 1] != 4
    model = AdditiveGPRegressor(interactions=None, min_gain=0)
    model.partial_fit(data[first], y[first])
    model.partial_fit(data[~first], y[~first])
    # The features themselves of all rows, in the place of columns.
    theta = {kind: t64(part) for kind, part in model._latents[0].theta.items()}
    basis, var = model._latents[0].basis, np.exp(model._noise[0])
    effects, inside = basis.at(theta), data.copy()
    inside[:, 2] = inside[:, 2].clip(data[first, 2].min(), data[first, 2].max())
    psi = torch.cat(effects.features(basis.unit(t64(inside)))[0], 1)
    target = t64((y - model._y_mean) / model._y_std)
    posterior = AdditivePosterior(effects, psi.T @ psi / var, psi.T @ target / var)
    expected = posterior.marginals(t64(data))[0][:, 0].numpy() * model._y_std + model._y_mean
    # Columns interpolate features to about 1e-4 at these length scales.
    assert_allclose(model.predict(data), expected, atol=1e-3)


def test_pairs_have_points_at_every_value():
    data, y = few_valued(200)
    options = {"sparse": True, "interactions": [(0, 1)], "min_gain": 0}
    model = AdditiveGPRegressor(**options, n_inducing_interaction=None).fit(data[:, :2], y)
    basis = model._latents[0].basis
    assert {j: len(own) for j, own in basis.pair_points.items()} == {0: 2, 1: 5}
    # What a grid of other points can only approach.
    assert model.elbo_ > AdditiveGPRegressor(**options).fit(data[:, :2], y).elbo_ - 0.1


def test_rounding_of_large_sums_is_borne():
    factor = 1e8 * torch.randn(200, 20, generator=torch.Generator().manual_seed(0)).double()
    gram = factor @ factor.T
    assert torch.linalg.eigvalsh(gram)[0] < -1
    root = precision_root(gram)
    assert_allclose(root @ root.T, gram, atol=1e-11 * gram.max())


@pytest.mark.parametrize("interactions", ["auto", 1, [(0, 1)]])
def test_points_at_every_pair_of_many_values_are_refused(interactions):
    data, y = friedman(400)
    options = {"sparse": True, "n_inducing_interaction": None}
    with pytest.raises(ValueError, match="160,000 here, and matrices of 191 GiB; up to 16,384"):
        AdditiveGPRegressor(**options, interactions=interactions).fit(data, y)
    AdditiveGPRegressor(**options, interactions=None).fit(data, y)


@pytest.mark.parametrize("rough", [True, False])
def test_grids_of_pairs_grow_where_they_must(rough):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(1500, 2))
    product = X[:, 0] * X[:, 1]
    truth = np.cos(25 * product) if rough else 2 * product
    y = truth + rng.normal(scale=0.05, size=1500)

    def fitted(n):
        model = AdditiveGPRegressor(sparse=True, n_inducing=10, n_inducing_interaction=n)
        return model.fit(X[:1000], y[:1000])

    def error(model):
        return np.sqrt(np.mean((truth[1000:] - model.predict(X[1000:])) ** 2))

    auto, coarse = fitted("auto"), fitted(8)
    assert auto.terms_[-1] == coarse.terms_[-1] == (0, 1)
    if rough:
        assert auto.elbo_ > coarse.elbo_ + 100
        assert error(auto) < 0.5 * error(coarse)
    else:
        assert auto.elbo_ == coarse.elbo_


def test_shares_are_those_of_contributions():
    data, y = few_valued(400)
    model = AdditiveGPRegressor(sparse=True, interactions=None, min_gain=0).fit(data, y)
    latent = model._latents[0]
    assert not latent.basis.tabled
    variances = model.explain(data).var(0)
    assert_allclose(model.sobol_indices().share, variances / variances.sum(), atol=1e-5)
    tabled = replace(latent.basis, tabled=frozenset({0}))
    with pytest.raises(ValueError, match="those of polynomials"):
        tabled.at({kind: t64(part) for kind, part in latent.theta.items()}).seconds()


def test_two_points_bear_pairs():
    data, y = friedman(200)
    model = AdditiveGPRegressor(n_inducing=2, interactions=[(0, 1)], min_gain=0).fit(data, y)
    assert (0, 1) in model.terms_
    assert model.score(data, y) > 0.7


def test_different_numbers_of_columns_that_have_few(monkeypatch):
    monkeypatch.setattr(_rows, "CHUNK_ROWS", 3)
    data = np.array([[1, 1, np.nan], [0, 2, np.nan], [1, 3, np.nan], [0, 4, 7], [2, 5, np.nan]])
    found = distinct(rows_of(data, np.zeros(5)), [0, 1, 2], 3)
    assert {j: own.tolist() for j, own in found.items()} == {0: [0, 1, 2], 2: [7]}


@forms
def test_expected_density_of_earlier_rows_makes_them_the_prior(form):
    posterior = posterior_of(tiny(), form)
    rng, p = np.random.default_rng(0), len(posterior.weights)
    half, cross = t64(rng.normal(size=(p, p))), t64(rng.normal(size=p))
    gram, eye = half @ half.T, torch.eye(p).double()
    normal = torch.distributions.MultivariateNormal
    prior = normal(torch.linalg.solve(eye + gram, cross), precision_matrix=eye + gram)
    kl = torch.distributions.kl_divergence(
        normal(posterior.weights, eye - posterior.reduction), prior
    )
    log_evidence = 0.5 * (cross @ prior.mean - torch.logdet(eye + gram))
    found = posterior.expected(gram, cross) - posterior.kl()
    assert_allclose(found, log_evidence - kl, rtol=1e-8)


def test_scores_are_those_of_dense_covariances():
    basis = replace(tiny(), terms=[(0,), (1,)])
    rng = np.random.RandomState(0)
    data = rng.uniform(size=(20, 2))
    y, precision = rng.normal(size=20), rng.uniform(0.5, 2, 20)
    theta = {"length": THETA["length"][:2], "variance": THETA["variance"][:2]}
    effects = basis.at(theta)
    columns = torch.cat(basis(t64(data)), 1)
    psi = (columns @ torch.block_diag(*effects.coefs)).numpy()
    gram, cross = psi.T @ (precision[:, None] * psi), psi.T @ (precision * y)
    posterior = AdditivePosterior(effects, t64(gram), t64(cross), "mean_field")
    residuals = precision * (y - psi @ posterior.weights.numpy())
    dense = np.linalg.inv(psi @ psi.T + np.diag(1 / precision))
    assert_allclose(residuals, dense @ y, atol=1e-10)
    at = t64(residuals)[:, None], t64(precision)[:, None], [posterior]
    found = score_moments(basis, t64(data), *at)
    points = torch.linspace(0, 1, 4, dtype=torch.float64)
    mean = t64(basis.means[0])
    effect = CentredAtPoints(PROFILES["rbf"], t64(0.5), points, Chebyshev(basis.size, mean), mean)
    sides = [effect.features(effect.at(t64(data[:, j]))).numpy() for j in range(2)]
    pair = (sides[0][:, :, None] * sides[1][:, None]).reshape(20, -1)
    H = pair.T @ dense @ pair
    expected = np.sum((pair.T @ dense @ y) ** 2), np.trace(H), 2 * np.sum(H**2)
    assert_allclose(found[0, 1], expected, rtol=1e-8)


@forms
def test_rows_by_their_columns_and_divergence_are_those_of_dense_matrices(form):
    basis = tiny()
    posterior = posterior_of(basis, form)
    mean, var = posterior.row_marginals(basis(t64(X)))
    direct_mean, direct_var = posterior.marginals(t64(X))
    # Of the interpolation by polynomials.
    assert_allclose(mean, direct_mean[:, 0], atol=1e-9)
    assert_allclose(var, direct_var[:, 0], atol=1e-9)
    cov, w = np.eye(11) - posterior.reduction.numpy(), posterior.weights.numpy()
    kl = 0.5 * (np.trace(cov) + w @ w - 11 - np.linalg.slogdet(cov)[1])
    assert_allclose(posterior.kl(), kl, rtol=1e-10)


def test_yeo_johnson_is_that_of_scikit_learn():
    x = np.r_[np.linspace(-3, 40, 50), 0.0]
    for power in (-2.0, 0.0, 0.7, 1.0, 2.0, 4.0):
        transformer = PowerTransformer(standardize=False).fit(x[:, None])
        transformer.lambdas_ = np.array([power])
        expected = transformer.transform(x[:, None])[:, 0]
        assert_allclose(yeo_johnson(t64(x), power), expected, rtol=1e-12, atol=1e-14)


def test_bounds_are_in_order():
    basis, exact = tiny(), tiny({j: t64(X[:, j]) for j in range(2)})
    forms = [("mean_field", None), ("precision", 3), ("full", None)]
    values = [collapsed(basis.at(THETA), sums_of(basis), THETA["noise"], *f) for f in forms]
    evidence = collapsed(exact.at(THETA), sums_of(exact), THETA["noise"])
    assert max(values[:2]) < values[2] < evidence


# The estimator


def test_friedman_is_found():
    data, y = friedman(1000)
    model = AdditiveGPRegressor(sparse=True, min_gain=1, random_state=0).fit(data, y)
    assert model.term_names_ == ["x0", "x1", "x2", "x3", "x4", "x0 & x1"]
    assert model.dropped_terms_ == ["x5"]
    shares = [0.197310, 0.197310, 0.093267, 0.349751, 0.087438, 0.074924]
    assert_allclose(model.sobol_indices_, shares, atol=0.05)  # a thousand rows' sampling
    new, truth = friedman(500, seed=1, noise=0.0)
    mean, std = model.predict(new, return_std=True)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.25
    assert_allclose(model.noise_variance_, 1, atol=0.15)
    assert 0.93 < np.mean(np.abs(friedman(500, seed=1)[1] - mean) < 1.96 * std) < 0.98
    indices = model.sobol_indices()
    assert (indices.lower < indices.share).all()
    assert (indices.share < indices.upper).all()


def test_the_specifications_run():
    """Section 9.4: y's moments, and bounds at the starting values."""
    rng = np.random.default_rng(0)
    data = rng.random((5000, 6))
    x = data.T
    y = 10 * np.sin(np.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4]
    y += rng.standard_normal(5000)
    assert_allclose([y.mean(), y.std()], [14.5307894138, 4.9464971878], atol=1e-10)
    y = (y - y.mean()) / y.std()
    mean, second = (part.numpy() for part in uniform_moments(34))
    basis = AdditiveBasis(
        features=[Feature()] * 6,
        terms=[*((j,) for j in range(6)), (0, 1)],
        kernel="rbf",
        pair_kernel="rbf",
        n_inducing=16,
        n_inducing_pair=4,
        points={},
        pair_points={},
        size=34,
        pair_size=20,
        constant=1.0,
        means=[mean] * 6,
        seconds=[second] * 6,
    )
    theta = {kind: t64(list(usual.values())) for kind, usual in basis.start().items()}
    columns = torch.cat(basis(t64(data)), 1)
    sums = Sums(columns.T @ columns, columns.T @ t64(y), y @ y, len(y))
    forms = [("full", None), ("mean_field", None), ("precision", 16)]
    found = [collapsed(basis.at(theta), sums, t64(0.2).log(), *form).item() for form in forms]
    assert_allclose(found, [-1223.4355, -1223.4934, -1606.764], rtol=0, atol=0.01)


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson"])
def test_contributions_add_up(likelihood):
    data, y = friedman(200)
    model = AdditiveGPRegressor(likelihood=likelihood, **quick).fit(data, np.round(np.abs(y) / 4))
    mean, std = model.explain(data, return_std=True)
    latent, _ = model.latent_mean_and_variance(data)
    assert_allclose(model.intercept_ + mean.sum(1), latent[:, 0], atol=1e-10)
    assert mean.shape == std.shape == (200, len(model.terms_))
    # Effects have zero mean over the training rows, up to the interpolation of the kernel.
    assert np.abs(mean.mean(0)).max() < 1e-3 * mean.std()


def test_contributions_of_classes_and_outputs_add_up():
    data, y = load_iris(return_X_y=True)
    model = AdditiveGPClassifier(tol=1e-2, **quick).fit(data, y)
    total = model.intercept_ + model.explain(data).sum(1)
    assert_allclose(total, model.latent_mean_and_variance(data)[0], atol=1e-10)
    both = np.c_[data[:, 3], 10 - data[:, 2]]
    model = AdditiveGPRegressor(**quick).fit(data[:, :2], both)
    total = model.intercept_ + model.explain(data[:, :2]).sum(1)
    assert_allclose(total, model.predict(data[:, :2]), atol=1e-10)
    alone = AdditiveGPRegressor(**quick, min_gain=0).fit(data[:, :2], both[:, 0])
    together = AdditiveGPRegressor(**quick, min_gain=0).fit(data[:, :2], both)
    assert_allclose(together.predict(data[:, :2])[:, 0], alone.predict(data[:, :2]), atol=1e-3)


def test_the_order_of_columns_does_not_matter():
    data, y = friedman(300)
    order = [3, 0, 5, 1, 4, 2]
    options = {"interactions": 2, "n_inducing": 8, "n_inducing_interaction": 4}
    one = AdditiveGPRegressor(**options).fit(data, y)
    other = AdditiveGPRegressor(**options).fit(data[:, order], y)
    # Where the optimiser stops depends on rounding.
    assert_allclose(one.predict(data), other.predict(data[:, order]), atol=5e-3)
    assert {frozenset(order[j] for j in term) for term in other.terms_} == set(
        map(frozenset, one.terms_)
    )


def test_units_of_features_and_of_y_do_not_matter():
    data, y = friedman(200)
    one = AdditiveGPRegressor(**quick).fit(data, y)
    other = AdditiveGPRegressor(**quick).fit(100 * data - 3, 1e3 * y + 7)
    assert_allclose(other.predict(100 * data - 3), 1e3 * one.predict(data) + 7, rtol=1e-4)


def test_more_rows_are_those_of_a_fit_at_the_same_hyper_parameters():
    data, y = friedman(300)
    model = AdditiveGPRegressor(**quick).fit(data[:200], y[:200])
    basis, theta = model._latents[0].basis, model._latents[0].theta
    model.partial_fit(data[200:], y[200:])
    inside = np.clip(data, data[:200].min(0), data[:200].max(0))
    columns = torch.cat(basis(t64(inside)), 1)
    target = t64((y - model._y_mean) / model._y_std)
    sums = Sums(columns.T @ columns, columns.T @ target, 0.0, 0.0)
    effects = basis.at({kind: t64(value) for kind, value in theta.items()})
    gram, cross, _ = products(effects, sums)
    var = np.exp(model._noise[0])
    posterior = AdditivePosterior(effects, gram / var, cross / var)
    expected = posterior.marginals(t64(data))[0][:, 0].numpy() * model._y_std + model._y_mean
    assert_allclose(model.predict(data), expected, atol=1e-7)


@pytest.mark.parametrize("weight", [0.01, 1, 10])
def test_rows_without_a_count_have_a_small_rate(weight):
    X = np.random.default_rng(0).normal(size=(200, 1))
    weights = np.full(200, weight)
    counts = np.c_[np.zeros(200), np.ones(200)]
    for y in (counts[:, 0], counts):
        model = AdditiveGPRegressor(likelihood="poisson").fit(X, y, sample_weight=weights)
        rates = model.predict(X).reshape(200, -1)
        assert (rates[:, 0] > 0).all()
        # Less than one count among all rows, but for the prior where these weigh two.
        assert (rates[:, 0] < 1 / weights.sum()).all()
        assert_allclose(rates[:, 1:], 1, atol=0.01)


@pytest.mark.parametrize("kind", ["poisson", "classes"])
def test_more_rows_of_other_likelihoods_sharpen(kind):
    data, y = friedman(400)
    y = np.round(np.abs(y) / 4) if kind == "poisson" else y > 14
    model = AdditiveGPClassifier(**quick)
    if kind == "poisson":
        model = AdditiveGPRegressor(likelihood="poisson", **quick)
    first = model.fit(data[:200], y[:200]).latent_mean_and_variance(data)[1].mean()
    curve = model.objective_curve_
    second = model.partial_fit(data[200:], y[200:]).latent_mean_and_variance(data)
    assert 1 < model.n_iter_ == len(model.objective_curve_) < len(curve)
    assert model.objective_curve_[-1] > model.objective_curve_[0]
    whole = type(model)(**model.get_params()).fit(data, y).latent_mean_and_variance(data)
    assert second[1].mean() < 0.8 * first
    assert np.corrcoef(second[0][:, 0], whole[0][:, 0])[0, 1] > 0.95


@pytest.mark.parametrize("kind", ["poisson", "laplace", "classes"])
def test_rows_one_by_one_count_as_those_at_once(kind):
    data, y = friedman(230)
    start = {"poisson": np.round(y / 4), "laplace": y, "classes": np.digitize(y, [11, 17])}[kind]
    model = AdditiveGPClassifier(**quick)
    if kind != "classes":
        model = AdditiveGPRegressor(likelihood=kind, **quick)
    first = model.fit(data[:200], start[:200])
    once, single = deepcopy(first), deepcopy(first)
    once.partial_fit(data[200:], start[200:])
    for i in range(200, 230):
        single.partial_fit(data[i : i + 1], start[i : i + 1])
    before, at_once, apart = (
        1 / m.latent_mean_and_variance(data[200:])[1].mean() for m in (first, once, single)
    )
    assert (apart - before) / (at_once - before) == pytest.approx(1, abs=0.1)


def test_names_of_rows_cost_nothing():
    frame, y = table(500)
    frame = frame.assign(name=[f"row {i}" for i in range(500)])
    weights = np.full(500, 1 + 1e-12)
    model = AdditiveGPRegressor(interactions=None).fit(frame, y, sample_weight=weights)
    assert "name" not in model.term_names_
    assert max(second.size for second in model._latents[0].basis.seconds) < 500**2


def test_rows_of_another_likelihood_are_refused():
    data, y = friedman(60)
    model = AdditiveGPRegressor(**quick).fit(data, y).set_params(likelihood="laplace")
    with pytest.raises(ValueError, match="another likelihood than 'laplace'"):
        model.partial_fit(data, y)


def test_rates_with_exposures_are_counts():
    rng = np.random.RandomState(0)
    data, exposure = rng.uniform(size=(300, 2)), rng.uniform(0.5, 5, 300)
    counts = rng.poisson(exposure * np.exp(1 + np.sin(3 * data[:, 0])))
    model = AdditiveGPRegressor(likelihood="poisson", **quick)
    model.fit(data, counts / exposure, sample_weight=exposure)
    assert_allclose(model.predict(data), np.exp(1 + np.sin(3 * data[:, 0])), rtol=0.35)
    assert_allclose(np.sum(exposure * model.predict(data)), counts.sum(), rtol=0.01)
    _, std = model.predict(data[:3], return_std=True)
    draws = model.sample_y(data[:3], 4000)
    assert draws.shape == (3, 4000)
    assert_array_equal(draws, np.round(draws))
    assert_allclose(draws.std(1), std, rtol=0.1)
    with pytest.raises(ValueError, match="gives no covariance"):
        model.predict(data, return_cov=True)
    with pytest.raises(ValueError, match="which are not negative; y is between -1"):
        model.fit(data, counts - 1.0 - counts.min())


def test_covariance_forms_of_bands():
    data, y = friedman(200)
    data[:, 1] = data[:, 0] + 0.1 * data[:, 1]
    stds = {}
    for covariance in ("full", "mean_field", "precision"):
        model = AdditiveGPRegressor(covariance=covariance, min_gain=0, **quick)
        stds[covariance] = model.fit(data, y).explain(data, return_std=True)[1]
    assert stds["mean_field"][:, :2].mean() < 0.8 * stds["full"][:, :2].mean()
    assert_allclose(stds["precision"], stds["full"], atol=0.05)


def test_robust_noise_bears_outliers():
    data, y = friedman(400, noise=0.3)
    truth = friedman(400, noise=0.0)[1]
    y[::20] += 30
    options = {**quick, "interactions": [(0, 1)]}
    models = (AdditiveGPRegressor(likelihood=name, **options) for name in ("gaussian", "student_t"))
    errors = [np.mean((model.fit(data, y).predict(data) - truth) ** 2) for model in models]
    assert errors[1] < 0.01 * errors[0]


def test_minibatches_come_close():
    data, y = friedman(600)
    options = {**quick, "random_state": 0}
    whole = AdditiveGPClassifier(**options).fit(data, y > 14)
    parts = AdditiveGPClassifier(batch_size=200, tol=1e-3, **options).fit(data, y > 14)
    assert np.abs(whole.predict_proba(data) - parts.predict_proba(data)).mean() < 0.03


# Tables


def table(n=400, seed=0):
    rng = np.random.RandomState(seed)
    frame = pd.DataFrame(
        {
            "size": rng.uniform(size=n),
            "kind": pd.Categorical(rng.choice(["u", "v", "w"], n)),
            "skewed": rng.lognormal(sigma=1.5, size=n),
        }
    )
    effects = {"u": 0.0, "v": 2.0, "w": -1.0}
    y = 3 * frame["size"] + frame["kind"].map(effects).astype(float) + np.log(frame["skewed"])
    frame.loc[rng.uniform(size=n) < 0.1, "size"] = np.nan
    return frame, y.to_numpy() + 0.1 * rng.normal(size=n)


def test_tables_of_mixed_types():
    frame, y = table()
    model = AdditiveGPRegressor(interactions=None).fit(frame, y)
    assert model.term_names_ == ["size", "kind", "skewed"]
    assert_array_equal(model.feature_names_in_, ["size", "kind", "skewed"])
    known = frame["size"].notna()
    assert model.score(frame[known], y[known]) > 0.98
    polars = pl.DataFrame({name: frame[name].tolist() for name in frame})
    for kind in (pl.String, pl.Categorical, pl.Enum(["u", "v", "w"])):
        typed = polars.with_columns(pl.col("kind").cast(kind))
        other = AdditiveGPRegressor(interactions=None).fit(typed, y)
        assert_allclose(other.predict(typed), model.predict(frame), rtol=1e-10)
    codes = frame.assign(kind=frame["kind"].cat.codes).to_numpy(float)
    third = AdditiveGPRegressor(interactions=None, categorical_features=[1]).fit(codes, y)
    assert_allclose(third.predict(codes), model.predict(frame), rtol=1e-10)


def test_missing_and_unknown_values():
    frame, y = table()
    model = AdditiveGPRegressor(interactions=None).fit(frame, y)
    effects, std = model.explain(frame, return_std=True)
    missing = frame["size"].isna().to_numpy()
    assert np.ptp(effects[missing, 0]) == 0
    assert np.ptp(effects[~missing, 0]) > 2
    strange = frame[:2].assign(kind=pd.Categorical(["zzz", None]))
    effects, unknown = model.explain(strange, return_std=True)
    assert_array_equal(effects[:, 1], 0)
    assert (unknown[:, 1] > 5 * std[:, 1].max()).all()


@pytest.mark.parametrize("sparse", [True, False])
def test_numbers_that_only_now_are_missing_have_the_priors_variance(sparse):
    frame, y = table(200)
    known = frame["size"].notna()
    complete, y = frame[known], y[known]
    options = {"interactions": [("size", "kind")], "kernel_interaction": "matern52", "min_gain": 0}
    model = AdditiveGPRegressor(sparse=sparse, **options).fit(complete, y)
    absent = complete.assign(size=np.nan)
    effects, std = model.explain(absent, return_std=True)
    assert_array_equal(effects[:, [0, 3]], 0)
    own, pair = np.exp(0.5 * model._latents[0].theta["variance"][[0, 3]]) * model._y_std
    assert_allclose(std[:, 0], own)
    # Of a pair with a level that is known, as it is centred.
    shares = complete["kind"].value_counts(normalize=True)
    share = complete["kind"].map(shares).astype(float)
    assert_allclose(std[:, 3], pair * np.sqrt(1 - share**2 / (shares**2).sum()))
    predicted = model.predict(absent, return_std=True)[1]
    assert (predicted > np.hypot(own, model.predict(complete, return_std=True)[1].min())).all()
    cov = model.predict(absent[:3], return_cov=True)[1]
    assert_allclose(np.sqrt(cov.diagonal()), predicted[:3])


def test_a_missing_level_that_was_seen_is_a_level():
    frame, y = table()
    absent = np.arange(len(y)) % 7 == 0
    frame.loc[absent, "kind"] = None
    y[absent] += 5
    model = AdditiveGPRegressor(interactions=None).fit(frame, y)
    assert model.explain(frame)[absent, 1].min() > 2


@pytest.mark.parametrize("dtype", ["string", "boolean"])
def test_nullable_columns_have_a_missing_level(dtype):
    values = {"string": ["a", None, "b"], "boolean": [True, None, False]}[dtype]
    frame = pd.DataFrame({"one": pd.Series(values * 20, dtype=dtype)})
    y = np.tile([0.0, 5.0, 1.0], 20)
    assert_allclose(AdditiveGPRegressor().fit(frame, y).predict(frame), y, atol=0.1)


@pytest.mark.parametrize("others", [[], ["kind"]])
def test_objects_that_are_numbers_are_numbers(others):
    frame, y = table()
    frame = frame[["size", *others]]
    objects = frame.assign(size=frame["size"].astype(object).where(frame["size"].notna(), None))
    assert objects["size"].dtype == object
    expected = AdditiveGPRegressor(**quick).fit(frame, y).predict(frame)
    assert_array_equal(AdditiveGPRegressor(**quick).fit(objects, y).predict(objects), expected)


def test_other_objects_are_categories():
    values = {
        "strings": ["1", "2", None],
        "bools": [True, False, None],
        "none": [None] * 3,
        "counts": [1, np.int64(2), np.nan],
    }
    frame = pd.DataFrame({name: pd.Series(own, dtype=object) for name, own in values.items()})
    assert_array_equal(categorical_mask("from_dtype", frame), [True, True, True, False])


@pytest.mark.parametrize("others", [[], ["size"], ["size", "kind"]])
@pytest.mark.parametrize("kind", ["naive", "zoned", "period", "difference", "objects"])
def test_dates_are_refused(kind, others):
    frame, y = table(60)
    days = pd.date_range("2020", periods=60).to_series(index=range(60))
    kinds = {
        "naive": days,
        "zoned": days.dt.tz_localize("UTC"),
        "period": days.dt.to_period("D"),
        "difference": days - days[0],
        "objects": days.dt.date,
    }
    frame["when"] = kinds[kind]
    with pytest.raises(TypeError, match="Column 'when' of X has dates or times"):
        AdditiveGPRegressor().fit(frame[[*others, "when"]], y)


@pytest.mark.parametrize("as_objects", [False, True])
def test_dates_may_be_categories(as_objects):
    frame = pd.DataFrame({"when": pd.date_range("2020", periods=3).repeat(20)})
    if as_objects:
        frame["when"] = frame["when"].dt.date
    model = AdditiveGPRegressor(categorical_features=["when"]).fit(frame, np.arange(60) // 20)
    assert_allclose(model.predict(frame), np.arange(60) // 20, atol=0.05)


def test_columns_of_one_name_are_refused_later_too():
    frame, y = table(60)
    model = AdditiveGPRegressor(**quick).fit(frame, y)
    with pytest.raises(ValueError, match="more than one column of the name size"):
        model.predict(pd.concat([frame, frame["size"]], axis=1))


def test_a_column_is_no_table():
    frame, y = table(60)
    with pytest.raises(ValueError, match="Expected a 2-dimensional container"):
        AdditiveGPRegressor().fit(frame["size"], y)


def test_levels_of_mixed_types_are_refused():
    frame, y = table(60)
    frame["both"] = [1, "one"] * 30
    with pytest.raises(TypeError, match="column 'both' of X are of types int, str"):
        AdditiveGPRegressor().fit(frame, y)


def test_levels_may_be_strings_of_numpy_too():
    frame, y = table(60)
    frame["both"] = pd.Series([np.str_("one"), "two"] * 30, dtype=object)
    model = AdditiveGPRegressor(interactions=None).fit(frame, y)
    assert model.explain(frame).shape[0] == 60


def test_columns_of_one_name_are_refused():
    frame, y = table(60)
    with pytest.raises(ValueError, match="more than one column of the name size: rename"):
        AdditiveGPRegressor().fit(pd.concat([frame, frame[["size"]]], axis=1), y)


@pytest.mark.parametrize("categorical", [None, [0]])
def test_targets_are_asked_for(categorical):
    gam = AdditiveGPRegressor(categorical_features=categorical)
    with pytest.raises(ValueError, match=r"AdditiveGPRegressor.* requires y to be passed"):
        gam.fit(np.zeros((5, 2)), None)


def test_categories_of_one_dimension_are_refused():
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        AdditiveGPRegressor(categorical_features=[0]).fit(np.arange(20.0), np.arange(20.0))


def test_two_categories_interact():
    rng = np.random.RandomState(0)
    frame = pd.DataFrame({name: rng.choice(["a", "b"], 300) for name in ("one", "two")})
    y = (frame["one"] == frame["two"]).to_numpy() + 0.1 * rng.normal(size=300)
    model = AdditiveGPRegressor().fit(frame, y)
    assert model.term_names_[-1] == "one & two"
    assert model.score(frame, y) > 0.9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("auto", "categorical_features='auto' must be 'from_dtype'"),
        ([7], "must be 3 bools, or names, or integers from -3 to 2"),
        (["none"], r"has \['none'\], which are no columns of X"),
        ([True], "must be 3 bools"),
    ],
)
def test_bad_categories(given, message):
    with pytest.raises(ValueError, match=message):
        AdditiveGPRegressor(categorical_features=given).fit(*table(50))


def test_columns_and_levels_of_an_encoder():
    frame, _ = table(30)
    assert_array_equal(categorical_mask("from_dtype", frame), [False, True, False])
    assert categorical_mask("from_dtype", frame.to_numpy()) is None
    assert_array_equal(categorical_mask(["kind"], frame), [False, True, False])
    encoder = TableEncoder(np.array([False, True, False])).fit(frame)
    assert encoder.levels == [["u", "v", "w"]]
    assert_array_equal(encoder.n_levels, [0, 3, 0])
    assert_array_equal(encoder.transform(frame)[:, 1], frame["kind"].cat.codes)


def test_ranges_and_powers_of_columns():
    rng = np.random.RandomState(0)
    data = np.c_[rng.uniform(-3, 5, 500), rng.lognormal(size=500), np.ones(500)]
    data[0, 0] = np.nan
    even, skewed, constant = described(data, np.ones(500), np.zeros(3, int), "power")
    assert even.missing
    assert even.power == 1 != skewed.power
    assert constant.constant
    unit = skewed.unit(t64(data[:, 1])).numpy()
    assert_allclose([unit.min(), unit.max()], [0, 1], atol=1e-12)
    assert abs(np.mean(unit) - np.median(unit)) < 0.05


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_numbers_out_of_the_range_of_skewed_columns_stay_apart(sign, sigma):
    data = sign * np.random.RandomState(0).lognormal(sigma=sigma, size=(500, 1))
    (feature,) = described(data, np.ones(500), np.zeros(1, int), "power")
    assert feature.power != 1
    # The function itself would put all of a long tail at the end of the range.
    far = feature.unit(t64(data[np.abs(data).argmax()] * 10.0 ** np.arange(5)))
    assert (sign * far.diff() > 0.04).all()
    assert abs(far[-1]) > 50
    other = feature.unit(t64(-sign * np.array([1.0, 10.0, 100.0])))
    assert (sign * other < 0).all() if sign == 1 else (other > 1).all()
    assert (sign * other.diff() < -0.1).all()
    # It goes on where the range ends.
    ends = t64([data.min(), data.max()])
    assert_allclose(feature.unit(ends + 1e-6) - feature.unit(ends - 1e-6), 0, atol=1e-4)
    assert_allclose(feature.unit(ends), [0, 1], atol=1e-12)


# Interactions and pruning


def test_interactions_are_chosen_by_users():
    data, y = friedman(300)
    frame = pd.DataFrame(data, columns=list("abcdef"))
    model = AdditiveGPRegressor(interactions=[("b", "a"), (4, 5)]).fit(frame, y)
    assert model.terms_[-2:] == [(0, 1), (4, 5)]
    assert model.interaction_scores_ == {}
    found = AdditiveGPRegressor(interactions=1).fit(frame, y)
    assert found.term_names_[-1] == "a & b"
    assert next(iter(found.interaction_scores_)) == "a & b"


@pytest.mark.parametrize(
    "given", [[(0, 9)], [(1, 1)], [(0, 1.0)], [(0, True)], [3], "x", True, -1, [("a", "b")]]
)
def test_bad_interactions(given):
    with pytest.raises(ValueError, match=r"interactions=.* must be None, 'auto', the number"):
        AdditiveGPRegressor(interactions=given).fit(*friedman(50))


def test_pruning_can_be_off():
    data, y = friedman(200)
    assert AdditiveGPRegressor(**quick, min_gain=0).fit(data, y).dropped_terms_ == []
    none = AdditiveGPRegressor(**quick, min_gain=1e9).fit(data, y)
    assert none.terms_ == []
    assert_allclose(none.predict(data), y.mean(), rtol=1e-2)
    assert none.explain(data).shape == (200, 0)
    assert none.sobol_indices_.shape == (0,)


def test_levels_of_single_rows_have_no_effect():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"row {i}" for i in range(60)], "x": rng.uniform(size=60)})
    y = frame["x"] + 0.1 * rng.standard_normal(60)
    model = AdditiveGPRegressor(**quick).fit(frame, y)
    assert model.term_names_ == ["x"]
    assert_allclose(model.noise_variance_, 0.01, rtol=0.5)
    weighted = AdditiveGPRegressor(**quick).fit(frame, y, sample_weight=np.full(60, 2.0))
    assert "id" in weighted.term_names_ + weighted.dropped_terms_


def test_slopes_of_the_prior_are_those_of_differences():
    ascent = SiteAscent(
        *(tiny(), rows_of(X, LABELS), None, FORMS["full"], 3.0, 0.0),
        sites=LikelihoodSites(Logistic(), 1),
        batch_size=None,
        generator=torch.Generator(),
    )
    # Of effects that are next to nothing, usual, and far too large.
    variance, h = t64([-12.0, 0.0, 8.0]), 1e-5
    _, slopes = ascent._log_prior({"variance": variance})
    for k, move in enumerate(h * torch.eye(3, dtype=torch.float64)):
        up, down = (ascent._log_prior({"variance": variance + s * move})[0] for s in (1, -1))
        assert_allclose(slopes["variance"][k], (up - down) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("kind", [AdditiveGPRegressor, AdditiveGPClassifier])
def test_the_objective_is_the_bound_and_the_prior_of_effects(kind):
    X, y = make_friedman1(60, n_features=5, noise=1.0, random_state=0)
    y = y if kind is AdditiveGPRegressor else y > np.median(y)
    model = kind(**quick, shrinkage=3.0, min_gain=0).fit(X, y)
    stds = np.exp(0.5 * model._latents[0].theta["variance"])
    prior = gamma(2, scale=1 / 3).logpdf(stds).sum()
    # A classifier's last bound is of the variances before its last step.
    assert_allclose(model.objective_curve_[-1] - model.elbo_, prior, atol=0.05)
    alone = kind(**quick, shrinkage=0, min_gain=0).fit(X, y)
    assert_allclose(alone.objective_curve_[-1], alone.elbo_)


def test_the_prior_keeps_many_effects_from_chance():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((460, 30))
    chance = expit(1.5 * X[:, 0] + X[:, 1])
    y = rng.random(len(X)) < chance
    alone, kept = (
        AdditiveGPClassifier(**quick, shrinkage=rate).fit(X[:160], y[:160]).predict_proba(X[160:])
        for rate in (0.0, 4.0)
    )
    assert log_loss(y[160:], alone) > log_loss(y[160:], chance[160:]) + 0.2
    assert log_loss(y[160:], kept) < log_loss(y[160:], chance[160:]) + 0.05


def test_found_pair_must_gain_more_than_chance_would():
    rng = np.random.default_rng(0)
    data = rng.uniform(size=(500, 3))
    y = np.sin(4 * data[:, 0]) + 0.7 * (data[:, 0] - 0.5) * (data[:, 1] - 0.5)
    y = y + 0.5 * rng.normal(size=500)
    # The test sees this pair; its gain is below log(3 pairs / 0.01), though above min_gain.
    search = {**quick, "interactions": 1}
    found = AdditiveGPRegressor(**search).fit(data, y)
    assert "x0 & x1" in found.dropped_terms_
    assert "x0 & x1" in AdditiveGPRegressor(**search, min_gain=0).fit(data, y).term_names_
    given = AdditiveGPRegressor(**{**quick, "interactions": [(0, 1)]}).fit(data, y)
    assert "x0 & x1" in given.term_names_


# Behaviour


@pytest.mark.parametrize("make", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("kind", ["gaussian", "poisson", "classes"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_edges_of_data(make, kind):
    data, y = friedman(40)
    data = make(data)
    y = y[: len(data)]
    if kind == "classes":
        model = AdditiveGPClassifier(max_iter=8).fit(data, np.arange(len(y)) % 2)
        assert np.isfinite(model.predict_proba(data)).all()
    else:
        model = AdditiveGPRegressor(likelihood=kind, max_iter=8).fit(data, np.round(np.abs(y)))
        mean, std = model.predict(data, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()
        assert np.isfinite(std).all()


def test_one_row_and_columns_without_effect():
    data, y = friedman(30)
    assert_allclose(AdditiveGPRegressor().fit(data[:1], y[:1]).predict(data), y[0])
    frame = pd.DataFrame({"a": data[:, 3], "level": "same", "none": None, "nan": np.nan})
    model = AdditiveGPRegressor().fit(frame, y)
    assert model.term_names_ == ["a"]


def test_outside_the_range_effects_fade_and_bands_widen():
    data, y = friedman(400)
    model = AdditiveGPRegressor(**quick).fit(data, y)
    far = data[:1].copy()
    far[0, 2] = 100.0
    near, wide = model.explain(data, True)[1][:, 2].max(), model.explain(far, True)[1][0, 2]
    assert wide > 3 * near


def test_samples_have_the_moments_of_predictions():
    data, y = friedman(200)
    model = AdditiveGPRegressor(**quick).fit(data, y)
    mean, cov = model.predict(data[:4], return_cov=True)
    draws = model.sample_y(data[:4], 20_000)
    assert_allclose(draws.mean(1), mean, atol=0.05)
    assert_allclose(np.cov(draws), cov, atol=0.05)


def test_memmaps_are_read_in_chunks(tmp_path, monkeypatch):
    data, y = friedman(500)
    np.save(tmp_path / "X.npy", data)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    whole = AdditiveGPRegressor(**quick).fit(data, y)
    monkeypatch.setattr("skgpsvm._rows._HELD_BYTES", 0)
    monkeypatch.setattr("skgpsvm._rows._MOST_MERGED", 0)
    # Rows in another order: where the optimiser stops depends on rounding.
    read = AdditiveGPRegressor(**quick).fit(mapped, y)
    assert_allclose(read.predict(data), whole.predict(data), rtol=1e-4)


def test_pickles_predict_and_pipelines_search():
    data, y = friedman(120)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), AdditiveGPRegressor(**quick)),
        {"additivegpregressor__kernel": ["rbf", "matern52"]},
        cv=2,
    ).fit(data, y)
    again = pickle.loads(pickle.dumps(search))
    assert_array_equal(again.predict(data), search.predict(data))


@pytest.mark.parametrize(("sparse", "n_killed"), [(True, 3), (False, 2)])
def test_a_fit_killed_between_stages_ends_the_same(sparse, n_killed, tmp_path):
    data, y = friedman(200)

    class Kill:
        def setup(self, estimator, context): ...

        def teardown(self, estimator, context): ...

        def on_fit_task_begin(self, estimator, context): ...

        def on_fit_task_end(self, estimator, context):
            if context.task_name.startswith(("effects", "all rows")):
                raise KeyboardInterrupt

    options = {"interactions": 1, "n_inducing": 8, "n_inducing_interaction": 4, "tol": 1e-3}
    options["sparse"] = sparse
    plain = AdditiveGPRegressor(**options).fit(data, y)
    for _ in range(n_killed):
        model = AdditiveGPRegressor(**options).set_callbacks(Checkpoint(tmp_path), Kill())
        with pytest.raises(KeyboardInterrupt):
            model.fit(data, y)
    again = AdditiveGPRegressor(**options).set_callbacks(Checkpoint(tmp_path)).fit(data, y)
    assert_array_equal(again.predict(data), plain.predict(data))
    assert_array_equal(again.objective_curve_, plain.objective_curve_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "linear"}, "kernel='linear' is not one of 'rbf', 'matern32', 'matern52'"),
        ({"covariance": "low"}, "covariance='low' is not one of"),
        ({"measure": "gaussian"}, "measure='gaussian' is not one of"),
        ({"scaling": "quantile"}, "scaling='quantile' is not one of"),
        ({"rank": 0}, "rank=0 must be an integer of at least 1, or None"),
        ({"n_inducing": 1}, "n_inducing=1 must be an integer of at least 2"),
        ({"n_inducing_interaction": "all"}, "n_inducing_interaction='all' is not one of 'auto'"),
        ({"length_scale_bounds": (1, 0.1)}, "must be two positive numbers in ascending order"),
        ({"length_scale_bounds": "fixed"}, "must be two positive numbers in ascending order"),
        ({"min_gain": -1}, "min_gain=-1 must be a number of at least 0"),
        ({"likelihood": "gamma"}, "likelihood='gamma' is not one of"),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        AdditiveGPRegressor(**options).fit(*friedman(20))


def test_bad_levels_and_links():
    data, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="likelihood='probit' is for two classes; y has 3"):
        AdditiveGPClassifier(likelihood="probit").fit(data, y)
    model = AdditiveGPRegressor(**quick).fit(data, y)
    for level in (2, "a", None):
        with pytest.raises(ValueError, match=f"level={level!r} must be between 0 and 1"):
            model.sobol_indices(level=level)


def test_streams_refuse_balanced_classes():
    X, y = np.arange(20.0)[:, None], np.arange(20) % 2
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows"):
        AdditiveGPClassifier(class_weight="balanced").partial_fit(X, y)


def test_few_features_have_their_points_with_few_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(200, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=200)
    assert AdditiveGPRegressor(n_inducing=60).fit(X, y).score(X, y) > 0.97


def test_columns_whose_squares_overflow_are_refused():
    X, y = waves(40)
    with pytest.raises(ValueError, match="Squares of X overflow"):
        AdditiveGPRegressor(interactions=None).fit(1e200 * X, y)
