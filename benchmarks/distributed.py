"""Fits that ranks share: seconds by one and two processes of one thread, and bytes they exchange.

Run ``python -m benchmarks.distributed [--quick]``, with the names of some fits if not all. Every
fit has a fixed number of iterations, on generated rows of which each rank has an equal part.
Seconds of the wall clock mean something only on a machine with nothing else to do, and at least two
cores. Those of the processor are of the rank that takes more, and leave out what it waits for
others.

``--simulate`` writes ``distributed_scaling``: times on up to 64 ranks, computed from those of one
and two, and from the size of their messages.
"""

import argparse
import json
import math
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    HybridSVGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm.solvers import (
    InterleavedEP,
    NaturalGradient,
    QuadruplyStochastic,
    StochasticGradient,
)

from . import _harness, _report

D, N_ROWS, QUICK_ROWS = 10, 200_000, 5000
FIXED = {"inducing_points": "random", "random_state": 0, "tol": 0.0}
HELD = {"kernel": 2.0 * RBF(3.0), "optimizer": None, "learn_inducing": False, **FIXED}
LEARNED = {"kernel": 2.0 * RBF(3.0), **FIXED}
RVM = {"kernel": RBF(3.0), "optimizer": None, "random_state": 0, "tol": 0.0, "n_basis": 200}
BATCHES = NaturalGradient(batch_size=4096)
BASES = {**HELD, "n_mean_bases": 2000}
EFFECTS = {"sparse": True, "interactions": None, "tol": 0.0, "random_state": 0}
NETWORK = {
    "module_params": {"hidden_layer_sizes": (512, 512)},
    "batch_size": 4096,
    "early_stopping": False,
    "random_state": 0,
}
CASES = {
    "BayesianSVC, sweeps": BayesianSVC(**HELD),
    "EPClassifier, updates": EPClassifier(**HELD),
    "SVGPClassifier, natural gradients": SVGPClassifier(**HELD, solver="natural_gradient"),
    "SVGPClassifier, minibatches, learned": SVGPClassifier(**LEARNED, solver=BATCHES),
    "SVGPRegressor, minibatches, learned": SVGPRegressor(**LEARNED, solver=BATCHES),
    "EPClassifier, minibatches, learned": EPClassifier(
        **LEARNED, solver=InterleavedEP(batch_size=4096)
    ),
    "DecoupledGPRegressor, conjugate gradients": DecoupledGPRegressor(**BASES),
    "DecoupledGPClassifier, conjugate gradients": DecoupledGPClassifier(**BASES),
    "DecoupledGPRegressor, stochastic steps": DecoupledGPRegressor(
        n_mean_bases=2000, random_state=0, solver=StochasticGradient(batch_size=4096)
    ),
    "QSGPRegressor, conjugate gradients": QSGPRegressor(**HELD, n_basis=2000),
    "QSGPClassifier, conjugate gradients": QSGPClassifier(**HELD, n_basis=2000),
    "QSGPRegressor, stochastic steps": QSGPRegressor(
        kernel=2.0 * RBF(3.0),
        optimizer=None,
        random_state=0,
        inducing_points="random",
        n_basis=10_000,
        solver=QuadruplyStochastic(batch_size=4096),
    ),
    "AdditiveGPRegressor, whole fit": AdditiveGPRegressor(**EFFECTS),
    "AdditiveGPClassifier, passes": AdditiveGPClassifier(**EFFECTS),
    "QSRVMRegressor, sweeps": QSRVMRegressor(**RVM),
    "QSRVMClassifier, sweeps": QSRVMClassifier(**RVM),
    "HybridSVGPRegressor, epochs": HybridSVGPRegressor(**NETWORK),
    "HybridBayesianSVC, epochs": HybridBayesianSVC(**NETWORK, validation_fraction=0.0),
}
ITERATIONS = (2, 6)  # of two fits, whose difference is the cost of the rest
WANTED = 1.7
BATCHED = "minibatches", "natural", "stochastic", "epochs"  # in names of cases
RANKS, BANDWIDTH, LATENCY = (2, 4, 16, 64), 1.25e9, 5e-5  # bytes per second, seconds


def generated(n, rank, n_ranks):
    """Return this rank's part of n rows, with targets.

    The rows are in the order in which a fit has them, so that any number of ranks draws the same
    functions: relevance vector machines have fewer of them in every sweep.
    """
    rng = np.random.default_rng(0)
    w = rng.standard_normal((D, 3))
    X = rng.standard_normal((n, D))
    X = X[X[:, 0].argsort()]
    y = np.sin(X @ w / 2).sum(1) + 0.3 * rng.standard_normal(n)
    own = slice(rank * n // n_ranks, (rank + 1) * n // n_ranks)
    return X[own], y[own]


def worker(n, names):
    """Fit the cases on this rank; rank 0 prints seconds and bytes of an iteration as JSON."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    sent, reduce_all = np.zeros(2, int), dist.all_reduce

    def counted(tensor, *args, **kwargs):
        sent[:] += tensor.numel() * tensor.element_size(), 1
        return reduce_all(tensor, *args, **kwargs)

    dist.all_reduce = counted
    X, y = generated(n, dist.get_rank(), dist.get_world_size())
    found = {}
    for name in names:
        estimator, targets = CASES[name], y if "Regressor" in name else y > 0
        taken, exchanged = [], []
        for iterations in ITERATIONS:
            dist.barrier()
            start, sent[:] = np.array([time.perf_counter(), time.process_time()]), 0
            estimator.set_params(max_iter=iterations).fit(X, targets)
            taken.append(np.array([time.perf_counter(), time.process_time()]) - start)
            exchanged.append(sent.copy())
        steps = ITERATIONS[1] - ITERATIONS[0]
        seconds = torch.tensor(np.concatenate([taken[1], (taken[1] - taken[0]) / steps]))
        reduce_all(seconds, op=dist.ReduceOp.MAX)
        of_fit, of_iteration = seconds.split(2)
        found[name] = {
            "fit": of_fit.tolist(),
            "iteration": of_iteration.tolist(),
            "bytes": int(exchanged[1][0] - exchanged[0][0]) // steps,
            "sums": int(exchanged[1][1] - exchanged[0][1]) / steps,
        }
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def measured(n, n_ranks, names):
    """Return what the worker prints on rank 0 of so many ranks."""
    return _harness.run_ranks("benchmarks.distributed", n_ranks, *names, "--worker", n)


def simulated(name, one, two, n, n_ranks, n_rows):
    """Return seconds of an iteration on n_rows, from those of n rows on one and on two ranks.

    What two ranks save is half of what is proportional to the rows; the rest is done by all. A sum
    over K ranks sends 2 (K - 1) / K times its bytes from each rank, in 2 log2(K) messages. In a
    pass over minibatches, each has its own sums.
    """
    (_, alone), (_, shared) = one["iteration"], two["iteration"]
    by_rows = min(max(2 * (alone - shared), 0.0), alone)
    sent = 2 * (n_ranks - 1) / n_ranks * two["bytes"] / BANDWIDTH
    waited = two["sums"] * 2 * math.log2(n_ranks) * LATENCY
    steps = N_ROWS / n if any(word in name for word in BATCHED) else 1
    return by_rows * n_rows / n / n_ranks + steps * (alone - by_rows + sent + waited)


def simulate(n, names, write):
    """Write the table of simulated times of fits whose iterations read the rows."""
    names = [name for name in names if "whole fit" not in name]
    one, two = measured(n, 1, names), measured(n, 2, names)
    rows = []
    for name in names:
        parts = name, one[name], two[name], n
        alone = simulated(*parts, 1, N_ROWS)
        row = {"fit": name, "bytes": two[name]["bytes"], "sums": two[name]["sums"], "s": alone}
        row |= {f"{k} ranks": alone / simulated(*parts, k, N_ROWS) for k in RANKS}
        row |= {f"{k} times": alone / simulated(*parts, k, k * N_ROWS) for k in RANKS}
        rows.append(row)
    parts = [
        _report.header(f"Simulated times of ranks, from {n} rows x {D} on one and two of them"),
        _report.table(
            pd.DataFrame(rows),
            f"An iteration on {N_ROWS} rows by one rank, seconds of the processor; how many times "
            f"quicker more ranks are; and the share of its speed that each has with {N_ROWS} rows "
            "for each rank",
        ),
        f"Network: {BANDWIDTH / 1e9} GB/s, {1e6 * LATENCY:.0f} microseconds. Ranks share "
        "minibatches; where each has as many rows as one alone, these grow with the ranks. What "
        "all ranks do is a difference of two times: speeds of 16 ranks and more are uncertain.",
    ]
    _report.publish("distributed_scaling", parts, write=write)


def main():
    """Measure one and two ranks, and a tenth of the rows, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="fits, all unless given; some are printed only")
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--worker", type=int, metavar="ROWS", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time, of two cores each")
    parser.add_argument("--simulate", action="store_true", help="the times of up to 64 ranks")
    options = parser.parse_args()
    names = options.names or list(CASES)
    if options.worker:
        worker(options.worker, names)
        return
    if options.simulate:
        n = QUICK_ROWS if options.quick else N_ROWS // 10
        simulate(n, names, write=not (options.quick or options.names))
        return
    n = QUICK_ROWS if options.quick else N_ROWS
    sizes = ((n, 1), (n, 2), (n // 10, 2))
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = pool.map(lambda name: [measured(*size, [name])[name] for size in sizes], names)
        found = dict(zip(names, runs, strict=True))
    rows = []
    for name, (one, two, tenth) in found.items():
        # An additive regression reads its rows once, so that its rounds show nothing of ranks.
        compared = "fit" if "whole fit" in name else "iteration"
        rows.append(
            {
                "fit": name,
                "s, 1 rank": one[compared][0],
                "2 ranks": two[compared][0],
                "ratio": one[compared][0] / two[compared][0],
                "ratio of processor time": one[compared][1] / two[compared][1],
                "ratio of whole fits": one["fit"][0] / two["fit"][0],
                "bytes": two["bytes"],
                "bytes, n / 10": tenth["bytes"],
            }
        )
    met = [sum(row[ratio] >= WANTED for row in rows) for ratio in list(rows[0])[3:5]]
    parts = [
        _report.header(
            f"Fits shared by two ranks, {n} rows x {D}, one thread each",
            **{"fits at a time": options.jobs},
        ),
        _report.table(
            pd.DataFrame(rows),
            "Seconds of an iteration or a whole fit; bytes are of one rank's sums in an iteration",
        ),
        f"Wanted: {WANTED} times faster; met by {met[0]} of {len(rows)}, and by {met[1]} in "
        "processor time. A pass of minibatches has as many exchanges as minibatches, so that its "
        "bytes grow with the rows; natural gradients take minibatches of 1,024 by default. A rank "
        "keeps the features of its rows if they take at most 256 MiB, as half of 200,000 rows do: "
        "ratios above 2 come from that.",
    ]
    _report.publish("distributed", parts, write=not (options.quick or options.names))


if __name__ == "__main__":
    main()
