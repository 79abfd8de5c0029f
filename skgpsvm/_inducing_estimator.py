"""Estimators with a Gaussian posterior over inducing points: their fits, streams and latents."""

from functools import partial

import numpy as np
import torch
from sklearn.gaussian_process.kernels import CompoundKernel

from ._distributed import (
    broadcast_from_rank0,
    check_equal,
    check_same,
    check_shareable,
    gather,
    n_ranks,
    run_on_all_ranks,
)
from ._estimators import FOLLOWED, GPEstimator, history
from ._fitting import Run, Stage
from ._hyperparameters.default_kernels import feature_scales
from ._hyperparameters.priors import few_rows_prior
from ._inference.coordinate_ascent import CoordinateAscent
from ._inference.natural_gradient import AdamSteps, CoordinateInference, GradientInference
from ._latents import Latents
from ._linalg import natural_parameters
from ._optim import NOISE_BOUNDS
from ._parameters import ALWAYS
from ._rows import Rows
from ._torch_kernels import theta_bounds, torch_kernel
from .exceptions import warn
from .inducing import select_inducing_points

LEARNING_RATE = 0.05  # where none is given
# Parameters of which a warm start follows a change, besides those of every further call.
MORE_FOLLOWED = dict.fromkeys(
    ("batch_size", "inference", "learn_inducing", "learning_rate", "optimizer"), ALWAYS
)
_FOLLOWED = {"fit": FOLLOWED | MORE_FOLLOWED, "partial_fit": FOLLOWED}
_GATHERED_ROWS = 20_000  # that inducing points are chosen from where ranks share the rows


class InducingEstimator(GPEstimator):
    """An estimator whose fitted state is a list of `Latents`, one a model.

    A subclass checks its training data (`_check_training_data`) and provides the likelihood
    (`_make_likelihood`), the initial kernel (`_start_kernel`), the optimizer of hyperparameters
    (`_optimizer`), summaries of a posterior (`_evaluate_posterior`) and the fitted attributes
    that follow from them (`_attributes`).
    """

    _has_prior = False  # of length scales
    _followed = _FOLLOWED

    @property
    def _adam_rate(self):
        """Learning rate of Adam's steps on hyperparameters."""
        return LEARNING_RATE if self.learning_rate is None else self.learning_rate

    def _check_inducing_parameters(self):
        self._check_bool("learn_inducing")
        self._check_bool("warm_start")
        self._check_number("n_inducing", 1, integer=True)
        self._check_number("max_iter", 1, integer=True)
        self._check_number("tol", 0)
        self._check_number("learning_rate", 0, optional=True, above=True)
        self._check_number("batch_size", 1, integer=True, optional=True)
        self._check_kernel()

    # Fitting

    _inference_class = CoordinateInference

    def _fit(self, X, y, sample_weight, classes=None):
        previous = getattr(self, "_latents", None) if self.warm_start else None
        check_same("a model to start from", previous)
        if previous is None:
            self._forget()
        run_on_all_ranks(self._check_all_parameters, "fit" if previous else None)
        shown = X
        X, targets, weights, origin = self._check_training_data(
            X, y, sample_weight, classes=classes, reset=not previous
        )
        problems = self._one_vs_rest_targets(targets)
        options = self._agreed_options(X)
        run = Run(self, shown, y, X, targets, weights, previous)
        seed = broadcast_from_rank0(run_on_all_ranks(run.checkpointed, "seed", self._draw_seed))
        fits = []
        for j, part in enumerate(problems):
            name = f"class {self.classes_[j]}: " if len(problems) > 1 else ""
            start = previous[j] if previous else None
            alone = len(problems) == 1
            rows = Rows(X, part, weights, *options, origin=origin)
            fits.append(self._fit_latents(run, name, X, weights, rows, start, seed, alone))
        latents, curves, findings = zip(*fits, strict=True)
        found = self._attributes(latents, findings) | history(*curves)
        run.end(found, partial(self._doubts, X, targets, weights))
        return self

    def _agreed_options(self, X):
        """`_torch_options`, where ranks share the rows on devices of one kind."""
        options = run_on_all_ranks(self._torch_options, X)
        check_equal({"device of type": options[0].type})
        return options

    def _one_vs_rest_targets(self, targets):
        """Targets of the models to fit."""
        return [targets]

    def _fit_latents(self, run, name, X, weights, rows, start, seed, alone):
        """Fit one model: its `Latents`, curve of objectives and `_evaluate_posterior`."""
        random_state, generator = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        scaler = feature_scales(X, weights)
        if start is None:
            start = self._first_latents(X, weights, rows, scaler, random_state)
        start, learning = self._learn_hyperparameters(run, name, start, rows, scaler, random_state)
        inference = self._inference(start, rows, scaler, generator)
        state = inference.initial(start.state(rows.device))

        def attributes(state):
            return self._attributes(
                [start.at(state)], [self._evaluate_posterior(inference.at(state), state)]
            )

        curve = run.stage(
            f"{name}posterior",
            state,
            inference.step,
            self.max_iter,
            attributes=attributes if alone else None,
            **{"finished" if inference.is_exact else "converged": inference.converged},
        )
        return (
            start.at(state),
            learning or curve,
            self._evaluate_posterior(inference.at(state), state),
        )

    def _first_latents(self, X, weights, rows, scaler, random_state):
        """What a fit starts from."""
        noise = tuple(self._make_likelihood().parameters().tolist())
        Z = self._chosen_points(X, weights, rows, random_state)
        kernel, template = self._split_kernel(self._start_kernel(scaler))
        return Latents(kernel, Z, noise, template=template)

    def _chosen_points(self, X, weights, rows, random_state):
        if n_ranks() > 1 and isinstance(self.inducing_points, str):
            some = rows.subset(_GATHERED_ROWS + 40 * self.n_inducing, random_state)
            X, _, weights = (part.cpu().numpy() for part in some.take(slice(None)))
        return select_inducing_points(
            X, self.n_inducing, self.inducing_points, weights, random_state
        )

    def _learn_hyperparameters(self, run, name, start, rows, scaler, random_state):
        """The start of the inference, hyperparameters learned where that comes first, and how.

        Returns
        -------
        start : Latents
        curve : list of float
            Objectives along the way, where they are those of the inference.
        """
        return start, []

    def _inference(self, start, rows, scaler, generator):
        kernel = torch_kernel(start.kernel)
        trained, batch_size = self._free_parameters(start, rows), self._batch_size(start, rows)
        check_shareable(trained or batch_size)
        adam = AdamSteps(
            self._make_likelihood(),
            kernel,
            rows,
            trained,
            self._adam_rate,
            theta_bounds(start.kernel, rows.device),
            torch.tensor(scaler.scale_, device=rows.device),
            self._prior(start, rows, scaler),
            self._noise_limits(NOISE_BOUNDS),
        )
        method = GradientInference if self.inference == "gradient" else self._inference_class
        ascent = CoordinateAscent(self._make_likelihood(), start.basis(rows.device), rows)
        return method(ascent, adam, self.max_iter, self._tolerance(rows), batch_size, generator)

    def _prior(self, start, rows, scaler):
        """That of the default kernel's hyperparameters, where they are learned, or None."""
        if not self._has_prior or self.kernel is not None or self.optimizer is None:
            return None
        return self._prior_of_default(self._start_kernel(scaler), rows, scaler)

    def _prior_of_default(self, kernel, rows, scaler):
        return few_rows_prior(kernel, rows)

    def _batch_size(self, start, rows):
        """Rows in a minibatch; None is all."""
        return self.batch_size

    def _tolerance(self, rows):
        return self.tol

    def _free_parameters(self, start, rows):
        """What gradient steps train."""
        by_gradient, learned = self.inference == "gradient", self._optimizer() == "adam"
        trained = {
            "theta": learned and start.kernel.n_dims > 0,
            "noise": learned and len(start.noise) > 0 and self._noise_is_free(),
            "Z": self.learn_inducing and start.uses_points,
            "mean": by_gradient,
            "raw_root": by_gradient,
        }
        return [part for part, wanted in trained.items() if wanted]

    def _latents_attributes(self, latents):
        """Fitted attributes that say what the models are."""
        alone = len(latents) == 1
        kernels, Z = [part.whole_kernel for part in latents], [part.Z for part in latents]
        return {
            "kernel_": kernels[0] if alone else CompoundKernel(kernels),
            "inducing_points_": Z[0] if alone else Z,
            "_latents": list(latents),
            "_fitted_parameters": self._parameters_of_fit(),
        }

    def _partial_fit(self, X, y, sample_weight, classes=None):
        """`fit` in the first call, `_stream` in every later one."""
        self._check_streamed()
        check_same("a model to continue", getattr(self, "_latents", None))
        if not self.__sklearn_is_fitted__():
            self._fit(X, y, sample_weight, classes)
            n_rows, wanted = sum(gather(len(y))), self.n_inducing
            if n_rows < wanted and isinstance(self.inducing_points, str):
                warn(
                    f"{type(self).__name__}.partial_fit holds what this first call, of only "
                    f"{n_rows} rows, says of the kernel and {wanted} inducing points: give it more "
                    "rows, or lower n_inducing."
                )
            return self
        return self._stream(X, y, sample_weight, classes)

    def _stream(self, X, y, sample_weight, classes=None):
        """Add rows to the posterior, which is their prior; kernel and points stay."""
        run_on_all_ranks(self._check_all_parameters, "partial_fit")
        shown = X
        X, targets, weights, origin = self._check_training_data(
            X, y, sample_weight, classes=classes, reset=False
        )
        problems = self._one_vs_rest_targets(targets)
        options = self._agreed_options(X)
        run = Run(self, shown, y, X, targets, weights, self._latents)
        latents, findings, curves = [], [], []
        for old, part in zip(self._latents, problems, strict=True):
            rows = Rows(X, part, weights, *options, origin=origin)
            state, step, ascent = self._streaming_update(old, rows)
            name = f"stream {len(curves)}"
            if isinstance(ascent, Stage):
                curves.append(run.run(name, ascent, state, self.max_iter))
            else:
                settled = partial(_is_settled, self._tolerance(rows))
                is_exact = isinstance(ascent, CoordinateAscent) and ascent.likelihood.conjugate
                ends = {"finished" if is_exact else "converged": settled}
                curves.append(run.stage(name, state, step, self.max_iter, **ends))
            latents.append(old.at(state))
            findings.append(self._evaluate_posterior(ascent, state))
        run.end(self._attributes(latents, findings, streamed=True) | history(*curves))
        return self

    def _streaming_update(self, old, rows):
        """State, step and ascent on new rows whose prior is a fitted posterior."""
        now = old.state(rows.device)
        likelihood = self._make_likelihood().at(now["noise"])
        ascent = CoordinateAscent(likelihood, old.basis(rows.device), rows)
        ascent.prior = natural_parameters(now["mean"], now["root"])
        state = now | ascent.initial()
        return state, partial(self._inference_class.sweep, ascent), ascent


def _is_settled(tol, state):
    return state["change"] < tol
