"""Kernels of sparse X, learned on few rows in coordinates of the space that they span."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss

from skgpsvm import EPClassifier, SVGPClassifier, _sparse
from skgpsvm._estimators import _inputs
from skgpsvm._hyperparameters import row_span
from skgpsvm.expectation_propagation import _classifier as ep

BOTH = pytest.mark.parametrize("classifier", [EPClassifier, SVGPClassifier])


def texts(n, n_words, n_classes, seed=0, strength=0.9):
    """Return tf-idf of texts of 40 words, a CSR array, and classes that tilt a few words."""
    rng = np.random.default_rng(seed)
    tilt = rng.normal(size=(n_classes, n_words)) * (rng.random((n_classes, n_words)) < 0.05)
    frequencies = np.exp(strength * tilt) / np.arange(1, n_words + 1)
    frequencies /= frequencies.sum(1, keepdims=True)
    y = rng.integers(n_classes, size=n)
    counts = np.array([rng.multinomial(40, frequencies[c]) for c in y])
    return TfidfTransformer(sublinear_tf=True).fit_transform(sp.csr_array(counts)), y


@BOTH
@pytest.mark.parametrize(
    ("n_words", "n_classes", "n_inducing"),
    [(6000, 2, None), (6000, 2, 100), (3500, 4, None), (3500, 4, 64)],
)
def test_weak_text_is_no_worse_than_a_constant(n_words, n_classes, n_inducing, classifier):
    n = 400
    X, y = texts(n + 1000, n_words, n_classes)
    model = classifier(n_inducing=n_inducing, random_state=0).fit(X[:n], y[:n])
    loss = log_loss(y[n:], model.predict_proba(X[n:]))
    assert loss < np.log(n_classes) + 0.005
    # Nor do leave-one-out predictions promise what new rows do not have.
    assert model.loo_log_loss_ > loss - 0.1


@BOTH
@pytest.mark.parametrize(("seed", "n", "strength"), [(1, 600, 0.9), (2, 600, 0.7)])
def test_a_weak_effect_is_found_from_large_variances(seed, n, strength, classifier):
    # Line searches from the initial variances alone ended at no function.
    X, y = texts(n + 1000, 6000, 2, seed, strength)
    model = classifier(random_state=0).fit(X[:n], y[:n])
    assert log_loss(y[n:], model.predict_proba(X[n:])) < np.log(2) - 0.015


@BOTH
def test_strong_text_is_classified(classifier):
    X, y = texts(900, 3000, 3, strength=2.0)
    model = classifier(random_state=0).fit(X[:300], y[:300])
    assert log_loss(y[300:], model.predict_proba(X[300:])) < 0.6 * np.log(3)
    points = model.inducing_points_
    assert all(len(Z) == 300 for Z in (points if isinstance(points, list) else [points]))


@BOTH
def test_coordinates_change_nothing_but_the_time(monkeypatch, classifier):
    # Without the rotation, the same rows are learned from in their own features.
    X, y = texts(80, 500, 2, strength=2.0)
    model = classifier(random_state=0).fit(X, y)
    monkeypatch.setattr(row_span, "_coordinates", lambda X: X.to_dense())
    own = classifier(random_state=0).fit(X, y)
    assert_allclose(model.kernel_.theta, own.kernel_.theta, atol=1e-3)
    assert_allclose(model.predict_proba(X), own.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
@pytest.mark.parametrize(("n", "d"), [(1, 3), (4, 50), (30, 5)])
def test_coordinates_have_the_inner_products_of_the_rows(n, d, scale):
    rng = np.random.default_rng(0)
    X = scale * sp.random_array((n, d), density=0.4, rng=rng).toarray()
    X[-1] = X[0]  # a copy
    expected = np.array([[sum(a * b) for b in X] for a in X])  # no matrix product
    sparse = torch.from_numpy(X).to_sparse()
    for rows in (torch.from_numpy(X), sparse):
        C = row_span._coordinates(rows).numpy()
        assert C.shape == (n, n)
        # Rounding errors of an eigenvalue are relative to the largest one.
        assert_allclose(C @ C.T, expected, rtol=0, atol=1e-13 * expected.max())


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2, 6, 30])
def test_few_rows_copies_and_scales(n, dtype, classifier):
    X, y = texts(n, 50, 2, strength=2.0)
    y[:2] = 0, 1
    X = sp.vstack([X, X]).tocsr().astype(dtype)  # each row twice
    y = np.r_[y, y]
    found = [
        classifier(random_state=0).fit(scale * X, y).predict_proba(scale * X)
        for scale in (1e-6, 1.0, 1e6)
    ]
    assert np.isfinite(found).all()
    for other in found[1:]:
        assert_allclose(other, found[0], atol=0.02)  # where learning ends, by rounding


@BOTH
def test_large_sparse_rows_have_the_kernel_of_the_array(monkeypatch, classifier):
    X, y = texts(100, 300, 2, strength=2.0)
    as_array = classifier(random_state=0).fit(X, y)
    monkeypatch.setattr(_inputs, "MAX_DENSE", 0)
    stays_sparse = classifier(random_state=0).fit(X, y)
    assert_allclose(as_array.kernel_.theta, stays_sparse.kernel_.theta, atol=1e-4)


@BOTH
def test_few_of_many_rows_choose_the_kernel(monkeypatch, classifier):
    X, y = texts(300, 500, 2, strength=2.0)
    monkeypatch.setattr(row_span, "_MAX_ROWS", 100)
    model = classifier(random_state=0).fit(X[:200], y[:200])
    assert log_loss(y[200:], model.predict_proba(X[200:])) < 0.65
    assert len(model.inducing_points_) == 200


@BOTH
def test_rows_of_many_numbers_have_as_many_points_as_are_stored(monkeypatch, classifier):
    X, y = texts(320, 500, 2, strength=2.0)
    monkeypatch.setattr(_inputs, "MAX_DENSE", 0)
    monkeypatch.setattr(_sparse, "MAX_DENSE_POINTS", 300 * 500)
    model = classifier(random_state=0).fit(X, y)
    assert len(model.inducing_points_) == 300
    assert len(model.set_params(n_inducing=20).fit(X, y).inducing_points_) == 20


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": 1.0 * RBF(1.0)},
        {"optimizer": None},
        {"solver": "sep"},
        {"learn_inducing": True, "n_inducing": 20},
    ],
    ids=str,
)
def test_expectation_propagation_learns_all_else_as_of_dense_rows(options, monkeypatch):
    monkeypatch.delattr(ep, "learn_in_row_span")
    X, y = texts(60, 100, 2, strength=2.0)
    model = EPClassifier(random_state=0, max_iter=2, **options)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        assert np.isfinite(model.fit(X, y).predict_proba(X)).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_refits_weights_and_streams_of_expectation_propagation(n_classes, monkeypatch):
    monkeypatch.setattr(_inputs, "MAX_DENSE", 0)
    X, y = texts(90, 200, n_classes, strength=2.0)
    model = EPClassifier(warm_start=True, random_state=0).fit(X[:60], y[:60])
    expected = model.predict_proba(X)
    assert_allclose(model.fit(X[:60], y[:60]).predict_proba(X), expected, atol=5e-3)
    model.fit(X, y)  # learns from the kernel so far
    alone = EPClassifier(random_state=0).fit(X, y)
    assert_allclose(model.predict_proba(X), alone.predict_proba(X), atol=0.05)
    weights = np.tile([2.0, 1.0, 0.0], 30)
    copies = np.repeat(np.arange(90), weights.astype(int))
    weighted = EPClassifier(random_state=0).fit(X, y, weights).predict_proba(X)
    repeated = EPClassifier(random_state=0).fit(X[copies], y[copies]).predict_proba(X)
    assert_allclose(weighted, repeated, atol=1e-6)
    model = EPClassifier(random_state=0).fit(X[:60], y[:60])
    after = model.partial_fit(X[60:], y[60:])
    assert log_loss(y[60:], after.predict_proba(X[60:])) < log_loss(y[60:], expected[60:])
