"""Latents: arrays as a state and back, and which posterior they are."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import RBF

from skgpsvm._bases import Dictionary, KernelBases
from skgpsvm._features import FourierBases, FourierFeatures
from skgpsvm._latents import Latents
from skgpsvm._posteriors import DecoupledPosterior, InducingPosterior, WeightPosterior

rng = np.random.default_rng(0)
Z, X = rng.normal(size=(4, 2)), torch.as_tensor(rng.normal(size=(5, 2)))
MEAN, ROOT = rng.normal(size=(2, 4)), np.eye(4)[None].repeat(2, 0)
START = Latents(2.0 * RBF(1.5), Z, (-1.0,))
INDUCING = replace(START, mean=MEAN, root=ROOT)
POINTS = replace(INDUCING, bases=rng.normal(size=(6, 2)), coef=rng.normal(size=(2, 6)))
FOURIER = replace(INDUCING, bases=FourierFeatures(3, 0), coef=rng.normal(size=(2, 6)))
WEIGHTS = replace(POINTS, diag=np.full((2, 6), 0.5), columns=np.zeros((2, 6, 0)))
SPARSE = replace(WEIGHTS, precisions=np.full((2, 6), 3.0))


@pytest.mark.parametrize(
    ("latents", "posterior", "bases"),
    [
        (INDUCING, InducingPosterior, None),
        (POINTS, DecoupledPosterior, KernelBases),
        (FOURIER, DecoupledPosterior, FourierBases),
        (WEIGHTS, WeightPosterior, KernelBases),
        (SPARSE, WeightPosterior, Dictionary),
    ],
)
def test_parts_that_there_are_say_which_posterior(latents, posterior, bases):
    found = latents.posterior("cpu")
    assert type(found) is posterior
    assert bases is None or type(found.bases) is bases
    assert latents.n_latents == 2
    mean, var = found.marginals(X)
    assert mean.shape == var.shape == (5, 2)
    again = pickle.loads(pickle.dumps(latents)).posterior("cpu").marginals(X)
    assert_array_equal(torch.stack(again), torch.stack((mean, var)))


def test_augmentation_is_part_of_the_posterior():
    rows = {"rows": X.numpy(), "row_precisions": np.ones((2, 5))}
    plain, more = (each.posterior("cpu") for each in (WEIGHTS, replace(WEIGHTS, **rows)))
    assert (more.marginals(10 * X)[1] > plain.marginals(10 * X)[1]).all()


@pytest.mark.parametrize("latents", [START, INDUCING, POINTS, FOURIER, WEIGHTS, SPARSE])
def test_state_is_new_tensors_and_leads_back(latents):
    state = latents.state("cpu")
    again = latents.at(state)
    for name, part in vars(latents).items():
        if isinstance(part, np.ndarray):
            assert_array_equal(getattr(again, name), part)
        elif name != "kernel":
            assert getattr(again, name) == part
    assert_allclose(again.kernel.theta, latents.kernel.theta)
    state["Z"] += 1
    assert_array_equal(latents.Z, Z)


def test_parts_of_other_states_are_left_alone():
    state = {**INDUCING.state("cpu"), "n_steps": 3, "theta": torch.zeros(2, dtype=torch.float64)}
    found = INDUCING.at(state)
    assert_allclose(found.kernel.theta, 0)
    assert_allclose(INDUCING.kernel.theta, np.log([2.0, 1.5]))
