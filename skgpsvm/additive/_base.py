"""Base class of the additive estimators: tables, fitting, effects and Sobol indices."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Literal, overload

import numpy as np
import torch
from sklearn.utils import Bunch, check_array, check_random_state, check_X_y
from sklearn.utils.validation import check_is_fitted, validate_data

from .._distributed import check_equal, refuse_ranks
from .._estimators import FOLLOWED, GPEstimator
from .._isolation import isolated
from .._parameters import ALWAYS, OtherThan, ParameterRules, where
from .._problem import Fitted
from .._rows import FLOATS, is_source
from .._typing import MatrixLike, RandomStateLike
from .._validation import check_level, check_number
from ..exceptions import warn
from ._ascents import Ascents
from ._defaults import DEFAULTS
from ._description import described, new_features
from ._encoding import TableEncoder, categorical_mask, refuse_dates, with_objects_as_numbers
from ._grids import Grids
from ._latent import doubts_of_bounds, update_state
from ._processes import PROFILES
from ._search import TermSearch
from ._terms import TermNames, check_interactions, of_features, pair_kernels

_IMPORTANCE_ROWS = 1000
_PAIRS = where(interactions=OtherThan(None, 0)) | where(terms=OtherThan(None))


def takes_more_rows(estimator):
    """Return True if the estimator has ``partial_fit``; raise AttributeError otherwise."""
    if not estimator.sparse:
        raise AttributeError(f"partial_fit needs inducing points; got sparse={estimator.sparse!r}.")
    return True


USES = {
    "rank": where(covariance="precision"),
    "kernel_interaction": _PAIRS,
    "n_inducing_interaction": (_PAIRS, where(sparse=("auto", True))),
}
FOLLOWED_BY_STREAMS = {"partial_fit": {**FOLLOWED, "batch_size": ALWAYS}}


class AdditiveGP(GPEstimator):
    """Base class of estimators whose latent functions are sums of effects.

    A subclass provides the likelihood (`_make_likelihood`), the prior variance of the constant
    (`_constant`), and the units of the intercept and of effects (`_of_constant`,
    `_effect_units`).
    """

    _information = 1.0  # see `Grids`
    _rules = ParameterRules(uses=USES, followed=FOLLOWED_BY_STREAMS)

    dtype = "float64"  # covariances of smooth effects are too ill-conditioned for single precision

    # Fitted attributes
    terms_: list[tuple[int, ...]]
    term_names_: list[str]
    dropped_terms_: list[str]
    interaction_scores_: dict[str, float]
    intercept_: float | np.ndarray
    sobol_indices_: np.ndarray
    feature_importances_: np.ndarray
    kernel_interaction_: str | None
    sparse_: bool
    elbo_: float

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def _check_parameters(self):
        self._check_choice("kernel", ("rbf", "matern32", "matern52"))
        self._check_choice("kernel_interaction", (None, *PROFILES))
        self._check_choice("scaling", ("power", "minmax"))
        self._check_choice("measure", ("empirical", "uniform"))
        self._check_choice("point_masses", ("auto", None))
        self._check_choice("steps", ("auto", None))
        self._check_choice("sparse", ("auto", True, False))
        self._check_choice("covariance", ("full", "precision", "mean_field"))
        check_interactions(self.interactions)
        self._check_number("rank", 1, integer=True, besides=(None,))
        for name in ("n_inducing", "n_inducing_interaction"):
            self._check_number(name, 2, integer=True, besides=("auto", None))
        self._check_number("shrinkage", 0)
        self._check_number("min_gain", 0)
        self._check_number("max_iter", 1, integer=True)
        self._check_number("tol", 0)
        self._check_number("batch_size", 1, integer=True, besides=(None,))
        if not self.sparse and (self.covariance != "full" or self.batch_size is not None):
            raise ValueError(
                "sparse=False has a full covariance and needs all rows at once; got "
                f"covariance={self.covariance!r}, batch_size={self.batch_size!r}."
            )
        if self._constraint and not self.sparse:
            raise ValueError(f"{self._constraint} needs inducing points; got sparse=False.")
        bounds = self.length_scale_bounds
        numbers = np.shape(bounds) == (2,) and all(isinstance(end, Real) for end in bounds)
        if not (numbers and 0 < bounds[0] <= bounds[1] < np.inf):
            raise ValueError(
                f"length_scale_bounds={bounds!r} must be two positive numbers in ascending order."
            )

    @property
    def _constraint(self):
        """Name of a parameter that constrains effects, or None."""
        names = ("monotonic_cst", "convex_cst")
        return next((name for name in names if getattr(self, name) is not None), None)

    # Tables

    def _validated(self, X, reset, **options):
        if reset:
            mask = categorical_mask(self.categorical_features, X)
            self._encoder = None if mask is None else TableEncoder(mask).fit(X)
        categorical = None if self._encoder is None else self._encoder.categorical
        refuse_dates(X, categorical)
        X = with_objects_as_numbers(X, categorical)
        options["ensure_all_finite"] = "allow-nan"
        if self._encoder is None or is_source(X):
            transform = self._encoder and self._encoder.transform
            return super()._validated(X, reset, transform=transform, **options)
        options["dtype"] = FLOATS
        if not hasattr(X, "columns"):
            # Refuses one axis; a rank may have no rows.
            no_limits = {"ensure_all_finite": False, "ensure_min_samples": 0}
            check_array(X, dtype=None, estimator=self, **no_limits)
        validate_data(self, X, reset=reset, skip_check_array=True)
        check = check_X_y if "y" in options else check_array
        return check(self._encoder.transform(X), estimator=self, **options)

    def _check_rows(self, X, y, sample_weight, reset, **options):
        X, y, weights = super()._check_rows(X, y, sample_weight, reset, **options)
        if reset:
            mask = None if self._encoder is None else self._encoder.categorical.tolist()
            check_equal({"categorical features": mask})
        if reset and self._encoder is not None:
            X = self._encoder.with_levels_of_all_ranks(X)
        return X, y, weights

    # Fitting

    def _fit_model(self, problem, sparse=None):
        """Learn effects, select terms, and return the latent functions and their `TermSearch`."""
        sparse = self.sparse if sparse is None else sparse
        X, rows = problem.X, problem.rows
        n_levels = np.zeros(X.shape[1], int) if self._encoder is None else self._encoder.n_levels
        requested = self._names.requested(
            self.terms, n_levels > 0, self.monotonic_cst, self.convex_cst
        )
        masses = self.point_masses is not None
        features = described(X, problem.weights, n_levels, self.scaling, requested, masses=masses)
        ascents = self._ascents(problem.generator)
        learning = ascents.learning_rows(rows, features) if self._weights_count_rows() else rows
        basis = ascents.grids.first(
            features, learning, self.kernel, self._constant, requested.singles
        )
        wide = basis.n_weights > rows.n_rows  # inducing points would cost more than exact inference
        exact = not requested.constrained and ascents.is_exact(sparse, learning, wide)
        if exact:
            refuse_ranks(f"{type(self).__name__} without inducing points", "Set sparse=True.")
        given, most = requested.pairs, requested.most_pairs(self.interactions, exact)
        kernels = pair_kernels(self.kernel_interaction, self.kernel, given or most, exact)
        basis = replace(basis, pair_kernel=kernels[0])
        given = [pair for pair in given if not any(features[j].constant for j in pair)]
        if not exact:
            ascents.grids.check_pairs(basis, given, most)
            basis = replace(basis, terms=basis.terms + given)
        ascent = (ascents.exact if exact and wide else ascents.sparse)(basis, learning)
        search = TermSearch(
            problem=problem,
            ascent=ascent,
            state=ascent.init(self._first_parameters(rows)),
            ascents=ascents,
            rows=learning,
            kernels=kernels,
            exact=exact,
            may_have_points=ascents.may_have_points(sparse, learning, wide),
            given=given,
            kept=requested.kept,
            most=most,
            steps=self.steps is not None,
            max_iter=self.max_iter,
            min_gain=self.min_gain,
        )
        search.fit()
        if learning is not rows:
            search.reweight()
        return Fitted(search.latents(), search.curve, (rows, search))

    def _first_parameters(self, rows):
        """Return the log parameters of the likelihood from which a fit starts, a tensor (k,)."""
        return self._make_likelihood().parameters()

    def _first_call_updates(self):
        return True

    def _update_model(self, problem):
        """Fit in the first call; in later ones add rows at fixed hyperparameters and terms."""
        if problem.start is None:
            fitted = self._fit_model(problem, sparse=True)
            few = DEFAULTS.min_auto_points if self.n_inducing == "auto" else self.n_inducing
            if few is not None and problem.rows.n_rows < few:
                warn(
                    f"The first call to {type(self).__name__}.partial_fit fixes the terms, scales "
                    f"and hyperparameters, and it had only {problem.rows.n_rows} rows. Pass more "
                    "rows to it."
                )
            return fitted
        if problem.start.form is None:
            raise ValueError(
                "A fit without inducing points takes no more rows: start with partial_fit, or fit "
                "with sparse=True."
            )
        basis, names = problem.start.basis, self._names
        columns = sorted({j for term in self.terms_ for j in term})
        if new := new_features(basis.features, columns, problem.X, problem.weights):
            warn(
                f"{type(self).__name__}.partial_fit got many rows with numbers outside the range "
                "of the first call's, or with categories that it lacked, in "
                f"{', '.join(names.term((j,)) for j in new)}. "
                "Such a number counts as the end of the range, and such a category has no effect; "
                "its contribution is attributed to the other terms. Pass rows of the whole range "
                "to the first call, or fit again."
            )
        basis = replace(basis, tabled={})  # new rows need not be at the values of the first ones
        ascent = self._ascents(problem.generator).sparse(basis, problem.rows)
        state = update_state(ascent, self._latents, self._noise)
        curve = problem.run.run("more rows", ascent, state, self.max_iter)
        pairs = zip(self._latents, ascent.posteriors(state), strict=True)
        latents = [latent.at(posterior) for latent, posterior in pairs]
        return Fitted(latents, curve, (problem.rows, None))

    def _doubts(self, X, targets, weights):
        bounds = self.length_scale_bounds
        return doubts_of_bounds(type(self).__name__, self._latents, bounds, self._names)

    @property
    def _names(self):
        return TermNames(getattr(self, "feature_names_in_", ()))

    def _ascents(self, generator):
        sizes = self.n_inducing, self.n_inducing_interaction
        return Ascents(
            grids=Grids(
                *sizes, self.length_scale_bounds, self.measure == "empirical", self._information
            ),
            sites=self._make_likelihood(),
            form=(self.covariance, self.rank),
            shrinkage=self.shrinkage,
            tol=self.tol,
            batch_size=self.batch_size,
            generator=generator,
        )

    def _fitted_attributes(self, models, summaries, streamed=False):
        [latents], [(rows, search)] = models, summaries
        basis = latents[0].basis
        names = replace(self._names, features=basis.features)
        posteriors = [latent.posterior("cpu") for latent in latents]
        of_mean = posteriors[: self._n_mean_latents]
        attributes = {
            "_latents": latents,
            "_fitted_parameters": self._rules.memory(self),
            "intercept_": self._of_constant(np.array([part.intercept() for part in of_mean])),
            "sobol_indices_": _shares(of_mean),
            "feature_importances_": _importances(latents[0].basis, of_mean, rows),
        }
        if search is None:  # more rows change nothing else
            return attributes
        state = search.state
        return {
            **attributes,
            "terms_": [basis.in_columns(term) for term in basis.terms],
            "term_names_": [names.term(term) for term in basis.terms],
            "dropped_terms_": [names.term(term) for term in search.dropped],
            "interaction_scores_": {
                names.term(pair): score.z
                for pair, score in sorted(search.scores.items(), key=lambda item: -item[1].z)
            },
            "sparse_": latents[0].form is not None,
            "kernel_interaction_": basis.pair_kernel if basis.pairs else None,
            "elbo_": state.elbo,
            "_likelihood": self.likelihood,
            **self._of_noise(state.noise.cpu()),
        }

    def _of_noise(self, noise):
        """Return fitted attributes of the noise, a dict, from the logarithms of its parameters."""
        return {"_noise": noise.numpy()}

    # Effects

    _n_mean_latents = None  # latents of the mean, which come first; None is all

    @property
    def _mean_latents(self):
        return self._latents[: self._n_mean_latents]

    @overload
    def explain(self, X: MatrixLike, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def explain(
        self, X: MatrixLike, return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def explain(
        self, X: MatrixLike, return_std: bool
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...

    def explain(
        self, X: MatrixLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
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
            Those of a regressor are in units of y, or of the logarithm of its mean if that is the
            link; those of a classifier, in units of the latent functions.
        std : ndarray of the same shape, optional
            Posterior standard deviations.
        """
        found = self._explained(self._check_new(X))
        mean, std = (self._outputs(part[..., : self._n_mean_latents]) for part in found)
        return (mean, std) if return_std else mean

    @isolated()
    def _explained(self, X, terms=None):
        """Return effects and standard deviations, (n, k, c), of all terms or k at checked rows."""
        terms = range(len(self.terms_)) if terms is None else terms
        places = [1 + place for place in terms]  # after the constant
        posteriors = [part.posterior(self._torch_options(X)[0]) for part in self._latents]

        def moments(rows):
            found = [torch.stack(p.effect_marginals(rows, places), -1) for p in posteriors]
            return torch.stack(found, 2)

        mean, var = np.moveaxis(self._map_rows(moments, X), -1, 0)
        return mean * self._effect_units, np.sqrt(var) * self._effect_units

    @isolated()
    def _absolute_effects(self, X, n_samples, rng):
        """Return mean absolute effects (n_terms,) over checked rows, and those of draws.

        The draws are (n_samples, n_terms). Both are sums over the latent functions of the mean.
        """
        X, found, drawn = torch.tensor(np.asarray(X), dtype=torch.float64), 0.0, 0.0
        units = np.broadcast_to(self._effect_units, len(self._latents))
        for latent, unit in zip(self._mean_latents, units, strict=False):
            part = latent.posterior("cpu")
            found += unit * part.effect_means(X).abs().mean(0).numpy()
            drawn += unit * part.drawn_effects(X, n_samples, rng).abs().mean(1).numpy()
        return found, drawn

    @isolated()
    def _drawn_effects(self, X, n_samples, rng):
        """Return draws (n_samples, n, n_terms, c) of the effects at checked rows."""
        X = torch.tensor(np.asarray(X), dtype=torch.float64)
        posteriors = [latent.posterior("cpu") for latent in self._latents]
        found = [part.drawn_effects(X, n_samples, rng).numpy() for part in posteriors]
        return np.stack(found, -1) * self._effect_units

    def _of_features(self, importances):
        """Return importances (..., d) of features from those of terms (..., n_terms)."""
        return of_features(self.terms_, importances, self.n_features_in_)

    def _shares_in(self, place):
        """Return the terms' shares in the variance of a latent; those of the mean are together."""
        if place < len(self._mean_latents):
            return self.sobol_indices_
        return _shares([self._latents[place].posterior("cpu")])

    @isolated()
    def sobol_indices(
        self, level: float = 0.95, n_samples: int = 1000, random_state: RandomStateLike = 0
    ) -> Bunch:
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
        for latent in self._mean_latents:
            draws = draws + latent.posterior("cpu").drawn_variances(n_samples, rng)
        shares = (draws / draws.sum(1, keepdim=True)).numpy()
        lower, upper = np.quantile(shares, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return Bunch(
            terms=list(self.term_names_), share=self.sobol_indices_, lower=lower, upper=upper
        )


def _shares(posteriors):
    """Return each term's share in the variance of the sum of terms, (n_terms,)."""
    variances = sum(part.variances() for part in posteriors)
    return (variances / variances.sum().clamp_min(torch.finfo(variances.dtype).tiny)).numpy()


def _importances(basis, posteriors, rows):
    """Return the importance of each feature (d,), from equally spaced rows of a fit."""
    X, _, weights = rows.part(rows.spaced(_IMPORTANCE_ROWS)).take(slice(None))
    X, weights = X.cpu(), weights.cpu()
    effects = sum(part.effect_means(X).abs() for part in posteriors)
    of_terms = rows.sum(weights @ effects)[0].numpy()
    terms = [basis.in_columns(term) for term in basis.terms]
    found = of_features(terms, of_terms, X.shape[1])
    return found / max(found.sum(), np.finfo(found.dtype).tiny)
