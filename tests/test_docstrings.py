"""Docstrings of all public names pass numpydoc's checks as pyproject.toml configures them.

pytest itself runs the examples in docstrings, README and documentation (`--doctest-modules` and
`--doctest-glob`).
"""

import importlib
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
from numpydoc.validate import get_validation_checks, validate
from sklearn.base import BaseEstimator

import skgpsvm

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CHECKS = get_validation_checks(set(CONFIG["tool"]["numpydoc_validation"]["checks"]))
NO_SECTION = {"PR01", "RT01"}  # parameters or returned value are not described


def is_ours(thing):
    thing = thing.fget if isinstance(thing, property) else thing
    return getattr(thing, "__module__", "").startswith("skgpsvm")


def public_modules():
    yield skgpsvm.__name__
    for info in pkgutil.iter_modules(skgpsvm.__path__):
        if not info.name.startswith("_"):
            yield f"{skgpsvm.__name__}.{info.name}"


def offered(module):
    """Return what a module lists in `__all__` or, without one, its public classes and functions."""
    defined_here = [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]
    things = {name: getattr(module, name) for name in getattr(module, "__all__", defined_here)}
    return {name: thing for name, thing in things.items() if callable(thing)}


def public_things():
    """Return public classes and functions, each with its shortest public dotted name."""
    names = {}
    for module_name in public_modules():
        for name, thing in offered(importlib.import_module(module_name)).items():
            names.setdefault(thing, f"{module_name}.{name}")
    return names


def public_names():
    """Yield names of public classes, functions and our members of the classes, with their checks.

    Estimators must describe every argument of every method. Other classes may describe arguments
    and results of their methods in the class docstring. A method that overrides another may
    inherit its docstring.
    """
    for thing, name in public_things().items():
        if not inspect.isclass(thing):
            yield name, CHECKS
            continue
        yield name, CHECKS if is_ours(thing.__init__) else CHECKS - {"PR01"}
        checks = CHECKS if issubclass(thing, BaseEstimator) else CHECKS - NO_SECTION
        for member in dir(thing):
            value = getattr(thing, member)
            inherited = value.__doc__ is None and inspect.getdoc(value)
            if not member.startswith("_") and is_ours(value) and not inherited:
                yield f"{name}.{member}", checks


@pytest.mark.parametrize(
    ("name", "checks"), [pytest.param(*pair, id=pair[0]) for pair in public_names()]
)
def test_docstring_follows_numpydoc(name, checks):
    assert not [f"{code}: {text}" for code, text in validate(name)["errors"] if code in checks]


def test_api_page_lists_everything_public():
    page = (ROOT / "doc" / "api.rst").read_text(encoding="utf-8")
    listed = re.findall(r"^   (\w+)$", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(name.split(".")[-1] for name in public_things().values())
