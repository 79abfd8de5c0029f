"""Which terms an additive model has: pairs by a score test, and what the rows need of all."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from scipy.stats import gamma

from .._fitting import Run, Stage
from ._interactions import score_moments
from ._learning import AdditiveAscent, AdditiveState

_LEVEL = 0.01  # of the test of interactions, all pairs together
_LIKELY, _LEFT = 1.0, 0.1  # likewise without inducing points, at first and later
_PAIRS_AT_ONCE = 5
_CLEAR = 0.05  # nats a row; by less, evidence for smooth pairs of real functions misled


class _FixedRounds(Stage):
    """The rounds of an ascent without its test of convergence, to compare kernels of pairs."""

    def __init__(self, ascent):
        self._ascent = ascent

    def step(self, state):
        self._ascent.step(state)


@dataclass
class TermSearch:
    """A fit on its way: what it has learned, and what it knows of terms.

    Attributes
    ----------
    run : Run
    ascent : AdditiveAscent
        Of the terms so far.
    state : AdditiveState
        Of the ascent.
    more : callable
        From a basis with more terms to their ascent.
    kernels : list of str
        Of pairs: the first, unless another has clearly more evidence.
    exact : bool
        Whether those have no inducing points.
    given : list of tuples of ints
        Pairs that are asked for.
    most : int or inf
        Other pairs that may be kept.
    finer : callable
        From a basis and a state to the basis with finer grids of pairs, or None.
    max_iter : int
        Rounds of a stage.
    min_gain : float
        Nats that a term must add to be kept; 0 keeps all.
    random_state : RandomState
    attributes : callable
        From a search to the fitted attributes of the estimator.
    scores : dict
        Of each pair the standardized score and the probability of a larger one.
    dropped : list of tuples of ints
        Terms.
    curve : list of float
        The bound after each round.
    """

    run: Run
    ascent: AdditiveAscent
    state: AdditiveState
    more: Callable
    kernels: list
    exact: bool
    given: list
    most: float
    finer: Callable
    max_iter: int
    min_gain: float
    random_state: object
    attributes: Callable
    scores: dict = field(default_factory=dict)
    dropped: list = field(default_factory=list)
    curve: list = field(default_factory=list)

    def learn(self, stage):
        """Rounds at the terms so far, until they gain no more."""
        self._run(stage, self.ascent, self.max_iter)

    def _run(self, name, stage, max_iter, **options):
        """Run a stage at the current state, and extend the curve."""
        options["attributes"] = lambda state: self.attributes(replace(self, state=state))
        self.curve += self.run.run(name, stage, self.state, max_iter, **options)

    def find_pairs(self):
        """Add pairs that the user or the rows want, and learn with them."""
        if self.exact:
            found = self._tested(_LIKELY) if self.most else []
            if not (self.given or found or self.ascent.has_points):
                return
            self._grow(self.given + found, "all rows")
        most = math.inf if self.exact and self.most else self.most  # too many go at the end
        while (room := len(self.given) + most - len(self.ascent.basis.pairs)) > 0:
            found = self._tested(_LEFT if self.exact else _LEVEL)
            if not found:
                break
            found = found[: min(_PAIRS_AT_ONCE, room)]
            n_pairs = len(self.ascent.basis.pairs) + len(found)
            self._grow(found, f"effects and {n_pairs} interactions")

    def _tested(self, level):
        """Pairs whose scores are so improbable among all pairs, the largest first."""
        found = self._scores()
        self.scores.update(found)
        return [pair for pair, (_, p) in found.items() if p * len(found) < level]

    def _scores(self):
        """Standardized scores of pairs and probabilities of larger ones, the largest first."""
        ascent = self.ascent
        at = ascent.residuals(self.state, ascent.tested_rows(self.random_state))
        moments = score_moments(ascent.basis, *at, ascent.posteriors(self.state))
        score, mean, var = torch.tensor(list(moments.values()), dtype=torch.float64).view(-1, 3).T
        z = (score - mean) / var.clamp_min(torch.finfo(var.dtype).tiny).sqrt()
        p = torch.ones_like(var)
        some = var > 0
        shape, scale = (mean.square() / var)[some], (var / mean)[some]
        p[some] = torch.as_tensor(gamma.sf(score[some], shape, scale=scale))
        found = dict(zip(moments, zip(z.tolist(), p.tolist(), strict=True), strict=True))
        return dict(sorted(found.items(), key=lambda item: -item[1][0]))

    def _grow(self, pairs, stage):
        """Learn with more pairs, from where the terms so far are; choose their kernel."""
        ascent, state = self.ascent, self.state
        terms, known, tried = ascent.basis.terms + pairs, ascent.named(state), {}
        for kernel in self.kernels if pairs else self.kernels[:1]:
            self.state = state
            self._begin(replace(ascent.basis, terms=terms, pair_kernel=kernel), known)
            if len(self.kernels) > 1 and pairs:
                trial, n_rounds = _FixedRounds(self.ascent), self.ascent.trial_rounds
                self._run(f"{stage}, {kernel} pairs", trial, n_rounds, must_converge=False)
            tried[kernel] = self.ascent, self.state
        if pairs:
            first, *others = self.kernels
            least = tried[first][1].objective + _CLEAR * ascent.rows.total_weight
            best = max(others, key=lambda kernel: tried[kernel][1].objective, default=first)
            best = best if tried[best][1].objective > least else first
            self.kernels, (self.ascent, self.state) = [best], tried[best]
        self.learn(stage)

    def prune(self):
        """Drop terms that the rows do not need, and learn without them."""
        most = len(self.given) + self.most
        self.dropped = self.ascent.prune(self.state, self._least_gain, most)
        if self.dropped:
            self.learn("effects kept")

    def refine(self):
        """Make the grids of pairs finer as long as that gains."""
        while (
            not self.exact
            and (basis := self.finer(self.ascent.basis, self.state.length)) is not None
        ):
            rough = self.ascent, self.state
            self._begin(basis, rough[0].named(rough[1]))
            self.learn(f"interactions on {basis.n_inducing_pair} points")
            gain = self.state.objective - rough[1].objective
            if gain < self.ascent.tol * self.ascent.rows.total_weight:
                self.ascent, self.state = rough
                break

    def weigh(self, more):
        """The posterior under other weights of the rows, with all that was learned held."""
        self.more = more
        self._begin(self.ascent.basis, self.ascent.named(self.state))
        state = self.state
        self.state = self.ascent.init_update(state.length, state.variance, state.noise)
        self.ascent.step(self.state)

    def _begin(self, basis, known):
        """The ascent of a basis, from hyperparameters that are `named`."""
        self.ascent, noise = self.more(basis), self.state.noise
        self.state = self.ascent.init(noise, known)

    def _least_gain(self, term):
        ascent = self.ascent
        chosen = self.exact and len(ascent.basis.features) > ascent.rows.n_rows  # by chance
        if term in self.given or not self.min_gain or (len(term) == 1 and chosen):
            return -math.inf
        if len(term) == 1:
            return self.min_gain
        # At given hyperparameters a pair that is not there exceeds it with this probability.
        chance = (_LIKELY if self.exact else _LEVEL) / len(self.scores)
        return max(self.min_gain, -math.log(chance))
