"""Classes of small probability at the start of a fit: of three classes, and of later rows."""

import numpy as np
import pytest
from scipy.special import rel_entr, softmax
from sklearn.base import is_classifier

import skgpsvm
from skgpsvm import AdditiveGPClassifier, DecoupledGPClassifier, QSGPClassifier, SVGPClassifier

ESTIMATORS = [getattr(skgpsvm, name) for name in skgpsvm.__all__ if name[0].isupper()]
STREAMS = [kind for kind in ESTIMATORS if is_classifier(kind()) and hasattr(kind(), "partial_fit")]


def three_classes(n, seed):
    """Return rows (n, 2), the probabilities of three classes, and classes drawn from them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    P = softmax(np.c_[2 * X[:, 0], X[:, 1] ** 2 - X[:, 0], 0 * X[:, 1]], 1)
    return X, P, np.array([rng.choice(3, p=p) for p in P])


def divergence(model, seed=99):
    """Return the mean divergence of predicted probabilities from the true ones, in nats."""
    X, P, _ = three_classes(1000, seed)
    return rel_entr(P, model.predict_proba(X)).sum(1).mean()


@pytest.mark.parametrize(
    ("n", "seed"), [(300, 104), (300, 105), (600, 100), (600, 102), (600, 103)]
)
@pytest.mark.parametrize("kind", [SVGPClassifier, DecoupledGPClassifier, QSGPClassifier])
def test_rows_of_an_unlikely_class_do_not_end_learning(kind, n, seed):
    X, _, y = three_classes(n, seed)
    model = kind(random_state=0).fit(X, y)
    assert divergence(model) < 0.03  # of class frequencies it is .5


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("kind", STREAMS)
def test_a_class_that_the_first_rows_lack_is_learned(kind, seed):
    X, _, y = three_classes(300, seed)
    first = (np.arange(300) < 150) & (y != 2)
    few = {} if kind is AdditiveGPClassifier else {"n_inducing": 50}
    model = kind(random_state=0, **few)
    with pytest.warns(UserWarning, match=r"had no rows of the classes \[2\]"):
        model.partial_fit(X[first], y[first], classes=[0, 1, 2])
    model.partial_fit(X[~first], y[~first])
    assert divergence(model) < 0.2
