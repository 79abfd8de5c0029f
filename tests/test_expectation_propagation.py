"""Expectation propagation: the specification's numbers, dense oracle, gradients, learning."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from oracles import differences
from problems import rows_of, t64
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import make_classification, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss

from skgpsvm import EPClassifier, SVGPClassifier
from skgpsvm._fitted_models import SparseModel
from skgpsvm._optim import Free
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.exceptions import NotPositiveDefiniteError
from skgpsvm.expectation_propagation._converged import EvidenceLearning, run_ep_to_convergence
from skgpsvm.expectation_propagation._inference import EPProblem, MinibatchEP, SiteUpdates
from skgpsvm.expectation_propagation._propagation import Propagation
from skgpsvm.expectation_propagation._rules import RULES, SignRule
from skgpsvm.expectation_propagation._tilted import TiltedMoments, log_likelihood, probit_ratios
from skgpsvm.inducing import select_inducing_points
from skgpsvm.solvers import ConvergedEP, InterleavedEP, NaturalGradient

# Specification, section 9. In case B, the amplitude absorbs the noise: T14 (iv).
CASES = {
    "A": (
        np.array([-2, -1.2, -0.4, 0.3, 1.1, 2])[:, None],
        np.array([0, 0, 1, 0, 1, 1]),
        np.array([-1.5, 0, 1.4])[:, None],
        ConstantKernel(1.5) * RBF(0.9),
    ),
    "B": (
        np.array(
            [
                [-1.5, 0.5],
                [-1, -0.8],
                [-0.3, 1.2],
                [0.1, -0.4],
                [0.6, 0.9],
                [1, -1.1],
                [1.4, 0.2],
                [-0.6, -0.1],
            ]
        ),
        np.array([1, 0, 1, 0, 1, 0, 1, 1]),
        np.array([[-0.9, 0.2], [0.2, -0.7], [0.9, 0.7]]),
        ConstantKernel(2 / 1.1) * RBF([0.8, 1.3]),
    ),
}
EVIDENCE = {"A": -4.604637649019, "B": -5.639696015173}
# Gradient at convergence, in our order: log variance, log length scales, Z row by row.
GRADIENT_A = [-0.353604479006, -0.400247343093, -0.375253460570, 0.065383088540, 0.359101429596]
APPROXIMATE_A = [
    -0.284193080506,
    -0.195622634767,
    -0.208570805999,
    0.031624334750,
    0.191033285638,
]
EXACT_A = [-0.251318090885, -0.260327147724, -0.275470987673, 0.034947150008, 0.263943342651]


def case(name, weights=None):
    """Return a propagation without jitter, and its state without sites."""
    X, y, Z, kernel = CASES[name]
    weights = np.ones(len(X)) if weights is None else weights
    rows = rows_of(X, y, weights)
    propagation = Propagation(torch_kernel(kernel), rows, jitter=0)
    return propagation, propagation.init(t64(kernel.theta), t64(Z))


def swept(propagation, state, damping, n_sweeps):
    """Return a state after damped updates, and the next update."""
    for _ in range(n_sweeps):
        # Without a last move, the damping stays.
        state.damping, state.last_move = damping, torch.zeros_like(state.last_move)
        propagation.step_sites(state, propagation.site_update(state))
        propagation.refresh(state)
    return state, propagation.site_update(state)


def evidence_of(name, damping, n_sweeps):
    propagation, state = case(name)
    return propagation.evidence(*swept(propagation, state, damping, n_sweeps))


def gradient_of(propagation, state, update, approximate=False):
    gradients = propagation.gradient(state, update, approximate)
    return torch.cat([part.ravel() for part in gradients.values()])


def moons(n=200, noise=0.25, seed=0):
    return make_moons(n, noise=noise, random_state=seed)


# Sites and evidence


def blobs(n_classes):
    return make_classification(
        150, 4, n_informative=4, n_redundant=0, n_classes=n_classes, random_state=0
    )


def test_evidence_without_sites():
    assert evidence_of("A", 1.0, 0) == pytest.approx(-6 * np.log(2), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "precision", "shift"),
    [
        (
            "A",
            [
                0.357597098627,
                0.394910984706,
                0.388347637926,
                0.398040391165,
                0.396607080058,
                0.342023193656,
            ],
            [
                -0.708637171267,
                -0.782580742905,
                0.769574397177,
                -0.788782173926,
                0.785941833408,
                0.677774929915,
            ],
        ),
        (
            "B",
            # The amplitude's square root, 1 / sqrt(1.1), scales h: T14 (iv).
            1.1
            * np.array(
                [
                    0.267795483684,
                    0.266706773830,
                    0.243774733838,
                    0.337358589155,
                    0.316931184014,
                    0.243806832804,
                    0.270460556741,
                    0.326624927245,
                ]
            ),
            np.sqrt(1.1)
            * np.array(
                [
                    0.590940879075,
                    -0.588538436922,
                    0.537934596688,
                    -0.744444896889,
                    0.699368002443,
                    -0.538005429067,
                    0.596821861805,
                    0.720759062021,
                ]
            ),
        ),
    ],
)
def test_first_update(name, precision, shift):
    state, _ = swept(*case(name), 1.0, 1)
    np.testing.assert_allclose(state.precision, precision, rtol=0, atol=2e-12)
    np.testing.assert_allclose(state.shift, shift, rtol=0, atol=2e-12)


def test_damped_updates():
    assert evidence_of("A", 0.5, 1) == pytest.approx(-4.470317306399, abs=1e-11)
    assert evidence_of("A", 0.5, 2) == pytest.approx(-4.573120133445, abs=1e-11)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("damping", "n_sweeps"), [(1.0, 20), (0.5, 60)])
def test_fixed_point(name, damping, n_sweeps):
    assert evidence_of(name, damping, n_sweeps) == pytest.approx(EVIDENCE[name], abs=1e-11)


def test_predictions():
    X, y, Z, kernel = CASES["A"]
    model = EPClassifier(
        kernel, mean="zero", inducing_points=Z, optimizer=None, tol=1e-14, max_iter=500
    ).fit(X, y)
    X_new = np.array([-3, -0.8, 0, 0.75, 4])[:, None]
    expected = [0.451962524258, 0.339955809763, 0.500667210823, 0.656126960787, 0.502958554844]
    # The tolerance is for the jitter of the inducing points, 1e-6.
    np.testing.assert_allclose(model.predict_proba(X_new)[:, 1], expected, rtol=0, atol=1e-5)
    mean, var = model.latent_mean_and_variance(X_new)
    expected = [-0.189102020812, -0.545868936260, 0.002094697226, 0.527691488812, 0.011725432277]
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-5)
    expected = [1.454398057588, 0.750461462181, 0.568686202083, 0.723813458762, 1.499830982479]
    np.testing.assert_allclose(var, expected, rtol=0, atol=1e-5)
    left_out = [-0.5379, -0.5249, -1.4288, -1.4189, -0.5530, -0.5451]
    np.testing.assert_allclose(model.loo_proba_[range(6), y], np.exp(left_out), atol=1e-4)
    assert model.loo_log_loss_ == pytest.approx(-np.mean(left_out), abs=1e-4)
    assert model.log_marginal_likelihood_value_ == pytest.approx(EVIDENCE["A"], abs=1e-5)


def dense(X, y, kernel, n_sweeps=300):
    """Return mean, covariance and log evidence of the exact GP.

    Sequential expectation propagation on the function values (Rasmussen and Williams, algorithm
    3.5).
    """
    K, n, signs = kernel(X), len(X), 2.0 * y - 1
    nu, tau = np.zeros(n), np.zeros(n)
    cov, mean = K.copy(), np.zeros(n)
    for _ in range(n_sweeps):
        for i in range(n):
            cavity_tau = 1 / cov[i, i] - tau[i]
            cavity_nu = mean[i] / cov[i, i] - nu[i]
            m, v = cavity_nu / cavity_tau, 1 / cavity_tau
            z = signs[i] * m / np.sqrt(1 + v)
            ratio = np.exp(norm.logpdf(z) - norm.logcdf(z))
            new_mean = m + signs[i] * v * ratio / np.sqrt(1 + v)
            new_var = v - v**2 * ratio / (1 + v) * (z + ratio)
            change = 1 / new_var - cavity_tau - tau[i]
            tau[i] += change
            nu[i] = new_mean / new_var - cavity_nu
            column = cov[:, i]
            cov = cov - np.outer(column, column) * change / (1 + change * cov[i, i])
            mean = cov @ nu
    cov = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
    mean = cov @ nu
    cavity_tau = 1 / np.diag(cov) - tau
    cavity_mean = (mean / np.diag(cov) - nu) / cavity_tau
    z = signs * cavity_mean / np.sqrt(1 + 1 / cavity_tau)
    # Gaussian evidence of the pseudo-targets nu / tau with noise 1 / tau, and the sites' scales.
    target, noise = nu / tau, 1 / tau
    gauss = K + np.diag(noise)
    evidence = -0.5 * target @ np.linalg.solve(gauss, target) - 0.5 * np.linalg.slogdet(gauss)[1]
    gap = cavity_mean - target
    total = 1 / cavity_tau + noise
    evidence += np.sum(norm.logcdf(z) + 0.5 * np.log(total) + 0.5 * gap**2 / total)
    return mean, cov, evidence


@pytest.mark.parametrize("noise", [None, 0.7])
def test_inducing_points_at_all_rows_give_the_dense_algorithm(noise):
    X, y = moons(25)
    kernel = ConstantKernel(3.0) * RBF(0.8)
    kernel = kernel if noise is None else kernel + WhiteKernel(noise)
    mean, cov, evidence = dense(X, y, kernel)
    rows = rows_of(X, y)
    propagation = Propagation(torch_kernel(kernel), rows, jitter=1e-12)
    state = propagation.init(t64(kernel.theta), t64(X))
    state, update = swept(propagation, state, 0.8, 200)
    assert propagation.evidence(state, update) == pytest.approx(evidence, abs=1e-6)
    # Predictions of new rows with the same features, which have noise of their own.
    cross = kernel(X, X)
    gain = np.linalg.solve(kernel(X), cross)
    A, residual = propagation.basis(state)(t64(X))
    np.testing.assert_allclose(A @ state.mean[0], gain.T @ mean, rtol=0, atol=1e-6)
    spread = (A @ state.root[0]).square().sum(1) + residual
    expected = kernel.diag(X) + np.sum(gain * (cov @ gain - cross), axis=0)
    np.testing.assert_allclose(spread, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{}, {"solver": InterleavedEP(batch_size=16)}, {"n_inducing": 60}, {"dtype": "float32"}],
    ids=["all rows", "minibatches", "all points", "float32"],
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_noise_of_the_function_divides_its_covariance(settings, n_classes):
    X, y = blobs(n_classes)
    X, y, noise = X[:60].astype("float32"), y[:60], 0.7
    weights = np.random.default_rng(0).choice([0.5, 1.0, 2.0], 60)
    settings = {"dtype": "float64", "n_inducing": 10, "max_iter": 300, "tol": 1e-13} | settings
    model = EPClassifier(mean="zero", optimizer=None, random_state=0, **settings)
    kernel, divided = (
        (scale * 2.0) * RBF(1.3) + scale * DotProduct(0.5) for scale in (1, 1 / (1 + noise))
    )
    noisy, plain = (
        clone(model).set_params(kernel=k).fit(X, y, weights)
        for k in (kernel + WhiteKernel(noise), divided)
    )
    rtol = 1e-4 if model.dtype == "float32" else 1e-9
    for name in ("log_marginal_likelihood_value_", "loo_proba_"):
        np.testing.assert_allclose(getattr(noisy, name), getattr(plain, name), rtol=rtol)
    np.testing.assert_allclose(noisy.predict_proba(X), plain.predict_proba(X), rtol=rtol)


@pytest.mark.parametrize("solver", ["gfitc", "sep", InterleavedEP(batch_size=32)])
def test_noise_of_the_function_is_learned_and_kept(solver):
    X, y = moons(100)
    settings = {"solver": solver, "max_iter": 20, "warm_start": True, "random_state": 0}
    model = EPClassifier(DotProduct() + WhiteKernel(0.5), n_inducing=10, **settings)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        learned = model.fit(X, y).kernel_
        assert model.fit(X, y).kernel_ != learned  # a warm start goes on
        held = clone(model).set_params(kernel=RBF() + WhiteKernel(0.3, "fixed")).fit(X, y)
    level = learned.get_params()["k1__k1__k2__noise_level"]
    assert level != 0.5
    assert WhiteKernel(0.3, "fixed") in held.kernel_.get_params().values()


@pytest.mark.parametrize("name", CASES)
def test_sites_stay_within_their_limits(name):
    propagation, state = case(name)
    for _ in range(20):
        state, _ = swept(propagation, state, 1.0, 1)
        residual = propagation.basis(state)(propagation.rows.X)[1]
        assert (state.precision > 0).all()
        assert (state.precision < 1 / (1 + residual)).all()


def test_sites_no_longer_matter_at_the_fixed_point():
    propagation, state = case("A")
    _, update = swept(propagation, state, 1.0, 30)
    for slope in (update.grad_mean, update.grad_var):
        np.testing.assert_allclose(slope, 0, atol=1e-12)


def test_weights_are_copies():
    weights = np.array([1, 2, 1, 3, 1, 2])
    X, y, Z, kernel = CASES["A"]
    rows = rows_of(X.repeat(weights, 0), y.repeat(weights))
    repeated = Propagation(torch_kernel(kernel), rows, jitter=0)
    start = repeated.init(t64(kernel.theta), t64(Z))
    weighted, other = case("A", weights.astype(float))
    one, two = swept(repeated, start, 0.8, 3), swept(weighted, other, 0.8, 3)
    assert repeated.evidence(*one) == pytest.approx(weighted.evidence(*two), abs=1e-12)
    gradients = gradient_of(repeated, *one), gradient_of(weighted, *two)
    np.testing.assert_allclose(*gradients, rtol=0, atol=1e-12)


def test_half_weights_are_roots_of_the_likelihood():
    X, y = moons(80)
    settings = {"optimizer": None, "inducing_points": X[:15], "mean": "zero", "tol": 1e-8}
    model = EPClassifier(3.0 * RBF(0.7), **settings)
    halves = clone(model).fit(
        np.repeat(X, 2, axis=0) + 1e-9 * np.tile([[0], [1]], (80, 2)),
        np.repeat(y, 2),
        sample_weight=np.full(160, 0.5),
    )
    whole = clone(model).fit(X, y)
    # The sites of two square roots are nearly, but not exactly, the site of their product.
    np.testing.assert_allclose(halves.predict_proba(X), whole.predict_proba(X), atol=5e-3)


def test_tiny_weights_are_tiny():
    X, y = moons(80)
    settings = {"optimizer": None, "inducing_points": X[:15], "mean": "zero", "tol": 1e-8}
    model = EPClassifier(3.0 * RBF(0.7), **settings).fit(X[:60], y[:60])
    weights = np.where(np.arange(80) < 60, 1, 1e-6)
    more = clone(model).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(more.predict_proba(X), model.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("power", [0.01, 0.5, 0.999])
@pytest.mark.parametrize(
    ("mean", "var"), [(0.5, 0.1), (1.0, 2.0), (-2.0, 50.0), (-10.0, 50.0), (0.0, 1e3), (5.0, 1e5)]
)
def test_sites_of_powers(power, mean, var):
    tilted = TiltedMoments(*(t64([value]) for value in (mean, var, 0.0, 1.0, power)))
    expected = dense_tilted_moments(mean, var, 1.0, power)
    np.testing.assert_allclose(tilted.precision, expected[0], rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(tilted.shift, expected[1], rtol=1e-3, atol=1e-9)
    leaves = [t64([value]).requires_grad_() for value in (mean, var, 0.0)]
    value = log_likelihood(*leaves, t64([1.0]), t64([power]))
    slope, by_var, by_residual = torch.autograd.grad(value.sum(), leaves)
    np.testing.assert_allclose(slope.detach(), tilted.grad, rtol=1e-3, atol=1e-9)
    curvature = slope.square() - 2 * by_var
    np.testing.assert_allclose(curvature, tilted.neg_hess, rtol=1e-2, atol=1e-7)
    np.testing.assert_allclose(by_residual, tilted.grad_residual, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("var", [1e-9, 1e-12, 0.0])
def test_sites_of_powers_in_narrow_cavities(var):
    # In the limit, sites are the second-order Taylor series of the log likelihood.
    mean = torch.linspace(-6, 6, 12).double().requires_grad_()
    power, residual, y = (torch.full_like(mean, value) for value in (0.3, 0.5, -1.0))
    log_power = 0.3 * log_likelihood(mean, torch.zeros_like(mean), residual, y, None).sum()
    (slope,) = torch.autograd.grad(log_power, mean, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), mean)
    mean, slope = mean.detach(), slope.detach()
    tilted = TiltedMoments(mean, torch.full_like(mean, var), residual, y, power)
    np.testing.assert_allclose(tilted.precision, -curvature, rtol=0, atol=1e-8)
    np.testing.assert_allclose(tilted.shift, slope - curvature * mean, rtol=0, atol=1e-8)


def test_sites_of_small_weights_converge_far_from_inducing_points():
    X, y = moons(100)
    rows = rows_of(X, y, np.linspace(0.2, 1, 100))
    propagation = Propagation(torch_kernel(RBF(0.1)), rows)
    state = propagation.init(t64(RBF(0.1).theta), t64(X[:10]))
    with warnings.catch_warnings(action="error"):
        run_ep_to_convergence(propagation, state)


def test_learning_on_few_rows_does_not_chase_hundredths_of_a_nat(monkeypatch):
    evaluations, gradient = [], Propagation.gradient

    def counted(*args):
        evaluations.append(args)
        return gradient(*args)

    monkeypatch.setattr(Propagation, "gradient", counted)
    for seed in range(3):
        EPClassifier(random_state=0).fit(*make_moons(10, noise=0.3, random_state=seed))
    assert len(evaluations) < 90  # 104 if the least gain is proportional to the rows


def test_weights_near_one_are_near_one_at_large_amplitudes():
    X, y = moons(120)
    settings = {"mean": "zero", "optimizer": None, "inducing_points": X[:30], "tol": 1e-6}
    model = EPClassifier(ConstantKernel(1000.0) * RBF(1.0), **settings).fit(X, y)
    nearly = clone(model).fit(X, y, sample_weight=np.full(120, 0.999))
    assert nearly.log_marginal_likelihood_value_ == pytest.approx(
        model.log_marginal_likelihood_value_, abs=0.3
    )
    np.testing.assert_allclose(nearly.predict_proba(X), model.predict_proba(X), atol=0.01)


def test_powers_have_the_derivatives_of_the_closed_form_near_one():
    exact = swept(*case("A"), 0.5, 2)
    nearly = swept(*case("A", np.full(6, 1 - 1e-9)), 0.5, 2)
    for field in exact[1]._fields:
        # The tolerance is the error of the quadrature.
        np.testing.assert_allclose(
            getattr(exact[1], field), getattr(nearly[1], field), rtol=0, atol=1e-6
        )


def test_probit_ratios_are_accurate_in_the_tail():
    z = t64([-1e6, -1e3, -60.0, -49.0, -5.0, 0.0, 5.0, 50.0])
    ratio, fall = probit_ratios(z)
    # phi / Phi is by 30 digits of Mills' ratio for negative z, and by definition for the others.
    reference = np.exp(norm.logpdf(z[4:]) - norm.logcdf(z[4:]))
    np.testing.assert_allclose(ratio[4:], reference, rtol=1e-12)
    np.testing.assert_allclose(ratio[:2], [1e6 + 1e-6, 1e3 + 1e-3 - 2e-9], rtol=1e-14)
    assert ((fall >= 0) & (fall <= 1)).all()
    np.testing.assert_allclose(fall[:2], [1 - 1e-12, 1 - 1e-6], rtol=1e-11)
    np.testing.assert_allclose(fall[2], fall[3], rtol=2e-4)


# Gradients


@pytest.mark.parametrize(("approximate", "expected"), [(False, EXACT_A), (True, APPROXIMATE_A)])
def test_gradient_before_and_at_convergence(approximate, expected):
    propagation, state = case("A")
    early = gradient_of(propagation, *swept(propagation, state, 0.5, 1), approximate)
    np.testing.assert_allclose(early, expected, rtol=0, atol=1e-11)
    late = gradient_of(propagation, *swept(propagation, state, 1.0, 30), approximate)
    np.testing.assert_allclose(late, GRADIENT_A, rtol=0, atol=1e-11)


def test_paper_s_interleaved_loop():
    """Five iterations of the sign rule: the specification's evidences and hyperparameters."""
    propagation, state = case("A")
    rule, memory = SignRule(1e-2), {}
    values, point = [], torch.cat([state.theta, state.Z.ravel()])
    for _ in range(5):
        update = swept(propagation, state, 0.5, 1)[1]
        values.append(propagation.evidence(state, update))
        step, memory = rule.step(memory, gradient_of(propagation, state, update, True), 0.0)
        point = point + step
        state = replace(state, theta=point[:2], Z=point[2:, None])
        propagation.refresh(state)
    expected = [-4.470317306399, -4.570047048464, -4.589803796209, -4.589850527822, -4.585116960927]
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-10)
    expected = [0.388822957870, -0.123348161728, -1.516503976996, 0.002859561795, 1.415597079425]
    np.testing.assert_allclose(point, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_evidence_at_converged_sites(name):
    propagation, state = case(name)
    swept(propagation, state, 1.0, 30)
    gradient = gradient_of(propagation, state, propagation.site_update(state))

    def converged(theta, Z):
        moved = replace(state, theta=theta, Z=Z)
        propagation.refresh(moved)
        return propagation.evidence(*swept(propagation, moved, 1.0, 30))

    numeric = differences(converged, state.theta, state.Z, step=1e-4)
    expected = torch.cat([part.ravel() for part in numeric])
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-7)


# Minibatches

BLOCKS = ([0, 1, 2], [3, 4, 5])


def test_minibatches_at_fixed_hyperparameters():
    propagation, state = case("A")
    basis, state.damping = propagation.basis(state), 0.99
    for _ in range(2):
        for block in BLOCKS:
            propagation.minibatch(state, torch.tensor(block), basis, basis, len(BLOCKS))
    expected = [
        0.346218997656,
        0.392409523321,
        0.576911141421,
        0.600625567685,
        0.406106543258,
        0.331083830795,
    ]
    np.testing.assert_allclose(state.precision, expected, rtol=0, atol=1e-11)
    value = propagation.evidence(state, propagation.site_update(state))
    assert value == pytest.approx(-4.604645421406, abs=1e-11)
    gram = state.site_gram
    propagation.refresh(state)
    np.testing.assert_allclose(gram, state.site_gram, rtol=0, atol=1e-14)


def minibatch_learning(name):
    propagation, state = case(name)
    units = t64(CASES[name][3].bounds), torch.ones(CASES[name][0].shape[1], dtype=torch.float64)
    problem = EPProblem(propagation, Free(["theta", "Z"], *units))
    return MinibatchEP(problem, None, 10, 0.0, 3, torch.Generator()), propagation, state


def dense_tilted_moments(mean, var, y, power):
    """Return precision and shift of the site of a power, by a sum of two million terms."""
    std = np.sqrt(var)
    ratio = np.exp(
        norm.logpdf(y * mean / np.sqrt(1 + var)) - norm.logcdf(y * mean / np.sqrt(1 + var))
    )
    tilted = mean + var * y * ratio / np.sqrt(1 + var)
    h = np.linspace(min(mean, tilted) - 10 * std, max(mean, tilted) + 10 * std, 2_000_001)
    log_terms = power * norm.logcdf(y * h) - 0.5 * (h - mean) ** 2 / var
    weights = np.exp(log_terms - log_terms.max())
    weights /= weights.sum()
    center = weights @ h
    spread = weights @ (h - center) ** 2
    return 1 / spread - 1 / var, center / spread - mean / var


def stochastic_gradient(learning, state, surrogate):
    """Return the gradient of a minibatch as one vector."""
    leaves, basis = learning._differentiable_basis(state)
    gradients = learning._stochastic_gradients(state, leaves, surrogate, basis)
    return learning.problem.free.flat(state.theta).gradient(gradients)


def test_gradient_of_a_minibatch():
    learning, propagation, state = minibatch_learning("A")
    basis, state.damping = propagation.basis(state), 0.99
    _, surrogate = propagation.minibatch(state, torch.tensor(BLOCKS[0]), basis, basis, len(BLOCKS))
    expected = [-0.022068522087, -0.858309113701, -0.497867353543, 0.070771139002, 0.008841171839]
    slope = stochastic_gradient(learning, state, surrogate)
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-10)


def test_gradients_of_minibatches_average_to_the_gradient_at_convergence():
    learning, propagation, state = minibatch_learning("B")
    swept(propagation, state, 1.0, 40)
    basis = propagation.basis(state)
    slopes = [
        stochastic_gradient(
            learning,
            state,
            propagation.minibatch(state, torch.tensor(block), basis, basis, len(BLOCKS))[1],
        )
        for block in ([0, 1, 2, 3], [4, 5, 6, 7])
    ]
    gradient = gradient_of(propagation, state, propagation.site_update(state))
    np.testing.assert_allclose(sum(slopes) / 2, gradient, rtol=0, atol=1e-9)


def test_expected_gradient_does_not_depend_on_empty_minibatches():
    # A rank with fewer rows than there are minibatches has empty ones.
    learning, propagation, state = minibatch_learning("A")
    basis, n, state.damping = propagation.basis(state), len(propagation.rows), 0.0

    def slope(index, n_batches):
        index = torch.tensor(index, dtype=torch.long)
        _, surrogate = propagation.minibatch(state, index, basis, basis, n_batches)
        return stochastic_gradient(learning, state, surrogate)

    batches = [*([i] for i in range(n)), [], [], []]
    slopes = [slope(index, len(batches)) for index in batches]
    whole = slope(range(n), 1)
    np.testing.assert_allclose(sum(slopes) / len(slopes), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "solver",
    [InterleavedEP(batch_size=100), InterleavedEP("adadelta", batch_size=30, learning_rate=1)],
    ids=str,
)
def test_minibatches_end_where_all_rows_do(solver):
    X, y = moons(400)
    X_new, y_new = moons(1000, seed=1)
    whole = EPClassifier(n_inducing=20, max_iter=30, random_state=0)
    parts = clone(whole).set_params(solver=solver)
    losses = []
    for model in (whole, parts):
        model.fit(X, y)
        losses.append(log_loss(y_new, model.predict_proba(X_new)))
    assert losses[1] < losses[0] + 0.02


@pytest.mark.parametrize(
    "kernel", [ConstantKernel(2.0), ConstantKernel(2.0, "fixed") * RBF(1e6, "fixed")]
)
def test_minibatches_where_inducing_points_play_no_part(kernel):
    X, y = moons(60)
    solver = InterleavedEP(batch_size=20)
    model = EPClassifier(kernel, solver=solver, n_inducing=5, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.8


def test_posterior_means_of_zero_converge():
    X, y = moons(40)
    model = EPClassifier(n_inducing=10, random_state=0, optimizer=None)
    model.fit(np.vstack([X, X]), np.append(y, 1 - y))
    np.testing.assert_allclose(model.predict_proba(X), 0.5, atol=1e-6)
    assert model.n_iter_ < 10


def test_streamed_rows_of_no_weight_change_nothing():
    X, y = moons()
    model = EPClassifier(n_inducing=15, random_state=0).fit(X[:100], y[:100])
    before, evidence = model.predict_proba(X), model.log_marginal_likelihood_value_
    with pytest.warns(UserWarning, match="Weights are not relative"):
        model.partial_fit(X[100:], y[100:], sample_weight=np.full(100, 1e-10))
    np.testing.assert_allclose(model.predict_proba(X), before, atol=1e-7)
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, abs=1e-6)


def test_minibatches_of_weighted_rows_are_those_of_copies():
    weights = np.array([1, 2, 1, 3, 1, 2])
    X, y, Z, kernel = CASES["A"]
    rows = rows_of(X.repeat(weights, 0), y.repeat(weights))
    repeated = Propagation(torch_kernel(kernel), rows, jitter=0)
    one = repeated.init(t64(kernel.theta), t64(Z))
    weighted, two = case("A", weights.astype(float))
    for each, state, n in ((repeated, one, 10), (weighted, two, 6)):
        basis, state.damping = each.basis(state), 0.9
        for _ in range(2):
            each.minibatch(state, torch.arange(n), basis, basis, 1)
    np.testing.assert_allclose(one.mean, two.mean, rtol=0, atol=1e-12)


def test_minibatches_of_given_hyperparameters_end_at_the_same_posterior():
    X, y = moons()
    settings = {"n_inducing": 15, "optimizer": None, "tol": 1e-8, "random_state": 0}
    whole = EPClassifier(**settings).fit(X, y)
    parts = EPClassifier(**settings, solver=InterleavedEP(batch_size=40)).fit(X, y)
    np.testing.assert_allclose(parts.predict_proba(X), whole.predict_proba(X), atol=1e-7)
    assert type(parts._latents[0]) is SparseModel  # this model keeps no sums of sites


# Learning


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"solver": InterleavedEP("sign", learning_rate=0.01), "max_iter": 200},
        {"solver": "gfitc"},
    ],
    ids=["adam", "sign", "gfitc"],
)
def test_every_way_of_learning_reaches_a_good_model(settings):
    X, y = moons(300)
    X_new, y_new = moons(1000, seed=1)
    model = EPClassifier(n_inducing=20, random_state=0).set_params(**settings).fit(X, y)
    fixed = EPClassifier(n_inducing=20, optimizer=None, random_state=0).fit(X, y)
    assert model.log_marginal_likelihood_value_ > fixed.log_marginal_likelihood_value_ + 5
    exact = GaussianProcessClassifier(1.0 * RBF(1.0), random_state=0).fit(X, y)
    losses = [log_loss(y_new, each.predict_proba(X_new)) for each in (model, exact)]
    assert losses[0] < 1.1 * losses[1]


def test_sign_rule_doubles_back():
    rule = SignRule(0.01)
    step, memory = rule.step({}, t64([1.0, -50.0]), 0.0)
    np.testing.assert_allclose(step, [0.01, -0.1])
    step, memory = rule.step(memory, t64([1.0, 1.0]), 0.0)
    np.testing.assert_allclose(step, [0.0102, 0.005])


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adam", partial(torch.optim.Adam, lr=0.05, maximize=True)),
        ("adadelta", partial(torch.optim.Adadelta, lr=0.05, eps=1e-5, maximize=True)),
    ],
)
def test_rules_of_torch_remember_and_decay(name, make):
    slopes, point = [t64([1.0, -2.0]), t64([0.5, 1.0]), t64([-0.1, 1.0])], t64([0.0, 0.0])
    optimizer = make([point])
    memory, rule, total = {}, RULES[name](0.05), t64([0.0, 0.0])
    for slope in slopes:
        point.grad = slope
        optimizer.step()
        step, memory = rule.step(memory, slope, 0.0)
        total += step
    np.testing.assert_allclose(total, point, rtol=1e-12)
    late, early = (rule.step(memory, slopes[0], progress)[0].abs() for progress in (0.99, 0.0))
    assert (late < early / 20).all()


def test_updates_that_turn_back_are_damped():
    propagation, state = case("A")
    update, ahead = propagation.site_update(state), state.precision + 0.1
    targets = [update._replace(precision=at) for at in (ahead, ahead + 0.1, state.precision)]
    for target, share in zip(targets, (1.0, 1.0, 0.7), strict=True):
        before = state.precision
        propagation.step_sites(state, target)
        moved = before + share * (target.precision - before)
        np.testing.assert_allclose(state.precision, moved, rtol=1e-12)


@pytest.mark.parametrize("weight", [1.0, 5.0])
def test_sites_of_a_large_function_converge(weight):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (np.sin(2 * X[:, 0]) > 0).astype(int)
    kernel = ConstantKernel(1e4) * RBF(2.0)
    propagation = Propagation(torch_kernel(kernel), rows_of(X, y, np.full(60, weight)))
    state = propagation.init(t64(kernel.theta), t64(X))
    run_ep_to_convergence(propagation, state)  # warns if it takes more than 200 updates
    assert state.damping < 1


def test_converged_sites_are_those_of_many_updates():
    propagation, state = case("B")
    update = run_ep_to_convergence(propagation, state)
    assert propagation.evidence(state, update) == pytest.approx(EVIDENCE["B"], abs=1e-9)


@pytest.mark.parametrize("name", ["A", "B"])
def test_error_of_the_evidence_is_quadratic_in_that_of_the_sites(name):
    for tol in (1e-2, 1e-3, 1e-4):
        propagation, state = case(name)
        update = run_ep_to_convergence(propagation, state, tol**0.5)
        error = propagation.evidence(state, update) - EVIDENCE[name]
        assert abs(error) < tol * len(propagation.rows)


def test_hyperparameters_are_learned_with_fewer_inducing_points():
    X, y = moons(150)
    model = EPClassifier(random_state=0).fit(X, y)
    assert len(model.inducing_points_) == 150
    Z = select_inducing_points(X, 100, random_state=0)
    few = EPClassifier(inducing_points=Z).fit(X, y)
    found, expected = (part.log_marginal_likelihood_value_ for part in (model, few))
    assert found == pytest.approx(expected, abs=0.1)


class Failing(Propagation):
    """Propagation that fails at log amplitudes above two."""

    n_failures = 0

    def refresh(self, state):
        if state.theta[0] > 2:
            self.n_failures += 1
            raise NotPositiveDefiniteError("The precision is not positive definite.")
        super().refresh(state)


@pytest.mark.parametrize(
    ("make", "n_steps"),
    [
        (partial(EvidenceLearning, tol=1e-3), 2),
        (partial(SiteUpdates, rule=RULES["adam"](0.2), max_iter=60, tol=1e-3), 60),
    ],
    ids=["gfitc", "sep"],
)
def test_steps_to_where_the_sites_fail_are_rejected(make, n_steps):
    X, y = moons(60)
    kernel = ConstantKernel(5.0) * RBF(1.0)
    propagation = Failing(torch_kernel(kernel), rows_of(X, y))
    problem = EPProblem(propagation, Free(["theta"], t64(kernel.bounds), t64([1.0, 1.0])))
    learning = make(problem)
    start = {"theta": t64(kernel.theta), "Z": t64(X[:10])}
    state = propagation.init(**start)
    before = propagation.evidence(state, run_ep_to_convergence(propagation, state))
    state = learning.init(start)
    for _ in range(n_steps):
        learning.step(state)
    assert propagation.n_failures
    assert state.objective > before
    assert np.log(5) < state.theta[0] <= 2


# The estimator


@pytest.mark.parametrize(("slope", "n"), [(0.0, 80), (0.5, 150)], ids=["noise", "weak signal"])
def test_weak_signal_is_not_overfitted(slope, n):
    gaps = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n + 1000, 10))
        truth = 1 / (1 + np.exp(0.85 - slope * X[:, 0]))
        y = rng.random(n + 1000) < truth

        def loss(p, truth=truth[n:]):
            return -np.mean(truth * np.log(p) + (1 - truth) * np.log(1 - p))

        linear = LogisticRegressionCV(
            scoring="neg_log_loss", l1_ratios=(0,), use_legacy_attributes=False
        ).fit(X[:n], y[:n])
        peers = [np.full(1000, y[:n].mean()), linear.predict_proba(X[n:])[:, 1]]
        model = EPClassifier(random_state=0).fit(X[:n], y[:n])
        gaps.append([loss(model.predict_proba(X[n:])[:, 1]) - loss(p) for p in peers])
    assert np.mean(gaps, 0).max() < 0.005


def test_several_classes_are_the_normalized_models_of_each():
    X, y = blobs(3)
    model = EPClassifier(n_inducing=12, inducing_points=X[:12], random_state=0)
    joint = clone(model).fit(X, y)
    apart = [clone(model).fit(X, y == j).latent_mean_and_variance(X) for j in range(3)]
    p = np.stack([norm.cdf(mean / np.sqrt(1 + var)) for mean, var in apart], 1)
    p = p**joint.temperature_
    np.testing.assert_allclose(
        joint.predict_proba(X), p / p.sum(1, keepdims=True), rtol=0, atol=1e-9
    )


def test_stream_ends_where_one_fit_does():
    X, y = moons()
    settings = {"optimizer": None, "inducing_points": X[:20], "tol": 1e-8, "mean": "zero"}
    whole = EPClassifier(3.0 * RBF(0.7), **settings).fit(X, y)
    parts = EPClassifier(3.0 * RBF(0.7), **settings)
    for i in range(0, 200, 50):
        parts.partial_fit(X[i : i + 50], y[i : i + 50])
    # A stream does not update the sites of earlier rows.
    assert parts.log_marginal_likelihood_value_ == pytest.approx(
        whole.log_marginal_likelihood_value_, rel=0.01
    )
    np.testing.assert_allclose(parts.predict_proba(X), whole.predict_proba(X), rtol=0, atol=0.03)
    first = EPClassifier(3.0 * RBF(0.7), **settings).partial_fit(X, y)
    np.testing.assert_array_equal(first.predict_proba(X), whole.predict_proba(X))


def test_rows_streamed_a_few_at_a_time_count_in_full():
    X, y = moons()
    settings = {"optimizer": None, "inducing_points": X[:20], "mean": "zero"}
    precisions = []
    for size in (0, 50, 2):
        model = EPClassifier(3.0 * RBF(0.7), **settings).partial_fit(X[:150], y[:150])
        model.set_params(tol=0.1)  # a few rows change the means by less than this
        for i in range(150, 200, size) if size else ():
            model.partial_fit(X[i : i + size], y[i : i + size])
        root = model._latents[0].root[0]
        precisions.append(np.trace(np.linalg.inv(root @ root.T)))
    before, one_call, many_calls = precisions
    assert many_calls - before == pytest.approx(one_call - before, rel=0.05)


def test_stream_of_three_classes_may_lack_some():
    X, y = blobs(3)
    order = np.argsort(y, kind="stable")
    start, rest = order[::3], np.setdiff1d(order, order[::3])
    model = EPClassifier(n_inducing=20, random_state=0).partial_fit(X[start], y[start])
    before, evidence = model.score(X[rest], y[rest]), model.log_marginal_likelihood_value_
    for j in range(3):
        part = rest[y[rest] == j]
        model.partial_fit(X[part], y[part])
        assert model.loo_proba_.shape == (len(part), 3)
    assert model.score(X[rest], y[rest]) > before
    assert model.log_marginal_likelihood_value_ < evidence
    with pytest.raises(ValueError, match=r"y has classes \[3\] that are not among \[0, 1, 2\]"):
        model.partial_fit(X[:2], [3, 0])


def test_warm_start_continues_from_kernel_and_points():
    X, y = moons()
    model = EPClassifier(n_inducing=10, warm_start=True, random_state=0).fit(X, y)
    kernel, evidence = model.kernel_, model.log_marginal_likelihood_value_
    reached = model.objective_curve_[-1]
    model.set_params(optimizer=None).fit(X, y)
    assert model.kernel_ == kernel
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, abs=0.01)
    model.set_params(optimizer="auto").fit(X, y)
    assert model.objective_curve_[0] > reached - 1e-3


def test_sites_of_the_learning_are_the_start_of_all_points(monkeypatch):
    X, y = moons(300)
    n_points, update = [], Propagation.site_update

    def recorded(propagation, state):
        n_points.append(len(state.Z))
        return update(propagation, state)

    monkeypatch.setattr(Propagation, "site_update", recorded)
    EPClassifier(random_state=0).fit(X, y)
    assert set(n_points) == {100, 300}
    assert n_points.count(300) < 10  # from sites of zero, about twenty


def test_swapped_labels_swap_probabilities():
    X, y = moons()
    model = EPClassifier(n_inducing=15, random_state=0)
    one, two = clone(model).fit(X, y), clone(model).fit(X, 1 - y)
    assert one.log_marginal_likelihood_value_ == pytest.approx(
        two.log_marginal_likelihood_value_, abs=1e-6
    )
    np.testing.assert_allclose(
        one.predict_proba(X), two.predict_proba(X)[:, ::-1], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("contradicted", [False, True])
def test_left_out_probits_are_those_of_the_posterior_without_the_sites(contradicted):
    X, y = moons(24)
    if contradicted:
        X, y = np.tile(X, (2, 1)), np.r_[y, 1 - y]
    weights = np.resize([1.0, 3.0, 0.5, 2.5], len(X))
    kernel = 5.0 * RBF(0.7)
    propagation = Propagation(torch_kernel(kernel), rows_of(X, y, weights))
    state, _ = swept(propagation, propagation.init(t64(kernel.theta), t64(X[:9])), 0.8, 20)
    found = propagation.left_out_probits(state)
    A, residual = (part.numpy() for part in propagation.basis(state)(t64(X)))
    # A weight below one is in the site, and one above multiplies it.
    copies = np.maximum(weights, 1)
    nu, mu = copies * state.precision.numpy(), copies * state.shift.numpy()
    left = np.ones(len(X)) if contradicted else copies
    for i in range(len(X)):
        kept = np.ones(len(X))
        kept[i] = 1 - left[i] / copies[i]
        cov = np.linalg.inv(np.eye(A.shape[1]) + (A.T * (kept * nu)) @ A)
        probit = A[i] @ cov @ (A.T @ (kept * mu)) / np.sqrt(1 + residual[i] + A[i] @ cov @ A[i])
        assert found[i].item() == pytest.approx(probit, rel=1e-8)


def test_leave_one_out_loss_is_close_to_that_of_refits():
    X, y = moons(60)
    settings = {"mean": "zero", "optimizer": None, "inducing_points": X[::3], "tol": 1e-8}
    model = EPClassifier(5.0 * RBF(0.7), **settings).fit(X, y)
    losses = []
    for i in range(len(X)):
        kept = np.arange(len(X)) != i
        p = clone(model).fit(X[kept], y[kept]).predict_proba(X[[i]])[0, y[i]]
        losses.append(-np.log(p))
    assert model.loo_log_loss_ == pytest.approx(np.mean(losses), rel=0.01)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_leave_one_out_probabilities_are_by_row_as_given(n_classes):
    X, y = blobs(n_classes)
    weights = np.arange(len(X)) % 3.0
    index = np.r_[:150, :4]  # four rows are repeated
    twice = X[index], y[index], weights[index]
    model = EPClassifier(n_inducing=10, max_iter=30, tol=0.05, random_state=0)
    order = np.random.RandomState(1).permutation(len(twice[0]))
    fitted = clone(model).fit(*twice)
    found = fitted.loo_proba_
    shuffled = clone(model).fit(*(part[order] for part in twice)).loo_proba_
    np.testing.assert_array_equal(found[order], shuffled)
    np.testing.assert_array_equal(found[:4], found[len(X) :])
    np.testing.assert_array_equal(np.isnan(found).any(1), twice[2] == 0)
    used = twice[2] > 0
    np.testing.assert_allclose(found[used].sum(1), 1, rtol=1e-12)
    losses = -np.log(found[used, twice[1][used]])
    average = np.average(losses, weights=twice[2][used])
    assert average == pytest.approx(fitted.loo_log_loss_, rel=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_evidence_at_other_hyperparameters(n_classes):
    X, y = blobs(n_classes)
    settings = {"n_inducing": 10, "max_iter": 100, "tol": 1e-9, "optimizer": None}
    kernel = ConstantKernel(2.0) * RBF(1.3) + WhiteKernel(0.4)
    model = EPClassifier(kernel, random_state=0, **settings).fit(X, y)
    value = model.log_marginal_likelihood_value_
    assert model.log_marginal_likelihood() == value
    assert model.log_marginal_likelihood(X=X, y=y) == pytest.approx(value, abs=1e-6)
    theta = model.kernel_.theta + np.linspace(-0.3, 0.4, len(model.kernel_.theta))
    there, gradient = model.log_marginal_likelihood(theta, eval_gradient=True, X=X, y=y)
    assert there == model.log_marginal_likelihood(theta, X=X, y=y)
    steps = 1e-4 * np.eye(len(theta))
    differences = [
        (
            model.log_marginal_likelihood(theta + step, X=X, y=y)
            - model.log_marginal_likelihood(theta - step, X=X, y=y)
        )
        / 2e-4
        for step in steps
    ]
    # Sites have converged up to 1e-6.
    np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=1e-4)
    assert model.log_marginal_likelihood_value_ == value
    with pytest.raises(ValueError, match="pass the rows of fit as X and y"):
        model.log_marginal_likelihood(theta)
    with pytest.raises(ValueError, match=r"theta has shape \(1,\), but kernel_.theta has shape"):
        model.log_marginal_likelihood(theta[:1], X=X, y=y)


def test_single_precision_agrees_with_double():
    X, y = moons()
    settings = {"n_inducing": 15, "optimizer": None, "random_state": 0, "tol": 1e-4}
    double = EPClassifier(**settings).fit(X, y)
    single = EPClassifier(**settings, dtype="float32").fit(X, y)
    np.testing.assert_allclose(single.predict_proba(X), double.predict_proba(X), rtol=0, atol=1e-3)


def test_updates_that_end_too_early_raise_a_warning():
    X, y = moons()
    with pytest.warns(ConvergenceWarning, match="reached max_iter=3"):
        EPClassifier(n_inducing=10, max_iter=3, random_state=0).fit(X, y)


def test_probabilities_average_those_of_draws():
    X, y = moons()
    model = EPClassifier(n_inducing=15, optimizer=None, random_state=0).fit(X, y)
    assert model.temperature_ == 1
    draws = model.sample_latent(X[:20], 20_000)
    p = model.predict_proba_from_latent(draws).mean(0)
    # Four standard errors of a mean of 20,000 numbers in [0, 1].
    np.testing.assert_allclose(p, model.predict_proba(X[:20]), rtol=0, atol=2 / np.sqrt(20_000))


def test_beats_or_equals_the_variational_bound_on_the_same_data():
    X, y = moons(300)
    X_new, y_new = moons(1000, seed=1)
    settings = {"n_inducing": 20, "random_state": 0}
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        variational = SVGPClassifier(likelihood="probit", **settings).fit(X, y)
    ours = EPClassifier(**settings).fit(X, y)
    losses = [log_loss(y_new, model.predict_proba(X_new)) for model in (ours, variational)]
    assert losses[0] < losses[1] + 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "vb"}, "solver='vb' is not one of 'auto', 'sep', 'gfitc'"),
        ({"solver": NaturalGradient()}, "EPClassifier: InterleavedEP, ConvergedEP"),
        (
            {"solver": InterleavedEP("lbfgs")},
            "rule='lbfgs' is not one of 'adam', 'sign', 'adadelta'",
        ),
        ({"solver": InterleavedEP(batch_size=0)}, "batch_size=0 must be an integer of at least 1"),
        ({"solver": ConvergedEP(), "optimizer": None}, r"solver=ConvergedEP\(\) has no effect"),
        ({"learn_inducing": True, "optimizer": None}, "learn_inducing=True has no effect"),
        (
            {"solver": InterleavedEP(gradient="approximate"), "optimizer": None},
            "solver__gradient='approximate' has no effect",
        ),
        ({"optimizer": "sign"}, "optimizer='sign' is not one of 'auto', None"),
        ({"mean": 1}, "mean=1 is not one of"),
    ],
)
def test_bad_parameters_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EPClassifier(**settings).fit(*moons(20))


def test_sites_of_a_posterior_are_nearly_converged():
    propagation, state = case("B")
    empty = replace(state)
    run_ep_to_convergence(propagation, state)
    start = {name: getattr(state, name) for name in ("theta", "Z", "mean", "root")}
    near = propagation.first_state(start)
    distances = [(each.mean - state.mean).norm() for each in (near, empty)]
    assert distances[0] < 0.2 * distances[1]
    assert propagation.first_state({name: start[name] for name in ("theta", "Z")}).mean.norm() == 0


@pytest.mark.parametrize("solver", ["sep", "gfitc"])
def test_a_few_moving_points_find_a_curved_boundary(solver):
    rng = np.random.default_rng(1)
    y = rng.integers(2, size=400)
    angle = np.pi * rng.uniform(-0.2, 1.2, 400)
    arc = np.column_stack([np.cos(angle) - 0.5, np.sin(angle) - 0.25])
    X = np.where(y[:, None] == 1, arc, -arc) + 0.3 * rng.standard_normal((400, 2))
    options = {"mean": "zero", "n_inducing": 6, "learn_inducing": True, "random_state": 0}
    model = EPClassifier(solver=solver, **options).fit(X, y)
    # The linear boundary has -231 nats.
    assert model.log_marginal_likelihood_value_ > -185
