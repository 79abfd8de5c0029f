"""Time and memory of a quadruply stochastic step: against the number of functions, against rows.

The step is that of ``solver="sgd"`` with its defaults: interpolating control variate, split linear
term and Nystroem covariance; against m, also mean field. Minibatches have 512 rows, each draw 1024
frequencies, and there are 256 support rows, in float32. Rows are generated, and read from a memmap
if they take over 256 MiB. The sizes are timed in turn; memory is measured in a separate process for
each size. Run ``python -m benchmarks.quadruply_stochastic_step [--quick]`` on an otherwise idle
machine.
"""

import argparse
import ctypes
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm._data import WeightedDataset
from skgpsvm._features import FourierBases, FourierFeatures
from skgpsvm._posteriors import WhitenedBasis
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.likelihoods import Gaussian
from skgpsvm.quadruply_stochastic._stochastic import StochasticSteps
from skgpsvm.solvers import QuadruplyStochastic

from . import _report
from ._measure import PeakMemory, exponent, medians

D, BATCH, SAMPLED, SUPPORT, M_COV = 8, 512, 1024, 256, 256
SIZES = (10**4, 10**5, 10**6, 10**7)
CHUNK = 10**6  # number of rows generated at a time
WARM_UP, MEASURED_STEPS = 5, 20
FLAT = 1.2  # maximum ratio to the time of the smallest size


def generated(n, folder):
    """Return rows on disk, in float32, and targets: a smooth function with noise."""
    path = Path(folder) / f"X{n}.npy"
    X = np.lib.format.open_memmap(path, "w+", np.float32, (n, D))
    y = np.empty((n, 1), dtype=np.float32)
    for i in range(0, n, CHUNK):
        rng = np.random.default_rng((0, i))
        part = rng.standard_normal((min(CHUNK, n - i), D), dtype=np.float32)
        X[i : i + CHUNK] = part
        noise = rng.standard_normal((len(part), 1), dtype=np.float32)
        y[i : i + CHUNK] = np.sin(2 * part[:, :1]) + 0.3 * noise
    X.flush()
    return np.load(path, mmap_mode="r"), y


class Step:
    """Steps with m functions on n rows; the covariance is mean field if ``n_dense`` is 0."""

    def __init__(self, m, n, folder, n_dense=None):
        X, y = generated(n, folder)
        self.rows = WeightedDataset(X, y, np.ones(n), torch.device("cpu"), torch.float32)
        kernel = ConstantKernel() * RBF(np.full(D, np.sqrt(D / 2)))
        theta = torch.tensor(kernel.theta)
        few = self.rows.take(slice(0, M_COV + SUPPORT))[0].double()
        Z, support = few.split([M_COV, SUPPORT])
        self.generator = torch.Generator().manual_seed(0)
        basis = WhitenedBasis(torch_kernel(kernel), theta, Z) if n_dense is None else None
        self.steps = StochasticSteps(
            LikelihoodSites(Gaussian(np.full(1, 0.1)), 1),
            FourierBases(torch_kernel(kernel), theta, FourierFeatures(m // 2, 0), D),
            basis,
            self.rows,
            self.generator,
            QuadruplyStochastic(n_sampled_basis=SAMPLED, batch_size=BATCH),
            n_dense=n_dense,
            passes=0,  # every step averages
        )
        noise = torch.tensor([0.1], dtype=torch.float64).log()
        self.state = self.steps.init(theta, noise, support)
        self.steps.begin(self.state)
        self.steps._prepare(self.state)

    @torch.no_grad()
    def step(self):
        """Take a step on a minibatch."""
        index = torch.randint(len(self.rows), (BATCH,), generator=self.generator)
        self.steps.update(self.state, index)

    def held(self):
        """Return the size of the state, in MiB."""
        tensors = (part for part in vars(self.state).values() if isinstance(part, torch.Tensor))
        return sum(tensor.nbytes for tensor in tensors) / 2**20


def measure_memory(m, n, n_dense):
    """Return the memory of the state and its growth during steps in this process, in MiB."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        case = Step(m, n, folder, n_dense)
        case.step()
        ctypes.CDLL(None).malloc_trim(0)  # so that steps cannot reuse memory that was freed before
        with PeakMemory() as peak:
            for _ in range(MEASURED_STEPS):
                case.step()
        return {"state MiB": case.held(), "step MiB": peak.growth["RssAnon"]}


def measured(sizes, repeats, n_dense=None):
    """Return a table of times and memory of steps; ``sizes`` are pairs of functions and rows."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [Step(m, n, folder, n_dense) for m, n in sizes]
        for case in cases:
            for _ in range(WARM_UP):
                case.step()
        times = medians([case.step for case in cases], repeats)
    del cases, case
    found = pd.DataFrame(sizes, columns=["m", "n"]).assign(**{"step ms": 1e3 * times})
    memory = []
    for pair in sizes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            memory.append(pool.submit(measure_memory, *pair, n_dense).result())
    return pd.concat([found, pd.DataFrame(memory)], axis=1)


def section(found, by, what="Against"):
    """Return the part of the report on growth against a column."""
    found = found.assign(ratio=found["step ms"] / found["step ms"].iloc[0])
    worst = found["ratio"].max()
    title = (
        f"{what} {by}: exponent {exponent(found[by], found['step ms']):.3f}; largest ratio to "
        f"the smallest {worst:.2f}, wanted at most {FLAT}: {'met' if worst <= FLAT else 'MISSED'}"
    )
    return _report.table(found, title, digits=2)


def draw(parts, path):
    """Draw the time against each size, with the band of times that count as constant."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    names = {"m": "functions m", "n": "rows n"}
    for axis, (by, found) in zip(axes, parts.items(), strict=True):
        first = found["step ms"].iloc[0]
        axis.axhspan(first / FLAT, first * FLAT, alpha=0.15, lw=0, label="within 20 %")
        axis.plot(found[by], found["step ms"], "o-", label="a step")
        axis.set(xscale="log", xlabel=names[by], ylim=(0, 1.6 * first))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="milliseconds")
    axes[0].legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def main():
    """Time the steps and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes, repeats = (SIZES[:2], 5) if options.quick else (SIZES, 100)
    parts = {
        "m": measured([(m, SIZES[0]) for m in sizes], repeats),
        "n": measured([(SIZES[0], n) for n in sizes], repeats),
    }
    mean_field = measured([(m, SIZES[0]) for m in sizes], repeats, 0)
    texts = [
        _report.header(
            "A quadruply stochastic step against the number of functions m and of rows n",
            step=f"{BATCH} rows, 2 x {SAMPLED} frequencies, {SUPPORT} support rows, {M_COV} points "
            f"of the covariance; {D} features; float32",
            times=f"medians of {repeats}, in turns, one thread",
            memory=f"a process a size: peak of {MEASURED_STEPS} steps above that before them, "
            "pages of the memmap not counted; the state is what a fit holds",
        ),
        *(section(found, by) for by, found in parts.items()),
        section(mean_field, "m", "Mean field, against"),
    ]
    _report.publish("quadruply_stochastic_step", texts, write=not options.quick)
    if not options.quick:
        name = f"quadruply_stochastic_step-{date.today()}.png"
        draw(parts, _report.RESULTS / name)


if __name__ == "__main__":
    main()
