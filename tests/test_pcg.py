"""The recurrence of conjugate gradients against dense solutions."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from problems import t64

from skgpsvm._inference.pcg import PCGState


@pytest.mark.parametrize("preconditioned", [False, True])
def test_recurrence_solves_systems_and_lowers_the_quadratic_by_its_gains(preconditioned):
    rng = np.random.default_rng(0)
    A = t64(rng.normal(size=(6, 6)))
    A = A @ A.T + torch.eye(6)
    b = t64(rng.normal(size=(2, 6)))
    b[1] = 0  # solved from the start
    inverse = torch.linalg.inv(A + 0.1 * torch.eye(6)) if preconditioned else torch.eye(6).double()
    state = PCGState(coef=t64(np.zeros((2, 6))))

    def value(x):
        return (0.5 * (x @ A * x) - b * x).sum(1, keepdim=True)

    state.restart(b, lambda residual: residual @ inverse)
    for _ in range(6):
        before, norm = value(state.coef), state.norm
        size = state.advance(state.direction @ A, lambda residual: residual @ inverse)
        assert_allclose(value(state.coef), before - 0.5 * size * norm, rtol=1e-9, atol=1e-12)
        assert_allclose(state.residual, b - state.coef @ A, atol=1e-10)
    assert_allclose(state.coef, torch.linalg.solve(A, b.T).T, atol=1e-10)
    assert state.relative_residual() < 1e-8
