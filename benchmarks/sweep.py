"""Speed of expectation propagation: against its matrix products, and of two ranks against one.

Run ``python -m benchmarks.sweep [--quick]`` on an otherwise idle machine. At n = 100,000 and
m = 200, one iteration of a batch fit is timed, including the computation of features: with updates
of the sites alone, and with a step of the hyperparameters. Then two ranks of one thread each share
the rows by gloo, and their result is compared with that of one rank.
"""

import argparse
import os
import tempfile
import time

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import torch.multiprocessing
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm._data import WeightedDataset
from skgpsvm._optim import Free
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.expectation_propagation._inference import EPProblem, SiteUpdates
from skgpsvm.expectation_propagation._propagation import Propagation
from skgpsvm.expectation_propagation._rules import RULES

from . import _report
from ._measure import medians

D = 20
RATE = 1e-6  # so small that features change in every step, but the work stays the same


class Iteration:
    """Iterations of a batch fit on a share of generated rows, and their matrix products."""

    def __init__(self, n, m, dtype, *, learning, share=slice(None)):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, D))
        y = (np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(n) > 0).astype(int)
        kernel = ConstantKernel(2.0) * RBF(np.full(D, np.sqrt(D / 2)))
        self.Z, self.learning = torch.tensor(X[:m]), learning
        X, y = X[share], y[share]
        self.rows = WeightedDataset(X, y, np.ones(len(X)), torch.device("cpu"), dtype)
        propagation = Propagation(torch_kernel(kernel), self.rows)
        bounds, scale = torch.tensor(kernel.bounds), torch.ones(D).double()
        free = ["theta", "Z"] if learning else []
        problem = EPProblem(propagation, Free(free, bounds, scale))
        self.fit = SiteUpdates(problem, RULES["adam"](RATE), 10**6, 0.0)
        self.state = self.fit.init({"theta": torch.tensor(kernel.theta), "Z": self.Z})

    def step(self):
        """Run one iteration."""
        if not self.learning:
            self.state.theta = self.state.theta + RATE
        self.state.values = []
        self.fit.step(self.state)

    def products(self):
        """Compute the products: features, variances, Gram matrix, and those of the step."""
        Z = self.Z.to(self.rows.dtype)
        square = torch.eye(len(Z), dtype=Z.dtype)
        for chunk in self.rows.chunks():
            X = self.rows.take(chunk)[0]
            A = (X @ Z.T) @ square
            A @ square
            A.T @ A
            if self.learning:
                A.T @ A
                slope = A @ square + A @ square
                A.T @ slope
                (slope @ square).T @ X
                X @ Z.T


def product_section(n, m, repeats):
    """Return a table of one iteration beside its products."""
    rows = []
    for dtype in (torch.float64, torch.float32):
        for threads in dict.fromkeys((1, os.cpu_count())):
            for learning in (False, True):
                torch.set_num_threads(threads)
                case = Iteration(n, m, dtype, learning=learning)
                case.step()
                taken, products = medians([case.step, case.products], repeats)
                rows.append(
                    {
                        "dtype": str(dtype).removeprefix("torch."),
                        "threads": threads,
                        "step of hyperparameters": "yes" if learning else "no",
                        "iteration s": taken,
                        "products s": products,
                        "ratio": taken / products,
                    }
                )
    title = (
        f"An iteration at n = {n}, d = {D}, m = {m}, beside the matrix products in it: medians of "
        f"{repeats}, alternating.\nWanted: ratio at most 3."
    )
    return _report.table(pd.DataFrame(rows), title)


def share_of_rank(rank, n_ranks, folder, n, m, n_steps):
    """Run iterations of one rank of a group; save their mean wall time and the posterior mean."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=n_ranks)
    found = {}
    for learning in (False, True):
        share = slice(rank, None, n_ranks)
        case = Iteration(n, m, torch.float64, learning=learning, share=share)
        case.step()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(n_steps):
            case.step()
        found[learning] = (time.perf_counter() - start) / n_steps, case.state.mean
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()  # no rank leaves before the others have finished communicating
    dist.destroy_process_group()


def run_ranks(n_ranks, *sizes):
    """Return the results of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(share_of_rank, (n_ranks, folder, *sizes), nprocs=n_ranks)
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(n_ranks)]


def rank_section(n, m, n_steps, n_turns):
    """Return a table of two ranks of one thread each that share the rows, beside one rank."""
    turns = [[run_ranks(n_ranks, n, m, n_steps) for n_ranks in (1, 2)] for _ in range(n_turns)]
    rows = []
    for learning in (False, True):
        taken = [[max(found[learning][0] for found in run) for run in runs] for runs in turns]
        one, two = np.median(taken, axis=0)
        (alone,), shared = [[found[learning][1] for found in run] for run in turns[0]]
        rows.append(
            {
                "step of hyperparameters": "yes" if learning else "no",
                "one rank s": one,
                "two ranks s": two,
                "speed-up": one / two,
                "off by": f"{(shared[0] - alone).abs().max().item():.0e}",
                "ranks equal": torch.equal(*shared),
            }
        )
    title = (
        f"An iteration of ranks of one thread that share n = {n}, m = {m}, float64: means\n"
        f"of {n_steps}, medians of {n_turns} turns; how far posterior means are from those of one "
        "rank.\nWanted: speed-up 1.7, off by at most 1e-9."
    )
    return _report.table(pd.DataFrame(rows), title)


def main():
    """Run the sections and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    quick = parser.parse_args().quick
    n, m, repeats, n_turns = (2_000, 32, 3, 1) if quick else (100_000, 200, 7, 3)
    parts = [_report.header("Iterations of expectation propagation")]
    parts += [product_section(n, m, repeats), rank_section(n, m, repeats, n_turns)]
    _report.publish("sweep", parts, write=not quick)


if __name__ == "__main__":
    main()
