"""Paper 2, Figures 3 and 4: odd against even digits of MNIST, log-loss and error against time.

Hernandez-Lobato and Hernandez-Lobato (2016), section 6.3, with m = 200: `EPClassifier` in
minibatches and by updates of all rows, `SVGPClassifier` with the same likelihood, kernel and
points, and GPyTorch's with Bernoulli labels. One thread each; the log-loss of the 10,000 test
digits is watched along the way. Run ``python -m benchmarks.reproduce.paper2_mnist [--quick]``.
"""

import argparse
import sys
from functools import partial

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss, zero_one_loss

from skgpsvm import EPClassifier, SVGPClassifier
from skgpsvm.solvers import InterleavedEP, NaturalGradient

from .. import _data, _harness, _measure, _peers, _report

ROWS, M = 60_000, 200
COMMON = {
    "kernel": ConstantKernel(10.0) * RBF(6.0),
    "mean": "constant",
    "n_inducing": M,
    "learn_inducing": True,
    "random_state": 0,
}
MODELS = {
    "EPClassifier, minibatches": EPClassifier(
        **COMMON, solver=InterleavedEP(batch_size=512), max_iter=8
    ),
    "EPClassifier, all rows": EPClassifier(**COMMON, solver="sep", max_iter=40),
    "SVGPClassifier": SVGPClassifier(
        **COMMON, likelihood="probit", solver=NaturalGradient(batch_size=512), max_iter=15
    ),
}
MEASURED = ("error_rate", "log_loss", *_measure.MEASURED)
PUBLISHED = "the paper: SEP error 2.7 %, log-loss 0.0694; SVI error 2.2 %, log-loss 0.0655"


def load(n_rows):
    """The `Split` of the first training and twice as many test digits, pixels in [0, 1]."""
    with np.load(_data.folder() / "mnist.npz", allow_pickle=False) as archive:
        X, y, X_test, y_test = (
            archive[name] for name in ("X_train", "y_train", "X_test", "y_test")
        )
    X, X_test = (part.reshape(len(part), -1).astype(np.float32) / 255 for part in (X, X_test))
    y, y_test = ((part % 2).astype(np.int64) for part in (y, y_test))
    few = slice(2 * n_rows)
    return _data.Split(X[:n_rows], y[:n_rows], X_test[few], y_test[few], 2)


def fit(name, X, y, seed, clock):
    """`Method.fit` of a model."""
    if name in MODELS:
        return MODELS[name].set_callbacks(*clock.callbacks()).fit(X, y)
    return _peers.GPyTorchSVGP(M, seed).fit(X, y, clock.watch)


def evaluate(n_rows, method):
    """Fit a model and measure it; seconds are of the processor."""
    data = load(n_rows)

    def measure(model):
        p = model.predict_proba(data.X_test)
        error = zero_one_loss(data.y_test, p.argmax(1))
        return {"error_rate": error, "log_loss": log_loss(data.y_test, p)}

    return _measure.measured_fit(partial(fit, method), data, 0, measure, "log_loss", watching=True)


def main():
    """Run what is missing and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--rows", type=int, default=ROWS, help="the first so many; printed only")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread; default 2")
    options = parser.parse_args()
    n_rows, peer = 300 if options.quick else options.rows, "GPyTorch SVGP"
    kept = n_rows == ROWS
    codes = dict.fromkeys(MODELS, _harness.package_code())
    codes[peer] = _peers.svgp_methods(M, ())[peer].code
    tasks = [{"n_rows": n_rows, "method": name, "code": code} for name, code in codes.items()]
    path = _harness.RESULTS / "paper2_mnist.csv" if kept else None
    results = _harness.run_tasks(evaluate, tasks, MEASURED, path, options.jobs)
    parts = [
        _report.header(
            f"MNIST, odd against even, {n_rows} rows, m = {M}",
            published=PUBLISHED,
            processes=f"{options.jobs} of one thread",
        ),
        *_report.watched(results, f"{min(2 * n_rows, 10_000)} test digits", peer),
    ]
    _report.publish("paper2_mnist", parts, write=kept)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
