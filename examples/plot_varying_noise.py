"""
Where does the noise come from?
===============================

Accelerations of a helmet in a crash are quiet before the impact and scatter widely after it.
``likelihood="heteroscedastic"`` learns a noise variance that varies with time, as a second latent
function. The data are generated like those of Silverman (1985), so that the true noise is known.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skgpsvm import AdditiveGPRegressor, SVGPRegressor
from skgpsvm.inspection import ComponentEffectDisplay

NAMES = {"gaussian": "constant noise", "heteroscedastic": "noise that varies"}
COLOURS = {"gaussian": "#0072B2", "heteroscedastic": "#D55E00"}


def truth(x):
    """Return the mean and the standard deviation of the noise."""
    mean = -110 * np.exp(-0.5 * ((x - 21) / 4.2) ** 2) + 55 * np.exp(-0.5 * ((x - 32) / 4.5) ** 2)
    impact = 1 / (1 + np.exp(-(x - 16) / 1.2))
    return mean, 1.5 + 26 * impact * (0.55 + 0.45 * np.exp(-0.5 * ((x - 30) / 9) ** 2))


rng = np.random.default_rng(0)
x = np.sort(rng.uniform(2, 58, 150))
mean, std = truth(x)
X, y = x[:, None], mean + std * rng.normal(size=150)
models = {name: SVGPRegressor(likelihood=name, random_state=0).fit(X, y) for name in NAMES}

# %%
# The bands should contain a new row with probability 95 %. With constant noise they are too wide
# before the impact and too narrow in the rebound.

grid = np.linspace(2, 58, 400)
true_mean, true_std = truth(grid)
figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    found, deviation = model.predict(grid[:, None], return_std=True)
    color = COLOURS[name]
    ax.scatter(x, y, s=8, color="#888888", lw=0)
    ax.fill_between(
        grid, found - 2 * deviation, found + 2 * deviation, color=color, alpha=0.2, lw=0
    )
    ax.plot(grid, found, color=color, lw=1.6, label=NAMES[name])
    ax.plot(grid, true_mean, ":", color="black", lw=1.2, label="truth")
    ax.set(xlabel="time, ms")
    ax.legend(loc="lower right", frameon=False)
axes[0].set_ylabel("acceleration, g")

# %%
# ``predict_noise_variance`` returns the variance of the noise at rows, without the uncertainty of
# the mean.

figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for name, model in models.items():
    noise = np.sqrt(model.predict_noise_variance(grid[:, None]))
    ax.plot(grid, noise, color=COLOURS[name], label=NAMES[name])
ax.plot(grid, true_std, ":", color="black", label="truth")
ax.set(xlabel="time, ms", ylabel="standard deviation of the noise", yscale="log")
ax.legend(frameon=False)
plt.show()

# %%
# With several features, an additive model tells which of them make observations scatter. The table
# is generated: minutes until a parcel arrives, by distance, hour and weekday. Distance moves the
# mean, rush hours scatter, and Saturday does both.

n = 1500
days = np.array(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat"])
table = pd.DataFrame(
    {
        "distance, km": rng.gamma(2.0, 3.0, n),
        "hour": rng.uniform(8, 20, n),
        "day": pd.Categorical(rng.choice(days, n), categories=days),
    }
)
saturday = (table["day"] == "Sat").to_numpy()
rush = np.exp(-0.5 * ((table["hour"] - 17.5) / 1.2) ** 2)
minutes = 12 + 2.2 * table["distance, km"] - 4 * saturday
minutes += 1.2 * 4 ** (rush - 0.5 * saturday) * rng.normal(size=n)
gam = AdditiveGPRegressor(likelihood="heteroscedastic", interactions=None, random_state=0)
gam.fit(table, minutes)

figure, axes = plt.subplots(2, 3, figsize=(10, 5.4), layout="constrained")
names = ["distance, km", "hour", "day"]
for row, latent in zip(axes, (0, "noise"), strict=True):
    ComponentEffectDisplay.from_estimator(gam, table, features=names, latent=latent, ax=row)
axes[0, 0].set_ylabel("effect, minutes")
axes[1, 0].set_ylabel("effect on log std of noise")

# %%
# Effects on the noise are those on the logarithm of its standard deviation: ``np.exp`` of one is a
# factor. At half past five, parcels scatter about four times as much as in the morning.

hours = table.assign(hour=17.5)[:1], table.assign(hour=10.0)[:1]
rush, morning = (gam.predict_noise_variance(rows)[0] ** 0.5 for rows in hours)
print(f"noise at 17:30 and at 10:00: {rush:.1f} and {morning:.1f} minutes")
