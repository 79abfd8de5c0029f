"""A maximizer of functions of tensors, steps of Adam and Adadelta, and parameters as one vector."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import minimize

from .exceptions import NotPositiveDefiniteError

_MIN_SLOPE = 1e-8  # of a rejected step, relative to the objective
_ADAM_BETAS, _ADAM_EPSILON = (0.9, 0.999), 1e-8
_ADADELTA_DECAY, _ADADELTA_EPSILON = 0.9, 1e-5
_MAX_STEPS = 50  # of L-BFGS-B on a few parameters of held-out rows
ROUND = 20  # steps of L-BFGS-B in a round of learning
# Bounds of logarithms: of a likelihood's parameters and of prior variances, in whatever unit, and
# of the variance of Gaussian noise, where normalized y has a variance of one.
PARAMETER_BOUNDS = (math.log(1e-6), math.log(1e6))
NOISE_BOUNDS = (PARAMETER_BOUNDS[0], math.log(1e2))


def lbfgs(value_and_gradient, start, bounds, max_iter, min_gain=0.0):
    """Maximize a function from ``start`` within ``bounds`` by scipy's L-BFGS-B.

    ``value_and_gradient`` takes a Tensor (k,) to a float and a Tensor (k,), see `by_autograd`.
    ``start`` (k,) is in float64, on any device, and the bounds are (k, 2). The search ends after
    the first step that gains less than ``min_gain``. Returns the best point and its value.

    An evaluation is rejected where its value or gradient is not finite, or where it ends in a
    `NotPositiveDefiniteError`. scipy's line search interpolates the values it is given, so it sees
    the parabola through the best point so far whose minimum is a quarter of the way to the rejected
    point, and goes there next. The first evaluation cannot be rejected.
    """
    best = None

    def loss_and_gradient(x):
        nonlocal best
        try:
            value, gradient = value_and_gradient(torch.tensor(x, device=start.device))
            is_finite = math.isfinite(value) and gradient.isfinite().all()
        except NotPositiveDefiniteError:
            if best is None:
                raise
            is_finite = False
        if best is not None and not is_finite:
            # With t from 0 at the best point to 1 at this one, and s the slope in t at 0:
            # loss + s t - 2 s t^2, which is loss - s with slope -3 s at t = 1.
            move = x - best[2]
            slope = min(best[1] @ move, -_MIN_SLOPE * max(1.0, abs(best[0])))
            return best[0] - slope, -3 * slope * move / (move @ move)
        loss, gradient = -value, -gradient.cpu().numpy()
        if best is None or loss < best[0]:
            best = loss, gradient, x.copy()
        return loss, gradient

    losses = []

    def stop(intermediate_result):
        losses.append(intermediate_result.fun)
        if len(losses) > 1 and losses[-2] - losses[-1] < min_gain:
            raise StopIteration

    found = minimize(
        loss_and_gradient,
        start.detach().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds.tolist(),
        callback=stop,
        options={"maxiter": max_iter},
    )
    return torch.tensor(found.x, dtype=start.dtype, device=start.device), -found.fun


def adam_step(memory, gradient, rate):
    """Return the next step of Adam uphill, and its new memory.

    The memory is the number of steps so far, and the decaying sums of the gradients and of their
    squares; None before the first step.

    Source: Kingma and Ba (2015), Algorithm 1. The steps are those of `torch.optim.Adam` with
    ``maximize=True``, whose first use in a process imports torch's compiler, which takes a second.
    """
    zeros = torch.zeros_like(gradient)
    n_steps, mean, square = (0, zeros, zeros) if memory is None else memory
    n_steps += 1
    first, second = _ADAM_BETAS
    mean = mean.lerp(gradient, 1 - first)
    square = (square * second).addcmul_(gradient, gradient, value=1 - second)
    scale = (square.sqrt() / (1 - second**n_steps) ** 0.5).add_(_ADAM_EPSILON)
    step = (mean * (rate / (1 - first**n_steps))).div_(scale)
    return step, (n_steps, mean, square)


def adadelta_step(memory, gradient, rate):
    """Return the next step of Adadelta uphill, and its new memory; see `adam_step`.

    Source: Zeiler (2012), Algorithm 1.
    """
    zeros = torch.zeros_like(gradient)
    gradients, steps = (zeros, zeros) if memory is None else memory
    rho = _ADADELTA_DECAY
    gradients = (gradients * rho).addcmul_(gradient, gradient, value=1 - rho)
    ratio = (steps + _ADADELTA_EPSILON).sqrt_().div_((gradients + _ADADELTA_EPSILON).sqrt_())
    step = ratio.mul_(gradient)
    steps = (steps * rho).addcmul_(step, step, value=1 - rho)
    return rate * step, (gradients, steps)


STEPS = {"adam": adam_step, "adadelta": adadelta_step}


class FlatParameters:
    """Some tensors of a state as one vector, each in a unit of its own and within bounds.

    ``units`` and ``bounds`` are dicts by name. A unit is a number, or a tensor that broadcasts; 1
    where there is none. Bounds are tensors (k, 2); a tensor is free where there are none.
    """

    def __init__(self, names, units, bounds):
        self.names, self._bounds = names, bounds
        self._units = {name: units.get(name, 1.0) for name in names}

    def vector(self, state):
        """Return the tensors of a state as a vector (k,)."""
        return torch.cat([(state[name] / unit).ravel() for name, unit in self._units.items()])

    def parts(self, vector, state):
        """Return the tensors by name, in the shapes that they have in a state."""
        sizes = [state[name].numel() for name in self._units]
        parts = zip(self._units.items(), vector.split(sizes), strict=True)
        return {name: part.view_as(state[name]) * unit for (name, unit), part in parts}

    def gradient(self, gradients):
        """Return derivatives in the vector, given those in the tensors by name."""
        return torch.cat([(gradients[name] * unit).ravel() for name, unit in self._units.items()])

    def limits(self, state):
        """Return the bounds of the vector, (k, 2)."""

        def of(name, unit):
            tensor = state[name]
            bounds = self._bounds.get(name, _pair(-torch.inf, torch.inf, tensor))
            if isinstance(unit, torch.Tensor):
                unit = unit.to(tensor).expand_as(tensor).reshape(-1, 1)
            return bounds.expand(tensor.numel(), 2) / unit

        return torch.cat([of(*pair) for pair in self._units.items()])


def _pair(one, other, like):
    """Return two numbers as a tensor (1, 2) of the kind of another, without a wait for a device."""
    return torch.stack([like.new_full((1,), number) for number in (one, other)], 1)


@dataclass(frozen=True)
class Free:
    """Which tensors of a state are learned, with their bounds, units and prior."""

    names: Sequence[str] = ()  # such as theta, noise and Z
    theta_bounds: torch.Tensor | None = None  # (k, 2)
    scale: torch.Tensor | None = None  # (d,): unit of the inducing points in each feature
    noise_bounds: tuple = PARAMETER_BOUNDS  # two floats
    prior: Any = None  # of theta, such as a `SignalPrior`
    # (k,): unit of log theta relative to theta, infinite where it is 1; see `period_units`
    relative_units: torch.Tensor | None = None

    def flat(self, theta):
        """Return the `FlatParameters` of the learned tensors, given theta at the start, (k,)."""
        noise_bounds = _pair(*self.noise_bounds, self.theta_bounds)
        bounds = {"theta": self.theta_bounds, "noise": noise_bounds}
        units = {"Z": self.scale}
        if self.relative_units is not None:
            units["theta"] = (theta.exp() * self.relative_units).clamp_max(1.0)
        return FlatParameters(self.names, units, bounds)

    def log_prior(self, theta):
        """Return the log density of theta up to a constant; zero, on the CPU, without a prior."""
        if self.prior is None:
            return torch.zeros((), dtype=theta.dtype)
        return self.prior.log_density(theta)

    def with_prior(self, gradients, theta):
        """Return derivatives by name, those of theta with the prior's gradient."""
        if self.prior is None or "theta" not in gradients:
            return gradients
        return gradients | {"theta": gradients["theta"] + self.prior.gradient(theta)}

    def maximize(self, value_and_gradients, state, min_gain, n_steps=ROUND):
        """Take a round of L-BFGS-B from the parameters of a `SparseState`.

        ``value_and_gradients`` takes all parameters by name, and returns the value and its
        derivatives by name. The learned parameters and the ``objective`` of the state become those
        of the maximum. Returns whether the round ended before its last step.
        """
        start, flat, n_evaluations = state.parameters(), self.flat(state.theta), 0

        def value_and_gradient(point):
            nonlocal n_evaluations
            n_evaluations += 1
            value, gradients = value_and_gradients(start | flat.parts(point, start))
            return value, flat.gradient(gradients)

        first, limits = flat.vector(start), flat.limits(start)
        best, state.objective = lbfgs(value_and_gradient, first, limits, n_steps, min_gain)
        vars(state).update(flat.parts(best, start))
        # A round of all its steps has one evaluation more than steps, at least.
        return n_evaluations <= n_steps


def by_autograd(objective):
    """Make a function of a tensor that returns value and gradient of an objective."""

    @torch.enable_grad()
    def value_and_gradient(point):
        point.requires_grad_()
        value = objective(point)
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient

    return value_and_gradient


def maximize_density(log_density, weights, start, bounds, log_prior=None):
    """Return the parameters under which weighted rows are most likely, and the log density there.

    It sets the noise, and a correction of the predictions, by rows that were held out.
    ``log_density`` takes parameters (k,) to the log density of each row, (n,), and ``log_prior`` to
    a scalar tensor, which is added to the weighted sum over rows.
    """

    def objective(parameters):
        value = weights @ log_density(parameters)
        return value if log_prior is None else value + log_prior(parameters)

    return lbfgs(by_autograd(objective), start, bounds, _MAX_STEPS)
