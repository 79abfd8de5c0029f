"""Inference of the posterior: which parts are updated, and that the objective rises."""

import copy
import math
from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from problems import HINGES, ascent_of, ring, t64
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm._hinge_sites import BinarySites
from skgpsvm._inference.natural_gradient import (
    AdamSteps,
    CoordinateInference,
    GradientInference,
    NaturalGradientInference,
)
from skgpsvm._linalg import gaussian_kl, relative_change, upper_root
from skgpsvm._optim import Free
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.kernels import Linear
from skgpsvm.likelihoods import Gaussian, Logistic, Softmax, StudentT


def inference_of(
    method, hinge, kernel, X, y, Z, trained, rate, bounds=None, batch_size=None, rule="adam"
):
    """Return an inference and its initial state; all rows are one batch if batch_size is None."""
    ascent = ascent_of(hinge, kernel, X, y, Z)
    bounds = t64(kernel.bounds if bounds is None else bounds)
    parts = hinge, (torch_kernel(kernel),), ascent.rows, Free(trained, bounds, t64(X.std(0))), rate
    adam = AdamSteps(*parts, rule=rule)
    generator = torch.Generator().manual_seed(0)
    inference = method(ascent, adam, 30, 1e-6, batch_size, generator)
    start = {"theta": t64(kernel.theta), "Z": t64(Z), "noise": hinge.parameters()}
    return inference, inference.init(start)


def stepped(inference, state):
    """Take a step and return the objective."""
    inference.step(state)
    return state.objective


def moved(start, end, names):
    """Return which fields of two states differ."""
    return {name for name in names if not torch.equal(getattr(end, name), getattr(start, name))}


def test_first_adam_step_moves_every_parameter(hinge):
    X, y = ring(30, max(hinge.n_latents, 2))
    kernel, rate = 2.0 * RBF([1.0, 1.5]) + ConstantKernel(1.0) + Linear(0.7), 1e-3
    names = ["theta", "Z", "mean", "raw_root"]
    inference, state = inference_of(
        GradientInference, hinge, kernel, X, y, X[:5] + 0.1, names, rate
    )
    before = replace(state)
    inference.step(state)
    above = torch.ones(state.raw_root.shape[1:], dtype=torch.bool).triu()
    for name in names:
        unit = t64(X.std(0)) if name == "Z" else 1.0
        step = ((getattr(state, name) - getattr(before, name)) / unit).abs()
        if name == "raw_root":
            assert not step[:, ~above].any()
            step = step[:, above]
        # Adam's first step is its rate in every direction of non-zero gradient g, up to 1e-8 / |g|.
        np.testing.assert_allclose(step, rate, rtol=0.01, err_msg=name)
    assert torch.equal(state.root, upper_root(state.raw_root))


@pytest.mark.parametrize(("rule", "rate"), [("adam", 0.05), ("adadelta", 1.0)])
def test_steps_climb_the_objective_of_the_sweeps(rule, rate):
    X, y = ring(30, 2)
    kernel = 2.0 * RBF(1.0)
    parts = BinarySites(), kernel, X, y, X[:5], ["mean", "raw_root"], rate
    inference, state = inference_of(GradientInference, *parts, rule=rule)
    values = [stepped(inference, state) for _ in range(20)]
    assert (np.diff(values) > 0).all()
    ascent = ascent_of(BinarySites(), kernel, X, y, X[:5])
    # The objective of the epoch and of the sweep are those before their only step.
    held = ascent.init(state.mean, state.root)
    assert ascent.sweep(held) == pytest.approx(stepped(inference, state), rel=1e-10)


def test_gradient_estimates_of_a_partition_average_to_the_objective(hinge):
    X, y = ring(24, max(hinge.n_latents, 2))
    inference, state = inference_of(
        GradientInference, hinge, 2.0 * RBF(1.0), X, y, X[:5], ["mean"], 0.0, batch_size=6
    )
    full = ascent_of(hinge, 2.0 * RBF(1.0), X, y, X[:5])
    expected = full.sweep(full.init(state.mean, state.root))
    # The rate is zero, so that the four steps of an epoch are at the same point.
    assert stepped(inference, state) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("method", [CoordinateInference, GradientInference])
def test_learned_parts_move_and_the_others_stay(method):
    X, y = ring(30, 3)
    kernel = 2.0 * RBF(1.0)
    own = ["mean", "raw_root"] if method is GradientInference else []
    for learned in ({"Z"}, {"theta"}, {"Z", "theta"}, set()):
        inference, state = inference_of(
            method, HINGES["soft"](), kernel, X, y, X[:5], [*own, *sorted(learned)], 0.05
        )
        start = replace(state)
        for _ in range(4):
            inference.step(state)
        assert moved(start, state, ("Z", "theta")) == learned
        if "Z" in learned:
            assert (state.Z != start.Z).all()
        basis = inference.at(state).basis
        assert torch.equal(basis.Z, state.Z)
        assert torch.equal(basis.theta, state.theta)


@pytest.mark.parametrize("method", [CoordinateInference, GradientInference])
def test_learned_hyper_parameters_stay_within_their_bounds(method):
    X, y = ring(30, 2)
    kernel = ConstantKernel(2.0, (1.9, 2.1)) * RBF(1.0, (0.9, 1.1))
    own = ["mean", "raw_root"] if method is GradientInference else []
    inference, state = inference_of(
        method, BinarySites(), kernel, X, y, X[:5], [*own, "theta"], 0.3
    )
    low, high = t64(kernel.bounds).T
    for _ in range(6):
        inference.step(state)
        assert ((state.theta >= low) & (state.theta <= high)).all()
    # The rate is 0.3, and the bounds are 0.1 and 0.2 apart, so that they are reached.
    assert ((state.theta == low) | (state.theta == high)).any()


def test_learned_inducing_points_and_kernel_improve_the_objective():
    X, y = ring(40, 2)
    kernel = 1.0 * RBF(0.3)
    values = {}
    for trained in ((), ("theta",), ("Z",), ("Z", "theta")):
        inference, state = inference_of(
            CoordinateInference, BinarySites(), kernel, X, y, X[:4], list(trained), 0.05
        )
        for _ in range(30):
            values[trained] = stepped(inference, state)
    assert values[()] < min(values["theta",], values["Z",])
    assert max(values["theta",], values["Z",]) < values["Z", "theta"]


def test_sweeps_after_learning_converge_to_the_optimum():
    X, y = ring(30, 3)
    inference, state = inference_of(
        CoordinateInference, HINGES["soft"](), 2.0 * RBF(1.0), X, y, X[:8], ["theta", "Z"], 0.05
    )
    inference.max_iter, inference.tol = 200, 1e-3
    while not inference.converged(state):
        inference.step(state)
    ascent = inference.at(state)
    nearby = ascent.init(state.mean, state.root)
    ascent.sweep(nearby)
    assert nearby.change < 1e-3


# Natural gradients


def waves(n=60, noise=0.2, seed=0):
    """Return X (n, 2), and targets (n, 1): a smooth function of two features, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, :1]) + 0.5 * X[:, 1:] + noise * rng.normal(size=(n, 1))


def natural(likelihood, X, y, trained, rate=0.05, batch_size=None, kernel=None, n_latents=1):
    """Return an inference by natural gradients and its initial state."""
    kernel = 2.0 * RBF([1.0, 1.0]) if kernel is None else kernel
    sites = LikelihoodSites(likelihood, n_latents)
    return inference_of(
        NaturalGradientInference, sites, kernel, X, y, X[:8], trained, rate, batch_size=batch_size
    )


@pytest.mark.parametrize("likelihood", [Logistic(), StudentT(0.5)], ids=["logistic", "student_t"])
def test_passes_at_fixed_hyperparameters_share_the_sites(likelihood, monkeypatch):
    calls, sites = [], LikelihoodSites.sites
    monkeypatch.setattr(LikelihoodSites, "sites", lambda *args: calls.append(1) or sites(*args))
    X, y = waves()
    y = (y[:, 0] > 0).astype(int) if isinstance(likelihood, Logistic) else y
    inference, state = natural(likelihood, X, y, [])
    for _ in range(3):
        inference.step(state)
    assert len(calls) == 4  # of the prior, and after each pass


def test_nothing_learned_is_the_closed_form_after_one_pass():
    X, y = waves()
    inference, state = natural(Gaussian(0.04), X, y, [])
    first = stepped(inference, state)
    held = {name: getattr(state, name).clone() for name in ("mean", "root", "theta", "Z", "noise")}
    value = stepped(inference, state)
    assert value > first
    for name, part in held.items():
        # The numbers are the same, up to rounding.
        np.testing.assert_allclose(getattr(state, name), part, rtol=0, atol=1e-10)
    assert stepped(inference, state) == pytest.approx(value, rel=1e-12)
    assert inference.converged(state)
    _, _, evidence = oracles.exact_gp_regression(2.0 * RBF([1.0, 1.0]), X, y[:, 0], X[:1], 0.04)
    assert value < evidence


@pytest.mark.parametrize("batch_size", [None, 20])
@pytest.mark.parametrize(
    "learned",
    [{"theta"}, {"Z"}, {"noise"}, {"theta", "Z", "noise"}, set()],
    ids=lambda names: ", ".join(sorted(names)),
)
def test_natural_gradients_move_what_is_learned_and_nothing_else(learned, batch_size):
    X, y = waves()
    inference, state = natural(Gaussian(0.5), X, y, sorted(learned), batch_size=batch_size)
    start = replace(state)
    for _ in range(2):
        inference.step(state)
    assert moved(start, state, ("Z", "theta", "noise")) == learned
    ascent = inference.at(state)
    assert torch.equal(ascent.basis.Z, state.Z)
    assert torch.equal(ascent.basis.theta, state.theta)
    mean, var = t64([[0.2]]), t64([[0.1]])
    now = LikelihoodSites(Gaussian(state.noise.exp()), 1)
    assert torch.equal(ascent.likelihood.loss(mean, mean, var), now.loss(mean, mean, var))


def test_natural_gradients_learn_hyper_parameters_that_raise_the_bound():
    X, y = waves(100)
    bounds = {}
    for trained in ((), ("noise",), ("theta", "noise"), ("Z", "theta", "noise")):
        inference, state = natural(Gaussian(1.0), X, y, list(trained), rate=0.1)
        for _ in range(30):
            inference.step(state)
        bounds[trained] = inference.at(state).elbo(state)
    values = list(bounds.values())
    assert (np.diff(values) > 1).all()
    # Four standard errors of the last variance estimate, 0.04 sqrt(2 / 100), plus its bias: what
    # the inducing points do not explain counts as noise.
    assert 0.2**2 * (1 - 0.6) < state.noise.exp().item() < 0.2**2 * (1 + 1.0)


@pytest.mark.parametrize(
    ("likelihood", "n_classes"), [(Logistic(), 2), (Softmax(), 3), (StudentT(0.2), None)]
)
def test_natural_gradients_raise_the_objective_in_every_pass(likelihood, n_classes):
    X, y = ring(40, n_classes) if n_classes else waves(40)
    n_latents = 3 if n_classes == 3 else 1
    inference, state = natural(likelihood, X, y, [], n_latents=n_latents)
    values = [stepped(inference, state) for _ in range(25)]
    # The error is rounding.
    assert (np.diff(values) > -1e-8).all()
    assert values[-1] > values[0] + 5
    # At the optimum, the gradient in the mean vanishes.
    ascent = inference.at(state)
    mean, root = (getattr(state, name).clone().requires_grad_() for name in ("mean", "root"))
    A, residual = ascent.basis(t64(X))
    sites = ascent.likelihood
    marginals = (
        A @ mean.T,
        residual[:, None] + torch.stack([(A @ r).square().sum(1) for r in root], 1),
    )
    loss = sites.loss(ascent.rows.targets, *marginals).sum() + gaussian_kl(mean, root).sum()
    (gradient,) = torch.autograd.grad(loss, mean)
    # At the prior, entries of the gradient are ten and more.
    assert gradient.abs().max() < 0.05


def test_minibatches_of_natural_gradients_come_close_to_all_rows():
    X, y = waves(200)
    whole, best = natural(Gaussian(0.04), X, y, [])
    for _ in range(2):
        value = stepped(whole, best)
    inference, state = natural(Gaussian(0.04), X, y, [], batch_size=25)
    estimates = [stepped(inference, state) for _ in range(30)]
    # There is one step for each of eight minibatches.
    assert state.n_steps == 30 * 8
    before = state.mean
    estimates.append(stepped(inference, state))
    assert state.change == relative_change(state.mean, before)
    # Steps of t^-0.6 at t = 240 average over 27 minibatches, three times all rows.
    assert value - 2 < inference.at(state).elbo(state) <= value + 1e-9
    # The mean of a pass's estimates errs by the variation of the bound between its steps.
    assert np.mean(estimates[-10:]) == pytest.approx(value, rel=0.05)


def test_minibatches_keep_what_they_start_from():
    X, y = waves(200)
    whole, best = natural(Gaussian(0.04), X, y, [])
    for _ in range(2):
        value = stepped(whole, best)
    inference, _ = natural(Gaussian(0.04), X, y, [], batch_size=25)
    state = inference.init(
        {part: getattr(best, part) for part in ("theta", "Z", "noise", "mean", "root")}
    )
    inference.ascent.stochastic_sweep(state, inference._minibatches(25)[:1])
    # A first step of 2^-0.6 would lose 17 nats, while 9^-0.6 loses less than three.
    assert value - 5 < whole.at(state).elbo(state) < value


def test_many_minibatches_learn_between_them(monkeypatch):
    X, y = waves(60)
    inference, state = natural(Gaussian(0.5), X, y, ["noise"], batch_size=2)
    runs = []
    run = inference.adam.run
    monkeypatch.setattr(inference.adam, "run", lambda *args: runs.append(args[1]) or run(*args))
    monkeypatch.setattr("skgpsvm._inference.natural_gradient._STEP_ROWS", 3)
    inference.step(state)
    # Thirty minibatches are in groups of ten, with ten steps before each group except the first.
    assert [len(batches) for batches in runs] == [10, 10]
    # These twenty minibatches have each row once.
    assert torch.cat([*runs[0], *runs[1]]).unique().numel() == 60
    assert state.n_steps == 30


def test_learning_ends_where_it_gains_no_more():
    X, y = waves(60)
    inference, state = natural(Gaussian(0.5), X, y, ["noise"], rate=0.1)
    inference.max_iter = 1000
    values, noise = [], []
    for _ in range(80):
        values.append(stepped(inference, state))
        noise.append(state.noise.item())
    # The first pass is at the prior and learns nothing.
    still = next(i for i in range(2, 80) if noise[i] == noise[i - 1])
    assert still > 5
    # Before that, five passes changed the objective by more than 0.002 nats per row, then by less.
    changes = [abs(values[i] - values[i - 5]) for i in range(5, still)]
    assert changes[-1] <= 0.002 * 60 < min(changes[:-1])
    assert len(set(noise[still:])) == 1
    assert inference.converged(state)


def test_learning_ends_when_most_iterations_are_spent():
    X, y = waves(60)
    inference, state = natural(Gaussian(2.0), X, y, ["noise"], rate=0.01)
    noise = []
    for _ in range(30):
        inference.step(state)
        noise.append(state.noise.item())
        # The inference does not converge before the last steps on the noise.
        assert len(noise) >= 21 or not inference.converged(state)
    # At this rate the objective keeps rising, so that learning ends after 70 % of 30 iterations.
    assert len(set(noise[:21])) == 21
    assert len(set(noise[20:])) == 1


def test_state_is_all_that_natural_gradients_need_to_continue():
    X, y = waves(60)
    settings = {"trained": ["theta", "Z", "noise"], "batch_size": 20}
    inference, state = natural(Gaussian(0.5), X, y, **settings)
    for _ in range(7):
        inference.step(state)
    saved = copy.deepcopy(state)
    values = [stepped(inference, state) for _ in range(3)]
    other, _ = natural(Gaussian(0.5), X, y, **settings)
    assert [stepped(other, saved) for _ in range(3)] == values
    for name in ("mean", "root", "theta", "Z", "noise"):
        assert torch.equal(getattr(saved, name), getattr(state, name))


def test_noise_stays_within_its_bounds():
    X, y = waves(40)
    # A constant fits these targets without error, so that the best noise is the smallest.
    inference, state = natural(
        Gaussian(0.1), X, 0 * y, ["noise"], rate=0.5, kernel=ConstantKernel(1.0)
    )
    for _ in range(12):
        inference.step(state)
        assert state.noise.item() >= math.log(1e-6)
    assert state.noise.item() == pytest.approx(math.log(1e-6), rel=1e-12)
