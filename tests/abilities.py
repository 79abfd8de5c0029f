"""The table of what each estimator takes, from tags, signatures and checks of parameters.

``python tests/abilities.py`` prints the table of ``doc/user_guide/core.rst``.
"""

import inspect

from sklearn.gaussian_process.kernels import RBF
from sklearn.utils.validation import has_fit_parameter

import skgpsvm
from skgpsvm._families import FAMILIES
from skgpsvm._targets import LIKELIHOODS, VARYING_NOISE

HEADER = """\
.. list-table::
   :header-rows: 1
   :widths: 20 32 8 8 8 8 8 8

   * - Estimator
     - ``likelihood``
     - several outputs
     - ``noise_variance`` of rows
     - sparse X
     - NaN, categories
     - ``partial_fit``
     - function as ``optimizer``
"""


def takes(estimator, **parameters):
    """Return whether an estimator has parameters and takes their values."""
    if not parameters.keys() <= estimator.get_params().keys():
        return False
    try:
        estimator.set_params(**parameters)._check_parameters()
    except (TypeError, ValueError):
        return False
    return True


def streams(make):
    """Return "yes", the first solver with ``partial_fit``, or "" if there is none."""
    if hasattr(make(), "partial_fit"):
        return "yes"
    solvers = [name for name in make._rules.solvers if hasattr(make(solver=name), "partial_fit")]
    return f'``"{solvers[0]}"``' if solvers else ""


def row(make):
    """Return the cells of an estimator, a list of str."""
    tags, known = make().__sklearn_tags__(), (*LIKELIHOODS, *VARYING_NOISE, *FAMILIES)
    known = [*known, "softmax", "probit", "robust_max", "ordinal"]
    found = [
        tags.target_tags.multi_output,
        has_fit_parameter(make(), "noise_variance"),
        tags.input_tags.sparse,
        tags.input_tags.allow_nan and tags.input_tags.categorical,
        streams(make),
        takes(make(), kernel=RBF(), optimizer=lambda loss, theta, bounds: (theta, 0.0)),
    ]
    return [
        f":class:`{make.__name__}`",
        ", ".join(f"``{name}``" for name in known if takes(make(), likelihood=name)),
        *(cell if isinstance(cell, str) else "yes" if cell else "" for cell in found),
    ]


def table():
    """Return the table as reStructuredText."""
    made = (getattr(skgpsvm, name) for name in skgpsvm.__all__)
    rows = map(row, filter(inspect.isclass, made))
    lines = ("   * - " + "\n     - ".join(cells) for cells in rows)
    text = HEADER + "\n".join(lines) + "\n"
    return "\n".join(line.rstrip() for line in text.split("\n"))


if __name__ == "__main__":
    print(table())
