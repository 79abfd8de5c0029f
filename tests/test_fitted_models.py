"""Fitted models: conversion of arrays to a state and back, and their posteriors."""

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import t64
from sklearn.gaussian_process.kernels import RBF

from skgpsvm._bases import KernelBases
from skgpsvm._features import FourierBases, FourierFeatures
from skgpsvm._fitted_models import SparseModel
from skgpsvm._posteriors import DecoupledPosterior, InducingPosterior, WeightPosterior

rng = np.random.default_rng(0)
Z, X = rng.normal(size=(4, 2)), torch.as_tensor(rng.normal(size=(5, 2)))
MEAN, ROOT = rng.normal(size=(2, 4)), np.eye(4)[None].repeat(2, 0)
START = SparseModel(2.0 * RBF(1.5), Z, (-1.0,))
INDUCING = replace(START, mean=MEAN, root=ROOT)
POINTS = replace(INDUCING.with_bases(rng.normal(size=(6, 2))), coef=rng.normal(size=(2, 6)))
FOURIER = replace(INDUCING.with_bases(FourierFeatures(3, 0)), coef=rng.normal(size=(2, 6)))
WEIGHTS = POINTS.with_weights(
    {"diag": t64(np.full((2, 6), 0.5)), "columns": t64(np.zeros((2, 6, 0)))}
)


@pytest.mark.parametrize(
    ("latents", "posterior", "bases"),
    [
        (INDUCING, InducingPosterior, None),
        (POINTS, DecoupledPosterior, KernelBases),
        (FOURIER, DecoupledPosterior, FourierBases),
        (WEIGHTS, WeightPosterior, KernelBases),
    ],
)
def test_each_model_has_its_posterior(latents, posterior, bases):
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


@pytest.mark.parametrize("latents", [START, INDUCING, POINTS, FOURIER, WEIGHTS])
def test_state_is_new_tensors_and_leads_back(latents):
    state = latents.state("cpu")
    again = latents.at(state)
    for name in (field.name for field in fields(latents)):
        part = getattr(latents, name)
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


def drawn(c=2, seed=0):
    rng = np.random.default_rng(seed)
    root = np.triu(0.1 * rng.normal(size=(c, 4, 4)), 1) + np.eye(4)
    return SparseModel(
        2.0 * RBF([1.0, 0.5]), rng.normal(size=(4, 2)), np.log([0.3]), rng.normal(size=(c, 4)), root
    )


def test_start_without_moments_has_no_state_of_them():
    part = drawn()
    start = SparseModel(part.kernel, part.Z, part.noise)
    assert start.state("cpu").keys() == {"theta", "Z", "noise"}
    assert part.state("cpu").keys() == {"theta", "Z", "noise", "mean", "root"}


def test_latents_of_their_own_state_are_the_same():
    part = drawn()
    state = part.state("cpu")
    same = part.at(state)
    assert_allclose(same.kernel.theta, part.kernel.theta, rtol=1e-15)
    for name in ("Z", "noise", "mean", "root"):
        assert_array_equal(getattr(same, name), getattr(part, name))
    # The state is a copy: steps on it do not change the latents.
    before = part.Z.copy()
    state["Z"] += 1
    assert_array_equal(part.Z, before)


def test_latents_at_another_state_have_its_parts():
    part = drawn()
    state = part.state("cpu")
    moved = part.at({**state, "theta": state["theta"] + 1, "noise": state["noise"] - 1, "other": 3})
    assert_allclose(moved.kernel.theta, part.kernel.theta + 1)
    assert_allclose(moved.noise, part.noise - 1)
    assert_array_equal(moved.Z, part.Z)
    assert moved.jitter == part.jitter
    assert_allclose(part.kernel.theta, np.log([2.0, 1.0, 0.5]))


def test_posterior_of_latents_has_their_weights():
    part = drawn()
    posterior = part.posterior("cpu")
    X = t64([[0.3, -1.0], [2.0, 0.1]])
    A, residual = posterior.basis(X)
    mean, var = posterior.marginals(X)
    assert_allclose(mean, A.numpy() @ part.mean.T, rtol=1e-13)
    spread = [((A.numpy() @ root) ** 2).sum(1) for root in part.root]
    assert_allclose(var.T, spread + residual.numpy(), rtol=1e-13)
    # The jitter is relative to the kernel's variance of 2.
    A, residual = SparseModel(part.kernel, part.Z, part.noise, jitter=1e-2).basis("cpu")(
        t64(part.Z)
    )
    K = part.kernel(part.Z)
    expected = 2.0 - np.diag(K @ np.linalg.solve(K + 2e-2 * np.eye(4), K))
    assert_allclose(residual, expected, rtol=1e-10)


def test_a_prediction_of_another_thread_does_not_disturb_a_pickle():
    class Name(str):
        """Name of a field; whoever compares it is overtaken by a first prediction."""

        __hash__ = str.__hash__

        def __eq__(self, other):
            model.posterior("cpu")
            return str(self) == str(other)

        def __ne__(self, other):
            return not self == other

    model = replace(INDUCING)
    vars(model)[Name("name")] = 0
    assert "_posteriors" not in list(map(str, model.__getstate__()))
