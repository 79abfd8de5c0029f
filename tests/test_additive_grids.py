"""Inducing points and polynomials of additive models: at values, by rows, refined if needed."""

import warnings
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from problems import every, few_valued, friedman, rows_of, t64
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor
from skgpsvm.additive import _ascent, _search
from skgpsvm.additive._defaults import DEFAULTS
from skgpsvm.additive._description import described
from skgpsvm.additive._grids import Grids
from skgpsvm.additive._posterior import AdditivePosterior
from skgpsvm.additive._search import TermSearch
from skgpsvm.kernels import ANOVARBF


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
    # The error is the jitter of the inducing points over the noise.
    assert_allclose(found, mean, atol=1e-4)
    assert_allclose(found_std, np.sqrt(std**2 + noise * y.var()), atol=1e-4)
    evidence = multivariate_normal(cov=kernel(data) + noise * np.eye(15)).logpdf(exact.y_train_)
    assert_allclose(model.elbo_, evidence, atol=1e-3)


@pytest.mark.parametrize("kernel", ["rbf", "matern32", "matern52"])
def test_columns_of_few_values_are_those_of_their_features(kernel):
    data, y = few_valued(200)
    data[:7, 1] = np.nan
    options = {"sparse": True, "terms": [..., (0, 1)], "interactions": None, "min_gain": 0}
    model = AdditiveGPRegressor(kernel=kernel, **options).fit(data, y)
    latent = model._latents[0]
    assert {j: len(own) for j, own in latent.basis.points.items()} == {0: 2, 1: 5}
    basis = latent.basis
    theta = {kind: t64(value) for kind, value in latent.theta.items()}
    columns, effects = basis(t64(data)), basis.at(theta)
    features, variances = effects.features(basis.unit(t64(data)))
    parts = zip(columns, effects.coefs, effects.covs, features, variances.T, strict=True)
    exact = [part for part, term in zip(parts, effects.terms, strict=True) if 2 not in term]
    assert [own.shape[1] for own, *_ in exact] == [1, 2, 6, 10]
    for own, coef, cov, feature, variance in exact:
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
    # Compare with the exact features of all rows instead of interpolated columns.
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
    data, y = few_valued(1000)
    options = {"sparse": True, "terms": [..., (0, 1)], "interactions": None, "min_gain": 0}
    y += 2 * data[:, 0] * (-1) ** data[:, 1]  # rough, but no grid needs to be refined
    every = AdditiveGPRegressor(**options, n_inducing_interaction=None).fit(data[:, :2], y)
    few = AdditiveGPRegressor(**options).fit(data[:, :2], y)
    for model in (every, few):
        basis = model._latents[0].basis
        assert {j: len(own) for j, own in basis.pair_points.items()} == {0: 2, 1: 5}
    assert basis.n_inducing_pair == DEFAULTS.first_pair_points
    # A grid of other points can only approach this bound.
    other = AdditiveGPRegressor(**options, n_inducing_interaction=4).fit(data[:, :2], y)
    assert min(every.elbo_, few.elbo_) > other.elbo_ - 0.1


@pytest.mark.parametrize("options", [{}, {"interactions": 1}, {"terms": [(0, 1)]}])
def test_points_at_every_pair_of_many_values_are_refused(options):
    data, y = friedman(400)
    options = {"sparse": True, "n_inducing_interaction": None, **options}
    with pytest.raises(ValueError, match="160,000 here, and matrices of 191 GiB; up to 16,384"):
        AdditiveGPRegressor(**options).fit(data, y)
    few = data.round(1)  # a feature has eleven values
    AdditiveGPRegressor(**options).fit(few[:, :2], y)


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


def test_grids_of_classes_have_fewer_points_with_few_rows():
    data, y = friedman(600)
    options = {"terms": [..., (0, 1)], "interactions": None, "sparse": True, "max_iter": 2}

    def points(kind, targets, **more):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = kind(**options, **more).fit(data, targets)
        return model._latents[0].basis.n_inducing_pair

    assert points(AdditiveGPRegressor, y) == 8
    assert points(AdditiveGPClassifier, y > y.mean()) == 6
    assert points(AdditiveGPClassifier, y > y.mean(), n_inducing_interaction=9) == 9


def test_blocks_of_rows_do_not_matter(monkeypatch):
    data, y = friedman(300)
    options = {"terms": [..., (0, 1)], "interactions": None, "sparse": True, "max_iter": 3}

    def fitted(kind, targets):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return kind(**options).fit(data, targets)

    targets = {AdditiveGPRegressor: y, AdditiveGPClassifier: y > y.mean()}
    whole = {kind: fitted(kind, own) for kind, own in targets.items()}
    monkeypatch.setattr(_ascent, "LARGE_BLOCK", 2**15)  # 30 rows or so
    for kind, own in targets.items():
        assert_allclose(fitted(kind, own).elbo_, whole[kind].elbo_, rtol=1e-8)


def test_two_points_bear_pairs():
    data, y = friedman(200)
    model = AdditiveGPRegressor(n_inducing=2, terms=[..., (0, 1)], interactions=None).fit(data, y)
    assert (0, 1) in model.terms_
    assert model.score(data, y) > 0.7


def test_few_features_have_their_points_with_few_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(200, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=200)
    assert AdditiveGPRegressor(n_inducing=60).fit(X, y).score(X, y) > 0.97


@pytest.mark.parametrize(
    ("information", "d", "expected"),
    [
        *[(1, 2, 40), (1, 30, 33), (1, 50, 20), (1, 60, 16), (1, 200, 7)],
        *[(0.25, 2, 40), (0.25, 3, 26), (0.25, 10, 10), (0.25, 100, 10), (0.25, 200, 7)],
    ],
)
def test_number_of_points_falls_with_that_of_features_and_with_information(
    information, d, expected
):
    X = np.random.default_rng(0).normal(size=(640, d))
    features = described(X, np.ones(640), np.zeros(d, int), "power", every(d))
    grids = Grids("auto", "auto", (0.05, 10.0), empirical=True, information=information)
    basis = grids.first(features, rows_of(X, X[:, :1]), "matern52", 1.0, range(d))
    assert basis.n_inducing == expected


def test_narrow_peaks_are_followed_with_points_and_without():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(1100, 3))
    truth = 2 * np.exp(-(((X[:, 0] - 0.5) / 0.05) ** 2)) + X[:, 1]
    y = truth + 0.2 * rng.normal(size=1100)

    def error(sparse):
        model = AdditiveGPRegressor(sparse=sparse, interactions=None).fit(X[:700], y[:700])
        return np.sqrt(np.mean((model.predict(X[700:]) - truth[700:]) ** 2))

    assert error(sparse=True) < 1.1 * error(sparse=False)


def test_only_pairs_that_gain_in_first_rounds_are_learned(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 4))
    y = X[:, 0] + 2 * X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=300)
    learned, effects, learn = [], [], TermSearch.learn

    def spy(self, stage):
        learned.append(self.ascent.basis.pairs)
        effects.append([term for term in self.ascent.basis.terms if len(term) == 1])
        learn(self, stage)

    monkeypatch.setattr(TermSearch, "learn", spy)
    monkeypatch.setattr(_search, "DEFAULTS", replace(DEFAULTS, level=np.inf))  # all are candidates
    model = AdditiveGPRegressor(sparse=True, n_inducing=8, steps=None).fit(X, y)
    assert next(filter(None, learned))[0] == (1, 2)
    assert max(map(len, learned)) < 3  # of six
    assert effects[0] == [(0,), (1,), (2,), (3,)]
    assert (2,) not in effects[1]  # x2 may still have pairs
    assert [term for term in model.terms_ if len(term) == 2] == [(1, 2)]


def test_first_rounds_find_most_of_the_gain_of_a_pair_of_the_noise(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(200, 2))
    y = X[:, 0] + 0.3 * np.exp(X[:, 0] * X[:, 1]) * rng.normal(size=200)
    gained, run = [], TermSearch._run

    def spy(self, name, stage, *args, **options):
        run(self, name, stage, *args, **options)
        if name.startswith("first rounds"):
            later = copy(self.state)
            for _ in range(8):
                self.ascent.step(later)
            states = self.state, later
            gained.append([self.ascent.gains(state, [(0, 1)])[0] for state in states])

    monkeypatch.setattr(TermSearch, "_run", spy)
    AdditiveGPRegressor(likelihood="heteroscedastic", random_state=0).fit(X, y)
    [[first, last]] = gained
    assert first > 0.9 * last


def test_finer_grids_of_a_pair_drop_the_terms_that_stood_in_for_it():
    rng = np.random.default_rng(1)
    X, places = (
        rng.uniform(size=(3000, 2)),
        np.array([[0.2, 0.8], [0.5, 0.5], [0.8, 0.2], [0.3, 0.4]]),
    )
    square = np.square(X[:, None] - places).sum(2)
    y = np.exp(-0.5 * square / 0.07**2) @ [1, 1.5, 0.8, -1.2] + 0.2 * rng.normal(size=3000)
    region = square.argmin(1) == 1  # has no effect beside the place
    model = AdditiveGPRegressor(categorical_features=[2], random_state=0)
    assert model.fit(np.column_stack([X, region]), y).terms_ == [(0,), (1,), (0, 1)]
