"""
How many will come?
===================

Counts scatter more where there are more of them. Intervals with Gaussian noise are then too wide at
night and too narrow in the afternoon. A Poisson likelihood, whose variance is the mean, takes all
further scatter for variation of the mean. ``likelihood="negative_binomial"`` learns the dispersion.
The data are hourly rentals of bicycles, generated to resemble real ones: the hour and the
temperature are known, and the day's other conditions are not.
"""

import matplotlib.pyplot as plt
import numpy as np

from skgpsvm import SVGPRegressor

NAMES = {
    "gaussian": "Gaussian noise",
    "poisson": "Poisson",
    "negative_binomial": "negative binomial",
}
COLOURS = {"gaussian": "#0072B2", "poisson": "#E69F00", "negative_binomial": "#D55E00"}


def mean_of(hour, temperature):
    """Return the expected number of rentals."""
    commute = np.exp(-0.5 * ((hour - 8) / 1.1) ** 2) + 1.2 * np.exp(-0.5 * ((hour - 17.5) / 2) ** 2)
    day = 1 / (1 + np.exp(-(hour - 6.5))) / (1 + np.exp((hour - 22) / 1.2))
    return 4 + (60 * day + 260 * commute) * np.exp(0.05 * (temperature - 18))


def draw(n, rng):
    """Return hours and temperatures (n, 2), and rentals (n,)."""
    hour, temperature = rng.integers(0, 24, n), rng.normal(18, 6, n)
    rate = mean_of(hour, temperature) * rng.gamma(6, 1 / 6, n)  # showers, festivals, ...
    return np.c_[hour, temperature].astype(float), rng.poisson(rate).astype(float)


rng = np.random.default_rng(0)
X, y = draw(600, rng)
X_new, y_new = draw(4000, rng)
models = {}
for name in NAMES:
    models[name] = SVGPRegressor(likelihood=name, random_state=0).fit(X, y)

# %%
# Intervals of level 0.9 at a temperature of 18 degrees. The gray rows are training rows between 15
# and 21 degrees.

hours = np.linspace(0, 23, 93)
grid = np.c_[hours, np.full(93, 18.0)]
near = np.abs(X[:, 1] - 18) < 3
figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    lower, upper = model.predict_interval(grid, level=0.9)
    low, high = model.predict_interval(X_new, level=0.9)
    held = np.mean((low <= y_new) & (y_new <= high))
    ax.scatter(X[near, 0], y[near], s=8, color="#888888", lw=0)
    ax.fill_between(hours, lower, upper, color=COLOURS[name], alpha=0.25, lw=0)
    ax.plot(hours, model.predict(grid), color=COLOURS[name], lw=1.6)
    ax.plot(hours, mean_of(hours, 18.0), ":", color="black", lw=1.2, label="truth")
    ax.set(title=f"{NAMES[name]}: {held:.0%} of new rows", xlabel="hour", xticks=range(0, 24, 6))
axes[0].set_ylabel("rentals")
axes[0].legend(frameon=False)

# %%
# An interval should hold at each hour, not only on average.

figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for name, model in models.items():
    low, high = model.predict_interval(X_new, level=0.9)
    inside = (low <= y_new) & (y_new <= high)
    by_hour = [inside[X_new[:, 0] == hour].mean() for hour in range(24)]
    ax.plot(range(24), by_hour, marker="o", ms=3, color=COLOURS[name], label=NAMES[name])
ax.axhline(0.9, ls=":", color="black")
ax.set(xlabel="hour", ylabel="share of new rows inside", xticks=range(0, 24, 6), ylim=(0, 1.02))
ax.legend(frameon=False, loc="lower right")
print(f"Learned dispersion: {models['negative_binomial'].dispersion_:.2f} (truth {1 / 6:.2f})")
plt.show()
