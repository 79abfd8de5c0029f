"""
Bayesian optimization
=====================

An experiment with two settings is expensive, so each next setting should be chosen well.
``SVGPRegressor`` is exact for so few rows. The mean and the standard deviation of its latent
function at candidates give the expected improvement over the best result so far, and the next
experiment is where this is largest. The standard deviation of ``return_std`` would not do: it
includes the noise, which repeating an experiment does not reduce. Begin with several experiments
per setting, here four, since two or three results look like noise.

The example finds the minimum of a function with three equal minima, with noise, and compares with
random settings.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm, qmc
from sklearn.gaussian_process.kernels import Matern

from skgpsvm import SVGPRegressor

LOW, HIGH = np.array([-5.0, 0.0]), np.array([10.0, 15.0])
BEST = 0.397887  # the minimum of the Branin function
N_FIRST, N_MORE, N_REPEATS = 8, 22, 3


def branin(X):
    """Return the Branin function of rows."""
    a, b = np.asarray(X).T
    bend = b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6
    return bend**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10


def settings(n, seed):
    """Return settings that fill the plane evenly."""
    return LOW + (HIGH - LOW) * qmc.Sobol(2, rng=np.random.default_rng(seed)).random(n)


def optimize(seed):
    """Return the settings that were tried, and the last model."""
    rng = np.random.default_rng(seed)
    X = settings(N_FIRST, seed)
    y = branin(X) + rng.normal(size=len(X))
    for round in range(N_MORE):
        # The latent function has no noise: its standard deviation says what is not known yet.
        model = SVGPRegressor(1.0 * Matern([5.0, 5.0], nu=2.5), random_state=0).fit(X, y)
        candidates = settings(1024, 1000 * seed + round)
        mean, variance = model.latent_mean_and_variance(candidates)
        std = np.sqrt(variance)
        gain = model.latent_mean_and_variance(X)[0].min() - mean
        expected_improvement = gain * norm.cdf(gain / std) + std * norm.pdf(gain / std)
        X = np.vstack([X, candidates[expected_improvement.argmax()]])
        y = np.append(y, branin(X[-1:]) + rng.normal())
    return X, model


runs = [optimize(seed) for seed in range(N_REPEATS)]

# %%
# The left panel has the tried settings over the mean of the model, and the right one the standard
# deviation of the function, without noise. The model knows the function well near its three minima,
# where it looked again and again, and hardly at all where early results were poor.

X, model = runs[0]
a, b = (np.linspace(low, high, 80) for low, high in zip(LOW, HIGH, strict=True))
grid = np.stack(np.meshgrid(a, b), axis=-1).reshape(-1, 2)
mean, std = model.predict(grid, return_std=True)
std = np.sqrt(std**2 - model.noise_variance_)
figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for ax, values, title in zip(axes, (mean, std), ("mean", "standard deviation"), strict=True):
    image = ax.pcolormesh(a, b, values.reshape(80, 80), cmap="viridis", rasterized=True)
    ax.plot(*X[:N_FIRST].T, "o", color="white", ms=5, mec="black", label="first settings")
    ax.plot(*X[N_FIRST:].T, "o", color="#D55E00", ms=5, mec="black", label="chosen settings")
    ax.set(title=title, xlabel="first setting", xlim=(-5, 10), ylim=(0, 15))
    figure.colorbar(image, ax=ax)
axes[0].set_ylabel("second setting")
axes[0].legend(loc="upper right", framealpha=0.9)

# %%
# Regret is the distance of the best setting so far from the minimum.

figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
n = np.arange(1, N_FIRST + N_MORE + 1)
for seed, (X, _) in enumerate(runs):
    random = np.random.default_rng(77 + seed).uniform(LOW, HIGH, (len(n), 2))
    for tried, color, label in ((X, "#0072B2", "chosen"), (random, "#777777", "random")):
        regret = np.minimum.accumulate(branin(tried) - BEST)
        ax.plot(n, regret, color=color, label=label if seed == 0 else None)
ax.axvline(N_FIRST, color="#555555", ls=":", lw=1)
ax.set(xlabel="experiments", ylabel="regret", yscale="log")
ax.legend(title="settings", frameon=False)
plt.show()
