"""`BayesianSVC` with ``device="cuda"`` beside the CPU: times, agreement, and memory not released.

Run ``python -m benchmarks.device``; it ends with a message if torch finds no GPU.
"""

import argparse
import sys
import warnings

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning

from skgpsvm import BayesianSVC

from . import _report
from ._measure import medians, seconds
from .scaling import C, D, M, Sweep, generated

DEVICES = ("cpu", "cuda")
CASES = {
    "fixed kernel, 10 sweeps": {"optimizer": None, "tol": 0, "max_iter": 10},
    "default": {},
    "adam, inducing points learned": {"learn_inducing": True, "max_iter": 30},
}
TOLERANCE = {"float64": 1e-6, "float32": 1e-2}
N_FITS = 50


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


SECTIONS = (sweep_section, fit_section, agreement_section, memory_section)


def main():
    """Run the sections and write the report, if there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("Skipped: torch sees no GPU here.")
        sys.exit(0)
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.cuda.init()
    settings = {"GPU": torch.cuda.get_device_name(), "CPU threads": torch.get_num_threads()}
    parts = [_report.header("CPU and GPU", **settings)]
    parts += [section(options.quick) for section in SECTIONS]
    _report.publish("device", parts, write=not options.quick)


if __name__ == "__main__":
    main()
