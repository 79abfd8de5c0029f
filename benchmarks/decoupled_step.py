"""Time of a stochastic step of the decoupled bound: against the mean's bases, against n.

A step of Algorithm 1 with all bases in place uses as many columns of the bases' kernel matrix as
there are rows in the minibatch. It is compared with a step of Adam on as many rows by
`SVGPRegressor`'s ``solver="gradient"``, which has the same inducing points for mean and
covariance. Rows are generated. Run ``python -m benchmarks.decoupled_step [--quick | --full]`` on an
otherwise idle machine.
"""

import argparse
from datetime import date

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm._data import WeightedDataset
from skgpsvm._inference.natural_gradient import AdamSteps, GradientState
from skgpsvm._optim import PARAMETER_BOUNDS, Free
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.decoupled._stochastic import StochasticBound, StochasticDescent
from skgpsvm.kernels import MultiscaleRBF
from skgpsvm.likelihoods import Gaussian

from . import _report
from ._measure import exponent, medians

D, M_COV = 8, 128
RATE = 1e-6  # so small that every step does the same work
LARGE_MEAN, LARGE_COUPLED = 2**11, 2**10  # sizes from which the leading term dominates the time


def generated(n):
    """Return rows and targets: a smooth function with noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, D))
    y = np.sin(2 * X[:, :1]) + 0.3 * rng.standard_normal((n, 1))
    return WeightedDataset(X, y, np.ones(n), torch.device("cpu"), torch.float64)


def points(n):
    """Return standard normal bases."""
    return torch.tensor(np.random.default_rng(1).standard_normal((n, D)))


class DecoupledStep:
    """Steps of Algorithm 1 with a given number of bases of the mean."""

    def __init__(self, rows, batch_size, n_bases):
        kernel = ConstantKernel() * MultiscaleRBF(np.full(D, np.sqrt(D / 2)), n_features=D)
        sites = LikelihoodSites(Gaussian(np.full(1, 0.1)), 1)
        generator = torch.Generator().manual_seed(0)
        self.descent = StochasticDescent(
            StochasticBound(torch_kernel(kernel), sites, "decoupled"),
            rows,
            {"Z": M_COV, "bases": n_bases},
            batch_size,
            RATE,
            (),
            {"theta": torch.tensor(kernel.bounds).unbind(-1), "noise": PARAMETER_BOUNDS},
            generator,
        )
        theta, scale = torch.tensor(kernel.theta), torch.ones(D).double()
        self.state = self.descent.init(theta, sites.parameters(), 2 * D, scale)
        wide = torch.nn.functional.pad(points(n_bases), (0, D))
        self.state.parameters |= {
            "Z": wide[:M_COV],
            "bases": wide,
            "coef": torch.zeros(1, n_bases).double(),
            "factor": torch.eye(M_COV).double()[None],
        }
        self.state.n_seen = rows.total_weight
        self.index = torch.randint(len(rows), (batch_size,), generator=generator)

    def step(self):
        """Take a step on a minibatch, which adds no bases."""
        self.descent._learn(self.state, self.index)


class CoupledStep:
    """Steps of Adam on all parameters with a given number of inducing points."""

    def __init__(self, rows, batch_size, m):
        kernel = ConstantKernel() * RBF(np.full(D, np.sqrt(D / 2)))
        sites = LikelihoodSites(Gaussian(np.full(1, 0.1)), 1)
        trained = ("theta", "noise", "Z", "mean", "raw_root")
        free = Free(trained, torch.tensor(kernel.bounds), torch.ones(D).double())
        self.adam = AdamSteps(sites, (torch_kernel(kernel),), rows, free, RATE)
        self.state = GradientState(
            theta=torch.tensor(kernel.theta),
            Z=points(m),
            noise=sites.parameters(),
            mean=torch.zeros(1, m).double(),
            root=torch.eye(m).double()[None],
            raw_root=torch.zeros(1, m, m).double(),
            generator=torch.Generator().get_state(),
        )
        self.index = torch.arange(batch_size)

    def step(self):
        """Take a step on a minibatch."""
        self.adam.run(self.state, [self.index])


def timed(cases, repeats):
    """Return the median seconds of a step of each case, after one step that is not timed."""
    for case in cases:
        case.step()
    return medians([case.step for case in cases], repeats)


def growth(sizes, times, large):
    """Return the exponents of time over all sizes and over the large ones, as text."""
    some = np.array(sizes) >= large
    last = exponent(np.array(sizes)[some], times[some])
    return f"exponent {exponent(sizes, times):.2f}, from {large} on {last:.2f}"


def draw(curves, by_n, path):
    """Draw the time against the number of bases and against n."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for (name, (sizes, times)), power in zip(curves.items(), (1, 3), strict=True):
        (line,) = left.plot(sizes, times, "o-", label=name)
        sizes = np.array(sizes, dtype=float)
        guide = times[-1] * (sizes / sizes[-1]) ** power
        shown = guide > times.min() / 2
        left.plot(sizes[shown], guide[shown], ":", lw=1, color=line.get_color())
    left.set(xscale="log", yscale="log", xlabel="bases", ylabel="seconds a step")
    left.legend(frameon=False, title="dotted: powers 1 and 3", fontsize=8, title_fontsize=8)
    right.plot(*by_n, "o-")
    right.set(xscale="log", xlabel="rows")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main():
    """Time the steps and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a small version, printed only")
    size.add_argument("--full", action="store_true", help="minibatches of 1024, bases up to 2^16")
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch_size, repeats = (1024 if options.full else 256), (3 if options.quick else 5)
    if options.quick:
        mean, coupled, n_rows = (256, 1024, 2048, 4096), (128, 512, 1024, 1536), (10**4, 10**5)
    else:
        mean = tuple(2**k for k in range(8, 17 if options.full else 15))
        coupled = tuple(2**k for k in range(8, 13 if options.full else 12))
        n_rows = (10**4, 10**5, 10**6)

    rows = generated(n_rows[0])
    by_mean = timed([DecoupledStep(rows, batch_size, size) for size in mean], repeats)
    print("decoupled done", flush=True)
    by_coupled = timed([CoupledStep(rows, batch_size, size) for size in coupled], repeats)
    print("coupled done", flush=True)
    by_n = timed([DecoupledStep(generated(n), batch_size, LARGE_MEAN) for n in n_rows], repeats)

    parts = [
        _report.header(
            "A stochastic step against the number of bases",
            rows=f"{D} features; minibatches of {batch_size}, as many columns; float64",
            times=f"medians of {repeats}, in turns, one thread",
        ),
        _report.table(
            pd.DataFrame({"bases of the mean": mean, "step s": by_mean}),
            f"Decoupled, {M_COV} bases of the covariance: {growth(mean, by_mean, LARGE_MEAN)}.\n"
            "Wanted: 1.",
            digits=4,
        ),
        _report.table(
            pd.DataFrame({"inducing points": coupled, "step s": by_coupled}),
            f"Coupled: {growth(coupled, by_coupled, LARGE_COUPLED)}.",
            digits=4,
        ),
        _report.table(
            pd.DataFrame({"n": n_rows, "step s": by_n}),
            f"Decoupled, {LARGE_MEAN} bases, against n: exponent {exponent(n_rows, by_n):.2f}. "
            "Wanted: 0.",
            digits=4,
        ),
    ]
    name = "decoupled_step-full" if options.full else "decoupled_step"
    _report.publish(name, parts, write=not options.quick)
    if not options.quick:
        curves = {"decoupled": (mean, by_mean), "coupled": (coupled, by_coupled)}
        draw(curves, (n_rows, by_n), _report.RESULTS / f"{name}-{date.today()}.png")


if __name__ == "__main__":
    main()
