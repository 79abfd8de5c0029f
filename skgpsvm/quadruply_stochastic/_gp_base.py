"""Common base of the quadruply stochastic regressor and classifier."""

import math
from dataclasses import replace

import numpy as np
import torch

from .._collapsed import JITTER
from .._distributed import refuse_ranks
from .._estimators import FOLLOWED
from .._features import FourierFeatures
from .._hyperparameters.default_kernels import feature_scales
from .._inducing_estimator import LEARNING_RATE, MORE_FOLLOWED
from .._parameters import ALWAYS, OtherThan, where
from .._solved import SolvedGP
from .._torch_kernels import theta_bounds
from .._variational import LEARNED
from ._factors import chevron
from ._stochastic import StepOptions, StochasticState, StochasticSteps

_CG, _STEPS = where(solver="cg"), where(solver=("sgd", "adagrad"))
_HAS_POINTS = _CG | where(covariance="nystroem") | where(optimizer=OtherThan(None))
_MAX_LANDMARKS = 4096
_N_SEEDS = 2**31
_BATCH_SIZE = 512
_MAX_LOG_NOISE_CHANGE = math.log(1e3)  # along the stochastic steps


def has_partial_fit(estimator):
    """Return True if an estimator has `partial_fit`; raise an `AttributeError` otherwise."""
    if estimator.solver == "cg":
        raise AttributeError(
            "partial_fit is not available with solver='cg', which needs all rows at once. Use "
            "solver='sgd' or 'adagrad'."
        )
    return True


_USES = {
    "n_dense_columns": where(covariance="chevron"),
    **dict.fromkeys(("control_variate", "gradient", "n_sampled_basis", "learning_rate"), _STEPS),
    "n_support": (_STEPS, where(solver="sgd") | where(control_variate=OtherThan(None))),
    "n_inducing": _HAS_POINTS,
    "inducing_points": _HAS_POINTS,
    "batch_size": _STEPS | LEARNED,
    "tol": where(solver="cg") | LEARNED,
}
_FOLLOWED = {
    "fit": FOLLOWED
    | MORE_FOLLOWED
    | dict.fromkeys(("control_variate", "gradient", "n_sampled_basis"), ALWAYS)
    | dict.fromkeys(("learn_inducing", "optimizer", "tol"), _CG)
    | dict.fromkeys(
        ("augment", "basis", "covariance", "n_basis", "n_dense_columns", "n_support"), _CG
    ),
    "partial_fit": FOLLOWED
    | dict.fromkeys(
        ("batch_size", "control_variate", "gradient", "learning_rate", "n_sampled_basis"),
        ALWAYS,
    ),
}


class QuadruplyStochasticGP(SolvedGP):
    """Sparse GP whose mean is a weighted sum of very many basis functions.

    Either preconditioned conjugate gradients solve for the weights, or `StochasticSteps`, which
    sample the basis functions.
    """

    _uses, _followed = _USES, _FOLLOWED

    _adam_rate = LEARNING_RATE  # for the hyperparameters of the sparse GP
    _optimizers = ("auto", "stochastic", None)

    def _check_parameters(self):
        self._check_choice("basis", ("fourier", "orthogonal", "inducing"))
        self._check_choice("solver", ("cg", "sgd", "adagrad"))
        self._check_choice("covariance", ("nystroem", "chevron", "mean_field"))
        self._check_choice("control_variate", ("interpolating", "gram", None))
        self._check_choice("gradient", ("symmetric", "plain"))
        self._check_bool("augment")
        for name in ("n_basis", "n_dense_columns", "n_support", "n_sampled_basis"):
            self._check_number(name, 1, integer=True)
        self._check_variational_parameters()
        refuse_ranks(self)
        if self.optimizer == "stochastic" and self.solver == "cg":
            raise ValueError(
                "optimizer='stochastic' learns along stochastic steps, not solver='cg'. Use "
                "solver='sgd' or 'adagrad'."
            )
        dense = self.basis == "inducing" and self.covariance != "nystroem"
        if self.optimizer == "stochastic" and dense:
            raise ValueError(
                "optimizer='stochastic' needs the bound's gradient in the kernel's "
                "hyperparameters, which basis='inducing' with "
                f"covariance={self.covariance!r} hides in the determinant of a kernel matrix. Use "
                "covariance='nystroem' or basis='fourier'."
            )
        if self.augment and (self.basis != "inducing" or self.covariance == "nystroem"):
            raise ValueError(
                f"augment=True is for basis='inducing' with covariance='mean_field' or 'chevron'; "
                f"got basis={self.basis!r} and covariance={self.covariance!r}, whose variance "
                "returns to the prior's without it. Set augment=False."
            )

    def _chosen_points(self, X, weights, rows, random_state):
        if _HAS_POINTS.holds(self):
            return super()._chosen_points(X, weights, rows, random_state)
        # The points are not used. To choose them would draw random numbers, on which the basis
        # functions would then depend.
        return rows.take(slice(1))[0].double().cpu().numpy()

    def _with_bases(self, latents, rows, random_state):
        seed = int(random_state.randint(_N_SEEDS))
        index = random_state.permutation(len(rows))
        if self.basis == "inducing":
            index = np.sort(index[: self.n_basis])
            bases = rows.take(torch.as_tensor(index, device=rows.device))[0].double().cpu().numpy()
        else:
            n_pairs = -(-self.n_basis // 2)
            index = index[: min(n_pairs, _MAX_LANDMARKS)]
            nystroem = self.solver == "cg" and self.covariance == "nystroem"
            bases = FourierFeatures(n_pairs, seed, self.basis == "orthogonal", nystroem)
        return latents.with_bases(bases), torch.as_tensor(index, device=rows.device)

    def _attributes(self, latents, bounds, streamed=False):
        attributes = super()._attributes(latents, bounds, streamed)
        return {**attributes, "basis_": latents[0].bases}

    def _calibrated(self, latents, solve, state):
        if self.covariance == "nystroem":
            return super()._calibrated(latents, solve, state)
        rows = solve.rows
        precision = rows.weights.double()[:, None] * state.precision
        n_dense = self.n_dense_columns if self.covariance == "chevron" else 0
        diag, columns = chevron(solve.bases, rows, solve.index, precision, n_dense)
        parts = {"diag": diag, "columns": columns, **self._augmentation(rows, precision)}
        latents = self._with_weight_posterior(latents, parts)
        posterior, loss = latents.posterior(rows.device), 0.0
        for at in rows.chunks():
            X, y, weights = rows.take(at)
            loss += (weights * solve.likelihood.loss(y, *posterior.marginals(X))).sum().item()
        return latents, -loss - posterior.kl().item()

    def _augmentation(self, rows, precision):
        """Return the rows that augment the variance and their precisions, by field of the model.

        The dictionary is empty if ``augment=False``.
        """
        if not self.augment:
            return {}
        X = torch.cat([rows.take(at)[0].double() for at in rows.chunks()])
        return {"rows": X, "row_precisions": precision.T.contiguous()}

    def _with_weight_posterior(self, latents, parts):
        """Return latents with a `WeightPosterior`, whose tensors are given by name."""
        parts = {name: part.cpu().numpy() for name, part in parts.items()}
        return latents.with_weights(parts | {"mean": None, "root": None})

    # Stochastic steps

    def _fit_latents(self, run, name, X, weights, rows, start, seed, alone):
        if self.solver == "cg":
            return super()._fit_latents(run, name, X, weights, rows, start, seed, alone)
        random_state, generator = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        state, support, others = None, None, None
        if start is None:
            scaler = feature_scales(X, weights)
            rows, others = self._split_for_calibration(rows, random_state)
            start = self._first_latents(X, weights, rows, scaler, random_state)
            start = self._learned(run, start, rows, scaler, random_state, generator)
            start = replace(start, jitter=JITTER[rows.dtype], mean=None, root=None)
            start, _ = self._with_bases(start, rows, random_state)
            support = np.sort(random_state.permutation(len(rows))[: self.n_support])
            support = rows.take(torch.as_tensor(support, device=rows.device))[0].double()
        else:
            state = _from_arrays(start.steps, rows.device)
        generator.manual_seed(seed)  # independent of draws by the learning, which may be resumed
        return self._run_steps(run, start, state, support, rows, others, generator)

    def _partial_fit(self, X, y, sample_weight, classes=None):
        """Fit, or take one pass of minibatches over new rows if already fitted."""
        if not self.__sklearn_is_fitted__():
            return super()._partial_fit(X, y, sample_weight, classes)
        previous = self._latents

        def descend(run, X, weights, rows, generator):
            start = previous[0]
            state = _from_arrays(start.steps, rows.device)
            return self._run_steps(run, start, state, None, rows, None, generator, streamed=True)

        return self._pass_over(X, y, sample_weight, classes, previous, descend)

    def _split_for_calibration(self, rows, random_state):
        """Return rows to learn from, and held-out rows for calibration or None."""
        return rows, None

    def _run_steps(self, run, start, state, support, rows, others, generator, *, streamed=False):
        """Run stochastic steps from a state, or from the prior if it is None.

        Parameters
        ----------
        run : Run
        start : SparseModel
            Hyperparameters, inducing points and basis functions.
        state : StochasticState or None
        support : Tensor of shape (p, d) or None
            Support rows; needed if there is no state.
        rows : WeightedDataset
        others : WeightedDataset or None
            Held-out rows for calibration.
        generator : torch.Generator
        streamed : bool
            Whether the rows come in addition to earlier ones. They get one pass.

        Returns
        -------
        latents : SparseModel
        curve : list of float
            Estimates of the ELBO, one per pass.
        bound : float
            The last of them.
        """
        passes = 1 if streamed else self.max_iter
        n_dense = {"nystroem": None, "mean_field": 0, "chevron": self.n_dense_columns}
        batch_size = min(self.batch_size or _BATCH_SIZE, len(rows))
        limits = None
        if not streamed and self.optimizer == "stochastic":
            limits = self._hyperparameter_limits(start, rows.device)
        options = StepOptions(
            n_dense=n_dense[self.covariance],
            batch_size=batch_size,
            n_sampled=self.n_sampled_basis,
            control_variate=self.control_variate,
            n_steps=passes * math.ceil(len(rows) / batch_size),
            symmetric=self.gradient == "symmetric",
            adagrad=self.solver == "adagrad",
            learning_rate=self.learning_rate,
        )
        steps = StochasticSteps(
            self._make_likelihood(),
            start.mean_bases(rows.device),
            start.basis(rows.device),
            rows,
            options,
            generator,
            limits,
        )
        given = start.state(rows.device)
        if state is None:
            state = steps.init(given["theta"], given["noise"], support)
        steps.begin(state, more=streamed)
        # Calibration has changed the noise of predictions since the state was stored.
        log_noise_change = given["noise"] - state.noise

        def fitted(state):
            parts = steps.posterior(state)
            learned = {"theta": state.theta, "noise": state.noise + log_noise_change}
            if self.covariance == "nystroem":
                return self._calibrated_on(start.at(learned | parts), others)
            if self.augment:
                precision = steps.bound.sites(rows.targets, state.auxiliary)[1].double()
                precision = rows.weights.double()[:, None] * precision
                parts |= self._augmentation(rows, precision)
            if self.augment and streamed:
                for name, axis in (("rows", 0), ("row_precisions", 1)):
                    before = torch.as_tensor(getattr(start, name)).to(parts[name])
                    parts[name] = torch.cat([before, parts[name]], axis)
            return self._with_weight_posterior(start.at(learned), parts)

        def attributes(state):
            return self._attributes([fitted(state)], [state.objective])

        options = {"must_converge": False, "attributes": attributes}
        curve = run.run("posterior", steps, state, passes, **options)
        steps.check(state)
        return replace(fitted(state), steps=_to_arrays(state)), curve, state.objective

    def _calibrated_on(self, latents, others):
        """Return latents that are calibrated on held-out rows, if there are any."""
        return latents

    def _hyperparameter_limits(self, start, device):
        """Return bounds of theta and the noise's logarithms, (k, 2); None if nothing is free."""
        noise = start.state(device)["noise"]
        free = torch.stack([noise - _MAX_LOG_NOISE_CHANGE, noise + _MAX_LOG_NOISE_CHANGE], 1)
        free = free.clamp(*self._noise_limits((-math.inf, math.inf)))
        limits = torch.cat([theta_bounds(start.kernel, device), free])
        return limits if len(limits) else None


def _to_arrays(state):
    """Return a `StochasticState` by field, with arrays for tensors and without ``auxiliary``."""
    return {
        name: part.cpu().numpy() if isinstance(part, torch.Tensor) else part
        for name, part in state.as_dict().items()
        if name != "auxiliary"
    }


def _from_arrays(arrays, device):
    """Return the `StochasticState` that `_to_arrays` stored, in new tensors on a device."""
    fields = {
        name: torch.tensor(part, device=device) if isinstance(part, np.ndarray) else part
        for name, part in arrays.items()
    }
    return StochasticState(**fields)
