"""The storeys of the package, and the picture of them that the documentation shows.

`STOREYS` is the plan; imports are read from the sources. ``python doc/development/storeys.py``
prints the imports that go up, of which there should be none.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "skgpsvm"
STOREYS = {
    "Methods and tools": [
        "svgp",
        "bayesian_svm",
        "expectation_propagation",
        "decoupled",
        "quadruply_stochastic",
        "additive",
        "hybrid",
        "active_learning",
        "adversarial",
        "inspection",
        "callbacks",
        "data",
        "persistence",
    ],
    "Estimators": [
        "_estimators",
        "_sparse",
        "_variational",
        "_conjugate_gradients",
        "_parameters",
        "solvers",
        "_doubts",
    ],
    "Fitting": [
        "_fitting",
        "_inference",
        "_hyperparameters",
        "_objectives",
        "_collapsed",
        "_evidence",
        "_sites",
        "_hinge_sites",
        "_fitted_models",
        "_calibration",
        "_local_variances",
        "_noise",
        "_predictive",
        "_targets",
        "_families",
        "_problem",
        "_optim",
        "_scoring",
    ],
    "Foundations": [
        "_posteriors",
        "_bases",
        "_features",
        "_preconditioners",
        "_panels",
        "kernels",
        "likelihoods",
        "inducing",
        "_data",
        "_rows",
        "_robust",
        "_merging",
        "_csr",
        "_torch_kernels",
        "_distributed",
        "_transfers",
        "_memory",
        "_scales",
        "_validation",
        "_linalg",
        "_quadrature",
        "_isolation",
        "_typing",
        "_forks",
        "exceptions",
    ],
}
LEVELS = {module: level for level, modules in enumerate(STOREYS.values()) for module in modules}


def imports():
    """Return pairs of modules of which the first imports the second, with their counts."""
    counts = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts == ("__init__",):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.ImportFrom) and node.level):
                continue
            base = parts[: len(parts) - node.level]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                target = (*base, *name.split("."))[0]
                if target != parts[0] and target in LEVELS:
                    counts[parts[0], target] = counts.get((parts[0], target), 0) + 1
    return counts


def upward():
    """Return the imports that go up a storey."""
    return sorted(pair for pair in imports() if LEVELS[pair[0]] > LEVELS[pair[1]])


def draw(path):
    """Draw the storeys, and how many imports lead from each to those below it."""
    import matplotlib.pyplot as plt

    between = {}
    for (one, other), count in imports().items():
        pair = LEVELS[one], LEVELS[other]
        between[pair] = between.get(pair, 0) + count
    figure, axes = plt.subplots(figsize=(9, 5.6))
    height, per_line = 1.0, 5
    for level, (name, modules) in enumerate(STOREYS.items()):
        y = -level * 1.35
        axes.add_patch(plt.Rectangle((0, y), 10, height, fc=f"C{level}", alpha=0.18, ec="none"))
        axes.text(0.12, y + height - 0.12, name, va="top", weight="bold", size=10)
        lines = [modules[i : i + per_line] for i in range(0, len(modules), per_line)]
        text = "\n".join("   ".join(line) for line in lines)
        axes.text(0.12, y + 0.08, text, va="bottom", size=8, family="monospace")
        for below in range(level + 1, len(STOREYS)):
            if count := between.get((level, below)):
                x = 9.55 - 0.5 * (below - level - 1) - 0.35 * (level % 2)
                start, end = (x, y), (x, -below * 1.35 + height)
                axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "0.4"})
                axes.text(x + 0.05, y - 0.2, count, size=8, color="0.3")
    axes.set(xlim=(0, 10), ylim=(-1.35 * (len(STOREYS) - 1) - 0.05, height + 0.05))
    axes.set_axis_off()
    figure.savefig(path, bbox_inches="tight", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    for one, other in upward():
        print(f"{one} imports {other}")
