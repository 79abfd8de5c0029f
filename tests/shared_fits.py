"""Fits that ranks share, and the ranks' shards of rows; test_distributed runs it by torchrun."""

import copy
import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import joblib
import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from problems import Source, WithNoise, shifted
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.gaussian_process.kernels import RBF
from torch import nn

from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm._inference.decoupled import DEFAULTS
from skgpsvm.solvers import (
    CoordinateAscent,
    InterleavedEP,
    NaturalGradient,
    QuadruplyStochastic,
    StochasticGradient,
)

N, MANY = 180, 540
CUTS = {"uneven": (110, 150), "empty": (90, 90), "blocks": (60, 120), "one row": (1, 2)}
# More rows, in the order of X as one process has them, so that it draws the same rows.
CUTS["in order"] = (200, 350)


def failing(batch):
    """Return a batch, except on rank 1."""
    if dist.get_rank() == 1:
        raise RuntimeError("a broken row")
    return batch


def problem(n_classes, n_rows=N):
    """Return rows, sorted so that shards lack classes, string labels, weights and targets."""
    rng = np.random.RandomState(0)
    codes = np.sort(np.arange(n_rows) % n_classes)
    X = rng.normal(size=(n_rows, 3)) + np.eye(3)[codes % 3] * 2
    X = np.column_stack([X, np.full(n_rows, 0.1)])  # constant up to rounding
    weights = rng.uniform(0.5, 2, size=n_rows)
    weights[::17] = 0
    target = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=n_rows)
    return X, np.array(["ham", "spam", "toast"])[codes], weights, target


def table(X):
    """Return rows with missing numbers, and with a category some of whose levels are rare."""
    X = X.copy()
    X[::7, 2] = np.nan
    X[:, 3] = np.floor(X[:, 0])
    X[-3:, 3], X[::50, 3] = 99, np.nan
    return X


COMMON = {"n_inducing": 15, "random_state": 0}
SEP = {"solver": "sep", "learn_inducing": True}
EP = {**COMMON, **SEP, "max_iter": 30, "tol": 0.1}
SIGN = {**EP, "solver": InterleavedEP("sign")}
# Name: estimator, number of classes (0 is regression), shards.
FITS = {
    "sep": (EPClassifier(**EP), 2, "uneven"),
    "sep, sign rule, empty shard": (EPClassifier(**SIGN), 2, "empty"),
    "gfitc": (EPClassifier(**EP | {"max_iter": 1, "solver": "gfitc"}), 2, "uneven"),
    "sep, balanced": (EPClassifier(**EP, class_weight="balanced"), 2, "blocks"),
    "sep, three classes": (EPClassifier(**EP), 3, "blocks"),
    "svc, two classes": (BayesianSVC(**COMMON, optimizer=None), 2, "uneven"),
    "svc, three classes": (BayesianSVC(**COMMON), 3, "blocks"),
    "svc, one-vs-rest": (BayesianSVC(**COMMON, multi_class="ovr"), 3, "one row"),
    "svgp": (SVGPRegressor(1.0 * RBF(1.5), **COMMON, optimizer=None), 0, "empty"),
    # One length scale: the bound is flat in a constant column's, and steps there amplify rounding.
    "svgp, learned": (SVGPRegressor(1.0 * RBF(1.0), **COMMON, max_iter=2, tol=10.0), 0, "uneven"),
}
FEW_STEPS = {"n_inducing": 200, "random_state": 0, "max_iter": 2, "tol": 10.0}
FITS["svgp, exact starts"] = SVGPRegressor(1.0 * RBF(1.0), **FEW_STEPS), 0, "uneven"
FITS["svgp, known noise"] = FITS["svgp, learned"]
FITS["svgp, known noise, exact starts"] = FITS["svgp, exact starts"]
LEARNS = {**COMMON, "max_iter": 8, "tol": 0.0}
# Adam moves inducing points by rounding errors in a constant column, where they have no effect.
STILL = LEARNS | {"learn_inducing": False}
KERNEL = 1.0 * RBF(1.0)
FITS |= {
    "svgp, heteroscedastic": (
        SVGPRegressor(KERNEL, likelihood="heteroscedastic", **COMMON, max_iter=2, tol=10.0),
        0,
        "uneven",
    ),
    "svgp, softmax": (SVGPClassifier(**LEARNS, solver="natural_gradient"), 3, "blocks"),
    "svgp, softmax, collapsed": (
        SVGPClassifier(1.0 * RBF(1.0), **COMMON, max_iter=2, tol=10.0, dtype="float64"),
        3,
        "blocks",
    ),
    "svgp, CSR": (
        SVGPClassifier(**COMMON, max_iter=2, tol=10.0, dtype="float64"),
        3,
        "uneven",
    ),
    # Few steps: rounding of 1e-13 in the coordinates grows with more.
    "ep, CSR": (EPClassifier(**COMMON, max_iter=2, tol=10.0), 3, "uneven"),
    "svgp, ordinal": (
        SVGPClassifier(
            KERNEL, likelihood="ordinal", **COMMON, max_iter=2, tol=10.0, dtype="float64"
        ),
        3,
        "blocks",
    ),
    "svgp, student_t": (SVGPRegressor(KERNEL, likelihood="student_t", **LEARNS), 0, "uneven"),
    "svgp, Adam": (SVGPRegressor(KERNEL, solver="gradient", **STILL), 0, "one row"),
    "svc, points learned": (BayesianSVC(KERNEL, learn_inducing=True, **LEARNS), 2, "empty"),
}
RVM = {"random_state": 0, "max_iter": 5, "tol": 0.0}
LAPLACE = {"likelihood": "laplace", "covariance": "mean_field"}
FITS |= {
    "rvm": (QSRVMRegressor(**RVM), 0, "uneven"),
    "rvm, Laplace": (
        QSRVMRegressor(**RVM, **LAPLACE),
        0,
        "empty",
    ),
    "rvm, two classes": (QSRVMClassifier(**RVM), 2, "blocks"),
    "rvm, stochastic": (
        QSRVMRegressor(random_state=0, max_iter=5, solver="quadruply_stochastic"),
        0,
        "uneven",
    ),
    "rvm, three classes": (QSRVMClassifier(**RVM, optimizer=None), 3, "one row"),
}
EXACT = {"n_inducing": 15, "random_state": 0, "max_iter": 4, "tol": 0.0}
FIXED = EXACT | {"optimizer": None, "learn_inducing": False}
FITS |= {
    "decoupled, all bases": (DecoupledGPRegressor(KERNEL, **FIXED), 0, "empty"),
    "decoupled, learned": (DecoupledGPRegressor(KERNEL, **EXACT), 0, "uneven"),
    "decoupled, calibrated": (DecoupledGPRegressor(KERNEL, **EXACT), 0, "in order"),
    "decoupled, some bases": (
        DecoupledGPRegressor(KERNEL, n_mean_bases=60, **FIXED | {"max_iter": 8}),
        0,
        "in order",
    ),
    "decoupled, panels": (
        DecoupledGPRegressor(KERNEL, n_mean_bases=60, **FIXED | {"max_iter": 8}),
        0,
        "in order",
    ),
    "decoupled, Nystroem": (DecoupledGPRegressor(KERNEL, **FIXED), 0, "in order"),
    "decoupled, student_t": (
        DecoupledGPRegressor(KERNEL, likelihood="student_t", **FIXED),
        0,
        "one row",
    ),
    "decoupled, softmax": (DecoupledGPClassifier(KERNEL, **FIXED), 3, "blocks"),
    # Few steps of L-BFGS-B: more would amplify rounding, as in the sparse fits above.
    "decoupled, two classes": (
        DecoupledGPClassifier(KERNEL, **EXACT | {"max_iter": 2, "tol": 10.0}),
        2,
        "uneven",
    ),
}
for name in ("learned", "calibrated", "some bases"):
    FITS[f"decoupled, known noise, {name}"] = FITS[f"decoupled, {name}"]
QS = {**FIXED, "n_basis": 60}
CHEVRON = {"covariance": "chevron", "n_dense_columns": 3}
FITS |= {
    "qs, Fourier": (QSGPRegressor(KERNEL, **QS), 0, "in order"),
    "qs, calibrated": (QSGPRegressor(KERNEL, n_basis=60, **EXACT), 0, "in order"),
    "qs, kernels": (QSGPRegressor(KERNEL, basis="inducing", **QS | {"n_basis": 500}), 0, "empty"),
    "qs, chevron": (
        QSGPRegressor(KERNEL, basis="inducing", augment=True, **QS, **CHEVRON),
        0,
        "in order",
    ),
    "qs, Laplace": (
        QSGPRegressor(KERNEL, likelihood="laplace", covariance="mean_field", **QS),
        0,
        "in order",
    ),
    "qs, softmax": (QSGPClassifier(KERNEL, **QS), 3, "in order"),
}
TABLE = {"sparse": True, "categorical_features": [3], "max_iter": 4, "random_state": 0}
FITS |= {
    "additive": (AdditiveGPRegressor(**TABLE), 0, "uneven"),
    "additive, uniform": (
        AdditiveGPRegressor(
            measure="uniform", scaling="minmax", terms=[..., (0, 1)], interactions=None, **TABLE
        ),
        0,
        "blocks",
    ),
    "additive, student_t": (AdditiveGPRegressor(likelihood="student_t", **TABLE), 0, "empty"),
    "additive, two classes": (AdditiveGPClassifier(**TABLE), 2, "blocks"),
    "additive, ordinal": (
        AdditiveGPClassifier(likelihood="ordinal", interactions=None, **TABLE),
        3,
        "one row",
    ),
    "additive, three classes": (AdditiveGPClassifier(interactions=None, **TABLE), 3, "one row"),
}
FITS["additive, known noise"] = FITS["additive"]
FITS["additive, sources"] = AdditiveGPRegressor(interactions=None, **TABLE), 0, "uneven"
FITS["svgp, sources"] = FITS["svgp"]
# Limits of sizes, lowered so that these few rows exceed them, and numbers of sweeps in the
# cross-validation of relevance vector machines, where ranks exchange sums most often.
FEW_FACTORED = replace(DEFAULTS, factored_rows=50, landmarks=20)
FEW_SWEEPS = "skgpsvm.quadruply_stochastic._rvm_training._CV_SWEEPS", 3
LIMITS = {
    "decoupled, panels": ("skgpsvm._bases._MAX_SQUARE", 20),
    "decoupled, Nystroem": ("skgpsvm._inference.exact.DEFAULTS", FEW_FACTORED),
    **{name: FEW_SWEEPS for name in FITS if name.startswith("rvm")},
}
QS_STEPS = {"n_basis": 100, "random_state": 0, "max_iter": 8, "optimizer": None}
STEPS = {"n_mean_bases": 40, "n_inducing": 10, "random_state": 0, "max_iter": 8}


def descent(parametrization="orthogonal"):
    """Return the solver of a decoupled GP by minibatches."""
    return StochasticGradient(parametrization, batch_size=40, learning_rate=0.05)


def quadruply(**options):
    """Return the solver of a quadruply stochastic GP by stochastic steps."""
    return QuadruplyStochastic(n_sampled_basis=45, n_support=30, batch_size=40, **options)


# Minibatches are drawn by each rank from its own rows: the models of all ranks are equal, but not
# those of one process.
BATCHES = {
    "svgp, softmax": (SVGPClassifier(**LEARNS, solver=NaturalGradient(batch_size=40)), 3, "empty"),
    "svgp, Gaussian": (
        SVGPRegressor(KERNEL, **LEARNS, solver=NaturalGradient(batch_size=40)),
        0,
        "one row",
    ),
    "svc": (
        BayesianSVC(KERNEL, **LEARNS, solver=CoordinateAscent(batch_size=40)),
        3,
        "uneven",
    ),
    "ep": (EPClassifier(**LEARNS, solver=InterleavedEP(batch_size=40)), 2, "empty"),
    "ep, one-vs-rest": (
        EPClassifier(KERNEL, **STILL, solver=InterleavedEP(batch_size=40)),
        3,
        "one row",
    ),
    "additive": (
        AdditiveGPClassifier(**TABLE, batch_size=40, interactions=None),
        3,
        "one row",
    ),
    "decoupled, orthogonal": (DecoupledGPRegressor(**STEPS, solver=descent()), 0, "empty"),
    "decoupled, shared": (DecoupledGPClassifier(**STEPS, solver=descent("shared")), 3, "one row"),
    "qs, sgd": (QSGPRegressor(KERNEL, n_inducing=10, **QS_STEPS, solver=quadruply()), 0, "empty"),
    "qs, hyperparameters": (
        QSGPRegressor(KERNEL, **QS_STEPS, solver=quadruply(learn_hyperparameters=True)),
        0,
        "uneven",
    ),
    "qs, calibrated": (
        QSGPRegressor(KERNEL, **QS_STEPS | {"optimizer": "auto"}, solver=quadruply()),
        0,
        "in order",
    ),
    "qs, chevron": (
        QSGPClassifier(KERNEL, solver=quadruply(step="adagrad"), **QS_STEPS, **CHEVRON),
        3,
        "one row",
    ),
}
# Their learned hyperparameters depend on draws, so that levels are compared in the mean of seeds.
BATCHES |= {
    f"qs, calibrated, seed {seed}": (
        clone(BATCHES["qs, calibrated"][0]).set_params(random_state=seed),
        *BATCHES["qs, calibrated"][1:],
    )
    for seed in (1, 2)
}
NETWORK = {**COMMON, "max_iter": 4, "dtype": "float64"}
BATCHES |= {
    "hybrid svc": (HybridBayesianSVC(**NETWORK), 3, "blocks"),
    "hybrid, noisy layers": (HybridSVGPRegressor(WithNoise, **NETWORK), 0, "uneven"),
    "hybrid classifier": (HybridSVGPClassifier(**NETWORK, batch_size=16), 2, "empty"),
    "hybrid": (
        HybridSVGPRegressor(**NETWORK, batch_size=16, augmentation=shifted, n_iter_no_change=1),
        0,
        "one row",
    ),
    "hybrid, frozen": (HybridSVGPRegressor(nn.Identity, **NETWORK, kernel=KERNEL), 0, "empty"),
}
# One minibatch of all rows and all functions: nothing is drawn but the order of the rows.
ALL = {"n_sampled_basis": 50, "n_support": N, "batch_size": N}
ONE_BATCH = {
    "ep": (EPClassifier(KERNEL, **STILL, solver=InterleavedEP(batch_size=N)), 2, "empty"),
    "qs": (
        QSGPRegressor(KERNEL, n_inducing=10, **QS_STEPS, solver=QuadruplyStochastic(**ALL)),
        0,
        "empty",
    ),
    "qs, chevron": (
        QSGPClassifier(KERNEL, **QS_STEPS, **CHEVRON, solver=QuadruplyStochastic("adagrad", **ALL)),
        3,
        "one row",
    ),
}
STREAMS = ("sep", "svc, two classes", "decoupled, two classes", "additive, two classes")
# Hybrid networks continued from a fit in one process, by steps on all rows.
WHOLE = NETWORK | {"batch_size": N, "warm_start": True}
CONTINUED = {
    "svc": (HybridBayesianSVC(**WHOLE), 3, "blocks"),
    "classifier": (HybridSVGPClassifier(**WHOLE), 2, "empty"),
    "regressor": (HybridSVGPRegressor(**WHOLE), 0, "one row"),
}


def fit(name, shard=slice(None), fits=FITS, start=None):
    """Return the estimator of a name, fitted to a part of its problem, or continued from a fit."""
    estimator, n_classes, cuts = fits[name]
    estimator = clone(estimator) if start is None else copy.deepcopy(start)
    ordered = cuts == "in order"
    X, y, weights, target = problem(n_classes or 2, MANY if ordered else N)
    X = table(X) if name.startswith("additive") else X
    if "ordinal" in name:  # whose labels are numbers
        y = np.searchsorted(np.unique(y), y)
    rows = np.lexsort(X.T[::-1]) if ordered else np.arange(len(X))
    rows = rows[shard]
    options = {"noise_variance": 0.1 * X[rows, 1] ** 2} if "known noise" in name else {}
    own = Source(X[rows]) if "sources" in name else X[rows]
    own = csr_array(own) if "CSR" in name else own
    with patch(*LIMITS[name]) if name in LIMITS else nullcontext():
        return estimator.fit(own, (y if n_classes else target)[rows], weights[rows], **options)


def shard(name, rank, fits=FITS):
    """Return the slice of rows of one of three ranks."""
    cuts = CUTS[fits[name][2]]
    return slice(*((0, *cuts, None)[rank : rank + 2]))


def stream(name, start=0, step=1):
    """Return an estimator after `partial_fit` on the even rows, then on the odd rows."""
    estimator = clone(FITS[name][0])
    X, y, _, _ = problem(2)
    X = table(X) if name.startswith("additive") else X
    for half in (0, 1):
        part = slice(half + 2 * start, None, 2 * step)
        estimator.partial_fit(X[part], y[part])
    return estimator


def told(function):
    """Return the error that a function raises, or None."""
    try:
        function()
    except Exception as error:  # any error: the caller compares it with the expected one
        traceback.print_exc()
        return error
    return None


def failing_fits(rank):
    """Return the errors of fits that fail on one rank, or differ between ranks."""
    X, y, _, target = problem(2)
    part = slice(rank, None, 3)
    X, y, target = X[part].copy(), y[part], target[part]
    shape = (4,) if rank else (2, 2)
    names, devices = ["ham", "spam", "toast", "egg"], ["cpu", "nowhere", "cpu"]
    spoiled = X.copy()
    spoiled[0, 0] = np.nan if rank == 1 else 0.0
    iterations = 5 + (rank == 2)
    fitted = EPClassifier(**EP, warm_start=True)
    if rank == 0:
        fitted._latents = []
    ep = EPClassifier(**EP)
    other = BayesianSVC(**COMMON) if rank == 2 else ep
    called_back = clone(ep).set_callbacks(*[ScoringMonitor(scoring="accuracy")] * (rank == 1))
    seeded = clone(ep).set_params(random_state="seed" if rank == 1 else 0)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d" if rank else "e"])
    codes = (y == "spam").astype([int, float, bool][rank])
    known = np.ones(len(X)) if rank else None
    rates, mixed = np.where(rank == 1, -1.0, np.abs(target)), X.astype(object)
    mixed[:, 3] = "level" if rank else 1
    return {
        "estimator": told(lambda: other.fit(X, y)),
        "method": told(lambda: (ep.partial_fit if rank else ep.fit)(X, y)),
        "kinds of parameter": told(lambda: EPClassifier(tol=1 if rank else 1.0).fit(X, y)),
        "callbacks": told(lambda: called_back.fit(X, y)),
        "random_state": told(lambda: seeded.fit(X, y)),
        "labels": told(lambda: ep.fit(X, y if rank == 2 else (y == "spam").astype(int))),
        "kinds of number": told(lambda: ep.fit(X, codes)),
        "precision": told(lambda: ep.fit(X.astype([np.float64, np.float32][rank % 2]), y)),
        "outputs": told(lambda: SVGPRegressor().fit(X, np.c_[target, target][:, : 1 + rank % 2])),
        "names": told(lambda: ep.fit(frame, y)),
        "augmentation": told(lambda: HybridSVGPRegressor(augmentation=failing).fit(X, target)),
        "row shapes": told(lambda: HybridSVGPRegressor().fit(X.reshape(-1, *shape), target)),
        "lambda": told(lambda: HybridBayesianSVC(lambda: None).fit(X, y)),
        "exact": told(lambda: AdditiveGPRegressor().fit(X, target)),
        "rates": told(lambda: AdditiveGPRegressor(likelihood="poisson", **TABLE).fit(X, rates)),
        "levels": told(lambda: AdditiveGPRegressor(**TABLE).fit(mixed, target)),
        "categories": told(
            lambda: AdditiveGPRegressor(sparse=True).fit(
                pd.DataFrame(X).astype({3: "category" if rank else float}), target
            )
        ),
        "NaN": told(lambda: EPClassifier(**EP).fit(spoiled, y)),
        "parameter": told(lambda: EPClassifier(max_iter=iterations).fit(X, y)),
        "features": told(lambda: SVGPRegressor(**COMMON).fit(X[:, : 2 + (rank == 0)], target)),
        "earlier model": told(lambda: fitted.fit(X, y)),
        "classes": told(lambda: BayesianSVC().partial_fit(X, y, classes=names[: 2 + rank])),
        "device": told(lambda: EPClassifier(device=devices[rank]).fit(X, y)),
        "weights": told(lambda: BayesianSVC(**COMMON).fit(X, y, np.zeros(len(X)))),
        "known noise": told(lambda: SVGPRegressor(**COMMON).fit(X, target, noise_variance=known)),
        "one class": told(lambda: BayesianSVC(**COMMON).fit(X, np.zeros(len(X)))),
    }


def unnamed(rank):
    """Return the error of a warm start whose module is a lambda, or None."""
    X, y, _, _ = problem(2)
    model = HybridBayesianSVC(lambda: nn.Linear(4, 2), **COMMON, max_iter=1, warm_start=True)
    part = slice(rank, None, 3)
    return told(lambda: model.fit(X[part], y[part]).fit(X[part], y[part]))


def main(folder):
    """Save the models and errors of this rank; rank 1 then exits while the others fit."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    found = {
        "fitted": {name: fit(name, shard(name, rank)) for name in FITS},
        "batches": {name: fit(name, shard(name, rank, BATCHES), BATCHES) for name in BATCHES},
        "continued": {
            name: fit(name, shard(name, rank, CONTINUED), CONTINUED, start)
            for name, start in joblib.load(f"{folder}/starts.joblib").items()
        },
        "one batch": {
            name: fit(name, shard(name, rank, ONE_BATCH), ONE_BATCH) for name in ONE_BATCH
        },
        "streamed": {name: stream(name, rank, 3) for name in STREAMS},
        "unnamed": unnamed(rank),
        "failures": failing_fits(rank),
    }
    if rank != 1:
        X, y, _, _ = problem(2)
        found["left"] = told(lambda: EPClassifier(**EP).fit(X, y))
    joblib.dump(found, f"{folder}/{rank}.joblib")


if __name__ == "__main__":
    main(sys.argv[1])
