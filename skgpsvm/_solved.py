"""Estimators whose posterior mean is solved for: learning, bases, solution, calibration."""

import math
from abc import abstractmethod
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ._collapsed import JITTER, NOISE_BOUNDS, CollapsedLearning
from ._estimators import history
from ._evidence import Evidence, SharedScaling
from ._fitting import Run
from ._hyperparameters.default_kernels import feature_scales
from ._inference.pcg import DecoupledInference, ExactInference
from ._latents import Latents
from ._optim import by_autograd, lbfgs
from ._posteriors import shrinkage
from ._rows import CHUNK_ROWS, Rows, shares, to_tensor
from ._torch_kernels import directions, theta_bounds, torch_kernel
from ._variational import STAGES, VariationalGP, VariationalRegressor
from .exceptions import NumericalWarning, warn

_LEARNING_ROWS, _LEARNING_PASSES = 10_000, 30
_MOST_LOST = 0.01  # of the bound, or in nats a row, to rounding
_EVIDENCE_ROWS, _EVIDENCE_ROUNDS = (2000, 4000, 5000), 5  # given, for judging, more
_MOST_FACTOR, _FEW_STEPS = math.log(20), partial(lbfgs, max_iter=8)
_LEARNING_TOL = 1e-3  # nats a row
_FEWEST_CALIBRATED = 500
_HELD_OUT = 0.1
_CALIBRATION_STEPS = 100
_MOST_CHANGE = math.log(100)  # of noise and power by calibration
_NOISE_PRIOR = 0.2  # standard deviation of the change of the noise's logarithm
_POWER_PRIOR = 1.0  # rate of the power's logarithm: few rows, or noisy ones, say little of it


class SolvedGP(VariationalGP):
    """A variational GP whose mean has many more bases than its covariance.

    A subclass says what the bases of the mean are (`_with_bases`).
    """

    inference = "natural_gradient"  # of what learns hyperparameters before the solve
    _means = (*VariationalGP._means, None)
    _solved_mean = "linear"  # where none is asked for

    def _mean_function(self):
        if self.mean is None:
            return self._solved_mean if self.solver == "cg" else "zero"
        return self.mean

    def _fit_latents(self, run, name, X, weights, rows, start, seed, alone):
        random_state, generator = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        scaler = feature_scales(X, weights)
        if start is None:
            start = self._first_latents(X, weights, rows, scaler, random_state)
        start = Latents(start.kernel, start.Z, start.noise, template=start.template)
        start = self._learned(run, start, rows, scaler, random_state, generator)
        return self._solved(run, start, rows, random_state)

    @abstractmethod
    def _with_bases(self, latents, rows, random_state):
        """The latents with bases of the mean, and which rows stand for all, a tensor (k,)."""

    def _learned(self, run, start, rows, scaler, random_state, generator):
        """The start with hyperparameters and inducing points of a sparse GP of fewer rows."""
        start, _ = self._learn_hyperparameters(run, "", start, rows, scaler, random_state)
        some = rows.subset(_LEARNING_ROWS, random_state)
        if self._free_parameters(start, some):
            inference = self._inference(start, some, scaler, generator)
            state = inference.initial(start.state(rows.device))
            passes, done = _LEARNING_PASSES, inference.converged
            run.stage("hyperparameters", state, inference.step, passes, finished=done)
            start = start.at(state)
        return start

    def _solved(self, run, start, rows, random_state):
        """Solve for the posterior by conjugate gradients; return latents, curve and ELBO."""
        start = replace(start, jitter=JITTER[rows.dtype])
        start, index = self._with_bases(start, rows, random_state)
        likelihood, basis, bases = self._parts(start, rows)
        held_out = self._calibration_mask(rows, random_state)
        all_rows = likelihood.conjugate and not bases.independent and len(index) == len(rows)
        inference_class = ExactInference if all_rows else DecoupledInference
        solve = inference_class(likelihood, basis, bases, rows, index, self.tol, held_out)
        parts = start.state(rows.device)
        state = solve.init(parts)

        def evaluated(state):
            c = likelihood.n_latents
            found = {
                "mean": torch.zeros(c, basis.size, dtype=torch.float64),
                "root": state.root,
                "coef": state.coef[:c],
                "gram": solve.index_precisions(state),
            }
            return self._calibrated(start.at(parts | found), solve, state)

        def attributes(state):
            latents, bound = evaluated(state)
            return self._attributes([latents], [bound])

        curve = run.run("posterior", solve, state, self.max_iter, attributes=attributes)
        solve.finish(state)
        latents, bound = evaluated(state)
        lost = abs(bound - curve[-1]) - _MOST_LOST * (rows.total_weight + abs(bound))
        if solve.conjugate and latents.diag is None and not lost < 0:
            warn(
                f"The ELBO of the solution is {bound:.6g}, but conjugate gradients arrived at "
                f"{curve[-1]:.6g}: products in {rows.dtype} lose too many digits for these data. "
                "Use dtype='float64', or a larger noise_variance with optimizer=None.",
                NumericalWarning,
            )
        return latents, curve, bound

    def _pass_over(self, X, y, sample_weight, classes, previous, descend):
        """Learn from more rows by a pass of stochastic steps.

        ``descend`` takes the run, X, weights, rows and a generator, and gives latents, curve and
        bound.
        """
        self._check_streamed()
        self._check_all_parameters("partial_fit" if previous else None)
        shown = X
        X, targets, weights, _ = self._check_training_data(
            X, y, sample_weight, classes=classes, reset=previous is None
        )
        run = Run(self, shown, y, X, targets, weights, previous)
        rows = Rows(X, targets, weights, *self._agreed_options(X))
        generator = torch.Generator().manual_seed(run.checkpointed("seed", self._draw_seed))
        latents, curve, bound = descend(run, X, weights, rows, generator)
        run.end(self._attributes([latents], [bound]) | history(curve))
        return self

    def _parts(self, latents, rows):
        """Likelihood, features of the covariance and bases of the mean."""
        likelihood = self._make_likelihood().at(latents.state(rows.device)["noise"])
        return likelihood, latents.basis(rows.device), latents.mean_bases(rows.device)

    def _calibration_mask(self, rows, random_state):
        """As of `DecoupledInference`: None where nothing is calibrated."""
        return None

    def _calibrated(self, latents, solve, state):
        """The latents, calibrated where that is wanted, and the bound."""
        return latents, solve.bound(state)


class SolvedRegressor(SolvedGP, VariationalRegressor):
    """Hyperparameters by the exact evidence of some rows, variances calibrated on others."""

    _solved_mean = "constant"

    def _is_collapsed(self, start, rows):
        return self.likelihood == "gaussian"

    def _refine_hyperparameters(self, climb, state, rows, fresh):
        for n_rows, rounds in STAGES[1:]:
            if rows.n_rows > _EVIDENCE_ROWS[0]:
                climb(state, n_rows, rounds)
        return []

    def _learned(self, run, start, rows, scaler, random_state, generator):
        """Hyperparameters of the collapsed bound or of the exact evidence of fewer rows.

        Those under which other rows are more likely; these set the noise. Likewise with or without
        the common factors of more rows: sparse processes learn length scales too long for data
        that their inducing points do not resolve.
        """
        start = super()._learned(run, start, rows, scaler, random_state, generator)
        if self.likelihood != "gaussian" or self.optimizer is None:
            return start
        rows = rows.with_normalized_weights()
        units = rows.units()
        order = random_state.permutation(len(units))
        given, others, more = np.split(order[: _EVIDENCE_ROWS[-1]], _EVIDENCE_ROWS[:-1])
        evidence = Evidence(torch_kernel(start.kernel), rows.of_units(units, given))
        bounds = theta_bounds(start.kernel, rows.device)
        scale = torch.tensor(scaler.scale_, device=rows.device)
        free = {"theta": start.kernel.n_dims > 0, "noise": self._noise_is_free()}
        parts, limits = [part for part in free if free[part]], self._noise_limits(NOISE_BOUNDS)
        if not parts:
            return start
        wanted = self._with_prior(evidence, start, rows, scaler)
        options = {"noise_bounds": limits}
        learning = CollapsedLearning(wanted, parts, bounds, scale, _LEARNING_TOL, **options)
        before = start.state(rows.device)
        state = learning.start(dict(before))
        rounds, done = _EVIDENCE_ROUNDS, learning.finished
        run.stage("evidence", state, learning.step, rounds, finished=done)
        if not len(others):
            return start.at(state)
        validation_rows = rows.of_units(units, others)
        found = _select_by_predictive_density(evidence, before, state, validation_rows, limits[1])
        if not len(more) or not start.kernel.n_dims:
            return start.at(found)
        given = np.concatenate([given, more])
        evidence = Evidence(evidence.kernel, rows.of_units(units, given))
        moved = directions(start.kernel).to(rows.device)
        factors = SharedScaling(evidence, found["theta"], moved, bounds)
        within = bounds.new_tensor([[-_MOST_FACTOR, _MOST_FACTOR]]).expand(len(moved), 2)
        options |= {"maximize": _FEW_STEPS}
        learning = CollapsedLearning(factors, parts, within, scale, _LEARNING_TOL, **options)
        state = learning.start({**found, "theta": moved.new_zeros(len(moved))})
        run.stage("evidence of more rows", state, learning.step, 1)
        state = {**state, "theta": factors.theta(state["theta"])}
        return start.at(
            _select_by_predictive_density(evidence, found, state, validation_rows, limits[1])
        )

    # Calibration

    def _is_calibrated(self, rows):
        gaussian = self.likelihood == "gaussian"
        return gaussian and self.optimizer is not None and len(rows) >= _FEWEST_CALIBRATED

    def _held_out(self, rows, random_state, most=np.inf):
        """Units of weight, and the index of those, at most ``most``, for calibration alone."""
        units = rows.units()
        size = int(min(_HELD_OUT * len(units), most))
        return units, random_state.choice(len(units), size, replace=False)

    def _calibration_mask(self, rows, random_state):
        if not self._is_calibrated(rows):
            return None
        share = shares(*self._held_out(rows, random_state))
        return to_tensor(np.column_stack([np.ones(len(rows)), 1 - share]), rows.device)

    def _calibrated(self, latents, solve, state):
        """Noise and power of the variances under which the rows held out are most likely."""
        if not self._is_calibrated(solve.rows):
            return super()._calibrated(latents, solve, state)
        bound, means, variances = solve.evaluate(state)
        t = variances.shape[1]
        share = 1 - solve.row_shares[:, -1]
        out, rows = share.nonzero()[:, 0], solve.rows
        chunks = (rows.take(at)[0].double() for at in out.split(CHUNK_ROWS))
        prior = torch.cat([solve.basis.projected_variance(X) for X in chunks])[:, None]
        moments = means[out, t:], variances[out], prior
        y, weights = rows.targets[out].double(), rows.weights[out].double() * share[out]
        known = latents, latents.state(rows.device)["noise"], y, weights
        return self._most_likely(*known, *moments, spread=_NOISE_PRIOR), bound

    def _most_likely(self, latents, noise, y, weights, means, variances, prior, *, spread=math.inf):
        """The latents with noise and power under which rows held out are most likely.

        The change of the noise's logarithm has a Gaussian prior with a standard deviation, the
        spread: infinite where the means are not solved for, whose errors look like noise.
        """
        k, squares = len(noise), (y - means).square()

        def density(logs):
            total = logs[:k].exp() + shrinkage(variances, prior, logs[k].exp()) * variances
            misfit = (weights @ (total.log() + squares / total)).sum()
            changes = ((logs[:k] - noise) / spread).square().sum()
            return -0.5 * (misfit + changes) - _POWER_PRIOR * logs[k]

        start = torch.cat([noise, noise.new_zeros(1)])
        limits = torch.stack([start - _MOST_CHANGE, start + _MOST_CHANGE], 1)
        limits[:k] = limits[:k].clamp(*self._noise_limits((-math.inf, math.inf)))
        limits[k, 0] = 0.0  # of the power's logarithm
        found, _ = lbfgs(by_autograd(density), start, limits, _CALIBRATION_STEPS)
        return replace(latents, power=found[k].exp().item(), noise=tuple(found[:k].tolist()))

    def _attributes(self, latents, bounds, streamed=False):
        found = super()._attributes(latents, bounds, streamed)
        return {**found, "variance_power_": latents[0].power}


def _select_by_predictive_density(evidence, before, after, rows, most):
    """The one of two states under which other rows are likelier, with the noise that they set.

    ``most`` is an upper bound of the noise's logarithm.
    """
    found = []
    for state in (before, after):
        given = state["theta"], state["noise"], rows, after["noise"], most
        noise, density = evidence.predicted(*given)
        found.append((density, {**state, "noise": noise}))
    return found[0][1] if found[0][0] > found[1][0] else found[1][1]
