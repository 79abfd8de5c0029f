"""The bounds of additive models with inducing points: the specification's numbers, and oracles."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import differences
from problems import average_information, rows_of, t64
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel

from skgpsvm import AdditiveGPRegressor
from skgpsvm._sites import LikelihoodSites
from skgpsvm.additive import _interactions, _processes
from skgpsvm.additive._basis import AdditiveBasis, Feature
from skgpsvm.additive._bound import (
    EffectsBound,
    RowColumns,
    SiteRows,
    Sums,
    precision_root,
)
from skgpsvm.additive._effect_test import EffectTest
from skgpsvm.additive._effects import InformedEffects
from skgpsvm.additive._fixed_processes import Levels
from skgpsvm.additive._interactions import score_moments, step_p_values
from skgpsvm.additive._posterior import AdditivePosterior
from skgpsvm.additive._processes import (
    Chebyshev,
    uniform_moments,
)
from skgpsvm.additive._site_ascent import RowSiteAscent, SiteAscent
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
DIGITS = {"rtol": 0, "atol": 2e-8}  # the specification's tolerance plus its rounding
FORMS = {"full": ("full", None), "mean_field": ("mean_field", None), "rank 2": ("precision", 2)}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@pytest.fixture
def no_jitter(monkeypatch):
    monkeypatch.setattr(_processes, "JITTER", 0)


def tiny(points=None, size=34):
    """Return the tiny example's basis, with its own or the given inducing points."""
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


def collapsed(effects, sums, noise, *form):
    """Return the value of the collapsed bound of one latent."""
    return EffectsBound(effects, sums, noise, *form).value


def posterior_of(basis, form=("full", None)):
    effects, var = basis.at(THETA), THETA["noise"].exp()
    sums = sums_of(basis).of_features(effects)
    return AdditivePosterior(effects, sums.gram / var, sums.cross / var, *form)


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
    assert_allclose(found, value, **DIGITS)


def test_weights_replicate_rows(no_jitter):
    basis = tiny()
    found = collapsed(basis.at(THETA), sums_of(basis, [1, 2, 1, 3, 1]), THETA["noise"])
    assert_allclose(found, -10.3665270008, **DIGITS)


def test_points_at_all_rows_give_the_exact_evidence(no_jitter):
    basis = tiny({j: t64(X[:, j]) for j in range(2)})
    found = collapsed(basis.at(THETA), sums_of(basis), THETA["noise"])
    assert_allclose(found, -6.4239220869, **DIGITS)
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


# Values at converged sites of the specification's labels; the second column has the best rank 2.
@pytest.mark.parametrize(
    ("likelihood", "form", "value"),
    [
        (Logistic(), ("full", None), -3.8517403727),
        (Probit(), ("full", None), -4.3047425817),
        (Logistic(), ("precision", 2), -3.8595232663),
        (Probit(), ("precision", 2), -4.3533228016),
    ],
)
@pytest.mark.parametrize("kind", [SiteAscent, RowSiteAscent])
def test_sites_converge_to_the_optimum(no_jitter, kind, likelihood, form, value):
    rows, sites = rows_of(X, LABELS), LikelihoodSites(likelihood, 1)
    ascent = kind(
        *(tiny(), rows, None, form, 0.0, 0.0),
        sites=sites,
        batch_size=None,
        generator=torch.Generator(),
    )
    theta = [THETA[name][None] for name in ("length", "variance")]
    earlier = [(torch.zeros(11, 11).double(), torch.zeros(11).double())]
    state = ascent.init_update(*theta, torch.empty(0, dtype=torch.float64), earlier)
    for _ in range(40):
        ascent.step(state)
    # The quadrature has 32 nodes here and 20 in the specification.
    assert_allclose(state.objective, value, rtol=0, atol=1e-7)


def two_latents(basis):
    """Return the sums of two latents of Gaussian noise."""
    parts = [sums_of(basis), sums_of(basis, [1, 2, 1, 3, 1], Y[::-1].copy())]
    gram, cross = (torch.stack([getattr(part, k) for part in parts]) for k in ("gram", "cross"))
    weights = t64([part.weight for part in parts])
    return parts, Sums(gram, cross, t64([part.squares for part in parts]), weights)


def variants():
    """Return bases of each kind of columns, by name."""
    tables = {0: np.full(5, 0.2), 1: np.full(5, 0.2)}
    values = {j: np.sort(X[:, j]) for j in range(2)}
    missing = [Feature(missing=True), Feature()]
    walk = Feature(n_levels=3, column=0, edges=(0.4, 0.7))
    share = np.array([0.4, 0.2, 0.4])
    return {
        "points": tiny(),
        "matern": replace(tiny(), kernel="matern52", pair_kernel="matern32"),
        "values": replace(tiny(values), tabled=tables),
        "missing": replace(tiny(), features=missing),
        "steps": replace(
            tiny(),
            features=[Feature(), Feature(), walk],
            terms=[(0,), (2,), (0, 1)],
            means=[*tiny().means, share],
            seconds=[*tiny().seconds, np.diag(share)],
        ),
    }


@forms
@pytest.mark.parametrize("kind", variants())
def test_derivatives_are_those_of_differences(kind, form):
    basis = variants()[kind]
    theta = {name: t64(list(own.values())) + 0.1 for name, own in basis.start().items()}
    theta["noise"] = THETA["noise"]
    _, sums = two_latents(basis)
    slopes, _ = EffectsBound(basis.at(theta), sums, theta["noise"], *form).derivatives(list(theta))

    def bound(*parts):
        moved = dict(zip(theta, parts, strict=True))
        return collapsed(basis.at(moved), sums, moved["noise"], *form)

    numeric = differences(bound, *theta.values(), step=1e-5)
    for name, slope in zip(theta, numeric, strict=True):
        assert_allclose(slopes[name], slope, rtol=1e-5, atol=1e-6)


@forms
@pytest.mark.parametrize("rows", [True, False])
def test_informed_effects_lose_little_and_have_derivatives(form, rows):
    basis, rng, n = variants()["missing"], np.random.default_rng(0), 40
    data = rng.uniform(size=(n, 2))
    data[:5, 0] = np.nan
    precision, linear = t64(rng.uniform(0.5, 2, (2, n))), t64(rng.normal(size=(2, n)))
    columns = RowColumns(basis(t64(data)))
    T = columns.joined
    sums = Sums(T.T @ (precision[..., None] * T), linear @ T)
    sums = SiteRows(columns, precision, linear) if rows else sums
    theta = {name: t64(list(own.values())) for name, own in basis.start().items()}
    theta["length"] += 1.5  # the rows tell of few directions
    whole, noise = basis.at(theta), t64(0.0)
    informed = whole.informed(sums, noise)
    sizes = [[coef.shape[1] for coef in effects.coefs] for effects in (informed, whole)]
    assert sizes[0][3] < sizes[1][3]
    assert sizes[0][0] == sizes[1][0]
    loss = collapsed(whole, sums, noise, *form) - collapsed(informed, sums, noise, *form)
    if form[0] == "full":
        assert 0 < loss < 1e-3

    def bound(*parts):
        moved = InformedEffects(basis.at(dict(zip(theta, parts, strict=True))), informed.directions)
        return collapsed(moved, sums, noise, *form)

    slopes, _ = EffectsBound(informed, sums, noise, *form).derivatives(list(theta))
    numeric = differences(bound, *theta.values(), step=1e-5)
    for name, slope in zip(theta, numeric, strict=True):
        assert_allclose(slopes[name], slope, rtol=1e-5, atol=1e-6)


def test_effects_of_small_variance_are_learned_in_as_many_directions():
    basis, x = variants()["missing"], torch.linspace(0, 1, 40).double()
    columns = RowColumns(basis(torch.stack([x, x.flip(0)], 1)))
    sums = SiteRows(columns, torch.ones(1, 40).double(), torch.zeros(1, 40).double())
    sizes = []
    for variance in (0.0, -20.0):
        theta = {name: t64(list(own.values())) for name, own in basis.start().items()}
        theta["variance"][:2] = variance
        informed = basis.at(theta).informed(sums, t64(0.0))
        sizes.append([coef.shape[1] for coef in informed.coefs[1:3]])
    assert min(sizes[1]) > 2
    assert sizes[1] <= sizes[0]


def test_bounds_and_information_of_several_latents_are_sums():
    basis, names = tiny(), list(THETA)
    parts, sums = two_latents(basis)
    effects, noise = basis.at(THETA), THETA["noise"]
    both = EffectsBound(effects, sums, noise)
    assert_allclose(both.value, sum(collapsed(effects, part, noise) for part in parts))
    assert_allclose(both.gains(), sum(EffectsBound(effects, part, noise).gains() for part in parts))
    columns, expected = torch.cat(basis(t64(X)), 1), 0.0
    for weights, y in [(np.ones(len(X)), Y), ([1, 2, 1, 3, 1], Y[::-1].copy())]:

        def cov(own, weights=weights):
            psi = columns @ torch.block_diag(*basis.at(own).coefs)
            return psi @ psi.T + (own["noise"].exp() / t64(weights)).diag()

        expected = expected + average_information(cov, THETA, t64(y))
    _, found = both.derivatives(names)
    assert_allclose(found, expected, rtol=1e-4, atol=1e-8)
    _, found = both.derivatives(names[:2])
    assert_allclose(found, expected[:-1, :-1], rtol=1e-4, atol=1e-8)
    gradient, found = both.derivatives(["noise"])
    assert_allclose(found, expected[-1:, -1:], rtol=1e-4, atol=1e-8)
    assert list(gradient) == ["noise"]


@forms
@pytest.mark.parametrize("kind", variants())
def test_sites_of_rows_have_the_bound_of_their_sums(kind, form):
    basis, rng = variants()[kind], np.random.default_rng(0)
    gaps = [[kind == "missing", False]] * 2 + [[False, False]] * 3
    precision, linear = t64(rng.uniform(0.5, 2, (2, 5))), t64(rng.normal(size=(2, 5)))
    columns = RowColumns(basis(t64(np.where(gaps, np.nan, X))))
    T = columns.joined
    sums = Sums(T.T @ (precision[..., None] * T), linear @ T)
    usual = basis.start()
    theta = {name: t64(list(values.values())) + 0.1 for name, values in usual.items()}
    effects, noise, names = basis.at(theta), t64(0.0), ["length", "variance"]
    found, expected = (
        EffectsBound(effects, part, noise, *form)
        for part in (SiteRows(columns, precision, linear), sums)
    )
    assert_allclose(found.value, expected.value, rtol=1e-10)
    (slopes, information), (others, other) = (part.derivatives(names) for part in (found, expected))
    for name in names:
        assert_allclose(slopes[name], others[name], rtol=1e-7, atol=1e-9)
    assert_allclose(information, other, rtol=1e-7, atol=1e-9)
    one = SiteRows(columns, precision[1], linear[1]), Sums(sums.gram[1], sums.cross[1])
    found, expected = (EffectsBound(effects, part, noise).gains() for part in one)
    assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_gains_are_differences_of_bounds():
    basis = tiny()
    effects, sums = basis.at(THETA), sums_of(basis)
    sizes = [len(coef) for coef in effects.coefs]
    places = torch.arange(sum(sizes)).split(sizes)
    bound = EffectsBound(effects, sums, THETA["noise"])
    whole, found = bound.value, bound.gains()
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
    assert_allclose(fine.mean(0), mean, atol=2e-6)  # error of the midpoint rule
    assert_allclose(fine.T @ fine / len(fine), second, atol=2e-6)


def test_levels_have_zero_mean_and_the_covariance_of_the_specification():
    levels = Levels(t64([0.5, 0.3, 0.2]))
    assert_allclose(levels.cov[0], [0.34210526, -0.39473684, -0.26315789], atol=1e-8)
    assert_allclose(levels.coef @ levels.coef.T, levels.cov, atol=1e-14)
    at = levels.at(t64([2.0, -1.0]))
    assert_allclose(levels.features(at)[1], [0, 0])
    assert_allclose(levels.variances(at), [levels.cov[2, 2], 1.0])


def test_equal_to_exact_regression_under_the_summed_kernel(monkeypatch):
    monkeypatch.setattr(_processes, "JITTER", 1e-12)
    rng = np.random.RandomState(0)
    data = np.c_[rng.permutation(7), rng.permutation(7)] / 6
    y = np.sin(4 * data[:, 0]) + data[:, 1] ** 2
    basis = tiny({j: t64(data[:, j]) for j in range(2)})
    columns = torch.cat(basis(t64(data)), 1)
    sums = Sums(columns.T @ columns, columns.T @ t64(y), y @ y, len(y))
    effects, var = basis.at(THETA), THETA["noise"].exp()
    found = sums.of_features(effects)
    posterior = AdditivePosterior(effects, found.gram / var, found.cross / var)
    kernel = ConstantKernel(0.5) + ANOVARBF(0.3, feature=0)
    kernel += ConstantKernel(0.7) * ANOVARBF(0.5, feature=1)
    kernel += ConstantKernel(0.9) * ANOVARBF(0.4, feature=0) * ANOVARBF(0.6, feature=1)
    exact = GaussianProcessRegressor(kernel, alpha=0.25, optimizer=None).fit(data, y)
    new = rng.uniform(-0.2, 1.2, size=(8, 2))
    mean, std = exact.predict(new, return_std=True)
    found_mean, found_var = posterior.marginals(t64(new))
    # The error is of the order of the root of the jitter.
    assert_allclose(found_mean[:, 0], mean, atol=1e-6)
    assert_allclose(found_var[:, 0], std**2, atol=1e-6)
    evidence = multivariate_normal(cov=kernel(data) + 0.25 * np.eye(len(y))).logpdf(y)
    assert_allclose(collapsed(effects, sums, THETA["noise"]), evidence, atol=1e-6)


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


def test_moments_of_scores_are_those_of_all_signs(monkeypatch):
    """Compare scores with dense matrices, and their moments with all signs of the rows."""
    monkeypatch.setattr(_interactions, "_grids", lambda n: [(3, True), (2, False)])
    basis, rng = replace(tiny(), terms=[(0,), (1,)]), np.random.RandomState(0)
    data = rng.uniform(size=(12, 2))
    data[3, 1] = np.nan
    ranks = (np.argsort(np.argsort(data, 0), 0) + 0.5) / [12, 11]  # NaN is the last
    r, precision = rng.normal(size=(12, 2)), rng.uniform(0.5, 2, (12, 2))
    kept = np.arange(12) != 3
    weights = (precision / precision.mean(0)).mean(1)[kept]
    scaled = (r / np.sqrt(precision.mean(0)))[kept]
    signs = np.array(list(itertools.product([-1, 1], repeat=11)))
    rows = data, r, precision, np.ones(12)
    found = score_moments(basis, basis.terms, *map(t64, rows))[0, 1]
    for own, size in zip(found, (3, 2), strict=True):
        bins = (size * ranks[kept]).astype(int)
        cells = np.eye(size**2)[size * bins[:, 0] + bins[:, 1]].T
        held = cells.any(1)
        effects = np.column_stack(
            [np.repeat(np.eye(size), size, 0), np.tile(np.eye(size), (size, 1))]
        )
        root = np.sqrt(cells @ weights)[held, None]
        effects = root * effects[held]
        M = np.eye(len(root)) - effects @ np.linalg.pinv(effects)
        if size == 3:  # a squared exponential of length scale 1/2 in the middles of the bins
            middles = np.stack(np.divmod(np.flatnonzero(held), 3), 1) / 3
            square = np.square(middles[:, None] - middles).sum(-1)
            M = M @ (root * np.exp(-0.5 * square / 0.25) * root.T) @ M

        def score(residuals, cells=cells[held], root=root, M=M):
            sums = cells @ residuals / root
            return np.sum(sums * (M @ sums))

        draws = [score(own[:, None] * scaled) for own in signs]
        assert_allclose(own, [score(scaled), np.mean(draws), np.var(draws)], rtol=1e-8)


def test_smooth_scores_without_directions_of_small_variance_are_those_of_the_whole(monkeypatch):
    rng, basis = np.random.RandomState(0), replace(tiny(), terms=[(0,), (1,)])
    parts = rng.uniform(size=(300, 2)), rng.normal(size=(300, 2)), rng.uniform(size=(300, 2))
    rows = *parts, np.ones(300)
    found = score_moments(basis, basis.terms, *map(t64, rows))[0, 1][0]
    monkeypatch.setattr(_interactions, "_SMALL", 0.0)
    whole = score_moments(basis, basis.terms, *map(t64, rows))[0, 1][0]
    assert found != whole
    assert_allclose(found, whole, rtol=0, atol=1e-4 * whole[1])


@pytest.mark.parametrize("n_latents", [1, 3])
def test_scores_of_many_pairs_are_those_of_each_alone(n_latents, monkeypatch):
    """Numbers, some missing, and categories of several sizes; a few eigenproblems are enough."""
    rng, levels = np.random.RandomState(0), [0, 0, 0, 0, 3, 3, 12, 1]
    data = rng.uniform(size=(400, 8))
    data[rng.uniform(size=400) < 0.2, 1] = np.nan
    for j, size in enumerate(levels):
        data[:, j] = np.floor(size * data[:, j]) if size else data[:, j]
    data[:5, 4] = -1
    features = [Feature(n_levels=size) for size in levels]
    basis = replace(tiny(), features=features, terms=[(j,) for j in range(8)])
    residuals, precisions = rng.normal(size=(400, n_latents)), rng.uniform(size=(400, n_latents))
    rows = tuple(map(t64, (data, residuals, precisions, np.ones(400))))
    shapes, eigh = [], torch.linalg.eigh
    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", lambda A: shapes.append(A.shape) or eigh(A))
        found = score_moments(basis, basis.terms, *rows)
    n_batches = sum(len(shape) == 3 for shape in shapes)
    assert n_batches == 8 + 4  # pairs of sizes of categories; numbers have two grids
    alone = {}
    for pair in itertools.combinations(range(8), 2):
        alone |= score_moments(basis, [(j,) for j in pair], *rows)
    assert list(found) == list(alone)
    assert {len(scores) for scores in found.values()} == {1, 2}
    for pair, scores in found.items():
        assert_allclose(scores, alone[pair], rtol=1e-9)
    monkeypatch.setattr(_interactions, "CACHED_BLOCK", 1)
    for pair, scores in score_moments(basis, basis.terms, *rows).items():
        assert_allclose(scores, found[pair], rtol=1e-9)


def test_pairs_without_an_interaction_to_test_have_no_score():
    """The effects of the bins explain any means of three cells, and of few rows in as many."""
    rng, basis = np.random.RandomState(0), replace(tiny(), terms=[(0,), (1,)])
    level = rng.randint(4, size=500)
    for data in (np.column_stack([level == 0, level == 1]), rng.uniform(size=(8, 2))):
        r, precision = rng.normal(size=(len(data), 1)), np.ones((len(data), 1))
        rows = map(t64, (data, r, precision, np.ones(len(data))))
        assert score_moments(basis, basis.terms, *rows) == {}


def test_counts_are_equal_observations():
    rng, basis = np.random.RandomState(0), replace(tiny(), terms=[(0,), (1,)])
    data, counts = rng.uniform(size=(150, 2)), rng.randint(1, 4, size=150)
    data[::9, 0] = np.nan
    parts = data, rng.normal(size=(150, 2)), rng.uniform(0.5, 2, size=(150, 2))
    rows = *map(t64, parts), t64(counts)
    repeated = *(t64(np.repeat(part, counts, 0)) for part in parts), t64(np.ones(counts.sum()))
    for scores in (score_moments, step_p_values):
        found, expected = (scores(basis, basis.terms, *own) for own in (rows, repeated))
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_allclose(found[key], value, rtol=1e-9)
    known = replace(basis, terms=[(0,)])
    tests = [EffectTest(known, [(1,)], *own) for own in (rows, repeated)]
    assert_allclose(tests[0].p_values()[(1,)], tests[1].p_values()[(1,)], rtol=1e-8)
    assert_allclose(tests[0].joint_p_values(), tests[1].joint_p_values(), rtol=1e-8)


def test_scores_of_effects_beside_others_are_those_of_dense_matrices():
    n, rng = 40, np.random.default_rng(0)
    data, r, precision = rng.uniform(size=(n, 2)), rng.normal(size=(n, 2)), rng.uniform(size=(n, 2))
    basis = replace(tiny(), terms=[(0,), (1,)])
    theta = {name: t64(list(own.values())) for name, own in basis.start().items()}
    _, *features = basis.at(theta).features(basis.unit(t64(data)))[0]
    center, w = np.eye(n) - 1 / n, precision.mean()
    known, new = (center @ (part @ part.T).numpy() @ center for part in features)
    left = np.linalg.inv(np.eye(n) + w * known)
    beside = left @ new @ left.T
    whitened = beside @ np.linalg.inv(np.eye(n) + w * beside)
    rows = data, r, precision, np.ones(n)
    test = EffectTest(replace(basis, terms=[(0,)]), [(1,)], *map(t64, rows))
    found = test.p_values()[(1,)], *test.joint_p_values()
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    L = center @ r @ r.T @ center
    orders = [rng.permutation(n) for _ in range(4000)]
    for p_value, cov in zip(found[1:], (beside, whitened), strict=True):
        scores = [(cov * L[np.ix_(order, order)]).sum() for order in orders]
        # The standard error is .008, and the gamma distribution is an approximation.
        assert p_value == pytest.approx(np.mean(scores >= (cov * L).sum()), abs=0.03)
        values, vectors = np.linalg.eigh(cov)
        root = t64(vectors * np.sqrt(values.clip(0)))
        assert p_value == pytest.approx(test._p_value(root), rel=1e-6)


@forms
def test_rows_by_their_columns_and_divergence_are_those_of_dense_matrices(form):
    basis = tiny()
    posterior = posterior_of(basis, form)
    mean, var = posterior.row_marginals(RowColumns(basis(t64(X))))
    direct_mean, direct_var = posterior.marginals(t64(X))
    # Error of the interpolation by polynomials.
    assert_allclose(mean, direct_mean[:, 0], atol=1e-9)
    assert_allclose(var, direct_var[:, 0], atol=1e-9)
    cov, w = np.eye(11) - posterior.reduction.numpy(), posterior.weights.numpy()
    kl = 0.5 * (np.trace(cov) + w @ w - 11 - np.linalg.slogdet(cov)[1])
    assert_allclose(posterior.kl(), kl, rtol=1e-10)


def test_bounds_are_in_order():
    basis, exact = tiny(), tiny({j: t64(X[:, j]) for j in range(2)})
    forms = [("mean_field", None), ("precision", 3), ("full", None)]
    values = [collapsed(basis.at(THETA), sums_of(basis), THETA["noise"], *f) for f in forms]
    evidence = collapsed(exact.at(THETA), sums_of(exact), THETA["noise"])
    assert max(values[:2]) < values[2] < evidence


def test_the_specifications_run():
    """Compare y's moments, and bounds at the starting values, with section 9.4."""
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
    found = [collapsed(basis.at(theta), sums, t64(0.2).log(), *form) for form in forms]
    assert_allclose(found, [-1223.4355, -1223.4934, -1606.764], rtol=0, atol=0.01)


def test_slopes_of_the_prior_are_those_of_differences():
    ascent = SiteAscent(
        *(tiny(), rows_of(X, LABELS), None, FORMS["full"], 3.0, 0.0),
        sites=LikelihoodSites(Logistic(), 1),
        batch_size=None,
        generator=torch.Generator(),
    )
    # Variances of effects that are negligible, typical, and far too large.
    own = {"variance": t64([-12.0, 0.0, 8.0]), "length": t64([-1.0, 0.5, 2.0, 0.1])}
    sizes = ascent.basis.at(own).sizes
    assert sizes == {name: len(values) for name, values in own.items()}

    def density(name, values):
        moved = own | {name: values}
        return ascent._log_prior(moved, ascent.basis.at(moved))[0]

    _, slopes, _ = ascent._log_prior(own, ascent.basis.at(own))
    for name, values in own.items():
        (numeric,) = differences(partial(density, name), values, step=1e-5)
        assert_allclose(slopes[name], numeric, rtol=1e-6, atol=1e-9)


def test_rounding_of_large_sums_is_borne():
    factor = 1e8 * torch.randn(200, 20, generator=torch.Generator().manual_seed(0)).double()
    gram = factor @ factor.T
    assert torch.linalg.eigvalsh(gram)[0] < -1
    root = precision_root(gram)
    assert_allclose(root @ root.T, gram, atol=1e-11 * gram.max())


@pytest.mark.parametrize("sparse", [True, False])
def test_no_pass_ends_with_a_smaller_objective(sparse):
    # The first full steps of heavy-tailed noise overshoot by hundreds of nats.
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(150, 3))
    y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_t(2, 150)
    model = AdditiveGPRegressor(
        likelihood="laplace", sparse=sparse, interactions=None, min_gain=0, random_state=0
    )
    assert np.diff(model.fit(X, y).objective_curve_).min() >= 0
