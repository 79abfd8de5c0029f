"""The architecture, checked in the sources: which imports and which calls are allowed."""

import ast
import re
import runpy
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "skgpsvm"
TESTS = Path(__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

NUMPY_MODULES = {
    "_estimators/_base",  # the boundary of arrays and tensors
    "_estimators/_classifier",  # labels
    "_estimators/_regressor",  # targets
    "_data",  # the boundary of arrays and tensors
    "_csr",  # rows of sparse matrices
    "_rows",  # rows of sources, as arrays
    "_robust",  # targets, before they are tensors
    "_merging",  # rows, before they are tensors
    "_estimators/_evidence",  # the boundary
    "_scales",  # sorted columns of rows
    "_estimators/_inputs",  # the boundary
    "_parameters",  # values of estimators' parameters, which may be arrays
    "data",  # rows of files, as arrays
    "inducing",  # scikit-learn's k-means++ works on arrays
    "active_learning/_queries",  # indices of rows
    "active_learning/_stopping",  # labels
    "active_learning/_scores",  # computes with arrays from `predict_proba`
    "active_learning/_epig",  # likewise
    "additive/_shapes",  # calls a solver of SciPy
    "inspection/_contributions",  # arrays from `explain`
    "inspection/_display",  # passes arrays to matplotlib
    "inspection/_effects",  # arrays from `explain`
    "inspection/_importances",  # quantiles of draws, as arrays
    "inspection/_tables",  # arrays of effects
    "_quadrature",  # tabulates nodes once
    "kernels/_base",  # scikit-learn kernels
    "kernels/_columns",  # a scikit-learn kernel
    "kernels/_linear",  # a scikit-learn kernel
    "kernels/_multiscale",  # a scikit-learn kernel
    "kernels/_anova",  # scikit-learn kernels
    "kernels/_measures",  # reads scikit-learn kernels' attributes
    "_torch_kernels",  # reads scikit-learn kernels' attributes
    "_estimators/_pipeline",  # the boundary
    "_noise",  # arrays of variances
    "_problem",  # arrays of the boundary
    "_fitted_models",  # fitted state, which is NumPy
    "_hyperparameters/exact_evidence",  # draws rows
    "_hyperparameters/held_out",  # draws rows
    "_hyperparameters/default_kernels",  # scikit-learn's scaler and kernels
    "_hyperparameters/initialization",  # reads scikit-learn kernels' attributes
    "_predictive",  # arguments and results are arrays
    "_families",  # distributions of SciPy
    "_targets",  # arguments and results are arrays
    "_validation",  # checks of arrays
    "_typing",  # arrays are arguments of the boundary
    "additive/_latent",  # fitted state, which is NumPy
    "additive/_terms",  # names of features
    "additive/_base",  # shared code of the estimators
    "additive/_description",  # columns of rows that are arrays
    "additive/_encoding",  # columns of tables
    "additive/_classifier",  # the estimator
    "additive/_regressor",  # the estimator
    "decoupled/_training",  # shared code of the estimators
    "expectation_propagation/_classifier",  # the estimator
    "hybrid/_design",  # scikit-learn kernels, and points that are arrays
    "hybrid/_held_out",  # hashes of rows
    "hybrid/_inputs",  # rows as the user passed them
    "hybrid/_persistence",  # the boundary of estimators and files
    "hybrid/_regressor",  # the estimator
    "hybrid/_state",  # fitted state, which is NumPy
    "hybrid/_training",  # shared code of the estimators
    "hybrid/_weights",  # files of arrays
    "adversarial",  # arguments and results are arrays
    "quadruply_stochastic/_gp_training",  # shared code of the estimators
    "quadruply_stochastic/_rvm_training",  # shared code of the estimators
    "quadruply_stochastic/_rvm_regressor",  # the estimator
}
FORBIDDEN_CALL = re.compile(
    r"print"
    r"|(np|numpy)\.random\.seed"
    r"|torch(\.\w+)*\.(seed|manual_seed)(_all)?"  # methods of a generator are allowed
    r"|torch\.(set_(default|num|float32|deterministic|flush)_\w+|use_deterministic_algorithms)"
    r"|torch\.backends(\.\w+)+"  # contexts and functions that set switches, such as `cudnn.flags`
)
LIBRARIES = {"np", "numpy", "sklearn", "torch"}  # their attributes are switches of the process

# This call is undone: fused GPU operations can draw only from the device's generator.
PUT_BACK = {"_isolation": {"torch.cuda.manual_seed"}}


def location(path):
    """Return the path of a module below the package, without suffix."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def owner(path):
    """Return the module or subpackage to which a file belongs in the architecture."""
    return location(path).split("/")[0]


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_names(path):
    """Return the absolute dotted names that a module imports, including imports in functions."""
    # A relative import of level k starts k - 1 folders above the folder of the module.
    package = path.relative_to(PACKAGE.parent).parent.parts
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from (".".join((*module, alias.name)) for alias in node.names)


def imported_owners(path):
    """Return the modules of this package from which a module imports."""
    parts = (name.split(".") for name in imported_names(path))
    return {name[1] for name in parts if name[0] == PACKAGE.name and len(name) > 1}


def called_names(path):
    """Return the dotted names of all functions that a module calls by plain names."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func)


def assigned_names(path):
    """Return the dotted names of all attributes to which a module assigns."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node)


# These import the methods' estimators; every other module is shared.
OF_ALL_METHODS = PACKAGE / "__init__.py", PACKAGE / "persistence.py"
METHODS = imported_owners(PACKAGE / "__init__.py")


def each_module(condition=lambda path: True):
    chosen = [path for path in MODULES if condition(path)]
    return pytest.mark.parametrize("path", chosen, ids=map(location, chosen))


@each_module(lambda path: path not in OF_ALL_METHODS)
def test_no_module_imports_a_method(path):
    assert imported_owners(path) & METHODS <= {owner(path)}


def test_imports_go_down_the_storeys():
    plan = runpy.run_path(PACKAGE.parent / "doc" / "development" / "storeys.py")
    assert {owner(path) for path in MODULES} - {"__init__"} == set(plan["LEVELS"])
    assert plan["upward"]() == []


# Calls on one stack from a module to one of a higher storey: of overridden methods, of stages by
# `Run`, and of the estimator's problem by a search.
CLIMBS = {
    "SVGPRegressor": 2,
    "BayesianSVC": 3,
    "DecoupledGPRegressor": 2,
    "AdditiveGPRegressor": 4,
}


@pytest.mark.parametrize("name", CLIMBS)
def test_fits_call_upward_a_few_times_only(name):
    path = runpy.run_path(PACKAGE.parent / "doc" / "development" / "path.py")
    assert name in path["SHOWN"]
    order, climbs = path["walk_of_fit"](name)
    assert order[0] == "_estimators"
    assert {"_fitting", "_fitted_models", "_linalg"} <= set(order)
    assert 0 < climbs <= CLIMBS[name]


def test_a_walk_counts_calls_upward_on_one_stack():
    path = runpy.run_path(PACKAGE.parent / "doc" / "development" / "path.py")
    files = ["svgp/a.py", "_linalg.py", "_fitting.py", "_linalg.py", "_sparse.py"]
    namespace = {}
    for i, file in enumerate(files):
        code = f"def f{i}():\n    " + (f"f{i + 1}()" if i + 1 < len(files) else "pass")
        exec(compile(code, path["PACKAGE"] / file, "exec"), namespace)
    order, climbs = path["walk"](lambda: (namespace["f0"](), namespace["f3"]()))
    assert order == ["svgp", "_linalg", "_fitting", "_sparse"]
    assert climbs == 2


@each_module(lambda path: location(path) not in NUMPY_MODULES)
def test_cores_know_tensors_only(path):
    assert "numpy" not in {name.split(".")[0] for name in imported_names(path)}


@each_module()
def test_only_public_scikit_learn(path):
    private = [
        name
        for name in imported_names(path)
        if name.split(".")[0] == "sklearn" and any(part[0] == "_" for part in name.split("."))
    ]
    assert not private


@each_module()
def test_nothing_prints_or_touches_global_state(path):
    found = {name for name in called_names(path) if FORBIDDEN_CALL.fullmatch(name)}
    assert found == PUT_BACK.get(location(path), set())
    assert not found or "torch.cuda.set_rng_state" in called_names(path)
    assert not [name for name in assigned_names(path) if name.split(".")[0] in LIBRARIES]


@each_module()
def test_docstring_says_the_module_s_one_job(path):
    assert ast.get_docstring(tree(path))


@each_module(lambda path: path.stem != "__init__")
def test_every_module_has_its_tests(path):
    own, method = path.stem.removeprefix("_"), owner(path).removeprefix("_")
    assert any((TESTS / f"test_{name}.py").is_file() for name in (own, method))


def test_imports_are_read_correctly(tmp_path, monkeypatch):
    package = tmp_path / "skgpsvm"
    module = package / "method" / "core.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "import numpy as np\n"
        "from sklearn.base import clone\n"
        "from . import sibling\n"
        "from .. import kernels\n"
        "def f():\n"
        "    from .._linalg import cholesky\n"
        "    torch.backends.cudnn.allow_tf32 = self.x[0] = False\n"
    )
    monkeypatch.setitem(globals(), "PACKAGE", package)
    assert list(imported_names(module)) == [
        "numpy",
        "sklearn.base.clone",
        "skgpsvm.method.sibling",
        "skgpsvm.kernels",
        "skgpsvm._linalg.cholesky",
    ]
    assert imported_owners(module) == {"method", "kernels", "_linalg"}
    assert owner(module) == "method"
    assert list(assigned_names(module)) == ["torch.backends.cudnn.allow_tf32"]
