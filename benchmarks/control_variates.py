"""Paper 4, Figure 1: reduction of a doubly sampled quadratic's variance by control variates.

Evans and Nair (2020), section 4.2, on all rows of kin40k, standardized. ``mu' Phi' Phi mu /
sigma^2`` and its gradient are estimated from 500 rows and two draws of 500 of 10,000 random Fourier
features. The report has the variance of both by number of support rows, relative to the variance
without control variate. ``mu`` is a draw from the prior, as in the paper, and a posterior mean.
Kernel and noise are those of an exact GP on 1000 random rows. Run
``python -m benchmarks.control_variates [--quick]``.
"""

import argparse
from datetime import date

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpsvm import QSGPRegressor
from skgpsvm._data import WeightedDataset
from skgpsvm._features import FourierBases
from skgpsvm._sites import LikelihoodSites
from skgpsvm.likelihoods import Gaussian
from skgpsvm.quadruply_stochastic._estimates import LatentEstimates
from skgpsvm.quadruply_stochastic._estimates import draw as drawn
from skgpsvm.quadruply_stochastic._stochastic import StochasticSteps
from skgpsvm.solvers import QuadruplyStochastic

from . import _data, _report

N_BASIS, BATCH, PAIRS = 10_000, 500, 250
SUPPORTS, EVALUATIONS = (30, 100, 300, 1000), 1000
CONTROLS = ("gram", "interpolating")
PARTS = ("objective", "gradient")
# Values in the specification, 6.2: n = 8000, m = 4000, 300 rows and functions, a prior draw.
SPECIFIED = {
    ("prior draw", "gram", "objective"): (0.27, 0.077, 0.041, 0.028),
    ("prior draw", "gram", "gradient"): (0.27, 0.107, 0.066, 0.048),
    ("prior draw", "interpolating", "objective"): (0.019, 0.0023, 0.0006, 0.0003),
    ("prior draw", "interpolating", "gradient"): (0.076, 0.031, 0.023, 0.022),
    ("posterior mean", "gram", "objective"): (0.42, 0.17, 0.096, 0.051),
}


class Quadratic(FourierBases):
    """Random features with a flat prior of the weights: the gradient is that of the term alone."""

    def prior_diag(self, which):
        """Return zeros."""
        return torch.zeros_like(super().prior_diag(which))


def fitted(X, y, n_learning):
    """Fit to all rows with the hyperparameters of an exact GP on ``n_learning`` rows."""
    some = np.random.default_rng(0).permutation(len(X))[:n_learning]
    kernel = ConstantKernel() * RBF(np.full(X.shape[1], 2.0)) + WhiteKernel(0.1)
    learned = GaussianProcessRegressor(kernel).fit(X[some], y[some]).kernel_
    return QSGPRegressor(
        learned.k1,
        noise_variance=learned.k2.noise_level,
        optimizer=None,
        learn_inducing=False,
        n_basis=N_BASIS,
        n_inducing=16,
        normalize_y=False,
        random_state=0,
    ).fit(X, y)


class Estimates:
    """Estimates of the term and its gradient at coefficients (1, m), with the given support rows.

    Estimates with the same number use the same rows and functions for all control variates.
    """

    def __init__(self, latents, X, coef, control, support):
        bases = latents.mean_bases("cpu")
        bases = Quadratic(bases.kernel, bases.theta, bases.features, X.shape[1])
        none = np.zeros((len(X), 1))
        self.rows = WeightedDataset(X, none, np.ones(len(X)), torch.device("cpu"), torch.float64)
        self.control, self.precision = control, np.exp(-latents.noise[0])
        self.steps = StochasticSteps(
            LikelihoodSites(Gaussian(np.exp(latents.noise)), 1),
            bases,
            latents.basis("cpu"),
            self.rows,
            torch.Generator(),
            # With a learning rate of 1, a step is the gradient.
            QuadruplyStochastic(
                control_variate=control,
                n_sampled_basis=PAIRS,
                batch_size=BATCH,
                learning_rate=1.0,
            ),
            passes=1,
        )
        noise, support = torch.tensor(latents.noise), torch.tensor(X[support])
        self.state = self.steps.init(bases.theta, noise, support)
        self.steps.begin(self.state)
        self.steps._prepare(self.state)
        self.coef, self.at_support = coef, bases.mean(self.state.support, coef)

    @torch.no_grad()
    def estimate(self, number):
        """Return the estimate with a given number, and its gradient (m,)."""
        generator, steps, state = torch.Generator().manual_seed(number), self.steps, self.state
        index = torch.randperm(len(self.rows), generator=generator)[:BATCH]
        X, support = self.rows.take(index)[0], state.support
        bases = steps.bases, steps.bases
        draws = [drawn(*bases, PAIRS, X, support, generator) for _ in range(2)]
        sums = [each.sums(self.coef) for each in draws]
        found, there = zip(*sums, strict=True)
        errors = [self.at_support - part for part in there]
        if self.control == "interpolating":
            weight = steps._kriging(X, support)
            found = [f + weight @ error for f, error in zip(found, errors, strict=True)]
        value = len(self.rows) / BATCH * (found[0] * found[1]).sum()
        if self.control == "gram":
            known = self.at_support.square() - there[0] * there[1]
            value += len(self.rows) / len(support) * known.sum()
        state.coef, state.at_support = self.coef.clone(), self.at_support.clone()
        linear = torch.zeros(BATCH, 1, dtype=torch.float64)
        precision = torch.full_like(linear, self.precision * len(self.rows) / BATCH)
        steps._update_coefficients(state, LatentEstimates(draws, found, errors), linear, precision)
        return self.precision * value.item(), 2 * (self.coef - state.coef)[0]

    def variances(self, n_evaluations):
        """Return the variance of the estimate, and of its gradient, averaged over coordinates."""
        values, gradients = zip(*map(self.estimate, range(n_evaluations)), strict=True)
        return np.var(values), torch.stack(gradients).var(0).mean().item()


def measured(latents, X, n_evaluations):
    """Return relative variances for each number of support rows, by mean and control variate."""
    order = np.random.default_rng(1).permutation(len(X))
    prior = torch.randn(1, latents.coef.shape[1], generator=torch.Generator().manual_seed(0))
    means = {"prior draw": prior.double(), "posterior mean": torch.tensor(latents.coef)}
    found = {}
    for name, coef in means.items():
        none = Estimates(latents, X, coef, None, order[: SUPPORTS[0]]).variances(n_evaluations)
        for control in CONTROLS:
            for p in SUPPORTS:
                case = Estimates(latents, X, coef, control, order[:p])
                ratios = np.divide(case.variances(n_evaluations), none)
                for part, ratio in zip(PARTS, ratios, strict=True):
                    found.setdefault((name, control, part), []).append(ratio)
                print(f"{name}, {control}, {p}: {ratios[0]:.4f} {ratios[1]:.4f}", flush=True)
    return found


def table(ratios, title):
    """Return relative variances by mean, control variate and part, as text."""
    names = ["mu", "control variate", "variance of"]
    frame = pd.DataFrame(ratios, index=SUPPORTS).T.rename_axis(names).reset_index()
    return _report.table(frame, title, digits=4)


def draw(found, path):
    """Draw Figure 1: relative variance against the number of support rows."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axis, part in zip(axes, PARTS, strict=True):
        for (mean, control, which), ratios in found.items():
            if which == part:
                style = {"ls": "-" if mean == "prior draw" else "--", "marker": "o", "ms": 4}
                color = f"C{CONTROLS.index(control)}"
                axis.plot(SUPPORTS, ratios, color=color, label=f"{control}, {mean}", **style)
        axis.axhline(0.1, color="k", ls=":", lw=1)
        axis.plot(300, 0.1, "k*", ms=10, label="the paper's factor 10")
        axis.set(xscale="log", yscale="log", xlabel="support rows", title=f"variance of {part}")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="relative to none")
    axes[1].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=150)


def main():
    """Fit, evaluate the variances and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument(
        "--evaluations", type=int, default=EVALUATIONS, help="less than the paper's: printed only"
    )
    options = parser.parse_args()
    kept = not options.quick and options.evaluations >= EVALUATIONS
    n_rows, n_learning, n_evaluations = None, 1000, options.evaluations
    if options.quick:
        n_rows, n_learning, n_evaluations = 4000, 200, 10
    with np.load(_data.folder() / "regression" / "kin40k.npz", allow_pickle=False) as archive:
        X, y = (archive[name][:n_rows].astype(np.float64) for name in ("X", "y"))
    X, _ = _data.prepared(X, X[:1])
    model = fitted(X, (y - y.mean()) / y.std(), n_learning)
    (latents,) = model._latents
    found = measured(latents, X, n_evaluations)
    at = SUPPORTS.index(300)
    factors = [f"{name[2]} {1 / found[name][at]:.1f}" for name in found if name[1] == "gram"]
    parts = [
        _report.header(
            "Paper 4, Figure 1: control variates of the mean's quadratic term",
            rows=f"{len(X)} of kin40k; {BATCH} a minibatch, {N_BASIS} functions, 2 x {2 * PAIRS} "
            f"sampled, {n_evaluations} evaluations",
            kernel=f"{model.kernel_}, noise {model.noise_variance_:.4g}, of {n_learning} rows",
        ),
        table(found, "Variance relative to no control variate, by number of support rows"),
        table(SPECIFIED, "The specification's, 6.2, on generated rows, m = 4000"),
        "The paper: a factor 10 at about 300 support rows. Here, gram at 300, prior draw then\n"
        f"posterior mean: {', '.join(factors)}.",
    ]
    _report.publish("control_variates", parts, write=kept)
    if kept:
        draw(found, _report.RESULTS / f"control_variates-{date.today()}.png")


if __name__ == "__main__":
    main()
