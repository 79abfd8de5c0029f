"""Fits with ``device="cuda"``: times beside the CPU, large fits, agreement, memory after fits.

Run ``python -m benchmarks.device [--quick] [--only SECTIONS]``. It ends
with a message if torch finds no GPU. Every section is printed when it is done. The sections are

- sweep: one coordinate-ascent sweep beside the matrix products that it cannot avoid;
- fits: fit and predict_proba of `BayesianSVC` on both devices;
- estimators: every estimator by default, few rows and many, on both devices;
- large: fits for which a GPU is worth having, on the GPU alone, beside GPyTorch's sparse GP there;
- agreement: the largest difference of probabilities of the two devices, by dtype;
- memory: memory of the device that is still allocated after each of many fits.
"""

import argparse
import sys
import time
import warnings
from functools import partial
from importlib.util import find_spec
from itertools import product

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss

import skgpsvm
from skgpsvm import (
    BayesianSVC,
    DecoupledGPRegressor,
    HybridBayesianSVC,
    QSGPClassifier,
    SVGPRegressor,
)
from skgpsvm.hybrid import MNISTExtractor
from skgpsvm.solvers import QuadruplyStochastic

from . import _report, hybrid_mnist
from ._data import Split, split_regression
from ._measure import medians, seconds
from .reproduce.paper2_mnist import load
from .scaling import C, D, M, Sweep, generated

DEVICES = ("cpu", "cuda")
CASES = {
    "fixed kernel, 10 sweeps": {"optimizer": None, "tol": 0, "max_iter": 10},
    "default": {},
    "adam, inducing points learned": {"learn_inducing": True, "max_iter": 30},
}
TOLERANCE = {"float64": 1e-6, "float32": 1e-2}
ESTIMATORS = [name for name in skgpsvm.__all__ if name.endswith(("Classifier", "Regressor", "SVC"))]
N_FITS = 50
PEER_EPOCHS = 30


def sweep_section(quick):
    """Return a table of Figure 1's sweep and products on both devices."""
    n, repeats = (20_000, 3) if quick else (100_000, 7)
    rows = []
    for dtype in (torch.float32, torch.float64):
        for device in DEVICES:
            problem = Sweep(n, C, dtype, device)
            sweep, products = medians([problem.sweep, problem.products], repeats, device)
            rows.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "device": device,
                    "sweep s": sweep,
                    "products s": products,
                    "sweep/products": sweep / products,
                }
            )
    title = (
        f"One sweep and its bare products, n = {n}, d = {D}, m = {M}, C = {C}: medians of {repeats}"
    )
    return _report.table(pd.DataFrame(rows), title, digits=4)


def fit_section(quick):
    """Return a table of the times to fit and predict on both devices."""
    n = 10_000 if quick else 200_000
    X, y = generated(n, D, C)
    rows = []
    for case, settings in CASES.items():
        row = {"settings": case}
        for device in DEVICES:
            model = BayesianSVC(device=device, random_state=0, **settings)
            row[f"fit s {device}"] = seconds(lambda model=model: model.fit(X, y), device)
            row[f"predict s {device}"] = seconds(lambda model=model: model.predict_proba(X), device)
        row["fit ratio"] = row["fit s cpu"] / row["fit s cuda"]
        row["predict ratio"] = row["predict s cpu"] / row["predict s cuda"]
        rows.append(row)
    return _report.table(
        pd.DataFrame(rows), f"fit and predict_proba, n = {n}, d = {D}, C = {C}, float32"
    )


def estimators_section(quick):
    """Return a table of the times to fit every estimator by default on both devices."""
    rows = []
    for name, n in product(ESTIMATORS, (200,) if quick else (500, 10_000)):
        kind = getattr(skgpsvm, name)
        X, y = generated(n, D, 2)
        if is_regressor(kind()):
            y = y + np.sin(X[:, 0] * X[:, 1])
        row = {"estimator": name, "rows": n}
        for device in DEVICES:
            model = kind(device=device, random_state=0)
            model.fit(X[:100], y[:100])  # loads libraries
            row[f"fit s {device}"] = seconds(partial(model.fit, X, y), device)
        row["ratio"] = row["fit s cpu"] / row["fit s cuda"]
        rows.append(row)
        print(row, flush=True)
    return _report.table(pd.DataFrame(rows), f"Fits by default of generated rows, d = {D}")


def regression(model, data):
    """Return the quality of a fitted regressor on test rows, of standardized targets."""
    mean, std = model.predict(data.X_test, return_std=True)
    log_density = norm.logpdf(data.y_test, mean, std).mean()
    return {"RMSE": np.sqrt(np.mean((mean - data.y_test) ** 2)), "log density": log_density}


def classification(model, data):
    """Return the quality of a fitted classifier on test rows."""
    p = model.predict_proba(data.X_test)
    return {"accuracy": np.mean(p.argmax(1) == data.y_test), "log loss": log_loss(data.y_test, p)}


def images():
    """Return the `Split` of MNIST as images of one channel, ten digits."""
    return Split(*hybrid_mnist.load(), 10)


def random_features(n_basis, passes):
    """Return a classifier with random features whose kernel is held, trained by gradient steps."""
    return QSGPClassifier(
        ConstantKernel(10.0) * RBF(6.0),
        optimizer=None,
        mean="constant",
        n_basis=n_basis,
        solver=QuadruplyStochastic(n_sampled_basis=max(1024, n_basis // 500)),
        max_iter=passes,
        dtype="float32",
        device="cuda",
        random_state=0,
    )


def large_fits(quick):
    """Yield the name of the data, their `Split`, the name of a model, the model and its quality."""
    ours = {"device": "cuda", "random_state": 0}
    sets = ("kin40k",) if quick else ("kin40k", "protein", "keggundirected")
    for name in sets:
        data = split_regression(name, 0)
        m = 64 if quick else 1024
        yield name, data, f"SVGPRegressor, m = {m}", SVGPRegressor(n_inducing=m, **ours), regression
        if find_spec("gpytorch"):
            from ._peers import GPyTorchSVGP

            epochs = 1 if quick else PEER_EPOCHS
            peer = GPyTorchSVGP(m, 0, device="cuda", max_epochs=epochs)
            yield name, data, f"GPyTorch SVGP, m = {m}, at most {epochs} epochs", peer, regression
    data = split_regression("kin40k", 0)
    n = 2000 if quick else len(data.X_train)
    exact = DecoupledGPRegressor(n_mean_bases=n, **ours)
    yield "kin40k", data, f"DecoupledGPRegressor, {n} bases", exact, regression
    network = HybridBayesianSVC(MNISTExtractor, max_iter=1 if quick else 8, **ours)
    yield (
        "MNIST",
        images(),
        f"HybridBayesianSVC, {network.max_iter} epochs",
        network,
        classification,
    )
    for n_basis, passes in ((10**4, 1),) if quick else ((10**6, 10), (10**7, 3)):
        model, text = random_features(n_basis, passes), f"{n_basis:.0e} functions, {passes} passes"
        yield "MNIST, odd", load(60_000), f"QSGPClassifier, {text}", model, classification


def large_section(quick):
    """Return a table of fits on the GPU: seconds, device memory, and quality on test rows."""
    rows = []
    for name, data, method, model, quality in large_fits(quick):
        torch.cuda.reset_peak_memory_stats()
        fit = seconds(lambda model=model, data=data: model.fit(data.X_train, data.y_train), "cuda")
        peak = torch.cuda.max_memory_allocated() / 2**30
        row = {"set": name, "rows": len(data.X_train), "model": method, "fit s": fit}
        start = time.perf_counter()
        row |= {"peak GiB": peak} | quality(model, data)
        row["predict s"] = time.perf_counter() - start
        rows.append(row)
        print(row, flush=True)
    return _report.table(pd.DataFrame(rows), "Fits on the GPU alone; targets standardized")


def agreement_section(quick):
    """Return a table of the largest difference of the devices' probabilities, by dtype."""
    X, y = generated(2_000 if quick else 20_000, D, C)
    rows = []
    for dtype, tolerance in TOLERANCE.items():
        settings = {"optimizer": None, "dtype": dtype, "random_state": 0}
        cpu, cuda = (
            BayesianSVC(device=device, **settings).fit(X, y).predict_proba(X) for device in DEVICES
        )
        gap = np.abs(cpu - cuda).max()
        rows.append(
            {
                "dtype": dtype,
                "largest difference": f"{gap:.1e}",
                "tolerance": f"{tolerance:.0e}",
                "within": gap <= tolerance,
                "same labels": np.mean(cpu.argmax(1) == cuda.argmax(1)),
            }
        )
    title = f"Probabilities of CPU and GPU fits, {len(X)} rows, kernel and seed the same"
    return _report.table(pd.DataFrame(rows), title, digits=5)


def memory_section(quick):
    """Return text on device memory after fits; the first may leave a workspace of libraries."""
    X, y = generated(2_000, D, C)
    held = []
    for seed in range(5 if quick else N_FITS):
        BayesianSVC(device="cuda", random_state=seed, max_iter=10).fit(X, y).predict(X)
        held.append(torch.cuda.memory_allocated() / 2**20)
    return (
        f"Device memory allocated after each of {len(held)} fits, MiB: first {held[0]:.2f}, "
        f"largest {max(held):.2f}, last {held[-1]:.2f}. Wanted: nothing beyond the first fit's "
        "workspace of the libraries."
    )


SECTIONS = {
    "sweep": sweep_section,
    "fits": fit_section,
    "estimators": estimators_section,
    "large": large_section,
    "agreement": agreement_section,
    "memory": memory_section,
}


def main():
    """Run the sections and write the report, if there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("Skipped: torch sees no GPU here.")
        sys.exit(0)
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.cuda.init()
    settings = {"GPU": torch.cuda.get_device_name(), "CPU threads": torch.get_num_threads()}
    parts = [_report.header("CPU and GPU", **settings)]
    for name in options.only:
        start = time.perf_counter()
        parts.append(SECTIONS[name](options.quick))
        print(f"{parts[-1]}\n({name}: {time.perf_counter() - start:.0f} s)\n", flush=True)
    _report.publish("device", parts, write=not options.quick)


if __name__ == "__main__":
    main()
