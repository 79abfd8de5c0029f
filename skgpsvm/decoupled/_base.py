"""Base class of the decoupled regressor and classifier: bases, and the two solvers."""

import sys
from dataclasses import replace

import numpy as np
import torch
from sklearn.gaussian_process.kernels import ConstantKernel

from .._distributed import refuse_ranks
from .._estimators import FOLLOWED
from .._fitted_models import DecoupledModel
from .._hyperparameters.default_kernels import feature_scales
from .._hyperparameters.initialization import median_scales
from .._inducing_estimator import MORE_FOLLOWED
from .._optim import NOISE_BOUNDS
from .._parameters import where
from .._solved import SolvedGP
from .._torch_kernels import theta_bounds, torch_kernel
from .._variational import LEARNED
from ..kernels import MultiscaleRBF
from ..kernels._composite import exact_and_rest
from ._stochastic import PARAMETRIZATIONS, PARTS, DescentState, StochasticBound, StochasticDescent
from ._stream import DecoupledStream

_MINIBATCH = 1024
_SEEDS = 2**32
_USES = {
    "parametrization": where(solver="sgd"),
    "inducing_points": where(solver="cg"),
    "tol": where(solver="cg"),
    "batch_size": where(solver="sgd") | LEARNED,
    "learning_rate": where(solver="sgd") | LEARNED,
}
_FOLLOWED = {
    "fit": FOLLOWED | MORE_FOLLOWED | {"n_mean_bases": where(solver="cg")},
    "partial_fit": FOLLOWED | dict.fromkeys(MORE_FOLLOWED, where(solver="sgd")),
}
_GROWING = dict.fromkeys(("n_inducing", "n_mean_bases"), where(solver="sgd"))


class DecoupledGP(SolvedGP):
    """Sparse variational GP whose mean has many more bases than its covariance.

    ``solver="cg"`` is inherited from `SolvedGP`, with rows as bases; ``solver="sgd"`` is here.
    """

    _uses, _followed, _growing = _USES, _FOLLOWED, _GROWING

    def _check_parameters(self):
        self._check_choice("solver", ("cg", "sgd"))
        self._check_choice("parametrization", PARAMETRIZATIONS)
        self._check_number("n_mean_bases", 1, integer=True)
        self._check_variational_parameters()
        refuse_ranks(self)
        if self.solver == "sgd" and self._mean_function() != "zero":
            raise ValueError(
                f"solver='sgd' has no mean function; got mean={self.mean!r}. Use mean='zero', or "
                "solver='cg'."
            )

    def _fit_latents(self, run, name, X, weights, rows, start, seed, alone):
        if self.solver == "cg":
            return super()._fit_latents(run, name, X, weights, rows, start, seed, alone)
        generator = torch.Generator().manual_seed(seed)
        return self._run_sgd(run, rows, feature_scales(X, weights), generator, start)

    def _attributes(self, latents, bounds, streamed=False):
        found = super()._attributes(latents, bounds, streamed)
        return {**found, "mean_bases_": latents[0].bases}

    # Conjugate gradients

    def _with_bases(self, latents, rows, random_state):
        index = np.arange(len(rows))
        if len(rows) > self.n_mean_bases:
            index = np.sort(random_state.choice(index, self.n_mean_bases, replace=False))
        index = torch.as_tensor(index, device=rows.device)
        bases = rows.take(index)[0].double().cpu().numpy()
        return latents.with_bases(bases), index

    def _evaluate_posterior(self, stream, state):
        return state.objective

    def _streaming_update(self, old, rows):
        fitted = old.state(rows.device)
        stream = DecoupledStream(*self._parts(old, rows), rows, self._tolerance(rows), fitted)
        return stream, stream.init()

    # Stochastic gradients

    def _partial_fit(self, X, y, sample_weight, classes=None):
        if self.solver == "cg":
            return super()._partial_fit(X, y, sample_weight, classes)
        previous = getattr(self, "_latents", None)

        def descend(run, X, weights, rows, generator):
            start, scaler = previous[0] if previous else None, feature_scales(X, weights)
            return self._run_sgd(run, rows, scaler, generator, start, streamed=True)

        return self._pass_over(X, y, sample_weight, classes, previous, descend)

    def _run_sgd(self, run, rows, scaler, generator, previous, *, streamed=False):
        """Run stochastic gradients, for one pass if rows are streamed.

        Returns
        -------
        latents : SparseModel
        curve : list of float
        elbo : float
        """
        device = rows.device
        random_state = np.random.RandomState(generator.initial_seed() % _SEEDS)
        start = previous or self._initial_latents(rows, scaler, random_state)
        kernel = torch_kernel(start.kernel)
        if exact_and_rest(kernel, rows.X.shape[1], sys.maxsize)[0]:
            raise ValueError(
                "solver='sgd' supports no linear and no constant terms of a kernel; got "
                f"{start.kernel!r}. Leave them out, or use solver='cg'."
            )
        bound = StochasticBound(kernel, self._make_likelihood(), self.parametrization)
        descent = StochasticDescent(
            bound,
            rows,
            {"Z": self.n_inducing, "bases": self.n_mean_bases},
            self.batch_size or _MINIBATCH,
            self._adam_rate,
            [part for part in PARTS if part not in self._fixed_parts()],
            {
                "theta": theta_bounds(start.kernel, device).unbind(-1),
                "noise": self._noise_limits(NOISE_BOUNDS),
            },
            generator,
        )
        if previous:
            state = DescentState.from_arrays(previous.steps, device)
        else:
            parts, scale = start.state(device), torch.tensor(scaler.scale_, device=device)
            state = descent.init(parts["theta"], parts["noise"], start.Z.shape[1], scale)
        state.n_seen = rows.total_weight + (state.n_seen if streamed else 0.0)

        def evaluated(state):
            mean, root, bases, coef = bound.posterior(state.parameters)
            found = {"mean": mean, "root": root, "bases": bases, "coef": coef}
            latents = replace(start, gram=None).at(state.parameters | found)
            return latents, descent.elbo(latents.posterior(device), state)

        def attributes(state):
            latents, elbo = evaluated(state)
            return self._attributes([latents], [elbo])

        passes = 1 if streamed else self.max_iter
        options = {"must_converge": False, "attributes": attributes}
        curve = run.run("posterior", descent, state, passes, **options)
        latents, elbo = evaluated(state)
        return replace(latents, steps=state.to_arrays()), curve, elbo

    def _fixed_parts(self):
        """Return the names of the parameters that stochastic gradients leave as they are."""
        fixed = set() if self.optimizer else {"theta", "noise"}
        fixed |= set() if self._noise_is_free() else {"noise"}
        return fixed if self.learn_inducing else fixed | {"Z", "bases"}

    def _initial_latents(self, rows, scaler, random_state):
        """Return latents without bases; the length scale is the median distance of some rows."""
        d = len(scaler.scale_)
        kernel, template = self._split_kernel(self.kernel)
        if kernel is None:
            scales = median_scales(rows, scaler, random_state)
            bounds = np.outer(scales, (1e-3, 1e3))
            variance = ConstantKernel(self._start_variance, (1e-3, 1e5))
            kernel = variance * MultiscaleRBF(scales, bounds, n_features=d)
        parts = kernel.get_params().values()
        wide = any(isinstance(part, MultiscaleRBF) for part in (kernel, *parts))
        noise = tuple(self._make_likelihood().parameters().tolist())
        return DecoupledModel(kernel, np.empty((0, 2 * d if wide else d)), noise, template=template)
