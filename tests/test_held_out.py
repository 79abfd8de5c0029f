"""Noise fitted to held-out rows."""

from dataclasses import replace

import numpy as np
import torch

from skgpsvm import DecoupledGPRegressor
from skgpsvm._hyperparameters.held_out import NOISE_PRIOR, HeldOutRows
from skgpsvm._targets import regression_sites


def test_few_rows_hardly_move_the_noise():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(60, 1))
    model = DecoupledGPRegressor(n_inducing=5, random_state=0).fit(X, np.sin(X[:, 0]))

    def moved(n):
        y = 2 * torch.ones(n, 1).double()
        weights, zero = torch.ones(n).double(), torch.zeros_like(y)
        moments = zero, zero + 1e-9, zero + 1
        held_out = HeldOutRows(regression_sites("gaussian", [1.0]), y, weights, *moments)
        learned = replace(model._latents[0], noise=(0.0,))
        return held_out.most_likely(learned, (-np.inf, np.inf), NOISE_PRIOR).noise[0]

    # Squared residuals of the held-out rows are four times the learned noise.
    assert 0 < moved(3) < 0.3
    assert moved(30_000) > np.log(4) - 0.01
