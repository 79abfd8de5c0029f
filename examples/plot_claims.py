"""
How often do policies claim?
============================

A tariff asks for the expected number of claims per year of each policy. The table has policies that
were insured for different times: the *exposures*, in years. ``AdditiveGPRegressor`` with a Poisson
likelihood takes them as weights, and splits the rate of claims into one factor for each feature.
The 40,000 policies are generated to resemble those of a car insurer, so that the rates are known.
"""

from time import process_time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import chi2
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import d2_tweedie_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, SplineTransformer

from skgpsvm import AdditiveGPRegressor
from skgpsvm.inspection import ComponentEffectDisplay, ContributionDisplay

BLUE, GRAY = "#0072B2", "#777777"
AREAS = {f"area {i:02d}": e for i, e in enumerate(np.random.default_rng(5).normal(0, 0.25, 20))}
BODIES = {"hatchback": 0.0, "saloon": -0.1, "estate": -0.15, "van": 0.2, "roadster": 0.35}
NUMBERS = ["driver_age", "car_age", "power", "mileage"]


def policies(n, seed):
    """Return a table of policies, their claims, exposures in years, and true rates per year."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "driver_age": (18 + rng.gamma(3, 10, n)).clip(18, 90).round(),
            "car_age": rng.gamma(1.6, 5, n).clip(0, 30).round(),
            "power": rng.gamma(9, 9, n).clip(30, 250).round(),
            "mileage": rng.gamma(4, 3.5, n).clip(1, 60).round(1),
            "body": rng.choice(list(BODIES), n, p=[0.45, 0.2, 0.2, 0.1, 0.05]),
            "area": rng.choice(list(AREAS), n),
        }
    )
    age, power = table["driver_age"], table["power"]
    log_rate = (
        -2.3
        + 1.1 * np.exp(-(age - 18) / 7)
        + 0.5 * (np.maximum(age - 68, 0) / 15)
        + 0.45 * np.log(table["mileage"] / 12)
        - 0.25 * np.exp(-table["car_age"] / 2)
        + 1.4 * np.exp(-(age - 18) / 10) * np.tanh((power - 80) / 30)
        + table["body"].map(BODIES)
        + table["area"].map(AREAS)
    ).to_numpy(float)
    years = np.where(rng.uniform(size=n) < 0.5, 1.0, rng.uniform(0.05, 1, n)).round(2)
    claims = rng.poisson(years * np.exp(log_rate))
    return table.astype({"body": "category", "area": "category"}), claims, years, np.exp(log_rate)


table, claims, years, _ = policies(40_000, seed=0)
new, new_claims, new_years, true_rate = policies(30_000, seed=1)
print(table.assign(years=years, claims=claims).head(4).to_string())
print(
    f"\n{claims.sum()} claims in {years.sum():.0f} years: {claims.sum() / years.sum():.3f} a year"
)

# %%
# **The fit.** The target is claims per year, and the weights are the years. The log density of a
# policy is then that of its number of claims, and a policy of one month counts little. A linear
# model on splines and boosted trees take the same weights. D2 is the share of the deviance that is
# explained: even the true rates explain little, since claims are rare and random. The last column
# is the root mean square error of the logarithm of the rate, known for generated data only.

models = {
    "AdditiveGPRegressor": AdditiveGPRegressor(likelihood="poisson", random_state=0),
    "splines, linear": make_pipeline(
        make_column_transformer(
            (SplineTransformer(6), NUMBERS),
            (OneHotEncoder(drop="first"), ["body", "area"]),
        ),
        PoissonRegressor(alpha=1e-4, max_iter=1000),
    ),
    "boosted trees": HistGradientBoostingRegressor(
        loss="poisson", max_iter=300, learning_rate=0.05, early_stopping=True, random_state=0
    ),
}
print("                       seconds  D2 on new policies  error of log rate")
predicted = {}
for name, model in models.items():
    weights = {
        f"{model.steps[-1][0]}__sample_weight" if "linear" in name else "sample_weight": years
    }
    start = process_time()
    model.fit(table, claims / years, **weights)
    seconds = process_time() - start
    rate = predicted[name] = model.predict(new)
    score = d2_tweedie_score(new_claims / new_years, rate, sample_weight=new_years, power=1)
    error = np.sqrt(np.mean(np.log(rate / true_rate) ** 2))
    print(f"{name:20s}  {seconds:8.1f}  {score:18.4f}  {error:17.3f}")
score = d2_tweedie_score(new_claims / new_years, true_rate, sample_weight=new_years, power=1)
print(f"{'true rates':20s}  {'':8s}  {score:18.4f}")
gam = models["AdditiveGPRegressor"]
print("terms:", ", ".join(gam.term_names_))

# %%
# **What it has learned.** Effects add up on the logarithm of the rate, so each is the logarithm of
# a factor: 0.7 doubles the rate, and 0.1 is 10 % more. Areas and bodies with few claims are shrunk
# to the average. The fit has also found the pair in the data: power matters for young drivers. The
# map of the pair is hatched where there are no policies.

ComponentEffectDisplay.from_estimator(gam, table)

# %%
# **Are the rates right?** New policies are sorted by their predicted rate and divided into ten
# groups of equal exposure. In each, the claims per year that were observed should agree with the
# prediction. The intervals are those of the observed counts.

rate = predicted["AdditiveGPRegressor"]
order = np.argsort(rate)
group = np.empty(len(rate), int)
group[order] = np.minimum(10 * np.cumsum(new_years[order]) / new_years.sum(), 9)
exposure, observed, expected = (
    np.bincount(group, values) for values in (new_years, new_claims, new_years * rate)
)
low, high = chi2.ppf(0.025, 2 * observed) / 2, chi2.ppf(0.975, 2 * observed + 2) / 2
figure, ax = plt.subplots(figsize=(6.6, 3.8), layout="constrained")
ax.errorbar(
    np.arange(1, 11),
    observed / exposure,
    yerr=np.abs([low - observed, high - observed]) / exposure,
    fmt="o",
    color=GRAY,
    capsize=3,
    label="observed, with 95 % intervals",
)
ax.plot(np.arange(1, 11), expected / exposure, "s-", color=BLUE, ms=5, label="predicted")
ax.set(
    xlabel="tenth of the exposure, by predicted rate",
    ylabel="claims per year",
    title="Claims of 30,000 new policies",
    xticks=range(1, 11),
    ylim=(0, None),
)
ax.grid(alpha=0.3)
ax.legend(frameon=False)
print(f"claims of all new policies: {expected.sum():.0f} predicted, {observed.sum():.0f} observed")

# %%
# **One policy.** Why does this policy have the highest rate? ``explain`` has the contribution of
# each term, and its exponential is a factor of the tariff.

highest = new.iloc[[rate.argmax()]]
print(highest.to_string(index=False))
print(f"\nfactor of the average policy: {np.exp(gam.intercept_):.3f} claims a year")
for name, factor in zip(gam.term_names_, np.exp(gam.explain(highest)[0]), strict=True):
    print(f"  {name:20s} x {factor:.2f}")
print(f"rate: {gam.predict(highest)[0]:.3f} claims a year")
ContributionDisplay.from_estimator(gam, highest)
plt.show()
