"""Estimators with a Gaussian posterior over inducing points: fits, streams and fitted models."""

from functools import partial

import numpy as np
import torch
from sklearn.gaussian_process.kernels import CompoundKernel

from ._data import WeightedDataset
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
from ._fitted_models import SparseModel
from ._fitting import Run
from ._hyperparameters.default_kernels import feature_scales
from ._hyperparameters.priors import few_rows_prior
from ._inference.coordinate_ascent import AscentStage, CoordinateAscent
from ._inference.natural_gradient import AdamSteps, CoordinateInference, GradientInference
from ._linalg import natural_parameters
from ._optim import NOISE_BOUNDS
from ._parameters import ALWAYS
from ._torch_kernels import theta_bounds, torch_kernel
from .exceptions import warn
from .inducing import select_inducing_points

LEARNING_RATE = 0.05  # default of Adam
# A warm start honors changes of these parameters, besides those that every further call honors.
MORE_FOLLOWED = dict.fromkeys(
    ("batch_size", "inference", "learn_inducing", "learning_rate", "optimizer"), ALWAYS
)
_FOLLOWED = {"fit": FOLLOWED | MORE_FOLLOWED, "partial_fit": FOLLOWED}
# Inducing points are chosen from so many rows where ranks share them, plus 40 per point.
_GATHERED_ROWS = 20_000


class InducingEstimator(GPEstimator):
    """Estimator whose fitted state is a list of `SparseModel`, one per model.

    A subclass checks its training data (`_check_training_data`) and provides the following.

    ``_make_likelihood()``
        The likelihood, a `SiteLikelihood`.
    ``_start_kernel(scaler)``
        The initial kernel of scikit-learn.
    ``_optimizer()``
        ``"adam"`` where Adam learns the hyperparameters.
    ``_evaluate_posterior(posterior, state)``
        A summary of a posterior, which `_attributes` takes: its ELBO, or leave-one-out predictions.
        The posterior is what ``at(state)`` of the stage returns, such as a `CoordinateAscent`.
    ``_attributes(latents, evaluations, streamed=False)``
        The fitted attributes, a dict, from the `SparseModel` and the summary of each model.
    """

    _has_prior = False  # of the default kernel's hyperparameters
    _followed = _FOLLOWED

    @property
    def _adam_rate(self):
        """Learning rate of Adam."""
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
            rows = WeightedDataset(X, part, weights, *options, origin=origin)
            fits.append(self._fit_latents(run, name, X, weights, rows, start, seed, alone))
        latents, curves, evaluations = zip(*fits, strict=True)
        found = self._attributes(latents, evaluations) | history(*curves)
        run.end(found, partial(self._doubts, X, targets, weights))
        return self

    def _agreed_options(self, X):
        """Return `_torch_options`, after a check that all ranks use devices of one kind."""
        options = run_on_all_ranks(self._torch_options, X)
        check_equal({"device of type": options[0].type})
        return options

    def _one_vs_rest_targets(self, targets):
        """Return the targets of each model to fit, a list."""
        return [targets]

    def _fit_latents(self, run, name, X, weights, rows, start, seed, alone):
        """Fit one model.

        Parameters
        ----------
        run : Run
        name : str
            Prefix of the names of the stages.
        X, weights : ndarray of shape (n, d), (n,)
        rows : WeightedDataset
        start : SparseModel or None
            The fitted model to start from, if any.
        seed : int
        alone : bool
            Whether this is the only model, so that callbacks can ask for fitted attributes.

        Returns
        -------
        latents : SparseModel
        curve : list of float
            Objectives of all iterations.
        evaluation : object
            See `_evaluate_posterior`.
        """
        random_state, generator = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        scaler = feature_scales(X, weights)
        if start is None:
            start = self._first_latents(X, weights, rows, scaler, random_state)
        start, learning = self._learn_hyperparameters(run, name, start, rows, scaler, random_state)
        inference = self._inference(start, rows, scaler, generator)
        tensors = start.state(rows.device)
        state = inference.init(tensors)

        def attributes(state):
            evaluation = self._evaluate_posterior(inference.at(state), state)
            return self._attributes([start.at(state)], [evaluation])

        curve = run.run(
            f"{name}posterior",
            inference,
            state,
            self.max_iter,
            must_converge=not inference.is_exact,
            attributes=attributes if alone else None,
        )
        evaluation = self._evaluate_posterior(inference.at(state), state)
        return start.at(state), learning or curve, evaluation

    def _first_latents(self, X, weights, rows, scaler, random_state):
        """Return the `SparseModel` that a cold fit starts from."""
        noise = tuple(self._make_likelihood().parameters().tolist())
        Z = self._chosen_points(X, weights, rows, random_state)
        kernel, template = self._split_kernel(self._start_kernel(scaler))
        return SparseModel(kernel, Z, noise, template=template)

    def _chosen_points(self, X, weights, rows, random_state):
        if n_ranks() > 1 and isinstance(self.inducing_points, str):
            some = rows.subset(_GATHERED_ROWS + 40 * self.n_inducing, random_state)
            X, _, weights = (part.cpu().numpy() for part in some.take(slice(None)))
        return select_inducing_points(
            X, self.n_inducing, self.inducing_points, weights, random_state
        )

    def _learn_hyperparameters(self, run, name, start, rows, scaler, random_state):
        """Learn hyperparameters before the inference, where a method does so.

        Returns
        -------
        start : SparseModel
            The start of the inference.
        curve : list of float
            Objectives along the way, to be shown in place of those of the inference, or empty.
        """
        return start, []

    def _inference(self, start, rows, scaler, generator):
        """Return the stage that finds the posterior."""
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
        """Return the prior of the default kernel's hyperparameters, or None.

        It is None where the kernel is given, or where hyperparameters are not learned.
        """
        if not self._has_prior or self.kernel is not None or self.optimizer is None:
            return None
        return self._prior_of_default(self._start_kernel(scaler), rows, scaler)

    def _prior_of_default(self, kernel, rows, scaler):
        return few_rows_prior(kernel, rows)

    def _batch_size(self, start, rows):
        """Return the number of rows in a minibatch; None is all rows."""
        return self.batch_size

    def _tolerance(self, rows):
        return self.tol

    def _free_parameters(self, start, rows):
        """Return the names of the tensors that gradient steps train, a list."""
        by_gradient, learned = self.inference == "gradient", self._optimizer() == "adam"
        free = {
            "theta": learned and start.kernel.n_dims > 0,
            "noise": learned and len(start.noise) > 0 and self._noise_is_free(),
            "Z": self.learn_inducing and start.uses_points,
            "mean": by_gradient,
            "raw_root": by_gradient,
        }
        return [name for name, is_free in free.items() if is_free]

    def _latents_attributes(self, latents):
        """Return the fitted attributes that describe the models, a dict."""
        alone = len(latents) == 1
        kernels, Z = [part.whole_kernel for part in latents], [part.Z for part in latents]
        return {
            "kernel_": kernels[0] if alone else CompoundKernel(kernels),
            "inducing_points_": Z[0] if alone else Z,
            "_latents": list(latents),
            "_fitted_parameters": self._parameters_of_fit(),
        }

    def _partial_fit(self, X, y, sample_weight, classes=None):
        """Call `_fit` the first time and `_stream` every further time."""
        self._check_streamed()
        check_same("a model to continue", getattr(self, "_latents", None))
        if not self.__sklearn_is_fitted__():
            self._fit(X, y, sample_weight, classes)
            n_rows = sum(gather(len(y)))
            if n_rows < self.n_inducing and isinstance(self.inducing_points, str):
                warn(
                    f"The first call to {type(self).__name__}.partial_fit fixes the kernel and the "
                    f"inducing points, and it had only {n_rows} rows for "
                    f"n_inducing={self.n_inducing}. Pass more rows to it, or lower n_inducing."
                )
            return self
        return self._stream(X, y, sample_weight, classes)

    def _stream(self, X, y, sample_weight, classes=None):
        """Update the posterior with new rows; it is their prior. Kernel and points stay."""
        run_on_all_ranks(self._check_all_parameters, "partial_fit")
        shown = X
        X, targets, weights, origin = self._check_training_data(
            X, y, sample_weight, classes=classes, reset=False
        )
        problems = self._one_vs_rest_targets(targets)
        options = self._agreed_options(X)
        run = Run(self, shown, y, X, targets, weights, self._latents)
        latents, evaluations, curves = [], [], []
        for old, part in zip(self._latents, problems, strict=True):
            rows = WeightedDataset(X, part, weights, *options, origin=origin)
            stage, state = self._streaming_update(old, rows)
            name, must_converge = f"stream {len(curves)}", not stage.is_exact
            curves.append(run.run(name, stage, state, self.max_iter, must_converge=must_converge))
            latents.append(old.at(state))
            evaluations.append(self._evaluate_posterior(stage.at(state), state))
        run.end(self._attributes(latents, evaluations, streamed=True) | history(*curves))
        return self

    def _streaming_update(self, old, rows):
        """Return the stage that updates a fitted model with new rows, and its first state.

        Parameters
        ----------
        old : SparseModel
            Its posterior is the prior of the rows.
        rows : WeightedDataset

        Returns
        -------
        stage : Stage
            With an attribute ``is_exact``, whether one step finds the posterior, and a method
            ``at(state)``, see `_evaluate_posterior`.
        state : State
        """
        tensors = old.state(rows.device)
        likelihood = self._make_likelihood().at(tensors["noise"])
        ascent = CoordinateAscent(likelihood, old.basis(rows.device), rows)
        ascent.prior = natural_parameters(tensors["mean"], tensors["root"])
        stage = AscentStage(ascent, self._inference_class.sweep, self._tolerance(rows))
        return stage, stage.init(tensors["noise"])
