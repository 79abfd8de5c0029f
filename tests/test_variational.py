"""What the variational GPs share: learning in stages, and starts."""

import numpy as np
from problems import waves
from sklearn.base import clone

from skgpsvm import SVGPRegressor


def test_learning_in_stages_ends_as_well_as_on_all_rows(monkeypatch):
    X, y = waves(600)
    settings = {"n_inducing": 30, "random_state": 0, "tol": 1e-4}
    whole = SVGPRegressor(**settings).fit(X, y)
    monkeypatch.setattr("skgpsvm._variational.STAGES", ((100, 2), (300, 2)))
    staged = SVGPRegressor(**settings).fit(X, y)
    assert staged.elbo_ > whole.elbo_ - 0.02 * 600
    monkeypatch.setattr("skgpsvm._variational._MANY_ROWS", 500)
    slow = SVGPRegressor(**settings).fit(X, y)
    assert slow.elbo_ != staged.elbo_
    assert slow.elbo_ > whole.elbo_ - 0.02 * 600


def test_end_at_mere_noise_is_tried_again(monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 40))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=300)
    model = SVGPRegressor(n_inducing=40, random_state=0)
    monkeypatch.setattr("skgpsvm._variational._MANY_FEATURES", 41)  # without the slow start
    assert clone(model).fit(X, y).score(X, y) > 0.9
    monkeypatch.setattr("skgpsvm._variational._LENGTHS", (1.0,))
    assert clone(model).fit(X, y).score(X, y) < 0.2
