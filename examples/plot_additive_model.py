"""
What does each feature add?
===========================

``AdditiveGPRegressor`` splits a function into a constant, an effect of each feature and effects of
pairs, each with a credible band. The first data set has known effects, after figure 1 of Adam,
Durrande and John (2018): 5000 rows of Friedman's function of six features, one of which has no
effect. The second is a small table with a category and missing numbers.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.special import sici
from sklearn.datasets import make_friedman1

from skgpsvm import AdditiveGPRegressor
from skgpsvm.inspection import ComponentEffectDisplay

X, y = make_friedman1(5000, n_features=6, noise=1.0, random_state=0)
gam = AdditiveGPRegressor(
    measure="uniform", n_inducing=16, n_inducing_interaction=4, random_state=0
).fit(X, y)
print("effects:", gam.term_names_)
print("dropped:", gam.dropped_terms_)
print(f"noise variance: {gam.noise_variance_:.3f}")

# %%
# The function is 10 sin(π x0 x1) + 20 (x2 - 1/2)² + 10 x3 + 5 x4, and the noise has variance 1. The
# true effects have closed forms. An effect is the average of the function over all other features,
# minus the effects of fewer features.

SI, SI_TWICE = sici(np.pi)[0], sici(2 * np.pi)[0]
MEAN = 10 / np.pi * (np.euler_gamma + np.log(np.pi) - sici(np.pi)[1])  # of the sine term


def averaged(x):
    """Return the sine term averaged over one of its features."""
    return 10 * np.pi * x / 2 * np.sinc(x / 2) ** 2


def wave(x):
    return averaged(x) - MEAN


def twist(a, b):
    return 10 * np.sin(np.pi * a * b) - averaged(a) - averaged(b) + MEAN


single = 100 / np.pi * (2 * SI - SI_TWICE - 4 / np.pi) - MEAN**2
pair = 50 * (1 - SI_TWICE / (2 * np.pi)) - MEAN**2 - 2 * single
TRUTH = {  # effect and its variance
    "x0": (wave, single),
    "x1": (wave, single),
    "x2": (lambda x: 20 * (x - 0.5) ** 2 - 5 / 3, 20 / 9),
    "x3": (lambda x: 10 * (x - 0.5), 25 / 3),
    "x4": (lambda x: 5 * (x - 0.5), 25 / 12),
    "x0 & x1": (twist, pair),
}
total = sum(variance for _, variance in TRUTH.values())

# %%
# The upper row shows the estimated effects with 95 % bands, and the true effects as dashed lines.
# The lower row shows the difference. The model was told neither which pair interacts nor which
# feature has no effect.

singles = list(TRUTH)[:5]
figure, axes = plt.subplots(2, 5, figsize=(12.5, 4.8), sharex="col", layout="constrained")
display = ComponentEffectDisplay.from_estimator(gam, X, features=singles, ax=axes[0])
for (above, below), part in zip(axes.T, display.effects, strict=True):
    (grid,), (effect, _) = part.grid, TRUTH[part.name]
    above.plot(grid, effect(grid), "--", color="black", linewidth=1)
    below.fill_between(grid, part.lower - effect(grid), part.upper - effect(grid), alpha=0.25)
    below.plot(grid, part.effect - effect(grid))
    below.axhline(0, ls="--", color="black", linewidth=1)
    below.set(xlabel=above.get_xlabel(), ylim=(-0.35, 0.35))
    above.set_xlabel(None)
    if part.name != singles[0]:
        above.set_ylabel(None)
axes[1, 0].set_ylabel("effect minus true effect")

# %%
# The first two panels show the estimated and the true effect of the pair, in the same colors. The
# third shows the share of each effect in the variance. Bars are true shares, and points are
# posterior estimates with 95 % intervals.

figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.6), layout="constrained")
display = ComponentEffectDisplay.from_estimator(gam, X, features=[(0, 1)], ax=axes[:1])
a, b = display.effects[0].grid
values = twist(a[:, None], b).T
image, contours = axes[0].collections
axes[1].pcolormesh(a, b, values, norm=image.norm, cmap=image.get_cmap(), rasterized=True)
axes[1].contour(a, b, values, contours.levels, colors="black", linewidths=0.5, alpha=0.6)
axes[1].set(xlabel="x0", ylabel="x1")
axes[1].set_title("x0 & x1, truth", size="medium")

indices = gam.sobol_indices(level=0.95)
order = [indices.terms.index(name) for name in TRUTH]
share = indices.share[order]
errors = np.abs([indices.lower[order] - share, indices.upper[order] - share])
true_share = [variance / total for _, variance in TRUTH.values()]
axes[2].bar(list(TRUTH), true_share, color="#cccccc", label="truth")
axes[2].errorbar(
    range(len(TRUTH)), share, errors, fmt="o", ms=4, capsize=4, color="#0072B2", label="posterior"
)
axes[2].set_title("share of the variance", size="medium")
axes[2].legend(frameon=False)

# %%
# Contributions add up: the prediction of a row is the constant plus its effects.

effects = gam.explain(X[:3])
print(pd.DataFrame(effects, columns=gam.term_names_).round(2))
print(gam.intercept_ + effects.sum(1) - gam.predict(X[:3]))

# %%
# The second table has a category with a rare level. High incomes are missing more often than low
# ones. Missing incomes have their own effect, the point at the right edge. Bands widen where the
# rug shows few rows. The model found by itself that hours have a larger effect at an old age, and
# that age has a larger effect in Bonn. Hours have no other effect, and the model dropped it.

rng = np.random.default_rng(0)
n = 1000
table = pd.DataFrame(
    {
        "age": rng.uniform(18, 80, n),
        "income": rng.lognormal(3, 0.6, n),
        "hours": rng.uniform(0, 10, n),
        "city": pd.Categorical(rng.choice(["Bonn", "Cork", "Delft"], n, p=[0.6, 0.37, 0.03])),
    }
)
years = table["age"] - 50
rating = (
    np.sin(table["age"] / 10)
    + np.log(table["income"])
    + 0.01 * years * table["hours"]
    + table["city"].map({"Bonn": 0.0, "Cork": -0.5, "Delft": 1.0}).astype(float)
    + 0.03 * years * (table["city"] == "Bonn")
    + 0.4 * rng.standard_normal(n)
)
table.loc[rng.uniform(size=n) < 0.01 * table["income"], "income"] = np.nan
mixed = AdditiveGPRegressor(random_state=0).fit(table, rating)
ComponentEffectDisplay.from_estimator(mixed, table)
plt.show()
