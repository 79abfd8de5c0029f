"""Regressors with predictive densities from other libraries, with scikit-learn's interface.

Each is left out if its library is not installed: CatBoost, GPBoost, MAPIE and NGBoost. NGBoost asks
for an older scikit-learn than the tested one, but runs with it: ``pip install --no-deps catboost
gpboost ngboost``. Each peer is fitted as it comes and, where its name says so, lightly tuned: a few
settings are compared, and the number of trees is chosen, by the loss on ten per cent of the rows,
which are held out.
"""

from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeRegressor

from ._harness import Method, sklearn_code

_HELD_OUT, _PATIENCE, _MAX_TREES = 0.1, 50, 3000
_DEPTHS = {"CatBoost": (4, 6, 8), "NGBoost": (3, 5)}
_NEIGHBORS, _CV = 20, 5
MAX_ROWS = 10_000  # of tuned NGBoost and GPBoost
MAX_FEATURES = 10  # of GPBoost


class CatBoost:
    """CatBoost with a mean and a variance for each row (``RMSEWithUncertainty``)."""

    def __init__(self, random_state, *, tuned=False):
        self.random_state, self.tuned = random_state, tuned

    def fit(self, X, y):
        """Fit with the defaults, or with the best of three depths and a number of trees."""
        from catboost import CatBoostRegressor

        def model(**settings):
            return CatBoostRegressor(
                loss_function="RMSEWithUncertainty",
                random_seed=self.random_state,
                thread_count=1,
                verbose=False,
                allow_writing_files=False,
                **settings,
            )

        if not self.tuned:
            self.model = model().fit(X, y)
            return self
        some, held, y, y_held = train_test_split(
            X, y, test_size=_HELD_OUT, random_state=self.random_state
        )
        stop = {"eval_set": (held, y_held), "early_stopping_rounds": _PATIENCE}
        models = [
            model(depth=depth, iterations=_MAX_TREES).fit(some, y, **stop)
            for depth in _DEPTHS["CatBoost"]
        ]
        self.model = min(models, key=lambda m: min(m.best_score_["validation"].values()))
        return self

    def predict(self, X, return_std=False):
        """Return means, and standard deviations."""
        mean, variance = self.model.predict(X).T
        return (mean, np.sqrt(variance)) if return_std else mean


class NGBoost:
    """NGBoost with Gaussian densities."""

    def __init__(self, random_state, *, tuned=False):
        self.random_state, self.tuned = random_state, tuned

    def fit(self, X, y):
        """Fit with the defaults, or with the better of two depths and a number of trees."""
        from ngboost import NGBRegressor

        def model(**settings):
            return NGBRegressor(random_state=self.random_state, verbose=False, **settings)

        if not self.tuned:
            self.model = model().fit(X, y)
            return self
        some, held, y, y_held = train_test_split(
            X, y, test_size=_HELD_OUT, random_state=self.random_state
        )
        stop = {"X_val": held, "Y_val": y_held, "early_stopping_rounds": _PATIENCE}
        models = [
            model(Base=tree, n_estimators=_MAX_TREES).fit(some, y, **stop)
            for depth in _DEPTHS["NGBoost"]
            for tree in [DecisionTreeRegressor(criterion="squared_error", max_depth=depth)]
        ]
        self.model = min(
            models, key=lambda m: m.evals_result["val"]["LOGSCORE"][m.best_val_loss_itr]
        )
        return self

    def predict(self, X, return_std=False):
        """Return means, and standard deviations."""
        found = self.model.pred_dist(X, max_iter=self.model.best_val_loss_itr)
        return (found.loc, found.scale) if return_std else found.loc


class GPBoost:
    """GPBoost's Gaussian process of nearest neighbors (Vecchia), Matern with ARD."""

    def __init__(self, random_state):
        self.random_state = random_state

    def fit(self, X, y):
        """Fit with smoothness 3/2, which had the highest likelihood of three on every set."""
        from gpboost import GPModel

        self.model = GPModel(
            gp_coords=X,
            cov_function="matern_ard",
            cov_fct_shape=1.5,
            gp_approx="vecchia",
            num_neighbors=_NEIGHBORS,
            seed=self.random_state,
            num_parallel_threads=1,
        ).fit(y=y, X=np.ones((len(X), 1)))
        return self

    def predict(self, X, return_std=False):
        """Return means, and standard deviations."""
        found = self.model.predict(
            gp_coords_pred=X, X_pred=np.ones((len(X), 1)), predict_var=True, predict_response=True
        )
        return (found["mu"], np.sqrt(found["var"])) if return_std else found["mu"]


class ConformalBoosting:
    """scikit-learn's gradient boosting with intervals by MAPIE (CV+ over five folds).

    Its density is Gaussian: half the width of the interval of level .683 is the standard deviation.
    """

    def __init__(self, random_state):
        self.random_state = random_state

    def fit(self, X, y):
        """Fit a model to all rows, and one without each of the folds."""
        from mapie.regression import CrossConformalRegressor

        model = HistGradientBoostingRegressor(random_state=self.random_state)
        level = norm.cdf(1) - norm.cdf(-1)
        self.model = CrossConformalRegressor(model, level, cv=_CV, random_state=self.random_state)
        self.model.fit_conformalize(X, y)
        return self

    def predict(self, X, return_std=False):
        """Return means, and standard deviations."""
        mean, intervals = self.model.predict_interval(X)
        low, high = intervals[:, :, 0].T
        return (mean, (high - low) / 2) if return_std else mean


def methods(metrics):
    """Return a `Method` for each of these peers whose library is installed, by name."""

    def method(kind, code, most_rows=np.inf, most_features=np.inf, **settings):
        def fit(X, y, seed, clock):
            if len(X) > most_rows or X.shape[1] > most_features:
                return None
            return kind(seed, **settings).fit(X, y)

        return Method(fit, code, metrics)

    found = {}
    for kind, limits, tuned_limits in (
        (CatBoost, {}, {}),
        (NGBoost, {}, {"most_rows": MAX_ROWS}),
        (GPBoost, {"most_rows": MAX_ROWS, "most_features": MAX_FEATURES}, None),
    ):
        name = kind.__name__
        if find_spec(name.lower()):
            code = f"{name.lower()} {version(name.lower())}"
            found[name] = method(kind, code, **limits)
            if tuned_limits is not None:
                found[f"{name}, tuned"] = method(kind, code, **tuned_limits, tuned=True)
    if find_spec("mapie"):
        code = f"{sklearn_code()}, mapie {version('mapie')}"
        found["gradient boosting, MAPIE"] = method(ConformalBoosting, code)
    return found


def settings():
    """Return descriptions of the peers for a report's header, by name."""
    return {
        "CatBoost": "RMSEWithUncertainty; tuned: "
        f"best of depths {_DEPTHS['CatBoost']}, at most {_MAX_TREES} trees",
        "NGBoost": f"Gaussian; tuned: best of depths {_DEPTHS['NGBoost']}, at most {_MAX_TREES} "
        f"trees, sets of at most {MAX_ROWS} training rows",
        "tuned": f"trees until the density of {_HELD_OUT:.0%} of the rows has not risen for "
        f"{_PATIENCE} trees; these rows are not fitted",
        "GPBoost": f"Vecchia, {_NEIGHBORS} neighbors, Matern 3/2 with ARD, sets of at most "
        f"{MAX_FEATURES} features and {MAX_ROWS} training rows",
        "gradient boosting, MAPIE": f"CV+ of {_CV} folds; Gaussian, its standard deviation half "
        "the interval of level .683",
    }
