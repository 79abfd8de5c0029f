"""Paper 3: its parametrizations, and both starts of the coupled process, on kin40k.

Cheng and Boots (2017): svdgp (Algorithm 1), shared bases (appendix A.2) and the hybrid form (eqs.
11 to 14) beside the orthogonal form; svi from the collapsed bound of 2000 rows, as `fit` starts,
and from the first minibatch, as in the paper. Models and step sizes are those of `paper3_table`.
Run ``python -m benchmarks.reproduce.paper3_forms [--quick]``.
"""

import argparse
import time
import warnings

import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from threadpoolctl import threadpool_limits

from .. import _data, _report
from .paper3_curves import SET, M, step_sizes
from .paper3_table import found_by_ours, make_svdgp, make_svi

N_STEPS = 500
FORMS = ("decoupled", "shared", "hybrid", "orthogonal")


def started(model, X, y):
    """Return a model with kernel and inducing points of its first minibatch, for a warm start."""
    model.set_params(warm_start=True)
    first = slice(model.solver.batch_size)
    return model.partial_fit(X[first], y[first])


def main():
    """Fit, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    data, rates = _data.split_regression(SET, 0), step_sizes()
    X, y = data.X_train, data.y_train
    n_steps = 20 if options.quick else N_STEPS
    models = {form: make_svdgp(form)(X, M, n_steps, rates["svdgp"], 0) for form in FORMS}
    models["svi, collapsed start"] = make_svi(X, M, n_steps, rates["svi"], 0)
    models["svi, online start"] = started(make_svi(X, M, n_steps, rates["svi"], 0), X, y)
    rows = []
    for name, model in models.items():
        start = time.process_time()
        model.fit(X, y)
        seconds = time.process_time() - start
        mean, *_ = found_by_ours(model, X, y, data.X_test)
        rows.append((name, 1 - r2_score(data.y_test, mean), model.elbo_ / len(y), seconds))
        print(*rows[-1], flush=True)
    settings = {
        "svdgp": f"{M**2} bases of the mean, {M} of the covariance; svi: {8 * M} inducing points",
        "iterations": f"{n_steps} of {8 * M} rows, or up to a pass more",
        "step sizes": {name: rates[name] for name in ("svdgp", "svi")},
    }
    columns = ["form", "error", "bound per row", "seconds"]
    parts = [
        _report.header(f"Paper 3: forms and starts on {SET}", **settings),
        _report.table(pd.DataFrame(rows, columns=columns)),
        "Error: mean squared error over the variance of the test targets. The decoupled form is "
        "svdgp.",
    ]
    _report.publish("paper3_forms", parts, write=not options.quick)


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        main()
