"""Effects of one or two of several features, and real sets, with and without short length scales.

Two tables have divergences from the true probabilities of generated effects and log losses of real
sets, two more the errors of regressions and their negative log densities. Each model is fitted with
the search and with the search switched off. Seconds of generated effects are those of one draw. It
takes half an hour. Run ``python -m benchmarks.short_lengths [--use development]``.
"""

import argparse
import time
import warnings
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.special import expit, kl_div
from scipy.stats import norm
from sklearn.base import clone
from sklearn.metrics import log_loss

from skgpsvm import (
    BayesianSVC,
    DecoupledGPClassifier,
    EPClassifier,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._hyperparameters.short_lengths import SiteEvidence

from . import _data, _report

N_DRAWS, N_NEW, N_ROWS, MOST_ROWS, MOST_FEATURES = 6, 1500, 500, 1500, 60
CLASSIFIERS = {
    "SVM": BayesianSVC(random_state=0),
    "EP": EPClassifier(random_state=0),
    "SVGP": SVGPClassifier(random_state=0),
    "Decoupled": DecoupledGPClassifier(random_state=0),
}
REGRESSORS = {"SVGP": SVGPRegressor(random_state=0)}
NOISE = 0.3  # standard deviation, where that of the effects is 1
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
# Functions of regressions may vary more quickly, since noise hides less than labels do.
SHORTER_EFFECTS = {
    "sin 10x + z": (lambda X: np.sin(10 * X[:, 0]) + X[:, 1], 4, 1000),
    "sin 5x + z": (lambda X: np.sin(5 * X[:, 0]) + X[:, 1], 6, 1000),
    "sin 5x + z, 300": (lambda X: np.sin(5 * X[:, 0]) + X[:, 1], 6, 300),
    "sin (5x + 5z)": (lambda X: np.sin(5 * (X[:, 0] + X[:, 1])), 8, 500),
    "sin x + z^2": (lambda X: np.sin(X[:, 0]) + X[:, 1] ** 2, 5, 300),
    "x - z / 2": (lambda X: X[:, 0] - X[:, 1] / 2, 8, 300),
    "none": (lambda X: 0 * X[:, 0], 8, 300),
}


def fitted(model, X, y):
    """Return the model without and with the search, and the seconds of processor time of each."""
    for search in (False, True):
        start = time.process_time()
        with patch.object(SiteEvidence, "shortened", SiteEvidence.shortened if search else _none):
            found = clone(model).fit(X, y)
        yield found, time.process_time() - start


def _none(*_):
    return None


def compared(models, X, y, loss):
    """Return the losses of models without and with the search, and the seconds of each."""
    pairs = [pair for model in models.values() for pair in fitted(model, X, y)]
    return [loss(found) for found, _ in pairs], [seconds for _, seconds in pairs]


def divergences(effect, seed):
    """Return the mean divergences from the true probabilities of new rows, and seconds."""
    latent, d, n = effect
    rng = np.random.default_rng(seed)
    X, X_new = rng.normal(size=(n, d)), rng.normal(size=(N_NEW, d))
    y = (rng.random(n) < expit(latent(X))).astype(int)
    true = expit(latent(X_new))
    true = np.stack([1 - true, true], 1)
    return compared(
        CLASSIFIERS, X, y, lambda model: kl_div(true, model.predict_proba(X_new)).sum(1).mean()
    )


def errors(effect, seed):
    """Return the errors of the means of new rows, in units of the noise, and seconds."""
    latent, d, n = effect
    rng = np.random.default_rng(seed)
    X, X_new = rng.normal(size=(n, d)), rng.normal(size=(N_NEW, d))
    unit = latent(X).std() or 1.0
    y = latent(X) / unit + NOISE * rng.normal(size=n)
    true = latent(X_new) / unit
    return compared(
        REGRESSORS, X, y, lambda model: np.sqrt(np.mean((model.predict(X_new) - true) ** 2)) / NOISE
    )


def log_losses(name):
    """Return the log losses of the test rows of a set, and seconds."""
    split = _data.split_classification(name, 0)

    def loss(model):
        p = np.zeros((len(split.X_test), split.n_classes))
        p[:, model.classes_] = model.predict_proba(split.X_test)
        return log_loss(split.y_test, p, labels=range(split.n_classes))

    return compared(CLASSIFIERS, split.X_train[:N_ROWS], split.y_train[:N_ROWS], loss)


def log_densities(name):
    """Return the negative log densities of test rows of a set, nats, and seconds."""
    split = _data.split_regression(name, 0)

    def loss(model):
        mean, std = model.predict(split.X_test[:N_NEW], return_std=True)
        return -norm.logpdf(split.y_test[:N_NEW], mean, std).mean()

    some = np.random.default_rng(0).permutation(len(split.y_train))[:N_ROWS]
    return compared(REGRESSORS, split.X_train[some], split.y_train[some], loss)


def table(found, models, title, first):
    """Return a table of losses by row, their mean, and the sums of the seconds."""
    rows = [[name, *losses] for name, (losses, _) in found.items()]
    losses, times = (np.array(part) for part in zip(*found.values(), strict=True))
    rows += [["mean", *losses.mean(0)], ["seconds", *times.sum(0)]]
    methods = [f"{name}{search}" for name in models for search in (" without", "")]
    return _report.table(pd.DataFrame(rows, columns=[first, *methods]), title)


def main():
    """Print the losses of each model with and without the search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--use", choices=["development", "evaluation"], default="evaluation")
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    def sets(kind, found, loss):
        of_use = (
            name
            for name in found
            if (name in _data.EVALUATION[kind]) == (options.use == "evaluation")
        )
        return {name: loss(name) for name in of_use}

    def generated(effects, loss):
        return {
            name: tuple(np.mean([loss(effect, seed) for seed in range(N_DRAWS)], 0))
            for name, effect in effects.items()
        }

    infos = _data.classification_sets(min_rows=150).items()
    small = [name for name, info in infos if info.n <= MOST_ROWS]
    narrow = [name for name, size in _data.regression_sets().items() if size.d <= MOST_FEATURES]
    at_most = f"at most {N_ROWS} rows"
    parts = [
        table(
            generated(EFFECTS, divergences),
            CLASSIFIERS,
            f"Divergence from the truth, mean of {N_DRAWS} draws",
            "effect",
        ),
        table(
            sets("classification", small, log_losses),
            CLASSIFIERS,
            f"Log loss of real sets, {at_most}",
            "set",
        ),
        table(
            generated(SHORTER_EFFECTS, errors),
            REGRESSORS,
            f"Error in units of the noise, mean of {N_DRAWS} draws",
            "effect",
        ),
        table(
            sets("regression", narrow, log_densities),
            REGRESSORS,
            f"Negative log density of real sets, {at_most}",
            "set",
        ),
    ]
    head = _report.header("Short length scales of one feature or two", use=options.use)
    _report.publish(f"short_lengths-{options.use}", [head, *parts], write=True)


if __name__ == "__main__":
    main()
