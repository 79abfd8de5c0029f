"""Paper 4, Tables 2 and 3: error and density of quadruply stochastic and sparse processes.

Evans and Nair (2020), section 5: `QSGPRegressor` as it comes but for the number of functions, the
paper's own stochastic forms (AdaGrad, the gradient and control variate in print, mean field or a
chevron), and mean field on kernels at rows with augmented variance, beside `SVGPRegressor` and
GPyTorch's with 512 points. The first column of ``test_mask``; rows and targets standardized. Run
``python -m benchmarks.reproduce.paper4_table [--quick]``; a run that was killed continues.
"""

import argparse
import sys

import numpy as np
import pandas as pd
from sklearn.metrics import root_mean_squared_error as rmse

from skgpsvm import QSGPRegressor, SVGPRegressor
from skgpsvm.solvers import QuadruplyStochastic

from .. import _data, _harness, _measure, _peers, _report

SETS = ("kin40k", "protein", "keggdirected", "keggundirected")
QUICK_SET = "generated"
DEFAULT, MEAN_FIELD, CHEVRON = "QSGPRegressor", "paper's, mean field", "paper's, chevron"
AT_ROWS, OURS, PEER = "mean field at rows", "SVGPRegressor", "GPyTorch SVGP"
METRICS = {
    "rmse": "Root mean squared error, in standard deviations of y",
    "nlpd": "Mean negative log predictive density of standardized y, nats",
}
MEASURED = (*METRICS, "passes", *_measure.MEASURED)
# RMSE of the sets, then MNLP; Table 2 has no times of its sets.
PUBLISHED = {
    "Table 2, QSGP-0": ((0.174, 0.602, 0.135, 0.120), (0.135, 1.34, -0.821, 0.783)),
    "Table 2, QSGP-100": ((0.175, 0.602, 0.135, 0.120), (0.139, 1.34, -0.794, -0.268)),
    "Table 2, SVGP": ((0.247, 0.542, 0.124, 0.120), (0.055, 1.06, -0.953, 36.1)),
    "Table 3, QSGP-0": ((0.154, 0.598, 0.124, 0.123), (-0.348, 1.157, -0.554, 0.848)),
    "Table 3, SVGP": ((0.171, 0.598, 0.124, 0.118), (-0.089, 1.159, -0.883, 64.014)),
}
PUBLISHED_SECONDS = {"Table 3, QSGP-0": (5040, 7668, 6120, 5256)}


def models(n_basis, n_rows_basis, n_inducing, n_sampled, n_dense, n_passes, seed):
    """The estimators of this package by name."""
    common = {"dtype": "float32", "random_state": seed}
    paper = {
        **common,
        "solver": QuadruplyStochastic(
            step="adagrad",
            control_variate="gram",
            gradient="plain",
            n_sampled_basis=n_sampled,
            n_support=500,
            batch_size=500,
        ),
        "n_basis": n_basis,
        "max_iter": n_passes,
    }
    return {
        DEFAULT: QSGPRegressor(n_basis=n_basis, **common),
        MEAN_FIELD: QSGPRegressor(covariance="mean_field", **paper),
        CHEVRON: QSGPRegressor(covariance="chevron", n_dense_columns=n_dense, **paper),
        AT_ROWS: QSGPRegressor(
            basis="inducing",
            n_basis=n_rows_basis,
            covariance="mean_field",
            augment=True,
            solver="cg",
            random_state=seed,
        ),
        OURS: SVGPRegressor(n_inducing=n_inducing, random_state=seed),
    }


def generated(seed):
    """A small `Split`."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.7, 1.7, (2200, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.standard_normal(len(X))
    y = (y - y.mean()) / y.std()
    return _data.Split(X[:2000], y[:2000], X[2000:], y[2000:], 0)


def evaluate(set, seed, method, **sizes):
    """Fit a method to one split of a set and measure it; seconds are of the processor."""
    quick = set == QUICK_SET
    data = generated(seed) if quick else _data.split_regression(set, seed)

    def measure(model):
        mean, std = model.predict(data.X_test, return_std=True)
        nlpd = np.mean(np.log(std) + 0.5 * ((data.y_test - mean) / std) ** 2)
        found = {"rmse": rmse(data.y_test, mean), "nlpd": nlpd + 0.5 * np.log(2 * np.pi)}
        return {**found, "passes": getattr(model, "n_iter_", np.nan)}

    def fit(X, y, seed, clock):
        if method == PEER:
            return _peers.GPyTorchSVGP(sizes["n_inducing"], seed).fit(X, y, clock.watch)
        model = models(**sizes, seed=seed)[method]
        return model.set_params(**({"optimizer": None} if quick else {})).fit(X, y)

    return _measure.measured_fit(fit, data, seed, measure, "rmse", watching=False)


def report(results, codes):
    """Parts: each metric of all methods, ours above the paper's."""
    names = list(results["set"].unique())
    parts = [_report.failures(results), _report.other_code(results, codes)]
    counts = results.pivot_table(index="method", columns="set", values="seed", aggfunc="count")
    counts = counts.reindex(index=list(codes), columns=names).fillna(0)
    if counts.nunique().max() > 1 or counts.nunique(axis=1).max() > 1:
        frame = counts.rename_axis("method").reset_index()
        parts.append(_report.table(frame, "Splits that the means are of", 0))
    titles = {
        **METRICS,
        "fit_seconds": "Seconds of processor time to fit, one thread; the paper's of a GTX 980 Ti",
        "peak_mib": "Peak memory above that before the fit, MiB",
        "passes": "Iterations of conjugate gradients, or passes",
    }
    papers = {m: {k: v[i] for k, v in PUBLISHED.items()} for i, m in enumerate(METRICS)}
    papers["fit_seconds"] = PUBLISHED_SECONDS
    for metric, title in titles.items():
        scores = results.pivot_table(index="method", columns="set", values=metric)
        scores = scores.reindex(index=list(codes), columns=names)
        if metric in papers:
            theirs = pd.DataFrame(papers[metric], index=list(SETS)).T.reindex(columns=names)
            scores = pd.concat([scores, theirs.dropna(how="all")])
        digits = 3 if metric in METRICS else 0
        frame = scores.rename_axis("method").reset_index()
        parts.append(_report.table(frame, title, digits))
    warned = results[results["warnings"] != ""]
    told = [f"  {row['set']} {row['method']}: {row['warnings']}" for _, row in warned.iterrows()]
    parts.append("\n".join(["Fits that warned", *told]) if told else "No fit warned.")
    return parts


def main():
    """Run what is missing and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument(
        "--sets", nargs="+", choices=SETS, help="these sets only; the report is printed"
    )
    parser.add_argument("--splits", type=int, default=1, help="columns of test_mask; default 1")
    _harness.add_options(parser)
    parser.add_argument("--n-basis", type=int, default=20_000, help="random features")
    parser.add_argument("--n-rows-basis", type=int, default=10_000, help="kernels at rows")
    parser.add_argument("--n-sampled-basis", type=int, default=1024, help="pairs in a draw")
    parser.add_argument("--n-dense", type=int, default=10, help="columns of the chevron")
    parser.add_argument("--max-iter", type=int, default=60, help="passes of the paper's forms")
    options = parser.parse_args()
    sizes = {
        "n_basis": 400 if options.quick else options.n_basis,
        "n_rows_basis": 400 if options.quick else options.n_rows_basis,
        "n_inducing": 64 if options.quick else 512,
        "n_sampled": 50 if options.quick else options.n_sampled_basis,
        "n_dense": options.n_dense,
        "n_passes": 20 if options.quick else options.max_iter,
    }
    methods = {name: _harness.package_code() for name in models(**sizes, seed=0)}
    methods[PEER] = _peers.svgp_methods(sizes["n_inducing"], ())[PEER].code
    if not options.quick:
        _data.folder()
    names = [QUICK_SET] if options.quick else options.sets or SETS
    tasks = [
        {"set": name, "seed": seed, **sizes, "method": method, "code": code}
        for seed in range(1 if options.quick else options.splits)
        for name in names
        for method, code in methods.items()
    ]
    kept = not (options.quick or options.sets)
    path = None if options.quick else _harness.RESULTS / "paper4_table.csv"
    results = _harness.run_tasks(evaluate, tasks, MEASURED, path, options.jobs, options.methods)
    settings = {
        "splits": f"columns 0 to {options.splits - 1} of test_mask; rows and y standardized",
        DEFAULT: f"n_basis={sizes['n_basis']}, float32",
        "paper's": f"as many functions, {2 * sizes['n_sampled']} in each of two draws, "
        f"minibatches and support of 500, AdaGrad 0.1, {sizes['n_passes']} passes; chevron of "
        f"{sizes['n_dense']} dense columns; hyperparameters as those of {DEFAULT}, held",
        AT_ROWS: f"n_basis={sizes['n_rows_basis']} of the rows, augment=True, conjugate gradients",
        OURS: f"n_inducing={sizes['n_inducing']}",
        PEER: f"{sizes['n_inducing']} inducing points; {_peers.protocol()}",
        "the paper": "m = 100,000 random features, 100,000 steps; its own splits; in Table 3 all "
        "rows are points",
        "processes": f"{options.jobs} of one thread",
    }
    if options.quick:
        settings["quick"] = "hyperparameters are not learned, but for those of the peer"
    parts = [
        _report.header("Paper 4, Tables 2 and 3: quadruply stochastic processes", **settings),
        *report(results, methods),
    ]
    _report.publish("paper4_table", parts, write=kept)
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
