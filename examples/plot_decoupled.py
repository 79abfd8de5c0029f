"""
What do more bases of the mean gain?
====================================

The mean and the covariance of a sparse Gaussian process usually share their bases, and each further
basis makes both more expensive. ``DecoupledGPRegressor`` gives the mean separate bases. The first
example is a curve in one dimension, after figure 1 of Cheng and Boots (2017). The second is a
surface that needs hundreds of bases.
"""

from time import process_time

import matplotlib.pyplot as plt
import numpy as np

from skgpsvm import DecoupledGPRegressor, SVGPRegressor
from skgpsvm.solvers import StochasticGradient

DECOUPLED, COUPLED = "#0072B2", "#009E73"
PANELS = ((10, 10), (100, 10), (100, 100))

rng = np.random.default_rng(0)
x = rng.uniform(-5, 5, (500, 1))
y = np.sinc(x[:, 0]) + 0.1 * rng.standard_normal(500)


def learned(n_mean, n_cov):
    """Return the model fitted by the algorithm of the paper, in 25 passes of minibatches."""
    return DecoupledGPRegressor(
        solver=StochasticGradient("decoupled", batch_size=64),
        n_mean_bases=n_mean,
        n_inducing=n_cov,
        max_iter=25,
        random_state=0,
    ).fit(x, y)


models = {sizes: learned(*sizes) for sizes in PANELS}

# sphinx_gallery_thumbnail_number = 2

# %%
# All three models are learned by the same stochastic gradients, which move the bases and learn a
# length scale for each. The dark band should contain the function, and the light band a new row,
# with probability 95 %. The lines at the bottom are the final bases of the covariance.
#
# With ten bases for both, the model misses the outer waves and treats them as noise. With a hundred
# for the mean alone, it finds them. Its nMSE, the squared error divided by the variance of the
# function, is then close to that of a hundred bases for both. Only the dark band is wider, because
# the covariance still has ten bases.
#
# The first panel is not the best result with ten points: ``SVGPRegressor``, which moves the points
# by a closed-form bound, finds the waves.

grid = np.linspace(-5, 5, 400)[:, None]
truth = np.sinc(grid[:, 0])
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), sharex=True, sharey=True, layout="constrained")
for ax, (n_mean, n_cov) in zip(axes, PANELS, strict=True):
    model = models[n_mean, n_cov]
    mean, std = model.predict(grid, return_std=True)
    latent_std = np.sqrt(model.latent_mean_and_variance(grid)[1])
    ax.scatter(x[:, 0], y, s=3, color="#999999", lw=0)
    for width, alpha in ((1.96 * std, 0.18), (1.96 * latent_std, 0.35)):
        ax.fill_between(grid[:, 0], mean - width, mean + width, color=DECOUPLED, alpha=alpha, lw=0)
    ax.plot(grid, mean, color=DECOUPLED, lw=1.6, label="mean")
    ax.plot(grid, truth, "--", color="black", lw=1.0, label="truth")
    ax.vlines(model.inducing_points_[:, 0], -0.68, -0.6, color="#555555", lw=1.0)
    error = np.mean((mean - truth) ** 2) / truth.var()
    ax.set_title(f"mean {n_mean}, covariance {n_cov}: nMSE {error:.3f}", size="medium")
    ax.set(xlabel="x", xlim=(-5, 5), ylim=(-0.7, 1.4))
axes[0].set_ylabel("y")
axes[0].legend(loc="upper left", frameon=False)

# %%
# The second function is a surface with waves of changing direction, and there are 2000 rows. The
# kernel is learned once, from a thousand rows. The default solver then computes the mean from all
# rows by conjugate gradients. Kernel, noise and 64 inducing points stay fixed, and only the number
# of bases of the mean changes. The bases are random rows, and in the last fit all rows.
# ``SVGPRegressor`` learns everything again for each number of points.


def surface(X):
    waves = np.sin(5 * X[:, 0] * X[:, 1])
    return waves + np.cos(5 * np.hypot(X[:, 0] - 1, X[:, 1]))


X, X_test = rng.uniform(-2, 2, (2000, 2)), rng.uniform(-2, 2, (4000, 2))
y = surface(X) + 0.1 * rng.standard_normal(len(X))


def result(model, n_rows=None):
    """Return the RMSE to the true function, and the seconds of a fit to the first rows."""
    start = process_time()
    model.fit(X[:n_rows], y[:n_rows])
    seconds = process_time() - start
    return np.sqrt(np.mean((model.predict(X_test) - surface(X_test)) ** 2)), seconds


model = DecoupledGPRegressor(n_inducing=64, warm_start=True, random_state=0)
_, learning = result(model, 1000)
model.set_params(optimizer=None, learn_inducing=False)
bases = (32, 64, 128, 256, 512, 1000, 2000)
decoupled = [result(model.set_params(n_mean_bases=size)) for size in bases]
points = (32, 64, 128, 256)
coupled = [result(SVGPRegressor(n_inducing=size, random_state=0)) for size in points]

# %%
# The error falls until the bases cover the surface. With all rows as bases, the mean is that of the
# exact process. A learned point is as useful as about two random rows, but costs far more. A fit
# with 256 points takes longer than learning the kernel and solving with all rows as bases.

lines = {
    "DecoupledGPRegressor, 64 inducing points": (bases, decoupled, DECOUPLED, "o-"),
    "SVGPRegressor": (points, coupled, COUPLED, "^-"),
}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharex=True, layout="constrained")
for label, (sizes, results, color, style) in lines.items():
    for ax, values in zip(axes, zip(*results, strict=True), strict=True):
        ax.plot(sizes, values, style, color=color, ms=4, label=label)
axes[1].axhline(learning, ls="--", color=DECOUPLED, lw=1.0, label="learning the kernel, once")
titles = ("error of the mean, root mean square", "processor seconds to fit")
ticks = ((0.05, 0.1, 0.2, 0.5), (0.03, 0.1, 0.3, 1, 3, 10))
for ax, title, values in zip(axes, titles, ticks, strict=True):
    ax.set(xscale="log", yscale="log", xlabel="bases of the mean")
    ax.set_title(title, size="medium")
    ax.set_xticks(bases, bases)
    ax.set_yticks(values, values)
    ax.minorticks_off()
    ax.grid(alpha=0.3)
handles, labels = axes[1].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
plt.show()
