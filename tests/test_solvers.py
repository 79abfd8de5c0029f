"""Solvers: checks of their options, the strings that stand for them, the solvers by estimator."""

import inspect
import warnings

import numpy as np
import pytest
from every_estimator import assert_same, predictions, problem
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import skgpsvm
from skgpsvm import (
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
    solvers,
)
from skgpsvm.solvers import (
    PARAMETRIZATIONS,
    Collapsed,
    ConjugateGradients,
    ConvergedEP,
    CoordinateAscent,
    Exact,
    Gradient,
    InterleavedEP,
    NaturalGradient,
    QuadruplyStochastic,
    StochasticGradient,
    Sweeps,
)

SOLVERS = [getattr(solvers, name) for name in solvers.__all__]
CLASSES = [getattr(skgpsvm, name) for name in skgpsvm.__all__]
ESTIMATORS = [kind for kind in CLASSES if inspect.isclass(kind)]
# The object with default options that each string of an estimator stands for.
DECOUPLED = {"cg": ConjugateGradients(), "sgd": StochasticGradient()}
QUADRUPLY = {
    "cg": ConjugateGradients(),
    "sgd": QuadruplyStochastic(),
    "adagrad": QuadruplyStochastic(step="adagrad"),
}
RELEVANCE = {"sweeps": Sweeps(), "quadruply_stochastic": QuadruplyStochastic()}
STEPS = {"natural_gradient": NaturalGradient(), "gradient": Gradient()}
STRINGS = {
    BayesianSVC: {"coordinate_ascent": CoordinateAscent(), "gradient": Gradient()},
    DecoupledGPClassifier: DECOUPLED,
    DecoupledGPRegressor: DECOUPLED,
    EPClassifier: {"sep": InterleavedEP(), "gfitc": ConvergedEP()},
    QSGPClassifier: QUADRUPLY,
    QSGPRegressor: QUADRUPLY,
    QSRVMClassifier: RELEVANCE,
    QSRVMRegressor: RELEVANCE,
    SVGPClassifier: {"collapsed": Collapsed(), **STEPS},
    SVGPRegressor: {"exact": Exact(), "collapsed": Collapsed(), **STEPS},
}
CASES = [(kind, string) for kind, strings in STRINGS.items() for string in strings]
# What "auto" stands for on few rows.
AUTO = [
    (EPClassifier(), ConvergedEP()),
    (SVGPClassifier(), Collapsed()),
    (SVGPClassifier(likelihood="robust_max"), Collapsed()),
    (SVGPRegressor(), Exact()),
    (SVGPRegressor(n_inducing=20), Collapsed()),
    (SVGPRegressor(likelihood="laplace"), NaturalGradient()),
]
# For each choice, its allowed values.
CHOICES = {
    "control_variate": ("interpolating", "gram", None),
    "gradient": ("symmetric", "plain"),
    "learn_hyperparameters": (True, False),
    "parametrization": PARAMETRIZATIONS,
    "rule": ("adam", "sign", "adadelta"),
    "step": ("sgd", "adagrad"),
}
INTEGERS = {"batch_size", "n_sampled_basis", "n_support"}
OPTIONAL = {"batch_size", "learning_rate"}
ODD_NUMBERS = [0, -1, np.nan, np.inf, True, "odd", 10**30, [1.0], np.float32(np.nan)]
ODD_CHOICES = [0, -1, np.nan, np.inf, 1.5, 10**30, "odd", ["sgd"], object()]


def options(solver):
    return list(inspect.signature(solver).parameters)


def choices(solver, name):
    if (solver, name) == (InterleavedEP, "gradient"):
        return "exact", "approximate"
    if (solver, name) == (Gradient, "rule"):
        return "adam", "adadelta"
    return CHOICES.get(name, ())


OPTIONS = [(solver, name) for solver in SOLVERS for name in options(solver)]


def owner(solver):
    """Return the first estimator that has a solver of a class."""
    return next(kind for kind, strings in STRINGS.items() if solver in map(type, strings.values()))


def fitted(kind_or_model, solver, **parameters):
    """Return a small fit by a solver."""
    model = kind_or_model() if inspect.isclass(kind_or_model) else clone(kind_or_model)
    few = {"n_inducing": 8, "n_basis": 20}
    few = {name: number for name, number in few.items() if name in model.get_params()}
    if isinstance(solver, Exact) or solver == "exact":
        del few["n_inducing"]
    model.set_params(solver=solver, random_state=0, max_iter=3, **few | parameters)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return model.fit(*problem(model, 60))


def results(model):
    return predictions(model, 60) | {"objective": model.objective_curve_}


# Options


@pytest.mark.parametrize(("solver", "name"), OPTIONS)
def test_invalid_options_are_refused(solver, name):
    wrong = list(ODD_CHOICES if name in CHOICES else ODD_NUMBERS)
    if name not in OPTIONAL and None not in choices(solver, name):
        wrong.append(None)
    if name in INTEGERS:
        wrong.append(2.5)
    kind = owner(solver)
    X, y = problem(kind())
    for value in wrong:
        given = solver(**{name: value})
        with pytest.raises(ValueError, match=f"^{name}="):
            given.check()
        for method in ("fit", "partial_fit"):
            if hasattr(kind(solver=given), method):
                with pytest.raises(ValueError, match=f"^{name}="):
                    getattr(kind(solver=given), method)(X, y)


@pytest.mark.parametrize(("solver", "name"), OPTIONS)
def test_valid_options_are_accepted(solver, name):
    numbers = (1, np.int64(7)) if name in INTEGERS else (1, 0.5, np.float32(0.1))
    values = choices(solver, name) or numbers
    for value in (*values, *((None,) if name in OPTIONAL else ())):
        solver(**{name: value}).check()


def test_choices_are_told():
    with pytest.raises(
        ValueError,
        match=r"^parametrization='jacobi' is not one of 'orthogonal', 'hybrid', 'shared', 'dec",
    ):
        DecoupledGPRegressor(solver=StochasticGradient("jacobi")).fit(*problem(SVGPRegressor()))
    with pytest.raises(ValueError, match=r"^rule='auto' is not one of 'adam', 'sign', 'adadelta'"):
        EPClassifier(solver=InterleavedEP("auto")).fit(*problem(SVGPClassifier()))


def test_approximate_gradient_is_for_all_rows():
    with pytest.raises(ValueError, match=r"^gradient='approximate' is for .* got batch_size=20\."):
        InterleavedEP(gradient="approximate", batch_size=20).check()


def test_every_option_is_checked():
    assert {name for _, name in OPTIONS} == {*CHOICES, *INTEGERS, "decay", "learning_rate"}
    for solver in (Collapsed, ConvergedEP, Sweeps):
        assert not options(solver)
        solver().check()


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_are_parameters_in_the_sense_of_scikit_learn(solver):
    given = solver()
    assert list(given.get_params()) == sorted(options(solver))
    assert clone(given).get_params() == given.get_params()
    assert repr(given) == f"{solver.__name__}()"
    for name in options(solver):
        assert solver(**{name: "kept"}).get_params()[name] == "kept"  # checked by fits only
        with pytest.raises(TypeError, match="unexpected keyword"):
            solver(**{f"{name}_": 1})


# Strings


def test_every_estimator_has_the_strings_that_are_tested():
    for kind in ESTIMATORS:
        strings = {string for string, solver in kind._rules.solvers.items() if solver is not None}
        assert strings == STRINGS.get(kind, {}).keys()
        assert ("solver" in inspect.signature(kind).parameters) == (kind in STRINGS)
    automatic = {kind for kind in ESTIMATORS if "auto" in kind._rules.solvers}
    assert automatic == {type(model) for model, _ in AUTO}
    assert {type(solver) for strings in STRINGS.values() for solver in strings.values()} == {
        *SOLVERS
    }


@pytest.mark.parametrize(("kind", "string"), CASES)
def test_string_stands_for_the_object_with_defaults(kind, string):
    by_string = fitted(kind, string)
    by_object = fitted(kind, clone(STRINGS[kind][string]))
    assert_same(results(by_string), results(by_object))
    assert by_string.solver == string
    # All estimators of a class share the object of a string; fits leave it as it was.
    assert kind._rules.solvers[string].get_params() == STRINGS[kind][string].get_params()


@pytest.mark.parametrize(("model", "chosen"), AUTO, ids=str)
def test_auto_stands_for_a_solver_on_few_rows(model, chosen):
    points = {"n_inducing": None} if isinstance(chosen, Exact) else {}
    assert_same(results(fitted(model, "auto", **points)), results(fitted(model, clone(chosen))))


@pytest.mark.parametrize("kind", STRINGS)
def test_default_solver_is_one_of_the_strings(kind):
    assert inspect.signature(kind).parameters["solver"].default in kind._rules.solvers


# Solvers by estimator


@pytest.mark.parametrize("kind", STRINGS)
def test_estimator_names_all_its_solvers(kind):
    names = dict.fromkeys(type(solver).__name__ for solver in STRINGS[kind].values())
    strings = inspect.signature(kind).parameters["solver"].default, *STRINGS[kind]
    with pytest.raises(ValueError, match=r"^solver='odd' is not one of") as told:
        kind(solver="odd").fit(*problem(kind()))
    assert str(told.value).endswith(f" for {kind.__name__}: {', '.join(names)}.")
    for string in strings:
        assert repr(string) in str(told.value).split(", nor one of")[0]
        assert f'"{string}"' in kind.__doc__
    for name in names:
        assert f"`skgpsvm.solvers.{name}`" in kind.__doc__


@pytest.mark.parametrize("solver", SOLVERS)
def test_solver_names_all_its_estimators(solver):
    for kind, strings in STRINGS.items():
        has = solver in map(type, strings.values())
        assert (f"`{kind.__name__}`" in solver.__doc__) == has


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_of_other_estimators_are_refused(solver):
    for kind, strings in STRINGS.items():
        if solver not in map(type, strings.values()):
            with pytest.raises(ValueError, match=rf"^solver={solver.__name__}\(\) is not one of"):
                kind(solver=solver()).fit(*problem(kind()))


@pytest.mark.parametrize("kind", STRINGS)
def test_classes_of_solvers_are_refused(kind):
    for solver in map(type, STRINGS[kind].values()):
        with pytest.raises(ValueError, match=r"^solver=<class .*> is not one of"):
            kind(solver=solver).fit(*problem(kind()))


def test_option_of_a_solver_that_is_given_by_name_makes_it_an_object():
    named = SVGPClassifier(solver="natural_gradient")
    model = clone(named).set_params(solver__batch_size=7)
    assert model.solver.get_params() == {"batch_size": 7, "learning_rate": None}
    assert named.solver == "natural_gradient"  # other estimators keep the name
    assert named.set_params(solver__batch_size=8).solver.batch_size == 8
    model = QSGPRegressor().set_params(solver="adagrad", solver__n_support=5)
    assert (model.solver.step, model.solver.n_support) == ("adagrad", 5)


def test_option_where_the_data_decide_on_the_solver_is_refused():
    with pytest.raises(ValueError, match=r"object of skgpsvm\.solvers: Exact,"):
        SVGPRegressor().set_params(solver__batch_size=7)
    model = SVGPRegressor().set_params(solver=Gradient(), solver__batch_size=7)
    assert model.solver.batch_size == 7
