"""
How satisfied will they be?
===========================

Guests give a stay one to five stars. Stars have an order: what makes four stars more probable than
three makes five more probable than four. With ``likelihood="ordinal"`` a classifier learns one
function of the features, and the thresholds between the stars; with the softmax it learns a
function for each. The guests are generated to resemble real ones.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skgpsvm import AdditiveGPClassifier

STARS = np.arange(1, 6)
SHADES = plt.get_cmap("viridis")(np.linspace(0.1, 0.95, 5))


def guests(n, rng):
    """Return stays of n guests, and their stars."""
    stays = pd.DataFrame(
        {
            "waiting": rng.gamma(2.0, 8.0, n),
            "noise": rng.normal(45, 6, n),
            "nights": rng.integers(1, 15, n).astype(float),
            "price": rng.lognormal(4.7, 0.4, n),
        }
    )
    mood = (
        1.8 - 0.09 * np.minimum(stays["waiting"], 40) - 1.6 / (1 + np.exp(-(stays["noise"] - 48)))
    )
    mood += 0.4 * np.sin(stays["nights"] / 2.5) + rng.normal(size=n)
    return stays, 1 + np.digitize(mood, [-2.2, -1.2, -0.3, 0.7])


rng = np.random.default_rng(0)
(stays, stars), (new_stays, new_stars) = guests(300, rng), guests(5000, rng)
models = {
    likelihood: AdditiveGPClassifier(likelihood=likelihood, random_state=0).fit(stays, stars)
    for likelihood in ("ordinal", "softmax")
}

# %%
# Both give probabilities of each number of stars. From 300 guests, those of one function are
# better: the log loss is lower, and so is the error of the expected stars.

for likelihood, model in models.items():
    p = model.predict_proba(new_stays)
    loss = -np.log(p[np.arange(5000), new_stars - 1]).mean()
    error = np.abs(p @ STARS - new_stars).mean()
    print(f"{likelihood:8} log loss {loss:.3f}, mean error of the expected stars {error:.3f}")

# %%
# No guest likes to wait. ``monotonic_cst`` says so: a longer wait never makes more stars more
# probable. The probabilities are those of guests who are alike but for the wait.

model = AdditiveGPClassifier(
    likelihood="ordinal", monotonic_cst={"waiting": -1}, random_state=0
).fit(stays, stars)
wait = np.linspace(0, 50, 101)
alike = pd.DataFrame({name: np.full(101, stays[name].median()) for name in stays})
alike["waiting"] = wait

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
below = np.zeros(101)
for star, own, shade in zip(STARS, model.predict_proba(alike).T, SHADES, strict=True):
    axes[0].fill_between(wait, below, below + own, color=shade, lw=0, label=f"{star}")
    below = below + own
axes[0].set(xlim=(0, 50), ylim=(0, 1), xlabel="minutes of waiting", ylabel="probability")
axes[0].legend(title="stars", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))

# The latent function of the same guests, and the thresholds between the stars
mean, variance = model.latent_mean_and_variance(alike)
axes[1].fill_between(
    wait,
    mean - 1.96 * variance**0.5,
    mean + 1.96 * variance**0.5,
    color="#0072B2",
    alpha=0.25,
    lw=0,
)
axes[1].plot(wait, mean, color="#0072B2")
for k, threshold in enumerate(model.thresholds_):
    axes[1].axhline(threshold, color="#888888", lw=0.8)
    axes[1].text(50.5, threshold, f"{k + 1} | {k + 2}", va="center", fontsize=8)
axes[1].set(xlim=(0, 50), xlabel="minutes of waiting", ylabel="latent function")
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
plt.show()
