"""Paper 2, Figure 1 left: evidence of pima against time, by inner and outer loops.

Hernandez-Lobato and Hernandez-Lobato (2016), section 4.1: hyperparameters change after each update
of the sites, by the sign rule or by Adam, with the exact or the approximate gradient (eq. 4), or
after the sites have converged, by L-BFGS-B. Each
point is a fit of its own with so many iterations; m = 300, one thread. Run
``python -m benchmarks.reproduce.paper2_loops [--quick]``.
"""

import argparse
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF
from threadpoolctl import threadpool_limits

from skgpsvm import EPClassifier
from skgpsvm.solvers import ConvergedEP, InterleavedEP

from .. import _data, _report

INNER = 25, 50, 100, 250, 1000
SOLVERS = {
    "inner loop, sign rule": (InterleavedEP("sign", learning_rate=1e-2), INNER),
    "inner loop, sign rule, approximate": (
        InterleavedEP("sign", learning_rate=1e-2, gradient="approximate"),
        INNER,
    ),
    "inner loop, Adam": (InterleavedEP("adam"), INNER),
    "inner loop, Adam, approximate": (InterleavedEP("adam", gradient="approximate"), INNER),
    "outer loop, L-BFGS-B": (ConvergedEP(), (1, 3, 10, 30, 100)),
}


def measured(data, n_inducing, n_points):
    """Return a table of the evidence after so many iterations, and of the seconds they take."""
    d, rows = data.X_train.shape[1], []
    options = {"mean": "zero", "inducing_points": "random", "learn_inducing": True, "tol": 0.0}
    for name, (solver, iterations) in SOLVERS.items():
        for max_iter in iterations[:n_points]:
            kernel = 1.0 * RBF(np.full(d, np.sqrt(d)))
            model = EPClassifier(kernel, solver=solver, max_iter=max_iter, **options)
            model.set_params(n_inducing=n_inducing, random_state=0)
            start = time.process_time()
            model.fit(data.X_train, data.y_train)
            seconds = time.process_time() - start
            rows.append((name, max_iter, seconds, model.log_marginal_likelihood_value_))
            print(*rows[-1], flush=True)
    return pd.DataFrame(rows, columns=["loop", "iterations", "seconds", "evidence"])


def main():
    """Fit, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    n_inducing, n_points = (30, 2) if options.quick else (300, None)
    data = _data.split_classification("pima", 0)
    found = measured(data, n_inducing, n_points)
    parts = [
        _report.header(
            "Paper 2, Figure 1 left: evidence of pima by inner and outer loops",
            rows=f"{len(data.X_train)}, m = {n_inducing}; evidence in nats at the last sites",
        ),
        _report.table(found, digits=2),
        "The paper: the inner loop is much faster; the approximate gradient changes nothing.",
    ]
    _report.publish("paper2_loops", parts, write=not options.quick)
    if not options.quick:
        figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
        for name, curve in found.groupby("loop", sort=False):
            axis.plot(curve["seconds"], curve["evidence"], marker="o", ms=4, label=name)
        axis.set(xscale="log", xlabel="seconds", ylabel="evidence, nats")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
        _report.publish_picture("paper2_loops", figure)


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        main()
