"""Expected predictive information gain against quadrature, and on tables of every kind."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array
from scipy.special import entr, expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpsvm import BayesianSVC, EPClassifier
from skgpsvm.active_learning import (
    DiverseQueryStrategy,
    ScoreQueryStrategy,
    _epig,
    bald,
    epig,
    epig_sampling,
)


class Process(ClassifierMixin, BaseEstimator):
    """Classifier whose latents have the mean sin((j + 1) x) and the covariance 4 RBF(1 + j)."""

    def __init__(self, c=1):
        self.c = c

    def latent_mean_and_variance(self, X):
        X = np.asarray(X)
        mean = np.sin(X * np.arange(1, self.c + 1))
        return mean, np.full_like(mean, 4.0)

    def latent_covariance(self, X):
        return np.stack([4 * RBF(1.0 + j)(np.asarray(X)) for j in range(self.c)], axis=2)

    def predict_proba_from_latent(self, F):
        if self.c == 1:
            return np.concatenate([expit(-F), expit(F)], axis=-1)
        return softmax(F, axis=-1)


def information(model, x, target, n_nodes):
    """Return the mutual information of two labels, by a product Gauss-Hermite rule."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    rows = np.array([[x], [target]])
    mean, _ = model.latent_mean_and_variance(rows)
    root = np.linalg.cholesky(np.moveaxis(model.latent_covariance(rows), 2, 0))
    c = model.c
    z = np.stack(np.meshgrid(*[nodes] * (2 * c), indexing="ij"), -1).reshape(-1, c, 2)
    w = np.stack(np.meshgrid(*[weights / weights.sum()] * (2 * c), indexing="ij"), -1)
    f = mean + np.einsum("cij,scj->sic", root, z)
    p, q = np.moveaxis(model.predict_proba_from_latent(f), 1, 0)
    joint = np.einsum("s,sa,sb->ab", w.prod(axis=-1).ravel(), p, q)
    return entr(joint.sum(0)).sum() + entr(joint.sum(1)).sum() - entr(joint).sum()


@pytest.mark.parametrize(("c", "n_nodes"), [(1, 60), (2, 14)])
def test_epig_is_the_mean_mutual_information(c, n_nodes):
    model, targets = Process(c), np.array([[-1.0], [0.5], [3.0]])
    X = np.array([[-1.3], [0.2], [2.9], [4.0]])
    exact = [np.mean([information(model, x, t, n_nodes) for t in targets[:, 0]]) for x in X[:, 0]]
    found = epig(model, X, targets, n_samples=2**15)
    # The scores are between 0.008 and 0.062 nats; the quadrature errs by at most 1.2e-4 nats.
    np.testing.assert_allclose(found, exact, atol=1e-3)


def test_an_outlier_tells_nothing_about_the_targets():
    X = np.append(np.linspace(-2, 2, 9), 50.0)[:, None]
    scores, unknown = epig(Process(), X, X[:-1]), bald(Process(), X)
    assert scores.argmin() == 9
    # Two labels that do not depend on each other seem to, by 1 / (2 S) at most.
    assert scores[9] < 1 / 256
    assert unknown[9] > unknown[:-1].mean() / 2
    assert epig_sampling(Process(), X, targets=X[:-1])[0] == scores.argmax()


def test_other_rows_and_batches_change_nothing(monkeypatch):
    X, targets = np.linspace(-2, 2, 40)[:, None], np.array([[0.0], [0.0], [1.0]])
    whole = epig(Process(2), X, targets)
    # The same numbers are summed in another order.
    np.testing.assert_allclose(epig(Process(2), X[7:9], targets), whole[7:9], rtol=1e-9)
    monkeypatch.setattr(_epig, "_MAX_ROWS", 7)
    np.testing.assert_allclose(epig(Process(2), X, targets), whole, rtol=1e-9)
    assert (epig(Process(2), X, targets, random_state=1) != whole).any()


def test_default_targets_are_rows_of_the_pool():
    X = np.linspace(-2, 2, 20)[:, None]
    # The order of targets changes which draws they have.
    np.testing.assert_allclose(epig(Process(), X), epig(Process(), X, X), atol=0.02)


@pytest.mark.parametrize("estimator", [BayesianSVC, EPClassifier])
def test_classifiers_of_the_package(estimator):
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (60, 2))
    y = (X[:, 0] > 0).astype(int)
    model = make_pipeline(StandardScaler(), estimator(optimizer=None, random_state=0))
    scores = epig(model.fit(X[:20], y[:20]), X)
    assert ((scores >= 0) & (scores <= np.log(2))).all()
    for kind in (ScoreQueryStrategy, DiverseQueryStrategy):
        labels = np.where(np.arange(60) < 20, y, np.nan)
        chosen = kind(epig, random_state=0).query(X, labels, model, batch_size=3)
        assert len(set(chosen)) == 3
        assert min(chosen) >= 20


@pytest.mark.parametrize(
    "container",
    [
        np.ndarray.tolist,
        csr_array,
        lambda X: pd.DataFrame(X, columns=["a", "b"]),
        lambda X: pl.DataFrame(X, schema=["a", "b"]),
    ],
    ids=["list", "sparse", "pandas", "polars"],
)
def test_containers(container):
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (30, 2))
    y = np.arange(30) % 3
    model = BayesianSVC(RBF(), optimizer=None, n_inducing=8, random_state=0)
    expected = epig(model.fit(X, y), X, X[:5])
    found = epig(model.fit(container(X), y), container(X), container(X[:5]))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_wrong_arguments_are_refused():
    X = np.zeros((2, 1))
    with pytest.raises(ValueError, match="X has 2 rows and targets has 0; both need one"):
        epig(Process(), X, X[:0])
    with pytest.raises(ValueError, match="X has 0 rows and targets has 0; both need one"):
        epig(Process(), X[:0])
    with pytest.raises(ValueError, match="n_samples=0 must be an integer of at least 1"):
        epig(Process(), X, n_samples=0)
    with pytest.raises(TypeError, match=r"latent_covariance.*got LogisticRegression.*margin"):
        epig(LogisticRegression().fit([[0], [1]], [0, 1]), X)
