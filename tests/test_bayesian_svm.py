"""Bayesian SVM: sites, kernel choice, probabilities, the estimator."""

import math

import numpy as np
import oracles
import pytest
import torch
from problems import HINGES, JITTER, Unwhitened, codes, moments, ring, rows_of, t64
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm import BayesianSVC
from skgpsvm.bayesian_svm import _sites
from skgpsvm.bayesian_svm._kernel_choice import LeaveOneOutChoice
from skgpsvm.bayesian_svm._probability import (
    Calibration,
    argmax_scores,
    calibrated_scores,
    log_probability,
)
from skgpsvm.bayesian_svm._sites import BinarySites, ContrastSites
from skgpsvm.likelihoods import BinaryHinge, MulticlassHinge


def touched_moments(hinge, n=40, seed=0):
    """Codes, latent means, and means and variances of the latents that each row touches."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    y = torch.randint(max(hinge.n_latents, 2), (n,), generator=generator)
    mean, var = 3 * uniform(n, hinge.n_latents) - 1.5, 0.05 + 2 * uniform(n, hinge.n_latents)
    touched = hinge.touched(y, mean)
    return y, mean, var, mean.gather(1, touched), var.gather(1, touched)


# Sites


def test_touched_latents_are_the_true_class_and_the_hardest_others(hinge):
    y, mean, *_ = touched_moments(hinge)
    touched = hinge.touched(y, mean).numpy()
    if hinge.n_latents == 1:
        assert not touched.any()
        return
    np.testing.assert_array_equal(touched[:, 0], y)
    np.testing.assert_array_equal(touched[:, 1], oracles.contrast(mean.numpy(), y.numpy()))
    for row, code, others in zip(touched, y.tolist(), mean.numpy(), strict=True):
        order = [j for j in np.argsort(-others) if j != code]
        assert row[1:].tolist() == order[: hinge.n_contrasts]


def test_two_classes_have_one_rival():
    assert ContrastSites(2, "soft").n_contrasts == 1


def test_loss_is_the_negative_expected_log_prob():
    for hinge, likelihood in (
        (BinarySites(), BinaryHinge()),
        (HINGES["hard"](), MulticlassHinge("mean")),
    ):
        y, mean, var, *touched = touched_moments(hinge)
        # The same function, called with differently gathered arguments.
        np.testing.assert_allclose(
            hinge.sites(y, *touched).loss, -likelihood.expected_log_prob(y, mean, var), rtol=1e-14
        )


def test_gradient_and_curvature_are_the_derivatives_of_the_loss(hinge):
    y, _, _, mean, var = touched_moments(hinge)
    mean.requires_grad_()
    sites = hinge.sites(y, mean, var)
    (gradient,) = torch.autograd.grad(sites.loss.sum(), mean, create_graph=True)
    curvature = [
        torch.autograd.grad(column.sum(), mean, retain_graph=True)[0][:, j]
        for j, column in enumerate(gradient.T)
    ]
    # A floor of 1e-12 under the variance of the violation, relative to at least 0.05.
    np.testing.assert_allclose(sites.gradient.detach(), gradient.detach(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(sites.curvature.detach(), torch.stack(curvature, 1), atol=1e-9)


def test_update_is_the_natural_gradient_of_the_loss(hinge):
    y, _, _, mean, var = touched_moments(hinge)
    sites = hinge.sites(y, mean.requires_grad_(), var.requires_grad_())
    in_mean, in_var = torch.autograd.grad(sites.loss.sum(), (mean, var))
    # Identity 3 of section 8.2, for one row: eta2 gains -d/dv, eta1 gains -d/dm + 2 m d/dv.
    np.testing.assert_allclose(sites.precision.detach(), 2 * in_var, rtol=1e-9)
    np.testing.assert_allclose(
        sites.linear.detach(), (2 * mean * in_var - in_mean).detach(), rtol=1e-9, atol=1e-9
    )


def test_same_shift_of_every_class_changes_no_loss():
    hinge = HINGES["soft"]()
    y, _, _, mean, var = touched_moments(hinge)
    np.testing.assert_allclose(
        hinge.sites(y, mean + 3.7, var).loss, hinge.sites(y, mean, var).loss, rtol=1e-12
    )


@pytest.mark.parametrize("name", ["hard", "soft"])
def test_gradients_of_the_classes_cancel(name):
    hinge = HINGES[name]()
    y, _, _, mean, var = touched_moments(hinge)
    # Identity 2 of section 8.2.
    np.testing.assert_allclose(hinge.sites(y, mean, var).gradient.sum(1), 0, atol=1e-15)


def test_soft_contrast_is_below_the_maximum_and_tends_to_it(monkeypatch):
    hinge = HINGES["soft"]()
    y, _, _, mean, var = touched_moments(hinge)
    single = [hinge.sites(y, mean[:, [0, t]], var[:, [0, t]]).loss for t in (1, 2)]
    largest = torch.maximum(*single)
    for sharpness in (_sites._SHARPNESS, 20.0, 200.0):
        monkeypatch.setattr(_sites, "_SHARPNESS", sharpness)
        sites = hinge.sites(y, mean, var)
        # log-mean-exp of two numbers: at most log 2 / sharpness below their maximum.
        assert (sites.loss <= largest + 1e-14).all()
        assert (sites.loss >= largest - math.log(2) / sharpness - 1e-14).all()


def test_soft_contrast_with_equal_rivals_is_the_hinge_of_either():
    soft, hard = HINGES["soft"](), HINGES["hard"]()
    y, _, _, mean, var = touched_moments(soft)
    mean[:, 2], var[:, 2] = mean[:, 1], var[:, 1]
    both, one = soft.sites(y, mean, var), hard.sites(y, mean[:, :2], var[:, :2])
    for name in ("loss", "linear", "precision", "gradient"):
        of_both, of_one = getattr(both, name), getattr(one, name)
        if name != "loss":
            # The true class has the whole site, each rival half of it.
            np.testing.assert_allclose(of_both[:, 0], of_one[:, 0], rtol=1e-14)
            of_both, of_one = of_both[:, 1:].sum(1), of_one[:, 1]
        np.testing.assert_allclose(of_both, of_one, rtol=1e-14)


def test_sites_stay_finite_far_from_and_exactly_on_the_margin(hinge):
    y = torch.zeros(6, dtype=torch.int64)
    own = t64([-1e8, -1.0, 0.5, 1.0, 30.0, 1e8])
    mean = -own[:, None] if hinge.n_latents == 1 else torch.stack([own] + [0 * own] * 2, 1)
    mean = mean[:, : hinge.touched(y, mean).shape[1]]
    for var in (0.0, 1e-300, 1.0):
        sites = hinge.sites(y, mean, torch.full_like(mean, var))
        assert all(torch.isfinite(part).all() for part in vars(sites).values())
        assert (sites.loss >= 0).all()
        assert (sites.precision > 0).all()
        assert (sites.curvature >= 0).all()
    # Far inside the margin, loss is V / (2 |E b|), V of one or two latents of variance one.
    expected = (1 if hinge.n_latents == 1 else 2) / (2 * 29.0)
    np.testing.assert_allclose(sites.loss[4], expected, rtol=2e-3)


@pytest.mark.parametrize("name", ["hard", "soft"])
def test_steps_start_whole_and_shrink_so_that_their_sum_diverges(name):
    hinge = HINGES[name]()
    steps = np.array([hinge.step(n) for n in range(10000)])
    assert steps[0] == 1
    assert (np.diff(steps) <= 0).all()
    # Robbins and Monro: the sum grows by the same for each tenfold number, the squares do not.
    tail = [steps[10**k : 10 ** (k + 1)] for k in (2, 3)]
    np.testing.assert_allclose(tail[0].sum(), tail[1].sum(), rtol=0.02)
    assert (tail[1] ** 2).sum() < 0.2 * (tail[0] ** 2).sum()


# Kernel choice


class Loop:
    """Runs the stages of a choice without callbacks, and remembers the hyper-parameters."""

    def __init__(self):
        self.theta = {}

    def stage(self, name, state, step, max_iter, finished=lambda state: False):
        for _ in range(max_iter):
            step(state)
            if finished(state):
                break
        self.theta[name] = state["theta"]


def loss_at(choice, theta):
    """Leave-one-out log loss of a fit from the prior."""
    return choice.solve(theta)[0]


def choice_of(kernel, X, y, hinge=None, weights=None, n_inducing=25):
    return LeaveOneOutChoice(
        kernel, hinge or BinarySites(), rows_of(X, y, weights), t64(X[:n_inducing])
    )


def shells(n, d, seed):
    """Classes inside and outside a sphere, some of them wrong: isotropic."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    size = (X**2).sum(1)
    return X, (size + 0.5 * rng.normal(size=n) > np.median(size)).astype(int)


def waves(n, seed):
    """Classes that follow the first feature only."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, (np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n) > 0).astype(int)


@pytest.mark.parametrize("name", HINGES)
def test_chosen_kernel_predicts_left_out_rows_better(name):
    hinge = HINGES[name]()
    X, y = ring(60, max(hinge.n_latents, 2))
    choice = choice_of(ConstantKernel(5.0) * RBF(0.2), X, y, hinge)
    theta = choice.choose(Loop(), "")[0]
    # From a length scale far too short, much is to be gained: five nats of 40 to 70.
    assert loss_at(choice, theta) < loss_at(choice, choice.start) - 5
    assert theta[1] > choice.start[1]


def test_chosen_kernel_stays_within_its_bounds():
    X, y = waves(60, seed=0)
    kernel = ConstantKernel(5.0, (4.0, 6.0)) * RBF([0.2, 0.2], (0.1, 0.3))
    loop = Loop()
    choice = choice_of(kernel, X, y)
    choice.choose(loop, "")
    assert len(loop.theta) == 2
    low, high = t64(kernel.bounds).T
    for theta in loop.theta.values():
        assert ((theta >= low) & (theta <= high)).all()
    # Length scales five times as long are best.
    assert loop.theta["kernel"][1] == high[1]


def test_fixed_hyper_parameters_are_no_directions():
    X, y = waves(40, seed=0)
    kernel = ConstantKernel(5.0, "fixed") * RBF([0.5, 0.5]) + ConstantKernel(1.0)
    choice = choice_of(kernel, X, y)
    # One for both length scales, one for the second constant.
    np.testing.assert_array_equal(choice.directions, [[1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(choice.entries, [0, 1])


def test_irrelevant_feature_gets_a_longer_length_scale():
    for seed in range(2):
        X, y = waves(200, seed)
        choice = choice_of(ConstantKernel(5.0) * RBF([1.0, 1.0]), X, y)
        theta = choice.choose(Loop(), "")[0]
        assert theta[2] - theta[1] > math.log(1.5)


@pytest.mark.parametrize(("start", "seed"), [(1.0, 0), (1.0, 1), (0.3, 0), (0.3, 1)])
def test_entries_are_told_apart_only_where_it_pays(start, seed):
    X, y = shells(100, 3, seed)
    loop = Loop()
    choice = choice_of(ConstantKernel(5.0) * RBF([start] * 3), X, y)
    best, *others = choice.choose(loop, "")
    common = loop.theta["kernel"]
    assert common[1] == common[2] == common[3]
    assert all(torch.equal(theta, common) for theta in (others or [best]))
    # Half a nat for each of three length scales, or nothing changes; solutions that start from
    # different posteriors differ by less than a tenth.
    if others:
        assert loss_at(choice, best) < loss_at(choice, common) - 1.4


def test_refinement_takes_the_better_candidate_and_improves_it():
    X, y = waves(150, seed=0)
    choice = choice_of(ConstantKernel(5.0) * RBF([1.0, 1.0]), X, y)
    thetas = [t64(np.log([5.0, 0.1, 0.1])), t64(np.log([5.0, 0.4, 2.0]))]
    theta = choice.refine(Loop(), "", thetas)
    assert loss_at(choice, theta) <= loss_at(choice, thetas[1]) < loss_at(choice, thetas[0])
    # Whole steps: both length scales moved by the same factor, e to some power.
    shift = theta - thetas[1]
    assert shift[1] == pytest.approx(shift[2].item(), abs=1e-12)
    np.testing.assert_allclose(shift, shift.round(), rtol=0, atol=1e-12)


def test_leave_one_out_loss_counts_weights_as_repetitions(hinge):
    X, y = ring(30, max(hinge.n_latents, 2))
    weights = np.resize([1, 3, 0, 2], 30)
    repeated = np.repeat(np.arange(30), weights)
    kernel = 5.0 * RBF(1.0)
    weighted = choice_of(kernel, X, y, hinge, weights.astype(float))
    longer = LeaveOneOutChoice(kernel, hinge, rows_of(X[repeated], y[repeated]), weighted.Z)
    losses = [loss_at(choice, choice.start) for choice in (weighted, longer)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


# Probabilities


def logistic_rows(n, c, seed, slope=1.5):
    """Moments and codes whose probabilities are the softmax of ``slope`` times the means."""
    rng = np.random.default_rng(seed)
    mean, var = 2 * rng.normal(size=(n, c)), rng.uniform(0.1, 1, size=(n, c))
    p = log_probability(t64(slope * mean)).exp().numpy()
    y = (rng.uniform(size=(n, 1)) > p.cumsum(1)).sum(1)
    return t64(mean), t64(var), codes(y), t64(rng.uniform(0.5, 2, size=n))


@pytest.mark.parametrize("c", [1, 3])
def test_calibration_minimises_the_penalised_loss(c):
    for seed in range(4):
        rows = mean, var, y, weights = logistic_rows(150, c, seed)

        def loss(log_scales, mean=mean, var=var, y=y, weights=weights):
            temperature, spread = np.exp(log_scales)
            log_p = log_probability(calibrated_scores(mean, spread * var, temperature))
            penalty = 0.5 * np.sum(np.square(log_scales)) / 2.0**2
            return penalty - (weights * log_p[torch.arange(150), y]).sum().item()

        best = minimize(loss, [0, 0], method="Nelder-Mead", options={"xatol": 1e-7})
        found = Calibration().updated(*rows)
        # L-BFGS-B stops where a step gains 2e-9 of the loss, which is flat in the spread.
        assert best.fun - 1e-9 <= loss(found.log_scales) < best.fun + 1e-4
        assert found.log_scales == pytest.approx(best.x, abs=0.05)
        assert found.weight == pytest.approx(weights.sum().item())
        assert found.temperature == math.exp(found.log_scales[0])
        assert found.spread == math.exp(found.log_scales[1])


@pytest.mark.parametrize(("temperature", "spread"), [(1.0, 4.0), (3.0, 0.25)])
def test_calibration_finds_what_made_the_labels(temperature, spread):
    rng = np.random.default_rng(0)
    n = 20_000
    mean, var = t64(rng.normal(size=(n, 1))), t64(rng.exponential(size=(n, 1)))
    f = mean + (spread * var).sqrt() * t64(rng.normal(size=(n, 1)))
    y = codes((rng.uniform(size=n) < expit(temperature * f[:, 0].numpy())).astype(int))
    found = Calibration().updated(mean, var, y, t64(np.ones(n)))
    # Four standard deviations, and the error of MacKay's approximation.
    std = np.sqrt(np.diag(np.linalg.inv(found.precision)))
    errors = np.subtract(found.log_scales, np.log([temperature, spread]))
    assert (np.abs(errors) < 4 * std + 0.1).all()
    assert (std < 0.2).all()


def test_calibration_in_parts_is_nearly_that_of_all_rows():
    rows = logistic_rows(400, 3, seed=0)
    whole = Calibration().updated(*rows)
    parts = Calibration()
    for i in (slice(0, 200), slice(200, None)):
        parts = parts.updated(*(part[i] for part in rows))
    std = np.sqrt(np.diag(np.linalg.inv(whole.precision)))
    assert (np.abs(np.subtract(parts.log_scales, whole.log_scales)) < 0.5 * std).all()
    assert parts.loss == pytest.approx(whole.loss, rel=0.02)
    assert parts.weight == pytest.approx(whole.weight)


def test_calibration_takes_weights_as_repetitions():
    mean, var, y, weights = logistic_rows(40, 3, seed=0)
    twice = [torch.cat([part, part]) for part in (mean, var, y, weights)]
    doubled = Calibration().updated(mean, var, y, 2 * weights)
    repeated = Calibration().updated(*twice)
    np.testing.assert_allclose(doubled.log_scales, repeated.log_scales, atol=1e-6)
    assert doubled.loss == pytest.approx(repeated.loss, rel=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_calibration_is_finite_where_rows_are_all_right_or_all_wrong(sign):
    mean = sign * t64([[0.3], [-0.3]])
    found = Calibration().updated(mean, 0 * mean, codes([1, 0]), t64([1, 1]))
    assert (found.temperature > 1) == (sign == 1)
    assert 0.05 <= found.temperature <= 100
    assert np.isfinite(found.precision).all()


def test_one_logit_stands_for_two_classes():
    logits = t64([[-800.0], [-2.0], [0.0], [3.0], [800.0]])
    log_p = log_probability(logits)
    np.testing.assert_allclose(log_p[:, 1] - log_p[:, 0], logits[:, 0], rtol=1e-14)
    np.testing.assert_allclose(log_p.exp()[:, 1], expit(logits[:, 0]), rtol=1e-14)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0, 30.0])
def test_binary_probabilities_average_the_logistic_function(temperature):
    mean, var = (t64(v).reshape(-1, 1) for v in np.mgrid[-5:5:41j, 0:10:21j])
    z = np.linspace(-9, 9, 4001)
    density = np.exp(-(z**2) / 2)
    f = mean.numpy() + np.sqrt(var.numpy()) * z
    exact = expit(temperature * f) @ density / density.sum()
    p = log_probability(calibrated_scores(mean, var, temperature)).exp()[:, 1]
    # MacKay's approximation errs by 0.018 at most, in the limit of a step.
    np.testing.assert_allclose(p, exact, rtol=0, atol=0.018)


def test_multiclass_probabilities_average_the_softmax_roughly():
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(200, 3)), rng.uniform(0, 1, size=(200, 3))
    x, w = np.polynomial.hermite_e.hermegauss(20)
    nodes = np.stack(np.meshgrid(x, x, x), -1).reshape(-1, 3)
    weights = (w[:, None, None] * w[:, None] * w).ravel()
    f = mean[:, None] + np.sqrt(var)[:, None] * nodes
    exact = np.einsum("h,nhc->nc", weights / weights.sum(), torch.softmax(t64(f), -1).numpy())
    p = log_probability(calibrated_scores(t64(mean), t64(var), 1.0)).exp().numpy()
    # Latent by latent is cruder than the binary formula: 0.011 on average, 0.06 at worst.
    assert np.abs(p - exact).mean() < 0.015
    assert np.abs(p - exact).max() < 0.08


def test_argmax_scores_are_the_published_probabilities():
    T1 = Unwhitened(oracles.T1)
    ascent = T1.ascent(HINGES["hard"]())
    mean, var = moments(ascent, T1.start(ascent), [[0.25], [3.0], [50.0]])
    # 8.6; jitter.
    np.testing.assert_allclose(
        log_probability(argmax_scores(mean, var)).exp(),
        [
            [0.3540835603, 0.4155110665, 0.2304053732],
            [0.2983564225, 0.3519963784, 0.3496471991],
            [1 / 3, 1 / 3, 1 / 3],
        ],
        rtol=0,
        atol=1e-5,
    )


def test_argmax_scores_of_one_latent_are_those_of_its_sign():
    mean, var = t64([[0.7], [-0.2], [40.0]]), t64([[1.9], [0.3], [1.0]])
    p = log_probability(argmax_scores(mean, var)).exp()[:, 1]
    expected = [0.5 * math.erfc(-m / math.sqrt(2 * v)) for m, v in zip(mean, var, strict=True)]
    np.testing.assert_allclose(p, expected, rtol=1e-12)


def test_argmax_scores_stay_finite_where_a_class_is_certain():
    mean, var = t64([[0.0, 100.0, 0.0]]), t64([[1.0, 0.0, 1.0]])
    assert torch.isfinite(argmax_scores(mean, var)).all()
    assert torch.isfinite(argmax_scores(t64([[1.0]]), t64([[0.0]]))).all()


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
    # Left after a change below 1e-10.
    np.testing.assert_allclose(model.latent_mean_and_variance(X), (mean, var), atol=1e-9)
    expected = oracles.binary_objective(*T1.parts, mu, Sig, T1.T.s)
    np.testing.assert_allclose(model.objective_curve_[-1], expected, rtol=1e-12)
    assert (np.diff(model.objective_curve_) > -1e-13).all()
    assert model.n_iter_ == len(model.objective_curve_)
    # Section 5.5: the sign of the latent.
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
        # Through logarithms and back.
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
        # What the left-out loss is about is the model without the row, at the same calibration.
        part.temperature_, part.spread_ = model.temperature_, model.spread_
        losses.append(-np.log(part.predict_proba(X[i : i + 1])[0, y[i]]))
    # The error of the moments, of second order, against the optimism of the training rows.
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
    # The hinge's latent is flat beyond its margins, where the true log odds still grow: that costs
    # 0.05 to 0.07 over seeds; the argmax, certain where the latent is, errs by 0.2.
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
