"""
Rows that do not fit in memory
==============================

A table of millions of rows need not be in memory. Every estimator takes a ``numpy.memmap``, and
HDF5, Zarr and Parquet files, and reads them in blocks. The example writes 200,000 rows to a file,
and fits ``SVGPRegressor`` to it. For two million rows, set ``N``: the fit then takes about ten
times as long, and hardly more memory.
"""

import tempfile
from pathlib import Path
from time import process_time

import matplotlib.pyplot as plt
import numpy as np

from skgpsvm import SVGPRegressor

N, BLOCK = 200_000, 50_000


def truth(X):
    """Return Friedman's function, which depends on five of the eight features."""
    wave = 10 * np.sin(np.pi * X[:, 0] * X[:, 1])
    return wave + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]


# %%
# **Write the file in blocks**, as a program that collects data would. The targets are a vector and
# stay in memory.

rng = np.random.default_rng(0)
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "rows.npy"
X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(N, 8))
y = np.empty(N)
for start in range(0, N, BLOCK):
    block = rng.uniform(size=(BLOCK, 8))
    X[start : start + BLOCK] = block
    y[start : start + BLOCK] = truth(block) + rng.normal(size=BLOCK)
X.flush()
print(f"{path.stat().st_size / 2**20:.0f} MiB on disk")

# %%
# **Fit from the file.** A hundred inducing points stand for all rows. More of them follow the
# function more closely, at a cost that grows with their square.

X = np.load(path, mmap_mode="r")
start = process_time()
model = SVGPRegressor(n_inducing=100, random_state=0).fit(X, y)
print(f"{process_time() - start:.0f} seconds of one core")

# %%
# **Check the intervals on new rows.** The noise has a standard deviation of 1.

X_new = rng.uniform(size=(20_000, 8))
y_new = truth(X_new) + rng.normal(size=len(X_new))
mean, std = model.predict(X_new, return_std=True)
inside = np.mean(np.abs(y_new - mean) < 1.96 * std)
print(f"error of the mean  {np.sqrt(np.mean((mean - truth(X_new)) ** 2)):.3f}")
print(f"learned noise      {np.sqrt(model.noise_variance_):.3f}")
print(f"inside 95 %        {inside:.3f}")

# %%
# The kernel has a length scale for each feature. They are long for the three features that do not
# matter.

figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.8), layout="constrained")
axes[0].hexbin(mean, y_new, gridsize=60, bins="log", cmap="Blues", lw=0)
low, high = mean.min(), mean.max()
axes[0].plot([low, high], [low, high], color="#D55E00", lw=1.5)
axes[0].set(xlabel="prediction", ylabel="observation", title="20,000 new rows")
axes[1].bar([f"x{j}" for j in range(8)], 1 / model.kernel_.k1.k2.length_scale, color="#0072B2")
axes[1].set(title="What matters", ylabel="1 / length scale")
plt.show()
folder.cleanup()
