"""The path of the data through a fit, and the picture of it that the documentation shows.

Fits are run and their calls recorded, so that the picture is that of the code.
"""

import runpy
import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np

import skgpsvm

PACKAGE = Path(skgpsvm.__file__).parent
PLAN = runpy.run_path(Path(__file__).with_name("storeys.py"))
SHOWN = "SVGPRegressor", "BayesianSVC", "DecoupledGPRegressor", "AdditiveGPRegressor"


@cache
def module_of(filename):
    """Return the module or subpackage of a file in the plan of the storeys, or None."""
    path = Path(filename)
    if not path.is_relative_to(PACKAGE):
        return None
    owner = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return owner if owner in PLAN["LEVELS"] else None


def walk(function, *args):
    """Return the modules that a call enters, in their order, and how often it climbs.

    Returns
    -------
    order : list of str
        Modules in the order of their first calls.
    climbs : int
        The largest number of calls on one stack from a module to one of a higher storey.
    """
    order, stack, most = {}, [], 0

    def record(frame, event, _):
        nonlocal most
        if event == "return" and stack:
            stack.pop()
        if event != "call":
            return
        module = module_of(frame.f_code.co_filename)
        above, climbs = stack[-1] if stack else (None, 0)
        if module is None:
            module = above
        elif above is not None:
            climbs += PLAN["LEVELS"][module] < PLAN["LEVELS"][above]
        if module is not None:
            order[module] = None
        most = max(most, climbs)
        stack.append((module, climbs))

    sys.setprofile(record)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return list(order), most


def walk_of_fit(name):
    """Return the `walk` of a fit of 60 rows, of few iterations, by the name of an estimator."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=60)
    model = getattr(skgpsvm, name)(max_iter=2)
    y = y if name.endswith("Regressor") else y > 0
    with warnings.catch_warnings(action="ignore"):
        return walk(model.fit, X, y)


def draw(path):
    """Draw the order in which fits enter the modules, each at the height of its storey."""
    import matplotlib.pyplot as plt

    storeys = list(PLAN["STOREYS"])
    figure, every = plt.subplots(len(SHOWN), figsize=(9, 13), layout="constrained")
    for axes, name in zip(every, SHOWN, strict=True):
        order, climbs = walk_of_fit(name)
        heights = [-PLAN["LEVELS"][module] for module in order]
        axes.step(range(len(order)), heights, where="mid", color="0.7", lw=1)
        for x, (module, y) in enumerate(zip(order, heights, strict=True)):
            axes.plot(x, y, "o", color=f"C{-y}", ms=5)
            axes.annotate(module, (x, y), (2, 4), textcoords="offset points", rotation=45, size=7)
        axes.set_title(f"{name}: at most {climbs} calls upward on one stack", loc="left", size=10)
        axes.set_yticks([-level for level in range(len(storeys))], storeys)
        axes.set(xlim=(-0.5, len(order) + 1), ylim=(0.9 - len(storeys), 1), xticks=[])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    for each in SHOWN:
        print(each, *walk_of_fit(each))
