"""Speed and memory of `BayesianSVC`: sweeps against bare matrix products, memmaps, one-vs-rest.

Run ``python -m benchmarks.scaling [--quick] [--only sweep growth memory ovr]``. The sections are

- sweep: one coordinate-ascent sweep at n = 100,000, d = 20, m = 256, C = 10 beside the matrix
  products that it cannot avoid, alternating in one process;
- growth: sweep time against n and against C, with fitted exponents;
- memory: fit and predict_proba on a float32 memmap of 2,000,000 x 8, in a separate process;
- ovr: the multi-class model against one-vs-rest on letter, with equal numbers of iterations.
"""

import argparse
import os
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpsvm import BayesianSVC
from skgpsvm._data import CHUNK_ROWS, WeightedDataset
from skgpsvm._hinge_sites import BinarySites, ContrastSites
from skgpsvm._inference.coordinate_ascent import CoordinateAscent
from skgpsvm._posteriors import WhitenedBasis
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.inducing import select_inducing_points

from . import _data, _report
from ._measure import PeakMemory, exponent, medians, seconds

D, M, C = 20, 256, 10
WARM_UP = 3


def generated(n, d, c, seed=0):
    """Return standard normal rows, labeled by the largest of c linear functions with noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d), dtype=np.float32)
    scores = X @ rng.standard_normal((d, c), dtype=np.float32)
    scores += rng.standard_normal((n, c), dtype=np.float32)
    return X, scores.argmax(1)


class Sweep:
    """Further sweep of a coordinate ascent after its first sweeps, and its matrix products.

    Features are computed anew in every sweep unless ``held``. A fit holds them if they take at most
    256 MiB.
    """

    def __init__(self, n, c, dtype, device="cpu", contrast="soft", *, held=False):
        X, y = generated(n, D, c)
        kernel = torch_kernel(ConstantKernel(5.0) * RBF(np.sqrt(D / 2)))
        theta = torch.log(torch.tensor([5.0, np.sqrt(D / 2)], dtype=torch.float64, device=device))
        self.rows = WeightedDataset(X, y, np.ones(n), torch.device(device), dtype)
        self.hinge = ContrastSites(c, contrast) if c > 2 else BinarySites()
        self.Z = torch.tensor(X[:M], dtype=torch.float64, device=device)
        self.ascent = CoordinateAscent(self.hinge, WhitenedBasis(kernel, theta, self.Z), self.rows)
        self.held = held
        Kzz = kernel(self.Z, self.Z, theta)
        jitter = 1e-6 * torch.eye(M, dtype=Kzz.dtype, device=device)
        self.chol = torch.linalg.cholesky(Kzz + jitter).to(dtype)
        self.state = self.ascent.init()
        for _ in range(WARM_UP):
            self.ascent.sweep(self.state)

    def sweep(self):
        """Run one more sweep."""
        if not self.held:
            self.ascent.basis = self.ascent.basis
        self.ascent.sweep(self.state)

    def products(self, n_latents=2):
        """Compute the kernel block, the triangular solve, and Gram matrices of two latents per row.

        Rows are taken in the sweep's chunks. The Gram matrices are of equal parts of a chunk, not
        of the rows of each class: the gathering, weighting and summing of the sweep are left out.
        """
        Z = self.Z.to(self.rows.dtype) / np.sqrt(D / 2)
        z2 = Z.square().sum(1)
        for chunk in self.rows.chunks():
            X = self.rows.take(chunk)[0] / np.sqrt(D / 2)
            K = torch.addmm(z2, X, Z.T, alpha=-2).add_(X.square().sum(1)[:, None])
            K = K.mul_(-0.5).exp_()
            A = torch.linalg.solve_triangular(self.chol, K.T, upper=False).T
            for _ in range(n_latents):
                for group in A.tensor_split(self.hinge.n_latents):
                    group.T @ group


def sweep_row(n, dtype, device, contrast, repeats):
    """Return the times of the sweep with and without held features, and of its products."""
    fresh = Sweep(n, C, dtype, device, contrast)
    held = Sweep(n, C, dtype, device, contrast, held=True)
    sweep, later, products = medians([fresh.sweep, held.sweep, fresh.products], repeats, device)
    return {
        "contrast": contrast,
        "dtype": str(dtype).removeprefix("torch."),
        "device": device,
        "threads": torch.get_num_threads(),
        "sweep s": sweep,
        "held s": later,
        "products s": products,
        "sweep/products": sweep / products,
        "held/products": later / products,
    }


def sweep_section(quick):
    """Return the table of Figure 1: a sweep beside its matrix products."""
    n, repeats = (1_000, 2) if quick else (100_000, 7)
    rows = []
    for threads in (1,) if quick else dict.fromkeys((1, os.cpu_count())):
        torch.set_num_threads(threads)
        for dtype in (torch.float32, torch.float64):
            for contrast in ("soft", "hard"):
                rows.append(sweep_row(n, dtype, "cpu", contrast, repeats))
    title = (
        f"One sweep, n = {n}, d = {D}, m = {M}, C = {C}: medians of {repeats}, alternating with\n"
        "the products it cannot avoid: kernel block, triangular solve, Gram matrices of two\n"
        f"classes a row, in chunks of {CHUNK_ROWS}. Soft contrast (default): three classes a row;\n"
        "hard: two. 'held' sweeps reuse the features of an earlier one.\n"
        "Wanted: sweep/products at most 2."
    )
    return _report.table(pd.DataFrame(rows), title)


def growth_section(quick):
    """Return the tables of Figure 1: sweep time against n and C."""
    torch.set_num_threads(1)
    sizes = (500, 1_000, 2_000) if quick else (10_000, 20_000, 50_000, 100_000, 200_000)
    classes = (2, 3, 5) if quick else (2, 3, 5, 10, 20, 50)
    n, repeats = sizes[-2], 3
    by_n = [medians([Sweep(size, C, torch.float32).sweep], repeats)[0] for size in sizes]
    by_c = [medians([Sweep(n, c, torch.float32).sweep], repeats)[0] for c in classes]
    parts = [
        _report.table(
            pd.DataFrame({"n": sizes, "sweep s": by_n, "us a row": 1e6 * np.array(by_n) / sizes}),
            f"Sweep time against n (C = {C}, d = {D}, m = {M}, float32, one thread): "
            f"exponent {exponent(sizes, by_n):.2f}",
        ),
        _report.table(
            pd.DataFrame({"C": classes, "sweep s": by_c}),
            f"Sweep time against C (n = {n}): exponent {exponent(classes[1:], by_c[1:]):.2f} from "
            "C = 3 on; C = 2 has one latent, the difference",
        ),
    ]
    return "\n\n".join(parts)


def measure_memory(n, d, c, settings):
    """Return rows of the memory table: `fit` and `predict_proba` on a memmap, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        X = np.lib.format.open_memmap(path, "w+", np.float32, (n, d))
        y = np.empty(n, dtype=np.int64)
        step = 100_000
        for i in range(0, n, step):
            X[i : i + step], y[i : i + step] = generated(len(X[i : i + step]), d, c, seed=(0, i))
        X.flush()
        X = np.load(path, mmap_mode="r")
        model, rows = BayesianSVC(random_state=0, **settings), []
        for name, call in {
            "fit": lambda: model.fit(X, y),
            "predict_proba": lambda: model.predict_proba(X),
        }.items():
            with warnings.catch_warnings(), PeakMemory() as peak:
                warnings.simplefilter("ignore", ConvergenceWarning)
                taken = seconds(call)
            growth = {f"{field} MiB": size for field, size in peak.growth.items()}
            rows.append({"call": name, "s": taken, **growth})
        return rows


def memory_section(quick):
    """Return the table of Figure 2: memory on a memmap."""
    n, d, c = (20_000 if quick else 2_000_000), 8, 3
    settings = {"max_iter": 3}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        rows = pool.submit(measure_memory, n, d, c, settings).result()
    title = (
        f"Peak memory above the process's size before the call, memmap of {n} x {d} float32 "
        f"({n * d * 4 / 2**20:.0f} MiB), C = {c},\ndefault settings but for {settings} (a sweep "
        "more takes no more memory). VmRSS counts the mapped pages of\nthe file, RssAnon does not; "
        f"labels take {n * 8 / 2**20:.0f} MiB, probabilities {n * c * 8 / 2**20:.0f} MiB. "
        "Wanted: at most 1024 MiB."
    )
    return _report.table(pd.DataFrame(rows), title, digits=1)


def ovr_section(quick):
    """Return the table of Figure 4: one multi-class model against one model per class."""
    torch.set_num_threads(1)
    X, y = _data.load_classification("letter")
    X, _ = _data.prepared(X, X[:1])
    X, y = (X[:500], y[:500]) if quick else (X, y)
    c = len(np.unique(y))
    equal = {"optimizer": None, "tol": 0, "max_iter": 10, "random_state": 0}
    Z = select_inducing_points(X, M, random_state=0)
    cases = [(Z, "given", "soft"), (Z, "given", "hard"), ("kmeans", "k-means in each", "soft")]
    rows = []
    for points, how, contrast in cases[:1] if quick else cases:
        settings = {**equal, "n_inducing": M, "inducing_points": points}
        own = {"crammer_singer": {"contrast": contrast}, "ovr": {}}
        times = {}
        for multi_class, options in own.items():
            model = BayesianSVC(multi_class=multi_class, **options, **settings)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                times[multi_class] = seconds(lambda model=model: model.fit(X, y))
        ratio = times["ovr"] / times["crammer_singer"]
        rows.append({"inducing points": how, "contrast": contrast, **times, "ratio": ratio})
    title = (
        f"Seconds to fit letter ({len(X)} rows, C = {c}), float64, one thread, m = {M}, at equal "
        f"iterations\n({equal}). Wanted: ratio at least C/2 = {c / 2:g}."
    )
    return _report.table(pd.DataFrame(rows), title, digits=2)


SECTIONS = {
    "sweep": sweep_section,
    "growth": growth_section,
    "memory": memory_section,
    "ovr": ovr_section,
}


def main():
    """Run the sections and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    parts = [_report.header("Scaling of BayesianSVC")]
    for section in options.only:
        parts.append(SECTIONS[section](options.quick))
        print(f"{section} done", flush=True)
    write = not options.quick and options.only == list(SECTIONS)
    _report.publish("scaling", parts, write=write)


if __name__ == "__main__":
    main()
