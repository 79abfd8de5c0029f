"""Hyperparameters that are refined on the exact evidence of some rows."""

import numpy as np

from skgpsvm import DecoupledGPRegressor, _conjugate_gradients
from skgpsvm._hyperparameters import exact_evidence


def test_more_rows_correct_length_scales_that_few_points_learn_too_long(monkeypatch):
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (2500, 3))
    phases = X @ (4 * rng.standard_normal((3, 40))) + rng.uniform(0, 2 * np.pi, 40)
    latent = np.cos(phases).sum(1) / np.sqrt(20)
    y = latent + 0.3 * rng.standard_normal(2500)

    def error(n_rows):
        monkeypatch.setattr(exact_evidence, "EVIDENCE_ROWS", (100, 300, n_rows))
        monkeypatch.setattr(_conjugate_gradients, "EVIDENCE_ROWS", (100, 300, n_rows))
        model = DecoupledGPRegressor(n_inducing=10, random_state=0).fit(X[:2000], y[:2000])
        return np.sqrt(np.mean((model.predict(X[2000:]) - latent[2000:]) ** 2))

    # 0.17 and 0.31.
    assert error(900) < 0.75 * error(300)
