"""Calibration of latent moments, and the probabilities that follow."""

import math

import numpy as np
import oracles
import pytest
import torch
from problems import HINGES, Unwhitened, codes, moments, t64
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss

from skgpsvm import DecoupledGPClassifier, EPClassifier, QSGPClassifier, SVGPClassifier
from skgpsvm._calibration import (
    Calibration,
    Tempering,
    argmax_scores,
    calibrated_scores,
    log_probability,
    tempered,
)
from skgpsvm._predictive import CalibratedProbabilities


def logistic_rows(n, c, seed, slope=1.5):
    """Return moments and codes, with probabilities by the softmax of ``slope`` times the means."""
    rng = np.random.default_rng(seed)
    mean, var = 2 * rng.normal(size=(n, c)), rng.uniform(0.1, 1, size=(n, c))
    p = log_probability(t64(slope * mean)).exp().numpy()
    y = (rng.uniform(size=(n, 1)) > p.cumsum(1)).sum(1)
    return t64(mean), t64(var), codes(y), t64(rng.uniform(0.5, 2, size=n))


def prior(rows):
    """Return the calibration before rows of moments, targets and weights."""
    mean, _, y, weights = rows
    return Calibration.prior(mean.shape[1], y, weights)


@pytest.mark.parametrize("c", [1, 3])
def test_calibration_minimizes_the_penalized_loss(c):
    for seed in range(4):
        rows = mean, var, y, weights = logistic_rows(150, c, seed)
        start = prior(rows)

        def loss(values, mean=mean, var=var, y=y, weights=weights, start=start):
            temperature, spread = np.exp(values[:2])
            intercept = values[2] * t64(start.log_frequencies)
            log_p = log_probability(calibrated_scores(mean, spread * var, temperature, intercept))
            penalty = 0.5 * np.sum(np.square(values / [2.0, 2.0, 1.0]))
            return penalty - (weights * log_p[torch.arange(150), y]).sum().item()

        best = minimize(loss, [0, 0, 0], method="Nelder-Mead", options={"xatol": 1e-7})
        found = start.updated(*rows)
        # Newton's method stops when a step gains 1e-8 of the loss, which is flat in the spread.
        assert best.fun - 1e-6 <= loss(np.array(found.values)) < best.fun + 1e-4
        assert found.values == pytest.approx(best.x, abs=0.05)
        assert found.weight == pytest.approx(weights.sum().item())
        assert found.temperature == math.exp(found.values[0])
        assert found.spread == math.exp(found.values[1])
        np.testing.assert_array_equal(
            found.intercept, found.values[2] * np.array(start.log_frequencies)
        )


@pytest.mark.parametrize("c", [1, 3])
def test_probabilities_are_class_frequencies_where_latents_say_nothing(c):
    n, frequencies = 10_000, np.array([0.9, 0.1] if c == 1 else [0.7, 0.25, 0.05])
    y = codes(np.repeat(np.arange(len(frequencies)), (n * frequencies).round().astype(int)))
    rng = np.random.default_rng(0)
    # The latents favor the first class, as those of a hinge would.
    mean = t64(rng.normal([-1.0] if c == 1 else [0.7, -0.3, -0.4], 1, (n, c)))
    rows = mean, t64(rng.uniform(0.5, 2, (n, c))), y, t64(np.ones(n))
    found = prior(rows).updated(*rows)
    probabilities = CalibratedProbabilities(
        found.temperature, found.spread, found.intercept.numpy()
    )
    p = probabilities.of_moments(*rows[:2]).p.numpy()
    # The lowest temperature is 0.05, and 10,000 rows have a slope by chance.
    assert np.abs(p - frequencies).mean() < 0.02
    entropy = -(frequencies * np.log(frequencies)).sum()
    assert abs(found.log_loss - entropy) < 1e-3


@pytest.mark.parametrize("c", [1, 3])
def test_tempering_minimizes_the_penalized_loss(c):
    for seed in range(4):
        mean, _, y, weights = logistic_rows(150, c, seed)
        log_p = log_probability(mean)

        def loss(log_power, log_p=log_p, y=y, weights=weights):
            log_q = torch.log_softmax(math.exp(log_power) * log_p, 1)
            penalty = 0.5 * (log_power / 0.5) ** 2
            return penalty - (weights * log_q[torch.arange(150), y]).sum().item()

        best = minimize_scalar(loss, bounds=(-2, 2), method="bounded", options={"xatol": 1e-8})
        found = Tempering().updated(log_p, y, weights)
        assert found.values[0] == pytest.approx(best.x, abs=1e-3)
        assert found.power == math.exp(found.values[0])
        assert found.weight == pytest.approx(weights.sum().item())
        # The slope of the generator is 1.5; a standard deviation of the logarithm is 0.15.
        assert 1 < found.power < 2.4


@pytest.mark.parametrize("c", [1, 3])
def test_tempering_to_frequencies_minimizes_the_penalized_loss(c):
    mean, _, y, weights = logistic_rows(150, c, 0)
    log_p, n = log_probability(2 * mean), max(c, 2)
    counts = torch.bincount(y, weights, n) + 0.5
    base = (counts / counts.sum()).log()

    def loss(log_power):
        logits = base + math.exp(log_power) * (log_p - base)
        penalty = 0.5 * (log_power / 0.5) ** 2
        return penalty - (weights * logits.log_softmax(1)[torch.arange(150), y]).sum().item()

    best = minimize_scalar(loss, bounds=(-2, 2), method="bounded", options={"xatol": 1e-8})
    found = Tempering.to_frequencies(n, y, weights).updated(log_p, y, weights)
    assert found.values[0] == pytest.approx(best.x, abs=1e-3)
    vanishing = tempered(log_p, 1e-9, found.log_frequencies)
    np.testing.assert_allclose(vanishing, base.expand_as(log_p), atol=1e-6)


def test_tempering_of_rows_in_parts_is_that_of_all():
    mean, _, y, weights = logistic_rows(3000, 3, seed=0)
    log_p = log_probability(mean)
    parts = [slice(0, 1000), slice(1000, 3000)]
    # The prior of later rows is a quadratic approximation.
    streamed = Tempering()
    for part in parts:
        streamed = streamed.updated(log_p[part], y[part], weights[part])
    whole = Tempering().updated(log_p, y, weights)
    assert streamed.power == pytest.approx(whole.power, rel=0.01)
    assert streamed.log_loss == pytest.approx(whole.log_loss, rel=0.01)
    assert np.isnan(Tempering().log_loss)

    fixed = Tempering().updated(log_p, y, weights, learns=False)
    assert fixed.power == 1
    assert fixed.log_loss == pytest.approx(-(weights @ log_p[torch.arange(3000), y]) / fixed.weight)


@pytest.mark.parametrize(("temperature", "spread"), [(1.0, 4.0), (3.0, 0.25)])
def test_calibration_finds_what_made_the_labels(temperature, spread):
    rng = np.random.default_rng(0)
    n = 20_000
    mean, var = t64(rng.normal(size=(n, 1))), t64(rng.exponential(size=(n, 1)))
    f = mean + (spread * var).sqrt() * t64(rng.normal(size=(n, 1)))
    y = codes((rng.uniform(size=n) < expit(temperature * f[:, 0].numpy())).astype(int))
    rows = mean, var, y, t64(np.ones(n))
    found = prior(rows).updated(*rows)
    # The tolerance is four standard deviations plus the error of MacKay's approximation.
    std = np.sqrt(np.diag(np.linalg.inv(found.precision)))
    errors = np.subtract(found.values[:2], np.log([temperature, spread]))
    assert (np.abs(errors) < 4 * std[:2] + 0.1).all()
    assert (std[:2] < 0.2).all()
    assert found.intercept.abs() < 0.1


def test_calibration_in_parts_is_nearly_that_of_all_rows():
    rows = logistic_rows(400, 3, seed=0)
    whole = prior(rows).updated(*rows)
    parts = prior(rows)
    for i in (slice(0, 200), slice(200, None)):
        parts = parts.updated(*(part[i] for part in rows))
    std = np.sqrt(np.diag(np.linalg.inv(whole.precision)))
    assert (np.abs(np.subtract(parts.values, whole.values)) < 0.5 * std).all()
    assert parts.loss == pytest.approx(whole.loss, rel=0.02)
    assert parts.weight == pytest.approx(whole.weight)


def test_calibration_takes_weights_as_repetitions():
    mean, var, y, weights = logistic_rows(40, 3, seed=0)
    twice = [torch.cat([part, part]) for part in (mean, var, y, weights)]
    doubled = prior((mean, var, y, 2 * weights)).updated(mean, var, y, 2 * weights)
    repeated = prior(twice).updated(*twice)
    np.testing.assert_allclose(doubled.values, repeated.values, atol=1e-6)
    assert doubled.loss == pytest.approx(repeated.loss, rel=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_calibration_is_finite_where_rows_are_all_right_or_all_wrong(sign):
    mean = sign * t64([[0.3], [-0.3]])
    rows = mean, 0 * mean, codes([1, 0]), t64([1, 1])
    found = prior(rows).updated(*rows)
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
    exact = expit(temperature * f + 0.5) @ density / density.sum()
    p = log_probability(calibrated_scores(mean, var, temperature, t64([0.5]))).exp()[:, 1]
    # MacKay's approximation errs by 0.018 at most, in the limit of a step.
    np.testing.assert_allclose(p, exact, rtol=0, atol=0.018)


def test_multiclass_probabilities_average_the_softmax_roughly():
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(200, 3)), rng.uniform(0, 1, size=(200, 3))
    intercept = np.array([0.5, 0.0, -0.5])
    x, w = np.polynomial.hermite_e.hermegauss(20)
    nodes = np.stack(np.meshgrid(x, x, x), -1).reshape(-1, 3)
    weights = (w[:, None, None] * w[:, None] * w).ravel()
    f = mean[:, None] + np.sqrt(var)[:, None] * nodes
    exact = np.einsum(
        "h,nhc->nc", weights / weights.sum(), torch.softmax(t64(f + intercept), -1).numpy()
    )
    p = log_probability(calibrated_scores(t64(mean), t64(var), 1.0, t64(intercept))).exp().numpy()
    # The formula by latents is cruder than the binary one: 0.011 on average, 0.06 at most.
    assert np.abs(p - exact).mean() < 0.015
    assert np.abs(p - exact).max() < 0.08


def test_argmax_scores_are_the_published_probabilities():
    T1 = Unwhitened(oracles.T1)
    ascent = T1.ascent(HINGES["hard"]())
    mean, var = moments(ascent, T1.start(ascent), [[0.25], [3.0], [50.0]])
    # Section 8.6; the tolerance is for the jitter.
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


# Tempering of likelihoods


def separated_classes(n, seed):
    """Return rows of three classes that ten features of little information each tell apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    centers = np.random.default_rng(0).normal(size=(3, 10))
    return centers[y] + 0.8 * rng.normal(size=(n, 10)), y


@pytest.mark.parametrize(
    "model",
    [
        SVGPClassifier(random_state=0),
        EPClassifier(random_state=0),
        DecoupledGPClassifier(random_state=0),
        QSGPClassifier(n_basis=300, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_leave_one_out_predictions_show_caution(model):
    X, y = separated_classes(60, seed=1)
    X_new, y_new = separated_classes(2000, seed=2)
    model.fit(X, y)
    assert 1.1 < model.temperature_ < 10
    tempered = model.predict_proba(X_new)
    plain = tempered ** (1 / model.temperature_)
    plain /= plain.sum(1, keepdims=True)
    assert log_loss(y_new, tempered) < 0.9 * log_loss(y_new, plain)
    np.testing.assert_allclose(
        np.exp(model.predict_log_proba(X_new)), tempered, rtol=1e-9, atol=1e-300
    )
    assert (model.decision_function(X_new).argmax(1) == tempered.argmax(1)).all()
    # Nothing is learned of the power in a fit that learns nothing; a warm start keeps it.
    assert clone(model).set_params(optimizer=None).fit(X, y).temperature_ == 1
    power = model.temperature_
    model.set_params(optimizer=None, warm_start=True).fit(X, y)
    assert model.temperature_ == power
    if hasattr(model, "loo_log_loss_"):
        assert model._tempering.weight == len(X)
    assert model.set_params(warm_start=False).fit(X, y).temperature_ == 1


# One Newton step stands for each refit, and with three latents a simpler curvature.
@pytest.mark.parametrize(("n_classes", "tolerance"), [(2, 0.05), (3, 0.15)])
def test_leave_one_out_loss_is_that_of_refits(n_classes, tolerance):
    X, y = separated_classes(40, seed=3)
    X, y = 0.5 * X[y < n_classes], y[y < n_classes]
    model = SVGPClassifier(RBF(3.0), optimizer=None, tol=1e-3, random_state=0).fit(X, y)
    losses = []
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        refit = clone(model).fit(X[others], y[others])
        losses.append(-refit.predict_log_proba(X[i : i + 1])[0, y[i]])
    assert model.loo_log_loss_ == pytest.approx(np.mean(losses), rel=tolerance)
    assert model.temperature_ == 1


@pytest.mark.parametrize("c", [1, 3])
def test_prior_of_other_rows_counts_as_the_given_number_of_rows(c):
    rows = logistic_rows(150, c, 0)
    start, weight = prior(rows), rows[3].sum().item()
    whole = start.updated(*rows)
    for worth in (0.0, 20.0, 1e6):
        found, share = start.informed(*rows, worth), min(worth / weight, 1)
        assert found.values == pytest.approx(whole.values)
        expected = (1 - share) * np.array(start.precision) + share * np.array(whole.precision)
        assert np.array(found.precision) == pytest.approx(expected, rel=1e-12)
        assert (found.loss, found.weight) == (0, 0)  # of rows before
