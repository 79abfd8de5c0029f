"""Scores against closed forms and quadrature; query functions; scikit-activeml's conventions."""

import functools
import itertools
import pickle
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
from problems import ring
from scipy.sparse import csr_array
from scipy.special import entr, expit, ndtr, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.cluster import kmeans_plusplus
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import cohen_kappa_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpsvm import BayesianSVC, SVGPClassifier
from skgpsvm.active_learning import (
    DiverseQueryStrategy,
    ScoreQueryStrategy,
    _queries,
    _scores,
    bald,
    bald_sampling,
    diverse_sampling,
    entropy_sampling,
    has_stabilized,
    least_confident,
    least_confident_sampling,
    margin,
    margin_sampling,
    mean_softmax_entropy,
    predictive_entropy,
    variation_ratio,
    variation_ratio_sampling,
)

PROBA_SCORES = [least_confident, predictive_entropy, margin]
DEFAULT = ScoreQueryStrategy().score
LATENT_SCORES = [variation_ratio, mean_softmax_entropy, bald]


class Given(ClassifierMixin, BaseEstimator):
    """Classifier whose class probabilities are the columns of X."""

    def predict_proba(self, X):
        return X.toarray() if isinstance(X, csr_array) else np.asarray(X, dtype=float)


class Latent(ClassifierMixin, BaseEstimator):
    """Classifier whose latent means and variances are the left and right halves of X's columns."""

    def __init__(self, C=1.0):
        self.C = C

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def latent_mean_and_variance(self, X):
        return tuple(np.split(np.asarray(X, dtype=float), 2, axis=1))

    def predict_proba_from_latent(self, F):
        if F.shape[-1] == 1:
            return np.concatenate([expit(-F), expit(F)], axis=-1)
        return softmax(F, axis=-1)

    def predict_proba(self, X):
        return self.predict_proba_from_latent(self.latent_mean_and_variance(X)[0])

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def random_proba(n, c=4):
    return np.random.RandomState(0).dirichlet(np.ones(c), size=n)


def random_latents(n, c=3):
    rng = np.random.RandomState(1)
    return np.column_stack([rng.normal(0, 2, (n, c)), rng.gamma(1.0, 2.0, (n, c))])


def mutual_information(mean, var, model, n_nodes):
    """Return that of one point's label and latents, by a product Gauss-Hermite rule."""
    x, w = np.polynomial.hermite.hermgauss(n_nodes)
    c = len(mean)
    nodes = np.stack(np.meshgrid(*[x] * c, indexing="ij"), -1).reshape(-1, c)
    weights = functools.reduce(np.multiply.outer, [w / w.sum()] * c).ravel()
    p = model.predict_proba_from_latent(mean + np.sqrt(2 * var) * nodes)
    return entr(weights @ p).sum() - weights @ entr(p).sum(axis=1)


# Scores


def test_closed_forms():
    X = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]])
    # Differences and logarithms of numbers of order one err by a few units in the last place.
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-15)
    close(least_confident(Given(), X), [0.5, 0, 2 / 3, 0.5])
    close(margin(Given(), X), [0.8, 0, 1, 1])
    entropy = -0.5 * np.log(0.5) - 0.3 * np.log(0.3) - 0.2 * np.log(0.2)
    close(predictive_entropy(Given(), X), [entropy, 0, np.log(3), np.log(2)])


@pytest.mark.parametrize("score", PROBA_SCORES)
def test_one_class_is_certain(score):
    np.testing.assert_array_equal(score(Given(), np.ones((3, 1))), 0)


def test_two_classes_are_ranked_alike():
    X = random_proba(200, c=2)
    orders = [np.argsort(score(Given(), X)) for score in PROBA_SCORES]
    np.testing.assert_array_equal(orders[0], orders[1])
    np.testing.assert_array_equal(orders[0], orders[2])


# Means, variances and variation ratios of the specification's problem T1.
T1 = [
    ([0.2279358913, 0.3419038369, -0.0569839728], [0.5618573233, 0.4157345312, 0.6722612107]),
    ([-0.0580981916, 0.0705762972, 0.0638131681], [0.9913292459, 0.9930868047, 1.0028578498]),
    ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
]


def test_variation_ratio_at_the_specification_s_values():
    scores = variation_ratio(Latent(), np.array([mean + var for mean, var in T1]))
    # The published numbers have ten digits.
    np.testing.assert_allclose(scores, [0.5844889335, 0.6480036216, 2 / 3], rtol=0, atol=2e-10)


def test_variation_ratio_of_one_latent_is_the_chance_of_the_other_sign():
    m, s = np.linspace(-30, 3, 34), np.linspace(0.5, 4, 34)
    scores = variation_ratio(Latent(), np.column_stack([m, s**2]))
    np.testing.assert_allclose(scores, ndtr(-np.abs(m) / s), rtol=1e-12)
    assert variation_ratio(Latent(), np.array([[0.0, 1.0]])) == 0.5
    np.testing.assert_array_equal(variation_ratio(Latent(), [[0.1, 0.0], [-0.1, 0.0]]), [0, 0])


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("multi_class", ["crammer_singer", "ovr"])
def test_variation_ratio_is_one_minus_the_frequency_of_the_winner(n_classes, multi_class):
    X, y = ring(60, n_classes)
    model = BayesianSVC(n_inducing=8, optimizer=None, multi_class=multi_class, random_state=0)
    scores = variation_ratio(model.fit(X, y), X)
    # The score does not depend on the calibration of probabilities.
    assert model.spread_ != 1
    np.testing.assert_array_equal(
        scores, variation_ratio(model.set_params(probability="argmax"), X)
    )
    winners = model.predict_proba_from_latent(model.sample_latent(X, 4000))
    frequencies = winners.mean(axis=0).max(axis=1)
    # Four standard errors of a frequency of 4000 draws.
    np.testing.assert_allclose(scores, 1 - frequencies, atol=4 * np.sqrt(0.25 / 4000))


def test_softmax_of_means_at_the_specification_s_values():
    scores = mean_softmax_entropy(Latent(), np.array([mean + var for mean, var in T1]))
    # The published numbers have ten digits.
    np.testing.assert_allclose(scores, [1.0854132594, 1.0969146303, np.log(3)], atol=1e-10)


def test_a_single_latent_counts_as_a_difference():
    m = np.linspace(-3, 3, 7)[:, None]
    one = mean_softmax_entropy(Latent(), np.column_stack([m, m**2]))
    two = mean_softmax_entropy(Latent(), np.column_stack([0 * m, m, m**2, m**2]))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("c", "n_nodes"), [(1, 200), (2, 60), (3, 40)])
def test_bald_is_mutual_information(c, n_nodes):
    X = random_latents(50, c)
    exact = [mutual_information(*np.split(row, 2), Latent(), n_nodes) for row in X]
    few, many = bald(Latent(), X), bald(Latent(), X, 2**13)
    # The scores reach 0.47 nats; the quadrature errs by less than 1e-4. Quasi-random sums over
    # 128 and 8192 draws err by up to 0.016 and 2.5e-4 (independent draws: by 0.02 and 0.003).
    np.testing.assert_allclose(few, exact, atol=0.03)
    np.testing.assert_allclose(many, exact, atol=5e-4)


def test_bald_is_what_observing_the_latents_would_tell():
    known, unknown, decided = [0.0, 0.0], [0.0, 4.0], [30.0, 4.0]
    scores = bald(Latent(), np.array([known, unknown, decided]))
    assert scores[0] == 0  # classes overlap, but there is nothing to learn
    assert scores[1] > 0.1
    # P(wrong) < 1e-10 even three standard deviations down, where its entropy is below 1e-8.
    assert 0 <= scores[2] < 1e-8


def test_bald_is_neither_negative_nor_above_the_predictive_entropy():
    X = random_latents(2000, 3) * np.repeat([1, 1e-6], 3)  # small variances: all rounding error
    assert (bald(Latent(), X) >= 0).all()
    X = random_latents(2000, 3)
    assert (bald(Latent(), X) <= np.log(3)).all()


@pytest.mark.parametrize("n_samples", [1, 3, 100])
def test_any_number_of_draws(n_samples):
    z = _scores._normal_draws(n_samples, 5, np.random.RandomState(0))
    assert z.shape == (n_samples, 5)
    assert np.isfinite(z).all()


def test_draws_are_standard_normal():
    z = _scores._normal_draws(2**12, 26, np.random.RandomState(0))
    # The draws are a lattice of spacing 1 / 4096. Moments err by its tails, z^2 / 4096 at z = 3.7.
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=2e-3)
    np.testing.assert_allclose(z.var(axis=0), 1, atol=1e-2)


def test_random_state_of_bald():
    X = random_latents(5)
    np.testing.assert_array_equal(bald(Latent(), X), bald(Latent(), X, random_state=0))
    assert (bald(Latent(), X) != bald(Latent(), X, random_state=1)).any()


# Pools of every kind and size


@pytest.mark.parametrize("score", PROBA_SCORES + LATENT_SCORES)
def test_batches_and_subsets_change_nothing(score, monkeypatch):
    model = Given() if score in PROBA_SCORES else Latent()
    X = random_proba(60) if score in PROBA_SCORES else random_latents(60)
    whole = score(model, X)
    assert whole.shape == (60,)
    # The same numbers are summed in another order.
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-14)
    close(score(model, X[17:29]), whole[17:29])
    monkeypatch.setattr(_scores, "ROWS", 7)
    monkeypatch.setattr(_scores, "CACHED_BLOCK", 1000)
    close(score(model, X), whole)


@pytest.mark.parametrize(
    "container",
    [np.ndarray.tolist, pd.DataFrame, pl.DataFrame, csr_array, lambda X: X.astype(np.float32)],
    ids=["list", "pandas", "polars", "sparse", "float32"],
)
@pytest.mark.parametrize("score", PROBA_SCORES)
def test_containers(score, container, monkeypatch):
    monkeypatch.setattr(_scores, "ROWS", 7)
    X = random_proba(20)
    # Probabilities rounded to float32 err by 6e-8, their logarithms' products by a little more.
    np.testing.assert_allclose(score(Given(), container(X)), score(Given(), X), atol=1e-6)


def test_memory_does_not_grow_with_the_draws():
    X = random_latents(20_000)
    tracemalloc.start()
    bald(Latent(), X, n_samples=256)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # All latents at once would be several arrays of 20000 x 256 x 3 numbers, 123 MB each.
    assert peak < 60e6


def test_an_empty_pool_gets_the_classifier_s_message():
    model = LogisticRegression().fit([[0], [1]], [0, 1])
    with pytest.raises(ValueError, match="0 sample"):
        least_confident(model, np.empty((0, 1)))


# Latents behind pipelines and searches


@pytest.mark.parametrize("score", LATENT_SCORES)
def test_latents_are_found(score):
    X, y = random_latents(30), np.arange(30) % 3
    direct = score(Latent().fit(X, y), X)
    scaler = StandardScaler().fit(X)
    pipeline = make_pipeline(StandardScaler(with_std=False), Latent()).fit(X - 1, y)
    scaled = score(Latent(), X - scaler.mean_ + np.repeat([0, 10], 3))
    search = GridSearchCV(Latent(), {"C": [1, 2]}, cv=2).fit(X, y)
    np.testing.assert_array_equal(score(search, X), direct)
    np.testing.assert_array_equal(score(make_pipeline(Latent()).fit(X, y), X), direct)
    shifted = make_pipeline(_Add(np.repeat([0, 10], 3)), pipeline[-1])
    np.testing.assert_array_equal(score(shifted, X - scaler.mean_), scaled)


class _Add(BaseEstimator):
    """Stateless transformer that adds a row."""

    def __init__(self, row):
        self.row = row

    def fit(self, X, y=None):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def transform(self, X):
        return X + self.row


@pytest.mark.parametrize("score", LATENT_SCORES)
def test_classifiers_without_latents_are_refused(score):
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit([[0], [1]], [0, 1])
    with pytest.raises(TypeError, match=r"latent_mean_and_variance.*got Pipeline.*margin"):
        score(model, np.zeros((2, 1)))


# Query functions


SAMPLINGS = {
    variation_ratio_sampling: variation_ratio,
    least_confident_sampling: least_confident,
    entropy_sampling: predictive_entropy,
    margin_sampling: margin,
    bald_sampling: bald,
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sampling_takes_the_highest(sampling):
    X = random_latents(40)
    scores = SAMPLINGS[sampling](Latent(), X)
    indices, highest = sampling(Latent(), X, n_instances=5)
    np.testing.assert_array_equal(indices, np.argsort(-scores)[:5])
    np.testing.assert_array_equal(highest, scores[indices])
    assert sampling(Latent(), X)[0].shape == (1,)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_samplings_pickle_and_know_their_names(sampling):
    assert pickle.loads(pickle.dumps(sampling)) is sampling
    assert SAMPLINGS[sampling].__name__ in sampling.__doc__


def test_loop_of_the_guide():
    X, y = load_iris(return_X_y=True)
    model = BayesianSVC(n_inducing=8, optimizer=None, random_state=0)
    labeled = list(kmeans_plusplus(X, 10, random_state=0)[1])
    predictions = []
    while len(labeled) < len(X) - 10 and not has_stabilized(predictions):
        model.fit(X[labeled], y[labeled])
        predictions.append(model.predict(X))
        pool = np.delete(np.arange(len(X)), labeled)
        chosen, _ = diverse_sampling(model, X[pool], n_instances=10, random_state=0)
        labeled.extend(pool[chosen])
    assert len(set(labeled)) == len(labeled) < 100
    assert model.score(X, y) > 0.95


def test_score_parameters_are_passed_on():
    X = random_latents(40)
    _, scores = bald_sampling(Latent(), X, 40, n_samples=7)
    np.testing.assert_array_equal(scores, np.sort(bald(Latent(), X, n_samples=7))[::-1])


def test_ties():
    X = np.array([[0.9, 0.1], [0.6, 0.4], [0.6, 0.4], [0.6, 0.4], [0.5, 0.5]])
    indices, _ = margin_sampling(Given(), X, 3)
    np.testing.assert_array_equal(indices, [4, 1, 2])
    draws = [
        margin_sampling(Given(), X, 2, random_tie_break=True, random_state=seed)[0]
        for seed in range(60)
    ]
    assert {first for first, _ in draws} == {4}
    # The probability that one of three is missing in 60 draws is 8e-11, and seeds are fixed.
    assert {second for _, second in draws} == {1, 2, 3}
    again, _ = margin_sampling(Given(), X, 2, random_tie_break=True, random_state=3)
    np.testing.assert_array_equal(again, draws[3])


@pytest.mark.parametrize("n_instances", [0, 6, 2.5, None, "3", True])
def test_more_or_less_than_the_pool_holds(n_instances):
    with pytest.raises(ValueError, match=f"Cannot choose {n_instances!r} of 5 points"):
        margin_sampling(Given(), random_proba(5), n_instances)


# Queries in scikit-activeml's form


@pytest.fixture
def iris():
    """Return points, labels most of which are missing, and the labeled rows."""
    X, labels = load_iris(return_X_y=True)
    y = np.full(len(X), np.nan)
    labeled = np.arange(0, 150, 10)
    y[labeled] = labels[labeled]
    return X, y, labeled


def fitted(X, y, labeled, sample_weight=None):
    return LogisticRegression(max_iter=1000).fit(X[labeled], y[labeled], sample_weight)


@pytest.mark.parametrize("score", PROBA_SCORES)
def test_query_fits_the_labeled_and_chooses_of_the_unlabeled(iris, score):
    X, y, labeled = iris
    clf = LogisticRegression(max_iter=1000)
    indices, utilities = ScoreQueryStrategy(score).query(
        X, y, clf, batch_size=3, return_utilities=True
    )
    expected = score(fitted(*iris), X)
    expected[labeled] = np.nan
    assert not hasattr(clf, "classes_")
    np.testing.assert_array_equal(indices, np.argsort(-expected)[:3])  # NaN sorts last
    assert utilities.shape == (3, 150)
    for row, chosen in zip(utilities, indices, strict=True):
        # The pool is scored in other batches: a matrix product rounds differently.
        np.testing.assert_allclose(row, expected, rtol=1e-12)
        expected[chosen] = np.nan


def test_query_with_a_fitted_classifier(iris):
    X, y, _ = iris
    clf = fitted(*iris)
    before = clf.coef_.copy()
    indices = ScoreQueryStrategy().query(X, y, clf, fit_clf=False, batch_size=4)
    np.testing.assert_array_equal(indices, ScoreQueryStrategy().query(X, y, clf, batch_size=4))
    np.testing.assert_array_equal(clf.coef_, before)


def test_query_weights_the_labeled(iris):
    X, y, labeled = iris
    weights = np.random.RandomState(0).randint(0, 3, len(X))
    clf = LogisticRegression(max_iter=1000)
    _, utilities = ScoreQueryStrategy().query(
        X, y, clf, sample_weight=weights, return_utilities=True
    )
    expected = DEFAULT(fitted(X, y, labeled, weights[labeled]), X)
    expected[labeled] = np.nan
    np.testing.assert_allclose(utilities[0], expected, rtol=1e-12)


def test_labels_of_every_kind(iris):
    X, y, _ = iris
    clf = LogisticRegression(max_iter=1000)
    expected = ScoreQueryStrategy().query(X, y, clf, batch_size=5)
    names = [None if np.isnan(label) else "abc"[int(label)] for label in y]
    with_nan = [np.nan if name is None else name for name in names]
    integers = [None if np.isnan(label) else int(label) for label in y]
    for labels in [names, with_nan, integers, pd.Series(names), pd.Series(y), pl.Series(integers)]:
        for table in [X, pd.DataFrame(X), pl.DataFrame(X)]:
            np.testing.assert_array_equal(
                ScoreQueryStrategy().query(table, labels, clf, batch_size=5), expected
            )


def test_candidates_as_indices(iris):
    X, y, _ = iris
    some = np.array([55, 77, 3, 120])
    indices, utilities = ScoreQueryStrategy().query(
        X, y, LogisticRegression(max_iter=1000), candidates=some, return_utilities=True
    )
    expected = np.full(150, np.nan)
    expected[some] = DEFAULT(fitted(*iris), X[some])
    np.testing.assert_allclose(utilities, expected[None], rtol=1e-12)
    np.testing.assert_array_equal(indices, [np.nanargmax(expected)])


def test_candidates_as_a_mask(iris):
    X, y, _ = iris
    some, clf = np.array([55, 60, 72]), fitted(*iris)

    def chosen(candidates):
        query = ScoreQueryStrategy(margin).query
        return query(X, y, clf, fit_clf=False, candidates=candidates, batch_size=3)

    np.testing.assert_array_equal(chosen(np.isin(np.arange(150), some)), chosen(some))


@pytest.mark.parametrize("candidates", [[-1], [150], [1.5], [True, False]])
def test_candidates_that_are_no_rows_are_refused(iris, candidates):
    X, y, _ = iris
    with pytest.raises(ValueError, match="must be row numbers from 0 to 149, 150 bools"):
        ScoreQueryStrategy().query(X, y, fitted(*iris), fit_clf=False, candidates=candidates)


@pytest.mark.parametrize("container", [np.asarray, pd.DataFrame, np.ndarray.tolist])
def test_candidates_as_points(iris, container):
    X, y, _ = iris
    points = X[50:60] + 0.1
    indices, utilities = ScoreQueryStrategy(margin).query(
        X, y, fitted(*iris), fit_clf=False, candidates=container(points), return_utilities=True
    )
    expected = margin(fitted(*iris), points)
    np.testing.assert_allclose(utilities, expected[None], rtol=1e-12)
    np.testing.assert_array_equal(indices, [expected.argmax()])


def test_query_breaks_ties_by_random_state():
    X, y = np.tile([0.5, 0.5], (6, 1)), np.full(6, np.nan)
    query = functools.partial(ScoreQueryStrategy.query, X=X, y=y, clf=Given(), fit_clf=False)
    chosen = [query(ScoreQueryStrategy(random_state=seed))[0] for seed in range(60)]
    assert set(chosen) == set(range(6))
    strategy = ScoreQueryStrategy(random_state=3)
    np.testing.assert_array_equal(query(strategy, batch_size=6), query(strategy, batch_size=6))


def test_query_reads_a_memmap_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(_queries, "ROWS", 100)
    X = np.memmap(tmp_path / "pool", np.float64, "w+", shape=(1000, 4))
    X[:] = random_proba(1000)
    seen = []

    def score(clf, rows):
        seen.append(len(rows))
        return least_confident(clf, rows)

    indices = ScoreQueryStrategy(score).query(X, np.full(1000, np.nan), Given(), fit_clf=False)
    np.testing.assert_array_equal(indices, [least_confident(Given(), X).argmax()])
    assert seen == [100] * 10


def test_more_than_there_are_candidates(iris):
    X, y, _ = iris
    with pytest.warns(UserWarning, match="batch_size=9 is reduced to the 2 candidates"):
        indices = ScoreQueryStrategy().query(
            X, y, fitted(*iris), fit_clf=False, candidates=[70, 80], batch_size=9
        )
    assert set(indices) == {70, 80}


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "3", None, True])
def test_numbers_of_draws_and_of_choices_are_positive_integers(iris, wrong):
    X, y, _ = iris
    with pytest.raises(ValueError, match=f"n_samples={wrong!r} must be an integer of at least 1"):
        bald(Latent(), X, n_samples=wrong)
    with pytest.raises(ValueError, match=f"batch_size={wrong!r} must be an integer of at least 1"):
        ScoreQueryStrategy().query(X, y, Given(), batch_size=wrong)


def test_nothing_to_choose_or_to_fit(iris):
    X, _, _ = iris
    with pytest.raises(ValueError, match="no candidate to choose"):
        ScoreQueryStrategy().query(X, np.zeros(150), Given(), fit_clf=False)
    with pytest.raises(ValueError, match="All labels in y are missing"):
        ScoreQueryStrategy().query(X, np.full(150, np.nan), LogisticRegression())
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ScoreQueryStrategy().query(X, np.full(3, np.nan), LogisticRegression())


def test_strategy_is_an_estimator():
    score = functools.partial(bald, n_samples=16)
    strategy = clone(ScoreQueryStrategy(score, random_state=1))
    assert strategy.get_params()["random_state"] == 1
    X = random_latents(20)
    indices = strategy.query(X, np.full(20, np.nan), Latent(), fit_clf=False)
    np.testing.assert_array_equal(indices, [bald(Latent(), X, n_samples=16).argmax()])


# Batches of different points


class Field(ClassifierMixin, BaseEstimator):
    """Classifier of two latent functions, each linear in one half of the features."""

    def latent_covariance(self, X):
        halves = np.split(np.asarray(X), 2, axis=1)
        return np.stack([half @ half.T for half in halves], 2)

    def predict_proba(self, X):
        p = expit(np.asarray(X)[:, 0])
        return np.stack([p, 1 - p], 1)


def shares_left(cov, known):
    """Return the shares of the variances left at points, averaged over the latent functions."""
    shares = []
    for own in np.moveaxis(cov, 2, 0):
        told = own[:, known] @ np.linalg.pinv(own[np.ix_(known, known)]) @ own[known]
        shares.append(1 - np.diagonal(told) / np.diagonal(own))
    return np.mean(shares, axis=0)


def test_a_diverse_sample_has_the_probabilities_of_its_definition():
    X = np.random.default_rng(0).normal(size=(4, 6))
    scores, n_draws = np.array([0.5, 0.4, 0.3, 0.2]), 4000
    drawn = np.zeros((4, 4, 4))
    for seed in range(n_draws):
        sample, _ = diverse_sampling(Field(), X, 3, lambda *_: scores, random_state=seed)
        drawn[tuple(sample)] += 1 / n_draws

    expected, cov = np.zeros((4, 4, 4)), Field().latent_covariance(X)
    for places in itertools.permutations(range(4), 3):
        p = 1.0
        for k, point in enumerate(places):
            weights = scores**2 * shares_left(cov, list(places[:k]))
            p *= weights[point] / weights.sum()
        expected[places] = p
    assert abs(expected.sum() - 1) < 1e-6
    # Five standard errors of a frequency.
    np.testing.assert_allclose(drawn, expected, atol=5 * np.sqrt(expected.max() / n_draws))


def test_copies_are_chosen_when_nothing_else_is_left():
    X = np.repeat(np.eye(3, 6) + np.eye(3, 6, 3), 40, 0)
    for seed in range(5):
        chosen, scores = diverse_sampling(Field(), X, 5, random_state=seed)
        assert len(set(chosen)) == 5
        assert set(chosen[:3] // 40) == {0, 1, 2}
        np.testing.assert_array_equal(scores[3:], least_confident(Field(), X).max())


def test_a_diverse_sample_may_be_the_whole_pool():
    X = np.random.default_rng(0).normal(size=(150, 6))
    chosen, scores = diverse_sampling(Field(), X, 150, random_state=0)
    np.testing.assert_array_equal(np.sort(chosen), np.arange(150))
    np.testing.assert_array_equal(scores, least_confident(Field(), X)[chosen])
    same, _ = diverse_sampling(Field(), X, 150, random_state=0)
    np.testing.assert_array_equal(same, chosen)


def test_points_without_a_score_or_a_variance_come_last():
    X = np.random.default_rng(0).normal(size=(6, 6))
    X[4:] = 0
    chosen, _ = diverse_sampling(Field(), X, 5, lambda *_: np.array([1, 1, 0, 0, 2, 0.5]), 0)
    assert set(chosen[:2]) == {0, 1}
    np.testing.assert_array_equal(chosen[2:4], [4, 5])
    chosen, _ = diverse_sampling(Field(), X, 4, lambda *_: np.zeros(6), 0)
    assert set(chosen) == {0, 1, 2, 3}


@pytest.mark.parametrize("score", [[-1.0, 1.0], [np.nan, 1.0]])
def test_a_diverse_sample_needs_scores_that_are_weights(score):
    with pytest.raises(ValueError, match="scores of at least 0"):
        diverse_sampling(Field(), np.eye(2), 1, lambda *_: np.array(score))


def test_a_diverse_sample_needs_the_covariance_of_the_latents(iris):
    X, _, _ = iris
    with pytest.raises(TypeError, match=r"latent_covariance.*got LogisticRegression"):
        diverse_sampling(fitted(*iris), X, 2)


def test_a_diverse_query_chooses_of_the_unlabeled(iris):
    X, y, labeled = iris
    pool = np.delete(np.arange(len(X)), labeled)
    model = make_pipeline(StandardScaler(), BayesianSVC(optimizer=None))
    strategy = DiverseQueryStrategy(random_state=0)
    chosen, utilities = strategy.query(X, y, model, batch_size=4, return_utilities=True)
    assert set(chosen) <= set(pool)
    model.fit(X[labeled], y[labeled])
    expected, scores = diverse_sampling(model, X[pool], 4, random_state=0)
    np.testing.assert_array_equal(chosen, pool[expected])
    np.testing.assert_array_equal(utilities[0, chosen], scores)
    assert np.isnan(utilities[3, chosen[:3]]).all()
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(4)])
    np.testing.assert_array_equal(strategy.query(frame, y, model, batch_size=4), chosen)


def test_a_diverse_sample_tells_more_about_the_pool_than_the_highest_scores():
    X, y = ring(30, 3)
    kernel = 5.0 * RBF(1.0)
    model = BayesianSVC(kernel, optimizer=None, tol=0.1, random_state=0).fit(X[:12], y[:12])
    X = np.repeat(X, 8, 0) + 0.01 * np.random.default_rng(0).normal(size=(240, 2))
    cov = model.latent_covariance(X)

    def left(chosen):
        return shares_left(cov, chosen).mean()

    highest = left(least_confident_sampling(model, X, 8)[0])
    diverse = [left(diverse_sampling(model, X, 8, random_state=seed)[0]) for seed in range(5)]
    assert max(diverse) < 0.75 * highest


# When to stop


def test_a_loop_has_stabilized_once_the_mean_agreement_is_high():
    rng = np.random.default_rng(0)
    first = rng.choice(["a", "b", "c"], 200)
    changed = np.where(np.arange(200) < 40, "a", first)
    kappa = cohen_kappa_score(first, changed)
    assert 0.7 < kappa < 0.9
    rounds = [changed, first, first]
    assert has_stabilized(rounds, (kappa + 1) / 2 - 1e-9, n_rounds=2)
    assert not has_stabilized(rounds, (kappa + 1) / 2 + 1e-9, n_rounds=2)
    assert has_stabilized(rounds, n_rounds=1)
    assert not has_stabilized([first] * 3)
    assert has_stabilized([changed, *[first] * 4])


def test_probabilities_are_no_labels():
    proba = np.full((9, 2), 0.5)
    with pytest.raises(ValueError, match=r"shape \(9, 2\).*not of predict_proba"):
        has_stabilized([proba] * 4)


def test_a_single_predicted_label_is_no_agreement():
    rng = np.random.default_rng(0)
    one_class, found = [np.full(200, "a")] * 4, [rng.choice(["a", "b"], 200)] * 4
    assert not has_stabilized(one_class)  # the other class may have to be found yet
    assert not has_stabilized([*one_class, *found[:3]])
    assert has_stabilized([*one_class, *found])
    assert not has_stabilized([np.zeros(9), np.ones(9), np.zeros(9), np.ones(9)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0, 1]] * 3, 0.99, 0), "n_rounds"),
        (([[0, 1]] * 3, np.nan), "threshold"),
        (([[0, 1]] * 3, 2), "threshold=2 must be at most 1"),
        (([[0, 1]] * 3 + [[0, 1, 1]],), "inconsistent numbers of samples"),
    ],
)
def test_predictions_that_cannot_be_compared(arguments, message):
    with pytest.raises(ValueError, match=message):
        has_stabilized(*arguments)


@pytest.mark.parametrize("score", [variation_ratio, mean_softmax_entropy])
def test_scores_of_the_latents_of_classes_refuse_ordered_ones(score):
    X = np.linspace(-2, 2, 30)[:, None]
    model = SVGPClassifier(1.0 * RBF(), likelihood="ordinal", optimizer=None)
    model.fit(X, np.digitize(X[:, 0], [-1, 1]))
    with pytest.raises(TypeError, match=r"ordered classes share one\. Use least_confident"):
        score(model, X)
    assert bald(model, X).shape == (30,)
