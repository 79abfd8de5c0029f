"""Parameters of all estimators: checks, effects or refusal in each mode, later changes."""

import inspect
import pickle
import re
import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.model_selection import GridSearchCV

import skgpsvm
from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
    _parameters,
)
from skgpsvm.exceptions import DivergenceError
from skgpsvm.hybrid import MLP
from skgpsvm.solvers import (
    Collapsed,
    ConjugateGradients,
    ConvergedEP,
    CoordinateAscent,
    Gradient,
    InterleavedEP,
    NaturalGradient,
    QuadruplyStochastic,
    StochasticGradient,
)

RNG = np.random.default_rng(0)
X = np.exp(0.7 * RNG.normal(size=(40, 2)))
SIGNAL = np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] * X[:, 1]
TARGET = SIGNAL + 0.2 * RNG.normal(size=40)
LABELS = np.digitize(SIGNAL + 0.1 * RNG.normal(size=40), np.quantile(SIGNAL, [0.33, 0.66]))
# Targets of likelihoods that do not take TARGET.
WAVE = 0.5 + 0.4 * np.sin(2 * X[:, 0])
TARGETS = {
    "poisson": RNG.poisson(np.exp(1 + SIGNAL)),
    "negative_binomial": RNG.poisson(np.exp(1 + SIGNAL) * RNG.gamma(2, 0.5, size=40)),
    "gamma": np.exp(SIGNAL) * RNG.gamma(4, 0.25, size=40),
    "beta": RNG.beta(*(20 * np.array([WAVE, 1 - WAVE]))),
}
OTHER_LIKELIHOODS = ["heteroscedastic", *TARGETS]
KINDS = [
    kind for kind in (getattr(skgpsvm, name) for name in skgpsvm.__all__) if isinstance(kind, type)
]


def without(options, *names):
    return {name: value for name, value in options.items() if name not in names}


# A kernel with a single set of initial length scales, so that learning is quick.
LEARNED = {
    "kernel": 1.5 * RBF(1.0, "fixed"),
    "n_inducing": 5,
    "random_state": 0,
    "tol": 0.0,
    "max_iter": 8,
}
STILL = LEARNED | {"optimizer": None, "learn_inducing": False, "max_iter": 4}
SGD = without(STILL, "tol") | {"n_mean_bases": 12}
STEPS = without(STILL, "tol") | {"n_basis": 20}
FEW_STEPS = {"batch_size": 15, "n_sampled_basis": 6}
RVM = {"random_state": 0, "tol": 0.0, "max_iter": 10}
ADDITIVE = {"random_state": 0, "tol": 0.0, "max_iter": 4}
PAIR = ADDITIVE | {"terms": [..., (0, 1)], "interactions": None}
HYBRID = {
    "random_state": 0,
    "n_inducing": 5,
    "max_iter": 4,
    "module_params": {"hidden_layer_sizes": (6,), "n_outputs": 3},
}
STOPPED = HYBRID | {"max_iter": 12, "batch_size": 3, "learning_rate": 0.03, "n_iter_no_change": 2}
MODES = {
    "SVC": BayesianSVC(**STILL),
    "SVC, gradient": BayesianSVC(**STILL, solver="gradient"),
    "SVGP classifier": SVGPClassifier(**STILL),
    "SVGP classifier, gradient": SVGPClassifier(**STILL, solver="gradient"),
    "SVGP classifier, ordinal": SVGPClassifier(**STILL, likelihood="ordinal"),
    "SVGP regressor": SVGPRegressor(**STILL),
    "SVGP regressor, natural": SVGPRegressor(**STILL, solver="natural_gradient"),
    "EP": EPClassifier(**STILL),
    "decoupled regressor": DecoupledGPRegressor(**STILL, n_mean_bases=12),
    "decoupled regressor, SGD": DecoupledGPRegressor(
        **SGD, solver=StochasticGradient(batch_size=15)
    ),
    "decoupled classifier": DecoupledGPClassifier(**STILL | {"max_iter": 20}, n_mean_bases=12),
    "QS regressor": QSGPRegressor(**STILL, n_basis=20),
    "QS regressor, chevron": QSGPRegressor(**STILL, n_basis=20, covariance="chevron"),
    "QS regressor, SGD": QSGPRegressor(
        **STEPS, solver=QuadruplyStochastic(**FEW_STEPS, n_support=10)
    ),
    "QS classifier, AdaGrad": QSGPClassifier(
        **STEPS, solver=QuadruplyStochastic("adagrad", **FEW_STEPS, n_support=10)
    ),
    "RVM regressor": QSRVMRegressor(**RVM, optimizer=None),
    "RVM classifier": QSRVMClassifier(**RVM, optimizer=None, covariance="mean_field"),
    "RVM regressor, stochastic": QSRVMRegressor(
        **without(RVM, "tol"),
        optimizer=None,
        solver=QuadruplyStochastic(**FEW_STEPS, n_support=10),
    ),
    "additive regressor": AdditiveGPRegressor(**ADDITIVE, sparse=True),
    "additive classifier": AdditiveGPClassifier(**ADDITIVE, sparse=True, interactions=None),
    "hybrid SVC": HybridBayesianSVC(**HYBRID),
    "hybrid SVGP classifier": HybridSVGPClassifier(**HYBRID, early_stopping=False),
    "hybrid SVGP regressor": HybridSVGPRegressor(**HYBRID, early_stopping=False),
}
for each in OTHER_LIKELIHOODS:
    MODES |= {
        f"SVGP regressor, {each}": SVGPRegressor(**STILL, likelihood=each),
        f"additive regressor, {each}": AdditiveGPRegressor(
            **ADDITIVE | {"max_iter": 6}, sparse=True, likelihood=each, interactions=None
        ),
    }
SLOW_MODES = {
    "EP, GFITC": EPClassifier(**LEARNED | {"max_iter": 2}, solver="gfitc", learn_inducing=False),
    "SVC, learned": BayesianSVC(**LEARNED | {"kernel": 1.5 * RBF([1.0, 1.0])}),
    "SVC, ovr": BayesianSVC(**STILL, multi_class="ovr"),
    "SVC, Adam": BayesianSVC(**LEARNED, learn_inducing=True),
    "SVC, minibatches": BayesianSVC(
        **LEARNED, solver=CoordinateAscent(batch_size=15), optimizer="adam"
    ),
    "SVGP classifier, learned": SVGPClassifier(**LEARNED),
    "SVGP classifier, minibatches": SVGPClassifier(
        **LEARNED, solver=NaturalGradient(batch_size=15)
    ),
    "SVGP regressor, learned": SVGPRegressor(**LEARNED),
    "SVGP regressor, exact": SVGPRegressor(**without(LEARNED, "n_inducing")),
    "SVGP regressor, collapsed": SVGPRegressor(**LEARNED, solver="collapsed"),
    "SVGP regressor, gradient": SVGPRegressor(**LEARNED, solver="gradient"),
    "SVGP regressor, Laplace": SVGPRegressor(**LEARNED, likelihood="laplace"),
    "EP, learned": EPClassifier(**LEARNED),
    "EP, minibatches": EPClassifier(**LEARNED, solver=InterleavedEP(batch_size=15)),
    "EP, sign": EPClassifier(**LEARNED, solver=InterleavedEP("sign")),
    "decoupled regressor, learned": DecoupledGPRegressor(**LEARNED, n_mean_bases=12),
    "decoupled regressor, t": DecoupledGPRegressor(
        **LEARNED, n_mean_bases=12, likelihood="student_t"
    ),
    # A linear mean would explain these rows as well, and inducing points would change nothing.
    "decoupled classifier, learned": DecoupledGPClassifier(**LEARNED, mean="zero", n_mean_bases=12),
    "decoupled classifier, SGD": DecoupledGPClassifier(
        **SGD, solver=StochasticGradient("decoupled", batch_size=15)
    ),
    "QS regressor, Laplace": QSGPRegressor(**LEARNED, n_basis=20, likelihood="laplace"),
    "QS regressor, learned chevron": QSGPRegressor(**LEARNED, n_basis=20, covariance="chevron"),
    "QS regressor, stochastic": QSGPRegressor(
        **STEPS | {"optimizer": "auto", "max_iter": 10},
        solver=QuadruplyStochastic(**FEW_STEPS, n_support=10, learn_hyperparameters=True),
    ),
    "QS regressor, rows": QSGPRegressor(
        **without(STEPS, "n_inducing"),
        basis="inducing",
        covariance="mean_field",
        solver=QuadruplyStochastic(**FEW_STEPS, n_support=10),
    ),
    "QS regressor, AdaGrad": QSGPRegressor(
        **STEPS, solver=QuadruplyStochastic("adagrad", None, **FEW_STEPS)
    ),
    "QS classifier": QSGPClassifier(**LEARNED, n_basis=20),
    "QS classifier, chevron": QSGPClassifier(
        **STILL | {"max_iter": 20}, n_basis=20, covariance="chevron"
    ),
    "RVM regressor, learned": QSRVMRegressor(**RVM),
    "RVM regressor, Laplace": QSRVMRegressor(**RVM, likelihood="laplace", covariance="mean_field"),
    "RVM classifier, learned": QSRVMClassifier(**RVM),
    "RVM regressor, chevron": QSRVMRegressor(
        **without(RVM, "tol"),
        covariance="chevron",
        solver=QuadruplyStochastic(**FEW_STEPS, n_support=10),
    ),
    "RVM classifier, stochastic": QSRVMClassifier(
        **without(RVM, "tol"),
        solver=QuadruplyStochastic("adagrad", **FEW_STEPS, n_support=10),
    ),
    # "auto" would choose pairs and the form by the rows, and could choose the same.
    "additive regressor, exact": AdditiveGPRegressor(**PAIR, sparse=False),
    "additive regressor, Laplace": AdditiveGPRegressor(**PAIR, sparse=True, likelihood="laplace"),
    "additive regressor, precision": AdditiveGPRegressor(
        **PAIR, sparse=True, covariance="precision"
    ),
    "additive regressor, no pairs": AdditiveGPRegressor(**ADDITIVE, sparse=True, interactions=None),
    "additive classifier, exact": AdditiveGPClassifier(**PAIR, sparse=False),
    "additive classifier, mean field": AdditiveGPClassifier(
        **PAIR, sparse=True, covariance="mean_field"
    ),
    "hybrid SVC, stopping": HybridBayesianSVC(**STOPPED, early_stopping=True),
    "hybrid SVGP classifier, stopping": HybridSVGPClassifier(**STOPPED),
    "hybrid SVGP regressor, stopping": HybridSVGPRegressor(**STOPPED),
}
for each in OTHER_LIKELIHOODS:
    SLOW_MODES |= {
        f"SVGP regressor, {each}, learned": SVGPRegressor(**LEARNED, likelihood=each),
        f"SVGP regressor, {each}, minibatches": SVGPRegressor(
            **LEARNED, likelihood=each, solver=NaturalGradient(batch_size=15)
        ),
        f"additive regressor, {each}, pair": AdditiveGPRegressor(
            **PAIR | {"max_iter": 6}, sparse=True, likelihood=each
        ),
    }

# Other values of each parameter and of each option of a solver; each mode is tried with those that
# differ from its own.
CHANGES = {
    "augment": [True],
    "augmentation": [lambda batch: batch + 0.1],
    "basis": ["fourier", "orthogonal", "inducing"],
    "batch_size": [11],
    "categorical_features": [[1]],
    "class_weight": [{0: 1.0, 1: 3.0, 2: 1.5}],
    "contrast": ["hard"],
    "control_variate": ["gram", None],
    "covariance": ["nystroem", "chevron", "mean_field", "full", "precision", "auto"],
    "decay": [0.01],
    "device": ["cpu"],
    "dtype": ["float32"],
    "early_stopping": [False, True],
    "gradient": ["plain"],
    "inducing_points": ["random", X[:6] + 0.01],
    "input_shape": [(2,)],
    "interactions": [None],
    "terms": [None, [..., (0, 1)]],
    "kernel": [2.0 * Matern(0.7, "fixed", nu=2.5), "rbf"],
    "kernel_interaction": ["matern32"],
    "learn_hyperparameters": [False, True],
    "learn_inducing": [False, True],
    "learning_rate": [0.017],
    "length_scale_bounds": [(0.5, 2.0)],
    "likelihood": ["softmax", "robust_max", "gaussian", "student_t", "laplace"],
    "max_iter": [1],
    "mean": ["zero", "constant", "linear"],
    "measure": ["uniform"],
    "min_gain": [1e4],
    "module": [partial(MLP, 2)],
    "module_params": [{"hidden_layer_sizes": (5,)}],
    "multi_class": ["crammer_singer", "ovr"],
    "n_basis": [14],
    "n_dense_columns": [3],
    "n_inducing": [7],
    "n_inducing_interaction": [3],
    "n_iter_no_change": [1],
    "n_mean_bases": [9],
    "n_sampled_basis": [4],
    "n_support": [8],
    "monotonic_cst": [{0: 1}],
    "convex_cst": [{0: 1}],
    "noise_variance": [0.37],
    "normalize_y": [False],
    "optimizer": [None, "auto", "adam"],
    "parametrization": ["hybrid", "shared", "decoupled"],
    "probability": ["argmax"],
    "random_state": [5],
    "rank": [1],
    "relevance_threshold": [1.1],
    "rule": ["adam", "sign", "adadelta"],
    "point_masses": [None],
    "scaling": ["minmax"],
    "shrinkage": [0.5],
    "solver": [
        *("coordinate_ascent", "exact", "collapsed", "natural_gradient", "gradient"),
        *("sep", "gfitc", "cg", "sgd", "adagrad", "sweeps", "quadruply_stochastic"),
    ],
    "sparse": [True, False],
    "step": ["sgd", "adagrad"],
    "steps": [None],
    "tol": [1e3],
    "validation_fraction": [0.3],
    "warm_start": [True],
}
# Parameters that are accepted although they have no effect on some fits: the device, the start of
# the next fit, the seed of a fit without random draws, and the shape of rows.
HARMLESS = {"device", "warm_start", "random_state", "input_shape"}
# A value of these may be the same as "auto" or None.
SYNONYMS = {"mean", "optimizer"}
# Parameters accepted without an effect. On these rows, one round has the same result as several.
# Inducing points that are not used still draw random numbers, and learn_inducing has no effect on
# them.
CONSISTENT = {(AdditiveGPRegressor, "tol"), (AdditiveGPClassifier, "tol")}
# No number is shared by many of these rows, and the function is smooth.
CONSISTENT |= {(AdditiveGPRegressor, "point_masses"), (AdditiveGPClassifier, "point_masses")}
CONSISTENT |= {(AdditiveGPRegressor, "steps"), (AdditiveGPClassifier, "steps")}
CONSISTENT |= {(QSGPRegressor, "learn_inducing"), (QSGPClassifier, "learn_inducing")}
CONSISTENT |= {(HybridBayesianSVC, "early_stopping")}  # so few passes never stop early
# Parameters refused although they would change a fit.
NEEDLESS = {(QSGPRegressor, "n_inducing"), (QSGPRegressor, "inducing_points")}


def targets(model):
    if hasattr(model, "class_weight"):
        return LABELS
    return TARGETS.get(getattr(model, "likelihood", None), TARGET)


def call(model, method="fit"):
    """Return a fitted model, or the message of an error."""
    with warnings.catch_warnings(action="ignore"):
        try:
            return getattr(model, method)(X, targets(model))
        except (ValueError, DivergenceError) as error:
            return str(error)


def found(model):
    """Return the results of a fit as arrays."""
    arrays = [*model.latent_mean_and_variance(X), model.objective_curve_]
    others = ("noise_variance_", "dispersion_")  # neither for Poisson noise
    arrays += [getattr(model, name) for name in others if hasattr(model, name)]
    return [*arrays, *([model.predict_proba(X)] if is_classifier(model) else [])]


def differ(one, other):
    return not all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def mode(name):
    """Return a mode's estimator, whose solver is an object where its string stands for one."""
    model = clone((MODES | SLOW_MODES)[name])
    if solver(model) is not None:
        model.set_params(solver=clone(solver(model)))
    return model


def solver(model):
    """Return the solver of an estimator as an object; None if the data decide or it has none."""
    return model._solver() if hasattr(model, "solver") else None


def is_same_solver(one, other):
    return type(one) is type(other) and one.get_params() == other.get_params()


def without_effect(fitted):
    """Return the parameters of a fitted model that are documented to have no effect on its fit."""
    names = {name for kind, name in CONSISTENT if kind is type(fitted)}
    if len(getattr(fitted, "inducing_points_", ())) == len(X):  # each row is a point, and stays
        names |= {"inducing_points", "learn_inducing"}
    return names


def may_be_synonyms(model, name, value):
    """Return whether another value of a parameter may have the same meaning."""
    is_auto = name in ("covariance", "solver") and "auto" in (value, getattr(model, name))
    return name in SYNONYMS or is_auto


def changes(model):
    """Yield names and values of parameters that differ from a model's and are valid for it."""
    options = solver(model).get_params() if solver(model) is not None else {}
    options = {f"solver__{name}": now for name, now in options.items()}
    for name, now in (model.get_params(deep=False) | options).items():
        for value in CHANGES[name.removeprefix("solver__")]:
            if now is value or (isinstance(now, type(value)) and now == value):
                continue
            if name == "solver" and now != "auto":
                other = model._rules.solvers.get(value)
                if other is not None and is_same_solver(other, now):
                    continue
            try:
                clone(model).set_params(**{name: value})._check_parameters()
            except (ValueError, TypeError):
                continue
            yield name, value


def refusal(model):
    """Return the error message that a parameter has no effect, or None."""
    try:
        model._rules.check_uses(model)
    except ValueError as error:
        return str(error)
    return ""


def check_mode(model, monkeypatch):
    assert not refusal(model)
    unchanged = call(clone(model))
    base, documented = found(unchanged), without_effect(unchanged)
    monkeypatch.setattr(_parameters.ParameterRules, "check", lambda *_: None)
    wrong = []
    for name, value in changes(model):
        changed = clone(model).set_params(**{name: value})
        message = refusal(changed)
        if name in HARMLESS or (message and not message.startswith(f"{name}=")):
            continue
        fitted = call(changed)
        has_effect = isinstance(fitted, str) or differ(found(fitted), base)
        accepted = may_be_synonyms(model, name, value) or name in documented
        if not has_effect and not message and not accepted:
            wrong.append(f"{name}={value!r} has no effect and is accepted")
        if has_effect and message and (type(model), name) not in NEEDLESS:
            wrong.append(f"{name}={value!r} has an effect and is refused")
    assert not wrong


@pytest.mark.parametrize("name", MODES)
def test_parameters_have_an_effect_or_are_refused(name, monkeypatch):
    check_mode(mode(name), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_MODES)
def test_parameters_have_an_effect_or_are_refused_in_more_modes(name, monkeypatch):
    check_mode(mode(name), monkeypatch)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    "name", [*MODES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_MODES)]
)
def test_further_calls_follow_changes_or_refuse_them_by_name(name, method):
    model = mode(name)
    if "warm_start" in model.get_params():
        model.set_params(warm_start=True)
    elif method == "fit":
        pytest.skip("There is no warm start.")
    if not hasattr(model, method):
        pytest.skip("There is no partial_fit.")
    state = pickle.dumps(call(model, method))
    documented = without_effect(model)
    first, unchanged = found(model), found(call(pickle.loads(state), method))
    by_steps = isinstance(solver(model), StochasticGradient | QuadruplyStochastic)
    one_pass = method == "partial_fit" and by_steps
    followed, wrong = HARMLESS | ({"max_iter"} if one_pass else set()), []
    for name, value in changes(model):
        changed = pickle.loads(state).set_params(**{name: value})
        if refusal(changed) or not hasattr(changed, method):
            continue
        continued = call(changed, method)
        if not isinstance(continued, str):
            if differ(found(continued), unchanged) or name in documented:
                continue
            if name not in followed and not may_be_synonyms(model, name, value):
                wrong.append(f"{name}={value!r} is not followed")
        elif not continued.startswith("Stochastic steps ended"):
            option = re.match(r"(solver)__\w+ was ", continued) if name == "solver" else None
            assert option or continued.startswith(f"{name} was ")
            assert name == "probability" or not differ(found(changed), first)
    assert not wrong


def test_changes_are_told_together_and_a_new_start_heeds_them():
    model = SVGPRegressor(**STILL, warm_start=True).fit(X, TARGET)
    model.set_params(kernel=Matern(), n_inducing=9, mean="linear")
    with pytest.raises(
        ValueError, match=r"^kernel was 1\.22\*\*2 \* RBF\(length_scale=1\) .* mean was"
    ) as told:
        model.fit(X, TARGET)
    assert "n_inducing was 5 at the fit and is 9 now" in str(told.value)
    assert "set warm_start=False to start anew" in str(told.value)
    with pytest.raises(ValueError, match="start anew by fit"):
        model.partial_fit(X, TARGET)
    assert len(model.set_params(warm_start=False).fit(X, TARGET).inducing_points_) == 9


def test_equal_values_are_no_change():
    points = X[:6] + 0.01
    options = without(STILL, "n_inducing") | {"kernel": 1.5 * RBF([1.0, 2.0], "fixed")}
    model = SVGPRegressor(**options, inducing_points=points, warm_start=True).fit(X, TARGET)
    model.set_params(inducing_points=points.tolist(), kernel=1.5 * RBF([1.0, 2.0], "fixed"))
    model.fit(X, TARGET)
    points[0, 0] += 1
    model.set_params(inducing_points=points)
    with pytest.raises(ValueError, match="inducing_points was "):
        model.fit(X, TARGET)


def test_change_of_a_kernel_in_place_is_seen():
    model = SVGPRegressor(**STILL | {"kernel": RBF(1.0)}, warm_start=True).fit(X, TARGET)
    model.set_params(kernel__length_scale=1.0001)
    with pytest.raises(ValueError, match="another one, which differs in digits or bounds"):
        model.fit(X, TARGET)


def test_fitted_parameters_are_small_and_not_cloned():
    points = RNG.normal(size=(500, 2))
    options = without(STILL, "n_inducing") | {"inducing_points": points}
    model = SVGPRegressor(**options, warm_start=True).fit(X, TARGET)
    assert len(pickle.dumps(model._fitted_parameters)) < 2000
    assert not hasattr(clone(model), "_fitted_parameters")


def test_search_over_modes_scores_what_is_refused_as_missing():
    solvers = [
        ConjugateGradients(),
        ConjugateGradients(batch_size=15),
        StochasticGradient(),
        StochasticGradient("hybrid"),
    ]
    model = DecoupledGPRegressor(**without(STILL, "tol"), n_mean_bases=12)
    search = GridSearchCV(model, {"solver": solvers}, cv=2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        search.fit(X, TARGET)
    refused = "solver__batch_size=15 has no effect with solver=ConjugateGradients(batch_size=15)"
    assert any(refused in str(w.message) for w in told)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True, False, False]


# Solvers


def test_options_of_a_solver_are_searched():
    options = without(STILL, "tol", "max_iter") | {"max_iter": 3}
    model = SVGPRegressor(**options, solver=NaturalGradient())
    grid = {"solver__batch_size": [2, 7, None]}
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        search = GridSearchCV(model, grid, cv=2).fit(X, TARGET)
        best = clone(model).set_params(**search.best_params_).fit(X, TARGET)
    scores = search.cv_results_["mean_test_score"]
    assert len(np.unique(scores)) == 3
    assert np.isfinite(scores).all()
    assert search.best_estimator_.solver.batch_size == search.best_params_["solver__batch_size"]
    assert not differ(found(search.best_estimator_), found(best))
    assert model.solver.batch_size is None


def test_options_of_a_solver_are_parameters():
    model = EPClassifier(solver=InterleavedEP("sign", batch_size=7))
    assert model.get_params(deep=False)["solver"] is model.solver
    shown = {name: value for name, value in model.get_params().items() if "__" in name}
    assert shown == {
        "solver__rule": "sign",
        "solver__batch_size": 7,
        "solver__learning_rate": None,
        "solver__gradient": "exact",
    }
    copy = clone(model)
    assert copy.solver is not model.solver
    assert copy.solver.get_params() == model.solver.get_params()
    copy.set_params(solver__batch_size=9)
    assert (copy.solver.batch_size, model.solver.batch_size) == (9, 7)
    assert "solver=InterleavedEP(batch_size=7, rule='sign')" in repr(model)
    with pytest.raises(ValueError, match="Invalid parameter 'step' for estimator InterleavedEP"):
        model.set_params(solver__step="sgd")


def test_fit_leaves_its_solver_as_it_was():
    given = NaturalGradient(batch_size=15)
    before = dict(vars(given))
    model = call(SVGPRegressor(**STILL, solver=given))
    assert model.solver is given
    assert vars(given) == before


def test_warm_start_follows_options_of_a_solver():
    options = without(STILL, "tol") | {"warm_start": True}
    model = SVGPRegressor(**options, solver=NaturalGradient(batch_size=15))
    state = pickle.dumps(call(model))
    unchanged, changed = pickle.loads(state), pickle.loads(state).set_params(solver__batch_size=4)
    assert differ(found(call(changed)), found(call(unchanged)))
    # An equal object is no change, nor is the string that stands for it.
    equal = pickle.loads(state).set_params(solver=NaturalGradient(batch_size=15))
    assert not differ(found(call(equal)), found(unchanged))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("collapsed", NaturalGradient(batch_size=15)),
        ("auto", Gradient()),
        (NaturalGradient(batch_size=15), "collapsed"),
        (Gradient(batch_size=15), NaturalGradient()),
    ],
    ids=str,
)
def test_warm_start_follows_another_solver(before, after):
    model = SVGPRegressor(**LEARNED, solver=before, warm_start=True)
    state = pickle.dumps(call(model))
    unchanged, changed = pickle.loads(state), pickle.loads(state).set_params(solver=after)
    assert differ(found(call(changed)), found(call(unchanged)))
    # The further call started from the hyperparameters that the first had learned.
    assert differ(found(changed), found(call(clone(changed))))


@pytest.mark.parametrize(
    ("model", "after", "message"),
    [
        (
            DecoupledGPRegressor(**without(STILL, "tol"), n_mean_bases=12),
            StochasticGradient(batch_size=15),
            "solver was 'cg' at the fit and is StochasticGradient(batch_size=15) now",
        ),
        (
            QSGPRegressor(**STEPS, solver=QuadruplyStochastic(**FEW_STEPS)),
            "cg",
            "solver was QuadruplyStochastic(batch_size=15, n_sampled_basis=6) at the fit and is "
            "'cg' now",
        ),
        (
            QSGPRegressor(**STEPS, solver="sgd"),
            "adagrad",
            "solver__step was 'sgd' at the fit and is 'adagrad' now",
        ),
        (
            QSGPRegressor(**STEPS, solver=QuadruplyStochastic(**FEW_STEPS)),
            QuadruplyStochastic(**FEW_STEPS, n_support=10),
            "solver__n_support was 256 at the fit and is 10 now",
        ),
    ],
)
def test_warm_start_refuses_another_solver_by_name(model, after, message):
    model = call(clone(model).set_params(warm_start=True))
    before = found(model)
    told = call(model.set_params(solver=after))
    assert told.startswith(f"{message}. The fitted model cannot follow: set it back, or set warm")
    assert not differ(found(model), before)
    assert not isinstance(call(model.set_params(warm_start=False)), str)


def test_stream_refuses_another_solver_by_name():
    model = call(SVGPRegressor(**STILL), "partial_fit")
    told = call(model.set_params(solver=NaturalGradient(batch_size=15)), "partial_fit")
    assert told.startswith(
        "solver was 'auto' at the fit and is NaturalGradient(batch_size=15) now. The fitted model "
        "cannot follow: set it back, or start anew by fit."
    )


FIXED = {"optimizer": None, "learn_inducing": False}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            SVGPRegressor(solver=NaturalGradient(learning_rate=0.1), **FIXED),
            r"^solver__learning_rate=0.1 has no effect with optimizer=None and "
            r"learn_inducing=False and solver=NaturalGradient\(learning_rate=0.1\); .* "
            r"or solver=Gradient\(\)\. Leave it at its default, None, or change optimizer",
        ),
        (
            BayesianSVC(solver=CoordinateAscent(learning_rate=0.1)),
            r"^solver__learning_rate=0.1 has no effect with .*; it is for solver=Gradient\(\), or",
        ),
        (
            EPClassifier(solver=InterleavedEP("sign"), optimizer=None),
            "^solver__rule='sign' has no effect with optimizer=None; .* default, 'adam', or",
        ),
        (
            EPClassifier(solver="gfitc", optimizer=None),
            "^solver='gfitc' has no effect with optimizer=None; .* default, 'auto', or",
        ),
        (
            EPClassifier(solver=ConvergedEP(), optimizer=None),
            r"^solver=ConvergedEP\(\) has no effect with optimizer=None; .* default, 'auto', or",
        ),
        (
            DecoupledGPRegressor(solver=ConjugateGradients(batch_size=7)),
            r"^solver__batch_size=7 has no effect with solver=ConjugateGradients\(batch_size=7\) "
            "and likelihood='gaussian'",
        ),
        (
            QSGPClassifier(solver=QuadruplyStochastic("adagrad", None, n_support=9)),
            r"^solver__n_support=9 has no effect with solver__step='adagrad' and "
            r"solver__control_variate=None; it is for solver__step='sgd', or",
        ),
    ],
)
def test_options_without_effect_are_refused_by_name(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, targets(model))
    assert not hasattr(model, "_latents")


@pytest.mark.parametrize(
    "given", ["adam", None, 3, StochasticGradient, NaturalGradient(), RBF(), SVGPRegressor()]
)
def test_invalid_solver_is_refused_in_words(given):
    message = (
        f"solver={given!r} is not one of 'cg', 'sgd', nor one of the solvers of skgpsvm.solvers "
        "for DecoupledGPRegressor: ConjugateGradients, StochasticGradient."
    )
    if isinstance(given, type):
        message += " Pass an instance, StochasticGradient()."
    model = DecoupledGPRegressor(solver=given)
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            getattr(model, method)(X, TARGET)


def test_subclass_of_a_solver_fits_as_that_solver():
    class Own(NaturalGradient):
        pass

    ends = [call(SVGPRegressor(**STILL, solver=kind())) for kind in (NaturalGradient, Own)]
    assert not differ(*map(found, ends))


# Values


NUMBERS = {
    "batch_size",
    "learning_rate",
    "max_iter",
    "min_gain",
    "n_basis",
    "n_dense_columns",
    "n_inducing",
    "n_inducing_interaction",
    "n_iter_no_change",
    "n_mean_bases",
    "noise_variance",
    "rank",
    "relevance_threshold",
    "shrinkage",
    "tol",
    "validation_fraction",
}
MAY_BE_ZERO = {"min_gain", "shrinkage", "tol", "validation_fraction"}
ODD = [np.nan, np.inf, -1, True, "odd", 10**30, [1.0], np.float32(np.nan)]
ODD_THINGS = [np.nan, np.inf, -1, 10**30, "odd", 1.5, object()]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_checked(kind):
    for name in inspect.signature(kind).parameters:
        if name in NUMBERS:
            for value in [*ODD, *([] if name in MAY_BE_ZERO else [0])]:
                with pytest.raises(ValueError, match=f"^{name}="):
                    kind(**{name: value}).fit(X, targets(kind()))


@pytest.mark.parametrize("kind", KINDS)
def test_other_values_are_checked(kind):
    wrong = []
    for name in inspect.signature(kind).parameters:
        for value in [] if name in NUMBERS else ODD_THINGS:
            try:
                kind(**{name: value}).fit(X, targets(kind()))
            except (ValueError, TypeError) as error:
                if name.replace("_", " ") not in str(error).lower().replace("_", " "):
                    wrong.append(f"{name}={value!r}: {error}")
            else:
                if (name, value) != ("categorical_features", -1):  # -1 is the last column
                    wrong.append(f"{name}={value!r} is accepted")
    assert not wrong


def test_default_of_a_parameter_without_effect_is_accepted():
    assert SVGPRegressor(**STILL, solver=NaturalGradient(learning_rate=None)).fit(X, TARGET)


def test_closed_form_is_chosen_without_steps():
    options = without(STILL, "tol") | {"learn_inducing": True}
    closed = found(call(SVGPRegressor(**options)))
    assert not differ(found(call(SVGPRegressor(**options, solver=Collapsed()))), closed)
    for chosen in ({"batch_size": 15}, {"learning_rate": 0.01}):
        steps = SVGPRegressor(**options, solver=NaturalGradient(**chosen))
        assert differ(found(call(steps)), closed)
