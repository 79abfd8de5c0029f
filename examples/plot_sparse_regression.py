"""
How few points can represent a thousand rows?
=============================================

``SVGPRegressor`` keeps a posterior over the values of a function at its inducing points, and moves
the points to where they are most informative. The data are a thousand noisy rows of a wave whose
frequency rises where rows become sparser. They have a gap, and one in twenty is an outlier. The
example compares Gaussian noise with Student's t noise.
"""

from time import process_time

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpsvm import SVGPRegressor
from skgpsvm.inducing import select_inducing_points
from skgpsvm.likelihoods import Gaussian, StudentT

LIKELIHOODS = {"gaussian": Gaussian, "student_t": lambda var: StudentT((var / 2) ** 0.5)}
NAMES = {"gaussian": "Gaussian noise", "student_t": "Student-t noise"}
COLOURS = {"gaussian": "#0072B2", "student_t": "#D55E00"}
SIZES = (6, 8, 12, 20, 40)


def truth(x):
    return np.sin(x**2 / 4)


def draw(n, rng):
    """Return rows with noise of standard deviation 0.15 and outliers of up to 3."""
    x = 8 * rng.uniform(size=n) ** 1.4
    x = np.where((x > 3.2) & (x < 4.2), x - 3.2, x)
    outlier = rng.uniform(size=n) < 0.05
    noise = np.where(outlier, rng.uniform(-3, 3, n), 0.15 * rng.standard_normal(n))
    return x[:, None], truth(x) + noise


rng = np.random.default_rng(0)
X, y = draw(1000, rng)
X_test, y_test = draw(4000, rng)


def timed(model):
    """Return the fitted model, and the seconds of the fit."""
    start = process_time()
    return model.fit(X, y), process_time() - start


models = {
    (noise, m): timed(
        SVGPRegressor(
            likelihood=noise,
            n_inducing=m,
            inducing_points=select_inducing_points(X, m, random_state=0),
            random_state=0,
        )
    )
    for noise in LIKELIHOODS
    for m in SIZES
}
kernel = ConstantKernel() * RBF() + WhiteKernel(0.1)
exact, exact_time = timed(GaussianProcessRegressor(kernel, normalize_y=True))

# %%
# The lines at the bottom lead from the initial k-means positions of the twenty points up to their
# final positions. The dark band should contain the function, and the light band a new row, with
# probability 95 %. Outliers inflate the Gaussian noise of all rows, so that the function is less
# certain. In the gap, the bands of both models widen.

grid = np.linspace(0, 8.3, 500)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
for ax, (noise, color) in zip(axes, COLOURS.items(), strict=True):
    model, _ = models[noise, 20]
    mean, std = model.predict(grid, return_std=True)
    latent_std = np.sqrt(model.latent_mean_and_variance(grid)[1])
    ax.scatter(X[:, 0], y, s=3, color="#999999", lw=0)
    for width, alpha in ((2 * std, 0.18), (2 * latent_std, 0.35)):
        ax.fill_between(grid[:, 0], mean - width, mean + width, color=color, alpha=alpha, lw=0)
    ax.plot(grid, truth(grid), ":", color="black", lw=1.2, label="truth")
    ax.plot(grid, mean, color=color, lw=1.6, label=f"{NAMES[noise]}, mean")
    before, after = model.inducing_points.T, model.inducing_points_.T
    ax.plot(np.concatenate([before, after]), [-3.2, -2.9], color="#bbbbbb", lw=0.8)
    ax.vlines(before, -3.4, -3.2, color="#555555", lw=1.2)
    ax.vlines(after, -2.9, -2.7, color=color, lw=1.2)
    ax.set(xlabel="x", xlim=(-0.2, 8.3), ylim=(-3.5, 3.5))
    ax.legend(loc="upper left", frameon=False, ncols=2)
axes[0].set_ylabel("y")

# %%
# With Gaussian noise, twenty points are as accurate as the exact process. With Student's t noise,
# which allows for outliers, the model is more accurate than both.


def negative_log_density(noise, model):
    """Return the mean negative log density of the test rows, in nats."""
    mean, var = (torch.from_numpy(m)[:, None] for m in model.latent_mean_and_variance(X_test))
    likelihood = LIKELIHOODS[noise](model.noise_variance_)
    return -likelihood.log_marginal(torch.from_numpy(y_test[:, None]), mean, var).mean().item()


def error(model):
    """Return the root mean square error to the true function."""
    return np.sqrt(np.mean((model.predict(X_test) - truth(X_test[:, 0])) ** 2))


exact_loss = -norm.logpdf(y_test, *exact.predict(X_test, return_std=True)).mean()

panels = {
    "error of the mean, root mean square": (lambda noise, fit: error(fit[0]), error(exact)),
    "minus log density of a new row, nats": (
        lambda noise, fit: negative_log_density(noise, fit[0]),
        exact_loss,
    ),
    "processor seconds to fit": (lambda noise, fit: fit[1], exact_time),
}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for ax, (title, (value, level)) in zip(axes, panels.items(), strict=True):
    ax.axhline(level, ls="--", color="#555555", label="GaussianProcessRegressor, exact")
    for (noise, color), marker in zip(COLOURS.items(), "os", strict=True):
        values = [value(noise, models[noise, m]) for m in SIZES]
        ax.plot(SIZES, values, marker + "-", color=color, ms=4, label=NAMES[noise])
    ax.set(xscale="log", xlabel="inducing points", title=title)
    ax.title.set_size("medium")
    ax.set_xticks(SIZES, SIZES)
    ax.minorticks_off()
    ax.grid(alpha=0.3)
for ax, ticks in ((axes[0], (0.02, 0.05, 0.1, 0.2)), (axes[2], (0.1, 0.3, 1, 3))):
    ax.set_yscale("log")
    ax.set_yticks(ticks, ticks)
    ax.minorticks_off()
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
plt.show()
