"""Steps on the means: the maximum, shortened steps, and the common shift of the latents."""

import pytest
import torch

from skgpsvm._inference.mean_steps import ascend_means, newton_step, preconditioner, times

P = 5


def generator():
    return torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, generator=generator(), dtype=torch.float64)


def problem(n_latents, relative, strength=1e4):
    """Return the value and gradient of a concave quadratic, and its preconditioner.

    The loss is quadratic in the latents, or in their differences from the mean over latents. Its
    precisions differ between latents by some percent.
    """
    A = normal(40, P)
    prior = 2 * torch.eye(P).double().expand(n_latents, -1, -1)
    weights = strength * (1 + 0.1 * torch.rand(n_latents, 40, generator=generator()).double())
    precision = prior + torch.einsum("nk,cn,nl->ckl", A, weights, A)
    targets = A @ normal(P, n_latents)

    def value_and_gradient(mean):
        mean = mean.detach().requires_grad_()
        latents = A @ mean.T - targets
        if relative:
            latents = latents - latents.mean(1, keepdim=True)
        with torch.enable_grad():
            value = -0.5 * (strength * latents.square().sum() + (mean * times(prior, mean)).sum())
            value = value + mean.sum()  # of a prior whose mean is not zero
            (gradient,) = torch.autograd.grad(value, mean)
        return value.detach(), gradient

    root = torch.linalg.inv(torch.linalg.cholesky(precision)).mT
    return value_and_gradient, preconditioner(root, prior, relative)


def counted(function, calls):
    def call(mean):
        calls.append(mean)
        return function(mean)

    return call


def slack(value):
    return 1e-12 * abs(value)


@pytest.mark.parametrize("relative", [False, True])
def test_few_steps_reach_the_maximum(relative):
    function, precondition = problem(4, relative)
    calls = []
    mean = torch.zeros(4, P).double()
    for _ in range(4):
        mean, _ = ascend_means(counted(function, calls), mean, precondition, slack)
    value, gradient = function(mean)
    for direction in normal(10, 4, P):
        assert function(mean + 1e-3 * direction)[0] < value
    # Each of the four ascents lowers the squared gradient a hundredfold.
    assert gradient.norm() < 1e-3 * function(torch.zeros(4, P).double())[1].norm()
    assert len(calls) < 25


def test_common_shift_takes_the_curvature_of_the_prior():
    function, precondition = problem(4, relative=True)
    common = normal(P).expand(4, -1)
    # The prior has precision 2 and pulls each latent to 1/2.
    zero = torch.zeros(4, P).double()
    curvature = function(zero)[1] - function(common)[1]
    torch.testing.assert_close(curvature, 2 * common, rtol=1e-9, atol=1e-6)
    torch.testing.assert_close(precondition(curvature), common, rtol=1e-6, atol=1e-8)


def test_first_step_is_that_of_the_preconditioner():
    function, precondition = problem(3, relative=False)
    start = normal(3, P)
    _, first = ascend_means(function, start, precondition, slack)
    torch.testing.assert_close(first, start + precondition(function(start)[1]))


def test_steps_that_overshoot_are_shortened_to_the_maximum_along_them():
    function, precondition = problem(1, relative=False)
    start, values = torch.zeros(1, P).double(), []

    def watched(mean):
        value, gradient = function(mean)
        values.append(value.item())
        return value, gradient

    mean, _ = ascend_means(watched, start, lambda g: 50 * precondition(g), slack)
    best, _ = ascend_means(function, start, precondition, slack)
    assert values[1] < values[0]  # the first step is too long
    assert function(mean)[0] > function(start)[0]
    assert abs(function(mean)[0] - function(best)[0]) < 0.02 * abs(values[0] - values[-1])
    assert len(values) < 12


def test_steps_end_where_no_step_helps():
    def rough(mean):  # the value contradicts the gradient
        return -mean.abs().sum(), torch.ones_like(mean)

    start = torch.zeros(2, P).double()
    mean, first = ascend_means(rough, start, lambda g: g, lambda value: 1e-12)
    assert torch.equal(mean, start)
    assert torch.equal(first, start + 1)


def test_one_step_is_taken_below_the_rounding_error():
    function, precondition = problem(2, relative=True)
    start, calls = torch.zeros(2, P).double(), []
    mean, _ = ascend_means(counted(function, calls), start, precondition, lambda value: 1e12)
    assert len(calls) == 2
    assert not torch.equal(mean, start)


@pytest.mark.parametrize("relative", [False, True])
def test_newton_step_of_a_quadratic_leads_to_its_maximum(relative):
    function, precondition = problem(4, relative)
    start = normal(4, P)
    value, gradient = function(start)

    def product(step):
        return gradient - function(start + step)[1]

    found, left = function(start + newton_step(gradient, product, precondition))
    best = function(ascend_means(function, start, precondition, slack)[0])[0]
    assert found - value > 0.98 * (best - value)
    assert left.norm() < 0.1 * gradient.norm()
    none = newton_step(torch.zeros_like(start), product, precondition)
    assert torch.equal(none, torch.zeros_like(start))
