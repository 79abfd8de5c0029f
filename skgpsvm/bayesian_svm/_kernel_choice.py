"""Hyperparameters of Bayesian SVMs by leave-one-out predictions, or by gradients of the ELBO."""

import math
from dataclasses import dataclass, field

import torch

from .._calibration import Calibration
from .._fitting import Stage, State
from .._inference.coordinate_ascent import CoordinateAscent
from .._inference.natural_gradient import AdamSteps, CoordinateInference
from .._posteriors import WhitenedBasis
from .._torch_kernels import directions, theta_bounds, torch_kernel
from ..inducing import select_inducing_points

_FEW = (1500, 128)  # rows and inducing points
_MORE = (6000, 256)
_SCORED_ROWS = 1500
# Leave-one-out predictions need the optimum, above all where the prior is wide compared to the
# spacing of rows: an error of a row's slope is multiplied by the prior's variance and has the row's
# own sign. On 60 rows of 5 features of noise, a quarter of these sweeps with ten times the
# tolerance gave a log loss of .28, where exact leave-one-out has 1.17.
_MAX_SWEEPS = 10
_SOLVE_TOL = 0.001
_FINEST = 0.5  # smallest step of log theta
_COARSEST = 2  # first step, in units of the smallest
_MIN_GAIN = 1e-4  # relative
_SHIFT_PRECISION = 4.0
_ROUNDS = 12
_MORE_ROUNDS = 2
_ELBO_ITERATIONS = 42
_RATE = 0.05
_ELBO_POINTS = 64
_MIN_ROWS = 30  # from which on separate entries can be compared
_VALIDATION_SHARE = 3  # one row of so many


@dataclass(kw_only=True)
class CompassState(State):
    """State of `CompassSearch`.

    Attributes
    ----------
    start : Tensor of shape (k,)
        Theta at the origin of the places.
    place : list of int
        Best place so far: steps from the start in each direction, in units of the smallest step.
    reach : int
        Present step, in the same unit; 0 once the search has ended.
    tried : list of list of int
        Places that have been polled.
    theta : Tensor of shape (k,)
        Hyperparameters at the best place.
    loss : float
        Penalized leave-one-out log loss there, nats.
    precision, linear : Tensor of shape (n, c)
        Sites of the posterior there.
    """

    start: torch.Tensor
    place: list
    theta: torch.Tensor
    loss: float
    precision: torch.Tensor
    linear: torch.Tensor
    reach: int = _COARSEST
    tried: list = field(default_factory=list)


class LeaveOneOutChoice:
    r"""Choice of hyperparameters by the calibrated leave-one-out log loss.

    Each hyperparameter is one direction: the entries of one with several, such as the length scales
    of an ARD kernel, move together.

    Parameters
    ----------
    kernel : sklearn Kernel
    hinge : BinarySites or ContrastSites
    rows : WeightedDataset
        Few enough to fit many times.
    Z : Tensor of shape (m, d)
    """

    def __init__(self, kernel, hinge, rows, Z):
        self.kernel, self.hinge, self.rows, self.Z = torch_kernel(kernel), hinge, rows, Z
        self.start = torch.tensor(kernel.theta, device=Z.device)
        self.bounds = theta_bounds(kernel, Z.device)
        self.directions = directions(kernel).to(Z.device)

    def solve(self, theta, start=None):
        """Fit at ``theta`` and return its leave-one-out log loss.

        Parameters
        ----------
        theta : Tensor of shape (k,)
        start : tuple (precision, linear), optional
            Sites at other hyperparameters, from which the fit takes fewer sweeps.

        Returns
        -------
        loss : float
            Nats, summed over the rows.
        sites : tuple (precision, linear)
            Of the fit.
        """
        ascent, state = self._fit(theta, start)
        left_out = ascent.leave_one_out(state, self.rows.spaced(_SCORED_ROWS))
        return Calibration().updated(*left_out).loss, ascent.sites(state)

    def log_losses(self, theta, index):
        """Return weighted leave-one-out log losses of some rows, calibrated on them, nats."""
        ascent, state = self._fit(theta)
        mean, var, targets, weights = ascent.leave_one_out(state, index)
        calibration = Calibration().updated(mean, var, targets, weights)
        return weights * calibration.log_losses(mean, var, targets)

    def _fit(self, theta, start=None):
        """Return the coordinate ascent at ``theta`` and its last state."""
        basis = self._basis(theta)
        if len(self.rows) < basis.size:
            basis = SpanBasis(basis, self.rows.X)
        ascent = CoordinateAscent(self.hinge, basis, self.rows)
        state = ascent.init_at(*start) if start else ascent.init()
        for _ in range(_MAX_SWEEPS):
            ascent.ascend(state)
            if state.change < _SOLVE_TOL:
                break
        return ascent, state

    def _basis(self, theta):
        return WhitenedBasis(self.kernel, theta, self.Z)

    def compass_search(self, run, name, theta, *, rounds=_ROUNDS, finest=1):
        """Return the best theta of a `CompassSearch` from ``theta``."""
        search = CompassSearch(self, finest)
        state = search.init(theta)
        run.run(name, search, state, rounds, must_converge=False)
        return state.theta

    def maximize_elbo(self, run, name, theta, scale, seed):
        """Return theta after steps of Adam on it and on the inducing points, between sweeps."""
        trained = "theta", "Z"
        adam = AdamSteps(self.hinge, self.kernel, self.rows, trained, _RATE, self.bounds, scale)
        ascent = CoordinateAscent(self.hinge, self._basis(theta), self.rows)
        generator = torch.Generator().manual_seed(seed)
        inference = CoordinateInference(ascent, adam, math.inf, 0.0, None, generator)
        noise = self.hinge.parameters().to(self.Z.device)
        state = inference.init({"theta": theta, "Z": self.Z, "noise": noise})
        run.run(name, inference, state, _ELBO_ITERATIONS, must_converge=False)
        return state.theta


class SpanBasis:
    """Features of fewer rows than features, in an orthonormal basis of the span of the rows.

    At these rows the prior of the latents is the same. Weights orthogonal to the span keep theirs.

    Parameters
    ----------
    basis : WhitenedBasis
    X : Tensor of shape (n, d)
        The rows.
    """

    def __init__(self, basis, X):
        self.theta, self.Z, self.size = basis.theta, basis.Z, len(X)
        self._basis = basis
        self._span = torch.linalg.qr(basis(X)[0].T).Q

    def __call__(self, X):
        """Return features (b, n) and residual variances (b,) of some of the rows."""
        A, residual = self._basis(X)
        return A @ self._span, residual


class CompassSearch(Stage):
    """Compass search over hyperparameters for the lowest leave-one-out log loss.

    Steps of log theta are 1 at first and 1/2 at last, by default. A log-normal prior of standard
    deviation 1/2 draws each hyperparameter to its start. The search ends when no neighbor of the
    best place is better at the smallest step.

    Parameters
    ----------
    choice : LeaveOneOutChoice
    finest : int
        Smallest step, in units of 1/2.
    """

    def __init__(self, choice, finest):
        self._choice, self._finest = choice, finest

    def init(self, theta):
        """Return the state at ``theta``."""
        loss, (precision, linear) = self._choice.solve(theta)
        place = [0] * len(self._choice.directions)
        return CompassState(
            start=theta,
            place=place,
            theta=theta,
            loss=loss,
            precision=precision,
            linear=linear,
            tried=[place],
        )

    def step(self, state):
        """Poll the neighbors of the best place in all directions.

        The objective is minus the penalized loss at the best place.
        """
        moved = False
        for i in range(len(self._choice.directions)):
            for sign in (1, -1):
                place = list(state.place)
                place[i] += sign * state.reach
                if place in state.tried:
                    continue
                state.tried.append(place)
                theta, loss, sites = self._evaluate(state, place)
                if loss < (1 - _MIN_GAIN) * state.loss:
                    state.place, state.theta, state.loss = place, theta, loss
                    state.precision, state.linear = sites
                    moved = True
        if not moved:
            state.reach //= 2
        state.objective = -state.loss

    def converged(self, state):
        """Return whether no neighbor at the smallest step was better."""
        return state.reach < self._finest

    def _evaluate(self, state, place):
        """Fit at a place, from the posterior of the best one.

        Returns
        -------
        theta : Tensor of shape (k,)
        loss : float
            Penalized, nats.
        sites : tuple (precision, linear)
        """
        device = state.start.device
        shift = torch.tensor(place, dtype=torch.float64, device=device) * _FINEST
        theta = (state.start + shift @ self._choice.directions).clamp(*self._choice.bounds.T)
        loss, sites = self._choice.solve(theta, (state.precision, state.linear))
        loss += 0.5 * _SHIFT_PRECISION * shift.square().sum().item()
        return theta, loss, sites


def chosen_theta(run, name, kernel, hinge, rows, Z, scale, random_state):
    """Return hyperparameters of a kernel, with ARD length scales tied or free.

    A compass search first moves tied entries (`LeaveOneOutChoice`). All entries then ascend the
    ELBO on two thirds of at most 6000 rows, alternating with the posterior and with the inducing
    points (type-II maximum likelihood, without a prior). A second search moves them together. The
    free entries are kept only if the gain on the remaining third is significant.

    Parameters
    ----------
    run : Run
    name : str
        Prefix of the names of the stages.
    kernel : sklearn Kernel
    hinge : BinarySites or ContrastSites
    rows : WeightedDataset
    Z : ndarray of shape (m, d)
    scale : Tensor of shape (d,)
        Unit of the steps of the inducing points in each feature.
    random_state : RandomState

    Returns
    -------
    theta : Tensor of shape (k,)
    """

    def choice(n_rows, n_points):
        points = _some_points(Z, n_points, random_state)
        some = rows.subset(n_rows, random_state)
        return LeaveOneOutChoice(kernel, hinge, some, torch.tensor(points, device=rows.device))

    few, more = choice(*_FEW), choice(*_MORE)
    theta = few.compass_search(run, f"{name}kernel", few.start)
    n = len(more.rows)
    if few.directions.sum(1).max() > 1 and n >= _MIN_ROWS:
        order = random_state.permutation(n)
        n_validation = n // _VALIDATION_SHARE
        validation, train = torch.tensor(order[:n_validation]), order[n_validation:]
        points = torch.tensor(_some_points(Z, _ELBO_POINTS, random_state), device=rows.device)
        training = LeaveOneOutChoice(kernel, hinge, more.rows.part(train), points)
        seed = int(random_state.randint(2**31))
        free = training.maximize_elbo(run, f"{name}length scales", theta, scale, seed)
        free = few.compass_search(run, f"{name}kernel of these", free)
        gain = more.log_losses(theta, validation) - more.log_losses(free, validation)
        if is_significant_gain(gain):
            theta = free
    if rows.n_rows > _FEW[0]:
        theta = more.compass_search(
            run, f"{name}kernel, more rows", theta, rounds=_MORE_ROUNDS, finest=_COARSEST
        )
    return theta


def is_significant_gain(gain):
    """Return whether the sum of gains of rows exceeds its standard error."""
    return bool(gain.sum() > gain.std() * math.sqrt(len(gain)))


def _some_points(Z, n_points, random_state):
    if len(Z) <= n_points:
        return Z
    return select_inducing_points(Z, n_points, random_state=random_state)
