"""Paper 4, section 5.1: odd against even digits of MNIST by stochastic steps, against time.

Evans and Nair (2020): random features, a mean-field posterior, and kernel parameters that the
steps learn by empirical Bayes. A graphics processor had 10^6 functions in the paper; one core has
10^5 here, and 60 passes, which take less than an hour. Beside it are conjugate gradients with
20,000 functions, which end sooner. The log loss of the predictive
median, as in the paper, is watched after each pass, and the watching takes none of the time. Run
``python -m benchmarks.reproduce.paper4_mnist [--quick]``; a run that was killed goes on.
"""

import argparse
import sys

import matplotlib.pyplot as plt
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss, zero_one_loss

from skgpsvm import QSGPClassifier
from skgpsvm.solvers import QuadruplyStochastic

from .. import _harness, _measure, _report
from .paper2_mnist import load

ROWS, QUICK_ROWS = 60_000, 600
CONJUGATE = "conjugate gradients, 20,000 functions"
COMMON = {
    "kernel": ConstantKernel(10.0) * RBF(6.0),
    "mean": "constant",
    "dtype": "float32",
    "random_state": 0,
}
MODELS = {
    "stochastic steps, 100,000 functions": QSGPClassifier(
        **COMMON,
        covariance="mean_field",
        solver=QuadruplyStochastic(
            "adagrad", n_sampled_basis=2000, decay=0.1, learn_hyperparameters=True
        ),
        n_basis=100_000,
        max_iter=60,
    ),
    CONJUGATE: QSGPClassifier(**COMMON, solver="cg", n_basis=20_000),
}
MEASURED = ("error_rate", "log_loss", *_measure.MEASURED)
PUBLISHED = "the paper, 10^6 functions: error 2.15 %, log loss of the median .068 in 666 s of a GPU"


def evaluate(n_rows, method):
    """Fit a model and measure it; seconds are of the processor."""
    data = load(n_rows)

    def fit(X, y, seed, clock):
        return MODELS[method].set_callbacks(*clock.callbacks()).fit(X, y)

    def measure(model):
        mean, _ = model.latent_mean_and_variance(data.X_test)
        median = model.predict_proba_from_latent(mean[:, None])
        return {
            "error_rate": zero_one_loss(data.y_test, median.argmax(1)),
            "log_loss": log_loss(data.y_test, median),
        }

    return _measure.measured_fit(fit, data, 0, measure, "log_loss", watching=True)


def drawn(results):
    """Return a figure of the log loss of the median against time, a line per method."""
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for method, text in results.set_index("method")["curve"].items():
        axis.step(*_measure.curve(text), where="post", label=method)
    axis.axhline(0.068, color="0.6", lw=1, ls="--", label="the paper, 1,000,000 functions")
    axis.set(yscale="log", xlabel="seconds of one core", ylabel="log loss of the median")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def main():
    """Run what is missing, and write the report and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    _harness.add_options(parser)
    options = parser.parse_args()
    n_rows = QUICK_ROWS if options.quick else ROWS
    code = _harness.package_code()
    tasks = [{"n_rows": n_rows, "method": name, "code": code} for name in MODELS]
    path = None if options.quick else _harness.RESULTS / "paper4_mnist.csv"
    results = _harness.run_tasks(evaluate, tasks, MEASURED, path, options.jobs, options.methods)
    parts = [
        _report.header(
            f"MNIST, odd against even, {n_rows} rows: stochastic steps and conjugate gradients",
            published=PUBLISHED,
            log_loss="of the predictive median",
            processes=f"{options.jobs} of one thread",
        ),
        *_report.watched(results, f"{min(2 * n_rows, 10_000)} test digits", CONJUGATE),
    ]
    _report.publish("paper4_mnist", parts, write=not options.quick)
    if not options.quick:
        _report.publish_picture("paper4_mnist", drawn(results))
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
