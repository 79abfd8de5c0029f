"""Maximizers, and parameters as one vector."""

from functools import partial

import numpy as np
import pytest
import torch
from problems import t64
from scipy.optimize import minimize

from skgpsvm._optim import STEPS, FlatParameters, by_autograd, lbfgs, maximize_density
from skgpsvm.exceptions import NotPositiveDefiniteError

X, Y = np.zeros((3, 1)), np.arange(3)


@pytest.mark.parametrize("seed", range(3))
def test_lbfgs_finds_the_constrained_optimum_of_a_quadratic(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 5))
    H, center = t64(root @ root.T + np.eye(5)), t64(2 * rng.normal(size=5))
    bounds = t64([[-0.5, 0.5]] * 5)

    def objective(x):
        return 3 - 0.5 * (x - center) @ H @ (x - center)

    best, value = lbfgs(by_autograd(objective), torch.zeros(5, dtype=torch.float64), bounds, 200)
    assert ((best >= -0.5) & (best <= 0.5)).all()
    assert value == pytest.approx(objective(best).item(), rel=1e-12)
    # Karush–Kuhn–Tucker: the gradient is zero inside the bounds and points outward on them.
    slope = -H @ (best - center)
    inside = best.abs() < 0.5
    assert 0 < (~inside).sum()
    np.testing.assert_allclose(slope[inside], 0, atol=1e-4)
    assert (slope * best.sign())[~inside].min() > 0


def test_lbfgs_reaches_an_optimum_inside_and_counts_iterations():
    center = t64([0.3, -0.2])

    def objective(x):
        return -((x - center) ** 4).sum() - (x - center).square().sum()

    start, bounds = t64([1.0, 1.0]), t64([[-2.0, 2.0]] * 2)
    best, value = lbfgs(by_autograd(objective), start, bounds, 100)
    # The error is the default tolerance of the gradient, 1e-5, over a curvature of 2.
    np.testing.assert_allclose(best, center, rtol=0, atol=1e-5)
    assert value == pytest.approx(0, abs=1e-9)
    once, _ = lbfgs(by_autograd(objective), start, bounds, 1)
    assert objective(start) < objective(once) < value
    reference = minimize(
        lambda x: -objective(t64(x)).item(), start, method="L-BFGS-B", options={"maxiter": 100}
    )
    assert value == pytest.approx(-reference.fun, abs=1e-9)


def _log_or_error(x):
    if x[0] <= 0:
        raise NotPositiveDefiniteError("The matrix is not positive definite.")
    return x[0].log() - x[0], 1 / x - 1


def _log_or_nan(x):
    value = x[0].log() - x[0]
    return value, 1 / x - 1 if x[0] > 0 else torch.full_like(x, torch.nan)


@pytest.mark.parametrize("objective", [_log_or_error, _log_or_nan])
def test_steps_to_where_the_objective_fails_are_rejected(objective):
    failures = []

    def counted(x):
        failures.append(bool(x[0] <= 0))
        value, slope = objective(x)
        return value.item(), slope

    start, bounds = t64([4.0]), t64([[-1e3, 1e3]])
    best, value = lbfgs(counted, start, bounds, 200)
    assert any(failures)
    np.testing.assert_allclose(best, 1, rtol=0, atol=1e-2)
    assert value == pytest.approx(-1, abs=1e-4)


def test_a_start_where_the_objective_fails_is_an_error():
    with pytest.raises(NotPositiveDefiniteError):
        lbfgs(_log_or_error, t64([-1.0]), t64([[-1e3, 1e3]]), 20)


def test_lbfgs_takes_gradients_from_either_source():
    center = t64([0.3, -0.2])
    start, bounds = t64([1.0, 1.0]), t64([[-2.0, 2.0], [0.0, 2.0]])

    def by_hand(x):
        assert not x.requires_grad
        z = x - center
        return -(z**4 + z**2).sum().item(), -(4 * z**3 + 2 * z)

    best, value = lbfgs(by_hand, start, bounds, 100)
    automatic = by_autograd(lambda x: -((x - center) ** 4 + (x - center) ** 2).sum())
    same, same_value = lbfgs(automatic, start, bounds, 100)
    # The steps are the same, up to rounding of the gradients.
    np.testing.assert_allclose(best, same, rtol=0, atol=1e-9)
    assert value == pytest.approx(same_value, rel=1e-12)
    np.testing.assert_allclose(best, [0.3, 0.0], rtol=0, atol=1e-5)
    assert torch.equal(start, t64([1.0, 1.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [("adam", torch.optim.Adam), ("adadelta", partial(torch.optim.Adadelta, eps=1e-5))],
)
def test_steps_are_those_of_torch(rule, optimizer, dtype):
    generator = torch.Generator().manual_seed(0)
    point, memory = torch.zeros(37, dtype=dtype), None
    reference = point.clone()
    of_torch = optimizer([reference], lr=0.05, maximize=True)
    for i in range(20):
        reference.grad = torch.randn(37, dtype=dtype, generator=generator) * 10.0 ** (i % 5)
        of_torch.step()
        step, memory = STEPS[rule](memory, reference.grad, 0.05)
        point = point + step
        torch.testing.assert_close(point, reference, rtol=0, atol=0 if rule == "adam" else 1e-6)


def test_packed_tensors_come_back_with_their_slopes_and_bounds():
    state = {"a": t64([1.0, 2.0]), "b": t64([[1.0, 2.0], [3.0, 4.0]]), "c": t64([9.0])}
    packing = FlatParameters(
        ["b", "a"],
        {"b": t64([2.0, 4.0]), "a": t64([1.0, 0.5])},
        {"a": t64([[0.0, 1.0], [2.0, 3.0]])},
    )
    vector = packing.vector(state)
    np.testing.assert_array_equal(vector, [0.5, 0.5, 1.5, 1.0, 1.0, 4.0])
    parts = packing.parts(vector, state)
    assert list(parts) == ["b", "a"]
    for name, part in parts.items():
        assert torch.equal(part, state[name])

    def objective(point):
        parts = packing.parts(point, state)
        return (parts["a"] ** 3).sum() + (parts["b"] ** 2).sum()

    _, slope = by_autograd(objective)(vector.clone())
    by_hand = packing.gradient({"a": 3 * state["a"] ** 2, "b": 2 * state["b"]})
    np.testing.assert_allclose(by_hand, slope, rtol=1e-14)
    limits = packing.limits(state)
    np.testing.assert_array_equal(limits[:4], [[-np.inf, np.inf]] * 4)
    np.testing.assert_array_equal(limits[4:], [[0, 1], [4, 6]])


def test_value_and_gradient_by_autograd():
    z = t64([0.7, 0.7])
    with torch.no_grad():
        value, gradient = by_autograd(lambda x: -(x**4 + x**2).sum())(z.clone())
    assert isinstance(value, float)
    assert value == pytest.approx(-(z**4 + z**2).sum().item(), rel=1e-14)
    np.testing.assert_allclose(gradient, -(4 * z**3 + 2 * z), rtol=1e-14)


def test_density_is_maximized_with_weights_prior_and_bounds():
    y, weights = t64([0.5, -1.0, 2.0]), t64([1.0, 3.0, 0.5])

    def log_density(log_var):
        return -0.5 * (log_var + y.square() / log_var.exp())

    def best(bounds=(-10.0, 10.0), log_prior=None):
        options = t64([0.0]), t64([bounds]), log_prior
        return maximize_density(log_density, weights, *options)

    expected = (weights @ y.square() / weights.sum()).log()
    found, value = best()
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    assert value == pytest.approx((weights @ log_density(found)).item(), rel=1e-12)
    assert best((-10.0, -1.0))[0].item() == -1.0
    near_one, lower = best(log_prior=lambda log_var: -1e6 * (log_var - 1).square().sum())
    assert near_one.item() == pytest.approx(1.0, abs=1e-5)
    assert lower < value
