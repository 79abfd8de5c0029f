"""Quadruply stochastic training of relevance vector machines."""

from dataclasses import dataclass

import torch

from ._covariances import ChevronSum
from ._relevance import PRECISIONS, BiasedDictionary, joint_precisions
from ._step_state import StochasticState
from ._stochastic import StochasticSteps, with_columns

_MAX_CHANGE = 0.1  # of the logarithms of the precisions in a step
_FIXED_SHARE = 0.1  # of the steps, before the precisions are learned


@dataclass(kw_only=True)
class RelevanceStepsState(StochasticState):
    """`StochasticState` whose functions have learned prior precisions."""

    bases: torch.Tensor  # (M - 1, d): points of the functions; the last function is the constant
    precisions: torch.Tensor  # (c, M): prior precisions of the weights


class RelevanceSteps(StochasticSteps):
    r"""`StochasticSteps` on weights that each have a prior precision, which the steps learn.

    The ELBO's part of the precision s of a weight, with its mean :math:`\mu` and the variance
    :math:`q + 1 / (d + s)` of its optimal covariance, is

    .. math:: \tfrac12 (\log s - s (\mu^2 + q) - \log(d + s)).

    Here d is the data's contribution, and q is the part of the chevron's dense columns. It is
    concave in :math:`\log s` and its maximum has a closed form. Each step moves the logarithms of
    the drawn functions' precisions towards it, which cannot lower it. They move by at most 0.1: the
    maximum is infinite for a mean of zero, where all means start. After each pass, functions that
    are relevant to no latent are removed.

    Steps of "sgd" are scaled by the posterior variances :math:`1 / (d + s)`, since precisions range
    over many orders of magnitude.

    Functions whose precision is above ``threshold`` are irrelevant. The bases are a
    `BiasedDictionary`; the other arguments are those of `StochasticSteps`.

    Source: Evans and Nair, section 4.
    """

    state_class = RelevanceStepsState

    def __init__(self, *args, threshold, **options):
        super().__init__(*args, **options)
        self._threshold, self._n_dense = threshold, options["n_dense"]
        self._n_first_steps = _FIXED_SHARE * self._n_steps

    def init(self, theta, noise, support):
        state = super().init(theta, noise, support)
        own = {"bases": self.bases.points, "precisions": self.bases.precisions.clone()}
        return RelevanceStepsState(**state.as_dict(), **own)

    def step(self, state):
        super().step(state)
        self._prune(state)

    def posterior(self, state):
        self._at(state)
        return super().posterior(state)

    def _prepare(self, state):
        self._at(state)
        super()._prepare(state)

    def _at(self, state):
        """Take the functions and precisions of a state; steps change the latter in place."""
        parts = state.theta, state.bases, state.precisions
        self.bases = BiasedDictionary(self.bases.kernel, *parts)
        self._covariance = ChevronSum(self.bases, min(self._n_dense, self.bases.size))
        self._n_sampled = min(self._solver.n_sampled_basis, self.bases.n_units)

    def _inverse_scale(self, state, at):
        if self._is_adagrad:
            return 1.0
        variances = 1 / (state.data[:, at] + state.precisions[:, at])
        return with_columns(variances, self._covariance.n_dense)

    def _prior_curvature(self):
        # Learned precisions keep steps from diverging; smaller ones would prune fewer functions.
        return 1.0

    def _support_products(self, state):
        # Some of the functions stand for all. Those that no step has drawn have no running sum yet.
        n = self.bases.n_units
        some = torch.linspace(0, n - 1, self._n_sampled, device=state.coef.device).long()
        values = self.bases.sampled(state.support, some)
        coordinates, _ = self.bases.coordinates(some)
        share = torch.full_like(values[0], n / max(self._n_sampled, 1))
        share[-1] = 1.0
        data = state.n_seen * state.mean_precision[:, None] * values.square().mean(0)
        scale = share / (data + state.precisions[:, coordinates])
        return (values * scale[:, None]) @ values.T

    def _update_coefficients(self, state, estimates, linear, precision):
        at = super()._update_coefficients(state, estimates, linear, precision)
        if state.n_steps >= self._n_first_steps:
            self._learn_prior(state, at)
        return at

    def _learn_prior(self, state, at):
        """Move the logarithms of the precisions at an index towards the maximum of the bound."""
        c, k = len(state.precisions), self._covariance.n_dense
        columns = state.coef[c:, at].view(c, k, len(at)).square().sum(1)
        squares = state.coef[:c, at].square() + columns
        # The variance of a dense column's own function does not depend on its precision.
        data = torch.where(at < k, torch.inf, state.data[:, at])
        best = joint_precisions(squares.sqrt(), data).clamp(*PRECISIONS)
        old = state.precisions[:, at]
        change = (best / old).log().clamp(-_MAX_CHANGE, _MAX_CHANGE)
        state.precisions[:, at] = old * change.exp()

    def _prune(self, state):
        """Remove all functions that are relevant to no latent, except the constant."""
        kept = (state.precisions < self._threshold).any(0)
        kept[-1] = True
        if kept.all():
            return
        (kept,) = torch.where(kept)
        c, k = len(state.precisions), self._covariance.n_dense
        dense = kept[kept < k]
        # A removed function takes its dense column along; the next one without gets a column.
        new = kept[len(dense) : k]
        diag = self._covariance.diag(state, new)

        def pruned(part, on_diagonal):
            columns = part[c:].view(c, k, part.shape[1])
            more = part.new_zeros(c, len(new), part.shape[1])
            more[:, range(len(new)), new] = on_diagonal
            columns = torch.cat([columns[:, dense], more], 1).flatten(0, 1)
            return torch.cat([part[:c], columns])[:, kept]

        state.coef = pruned(state.coef, diag)
        if state.squared_gradients is not None:
            state.squared_gradients = pruned(state.squared_gradients, 0.0)
        for name in ("precisions", "coef_sum", "last_averaged", "data", "counts"):
            setattr(state, name, getattr(state, name)[..., kept])
        state.bases = state.bases[kept[:-1]]
        self._restart_average(state)
        self._at(state)
        state.at_support = self.bases.mean(state.support, state.coef)
