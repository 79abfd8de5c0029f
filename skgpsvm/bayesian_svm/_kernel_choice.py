"""Hyperparameters of Bayesian SVMs by leave-one-out predictions, or by gradients of the ELBO."""

import math
from dataclasses import dataclass

import torch

from .._calibration import Calibration, is_significant_gain
from .._fitting import Stage, State
from .._hinge_sites import ContrastSites
from .._hyperparameters.short_lengths import explains_most, has_several_lengths, shortened
from .._inference.coordinate_ascent import CoordinateAscent
from .._inference.leave_one_out import leave_one_out
from .._inference.natural_gradient import AdamSteps, CoordinateInference
from .._optim import Free
from .._posteriors import WhitenedBasis
from .._torch_kernels import directions, theta_bounds, torch_kernel
from ..exceptions import NotPositiveDefiniteError

_SEARCH_SIZE = (1500, 128)  # rows and inducing points
_REFINEMENT_SIZE = (6000, 256)
_SCORED_ROWS = 1500
_MAX_CLASSES = 12, 8  # up to the rows of _SEARCH_SIZE, and with more
# Leave-one-out predictions need the optimum, above all where the prior is wide compared to the
# spacing of rows: an error of a row's slope is multiplied by the prior's variance and has the row's
# own sign. On 60 rows of 5 features of noise, a quarter of these sweeps with ten times the
# tolerance gave a log loss of .28, where exact leave-one-out has 1.17.
_MAX_SWEEPS = 10
_SOLVE_TOL = 0.01
_DROPPED_VARIANCE = 0.01  # per row
_DROPPED_SHARE = 0.001  # of the prior variance
_REACH = 1.0  # distance of polled log hyperparameters from the best ones
_SHIFT_PRECISION = 4.0
_ROUNDS = 6
_REFINEMENT_ROUNDS = 1
_SEARCH_STEPS = (5, 5, 0.15)  # iterations on the ELBO, steps of Adam in each, and learning rate
_REFINEMENT_STEPS = (12, 10, 0.08)  # with more rows, which tell more ratios apart
_ELBO_POINTS = 64
_CLEAR = 3.0  # standard errors
# From so many rows on, alternatives of the kernel and separate length scales can be compared. With
# 30 to 50 rows, a third of which compares them, separate ones raise the log loss by .02 to .07.
_MIN_ROWS_OF_ALTERNATIVES, _MIN_ROWS_OF_RATIOS = 20, 60
_MAX_SHORTENED = 3  # times that length scales of one feature or two are shortened
_VALIDATION_SHARE = 3  # one row of so many


@dataclass(kw_only=True)
class SearchState(State):
    """State of `ParabolicSearch`."""

    start: torch.Tensor  # (k,): theta at the origin of the places
    place: list  # of float: best place so far: the shift from the start in each direction
    theta: torch.Tensor  # (k,): hyperparameters there
    loss: float  # penalized leave-one-out log loss there, nats
    # precision, linear (n, c): sites of the posterior there
    precision: torch.Tensor
    linear: torch.Tensor
    polled: list  # of (list of float, float): places that have been tried, and their losses
    ended: bool = False  # whether the last round moved the best place by less than a step


class LeaveOneOutChoice:
    """Choice of hyperparameters by the calibrated leave-one-out log loss.

    Each hyperparameter is one direction: the entries of one with several, such as the length scales
    of an ARD kernel, move together. The rows must be few enough to fit many times.
    """

    def __init__(self, kernel, hinge, rows, Z):
        self.initial_kernel, self.kernel = kernel, torch_kernel(kernel)
        self.hinge, self.rows, self.Z = hinge, rows, Z
        self.start = torch.tensor(kernel.theta, device=Z.device)
        self.bounds = theta_bounds(kernel, Z.device)
        self.directions = directions(kernel).to(Z.device)
        labels = rows.collect(rows.targets, rows.weights)
        self.calibration = Calibration.prior(hinge.n_latents, *labels)

    def solve(self, theta, start=None):
        """Fit at ``theta``; return its leave-one-out log loss, summed over rows, and its sites.

        The sites of a ``start``, at other hyperparameters, save sweeps.
        """
        ascent, state = self._fit(theta, start)
        left_out = leave_one_out(ascent, state, self.rows.spaced(_SCORED_ROWS))
        return self.calibration.updated(*left_out).loss, ascent.sites(state)

    def sites(self, theta):
        """Return the sites of a fit at ``theta``."""
        ascent, state = self._fit(theta)
        return ascent.sites(state)

    def log_losses(self, theta, index, start=None):
        """Return weighted leave-one-out log losses of some rows, calibrated on them, nats."""
        ascent, state = self._fit(theta, start)
        mean, var, targets, weights = leave_one_out(ascent, state, index)
        calibration = self.calibration.updated(mean, var, targets, weights)
        return weights * calibration.log_losses(mean, var, targets)

    def _fit(self, theta, start=None):
        """Return the coordinate ascent at ``theta`` and its last state."""
        basis = PrincipalBasis(self._basis(theta), self.rows)
        ascent = CoordinateAscent(self.hinge, basis, self.rows)
        state = ascent.init_at(*start) if start else ascent.init()
        for _ in range(_MAX_SWEEPS):
            ascent.ascend(state)
            if state.change < _SOLVE_TOL:
                break
        return ascent, state

    def _basis(self, theta):
        return WhitenedBasis(self.kernel, theta, self.Z)

    def search(self, problem, name, state, rounds=_ROUNDS):
        """Return a state of `ParabolicSearch` after a search from there."""
        problem.run_stage(name, ParabolicSearch(self), state, rounds, must_converge=False)
        return state

    def maximize_elbo(self, problem, theta, seed, steps):
        """Return theta after steps of Adam on it and on the inducing points, between sweeps."""
        iterations, n_steps, rate = steps
        free = Free(("theta", "Z"), self.bounds, problem.scale)
        adam = AdamSteps(self.hinge, (self.kernel,), self.rows, free, rate)
        ascent = CoordinateAscent(self.hinge, self._basis(theta), self.rows)
        generator = torch.Generator().manual_seed(seed)
        inference = Alternation(ascent, adam, math.inf, 0.0, None, generator)
        inference.n_steps = n_steps
        noise = self.hinge.parameters().to(self.Z.device)
        state = inference.init({"theta": theta, "Z": self.Z, "noise": noise})
        problem.run_stage("length scales", inference, state, iterations, must_converge=False)
        return state.theta


class Alternation(CoordinateInference):
    """Coordinate ascent with Adam steps before every sweep but the first."""

    def _due(self, state):
        return state.n_sweeps > 0


class PrincipalBasis:
    """Features in the principal directions of the prior covariance of some rows.

    The last directions are dropped, as long as they hold at most a thousandth of the prior variance
    and a hundredth of the squared margin of each row, which is 1. Where the prior variance is
    large, a thousandth of it holds functions that exceed the margin. The dropped variance is added
    to the residual variance of each row.
    """

    def __init__(self, basis, rows):
        self.theta, self.Z, self._basis = basis.theta, basis.Z, basis
        parts = map(rows.take, rows.chunks())
        A = torch.cat(
            [w.double().sqrt()[:, None] * basis.features(X).double() for X, _, w in parts]
        )
        is_tall = len(A) >= basis.size
        values, vectors = torch.linalg.eigh(A.T @ A if is_tall else A @ A.T)
        largest = min(_DROPPED_VARIANCE * rows.total_weight, _DROPPED_SHARE * values.sum().item())
        kept = values.cumsum(0) > largest
        vectors = vectors[:, kept]
        self._directions = vectors if is_tall else A.T @ (vectors / values[kept].sqrt())
        self.size = vectors.shape[1]

    def __call__(self, X):
        """Return features (b, size) and residual variances (b,) of rows."""
        A, residual = self._basis(X)
        features = A @ self._directions.to(A.dtype)
        dropped = A.square().sum(1) - features.square().sum(1)
        return features, residual + dropped.clamp_min(0)


class ParabolicSearch(Stage):
    """Search over hyperparameters for the lowest leave-one-out log loss.

    A round polls both neighbors of the best place in each direction, at steps of 1 in log theta. A
    parabola through the three losses has its minimum at the next place, in all directions together,
    but not beyond the neighbors.
    The search ends when the best place is less than a step away in each direction. A log-normal
    prior of standard deviation 1/2 draws each hyperparameter to its start.
    """

    def __init__(self, choice):
        self._choice = choice

    def init(self, theta):
        loss, (precision, linear) = self._choice.solve(theta)
        place = [0.0] * len(self._choice.directions)
        return SearchState(
            start=theta,
            place=place,
            theta=theta,
            loss=loss,
            precision=precision,
            linear=linear,
            polled=[(place, loss)],
        )

    def step(self, state):
        """Poll the neighbors of the best place, and the minimum of the parabolas through them.

        The objective is minus the penalized loss at the best place.
        """
        center, center_loss = state.place, state.loss
        minimum = list(center)
        for i in range(len(center)):
            lower, upper = (
                self._loss(state, [*center[:i], center[i] + step, *center[i + 1 :]])
                for step in (-_REACH, _REACH)
            )
            if max(lower, upper) == math.inf:
                continue
            slope, curvature = (upper - lower) / 2, upper - 2 * center_loss + lower
            if curvature > 0:
                move = max(-1.0, min(1.0, -slope / curvature))
            else:
                move = -math.copysign(1, slope)
            minimum[i] += move * _REACH
        self._loss(state, minimum)
        moves = (abs(new - old) for new, old in zip(state.place, center, strict=True))
        state.ended = max(moves) < _REACH
        state.objective = -state.loss

    def converged(self, state):
        return state.ended

    def _loss(self, state, place):
        """Return the penalized loss at a place, which becomes the best one if it is lower.

        The fit starts from the posterior of the best place so far. A place whose kernel matrix is
        not positive definite is as bad as can be.
        """
        for known, loss in state.polled:
            if known == place:
                return loss
        shift = torch.tensor(place, dtype=torch.float64, device=state.start.device)
        theta = (state.start + shift @ self._choice.directions).clamp(*self._choice.bounds.T)
        try:
            loss, sites = self._choice.solve(theta, (state.precision, state.linear))
        except NotPositiveDefiniteError:
            state.polled.append((place, math.inf))
            return math.inf
        loss += 0.5 * _SHIFT_PRECISION * shift.square().sum().item()
        state.polled.append((place, loss))
        if loss < state.loss:
            state.place, state.theta, state.loss = place, theta, loss
            state.precision, state.linear = sites
        return loss


def with_better_start(choice, kernel):
    """Return a choice, or one among the hyperparameters of another kernel whose start is better.

    The leave-one-out log loss there has to be clearly lower. ``kernel`` may be None.
    """
    if kernel is None or choice.rows.n_rows < _MIN_ROWS_OF_ALTERNATIVES:
        return choice
    index = choice.rows.spaced(_SCORED_ROWS)
    other = LeaveOneOutChoice(kernel, choice.hinge, choice.rows, choice.Z)
    losses, lower = (start.log_losses(start.start, index) for start in (choice, other))
    return other if is_significant_gain(losses - lower, _CLEAR) else choice


def chosen_kernel(sparse, model, other=None):
    """Return a kernel with chosen hyperparameters, with ARD length scales tied or free.

    Another kernel takes the place of the model's if its start is clearly better. A search
    first moves tied entries (`LeaveOneOutChoice`). All entries then ascend the ELBO on two
    thirds of at most 6000 rows, alternating with the posterior and with the inducing points
    (type-II maximum likelihood, without a prior). Only their ratios are used (`with_ratios_of`), as
    the objective is no evidence. Those of one feature or two are then shortened, as long as that
    clearly lowers the loss of the remaining third. If that loss is lower, a second search moves
    them together. They are kept if the gain there is then significant.

    The kernel of a warm start is where a search has ended, so that the first one comes last, and
    only if the ratios stay.

    Of many classes, only the rows of the largest are used.
    """
    problem, hinge, Z = sparse.problem, sparse.likelihood, model.Z
    rows = sparse.rows.with_even_weights()
    hinge, rows = of_largest_classes(hinge, rows, _MAX_CLASSES[rows.n_rows > _SEARCH_SIZE[0]])

    def choice(kernel, n_rows, n_points):
        points = sparse.fewer_points(Z, n_points)
        some = rows.subset(n_rows, problem.random_state)
        return LeaveOneOutChoice(kernel, hinge, some, torch.tensor(points, device=rows.device))

    few = with_better_start(choice(model.kernel, *_SEARCH_SIZE), other)
    more = choice(few.initial_kernel, *_REFINEMENT_SIZE) if rows.n_rows > _SEARCH_SIZE[0] else few
    best = ParabolicSearch(few).init(few.start)
    if problem.start is None:
        best = few.search(problem, "kernel", best)
    theta = theta_of_ratios(sparse, few, more, best, Z)
    if theta is None:
        theta = (best if problem.start is None else few.search(problem, "kernel", best)).theta
    if more is not few:
        state = ParabolicSearch(more).init(theta)
        theta = more.search(problem, "kernel, more rows", state, rounds=_REFINEMENT_ROUNDS).theta
    return few.initial_kernel.clone_with_theta(theta.cpu().numpy())


def theta_of_ratios(sparse, few, more, best, Z):
    """Return theta with learned ratios of length scales; None if they are not clearly better.

    ``few`` and ``more`` are the choices on few rows and on more, and ``best`` is the state of the
    search on the former, with tied length scales. Z are the inducing points of the model.
    """
    problem, n, device = sparse.problem, len(more.rows), sparse.rows.device
    if few.directions.sum(1).max() == 1 or n < _MIN_ROWS_OF_RATIOS:
        return None
    order = problem.random_state.permutation(n)
    n_validation = n // _VALIDATION_SHARE
    validation, train = torch.tensor(order[:n_validation]), order[n_validation:]
    points = torch.tensor(sparse.fewer_points(Z, _ELBO_POINTS), device=device)
    training = LeaveOneOutChoice(few.initial_kernel, few.hinge, more.rows.part(train), points)
    seed = int(problem.random_state.randint(2**31))
    steps = _SEARCH_STEPS if more is few else _REFINEMENT_STEPS

    def log_losses(theta, state):
        sites = (state.precision, state.linear) if more is few else None
        return more.log_losses(theta, validation, sites)

    tied = log_losses(best.theta, best)

    def gains_of(theta, state=best):
        return tied - log_losses(theta, state)

    free = training.maximize_elbo(problem, best.theta, seed, steps)
    free = with_ratios_of(free, best.theta, few.directions).clamp(*few.bounds.T)
    gain = gains_of(free)
    if gain.sum() <= 0:
        free, gain = best.theta, torch.zeros_like(gain)
    if not explains_most(-best.loss, few.rows):
        free, gain = with_lengths_that_gain(training, free, gain, gains_of, problem.scale)
    if gain.sum() <= 0:
        return None
    state = few.search(problem, "kernel of these", ParabolicSearch(few).init(free))
    return state.theta if is_significant_gain(gains_of(state.theta, state)) else None


def with_lengths_that_gain(training, theta, gain, gains_of, scale):
    """Return theta with the length scales of one feature or two shortened, and its gains of rows.

    It is returned as it is, unless the gains are significantly higher. ``training`` is the choice
    on the training rows, ``gain`` (n,) are the gains at theta of the n other rows, and ``gains_of``
    takes a theta.
    """
    if not has_several_lengths(training.initial_kernel, training.rows):
        return theta, gain
    for _ in range(_MAX_SHORTENED):
        sites = training.sites(theta)
        short = shortened(training.initial_kernel, theta, training.rows, sites, scale)
        if short is None:
            break
        try:
            found = gains_of(short)
        except NotPositiveDefiniteError:
            break
        if not is_significant_gain(found - gain):
            break
        theta, gain = short, found
    return theta, gain


def of_largest_classes(hinge, rows, n_classes):
    """Return the hinge of the classes of largest total weight, and their rows with new codes."""
    if hinge.n_latents <= n_classes:
        return hinge, rows
    targets, weights = rows.collect(rows.targets, rows.weights)
    sizes = torch.bincount(targets, weights, hinge.n_latents)
    kept = sizes.argsort(descending=True, stable=True)[:n_classes]
    some = rows.part(torch.isin(targets, kept).nonzero()[:, 0].cpu().numpy())
    codes = torch.zeros_like(sizes, dtype=torch.int64)
    codes[kept] = torch.arange(n_classes, device=codes.device)
    some.targets = codes[some.targets]
    return ContrastSites(n_classes, "soft" if hinge.smooth else "hard"), some


def with_ratios_of(free, theta, directions):
    """Return theta with the ratios that the entries of each hyperparameter have in ``free``.

    The mean inverse square of the ratios is one. For length scales that are multiples of the
    standard deviations, the mean squared distance of rows, in units of the length scales, stays.
    Entries may exceed their bounds.
    """
    shift = free - theta
    n_entries = directions.sum(1)
    mean = (directions * (-2 * shift).exp()).sum(1) / n_entries
    return theta + shift + 0.5 * mean.log() @ directions
