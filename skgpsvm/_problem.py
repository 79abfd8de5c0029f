"""One model to fit, and what a fit of it gives."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import joblib
import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

from ._data import WeightedDataset
from ._fitted_models import FittedModel
from ._fitting import Run, Stage, State

N_INDUCING = 256  # inducing points where the estimator chooses their number


class Fitted(NamedTuple):
    """Result of the fit of one model."""

    # A `FittedModel`, or a list: one for each latent function, if they are fitted together
    model: Any
    curve: list  # of float: objectives of all iterations
    # What the fitted attributes need besides the model: its ELBO, or leave-one-out predictions
    summary: Any


@dataclass
class Problem:
    """One model to fit: its rows, its random numbers, and the run that it is a part of."""

    run: Run
    prefix: str  # of the names of its stages; not empty where an estimator fits several models
    # X (n, d), weights (n,): validated features and weights
    X: np.ndarray
    weights: np.ndarray
    rows: WeightedDataset  # the same with the targets of this model, on the device
    start: FittedModel | None  # the fitted model to start from, if any
    learns: bool  # whether hyperparameters are learned; a start is kept if few rows were added
    draw_seed: Any  # returns the seed of the fit
    fit_scaler: Any  # returns the scaler of the features, which all models of an estimator share
    # Takes models and their summaries and returns the fitted attributes, for callbacks that ask for
    # the estimator in the middle of a fit. None where one model is not the whole estimator.
    attributes: Any = None
    shared: dict = field(default_factory=dict)  # results of `drawn`, for all models of an estimator

    @cached_property
    def seed(self) -> int:
        """Seed of the fit, an integer; a resumed fit has the same."""
        return self.draw_seed()

    @cached_property
    def random_state(self) -> np.random.RandomState:
        return np.random.RandomState(self.seed)

    def drawn(self, key: tuple, draw) -> Any:
        """Return what ``draw`` returns by random numbers, shared by models that would draw alike.

        They do if their random numbers and ``key`` are the same. The key says what the result
        depends on besides X and the weights.
        """
        key = *key, joblib.hash(self.random_state.get_state())
        if key not in self.shared:
            self.shared[key] = draw(), self.random_state.get_state()
        found, after = self.shared[key]
        self.random_state.set_state(after)
        return found

    @cached_property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def scaler(self) -> StandardScaler:
        """Scales of the features, see `feature_scales`."""
        return self.fit_scaler()

    @property
    def is_isotropic(self) -> bool:
        """True if all features have one unit, as of sparse X; default kernels have one length."""
        return len(self.scaler.scale_) < self.rows.X.shape[1]

    @property
    def scale(self) -> torch.Tensor:
        """Units of the features, a tensor (d,) on the device."""
        scale = torch.tensor(self.scaler.scale_, device=self.rows.device)
        return scale.expand(self.rows.X.shape[1])

    def run_stage(
        self, name: str, stage: Stage, state: State, max_iter: int, evaluate=None, **options
    ) -> list[float]:
        """Run a stage, see `Run.run`.

        ``evaluate`` takes the state and returns a list with the model, and one with its summary.
        """
        if evaluate is not None and self.attributes is not None:
            options["attributes"] = lambda state: self.attributes(*evaluate(state))
        return self.run.run(f"{self.prefix}{name}", stage, state, max_iter, **options)
