"""Benchmark data sets: their location, which of them are usable, and prepared, seeded splits."""

import os
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"
# The sets for evaluation. Constants are chosen on the others, the development sets.
EVALUATION = {
    "classification": (
        "arrhythmia australian balance_scale breast_cancer cmc column2C crabs cylinder_bands ecoli "
        "glass heart heart_h hypothyroid iris letter mushroom optdigits pendigits primary_tumor "
        "sick solar_flare2 soybean spect spectrometer tae vehicle vowel wine"
    ).split(),
    "regression": ("autompg concrete energy keggdirected kin40k pol pumadyn32nm sml yacht").split(),
}
# Regression sets of scikit-learn that need no download, for development: X and y by name.
_SKLEARN = {
    "diabetes": partial(load_diabetes, return_X_y=True),
    "friedman1": partial(make_friedman1, 500, noise=1.0, random_state=0),
    "friedman2": partial(make_friedman2, 500, noise=125.0, random_state=0),
    "friedman3": partial(make_friedman3, 500, noise=0.1, random_state=0),
}


@dataclass(frozen=True)
class Info:
    """Size of a classification set: rows, features, classes, and rows of the smallest class."""

    n: int
    d: int
    c: int
    smallest: int


@dataclass(frozen=True)
class Split:
    """Prepared split; targets are floats, or codes 0 .. n_classes - 1 of all classes of the set."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    n_classes: int


def folder():
    """Return the folder of the data sets; exit with a message if it does not exist."""
    path = Path(os.environ.get("SKGPSVM_DATA", _DEFAULT))
    if not (path / "classification").is_dir():
        print(
            "Skipped: no data sets. Set SKGPSVM_DATA to a folder with classification/<name>.npz "
            "(X, y), or put it at ../shared/data beside the repository."
        )
        sys.exit(0)
    return path


def load_classification(name):
    """Return ``X`` in float64 (n, d), with NaN for missing values, and class codes ``y`` (n,)."""
    with np.load(folder() / "classification" / f"{name}.npz", allow_pickle=False) as archive:
        return archive["X"].astype(np.float64), archive["y"]


@cache
def classification_sets(min_rows=0, min_classes=2):
    """Return `Info` by name for sets with at least two rows of every class, smallest set first."""
    found = {}
    for path in (folder() / "classification").glob("*.npz"):
        X, y = load_classification(path.stem)
        counts = np.bincount(y)
        info = Info(*X.shape, len(counts), int(counts.min()))
        if info.smallest >= 2 and info.n >= min_rows and info.c >= min_classes:
            found[path.stem] = info
    return dict(sorted(found.items(), key=lambda item: (item[1].n, item[0])))


@dataclass(frozen=True)
class Size:
    """Size of a regression set: rows and features."""

    n: int
    d: int


@cache
def regression_sets():
    """Return `Size` by name, smallest set first; those of scikit-learn are among them."""
    found = {name: Size(*load()[0].shape) for name, load in _SKLEARN.items()}
    for path in (folder() / "regression").glob("*.npz"):
        with np.load(path, allow_pickle=False) as archive:
            found[path.stem] = Size(*archive["X"].shape)
    return dict(sorted(found.items(), key=lambda item: (item[1].n, item[0])))


def load_regression(name):
    """Return ``X`` (n, d), ``y`` (n,), and a mask (n, 10) of the test rows of each split."""
    if name in _SKLEARN:
        X, y = _SKLEARN[name]()
        tests = [test for _, test in KFold(10, shuffle=True, random_state=0).split(X)]
        return X, y, np.stack([np.isin(np.arange(len(y)), test) for test in tests], 1)
    with np.load(folder() / "regression" / f"{name}.npz", allow_pickle=False) as archive:
        X, y = archive["X"].astype(np.float64), archive["y"].astype(np.float64)
        return X, y, archive["test_mask"]


def split_regression(name, column):
    """Return the `Split` by a set's own mask; training rows standardize rows and targets."""
    X, y, mask = load_regression(name)
    test = mask[:, column]
    X_train, X_test = prepared(X[~test], X[test])
    mean, std = y[~test].mean(), y[~test].std()
    return Split(X_train, (y[~test] - mean) / std, X_test, (y[test] - mean) / std, 0)


def prepared(X_train, X_test):
    """Return rows, mean-imputed and standardized with the statistics of the training rows."""
    steps = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    return steps.fit_transform(X_train), steps.transform(X_test)


def split_classification(name, seed, test_size=0.2):
    """Return the stratified `Split` of a set for a seed."""
    X, y = load_classification(name)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=test_size, stratify=y, random_state=seed
    )
    X_train, X_test = prepared(X_train, X_test)
    return Split(X_train, y_train, X_test, y_test, int(y.max()) + 1)
