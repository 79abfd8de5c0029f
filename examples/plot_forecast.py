"""
Forecast a time series with trend, season and intervals
=======================================================

A Gaussian process of one feature, time, is a forecasting model: its kernel says what may repeat,
what drifts and how fast both may change. ``SVGPRegressor`` learns the rest from 132 monthly counts
and returns a mean and an interval for each of the next 36 months. The series is generated to
resemble the classical one of airline passengers: it grows, its season grows with it, and its
deviations last for some months.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, Matern

from skgpsvm import SVGPRegressor

BLUE, GREY = "#0072B2", "#555555"


def series(seed, n=168):
    """Return months, in years, and counts."""
    rng = np.random.default_rng(seed)
    t = np.arange(n) / 12
    season = (0.16 + 0.012 * t) * np.cos(2 * np.pi * (t - 0.55)) + 0.07 * np.cos(4 * np.pi * t)
    drift = np.zeros(n)
    for i in range(1, n):
        drift[i] = 0.8 * drift[i - 1] + 0.035 * rng.normal()
    return t, np.exp(4.6 + 0.11 * t + season + drift + 0.02 * rng.normal(size=n))


# %%
# **The model.** Counts that grow by percentages are modeled by their logarithm. The trend is the
# linear ``mean``. The product of a periodic and a smooth kernel is a season of one year whose shape
# may change over decades, and the Matérn kernel is the drift between months. The period is known,
# so it is fixed; all other hyperparameters are learned, and so is the noise.

season = ExpSineSquared(1.0, periodicity=1.0, periodicity_bounds="fixed")
kernel = 1.0 * season * RBF(10.0) + 0.1 * Matern(0.5, nu=0.5)


def forecast(t, counts, months):
    """Return the median of the counts, and bounds of 95 % intervals."""
    model = SVGPRegressor(kernel, mean="linear", random_state=0).fit(t[:, None], np.log(counts))
    mean, std = model.predict(months[:, None], return_std=True)
    return np.exp(mean), np.exp(mean - 1.96 * std), np.exp(mean + 1.96 * std)


t, counts = series(0)
past = t < 11
median, lower, upper = forecast(t[past], counts[past], t[~past])

# %%
# The interval of an observation widens with the horizon. Since the logarithm was modeled, it is not
# symmetric, and it never includes negative counts.

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
year = 2012 + t
ax.plot(year[past], counts[past], color=GREY, lw=1.2, label="fitted")
ax.fill_between(year[~past], lower, upper, color=BLUE, alpha=0.2, lw=0, label="95 % interval")
ax.plot(year[~past], median, color=BLUE, label="forecast")
ax.plot(year[~past], counts[~past], "o", color="black", ms=3, label="observed")
ax.axvline(year[~past][0], color=GREY, ls=":", lw=1)
ax.set(ylabel="passengers, thousands", title="Three years ahead")
ax.legend(loc="upper left", frameon=False)

# %%
# **A backtest.** One series proves little. Eight series are forecast below, next to the usual
# reference: the same month of the last year, times the growth of the last year.

rows = []
for seed in range(8):
    t, counts = series(seed)
    median, lower, upper = forecast(t[past], counts[past], t[~past])
    last, before = counts[past][-12:], counts[past][-24:-12]
    growth = last.sum() / before.sum()
    repeated = np.concatenate([last * growth**year for year in (1, 2, 3)])
    true = counts[~past]
    rows.append(
        (
            100 * np.mean(np.abs(median / true - 1)),
            100 * np.mean(np.abs(repeated / true - 1)),
            100 * np.mean((lower < true) & (true < upper)),
        )
    )
print("series  error, %  last year's, %  inside the interval, %")
for seed, row in enumerate(rows):
    print("{:6d}  {:8.1f}  {:14.1f}  {:22.0f}".format(seed, *row))
print("  mean  {:8.1f}  {:14.1f}  {:22.0f}".format(*np.mean(rows, axis=0)))

# %%
# The forecast is more accurate on average. Its intervals hold somewhat fewer than 95 % of the
# months, and in a single series much fewer, for two reasons. The intervals take the learned
# hyperparameters and the form of the trend for granted, and the months of one series are wrong
# together. Take a longer past, or widen the intervals by what a backtest on your own series shows.

figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
error, reference, _ = np.array(rows).T
ax.scatter(reference, error, color=BLUE)
limit = 1.1 * max(reference.max(), error.max())
ax.plot([0, limit], [0, limit], ":", color=GREY)
ax.set(
    xlabel="mean error of last year's months with growth, %",
    ylabel="of the forecast, %",
    xlim=(0, limit),
    ylim=(0, limit),
)
plt.show()
