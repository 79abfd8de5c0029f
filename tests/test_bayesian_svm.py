"""Bayesian SVM: choice of the kernel, and the estimator."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import oracles
import pytest
import torch
from numpy.testing import assert_allclose
from problems import HINGES, JITTER, Unwhitened, ring, rows_of, t64
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss

from skgpsvm import BayesianSVC
from skgpsvm._calibration import is_significant_gain
from skgpsvm._fitted_models import SparseModel
from skgpsvm._hinge_sites import BinarySites, ContrastSites
from skgpsvm._merging import merged_rows
from skgpsvm._posteriors import WhitenedBasis
from skgpsvm._torch_kernels import directions
from skgpsvm.bayesian_svm import _kernel_choice
from skgpsvm.bayesian_svm._kernel_choice import (
    LeaveOneOutChoice,
    ParabolicSearch,
    PrincipalBasis,
    chosen_kernel,
    of_largest_classes,
    with_ratios_of,
)
from skgpsvm.exceptions import NotPositiveDefiniteError
from skgpsvm.kernels import Linear

# Kernel choice


class Loop:
    """Problem that runs the stages of a choice without callbacks, and records hyperparameters."""

    def __init__(self):
        self.theta = {}

    def run_stage(self, name, stage, state, max_iter, must_converge):
        assert not must_converge
        for _ in range(max_iter):
            stage.step(state)
            if stage.converged(state):
                break
        self.theta[name] = state.theta


def loss_at(choice, theta):
    """Return the leave-one-out log loss of a fit from the prior."""
    return choice.solve(theta)[0]


def choice_of(kernel, X, y, hinge=None, weights=None, n_inducing=25):
    return LeaveOneOutChoice(
        kernel, hinge or BinarySites(), rows_of(X, y, weights), t64(X[:n_inducing])
    )


def chosen(kernel, X, y, loop=None, start=None):
    """Return theta of the result of `chosen_kernel`."""
    problem = loop or Loop()
    problem.scale, problem.start = t64(X.std(0)), start
    problem.random_state = np.random.RandomState(0)
    sparse = SimpleNamespace(
        problem=problem,
        likelihood=BinarySites(),
        rows=rows_of(X, y),
        alternatives=(),
        fewer_points=lambda Z, n_points: Z,
    )
    return t64(chosen_kernel(sparse, SparseModel(kernel, X[:25], noise=())).theta)


def shells(n, seed, d=3):
    """Return an isotropic problem: classes inside and outside a sphere, with some wrong labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    size = (X**2).sum(1)
    return X, (size + 0.5 * rng.normal(size=n) > np.median(size)).astype(int)


def waves(n, seed):
    """Return a problem whose classes depend on the first feature only."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, (np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n) > 0).astype(int)


@pytest.mark.parametrize("name", HINGES)
def test_chosen_kernel_predicts_left_out_rows_better(name):
    hinge = HINGES[name]()
    X, y = ring(60, max(hinge.n_latents, 2))
    choice = choice_of(ConstantKernel(5.0) * RBF(0.2), X, y, hinge)
    theta = choice.search(Loop(), "", ParabolicSearch(choice).init(choice.start)).theta
    # The initial length scale is far too short: the loss of 40 to 70 nats falls by more than five.
    assert loss_at(choice, theta) < loss_at(choice, choice.start) - 5
    assert theta[1] > choice.start[1]


def test_chosen_kernel_stays_within_its_bounds():
    X, y = waves(60, seed=0)
    kernel = ConstantKernel(5.0, (4.0, 6.0)) * RBF([0.2, 0.2], (0.1, 0.3))
    loop = Loop()
    chosen(kernel, X, y, loop)
    assert len(loop.theta) == 2
    low, high = t64(kernel.bounds).T
    for theta in loop.theta.values():
        assert ((theta >= low) & (theta <= high)).all()
    # Length scales five times as long would be best, so they end at the upper bound.
    assert loop.theta["kernel"][1] == high[1]


def test_fixed_hyper_parameters_are_no_directions():
    X, y = waves(40, seed=0)
    kernel = ConstantKernel(5.0, "fixed") * RBF([0.5, 0.5]) + ConstantKernel(1.0)
    choice = choice_of(kernel, X, y)
    # One direction moves both length scales, the other the second constant.
    np.testing.assert_array_equal(choice.directions, [[1, 1, 0], [0, 0, 1]])


def test_irrelevant_feature_gets_a_longer_length_scale():
    kept = 0
    for seed in range(8):
        loop = Loop()
        X, y = waves(200, seed)
        theta = chosen(ConstantKernel(5.0) * RBF([1.0, 1.0]), X, y, loop)
        common, apart = loop.theta["kernel"], loop.theta["length scales"]
        assert apart[2] - apart[1] > math.log(1.5)
        is_apart = not torch.allclose(theta, common)
        kept += is_apart
        if is_apart:
            assert theta[2] - theta[1] == pytest.approx((apart[2] - apart[1]).item())
    # A third of the rows is too few to decide so in every draw: five of eight suffice.
    assert kept >= 5


def test_length_scales_alike_stay_in_common():
    kept = 0
    for seed in range(16):
        loop = Loop()
        theta = chosen(ConstantKernel(5.0) * RBF([1.0] * 3), *shells(200, seed), loop)
        common = loop.theta["kernel"]
        assert len(common[1:].unique()) == 1
        kept += torch.allclose(theta, common)
    # Chance exceeds one standard error once in six draws, so 13 of 16 are expected.
    assert kept >= 12


def test_a_gain_must_exceed_its_standard_error():
    shape = t64([-1.0, 1.0]).repeat(50)
    spread = shape.std().item()
    for errors, expected in [(0.5, False), (2.0, True), (-2.0, False)]:
        assert is_significant_gain(shape + errors * spread / 10) is expected
    assert not is_significant_gain(t64(np.zeros(5)))


def test_rows_that_judge_are_not_those_that_teach(monkeypatch):
    maximize_elbo, judged, moved = [], [], []
    climb, losses = LeaveOneOutChoice.maximize_elbo, LeaveOneOutChoice.log_losses
    index_of = {tuple(x): i for i, x in enumerate(waves(90, seed=1)[0])}

    class Spy(Loop):
        def run_stage(self, name, stage, state, max_iter, must_converge):
            before = getattr(state, "Z", None)
            super().run_stage(name, stage, state, max_iter, must_converge)
            if name == "length scales":
                moved.append(not torch.equal(before, state.Z))

    def spied_climb(self, *args):
        maximize_elbo.extend(index_of[tuple(x)] for x in self.rows.X.numpy())
        return climb(self, *args)

    def spied_losses(self, theta, index, start):
        judged.append(index.tolist())
        return losses(self, theta, index, start)

    monkeypatch.setattr(LeaveOneOutChoice, "maximize_elbo", spied_climb)
    monkeypatch.setattr(LeaveOneOutChoice, "log_losses", spied_losses)
    chosen(ConstantKernel(5.0) * RBF([1.0, 1.0]), *waves(90, seed=1), Spy())
    assert len(maximize_elbo) == 60
    assert judged[0] == judged[1]
    assert len(judged[0]) == 30
    assert set(maximize_elbo) | set(judged[0]) == set(range(90))
    assert moved == [True]


@pytest.mark.parametrize(("start", "expected"), [(None, 2), ("a model", 1)])
def test_a_warm_start_searches_once_where_ratios_have_moved(start, expected):
    loop, kernel = Loop(), ConstantKernel(5.0) * RBF([3.0, 0.5])
    X, y = waves(90, seed=1)
    choice = choice_of(kernel, X, y)
    theta = chosen(kernel, X, y, loop, start)
    assert sum(name.startswith("kernel") for name in loop.theta) == expected
    assert loss_at(choice, theta) < loss_at(choice, choice.start)


def test_more_rows_have_the_last_word(monkeypatch):
    monkeypatch.setattr(_kernel_choice, "_SEARCH_SIZE", (8, 4))
    loop = Loop()
    theta = chosen(ConstantKernel(5.0) * RBF([0.1, 0.1]), *waves(300, seed=2), loop)
    assert_allclose(theta, loop.theta["kernel, more rows"], rtol=1e-12)
    assert not torch.allclose(theta, loop.theta["kernel"])


def test_few_rows_cannot_tell_entries_apart():
    loop = Loop()
    theta = chosen(ConstantKernel(5.0) * RBF([1.0, 1.0]), *waves(29, seed=0), loop)
    assert set(loop.theta) == {"kernel"}
    assert theta[1] == theta[2]


def test_search_moves_both_length_scales_by_one_factor():
    X, y = waves(150, seed=1)
    choice = choice_of(ConstantKernel(5.0) * RBF([1.0, 1.0]), X, y)
    start = t64(np.log([5.0, 0.15, 0.75]))
    best = choice.search(Loop(), "", ParabolicSearch(choice).init(start))
    assert loss_at(choice, best.theta) < loss_at(choice, start) - 1
    shift = best.theta - start
    assert shift[1] == pytest.approx(shift[2].item(), abs=1e-12)
    # No place at a distance of one is better.
    for direction in (*choice.directions, *-choice.directions):
        moved = shift[:2] + direction[:2]
        loss = loss_at(choice, best.theta + direction) + 2 * moved.square().sum().item()
        assert loss > best.loss
    once = choice.search(Loop(), "", ParabolicSearch(choice).init(start), rounds=1)
    assert once.loss > best.loss


def test_search_rejects_places_without_a_kernel_matrix(monkeypatch):
    X, y = waves(150, seed=1)
    choice = choice_of(ConstantKernel(5.0) * RBF([1.0, 1.0]), X, y)
    start, solve = t64(np.log([5.0, 0.15, 0.75])), choice.solve
    free = choice.search(Loop(), "", ParabolicSearch(choice).init(start))

    def refusing(theta, sites=None):
        if theta[0] < start[0]:
            raise NotPositiveDefiniteError("too small")
        return solve(theta, sites)

    monkeypatch.setattr(choice, "solve", refusing)
    best = choice.search(Loop(), "", ParabolicSearch(choice).init(start))
    assert free.theta[0] < start[0] <= best.theta[0]
    assert best.theta[1] != start[1]
    assert best.loss < ParabolicSearch(choice).init(start).loss


def test_ratios_leave_the_mean_inverse_square_of_length_scales():
    kernel = ConstantKernel(5.0) * RBF([1.0, 2.0, 4.0]) + ConstantKernel(2.0)
    theta, shift = t64(kernel.theta), t64([1.0, 0.5, -0.5, 2.0, -3.0])
    moved = with_ratios_of(theta + shift, theta, directions(kernel)) - theta
    np.testing.assert_allclose(moved[[0, 4]], 0, atol=1e-12)
    np.testing.assert_allclose(moved[1:4] - moved[1], shift[1:4] - shift[1], atol=1e-12)
    assert (-2 * moved[1:4]).exp().mean().item() == pytest.approx(1)


def test_separate_length_scales_stay_within_their_bounds():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    y = X[:, 0] + 0.2 * rng.normal(size=150) > 0
    kernel = ConstantKernel(4.0, "fixed") * RBF([1.0] * 3, (0.5, 2.5))
    with pytest.warns(ConvergenceWarning, match="on its upper bound 2.5"):
        model = BayesianSVC(kernel, random_state=0).fit(X, y)
    scales = model.kernel_.k2.length_scale
    assert scales[0] < scales[1]  # apart
    assert (scales <= 2.5 + 1e-9).all()


@pytest.mark.parametrize("variance", [1e-4, 5.0, 500.0])
@pytest.mark.parametrize("n", [10, 60])
def test_principal_directions_keep_nearly_all_prior_variance(n, variance):
    X, y = waves(n, seed=0)
    choice = choice_of(ConstantKernel(variance) * RBF([3.0, 3.0]), X, y)
    whole = WhitenedBasis(choice.kernel, choice.start, choice.Z)
    basis = PrincipalBasis(whole, choice.rows)
    assert basis.size < min(n, whole.size)
    (A, residual), (kept, more) = whole(t64(X)), basis(t64(X))
    variance = A.square().sum(1) + residual
    np.testing.assert_allclose(kept.square().sum(1) + more, variance, rtol=1e-9)
    dropped = (more - residual).sum()
    assert 0 < dropped < 0.001 * A.square().sum()
    assert dropped < 0.01 * n  # also of the squared margin
    gram = kept.T @ kept
    np.testing.assert_allclose(gram, gram.diagonal().diag(), atol=1e-8 * gram.max())


@pytest.mark.parametrize("contrast", ["soft", "hard"])
def test_largest_classes_and_their_rows(contrast):
    y = np.repeat(np.arange(5), [4, 6, 2, 9, 6])[np.random.default_rng(0).permutation(27)]
    X, weights = np.arange(27.0)[:, None], np.where(y == 2, 5.0, 1.0)
    rows = rows_of(X, y, weights)
    hinge, some = of_largest_classes(ContrastSites(5, contrast), rows, 3)
    assert hinge.n_latents == 3
    assert hinge.smooth == (contrast == "soft")
    # Weights of the classes are 4, 6, 10, 9, 6; of two equally large ones, the first is kept.
    expected = {2: 0, 3: 1, 1: 2}
    X_some, targets, w = some.take(slice(None))
    old = y[X_some[:, 0].long().numpy()]
    assert sorted(X_some[:, 0].tolist()) == X[np.isin(y, list(expected)), 0].tolist()
    assert targets.tolist() == [expected[code] for code in old]
    assert some.total_weight == 25
    assert w.tolist() == np.where(old == 2, 5, 1).tolist()
    # The rows of all classes are unchanged.
    assert rows.total_weight == 35
    assert rows.targets.max() == 4


@pytest.mark.parametrize(("few", "most"), [(60, 3), (120, 4)])
def test_many_classes_are_searched_with_the_largest_ones(monkeypatch, few, most):
    monkeypatch.setattr(_kernel_choice, "_SEARCH_SIZE", (few, 8))
    monkeypatch.setattr(_kernel_choice, "_MAX_CLASSES", (4, 3))
    searched = []

    class Watched(LeaveOneOutChoice):
        def __init__(self, kernel, hinge, rows, Z):
            searched.append((hinge.n_latents, int(rows.targets.max()) + 1))
            super().__init__(kernel, hinge, rows, Z)

    monkeypatch.setattr(_kernel_choice, "LeaveOneOutChoice", Watched)
    X, y = ring(90, 5)
    model = BayesianSVC(5.0 * RBF(1.0), n_inducing=10, random_state=0).fit(X, y)
    assert set(searched) == {(most, most)}
    assert model.predict_proba(X).shape == (90, 5)


def test_noise_does_not_promise_a_low_loss():
    rng = np.random.default_rng((2, 0))
    X, y = rng.normal(size=(60, 5)), rng.random(60) > 0.5
    model = BayesianSVC(random_state=0).fit(X, y)
    # Sweeps that end early in the search, at long and short length scales, give 0.28 and 1.8 below.
    assert model.loo_log_loss_ > 0.55
    P = model.predict_proba(np.random.default_rng(3).normal(size=(1000, 5)))
    assert -0.5 * np.log(P).sum(1).mean() < 0.8


def test_leave_one_out_losses_of_all_rows_are_the_loss(hinge):
    X, y = ring(30, max(hinge.n_latents, 2))
    weights = np.resize([1.0, 3.0, 0.5], 30)
    choice = choice_of(5.0 * RBF(1.0), X, y, hinge, weights)
    losses = choice.log_losses(choice.start, torch.arange(30))
    assert losses.sum().item() == pytest.approx(loss_at(choice, choice.start), rel=1e-10)


def test_leave_one_out_loss_counts_weights_as_repetitions(hinge):
    X, y = ring(30, max(hinge.n_latents, 2))
    weights = np.resize([1, 3, 0, 2], 30)
    repeated = np.repeat(np.arange(30), weights)
    kernel = 5.0 * RBF(1.0)
    weighted = choice_of(kernel, X, y, hinge, weights.astype(float))
    merged = merged_rows(X[repeated], y[repeated], np.ones(len(repeated)))[:3]  # as in every fit
    longer = LeaveOneOutChoice(kernel, hinge, rows_of(*merged), weighted.Z)
    losses = [loss_at(choice, choice.start) for choice in (weighted, longer)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


# The estimator


def test_estimator_reaches_the_oracle_s_optimum():
    T1 = Unwhitened(oracles.T1_BINARY, var=2.0)
    model = BayesianSVC(
        T1.kernel, inducing_points=T1.T.Z, optimizer=None, tol=1e-10, probability="argmax"
    )
    model.fit(T1.T.X, T1.T.y)
    mu, Sig = T1.T.mu, T1.T.Sig
    for _ in range(100):
        mu, Sig = oracles.binary_sweep(*T1.parts, mu, Sig, T1.T.s)
    X = np.linspace(-3, 3, 7)[:, None]
    _, kappa, kt = oracles.precompute(X, T1.T.Z, var=2.0, jitter=2 * JITTER)
    mean, var = oracles.latent_moments(kappa, kt, mu[None], Sig[None])
    # The fit stops at a change below 1e-10.
    np.testing.assert_allclose(
        model.latent_mean_and_variance(X), (mean[:, 0], var[:, 0]), atol=1e-9
    )
    expected = oracles.binary_objective(*T1.parts, mu, Sig, T1.T.s)
    np.testing.assert_allclose(model.objective_curve_[-1], expected, rtol=1e-12)
    assert (np.diff(model.objective_curve_) > -1e-13).all()
    assert model.n_iter_ == len(model.objective_curve_)
    # Section 5.5: the probability of a class is that of the latent's sign.
    p = [0.5 * math.erfc(-m / math.sqrt(2 * v)) for m, v in zip(mean[:, 0], var[:, 0], strict=True)]
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], p, atol=1e-9)
    np.testing.assert_array_equal(model.inducing_points_, T1.T.Z)


@pytest.mark.parametrize("optimizer", [None, "leave_one_out", "adam"])
def test_fixed_hyper_parameters_stay_as_given(optimizer):
    X, y = ring(30, 3)
    free = ConstantKernel(3.0) * RBF([0.5, 2.0])
    fixed = ConstantKernel(3.0, "fixed") * RBF([0.5, 2.0], "fixed")
    for kernel in (fixed,) if optimizer else (fixed, free):
        model = BayesianSVC(kernel, n_inducing=6, optimizer=optimizer, random_state=0).fit(X, y)
        # The value passes through a logarithm and back.
        np.testing.assert_allclose(model.kernel_.k1.constant_value, 3.0, rtol=1e-15)
        np.testing.assert_allclose(model.kernel_.k2.length_scale, [0.5, 2.0], rtol=1e-15)


def test_leave_one_out_log_loss_is_that_of_refits():
    X, y = ring(40, 2)
    kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
    model = BayesianSVC(kernel, inducing_points=X[:15], tol=1e-6).fit(X, y)
    losses, in_sample = [], -np.log(model.predict_proba(X)[np.arange(40), y]).mean()
    for i in range(40):
        others = np.arange(40) != i
        part = BayesianSVC(kernel, inducing_points=X[:15], tol=1e-6).fit(X[others], y[others])
        # The leave-one-out loss is that of the model without the row, with the same calibration.
        for name in ("temperature_", "spread_", "intercept_"):
            setattr(part, name, getattr(model, name))
        losses.append(-np.log(part.predict_proba(X[i : i + 1])[0, y[i]]))
    # The error of the moments is of second order, and less than the optimism of the training rows.
    assert abs(model.loo_log_loss_ - np.mean(losses)) < 0.2 * (np.mean(losses) - in_sample)


def test_calibrated_probabilities_are_near_the_true_ones_and_argmax_ones_are_not():
    rng = np.random.default_rng(0)
    X, X_new = rng.normal(size=(400, 1)), np.linspace(-2, 2, 41)[:, None]
    y = rng.uniform(size=400) < expit(1.5 * X[:, 0])
    errors = {}
    for probability in ("calibrated", "argmax"):
        model = BayesianSVC(n_inducing=20, probability=probability, random_state=0).fit(X, y)
        p = model.predict_proba(X_new)[:, 1]
        errors[probability] = np.abs(p - expit(1.5 * X_new[:, 0])).mean()
    # The latent is flat beyond the hinge's margins, where the true log odds still grow: that is an
    # error of 0.05 to 0.07 over seeds. The argmax, which is too certain, errs by 0.2.
    assert errors["calibrated"] < 0.09
    assert errors["argmax"] > 2 * errors["calibrated"]


def test_stream_gathers_what_all_rows_tell():
    X, y = ring(120, 3)
    kernel = ConstantKernel(2.0, "fixed") * RBF(1.0, "fixed")
    settings = {"inducing_points": X[:10], "random_state": 0}
    whole = BayesianSVC(kernel, **settings).fit(X, y)
    stream = BayesianSVC(kernel, **settings)
    distance, spread = [], []
    for part in np.split(np.arange(120), 4):
        stream.partial_fit(X[part], y[part], classes=[0, 1, 2])
        mean, var = stream.latent_mean_and_variance(X)
        distance.append(np.abs(mean - whole.latent_mean_and_variance(X)[0]).mean())
        spread.append(var.mean() / stream.spread_)
    # Every part adds precision, and the means approach those of all rows.
    assert (np.diff(spread) < 0).all()
    assert distance[-1] < 0.5 * distance[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_left_out_rows_are_those_of_the_optimum_with_fewer_rows_than_features(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 200))
    y = rng.uniform(size=60) < expit(2 * X[:, :5].sum(1))
    given, exact = (
        BayesianSVC(optimizer=None, random_state=0, **tol).fit(X, y).loo_log_loss_
        for tol in ({}, {"tol": 1e-5})
    )
    # With ten times the tolerance they differ by 0.04 and 0.05.
    assert abs(given - exact) < 0.01


@pytest.mark.filterwarnings("ignore:The first call to BayesianSVC.partial_fit")
@pytest.mark.parametrize("seed", [2, 3])
def test_stream_comes_close_to_its_optimum_with_fewer_rows_than_features(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 200))
    y = rng.uniform(size=60) < expit(2 * X[:, :5].sum(1))
    start = BayesianSVC(optimizer=None, tol=1e-6, random_state=0).partial_fit(X[:30], y[:30])
    given, exact = (
        copy.deepcopy(start)
        .set_params(tol=tol)
        .partial_fit(X[30:], y[30:])
        .latent_mean_and_variance(X)[0]
        for tol in (1e-2, 1e-6)
    )
    # With ten times the tolerance they differ by 8e-4 and 4e-4.
    assert np.linalg.norm(given - exact) < 2e-4 * np.linalg.norm(exact)


def test_features_of_one_unit_count_as_they_are_if_that_is_clearly_better():
    """Images have pixels that hardly vary; standardized, they drown those that do."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(1300, 66)) * np.r_[np.ones(6), np.full(60, 0.1)]
    function = np.sin(0.5 * X[:, :6] + np.arange(6)).sum(1)
    y = (function > np.median(function)).astype(int)
    std = X[:300].std(0)
    raw = BayesianSVC(random_state=0).fit(X[:300], y[:300])
    scaled = BayesianSVC(random_state=0).fit(X[:300] / std, y[:300])
    assert np.ptp(raw.kernel_.k2.length_scale) < 1e-9  # of the linear term, which are fixed
    loss = log_loss(y[300:], raw.predict_proba(X[300:]))
    assert loss < 0.6 * log_loss(y[300:], scaled.predict_proba(X[300:] / std))


@pytest.mark.parametrize("signal", [1e-3, 1e3])
def test_features_of_different_units_are_standardized(signal):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = (np.sin(2 * X[:, 0]) + X[:, 2] > 0).astype(int)
    X /= X.std(0)
    fitted = BayesianSVC(random_state=0).fit(X, y).predict_proba(X)
    units = np.array([signal, 1.0, 1 / signal])
    scaled = BayesianSVC(random_state=0).fit(X * units, y).predict_proba(X * units)
    assert_allclose(scaled, fitted, atol=1e-6)


def test_kernel_that_is_zero_at_all_rows_gives_frequencies():
    y = np.repeat([0, 1, 2], [30, 20, 10])
    with pytest.warns(ConvergenceWarning, match="hardly any signal"):
        model = BayesianSVC(Linear()).fit(np.zeros((60, 2)), y)
    p = model.predict_proba(np.zeros((1, 2)))
    assert_allclose(p, [[1 / 2, 1 / 3, 1 / 6]], atol=0.03)
