"""Pairs of features found: on functions whose pairs are known, and on bike sharing.

On Friedman's function and three others, with 5000 rows each, the report has the true pairs that
``AdditiveGPRegressor()`` finds and the false ones it adds, with the lowest score of a true pair and
the highest of a false one. An explainable boosting machine always uses as many pairs as it is told
to: the report has whether the true pairs are the most important ones. On bike, it has the pairs of
both, by share and by importance, with and without the two columns whose sum is the target. Run
``python -m benchmarks.interactions [--quick]``; a run that was killed continues where it stopped.
With ``--generated development`` or ``--generated evaluation``, the report is instead of twenty
random functions, and of rows whose values peak at places on a diagonal coast.
"""

import argparse
import sys
import time

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor

from skgpsvm import AdditiveGPRegressor

from . import _additive_peers, _data, _harness, _report

D, N, PEER_SEEDS = 10, 5000, 1
OURS, PEER = "AdditiveGP", "EBM"
MEASURED = ("pairs", "scores", "fit_seconds")
BIKE = {"bike": 17, "bike, counts left out": 15}  # number of first columns that are used
BIKE_NAMES = (
    *("year", "month", "day", "season", "year", "month", "hour", "holiday", "weekday"),
    *("workingday", "weather", "temp", "atemp", "humidity", "wind", "casual", "registered"),
)


def friedman(X):
    """Return Friedman's function, with one pair."""
    smooth = 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + smooth


def products(X):
    """Return a function with three pairs; the features of one have no effects of their own."""
    u = 2 * X - 1
    pairs = 3 * u[:, 0] * u[:, 1] + 2 * u[:, 2] * u[:, 3] + 1.5 * u[:, 4] * u[:, 5]
    return pairs + 4 * X[:, 0] + np.exp(2 * X[:, 2]) + 2 * np.sin(2 * np.pi * X[:, 6])


def kinks(X):
    """Return a function with three pairs that are not smooth: a step, an edge and a distance."""
    step = 3.0 * ((X[:, 0] > 0.5) & (X[:, 1] > 0.3))
    edge, distance = 4 * np.maximum(X[:, 2], X[:, 3]), 4 * np.abs(X[:, 4] - X[:, 5])
    return step + edge + distance + 3 * X[:, 6]


def hub(X):
    """Return a function with four pairs that share features."""
    waves = 2 * np.sin(2 * np.pi * X[:, 0]) * X[:, 1] + 3 * X[:, 0] * X[:, 2]
    return waves + 3 * np.cos(np.pi * X[:, 0] * X[:, 3]) + 4 * X[:, 2] * X[:, 4] ** 2 + 3 * X[:, 5]


# Function, correlation of the features' copula, true pairs.
FUNCTIONS = {
    "friedman": (friedman, 0.0, [(0, 1)]),
    "products": (products, 0.0, [(0, 1), (2, 3), (4, 5)]),
    "kinks": (kinks, 0.0, [(0, 1), (2, 3), (4, 5)]),
    "hub": (hub, 0.5, [(0, 1), (0, 2), (0, 3), (2, 4)]),
}


def generated(name, n, seed):
    """Return rows with uniform features, and targets with unit noise."""
    function, correlation, _ = FUNCTIONS[name]
    rng = np.random.default_rng(seed)
    X = _uniform(n, correlation, rng)
    return X, function(X) + rng.standard_normal(n)


def drawn_function(seed):
    """Return a random function of `D` uniform features, their correlation, and its pairs.

    It has one to four pairs among the first eight features, of five kinds, and effects of some.
    """
    rng = np.random.default_rng(seed)
    correlation = 0.5 * (seed % 2)
    order, n_pairs = rng.permutation(8), rng.integers(1, 5)
    pairs = sorted(tuple(sorted(order[k : k + 2].tolist())) for k in range(0, 2 * n_pairs, 2))
    kinds, centers = rng.integers(5, size=n_pairs), rng.uniform(0.25, 0.75, size=(n_pairs, 2))
    waves = rng.uniform(-2, 2, size=(D, 2)) * (rng.uniform(size=(D, 1)) < 0.6)

    def function(X):
        total = (waves[:, 0] * np.sin(4 * X)).sum(1) + (waves[:, 1] * X**2).sum(1)
        for (i, j), kind, (a, b) in zip(pairs, kinds, centers, strict=True):
            u, v = X[:, i] - a, X[:, j] - b
            total += [
                6 * u * v,
                3.0 * ((u > 0) & (v > 0)),
                4 * np.maximum(u, v),
                2 * np.sin(6 * X[:, i]) * X[:, j],
                4 * np.exp(-0.5 * (u**2 + v**2) / 0.1**2),
            ][kind]
        return total

    return function, correlation, pairs


def coast(n, seed):
    """Return rows that resemble California housing, values without noise, and with noise of .2.

    The last two features are coordinates on a diagonal coast, with peaks at places.
    """
    rng = np.random.default_rng(seed)
    places = np.array(
        [
            [34.05, -118.25],
            [37.7, -122.3],
            [32.8, -117.15],
            [38.6, -121.4],
            [36.75, -119.8],
            [34.4, -119.7],
        ]
    )
    income, rooms, occupants = (rng.lognormal(*p, n) for p in ((1.2, 0.45), (1.65, 0.25), (0, 0.4)))
    age, people = rng.integers(1, 53, n), rng.lognormal(7, 0.7, n)
    bedrooms = 1 + 0.1 * np.abs(rng.standard_normal(n))
    place = rng.choice(6, n, p=[0.35, 0.25, 0.1, 0.1, 0.1, 0.1])
    at = places[place] + 0.45 * rng.standard_normal((n, 2))
    square = np.square(at[:, None] - places).sum(2)
    peaks = np.exp(-0.5 * square / 0.25**2) @ [0.8, 1.2, 0.6, 0, -0.3, 0.9]
    mean = 0.5 * np.log(income) + 0.003 * age + 0.2 * np.log(rooms / (2 + occupants)) + peaks
    X = np.column_stack([income, age, rooms, bedrooms, people, 2 + occupants, at])
    return X, mean, mean + 0.2 * rng.standard_normal(n)


def found_pairs(n, seeds):
    """Return a table of the pairs that are found in `drawn_function`, with a row per function.

    Grids stay as they are during the search: refining them, which follows, changes no pair.
    """
    rows = []
    for seed in seeds:
        function, correlation, true = drawn_function(seed)
        rng = np.random.default_rng([seed, 1])
        X = _uniform(n, correlation, rng)
        start = time.process_time()
        model = AdditiveGPRegressor(n_inducing_interaction=8, random_state=0)
        model.fit(X, function(X) + rng.standard_normal(n))
        pairs = {term for term in model.terms_ if len(term) == 2}
        rows.append(
            {
                "seed": seed,
                "correlation": correlation,
                "true": len(true),
                "found": len(pairs & {*true}),
                "false": len(pairs - {*true}),
                "seconds": time.process_time() - start,
            }
        )
    return pd.DataFrame(rows)


def hot_spots(n, seed):
    """Return a table of errors on rows of `coast`, against the values without noise."""
    (X, _, y), (new, truth, _) = coast(n, seed), coast(5000, seed + 1)
    models = {
        "no pairs": AdditiveGPRegressor(interactions=None),
        "pairs found": AdditiveGPRegressor(random_state=0),
        "pair named": AdditiveGPRegressor(terms=[..., (6, 7)], interactions=None),
        "boosting": HistGradientBoostingRegressor(random_state=0),
    }
    rows = []
    for name, model in models.items():
        start = time.process_time()
        model.fit(X, y)
        seconds = time.process_time() - start
        error = np.sqrt(np.mean((model.predict(new) - truth) ** 2))
        rows.append({"seed": seed, "method": name, "RMSE": error, "seconds": seconds})
    return pd.DataFrame(rows)


def _uniform(n, correlation, rng):
    common = np.sqrt(correlation) * rng.standard_normal((n, 1))
    return norm.cdf(common + np.sqrt(1 - correlation) * rng.standard_normal((n, D)))


def evaluate(set, n, seed, method):
    """Return a method's pairs, the strongest first, their scores, and processor seconds."""
    if set in BIKE:
        data = _data.split_regression("bike", seed)
        X, y = data.X_train[:n, : BIKE[set]], data.y_train[:n]
    else:
        X, y = generated(set, n, seed)
    start = time.process_time()
    if method == OURS:
        model = AdditiveGPRegressor(random_state=seed).fit(X, y)
        taken = time.process_time() - start
        found = dict(zip(model.terms_, model.sobol_indices_, strict=True))
        pairs = sorted((t for t in found if len(t) == 2), key=lambda term: -found[term])
        scores = model.interaction_scores_.items()
        scores = {tuple(int(x[1:]) for x in name.split(" & ")): z for name, z in scores}
    else:
        model = _additive_peers.EBM(10, seed).fit(X, y)
        taken = time.process_time() - start
        pairs, scores = model.pairs(), {}
    return {
        "pairs": " ".join(f"{i},{j}" for i, j in pairs),
        "scores": " ".join(f"{i},{j}:{z:.3g}" for (i, j), z in scores.items()),
        "fit_seconds": taken,
    }


def pairs_in(text):
    """Return the pairs that `evaluate` wrote as text."""
    return [tuple(map(int, pair.split(","))) for pair in text.split()]


def known(results):
    """Return a table of the functions with known pairs, with one row per fit."""
    rows = []
    for _, row in results[results["set"].isin(FUNCTIONS)].iterrows():
        true = FUNCTIONS[row["set"]][2]
        pairs = pairs_in(row["pairs"])
        told = pairs if row["method"] == OURS else pairs[: len(true)]
        scores = dict(item.split(":") for item in str(row["scores"]).split())
        scores = {pairs_in(pair)[0]: float(z) for pair, z in scores.items()}
        false = [z for pair, z in scores.items() if pair not in true]
        rows.append(
            {
                "function": row["set"],
                "seed": row["seed"],
                "method": row["method"],
                "true": len(true),
                "found": len(set(told) & set(true)),
                "missed": " ".join(f"{i},{j}" for i, j in true if (i, j) not in told),
                "false": " ".join(f"{i},{j}" for i, j in told if (i, j) not in true),
                "least true score": min((scores[p] for p in true if p in scores), default=np.nan),
                "largest other": max(false, default=np.nan),
                "seconds": row["fit_seconds"],
            }
        )
    return pd.DataFrame(rows)


def report(results):
    """Return the parts of the report: known pairs in total and by fit, and the pairs of bike."""
    parts, table = [], known(results)
    if len(table):
        count = {
            name: table[name].str.split().str.len().groupby([table["function"], table["method"]])
            for name in ("missed", "false")
        }
        groups = table.groupby(["function", "method"], sort=False)
        total = groups[["true", "found"]].sum()
        total["missed"], total["false"] = count["missed"].sum(), count["false"].sum()
        total["fits"], total["seconds"] = groups.size(), groups["seconds"].mean()
        title = (
            "Over seeds; wanted: all true pairs and no false one. EBM takes as many as it is "
            "given:\nits false ones are those above a true one"
        )
        parts.append(_report.table(total.reset_index(), title, 1))
        title = "Every fit; scores are of a pair's first test, when those found before are missing"
        parts.append(_report.table(table, title, 1))
    for name in BIKE:
        rows = results[results["set"] == name].set_index("method")
        if len(rows):
            told = {
                method: [
                    f"{BIKE_NAMES[i]} {i} & {BIKE_NAMES[j]} {j}" for i, j in pairs_in(row["pairs"])
                ]
                for method, row in rows.iterrows()
            }
            columns = {method: pd.Series(pairs) for method, pairs in told.items()}
            seconds = ", ".join(f"{m} {row['fit_seconds']:.0f}" for m, row in rows.iterrows())
            title = f"{name}: pairs, strongest first; processor seconds: {seconds}"
            parts.append(_report.table(pd.DataFrame(columns), title))
    return parts


def report_generated(suite, quick):
    """Report found pairs of generated functions, and errors on rows with hot spots."""
    first, n = 100 * (suite == "evaluation"), 400 if quick else N
    n_coast = 1600 if quick else 20_000
    title = f"Pairs of {suite} functions; wanted: all true pairs and no false one"
    pairs = found_pairs(n, range(first, first + (2 if quick else 20)))
    total = pairs[["true", "found", "false", "seconds"]].sum().to_frame().T
    parts = [
        _report.header(
            f"Interactions of generated functions: {suite}",
            rows=f"{n}, {D} features, unit noise; coast {n_coast}, 8 features, noise .2",
        ),
        _report.table(total, "In total", 1),
        _report.table(pairs, title, 1),
        _report.table(hot_spots(n_coast, first), "Hot spots on a coast", 4),
    ]
    _report.publish(f"interactions-{suite}", parts, write=not quick)


def main():
    """Run missing tasks and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument(
        "--sets", nargs="+", choices=[*FUNCTIONS, *BIKE], help="these only; the report is printed"
    )
    parser.add_argument("--seeds", type=int, default=5, help="default 5")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread; default 2")
    parser.add_argument(
        "--generated", choices=["development", "evaluation"], help="generated functions alone"
    )
    options = parser.parse_args()
    if options.generated:
        report_generated(options.generated, options.quick)
        return
    n, seeds = (400, 1) if options.quick else (N, options.seeds)
    methods = {OURS: _harness.package_code(), PEER: _additive_peers.CODES[PEER]}
    runs = [(name, seed) for name in FUNCTIONS for seed in range(seeds)]
    if not options.quick:
        _data.folder()
        runs += [(name, 0) for name in BIKE]
    runs = [run for run in runs if run[0] in (options.sets or [*FUNCTIONS, *BIKE])]
    tasks = [
        {
            "set": name,
            "n": 10**6 if name in BIKE else n,
            "seed": seed,
            "method": method,
            "code": code,
        }
        for method, code in methods.items()
        for name, seed in runs
        if method == OURS or (seed < PEER_SEEDS and not options.quick)
    ]
    path = None if options.quick else _harness.RESULTS / "interactions.csv"
    results = _harness.run_tasks(evaluate, tasks, MEASURED, path, options.jobs)
    results[["pairs", "scores"]] = results[["pairs", "scores"]].fillna("")
    settings = {
        "rows": f"{n}, {D} features, unit noise, seeds 0 to {seeds - 1}; bike: first split",
        OURS: "AdditiveGPRegressor()",
        PEER: f"{_additive_peers.CODES[PEER]}, interactions=10, of the first {PEER_SEEDS} seeds",
        "processes": f"{options.jobs} of one thread",
    }
    parts = [_report.header("Interactions found", **settings), _report.failures(results)]
    parts += report(results[results["error"] == ""])
    _report.publish("interactions", parts, write=not (options.quick or options.sets))
    sys.exit(int((results["error"] != "").any()))


if __name__ == "__main__":
    main()
