"""Annotations: every public signature has them, and choices are those that are accepted.

mypy checks that they are consistent, by typical use in ``typed_client.py``.
"""

import inspect
import re
import types
import typing

import every_estimator
import numpy as np
import pytest
from numpydoc.docscrape import NumpyDocString
from test_docstrings import is_ours, public_things

import skgpsvm
from skgpsvm._typing import available_if

ESTIMATORS = [getattr(skgpsvm, name) for name in skgpsvm.__all__ if not name.startswith("_")]


def function_of(member):
    """Return the function that defines a member of a class, or None."""
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    member = inspect.unwrap(getattr(member, "fn", member))
    return member if inspect.isfunction(member) and is_ours(member) else None


def public_functions():
    """Return public functions and methods, also inherited ones, by name."""
    found = {}
    for thing, name in public_things().items():
        if not inspect.isclass(thing):
            found[name] = inspect.unwrap(thing)
            continue
        for owner in thing.__mro__:
            for key, member in vars(owner).items():
                function = function_of(member)
                is_public = not key.startswith("_") or key in ("__init__", "__call__")
                if function is not None and is_public:
                    found.setdefault(f"{name}.{key}", function)
    return found


FUNCTIONS = public_functions()


def alternatives(annotation):
    """Return the members of a union, or the type itself."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def choices(annotation):
    """Return the strings that a parameter may be, a set."""
    if typing.get_origin(annotation) is typing.Literal:
        return {value for value in typing.get_args(annotation) if isinstance(value, str)}
    return set().union(*map(choices, typing.get_args(annotation)))


def hints(function):
    """Return the types of a signature by parameter, with those of optional packages."""
    axes, pandas, pyarrow = map(pytest.importorskip, ("matplotlib.axes", "pandas", "pyarrow"))
    pytest.importorskip("pyarrow.dataset")
    known = {"Axes": axes.Axes, "pd": pandas, "pyarrow": pyarrow}
    return typing.get_type_hints(function, localns=known)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature_is_annotated(name):
    signature = inspect.signature(FUNCTIONS[name])
    of_instance = ("self", "cls")
    bare = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in of_instance
    ]
    assert not bare
    assert signature.return_annotation is not signature.empty
    assert signature.parameters.keys() - of_instance <= hints(FUNCTIONS[name]).keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_choices_are_those_of_the_docstring(name):
    function = FUNCTIONS[name]
    of_class = {f"{each}.__init__": thing for thing, each in public_things().items()}
    text = inspect.getdoc(of_class.get(name, function)) or ""
    hinted = hints(function)
    for parameter in NumpyDocString(text)["Parameters"]:
        described = parameter.type.split(", default=")[0]
        if parameter.name in hinted and described not in ("str", "str or solver"):
            assert choices(hinted[parameter.name]) == set(re.findall(r'"(\w+)"', described))


PARAMETERS = [
    pytest.param(kind, name, annotation, id=f"{kind.__name__}.{name}")
    for kind in ESTIMATORS
    for name, annotation in typing.get_type_hints(kind.__init__).items()
    if choices(annotation)
]


@pytest.mark.parametrize(("kind", "name", "annotation"), PARAMETERS)
def test_estimators_accept_the_choices_of_annotations(kind, name, annotation):
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    with pytest.raises((TypeError, ValueError)) as error:
        kind(**{name: "another"}).fit(X, y)
    message = str(error.value).split(". ")[0]
    assert "'another'" in message
    assert set(re.findall(r"'(\w+)'", message)) - {"another"} == choices(annotation)
    if name == "solver":
        accepted = message.rpartition(": ")[2].rstrip(".").split(", ")
        solvers = filter(inspect.isclass, alternatives(annotation))
        assert sorted(accepted) == sorted(solver.__name__ for solver in solvers)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_fitted_attributes_are_annotated(kind):
    documented = {
        attribute.name for attribute in NumpyDocString(inspect.getdoc(kind))["Attributes"]
    }
    owners = filter(is_ours, kind.__mro__)
    annotated = {name for owner in owners for name in inspect.get_annotations(owner)}
    assert {name for name in annotated if not name.startswith("_")} == documented


@pytest.mark.parametrize("name", every_estimator.ESTIMATORS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # two iterations are too few
def test_fitted_attributes_have_the_annotated_types(name):
    model = every_estimator.fitted(name)
    fitted = {name: value for name, value in vars(model).items() if name.endswith("_")}
    hinted = typing.get_type_hints(type(model))
    for attribute, value in fitted.items():
        kinds = [typing.get_origin(each) or each for each in alternatives(hinted[attribute])]
        assert isinstance(value, tuple(kinds)), attribute
    assert fitted.keys() > {"n_features_in_", "n_iter_"}


def test_available_if_is_that_of_scikit_learn():
    class Model:
        @available_if(lambda model: model.is_ready)
        def partial_fit(self) -> str:
            return "done"

    model = Model()
    model.is_ready = False
    assert not hasattr(model, "partial_fit")
    model.is_ready = True
    assert model.partial_fit() == "done"
