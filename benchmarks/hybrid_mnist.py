"""MNIST by the paper's network: Bayesian SVM against softmax, attacked, and out of distribution.

Wistuba and Rawat (2018), sections 4.2 and 4.3.2: Figures 4 and 6. Both networks are trained for
the same number of epochs in one run. Attacks are by the fast gradient sign, computed for each
network separately. For the comparison out of distribution, the networks are trained on digits 0 to
4 only. Run ``python -m benchmarks.hybrid_mnist [--quick]``; the results in ``results`` are of
``--epochs 8``.
"""

import argparse
import os
import time
from datetime import date

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from skgpsvm import HybridBayesianSVC
from skgpsvm.active_learning import least_confident, predictive_entropy
from skgpsvm.adversarial import detection_roc, fast_gradient_sign
from skgpsvm.hybrid import MNISTExtractor

from . import _report
from ._data import folder
from ._harness import RESULTS
from ._softmax import SoftmaxNetwork

STRENGTHS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
HELD_OUT = 0.1
ATTACKED = 2000


def load():
    """Return images (n, 1, 28, 28), with pixels in [0, 1], and digits: training and test rows."""
    with np.load(folder() / "mnist.npz") as file:
        images = {name: file[f"X_{name}"] for name in ("train", "test")}
        digits = [file[f"y_{name}"].astype(int) for name in ("train", "test")]
    shaped = [(part.reshape(-1, 1, 28, 28) / 255).astype(np.float32) for part in images.values()]
    return shaped[0], digits[0], shaped[1], digits[1]


def calibration_error(y, p, n_bins=15):
    """Return the expected calibration error: mean gap of confidence and accuracy, over bins."""
    confidence, right = p.max(1), p.argmax(1) == y
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gaps = [abs((right[bins == b] - confidence[bins == b]).sum()) for b in np.unique(bins)]
    return sum(gaps) / len(y)


def timed(model, X, y):
    """Return the seconds of a fit: processor time on the CPU, wall time on another device."""
    clock = time.perf_counter if model.device else time.process_time
    start = clock()
    model.fit(X, y)
    return clock() - start


def quality(y, p):
    """Return accuracy, log loss and calibration error."""
    return {
        "accuracy": accuracy_score(y, p.argmax(1)),
        "log-loss": log_loss(y, p),
        "calibration error": calibration_error(y, p),
    }


def tempered(logits, y, new_logits):
    """Return probabilities at the temperature with the lowest log loss of held-out labels."""

    def loss(log_scale):
        return log_loss(y, softmax(np.exp(log_scale) * logits, axis=1))

    scale = np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    return softmax(scale * new_logits, axis=1)


def attacked(models, X, y):
    """Return a table of accuracy, mean of 1 - max p and area under the ROC curves, by strength."""
    rows = []
    for strength in STRENGTHS:
        row = {"strength": strength}
        for name, model in models.items():
            moved = fast_gradient_sign(model, X, y, strength, clip=(0.0, 1.0))
            score = least_confident if name == "Bayesian SVM" else predictive_entropy
            found = detection_roc(model, X, moved, score)
            row[f"accuracy, {name}"] = accuracy_score(y, model.predict(moved))
            if name == "Bayesian SVM":
                row["mean of 1 - max p"] = found.attacked.mean()
            row[f"area, {name}"] = found.auc if strength else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def latent_variance(model, X):
    """Return the largest variance of each row's latents."""
    return model.latent_mean_and_variance(X)[1].max(1)


def draw(frame, path):
    """Draw accuracy and score, and the detectors, against the strength."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    shown = {
        "Bayesian SVM": ("C0", "1 - max p, Bayesian SVM"),
        "softmax": ("C1", "entropy, softmax"),
    }
    for name, (color, detector) in shown.items():
        label = f"accuracy, {name}"
        left.plot(frame["strength"], frame[label], "o-", color=color, ms=4, label=label)
        right.plot(
            frame["strength"], frame[f"area, {name}"], "o-", color=color, ms=4, label=detector
        )
    ratio = "mean of 1 - max p"
    left.plot(frame["strength"], frame[ratio], "s--", color="C2", ms=4, label=ratio)
    left.legend(frameon=False, fontsize=8, loc="upper right")
    right.legend(frameon=False, loc="lower right")
    right.axhline(0.95, color="0.7", lw=0.8)
    left.set(ylim=(0, 1.02), title="Under attack")
    right.set(ylim=(0.4, 1.02), title="Area under the detector's curve")
    for axis in (left, right):
        axis.set_xlabel("strength, of pixels in [0, 1]")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main():
    """Train and attack the networks, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=60_000, help="the first so many")
    parser.add_argument("--device", default=None, help="default the CPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="threads; default all")
    options = parser.parse_args()
    torch.set_num_threads(options.jobs)
    n_rows, epochs = (500, 1) if options.quick else (options.rows, options.epochs)
    n_test, n_attacked = (500, 100) if options.quick else (None, ATTACKED)
    X, y, X_test, y_test = load()
    X, y, X_test, y_test = X[:n_rows], y[:n_rows], X_test[:n_test], y_test[:n_test]
    n_fit = n_rows - int(HELD_OUT * n_rows)

    def networks(n_epochs):
        common = {"max_iter": n_epochs, "batch_size": 128, "device": options.device}
        common |= {"random_state": 0}
        return {
            "Bayesian SVM": HybridBayesianSVC(
                MNISTExtractor, validation_fraction=HELD_OUT, **common
            ),
            "softmax": SoftmaxNetwork(MNISTExtractor, **common),
        }

    def fitted(models, X, y):
        n_fit = len(X) - int(HELD_OUT * len(X))
        return {
            "Bayesian SVM": timed(models["Bayesian SVM"], X, y),
            "softmax": timed(models["softmax"], X[:n_fit], y[:n_fit]),
        }

    models = networks(epochs)
    taken = fitted(models, X, y)
    p = {name: model.predict_proba(X_test) for name, model in models.items()}
    held = models["softmax"].decision_function(X[n_fit:])
    logits = models["softmax"].decision_function(X_test)
    p["softmax, tempered"] = tempered(held, y[n_fit:], logits)
    seconds = {name: value / epochs for name, value in taken.items()}
    table = pd.DataFrame(
        [
            {"network": name, **quality(y_test, found), "seconds an epoch": seconds.get(name)}
            for name, found in p.items()
        ]
    )
    under_attack = attacked(models, X_test[:n_attacked], y_test[:n_attacked])

    known, known_test = y < 5, y_test < 5
    few = networks(max(epochs - 1, 1))
    fitted(few, X[known], y[known])
    scores = {
        "1 - max p, Bayesian SVM": least_confident(few["Bayesian SVM"], X_test),
        "entropy, Bayesian SVM": predictive_entropy(few["Bayesian SVM"], X_test),
        "latent variance, Bayesian SVM": latent_variance(few["Bayesian SVM"], X_test),
        "entropy, softmax": predictive_entropy(few["softmax"], X_test),
    }
    novelty = pd.DataFrame(
        [{"score": name, "area": roc_auc_score(~known_test, s)} for name, s in scores.items()]
    )
    parts = [
        _report.header(
            f"MNIST, {n_rows} rows, {epochs} epochs of the paper's network",
            device=options.device or "CPU, seconds of processor time",
            attacks=f"fast gradient sign on {n_attacked} test images, clipped to [0, 1]",
            threads=torch.get_num_threads(),
        ),
        _report.table(table, f"{len(y_test):,} test digits", digits=4),
        f"Time an epoch, of softmax's: {seconds['Bayesian SVM'] / seconds['softmax']:.2f}.",
        _report.table(under_attack, "Under attack", digits=3),
        _report.table(novelty, "Trained on digits 0 to 4: areas, 5 to 9 against those", digits=3),
    ]
    write = not options.quick
    _report.publish("hybrid_mnist", parts, write=write)
    if write:
        draw(under_attack, RESULTS / f"hybrid_mnist-{date.today()}.png")


if __name__ == "__main__":
    main()
