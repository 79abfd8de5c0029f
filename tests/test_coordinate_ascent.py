"""Coordinate ascent against published numbers and identities."""

import math
from dataclasses import replace
from functools import partial, partialmethod

import numpy as np
import oracles
import pytest
import torch
from problems import (
    HINGES,
    FixedContrast,
    Unwhitened,
    ascent_of,
    assert_all_close,
    codes,
    moments,
    ring,
    rows_of,
    swept,
    t64,
    undamped,
    upper,
    weights_of,
)
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm._data import WeightedDataset
from skgpsvm._hinge_sites import BinarySites, ContrastSites
from skgpsvm._inference import coordinate_ascent as _ascent
from skgpsvm._inference import mean_steps
from skgpsvm._inference.coordinate_ascent import CoordinateAscent
from skgpsvm._inference.leave_one_out import leave_one_out
from skgpsvm._linalg import gaussian_kl, upper_root, weight_moments
from skgpsvm._optim import by_autograd, lbfgs
from skgpsvm._posteriors import InducingPosterior, WhitenedBasis
from skgpsvm._sites import LikelihoodSites, batch_loss
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.kernels import Linear
from skgpsvm.likelihoods import Gaussian, Laplace, RobustMax, Softmax, StudentT


def weights_prior(ascent):
    """Return natural parameters of a prior other than N(0, I)."""
    precision, linear = ascent.prior
    return 1.5 * precision, linear + torch.linspace(-1, 1, linear.numel()).view_as(linear)


def test_products_of_gaussian_noise_are_in_double_precision():
    rng, kernel, var = np.random.default_rng(0), 3.0 * RBF(2.0), 1e-6
    X = rng.uniform(0, 4, size=(400, 2)).astype(np.float32)
    sites = LikelihoodSites(Gaussian(np.array([var])), 1)
    basis = WhitenedBasis(torch_kernel(kernel), t64(kernel.theta), t64(X[:60]))
    ascent = CoordinateAscent(sites, basis, rows_of(X, np.zeros((400, 1)), dtype=torch.float32))
    A = ascent.batch(slice(0, 400))[0].double()
    expected = torch.eye(60).double() + A.T @ A / var
    # In single precision they err by some 1e-6 of this scale, more than the prior's precision of 1.
    scale = expected.diagonal().mean()
    found = swept(ascent, 1).precision[0]
    assert_all_close([found / scale], [expected / scale], atol=1e-12, rtol=1e-12)


# Coordinate ascent: problem T1 of the specification, section 8.1


def test_one_sweep_of_t1_is_the_published_simultaneous_update():
    T1 = Unwhitened(oracles.T1)
    ascent = T1.ascent(HINGES["hard"]())
    state = T1.start(ascent)
    before, after = ascent.sweep(state), ascent.sweep(replace(state))
    mu, Sig = T1.moments(state)
    eta1 = np.linalg.solve(T1.chol.T, state.linear.numpy()[..., None])[..., 0]
    # The published numbers have no jitter; the specification allows 1e-5 for a relative 1e-6.
    close = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(before, -10.5500609479, **close)
    np.testing.assert_allclose(after, -9.3645868354, **close)
    np.testing.assert_allclose(
        eta1,
        [
            [0.4908890743, -0.8222633154],
            [1.1428961057, 1.3680542698],
            [-0.8201052758, 0.0517459911],
        ],
        **close,
    )
    np.testing.assert_allclose(
        mu,
        [
            [0.1397492886, -0.6389270469],
            [0.5590454579, 0.7529924475],
            [-0.6733521169, -0.0509337628],
        ],
        **close,
    )
    np.testing.assert_allclose(
        Sig,
        [
            [[0.4853371676, 0.1197881778], [0.1197881778, 0.8485478332]],
            [[0.4466299993, 0.0355203534], [0.0355203534, 0.5207369252]],
            [[0.8271983867, 0.0973533224], [0.0973533224, 0.5586173911]],
        ],
        **close,
    )
    # The jitter is the same, so that the error is rounding only.
    expected = oracles.sweep(
        *T1.parts, T1.T.mu, T1.T.Sig, T1.T.y, np.array([1, 0, 2, 1]), sequential=False
    )
    np.testing.assert_allclose(mu, expected[0], rtol=1e-11)
    np.testing.assert_allclose(Sig, expected[1], rtol=1e-11)


def test_t1_converges_to_the_published_optimum():
    T1 = Unwhitened(oracles.T1)
    ascent = T1.ascent(HINGES["hard"]())
    state = swept(ascent, 100)
    objective = ascent.sweep(state)
    mu, _ = T1.moments(state)
    # Steps shrink like 2.5 / n, so the means err by about n^-1.25 and the objective by the square.
    np.testing.assert_allclose(objective, -9.272159649614, rtol=0, atol=1e-5)
    published = [[0.22852687, -0.62605820], [0.39927291, 0.62221917], [-0.62779978, 0.00383903]]
    np.testing.assert_allclose(mu, published, rtol=0, atol=3e-3)
    # The sum of the updates over classes is zero, so the sum of the means shrinks in every step.
    np.testing.assert_allclose(mu.sum(0), 0, rtol=0, atol=5e-3)


def test_first_sweep_from_the_prior_contrasts_all_wrong_classes_equally():
    T1 = Unwhitened(oracles.T1)
    K, kappa, kt = T1.parts
    C, y = 3, T1.T.y
    pi = (np.arange(C) != y[:, None]) / (C - 1)
    # (S23) at the prior: means are zero, and variances those of the kernel.
    w = pi / np.sqrt(1 + 2 * (kt + np.einsum("np,pq,nq->n", kappa, K, kappa)))[:, None]
    for name in ("hard", "soft"):
        ascent = T1.ascent(HINGES[name]())
        state = ascent.init()
        assert ascent.sweep(state) == pytest.approx(-4 * (1 + math.sqrt(3)), rel=1e-12)
        mu, Sig = T1.moments(state)
        for j in range(C):
            own = (y == j).astype(float)
            weight = own * w.sum(1) + (1 - own) * w[:, j]
            linear = own * (pi + w).sum(1) - (1 - own) * (pi + w)[:, j]
            expected = np.linalg.inv(np.linalg.inv(K) + kappa.T * weight @ kappa)
            np.testing.assert_allclose(Sig[j], expected, rtol=1e-11)
            np.testing.assert_allclose(mu[j], expected @ kappa.T @ linear, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["hard", "soft"])
def test_integer_weights_are_repeated_rows(name):
    T1, weights = Unwhitened(oracles.T1), np.array([1, 3, 1, 1])
    repeated = np.repeat(np.arange(4), weights)
    weighted = T1.ascent(HINGES[name](), weights.astype(float))
    longer = ascent_of(HINGES[name](), T1.kernel, T1.T.X[repeated], T1.T.y[repeated], T1.T.Z)
    states = [T1.start(ascent) for ascent in (weighted, longer)]
    for sweep in range(8):
        values = [a.sweep(s) for a, s in zip((weighted, longer), states, strict=True)]
        if sweep == 0 and name == "hard":
            np.testing.assert_allclose(values, -15.9194875646, rtol=0, atol=2e-5)
        # The terms are the same, summed in another order.
        np.testing.assert_allclose(*values, rtol=1e-13)
        for part in ("mean", "root"):
            ends = (getattr(state, part) for state in states)
            np.testing.assert_allclose(*ends, rtol=0, atol=1e-12)


def test_weight_zero_removes_a_row(hinge):
    X, y = ring(30, max(hinge.n_latents, 2))
    weights = np.resize([1.0, 0.0, 2.0, 0.5], 30)
    kept = weights > 0
    kernel, Z = 1.0 * RBF(1.0), X[:6]
    a = swept(ascent_of(hinge, kernel, X, y, Z, weights), 5)
    b = swept(ascent_of(hinge, kernel, X[kept], y[kept], Z, weights[kept]), 5)
    assert torch.equal(a.mean, b.mean)


# Coordinate ascent: the binary model, section 8.4


@pytest.mark.parametrize(
    ("var", "objective", "mu"),
    [
        (1.0, -6.3878432342, (-1.0735864815, 1.0498539195)),
        (2.0, -6.1830607704, (-1.5170538319, 1.5505678948)),
    ],
)
def test_binary_optimum_is_the_published_one(var, objective, mu):
    T1 = Unwhitened(oracles.T1_BINARY, var)
    ascent = T1.ascent(BinarySites())
    state = swept(ascent, 60)
    value, (mean, cov) = ascent.sweep(state), T1.moments(state)
    assert state.change < 1e-14
    np.testing.assert_allclose(value, objective, rtol=0, atol=1e-5)
    np.testing.assert_allclose(mean[0], mu, rtol=0, atol=1e-5)
    if var == 2:
        published = [[0.4571042686, -0.0642511282], [-0.0642511282, 0.5663404818]]
        np.testing.assert_allclose(cov[0], published, rtol=0, atol=1e-5)
    expected = oracles.binary_sweep(*T1.parts, mean[0], cov[0], T1.T.s)
    np.testing.assert_allclose(mean[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(cov[0], expected[1], rtol=0, atol=1e-12)


def test_one_binary_sweep_is_the_published_update():
    T1 = Unwhitened(oracles.T1_BINARY)
    ascent = T1.ascent(BinarySites())
    state = T1.start(ascent)
    close = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(ascent.sweep(state), -7.3417183722, **close)
    inverse = np.linalg.inv(T1.chol)
    eta1 = inverse.T @ state.linear[0].numpy()
    precision = inverse.T @ state.precision[0].numpy() @ inverse
    np.testing.assert_allclose(eta1, [-3.1059965140, 2.3288357836], **close)
    np.testing.assert_allclose(
        precision, [[2.7601108203, -0.1311347143], [-0.1311347143, 2.1738427822]], **close
    )
    np.testing.assert_allclose(T1.moments(state)[0][0], [-1.0775058985, 1.0062997073], **close)
    np.testing.assert_allclose(ascent.sweep(state), -6.4010014843, **close)


@pytest.mark.parametrize("make", [BinarySites, FixedContrast])
@pytest.mark.parametrize("seed", range(5))
def test_undamped_ascent_is_monotone_where_nothing_is_chosen_anew(make, seed):
    rng = np.random.default_rng(seed)
    hinge = make()
    X, y = rng.normal(size=(30, 2)), rng.integers(max(hinge.n_latents, 2), size=30)
    weights = rng.uniform(0.1, 3, size=30)
    kernel = rng.uniform(0.5, 50) * RBF(rng.uniform(0.3, 3)) + ConstantKernel(1.0) + Linear(0.7)
    ascent = ascent_of(hinge, kernel, X, y, X[:8], weights)
    # With several classes, the first step contrasts all of them and maximizes another objective.
    state = swept(ascent, 1)
    values = [ascent.sweep(state) for _ in range(25)]
    # The error is rounding of sums of about 100.
    assert (np.diff(values) > -1e-11).all()
    assert max(values) < 0


# Coordinate ascent: identities


def test_first_natural_parameters_of_minibatches_average_to_those_of_all_rows(hinge):
    X, y = ring(24, max(hinge.n_latents, 2))
    weights = np.random.default_rng(0).uniform(0.1, 3, size=24)
    ascent = ascent_of(hinge, 2.0 * RBF(1.0), X, y, X[:6], weights)
    start = swept(ascent, 2)
    for at_prior in (True, False):
        start_at = ascent.init if at_prior else partial(undamped, ascent, *weights_of(start))
        full = start_at()
        objective = ascent.sweep(full)
        values, parts = [], []
        for index in torch.randperm(24, generator=torch.Generator().manual_seed(0)).split(6):
            parts.append(start_at())
            values.append(ascent.stochastic_sweep(parts[-1], [index]))
        # Identity 5 of section 8.2: the first step is undamped, so the state is the target.
        for name in ("linear", "precision"):
            average = torch.stack([getattr(part, name) for part in parts]).mean(0)
            np.testing.assert_allclose(average, getattr(full, name), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(np.mean(values), objective, rtol=1e-12)


def test_sweep_is_a_natural_gradient_step():
    hinge = FixedContrast()
    X, y = ring(20, 3)
    ascent = ascent_of(hinge, 2.0 * RBF(1.0), X, y, X[:5])
    start = swept(ascent, 2)
    mean = start.mean.clone().requires_grad_()
    cov = (start.root @ start.root.mT).requires_grad_()
    q = InducingPosterior(ascent.basis, mean, upper(cov))
    m, v = q.marginals(t64(X))
    active = hinge.active_latents(codes(y), m)
    sites = hinge.sites(codes(y), m.gather(1, active), v.gather(1, active))
    objective = -sites.loss.sum() - q.kl()
    in_mean, in_cov = torch.autograd.grad(objective, (mean, cov))
    in_cov = (in_cov + in_cov.mT) / 2
    target = undamped(ascent, *weights_of(start))
    assert ascent.sweep(target) == pytest.approx(objective.item(), rel=1e-12)
    # Identity 3 of section 8.2; variances are floored at 1e-12.
    np.testing.assert_allclose(
        in_mean - 2 * (in_cov @ mean[..., None])[..., 0].detach(),
        target.linear - start.linear,
        rtol=0,
        atol=1e-9,
    )
    np.testing.assert_allclose(in_cov, (start.precision - target.precision) / 2, rtol=0, atol=1e-9)


def test_steps_are_convex_combinations_of_natural_parameters():
    hinge = HINGES["soft"]()
    X, y = ring(20, 3)
    ascent = ascent_of(hinge, 2.0 * RBF(1.0), X, y, X[:5])
    state = swept(ascent, 7)
    target = undamped(ascent, *weights_of(state))
    ascent.sweep(target)
    before = replace(state)
    ascent.sweep(state)
    for name in ("linear", "precision"):
        ends = getattr(before, name), getattr(target, name)
        expected = torch.lerp(*ends, hinge.step(7))
        np.testing.assert_allclose(getattr(state, name), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        state.root @ state.root.mT, torch.linalg.inv(state.precision), atol=1e-10
    )
    np.testing.assert_allclose(
        (state.precision @ state.mean[..., None])[..., 0], state.linear, atol=1e-10
    )
    shift = (state.mean - before.mean).norm() / state.mean.norm()
    assert state.change == pytest.approx(shift.item(), rel=1e-12)


@pytest.mark.parametrize("name", ["hard", "soft"])
def test_relabelled_classes_permute_the_latents(name):
    X, y = ring(30, 3)
    order = np.array([2, 0, 1])
    kernel = 2.0 * RBF(1.0) + ConstantKernel(1.0)
    a = swept(ascent_of(HINGES[name](), kernel, X, y, X[:6]), 6)
    b = swept(ascent_of(HINGES[name](), kernel, X, order[y], X[:6]), 6)
    # Sums over rows are in another order.
    np.testing.assert_allclose(b.mean[order], a.mean, rtol=0, atol=1e-11)


def test_flipped_labels_flip_the_binary_latent():
    X, y = ring(30, 2)
    a = swept(ascent_of(BinarySites(), 2.0 * RBF(1.0), X, y, X[:6]), 6)
    b = swept(ascent_of(BinarySites(), 2.0 * RBF(1.0), X, 1 - y, X[:6]), 6)
    assert torch.equal(a.mean, -b.mean)
    assert torch.equal(a.root, b.root)


def test_means_of_the_classes_sum_to_zero_at_the_optimum():
    X, y = ring(30, 3)
    ascent = ascent_of(FixedContrast(), 2.0 * RBF(1.0), X, y, X[:6])
    states = [swept(ascent, 100)]
    for _ in range(2):
        states.append(swept(ascent, 150, replace(states[-1])))
    sums = [state.mean.sum(0).abs().max() for state in states]
    # This is the slowest mode of simultaneous updates; it decays geometrically.
    assert sums[1] < 0.1 * sums[0]
    assert sums[2] < 0.1 * sums[1]
    assert sums[2] < 1e-3 * states[2].mean.abs().max()


def test_held_features_chunks_and_recomputed_ones_agree(hinge, monkeypatch):
    X, y = ring(50, max(hinge.n_latents, 2))
    kernel = 2.0 * RBF(1.0) + ConstantKernel(1.0)

    def results():
        ascent = ascent_of(hinge, kernel, X, y, X[:6], np.linspace(0.5, 2, 50))
        state = swept(ascent, 4)
        return state.mean, state.root, *leave_one_out(ascent, state)

    held = results()
    monkeypatch.setattr(_ascent, "HELD_BYTES", 0)
    assert all(map(torch.equal, held, results()))
    monkeypatch.setattr(WeightedDataset, "chunks", partialmethod(WeightedDataset.chunks, 7))
    # The sums are the same, computed chunk by chunk.
    assert_all_close(held, results(), rtol=0, atol=1e-12)


def test_features_that_are_not_held_are_computed_once_a_pass(monkeypatch):
    monkeypatch.setattr(_ascent, "HELD_BYTES", 0)
    X, y = ring(60, 3)
    hinge = ContrastSites(3, "soft")
    ascent, computed = ascent_of(hinge, 1.0 * RBF(), X, y, X[:6]), []
    basis = WhitenedBasis.__call__
    monkeypatch.setattr(
        WhitenedBasis, "__call__", lambda self, X: computed.append(len(X)) or basis(self, X)
    )
    state = ascent.init()
    for run in (
        lambda: ascent.stochastic_sweep(state, torch.arange(60).split(20)),
        lambda: ascent.sweep(state),
        lambda: ascent.elbo(state),
        lambda: ascent.sites(state),
    ):
        computed.clear()
        run()
        assert sum(computed) == 60


def test_new_basis_drops_held_features():
    X, y = ring(30, 2)
    ascent = ascent_of(BinarySites(), 2.0 * RBF(1.0), X, y, X[:6])
    swept(ascent, 3)
    other = ascent_of(BinarySites(), 5.0 * RBF(0.4), X, y, X[:6])
    ascent.basis = other.basis
    assert torch.equal(swept(ascent, 3).mean, swept(other, 3).mean)


def test_stream_starts_from_its_prior():
    X, y = ring(40, 3)
    hinge, kernel = FixedContrast(), 2.0 * RBF(1.0)
    first = swept(ascent_of(hinge, kernel, X[:20], y[:20], X[:6]), 10)
    prior = first.precision, first.linear
    ascent = ascent_of(hinge, kernel, X[20:], y[20:], X[:6], prior=prior)
    state = ascent.init()
    np.testing.assert_allclose(state.mean, first.mean, rtol=1e-10)
    values = []
    for _ in range(8):
        mean, root = state.mean.numpy(), state.root.numpy()
        m, v = moments(ascent, state, X[20:])
        active = hinge.active_latents(codes(y[20:]), m)
        sites = hinge.sites(codes(y[20:]), m.gather(1, active), v.gather(1, active))
        kl = [
            oracles.gaussian_kl(
                mean[j],
                root[j] @ root[j].T,
                first.mean[j].numpy(),
                np.linalg.inv(first.precision[j].numpy()),
            )
            for j in range(3)
        ]
        expected = -sites.loss.sum().item() - sum(kl)
        values.append(ascent.sweep(state))
        # The objective of a stream is that of its rows, with the divergence from its own prior.
        np.testing.assert_allclose(values[-1], expected, rtol=1e-9)
    assert (np.diff(values) > -1e-11).all()


# Objective and steps that never lower it


class Bold(LikelihoodSites):
    """Sites whose steps are never damped, and thus too long for some likelihoods."""

    def step(self, n_steps):
        return 1.0


def overshooting(seed):
    """Return an ascent whose next whole step lowers the objective, and the state before it."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, 1))
    y = np.sin(2 * X) + 0.05 * rng.standard_t(2, size=(40, 1))
    ascent = ascent_of(Bold(StudentT(0.05), 1), 4.0 * RBF(0.5), X, y, X[:10])
    state = ascent.init()
    for _ in range(50):
        before = ascent.elbo(state)
        after = replace(state)
        ascent.sweep(after)
        if ascent.elbo(after) < before - 0.1:
            return ascent, state
        state = after
    raise AssertionError("No step lowered the objective.")


@pytest.mark.parametrize("n_sweeps", [0, 1, 4])
def test_objective_is_what_a_sweep_returns(hinge, n_sweeps, monkeypatch):
    X, y = ring(30, max(hinge.n_latents, 2))
    weights = np.linspace(0.5, 2, 30)
    ascent = ascent_of(hinge, 2.0 * RBF(1.0) + ConstantKernel(1.0), X, y, X[:6], weights)
    state = swept(ascent, n_sweeps)
    before = replace(state)
    value = ascent.elbo(state)
    assert all(part is vars(before)[name] for name, part in vars(state).items())
    assert ascent.sweep(state) == pytest.approx(value, rel=1e-12)
    monkeypatch.setattr(WeightedDataset, "chunks", partialmethod(WeightedDataset.chunks, 7))
    ascent.basis = ascent.basis
    assert ascent.elbo(before) == pytest.approx(value, rel=1e-12)


def test_objective_of_a_stream_is_what_a_sweep_returns():
    X, y = ring(40, 2)
    first = swept(ascent_of(BinarySites(), 2.0 * RBF(1.0), X[:20], y[:20], X[:6]), 5)
    prior = first.precision, first.linear
    ascent = ascent_of(BinarySites(), 2.0 * RBF(1.0), X[20:], y[20:], X[:6], prior=prior)
    state = swept(ascent, 2)
    value = ascent.elbo(state)
    assert ascent.sweep(state) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_uphill_sweep_shortens_a_step_that_would_go_down(seed):
    ascent, start = overshooting(seed)
    whole, state = replace(start), replace(start)
    ascent.sweep(whole)
    value = ascent.uphill_sweep(state)
    assert value == pytest.approx(ascent.elbo(start), rel=1e-12)
    assert ascent.elbo(state) >= value - 1e-9 * abs(value)
    # The direction in natural parameters is the same, halved several times.
    for name in ("precision", "linear"):
        full, taken = (getattr(end, name) - getattr(start, name) for end in (whole, state))
        share = ((taken * full).sum() / full.square().sum()).item()
        assert share == pytest.approx(2.0 ** round(math.log2(share)), rel=1e-9)
        assert 2**-10.5 < share < 0.6
        np.testing.assert_allclose(taken, share * full, rtol=0, atol=1e-9 * full.abs().max())
    # Moments match their natural parameters; all halvings count as one step.
    mean, root = weight_moments(state.precision, state.linear)
    assert torch.equal(state.mean, mean)
    assert torch.equal(state.root, root)
    assert state.n_steps == start.n_steps + 1
    change = (mean - start.mean).norm() / mean.norm()
    assert state.change == pytest.approx(change.item())


@pytest.mark.parametrize(
    ("likelihood", "n_latents"),
    [(StudentT(0.05), 1), (Laplace(0.05), 1), (RobustMax(0.01), 3), (Softmax(), 3)],
    ids=["StudentT", "Laplace", "RobustMax", "Softmax"],
)
def test_uphill_sweeps_never_lower_the_objective(likelihood, n_latents):
    if n_latents > 1:
        X, y = ring(40, n_latents)
    else:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(40, 2))
        y = np.sin(2 * X[:, :1]) + 0.05 * rng.standard_t(2, size=(40, 1))
    ascent = ascent_of(Bold(likelihood, n_latents), 4.0 * RBF(0.5), X, y, X[:10])
    state = ascent.init()
    values = [ascent.uphill_sweep(state) for _ in range(30)]
    assert values[-1] > values[0] + 10
    # The error is rounding of sums; after ten halvings, a step is a thousandth of a whole one.
    assert (np.diff(values) >= -2e-9 * np.abs(values[1:])).all()


def test_natural_sweeps_of_robust_max_find_the_optimum():
    X, y = ring(40, 3)
    ascent = ascent_of(LikelihoodSites(RobustMax(), 3), 4.0 * RBF(0.7), X, y, X[:8])
    state = ascent.init()
    for _ in range(10):
        ascent.natural_sweep(state)
    A, residual, codes, _ = ascent.batch(slice(0, 40))
    rows, columns = torch.triu_indices(8, 8)

    def objective(flat):
        mean, entries = flat.view(3, -1).split([8, 36], 1)
        raw = torch.zeros(3, 8, 8, dtype=torch.float64)
        raw[:, rows, columns] = entries
        root = upper_root(raw)
        loss = batch_loss(ascent.likelihood, A, residual, codes, mean, root).sum()
        return -loss - gaussian_kl(mean, root).sum()

    start = torch.zeros(3 * 44, dtype=torch.float64)
    unbounded = torch.tensor([[-math.inf, math.inf]]).expand(len(start), -1)
    _, best = lbfgs(by_autograd(objective), start, unbounded, 1000)
    assert ascent.elbo(state) == pytest.approx(best, abs=0.04)


def test_natural_sweeps_of_the_softmax_reach_the_optimum_of_many_uphill_sweeps():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 6
    X = 2.0 * rng.normal(size=(6, 3))[y] + rng.normal(size=(60, 3))
    ascent = ascent_of(LikelihoodSites(Softmax(), 6), 9.0 * RBF(2.0), X, y, X[:15])
    few, many = ascent.init(), ascent.init()
    values = [ascent.natural_sweep(few) for _ in range(6)]
    for _ in range(200):
        ascent.uphill_sweep(many)
    assert (np.diff(values) > 0).all()
    best = ascent.elbo(many)
    assert ascent.elbo(few) == pytest.approx(best, abs=0.01)
    # Sweeps without steps on the means of all latents together take more than twice as many.
    slow = ascent.init()
    for _ in range(12):
        ascent.uphill_sweep(slow)
    assert ascent.elbo(slow) < best - 0.01


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [10.0, 100.0])
def test_natural_sweeps_of_the_softmax_recover_from_means_that_exclude_the_classes(size, dtype):
    """Sites of labels that seem impossible have hardly any precision, and a large linear term."""
    X, y = ring(60, 3)
    ascent = ascent_of(LikelihoodSites(Softmax(), 3), 9.0 * RBF(0.7), X, y, X[:15])
    ascent = CoordinateAscent(ascent.likelihood, ascent.basis, ascent.rows, dtype=dtype)
    prior, start = ascent.init(), ascent.init()
    for _ in range(200):
        ascent.uphill_sweep(prior)
    wrong = ascent.init(-size * prior.mean, start.root)
    values = [ascent.natural_sweep(wrong) for _ in range(25)]
    assert values[0] < ascent.elbo(prior) - 100
    # The error is rounding of sums in the dtype of the features.
    rounding = 16 * torch.finfo(dtype).eps * np.abs(values[1:])
    assert (np.diff(values) >= -rounding).all()
    assert ascent.elbo(wrong) == pytest.approx(ascent.elbo(prior), abs=0.01)


def test_natural_sweeps_of_the_softmax_settle_at_large_variances():
    # Whole steps fall by up to .002 nats per row, again and again.
    rng = np.random.default_rng(0)
    y = np.arange(60) % 4
    X = 2.0 * rng.normal(size=(4, 4))[y] + rng.normal(size=(60, 4))
    ascent = ascent_of(LikelihoodSites(Softmax(), 4), 400.0 * RBF(1.0), X, y, X[:20])
    state = ascent.init()
    values = [ascent.natural_sweep(state) for _ in range(15)]
    assert (np.diff(values) >= -1e-5 * 60).all()
    assert state.change < 1e-3


@pytest.mark.parametrize("streamed", [False, True])
def test_newton_step_is_that_of_the_dense_hessian(streamed):
    X, y = ring(30, 3)
    problem = LikelihoodSites(Softmax(), 3), 4.0 * RBF(0.7), X, y, X[:4]
    ascent = ascent_of(*problem)
    state = swept(ascent, 2)
    if streamed:
        ascent = ascent_of(*problem, prior=weights_prior(ascent))
    (A, residual, codes, _), root = ascent.batch(slice(0, 30)), state.root
    var = residual[:, None] + (A @ root).square().sum(2).T
    precision, linear = ascent.prior

    def objective(mean):
        log_prob = ascent.likelihood.likelihood.expected_log_prob(codes, A @ mean.T, var).sum()
        quadratic = torch.einsum("cp,cpq,cq->", mean, precision, mean)
        return log_prob + (linear * mean).sum() - 0.5 * quadratic

    start = state.mean
    gradient = torch.autograd.functional.jacobian(objective, start).ravel()
    hessian = torch.autograd.functional.hessian(objective, start).reshape(12, 12)
    wanted = start - torch.linalg.solve(hessian, gradient).view(3, 4)
    ascent._newton_step(state)
    np.testing.assert_allclose(state.mean, wanted, atol=0.1 * (wanted - start).abs().max())
    np.testing.assert_allclose(state.linear, mean_steps.times(state.precision, state.mean))


def test_uphill_sweep_is_a_sweep_where_that_goes_up():
    X, y = ring(30, 2)
    ascent = ascent_of(BinarySites(), 2.0 * RBF(1.0), X, y, X[:6])
    a, b = ascent.init(), ascent.init()
    for _ in range(5):
        assert ascent.sweep(a) == ascent.uphill_sweep(b)
        assert torch.equal(a.mean, b.mean)
        assert a.change == b.change


# Quasi-Newton steps


def ascended(ascent, n_steps, state=None):
    """Return the state after some quasi-Newton steps, from a state or the prior, and objectives."""
    state = ascent.init() if state is None else state
    return state, [ascent.ascend(state) for _ in range(n_steps)]


def digits_ascent(hinge, n=150):
    X, y = load_digits(n_class=max(hinge.n_latents, 2), return_X_y=True)
    X = (X[:n] - 8) / 8
    return ascent_of(hinge, 5.0 * RBF(4.0) + ConstantKernel(5.0), X, y[:n], X[::6])


@pytest.mark.parametrize("hinge", [BinarySites(), *(ContrastSites(c, "soft") for c in (3, 6, 10))])
def test_quasi_newton_steps_end_where_the_objective_has_its_only_maximum(hinge):
    ascent = digits_ascent(hinge)
    state, values = ascended(ascent, 60)
    assert state.change < 1e-5
    target = undamped(ascent, *weights_of(state))
    before = replace(target)
    ascent.sweep(target)
    for name in ("precision", "linear", "mean"):
        old = getattr(before, name)
        assert (getattr(target, name) - old).norm() < 1e-4 * old.norm()
    # The ascent takes few steps, without halving, and reaches the same optimum from another state.
    assert values[25] > values[-1] - 1e-3 * 150
    assert (np.diff(values) > -1e-6).all()
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(state.mean.shape, generator=generator, dtype=torch.float64)
    elsewhere = ascent.init(mean, 0.5 * torch.eye(mean.shape[1]).double().expand_as(state.root))
    other, _ = ascended(ascent, 80, elsewhere)
    np.testing.assert_allclose(other.mean, state.mean, atol=1e-3)
    np.testing.assert_allclose(other.root, state.root, atol=1e-3)


def test_two_rivals_of_ten_classes_have_no_fixed_point_and_shrinking_steps_hide_it():
    hinge = ContrastSites(10, "soft")
    hinge.n_contrasts, hinge.activates_all = 2, False
    hinge.step = lambda n: 0.7 * min(1.0, 5 / (n + 1)) if n else 1.0
    ascent = digits_ascent(hinge)
    state = swept(ascent, 150)
    assert state.change < 0.01
    whole = undamped(ascent, *weights_of(state))
    ascent.sweep(whole)
    assert whole.change > 0.03


@pytest.mark.parametrize("start", ["prior", "elsewhere"])
@pytest.mark.parametrize("hinge", [BinarySites(), ContrastSites(4, "soft")])
def test_change_is_larger_than_what_is_left_to_go(hinge, start):
    ascent = digits_ascent(hinge)
    best, _ = ascended(ascent, 30)
    state = ascent.init() if start == "prior" else swept(ascent, 3)
    changes = []
    for _ in range(6):
        ascent.ascend(state)
        left = (state.mean - best.mean).norm() / best.mean.norm()
        changes.append(state.change)
        assert left < state.change
    assert (np.diff(np.log(changes)) < math.log(0.5)).all()


def test_steps_of_means_that_are_too_long_are_shortened(monkeypatch):
    ascent = digits_ascent(ContrastSites(10, "soft"))
    best = ascended(ascent, 20)[1][-1]
    step = mean_steps._bfgs_step
    monkeypatch.setattr(mean_steps, "_bfgs_step", lambda *given: 16 * step(*given))
    state, values = ascended(ascent, 30)
    assert (np.diff(values) >= -1e-8 * np.abs(values[1:])).all()
    # Moments and natural parameters still match.
    mean, root = weight_moments(state.precision, state.linear)
    np.testing.assert_allclose(state.mean, mean, atol=1e-8)
    np.testing.assert_allclose(state.root, root, atol=1e-8)
    assert values[-1] > best - 1e-3 * 150


def test_steps_of_covariances_that_lower_the_objective_are_halved():
    class Bold(BinarySites):
        """Sites of ten times the precision."""

        def sites(self, y, mean, var):
            sites = super().sites(y, mean, var)
            return replace(sites, precision=10 * sites.precision)

    best, _ = ascended(digits_ascent(BinarySites()), 20)
    ascent = digits_ascent(Bold())
    state = ascent.init(best.mean, 2 * best.root)
    before = ascent.elbo(state)
    whole = undamped(ascent, *weights_of(state))
    ascent.ascend(state)
    assert ascent.elbo(state) > before
    ascent.sweep(whole)
    assert ascent.elbo(whole) < before


def test_steps_for_more_than_ten_classes_end():
    X, y = ring(240, 14)
    ascent = ascent_of(ContrastSites(14, "soft"), 5.0 * RBF(0.5), X, y, X[:40])
    state, n_steps = ascent.init(), 0
    while state.change > 3e-3 and n_steps < 100:
        ascent.ascend(state)
        n_steps += 1
    assert n_steps < 10


def test_hard_contrast_takes_the_shrinking_steps_of_sweeps():
    X, y = ring(60, 3)
    ascent = ascent_of(HINGES["hard"](), 2.0 * RBF(1.0), X, y, X[:12])
    a, b = ascent.init(), ascent.init()
    for _ in range(30):
        assert ascent.ascend(a) == ascent.sweep(b)
        assert torch.equal(a.mean, b.mean)
    # There is no fixed point: after many steps, a whole step still moves the means.
    state = swept(ascent, 300)
    whole = undamped(ascent, *weights_of(state))
    ascent.sweep(whole)
    assert state.change < 3e-3
    assert whole.change > 0.05


def test_quasi_newton_steps_of_a_stream_start_from_its_prior():
    X, y = ring(80, 3)
    kernel = 2.0 * RBF(1.0)
    first, _ = ascended(ascent_of(HINGES["soft"](), kernel, X[:40], y[:40], X[:10]), 40)
    prior = first.precision, first.linear
    ascent = ascent_of(HINGES["soft"](), kernel, X[40:], y[40:], X[:10], prior=prior)
    state, values = ascended(ascent, 60)
    assert (np.diff(values) > -1e-8).all()
    target = undamped(ascent, *weights_of(state))
    ascent.sweep(target)
    assert target.change < 1e-5


def test_elbo_after_a_sweep_and_the_next_sweep_share_the_sites():
    calls, likelihood = [], LikelihoodSites(StudentT(0.5), 1)
    sites = likelihood.sites
    likelihood.sites = lambda *moments: calls.append(1) or sites(*moments)
    X, y = ring(30, 2)
    ascent = ascent_of(likelihood, 1.0 * RBF(1.0), X, y[:, None].astype(float), X[:6])
    state = ascent.init()
    for _ in range(3):
        ascent.uphill_sweep(state)
    assert len(calls) == 4  # of the prior, and after each sweep
    sites, targets = LikelihoodSites(StudentT(0.5), 1), y[:, None].astype(float)
    other = ascent_of(sites, 1.0 * RBF(1.0), X, targets, X[:6])
    assert ascent.elbo(state) == other.elbo(state)
