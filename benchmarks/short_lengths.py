"""Effects of one or two of several features, and real sets, with and without short length scales.

The first table has divergences from the true probabilities of generated effects, the second log
losses of real sets. Both searches are of the same fits: one of them takes no length scale for
missing. It takes some minutes. Run ``python -m benchmarks.short_lengths [--use development]``.
"""

import argparse
import time
import warnings
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.special import expit, kl_div
from sklearn.base import clone
from sklearn.metrics import log_loss

from skgpsvm import DecoupledGPClassifier, EPClassifier, SVGPClassifier
from skgpsvm._hyperparameters.short_lengths import SiteEvidence

from . import _data, _report

N_DRAWS, N_NEW, N_ROWS, MOST_ROWS = 6, 1500, 500, 1500
MODELS = {
    "EP": EPClassifier(random_state=0),
    "SVGP": SVGPClassifier(random_state=0),
    "Decoupled": DecoupledGPClassifier(random_state=0),
}
# Latent functions, with the number of features and of rows.
EFFECTS = {
    "2 sin 4x": (lambda X: 2 * np.sin(4 * X[:, 0]), 6, 1000),
    "2 sin 4x + z": (lambda X: 2 * np.sin(4 * X[:, 0]) + X[:, 1], 6, 1000),
    "2 sin 3x + z": (lambda X: 2 * np.sin(3 * X[:, 0]) + X[:, 1], 6, 300),
    "2 sin (3x + 3z)": (lambda X: 2 * np.sin(3 * (X[:, 0] + X[:, 1])), 4, 1500),
    "2 sin x + z^2": (lambda X: 2 * np.sin(X[:, 0]) + X[:, 1] ** 2 - 1, 5, 500),
    "x - z / 2": (lambda X: X[:, 0] - X[:, 1] / 2, 8, 300),
    "none": (lambda X: 0 * X[:, 0], 8, 300),
}
METHODS = [f"{name}{search}" for name in MODELS for search in (" without", "")]


def fitted(model, X, y):
    """Return the model without and with the search, and the seconds of processor time of each."""
    for search in (False, True):
        start = time.process_time()
        with patch.object(SiteEvidence, "shortened", SiteEvidence.shortened if search else _none):
            found = clone(model).fit(X, y)
        yield found, time.process_time() - start


def _none(*_):
    return None


def divergences(effect, seed):
    """Return the mean divergences from the true probabilities of new rows, and seconds."""
    latent, d, n = effect
    rng = np.random.default_rng(seed)
    X, X_new = rng.normal(size=(n, d)), rng.normal(size=(N_NEW, d))
    y = (rng.random(n) < expit(latent(X))).astype(int)
    true = expit(latent(X_new))
    true = np.stack([1 - true, true], 1)
    pairs = [pair for model in MODELS.values() for pair in fitted(model, X, y)]
    losses = [kl_div(true, found.predict_proba(X_new)).sum(1).mean() for found, _ in pairs]
    return losses, [seconds for _, seconds in pairs]


def log_losses(name):
    """Return the log losses of the test rows of a set, and seconds."""
    split = _data.split_classification(name, 0)
    X, y = split.X_train[:N_ROWS], split.y_train[:N_ROWS]
    losses, times = [], []
    for model in MODELS.values():
        for found, seconds in fitted(model, X, y):
            p = np.zeros((len(split.X_test), split.n_classes))
            p[:, found.classes_] = found.predict_proba(split.X_test)
            losses.append(log_loss(split.y_test, p, labels=range(split.n_classes)))
            times.append(seconds)
    return losses, times


def table(found, title, first):
    """Return a table of losses by row, their mean, and the sums of the seconds."""
    rows = [[name, *losses] for name, (losses, _) in found.items()]
    losses, times = (np.array(part) for part in zip(*found.values(), strict=True))
    rows += [["mean", *losses.mean(0)], ["seconds", *times.sum(0)]]
    return _report.table(pd.DataFrame(rows, columns=[first, *METHODS]), title)


def main():
    """Print the losses of each classifier with and without the search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--use", choices=["development", "evaluation"], default="evaluation")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    evaluation = _data.EVALUATION["classification"]
    sets = {
        name: log_losses(name)
        for name, info in _data.classification_sets(min_rows=150).items()
        if (name in evaluation) == (options.use == "evaluation") and info.n <= MOST_ROWS
    }
    generated = {
        name: tuple(np.mean([divergences(effect, seed) for seed in range(N_DRAWS)], 0))
        for name, effect in EFFECTS.items()
    }
    head = _report.header("Short length scales of one or two features", use=options.use)
    parts = [
        table(generated, f"Divergence from the truth, mean of {N_DRAWS} draws", "effect"),
        table(sets, f"Log loss of real sets, at most {N_ROWS} rows", "set"),
    ]
    _report.publish(f"short_lengths-{options.use}", [head, *parts], write=True)


if __name__ == "__main__":
    main()
