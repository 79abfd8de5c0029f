"""Tables whose rows recur, since their features have few values: predictions are frequencies."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import rows_of
from scipy.special import expit, rel_entr
from sklearn.base import is_classifier
from sklearn.metrics import log_loss

import skgpsvm
from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor, SVGPRegressor

ESTIMATORS = [getattr(skgpsvm, name) for name in skgpsvm.__all__ if name[0].isupper()]
CLASSIFIERS = [kind for kind in ESTIMATORS if is_classifier(kind())]


def table(n_levels, n_features, n_classes, n=300):
    """Return rows of levels, the cell of each, and classes, most of which the cell determines."""
    rng = np.random.default_rng(0)
    X = rng.integers(n_levels, size=(n, n_features))
    cell = X @ n_levels ** np.arange(n_features)
    y = np.where(rng.random(n) < 0.8, cell % n_classes, rng.integers(n_classes, size=n))
    return X.astype(float), cell, y


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("sizes", [(2, 1, 2), (4, 1, 2), (4, 1, 3), (3, 2, 3)], ids=str)
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classes_of_cells_have_their_frequencies(kind, sizes):
    X, cell, y = table(*sizes)
    classes = np.eye(sizes[2])[y]
    found = kind(random_state=0).fit(X, y).predict_proba(X)
    frequencies = np.array([classes[cell == k].mean(0) for k in range(cell.max() + 1)])[cell]
    # Kullback-Leibler divergences, of which those from the frequencies of all rows are about .4.
    assert rel_entr(frequencies, found).sum(1).mean() < 0.03


@pytest.mark.parametrize("kind", [AdditiveGPRegressor, SVGPRegressor])
def test_counts_of_cells_have_their_means(kind):
    rng = np.random.default_rng(0)
    level = rng.integers(4, size=300)
    means = np.array([1.0, 8.0, 2.0, 6.0])
    model = kind(likelihood="poisson", random_state=0).fit(
        level[:, None], rng.poisson(means[level])
    )
    assert_allclose(model.predict(np.arange(4)[:, None]), means, rtol=0.2)


def test_an_additive_model_learns_codes_of_categories():
    rng = np.random.default_rng(2)
    code, logits = rng.integers(12, size=300), 2 * rng.normal(size=12)
    p = 1 / (1 + np.exp(-logits[code]))
    y = rng.random(300) < p
    divergence = []
    for categorical in (None, [0]):
        model = AdditiveGPClassifier(categorical_features=categorical, random_state=0)
        found = model.fit(code[:, None], y).predict_proba(code[:, None])
        divergence.append(rel_entr(np.column_stack([1 - p, p]), found).sum(1).mean())
    assert divergence[0] < 1.3 * divergence[1]


def test_observations_are_copies_together_and_recurring_rows_apart():
    rng, weights = np.random.default_rng(0), np.array([1.0, 3.0, 0.5, 2.0])
    recurring = rows_of(np.array([[0.0], [0.0], [1.0], [1.0]]), np.array([0, 1, 0, 1]), weights)
    assert_array_equal(recurring.observations, [1, 3, 1, 2])
    for found in (recurring.observed(), recurring.units()):
        assert_array_equal(found, [0, 1, 1, 1, 2, 3, 3])
    X = np.append(rng.normal(size=(30, 1)), [[0.0], [0.0]], 0)
    copies = rows_of(X, np.append(np.zeros(30, int), [0, 1]), np.full(32, 3.0))
    assert_array_equal(copies.observations, np.append(np.ones(30), [3, 3]))
    assert copies.n_observations == 36


def test_scaled_weights_are_of_as_many_observations():
    """A subset by class scales weights, which must not divide a row between two folds."""
    X, y = np.arange(40.0)[:, None] % 8, np.repeat([0, 1], [30, 10])
    X[30:] += 8
    rows = rows_of(X, y, np.ones(40))
    part = rows.subset(20, np.random.RandomState(0), by_class=True)
    assert_allclose(part.weights, np.repeat([3, 1], [10, 10]))
    assert_array_equal(part.units(), np.arange(20))
    assert_array_equal(part.left_out_weights, part.weights)
    for other in (rows_of(X[::5], y[::5], np.full(8, 3.0)), part):
        scaled = other.with_mean_weight_one()
        assert_allclose(scaled.weights.mean(), 1)
        assert_array_equal(scaled.observations, other.observations)
        assert_array_equal(scaled.units(), other.units())
    assert_array_equal(scaled.part([0, 19], 0.5).observations, [1, 1])


def test_shares_of_rows_have_their_observations():
    X, weights = np.array([[0.0], [0.0], [1.0]]), np.array([6.0, 1.0, 2.0])
    rows = rows_of(X, np.array([0, 1, 0]), weights)
    assert_array_equal(rows.part([0, 2], [0.5, 0.25]).observations, [3, 1])
    assert_array_equal(rows.part([0, 2], [0.5, 0.25]).left_out_weights, [1, 0.5])


@pytest.mark.parametrize("name", ["SVGP", "DecoupledGP", "EP", "AdditiveGP", "HybridSVGP"])
def test_copies_do_not_sharpen_what_is_learned(name):
    kind, found = getattr(skgpsvm, f"{name}Classifier"), []
    for seed in range(2):
        X = np.random.default_rng(seed).normal(size=(100, 8))
        p = expit(2 * X[:, :1])
        y = np.random.default_rng(seed + 9).random(100) < p[:, 0]
        for weight in (1.0, 6.0):
            model = kind(random_state=0).fit(X, y, sample_weight=np.full(100, weight))
            found.append(rel_entr(np.c_[1 - p, p], model.predict_proba(X)).sum(1).mean())
    assert np.mean(found[1::2]) < 0.05 + np.mean(found[::2])


@pytest.mark.parametrize("likelihood", ["student_t", "heteroscedastic"])
def test_copies_do_not_make_noise_vanish(likelihood):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 3))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=100)
    model = AdditiveGPRegressor(likelihood=likelihood, random_state=0)
    model.fit(X, y, sample_weight=np.full(100, 5.0))
    X_new = rng.normal(size=(500, 3))
    error = np.sin(2 * X_new[:, 0]) - model.predict(X_new)
    assert np.sqrt(np.mean(error**2)) < 0.2
    assert 0.2 < np.sqrt(np.mean(model.predict_noise_variance(X_new))) < 0.45


UNEQUAL = {
    "exponential": lambda rng, n: rng.exponential(size=n),
    "two values": lambda rng, n: rng.choice([0.1, 1.9], n),
    "bootstrap": lambda rng, n: np.bincount(rng.integers(0, n, n), minlength=n),
}


@pytest.mark.parametrize("name", ["SVGP", "EP", "DecoupledGP", "QSGP"])
@pytest.mark.parametrize("weights", UNEQUAL.values(), ids=UNEQUAL)
def test_classifiers_do_not_follow_heavy_rows(weights, name):
    kind, losses = getattr(skgpsvm, f"{name}Classifier"), []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(2200, 3))
        p = 1 / (1 + np.exp(-2 * np.sin(2 * X[:, 0]) - X[:, 1]))
        y = rng.random(2200) < p
        w = weights(np.random.default_rng(seed + 100), 200)
        model = kind(random_state=0).fit(X[:200], y[:200], sample_weight=w / w.mean())
        losses.append(log_loss(y[200:], model.predict_proba(X[200:])))
    # 0.557 to 0.607 if a row counts as its weight, and 0.655 to 0.669 for bootstrap samples, which
    # have 63 % of the rows.
    assert np.mean(losses) < (0.57 if weights is UNEQUAL["bootstrap"] else 0.55)
