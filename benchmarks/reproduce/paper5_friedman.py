"""Paper 5, Figure 1: the effects of Friedman's function, by kernel and form of the posterior.

Adam, Durrande and John (2018), section 4: 5000 rows with unit noise, 16 inducing points an effect
and 4 x 4 of the pair, effects of zero mean over the unit interval. Against the true effects on 2000
other rows: errors, what the bands of 95 % cover, shares in the variance. The paper has drawings and
no numbers; beside ours are those of one run of its specification. Run
``python -m benchmarks.reproduce.paper5_friedman [--quick]``; a run that was killed continues.
"""

import argparse
import sys
import time
from datetime import date

import matplotlib.pyplot as plt
import numpy as np

from skgpsvm import AdditiveGPRegressor

from .. import _friedman, _harness, _report

KERNELS, COVARIANCES = ("rbf", "matern52"), ("full", "precision", "mean_field")
PAPER = {
    "n_inducing": 16,
    "n_inducing_interaction": 4,
    "terms": [..., (0, 1)],
    "interactions": None,
    "measure": "uniform",
    "scaling": "minmax",
    "min_gain": 0,
}
N_TEST, FORM_SEEDS = 2000, 5
SPECIFICATION = {
    "rmse": (0.014, 0.022, 0.034, 0.032, 0.017, 0.0003, 0.056),
    "share": (0.1962, 0.1960, 0.0934, 0.3555, 0.0860, 0.0000, 0.0729),
}
WHOLE = ("rmse_f", "constant_error", "noise_variance", "fit_seconds")
MEASURED = (*_friedman.MEASURED, *WHOLE)
BY = ["kernel", "covariance"]


def evaluate(n, seed, kernel, covariance):
    """Fit a form of the model to the rows of a seed and judge it; seconds are of the processor."""
    X, y = _friedman.rows(n, seed)
    model = AdditiveGPRegressor(kernel=kernel, covariance=covariance, **PAPER)
    start = time.process_time()
    model.fit(X, y)
    taken = time.process_time() - start
    X, _ = _friedman.rows(N_TEST, (seed, 1))
    error = model.predict(X) - _friedman.CONSTANT - _friedman.effects(X).sum(1)
    return {
        **_friedman.judged(model, X),
        "rmse_f": np.sqrt(np.square(error).mean()),
        "constant_error": model.intercept_ - _friedman.CONSTANT,
        "noise_variance": float(model.noise_variance_),
        "fit_seconds": taken,
    }


def report(results):
    """Parts: each quantity of all forms, that of the specification below."""
    results = results[results["error"] == ""]
    errors = _friedman.over_seeds(results, "rmse", BY)
    shares = _friedman.over_seeds(results, "share", BY)
    cover = _friedman.over_seeds(results, "cover", BY)
    names = list(_friedman.TERMS)
    specification = {"kernel": "rbf", "covariance": "full, specification"}
    for frame, kind in ((errors, "rmse"), (shares, "share")):
        values = dict(zip(names, SPECIFICATION[kind], strict=True))
        frame.loc[len(frame)] = {**specification, **values}
    shares.loc[len(shares)] = {"kernel": "", "covariance": "truth", **_friedman.SHARES}
    cover["mean"] = cover[names].mean(axis=1)
    far = results.copy()
    for name in names:
        far[f"share_{name}"] = (far[f"share_{name}"] - _friedman.SHARES[name]).abs()
    whole = results.groupby(BY, sort=False)[list(WHOLE)].mean()
    whole["slowest fit"] = results.groupby(BY, sort=False)["fit_seconds"].max()
    return [
        _report.table(errors, "RMSE of the effects against the true ones, mean; wanted: 0.1"),
        _report.table(_friedman.over_seeds(results, "rmse", BY, "max"), "Largest RMSE of a seed"),
        _report.table(cover, "Truth within bands of 95 %, mean; wanted: 0.90 to 0.99"),
        _report.table(
            _friedman.over_seeds(results, "cover", BY, "min"), "Least coverage of a seed"
        ),
        _report.table(_friedman.over_seeds(results, "width", BY), "Width of the bands, mean"),
        _report.table(shares, "Sobol shares, mean", 4),
        _report.table(
            _friedman.over_seeds(far, "share", BY, "max"),
            "Largest error of a share of a seed; wanted: 0.01",
            4,
        ),
        _report.table(
            whole.reset_index(),
            "Error of the sum, of the constant, noise variance (1), seconds; the specification's "
            "run:\n0.080, 0.0034, 1.017, 10 s",
            4,
        ),
    ]


def draw(n, kernel, path):
    """The effects of seed 0 with their bands beside the true ones, as the paper's Figure 1."""
    X, y = _friedman.rows(n, 0)
    model = AdditiveGPRegressor(kernel=kernel, **PAPER).fit(X, y)
    grid = np.linspace(0, 1, 101)
    line = np.tile(grid[:, None], 6)
    mean, std = model.explain(line, return_std=True)
    truth = _friedman.effects(line)
    figure, axes = plt.subplots(2, 4, figsize=(12, 5.4), layout="constrained")
    for axis, (name, term), true in zip(
        axes.flat, list(_friedman.TERMS.items())[:-1], truth.T, strict=False
    ):
        axis.plot(grid, true, "k--", lw=1.2, label="true")
        if term in model.terms_:
            at = model.terms_.index(term)
            axis.plot(grid, mean[:, at], lw=1.2, label="posterior mean")
            lower, upper = (mean[:, at] + sign * 1.96 * std[:, at] for sign in (-1, 1))
            axis.fill_between(grid, lower, upper, alpha=0.3, label="95 % band")
        else:
            axis.text(0.5, 1, "dropped", ha="center")
        axis.set(title=name, xlabel=f"$x_{term[0] + 1}$", ylim=(-6, 6))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=8)
    a, b = np.meshgrid(grid, grid)
    square = np.stack([a.ravel(), b.ravel(), *[np.full(a.size, 0.5)] * 4], 1)
    at = model.terms_.index((0, 1))
    pairs = {"true f12": _friedman.effects(square)[:, -1], "f12": model.explain(square)[:, at]}
    most = np.abs(pairs["true f12"]).max()
    for axis, (title, values) in zip(axes.flat[6:], pairs.items(), strict=True):
        values = values.reshape(a.shape)
        shown = axis.pcolormesh(grid, grid, values, cmap="RdBu_r", vmin=-most, vmax=most)
        axis.contour(grid, grid, values, levels=8, colors="k", linewidths=0.5)
        axis.set(title=title, xlabel="$x_1$", ylabel="$x_2$")
    figure.colorbar(shown, ax=axes.flat[7])
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    """Run what is missing and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--seeds", type=int, default=20, help="default 20")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread; default 2")
    options = parser.parse_args()
    n, seeds = (400, 1) if options.quick else (5000, options.seeds)
    tasks = [
        {"n": n, "seed": seed, "kernel": kernel, "covariance": covariance, "code": code}
        for code in (_harness.package_code(),)
        for covariance in COVARIANCES
        for seed in range(seeds if covariance == "full" else min(seeds, FORM_SEEDS))
        for kernel in KERNELS
    ]
    path = None if options.quick else _harness.RESULTS / "paper5_friedman.csv"
    results = _harness.run_tasks(evaluate, tasks, MEASURED, path, options.jobs)
    failed = (results["error"] != "").any()
    settings = {
        "rows": f"{n} uniform, unit noise, seeds 0 to {seeds - 1}; judged on {N_TEST} others",
        "model": f"AdditiveGPRegressor({', '.join(f'{k}={v!r}' for k, v in PAPER.items())})",
        "precision, mean_field": f"the first {FORM_SEEDS} seeds",
        "effects that are dropped": "count as zero, with a band of no width",
        "processes": f"{options.jobs} of one thread; seconds are of the processor",
    }
    parts = [_report.header("Paper 5, Figure 1: effects of Friedman's function", **settings)]
    parts += [results["error"].max()] if failed else report(results)
    _report.publish("paper5_friedman", parts, write=not options.quick)
    if not options.quick:
        draw(n, "rbf", _report.RESULTS / f"paper5_friedman-{date.today()}.png")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
