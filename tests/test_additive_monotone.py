"""Monotone and convex effects of additive models: projections, and fits that never violate them."""

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor
from skgpsvm._families import FAMILIES
from skgpsvm.additive._shapes import constrained_moments, projected
from skgpsvm.inspection import ComponentEffects, component_importances

CONSTRAINTS = [1, -1, 0, 1]


def steep(n, seed=0, noise=0.3):
    """Return rows of four features, the target, and its mean: three effects are monotone."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [rng.uniform(size=n), rng.lognormal(size=n), rng.uniform(size=n), rng.integers(0, 6, n)]
    )
    mean = np.tanh(6 * X[:, 0] - 3) - 0.5 * np.log(X[:, 1]) + np.sin(6 * X[:, 2]) + (X[:, 3] > 2)
    return X, mean + noise * rng.normal(size=n), mean


def predicted(model, rows):
    """Return predictions, those of classes as log odds."""
    if not isinstance(model, AdditiveGPClassifier):
        return model.predict(rows)
    return np.diff(model.predict_log_proba(rows), axis=1)[:, 0]


def largest_violation(model, X, constraints, seed=0, predicted=predicted, n_pairs=10_000):
    """Return the most that a prediction moves against a constraint, over random pairs of rows."""

    rng = np.random.default_rng(seed)
    low, high = X.min(0) - 1, X.max(0) + 1
    worst = 0.0
    for j, sign in enumerate(constraints):
        if sign:
            rows = rng.uniform(low, high, size=(n_pairs, X.shape[1]))
            other = rows.copy()
            other[:, j] = rng.uniform(low[j], high[j], size=n_pairs)
            moved = sign * (predicted(model, other) - predicted(model, rows))
            worst = max(worst, -np.min(moved * np.sign(other[:, j] - rows[:, j])))
    return worst


# Projections


def test_projections_are_the_closest_vectors_that_satisfy_the_constraints():
    rng = np.random.default_rng(0)
    normals, offsets = rng.normal(size=(6, 4)), rng.uniform(0, 1, size=6)
    for x in 2 * rng.normal(size=(10, 4)):
        found = projected(normals, offsets, x)
        bounds = {"type": "ineq", "fun": lambda v: normals @ v + offsets}
        start = np.zeros(4)  # satisfies them
        best = minimize(lambda v, x=x: np.sum((v - x) ** 2), start, constraints=bounds, tol=1e-12)
        assert_allclose(found, best.x, atol=1e-4)
        assert (normals @ found + offsets > -1e-10).all()


def test_constraints_that_hold_anyway_change_nothing():
    mean, cov = np.array([0.0, 30.0]), np.diag([1.0, 4.0])
    found = constrained_moments(mean, cov, np.array([[-1.0, 1.0]]))
    assert_allclose(found[0], mean)
    assert_allclose(found[1], cov, atol=1)


@pytest.mark.parametrize("violation", [0.1, 3])
def test_means_of_draws_are_monotone(violation):
    points = np.arange(30)
    cov = 0.1 * np.exp(-0.5 * ((points[:, None] - points) / 6) ** 2) + 1e-6 * np.eye(30)
    mean, new = constrained_moments(-violation * points / 30, cov, np.diff(np.eye(30), axis=0))
    assert (np.diff(mean) >= -1e-10).all()
    assert np.diag(new).sum() < np.diag(cov).sum()


def test_projections_are_not_farther_from_what_is_monotone():
    rng = np.random.default_rng(0)
    points = np.linspace(0, 1, 20)
    cov = 0.1 * np.exp(-0.5 * ((points[:, None] - points) / 0.2) ** 2) + 1e-6 * np.eye(20)
    for truth in (0 * points, points, np.maximum(points, 0.5)):
        mean = rng.multivariate_normal(truth, cov)
        found, _ = constrained_moments(mean, cov, np.diff(np.eye(20), axis=0))
        far, near = (np.linalg.solve(cov, part - truth) @ (part - truth) for part in (mean, found))
        assert near <= far * (1 + 1e-8)


# Fits


@pytest.mark.parametrize("n", [150, 1800])
@pytest.mark.parametrize("seed", [0, 1])
def test_fits_never_violate_their_constraints(n, seed):
    X, y, mean = steep(n, seed, noise=1.0)
    X[::15, 2] = np.nan
    model = AdditiveGPRegressor(monotonic_cst=CONSTRAINTS, min_gain=0).fit(X, y)
    assert largest_violation(model, np.nan_to_num(X, nan=0.5), CONSTRAINTS) <= 1e-10
    effects, std = model.explain(X, return_std=True)
    assert_allclose(model.intercept_ + effects.sum(1), model.predict(X), rtol=1e-8)
    assert (std > 0).all()
    free = AdditiveGPRegressor(interactions=None, sparse=True).fit(X, y)
    errors = [np.sqrt(np.mean((own.predict(X) - mean) ** 2)) for own in (model, free)]
    assert errors[0] < 1.03 * errors[1]


@pytest.mark.parametrize("likelihood", ["softmax", "probit"])
def test_probabilities_never_violate_constraints(likelihood):
    X, _, mean = steep(400)
    p = 1 / (1 + np.exp(-2 * mean))
    y = np.random.default_rng(1).random(400) < p
    X[::15, 2] = np.nan
    options = {"likelihood": likelihood, "interactions": None}
    model = AdditiveGPClassifier(monotonic_cst=CONSTRAINTS, min_gain=0, **options).fit(X, y)
    assert largest_violation(model, np.nan_to_num(X, nan=0.5), CONSTRAINTS) <= 1e-10
    found = model.predict_proba(X)
    assert ((found >= 0) & (found <= 1)).all()
    effects, std = model.explain(X, return_std=True)
    latent, _ = model.latent_mean_and_variance(X)
    assert_allclose(model.intercept_ + effects.sum(1), latent, rtol=1e-8)
    assert (std > 0).all()
    free = AdditiveGPClassifier(sparse=True, **options).fit(X, y)
    losses = [
        -np.mean(p * log_p[:, 1] + (1 - p) * log_p[:, 0])
        for log_p in (own.predict_log_proba(X) for own in (model, free))
    ]
    assert losses[0] < losses[1] + 0.002


@pytest.mark.parametrize("likelihood", ["poisson", "beta"])
def test_means_and_intervals_with_a_link_never_violate_constraints(likelihood):
    X, _, mean = steep(200)
    family, rng = FAMILIES[likelihood], np.random.default_rng(1)
    y = family.distribution(family.link.inverse(mean), 0.2).rvs(random_state=rng).astype(float)
    options = {"likelihood": likelihood, "interactions": None, "min_gain": 0}
    model = AdditiveGPRegressor(monotonic_cst=CONSTRAINTS, **options).fit(X, y)
    assert largest_violation(model, X, CONSTRAINTS) <= 1e-10
    for end in range(2):

        def quantile(model, rows, end=end):
            return model.predict_interval(rows)[end]

        assert largest_violation(model, X, CONSTRAINTS, 0, quantile, 500) <= 1e-8


def test_variances_of_probabilities_have_means_of_monotone_effects():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200, 2))
    X[:2] = 0, 1  # the range
    y = rng.random(200) < X[:, 0]
    options = {"scaling": "minmax", "n_inducing": 8, "interactions": None, "min_gain": 0}
    model = AdditiveGPClassifier(monotonic_cst={0: 1}, sparse=True, **options).fit(X, y)
    posterior = model._latents[0].posterior("cpu")
    rows = torch.from_numpy(X)
    points, _ = posterior.effects.knots(0, posterior.effects.factors[1][0])
    knots = torch.stack([points, 0 * points], 1)
    averaged = posterior.effect_marginals(knots)[1][:, 1].mean()
    without, _ = posterior._features(rows)
    without[1] = torch.zeros_like(without[1])
    without = torch.cat(without, 1)
    rest = ((without @ posterior._cov()) * without).sum(1)
    mean, var = posterior.predictive(rows)
    assert_allclose(mean, posterior.marginals(rows)[0], rtol=1e-12)
    assert_allclose(var[:, 0], averaged + rest, rtol=0.02)


@pytest.mark.parametrize("missing", [False, True])
def test_covariances_of_rows_are_positive_definite(missing):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.normal(size=150)
    X[:9, 1] = np.nan if missing else X[:9, 1]
    model = AdditiveGPRegressor(monotonic_cst={1: 1}, random_state=0).fit(X, y)
    cov = model.latent_covariance(X[:60])
    assert_allclose(np.diag(cov), model.latent_mean_and_variance(X[:60])[1], rtol=1e-9)
    assert np.linalg.eigvalsh(cov)[0] > -1e-9
    draws = model.sample_latent(X[:60], 20_000, random_state=0)[..., 0]
    # Variances are up to .1, so that standard errors are at most .001.
    assert_allclose(np.cov(draws.T), cov, atol=0.005)


@pytest.mark.parametrize("parameter", ["monotonic_cst", "convex_cst"])
def test_constraints_of_several_classes_are_refused(parameter):
    X, _, _ = steep(60)
    with pytest.raises(ValueError, match=f"{parameter} is for two classes, or ordered ones; got 3"):
        AdditiveGPClassifier(**{parameter: {0: 1}}).fit(X, np.arange(60) % 3)


def bent(n, seed=0, noise=1.0):
    """Return rows of three features, the target and its mean, of a convex and two concave effects.

    The second effect increases, and the third decreases and has few values, at unequal distances.
    """
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(size=n), rng.lognormal(size=n), rng.integers(0, 5, n) ** 2])
    mean = 8 * (X[:, 0] - 0.4) ** 2 + np.log(X[:, 1] + 0.1) - (X[:, 2] / 16) ** 3
    return X, mean + noise * rng.normal(size=n), mean


BENT = {"convex_cst": [1, -1, -1], "monotonic_cst": [0, 1, -1]}


def predictions_along(predict, X, j):
    """Return predictions at 1001 equally spaced numbers of a column between its ends."""
    rows = np.tile(X[:1], (1001, 1))
    rows[:, j] = np.linspace(X[:, j].min(), X[:, j].max(), 1001)
    return predict(rows)


@pytest.mark.parametrize("scaling", ["power", "minmax"])
@pytest.mark.parametrize(("n", "offset"), [(60, 0.0), (1800, 0.0), (200, 1e6)])
def test_convex_fits_never_violate_their_constraints(n, offset, scaling):
    X, y, _ = bent(n)
    X = X + offset
    X[1::15, 0] = np.nan
    model = AdditiveGPRegressor(**BENT, scaling=scaling, min_gain=0).fit(X, y)
    known = np.nan_to_num(X, nan=offset + 0.5)
    for j, (bend, sign) in enumerate(zip(*BENT.values(), strict=True)):
        along = predictions_along(model.predict, known, j)
        rounding = 1e-12 + 1e-13 * offset  # of the numbers, times slopes
        assert (bend * np.diff(along, 2) >= -rounding).all()
        assert (sign * np.diff(along) >= -rounding).all()
        assert np.ptp(along) > 0.1
    effects, std = model.explain(X, return_std=True)
    assert_allclose(model.intercept_ + effects.sum(1), model.predict(X), rtol=1e-8)
    assert (std > 0).all()


def test_errors_and_bands_where_the_truth_is_convex():
    options, errors, covered = {"interactions": None, "sparse": True, "min_gain": 0}, [], []
    for seed in range(6):
        X, y, _ = bent(100, seed)
        new, _, truth = bent(1000, 100 + seed)
        new[:, 1] = new[:, 1].clip(X[:, 1].min(), X[:, 1].max())
        models = [AdditiveGPRegressor(**options, **more).fit(X, y) for more in (BENT, {})]
        means, variances = zip(*(own.latent_mean_and_variance(new) for own in models), strict=True)
        misses = np.abs(np.array(means) - truth)
        errors.append(np.mean(misses**2, axis=1))
        covered.append(np.mean(misses < 1.96 * np.sqrt(variances), axis=1))
    constrained, free = np.mean(errors, axis=0)
    assert constrained < 0.95 * free
    constrained, free = np.mean(covered, axis=0)
    assert constrained > free - 0.05


def test_convexity_against_the_data_gives_lines():
    X, y, _ = bent(400, noise=0.2)
    model = AdditiveGPRegressor(convex_cst={0: -1}, interactions=None, min_gain=0).fit(X, y)
    along = predictions_along(model.predict, X, 0)
    assert_allclose(np.diff(along, 2), 0, atol=1e-4 * np.ptp(y))
    assert (np.diff(along, 2) <= 1e-12).all()


def test_latent_functions_of_classes_and_of_rates_are_convex():
    X, _, mean = bent(400)
    rng = np.random.default_rng(1)
    classes = AdditiveGPClassifier(**BENT).fit(X, rng.random(400) < 1 / (1 + np.exp(-mean)))
    along = predictions_along(lambda rows: classes.latent_mean_and_variance(rows)[0], X, 0)
    assert (np.diff(along, 2) >= -1e-12).all()
    rates = AdditiveGPRegressor(**BENT, likelihood="poisson").fit(X, rng.poisson(np.exp(mean)))
    along = predictions_along(rates.predict, X, 0)  # exponentials of convex functions are convex
    assert (np.diff(along, 2) >= -1e-10).all()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("far", ["a sentinel", "a cluster below", "a cluster above"])
def test_numbers_that_are_far_do_not_spoil_an_effect_with_a_constraint(far, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=400)
    is_far = np.arange(400) < 50
    sign = 1 if far == "a cluster above" else -1
    mean = np.where(is_far, np.where(sign > 0, 4.0, -1.0), 3 * x**2)
    spread = 0.0 if far == "a sentinel" else 1.0
    given = np.where(is_far, 999.0 * sign + spread * x, x)[:, None]
    y = mean + 0.2 * rng.normal(size=400)
    model = AdditiveGPRegressor(monotonic_cst=[1]).fit(given, y)
    errors = model.predict(given) - mean
    for rows in (is_far, ~is_far):
        assert np.sqrt(np.mean(errors[rows] ** 2)) < 0.15
    along = model.predict(
        np.sort(np.concatenate([given[:, 0], np.linspace(-1e3, 1e3, 99)]))[:, None]
    )
    assert np.diff(along).min() > -1e-12


def test_constraints_against_the_data_give_flat_effects():
    X, y, _ = steep(400)
    model = AdditiveGPRegressor(monotonic_cst=[-1, 0, 0, 0], min_gain=0).fit(X, y)
    effect = model.explain(X)[:, model.term_names_.index("x0")]
    assert np.ptp(effect) < 0.1 * np.ptp(y)
    assert largest_violation(model, X, [-1, 0, 0, 0]) <= 1e-10


def test_bands_cover_where_the_truth_is_monotone():
    covered = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.uniform(size=(200, 2))
        mean = np.maximum(2 * X[:, 0] - 1, 0) + X[:, 1] ** 2
        y = mean + 0.3 * rng.normal(size=200)
        model = AdditiveGPRegressor(monotonic_cst=[1, 1], interactions=None).fit(X, y)
        found, var = model.latent_mean_and_variance(X)
        covered.append(np.mean(np.abs(found - mean) < 1.96 * np.sqrt(var)))
    assert np.mean(covered) > 0.88


def test_many_constraints_have_draws_of_lower_rank():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(800, 10))
    y = X.sum(1) + rng.normal(size=800)
    model = AdditiveGPRegressor(monotonic_cst=[1] * 10, interactions=None, min_gain=0).fit(X, y)
    (latent,) = model._latents
    assert latent.arrays["weights"].size > 300
    shares = model.sobol_indices(n_samples=100)
    assert (shares.lower <= shares.upper).all()
    assert largest_violation(model, X, [1]) <= 1e-10


def test_constraints_by_name_of_linear_effects_and_in_streams():
    X, y, _ = steep(300)
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = AdditiveGPRegressor(
        terms=["a", ("b", "linear"), "c"], monotonic_cst={"a": 1, "b": 1}, random_state=0
    )
    model.partial_fit(frame[:150], y[:150]).partial_fit(frame[150:], y[150:])
    assert largest_violation(model, X, []) == 0
    grid = frame.iloc[[0] * 50].assign(b=np.linspace(0.1, 30, 50))
    steps = np.diff(model.predict(grid))
    assert (steps >= -1e-12).all()  # against the data, which decrease
    again = AdditiveGPRegressor(terms=["a", "c"], monotonic_cst={"a": 1}).fit(frame, y)
    same = AdditiveGPRegressor(terms=["a", "c"], monotonic_cst=[1, 0, 0, 0]).fit(frame, y)
    assert_array_equal(again.predict(frame), same.predict(frame))


def test_several_outputs_robust_noise_and_effects_elsewhere():
    X, y, _ = steep(300)
    both = AdditiveGPRegressor(monotonic_cst={0: 1}, interactions=None).fit(X, np.c_[y, 2 * y])
    grid = np.tile(X[:1], (60, 1))
    grid[:, 0] = np.linspace(-0.2, 1.2, 60)
    assert (np.diff(both.predict(grid), axis=0) >= -1e-10).all()
    options = {"likelihood": "student_t", "interactions": None}
    robust = AdditiveGPRegressor(monotonic_cst={0: 1}, **options).fit(X, y)
    assert (np.diff(robust.predict(grid)) >= -1e-10).all()
    assert robust.sample_y(grid, 3).shape == (60, 3)
    assert component_importances(robust, X[:50]).terms.lower.shape == (len(robust.terms_),)
    for part in ComponentEffects.from_estimator(robust).to_dict()["effects"]:
        if part["term"] == "x0":
            assert (np.diff(part["effect"]) >= -1e-10).all()


def test_noise_that_varies_is_not_constrained():
    X, _, mean = steep(300)
    noise = 0.1 * np.exp(2 * np.cos(6 * X[:, 0]))  # falls and rises
    y = mean + noise * np.random.default_rng(3).normal(size=300)
    options = {"likelihood": "heteroscedastic", "interactions": None, "random_state": 0}
    model = AdditiveGPRegressor(monotonic_cst=CONSTRAINTS, **options).fit(X, y)
    assert largest_violation(model, X, CONSTRAINTS) <= 1e-10
    free = AdditiveGPRegressor(sparse=True, **options).fit(X, y)
    found = np.log(model.predict_noise_variance(X))
    assert np.corrcoef(found, 2 * np.log(noise))[0, 1] > 0.9
    assert_allclose(found, np.log(free.predict_noise_variance(X)), atol=0.5)
    new, _, new_mean = steep(2000, seed=1)
    errors = [np.sqrt(np.mean((own.predict(new) - new_mean) ** 2)) for own in (model, free)]
    assert errors[0] < 1.03 * errors[1]
    model.set_params(monotonic_cst=None, convex_cst={0: 1}).fit(X, y)
    grid = np.tile(X[:1], (60, 1))
    grid[:, 0] = np.linspace(X[:, 0].min(), X[:, 0].max(), 60)
    assert (np.diff(model.predict(grid), 2) >= -1e-10).all()
    assert np.ptp(np.sign(np.diff(model.predict_noise_variance(grid)))) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monotonic_cst": [1, 0]}, "must be None, 4 integers"),
        ({"monotonic_cst": [2, 0, 0, 0]}, "must be None, 4 integers"),
        ({"monotonic_cst": [0.5, 0, 0, 0]}, "must be None, 4 integers"),
        ({"monotonic_cst": {"a": 1}}, "must be None, 4 integers"),
        ({"monotonic_cst": "up"}, "must be None, 4 integers"),
        ({"monotonic_cst": {3: 1}, "categorical_features": [3]}, "'x3', which is a category"),
        ({"monotonic_cst": {0: 1}, "terms": [(0, 1)]}, "terms has the pair 'x0 & x1'"),
        ({"monotonic_cst": {0: 1}, "terms": [(0, "cyclic")]}, "whose effect is cyclic"),
        ({"monotonic_cst": {0: 1}, "sparse": False}, "needs inducing points"),
        ({"convex_cst": [1, 0]}, "convex_cst=.* must be None, 4 integers"),
        ({"convex_cst": {3: 1}, "categorical_features": [3]}, "'x3', which is a category"),
        ({"convex_cst": {0: 1}, "terms": [(0, 1)]}, "terms has the pair 'x0 & x1'"),
        ({"convex_cst": {0: 1}, "terms": [(0, "cyclic")]}, "whose effect is cyclic"),
        ({"convex_cst": {0: 1}, "terms": [(0, "linear")]}, "whose effect is linear. Only smooth"),
        ({"convex_cst": {0: 1}, "sparse": False}, "convex_cst needs inducing points"),
    ],
)
def test_constraints_that_cannot_hold_are_refused(options, message):
    X, y, _ = steep(60)
    with pytest.raises(ValueError, match=message):
        AdditiveGPRegressor(**options).fit(X, np.abs(y).round())
