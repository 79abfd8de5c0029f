"""Base class of the additive estimators: tables, fitting, effects and Sobol indices."""

import math
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real

import numpy as np
import torch
from sklearn.utils import Bunch, check_array, check_random_state, check_X_y
from sklearn.utils.validation import check_is_fitted, validate_data

from .._data import WeightedDataset
from .._distributed import refuse_ranks
from .._doubts import bounds_message, described_end
from .._estimators import FOLLOWED, GPEstimator, history
from .._fitted_models import FittedModel
from .._fitting import Run
from .._isolation import isolated
from .._parameters import ALWAYS, OtherThan, where
from .._validation import check_level, check_number
from ..exceptions import warn
from ._basis import AdditiveBasis
from ._bound import AdditivePosterior
from ._encoding import TableEncoder, categorical_mask, described, refuse_dates
from ._exact import ExactPosterior
from ._exact_learning import ExactGaussianAscent, ExactSiteAscent
from ._grids import Grids
from ._learning import GaussianAscent, SiteAscent
from ._processes import PROFILES
from ._search import TermSearch

_PAIRS = where(interactions=OtherThan(None, 0, []))
_LENGTH_BOUNDS = (0.05, 10.0)  # default
_MAX_PAIRS = 10  # with inducing points and interactions="auto"
_ROUGH = "matern12"  # kernel of pairs, without inducing points only
# sparse="auto" has no inducing points up to this number of rows, and of rows times features.
_MAX_ROWS, _MAX_NUMBERS = 1500, 20_000
# Mean weight of rows with Gaussian noise, above which weights are normalized. That of bootstrap
# samples is below.
_MAX_MEAN_WEIGHT = 2
# `partial_fit` warns if more rows than this, and more than this share, are outside a range.
_MAX_OUTSIDE, _MAX_SHARE_OUTSIDE = 5, 0.05


def takes_more_rows(estimator):
    """Return True if the estimator has ``partial_fit``; raise AttributeError otherwise."""
    if not estimator.sparse:
        raise AttributeError(f"partial_fit needs inducing points; got sparse={estimator.sparse!r}.")
    return True


@dataclass
class AdditiveLatent(FittedModel):
    """Fitted latent function: its basis, hyperparameters, and the arrays of its posterior.

    Attributes
    ----------
    basis : AdditiveBasis
    theta : dict of ndarray
        Logarithms of ``length`` and ``variance``.
    arrays : dict of ndarray
        Constructor arguments of `AdditivePosterior` or `ExactPosterior`.
    form : tuple or None
        Covariance and rank of the posterior; None without inducing points.
    """

    basis: AdditiveBasis
    theta: dict
    arrays: dict
    form: tuple | None
    n_latents = 1

    def at(self, posterior):
        """Return a copy with the arrays of a posterior."""
        arrays = {name: part.cpu().numpy() for name, part in posterior.arrays.items()}
        return replace(self, arrays=arrays)

    def make_posterior(self, device):
        theta, arrays = (
            {name: torch.tensor(part, device=device) for name, part in parts.items()}
            for parts in (self.theta, self.arrays)
        )
        if self.form is None:
            return ExactPosterior(self.basis, theta, **arrays)
        return AdditivePosterior(self.basis.at(theta), arrays["gram"], arrays["cross"], *self.form)


_USES = {
    "rank": where(covariance="precision"),
    "kernel_interaction": _PAIRS,
    "n_inducing_interaction": (_PAIRS, where(sparse=("auto", True))),
}
_FOLLOWED = {"partial_fit": {**FOLLOWED, "batch_size": ALWAYS}}


class AdditiveGP(GPEstimator):
    """Base class of estimators whose latent functions are sums of effects.

    A subclass provides the likelihood (`_make_likelihood`), the prior variance of the constant
    (`_constant`) and whether the noise is Gaussian (`_is_gaussian`).
    """

    _uses, _followed = _USES, _FOLLOWED

    dtype = "float64"  # covariances of smooth effects are too ill-conditioned for single precision

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def _check_parameters(self):
        refuse_ranks(self)
        self._check_choice("kernel", ("rbf", "matern32", "matern52"))
        self._check_choice("kernel_interaction", (None, *PROFILES))
        self._check_choice("scaling", ("power", "minmax"))
        self._check_choice("measure", ("empirical", "uniform"))
        self._check_choice("sparse", ("auto", True, False))
        self._check_choice("covariance", ("full", "precision", "mean_field"))
        self._check_number("rank", 1, integer=True, optional=True)
        self._check_number("n_inducing", 2, integer=True, optional=True)
        if not isinstance(self.n_inducing_interaction, str):
            self._check_number("n_inducing_interaction", 2, integer=True, optional=True)
        else:
            self._check_choice("n_inducing_interaction", ("auto",))
        self._check_number("shrinkage", 0)
        self._check_number("min_gain", 0)
        self._check_number("max_iter", 1, integer=True)
        self._check_number("tol", 0)
        self._check_number("batch_size", 1, integer=True, optional=True)
        if not self.sparse and (self.covariance != "full" or self.batch_size is not None):
            raise ValueError(
                "sparse=False has a full covariance and needs all rows at once; got "
                f"covariance={self.covariance!r}, batch_size={self.batch_size!r}."
            )
        bounds = self.length_scale_bounds
        numbers = np.shape(bounds) == (2,) and all(isinstance(end, Real) for end in bounds)
        if not (numbers and 0 < bounds[0] <= bounds[1] < np.inf):
            raise ValueError(
                f"length_scale_bounds={bounds!r} must be two positive numbers in ascending order."
            )

    # Tables

    def _validated(self, X, reset, **options):
        if reset:
            mask = categorical_mask(self.categorical_features, X)
            self._encoder = None if mask is None else TableEncoder(mask).fit(X)
        refuse_dates(X, None if self._encoder is None else self._encoder.categorical)
        options |= {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
        if self._encoder is None:
            return validate_data(self, X, reset=reset, **options)
        validate_data(self, X, reset=reset, skip_check_array=True)
        check = check_X_y if "y" in options else check_array
        return check(self._encoder.transform(X), estimator=self, **options)

    # Fitting

    def _fit(self, X, y, sample_weight, classes=None, streamed=False):
        self._forget()
        self._check_all_parameters()
        shown = X
        X, targets, weights, origin = self._check_training_data(
            X, y, sample_weight, classes=classes
        )
        rows = WeightedDataset(
            X, targets, weights, self._torch_options(X)[0], torch.float64, origin=origin
        )
        run = Run(self, shown, y, X, targets, weights)
        seed = run.checkpointed("seed", self._draw_seed)
        random_state, generator = np.random.RandomState(seed), torch.Generator().manual_seed(seed)
        n_levels = np.zeros(X.shape[1], int) if self._encoder is None else self._encoder.n_levels
        features = described(X, weights, n_levels, self.scaling)
        learning = self._learning_rows(rows, features)
        basis = self._grids.first(features, learning, self.kernel, self._constant)
        wide = basis.n_weights > rows.n_rows  # inducing points would cost more than exact inference
        exact = self._is_exact(learning, wide, streamed)
        given, most = self._requested_pairs(X.shape[1], exact)
        if self.kernel_interaction == _ROUGH and (given or most) and not exact:
            raise ValueError(
                "kernel_interaction='matern12' is too rough for inducing points, which this fit "
                "has. Set sparse=False, or choose another kernel."
            )
        kernels = self._pair_kernels(exact)
        basis = replace(basis, pair_kernel=kernels[0])
        varying = {j for (j,) in basis.terms}
        given = [pair for pair in given if varying.issuperset(pair)]
        if not exact:
            self._grids.check_pairs(basis, given, most)
            basis = replace(basis, terms=basis.terms + given)
        make = partial(self._exact_ascent if exact else self._ascent, generator=generator)
        first = make if wide else partial(self._ascent, generator=generator)
        ascent = first(basis, learning)
        search = TermSearch(
            run=run,
            ascent=ascent,
            state=ascent.init(self._make_likelihood().parameters()),
            make_ascent=partial(make, rows=learning),
            kernels=kernels,
            exact=exact,
            given=given,
            most=most,
            finer=partial(self._grids.finer, rows=learning),
            max_iter=self.max_iter,
            min_gain=self.min_gain,
            random_state=random_state,
            attributes=self._attributes,
        )
        search.learn("effects")
        search.find_pairs()
        search.prune()
        search.refine()
        if learning is not rows:
            search.reweight(partial(make, rows=rows))
        run.end(self._attributes(search) | history(search.curve), self._doubts)
        return self

    def _doubts(self):
        """Return a message, in a list, if length scales ended on the user's bounds; else []."""
        on_bounds = []
        for latent in self._latents:
            lengths = zip(latent.basis.start()["length"], latent.theta["length"], strict=True)
            for (axis, j), length in lengths:
                bounds, defaults = self.length_scale_bounds, _LENGTH_BOUNDS
                if end := described_end(math.exp(length), bounds, defaults):
                    on_bounds.append(f"the length scale of {self._axis_name(axis, j)} {end}")
        on_bounds = list(dict.fromkeys(on_bounds))  # several latents may have the same
        return [bounds_message(type(self).__name__, on_bounds)] if on_bounds else []

    def _axis_name(self, axis, j):
        """Return the name of a length scale: of an effect, or of a feature in one or all pairs."""
        if axis == "pairs":
            return f"{self._name((j,))} in pairs"
        return (
            self._name(axis)
            if len(axis) == 1
            else f"{self._name((axis[j],))} in {self._name(axis)}"
        )

    def _learning_rows(self, rows, features):
        """Return the rows that learn hyperparameters, large weights normalized to mean one.

        Weights are kept if all features are categories: their effects could otherwise not be
        distinguished from noise.
        """
        numbers = any(not (feature.n_levels or feature.constant) for feature in features)
        heavy = rows.total_weight > _MAX_MEAN_WEIGHT * rows.n_rows
        return rows.with_normalized_weights() if self._is_gaussian() and numbers and heavy else rows

    def _requested_pairs(self, d, exact):
        """Return the pairs that the user listed, and how many others may be found."""
        requested = self.interactions
        if isinstance(requested, str) and requested == "auto":
            return [], math.inf if exact else _MAX_PAIRS
        if requested is None:
            return [], 0
        integer = isinstance(requested, (int, np.integer)) and not isinstance(requested, bool)
        if integer and requested >= 0:
            check_number("interactions", requested, 0, integer=True)
            return [], int(requested)
        names = {name: j for j, name in enumerate(getattr(self, "feature_names_in_", ()))}
        try:
            pairs = [tuple(sorted(names.get(j, j) for j in pair)) for pair in requested]
        except TypeError:
            pairs = [()]

        def is_column(j):
            return isinstance(j, (int, np.integer)) and not isinstance(j, bool) and 0 <= j < d

        for pair in pairs:
            if len(pair) != 2 or pair[0] == pair[1] or not all(map(is_column, pair)):
                raise ValueError(
                    f"interactions={requested!r} must be None, 'auto', the number of pairs to look "
                    "for, or a list of pairs of different features, by name or by number below "
                    f"{d}."
                )
        return sorted(set(pairs)), 0

    def _pair_kernels(self, exact):
        """Return the candidate kernels of pairs, among which the evidence decides."""
        if self.kernel_interaction is not None:
            return [self.kernel_interaction]
        return [_ROUGH, self.kernel] if exact else [self.kernel]

    @property
    def _grids(self):
        sizes = self.n_inducing, self.n_inducing_interaction
        return Grids(*sizes, self.length_scale_bounds, self.measure == "empirical")

    def _ascent(self, basis, rows, generator):
        least = self._grids.least_lengths(basis.n_inducing, basis.n_inducing_pair)
        return self._ascent_of(GaussianAscent, SiteAscent, least, basis, rows, generator)

    def _is_exact(self, rows, wide, streamed):
        """Return whether the fit ends without inducing points.

        ``wide`` is whether there would be more inducing points than rows.
        """
        if self.sparse != "auto":
            return not self.sparse
        if streamed or self.covariance != "full":
            return False
        wide = wide and self.n_inducing is not None
        if not self._is_gaussian():
            learns_noise = len(self._make_likelihood().parameters()) > 0
            return wide and self.batch_size is None and not (learns_noise and rows.are_repeated())
        few = rows.n_rows <= min(_MAX_ROWS, _MAX_NUMBERS / self.n_features_in_)
        return (few or wide) and not rows.are_repeated()

    def _exact_ascent(self, basis, rows, generator):
        least = [self.length_scale_bounds[0]] * 2
        basis = replace(basis, tabled=frozenset(), shares=True)
        basis.measure_by_atoms(rows, self.measure == "empirical")
        return self._ascent_of(ExactGaussianAscent, ExactSiteAscent, least, basis, rows, generator)

    def _ascent_of(self, gaussian, other, least, basis, rows, generator):
        high = self.length_scale_bounds[1]
        limits = [torch.tensor([low, high]).log().to(rows.weights) for low in least]
        form = self.covariance, self.rank
        given = basis, rows, limits, form, self.shrinkage, self.tol
        if self._is_gaussian():
            return gaussian(*given)
        sites, batch_size = self._make_likelihood(), self.batch_size
        return other(*given, sites=sites, batch_size=batch_size, generator=generator)

    def _attributes(self, search):
        """Return the fitted attributes of a `TermSearch`, a dict."""
        ascent, state = search.ascent, search.state
        # New rows need not be at the values of the fit's rows.
        basis = replace(ascent.basis, tabled=frozenset())
        posteriors = ascent.posteriors(state)
        latents = []
        for own, posterior in zip(ascent.latents(state), posteriors, strict=True):
            theta = {kind: own[kind].cpu().numpy() for kind in ("length", "variance")}
            latents.append(AdditiveLatent(basis, theta, {}, posterior.form).at(posterior))
        return {
            **self._described(latents),
            "terms_": list(basis.terms),
            "term_names_": [self._name(term) for term in basis.terms],
            "dropped_terms_": [self._name(term) for term in search.dropped],
            "interaction_scores_": {
                self._name(pair): score.z
                for pair, score in sorted(search.scores.items(), key=lambda item: -item[1].z)
            },
            "sparse_": posteriors[0].form is not None,
            "kernel_interaction_": basis.pair_kernel if basis.pairs else None,
            "elbo_": state.elbo,
            "_likelihood": self.likelihood,
            **self._of_noise(state.noise.cpu()),
        }

    def _of_noise(self, noise):
        """Return fitted attributes of the noise, a dict, from the logarithms of its parameters."""
        return {"_noise": noise.numpy()}

    def _name(self, term):
        names = getattr(self, "feature_names_in_", None)
        return " & ".join(f"x{j}" if names is None else str(names[j]) for j in term)

    # More rows

    def _partial_fit(self, X, y, sample_weight, classes=None):
        """Fit in the first call; in later ones add rows at fixed hyperparameters and terms."""
        self._check_streamed()
        if not self.__sklearn_is_fitted__():
            self._fit(X, y, sample_weight, classes, streamed=True)
            if self.n_inducing is not None and len(y) < self.n_inducing:
                warn(
                    f"The first call to {type(self).__name__}.partial_fit fixes the terms, scales "
                    f"and hyperparameters, and it had only {len(y)} rows. Pass more rows to it."
                )
            return self
        self._check_all_parameters("partial_fit")
        shown = X
        X, targets, weights, origin = self._check_training_data(
            X, y, sample_weight, classes=classes, reset=False
        )
        if self._latents[0].form is None:
            raise ValueError(
                "A fit without inducing points takes no more rows: start with partial_fit, or fit "
                "with sparse=True."
            )
        self._warn_of_new_ranges(X, weights)
        rows = WeightedDataset(
            X, targets, weights, self._torch_options(X)[0], torch.float64, origin=origin
        )
        run = Run(self, shown, y, X, targets, weights, self._latents)
        generator = torch.Generator().manual_seed(run.checkpointed("seed", self._draw_seed))
        ascent = self._ascent(self._latents[0].basis, rows, generator)
        like = rows.weights
        length, variance = (
            like.new_tensor(np.stack([part.theta[kind] for part in self._latents]))
            for kind in ("length", "variance")
        )
        earlier = [
            [like.new_tensor(part.arrays[name]) for name in ("gram", "cross")]
            for part in self._latents
        ]
        noise = like.new_tensor(self._noise)
        state = ascent.init_update(length, variance, noise, earlier)
        curve = run.run("more rows", ascent, state, self.max_iter)
        pairs = zip(self._latents, ascent.posteriors(state), strict=True)
        latents = [latent.at(posterior) for latent, posterior in pairs]
        run.end(self._described(latents) | history(curve))
        return self

    def _warn_of_new_ranges(self, X, weights):
        """Warn of features with many new rows outside the range or the levels of the first call."""
        features = self._latents[0].basis.features
        names = []
        for j in sorted({j for term in self.terms_ for j in term}):
            new = features[j].is_new(X[:, j])
            if new.sum() > _MAX_OUTSIDE and weights[new].sum() > _MAX_SHARE_OUTSIDE * weights.sum():
                names.append(self._name((j,)))
        if names:
            warn(
                f"{type(self).__name__}.partial_fit got many rows with numbers outside the range "
                f"of the first call's, or with categories that it lacked, in {', '.join(names)}. "
                "Such a number counts as the end of the range, and such a category has no effect; "
                "its contribution is attributed to the other terms. Pass rows of the whole range "
                "to the first call, or fit again."
            )

    # Effects

    def _described(self, latents):
        """Return the fitted attributes of the latents, a dict."""
        posteriors = [latent.posterior("cpu") for latent in latents]
        variances = sum(part.variances() for part in posteriors)
        total = variances.sum().clamp_min(torch.finfo(variances.dtype).tiny)
        return {
            "_latents": latents,
            "_fitted_parameters": self._parameters_of_fit(),
            "intercept_": self._of_constant(np.array([part.intercept() for part in posteriors])),
            "sobol_indices_": (variances / total).numpy(),
        }

    def explain(self, X, return_std=False):
        """Return the effect of each term at each row: its contribution to the latent functions.

        ``intercept_ + explain(X).sum(1)`` is the mean of `latent_mean_and_variance`.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool, default=False
            Whether to return posterior standard deviations too. They do not add up, since effects
            are correlated.

        Returns
        -------
        effects : ndarray of shape (n, n_terms) or (n, n_terms, c)
            Effects in the order of ``term_names_``; the last axis is for several latent functions.
            Those of a regressor are in units of y, or of the logarithm of its mean for a Poisson
            likelihood; those of a classifier, in units of the latent functions.
        std : ndarray of the same shape, optional
            Posterior standard deviations.
        """
        mean, std = self._explained(self._check_new(X))
        return (mean, std) if return_std else mean

    @isolated()
    def _explained(self, X, terms=None):
        """Return effects and standard deviations of checked rows, of all or of some terms."""
        terms = range(len(self.terms_)) if terms is None else terms
        places = [1 + place for place in terms]  # after the constant
        posteriors = [part.posterior(self._torch_options(X)[0]) for part in self._latents]

        def moments(rows):
            found = [torch.stack(p.effect_marginals(rows, places), -1) for p in posteriors]
            return torch.stack(found, 2)

        mean, var = np.moveaxis(self._map_rows(moments, X), -1, 0)
        return self._of_effects(mean), self._of_effects(np.sqrt(var))

    @isolated()
    def sobol_indices(self, level=0.95, n_samples=1000, random_state=0):
        """Return each term's share in the variance of the latent functions, with intervals.

        The variance is over independent features, each with its distribution in the training rows
        or a uniform one, see ``measure``. Effects of missing numbers have no share.

        Parameters
        ----------
        level : float, default=0.95
            Probability of the credible intervals.
        n_samples : int, default=1000
            Number of posterior draws, whose quantiles are the intervals.
        random_state : int, RandomState instance or None, default=0
            Seeds the draws.

        Returns
        -------
        indices : Bunch
            ``terms``, the names; ``share``, that of the posterior mean; ``lower`` and ``upper``;
            each (n_terms,).

        Notes
        -----
        Source: Sobol (2001). The terms are orthogonal since their means are zero.
        """
        check_is_fitted(self)
        check_level(level)
        check_number("n_samples", n_samples, 1, integer=True)
        rng, draws = check_random_state(random_state), 0.0
        for latent in self._latents:
            draws = draws + latent.posterior("cpu").drawn_variances(n_samples, rng)
        shares = (draws / draws.sum(1, keepdim=True)).numpy()
        lower, upper = np.quantile(shares, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return Bunch(
            terms=list(self.term_names_), share=self.sobol_indices_, lower=lower, upper=upper
        )
