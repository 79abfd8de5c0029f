"""Estimators whose posterior mean solves a linear system: learning, solution, calibration."""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ._collapsed import JITTER, NOISE_BOUNDS, CollapsedLearning, Hyperparameters
from ._data import CHUNK_ROWS, WeightedDataset, shares, to_tensor
from ._estimators import history
from ._evidence import Evidence, SharedScaling
from ._fitted_models import DecoupledModel, SparseModel
from ._fitting import Run
from ._hyperparameters.default_kernels import feature_scales
from ._inference.pcg import DecoupledInference, ExactInference
from ._optim import by_autograd, lbfgs
from ._posteriors import shrinkage
from ._torch_kernels import directions, theta_bounds, torch_kernel
from ._variational import STAGES, VariationalGP, VariationalRegressor
from .exceptions import NumericalWarning, warn

_LEARNING_ROWS, _LEARNING_PASSES = 10_000, 30
_MAX_LOST = 0.01  # of the ELBO, relative or in nats per row, to rounding
# Cumulative rows: training, validation, more training; and rounds.
_EVIDENCE_ROWS, _EVIDENCE_ROUNDS = (2000, 4000, 5000), 5
_MAX_FACTOR, _FEW_STEPS = math.log(20), partial(lbfgs, max_iter=8)
_LEARNING_TOL = 1e-3  # nats per row
_MIN_CALIBRATED = 500  # rows
_HELD_OUT = 0.1  # share of the rows
_CALIBRATION_STEPS = 100
_MAX_CHANGE = math.log(100)  # of noise and power by calibration
_NOISE_PRIOR = 0.2  # standard deviation of the change of the log noise
_POWER_PRIOR = 1.0  # rate of the log power, which few or noisy rows hardly determine


class SolvedGP(VariationalGP, ABC):
    """Variational GP whose mean has many more bases than its covariance.

    A subclass provides the bases of the mean (`_with_bases`).
    """

    inference = "natural_gradient"  # of the sparse GP that learns the hyperparameters
    _means = (*VariationalGP._means, None)
    _solved_mean = "linear"  # default mean function of the solver by conjugate gradients

    def _mean_function(self):
        if self.mean is None:
            return self._solved_mean if self.solver == "cg" else "zero"
        return self.mean

    def _fit_latents(self, run, name, X, weights, rows, start, seed, alone):
        random_state, generator = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        scaler = feature_scales(X, weights)
        if start is None:
            start = self._first_latents(X, weights, rows, scaler, random_state)
        start = SparseModel(start.kernel, start.Z, start.noise, template=start.template)
        start = self._learned(run, start, rows, scaler, random_state, generator)
        return self._solved(run, start, rows, random_state)

    @abstractmethod
    def _with_bases(self, latents, rows, random_state):
        """Choose the bases of the mean.

        Returns
        -------
        latents : SparseModel
            With `bases`.
        index : LongTensor of shape (k,)
            Rows that stand for all in the preconditioner.
        """

    def _learned(self, run, start, rows, scaler, random_state, generator):
        """Learn hyperparameters and inducing points as a sparse GP of fewer rows does."""
        start, _ = self._learn_hyperparameters(run, "", start, rows, scaler, random_state)
        some = rows.subset(_LEARNING_ROWS, random_state)
        if self._free_parameters(start, some):
            inference = self._inference(start, some, scaler, generator)
            state = inference.init(start.state(rows.device))
            run.run("hyperparameters", inference, state, _LEARNING_PASSES, must_converge=False)
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
        lost = abs(bound - curve[-1]) - _MAX_LOST * (rows.total_weight + abs(bound))
        if solve.conjugate and isinstance(latents, DecoupledModel) and not lost < 0:
            warn(
                f"The ELBO of the solution is {bound:.6g}, but conjugate gradients arrived at "
                f"{curve[-1]:.6g}: products in {rows.dtype} lose too many digits for these data. "
                "Use dtype='float64', or a larger noise_variance with optimizer=None.",
                NumericalWarning,
            )
        return latents, curve, bound

    def _pass_over(self, X, y, sample_weight, classes, previous, descend):
        """Learn from more rows by a pass of stochastic steps.

        Parameters
        ----------
        previous : list of SparseModel or None
        descend : callable
            Takes the run, X, weights, rows and a generator; returns latents, curve and ELBO.
        """
        self._check_streamed()
        self._check_all_parameters("partial_fit" if previous else None)
        shown = X
        X, targets, weights, _ = self._check_training_data(
            X, y, sample_weight, classes=classes, reset=previous is None
        )
        run = Run(self, shown, y, X, targets, weights, previous)
        rows = WeightedDataset(X, targets, weights, *self._agreed_options(X))
        generator = torch.Generator().manual_seed(run.checkpointed("seed", self._draw_seed))
        latents, curve, bound = descend(run, X, weights, rows, generator)
        run.end(self._attributes([latents], [bound]) | history(curve))
        return self

    def _parts(self, latents, rows):
        """Return the likelihood, the features of the covariance and the bases of the mean."""
        likelihood = self._make_likelihood().at(latents.state(rows.device)["noise"])
        return likelihood, latents.basis(rows.device), latents.mean_bases(rows.device)

    def _calibration_mask(self, rows, random_state):
        """Return the shares of rows that each solution knows, (n, 2); None without calibration.

        See ``row_shares`` of `DecoupledInference`.
        """
        return None

    def _calibrated(self, latents, solve, state):
        """Return the latents, calibrated where this applies, and the ELBO."""
        return latents, solve.bound(state)


class SolvedRegressor(SolvedGP, VariationalRegressor):
    """Regressor whose hyperparameters are refined on the exact evidence of some rows.

    Its variances are calibrated on held-out rows.
    """

    _solved_mean = "constant"

    def _is_collapsed(self, start, rows):
        return self.likelihood == "gaussian"

    def _refine_hyperparameters(self, climb, point, rows, fresh):
        for n_rows, rounds in STAGES[1:]:
            if rows.n_rows > _EVIDENCE_ROWS[0]:
                point = climb(point, n_rows, rounds)[0].hyperparameters
        return point, []

    def _learned(self, run, start, rows, scaler, random_state, generator):
        """Learn hyperparameters on the collapsed ELBO and on the exact evidence of fewer rows.

        Those with the higher density of validation rows are kept, and the noise is refitted there.
        A second comparison decides on a common scaling learned on more rows. Sparse processes
        learn too long length scales for data that their inducing points do not resolve.
        """
        start = super()._learned(run, start, rows, scaler, random_state, generator)
        if self.likelihood != "gaussian" or self.optimizer is None:
            return start
        rows = rows.with_normalized_weights()
        units = rows.units()
        order = random_state.permutation(len(units))
        train, validation, more = np.split(order[: _EVIDENCE_ROWS[-1]], _EVIDENCE_ROWS[:-1])
        evidence = Evidence(torch_kernel(start.kernel), rows.of_units(units, train))
        bounds = theta_bounds(start.kernel, rows.device)
        scale = torch.tensor(scaler.scale_, device=rows.device)
        free = {"theta": start.kernel.n_dims > 0, "noise": self._noise_is_free()}
        parts, limits = [part for part in free if free[part]], self._noise_limits(NOISE_BOUNDS)
        if not parts:
            return start
        objective = self._with_prior(evidence, start, rows, scaler)
        options = {"noise_bounds": limits}
        learning = CollapsedLearning(objective, parts, bounds, scale, _LEARNING_TOL, **options)
        tensors = start.state(rows.device)
        before = Hyperparameters(tensors["theta"], tensors["Z"], tensors["noise"])
        state = learning.init(*before)
        run.run("evidence", learning, state, _EVIDENCE_ROUNDS, must_converge=False)
        after = state.hyperparameters
        if not len(validation):
            return start.at(after._asdict())
        validation_rows = rows.of_units(units, validation)
        compared = validation_rows, limits[1]
        best = _select_by_predictive_density(evidence, before, after, *compared)
        if not len(more) or not start.kernel.n_dims:
            return start.at(best._asdict())
        train = np.concatenate([train, more])
        evidence = Evidence(evidence.kernel, rows.of_units(units, train))
        axes = directions(start.kernel).to(rows.device)
        scaling = SharedScaling(evidence, best.theta, axes, bounds)
        within = bounds.new_tensor([[-_MAX_FACTOR, _MAX_FACTOR]]).expand(len(axes), 2)
        options |= {"maximize": _FEW_STEPS}
        learning = CollapsedLearning(scaling, parts, within, scale, _LEARNING_TOL, **options)
        state = learning.init(axes.new_zeros(len(axes)), best.Z, best.noise)
        run.run("evidence of more rows", learning, state, 1, must_converge=False)
        after = state.hyperparameters._replace(theta=scaling.theta(state.theta))
        best = _select_by_predictive_density(evidence, best, after, *compared)
        return start.at(best._asdict())

    # Calibration

    def _is_calibrated(self, rows):
        gaussian = self.likelihood == "gaussian"
        return gaussian and self.optimizer is not None and len(rows) >= _MIN_CALIBRATED

    def _held_out(self, rows, random_state, max_units=np.inf):
        """Choose units of weight for calibration.

        Returns
        -------
        units : ndarray
            All units, see `WeightedDataset.units`.
        index : ndarray
            Those held out, at most ``max_units``.
        """
        units = rows.units()
        size = int(min(_HELD_OUT * len(units), max_units))
        return units, random_state.choice(len(units), size, replace=False)

    def _calibration_mask(self, rows, random_state):
        if not self._is_calibrated(rows):
            return None
        share = shares(*self._held_out(rows, random_state))
        return to_tensor(np.column_stack([np.ones(len(rows)), 1 - share]), rows.device)

    def _calibrated(self, latents, solve, state):
        """Fit the noise and the power of the variances to the held-out rows."""
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
        """Return the latents with the noise and power under which held-out rows are most likely.

        Parameters
        ----------
        latents : SparseModel
        noise : Tensor of shape (k,)
            Logarithms of the present noise variances.
        y, weights : Tensor of shape (n, t), (n,)
        means, variances, prior : Tensor of shape (n, t), (n, t), (n, 1)
            Latent moments of the rows, and their projected prior variances.
        spread : float
            Standard deviation of a Gaussian prior of the change of ``noise``. It is infinite where
            the means do not solve the system exactly, as their errors look like noise.
        """
        k, squares = len(noise), (y - means).square()

        def density(logs):
            total = logs[:k].exp() + shrinkage(variances, prior, logs[k].exp()) * variances
            misfit = (weights @ (total.log() + squares / total)).sum()
            changes = ((logs[:k] - noise) / spread).square().sum()
            return -0.5 * (misfit + changes) - _POWER_PRIOR * logs[k]

        start = torch.cat([noise, noise.new_zeros(1)])
        limits = torch.stack([start - _MAX_CHANGE, start + _MAX_CHANGE], 1)
        limits[:k] = limits[:k].clamp(*self._noise_limits((-math.inf, math.inf)))
        limits[k, 0] = 0.0  # the power is at least 1
        best, _ = lbfgs(by_autograd(density), start, limits, _CALIBRATION_STEPS)
        return replace(latents, power=best[k].exp().item(), noise=tuple(best[:k].tolist()))

    def _attributes(self, latents, bounds, streamed=False):
        attributes = super()._attributes(latents, bounds, streamed)
        return {**attributes, "variance_power_": latents[0].power}


def _select_by_predictive_density(evidence, before, after, rows, max_log_noise):
    """Return the hyperparameters with the higher density of other rows, their noise refitted.

    Parameters
    ----------
    evidence : Evidence
        Of the training rows.
    before, after : Hyperparameters
        The noise of ``after`` is the lower bound of the refitted noise.
    rows : WeightedDataset
        Validation rows.
    max_log_noise : float
        Upper bound of the logarithm of the noise variance.

    Returns
    -------
    best : Hyperparameters
        ``after`` where both are equally good.
    """
    scored = []
    for point in (before, after):
        noise, density = evidence.refit_noise(
            point.theta, point.noise, rows, after.noise, max_log_noise
        )
        scored.append((density, point._replace(noise=noise)))
    return scored[0][1] if scored[0][0] > scored[1][0] else scored[1][1]
