"""Paper 2, section 6.3: log loss of the generated flights, by one process and by ranks.

`EPClassifier` and `SVGPClassifier` in minibatches as in ``paper2_airline``; each rank has its own
part of the rows and draws its share of every minibatch, so that losses are equal but for the draws.
Run ``python -m benchmarks.reproduce.paper2_ranks [--quick] [--rows 2000000] [--jobs 1]``.
"""

import argparse
import json
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from sklearn.metrics import log_loss

from .. import _harness, _report
from .paper2_airline import MODELS, D, M, load

RANKS = 1, 2


def worker(n, name):
    """Fit a model on this rank's rows; rank 0 prints its measurements as JSON."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    with tempfile.TemporaryDirectory() as folder:
        data, best = load(Path(folder) / "flights.npy", n)
        own = slice(rank * n // n_ranks, (rank + 1) * n // n_ranks)
        dist.barrier()
        start = time.perf_counter(), time.process_time()
        model = MODELS[name].fit(data.X_train[own], data.y_train[own])
        taken = time.perf_counter() - start[0], time.process_time() - start[1]
        loss = log_loss(data.y_test, model.predict_proba(data.X_test))
    dist.barrier()
    if rank == 0:
        found = {"ranks": n_ranks, "log loss": loss, "of true probabilities": best}
        found |= {"passes": model.n_iter_, "s": taken[0], "s of rank 0's processor": taken[1]}
        print(json.dumps({"model": name} | found), flush=True)
    dist.destroy_process_group()


def main():
    """Fit on one rank and on two, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time, of two cores each")
    parser.add_argument("--worker", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    n = 20_000 if options.quick else options.rows
    if options.worker:
        worker(n, options.worker)
        return

    def fitted(case):
        name, n_ranks = case
        return _harness.run_ranks(__spec__.name, n_ranks, "--worker", name, "--rows", n)

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(fitted, product(MODELS, RANKS)))
    parts = [
        _report.header(
            f"Generated flights on ranks, {n} x {D} float32 from a memmap, m = {M}",
            **{"fits at a time": options.jobs},
        ),
        _report.table(pd.DataFrame(rows), "10000 test rows; each rank has one thread", digits=4),
    ]
    _report.publish("paper2_ranks", parts, write=not options.quick)


if __name__ == "__main__":
    main()
