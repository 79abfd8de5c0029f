"""Attacks raise the loss within their bounds; detection curves; another library's attacks."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import Images, images
from scipy.optimize import approx_fprime
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from torch import nn

from skgpsvm import BayesianSVC, HybridBayesianSVC, HybridSVGPClassifier
from skgpsvm.active_learning import least_confident, predictive_entropy
from skgpsvm.adversarial import detection_roc, fast_gradient_sign, projected_gradient

PIXELS = (0.0, 1.0)


def losses(model, X, y):
    """Return the cross-entropy of a softmax of the predictive means, by row."""
    mean = model.latent_mean_and_variance(X)[0]
    mean = np.c_[np.zeros(len(X)), mean] if mean.ndim == 1 else mean
    codes = np.searchsorted(model.classes_, y)
    return -log_softmax(mean, axis=1)[np.arange(len(X)), codes]


@pytest.fixture(scope="module")
def digits():
    """Return a fitted network, and test images (n, 1, 8, 8) with their digits."""
    X, y = images()
    model = HybridBayesianSVC(Images, max_iter=25, random_state=0).fit(X[:1000], y[:1000])
    return model, X[1000:1300], y[1000:1300]


@pytest.fixture(scope="module")
def table():
    """Return a fitted network of two classes in double precision, and its rows."""
    rng = np.random.default_rng(0)
    y = np.array(["no", "yes"])[np.arange(60) % 2]
    X = rng.normal(size=(60, 3)) + (y == "yes")[:, None]
    params = {"hidden_layer_sizes": (8,), "n_outputs": 4}
    model = HybridBayesianSVC(module_params=params, max_iter=5, n_inducing=8, random_state=0)
    return model.fit(X, y), X, y


def test_fast_gradient_sign_is_a_step_along_the_gradient_of_the_means_cross_entropy(table):
    model, X, y = table
    moved = fast_gradient_sign(model, X[:5], y[:5], 0.01)
    for row, after, label in zip(X, moved, y, strict=False):
        gradient = approx_fprime(row, lambda x, label=label: losses(model, x[None], [label])[0])
        assert_allclose(after - row, 0.01 * np.sign(gradient), atol=1e-12)


@pytest.mark.parametrize("attack", [fast_gradient_sign, projected_gradient])
def test_attacks_raise_the_loss_within_their_bounds(attack, digits):
    model, X, y = digits
    options = {"random_state": 0} if attack is projected_gradient else {}
    moved = attack(model, X, y, 0.1, clip=PIXELS, **options)
    assert moved.shape == X.shape
    assert moved.dtype == X.dtype
    assert np.abs(moved - X).max() <= 0.1 + 1e-6
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert (losses(model, moved, y) > losses(model, X, y)).mean() > 0.99
    assert model.score(moved, y) < model.score(X, y) - 0.2


def test_several_steps_are_stronger_than_one(digits):
    model, X, y = digits
    one = fast_gradient_sign(model, X, y, 0.1, clip=PIXELS)
    several = projected_gradient(model, X, y, 0.1, clip=PIXELS, n_steps=20, random_state=0)
    assert losses(model, several, y).mean() > 1.05 * losses(model, one, y).mean()
    again = projected_gradient(model, X, y, 0.1, clip=PIXELS, n_steps=20, random_state=0)
    assert_array_equal(several, again)


def test_attack_without_strength_moves_nothing(digits):
    model, X, y = digits
    assert_array_equal(fast_gradient_sign(model, X, y, 0), X)
    assert_array_equal(projected_gradient(model, X, y, 0), X)


@pytest.mark.parametrize("form", [lambda X: X[..., ::-1][..., ::-1], lambda X: X.astype(">f4")])
def test_flipped_and_foreign_arrays_are_attacked(form, digits):
    model, X, y = digits
    expected = fast_gradient_sign(model, X[:5], y[:5], 0.1)
    assert_array_equal(fast_gradient_sign(model, form(X[:5]), y[:5], 0.1), expected)


def test_tables_are_attacked_by_the_names_of_their_columns():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    y = (frame["a"] > 0).to_numpy().astype(int)
    params = {"hidden_layer_sizes": (8,), "n_outputs": 4}
    model = HybridBayesianSVC(module_params=params, max_iter=5, n_inducing=8, random_state=0)
    model.fit(frame, y)
    with warnings.catch_warnings(action="error"):
        moved = fast_gradient_sign(model, frame, y, 0.1)
    assert moved.shape == (60, 3)
    with pytest.raises(ValueError, match="feature names"):
        fast_gradient_sign(model, frame[["b", "a", "c"]], y, 0.1)


def test_bytes_are_attacked_as_floats(digits):
    model, X, y = digits
    pixels = np.round(16 * X[:10]).astype(np.uint8)
    moved = fast_gradient_sign(model, pixels, y[:10], 0.5)
    assert moved.dtype == np.float32
    assert set(np.abs(moved - pixels).ravel()) <= {0.0, 0.5}


def test_other_heads_are_attacked_too(digits):
    _, X, y = digits
    model = HybridSVGPClassifier(Images, max_iter=20, random_state=0).fit(X, y)
    moved = fast_gradient_sign(model, X, y, 0.1, clip=PIXELS)
    assert model.score(moved, y) < model.score(X, y) - 0.2


def test_uncertainty_detects_attacks(digits):
    model, X, y = digits
    moved = fast_gradient_sign(model, X, y, 0.2, clip=PIXELS)
    found = detection_roc(model, X, moved)
    assert_array_equal(found.clean, least_confident(model, X))
    assert_array_equal(found.attacked, least_confident(model, moved))
    # The area is the share of pairs in which the attacked row scores higher; ties count half.
    pairs = found.attacked[:, None] - found.clean
    assert found.auc == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
    assert found.auc > 0.8
    assert np.trapezoid(found.tpr, found.fpr) == pytest.approx(found.auc)
    by_entropy = detection_roc(model, X, moved, predictive_entropy)
    assert_array_equal(by_entropy.clean, predictive_entropy(model, X))


def test_foreign_attack_runs_on_the_network(digits):
    art = pytest.importorskip("art.attacks.evasion", reason="needs ART")
    from art.estimators.classification import PyTorchClassifier

    model, X, y = digits
    classifier = PyTorchClassifier(
        model.to_torch(), nn.CrossEntropyLoss(), (1, 8, 8), 10, clip_values=PIXELS
    )
    assert_allclose(
        torch.tensor(classifier.predict(X)).softmax(1), model.predict_proba(X), atol=1e-5
    )
    theirs = art.FastGradientMethod(classifier, eps=0.1).generate(X, y)
    ours = fast_gradient_sign(model, X, y, 0.1, clip=PIXELS)
    # Their attack uses the cross-entropy of calibrated probabilities, ours that of the means.
    assert model.score(theirs, y) < model.score(X, y) - 0.2
    assert (np.sign(theirs - X) == np.sign(ours - X)).mean() > 0.7


@pytest.mark.parametrize("attack", [fast_gradient_sign, projected_gradient])
def test_bad_attacks_are_told(attack, table):
    model, X, y = table
    with pytest.raises(ValueError, match=r"labels \['maybe'\] that are not among"):
        attack(model, X[:1], ["maybe"], 0.1)
    with pytest.raises(ValueError, match="strength=-1 must be"):
        attack(model, X, y, -1)
    with pytest.raises(ValueError, match=r"clip=\(1, 0\) must be"):
        attack(model, X, y, 0.1, clip=(1, 0))
    for other in (LogisticRegression().fit(X, y), BayesianSVC(n_inducing=5).fit(X, y)):
        with pytest.raises(TypeError, match="needs the gradient of a fitted hybrid classifier"):
            attack(other, X, y, 0.1)
    with pytest.raises(ValueError, match=r"X lies between .* beyond clip=\(0, 1\)"):
        attack(model, X, y, 0.1, clip=(0, 1))
    with pytest.raises(ValueError, match="X has 2 features"):
        attack(model, X[:, :2], y, 0.1)
    with pytest.raises(ValueError, match="step=-1 must be"):
        projected_gradient(model, X, y, 0.1, step=-1)
    with pytest.raises(ValueError, match="n_steps=0"):
        projected_gradient(model, X, y, 0.1, n_steps=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_steps": 2.5}, "n_steps=2.5 must be an integer of at least 1"),
        ({"step": "0.1"}, "step='0.1' must be a number of at least 0"),
        ({"strength": None}, "strength=None must be a number of at least 0"),
        ({"strength": np.inf}, "strength=inf must be a finite number of at least 0"),
    ],
)
def test_what_is_no_size_of_an_attack_is_told(table, wrong, message):
    with pytest.raises(ValueError, match=message):
        projected_gradient(*table, **{"strength": 0.1, **wrong})
