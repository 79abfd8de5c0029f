"""Selection of the terms of an additive model: a score test adds pairs, gains prune all."""

import math
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scipy.special import gammaincc

from .._data import WeightedDataset
from .._fitting import Stage
from .._problem import Problem
from ._ascent import AdditiveAscent, AdditiveState
from ._ascents import Ascents
from ._defaults import DEFAULTS
from ._effect_test import EffectTest
from ._interactions import score_moments, step_p_values
from ._latent import fitted_latents
from ._terms import ROUGH


class _Trial(Stage):
    """A few rounds of an ascent, accurate enough to compare kernels of pairs."""

    def __init__(self, ascent):
        self._ascent, gain = copy(ascent), DEFAULTS.trial_share * DEFAULTS.clear_gain
        self._ascent.tol = max(ascent.tol, gain / ascent.rows.tolerance_scale)

    def step(self, state):
        self._ascent.step(state)


class PairScore(NamedTuple):
    """Score of a pair of features, standardized by its moments without an interaction."""

    z: float
    p_value: float


def _best_score(moments):
    """Return the `PairScore` of a pair's most significant grid, Bonferroni-corrected.

    Without an interaction, the score is about a gamma variable of its moments.
    """
    scores = []
    for score, mean, var in moments:
        if mean > 0 and var > 0:
            p_value = gammaincc(mean**2 / var, max(score, 0.0) * mean / var)
            z = (score - mean) / math.sqrt(var)
            scores.append(PairScore(z, min(1.0, p_value * len(moments))))
    return min(scores, key=lambda own: (own.p_value, -own.z), default=PairScore(0.0, 1.0))


class _Place(NamedTuple):
    """Where a search is, see `TermSearch._place`."""

    ascent: AdditiveAscent
    state: AdditiveState
    curve: list
    unconverged: dict


@dataclass
class TermSearch:
    """A fit in progress: the current model, its terms, and how terms are selected."""

    problem: Problem
    ascent: AdditiveAscent  # the stage with the current terms
    state: AdditiveState  # of that stage
    ascents: Ascents  # from which further stages are made
    rows: WeightedDataset  # rows to learn from
    # Candidate kernels of pairs. The first is used unless another has clearly more evidence.
    kernels: list
    exact: bool  # whether the fit ends without inducing points
    may_have_points: bool  # whether an exact fit ends with inducing points where they lose little
    given: list  # pairs that the user listed
    kept: list  # terms that the user listed, which are not dropped
    most: float  # maximum number of other pairs, maybe infinity
    steps: bool  # whether features may have steps
    max_iter: int  # maximum number of rounds in a stage
    min_gain: float  # that a term needs to be kept, in nats; 0 keeps all
    # The first terms. Their features may have pairs and steps, even if their effect is dropped.
    candidates: list = field(default_factory=list)
    scores: dict = field(default_factory=dict)  # `PairScore` by pair
    dropped: list = field(default_factory=list)  # terms that were removed
    curve: list = field(default_factory=list)  # the objective after each round

    def fit(self):
        """Run all stages: learn effects, find pairs, prune, and refine the grids of pairs."""
        self.candidates = list(self.ascent.basis.terms)
        self.find_effects()
        if not self.exact:
            self._learn_without(self._drop_each(self._required_gain_of_effect))
        self.find_pairs()
        self.find_steps()
        self.prune()
        self.refine()

    def latents(self):
        """Return the `AdditiveLatent` of each latent function at the current state."""
        return fitted_latents(self.ascent, self.state)

    def learn(self, stage):
        """Run rounds with the current terms until convergence."""
        self._run(stage, self.ascent, self.max_iter)

    def _run(self, name, stage, max_iter, **options):
        """Run a stage at the current state, and extend the curve."""

        def evaluate(state):
            search = replace(self, state=state)
            return [search.latents()], [(self.problem.rows, search)]

        self.curve += self.problem.run_stage(name, stage, self.state, max_iter, evaluate, **options)

    def find_effects(self):
        """Learn the effects that the user listed and those that the score test finds.

        The test is repeated beside the effects that it has found. Where the scale of noise may
        vanish, all effects are learned, and `prune` drops them.
        """
        rest = [] if self._noise_may_vanish else list(filter(self._is_optional, self.candidates))
        if rest:
            self._begin_without(rest)
        self.learn("effects")
        while rest and (found := self._found_among(rest)):
            rest = [term for term in rest if term not in found]
            self._begin_without(rest)
            # A checkpoint finds the state of a stage by its name.
            self.learn(f"{len(self.ascent.basis.terms)} effects")
        self.dropped += rest

    def _begin_without(self, terms):
        """Start the stage of all candidates but some."""
        kept = [term for term in self.candidates if term not in terms]
        self._begin(replace(self.ascent.basis, terms=kept))

    def _found_among(self, terms):
        """Return the effects that join the model, none if their scores may all be chance.

        They are those of smallest p-values, of which an expected share is false (Benjamini and
        Hochberg, 1995), or all if only their sum is no chance.
        """
        n, test = len(terms), EffectTest(self.ascent.basis, terms, *self._residuals())
        p_values = test.p_values()
        order = sorted(terms, key=p_values.get)
        of_all = [n * p_values[order[0]], *test.joint_p_values()]
        if len(of_all) * min(of_all) > DEFAULTS.effect_level:
            return []
        shares = [p_values[term] * n / k for k, term in enumerate(order, 1)]
        numbers = [k for k, share in enumerate(shares, 1) if share <= DEFAULTS.false_effects]
        return order[: max(numbers, default=n)]

    def find_pairs(self):
        """Add the pairs that the user listed and those that the score test finds; learn them."""
        if self.exact:
            found = self._tested(DEFAULTS.first_level) if self.most else []
            if not (self.given or found or self.ascent.has_points):
                return
            basis = self.ascent.basis
            self._add(self.given + found, "all rows")
            if not (self.may_have_points and self._keep_points(basis)):
                self.learn("all rows")
        most = math.inf if self.exact and self.most else self.most  # `prune` removes the excess
        tried = set()
        while (room := len(self.given) + most - len(self.ascent.basis.pairs)) > 0:
            found = [pair for pair in self._tested(DEFAULTS.level) if pair not in tried]
            found = found[: min(DEFAULTS.pairs_at_once, room)]
            tried.update(found)
            found = found if self.exact else self._try(found)
            if not found:
                break
            n_pairs = len(self.ascent.basis.pairs) + (len(found) if self.exact else 0)
            stage = f"effects and {n_pairs} interactions"
            if self.exact:
                self._add(found, stage)
            self.learn(stage)
            if not self.exact:
                poor = self._drop_each(self._required_gain_of_pair)
                self._learn_without(poor)
                if set(found) <= set(poor):
                    break

    def _try(self, pairs):
        """Add pairs; keep and return those that gain a share of what they need in a few rounds."""
        if not pairs:
            return []
        before = self._place()
        self._begin(replace(self.ascent.basis, terms=self.ascent.basis.terms + pairs))
        if not self.min_gain:
            return pairs
        n_rounds = self.ascent.trial_rounds
        self._run(f"first rounds with {pairs}", self.ascent, n_rounds, must_converge=False)
        gained = zip(pairs, self.ascent.gains(self.state, pairs), strict=True)
        least = DEFAULTS.promising_share * self._required_gain(pairs[0])
        poor = [pair for pair, gain in gained if gain <= least]
        if len(poor) == len(pairs):
            self._return_to(before)
        elif poor:
            self.ascent.drop(self.state, poor)
        return [pair for pair in pairs if pair not in poor]

    def find_steps(self):
        """Add steps of the features along which the residuals have structure; learn them.

        The model without them remains if its ELBO is higher. Sums of smooth effects may end at a
        lower optimum beside steps, and would stay there after steps of small gain are dropped.
        """
        if not self.steps:
            return
        p_values = step_p_values(self.ascent.basis, self.candidates, *self._residuals())
        level = DEFAULTS.step_level / max(len(p_values), 1)
        found = [j for j, p_value in p_values.items() if p_value < level]
        if found:
            smooth = self._place()
            self._begin(self.ascents.grids.with_steps(self.ascent.basis, sorted(found), self.rows))
            self.learn("steps")
            if self.state.elbo < smooth.state.elbo:
                self._return_to(smooth)

    def _tested(self, level):
        """Return pairs beside those given that are significant among all (Bonferroni).

        The largest score comes first.
        """
        moments = score_moments(self.ascent.basis, self.candidates, *self._residuals())
        scores = {pair: _best_score(own) for pair, own in moments.items()}
        self.scores.update(scores)
        level /= max(len(scores), 1)
        found = [pair for pair in scores if scores[pair].p_value < level and pair not in self.given]
        return sorted(found, key=lambda pair: -scores[pair].z)

    def _residuals(self):
        """Return X of the tested rows, and how many observations each row is (n,).

        Between them are derivatives of the log densities, and precisions, of one observation.
        """
        rows = self.ascent.tested_rows(self.problem.random_state)
        X, residuals, precisions = self.ascent.residuals(self.state, rows)
        counts = rows.observations.double()
        return X, residuals / counts[:, None], precisions / counts[:, None], counts

    def _keep_points(self, basis):
        """Learn with the inducing points of a basis; return whether the fit goes on with them.

        It does not if they lose evidence, or with rough pairs or more points than rows.
        """
        smooth = [kernel for kernel in self.kernels if kernel != ROUGH]
        n_of_pairs = len(self.ascent.basis.pairs) * basis.n_inducing_pair**2
        if not smooth or basis.n_weights + n_of_pairs > self.ascent.rows.n_rows:
            return False
        exact = self._place()
        evidence, self.exact = self.ascent.elbo(self.state), False
        self._begin(replace(basis, terms=self.ascent.basis.terms, pair_kernel=smooth[0]))
        self.learn("inducing points")
        if self.state.elbo < evidence - DEFAULTS.points_loss:
            self._return_to(exact)
            self.exact = True
            return False
        self.kernels = smooth
        if self.most == math.inf:
            self.most = DEFAULTS.pairs
        return True

    def _add(self, pairs, stage):
        """Add pairs at the current hyperparameters, and choose the kernel of pairs."""
        before, tried = self._place(), {}
        terms = self.ascent.basis.terms + pairs
        kernels = self.kernels if pairs else self.kernels[:1]
        for kernel in kernels:
            self._return_to(before)
            self._begin(replace(self.ascent.basis, terms=terms, pair_kernel=kernel))
            if len(kernels) > 1:
                trial, n_rounds = _Trial(self.ascent), self.ascent.trial_rounds
                self._run(f"{stage}, {kernel} pairs", trial, n_rounds, must_converge=False)
            tried[kernel] = self._place()
        if pairs:
            first, *others = self.kernels
            least = tried[first].state.objective + DEFAULTS.clear_gain
            best = max(others, key=lambda kernel: tried[kernel].state.objective, default=first)
            best = best if tried[best].state.objective > least else first
            self.kernels = [best]
            self._return_to(tried[best])

    def prune(self):
        """Drop terms whose gain is too small, and learn without them.

        Where the scale of noise may vanish, gains beside effects of noise are too large. Effects
        must then gain enough together too, and the others are tested anew without those dropped.
        """
        while True:
            alone = self._drop_each()
            together = self._drop_jointly() if self._noise_may_vanish else []
            self._learn_without(alone + together)
            if not together:
                return

    def _drop_jointly(self):
        """Drop effects that gain too little together, and return them.

        The effects of smallest gain are tested: all but 2^i, with the largest i first, and all.
        """
        effects = [
            term
            for term in self.ascent.basis.terms
            if self._is_effect(term) and self._is_optional(term)
        ]
        if not effects:
            return []
        gained = dict(zip(effects, self.ascent.gains(self.state, effects), strict=True))
        effects.sort(key=gained.get, reverse=True)
        numbers = [2**i for i in range((len(effects) - 1).bit_length())]
        for n_clear in [*reversed(numbers), 0]:
            if self._joint_gain(effects[n_clear:]) < self._required_joint_gain(effects, n_clear):
                self.ascent.drop(self.state, effects[n_clear:])
                return effects[n_clear:]
        return []

    def _required_joint_gain(self, effects, n_clear):
        """Return the gain that effects need together, without the first ``n_clear``, in nats.

        If no feature has an effect, the largest gain of n is about log n, and hyperparameters that
        fit each effect to noise add more, in each of c latent functions; the sum of these gains
        scatters with the root of c. The length of a description counts too, in proportion to
        features per observation: the logarithm of the number of choices of so many features,
        besides clear ones, and half the logarithm of n observations for each and each latent
        function.
        """
        d, n = self._n_columns, self.ascent.rows.n_observations
        k, c = len(effects) - n_clear, len(self.state.length)
        length = math.log(math.comb(d - n_clear, k)) + 0.5 * k * c * math.log(n)
        return math.log(d) + DEFAULTS.joint_gain * math.sqrt(c) * k + length * min(d / n, 1)

    def _drop_each(self, required=None):
        """Drop and return terms while one adds too little to the ELBO, or there are too many pairs.

        ``required`` takes a term and returns the gain it needs, in nats, where -inf keeps the term
        in any case. None is `_required_gain`.

        The poorer half of the terms that add too little is removed at once, if it adds less
        together than the sum of what its terms need; otherwise half of that half, and so on. The
        gains of the other terms are then computed anew, unless they exceed what they need by more
        than that sum.
        """
        ascent, state, required = self.ascent, self.state, required or self._required_gain
        dropped, doubtful = [], ascent.basis.terms
        while True:
            pairs = ascent.basis.pairs
            excess = len(pairs) - len(self.given) - self.most
            needed = {term: required(term) for term in doubtful}
            if excess > 0:
                tested = [pair for pair in pairs if pair not in self.kept]
            else:
                tested = [term for term in doubtful if needed[term] > -math.inf]
            if not tested:
                return dropped
            gained = dict(zip(tested, ascent.gains(state, tested), strict=True))
            if excess > 0:
                going = sorted(tested, key=gained.get)[: (excess + 1) // 2]
            else:
                surplus = {term: gain - needed[term] for term, gain in gained.items()}
                going = self._poor(surplus, needed)
                lost = sum(needed[term] for term in going)
                doubtful = [term for term in tested if surplus[term] <= lost]
            if not going:
                return dropped
            ascent.drop(state, going)
            ascent.learn_noise(state)
            doubtful = [term for term in doubtful if term not in going]
            dropped += going

    def _poor(self, surplus, needed):
        """Return terms of negative surplus that may be dropped together, a list."""
        poor = sorted((term for term in surplus if surplus[term] < 0), key=surplus.get)
        going = poor[: (len(poor) + 1) // 2]
        while len(going) > 1:
            if self.ascent.joint_gain(self.state, going) < sum(needed[term] for term in going):
                break
            going = going[: len(going) // 2]
        return going

    def _learn_without(self, dropped):
        self.dropped += dropped
        if dropped:
            self.learn("effects kept")

    def _joint_gain(self, effects):
        """Return how much some effects add together to the ELBO of all latents, in nats."""
        if not self.ascent.learns_scale:
            return self.ascent.joint_gain(self.state, effects)
        # Sites are as precise as the scale of y that is left with the effects. Without these, both
        # are learned anew.
        whole = self._place()
        terms = [term for term in self.ascent.basis.terms if term not in effects]
        self._begin(replace(self.ascent.basis, terms=terms))
        self.learn("without effects")
        gain = whole.state.elbo - self.state.elbo
        self._return_to(whole)
        return gain

    def refine(self):
        """Refine the grids of pairs as long as the objective gains.

        Finer grids of some pairs may explain what other terms did, which are then dropped.
        """
        while not self.exact:
            basis = self.ascents.grids.finer(self.ascent.basis, self.state.length, self.rows)
            if basis is None:
                return
            coarse = self._place()
            self._begin(basis)
            self.learn(f"interactions on {basis.n_inducing_pair} points")
            gain = self.state.objective - coarse.state.objective
            if gain < self.ascent.tol * self.ascent.rows.tolerance_scale:
                self._return_to(coarse)
                return
            self._learn_without(self._drop_each())

    def reweight(self):
        """Find the posterior under the weights of the problem, with fixed hyperparameters."""
        self.rows = self.problem.rows
        self._begin(self.ascent.basis)
        self.state = self.ascent.held(self.state)
        self.learn("posterior")

    def make_ascent(self, basis):
        """Return the stage of a basis."""
        make = self.ascents.exact if self.exact else self.ascents.sparse
        return make(basis, self.rows)

    def _begin(self, basis):
        """Start the stage of a basis from the current hyperparameters and latents."""
        before = self.ascent, self.state
        self.ascent = self.make_ascent(basis)
        self.state = self.ascent.init(self.state.noise, before)

    def _place(self):
        """Return the model and what leads to it, from which a stage may be tried.

        These are the objectives so far, and the stages that have not converged.
        """
        run = self.problem.run
        return _Place(self.ascent, self.state, list(self.curve), dict(run.unconverged))

    def _return_to(self, place):
        """Reject all stages since a place, so that their rounds and warnings do not count."""
        self.ascent, self.state = place.ascent, place.state
        self.curve, self.problem.run.unconverged = list(place.curve), dict(place.unconverged)

    @property
    def _n_columns(self):
        """Number of features, without point masses and steps."""
        return sum(feature.column is None for feature in self.ascent.basis.features)

    def _is_effect(self, term):
        """Return whether a term is the smooth effect of a feature, or the effect of a category."""
        return len(term) == 1 and self.ascent.basis.features[term[0]].column is None

    def _is_optional(self, term):
        """Return whether a term of one feature may be dropped, as the user did not list it."""
        return len(term) == 1 and self._required_gain(term) > -math.inf

    @property
    def _noise_may_vanish(self):
        """True if the scale of noise is learned, which effects that follow the rows make small."""
        return self.ascent.learns_scale or "noise" in self.ascent.learned

    def _required_gain_of_effect(self, term):
        """Return the gain that a term needs before pairs are found, in nats.

        Effects must not lower the ELBO: idle ones would make every further pass slower. The noise,
        which pairs may explain, hides those that gain little.
        """
        return min(self._required_gain(term), 0.0) if self._is_effect(term) else -math.inf

    def _required_gain_of_pair(self, term):
        """Return the gain that a pair needs before further ones are tested, in nats.

        Idle ones would make every further pass slower.
        """
        return self._required_gain(term) if len(term) == 2 else -math.inf

    def _required_gain(self, term):
        """Return the gain that a term needs to be kept, in nats."""
        ascent = self.ascent
        if term in self.kept or not self.min_gain:
            return -math.inf
        if self._is_effect(term):
            return self.min_gain
        # At fixed hyperparameters, absent effects exceed this gain with at most this probability.
        # It grows with the number of pairs, so that the level is the share of false ones among
        # these (Benjamini and Hochberg, 1995).
        chance = DEFAULTS.exact_gain_level if self.exact else DEFAULTS.gain_level
        if len(term) == 2:
            chance *= len(ascent.basis.pairs) / len(self.scores)
        else:
            features = ascent.basis.features
            n_masses = sum(feature.is_mass for feature in features)
            chance /= n_masses if features[term[0]].is_mass else self._n_columns
        return max(self.min_gain, -math.log(chance))
