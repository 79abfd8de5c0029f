"""Fisher scoring within bounds."""

import numpy as np
import pytest
import torch
from problems import t64

from skgpsvm._scoring import _bounded_step, fisher_scoring
from skgpsvm.exceptions import NotPositiveDefiniteError


def counted(value, gradient, information):
    """Return the argument of `fisher_scoring` for functions of a point, and its points so far."""
    points = []

    def evaluate(x):
        points.append(x)
        return value(x).item(), lambda: (gradient(x), information(x))

    return evaluate, points


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_quadratic_takes_the_steps_to_its_constrained_optimum(seed, held):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(6, 6))
    H, center = t64(root @ root.T + np.eye(6)), t64(2 * rng.normal(size=6))
    bounds = t64([[-0.5, 0.5]] * 6)
    if held:
        bounds[0] = 0.1

    def value(x):
        return 3 - 0.5 * (x - center) @ H @ (x - center)

    evaluate, points = counted(value, lambda x: -H @ (x - center), lambda x: H)
    best, found, _ = fisher_scoring(evaluate, t64(np.zeros(6)), bounds, 20, 1e-9)
    assert ((best >= bounds[:, 0]) & (best <= bounds[:, 1])).all()
    assert found == pytest.approx(value(best).item(), rel=1e-12)
    assert len(points) <= 4
    # Karush–Kuhn–Tucker: the gradient is zero inside the bounds and points outward on them.
    slope, inside = -H @ (best - center), best.abs() < 0.5 - 1e-12
    inside[0] &= not held
    outward = (slope * best.sign())[~inside]
    assert len(outward) > 0
    np.testing.assert_allclose(slope[inside], 0, atol=0.02)
    assert outward[held:].min() > 0


def test_steps_within_bounds_are_optimal_after_few_systems(monkeypatch):
    systems, solve = [], torch.linalg.solve
    monkeypatch.setattr(torch.linalg, "solve", lambda A, b: systems.append(len(A)) or solve(A, b))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        root, gradient = t64(rng.normal(size=(100, 120))), t64(rng.normal(size=100))
        hess, ends = 0.1 * root @ root.T, t64([-1, 1] * rng.uniform(0, 0.03, (100, 2)))
        step = _bounded_step(gradient, hess, ends)
        slope, low, high = gradient - hess @ step, step == ends[:, 0], step == ends[:, 1]
        np.testing.assert_allclose(slope[~(low | high)], 0, atol=1e-12)
        assert slope[low].max() <= 0 <= slope[high].min()
    assert len(systems) <= 20 * 20


@pytest.mark.parametrize("overestimate", [0.2, 1.0, 5.0])
def test_wrong_information_is_corrected(overestimate):
    center = t64([0.8, -0.6, 0.3])
    H = t64([[4.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 0.3]])

    def value(x):
        return -0.5 * (x - center) @ H @ (x - center) - 0.1 * (x - center).pow(4).sum()

    def gradient(x):
        return -H @ (x - center) - 0.4 * (x - center).pow(3)

    evaluate, points = counted(value, gradient, lambda x: overestimate * H)
    bounds = t64([[-9.0, 9.0]] * 3)
    best, *_ = fisher_scoring(evaluate, t64([-2.0, 2.0, 2.0]), bounds, 50, 1e-8)
    np.testing.assert_allclose(best, center, atol=1e-3)
    assert len(points) <= 25


@pytest.mark.parametrize("fails", [NotPositiveDefiniteError("no factor"), None])
def test_steps_to_where_the_value_fails_are_rejected(fails):
    failed = []

    def evaluate(x):
        failed.append(bool(x[0] <= 0))
        if x[0] <= 0 and fails is not None:
            raise fails
        return (x[0].log() - x[0]).item(), lambda: (1 / x - 1, t64([[0.3]]))

    best, value, _ = fisher_scoring(evaluate, t64([0.1]), t64([[-9.0, 9.0]]), 50, 1e-9)
    np.testing.assert_allclose(best, 1, atol=1e-3)
    assert value == pytest.approx(-1, abs=1e-6)
    failed.clear()
    fisher_scoring(evaluate, t64([0.5]), t64([[-9.0, 9.0]]), 1, 1e-9)
    assert len(failed) == 2


def test_a_round_goes_on_with_the_radius_of_the_last_one():
    # The information is a tenth of the curvature, so that steps of radius one go too far.
    def value(x):
        return (-2 * (x - 0.4).square()).sum()

    evaluate, points = counted(value, lambda x: -4 * (x - 0.4), lambda x: t64([[0.4]]))
    bounds = t64([[-9.0, 9.0]])
    best, _, radius = fisher_scoring(evaluate, t64([0.0]), bounds, 1, 1e-9)
    assert (radius, len(points)) == (0.25, 3)
    fisher_scoring(evaluate, best, bounds, 1, 1e-9, radius)
    assert len(points) == 5


def test_a_start_where_the_value_fails_is_an_error():
    def evaluate(x):
        raise NotPositiveDefiniteError("no factor")

    with pytest.raises(NotPositiveDefiniteError):
        fisher_scoring(evaluate, torch.zeros(1), t64([[-1.0, 1.0]]), 5, 1e-3)
