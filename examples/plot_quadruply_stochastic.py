"""
Which functions span the mean, and how certain are they?
========================================================

``QSGPRegressor`` has a mean of very many functions, and ``QSRVMRegressor`` keeps the few that
matter. Three figures after Evans and Nair (2020) show the uncertainty of such models far from the
data, the relevance vectors, and the error of three algorithms as a function of time.
"""

import warnings
from time import process_time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpsvm import QSGPRegressor, QSRVMRegressor
from skgpsvm.solvers import QuadruplyStochastic

BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#999999"

rng = np.random.default_rng(1)
x = rng.uniform(-6, 6, (20, 1))
y = np.sinc(x[:, 0] / np.pi) + 0.1 * rng.standard_normal(20)
grid = np.linspace(-14, 14, 400)[:, None]

# sphinx_gallery_thumbnail_number = 2

# %%
# There are twenty rows, all of which are bases, and kernel and noise are fixed. With independent
# weights, the mean field of the paper, the variance falls to zero far from all rows: the model is
# most certain where it has no data. With one more kernel function at the predicted point, the
# variance returns to that of the prior, but is too large near the data. The default, a covariance
# on inducing points, agrees with the exact process (dashed).

given = {"optimizer": None, "noise_variance": 0.01, "normalize_y": False, "learn_inducing": False}
models = {
    "mean field": {"covariance": "mean_field"},
    "mean field, augmented": {"covariance": "mean_field", "augment": True},
    "nystroem": {"inducing_points": x},
}
exact = GaussianProcessRegressor(1.0 * RBF(1.5), alpha=0.01, optimizer=None).fit(x, y)
mean, std = exact.predict(grid, return_std=True)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharex=True, sharey=True, layout="constrained")
for ax, (title, parameters) in zip(axes, models.items(), strict=True):
    model = QSGPRegressor(1.0 * RBF(1.5), basis="inducing", **given, **parameters).fit(x, y)
    m, v = model.latent_mean_and_variance(grid)
    band = 1.96 * np.sqrt(v)
    ax.fill_between(grid[:, 0], m - band, m + band, color=BLUE, alpha=0.25, lw=0)
    ax.plot(grid, m, color=BLUE, lw=1.6)
    for sign in (-1, 1):
        ax.plot(grid, mean + sign * 1.96 * std, "--", color="black", lw=0.9)
    ax.scatter(x[:, 0], y, s=12, color=ORANGE, zorder=3)
    ax.set_title(title, size="medium")
    ax.set(xlabel="x", xlim=(-14, 14), ylim=(-2.4, 2.4))
axes[0].set_ylabel("f, with 95 % band")

# %%
# The relevance vector machine learns a precision for each kernel function at 500 rows. Most
# precisions grow without bound, and their functions are removed. The remaining rows are circled.
# The mean is about as accurate as that of the exact process, and a prediction takes only a few
# kernel evaluations.

x = rng.uniform(-10, 10, (500, 1))
truth = np.sinc(grid[:, 0] / np.pi)
y = np.sinc(x[:, 0] / np.pi) + 0.1 * rng.standard_normal(500)
rvm = QSRVMRegressor(random_state=0).fit(x, y)
gp = GaussianProcessRegressor(1.0 * RBF(2.0) + WhiteKernel(0.1), random_state=0).fit(x, y)
inside = np.abs(grid[:, 0]) <= 10
errors = {
    name: np.sqrt(np.mean((model.predict(grid) - truth)[inside] ** 2))
    for name, model in {"relevance vectors": rvm, "exact process": gp}.items()
}
figure, ax = plt.subplots(figsize=(10, 3.6), layout="constrained")
m, v = rvm.latent_mean_and_variance(grid)
ax.scatter(x[:, 0], y, s=4, color=GREY, lw=0)
ax.fill_between(
    grid[:, 0], m - 1.96 * np.sqrt(v), m + 1.96 * np.sqrt(v), color=BLUE, alpha=0.3, lw=0
)
ax.plot(
    grid, m, color=BLUE, lw=1.6, label=f"relevance vectors, error {errors['relevance vectors']:.3f}"
)
ax.plot(
    grid,
    gp.predict(grid),
    color=GREEN,
    lw=1.2,
    label=f"exact process, {errors['exact process']:.3f}",
)
ax.plot(grid, truth, "--", color="black", lw=1.0, label="truth")
vectors = rvm.relevance_vectors_
ax.scatter(
    vectors[:, 0], rvm.predict(vectors), s=70, facecolors="none", edgecolors=ORANGE, zorder=3
)
ax.set(xlabel="x", ylabel="y", xlim=(-10, 10), ylim=(-0.7, 1.5))
ax.set_title(f"{len(vectors)} of 500 functions remain", size="medium")
ax.legend(loc="upper left", frameon=False)

# %%
# Three algorithms learn the same mean, on 2000 random Fourier features and 2000 rows, with fixed
# kernel and noise. The first takes the steps of the paper, with the linear term on one draw, its
# control variate and AdaGrad. The second takes the default steps of ``solver="sgd"``, and the third
# is conjugate gradients. The cost of a step depends neither on the number of rows nor on that of
# functions. If all functions fit in memory, conjugate gradients are much faster.

X, X_test = rng.uniform(-2, 2, (2000, 2)), rng.uniform(-2, 2, (2000, 2))


def surface(X):
    return np.sin(3 * X[:, 0] * X[:, 1]) + np.cos(3 * np.hypot(X[:, 0] - 1, X[:, 1]))


y = surface(X) + 0.1 * rng.standard_normal(len(X))
kernel = 1.0 * RBF(0.6)
common = {"n_basis": 2000, "n_inducing": 64}
steps = {"n_sampled_basis": 128, "batch_size": 128}
ways = {
    "the paper's steps": (
        {
            "solver": QuadruplyStochastic(
                step="adagrad", gradient="plain", control_variate="gram", **steps
            )
        },
        GREY,
    ),
    'solver="sgd"': ({"solver": QuadruplyStochastic(**steps)}, ORANGE),
    'solver="cg"': ({"solver": "cg", "tol": 1e-9}, BLUE),
}
warnings.simplefilter("ignore", ConvergenceWarning)  # too few iterations, on purpose
figure, ax = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for label, (parameters, color) in ways.items():
    points = []
    for passes in (1, 2, 4, 8, 16, 32, 64):
        if label == 'solver="cg"' and passes > 16:
            break
        model = QSGPRegressor(kernel, max_iter=passes, random_state=0, **common, **parameters)
        model.set_params(optimizer=None, noise_variance=0.01, learn_inducing=False)
        start = process_time()
        model.fit(X, y)
        seconds = process_time() - start
        points.append((seconds, np.sqrt(np.mean((model.predict(X_test) - surface(X_test)) ** 2))))
    ax.loglog(*zip(*points, strict=True), "o-", color=color, ms=4, label=label)
ax.set(xlabel="processor seconds to fit", ylabel="root mean square error to the truth")
ax.set_xticks((0.2, 0.5, 1, 2, 5, 10), (0.2, 0.5, 1, 2, 5, 10))
ax.set_yticks((0.15, 0.2, 0.3, 0.5, 0.7), (0.15, 0.2, 0.3, 0.5, 0.7))
ax.minorticks_off()
ax.grid(alpha=0.3)
ax.legend(frameon=False)
plt.show()
