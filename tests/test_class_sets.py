"""Sets of classes: the most probable ones, and conformal ones from left-out predictions."""

import warnings

import numpy as np
import pytest
from every_estimator import fitted
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import (
    AdditiveGPClassifier,
    BayesianSVC,
    DecoupledGPClassifier,
    EPClassifier,
    QSGPClassifier,
    QSRVMClassifier,
    SVGPClassifier,
)
from skgpsvm._predictive import LeftOut

GIVEN = {"optimizer": None, "mean": "zero", "inducing_points": "random", "random_state": 0}
SCENES = {
    "as modeled": lambda f, rng: f,
    "wrong labels": lambda f, rng: np.where(rng.uniform(size=len(f)) < 0.3, -f, f),
    "steps": lambda f, rng: np.sign(f) * (rng.uniform(size=len(f)) < 0.7),
    "no signal": lambda f, rng: np.zeros(len(f)),
}
QUICK = {"n_inducing": 20, "learn_inducing": False, "random_state": 0}
MODELS = [
    SVGPClassifier(**QUICK),
    EPClassifier(**QUICK),
    BayesianSVC(**QUICK, tol=1e-2),
    BayesianSVC(1.0 * RBF(1.0), multi_class="ovr", probability="argmax", optimizer=None, **QUICK),
    DecoupledGPClassifier(**QUICK),
    QSGPClassifier(n_basis=100, **QUICK),
    AdditiveGPClassifier(interactions=None, max_iter=5, random_state=0),
]
# Functions of the first kernel vary over a third of the right distance, of the second over more.
WRONG = [
    ("wrong labels", 10.0 * RBF(0.2)),
    ("no signal", 10.0 * RBF(0.2)),
    pytest.param("as modeled", 10.0 * RBF(0.2), marks=pytest.mark.slow),
    pytest.param("steps", 10.0 * RBF(0.2), marks=pytest.mark.slow),
    pytest.param("as modeled", RBF(5.0), marks=pytest.mark.slow),
]


def scene(kind, seed, n=40, n_new=50):
    """Return training rows and new rows of two classes."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n + n_new, 1))
    f = 4 * SCENES[kind](np.sin(3 * X[:, 0]), rng)
    y = rng.uniform(size=len(f)) < 1 / (1 + np.exp(-f))
    return X[:n], y[:n], X[n:], y[n:]


def three_classes(n, seed):
    """Return rows of three classes that overlap."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    centers = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    return centers[y] + rng.normal(size=(n, 2)), y


def covered(model, X, y, *args):
    members = model.predict_set(X, *args)
    return members[np.arange(len(X)), np.searchsorted(model.classes_, y)].mean()


def quietly_fitted(model, *data):
    with warnings.catch_warnings(action="ignore"):
        return clone(model).fit(*data)


@pytest.fixture(scope="module")
def model():
    return SVGPClassifier(RBF(1.0), **GIVEN).fit(*three_classes(60, 0))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_predictive_sets_are_the_fewest_classes_that_reach_the_level(model, level):
    X, _ = three_classes(100, 1)
    members, p = model.predict_set(X, level), model.predict_proba(X)
    assert members.dtype == bool
    for row, own in zip(members, p, strict=True):
        assert own[row].sum() >= level - 1e-12
        assert own[row].min() >= own[~row].max(initial=0)
        assert own[row].sum() - own[row].min() < level


@pytest.mark.parametrize("level", [0.1, 0.6, 0.9])
def test_conformal_sets_are_those_of_mapie_with_the_same_scores(model, level):
    mapie = pytest.importorskip("mapie.classification")
    calibration, (X, _) = three_classes(80, 2), three_classes(100, 3)
    peer = mapie.SplitConformalClassifier(
        model, confidence_level=level, conformity_score="lac", prefit=True
    ).conformalize(*calibration)
    labels, expected = peer.predict_set(X)
    ours = clone(model)
    vars(ours).update(vars(model))
    log_p, codes = model.predict_log_proba(calibration[0]), calibration[1]
    ours._left_out = LeftOut(-log_p[np.arange(80), codes, None], np.ones(80))
    expected = expected[:, :, 0]
    if level == 0.1:
        assert not expected.any(1).all()
    expected[np.arange(100), labels] = True  # no set of ours is empty
    assert_array_equal(ours.predict_set(X, level, "conformal"), expected)


@pytest.mark.parametrize(("kind", "kernel"), WRONG, ids=str)
def test_conformal_sets_hold_new_rows_even_if_the_model_is_wrong(kind, kernel):
    model, found = SVGPClassifier(kernel, n_inducing=20, **GIVEN), []
    for seed in range(20):
        X, y, *new = scene(kind, seed)
        found.append(covered(model.fit(X, y), *new, 0.9, "conformal"))
    # Four standard errors, with 40 training rows in each problem.
    assert np.mean(found) > 0.9 - 4 * 0.06 / np.sqrt(20)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model)[:40])
def test_conformal_sets_of_every_classifier_hold(model):
    model = quietly_fitted(model, *three_classes(200, 4))
    X, y = three_classes(3000, 5)
    found = covered(model, X, y, 0.9, "conformal")
    # Four standard errors, of 200 and 3000 rows. There are sets of one class, and of several.
    assert found == pytest.approx(0.9, abs=4 * 0.3 / np.sqrt(187))
    members = model.predict_set(X, 0.9, "conformal")
    assert members[np.arange(3000), np.searchsorted(model.classes_, model.predict(X))].all()
    assert {1, 2} <= set(members.sum(1))


@pytest.mark.parametrize("model", MODELS[:3], ids=lambda model: str(model)[:40])
def test_scores_are_the_left_out_log_losses(model):
    X, y = three_classes(60, 6)
    weights = np.resize([1, 2, 3], 60)
    model = clone(model).fit(X, y, sample_weight=weights)
    found = np.average(model._left_out.scores[:, 0], weights=model._left_out.weights)
    assert found == pytest.approx(model.loo_log_loss_, rel=1e-9)
    assert model._left_out.weights.sum() == 120
    if hasattr(model, "loo_proba_"):
        own = -np.log(model.loo_proba_[np.arange(60), y])
        assert_allclose(np.sort(own), np.sort(model._left_out.scores[:, 0]))


def test_every_row_of_a_stream_counts_up_to_a_number(monkeypatch):
    X, y = three_classes(60, 7)
    model = SVGPClassifier(RBF(1.0), n_inducing=10, **GIVEN)
    for part in (slice(0, 40), slice(40, 60)):
        model.partial_fit(X[part], y[part])
    assert len(model._left_out.scores) == 60
    monkeypatch.setattr("skgpsvm._estimators._classifier.MAX_LEFT_OUT", 30)
    model = EPClassifier(RBF(1.0), optimizer=None).fit(X, y)
    assert len(model._left_out.scores) == 30


@pytest.mark.parametrize(
    "model",
    [
        QSRVMClassifier(n_basis=10, optimizer=None, random_state=0),
        DecoupledGPClassifier(optimizer=None, random_state=0),
        DecoupledGPClassifier(solver="sgd", max_iter=2, random_state=0),
    ],
    ids=lambda model: str(model)[:40],
)
def test_models_without_left_out_predictions_refuse_conformal_sets(model):
    X, y = three_classes(60, 8)
    model = quietly_fitted(model, X, y)
    assert model.predict_set(X).any(1).all()
    with pytest.raises(ValueError, match=r"has no probabilities of rows .* method='predictive'"):
        model.predict_set(X, method="conformal")


def test_hybrid_models_refuse_conformal_sets():
    model = fitted("hybrid classifier")
    with pytest.raises(ValueError, match="This HybridSVGPClassifier has no probabilities of rows"):
        model.predict_set(np.zeros((2, 3)), method="conformal")


def test_a_new_fit_forgets_the_scores_of_the_last():
    X, y = three_classes(60, 9)
    model = DecoupledGPClassifier(random_state=0).fit(X, y)
    assert model.predict_set(X, method="conformal").any(1).all()
    model.set_params(optimizer=None).fit(X, y)
    assert model._left_out is None


def test_invalid_arguments_are_refused(model):
    X, _ = three_classes(5, 0)
    with pytest.raises(NotFittedError):
        SVGPClassifier().predict_set(X)
    with pytest.raises(ValueError, match=r"level=1\.5 must be between 0 and 1"):
        model.predict_set(X, 1.5)
    with pytest.raises(ValueError, match="method='mapie' is not one of"):
        model.predict_set(X, method="mapie")
    with pytest.raises(ValueError, match=r"level=0\.99 needs rows of weight 99"):
        model.predict_set(X, 0.99, "conformal")
